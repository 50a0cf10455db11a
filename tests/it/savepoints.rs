//! Savepoints, and views that change their query: whatever is taken over of the state, the answer is the batch answer of the present query over the
//! present rows; where rows can't be read again, each is counted once, in one run or the other.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::random::generator::{Case, Step};
use crate::run;
use crate::server::{PATIENCE, Server, Session, describe, settings, sql_state};

async fn rows(session: &Session, sql: &str) -> Vec<Vec<String>> {
    let rows = session.text_rows(sql).await.unwrap_or_else(|e| panic!("{sql}\n{}", describe(&e)));
    let mut rows: Vec<Vec<String>> =
        rows.into_iter().map(|row| row.into_iter().map(|value| value.unwrap_or_else(|| "NULL".into())).collect()).collect();
    rows.sort();
    rows
}

/// The SQLSTATE and the whole text of a statement's refusal.
async fn refusal(session: &Session, sql: &str) -> (String, String) {
    match session.text_rows(sql).await {
        Ok(rows) => panic!("{sql} was not refused, and gave {rows:?}"),
        Err(error) => (sql_state(&error).unwrap_or_default(), describe(&error)),
    }
}

/// Views and the query of each, over stored tables and views.
const QUERIES: [(&str, &str); 5] = [
    ("totals", "SELECT owner, count(*) AS n, sum(amount) AS total, max(amount) AS most FROM accounts GROUP BY owner"),
    ("odd", "SELECT id, amount FROM accounts WHERE id % 2 = 1"),
    ("amounts", "SELECT amount FROM accounts"),
    ("everything", "SELECT count(DISTINCT owner) AS owners, min(amount) AS least FROM accounts"),
    ("sizes", "SELECT n, count(*) AS owners, sum(total) AS total FROM totals GROUP BY n UNION ALL SELECT 0, 0, sum(v) FROM events"),
];

const TABLES: &str = "CREATE TABLE accounts (id BIGINT PRIMARY KEY, owner INT, amount BIGINT); CREATE TABLE events (v BIGINT)";

/// Rows that come, change and go.
async fn write(session: &Session, from: i64, count: i64) {
    let values: Vec<String> = (from..from + count).map(|id| format!("({id}, {}, {})", id % 7, (id * 37) % 101)).collect();
    session.must(&format!("INSERT INTO accounts VALUES {}", values.join(", "))).await;
    let events: Vec<String> = (from..from + count).map(|id| format!("({})", id % 3)).collect();
    session.must(&format!("INSERT INTO events VALUES {}", events.join(", "))).await;
}

async fn change(session: &Session) {
    session.must("UPDATE accounts SET amount = amount + 1000, owner = owner + 1 WHERE id % 5 = 0").await;
    session.must("DELETE FROM accounts WHERE id % 11 = 3").await;
    session.must("DELETE FROM events WHERE v = 2").await;
}

async fn check(session: &Session, view: &str, query: &str) {
    session.must("FLUSH").await;
    assert_eq!(rows(session, &format!("SELECT * FROM {view}")).await, rows(session, query).await, "{view}: {query}");
}

/// By uid, what EXPLAIN says.
async fn verdicts(session: &Session, sql: &str) -> Vec<(String, String)> {
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
    session.must("DROP SAVEPOINT IF EXISTS sp_totals").await;
    // What began with them needs them no more.
    server.kill();
    server.restart();
    let session = server.connect().await;
    for (view, query) in QUERIES {
        check(&session, &format!("{view}_1"), query).await;
    }
}

/// A stream that can't be read again, since its rows come at a rate; it ends.
const STREAM: &str = "CREATE TABLE bid (auction BIGINT, price BIGINT, bidder BIGINT) WITH (connector = 'nexmark', 'table' = 'bid',
    'events.num' = '40000', 'events.rate' = '20000')";
/// The same rows, all at once.
const WHOLE: &str = "CREATE TABLE whole (auction BIGINT, price BIGINT, bidder BIGINT) WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '40000')";

async fn eventually_equal(session: &Session, view: &str, query: &str) {
    let expected = rows(session, query).await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let shown = rows(session, &format!("SELECT * FROM {view}")).await;
        if shown == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{view} is not {query}: {shown:?} for {expected:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn until_rows(session: &Session, view: &str) {
    let deadline = Instant::now() + PATIENCE;
    while session.must_count(&format!("SELECT count(*) FROM {view}")).await == 0 {
        assert!(Instant::now() < deadline, "{view} stays empty");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_goes_on_where_the_savepoint_has_it() {
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "200 ms")]));
    let session = server.connect().await;
    session.must(STREAM).await;
    session.must(WHOLE).await;
    let query = |from: &str| format!("SELECT auction % 5 AS a, count(*) AS n, max(price) AS best FROM {from} GROUP BY auction % 5");
    session.must(&format!("CREATE MATERIALIZED VIEW hot AS {}", query("bid"))).await;
    until_rows(&session, "hot").await;
    session.must("CREATE SAVEPOINT sp FOR hot").await;
    let seen = session.must_count("SELECT sum(n) FROM hot").await;
    assert!(seen < 36_800, "the stream has ended before it was to be met: {seen}");

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
    let deadline = Instant::now() + PATIENCE;
    while rows(&session, "SELECT a, best, n FROM more").await != rows(&session, &kept).await {
        assert!(Instant::now() < deadline, "what was kept is not exact");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eventually_equal(&session, "less", &format!("SELECT best FROM ({best}) AS w")).await;
    let (late, all) =
        (session.must_count("SELECT sum(late)::bigint FROM more").await, session.must_count("SELECT sum(price)::bigint FROM whole").await);
    assert!(late > 0 && late < all, "{late} of {all}: what is new counts from the savepoint on");
    assert_eq!(session.must_count("SELECT sum(n) FROM frozen").await, frozen, "rows that a filter keeps out were counted");
    run::say(&format!("a stream from a savepoint: {seen} of 36800 rows before it"));
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
    write(&session, 500, 50).await;
    change(&session).await;
    for (at, (query, _, _)) in changed.into_iter().enumerate() {
        check(&session, &format!("c{at}"), query).await;
    }
    check(&session, "w", other).await;
    check(&session, "x", before).await;
    check(&session, "v", before).await;
}

/// The changes that the files in `root` hold: for each row, how often it is there.
fn lines(root: &Path) -> Vec<String> {
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
    let out = tempfile::tempdir().expect("a folder");
    let server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "100 ms")]));
    let session = server.connect().await;
    session.must(STREAM).await;
    session.must(WHOLE).await;
    let options = format!("WITH (connector = 'file', path = '{}', format = 'csv')", out.path().display());
    session.must(&format!("CREATE SINK copied {options} AS SELECT auction, price, bidder FROM bid")).await;
    let deadline = Instant::now() + PATIENCE;
    while lines(out.path()).is_empty() {
        assert!(Instant::now() < deadline, "nothing is written");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    session.must("ALTER JOB copied STOP WITH SAVEPOINT stopped").await;
    assert_eq!(refusal(&session, "ALTER JOB copied RESUME").await.0, "42704");
    let first = lines(out.path());
    assert!(!first.is_empty() && first.len() < 36_800, "{}", first.len());
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
        assert_eq!(refusal(&session, "CREATE SAVEPOINT other FOR totals AT 'relative'").await.0, "22023");
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
    let data = |name: &str| name.ends_with(".sst");
    let others = |name: &str| !name.ends_with(".sst");
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
    // A table that has other columns now is read again.
    session.must("DROP TABLE accounts CASCADE").await;
    session.must("CREATE TABLE accounts (id BIGINT PRIMARY KEY, owner INT, amount BIGINT, note TEXT)").await;
    session.must("INSERT INTO accounts VALUES (1, 2, 3, 'x'), (2, 2, 4, NULL)").await;
    let explained = rows(&session, &format!("EXPLAIN {}", create("third"))).await;
    assert!(explained.iter().all(|row| row[2] == "rebuilt") && explained[0][3].contains("other columns"), "{explained:?}");
    session.must(&create("third")).await;
    check(&session, "third", query).await;
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
        Err(error) if sql_state(&error).as_deref() == Some("0A000") => false,
        Err(error) => panic!("{sql}\n{}", describe(&error)),
    }
}

/// Generated tables, changes and views: each view goes on from a savepoint, with its own query and with one that is a little different.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generated_views_go_on_with_queries_that_change() {
    let mut random = run::random("savepoints");
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "1 s")]));
    let (mut verdicts, mut compared, mut altered) = (std::collections::BTreeMap::<String, usize>::new(), 0, 0);
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
        // In place, as far as nobody reads them.
        for (view, _, other) in drawn.changed.iter().filter(|(view, _, _)| made.contains(view)) {
            let is_read = drawn.changed.iter().any(|(_, query, changed)| query.contains(view.as_str()) || changed.contains(view.as_str()));
            if !is_read && accepted(&session, &format!("ALTER MATERIALIZED VIEW {view} ALLOW NON RESTORED STATE AS {other}")).await {
                altered += 1;
                assert_eq!(rows(&session, &format!("SELECT * FROM {view}")).await, rows(&session, other).await, "{view}: {other}");
                expected.push((view.clone(), other.clone()));
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
    run::say(&format!("savepoints of generated views: {compared} comparisons, {altered} changed in place, verdicts {verdicts:?}"));
    let met = |verdict: &str| verdicts.get(verdict).copied().unwrap_or(0);
    assert!(met("reused") > 10 && met("rebuilt") > 5 && altered > 3 && compared > 40, "the cases show too little: {verdicts:?}");
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
    let mut random = run::random("savepoint kills");
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
        let pause = Duration::from_millis(random.below(150));
        tokio::select! {
            done = session.execute(&statement) => {
                done.unwrap_or_else(|e| panic!("{statement}\n{}", describe(&e)));
                acknowledged += 1;
                present = pending_query.take().unwrap_or(present);
                moving = pending_moving.take().unwrap_or(moving);
            }
            () = tokio::time::sleep(pause) => {}
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
}

/// Of a running job and of savepoints, state shows what the rows amount to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_is_read_as_rows() {
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    session.must(TABLES).await;
    session.must("CREATE TABLE owners (id INT PRIMARY KEY, name TEXT); INSERT INTO owners VALUES (1, 'one'), (2, 'two')").await;
    for (view, query) in QUERIES {
        session.must(&format!("CREATE MATERIALIZED VIEW {view} AS {query}")).await;
    }
    session.must("CREATE MATERIALIZED VIEW owners_of AS SELECT amount, count(DISTINCT owner) AS n FROM accounts GROUP BY amount").await;
    write(&session, 0, 200).await;
    change(&session).await;
    session.must("FLUSH").await;
    session.must("SET parallelism = 3").await;
    session.must(&format!("CREATE MATERIALIZED VIEW wider AS {}", QUERIES[0].1)).await;
    let read = |sql: String| {
        let session = &session;
        async move { rows(session, &sql).await }
    };
    let totals = read("SELECT owner, CAST(sum(amount) AS BIGINT) FROM accounts GROUP BY owner".into()).await;
    assert!(totals.len() > 3, "{totals:?}");
    for view in ["totals", "wider"] {
        let state = format!("state('{view}', 'aggregate(owner)')");
        assert_eq!(read(format!("SELECT owner, CAST(sum_amount AS BIGINT) FROM {state}")).await, totals, "{view}");
        // MAX keeps each value with its count, the greatest first.
        assert_eq!(
            read(format!("SELECT * FROM state('{view}', 'aggregate(owner)', 'counts of amount')")).await,
            read("SELECT owner, amount, count(*) FROM accounts GROUP BY owner, amount".into()).await
        );
        assert_eq!(
            read(format!(
                "SELECT name, CAST(s.sum_amount AS BIGINT) FROM {state} AS s JOIN owners ON s.owner = owners.id WHERE s.owner < 2"
            ))
            .await,
            read(
                "SELECT name, CAST(sum(amount) AS BIGINT) FROM accounts JOIN owners ON owner = owners.id WHERE owner < 2 GROUP BY name"
                    .into()
            )
            .await
        );
    }
    assert_eq!(
        read("SELECT * FROM state('owners_of', 'aggregate(amount)', 'counts of owner')".into()).await,
        read("SELECT amount, owner, count(*) FROM accounts GROUP BY amount, owner".into()).await
    );
    // Rows with a key are themselves; rows without have a count.
    for (view, query) in &QUERIES[..2] {
        assert_eq!(read(format!("SELECT * FROM state('{view}', '{view}/rows')")).await, read((*query).into()).await, "{view}");
    }
    let amounts = read("SELECT amount, count(*) FROM accounts GROUP BY amount".into()).await;
    assert_eq!(read("SELECT * FROM state('amounts', 'amounts/rows', 'rows')".into()).await, amounts);

    // A savepoint shows what was, also when the view is gone.
    session.must("CREATE SAVEPOINT of_totals FOR totals; CREATE SAVEPOINT of_amounts FOR amounts").await;
    session.must("DROP MATERIALIZED VIEW sizes; DROP MATERIALIZED VIEW totals; DROP MATERIALIZED VIEW amounts").await;
    write(&session, 500, 50).await;
    let saved = "SELECT owner, CAST(sum_amount AS BIGINT) FROM savepoint_state('of_totals', 'aggregate(owner)')";
    assert_eq!(read(saved.into()).await, totals);
    let folder =
        read("SHOW SAVEPOINTS".into()).await.into_iter().find(|row| row[0] == "of_amounts").map(|row| row[5].clone()).unwrap_or_default();
    assert_eq!(read(format!("SELECT * FROM savepoint_state('{folder}', 'amounts/rows')")).await, amounts);

    for (sql, code, text) in [
        ("SELECT * FROM state('nothing', 'u')", "42704", "\"wider\""),
        ("SELECT * FROM state('wider', 'u')", "42704", "\"aggregate(owner)\""),
        ("SELECT * FROM state('wider', 'aggregate(owner)', 'other')", "42704", "\"counts of amount\""),
        ("SELECT * FROM savepoint_state('nothing', 'u')", "42704", "nothing"),
        ("SELECT * FROM state('wider')", "22023", "state('job', 'uid'"),
        ("SELECT * FROM state('wider', 'aggregate(owner)', 7)", "0A000", "older checkpoint"),
        ("CREATE MATERIALIZED VIEW bad AS SELECT * FROM state('wider', 'aggregate(owner)')", "0A000", "state(...)"),
        ("CREATE VIEW bad AS SELECT * FROM state('wider', 'aggregate(owner)')", "0A000", "state(...)"),
    ] {
        let (found, message) = refusal(&session, sql).await;
        assert!(found == code && message.contains(text), "{sql}: {message}");
    }
}
