//! Views that are made while their inputs change: each begins with the rows that are there and misses nothing that comes meanwhile.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use weir::seams::random::Random;

use crate::run;
use crate::server::{PATIENCE, Server, Session, describe, settings};
use crate::views::Made;

const ROWS: u64 = 20_000;
const CHANGERS: u64 = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_made_while_its_inputs_change_misses_nothing() {
    let mut random = run::random("backfill");
    let server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "300 ms")]));
    let session = server.connect().await;
    session.must("CREATE TABLE t (id BIGINT PRIMARY KEY, g BIGINT NOT NULL, v BIGINT NOT NULL)").await;
    let first: Vec<String> = (0..500).map(|id| format!("({id}, {}, {id})", id % 97)).collect();
    session.must(&format!("INSERT INTO t VALUES {}", first.join(", "))).await;
    let mut rows = 500;
    while rows < ROWS {
        session.must(&format!("INSERT INTO t SELECT id + {rows}, (g + 13) % 97, v FROM t WHERE id < {}", rows.min(ROWS - rows))).await;
        rows = ROWS.min(2 * rows);
    }
    session.must("CREATE MATERIALIZED VIEW below AS SELECT id, g, v + 1 AS w FROM t WHERE v % 10 <> 3").await;
    let mut with_changes = 0;
    let rounds = run::rounds(8, 80);
    for round in 0..rounds {
        let changes = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let changers: Vec<JoinHandle<()>> = (0..CHANGERS)
            .map(|changer| {
                let random = Random::seeded(random.next_u64());
                tokio::spawn(change(server.address(), changer, random, changes.clone(), stop.clone()))
            })
            .collect();
        wait_for_changes(&changes, 10).await;
        let before = changes.load(Ordering::SeqCst);
        let sql = match round % 2 {
            0 => "CREATE MATERIALIZED VIEW made AS SELECT g, count(*) AS n, sum(v) AS total, max(v) AS highest FROM t GROUP BY g",
            _ => {
                "CREATE MATERIALIZED VIEW made AS SELECT g, count(*) AS n, sum(w) AS total, count(DISTINCT w) AS different FROM below GROUP BY g"
            }
        };
        session.must(sql).await;
        with_changes += usize::from(changes.load(Ordering::SeqCst) > before);
        // A little longer, so that the first version is not all that is looked at.
        wait_for_changes(&changes, changes.load(Ordering::SeqCst) + 5).await;
        stop.store(true, Ordering::SeqCst);
        for changer in changers {
            changer.await.expect("who changes rows does not panic");
        }
        session.must("FLUSH").await;
        let mut made = Made::default();
        made.note(sql);
        let (problems, with_rows) = made.check(&session).await;
        assert!(problems.is_empty(), "round {round}:\n{}", problems.join("\n"));
        assert_eq!(with_rows, 1);
        session.must("DROP MATERIALIZED VIEW made").await;
    }
    run::say(&format!("backfill: {rounds} views made, {with_changes} of them while rows changed"));
    assert!(2 * with_changes >= rounds, "rows hardly changed while views were made: {with_changes} of {rounds}");
}

async fn wait_for_changes(changes: &AtomicU64, wanted: u64) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while changes.load(Ordering::SeqCst) < wanted {
        assert!(std::time::Instant::now() < deadline, "nothing is changed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Changes, takes away and adds rows of `t`, until it is told to stop. Each changer has rows of its own, so that there is nothing to refuse.
async fn change(address: SocketAddr, changer: u64, mut random: Random, changes: Arc<AtomicU64>, stop: Arc<AtomicBool>) {
    let session = Session::open(address).await.unwrap_or_else(|e| panic!("could not connect: {}", describe(&e)));
    while !stop.load(Ordering::SeqCst) {
        let id = random.below(ROWS / CHANGERS) * CHANGERS + changer;
        let (g, v) = (random.below(97), random.below(1_000));
        session
            .must(&match random.below(4) {
                0 => format!("DELETE FROM t WHERE id IN ({id}, {})", id + CHANGERS),
                1 => format!("BEGIN; DELETE FROM t WHERE id = {id}; INSERT INTO t VALUES ({id}, {g}, {v}); COMMIT"),
                _ => format!("UPDATE t SET v = v + 7, g = (g + {g}) % 97 WHERE id = {id}"),
            })
            .await;
        changes.fetch_add(1, Ordering::SeqCst);
    }
}
