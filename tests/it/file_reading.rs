//! Which files and which columns of them are read.

use crate::files::{folder, rows, wait_for, write};
use crate::server::{Server, settings};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_counts_reads_no_column_in_a_view_as_in_a_query() {
    let data = folder();
    write(&data.path().join("in.csv"), "1,a\nx,b\n3,c,d\n4,a\n");
    let mut server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    let path = data.path().join("in.csv").display().to_string();
    session
        .must(&format!(
            "CREATE TABLE t (id INT, name TEXT) WITH (connector = 'file', path = '{path}', format = 'csv', bad_records = 'skip')"
        ))
        .await;
    // The third record has a field too many, whatever is read of it; the second is bad where its number is.
    let queries = [
        ("every", "SELECT count(*) AS c FROM t", "3"),
        ("named", "SELECT count(*) AS c FROM t WHERE name <> 'a'", "1"),
        ("twice", "SELECT count(*) AS c FROM (SELECT id, name FROM t UNION ALL SELECT id, name FROM t) AS u", "6"),
        ("numbers", "SELECT count(id) AS c FROM t", "2"),
    ];
    for (view, query, expected) in queries {
        assert_eq!(rows(&session, query).await, [[expected]], "{query}");
        session.must(&format!("CREATE MATERIALIZED VIEW {view} AS {query}")).await;
        wait_for(&session, &format!("SELECT c FROM {view}"), &[&[expected]]).await;
    }
    session.must("CREATE MATERIALIZED VIEW ones AS SELECT 1 AS one FROM t").await;
    wait_for(&session, "SELECT one FROM ones", &[&["1"], &["1"], &["1"]]).await;
    let plan = rows(&session, "EXPLAIN CREATE MATERIALIZED VIEW again AS SELECT count(*) AS c FROM t").await.concat().join("\n");
    assert!(plan.contains("ConnectorScan on t: no columns"), "{plan}");

    // The counts go on from a checkpoint in other subtasks.
    session.must("CHECKPOINT").await;
    server.kill();
    server.set("parallelism", "3");
    server.restart();
    let session = server.connect().await;
    for (view, _, expected) in queries {
        wait_for(&session, &format!("SELECT c FROM {view}"), &[&[expected]]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_every_connector_and_format_are_counted_without_a_column() {
    let data = folder();
    let place = |name: &str| data.path().join(name).display().to_string();
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    session.must("SET dml_sync = on").await;
    session
        .must("CREATE TABLE made (n BIGINT, s BIGINT) WITH (connector = 'datagen', 'number-of-rows' = '1000', 'rows-per-second' = '0')")
        .await;
    session.must("CREATE TABLE stored (k BIGINT PRIMARY KEY, n BIGINT)").await;
    session.must("INSERT INTO stored VALUES (1, 10), (2, 20), (3, 30)").await;
    for format in ["csv", "json", "parquet"] {
        let path = place(format);
        session
            .must(&format!("CREATE TABLE {format}_t (n BIGINT, s BIGINT) WITH (connector = 'file', path = '{path}', format = '{format}')"))
            .await;
        session.must(&format!("INSERT INTO {format}_t SELECT n, s FROM made")).await;
    }
    // Changes: what was taken away is not counted.
    write(&data.path().join("changes.json"), "{\"op\":\"+I\",\"n\":1}\n{\"op\":\"+I\",\"n\":2}\n{\"op\":\"-D\",\"n\":1}\n");
    let path = place("changes.json");
    session
        .must(&format!("CREATE TABLE changed (n BIGINT) WITH (connector = 'file', path = '{path}', format = 'json', row_kind = 'op')"))
        .await;
    for (table, expected) in
        [("made", "1000"), ("csv_t", "1000"), ("json_t", "1000"), ("parquet_t", "1000"), ("changed", "1"), ("stored", "3")]
    {
        session.must(&format!("CREATE MATERIALIZED VIEW {table}_v AS SELECT count(*) AS c FROM {table}")).await;
        wait_for(&session, &format!("SELECT c FROM {table}_v"), &[&[expected]]).await;
    }
}
