//! A `file` sink through checkpoints that succeed, fail and are lost.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use weir_catalog::{Catalog, ChangelogMode, Job, JobKind};

use super::*;
use crate::checkpoint::{JobCheckpoint, OperatorCheckpoint};
use crate::seams::files::LocalFiles;
use crate::sinks::RestoredSink;
use crate::sinks::commit::{Committer, RECORDS, read_record};
use crate::state::memory_pool::MemoryPool;

mod objects;
mod power_loss;
mod rolling;

const JOB: u64 = 20_000;

struct NoOutput;

impl Output for NoOutput {
    fn emit(&mut self, _batch: Batch) -> Result<()> {
        panic!("a sink has no output")
    }
}

fn batch(numbers: std::ops::Range<i64>) -> Batch {
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
    Batch::insert(RecordBatch::try_from_iter([("n", column)]).unwrap())
}

fn barrier(number: u64, checkpoint: bool) -> Barrier {
    Barrier { number, commit: 0, time_us: number as i64 * 1_000_000, checkpoint }
}

fn job(options: &BTreeMap<String, String>) -> Job {
    Job {
        id: JOB,
        name: "a sink".into(),
        kind: JobKind::Sink { connector: "file".into(), options: options.clone() },
        columns: Vec::new(),
        query: String::new(),
        insert_columns: Vec::new(),
        sql: String::new(),
        settings: BTreeMap::new(),
        inputs: Vec::new(),
        macros: Vec::new(),
        operators: Vec::new(),
        parallelism: 1,
        origin: None,
    }
}

/// Opens the sink of one subtask in `root`, for the run `run`.
fn open(
    root: &Path,
    options: &[(&str, &str)],
    run: u64,
    restored: Option<RestoredSink>,
    committer: &Committer,
) -> (Box<dyn Operator>, PendingCommits) {
    let mut all: BTreeMap<String, String> = options.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect();
    all.insert("path".into(), root.display().to_string());
    let job = job(&all);
    let context = SinkContext {
        catalog: &Catalog::default(),
        job: &job,
        schema: &batch(0..0).rows.schema(),
        changelog: ChangelogMode::Append,
        parallelism: 1,
        files: &LocalFiles::shared(),
        committer,
        memory: &MemoryPool::new(64 << 20),
        engine: 7,
        run,
        descends_from: None,
        restored,
    };
    let OpenedSink { operator, commits } = FileSink::open_all(FileConfig::parse(&all).unwrap(), &context).unwrap().remove(0);
    (operator, commits.unwrap())
}

/// The names in a folder: hidden ones, and those that readers see.
fn names(root: &Path) -> (Vec<String>, Vec<String>) {
    let mut names: Vec<String> = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names.into_iter().filter(|name| name != RECORDS).partition(|name| name.starts_with('.'))
}

/// The numbers that a reader sees who goes by the records.
fn recorded(root: &Path) -> Vec<i64> {
    let mut records: Vec<PathBuf> = std::fs::read_dir(root.join(RECORDS)).unwrap().map(|entry| entry.unwrap().path()).collect();
    records.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    records.sort();
    let files = records.iter().flat_map(|record| read_record(record, &std::fs::read(record).unwrap()).unwrap());
    files.flat_map(|file| std::fs::read_to_string(file).unwrap().lines().map(|line| line.parse().unwrap()).collect::<Vec<_>>()).collect()
}

fn checkpoint(barrier: BarrierNumber, commits: Vec<PendingCommit>) -> JobCheckpoint {
    let operator = OperatorCheckpoint { commits, ..OperatorCheckpoint::default() };
    JobCheckpoint {
        barrier,
        commit: 0,
        time_us: 0,
        operators: BTreeMap::from([("sink".to_string(), operator)]),
        finished: false,
        inputs: BTreeMap::new(),
    }
}

const CSV: [(&str, &str); 1] = [("format", "csv")];

#[test]
fn files_are_listed_from_their_checkpoint_on_and_lost_ones_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("out");
    let committer = Committer::new(LocalFiles::shared());
    let (mut operator, commits) = open(&root, &CSV, 0xa, None, &committer);
    operator.process(0, batch(0..10), &mut NoOutput).unwrap();
    operator.on_barrier(&barrier(1, false), &mut NoOutput).unwrap();
    assert_eq!(commits.list(1, &committer), [], "nothing is closed between checkpoints");
    operator.on_barrier(&barrier(2, true), &mut NoOutput).unwrap();
    let listed = commits.list(2, &committer);
    assert_eq!(listed.len(), 1);
    let (hidden, seen) = names(&root);
    assert!(hidden.len() == 1 && seen.is_empty() && recorded(&root).is_empty(), "{hidden:?} {seen:?}");

    // More rows, whose checkpoint never comes; then a start from the one that listed the first file.
    operator.process(0, batch(10..20), &mut NoOutput).unwrap();
    drop(operator);
    std::fs::write(root.join(".other-file"), "of someone else").unwrap();
    let committer = Committer::new(LocalFiles::shared());
    let restored = RestoredSink { barrier: 2, commits: listed.clone() };
    let (mut operator, commits) = open(&root, &CSV, 0xb, Some(restored), &committer);
    committer.commit(JOB, &checkpoint(2, listed)).unwrap();
    assert_eq!(recorded(&root), (0..10).collect::<Vec<_>>());
    assert_eq!(names(&root).0.len(), 2, "the abandoned file and someone else's are there until the first checkpoint");
    operator.process(0, batch(10..15), &mut NoOutput).unwrap();
    operator.on_barrier(&barrier(3, true), &mut NoOutput).unwrap();
    committer.commit(JOB, &checkpoint(3, commits.list(3, &committer))).unwrap();
    assert_eq!(recorded(&root), (0..15).collect::<Vec<_>>());
    assert_eq!(names(&root).0, [".other-file"]);
    assert_eq!(names(&root).1.len(), 2);
    assert_eq!(commits.list(4, &committer), [], "everything was carried out");
}

#[test]
fn what_an_older_checkpoint_does_not_have_is_taken_back_with_the_first_one_that_follows() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let committer = Committer::new(LocalFiles::shared());
    let (mut operator, commits) = open(root, &CSV, 0xa, None, &committer);
    for (number, rows) in [(2, 0..10), (3, 10..20), (5, 20..30)] {
        operator.process(0, batch(rows), &mut NoOutput).unwrap();
        operator.on_barrier(&barrier(number, true), &mut NoOutput).unwrap();
        committer.commit(JOB, &checkpoint(number, commits.list(number, &committer))).unwrap();
    }
    // From the checkpoint at barrier 2: as long as it has not come further, another start may still want what is there.
    let committer = Committer::new(LocalFiles::shared());
    let (mut operator, commits) = open(root, &CSV, 0xb, Some(RestoredSink { barrier: 2, commits: Vec::new() }), &committer);
    operator.process(0, batch(10..13), &mut NoOutput).unwrap();
    assert_eq!(recorded(root), (0..30).collect::<Vec<_>>());
    operator.on_barrier(&barrier(7, true), &mut NoOutput).unwrap();
    let listed = commits.list(7, &committer);
    assert_eq!(recorded(root), (0..30).collect::<Vec<_>>());
    committer.commit(JOB, &checkpoint(7, listed)).unwrap();
    assert_eq!(recorded(root), (0..13).collect::<Vec<_>>());
    assert_eq!(names(root).1.len(), 2);

    // From nothing: everything is written anew.
    let committer = Committer::new(LocalFiles::shared());
    let (mut operator, commits) = open(root, &CSV, 0xc, None, &committer);
    operator.process(0, batch(0..4), &mut NoOutput).unwrap();
    operator.on_barrier(&barrier(9, true), &mut NoOutput).unwrap();
    committer.commit(JOB, &checkpoint(9, commits.list(9, &committer))).unwrap();
    assert_eq!(recorded(root), (0..4).collect::<Vec<_>>());
    assert_eq!(names(root).1.len(), 1);
}

#[test]
fn files_roll_by_size_and_time() {
    let folder = tempfile::tempdir().unwrap();
    let committer = Committer::new(LocalFiles::shared());
    let options = [("format", "json"), ("roll_size", "2000"), ("roll_interval", "5 s"), ("compression", "none")];
    let (mut operator, commits) = open(folder.path(), &options, 0xa, None, &committer);
    let hidden = || names(folder.path()).0.len();
    operator.on_barrier(&barrier(1, false), &mut NoOutput).unwrap();
    for _ in 0..5 {
        operator.process(0, batch(0..100), &mut NoOutput).unwrap(); // about 900 bytes
    }
    assert_eq!(hidden(), 3, "rolled by size");
    operator.on_barrier(&barrier(5, false), &mut NoOutput).unwrap();
    operator.process(0, batch(0..1), &mut NoOutput).unwrap();
    assert_eq!(hidden(), 3);
    operator.on_barrier(&barrier(6, false), &mut NoOutput).unwrap();
    operator.process(0, batch(0..1), &mut NoOutput).unwrap();
    assert_eq!(hidden(), 4, "rolled by time");
    assert_eq!(commits.list(6, &committer), [], "what rolled waits for a checkpoint");
    operator.on_barrier(&barrier(7, true), &mut NoOutput).unwrap();
    assert_eq!(commits.list(7, &committer).len(), 4);
}

#[test]
fn many_open_files_stay_within_their_part_of_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let committer = Committer::new(LocalFiles::shared());
    let options = [("format", "parquet"), ("partition_by", "n")];
    let pool = MemoryPool::new(1 << 20);
    let mut all: BTreeMap<String, String> = options.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect();
    all.insert("path".into(), folder.path().display().to_string());
    let config = FileConfig::parse(&all).unwrap();
    let schema = batch(0..0).rows.schema();
    let mut sink = FileSink {
        files: LocalFiles::shared(),
        uploads: None,
        schema: schema.clone(),
        place: SinkPlace::new(folder.path().to_path_buf(), 1, 7, JOB, "s", 1),
        subtask: 0,
        number: 0,
        partitioner: Partitioner::new(&config.partition_by, &schema).unwrap(),
        lines: Lines::new(&config.format),
        lines_held: 0,
        open: BTreeMap::new(),
        closed: Vec::new(),
        commits: PendingCommits::new(JOB),
        barrier: 0,
        now_us: 0,
        memory: pool.charge(),
        memory_max: 64 << 10,
        config,
    };
    let mut most = 0;
    for _ in 0..20 {
        sink.process(0, batch(0..100), &mut NoOutput).unwrap();
        most = most.max(pool.used());
    }
    assert!(most <= 256 << 10, "{most} bytes");
    sink.on_barrier(&barrier(1, true), &mut NoOutput).unwrap();
    assert_eq!(pool.used(), 0);
    let rows: usize = commits_of(&sink.commits, &committer).iter().map(|path| rows_of(path)).sum();
    assert_eq!(rows, 2000);
}

fn commits_of(commits: &PendingCommits, committer: &Committer) -> Vec<PathBuf> {
    commits.list(1, committer).iter().filter_map(|commit| commit.hidden().map(Path::to_path_buf)).collect()
}

fn rows_of(path: &Path) -> usize {
    crate::formats::parquet::ParquetFile::open(path).unwrap().row_groups().sum::<u64>() as usize
}
