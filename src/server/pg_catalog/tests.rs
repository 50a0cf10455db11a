//! The catalog that clients see over a catalog with one object of each kind.

use std::collections::BTreeMap;

use datafusion::common::ScalarValue;
use futures::StreamExt;
use weir_catalog::{
    Catalog, CatalogChange, ChangelogMode, Column, ConnectorTable, Error, Job, JobKind, Object, SqlState, SqlType, StoredTable, View,
};

use super::{PgCatalog, SessionFacts};
use crate::server::session::RowStream;

mod clients;
mod psql;

fn column(name: &str, ty: SqlType) -> Column {
    Column { name: name.into(), ty, nullable: true, default: None }
}

fn job(id: u64, name: &str, kind: JobKind) -> Object {
    Object::Job(Job {
        id,
        name: name.into(),
        kind,
        columns: vec![column("country", SqlType::Text), Column { nullable: false, ..column("n", SqlType::BigInt) }],
        query: "SELECT country, count(*) AS n FROM users GROUP BY country".into(),
        insert_columns: Vec::new(),
        sql: String::new(),
        settings: BTreeMap::new(),
        inputs: vec![16_384],
        macros: Vec::new(),
        operators: Vec::new(),
        parallelism: 1,
        origin: None,
    })
}

/// `users` 16384, `pair` 16385, `bids` 16386, `germans` 16387, `per_country` 16388, a sink and a job; only the first five are relations.
fn catalog() -> Catalog {
    let required = |name, ty| Column { nullable: false, ..column(name, ty) };
    let objects = [
        Object::StoredTable(StoredTable {
            id: 16_384,
            name: "users".into(),
            columns: vec![
                required("id", SqlType::BigInt),
                required("name", SqlType::Text),
                Column { default: Some("'DE'".into()), ..column("country", SqlType::Text) },
                column("score", SqlType::Numeric { precision: 12, scale: 2 }),
                column("amount", SqlType::NUMERIC),
                column("ok", SqlType::Boolean),
                column("n", SqlType::Int),
                column("d", SqlType::Double),
            ],
            primary_key: Some(vec![0]),
            sql: String::new(),
        }),
        Object::StoredTable(StoredTable {
            id: 16_385,
            name: "pair".into(),
            columns: vec![required("b", SqlType::Int), required("A b", SqlType::Text)],
            primary_key: Some(vec![1, 0]),
            sql: String::new(),
        }),
        Object::ConnectorTable(ConnectorTable {
            id: 16_386,
            name: "bids".into(),
            columns: vec![
                column("ts", SqlType::Timestamp { precision: 3 }),
                column("at", SqlType::TIMESTAMP),
                column("bid", SqlType::Row(vec![("price".into(), SqlType::BigInt)])),
            ],
            connector: "nexmark".into(),
            options: BTreeMap::new(),
            sql: String::new(),
        }),
        Object::View(View {
            id: 16_387,
            name: "germans".into(),
            columns: vec![column("id", SqlType::BigInt), column("name", SqlType::Text)],
            query: "SELECT id, name FROM users WHERE country = 'DE'".into(),
            sql: String::new(),
            inputs: vec![16_384],
        }),
        job(16_388, "per_country", JobKind::MaterializedView { key: Some(vec![0]), changelog: ChangelogMode::Retract }),
        job(16_389, "out", JobKind::Sink { connector: "blackhole".into(), options: BTreeMap::new() }),
        job(16_390, "insert_into_bids_16390", JobKind::Insert { target: 16_386 }),
    ];
    let mut catalog = Catalog::default();
    for object in objects {
        catalog.apply(&CatalogChange::Create(object)).unwrap();
    }
    catalog
}

fn pg() -> PgCatalog {
    PgCatalog::new().unwrap()
}

/// Names, and rows as text; NULL is `~`.
async fn texts(stream: RowStream) -> (Vec<String>, Vec<Vec<String>>) {
    let names = stream.columns.iter().map(|column| column.name.clone()).collect();
    let types: Vec<SqlType> = stream.columns.iter().map(|column| column.ty.clone()).collect();
    let mut rows = Vec::new();
    let mut batches = stream.stream;
    while let Some(batch) = batches.next().await {
        let batch = batch.unwrap();
        for (array, ty) in batch.columns().iter().zip(&types) {
            assert_eq!(SqlType::from_arrow(array.data_type()).as_ref(), Some(ty), "the values' type is the one announced");
        }
        for row in 0..batch.num_rows() {
            rows.push(
                batch
                    .columns()
                    .iter()
                    .map(|array| {
                        if array.is_null(row) { "~".to_string() } else { arrow::util::display::array_value_to_string(array, row).unwrap() }
                    })
                    .collect(),
            );
        }
    }
    (names, rows)
}

async fn query(pg: &PgCatalog, sql: &str) -> (Vec<String>, Vec<Vec<String>>) {
    query_with(pg, sql, &[]).await
}

async fn query_with(pg: &PgCatalog, sql: &str, parameters: &[ScalarValue]) -> (Vec<String>, Vec<Vec<String>>) {
    match pg.try_query_with(sql, parameters, &catalog()).await {
        Some(Ok(stream)) => texts(stream).await,
        Some(Err(error)) => panic!("{error:?}\n{sql}"),
        None => panic!("not taken for a catalog statement: {sql}"),
    }
}

async fn rows(pg: &PgCatalog, sql: &str) -> Vec<String> {
    query(pg, sql).await.1.into_iter().map(|row| row.join("|")).collect()
}

async fn error(pg: &PgCatalog, sql: &str) -> Error {
    match pg.try_query(sql, &catalog()).await {
        Some(Err(error)) => error,
        Some(Ok(_)) => panic!("no error: {sql}"),
        None => panic!("not taken for a catalog statement: {sql}"),
    }
}
