//! Checkpoints of real RocksDB state, of the stored tables and of the engine log, with the power going off at changes of the disk, seeds fixed: the
//! newest manifest opens with exactly the content that it had, no manifest names a file that is missing or damaged, every commit that was acknowledged
//! is there, every retained checkpoint finds the log that it needs, and the next checkpoint works.
//!
//! Files that RocksDB wrote are lost unless they were named by a sync.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use weir_catalog::object::schema_of;
use weir_catalog::{CatalogChange, Column, Object, Result, SqlType, StoredTable};

use super::*;
use crate::checkpoint::snapshot::store_part;
use crate::job::numbers::BarrierNumbers;
use crate::log::{EngineLog, LogSettings, PendingCommit, ScanOptions, Tables, TablesSettings};
use crate::seams::files::{FilesRef, LossyFiles};
use crate::seams::random::Random;
use crate::state::{RestorePart, RocksBackend, StateBackendKind};
use crate::stream::CommitSeq;

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// The id of the one job, and of its operator.
const JOB: u64 = 20_000;
const UID: &str = "groups";
const RETAINED: usize = 2;

/// What outlives every crash: what was promised, and what was ever given a name.
#[derive(Default)]
struct Told {
    /// The job's state in each manifest that was ever begun.
    states: BTreeMap<u64, Content>,
    /// The newest manifest and commit that were acknowledged.
    manifest: u64,
    commit: CommitSeq,
    barrier: u64,
    /// The checksum of each file that was ever stored.
    files: BTreeMap<String, u64>,
}

/// One subtask of the job.
struct Subtask {
    backend: RocksBackend,
    range: KeyGroupRange,
    incarnation: String,
    last: Option<Part>,
}

/// One process.
struct Life {
    files: FilesRef,
    scratch: PathBuf,
    store: CheckpointStore,
    log: EngineLog,
    tables: Arc<Tables>,
    numbers: BarrierNumbers,
    subtasks: Vec<Subtask>,
    tables_incarnation: String,
    manifest: Manifest,
    retained: VecDeque<Manifest>,
}

fn users() -> StoredTable {
    let columns = vec![Column { name: "id".into(), ty: SqlType::BigInt, nullable: false, default: None }];
    StoredTable { id: 16_384, name: "users".into(), columns, primary_key: Some(vec![0]), sql: "CREATE TABLE users ...".into() }
}

fn content(backend: &dyn StateBackend) -> Content {
    let mut content = Content::new();
    backend
        .scan(&[], &[], &mut |key, value| {
            content.insert(key.to_vec(), value.to_vec());
            Ok(true)
        })
        .expect("a scan");
    content
}

fn incarnation(random: &mut Random) -> String {
    format!("{:016x}", random.next_u64())
}

impl Life {
    /// Opens the data folder `dir` with `parallelism` subtasks, and compares everything in it with what was told.
    fn open(files: &LossyFiles, dir: &Path, rocks: &SharedRocks, parallelism: usize, told: &mut Told, random: &mut Random) -> Result<Life> {
        let files: FilesRef = Arc::new(files.clone());
        files.create_dir(dir)?;
        let scratch = dir.join("scratch");
        files.remove_dir(&scratch)?;
        files.create_dir(&scratch)?;
        let (store, manifests) = CheckpointStore::open(files.clone(), &dir.join("checkpoints"), None)?;
        let settings = LogSettings { segment_bytes: 1000, ..LogSettings::default() };
        let (log, recovered) = EngineLog::open(files.clone(), dir, settings)?;
        assert!(recovered.end >= told.commit, "commit {} was acknowledged, the log ends at {}", told.commit, recovered.end);
        let manifest = manifests.last().cloned().unwrap_or_default();
        assert!(manifest.number >= told.manifest, "manifest {} was acknowledged, the newest is {}", told.manifest, manifest.number);
        for manifest in &manifests {
            let position = manifest.log_position(|_| true);
            assert!(
                recovered.first <= position + 1,
                "manifest {} needs commit {}, the log begins at {}",
                manifest.number,
                position + 1,
                recovered.first
            );
            assert!(recovered.end >= position);
            // Every file is there, as it was written.
            for (at, part) in manifest.parts().enumerate() {
                let into = scratch.join(format!("verified-{}-{at}", manifest.number));
                store.fetch(part, &into)?;
                files.remove_dir(&into)?;
            }
        }

        let fetch = |part: &Part, name: String| -> Result<RestorePart> {
            let into = scratch.join(name);
            store.fetch(part, &into)?;
            Ok(RestorePart { dir: into, range: part.range })
        };
        let (mut parts, mut base) = (Vec::new(), 0);
        if let Some(tables) = &manifest.tables {
            parts.push(fetch(&tables.part, "tables-restored".into())?);
            base = tables.commit;
        }
        let backend = RocksBackend::open(rocks, &scratch.join("tables"), &parts, KeyGroupRange::ALL)?;
        let tables = Tables::open(log.clone(), &recovered, Box::new(backend), base, TablesSettings::default())?;
        let stored = manifest.jobs.get(&JOB).and_then(|job| job.operators.get(UID)).map_or(Vec::new(), |operator| operator.parts.clone());
        let mut subtasks = Vec::new();
        for subtask in 0..parallelism {
            let range = KeyGroupRange::of_subtask(subtask, parallelism);
            let overlapping: Vec<&Part> = stored.iter().filter(|part| part.range.overlaps(&range)).collect();
            let parts = (overlapping.iter().enumerate())
                .map(|(at, part)| fetch(part, format!("{subtask}-part{at}")))
                .collect::<Result<Vec<RestorePart>>>()?;
            let backend = RocksBackend::open(rocks, &scratch.join(subtask.to_string()), &parts, range)?;
            let last = overlapping.first().filter(|part| part.range == range).map(|part| (*part).clone());
            subtasks.push(Subtask { backend, range, incarnation: incarnation(random), last });
        }
        let numbers = BarrierNumbers::open(files.clone(), dir, 0, 0)?;
        let life = Life {
            files,
            scratch,
            store,
            log,
            tables,
            numbers,
            subtasks,
            tables_incarnation: incarnation(random),
            manifest,
            retained: manifests.into(),
        };
        // What was on its way when the power went off counts once it was seen.
        told.manifest = life.manifest.number;
        told.commit = recovered.end;
        if life.manifest.number > 0 {
            assert_eq!(&life.state(), &told.states[&life.manifest.number], "the state in manifest {}", life.manifest.number);
        }
        assert_eq!(life.ids()?, (2..=recovered.end as i64).collect::<Vec<_>>(), "the rows of the stored table");
        Ok(life)
    }

    /// The job's whole state.
    fn state(&self) -> Content {
        self.subtasks.iter().flat_map(|subtask| content(&subtask.backend)).collect()
    }

    /// The rows of the stored table.
    fn ids(&self) -> Result<Vec<i64>> {
        let mut ids = Vec::new();
        if self.log.catalog().get("users").is_some() {
            for batch in self.tables.latest()?.scan(&users(), ScanOptions::default())? {
                ids.extend_from_slice(batch?.column(0).as_primitive::<Int64Type>().values());
            }
        }
        Ok(ids)
    }

    /// A commit: the first makes the table, commit `n` inserts the row `n`.
    fn commit(&self, told: &mut Told) -> Result<()> {
        let mut transaction = self.tables.begin()?;
        let seq = self.log.end() + 1;
        if seq == 1 {
            transaction.change_catalog(CatalogChange::Create(Object::StoredTable(users())))?;
        } else {
            let ids: ArrayRef = Arc::new(Int64Array::from(vec![seq as i64]));
            let rows = RecordBatch::try_new(schema_of(&users().columns), vec![ids]).expect("the table's columns");
            transaction.insert(&users(), &rows)?;
        }
        let committed = transaction.submit()?.map(PendingCommit::wait).transpose()?;
        assert_eq!(committed, Some(seq));
        told.commit = seq;
        Ok(())
    }

    /// Changes some keys of some subtasks.
    fn change(&mut self, random: &mut Random) -> Result<()> {
        for subtask in &mut self.subtasks {
            let mut writes: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
            for _ in 0..random.below(12) {
                let groups = u64::from(subtask.range.end - subtask.range.start);
                let key = key(subtask.range.start + random.below(groups) as u16, random.below(50) as u32);
                let value = (random.below(4) > 0).then(|| random.next_u64().to_be_bytes().repeat(8));
                writes.insert(key, value);
            }
            subtask.backend.write(&writes.into_iter().collect::<Writes>())?;
        }
        Ok(())
    }

    /// A checkpoint, in the order in which the job manager goes about it.
    fn checkpoint(&mut self, told: &mut Told) -> Result<()> {
        let (barrier, _) = self.numbers.take(0).expect("numbers are reserved");
        assert!(barrier > told.barrier, "barrier {barrier} after {}", told.barrier);
        told.barrier = barrier;
        let commit = self.log.end();
        let mut operator = OperatorCheckpoint::default();
        for (at, subtask) in self.subtasks.iter_mut().enumerate() {
            let last = subtask.last.take().filter(|last| !subtask.backend.changed_since_checkpoint() && self.store.reuse(last, barrier));
            let part = match last {
                Some(part) => part,
                None => {
                    let dir = self.scratch.join(format!("image-{at}-{barrier}"));
                    let names = subtask.backend.checkpoint(&dir)?;
                    let size = subtask.backend.estimate();
                    let image = (dir, names);
                    store_part(&self.store, &self.files, image, &subtask.incarnation, StateBackendKind::RocksDb, size, barrier)?.0
                }
            };
            let part = Part { range: subtask.range, ..part };
            subtask.last = Some(part.clone());
            operator.parts.push(part);
        }
        let dir = self.scratch.join(format!("image-tables-{barrier}"));
        let made = self.tables.fold_and_checkpoint(commit, &dir)?;
        let image = (dir, made.files);
        let (part, _) =
            store_part(&self.store, &self.files, image, &self.tables_incarnation, StateBackendKind::RocksDb, self.tables.size(), barrier)?;
        let job = JobCheckpoint {
            barrier,
            commit,
            time_us: 0,
            operators: BTreeMap::from([(UID.to_string(), operator)]),
            finished: false,
            inputs: BTreeMap::new(),
        };
        self.manifest.barrier = barrier;
        self.manifest.jobs.insert(JOB, job);
        self.manifest.tables = Some(TablesCheckpoint { commit: made.seq, part });
        self.manifest.number = self.store.next_manifest_number(self.numbers.peek());
        for file in self.manifest.files() {
            let former = told.files.insert(file.name.clone(), file.checksum);
            assert!(former.is_none_or(|former| former == file.checksum), "the name {} was used twice", file.name);
        }
        let former = told.states.insert(self.manifest.number, self.state());
        assert!(former.is_none(), "the manifest number {} was used twice", self.manifest.number);
        self.store.write_manifest(&self.manifest)?;
        self.log.write_catalog_snapshot()?;
        told.manifest = self.manifest.number;

        self.retained.push_back(self.manifest.clone());
        let mut dropped = Vec::new();
        while self.retained.len() > RETAINED {
            dropped.extend(self.retained.pop_front().map(|manifest| manifest.number));
        }
        let needed = self.retained.iter().map(|manifest| manifest.log_position(|_| true)).min().unwrap_or(0);
        let next = self.numbers.peek();
        dropped.iter().for_each(|number| self.store.abandon(*number));
        self.store.retire(self.retained.make_contiguous(), &|barrier| barrier >= next)?;
        self.log.truncate_before(needed + 1)?;
        Ok(())
    }

    fn work(&mut self, told: &mut Told, random: &mut Random) -> Result<()> {
        for _ in 0..4 {
            for _ in 0..1 + random.below(4) {
                self.commit(told)?;
            }
            self.change(random)?;
            self.checkpoint(told)?;
        }
        Ok(())
    }
}

/// Opens the folder and works until the power goes off, or to the end.
fn live(files: &LossyFiles, dir: &Path, rocks: &SharedRocks, parallelism: usize, told: &mut Told, random: &mut Random) -> Result<()> {
    Life::open(files, dir, rocks, parallelism, told, random)?.work(told, random)
}

#[test]
fn checkpoints_survive_power_loss_at_changes_of_the_disk() {
    let rocks = shared_rocks();
    let whole = {
        let folder = folder();
        let files = LossyFiles::new(folder.path(), 0).unwrap();
        live(&files, &folder.path().join("data"), &rocks, 2, &mut Told::default(), &mut Random::seeded(0)).unwrap();
        files.operations()
    };
    assert!(whole > 150, "{whole}");
    let every = if std::env::var("WEIR_TEST_LONG").is_ok_and(|value| value == "1") { 1 } else { 7 };
    let mut crashes = 0;
    let mut with_state = 0;
    for at in (0..whole).step_by(every) {
        let folder = folder();
        let dir = folder.path().join("data");
        let mut random = Random::seeded(at);
        let files = LossyFiles::new(folder.path(), at).unwrap();
        let mut told = Told::default();
        // The second time the power goes off somewhere in the recovery or early in the work after it; the last life is not disturbed.
        for (life, off) in [Some(at), Some(random.below(whole / 2)), None].into_iter().enumerate() {
            if let Some(off) = off {
                files.power_off_after(off);
            }
            let parallelism = 1 + random.below(3) as usize;
            let result = live(&files, &dir, &rocks, parallelism, &mut told, &mut random);
            assert!(result.is_ok() || files.powered_off(), "change {at}, life {life}: {result:?}");
            crashes += usize::from(files.powered_off());
            with_state += usize::from(files.powered_off() && told.manifest > 0);
            // Now and then the process dies without loss, so that what is not durable is lost only with the next crash.
            if random.below(4) == 0 { files.kill() } else { files.crash().unwrap() }
        }
        files.crash().unwrap();
        let life = Life::open(&files, &dir, &rocks, 2, &mut told, &mut random).unwrap_or_else(|error| panic!("change {at}: {error}"));
        assert!(life.manifest.number > 0 && life.retained.len() <= RETAINED);
    }
    assert!(crashes >= 40 && with_state * 3 > crashes, "{crashes} crashes, {with_state} of them with a checkpoint");
}
