//! A server that stops: what its clients are told, what becomes of their statements, and that it waits for none of them. And one that starts.
//!
//! The clients are of the plain socket ([`Raw`]): what comes last on a connection, a driver hides.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir::job::engine::Seams;
use weir::server::clients::{self, Server as Clients};

use crate::embedded::{Effect, Embedded, Gate, eventually};
use crate::run;
use crate::server::{PATIENCE, Server, settings};
use crate::wire::{Message, Raw, message, query, run as run_statement, startup, sync, text};

/// A query over `t` that gives rows as long as somebody reads them, and remembers none.
fn endless_rows() -> String {
    (0..6).fold("SELECT id AS x FROM t".to_string(), |inner, at| {
        format!("SELECT a{at}.id + s{at}.x AS x FROM t a{at} CROSS JOIN ({inner}) s{at}")
    })
}

/// One that never gives its row.
fn endless_count() -> String {
    format!("SELECT max(x) AS m FROM ({}) s", endless_rows())
}

/// The last that the server says, which must be this, as FATAL, before it closes the connection.
fn told(raw: &mut Raw, what: &str, state: &str, words: &str) -> Vec<Message> {
    let mut before = Vec::new();
    loop {
        let said = raw.next().unwrap_or_else(|| panic!("{what}: closed without a word after {:?}", before.last()));
        if said.kind != b'E' {
            before.push(said);
            continue;
        }
        let fields = [b'S', b'V', b'C', b'M'].map(|field| said.field(field).unwrap_or_default());
        assert_eq!(fields, ["FATAL", "FATAL", state, words], "{what}");
        assert!(raw.next().is_none(), "{what}: the connection is open");
        return before;
    }
}

/// As [`told`], of the end of a session.
fn terminated(raw: &mut Raw, what: &str) -> Vec<Message> {
    told(raw, what, "57P01", "terminating connection due to administrator command")
}

/// What somebody who connects is told instead of getting a session; `None` where there is one.
fn turned_away(address: SocketAddr) -> Option<(String, String)> {
    let mut raw = Raw::connect(address);
    raw.send(&startup(b"user\0weir\0\0"));
    let said = raw.next().expect("an answer");
    if said.kind != b'E' {
        return None;
    }
    assert_eq!(said.field(b'S').as_deref(), Some("FATAL"));
    assert!(raw.next().is_none(), "the connection is open");
    Some((said.field(b'C').unwrap_or_default(), said.field(b'M').unwrap_or_default()))
}

/// The answer to a message of statements that must all work.
fn must(raw: &mut Raw, sql: &str) -> Vec<Message> {
    raw.send(&query(sql.as_bytes()));
    let (answer, _) = raw.ready();
    if let Some(error) = answer.iter().find(|message| message.kind == b'E') {
        panic!("{sql}: {:?} {:?}", error.field(b'C'), error.field(b'M'));
    }
    answer
}

/// The one value of a query.
fn value(raw: &mut Raw, sql: &str) -> String {
    let answer = must(raw, sql);
    let rows: Vec<&Message> = answer.iter().filter(|message| message.kind == b'D').collect();
    assert_eq!(rows.len(), 1, "{sql}");
    text(&rows[0].body[6..])
}

/// Reads until a message of this kind.
fn read_to(raw: &mut Raw, kind: u8) {
    while raw.next().expect("a message").kind != kind {}
}

#[test]
fn every_client_is_told_and_what_was_not_acknowledged_has_not_happened() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut server = Server::start(&settings(&[("parallelism", "1")]));
        let address = server.address();
        let mut first = Raw::session(address);
        must(&mut first, "CREATE TABLE t (id INT PRIMARY KEY)");
        let ids: Vec<String> = (0..300).map(|id| format!("({id})")).collect();
        must(&mut first, &format!("INSERT INTO t VALUES {}", ids.join(", ")));
        must(&mut first, "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t");

        let session = || Raw::session(address);
        let mut idle = session();
        let mut in_block = session();
        assert_eq!(in_block.ask(&[query(b"BEGIN; INSERT INTO t VALUES (1000)")]), "BEGIN, INSERT 0 1, T");
        let mut failed = session();
        assert_eq!(failed.ask(&[query(b"BEGIN; INSERT INTO t VALUES (1001)")]), "BEGIN, INSERT 0 1, T");
        assert!(failed.ask(&[query(b"SELECT nothing")]).ends_with("42703, E"));
        // A pipeline that waits for its Sync, after an answer that was asked for, and without one.
        let mut pipeline = session();
        pipeline.send(&[run_statement("INSERT INTO t VALUES (1002)"), message(b'H', b"")].concat());
        read_to(&mut pipeline, b'C');
        let mut unanswered = session();
        unanswered.send(&run_statement("INSERT INTO t VALUES (1003)"));
        // A message that has not come whole.
        let mut torn = session();
        torn.send(&query(b"INSERT INTO t VALUES (1004)")[..20]);
        // Statements without an end: in a message with others, in a block, and prepared.
        let mut message_of_two = session();
        message_of_two.send(&query(format!("INSERT INTO t VALUES (1005); {}", endless_count()).as_bytes()));
        let mut counts = session();
        must(&mut counts, "BEGIN; INSERT INTO t VALUES (1006)");
        counts.send(&query(endless_count().as_bytes()));
        let mut prepared = session();
        prepared.send(&[run_statement(&endless_count()), sync()].concat());
        let mut changes = session();
        changes.send(&query(format!("INSERT INTO t SELECT 2000 + m FROM ({}) z", endless_count()).as_bytes()));
        // One that reads its rows, one that does not, and one whose session has not begun.
        let mut reader = session();
        reader.send(&query(endless_rows().as_bytes()));
        read_to(&mut reader, b'D');
        let reader = thread::spawn(move || {
            let rows = terminated(&mut reader, "a reader");
            assert!(rows.iter().all(|row| row.kind == b'D'), "a reader is told of more than rows");
        });
        let mut silent = session();
        silent.send(&query(endless_rows().as_bytes()));
        let _nobody = TcpStream::connect(address).expect("a connection");

        server.signal(signal);
        terminated(&mut idle, "an idle session");
        terminated(&mut in_block, "a session in a block");
        terminated(&mut failed, "a session in a failed block");
        terminated(&mut pipeline, "a pipeline");
        terminated(&mut unanswered, "a pipeline that was not answered");
        terminated(&mut torn, "a message that has not come whole");
        terminated(&mut message_of_two, "a message of two statements");
        terminated(&mut counts, "a statement in a block");
        terminated(&mut prepared, "a prepared statement");
        terminated(&mut changes, "an INSERT without an end");
        terminated(&mut first, "the first session");
        reader.join().expect("the reader");
        assert!(server.stopped(), "{}", server.log_tail());
        assert!(!server.log_tail().contains("panicked"), "{}", server.log_tail());
        drop(silent);

        server.restart();
        let mut after = Raw::session(server.address());
        assert_eq!(value(&mut after, "SELECT count(*) FROM t"), "300");
        must(&mut after, "FLUSH");
        assert_eq!(value(&mut after, "SELECT n FROM v"), "300");
    }
}

/// What a writer knows: the last number whose transaction was acknowledged, and whether the one after it has certainly not happened.
struct Known {
    acknowledged: i64,
    next_is_not: bool,
}

/// Writes pairs of rows, one transaction after another, until the server has gone.
fn write(address: SocketAddr, writer: i64, how: usize, started: &AtomicBool) -> Known {
    let mut known = Known { acknowledged: 0, next_is_not: false };
    let mut raw = Raw::session(address);
    loop {
        let number = known.acknowledged + 1;
        let one = format!("INSERT INTO one VALUES ({writer}, {number})");
        let other = format!("INSERT INTO other VALUES ({writer}, {number})");
        // A block in three messages, one message, a pipeline.
        let messages = match how % 3 {
            0 => vec![query(b"BEGIN"), query(one.as_bytes()), query(other.as_bytes()), query(b"COMMIT")],
            1 => vec![query(format!("{one}; {other}").as_bytes())],
            _ => vec![[run_statement(&one), run_statement(&other), sync()].concat()],
        };
        for message in messages {
            if !sent(&mut raw, &message) {
                return known;
            }
            match answer(&mut raw) {
                Some(None) => {}
                Some(Some(error)) => {
                    assert_eq!(error.field(b'C').as_deref(), Some("57P01"), "{error:?}");
                    known.next_is_not = true;
                    return known;
                }
                None => return known,
            }
        }
        known.acknowledged = number;
        started.store(true, Ordering::SeqCst);
    }
}

/// False where the connection is gone.
fn sent(raw: &mut Raw, bytes: &[u8]) -> bool {
    raw.try_send(bytes).is_ok()
}

/// An answer up to its ReadyForQuery, or its error; `None` where the connection ends without one.
fn answer(raw: &mut Raw) -> Option<Option<Message>> {
    loop {
        let said = raw.try_next().ok().flatten()?;
        match said.kind {
            b'Z' => return Some(None),
            b'E' => return Some(Some(said)),
            _ => {}
        }
    }
}

#[test]
fn writers_can_rely_on_what_they_were_told() {
    let mut random = run::random("shutdown writers");
    let mut server = Server::start(&settings(&[("parallelism", "1")]));
    let mut raw = Raw::session(server.address());
    must(&mut raw, "CREATE TABLE one (w INT, n INT, PRIMARY KEY (w, n))");
    must(&mut raw, "CREATE TABLE other (w INT, n INT, PRIMARY KEY (w, n))");
    must(&mut raw, "CREATE MATERIALIZED VIEW pairs AS SELECT count(*) AS n FROM (SELECT w FROM one UNION ALL SELECT w FROM other) x");
    drop(raw);
    let rounds = run::rounds(5, 100);
    let (mut acknowledged, mut certain) = (0, 0);
    let mut last: BTreeMap<i64, i64> = BTreeMap::new();
    for round in 0..rounds as i64 {
        let address = server.address();
        let writers: Vec<_> = (0..6)
            .map(|at| {
                let started = Arc::new(AtomicBool::new(false));
                let told = started.clone();
                let writer = round * 6 + at;
                (writer, started, thread::spawn(move || write(address, writer, at as usize, &told)))
            })
            .collect();
        let deadline = Instant::now() + PATIENCE;
        while !writers.iter().all(|(_, started, _)| started.load(Ordering::SeqCst)) {
            assert!(Instant::now() < deadline, "round {round}: a writer does not begin");
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_micros(random.below(30_000)));
        server.signal(if round % 2 == 0 { libc::SIGTERM } else { libc::SIGINT });
        let known: Vec<_> = writers.into_iter().map(|(writer, _, joined)| (writer, joined.join().expect("a writer"))).collect();
        assert!(server.stopped(), "round {round}: {}", server.log_tail());
        server.restart();
        let mut raw = Raw::session(server.address());
        for (writer, known) in known {
            let mut found = |table: &str| {
                let count = value(&mut raw, &format!("SELECT count(*) FROM {table} WHERE w = {writer}")).parse::<i64>().expect("a number");
                let most = value(&mut raw, &format!("SELECT max(n) FROM {table} WHERE w = {writer}")).parse::<i64>().expect("a number");
                assert_eq!(count, most, "round {round}: {table} has gaps");
                count
            };
            let (one, other) = (found("one"), found("other"));
            assert_eq!(one, other, "round {round}: writer {writer}: half of a transaction");
            let most = known.acknowledged + i64::from(!known.next_is_not);
            assert!((known.acknowledged..=most).contains(&one), "round {round}: writer {writer}: {one}, and {most} at most were committed");
            acknowledged += known.acknowledged;
            certain += usize::from(known.next_is_not);
            last.insert(writer, one);
        }
        must(&mut raw, "FLUSH");
        assert_eq!(value(&mut raw, "SELECT n FROM pairs"), (2 * last.values().sum::<i64>()).to_string(), "round {round}");
    }
    run::say(&format!("shutdown writers: {rounds} rounds, {acknowledged} acknowledged, {certain} of {} told of their end", last.len()));
    assert!(certain > 0, "nobody was told anything");
}

#[test]
fn a_view_whose_creation_is_ended_is_there_or_is_not() {
    // Its first version would be published in an hour, and so would be a last checkpoint.
    let mut server = Server::start(&settings(&[("parallelism", "1"), ("shutdown_timeout", "1 s")]));
    let (mut raw, mut creator) = (Raw::session(server.address()), Raw::session(server.address()));
    must(&mut raw, "CREATE TABLE t (id INT PRIMARY KEY)");
    must(&mut raw, "INSERT INTO t VALUES (1), (2)");
    must(&mut raw, "SET barrier_interval = '1 h'");
    must(&mut raw, "SET min_barrier_interval = '1 h'");
    creator.send(&query(b"CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t"));
    let deadline = Instant::now() + PATIENCE;
    while value(&mut raw, "SELECT count(*) FROM weir_jobs WHERE name = 'v'") != "1" {
        assert!(Instant::now() < deadline, "it does not begin");
        thread::sleep(Duration::from_millis(10));
    }
    server.signal(libc::SIGTERM);
    terminated(&mut creator, "who creates a view");
    assert!(server.stopped(), "{}", server.log_tail());
    server.restart();
    let mut raw = Raw::session(server.address());
    if value(&mut raw, "SELECT count(*) FROM weir_relations WHERE name = 'v'") == "1" {
        must(&mut raw, "DROP MATERIALIZED VIEW v");
    }
    must(&mut raw, "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t");
    assert_eq!(value(&mut raw, "SELECT n FROM v"), "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_connects_while_the_server_starts_or_stops_is_told_so() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let listener = clients::listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a socket");
    let address = listener.local_addr().expect("an address");
    let server = Arc::new(Clients::start(listener));
    let answered = move || tokio::task::spawn_blocking(move || turned_away(address));
    let is = |answer: Option<(String, String)>, message: &str| answer == Some(("57P03".into(), message.into()));
    for _ in 0..3 {
        let answer = answered().await.expect("no panic");
        assert!(is(answer.clone(), "the database system is starting up"), "{answer:?}");
    }
    let gate = Arc::new(Gate::default());
    let mut weir =
        Embedded::open_with(folder.path(), &[("parallelism", "1"), ("shutdown_timeout", "10 min")], gate.clone(), Seams::default()).await;
    server.open(weir.engine.clone()).expect("sessions");
    assert_eq!(answered().await.expect("no panic"), None);
    weir.must("CREATE TABLE t (id INT PRIMARY KEY)").await;
    weir.must("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t").await;
    let before = tokio::task::spawn_blocking(move || {
        let mut raw = Raw::session(address);
        must(&mut raw, "INSERT INTO t VALUES (1)");
        raw
    });
    let mut before = before.await.expect("a session");
    // The last checkpoint does not end.
    gate.add("last", "rename", &["/checkpoints/"], Effect::Hold);
    let stopping = tokio::spawn({
        let (server, engine) = (server.clone(), weir.engine.clone());
        async move { server.shut_down(&engine).await }
    });
    tokio::task::spawn_blocking(move || terminated(&mut before, "a session of before")).await.expect("no panic");
    eventually("the last checkpoint has begun", || gate.met("last") > 0).await;
    for _ in 0..3 {
        let answer = answered().await.expect("no panic");
        assert!(is(answer.clone(), "the database system is shutting down"), "{answer:?}");
    }
    assert!(!stopping.is_finished(), "it has not waited for its last checkpoint");
    gate.remove("last");
    stopping.await.expect("it stops");
    drop(server);
    weir.close().await;
    let mut weir = Embedded::open(folder.path(), &[("parallelism", "1")]).await;
    assert_eq!(weir.count("SELECT count(*) FROM t").await, 1);
    weir.close().await;
}

/// The same of the program itself: nothing it does at its start is between its port and its clients.
#[test]
fn the_port_answers_before_the_data_folder_is_open() {
    let mut server = Server::start(&settings(&[("parallelism", "1")]));
    must(&mut Raw::session(server.address()), "CREATE TABLE t (id INT PRIMARY KEY)");
    assert!(server.stop(), "{}", server.log_tail());
    // Who opens the folder waits until somebody writes what it reads first.
    let path = server.data_dir().join("FORMAT");
    let content = std::fs::read(&path).expect("the folder's format");
    std::fs::remove_file(&path).expect("it can be removed");
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: a plain system call on a path of this test's own.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0, "{}", std::io::Error::last_os_error());
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "the server does not start:\n{}", server.log_tail());
        // Another process may take the port that was free a moment ago: then the server ends.
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
        server.start_opening(free);
        let said = loop {
            if !server.is_running() {
                break None;
            }
            // The port is not open yet.
            if TcpStream::connect(free).is_ok() {
                break turned_away(free);
            }
            assert!(Instant::now() < deadline, "the port does not open:\n{}", server.log_tail());
            thread::sleep(Duration::from_millis(5));
        };
        if server.is_running() {
            assert_eq!(said, Some(("57P03".into(), "the database system is starting up".into())));
            break;
        }
    }
    std::fs::write(&path, content).expect("what it reads");
    while turned_away(server.address()).is_some() {
        assert!(Instant::now() < deadline, "it does not open:\n{}", server.log_tail());
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(value(&mut Raw::session(server.address()), "SELECT count(*) FROM t"), "0");
}

#[test]
fn a_stop_ends_although_nobody_reads() {
    let mut server = Server::start(&settings(&[("parallelism", "1")]));
    let mut raw = Raw::session(server.address());
    must(&mut raw, "CREATE TABLE t (id INT PRIMARY KEY)");
    let ids: Vec<String> = (0..300).map(|id| format!("({id})")).collect();
    must(&mut raw, &format!("INSERT INTO t VALUES {}", ids.join(", ")));
    let mut silent: Vec<TcpStream> = Vec::new();
    for _ in 0..4 {
        let mut raw = Raw::session(server.address());
        raw.send(&query(endless_rows().as_bytes()));
        silent.push(raw.into_stream());
    }
    // Its rows fill what is between the two.
    let mut first = [0];
    silent[0].read_exact(&mut first).expect("a row's first byte");
    assert!(server.stop(), "{}", server.log_tail());
    for mut stream in silent {
        // What was on its way, and then the end.
        if let Err(error) = stream.read_to_end(&mut Vec::new()) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        }
    }
    server.restart();
    assert_eq!(value(&mut Raw::session(server.address()), "SELECT count(*) FROM t"), "300");
}
