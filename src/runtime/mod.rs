//! Who runs: subtasks, the chains of operators in them, and the exchange between them.
//!
//! ```text
//!   barriers ─▶ source ─▶ chain ─▶ tail ══ inbox ══▶ chain ─▶ tail ══ inbox ══▶ chain (root)
//!               (head)    calls    partitions          calls                     keeps rows, or sinks
//! ```
//!
//! A subtask is one asynchronous task: it waits for elements and for room downstream; in between it calls operators, which are synchronous.

pub mod chain;
pub mod exchange;
pub mod inbox;
pub mod metrics;
pub mod replay;
pub mod subtask;
