//! Money is never made or lost, whenever one looks.
//!
//! Transfers move amounts between accounts. Views add up each account's debits and credits; a view over both is each account's balance, and
//! one over that the total. Every transfer debits what it credits, so the total is 0 in every consistent version of the views, and a reader
//! that ever sees anything else has seen one side of a transfer ahead of the other. An engine that lets each operator answer as soon as it
//! can fails this.
//!
//! The same goes for transfers that arrive from a connector through a shared view, and across kill -9.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use weir::seams::random::Random;

use crate::run;
use crate::server::{PATIENCE, Server, Session, describe, settings, sql_state};

const ACCOUNTS: u64 = 20;
const WRITERS: u64 = 3;
const READERS: usize = 2;
/// How often the readers look at transfers before a kill, at least.
const LOOKS: u64 = 50;

/// The views over a relation `transfers (from_account, to_account, amount)`.
const VIEWS: [&str; 5] = [
    "CREATE MATERIALIZED VIEW debits AS SELECT from_account AS account, sum(amount) AS amount, count(*) AS n FROM transfers GROUP BY from_account",
    "CREATE MATERIALIZED VIEW credits AS SELECT to_account AS account, sum(amount) AS amount, count(*) AS n FROM transfers GROUP BY to_account",
    "CREATE MATERIALIZED VIEW balance AS SELECT account, sum(amount) AS amount FROM \
     (SELECT account, amount FROM credits UNION ALL SELECT account, -amount AS amount FROM debits) AS combined GROUP BY account",
    "CREATE MATERIALIZED VIEW total AS SELECT sum(amount) AS amount FROM balance",
    "CREATE MATERIALIZED VIEW seen AS SELECT sum(n) AS n FROM debits",
];

/// Statements that say 0, or NULL while there are no transfers, on every consistent version. The last two read several views at once, which must be
/// seen as of one barrier.
const ZERO: [&str; 4] = [
    "SELECT amount FROM total",
    "SELECT sum(amount) FROM balance",
    "SELECT (SELECT sum(amount) FROM credits) - (SELECT sum(amount) FROM debits)",
    "SELECT sum(amount) FROM (SELECT amount FROM credits UNION ALL SELECT -amount FROM debits UNION ALL SELECT -amount FROM balance) AS everything",
];

#[derive(Default)]
struct Looks {
    total: AtomicU64,
    /// Looks at a version with transfers in it.
    with_transfers: AtomicU64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_total_is_zero_at_every_moment_and_across_kills() {
    let mut random = run::random("consistency");
    let mut server = Server::start(&settings(&[("parallelism", "3"), ("checkpoint_interval", "200 ms"), ("barrier_interval", "20 ms")]));
    let session = server.connect().await;
    session.must("CREATE TABLE transfers (id BIGINT PRIMARY KEY, from_account INT, to_account INT, amount BIGINT)").await;
    for view in VIEWS {
        session.must(view).await;
    }
    let looks = Arc::new(Looks::default());
    let rounds = run::rounds(6, 60);
    for round in 0..rounds {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks: Vec<JoinHandle<()>> = (0..WRITERS)
            .map(|writer| {
                let first = (round as u64 * WRITERS + writer) * 1_000_000;
                tokio::spawn(transfer(server.address(), first, Random::seeded(random.next_u64()), stop.clone()))
            })
            .collect();
        tasks.extend((0..READERS).map(|_| tokio::spawn(look(server.address(), looks.clone(), stop.clone(), false))));
        tokio::time::sleep(Duration::from_millis(1_000 + random.below(500))).await;
        // On a slow machine that is no more than a look or two. Whoever has ended says why below.
        let deadline = Instant::now() + PATIENCE;
        while looks.with_transfers.load(Ordering::SeqCst) < LOOKS * (round as u64 + 1) && tasks.iter().all(|task| !task.is_finished()) {
            assert!(Instant::now() < deadline, "the readers hardly look");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        server.kill();
        stop.store(true, Ordering::SeqCst);
        for task in tasks {
            task.await.expect("no reader saw anything but 0");
        }
        server.set("parallelism", &(1 + random.below(4)).to_string());
        server.restart();
        // The first look after a start counts as well.
        let session = server.connect().await;
        for sql in ZERO {
            assert_eq!(session.must_count(sql).await, 0, "after kill {round}: {sql}");
        }
    }
    let session = server.connect().await;
    session.must("FLUSH").await;
    let written = session.must_count("SELECT count(*) FROM transfers").await;
    assert_eq!(session.must_count("SELECT n FROM seen").await, written);
    let looked = (looks.total.load(Ordering::SeqCst), looks.with_transfers.load(Ordering::SeqCst));
    run::say(&format!("consistency: {rounds} kills, {written} transfers, {} looks, {} of them at transfers", looked.0, looked.1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_from_a_connector_through_a_shared_view_balance_too() {
    let mut random = run::random("consistency of a connector");
    // A kill shows something about offsets only while input is still coming. How long that must be depends on how fast the machine is now.
    for seconds in [8, 40, 120] {
        if connector_killed_in_the_midst(&mut random, seconds).await > 0 {
            return;
        }
    }
    panic!("no kill came before the end of the input");
}

/// Transfers that come for some seconds, under kills. Returns how many of those came before the end of the input.
async fn connector_killed_in_the_midst(random: &mut Random, seconds: u64) -> usize {
    let events: u64 = if run::is_long() { 2_000_000 } else { 200_000 };
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "200 ms"), ("barrier_interval", "20 ms")]));
    let session = server.connect().await;
    let rate = events / seconds;
    session
        .must(&format!(
            "CREATE TABLE bid WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '{events}', 'events.rate' = '{rate}')"
        ))
        .await;
    // Readers that must agree over a connector table read it through one view.
    session
        .must("CREATE MATERIALIZED VIEW transfers AS SELECT auction % 20 AS from_account, bidder % 20 AS to_account, price AS amount FROM bid")
        .await;
    for view in VIEWS {
        session.must(view).await;
    }
    let looks = Arc::new(Looks::default());
    let expected = events as i64 / 50 * 46;
    let (mut kills, mut in_the_midst) = (0, 0);
    let deadline = Instant::now() + 4 * PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "the bounded input did not come to its end");
        let stop = Arc::new(AtomicBool::new(false));
        let readers: Vec<JoinHandle<()>> =
            (0..READERS).map(|_| tokio::spawn(look(server.address(), looks.clone(), stop.clone(), true))).collect();
        tokio::time::sleep(Duration::from_millis(200 + random.below(300))).await;
        let session = server.connect().await;
        session.must("FLUSH").await;
        let seen = session.must_count("SELECT n FROM seen").await;
        assert!(seen <= expected, "{seen} bids are more than the {expected} that there are");
        if kills < 4 {
            // So that the next start has offsets in the midst of the input, and rows behind them that readers have seen.
            session.must("CHECKPOINT").await;
            in_the_midst += usize::from(seen < expected);
            tokio::time::sleep(Duration::from_millis(50 + random.below(100))).await;
            server.kill();
            kills += 1;
        }
        stop.store(true, Ordering::SeqCst);
        for reader in readers {
            reader.await.expect("no reader saw anything but 0");
        }
        if seen == expected && kills >= 4 {
            break;
        }
        if !server.is_running() {
            server.restart();
        }
    }
    if !server.is_running() {
        server.restart();
    }
    let session = server.connect().await;
    assert_eq!(session.must_count("SELECT n FROM seen").await, expected);
    assert_eq!(session.must_count("SELECT count(*) FROM transfers").await, expected);
    for sql in ZERO {
        assert_eq!(session.must_count(sql).await, 0, "{sql}");
    }
    let looked = looks.total.load(Ordering::SeqCst);
    run::say(&format!("consistency of a connector: {kills} kills, {in_the_midst} of them in the midst of the input, {looked} looks"));
    in_the_midst
}

/// Makes transfers, changes and deletes them, until the connection breaks.
async fn transfer(address: std::net::SocketAddr, first: u64, mut random: Random, stop: Arc<AtomicBool>) {
    let Ok(session) = Session::open(address).await else { return };
    let mut next = first;
    while !stop.load(Ordering::SeqCst) {
        let kind = next % 7;
        let mut row = || {
            next += 1;
            format!("({next}, {}, {}, {})", random.below(ACCOUNTS), random.below(ACCOUNTS), 1 + random.below(1_000))
        };
        let sql = match kind {
            0 => format!("BEGIN; INSERT INTO transfers VALUES {}; INSERT INTO transfers VALUES {}, {}; COMMIT", row(), row(), row()),
            1 => {
                let insert = row();
                format!("INSERT INTO transfers VALUES {insert}; UPDATE transfers SET amount = amount + 7 WHERE id = {}", next - 1)
            }
            2 => {
                let insert = row();
                format!("INSERT INTO transfers VALUES {insert}; UPDATE transfers SET to_account = from_account WHERE id = {}", next - 2)
            }
            3 => {
                let insert = row();
                format!("INSERT INTO transfers VALUES {insert}; DELETE FROM transfers WHERE id = {}", next - 3)
            }
            _ => format!("INSERT INTO transfers VALUES {}, {}", row(), row()),
        };
        if let Err(e) = session.execute(&sql).await {
            assert!(sql_state(&e).is_none(), "{sql}\n{}", describe(&e));
            return;
        }
    }
}

/// What only ever grows while transfers are only added: whoever looks twice at one process never sees less than before.
const GROWING: &str = "SELECT n FROM seen";

/// Reads the views again and again, until the connection breaks.
async fn look(address: std::net::SocketAddr, looks: Arc<Looks>, stop: Arc<AtomicBool>, is_growing: bool) {
    let Ok(session) = Session::open(address).await else { return };
    let mut seen = 0;
    while !stop.load(Ordering::SeqCst) {
        if is_growing && let Ok(value) = session.value(GROWING).await {
            let now = value.as_deref().map_or(0, |text| crate::rows::canonical_numeric(text).parse().expect("a number"));
            assert!(now >= seen, "{GROWING} went back from {seen} to {now}");
            seen = now;
        }
        for sql in ZERO {
            match session.value(sql).await {
                Ok(value) => {
                    let amount = value.as_deref().map_or("0".to_string(), crate::rows::canonical_numeric);
                    assert_eq!(amount, "0", "{sql}");
                    looks.total.fetch_add(1, Ordering::SeqCst);
                    looks.with_transfers.fetch_add(u64::from(value.is_some()), Ordering::SeqCst);
                }
                Err(e) => {
                    assert!(sql_state(&e).is_none(), "{sql}\n{}", describe(&e));
                    return;
                }
            }
        }
    }
}
