//! EXPLAIN of an ad-hoc SELECT: the batch plan as DataFusion's optimiser leaves it, as an indented tree with the root first, in the form that EXPLAIN of a
//! continuous query has.
//!
//! # Invariants
//! Nothing is read and nothing waits: views and tables stand for themselves.

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, JoinType, ScalarValue};
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::logical_expr::{Distinct, Expr, LogicalPlan, SortExpr, TableProviderFilterPushDown, TableScan, TableSource};
use weir_catalog::{JobKind, Object, Result};
use weir_sql::binder::{CatalogSource, optimize_batch};
use weir_sql::planner::written_text;

use super::lookup::KeyFilter;
use super::query::check_readable;
use crate::operators::error::from_datafusion;

/// The lines of the EXPLAIN of `plan`, a bound query.
pub(super) fn explain(plan: &LogicalPlan) -> Result<Vec<String>> {
    let planned = plan
        .clone()
        .transform_up_with_subqueries(|node| {
            let LogicalPlan::TableScan(scan) = &node else { return Ok(Transformed::no(node)) };
            let source = scan.source.as_ref() as &dyn Any;
            let Some(source) = source.downcast_ref::<CatalogSource>() else { return Ok(Transformed::no(node)) };
            check_readable(&source.object).map_err(|error| DataFusionError::External(Box::new(error)))?;
            let scan = TableScan { source: Arc::new(Lookups::new(&source.object)), ..scan.clone() };
            Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
        })
        .map_err(from_datafusion)?;
    let optimized = optimize_batch(planned.data)?;
    let mut printer = Printer { computed: HashMap::new(), lines: Vec::new() };
    printer.gather(&optimized).map_err(from_datafusion)?;
    printer.node(&optimized, 0);
    Ok(printer.lines)
}

/// What the names of columns begin with that the optimiser makes for an expression which is used more than once.
const SHARED_PREFIX: &str = "__common_expr_";

/// A table or view as the optimiser sees it: which conditions it can look rows up by.
#[derive(Debug)]
struct Lookups {
    schema: SchemaRef,
    key: Option<Vec<usize>>,
}

impl Lookups {
    fn new(object: &Object) -> Lookups {
        let key = match object {
            Object::StoredTable(table) => table.primary_key.clone(),
            Object::Job(job) => match &job.kind {
                JobKind::MaterializedView { key, .. } => key.clone(),
                JobKind::Sink { .. } | JobKind::Insert { .. } => None,
            },
            Object::ConnectorTable(_) | Object::View(_) => None,
        };
        Lookups { schema: weir_catalog::object::schema_of(object.columns()), key }
    }
}

impl TableSource for Lookups {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> DataFusionResult<Vec<TableProviderFilterPushDown>> {
        let support = |filter: &&Expr| match &self.key {
            Some(key) if KeyFilter::can_use(filter, key, &self.schema) => TableProviderFilterPushDown::Inexact,
            _ => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(support).collect())
    }
}

/// Writes a plan as lines.
struct Printer {
    /// The expressions behind columns that are named after them: of aggregates, window functions, and what is computed once for several uses.
    computed: HashMap<Column, Expr>,
    lines: Vec<String>,
}

impl Printer {
    fn gather(&mut self, plan: &LogicalPlan) -> DataFusionResult<()> {
        plan.apply(|node| {
            let (exprs, first): (&[Expr], usize) = match node {
                LogicalPlan::Aggregate(aggregate) => (&aggregate.aggr_expr, aggregate.group_expr.len()),
                LogicalPlan::Window(window) => (&window.window_expr, window.input.schema().fields().len()),
                LogicalPlan::Projection(projection) => (&projection.expr, 0),
                _ => (&[], 0),
            };
            for (at, expr) in exprs.iter().enumerate() {
                let column = Column::from(node.schema().qualified_field(first + at));
                let stands_for_it = !matches!(node, LogicalPlan::Projection(_)) || column.name.starts_with(SHARED_PREFIX);
                if stands_for_it && !expr.column_refs().contains(&column) {
                    self.computed.insert(column, expr.clone().unalias());
                }
            }
            Ok(TreeNodeRecursion::Continue)
        })
        .map(|_| ())
    }

    fn node(&mut self, plan: &LogicalPlan, depth: usize) {
        // What only renames says nothing.
        if let LogicalPlan::SubqueryAlias(alias) = plan {
            return self.node(&alias.input, depth);
        }
        let arrow = match depth {
            0 => String::new(),
            _ => format!("{}-> ", "   ".repeat(depth - 1)),
        };
        self.lines.push(format!("{arrow}{}", self.work(plan)));
        for input in plan.inputs() {
            self.node(input, depth + 1);
        }
    }

    /// What a node does.
    fn work(&self, plan: &LogicalPlan) -> String {
        match plan {
            LogicalPlan::Projection(projection) => {
                let shown =
                    projection.expr.iter().zip(projection.schema.fields()).filter(|(_, field)| !field.name().starts_with(SHARED_PREFIX));
                let columns = shown.map(|(expr, field)| self.named(expr, field.name()));
                format!("Projection: {}", columns.collect::<Vec<_>>().join(", "))
            }
            LogicalPlan::Filter(filter) => format!("Filter: {}", self.text(&filter.predicate)),
            LogicalPlan::Aggregate(aggregate) => match (aggregate.group_expr.is_empty(), aggregate.aggr_expr.is_empty()) {
                (true, _) => format!("Aggregate: {}", self.texts(&aggregate.aggr_expr)),
                (false, true) => format!("Aggregate: {}", self.texts(&aggregate.group_expr)),
                (false, false) => format!("Aggregate: {} by {}", self.texts(&aggregate.aggr_expr), self.texts(&aggregate.group_expr)),
            },
            LogicalPlan::Window(window) => format!("Window: {}", self.texts(&window.window_expr)),
            LogicalPlan::Sort(sort) => {
                let limit = sort.fetch.map(|rows| format!(", the first {rows}")).unwrap_or_default();
                format!("Sort: {}{limit}", self.sort_keys(&sort.expr))
            }
            LogicalPlan::Limit(limit) => {
                let part = |word: &str, rows: &Option<Box<Expr>>| match rows.as_deref() {
                    None => None,
                    Some(Expr::Literal(ScalarValue::Int64(Some(0)), _)) if word == "offset" => None,
                    Some(rows) => Some(format!("{word} {}", self.text(rows))),
                };
                let parts: Vec<String> = [part("limit", &limit.fetch), part("offset", &limit.skip)].into_iter().flatten().collect();
                format!("Limit: {}", parts.join(", "))
            }
            LogicalPlan::Join(join) => {
                let kind = match join.join_type {
                    JoinType::Inner if join.on.is_empty() && join.filter.is_none() => "cross",
                    JoinType::Inner => "inner",
                    JoinType::Left => "left",
                    JoinType::Right => "right",
                    JoinType::Full => "full",
                    JoinType::LeftSemi | JoinType::RightSemi => "semi",
                    JoinType::LeftAnti | JoinType::RightAnti => "anti",
                    JoinType::LeftMark | JoinType::RightMark => "mark",
                };
                let pairs = join.on.iter().map(|(left, right)| format!("{} = {}", self.text(left), self.text(right)));
                let conditions: Vec<String> = pairs.chain(join.filter.iter().map(|expr| self.text(expr))).collect();
                let on = if conditions.is_empty() { String::new() } else { format!(" on {}", conditions.join(" AND ")) };
                format!("Join: {kind}{on}")
            }
            LogicalPlan::TableScan(scan) => {
                let columns = scan.projected_schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ");
                let lookup = match scan.filters.is_empty() {
                    true => String::new(),
                    false => {
                        format!(", looked up by {}", scan.filters.iter().map(|expr| self.text(expr)).collect::<Vec<_>>().join(" AND "))
                    }
                };
                format!("Scan on {}: {columns}{lookup}", scan.table_name.table())
            }
            LogicalPlan::Union(_) => "Union".to_string(),
            LogicalPlan::Distinct(Distinct::All(_)) => "Distinct".to_string(),
            LogicalPlan::EmptyRelation(empty) => format!("Values: {}", if empty.produce_one_row { "1 row" } else { "no rows" }),
            LogicalPlan::Values(values) => {
                format!("Values: {} {}", values.values.len(), if values.values.len() == 1 { "row" } else { "rows" })
            }
            other => other.display().to_string(),
        }
    }

    /// An expression with the relations of its columns, where there are some, in their names.
    fn text(&self, expr: &Expr) -> String {
        written_text(&self.readable(expr.clone()))
    }

    /// `expr` with what columns stand for, where that is an expression, and their relations in the names of the others.
    fn readable(&self, expr: Expr) -> Expr {
        let readable = expr.clone().transform_down(|expr| {
            Ok::<_, DataFusionError>(match expr {
                Expr::Column(column) => {
                    let shown = match self.computed.get(&column) {
                        Some(computed) => self.readable(computed.clone()),
                        None => Expr::Column(Column::new_unqualified(column.flat_name())),
                    };
                    Transformed::new(shown, true, TreeNodeRecursion::Jump)
                }
                // As count(*) is written.
                Expr::AggregateFunction(mut call)
                    if call.func.name() == "count" && matches!(call.params.args[..], [Expr::Literal(ScalarValue::Int64(Some(1)), _)]) =>
                {
                    call.params.args = vec![Expr::Column(Column::new_unqualified("*"))];
                    Transformed::new(Expr::AggregateFunction(call), true, TreeNodeRecursion::Jump)
                }
                other => Transformed::no(other),
            })
        });
        readable.map_or(expr, |readable| readable.data)
    }

    fn texts(&self, exprs: &[Expr]) -> String {
        exprs.iter().map(|expr| self.text(expr)).collect::<Vec<_>>().join(", ")
    }

    /// An expression, and the name of its column where that says more.
    fn named(&self, expr: &Expr, name: &str) -> String {
        let written = self.text(expr);
        let is_name = matches!(expr, Expr::Column(column) if column.name == name) || written == name;
        if is_name { written } else { format!("{written} AS {name}") }
    }

    fn sort_keys(&self, keys: &[SortExpr]) -> String {
        let key = |key: &SortExpr| {
            let nulls = match (key.asc, key.nulls_first) {
                (true, true) => " NULLS FIRST",
                (false, false) => " NULLS LAST",
                _ => "",
            };
            format!("{}{}{nulls}", self.text(&key.expr), if key.asc { "" } else { " DESC" })
        };
        let mut seen = BTreeSet::new();
        keys.iter().map(key).filter(|key| seen.insert(key.clone())).collect::<Vec<_>>().join(", ")
    }
}
