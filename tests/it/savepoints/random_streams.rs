//! Random changes of queries over a stream that does not come again, a file and a stored table together. What a statement takes without ALLOW NON RESTORED STATE has the
//! rows of the stream as they were counted, and of all else those of the present query; with it, at worst nothing of the stream is left.

use super::{eventually_equal, rows};
use crate::run;
use crate::server::{Server, describe, settings, sql_state};
use weir::seams::random::Random;

/// What branches read: the stream first.
const SOURCES: [&str; 3] = ["stream", "file", "t"];
const CONDITIONS: [&str; 5] =
    ["", " WHERE price > 5000", " WHERE price % 3 <> 1", " WHERE auction < 1010", " WHERE auction IS NOT NULL AND price < 9000"];

/// A query: over which sources, each with its condition, in which order; and which aggregates, none for the rows themselves.
#[derive(Clone, Debug)]
struct Query {
    branches: Vec<(usize, usize)>,
    aggregates: Option<Vec<&'static str>>,
}

impl Query {
    /// `branch` gives the source and the condition of a branch, or leaves it out.
    fn sql(&self, branch: &dyn Fn(usize, usize) -> Option<String>) -> String {
        let branches: Vec<String> = self.branches.iter().filter_map(|(source, condition)| branch(*source, *condition)).collect();
        // Of nothing there is nothing.
        let all = if branches.is_empty() { "SELECT auction, price FROM t WHERE false".to_string() } else { branches.join(" UNION ALL ") };
        match &self.aggregates {
            None => all,
            Some(aggregates) => format!("SELECT auction, {} FROM ({all}) AS b GROUP BY auction", aggregates.join(", ")),
        }
    }

    fn continuous(&self) -> String {
        self.sql(&|source, condition| Some(format!("SELECT auction, price FROM {}{}", SOURCES[source], CONDITIONS[condition])))
    }

    /// As a batch, where the rows of the stream that count are those of the condition `stream`.
    fn batch(&self, stream: Option<usize>) -> String {
        self.sql(&|source, condition| {
            let (from, condition) = if source == 0 { ("whole", stream?) } else { (SOURCES[source], condition) };
            Some(format!("SELECT auction, price FROM {from}{}", CONDITIONS[condition]))
        })
    }

    fn reads(&self, source: usize) -> bool {
        self.branches.iter().any(|(branch, _)| *branch == source)
    }

    fn drawn(random: &mut Random) -> Query {
        let mut branches = Vec::new();
        for source in 0..SOURCES.len() {
            if source == 0 || random.below(2) == 0 {
                branches.push((source, random.below(CONDITIONS.len() as u64) as usize));
            }
        }
        let aggregates = vec!["count(*) AS n", "sum(price) AS s", "max(price) AS m"];
        Query { branches, aggregates: (random.below(3) > 0).then_some(aggregates) }
    }

    fn changed(&self, random: &mut Random) -> Query {
        let mut query = self.clone();
        let at = random.below(query.branches.len() as u64) as usize;
        let missing: Vec<usize> = (0..SOURCES.len()).filter(|source| !query.reads(*source)).collect();
        match random.below(5) {
            0 if !missing.is_empty() => {
                let source = missing[random.below(missing.len() as u64) as usize];
                let place = random.below(query.branches.len() as u64 + 1) as usize;
                query.branches.insert(place, (source, random.below(CONDITIONS.len() as u64) as usize));
            }
            1 if query.branches.len() > 1 => {
                query.branches.remove(at);
            }
            2 => query.branches.rotate_left(at),
            3 if query.aggregates.as_ref().is_some_and(|aggregates| aggregates.len() > 1) => {
                if let Some(aggregates) = &mut query.aggregates {
                    aggregates.remove(0);
                }
            }
            _ => query.branches[at].1 = random.below(CONDITIONS.len() as u64) as usize,
        }
        query
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_queries_over_streams_have_what_was_kept() {
    let mut random = run::random("changed streams");
    let folder = tempfile::tempdir().expect("a folder");
    let lines: Vec<String> = (0..25).map(|number| format!("{},{}\n", 1000 + number % 16, number * 500)).collect();
    std::fs::write(folder.path().join("a.csv"), lines.concat()).expect("written");
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "1 s")]));
    let mut session = server.connect().await;
    // The stream has the rows that can be read at once, at a rate: it does not come again.
    let bids = "WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '80'";
    session
        .must(&format!(
            "CREATE TABLE stream (auction BIGINT, price BIGINT) {bids}, 'events.rate' = '100000');
             CREATE TABLE whole (auction BIGINT, price BIGINT) {bids});
             CREATE TABLE file (auction BIGINT, price BIGINT) WITH (connector = 'file', path = '{}', format = 'csv');
             CREATE TABLE t (auction BIGINT, price BIGINT);
             INSERT INTO t VALUES (1001, 10), (1001, 20000), (1002, 30), (NULL, 14), (9, 7000)",
            folder.path().display()
        ))
        .await;
    let (mut taken, mut allowed, mut lost) = (0, 0, 0);
    for case in 0..run::rounds(12, 300) {
        let mut query = Query::drawn(&mut random);
        // The condition that the rows of the stream were counted with, where they still are.
        let mut counted = query.branches.iter().find(|(source, _)| *source == 0).map(|(_, condition)| *condition);
        session.must(&format!("CREATE MATERIALIZED VIEW v AS {}", query.continuous())).await;
        eventually_equal(&session, "v", &query.batch(counted)).await;
        for step in 0..4 {
            let next = query.changed(&mut random);
            let what = format!("case {case}, step {step}: {}", next.continuous());
            let alter = |allow: &str| format!("ALTER MATERIALIZED VIEW v{allow} AS {}", next.continuous());
            match session.execute(&alter("")).await {
                Ok(_) => {
                    taken += usize::from(counted.is_some() && next.reads(0));
                    if !next.reads(0) {
                        // They are no part of the result any more.
                        counted = None;
                    } else if !query.reads(0)
                        && let Some((_, condition)) = next.branches.iter().find(|(source, _)| *source == 0)
                    {
                        // A branch that is new reads it from its beginning.
                        counted = Some(*condition);
                    }
                }
                Err(error) => {
                    assert_eq!(sql_state(&error).as_deref(), Some("55000"), "{what}\n{}", describe(&error));
                    assert!(query.reads(0), "{what}: refused without a stream\n{}", describe(&error));
                    session.must(&alter(" ALLOW NON RESTORED STATE")).await;
                    allowed += 1;
                    lost += usize::from(counted.is_some());
                    counted = None;
                }
            }
            query = next;
            eventually_equal(&session, "v", &query.batch(counted)).await;
            session
                .must(&format!("INSERT INTO t VALUES ({}, {}); DELETE FROM t WHERE price = {}", 1000 + step, 100 * case + step, 100 * case))
                .await;
            session.must("FLUSH").await;
            eventually_equal(&session, "v", &query.batch(counted)).await;
        }
        if case % 4 == 3 {
            server.kill();
            server.set("parallelism", &(1 + random.below(3)).to_string());
            server.restart();
            session = server.connect().await;
            eventually_equal(&session, "v", &query.batch(counted)).await;
        }
        session.must("DROP MATERIALIZED VIEW v").await;
    }
    run::say(&format!("changed streams: {taken} changes kept the stream's rows, {allowed} were to be allowed, {lost} lost them"));
    assert!(taken > 0 && lost > 0 && rows(&session, "SELECT name FROM weir_jobs").await.is_empty());
}
