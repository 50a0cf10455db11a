//! What was written to a RocksDB backend lately, kept in memory as sorted runs and stored as files of its own until there is enough of it for RocksDB.
//!
//! Each table file in RocksDB is a sorted run that compactions rewrite, about three times until it has become part of a large one. With a checkpoint every
//! second those are many small runs, and their compaction cost more than a tenth of everything. So a small write stays here: in memory for reads, and with
//! the next checkpoint in a file `recent-N.run` beside those of RocksDB. When the runs together are large enough, or many, they are merged and go into
//! RocksDB as one. This is what Flink calls a changelog of the state backend.
//!
//! # Invariants
//! - A run never changes; a later one hides the entries of an earlier one, and all hide those of RocksDB.
//! - A file's number is never used twice by one opening of a backend.
//! - The runs of all backends together hold no more than [`SHARE`] of the memory pool, and one more write each.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_catalog::{Error, Result};

use super::memory_pool::{Charge, MemoryPool};
use super::overlay::{MergedOverlays, OverlaidSnapshot, Overlay, multi_get, scan};
use super::rocks::{RECENT_FILE_PREFIX, RECENT_FILE_SUFFIX, RocksBackend, SharedRocks};
use super::{RestorePart, StateBackend, StateBackendKind, StateSize, StateSnapshot, Writes, run_file};
use crate::seams::faults::{self, Fault};
use crate::stream::KeyGroupRange;

/// A larger write goes into RocksDB at once: it is a run that is worth it.
const MOST_RUN_BYTES: usize = 128 << 20;
/// Reads look into each run.
const MOST_RUNS: usize = 12;
/// The runs of all backends have one in so many bytes of the memory pool.
const SHARE: usize = 4;
/// How many entries go to RocksDB at a time.
const CHUNK_ENTRIES: usize = 32 * 1024;

/// What the backends of one engine share: how much their runs may hold.
#[derive(Debug)]
pub struct RecentMemory {
    pool: Arc<MemoryPool>,
    backends: AtomicUsize,
}

impl RecentMemory {
    /// Runs are part of what `pool` has.
    pub fn new(pool: Arc<MemoryPool>) -> Arc<RecentMemory> {
        Arc::new(RecentMemory { pool, backends: AtomicUsize::new(0) })
    }

    /// What the runs of one backend may hold.
    fn most_bytes(&self) -> usize {
        self.pool.limit() / SHARE / self.backends.load(Ordering::Relaxed).max(1)
    }

    /// What one run of them may hold: one that leaves room for few others is soon merged, and might as well have gone into RocksDB.
    fn most_run_bytes(&self) -> usize {
        MOST_RUN_BYTES.min(self.most_bytes() / 4)
    }
}

/// One write that is not in RocksDB.
struct Run {
    changes: Arc<Overlay>,
    /// The name of its file, once it has one.
    file: Option<String>,
}

/// A [`RocksBackend`] and what was written lately.
pub struct RecentBackend {
    base: RocksBackend,
    /// From the oldest to the newest.
    runs: Vec<Run>,
    /// Where the files of runs are: RocksDB's folder, which leaves alone what has no name of its own kinds.
    dir: PathBuf,
    files: u64,
    changed: bool,
    /// Counts what the runs hold, also those that only a snapshot has.
    bytes: Arc<AtomicUsize>,
    memory: Arc<RecentMemory>,
    charge: Charge,
}

impl Drop for RecentBackend {
    fn drop(&mut self) {
        self.memory.backends.fetch_sub(1, Ordering::Relaxed);
    }
}

impl RecentBackend {
    /// Opens a backend as [`RocksBackend::open`] does.
    pub fn open(
        shared: &SharedRocks,
        memory: &Arc<RecentMemory>,
        dir: &Path,
        parts: &[RestorePart],
        range: KeyGroupRange,
    ) -> Result<RecentBackend> {
        let base = RocksBackend::open(shared, dir, parts, range)?;
        let changed = base.changed_since_checkpoint();
        memory.backends.fetch_add(1, Ordering::Relaxed);
        Ok(RecentBackend {
            base,
            runs: Vec::new(),
            dir: dir.to_path_buf(),
            files: 0,
            changed,
            bytes: Arc::default(),
            memory: memory.clone(),
            charge: memory.pool.charge(),
        })
    }

    fn overlays(&self) -> Vec<Arc<Overlay>> {
        self.runs.iter().map(|run| run.changes.clone()).collect()
    }

    fn run_bytes(&self) -> usize {
        self.runs.iter().map(|run| run.changes.memory_bytes()).sum()
    }

    /// Keeps `changes` as the newest run.
    fn keep(&mut self, changes: Writes) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        self.changed = true;
        let run = Overlay::new(self.runs.len() as u64, changes, self.bytes.clone());
        self.runs.push(Run { changes: Arc::new(run), file: None });
        if self.runs.len() > MOST_RUNS || self.run_bytes() > self.memory.most_bytes() {
            self.merge_into_base()?;
        }
        self.charge.set(self.bytes.load(Ordering::Relaxed));
        Ok(())
    }

    /// Puts all runs into RocksDB, as one.
    fn merge_into_base(&mut self) -> Result<()> {
        let overlays = self.overlays();
        let mut merged = MergedOverlays::new(&overlays, &[], &[]);
        let loses_deletions = faults::is_planted(Fault::DeletionLostInRuns);
        self.base.write_all(&mut |chunk| {
            while chunk.len() < CHUNK_ENTRIES
                && let Some((key, value)) = merged.next()
            {
                // RocksDB may have the key: a deletion is written too.
                if value.is_some() || !loses_deletions {
                    chunk.push(key, value)?;
                }
            }
            Ok(!chunk.is_empty())
        })?;
        for run in self.runs.drain(..) {
            if let Some(name) = run.file {
                let path = self.dir.join(name);
                std::fs::remove_file(&path).map_err(|error| Error::io(format!("remove {path:?}"), &error))?;
            }
        }
        self.charge.set(self.bytes.load(Ordering::Relaxed));
        Ok(())
    }

    /// Gives every run a file.
    fn write_files(&mut self) -> Result<()> {
        for run in self.runs.iter_mut().filter(|run| run.file.is_none()) {
            self.files += 1;
            let name = format!("{RECENT_FILE_PREFIX}{}{RECENT_FILE_SUFFIX}", self.files);
            run_file::write(&self.dir.join(&name), run.changes.changes())?;
            run.file = Some(name);
        }
        Ok(())
    }
}

impl StateBackend for RecentBackend {
    fn kind(&self) -> StateBackendKind {
        StateBackendKind::RocksDb
    }

    fn multi_get(&self, keys: &[&[u8]], found: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        multi_get(&self.overlays(), keys, found, |keys, found| self.base.multi_get(keys, found))
    }

    fn write(&mut self, writes: &Writes) -> Result<()> {
        if writes.used_bytes() <= self.memory.most_run_bytes() {
            return self.keep(Writes::joined(std::slice::from_ref(writes)));
        }
        self.merge_into_base()?;
        self.changed = true;
        self.base.write(writes)
    }

    fn write_all(&mut self, next: &mut dyn FnMut(&mut Writes) -> Result<bool>) -> Result<()> {
        let most = self.memory.most_run_bytes();
        let (mut chunks, mut bytes) = (Vec::new(), 0);
        while bytes <= most {
            let mut chunk = Writes::new();
            if !next(&mut chunk)? {
                // With room for just that: what grows step by step is copied each time.
                return self.keep(Writes::joined(&chunks));
            }
            bytes += chunk.used_bytes();
            chunks.push(chunk);
        }
        // Too much to be kept: what came before goes first, then this as a run of its own.
        self.merge_into_base()?;
        self.changed = true;
        let mut held = chunks.into_iter();
        self.base.write_all(&mut |chunk| match held.next() {
            Some(held) => {
                *chunk = held;
                Ok(true)
            }
            None => next(chunk),
        })
    }

    fn scan(&self, from: &[u8], to: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        scan(&self.overlays(), (from, to), each, |each| self.base.scan(from, to, each))
    }

    fn snapshot(&self) -> Result<Arc<dyn StateSnapshot>> {
        let base = self.base.snapshot()?;
        if self.runs.is_empty() {
            return Ok(base);
        }
        Ok(Arc::new(OverlaidSnapshot { base, overlays: self.overlays() }))
    }

    fn checkpoint(&mut self, dir: &Path) -> Result<Vec<String>> {
        self.write_files()?;
        let mut names = self.base.checkpoint(dir)?;
        let left_out = usize::from(faults::is_planted(Fault::RecentRunLeftOut));
        for name in self.runs.iter().skip(left_out).filter_map(|run| run.file.as_ref()) {
            let (from, to) = (self.dir.join(name), dir.join(name));
            std::fs::hard_link(&from, &to).map_err(|error| Error::io(format!("link {from:?} to {to:?}"), &error))?;
            names.push(name.clone());
        }
        self.changed = false;
        Ok(names)
    }

    fn estimate(&self) -> StateSize {
        let StateSize { rows, bytes } = self.base.estimate();
        let recent: usize = self.runs.iter().map(|run| run.changes.len()).sum();
        StateSize { rows: rows + recent as u64, bytes: bytes + self.run_bytes() as u64 }
    }

    fn changed_since_checkpoint(&self) -> bool {
        self.changed
    }

    fn content_size(&self) -> u64 {
        self.base.content_size() + self.runs.iter().map(|run| run.changes.changes().content_bytes() as u64).sum::<u64>()
    }
}
