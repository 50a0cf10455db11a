//! Catalog statements of clients, turned into what DataFusion can plan.
//!
//! # Invariants
//! - A rewrite keeps the statement's answer over the catalog; where it can't, the statement is left alone and its planning fails.
//! - Only statements that [`super::statement::classify`] accepted come here: some rewrites are right for the catalog only (collations are
//!   dropped, a scalar subquery that would give more than one row multiplies rows instead of failing).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Array, ArrayElemTypeDef, BinaryOperator, CastKind, DataType, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList,
    FunctionArguments, Ident, Join, JoinConstraint, JoinOperator, ObjectName, ObjectNamePart, Query, Select, SelectItem, SetExpr,
    Statement, TableAlias, TableFactor, TableWithJoins, Value, Visit, VisitMut, Visitor, VisitorMut,
};
use datafusion_pg_catalog::sql::rules::{
    AliasDuplicatedProjectionRewrite, CurrentUserVariableToSessionUserFunctionCall, FixArrayLiteral, ResolveUnqualifiedIdentifier,
    RewriteArrayAnyAllOperation, RewritePgCatalogOperator, SqlStatementRewriteRule, StripCallableQualifier, StripCollate,
};
use weir_catalog::{Error, Result, SqlState};

use super::functions::{Context, find_namespace, find_relation};
use super::snapshot::OWNER;
use super::statement::{aggregates, figure_name, is_always_empty, is_text, last_part, name_of, reg_kind};
use super::tables;

/// The statement for DataFusion. Errors with `42P01` and the like where a name in an OID alias cast means nothing.
pub(super) fn rewrite(mut query: Box<Query>, context: &Context) -> Result<Statement> {
    if let ControlFlow::Break(error) = VisitMut::visit(&mut query, &mut OidAliases { context }) {
        return Err(error);
    }
    let _ = VisitMut::visit(&mut query, &mut Subqueries { lifted: 0 });
    let _ = VisitMut::visit(&mut query, &mut Names);
    // After Names has given expressions the names that PostgreSQL does, so that schemas dropped here don't matter.
    let rules: [&dyn SqlStatementRewriteRule; 8] = [
        &AliasDuplicatedProjectionRewrite,
        &ResolveUnqualifiedIdentifier,
        &RewriteArrayAnyAllOperation,
        &StripCallableQualifier,
        &FixArrayLiteral,
        &CurrentUserVariableToSessionUserFunctionCall,
        &StripCollate,
        &RewritePgCatalogOperator,
    ];
    Ok(rules.iter().fold(Statement::Query(query), |statement, rule| rule.rewrite(statement)))
}

fn plain(value: Value) -> Expr {
    Expr::Value(value.with_empty_span())
}

fn number(value: i64) -> Expr {
    plain(Value::Number(value.to_string(), false))
}

fn call(name: &str, argument: Expr) -> Expr {
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args: vec![FunctionArg::Unnamed(FunctionArgExpr::Expr(argument))],
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

/// Turns names that are cast to OID alias types into OIDs, and OIDs that are shown through one into names.
struct OidAliases<'a> {
    context: &'a Context,
}

impl OidAliases<'_> {
    /// The OID that a text means; `None` where `expr` is no text.
    fn resolve(&self, kind: &str, expr: &Expr) -> Option<Result<Expr>> {
        let Expr::Value(value) = expr else { return None };
        let Value::SingleQuotedString(name) = &value.value else { return None };
        let trimmed = name.trim();
        if let Ok(oid) = trimmed.parse() {
            return Some(Ok(number(oid)));
        }
        if trimmed == "-" {
            return Some(Ok(number(0)));
        }
        let missing = |code: SqlState, what: &str| Error::new(code, format!("{what} \"{name}\" does not exist"));
        if kind == "regproc" {
            // Columns of this type hold names in the content that comes from PostgreSQL, so a name stays one.
            let bare = trimmed.strip_prefix("pg_catalog.").unwrap_or(trimmed).to_lowercase();
            return Some(match self.context.types.function_oid(&bare) {
                Some(_) => Ok(plain(Value::SingleQuotedString(bare))),
                None => Err(missing(SqlState::UNDEFINED_FUNCTION, "function")),
            });
        }
        Some(
            match kind {
                "regclass" => find_relation(self.context, name).ok_or_else(|| missing(SqlState::UNDEFINED_TABLE, "relation")),
                "regnamespace" => find_namespace(name).ok_or_else(|| missing(SqlState::UNDEFINED_OBJECT, "schema")),
                "regtype" => self.context.types.type_oid(name).ok_or_else(|| missing(SqlState::UNDEFINED_OBJECT, "type")),
                "regrole" if trimmed == self.context.facts.user => Ok(i64::from(OWNER)),
                "regrole" => Err(missing(SqlState::UNDEFINED_OBJECT, "role")),
                other => Err(Error::unsupported(format!("names of type {other} are not supported"))),
            }
            .map(number),
        )
    }

    /// `CAST(inner AS reg...)` as text.
    fn shown(&self, inner: &Expr, kind: &str) -> Option<Result<Expr>> {
        let function = match kind {
            "regclass" => "weir_regclass",
            "regtype" => "weir_regtype",
            "regnamespace" => "weir_regnamespace",
            "regproc" | "regprocedure" => "weir_regproc",
            "regrole" => "weir_regrole",
            _ => return None,
        };
        Some(match self.resolve(kind, inner) {
            Some(Ok(oid)) => Ok(call(function, oid)),
            Some(Err(error)) => Err(error),
            None => Ok(call(function, inner.clone())),
        })
    }
}

impl VisitorMut for OidAliases<'_> {
    type Break = Error;

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        // pg_catalog is searched without being named.
        if let TableFactor::Table { name, args: None, .. } = factor
            && name.0.len() == 1
            && last_part(name).is_some_and(|name| tables::is_pg_catalog(&name))
        {
            name.0.insert(0, ObjectNamePart::Identifier(Ident::new("pg_catalog")));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        if let SetExpr::Select(select) = query.body.as_mut() {
            for item in &mut select.projection {
                let shown = match item {
                    SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => match expr {
                        Expr::Cast { expr: inner, data_type, .. } => reg_kind(data_type).and_then(|kind| self.shown(inner, kind)),
                        _ => None,
                    },
                    _ => None,
                };
                match shown {
                    None => {}
                    Some(Err(error)) => return ControlFlow::Break(error),
                    Some(Ok(new)) => match item {
                        SelectItem::ExprWithAlias { expr, .. } => *expr = new,
                        item => {
                            let name = match &*item {
                                SelectItem::UnnamedExpr(expr) => figure_name(expr).unwrap_or_else(|| "?column?".into()),
                                _ => "?column?".into(),
                            };
                            *item = SelectItem::ExprWithAlias { expr: new, alias: Ident::with_quote('"', name) };
                        }
                    },
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        let Expr::Cast { expr: inner, data_type, .. } = expr else { return ControlFlow::Continue(()) };
        let new = match (reg_kind(data_type), inner.as_ref()) {
            (Some(kind), inner) => self.resolve(kind, inner),
            (None, Expr::Cast { expr: inner, data_type: alias, .. }) if is_text(data_type) => {
                reg_kind(alias).and_then(|kind| self.shown(inner, kind))
            }
            _ => None,
        };
        match new {
            None => ControlFlow::Continue(()),
            Some(Ok(new)) => {
                *expr = new;
                ControlFlow::Continue(())
            }
            Some(Err(error)) => ControlFlow::Break(error),
        }
    }
}

/// Gives unnamed expressions the names that PostgreSQL does, each once in its SELECT.
struct Names;

impl Names {
    fn body(body: &mut SetExpr) {
        match body {
            SetExpr::Select(select) => Self::select(select),
            SetExpr::SetOperation { left, right, .. } => {
                Self::body(left);
                Self::body(right);
            }
            // A query in parentheses is visited on its own.
            _ => {}
        }
    }

    fn select(select: &mut Select) {
        let mut taken: BTreeSet<String> = select
            .projection
            .iter()
            .filter_map(|item| match item {
                SelectItem::ExprWithAlias { alias, .. } => Some(name_of(alias)),
                SelectItem::UnnamedExpr(expr @ (Expr::Identifier(_) | Expr::CompoundIdentifier(_))) => figure_name(expr),
                _ => None,
            })
            .collect();
        for item in &mut select.projection {
            let SelectItem::UnnamedExpr(expr) = item else { continue };
            if matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_)) {
                continue;
            }
            let name = figure_name(expr).unwrap_or_else(|| "?column?".into());
            let mut unique = name.clone();
            let mut number = 1;
            while !taken.insert(unique.clone()) {
                number += 1;
                unique = format!("{name}_{number}");
            }
            *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: Ident::with_quote('"', unique) };
        }
    }
}

impl VisitorMut for Names {
    type Break = ();
    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        Self::body(&mut query.body);
        ControlFlow::Continue(())
    }
}

/// Takes subqueries out of expressions where DataFusion can't decorrelate them.
///
/// A scalar subquery that names columns of the query around it and gives at most one row for each becomes a left join. One over a relation
/// that is always empty becomes NULL, an empty array, or false.
struct Subqueries {
    lifted: usize,
}

impl VisitorMut for Subqueries {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let new = match expr {
            Expr::Subquery(query) if is_always_empty(query) => Some(plain(Value::Null)),
            Expr::Exists { subquery, negated } if is_always_empty(subquery) => Some(plain(Value::Boolean(*negated))),
            Expr::Function(Function { name, args: FunctionArguments::Subquery(query), .. })
                if last_part(name).is_some_and(|name| name == "array") && is_always_empty(query) =>
            {
                Some(Expr::Cast {
                    kind: CastKind::DoubleColon,
                    expr: Box::new(Expr::Array(Array { elem: Vec::new(), named: true })),
                    data_type: DataType::Array(ArrayElemTypeDef::SquareBracket(Box::new(DataType::Text), None)),
                    array: false,
                    format: None,
                })
            }
            _ => None,
        };
        if let Some(new) = new {
            *expr = new;
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        if let SetExpr::Select(select) = query.body.as_mut()
            && !select.from.is_empty()
            && !aggregates(select)
        {
            let mut level = Level { depth: 0, in_projection: true, lifted: &mut self.lifted, joins: Vec::new() };
            let _ = VisitMut::visit(&mut select.projection, &mut level);
            level.in_projection = false;
            let _ = VisitMut::visit(&mut select.selection, &mut level);
            let joins = level.joins;
            if !joins.is_empty() {
                let mut from = crossed(std::mem::take(&mut select.from));
                if let Some(from) = &mut from {
                    from.joins.extend(joins);
                }
                select.from = from.into_iter().collect();
            }
        }
        ControlFlow::Continue(())
    }
}

/// The items of a FROM list as one item, joined crosswise.
fn crossed(list: Vec<TableWithJoins>) -> Option<TableWithJoins> {
    let mut items = list.into_iter();
    let mut first = items.next()?;
    for item in items {
        first.joins.push(Join { relation: item.relation, global: false, join_operator: JoinOperator::CrossJoin(JoinConstraint::None) });
        first.joins.extend(item.joins);
    }
    Some(first)
}

/// The expressions of one SELECT, those of its subqueries left out.
struct Level<'a> {
    depth: usize,
    in_projection: bool,
    lifted: &'a mut usize,
    joins: Vec<Join>,
}

impl VisitorMut for Level<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.depth > 0 {
            return ControlFlow::Continue(());
        }
        match expr {
            Expr::Subquery(query) => {
                if let Some((value, join)) = lift(query, *self.lifted) {
                    *self.lifted += 1;
                    self.joins.push(join);
                    *expr = value;
                }
            }
            // Outside WHERE, DataFusion has no semi join for it: count instead.
            Expr::Exists { subquery, negated } if self.in_projection => {
                if let SetExpr::Select(select) = subquery.body.as_mut()
                    && !aggregates(select)
                    && subquery.limit_clause.is_none()
                {
                    let mut count = call("count", number(1));
                    if let Expr::Function(function) = &mut count
                        && let FunctionArguments::List(list) = &mut function.args
                    {
                        list.args = vec![FunctionArg::Unnamed(FunctionArgExpr::Wildcard)];
                    }
                    select.projection = vec![SelectItem::UnnamedExpr(count)];
                    let op = if *negated { BinaryOperator::Eq } else { BinaryOperator::Gt };
                    *expr = Expr::BinaryOp { left: Box::new(Expr::Subquery(subquery.clone())), op, right: Box::new(number(0)) };
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// A correlated scalar subquery as its value and the left join that provides it; `None` where it is not one that can be.
fn lift(query: &Query, lifted: usize) -> Option<(Expr, Join)> {
    let simple = query.with.is_none() && query.order_by.is_none() && query.limit_clause.is_none() && query.fetch.is_none();
    let SetExpr::Select(select) = query.body.as_ref() else { return None };
    if !simple || aggregates(select) || select.distinct.is_some() || select.projection.len() != 1 {
        return None;
    }
    let mut select = select.clone();
    let mut renamed: BTreeMap<String, String> = BTreeMap::new();
    for item in &mut select.from {
        for factor in std::iter::once(&mut item.relation).chain(item.joins.iter_mut().map(|join| &mut join.relation)) {
            let TableFactor::Table { name, alias, args: None, .. } = factor else { return None };
            let old = alias.as_ref().map(|alias| name_of(&alias.name)).or_else(|| last_part(name))?;
            let new = format!("weir_{lifted}_{old}");
            if alias.as_ref().is_some_and(|alias| !alias.columns.is_empty()) || renamed.insert(old, new.clone()).is_some() {
                return None;
            }
            *alias = Some(TableAlias { explicit: true, name: Ident::with_quote('"', new), columns: Vec::new(), at: None });
        }
    }
    if !is_correlated(&select, &renamed) {
        return None;
    }
    let _ = VisitMut::visit(&mut select, &mut Renaming { renamed: &renamed });
    let value = match select.projection.pop()? {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => expr,
        _ => return None,
    };
    let condition = select.selection.take().unwrap_or_else(|| plain(Value::Boolean(true)));
    let from = crossed(std::mem::take(&mut select.from))?;
    let relation =
        if from.joins.is_empty() { from.relation } else { TableFactor::NestedJoin { table_with_joins: Box::new(from), alias: None } };
    let join = Join { relation, global: false, join_operator: JoinOperator::LeftOuter(JoinConstraint::On(condition)) };
    Some((Expr::Nested(Box::new(value)), join))
}

/// Whether a SELECT over the relations `own` names a column of another.
fn is_correlated(select: &Select, own: &BTreeMap<String, String>) -> bool {
    struct Foreign<'a>(&'a BTreeMap<String, String>);
    impl Visitor for Foreign<'_> {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            match expr {
                Expr::CompoundIdentifier(parts) if parts.len() >= 2 && !self.0.contains_key(&name_of(&parts[0])) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
    }
    select.visit(&mut Foreign(own)).is_break()
}

struct Renaming<'a> {
    renamed: &'a BTreeMap<String, String>,
}

impl VisitorMut for Renaming<'_> {
    type Break = ();
    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::CompoundIdentifier(parts) if parts.len() >= 2 => {
                if let Some(new) = self.renamed.get(&name_of(&parts[0])) {
                    parts[0] = Ident::with_quote('"', new);
                }
            }
            // With one relation, a bare name is its column; PostgreSQL looks there first.
            Expr::Identifier(name) if self.renamed.len() == 1 => {
                if let Some(new) = self.renamed.values().next() {
                    *expr = Expr::CompoundIdentifier(vec![Ident::with_quote('"', new), name.clone()]);
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}
