//! What a subtask counts while it runs, read by the system views.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counters of one operator in one subtask. All only grow, but for the gauges.
#[derive(Debug, Default)]
pub struct OperatorMetrics {
    pub rows_in: AtomicU64,
    pub rows_out: AtomicU64,
    /// Gauges: what the state holds, as of the last barrier.
    pub state_rows: AtomicU64,
    pub state_bytes: AtomicU64,
    pub memory_bytes: AtomicU64,
}

/// Counters of one subtask.
#[derive(Debug, Default)]
pub struct SubtaskMetrics {
    /// Time in operator code, microseconds.
    pub busy_us: AtomicU64,
    /// Time that a send waited for room downstream, microseconds.
    pub back_pressured_us: AtomicU64,
    /// Time that the last barrier waited for the other inputs, microseconds.
    pub alignment_us: AtomicU64,
    /// Gauge: records that a source has left out because they could not be read.
    pub bad_records: AtomicU64,
    /// Set by a source that sent rows since it was last cleared.
    pub new_rows: AtomicBool,
}

/// Adds to a counter that one subtask writes and others read.
pub fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// Sets a gauge.
pub fn set(gauge: &AtomicU64, to: u64) {
    gauge.store(to, Ordering::Relaxed);
}

/// Reads a counter or gauge.
pub fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
