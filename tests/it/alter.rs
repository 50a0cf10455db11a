//! Views that take another query while others read them: what reads them ends with the batch answer over the changed view, sees the change as one step, and
//! a sink has in the end exactly the rows of the result.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::run;
use crate::savepoints::{TABLES, change, check, lines, refusal, rows, verdicts, write};
use crate::server::{PATIENCE, Server, Session, describe, settings, sql_state};

/// Queries that the view takes one after another. All have the columns that others read.
const CHANGES: [&str; 4] = [
    "SELECT owner, count(*) AS n, sum(amount) AS total FROM accounts WHERE id % 3 <> 0 GROUP BY owner",
    "SELECT min(amount) AS least, owner, count(*) AS n, sum(amount) AS total FROM accounts GROUP BY owner",
    "SELECT owner + 100 AS owner, n, total FROM (SELECT owner, count(*) AS n, sum(amount) AS total FROM accounts GROUP BY owner) AS s WHERE n > 5",
    "SELECT owner, count(*) AS n, sum(amount) AS total FROM accounts GROUP BY owner",
];

/// What reads the view, directly or not, each with its query; inputs first.
const READERS: [(&str, &str); 5] = [
    ("sizes", "SELECT n, count(*) AS owners FROM busy GROUP BY n"),
    ("widest", "SELECT max(n) AS n, count(DISTINCT owners) AS sizes FROM sizes"),
    ("listed", "SELECT owner, total FROM totals UNION ALL SELECT owner, CAST(amount AS NUMERIC(38,0)) FROM accounts"),
    ("beside", "SELECT owner, n FROM totals UNION ALL SELECT owner, m FROM other"),
    ("unkeyed", "SELECT n FROM totals"),
];

fn sink(name: &str, out: &Path, query: &str) -> String {
    format!(
        "CREATE SINK {name} WITH (connector = 'file', path = '{}', format = 'csv', row_kind = 'kind') AS {query}",
        out.join(name).display()
    )
}

/// The sinks, each with its query.
const SINKS: [(&str, &str); 3] = [
    ("of_totals", "SELECT owner, n FROM totals"),
    ("of_sizes", "SELECT n, owners FROM sizes"),
    ("of_busy", "SELECT n, count(*) AS c FROM busy GROUP BY n"),
];

async fn make(session: &Session, out: &Path) {
    session.must(TABLES).await;
    write(session, 0, 120).await;
    session.must("CREATE MATERIALIZED VIEW other AS SELECT owner, count(*) AS m FROM accounts WHERE amount > 40 GROUP BY owner").await;
    session.must(&format!("CREATE MATERIALIZED VIEW totals AS {}", CHANGES[3])).await;
    session.must("CREATE VIEW busy AS SELECT owner, n FROM totals WHERE n > 2").await;
    for (view, query) in READERS {
        session.must(&format!("CREATE MATERIALIZED VIEW {view} AS {query}")).await;
    }
    for (name, query) in SINKS {
        session.must(&sink(name, out, query)).await;
    }
}

/// What the files of a sink amount to.
pub fn content(folder: &Path) -> Vec<String> {
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    for line in lines(folder) {
        let (kind, row) = line.split_once(',').unwrap_or_else(|| panic!("a line without a kind: {line}"));
        *counts.entry(row.to_string()).or_default() += if kind.starts_with('+') { 1 } else { -1 };
    }
    counts.into_iter().flat_map(|(row, count)| std::iter::repeat_n(row, usize::try_from(count).expect("more rows go than came"))).collect()
}

/// All readers have the batch answer, and the sinks' files amount to it.
async fn check_readers(session: &Session, out: &Path, query: &str) {
    check(session, "totals", query).await;
    for (view, query) in READERS {
        check(session, view, query).await;
    }
    let deadline = Instant::now() + PATIENCE;
    for (name, query) in SINKS {
        loop {
            session.must("CHECKPOINT").await;
            let expected: Vec<String> = rows(session, query).await.into_iter().map(|row| row.join(",")).collect();
            let mut expected = expected;
            expected.sort();
            let found = content(&out.join(name));
            if found == expected {
                break;
            }
            let jobs = rows(session, "SELECT name, state, last_error FROM weir_jobs").await;
            assert!(Instant::now() < deadline, "sink {name} has {found:?}, its query gives {expected:?}; {jobs:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// What sinks have begun with goes when no retained checkpoint needs it.
async fn until_nothing_is_left(server: &Server, session: &Session) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left: Vec<_> = std::fs::read_dir(server.data_dir().join("origins")).expect("a folder").flatten().collect();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "savepoints that nobody needs are left: {left:?}");
        // A checkpoint of nothing new is none.
        session.must("UPDATE accounts SET amount = amount + 1 WHERE id % 5 = 1").await;
        session.must("CHECKPOINT").await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn job_names(session: &Session) -> Vec<String> {
    // Sorted, as all rows of these tests.
    rows(session, "SELECT name FROM weir_jobs").await.into_iter().map(|row| row[0].clone()).collect()
}

/// Statements over a view and what reads it, for as long as it is wanted: each must see both as of one moment. Returns how many there were.
async fn read_meanwhile(session: Session, wanted: Arc<AtomicBool>) -> usize {
    let mut statements = 0;
    while wanted.load(Ordering::SeqCst) {
        for (view, query) in &READERS[..2] {
            let both = format!(
                "SELECT 'view' AS side, seen.* FROM {view} AS seen UNION ALL SELECT 'query', computed.* FROM ({query}) AS computed"
            );
            let (of_view, of_query): (Vec<_>, Vec<_>) = rows(&session, &both).await.into_iter().partition(|row| row[0] == "view");
            let content = |rows: Vec<Vec<String>>| {
                let mut rows: Vec<Vec<String>> = rows.into_iter().map(|row| row[1..].to_vec()).collect();
                rows.sort();
                rows
            };
            assert_eq!(content(of_view), content(of_query), "{view} and what it reads are not as of one moment");
            statements += 1;
        }
        assert!(session.must_count("SELECT count(*) FROM totals").await > 0);
    }
    statements
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_reads_a_changed_view_goes_on_over_it() {
    let out = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "500 ms")]));
    let mut session = server.connect().await;
    make(&session, out.path()).await;
    check_readers(&session, out.path(), CHANGES[3]).await;
    let before = job_names(&session).await;
    let mut statements = 0;
    for (at, query) in CHANGES.into_iter().enumerate() {
        let explained = rows(&session, &format!("EXPLAIN UPGRADE totals AS {query}")).await;
        let jobs: std::collections::BTreeSet<&str> = explained.iter().map(|row| row[6].as_str()).collect();
        assert!(READERS.iter().all(|(view, _)| jobs.contains(view)) && jobs.contains("totals"), "{explained:?}");
        let kept = explained.iter().find(|row| row[6] == "sizes" && row[1] == "aggregate").unwrap_or_else(|| panic!("{explained:?}"));
        assert_eq!(kept[2], "reused", "{explained:?}");

        let wanted = Arc::new(AtomicBool::new(true));
        let reading = tokio::spawn(read_meanwhile(server.connect().await, wanted.clone()));
        let (writer, writing) = (server.connect().await, wanted.clone());
        let writing = tokio::spawn(async move {
            let mut from = 10_000 * (at as i64 + 1);
            while writing.load(Ordering::SeqCst) {
                write(&writer, from, 3).await;
                from += 3;
            }
        });
        session.must(&format!("ALTER MATERIALIZED VIEW totals ALLOW NON RESTORED STATE AS {query}")).await;
        wanted.store(false, Ordering::SeqCst);
        statements += reading.await.expect("a reader");
        writing.await.expect("a writer");

        let shown = rows(&session, "SELECT definition FROM weir_relations WHERE name = 'totals'").await;
        assert_eq!(shown, [[format!("CREATE MATERIALIZED VIEW totals AS {query}")]]);
        change(&session).await;
        check_readers(&session, out.path(), query).await;
        assert_eq!(job_names(&session).await.len(), before.len());
        server.kill();
        server.set("parallelism", &(1 + at % 3).to_string());
        server.restart();
        session = server.connect().await;
        assert!(
            rows(&session, "SELECT name, state FROM weir_jobs WHERE state NOT IN ('running', 'starting', 'backfilling')").await.is_empty()
        );
        check_readers(&session, out.path(), query).await;
        until_nothing_is_left(&server, &session).await;
    }
    run::say(&format!("alter: {statements} statements over a view and its readers meanwhile"));
}

/// Statements that change rows by what a view holds, for as long as they are wanted, each alone or in a block. Returns how many there were.
async fn change_by_view(session: Session, wanted: Arc<AtomicBool>, in_block: bool) -> usize {
    let table = if in_block { "in_block" } else { "alone" };
    let statements = [
        format!("INSERT INTO {table} SELECT max(n) FROM m"),
        format!("UPDATE {table} SET n = (SELECT min(n) FROM m)"),
        format!("DELETE FROM {table} WHERE n NOT IN (SELECT n FROM m)"),
    ];
    let mut count = 0;
    while wanted.load(Ordering::SeqCst) {
        for statement in &statements {
            if in_block {
                session.must("BEGIN").await;
            }
            session.must(statement).await;
            if in_block {
                session.must("COMMIT").await;
            }
            count += 1;
        }
    }
    count
}

/// They read the view of before or that of after, and find one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_changed_by_a_view_that_is_being_replaced() {
    let server = Server::start(&settings(&[("parallelism", "1")]));
    let session = server.connect().await;
    session.must("CREATE TABLE t (n BIGINT); CREATE TABLE alone (n BIGINT); CREATE TABLE in_block (n BIGINT)").await;
    session.must("INSERT INTO t VALUES (1), (2), (3)").await;
    session.must("CREATE MATERIALIZED VIEW m AS SELECT n FROM t").await;
    let wanted = Arc::new(AtomicBool::new(true));
    let mut changing = Vec::new();
    for in_block in [false, true] {
        changing.push(tokio::spawn(change_by_view(server.connect().await, wanted.clone(), in_block)));
    }
    for round in 0..run::rounds(12, 200) {
        session.must(&format!("ALTER MATERIALIZED VIEW m ALLOW NON RESTORED STATE AS SELECT n + {} AS n FROM t", round % 2)).await;
        assert!(changing.iter().all(|changing| !changing.is_finished()), "a statement has failed");
    }
    wanted.store(false, Ordering::SeqCst);
    let mut count = 0;
    for changing in changing {
        count += changing.await.expect("all statements are done");
    }
    run::say(&format!("alter: {count} statements that change rows by a view meanwhile"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_readers_could_not_follow_is_refused() {
    let out = tempfile::tempdir().expect("a folder");
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    make(&session, out.path()).await;
    session.must("CREATE VIEW all_of_it AS SELECT * FROM listed").await;
    session
        .must("CREATE TABLE bids WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '5000'); CREATE MATERIALIZED VIEW cheap AS SELECT auction, price FROM bids WHERE price < 1000")
        .await;
    session
        .must(&format!(
            "CREATE SINK plain WITH (connector = 'file', path = '{}', format = 'csv') AS SELECT price FROM cheap",
            out.path().join("plain").display()
        ))
        .await;
    let mut before = job_names(&session).await;
    for (sql, code, named) in [
        // A column that is read goes, is called something else, or has another type.
        ("ALTER MATERIALIZED VIEW totals AS SELECT owner, count(*) AS n FROM accounts GROUP BY owner", "2BP01", "listed"),
        (
            "ALTER MATERIALIZED VIEW totals AS SELECT owner, count(*) AS m, sum(amount) AS total FROM accounts GROUP BY owner",
            "2BP01",
            "of_totals",
        ),
        (
            "ALTER MATERIALIZED VIEW totals AS SELECT CAST(owner AS BIGINT) AS owner, count(*) AS n, sum(amount) AS total FROM accounts GROUP BY owner",
            "0A000",
            "of_totals",
        ),
        (
            "ALTER MATERIALIZED VIEW totals AS SELECT owner, count(*) AS n, sum(total) AS total FROM listed GROUP BY owner",
            "42P17",
            "itself",
        ),
        ("ALTER MATERIALIZED VIEW totals AS SELECT owner, n, total FROM totals", "42P17", "itself"),
        ("ALTER MATERIALIZED VIEW cheap AS SELECT auction, price FROM bids WHERE price < 10", "0A000", "plain"),
        ("EXPLAIN UPGRADE cheap AS SELECT auction, price FROM bids WHERE price < 10", "0A000", "plain"),
    ] {
        let (found, text) = refusal(&session, sql).await;
        assert!(found == code && text.contains(named), "{sql}\n{text}");
    }
    assert_eq!(job_names(&session).await, before);
    // Of all columns there would be more.
    session.must("CREATE MATERIALIZED VIEW stars AS SELECT * FROM totals").await;
    before.push("stars".into());
    before.sort();
    let wider = "SELECT owner, count(*) AS n, sum(amount) AS total, max(amount) AS most FROM accounts GROUP BY owner";
    let (code, text) = refusal(&session, &format!("ALTER MATERIALIZED VIEW totals AS {wider}")).await;
    assert!(code == "0A000" && text.contains("stars"), "{text}");
    assert_eq!(job_names(&session).await, before);
    write(&session, 500, 20).await;
    check_readers(&session, out.path(), CHANGES[3]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_take_no_rows_back_are_made_anew() {
    let mut server = Server::start(&settings(&[("parallelism", "2")]));
    let mut session = server.connect().await;
    session
        .must("CREATE TABLE bids (auction BIGINT, price BIGINT) WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '20000')")
        .await;
    let queries =
        ["SELECT auction, price FROM bids WHERE price > 5000", "SELECT auction, price FROM bids WHERE price < 9000 AND auction % 2 = 0"];
    let reader = "SELECT auction % 7 AS a, max(price) AS most, min(price) AS least, count(*) AS n FROM picked GROUP BY auction % 7";
    session.must(&format!("CREATE MATERIALIZED VIEW picked AS {}", queries[0])).await;
    session.must(&format!("CREATE MATERIALIZED VIEW per AS {reader}")).await;
    for query in [queries[1], queries[0]] {
        session.must("FLUSH").await;
        // Its greatest values go: nothing that it keeps could tell the next.
        let explained = verdicts(&session, &format!("EXPLAIN UPGRADE picked AS {query}")).await;
        assert!(explained.iter().all(|(_, verdict)| verdict == "rebuilt"), "{explained:?}");
        session.must(&format!("ALTER MATERIALIZED VIEW picked ALLOW NON RESTORED STATE AS {query}")).await;
        let deadline = Instant::now() + PATIENCE;
        // A connector's end is not something that FLUSH waits for.
        let expected = rows(&session, &reader.replace("picked", &format!("({query}) AS picked"))).await;
        while rows(&session, "SELECT * FROM picked").await != rows(&session, query).await
            || rows(&session, "SELECT * FROM per").await != expected
        {
            let shown = rows(&session, "SELECT * FROM per").await;
            assert!(Instant::now() < deadline, "{query}: {shown:?} for {expected:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        server.kill();
        server.restart();
        session = server.connect().await;
    }
}

/// A start from a checkpoint of before a change: what has taken the place of others is there all the same, and sinks have each row once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn going_back_to_before_a_change_takes_everything_along() {
    let out = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "1 h"), ("checkpoints_retained", "1000")]));
    let mut session = server.connect().await;
    make(&session, out.path()).await;
    check_readers(&session, out.path(), CHANGES[3]).await;
    for round in 0..2 {
        let newest = "SELECT max(checkpoint) FROM weir_checkpoints WHERE state = 'completed'";
        let before = session.must_count(newest).await as u64;
        // What the sinks write until they are stopped, and after it.
        change(&session).await;
        write(&session, 40_000 + 1000 * round, 20).await;
        session.must("CHECKPOINT").await;
        let query = CHANGES[round as usize];
        session.must(&format!("ALTER MATERIALIZED VIEW totals ALLOW NON RESTORED STATE AS {query}")).await;
        change(&session).await;
        check_readers(&session, out.path(), query).await;
        write(&session, 50_000 + 1000 * round, 20).await;
        server.kill();
        server.set("parallelism", &(1 + round).to_string());
        server.try_restart_from(before).unwrap_or_else(|report| panic!("{report}"));
        session = server.connect().await;
        check_readers(&session, out.path(), query).await;
        write(&session, 60_000 + 1000 * round, 20).await;
        change(&session).await;
        check_readers(&session, out.path(), query).await;
        server.restart();
        session = server.connect().await;
        check_readers(&session, out.path(), query).await;
    }
    server.set("checkpoints_retained", "2");
    server.restart();
    session = server.connect().await;
    until_nothing_is_left(&server, &session).await;
    server.restart();
    session = server.connect().await;
    check_readers(&session, out.path(), CHANGES[1]).await;
}

/// Kills in the midst of it: everything is as before, or as it was to be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_leave_a_view_and_its_readers_with_one_query() {
    let mut random = run::random("alter kills");
    let out = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "300 ms")]));
    {
        let session = server.connect().await;
        make(&session, out.path()).await;
    }
    // Kills come at any moment of a change, so it is tried first how long one takes.
    let began = Instant::now();
    server.connect().await.must(&format!("ALTER MATERIALIZED VIEW totals ALLOW NON RESTORED STATE AS {}", CHANGES[0])).await;
    let mut cuts = run::Cuts::within(100 + began.elapsed().as_millis() as u64);
    let (mut present, mut pending) = (0, None::<usize>);
    let (mut acknowledged, mut changed) = (0, 0);
    for round in 0..run::rounds(8, 120) {
        let session = server.connect().await;
        let shown = rows(&session, "SELECT owner, n, total FROM totals").await;
        let mut fits = Vec::new();
        for candidate in std::iter::once(present).chain(pending) {
            if rows(&session, &format!("SELECT owner, n, total FROM ({}) AS s", CHANGES[candidate])).await == shown {
                fits.push(candidate);
            }
        }
        let found = *fits.first().unwrap_or_else(|| panic!("round {round}: the view has neither answer: {shown:?}"));
        changed += usize::from(found != present);
        present = found;
        write(&session, 20_000 + 100 * round as i64, 20).await;
        change(&session).await;
        check_readers(&session, out.path(), CHANGES[present]).await;
        let jobs = job_names(&session).await;
        assert!(
            jobs.len() == 2 + READERS.len() + SINKS.len() && jobs.iter().all(|name| !name.starts_with("weir_")),
            "round {round}: {jobs:?}"
        );
        let next = (present + 1 + random.below(3) as usize) % CHANGES.len();
        pending = Some(next);
        let statement = format!("ALTER MATERIALIZED VIEW totals ALLOW NON RESTORED STATE AS {}", CHANGES[next]);
        tokio::select! {
            done = session.execute(&statement) => {
                done.unwrap_or_else(|e| panic!("{statement}\n{}", describe(&e)));
                acknowledged += 1;
                changed += 1;
                present = pending.take().unwrap_or(present);
            }
            () = cuts.next(&mut random) => {}
        }
        server.kill();
        server.set("parallelism", &(1 + random.below(3)).to_string());
        server.restart();
    }
    let session = server.connect().await;
    // The same statement that was cut off works.
    session.must(&format!("ALTER MATERIALIZED VIEW totals ALLOW NON RESTORED STATE AS {}", CHANGES[1])).await;
    check_readers(&session, out.path(), CHANGES[1]).await;
    run::say(&format!("alter kills: {changed} changes took place, {acknowledged} were answered"));
    assert!(acknowledged > 0, "no change was ever done before the kill");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_is_cancelled_leaves_nothing() {
    let out = tempfile::tempdir().expect("a folder");
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    make(&session, out.path()).await;
    let before = job_names(&session).await;
    for milliseconds in [1, 20, 60, 150, 400, 900, 2000] {
        session.must(&format!("SET statement_timeout = '{milliseconds} ms'")).await;
        let done = session.execute(&format!("ALTER MATERIALIZED VIEW totals ALLOW NON RESTORED STATE AS {}", CHANGES[0])).await;
        session.must("SET statement_timeout = 0").await;
        match done {
            Ok(_) => session.must(&format!("ALTER MATERIALIZED VIEW totals ALLOW NON RESTORED STATE AS {}", CHANGES[3])).await,
            Err(error) if sql_state(&error).as_deref() == Some("57014") => 0,
            Err(error) => panic!("{}", describe(&error)),
        };
        // What was given up is dropped beside the answer, and what the system views show of jobs follows.
        let deadline = Instant::now() + PATIENCE;
        while job_names(&session).await != before {
            let names = job_names(&session).await;
            assert!(Instant::now() < deadline, "after {milliseconds} ms there are {names:?}, before {before:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        write(&session, 30_000 + 10 * milliseconds, 5).await;
        check_readers(&session, out.path(), CHANGES[3]).await;
        let failed = rows(&session, "SELECT name, state, last_error FROM weir_jobs WHERE last_error IS NOT NULL").await;
        assert!(failed.is_empty(), "after {milliseconds} ms: {failed:?}");
    }
}

/// The committed files of all sinks, with their content.
fn committed(out: &Path) -> BTreeMap<std::path::PathBuf, String> {
    let mut files = BTreeMap::new();
    for (name, _) in SINKS {
        for entry in std::fs::read_dir(out.join(name)).into_iter().flatten().flatten() {
            if entry.path().is_file() && !entry.file_name().to_string_lossy().starts_with(['.', '_']) {
                files.insert(entry.path(), std::fs::read_to_string(entry.path()).expect("a file"));
            }
        }
    }
    files
}

/// A change that is given up at the last moment, when the sinks have been stopped for it, leaves them where they were: they go on, and what they have written
/// stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_a_new_reader_comes_before_begins_anew() {
    let out = tempfile::tempdir().expect("a folder");
    let server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "200 ms")]));
    let session = server.connect().await;
    make(&session, out.path()).await;
    // The savepoints that the sinks begin with after a change are gone once they have checkpoints.
    session.must(&format!("ALTER MATERIALIZED VIEW totals ALLOW NON RESTORED STATE AS {}", CHANGES[0])).await;
    check_readers(&session, out.path(), CHANGES[0]).await;
    until_nothing_is_left(&server, &session).await;
    let mut present = 0;
    let (mut joined, mut round) = (0, 0);
    let deadline = Instant::now() + PATIENCE;
    while joined < 3 {
        assert!(Instant::now() < deadline, "no new reader came before a change in {round} rounds");
        round += 1;
        write(&session, 50_000 + 10 * round, 5).await;
        check_readers(&session, out.path(), CHANGES[present]).await;
        let before = committed(out.path());
        let next = (present + 1) % CHANGES.len();
        let altering = server.connect().await;
        let statement = format!("ALTER MATERIALIZED VIEW totals ALLOW NON RESTORED STATE AS {}", CHANGES[next]);
        let change = tokio::spawn(async move { altering.execute(&statement).await });
        // It is under way when what takes the view's place can be seen.
        while !change.is_finished() && job_names(&session).await.iter().all(|name| !name.starts_with("weir_upgrade_")) {}
        let was_under_way = !change.is_finished();
        let created = session.execute("CREATE MATERIALIZED VIEW late AS SELECT count(*) AS c FROM totals").await;
        // It begins anew over what there is now.
        match change.await.expect("a change") {
            Ok(_) => present = next,
            Err(error) => panic!("{}", describe(&error)),
        }
        joined += usize::from(was_under_way && created.is_ok());
        write(&session, 60_000 + 10 * round, 5).await;
        check_readers(&session, out.path(), CHANGES[present]).await;
        let failed = rows(&session, "SELECT name, state, last_error FROM weir_jobs WHERE last_error IS NOT NULL").await;
        assert!(failed.is_empty(), "{failed:?}");
        let after = committed(out.path());
        let taken_back: Vec<_> = before.iter().filter(|(path, content)| after.get(*path) != Some(content)).collect();
        assert!(taken_back.is_empty(), "a change that was given up took back {taken_back:?}");
        match created {
            Ok(_) => {
                check(&session, "late", &format!("SELECT count(*) AS c FROM ({}) AS totals", CHANGES[present])).await;
                session.must("DROP MATERIALIZED VIEW late").await;
            }
            // The view that it was to read went meanwhile.
            Err(error) => assert_eq!(sql_state(&error).as_deref(), Some("40001"), "{}", describe(&error)),
        }
    }
}
