//! The files under `tests/slt/`, each run three ways on weir: straight; killed with -9 and started again every few statements and where the
//! file says `# @restart`; and with each of those starts at another parallelism.
//!
//! Before each query the harness runs FLUSH on a session of its own, so that a view shows everything acknowledged. At each kill, and at the
//! end:
//! - everything that could be read before can be read after, with the same content, without FLUSH;
//! - each materialized view shows the batch answer of its defining query.
//!
//! Automatic checkpoints are off in the runs that kill, and CHECKPOINT runs before some statements and where a file says `# @checkpoint`, so
//! that a start has both state to restore and input that came after it; the harness counts those starts and fails where there were none.
//!
//! The expected values are PostgreSQL's: [`crate::postgres`] runs the same files on one.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sqllogictest::{AsyncDB, Connection, DBOutput, DefaultColumnType, QueryExpect, Record, RecordOutput, Runner, StatementExpect};
use tokio_postgres::types::Type;
use weir::seams::random::Random;

use crate::reference::Reference;
use crate::rows::canonical_numeric;
use crate::run;
use crate::server::{PATIENCE, Server, Session, describe, settings, sql_state};
use crate::views::{Made, for_postgres};

/// The parallelisms that the third way goes through.
const PARALLELISMS: [usize; 5] = [2, 3, 1, 5, 2];

/// How a file is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Straight,
    Restart,
    Rescale,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_straight() {
    all_files("slt straight", Way::Straight).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_killed_and_restarted() {
    all_files("slt restart", Way::Restart).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_restarted_at_another_parallelism() {
    all_files("slt rescale", Way::Rescale).await;
}

/// What the kills of a run met.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    restarts: usize,
    /// Starts that had a checkpoint with state to restore, and acknowledged input after it to replay.
    with_state_and_input: usize,
    /// Views compared with their batch answer that had rows.
    views_checked: usize,
}

async fn all_files(test: &str, way: Way) {
    let mut random = run::random(test);
    let mut tally = Tally::default();
    let mut failures = Vec::new();
    let files = files();
    for file in &files {
        if let Err(problem) = WeirRun::new(file, way, Random::seeded(random.next_u64())).run(&mut tally).await {
            failures.push(format!("{}: {problem}", file.display()));
        }
    }
    assert!(failures.is_empty(), "{} of {} files failed:\n{}", failures.len(), files.len(), failures.join("\n\n"));
    run::say(&format!("{test}: {} files, {tally:?}", files.len()));
    if std::env::var_os("WEIR_TEST_FILE").is_none() {
        assert!(tally.views_checked >= files.len(), "too few views with rows were compared: {tally:?}");
        assert!(way == Way::Straight || tally.with_state_and_input >= files.len() / 2, "too few starts had state and input: {tally:?}");
    }
}

/// The files, sorted; `WEIR_TEST_FILE=text` leaves only those whose path has the text.
pub fn files() -> Vec<PathBuf> {
    fn visit(folder: &Path, files: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.expect("a folder entry").path();
            if path.is_dir() {
                visit(&path, files);
            } else if path.extension().is_some_and(|extension| extension == "slt") {
                files.push(path);
            }
        }
    }
    let mut files = Vec::new();
    visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slt"), &mut files);
    if let Ok(part) = std::env::var("WEIR_TEST_FILE") {
        files.retain(|path| path.to_string_lossy().contains(&part));
    }
    files.sort();
    assert!(!files.is_empty(), "there are no .slt files to run");
    files
}

/// Which system a file runs on.
#[derive(Clone)]
enum System {
    /// The address and how often the server was started, so that a session of an earlier start is opened anew.
    Weir(Arc<Mutex<(SocketAddr, usize)>>),
    Postgres(Arc<Reference>, String),
}

/// One connection of a file.
struct Database {
    system: System,
    session: Option<(usize, Session)>,
    /// The SET statements of this connection, made again after a restart.
    settings: Vec<String>,
}

/// A failed statement.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct StatementError {
    text: String,
    state: Option<String>,
}

impl From<tokio_postgres::Error> for StatementError {
    fn from(error: tokio_postgres::Error) -> StatementError {
        StatementError { text: describe(&error), state: sql_state(&error) }
    }
}

impl Database {
    async fn session(&mut self) -> Result<&Session, StatementError> {
        let start = match &self.system {
            System::Weir(server) => server.lock().expect("no panic holds it").1,
            System::Postgres(..) => 0,
        };
        if self.session.as_ref().is_none_or(|(of, _)| *of != start) {
            let session = match &self.system {
                System::Weir(server) => {
                    let address = server.lock().expect("no panic holds it").0;
                    Session::open(address).await?
                }
                System::Postgres(reference, database) => reference.session(database).await,
            };
            for statement in &self.settings {
                session.execute(statement).await?;
            }
            self.session = Some((start, session));
        }
        Ok(&self.session.as_ref().expect("just opened").1)
    }
}

#[async_trait::async_trait]
impl AsyncDB for Database {
    type Error = StatementError;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, StatementError> {
        let sql = match &self.system {
            System::Weir(_) => sql.to_string(),
            System::Postgres(..) => match for_postgres(sql) {
                Some(sql) => sql,
                None => return Ok(DBOutput::StatementComplete(0)),
            },
        };
        let first = sql.split_whitespace().next().unwrap_or_default().trim_start_matches('(').to_lowercase();
        let session = self.session().await?;
        match first.as_str() {
            "select" | "with" | "values" | "table" => {
                let rows = session.query(&sql).await?;
                let types = rows.columns.iter().map(|(_, ty)| column_type(ty)).collect();
                let numeric: Vec<bool> = rows.columns.iter().map(|(_, ty)| *ty == Type::NUMERIC).collect();
                let rows = (rows.rows.iter())
                    .map(|row| row.iter().zip(&numeric).map(|(value, numeric)| show(value.as_deref(), *numeric)).collect());
                Ok(DBOutput::Rows { types, rows: rows.collect() })
            }
            "show" | "explain" | "describe" => {
                let rows = session.text_rows(&sql).await?;
                let types = vec![DefaultColumnType::Text; rows.first().map_or(0, Vec::len)];
                Ok(DBOutput::Rows {
                    types,
                    rows: rows.iter().map(|row| row.iter().map(|value| show(value.as_deref(), false)).collect()).collect(),
                })
            }
            _ => {
                let count = session.execute(&sql).await?;
                if first == "set" {
                    self.settings.push(sql);
                }
                Ok(DBOutput::StatementComplete(count))
            }
        }
    }

    async fn shutdown(&mut self) {
        self.session = None;
    }

    fn engine_name(&self) -> &str {
        match self.system {
            System::Weir(_) => "weir",
            System::Postgres(..) => "postgres",
        }
    }

    async fn sleep(duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    fn error_sql_state(error: &StatementError) -> Option<String> {
        error.state.clone()
    }
}

/// A value as the files write it. A NUMERIC stands without the zeros at its end: its scale is not part of its value.
fn show(value: Option<&str>, numeric: bool) -> String {
    match value {
        None => "NULL".to_string(),
        Some("") => "(empty)".to_string(),
        Some(text) if numeric => canonical_numeric(text),
        Some(text) => text.to_string(),
    }
}

/// The letter of a column: `I` for whole numbers, `R` for other numbers, `T` for the rest.
fn column_type(ty: &Type) -> DefaultColumnType {
    match *ty {
        Type::INT2 | Type::INT4 | Type::INT8 => DefaultColumnType::Integer,
        Type::FLOAT4 | Type::FLOAT8 | Type::NUMERIC => DefaultColumnType::FloatingPoint,
        _ => DefaultColumnType::Text,
    }
}

/// A file being run on weir.
struct WeirRun<'a> {
    file: &'a Path,
    way: Way,
    random: Random,
    server: Server,
    shared: Arc<Mutex<(SocketAddr, usize)>>,
    made: Made,
    /// Connections with a transaction under way: no kill then, for the file would have to begin it again.
    in_transaction: HashSet<Connection>,
    /// Statements since the last kill.
    since_kill: usize,
    /// Whether a checkpoint was taken since the last view was made, and whether input was acknowledged after it.
    has_checkpoint: bool,
    has_input_after: bool,
    starts: usize,
}

impl<'a> WeirRun<'a> {
    fn new(file: &'a Path, way: Way, random: Random) -> WeirRun<'a> {
        let interval = if way == Way::Straight { "1 s" } else { "1 h" };
        let server = Server::start(&settings(&[("parallelism", &PARALLELISMS[0].to_string()), ("checkpoint_interval", interval)]));
        let shared = Arc::new(Mutex::new((server.address(), 0)));
        WeirRun {
            file,
            way,
            random,
            server,
            shared,
            made: Made::default(),
            in_transaction: HashSet::new(),
            since_kill: 0,
            has_checkpoint: false,
            has_input_after: false,
            starts: 0,
        }
    }

    async fn run(mut self, tally: &mut Tally) -> Result<(), String> {
        let records = sqllogictest::parse_file::<DefaultColumnType>(self.file).map_err(|e| e.to_string())?;
        let system = System::Weir(self.shared.clone());
        let mut runner = runner(&system);
        // A file of many statements is killed about as often as a short one.
        let statements = records.iter().filter(|record| matches!(record, Record::Statement { .. })).count();
        let kill_every = (statements / run::rounds(3, 40)).max(3);
        for record in records {
            match &record {
                Record::Halt { .. } => break,
                Record::Comment(lines) => {
                    for line in lines {
                        match line.trim() {
                            "@checkpoint" => self.checkpoint().await?,
                            "@restart" => self.restart(tally).await?,
                            other if other.starts_with('@') => return Err(format!("unknown directive: {other}")),
                            _ => {}
                        }
                    }
                }
                Record::Query { expected: QueryExpect::Results { .. }, .. } => self.flush().await?,
                Record::Statement { .. }
                    if self.way != Way::Straight && self.since_kill >= kill_every && self.in_transaction.is_empty() =>
                {
                    self.restart(tally).await?;
                }
                _ => {}
            }
            let output = runner.run_async(record.clone()).await.map_err(|e| e.to_string())?;
            if let Record::Statement { sql, connection, expected, .. } = &record
                && !matches!(output, RecordOutput::Nothing)
            {
                self.after_statement(sql, connection, expected).await?;
            }
        }
        self.flush().await?;
        self.check(tally, "at the end").await?;
        if self.way != Way::Straight {
            self.restart(tally).await?;
        }
        Ok(())
    }

    /// Keeps track of what a statement did.
    async fn after_statement(&mut self, sql: &str, connection: &Connection, expected: &StatementExpect) -> Result<(), String> {
        let first = sql.split_whitespace().next().unwrap_or_default().trim_end_matches(';').to_lowercase();
        match first.as_str() {
            "begin" | "start" => {
                self.in_transaction.insert(connection.clone());
            }
            "commit" | "rollback" | "end" | "abort" => {
                self.in_transaction.remove(connection);
            }
            _ => {}
        }
        if matches!(expected, StatementExpect::Error(_)) {
            return Ok(());
        }
        self.since_kill += 1;
        self.made.note(sql);
        match first.as_str() {
            "create" => self.has_checkpoint = false,
            "insert" | "update" | "delete" | "commit" => self.has_input_after = self.has_checkpoint,
            _ => {}
        }
        // Sometimes state is stored here, and the rest of the input comes after it.
        if self.way != Way::Straight && self.made.has_views() && self.in_transaction.is_empty() && self.random.below(3) == 0 {
            self.checkpoint().await?;
        }
        Ok(())
    }

    async fn session(&self) -> Result<Session, String> {
        Session::open(self.server.address()).await.map_err(|e| describe(&e))
    }

    /// Waits until every view shows everything acknowledged. A view that has stopped at a row on which its query fails is no reason to end: the
    /// file says what reading it must give.
    async fn flush(&self) -> Result<(), String> {
        match self.session().await?.execute("FLUSH").await {
            Ok(_) => Ok(()),
            Err(e) if sql_state(&e).is_some_and(|state| state.starts_with("22")) => Ok(()),
            Err(e) => Err(format!("FLUSH: {}", describe(&e))),
        }
    }

    async fn checkpoint(&mut self) -> Result<(), String> {
        match self.session().await?.execute("CHECKPOINT").await {
            Ok(_) => {
                self.has_checkpoint = self.made.has_views();
                self.has_input_after = false;
                Ok(())
            }
            Err(e) if sql_state(&e).is_some_and(|state| state.starts_with("22")) => Ok(()),
            Err(e) => Err(format!("CHECKPOINT: {}", describe(&e))),
        }
    }

    async fn check(&self, tally: &mut Tally, when: &str) -> Result<(), String> {
        let (problems, with_rows) = self.made.check(&self.session().await?).await;
        tally.views_checked += with_rows;
        if problems.is_empty() { Ok(()) } else { Err(format!("{when}:\n{}", problems.join("\n"))) }
    }

    async fn reads_connectors(&self) -> Result<bool, String> {
        let query = "SELECT 1 FROM weir_relations WHERE kind = 'table' AND connector IS NOT NULL";
        let rows = self.session().await?.query(query).await.map_err(|e| describe(&e))?;
        Ok(!rows.rows.is_empty())
    }

    async fn restart(&mut self, tally: &mut Tally) -> Result<(), String> {
        // As long as rows come there is no content to compare with.
        let deadline = Instant::now() + PATIENCE;
        while !self.made.streams_have_come(&self.session().await?).await {
            if Instant::now() > deadline {
                return Err("the input of connectors does not come to its end".into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.flush().await?;
        if self.way == Way::Straight {
            return self.check(tally, "at a restart of the other ways").await;
        }
        let before = self.made.content(&self.session().await?).await;
        self.server.kill();
        self.starts += 1;
        if self.way == Way::Rescale {
            self.server.set("parallelism", &PARALLELISMS[self.starts % PARALLELISMS.len()].to_string());
        }
        self.server.try_restart()?;
        *self.shared.lock().expect("no panic holds it") = (self.server.address(), self.starts);
        tally.restarts += 1;
        tally.with_state_and_input += usize::from(self.has_checkpoint && self.has_input_after && before.row_count() > 0);
        self.since_kill = 0;
        // Without FLUSH: the first SELECT after a start shows what was acknowledged.
        let session = self.session().await?;
        let mut differences = before.differences(&self.made.content(&session).await);
        // What came through a connector since the last checkpoint is read again: it is there a little later.
        if self.reads_connectors().await? {
            let deadline = Instant::now() + PATIENCE;
            while !differences.is_empty() && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(100)).await;
                differences = before.differences(&self.made.content(&session).await);
            }
        }
        if !differences.is_empty() {
            return Err(format!("after kill {}:\n{}", self.starts, differences.join("\n")));
        }
        self.check(tally, &format!("after kill {}", self.starts)).await
    }
}

/// The connections of a run.
type MakeDatabase = Box<dyn FnMut() -> std::future::Ready<Result<Database, StatementError>> + Send>;

/// A runner of records on `system`, strict about column types.
fn runner(system: &System) -> Runner<Database, MakeDatabase> {
    let system = system.clone();
    let make: MakeDatabase =
        Box::new(move || std::future::ready(Ok(Database { system: system.clone(), session: None, settings: Vec::new() })));
    let mut runner = Runner::new(make);
    runner.with_column_validator(sqllogictest::strict_column_validator);
    runner
}

/// Runs a file on PostgreSQL, in a database of its own: what the file expects must be what PostgreSQL says.
pub async fn run_on_postgres(reference: &Arc<Reference>, file: &Path, database: &str) -> Result<usize, String> {
    drop(reference.database(database).await);
    let records = sqllogictest::parse_file::<DefaultColumnType>(file).map_err(|e| e.to_string())?;
    let mut runner = runner(&System::Postgres(reference.clone(), database.to_string()));
    let mut compared = 0;
    for record in records {
        if let Record::Halt { .. } = record {
            break;
        }
        let output = runner.run_async(record).await.map_err(|e| e.to_string())?;
        compared += usize::from(matches!(output, RecordOutput::Query { .. } | RecordOutput::Statement { .. }));
    }
    Ok(compared)
}
