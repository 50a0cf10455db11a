//! Savepoints that earlier versions wrote: each is described and read as it was then, views that begin with it have the batch answer over other rows, and sinks
//! write what differs from what they had written.
//!
//! `tests/compat/<version>/savepoints.tar.gz` has folders of savepoints of that format, `savepoints.jsonl` beside it what was answered of them.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{answer, compat, tar};
use crate::savepoints::{check, rows};
use crate::server::{Server, Session, settings};

/// What savepoints of one format are made by.
struct Golden {
    version: &'static str,
    tables: &'static [&'static str],
    /// The rows that the savepoints have, and others.
    before: &'static [&'static str],
    after: &'static [&'static str],
    /// Views with their queries; inputs first.
    views: &'static [(&'static str, &'static str)],
    /// Sinks with their queries, and the rows that each had written.
    sinks: &'static [(&'static str, &'static str, &'static [&'static str])],
}

impl Golden {
    /// The jobs that it has savepoints of, inputs first.
    fn jobs(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.views.iter().copied().chain(self.sinks.iter().map(|(sink, query, _)| (*sink, *query)))
    }

    /// The format of the metadata. What asks for format 3 is in an object store: of that there is the metadata alone (`src/checkpoint/savepoint/tests.rs`).
    fn format(&self) -> &'static str {
        if self.version == "v2" { "2" } else { "1" }
    }
}

/// A sink that writes changes into a folder of its own.
fn sink_into(root: &Path, name: &str) -> String {
    format!("CREATE SINK {name} WITH (connector = 'file', path = '{}', format = 'csv', row_kind = 'kind')", root.join(name).display())
}

/// What a sink had written and its files together amount to the answer of its query, sooner or later.
async fn check_sink(session: &Session, root: &Path, (sink, query, written): (&str, &str, &[&str])) {
    let deadline = std::time::Instant::now() + crate::server::PATIENCE;
    loop {
        session.must("FLUSH").await;
        session.must("CHECKPOINT").await;
        let mut counts = std::collections::BTreeMap::<String, i64>::new();
        written.iter().for_each(|row| *counts.entry((*row).to_string()).or_default() += 1);
        for line in crate::savepoints::lines(&root.join(sink)) {
            let (kind, row) = line.split_once(',').expect("a line has a kind");
            *counts.entry(row.to_string()).or_default() += if kind.starts_with('+') { 1 } else { -1 };
        }
        for row in rows(session, query).await {
            let row = row.into_iter().map(|value| if value == "NULL" { String::new() } else { value }).collect::<Vec<_>>().join(",");
            *counts.entry(row).or_default() -= 1;
        }
        if counts.values().all(|count| *count == 0) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{sink}: {counts:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// A batch query's form of what a view reads from a stream.
const WHOLE: (&str, &str) = ("FROM bid ", "FROM whole ");

const GOLDEN: [Golden; 3] = [
    Golden {
        version: "v1",
        tables: &[
            "CREATE TABLE every (id BIGINT PRIMARY KEY, b BOOLEAN, i INT, d DOUBLE PRECISION, n NUMERIC(20,3), t TEXT, ts TIMESTAMP(3))",
            "CREATE TABLE no_key (g INT, t TEXT)",
            "CREATE TABLE bid WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '3000', 'events.rate' = '100000')",
            "CREATE TABLE whole WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '3000')",
        ],
        before: &[
            "INSERT INTO every VALUES (1, true, 7, 0.5, 12345678901234567.125, 'zażółć', '2024-02-29 12:34:56.789'), (2, NULL, NULL, NULL, NULL, NULL, NULL), (3, false, -7, -1e300, -0.001, '', '1969-12-31 23:59:59.999')",
            "INSERT INTO no_key VALUES (1, 'a'), (1, 'a'), (1, NULL), (2, 'b'), (NULL, 'c')",
        ],
        after: &[
            "INSERT INTO every VALUES (1, true, 8, 0.5, 1, 'other', '2024-02-29 12:34:56.789'), (3, false, -7, -1e300, -0.001, '', '1969-12-31 23:59:59.999'), (4, NULL, 2000000000, 0, 0, 'x', '9999-12-31 23:59:59.999')",
            "INSERT INTO no_key VALUES (1, 'a'), (2, 'c'), (7, NULL)",
        ],
        views: &[
            (
                "numbers",
                "SELECT b, sum(i) AS i, sum(n) AS n, avg(d) AS d, min(ts) AS earliest, max(n) AS most, bool_and(i > 0) AS positive, count(DISTINCT i % 2) AS kinds, count(*) FILTER (WHERE t IS NULL) AS nameless FROM every GROUP BY b",
            ),
            ("filtered", "SELECT id, upper(t) AS t, i + 1 AS j, ts FROM every WHERE i IS NOT NULL"),
            ("repeated", "SELECT t FROM no_key"),
            ("texts", "SELECT DISTINCT t FROM no_key"),
            ("total", "SELECT count(*) AS rows, sum(n) AS n FROM every"),
            ("grouped", "SELECT g, count(*) AS n, count(t) AS texts, min(t) AS first, max(t) AS last FROM no_key GROUP BY g"),
            ("of_views", "SELECT n, count(*) AS groups FROM grouped GROUP BY n"),
            ("together", "SELECT t FROM no_key UNION ALL SELECT t FROM every"),
            ("bids", "SELECT auction % 5 AS a, count(*) AS n, max(price) AS price FROM bid GROUP BY auction % 5"),
        ],
        sinks: &[],
    },
    Golden {
        version: "v2",
        tables: &["CREATE TABLE nested (id BIGINT PRIMARY KEY, tags TEXT[], place ROW<x INT, names TEXT[]>)"],
        before: &[
            "INSERT INTO nested VALUES (1, ARRAY['a', 'b'], ROW(1, ARRAY['n'])), (2, ARRAY['a', 'b'], NULL), (3, NULL, ROW(NULL, NULL)), (4, ARRAY['c'], ROW(2, ARRAY['m', NULL]))",
        ],
        after: &[
            "INSERT INTO nested VALUES (1, ARRAY['a'], ROW(1, ARRAY['n'])), (4, ARRAY['c'], ROW(2, ARRAY['m', NULL])), (5, NULL, NULL)",
        ],
        views: &[
            ("by_tags", "SELECT tags, count(*) AS n, max(id) AS last FROM nested GROUP BY tags"),
            ("places", "SELECT id, place, place.x AS x FROM nested"),
            ("kinds", "SELECT DISTINCT place FROM nested"),
        ],
        sinks: &[],
    },
    Golden {
        version: "v3",
        tables: &["CREATE TABLE no_key (g INT, t TEXT)"],
        before: &["INSERT INTO no_key VALUES (1, 'a'), (1, 'a'), (1, NULL), (2, 'b'), (NULL, 'c')"],
        after: &["INSERT INTO no_key VALUES (1, 'a'), (2, 'c'), (2, 'd'), (7, NULL)"],
        views: &[
            ("grouped", "SELECT g, count(*) AS n FROM no_key GROUP BY g"),
            ("mixed", "SELECT t, g FROM no_key WHERE g < 2 UNION ALL SELECT t, -g FROM no_key"),
        ],
        sinks: &[
            ("plain", "SELECT g, t FROM no_key", &["1,a", "1,a", "1,", "2,b", ",c"]),
            ("counted", "SELECT t, count(*) AS n, max(g) AS most FROM no_key GROUP BY t", &["a,2,1", ",1,1", "b,1,2", "c,1,"]),
            ("of_view", "SELECT g, n FROM grouped WHERE n > 1", &["1,3"]),
        ],
    },
];

fn archive(golden: &Golden) -> (PathBuf, PathBuf) {
    let version = compat().join(golden.version);
    (version.join("savepoints.tar.gz"), version.join("savepoints.jsonl"))
}

/// A statement as it is kept, for the savepoints in `folder`.
fn at(folder: &Path, sql: &str) -> String {
    sql.replace('$', &folder.display().to_string())
}

async fn must_all(session: &Session, statements: &[&str]) {
    for statement in statements {
        session.must(statement).await;
    }
}

/// Waits until the stream has been read to its end, where there is one.
async fn until_read(session: &Session, golden: &Golden) {
    if !golden.views.iter().any(|(view, _)| *view == "bids") {
        return;
    }
    let all = session.must_count("SELECT count(*) FROM whole").await;
    let deadline = std::time::Instant::now() + crate::server::PATIENCE;
    while session.must_count("SELECT coalesce(sum(n), 0) FROM bids").await < all {
        assert!(std::time::Instant::now() < deadline, "the stream does not come to its end");
        session.must("FLUSH").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn savepoints_of_earlier_versions_are_read_and_go_on() {
    for golden in &GOLDEN {
        let (packed, answers) = archive(golden);
        let folder = tempfile::tempdir().expect("a temporary folder");
        tar(&["-xz"], &packed, folder.path());
        let answers = std::fs::read_to_string(answers).expect("the answers are there");
        assert!(answers.lines().count() >= 2 * golden.views.len() + golden.sinks.len(), "{}", golden.version);
        for parallelism in ["1", "3"] {
            for (view, _) in golden.jobs() {
                let metadata = std::fs::read(folder.path().join(view).join("SAVEPOINT")).expect("a savepoint");
                let format = format!("weir-savepoint {} ", golden.format());
                assert!(metadata.starts_with(format.as_bytes()), "{view} is not of format {}", golden.version);
            }
            let what = format!("{} at parallelism {parallelism}", golden.version);
            let mut server = Server::start(&settings(&[("parallelism", parallelism)]));
            let mut session = server.connect().await;
            for line in answers.lines() {
                let kept: Value = serde_json::from_str(line).expect("JSON");
                let sql = kept["sql"].as_str().expect("a statement");
                assert_eq!(answer(&session, &at(folder.path(), sql)).await, kept["rows"], "{what}: {sql}");
            }
            must_all(&session, golden.tables).await;
            must_all(&session, golden.after).await;
            for (view, query) in golden.views {
                let create = format!("CREATE MATERIALIZED VIEW {view} FROM SAVEPOINT '{}' AS {query}", folder.path().join(view).display());
                let explained = rows(&session, &format!("EXPLAIN {create}")).await;
                assert!(!explained.is_empty() && explained.iter().all(|row| row[2] == "reused"), "{what}: {explained:?}");
                session.must(&create).await;
            }
            let out = tempfile::tempdir().expect("a temporary folder");
            for (sink, query, _) in golden.sinks {
                let create = format!("{} FROM SAVEPOINT '{}' AS {query}", sink_into(out.path(), sink), folder.path().join(sink).display());
                let explained = rows(&session, &format!("EXPLAIN {create}")).await;
                assert!(!explained.is_empty() && explained.iter().all(|row| row[2] == "reused"), "{what}: {explained:?}");
                session.must(&create).await;
            }
            for round in 0..3 {
                until_read(&session, golden).await;
                for sink in golden.sinks {
                    check_sink(&session, out.path(), *sink).await;
                }
                for (view, query) in golden.views {
                    check(&session, view, &query.replace(WHOLE.0, WHOLE.1)).await;
                }
                match round {
                    0 => match golden.version {
                        "v3" => must_all(&session, &["DELETE FROM no_key WHERE t = 'a'", "INSERT INTO no_key VALUES (7, 'b')"]).await,
                        "v1" => must_all(&session, &["DELETE FROM every WHERE id = 3", "DELETE FROM no_key WHERE t = 'a'"]).await,
                        _ => must_all(&session, &["DELETE FROM nested WHERE id = 4"]).await,
                    },
                    _ => {
                        server.restart();
                        session = server.connect().await;
                    }
                }
            }
        }
    }
}

/// Writes the savepoints of the formats that have none yet: run by hand, once a format.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes into tests/compat"]
async fn make_golden_savepoints() {
    for golden in GOLDEN.iter().filter(|golden| !archive(golden).0.exists()) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "1 h")]));
        let session = server.connect().await;
        must_all(&session, golden.tables).await;
        must_all(&session, golden.before).await;
        for (view, query) in golden.views {
            session.must(&format!("CREATE MATERIALIZED VIEW {view} AS {query}")).await;
        }
        let out = tempfile::tempdir().expect("a temporary folder");
        for (sink, query, _) in golden.sinks {
            session.must(&format!("{} AS {query}", sink_into(out.path(), sink))).await;
        }
        until_read(&session, golden).await;
        let mut answers = String::new();
        let mut keep = async |sql: String| {
            let rows = answer(&session, &at(folder.path(), &sql)).await;
            answers += &format!("{}\n", json!({"sql": sql, "rows": rows}));
        };
        for (view, _) in golden.jobs() {
            session.must(&format!("CREATE SAVEPOINT {view} FOR {view} AT '{}'", folder.path().join(view).display())).await;
            keep(format!("DESCRIBE SAVEPOINT '$/{view}'")).await;
            for state in rows(&session, &format!("DESCRIBE SAVEPOINT {view}")).await.iter().filter(|state| state[1] != "splits") {
                keep(format!("SELECT * FROM savepoint_state('$/{view}', '{}', '{}')", state[0], state[1])).await;
            }
        }
        let (packed, kept) = archive(golden);
        std::fs::write(kept, answers).expect("it can be written");
        let plain = ["-cz", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"];
        tar(&plain, &packed, folder.path());
    }
}
