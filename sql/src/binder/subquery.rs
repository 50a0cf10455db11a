//! EXISTS and IN outside of conditions. DataFusion turns them into joins only where rows are filtered by them; elsewhere they become subqueries
//! that count.

use std::sync::Arc;

use arrow::datatypes::Field;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column as PlanColumn, DataFusionError, ScalarValue};
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::logical_expr::expr::{AggregateFunction, InSubquery};
use datafusion::logical_expr::{Aggregate, Case, Expr, ExprSchemable, Filter, LogicalPlan, Operator, lit};
use weir_catalog::{Error, Result};

use super::expr::{binary_of, subquery_of};
use super::{bind_error, project};
use crate::functions::external;

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
        Expr::SetComparison(_) => {
            Err(external(Error::unsupported("a comparison with ANY or ALL of a subquery is only supported in conditions")))
        }
        other => Ok::<_, DataFusionError>(Transformed::no(other)),
    });
    *expr = transformed.map_err(bind_error)?.data;
    Ok(())
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
    let plan = test.subquery.subquery.as_ref().clone();
    let column = Expr::Column(PlanColumn::from(plan.schema().qualified_field(0)));
    let is_simple = !test
        .expr
        .exists(|expr| {
            Ok(matches!(
                expr,
                Expr::AggregateFunction(_) | Expr::WindowFunction(_) | Expr::ScalarSubquery(_) | Expr::OuterReferenceColumn(..)
            ))
        })
        .map_err(bind_error)?;
    if !is_simple {
        return Err(Error::unsupported("IN with a subquery is not supported over an aggregate or a subquery outside of conditions"));
    }
    let ty = column.get_type(plan.schema()).map_err(bind_error)?;
    let value = test.expr.as_ref().clone();
    let outside = value
        .clone()
        .transform_up(|expr| {
            Ok(match expr {
                // The type that it has there is not looked at: the comparison was typed before.
                Expr::Column(name) => {
                    Transformed::yes(Expr::OuterReferenceColumn(Arc::new(Field::new(&name.name, ty.clone(), true)), name))
                }
                other => Transformed::no(other),
            })
        })
        .map_err(bind_error)?
        .data;
    let filtered = |condition: Expr| -> Result<LogicalPlan> {
        Ok(LogicalPlan::Filter(Filter::try_new(condition, Arc::new(plan.clone())).map_err(bind_error)?))
    };
    let found = any_row(filtered(binary_of(column.clone(), Operator::Eq, outside))?)?;
    let null_there = any_row(filtered(Expr::IsNull(Box::new(column)))?)?;
    let value_is_null = Expr::IsNull(Box::new(value)).and(any_row(plan.clone())?);
    let null = Expr::Literal(ScalarValue::Boolean(None), None);
    let case = Case::new(
        None,
        vec![(Box::new(found), Box::new(lit(!test.negated))), (Box::new(null_there.or(value_is_null)), Box::new(null))],
        Some(Box::new(lit(test.negated))),
    );
    Ok(Expr::Case(case))
}
