//! The order of a subquery's rows, where something above it depends on it: PostgreSQL strings together what comes in the order in which it comes, and
//! DataFusion drops an order that nothing asks for.

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DataFusionError};
use datafusion::logical_expr::{Expr, LogicalPlan, SortExpr};

/// The order in which `plan` gives its rows, as far as the query says and its columns tell.
pub(super) fn order_of(plan: &LogicalPlan) -> Result<Option<Vec<SortExpr>>, DataFusionError> {
    let (input, renamed): (&LogicalPlan, Vec<(Expr, Column)>) = match plan {
        LogicalPlan::Sort(sort) => return Ok(Some(sort.expr.clone())),
        LogicalPlan::Filter(filter) => return order_of(&filter.input),
        LogicalPlan::Limit(limit) => return order_of(&limit.input),
        LogicalPlan::Projection(projection) => {
            let exprs = projection.expr.iter().map(|expr| expr.clone().unalias());
            (&projection.input, exprs.zip(projection.schema.columns()).collect())
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let columns = alias.input.schema().columns().into_iter().map(Expr::Column);
            (&alias.input, columns.zip(alias.schema.columns()).collect())
        }
        _ => return Ok(None),
    };
    let Some(order) = order_of(input)? else { return Ok(None) };
    let mut keys = Vec::with_capacity(order.len());
    for key in order {
        // The whole key, or the columns in it; keys behind one that is not there any more decide nothing.
        let mut is_lost = false;
        let expr = key.expr.transform_down(|expr| {
            if let Some((_, column)) = renamed.iter().find(|(known, _)| *known == expr) {
                return Ok(Transformed::new(Expr::Column(column.clone()), true, TreeNodeRecursion::Jump));
            }
            is_lost |= matches!(expr, Expr::Column(_));
            Ok::<_, DataFusionError>(Transformed::no(expr))
        })?;
        if is_lost {
            break;
        }
        keys.push(SortExpr { expr: expr.data, ..key });
    }
    Ok((!keys.is_empty()).then_some(keys))
}

/// `calls` of aggregates over rows in `order`: those whose value depends on the order of their rows, and which say none themselves, have them in it.
pub(super) fn in_order(calls: &[Expr], order: &[SortExpr]) -> Vec<Expr> {
    let ordered = |call: &Expr| match call {
        Expr::AggregateFunction(function)
            if function.func.name() == "string_agg" && function.params.order_by.is_empty() && !function.params.distinct =>
        {
            let mut function = function.clone();
            function.params.order_by = order.to_vec();
            Expr::AggregateFunction(function)
        }
        other => other.clone(),
    };
    calls.iter().map(ordered).collect()
}
