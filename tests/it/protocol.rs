//! The extended protocol, as drivers use it: prepared statements, parameters, values in binary form, errors within a session, cancelling.
//!
//! The client sends parameters and reads values in binary form; [`crate::slt`] reads text.

use std::error::Error;
use std::time::{Duration, SystemTime};

use tokio_postgres::types::{FromSql, ToSql, Type};

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
