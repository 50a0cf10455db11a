//! Transactions: reads of one commit with own writes over it, and writes that become one commit.
//!
//! # Invariants
//! - A commit is whole or absent: in the log, in what readers see, in what jobs read.
//! - First committer wins: of two transactions that run at the same time and touch the same row, the later fails with `40001`.
//! - What a commit does to a row is net: at most one `-U` with its `+U`, one `+I` or one `-D`, and old rows are whole.
//! - A transaction in which something failed does nothing any more.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt64Array};
use weir_catalog::{Catalog, CatalogChange, Error, Object, ObjectId, Result, SqlState, StoredTable};

use super::layout::{FIRST_SCHEMA_NUMBER, TableLayout};
use super::scan::{TablesSnapshot, keys_of};
use super::tables::{Tables, row_ids_of};
use super::writes::TableWrites;
use super::{Changes, PendingCommit, TableChange};
use crate::seams::faults::{self, Fault};
use crate::seams::hash::HashSet;
use crate::state::EncodedRows;
use crate::stream::CommitSeq;

/// A transaction on stored tables and the catalog. Dropping it takes everything back.
pub struct Transaction {
    tables: Arc<Tables>,
    read: TablesSnapshot,
    /// With its own changes.
    catalog: Arc<Catalog>,
    catalog_changes: Vec<CatalogChange>,
    writes: BTreeMap<ObjectId, Arc<TableWrites>>,
    /// The bytes of memory that are counted for `writes`.
    counted_bytes: usize,
    failed: bool,
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction").field("read_seq", &self.read_seq()).field("tables", &self.writes.len()).finish_non_exhaustive()
    }
}

fn serialization_failure() -> Error {
    Error::new(SqlState::SERIALIZATION_FAILURE, "could not serialize access due to concurrent update")
        .with_hint("The transaction might succeed if retried.")
}

impl Transaction {
    pub(super) fn begin(tables: Arc<Tables>) -> Result<Transaction> {
        let read = {
            // Whoever forgets what recent commits changed holds this lock.
            let mut conflicts = tables.conflicts.lock();
            let read = tables.latest()?;
            conflicts.began(read.seq());
            read
        };
        // Not older than what is read: a table that was made in between is empty there.
        let catalog = tables.catalog();
        Ok(Transaction { tables, read, catalog, catalog_changes: Vec::new(), writes: BTreeMap::new(), counted_bytes: 0, failed: false })
    }

    /// The commit whose content it sees.
    pub fn read_seq(&self) -> CommitSeq {
        self.read.seq()
    }

    /// The catalog, with its own changes.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// What it sees: the tables as of [`Transaction::read_seq`] with its own writes over them, as they are now.
    pub fn snapshot(&self) -> TablesSnapshot {
        TablesSnapshot { rows: self.read.rows.clone(), writes: Arc::new(self.writes.clone()) }
    }

    /// Whether it has changed nothing so far.
    pub fn is_empty(&self) -> bool {
        self.catalog_changes.is_empty() && self.writes.is_empty()
    }

    /// Whether it changes the catalog.
    pub fn changes_catalog(&self) -> bool {
        !self.catalog_changes.is_empty()
    }

    /// The bytes of memory that its writes take.
    pub fn memory_size(&self) -> usize {
        self.writes.values().map(|writes| writes.memory_size()).sum()
    }

    /// Lets the next statement see every commit acknowledged before now (READ COMMITTED). Errors with `40001` if one of them changed a row that this
    /// transaction has written.
    pub fn begin_statement(&mut self) -> Result<()> {
        self.check_not_failed()?;
        let result = self.advance();
        self.failed |= result.is_err();
        result
    }

    fn advance(&mut self) -> Result<()> {
        let rows = self.contended_rows()?;
        let end = self.tables.log.log_end();
        {
            let mut conflicts = self.tables.conflicts.lock();
            let before = self.read.seq();
            if conflicts.conflicts(before, &rows) {
                return Err(serialization_failure());
            }
            let read = self.tables.latest()?;
            conflicts.began(read.seq());
            conflicts.ended(before, end.seq);
            self.read = read;
        }
        self.catalog = self.latest_catalog()?;
        Ok(())
    }

    /// The object `id`, where this transaction creates it.
    pub fn created(&self, id: ObjectId) -> Option<&Object> {
        self.catalog_changes.iter().find_map(|change| match change {
            CatalogChange::Create(object) if object.id() == id => Some(object),
            _ => None,
        })
    }

    /// The newest catalog, with its own changes. Errors where they do not fit it.
    pub fn latest_catalog(&self) -> Result<Arc<Catalog>> {
        let catalog = self.tables.catalog();
        if self.catalog_changes.is_empty() {
            return Ok(catalog);
        }
        let mut next = Catalog::clone(&catalog);
        self.catalog_changes.iter().try_for_each(|change| next.apply(change))?;
        Ok(Arc::new(next))
    }

    /// Changes the catalog. Errors where the change does not fit it, e.g. `42P07`.
    pub fn change_catalog(&mut self, change: CatalogChange) -> Result<()> {
        self.check_not_failed()?;
        let mut next = Catalog::clone(&self.catalog);
        if let Err(error) = next.apply(&change) {
            self.failed = true;
            return Err(error);
        }
        if let CatalogChange::Drop(id) = change {
            self.writes.remove(&id);
        }
        self.catalog = Arc::new(next);
        self.catalog_changes.push(change);
        Ok(())
    }

    /// Adds `rows`, all columns of `table` in order. Returns how many. Errors with `23502`, `23505`, `54000`.
    pub fn insert(&mut self, table: &StoredTable, rows: &RecordBatch) -> Result<u64> {
        self.statement(table, |transaction, layout| {
            let rows = layout.check_rows(rows)?;
            let count = rows.num_rows();
            let row_ids = layout.key.is_none().then(|| {
                let first = transaction.tables.log.allocate_row_ids(count as u64);
                UInt64Array::from_iter_values(first..first + count as u64)
            });
            let keys = layout.row_keys(&rows, row_ids.as_ref())?;
            transaction.put(layout, &rows, &keys)?;
            Ok(count as u64)
        })
    }

    /// Takes away rows: `row_keys` and `rows` as a scan of [`Transaction::snapshot`] gave them, `rows` with all columns. Returns how many.
    pub fn delete(&mut self, table: &StoredTable, row_keys: &ArrayRef, rows: &RecordBatch) -> Result<u64> {
        self.statement(table, |transaction, layout| Ok(transaction.take(layout, row_keys, rows)?.len() as u64))
    }

    /// Replaces rows: `row_keys` and `old` as a scan of [`Transaction::snapshot`] gave them, `new` row by row what they become, all with all columns.
    /// A row named twice is updated once. Returns how many. Primary keys may change; they are compared when all rows have their new content.
    pub fn update(&mut self, table: &StoredTable, row_keys: &ArrayRef, old: &RecordBatch, new: &RecordBatch) -> Result<u64> {
        self.statement(table, |transaction, layout| {
            let mut new = layout.check_rows(new)?;
            if new.num_rows() != old.num_rows() {
                return Err(Error::internal(format!("{} new rows for {} old ones", new.num_rows(), old.num_rows())));
            }
            let first_uses = transaction.take(layout, row_keys, old)?;
            let mut row_ids = if layout.key.is_none() { Some(row_ids_of(&copied(row_keys)?)?) } else { None };
            if first_uses.len() < new.num_rows() {
                let places = UInt64Array::from_iter_values(first_uses.iter().map(|place| *place as u64));
                let failed = |e| Error::internal(format!("could not pick rows: {e}"));
                new = arrow::compute::take_record_batch(&new, &places).map_err(failed)?;
                row_ids = row_ids.map(|ids| UInt64Array::from_iter_values(first_uses.iter().map(|place| ids.value(*place))));
            }
            let keys = layout.row_keys(&new, row_ids.as_ref())?;
            transaction.put(layout, &new, &keys)?;
            Ok(first_uses.len() as u64)
        })
    }

    fn check_not_failed(&self) -> Result<()> {
        if self.failed {
            return Err(Error::new(
                SqlState::IN_FAILED_SQL_TRANSACTION,
                "current transaction is aborted, commands ignored until end of transaction block",
            ));
        }
        Ok(())
    }

    fn statement(&mut self, table: &StoredTable, work: impl FnOnce(&mut Transaction, &TableLayout) -> Result<u64>) -> Result<u64> {
        self.check_not_failed()?;
        let layout = TableLayout::new(table)?;
        let result = work(self, &layout).and_then(|count| self.count_memory().map(|()| count));
        self.failed |= result.is_err();
        result
    }

    /// Counts what is held now. Errors with `53200` where that is too much.
    fn count_memory(&mut self) -> Result<()> {
        let bytes = self.memory_size();
        let before = std::mem::replace(&mut self.counted_bytes, bytes);
        self.tables.resize_uncommitted(before, bytes)
    }

    fn writes_of(&mut self, table: ObjectId) -> &mut TableWrites {
        Arc::make_mut(self.writes.entry(table).or_default())
    }

    /// Adds rows whose keys must be free.
    fn put(&mut self, layout: &TableLayout, rows: &RecordBatch, keys: &EncodedRows) -> Result<()> {
        let mut encoded = EncodedRows::new();
        layout.encode_rows(rows, &mut encoded)?;
        let max_row_bytes = self.tables.settings.max_row_bytes;
        if let Some(row) = encoded.iter().map(<[u8]>::len).find(|bytes| *bytes > max_row_bytes) {
            return Err(layout.row_too_large(row, max_row_bytes));
        }
        if layout.key.is_some() {
            self.check_free(layout, rows, keys)?;
        }
        let writes = self.writes_of(layout.id);
        for (key, row) in keys.iter().zip(encoded.iter()) {
            writes.put(key, row);
        }
        Ok(())
    }

    /// `23505` if one of `keys` is there, or twice among them.
    fn check_free(&self, layout: &TableLayout, rows: &RecordBatch, keys: &EncodedRows) -> Result<()> {
        let writes = self.writes.get(&layout.id);
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by(|a, b| keys.get(*a).cmp(keys.get(*b)).then(a.cmp(b)));
        let mut taken: Option<usize> = None;
        let mut lowest = |row: usize| taken = Some(taken.map_or(row, |other| other.min(row)));
        for pair in order.windows(2) {
            if keys.get(pair[0]) == keys.get(pair[1]) {
                lowest(pair[1]);
            }
        }
        order.dedup_by(|a, b| keys.get(*a) == keys.get(*b));
        let mut untouched = Vec::new();
        for row in order {
            match writes.and_then(|writes| writes.get(keys.get(row))) {
                Some(Some(_)) => lowest(row),
                Some(None) => {}
                None => untouched.push(row),
            }
        }
        let store_keys: Vec<Vec<u8>> = untouched.iter().map(|row| layout.store_key(keys.get(*row))).collect();
        let store_keys: Vec<&[u8]> = store_keys.iter().map(Vec::as_slice).collect();
        // As they are now, not as of the snapshot: a key that was taken meanwhile is a duplicate, one that was freed meanwhile is a conflict.
        self.tables.applied.lock().find(&store_keys, &mut |i| lowest(untouched[i]))?;
        match taken {
            Some(row) => Err(layout.duplicate_key(rows, row)),
            None => Ok(()),
        }
    }

    /// Takes rows away. Returns which of them were there: rows that are named twice count once.
    fn take(&mut self, layout: &TableLayout, row_keys: &ArrayRef, rows: &RecordBatch) -> Result<Vec<usize>> {
        let keys = keys_of(row_keys)?;
        let rows = layout.check_rows(rows)?;
        if keys.len() != rows.num_rows() {
            return Err(Error::internal(format!("{} row keys for {} rows", keys.len(), rows.num_rows())));
        }
        let mut encoded = EncodedRows::new();
        layout.encode_rows(&rows, &mut encoded)?;
        let writes = self.writes_of(layout.id);
        let mut first_uses = Vec::with_capacity(keys.len());
        for (i, row) in encoded.iter().enumerate() {
            let key = keys.value(i);
            if writes.get(key) != Some(None) {
                writes.take(key, row);
                first_uses.push(i);
            }
        }
        Ok(first_uses)
    }

    /// The layout of a table that this transaction wrote to; `None` if the table is gone.
    fn layout(&self, table: ObjectId) -> Result<Option<TableLayout>> {
        match self.catalog.get_id(table).map(|object| &**object) {
            Some(Object::StoredTable(table)) => TableLayout::new(table).map(Some),
            _ => Ok(None),
        }
    }

    /// Hashes of the rows that other transactions may have changed too.
    fn contended_rows(&self) -> Result<HashSet<u64>> {
        let mut rows = HashSet::default();
        for (table, writes) in &self.writes {
            if let Some(layout) = self.layout(*table)? {
                writes.contended(&layout, &mut rows);
            }
        }
        Ok(rows)
    }

    /// Gives the commit to the log; `None` if there is nothing to write.
    ///
    /// Errors with `40001` where a row that it wrote was changed by a commit after [`Transaction::read_seq`], `42P01` where a table is gone. The answer
    /// may be the log's refusal: a full disk, a name that another transaction took.
    pub fn submit(mut self) -> Result<Option<PendingCommit>> {
        self.check_not_failed()?;
        let rows = self.contended_rows()?;
        let mut changes = Changes { catalog: std::mem::take(&mut self.catalog_changes), tables: Vec::new() };
        // What has been taken over is let go of at once: a large transaction is not held twice.
        while let Some((table, writes)) = self.writes.pop_first() {
            let Some(layout) = self.layout(table)? else {
                return Err(Error::new(SqlState::UNDEFINED_TABLE, "a table that the transaction wrote to no longer exists"));
            };
            if let Some((batch, keys)) = writes.net(&layout)? {
                let row_ids = if layout.key.is_none() { Some(row_ids_of(&keys)?) } else { None };
                changes.tables.push(TableChange { table, schema_number: u32::from(FIRST_SCHEMA_NUMBER), batch, row_ids });
            }
        }
        if changes.is_empty() {
            return Ok(None);
        }
        if faults::is_planted(Fault::CommitTorn) && changes.tables.len() > 1 {
            let first = Changes { catalog: Vec::new(), tables: vec![changes.tables.remove(0)] };
            drop(self.tables.log.append(first));
        }
        // Encoded before the lock is taken, under which only the order is decided.
        let record = self.tables.log.prepare(changes)?;
        let mut conflicts = self.tables.conflicts.lock();
        if conflicts.conflicts(self.read.seq(), &rows) && !faults::is_planted(Fault::ConflictMissed) {
            return Err(serialization_failure());
        }
        let tag = if rows.is_empty() { 0 } else { conflicts.submit(rows) };
        Ok(Some(self.tables.log.append_prepared(record, tag)))
    }

    /// Commits, and returns when the commit is durable and visible: its sequence, `None` if there was nothing to write. Waits while a reader of the
    /// log is too far behind (`log_limit`). Errors as [`Transaction::submit`] does.
    ///
    /// Dropping the future while it waits for the disk does not take the commit back.
    pub async fn commit(self) -> Result<Option<CommitSeq>> {
        if !self.is_empty() {
            self.tables.log.admit().await;
        }
        match self.submit()? {
            Some(pending) => pending.await.map(Some),
            None => Ok(None),
        }
    }
}

fn copied(row_keys: &ArrayRef) -> Result<EncodedRows> {
    let mut keys = EncodedRows::new();
    for key in keys_of(row_keys)?.iter().flatten() {
        keys.push(key);
    }
    Ok(keys)
}

impl Drop for Transaction {
    fn drop(&mut self) {
        // Less than before is never too much.
        let _ = self.tables.resize_uncommitted(self.counted_bytes, 0);
        let end = self.tables.log.end();
        self.tables.conflicts.lock().ended(self.read.seq(), end);
    }
}
