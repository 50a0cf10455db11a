//! Jobs that were stopped by an error: a corrected query goes on with what they have kept, as RESUME would with the same one.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{eventually_equal, refusal, rows, verdicts};
use crate::alter::content;
use crate::run;
use crate::server::{PATIENCE, Server, Session, describe, settings, sql_state};

/// A stream that does not come again and has a row on which a division fails, its rows at once, and a view over it with readers.
const STREAM: &str = "(k BIGINT, v BIGINT) WITH (connector = 'datagen', 'number-of-rows' = '61', 'rows-per-second' = 'RATE',
    'fields.k.kind' = 'sequence', 'fields.k.start' = '1', 'fields.k.end' = '61', 'fields.v.kind' = 'sequence', 'fields.v.start' = '-30', 'fields.v.end' = '30')";

fn ratios(from: &str, filter: &str) -> String {
    format!("SELECT k % 3 AS g, count(*) AS n, sum(100 / v) AS s FROM {from}{filter} GROUP BY k % 3")
}

async fn state_of(session: &Session, job: &str) -> String {
    let found = rows(session, &format!("SELECT state FROM weir_jobs WHERE name = '{job}'")).await;
    found.first().map_or_else(|| "none".into(), |row| row[0].clone())
}

async fn until_stopped(session: &Session, job: &str) {
    let deadline = Instant::now() + PATIENCE;
    while state_of(session, job).await != "failed" {
        assert!(Instant::now() < deadline, "{job} is {}", state_of(session, job).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn sink(folder: &Path, name: &str, query: &str) -> String {
    format!(
        "CREATE SINK {name} WITH (connector = 'file', path = '{}', format = 'csv', row_kind = 'kind') AS {query}",
        folder.join(name).display()
    )
}

async fn eventually_written(session: &Session, folder: &Path, name: &str, query: &str) {
    let deadline = Instant::now() + PATIENCE;
    let mut expected: Vec<String> = rows(session, query).await.into_iter().map(|row| row.join(",").replace("NULL", "")).collect();
    expected.sort();
    loop {
        session.must("FLUSH; CHECKPOINT").await;
        let found: Vec<String> = content(&folder.join(name));
        if found == expected {
            return;
        }
        let jobs = rows(session, "SELECT name, state, last_error FROM weir_jobs").await;
        assert!(Instant::now() < deadline, "{name} has {found:?}, its query gives {expected:?}; {jobs:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_that_met_a_row_it_can_not_bear_goes_on_with_a_query_that_can() {
    let out = tempfile::tempdir().expect("a folder");
    let mut random = run::random("savepoints::stopped::a_view_that_met_a_row_it_can_not_bear_goes_on_with_a_query_that_can");
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "100 ms"), ("restart_delay", "10 ms")]));
    let mut session = server.connect().await;
    session.must(&format!("CREATE TABLE stream {}", STREAM.replace("RATE", "25"))).await;
    session.must(&format!("CREATE TABLE whole {}", STREAM.replace("RATE", "0"))).await;
    session.must(&format!("CREATE MATERIALIZED VIEW v AS {}", ratios("stream", ""))).await;
    session.must("CREATE MATERIALIZED VIEW r AS SELECT sum(n) AS n, min(s) AS s FROM v").await;
    session.must(&sink(out.path(), "w", "SELECT g, n, s FROM v")).await;
    until_stopped(&session, "v").await;
    assert_eq!((state_of(&session, "r").await.as_str(), state_of(&session, "w").await.as_str()), ("failed", "failed"));
    let (code, text) = refusal(&session, "CREATE SAVEPOINT sp FOR v").await;
    assert!(code == "55000" && text.contains("ALTER ... AS") && text.contains("22012"), "{text}");
    // The same query meets the same row.
    let (code, text) = refusal(&session, &format!("ALTER MATERIALIZED VIEW v AS {}", ratios("stream", ""))).await;
    assert_eq!(code, "22012", "{text}");
    assert_eq!(state_of(&session, "v").await, "failed");
    let corrected = ratios("stream", " WHERE v <> 0");
    let alter = format!("ALTER MATERIALIZED VIEW v AS {corrected}");
    let explained = verdicts(&session, &format!("EXPLAIN UPGRADE v AS {corrected}")).await;
    assert!(explained.iter().any(|(uid, verdict)| uid.starts_with("aggregate(") && verdict == "reused"), "{explained:?}");
    for round in 0..4 {
        let altering = server.connect().await;
        let text = alter.clone();
        let task = tokio::spawn(async move { altering.execute(&text).await });
        tokio::time::sleep(Duration::from_millis(random.below(300))).await;
        server.kill();
        let _ = task.await;
        server.set("parallelism", &(1 + (round + 2) % 3).to_string());
        server.restart();
        session = server.connect().await;
    }
    // One of them may have been done.
    session.must(&alter).await;
    eventually_equal(&session, "v", &ratios("whole", " WHERE v <> 0")).await;
    eventually_equal(&session, "r", "SELECT sum(n) AS n, min(s) AS s FROM v").await;
    eventually_written(&session, out.path(), "w", "SELECT g, n, s FROM v").await;
}

const TABLES: &str = "CREATE TABLE t (id INT PRIMARY KEY, v INT); CREATE TABLE u (k INT, v INT);
    INSERT INTO t VALUES (1, 1), (2, 2), (3, 3), (4, 4); INSERT INTO u VALUES (7, 1), (7, 1), (8, 2), (9, 5)";

/// Stopped in the midst of changes that its checkpoint has not, a sink takes back what it has written, all of it and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_over_stored_tables_takes_another_query_after_an_error() {
    let out = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "1 h"), ("restart_delay", "10 ms")]));
    let mut session = server.connect().await;
    session.must(TABLES).await;
    let of = |ratio: &str| format!("SELECT id AS k, {ratio} AS q FROM t UNION ALL SELECT k, {ratio} FROM u");
    let (bad, good) = (of("100 / v"), of("100 / nullif(v, 0)"));
    let summed = |ratio: &str| format!("SELECT k, sum({ratio}) AS q FROM u GROUP BY k");
    let jobs =
        [("s", bad.clone(), good.clone()), ("again", bad.clone(), good.clone()), ("sums", summed("100 / v"), summed("100 / nullif(v, 0)"))];
    for (name, query, _) in &jobs {
        session.must(&sink(out.path(), name, query)).await;
        eventually_written(&session, out.path(), name, query).await;
    }
    session.must("INSERT INTO t VALUES (5, 5); UPDATE t SET v = 20 WHERE id = 2; DELETE FROM u WHERE v = 1").await;
    session.must("INSERT INTO t VALUES (6, 0); INSERT INTO u VALUES (9, 0), (10, 10)").await;
    for (name, ..) in &jobs {
        until_stopped(&session, name).await;
    }
    // The tables go on, and their checkpoints with them.
    for step in 0..4 {
        session
            .must(&format!("UPDATE t SET v = v + {step} WHERE id < 3; INSERT INTO u VALUES ({step}, 3); DELETE FROM t WHERE id = 3"))
            .await;
        session.must("CHECKPOINT").await;
    }
    // A query that meets the same rows takes its place, and is stopped too, before it has a checkpoint: nothing is lost by that, however often.
    for worse in [&bad, &of("10 / v")] {
        match session.execute(&format!("ALTER SINK s AS {worse}")).await {
            Ok(_) => {}
            Err(error) => assert_eq!(sql_state(&error).as_deref(), Some("22012"), "{}", describe(&error)),
        }
        until_stopped(&session, "s").await;
    }
    for (name, _, query) in &jobs {
        let explained = rows(&session, &format!("EXPLAIN UPGRADE {name} AS {query}")).await;
        assert!(explained.iter().any(|row| row[1] == "sink" && row[2] == "converted"), "{explained:?}");
    }
    server.kill();
    server.set("parallelism", "3");
    server.restart();
    session = server.connect().await;
    for (name, ..) in &jobs {
        until_stopped(&session, name).await;
    }
    session.must(&format!("ALTER SINK s AS {good}")).await;
    session.must(&format!("ALTER SINK sums AS {}", jobs[2].2)).await;
    // One that ends goes on from its savepoint with the query that it had, once the rows are gone.
    session.must("ALTER JOB again STOP WITH SAVEPOINT ended").await;
    for name in ["s", "sums"] {
        let query = &jobs.iter().find(|(job, ..)| job == &name).expect("a job").2;
        eventually_written(&session, out.path(), name, query).await;
    }
    server.kill();
    server.restart();
    session = server.connect().await;
    session.must("DELETE FROM t WHERE v = 0; DELETE FROM u WHERE v = 0").await;
    session.must(&sink(out.path(), "again", &bad).replace(" AS SELECT id", " FROM SAVEPOINT ended AS SELECT id")).await;
    eventually_written(&session, out.path(), "again", &bad).await;
    for (name, _, query) in [&jobs[0], &jobs[2]] {
        eventually_written(&session, out.path(), name, query).await;
    }
}

/// A view that is built anew when it is resumed is built anew with another query as well, and what reads it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_over_tables_takes_another_query_after_an_error() {
    let out = tempfile::tempdir().expect("a folder");
    let server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "200 ms"), ("restart_delay", "10 ms")]));
    let session = server.connect().await;
    session.must(TABLES).await;
    session.must("CREATE MATERIALIZED VIEW v AS SELECT id, 100 / v AS q FROM t").await;
    session.must("CREATE MATERIALIZED VIEW r AS SELECT count(*) AS n, sum(q) AS s FROM v").await;
    session.must(&sink(out.path(), "w", "SELECT id, q FROM v")).await;
    eventually_written(&session, out.path(), "w", "SELECT id, 100 / v AS q FROM t").await;
    session.must("INSERT INTO t VALUES (6, 0); DELETE FROM t WHERE id = 1").await;
    until_stopped(&session, "v").await;
    let (code, text) = refusal(&session, "ALTER JOB v STOP WITH SAVEPOINT sp").await;
    assert!(code == "2BP01", "{text}");
    let corrected = "SELECT id, 100 / nullif(v, 0) AS q FROM t";
    let explained = verdicts(&session, &format!("EXPLAIN UPGRADE v AS {corrected}")).await;
    assert!(explained.iter().any(|(uid, verdict)| uid == "v/rows" && verdict == "rebuilt"), "{explained:?}");
    session.must(&format!("ALTER MATERIALIZED VIEW v AS {corrected}")).await;
    eventually_equal(&session, "v", corrected).await;
    eventually_equal(&session, "r", &format!("SELECT count(*) AS n, sum(q) AS s FROM ({corrected}) AS c")).await;
    eventually_written(&session, out.path(), "w", corrected).await;
    // Alone, it can't end with a savepoint of nothing.
    session.must("CREATE MATERIALIZED VIEW alone AS SELECT id, 100 / v AS q FROM t WHERE id < 6").await;
    session.must("INSERT INTO t VALUES (0, 0)").await;
    until_stopped(&session, "alone").await;
    let (code, text) = refusal(&session, "ALTER JOB alone STOP WITH SAVEPOINT sp").await;
    assert!(code == "55000" && text.contains("RESUME"), "{text}");
    assert!(rows(&session, "SHOW SAVEPOINTS").await.is_empty());
}
