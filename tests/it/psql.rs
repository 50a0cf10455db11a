//! What a user of psql sees: the program itself, against weir, and against PostgreSQL to compare with where there is one.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::reference::Reference;
use crate::run;
use crate::server::{PATIENCE, Server, settings};

/// Statements that fail, and what psql prints about it.
const ERRORS: [(&str, &str); 6] = [
    ("SELECT nothing FROM users", "ERROR:  column \"nothing\" does not exist\nLINE 1: SELECT nothing FROM users\n               ^\n"),
    ("SELECT * FROM nobody", "ERROR:  relation \"nobody\" does not exist\nLINE 1: SELECT * FROM nobody\n                      ^\n"),
    ("SELEC 1", "ERROR:  syntax error at or near \"SELEC\"\nLINE 1: SELEC 1\n        ^\n"),
    ("SELECT 1 / (id - id) FROM users", "ERROR:  division by zero\n"),
    ("INSERT INTO users VALUES (NULL, 'x')", "ERROR:  null value in column \"id\" of relation \"users\" violates not-null constraint\n"),
    ("CREATE TABLE users (id INT)", "ERROR:  relation \"users\" already exists\n"),
];

const SCHEMA: [&str; 3] = [
    "CREATE TABLE users (id BIGINT PRIMARY KEY, name TEXT, score DOUBLE PRECISION, paid NUMERIC(10,2) DEFAULT 1.5, seen TIMESTAMP(3), ok BOOLEAN NOT NULL DEFAULT TRUE, n INT)",
    "INSERT INTO users VALUES (1, 'Ann', 1.5, 10, '2024-02-29 12:00:00.5', TRUE, 7), (2, 'Zoë', -0.25, NULL, NULL, FALSE, NULL), (3, '', 1e100, 0.05, '1999-12-31 23:59:59', TRUE, -1)",
    "CREATE MATERIALIZED VIEW per_ok AS SELECT ok, count(*) AS n, sum(paid) AS paid FROM users GROUP BY ok",
];

/// Queries whose printed table must be PostgreSQL's, to the letter.
const QUERIES: [&str; 13] = [
    "SELECT * FROM users ORDER BY id",
    "SELECT ok, n, paid FROM per_ok ORDER BY ok",
    "SELECT name, score * 2 AS doubled FROM users WHERE score < 10 ORDER BY id DESC",
    "SELECT count(*), max(seen), min(name) FROM users",
    "SELECT 1 AS one, 'x' AS text, NULL AS nothing, TRUE AS yes, 1.50 AS price, 1e3 AS thousand WHERE 1 = 1",
    // Warnings and notices.
    "BEGIN;\nBEGIN;\nCOMMIT;\nCOMMIT",
    "ROLLBACK",
    "DROP TABLE IF EXISTS nobody",
    "DROP VIEW IF EXISTS nobody, nothing",
    "CREATE TABLE IF NOT EXISTS users (a INT)",
    "SET client_min_messages = warning;\nDROP TABLE IF EXISTS nobody;\nCOMMIT",
    "DISCARD ALL",
    "DISCARD PLANS",
];

/// psql on the host (an address or a socket's folder), with `input` on its standard input.
fn psql(host: &str, port: Option<u16>, database: &str, arguments: &[&str], input: &str) -> Output {
    let mut command = command(host, port, database);
    let mut child = command.args(arguments).stdin(Stdio::piped()).spawn().expect("psql starts");
    std::io::Write::write_all(&mut child.stdin.take().expect("stdin is piped"), input.as_bytes()).expect("psql reads");
    child.wait_with_output().expect("psql ends")
}

fn command(host: &str, port: Option<u16>, database: &str) -> Command {
    let mut command = Command::new("psql");
    command.args(["-X", "-h", host, "-U", "weir", "-d", database]);
    if let Some(port) = port {
        command.args(["-p", &port.to_string()]);
    }
    command
        .env("PGCONNECT_TIMEOUT", "120")
        .env("LC_ALL", "C.UTF-8")
        .env("PGCLIENTENCODING", "UTF8")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn is_installed() -> bool {
    Command::new("psql").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Something that psql can talk to.
struct Target {
    host: String,
    port: Option<u16>,
    database: &'static str,
    materialized: bool,
}

impl Target {
    fn weir(server: &Server) -> Target {
        Target { host: "127.0.0.1".to_string(), port: Some(server.address().port()), database: "weir", materialized: true }
    }

    fn postgres(folder: &Path) -> Target {
        Target { host: folder.to_string_lossy().into_owned(), port: None, database: "postgres", materialized: false }
    }

    fn run(&self, input: &str) -> (String, String) {
        let output = psql(&self.host, self.port, self.database, &[], input);
        (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// What it prints about one statement that fails.
    fn errors_of(&self, statement: &str) -> String {
        let output = psql(&self.host, self.port, self.database, &["-c", statement], "");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn set_up(&self) {
        for statement in SCHEMA {
            let statement =
                if self.materialized { statement.to_string() } else { crate::views::for_postgres(statement).unwrap_or_default() };
            let (_, errors) = self.run(&format!("{statement};\n"));
            assert_eq!(errors, "", "{statement}");
        }
        if self.materialized {
            assert_eq!(self.run("FLUSH;\n").1, "");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn psql_prints_what_it_prints_on_postgresql() {
    if !is_installed() {
        return run::skip("psql", "psql is not installed");
    }
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let weir = Target::weir(&server);
    weir.set_up();
    let reference = Reference::start();
    let postgres = match &reference {
        Ok(reference) => Some(Target::postgres(reference.socket_folder())),
        Err(reason) => {
            run::skip("psql: comparing with PostgreSQL", reason);
            None
        }
    };
    if let Some(postgres) = &postgres {
        postgres.set_up();
    }
    for (statement, expected) in ERRORS {
        for target in [Some(&weir), postgres.as_ref()].into_iter().flatten() {
            // Details and hints may say more; the first lines are what is fixed.
            let errors = target.errors_of(statement);
            assert!(errors.starts_with(expected), "{statement} on {}: expected\n{expected}\ngot\n{errors}", target.database);
        }
    }
    let Some(postgres) = &postgres else { return };
    for query in QUERIES {
        let input = format!("{query};\n");
        assert_eq!(weir.run(&input), postgres.run(&input), "{query}");
    }
    let columns = |target: &Target, input: &str| -> Vec<String> {
        let (output, errors) = target.run(input);
        assert_eq!(errors, "", "{input} on {}", target.database);
        output.lines().filter(|line| line.contains('|')).map(|line| line.trim_end().to_string()).collect()
    };
    assert_eq!(columns(&weir, "\\d users\n"), columns(postgres, "\\d users\n"));
    assert_eq!(columns(&weir, "\\d per_ok\n"), columns(postgres, "\\d per_ok\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn psql_lists_tables_and_views() {
    if !is_installed() {
        return run::skip("psql lists", "psql is not installed");
    }
    let server = Server::start(&settings(&[]));
    let weir = Target::weir(&server);
    weir.set_up();
    assert_eq!(weir.run("CREATE VIEW macro AS SELECT id FROM users;\n").1, "");
    for (input, listed, not_listed) in [
        ("\\d\n", &["users", "per_ok", "macro"][..], &[][..]),
        ("\\dt\n", &["users"], &["per_ok", "macro"]),
        ("\\dm\n", &["per_ok"], &["users", "macro"]),
        ("\\dv\n", &["macro"], &["users", "per_ok"]),
    ] {
        let (output, errors) = weir.run(input);
        assert_eq!(errors, "", "{input}");
        let names: Vec<&str> = output.lines().filter_map(|line| line.split('|').nth(1)).map(str::trim).collect();
        for name in listed {
            assert!(names.contains(name), "{input} does not list {name}:\n{output}");
        }
        for name in not_listed {
            assert!(!names.contains(name), "{input} lists {name}:\n{output}");
        }
    }
    let (_, errors) = weir.run("\\d nobody\n");
    assert!(errors.contains("Did not find any relation named \"nobody\"."), "{errors}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_in_psql_cancels_a_query() {
    if !is_installed() {
        return run::skip("psql cancel", "psql is not installed");
    }
    let server = Server::start(&settings(&[]));
    let session = server.connect().await;
    session.must("CREATE TABLE n (i INT)").await;
    let values: Vec<String> = (0..1_000).map(|i| format!("({i})")).collect();
    session.must(&format!("INSERT INTO n VALUES {}", values.join(", "))).await;
    // A million million rows: it does not end by itself.
    let query = "SELECT sum(p.v - q.v) FROM (SELECT a.i * b.i AS v FROM n a CROSS JOIN n b) p CROSS JOIN (SELECT c.i - d.i AS v FROM n c CROSS JOIN n d) q";
    let address = server.address();
    let mut psql = command("127.0.0.1", Some(address.port()), "weir");
    let mut child = psql.args(["-c", "DROP TABLE IF EXISTS nobody", "-c", query]).stdin(Stdio::null()).spawn().expect("psql starts");
    let errors = tokio::task::spawn_blocking(move || {
        // Before it is connected it has nothing to cancel, and ends.
        let mut said = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let mut notice = String::new();
        said.read_line(&mut notice).expect("psql prints text");
        assert!(notice.contains("\"nobody\" does not exist, skipping"), "{notice}");
        let deadline = Instant::now() + PATIENCE;
        // A request that comes before the query does is for nobody.
        while child.try_wait().expect("psql can be looked at").is_none() {
            assert!(Instant::now() < deadline, "psql does not end");
            // SAFETY: a plain system call on a process that this one started and has not waited for.
            unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
            std::thread::sleep(Duration::from_secs(1));
        }
        let mut errors = String::new();
        said.read_to_string(&mut errors).expect("psql prints text");
        errors
    });
    let errors = errors.await.expect("waiting does not panic");
    assert!(errors.contains("canceling statement due to user request"), "{errors}");
    // The server goes on.
    assert_eq!(session.must_count("SELECT count(*) FROM n").await, 1_000);
}
