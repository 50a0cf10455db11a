//! Jobs that read stored tables, that keep their place in them, and that a row stopped: once the row has gone or is another, they go on, and what came and
//! went meanwhile is not evaluated.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::alter_sink::amount;
use crate::files::{visible, wait_for};
use crate::savepoints::{eventually_equal, rows};
use crate::server::{PATIENCE, Server, Session, settings};

/// The sinks and their queries: over a table with a key and one without, over both, and over a view.
const SINKS: [(&str, &str); 5] = [
    ("above", "SELECT k, 1000 / v AS q FROM latest"),
    ("mixed", "SELECT id, 1000 / v AS q FROM keyed UNION ALL SELECT id, 2000 / v AS q FROM keyless"),
    ("plain", "SELECT id, 1000 / v AS q FROM keyed"),
    ("rowids", "SELECT id, 1000 / v AS q FROM keyless"),
    ("sums", "SELECT id % 3 AS m, CAST(sum(1000 / v) AS NUMERIC(38,0)) AS s FROM keyed GROUP BY id % 3"),
];
const FAILED: &str = "SELECT name FROM weir_jobs WHERE state = 'failed' ORDER BY name";

async fn all_failed(session: &Session) {
    wait_for(session, FAILED, &SINKS.map(|(name, _)| [name]).each_ref().map(|row| row.as_slice())).await;
}

/// Makes checkpoints until the files of each sink amount to its answer.
async fn until_written(session: &Session, root: &Path) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        session.must("FLUSH").await;
        session.must("CHECKPOINT").await;
        let mut apart = Vec::new();
        for (name, query) in SINKS {
            let mut expected: Vec<String> = rows(session, query).await.into_iter().map(|row| row.join(",")).collect();
            expected.sort();
            let found = amount(&root.join(name));
            if expected != found {
                apart.push((name, expected, found));
            }
        }
        if apart.is_empty() {
            return;
        }
        let jobs = rows(session, "SELECT name, state, last_error FROM weir_jobs").await;
        assert!(Instant::now() < deadline, "{apart:?}, {jobs:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn numbered(first: i64, last: i64) -> String {
    (first..=last).map(|number| format!("({number}, {number})")).collect::<Vec<_>>().join(", ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_sink_does_not_meet_a_row_that_is_gone() {
    let out = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "1 h"), ("restart_delay", "1 ms")]));
    let mut session = server.connect().await;
    session.must("CREATE TABLE keyed (id BIGINT PRIMARY KEY, v BIGINT); CREATE TABLE keyless (id BIGINT, v BIGINT)").await;
    for table in ["keyed", "keyless"] {
        session.must(&format!("INSERT INTO {table} VALUES {}", numbered(1, 60))).await;
    }
    session.must("CREATE MATERIALIZED VIEW latest AS SELECT id AS k, v FROM keyed").await;
    for (name, query) in SINKS {
        let path = out.path().join(name);
        let with = format!("connector = 'file', path = '{}', format = 'csv', row_kind = 'kind'", path.display());
        session.must(&format!("CREATE SINK {name} WITH ({with}) AS {query}")).await;
    }
    for round in 0..4_i64 {
        until_written(&session, out.path()).await;
        let files = visible(out.path());
        // The row that stops them is a new one, or one that was written before.
        let (poison, cure) = match round {
            0 | 3 => ("INSERT INTO {} VALUES (0, 0)", "DELETE FROM {} WHERE v = 0"),
            1 => ("UPDATE {} SET v = 0 WHERE id = 11", "UPDATE {} SET v = 7 WHERE v = 0"),
            _ => ("UPDATE {} SET v = 0 WHERE id = 12", "DELETE FROM {} WHERE v = 0"),
        };
        for table in ["keyed", "keyless"] {
            session.must(&poison.replace("{}", table)).await;
        }
        all_failed(&session).await;
        let first = 100 * (round + 1);
        for table in ["keyed", "keyless"] {
            for statement in [
                format!("INSERT INTO {table} VALUES {}", numbered(first, first + 20)),
                format!("UPDATE {table} SET v = v + 1 WHERE id % 4 = {round} AND v > 0"),
                format!("DELETE FROM {table} WHERE id % 7 = {round} AND v > 0"),
                format!("INSERT INTO {table} VALUES ({}, 0)", first + 50),
                format!("UPDATE {table} SET v = 3 WHERE id = {}", first + 50),
            ] {
                session.must(&statement).await;
            }
            if round % 2 == 1 {
                session.must("CHECKPOINT").await;
            }
        }
        if round == 1 || round == 2 {
            // The row is still there at this start.
            server.kill();
            server.set("parallelism", &round.to_string());
            server.restart();
            session = server.connect().await;
            all_failed(&session).await;
        }
        for table in ["keyed", "keyless"] {
            session.must(&cure.replace("{}", table)).await;
        }
        if round >= 2 {
            // No checkpoint, and nothing that is said to the jobs.
            server.kill();
            server.set("parallelism", "3");
            server.restart();
            session = server.connect().await;
        } else {
            for (name, _) in SINKS {
                session.must(&format!("ALTER JOB {name} RESUME")).await;
            }
        }
        until_written(&session, out.path()).await;
        let still = visible(out.path());
        assert!(files.iter().all(|file| still.contains(file)), "round {round}: a file was taken back");
        // What the first epoch had is in the checkpoint, once.
        server.kill();
        server.restart();
        session = server.connect().await;
        session.must(&format!("INSERT INTO keyed VALUES ({}, 1)", first + 70)).await;
        until_written(&session, out.path()).await;
    }
}

/// A view over a stream and a table can't be built anew either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_view_over_a_stream_and_a_table_goes_on_too() {
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "1 h"), ("restart_delay", "1 ms")]));
    let mut session = server.connect().await;
    let bids = "WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '500'";
    session
        .must(&format!(
            "CREATE TABLE stream (auction BIGINT, price BIGINT) {bids}, 'events.rate' = '100000'); CREATE TABLE whole (auction BIGINT, price BIGINT) {bids});
             CREATE TABLE t (id BIGINT, v BIGINT); INSERT INTO t VALUES {}",
            numbered(1, 40)
        ))
        .await;
    let mixed = |from: &str| format!("SELECT id AS k, 1000000 / v AS q FROM t UNION ALL SELECT auction AS k, price AS q FROM {from}");
    let above = |from: &str| format!("SELECT k % 3 AS g, count(*) AS n, sum(q) AS s, max(q) AS m FROM {from} GROUP BY k % 3");
    session.must(&format!("CREATE MATERIALIZED VIEW mixed AS {}", mixed("stream"))).await;
    session.must(&format!("CREATE MATERIALIZED VIEW above AS {}", above("mixed"))).await;
    for round in 0..2 {
        eventually_equal(&session, "mixed", &mixed("whole")).await;
        session.must("CHECKPOINT").await;
        session.must("UPDATE t SET v = 0 WHERE id = 9").await;
        wait_for(&session, FAILED, &[&["above"], &["mixed"]]).await;
        for statement in ["UPDATE t SET v = v + 1 WHERE id % 3 = 1", "DELETE FROM t WHERE id % 5 = 2", "CHECKPOINT"] {
            session.must(statement).await;
        }
        session.must("UPDATE t SET v = 4 WHERE id = 9").await;
        if round == 0 {
            session.must("ALTER JOB mixed RESUME").await;
        } else {
            server.kill();
            server.set("parallelism", "3");
            server.restart();
            session = server.connect().await;
        }
        eventually_equal(&session, "mixed", &mixed("whole")).await;
        eventually_equal(&session, "above", &above(&format!("({}) AS b", mixed("whole")))).await;
        session.must("CHECKPOINT").await;
        server.kill();
        server.restart();
        session = server.connect().await;
        eventually_equal(&session, "above", &above(&format!("({}) AS b", mixed("whole")))).await;
    }
}
