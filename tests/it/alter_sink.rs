//! Sinks that take another query: in the end their files have exactly the rows of the present result, what stays is not written again, and kills leave one query
//! or the other.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::alter::content;
use crate::files::wait_finished;
use crate::run;
use crate::savepoints::{TABLES, change, lines, refusal, rows, verdicts, write};
use crate::server::{PATIENCE, Server, Session, describe, settings};

/// Queries that a sink takes one after another: over a table without and with an aggregate, over a view, with constants, and with NULL where others have none.
const QUERIES: [&str; 8] = [
    "SELECT owner AS k, count(*) AS n FROM accounts GROUP BY owner",
    "SELECT owner AS k, count(*) AS n FROM accounts GROUP BY owner HAVING count(*) > 17",
    "SELECT owner AS k, count(*) AS n FROM accounts WHERE amount > 30 GROUP BY owner",
    "SELECT owner AS k, amount AS n FROM accounts WHERE id % 3 = 1",
    "SELECT k, n FROM (SELECT owner AS k, count(amount) AS n, sum(amount) AS s FROM accounts GROUP BY owner) AS a WHERE s > 50 UNION ALL SELECT 7, 8",
    "SELECT owner AS k, n FROM totals WHERE n > 3",
    "SELECT owner + 1 AS k, CASE WHEN n > 12 THEN n END AS n FROM totals",
    "SELECT DISTINCT owner AS k, amount % 5 AS n FROM accounts",
];

async fn make(session: &Session, out: &Path) {
    session.must(TABLES).await;
    write(session, 0, 120).await;
    session.must("CREATE MATERIALIZED VIEW totals AS SELECT owner, count(*) AS n FROM accounts GROUP BY owner").await;
    session
        .must(&format!(
            "CREATE SINK s WITH (connector = 'file', path = '{}', format = 'csv', row_kind = 'kind') AS {}",
            out.display(),
            QUERIES[0]
        ))
        .await;
}

/// The files of the sink amount to the answer of `query`.
async fn check_sink(session: &Session, out: &Path, query: &str) {
    // Where a fault is planted, nobody waits long for what can't come.
    let patience = if std::env::var_os("WEIR_PLANTED_FAULT").is_some() { Duration::from_secs(30) } else { PATIENCE };
    let deadline = Instant::now() + patience;
    loop {
        session.must("FLUSH").await;
        session.must("CHECKPOINT").await;
        let mut expected: Vec<String> = rows(session, query)
            .await
            .into_iter()
            .map(|row| row.into_iter().map(|value| if value == "NULL" { String::new() } else { value }).collect::<Vec<_>>().join(","))
            .collect();
        expected.sort();
        let found = amount(out);
        if found == expected {
            return;
        }
        let jobs = rows(session, "SELECT name, state, last_error FROM weir_jobs").await;
        assert!(Instant::now() < deadline, "the sink has {found:?}, its query gives {expected:?}; {jobs:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What its files amount to; a row that goes more often than it came stands behind a minus.
pub fn amount(out: &Path) -> Vec<String> {
    let mut counts = std::collections::BTreeMap::<String, i64>::new();
    for line in lines(out) {
        let (kind, row) = line.split_once(',').unwrap_or_else(|| panic!("a line without a kind: {line}"));
        *counts.entry(row.to_string()).or_default() += if kind.starts_with('+') { 1 } else { -1 };
    }
    let row = |(row, count): (String, i64)| {
        let row = if count < 0 { format!("minus {row}") } else { row };
        std::iter::repeat_n(row, count.unsigned_abs() as usize)
    };
    counts.into_iter().flat_map(row).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_takes_other_queries_and_writes_what_differs() {
    let out = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "1 h")]));
    let mut session = server.connect().await;
    make(&session, out.path()).await;
    check_sink(&session, out.path(), QUERIES[0]).await;
    // The groups are kept, and sent once; of the rows only those are written that go.
    let explained = verdicts(&session, &format!("EXPLAIN UPGRADE s AS {}", QUERIES[1])).await;
    assert_eq!(explained, [("aggregate(owner)".to_string(), "reused".to_string()), ("s/sink".to_string(), "converted".to_string())]);
    let (before, stays) = (lines(out.path()).len(), session.must_count(&format!("SELECT count(*) FROM ({}) AS q", QUERIES[1])).await);
    let all = session.must_count(&format!("SELECT count(*) FROM ({}) AS q", QUERIES[0])).await;
    assert!(stays > 0 && all > stays, "{stays} of {all}");
    session.must(&format!("ALTER SINK s AS {}", QUERIES[1])).await;
    check_sink(&session, out.path(), QUERIES[1]).await;
    assert_eq!(lines(out.path()).len() - before, (all - stays) as usize, "rows that stay were written again");
    // The same result, said in another way: nothing is written.
    let same = "SELECT k, n FROM (SELECT owner AS k, count(*) AS n FROM accounts GROUP BY owner HAVING count(*) > 17) AS q";
    assert!(verdicts(&session, &format!("EXPLAIN UPGRADE s AS {same}")).await.iter().all(|(_, verdict)| verdict == "reused"));
    let before = lines(out.path()).len();
    session.must(&format!("ALTER JOB s AS {same}")).await;
    check_sink(&session, out.path(), same).await;
    assert_eq!(lines(out.path()).len(), before);

    for (at, query) in QUERIES.into_iter().enumerate() {
        session.must(&format!("SET parallelism = {}", 1 + at % 3)).await;
        session.must(&format!("ALTER SINK s ALLOW NON RESTORED STATE AS {query}")).await;
        write(&session, 1000 * (at as i64 + 1), 15).await;
        change(&session).await;
        if at % 2 == 0 {
            // Before it has a checkpoint, or after.
            server.kill();
            server.set("parallelism", &(1 + at % 3).to_string());
            server.restart();
            session = server.connect().await;
        }
        check_sink(&session, out.path(), query).await;
        write(&session, 1000 * (at as i64 + 1) + 500, 15).await;
        check_sink(&session, out.path(), query).await;
        let shown = rows(&session, "SELECT name, definition FROM weir_relations WHERE name = 's'").await;
        assert!(shown.len() == 1 && shown[0][1].starts_with("CREATE SINK s WITH") && shown[0][1].ends_with(query), "{shown:?}");
        assert_eq!(rows(&session, "SELECT name FROM weir_jobs").await, [["s"], ["totals"]]);
    }
    server.restart();
    session = server.connect().await;
    change(&session).await;
    check_sink(&session, out.path(), QUERIES[7]).await;
    assert_eq!(content(out.path()), amount(out.path()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_sink_can_not_take_is_refused() {
    let out = tempfile::tempdir().expect("a folder");
    let server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "200 ms")]));
    let session = server.connect().await;
    make(&session, &out.path().join("s")).await;
    session
        .must("CREATE TABLE bids (auction BIGINT, price BIGINT) WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '5000');
            CREATE TABLE stream (auction BIGINT, price BIGINT) WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '40000', 'events.rate' = '20000');
            CREATE MATERIALIZED VIEW cheap AS SELECT auction, price FROM bids WHERE price < 1000")
        .await;
    let plain = |name: &str, query: &str| {
        format!("CREATE SINK {name} WITH (connector = 'file', path = '{}', format = 'csv') AS {query}", out.path().join(name).display())
    };
    session.must(&plain("of_view", "SELECT price FROM cheap")).await;
    session.must(&plain("of_bids", "SELECT price FROM bids")).await;
    session.must(&plain("of_stream", "SELECT price FROM stream")).await;
    for (sql, named) in [
        // Other columns; rows that could not be taken back; rows that are kept nowhere; an updated result.
        ("ALTER SINK s AS SELECT owner AS k, count(*) AS m FROM accounts GROUP BY owner", "would have"),
        ("ALTER SINK s AS SELECT owner AS k FROM accounts", "would have"),
        ("ALTER SINK of_view AS SELECT price FROM cheap WHERE price > 10", "cannot take rows back"),
        ("ALTER SINK of_bids AS SELECT price FROM bids WHERE price > 10", "kept nowhere"),
        ("EXPLAIN UPGRADE of_bids AS SELECT price FROM bids WHERE price > 10", "kept nowhere"),
        ("EXPLAIN ALTER SINK of_view AS SELECT price FROM cheap WHERE price > 10", "cannot take rows back"),
        ("ALTER SINK of_bids AS SELECT max(price) AS price FROM bids", "updated"),
    ] {
        let (code, text) = refusal(&session, sql).await;
        assert!(code == "0A000" && text.contains(named), "{sql}\n{text}");
    }
    // Where nothing of the result changes, an append-only sink goes on.
    session.must("ALTER SINK of_view AS SELECT c.price FROM (SELECT auction, price FROM cheap) AS c").await;
    // Of a stream that can't be read again what was written stays, and the query holds from now on.
    session.must("ALTER SINK of_stream AS SELECT price FROM stream WHERE price < 0").await;
    session.must("CHECKPOINT").await;
    let written = lines(&out.path().join("of_stream")).len();
    let deadline = Instant::now() + PATIENCE;
    let expected = session.must_count("SELECT count(*) FROM bids WHERE price < 1000").await as usize;
    while lines(&out.path().join("of_view")).len() != expected || lines(&out.path().join("of_bids")).len() != 4600 {
        assert!(Instant::now() < deadline, "the sinks do not go on");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(lines(&out.path().join("of_stream")).len(), written);
    assert!(rows(&session, "SELECT name, last_error FROM weir_jobs WHERE state = 'failed'").await.is_empty());
    check_sink(&session, &out.path().join("s"), QUERIES[0]).await;
}

/// What a sink may be asked for does not depend on whether its stream has just ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_has_finished_takes_another_query_and_ends_with_a_savepoint() {
    let out = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "200 ms")]));
    let mut session = server.connect().await;
    session
        .must("CREATE TABLE stream (auction BIGINT, price BIGINT) WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '1000', 'events.rate' = '100000')")
        .await;
    let create = format!("CREATE SINK s WITH (connector = 'file', path = '{}', format = 'csv')", out.path().display());
    session.must(&format!("{create} AS SELECT price FROM stream")).await;
    wait_finished(&session).await;
    let written = lines(out.path());
    assert_eq!(written.len(), 920);
    for (at, query) in ["SELECT price FROM stream WHERE price < 0", "SELECT price FROM stream WHERE price < 1"].into_iter().enumerate() {
        if at == 1 {
            server.kill();
            server.restart();
            session = server.connect().await;
        }
        session.must(&format!("ALTER SINK s AS {query}")).await;
        wait_finished(&session).await;
        let shown = rows(&session, "SELECT definition FROM weir_relations WHERE name = 's'").await;
        assert!(shown[0][0].ends_with(query), "{shown:?}");
        assert_eq!(lines(out.path()), written, "{query}");
    }
    session.must("ALTER JOB s STOP WITH SAVEPOINT ended").await;
    assert!(rows(&session, "SELECT name FROM weir_jobs").await.is_empty());
    session.must(&format!("{create} FROM SAVEPOINT ended AS SELECT price FROM stream WHERE price < 1")).await;
    wait_finished(&session).await;
    assert_eq!(lines(out.path()), written);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_leave_a_sink_with_one_query() {
    let mut random = run::random("alter sink kills");
    let out = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "300 ms")]));
    {
        let session = server.connect().await;
        make(&session, out.path()).await;
    }
    let (mut present, mut pending) = (0, None::<usize>);
    let (mut acknowledged, mut changed) = (0, 0);
    let mut longest = 300;
    for round in 0..run::rounds(10, 150) {
        let session = server.connect().await;
        let shown = rows(&session, "SELECT definition FROM weir_relations WHERE name = 's'").await;
        let found = std::iter::once(present).chain(pending).find(|query| shown[0][0].ends_with(QUERIES[*query]));
        let found = found.unwrap_or_else(|| panic!("round {round}: the sink has neither query: {shown:?}"));
        changed += usize::from(found != present);
        present = found;
        write(&session, 20_000 + 100 * round as i64, 20).await;
        change(&session).await;
        check_sink(&session, out.path(), QUERIES[present]).await;
        let next = (present + 1 + random.below(QUERIES.len() as u64 - 1) as usize) % QUERIES.len();
        pending = Some(next);
        let statement = format!("ALTER SINK s ALLOW NON RESTORED STATE AS {}", QUERIES[next]);
        let began = Instant::now();
        tokio::select! {
            done = session.execute(&statement) => {
                done.unwrap_or_else(|e| panic!("{statement}\n{}", describe(&e)));
                (acknowledged, changed) = (acknowledged + 1, changed + 1);
                present = pending.take().unwrap_or(present);
                // Before its first checkpoint, in the midst of it, or after.
                tokio::time::sleep(Duration::from_millis(random.below(600))).await;
            }
            () = tokio::time::sleep(Duration::from_millis(random.below(longest))) => longest = longest.max(2 * began.elapsed().as_millis() as u64 + 200),
        }
        server.kill();
        server.set("parallelism", &(1 + random.below(3)).to_string());
        server.restart();
    }
    run::say(&format!("alter sink kills: {changed} changes took place, {acknowledged} were answered"));
}
