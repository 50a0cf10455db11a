//! Batch queries far over the memory that they may hold: right answers from disk, or a refusal that says why; never the end of the server.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::full_disk::SmallDisk;
use crate::run;
use crate::server::{PATIENCE, Server, Session, describe, settings, sql_state};

/// The least that can be set: queries have a fifth of it.
const LITTLE: (&str, &str) = ("memory", "64 MiB");

/// Rows of which about a hundred bytes each are kept by whoever keeps them, over twice what queries may hold in all.
const BIG: &str = "CREATE TABLE big (id BIGINT, v BIGINT, s TEXT) WITH (connector = 'datagen', 'rows-per-second' = '0', 'seed' = '7', \
     'fields.id.kind' = 'sequence', 'fields.id.start' = '1', 'fields.id.end' = '250000', 'fields.v.min' = '0', 'fields.v.max' = '1000000', \
     'fields.s.length' = '80')";

/// Queries that keep much, and what they keep it for.
const QUERIES: &[(&str, &str)] = &[
    (
        "sort",
        "SELECT count(*), sum(CASE WHEN v < before THEN 1 ELSE 0 END), sum(place * (id % 1000)), max(length(s)) FROM \
         (SELECT id, v, s, lag(v) OVER (ORDER BY v, s, id) AS before, row_number() OVER (ORDER BY v, s, id) AS place FROM big) x",
    ),
    (
        "sort of wide rows",
        "SELECT count(*), sum(length(w)) FROM (SELECT repeat(s, 12) AS w FROM big WHERE id <= 60000 ORDER BY s DESC, v LIMIT 55000) x",
    ),
    ("groups", "SELECT count(*), sum(n), sum(t % 1009), min(length(s)) FROM (SELECT s, count(*) AS n, sum(v) AS t FROM big GROUP BY s) x"),
    ("distinct", "SELECT count(*), sum(length(s)) FROM (SELECT DISTINCT s, id FROM big) x"),
    ("inner join", "SELECT count(*), sum(a.v % 1013 * (b.id % 7)), sum(length(a.s || b.s)) FROM big a JOIN big b ON a.id = b.id + 1"),
    ("left join", "SELECT count(*), count(b.id), sum(length(b.s)) FROM big a LEFT JOIN big b ON a.id = b.id * 2 AND b.v > 1000"),
    ("full join", "SELECT count(*), count(a.id), count(b.id) FROM big a FULL JOIN big b ON a.id = b.id + 5 AND a.s <> b.s"),
    (
        "semi join",
        "SELECT count(*), sum(id % 1009), max(length(s)) FROM big a WHERE EXISTS (SELECT 1 FROM big b WHERE b.v = a.v AND b.id > a.id AND b.s <> a.s)",
    ),
    (
        "anti join",
        "SELECT count(*), sum(id % 1009), max(length(s)) FROM big a WHERE NOT EXISTS (SELECT 1 FROM big b WHERE b.v = a.v AND b.id > a.id AND b.s <> a.s)",
    ),
    (
        "join without an equality",
        "SELECT count(*), count(b.x), sum(a.id % 1009 * b.x), max(length(a.s)) FROM big a LEFT JOIN few b ON a.id < b.x",
    ),
    (
        "join without an equality over groups",
        "SELECT count(*), count(b.x), sum(a.n * b.x) FROM (SELECT s, id, count(*) AS n FROM big GROUP BY s, id) a LEFT JOIN few b ON a.id < b.x",
    ),
    (
        "EXISTS over pairs",
        "SELECT count(*), sum(id % 1009) FROM big a WHERE EXISTS (SELECT 1 FROM big b WHERE b.id = a.id + 1 AND b.v > a.v)",
    ),
    ("NOT IN", "SELECT count(*), sum(id % 1009), max(length(s)) FROM big WHERE s NOT IN (SELECT s FROM big WHERE id > 200000)"),
    ("NOT IN with NULLs", "SELECT count(*) FROM big WHERE s NOT IN (SELECT CASE WHEN id > 3 THEN s END FROM big)"),
    (
        "correlated NOT IN",
        "SELECT count(*), sum(id % 1009) FROM big a WHERE v NOT IN (SELECT v FROM big b WHERE b.id = a.id + 1 AND b.s > a.s)",
    ),
    ("IN", "SELECT count(*), sum(id % 1009), max(length(s)) FROM big WHERE s IN (SELECT s FROM big WHERE id > 100000)"),
    (
        "LIMIT behind a large OFFSET",
        "SELECT count(*), sum(id), max(length(s)) FROM (SELECT id, s FROM big ORDER BY s, id LIMIT 10000 OFFSET 235000) x",
    ),
    ("OFFSET", "SELECT count(*), sum(id), max(length(s)) FROM (SELECT id, s FROM big ORDER BY v DESC, s OFFSET 100000) x"),
    ("LIMIT", "SELECT count(*), sum(id), max(length(s)) FROM (SELECT id, s FROM big ORDER BY s, v LIMIT 200000) x"),
    ("EXCEPT", "SELECT count(*), sum(id % 1009) FROM (SELECT id, s FROM big EXCEPT SELECT id * 2, s FROM big) x"),
];

/// Of those, the ones with sorts that may get no memory beside one another.
const MAY_BE_REFUSED: &[&str] = &[
    "inner join",
    "left join",
    "full join",
    "join without an equality",
    "join without an equality over groups",
    "LIMIT behind a large OFFSET",
    "EXCEPT",
];

async fn prepared(server: &Server) -> Session {
    let session = server.connect().await;
    session.must(BIG).await;
    session.must("CREATE TABLE few (x BIGINT PRIMARY KEY)").await;
    session.must("INSERT INTO few VALUES (3), (70000), (200000)").await;
    session
}

/// The files that queries have on the disk.
fn spilled(data_dir: &Path) -> Vec<String> {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect::<Vec<_>>();
    let folders = entries(&data_dir.join("scratch/queries"));
    folders.iter().flat_map(|folder| entries(folder)).map(|path| path.display().to_string()).collect()
}

async fn until_none_is_spilled(server: &Server) {
    let deadline = Instant::now() + PATIENCE;
    while !spilled(server.data_dir()).is_empty() {
        assert!(Instant::now() < deadline, "left behind: {:?}", spilled(server.data_dir()));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_into_memory_is_answered_from_disk() {
    // Small against what would be held without a limit, large against what a server takes by itself.
    const MOST_GROWTH: u64 = 600 << 20;
    let (little, much) = (Server::start(&settings(&[LITTLE])), Server::start(&settings(&[])));
    let (session, other) = (prepared(&little).await, prepared(&much).await);
    session.must("CREATE MATERIALIZED VIEW doubled AS SELECT sum(x * 2) AS d FROM few").await;
    let before = little.memory().0;
    let mut refused = Vec::new();
    for (name, sql) in QUERIES {
        let expected = other.must_query(sql).await.rows;
        // A join whose sorts get no memory beside one another may be refused, and has no wrong answer.
        match session.query(sql).await {
            Ok(answer) => assert_eq!(answer.rows, expected, "{name}"),
            Err(error) if !MAY_BE_REFUSED.contains(name) => panic!("{name}: {}", describe(&error)),
            Err(error) => {
                assert_eq!(sql_state(&error).as_deref(), Some("53200"), "{name}: {}", describe(&error));
                refused.push(*name);
            }
        }
        until_none_is_spilled(&little).await;
    }
    run::say(&format!("queries over memory: refused: {refused:?}"));
    // What can only be done in memory is refused.
    for (name, sql) in [
        ("window over all", "SELECT max(t) FROM (SELECT sum(v) OVER () AS t, s FROM big) x WHERE s <> ''"),
        ("cross join", "SELECT count(*) FROM big a CROSS JOIN few b WHERE length(a.s) + b.x > 0"),
    ] {
        match session.query(sql).await {
            Ok(answer) => assert_eq!(answer.rows, other.must_query(sql).await.rows, "{name}"),
            Err(error) => {
                let told = error.as_db_error().unwrap_or_else(|| panic!("{name}: {}", describe(&error)));
                assert_eq!(told.code().code(), "53200", "{name}: {}", describe(&error));
                assert!(told.hint().is_some_and(|hint| hint.contains("memory")), "{name}: {}", describe(&error));
            }
        }
        until_none_is_spilled(&little).await;
    }
    let error = session.query("SELECT max(t) FROM (SELECT sum(v) OVER () AS t, s FROM big) x WHERE s <> ''").await;
    assert_eq!(error.err().as_ref().and_then(sql_state).as_deref(), Some("53200"));
    // Texts that are far longer than what they are made of are made few at a time.
    for (sql, expected) in [
        ("SELECT sum(length(repeat(s, 20000))) FROM big WHERE id <= 2000", 2_000 * 80 * 20_000),
        ("SELECT sum(length(w) + id) FROM (SELECT repeat('x', 1000000) AS w, id FROM big WHERE id <= 3000) x", 0),
        ("SELECT max(length(lpad(s, 1000000, 'xy'))) FROM big WHERE id <= 3000", 1_000_000),
    ] {
        let length = session.must_count(sql).await;
        assert!(length == expected || expected == 0 && length > 2_900_000_000, "{sql}: {length}");
    }
    let growth = little.memory().1.saturating_sub(before);
    run::say(&format!("queries over memory: {} MiB above what the server has by itself", growth >> 20));
    assert!(growth < MOST_GROWTH, "{} MiB", growth >> 20);
    // Jobs have gone on.
    session.must("INSERT INTO few VALUES (7)").await;
    session.must("FLUSH").await;
    assert_eq!(session.must_count("SELECT d FROM doubled").await, 540_020);
}

/// Waits until a query has files on the disk.
async fn until_spilled(server: &Server) {
    let deadline = Instant::now() + PATIENCE;
    while spilled(server.data_dir()).is_empty() {
        assert!(Instant::now() < deadline, "nothing goes to disk");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Sorts far more than a hundred megabytes.
const SPILLING: &str = "SELECT max(place + length(w) - 480) FROM (SELECT row_number() OVER (ORDER BY w, v) AS place, w FROM (SELECT repeat(s, 6) AS w, v FROM big) x) y";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_query_has_on_disk_goes_with_it() {
    let mut server = Server::start(&settings(&[LITTLE]));
    let session = prepared(&server).await;
    // A cancel request.
    let canceller = session.canceller();
    let mut running = std::pin::pin!(session.execute(SPILLING));
    let ended = tokio::select! {
        ended = &mut running => panic!("it has not been on disk: {ended:?}"),
        () = until_spilled(&server) => {
            canceller.cancel().await;
            running.await
        }
    };
    assert_eq!(ended.err().as_ref().and_then(sql_state).as_deref(), Some("57014"));
    until_none_is_spilled(&server).await;
    // The end of the process.
    let mut running = std::pin::pin!(session.execute(SPILLING));
    tokio::select! {
        ended = &mut running => panic!("it has not been on disk: {ended:?}"),
        () = until_spilled(&server) => server.kill(),
    }
    assert!(!spilled(server.data_dir()).is_empty());
    server.restart();
    assert_eq!(spilled(server.data_dir()), Vec::<String>::new());
    let session = server.connect().await;
    assert_eq!(session.must_count("SELECT count(*) FROM big").await, 250_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_ends_a_query_that_needs_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let disk_folder = folder.path().join("disk");
    std::fs::create_dir(&disk_folder).expect("a folder for the disk");
    let disk = match SmallDisk::mount(&disk_folder, "48m") {
        Ok(disk) => disk,
        Err(reason) => return run::skip("queries on a full disk", &format!("a small file system can't be mounted: {reason}")),
    };
    let log = folder.path().join("server.log");
    let server = Server::start_in(&disk_folder.join("data"), &log, &settings(&[LITTLE])).unwrap_or_else(|problem| panic!("{problem}"));
    let session = prepared(&server).await;
    let error = session.execute(SPILLING).await.expect_err("there is no room for it");
    assert_eq!(sql_state(&error).as_deref(), Some("53100"), "{}", describe(&error));
    until_none_is_spilled(&server).await;
    disk.grow("1g");
    assert_eq!(session.must_count(SPILLING).await, 250_000);
    drop(server);
}
