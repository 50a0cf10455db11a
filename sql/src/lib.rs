//! SQL text to a stream graph. No I/O, and nothing of the engine: what comes out is a plain description of operators.
//!
//! ```text
//!  text ─▶ parser ─▶ Statement ─▶ binder ─▶ logical plan ─┬─▶ planner ─▶ StreamGraph ─▶ (the engine)
//!             (dialect)             (catalog, functions)   └─▶ (the server: batch execution)
//! ```

pub mod binder;
pub mod continuous;
pub mod dialect;
pub mod explain;
pub mod functions;
pub mod graph;
pub mod parser;
pub mod planner;
pub mod statement;

pub use continuous::{QueryTarget, bind_continuous, plan_continuous, plan_query};
pub use planner::{branch_derivations, derivations, operators, result_derivation, widens};
