//! Savepoints, and views that change their query: whatever is taken over of the state, the answer is the batch answer of the present query over the
//! present rows; where rows can't be read again, each is counted once, in one run or the other.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weir::job::engine::Seams;

use crate::embedded::{Effect, Embedded, Gate, eventually};
use crate::random::generator::{Case, Step};
use crate::run;
use crate::server::{PATIENCE, Server, Session, describe, settings, sql_state};

mod branches;
mod columns;
mod concurrent;
mod files;
mod matching;
mod random_streams;
mod stopped;

pub async fn rows(session: &Session, sql: &str) -> Vec<Vec<String>> {
    let rows = session.text_rows(sql).await.unwrap_or_else(|e| panic!("{sql}\n{}", describe(&e)));
    let mut rows: Vec<Vec<String>> =
        rows.into_iter().map(|row| row.into_iter().map(|value| value.unwrap_or_else(|| "NULL".into())).collect()).collect();
    rows.sort();
    rows
}

/// The SQLSTATE and the whole text of a statement's refusal.
pub async fn refusal(session: &Session, sql: &str) -> (String, String) {
    match session.text_rows(sql).await {
        Ok(rows) => panic!("{sql} was not refused, and gave {rows:?}"),
        Err(error) => (sql_state(&error).unwrap_or_default(), describe(&error)),
    }
}

/// Views and the query of each, over stored tables and views.
pub const QUERIES: [(&str, &str); 5] = [
    ("totals", "SELECT owner, count(*) AS n, sum(amount) AS total, max(amount) AS most FROM accounts GROUP BY owner"),
    ("odd", "SELECT id, amount FROM accounts WHERE id % 2 = 1"),
    ("amounts", "SELECT amount FROM accounts"),
    ("everything", "SELECT count(DISTINCT owner) AS owners, min(amount) AS least FROM accounts"),
    ("sizes", "SELECT n, count(*) AS owners, sum(total) AS total FROM totals GROUP BY n UNION ALL SELECT 0, 0, sum(v) FROM events"),
];

pub const TABLES: &str = "CREATE TABLE accounts (id BIGINT PRIMARY KEY, owner INT, amount BIGINT); CREATE TABLE events (v BIGINT)";

/// Rows that come, change and go.
pub async fn write(session: &Session, from: i64, count: i64) {
    let values: Vec<String> = (from..from + count).map(|id| format!("({id}, {}, {})", id % 7, (id * 37) % 101)).collect();
    session.must(&format!("INSERT INTO accounts VALUES {}", values.join(", "))).await;
    let events: Vec<String> = (from..from + count).map(|id| format!("({})", id % 3)).collect();
    session.must(&format!("INSERT INTO events VALUES {}", events.join(", "))).await;
}

pub async fn change(session: &Session) {
    session.must("UPDATE accounts SET amount = amount + 1000, owner = owner + 1 WHERE id % 5 = 0").await;
    session.must("DELETE FROM accounts WHERE id % 11 = 3").await;
    session.must("DELETE FROM events WHERE v = 2").await;
}

pub async fn check(session: &Session, view: &str, query: &str) {
    session.must("FLUSH").await;
    assert_eq!(rows(session, &format!("SELECT * FROM {view}")).await, rows(session, query).await, "{view}: {query}");
}

/// By uid, what EXPLAIN says.
pub async fn verdicts(session: &Session, sql: &str) -> Vec<(String, String)> {
    rows(session, sql).await.into_iter().map(|row| (row[0].clone(), row[2].clone())).collect()
}

fn verdict(uid: &str, verdict: &str) -> (String, String) {
    (uid.to_string(), verdict.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_go_on_from_savepoints_whatever_was_written_since() {
    let mut server = Server::start(&settings(&[("parallelism", "2")]));
    let mut session = server.connect().await;
    session.must(TABLES).await;
    for (view, query) in QUERIES {
        session.must(&format!("CREATE MATERIALIZED VIEW {view} AS {query}")).await;
    }
    write(&session, 0, 200).await;
    for (view, _) in QUERIES {
        session.must(&format!("CREATE SAVEPOINT sp_{view} FOR {view}")).await;
    }
    let listed = rows(&session, "SHOW SAVEPOINTS").await;
    assert_eq!(listed.iter().map(|row| row[1].as_str()).collect::<Vec<_>>(), ["amounts", "everything", "odd", "sizes", "totals"]);
    let described = rows(&session, "DESCRIBE SAVEPOINT sp_totals").await;
    let groups = described.iter().find(|row| row[0] == "aggregate(owner)" && row[1] == "groups").unwrap_or_else(|| panic!("{described:?}"));
    assert_eq!((groups[3].as_str(), groups[7].as_str()), ("owner int32", "0..64, 64..128"));
    assert!(groups[4].contains("sum_amount"), "{groups:?}");

    change(&session).await;
    write(&session, 300, 100).await;
    for (round, parallelism) in ["1", "3", "2"].into_iter().enumerate() {
        session.must(&format!("SET parallelism = {parallelism}")).await;
        for (view, query) in QUERIES {
            let explained =
                verdicts(&session, &format!("EXPLAIN CREATE MATERIALIZED VIEW {view}_{round} FROM SAVEPOINT sp_{view} AS {query}")).await;
            assert!(explained.iter().all(|(_, verdict)| verdict == "reused"), "{view}: {explained:?}");
            session.must(&format!("CREATE MATERIALIZED VIEW {view}_{round} FROM SAVEPOINT sp_{view} AS {query}")).await;
            // At once, without FLUSH: all rows from before are there.
            assert_eq!(
                rows(&session, &format!("SELECT * FROM {view}_{round}")).await,
                rows(&session, query).await,
                "{view}, round {round}"
            );
        }
        write(&session, 1000 + 100 * round as i64, 30).await;
        change(&session).await;
        // All that began with one savepoint go their own ways.
        for (view, query) in QUERIES {
            for other in 0..=round {
                check(&session, &format!("{view}_{other}"), query).await;
            }
            check(&session, view, query).await;
        }
        server.kill();
        server.restart();
        session = server.connect().await;
        for (view, query) in QUERIES {
            for other in 0..=round {
                let shown = rows(&session, &format!("SELECT * FROM {view}_{other}")).await;
                assert_eq!(shown, rows(&session, query).await, "{view}_{other} after a kill");
            }
        }
    }
    for (view, _) in QUERIES {
        session.must(&format!("DROP SAVEPOINT sp_{view}")).await;
    }
    assert!(rows(&session, "SHOW SAVEPOINTS").await.is_empty());
    assert_eq!(refusal(&session, "DROP SAVEPOINT sp_totals").await.0, "42704");
    // All of them, or none.
    session.must("CREATE SAVEPOINT stays FOR totals").await;
    assert_eq!(refusal(&session, "DROP SAVEPOINT stays, sp_totals").await.0, "42704");
    session.must("DROP SAVEPOINT stays, stays").await;
    session.must("DROP SAVEPOINT IF EXISTS sp_totals").await;
    // What began with them needs them no more.
    server.kill();
    server.restart();
    let session = server.connect().await;
    for (view, query) in QUERIES {
        check(&session, &format!("{view}_1"), query).await;
    }
}

/// A stream that can't be read again, since its rows come at a rate; it ends after so many seconds.
fn stream(seconds: u64) -> String {
    format!(
        "CREATE TABLE bid (auction BIGINT, price BIGINT, bidder BIGINT) WITH (connector = 'nexmark', 'table' = 'bid',
         'events.num' = '40000', 'events.rate' = '{}')",
        40_000 / seconds
    )
}
/// How long the stream is: longer where the machine was so slow that it had ended before it was met.
const STREAM_SECONDS: [u64; 3] = [2, 20, 100];
/// The rows of the stream.
const STREAM_ROWS: usize = 36_800;
/// How long what depends on the end of the stream is waited for.
const STREAM_PATIENCE: Duration = Duration::from_secs(300);
/// The same rows, all at once.
const WHOLE: &str = "CREATE TABLE whole (auction BIGINT, price BIGINT, bidder BIGINT) WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '40000')";

pub async fn eventually_equal(session: &Session, view: &str, query: &str) {
    let expected = rows(session, query).await;
    let deadline = Instant::now() + STREAM_PATIENCE;
    loop {
        let shown = rows(session, &format!("SELECT * FROM {view}")).await;
        if shown == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{view} is not {query}: {shown:?} for {expected:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn until_rows(session: &Session, view: &str, count: i64) {
    let deadline = Instant::now() + PATIENCE;
    while session.must_count(&format!("SELECT count(*) FROM {view}")).await < count {
        assert!(Instant::now() < deadline, "{view} does not have {count} rows");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_goes_on_where_the_savepoint_has_it() {
    for seconds in STREAM_SECONDS {
        if a_stream_goes_on(seconds).await {
            return;
        }
    }
    panic!("the stream has always ended before it was met");
}

/// False where the stream has ended before it was to be met.
async fn a_stream_goes_on(seconds: u64) -> bool {
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "200 ms")]));
    let session = server.connect().await;
    session.must(&stream(seconds)).await;
    session.must(WHOLE).await;
    let query = |from: &str| format!("SELECT auction % 5 AS a, count(*) AS n, max(price) AS best FROM {from} GROUP BY auction % 5");
    session.must(&format!("CREATE MATERIALIZED VIEW hot AS {}", query("bid"))).await;
    // All groups, so that what begins with the savepoint has them at once.
    until_rows(&session, "hot", 5).await;
    session.must("CREATE SAVEPOINT sp FOR hot").await;
    let seen = session.must_count("SELECT sum(n) FROM hot").await;
    if seen >= STREAM_ROWS as i64 {
        return false;
    }

    // The same query, at another parallelism: in the end every row is counted once.
    session.must("SET parallelism = 3").await;
    session.must(&format!("CREATE MATERIALIZED VIEW again FROM SAVEPOINT sp AS {}", query("bid"))).await;
    // An aggregate less, and one more that counts from now on: what is kept is exact.
    let changed = "SELECT auction % 5 AS a, max(price) AS best, count(*) AS n, sum(price) AS late FROM bid GROUP BY auction % 5";
    let explained = rows(&session, &format!("EXPLAIN CREATE MATERIALIZED VIEW more FROM SAVEPOINT sp AS {changed}")).await;
    let aggregate = explained.iter().find(|row| row[1] == "aggregate").unwrap_or_else(|| panic!("{explained:?}"));
    assert_eq!(aggregate[2], "converted", "{explained:?}");
    assert!(aggregate[3].contains("counted from now on") && aggregate[3].contains("sum_price"), "{explained:?}");
    let kept = explained.iter().find(|row| row[0] == "more/rows").unwrap_or_else(|| panic!("{explained:?}"));
    assert!(kept[2] == "rebuilt" && kept[3].contains("filled from the state before it"), "{explained:?}");
    session.must(&format!("CREATE MATERIALIZED VIEW more FROM SAVEPOINT sp AS {changed}")).await;
    // Only other columns after the aggregate: its groups are all there at once.
    session.must("CREATE MATERIALIZED VIEW less FROM SAVEPOINT sp AS SELECT max(price) AS best FROM bid GROUP BY auction % 5").await;
    assert_eq!(session.must_count("SELECT count(*) FROM less").await, session.must_count("SELECT count(*) FROM again").await);
    // A filter: from now on only.
    let filtered = "SELECT auction % 5 AS a, count(*) AS n, max(price) AS best FROM bid WHERE price < 0 GROUP BY auction % 5";
    session.must(&format!("CREATE MATERIALIZED VIEW frozen FROM SAVEPOINT sp AS {filtered}")).await;
    let frozen = session.must_count("SELECT sum(n) FROM frozen").await;

    server.kill();
    server.restart();
    let session = server.connect().await;
    for view in ["hot", "again"] {
        eventually_equal(&session, view, &query("whole")).await;
    }
    let best = query("whole");
    let kept = format!("SELECT a, best, n FROM ({best}) AS w");
    let deadline = Instant::now() + STREAM_PATIENCE;
    while rows(&session, "SELECT a, best, n FROM more").await != rows(&session, &kept).await {
        assert!(Instant::now() < deadline, "what was kept is not exact");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eventually_equal(&session, "less", &format!("SELECT best FROM ({best}) AS w")).await;
    let (late, all) =
        (session.must_count("SELECT sum(late)::bigint FROM more").await, session.must_count("SELECT sum(price)::bigint FROM whole").await);
    assert!(late > 0 && late < all, "{late} of {all}: what is new counts from the savepoint on");
    assert_eq!(session.must_count("SELECT sum(n) FROM frozen").await, frozen, "rows that a filter keeps out were counted");
    run::say(&format!("a stream from a savepoint: {seen} of {STREAM_ROWS} rows before it"));
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_query_has_its_batch_answer() {
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    session.must(TABLES).await;
    write(&session, 0, 150).await;
    // A group that nothing touches any more: only the state has it.
    session.must("INSERT INTO accounts VALUES (100001, 99, 5)").await;
    let before = "SELECT owner, count(*) AS n, sum(amount) AS total FROM accounts GROUP BY owner";
    session.must(&format!("CREATE MATERIALIZED VIEW v AS {before}")).await;
    session.must("CREATE SAVEPOINT sp FOR v").await;
    change(&session).await;
    // Each with what becomes of the groups and of the rows.
    let changed = [
        ("SELECT owner, sum(amount) AS total, count(*) AS n FROM accounts GROUP BY owner", "reused", "rebuilt"),
        ("SELECT owner, count(*) AS n FROM accounts GROUP BY owner", "converted", "rebuilt"),
        ("SELECT owner AS o, count(*) AS c, sum(amount) AS t FROM accounts GROUP BY owner", "reused", "reused"),
        (
            "SELECT owner, n, total FROM (SELECT owner, count(*) AS n, sum(amount) AS total FROM accounts GROUP BY owner) AS s WHERE n > 20",
            "reused",
            "rebuilt",
        ),
        ("SELECT owner, count(*) AS n, sum(amount) AS total, max(amount) AS most FROM accounts GROUP BY owner", "rebuilt", "rebuilt"),
        ("SELECT owner, count(*) AS n, sum(amount) AS total FROM accounts WHERE id > 50 GROUP BY owner", "rebuilt", "rebuilt"),
        ("SELECT owner, count(*) AS n, sum(amount) AS total FROM accounts GROUP BY owner HAVING count(*) > 20", "reused", "rebuilt"),
    ];
    for (at, (query, groups, kept)) in changed.into_iter().enumerate() {
        let explained = verdicts(&session, &format!("EXPLAIN CREATE MATERIALIZED VIEW c{at} FROM SAVEPOINT sp AS {query}")).await;
        assert_eq!(explained, [verdict("aggregate(owner)", groups), verdict(&format!("c{at}/rows"), kept)], "{query}");
        session.must(&format!("CREATE MATERIALIZED VIEW c{at} FROM SAVEPOINT sp AS {query}")).await;
        assert_eq!(rows(&session, &format!("SELECT * FROM c{at}")).await, rows(&session, query).await, "{query}");
    }
    // Where the columns look the same, what they are computed from is said.
    let doubled = "SELECT owner, count(*) * 2 AS n, sum(amount) AS total FROM accounts GROUP BY owner";
    let explained = rows(&session, &format!("EXPLAIN CREATE MATERIALIZED VIEW d FROM SAVEPOINT sp AS {doubled}")).await;
    let reason = explained.iter().find(|row| row[0] == "d/rows").map(|row| row[3].as_str()).unwrap_or_default();
    assert!(reason.starts_with("n was count(*)") && reason.contains(", and is ") && reason.contains('2'), "{explained:?}");
    assert!(!reason.contains("total"), "{explained:?}");
    // Other keys: nothing fits, and the state is left behind only where that is said.
    let other = "SELECT id % 3 AS k, count(*) AS n FROM accounts GROUP BY id % 3";
    let (code, text) = refusal(&session, &format!("CREATE MATERIALIZED VIEW w FROM SAVEPOINT sp AS {other}")).await;
    assert!(code == "55000" && text.contains("aggregate(owner)"), "{text}");
    session.must(&format!("CREATE MATERIALIZED VIEW w FROM SAVEPOINT sp ALLOW NON RESTORED STATE AS {other}")).await;
    // Under another uid, with the map that says so.
    let hinted = "SELECT /*+ uid('per owner') */ owner, count(*) AS n, sum(amount) AS total FROM accounts GROUP BY owner";
    assert_eq!(refusal(&session, &format!("CREATE MATERIALIZED VIEW x FROM SAVEPOINT sp AS {hinted}")).await.0, "55000");
    let mapped = format!("CREATE MATERIALIZED VIEW x FROM SAVEPOINT sp ('aggregate(owner)' AS 'per owner') AS {hinted}");
    assert_eq!(verdicts(&session, &format!("EXPLAIN {mapped}")).await, [verdict("per owner", "reused"), verdict("x/rows", "reused")]);
    session.must(&mapped).await;
    assert_eq!(refusal(&session, &mapped.replace("VIEW x", "VIEW y").replace("'aggregate(owner)'", "'nobody'")).await.0, "42704");
    // In place, with the same map: a view, and a sink.
    let out = tempfile::tempdir().expect("a folder");
    session.must(&format!("CREATE MATERIALIZED VIEW in_place AS {before}")).await;
    session
        .must(&format!(
            "CREATE SINK s_in_place WITH (connector = 'file', path = '{}', format = 'csv', row_kind = 'kind') AS {before}",
            out.path().display()
        ))
        .await;
    for (job, own) in [("in_place", "in_place/rows"), ("s_in_place", "s_in_place/sink")] {
        let altered = format!("{job} ('aggregate(owner)' AS 'per owner') AS {hinted}");
        let plain = format!("{job} AS {hinted}");
        assert!(!verdicts(&session, &format!("EXPLAIN UPGRADE {plain}")).await.contains(&verdict("per owner", "reused")), "{job}");
        let explained = verdicts(&session, &format!("EXPLAIN UPGRADE {altered}")).await;
        let mut expected = [verdict("per owner", "reused"), verdict(own, "reused")];
        expected.sort();
        assert_eq!(explained, expected, "{job}");
        assert_eq!(refusal(&session, &format!("ALTER JOB {job} (nobody AS 'per owner') AS {hinted}")).await.0, "42704");
        session.must(&format!("ALTER JOB {altered}")).await;
    }
    write(&session, 500, 50).await;
    change(&session).await;
    check(&session, "in_place", before).await;
    for (at, (query, _, _)) in changed.into_iter().enumerate() {
        check(&session, &format!("c{at}"), query).await;
    }
    check(&session, "w", other).await;
    check(&session, "x", before).await;
    check(&session, "v", before).await;
}

/// The changes that the files in `root` hold: for each row, how often it is there.
pub fn lines(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        if entry.path().is_file() && !entry.file_name().to_string_lossy().starts_with(['.', '_']) {
            lines.extend(std::fs::read_to_string(entry.path()).expect("a file").lines().map(str::to_string));
        }
    }
    lines.sort();
    lines
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_stops_with_a_savepoint_and_another_goes_on() {
    for seconds in STREAM_SECONDS {
        if a_sink_stops(seconds).await {
            return;
        }
    }
    panic!("the stream has always ended before it was met");
}

/// False where the stream has ended before it was to be met.
async fn a_sink_stops(seconds: u64) -> bool {
    let out = tempfile::tempdir().expect("a folder");
    let server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "100 ms")]));
    let session = server.connect().await;
    session.must(&stream(seconds)).await;
    session.must(WHOLE).await;
    let options = format!("WITH (connector = 'file', path = '{}', format = 'csv')", out.path().display());
    session.must(&format!("CREATE SINK copied {options} AS SELECT auction, price, bidder FROM bid")).await;
    let deadline = Instant::now() + STREAM_PATIENCE;
    while lines(out.path()).is_empty() {
        assert!(Instant::now() < deadline, "nothing is written");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    session.must("ALTER JOB copied STOP WITH SAVEPOINT stopped").await;
    assert_eq!(refusal(&session, "ALTER JOB copied RESUME").await.0, "42704");
    let first = lines(out.path());
    assert!(!first.is_empty());
    session.must(&format!("CREATE SINK copied {options} FROM SAVEPOINT stopped AS SELECT auction, price, bidder FROM bid")).await;
    let expected: Vec<String> =
        rows(&session, "SELECT auction, price, bidder FROM whole").await.into_iter().map(|row| row.join(",")).collect();
    let mut expected = expected;
    expected.sort();
    while lines(out.path()).len() < expected.len() {
        assert!(Instant::now() < deadline, "{} of {} rows", lines(out.path()).len(), expected.len());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(lines(out.path()), expected, "a row is missing or there twice");
    run::say(&format!("a sink stopped with a savepoint: {} of {} rows before it", first.len(), expected.len()));
    first.len() < STREAM_ROWS
}

/// The file of the savepoint in `folder` that `pick` says.
fn file_of(folder: &Path, pick: impl Fn(&str) -> bool) -> PathBuf {
    let entries = std::fs::read_dir(folder.join("files")).expect("a savepoint").flatten();
    let found = entries.map(|entry| entry.path()).find(|path| path.file_name().is_some_and(|name| pick(&name.to_string_lossy())));
    found.unwrap_or_else(|| panic!("{} has no such file", folder.display()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_data_folders_read_savepoints_and_damage_is_named() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path().join("kept");
    let location = folder.display().to_string();
    let query = QUERIES[0].1;
    {
        let server = Server::start(&settings(&[("parallelism", "2")]));
        let session = server.connect().await;
        session.must(TABLES).await;
        session.must(&format!("CREATE MATERIALIZED VIEW totals AS {query}")).await;
        write(&session, 0, 100).await;
        session.must(&format!("CREATE SAVEPOINT kept FOR totals AT '{location}'")).await;
        assert_eq!(refusal(&session, "CREATE SAVEPOINT kept FOR totals").await.0, "42710");
        assert_eq!(refusal(&session, &format!("CREATE SAVEPOINT other FOR totals AT '{location}'")).await.0, "42710");
        assert_eq!(refusal(&session, "CREATE SAVEPOINT other FOR accounts").await.0, "42809");
        assert_eq!(refusal(&session, "CREATE SAVEPOINT other FOR nobody").await.0, "42704");
        assert_eq!(refusal(&session, "CREATE SAVEPOINT other FOR totals AT ''").await.0, "22023");
        assert_eq!(refusal(&session, "CREATE SAVEPOINT other FOR totals AT 'http://a/b'").await.0, "0A000");
        assert_eq!(refusal(&session, &format!("CREATE SAVEPOINT other FOR totals AT '{location}/files/other'")).await.0, "22023");
        session.must("BEGIN").await;
        assert_eq!(refusal(&session, "CREATE SAVEPOINT other FOR totals").await.0, "25001");
        session.must("ROLLBACK").await;
        assert_eq!(rows(&session, "SHOW SAVEPOINTS").await[0][5], location);
    }
    let mut server = Server::start(&settings(&[("parallelism", "3")]));
    let session = server.connect().await;
    session.must(TABLES).await;
    // Other rows under the same keys, some rows less, some more.
    write(&session, 50, 100).await;
    change(&session).await;
    let create = |view: &str| format!("CREATE MATERIALIZED VIEW {view} FROM SAVEPOINT '{location}' AS {query}");
    session.must(&create("first")).await;
    check(&session, "first", query).await;
    assert_eq!(rows(&session, &format!("DESCRIBE SAVEPOINT '{location}'")).await.len(), 3);

    // A flipped byte in each kind of file, a missing one, a newer format, a half-written one. Nothing is changed by the attempt.
    // In RocksDB, or not yet.
    let data = |name: &str| name.ends_with(".sst") || name.contains("-recent-");
    let others = |name: &str| !data(name);
    for pick in [&data as &dyn Fn(&str) -> bool, &others] {
        let path = file_of(&folder, pick);
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let content = std::fs::read(&path).expect("a file");
        let mut broken = content.clone();
        let middle = broken.len() / 2;
        broken[middle] ^= 1;
        std::fs::remove_file(&path).expect("a file");
        std::fs::write(&path, &broken).expect("a file");
        let (code, text) = refusal(&session, &create("broken")).await;
        assert!(code == "XX001" && text.contains(&name), "{text}");
        std::fs::remove_file(&path).expect("a file");
        let (code, text) = refusal(&session, &create("broken")).await;
        assert!(code == "XX001" && text.contains(&name) && text.contains("missing"), "{text}");
        std::fs::write(&path, &content).expect("a file");
    }
    let metadata = folder.join("SAVEPOINT");
    let content = std::fs::read(&metadata).expect("a file");
    for at in [3, content.len() / 3, content.len() - 2] {
        let mut broken = content.clone();
        broken[at] ^= 1;
        std::fs::write(&metadata, &broken).expect("a file");
        let (code, text) = refusal(&session, &create("broken")).await;
        assert!(code == "XX001" && text.contains(&location), "{text}");
    }
    let json = &content[content.iter().position(|byte| *byte == b'\n').expect("a header") + 1..];
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    hasher.update(b"9");
    hasher.update(json);
    let newer = [format!("weir-savepoint 9 {:016x}\n", hasher.digest()).as_bytes(), json].concat();
    std::fs::write(&metadata, newer).expect("a file");
    let (code, text) = refusal(&session, &create("broken")).await;
    assert!(code == "0A000" && text.contains("format 9"), "{text}");
    std::fs::remove_file(&metadata).expect("a file");
    let (code, text) = refusal(&session, &create("broken")).await;
    assert!(code == "42704" && text.contains("not completed"), "{text}");
    std::fs::write(&metadata, &content).expect("a file");
    assert!(rows(&session, "SELECT name FROM weir_jobs").await == [["first"]], "an attempt that failed left something behind");
    session.must(&create("second")).await;
    server.kill();
    server.restart();
    let session = server.connect().await;
    for view in ["first", "second"] {
        check(&session, view, query).await;
    }
    // A table of which other columns are read now is read again; one more that nobody reads is not looked at.
    for (view, owner, kept) in [("third", "INT NOT NULL", false), ("fourth", "INT", true)] {
        session.must("DROP TABLE accounts CASCADE").await;
        session.must(&format!("CREATE TABLE accounts (id BIGINT PRIMARY KEY, owner {owner}, amount BIGINT, note TEXT)")).await;
        session.must("INSERT INTO accounts VALUES (1, 2, 3, 'x'), (2, 2, 4, NULL)").await;
        let explained = rows(&session, &format!("EXPLAIN {}", create(view))).await;
        let verdict = if kept { "reused" } else { "rebuilt" };
        assert!(explained.iter().all(|row| row[2] == verdict), "{explained:?}");
        assert!(kept || explained[0][3].contains("other columns"), "{explained:?}");
        session.must(&create(view)).await;
        check(&session, view, query).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_takes_another_query_and_readers_see_one_or_the_other() {
    let mut server = Server::start(&settings(&[("parallelism", "2")]));
    let mut session = server.connect().await;
    session.must(TABLES).await;
    write(&session, 0, 120).await;
    session.must(&format!("CREATE MATERIALIZED VIEW totals AS {}", QUERIES[0].1)).await;
    let queries = [
        "SELECT owner, count(*) AS n FROM accounts GROUP BY owner",
        "SELECT owner, count(*) AS n, min(amount) AS least FROM accounts WHERE id > 10 GROUP BY owner",
        "SELECT id, amount FROM accounts WHERE amount > 50",
        "SELECT count(*) AS n FROM events",
        QUERIES[0].1,
    ];
    for (at, query) in queries.into_iter().enumerate() {
        let lossy = if at >= 2 { "ALLOW NON RESTORED STATE " } else { "" };
        let explained = verdicts(&session, &format!("EXPLAIN UPGRADE totals AS {query}")).await;
        assert!(explained.iter().any(|(uid, _)| uid == "totals/rows"), "{explained:?}");
        session.must(&format!("ALTER MATERIALIZED VIEW totals {lossy}AS {query}")).await;
        assert_eq!(rows(&session, "SELECT * FROM totals").await, rows(&session, query).await, "{query}");
        write(&session, 200 + 50 * at as i64, 20).await;
        change(&session).await;
        check(&session, "totals", query).await;
        server.kill();
        server.restart();
        session = server.connect().await;
        check(&session, "totals", query).await;
        assert_eq!(rows(&session, "SELECT name, state FROM weir_jobs").await, [["totals", "running"]]);
    }
    assert_eq!(refusal(&session, "ALTER MATERIALIZED VIEW totals AS SELECT nothing FROM accounts").await.0, "42703");
    let (code, text) = refusal(&session, "ALTER MATERIALIZED VIEW totals AS SELECT id FROM accounts").await;
    assert!(code == "55000" && text.contains("ALLOW NON RESTORED STATE"), "{text}");
    check(&session, "totals", QUERIES[0].1).await;
}

/// Runs a statement that may be refused for what views can't be made of.
async fn accepted(session: &Session, sql: &str) -> bool {
    match session.execute(sql).await {
        Ok(_) => true,
        // A view can't be made of it, or those who read the view could not go on over it.
        Err(error) if matches!(sql_state(&error).as_deref(), Some("0A000" | "2BP01" | "42P17")) => false,
        Err(error) => panic!("{sql}\n{}", describe(&error)),
    }
}

/// Generated tables, changes and views: each view goes on from a savepoint, with its own query and with one that is a little different.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generated_views_go_on_with_queries_that_change() {
    let mut random = run::random("savepoints");
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "1 s")]));
    let (mut verdicts, mut compared, mut altered, mut read) = (std::collections::BTreeMap::<String, usize>::new(), 0, 0, 0);
    for case in 0..run::rounds(8, 200) {
        let drawn = Case::drawn(&mut random, &format!("s{case}_"));
        let mut session = server.connect().await;
        let mut made: Vec<String> = Vec::new();
        let late = drawn.steps.len() * 2 / 3;
        for (at, step) in drawn.steps.iter().enumerate() {
            if at == late {
                for view in &made {
                    session.must(&format!("CREATE SAVEPOINT of_{view} FOR {view}")).await;
                }
            }
            match step {
                Step::Create { name, sql } if sql.starts_with("CREATE MATERIALIZED") => {
                    let query = sql.split_once(" AS ").map_or("", |(_, query)| query);
                    let inputs_there = drawn.changed.iter().all(|(view, _, _)| !query.contains(view.as_str()) || made.contains(view));
                    if at < late && inputs_there && accepted(&session, sql).await {
                        made.push(name.clone());
                    }
                }
                Step::Create { sql, .. } => {
                    session.must(sql).await;
                }
                Step::Change(statements) => {
                    for statement in statements {
                        if let Err(error) = session.execute(statement).await {
                            // A key that was used before.
                            assert_eq!(sql_state(&error).as_deref(), Some("23505"), "{statement}\n{}", describe(&error));
                        }
                    }
                }
                Step::Compare | Step::Checkpoint | Step::Restart { .. } => {}
            }
        }
        session.must(&format!("SET parallelism = {}", 1 + random.below(4))).await;
        let mut expected: Vec<(String, String)> = Vec::new();
        for (view, query, other) in drawn.changed.iter().filter(|(view, _, _)| made.contains(view)) {
            for (suffix, query) in [("same", query), ("other", other)] {
                let from = format!("{view}_{suffix} FROM SAVEPOINT of_{view} ALLOW NON RESTORED STATE AS {query}");
                if accepted(&session, &format!("CREATE MATERIALIZED VIEW {from}")).await {
                    for row in rows(&session, &format!("EXPLAIN CREATE MATERIALIZED VIEW x{from}")).await {
                        *verdicts.entry(row[2].clone()).or_default() += 1;
                    }
                    let name = format!("{view}_{suffix}");
                    assert_eq!(rows(&session, &format!("SELECT * FROM {name}")).await, rows(&session, query).await, "{name}: {query}");
                    expected.push((name, query.clone()));
                }
            }
        }
        // In place, also where others read them: those go on over the changed view.
        expected
            .extend(drawn.changed.iter().filter(|(view, _, _)| made.contains(view)).map(|(view, query, _)| (view.clone(), query.clone())));
        for (view, _, other) in drawn.changed.iter().filter(|(view, _, _)| made.contains(view)) {
            let is_read = expected.iter().any(|(name, query)| name != view && query.contains(view.as_str()));
            if accepted(&session, &format!("ALTER MATERIALIZED VIEW {view} ALLOW NON RESTORED STATE AS {other}")).await {
                altered += 1;
                read += usize::from(is_read);
                expected.retain(|(name, _)| name != view);
                expected.push((view.clone(), other.clone()));
                for (name, query) in &expected {
                    if name == view || query.contains(view.as_str()) {
                        check(&session, name, query).await;
                    }
                }
            }
        }
        for step in &drawn.steps {
            if let Step::Change(statements) = step
                && let [statement] = statements.as_slice()
                && !statement.starts_with("INSERT")
            {
                session.must(statement).await;
            }
        }
        for killed in [false, true] {
            if killed {
                server.kill();
                server.restart();
                session = server.connect().await;
            }
            for (name, query) in &expected {
                check(&session, name, query).await;
                compared += 1;
            }
        }
        for statement in drawn.clean_up() {
            session.must(&statement).await;
        }
        for view in &made {
            session.must(&format!("DROP SAVEPOINT of_{view}")).await;
        }
    }
    run::say(&format!(
        "savepoints of generated views: {compared} comparisons, {altered} changed in place, {read} of them read by others, verdicts {verdicts:?}"
    ));
    let met = |verdict: &str| verdicts.get(verdict).copied().unwrap_or(0);
    assert!(
        met("reused") > 10 && met("rebuilt") > 5 && altered > 3 && read > 0 && compared > 40,
        "the cases show too little: {verdicts:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_was_stopped_is_rebuilt_without_the_savepoint_that_it_began_with() {
    let place = tempfile::tempdir().expect("a folder");
    let location = place.path().join("kept");
    let server = Server::start(&settings(&[("parallelism", "2"), ("restart_attempts", "0")]));
    let session = server.connect().await;
    session.must(TABLES).await;
    write(&session, 0, 50).await;
    session.must("UPDATE accounts SET amount = 1 WHERE amount = 0").await;
    let query = "SELECT owner, sum(1000 / amount) AS s FROM accounts GROUP BY owner";
    session.must(&format!("CREATE MATERIALIZED VIEW v AS {query}")).await;
    session.must(&format!("CREATE SAVEPOINT sp FOR v AT '{}'", location.display())).await;
    session.must(&format!("CREATE MATERIALIZED VIEW w FROM SAVEPOINT sp AS {query}")).await;
    // Nothing but the savepoint goes with it.
    std::fs::write(location.join("notes.txt"), "mine").expect("a file");
    session.must("DROP SAVEPOINT sp").await;
    let left: Vec<_> = std::fs::read_dir(&location).expect("a folder").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["notes.txt"]);
    session.must("INSERT INTO accounts VALUES (999, 1, 0)").await;
    assert_eq!(refusal(&session, "FLUSH").await.0, "22012");
    let (code, text) = refusal(&session, "CREATE SAVEPOINT other FOR w").await;
    assert!(code == "55000" && text.contains("RESUME"), "{text}");
    session.must("DELETE FROM accounts WHERE id = 999").await;
    session.must("ALTER JOB v RESUME").await;
    session.must("ALTER JOB w RESUME").await;
    for view in ["v", "w"] {
        check(&session, view, query).await;
    }
}

/// Kills in the midst of what makes, uses and drops savepoints: each statement is whole or did nothing, and every view has its batch answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_leave_savepoints_whole_or_absent() {
    let (mut random, mut cuts) = (run::random("savepoint kills"), run::Cuts::within(150));
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "300 ms")]));
    let queries = [QUERIES[0].1, "SELECT owner, count(*) AS n FROM accounts WHERE id % 3 <> 0 GROUP BY owner"];
    {
        let session = server.connect().await;
        session.must(TABLES).await;
        session.must(&format!("CREATE MATERIALIZED VIEW totals AS {}", queries[0])).await;
        write(&session, 0, 2000).await;
        session.must("CREATE SAVEPOINT first FOR totals").await;
    }
    // What is true of the view and of the savepoint "moving" as of the last answer, and what the statement under way would make true.
    let (mut present, mut pending_query) = (0, None::<usize>);
    let (mut moving, mut pending_moving) = (false, None::<bool>);
    let mut acknowledged = 0;
    for round in 0..run::rounds(14, 200) {
        let session = server.connect().await;
        let shown = rows(&session, "SELECT * FROM totals").await;
        // Which query the view has: the one from before, or the one that the killed statement was to give it.
        let mut fits = Vec::new();
        for query in std::iter::once(present).chain(pending_query) {
            if rows(&session, queries[query]).await == shown {
                fits.push(query);
            }
        }
        present = *fits.first().unwrap_or_else(|| panic!("round {round}: the view has neither answer: {shown:?}"));
        let listed: Vec<String> = rows(&session, "SHOW SAVEPOINTS").await.into_iter().map(|row| format!("{} {}", row[0], row[6])).collect();
        let there = listed.contains(&"moving NULL".to_string());
        assert!(there == moving || Some(there) == pending_moving, "round {round}: {listed:?}");
        assert!(
            listed.contains(&"first NULL".to_string()) && listed.iter().all(|entry| entry.ends_with(" NULL")),
            "round {round}: {listed:?}"
        );
        moving = there;
        let jobs = rows(&session, "SELECT name FROM weir_jobs").await;
        assert!(jobs.iter().all(|job| ["totals", "branch"].contains(&job[0].as_str())), "round {round}: {jobs:?}");
        if jobs.iter().any(|job| job[0] == "branch") {
            assert_eq!(rows(&session, "SELECT * FROM branch").await, rows(&session, queries[0]).await, "round {round}: the branch");
            session.must("DROP MATERIALIZED VIEW branch").await;
        }
        write(&session, 10_000 + 100 * round as i64, 20).await;
        (pending_query, pending_moving) = (None, None);
        let statement = match (round % 4, moving) {
            (0, false) => {
                pending_moving = Some(true);
                "CREATE SAVEPOINT moving FOR totals".to_string()
            }
            (0 | 1, true) => {
                pending_moving = Some(false);
                "DROP SAVEPOINT moving".to_string()
            }
            (1 | 2, _) => format!("CREATE MATERIALIZED VIEW branch FROM SAVEPOINT first AS {}", queries[0]),
            _ => {
                pending_query = Some(1 - present);
                format!("ALTER MATERIALIZED VIEW totals ALLOW NON RESTORED STATE AS {}", queries[1 - present])
            }
        };
        tokio::select! {
            done = session.execute(&statement) => {
                done.unwrap_or_else(|e| panic!("{statement}\n{}", describe(&e)));
                acknowledged += 1;
                present = pending_query.take().unwrap_or(present);
                moving = pending_moving.take().unwrap_or(moving);
            }
            () = cuts.next(&mut random) => {}
        }
        server.kill();
        server.set("parallelism", &(1 + random.below(4)).to_string());
        server.restart();
    }
    let session = server.connect().await;
    // What a killed CREATE left may be whole.
    session.must("DROP MATERIALIZED VIEW IF EXISTS branch").await;
    session.must("DROP SAVEPOINT first").await;
    run::say(&format!("savepoint kills: {} rounds, {acknowledged} statements were answered", run::rounds(14, 200)));
    assert!(acknowledged > 0, "no statement was ever done before the kill");
}

/// What is kept is brought to a wider type, in values, in the values that MAX and DISTINCT count, and in keys, which move to other key groups.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wider_types_keep_the_state() {
    let mut server = Server::start(&settings(&[("parallelism", "2")]));
    let mut session = server.connect().await;
    session.must(TABLES).await;
    write(&session, 0, 200).await;
    // Groups that nothing touches any more, and one of NULL.
    session.must("INSERT INTO accounts VALUES (100001, 99, 5), (100002, -7, 6), (100003, NULL, 7), (100004, NULL, NULL)").await;
    let pairs = [
        (
            "SELECT /*+ uid('agg') */ owner, count(*) AS n, max(owner) AS most, min(owner) AS least, count(DISTINCT owner) AS d, sum(owner) AS s FROM accounts GROUP BY owner",
            "SELECT /*+ uid('agg') */ owner::bigint AS owner, count(*) AS n, max(owner::bigint) AS most, min(owner::numeric(20,3)) AS least,
                count(DISTINCT owner::numeric(12,0)) AS d, sum(owner) AS s FROM accounts GROUP BY owner::bigint",
            "converted",
        ),
        (
            "SELECT amount, max(owner) AS most, count(DISTINCT owner) AS d FROM accounts GROUP BY amount",
            "SELECT amount, max(owner::bigint) AS most, count(DISTINCT owner::numeric(14,2)) AS d FROM accounts GROUP BY amount",
            "converted",
        ),
        ("SELECT owner, amount FROM accounts", "SELECT owner::bigint AS owner, amount::numeric(25,4) AS amount FROM accounts", "converted"),
        ("SELECT id, owner FROM accounts", "SELECT id, owner::numeric(14,1) AS owner FROM accounts", "converted"),
        // A quotient of integers is another one than that of numerics.
        ("SELECT owner / 2 AS h FROM accounts", "SELECT owner::numeric(12,2) / 2 AS h FROM accounts", "rebuilt"),
        ("SELECT owner AS h FROM accounts", "SELECT (owner::bigint + 3000000000) AS h FROM accounts", "rebuilt"),
        // Narrower is no wider.
        ("SELECT amount FROM accounts", "SELECT amount::int AS amount FROM accounts", "rebuilt"),
    ];
    for (at, (query, _, _)) in pairs.iter().enumerate() {
        session.must(&format!("CREATE MATERIALIZED VIEW v{at} AS {query}; CREATE SAVEPOINT s{at} FOR v{at}")).await;
    }
    change(&session).await;
    write(&session, 300, 60).await;
    for parallelism in [3, 1] {
        session.must(&format!("SET parallelism = {parallelism}")).await;
        for (at, (_, wider, verdict)) in pairs.iter().enumerate() {
            let create = format!("CREATE MATERIALIZED VIEW w{at}_{parallelism} FROM SAVEPOINT s{at} AS {wider}");
            let explained = rows(&session, &format!("EXPLAIN {create}")).await;
            assert!(explained.iter().all(|row| row[2] == *verdict), "{wider}: {explained:?}");
            assert!(*verdict != "converted" || explained.iter().all(|row| row[3].contains("wider type")), "{explained:?}");
            session.must(&create).await;
            assert_eq!(rows(&session, &format!("SELECT * FROM w{at}_{parallelism}")).await, rows(&session, wider).await, "{wider}");
        }
    }
    for round in 0..2 {
        change(&session).await;
        write(&session, 1000 + 100 * round, 40).await;
        // What was only in the state goes.
        session.must("DELETE FROM accounts WHERE id > 100000 AND amount IS NOT NULL AND amount < 1000").await;
        for (at, (_, wider, _)) in pairs.iter().enumerate() {
            for parallelism in [3, 1] {
                check(&session, &format!("w{at}_{parallelism}"), wider).await;
            }
        }
        server.kill();
        server.restart();
        session = server.connect().await;
    }
}

/// Kills while jobs end with a savepoint: a job is gone if and only if there is the savepoint, and a sink that goes on from it writes each row once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_leave_a_job_or_the_savepoint_that_it_ends_with() {
    let mut random = run::random("stop kills");
    let out = tempfile::tempdir().expect("a folder");
    let away = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "300 ms")]));
    let query = "SELECT owner, count(*) AS n, sum(amount) AS total FROM accounts GROUP BY owner";
    let sink =
        format!("CREATE SINK changes WITH (connector = 'file', path = '{}', format = 'csv', row_kind = 'kind')", out.path().display());
    {
        let session = server.connect().await;
        session.must(TABLES).await;
        write(&session, 0, 500).await;
        session.must(&format!("CREATE MATERIALIZED VIEW totals AS {query}; {sink} AS {query}")).await;
    }
    let (mut ended, mut stayed) = (0, 0);
    let mut longest = 200;
    for round in 0..run::rounds(10, 150) {
        let session = server.connect().await;
        write(&session, 10_000 + 100 * round as i64, 20).await;
        change(&session).await;
        // Both kinds of places, for a view and for a sink.
        let job = ["changes", "totals"][round % 2];
        let at = if round % 4 < 2 { String::new() } else { format!(" AT '{}'", away.path().join(format!("{round}")).display()) };
        let statement = format!("ALTER JOB {job} STOP WITH SAVEPOINT last{round}{at}");
        let began = Instant::now();
        let acknowledged = tokio::select! {
            done = session.execute(&statement) => {
                done.unwrap_or_else(|e| panic!("{statement}\n{}", describe(&e)));
                true
            }
            () = tokio::time::sleep(Duration::from_millis(random.below(longest))) => false,
        };
        if !acknowledged {
            longest = longest.max(2 * began.elapsed().as_millis() as u64);
        }
        server.kill();
        server.set("parallelism", &(1 + random.below(3)).to_string());
        server.restart();
        let session = server.connect().await;
        let listed = rows(&session, "SHOW SAVEPOINTS").await;
        assert!(listed.iter().all(|row| row[6] == "NULL"), "round {round}: {listed:?}");
        let is_saved = listed.iter().any(|row| row[0] == format!("last{round}"));
        let runs = rows(&session, "SELECT name FROM weir_jobs").await.iter().any(|row| row[0] == job);
        assert_ne!(is_saved, runs, "round {round}: {listed:?}");
        assert!(!acknowledged || is_saved, "round {round}: what was acknowledged did not happen");
        change(&session).await;
        if is_saved {
            ended += 1;
            let create = if job == "changes" { sink.clone() } else { "CREATE MATERIALIZED VIEW totals".to_string() };
            session.must(&format!("{create} FROM SAVEPOINT last{round} AS {query}")).await;
        } else {
            stayed += 1;
        }
        check(&session, "totals", query).await;
        let deadline = Instant::now() + PATIENCE;
        loop {
            session.must("CHECKPOINT").await;
            let mut expected: Vec<String> = rows(&session, query).await.into_iter().map(|row| row.join(",")).collect();
            expected.sort();
            let written = crate::alter::content(out.path());
            if written == expected {
                break;
            }
            assert!(Instant::now() < deadline, "round {round}: the sink has {written:?}, its query gives {expected:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // What has begun with it needs it no more when it has a checkpoint of its own.
        while is_saved && let Err(error) = session.execute(&format!("DROP SAVEPOINT last{round}")).await {
            assert!(sql_state(&error).as_deref() == Some("55006") && Instant::now() < deadline, "{}", describe(&error));
            session.must("CHECKPOINT").await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    run::say(&format!("kills while jobs end with a savepoint: {ended} had ended, {stayed} stayed"));
}

/// Moves amounts between accounts, makes and removes accounts of nothing, until it is told to stop. What all accounts hold together stays.
async fn move_amounts(session: Session, seed: u64, stop: std::sync::Arc<std::sync::atomic::AtomicBool>) -> usize {
    let mut random = run::random(&format!("writer {seed}"));
    let mut committed = 0;
    let mut next = 100_000 * (seed as i64 + 1);
    while !stop.load(std::sync::atomic::Ordering::SeqCst) {
        let (from, to, amount) = (random.below(200), random.below(200), random.below(50));
        let statement = match random.below(4) {
            0 => {
                next += 1;
                format!("INSERT INTO accounts VALUES ({next}, {}, 0), ({}, NULL, 0)", random.below(9), -next)
            }
            1 => format!("DELETE FROM accounts WHERE id = {} AND amount = 0", next - random.below(10) as i64),
            2 => format!("UPDATE accounts SET owner = {} WHERE id = {from}", random.below(9)),
            _ => format!(
                "BEGIN; UPDATE accounts SET amount = amount - {amount} WHERE id = {from}; UPDATE accounts SET amount = amount + {amount} WHERE id = {to}; COMMIT"
            ),
        };
        match session.execute(&statement).await {
            Ok(_) => committed += 1,
            // Another writer was first.
            Err(error) if sql_state(&error).as_deref() == Some("40001") => drop(session.execute("ROLLBACK").await),
            Err(error) => panic!("{statement}\n{}", describe(&error)),
        }
        tokio::time::sleep(Duration::from_millis(random.below(5))).await;
    }
    committed
}

/// Savepoints while others write: each has the state of one moment between transactions, and a view that begins with it misses nothing that came after.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn savepoints_under_writers_have_one_moment_and_miss_nothing() {
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "500 ms")]));
    let session = server.connect().await;
    session.must(TABLES).await;
    let accounts: Vec<String> = (0..200).map(|id| format!("({id}, {}, 100)", id % 9)).collect();
    session.must(&format!("INSERT INTO accounts VALUES {}", accounts.join(", "))).await;
    let queries = [
        ("sums", "SELECT owner, count(*) AS n, sum(amount) AS total, min(amount) AS least FROM accounts GROUP BY owner"),
        ("held", "SELECT id, owner, amount FROM accounts WHERE amount <> 0"),
        ("by_size", "SELECT n, count(*) AS owners, sum(total) AS total FROM sums GROUP BY n"),
    ];
    for (view, query) in queries {
        session.must(&format!("CREATE MATERIALIZED VIEW {view} AS {query}")).await;
    }
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut writers = Vec::new();
    for seed in 0..3 {
        writers.push(tokio::spawn(move_amounts(server.connect().await, seed, stop.clone())));
    }
    let mut too_fast = 0;
    let rounds = run::rounds(4, 40);
    for round in 0..rounds {
        for (view, query) in queries {
            let name = format!("{view}_{round}");
            loop {
                match session.execute(&format!("CREATE SAVEPOINT {name} FOR {view}")).await {
                    Ok(_) => break,
                    Err(error) if sql_state(&error).as_deref() == Some("55P03") && too_fast < 100 => too_fast += 1,
                    Err(error) => panic!("{}", describe(&error)),
                }
            }
            let total = if view == "held" { "sum(amount)" } else { "sum(total)" };
            let state = format!("SELECT {total}::bigint FROM savepoint_state('{name}', '{view}/rows')");
            assert_eq!(session.must_count(&state).await, 20_000, "{name} is not of one moment");
            session.must(&format!("SET parallelism = {}", 1 + round % 3)).await;
            session.must(&format!("CREATE MATERIALIZED VIEW {name} FROM SAVEPOINT {name} AS {query}")).await;
            // Both as of one moment, with all that came since.
            let wrong = format!(
                "SELECT count(*) FROM ((SELECT * FROM {name} EXCEPT ({query})) UNION ALL (({query}) EXCEPT SELECT * FROM {name})) AS d"
            );
            assert_eq!(session.must_count(&wrong).await, 0, "{name}");
            session.must(&format!("DROP SAVEPOINT {name}")).await;
        }
    }
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    let mut committed = 0;
    for writer in writers {
        committed += writer.await.expect("a writer");
    }
    server.restart();
    let session = server.connect().await;
    for (view, query) in queries {
        for round in 0..rounds {
            check(&session, &format!("{view}_{round}"), query).await;
        }
    }
    assert!(committed > 0);
    run::say(&format!("savepoints under writers: {committed} transactions, {too_fast} savepoints were to be tried again"));
}

/// Who gives up a CREATE SAVEPOINT finds no savepoint afterwards, however far it was, and the same statement works at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_savepoint_whose_statement_is_cancelled_is_none() {
    let dir = tempfile::tempdir().expect("a folder");
    let gate = std::sync::Arc::new(Gate::default());
    let mut weir = Embedded::open_with(&dir.path().join("data"), &[("parallelism", "2")], gate.clone(), Seams::default()).await;
    weir.must("CREATE TABLE t (id BIGINT PRIMARY KEY); INSERT INTO t VALUES (1), (2)").await;
    weir.must("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t").await;
    let away = dir.path().join("away");
    for at in [String::new(), format!(" AT '{}'", away.display())] {
        let statement = format!("CREATE SAVEPOINT sp FOR v{at}");
        gate.add("completing", "rename", &["SAVEPOINT.tmp"], Effect::Hold);
        let mut other = weir.again();
        let cancelled = statement.clone();
        let running = tokio::spawn(async move { other.run(&cancelled).await.map(drop) });
        eventually("the savepoint is about to be complete", || gate.met("completing") == 1).await;
        running.abort();
        assert!(running.await.is_err_and(|error| error.is_cancelled()), "the statement was over before it was cancelled");
        assert!(weir.must("SHOW SAVEPOINTS").await.is_empty());
        gate.remove("completing");
        weir.must(&statement).await;
        assert_eq!(weir.must("SHOW SAVEPOINTS").await.len(), 1, "{statement}");
        weir.must("DROP SAVEPOINT sp").await;
        assert!(weir.must("SHOW SAVEPOINTS").await.is_empty() && !away.exists());
    }
    weir.close().await;
}

/// A savepoint in the data folder whose metadata is gone is no savepoint that was not completed: it stays, is shown with what is wrong, and can be dropped. What
/// is not weir's among the savepoints is left alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_savepoint_without_its_metadata_is_shown_as_damaged() {
    let mut server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    session.must(TABLES).await;
    write(&session, 0, 60).await;
    let query = QUERIES[0].1;
    session.must(&format!("CREATE MATERIALIZED VIEW totals AS {query}")).await;
    session.must("CREATE SAVEPOINT whole FOR totals; CREATE SAVEPOINT broken FOR totals").await;
    let folder = PathBuf::from(&rows(&session, "SHOW SAVEPOINTS").await[0][5]);
    server.kill();
    let metadata = folder.join("SAVEPOINT");
    let content = std::fs::read(&metadata).expect("a file");
    std::fs::remove_file(&metadata).expect("a file");
    let root = folder.parent().expect("a folder");
    std::fs::write(root.join("notes"), "mine").expect("a file");
    std::fs::create_dir(root.join("album")).expect("a folder");
    std::fs::write(root.join("album/notes"), "mine").expect("a file");
    server.restart();
    let session = server.connect().await;
    assert!(folder.join("files").is_dir(), "what is left of a damaged savepoint was removed");
    let shown = rows(&session, "SHOW SAVEPOINTS").await;
    assert_eq!(shown.iter().map(|row| row[0].as_str()).collect::<Vec<_>>(), ["broken", "whole"]);
    assert!(shown[0][6].contains(&metadata.display().to_string()) && shown[1][6] == "NULL", "{shown:?}");
    let named = metadata.display().to_string();
    let again = format!("CREATE MATERIALIZED VIEW again FROM SAVEPOINT broken AS {query}");
    for statement in ["DESCRIBE SAVEPOINT broken", &again, "SELECT * FROM savepoint_state('broken', 'totals/rows')"] {
        let (code, text) = refusal(&session, statement).await;
        assert!(code == "XX001" && text.contains(&named), "{statement}: {text}");
    }
    assert_eq!(refusal(&session, "CREATE SAVEPOINT broken FOR totals").await.0, "42710");
    assert_eq!(refusal(&session, "CREATE SAVEPOINT album FOR totals").await.0, "58030");
    std::fs::write(&metadata, &content).expect("a file");
    session.must(&again).await;
    std::fs::remove_file(&metadata).expect("a file");
    session.must("CHECKPOINT").await;
    session.must("DROP SAVEPOINT broken").await;
    assert!(!folder.exists());
    session.must("CREATE SAVEPOINT broken FOR totals").await;
    for name in ["notes", "album/notes"] {
        assert_eq!(std::fs::read_to_string(root.join(name)).expect("a file"), "mine");
    }
}

/// Paths are recorded as they are called from everywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relative_paths_hold_wherever_the_next_start_is_made_from() {
    let place = tempfile::tempdir().expect("a folder");
    // What the system calls it, where a link leads to it.
    let root = place.path().canonicalize().expect("a path");
    for folder in ["here", "there"] {
        std::fs::create_dir(root.join(folder)).expect("a folder");
    }
    let mut server =
        Server::start_from(&root.join("here"), Path::new("data"), &settings(&[("parallelism", "2"), ("checkpoint_interval", "1 h")]));
    let session = server.connect().await;
    session.must(TABLES).await;
    write(&session, 0, 60).await;
    let query = QUERIES[0].1;
    session.must(&format!("CREATE MATERIALIZED VIEW totals AS {query}")).await;
    session.must("CREATE SAVEPOINT inside FOR totals; CREATE SAVEPOINT beside FOR totals AT 'saved/beside'").await;
    let expected = [root.join("here/saved/beside"), root.join("here/data/savepoints/inside")].map(|path| path.display().to_string());
    let places = async |session: &Session| rows(session, "SHOW SAVEPOINTS").await.into_iter().map(|row| row[5].clone()).collect::<Vec<_>>();
    assert_eq!(places(&session).await, expected);
    for folder in ["scratch", "savepoints/inside", "new/one"] {
        for statement in ["CREATE SAVEPOINT lost FOR totals", "ALTER JOB totals STOP WITH SAVEPOINT lost"] {
            let (code, text) = refusal(&session, &format!("{statement} AT 'data/../data/{folder}'")).await;
            assert!(code == "22023" && text.contains("in the data folder"), "{text}");
        }
    }
    session.must(&format!("CREATE MATERIALIZED VIEW again FROM SAVEPOINT 'saved/beside' AS {query}")).await;
    assert_eq!(
        rows(&session, "SELECT * FROM savepoint_state('./saved/beside', 'totals/rows')").await,
        rows(&session, "SELECT * FROM totals").await
    );
    // What a start removes in the data folder it removes there alone, whatever else is called the same.
    let (left, others) = (root.join("here/data/origins/999"), ["here/999", "here/inside", "there/999", "there/inside", "there/half"]);
    for folder in [left.clone()].into_iter().chain(others.map(|folder| root.join(folder))) {
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("mine"), "mine").expect("a file");
    }
    let half = root.join("here/data/savepoints/half");
    std::fs::create_dir_all(half.join("files")).expect("a folder");
    std::fs::write(half.join("SAVEPOINT.tmp"), "weir-sav").expect("a file");
    // A sink that has no checkpoint of its own yet when the process dies.
    let out = root.join("out");
    session
        .must(&format!(
            "CREATE SINK written WITH (connector = 'file', path = '{}', format = 'csv', row_kind = 'kind') FROM SAVEPOINT inside ALLOW NON RESTORED STATE AS {query}",
            out.display()
        ))
        .await;
    server.kill();
    server.start_again_from(&root.join("there"), Path::new("../here/data"));
    let session = server.connect().await;
    assert!(!left.exists() && !half.exists());
    assert!(others.iter().all(|folder| root.join(folder).join("mine").is_file()), "a start has removed what is not weir's");
    let shown = places(&session).await;
    assert_eq!(shown[0], expected[0]);
    assert!(Path::new(&shown[1]).is_absolute() && Path::new(&shown[1]).join("SAVEPOINT").is_file(), "{shown:?}");
    write(&session, 200, 20).await;
    for view in ["totals", "again"] {
        check(&session, view, query).await;
    }
    session.must("CHECKPOINT").await;
    assert!(rows(&session, "SELECT name FROM weir_jobs WHERE state = 'failed'").await.is_empty());
    session.must("DROP SAVEPOINT inside, beside").await;
    assert!(!root.join("here/saved/beside").exists());
}
