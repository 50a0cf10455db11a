//! What the rows of each operator are computed from, as text: two operators with the same text have, over the same rows, the same state.
//!
//! # Invariants
//! - A text names tables and views with their columns, and the expressions over them; aliases, the order and number of other columns, and the order of
//!   the branches of a UNION ALL do not enter it.
//! - The text of a column says what its values are, that of a relation which rows there are: a column more or less changes neither.

use std::collections::BTreeMap;

use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::Expr;
use weir_catalog::{Catalog, Derivation, DerivedColumn, Error, Object, Result};
use xxhash_rust::xxh3::xxh3_128;

use super::text::{expression_text, type_text};
use crate::graph::{AggregateCall, Node, NodeOp, StreamGraph};

/// A text that is longer is replaced by its hash: they are compared, and now and then read.
const TEXT_BYTES_MAX: usize = 400;

/// What a node's rows are, and each of its columns.
#[derive(Clone, Default)]
struct Texts {
    relation: String,
    columns: Vec<String>,
}

fn shorten(text: String) -> String {
    if text.len() <= TEXT_BYTES_MAX { text } else { format!("~{:032x}", xxh3_128(text.as_bytes())) }
}

/// The derivation of each operator of `graph` that has a uid, by uid. `catalog` has what the graph names.
pub fn derivations(graph: &StreamGraph, catalog: &Catalog) -> Result<BTreeMap<String, Derivation>> {
    let mut texts: Vec<Texts> = Vec::with_capacity(graph.nodes.len());
    let mut derivations = BTreeMap::new();
    for node in &graph.nodes {
        let derived = derive(node, &texts, catalog)?;
        if let Some(uid) = &node.uid {
            derivations.insert(uid.clone(), derivation(node, &derived, &texts));
        }
        texts.push(derived);
    }
    Ok(derivations)
}

fn derive(node: &Node, texts: &[Texts], catalog: &Catalog) -> Result<Texts> {
    let input = |at: usize| &texts[node.inputs[at].from];
    Ok(match &node.op {
        NodeOp::TableScan { table: id, projection }
        | NodeOp::ViewScan { view: id, projection }
        | NodeOp::ConnectorScan { table: id, projection } => {
            let object = catalog.get_id(*id).ok_or_else(|| Error::internal(format!("object {id} is not in the catalog")))?;
            let relation = match object.as_ref() {
                Object::ConnectorTable(table) => {
                    let options: Vec<String> = table.options.iter().map(|(name, value)| format!("{name}={value}")).collect();
                    shorten(format!("{}[{} {}]", table.name, table.connector, options.join(", ")))
                }
                object => object.name().to_string(),
            };
            let columns = projection.iter().map(|column| format!("{}.{}", object.name(), object.columns()[*column].name)).collect();
            Texts { relation, columns }
        }
        NodeOp::Values { rows } => {
            let mut cells = Vec::new();
            let failed = |e| Error::internal(format!("could not print a constant: {e}"));
            for column in rows.columns() {
                let options = FormatOptions::default().with_null("NULL");
                let formatter = ArrayFormatter::try_new(column.as_ref(), &options).map_err(failed)?;
                let values = (0..rows.num_rows()).map(|row| formatter.value(row).try_to_string().map_err(failed));
                cells.push(values.collect::<Result<Vec<_>>>()?.join(", "));
            }
            let columns = cells.iter().map(|cells| shorten(format!("values({cells})"))).collect();
            Texts { relation: shorten(format!("values[{}]({})", rows.num_rows(), cells.join("; "))), columns }
        }
        NodeOp::Calc { input: schema, filter, projection } => {
            let below = input(0);
            let names: BTreeMap<&str, &str> =
                schema.fields().iter().zip(&below.columns).map(|(field, text)| (field.name().as_str(), text.as_str())).collect();
            let text = |expr: &Expr| -> Result<String> {
                let replaced = expr.clone().transform(|expr| {
                    Ok(match &expr {
                        Expr::Column(column) => match names.get(column.name.as_str()) {
                            Some(text) => Transformed::yes(Expr::Column(Column::new_unqualified(*text))),
                            None => Transformed::no(expr),
                        },
                        _ => Transformed::no(expr),
                    })
                });
                let replaced = replaced.map_err(|e| Error::internal(format!("could not derive an expression: {e}")))?;
                Ok(shorten(expression_text(&replaced.data)))
            };
            let relation = match filter {
                Some(filter) => shorten(format!("{} where {}", below.relation, text(filter)?)),
                None => below.relation.clone(),
            };
            Texts { relation, columns: projection.iter().map(text).collect::<Result<_>>()? }
        }
        NodeOp::Aggregate { group_columns, calls, global } => {
            let below = input(0);
            let keys = below.columns[..*group_columns].join(", ");
            let what = if *global { "all of" } else { "groups of" };
            let relation = shorten(format!("{what} ({}) by ({keys})", below.relation));
            let mut columns: Vec<String> = below.columns[..*group_columns].to_vec();
            columns.extend(calls.iter().map(|call| shorten(format!("{} in {relation}", call_text(call, &below.columns)))));
            Texts { relation, columns }
        }
        NodeOp::Union => {
            let mut branches: Vec<&Texts> = node.inputs.iter().map(|edge| &texts[edge.from]).collect();
            branches.sort_by(|a, b| (&a.relation, &a.columns).cmp(&(&b.relation, &b.columns)));
            let join = |parts: Vec<&str>| shorten(format!("union of ({})", parts.join("; ")));
            let relation = join(branches.iter().map(|branch| branch.relation.as_str()).collect());
            let columns = (0..node.schema.fields().len())
                .map(|column| join(branches.iter().map(|branch| branch.columns[column].as_str()).collect()))
                .collect();
            Texts { relation, columns }
        }
        NodeOp::Materialize | NodeOp::Sink => input(0).clone(),
    })
}

/// A call of an aggregate function over input columns with these texts.
fn call_text(call: &AggregateCall, columns: &[String]) -> String {
    let argument = call.argument.map_or("*", |column| columns[column].as_str());
    let distinct = if call.distinct { "distinct " } else { "" };
    let filter = call.filter.map(|column| format!(" filter {}", columns[column])).unwrap_or_default();
    format!("{}({distinct}{argument}){filter}", call.function.name())
}

fn derivation(node: &Node, derived: &Texts, texts: &[Texts]) -> Derivation {
    let column = |position: usize| DerivedColumn {
        name: node.schema.field(position).name().clone(),
        text: derived.columns[position].clone(),
        type_name: type_text(node.schema.field(position).data_type()),
    };
    let all = 0..node.schema.fields().len();
    let (key, columns) = match &node.op {
        NodeOp::Aggregate { group_columns, .. } => ((0..*group_columns).collect(), (*group_columns..all.end).collect()),
        NodeOp::Materialize => (node.upsert_key.clone().unwrap_or_else(|| all.clone().collect()), all.collect::<Vec<usize>>()),
        _ => (Vec::new(), all.collect()),
    };
    let inputs = match &node.op {
        NodeOp::Aggregate { .. } => node.inputs.first().map(|edge| texts[edge.from].columns.clone()).unwrap_or_default(),
        _ => Vec::new(),
    };
    Derivation {
        relation: derived.relation.clone(),
        key: key.into_iter().map(column).collect(),
        columns: columns.into_iter().map(column).collect(),
        inputs,
    }
}
