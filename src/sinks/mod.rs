//! Where data leaves: the sinks. A sink is the last operator of a job; one that is transactional has a committing half too, in [`commit`].

pub mod blackhole;
pub mod commit;
pub mod file;
pub mod print;
pub mod socket;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use weir_catalog::object::is_secret_option;
use weir_catalog::{Catalog, ChangelogMode, Error, Job, JobKind, Object, Result, SqlState};

use self::commit::{Committer, PendingCommit, PendingCommits};
use self::file::descent::Standing;
use crate::operators::Operator;
use crate::seams::files::FilesRef;
use crate::sources::file::FileConfig;
use crate::state::memory_pool::MemoryPool;
use crate::stream::BarrierNumber;

/// What a job's sink is opened with.
pub struct SinkContext<'a> {
    pub catalog: &'a Catalog,
    pub job: &'a Job,
    /// The columns that it gets, under the names that they have outside.
    pub schema: &'a SchemaRef,
    pub changelog: ChangelogMode,
    pub parallelism: usize,
    pub files: &'a FilesRef,
    pub committer: &'a Committer,
    pub memory: &'a Arc<MemoryPool>,
    /// Tells what this engine writes outside from what others do.
    pub engine: u64,
    /// Random: stands for this run of the job in names outside.
    pub run: u64,
    /// The checkpoint that the run goes on from; `None` for a run that begins from nothing.
    pub restored: Option<RestoredSink>,
    /// Where the sink stood whose savepoint this one begins with.
    pub descends_from: Option<Standing>,
}

/// What a checkpoint says of a sink.
#[derive(Clone, Debug, Default)]
pub struct RestoredSink {
    pub barrier: BarrierNumber,
    /// What it lists to be committed, which may have been carried out.
    pub commits: Vec<PendingCommit>,
}

/// One subtask's part of a sink.
pub struct OpenedSink {
    pub operator: Box<dyn Operator>,
    /// What it will have to commit; `None` for a sink that commits nothing.
    pub commits: Option<PendingCommits>,
}

impl OpenedSink {
    fn plain(operator: impl Operator + 'static) -> OpenedSink {
        OpenedSink { operator: Box::new(operator), commits: None }
    }
}

/// The connector that `job` writes to, and its options; `None` where it writes nothing outside.
pub fn target<'a>(catalog: &'a Catalog, job: &'a Job) -> Result<Option<(&'a str, &'a BTreeMap<String, String>)>> {
    match &job.kind {
        JobKind::Sink { connector, options } => Ok(Some((connector, options))),
        JobKind::Insert { target } => match catalog.get_id(*target).map(Arc::as_ref) {
            Some(Object::ConnectorTable(table)) => Ok(Some((&table.connector, &table.options))),
            _ => Err(Error::internal(format!("job {} has no table to write to", job.name))),
        },
        JobKind::MaterializedView { .. } => Ok(None),
    }
}

/// Whether what is written with one of the two connectors and options stands where what is written with the other does.
pub fn is_same_place(one: (&str, &BTreeMap<String, String>), other: (&str, &BTreeMap<String, String>)) -> Result<bool> {
    let ((connector, options), (other, others)) = (one, other);
    fn shown(options: &BTreeMap<String, String>) -> Vec<(&String, &String)> {
        options.iter().filter(|(name, _)| !is_secret_option(name)).collect()
    }
    match connector {
        _ if connector != other => Ok(false),
        // However it is written there.
        "file" => Ok(FileConfig::parse(options)?.path == FileConfig::parse(others)?.path),
        "blackhole" => Ok(false),
        _ => Ok(shown(options) == shown(others)),
    }
}

/// Tells `committer` of the object store that `job` writes to, where it writes to one.
pub fn register_objects(catalog: &Catalog, job: &Job, committer: &Committer) -> Result<()> {
    let Some(("file", options)) = target(catalog, job)? else { return Ok(()) };
    match FileConfig::parse(options)?.objects {
        Some(place) => committer.register_objects(job.id, || place.open()).map(drop),
        None => Ok(()),
    }
}

/// Opens a sink for each of a job's subtasks. Waits for disk.
pub fn open_sinks(context: &SinkContext<'_>) -> Result<Vec<OpenedSink>> {
    let target = target(context.catalog, context.job)?;
    let (connector, options) = target.ok_or_else(|| Error::internal(format!("{} is not a sink", context.job.name)))?;
    let subtasks = 0..context.parallelism;
    match connector {
        "blackhole" => Ok(subtasks.map(|_| OpenedSink::plain(blackhole::BlackholeSink::new(Arc::default()))).collect()),
        "file" => file::FileSink::open_all(FileConfig::parse(options)?, context),
        "print" => {
            let print = print::PrintSink::parse(options)?;
            Ok(subtasks.map(|subtask| OpenedSink::plain(print.for_subtask(subtask, context.parallelism))).collect())
        }
        "socket" => subtasks.map(|_| Ok(OpenedSink::plain(socket::SocketSink::connect(options)?))).collect(),
        other => Err(no_sink(other)),
    }
}

/// Checks the options of a sink that is about to be made, and is no table: nobody reads from it.
pub fn validate_sink(connector: &str, options: &BTreeMap<String, String>) -> Result<()> {
    match connector {
        "file" => FileConfig::parse_sink(options).map(drop),
        "socket" => crate::sources::socket::SocketConfig::parse_sink(options).map(drop),
        _ => validate_target(connector, options),
    }
}

/// Checks the options of a table that is about to be written to.
pub fn validate_target(connector: &str, options: &BTreeMap<String, String>) -> Result<()> {
    match connector {
        "blackhole" => blackhole::BlackholeSink::validate_options(options),
        "file" => FileConfig::parse(options).map(drop),
        "print" => print::PrintSink::parse(options).map(drop),
        "socket" => crate::sources::socket::SocketConfig::parse(options).map(drop),
        other => Err(no_sink(other)),
    }
}

/// Checks that a sink that is about to be made can take rows of `schema` that change as `changelog` says. `0A000` with the reason where it can't.
pub fn validate_result(connector: &str, options: &BTreeMap<String, String>, schema: &SchemaRef, changelog: ChangelogMode) -> Result<()> {
    match connector {
        "file" => FileConfig::parse(options)?.check_sink(schema, changelog),
        "socket" => crate::sources::socket::SocketConfig::parse(options)?.check_sink(schema, changelog),
        _ => Ok(()),
    }
}

/// Makes the folder that `job` is about to write to, and looks whether files can be made there. Waits for disk.
///
/// An object store is looked at when the job starts: it may be away for a while, and what is missing there may come.
pub fn make_place(catalog: &Catalog, job: &Job, files: &FilesRef) -> Result<()> {
    let Some(("file", options)) = target(catalog, job)? else { return Ok(()) };
    let config = FileConfig::parse(options)?;
    if config.objects.is_some() {
        return Ok(());
    }
    let is_none = |error: Error| error.with_detail(format!("\"{}\" can't be written to.", config.path.display()));
    files.create_dir(&config.path).map_err(is_none)?;
    // Hidden, so that no reader takes it for a sink's.
    let probe = config.path.join(format!(".weir-probe-{}", job.id));
    files.append(&probe).map_err(is_none)?;
    files.remove(&probe)
}

/// How long a file that `job` writes may be open, where its options say so.
pub fn roll_interval(catalog: &Catalog, job: &Job) -> Result<Option<Duration>> {
    match target(catalog, job)? {
        Some(("file", options)) => Ok(FileConfig::parse(options)?.roll_interval),
        _ => Ok(None),
    }
}

/// What a connector's sink guarantees, as SHOW SINKS says it.
pub fn guarantee(connector: &str) -> &'static str {
    match connector {
        "blackhole" => "none: rows are dropped",
        "file" => "exactly once: files appear when a checkpoint is complete",
        "print" => "at least once",
        "socket" => "at most once",
        _ => "unknown",
    }
}

fn no_sink(connector: &str) -> Error {
    if crate::sources::connector::SOURCES.contains(&connector) {
        Error::new(SqlState::WRONG_OBJECT_TYPE, format!("connector \"{connector}\" takes no rows: it is a source"))
    } else {
        Error::new(SqlState::UNDEFINED_OBJECT, format!("connector \"{connector}\" does not exist"))
            .with_hint(format!("Available sinks: {}.", crate::sources::connector::SINKS.join(", ")))
    }
}
