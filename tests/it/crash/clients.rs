//! Clients that write until the server dies, and what each knows of its rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weir::seams::random::Random;

use crate::server::{Session, describe, sql_state};

/// Makes the tables that the clients write to, for `writers` of them.
pub async fn make_tables(session: &Session, writers: usize) {
    session.must("CREATE TABLE rows (writer INT, number BIGINT, payload TEXT)").await;
    session.must("CREATE TABLE twins (writer INT, number BIGINT)").await;
    session.must("CREATE TABLE counters (id INT PRIMARY KEY, n BIGINT NOT NULL)").await;
    for writer in 0..writers {
        session.must(&format!("INSERT INTO counters VALUES ({writer}, 0)")).await;
    }
}

/// What must be there after the next start, and what may be.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
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

/// Writes until the connection breaks.
pub async fn write(address: std::net::SocketAddr, writer: usize, mut ledger: Ledger, mut random: Random, stop: Arc<AtomicBool>) -> Ledger {
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

/// Compares the tables with the ledgers, and brings the ledgers up to what turned out to have happened. Returns the number of acknowledged rows that are there.
pub async fn verify(session: &Session, ledgers: &mut [Ledger], round: usize) -> usize {
    let rows = numbers(session, "SELECT writer, number FROM rows", ledgers.len()).await;
    let twins = numbers(session, "SELECT writer, number FROM twins", ledgers.len()).await;
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
            acknowledged += usize::from(*is_acknowledged && unique.contains(number));
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
async fn numbers(session: &Session, sql: &str, writers: usize) -> Vec<Vec<i64>> {
    let mut numbers = vec![Vec::new(); writers];
    for row in session.must_query(sql).await.rows {
        let value = |i: usize| -> i64 { row[i].as_deref().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{sql}: {row:?}")) };
        numbers[value(0) as usize].push(value(1));
    }
    numbers
}
