//! Which statements read the system catalog, and what can be told from their text alone.
//!
//! # Invariants
//! - [`classify`] accepts only single queries that name no relation outside `pg_catalog` and `information_schema`: the rewrites that follow
//!   are wrong for anything else.
//! - A text without any of the words in [`WORDS`] is turned away without being parsed.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use arrow::array::Array as _;
use datafusion::common::ScalarValue;
use datafusion::sql::sqlparser::ast::{
    Array, BinaryOperator, DataType, Expr, Function, Ident, JoinOperator, ObjectName, ObjectNamePart, Query, Select, SelectItem, SetExpr,
    Statement, TableFactor, TableWithJoins, UnaryOperator, Value, Visit, VisitMut, Visitor, VisitorMut,
};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::parser::Parser;
use weir_catalog::{Catalog, Error, Result, SqlState, SqlType};

use super::{introspection, tables};

/// Longest text that is looked at, in bytes: the catalog statements of clients are far shorter.
const TEXT_BYTES: usize = 64 * 1024;
/// How deep expressions and subqueries may nest.
const RECURSION_LIMIT: usize = 100;

/// One of these stands in every statement that reads the catalog.
const WORDS: &[&str] = &[
    "pg_",
    "information_schema",
    "version",
    "current_",
    "session_user",
    "set_config",
    "format_type",
    "has_",
    "_description",
    "to_reg",
    "::reg",
    "as reg",
    "inet_server",
    "inet_client",
];

/// Functions that make a statement without relations one about the catalog or the session.
const FUNCTIONS: &[&str] = &[
    "version",
    "current_schema",
    "current_schemas",
    "current_database",
    "current_catalog",
    "set_config",
    "current_setting",
    "format_type",
    "obj_description",
    "col_description",
    "shobj_description",
    "to_regclass",
    "to_regtype",
    "to_regnamespace",
    "inet_server_addr",
    "inet_server_port",
    "inet_client_addr",
    "inet_client_port",
    "has_table_privilege",
    "has_schema_privilege",
    "has_database_privilege",
    "has_any_column_privilege",
    "has_column_privilege",
    "has_function_privilege",
    "has_sequence_privilege",
];

/// Whether `text` may be about the catalog.
pub(super) fn may_read_catalog(text: &str) -> bool {
    let bytes = text.as_bytes();
    if bytes.len() > TEXT_BYTES {
        return false;
    }
    (0..bytes.len())
        .any(|at| WORDS.iter().any(|word| bytes[at..].get(..word.len()).is_some_and(|part| part.eq_ignore_ascii_case(word.as_bytes()))))
}

/// The query in `text`, if it is a single one that reads the catalog; `None` if it is anything else, an error if it mixes the catalog with
/// tables or names a catalog relation that does not exist.
pub(super) fn classify(text: &str, catalog: &Catalog) -> Option<Result<Box<Query>>> {
    if !may_read_catalog(text) {
        return None;
    }
    let mut statements =
        Parser::new(&PostgreSqlDialect {}).with_recursion_limit(RECURSION_LIMIT).try_with_sql(text).ok()?.parse_statements().ok()?;
    let (Some(Statement::Query(query)), true) = (statements.pop(), statements.is_empty()) else { return None };
    let mut found = Found { catalog, names: BTreeSet::new(), system: 0, missing: None, others: 0, functions: false };
    let _ = query.visit(&mut CommonTables(&mut found.names));
    let _ = query.visit(&mut found);
    match found {
        Found { missing: Some(name), .. } => {
            Some(Err(Error::new(SqlState::UNDEFINED_TABLE, format!("relation \"{name}\" does not exist"))))
        }
        Found { system: 1.., others: 1.., .. } => {
            Some(Err(Error::unsupported("system catalogs and other relations cannot be read in one statement")))
        }
        Found { system: 1.., .. } | Found { others: 0, functions: true, .. } => Some(introspection::plannable(query)),
        _ => None,
    }
}

/// Collects the names of WITH queries.
struct CommonTables<'a>(&'a mut BTreeSet<String>);

impl Visitor for CommonTables<'_> {
    type Break = ();
    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        if let Some(with) = &query.with {
            self.0.extend(with.cte_tables.iter().map(|table| name_of(&table.alias.name)));
        }
        ControlFlow::Continue(())
    }
}

struct Found<'a> {
    catalog: &'a Catalog,
    /// WITH queries.
    names: BTreeSet<String>,
    system: usize,
    missing: Option<String>,
    others: usize,
    functions: bool,
}

impl Visitor for Found<'_> {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        let TableFactor::Table { name, args, .. } = factor else { return ControlFlow::Continue(()) };
        if args.is_some() {
            self.functions |= last_part(name).is_some_and(|name| name.starts_with("pg_"));
            return ControlFlow::Continue(());
        }
        let parts: Vec<String> = name.0.iter().filter_map(ObjectNamePart::as_ident).map(name_of).collect();
        match parts.as_slice() {
            [name] if self.names.contains(name) => {}
            [name] if self.catalog.get(name).is_none() && tables::is_pg_catalog(name) => self.system += 1,
            [schema, name] | [_, schema, name] if schema == "pg_catalog" => {
                self.system += 1;
                if !tables::is_pg_catalog(name) {
                    self.missing = Some(format!("{schema}.{name}"));
                }
            }
            [schema, name] | [_, schema, name] if schema == "information_schema" => {
                self.system += 1;
                if !super::information_schema::exists(name) {
                    self.missing = Some(format!("{schema}.{name}"));
                }
            }
            _ => self.others += 1,
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::Function(function) => {
                let qualified = function.name.0.len() > 1;
                if let Some(name) = last_part(&function.name) {
                    self.functions |= qualified || name.starts_with("pg_") || FUNCTIONS.contains(&name.as_str());
                }
            }
            Expr::Identifier(name) if name.quote_style.is_none() && name.value.eq_ignore_ascii_case("current_schema") => {
                self.functions = true
            }
            Expr::Cast { data_type, .. } if reg_kind(data_type).is_some() => self.functions = true,
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// An identifier as PostgreSQL compares it.
pub(super) fn name_of(name: &Ident) -> String {
    if name.quote_style.is_some() { name.value.clone() } else { name.value.to_lowercase() }
}

/// The last part of a name, as PostgreSQL compares it.
pub(super) fn last_part(name: &ObjectName) -> Option<String> {
    name.0.last()?.as_ident().map(name_of)
}

/// What an OID alias type (`regclass`, ...) names; `None` for any other type.
pub(super) fn reg_kind(data_type: &DataType) -> Option<&'static str> {
    let text = data_type.to_string().to_lowercase();
    let name = text.strip_prefix("pg_catalog.").unwrap_or(&text);
    ["regclass", "regtype", "regnamespace", "regproc", "regprocedure", "regrole", "regoper", "regoperator", "regcollation", "regconfig"]
        .into_iter()
        .find(|known| *known == name)
}

/// Whether `data_type` is a character type.
pub(super) fn is_text(data_type: &DataType) -> bool {
    let text = data_type.to_string().to_lowercase();
    matches!(text.strip_prefix("pg_catalog.").unwrap_or(&text), "text" | "varchar" | "name" | "character varying")
}

/// Puts values in place of `$1`, `$2`, ... Errors with `42P02` where one is missing.
pub(super) fn bind(query: &mut Query, parameters: &[ScalarValue]) -> Result<()> {
    struct Binding<'a>(&'a [ScalarValue]);
    impl VisitorMut for Binding<'_> {
        type Break = Error;
        fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
            if let Some(at) = placeholder(expr) {
                let Some(value) = at.checked_sub(1).and_then(|at| self.0.get(at)) else {
                    return ControlFlow::Break(Error::new(SqlState::UNDEFINED_PARAMETER, format!("there is no parameter ${at}")));
                };
                *expr = literal(value);
            }
            if let Expr::AnyOp { left, compare_op: BinaryOperator::Eq, right, .. } = expr
                && let Some(list) = oids(right)
            {
                *expr = if list.is_empty() {
                    Expr::Value(Value::Boolean(false).with_empty_span())
                } else {
                    Expr::InList { expr: left.clone(), list, negated: false }
                };
            }
            ControlFlow::Continue(())
        }
    }
    match query.visit(&mut Binding(parameters)) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// The number in `$number`.
fn placeholder(expr: &Expr) -> Option<usize> {
    let Expr::Value(value) = expr else { return None };
    let Value::Placeholder(text) = &value.value else { return None };
    text.strip_prefix('$')?.parse().ok()
}

/// What stands in `ARRAY[...]::oid[]`, nothing in NULL.
fn oids(array: &Expr) -> Option<Vec<Expr>> {
    match array {
        Expr::Nested(inner) => oids(inner),
        Expr::Cast { expr, data_type, .. } if data_type.to_string().to_lowercase().ends_with("oid[]") => match expr.as_ref() {
            Expr::Array(array) => Some(array.elem.clone()),
            Expr::Value(value) if value.value == Value::Null => Some(Vec::new()),
            _ => None,
        },
        _ => None,
    }
}

fn literal(value: &ScalarValue) -> Expr {
    let plain = |value: Value| Expr::Value(value.with_empty_span());
    let number = |text: String| match text.strip_prefix('-') {
        Some(text) => Expr::Nested(Box::new(Expr::UnaryOp {
            op: UnaryOperator::Minus,
            expr: Box::new(plain(Value::Number(text.to_string(), false))),
        })),
        None => plain(Value::Number(text, false)),
    };
    match value {
        value if value.is_null() => plain(Value::Null),
        ScalarValue::Boolean(Some(value)) => plain(Value::Boolean(*value)),
        ScalarValue::Int8(_)
        | ScalarValue::Int16(_)
        | ScalarValue::Int32(_)
        | ScalarValue::Int64(_)
        | ScalarValue::UInt8(_)
        | ScalarValue::UInt16(_)
        | ScalarValue::UInt32(_)
        | ScalarValue::UInt64(_) => number(value.to_string()),
        ScalarValue::List(list) => {
            let elements = list.value(0);
            let elem = (0..elements.len())
                .map(|at| ScalarValue::try_from_array(&elements, at).map_or_else(|_| plain(Value::Null), |value| literal(&value)))
                .collect();
            Expr::Array(Array { elem, named: true })
        }
        other => plain(Value::SingleQuotedString(other.to_string())),
    }
}

/// The types of the parameters of `query`, from what each is cast to or compared with.
pub(super) fn parameter_types(query: &Query) -> Vec<SqlType> {
    struct Parameters(Vec<Option<SqlType>>);
    impl Parameters {
        fn note(&mut self, at: usize, ty: Option<SqlType>) {
            // A statement can't have more parameters than the protocol's 16-bit count allows.
            if (1..=usize::from(u16::MAX)).contains(&at) {
                self.0.resize(self.0.len().max(at), None);
                if let Some(slot) = self.0.get_mut(at - 1) {
                    *slot = slot.take().or(ty);
                }
            }
        }
    }
    impl Visitor for Parameters {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            match expr {
                Expr::Cast { expr, data_type, .. } => {
                    if let Some(at) = placeholder(expr) {
                        let text = data_type.to_string().to_lowercase();
                        let ty = match text.strip_prefix("pg_catalog.").unwrap_or(&text) {
                            "oid" | "int" | "int4" | "integer" | "int2" | "smallint" => SqlType::Int,
                            "bigint" | "int8" => SqlType::BigInt,
                            "bool" | "boolean" => SqlType::Boolean,
                            "oid[]" => SqlType::Array(Box::new(SqlType::Int)),
                            _ => SqlType::Text,
                        };
                        self.note(at, Some(ty));
                    }
                }
                Expr::BinaryOp { left, right, op } if is_comparison(op) => {
                    for (one, other) in [(left, right), (right, left)] {
                        if let Some(at) = placeholder(one) {
                            let name = figure_name(other);
                            let number = ["oid", "relid", "num", "namespace", "typid", "elem", "relam", "owner"]
                                .iter()
                                .any(|end| name.as_ref().is_some_and(|name| name.ends_with(end)));
                            self.note(at, Some(if number { SqlType::Int } else { SqlType::Text }));
                        }
                    }
                }
                expr => {
                    if let Some(at) = placeholder(expr) {
                        self.note(at, None);
                    }
                }
            }
            ControlFlow::Continue(())
        }
    }
    let mut parameters = Parameters(Vec::new());
    let _ = query.visit(&mut parameters);
    parameters.0.into_iter().map(|ty| ty.unwrap_or(SqlType::Text)).collect()
}

fn is_comparison(op: &BinaryOperator) -> bool {
    matches!(
        op,
        BinaryOperator::Eq | BinaryOperator::NotEq | BinaryOperator::Lt | BinaryOperator::LtEq | BinaryOperator::Gt | BinaryOperator::GtEq
    )
}

/// The first SELECT of a query, which names its columns.
pub(super) fn first_select(query: &Query) -> Option<&Select> {
    let mut body = query.body.as_ref();
    loop {
        match body {
            SetExpr::Select(select) => return Some(select),
            SetExpr::Query(query) => body = query.body.as_ref(),
            SetExpr::SetOperation { left, .. } => body = left.as_ref(),
            _ => return None,
        }
    }
}

/// The names that PostgreSQL gives a query's columns; `None` where a `*` is among them.
pub(super) fn column_names(query: &Query) -> Option<Vec<String>> {
    first_select(query)?
        .projection
        .iter()
        .map(|item| match item {
            SelectItem::UnnamedExpr(expr) => Some(figure_name(expr).unwrap_or_else(|| "?column?".into())),
            SelectItem::ExprWithAlias { alias, .. } => Some(name_of(alias)),
            _ => None,
        })
        .collect()
}

/// The name that PostgreSQL gives the result of an expression without AS.
pub(super) fn figure_name(expr: &Expr) -> Option<String> {
    figure(expr).map(|(name, _)| name)
}

/// A name, and whether it is strong: one that an expression around it takes over, rather than one of last resort.
fn figure(expr: &Expr) -> Option<(String, bool)> {
    let weak = |name: &str| Some((name.to_string(), false));
    match expr {
        Expr::Identifier(name) => Some((name_of(name), true)),
        Expr::CompoundIdentifier(parts) => parts.last().map(|name| (name_of(name), true)),
        Expr::Function(Function { name, .. }) => last_part(name).map(|name| (name, true)),
        Expr::Nested(inner) | Expr::Collate { expr: inner, .. } => figure(inner),
        Expr::CompoundFieldAccess { root, .. } => figure(root),
        Expr::Cast { expr, data_type, .. } => figure(expr).filter(|(_, strong)| *strong).or_else(|| {
            let text = data_type.to_string().to_lowercase();
            let text = text.strip_prefix("pg_catalog.").unwrap_or(&text);
            weak(text.split(['(', '[']).next().unwrap_or_default())
        }),
        Expr::Case { else_result, .. } => else_result.as_deref().and_then(figure).filter(|(_, strong)| *strong).or_else(|| weak("case")),
        Expr::Subquery(query) => column_names(query).and_then(|names| names.into_iter().next()).map(|name| (name, true)),
        Expr::Exists { .. } => weak("exists"),
        Expr::Array(_) => weak("array"),
        Expr::Extract { .. } => weak("extract"),
        Expr::Trim { .. } => weak("btrim"),
        Expr::Substring { .. } => weak("substring"),
        Expr::Position { .. } => weak("position"),
        Expr::Value(value) if matches!(value.value, Value::Boolean(_)) => weak("bool"),
        _ => None,
    }
}

/// Whether `query` gives no row, whatever the catalog holds: a relation that is always empty stands where a row needs one of it.
pub(super) fn is_always_empty(query: &Query) -> bool {
    fn empty_body(body: &SetExpr) -> bool {
        match body {
            SetExpr::Select(select) => empty_select(select),
            SetExpr::Query(query) => is_always_empty(query),
            SetExpr::SetOperation { left, right, .. } => empty_body(left) && empty_body(right),
            _ => false,
        }
    }
    fn empty_select(select: &Select) -> bool {
        let plain = !aggregates(select)
            && select.projection.iter().all(|item| matches!(item, SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. }));
        plain && select.from.iter().any(empty_from)
    }
    fn empty_from(from: &TableWithJoins) -> bool {
        let keeps_left = |operator: &JoinOperator| {
            !matches!(operator, JoinOperator::Right(_) | JoinOperator::RightOuter(_) | JoinOperator::FullOuter(_))
        };
        let inner =
            |operator: &JoinOperator| matches!(operator, JoinOperator::Join(_) | JoinOperator::Inner(_) | JoinOperator::CrossJoin(_));
        let mut empty = empty_factor(&from.relation);
        for join in &from.joins {
            empty = (empty && keeps_left(&join.join_operator)) || (inner(&join.join_operator) && empty_factor(&join.relation));
        }
        empty
    }
    fn empty_factor(factor: &TableFactor) -> bool {
        match factor {
            TableFactor::Table { name, args: None, .. } => last_part(name).is_some_and(|name| tables::is_always_empty(&name)),
            // Options and privileges are never set here: their arrays are NULL.
            TableFactor::Table { name, args: Some(args), .. } => {
                last_part(name).is_some_and(|name| name == "unnest")
                    && args.args.iter().any(|arg| {
                        let text = arg.to_string().to_lowercase();
                        text.ends_with("options") || text.ends_with("acl")
                    })
            }
            TableFactor::UNNEST { array_exprs, .. } => {
                array_exprs.iter().any(|expr| figure_name(expr).is_some_and(|name| name.ends_with("options") || name.ends_with("acl")))
            }
            TableFactor::Derived { subquery, .. } => is_always_empty(subquery),
            TableFactor::NestedJoin { table_with_joins, .. } => empty_from(table_with_joins),
            _ => false,
        }
    }
    query.with.is_none() && empty_body(&query.body)
}

/// Whether a SELECT gives a row for a group rather than for a row.
pub(super) fn aggregates(select: &Select) -> bool {
    struct Aggregates(usize);
    impl Visitor for Aggregates {
        type Break = ();
        fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            self.0 += 1;
            ControlFlow::Continue(())
        }
        fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            self.0 = self.0.saturating_sub(1);
            ControlFlow::Continue(())
        }
        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            const NAMES: &[&str] = &["count", "sum", "min", "max", "avg", "array_agg", "string_agg", "bool_and", "bool_or", "every"];
            if let (0, Expr::Function(function)) = (self.0, expr)
                && last_part(&function.name).is_some_and(|name| NAMES.contains(&name.as_str()))
            {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        }
    }
    let grouped = !matches!(&select.group_by, datafusion::sql::sqlparser::ast::GroupByExpr::Expressions(list, _) if list.is_empty());
    grouped || select.having.is_some() || select.projection.visit(&mut Aggregates(0)).is_break()
}
