//! Data folders that earlier versions wrote: each opens with the present binary, shows what it showed then, and can be written on.
//!
//! `tests/compat/<version>/data_folder.tar.gz` is a folder after a kill: a checkpoint, and a log that goes on behind it. `data_folder.jsonl` beside it
//! has queries and what they answered. The hashes of both are in `tests/compat/HASHES`.

mod savepoints;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::server::{Server, Session, settings};
use crate::views::Made;

/// What the folder is made by. Every type, NULLs, tables with and without a key, and a view of each operator.
const STATEMENTS: [&str; 24] = [
    "CREATE TABLE every (id BIGINT PRIMARY KEY, b BOOLEAN, i INT, d DOUBLE PRECISION, n NUMERIC(20,3), t TEXT, ts TIMESTAMP(3))",
    "CREATE TABLE no_key (g INT, t TEXT)",
    "CREATE TABLE gone (id INT PRIMARY KEY)",
    "CREATE VIEW positive AS SELECT * FROM every WHERE i > 0",
    "CREATE MATERIALIZED VIEW filtered AS SELECT id, upper(t) AS t, i + 1 AS j, ts FROM every WHERE b",
    "CREATE MATERIALIZED VIEW repeated AS SELECT t FROM no_key",
    "CREATE MATERIALIZED VIEW grouped AS SELECT g, count(*) AS n, count(t) AS texts, min(t) AS first, max(t) AS last FROM no_key GROUP BY g",
    "CREATE MATERIALIZED VIEW numbers AS SELECT b, sum(i) AS i, sum(n) AS n, avg(d) AS d, min(ts) AS earliest, max(n) AS most, bool_and(i > 0) AS positive, count(DISTINCT i % 2) AS kinds, count(*) FILTER (WHERE t IS NULL) AS nameless FROM every GROUP BY b",
    "CREATE MATERIALIZED VIEW total AS SELECT count(*) AS rows, sum(n) AS n FROM positive",
    "CREATE MATERIALIZED VIEW texts AS SELECT DISTINCT t FROM no_key",
    "CREATE MATERIALIZED VIEW together AS SELECT t FROM no_key UNION ALL SELECT t FROM every",
    "CREATE MATERIALIZED VIEW of_views AS SELECT n, count(*) AS groups FROM grouped GROUP BY n",
    "CREATE TABLE bid WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '3000')",
    "CREATE MATERIALIZED VIEW bids AS SELECT auction % 5 AS a, count(*) AS n, max(price) AS price FROM bid GROUP BY auction % 5",
    "CREATE TABLE hole (a BIGINT, price BIGINT) WITH (connector = 'blackhole')",
    "INSERT INTO hole SELECT auction, price FROM bid",
    "INSERT INTO every VALUES (1, true, 7, 0.5, 12345678901234567.125, 'zażółć', '2024-02-29 12:34:56.789'), (2, NULL, NULL, NULL, NULL, NULL, NULL), (3, false, -7, -1e300, -0.001, '', '1969-12-31 23:59:59.999')",
    "INSERT INTO no_key VALUES (1, 'a'), (1, 'a'), (1, NULL), (2, 'b'), (NULL, 'c')",
    "INSERT INTO gone VALUES (1)",
    "FLUSH",
    "CHECKPOINT",
    "DROP TABLE gone",
    "BEGIN; UPDATE every SET i = i + 1, t = 'changed' WHERE id = 1; DELETE FROM no_key WHERE t = 'b'; INSERT INTO no_key VALUES (3, 'd'); COMMIT",
    "INSERT INTO every VALUES (4, true, 2000000000, 0, 0, 'x', '9999-12-31 23:59:59.999')",
];

const QUERIES: [&str; 12] = [
    "SELECT * FROM every",
    "SELECT * FROM no_key",
    "SELECT * FROM positive",
    "SELECT * FROM filtered",
    "SELECT * FROM repeated",
    "SELECT * FROM grouped",
    "SELECT * FROM numbers",
    "SELECT * FROM total",
    "SELECT * FROM texts",
    "SELECT * FROM together",
    "SELECT * FROM of_views",
    "SELECT * FROM bids",
];

fn compat() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compat")
}

/// The versions that have a folder here.
fn versions() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(compat()).expect("the folder is there").flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.join("data_folder.tar.gz").is_file()).collect();
    found.sort();
    found
}

fn tar(arguments: &[&str], archive: &Path, folder: &Path) {
    let status = Command::new("tar").args(arguments).arg("-f").arg(archive).arg("-C").arg(folder).arg(".").status();
    assert!(status.expect("tar can be run").success(), "tar failed on {}", archive.display());
}

fn unpack(version: &Path, to: &Path) {
    std::fs::create_dir(to).expect("the folder can be made");
    tar(&["-xz"], &version.join("data_folder.tar.gz"), to);
}

async fn answer(session: &Session, sql: &str) -> Value {
    let mut rows = session.text_rows(sql).await.unwrap_or_else(|e| panic!("{sql}\n{}", crate::server::describe(&e)));
    rows.sort();
    json!(rows)
}

fn made() -> Made {
    let mut made = Made::default();
    for statement in STATEMENTS {
        if !statement.contains("gone") {
            made.note(statement);
        }
    }
    made
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folders_of_earlier_versions_open_and_go_on() {
    let versions = versions();
    assert!(!versions.is_empty());
    for version in &versions {
        for parallelism in ["1", "3"] {
            let what = format!("{} at parallelism {parallelism}", version.display());
            let folder = tempfile::tempdir().expect("a temporary folder");
            let data = folder.path().join("data");
            unpack(version, &data);
            let settings = settings(&[("parallelism", parallelism), ("checkpoint_interval", "1 h")]);
            let mut server =
                Server::start_in(&data, &folder.path().join("server.log"), &settings).unwrap_or_else(|problem| panic!("{what}: {problem}"));
            let mut session = server.connect().await;
            // The state came out of the checkpoint: nothing is being built from the inputs' rows.
            let building = "SELECT count(*) FROM weir_jobs WHERE state = 'backfilling' OR restarts > 0";
            assert_eq!(session.must_count(building).await, 0, "{what}: jobs do not start from their state");
            let expected = std::fs::read_to_string(version.join("data_folder.jsonl")).expect("the answers are there");
            for line in expected.lines() {
                let expected: Value = serde_json::from_str(line).expect("JSON");
                let sql = expected["sql"].as_str().expect("a query");
                assert_eq!(answer(&session, sql).await, expected["rows"], "{what}: {sql}");
            }
            assert_eq!(expected.lines().count(), QUERIES.len());
            let (problems, with_rows) = made().check(&session).await;
            assert!(problems.is_empty(), "{what}:\n{}", problems.join("\n"));
            assert!(with_rows >= 8, "{what}: only {with_rows} views have rows");
            session
                .must("INSERT INTO every SELECT id + 100, b, i, d, n, t, ts FROM every WHERE id <> 4; DELETE FROM no_key WHERE g = 1")
                .await;
            session.must("CHECKPOINT").await;
            session.must("INSERT INTO no_key VALUES (9, 'z')").await;
            session.must("FLUSH").await;
            let content = made().content(&session).await;
            server.restart();
            session = server.connect().await;
            let differences = content.differences(&made().content(&session).await);
            assert!(differences.is_empty(), "{what}:\n{}", differences.join("\n"));
            let (problems, _) = made().check(&session).await;
            assert!(problems.is_empty(), "{what}:\n{}", problems.join("\n"));
        }
    }
}

/// Every file below a folder with its content, but for the lock.
fn content(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the folder can be read").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(content(&path));
        } else if entry.file_name() != "LOCK" {
            let bytes = std::fs::read(&path).expect("the file can be read");
            found.insert(path, bytes);
        }
    }
    found
}

#[test]
fn a_folder_of_a_newer_version_is_refused_and_left_alone() {
    let version = versions().pop().expect("a version");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().join("data");
    unpack(&version, &data);
    for (format, says) in
        [("weir-data 2\n", "has format 2, newer than this weir's 1"), ("weir-data two\n", "is damaged"), ("", "is damaged")]
    {
        std::fs::write(data.join("FORMAT"), format).expect("the file can be written");
        let before = content(&data);
        let log = folder.path().join("server.log");
        std::fs::write(&log, "").expect("the log can be emptied");
        let report = match Server::start_in(&data, &log, &settings(&[])) {
            Ok(_) => panic!("a folder that says {format:?} was opened"),
            Err(report) => report,
        };
        assert!(report.contains(says) && report.contains(data.to_str().expect("a path")), "{report}");
        assert_eq!(content(&data), before, "{format:?}: the folder was changed");
    }
}

/// Writes the folder of the present version: run by hand, once a version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes into tests/compat"]
async fn make_golden_data_folder() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().join("data");
    let settings = settings(&[("parallelism", "2"), ("checkpoint_interval", "1 h")]);
    let mut server = Server::start_in(&data, &folder.path().join("server.log"), &settings).unwrap_or_else(|problem| panic!("{problem}"));
    let session = server.connect().await;
    for statement in STATEMENTS {
        // Before the checkpoint all of the connector has been read.
        while statement == "CHECKPOINT"
            && answer(&session, "SELECT sum(n) FROM bids").await != answer(&session, "SELECT count(*) FROM bid").await
        {
            session.must("FLUSH").await;
        }
        session.must(statement).await;
    }
    session.must("FLUSH").await;
    let mut answers = String::new();
    for sql in QUERIES {
        answers += &format!("{}\n", json!({"sql": sql, "rows": answer(&session, sql).await}));
    }
    server.kill();
    std::fs::remove_dir_all(data.join("scratch")).expect("it can be removed");
    std::fs::remove_file(data.join("LOCK")).expect("it can be removed");
    let version = compat().join("v1");
    std::fs::write(version.join("data_folder.jsonl"), answers).expect("it can be written");
    let plain = ["-cz", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"];
    tar(&plain, &version.join("data_folder.tar.gz"), &data);
}
