//! Who decides: from a stream graph to running subtasks, the barrier clock, checkpoints, restarts, and what clients read.
//!
//! ```text
//!   Engine (commits, reads, DDL) ──▶ Manager (one task: barriers, checkpoints, life cycle) ──▶ subtasks
//!                                        ▲                                                       │
//!                                        └────────────────────── events ─────────────────────────┘
//! ```

pub mod build;
pub mod compatibility;
mod conversion;
pub mod difference;
pub mod engine;
pub mod feed;
pub mod former;
pub mod identity;
mod left_tables;
pub mod manager;
mod matching;
pub mod numbers;
pub mod plan;
pub mod savepoint_start;
pub mod savepoints;
pub mod settings;
pub mod sink_change;
pub mod status;
pub mod storage;
pub mod stored_state;
pub mod upgrade;
pub mod view;

pub use engine::Engine;
