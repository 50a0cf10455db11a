//! A `file` sink with the power going off at changes of the disk, seeds fixed. Whenever a reader looks that goes by the records, it sees the rows of a
//! checkpoint that is complete, each once; what was said to be committed stays; and a reader that takes every visible file never sees a row that no complete
//! checkpoint has. Now and then a start goes on from an older checkpoint.

use std::collections::BTreeSet;

use super::*;
use crate::checkpoint::{CheckpointStore, Manifest};
use crate::seams::files::LossyFiles;
use crate::seams::random::Random;
use crate::sinks::commit::{folders, make_durable};
use crate::sources::SplitState;

/// What outlives every crash.
#[derive(Default)]
struct Told {
    barrier: BarrierNumber,
    /// How many rows the checkpoint had that was last said to be committed.
    committed: i64,
    /// How many rows there were at each barrier at which files were ever closed.
    counts: BTreeSet<i64>,
    /// Starts from an older checkpoint that had something to take back.
    taken_back: usize,
}

/// One process.
struct Life {
    files: FilesRef,
    store: CheckpointStore,
    committer: Committer,
    subtasks: Vec<(Box<dyn Operator>, PendingCommits)>,
    retained: Vec<Manifest>,
    /// How many rows were written, in this life and those that it goes on from.
    count: i64,
}

fn rows(numbers: impl Iterator<Item = i64> + Clone) -> Batch {
    let columns: [(&str, ArrayRef); 2] = [
        ("n", Arc::new(Int64Array::from_iter_values(numbers.clone()))),
        ("k", Arc::new(Int64Array::from_iter_values(numbers.map(|number| number % 2)))),
    ];
    Batch::insert(RecordBatch::try_from_iter(columns).unwrap())
}

fn numbers(files: impl Iterator<Item = PathBuf>) -> Vec<i64> {
    let mut numbers = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("a reader sees no \"{}\": {e}", file.display()));
        for line in text.lines() {
            let number =
                line.split_once(',').and_then(|(number, k)| number.parse().ok().filter(|number: &i64| (number % 2).to_string() == k));
            numbers.push(number.unwrap_or_else(|| panic!("a reader sees the torn line {line:?} in \"{}\"", file.display())));
        }
    }
    numbers.sort_unstable();
    numbers
}

/// What readers see, who go by the records and who don't, while the newest durable manifest has `durable` rows.
fn look(out: &Path, durable: i64, told: &Told) -> i64 {
    let records = std::fs::read_dir(out.join(RECORDS)).into_iter().flatten().map(|entry| entry.unwrap().path());
    let records = records.filter(|path| !path.file_name().unwrap().to_str().unwrap().starts_with('.'));
    let recorded = numbers(records.flat_map(|record| read_record(&record, &std::fs::read(&record).unwrap()).unwrap()));
    let count = recorded.len() as i64;
    assert_eq!(recorded, (0..count).collect::<Vec<_>>(), "a reader sees rows twice, or not all");
    assert!(count == 0 || told.counts.contains(&count), "a reader sees {count} rows, part of a checkpoint: {:?}", told.counts);
    assert!(count <= durable, "a reader sees {count} rows, {durable} are durable");
    assert!(count >= told.committed, "a reader sees {count} rows, {} were committed", told.committed);

    let mut visible = Vec::new();
    for folder in folders(out, 1).unwrap().into_iter().filter(|folder| folder.exists()) {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        visible.extend(entries.filter(|path| path.is_file() && !path.file_name().unwrap().to_str().unwrap().starts_with('.')));
    }
    let seen = numbers(visible.into_iter());
    assert!(seen.is_sorted_by(|left, right| left < right), "a reader sees rows twice in what is visible");
    assert!(seen.last().is_none_or(|last| *last < durable), "a reader sees row {:?}, {durable} are durable", seen.last());
    count
}

fn count_in(manifest: &Manifest) -> i64 {
    let splits = manifest.jobs.get(&JOB).and_then(|job| job.operators.get("source")).map(|source| source.splits.clone());
    splits.unwrap_or_default().first().map_or(0, |split| split.offset.parse().unwrap())
}

impl Life {
    fn open(files: &LossyFiles, root: &Path, partitioned: bool, told: &mut Told, random: &mut Random) -> Result<Life> {
        let files: FilesRef = Arc::new(files.clone());
        let (data, out) = (root.join("data"), root.join("out"));
        files.create_dir(&data)?;
        let (store, all) = CheckpointStore::open(files.clone(), &data, None)?;
        let durable = all.iter().map(count_in).max().unwrap_or(0);
        look(&out, durable, told);
        let mut from = (store, all);
        if from.1.len() > 1 && random.below(3) == 0 {
            let older = from.1[0].barrier;
            from = CheckpointStore::open(files.clone(), &data, Some(older))?;
            let count = from.1.last().map_or(0, count_in);
            told.taken_back += usize::from(count < told.committed);
            told.committed = told.committed.min(count);
        }
        let (store, retained) = from;
        let checkpoint = retained.last().and_then(|manifest| manifest.jobs.get(&JOB)).cloned();
        let committer = Committer::new(files.clone());
        let commits_first = random.below(2) == 0;
        let carry_out = || checkpoint.as_ref().map_or(Ok(()), |checkpoint| committer.commit(JOB, checkpoint));
        if commits_first {
            carry_out()?;
        }
        let restored = checkpoint
            .as_ref()
            .map(|checkpoint| RestoredSink { barrier: checkpoint.barrier, commits: checkpoint.commits().cloned().collect() });
        let mut all: BTreeMap<String, String> = BTreeMap::from([("format".into(), "csv".into()), ("roll_size".into(), "60".into())]);
        all.insert("path".into(), out.display().to_string());
        if partitioned {
            all.insert("partition_by".into(), "k".into());
        }
        let job = job(&all);
        let context = SinkContext {
            catalog: &Catalog::default(),
            job: &job,
            schema: &rows(0..0).rows.schema(),
            changelog: ChangelogMode::Append,
            parallelism: 1 + random.below(3) as usize,
            files: &files,
            committer: &committer,
            memory: &MemoryPool::new(64 << 20),
            engine: 7,
            run: random.next_u64(),
            descends_from: None,
            restored,
        };
        let subtasks = FileSink::open_all(FileConfig::parse(&all)?, &context)?;
        let subtasks = subtasks.into_iter().map(|OpenedSink { operator, commits }| (operator, commits.unwrap())).collect();
        if !commits_first {
            carry_out()?;
        }
        let count = retained.last().map_or(0, count_in);
        assert!(look(&out, durable, told) >= count);
        told.committed = count;
        Ok(Life { files, store, committer, subtasks, retained, count })
    }

    /// Writes some rows, and takes a checkpoint, in the order in which the job goes about it. Now and then the checkpoint fails.
    fn step(&mut self, out: &Path, told: &mut Told, random: &mut Random) -> Result<()> {
        let parallelism = self.subtasks.len() as i64;
        let to = self.count + random.below(40) as i64;
        for (subtask, (operator, _)) in self.subtasks.iter_mut().enumerate() {
            let own = (self.count..to).filter(move |number| number % parallelism == subtask as i64);
            operator.process(0, rows(own), &mut NoOutput)?;
        }
        self.count = to;
        told.barrier += 1;
        let number = told.barrier;
        let mut operators = BTreeMap::new();
        let split = SplitState { split: "0".into(), offset: self.count.to_string() };
        operators.insert("source".to_string(), OperatorCheckpoint { splits: vec![split], ..OperatorCheckpoint::default() });
        for (operator, commits) in &mut self.subtasks {
            operator.on_barrier(&barrier(number, true), &mut NoOutput)?;
            let listed = commits.list(number, &self.committer);
            make_durable(&self.files, &listed)?;
            operators.entry("sink".to_string()).or_default().commits.extend(listed);
        }
        // What is closed at a barrier whose checkpoint fails has a record of its own, with the next one.
        told.counts.insert(self.count);
        if random.below(5) == 0 {
            return Ok(());
        }
        let checkpoint = JobCheckpoint { barrier: number, commit: 0, time_us: 0, operators, finished: false, inputs: BTreeMap::new() };
        let manifest = Manifest {
            number: self.store.next_manifest_number(number + 1),
            barrier: number,
            jobs: BTreeMap::from([(JOB, checkpoint.clone())]),
            tables: None,
        };
        self.store.write_manifest(&manifest)?;
        self.retained.push(manifest);
        self.committer.commit(JOB, &checkpoint)?;
        told.committed = self.count;
        assert_eq!(look(out, self.count, told), self.count);
        let keep = self.retained.len().saturating_sub(2);
        self.retained.drain(..keep).for_each(|manifest| self.store.abandon(manifest.number));
        self.store.retire(&self.retained, &|_| false)
    }
}

fn live(files: &LossyFiles, root: &Path, partitioned: bool, told: &mut Told, random: &mut Random) -> Result<()> {
    let mut life = Life::open(files, root, partitioned, told, random)?;
    (0..4).try_for_each(|_| life.step(&root.join("out"), told, random))
}

#[test]
fn readers_see_whole_checkpoints_after_power_loss_at_changes_of_the_disk() {
    let whole = {
        let folder = tempfile::tempdir().unwrap();
        let files = LossyFiles::new(folder.path(), 0).unwrap();
        live(&files, folder.path(), true, &mut Told::default(), &mut Random::seeded(0)).unwrap();
        files.operations()
    };
    assert!(whole > 60, "{whole}");
    let (mut crashes, mut taken_back) = (0, 0);
    for at in 0..whole {
        let folder = tempfile::tempdir().unwrap();
        let mut random = Random::seeded(at);
        let files = LossyFiles::new(folder.path(), at).unwrap();
        let mut told = Told::default();
        let partitioned = at % 2 == 0;
        // The second time the power goes off somewhere in the recovery or the work after it; the last lives are not disturbed.
        for (life, off) in [Some(at), Some(random.below(whole)), None, None].into_iter().enumerate() {
            if let Some(off) = off {
                files.power_off_after(off);
            }
            let result = live(&files, folder.path(), partitioned, &mut told, &mut random);
            assert!(result.is_ok() || files.powered_off(), "change {at}, life {life}: {result:?}");
            crashes += usize::from(files.powered_off());
            // Now and then the process dies without loss, so that what is not durable is lost only with the next crash.
            if random.below(4) == 0 { files.kill() } else { files.crash().unwrap() }
        }
        taken_back += told.taken_back;
    }
    assert!(crashes as u64 > whole && taken_back > 10, "{crashes} crashes, {taken_back} times something was taken back");
}
