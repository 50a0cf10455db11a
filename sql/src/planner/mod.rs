//! From DataFusion's logical plan to a stream graph.
//!
//! ```text
//!  LogicalPlan ─▶ lower ─▶ relations ─▶ rewrite ─▶ relations ─▶ emit ─▶ StreamGraph
//!                   │ refuse               (merge, push down)     (prune, keys, distribution, uids)
//! ```
//!
//! | file | holds |
//! | --- | --- |
//! | `uid` | the uids that hints give |
//! | `derivation` | what each operator is computed from, to tell whether state still fits |
//! | `lower` | plan nodes to relations |
//! | `refuse` | what can't run as a stream, and what to write instead |
//! | `relation` | the relations themselves |
//! | `rewrite` | rewrites that change no answer |
//! | `emit` | relations to nodes and edges |
//! | `text` | expressions as text, for names and uids |
//! | `written` | expressions as text, for people |
//!
//! # Invariants
//! - A derived uid is the operator's role and its group keys by expression text over source columns, sorted: `aggregate(auction)`, `distinct(a, b)`. Aliases,
//!   the order of columns, other columns, filters and branches do not enter it.
//! - The plan is the binder's, as written: no optimiser of DataFusion has touched it.

mod derivation;
mod emit;
mod lower;
mod refuse;
mod relation;
mod rewrite;
mod text;
mod uid;
mod written;

#[cfg(test)]
mod tests;

use std::any::Any;
use std::sync::Arc;

use datafusion::arrow::error::ArrowError;
use datafusion::common::DataFusionError;
use datafusion::logical_expr::{LogicalPlan, TableSource};
use weir_catalog::{Catalog, Error, Object, OperatorDescriptor, Result, SqlState};

pub use derivation::{branch_derivations, derivations, result_derivation, widens};
pub use text::expression_text;
pub use written::written_text;

use crate::binder::CatalogSource;
use crate::graph::{NodeOp, StreamGraph};

/// What becomes of the result of a continuous query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Kept and served under `name`; `columns` are the names of its columns.
    MaterializedView { name: String, columns: Vec<String> },
    /// Written to a connector; `columns` are the names under which it gets the columns.
    Sink { name: String, columns: Vec<String> },
}

impl Target {
    fn columns(&self) -> &[String] {
        match self {
            Target::MaterializedView { columns, .. } | Target::Sink { columns, .. } => columns,
        }
    }
}

/// Plans the query `plan`, as the binder made it, as a stream into `target`.
///
/// # Errors
/// - `0A000` with the reason for a query that can't run as a stream, and with a hint where it can be written otherwise
/// - `42701` when two result columns have the same name
/// - `42710` when a uid is given twice
/// - an error of class 22 when a constant of VALUES can't be computed
pub fn plan_stream(plan: &LogicalPlan, target: &Target, catalog: &Catalog) -> Result<StreamGraph> {
    let mut relations = relation::Relations::default();
    let root = lower::Lowering::new(&mut relations).root(plan, target.columns())?;
    let root = rewrite::rewrite(&mut relations, root)?;
    emit::emit(&relations, root, target, catalog)
}

/// Each operator with a uid and what its state looks like, for the catalog: a later plan of the same job must fit this list.
pub fn operators(graph: &StreamGraph) -> Vec<OperatorDescriptor> {
    graph
        .nodes
        .iter()
        .filter_map(|node| {
            let uid = node.uid.clone()?;
            let columns: Vec<(String, String)> =
                node.schema.fields().iter().map(|field| emit::column_descriptor(field.name(), field.data_type())).collect();
            let (operator, key, value) = match &node.op {
                NodeOp::Aggregate { group_columns, calls, .. } => {
                    let (key, value) = columns.split_at(*group_columns);
                    (if calls.is_empty() { "distinct" } else { "aggregate" }, key.to_vec(), value.to_vec())
                }
                NodeOp::Materialize => match &node.upsert_key {
                    Some(key) => {
                        let value = (0..columns.len())
                            .filter(|position| !key.contains(position))
                            .map(|position| columns[position].clone())
                            .collect();
                        ("rows", key.iter().map(|&position| columns[position].clone()).collect(), value)
                    }
                    None => ("rows", columns, Vec::new()),
                },
                NodeOp::TableScan { .. } | NodeOp::ViewScan { .. } | NodeOp::ConnectorScan { .. } => ("source", Vec::new(), Vec::new()),
                NodeOp::Values { .. } | NodeOp::Calc { .. } | NodeOp::Unnest { .. } | NodeOp::Union | NodeOp::Sink => return None,
            };
            Some(OperatorDescriptor { uid, operator: operator.to_string(), key, value })
        })
        .collect()
}

/// The catalog object behind a table of the plan.
fn object_of(source: &Arc<dyn TableSource>) -> Option<Arc<Object>> {
    let source: &dyn Any = source.as_ref();
    source.downcast_ref::<CatalogSource>().map(|source| source.object.clone())
}

/// What went wrong when a constant was computed.
fn evaluation_error(error: &DataFusionError) -> Error {
    let root = error.find_root();
    match root {
        DataFusionError::ArrowError(arrow, _) => match arrow.as_ref() {
            ArrowError::DivideByZero => Error::new(SqlState::DIVISION_BY_ZERO, "division by zero"),
            ArrowError::ArithmeticOverflow(_) => Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "value out of range"),
            ArrowError::CastError(message) => Error::new(SqlState::INVALID_TEXT_REPRESENTATION, message.clone()),
            other => Error::new(SqlState::DATA_EXCEPTION, other.to_string()),
        },
        DataFusionError::External(external) => match external.downcast_ref::<Error>() {
            Some(error) => error.clone(),
            None => Error::new(SqlState::DATA_EXCEPTION, external.to_string()),
        },
        other => Error::new(SqlState::DATA_EXCEPTION, other.strip_backtrace()),
    }
}
