//! The root of a materialized view: keeps the result's rows, one version for each barrier, and passes the changes on to the view's readers.
//!
//! # Invariants
//! - What a barrier's version shows is the net of its epoch on the version before, whatever the order in which the changes came.
//! - With an upsert key at most one row stands for a key at a barrier; without one, a row stands as often as its count says, never below zero.

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Field, SchemaRef};
use weir_catalog::{Error, Result};

use super::{Operator, Output, Stateful};
use crate::operators::error::from_arrow;
use crate::seams::faults::{self, Fault};
use crate::state::key_codec::{EncodedRows, KeyCodec};
use crate::state::row_codec::{RowCodec, decode_count, encode_count};
use crate::state::versions::VersionedStore;
use crate::state::{StateBackend, StateDescriptor, StateSnapshot, Writes};
use crate::stream::key_group::{key_group, key_hash};
use crate::stream::{Barrier, Batch};

/// The barriers whose versions stay readable also when memory is short: enough for views of one statement to have one in common.
const LEAST_RETAINED_BARRIERS: usize = 8;
/// The state tag of a view's rows.
const ROWS: u8 = 0;
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
        Ok(RowLayout { key_codec: KeyCodec::new(&key_types)?, row_codec: RowCodec::new(&types)?, schema, key })
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
    fn descriptor(&self) -> StateDescriptor {
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

/// The operator. Rows of an epoch are buffered encoded, and netted when the barrier comes.
pub struct Materialize {
    layout: std::sync::Arc<RowLayout>,
    store: VersionedStore,
    /// The present epoch's changes: row i has key `keys[i]`, content `values[i]` and weight `weights[i]`.
    keys: EncodedRows,
    values: EncodedRows,
    weights: Vec<i8>,
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
            keys: EncodedRows::default(),
            values: EncodedRows::default(),
            weights: Vec::new(),
            last_barrier: 0,
            recent: std::collections::VecDeque::new(),
            retained_barriers,
        }
    }

    /// The epoch's net changes, sorted by state key.
    fn net(&mut self) -> Result<Writes> {
        let mut order: Vec<u32> = (0..self.weights.len() as u32).collect();
        order.sort_unstable_by(|a, b| self.keys.get(*a as usize).cmp(self.keys.get(*b as usize)));
        let mut writes = Writes::new();
        if self.layout.key.is_some() {
            for run in order.chunk_by(|a, b| self.keys.get(*a as usize) == self.keys.get(*b as usize)) {
                if let Some(row) = self.net_of_key(run)? {
                    let key = self.keys.get(run[0] as usize);
                    writes.push_parts(&[&state_prefix(key), key], row.map(|row| self.values.get(row as usize)))?;
                }
            }
            writes.sort();
            return Ok(writes);
        }
        let mut changed = Writes::new();
        for run in order.chunk_by(|a, b| self.keys.get(*a as usize) == self.keys.get(*b as usize)) {
            let weight: i64 = run.iter().map(|row| i64::from(self.weights[*row as usize])).sum();
            if weight != 0 {
                let key = self.keys.get(run[0] as usize);
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
            let count = former + decode_count(weight.unwrap_or_default())?;
            match count {
                0 => writes.push(key, None)?,
                1.. => writes.push(key, Some(&encode_count(count)))?,
                _ => return Err(Error::internal("a row was retracted from a view more often than it was added")),
            }
        }
        Ok(writes)
    }

    /// The net change of one key, whose changes are `run`: which of the epoch's rows it has now, that it has none, or nothing.
    fn net_of_key(&self, run: &[u32]) -> Result<Option<Option<u32>>> {
        if let [row] = run {
            return Ok(Some((self.weights[*row as usize] > 0).then_some(*row)));
        }
        // Each content with a row that has it, and its weight.
        let mut weights: Vec<(u32, i64)> = Vec::new();
        for row in run {
            let (value, weight) = (self.values.get(*row as usize), i64::from(self.weights[*row as usize]));
            match weights.iter_mut().find(|(known, _)| self.values.get(*known as usize) == value) {
                Some((_, sum)) => *sum += weight,
                None => weights.push((*row, weight)),
            }
        }
        let mut added = weights.iter().filter(|(_, weight)| *weight > 0);
        match (added.next(), added.next()) {
            (Some((row, 1)), None) => Ok(Some(Some(*row))),
            (None, _) => Ok(weights.iter().any(|(_, weight)| *weight < 0).then_some(None)),
            _ => Err(Error::internal("two rows stand for one key of a view at a barrier")),
        }
    }
}

/// What stands before an encoded key in a view's state.
fn state_prefix(key: &[u8]) -> [u8; PREFIX_BYTES] {
    let [high, low] = key_group(key_hash(key)).to_be_bytes();
    [high, low, ROWS]
}

impl Operator for Materialize {
    fn process(&mut self, _input: usize, batch: Batch, out: &mut dyn Output) -> Result<()> {
        self.layout.encode_keys(&batch.rows, &mut self.keys)?;
        if self.layout.key.is_some() {
            self.layout.row_codec.encode_into(batch.rows.columns(), batch.num_rows(), &mut self.values)?;
        }
        match &batch.kinds {
            None => self.weights.resize(self.weights.len() + batch.num_rows(), 1),
            Some(kinds) => self.weights.extend(kinds.0.iter().map(|kind| 1 - 2 * (*kind & 1) as i8)),
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
        if self.weights.is_empty() {
            return self.store.advance(barrier.number);
        }
        let mut writes = self.net()?;
        self.keys.clear();
        self.values.clear();
        self.weights.clear();
        if faults::is_planted(Fault::HalfEpochPublished) && self.layout.key.is_some() {
            let mut published = Writes::new();
            for (at, (key, row)) in writes.iter().enumerate() {
                if at < writes.len().div_ceil(2) {
                    published.push(key, row)?;
                } else {
                    self.keys.push(&key[PREFIX_BYTES..]);
                    self.values.push(row.unwrap_or_default());
                    self.weights.push(if row.is_some() { 1 } else { -1 });
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
        self.store.overlay_bytes() + self.keys.memory_size() + self.values.memory_size() + self.weights.len()
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
        Ok(())
    }
}

/// Reads a view's rows out of a snapshot of its state, a batch at a time.
pub struct RowReader {
    layout: std::sync::Arc<RowLayout>,
    snapshot: std::sync::Arc<dyn StateSnapshot>,
    /// Where the next read begins; `None` at the end.
    from: Option<Vec<u8>>,
}

impl RowReader {
    /// Reads all rows of `snapshot`.
    pub fn new(layout: std::sync::Arc<RowLayout>, snapshot: std::sync::Arc<dyn StateSnapshot>) -> RowReader {
        RowReader { layout, snapshot, from: Some(Vec::new()) }
    }

    /// The next rows, about `max_rows`; `None` at the end.
    pub fn next_batch(&mut self, max_rows: usize) -> Result<Option<RecordBatch>> {
        let Some(from) = self.from.take() else { return Ok(None) };
        let mut entries: Vec<(Box<[u8]>, Box<[u8]>)> = Vec::new();
        for entry in self.snapshot.iter(&from, &[]) {
            let entry = entry?;
            if entries.len() == max_rows {
                self.from = Some(entry.0.into_vec());
                break;
            }
            entries.push(entry);
        }
        if entries.is_empty() {
            return Ok(None);
        }
        self.layout.decode(entries.iter().map(|(key, value)| (key.as_ref(), value.as_ref()))).map(Some)
    }
}
