//! Queries are bound, optimised and run by DataFusion over tables in memory; what comes out is compared with what PostgreSQL 15 gave.

mod errors;
mod expressions;
mod queries;

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::tree_node::Transformed;
use datafusion::datasource::{MemTable, provider_as_source};
use datafusion::execution::SessionStateBuilder;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::collect;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use weir_catalog::{Catalog, CatalogChange, Column, ConnectorTable, Error, Object, Result, SqlType, StoredTable, View};

use super::{Binder, BinderSettings, BoundQuery, CatalogSource, bind_error, optimize_batch};
use crate::functions::cast;

/// 2024-05-06 07:08:09.123456
const NOW_US: i64 = 1_714_979_289_123_456;

fn column(name: &str, ty: SqlType) -> Column {
    Column { name: name.into(), ty, nullable: true, default: None }
}

fn numeric(precision: u8, scale: i8) -> SqlType {
    SqlType::Numeric { precision, scale }
}

/// `t` and `u`, stored tables; `v`, a view of `t`; `events`, a connector table with a ROW column.
fn catalog() -> Catalog {
    let mut catalog = Catalog::default();
    let t = StoredTable {
        id: 16_384,
        name: "t".into(),
        columns: vec![
            Column { nullable: false, ..column("id", SqlType::Int) },
            column("i", SqlType::Int),
            column("b", SqlType::BigInt),
            column("n", numeric(10, 2)),
            column("d", SqlType::Double),
            column("s", SqlType::Text),
            column("ok", SqlType::Boolean),
            column("ts", SqlType::Timestamp { precision: 3 }),
        ],
        primary_key: Some(vec![0]),
        sql: String::new(),
    };
    let u = StoredTable {
        id: 16_385,
        name: "u".into(),
        columns: vec![column("id", SqlType::Int), column("name", SqlType::Text)],
        primary_key: None,
        sql: String::new(),
    };
    let w = StoredTable {
        id: 16_386,
        name: "w".into(),
        columns: vec![
            Column { default: Some("40 + 2".into()), ..column("a", SqlType::BigInt) },
            column("b", numeric(6, 2)),
            Column { default: Some("'none'".into()), ..column("c", SqlType::Text) },
        ],
        primary_key: None,
        sql: String::new(),
    };
    let v = View {
        id: 16_387,
        name: "v".into(),
        columns: vec![column("key", SqlType::Text), column("total", SqlType::BigInt)],
        query: "SELECT s, sum(i) FROM t GROUP BY s".into(),
        sql: String::new(),
        inputs: vec![16_384],
    };
    let bid = SqlType::Row(vec![("auction".into(), SqlType::BigInt), ("price".into(), SqlType::BigInt)]);
    let events = ConnectorTable {
        id: 16_388,
        name: "events".into(),
        columns: vec![column("event_type", SqlType::Int), column("bid", bid)],
        connector: "nexmark".into(),
        options: Default::default(),
        sql: String::new(),
    };
    for object in [Object::StoredTable(t), Object::StoredTable(u), Object::StoredTable(w), Object::View(v), Object::ConnectorTable(events)]
    {
        catalog.apply(&CatalogChange::Create(object)).unwrap();
    }
    catalog
}

/// The rows of a table, made from constants by the binder itself.
const ROWS: [(&str, &str); 3] = [
    (
        "t",
        "SELECT column1::int AS id, column2::int AS i, column3::bigint AS b, column4::numeric(10,2) AS n, column5::double precision AS d, column6::text AS s, \
         column7::boolean AS ok, column8::timestamp(3) AS ts FROM (VALUES \
         (1, 10, 100, 1.50, 0.5, 'a', true, '2020-01-01 00:00:00'), \
         (2, 20, 200, 2.25, 1.5, 'b', false, '2020-01-02 03:04:05.678'), \
         (3, NULL, 9223372036854775807, NULL, NULL, 'a', NULL, NULL), \
         (4, 5, 9223372036854775807, 3.333, -2.5, NULL, true, '2021-06-07 08:09:10'), \
         (5, 20, NULL, 10, 1e10, 'b', true, '2020-01-02 03:04:05.678')) AS x",
    ),
    (
        "u",
        "SELECT column1::int AS id, column2::text AS name FROM (VALUES (1, 'one'), (2, 'two'), (2, 'zwei'), (NULL, 'none'), (9, 'nine')) AS x",
    ),
    ("w", "SELECT 1::bigint AS a, 1.5::numeric(6,2) AS b, 'x'::text AS c WHERE false"),
];

fn settings() -> BinderSettings {
    BinderSettings { time_zone: "UTC".into(), now_us: Some(NOW_US), parameter_types: Vec::new() }
}

fn bind(sql: &str) -> Result<BoundQuery> {
    let (catalog, settings) = (catalog(), settings());
    let query = crate::parser::parse_query(sql)?;
    Binder::new(&catalog, &settings).with_text(sql).bind_query(&query)
}

async fn execute(plan: LogicalPlan) -> Result<Vec<RecordBatch>> {
    let mut plan = plan;
    for (name, rows) in ROWS {
        let mut table = None;
        plan = plan
            .transform_down_with_subqueries(|node| match node {
                LogicalPlan::TableScan(mut scan) => {
                    let is_ours = scan.source.downcast_ref::<CatalogSource>().is_some_and(|source| source.object.name() == name);
                    if is_ours {
                        table = Some(Arc::clone(&scan.source));
                        scan.source = provider_as_source(Arc::new(MemTable::try_new(scan.source.schema(), vec![vec![]])?));
                    }
                    Ok(if is_ours { Transformed::yes(LogicalPlan::TableScan(scan)) } else { Transformed::no(LogicalPlan::TableScan(scan)) })
                }
                other => Ok(Transformed::no(other)),
            })
            .map_err(bind_error)?
            .data;
        let Some(source) = table else { continue };
        // Filled in a second pass, for the rows come from a query of their own.
        let filled = Box::pin(execute(bind(rows)?.plan)).await?;
        let schema = source.schema();
        let filled = filled
            .into_iter()
            .map(|batch| RecordBatch::try_new(Arc::clone(&schema), batch.columns().to_vec()).unwrap())
            .collect::<Vec<_>>();
        let provider = Arc::new(MemTable::try_new(Arc::clone(&schema), vec![filled]).unwrap());
        plan = plan
            .transform_down_with_subqueries(|node| match node {
                LogicalPlan::TableScan(mut scan) if scan.table_name.table() == name || scan.source.schema() == schema => {
                    scan.source = provider_as_source(Arc::clone(&provider) as _);
                    Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
                }
                other => Ok(Transformed::no(other)),
            })
            .map_err(bind_error)?
            .data;
    }
    let plan = optimize_batch(plan)?;
    let state = SessionStateBuilder::new().with_default_features().build();
    let physical = DefaultPhysicalPlanner::default().create_physical_plan(&plan, &state).await.map_err(bind_error)?;
    collect(physical, state.task_ctx()).await.map_err(bind_error)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// The rows of a query as text, columns separated by `|`.
fn rows_of(batches: &[RecordBatch]) -> Vec<String> {
    let mut rows = Vec::new();
    for batch in batches {
        let texts = batch.columns().iter().map(|array| cast::evaluate(array, &SqlType::Text).unwrap()).collect::<Vec<_>>();
        for row in 0..batch.num_rows() {
            let cells = texts.iter().map(|text| {
                let text: &arrow::array::StringArray = text.as_any().downcast_ref().unwrap();
                if arrow::array::Array::is_null(text, row) { "NULL".to_string() } else { text.value(row).to_string() }
            });
            rows.push(cells.collect::<Vec<_>>().join("|"));
        }
    }
    rows
}

/// A query's result: its columns as `name type`, and its rows. Also checks that the batches have the promised types.
fn run(sql: &str) -> Result<(Vec<String>, Vec<String>)> {
    let query = bind(sql)?;
    let batches = runtime().block_on(execute(query.plan))?;
    for batch in &batches {
        for (field, column) in batch.schema().fields().iter().zip(&query.columns) {
            assert_eq!(field.data_type(), &column.ty.to_arrow(), "type of column {} of {sql}", column.name);
        }
    }
    Ok((query.columns.iter().map(|column| format!("{} {}", column.name, column.ty)).collect(), rows_of(&batches)))
}

/// An error as `SQLSTATE message`.
fn shown(error: &Error) -> String {
    format!("!{} {}", error.code(), error.message())
}
