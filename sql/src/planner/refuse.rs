//! What can't run as a stream: the reason, and the rewrite where there is one.
//!
//! # Invariants
//! Everything that the planner does not turn into an operator ends here: nothing of a query is ignored.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, JoinType};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Volatility};
use weir_catalog::{Error, Result, SqlState};

use crate::binder::{DISTINCT_ON_PREFIX, SIDE_PREFIX};

/// Functions that give another answer at another time. DataFusion calls them stable, which within one statement they are.
const TIME_FUNCTIONS: [&str; 9] = [
    "now",
    "current_timestamp",
    "current_date",
    "current_time",
    "localtimestamp",
    "today",
    "statement_timestamp",
    "clock_timestamp",
    "transaction_timestamp",
];

/// `0A000`, said of a continuous query.
pub(super) fn unsupported(what: &str) -> Error {
    Error::unsupported(format!("{what} in a continuous query"))
}

/// The refusal of a plan node that no operator stands for.
pub(super) fn node(plan: &LogicalPlan) -> Error {
    const WHEN_SELECTING: &str = "Leave it out here and do it when selecting from the view.";
    match plan {
        LogicalPlan::Join(join) => match join.join_type {
            // What INTERSECT and EXCEPT become; nobody writes these joins.
            JoinType::LeftSemi | JoinType::LeftAnti => set_operation(),
            _ => unsupported("joins are not supported").with_hint("Make each side a materialized view and join them when selecting."),
        },
        LogicalPlan::Sort(sort) if is_distinct_on(&sort.input) => distinct_on(),
        plan if is_distinct_on(plan) => distinct_on(),
        plan if is_multiset_operation(plan) => set_operation(),
        LogicalPlan::Sort(_) => {
            unsupported("ORDER BY is not supported").with_hint("A view's rows have no order: write ORDER BY when selecting from it.")
        }
        LogicalPlan::Limit(_) => unsupported("LIMIT and OFFSET are not supported")
            .with_hint("Keep all rows in the view and write ORDER BY and LIMIT when selecting from it."),
        LogicalPlan::Window(_) => unsupported("window functions are not supported").with_hint(WHEN_SELECTING),
        LogicalPlan::Distinct(datafusion::logical_expr::Distinct::On(_)) => distinct_on(),
        LogicalPlan::RecursiveQuery(_) => unsupported("WITH RECURSIVE is not supported"),
        LogicalPlan::Subquery(_) => subquery(),
        LogicalPlan::Repartition(_) => unsupported("DISTRIBUTE BY is not supported"),
        LogicalPlan::Extension(extension) => unsupported(&format!("{} is not supported", extension.node.name())),
        LogicalPlan::Statement(_)
        | LogicalPlan::Explain(_)
        | LogicalPlan::Analyze(_)
        | LogicalPlan::Dml(_)
        | LogicalPlan::Ddl(_)
        | LogicalPlan::Copy(_)
        | LogicalPlan::DescribeTable(_) => Error::new(SqlState::SYNTAX_ERROR, "a continuous query must be a SELECT"),
        other => unsupported(&format!("{} is not supported", other.display())),
    }
}

fn distinct_on() -> Error {
    unsupported("DISTINCT ON is not supported")
        .with_hint("Use GROUP BY with min() or max(), or write DISTINCT ON when selecting from the view.")
}

fn set_operation() -> Error {
    unsupported("INTERSECT and EXCEPT are not supported").with_hint("Make each side a materialized view and combine them when selecting.")
}

/// Whether `plan` is what the binder makes of INTERSECT ALL and EXCEPT ALL: it counts rows of each side.
fn is_multiset_operation(plan: &LogicalPlan) -> bool {
    let LogicalPlan::Window(window) = plan else { return false };
    window.window_expr.iter().any(|expr| {
        let Expr::WindowFunction(call) = expr.clone().unalias() else { return false };
        call.params.order_by.iter().any(|key| matches!(&key.expr, Expr::Column(column) if column.name.starts_with(SIDE_PREFIX)))
    })
}

/// Whether `plan` is what the binder makes of DISTINCT ON: the first row of a window over columns that nobody else names so.
fn is_distinct_on(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Filter(filter) => is_distinct_on(&filter.input),
        LogicalPlan::Window(window) => window.window_expr.iter().any(|expr| {
            let Expr::WindowFunction(call) = expr else { return false };
            let is_on = |expr: &Expr| matches!(expr, Expr::Column(column) if column.name.starts_with(DISTINCT_ON_PREFIX));
            call.params.partition_by.iter().any(is_on)
        }),
        _ => false,
    }
}

fn subquery() -> Error {
    unsupported("a subquery in an expression is not supported")
        .with_hint("Make the subquery a materialized view and combine them when selecting; a subquery in FROM is fine.")
}

/// Refuses grouping sets: `GROUP BY ROLLUP`, `CUBE` and `GROUPING SETS`.
pub(super) fn grouping_sets() -> Error {
    unsupported("GROUPING SETS, ROLLUP and CUBE are not supported")
        .with_hint("Write one SELECT for each grouping and combine them with UNION ALL.")
}

/// Refuses an aggregate function that no operator computes.
pub(super) fn aggregate_function(name: &str) -> Error {
    unsupported(&format!("aggregate function {name}() is not supported"))
        .with_hint("The aggregate functions of a continuous query are count, sum, min, max, avg, bool_and and bool_or.")
}

/// Refuses `expr` (over `schema`) if something in it has no place in a continuous query.
pub(super) fn check_expression(expr: &Expr, schema: &DFSchema) -> Result<()> {
    let mut refusal = None;
    expr.apply(|expr| {
        refusal = refusal_of(expr);
        Ok(if refusal.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })
    .map_err(|e| Error::internal(format!("an expression could not be walked: {e}")))?;
    if let Some(error) = refusal {
        return Err(error);
    }
    // The binder has typed the plan; an expression without a type would only fail later and less clearly.
    expr.get_type(schema).map_err(|e| Error::internal(format!("expression {expr} has no type: {e}")))?;
    Ok(())
}

fn refusal_of(expr: &Expr) -> Option<Error> {
    match expr {
        Expr::ScalarSubquery(_) | Expr::Exists(_) | Expr::InSubquery(_) | Expr::SetComparison(_) | Expr::OuterReferenceColumn(..) => {
            Some(subquery())
        }
        Expr::WindowFunction(_) => Some(unsupported("window functions are not supported")),
        Expr::GroupingSet(_) => Some(grouping_sets()),
        Expr::Unnest(_) => Some(unsupported("unnest() is not supported")),
        Expr::Placeholder(placeholder) => Some(
            Error::new(SqlState::UNDEFINED_PARAMETER, format!("there is no parameter {}", placeholder.id))
                .with_detail("A continuous query outlives the statement that makes it, so it can have no parameters."),
        ),
        Expr::ScalarVariable(..) => Some(unsupported("variables are not supported")),
        Expr::HigherOrderFunction(_) | Expr::Lambda(_) | Expr::LambdaVariable(_) => {
            Some(unsupported("lambda expressions are not supported"))
        }
        Expr::ScalarFunction(function) => {
            let name = function.name();
            if TIME_FUNCTIONS.contains(&name) {
                return Some(
                    unsupported(&format!("{name}() is not supported"))
                        .with_detail("Its value changes with time, and what the view holds would not.")
                        .with_hint("Keep the column that you compare with in the view and compare when selecting from it."),
                );
            }
            (function.func.signature().volatility == Volatility::Volatile).then(|| {
                unsupported(&format!("{name}() is not supported"))
                    .with_detail("It gives another value at each call, so a row could not be taken back.")
                    .with_hint("Call it when selecting from the view, or store its value in a table.")
            })
        }
        _ => None,
    }
}
