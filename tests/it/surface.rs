//! What a user types and sees: refusals with their SQLSTATE and what to do about them, what a stopped job says of itself, the system views, EXPLAIN.

use std::time::{Duration, Instant};

use tokio_postgres::Error;

use crate::server::{PATIENCE, Server, Session, describe, settings, sql_state};

/// The error of a statement, as psql shows it, which must have this SQLSTATE.
async fn refused(session: &Session, sql: &str, state: &str) -> String {
    let result: Result<_, Error> = session.client().simple_query(sql).await;
    match result {
        Ok(_) => panic!("{sql} worked, where {state} was expected"),
        Err(error) => {
            let shown = describe(&error);
            assert_eq!(sql_state(&error).as_deref(), Some(state), "{sql}: {shown}");
            shown
        }
    }
}

/// The values of one row of text.
async fn row(session: &Session, sql: &str) -> Vec<String> {
    let rows = session.text_rows(sql).await.unwrap_or_else(|error| panic!("{sql}: {}", describe(&error)));
    let [row] = &rows[..] else { panic!("{sql} gives {} rows", rows.len()) };
    row.iter().map(|value| value.clone().unwrap_or_else(|| "NULL".into())).collect()
}

/// The lines of a statement that gives text.
async fn lines(session: &Session, sql: &str) -> String {
    let rows = session.text_rows(sql).await.unwrap_or_else(|error| panic!("{sql}: {}", describe(&error)));
    rows.iter().filter_map(|row| row.first().cloned().flatten()).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_is_read_when_its_job_runs() {
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    session.must("CREATE TABLE t (id INT PRIMARY KEY, v INT)").await;
    session.must("INSERT INTO t VALUES (1, 1)").await;
    session.must("BEGIN").await;
    session.must("CREATE MATERIALIZED VIEW m AS SELECT v FROM t").await;
    let shown = refused(&session, "SELECT * FROM m", "55000").await;
    assert!(shown.contains("\"m\"") && shown.contains("COMMIT"), "{shown}");
    session.must("ROLLBACK").await;
    session.must("BEGIN").await;
    session.must("CREATE MATERIALIZED VIEW m AS SELECT v FROM t").await;
    session.must("COMMIT").await;
    assert_eq!(session.must_count("SELECT v FROM m").await, 1);

    session.must("CREATE MATERIALIZED VIEW below AS SELECT id, 10 / v AS q FROM t").await;
    session.must("INSERT INTO t VALUES (2, 0)").await;
    refused(&session, "FLUSH", "22012").await;
    for create in [
        "CREATE MATERIALIZED VIEW above AS SELECT sum(q) AS total FROM below",
        "CREATE SINK above WITH (connector = 'blackhole') AS SELECT q FROM below",
    ] {
        let shown = refused(&session, create, "55000").await;
        assert!(shown.contains("\"below\"") && shown.contains("ALTER JOB below RESUME"), "{shown}");
    }
    session.must("DELETE FROM t WHERE id = 2").await;
    session.must("ALTER JOB below RESUME").await;
    session.must("CREATE MATERIALIZED VIEW above AS SELECT sum(q) AS total FROM below").await;
    assert_eq!(session.must_count("SELECT total FROM above").await, 10);

    // What is resumed takes what reads it along, but for what another stopped view holds up.
    session.must("CREATE MATERIALIZED VIEW beside AS SELECT id, 10 / (v - 7) AS q FROM t").await;
    session.must("CREATE MATERIALIZED VIEW joint AS SELECT q FROM below UNION ALL SELECT q FROM beside").await;
    session.must("INSERT INTO t VALUES (3, 7), (4, 0)").await;
    refused(&session, "FLUSH", "22012").await;
    stopped(&session, &["below", "beside", "joint"]).await;
    session.must("DELETE FROM t WHERE id > 2").await;
    session.must("ALTER JOB below RESUME").await;
    let shown = refused(&session, "ALTER JOB joint RESUME", "55000").await;
    assert!(shown.contains("\"beside\""), "{shown}");
    session.must("ALTER JOB beside RESUME").await;
    session.must("FLUSH").await;
    assert_eq!(session.must_count("SELECT count(*) FROM joint").await, 2);
}

/// Waits until the jobs are stopped.
async fn stopped(session: &Session, names: &[&str]) {
    let deadline = Instant::now() + PATIENCE;
    for name in names {
        while session.must_count(&format!("SELECT count(*) FROM weir_jobs WHERE name = '{name}' AND state = 'failed'")).await == 0 {
            assert!(Instant::now() < deadline, "{name} does not stop");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_job_names_the_expression_as_it_was_written_and_the_row() {
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    session.must("CREATE TABLE t (id INT PRIMARY KEY, v INT)").await;
    session.must("CREATE MATERIALIZED VIEW p AS SELECT id, 10 / (v - 7) AS q FROM t").await;
    session.must("CREATE MATERIALIZED VIEW f AS SELECT id FROM t WHERE v <> 8 AND 10 / (v - 7) > 0").await;
    session.must("INSERT INTO t VALUES (9, 7)").await;
    refused(&session, "FLUSH", "22012").await;
    stopped(&session, &["p", "f"]).await;
    for (name, expression) in [("p", "column \"q\": 10 / (v - 7)"), ("f", "filter: v <> 8 AND 10 / (v - 7) > 0")] {
        let error = row(&session, &format!("SELECT last_error FROM weir_jobs WHERE name = '{name}'")).await.join("");
        assert!(error.starts_with("division by zero\n"), "{error}");
        assert!(error.contains(expression), "{error}");
        assert!(error.contains("v=7") && error.contains("id=9"), "{error}");
        let shown = refused(&session, &format!("SELECT * FROM {name}"), "22012").await;
        assert!(shown.contains(expression) && shown.contains("id=9"), "{shown}");
    }
    session.must("DELETE FROM t").await;
    session.must("ALTER JOB p RESUME").await;
    assert_eq!(row(&session, "SELECT last_error, error_code FROM weir_jobs WHERE name = 'p'").await, ["NULL", "NULL"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_postgresql_knows_and_weir_has_not_is_said_to_be_so() {
    let server = Server::start(&settings(&[]));
    let session = server.connect().await;
    session.must("CREATE TABLE t (id INT PRIMARY KEY, v INT, s TEXT)").await;
    for sql in [
        "SELECT ARRAY[1] || ARRAY[2]",
        "SELECT (ARRAY[1, 2, 3])[1:2]",
        "SELECT 1 < ANY(ARRAY[1])",
        "SELECT CAST('(1,2)' AS ROW<a INT, b INT>)",
        "SELECT current_date",
        "SELECT localtime",
        "SELECT generate_series(1, 3)",
        "SELECT to_char(now(), 'YYYY')",
        "SELECT to_timestamp('2024', 'YYYY')",
        "SELECT 2 BETWEEN SYMMETRIC 3 AND 1",
        "SELECT array_agg(v ORDER BY id) FROM t",
        "SELECT json_agg(v) FROM t",
        "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY v) FROM t",
        "ROLLBACK TO SAVEPOINT a",
        "EXPLAIN CREATE TABLE x (a INT)",
        "EXPLAIN DROP TABLE t",
        "EXPLAIN SHOW JOBS",
        "EXPLAIN UPDATE t SET v = 1",
        "CREATE MATERIALIZED VIEW w AS SELECT DISTINCT ON (v) id FROM t",
        "CREATE MATERIALIZED VIEW w AS SELECT count(*) FROM weir_jobs",
    ] {
        refused(&session, sql, "0A000").await;
    }
    for (sql, state) in [
        ("SELECT nosuch(1)", "42883"),
        ("EXPLAIN nosuch", "42601"),
        ("SELECT sum(DISTINCT v ORDER BY id) FROM t", "42P10"),
        ("CREATE TABLE weir_jobs (a INT)", "42939"),
        ("CREATE VIEW pg_class AS SELECT 1 AS a", "42939"),
        ("CREATE MATERIALIZED VIEW weir_mine AS SELECT v FROM t", "42939"),
    ] {
        refused(&session, sql, state).await;
    }
    // The order of the rows does not change these.
    session.must("INSERT INTO t VALUES (1, 5, 'a'), (2, 7, 'b')").await;
    session.must("CREATE MATERIALIZED VIEW w AS SELECT sum(v ORDER BY id DESC) AS s, max(v ORDER BY v) AS m FROM t").await;
    assert_eq!(row(&session, "SELECT s, m FROM w").await, ["12", "7"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_with_a_rate_is_read_at_once_and_its_sources_are_counted() {
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    session.must("CREATE TABLE slow WITH (connector = 'nexmark', 'table' = 'bid', 'events.rate' = '1', 'events.num' = '100')").await;
    assert_eq!(session.must_count("SELECT count(*) FROM slow").await, 92);
    session.must("CREATE TABLE bid WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '10000')").await;
    session.must("CREATE TABLE t (id INT PRIMARY KEY)").await;
    session.must("INSERT INTO t VALUES (1), (2), (3)").await;
    session.must("CREATE MATERIALIZED VIEW bids AS SELECT count(*) AS n FROM bid").await;
    session.must("CREATE MATERIALIZED VIEW ids AS SELECT count(*) AS n FROM t").await;
    session.must("FLUSH").await;
    let deadline = Instant::now() + PATIENCE;
    while session.must_count("SELECT n FROM bids").await < 9_200 {
        assert!(Instant::now() < deadline, "the bids are not counted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let rows_out = "SELECT CAST(sum(rows_out) AS BIGINT) FROM weir_operators WHERE uid = 'source";
    assert_eq!(session.must_count(&format!("{rows_out}(bid)' AND job = 'bids'")).await, 9_200);
    assert_eq!(session.must_count(&format!("{rows_out}(t)' AND job = 'ids'")).await, 3);
    let behind = session.must_count("SELECT max(barriers_behind) FROM weir_jobs").await;
    assert!((0..1_000).contains(&behind), "{behind} barriers behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finished_insert_holds_up_no_drop() {
    let server = Server::start(&settings(&[]));
    let session = server.connect().await;
    session.must("CREATE TABLE bid WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '1000')").await;
    session.must("CREATE TABLE out (auction BIGINT) WITH (connector = 'blackhole')").await;
    session.must("SET dml_sync = on").await;
    session.must("INSERT INTO out SELECT auction FROM bid").await;
    session.must("DROP TABLE bid").await;
    assert_eq!(session.must_count("SELECT count(*) FROM weir_jobs").await, 0);
    session.must("DROP TABLE out").await;
    // One that runs does.
    session.must("CREATE TABLE out (auction BIGINT) WITH (connector = 'blackhole')").await;
    session.must("CREATE TABLE bid WITH (connector = 'nexmark', 'table' = 'bid', 'events.rate' = '10')").await;
    session.must("INSERT INTO out SELECT auction FROM bid").await;
    refused(&session, "DROP TABLE bid", "2BP01").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_shows_the_plan_of_what_would_run() {
    let server = Server::start(&settings(&[]));
    let session = server.connect().await;
    session.must("CREATE TABLE t (id INT PRIMARY KEY, v INT)").await;
    session.must("CREATE TABLE bids WITH (connector = 'nexmark', 'table' = 'bid')").await;
    session.must("CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS n FROM t GROUP BY v").await;
    let plan = lines(&session, "EXPLAIN SELECT t.id, m.n FROM t JOIN m ON t.v = m.v WHERE t.id = 7 ORDER BY m.n DESC LIMIT 3").await;
    for part in ["Sort: ", " DESC, the first 3", "Join: inner on ", "Scan on t: id, v, looked up by ", "id = 7", "Scan on m: v, n"] {
        assert!(plan.contains(part), "{part} is not in\n{plan}");
    }
    let plan = lines(&session, "EXPLAIN SELECT v, sum(id) AS s FROM t WHERE v <> 0 AND 10 / v > 1 GROUP BY v").await;
    assert!(plan.contains("Filter: ") && plan.contains("10 / t.v > 1") && !plan.contains("CASE"), "{plan}");
    let plan = lines(&session, "EXPLAIN CREATE MATERIALIZED VIEW x AS SELECT id FROM t WHERE v <> 0 AND 10 / v > 1").await;
    assert!(plan.contains("Materialize: id") && plan.contains("where v <> 0 AND 10 / v > 1") && plan.contains("uid source(t)"), "{plan}");
    refused(&session, "EXPLAIN SELECT * FROM bids", "0A000").await;
    refused(&session, "EXPLAIN CREATE MATERIALIZED VIEW x AS SELECT t.id FROM t JOIN m ON t.v = m.v", "0A000").await;
}

/// An error at COMMIT says that nothing is committed, and ends the block.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_fails_has_committed_nothing_and_ends_the_block() {
    let server = Server::start(&settings(&[("parallelism", "1")]));
    let (session, other) = (server.connect().await, server.connect().await);
    session.must("CREATE TABLE t (id INT PRIMARY KEY, v INT)").await;
    session.must("INSERT INTO t VALUES (1, 0)").await;
    session.must("BEGIN").await;
    session.must("UPDATE t SET v = v + 1 WHERE id = 1").await;
    other.must("UPDATE t SET v = v + 10 WHERE id = 1").await;
    refused(&session, "COMMIT", "40001").await;
    assert_eq!(session.must_count("SELECT v FROM t").await, 10);
    // The block is over: another can begin.
    session.must("BEGIN").await;
    session.must("UPDATE t SET v = v + 1 WHERE id = 1").await;
    session.must("COMMIT").await;
    assert_eq!(session.must_count("SELECT v FROM t").await, 11);

    // What can't be built is left out, and COMMIT says so without being an error: the rest is durable.
    session.must("CREATE TABLE zero (a INT)").await;
    session.must("INSERT INTO zero VALUES (0)").await;
    session.must("BEGIN").await;
    session.must("INSERT INTO t VALUES (2, 2)").await;
    session.must("CREATE MATERIALIZED VIEW bad AS SELECT 1 / a AS q FROM zero").await;
    session.must("CREATE TABLE made (a INT)").await;
    session.must("COMMIT").await;
    assert_eq!(session.must_count("SELECT count(*) FROM t").await, 2);
    assert_eq!(session.must_count("SELECT count(*) FROM made").await, 0);
    refused(&session, "SELECT * FROM bad", "42P01").await;
    // Alone, it is the statement that fails.
    refused(&session, "CREATE MATERIALIZED VIEW bad AS SELECT 1 / a AS q FROM zero", "22012").await;
    refused(&session, "SELECT * FROM bad", "42P01").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_have_values_or_are_refused() {
    let server = Server::start(&settings(&[]));
    let session = server.connect().await;
    session.must("CREATE TABLE t (id INT PRIMARY KEY, v INT)").await;
    let client = session.client();
    for create in [
        "CREATE MATERIALIZED VIEW m AS SELECT v FROM t WHERE v > $1::INT",
        "CREATE VIEW w AS SELECT v + $1 AS x FROM t",
        "CREATE SINK s WITH (connector = 'blackhole') AS SELECT v FROM t WHERE id = $1",
        "EXPLAIN CREATE MATERIALIZED VIEW m AS SELECT v FROM t WHERE v > $1",
    ] {
        let error = client.execute(create, &[&1i32]).await.expect_err(create);
        assert_eq!(sql_state(&error).as_deref(), Some("42P02"), "{create}: {}", describe(&error));
    }
    refused(&session, "CREATE VIEW w AS SELECT v + $1 AS x FROM t", "42P02").await;
    let plan = client.query("EXPLAIN SELECT v FROM t WHERE id = $1", &[&7i32]).await.expect("a plan");
    let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    assert!(plan.join("\n").contains("id = 7"), "{plan:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_is_one_row_and_an_error_names_its_operator_as_explain_does() {
    let server = Server::start(&settings(&[("parallelism", "3"), ("checkpoint_interval", "0")]));
    let session = server.connect().await;
    session.must("CREATE TABLE t (id INT PRIMARY KEY, v INT)").await;
    session.must("CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS n FROM t GROUP BY v").await;
    session.must("CREATE MATERIALIZED VIEW q AS SELECT id, 10 / v AS q FROM t WHERE v < 100").await;
    session.must("INSERT INTO t VALUES (1, 1), (2, 2)").await;
    session.must("CHECKPOINT").await;
    let shown = session.must_query("SHOW CHECKPOINTS").await;
    let names: Vec<&str> = shown.columns.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(&names[..5], ["checkpoint", "state", "started", "duration_us", "jobs"]);
    let [completed] = &shown.rows[..] else { panic!("{:?}", shown.rows) };
    // Both views, and the stored tables.
    assert_eq!((completed[1].as_deref(), completed[4].as_deref()), (Some("completed"), Some("3")));
    let parts = "SELECT CAST(sum(bytes_new) AS BIGINT) FROM weir_checkpoints";
    assert_eq!(completed[9], Some(session.must_count(parts).await.to_string()));
    assert!(session.must_count("SELECT count(*) FROM weir_checkpoints").await > 6);

    session.must("INSERT INTO t VALUES (3, 0)").await;
    refused(&session, "FLUSH", "22012").await;
    let plan = lines(&session, "EXPLAIN CREATE MATERIALIZED VIEW q2 AS SELECT id, 10 / v AS q FROM t WHERE v < 100").await;
    let operator = "Calc: id, 10 / v AS q where v < 100";
    assert!(plan.contains(operator), "{plan}");
    let shown = refused(&session, "SELECT * FROM q", "22012").await;
    assert!(shown.contains(&format!("operator {operator}")), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_holds_something_else_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("thesis.txt"), "mine").unwrap();
    let log = folder.path().join("log");
    let Err(said) = Server::start_in(&data, &log, &settings(&[])) else { panic!("it started on a folder of others' files") };
    assert!(said.contains("is not empty and holds no data of weir") && said.contains("thesis.txt"), "{said}");
    let left: Vec<_> = std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["thesis.txt"]);
    // An empty one is fine, and is known again.
    std::fs::remove_file(data.join("thesis.txt")).unwrap();
    drop(Server::start_in(&data, &log, &settings(&[])).expect("an empty folder"));
    std::fs::write(data.join("thesis.txt"), "mine").unwrap();
    drop(Server::start_in(&data, &log, &settings(&[])).expect("a folder of its own"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_statement_sees_what_one_made_of_the_jobs() {
    let server = Server::start(&settings(&[("parallelism", "1")]));
    let (session, other) = (server.connect().await, server.connect().await);
    session.must("CREATE TABLE t (a INT); CREATE MATERIALIZED VIEW v AS SELECT a FROM t").await;
    for round in 0..40 {
        session.must("CREATE SINK s WITH (connector = 'blackhole') AS SELECT a FROM t").await;
        assert_eq!(other.must_count("SELECT count(*) FROM weir_jobs WHERE name = 's'").await, 1, "round {round}");
        session.must("DROP SINK s").await;
        assert_eq!(other.must_count("SELECT count(*) FROM weir_jobs WHERE name = 's'").await, 0, "round {round}");
        session.must(&format!("ALTER MATERIALIZED VIEW v ALLOW NON RESTORED STATE AS SELECT a + {round} AS a FROM t")).await;
        assert_eq!(other.must_count("SELECT count(*) FROM weir_jobs").await, 1, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wider_than_postgresql_allows_is_refused_at_once() {
    let server = Server::start(&settings(&[("parallelism", "1")]));
    let session = server.connect().await;
    let ones = |count: usize| vec!["1"; count].join(", ");
    refused(&session, &format!("SELECT {}", ones(1665)), "54011").await;
    refused(&session, &format!("SELECT count(*) FROM (SELECT {}) AS s", ones(20_000)), "54011").await;
    let columns = |count: usize| (0..count).map(|i| format!("c{i} INT")).collect::<Vec<_>>().join(", ");
    refused(&session, &format!("CREATE TABLE w ({})", columns(1601)), "54011").await;
    session.must(&format!("CREATE TABLE w ({})", columns(900))).await;
    refused(&session, "SELECT a.*, b.* FROM w AS a CROSS JOIN w AS b", "54011").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_limit_lets_writers_in_or_is_refused() {
    let mut server = Server::start(&settings(&[("log_limit", "1 MiB")]));
    let session = server.connect().await;
    session.must("CREATE TABLE t (id INT PRIMARY KEY, s TEXT)").await;
    session.must("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n, max(length(s)) AS longest FROM t").await;
    // Each of these is as long as the limit.
    for id in 0..10 {
        session.must(&format!("INSERT INTO t VALUES ({id}, repeat('x', 1048576))")).await;
    }
    session.must("FLUSH").await;
    assert_eq!(row(&session, "SELECT n, longest FROM v").await, ["10", "1048576"]);
    drop(session);
    for small in ["0", "1", "1023 KiB"] {
        server.set("log_limit", small);
        let report = server.try_restart().expect_err("no writer would be let in");
        assert!(report.contains("log_limit") && report.contains("at least 1 MiB"), "{report}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_variable_that_means_nothing_is_said() {
    let server = Server::start(&settings(&[("memroy", "1 GiB"), ("parallelism", "1"), ("test_of_its_own", "1")]));
    let said = server.log_tail();
    assert!(said.contains("WEIR_MEMROY"), "{said}");
    assert!(!said.contains("WEIR_PARALLELISM") && !said.contains("WEIR_TEST") && !said.contains("WEIR_DATA_DIR"), "{said}");
}
