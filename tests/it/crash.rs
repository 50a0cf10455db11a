//! kill -9, dozens of times on one data folder, while several clients write, views run, and views are made and dropped: here at random moments,
//! in [`moments`] at moments that are aimed at.
//!
//! After each start, before anything else and without FLUSH:
//! - each acknowledged row is there exactly once, each other at most once, and no row that nobody wrote;
//! - a transaction is there whole, over two tables, or not at all;
//! - a counter has exactly the acknowledged increments, plus at most the one that was under way;
//! - a view that was acknowledged exists, one whose drop was acknowledged does not;
//! - every view shows the batch answer of its query.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use weir::seams::random::Random;

use self::clients::{Ledger, make_tables, verify, write};
use crate::run;
use crate::server::{Server, Session, describe, settings, sql_state};
use crate::views::Made;

mod clients;
mod moments;

/// Clients that write at the same time.
const WRITERS: usize = 4;

/// Views over what the clients write, some of them over others.
const VIEWS: [&str; 5] = [
    "CREATE MATERIALIZED VIEW per_writer AS SELECT writer, count(*) AS n, sum(number) AS total, min(number) AS first, max(number) AS last FROM rows GROUP BY writer",
    "CREATE MATERIALIZED VIEW everything AS SELECT count(*) AS n, sum(total) AS total FROM per_writer",
    "CREATE MATERIALIZED VIEW twin_counts AS SELECT kind, count(*) AS n FROM (SELECT 'row' AS kind, number FROM rows UNION ALL SELECT 'twin' AS kind, number FROM twins) AS combined GROUP BY kind",
    "CREATE MATERIALIZED VIEW payloads AS SELECT payload, count(DISTINCT writer) AS writers, count(*) FILTER (WHERE number % 2 = 0) AS even FROM rows GROUP BY payload",
    "CREATE MATERIALIZED VIEW counted AS SELECT sum(n) AS n FROM counters",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_and_nothing_is_doubled() {
    let mut random = run::random("crash");
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "150 ms"), ("barrier_interval", "50 ms")]));
    let session = server.connect().await;
    make_tables(&session, WRITERS).await;
    let mut made = Made::default();
    for view in VIEWS {
        session.must(view).await;
        made.note(view);
    }
    // From the first kill on there are commits behind a checkpoint.
    session.must("CHECKPOINT").await;
    drop(session);

    let mut ledgers = vec![Ledger::default(); WRITERS];
    let mut extra = ExtraViews::default();
    let rounds = run::rounds(30, 400);
    let mut acknowledged = 0;
    // How long the clients write at most, milliseconds: longer where the machine is so slow that they hardly do.
    let mut longest = 400;
    for round in 0..rounds {
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<JoinHandle<Ledger>> = (ledgers.into_iter().enumerate())
            .map(|(writer, ledger)| tokio::spawn(write(server.address(), writer, ledger, Random::seeded(random.next_u64()), stop.clone())))
            .collect();
        let definer = tokio::spawn(define(server.address(), round, extra, Random::seeded(random.next_u64()), stop.clone()));
        tokio::time::sleep(Duration::from_millis(20 + random.below(longest))).await;
        server.kill();
        stop.store(true, Ordering::SeqCst);
        ledgers = Vec::new();
        for writer in writers {
            ledgers.push(writer.await.expect("a writer does not panic"));
        }
        extra = definer.await.expect("the definer does not panic");
        if random.below(3) == 0 {
            server.set("parallelism", &(1 + random.below(4)).to_string());
        }
        // Now and then it dies while it is still recovering.
        if random.below(4) == 0 {
            server.restart();
            tokio::time::sleep(Duration::from_millis(random.below(60))).await;
        }
        server.restart();
        let session = server.connect().await;
        acknowledged = verify(&session, &mut ledgers, round).await;
        if acknowledged <= round {
            longest = (2 * longest).min(10_000);
        }
        extra.verify(&session, &mut made, round).await;
        let (problems, with_rows) = made.check(&session).await;
        assert!(problems.is_empty(), "round {round}:\n{}", problems.join("\n"));
        assert!(acknowledged == 0 || with_rows >= 4, "round {round}: only {with_rows} views have rows");
    }
    let session = server.connect().await;
    session.must("FLUSH").await;
    let (problems, _) = made.check(&session).await;
    assert!(problems.is_empty(), "at the end:\n{}", problems.join("\n"));
    run::say(&format!(
        "crash: {rounds} kills, {acknowledged} acknowledged rows, {} views made and {} dropped on the way",
        extra.created, extra.dropped
    ));
    assert!(acknowledged >= rounds, "the writers hardly wrote: {acknowledged} rows in {rounds} rounds");
}

/// Views that are made and dropped while the clients write.
#[derive(Debug, Default)]
struct ExtraViews {
    /// Definitions of those that must exist.
    existing: BTreeMap<String, String>,
    /// The one whose CREATE or DROP was not acknowledged: it is there whole, or not at all.
    undecided: Option<(String, String)>,
    /// Names that were dropped.
    gone: BTreeSet<String>,
    created: usize,
    dropped: usize,
}

/// Makes and drops views until the connection breaks; sometimes asks for a checkpoint.
async fn define(
    address: std::net::SocketAddr,
    round: usize,
    mut views: ExtraViews,
    mut random: Random,
    stop: Arc<AtomicBool>,
) -> ExtraViews {
    let Ok(session) = Session::open(address).await else { return views };
    let mut number = 0;
    while !stop.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(random.below(80))).await;
        let outcome = if views.existing.len() >= 2 {
            let Some((name, sql)) = views.existing.pop_first() else { break };
            views.undecided = Some((name.clone(), sql));
            let outcome = session.execute(&format!("DROP MATERIALIZED VIEW {name}")).await;
            if outcome.is_ok() {
                views.undecided = None;
                views.gone.insert(name);
                views.dropped += 1;
            }
            outcome
        } else if random.below(3) == 0 {
            session.execute("CHECKPOINT").await
        } else {
            number += 1;
            let name = format!("extra_{round}_{number}");
            let query = match random.below(3) {
                0 => "SELECT writers, count(*) AS n, sum(even) AS even FROM payloads GROUP BY writers".to_string(),
                buckets => format!(
                    "SELECT payload, number % {0} AS bucket, count(*) AS n, max(writer) AS w FROM rows GROUP BY payload, number % {0}",
                    number + buckets
                ),
            };
            let sql = format!("CREATE MATERIALIZED VIEW {name} AS {query}");
            views.undecided = Some((name.clone(), sql.clone()));
            let outcome = session.execute(&sql).await;
            if outcome.is_ok() {
                views.undecided = None;
                views.existing.insert(name, sql);
                views.created += 1;
            }
            outcome
        };
        if let Err(e) = outcome {
            assert!(sql_state(&e).is_none(), "defining views: {}", describe(&e));
            break;
        }
    }
    views
}

impl ExtraViews {
    /// Checks which exist, and takes note of them so that their content is compared too.
    async fn verify(&mut self, session: &Session, made: &mut Made, round: usize) {
        if let Some((name, sql)) = self.undecided.take() {
            if exists(session, &name).await {
                self.existing.insert(name, sql);
            } else {
                self.gone.insert(name);
            }
        }
        for (name, sql) in &self.existing {
            assert!(exists(session, name).await, "round {round}: view {name} was acknowledged and is lost");
            made.note(sql);
        }
        for name in &self.gone {
            assert!(!exists(session, name).await, "round {round}: view {name} was dropped and is back");
        }
        // Names are not used again: once seen to be gone is enough.
        self.gone.clear();
    }
}

async fn exists(session: &Session, name: &str) -> bool {
    match session.execute(&format!("SELECT * FROM {name}")).await {
        Ok(_) => true,
        Err(e) if sql_state(&e).as_deref() == Some("42P01") => false,
        Err(e) => panic!("{name}: {}", describe(&e)),
    }
}
