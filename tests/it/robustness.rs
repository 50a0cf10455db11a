//! Statements that are hard on the server: as deep as they come, without an end, or many at once. Each is answered or refused; nobody else notices.

use std::time::{Duration, Instant};

use crate::server::{PATIENCE, Server, Session, settings, sql_state};

/// Its answer, or the SQLSTATE of its refusal. Anything else, such as a connection that is lost, fails the test.
async fn answered_or_refused(server: &mut Server, session: &Session, name: &str, sql: &str) -> Result<String, String> {
    match session.value(sql).await {
        Ok(value) => Ok(value.unwrap_or_default()),
        Err(error) => {
            assert!(server.is_running(), "{name}: the server is gone\n{}", server.log_tail());
            Err(sql_state(&error).unwrap_or_else(|| panic!("{name}: {error}\n{}", server.log_tail())))
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deep_statements_are_answered_or_refused() {
    let mut server = Server::start(&settings(&[]));
    let session = server.connect().await;
    session.must("CREATE TABLE b (x INT)").await;
    session.must("INSERT INTO b VALUES (1), (2)").await;
    for depth in [60usize, 95, 500, 5000] {
        let nested = |open: &str, inner: &str, close: &str| format!("{}{inner}{}", open.repeat(depth), close.repeat(depth));
        let statements = [
            ("a sum", format!("SELECT {}", vec!["1"; depth].join(" + ")), Some(depth.to_string())),
            ("a concatenation", format!("SELECT length({})", vec!["'a'"; depth].join(" || ")), Some(depth.to_string())),
            ("parentheses", format!("SELECT {}", nested("(", "7", ")")), Some("7".into())),
            ("minus signs", format!("SELECT {}", nested("- ", "7", "")), Some(if depth % 2 == 0 { "7" } else { "-7" }.into())),
            ("NOT", format!("SELECT CASE WHEN {} THEN 1 ELSE 0 END", nested("NOT ", "true", "")), Some((1 - depth % 2).to_string())),
            ("casts", format!("SELECT 7{}", "::int".repeat(depth)), Some("7".into())),
            ("CASE", format!("SELECT {}", nested("CASE WHEN true THEN ", "7", " END")), Some("7".into())),
            ("subqueries", format!("SELECT * FROM {}", nested("(SELECT * FROM ", "b", ") s") + " LIMIT 1"), Some("1".into())),
            (
                "UNION ALL",
                format!("SELECT count(*) FROM ({}) s", vec!["SELECT 1 AS x"; depth].join(" UNION ALL ")),
                Some(depth.to_string()),
            ),
            ("AND", format!("SELECT count(*) FROM b WHERE {}", vec!["x > 0"; depth].join(" AND ")), Some("2".into())),
            (
                "OR",
                format!("SELECT count(*) FROM b WHERE {}", (2..depth + 2).map(|n| format!("x = {n}")).collect::<Vec<_>>().join(" OR ")),
                Some("1".into()),
            ),
            ("columns", format!("SELECT sum({}) FROM b", vec!["x"; depth].join(" + ")), Some((3 * depth).to_string())),
        ];
        for (name, sql, expected) in statements {
            match answered_or_refused(&mut server, &session, name, &sql).await {
                Ok(value) => assert_eq!(Some(value), expected, "{name}, {depth} deep"),
                Err(state) => {
                    // Where the parser tries one reading after another, the last one's error is told.
                    assert!(["54001", "42601"].contains(&state.as_str()), "{name}, {depth} deep: {state}");
                    assert!(depth > 60, "{name}: {depth} levels are few");
                    let is_flat = ["a sum", "a concatenation", "AND", "OR", "columns"].contains(&name);
                    assert!(!is_flat && (name != "parentheses" || depth > 500), "{name}, {depth} deep: {state}");
                }
            }
        }
        let insert = format!("INSERT INTO b VALUES ({})", vec!["0"; depth].join(" + "));
        let view = format!("CREATE MATERIALIZED VIEW deep{depth} AS SELECT {} AS y FROM b", vec!["x"; depth].join(" + "));
        for sql in [insert, view] {
            match session.execute(&sql).await {
                Ok(_) => {}
                Err(error) => panic!("{depth}: {error}\n{}", server.log_tail()),
            }
        }
    }
    // The views came through a restart as well.
    server.restart();
    let session = server.connect().await;
    let expected = session.must_count("SELECT sum(x) * 60 FROM b").await;
    session.must("FLUSH").await;
    assert_eq!(session.must_count("SELECT sum(y) FROM deep60").await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_of_views_is_answered_or_refused() {
    let mut server = Server::start(&settings(&[]));
    let session = server.connect().await;
    session.must("CREATE TABLE b (x INT)").await;
    session.must("INSERT INTO b VALUES (1), (2)").await;
    session.must("CREATE VIEW u0 AS SELECT x FROM b").await;
    let mut last = 0;
    for view in 1..150 {
        match session.execute(&format!("CREATE VIEW u{view} AS SELECT x + 1 AS x FROM u{}", view - 1)).await {
            Ok(_) => last = view,
            Err(error) => {
                assert!(server.is_running(), "view {view}: the server is gone\n{}", server.log_tail());
                assert_eq!(sql_state(&error).as_deref(), Some("54001"), "{error}");
                break;
            }
        }
    }
    assert!((60..150).contains(&last), "{last} views");
    // Each that could be made can be read.
    assert_eq!(session.must_count(&format!("SELECT sum(x) FROM u{last}")).await, 3 + 2 * last);
    session.must(&format!("CREATE MATERIALIZED VIEW m AS SELECT sum(x) AS s FROM u{last}")).await;
    assert_eq!(session.must_count("SELECT s FROM m").await, 3 + 2 * last);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_without_an_end_is_ended_by_its_timeout_and_its_session_goes_on() {
    let server = Server::start(&settings(&[]));
    let session = server.connect().await;
    session.must("CREATE TABLE a (x INT PRIMARY KEY)").await;
    session.must("INSERT INTO a VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)").await;
    session.must("INSERT INTO a SELECT p.x + 10 * q.x + 100 * r.x + 1000 * s.x + 10 FROM a p, a q, a r, a s").await;
    session.must("CREATE TABLE b (x INT)").await;
    session.must("INSERT INTO b VALUES (1), (2), (3)").await;
    session.must("SET statement_timeout = '1 s'").await;
    for sql in [
        "SELECT count(*) FROM a p, a q, a r",
        "SELECT count(*) FROM a p, a q, b r WHERE p.x + q.x <> r.x",
        "SELECT count(*) FROM a p, b q, a r, a s WHERE p.x + q.x <> r.x + s.x",
    ] {
        let start = Instant::now();
        let error = tokio::time::timeout(PATIENCE, session.value(sql)).await.expect("it ends").expect_err("it takes longer than a second");
        assert_eq!(sql_state(&error).as_deref(), Some("57014"), "{sql}: {error}\n{}", server.log_tail());
        assert!(start.elapsed() >= Duration::from_millis(900), "{sql}");
    }
    session.must("RESET statement_timeout").await;
    assert_eq!(session.must_count("SELECT count(*) FROM b p, b q, b r WHERE p.x + q.x <> r.x").await, 24);
    assert_eq!(session.must_count("SELECT count(*) FROM a p, b q, b r WHERE p.x <> q.x + r.x").await, 90_081);
}
