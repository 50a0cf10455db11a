//! The stream graph: what the planner hands to the engine.
//!
//! Nodes stand in topological order; the last is the root. A node may feed several others, and one other several times: each is an edge of its own. Expressions are DataFusion logical expressions over the input's columns, whose names are
//! unique within one schema, so that the engine can compile them with `create_physical_expr`.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::DFSchemaRef;
use datafusion::logical_expr::Expr;
use weir_catalog::{ChangelogMode, ObjectId};

/// A node's place in [`StreamGraph::nodes`].
pub type NodeId = usize;

/// A continuous query's operators and the edges between them.
#[derive(Clone, Debug)]
pub struct StreamGraph {
    /// In topological order; the root is last.
    pub nodes: Vec<Node>,
}

/// One operator.
#[derive(Clone, Debug)]
pub struct Node {
    pub id: NodeId,
    pub op: NodeOp,
    pub inputs: Vec<Edge>,
    /// What it emits. Column names are unique; string columns are `Utf8`, timestamps microseconds without zone.
    pub schema: SchemaRef,
    /// Stands for its state; `None` for operators without.
    pub uid: Option<String>,
    /// The uid was numbered because several operators derive the same one: an edit can move it.
    pub uid_positional: bool,
    /// Columns of `schema` that identify a row of the result, if known: `Some(vec![])` where there is at most one row.
    pub upsert_key: Option<Vec<usize>>,
    /// What its output edge carries.
    pub changelog: ChangelogMode,
    /// What bounds its state, in words for EXPLAIN; empty for operators without state.
    pub bound: String,
}

/// Where an operator's input comes from, and how rows are dealt to subtasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    pub from: NodeId,
    pub distribution: Distribution,
}

/// How the rows of an edge are dealt to the receiver's subtasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Subtask i sends to subtask i.
    Forward,
    /// By the key group of these columns of the sender's schema. No columns: all rows go to the subtask that owns the empty key.
    Hash(Vec<usize>),
}

/// What an operator does.
#[derive(Clone, Debug)]
pub enum NodeOp {
    /// The rows of a stored table and their changes. `projection` are positions in the table's columns.
    TableScan { table: ObjectId, projection: Vec<usize> },
    /// The rows of a materialized view and their changes.
    ViewScan { view: ObjectId, projection: Vec<usize> },
    /// The rows of a connector table. A graph has one scan of each, however often the query names it; `projection` covers all uses.
    ConnectorScan { table: ObjectId, projection: Vec<usize> },
    /// Constant rows, sent once, by one subtask.
    Values { rows: RecordBatch },
    /// Filter, then project. `input` is the schema that the expressions are resolved against.
    Calc { input: DFSchemaRef, filter: Option<Expr>, projection: Vec<Expr> },
    /// A row for each element of the array in column `array` of the input, in their order. A column of the output is one of the input, or for `None` holds the
    /// elements. A row whose array is NULL or has no elements goes, or with `outer` stays once, with NULL.
    Unnest { array: usize, output: Vec<Option<usize>>, outer: bool },
    /// GROUP BY. The input's first `group_columns` columns are the key, the output's too, followed by one column a call.
    /// No group columns and `global`: one row even over no input (count 0, others NULL). SELECT DISTINCT has no calls.
    Aggregate { group_columns: usize, calls: Vec<AggregateCall>, global: bool },
    /// UNION ALL: all inputs have this node's schema.
    Union,
    /// The root of a materialized view: keeps the rows and serves them. Its input is distributed by `upsert_key`, or by all columns where there is none.
    Materialize,
    /// The root of a sink.
    Sink,
}

/// One call of an aggregate function. `AVG`, `BOOL_AND` and `BOOL_OR` do not occur: the binder computes them from SUM and COUNT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AggregateCall {
    pub function: AggregateFunction,
    /// The argument's column in the input; `None` for `COUNT(*)`.
    pub argument: Option<usize>,
    /// Each distinct argument value counts once (COUNT and SUM only; MIN and MAX ignore it and have it false).
    pub distinct: bool,
    /// A BOOLEAN column of the input: rows where it is not true are left out.
    pub filter: Option<usize>,
    /// COUNT: Int64. SUM of Int32: Int64; of Int64: Decimal128(38, 0); of Decimal128(p, s): Decimal128(38, s); of Float64: Float64. MIN and MAX: the argument's type.
    pub output_type: DataType,
}

/// The aggregate functions that the engine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AggregateFunction {
    Count,
    Sum,
    Min,
    Max,
}

impl AggregateFunction {
    /// Its name in SQL.
    pub fn name(self) -> &'static str {
        match self {
            AggregateFunction::Count => "count",
            AggregateFunction::Sum => "sum",
            AggregateFunction::Min => "min",
            AggregateFunction::Max => "max",
        }
    }
}

impl Node {
    /// What EXPLAIN and metrics call the operator.
    pub fn name(&self) -> &'static str {
        match &self.op {
            NodeOp::TableScan { .. } => "TableScan",
            NodeOp::ViewScan { .. } => "ViewScan",
            NodeOp::ConnectorScan { .. } => "ConnectorScan",
            NodeOp::Values { .. } => "Values",
            NodeOp::Calc { .. } => "Calc",
            NodeOp::Aggregate { calls, .. } if calls.is_empty() => "Distinct",
            NodeOp::Aggregate { .. } => "Aggregate",
            NodeOp::Union => "Union",
            NodeOp::Unnest { .. } => "Unnest",
            NodeOp::Materialize => "Materialize",
            NodeOp::Sink => "Sink",
        }
    }
}

impl StreamGraph {
    /// The root: a [`NodeOp::Materialize`] or [`NodeOp::Sink`].
    pub fn root(&self) -> &Node {
        &self.nodes[self.nodes.len() - 1]
    }

    /// The node with this uid.
    pub fn node_by_uid(&self, uid: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.uid.as_deref() == Some(uid))
    }

    /// Shared, for many readers.
    pub fn into_arc(self) -> Arc<StreamGraph> {
        Arc::new(self)
    }
}
