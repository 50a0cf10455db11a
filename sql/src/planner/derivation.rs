//! What the rows of each operator are computed from, as text: two operators with the same text have, over the same rows, the same state.
//!
//! # Invariants
//! - A text names tables and views with their columns, and the expressions over them; aliases, the order and number of other columns, and the order of
//!   the branches of a UNION ALL do not enter it.
//! - The text of a column says what its values are, that of a relation which rows there are: a column more or less changes neither.
//! - Of an operator over a UNION ALL there is a text for each branch, as if the operator stood over that one alone.
//! - A cast to a type that has every value of the former one changes no value: it does not enter the text of a column that state is kept for. Within an
//!   expression, whose operators may do other things with other types, it does.

use std::collections::{BTreeMap, BTreeSet};

use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::{Expr, ExprSchemable};
use weir_catalog::object::is_secret_option;
use weir_catalog::{Catalog, Derivation, DerivedColumn, Error, Object, Result};
use xxhash_rust::xxh3::xxh3_128;

use super::text::{cast_of, expression_text, type_text};
use crate::graph::{AggregateCall, Node, NodeOp, StreamGraph};

/// A text that is longer is replaced by its hash: they are compared, and now and then read.
const TEXT_BYTES_MAX: usize = 400;

/// What a node's rows are, and each of its columns.
#[derive(Clone, Default)]
struct Texts {
    relation: String,
    /// As an expression over the column reads it.
    columns: Vec<String>,
    /// Without casts that change no value.
    values: Vec<String>,
    /// What the rows come from: names of tables and views, [`GROUPS`], [`CONSTANTS`].
    sources: BTreeSet<String>,
    /// The same over each branch of a UNION ALL alone; none where there is no such.
    branches: Vec<Texts>,
}

/// Rows that come from the results of an aggregate. No name has a space at its beginning.
const GROUPS: &str = " groups";
const CONSTANTS: &str = " values";

impl Texts {
    fn plain(source: &str, relation: String, columns: Vec<String>) -> Texts {
        let sources = BTreeSet::from([source.to_string()]);
        Texts { relation, values: columns.clone(), columns, sources, branches: Vec::new() }
    }

    /// The texts of its branches; of itself, where it has none.
    fn alternatives(&self) -> Vec<Texts> {
        if self.branches.is_empty() { vec![self.clone()] } else { self.branches.clone() }
    }
}

/// Whether every value of `from` is one of `to`.
pub fn widens(from: &DataType, to: &DataType) -> bool {
    use DataType::{Decimal128, Int32, Int64};
    match (from, to) {
        (Int32, Int64) => true,
        (Int32, Decimal128(precision, scale)) => *scale >= 0 && i16::from(*precision) - i16::from(*scale) >= 10,
        (Int64, Decimal128(precision, scale)) => *scale >= 0 && i16::from(*precision) - i16::from(*scale) >= 19,
        (Decimal128(p1, s1), Decimal128(p2, s2)) => s2 >= s1 && i16::from(*p2) - i16::from(*s2) >= i16::from(*p1) - i16::from(*s1),
        _ => false,
    }
}

fn shorten(text: String) -> String {
    if text.len() <= TEXT_BYTES_MAX { text } else { format!("~{:032x}", xxh3_128(text.as_bytes())) }
}

/// The derivation of each operator of `graph` that has a uid, by uid. `catalog` has what the graph names.
pub fn derivations(graph: &StreamGraph, catalog: &Catalog) -> Result<BTreeMap<String, Derivation>> {
    let texts = texts_of(graph, catalog)?;
    let with_uid = graph.nodes.iter().filter_map(|node| Some((node.uid.clone()?, derivation(node, &texts[node.id], input(node, &texts)))));
    Ok(with_uid.collect())
}

/// As [`derivations`], what each operator over a UNION ALL would be over each branch alone: branches of branches among them, in the order of the graph. None for an
/// operator over something else.
pub fn branch_derivations(graph: &StreamGraph, catalog: &Catalog) -> Result<BTreeMap<String, Vec<Derivation>>> {
    let texts = texts_of(graph, catalog)?;
    let mut found = BTreeMap::new();
    for node in &graph.nodes {
        let Some(uid) = &node.uid else { continue };
        let of_inputs = input(node, &texts).map(|below| below.branches.clone()).unwrap_or_default();
        let branches = texts[node.id].branches.iter().zip(&of_inputs).map(|(own, below)| derivation(node, own, Some(below)));
        found.insert(uid.clone(), branches.collect());
    }
    Ok(found)
}

fn input<'a>(node: &Node, texts: &'a [Texts]) -> Option<&'a Texts> {
    node.inputs.first().map(|edge| &texts[edge.from])
}

/// What the rows are that `graph` results in.
pub fn result_derivation(graph: &StreamGraph, catalog: &Catalog) -> Result<Derivation> {
    let texts = texts_of(graph, catalog)?;
    let root = graph.root();
    let derivation = derivation(root, &texts[root.id], input(root, &texts));
    // It is compared as a whole, also with one that was written when these were not.
    Ok(Derivation { sources: Vec::new(), ..derivation })
}

fn texts_of(graph: &StreamGraph, catalog: &Catalog) -> Result<Vec<Texts>> {
    let mut texts: Vec<Texts> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        // The result of an aggregate over branches is not one of each branch.
        let without_branches = |from: usize| {
            let is_aggregate = matches!(graph.nodes[from].op, NodeOp::Aggregate { .. });
            if is_aggregate { Texts { branches: Vec::new(), ..texts[from].clone() } } else { texts[from].clone() }
        };
        let below: Vec<Texts> = node.inputs.iter().map(|edge| without_branches(edge.from)).collect();
        let mut derived = derive(node, &below, catalog)?;
        derived.branches = match (&node.op, below.as_slice()) {
            (NodeOp::Union, _) => below.iter().flat_map(Texts::alternatives).collect(),
            (_, [below]) => {
                let over = |branch: &Texts| derive(node, std::slice::from_ref(branch), catalog);
                below.branches.iter().map(over).collect::<Result<_>>()?
            }
            _ => Vec::new(),
        };
        texts.push(derived);
    }
    Ok(texts)
}

/// The texts of `node` over inputs with the texts `below`, but for its branches.
fn derive(node: &Node, below: &[Texts], catalog: &Catalog) -> Result<Texts> {
    let input = |at: usize| &below[at];
    let sources: BTreeSet<String> = below.iter().flat_map(|texts| texts.sources.iter().cloned()).collect();
    let branches = Vec::new();
    Ok(match &node.op {
        NodeOp::TableScan { table: id, projection }
        | NodeOp::ViewScan { view: id, projection }
        | NodeOp::ConnectorScan { table: id, projection } => {
            let object = catalog.get_id(*id).ok_or_else(|| Error::internal(format!("object {id} is not in the catalog")))?;
            let relation = match object.as_ref() {
                Object::ConnectorTable(table) => {
                    let shown = table.options.iter().filter(|(name, _)| !is_secret_option(name));
                    let options: Vec<String> = shown.map(|(name, value)| format!("{name}={value}")).collect();
                    shorten(format!("{}[{} {}]", table.name, table.connector, options.join(", ")))
                }
                object => object.name().to_string(),
            };
            let columns = projection.iter().map(|column| format!("{}.{}", object.name(), object.columns()[*column].name)).collect();
            Texts::plain(object.name(), relation, columns)
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
            Texts::plain(CONSTANTS, shorten(format!("values[{}]({})", rows.num_rows(), cells.join("; "))), columns)
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
            // One that lets all rows pass is none.
            let is_true = |filter: &&Expr| matches!(filter, Expr::Literal(ScalarValue::Boolean(Some(true)), _));
            let relation = match filter.as_ref().filter(|filter| !is_true(filter)) {
                Some(filter) => shorten(format!("{} where {}", below.relation, text(filter)?)),
                None => below.relation.clone(),
            };
            let mut values = Vec::with_capacity(projection.len());
            for expr in projection {
                let mut inner = expr;
                while let Some((below, to)) = cast_of(inner)
                    && below.get_type(schema.as_ref()).is_ok_and(|from| widens(&from, &to))
                {
                    inner = below;
                }
                let below_value = match inner {
                    Expr::Column(column) => {
                        let place = schema.fields().iter().position(|field| *field.name() == column.name);
                        place.and_then(|place| below.values.get(place)).cloned()
                    }
                    _ => None,
                };
                values.push(below_value.map_or_else(|| text(inner), Ok)?);
            }
            Texts { relation, columns: projection.iter().map(text).collect::<Result<_>>()?, values, sources, branches }
        }
        NodeOp::Aggregate { group_columns, calls, global } => {
            let below = input(0);
            let keys = below.values[..*group_columns].join(", ");
            let what = if *global { "all of" } else { "groups of" };
            let relation = shorten(format!("{what} ({}) by ({keys})", below.relation));
            // SUM of a wider type is of a wider type: an expression over it may do other things.
            let calls_over = |texts: &[String]| -> Vec<String> {
                calls.iter().map(|call| shorten(format!("{} in {relation}", call_text(call, texts)))).collect()
            };
            let columns = [&below.columns[..*group_columns], &calls_over(&below.columns)].concat();
            let values = [&below.values[..*group_columns], &calls_over(&below.values)].concat();
            Texts { relation, columns, values, sources: BTreeSet::from([GROUPS.to_string()]), branches }
        }
        NodeOp::Unnest { array, output, outer } => {
            let below = input(0);
            let array = &below.columns[*array];
            let kind = if *outer { "all elements" } else { "elements" };
            let relation = shorten(format!("{} with {kind} of {array}", below.relation));
            let element = shorten(format!("element of {array}"));
            let columns =
                |texts: &[String]| output.iter().map(|from| from.map_or_else(|| element.clone(), |at| texts[at].clone())).collect();
            Texts { columns: columns(&below.columns), values: columns(&below.values), relation, sources, branches }
        }
        NodeOp::Union => {
            let mut sorted: Vec<&Texts> = below.iter().collect();
            sorted.sort_by(|a, b| (&a.relation, &a.columns).cmp(&(&b.relation, &b.columns)));
            let join = |parts: Vec<&str>| shorten(format!("union of ({})", parts.join("; ")));
            let relation = join(sorted.iter().map(|branch| branch.relation.as_str()).collect());
            let joined = |texts: fn(&Texts) -> &Vec<String>| {
                let column = |column: usize| join(sorted.iter().map(|branch| texts(branch)[column].as_str()).collect());
                (0..node.schema.fields().len()).map(column).collect()
            };
            Texts { columns: joined(|branch| &branch.columns), values: joined(|branch| &branch.values), relation, sources, branches }
        }
        NodeOp::Materialize | NodeOp::Sink => Texts { branches, ..input(0).clone() },
    })
}

/// A call of an aggregate function over input columns with these texts.
fn call_text(call: &AggregateCall, columns: &[String]) -> String {
    let argument = call.argument.map_or("*", |column| columns[column].as_str());
    let distinct = if call.distinct { "distinct " } else { "" };
    let filter = call.filter.map(|column| format!(" filter {}", columns[column])).unwrap_or_default();
    format!("{}({distinct}{argument}){filter}", call.function.name())
}

/// What `node` with the texts `derived` is, over an input with the texts `below`.
fn derivation(node: &Node, derived: &Texts, below: Option<&Texts>) -> Derivation {
    let column = |position: usize| DerivedColumn {
        name: node.schema.field(position).name().clone(),
        text: derived.values[position].clone(),
        type_name: type_text(node.schema.field(position).data_type()),
    };
    let all = 0..node.schema.fields().len();
    let (key, columns) = match &node.op {
        NodeOp::Aggregate { group_columns, .. } => ((0..*group_columns).collect(), (*group_columns..all.end).collect()),
        NodeOp::Materialize => (node.upsert_key.clone().unwrap_or_else(|| all.clone().collect()), all.collect::<Vec<usize>>()),
        _ => (Vec::new(), all.collect()),
    };
    let inputs = match &node.op {
        NodeOp::Aggregate { .. } => below.map(|below| below.values.clone()).unwrap_or_default(),
        _ => Vec::new(),
    };
    // What an operator takes in, not what comes out of it.
    let sources = below.unwrap_or(derived).sources.iter().cloned().collect();
    Derivation {
        relation: derived.relation.clone(),
        key: key.into_iter().map(column).collect(),
        columns: columns.into_iter().map(column).collect(),
        inputs,
        sources,
    }
}
