//! Going on from an older checkpoint: the newest one can't be read, or is gone. Whatever was acknowledged after the older one comes from the engine log,
//! a connector goes back to where it stood, and nothing that was ever given a number or a name is given it again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::run;
use crate::server::{Server, Session, settings};
use crate::views::Made;

const STATEMENTS: [&str; 9] = [
    "CREATE TABLE t (id BIGINT PRIMARY KEY, g INT, v BIGINT, s TEXT)",
    "CREATE TABLE twins (g INT, v BIGINT)",
    "CREATE MATERIALIZED VIEW per_group AS SELECT g, count(*) AS n, sum(v) AS total, max(v) AS most, count(DISTINCT v % 3) AS kinds FROM t GROUP BY g",
    "CREATE MATERIALIZED VIEW sizes AS SELECT n, count(*) AS groups FROM per_group GROUP BY n",
    "CREATE MATERIALIZED VIEW both_tables AS SELECT g, v FROM t UNION ALL SELECT g, v FROM twins",
    "CREATE MATERIALIZED VIEW totals AS SELECT count(*) AS n, sum(v) AS v FROM both_tables",
    "CREATE TABLE bid WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '60000', 'events.rate' = '6000')",
    "CREATE MATERIALIZED VIEW bids AS SELECT auction % 7 AS a, count(*) AS n, sum(price) AS price, max(price) AS most FROM bid GROUP BY auction % 7",
    "CREATE TABLE all_bids WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '60000')",
];

/// The names below `checkpoints`, each with a hash of what it holds; and that none ever held anything else.
#[derive(Default)]
struct Names(BTreeMap<PathBuf, u64>);

impl Names {
    fn note(&mut self, data_dir: &Path) {
        for folder in ["checkpoints", "checkpoints/files"] {
            for entry in std::fs::read_dir(data_dir.join(folder)).expect("the folder is there").flatten() {
                let (path, name) = (entry.path(), entry.file_name());
                if !path.is_file() || name.to_string_lossy().ends_with(".tmp") {
                    continue;
                }
                // What is removed meanwhile does not matter.
                let Ok(content) = std::fs::read(&path) else { continue };
                let hash = xxhash_rust::xxh3::xxh3_64(&content);
                let former = self.0.insert(path.clone(), hash);
                assert!(former.is_none_or(|former| former == hash), "the name {} was used twice", path.display());
            }
        }
    }

    /// A file was damaged by the test.
    fn forget(&mut self, path: &Path) {
        self.0.remove(path);
    }
}

/// The manifests, oldest first.
fn manifests(data_dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data_dir.join("checkpoints")).expect("the folder is there").flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.is_file() && path.extension().is_none()).collect();
    found.sort();
    found
}

/// Writes that touch every view: new rows, changed ones, ones that go.
async fn write(session: &Session, round: i64) {
    let ids: Vec<i64> = (round * 100..round * 100 + 40).collect();
    let rows: Vec<String> = ids.iter().map(|id| format!("({id}, {}, {}, 'row {id}')", id % 11, id * 3)).collect();
    session.must(&format!("INSERT INTO t VALUES {}", rows.join(", "))).await;
    session
        .must(&format!(
            "BEGIN; INSERT INTO twins VALUES ({round}, 1), ({round}, 2); UPDATE t SET v = v + 1 WHERE id % 9 = {}; COMMIT",
            round % 9
        ))
        .await;
    session.must(&format!("DELETE FROM t WHERE id % 13 = {}", round % 13)).await;
    session.must(&format!("DELETE FROM twins WHERE g = {}", round - 2)).await;
}

/// A checkpoint; returns its number.
async fn checkpoint(session: &Session) -> u64 {
    session.must("CHECKPOINT").await;
    session.must_count("SELECT max(checkpoint) FROM weir_checkpoints WHERE state = 'completed'").await as u64
}

/// Waits for what happens beside the answer to a statement.
async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + crate::server::PATIENCE;
    while !is_so() {
        assert!(tokio::time::Instant::now() < deadline, "{what}: it does not come to be");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

async fn check(made: &Made, session: &Session, expected: &crate::views::Content, what: &str) {
    let differences = expected.differences(&made.content(session).await);
    assert!(differences.is_empty(), "{what}:\n{}", differences.join("\n"));
    let (problems, with_rows) = made.check(session).await;
    assert!(problems.is_empty(), "{what}:\n{}", problems.join("\n"));
    assert!(with_rows >= 4, "{what}: only {with_rows} views have rows");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_checkpoint_leads_to_the_same_answers() {
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "1 h")]));
    let data_dir = server.data_dir().to_path_buf();
    let mut session = server.connect().await;
    // Of what stands over the connector only the end is known.
    let mut made = Made::default();
    for (at, statement) in STATEMENTS.into_iter().enumerate() {
        session.must(statement).await;
        if at < 6 {
            made.note(statement);
        }
    }
    let mut names = Names::default();
    let mut numbers = Vec::new();
    for round in 0..4 {
        write(&session, round).await;
        numbers.push(checkpoint(&session).await);
        names.note(&data_dir);
    }
    write(&session, 4).await;
    session.must("FLUSH").await;
    let mut expected = made.content(&session).await;
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    eventually("three checkpoints are kept", || manifests(&data_dir).len() == 3).await;
    server.kill();

    // The newest manifest is damaged.
    let newest = manifests(&data_dir).pop().expect("there is one");
    let mut bytes = std::fs::read(&newest).expect("it can be read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&newest, bytes).expect("it can be written");
    names.forget(&newest);
    let name = newest.file_name().expect("a name").to_string_lossy().into_owned();
    let there = format!("{}, {}.", numbers[1], numbers[2]);
    let report = server.try_restart().expect_err("the newest checkpoint can't be read");
    assert!(report.contains(&name) && report.contains("--from-checkpoint") && report.contains(&there), "{report}");
    let report = server.try_restart_from(numbers[0]).expect_err("that one is not kept any more");
    assert!(report.contains(&format!("no checkpoint {}", numbers[0])) && report.contains(&there), "{report}");

    // From the oldest one there is, at another parallelism.
    server.set("parallelism", "3");
    server.try_restart_from(numbers[1]).unwrap_or_else(|report| panic!("{report}"));
    session = server.connect().await;
    check(&made, &session, &expected, "from the oldest checkpoint").await;
    write(&session, 5).await;
    let number = checkpoint(&session).await;
    assert!(number > numbers[3], "checkpoint {number} comes after {}", numbers[3]);
    names.note(&data_dir);
    session.must("FLUSH").await;
    expected = made.content(&session).await;
    eventually("the damaged one goes with the next", || !newest.exists()).await;
    server.kill();

    // From the newest, as always; then that one is taken away altogether, and the one before it is the newest.
    server.set("parallelism", "1");
    server.restart();
    session = server.connect().await;
    check(&made, &session, &expected, "from the checkpoint after").await;
    write(&session, 6).await;
    let removed = checkpoint(&session).await;
    names.note(&data_dir);
    write(&session, 7).await;
    session.must("FLUSH").await;
    expected = made.content(&session).await;
    server.kill();
    let newest = manifests(&data_dir).pop().expect("there is one");
    std::fs::remove_file(&newest).expect("it can be removed");
    server.set("parallelism", "2");
    server.restart();
    session = server.connect().await;
    check(&made, &session, &expected, "without the newest checkpoint").await;
    let number = checkpoint(&session).await;
    assert!(number > removed, "checkpoint {number} comes after {removed}");
    names.note(&data_dir);
    assert!(!newest.exists(), "the number of a manifest that was removed was used again");

    // The connector went back with the state over it: no event is missing and none is there twice.
    let total = session.must_count("SELECT count(*) FROM all_bids").await;
    let deadline = tokio::time::Instant::now() + crate::server::PATIENCE;
    while session.must_count("SELECT sum(n) FROM bids").await < total {
        assert!(tokio::time::Instant::now() < deadline, "the connector does not come to its end");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let batch = session
        .must_query("SELECT auction % 7 AS a, count(*) AS n, sum(price) AS price, max(price) AS most FROM all_bids GROUP BY auction % 7")
        .await;
    let shown = session.must_query("SELECT * FROM bids").await;
    if let Some(difference) = batch.difference(&shown, crate::rows::Comparison::Exact) {
        panic!("the view over the connector:\n{difference}");
    }
    let (problems, _) = made.check(&session).await;
    assert!(problems.is_empty(), "at the end:\n{}", problems.join("\n"));
    run::say(&format!("older_checkpoint: {} names in the store, none used twice", names.0.len()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_kept_from_the_oldest_checkpoint_on_and_no_further() {
    let mut server = Server::start(&settings(&[("parallelism", "1"), ("checkpoint_interval", "1 h"), ("checkpoints_retained", "2")]));
    let data_dir = server.data_dir().to_path_buf();
    let mut session = server.connect().await;
    let view = "CREATE MATERIALIZED VIEW lengths AS SELECT length(s) AS l, count(*) AS n FROM big GROUP BY length(s)";
    session.must("CREATE TABLE big (id BIGINT PRIMARY KEY, s TEXT)").await;
    session.must(view).await;
    let mut made = Made::default();
    made.note(view);
    let segments = || -> Vec<String> {
        let entries = std::fs::read_dir(data_dir.join("log")).expect("the folder is there").flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    let first = segments();
    let mut numbers = Vec::new();
    for round in 0..4 {
        // More than a segment of the log; behind the last checkpoint but one more than two, so that one could be gone that is needed.
        let rows = if round == 3 { 20 } else { 9 };
        for id in round * 9..round * 9 + rows {
            let bytes = 2_000_000 + round;
            session.must(&format!("INSERT INTO big VALUES ({id}, repeat('x', {bytes}))")).await;
        }
        numbers.push(checkpoint(&session).await);
    }
    // Old segments are removed beside the answer.
    eventually("old segments of the log are removed", || segments().first() != first.first()).await;
    session.must("INSERT INTO big VALUES (-1, 'last')").await;
    session.must("FLUSH").await;
    let expected = made.content(&session).await;
    assert_eq!(expected.row_count(), 5);
    server.kill();
    server.try_restart_from(numbers[2]).unwrap_or_else(|report| panic!("{report}"));
    session = server.connect().await;
    let differences = expected.differences(&made.content(&session).await);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    let (problems, _) = made.check(&session).await;
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    // The state came from the checkpoint: a view that was built anew would have read the table's rows.
    assert_eq!(session.must_count("SELECT count(*) FROM weir_jobs WHERE restarts > 0").await, 0);
}
