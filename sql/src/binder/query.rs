//! Queries: WITH, set operations, VALUES, ORDER BY and LIMIT.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::Schema;
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Column as PlanColumn, DFSchema, ScalarValue};
use datafusion::functions_window::row_number::row_number_udwf;
use datafusion::logical_expr::expr::{Cast, WindowFunction};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{
    ColumnarValue, Distinct, Expr, Filter, Limit, LogicalPlan, LogicalPlanBuilder, Operator, SortExpr as SortKey, Union, Window,
    WindowFrame, WindowFunctionDefinition,
};
use datafusion::physical_expr::create_physical_expr;
use datafusion::sql::sqlparser::ast::{self, SetExpr, SetOperator, SetQuantifier, Spanned};
use weir_catalog::{Error, Result, SqlState, SqlType};

use super::decorrelate::subquery_in;
use super::expr::binary_of;
use super::multiset::{Kept, by_number};
use super::scope::{Clause, CommonTable, OutputColumn, Relation, Scope, name_of};
use super::types::{Bound, Type, common_type, convert};
use super::window::sort_key;
use super::{Session, bind_error, from, project};
use crate::functions::Kernel;

impl Session<'_> {
    /// Binds a query inside `scope`, whose columns are those of the query around it.
    pub(super) fn query(&self, query: &ast::Query, scope: &Scope<'_>) -> Result<Relation> {
        let refused = [
            (query.fetch.is_some() && query.limit_clause.is_some(), "FETCH beside LIMIT"),
            (!query.locks.is_empty(), "FOR UPDATE"),
            (query.for_clause.is_some(), "FOR"),
            (query.settings.is_some(), "SETTINGS"),
            (query.format_clause.is_some(), "FORMAT"),
            (!query.pipe_operators.is_empty(), "|>"),
        ];
        if let Some((_, clause)) = refused.into_iter().find(|(present, _)| *present) {
            return Err(Error::unsupported(format!("{clause} is not supported")));
        }
        let mut common_tables: Vec<Arc<CommonTable>> = scope.common_tables.to_vec();
        if let Some(with) = &query.with {
            if with.recursive {
                return Err(self.at(Error::unsupported("WITH RECURSIVE is not supported"), with.span()));
            }
            let before = common_tables.len();
            for table in &with.cte_tables {
                let name = name_of(&table.alias.name);
                if common_tables[before..].iter().any(|other| other.name == name) {
                    let error = Error::new(
                        SqlState::parse("42712").unwrap_or(SqlState::DUPLICATE_OBJECT),
                        format!("WITH query name \"{name}\" specified more than once"),
                    );
                    return Err(self.at(error, table.alias.name.span));
                }
                let inside = Scope { common_tables: &common_tables, ..*scope };
                let mut relation = self.query(&table.query, &inside)?.with_known_types()?;
                if table.alias.columns.len() > relation.columns.len() {
                    let error = Error::new(
                        SqlState::parse("42P10").unwrap_or(SqlState::SYNTAX_ERROR),
                        format!(
                            "WITH query \"{name}\" has {} columns available but {} columns specified",
                            relation.columns.len(),
                            table.alias.columns.len()
                        ),
                    );
                    return Err(self.at(error, table.alias.name.span));
                }
                for (column, renamed) in relation.columns.iter_mut().zip(&table.alias.columns) {
                    column.name = name_of(&renamed.name);
                }
                common_tables.push(Arc::new(CommonTable { name, relation }));
            }
        }
        let inside = Scope { common_tables: &common_tables, ..*scope };
        let order_by: &[ast::OrderByExpr] = match &query.order_by {
            None => &[],
            Some(order_by) => match &order_by.kind {
                ast::OrderByKind::Expressions(keys) if order_by.interpolate.is_none() => keys,
                _ => return Err(Error::unsupported("ORDER BY ALL is not supported")),
            },
        };
        let relation = match query.body.as_ref() {
            SetExpr::Select(select) => self.select(select, order_by, &inside)?,
            body => {
                let relation = self.set_expr(body, &inside)?;
                self.sort_output(relation, order_by)?
            }
        };
        self.limit(relation, query, &inside)
    }

    fn set_expr(&self, body: &SetExpr, scope: &Scope<'_>) -> Result<Relation> {
        match body {
            SetExpr::Select(select) => self.select(select, &[], scope),
            SetExpr::Query(query) => self.query(query, scope),
            SetExpr::Values(values) => self.values(values, scope),
            SetExpr::SetOperation { op: SetOperator::Union, set_quantifier: SetQuantifier::All, .. } => {
                // Long chains are common: they are one union, and cost no stack.
                let (mut first, mut rest) = (body, Vec::new());
                while let SetExpr::SetOperation { left, op: SetOperator::Union, set_quantifier: SetQuantifier::All, right } = first {
                    rest.push(right.as_ref());
                    first = left;
                }
                let branches = std::iter::once(first).chain(rest.into_iter().rev());
                self.union_all(branches.map(|branch| Ok((branch, self.set_expr(branch, scope)?))).collect::<Result<_>>()?)
            }
            SetExpr::SetOperation { left, op, set_quantifier, right } => {
                let left = (left.as_ref(), self.set_expr(left, scope)?);
                let right = (right.as_ref(), self.set_expr(right, scope)?);
                self.set_operation(left, *op, *set_quantifier, right)
            }
            SetExpr::Table(table) => {
                let parts = [table.schema_name.as_ref(), table.table_name.as_ref()];
                let name = ast::ObjectName(
                    parts.into_iter().flatten().map(|part| ast::ObjectNamePart::Identifier(ast::Ident::new(part.as_str()))).collect(),
                );
                Ok(self.named_relation(&name, scope)?.0)
            }
            other => Err(Error::unsupported(format!("{other} in a query is not supported"))),
        }
    }

    /// `branch UNION ALL branch UNION ALL ...`
    fn union_all(&self, branches: Vec<(&SetExpr, Relation)>) -> Result<Relation> {
        let Some((_, first)) = branches.first() else { return Err(Error::internal("a union of nothing")) };
        let names: Vec<String> = first.columns.iter().map(|column| column.name.clone()).collect();
        let mut types: Vec<Type> = first.columns.iter().map(|column| column.ty.clone()).collect();
        for (body, branch) in &branches[1..] {
            types = self.matched_types("UNION", &types, body, branch)?;
        }
        let unique = unique_names(names.iter().map(String::as_str));
        let inputs =
            branches.into_iter().map(|branch| renamed(self.branch(branch, &types)?, &unique).map(Arc::new)).collect::<Result<Vec<_>>>()?;
        let plan = LogicalPlan::Union(Union::try_new(inputs).map_err(bind_error)?);
        let columns = outputs(&plan, names, types);
        Ok(Relation { plan, columns })
    }

    fn set_operation(
        &self,
        left: (&SetExpr, Relation),
        op: SetOperator,
        quantifier: SetQuantifier,
        right: (&SetExpr, Relation),
    ) -> Result<Relation> {
        let what = match op {
            SetOperator::Union => "UNION",
            SetOperator::Intersect => "INTERSECT",
            SetOperator::Except | SetOperator::Minus => "EXCEPT",
        };
        let left_types: Vec<Type> = left.1.columns.iter().map(|column| column.ty.clone()).collect();
        let types = self.matched_types(what, &left_types, right.0, &right.1)?;
        let all = match quantifier {
            SetQuantifier::All => true,
            SetQuantifier::Distinct | SetQuantifier::None => false,
            other => return Err(Error::unsupported(format!("{what} {other} is not supported"))),
        };
        if !all || op != SetOperator::Union {
            types.iter().try_for_each(|ty| super::nested::check_key(ty, what, None))?;
        }
        let names: Vec<String> = left.1.columns.iter().map(|column| column.name.clone()).collect();
        let unique = unique_names(names.iter().map(String::as_str));
        let (mut left, mut right) = (self.branch(left, &types)?, self.branch(right, &types)?);
        if op != SetOperator::Union {
            (left, right) = (left.with_one_zero()?, right.with_one_zero()?);
        }
        let (left, right) = (renamed(left, &unique)?, renamed(right, &unique)?);
        let plan = match (op, all) {
            (SetOperator::Union, all) => {
                let union = Union::try_new(vec![Arc::new(left), Arc::new(right)]).map_err(bind_error)?;
                let union = LogicalPlan::Union(union);
                if all { union } else { LogicalPlan::Distinct(Distinct::All(Arc::new(union))) }
            }
            (SetOperator::Intersect, true) => by_number(left, right, &unique, &types, Kept::Common)?,
            (_, true) => by_number(left, right, &unique, &types, Kept::Excess)?,
            (SetOperator::Intersect, false) => LogicalPlanBuilder::intersect(left, right, false).map_err(bind_error)?,
            (_, false) => LogicalPlanBuilder::except(left, right, false).map_err(bind_error)?,
        };
        let columns = outputs(&plan, names, types);
        Ok(Relation { plan, columns })
    }

    /// A branch with its columns as `types`.
    fn branch(&self, (body, relation): (&SetExpr, Relation), types: &[Type]) -> Result<Relation> {
        // Only a constant without a type can be none of the others' type.
        let constant = relation.columns.iter().zip(types).position(|(column, ty)| column.ty == Type::Unknown && *ty != Type::Unknown);
        self.at_column(relation.with_types(types), body, constant.unwrap_or(0))
    }

    /// The types that the columns of both sides of a set operation are given, `body` being the right one's.
    fn matched_types(&self, what: &str, left: &[Type], body: &SetExpr, right: &Relation) -> Result<Vec<Type>> {
        if left.len() != right.columns.len() {
            let error = Error::new(SqlState::SYNTAX_ERROR, format!("each {what} query must have the same number of columns"));
            return self.at_column(Err(error), body, 0);
        }
        let matched = left.iter().zip(&right.columns).enumerate().map(|(at, (left, right))| match common_type(left, &right.ty) {
            // Two untyped columns are TEXT.
            Some(Type::Unknown) => Ok(SqlType::Text.into()),
            Some(ty) => Ok(ty),
            None => {
                let message = format!("{what} types {} and {} cannot be matched", left.name(), right.ty.name());
                self.at_column(Err(Error::new(SqlState::DATATYPE_MISMATCH, message)), body, at)
            }
        });
        matched.collect()
    }

    fn values(&self, values: &ast::Values, scope: &Scope<'_>) -> Result<Relation> {
        let inside = scope.in_clause(Clause::Values);
        let width = values.rows.first().map_or(0, |row| row.content.len());
        let mut columns: Vec<Vec<Bound>> = (0..width).map(|_| Vec::with_capacity(values.rows.len())).collect();
        for row in &values.rows {
            if row.content.len() != width {
                let error = Error::new(SqlState::SYNTAX_ERROR, "VALUES lists must all be the same length");
                return Err(match row.content.first() {
                    Some(first) => self.at(error, first.span()),
                    None => error,
                });
            }
            for (column, expr) in columns.iter_mut().zip(&row.content) {
                column.push(self.expr(expr, &inside)?);
            }
        }
        let mut rows: Vec<Vec<Expr>> = (0..values.rows.len()).map(|_| Vec::with_capacity(width)).collect();
        let mut types = Vec::with_capacity(width);
        for column in columns {
            let (column, ty) = self.unify(column, "VALUES")?;
            types.push(ty);
            for (row, value) in rows.iter_mut().zip(column) {
                row.push(value.expr);
            }
        }
        from::values(rows, &types)
    }

    /// ORDER BY over a query whose columns are all that it can name.
    fn sort_output(&self, relation: Relation, order_by: &[ast::OrderByExpr]) -> Result<Relation> {
        if order_by.is_empty() {
            return Ok(relation);
        }
        let mut keys = Vec::with_capacity(order_by.len());
        for key in order_by {
            let Some(index) =
                self.output_position(&key.expr, relation.columns.iter().map(|column| column.name.as_str()), "ORDER BY", |_, _| false)?
            else {
                if let ast::Expr::Identifier(ident) = &key.expr {
                    let error = Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{}\" does not exist", name_of(ident)));
                    return Err(self.at(error, ident.span));
                }
                return Err(self.at(
                    Error::unsupported("invalid UNION/INTERSECT/EXCEPT ORDER BY clause")
                        .with_detail("Only result column names can be used, not expressions or functions.")
                        .with_hint("Add the expression/function to every SELECT, or move the UNION into a FROM clause."),
                    key.expr.span(),
                ));
            };
            let column = &relation.columns[index];
            keys.push(sort_key(Bound::new(Expr::Column(column.column.clone()), column.ty.clone()), &key.options));
        }
        Ok(Relation { plan: sort(relation.plan, keys), columns: relation.columns })
    }

    /// The output column that a plain number or name in ORDER BY or GROUP BY stands for, if it is one.
    pub(super) fn output_position<'n>(
        &self,
        expr: &ast::Expr,
        names: impl Iterator<Item = &'n str> + Clone,
        clause: &str,
        is_same: impl Fn(usize, usize) -> bool,
    ) -> Result<Option<usize>> {
        match expr {
            ast::Expr::Value(ast::ValueWithSpan { value: ast::Value::Number(digits, _), span }) => {
                let width = names.count();
                match digits.parse::<usize>() {
                    Ok(number) if (1..=width).contains(&number) => Ok(Some(number - 1)),
                    Ok(number) => {
                        let code = SqlState::parse("42P10").unwrap_or(SqlState::SYNTAX_ERROR);
                        Err(self.at(Error::new(code, format!("{clause} position {number} is not in select list")), *span))
                    }
                    Err(_) => Err(self.at(Error::new(SqlState::SYNTAX_ERROR, format!("non-integer constant in {clause}")), *span)),
                }
            }
            ast::Expr::Identifier(ident) => {
                let name = name_of(ident);
                let mut found = names.enumerate().filter(|(_, other)| *other == name).map(|(i, _)| i);
                let first = found.next();
                if first.is_some_and(|first| found.any(|other| !is_same(first, other))) {
                    return Err(self.at(Error::new(SqlState::AMBIGUOUS_COLUMN, format!("{clause} \"{name}\" is ambiguous")), ident.span));
                }
                Ok(first)
            }
            _ => Ok(None),
        }
    }

    fn limit(&self, relation: Relation, query: &ast::Query, scope: &Scope<'_>) -> Result<Relation> {
        let (clause, fetch) = (query.limit_clause.as_ref(), query.fetch.as_ref());
        let (limit, offset) = match (clause, fetch) {
            (None, None) => return Ok(relation),
            (Some(ast::LimitClause::LimitOffset { limit, offset, limit_by }), _) if limit_by.is_empty() => {
                (limit.as_ref(), offset.as_ref().map(|offset| &offset.value))
            }
            (Some(_), _) => return Err(Error::unsupported("this form of LIMIT is not supported")),
            (None, Some(fetch)) if !fetch.with_ties && !fetch.percent => (fetch.quantity.as_ref(), None),
            (None, Some(_)) => return Err(Error::unsupported("FETCH ... WITH TIES is not supported")),
        };
        let one = Expr::Literal(ScalarValue::Int64(Some(1)), None);
        let fetch_one = fetch.is_some_and(|fetch| fetch.quantity.is_none());
        let fetch_expr = if fetch_one { Some(one) } else { self.row_count(limit, "LIMIT", "2201W", query, scope)? };
        let skip = self.row_count(offset, "OFFSET", "2201X", query, scope)?;
        if fetch_expr.is_none() && skip.is_none() {
            return Ok(relation);
        }
        let is_given = |rows: &Option<Expr>| matches!(rows, None | Some(Expr::Literal(..) | Expr::Placeholder(_)));
        if !is_given(&fetch_expr) || !is_given(&skip) {
            return Ok(Relation { plan: by_place(relation.plan, fetch_expr, skip)?, columns: relation.columns });
        }
        let plan = LogicalPlan::Limit(Limit { skip: skip.map(Box::new), fetch: fetch_expr.map(Box::new), input: Arc::new(relation.plan) });
        Ok(Relation { plan, columns: relation.columns })
    }

    /// The number behind LIMIT or OFFSET; `None` where it is NULL or missing.
    fn row_count(&self, expr: Option<&ast::Expr>, clause: &str, code: &str, query: &ast::Query, scope: &Scope<'_>) -> Result<Option<Expr>> {
        let Some(expr) = expr else { return Ok(None) };
        let inside = Scope { columns: &[], outer: None, common_tables: scope.common_tables, clause: Clause::Limit };
        let bound = match self.expr(expr, &inside) {
            Ok(bound) => bound,
            Err(error) if [SqlState::UNDEFINED_COLUMN, SqlState::UNDEFINED_TABLE].contains(error.code()) => {
                // A name that is known, only not here.
                let columns = match query.body.as_ref() {
                    SetExpr::Select(select) => self.from(&select.from, scope)?.columns,
                    _ => Vec::new(),
                };
                let around = Scope { columns: &columns, outer: None, ..scope.in_clause(Clause::Limit) };
                if self.expr(expr, &around).is_err() {
                    return Err(match self.expr(expr, &Scope { outer: scope.outer, ..around }) {
                        Ok(_) => self.at(
                            Error::unsupported(format!("{clause} by a column of the outer query is not supported"))
                                .with_hint("Number the rows with row_number() and compare the number."),
                            expr.span(),
                        ),
                        Err(_) => error,
                    });
                }
                let code = SqlState::parse("42P10").unwrap_or(SqlState::SYNTAX_ERROR);
                return Err(self.at(Error::new(code, format!("argument of {clause} must not contain variables")), expr.span()));
            }
            Err(error) => return Err(error),
        };
        if bound.ty != Type::Unknown && bound.ty.number_rank().is_none() {
            let error =
                Error::new(SqlState::DATATYPE_MISMATCH, format!("argument of {clause} must be type bigint, not type {}", bound.ty.name()));
            return Err(self.at(error, expr.span()));
        }
        let mut bound = convert(bound, &SqlType::BigInt.into())?;
        if let Some(value) = self.at_span(constant(&bound.expr), expr.span())? {
            bound.expr = Expr::Literal(value, None);
        }
        match &bound.expr {
            Expr::Literal(ScalarValue::Int64(None), _) => Ok(None),
            Expr::Literal(ScalarValue::Int64(Some(number)), _) if *number < 0 => {
                let code = SqlState::parse(code).unwrap_or(SqlState::DATA_EXCEPTION);
                Err(self.at(Error::new(code, format!("{clause} must not be negative")), expr.span()))
            }
            _ => Ok(Some(bound.expr)),
        }
    }
}

/// The value of an expression that needs no row; `None` where it needs one, or a parameter's value.
pub(super) fn constant(expr: &Expr) -> Result<Option<ScalarValue>> {
    if matches!(expr, Expr::Literal(..)) {
        return Ok(None);
    }
    let is_open = expr.exists(|expr| {
        let needs_rows = matches!(expr, Expr::Column(_) | Expr::OuterReferenceColumn(..) | Expr::Placeholder(_));
        Ok(needs_rows || subquery_in(expr).is_some())
    });
    if is_open.map_err(bind_error)? || expr.is_volatile() {
        return Ok(None);
    }
    let physical =
        create_physical_expr(expr, &DFSchema::empty(), &Default::default(), &PhysicalPlanningContext::default()).map_err(bind_error)?;
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    let row = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options);
    let row = row.map_err(|error| Error::internal(error.to_string()))?;
    match physical.evaluate(&row).map_err(bind_error)? {
        ColumnarValue::Scalar(value) => Ok(Some(value)),
        ColumnarValue::Array(values) => ScalarValue::try_from_array(&values, 0).map(Some).map_err(bind_error),
    }
}

/// The rows of `plan` in its order from `skip` on, `fetch` at most, where these are known only when it runs.
fn by_place(plan: LogicalPlan, fetch: Option<Expr>, skip: Option<Expr>) -> Result<LogicalPlan> {
    const PLACE: &str = "__place";
    // Which rows are the first is known below what only computes columns of them.
    let (input, order) = match plan {
        LogicalPlan::Projection(projection) => {
            let input = by_place(Arc::unwrap_or_clone(projection.input), fetch, skip)?;
            return project(input, projection.expr);
        }
        LogicalPlan::Sort(sort) if sort.fetch.is_none() => (Arc::unwrap_or_clone(sort.input), sort.expr),
        plan => (plan, Vec::new()),
    };
    let columns = input.schema().columns().into_iter().map(Expr::Column).collect();
    let mut number = WindowFunction::new(WindowFunctionDefinition::WindowUDF(row_number_udwf()), Vec::new());
    number.params.window_frame = WindowFrame::new((!order.is_empty()).then_some(true));
    number.params.order_by = order;
    let number = Expr::WindowFunction(Box::new(number)).alias(PLACE);
    let numbered = LogicalPlan::Window(Window::try_new(vec![number], Arc::new(input)).map_err(bind_error)?);
    let counted = |rows: Expr, is_limit| {
        let name = if is_limit { "limit_rows" } else { "offset_rows" };
        crate::functions::call(name, Kernel::RowCount(is_limit), SqlType::BigInt.to_arrow(), vec![rows])
    };
    let place = Expr::Cast(Cast::new(Box::new(Expr::Column(PlanColumn::new_unqualified(PLACE))), SqlType::BigInt.to_arrow()));
    let (mut conditions, mut rest) = (Vec::new(), place);
    if let Some(skip) = skip {
        let skip = counted(skip, false);
        conditions.push(binary_of(rest.clone(), Operator::Gt, skip.clone()));
        rest = binary_of(rest, Operator::Minus, skip);
    }
    if let Some(fetch) = fetch {
        conditions.push(binary_of(rest, Operator::LtEq, counted(fetch, true)));
    }
    let condition = conditions.into_iter().reduce(Expr::and).ok_or_else(|| Error::internal("a LIMIT without a number"))?;
    let first = LogicalPlan::Filter(Filter::try_new(condition, Arc::new(numbered)).map_err(bind_error)?);
    let by_number = SortKey { expr: Expr::Column(PlanColumn::new_unqualified(PLACE)), asc: true, nulls_first: false };
    project(sort(first, vec![by_number]), columns)
}

/// The columns of `plan` under `names`, with `types`.
fn outputs(plan: &LogicalPlan, names: Vec<String>, types: Vec<Type>) -> Vec<OutputColumn> {
    let schema = plan.schema();
    let named = names.into_iter().zip(types).enumerate();
    named.map(|(i, (name, ty))| OutputColumn { name, column: PlanColumn::from(schema.qualified_field(i)), ty }).collect()
}

/// A sort of all rows.
pub(super) fn sort(plan: LogicalPlan, keys: Vec<SortKey>) -> LogicalPlan {
    LogicalPlan::Sort(datafusion::logical_expr::logical_plan::Sort { expr: keys, input: Arc::new(plan), fetch: None })
}

/// The plan with its columns called `names`.
fn renamed(relation: Relation, names: &[String]) -> Result<LogicalPlan> {
    let fits = relation.columns.iter().zip(names).all(|(column, name)| column.column.relation.is_none() && column.column.name == *name);
    if fits {
        return Ok(relation.plan);
    }
    let exprs = relation.columns.iter().zip(names).map(|(column, name)| Expr::Column(column.column.clone()).alias(name)).collect();
    project(relation.plan, exprs)
}

/// Names made unique: the second `a` is `a_1`.
pub(super) fn unique_names<'n>(names: impl Iterator<Item = &'n str>) -> Vec<String> {
    let all: Vec<&str> = names.collect();
    let given: HashSet<&str> = all.iter().copied().collect();
    let mut taken: HashSet<String> = HashSet::with_capacity(all.len());
    // What was tried for a name and was not free never is again.
    let mut last: HashMap<&str, usize> = HashMap::new();
    all.iter()
        .map(|name| {
            let mut candidate = (*name).to_string();
            let number = last.entry(*name).or_insert(0);
            while taken.contains(&candidate) || (*number > 0 && given.contains(candidate.as_str())) {
                *number += 1;
                candidate = format!("{name}_{number}");
            }
            taken.insert(candidate.clone());
            candidate
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::unique_names;

    #[test]
    fn names_are_made_unique() {
        let unique = |names: &[&str]| unique_names(names.iter().copied()).join(" ");
        assert_eq!(unique(&["a", "b", "a", "a"]), "a b a_1 a_2");
        assert_eq!(unique(&["a", "a", "a_1", "a"]), "a a_2 a_1 a_3");
        assert_eq!(unique(&["a", "a", "a_1", "a_1", "a_1_1"]), "a a_2 a_1 a_1_2 a_1_1");
        assert_eq!(unique(&[]), "");
    }
}
