//! SQL text to a stream graph. No I/O, and nothing of the engine: what comes out is a plain description of operators.
//!
//! ```text
//!  text ─▶ parser ─▶ Statement ─▶ binder ─▶ logical plan ─┬─▶ planner ─▶ StreamGraph ─▶ (the engine)
//!             (dialect)             (catalog, functions)   └─▶ (the server: batch execution)
//! ```

pub mod graph;
pub mod statement;
