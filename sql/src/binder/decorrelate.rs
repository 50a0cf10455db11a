//! Correlated subqueries as joins: all but the plain ones, which DataFusion's own rules take (see [`super::plain`]).
//!
//! A subquery S that refers to columns o of the query P around it is computed for the distinct values of o in P (the *domain*, D), all at once, and joined
//! to P by them: P LEFT JOIN (D with its rows of S) ON o = o, NULL equal to itself. In S, D is joined in where nothing refers to o any more, and its columns
//! are carried up from there: through filters and projections as they are, as further columns of GROUP BY and PARTITION BY.
//!
//! Source: Neumann and Kemper, "Unnesting Arbitrary Queries", BTW 2015.
//!
//! # Invariants
//! - A plan that is rewritten has the schema that it had.
//! - A subquery that gives a value gives at most one row for each row of P, or `21000`.

use std::cell::Cell;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, DataFusionError, ExprSchema, JoinType, NullEquality, ScalarValue, TableReference};
use datafusion::functions_aggregate::first_last::first_value_udaf;
use datafusion::functions_window::row_number::row_number_udwf;
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction};
use datafusion::logical_expr::{
    Aggregate, Case, Distinct, Expr, FetchType, Filter, Join, Limit, LogicalPlan, LogicalPlanBuilder, Operator, Projection, SkipType,
    SortExpr, Subquery, Union, Window, WindowFunctionDefinition, lit,
};
use weir_catalog::{Error, Result};

use super::expr::{binary_of, subquery_of};
use super::plain::has_test_inside;
use super::subquery::{count_rows, to_scalar};
use super::{bind_error, project};
use crate::functions::{Kernel, external};

/// `plan` with its correlated subqueries in expressions and in FROM (LATERAL) as joins. Errors with `0A000` where one has a form that can't be.
pub(super) fn decorrelate(plan: LogicalPlan) -> Result<LogicalPlan> {
    let names = Names::default();
    plan.transform_up_with_subqueries(|node| {
        let node = match node {
            LogicalPlan::Join(join) if has_lateral(&join.right) => return names.lateral(join).map(Transformed::yes).map_err(external),
            LogicalPlan::Filter(filter) => tests_as_values(filter)?,
            LogicalPlan::Join(join) => condition_above(join)?,
            node => node,
        };
        if correlated_values(&node)?.is_empty() {
            return Ok(Transformed::yes(node));
        }
        names.values(node).map(Transformed::yes).map_err(external)
    })
    .map(|transformed| transformed.data)
    .map_err(bind_error)
}

/// Whether `expr` has a correlated subquery.
fn has_correlated(expr: &Expr) -> Result<bool, DataFusionError> {
    expr.exists(|expr| match subquery_in(expr) {
        Some(subquery) => Ok(!outer_columns(&subquery.subquery)?.is_empty()),
        None => Ok(false),
    })
}

/// A join whose condition has correlated subqueries as one without a condition, filtered by it.
fn condition_above(join: Join) -> Result<LogicalPlan, DataFusionError> {
    let correlated = match &join.filter {
        Some(filter) => has_correlated(filter)?,
        None => false,
    };
    match join.filter.clone().filter(|_| correlated) {
        None => Ok(LogicalPlan::Join(join)),
        Some(filter) if join.join_type == JoinType::Inner => {
            let joined = LogicalPlan::Join(Join { filter: None, ..join });
            tests_as_values(Filter::try_new(filter, Arc::new(joined))?)
        }
        Some(_) => Err(external(Error::unsupported("a correlated subquery in the condition of an outer join is not supported"))),
    }
}

/// A filter whose EXISTS and IN count rows instead, if they are correlated or not the whole of a condition.
fn tests_as_values(filter: Filter) -> Result<LogicalPlan, DataFusionError> {
    if !has_correlated(&filter.predicate)? && !has_test_inside(&filter.predicate)? {
        return Ok(LogicalPlan::Filter(filter));
    }
    let mut predicate = filter.predicate;
    to_scalar(&mut predicate).map_err(external)?;
    Filter::try_new(predicate, filter.input).map(LogicalPlan::Filter)
}

fn unsupported(what: &str) -> Error {
    Error::unsupported(format!("{what} in a correlated subquery is not supported"))
}

/// The scalar subqueries in the expressions of `node` that refer to columns outside of themselves.
fn correlated_values(node: &LogicalPlan) -> Result<Vec<Subquery>, DataFusionError> {
    let mut found: Vec<Subquery> = Vec::new();
    node.apply_expressions(|expr| {
        expr.apply(|expr| {
            if let Expr::ScalarSubquery(subquery) = expr
                && !found.contains(subquery)
                && !outer_columns(&subquery.subquery)?.is_empty()
            {
                found.push(subquery.clone());
            }
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(found)
}

pub(super) fn has_lateral(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::Subquery(_))
        || matches!(plan, LogicalPlan::SubqueryAlias(_) | LogicalPlan::Projection(_)) && plan.inputs().into_iter().any(has_lateral)
}

/// `plan` with the subqueries in the place of tables as plans of their own.
fn without_lateral(plan: &LogicalPlan) -> Result<LogicalPlan> {
    match plan {
        LogicalPlan::Subquery(subquery) => Ok(subquery.subquery.as_ref().clone()),
        LogicalPlan::SubqueryAlias(_) | LogicalPlan::Projection(_) => {
            let inputs = plan.inputs().into_iter().map(without_lateral).collect::<Result<Vec<_>>>()?;
            plan.with_new_exprs(plan.expressions(), inputs).map_err(bind_error)
        }
        other => Ok(other.clone()),
    }
}

/// The columns outside of `plan` that it refers to, each once.
pub(super) fn outer_columns(plan: &LogicalPlan) -> Result<Vec<Column>, DataFusionError> {
    let mut found: Vec<Column> = Vec::new();
    plan.apply(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                let columns = match expr {
                    Expr::OuterReferenceColumn(_, column) => vec![column.clone()],
                    _ => match subquery_in(expr) {
                        Some(subquery) => outer_columns(&subquery.subquery)?.into_iter().filter(|column| !is_local(node, column)).collect(),
                        None => Vec::new(),
                    },
                };
                for column in columns {
                    if !found.contains(&column) {
                        found.push(column);
                    }
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(found)
}

pub(super) fn subquery_in(expr: &Expr) -> Option<&Subquery> {
    match expr {
        Expr::ScalarSubquery(subquery) => Some(subquery),
        Expr::Exists(exists) => Some(&exists.subquery),
        Expr::InSubquery(test) => Some(&test.subquery),
        Expr::SetComparison(comparison) => Some(&comparison.subquery),
        _ => None,
    }
}

/// Whether a subquery in an expression of `node` finds `column` in the node's input.
fn is_local(node: &LogicalPlan, column: &Column) -> bool {
    node.inputs().into_iter().any(|input| input.schema().has_column(column))
}

/// The columns of a plan, qualified.
fn columns_of(schema: &DFSchema) -> Vec<Column> {
    schema.columns()
}

fn column_exprs(columns: &[Column]) -> impl Iterator<Item = Expr> {
    columns.iter().cloned().map(Expr::Column)
}

/// Keys that are equal, as any others are, where `keys` are or are both NULL.
///
/// A join whose NULLs equal each other would do, were it not that DataFusion adds the equalities of filters above to its keys, which then hold for NULLs, too.
fn null_safe(
    keys: &(Vec<Column>, Vec<Column>),
    left_schema: &DFSchema,
    right_schema: &DFSchema,
) -> Result<(Vec<Expr>, Vec<Expr>), DataFusionError> {
    let mut safe = (Vec::new(), Vec::new());
    for (left, right) in keys.0.iter().zip(&keys.1) {
        let (left_field, right_field) = (left_schema.field_from_column(left)?, right_schema.field_from_column(right)?);
        let (left, right) = (Expr::Column(left.clone()), Expr::Column(right.clone()));
        if !left_field.is_nullable() && !right_field.is_nullable() {
            safe.0.push(left);
            safe.1.push(right);
            continue;
        }
        let some = Expr::Literal(ScalarValue::new_default(left_field.data_type())?, None);
        let is_null = |column: &Expr| Expr::IsNull(Box::new(column.clone()));
        let known = |column: Expr| {
            let cases = vec![(Box::new(is_null(&column)), Box::new(some.clone()))];
            Expr::Case(Case::new(None, cases, Some(Box::new(column))))
        };
        safe.0.extend([is_null(&left), known(left)]);
        safe.1.extend([is_null(&right), known(right)]);
    }
    Ok(safe)
}

/// `left JOIN right` on equality of `keys`, where NULL equals itself.
fn join_on(
    left: LogicalPlan,
    right: LogicalPlan,
    join_type: JoinType,
    keys: (Vec<Column>, Vec<Column>),
    filter: Option<Expr>,
) -> Result<LogicalPlan> {
    let builder = LogicalPlanBuilder::from(left);
    let joined = match (keys.0.is_empty(), join_type, filter) {
        (true, JoinType::Inner, None) => builder.cross_join(right),
        (true, _, filter) => builder.join_on(right, join_type, [filter.unwrap_or_else(|| lit(true))]),
        (false, _, filter) => {
            let keys = null_safe(&keys, builder.schema(), right.schema()).map_err(bind_error)?;
            builder.join_with_expr_keys(right, join_type, keys, filter)
        }
    };
    joined.and_then(LogicalPlanBuilder::build).map_err(bind_error)
}

/// Whether a plan may give other rows when it is run again.
pub(super) fn is_volatile(plan: &LogicalPlan) -> Result<bool, DataFusionError> {
    plan.exists(|node| {
        let mut volatile = false;
        node.apply_expressions(|expr| {
            volatile |= expr.is_volatile();
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(volatile)
    })
}

/// Gives the columns that the rewrite makes names of their own.
#[derive(Default)]
pub(super) struct Names(Cell<usize>);

impl Names {
    pub(super) fn next(&self, what: &str) -> Column {
        self.0.set(self.0.get() + 1);
        Column::new_unqualified(format!("__{what}_{}", self.0.get()))
    }

    /// The distinct values of `outer` in `plan`.
    fn unnesting(&self, plan: &LogicalPlan, outer: Vec<Column>) -> Result<Unnesting<'_>> {
        if is_volatile(plan).map_err(bind_error)? {
            return Err(Error::unsupported("a correlated subquery over rows with random() is not supported"));
        }
        let columns: Vec<Column> = outer.iter().map(|_| self.next("outer")).collect();
        let exprs = outer.iter().zip(&columns).map(|(outer, column)| Expr::Column(outer.clone()).alias(&column.name)).collect();
        let domain = match outer.is_empty() {
            true => None,
            false => Some(LogicalPlan::Distinct(Distinct::All(Arc::new(project(plan.clone(), exprs)?)))),
        };
        Ok(Unnesting { names: self, outer, columns, domain })
    }

    /// The columns of `plan` that `subquery` refers to.
    fn referred(&self, subquery: &LogicalPlan, plan: &LogicalPlan) -> Result<Vec<Column>> {
        let mut columns = outer_columns(subquery).map_err(bind_error)?;
        columns.retain(|column| plan.schema().has_column(column));
        Ok(columns)
    }

    /// `node` with its correlated scalar subqueries joined to its input.
    fn values(&self, node: LogicalPlan) -> Result<LogicalPlan> {
        let subqueries = correlated_values(&node).map_err(bind_error)?;
        let [input] = node.inputs()[..] else {
            return Err(Error::unsupported("a correlated subquery in VALUES or the condition of a join is not supported"));
        };
        let mut joined = input.clone();
        let mut values = Vec::with_capacity(subqueries.len());
        for subquery in &subqueries {
            let plan = subquery.subquery.as_ref();
            let unnesting = self.unnesting(input, self.referred(plan, input)?)?;
            let value = self.next("value");
            let rows = unnesting.single(plan, &value)?;
            joined = join_on(joined, rows, JoinType::Left, (unnesting.outer, unnesting.columns), None)?;
            values.push(value);
        }
        let fields: Vec<(Option<TableReference>, String)> =
            node.schema().iter().map(|(qualifier, field)| (qualifier.cloned(), field.name().clone())).collect();
        let replaced = |expr: Expr| -> Result<(Expr, bool)> {
            let transformed = expr.transform_up(|expr| {
                Ok::<_, DataFusionError>(match &expr {
                    Expr::ScalarSubquery(subquery) => match subqueries.iter().position(|known| known == subquery) {
                        Some(at) => Transformed::yes(Expr::Column(values[at].clone())),
                        None => Transformed::no(expr),
                    },
                    _ => Transformed::no(expr),
                })
            });
            transformed.map(|transformed| (transformed.data, transformed.transformed)).map_err(bind_error)
        };
        let named = |exprs: &[Expr], first: usize| -> Result<Vec<Expr>> {
            exprs
                .iter()
                .zip(&fields[first..])
                .map(|(expr, (qualifier, name))| {
                    let (expr, changed) = replaced(expr.clone())?;
                    Ok(if changed { expr.unalias().alias_qualified(qualifier.clone(), name) } else { expr })
                })
                .collect()
        };
        match &node {
            LogicalPlan::Projection(projection) => {
                let exprs = named(&projection.expr, 0)?;
                project(joined, exprs)
            }
            LogicalPlan::Aggregate(aggregate) => {
                let group = named(&aggregate.group_expr, 0)?;
                let calls = named(&aggregate.aggr_expr, aggregate.group_expr.len())?;
                Ok(LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(joined), group, calls).map_err(bind_error)?))
            }
            LogicalPlan::Filter(_) | LogicalPlan::Sort(_) => {
                let exprs = node.expressions().into_iter().map(|expr| Ok(replaced(expr)?.0)).collect::<Result<Vec<_>>>()?;
                let columns = columns_of(node.schema());
                let changed = node.with_new_exprs(exprs, vec![joined]).map_err(bind_error)?;
                project(changed, column_exprs(&columns).collect())
            }
            other => Err(Error::unsupported(format!("a correlated subquery in {} is not supported", place(other)))),
        }
    }

    /// A join with a LATERAL subquery.
    fn lateral(&self, join: Join) -> Result<LogicalPlan> {
        if !matches!(join.join_type, JoinType::Inner | JoinType::Left) {
            return Err(Error::unsupported("a RIGHT or FULL JOIN with a LATERAL subquery is not supported"));
        }
        let columns = columns_of(&join.schema);
        if let Some(condition) = &join.filter
            && has_correlated(condition).map_err(bind_error)?
        {
            return Err(Error::unsupported("a correlated subquery in the condition of a join with a LATERAL subquery is not supported"));
        }
        let right = without_lateral(&join.right)?;
        let unnesting = self.unnesting(&join.left, self.referred(&right, &join.left)?)?;
        let rows = unnesting.rows(&right)?;
        let equal = join.on.into_iter().map(|(left, right)| binary_of(left, Operator::Eq, right));
        let filter = equal.chain(join.filter).reduce(Expr::and);
        let joined = join_on(join.left.as_ref().clone(), rows, join.join_type, (unnesting.outer, unnesting.columns), filter)?;
        project(joined, column_exprs(&columns).collect())
    }
}

/// The computation of a subquery for every value of the columns outside that it refers to.
struct Unnesting<'a> {
    names: &'a Names,
    /// The columns outside.
    outer: Vec<Column>,
    /// What they are called in the domain.
    columns: Vec<Column>,
    /// Their distinct values; `None` where there are no such columns.
    domain: Option<LogicalPlan>,
}

impl Unnesting<'_> {
    /// The domain with the one value of `plan`, `NULL` or no row where it has none, as the column `value`.
    fn single(&self, plan: &LogicalPlan, value: &Column) -> Result<LogicalPlan> {
        let [result] = &columns_of(plan.schema())[..] else {
            return Err(Error::internal("a scalar subquery has more than one column"));
        };
        let rows = self.rows(plan)?;
        let domain = column_exprs(&self.columns);
        if at_most_one_row(plan) {
            let result = Expr::Column(result.clone()).alias(&value.name);
            return project(rows, domain.chain([result]).collect());
        }
        let first = AggregateFunction::new_udf(first_value_udaf(), vec![Expr::Column(result.clone())], false, None, Vec::new(), None);
        let (found, count) = (self.names.next("first"), self.names.next("count"));
        let calls = vec![Expr::AggregateFunction(first).alias(&found.name), count_rows().alias(&count.name)];
        let grouped = Aggregate::try_new(Arc::new(rows), domain.collect(), calls).map_err(bind_error)?;
        let data_type = plan.schema().field(0).data_type().clone();
        let checked =
            crate::functions::call("single_value", Kernel::SingleValue, data_type, vec![Expr::Column(found), Expr::Column(count)]);
        project(LogicalPlan::Aggregate(grouped), column_exprs(&self.columns).chain([checked.alias(&value.name)]).collect())
    }

    fn is_correlated(&self, plan: &LogicalPlan) -> Result<bool> {
        Ok(outer_columns(plan).map_err(bind_error)?.iter().any(|column| self.outer.contains(column)))
    }

    /// The columns of the domain, then those of `schema`.
    fn shaped(&self, plan: LogicalPlan, schema: &DFSchema) -> Result<LogicalPlan> {
        project(plan, column_exprs(&self.columns).chain(column_exprs(&columns_of(schema))).collect())
    }

    /// The domain, each value with the rows that `plan` has for it. Its columns are the domain's and those of `plan`.
    fn rows(&self, plan: &LogicalPlan) -> Result<LogicalPlan> {
        if !self.is_correlated(plan)? {
            return match &self.domain {
                Some(domain) => join_on(domain.clone(), plan.clone(), JoinType::Inner, (Vec::new(), Vec::new()), None),
                None => Ok(plan.clone()),
            };
        }
        match plan {
            LogicalPlan::Filter(filter) => {
                let predicate = self.inside(filter.predicate.clone(), plan)?;
                let input = self.rows(&filter.input)?;
                Ok(LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(input)).map_err(bind_error)?))
            }
            LogicalPlan::Projection(projection) => {
                let exprs = self.named(&projection.expr, &projection.schema, 0, plan)?;
                let input = self.rows(&projection.input)?;
                project(input, column_exprs(&self.columns).chain(exprs).collect())
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let input = self.rows(&alias.input)?;
                let renamed = columns_of(alias.input.schema())
                    .into_iter()
                    .zip(alias.schema.iter())
                    .map(|(column, (qualifier, field))| Expr::Column(column).alias_qualified(qualifier.cloned(), field.name()));
                project(input, column_exprs(&self.columns).chain(renamed).collect())
            }
            LogicalPlan::Aggregate(aggregate) => self.aggregate(aggregate, plan),
            LogicalPlan::Distinct(Distinct::All(input)) => {
                let input = self.shaped(self.rows(input)?, input.schema())?;
                Ok(LogicalPlan::Distinct(Distinct::All(Arc::new(input))))
            }
            // Without a LIMIT, the order of a subquery's rows means nothing.
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => self.rows(&sort.input),
            LogicalPlan::Limit(limit) => self.limit(limit),
            LogicalPlan::Union(union) => self.union(union),
            LogicalPlan::Join(join) => self.join(join, plan),
            LogicalPlan::Distinct(_) => Err(unsupported("DISTINCT ON")),
            LogicalPlan::Window(window) => self.window(window, plan),
            LogicalPlan::Values(_) => Err(unsupported("VALUES")),
            other => Err(unsupported(&other.display().to_string())),
        }
    }

    /// `expr`, of `node`, with the domain's columns for those outside.
    fn inside(&self, expr: Expr, node: &LogicalPlan) -> Result<Expr> {
        self.replace_outer(expr, Some(node), &|column| Expr::Column(column.clone())).map_err(bind_error)
    }

    fn replace_outer(&self, expr: Expr, node: Option<&LogicalPlan>, with: &dyn Fn(&Column) -> Expr) -> Result<Expr, DataFusionError> {
        let place = |column: &Column| self.outer.iter().position(|outer| outer == column);
        let data = expr
            .transform_up(|expr| {
                let mut expr = expr;
                match &mut expr {
                    Expr::OuterReferenceColumn(_, column) => {
                        return Ok(match place(column) {
                            Some(at) => Transformed::yes(with(&self.columns[at])),
                            None => Transformed::no(expr),
                        });
                    }
                    Expr::ScalarSubquery(subquery) => *subquery = self.renamed(subquery, node)?,
                    Expr::Exists(exists) => exists.subquery = self.renamed(&exists.subquery, node)?,
                    Expr::InSubquery(test) => test.subquery = self.renamed(&test.subquery, node)?,
                    Expr::SetComparison(comparison) => comparison.subquery = self.renamed(&comparison.subquery, node)?,
                    _ => return Ok(Transformed::no(expr)),
                }
                Ok(Transformed::yes(expr))
            })?
            .data;
        Ok(data)
    }

    /// A subquery in an expression of `node`, which goes on referring to what is outside of it, now in the domain.
    fn renamed(&self, subquery: &Subquery, node: Option<&LogicalPlan>) -> Result<Subquery, DataFusionError> {
        let outer = outer_columns(&subquery.subquery)?;
        let reaches_out = |column: &Column| self.outer.contains(column) && !node.is_some_and(|node| is_local(node, column));
        if !outer.iter().any(reaches_out) {
            return Ok(subquery.clone());
        }
        if outer.iter().any(|column| self.outer.contains(column) && !reaches_out(column)) {
            return Err(external(unsupported("a subquery with columns of two queries around it that have one name")));
        }
        let schema = self.domain.as_ref().map(|domain| domain.schema().clone());
        let plan = subquery.subquery.as_ref().clone().transform_up(|inner| {
            inner.map_expressions(|expr| {
                let replaced = self.replace_outer(expr, None, &|column| {
                    let field = schema.as_ref().and_then(|schema| schema.field_with_unqualified_name(&column.name).ok());
                    match field {
                        Some(field) => Expr::OuterReferenceColumn(Arc::clone(field), column.clone()),
                        None => Expr::Column(column.clone()),
                    }
                })?;
                Ok(Transformed::yes(replaced))
            })
        })?;
        Ok(subquery_of(plan.data))
    }

    /// `exprs`, of `node`, whose columns in `schema` begin at `first` and keep their names.
    fn named(&self, exprs: &[Expr], schema: &DFSchema, first: usize, node: &LogicalPlan) -> Result<Vec<Expr>> {
        exprs
            .iter()
            .enumerate()
            .map(|(at, expr)| {
                let inside = self.inside(expr.clone(), node)?;
                if inside == *expr {
                    return Ok(inside);
                }
                let (qualifier, field) = schema.qualified_field(first + at);
                Ok(inside.unalias().alias_qualified(qualifier.cloned(), field.name()))
            })
            .collect()
    }

    fn aggregate(&self, aggregate: &Aggregate, plan: &LogicalPlan) -> Result<LogicalPlan> {
        if aggregate.group_expr.iter().any(|expr| matches!(expr, Expr::GroupingSet(_))) {
            return Err(unsupported("GROUPING SETS"));
        }
        let group = self.named(&aggregate.group_expr, &aggregate.schema, 0, plan)?;
        let calls = self.named(&aggregate.aggr_expr, &aggregate.schema, aggregate.group_expr.len(), plan)?;
        let is_global = group.is_empty();
        let input = Arc::new(self.rows(&aggregate.input)?);
        let group = column_exprs(&self.columns).chain(group).collect();
        let grouped = LogicalPlan::Aggregate(Aggregate::try_new(input, group, calls).map_err(bind_error)?);
        let Some(domain) = self.domain.as_ref().filter(|_| is_global) else { return Ok(grouped) };
        // An aggregate without GROUP BY has a row for every value, also for one that has no rows.
        let there: Vec<Column> = self.columns.iter().map(|_| self.names.next("there")).collect();
        let marker = self.names.next("found");
        let results = columns_of(&aggregate.schema);
        let renamed = column_exprs(&self.columns).zip(&there).map(|(column, name)| column.alias(&name.name));
        let found = project(grouped, renamed.chain([lit(true).alias(&marker.name)]).chain(column_exprs(&results)).collect())?;
        let joined = join_on(domain.clone(), found, JoinType::Left, (self.columns.clone(), there), None)?;
        let values = aggregate.aggr_expr.iter().zip(aggregate.schema.iter()).map(|(call, (qualifier, field))| {
            let result = Expr::Column(Column::new(qualifier.cloned(), field.name()));
            let Expr::AggregateFunction(function) = call.clone().unalias() else {
                return Err(Error::internal("an aggregate node computes something else"));
            };
            let empty = function.func.default_value(field.data_type()).map_err(bind_error)?;
            if empty.is_null() {
                return Ok(result);
            }
            let missing = Expr::IsNull(Box::new(Expr::Column(marker.clone())));
            let case = Case::new(None, vec![(Box::new(missing), Box::new(Expr::Literal(empty, None)))], Some(Box::new(result)));
            Ok(Expr::Case(case).alias_qualified(qualifier.cloned(), field.name()))
        });
        let values = values.collect::<Result<Vec<_>>>()?;
        project(joined, column_exprs(&self.columns).chain(values).collect())
    }

    /// Window functions over the rows of each value of the domain.
    fn window(&self, window: &Window, plan: &LogicalPlan) -> Result<LogicalPlan> {
        let first = window.input.schema().fields().len();
        let exprs = self.named(&window.window_expr, &window.schema, first, plan)?;
        let exprs = exprs.into_iter().zip(window.schema.iter().skip(first)).map(|(expr, (qualifier, field))| match expr.unalias() {
            Expr::WindowFunction(mut call) => {
                call.params.partition_by.extend(column_exprs(&self.columns));
                Ok(Expr::WindowFunction(call).alias_qualified(qualifier.cloned(), field.name()))
            }
            _ => Err(Error::internal("a window node computes something else")),
        });
        let exprs = exprs.collect::<Result<Vec<_>>>()?;
        let rows = self.rows(&window.input)?;
        Ok(LogicalPlan::Window(Window::try_new(exprs, Arc::new(rows)).map_err(bind_error)?))
    }

    /// The first rows of each value of the domain.
    fn limit(&self, limit: &Limit) -> Result<LogicalPlan> {
        let (SkipType::Literal(skip), FetchType::Literal(fetch)) =
            (limit.get_skip_type().map_err(bind_error)?, limit.get_fetch_type().map_err(bind_error)?)
        else {
            return Err(unsupported("a LIMIT or OFFSET that is not constant"));
        };
        // Which rows are the first is known below what only computes columns of them.
        let below = |input: &LogicalPlan| LogicalPlan::Limit(Limit { input: Arc::new(input.clone()), ..limit.clone() });
        let (input, order): (&LogicalPlan, &[SortExpr]) = match limit.input.as_ref() {
            LogicalPlan::Projection(projection) => {
                let moved = Projection::try_new(projection.expr.clone(), Arc::new(below(&projection.input))).map_err(bind_error)?;
                return self.rows(&LogicalPlan::Projection(moved));
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let moved = limit.input.with_new_exprs(Vec::new(), vec![below(&alias.input)]).map_err(bind_error)?;
                return self.rows(&moved);
            }
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => (&sort.input, &sort.expr),
            other => (other, &[]),
        };
        let order = order
            .iter()
            .map(|key| Ok(SortExpr { expr: self.inside(key.expr.clone(), limit.input.as_ref())?, ..*key }))
            .collect::<Result<Vec<_>>>()?;
        let rows = self.rows(input)?;
        let mut number = WindowFunction::new(WindowFunctionDefinition::WindowUDF(row_number_udwf()), Vec::new());
        number.params.partition_by = column_exprs(&self.columns).collect();
        number.params.window_frame = datafusion::logical_expr::WindowFrame::new((!order.is_empty()).then_some(true));
        number.params.order_by = order;
        let place = self.names.next("place");
        let numbered =
            Window::try_new(vec![Expr::WindowFunction(Box::new(number)).alias(&place.name)], Arc::new(rows)).map_err(bind_error)?;
        let bound = |rows: usize| lit(u64::try_from(rows).unwrap_or(u64::MAX));
        let place = Expr::Column(place);
        let mut condition = binary_of(place.clone(), Operator::Gt, bound(skip));
        if let Some(fetch) = fetch {
            condition = condition.and(binary_of(place, Operator::LtEq, bound(skip.saturating_add(fetch))));
        }
        let first = Filter::try_new(condition, Arc::new(LogicalPlan::Window(numbered))).map_err(bind_error)?;
        self.shaped(LogicalPlan::Filter(first), limit.input.schema())
    }

    fn union(&self, union: &Union) -> Result<LogicalPlan> {
        let inputs = union.inputs.iter().map(|input| {
            let rows = self.rows(input)?;
            let renamed = columns_of(input.schema())
                .into_iter()
                .zip(union.schema.iter())
                .map(|(column, (qualifier, field))| Expr::Column(column).alias_qualified(qualifier.cloned(), field.name()));
            project(rows, column_exprs(&self.columns).chain(renamed).collect()).map(Arc::new)
        });
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        let all = LogicalPlan::Union(Union::try_new(inputs).map_err(bind_error)?);
        let renamed = columns_of(all.schema()).into_iter().skip(self.columns.len()).zip(union.schema.iter());
        let renamed = renamed.map(|(column, (qualifier, field))| Expr::Column(column).alias_qualified(qualifier.cloned(), field.name()));
        let domain = columns_of(all.schema()).into_iter().zip(&self.columns).map(|(column, name)| Expr::Column(column).alias(&name.name));
        let exprs = domain.chain(renamed).collect();
        project(all, exprs)
    }

    fn join(&self, join: &Join, plan: &LogicalPlan) -> Result<LogicalPlan> {
        // INTERSECT and EXCEPT are semi and anti joins.
        if !matches!(join.join_type, JoinType::Inner | JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti) {
            return Err(unsupported("a RIGHT or FULL JOIN"));
        }
        let operator = match join.null_equality {
            NullEquality::NullEqualsNull => Operator::IsNotDistinctFrom,
            NullEquality::NullEqualsNothing => Operator::Eq,
        };
        let equal = join.on.iter().map(|(left, right)| binary_of(left.clone(), operator, right.clone()));
        let filter = equal.chain(join.filter.clone()).reduce(Expr::and).map(|filter| self.inside(filter, plan)).transpose()?;
        // The left side has every value of the domain that matters: the right side needs it where it refers to it, too.
        let left = self.rows(&join.left)?;
        let (right, keys) = if self.is_correlated(&join.right)? {
            let there: Vec<Column> = self.columns.iter().map(|_| self.names.next("there")).collect();
            let renamed = column_exprs(&self.columns).zip(&there).map(|(column, name)| column.alias(&name.name));
            let exprs = renamed.chain(column_exprs(&columns_of(join.right.schema()))).collect();
            (project(self.rows(&join.right)?, exprs)?, (self.columns.clone(), there))
        } else {
            (join.right.as_ref().clone(), (Vec::new(), Vec::new()))
        };
        let joined = join_on(left, right, join.join_type, keys, filter)?;
        self.shaped(joined, &join.schema)
    }
}

/// Whether a plan can't have two rows.
pub(super) fn at_most_one_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        LogicalPlan::Limit(limit) => matches!(limit.get_fetch_type(), Ok(FetchType::Literal(Some(0 | 1)))) || at_most_one_row(&limit.input),
        LogicalPlan::EmptyRelation(_) => true,
        LogicalPlan::Projection(_) | LogicalPlan::Filter(_) | LogicalPlan::SubqueryAlias(_) | LogicalPlan::Sort(_) => {
            plan.inputs().into_iter().all(at_most_one_row)
        }
        _ => false,
    }
}

/// What a node of a plan is to whoever wrote the query.
fn place(node: &LogicalPlan) -> &'static str {
    match node {
        LogicalPlan::Window(_) => "a window function",
        LogicalPlan::Aggregate(_) => "an aggregate function or GROUP BY",
        LogicalPlan::Sort(_) => "ORDER BY",
        LogicalPlan::Limit(_) => "LIMIT or OFFSET",
        LogicalPlan::Distinct(_) => "DISTINCT",
        LogicalPlan::Unnest(_) => "UNNEST",
        _ => "this place",
    }
}
