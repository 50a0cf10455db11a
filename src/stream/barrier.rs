//! Barriers: the marks that cut every stream into epochs.
//!
//! # Invariants
//! - Numbers and times only grow, also across restarts of the process; a number is used once.
//! - The commit sequence is fixed when the barrier is made: every reader of a stored table cuts at that commit.

/// A barrier's number.
pub type BarrierNumber = u64;

/// A commit's place in the engine log. The first commit is 1; 0 means before all commits.
pub type CommitSeq = u64;

/// A mark that flows with the data. What came before it on an edge belongs to its epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Barrier {
    /// Its number.
    pub number: BarrierNumber,
    /// The last commit of the engine log that belongs to its epoch.
    pub commit: CommitSeq,
    /// The engine's time at this barrier, microseconds since 1970 UTC: the only clock that operators know.
    pub time_us: i64,
    /// Whether every subtask that it comes to takes a snapshot of its state here. The jobs of a group agree on it, others may not.
    pub checkpoint: bool,
}
