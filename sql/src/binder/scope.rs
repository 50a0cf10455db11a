//! Which names an expression can use, and what each stands for.

use std::sync::Arc;

use arrow::datatypes::Field;
use datafusion::common::{Column as PlanColumn, TableReference};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::sql::sqlparser::ast::Ident;
use datafusion::sql::sqlparser::tokenizer::Span;
use weir_catalog::{Column, Error, Result, SqlState, SqlType};

use super::types::{self, Bound, Type};
use super::{Session, project};

/// A plan and its columns as they can be named, in order.
#[derive(Clone, Debug)]
pub(super) struct Relation {
    pub plan: LogicalPlan,
    pub columns: Vec<OutputColumn>,
}

/// A column of a [`Relation`].
#[derive(Clone, Debug)]
pub(super) struct OutputColumn {
    /// As the user calls it.
    pub name: String,
    /// In the plan.
    pub column: PlanColumn,
    pub ty: Type,
}

impl Relation {
    /// String literals that nothing gave a type become TEXT.
    pub fn with_known_types(self) -> Result<Relation> {
        let types = self
            .columns
            .iter()
            .map(|column| if column.ty == Type::Unknown { SqlType::Text.into() } else { column.ty.clone() })
            .collect::<Vec<_>>();
        self.with_types(&types)
    }

    /// The columns converted to `types`.
    pub fn with_types(mut self, types: &[Type]) -> Result<Relation> {
        if self.columns.iter().zip(types).all(|(column, ty)| column.ty == *ty) {
            return Ok(self);
        }
        // Below LIMIT and ORDER BY the rows are the same.
        match self.plan {
            LogicalPlan::Limit(mut limit) => {
                let input = Relation { plan: Arc::unwrap_or_clone(limit.input), columns: self.columns }.with_types(types)?;
                limit.input = Arc::new(input.plan);
                return Ok(Relation { plan: LogicalPlan::Limit(limit), columns: input.columns });
            }
            LogicalPlan::Sort(mut sort) => {
                let input = Relation { plan: Arc::unwrap_or_clone(sort.input), columns: self.columns }.with_types(types)?;
                sort.input = Arc::new(input.plan);
                return Ok(Relation { plan: LogicalPlan::Sort(sort), columns: input.columns });
            }
            plan => self.plan = plan,
        }
        // Constants of a SELECT without a type of their own are converted where they stand.
        if let LogicalPlan::Projection(projection) = &self.plan {
            let mut exprs = Vec::with_capacity(types.len());
            for ((expr, column), ty) in projection.expr.iter().zip(&self.columns).zip(types) {
                exprs.push(convert_output(expr.clone(), &column.ty, ty, &column.column.name)?);
            }
            self.plan = project(Arc::unwrap_or_clone(Arc::clone(&projection.input)), exprs)?;
        } else {
            let mut exprs = Vec::with_capacity(types.len());
            for (column, ty) in self.columns.iter().zip(types) {
                exprs.push(convert_output(Expr::Column(column.column.clone()), &column.ty, ty, &column.column.name)?);
            }
            self.plan = project(self.plan, exprs)?;
        }
        let schema = Arc::clone(self.plan.schema());
        for (i, (column, ty)) in self.columns.iter_mut().zip(types).enumerate() {
            column.ty = ty.clone();
            column.column = PlanColumn::from(schema.qualified_field(i));
        }
        Ok(self)
    }

    /// With -0.0 as 0.0 in columns of doubles, for comparing whole rows.
    pub fn with_one_zero(mut self) -> Result<Relation> {
        if !self.columns.iter().any(|column| column.ty == Type::Sql(SqlType::Double)) {
            return Ok(self);
        }
        let exprs = self.columns.iter().map(|column| {
            let bound = Bound { expr: Expr::Column(column.column.clone()), ty: column.ty.clone(), position: None };
            super::expr::one_zero(bound).expr.alias(&column.column.name)
        });
        self.plan = project(self.plan.clone(), exprs.collect())?;
        let schema = Arc::clone(self.plan.schema());
        for (i, column) in self.columns.iter_mut().enumerate() {
            column.column = PlanColumn::from(schema.qualified_field(i));
        }
        Ok(self)
    }
}

fn convert_output(expr: Expr, from: &Type, to: &Type, name: &str) -> Result<Expr> {
    if from == to {
        return Ok(expr);
    }
    let expr = match expr {
        Expr::Alias(alias) => *alias.expr,
        other => other,
    };
    Ok(types::convert(Bound { expr, ty: from.clone(), position: None }, to)?.expr.alias(name))
}

/// Something with a name that an expression can use.
#[derive(Clone, Debug)]
pub(super) struct ScopeColumn {
    /// The table's name or alias.
    pub relation: Option<String>,
    pub name: String,
    /// What it stands for: a column, or for one merged by a FULL JOIN ... USING an expression.
    pub expr: Expr,
    pub ty: Type,
    /// Only reachable by its qualified name: the columns behind one that USING merged.
    pub merged: bool,
    /// The primary key of the stored table that it is a column of: where all of it is grouped by, this has one value in each group.
    pub key: Option<Arc<[Expr]>>,
}

/// A WITH query.
pub(super) struct CommonTable {
    pub name: String,
    pub relation: Relation,
}

/// Where an expression stands: it decides whether aggregates may be used, and what errors say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clause {
    Select,
    Where,
    JoinOn,
    GroupBy,
    Having,
    OrderBy,
    AggregateArgument,
    Filter,
    Window,
    Values,
    Default,
    Limit,
}

impl Clause {
    pub fn allows_aggregates(self) -> bool {
        matches!(self, Clause::Select | Clause::Having | Clause::OrderBy | Clause::Window)
    }

    pub fn allows_windows(self) -> bool {
        matches!(self, Clause::Select | Clause::OrderBy)
    }

    /// As error messages call it.
    pub fn name(self) -> &'static str {
        match self {
            Clause::Select => "SELECT",
            Clause::Where => "WHERE",
            Clause::JoinOn => "JOIN conditions",
            Clause::GroupBy => "GROUP BY",
            Clause::Having => "HAVING",
            Clause::OrderBy => "ORDER BY",
            Clause::AggregateArgument => "aggregate function calls",
            Clause::Filter => "FILTER",
            Clause::Window => "window definitions",
            Clause::Values => "VALUES",
            Clause::Default => "DEFAULT expressions",
            Clause::Limit => "LIMIT",
        }
    }
}

/// The names that an expression can use.
#[derive(Clone, Copy)]
pub(super) struct Scope<'s> {
    pub columns: &'s [ScopeColumn],
    /// The query around this one, for correlated subqueries.
    pub outer: Option<&'s Scope<'s>>,
    /// WITH queries in reach, innermost last.
    pub common_tables: &'s [Arc<CommonTable>],
    pub clause: Clause,
}

impl Scope<'_> {
    pub const EMPTY: Scope<'static> = Scope { columns: &[], outer: None, common_tables: &[], clause: Clause::Select };
}

impl<'s> Scope<'s> {
    /// The same names in another clause.
    pub fn in_clause(&self, clause: Clause) -> Scope<'s> {
        Scope { clause, ..*self }
    }
}

/// The columns of a table as a scope.
pub(super) fn table_columns(relation: Option<&str>, columns: &[Column]) -> Vec<ScopeColumn> {
    columns
        .iter()
        .map(|column| ScopeColumn {
            relation: relation.map(str::to_string),
            name: column.name.clone(),
            expr: Expr::Column(PlanColumn::new(relation.map(TableReference::bare), &column.name)),
            ty: column.ty.clone().into(),
            merged: false,
            key: None,
        })
        .collect()
}

/// An identifier as names are compared.
pub(super) fn name_of(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}

impl Session<'_> {
    /// What `a`, `a.b`, `a.b.c` stands for: a column, or fields of a ROW column.
    pub(super) fn compound_identifier(&self, idents: &[Ident], scope: &Scope<'_>) -> Result<Bound> {
        let names: Vec<String> = idents.iter().map(name_of).collect();
        let span = Span::union_iter(idents.iter().map(|ident| ident.span));
        let mut level = Some(scope);
        let mut depth = 0;
        while let Some(scope) = level {
            if let Some((column, fields)) = self.find_column(&names, scope).map_err(|error| self.at(error, span))? {
                let expr = if depth == 0 { column.expr.clone() } else { outer_reference(column)? };
                let mut bound = Bound { expr, ty: column.ty.clone(), position: self.position(span) };
                for field in fields {
                    bound = self.field(bound, field)?;
                }
                return Ok(bound);
            }
            level = scope.outer;
            depth += 1;
        }
        Err(self.at(self.unknown_column(&names, scope), span))
    }

    /// The column of this scope that `names` begin with, and the names of the fields that follow.
    fn find_column<'c, 'n>(&self, names: &'n [String], scope: &Scope<'c>) -> Result<Option<(&'c ScopeColumn, &'n [String])>> {
        let one = |found: Vec<&'c ScopeColumn>| match found[..] {
            [] => Ok(None),
            [column] => Ok(Some(column)),
            _ => Err(Error::new(SqlState::AMBIGUOUS_COLUMN, format!("column reference \"{}\" is ambiguous", found[0].name))),
        };
        let names = if names.len() > 2 && names[0] == "public" && scope.columns.iter().any(|c| c.relation.as_ref() == Some(&names[1])) {
            &names[1..]
        } else {
            names
        };
        if names.len() > 1 {
            let qualified = scope.columns.iter().filter(|c| c.relation.as_ref() == Some(&names[0]) && c.name == names[1]).collect();
            if let Some(column) = one(qualified)? {
                return Ok(Some((column, &names[2..])));
            }
        }
        let plain = scope.columns.iter().filter(|c| !c.merged && c.name == names[0]).collect();
        match one(plain)? {
            Some(column) if names.len() == 1 || matches!(column.ty, Type::Sql(SqlType::Row(_))) => Ok(Some((column, &names[1..]))),
            _ => Ok(None),
        }
    }

    fn unknown_column(&self, names: &[String], scope: &Scope<'_>) -> Error {
        if let [relation, column, ..] = names {
            let mut level = Some(scope);
            while let Some(scope) = level {
                if scope.columns.iter().any(|c| c.relation.as_ref() == Some(relation)) {
                    return Error::new(SqlState::UNDEFINED_COLUMN, format!("column {relation}.{column} does not exist"));
                }
                level = scope.outer;
            }
            return Error::new(SqlState::UNDEFINED_TABLE, format!("missing FROM-clause entry for table \"{relation}\""));
        }
        let name = names.first().map_or("", String::as_str);
        let error = Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{name}\" does not exist"));
        let close = scope
            .columns
            .iter()
            .filter(|c| !c.merged)
            .map(|c| (distance(&c.name, name), c))
            .filter(|(distance, _)| *distance <= 3 && *distance * 2 < name.len().max(2))
            .min_by_key(|(distance, _)| *distance);
        match close {
            Some((_, column)) => {
                let full = column.relation.as_ref().map_or(column.name.clone(), |relation| format!("{relation}.{}", column.name));
                error.with_hint(format!("Perhaps you meant to reference the column \"{full}\"."))
            }
            None => error,
        }
    }

    /// A field of a ROW value.
    pub(super) fn field(&self, bound: Bound, name: &str) -> Result<Bound> {
        let fields = match &bound.ty {
            Type::Sql(SqlType::Row(fields)) => fields,
            other => {
                let error = Error::new(
                    SqlState::WRONG_OBJECT_TYPE,
                    format!("column notation .{name} applied to type {}, which is not a composite type", other.name()),
                );
                return Err(super::positioned(error, bound.position));
            }
        };
        let Some((_, ty)) = fields.iter().find(|(field, _)| field == name) else {
            let error = Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{name}\" not found in data type record"));
            return Err(super::positioned(error, bound.position));
        };
        let function = datafusion::functions::core::get_field();
        let expr = function.call(vec![bound.expr, datafusion::logical_expr::lit(name)]);
        Ok(Bound { expr, ty: Type::Sql(ty.clone()), position: bound.position })
    }
}

fn outer_reference(column: &ScopeColumn) -> Result<Expr> {
    match &column.expr {
        Expr::Column(plan_column) => {
            Ok(Expr::OuterReferenceColumn(Arc::new(Field::new(&plan_column.name, column.ty.to_arrow(), true)), plan_column.clone()))
        }
        _ => Err(Error::unsupported(format!("column \"{}\" of a FULL JOIN ... USING can't be used in a subquery", column.name))),
    }
}

/// The number of letters to add, drop or change to get from `a` to `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let change = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
