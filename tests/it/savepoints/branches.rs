//! Queries over a stream that does not come again and a stored table together: what is kept of the stream is kept only where the table's rows can't be wrong.

use super::{eventually_equal, refusal, rows};
use crate::server::{Server, Session, settings};

/// A stream with an end, which comes at a rate and so can't be read again; the same rows at once; and stored tables.
const SOURCES: &str =
    "CREATE TABLE stream (k BIGINT, v BIGINT) WITH (connector = 'datagen', 'number-of-rows' = '60', 'rows-per-second' = '100000',
        'fields.k.kind' = 'sequence', 'fields.k.start' = '1', 'fields.k.end' = '60', 'fields.v.kind' = 'sequence', 'fields.v.start' = '1', 'fields.v.end' = '60');
    CREATE TABLE t (k BIGINT, v BIGINT); INSERT INTO t VALUES (1, 10), (1, 20), (2, 30), (7, 40), (2, 30);
    CREATE TABLE u (w BIGINT, v BIGINT); INSERT INTO u VALUES (1, 100), (9, 200)";

/// The rows of the stream, as a batch query has them.
fn whole() -> String {
    let rows: Vec<String> = (1..=60).map(|number| format!("({number}, {number})")).collect();
    format!("(SELECT column1 AS k, column2 AS v FROM (VALUES {}) AS w)", rows.join(", "))
}

/// What the query gives as a batch, of all rows of the stream.
fn batch(query: &str) -> String {
    query.replace("FROM stream", &format!("FROM {} AS s", whole()))
}

/// The verdict on the operator whose kind is `operator`, with its reason.
async fn verdict_on(session: &Session, sql: &str, operator: &str) -> (String, String) {
    let explained = rows(session, sql).await;
    let found = explained.iter().find(|row| row[1] == operator).unwrap_or_else(|| panic!("{explained:?}"));
    (found[2].clone(), found[3].clone())
}

async fn make(session: &Session, view: &str, query: &str) {
    session.must(&format!("CREATE MATERIALIZED VIEW {view} AS {query}")).await;
    eventually_equal(session, view, &batch(query)).await;
    session.must(&format!("CREATE SAVEPOINT of_{view} FOR {view}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_beside_a_stream_that_gives_other_rows_is_named_and_never_left_wrong() {
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    session.must(SOURCES).await;
    let grouped = |stream: &str, table: &str| {
        format!(
            "SELECT k, count(*) AS n, sum(v) AS s FROM (SELECT k, v FROM stream{stream} UNION ALL SELECT k, v FROM t{table}) AS b GROUP BY k"
        )
    };
    let plain = |stream: &str, table: &str| format!("SELECT k, v FROM stream{stream} UNION ALL SELECT k, v FROM t{table}");
    let over_groups = |having: &str| {
        format!("SELECT k, v FROM stream UNION ALL SELECT k, n FROM (SELECT k, count(*) AS n FROM t GROUP BY k) AS c{having}")
    };
    make(&session, "grouped", &grouped("", " WHERE v > 15")).await;
    make(&session, "plain", &plain("", " WHERE v > 15")).await;
    make(&session, "over_groups", &over_groups(" WHERE n > 1")).await;
    for (view, query, operator, named) in [
        ("grouped", grouped("", " WHERE v > 25"), "aggregate", "\"t\""),
        ("grouped", grouped(" WHERE k < 0", " WHERE v > 25"), "aggregate", "\"t\""),
        ("plain", plain("", ""), "rows", "\"t\""),
        ("over_groups", over_groups(""), "rows", "an aggregate"),
        ("grouped", "SELECT k, count(*) AS n, sum(v) AS s FROM stream GROUP BY k".to_string(), "aggregate", "\"t\""),
        (
            "grouped",
            "SELECT k, count(*) AS n, sum(v) AS s FROM stream GROUP BY k UNION ALL SELECT k, v, v FROM t".to_string(),
            "aggregate",
            "\"t\"",
        ),
    ] {
        let (verdict, reason) = verdict_on(&session, &format!("EXPLAIN UPGRADE {view} AS {query}"), operator).await;
        assert!(verdict == "rebuilt" && reason.contains(named) && reason.contains("from now on"), "{query}\n{verdict}: {reason}");
        for sql in [
            format!("ALTER MATERIALIZED VIEW {view} AS {query}"),
            format!("CREATE MATERIALIZED VIEW x FROM SAVEPOINT of_{view} AS {query}"),
        ] {
            let (code, text) = refusal(&session, &sql).await;
            assert!(code == "55000" && text.contains(named), "{sql}\n{text}");
        }
    }
    // Where that is wanted, it begins with what comes from now on, of the stream, and all rows of the table.
    session.must(&format!("ALTER MATERIALIZED VIEW plain ALLOW NON RESTORED STATE AS {}", plain("", " WHERE v > 25"))).await;
    eventually_equal(&session, "plain", "SELECT k, v FROM t WHERE v > 25").await;
    // The stream's filter holds from now on, and what is kept stays as it was counted; the table goes on.
    let query = grouped(" WHERE k < 30", " WHERE v > 15");
    let (verdict, reason) = verdict_on(&session, &format!("EXPLAIN UPGRADE grouped AS {query}"), "aggregate").await;
    assert!(verdict == "reused" && reason.contains("from now on"), "{verdict}: {reason}");
    session.must(&format!("ALTER MATERIALIZED VIEW grouped AS {query}")).await;
    session.must("INSERT INTO t VALUES (3, 1), (3, 50); DELETE FROM t WHERE k = 2").await;
    session.must("FLUSH").await;
    eventually_equal(&session, "grouped", &batch(&grouped("", " WHERE v > 15"))).await;
}

/// Of groups that were kept, another filter over them picks anew, though the rows that they count do not come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_filter_over_kept_groups_is_exact() {
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    session.must(SOURCES).await;
    let having = |condition: &str| format!("SELECT k % 7 AS g, count(*) AS n FROM stream GROUP BY k % 7 HAVING {condition}");
    make(&session, "picked", &having("count(*) > 8")).await;
    for condition in ["count(*) < 9", "count(*) > 0", "count(*) = 9"] {
        session.must(&format!("ALTER MATERIALIZED VIEW picked AS {}", having(condition))).await;
        eventually_equal(&session, "picked", &batch(&having(condition))).await;
    }
    let twice = |condition: &str| {
        format!(
            "SELECT n, count(*) AS c FROM (SELECT k % 7 AS g, count(*) AS n FROM stream GROUP BY k % 7) AS b WHERE {condition} GROUP BY n"
        )
    };
    make(&session, "twice", &twice("n > 8")).await;
    session.must(&format!("ALTER MATERIALIZED VIEW twice AS {}", twice("n < 9"))).await;
    eventually_equal(&session, "twice", &batch(&twice("n < 9"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_more_beside_a_stream_loses_nothing() {
    let mut server = Server::start(&settings(&[("parallelism", "2")]));
    let mut session = server.connect().await;
    session.must(SOURCES).await;
    let grouped = |more: &str| format!("SELECT k, count(*) AS n, sum(v) AS s FROM (SELECT k, v FROM stream{more}) AS b GROUP BY k");
    let plain = |more: &str| format!("SELECT k, v FROM stream WHERE v > 5{more}");
    make(&session, "grouped", &grouped("")).await;
    make(&session, "plain", &plain("")).await;
    let (of_t, of_u) = (" UNION ALL SELECT k, v FROM t", " UNION ALL SELECT w AS k, CAST(sum(v) AS BIGINT) AS v FROM u GROUP BY w");
    let constants = " UNION ALL SELECT 3, 33";
    let both = format!("{of_t}{of_u}");
    // One more at a time, an aggregate among them, and constants.
    for (at, more) in [of_t, &both, &format!("{both}{constants}")].into_iter().enumerate() {
        for (view, query, rows_of) in [("grouped", grouped(more), "stream"), ("plain", plain(more), "rows")] {
            let explained = rows(&session, &format!("EXPLAIN UPGRADE {view} AS {query}")).await;
            // Of several aggregates by k the one that has most: the groups of the stream.
            let kind = if rows_of == "rows" { "rows" } else { "aggregate" };
            let most = explained.iter().filter(|row| row[1] == kind).max_by_key(|row| row[4].parse::<u64>().unwrap_or(0));
            assert_eq!(most.unwrap_or_else(|| panic!("{explained:?}"))[2], "reused", "{explained:?}");
            session.must(&format!("ALTER MATERIALIZED VIEW {view} AS {query}")).await;
            eventually_equal(&session, view, &batch(&query)).await;
        }
        session
            .must(&format!("INSERT INTO t VALUES ({at}, 1); DELETE FROM t WHERE v = {}; INSERT INTO u VALUES (1, 1)", 10 * (at + 1)))
            .await;
        session.must("FLUSH").await;
        if at == 1 {
            server.kill();
            server.restart();
            session = server.connect().await;
        }
        for (view, query) in [("grouped", grouped(more)), ("plain", plain(more))] {
            eventually_equal(&session, view, &batch(&query)).await;
        }
    }
    // One that reads a table which another one has read would miss the rows that it has read.
    let twice = plain(&format!("{both}{constants} UNION ALL SELECT v, k FROM t"));
    let (code, text) = refusal(&session, &format!("ALTER MATERIALIZED VIEW plain AS {twice}")).await;
    assert!(code == "55000" && text.contains("reads \"t\" from its beginning") && text.contains("does not come again"), "{text}");
}
