//! Statements on a view and on what reads it, in several sessions at once: each works, or says that another one was there first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir::seams::random::Random;

use super::rows;
use crate::run;
use crate::server::{Server, Session, describe, settings, sql_state};

const CHANGES: [&str; 3] = [
    "SELECT k, count(*) AS n, sum(v) AS s FROM t GROUP BY k",
    "SELECT k, count(*) AS n, sum(v) AS s FROM t WHERE v > 3 GROUP BY k",
    "SELECT k, count(*) AS n, sum(v + 1) AS s FROM t GROUP BY k",
];
const FIXED: &str = "SELECT n, count(*) AS c FROM v GROUP BY n";
const READER: &str = "SELECT max(s) AS s, min(n) AS n FROM v";

/// Sends `sql`; errors that are none of `may_be` fail the test. Whether it worked.
async fn send(session: &Session, sql: &str, may_be: &[&str]) -> bool {
    match session.execute(sql).await {
        Ok(_) => true,
        Err(error) => {
            let code = sql_state(&error).unwrap_or_default();
            assert!(may_be.contains(&code.as_str()), "{sql}\n{}", describe(&error));
            false
        }
    }
}

/// The view is its query's answer, both as of one moment.
async fn agrees(session: &Session, view: &str, query: &str) {
    let (view, query) = (format!("SELECT * FROM {view}"), format!("SELECT * FROM ({query}) AS q"));
    let differ = format!("({view} EXCEPT ALL {query}) UNION ALL ({query} EXCEPT ALL {view})");
    assert_eq!(rows(session, &differ).await, Vec::<Vec<String>>::new(), "{view}: {query}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_is_altered_beside_its_readers_coming_and_going() {
    let test = "savepoints::concurrent::a_view_is_altered_beside_its_readers_coming_and_going";
    let mut random = run::random(test);
    let server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "200 ms"), ("barrier_interval", "20 ms")]));
    let session = server.connect().await;
    session.must("CREATE TABLE t (k BIGINT, v BIGINT)").await;
    session.must("INSERT INTO t VALUES (1, 1), (1, 5), (2, 2), (3, 9)").await;
    session.must(&format!("CREATE MATERIALIZED VIEW v AS {}", CHANGES[0])).await;
    session.must(&format!("CREATE MATERIALIZED VIEW fixed AS {FIXED}")).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    // Readers come and go.
    for number in 0..2 {
        let (session, stop) = (server.connect().await, stop.clone());
        let mut random = Random::seeded(random.next_u64());
        tasks.push(tokio::spawn(async move {
            let mut there = false;
            while !stop.load(Ordering::SeqCst) {
                let sql = if there {
                    format!("DROP MATERIALIZED VIEW r{number}")
                } else {
                    format!("CREATE MATERIALIZED VIEW r{number} AS {READER}")
                };
                if send(&session, &sql, &["40001", "2BP01"]).await {
                    there = !there;
                }
                tokio::time::sleep(Duration::from_millis(random.below(1500))).await;
            }
            there
        }));
    }
    // One that stays is saved.
    let (saver, stopped) = (server.connect().await, stop.clone());
    tasks.push(tokio::spawn(async move {
        while !stopped.load(Ordering::SeqCst) {
            send(&saver, "CREATE SAVEPOINT sp FOR fixed", &[]).await;
            send(&saver, "DROP SAVEPOINT sp", &[]).await;
        }
        false
    }));
    let (writer, stopped) = (server.connect().await, stop.clone());
    let seed = random.next_u64();
    tasks.push(tokio::spawn(async move {
        let mut random = Random::seeded(seed);
        while !stopped.load(Ordering::SeqCst) {
            writer.must(&format!("INSERT INTO t VALUES ({}, {})", random.below(9), random.below(50))).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        false
    }));
    let (mut last, mut done) = (0, 0);
    let (until, least) = (Instant::now() + Duration::from_secs(run::rounds(15, 120) as u64), run::rounds(4, 30));
    while done < least || Instant::now() < until {
        let next = random.below(CHANGES.len() as u64) as usize;
        // 40001: others were there first, again and again.
        if send(&session, &format!("ALTER MATERIALIZED VIEW v AS {}", CHANGES[next]), &["40001", "55006"]).await {
            (last, done) = (next, done + 1);
        }
        if random.below(3) == 0 {
            send(&session, &format!("EXPLAIN UPGRADE v AS {}", CHANGES[0]), &["40001", "55006"]).await;
        }
        agrees(&session, "fixed", &FIXED.replace("FROM v", &format!("FROM ({}) AS v", CHANGES[last]))).await;
    }
    stop.store(true, Ordering::SeqCst);
    let mut there = Vec::new();
    for task in tasks {
        there.push(task.await.expect("no statement fails"));
    }
    run::say(&format!("{test}: {done} changes"));
    agrees(&session, "v", CHANGES[last]).await;
    for number in (0..2).filter(|number| there[*number]) {
        agrees(&session, &format!("r{number}"), &READER.replace("FROM v", &format!("FROM ({}) AS v", CHANGES[last]))).await;
    }
}
