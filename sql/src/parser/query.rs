//! What a query may not contain: the clauses that `sqlparser` reads and that DataFusion's planner drops without a word, and those that
//! weir has not. Everything else that the planner does not know it refuses itself.
//!
//! Statements over the system catalogs (`pg_catalog`, `information_schema`) are rewritten before they are planned; for them only clauses that
//! would be lost are refused, not expressions.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    CastKind, DuplicateTreatment, Expr, Fetch, Function, FunctionArg, FunctionArgExpr, FunctionArguments, GroupByExpr, Ident, Join,
    JoinOperator, LimitClause, NamedWindowExpr, ObjectName, ObjectNamePart, OptimizerHintStyle, OrderByExpr, OrderByKind, Query, Select,
    SelectFlavor, SelectItem, SetExpr, SetQuantifier, Spanned, Statement, TableAlias, TableFactor, TableWithJoins, Value, ValueWithSpan,
    Visit, VisitMut, Visitor, VisitorMut, WildcardAdditionalOptions, WindowSpec, WindowType,
};
use datafusion::sql::sqlparser::tokenizer::Location;
use weir_catalog::{Error, Result, SqlState};

use super::script::{MAX_RELATIONS, too_complex};
use super::{RESERVED, resolve_name};

/// An error, and where it is if the syntax tree knows.
#[derive(Debug)]
pub(super) struct Refusal {
    pub error: Error,
    pub location: Option<Location>,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal { error, location: None }
    }
}

impl Refusal {
    /// With its place, where `sqlparser` knows it.
    fn at(self, start: Location) -> Refusal {
        Refusal { location: (start.line > 0).then_some(start), ..self }
    }

    fn hint(self, hint: &str) -> Refusal {
        Refusal { error: self.error.with_hint(hint), ..self }
    }
}

/// Refuses (`0A000`) what no later stage consumes, anywhere in a query.
pub fn check_query(query: &Query) -> Result<()> {
    check(query).map_err(|refusal| refusal.error)
}

/// Refuses (`0A000`) what no later stage consumes, anywhere in an expression.
pub fn check_expr(expr: &Expr) -> Result<()> {
    check(expr).map_err(|refusal| refusal.error)
}

/// Refuses (`42809`) the clauses of aggregate and window calls on scalar functions, which DataFusion's planner drops without a word.
/// `is_scalar` is asked for names as they are compared.
pub fn check_scalar_calls(node: &impl Visit, is_scalar: impl Fn(&str) -> bool) -> Result<()> {
    struct Calls<F>(F);
    impl<F: Fn(&str) -> bool> Visitor for Calls<F> {
        type Break = Error;
        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Error> {
            let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
            let [ObjectNamePart::Identifier(name)] = function.name.0.as_slice() else { return ControlFlow::Continue(()) };
            let name = folded(name);
            if !self.0(&name) {
                return ControlFlow::Continue(());
            }
            let (distinct, clauses) = match &function.args {
                FunctionArguments::List(list) => (list.duplicate_treatment == Some(DuplicateTreatment::Distinct), !list.clauses.is_empty()),
                FunctionArguments::None | FunctionArguments::Subquery(_) => (false, false),
            };
            let present = [
                (distinct, "DISTINCT", "an aggregate function"),
                (!function.within_group.is_empty(), "WITHIN GROUP", "an aggregate function"),
                (clauses, "ORDER BY", "an aggregate function"),
                (function.filter.is_some(), "FILTER", "an aggregate function"),
                (function.null_treatment.is_some(), "IGNORE or RESPECT NULLS", "a window function"),
                (function.over.is_some(), "OVER", "a window function nor an aggregate function"),
            ];
            match present.iter().find(|(present, ..)| *present) {
                Some((_, clause, kind)) => {
                    let message = format!("{clause} specified, but {name} is not {kind}");
                    ControlFlow::Break(Error::new(SqlState::WRONG_OBJECT_TYPE, message))
                }
                None => ControlFlow::Continue(()),
            }
        }
    }
    match node.visit(&mut Calls(is_scalar)) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// The uid that `/*+ uid('name') */` right after SELECT gives to the block. Errors with `0A000` for any other hint.
pub fn block_uid(select: &Select) -> Result<Option<String>> {
    let mut uid = None;
    for hint in &select.optimizer_hints {
        // Only `/*+`: a comment such as `--a+b` is a comment.
        if !hint.prefix.is_empty() || hint.style != OptimizerHintStyle::MultiLine {
            continue;
        }
        let text = hint.text.trim();
        let name = parse_uid(text).ok_or_else(|| {
            Error::unsupported(format!("hint \"{text}\" is not supported")).with_hint("The only hint is /*+ uid('name') */.")
        })?;
        if uid.replace(name).is_some() {
            return Err(Error::new(SqlState::SYNTAX_ERROR, "a query block has more than one uid"));
        }
    }
    Ok(uid)
}

/// The name in `uid('name')`.
fn parse_uid(text: &str) -> Option<String> {
    let head = text.get(..3).filter(|head| head.eq_ignore_ascii_case("uid"))?;
    let arguments = text[head.len()..].trim_start().strip_prefix('(')?.strip_suffix(')')?.trim();
    let name = arguments.strip_prefix('\'')?.strip_suffix('\'')?;
    let unescaped = name.replace("''", "'");
    // Every quote inside must have been a doubled one.
    (!name.is_empty() && name.matches('\'').count() == 2 * unescaped.matches('\'').count()).then_some(unescaped)
}

pub(super) fn check(node: &impl Visit) -> Result<(), Refusal> {
    let mut catalogs = ReadsSystemCatalog;
    let system = node.visit(&mut catalogs).is_break();
    match node.visit(&mut Checker { system }) {
        ControlFlow::Break(refusal) => Err(refusal),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// Drops the schema `public` from names and spells `FETCH FIRST n ROWS ONLY` as `LIMIT n`.
pub(super) fn normalise(node: &mut impl VisitMut) -> Result<(), Refusal> {
    match node.visit(&mut Normaliser) {
        ControlFlow::Break(refusal) => Err(refusal),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// Whether a relation is one of the system catalogs'.
fn is_system_relation(name: &ObjectName) -> bool {
    let part = |index: usize| name.0.get(index).and_then(ObjectNamePart::as_ident).map(folded).unwrap_or_default();
    match name.0.len() {
        1 => part(0).starts_with("pg_"),
        2 => ["pg_catalog", "information_schema"].contains(&part(0).as_str()),
        3 => ["pg_catalog", "information_schema"].contains(&part(1).as_str()),
        _ => false,
    }
}

/// A name as it is compared.
fn folded(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_ascii_lowercase() }
}

/// Breaks at the first relation of a system catalog.
struct ReadsSystemCatalog;

impl Visitor for ReadsSystemCatalog {
    type Break = ();

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
        if is_system_relation(relation) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

struct Normaliser;

impl VisitorMut for Normaliser {
    type Break = Refusal;

    fn pre_visit_relation(&mut self, relation: &mut ObjectName) -> ControlFlow<Refusal> {
        if relation.0.len() < 2 || is_system_relation(relation) {
            return ControlFlow::Continue(());
        }
        let parts: Option<Vec<String>> = relation.0.iter().map(|part| part.as_ident().map(folded)).collect();
        let Some(parts) = parts else {
            return ControlFlow::Break(Refusal::from(Error::unsupported("a relation's name can't be computed")));
        };
        let written = parts.join(".");
        match (resolve_name(parts), relation.0.pop()) {
            (Ok(_), Some(last)) => {
                relation.0 = vec![last];
                ControlFlow::Continue(())
            }
            (Err(error), _) if error.code().as_str() == "3F000" => {
                let error = Error::new(SqlState::UNDEFINED_TABLE, format!("relation \"{written}\" does not exist"));
                ControlFlow::Break(Refusal::from(error).at(relation.span().start))
            }
            (Err(error), _) => ControlFlow::Break(Refusal::from(error).at(relation.span().start)),
            (Ok(_), None) => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Refusal> {
        // `public.t.a` is the column `t.a`, as `public.t` is the relation `t`.
        if let Expr::CompoundIdentifier(parts) = expr {
            let is = |index: usize, name: &str| parts.get(index).map(folded).as_deref() == Some(name);
            let qualifiers = match parts.len() {
                3 if is(0, "public") => 1,
                4 if is(0, "weir") && is(1, "public") => 2,
                _ => 0,
            };
            parts.drain(..qualifiers);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Refusal> {
        let plain = |fetch: &Fetch| !fetch.with_ties && !fetch.percent;
        if !query.fetch.as_ref().is_some_and(plain) {
            return ControlFlow::Continue(());
        }
        let quantity = query.fetch.take().and_then(|fetch| fetch.quantity);
        let quantity = quantity.unwrap_or_else(|| Expr::Value(Value::Number("1".to_string(), false).into()));
        match &mut query.limit_clause {
            None => query.limit_clause = Some(LimitClause::LimitOffset { limit: Some(quantity), offset: None, limit_by: Vec::new() }),
            Some(LimitClause::LimitOffset { limit: limit @ None, .. }) => *limit = Some(quantity),
            Some(_) => {
                let error = Error::new(SqlState::SYNTAX_ERROR, "multiple LIMIT clauses not allowed");
                return ControlFlow::Break(Refusal::from(error).at(quantity.span().start));
            }
        }
        ControlFlow::Continue(())
    }
}

/// `0A000` naming a clause.
fn unsupported(clause: &str) -> Refusal {
    Refusal::from(Error::unsupported(format!("{clause} is not supported")))
}

/// `Err` naming the first clause that is present.
fn refuse(clauses: &[(bool, &str)]) -> Result<(), Refusal> {
    match clauses.iter().find(|(present, _)| *present) {
        Some((_, clause)) => Err(unsupported(clause)),
        None => Ok(()),
    }
}

/// Walks a syntax tree and breaks at the first thing that is refused.
struct Checker {
    /// The statement reads a system catalog.
    system: bool,
}

impl Visitor for Checker {
    type Break = Refusal;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Refusal> {
        flow(self.query(query))
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<Refusal> {
        flow(self.select(select))
    }

    fn pre_visit_table_factor(&mut self, table_factor: &TableFactor) -> ControlFlow<Refusal> {
        flow(self.table_factor(table_factor))
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Refusal> {
        flow(self.expr(expr))
    }

    fn pre_visit_statement(&mut self, _: &Statement) -> ControlFlow<Refusal> {
        ControlFlow::Break(unsupported("a statement that changes data inside a query"))
    }

    fn pre_visit_value(&mut self, value: &ValueWithSpan) -> ControlFlow<Refusal> {
        flow(match &value.value {
            Value::Placeholder(name) if name.strip_prefix('$').and_then(|number| number.parse::<u16>().ok()).unwrap_or(0) == 0 => {
                let error = Error::new(SqlState::SYNTAX_ERROR, format!("syntax error at or near \"{name}\""));
                Err(Refusal::from(error).at(value.span.start))
            }
            _ => Ok(()),
        })
    }
}

fn flow(result: Result<(), Refusal>) -> ControlFlow<Refusal> {
    match result {
        Ok(()) => ControlFlow::Continue(()),
        Err(refusal) => ControlFlow::Break(refusal),
    }
}

impl Checker {
    fn query(&self, query: &Query) -> Result<(), Refusal> {
        let Query { with, body, order_by, limit_clause, fetch, locks, for_clause, settings, format_clause, pipe_operators } = query;
        if let Some(fetch) = fetch {
            // What is left of FETCH after normalising.
            refuse(&[(fetch.with_ties, "FETCH ... WITH TIES"), (fetch.percent, "FETCH ... PERCENT"), (true, "FETCH")])?;
        }
        if let Some(lock) = locks.first() {
            return Err(unsupported(&format!("FOR {}", lock.lock_type)));
        }
        refuse(&[
            (for_clause.is_some(), "FOR XML, FOR JSON or FOR BROWSE"),
            (settings.is_some(), "SETTINGS"),
            (format_clause.is_some(), "FORMAT"),
            (!pipe_operators.is_empty(), "the pipe operator |>"),
        ])?;
        if with.as_ref().is_some_and(|with| with.cte_tables.len() > MAX_RELATIONS) {
            return Err(Refusal::from(too_complex()));
        }
        for cte in with.iter().flat_map(|with| &with.cte_tables) {
            alias_is_plain(&cte.alias)?;
            let clauses = [(cte.from.is_some(), "FROM after a common table expression"), (cte.materialized.is_some(), "MATERIALIZED")];
            refuse(&clauses).map_err(|refusal| refusal.at(cte.alias.name.span.start))?;
        }
        if let Some(order_by) = order_by {
            refuse(&[(order_by.interpolate.is_some(), "INTERPOLATE")])?;
            match &order_by.kind {
                OrderByKind::All(_) => return Err(unsupported("ORDER BY ALL")),
                OrderByKind::Expressions(exprs) => order_is_plain(exprs)?,
            }
        }
        match limit_clause {
            Some(LimitClause::LimitOffset { limit_by, .. }) => refuse(&[(!limit_by.is_empty(), "LIMIT ... BY")])?,
            Some(LimitClause::OffsetCommaLimit { .. }) => {
                return Err(Refusal::from(
                    Error::new(SqlState::SYNTAX_ERROR, "LIMIT #,# syntax is not supported")
                        .with_hint("Use separate LIMIT and OFFSET clauses."),
                ));
            }
            None => {}
        }
        // A chain of set operations is as deep as it is long on its left side only.
        let mut bodies = vec![body.as_ref()];
        while let Some(body) = bodies.pop() {
            match body {
                SetExpr::Select(_) | SetExpr::Query(_) => {}
                SetExpr::SetOperation { left, right, op: _, set_quantifier } => {
                    match set_quantifier {
                        SetQuantifier::All | SetQuantifier::Distinct | SetQuantifier::None => {}
                        SetQuantifier::ByName | SetQuantifier::AllByName | SetQuantifier::DistinctByName => {
                            return Err(unsupported("BY NAME"));
                        }
                    }
                    bodies.push(right);
                    bodies.push(left);
                }
                SetExpr::Values(values) => refuse(&[(values.explicit_row, "VALUES ROW"), (values.value_keyword, "VALUE")])?,
                SetExpr::Table(_) => return Err(unsupported("TABLE in this place").hint("Write SELECT * FROM the table.")),
                SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_) => {
                    return Err(unsupported("a statement that changes data after or inside WITH"));
                }
            }
        }
        Ok(())
    }

    fn select(&self, select: &Select) -> Result<(), Refusal> {
        let Select {
            select_token,
            optimizer_hints: _,
            distinct: _,
            select_modifiers,
            top,
            top_before_distinct: _,
            projection,
            exclude,
            into,
            from,
            lateral_views,
            prewhere,
            selection: _,
            connect_by,
            group_by,
            cluster_by,
            distribute_by,
            sort_by,
            having: _,
            named_window,
            qualify,
            window_before_qualify: _,
            value_table_mode,
            flavor,
        } = select;
        let here = |refusal: Refusal| refusal.at(select_token.0.span.start);
        block_uid(select).map_err(|error| here(Refusal::from(error)))?;
        refuse(&[
            (select_modifiers.is_some(), "a SELECT modifier"),
            (top.is_some(), "TOP"),
            (exclude.is_some(), "EXCLUDE"),
            (into.is_some(), "SELECT ... INTO"),
            (!lateral_views.is_empty(), "LATERAL VIEW"),
            (prewhere.is_some(), "PREWHERE"),
            (!connect_by.is_empty(), "CONNECT BY"),
            (!cluster_by.is_empty(), "CLUSTER BY"),
            (!distribute_by.is_empty(), "DISTRIBUTE BY"),
            (!sort_by.is_empty(), "SORT BY"),
            (qualify.is_some(), "QUALIFY"),
            (value_table_mode.is_some(), "SELECT AS"),
            (*flavor != SelectFlavor::Standard, "FROM without SELECT"),
        ])
        .map_err(here)?;
        for item in projection {
            match item {
                SelectItem::UnnamedExpr(_) => {}
                // A quoted alias has no span; it comes after its expression.
                SelectItem::ExprWithAlias { expr, alias } => ident_is_name(alias).map_err(|refusal| refusal.at(expr.span().end))?,
                SelectItem::ExprWithAliases { .. } => return Err(unsupported("several names for one column").at(item.span().start)),
                SelectItem::QualifiedWildcard(_, options) | SelectItem::Wildcard(options) => {
                    wildcard_is_plain(options).map_err(|refusal| refusal.at(item.span().start))?;
                }
            }
        }
        if from.iter().map(|table| 1 + table.joins.len()).sum::<usize>() > MAX_RELATIONS {
            return Err(here(Refusal::from(too_complex())));
        }
        for TableWithJoins { relation: _, joins } in from {
            joins_are_plain(joins)?;
        }
        match group_by {
            GroupByExpr::All(_) => return Err(here(unsupported("GROUP BY ALL"))),
            GroupByExpr::Expressions(_, modifiers) => refuse(&[(!modifiers.is_empty(), "GROUP BY ... WITH")]).map_err(here)?,
        }
        for definition in named_window {
            match &definition.1 {
                NamedWindowExpr::WindowSpec(spec) => window_is_plain(spec)?,
                NamedWindowExpr::NamedWindow(_) => {
                    return Err(unsupported("a window that is another window's name").at(definition.0.span.start));
                }
            }
        }
        Ok(())
    }

    fn table_factor(&self, table_factor: &TableFactor) -> Result<(), Refusal> {
        let alias = match table_factor {
            TableFactor::Table { name, alias, args, with_hints, version, with_ordinality, partitions, json_path, sample, index_hints } => {
                refuse(&[
                    (args.as_ref().is_some_and(|args| args.settings.is_some()), "SETTINGS"),
                    (!with_hints.is_empty() || !index_hints.is_empty(), "a table hint"),
                    (version.is_some(), "FOR SYSTEM_TIME AS OF"),
                    (*with_ordinality, "WITH ORDINALITY"),
                    (!partitions.is_empty(), "PARTITION"),
                    (json_path.is_some(), "a path into a relation"),
                    (sample.is_some(), "TABLESAMPLE"),
                ])
                .map_err(|refusal| refusal.at(name.span().start))?;
                alias
            }
            TableFactor::Derived { lateral: _, subquery: _, alias, sample } => {
                refuse(&[(sample.is_some(), "TABLESAMPLE")])?;
                alias
            }
            TableFactor::Function { lateral: _, name, args: _, with_ordinality, alias } => {
                refuse(&[(*with_ordinality, "WITH ORDINALITY")]).map_err(|refusal| refusal.at(name.span().start))?;
                alias
            }
            TableFactor::UNNEST { alias, array_exprs: _, with_offset, with_offset_alias, with_ordinality } => {
                let offset = *with_offset || with_offset_alias.is_some();
                refuse(&[(offset, "WITH OFFSET"), (*with_ordinality, "WITH ORDINALITY")])?;
                alias
            }
            TableFactor::NestedJoin { table_with_joins, alias } => {
                if table_with_joins.joins.len() > MAX_RELATIONS {
                    return Err(Refusal::from(too_complex()));
                }
                joins_are_plain(&table_with_joins.joins)?;
                alias
            }
            TableFactor::TableFunction { .. } => return Err(unsupported("TABLE(...)").at(table_factor.span().start)),
            TableFactor::JsonTable { .. } => return Err(unsupported("JSON_TABLE")),
            TableFactor::OpenJsonTable { .. } => return Err(unsupported("OPENJSON")),
            TableFactor::XmlTable { .. } => return Err(unsupported("XMLTABLE")),
            TableFactor::Pivot { .. } => return Err(unsupported("PIVOT")),
            TableFactor::Unpivot { .. } => return Err(unsupported("UNPIVOT")),
            TableFactor::MatchRecognize { .. } => return Err(unsupported("MATCH_RECOGNIZE")),
            TableFactor::SemanticView { .. } => return Err(unsupported("SEMANTIC_VIEW")),
        };
        alias.iter().try_for_each(alias_is_plain)
    }

    fn expr(&self, expr: &Expr) -> Result<(), Refusal> {
        if self.system {
            return Ok(());
        }
        match expr {
            Expr::Function(function) => function_is_plain(function).map_err(|refusal| refusal.at(function.name.span().start)),
            Expr::Cast { kind, expr: _, data_type: _, array, format } => {
                refuse(&[(*array, "CAST ... ARRAY"), (format.is_some(), "CAST ... FORMAT"), (*kind == CastKind::SafeCast, "SAFE_CAST")])
                    .map_err(|refusal| refusal.at(expr.span().start))
            }
            Expr::TypedString(literal) => refuse(&[(literal.uses_odbc_syntax, "the ODBC escape {...}")]),
            Expr::Collate { .. } => Err(unsupported("COLLATE").at(expr.span().start)),
            _ => Ok(()),
        }
    }
}

/// PostgreSQL has no string as a name.
fn ident_is_name(ident: &Ident) -> Result<(), Refusal> {
    if ident.quote_style == Some('\'') {
        let error = Error::new(SqlState::SYNTAX_ERROR, format!("syntax error at or near \"'{}'\"", ident.value));
        return Err(Refusal::from(error));
    }
    Ok(())
}

fn alias_is_plain(alias: &TableAlias) -> Result<(), Refusal> {
    let TableAlias { explicit: _, name, columns, at } = alias;
    ident_is_name(name).map_err(|refusal| refusal.at(name.span.start))?;
    if name.quote_style.is_none() && RESERVED.contains(&name.value.to_ascii_lowercase().as_str()) {
        let error = Error::new(SqlState::SYNTAX_ERROR, format!("syntax error at or near \"{}\"", name.value));
        return Err(Refusal::from(error).at(name.span.start));
    }
    let typed = columns.iter().any(|column| column.data_type.is_some());
    refuse(&[(typed, "a type in a column alias"), (at.is_some(), "AT")]).map_err(|refusal| refusal.at(name.span.start))
}

fn joins_are_plain(joins: &[Join]) -> Result<(), Refusal> {
    for Join { relation: _, global, join_operator } in joins {
        refuse(&[(*global, "GLOBAL JOIN")])?;
        let clause = match join_operator {
            JoinOperator::Join(_)
            | JoinOperator::Inner(_)
            | JoinOperator::Left(_)
            | JoinOperator::LeftOuter(_)
            | JoinOperator::Right(_)
            | JoinOperator::RightOuter(_)
            | JoinOperator::FullOuter(_)
            | JoinOperator::CrossJoin(_) => continue,
            JoinOperator::Semi(_) | JoinOperator::LeftSemi(_) | JoinOperator::RightSemi(_) => "SEMI JOIN",
            JoinOperator::Anti(_) | JoinOperator::LeftAnti(_) | JoinOperator::RightAnti(_) => "ANTI JOIN",
            JoinOperator::CrossApply | JoinOperator::OuterApply => "APPLY",
            JoinOperator::AsOf { .. } => "ASOF JOIN",
            JoinOperator::StraightJoin(_) => "STRAIGHT_JOIN",
            JoinOperator::ArrayJoin | JoinOperator::LeftArrayJoin | JoinOperator::InnerArrayJoin => "ARRAY JOIN",
        };
        return Err(unsupported(clause));
    }
    Ok(())
}

fn order_is_plain(exprs: &[OrderByExpr]) -> Result<(), Refusal> {
    exprs.iter().try_for_each(|expr| refuse(&[(expr.with_fill.is_some(), "WITH FILL")]))
}

fn window_is_plain(spec: &WindowSpec) -> Result<(), Refusal> {
    let WindowSpec { window_name, partition_by: _, order_by, window_frame: _ } = spec;
    refuse(&[(window_name.is_some(), "a window that extends another window")])?;
    order_is_plain(order_by)
}

fn wildcard_is_plain(options: &WildcardAdditionalOptions) -> Result<(), Refusal> {
    let WildcardAdditionalOptions { wildcard_token: _, opt_ilike, opt_exclude, opt_except, opt_replace, opt_rename, opt_alias } = options;
    refuse(&[
        (opt_ilike.is_some(), "* ILIKE"),
        (opt_exclude.is_some(), "* EXCLUDE"),
        (opt_except.is_some(), "* EXCEPT"),
        (opt_replace.is_some(), "* REPLACE"),
        (opt_rename.is_some(), "* RENAME"),
        (opt_alias.is_some(), "* AS"),
    ])
}

fn function_is_plain(function: &Function) -> Result<(), Refusal> {
    let Function { name: _, uses_odbc_syntax, parameters, args, filter: _, null_treatment: _, over, within_group } = function;
    refuse(&[
        (*uses_odbc_syntax, "the ODBC escape {fn ...}"),
        (!matches!(parameters, FunctionArguments::None), "a function with parameters before its arguments"),
        (matches!(args, FunctionArguments::Subquery(_)), "a subquery as the argument of a function"),
    ])?;
    order_is_plain(within_group)?;
    if let Some(WindowType::WindowSpec(spec)) = over {
        window_is_plain(spec)?;
    }
    let FunctionArguments::List(list) = args else { return Ok(()) };
    for arg in &list.args {
        let (FunctionArg::Named { arg, .. } | FunctionArg::ExprNamed { arg, .. } | FunctionArg::Unnamed(arg)) = arg;
        match arg {
            FunctionArgExpr::Expr(_) | FunctionArgExpr::Wildcard => {}
            FunctionArgExpr::QualifiedWildcard(_) => return Err(unsupported("a whole row as the argument of a function")),
            FunctionArgExpr::WildcardWithOptions(_) => return Err(unsupported("an option after * in the argument of a function")),
        }
    }
    Ok(())
}
