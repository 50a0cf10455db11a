//! The protocol byte by byte: pipelines, text that is none, messages that are not laid out as they should be, and how a session begins.
//!
//! Drivers send none of this, or hide what comes back, so a client of few lines talks over a plain socket.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;

use crate::reference::Reference;
use crate::server::{PATIENCE, Server, settings};

/// A message from the server: its kind and what is in it.
#[derive(Debug)]
pub struct Message {
    pub kind: u8,
    pub body: Vec<u8>,
}

impl Message {
    /// A field of an error or a notice.
    pub fn field(&self, field: u8) -> Option<String> {
        let mut fields = self.body.split(|byte| *byte == 0);
        fields.find(|text| text.first() == Some(&field)).map(|text| String::from_utf8_lossy(&text[1..]).into_owned())
    }
}

/// A connection without a driver.
pub struct Raw<S = TcpStream>(S);

impl Raw {
    pub fn connect(address: SocketAddr) -> Raw {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Raw(stream)
    }

    /// A session that has begun.
    pub fn session(address: SocketAddr) -> Raw {
        let mut raw = Raw::connect(address);
        raw.begin("weir");
        raw
    }

    /// The connection itself.
    pub fn into_stream(self) -> TcpStream {
        self.0
    }
}

impl Raw<UnixStream> {
    /// A session on a database of a real PostgreSQL.
    pub fn on_reference(reference: &Reference, database: &str) -> Raw<UnixStream> {
        let stream = UnixStream::connect(reference.socket_folder().join(".s.PGSQL.5432")).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut raw = Raw(stream);
        raw.begin(database);
        raw
    }
}

impl<S: Read + Write> Raw<S> {
    fn begin(&mut self, database: &str) {
        self.send(&startup(format!("user\0weir\0database\0{database}\0\0").as_bytes()));
        assert_eq!(self.ready().1, b'I');
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("the server takes it");
    }

    /// As [`Raw::send`], on a connection that may be gone.
    pub fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_all(bytes)
    }

    /// The next message; `None` where the server has closed the connection.
    pub fn next(&mut self) -> Option<Message> {
        self.try_next().unwrap_or_else(|error| panic!("the connection has no end: {error}"))
    }

    /// As [`Raw::next`], on a connection that may break.
    pub fn try_next(&mut self) -> std::io::Result<Option<Message>> {
        let mut head = [0; 5];
        match self.0.read_exact(&mut head) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize - 4;
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        Ok(Some(Message { kind: head[0], body }))
    }

    /// The messages up to the next ReadyForQuery, and where the session stands with transactions.
    pub fn ready(&mut self) -> (Vec<Message>, u8) {
        let mut messages = Vec::new();
        loop {
            let message = self.next().unwrap_or_else(|| panic!("closed after {messages:?}"));
            if message.kind == b'Z' {
                return (messages, message.body[0]);
            }
            messages.push(message);
        }
    }

    /// What `sent` gives, in short: command tags, the first column of rows, SQLSTATEs of errors and notices; and the status.
    pub fn ask(&mut self, sent: &[Vec<u8>]) -> String {
        self.send(&sent.concat());
        let (messages, status) = self.ready();
        let shown = messages.iter().filter_map(|message| match message.kind {
            b'C' => Some(text(&message.body)),
            b'D' => Some(text(&message.body[6..])),
            b's' => Some("suspended".into()),
            b'E' => Some(message.field(b'C').expect("an error has a code")),
            b'N' => Some(format!("notice {}", message.field(b'C').expect("a notice has a code"))),
            _ => None,
        });
        shown.chain([(status as char).to_string()]).collect::<Vec<_>>().join(", ")
    }

    /// The one error that comes back, after which the connection is closed.
    pub fn sent_away(mut self, sent: &[u8]) -> Message {
        self.send(sent);
        let error = self.next().expect("an error");
        assert_eq!(error.kind, b'E', "{error:?}");
        assert_eq!((error.field(b'S').as_deref(), error.field(b'V').as_deref()), (Some("FATAL"), Some("FATAL")));
        assert!(self.next().is_none(), "the connection is open after {error:?}");
        error
    }
}

/// What a message has as text, without the zero that ends it.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.strip_suffix(b"\0").unwrap_or(bytes)).into_owned()
}

/// A message of the client.
pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

/// The packet that begins a session.
pub fn startup(parameters: &[u8]) -> Vec<u8> {
    let version = 196_608u32.to_be_bytes();
    [&(parameters.len() as u32 + 8).to_be_bytes()[..], &version, parameters].concat()
}

/// A simple query.
pub fn query(sql: &[u8]) -> Vec<u8> {
    message(b'Q', &[sql, b"\0"].concat())
}

/// A Sync.
pub fn sync() -> Vec<u8> {
    message(b'S', b"")
}

/// Parse, Bind and Execute of a statement.
pub fn run(sql: &str) -> Vec<u8> {
    let parse = message(b'P', format!("\0{sql}\0\0\0").as_bytes());
    [parse, message(b'B', b"\0\0\0\0\0\0\0\0"), message(b'E', b"\0\0\0\0\0")].concat()
}

/// As [`run`], with one parameter, text or binary.
fn run_with(sql: &str, value: &[u8], format: u8) -> Vec<u8> {
    let parse = message(b'P', format!("\0{sql}\0\0\0").as_bytes());
    let bind = [&[0, 0, 0, 1, 0, format, 0, 1][..], &(value.len() as u32).to_be_bytes(), value, &[0, 0]].concat();
    [parse, message(b'B', &bind), message(b'E', b"\0\0\0\0\0")].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_up_to_a_sync_is_one_transaction() {
    let server = Server::start(&settings(&[]));
    let mut raw = Raw::session(server.address());
    let look = server.connect().await;
    let rows = async || look.must_count("SELECT coalesce(sum(a), 0) FROM t").await;
    assert_eq!(raw.ask(&[query(b"CREATE TABLE t (a INT PRIMARY KEY)")]), "CREATE TABLE, I");

    // An error undoes what came before it, and what comes after it is not looked at.
    let failing = [run("INSERT INTO t VALUES (1)"), run("SELECT 1/0"), run("INSERT INTO t VALUES (2)"), sync()];
    assert_eq!(raw.ask(&failing), "INSERT 0 1, 22012, I");
    let twice = [run("INSERT INTO t VALUES (10)"), run("INSERT INTO t VALUES (10)"), sync()];
    assert_eq!(raw.ask(&twice), "INSERT 0 1, 23505, I");
    assert_eq!(raw.ask(&[run("INSERT INTO t VALUES (3)"), run("SELEC 1"), sync()]), "INSERT 0 1, 42601, I");
    assert_eq!(raw.ask(&[run("INSERT INTO t VALUES (3)"), message(b'E', b"none\0\0\0\0\0"), sync()]), "INSERT 0 1, 34000, I");
    assert_eq!(rows().await, 0);
    // Without one, all of it is there, and its statements see one another.
    let both = [run("INSERT INTO t VALUES (1)"), run("INSERT INTO t VALUES (2)"), run("SELECT sum(a) FROM t"), sync()];
    assert_eq!(raw.ask(&both), "INSERT 0 1, INSERT 0 1, 3, SELECT 1, I");
    assert_eq!(rows().await, 3);
    // Nobody sees any of it before the Sync.
    raw.send(&[run("DELETE FROM t"), message(b'H', b"")].concat());
    let deleted = (0..).map(|_| raw.next().expect("an answer")).find(|message| message.kind == b'C').expect("an answer");
    assert_eq!(text(&deleted.body), "DELETE 2");
    assert_eq!(rows().await, 3);
    assert_eq!(raw.ask(&[sync()]), "I");
    assert_eq!(rows().await, 0);

    // A block takes in what came before its BEGIN.
    let begun = [run("INSERT INTO t VALUES (1)"), run("BEGIN"), run("INSERT INTO t VALUES (2)"), sync()];
    assert_eq!(raw.ask(&begun), "INSERT 0 1, BEGIN, INSERT 0 1, T");
    assert_eq!(rows().await, 0);
    assert_eq!(raw.ask(&[run("INSERT INTO t VALUES (1)"), sync()]), "23505, E");
    assert_eq!(raw.ask(&[run("ROLLBACK"), sync()]), "ROLLBACK, I");
    assert_eq!(rows().await, 0);
    let ended = [run("START TRANSACTION"), run("INSERT INTO t VALUES (1)"), run("COMMIT"), run("SELECT 1/0"), sync()];
    assert_eq!(raw.ask(&ended), "START TRANSACTION, INSERT 0 1, COMMIT, 22012, I");
    assert_eq!(rows().await, 1);
    // COMMIT and ROLLBACK end it as well, with a warning.
    let committed = [run("INSERT INTO t VALUES (2)"), run("COMMIT"), run("SELECT 1/0"), sync()];
    assert_eq!(raw.ask(&committed), "INSERT 0 1, notice 25P01, COMMIT, 22012, I");
    let rolled_back = [run("INSERT INTO t VALUES (4)"), run("ROLLBACK"), run("INSERT INTO t VALUES (8)"), sync()];
    assert_eq!(raw.ask(&rolled_back), "INSERT 0 1, notice 25P01, ROLLBACK, INSERT 0 1, I");
    assert_eq!(rows().await, 11);

    // What can't be a part of a transaction runs first, or not at all.
    assert_eq!(raw.ask(&[run("FLUSH"), run("INSERT INTO t VALUES (16)"), sync()]), "FLUSH, INSERT 0 1, I");
    for alone in ["FLUSH", "CHECKPOINT", "DISCARD ALL"] {
        assert_eq!(raw.ask(&[run("INSERT INTO t VALUES (32)"), run(alone), sync()]), "INSERT 0 1, 25001, I", "{alone}");
    }
    assert_eq!(raw.ask(&[run("FLUSH"), sync()]), "FLUSH, I");
    assert_eq!(rows().await, 27);
    // DDL can, and a job that it creates has published by the Sync's answer.
    let created = [run("INSERT INTO t VALUES (32)"), run("CREATE MATERIALIZED VIEW v AS SELECT sum(a) AS s FROM t"), sync()];
    assert_eq!(raw.ask(&created), "INSERT 0 1, CREATE MATERIALIZED VIEW, I");
    assert_eq!(raw.ask(&[run("SELECT s FROM v"), sync()]), "59, SELECT 1, I");
    let failed = [run("CREATE TABLE u (a INT)"), run("DROP MATERIALIZED VIEW v"), run("SELECT * FROM v"), sync()];
    assert!(raw.ask(&failed).ends_with("42P01, I"));
    assert_eq!(raw.ask(&[run("SELECT s FROM v"), sync()]), "59, SELECT 1, I");
    assert_eq!(look.must_count("SELECT count(*) FROM weir_relations WHERE name = 'u'").await, 0);
    // A simple query ends a pipeline too; a client that goes without a Sync leaves nothing.
    raw.send(&run("INSERT INTO t VALUES (64)"));
    assert_eq!(raw.ask(&[query(b"SELECT 1")]), "INSERT 0 1, 1, SELECT 1, I");
    assert_eq!(rows().await, 123);
    raw.send(&[run("INSERT INTO t VALUES (128)"), run("SELECT 1"), message(b'X', b"")].concat());
    while raw.next().is_some() {}
    assert_eq!(rows().await, 123);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_pipeline_tells_a_conflict_at_its_sync() {
    let server = Server::start(&settings(&[]));
    let (mut raw, other) = (Raw::session(server.address()), server.connect().await);
    other.must("CREATE TABLE t (a INT PRIMARY KEY, b INT)").await;
    other.must("INSERT INTO t VALUES (1, 0)").await;
    raw.send(&[run("UPDATE t SET b = 1"), message(b'H', b"")].concat());
    while raw.next().expect("an answer").kind != b'C' {}
    other.must("UPDATE t SET b = 2").await;
    assert_eq!(raw.ask(&[sync()]), "40001, I");
    assert_eq!(raw.ask(&[run("SELECT b FROM t"), sync()]), "2, SELECT 1, I");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_that_is_none_is_refused() {
    let server = Server::start(&settings(&[]));
    let mut raw = Raw::session(server.address());
    assert_eq!(raw.ask(&[query(b"CREATE TABLE t (a TEXT)")]), "CREATE TABLE, I");
    for bytes in [&b"\xff\xfe"[..], b"\xed\xa0\x80", b"\xc3", b"\xf0\x9f\x98"] {
        assert_eq!(raw.ask(&[query(&[&b"INSERT INTO t VALUES ('"[..], bytes, b"')"].concat())]), "22021, I", "{bytes:?}");
        let parse = message(b'P', &[&b"\0SELECT '"[..], bytes, b"'\0\0\0"].concat());
        assert_eq!(raw.ask(&[parse, run("INSERT INTO t VALUES ('x')"), sync()]), "22021, I", "{bytes:?}");
        for format in [0, 1] {
            assert_eq!(raw.ask(&[run_with("INSERT INTO t VALUES ($1)", bytes, format), sync()]), "22021, I", "{bytes:?}");
        }
    }
    for format in [0, 1] {
        assert_eq!(raw.ask(&[run_with("INSERT INTO t VALUES ($1)", b"a\0b", format), sync()]), "22021, I");
    }
    let array = b"\0\0\0\x01\0\0\0\0\0\0\0\x19\0\0\0\x01\0\0\0\x01\0\0\0\x03a\0b";
    assert_eq!(raw.ask(&[run_with("SELECT $1::text[]", array, 1), sync()]), "22021, I");
    for escaped in [r"E'\xff'", r"E'\000'", r"E'a\x00'"] {
        assert_eq!(raw.ask(&[query(format!("INSERT INTO t VALUES ({escaped})").as_bytes())]), "22021, I", "{escaped}");
    }
    assert_eq!(raw.ask(&[query(b"SELECT count(*) FROM t")]), "0, SELECT 1, I");
    // Escapes that `sqlparser` does not know, and where the statement goes on after them.
    assert_eq!(raw.ask(&[query(br"SELECT E'\ud83d\ude00' || E'\xc3\xa9' || 'x'")]), "😀éx, SELECT 1, I");
    raw.send(&query(br"SELECT E'\ud83d\ude00', nothing"));
    let (messages, _) = raw.ready();
    assert_eq!(messages[0].field(b'P').as_deref(), Some("25"));
    assert_eq!(raw.ask(&[query(br"CREATE VIEW v AS SELECT a FROM t WHERE a = E'\ud83d\ude00'")]), "CREATE VIEW, I");
    assert_eq!(raw.ask(&[run_with("INSERT INTO t VALUES ($1)", "😀".as_bytes(), 0), sync()]), "INSERT 0 1, I");
    assert_eq!(raw.ask(&[query(b"SELECT a FROM v")]), "😀, SELECT 1, I");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_are_not_laid_out_as_they_should_be_are_errors() {
    let server = Server::start(&settings(&[]));
    let mut raw = Raw::session(server.address());
    let long = i32::MAX.to_be_bytes();
    let wrong = [
        message(b'P', b""),
        message(b'P', b"\0SELECT 1\0\0"),
        message(b'P', b"\0SELECT 1\0\xff\xff"),
        message(b'B', b"\0\0\0\x01"),
        message(b'B', &[&b"\0\0\0\0\0\x01"[..], &long, b"\0\0"].concat()),
        message(b'B', b"\0\0\0\0\xff\xff"),
        message(b'B', b"\0\0\0\0\0\0\xff\xff"),
        message(b'B', b"name without end"),
        message(b'D', b""),
        message(b'D', b"Xs\0"),
        message(b'C', b"S"),
        message(b'E', b"\0\0"),
        message(b'E', b""),
        message(b'H', b"more"),
    ];
    for wrong in &wrong {
        // All up to the Sync is passed over, and the session goes on.
        assert_eq!(raw.ask(&[wrong.clone(), run("SELECT 1"), wrong.clone(), sync()]), "08P01, I", "{wrong:?}");
        assert_eq!(raw.ask(&[run("SELECT 1"), sync()]), "1, SELECT 1, I");
    }
    for wrong in [message(b'Q', b""), message(b'Q', b"SELECT 1"), message(b'Q', b"SELECT 1\0\0")] {
        assert_eq!(raw.ask(std::slice::from_ref(&wrong)), "08P01, I", "{wrong:?}");
    }
    // In a block they fail it, as every error does.
    assert_eq!(raw.ask(&[query(b"BEGIN")]), "BEGIN, T");
    assert_eq!(raw.ask(&[message(b'B', b""), sync()]), "08P01, E");
    assert_eq!(raw.ask(&[query(b"ROLLBACK")]), "ROLLBACK, I");
    // Where no next message can be found, the connection ends.
    for wrong in [&b"Q\0\0\0\x03"[..], b"Q\xff\xff\xff\xff", b"S\0\x01\0\0", b"?\0\0\0\x04", b"\0\0\0\0\x04"] {
        let error = Raw::session(server.address()).sent_away(wrong);
        assert_eq!(error.field(b'C').as_deref(), Some("08P01"), "{error:?}");
    }
    assert_eq!(raw.ask(&[query(b"SELECT 1")]), "1, SELECT 1, I");
    assert!(!server.log_tail().contains("panicked"), "{}", server.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_begins_with_a_whole_packet_and_a_user() {
    let server = Server::start(&settings(&[]));
    let connect = || Raw::connect(server.address());
    for (packet, code) in [
        (b"GET / HTTP/1.1\r\nHost: weir\r\n\r\n".to_vec(), "08P01"),
        (b"\0\0\0\x04".to_vec(), "08P01"),
        (b"\xff\xff\xff\xff".to_vec(), "08P01"),
        (startup(b""), "08P01"),
        (startup(b"user\0weir\0"), "08P01"),
        (startup(b"user\0weir"), "08P01"),
        (startup(b"user\0weir\0\0x"), "08P01"),
        (startup(b"user\0we\xff\0\0"), "22021"),
        (startup(b"user\0\0\0"), "28000"),
        (startup(b"database\0weir\0\0"), "28000"),
        (startup(b"\0"), "28000"),
        (b"\0\0\0\x09\0\x02\0\0\0".to_vec(), "0A000"),
    ] {
        let error = connect().sent_away(&packet);
        assert_eq!(error.field(b'C').as_deref(), Some(code), "{packet:?}: {error:?}");
    }
    // Encryption is refused, once each, in whatever order.
    let mut raw = connect();
    for request in [80_877_104u32, 80_877_103] {
        raw.send(&[&8u32.to_be_bytes()[..], &request.to_be_bytes()].concat());
        let mut answer = [0];
        raw.0.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"N");
    }
    raw.send(&startup(b"user\0weir\0\0"));
    assert_eq!(raw.ready().1, b'I');
    raw.send(&query(b"SELECT nothing"));
    let (messages, _) = raw.ready();
    assert_eq!((messages[0].field(b'S').as_deref(), messages[0].field(b'V').as_deref()), (Some("ERROR"), Some("ERROR")));
    assert_eq!(raw.ask(&[query(b"START TRANSACTION")]), "START TRANSACTION, T");
    raw.send(&query(b"BEGIN"));
    let (messages, _) = raw.ready();
    assert_eq!((messages[0].kind, messages[0].field(b'V').as_deref()), (b'N', Some("WARNING")));
}

/// What messages of several statements give, the same on every system.
fn several_statements<S: Read + Write>(raw: &mut Raw<S>) -> Vec<String> {
    let mut answers = Vec::new();
    let mut ask = |sql: &str| answers.push(format!("{sql}: {}", raw.ask(&[query(sql.as_bytes())])));
    ask("CREATE TABLE t (a INT PRIMARY KEY)");
    let rows = "SELECT coalesce(sum(a), 0) FROM t";
    // What comes before a BEGIN goes into its block, and is undone with it.
    ask("INSERT INTO t VALUES (1); BEGIN; INSERT INTO t VALUES (2); ROLLBACK; INSERT INTO t VALUES (4)");
    ask(rows);
    ask("INSERT INTO t VALUES (8); BEGIN; INSERT INTO t VALUES (16); COMMIT; INSERT INTO t VALUES (32); SELECT 1 / 0");
    ask(rows);
    ask("INSERT INTO t VALUES (64); BEGIN; SELECT 1 / 0; COMMIT");
    ask("ROLLBACK");
    ask(rows);
    ask("INSERT INTO t VALUES (64); BEGIN; INSERT INTO t VALUES (128)");
    ask("INSERT INTO t VALUES (256); COMMIT; INSERT INTO t VALUES (512); SELECT 1 / 0");
    ask(rows);
    // COMMIT and ROLLBACK without a block end what came before them.
    ask("INSERT INTO t VALUES (1024); COMMIT; INSERT INTO t VALUES (2048); SELECT 1 / 0");
    ask(rows);
    ask("INSERT INTO t VALUES (2048); ROLLBACK; INSERT INTO t VALUES (4096)");
    ask(rows);
    ask("BEGIN; INSERT INTO t VALUES (8192); COMMIT; BEGIN; INSERT INTO t VALUES (16384); ROLLBACK; SELECT a FROM t WHERE a > 8000");
    ask("START TRANSACTION; INSERT INTO t VALUES (1)");
    ask("BEGIN; INSERT INTO t VALUES (3); COMMIT; SELECT 5");
    ask(rows);
    ask("SELECT 1; COMMIT; SELECT 2");
    ask("DROP TABLE t");
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_several_statements_is_one_transaction_up_to_what_ends_it() {
    let server = Server::start(&settings(&[]));
    let answers = several_statements(&mut Raw::session(server.address()));
    assert!(
        answers[1].ends_with("INSERT 0 1, BEGIN, INSERT 0 1, ROLLBACK, INSERT 0 1, I") && answers[2].ends_with(": 4, SELECT 1, I"),
        "{answers:?}"
    );
    match Reference::start() {
        Ok(reference) => {
            drop(reference.database("several").await);
            assert_eq!(answers, several_statements(&mut Raw::on_reference(&reference, "several")));
        }
        Err(reason) => crate::run::skip("messages of several statements on PostgreSQL", &reason),
    }
    // What runs by itself commits what comes before it, and only that.
    let mut raw = Raw::session(server.address());
    let mut ask = |sql: &str| raw.ask(&[query(sql.as_bytes())]);
    ask("CREATE TABLE t (a INT PRIMARY KEY); CREATE MATERIALIZED VIEW v AS SELECT sum(a) AS s FROM t");
    assert_eq!(
        ask(
            "INSERT INTO t VALUES (1); INSERT INTO t VALUES (2); FLUSH; SELECT s FROM v; INSERT INTO t VALUES (4); INSERT INTO t VALUES (4)"
        ),
        "INSERT 0 1, INSERT 0 1, FLUSH, 3, SELECT 1, INSERT 0 1, 23505, I"
    );
    assert_eq!(ask("FLUSH; SELECT s FROM v"), "FLUSH, 3, SELECT 1, I");
    assert_eq!(ask("INSERT INTO t VALUES (8); INSERT INTO t VALUES (1); FLUSH"), "INSERT 0 1, 23505, I");
    // A query over a view that the message creates; one that can't be made is an error of its own statement.
    assert_eq!(
        ask(
            "INSERT INTO t VALUES (8); CREATE MATERIALIZED VIEW w AS SELECT max(a) AS m FROM t; SELECT m FROM w; INSERT INTO t VALUES (16); SELECT 1 / 0"
        ),
        "INSERT 0 1, CREATE MATERIALIZED VIEW, 8, SELECT 1, INSERT 0 1, 22012, I"
    );
    assert_eq!(
        ask("INSERT INTO t VALUES (32); CREATE MATERIALIZED VIEW x AS SELECT 1 / (a - 8) AS q FROM t; SELECT q FROM x"),
        "INSERT 0 1, 22012, I"
    );
    assert_eq!(ask("SELECT sum(a) FROM t"), "43, SELECT 1, I");
}

/// What a DROP with CASCADE says, the same on every system.
fn dropped<S: Read + Write>(raw: &mut Raw<S>) -> Vec<String> {
    let mut said = Vec::new();
    for views in ["", "CREATE VIEW v AS SELECT a FROM t", "CREATE VIEW v AS SELECT a FROM t; CREATE VIEW w AS SELECT a FROM v"] {
        raw.ask(&[query(format!("CREATE TABLE t (a INT); {views}").as_bytes())]);
        raw.send(&query(b"DROP TABLE t CASCADE"));
        let (messages, _) = raw.ready();
        let notices = messages.iter().filter(|message| message.kind == b'N');
        said.extend(notices.map(|notice| format!("{:?} {:?} {:?}", notice.field(b'S'), notice.field(b'M'), notice.field(b'D'))));
    }
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cascade_says_what_it_takes_along() {
    let server = Server::start(&settings(&[]));
    let said = dropped(&mut Raw::session(server.address()));
    assert_eq!(said.len(), 2, "{said:?}");
    match Reference::start() {
        Ok(reference) => {
            drop(reference.database("dropped").await);
            assert_eq!(said, dropped(&mut Raw::on_reference(&reference, "dropped")));
        }
        Err(reason) => crate::run::skip("CASCADE on PostgreSQL", &reason),
    }
}
