//! EXISTS, IN, ANY and ALL as subqueries that count: outside of conditions, and where DataFusion's own rules would answer them wrongly.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column as PlanColumn, DataFusionError, ScalarValue};
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::logical_expr::expr::{AggregateFunction, Exists, InSubquery, SetComparison, SetQuantifier};
use datafusion::logical_expr::{Aggregate, Case, Expr, ExprSchemable, Filter, LogicalPlan, Operator, Subquery, lit};
use weir_catalog::{Error, Result};

use super::decorrelate::{at_most_one_row, subquery_in};
use super::expr::{binary_of, subquery_of};
use super::guard::{can_fail, opaque_case};
use super::scope::Scope;
use super::{bind_error, project};
use crate::functions::{Kernel, external};

/// `count(*)`
pub(super) fn count_rows() -> Expr {
    Expr::AggregateFunction(AggregateFunction::new_udf(count_udaf(), vec![lit(1i64)], false, None, Vec::new(), None))
}

/// Replaces EXISTS and IN in an expression by scalar subqueries.
pub(super) fn to_scalar(expr: &mut Expr) -> Result<()> {
    let transformed = std::mem::take(expr).transform_up(|expr| match expr {
        Expr::Exists(exists) => {
            let found = any_row(exists.subquery.subquery.as_ref().clone()).map_err(external)?;
            Ok(Transformed::yes(if exists.negated { Expr::Not(Box::new(found)) } else { found }))
        }
        Expr::InSubquery(test) => Ok(Transformed::yes(contains(test).map_err(external)?)),
        Expr::SetComparison(comparison) => Ok(Transformed::yes(compares(comparison).map_err(external)?)),
        other => Ok::<_, DataFusionError>(Transformed::no(other)),
    });
    *expr = transformed.map_err(bind_error)?.data;
    Ok(())
}

/// The plan of a scalar subquery, whose value is NULL where it has no row: its column can be NULL even if no row's is.
pub(super) fn of_any_number(plan: LogicalPlan) -> Result<LogicalPlan> {
    let field = plan.schema().field(0);
    if field.is_nullable() || has_one_row(&plan) {
        return Ok(plan);
    }
    let (data_type, name) = (field.data_type().clone(), field.name().clone());
    let column = Expr::Column(PlanColumn::from(plan.schema().qualified_field(0)));
    project(plan, vec![crate::functions::call("nullable", Kernel::Nullable, data_type, vec![column]).alias(name)])
}

fn has_one_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        LogicalPlan::EmptyRelation(empty) => empty.produce_one_row,
        LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) | LogicalPlan::Sort(_) => plan.inputs().into_iter().all(has_one_row),
        _ => false,
    }
}

/// Has the subqueries in `expr` that could fail computed only where all of `conditions` are true: CASE and COALESCE evaluate what they take and no more, and
/// a subquery is computed for all rows at once. Elsewhere they are computed over no rows.
///
/// A condition that holds an aggregate, a window function or a subquery itself can't be seen from inside, and keeps none from being computed.
pub(super) fn only_where(expr: &mut Expr, conditions: &[Expr], scope: &Scope<'_>) -> Result<()> {
    let rows_fail = |plan: &LogicalPlan| -> Result<bool, DataFusionError> {
        let mut fail = false;
        plan.apply_with_subqueries(|node| {
            fail |= node.expressions().iter().any(can_fail);
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(fail)
    };
    let fails = |expr: &Expr| -> Result<bool, DataFusionError> {
        let Some(subquery) = subquery_in(expr) else { return Ok(false) };
        let is_value = matches!(expr, Expr::ScalarSubquery(_));
        Ok(is_value && !at_most_one_row(&subquery.subquery) || rows_fail(&subquery.subquery)?)
    };
    let wanted = expr.exists(fails);
    if !wanted.map_err(bind_error)? {
        return Ok(());
    }
    let mut seen: Vec<Expr> = Vec::new();
    for condition in conditions {
        let is_hidden = condition.exists(|expr| {
            let is_computed = matches!(expr, Expr::AggregateFunction(_) | Expr::WindowFunction(_));
            Ok(is_computed || subquery_in(expr).is_some())
        });
        if !is_hidden.map_err(bind_error)? {
            seen.push(condition.clone());
        }
    }
    let Some(condition) = seen.into_iter().reduce(Expr::and) else { return Ok(()) };
    let outside = condition
        .transform_up(|expr| {
            Ok(match expr {
                Expr::Column(name) => {
                    let known = scope.columns.iter().find(|column| column.expr == Expr::Column(name.clone()));
                    let known = known.ok_or_else(|| external(Error::internal(format!("column {name} has no type"))))?;
                    Transformed::yes(Expr::OuterReferenceColumn(Arc::new(Field::new(&name.name, known.ty.to_arrow(), true)), name))
                }
                other => Transformed::no(other),
            })
        })
        .map_err(bind_error)?
        .data;
    let guard = |subquery: &mut Subquery| -> Result<(), DataFusionError> {
        *subquery = subquery_of(guarded(subquery.subquery.as_ref().clone(), &outside).map_err(external)?);
        Ok(())
    };
    let transformed = std::mem::take(expr).transform_up(|mut expr| {
        if !fails(&expr)? {
            return Ok(Transformed::no(expr));
        }
        match &mut expr {
            Expr::ScalarSubquery(subquery) => guard(subquery)?,
            Expr::Exists(exists) => guard(&mut exists.subquery)?,
            Expr::InSubquery(test) => guard(&mut test.subquery)?,
            Expr::SetComparison(comparison) => guard(&mut comparison.subquery)?,
            _ => {}
        }
        Ok(Transformed::yes(expr))
    });
    *expr = transformed.map_err(bind_error)?.data;
    Ok(())
}

/// `plan` without any row in it where `condition`, on columns outside, is not true.
fn guarded(plan: LogicalPlan, condition: &Expr) -> Result<LogicalPlan> {
    let plan = match plan {
        // By itself it would be evaluated before the rows are joined to what is outside.
        LogicalPlan::Filter(filter) if can_fail(&filter.predicate) => {
            let predicate = opaque_case(vec![(condition.clone(), filter.predicate)], Some(lit(false)));
            LogicalPlan::Filter(Filter::try_new(predicate, filter.input).map_err(bind_error)?)
        }
        // An aggregate without GROUP BY has a row all the same.
        LogicalPlan::Projection(projection) if projection.expr.iter().any(can_fail) => {
            let exprs = projection.expr.into_iter().zip(projection.schema.iter()).map(|(expr, (qualifier, field))| {
                if !can_fail(&expr) {
                    return expr;
                }
                let value = expr.unalias();
                let guarded = match field.data_type() {
                    DataType::Boolean => opaque_case(vec![(condition.clone(), value)], None),
                    _ => Expr::Case(Case::new(None, vec![(Box::new(condition.clone()), Box::new(value))], None)),
                };
                guarded.alias_qualified(qualifier.cloned(), field.name())
            });
            let exprs = exprs.collect();
            project(Arc::unwrap_or_clone(projection.input), exprs)?
        }
        plan => plan,
    };
    if plan.inputs().is_empty() {
        return filtered(&plan, condition.clone());
    }
    let guarded = plan.map_children(|input| guarded(input, condition).map(Transformed::yes).map_err(external));
    guarded.map(|guarded| guarded.data).map_err(bind_error)
}

/// Whether `plan` has a row, as a scalar subquery.
fn any_row(plan: LogicalPlan) -> Result<Expr> {
    let aggregate = Aggregate::try_new(Arc::new(plan), Vec::new(), vec![count_rows()]).map_err(bind_error)?;
    let count = PlanColumn::from(aggregate.schema.qualified_field(0));
    let some = binary_of(Expr::Column(count), Operator::Gt, lit(0i64)).alias("exists");
    Ok(Expr::ScalarSubquery(subquery_of(project(LogicalPlan::Aggregate(aggregate), vec![some])?)))
}

/// `value IN (subquery)`: true if it is there, NULL if it could be one of the NULLs there or is itself NULL, false otherwise.
fn contains(test: InSubquery) -> Result<Expr> {
    let value = *test.expr;
    let (plan, column, outside) = seen_from_inside(&value, &test.subquery, "IN")?;
    let found = any_row(filtered(&plan, binary_of(column.clone(), Operator::Eq, outside))?)?;
    let null_there = any_row(filtered(&plan, Expr::IsNull(Box::new(column)))?)?;
    let value_is_null = Expr::IsNull(Box::new(value)).and(any_row(plan)?);
    Ok(three_valued(found, null_there.or(value_is_null), !test.negated))
}

/// `value op ANY (subquery)` and `value op ALL (subquery)`: decided by a row for which the comparison is true, or false; else NULL if it is NULL for one.
fn compares(comparison: SetComparison) -> Result<Expr> {
    let (plan, column, outside) = seen_from_inside(&comparison.expr, &comparison.subquery, "ANY or ALL")?;
    let condition = binary_of(outside, comparison.op, column);
    let is_any = comparison.quantifier == SetQuantifier::Any;
    let deciding = if is_any { condition.clone() } else { Expr::Not(Box::new(condition.clone())) };
    let decided = any_row(filtered(&plan, deciding)?)?;
    let unknown = any_row(filtered(&plan, Expr::IsNull(Box::new(condition)))?)?;
    Ok(three_valued(decided, unknown, is_any))
}

/// `answer` if it is `decided`, NULL if it is `unknown`, else the contrary.
fn three_valued(decided: Expr, unknown: Expr, answer: bool) -> Expr {
    let null = Expr::Literal(ScalarValue::Boolean(None), None);
    let cases = vec![(Box::new(decided), Box::new(lit(answer))), (Box::new(unknown), Box::new(null))];
    Expr::Case(Case::new(None, cases, Some(Box::new(lit(!answer)))))
}

fn filtered(plan: &LogicalPlan, condition: Expr) -> Result<LogicalPlan> {
    Ok(LogicalPlan::Filter(Filter::try_new(condition, Arc::new(plan.clone())).map_err(bind_error)?))
}

/// The plan of a subquery, its column, and `value`, of the query around it, as the subquery sees it.
fn seen_from_inside(value: &Expr, subquery: &Subquery, what: &str) -> Result<(LogicalPlan, Expr, Expr)> {
    let plan = subquery.subquery.as_ref().clone();
    let column = Expr::Column(PlanColumn::from(plan.schema().qualified_field(0)));
    let ty = column.get_type(plan.schema()).map_err(bind_error)?;
    let outside = from_outside(value, &ty, what)?;
    Ok((plan, column, outside))
}

/// `value`, of type `ty`, as a subquery of the query that it stands in sees it. The type that its columns have there is not looked at: what is done with
/// it was typed before.
pub(super) fn from_outside(value: &Expr, ty: &DataType, what: &str) -> Result<Expr> {
    let is_simple = !value
        .exists(|expr| Ok(matches!(expr, Expr::AggregateFunction(_) | Expr::WindowFunction(_)) || subquery_in(expr).is_some()))
        .map_err(bind_error)?;
    if !is_simple {
        let text = format!("{what} with a subquery is not supported here for a value that holds an aggregate or a subquery");
        return Err(Error::unsupported(text));
    }
    let outside = value.clone().transform_up(|expr| {
        Ok(match expr {
            Expr::Column(name) => Transformed::yes(Expr::OuterReferenceColumn(Arc::new(Field::new(&name.name, ty.clone(), true)), name)),
            other => Transformed::no(other),
        })
    });
    outside.map(|outside| outside.data).map_err(bind_error)
}

/// `answer` if a row of `plan` is `equal` to one outside, NULL if one could be, else the contrary.
pub(super) fn row_among(plan: &LogicalPlan, equal: Expr, answer: bool) -> Result<Expr> {
    let is_unknown = Expr::IsNull(Box::new(equal.clone()));
    let any = |condition| Ok(Expr::Exists(Exists::new(subquery_of(filtered(plan, condition)?), false)));
    Ok(three_valued(any(equal)?, any(is_unknown)?, answer))
}

/// The two tests of [`row_among`], and its answer where the first is true, if `condition` is one.
pub(super) fn tests_of_row_among(condition: &Expr) -> Option<(&Exists, &Exists, bool)> {
    let Expr::Case(Case { expr: None, when_then_expr, else_expr: Some(otherwise) }) = condition else { return None };
    let [(decided, answer), (unknown, null)] = when_then_expr.as_slice() else { return None };
    let (Expr::Exists(decided), Expr::Exists(unknown)) = (decided.as_ref(), unknown.as_ref()) else { return None };
    let (Expr::Literal(ScalarValue::Boolean(Some(answer)), _), Expr::Literal(ScalarValue::Boolean(None), _)) =
        (answer.as_ref(), null.as_ref())
    else {
        return None;
    };
    (**otherwise == lit(!answer) && !decided.negated && !unknown.negated).then_some((decided, unknown, *answer))
}
