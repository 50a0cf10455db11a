//! Where data enters: the sources.

pub mod connector;
pub mod nexmark;

use weir_catalog::Result;

use crate::stream::Batch;

/// A split's place, as it stands in a checkpoint: operator list state.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SplitState {
    /// Which split, e.g. `3` of a generator, a file's path and byte range.
    pub split: String,
    /// Where the next read goes on, in the connector's own form.
    pub offset: String,
}

/// What a source has for its reader.
#[derive(Debug)]
pub enum SourceEvent {
    /// Rows.
    Batch(Batch),
    /// Nothing now; ask again after this many microseconds.
    Wait(u64),
    /// Nothing any more.
    End,
}

/// One subtask's part of a connector table. Synchronous: it never waits, so that it can cut at a barrier at once.
pub trait Source: Send {
    /// The next rows, at most about `max_rows`, with just the columns that the plan reads. `now_us` is the engine's time.
    fn poll(&mut self, max_rows: usize, now_us: i64) -> Result<SourceEvent>;
    /// Where each of its splits stands.
    fn splits(&self) -> Vec<SplitState>;
    /// Whether each of its splits that `target` names has come at least as far as it says. `target` are the splits of all subtasks of the same table, as
    /// another run of the job gave them; a split that has been read to its end has come as far as it ever can.
    fn has_reached(&self, target: &[SplitState]) -> Result<bool>;
}
