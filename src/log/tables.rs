//! Stored tables: the rows that the log's commits add up to, as of any recent commit.
//!
//! All tables share one [`VersionedStore`], whose versions are commit sequences. The log's writer thread applies each commit to it once it is durable
//! and before it is acknowledged: who was told of a commit, reads it.
//!
//! # Invariants
//! - The store at version `n` is exactly what commits `1..=n` add up to.
//! - The store's base is scratch: a start takes it from a checkpoint, of which the commit is known, and replays the log behind it.
//! - Ids of tables are never used twice, so the rows of a dropped table are garbage that nobody can see; a checkpoint removes them first.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use arrow::array::Array;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use weir_catalog::{Catalog, CatalogChange, Error, Object, ObjectId, Result, RowKind, SqlState};

use super::conflicts::Conflicts;
use super::layout::{FIRST_SCHEMA_NUMBER, TableLayout, key_range};
use super::scan::TablesSnapshot;
use super::transaction::Transaction;
use super::{Applier, Commit, EngineLog, LogReader, Recovered, TableChange};
use crate::seams::faults::{self, Fault};
use crate::seams::hash::HashMap;
use crate::state::memory_pool::Charge;
use crate::state::{EncodedRows, StateBackend, StateSize, VersionedStore, Versions, Writes};
use crate::stream::{Batch, CommitSeq};

/// Limits of stored tables.
#[derive(Clone, Copy, Debug)]
pub struct TablesSettings {
    /// `max_row_bytes`: a longer row is refused with `54000`.
    pub max_row_bytes: usize,
    /// Changes that are held in memory before they are folded into the base, bytes of log.
    pub max_unfolded_bytes: u64,
    /// What all transactions that are under way may hold in memory of what they have written, bytes; a statement that needs more fails with `53200`.
    pub max_uncommitted_bytes: usize,
    /// Rows changed by recent commits that are remembered for the transactions that run; one that would need more fails with `40001`.
    pub conflict_rows: usize,
}

impl Default for TablesSettings {
    fn default() -> TablesSettings {
        TablesSettings { max_row_bytes: 16 << 20, max_unfolded_bytes: 64 << 20, max_uncommitted_bytes: 512 << 20, conflict_rows: 4 << 20 }
    }
}

/// The store must be released only now and then: it costs a look at all versions.
const RELEASE_EVERY_COMMITS: u64 = 16;
/// How many times more changes than usual may wait in memory while folds are held.
const HELD_FOLDS_PATIENCE: u64 = 4;
/// Rows of dropped tables that are removed under one hold of the store.
const PURGE_ROWS: usize = 16 * 1024;

/// What the log's writer thread works on.
pub(super) struct Applied {
    store: VersionedStore,
    versions: Arc<Versions>,
    /// The commit that the base is exact at.
    base_version: CommitSeq,
    layouts: HashMap<ObjectId, TableLayout>,
    /// Dropped tables whose rows may still be in the base, and the commit that dropped each.
    dropped: Vec<(CommitSeq, ObjectId)>,
    /// The last commit that changed rows.
    changed: CommitSeq,
    /// What came after the base, bytes of log, and the limit from which on it is folded.
    unfolded_bytes: u64,
    max_unfolded_bytes: u64,
    /// Whether somebody is about to make an image that is to be exact at a commit: until then the base is left where it is, unless memory runs short.
    folds_held: usize,
    /// Where the memory of changes that are not in the base is counted.
    memory: Option<Charge>,
}

/// The stored tables of an engine.
pub struct Tables {
    pub(super) log: EngineLog,
    pub(super) applied: Arc<Mutex<Applied>>,
    pub(super) conflicts: Arc<Mutex<Conflicts>>,
    versions: Arc<Versions>,
    oldest_needed: Arc<AtomicU64>,
    next_object_id: AtomicU64,
    statement_locks: Mutex<BTreeMap<ObjectId, Arc<tokio::sync::Mutex<()>>>>,
    /// What all transactions hold of what they have written, bytes.
    pub(super) uncommitted_bytes: AtomicUsize,
    /// Where that is counted.
    uncommitted: OnceLock<Charge>,
    pub(super) settings: TablesSettings,
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tables").field("log", &self.log).finish_non_exhaustive()
    }
}

/// An image of the stored tables, in the folder that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablesCheckpoint {
    /// The commit that it is exact at: give it to [`Tables::open`] together with the backend that was restored from the image.
    pub seq: CommitSeq,
    /// Its files, by name relative to the folder. Nothing is fsynced.
    pub files: Vec<String>,
}

/// One DML statement at a time on a table; see [`Tables::lock`].
#[derive(Debug)]
pub struct StatementLock {
    _guard: OwnedMutexGuard<()>,
}

impl Tables {
    /// The tables at the end of `log`: `backend` holds them as of `base_version` (empty, and 0, for a new data folder), the log holds the rest.
    ///
    /// Call it before the first append. Errors with `XX001` where the log does not fit the backend's content.
    pub fn open(
        log: EngineLog,
        recovered: &Recovered,
        backend: Box<dyn StateBackend>,
        base_version: CommitSeq,
        settings: TablesSettings,
    ) -> Result<Arc<Tables>> {
        if base_version > recovered.end || base_version + 1 < recovered.first {
            return Err(Error::corrupted(format!(
                "the stored tables were checkpointed at commit {base_version}, and the engine log has commits {} to {}",
                recovered.first, recovered.end
            )));
        }
        let (store, versions) = VersionedStore::new(backend, base_version)?;
        let mut applied = Applied {
            store,
            versions: versions.clone(),
            base_version,
            layouts: HashMap::default(),
            dropped: Vec::new(),
            changed: base_version,
            unfolded_bytes: 0,
            max_unfolded_bytes: settings.max_unfolded_bytes,
            folds_held: 0,
            memory: None,
        };
        for object in recovered.catalog.objects() {
            if let Object::StoredTable(table) = &**object {
                applied.layouts.insert(table.id, TableLayout::new(table)?);
            }
        }
        let mut reader = log.reader(base_version)?;
        if faults::is_planted(Fault::TablesReplaySkipsCommit) {
            reader.next_through(recovered.end)?;
        }
        while let Some(commit) = reader.next_through(recovered.end)? {
            applied.apply(&commit, CommitSeq::MAX)?;
        }
        drop(reader);

        let applied = Arc::new(Mutex::new(applied));
        let conflicts = Arc::new(Mutex::new(Conflicts::new(settings.conflict_rows)));
        let oldest_needed = Arc::new(AtomicU64::new(CommitSeq::MAX));
        log.set_applier(Box::new(TablesApplier {
            applied: applied.clone(),
            conflicts: conflicts.clone(),
            oldest_needed: oldest_needed.clone(),
        }));
        Ok(Arc::new(Tables {
            next_object_id: AtomicU64::new(recovered.catalog.next_id()),
            log,
            applied,
            conflicts,
            versions,
            oldest_needed,
            statement_locks: Mutex::default(),
            uncommitted_bytes: AtomicUsize::new(0),
            uncommitted: OnceLock::new(),
            settings,
        }))
    }

    /// Counts with `uncommitted` what transactions hold of what they have written, and with `charge` the changes that are not in the base, from now on.
    pub fn count_memory(&self, charge: Charge, uncommitted: Charge) {
        uncommitted.add(self.uncommitted_bytes.load(Ordering::SeqCst));
        // Set once, by who opens the engine, before there is a transaction.
        let _ = self.uncommitted.set(uncommitted);
        let mut applied = self.applied.lock();
        applied.memory = Some(charge);
        applied.count_memory();
    }

    /// A transaction that held `before` bytes now holds `after`. Errors with `53200` where all together hold more than they may; it is counted anyway.
    pub(super) fn resize_uncommitted(&self, before: usize, after: usize) -> Result<()> {
        if after <= before {
            self.uncommitted_bytes.fetch_sub(before - after, Ordering::SeqCst);
            if let Some(charge) = self.uncommitted.get() {
                charge.subtract(before - after);
            }
            return Ok(());
        }
        let bytes = self.uncommitted_bytes.fetch_add(after - before, Ordering::SeqCst) + (after - before);
        if let Some(charge) = self.uncommitted.get() {
            charge.add(after - before);
        }
        let most = self.settings.max_uncommitted_bytes;
        if bytes <= most {
            return Ok(());
        }
        Err(Error::new(SqlState::OUT_OF_MEMORY, "out of memory for what transactions have written")
            .with_detail(format!("This one has written {after} bytes, all that are under way {bytes}; together they may hold {most}."))
            .with_hint("Write fewer rows in one transaction, or give weir more \"memory\"."))
    }

    /// The log.
    pub fn log(&self) -> &EngineLog {
        &self.log
    }

    /// The catalog at the end of the log.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.log.catalog()
    }

    /// An id for a new object, never given before. Two transactions that create objects at the same time get different ones.
    pub fn next_object_id(&self) -> ObjectId {
        self.next_object_id.fetch_add(1, Ordering::SeqCst)
    }

    /// Begins a transaction that sees every commit acknowledged before.
    pub fn begin(self: &Arc<Self>) -> Result<Transaction> {
        Transaction::begin(self.clone())
    }

    /// The tables as of the end of the log.
    pub fn latest(&self) -> Result<TablesSnapshot> {
        loop {
            let end = self.log.end();
            if let Some(snapshot) = self.open_version(end) {
                return Ok(snapshot);
            }
            if self.log.end() == end {
                return Err(Error::internal(format!("the stored tables have no version {end}, the end of the log")));
            }
        }
    }

    /// The tables as of the commit `seq`. Errors with `55000` where that is no longer, or not yet, readable.
    pub fn snapshot(&self, seq: CommitSeq) -> Result<TablesSnapshot> {
        self.open_version(seq).ok_or_else(|| {
            let (oldest, newest) = self.versions.range();
            Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, format!("the stored tables can't be read as of commit {seq}"))
                .with_detail(format!("They can be read as of commits {oldest} to {newest}."))
        })
    }

    fn open_version(&self, seq: CommitSeq) -> Option<TablesSnapshot> {
        Some(TablesSnapshot { rows: self.versions.open(seq)?, writes: Arc::default() })
    }

    /// The oldest and the newest commit that can be read.
    pub fn readable(&self) -> (CommitSeq, CommitSeq) {
        self.versions.range()
    }

    /// Keeps the commits from `seq` on readable, whatever comes after them, until this is called with a later one. Until it is called for the first
    /// time only the newest is sure to be. What [`Tables::snapshot`] gave stays readable in any case.
    pub fn set_oldest_needed(&self, seq: CommitSeq) {
        self.oldest_needed.store(seq, Ordering::SeqCst);
    }

    /// Waits for the DML statements on `table` that came before. An UPDATE or DELETE outside a transaction block holds it from before it reads until
    /// its commit is acknowledged, so that it never meets a change by another. An INSERT of new rows can do without: where it loses a race for a
    /// key, [`Transaction::commit`] says `40001`, and another try says `23505`.
    pub async fn lock(&self, table: ObjectId) -> StatementLock {
        let lock = {
            let mut locks = self.statement_locks.lock();
            if locks.len() > 1024 {
                locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            }
            locks.entry(table).or_default().clone()
        };
        StatementLock { _guard: lock.lock_owned().await }
    }

    /// Follows the changes of `table` behind the commit `after`; `projection` are positions in its columns.
    pub fn reader(&self, table: ObjectId, projection: Vec<usize>, after: CommitSeq) -> Result<TableReader> {
        Ok(TableReader { log: self.log.reader(after)?, table, projection })
    }

    /// Makes an image of the tables in the new folder `dir`: exact at `through`, or at a later commit if later changes had to leave memory.
    ///
    /// After an error the engine must be started again from its last checkpoint: the base may have a part of what was to be written.
    pub fn fold_and_checkpoint(&self, through: CommitSeq, dir: &Path) -> Result<TablesCheckpoint> {
        let seq = self.applied.lock().fold(through)?;
        while self.applied.lock().purge_some(seq)? {}
        let mut applied = self.applied.lock();
        // Another fold may have come in between.
        let seq = applied.base_version;
        let files = applied.store.backend_mut().checkpoint(dir)?;
        Ok(TablesCheckpoint { seq, files })
    }

    /// Until the hold is dropped, the base is left at the commit that it is exact at, so that an image can be made of one soon after. No promise: under
    /// much writing it moves on.
    pub fn hold_folds(&self) -> FoldHold {
        self.applied.lock().folds_held += 1;
        FoldHold { applied: self.applied.clone() }
    }

    /// Whether an image made now would differ from the last one.
    pub fn changed_since_checkpoint(&self) -> bool {
        let applied = self.applied.lock();
        applied.changed > applied.base_version || !applied.dropped.is_empty() || applied.store.backend().changed_since_checkpoint()
    }

    /// About how many rows and bytes the base holds.
    pub fn size(&self) -> StateSize {
        self.applied.lock().store.backend().estimate()
    }

    /// The bytes of memory in changes that are not in the base yet.
    pub fn overlay_bytes(&self) -> usize {
        self.applied.lock().store.overlay_bytes()
    }
}

/// See [`Tables::hold_folds`].
pub struct FoldHold {
    applied: Arc<Mutex<Applied>>,
}

impl Drop for FoldHold {
    fn drop(&mut self) {
        self.applied.lock().folds_held -= 1;
    }
}

/// What the log's writer thread calls.
struct TablesApplier {
    applied: Arc<Mutex<Applied>>,
    conflicts: Arc<Mutex<Conflicts>>,
    oldest_needed: Arc<AtomicU64>,
}

impl Applier for TablesApplier {
    fn apply(&mut self, commit: &Arc<Commit>) -> Result<()> {
        self.applied.lock().apply(commit, self.oldest_needed.load(Ordering::SeqCst))?;
        if commit.tag != 0 {
            // The end moves to this commit right after: until then a transaction may begin before it.
            self.conflicts.lock().durable(commit.tag, commit.seq, commit.seq - 1);
        }
        Ok(())
    }

    fn refused(&mut self, tag: u64) {
        self.conflicts.lock().refused(tag);
    }
}

impl Applied {
    /// Looks up rows as they are now. `found(i)` is called for each of `keys` (keys of the store, sorted and distinct) that is there.
    pub(super) fn find(&self, keys: &[&[u8]], found: &mut dyn FnMut(usize)) -> Result<()> {
        self.store.get_latest(keys, &mut |i, _| {
            found(i);
            Ok(())
        })
    }

    /// Takes in the next commit.
    fn apply(&mut self, commit: &Commit, oldest_needed: CommitSeq) -> Result<()> {
        for change in &commit.changes.catalog {
            match change {
                CatalogChange::Create(Object::StoredTable(table)) | CatalogChange::Replace(Object::StoredTable(table)) => {
                    self.layouts.insert(table.id, TableLayout::new(table)?);
                }
                // Its layout stays: the log may have older changes of it, when it is replayed.
                CatalogChange::Drop(id) => self.dropped.push((commit.seq, *id)),
                CatalogChange::Create(_) | CatalogChange::Replace(_) => {}
            }
        }
        let mut writes = Writes::new();
        for change in &commit.changes.tables {
            // A table that was dropped before the catalog snapshot: nobody can see it.
            if let Some(layout) = self.layouts.get(&change.table) {
                add_writes(layout, change, &mut writes)
                    .map_err(|e| Error::new(e.code().clone(), format!("commit {} can't be applied: {}", commit.seq, e.message())))?;
            }
        }
        writes.sort();
        if !writes.is_sorted() {
            return Err(Error::corrupted(format!("commit {} changes a row twice", commit.seq)));
        }
        if !writes.is_empty() {
            self.changed = commit.seq;
        }
        self.store.write(commit.seq, writes)?;
        self.unfolded_bytes += commit.len;
        let patience = if self.folds_held > 0 { HELD_FOLDS_PATIENCE } else { 1 };
        let fold = self.unfolded_bytes > patience * self.max_unfolded_bytes;
        if fold || commit.seq.is_multiple_of(RELEASE_EVERY_COMMITS) {
            // Until this commit is acknowledged, the end of the log, which must be readable, is the one before.
            self.store.release(oldest_needed.min(commit.seq - 1))?;
        }
        if fold {
            self.fold(commit.seq)?;
        }
        self.count_memory();
        Ok(())
    }

    /// Brings the base to `through`, unless it is already beyond. Returns where it is.
    fn fold(&mut self, through: CommitSeq) -> Result<CommitSeq> {
        let through = through.max(self.versions.range().0);
        if through > self.base_version {
            self.store.fold(through)?;
            self.base_version = through;
            self.unfolded_bytes = 0;
            self.count_memory();
        }
        Ok(self.base_version)
    }

    fn count_memory(&self) {
        if let Some(memory) = &self.memory {
            memory.set(self.store.overlay_bytes());
        }
    }

    /// Removes rows of tables dropped up to `through`, which is folded. Returns whether there may be more.
    fn purge_some(&mut self, through: CommitSeq) -> Result<bool> {
        let Some(place) = self.dropped.iter().position(|(seq, _)| *seq <= through) else { return Ok(false) };
        let id = self.dropped[place].1;
        let range = key_range(id);
        let mut deletes = Writes::new();
        self.store.backend().scan(&range.start, &range.end, &mut |key, _| {
            deletes.push(key, None)?;
            Ok(deletes.len() < PURGE_ROWS)
        })?;
        if deletes.len() < PURGE_ROWS {
            self.dropped.swap_remove(place);
            self.layouts.remove(&id);
        }
        if !deletes.is_empty() {
            // No version that can be read from the base on has these rows, and older ones have a snapshot of their own.
            self.store.backend_mut().write(&deletes)?;
        }
        Ok(true)
    }
}

/// Adds what `change` does to the store.
fn add_writes(layout: &TableLayout, change: &TableChange, writes: &mut Writes) -> Result<()> {
    if change.schema_number != u32::from(FIRST_SCHEMA_NUMBER) {
        return Err(Error::corrupted(format!("rows of table {} have schema number {}", change.table, change.schema_number)));
    }
    let Batch { rows, .. } = &change.batch;
    let keys = layout.row_keys(rows, change.row_ids.as_ref())?;
    let mut encoded = EncodedRows::new();
    layout.encode_rows(rows, &mut encoded)?;
    for i in 0..rows.num_rows() {
        let row = match change.batch.kind(i) {
            RowKind::Insert | RowKind::UpdateAfter => Some(encoded.get(i)),
            RowKind::Delete => None,
            // Its `+U`, which has the same key, follows.
            RowKind::UpdateBefore => continue,
        };
        writes.push(&layout.store_key(keys.get(i)), row)?;
    }
    Ok(())
}

/// One table's changes, for a job that reads it.
#[derive(Debug)]
pub struct TableReader {
    log: LogReader,
    table: ObjectId,
    projection: Vec<usize>,
}

impl TableReader {
    /// The last commit that was read.
    pub fn position(&self) -> CommitSeq {
        self.log.position()
    }

    /// Gives `each` what the commits up to `cut` did to the table, one batch a commit that changed it. The next call goes on behind `cut`, which must
    /// not be behind the end of the log.
    pub fn changes_through(&mut self, cut: CommitSeq, each: &mut dyn FnMut(Batch) -> Result<()>) -> Result<()> {
        while let Some(commit) = self.next_commit(cut)? {
            for change in commit.changes.tables.iter().filter(|change| change.table == self.table) {
                let rows = change
                    .batch
                    .rows
                    .project(&self.projection)
                    .map_err(|e| Error::internal(format!("changes of table {} do not have its columns: {e}", self.table)))?;
                each(Batch { rows, kinds: change.batch.kinds.clone() })?;
            }
        }
        Ok(())
    }

    /// The next commit up to `cut`, whatever it changed.
    pub(super) fn next_commit(&mut self, cut: CommitSeq) -> Result<Option<Arc<Commit>>> {
        let next = self.log.next_through(cut)?;
        if next.is_none() && self.log.position() < cut {
            return Err(Error::internal(format!("the log was to be read up to commit {cut}, and ends at {}", self.log.position())));
        }
        Ok(next)
    }

    /// Waits until there are commits behind the last one read.
    pub async fn wait(&mut self) {
        self.log.wait().await;
    }
}

/// The number of rows in `rows` that have an id, for [`TableChange::row_ids`].
pub(super) fn row_ids_of(keys: &EncodedRows) -> Result<arrow::array::UInt64Array> {
    let ids = keys
        .iter()
        .map(|key| key.try_into().map(u64::from_be_bytes).map_err(|_| Error::internal("a row id is not 8 bytes long")))
        .collect::<Result<Vec<u64>>>()?;
    let ids = arrow::array::UInt64Array::from(ids);
    debug_assert_eq!(ids.null_count(), 0);
    Ok(ids)
}
