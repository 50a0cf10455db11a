//! Tests of the planner: what EXPLAIN says of many queries, what is refused, and how stable uids are.

mod explain;
mod graph;
mod refusals;
mod uids;

use std::collections::BTreeMap;

use datafusion::logical_expr::LogicalPlan;
use weir_catalog::{Catalog, CatalogChange, ChangelogMode, Column, ConnectorTable, Job, JobKind, Object, Result, SqlType, StoredTable};

use super::{Target, plan_stream};
use crate::binder::{Binder, BinderSettings};
use crate::graph::StreamGraph;
use crate::parser::parse_query;

/// The tables of all tests: stored `users` (with a key) and `events` (without), connector `bids` and `nexmark` (with rows), the views `hot` (keyed) and
/// `log` (append-only, without key).
fn catalog() -> Catalog {
    let column = |name: &str, ty: SqlType, nullable: bool| Column { name: name.to_string(), ty, nullable, default: None };
    let users = StoredTable {
        id: 1,
        name: "users".to_string(),
        columns: vec![
            column("id", SqlType::BigInt, false),
            column("name", SqlType::Text, true),
            column("country", SqlType::Text, true),
            column("age", SqlType::Int, true),
        ],
        primary_key: Some(vec![0]),
        sql: String::new(),
    };
    let events = StoredTable {
        id: 2,
        name: "events".to_string(),
        columns: vec![
            column("kind", SqlType::Text, true),
            column("v", SqlType::Int, true),
            column("w", SqlType::Double, true),
            column("amount", SqlType::Numeric { precision: 12, scale: 2 }, true),
            column("ok", SqlType::Boolean, true),
        ],
        primary_key: None,
        sql: String::new(),
    };
    let bids = ConnectorTable {
        id: 3,
        name: "bids".to_string(),
        columns: vec![
            column("auction", SqlType::BigInt, true),
            column("bidder", SqlType::BigInt, true),
            column("price", SqlType::BigInt, true),
            column("channel", SqlType::Text, true),
            column("ts", SqlType::Timestamp { precision: 3 }, true),
        ],
        connector: "nexmark".to_string(),
        options: BTreeMap::new(),
        sql: String::new(),
    };
    let nexmark = ConnectorTable {
        id: 4,
        name: "nexmark".to_string(),
        columns: vec![
            column("event_type", SqlType::Int, true),
            column("bid", SqlType::Row(vec![("auction".to_string(), SqlType::BigInt), ("price".to_string(), SqlType::BigInt)]), true),
        ],
        connector: "nexmark".to_string(),
        options: BTreeMap::new(),
        sql: String::new(),
    };
    let view = |id, name: &str, columns, kind| Job {
        id,
        name: name.to_string(),
        kind,
        columns,
        query: String::new(),
        insert_columns: Vec::new(),
        sql: String::new(),
        settings: BTreeMap::new(),
        inputs: vec![3],
        macros: Vec::new(),
        operators: Vec::new(),
        parallelism: 2,
        origin: None,
    };
    let hot = view(
        5,
        "hot",
        vec![column("n", SqlType::BigInt, true), column("auction", SqlType::BigInt, true), column("best", SqlType::BigInt, true)],
        JobKind::MaterializedView { key: Some(vec![1]), changelog: ChangelogMode::Retract },
    );
    let log = view(
        6,
        "log",
        vec![column("auction", SqlType::BigInt, true), column("price", SqlType::BigInt, true)],
        JobKind::MaterializedView { key: None, changelog: ChangelogMode::Append },
    );
    let mut catalog = Catalog::default();
    for object in [
        Object::StoredTable(users),
        Object::StoredTable(events),
        Object::ConnectorTable(bids),
        Object::ConnectorTable(nexmark),
        Object::Job(hot),
        Object::Job(log),
    ] {
        catalog.apply(&CatalogChange::Create(object)).expect("the test's catalog is consistent");
    }
    catalog
}

/// The graph of `sql` as the materialized view `v`.
fn plan(sql: &str) -> Result<StreamGraph> {
    let (logical, columns) = bind(sql)?;
    plan_stream(&logical, &Target::MaterializedView { name: "v".to_string(), columns }, &catalog())
}

/// The plan of `sql` and the names of its columns.
fn bind(sql: &str) -> Result<(LogicalPlan, Vec<String>)> {
    let (catalog, settings) = (catalog(), BinderSettings::default());
    let query = parse_query(sql)?;
    let bound = Binder::new(&catalog, &settings).bind_query(&query)?;
    Ok((bound.plan, bound.columns.into_iter().map(|column| column.name).collect()))
}
