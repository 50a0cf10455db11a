//! EXPLAIN of a continuous query: its operators as an indented tree, the root first.
//!
//! Each operator has a line of what it does and one of its uid, key, changelog mode, parallelism and how its input is dealt to subtasks; one with state also
//! says what bounds it. An operator that feeds several others is shown where it is first met, with a number, and referred to by it from then on.
//!
//! # Invariants
//! The text depends on nothing but the graph and the parallelism.

use std::collections::HashMap;

use datafusion::logical_expr::Expr;

use crate::graph::{AggregateCall, Distribution, Edge, Node, NodeId, NodeOp, StreamGraph};
use crate::planner::{expression_text, written_text};

/// The lines of the EXPLAIN of `graph`, whose operators have `parallelism` subtasks each.
pub fn explain(graph: &StreamGraph, parallelism: usize) -> Vec<String> {
    let mut explainer = Explainer::new(graph, parallelism);
    for edge in graph.nodes.iter().flat_map(|node| &node.inputs) {
        explainer.readers[edge.from] += 1;
    }
    explainer.node(graph.root().id, None, 0);
    explainer.lines
}

/// What the EXPLAIN of `graph` calls the operator `id`, shortened: for errors that come from it.
pub fn operator(graph: &StreamGraph, id: NodeId) -> String {
    const LONGEST_CHARACTERS: usize = 200;
    let node = &graph.nodes[id];
    let line = format!("{}{}", node.name(), Explainer::new(graph, 1).work(node));
    match line.char_indices().nth(LONGEST_CHARACTERS) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

/// What stands in place of columns where rows have none.
const NO_COLUMNS: &str = "no columns";

struct Explainer<'a> {
    graph: &'a StreamGraph,
    parallelism: usize,
    readers: Vec<usize>,
    /// Parts of column names that are expressions as the binder made them, and as they were written.
    names: Vec<(String, String)>,
    /// The numbers of the shared operators that have been shown.
    shared: HashMap<NodeId, usize>,
    lines: Vec<String>,
}

/// The names of columns that are made of an expression which was written in another way, longest first.
fn readable_names(graph: &StreamGraph) -> Vec<(String, String)> {
    let mut names = Vec::new();
    for node in &graph.nodes {
        let NodeOp::Calc { projection, .. } = &node.op else { continue };
        for (expr, field) in projection.iter().zip(node.schema.fields()) {
            if *field.name() == expression_text(expr) {
                let name = (field.name().clone(), written_text(expr));
                if name.0 != name.1 && !names.contains(&name) {
                    names.push(name);
                }
            }
        }
    }
    names.sort_by(|(a, _), (b, _)| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    names
}

impl<'a> Explainer<'a> {
    fn new(graph: &'a StreamGraph, parallelism: usize) -> Explainer<'a> {
        let readers = vec![0; graph.nodes.len()];
        Explainer { graph, parallelism, readers, names: readable_names(graph), shared: HashMap::new(), lines: Vec::new() }
    }
}

impl Explainer<'_> {
    /// A column's name, or the expression in it as it was written.
    fn readable(&self, name: &str) -> String {
        let mut readable = name.to_string();
        for (internal, written) in &self.names {
            if readable.contains(internal.as_str()) {
                readable = readable.replace(internal.as_str(), written);
            }
        }
        readable
    }

    fn node(&mut self, id: NodeId, edge: Option<&Edge>, depth: usize) {
        let graph = self.graph;
        let node = &graph.nodes[id];
        let (arrow, indent) = match depth {
            0 => (String::new(), String::new()),
            _ => (format!("{}-> ", "   ".repeat(depth - 1)), "   ".repeat(depth)),
        };
        if let Some(number) = self.shared.get(&id) {
            self.lines.push(format!("{arrow}{} [see {number} above]", node.name()));
            if let Some(edge) = edge {
                self.lines.push(format!("{indent}     {}", self.sent(edge)));
            }
            return;
        }
        let mut mark = String::new();
        if self.readers[id] > 1 {
            let number = self.shared.len() + 1;
            self.shared.insert(id, number);
            mark = format!(" [{number}]");
        }
        self.lines.push(format!("{arrow}{}{mark}{}", node.name(), self.work(node)));

        let mut facts = Vec::new();
        if let Some(uid) = &node.uid {
            facts.push(format!("uid {uid}{}", if node.uid_positional { " (positional)" } else { "" }));
        }
        facts.push(match &node.upsert_key {
            Some(key) if key.is_empty() => "key: at most one row".to_string(),
            Some(key) => format!("key ({})", self.columns(id, key)),
            None => "no key".to_string(),
        });
        facts.push(node.changelog.to_string());
        facts.push(format!("parallelism {}", self.parallelism));
        if let Some(edge) = edge {
            facts.push(self.sent(edge));
        }
        self.lines.push(format!("{indent}     {}", facts.join(", ")));
        if !node.bound.is_empty() {
            self.lines.push(format!("{indent}     state: {}", self.readable(&node.bound.to_string())));
        }
        for edge in &node.inputs {
            self.node(edge.from, Some(edge), depth + 1);
        }
    }

    /// How a node's rows are dealt to the subtasks of the one above.
    fn sent(&self, edge: &Edge) -> String {
        match &edge.distribution {
            Distribution::Forward => "sent forward".to_string(),
            Distribution::Hash(columns) if columns.is_empty() => "sent to one subtask".to_string(),
            Distribution::Hash(columns) => format!("sent by hash ({})", self.columns(edge.from, columns)),
        }
    }

    fn columns(&self, id: NodeId, positions: &[usize]) -> String {
        let schema = &self.graph.nodes[id].schema;
        positions.iter().map(|&position| self.readable(schema.field(position).name())).collect::<Vec<_>>().join(", ")
    }

    fn all_columns(&self, id: NodeId) -> String {
        match self.graph.nodes[id].schema.fields().len() {
            0 => NO_COLUMNS.to_string(),
            columns => self.columns(id, &(0..columns).collect::<Vec<_>>()),
        }
    }

    /// What a node does, after its name.
    fn work(&self, node: &Node) -> String {
        match &node.op {
            NodeOp::TableScan { .. } | NodeOp::ViewScan { .. } | NodeOp::ConnectorScan { .. } => {
                // A scan's uid is made of the name of what it reads.
                let object = node.uid.as_deref().and_then(|uid| uid.strip_prefix("source(")?.strip_suffix(')')).unwrap_or("?");
                format!(" on {object}: {}", self.all_columns(node.id))
            }
            NodeOp::Values { rows } => {
                format!(": {} {} ({})", rows.num_rows(), if rows.num_rows() == 1 { "row" } else { "rows" }, self.all_columns(node.id))
            }
            NodeOp::Calc { filter, projection, .. } => {
                let columns =
                    projection.iter().zip(node.schema.fields()).map(|(expr, field)| self.projected(expr, field.name())).collect::<Vec<_>>();
                let filter = filter.as_ref().map(|filter| format!(" where {}", self.expression(filter))).unwrap_or_default();
                let columns = if columns.is_empty() { NO_COLUMNS.to_string() } else { columns.join(", ") };
                format!(": {columns}{filter}")
            }
            NodeOp::Aggregate { group_columns, calls, .. } => {
                let keys = self.columns(node.id, &(0..*group_columns).collect::<Vec<_>>());
                let calls = calls.iter().map(|call| self.call(node, call)).collect::<Vec<_>>().join(", ");
                match (keys.is_empty(), calls.is_empty()) {
                    (false, false) => format!(": {calls} by {keys}"),
                    (false, true) => format!(": {keys}"),
                    (true, _) => format!(": {calls}"),
                }
            }
            NodeOp::Unnest { array, outer, .. } => {
                let array = match node.inputs.first() {
                    Some(edge) => self.columns(edge.from, &[*array]),
                    None => "?".to_string(),
                };
                format!(" {array}{}: {}", if *outer { ", rows without elements too" } else { "" }, self.all_columns(node.id))
            }
            NodeOp::Union | NodeOp::Materialize | NodeOp::Sink => format!(": {}", self.all_columns(node.id)),
        }
    }

    fn call(&self, node: &Node, call: &AggregateCall) -> String {
        let column = |position: usize| match node.inputs.first() {
            Some(edge) => self.readable(self.graph.nodes[edge.from].schema.field(position).name()),
            None => "?".to_string(),
        };
        let argument = call.argument.map_or_else(|| "*".to_string(), column);
        let filter = call.filter.map(|filter| format!(" FILTER (WHERE {})", column(filter))).unwrap_or_default();
        format!("{}({}{argument}){filter}", call.function.name(), if call.distinct { "DISTINCT " } else { "" })
    }

    /// An expression as it was written, also where columns below carry parts of it.
    fn expression(&self, expr: &Expr) -> String {
        self.readable(&written_text(expr))
    }

    /// A column of a calc: its expression, and its name where that says more.
    fn projected(&self, expr: &Expr, name: &str) -> String {
        let text = self.expression(expr);
        if expression_text(expr) == name { text } else { format!("{text} AS {}", self.readable(name)) }
    }
}
