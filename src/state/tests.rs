//! What every state backend must do, and that the two do the same: each against a plain map.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use tempfile::TempDir;
use weir_catalog::Result;

use super::memory_pool::MemoryPool;
use super::*;
use crate::stream::key_group::MAX_PARALLELISM;

pub(super) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Which backend a test runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Memory,
    Rocks,
    Recent,
}

pub(super) fn shared_rocks() -> SharedRocks {
    SharedRocks::new(16 << 20, 4 << 20).expect("RocksDB's environment")
}

/// Makes backends of one kind, each RocksDB one in a folder of its own.
pub(super) struct Backends {
    kind: Kind,
    pub shared: SharedRocks,
    recent: Arc<RecentMemory>,
    pub folder: TempDir,
    count: u32,
}

impl Backends {
    pub fn new(kind: Kind) -> Backends {
        Backends {
            kind,
            shared: shared_rocks(),
            recent: RecentMemory::new(MemoryPool::new(8192)),
            folder: tempfile::tempdir().expect("a temporary folder"),
            count: 0,
        }
    }

    pub fn open(&mut self, parts: &[RestorePart], range: KeyGroupRange) -> Result<Box<dyn StateBackend>> {
        self.count += 1;
        Ok(match self.kind {
            Kind::Memory => Box::new(MemoryBackend::restore(parts, range)?),
            Kind::Rocks => {
                let dir = self.folder.path().join(format!("database-{}", self.count));
                Box::new(RocksBackend::open(&self.shared, &dir, parts, range)?)
            }
            Kind::Recent => {
                let dir = self.folder.path().join(format!("database-{}", self.count));
                Box::new(RecentBackend::open(&self.shared, &self.recent, &dir, parts, range)?)
            }
        })
    }

    pub fn checkpoint_dir(&mut self) -> PathBuf {
        self.count += 1;
        self.folder.path().join(format!("checkpoint-{}", self.count))
    }
}

pub(super) fn content_of_backend(backend: &dyn StateBackend, from: &[u8], to: &[u8]) -> Model {
    let mut content = Vec::new();
    backend
        .scan(from, to, &mut |key, value| {
            content.push((key.to_vec(), value.to_vec()));
            Ok(true)
        })
        .expect("scan");
    assert!(content.is_sorted_by(|a, b| a.0 < b.0), "a scan is in key order");
    content.into_iter().collect()
}

/// The content of a snapshot in a range, read both ways.
pub(super) fn content(snapshot: &dyn StateSnapshot, from: &[u8], to: &[u8]) -> Model {
    let entries: Vec<(Vec<u8>, Vec<u8>)> =
        snapshot.iter(from, to).map(|entry| entry.map(|(key, value)| (key.into_vec(), value.into_vec())).expect("entry")).collect();
    assert!(entries.is_sorted_by(|a, b| a.0 < b.0), "an iteration is in key order");
    let mut scanned = Vec::new();
    snapshot
        .scan(from, to, &mut |key, value| {
            scanned.push((key.to_vec(), value.to_vec()));
            Ok(true)
        })
        .expect("scan");
    assert_eq!(scanned, entries, "a scan and an iteration agree");
    if let Some(half) = entries.len().checked_div(2).filter(|half| *half > 0) {
        let mut count = 0;
        snapshot
            .scan(from, to, &mut |key, _| {
                assert_eq!(key, entries[count].0);
                count += 1;
                Ok(count < half)
            })
            .expect("scan");
        assert_eq!(count, half, "a scan stops when told to");
    }
    entries.into_iter().collect()
}

pub(super) fn model_range(model: &Model, from: &[u8], to: &[u8]) -> Model {
    model.iter().filter(|(key, _)| key.as_slice() >= from && is_before(key, to)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

pub(super) fn apply(model: &mut Model, writes: &Writes) {
    for (key, value) in writes.iter() {
        match value {
            Some(value) => drop(model.insert(key.to_vec(), value.to_vec())),
            None => drop(model.remove(key)),
        }
    }
}

/// Keys of few groups and few suffixes, so that they meet again, and now and then one that is a prefix of another.
pub(super) fn key() -> impl Strategy<Value = Vec<u8>> {
    (prop::sample::select(vec![0u16, 1, 31, 32, 63, 64, 100, 127]), prop::collection::vec(prop::sample::select(vec![0u8, 1, 7, 255]), 0..4))
        .prop_map(|(group, suffix)| {
            let mut key = group.to_be_bytes().to_vec();
            key.push(1);
            key.extend(suffix);
            key
        })
}

pub(super) fn writes() -> impl Strategy<Value = Writes> {
    let value = prop_oneof![3 => prop::collection::vec(any::<u8>(), 0..20).prop_map(Some), 2 => Just(None)];
    prop::collection::btree_map(key(), value, 0..30).prop_map(|writes| writes.into_iter().collect())
}

#[derive(Clone, Debug)]
enum Action {
    Write(Writes),
    Scan(Vec<u8>, Vec<u8>),
    Snapshot,
    /// Checkpoint, and go on from what it restores to.
    Restore,
    /// Checkpoint, restore as this many subtasks, checkpoint those, and restore them as one.
    Rescale(usize),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => writes().prop_map(Action::Write),
        2 => (key(), prop_oneof![key(), Just(Vec::new())]).prop_map(|(from, to)| Action::Scan(from, to)),
        2 => Just(Action::Snapshot),
        1 => Just(Action::Restore),
        1 => (2..6usize).prop_map(Action::Rescale),
    ]
}

fn checkpoint(backends: &mut Backends, backend: &mut dyn StateBackend, range: KeyGroupRange) -> RestorePart {
    let dir = backends.checkpoint_dir();
    let mut files = backend.checkpoint(&dir).expect("checkpoint");
    assert!(!backend.changed_since_checkpoint());
    files.sort();
    let mut present: Vec<String> =
        std::fs::read_dir(&dir).expect("folder").map(|entry| entry.expect("entry").file_name().into_string().expect("UTF-8")).collect();
    present.sort();
    assert_eq!(files, present, "a checkpoint names all its files");
    RestorePart { dir, range }
}

fn check_actions(kind: Kind, actions: Vec<Action>) -> Result<(), TestCaseError> {
    let mut backends = Backends::new(kind);
    let mut backend = backends.open(&[], KeyGroupRange::ALL)?;
    let mut model = Model::new();
    let mut snapshots: Vec<(Arc<dyn StateSnapshot>, Model)> = Vec::new();
    for action in actions {
        match action {
            Action::Write(writes) => {
                apply(&mut model, &writes);
                let is_change = !writes.is_empty();
                backend.write(&writes)?;
                prop_assert!(!is_change || backend.changed_since_checkpoint());
            }
            Action::Scan(from, to) => prop_assert_eq!(content_of_backend(backend.as_ref(), &from, &to), model_range(&model, &from, &to)),
            Action::Snapshot => snapshots.push((backend.snapshot()?, model.clone())),
            Action::Restore => {
                let part = checkpoint(&mut backends, backend.as_mut(), KeyGroupRange::ALL);
                backend = backends.open(&[part], KeyGroupRange::ALL)?;
                prop_assert!(!backend.changed_since_checkpoint());
            }
            Action::Rescale(parallelism) => {
                let whole = checkpoint(&mut backends, backend.as_mut(), KeyGroupRange::ALL);
                let mut parts = Vec::new();
                for subtask in 0..parallelism {
                    let range = KeyGroupRange::of_subtask(subtask, parallelism);
                    let mut part = backends.open(std::slice::from_ref(&whole), range)?;
                    prop_assert!(part.changed_since_checkpoint());
                    let (from, to) = key_range(range);
                    prop_assert_eq!(content_of_backend(part.as_ref(), &[], &[]), model_range(&model, &from, &to));
                    parts.push(checkpoint(&mut backends, part.as_mut(), range));
                }
                // From n to n - 1, whose ranges overlap two former ones, and from there to one.
                let mut fewer = Vec::new();
                for subtask in 0..parallelism - 1 {
                    let range = KeyGroupRange::of_subtask(subtask, parallelism - 1);
                    let mut part = backends.open(&parts, range)?;
                    let (from, to) = key_range(range);
                    prop_assert_eq!(content_of_backend(part.as_ref(), &[], &[]), model_range(&model, &from, &to));
                    fewer.push(checkpoint(&mut backends, part.as_mut(), range));
                }
                backend = backends.open(&fewer, KeyGroupRange::ALL)?;
            }
        }
        prop_assert_eq!(&content_of_backend(backend.as_ref(), &[], &[]), &model);
        check_lookups(backend.as_ref(), &model)?;
    }
    for (snapshot, model) in &snapshots {
        prop_assert_eq!(&content(snapshot.as_ref(), &[], &[]), model);
        prop_assert_eq!(content(snapshot.as_ref(), &[0, 31], &[0, 64]), model_range(model, &[0, 31], &[0, 64]));
        for (key, value) in model {
            let found = snapshot.get(key)?;
            prop_assert_eq!(found.as_ref(), Some(value));
        }
        prop_assert_eq!(snapshot.get(b"nothing")?, None);
    }
    Ok(())
}

/// Looks up every key and beside every key.
fn check_lookups(backend: &dyn StateBackend, model: &Model) -> Result<(), TestCaseError> {
    let mut keys: Vec<Vec<u8>> = model.keys().flat_map(|key| [key.clone(), [key.as_slice(), &[9]].concat()]).collect();
    keys.sort();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let mut found = Model::new();
    backend.multi_get(&keys, &mut |i, value| {
        assert!(found.insert(keys[i].to_vec(), value.to_vec()).is_none(), "a key is found twice");
        Ok(())
    })?;
    prop_assert_eq!(&found, model);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn memory_is_like_a_map(actions in prop::collection::vec(action(), 1..25)) {
        check_actions(Kind::Memory, actions)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn rocks_is_like_a_map(actions in prop::collection::vec(action(), 1..12)) {
        check_actions(Kind::Rocks, actions)?;
    }

    #[test]
    fn rocks_with_recent_runs_is_like_a_map(actions in prop::collection::vec(action(), 1..25)) {
        check_actions(Kind::Recent, actions)?;
    }
}

#[test]
fn many_rows_are_like_few() {
    for kind in [Kind::Memory, Kind::Rocks, Kind::Recent] {
        let mut backends = Backends::new(kind);
        let mut backend = backends.open(&[], KeyGroupRange::ALL).unwrap();
        let mut model = Model::new();
        let key = |i: u32| {
            let mut key = ((i as usize % MAX_PARALLELISM) as u16).to_be_bytes().to_vec();
            key.extend(i.to_be_bytes());
            key
        };
        let mut snapshots = Vec::new();
        // Over the threshold of table files, and under it; with what the two have in common overwritten and deleted in turn.
        for (round, count) in [(0u32, 12_000u32), (1, 1_000), (2, 13_000), (3, 500)] {
            let writes: Writes = (0..count)
                .map(|i| (key(i * 3 % 20_000), if i % 7 == round { None } else { Some(vec![round as u8; (i % 30) as usize]) }))
                .collect::<BTreeMap<_, _>>()
                .into_iter()
                .collect();
            apply(&mut model, &writes);
            backend.write(&writes).unwrap();
            assert_eq!(content_of_backend(backend.as_ref(), &[], &[]), model, "{kind:?} {round}");
            snapshots.push((backend.snapshot().unwrap(), model.clone()));
        }
        for (snapshot, model) in snapshots {
            assert_eq!(content(snapshot.as_ref(), &[], &[]), model, "{kind:?}");
        }
        check_lookups(backend.as_ref(), &model).unwrap();
        let size = backend.estimate();
        assert!(size.rows > 0 && size.bytes > 0, "{size:?}");
        let whole = checkpoint(&mut backends, backend.as_mut(), KeyGroupRange::ALL);
        let parts: Vec<RestorePart> = (0..3)
            .map(|subtask| {
                let range = KeyGroupRange::of_subtask(subtask, 3);
                let mut part = backends.open(std::slice::from_ref(&whole), range).unwrap();
                checkpoint(&mut backends, part.as_mut(), range)
            })
            .collect();
        let backend = backends.open(&parts, KeyGroupRange::ALL).unwrap();
        assert_eq!(content_of_backend(backend.as_ref(), &[], &[]), model, "{kind:?}");
        let rows = backend.estimate().rows;
        assert!((model.len() as u64 / 2..model.len() as u64 * 3).contains(&rows), "{kind:?}: {rows} rows estimated of {}", model.len());
    }
}

#[test]
fn a_missing_checkpoint_is_an_error() {
    for kind in [Kind::Memory, Kind::Rocks, Kind::Recent] {
        let part = RestorePart { dir: Path::new("/nonexistent/checkpoint").to_path_buf(), range: KeyGroupRange::ALL };
        let error = Backends::new(kind).open(&[part], KeyGroupRange::ALL).err().expect("an error");
        assert_eq!(error.code(), &weir_catalog::SqlState::IO_ERROR, "{kind:?}");
        assert!(error.message().contains("/nonexistent/checkpoint"), "{error}");
    }
}
