//! What a sink is sent first where its query has changed: what leads from all that it was sent before to its present result.
//!
//! Rows of the former result are put in as taken back, those of the present one come as they do; what is left of both when the first barrier comes goes out,
//! rows that go before ones that come. From then on everything passes.
//!
//! # Invariants
//! - What comes out up to the first barrier amounts to what came in and was put in, and has no row both ways.

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use weir_catalog::{Error, Result, RowKind};

use super::error::from_arrow;
use super::{Operator, Output};
use crate::seams::faults::{self, Fault};
use crate::seams::spawn::in_place;
use crate::state::key_codec::EncodedRows;
use crate::state::row_codec::{decode_count, encode_count};
use crate::state::{KeyCodec, StateBackend, Writes};
use crate::stream::key_group::{key_group, key_hash};
use crate::stream::{Barrier, Batch};

/// The bytes of gathered rows from which on they go into the backend.
const GATHERED_BYTES: usize = 4 << 20;
/// The most rows of a batch that goes out.
const OUTPUT_ROWS: usize = 8192;
/// Key group and state tag in front of every key.
const PREFIX_BYTES: usize = 3;

/// The operator. See the head of this file.
pub struct NetChanges {
    schema: SchemaRef,
    codec: KeyCodec,
    /// Each row with how often it stands, below zero where it goes; `None` from the first barrier on.
    weights: Option<Box<dyn StateBackend>>,
    /// What is not in `weights` yet.
    gathered: EncodedRows,
    gathered_weights: Vec<i8>,
}

impl NetChanges {
    /// Of rows of `schema`, with `backend`, which is empty, for what waits for the barrier.
    pub fn new(schema: SchemaRef, backend: Box<dyn StateBackend>) -> Result<NetChanges> {
        let types: Vec<DataType> = schema.fields().iter().map(|field| field.data_type().clone()).collect();
        let codec = KeyCodec::of_rows(&types)?;
        Ok(NetChanges { schema, codec, weights: Some(backend), gathered: EncodedRows::new(), gathered_weights: Vec::new() })
    }

    /// Takes rows of the former result, all of them or a part, to be taken back. Waits for disk.
    pub fn take_back(&mut self, rows: &Batch) -> Result<()> {
        if faults::is_planted(Fault::FormerResultKept) {
            return Ok(());
        }
        self.gather(rows, -1)
    }

    fn gather(&mut self, batch: &Batch, sign: i8) -> Result<()> {
        self.codec.encode(batch.rows.columns(), &mut self.gathered)?;
        self.gathered_weights.extend((0..batch.num_rows()).map(|row| sign * if batch.weight(row) < 0 { -1 } else { 1 }));
        if self.gathered.memory_size() < GATHERED_BYTES { Ok(()) } else { in_place(|| self.settle()) }
    }

    /// Brings what is gathered into the backend.
    fn settle(&mut self) -> Result<()> {
        let Some(backend) = &mut self.weights else { return Ok(()) };
        let (rows, weights) = (&self.gathered, &self.gathered_weights);
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_unstable_by(|a, b| rows.get(*a).cmp(rows.get(*b)));
        let mut changed = Writes::new();
        for run in order.chunk_by(|a, b| rows.get(*a) == rows.get(*b)) {
            let weight: i64 = run.iter().map(|row| i64::from(weights[*row])).sum();
            let row = rows.get(run[0]);
            if weight != 0 {
                changed.push_parts(&[&prefix(row), row], Some(&encode_count(weight)))?;
            }
        }
        changed.sort();
        let keys: Vec<&[u8]> = changed.iter().map(|(key, _)| key).collect();
        let mut former = vec![0; keys.len()];
        backend.multi_get(&keys, &mut |at, weight| {
            former[at] = decode_count(weight)?;
            Ok(())
        })?;
        let mut writes = Writes::new();
        for ((key, weight), former) in changed.iter().zip(former) {
            let weight = former + decode_count(weight.unwrap_or_default())?;
            let encoded = encode_count(weight);
            writes.push(key, (weight != 0).then_some(&encoded[..]))?;
        }
        backend.write(&writes)?;
        self.gathered.clear();
        self.gathered_weights.clear();
        Ok(())
    }

    /// Sends what is left of rows that go, or of those that come.
    fn send(&self, backend: &dyn StateBackend, kind: RowKind, out: &mut dyn Output) -> Result<()> {
        let mut rows = EncodedRows::new();
        backend.scan(&[], &[], &mut |key, weight| {
            let weight = decode_count(weight)?;
            if (weight < 0) != (kind == RowKind::Delete) {
                return Ok(true);
            }
            let row = key.get(PREFIX_BYTES..).ok_or_else(|| Error::internal("a key of a result's changes is too short"))?;
            for _ in 0..weight.unsigned_abs() {
                rows.push(row);
                if rows.len() >= OUTPUT_ROWS {
                    self.emit(&mut rows, kind, out)?;
                }
            }
            Ok(true)
        })?;
        self.emit(&mut rows, kind, out)
    }

    fn emit(&self, rows: &mut EncodedRows, kind: RowKind, out: &mut dyn Output) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let columns: Vec<ArrayRef> = self.codec.decode(rows.iter())?;
        let batch = RecordBatch::try_new(self.schema.clone(), columns).map_err(from_arrow)?;
        let kinds = vec![kind as u8; rows.len()];
        rows.clear();
        out.emit(Batch::with_kinds(batch, kinds))
    }
}

fn prefix(row: &[u8]) -> [u8; PREFIX_BYTES] {
    let [high, low] = key_group(key_hash(row)).to_be_bytes();
    [high, low, 0]
}

impl Operator for NetChanges {
    fn process(&mut self, _input: usize, batch: Batch, out: &mut dyn Output) -> Result<()> {
        if self.weights.is_none() { out.emit(batch) } else { self.gather(&batch, 1) }
    }

    fn on_barrier(&mut self, _barrier: &Barrier, out: &mut dyn Output) -> Result<()> {
        if self.weights.is_none() {
            return Ok(());
        }
        in_place(|| {
            self.settle()?;
            let Some(backend) = self.weights.take() else { return Ok(()) };
            self.send(backend.as_ref(), RowKind::Delete, out)?;
            self.send(backend.as_ref(), RowKind::Insert, out)
        })?;
        self.gathered = EncodedRows::new();
        self.gathered_weights = Vec::new();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
