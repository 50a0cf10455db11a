//! Execute messages: a portal's rows as they come, all or some at a time, and what becomes of portals at errors and at the end of transactions.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::reference::Reference;
use crate::run;
use crate::server::{PATIENCE, Server, describe, settings, sql_state};
use crate::wire::{Raw, message, query, run as run_statement, sync, text};

fn parse(sql: &str) -> Vec<u8> {
    message(b'P', format!("\0{sql}\0\0\0").as_bytes())
}

/// Binds the statement prepared last to a portal.
fn bind(portal: &str) -> Vec<u8> {
    message(b'B', format!("{portal}\0\0\0\0\0\0\0\0").as_bytes())
}

fn execute(portal: &str, most: i32) -> Vec<u8> {
    message(b'E', &[portal.as_bytes(), b"\0", &most.to_be_bytes()].concat())
}

fn close(portal: &str) -> Vec<u8> {
    message(b'C', format!("P{portal}\0").as_bytes())
}

/// What a session with portals gives, the same on every system.
fn conversation<S: Read + Write>(raw: &mut Raw<S>) -> Vec<String> {
    let numbers = "SELECT a FROM t ORDER BY a";
    let mut answers = Vec::new();
    let mut ask = |sent: &[Vec<u8>]| answers.push(raw.ask(sent));
    ask(&[query(b"CREATE TABLE t (a INT PRIMARY KEY)")]);
    ask(&[query(b"INSERT INTO t VALUES (1), (2), (3), (4), (5)")]);
    // All of them, however that is said.
    for most in [0, -1, i32::MIN, i32::MAX, 6] {
        ask(&[parse(numbers), bind(""), execute("", most), sync()]);
    }
    // Some at a time: exactly so many leave it open, and the end is told once there is nothing more; then again.
    let parts = [execute("p", 2), execute("p", 2), execute("p", 2), execute("p", 2), execute("p", 0)].concat();
    ask(&[parse(numbers), bind("p"), parts, sync()]);
    ask(&[parse(numbers), bind("p"), execute("p", 5), execute("p", 5), execute("p", 5), sync()]);
    // Two at a time, and one bound anew.
    let turns = [execute("p", 1), execute("q", 2), execute("p", 1), execute("q", 0), execute("p", 0)].concat();
    ask(&[parse(numbers), bind("p"), parse("SELECT a * 10 FROM t ORDER BY a"), bind("q"), turns, sync()]);
    ask(&[parse(numbers), bind(""), execute("", 1), bind(""), execute("", 1), sync()]);
    // They see nothing of what comes after them.
    let insert = run_statement("INSERT INTO t VALUES (6)");
    ask(&[parse(numbers), bind("p"), execute("p", 1), insert, execute("p", 0), sync()]);
    ask(&[query(b"DELETE FROM t WHERE a = 6")]);
    // A Sync ends the transaction, and with it all portals; not so in a block.
    ask(&[parse(numbers), bind("p"), execute("p", 1), sync()]);
    ask(&[execute("p", 1), sync()]);
    ask(&[query(b"BEGIN")]);
    ask(&[parse(numbers), bind("p"), execute("p", 1), sync()]);
    ask(&[execute("p", 1), sync()]);
    ask(&[query(b"SELECT 7")]);
    ask(&[execute("p", 1), sync()]);
    ask(&[close("p"), execute("p", 1), sync()]);
    ask(&[query(b"ROLLBACK")]);
    for end in ["COMMIT", "ROLLBACK"] {
        ask(&[query(b"BEGIN")]);
        ask(&[parse(numbers), bind("p"), execute("p", 1), run_statement(end), execute("p", 1), sync()]);
        ask(&[execute("p", 1), sync()]);
    }
    // An error among the rows, or of another statement, fails the block and its portals.
    ask(&[query(b"BEGIN")]);
    ask(&[parse("SELECT 10 / (a - 3) FROM t"), bind("p"), execute("p", 0), sync()]);
    ask(&[execute("p", 0), sync()]);
    ask(&[query(b"ROLLBACK")]);
    ask(&[query(b"BEGIN")]);
    ask(&[parse(numbers), bind("p"), execute("p", 1), sync()]);
    ask(&[query(b"SELECT 1 / 0")]);
    ask(&[execute("p", 1), sync()]);
    ask(&[query(b"SELECT count(*) FROM pg_class")]);
    ask(&[run_statement("ROLLBACK"), sync()]);
    // What gives no rows is run once.
    ask(&[parse("INSERT INTO t VALUES (9)"), bind("p"), execute("p", 0), execute("p", 0), sync()]);
    ask(&[parse("INSERT INTO t VALUES (9)"), bind(""), execute("", 1), execute("", 1), sync()]);
    ask(&[parse(""), bind(""), execute("", 0), execute("", 0), sync()]);
    ask(&[query(b"SELECT count(*) FROM t")]);
    ask(&[parse("SHOW timezone"), bind(""), execute("", 0), sync()]);
    ask(&[query(b"DROP TABLE t")]);
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn portals_give_what_they_give_on_postgresql() {
    let server = Server::start(&settings(&[]));
    let answers = conversation(&mut Raw::session(server.address()));
    assert_eq!(answers[2..7], ["1, 2, 3, 4, 5, SELECT 5, I"; 5]);
    assert_eq!(answers[7], "1, 2, suspended, 3, 4, suspended, 5, SELECT 1, SELECT 0, SELECT 0, I");
    assert_eq!(answers[8], "1, 2, 3, 4, 5, suspended, SELECT 0, SELECT 0, I");
    match Reference::start() {
        Ok(reference) => {
            drop(reference.database("portals").await);
            let expected = conversation(&mut Raw::on_reference(&reference, "portals"));
            for (at, (answer, expected)) in answers.iter().zip(&expected).enumerate() {
                // Where an error comes among the rows is each system's own.
                let last = |answer: &str| answer.rsplit(", ").take(2).collect::<Vec<_>>().join(", ");
                let (answer, expected) =
                    if expected.contains("22012") { (last(answer), last(expected)) } else { (answer.clone(), expected.clone()) };
                assert_eq!(answer, expected, "message {at}");
            }
        }
        Err(reason) => run::skip("portals on PostgreSQL", &reason),
    }
}

/// Cancel requests end the Execute under way, its rows included, and no later one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_request_meets_one_execute() {
    let server = Server::start(&settings(&[]));
    let mut session = server.connect().await;
    session.must("CREATE TABLE t (a INT PRIMARY KEY)").await;
    let values: Vec<String> = (0..2_000).map(|a| format!("({a})")).collect();
    session.must(&format!("INSERT INTO t VALUES {}", values.join(", "))).await;
    let canceller = session.canceller();
    {
        let client = session.client();
        let endless = client.prepare("SELECT x.a FROM t x, t y, t z, t w WHERE x.a + y.a + z.a + w.a < 0").await.expect("a statement");
        let mut running = std::pin::pin!(client.query(&endless, &[]));
        let ended = loop {
            tokio::select! {
                ended = &mut running => break ended,
                () = tokio::time::sleep(Duration::from_millis(100)) => canceller.cancel().await,
            }
        };
        let error = ended.expect_err("it does not end by itself");
        assert_eq!(sql_state(&error).as_deref(), Some("57014"), "{}", describe(&error));
    }
    // Between two Executes nothing runs that it could end.
    let transaction = session.client_mut().transaction().await.expect("a transaction");
    let portal = transaction.bind("SELECT a FROM t ORDER BY a", &[]).await.expect("a portal");
    assert_eq!(transaction.query_portal(&portal, 1_500).await.expect("rows").len(), 1_500);
    canceller.cancel().await;
    let rows = transaction.query_portal(&portal, 1_500).await.unwrap_or_else(|error| panic!("{}", describe(&error)));
    assert_eq!(rows.iter().map(|row| row.get::<_, i32>(0)).collect::<Vec<_>>(), (1_500..2_000).collect::<Vec<_>>());
    transaction.commit().await.expect("it is committed");
}

/// Waits until the server's memory stays as it is.
fn settled(server: &Server) {
    let deadline = Instant::now() + PATIENCE;
    let mut last = server.memory().0;
    loop {
        std::thread::sleep(Duration::from_millis(300));
        let now = server.memory().0;
        if now.abs_diff(last) < 1 << 20 || Instant::now() > deadline {
            return;
        }
        last = now;
    }
}

/// A client that takes rows slowly, or not at all, slows the query down: what the server holds does not grow with the result.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_not_gathered_before_they_are_sent() {
    const SIDE: usize = 700;
    const WIDTH: usize = 1_000;
    const MOST_GROWTH: u64 = 200 << 20;
    let server = Server::start(&settings(&[]));
    let session = server.connect().await;
    session.must("CREATE TABLE t (a INT PRIMARY KEY)").await;
    let values: Vec<String> = (0..SIDE).map(|a| format!("({a})")).collect();
    session.must(&format!("INSERT INTO t VALUES {}", values.join(", "))).await;
    let sql = format!("SELECT x.a * {SIDE} + y.a, repeat('x', {WIDTH}) FROM t x, t y");
    assert!((SIDE * SIDE * WIDTH) as u64 > 2 * MOST_GROWTH, "a result that is gathered would show");
    let ask: [(&str, Vec<u8>); 3] = [
        ("simple", query(sql.as_bytes())),
        ("extended", [run_statement(&sql), sync()].concat()),
        ("in parts", [parse(&sql), bind(""), execute("", i32::MAX), sync()].concat()),
    ];
    for (name, sent) in ask {
        let mut raw = Raw::session(server.address());
        server.forget_peak();
        let before = server.memory().0;
        raw.send(&sent);
        let (mut rows, mut sum) = (0, 0);
        while let Some(message) = raw.next().filter(|message| message.kind != b'Z') {
            match message.kind {
                b'D' => {
                    let digits = message.body[2..6].try_into().map(u32::from_be_bytes).expect("a length") as usize;
                    let number: usize = text(&message.body[6..6 + digits]).parse().expect("a number");
                    assert_eq!(message.body.len(), 2 + 4 + digits + 4 + WIDTH);
                    (rows, sum) = (rows + 1, sum + number);
                    if rows == 1 || rows == SIDE * SIDE / 2 {
                        settled(&server);
                    }
                }
                b'E' => panic!("{name}: {message:?}"),
                b'C' => assert_eq!(text(&message.body), format!("SELECT {}", SIDE * SIDE), "{name}"),
                _ => {}
            }
        }
        assert_eq!((rows, sum), (SIDE * SIDE, SIDE * SIDE * (SIDE * SIDE - 1) / 2), "{name}");
        let growth = server.memory().1.saturating_sub(before);
        assert!(growth < MOST_GROWTH, "{name}: {} MiB more for a result of {} MiB", growth >> 20, (SIDE * SIDE * WIDTH) >> 20);
    }
}
