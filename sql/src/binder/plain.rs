//! Which subqueries are left to DataFusion's own rules: at present no correlated one.
//!
//! Those rules answer some forms wrongly: they lose the row that an aggregate without GROUP BY has over no rows, take LIMIT and OFFSET for all rows of the
//! query around the subquery at once, know NOT IN only as the whole of a condition and without a correlation, and make ambiguous columns of EXISTS and IN
//! over a column that they correlate by. For a few forms they make the better plan, though, and those are recognised here, to be left to them once the
//! last of these faults can be told from outside:
//! - `[NOT] EXISTS` and `IN`, joined by AND to the rest of a WHERE or HAVING, over filtered tables;
//! - a single aggregate over filtered tables, correlated by equality of columns.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, JoinType};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator};

use super::decorrelate::{has_lateral, outer_columns, subquery_in};

type Answer = Result<bool, DataFusionError>;

/// Whether `plan` has subqueries that DataFusion's rules would answer wrongly or not at all.
pub(super) fn needs_unnesting(plan: &LogicalPlan) -> Answer {
    let mut needed = false;
    plan.apply_with_subqueries(|node| {
        needed |= match node {
            // It stands for every subquery that is visited, so for now no correlated one is plain enough: DataFusion's rules make ambiguous columns of
            // EXISTS and IN over a column that they correlate by.
            LogicalPlan::Subquery(subquery) => is_correlated(&subquery.subquery)?,
            LogicalPlan::Join(join) if has_lateral(&join.left) || has_lateral(&join.right) => true,
            LogicalPlan::Filter(filter) => any(split_conjunction(&filter.predicate), |condition| {
                Ok(!is_plain_test(condition)? && (has_test_inside(condition)? || has_correlated(condition, true)?))
            })?,
            LogicalPlan::Projection(projection) => any(&projection.expr, |expr| has_correlated(expr, true))?,
            node => any(&node.expressions(), |expr| has_correlated(expr, false))?,
        };
        Ok(if needed { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(needed)
}

/// Whether a condition has an IN with a subquery somewhere inside, where it has to be NULL and not false if it is not known.
pub(super) fn has_test_inside(condition: &Expr) -> Answer {
    any(split_conjunction(condition), |part| match part {
        Expr::InSubquery(test) => test.expr.exists(|expr| Ok(matches!(expr, Expr::InSubquery(_)))),
        part => part.exists(|expr| Ok(matches!(expr, Expr::InSubquery(_)))),
    })
}

fn any<'a, T: 'a>(items: impl IntoIterator<Item = &'a T>, mut is: impl FnMut(&'a T) -> Answer) -> Answer {
    for item in items {
        if is(item)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_correlated(subquery: &LogicalPlan) -> Answer {
    Ok(!outer_columns(subquery)?.is_empty())
}

/// Whether `expr` has a correlated subquery other than, `but_plain_values`, plain scalar ones.
fn has_correlated(expr: &Expr, but_plain_values: bool) -> Answer {
    expr.exists(|expr| {
        let Some(subquery) = subquery_in(expr) else { return Ok(false) };
        let plan = subquery.subquery.as_ref();
        let is_plain = but_plain_values && matches!(expr, Expr::ScalarSubquery(_)) && is_plain_value(plan)?;
        Ok(!is_plain && is_correlated(plan)?)
    })
}

/// EXISTS, NOT EXISTS or IN over filtered tables; or IN and NOT IN with a subquery that is not correlated.
fn is_plain_test(condition: &Expr) -> Answer {
    match condition {
        Expr::Not(inner) => Ok(matches!(inner.as_ref(), Expr::Exists(_)) && is_plain_test(inner)?),
        Expr::Exists(exists) => is_filtered(unprojected(&exists.subquery.subquery)?, |_| true),
        Expr::InSubquery(test) => {
            if test.expr.exists(|expr| Ok(subquery_in(expr).is_some()))? {
                return Ok(false);
            }
            if !is_correlated(&test.subquery.subquery)? {
                return Ok(true);
            }
            let has_column = test.expr.exists(|expr| Ok(matches!(expr, Expr::Column(_))))?;
            Ok(!test.negated && has_column && is_filtered(unprojected(&test.subquery.subquery)?, |_| true)?)
        }
        _ => Ok(false),
    }
}

/// `SELECT aggregate FROM tables WHERE column = outside AND ...`
fn is_plain_value(plan: &LogicalPlan) -> Answer {
    let aggregate = match plan {
        LogicalPlan::Projection(projection) if projection.expr.iter().all(|expr| matches!(expr.clone().unalias(), Expr::Column(_))) => {
            projection.input.as_ref()
        }
        plan => plan,
    };
    let LogicalPlan::Aggregate(aggregate) = aggregate else { return Ok(false) };
    if !aggregate.group_expr.is_empty() || any(&aggregate.aggr_expr, reaches_out)? {
        return Ok(false);
    }
    is_filtered(&aggregate.input, |condition| {
        let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = condition else { return false };
        matches!(
            (left.as_ref(), right.as_ref()),
            (Expr::Column(_), Expr::OuterReferenceColumn(..)) | (Expr::OuterReferenceColumn(..), Expr::Column(_))
        )
    })
}

/// Whether `expr` has a subquery or a column of the query around.
fn reaches_out(expr: &Expr) -> Answer {
    expr.exists(|expr| Ok(matches!(expr, Expr::OuterReferenceColumn(..)) || subquery_in(expr).is_some()))
}

/// What is below a projection of columns of the subquery itself.
fn unprojected(plan: &LogicalPlan) -> Result<&LogicalPlan, DataFusionError> {
    match plan {
        LogicalPlan::Projection(projection) if !any(&projection.expr, reaches_out)? => Ok(&projection.input),
        plan => Ok(plan),
    }
}

/// Whether `plan` is a filter of tables, all of whose conditions that reach out compare with the subquery's own columns and are `allowed`.
fn is_filtered(plan: &LogicalPlan, allowed: fn(&Expr) -> bool) -> Answer {
    let LogicalPlan::Filter(filter) = plan else { return is_tables(plan) };
    let refused = any(split_conjunction(&filter.predicate), |condition| {
        if condition.exists(|expr| Ok(subquery_in(expr).is_some()))? {
            return Ok(true);
        }
        let has_own = condition.exists(|expr| Ok(matches!(expr, Expr::Column(_))))?;
        Ok(reaches_out(condition)? && !(has_own && allowed(condition)))
    })?;
    Ok(!refused && is_filtered(&filter.input, allowed)?)
}

/// Whether `plan` only scans, renames, filters and joins tables, and refers to nothing outside.
fn is_tables(plan: &LogicalPlan) -> Answer {
    let only_tables = !plan.exists(|node| {
        Ok(match node {
            LogicalPlan::TableScan(_) | LogicalPlan::SubqueryAlias(_) | LogicalPlan::Projection(_) | LogicalPlan::Filter(_) => false,
            LogicalPlan::Join(join) => join.join_type != JoinType::Inner,
            _ => true,
        })
    })?;
    Ok(only_tables && !is_correlated(plan)?)
}
