//! The root of a materialized view: keeps the result's rows, one version for each barrier, and passes the changes on to the view's readers.
//!
//! # Invariants
//! - An epoch whose changes memory is too short for goes into the store before its barrier, as far as it is settled what a key's changes come to. No version
//!   shows any of it before the barrier.
//! - What a barrier's version shows is the net of its epoch on the version before, whatever the order in which the changes came.
//! - With an upsert key at most one row stands for a key at a barrier; without one, a row stands as often as its count says, never below zero.

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Field, SchemaRef};
use weir_catalog::{Error, Result};

use super::{Operator, Output, Stateful};
use crate::operators::error::{from_arrow, not_there};
use crate::seams::faults::{self, Fault};
use crate::state::key_codec::{EncodedRows, KeyCodec};
use crate::state::row_codec::{RowCodec, decode_count, encode_count};
use crate::state::versions::VersionedStore;
use crate::state::{StateBackend, StateDescriptor, StateSnapshot, Writes};
use crate::stream::key_group::{key_group, key_hash};
use crate::stream::{Barrier, Batch};

/// The barriers whose versions stay readable also when memory is short: enough for views of one statement to have one in common.
const LEAST_RETAINED_BARRIERS: usize = 8;
/// An epoch's changes that are fewer bytes stay in memory: to write them early would free next to nothing.
const LEAST_WRITTEN_AHEAD_BYTES: usize = 1 << 20;
/// Buffers that hold more than this many bytes are given back after an epoch.
const MOST_KEPT_BYTES: usize = 4 << 20;
/// The state tag of a view's rows.
const ROWS: u8 = 0;
/// Rows are read in batches of about as many bytes, as they are kept, at most.
const BATCH_BYTES: usize = 4 << 20;
/// Key group and state tag in front of every key.
const PREFIX_BYTES: usize = 3;

/// How a view's rows stand in its state.
///
/// With an upsert key: key = the key's columns, value = all columns. Without: key = all columns, value = a row of one BIGINT, how often the row stands.
#[derive(Debug)]
pub struct RowLayout {
    schema: SchemaRef,
    key: Option<Vec<usize>>,
    key_codec: KeyCodec,
    row_codec: RowCodec,
}

impl RowLayout {
    /// The layout of rows of `schema`, of which the columns `key` are unique where there are such.
    pub fn new(schema: SchemaRef, key: Option<Vec<usize>>) -> Result<RowLayout> {
        let types: Vec<_> = schema.fields().iter().map(|field| field.data_type().clone()).collect();
        let key_types: Vec<_> = match &key {
            Some(key) => key.iter().map(|column| types[*column].clone()).collect(),
            None => types.clone(),
        };
        let key_codec = if key.is_some() { KeyCodec::new(&key_types)? } else { KeyCodec::of_rows(&types)? };
        Ok(RowLayout { key_codec, row_codec: RowCodec::new(&types)?, schema, key })
    }

    /// The rows' schema.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The columns that are unique together, in the order in which they stand in the state's keys; `None` where there are none.
    pub fn key(&self) -> Option<&[usize]> {
        self.key.as_deref()
    }

    /// The rows of `snapshot` whose key is among `keys`: an array for each key column. Only for rows with a key.
    pub fn lookup(&self, snapshot: &dyn StateSnapshot, keys: &[ArrayRef]) -> Result<RecordBatch> {
        if self.key.is_none() || keys.is_empty() {
            return Err(Error::internal("rows are looked up by a key that they do not have"));
        }
        let mut encoded = EncodedRows::new();
        self.key_codec.encode(keys, &mut encoded)?;
        let mut rows = EncodedRows::new();
        for key in encoded.distinct() {
            if let Some(row) = snapshot.get(&[&state_prefix(key)[..], key].concat())? {
                rows.push(&row);
            }
        }
        self.decode(rows.iter().map(|row| (&[][..], row)))
    }

    /// What stands in the state: see [`RowLayout`].
    pub fn descriptor(&self) -> StateDescriptor {
        let fields = self.schema.fields();
        let count = Field::new("count", DataType::Int64, false);
        match &self.key {
            Some(key) => {
                StateDescriptor::new("rows", ROWS, key.iter().map(|column| fields[*column].as_ref()), fields.iter().map(AsRef::as_ref))
            }
            None => StateDescriptor::new("rows", ROWS, fields.iter().map(AsRef::as_ref), [&count]),
        }
    }

    fn key_columns(&self, rows: &RecordBatch) -> Vec<ArrayRef> {
        match &self.key {
            Some(key) => key.iter().map(|column| rows.column(*column).clone()).collect(),
            None => rows.columns().to_vec(),
        }
    }

    fn encode_keys(&self, rows: &RecordBatch, keys: &mut EncodedRows) -> Result<()> {
        let columns = self.key_columns(rows);
        if columns.is_empty() {
            return self.key_codec.encode_n(rows.num_rows(), keys);
        }
        self.key_codec.encode(&columns, keys)
    }

    /// The rows that state entries hold. A row that stands n times comes n times.
    pub fn decode<'a>(&self, entries: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Result<RecordBatch> {
        let (columns, rows) = if self.key.is_some() {
            let values: Vec<&[u8]> = entries.map(|(_, value)| value).collect();
            (self.row_codec.decode(values.iter().copied())?, values.len())
        } else {
            let mut keys: Vec<&[u8]> = Vec::new();
            for (key, value) in entries {
                let key = key.get(PREFIX_BYTES..).ok_or_else(|| Error::corrupted("a key in a view's state is too short"))?;
                for _ in 0..decode_count(value)? {
                    keys.push(key);
                }
            }
            (self.key_codec.decode(keys.iter().copied())?, keys.len())
        };
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows));
        // The codec decodes to the schema's types; nullability of the declared schema holds for what was encoded.
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options).map_err(from_arrow)
    }
}

/// The changes of an epoch, encoded: row i has key `keys[i]`, content `values[i]` (rows with an upsert key only) and weight `weights[i]`.
#[derive(Default)]
struct Changes {
    keys: EncodedRows,
    values: EncodedRows,
    weights: Vec<i8>,
}

impl Changes {
    fn memory_bytes(&self) -> usize {
        self.keys.memory_size() + self.values.memory_size() + self.weights.capacity()
    }

    fn push(&mut self, key: &[u8], value: Option<&[u8]>, weight: i64) {
        // Rows that stand apart for long are rare, those that do so often are rarer.
        for _ in 0..weight.unsigned_abs() {
            self.keys.push(key);
            if let Some(value) = value {
                self.values.push(value);
            }
            self.weights.push(weight.signum() as i8);
        }
    }

    fn clear(&mut self) {
        if self.memory_bytes() > MOST_KEPT_BYTES {
            *self = Changes::default();
        }
        self.keys.clear();
        self.values.clear();
        self.weights.clear();
    }

    /// The changes of each key: the rows' numbers, by key in byte order.
    fn by_key(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.weights.len() as u32).collect();
        order.sort_unstable_by(|a, b| self.keys.get(*a as usize).cmp(self.keys.get(*b as usize)));
        order
    }

    fn is_same_key(&self, a: u32, b: u32) -> bool {
        self.keys.get(a as usize) == self.keys.get(b as usize)
    }
}

/// The operator. Rows of an epoch are buffered encoded, and netted when the barrier comes.
pub struct Materialize {
    layout: std::sync::Arc<RowLayout>,
    store: VersionedStore,
    /// The present epoch's changes, as far as they are not in the store.
    changes: Changes,
    last_barrier: u64,
    /// The barriers whose versions stay readable, oldest first.
    recent: std::collections::VecDeque<u64>,
    retained_barriers: usize,
}

impl Materialize {
    /// Keeps rows of `layout` in `store`, and the last `retained_barriers` versions of them readable.
    pub fn new(layout: std::sync::Arc<RowLayout>, store: VersionedStore, retained_barriers: usize) -> Materialize {
        Materialize {
            layout,
            store,
            changes: Changes::default(),
            last_barrier: 0,
            recent: std::collections::VecDeque::new(),
            retained_barriers,
        }
    }

    /// The epoch's net changes, sorted by state key, and with `may_wait` the changes that say nothing yet: an epoch's changes come in any order, so that a row
    /// can be taken back before it is there. At the barrier nothing may wait.
    fn net(&self, may_wait: bool) -> Result<(Writes, Changes)> {
        if self.layout.key.is_some() { self.net_of_keys(may_wait) } else { self.net_of_rows(may_wait) }
    }

    /// The net changes of rows that stand as often as they are counted.
    fn net_of_rows(&self, may_wait: bool) -> Result<(Writes, Changes)> {
        let changes = &self.changes;
        let (mut writes, mut changed, mut waiting) = (Writes::new(), Writes::new(), Changes::default());
        for run in changes.by_key().chunk_by(|a, b| changes.is_same_key(*a, *b)) {
            let weight: i64 = run.iter().map(|row| i64::from(changes.weights[*row as usize])).sum();
            if weight != 0 {
                let key = changes.keys.get(run[0] as usize);
                changed.push_parts(&[&state_prefix(key), key], Some(&encode_count(weight)))?;
            }
        }
        changed.sort();
        let keys: Vec<&[u8]> = changed.iter().map(|(key, _)| key).collect();
        let mut former = vec![0i64; keys.len()];
        self.store.get_latest(&keys, &mut |at, value| {
            former[at] = decode_count(value)?;
            Ok(())
        })?;
        for ((key, weight), former) in changed.iter().zip(former) {
            let weight = decode_count(weight.unwrap_or_default())?;
            match former + weight {
                0 => writes.push(key, None)?,
                count @ 1.. => writes.push(key, Some(&encode_count(count)))?,
                _ if may_wait => waiting.push(&key[PREFIX_BYTES..], None, weight),
                _ => return Err(not_there("a row of the view")),
            }
        }
        Ok((writes, waiting))
    }

    /// The net changes of rows with an upsert key.
    fn net_of_keys(&self, may_wait: bool) -> Result<(Writes, Changes)> {
        let changes = &self.changes;
        let order = changes.by_key();
        let runs: Vec<&[u32]> = order.chunk_by(|a, b| changes.is_same_key(*a, *b)).collect();
        // Where nothing of the epoch is in the store, and all of the epoch is here, the changes alone say what comes of them.
        let former = if may_wait || self.store.is_ahead() { Some(self.stored_rows(&runs)?) } else { None };
        let (mut writes, mut waiting) = (Writes::new(), Changes::default());
        for (at, run) in runs.iter().enumerate() {
            let key = changes.keys.get(run[0] as usize);
            let former = former.as_ref().and_then(|rows| rows[at].as_deref());
            match self.net_of_key(run, former) {
                Net::Nothing => {}
                Net::Row(row) => writes.push_parts(&[&state_prefix(key), key], Some(row))?,
                Net::NoRow => writes.push_parts(&[&state_prefix(key), key], None)?,
                Net::Unsettled(weights) if may_wait => {
                    for (row, weight) in weights {
                        waiting.push(key, Some(row), weight - i64::from(former == Some(row)));
                    }
                }
                Net::Unsettled(weights) => {
                    let mut added = weights.iter().filter(|(_, weight)| *weight > 0);
                    match (added.next(), added.next()) {
                        (Some((row, 1)), None) => writes.push_parts(&[&state_prefix(key), key], Some(row))?,
                        (None, _) => writes.push_parts(&[&state_prefix(key), key], None)?,
                        _ => return Err(Error::internal("two rows stand for one key of a view at a barrier")),
                    }
                }
            }
        }
        writes.sort();
        Ok((writes, waiting))
    }

    /// The row that the store has for the key of each of `runs`.
    fn stored_rows(&self, runs: &[&[u32]]) -> Result<Vec<Option<Box<[u8]>>>> {
        let mut keys = Writes::new();
        for run in runs {
            let key = self.changes.keys.get(run[0] as usize);
            keys.push_parts(&[&state_prefix(key), key], None)?;
        }
        let mut order: Vec<usize> = (0..runs.len()).collect();
        order.sort_unstable_by(|a, b| keys.key(*a).cmp(keys.key(*b)));
        let sorted: Vec<&[u8]> = order.iter().map(|at| keys.key(*at)).collect();
        let mut rows = vec![None; runs.len()];
        self.store.get_latest(&sorted, &mut |at, row| {
            rows[order[at]] = Some(row.into());
            Ok(())
        })?;
        Ok(rows)
    }

    /// What the changes `run` of one key come to, where `former` is the row that the store has for it; `None` also where it need not be known.
    fn net_of_key<'a>(&'a self, run: &[u32], former: Option<&'a [u8]>) -> Net<'a> {
        let changes = &self.changes;
        if let ([row], None) = (run, former)
            && changes.weights[*row as usize] > 0
        {
            return Net::Row(changes.values.get(*row as usize));
        }
        // Each content, and how often it stands.
        let mut weights: Vec<(&[u8], i64)> = former.map(|row| (row, 1)).into_iter().collect();
        for row in run {
            let (value, weight) = (changes.values.get(*row as usize), i64::from(changes.weights[*row as usize]));
            match weights.iter_mut().find(|(known, _)| *known == value) {
                Some((_, sum)) => *sum += weight,
                None => weights.push((value, weight)),
            }
        }
        let settled = weights.iter().all(|(_, weight)| *weight >= 0);
        let mut standing = weights.iter().filter(|(_, weight)| *weight != 0);
        match (standing.next(), standing.next()) {
            (None, _) if former.is_some() => Net::NoRow,
            (None, _) => Net::Nothing,
            (Some((row, 1)), None) if former == Some(row) => Net::Nothing,
            (Some((row, 1)), None) if settled => Net::Row(row),
            _ => Net::Unsettled(weights),
        }
    }

    /// Moves what is settled of the present epoch's changes into the store, where no version shows it yet.
    fn write_ahead(&mut self) -> Result<()> {
        // The changes of a key say what comes of them only together with the row that it has.
        let (writes, waiting) = self.net(true)?;
        self.changes = waiting;
        self.store.write_ahead(&writes)
    }
}

/// What the changes of one key come to.
enum Net<'a> {
    Nothing,
    Row(&'a [u8]),
    NoRow,
    /// How often each row stands, the former one too: other changes of the epoch are to come, or the row before is not known.
    Unsettled(Vec<(&'a [u8], i64)>),
}

/// What stands before an encoded key in a view's state.
fn state_prefix(key: &[u8]) -> [u8; PREFIX_BYTES] {
    let [high, low] = key_group(key_hash(key)).to_be_bytes();
    [high, low, ROWS]
}

impl Operator for Materialize {
    fn process(&mut self, _input: usize, batch: Batch, out: &mut dyn Output) -> Result<()> {
        let changes = &mut self.changes;
        self.layout.encode_keys(&batch.rows, &mut changes.keys)?;
        if self.layout.key.is_some() {
            self.layout.row_codec.encode_into(batch.rows.columns(), batch.num_rows(), &mut changes.values)?;
        }
        match &batch.kinds {
            None => changes.weights.resize(changes.weights.len() + batch.num_rows(), 1),
            Some(kinds) => changes.weights.extend(kinds.0.iter().map(|kind| 1 - 2 * (*kind & 1) as i8)),
        }
        out.emit(batch)
    }

    fn on_barrier(&mut self, barrier: &Barrier, _out: &mut dyn Output) -> Result<()> {
        self.last_barrier = barrier.number;
        self.recent.push_back(barrier.number);
        if self.recent.len() > self.retained_barriers {
            self.recent.pop_front();
        }
        if let Some(oldest) = self.recent.front() {
            self.store.release(*oldest)?;
        }
        if self.changes.weights.is_empty() {
            return self.store.advance(barrier.number);
        }
        let (mut writes, _) = self.net(false)?;
        self.changes.clear();
        if faults::is_planted(Fault::HalfEpochPublished) && self.layout.key.is_some() {
            let mut published = Writes::new();
            for (at, (key, row)) in writes.iter().enumerate() {
                if at < writes.len().div_ceil(2) {
                    published.push(key, row)?;
                } else {
                    self.changes.push(&key[PREFIX_BYTES..], Some(row.unwrap_or_default()), if row.is_some() { 1 } else { -1 });
                }
            }
            writes = published;
        }
        self.store.write(barrier.number, writes)
    }

    fn flush(&mut self) -> Result<()> {
        self.store.fold(self.last_barrier)
    }

    fn stateful(&mut self) -> Option<&mut dyn Stateful> {
        Some(self)
    }
}

impl Stateful for Materialize {
    fn states(&self) -> Vec<StateDescriptor> {
        vec![self.layout.descriptor()]
    }

    fn backend_mut(&mut self) -> &mut dyn StateBackend {
        self.store.backend_mut()
    }

    fn memory_bytes(&self) -> usize {
        self.store.overlay_bytes() + self.changes.memory_bytes()
    }

    fn shrink(&mut self, target_bytes: usize, _out: &mut dyn Output) -> Result<()> {
        self.store.fold(self.last_barrier)?;
        // What was folded stays in memory for the readers of the barriers before: then fewer of them stay readable.
        while self.memory_bytes() > target_bytes && self.recent.len() > LEAST_RETAINED_BARRIERS {
            self.recent.drain(..self.recent.len() - (self.recent.len() / 2).max(LEAST_RETAINED_BARRIERS));
            if let Some(oldest) = self.recent.front() {
                self.store.release(*oldest)?;
            }
        }
        if self.memory_bytes() > target_bytes && self.changes.memory_bytes() >= LEAST_WRITTEN_AHEAD_BYTES {
            self.write_ahead()?;
        }
        Ok(())
    }
}

/// Reads a view's rows out of a snapshot of its state, a batch at a time.
pub struct RowReader {
    layout: std::sync::Arc<RowLayout>,
    snapshot: std::sync::Arc<dyn StateSnapshot>,
    /// Where the next read begins; `None` at the end.
    from: Option<Vec<u8>>,
    /// How often the row there was given before.
    given: i64,
}

impl RowReader {
    /// Reads all rows of `snapshot`.
    pub fn new(layout: std::sync::Arc<RowLayout>, snapshot: std::sync::Arc<dyn StateSnapshot>) -> RowReader {
        RowReader { layout, snapshot, from: Some(Vec::new()), given: 0 }
    }

    /// The next rows, `max_rows` at most and fewer where they are wide; `None` at the end.
    pub fn next_batch(&mut self, max_rows: usize) -> Result<Option<RecordBatch>> {
        let Some(from) = self.from.take() else { return Ok(None) };
        let mut entries: Vec<(Box<[u8]>, Box<[u8]>)> = Vec::new();
        let (mut rows, mut bytes) = (0, 0);
        for entry in self.snapshot.iter(&from, &[]) {
            let (key, mut value) = entry?;
            if rows >= max_rows || bytes >= BATCH_BYTES {
                self.from = Some(key.into_vec());
                break;
            }
            let row_bytes = key.len() + value.len();
            if self.layout.key.is_some() {
                (rows, bytes) = (rows + 1, bytes + row_bytes);
                entries.push((key, value));
                continue;
            }
            // A row may stand any number of times.
            let left = decode_count(&value)? - std::mem::take(&mut self.given);
            let most = (max_rows - rows).min((BATCH_BYTES - bytes).div_ceil(row_bytes.max(1)));
            let times = usize::try_from(left).unwrap_or(0).min(most);
            if times < usize::try_from(left).unwrap_or(0) {
                self.given = decode_count(&value)? - left + times as i64;
                self.from = Some(key.to_vec());
            }
            value = encode_count(times as i64).into();
            (rows, bytes) = (rows + times, bytes + times * row_bytes);
            entries.push((key, value));
            if self.from.is_some() {
                break;
            }
        }
        if entries.is_empty() {
            return Ok(None);
        }
        self.layout.decode(entries.iter().map(|(key, value)| (key.as_ref(), value.as_ref()))).map(Some)
    }
}

#[cfg(test)]
mod tests;
