//! Values on their way into a table's columns.

use std::cell::RefCell;
use std::collections::BTreeMap;

use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::sql::sqlparser::ast::{self, Spanned};
use weir_catalog::{Column, Error, ObjectId, Result, SqlState, SqlType};

use super::expr::known;
use super::from::null_of;
use super::scope::{self, Relation, Scope, ScopeColumn};
use super::types::{Bound, CastContext, Type, can_convert, convert};
use super::{Binder, Conflict, State, analyze, deduced_parameters, positioned, project};
use crate::parser::place::Tokens;

/// An INSERT's rows.
#[derive(Clone, Debug)]
pub struct BoundInsert {
    /// Its columns are the table's, in order, with the table's types and names. NULLs in NOT NULL columns are the caller's to find.
    pub plan: LogicalPlan,
    /// The tables and materialized views that the source reads.
    pub inputs: Vec<ObjectId>,
    /// The views (macros) that the source names.
    pub macros: Vec<ObjectId>,
    /// The type of each parameter `$n`, by n.
    pub parameters: BTreeMap<usize, SqlType>,
}

/// The rows that an UPDATE or DELETE changes, beside those of FROM or USING.
pub struct Changed {
    columns: Vec<ScopeColumn>,
    /// The plan of FROM or USING, if there is one.
    pub beside: Option<LogicalPlan>,
}

impl Binder<'_> {
    /// Binds `INSERT INTO table (names) source`; `names` is empty where none are written, `source` is `None` for DEFAULT VALUES.
    pub fn bind_insert(&self, table: &str, columns: &[Column], names: &[String], source: Option<&ast::Query>) -> Result<BoundInsert> {
        self.deducing(|binder| binder.try_insert(table, columns, names, source))
    }

    fn try_insert(
        &self,
        table: &str,
        columns: &[Column],
        names: &[String],
        source: Option<&ast::Query>,
    ) -> Result<std::result::Result<BoundInsert, Conflict>> {
        let state = RefCell::new(State::default());
        let session = self.session(&state);
        let targets = session.targets(table, columns, names)?;
        let relation = match source {
            None => Relation { plan: super::from::one_row(), columns: Vec::new() },
            Some(query) => match values_of(query) {
                Some(values) => session.insert_values(values, columns, &targets, self)?,
                None => session.query(query, &Scope::EMPTY)?,
            },
        };
        let width = if source.is_none() { 0 } else { relation.columns.len() };
        if width > targets.len() {
            let error = Error::new(SqlState::SYNTAX_ERROR, "INSERT has more expressions than target columns");
            return match source {
                Some(query) => session.at_column(Err(error), &query.body, targets.len()),
                None => Err(error),
            };
        }
        if width < targets.len() && !names.is_empty() {
            let error = Error::new(SqlState::SYNTAX_ERROR, "INSERT has more target columns than expressions");
            return Err(positioned(error, session.inserted(width)));
        }
        let query_body = source.map(|query| query.body.as_ref());
        let mut exprs = Vec::with_capacity(columns.len());
        for (i, column) in columns.iter().enumerate() {
            let place = targets.iter().position(|target| *target == i).filter(|place| *place < width);
            let expr = match place {
                Some(place) => {
                    let source = &relation.columns[place];
                    let value = output_value(&relation.plan, place, &source.column, source.ty.clone());
                    match query_body {
                        Some(body) => session.at_column(assign(value, column), body, place)?,
                        None => assign(value, column)?,
                    }
                }
                None => self.default_of(column)?,
            };
            exprs.push(expr.alias(&column.name));
        }
        let plan = match (&relation.plan, source) {
            // Constants of the SELECT were taken out of it and converted.
            (LogicalPlan::Projection(projection), Some(_)) => project(projection.input.as_ref().clone(), exprs)?,
            _ => project(relation.plan, exprs)?,
        };
        let plan = analyze(plan)?;
        let parameters = deduced_parameters(&plan)?;
        let state = state.into_inner();
        Ok(parameters.map(|parameters| BoundInsert { plan, inputs: state.inputs, macros: state.macros, parameters }))
    }

    /// The value of a column that an INSERT or `SET column = DEFAULT` leaves to its DEFAULT.
    pub fn default_of(&self, column: &Column) -> Result<Expr> {
        match &column.default {
            None => null_of(&column.ty),
            Some(text) => {
                let expr = crate::parser::parse_expression(text)?;
                Binder { text: None, ..*self }.bind_default(&expr, column)
            }
        }
    }

    /// Checks the DEFAULT of a column that a CREATE TABLE, the binder's text, makes.
    pub fn check_default(&self, column: &Column) -> Result<()> {
        let Some(text) = &column.default else { return Ok(()) };
        let expr = crate::parser::parse_expression(text)?;
        // Places in the expression's own text.
        let bound = Binder { text: Some(text), ..*self }.bind_default(&expr, column);
        bound.map(|_| ()).map_err(|error| {
            let begins = self.text.and_then(|text| Tokens::of(text).default_of(&column.name));
            match (error.position(), begins) {
                (Some(within), Some(begins)) => error.with_position(begins + within - 1),
                (None, Some(begins)) => error.with_position(begins),
                (_, None) => error,
            }
        })
    }

    /// Binds a DEFAULT expression: no columns, no subqueries, a value that can be assigned to `column`.
    pub fn bind_default(&self, expr: &ast::Expr, column: &Column) -> Result<Expr> {
        let (bound, _) = self.bind_constant(expr)?;
        assign(bound, column)
    }

    fn bind_constant(&self, expr: &ast::Expr) -> Result<(Bound, ())> {
        let state = RefCell::new(State::default());
        let scope = Scope { clause: scope::Clause::Default, ..Scope::EMPTY };
        let bound = self.session(&state).expr(expr, &scope)?;
        Ok((bound, ()))
    }

    /// Binds what an UPDATE or DELETE of `relation`, with `columns`, names in FROM or USING.
    pub fn bind_changed(&self, relation: &str, columns: &[Column], from: &[ast::TableWithJoins]) -> Result<Changed> {
        let state = RefCell::new(State::default());
        let mut all = scope::table_columns(Some(relation), columns);
        if from.is_empty() {
            return Ok(Changed { columns: all, beside: None });
        }
        let item = self.session(&state).from(from, &Scope::EMPTY)?;
        super::from::check_names(&all, &item.columns)?;
        all.extend(item.columns);
        Ok(Changed { columns: all, beside: Some(item.plan) })
    }

    /// Binds `SET column = expr` of an UPDATE, as a value of the column's type.
    pub fn bind_assignment(&self, expr: &ast::Expr, target: &Column, changed: &Changed) -> Result<Expr> {
        let state = RefCell::new(State::default());
        let scope = Scope { columns: &changed.columns, clause: scope::Clause::Where, ..Scope::EMPTY };
        let bound = self.session(&state).expr(expr, &scope)?;
        assign(bound, target)
    }

    /// Binds the WHERE of an UPDATE or DELETE. Errors with `42804` if it is no BOOLEAN.
    pub fn bind_selection(&self, expr: &ast::Expr, changed: &Changed) -> Result<Expr> {
        let state = RefCell::new(State::default());
        let scope = Scope { columns: &changed.columns, clause: scope::Clause::Where, ..Scope::EMPTY };
        let session = self.session(&state);
        let bound = session.expr(expr, &scope)?;
        session.boolean(bound, "WHERE").map(|bound| bound.expr)
    }

    /// Binds an argument of EXECUTE: a value without columns, as `number`, from 1, of type `to`.
    pub fn bind_argument(&self, expr: &ast::Expr, number: usize, to: &SqlType) -> Result<Expr> {
        let (bound, ()) = self.bind_constant(expr)?;
        let target = Type::Sql(to.clone());
        if !can_convert(&bound, &target, CastContext::Assignment) {
            let message =
                format!("parameter ${number} of type {} cannot be coerced to the expected type {}", bound.ty.name(), target.name());
            let error = Error::new(SqlState::DATATYPE_MISMATCH, message);
            return Err(positioned(error.with_hint("You will need to rewrite or cast the expression."), bound.position));
        }
        Ok(convert(bound, &target)?.expr)
    }

    /// The plan with its columns converted, as by assignment, to `columns` and called by their names.
    pub fn coerce_for_assignment(&self, query: &super::BoundQuery, columns: &[Column]) -> Result<LogicalPlan> {
        if query.columns.len() != columns.len() {
            return Err(Error::new(
                SqlState::SYNTAX_ERROR,
                if query.columns.len() > columns.len() {
                    "INSERT has more expressions than target columns"
                } else {
                    "INSERT has more target columns than expressions"
                },
            ));
        }
        let schema = query.plan.schema().clone();
        let mut exprs = Vec::with_capacity(columns.len());
        for (i, (from, to)) in query.columns.iter().zip(columns).enumerate() {
            let column = Expr::Column(datafusion::common::Column::from(schema.qualified_field(i)));
            exprs.push(assign(Bound::new(column, from.ty.clone()), to)?.alias(&to.name));
        }
        project(query.plan.clone(), exprs)
    }
}

impl super::Session<'_> {
    /// The rows of `INSERT ... VALUES`: each value is assigned to its column by itself, and can be DEFAULT.
    fn insert_values(&self, values: &ast::Values, columns: &[Column], targets: &[usize], binder: &Binder<'_>) -> Result<Relation> {
        let scope = Scope { clause: scope::Clause::Values, ..Scope::EMPTY };
        let width = values.rows.first().map_or(0, |row| row.content.len());
        if let Some(excess) = values.rows.first().and_then(|row| row.content.get(targets.len())) {
            return Err(self.at(Error::new(SqlState::SYNTAX_ERROR, "INSERT has more expressions than target columns"), excess.span()));
        }
        let mut rows = Vec::with_capacity(values.rows.len());
        for row in &values.rows {
            if row.content.len() != width {
                let error = Error::new(SqlState::SYNTAX_ERROR, "VALUES lists must all be the same length");
                return Err(match row.content.first() {
                    Some(first) => self.at(error, first.span()),
                    None => error,
                });
            }
            let mut exprs = Vec::with_capacity(width);
            for (expr, target) in row.content.iter().zip(targets) {
                let column = &columns[*target];
                exprs.push(match expr {
                    expr if crate::parser::is_default(expr) => binder.default_of(column)?,
                    expr => assign(self.expr(expr, &scope)?, column)?,
                });
            }
            rows.push(exprs);
        }
        let types: Vec<Type> = targets.iter().take(width).map(|target| Type::Sql(columns[*target].ty.clone())).collect();
        super::from::values(rows, &types)
    }

    /// Which column each value goes to.
    fn targets(&self, table: &str, columns: &[Column], names: &[String]) -> Result<Vec<usize>> {
        if names.is_empty() {
            return Ok((0..columns.len()).collect());
        }
        let mut targets = Vec::with_capacity(names.len());
        for (place, name) in names.iter().enumerate() {
            let target = columns.iter().position(|column| column.name == *name).ok_or_else(|| {
                let message = format!("column \"{name}\" of relation \"{table}\" does not exist");
                positioned(Error::new(SqlState::UNDEFINED_COLUMN, message), self.inserted(place))
            })?;
            if targets.contains(&target) {
                let error = Error::new(SqlState::DUPLICATE_COLUMN, format!("column \"{name}\" specified more than once"));
                return Err(positioned(error, self.inserted(place)));
            }
            targets.push(target);
        }
        Ok(targets)
    }
}

/// The VALUES that a query consists of.
fn values_of(query: &ast::Query) -> Option<&ast::Values> {
    let plain = query.with.is_none() && query.order_by.is_none() && query.limit_clause.is_none() && query.fetch.is_none();
    match query.body.as_ref() {
        ast::SetExpr::Values(values) if plain => Some(values),
        _ => None,
    }
}

/// A column of the source: of a projection the expression itself, so that constants are converted where they stand.
fn output_value(plan: &LogicalPlan, place: usize, column: &datafusion::common::Column, ty: Type) -> Bound {
    let expr = match plan {
        LogicalPlan::Projection(projection) => match &projection.expr[place] {
            Expr::Alias(alias) => alias.expr.as_ref().clone(),
            other => other.clone(),
        },
        _ => Expr::Column(column.clone()),
    };
    Bound { expr, ty, position: None }
}

/// A value as one of `column`'s type; `42804` where it does not become that by itself.
fn assign(value: Bound, column: &Column) -> Result<Expr> {
    let to = Type::Sql(column.ty.clone());
    if !can_convert(&value, &to, CastContext::Assignment) {
        let error = Error::new(
            SqlState::DATATYPE_MISMATCH,
            format!("column \"{}\" is of type {} but expression is of type {}", column.name, to.name(), value.ty.name()),
        )
        .with_hint("You will need to rewrite or cast the expression.");
        return Err(positioned(error, value.position));
    }
    let value =
        if value.ty == Type::Unknown && !matches!(value.expr, Expr::Literal(..) | Expr::Placeholder(_)) { known(value)? } else { value };
    Ok(convert(value, &to)?.expr)
}
