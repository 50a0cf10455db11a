//! What a part of the log has done to a stored table in all: for each row that it changed, what the row was before and what it is now.
//!
//! ```text
//! log:  +3  -3  -U2 +U2' -U2' +U2"  +4        net:  -U2 +U2"  +4
//! ```
//!
//! A row that came and went again is in none of it. What does not fit into memory goes to a state backend that is opened when it is needed, under the row's key
//! in the tables' store:
//!
//! ```text
//! value = flags 1: 1 was there, 2 is there | length of the former row 4, little-endian | the former row | the present row
//! ```

use arrow::array::{RecordBatch, RecordBatchOptions, UInt64Array};
use arrow::datatypes::SchemaRef;
use weir_catalog::{Error, Result, RowKind, StoredTable};

use super::layout::{TableLayout, key_range};
use super::tables::TableReader;
use super::writes::TableWrites;
use crate::operators::error::from_arrow;
use crate::state::memory_pool::Charge;
use crate::state::{EncodedRows, StateBackend, Writes};
use crate::stream::{Batch, CommitSeq};

/// Rows that are taken in at a time.
const SLICE_ROWS: usize = 8192;
/// Rows that are read before [`NetChanges::read_through`] returns.
const ROWS_A_CALL: usize = 4 * SLICE_ROWS;
/// Rows that are brought to the backend at a time.
const SPILL_ROWS: usize = 1024;
/// A batch is closed when its encoded rows take more.
const BATCH_BYTES: usize = 4 << 20;

const WAS_THERE: u8 = 1;
const IS_THERE: u8 = 2;
/// What is before the rows in a value.
const HEAD_BYTES: usize = 5;

/// Where what does not fit into memory goes.
pub struct Room {
    /// The most that is held in memory, about.
    pub max_bytes: usize,
    /// Counts that.
    pub memory: Charge,
    /// Opens an empty backend.
    pub open: Box<dyn FnOnce() -> Result<Box<dyn StateBackend>> + Send>,
}

/// See the module.
pub struct NetChanges {
    layout: TableLayout,
    projection: Vec<usize>,
    /// The columns at `projection`.
    schema: SchemaRef,
    room: Option<Room>,
    /// What has been read and is not in the backend.
    writes: TableWrites,
    spilled: Option<Spilled>,
    /// Of `writes`, what has been given.
    given: usize,
    /// In the backend, where what has not been given begins.
    from: Vec<u8>,
}

/// The backend, with what counts the memory that is left beside it.
struct Spilled {
    backend: Box<dyn StateBackend>,
    max_bytes: usize,
    memory: Charge,
}

impl NetChanges {
    /// None yet, of the columns of `table` at `projection`.
    pub fn new(table: &StoredTable, projection: Vec<usize>, room: Room) -> Result<NetChanges> {
        let layout = TableLayout::new(table)?;
        let schema = layout.schema().project(&projection).map_err(from_arrow)?.into();
        let from = key_range(table.id).start;
        Ok(NetChanges { layout, projection, schema, room: Some(room), writes: TableWrites::default(), spilled: None, given: 0, from })
    }

    /// Takes in what the next commits up to `cut` did. Returns whether there are more of them: it is called until there are none, and then
    /// [`NetChanges::next_batch`].
    pub fn read_through(&mut self, reader: &mut TableReader, cut: CommitSeq) -> Result<bool> {
        let mut rows = 0;
        while rows < ROWS_A_CALL {
            let Some(commit) = reader.next_commit(cut)? else {
                if self.spilled.is_some() {
                    self.spill()?;
                }
                return Ok(false);
            };
            let table = self.layout.id;
            for change in commit.changes.tables.iter().filter(|change| change.table == table) {
                for at in (0..change.batch.num_rows()).step_by(SLICE_ROWS) {
                    let count = SLICE_ROWS.min(change.batch.num_rows() - at);
                    let row_ids = change.row_ids.as_ref().map(|ids| ids.slice(at, count));
                    self.take_in(&change.batch.slice(at, count), row_ids.as_ref())?;
                }
                rows += change.batch.num_rows();
            }
        }
        Ok(true)
    }

    fn take_in(&mut self, batch: &Batch, row_ids: Option<&UInt64Array>) -> Result<()> {
        let keys = self.layout.row_keys(&batch.rows, row_ids)?;
        let mut rows = EncodedRows::new();
        self.layout.encode_rows(&batch.rows, &mut rows)?;
        for (i, (key, row)) in keys.iter().zip(rows.iter()).enumerate() {
            match batch.kind(i) {
                RowKind::Insert | RowKind::UpdateAfter => self.writes.put(key, row),
                RowKind::Delete | RowKind::UpdateBefore => self.writes.take(key, row),
            }
        }
        if self.count_memory() { self.spill() } else { Ok(()) }
    }

    /// Counts what is in memory, and returns whether it is too much.
    fn count_memory(&self) -> bool {
        let (memory, max_bytes) = match (&self.spilled, &self.room) {
            (Some(spilled), _) => (&spilled.memory, spilled.max_bytes),
            (None, Some(room)) => (&room.memory, room.max_bytes),
            (None, None) => return false,
        };
        let bytes = self.writes.memory_size();
        memory.set(bytes);
        bytes > max_bytes
    }

    /// Brings what is in memory to the backend.
    fn spill(&mut self) -> Result<()> {
        if let Some(Room { max_bytes, memory, open }) = self.room.take() {
            self.spilled = Some(Spilled { backend: open()?, max_bytes, memory });
        }
        let spilled = self.spilled.as_mut().ok_or_else(|| Error::internal("changes of a table have no place to go to"))?;
        let writes = std::mem::take(&mut self.writes);
        let mut changes: Vec<_> = (0..).map_while(|i| writes.change(i)).collect();
        changes.sort_unstable_by_key(|(key, ..)| *key);
        for changes in changes.chunks(SPILL_ROWS) {
            let keys: Vec<Vec<u8>> = changes.iter().map(|(key, ..)| self.layout.store_key(key)).collect();
            let looked_up: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            // Whether the backend has a change of the row, and what the row was before that.
            let mut formers: Vec<Option<Option<Vec<u8>>>> = vec![None; changes.len()];
            spilled.backend.multi_get(&looked_up, &mut |i, value| {
                formers[i] = Some(decode(value)?.0.map(<[u8]>::to_vec));
                Ok(())
            })?;
            let mut merged = Writes::new();
            for ((key, former), (_, old, new)) in keys.iter().zip(&formers).zip(changes) {
                let old = former.as_ref().map_or(*old, Option::as_deref);
                if old != *new {
                    merged.push(key, Some(&encode(old, *new)))?;
                } else if former.is_some() {
                    merged.push(key, None)?;
                }
            }
            if !merged.is_empty() {
                spilled.backend.write(&merged)?;
            }
        }
        self.count_memory();
        Ok(())
    }

    /// The next of the changes, about `max_rows`; `None` at the end. A `-U` comes directly before its `+U`.
    pub fn next_batch(&mut self, max_rows: usize) -> Result<Option<Batch>> {
        let (mut rows, mut kinds, mut bytes) = (EncodedRows::new(), Vec::new(), 0);
        let mut add = |old: Option<&[u8]>, new: Option<&[u8]>| {
            if old == new {
                return true;
            }
            let (gone, came) = match new.and(old) {
                Some(_) => (RowKind::UpdateBefore, RowKind::UpdateAfter),
                None => (RowKind::Delete, RowKind::Insert),
            };
            for (row, kind) in old.map(|row| (row, gone)).into_iter().chain(new.map(|row| (row, came))) {
                rows.push(row);
                kinds.push(kind as u8);
                bytes += row.len();
            }
            kinds.len() < max_rows && bytes < BATCH_BYTES
        };
        match &self.spilled {
            None => {
                while let Some((_, old, new)) = self.writes.change(self.given) {
                    self.given += 1;
                    if !add(old, new) {
                        break;
                    }
                }
            }
            Some(spilled) => {
                let mut last: Option<Vec<u8>> = None;
                spilled.backend.scan(&self.from, &key_range(self.layout.id).end, &mut |key, value| {
                    let (old, new) = decode(value)?;
                    let more = add(old, new);
                    if !more {
                        last = Some(key.to_vec());
                    }
                    Ok(more)
                })?;
                self.from = match last {
                    // The next key there can be.
                    Some(mut key) => {
                        key.push(0);
                        key
                    }
                    None => key_range(self.layout.id).end,
                };
            }
        }
        if kinds.is_empty() {
            return Ok(None);
        }
        let columns = self.layout.decode_rows(rows.iter(), Some(&self.projection))?;
        let options = RecordBatchOptions::new().with_row_count(Some(kinds.len()));
        let rows = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options).map_err(from_arrow)?;
        Ok(Some(Batch::with_kinds(rows, kinds)))
    }

    /// Gives `take` each row that was changed, in the order of keys: its key in the tables' store, and what it was before; `None` where it was not there.
    pub fn each_former(&self, take: &mut dyn FnMut(&[u8], Option<&[u8]>) -> Result<()>) -> Result<()> {
        if let Some(spilled) = &self.spilled {
            let range = key_range(self.layout.id);
            return spilled.backend.scan(&range.start, &range.end, &mut |key, value| {
                take(key, decode(value)?.0)?;
                Ok(true)
            });
        }
        let mut changes: Vec<_> = (0..).map_while(|i| self.writes.change(i)).collect();
        changes.sort_unstable_by_key(|(key, ..)| *key);
        changes.into_iter().try_for_each(|(key, old, _)| take(&self.layout.store_key(key), old))
    }

    /// No rows, of the columns that the changes have.
    pub fn none(&self) -> Batch {
        Batch::insert(RecordBatch::new_empty(self.schema.clone()))
    }
}

fn encode(old: Option<&[u8]>, new: Option<&[u8]>) -> Vec<u8> {
    let (was, is) = (old.unwrap_or_default(), new.unwrap_or_default());
    let mut value = Vec::with_capacity(HEAD_BYTES + was.len() + is.len());
    value.push(old.map_or(0, |_| WAS_THERE) | new.map_or(0, |_| IS_THERE));
    value.extend_from_slice(&(was.len() as u32).to_le_bytes());
    value.extend_from_slice(was);
    value.extend_from_slice(is);
    value
}

/// What a row was and what it is.
type FromTo<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

fn decode(value: &[u8]) -> Result<FromTo<'_>> {
    let split = || {
        let (head, rows) = value.split_at_checked(HEAD_BYTES)?;
        let len = u32::from_le_bytes(head[1..].try_into().ok()?);
        let (was, is) = rows.split_at_checked(len as usize)?;
        Some(((head[0] & WAS_THERE != 0).then_some(was), (head[0] & IS_THERE != 0).then_some(is)))
    };
    split().ok_or_else(|| Error::corrupted("a change of a stored table can't be read back"))
}
