//! A `file` sink through checkpoints that succeed, fail and are lost.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use weir_catalog::{Catalog, ChangelogMode, Job, JobKind};

use super::*;
use crate::seams::files::LocalFiles;
use crate::sinks::commit::Committer;

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

fn open(root: &Path, options: &[(&str, &str)], incarnation: &str, restored: Option<Vec<PendingCommit>>) -> Result<OpenedSink> {
    let mut all: BTreeMap<String, String> = options.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect();
    all.insert("path".into(), root.display().to_string());
    let job = Job {
        id: 20_000,
        name: "a sink".into(),
        kind: JobKind::Sink { connector: "file".into(), options: all.clone() },
        columns: Vec::new(),
        query: String::new(),
        insert_columns: Vec::new(),
        sql: String::new(),
        settings: BTreeMap::new(),
        inputs: Vec::new(),
        macros: Vec::new(),
        operators: Vec::new(),
        parallelism: 1,
    };
    let context = SinkContext {
        catalog: &Catalog::default(),
        job: &job,
        schema: &batch(0..0).rows.schema(),
        changelog: ChangelogMode::Append,
        parallelism: 1,
        files: &LocalFiles::shared(),
        engine: Path::new("/nowhere"),
        incarnation,
        restored,
    };
    let mut opened = FileSink::open_all(FileConfig::parse(&all)?, &context)?;
    Ok(opened.remove(0))
}

fn names(root: &Path) -> (Vec<String>, Vec<String>) {
    let mut names: Vec<String> = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names.into_iter().partition(|name| name.starts_with('.'))
}

#[test]
fn files_are_listed_from_their_checkpoint_on_and_lost_ones_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("out");
    let committer = Committer::new(LocalFiles::shared());
    let options = [("format", "csv")];
    let OpenedSink { mut operator, commits } = open(&root, &options, "0a", None).unwrap();
    let commits = commits.unwrap();
    operator.process(0, batch(0..10), &mut NoOutput).unwrap();
    operator.on_barrier(&barrier(1, false), &mut NoOutput).unwrap();
    assert_eq!(commits.list(&committer), [], "nothing is closed between checkpoints");
    operator.on_barrier(&barrier(2, true), &mut NoOutput).unwrap();
    let listed = commits.list(&committer);
    assert_eq!(listed.len(), 1);
    let (hidden, seen) = names(&root);
    assert!(hidden.len() == 1 && seen.is_empty(), "{hidden:?} {seen:?}");

    // More rows, whose checkpoint never comes; then a start from the one that listed the first file.
    operator.process(0, batch(10..20), &mut NoOutput).unwrap();
    drop(operator);
    std::fs::write(root.join(".other-file"), "of someone else").unwrap();
    let OpenedSink { mut operator, commits } = open(&root, &options, "0b", Some(listed.clone())).unwrap();
    let (hidden, _) = names(&root);
    assert_eq!(hidden.len(), 2, "the listed file and someone else's stay: {hidden:?}");
    operator.process(0, batch(10..15), &mut NoOutput).unwrap();
    operator.on_barrier(&barrier(3, true), &mut NoOutput).unwrap();
    let again = commits.unwrap().list(&committer);
    assert_eq!(again.len(), 2, "what was listed and perhaps not carried out is listed again");
    assert_eq!(again[0], listed[0]);

    // Beginning from nothing beside files of one's own would write rows twice.
    let PendingCommit::File { hidden, target } = &listed[0];
    std::fs::rename(hidden, target).unwrap();
    assert_eq!(std::fs::read_to_string(target).unwrap().lines().count(), 10);
    let error = open(&root, &options, "0c", None).map(drop).unwrap_err();
    assert_eq!(error.code().as_str(), "55000");
}

#[test]
fn files_roll_by_size_and_time() {
    let folder = tempfile::tempdir().unwrap();
    let committer = Committer::new(LocalFiles::shared());
    let options = [("format", "json"), ("roll_size", "2000"), ("roll_interval", "5 s"), ("compression", "none")];
    let OpenedSink { mut operator, commits } = open(folder.path(), &options, "0a", None).unwrap();
    let commits = commits.unwrap();
    operator.on_barrier(&barrier(1, false), &mut NoOutput).unwrap();
    for _ in 0..5 {
        operator.process(0, batch(0..100), &mut NoOutput).unwrap(); // about 900 bytes
    }
    assert_eq!(commits.list(&committer).len(), 1, "rolled by size");
    operator.on_barrier(&barrier(5, false), &mut NoOutput).unwrap();
    assert_eq!(commits.list(&committer).len(), 1);
    operator.on_barrier(&barrier(6, false), &mut NoOutput).unwrap();
    assert_eq!(commits.list(&committer).len(), 2, "rolled by time");
}
