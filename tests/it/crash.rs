//! kill -9 at random moments, dozens of times on one data folder, while several clients write, views run, and views are made and dropped.
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

use crate::run;
use crate::server::{Server, Session, describe, settings, sql_state};
use crate::views::Made;

/// Clients that write at the same time.
const WRITERS: usize = 4;

/// What must be there after the next start, and what may be.
#[derive(Clone, Debug, Default)]
struct Ledger {
    /// Rows of `rows` by (writer, number): true once acknowledged.
    rows: BTreeMap<i64, bool>,
    /// Rows that a transaction wrote to `rows` and `twins` both.
    twins: BTreeMap<i64, bool>,
    /// Rows whose deletion was asked for: true once acknowledged.
    deleted: BTreeMap<i64, bool>,
    increments: i64,
    increments_under_way: i64,
    next: i64,
}

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
    session.must("CREATE TABLE rows (writer INT, number BIGINT, payload TEXT)").await;
    session.must("CREATE TABLE twins (writer INT, number BIGINT)").await;
    session.must("CREATE TABLE counters (id INT PRIMARY KEY, n BIGINT NOT NULL)").await;
    for writer in 0..WRITERS {
        session.must(&format!("INSERT INTO counters VALUES ({writer}, 0)")).await;
    }
    let mut made = Made::default();
    for view in VIEWS {
        session.must(view).await;
        made.note(view);
    }
    drop(session);

    let mut ledgers = vec![Ledger::default(); WRITERS];
    let mut extra = ExtraViews::default();
    let rounds = run::rounds(30, 400);
    let mut acknowledged = 0;
    for round in 0..rounds {
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<JoinHandle<Ledger>> = (ledgers.into_iter().enumerate())
            .map(|(writer, ledger)| tokio::spawn(write(server.address(), writer, ledger, Random::seeded(random.next_u64()), stop.clone())))
            .collect();
        let definer = tokio::spawn(define(server.address(), round, extra, Random::seeded(random.next_u64()), stop.clone()));
        tokio::time::sleep(Duration::from_millis(20 + random.below(400))).await;
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

/// Writes until the connection breaks.
async fn write(address: std::net::SocketAddr, writer: usize, mut ledger: Ledger, mut random: Random, stop: Arc<AtomicBool>) -> Ledger {
    let Ok(session) = Session::open(address).await else { return ledger };
    while !stop.load(Ordering::SeqCst) {
        let outcome = match random.below(8) {
            0 => {
                ledger.increments_under_way = 1;
                let outcome = session.execute(&format!("UPDATE counters SET n = n + 1 WHERE id = {writer}")).await;
                if outcome.is_ok() {
                    ledger.increments += 1;
                    ledger.increments_under_way = 0;
                }
                outcome
            }
            1 => {
                let number = ledger.next;
                ledger.next += 1;
                ledger.rows.insert(number, false);
                ledger.twins.insert(number, false);
                let outcome = session
                    .execute(&format!(
                        "BEGIN; INSERT INTO rows VALUES ({writer}, {number}, 'twin'); INSERT INTO twins VALUES ({writer}, {number}); COMMIT"
                    ))
                    .await;
                if outcome.is_ok() {
                    ledger.rows.insert(number, true);
                    ledger.twins.insert(number, true);
                }
                outcome
            }
            2 if !ledger.rows.is_empty() => {
                let number = *ledger.rows.keys().nth(random.below(ledger.rows.len() as u64) as usize).expect("below the length");
                ledger.deleted.entry(number).or_insert(false);
                let outcome = session.execute(&format!("DELETE FROM rows WHERE writer = {writer} AND number = {number}")).await;
                if outcome.is_ok() {
                    ledger.deleted.insert(number, true);
                }
                outcome
            }
            _ => {
                let numbers: Vec<i64> = (0..1 + random.below(4) as i64).map(|i| ledger.next + i).collect();
                ledger.next += numbers.len() as i64;
                let payload = random.below(7);
                let values: Vec<String> = numbers.iter().map(|number| format!("({writer}, {number}, 'p{payload}')")).collect();
                ledger.rows.extend(numbers.iter().map(|number| (*number, false)));
                let outcome = session.execute(&format!("INSERT INTO rows VALUES {}", values.join(", "))).await;
                if outcome.is_ok() {
                    ledger.rows.extend(numbers.iter().map(|number| (*number, true)));
                }
                outcome
            }
        };
        if let Err(e) = outcome {
            // A server that lives says no: the writers touch different rows, so there is nothing to refuse.
            assert!(sql_state(&e).is_none(), "writer {writer}: {}", describe(&e));
            break;
        }
    }
    ledger
}

/// Compares the tables with the ledgers, and brings the ledgers up to what turned out to have happened. Returns the number of acknowledged rows.
async fn verify(session: &Session, ledgers: &mut [Ledger], round: usize) -> usize {
    let rows = numbers(session, "SELECT writer, number FROM rows").await;
    let twins = numbers(session, "SELECT writer, number FROM twins").await;
    let mut acknowledged = 0;
    for (writer, ledger) in ledgers.iter_mut().enumerate() {
        let found = &rows[writer];
        let unique: BTreeSet<i64> = found.iter().copied().collect();
        assert_eq!(unique.len(), found.len(), "round {round}: writer {writer} has rows twice: {:?}", repeated(found));
        for number in &unique {
            assert!(ledger.rows.contains_key(number), "round {round}: writer {writer} never wrote {number}");
            assert!(ledger.deleted.get(number) != Some(&true), "round {round}: writer {writer}: {number} was deleted and is back");
        }
        for (number, is_acknowledged) in &ledger.rows {
            let may_be_gone = ledger.deleted.contains_key(number) || !is_acknowledged;
            assert!(may_be_gone || unique.contains(number), "round {round}: writer {writer}: acknowledged row {number} is lost");
            acknowledged += usize::from(*is_acknowledged);
        }
        let found_twins: BTreeSet<i64> = twins[writer].iter().copied().collect();
        assert_eq!(
            found_twins.len(),
            twins[writer].len(),
            "round {round}: writer {writer} has twins twice: {:?}",
            repeated(&twins[writer])
        );
        for (number, is_acknowledged) in &ledger.twins {
            assert!(!is_acknowledged || found_twins.contains(number), "round {round}: writer {writer}: acknowledged twin {number} is lost");
            assert!(
                ledger.deleted.contains_key(number) || unique.contains(number) == found_twins.contains(number),
                "round {round}: writer {writer}: transaction {number} is torn"
            );
        }
        let counter = session.must_count(&format!("SELECT n FROM counters WHERE id = {writer}")).await;
        let possible = ledger.increments..=ledger.increments + ledger.increments_under_way;
        assert!(possible.contains(&counter), "round {round}: counter {writer} is {counter}, not in {possible:?}");
        // What was under way has been decided by now.
        ledger.rows.retain(|number, _| unique.contains(number));
        ledger.twins.retain(|number, _| found_twins.contains(number));
        ledger.deleted.retain(|number, _| !unique.contains(number));
        let decided = ledger.rows.values_mut().chain(ledger.twins.values_mut()).chain(ledger.deleted.values_mut());
        decided.for_each(|is_acknowledged| *is_acknowledged = true);
        // A twin whose row was deleted stays alone.
        let alone: Vec<i64> = ledger.twins.keys().filter(|number| !unique.contains(number)).copied().collect();
        ledger.deleted.extend(alone.into_iter().map(|number| (number, true)));
        ledger.increments = counter;
        ledger.increments_under_way = 0;
    }
    acknowledged
}

fn repeated(numbers: &[i64]) -> Vec<i64> {
    let mut seen = BTreeSet::new();
    numbers.iter().filter(|number| !seen.insert(**number)).copied().collect()
}

/// The second column's numbers by the first's.
async fn numbers(session: &Session, sql: &str) -> Vec<Vec<i64>> {
    let mut numbers = vec![Vec::new(); WRITERS];
    for row in session.must_query(sql).await.rows {
        let value = |i: usize| -> i64 { row[i].as_deref().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{sql}: {row:?}")) };
        numbers[value(0) as usize].push(value(1));
    }
    numbers
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
            let sql = format!(
                "CREATE MATERIALIZED VIEW {name} AS SELECT payload, number % {} AS bucket, count(*) AS n, max(writer) AS w FROM rows GROUP BY payload, number % {}",
                number + 1,
                number + 1
            );
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
