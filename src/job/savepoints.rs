//! Savepoints of jobs: making, finding and removing them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use weir_catalog::{Catalog, Error, Job, Object, ObjectId, Result, SqlState};
use weir_sql::graph::{NodeOp, StreamGraph};

use super::Engine;
use super::engine::shutting_down;
use super::manager::{Event, PinnedCheckpoint};
use super::status::JobState;
use super::upgrade::{StatePlan, saved_operators};
use crate::checkpoint::Savepoint;
use crate::checkpoint::savepoint::{self, SavedInput, Savepoints};
use crate::log::Transaction;

/// How often a savepoint is tried where the stored tables have moved on from the job's barrier meanwhile.
const ATTEMPTS: usize = 20;

/// How long a savepoint waits for a job that is starting.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// What a view is called until it takes the place of the one that it is built to replace. No user's name begins so.
pub const UPGRADE_PREFIX: &str = "weir_upgrade_";

/// A savepoint, for those who list them.
#[derive(Clone, Debug)]
pub struct SavepointSummary {
    pub name: String,
    pub folder: PathBuf,
    /// What there is to say of it; an error where it can't be read.
    pub savepoint: Result<Savepoint>,
    /// The bytes that nothing else keeps on the disk.
    pub pinned_bytes: u64,
}

/// A path, or the URL of one. Errors with `0A000` for other URLs.
pub fn folder_of(location: &str) -> Result<PathBuf> {
    let path = location.strip_prefix("file://").unwrap_or(location);
    if path.contains("://") {
        return Err(Error::unsupported(format!("savepoints at \"{location}\" are not supported"))
            .with_hint("Name a folder, as a path or a file:// URL."));
    }
    if !Path::new(path).is_absolute() {
        return Err(Error::new(
            SqlState::INVALID_PARAMETER_VALUE,
            format!("the folder of a savepoint is not an absolute path: \"{location}\""),
        ));
    }
    Ok(PathBuf::from(path))
}

impl Engine {
    /// Makes the savepoint `name` of `job` as of a barrier that covers everything committed before the call; in the folder `location` where that is given.
    ///
    /// Errors: `42710` where there is one of this name, `55000` where the job has no state that could be saved.
    pub async fn create_savepoint(&self, name: &str, job: &Arc<Job>, location: Option<PathBuf>) -> Result<()> {
        if self.savepoints.folder(name)?.is_some() {
            return Err(Error::new(SqlState::DUPLICATE_OBJECT, format!("savepoint \"{name}\" already exists")));
        }
        let pinned = self.checkpoint_to_save(job.id, false).await?;
        self.write_savepoint(name, pinned, location).await
    }

    async fn write_savepoint(&self, name: &str, pinned: PinnedCheckpoint, location: Option<PathBuf>) -> Result<()> {
        let catalog = self.catalog();
        let savepoint = savepoint_of(name, self.engine_id, self.clock().now_us(), &pinned, &catalog)?;
        let (savepoints, store) = (self.savepoints.clone(), self.store.clone());
        let written = tokio::task::spawn_blocking(move || {
            let result = savepoints.write(&store, &savepoint, location.as_deref());
            drop(pinned);
            result
        });
        written.await.map_err(|_| Error::internal("writing a savepoint panicked"))?
    }

    /// As [`Engine::create_savepoint`], and ends the job: nothing that it did after the savepoint's barrier was shown to anybody or written to its sink. It is
    /// for the caller to drop it; otherwise it goes on from there.
    pub async fn stop_with_savepoint(self: &Arc<Self>, name: &str, job: &Arc<Job>, location: Option<PathBuf>) -> Result<Stopped> {
        if self.savepoints.folder(name)?.is_some() {
            return Err(Error::new(SqlState::DUPLICATE_OBJECT, format!("savepoint \"{name}\" already exists")));
        }
        let pinned = self.checkpoint_to_save(job.id, true).await?;
        let stopped = Stopped { engine: self.clone(), job: job.id, done: false };
        self.write_savepoint(name, pinned, location).await?;
        Ok(stopped)
    }

    /// A savepoint of `job` that lasts until the engine is started again, for a job that takes its place.
    pub async fn scratch_savepoint(&self, job: &Arc<Job>, number: ObjectId) -> Result<PathBuf> {
        let pinned = self.checkpoint_to_save(job.id, false).await?;
        let savepoint = savepoint_of("", self.engine_id, self.clock().now_us(), &pinned, &self.catalog())?;
        let folder = self.settings().data_dir.join("scratch").join(format!("upgrade-{number}"));
        let (files, store, into) = (self.files.clone(), self.store.clone(), folder.clone());
        let written = tokio::task::spawn_blocking(move || {
            let result = savepoint::write(&files, &store, &into, &savepoint);
            drop(pinned);
            result
        });
        written.await.map_err(|_| Error::internal("writing a savepoint panicked"))??;
        Ok(folder)
    }

    /// Removes what [`Engine::scratch_savepoint`] made.
    pub async fn remove_scratch_savepoint(&self, folder: PathBuf) {
        let files = self.files.clone();
        let removed = tokio::task::spawn_blocking(move || savepoint::remove(&files, &folder)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(%error, "a savepoint that is not needed any more was not removed; the next start does it");
        }
    }

    /// Commits `transaction`, which gives `job` the name under which it runs from then on.
    pub async fn swap(self: &Arc<Self>, transaction: Transaction, job: Arc<Job>) -> Result<()> {
        self.commit(transaction, Vec::new()).await?;
        self.tell(Event::Renamed { job })
    }

    /// A durable checkpoint of `job`, made now, with the stored tables as of its very commit where it reads one.
    async fn checkpoint_to_save(&self, job: ObjectId, stop: bool) -> Result<PinnedCheckpoint> {
        let patience = tokio::time::Instant::now() + START_PATIENCE;
        let mut attempt = 0;
        while attempt < ATTEMPTS {
            let held = self.tables().hold_folds();
            let (done, told) = oneshot::channel();
            self.tell(Event::Checkpoint { of: Some(job), done })?;
            told.await.map_err(|_| shutting_down())??;
            let (done, told) = oneshot::channel();
            self.tell(Event::Pin { job, stop, done })?;
            let pinned = match told.await.map_err(|_| shutting_down())? {
                Err(_) if self.is_starting(job) && tokio::time::Instant::now() < patience => {
                    drop(held);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
                pinned => pinned?,
            };
            drop(held);
            if let Some(pinned) = pinned {
                let commit = pinned.checkpoint.commit;
                if !reads_tables(&pinned.graph) || pinned.tables.as_ref().is_some_and(|tables| tables.commit == commit) {
                    return Ok(pinned);
                }
                if stop {
                    self.tell(Event::RestartDue { jobs: vec![job] })?;
                }
            }
            tokio::time::sleep(Duration::from_millis(10 << attempt.min(6))).await;
            attempt += 1;
        }
        Err(Error::new(
            SqlState::parse("55P03").unwrap_or(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE),
            "the stored tables change too fast for a savepoint",
        )
        .with_hint("Try again when less is written."))
    }

    /// Whether a job is on its way to its first barrier, or about to be started again.
    fn is_starting(&self, job: ObjectId) -> bool {
        let is_starting = |state| matches!(state, JobState::Starting | JobState::Backfilling | JobState::Restarting);
        self.board().read().jobs.iter().any(|status| status.id == job && is_starting(status.state))
    }

    /// The savepoints of this data folder, by name. Waits for disk.
    pub fn list_savepoints(&self) -> Result<Vec<SavepointSummary>> {
        let found = self.savepoints.list()?;
        Ok(found
            .into_iter()
            .map(|(name, folder)| SavepointSummary {
                savepoint: savepoint::read(&self.files, &folder),
                pinned_bytes: savepoint::pinned_bytes(&folder),
                name,
                folder,
            })
            .collect())
    }

    /// The folder of the savepoint `name`. Errors with `42704` where there is none.
    pub fn savepoint_folder(&self, name: &str) -> Result<PathBuf> {
        self.savepoints.folder(name)?.ok_or_else(|| Error::new(SqlState::UNDEFINED_OBJECT, format!("savepoint \"{name}\" does not exist")))
    }

    /// The savepoint in `folder`. Waits for disk.
    pub fn read_savepoint(&self, folder: &Path) -> Result<Savepoint> {
        savepoint::read(&self.files, folder)
    }

    /// Removes the savepoint `name`; false where there is none. Errors with `55006` where a job is about to begin with it. Waits for disk.
    pub fn drop_savepoint(&self, name: &str) -> Result<bool> {
        let Some(folder) = self.savepoints.folder(name)? else { return Ok(false) };
        let folder_text = folder.to_string_lossy();
        let user = self.catalog().objects().find_map(|object| match object.as_ref() {
            Object::Job(job) if job.origin.as_ref().is_some_and(|origin| origin.savepoint == folder_text) => Some(job.clone()),
            _ => None,
        });
        if let Some(job) = user
            && !self.board().read().jobs.iter().any(|status| status.id == job.id && status.checkpointed)
        {
            let code = SqlState::parse("55006").unwrap_or(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
            return Err(Error::new(code, format!("savepoint \"{name}\" is in use"))
                .with_detail(format!("Job \"{}\" begins with it and has no checkpoint of its own yet.", job.name)));
        }
        self.savepoints.remove(name)
    }

    /// What a job with the plan `graph` would take over of the savepoint in `folder`. Waits for disk.
    pub fn plan_state(&self, catalog: &Catalog, folder: &Path, graph: &StreamGraph, uids: &[(String, String)]) -> Result<StatePlan> {
        StatePlan::new(&self.read_savepoint(folder)?, graph, catalog, uids)
    }

    /// What a job with the plan `graph` would take over of the running `job`: of a savepoint of it made now. Waits for a checkpoint of it.
    pub async fn plan_upgrade(&self, catalog: &Catalog, job: &Arc<Job>, graph: &StreamGraph) -> Result<StatePlan> {
        let pinned = self.checkpoint_to_save(job.id, false).await?;
        let saved = savepoint_of("", self.engine_id, self.clock().now_us(), &pinned, &self.catalog())?;
        StatePlan::new(&saved, graph, catalog, &[])
    }
}

/// A job that does nothing any more. Unless [`Stopped::done`] is called, it goes on where it stood.
pub struct Stopped {
    engine: Arc<Engine>,
    job: ObjectId,
    done: bool,
}

impl Stopped {
    /// The job has been dropped.
    pub fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if !self.done {
            // During a shutdown there is nothing to go on.
            let _ = self.engine.tell(Event::RestartDue { jobs: vec![self.job] });
        }
    }
}

fn reads_tables(graph: &StreamGraph) -> bool {
    graph.nodes.iter().any(|node| matches!(node.op, NodeOp::TableScan { .. }))
}

/// The savepoint that a checkpoint amounts to.
fn savepoint_of(name: &str, engine: u64, created_us: i64, pinned: &PinnedCheckpoint, catalog: &Catalog) -> Result<Savepoint> {
    let mut checkpoint = pinned.checkpoint.clone();
    // What sinks had to commit, the job itself has committed, or does.
    checkpoint.operators.values_mut().for_each(|operator| operator.commits.clear());
    let mut inputs = Vec::new();
    for id in &pinned.job.inputs {
        let object = catalog.get_id(*id).ok_or_else(|| Error::internal(format!("object {id} does not exist")))?.as_ref().clone();
        let rows = match &object {
            Object::Job(view) => {
                let of_view = pinned.inputs.iter().find(|(view, _)| view == id).map(|(_, checkpoint)| checkpoint);
                let rows = of_view.and_then(|checkpoint| checkpoint.operators.get(&format!("{}/rows", view.name)));
                Some(
                    rows.cloned()
                        .ok_or_else(|| Error::internal(format!("the rows of view \"{}\" are not in its checkpoint", view.name)))?,
                )
            }
            _ => None,
        };
        inputs.push(SavedInput { object, rows });
    }
    Ok(Savepoint {
        name: name.to_string(),
        engine,
        created_us,
        job: pinned.job.as_ref().clone(),
        checkpoint,
        operators: saved_operators(&pinned.graph, catalog)?,
        inputs,
        tables: pinned.tables.clone().filter(|_| reads_tables(&pinned.graph)),
    })
}

/// Where a data folder keeps its savepoints.
pub(super) fn open(files: &crate::seams::files::FilesRef, dir: &Path) -> Result<Savepoints> {
    Savepoints::open(files.clone(), dir.join("savepoints"))
}
