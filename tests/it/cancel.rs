//! Cancel requests, wherever they meet a statement: what they end is ended whole, and soon.

use std::pin::pin;
use std::time::{Duration, Instant};

use crate::run;
use crate::server::{PATIENCE, Server, Session, describe, settings, sql_state};

/// Runs `sql` and asks for its end after `delay`. Its SQLSTATE; `00000` where it was done first.
async fn cancelled(session: &Session, sql: &str, delay: Duration) -> String {
    let canceller = session.canceller();
    let canceller = tokio::spawn(async move {
        tokio::time::sleep(delay).await;
        canceller.cancel().await;
    });
    let answer = session.execute(sql).await;
    canceller.await.expect("the canceller does not panic");
    match answer {
        Ok(_) => "00000".into(),
        Err(error) => sql_state(&error).unwrap_or_else(|| panic!("{sql}: {}", describe(&error))),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_whose_creation_is_cancelled_is_there_or_is_not() {
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let (session, looker) = (server.connect().await, server.connect().await);
    session
        .must("CREATE TABLE bid (auction BIGINT, price BIGINT) WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '2000')")
        .await;
    session.must("CREATE TABLE t (id INT PRIMARY KEY)").await;
    let mut random = run::random("cancelled create");
    let rounds = run::rounds(60, 1_000);
    let (mut created, mut ended) = (0, 0);
    for round in 0..rounds {
        let within_us = if round % 4 == 3 { 2_000_000 } else { 40_000 };
        let delay = Duration::from_micros(random.below(within_us));
        let id = 1 + round as i64;
        let in_block = round % 3 == 2;
        if in_block {
            session.must(&format!("BEGIN; INSERT INTO t VALUES ({id})")).await;
        }
        let create = "CREATE MATERIALIZED VIEW m AS SELECT auction, count(*) AS n FROM bid GROUP BY auction";
        let state = if in_block {
            session.must(create).await;
            cancelled(&session, "COMMIT", delay).await
        } else {
            cancelled(&session, create, delay).await
        };
        // At once, and for another session too.
        let there = looker.must_count("SELECT count(*) FROM weir_relations WHERE name = 'm'").await == 1;
        let jobs = looker.must_count("SELECT count(*) FROM weir_jobs WHERE name = 'm'").await;
        match state.as_str() {
            "00000" if in_block => created += i64::from(there),
            "00000" => {
                assert!(there, "round {round}: what was acknowledged is not there");
                created += 1;
            }
            "57014" => {
                assert!(!there, "round {round}: it was cancelled and is there");
                ended += 1;
            }
            other => panic!("round {round}: {other}"),
        }
        if in_block {
            // A COMMIT is there or is not, whether or not it could wait for the view.
            assert_eq!(looker.must_count(&format!("SELECT count(*) FROM t WHERE id = {id}")).await, i64::from(state == "00000"));
            // A request that came before the COMMIT began has failed the block.
            session.execute("ROLLBACK").await.expect("there is nothing, or a failed block");
        }
        if there {
            looker.must_count("SELECT count(*) FROM m").await;
            session.must("DROP MATERIALIZED VIEW m").await;
        } else {
            assert_eq!(jobs, 0, "round {round}: a job without its view");
        }
        looker.must("FLUSH").await;
    }
    run::say(&format!("cancelled create: {rounds} rounds, {created} created, {ended} cancelled"));
    assert!(ended > 0, "no request came in time");
    // Nothing is left of those that were cancelled.
    let scratch = server.data_dir().join("scratch");
    let names = || -> Vec<String> {
        let entries = std::fs::read_dir(&scratch).expect("the scratch folder");
        entries
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .filter(|name| name != "tables" && name != "queries")
            .collect()
    };
    let deadline = Instant::now() + PATIENCE;
    while !names().is_empty() {
        assert!(Instant::now() < deadline, "left behind: {:?}", names());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_is_cancelled_in_a_block_fails_the_block() {
    let server = Server::start(&settings(&[]));
    let session = server.connect().await;
    session.must("CREATE TABLE t (id INT PRIMARY KEY)").await;
    session.must("INSERT INTO t VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)").await;
    session.must("BEGIN; INSERT INTO t VALUES (10)").await;
    let endless =
        "UPDATE t SET id = id + (SELECT count(*) FROM t a, t b, t c, t d, t e, t f, t g, t h, t i, t j, t k WHERE a.id + k.id > 3)";
    assert_eq!(session.ended(endless, Duration::from_millis(300)).await, "57014");
    let error = session.execute("INSERT INTO t VALUES (11)").await.expect_err("the block has failed");
    assert_eq!(sql_state(&error).as_deref(), Some("25P02"), "{}", describe(&error));
    session.must("ROLLBACK").await;
    assert_eq!(session.must_count("SELECT count(*) FROM t").await, 10);
}

/// One batch of this takes seconds to make.
const DEAR: &str = "SELECT max(length(repeat(repeat('Zoë', 1000), 1 + s::int % 4))) FROM (SELECT a.id * b.id AS s FROM t a, t b) x";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_are_answered_while_batches_are_dear_and_a_cancel_too() {
    let server = Server::start(&settings(&[]));
    let session = server.connect().await;
    session.must("CREATE TABLE t (id INT PRIMARY KEY)").await;
    let values: Vec<String> = (0..900).map(|id| format!("({id})")).collect();
    session.must(&format!("INSERT INTO t VALUES {}", values.join(", "))).await;
    // As many as there are threads, and more.
    let mut sessions = Vec::new();
    for _ in 0..4 {
        sessions.push(server.connect().await);
    }
    let dear = futures::future::join_all(sessions.iter().map(|session| session.ended(DEAR, Duration::from_millis(200))));
    let others = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        // Connecting, and what needs no query's thread, goes on.
        server.connect().await.must("SHOW timezone").await;
    };
    let (dear, ()) = tokio::join!(dear, others);
    assert_eq!(dear, ["57014"; 4]);
    assert_eq!(session.must_count("SELECT count(*) FROM t").await, 900);
}

/// Asks for the rows of `sql` in a session of its own. Its SQLSTATE; `00000` where it has an answer.
fn ask(server: &Server, sql: &'static str) -> impl Future<Output = String> + use<> {
    let connecting = Session::open(server.address());
    let asking = tokio::spawn(async move {
        let session = connecting.await.unwrap_or_else(|error| panic!("{}", describe(&error)));
        match session.execute(sql).await {
            Ok(_) => "00000".into(),
            Err(error) => sql_state(&error).unwrap_or_else(|| panic!("{sql}: {}", describe(&error))),
        }
    });
    async { asking.await.expect("a reader does not panic") }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_view_is_told_when_it_goes() {
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let (session, creator) = (server.connect().await, server.connect().await);
    session.must("CREATE TABLE t (id INT PRIMARY KEY)").await;
    session.must("INSERT INTO t VALUES (1)").await;
    session.must("CREATE MATERIALIZED VIEW quick AS SELECT count(*) AS n FROM t").await;
    // Nothing is published any more: whoever waits for a new view waits until the test is over.
    session.must("SET barrier_interval = '1 h'").await;
    session.must("SET min_barrier_interval = '1 h'").await;
    for end in ["DROP MATERIALIZED VIEW slow", "DROP TABLE bid CASCADE", "cancel"] {
        session.must("CREATE TABLE bid (auction BIGINT)").await;
        let canceller = creator.canceller();
        let creating = creator.execute("CREATE MATERIALIZED VIEW slow AS SELECT auction, count(*) AS n FROM bid GROUP BY auction");
        let ending = async {
            let deadline = Instant::now() + PATIENCE;
            while session.must_count("SELECT count(*) FROM weir_jobs WHERE name = 'slow'").await == 0 {
                assert!(Instant::now() < deadline, "{end}: it does not begin");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let readers = ["SELECT count(*) FROM slow", "SELECT count(*) FROM slow, quick", "INSERT INTO t SELECT n FROM slow"];
            let reading = readers.map(|sql| tokio::spawn(ask(&server, sql)));
            // Time to come to where they wait; one that comes later finds no view, which is the same to it.
            tokio::time::sleep(Duration::from_millis(300)).await;
            match end {
                "cancel" => canceller.cancel().await,
                statement => drop(session.must(statement).await),
            }
            for (reader, sql) in reading.into_iter().zip(readers) {
                assert_eq!(reader.await.expect("a reader does not panic"), "42P01", "{end}: {sql}");
            }
        };
        let (created, ()) = tokio::join!(creating, ending);
        created.expect_err("it was ended before it had published");
        session.must("DROP TABLE IF EXISTS bid").await;
        assert_eq!(session.must_count("SELECT n FROM quick").await, 1, "{end}");
    }
}

/// Prepares `sql`, asks for the end of that, and again until it has one. Its SQLSTATE; `00000` where it was prepared.
async fn preparing_ended(session: &Session, sql: &str, delay: Duration) -> String {
    let canceller = session.canceller();
    let mut preparing = pin!(session.client().prepare(sql));
    loop {
        tokio::select! {
            answer = &mut preparing => return match answer {
                Ok(_) => "00000".into(),
                Err(error) => sql_state(&error).unwrap_or_else(|| panic!("{}", describe(&error))),
            },
            () = tokio::time::sleep(delay) => canceller.cancel().await,
        }
    }
}

/// Planning that is not waited for goes on by itself: a statement that is planned as long as those that are cancelled is not done before them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_is_cancelled_while_it_is_planned() {
    let server = Server::start(&settings(&[("parallelism", "1")]));
    let session = server.connect().await;
    session.must("CREATE TABLE t (id INT PRIMARY KEY)").await;
    session.must("CREATE TABLE u (n BIGINT)").await;
    let delay = Duration::from_millis(50);
    // Longer ones where the moment has passed.
    for terms in [30, 60, 120, 180] {
        let columns: Vec<String> = (0..1500).map(|at| format!("{} AS c{at}", vec!["id"; terms].join(" + "))).collect();
        let wide = format!("SELECT {} FROM t", columns.join(", "));
        let other = server.connect().await;
        let (ends_it, to_plan) = (other.canceller(), wide.clone());
        let planned = tokio::spawn(async move { other.execute(&to_plan).await.map(|_| ()).map_err(|error| sql_state(&error)) });
        let create = format!("CREATE MATERIALIZED VIEW v AS {wide}");
        let insert = format!("INSERT INTO u SELECT count(c1) FROM ({wide}) s");
        let mut states = vec![preparing_ended(&session, &wide, delay).await];
        for sql in [&wide, &create, &insert] {
            states.push(session.ended(sql, delay).await);
        }
        let is_done = planned.is_finished();
        ends_it.cancel().await;
        let planned = planned.await.expect("no panic");
        assert!(planned.is_ok() || planned == Err(Some("57014".into())), "{planned:?}");
        assert_eq!(session.must_count("SELECT count(*) FROM weir_relations WHERE name = 'v'").await, 0);
        assert_eq!(session.must_count("SELECT count(*) FROM u").await, 0);
        if !is_done {
            assert_eq!(states, ["57014"; 4]);
            return;
        }
    }
    panic!("statements are cancelled when they are planned, not before");
}
