//! What flows: batches of rows with their kinds, watermarks, barriers and the end of input, and the key groups that say where a row goes.
//!
//! Nothing here does I/O or knows who runs it.

pub mod barrier;
pub mod element;
pub mod key_group;

pub use barrier::{Barrier, BarrierNumber, CommitSeq};
pub use element::{Batch, Element, RowKinds};
pub use key_group::{KeyGroup, KeyGroupRange, MAX_PARALLELISM};
