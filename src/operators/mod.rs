//! Where data changes: the operators.
//!
//! An operator holds logic. State, timers and output are given to it; it knows neither runtime nor checkpoint nor connector.

use futures::future::BoxFuture;
use weir_catalog::Result;

use crate::state::{StateBackend, StateDescriptor};
use crate::stream::{Barrier, Batch};

pub mod aggregate;
pub mod calc;
pub mod error;
pub mod materialize;
pub mod net_changes;
pub mod unnest;

pub use aggregate::{Aggregate, AggregateSpec};
pub use calc::Calc;
pub use materialize::Materialize;
pub use net_changes::NetChanges;
pub use unnest::Unnest;

/// What an operator is given with each call.
pub trait Output {
    /// Sends rows on. An operator may send at any time within an epoch.
    fn emit(&mut self, batch: Batch) -> Result<()>;
}

/// A step of a job's subtask: synchronous code over columns.
///
/// # Contract
/// Within an epoch changes of one key may come in any order: an epoch is a multiset. An operator may see a count below zero until the barrier, never at it.
pub trait Operator: Send {
    /// Takes rows from input number `input`.
    fn process(&mut self, input: usize, batch: Batch, out: &mut dyn Output) -> Result<()>;

    /// The end of an epoch, all inputs aligned. Whatever the operator still holds back of the epoch's net change goes out here.
    fn on_barrier(&mut self, _barrier: &Barrier, _out: &mut dyn Output) -> Result<()> {
        Ok(())
    }

    /// What has to be waited for before it takes more rows; asked after each batch. So a slow sink slows its source, and can be stopped meanwhile.
    fn backlog(&mut self) -> Option<BoxFuture<'static, Result<()>>> {
        None
    }

    /// A watermark, microseconds, that holds over all inputs.
    fn on_watermark(&mut self, _watermark_us: i64, _out: &mut dyn Output) -> Result<()> {
        Ok(())
    }

    /// Writes everything that the operator remembers in memory only into its state backend. Called before a snapshot.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// The operator's state, where it has any.
    fn stateful(&mut self) -> Option<&mut dyn Stateful> {
        None
    }
}

/// What an operator with keyed state has beside [`Operator`]: what its subtask needs to snapshot the state and to keep memory bounded.
pub trait Stateful: Operator {
    /// What its states look like: it stands in every checkpoint, and a restore compares it with the operator as it is then.
    fn states(&self) -> Vec<StateDescriptor>;

    /// The backend that the state is in after [`Operator::flush`].
    fn backend_mut(&mut self) -> &mut dyn StateBackend;

    /// The memory that the operator's caches and its part of the epoch hold, bytes; the backend's own not counted.
    fn memory_bytes(&self) -> usize;

    /// Writes what changed into the backend, and forgets what was used longest ago until about `target_bytes` are held. Called at a batch boundary; within
    /// an epoch it emits, for what is forgotten can't be compared at the barrier.
    fn shrink(&mut self, target_bytes: usize, out: &mut dyn Output) -> Result<()>;
}
