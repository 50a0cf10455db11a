//! The sending side of an exchange: rows are dealt to the receiver's subtasks by the key group of their key columns.

use arrow::array::{ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::{take, take_record_batch};
use weir_catalog::{Error, Result};

use super::inbox::{Closed, EdgeSender};
use super::metrics::{self, SubtaskMetrics};
use crate::operators::error::from_arrow;
use crate::seams::clock::Stopwatch;
use crate::seams::faults::{self, Fault};
use crate::state::key_codec::{EncodedRows, KeyCodec};
use crate::stream::key_group::{key_group, key_hash, subtask_of};
use crate::stream::{Batch, Element, RowKinds};

/// How a tail deals rows to the subtasks that follow.
#[derive(Debug)]
enum Deal {
    /// All to one receiver.
    Forward,
    /// By key group.
    Hash { columns: Vec<usize>, codec: KeyCodec, keys: EncodedRows, targets: Vec<Vec<u32>> },
}

/// One outgoing edge of a subtask: to every subtask of the operator that follows, or to one.
#[derive(Debug)]
pub struct OutputEdge {
    senders: Vec<EdgeSender>,
    deal: Deal,
    /// Whether the receiver may go away without failing the sender: readers of a view are dropped on their own.
    detachable: bool,
    detached: bool,
}

impl OutputEdge {
    /// All rows to the one receiver.
    pub fn forward(sender: EdgeSender) -> OutputEdge {
        OutputEdge { senders: vec![sender], deal: Deal::Forward, detachable: false, detached: false }
    }

    /// All rows to the one receiver, which may be dropped at any time.
    pub fn detachable(sender: EdgeSender) -> OutputEdge {
        OutputEdge { senders: vec![sender], deal: Deal::Forward, detachable: true, detached: false }
    }

    /// Rows by the key group of `columns`, whose types `codec` encodes, to the receivers in subtask order.
    pub fn hash(senders: Vec<EdgeSender>, columns: Vec<usize>, codec: KeyCodec) -> OutputEdge {
        if senders.len() == 1 {
            return OutputEdge { senders, deal: Deal::Forward, detachable: false, detached: false };
        }
        let targets = vec![Vec::new(); senders.len()];
        OutputEdge {
            senders,
            deal: Deal::Hash { columns, codec, keys: EncodedRows::default(), targets },
            detachable: false,
            detached: false,
        }
    }

    /// Whether the receiver of a detachable edge is gone.
    pub fn is_detached(&self) -> bool {
        self.detached
    }

    /// Sends rows, waiting for room.
    pub async fn send_batch(&mut self, batch: Batch, metrics: &SubtaskMetrics) -> Result<()> {
        if batch.num_rows() == 0 || self.detached {
            return Ok(());
        }
        match &mut self.deal {
            Deal::Forward => self.send_to(0, Element::Batch(batch), metrics).await,
            Deal::Hash { columns, codec, keys, targets } => {
                let parallelism = targets.len();
                if columns.is_empty() {
                    let target = subtask_of(key_group(key_hash(&[])), parallelism);
                    return self.send_to(target, Element::Batch(batch), metrics).await;
                }
                let key_columns: Vec<ArrayRef> = columns.iter().map(|column| batch.rows.column(*column).clone()).collect();
                keys.clear();
                codec.encode(&key_columns, keys)?;
                targets.iter_mut().for_each(Vec::clear);
                for (row, key) in keys.iter().enumerate() {
                    targets[subtask_of(key_group(key_hash(key)), parallelism)].push(row as u32);
                }
                if faults::is_planted(Fault::RowMisrouted)
                    && let Some(row) = targets[0].pop()
                {
                    targets[1].push(row);
                }
                let parts: Vec<(usize, Option<UInt32Array>)> = targets
                    .iter()
                    .enumerate()
                    .filter(|(_, rows)| !rows.is_empty())
                    .map(|(target, rows)| (target, (rows.len() < batch.num_rows()).then(|| UInt32Array::from(rows.clone()))))
                    .collect();
                for (target, rows) in parts {
                    let part = match rows {
                        None => batch.clone(),
                        Some(rows) => take_batch(&batch, &rows)?,
                    };
                    self.send_to(target, Element::Batch(part), metrics).await?;
                }
                Ok(())
            }
        }
    }

    /// Sends an element that is not a batch to every receiver.
    pub async fn broadcast(&mut self, element: &Element, metrics: &SubtaskMetrics) -> Result<()> {
        for target in 0..self.senders.len() {
            if !self.detached {
                self.send_to(target, element.clone(), metrics).await?;
            }
        }
        Ok(())
    }

    async fn send_to(&mut self, target: usize, element: Element, metrics: &SubtaskMetrics) -> Result<()> {
        let stopwatch = Stopwatch::start();
        let sent = self.senders[target].send(element).await;
        metrics::add(&metrics.back_pressured_us, stopwatch.elapsed().as_micros() as u64);
        match sent {
            Ok(()) => Ok(()),
            Err(Closed) if self.detachable => {
                self.detached = true;
                Ok(())
            }
            Err(Closed) => Err(receiver_gone()),
        }
    }
}

/// The rows of `batch` at `rows`, with their kinds.
pub fn take_batch(batch: &Batch, rows: &UInt32Array) -> Result<Batch> {
    let taken: RecordBatch = take_record_batch(&batch.rows, rows).map_err(from_arrow)?;
    let kinds = batch.kinds.as_ref().map(|kinds| RowKinds::new(rows.values().iter().map(|row| kinds.0[*row as usize]).collect()));
    Ok(Batch { rows: taken, kinds })
}

/// The values of `column` at `rows`.
pub fn take_column(column: &ArrayRef, rows: &UInt32Array) -> Result<ArrayRef> {
    take(column, rows, None).map_err(from_arrow)
}

/// What a subtask ends with when the one after it is gone: never the first cause of a failure.
pub fn receiver_gone() -> Error {
    Error::internal(RECEIVER_GONE)
}

/// Whether `error` only says that another subtask failed first.
pub fn is_receiver_gone(error: &Error) -> bool {
    error.message() == RECEIVER_GONE
}

const RECEIVER_GONE: &str = "the subtask that receives these rows is gone";
