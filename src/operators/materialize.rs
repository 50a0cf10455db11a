//! The root of a materialized view: keeps the result's rows, one version for each barrier, and passes the changes on to the view's readers.
//!
//! # Invariants
//! - What a barrier's version shows is the net of its epoch on the version before, whatever the order in which the changes came.
//! - With an upsert key at most one row stands for a key at a barrier; without one, a row stands as often as its count says, never below zero.

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use weir_catalog::{Error, Result};

use super::{Operator, Output, Stateful};
use crate::operators::error::from_arrow;
use crate::state::key_codec::{EncodedRows, KeyCodec};
use crate::state::row_codec::RowCodec;
use crate::state::versions::VersionedStore;
use crate::state::{StateBackend, StateSnapshot, Writes};
use crate::stream::key_group::{key_group, key_hash};
use crate::stream::{Barrier, Batch};

/// The state tag of a view's rows.
const ROWS: u8 = 0;
/// Key group and state tag in front of every key.
const PREFIX_BYTES: usize = 3;

/// How a view's rows stand in its state.
///
/// With an upsert key: key = the key's columns, value = all columns. Without: key = all columns, value = how often the row stands (8 bytes, little-endian).
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

fn decode_count(value: &[u8]) -> Result<i64> {
    let bytes: [u8; 8] = value.try_into().map_err(|_| Error::corrupted("a row count in a view's state is not eight bytes long"))?;
    Ok(i64::from_le_bytes(bytes))
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
        let mut writes: Writes = Vec::new();
        if self.layout.key.is_some() {
            for run in order.chunk_by(|a, b| self.keys.get(*a as usize) == self.keys.get(*b as usize)) {
                if let Some(change) = self.net_of_key(run)? {
                    writes.push((self.state_key(self.keys.get(run[0] as usize)), change));
                }
            }
            writes.sort_unstable_by(|a, b| a.0.cmp(&b.0));
            return Ok(writes);
        }
        let mut counts: Vec<(Vec<u8>, i64)> = Vec::new();
        for run in order.chunk_by(|a, b| self.keys.get(*a as usize) == self.keys.get(*b as usize)) {
            let weight: i64 = run.iter().map(|row| i64::from(self.weights[*row as usize])).sum();
            if weight != 0 {
                counts.push((self.state_key(self.keys.get(run[0] as usize)), weight));
            }
        }
        counts.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        {
            let keys: Vec<&[u8]> = counts.iter().map(|(key, _)| key.as_slice()).collect();
            let mut former = vec![0i64; keys.len()];
            self.store.get_latest(&keys, &mut |at, value| {
                former[at] = decode_count(value)?;
                Ok(())
            })?;
            for (count, former) in counts.iter_mut().zip(former) {
                count.1 += former;
            }
        }
        for (key, count) in counts {
            match count {
                0 => writes.push((key, None)),
                1.. => writes.push((key, Some(count.to_le_bytes().to_vec()))),
                _ => return Err(Error::internal("a row was retracted from a view more often than it was added")),
            }
        }
        Ok(writes)
    }

    /// The net change of one key: its new row, its deletion, or nothing.
    fn net_of_key(&self, run: &[u32]) -> Result<Option<Option<Vec<u8>>>> {
        if let [row] = run {
            let row = *row as usize;
            return Ok(Some((self.weights[row] > 0).then(|| self.values.get(row).to_vec())));
        }
        let mut weights: Vec<(&[u8], i64)> = Vec::new();
        for row in run {
            let (value, weight) = (self.values.get(*row as usize), i64::from(self.weights[*row as usize]));
            match weights.iter_mut().find(|(known, _)| *known == value) {
                Some((_, sum)) => *sum += weight,
                None => weights.push((value, weight)),
            }
        }
        let mut added = weights.iter().filter(|(_, weight)| *weight > 0);
        match (added.next(), added.next()) {
            (Some((value, 1)), None) => Ok(Some(Some(value.to_vec()))),
            (None, _) => Ok(weights.iter().any(|(_, weight)| *weight < 0).then_some(None)),
            _ => Err(Error::internal("two rows stand for one key of a view at a barrier")),
        }
    }

    fn state_key(&self, key: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(PREFIX_BYTES + key.len());
        bytes.extend_from_slice(&key_group(key_hash(key)).to_be_bytes());
        bytes.push(ROWS);
        bytes.extend_from_slice(key);
        bytes
    }
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
        let writes = self.net()?;
        self.keys.clear();
        self.values.clear();
        self.weights.clear();
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
    fn backend_mut(&mut self) -> &mut dyn StateBackend {
        self.store.backend_mut()
    }

    fn memory_bytes(&self) -> usize {
        self.store.overlay_bytes() + self.keys.memory_size() + self.values.memory_size() + self.weights.len()
    }

    fn shrink(&mut self, _target_bytes: usize, _out: &mut dyn Output) -> Result<()> {
        self.store.fold(self.last_barrier)
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
