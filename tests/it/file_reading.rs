//! Which files and which columns of them are read.

use crate::files::{folder, refusal, rows, wait_for, write};
use crate::server::{Server, describe, settings, sql_state};

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

/// Replayed: what could not be read is put right in a file of its own, and then forgotten, in part or as a whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_records_that_were_put_right_are_read_and_forgotten() {
    let data = folder();
    let path = data.path().display();
    write(&data.path().join("in.csv"), "1\nx2\n3\nx4\nx5\n6\n");
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "50 ms")]));
    let session = server.connect().await;
    session
        .must(&format!(
            "CREATE TABLE t (n BIGINT) WITH (connector = 'file', path = '{path}/*.csv', format = 'csv', watch = '50 ms', bad_records = 'dead_letter')"
        ))
        .await;
    session.must("CREATE MATERIALIZED VIEW v AS SELECT sum(n) AS s FROM t").await;
    // A second reader meets the same records, and writes them to files of its own.
    session.must("CREATE MATERIALIZED VIEW w AS SELECT max(n) AS m FROM t").await;
    let bad = "SELECT bytes FROM t$bad ORDER BY position";
    wait_for(&session, "SELECT s FROM v", &[&["10"]]).await;
    wait_for(&session, "SELECT m FROM w", &[&["6"]]).await;
    wait_for(&session, bad, &[&["x2"], &["x4"], &["x5"]]).await;
    session.must("CHECKPOINT").await;
    assert_eq!(refusal(&session, "BEGIN; DELETE FROM t$bad").await.0, "25001");
    session.must("ROLLBACK").await;
    assert_eq!(refusal(&session, "DELETE FROM t$bad WHERE nothing = 1").await.0, "42703");
    assert_eq!(refusal(&session, "DELETE FROM nobody$bad").await.0, "42P01");
    assert_eq!(refusal(&session, "CREATE TABLE t$bad (n BIGINT)").await.0, "42939");
    assert_eq!(refusal(&session, "CREATE VIEW other$bad AS SELECT 1 AS one").await.0, "42939");

    let mut right = String::new();
    for row in rows(&session, "SELECT bytes FROM t$bad WHERE bytes <> 'x5' ORDER BY position").await {
        right.push_str(&format!("{}\n", row[0].trim_start_matches('x')));
    }
    write(&data.path().join(".right"), &right);
    std::fs::rename(data.path().join(".right"), data.path().join("right.csv")).expect("renamed");
    assert_eq!(session.must("DELETE FROM t$bad AS b WHERE b.bytes <> 'x5'").await, 2);
    assert_eq!(rows(&session, bad).await, [["x5"]]);
    wait_for(&session, "SELECT s FROM v", &[&["16"]]).await;
    server.kill();
    server.set("parallelism", "3");
    server.restart();
    let session = server.connect().await;
    wait_for(&session, "SELECT s FROM v", &[&["16"]]).await;
    session.must("CHECKPOINT").await;
    assert_eq!(rows(&session, bad).await, [["x5"]]);
    session.must("DELETE FROM t$bad").await;
    assert_eq!(rows(&session, bad).await, Vec::<Vec<String>>::new());
    // What comes later is kept as before.
    write(&data.path().join(".more"), "7\nx8\n");
    std::fs::rename(data.path().join(".more"), data.path().join("more.csv")).expect("renamed");
    wait_for(&session, bad, &[&["x8"]]).await;
    wait_for(&session, "SELECT s FROM v", &[&["23"]]).await;
}

/// A change that takes away what is not there can be read, so that it is no bad record; whoever holds the rows finds it out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_without_its_row_is_an_error_of_the_data() {
    let data = folder();
    let path = data.path().join("in.csv");
    write(&path, "kind,k,v\n+I,1,10\n-D,2,20\n+I,3,5\n");
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    session
        .must(&format!(
            "CREATE TABLE t (k BIGINT, v BIGINT) WITH (connector = 'file', path = '{}', format = 'csv', header = 'true', row_kind = 'kind', bad_records = 'skip')",
            path.display()
        ))
        .await;
    for query in
        ["SELECT * FROM t", "SELECT k, count(*), max(v) FROM t GROUP BY k", "SELECT count(DISTINCT v) FROM t", "SELECT DISTINCT v FROM t"]
    {
        // A view over a connector may be there before its first row.
        let error = match session.execute(&format!("CREATE MATERIALIZED VIEW m AS {query}")).await {
            Err(error) => error,
            Ok(_) => {
                wait_for(&session, "SELECT state FROM weir_jobs WHERE name = 'm'", &[&["failed"]]).await;
                let error = session.execute("SELECT * FROM m").await.expect_err("the view is stopped");
                session.must("DROP MATERIALIZED VIEW m").await;
                error
            }
        };
        assert_eq!(sql_state(&error).as_deref(), Some("22000"), "{query}: {}", describe(&error));
        assert!(describe(&error).contains("that is not there"), "{query}: {}", describe(&error));
    }
}

/// A client that is told of an error writes again: then nothing of the first try may come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_insert_that_failed_or_was_given_up_is_over() {
    let data = folder();
    let (path, out) = (data.path().join("in.csv"), data.path().join("out"));
    write(&path, "1\nx\n3\n");
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "100 ms")]));
    let mut session = server.connect().await;
    session.must(&format!("CREATE TABLE t (n BIGINT) WITH (connector = 'file', path = '{}', format = 'csv')", path.display())).await;
    session.must(&format!("CREATE TABLE o (n BIGINT) WITH (connector = 'file', path = '{}', format = 'json')", out.display())).await;
    session.must("CREATE TABLE slow (n BIGINT) WITH (connector = 'datagen', 'rows-per-second' = '1', 'number-of-rows' = '1000000')").await;
    session.must("SET dml_sync = on").await;
    assert_eq!(refusal(&session, "INSERT INTO o SELECT n FROM t").await.0, "22P02");
    assert_eq!(rows(&session, "SELECT name FROM weir_jobs").await, Vec::<Vec<String>>::new());
    session.must("SET statement_timeout = '300 ms'").await;
    assert_eq!(refusal(&session, "INSERT INTO o SELECT n FROM slow WHERE n IS NULL").await.0, "57014");
    session.must("SET statement_timeout = 0").await;
    wait_for(&session, "SELECT count(*) FROM weir_jobs", &[&["0"]]).await;

    write(&path, "1\n2\n3\n");
    server.kill();
    server.restart();
    session = server.connect().await;
    session.must("SET dml_sync = on").await;
    session.must("INSERT INTO o SELECT n FROM t").await;
    server.kill();
    server.restart();
    session = server.connect().await;
    assert_eq!(rows(&session, "SELECT n FROM o ORDER BY n").await, [["1"], ["2"], ["3"]]);
    wait_for(&session, "SELECT DISTINCT state FROM weir_jobs", &[&["finished"]]).await;
}
