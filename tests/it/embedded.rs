//! An engine in the test's own process, over files that the test can hold up or make fail, where a job's part of a checkpoint, its restore or its
//! scratch folder is meant.
//!
//! # Invariants
//! - Nothing waits for ever: [`eventually`] gives up after [`PATIENCE`], and what is held is let go when the [`Gate`]'s test ends.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::Array;
use futures::StreamExt;
use parking_lot::{Condvar, Mutex};
use weir::job::Engine;
use weir::job::engine::Seams;
use weir::job::settings::Settings;
use weir::job::status::{CheckpointState, JobStatus};
use weir::seams::files::{AppendFile, Files, LocalFiles};
use weir::server::encode::write_text;
use weir::server::prepared::Arguments;
use weir::server::query::QueryRunner;
use weir::server::session::{Reply, Session};
use weir_catalog::{Error, Result, SqlState};

use crate::server::PATIENCE;

/// What happens to the operations that a rule fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// They wait until the rule is gone.
    Hold,
    /// They fail with `58030`.
    Fail,
    /// They take so much longer.
    Slow(Duration),
}

#[derive(Debug)]
struct Rule {
    /// The operation, as the trait's method is called, and texts that must all be in its path.
    operation: &'static str,
    texts: Vec<String>,
    effect: Effect,
    /// Whether it fits operations that come from now on; those that it holds stay held.
    catching: bool,
    met: usize,
}

/// Files of the machine, some of which are held up or fail. Rules have names.
#[derive(Debug, Default)]
pub struct Gate {
    rules: Mutex<BTreeMap<&'static str, Rule>>,
    changed: Condvar,
}

impl Gate {
    /// From now on, `operation` on paths with all of `texts` in them has `effect`.
    pub fn add(&self, name: &'static str, operation: &'static str, texts: &[&str], effect: Effect) {
        let texts = texts.iter().map(|text| (*text).to_string()).collect();
        self.rules.lock().insert(name, Rule { operation, texts, effect, catching: true, met: 0 });
    }

    /// Ends a rule: what it holds goes on.
    pub fn remove(&self, name: &str) {
        self.rules.lock().remove(name);
        self.changed.notify_all();
    }

    /// What comes from now on is not held any more; what is held stays so.
    pub fn catch_no_more(&self, name: &str) {
        if let Some(rule) = self.rules.lock().get_mut(name) {
            rule.catching = false;
        }
    }

    /// How many operations the rule has met.
    pub fn met(&self, name: &str) -> usize {
        self.rules.lock().get(name).map_or(0, |rule| rule.met)
    }

    fn pass(&self, operation: &str, path: &Path) -> Result<()> {
        let text = path.to_string_lossy();
        let mut rules = self.rules.lock();
        let fits = |rule: &Rule| rule.catching && rule.operation == operation && rule.texts.iter().all(|part| text.contains(part));
        let Some((name, rule)) = rules.iter_mut().find(|(_, rule)| fits(rule)) else { return Ok(()) };
        rule.met += 1;
        let (name, effect) = (*name, rule.effect);
        match effect {
            Effect::Fail => Err(Error::new(SqlState::IO_ERROR, "made to fail by the test")),
            Effect::Hold => {
                while rules.contains_key(name) {
                    self.changed.wait(&mut rules);
                }
                Ok(())
            }
            Effect::Slow(pause) => {
                drop(rules);
                std::thread::sleep(pause);
                Ok(())
            }
        }
    }
}

/// A [`Gate`] as the engine takes it.
#[derive(Clone, Debug)]
struct GatedFiles(Arc<Gate>);

impl Files for GatedFiles {
    fn append(&self, path: &Path) -> Result<Box<dyn AppendFile>> {
        LocalFiles.append(path)
    }
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        self.0.pass("write", path)?;
        LocalFiles.write(path, bytes)
    }
    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        LocalFiles.read(path)
    }
    fn reader(&self, path: &Path) -> Result<Box<dyn std::io::Read + Send>> {
        LocalFiles.reader(path)
    }
    fn exists(&self, path: &Path) -> bool {
        LocalFiles.exists(path)
    }
    fn len(&self, path: &Path) -> Result<u64> {
        LocalFiles.len(path)
    }
    fn sync(&self, path: &Path) -> Result<()> {
        LocalFiles.sync(path)
    }
    fn sync_dir(&self, dir: &Path) -> Result<()> {
        LocalFiles.sync_dir(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.0.pass("rename", from)?;
        LocalFiles.rename(from, to)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.0.pass("hard_link", from)?;
        LocalFiles.hard_link(from, to)
    }
    fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        LocalFiles.copy(from, to)
    }
    fn remove(&self, path: &Path) -> Result<()> {
        LocalFiles.remove(path)
    }
    fn create_dir(&self, dir: &Path) -> Result<()> {
        self.0.pass("create_dir", dir)?;
        LocalFiles.create_dir(dir)
    }
    fn remove_dir(&self, dir: &Path) -> Result<()> {
        LocalFiles.remove_dir(dir)
    }
    fn list(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        LocalFiles.list(dir)
    }
}

/// An engine, a session on it, and its files.
pub struct Embedded {
    pub engine: Arc<Engine>,
    pub gate: Arc<Gate>,
    pub data_dir: PathBuf,
    session: Session,
}

impl Embedded {
    /// Opens the data folder `data_dir` with settings beside the defaults.
    pub async fn open(data_dir: &Path, settings: &[(&str, &str)]) -> Embedded {
        Embedded::open_with(data_dir, settings, Arc::default(), Seams::default()).await
    }

    /// As [`Embedded::open`], over files with the rules of `gate`.
    pub async fn open_with(data_dir: &Path, settings: &[(&str, &str)], gate: Arc<Gate>, seams: Seams) -> Embedded {
        let mut all = Settings::new(data_dir.to_path_buf()).expect("settings");
        for (name, value) in settings {
            all.set(name, value).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let seams = Seams { files: Arc::new(GatedFiles(gate.clone())), ..seams };
        let opened = tokio::task::spawn_blocking(move || Engine::open(all, seams)).await.expect("opening does not panic");
        let engine = opened.unwrap_or_else(|error| panic!("the engine does not open: {error}"));
        Embedded::on(engine, gate, data_dir.to_path_buf())
    }

    /// A session on an engine that is open.
    pub fn on(engine: Arc<Engine>, gate: Arc<Gate>, data_dir: PathBuf) -> Embedded {
        let session = Session::new(engine.clone(), QueryRunner::new(engine.clone()).expect("a runner"));
        Embedded { engine, gate, data_dir, session }
    }

    /// Another session on the same engine.
    pub fn again(&self) -> Embedded {
        Embedded::on(self.engine.clone(), self.gate.clone(), self.data_dir.clone())
    }

    /// Runs statements; returns the rows of the last one, as text.
    pub async fn run(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        let mut rows = Vec::new();
        for parsed in weir_sql::parser::parse(sql)? {
            rows.clear();
            if let Reply::Rows(mut reply) = self.session.execute(&parsed, &Arguments::default()).await? {
                while let Some(batch) = reply.stream.next().await {
                    let batch = batch.map_err(weir::operators::error::from_datafusion)?;
                    for row in 0..batch.num_rows() {
                        let mut cells = Vec::new();
                        for column in batch.columns() {
                            let mut text = String::new();
                            write_text(&mut text, column, row)?;
                            cells.push((!column.is_null(row)).then_some(text));
                        }
                        rows.push(cells);
                    }
                }
            }
        }
        Ok(rows)
    }

    /// As [`Embedded::run`], for statements that must work.
    pub async fn must(&mut self, sql: &str) -> Vec<Vec<Option<String>>> {
        match tokio::time::timeout(PATIENCE, self.run(sql)).await {
            Ok(rows) => rows.unwrap_or_else(|error| panic!("{sql}\n{error}")),
            Err(_) => panic!("no answer within {PATIENCE:?}: {sql}"),
        }
    }

    /// The one whole number that a query must return; NULL is 0.
    pub async fn count(&mut self, sql: &str) -> i64 {
        let rows = self.must(sql).await;
        let value = rows.first().and_then(|row| row.first()).unwrap_or_else(|| panic!("{sql} returned nothing"));
        value.as_deref().map_or(0, |text| text.parse().unwrap_or_else(|_| panic!("{sql}: {text}")))
    }

    /// The id of a table or view.
    pub fn id(&self, name: &str) -> u64 {
        self.engine.catalog().get(name).unwrap_or_else(|| panic!("there is no {name}")).id()
    }

    /// How the scratch folder of a job's runs begins.
    pub fn scratch(&self, name: &str) -> String {
        format!("/scratch/{}-", self.id(name))
    }

    /// What the board shows of a job.
    pub fn job(&self, name: &str) -> JobStatus {
        let board = self.engine.board().read();
        board.jobs.iter().find(|job| job.name == name).unwrap_or_else(|| panic!("the board does not show {name}")).clone()
    }

    /// How many of the checkpoints of the group of `name` are in `state`.
    pub fn checkpoints(&self, name: &str, state: CheckpointState) -> usize {
        let board = self.engine.board().read();
        let groups = board.checkpoints.iter().flat_map(|summary| &summary.groups);
        groups.filter(|group| group.state == state && group.jobs.iter().any(|(_, job)| job == name)).count()
    }

    /// How many of the checkpoints of the stored tables are in `state`.
    pub fn tables_checkpoints(&self, state: CheckpointState) -> usize {
        let board = self.engine.board().read();
        board.checkpoints.iter().flat_map(|summary| &summary.groups).filter(|group| group.tables && group.state == state).count()
    }

    /// Ends the engine, and returns when nobody has it any more: its folder can be opened again. Other sessions on it are to be dropped before.
    pub async fn close(self) {
        let Embedded { engine, session, .. } = self;
        drop(session);
        engine.shutdown().await;
        eventually("nobody has the engine", || Arc::strong_count(&engine) == 1).await;
    }

    /// Copies the data folder as it is on disk now, as if the process had died.
    pub fn copy_to(&self, to: &Path) {
        copy_folder(&self.data_dir, to);
    }
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("the folder can be read") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_name() == "scratch" {
            continue;
        }
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else if let Err(error) = std::fs::copy(entry.path(), &target) {
            // A file that was only just renamed or removed.
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{}", entry.path().display());
        }
    }
}

/// Waits until `check` is true.
pub async fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !check() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
