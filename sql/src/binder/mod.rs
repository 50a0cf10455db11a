//! From an SQL syntax tree to a DataFusion logical plan with PostgreSQL's meaning.
//!
//! The binder resolves every name, gives every expression a type by PostgreSQL's rules and puts in functions of our own where DataFusion's compute
//! something else (arithmetic, casts, SUM). The one plan is then run by DataFusion as a batch query, or turned into a stream graph.
//!
//! # Invariants of a bound plan
//! - It is fully typed: every operand has the type that its operator or function takes; nothing is left to coerce.
//! - The columns of every node have unique names. What the user calls a result column stands in [`BoundQuery::columns`].
//! - Aggregate nodes hold only COUNT, SUM, MIN and MAX (AVG, BOOL_AND, BOOL_OR are computed from them), besides the aggregates that only batch queries may use.
//! - Table scans carry a [`CatalogSource`] or a [`SystemSource`]. Views are expanded.

mod aggregate;
mod batch;
mod call;
mod chain;
mod decorrelate;
mod error;
mod expr;
mod from;
mod guard;
mod insert;
mod multiset;
mod naming;
mod nested;
mod order;
mod place;
mod plain;
mod query;
mod scope;
mod select;
mod semi;
mod series;
mod signature;
mod subquery;
mod table_call;
pub mod types;
mod unnest;
mod unsupported;
mod window;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::TableType;
use datafusion::logical_expr::{Expr, LogicalPlan, TableSource};
use datafusion::optimizer::analyzer::Analyzer;
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::tokenizer::{Location, Span};
use weir_catalog::{Catalog, Column, Error, Object, ObjectId, Result, SqlState, SqlType, View};

pub use batch::optimize_batch;
pub use error::bind_error;
pub use from::nested_too_deeply;
pub(crate) use guard::can_fail;
pub use insert::{BoundInsert, Changed};
pub(crate) use multiset::SIDE_PREFIX;
use scope::{Relation, Scope};
pub use select::{DISTINCT_ON_PREFIX, UID_ALIAS_PREFIX};
pub use series::{Series, SeriesSource, series_values};
pub use table_call::{TableCall, table_calls};
use types::{Bound, Type};

/// What bears on a query's meaning besides its text.
#[derive(Clone, Debug, Default)]
pub struct BinderSettings {
    /// The session's TimeZone. Only UTC has an effect so far: there is no type with a time zone yet.
    pub time_zone: String,
    /// The time that `now()` and its kin give; `None` in a continuous query, where they are refused.
    pub now_us: Option<i64>,
    /// The types that the client declared for `$1`, `$2`, ...
    pub parameter_types: Vec<Option<SqlType>>,
}

/// Tables that are no catalog objects: the system views.
pub trait SystemTables {
    /// The table of this name, in this schema if one was written.
    fn resolve(&self, schema: Option<&str>, name: &str) -> Option<SystemSource>;

    /// The table that a call gives; `None` where calls can't be read.
    fn called(&self, call: &TableCall) -> Option<Arc<dyn TableSource>>;
}

/// The table source of a catalog object: a stored table, a connector table or a materialized view.
#[derive(Debug)]
pub struct CatalogSource {
    pub object: Arc<Object>,
    schema: SchemaRef,
}

impl CatalogSource {
    pub fn new(object: Arc<Object>) -> CatalogSource {
        let schema = weir_catalog::object::schema_of(object.columns());
        CatalogSource { object, schema }
    }
}

impl TableSource for CatalogSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

/// The table source of a system view.
#[derive(Clone, Debug)]
pub struct SystemSource {
    pub name: String,
    pub columns: Vec<Column>,
}

impl TableSource for SystemSource {
    fn schema(&self) -> SchemaRef {
        weir_catalog::object::schema_of(&self.columns)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }
}

/// How many parameters of a statement may need a second look at what they are.
const MOST_CONFLICTS: usize = 4;

/// Turns syntax trees into plans, over one catalog.
#[derive(Clone, Copy)]
pub struct Binder<'a> {
    catalog: &'a Catalog,
    settings: &'a BinderSettings,
    system: Option<&'a dyn SystemTables>,
    text: Option<&'a str>,
}

/// A query with names and types resolved.
#[derive(Clone, Debug)]
pub struct BoundQuery {
    /// Its columns are those of `columns`, in order; their names in the plan are unique and may differ.
    pub plan: LogicalPlan,
    /// The result's columns as the user sees them. Names can repeat.
    pub columns: Vec<Column>,
    /// The tables and materialized views that it reads, macros resolved.
    pub inputs: Vec<ObjectId>,
    /// The views (macros) that it names, directly or through another.
    pub macros: Vec<ObjectId>,
    /// The type of each parameter `$n`, by n.
    pub parameters: BTreeMap<usize, SqlType>,
}

impl BoundQuery {
    /// Errors with `42701` if two columns have the same name, which what CREATE makes can't have.
    pub fn check_unique_columns(&self) -> Result<()> {
        let mut names: HashSet<&str> = HashSet::with_capacity(self.columns.len());
        for column in &self.columns {
            if !names.insert(&column.name) {
                return Err(Error::new(SqlState::DUPLICATE_COLUMN, format!("column \"{}\" specified more than once", column.name)));
            }
        }
        Ok(())
    }
}

/// What is gathered while one statement is bound.
#[derive(Debug, Default)]
struct State {
    inputs: Vec<ObjectId>,
    macros: Vec<ObjectId>,
}

/// The binding of one statement, or of a view inside it.
#[derive(Clone)]
struct Session<'b> {
    catalog: &'b Catalog,
    settings: &'b BinderSettings,
    system: Option<&'b dyn SystemTables>,
    /// The text that the syntax tree was parsed from; `None` where positions would mean nothing to the user.
    text: Option<&'b str>,
    /// The views that are being expanded, outermost first.
    expanding: Vec<ObjectId>,
    state: &'b RefCell<State>,
}

impl<'a> Binder<'a> {
    pub fn new(catalog: &'a Catalog, settings: &'a BinderSettings) -> Binder<'a> {
        Binder { catalog, settings, system: None, text: None }
    }

    /// Lets queries name the system views.
    pub fn with_system_tables(mut self, system: &'a dyn SystemTables) -> Binder<'a> {
        self.system = Some(system);
        self
    }

    /// The text that was parsed, so that errors can say where in it they are.
    pub fn with_text(mut self, text: &'a str) -> Binder<'a> {
        self.text = Some(text);
        self
    }

    fn session<'b>(&'b self, state: &'b RefCell<State>) -> Session<'b> {
        Session { catalog: self.catalog, settings: self.settings, system: self.system, text: self.text, expanding: Vec::new(), state }
    }

    /// Binds a query.
    pub fn bind_query(&self, query: &ast::Query) -> Result<BoundQuery> {
        self.deducing(|binder| {
            let state = RefCell::new(State::default());
            let relation = binder.session(&state).query(query, &Scope::EMPTY)?;
            finish(relation, state.into_inner())
        })
    }

    /// What `bind` gives where each parameter has one type. One whose uses differ has the type that one of them gives it, the first if that will do: the
    /// others are then uses of a value of that type. Errors with `42P08` where that is no way out.
    fn deducing<T>(&self, bind: impl Fn(&Binder<'_>) -> Result<std::result::Result<T, Conflict>>) -> Result<T> {
        fn rest<T>(
            binder: &Binder<'_>,
            bind: &dyn Fn(&Binder<'_>) -> Result<std::result::Result<T, Conflict>>,
            conflict: Conflict,
            left: usize,
        ) -> Result<T> {
            let place = conflict.number - 1;
            let is_declared = binder.settings.parameter_types.get(place).is_some_and(Option::is_some);
            if is_declared || left == 0 {
                return Err(conflict.error());
            }
            for ty in &conflict.types {
                let mut settings = binder.settings.clone();
                if settings.parameter_types.len() <= place {
                    settings.parameter_types.resize(place + 1, None);
                }
                settings.parameter_types[place] = Some(ty.clone());
                let with_type = Binder { settings: &settings, ..*binder };
                match bind(&with_type) {
                    Ok(Ok(bound)) => return Ok(bound),
                    Ok(Err(other)) => {
                        if let Ok(bound) = rest(&with_type, bind, other, left - 1) {
                            return Ok(bound);
                        }
                    }
                    // It is no value of this type.
                    Err(_) => {}
                }
            }
            Err(conflict.error())
        }
        match bind(self)? {
            Ok(bound) => Ok(bound),
            Err(conflict) => rest(self, &bind, conflict, MOST_CONFLICTS),
        }
    }

    /// Errors with `54001` if `view`, made or replaced, makes a chain of views that is too long to be read.
    pub fn check_nesting(&self, view: &View) -> Result<()> {
        // How many views stand above or below, each counted once: `inputs` and `dependants` of a view may name the same ones over several ways.
        fn longest(
            catalog: &Catalog,
            id: ObjectId,
            next: &dyn Fn(ObjectId) -> Vec<ObjectId>,
            known: &mut BTreeMap<ObjectId, usize>,
        ) -> usize {
            if let Some(length) = known.get(&id) {
                return *length;
            }
            // A cycle, which is refused elsewhere, ends here.
            known.insert(id, 0);
            let is_view = |id: &ObjectId| matches!(catalog.get_id(*id).map(Arc::as_ref), Some(Object::View(_)));
            let length = next(id).iter().filter(|id| is_view(id)).map(|id| longest(catalog, *id, next, known)).max().unwrap_or(0) + 1;
            known.insert(id, length);
            length
        }
        let inputs = |id: ObjectId| match self.catalog.get_id(id).map(Arc::as_ref) {
            _ if id == view.id => view.inputs.clone(),
            Some(Object::View(view)) => view.inputs.clone(),
            _ => Vec::new(),
        };
        let readers = |id: ObjectId| self.catalog.dependants(id).into_iter().map(|object| object.id()).collect();
        let below = longest(self.catalog, view.id, &inputs, &mut BTreeMap::new());
        let above = longest(self.catalog, view.id, &readers, &mut BTreeMap::new());
        // The view itself counts on both sides.
        if below + above - 1 > from::MAX_VIEW_NESTING { Err(nested_too_deeply()) } else { Ok(()) }
    }

    /// Binds an expression over `columns`, e.g. a DEFAULT (no columns), the WHERE of a DELETE or an assignment of an UPDATE. It refers to the columns by
    /// name, qualified by `relation` if one is given. Subqueries are allowed.
    pub fn bind_expr(&self, expr: &ast::Expr, relation: Option<&str>, columns: &[Column]) -> Result<(Expr, Type)> {
        let state = RefCell::new(State::default());
        let scope_columns = scope::table_columns(relation, columns);
        let scope = Scope { columns: &scope_columns, ..Scope::EMPTY };
        let bound = self.session(&state).expr(expr, &scope)?;
        Ok((bound.expr, bound.ty))
    }

    /// Like [`Binder::bind_expr`], for a condition: errors with `42804` if it is no BOOLEAN.
    pub fn bind_predicate(&self, expr: &ast::Expr, relation: Option<&str>, columns: &[Column]) -> Result<Expr> {
        let state = RefCell::new(State::default());
        let scope_columns = scope::table_columns(relation, columns);
        let scope = Scope { columns: &scope_columns, clause: scope::Clause::Where, ..Scope::EMPTY };
        let session = self.session(&state);
        let bound = session.expr(expr, &scope)?;
        session.boolean(bound, "WHERE").map(|bound| bound.expr)
    }
}

/// A parameter whose uses give it two types: of the one that comes first, and another.
struct Conflict {
    number: usize,
    types: [SqlType; 2],
}

impl Conflict {
    /// `42P08`
    fn error(self) -> Error {
        let code = SqlState::parse("42P08").unwrap_or(SqlState::DATATYPE_MISMATCH);
        let [one, other] = self.types;
        Error::new(code, format!("inconsistent types deduced for parameter ${}", self.number)).with_detail(format!("{one} versus {other}"))
    }
}

/// The types of the parameters in a plan, by number. Errors with `42P08` where uses of one differ.
pub fn parameters_of(plan: &LogicalPlan) -> Result<BTreeMap<usize, SqlType>> {
    deduced_parameters(plan)?.map_err(Conflict::error)
}

/// The types of the parameters in a plan, by number, or of the first whose uses differ.
fn deduced_parameters(plan: &LogicalPlan) -> Result<std::result::Result<BTreeMap<usize, SqlType>, Conflict>> {
    let mut parameters: BTreeMap<usize, SqlType> = BTreeMap::new();
    let mut conflict = None;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                if let Expr::Placeholder(placeholder) = expr
                    && let Some(number) = placeholder.id.strip_prefix('$').and_then(|number| number.parse::<usize>().ok())
                    && let Some(ty) = placeholder.field.as_ref().and_then(|field| SqlType::from_arrow(field.data_type()))
                {
                    let known = parameters.entry(number).or_insert_with(|| ty.clone());
                    if *known != ty && conflict.is_none() {
                        conflict = Some(Conflict { number, types: [known.clone(), ty] });
                    }
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })
    .map_err(bind_error)?;
    Ok(conflict.map_or(Ok(parameters), Err))
}

/// A relation as a query's result: unknown types become TEXT, and the plan is checked.
fn finish(relation: Relation, state: State) -> Result<std::result::Result<BoundQuery, Conflict>> {
    let relation = relation.with_known_types()?;
    let plan = analyze(relation.plan)?;
    let mut columns = Vec::with_capacity(relation.columns.len());
    for (i, column) in relation.columns.iter().enumerate() {
        let ty = match &column.ty {
            Type::Sql(ty) => ty.clone(),
            other => {
                return Err(Error::unsupported(format!("column \"{}\" has type {}, which a result can't have", column.name, other.name()))
                    .with_hint("Cast it to text."));
            }
        };
        let nullable = plan.schema().field(i).is_nullable();
        columns.push(Column { name: column.name.clone(), ty, nullable, default: None });
    }
    let parameters = deduced_parameters(&plan)?;
    Ok(parameters.map(|parameters| BoundQuery { plan, columns, inputs: state.inputs, macros: state.macros, parameters }))
}

/// DataFusion's analysis (types of subqueries, limits and window frames); a bound plan's expressions come out as they went in.
pub fn analyze(plan: LogicalPlan) -> Result<LogicalPlan> {
    let (analyzer, options) = (Analyzer::new(), ConfigOptions::default());
    let plan = match is_correlated(&plan)? {
        false => analyzer.execute_and_check(plan, &options, |_, _| {}).map_err(bind_error)?,
        // The check would refuse what only DataFusion's own rules can't turn into joins.
        true => analyzer.rules.iter().try_fold(plan, |plan, rule| rule.analyze(plan, &options)).map_err(bind_error)?,
    };
    // What DataFusion's functions return may be another string type than TEXT's.
    with_text_columns(plan)
}

/// The plan with string columns as `Utf8`.
fn with_text_columns(plan: LogicalPlan) -> Result<LogicalPlan> {
    use arrow::datatypes::DataType;
    use datafusion::logical_expr::expr::Cast;
    let schema = Arc::clone(plan.schema());
    let other_string = |ty: &DataType| matches!(ty, DataType::Utf8View | DataType::LargeUtf8 | DataType::Null);
    if !schema.fields().iter().any(|field| other_string(field.data_type())) {
        return Ok(plan);
    }
    let exprs = schema.iter().map(|(qualifier, field)| {
        let column = Expr::Column(datafusion::common::Column::new(qualifier.cloned(), field.name()));
        if other_string(field.data_type()) {
            Expr::Cast(Cast::new(Box::new(column), DataType::Utf8)).alias_qualified(qualifier.cloned(), field.name())
        } else {
            column
        }
    });
    project(plan.clone(), exprs.collect())
}

/// A projection, without DataFusion's own rewriting of its expressions.
fn project(plan: LogicalPlan, exprs: Vec<Expr>) -> Result<LogicalPlan> {
    let projection = datafusion::logical_expr::Projection::try_new(exprs, Arc::new(plan)).map_err(bind_error)?;
    Ok(LogicalPlan::Projection(projection))
}

/// Whether a plan holds a subquery, in an expression or in FROM, that is computed for each row of the query around it: no join.
fn is_correlated(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            found |= expr.exists(|expr| Ok(matches!(expr, Expr::OuterReferenceColumn(..))))?;
            Ok(TreeNodeRecursion::Continue)
        })
    })
    .map_err(bind_error)?;
    Ok(found)
}

impl Session<'_> {
    /// The character in the statement where `span` begins, from 1.
    fn position(&self, span: Span) -> Option<usize> {
        let Location { line, column } = span.start;
        if line == 0 {
            return None;
        }
        let text = self.text?;
        let before: usize = text.split_inclusive('\n').take(line as usize - 1).map(|line| line.chars().count()).sum();
        Some(before + column as usize)
    }

    fn at(&self, error: Error, span: Span) -> Error {
        match (error.position(), self.position(span)) {
            (None, Some(position)) => error.with_position(position),
            _ => error,
        }
    }

    /// The expression as a condition.
    fn boolean(&self, bound: Bound, clause: &str) -> Result<Bound> {
        let boolean = Type::Sql(SqlType::Boolean);
        match &bound.ty {
            ty if *ty == boolean => Ok(bound),
            Type::Unknown => types::convert(bound, &boolean),
            other => Err(positioned(
                Error::new(SqlState::DATATYPE_MISMATCH, format!("argument of {clause} must be type boolean, not type {}", other.name())),
                bound.position,
            )),
        }
    }
}

/// An error with its position, if there is one.
fn positioned(error: Error, position: Option<usize>) -> Error {
    match position {
        Some(position) if error.position().is_none() => error.with_position(position),
        _ => error,
    }
}
