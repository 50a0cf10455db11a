//! Continuous queries: from the text of a view's or sink's query to its stream graph, at CREATE and again at each start.

use std::collections::BTreeMap;

use datafusion::sql::sqlparser::ast;
use weir_catalog::{Catalog, ConnectorTable, Error, Job, JobKind, Object, Result, SqlState};

use crate::binder::{Binder, BinderSettings, BoundInsert, BoundQuery, SystemTables};
use crate::graph::StreamGraph;
use crate::parser::parse_query;
use crate::planner::{Target, plan_stream};

/// What becomes of a continuous query's result.
#[derive(Clone, Debug)]
pub enum QueryTarget {
    /// Kept and served under `name`; `columns` are the names that CREATE lists, the first as many as there are.
    MaterializedView { name: String, columns: Vec<String> },
    /// Written to a connector.
    Sink { name: String, connector: String, options: BTreeMap<String, String> },
    /// Written to a connector table, to `columns` of it where they are named.
    Insert { name: String, table: ConnectorTable, columns: Vec<String> },
}

impl QueryTarget {
    /// The target of a job in `catalog`.
    pub fn of_job(catalog: &Catalog, job: &Job) -> Result<QueryTarget> {
        Ok(match &job.kind {
            JobKind::MaterializedView { .. } => QueryTarget::MaterializedView {
                name: job.name.clone(),
                columns: job.columns.iter().map(|column| column.name.clone()).collect(),
            },
            JobKind::Sink { connector, options } => {
                QueryTarget::Sink { name: job.name.clone(), connector: connector.clone(), options: options.clone() }
            }
            JobKind::Insert { target } => match catalog.get_id(*target).map(AsRef::as_ref) {
                Some(Object::ConnectorTable(table)) => {
                    QueryTarget::Insert { name: job.name.clone(), table: table.clone(), columns: job.insert_columns.clone() }
                }
                _ => return Err(Error::internal(format!("job {} has no table to write to", job.name))),
            },
        })
    }
}

/// Binds the query of a continuous query, with its result's columns as the target has them.
///
/// `system` finds the system views, which are refused with a reason; `text` is what the statement was parsed from, for error positions. Both are `None` for a
/// query that was accepted before.
pub fn bind_continuous(
    catalog: &Catalog,
    query: &ast::Query,
    target: &QueryTarget,
    settings: &BTreeMap<String, String>,
    system: Option<&dyn SystemTables>,
    text: Option<&str>,
) -> Result<BoundQuery> {
    let settings = BinderSettings {
        time_zone: settings.get("timezone").cloned().unwrap_or_else(|| "UTC".into()),
        now_us: None,
        parameter_types: Vec::new(),
    };
    let mut binder = Binder::new(catalog, &settings);
    if let Some(system) = system {
        binder = binder.with_system_tables(system);
    }
    if let Some(text) = text {
        binder = binder.with_text(text);
    }
    let bound = match target {
        QueryTarget::MaterializedView { .. } | QueryTarget::Sink { .. } => binder.bind_query(query)?,
        QueryTarget::Insert { table, columns, .. } => {
            let insert = binder.bind_insert(&table.name, &table.columns, columns, Some(query))?;
            let BoundInsert { plan, inputs, macros, parameters } = insert;
            BoundQuery { plan, columns: table.columns.clone(), inputs, macros, parameters }
        }
    };
    if !bound.parameters.is_empty() {
        return Err(Error::new(SqlState::UNDEFINED_PARAMETER, "a continuous query can't have parameters"));
    }
    Ok(bound)
}

/// Plans a bound continuous query.
pub fn plan_continuous(catalog: &Catalog, bound: &BoundQuery, target: &QueryTarget) -> Result<StreamGraph> {
    let mut columns: Vec<String> = bound.columns.iter().map(|column| column.name.clone()).collect();
    let target = match target {
        QueryTarget::MaterializedView { name, columns: named } => {
            columns.iter_mut().zip(named).for_each(|(column, named)| column.clone_from(named));
            Target::MaterializedView { name: name.clone(), columns }
        }
        QueryTarget::Sink { name, .. } | QueryTarget::Insert { name, .. } => Target::Sink { name: name.clone(), columns },
    };
    plan_stream(&bound.plan, &target, catalog)
}

/// Plans a query from its text.
pub fn plan_query(catalog: &Catalog, query: &str, target: &QueryTarget, settings: &BTreeMap<String, String>) -> Result<StreamGraph> {
    let query = parse_query(query)?;
    let bound = bind_continuous(catalog, &query, target, settings, None, None)?;
    plan_continuous(catalog, &bound, target)
}
