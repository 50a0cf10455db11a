//! The elements of an edge, and nothing else travels on one.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::ScalarBuffer;
use weir_catalog::RowKind;

use super::barrier::Barrier;

/// The kind of each row of a batch, as [`RowKind`] numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct RowKinds(pub ScalarBuffer<u8>);

impl RowKinds {
    /// The kinds of `kinds`, in order.
    pub fn new(kinds: Vec<u8>) -> RowKinds {
        debug_assert!(kinds.iter().all(|kind| RowKind::from_u8(*kind).is_some()));
        RowKinds(ScalarBuffer::from(kinds))
    }

    /// The weight of row `i`: `+1` where it adds a row, `-1` where it takes one away.
    #[inline]
    pub fn weight(&self, i: usize) -> i64 {
        1 - 2 * i64::from(self.0[i] & 1)
    }

    /// The kinds of `len` rows from `offset`, without copying.
    pub fn slice(&self, offset: usize, len: usize) -> RowKinds {
        RowKinds(self.0.slice(offset, len))
    }
}

/// Rows of one schema, and what each does to the result.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The rows.
    pub rows: RecordBatch,
    /// One kind a row; `None` where every row is `+I`.
    pub kinds: Option<RowKinds>,
}

impl Batch {
    /// Rows that are all `+I`.
    pub fn insert(rows: RecordBatch) -> Batch {
        Batch { rows, kinds: None }
    }

    /// Rows with a kind each.
    pub fn with_kinds(rows: RecordBatch, kinds: Vec<u8>) -> Batch {
        debug_assert_eq!(rows.num_rows(), kinds.len());
        let kinds = if kinds.iter().all(|kind| *kind == RowKind::Insert as u8) { None } else { Some(RowKinds::new(kinds)) };
        Batch { rows, kinds }
    }

    /// The number of rows.
    pub fn num_rows(&self) -> usize {
        self.rows.num_rows()
    }

    /// The weight of row `i`: `+1` or `-1`.
    #[inline]
    pub fn weight(&self, i: usize) -> i64 {
        self.kinds.as_ref().map_or(1, |kinds| kinds.weight(i))
    }

    /// The kind of row `i`.
    pub fn kind(&self, i: usize) -> RowKind {
        self.kinds.as_ref().and_then(|kinds| RowKind::from_u8(kinds.0[i])).unwrap_or(RowKind::Insert)
    }

    /// `len` rows from `offset`, without copying.
    pub fn slice(&self, offset: usize, len: usize) -> Batch {
        Batch { rows: self.rows.slice(offset, len), kinds: self.kinds.as_ref().map(|kinds| kinds.slice(offset, len)) }
    }

    /// The memory it holds, bytes. Rows without columns hold none; they count as a byte each, so that a queue of them is bounded too.
    pub fn size(&self) -> usize {
        let bytes = self.rows.get_array_memory_size() + self.kinds.as_ref().map_or(0, |kinds| kinds.0.len());
        bytes.max(self.num_rows())
    }
}

/// What travels on an edge.
#[derive(Clone, Debug)]
pub enum Element {
    /// Rows.
    Batch(Batch),
    /// No row with an event time before this, microseconds, follows (late ones aside).
    Watermark(i64),
    /// The sender has nothing now: don't wait for its watermark.
    Idle,
    /// The end of an epoch.
    Barrier(Arc<Barrier>),
    /// Nothing follows. The edge counts as aligned from here on.
    End,
}
