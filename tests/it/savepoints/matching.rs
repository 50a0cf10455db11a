//! Savepoints whose state is of something else than what the job computes: what does not fit is not used, and a sink that can't go on is refused.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{check, eventually_equal, lines, refusal, rows, verdict, verdicts};
use crate::alter::content;
use crate::files::wait_finished;
use crate::server::{PATIENCE, Server, Session, settings};

const SMALL_TABLES: &str = "CREATE TABLE t (k INT, v INT); CREATE TABLE t3 (id BIGINT PRIMARY KEY, v BIGINT);
    INSERT INTO t VALUES (1, 10), (1, 20), (2, 30); INSERT INTO t3 VALUES (1, 1), (2, 2), (3, 3), (4, 4)";

fn changes_to(folder: &Path, name: &str) -> String {
    format!("CREATE SINK {name} WITH (connector = 'file', path = '{}', format = 'csv', row_kind = 'kind')", folder.join(name).display())
}

/// The files of the sink `name` amount to the answer of `query`, sooner or later.
async fn check_sink(session: &Session, folder: &Path, name: &str, query: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        session.must("FLUSH").await;
        session.must("CHECKPOINT").await;
        let mut expected: Vec<String> = rows(session, query).await.into_iter().map(|row| row.join(",")).collect();
        expected.sort();
        let found = content(&folder.join(name));
        if found == expected {
            return;
        }
        let jobs = rows(session, "SELECT name, state, last_error FROM weir_jobs").await;
        assert!(Instant::now() < deadline, "{name} has {found:?}, its query gives {expected:?}; {jobs:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Sinks that are stopped with a savepoint and begin with it: with their query, or with another, which takes back what is none of its result.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_begins_with_another_query_takes_back_what_it_has_written() {
    let out = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "1 h")]));
    let mut session = server.connect().await;
    session.must(SMALL_TABLES).await;
    session.must("CREATE VIEW large AS SELECT id, v FROM t3 WHERE v > 2").await;
    let counts = "SELECT k, count(*) AS c FROM t GROUP BY k";
    let sinks = [
        ("sums", counts, "SELECT k, sum(v) AS c FROM t GROUP BY k", "converted"),
        ("filtered", counts, "SELECT k, count(*) AS c FROM t WHERE v > 15 GROUP BY k", "converted"),
        ("picked", "SELECT id, v FROM t3 WHERE v > 1", "SELECT id, v FROM t3 WHERE v <> 3", "converted"),
        ("with_a_view", "SELECT id, v FROM large", "SELECT id, v FROM t3 WHERE v < 4", "converted"),
        ("same_groups", counts, counts, "reused"),
        ("same_rows", "SELECT id, v FROM t3 WHERE v > 1", "SELECT a.id, a.v FROM (SELECT * FROM t3) AS a WHERE v > 1", "reused"),
    ];
    for (name, query, _, _) in sinks {
        session.must(&format!("{} AS {query}", changes_to(out.path(), name))).await;
        check_sink(&session, out.path(), name, query).await;
        session.must(&format!("ALTER JOB {name} STOP WITH SAVEPOINT of_{name}")).await;
    }
    for (name, _, query, expected) in sinks {
        let create = format!("{} FROM SAVEPOINT of_{name} AS {query}", changes_to(out.path(), name));
        let written = lines(&out.path().join(name)).len();
        let explained = verdicts(&session, &format!("EXPLAIN {create}")).await;
        assert!(explained.contains(&verdict(&format!("{name}/sink"), expected)), "{name}: {explained:?}");
        session.must(&create).await;
        let again = create.replacen(&format!("CREATE SINK {name} "), "CREATE SINK again ", 1);
        let (code, text) = refusal(&session, &again).await;
        assert!(code == "0A000" && text.contains(&format!("\"{name}\" has begun with it")), "{text}");
        if expected == "reused" {
            session.must("CHECKPOINT").await;
            assert_eq!(lines(&out.path().join(name)).len(), written, "{name}: rows came again");
        }
    }
    // Before they have a checkpoint of their own, and after.
    for _ in 0..2 {
        server.kill();
        server.restart();
        session = server.connect().await;
        for (name, _, query, _) in sinks {
            check_sink(&session, out.path(), name, query).await;
        }
    }
    session
        .must("INSERT INTO t3 VALUES (5, 5); DELETE FROM t3 WHERE id = 4; INSERT INTO t VALUES (2, 1), (3, 50); DELETE FROM t WHERE v = 10")
        .await;
    for (name, _, query, _) in sinks {
        check_sink(&session, out.path(), name, query).await;
    }
    // A table that was made again, with other columns and rows: what was written of the former one is taken back.
    session.must("ALTER JOB picked STOP WITH SAVEPOINT again").await;
    session.must("DROP JOB with_a_view; DROP JOB same_rows; DROP VIEW large; DROP TABLE t3").await;
    session.must("CREATE TABLE t3 (w INT, id BIGINT PRIMARY KEY, v BIGINT); INSERT INTO t3 VALUES (0, 1, 1), (0, 2, 7), (0, 9, 9)").await;
    let query = sinks[2].2;
    session.must(&format!("{} FROM SAVEPOINT again AS {query}", changes_to(out.path(), "picked"))).await;
    check_sink(&session, out.path(), "picked", query).await;
}

/// Rows that a savepoint knows nothing of are not written again beside those that are there: whoever has written them, whether he still does, and whatever the
/// statement calls the place's other options.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_someone_has_written_to_since_the_savepoint_is_refused() {
    let out = tempfile::tempdir().expect("a folder");
    let server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "1 h")]));
    let session = server.connect().await;
    session.must(SMALL_TABLES).await;
    let query = "SELECT id, v FROM t3 WHERE v > 1";
    let from = |create: &str, savepoint: &str| format!("{create} FROM SAVEPOINT {savepoint} AS {query}");
    let changes = |name: &str, place: &str| changes_to(out.path(), place).replacen(&format!("SINK {place} "), &format!("SINK {name} "), 1);
    let refused = async |statement: String, named: &str| {
        for statement in [format!("EXPLAIN {statement}"), statement] {
            let (code, text) = refusal(&session, &statement).await;
            assert!(code == "0A000" && text.contains(named), "{statement}\n{text}");
        }
        session.must("FLUSH; CHECKPOINT").await;
    };
    // One that goes on, with its query or with another; and its place, called by other options.
    session.must(&format!("{} AS {query}", changes("s", "out"))).await;
    session.must("CREATE SAVEPOINT running FOR s; INSERT INTO t3 VALUES (7, 7)").await;
    refused(from(&changes("twice", "out"), "running"), "\"s\" goes on in the same place").await;
    refused(from(&changes("twice", "out").replace("csv'", "csv', roll_size = '1 MB'"), "running"), "\"s\" goes on in the same place").await;
    session.must("ALTER SINK s AS SELECT id, v FROM t3 WHERE v > 2").await;
    refused(from(&changes("twice", "out"), "running"), "\"s\" goes on in the same place").await;
    // It has gone, and what it wrote is there.
    session.must("CHECKPOINT; DROP SINK s").await;
    refused(from(&changes("twice", "out"), "running"), "\"s\" has written there after").await;
    // Elsewhere it begins, and says what is not there.
    let elsewhere = from(&changes("elsewhere", "elsewhere"), "running");
    let explained = rows(&session, &format!("EXPLAIN {elsewhere}")).await;
    let of_sink = explained.iter().find(|row| row[1] == "sink").unwrap_or_else(|| panic!("{explained:?}"));
    assert!(of_sink[2] == "reused" && of_sink[3].contains("before the savepoint"), "{of_sink:?}");
    session.must(&elsewhere).await;
    session.must("FLUSH; CHECKPOINT").await;
    assert_eq!(content(&out.path().join("elsewhere")), ["7,7"]);

    // A savepoint that one has ended with, twice: as long as the first has written nothing, there is nothing to write again.
    session.must(&format!("{} AS {query}", changes("ended", "there"))).await;
    session.must("FLUSH; CHECKPOINT; ALTER JOB ended STOP WITH SAVEPOINT sp").await;
    session.must(&from(&changes("first", "there"), "sp")).await;
    refused(from(&changes("second", "there"), "sp"), "\"first\" has begun with it").await;
    session.must("DROP SINK first").await;
    session.must(&from(&changes("second", "there"), "sp")).await;
    session.must("INSERT INTO t3 VALUES (8, 8)").await;
    check_sink(&session, out.path(), "there", query).await;
    session.must("ALTER JOB second STOP WITH SAVEPOINT sp2").await;
    refused(from(&changes("third", "there"), "sp"), "\"second\" has written there after").await;
    session.must(&from(&changes("third", "there"), "sp2")).await;
    session.must("INSERT INTO t3 VALUES (9, 9); DELETE FROM t3 WHERE id = 2").await;
    check_sink(&session, out.path(), "there", query).await;
    session.must("DROP SINK third").await;
    refused(from(&changes("fourth", "there"), "sp"), "has written there after").await;
    refused(from(&changes("fourth", "there"), "sp2"), "\"third\" has written there after").await;
}

/// A sink that could not go on from what stands where it writes is refused, and EXPLAIN refuses it too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_can_not_go_on_from_a_savepoint_is_refused() {
    let out = tempfile::tempdir().expect("a folder");
    let server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "200 ms")]));
    let session = server.connect().await;
    session.must(SMALL_TABLES).await;
    session
        .must(
            "CREATE TABLE bids (price BIGINT) WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '1000');
            CREATE VIEW large AS SELECT id, v FROM t3 WHERE v > 2;
            CREATE MATERIALIZED VIEW shown AS SELECT id, v FROM t3 WHERE v > 1; CREATE SAVEPOINT of_shown FOR shown",
        )
        .await;
    let plain =
        |name: &str| format!("CREATE SINK {name} WITH (connector = 'file', path = '{}', format = 'csv')", out.path().join(name).display());
    let (all, cheap) = ("SELECT price FROM bids", "SELECT price FROM bids WHERE price < 1000");
    let picked = "SELECT id, v FROM t3 WHERE v > 1";
    session.must(&format!("{} AS {all}", plain("of_bids"))).await;
    wait_finished(&session).await;
    for (name, query) in [("picked", picked), ("running", picked), ("with_a_view", "SELECT id, v FROM large")] {
        session.must(&format!("{} AS {query}", changes_to(out.path(), name))).await;
    }
    session.must("CREATE SAVEPOINT of_running FOR running").await;
    for name in ["of_bids", "picked", "with_a_view"] {
        session.must(&format!("ALTER JOB {name} STOP WITH SAVEPOINT of_{name}")).await;
    }
    // The savepoint has no text of the view that its query names.
    session.must("CREATE OR REPLACE VIEW large AS SELECT id, v FROM t3 WHERE v > 3").await;
    let other = "SELECT id, v FROM t3 WHERE v <> 3";
    for (create, savepoint, query, named) in [
        (plain("of_bids"), "of_of_bids", cheap, "kept nowhere"),
        (changes_to(out.path(), "elsewhere"), "of_picked", other, "does not stand where"),
        (changes_to(out.path(), "elsewhere"), "of_shown", other, "does not stand where"),
        (changes_to(out.path(), "running"), "of_running", other, "after the savepoint"),
        (changes_to(out.path(), "picked"), "of_picked", "SELECT id, v AS w FROM t3", "other columns"),
        (changes_to(out.path(), "with_a_view"), "of_with_a_view", "SELECT id, v FROM large", "may have changed"),
    ] {
        for explain in ["EXPLAIN ", ""] {
            // Whatever else it says, a sink of the same name may be there.
            let create = create.replacen("CREATE SINK ", "CREATE SINK x_", 1);
            let sql = format!("{explain}{create} FROM SAVEPOINT {savepoint} AS {query}");
            let (code, text) = refusal(&session, &sql).await;
            assert!(code == "0A000" && text.contains(named) && text.contains("ALTER SINK"), "{sql}\n{text}");
        }
    }
    // With its own query each goes on, and a view's savepoint serves a sink that writes what comes from then on.
    session.must(&format!("{} FROM SAVEPOINT of_picked AS {picked}", changes_to(out.path(), "picked"))).await;
    session.must(&format!("{} FROM SAVEPOINT of_of_bids AS {all}", plain("of_bids"))).await;
    let since = changes_to(out.path(), "since");
    session.must(&format!("{since} FROM SAVEPOINT of_shown ALLOW NON RESTORED STATE AS {picked}")).await;
    session.must("INSERT INTO t3 VALUES (7, 7)").await;
    check_sink(&session, out.path(), "picked", picked).await;
    check_sink(&session, out.path(), "since", "SELECT id, v FROM t3 WHERE id = 7").await;
    assert_eq!(lines(&out.path().join("of_bids")).len(), 920);
}

/// Operators whose derived uids are equal but for a number have their own state wherever their branches stand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn branches_that_change_places_keep_their_own_state() {
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    session.must(SMALL_TABLES).await;
    // Of the stream nothing comes again: what a view has is what the state had.
    session
        .must(
            "CREATE TABLE stream (auction BIGINT, price BIGINT)
                WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '1000', 'events.rate' = '100000');
            CREATE TABLE whole (auction BIGINT, price BIGINT) WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '1000')",
        )
        .await;
    let branch = |side: &str, from: &str, n: &str, filter: &str| {
        format!("SELECT '{side}' AS side, auction % 3 AS a, {n} AS n FROM {from} WHERE {filter} GROUP BY auction % 3")
    };
    let low = |from: &str, n: &str| branch("low", from, n, "price <= 100000");
    let high = |from: &str, n: &str| branch("high", from, n, "price > 100000");
    let both = |from: &str| format!("{} UNION ALL {}", low(from, "count(*)"), high(from, "count(*)"));
    session.must(&format!("CREATE MATERIALIZED VIEW v AS {}", both("stream"))).await;
    eventually_equal(&session, "v", &both("whole")).await;
    session.must("CREATE SAVEPOINT sp FOR v").await;
    // Other columns behind the aggregates, so that the rows come from their state.
    let swapped = |from: &str| format!("{} UNION ALL {}", high(from, "count(*) + 1"), low(from, "count(*) + 1"));
    let create = format!("CREATE MATERIALIZED VIEW w FROM SAVEPOINT sp AS {}", swapped("stream"));
    let explained = rows(&session, &format!("EXPLAIN {create}")).await;
    let kept = explained.iter().filter(|row| row[1] == "aggregate" && row[2] == "reused").count();
    assert_eq!(kept, 2, "{explained:?}");
    session.must(&create).await;
    eventually_equal(&session, "w", &swapped("whole")).await;
    // A branch goes: the one that stays has its own state, and the other's is lost.
    let alone = high("stream", "count(*)");
    let (code, text) = refusal(&session, &format!("CREATE MATERIALIZED VIEW x FROM SAVEPOINT sp AS {alone}")).await;
    assert!(code == "55000" && text.contains("uid('"), "{text}");
    session.must(&format!("CREATE MATERIALIZED VIEW x FROM SAVEPOINT sp ALLOW NON RESTORED STATE AS {alone}")).await;
    eventually_equal(&session, "x", &high("whole", "count(*)")).await;
    // One of them counts other rows: it is none of those that were saved.
    let other = format!("{} UNION ALL {}", branch("low", "stream", "count(*)", "price <= 50000"), alone);
    let (code, text) = refusal(&session, &format!("CREATE MATERIALIZED VIEW y FROM SAVEPOINT sp AS {other}")).await;
    assert!(code == "55000" && text.contains("uid('"), "{text}");
    session.must(&format!("CREATE MATERIALIZED VIEW y FROM SAVEPOINT sp ALLOW NON RESTORED STATE AS {other}")).await;
    eventually_equal(&session, "y", &high("whole", "count(*)")).await;
    // Where all rows can be read again, nothing is lost and the answer is right.
    let of_table = |first: &str, second: &str| {
        format!(
            "SELECT k, count(*) AS n FROM t WHERE {first} GROUP BY k UNION ALL SELECT k, count(*) AS n FROM t WHERE {second} GROUP BY k"
        )
    };
    session.must(&format!("CREATE MATERIALIZED VIEW z AS {}; CREATE SAVEPOINT of_z FOR z", of_table("v <= 10", "v > 10"))).await;
    for (name, first, second, kept) in [("swapped", "v > 10", "v <= 10", 2), ("changed", "v > 20", "v <= 10", 0)] {
        let query = of_table(first, second);
        let create = format!("CREATE MATERIALIZED VIEW {name} FROM SAVEPOINT of_z AS {query}");
        let explained = rows(&session, &format!("EXPLAIN {create}")).await;
        let reused = explained.iter().filter(|row| row[1] == "aggregate" && row[2] == "reused").count();
        assert_eq!(reused, kept, "{name}: {explained:?}");
        session.must(&create).await;
        session.must(&format!("INSERT INTO t VALUES (1, 5), (2, {kept})")).await;
        check(&session, name, &query).await;
    }
}

/// What the state was computed over is made again under its name as something else, or with its columns in another order: the state is not used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_over_what_was_made_again_as_something_else_is_not_used() {
    let data = tempfile::tempdir().expect("a folder");
    std::fs::write(data.path().join("rows.csv"), "1,1,5\n2,1,6\n3,2,7\n").expect("a file");
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    let of_files = |columns: &str| {
        format!("CREATE TABLE fz ({columns}) WITH (connector = 'file', path = '{}', format = 'csv')", data.path().display())
    };
    let stored = "CREATE TABLE fz (id BIGINT, k BIGINT, v INT); INSERT INTO fz VALUES (1, 1, 5), (2, 1, 6), (4, 4, 4)".to_string();
    let shown = "CREATE TABLE below (id BIGINT, k BIGINT, v INT); INSERT INTO below VALUES (1, 3, 5), (2, 3, 6), (5, 1, 6);
        CREATE MATERIALIZED VIEW fz AS SELECT id, k, v FROM below"
        .to_string();
    let made =
        "CREATE TABLE fz (id BIGINT, k BIGINT, v INT) WITH (connector = 'datagen', 'number-of-rows' = '10', 'rows-per-second' = '0')"
            .to_string();
    let (files, other_order) = (of_files("id BIGINT, k BIGINT, v INT"), of_files("k BIGINT, id BIGINT, v INT"));
    let query = "SELECT k, count(*) AS c FROM fz GROUP BY k";
    for (at, (before, now, reason)) in [
        (&files, &other_order, "other columns"),
        (&stored, &files, "computed from other rows"),
        (&files, &stored, "computed from other rows"),
        (&stored, &shown, "and is a materialized view"),
        (&shown, &stored, "was a materialized view in the savepoint"),
        (&files, &made, "computed from other rows"),
    ]
    .into_iter()
    .enumerate()
    {
        session.must(before).await;
        session.must(&format!("CREATE MATERIALIZED VIEW v AS {query}")).await;
        eventually_equal(&session, "v", query).await;
        session.must(&format!("CREATE SAVEPOINT s{at} FOR v; DROP MATERIALIZED VIEW v")).await;
        let drop = |made: &str| {
            let view = made.contains("MATERIALIZED VIEW fz");
            if view { "DROP MATERIALIZED VIEW fz; DROP TABLE below" } else { "DROP TABLE fz" }
        };
        session.must(drop(before)).await;
        session.must(now).await;
        let create = format!("CREATE MATERIALIZED VIEW v FROM SAVEPOINT s{at} AS {query}");
        let explained = rows(&session, &format!("EXPLAIN {create}")).await;
        assert!(explained.iter().all(|row| row[2] == "rebuilt"), "{before} to {now}: {explained:?}");
        assert!(explained.iter().any(|row| row[3].contains(reason)), "{reason}: {explained:?}");
        session.must(&create).await;
        eventually_equal(&session, "v", query).await;
        session.must("DROP MATERIALIZED VIEW v").await;
        session.must(drop(now)).await;
    }
    // Of a stream that can't be read again the columns are found by name: the state is kept. That of another connector is lost.
    let bids = "WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '1000'";
    let query = |from: &str| format!("SELECT auction % 3 AS a, count(*) AS n FROM {from} GROUP BY auction % 3");
    session
        .must(&format!(
            "CREATE TABLE whole (auction BIGINT) {bids}); CREATE TABLE bid (auction BIGINT, price BIGINT) {bids}, 'events.rate' = '100000');
            CREATE MATERIALIZED VIEW v AS {}",
            query("bid")
        ))
        .await;
    eventually_equal(&session, "v", &query("whole")).await;
    session.must("CREATE SAVEPOINT of_bid FOR v; DROP MATERIALIZED VIEW v; DROP TABLE bid").await;
    session.must(&format!("CREATE TABLE bid (price BIGINT, bidder BIGINT, auction BIGINT) {bids}, 'events.rate' = '100000')")).await;
    let create = format!("CREATE MATERIALIZED VIEW v FROM SAVEPOINT of_bid AS {}", query("bid"));
    assert!(verdicts(&session, &format!("EXPLAIN {create}")).await.iter().all(|(_, verdict)| verdict == "reused"));
    session.must(&create).await;
    eventually_equal(&session, "v", &query("whole")).await;
    session.must("DROP MATERIALIZED VIEW v; DROP TABLE bid").await;
    session.must("CREATE TABLE bid (auction BIGINT, price BIGINT) WITH (connector = 'datagen', 'number-of-rows' = '10')").await;
    let (code, text) = refusal(&session, &create).await;
    assert!(code == "55000" && text.contains("is a table of connector datagen"), "{text}");
}
