//! Sinks that an error stopped, while the views that they read went on: resumed, each goes on from where it stood. What has changed meanwhile is written once,
//! and nothing that was written is taken back.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::alter_sink::amount;
use crate::files::{visible, wait_for};
use crate::savepoints::{eventually_equal, lines, rows};
use crate::server::{PATIENCE, Server, Session, settings};

/// The sinks, with what each is made with and the query that it has in the end.
const SINKS: [(&str, &str, &str); 2] = [
    ("plain", "SELECT k, 1000000 / v AS q FROM latest", "SELECT k, 1000000 / v AS q FROM latest"),
    (
        "sums",
        "SELECT v % 3 AS m, CAST(count(*) AS NUMERIC(38,0)) AS s FROM latest GROUP BY v % 3",
        "SELECT v % 3 AS m, sum(1000000 / v) AS s FROM latest GROUP BY v % 3",
    ),
];

async fn answer(session: &Session, query: &str) -> Vec<String> {
    let mut found: Vec<String> = rows(session, query).await.into_iter().map(|row| row.join(",")).collect();
    found.sort();
    found
}

/// Makes checkpoints until the files of each sink amount to its answer.
async fn until_written(session: &Session, root: &Path) -> Vec<Vec<String>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        session.must("FLUSH").await;
        session.must("CHECKPOINT").await;
        let mut all = Vec::new();
        for (name, _, query) in SINKS {
            all.push((answer(session, query).await, amount(&root.join(name))));
        }
        if all.iter().all(|(expected, found)| expected == found) {
            return all.into_iter().map(|(expected, _)| expected).collect();
        }
        let jobs = rows(session, "SELECT name, state, last_error FROM weir_jobs").await;
        assert!(Instant::now() < deadline, "{all:?}, {jobs:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Rows of numbers.
fn numbered(first: i64, last: i64) -> String {
    (first..=last).map(|number| format!("({number}, {number})")).collect::<Vec<_>>().join(", ")
}

/// How many rows are in one of two lists and not in the other.
fn differing(before: &[String], after: &[String]) -> usize {
    let mut counts = BTreeMap::<&String, i64>::new();
    before.iter().for_each(|row| *counts.entry(row).or_default() -= 1);
    after.iter().for_each(|row| *counts.entry(row).or_default() += 1);
    counts.values().map(|count| count.unsigned_abs() as usize).sum()
}

async fn kept(session: &Session) -> Vec<Vec<String>> {
    rows(session, "SELECT name FROM weir_jobs WHERE kept_bytes > 0 ORDER BY name").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_sink_is_resumed_from_where_it_stood() {
    let out = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(&settings(&[
        ("parallelism", "2"),
        ("checkpoint_interval", "1 h"),
        ("checkpoints_retained", "1"),
        ("restart_delay", "1 ms"),
    ]));
    let mut session = server.connect().await;
    session.must("CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT)").await;
    session.must(&format!("INSERT INTO t VALUES {}", numbered(1, 60))).await;
    session.must("CREATE MATERIALIZED VIEW latest AS SELECT id AS k, v FROM t").await;
    for (name, first, query) in SINKS {
        let path = out.path().join(name);
        session
            .must(&format!(
                "CREATE SINK {name} WITH (connector = 'file', path = '{}', format = 'csv', row_kind = 'kind') AS {first}",
                path.display()
            ))
            .await;
        session.must("CHECKPOINT").await;
        if first != query {
            // From now on there is a savepoint in its definition, which goes with its first checkpoints.
            session.must(&format!("ALTER SINK {name} AS {query}")).await;
        }
    }
    for round in 0..3 {
        let before = until_written(&session, out.path()).await;
        assert_eq!(kept(&session).await, Vec::<Vec<String>>::new());
        let files = visible(out.path());
        let count = SINKS.map(|(name, _, _)| lines(&out.path().join(name)).len());
        session.must("INSERT INTO t VALUES (0, 0)").await;
        let failed = "SELECT name FROM weir_jobs WHERE state = 'failed' ORDER BY name";
        wait_for(&session, failed, &[&["plain"], &["sums"]]).await;
        assert_eq!(kept(&session).await, [["plain"], ["sums"]]);
        let first = 100 * (round + 1);
        for statement in [
            format!("INSERT INTO t VALUES {}", numbered(first, first + 20)),
            format!("UPDATE t SET v = v + 1 WHERE id % 4 = {round} AND id > 0"),
            format!("DELETE FROM t WHERE id % 7 = {round} AND id > 0"),
        ] {
            session.must(&statement).await;
            session.must("CHECKPOINT").await;
        }
        if round > 0 {
            // The first start finds the row that stops them still there, and they stay where they are; the second one does not.
            server.kill();
            server.set("parallelism", &round.to_string());
            server.restart();
            session = server.connect().await;
            wait_for(&session, failed, &[&["plain"], &["sums"]]).await;
            assert_eq!(kept(&session).await, [["plain"], ["sums"]]);
            session.must("CHECKPOINT").await;
        }
        session.must("DELETE FROM t WHERE v = 0").await;
        if round == 2 {
            server.kill();
            server.restart();
            session = server.connect().await;
        } else {
            session.must("ALTER JOB plain RESUME").await;
            session.must("ALTER JOB sums RESUME").await;
        }
        let after = until_written(&session, out.path()).await;
        let still = visible(out.path());
        assert!(files.iter().all(|file| still.contains(file)), "round {round}: a file was taken back");
        for (at, (name, _, _)) in SINKS.iter().enumerate() {
            let written = lines(&out.path().join(name)).len() - count[at];
            assert_eq!(written, differing(&before[at], &after[at]), "round {round}: {name} wrote more than what differs");
        }
        assert_eq!(kept(&session).await, Vec::<Vec<String>>::new());
    }
    // What is kept goes with the sink.
    session.must("INSERT INTO t VALUES (0, 0)").await;
    wait_for(&session, "SELECT name FROM weir_jobs WHERE state = 'failed' ORDER BY name", &[&["plain"], &["sums"]]).await;
    session.must("DROP SINK plain").await;
    assert_eq!(kept(&session).await, [["sums"]]);
}

/// A view over a stream and a view can't be built anew either: it goes on from what it had of both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_view_over_a_stream_and_a_view_goes_on_too() {
    let mut server = Server::start(&settings(&[
        ("parallelism", "2"),
        ("checkpoint_interval", "1 h"),
        ("checkpoints_retained", "1"),
        ("restart_delay", "1 ms"),
    ]));
    let mut session = server.connect().await;
    let bids = "WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '500'";
    session
        .must(&format!(
            "CREATE TABLE stream (auction BIGINT, price BIGINT) {bids}, 'events.rate' = '100000'); CREATE TABLE whole (auction BIGINT, price BIGINT) {bids});
             CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT); INSERT INTO t VALUES {}",
            numbered(1, 40)
        ))
        .await;
    let mixed = |from: &str| format!("SELECT k, 1000000 / v AS q FROM latest UNION ALL SELECT auction AS k, price AS q FROM {from}");
    let above = |from: &str| format!("SELECT k % 3 AS g, count(*) AS n, sum(q) AS s, max(q) AS m FROM {from} GROUP BY k % 3");
    session.must("CREATE MATERIALIZED VIEW latest AS SELECT id AS k, v FROM t").await;
    session.must(&format!("CREATE MATERIALIZED VIEW mixed AS {}", mixed("stream"))).await;
    session.must(&format!("CREATE MATERIALIZED VIEW above AS {}", above("mixed"))).await;
    for round in 0..2 {
        eventually_equal(&session, "mixed", &mixed("whole")).await;
        session.must("CHECKPOINT").await;
        session.must("INSERT INTO t VALUES (0, 0)").await;
        let failed = "SELECT name FROM weir_jobs WHERE state = 'failed' ORDER BY name";
        wait_for(&session, failed, &[&["above"], &["mixed"]]).await;
        assert_eq!(kept(&session).await, [["mixed"]]);
        for statement in [
            "UPDATE t SET v = v + 1 WHERE id % 3 = 1",
            "DELETE FROM t WHERE id % 5 = 2",
            "CHECKPOINT",
            "UPDATE t SET v = v + 1 WHERE id = 9",
            "CHECKPOINT",
        ] {
            session.must(statement).await;
        }
        session.must("DELETE FROM t WHERE id = 0").await;
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
        assert_eq!(kept(&session).await, Vec::<Vec<String>>::new());
        server.kill();
        server.restart();
        session = server.connect().await;
        eventually_equal(&session, "above", &above(&format!("({}) AS b", mixed("whole")))).await;
    }
}
