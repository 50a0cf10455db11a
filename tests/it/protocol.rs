//! The extended protocol, as drivers use it: prepared statements, parameters, values in binary form, errors within a session, cancelling.
//!
//! The client sends parameters and reads values in binary form; [`crate::slt`] reads text.

use std::error::Error;
use std::time::{Duration, SystemTime};

use bytes::BytesMut;
use tokio_postgres::types::{Format, FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::reference::Reference;
use crate::run;
use crate::server::{Server, Session, describe, settings, sql_state};

/// A NUMERIC in binary form, as its digits in base 10,000: weight of the first, sign, digits behind the point, and the digits.
#[derive(Debug, PartialEq)]
struct Numeric {
    weight: i16,
    is_negative: bool,
    scale: u16,
    digits: Vec<u16>,
}

impl<'a> FromSql<'a> for Numeric {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Numeric, Box<dyn Error + Sync + Send>> {
        let words: Vec<u16> = raw.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
        match words.as_slice() {
            [count, weight, sign @ (0 | 0x4000), scale, digits @ ..]
                if digits.len() == usize::from(*count) && raw.len() == 2 * words.len() =>
            {
                Ok(Numeric { weight: *weight as i16, is_negative: *sign == 0x4000, scale: *scale, digits: digits.to_vec() })
            }
            _ => Err(format!("not a NUMERIC: {raw:?}").into()),
        }
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::NUMERIC
    }
}

/// A parameter of any type, in text form.
#[derive(Debug)]
struct AsText(&'static str);

impl ToSql for AsText {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

async fn start() -> (Server, Session) {
    let server = Server::start(&settings(&[]));
    let session = server.connect().await;
    session
        .must("CREATE TABLE t (id INT PRIMARY KEY, l BIGINT, d DOUBLE PRECISION, n NUMERIC(10,2), s TEXT, b BOOLEAN, at TIMESTAMP)")
        .await;
    (server, session)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_type_passes_in_binary_form() {
    let (_server, session) = start().await;
    let client = session.client();
    let insert = client.prepare("INSERT INTO t (id, l, d, s, b, at) VALUES ($1, $2, $3, $4, $5, $6)").await.expect("a prepared INSERT");
    assert_eq!(insert.params(), [Type::INT4, Type::INT8, Type::FLOAT8, Type::TEXT, Type::BOOL, Type::TIMESTAMP]);
    let at = SystemTime::UNIX_EPOCH + Duration::from_micros(1_709_210_096_789_012);
    let rows: [&[&(dyn ToSql + Sync)]; 3] = [
        &[&1i32, &Some(i64::MAX), &Some(-0.5f64), &Some("Zoë"), &Some(true), &Some(at)],
        &[&2i32, &Some(i64::MIN), &Some(f64::INFINITY), &Some(""), &Some(false), &Some(SystemTime::UNIX_EPOCH)],
        &[&3i32, &None::<i64>, &None::<f64>, &None::<&str>, &None::<bool>, &None::<SystemTime>],
    ];
    for row in rows {
        assert_eq!(client.execute(&insert, row).await.unwrap_or_else(|e| panic!("{}", describe(&e))), 1);
    }
    session.must("UPDATE t SET n = 12345.67 WHERE id = 1; UPDATE t SET n = -0.05 WHERE id = 2").await;

    let found = client.query("SELECT id, l, d, n, s, b, at FROM t ORDER BY id", &[]).await.expect("a query");
    assert_eq!(found.len(), 3);
    assert_eq!(found[0].get::<_, i32>(0), 1);
    assert_eq!(found[0].get::<_, i64>(1), i64::MAX);
    assert_eq!(found[0].get::<_, f64>(2), -0.5);
    assert_eq!(found[0].get::<_, Numeric>(3), Numeric { weight: 1, is_negative: false, scale: 2, digits: vec![1, 2345, 6700] });
    assert_eq!(found[0].get::<_, &str>(4), "Zoë");
    assert!(found[0].get::<_, bool>(5));
    assert_eq!(found[0].get::<_, SystemTime>(6), at);
    assert_eq!(found[1].get::<_, i64>(1), i64::MIN);
    assert_eq!(found[1].get::<_, f64>(2), f64::INFINITY);
    assert_eq!(found[1].get::<_, Numeric>(3), Numeric { weight: -1, is_negative: true, scale: 2, digits: vec![500] });
    assert_eq!(found[1].get::<_, &str>(4), "");
    assert_eq!(found[1].get::<_, SystemTime>(6), SystemTime::UNIX_EPOCH);
    for column in 1..7 {
        assert!(match column {
            1 => found[2].get::<_, Option<i64>>(column).is_none(),
            2 => found[2].get::<_, Option<f64>>(column).is_none(),
            3 => found[2].get::<_, Option<Numeric>>(column).is_none(),
            4 => found[2].get::<_, Option<&str>>(column).is_none(),
            5 => found[2].get::<_, Option<bool>>(column).is_none(),
            _ => found[2].get::<_, Option<SystemTime>>(column).is_none(),
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_statement_runs_again_with_other_parameters() {
    let (_server, session) = start().await;
    let client = session.client();
    session.must("INSERT INTO t (id, l, s) VALUES (1, 10, 'a'), (2, 20, 'b'), (3, 30, 'b')").await;
    let query = client.prepare("SELECT count(*) AS n, sum(l) FROM t WHERE l > $1 AND s = $2").await.expect("a prepared query");
    assert_eq!(query.params(), [Type::INT8, Type::TEXT]);
    assert_eq!((query.columns()[0].name(), query.columns()[0].type_()), ("n", &Type::INT8));
    assert_eq!((query.columns()[1].name(), query.columns()[1].type_()), ("sum", &Type::NUMERIC));
    for (above, letter, expected) in [(0i64, "b", 2i64), (25, "b", 1), (0, "a", 1), (100, "a", 0)] {
        assert_eq!(client.query_one(&query, &[&above, &letter]).await.expect("an answer").get::<_, i64>(0), expected);
    }
    let update = client.prepare("UPDATE t SET l = l + $1 WHERE id = $2").await.expect("a prepared UPDATE");
    assert_eq!(client.execute(&update, &[&5i64, &1i32]).await.expect("an UPDATE"), 1);
    assert_eq!(client.execute(&update, &[&5i64, &99i32]).await.expect("an UPDATE"), 0);
    let delete = client.prepare("DELETE FROM t WHERE s = $1").await.expect("a prepared DELETE");
    assert_eq!(client.execute(&delete, &[&"b"]).await.expect("a DELETE"), 2);
    assert_eq!(session.must_count("SELECT sum(l) FROM t").await, 15);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_ends_its_statement_and_not_the_session() {
    let (_server, session) = start().await;
    let client = session.client();
    let error = client.prepare("SELECT nothing FROM t WHERE id = $1").await.expect_err("there is no such column");
    assert_eq!(sql_state(&error).as_deref(), Some("42703"), "{}", describe(&error));
    let position = error.as_db_error().and_then(|db| db.position().cloned());
    assert_eq!(position, Some(tokio_postgres::error::ErrorPosition::Original(8)));
    let divide = client.prepare("SELECT 10 / $1::INT").await.expect("a prepared query");
    let error = client.query(&divide, &[&0i32]).await.expect_err("a division by zero");
    assert_eq!(sql_state(&error).as_deref(), Some("22012"), "{}", describe(&error));
    assert_eq!(client.query_one(&divide, &[&5i32]).await.expect("the session goes on").get::<_, i32>(0), 2);
    // In a block an error is remembered until its end.
    session.must("BEGIN").await;
    client.query(&divide, &[&0i32]).await.expect_err("a division by zero");
    let error = client.query(&divide, &[&5i32]).await.expect_err("the transaction has failed");
    assert_eq!(sql_state(&error).as_deref(), Some("25P02"), "{}", describe(&error));
    session.must("ROLLBACK").await;
    assert_eq!(client.query_one(&divide, &[&2i32]).await.expect("the session goes on").get::<_, i32>(0), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_of_one_message_are_one_transaction() {
    let (_server, session) = start().await;
    let error =
        session.execute("INSERT INTO t (id) VALUES (1); INSERT INTO t (id) VALUES (2); SELECT 1 / 0; INSERT INTO t (id) VALUES (3)").await;
    assert_eq!(error.err().as_ref().and_then(sql_state).as_deref(), Some("22012"));
    assert_eq!(session.must_count("SELECT count(*) FROM t").await, 0);
    session.must("INSERT INTO t (id) VALUES (1); INSERT INTO t (id) VALUES (2)").await;
    assert_eq!(session.must_count("SELECT count(*) FROM t").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_request_ends_a_running_statement() {
    let (_server, session) = start().await;
    let values: Vec<String> = (0..1_000).map(|i| format!("({i})")).collect();
    session.must(&format!("INSERT INTO t (id) VALUES {}", values.join(", "))).await;
    let endless = "SELECT sum(p.v - q.v) FROM (SELECT a.id * b.id AS v FROM t a CROSS JOIN t b) p CROSS JOIN (SELECT c.id - d.id AS v FROM t c CROSS JOIN t d) q";
    assert_eq!(session.ended(endless, Duration::from_millis(500)).await, "57014");
    assert_eq!(session.must_count("SELECT count(*) FROM t").await, 1_000);
}

/// What a statement is prepared over, the statement, what becomes of its tables then, and the SQLSTATE that running it has.
const CHANGED: &[(&str, &str, &str, &str)] = &[
    ("CREATE TABLE r (a INT, b TEXT)", "SELECT * FROM r", "DROP TABLE r; CREATE TABLE r (a INT, b TEXT)", "00000"),
    ("CREATE TABLE r (a INT, b TEXT)", "SELECT * FROM r", "DROP TABLE r; CREATE TABLE r (a INT, b TEXT, c INT)", "0A000"),
    ("CREATE TABLE r (a INT, b TEXT)", "SELECT * FROM r", "DROP TABLE r; CREATE TABLE r (a INT)", "0A000"),
    ("CREATE TABLE r (a INT, b TEXT)", "SELECT * FROM r", "DROP TABLE r; CREATE TABLE r (b TEXT, a INT)", "0A000"),
    ("CREATE TABLE r (a INT, b TEXT)", "SELECT * FROM r", "DROP TABLE r; CREATE TABLE r (a INT, c TEXT)", "0A000"),
    ("CREATE TABLE r (a INT, b TEXT)", "SELECT * FROM r", "DROP TABLE r; CREATE TABLE r (a BIGINT, b TEXT)", "0A000"),
    ("CREATE TABLE r (a INT, b TEXT)", "SELECT * FROM r", "DROP TABLE r", "42P01"),
    ("CREATE TABLE r (a INT, b TEXT)", "SELECT b FROM r", "DROP TABLE r; CREATE TABLE r (z INT, b TEXT, a BIGINT)", "00000"),
    ("CREATE TABLE r (a INT, b TEXT)", "SELECT b FROM r", "DROP TABLE r; CREATE TABLE r (a INT)", "42703"),
    ("CREATE TABLE r (a INT)", "SELECT count(*) AS n FROM r", "DROP TABLE r; CREATE TABLE r (b TEXT)", "00000"),
    ("CREATE TABLE r (a INT)", "SELECT a + 1 AS x FROM r", "DROP TABLE r; CREATE TABLE r (a BIGINT)", "0A000"),
    ("CREATE TABLE r (a NUMERIC(10,2))", "SELECT a FROM r", "DROP TABLE r; CREATE TABLE r (a NUMERIC(12,2))", "0A000"),
    ("CREATE TABLE r (a TIMESTAMP(3))", "SELECT a FROM r", "DROP TABLE r; CREATE TABLE r (a TIMESTAMP(0))", "0A000"),
    (
        "CREATE TABLE r (a INT); CREATE VIEW w AS SELECT a FROM r",
        "SELECT * FROM w",
        "DROP VIEW w; CREATE VIEW w AS SELECT a AS b FROM r",
        "0A000",
    ),
    (
        "CREATE TABLE r (a INT); CREATE VIEW w AS SELECT a FROM r",
        "SELECT * FROM w",
        "DROP VIEW w; CREATE VIEW w AS SELECT a FROM r WHERE a > 1",
        "00000",
    ),
    ("CREATE TABLE r (a INT)", "INSERT INTO r VALUES (1)", "DROP TABLE r; CREATE TABLE r (a BIGINT, b INT)", "00000"),
    // With a parameter, whose type stays.
    ("CREATE TABLE r (a INT)", "SELECT count(*) AS n FROM r WHERE a > $1", "DROP TABLE r; CREATE TABLE r (a BIGINT)", "00000"),
    ("CREATE TABLE r (a INT)", "SELECT count(*) AS n FROM r WHERE a > $1", "DROP TABLE r; CREATE TABLE r (a TEXT)", "42883"),
    ("CREATE TABLE r (a INT)", "SELECT coalesce(a, $1) AS x FROM r", "DROP TABLE r; CREATE TABLE r (a BIGINT)", "0A000"),
    (
        "CREATE TABLE r (a INT)",
        "SELECT count(x) AS n FROM (SELECT coalesce(a, $1) AS x FROM r) s",
        "DROP TABLE r; CREATE TABLE r (a BIGINT)",
        "00000",
    ),
    ("CREATE TABLE r (a INT)", "INSERT INTO r VALUES ($1)", "DROP TABLE r; CREATE TABLE r (a BIGINT)", "00000"),
    ("CREATE TABLE r (a INT)", "INSERT INTO r VALUES ($1)", "DROP TABLE r; CREATE TABLE r (a TEXT)", "00000"),
    ("CREATE TABLE r (a INT)", "INSERT INTO r VALUES ($1)", "DROP TABLE r; CREATE TABLE r (a BOOLEAN)", "42804"),
    ("CREATE TABLE r (a INT)", "UPDATE r SET a = $1", "DROP TABLE r; CREATE TABLE r (a BIGINT)", "00000"),
    ("CREATE TABLE r (a INT)", "DELETE FROM r WHERE a = $1", "DROP TABLE r; CREATE TABLE r (a TEXT)", "42883"),
];

/// Runs the cases of [`CHANGED`]; on what system, `name` says.
async fn run_changed(name: &str, session: &Session) {
    for (before, sql, after, expected) in CHANGED {
        let case = format!("{name}: {before}: {sql}: {after}");
        session.must(before).await;
        let client = session.client();
        let statement = client.prepare(sql).await.unwrap_or_else(|e| panic!("{case}: {}", describe(&e)));
        let seven: [&(dyn ToSql + Sync); 1] = [&7i32];
        let parameters = &seven[..statement.params().len()];
        client.query(&statement, parameters).await.unwrap_or_else(|e| panic!("{case}: {}", describe(&e)));
        session.must(after).await;
        // More than once: what is refused is not what is compared with from then on.
        for _ in 0..2 {
            let state = match client.query(&statement, parameters).await {
                Ok(_) => "00000".to_string(),
                Err(error) => sql_state(&error).unwrap_or_else(|| panic!("{case}: {}", describe(&error))),
            };
            assert_eq!(state, *expected, "{case}");
        }
        session.must("DROP VIEW IF EXISTS w; DROP TABLE IF EXISTS r").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_statement_goes_on_as_long_as_its_result_is_the_same() {
    let (_server, session) = start().await;
    run_changed("weir", &session).await;
    match Reference::start() {
        Ok(reference) => run_changed("PostgreSQL", &reference.database("changed").await).await,
        Err(reason) => run::skip("prepared statements on PostgreSQL", &reason),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_statement_whose_result_has_changed_is_refused_as_drivers_know_it() {
    let (_server, session) = start().await;
    let client = session.client();
    session.must("INSERT INTO t (id, l) VALUES (1, 10), (2, 20)").await;
    session.must("CREATE MATERIALIZED VIEW m AS SELECT id, l FROM t").await;
    let query = client.prepare("SELECT * FROM m WHERE id = $1").await.expect("a prepared query");
    assert_eq!(client.query_one(&query, &[&2i32]).await.expect("an answer").get::<_, i64>("l"), 20);
    session.must("ALTER MATERIALIZED VIEW m ALLOW NON RESTORED STATE AS SELECT id, l + 1 AS l FROM t").await;
    assert_eq!(client.query_one(&query, &[&2i32]).await.expect("an answer").get::<_, i64>("l"), 21);
    session.must("ALTER MATERIALIZED VIEW m ALLOW NON RESTORED STATE AS SELECT id, s FROM t").await;
    session.must("BEGIN").await;
    let error = client.query(&query, &[&2i32]).await.expect_err("it has another column");
    let told = error.as_db_error().unwrap_or_else(|| panic!("{}", describe(&error)));
    assert_eq!((told.code().code(), told.message()), ("0A000", "cached plan must not change result type"));
    assert_eq!((told.severity(), told.routine()), ("ERROR", Some("RevalidateCachedQuery")));
    let error = client.query(&query, &[&2i32]).await.expect_err("the block has failed");
    assert_eq!(sql_state(&error).as_deref(), Some("25P02"), "{}", describe(&error));
    session.must("ROLLBACK").await;
    // Another view with the columns of old has its answer.
    session.must("DROP MATERIALIZED VIEW m").await;
    session.must("CREATE MATERIALIZED VIEW m AS SELECT id, CAST(l + 2 AS BIGINT) AS l FROM t").await;
    assert_eq!(client.query_one(&query, &[&2i32]).await.expect("an answer").get::<_, i64>("l"), 22);
    session.must("DROP MATERIALIZED VIEW m").await;
    session.must("CREATE MATERIALIZED VIEW m AS SELECT CAST(id AS BIGINT) AS id, l FROM t").await;
    let error = client.query(&query, &[&2i32]).await.expect_err("it has another type");
    assert_eq!(sql_state(&error).as_deref(), Some("0A000"), "{}", describe(&error));
    let query = client.prepare("SELECT * FROM m WHERE id = $1").await.expect("prepared again");
    assert_eq!(query.params(), [Type::INT8]);
    assert_eq!(client.query_one(&query, &[&2i64]).await.expect("an answer").get::<_, i64>("l"), 20);
}

/// A parameter that takes its type from beside it leaves the precision of a result to that, and has one of its own when the statement runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_of_any_precision_are_no_change_of_the_result() {
    let (_server, session) = start().await;
    let client = session.client();
    session.must("CREATE TABLE p (n NUMERIC(10,2), m NUMERIC(6,4), at TIMESTAMP(3), l BIGINT, d DOUBLE PRECISION, s TEXT)").await;
    session.must("INSERT INTO p VALUES (1.5, 1.25, '2024-01-02 03:04:05.678', NULL, 1, NULL)").await;
    for (expression, value) in [
        ("coalesce($1, n)", "7.125"),
        ("coalesce(n, $1)", "7.125"),
        ("coalesce($1, n, m)", "7.125"),
        ("nullif($1, n)", "7.125"),
        ("CASE WHEN n > 0 THEN $1 ELSE m END", "7.125"),
        ("CASE WHEN n > $1 THEN m END", "7.125"),
        ("n + $1", "7.125"),
        ("$1 * m", "7.125"),
        ("-n / $1", "7.125"),
        ("round($1, 2) + n", "7.125"),
        ("ARRAY[n, $1]", "7.125"),
        ("ARRAY[n, m] = $1", "{7.125,1}"),
        ("coalesce(ARRAY[n], $1)", "{7.125,1}"),
        ("$1::NUMERIC(5,1)", "7.125"),
        ("n IN (1, $1)", "7.125"),
        ("coalesce($1, at)", "2024-01-02 03:04:05.678901"),
        ("CASE WHEN at < $1 THEN at ELSE $1 END", "2024-01-02 03:04:05.678901"),
        ("$1::TIMESTAMP(0)", "2024-01-02 03:04:05.678901"),
        ("(SELECT max(x) FROM (SELECT n AS x FROM p UNION ALL SELECT $1) s)", "7.125"),
        ("(SELECT max(x) FROM (VALUES ($1), (1.5)) s (x))", "7.125"),
        ("sum(coalesce($1, n)) OVER ()", "7.125"),
        ("coalesce(l, $1)", "7"),
        ("coalesce(s, $1)", "seven"),
        ("d * $1", "7.125"),
        ("$1", "seven"),
        ("$1 || s", "seven"),
    ] {
        let sql = format!("SELECT {expression} AS x FROM p");
        let statement = client.prepare(&sql).await.unwrap_or_else(|e| panic!("{sql}: {}", describe(&e)));
        for _ in 0..2 {
            let rows = client.query(&statement, &[&AsText(value)]).await.unwrap_or_else(|e| panic!("{sql}: {}", describe(&e)));
            assert_eq!(rows.len(), 1, "{sql}");
        }
    }
}
