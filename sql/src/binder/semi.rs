//! EXISTS, IN and NOT IN that are the whole of a condition, as semi and anti joins.
//!
//! Where the memory is too short for the rows of a subquery, such a join reads both sides from the disk, in order. Counting a subquery's rows for each value
//! outside, as [`super::decorrelate`] does with all other forms, makes several passes over both sides, each of which wants memory at the same time; and
//! DataFusion's own join for NOT IN, which knows what a NULL means there, has no form that goes to disk.
//!
//! # Invariants
//! - A plan that is rewritten has the schema that it had.
//! - A condition of a subquery that can fail is evaluated on no pair of rows on which it was not before: a subquery with such a one is left as it is.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, DataFusionError, JoinType, NullEquality};
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::logical_expr::expr::{AggregateFunction, InSubquery};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Aggregate, Distinct, Expr, ExprSchemable, Filter, Join, JoinConstraint, LogicalPlan, Operator, Projection, Subquery, lit,
};
use weir_catalog::Result;

use super::decorrelate::{Names, is_volatile, outer_columns, subquery_in};
use super::expr::binary_of;
use super::guard::can_fail;
use super::subquery::{count_rows, tests_of_row_among};
use super::{bind_error, project};

type Answer<T> = Result<T, DataFusionError>;

/// `plan` with the tests that can be joins as such.
pub(super) fn join_tests(plan: LogicalPlan) -> Result<LogicalPlan> {
    let names = Names::default();
    plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Filter(filter) => with_joins(filter, &names),
        node => Ok(Transformed::no(node)),
    })
    .map(|transformed| transformed.data)
    .map_err(bind_error)
}

fn with_joins(filter: Filter, names: &Names) -> Answer<Transformed<LogicalPlan>> {
    let schema = filter.input.schema().clone();
    let (mut tests, mut kept, mut outside) = (Vec::new(), Vec::new(), Vec::new());
    for condition in split_conjunction_owned(filter.predicate.clone()) {
        match tests_in(&condition, &schema, false)? {
            Some(found) => tests.extend(found),
            // What looks at a query around stays at the top, where that query looks for it.
            None if refers_outside(&condition)? => outside.push(condition),
            None => kept.push(condition),
        }
    }
    if tests.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Filter(filter)));
    }
    let filtered = |plan: LogicalPlan, conditions: Vec<Expr>| match conjunction(conditions) {
        Some(condition) => Filter::try_new(condition, Arc::new(plan)).map(LogicalPlan::Filter),
        None => Ok(plan),
    };
    let mut plan = filtered(Arc::unwrap_or_clone(filter.input), kept)?;
    for test in tests {
        plan = test.join(plan, names)?;
    }
    filtered(plan, outside).map(Transformed::yes)
}

/// A test of the rows on the left: whether one of `rows` fits.
struct Test {
    /// The rows, which depend on nothing outside.
    rows: LogicalPlan,
    /// What makes one of them fit, over their columns and, as outer references, those on the left.
    conditions: Vec<Expr>,
    /// What has to be equal besides, for IN: on the left, and of the rows.
    equal: Option<(Expr, Expr)>,
    /// Those rows pass for which none fits; with `equal`, for which none could.
    negated: bool,
}

/// The tests that `condition`, negated or not, consists of; `None` where it is something else or has a form that stays as it is.
fn tests_in(condition: &Expr, schema: &DFSchema, negated: bool) -> Answer<Option<Vec<Test>>> {
    match condition {
        Expr::Not(inner) => tests_in(inner, schema, !negated),
        Expr::Exists(exists) => {
            let test = Test::of(&exists.subquery, None, exists.negated != negated, schema)?;
            // One that looks at nothing outside is computed once.
            Ok(test.filter(|test| !test.conditions.is_empty()).map(|test| vec![test]))
        }
        Expr::InSubquery(InSubquery { expr, subquery, negated: not }) => {
            let negated = *not != negated;
            if has_subquery(expr)? || refers_outside(expr)? || expr.is_volatile() {
                return Ok(None);
            }
            let test = Test::of(subquery, Some(expr.as_ref()), negated, schema)?;
            Ok(test.filter(|test| negated || !test.conditions.is_empty()).map(|test| vec![test]))
        }
        other => {
            let Some((equal, unknown, answer)) = tests_of_row_among(other) else { return Ok(None) };
            if answer != negated {
                return Ok(Test::of(&equal.subquery, None, false, schema)?.map(|test| vec![test]));
            }
            let tests = (Test::of(&equal.subquery, None, true, schema)?, Test::of(&unknown.subquery, None, true, schema)?);
            Ok(tests.0.zip(tests.1).map(|(equal, unknown)| vec![equal, unknown]))
        }
    }
}

fn has_subquery(expr: &Expr) -> Answer<bool> {
    expr.exists(|expr| Ok(subquery_in(expr).is_some()))
}

fn refers_outside(expr: &Expr) -> Answer<bool> {
    expr.exists(|expr| match subquery_in(expr) {
        Some(subquery) => Ok(!outer_columns(&subquery.subquery)?.is_empty()),
        None => Ok(matches!(expr, Expr::OuterReferenceColumn(..))),
    })
}

/// `expr` with every column and outer reference that `with` gives something for as that.
fn replaced(expr: Expr, with: &dyn Fn(&Expr) -> Option<Expr>) -> Answer<Expr> {
    let replaced = expr.transform_up(|expr| {
        Ok(match with(&expr) {
            Some(other) => Transformed::yes(other),
            None => Transformed::no(expr),
        })
    });
    replaced.map(|replaced| replaced.data)
}

/// `expr`, over the columns of a projection, over those of its input.
fn below(expr: Expr, projection: &Projection) -> Answer<Expr> {
    replaced(expr, &|expr| {
        let Expr::Column(column) = expr else { return None };
        let at = projection.schema.maybe_index_of_column(column)?;
        Some(projection.expr[at].clone().unalias())
    })
}

impl Test {
    /// `None` where the subquery has a form that stays as it is.
    fn of(subquery: &Subquery, value: Option<&Expr>, negated: bool, schema: &DFSchema) -> Answer<Option<Test>> {
        let mut plan = subquery.subquery.as_ref();
        let mut found = value.map(|_| Expr::Column(Column::from(plan.schema().qualified_field(0))));
        // Neither the order of the rows nor their number matters; for EXISTS nor what is computed of them.
        loop {
            plan = match plan {
                LogicalPlan::Projection(projection) => {
                    found = found.map(|found| below(found, projection)).transpose()?;
                    &projection.input
                }
                LogicalPlan::Sort(sort) if sort.fetch.is_none() => &sort.input,
                LogicalPlan::Distinct(Distinct::All(input)) => input,
                _ => break,
            };
        }
        let (mut conditions, mut own) = (Vec::new(), Vec::new());
        while let LogicalPlan::Filter(filter) = plan {
            for condition in split_conjunction_owned(filter.predicate.clone()) {
                if refers_outside(&condition)? {
                    conditions.push(condition);
                } else {
                    own.push(condition);
                }
            }
            plan = &filter.input;
        }
        if !outer_columns(plan)?.is_empty() {
            return Ok(None);
        }
        for expr in conditions.iter().chain(&found) {
            let joined = refers_outside(expr)?;
            if has_subquery(expr)? || expr.is_volatile() || joined && can_fail(expr) || joined && !knows(schema, expr)? {
                return Ok(None);
            }
        }
        let mut rows = plan.clone();
        if let Some(condition) = conjunction(own) {
            rows = LogicalPlan::Filter(Filter::try_new(condition, Arc::new(rows))?);
        }
        let equal = value.cloned().zip(found);
        let test = Test { rows, conditions, equal, negated };
        Ok(if test.is_read_twice(schema)? && is_volatile(&test.rows)? { None } else { Some(test) })
    }

    /// Whether nothing but the equality decides, and NULLs have to be known before.
    fn is_read_twice(&self, schema: &DFSchema) -> Answer<bool> {
        let depends = self.equal.as_ref().map_or(Ok(false), |(_, found)| refers_outside(found))?;
        Ok(self.negated && self.conditions.is_empty() && !depends && self.can_be_unknown(schema)?)
    }

    fn can_be_unknown(&self, schema: &DFSchema) -> Answer<bool> {
        let Some((left, right)) = &self.equal else { return Ok(false) };
        Ok(left.nullable(schema)? || refers_outside(right)? || right.nullable(self.rows.schema())?)
    }

    /// The rows of `left` that pass.
    fn join(self, left: LogicalPlan, names: &Names) -> Answer<LogicalPlan> {
        let schema = left.schema().clone();
        let (read_twice, can_be_unknown) = (self.is_read_twice(&schema)?, self.can_be_unknown(&schema)?);
        // The columns that count, under names that nothing on the left has.
        let mut exprs: Vec<Expr> = Vec::new();
        let mut columns: Vec<Column> = Vec::new();
        let mut name = |expr: Expr| {
            let known = exprs.iter().position(|known| *known == expr);
            let at = known.unwrap_or_else(|| {
                exprs.push(expr);
                columns.push(names.next("right"));
                columns.len() - 1
            });
            Expr::Column(columns[at].clone())
        };
        let mut over_both = |expr: Expr| -> Answer<Expr> {
            if !refers_outside(&expr)? {
                return Ok(name(expr));
            }
            let mut named = Vec::new();
            expr.apply(|expr| {
                if let Expr::Column(_) = expr {
                    named.push((expr.clone(), name(expr.clone())));
                }
                Ok(datafusion::common::tree_node::TreeNodeRecursion::Continue)
            })?;
            replaced(expr, &|expr| match expr {
                Expr::OuterReferenceColumn(_, column) => Some(Expr::Column(column.clone())),
                Expr::Column(_) => named.iter().find(|(known, _)| known == expr).map(|(_, name)| name.clone()),
                _ => None,
            })
        };
        let mut conditions = self.conditions.into_iter().map(&mut over_both).collect::<Answer<Vec<_>>>()?;
        let equal = match self.equal {
            Some((value, found)) => Some((value, over_both(found)?)),
            None => None,
        };
        if exprs.is_empty() {
            exprs.push(lit(1i64));
            columns.push(names.next("right"));
        }
        let named = exprs.into_iter().zip(&columns).map(|(expr, column)| expr.alias(&column.name)).collect();
        let right = LogicalPlan::Projection(Projection::try_new(named, Arc::new(self.rows))?);
        let mut left = left;
        if let Some((value, found)) = equal {
            let is_equal = binary_of(value.clone(), Operator::Eq, found.clone());
            conditions.push(match self.negated && can_be_unknown && !read_twice {
                true => Expr::IsNotFalse(Box::new(is_equal)),
                false => is_equal,
            });
            if read_twice {
                left = where_known(left, &value, right.clone(), &found, names)?;
            }
        }
        let join_type = if self.negated { JoinType::LeftAnti } else { JoinType::LeftSemi };
        join(left, right, join_type, conjunction(conditions))
    }
}

fn join(left: LogicalPlan, right: LogicalPlan, join_type: JoinType, condition: Option<Expr>) -> Answer<LogicalPlan> {
    let (left, right) = (Arc::new(left), Arc::new(right));
    let nulls = NullEquality::NullEqualsNothing;
    Join::try_new(left, right, Vec::new(), condition, join_type, JoinConstraint::On, nulls, false).map(LogicalPlan::Join)
}

/// Whether all outer references of `expr` are columns of `schema`.
fn knows(schema: &DFSchema, expr: &Expr) -> Answer<bool> {
    let unknown = expr.exists(|expr| Ok(matches!(expr, Expr::OuterReferenceColumn(_, column) if !schema.has_column(column))))?;
    Ok(!unknown)
}

/// The rows of `left` whose `value` is known to be among those `found` on the right or not: all if there are none, and none if one of those is NULL.
fn where_known(left: LogicalPlan, value: &Expr, right: LogicalPlan, found: &Expr, names: &Names) -> Answer<LogicalPlan> {
    let (rows, known) = (names.next("rows"), names.next("known"));
    let count_known = AggregateFunction::new_udf(count_udaf(), vec![found.clone()], false, None, Vec::new(), None);
    let calls = vec![count_rows().alias(&rows.name), Expr::AggregateFunction(count_known).alias(&known.name)];
    let counted = LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(right), Vec::new(), calls)?);
    let columns = left.schema().columns().into_iter().map(Expr::Column).collect();
    // The one row is what the join keeps.
    let both = join(counted, left, JoinType::Inner, None)?;
    let (rows, known) = (Expr::Column(rows), Expr::Column(known));
    let is_known = Expr::IsNotNull(Box::new(value.clone())).and(binary_of(rows.clone(), Operator::Eq, known));
    let condition = binary_of(rows, Operator::Eq, lit(0i64)).or(is_known);
    let filtered = LogicalPlan::Filter(Filter::try_new(condition, Arc::new(both))?);
    project(filtered, columns).map_err(crate::functions::external)
}
