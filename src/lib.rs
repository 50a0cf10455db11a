//! weir: a stateful stream processor that people drive with SQL.
//!
//! ```text
//!  SQL text ─▶ sql (parse, bind, optimise) ─▶ StreamGraph ─▶ job (subtasks, channels) ─▶ runtime
//!                       ▲                                                                  │
//!                    catalog                                                               ▼
//!       sources ─▶ exchange ─▶ operators ─▶ exchange ─▶ sinks ─▶ views (served by pgwire) and the outside world
//!          │ offsets               │ keyed state                   │ pending commits
//!          └───────────────────────┴────────── state ──────────────┘
//!                                              │ snapshot at a checkpoint barrier
//!                                          checkpoint ─▶ directory
//! ```
//!
//! | folder | is about |
//! | --- | --- |
//! | [`stream`] | what flows |
//! | [`seams`] | clock, randomness, spawning, files, hash seeds: what a test can replace |
//! | [`state`] | what is remembered |
//! | [`log`] | the engine log and stored tables |
//! | [`checkpoint`] | how it survives |
//! | [`sources`], [`operators`], [`sinks`] | where data enters, changes and leaves |
//! | [`formats`] | bytes to batches and back |
//! | [`runtime`] | who runs |
//! | [`job`] | who decides |
//! | [`server`] | who asks |
//! | [`shell`] | the REPL |

pub mod checkpoint;
pub mod formats;
pub mod job;
pub mod log;
pub mod operators;
pub mod runtime;
pub mod seams;
pub mod server;
pub mod shell;
pub mod sinks;
pub mod sources;
pub mod state;
pub mod stream;
