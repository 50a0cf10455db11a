//! Where errors say that they are: the SQLSTATE and the position that PostgreSQL gives, for statements that are wrong in many ways.

use std::io::{Read, Write};

use crate::reference::Reference;
use crate::run;
use crate::server::{Server, settings};
use crate::wire::{Raw, query};

const SCHEMA: [&str; 2] = [
    "CREATE TABLE t (id INT PRIMARY KEY, g BIGINT NOT NULL, name TEXT, price NUMERIC(10,2), seen TIMESTAMP(3), ok BOOLEAN DEFAULT TRUE)",
    "CREATE TABLE u (id INT, w DOUBLE PRECISION)",
];

/// Statements that fail, by what is wrong with them.
const WRONG: &[&str] = &[
    "SELECT nothing FROM t",
    "SELECT 'Zoë', nothing FROM t",
    "/* é */ SELECT nothing FROM t",
    "-- first\nSELECT nothing FROM t",
    "SELECT 1; SELECT 'é'; SELECT nothing FROM t",
    "SELECT t.nothing FROM t",
    "SELECT x.id FROM t",
    "SELECT id FROM t, u",
    "SELECT * FROM nowhere",
    "SELECT x.* FROM t",
    "SELECT id, count(*) FROM t",
    "SELECT id, name FROM t GROUP BY g",
    "SELECT g, max(id) FROM t GROUP BY g HAVING name = 'x'",
    "SELECT id FROM t WHERE count(*) > 1",
    "SELECT count(count(*)) FROM t",
    "SELECT g FROM t GROUP BY count(*)",
    "SELECT g FROM t GROUP BY g ORDER BY name",
    "SELECT nofunction(id) FROM t",
    "SELECT upper(id, 2) FROM t",
    "SELECT sum(name) FROM t",
    "SELECT id + name FROM t",
    "SELECT id + ok FROM t",
    "SELECT - name FROM t",
    "SELECT NOT id FROM t",
    "SELECT id AND ok FROM t",
    "SELECT ok OR name FROM t",
    "SELECT id = ok FROM t",
    "SELECT id LIKE 'x' FROM t",
    "SELECT id || g FROM t",
    "SELECT id IN (1, ok) FROM t",
    "SELECT id BETWEEN 1 AND ok FROM t",
    "SELECT id FROM t WHERE id",
    "SELECT id FROM t WHERE name",
    "SELECT id FROM t HAVING id",
    "SELECT CASE WHEN id THEN 1 END FROM t",
    "SELECT CASE WHEN ok THEN 1 ELSE ok END FROM t",
    "SELECT COALESCE(id, ok) FROM t",
    "SELECT CAST(ok AS NUMERIC) FROM t",
    "SELECT 'x'::int",
    "SELECT 1 + 'x'",
    "SELECT id = 'x' FROM t",
    "SELECT NULLIF(id, ok) FROM t",
    "SELECT GREATEST(id, ok) FROM t",
    "SELECT id::notype FROM t",
    "SELECT CAST(id AS notype) FROM t",
    "SELECT id FROM t UNION SELECT name FROM t",
    "SELECT id FROM t UNION ALL SELECT id, g FROM t",
    "SELECT 1 UNION SELECT 'x'",
    "SELECT id FROM t UNION SELECT id FROM u ORDER BY nothing",
    "SELECT id, name FROM t UNION SELECT id, w FROM u",
    "SELECT id FROM t ORDER BY 3",
    "SELECT id FROM t ORDER BY nothing",
    "SELECT id FROM t GROUP BY 5",
    "SELECT id FROM t LIMIT 'x'",
    "SELECT id FROM t LIMIT id",
    "SELECT id AS a, g AS a FROM t ORDER BY a",
    "SELECT (SELECT id, g FROM t) FROM u",
    "SELECT id FROM t WHERE id IN (SELECT id, g FROM t)",
    "SELECT id FROM t WHERE id IN (SELECT name FROM t)",
    "SELECT id FROM t WHERE id = (SELECT name FROM t)",
    "SELECT * FROM t JOIN u ON t.id",
    "SELECT * FROM t JOIN u USING (nothing)",
    "SELECT * FROM t JOIN u ON t.id = u.nothing",
    "SELECT * FROM t, t",
    "SELECT * FROM t NATURAL JOIN nowhere",
    "WITH a AS (SELECT nothing FROM t) SELECT * FROM a",
    "WITH a AS (SELECT 1), a AS (SELECT 2) SELECT * FROM a",
    "WITH a (x, y) AS (SELECT 1) SELECT * FROM a",
    "SELECT a FROM (SELECT nothing AS a FROM t) AS s",
    "SELECT * FROM (VALUES (1, 2), (3)) AS v",
    "VALUES (1), ('x')",
    "VALUES (1), (TRUE)",
    "SELECT sum(id) OVER (ORDER BY nothing) FROM t",
    "SELECT id FROM t WHERE sum(id) OVER () > 1",
    "SELECT count(*) FILTER (WHERE id) FROM t",
    "SELECT upper(DISTINCT name) FROM t",
    "SELECT max(id) FROM t WHERE EXISTS (SELECT nothing FROM u)",
    "SELECT DISTINCT id FROM t ORDER BY g",
    "SELECT id FROM t ORDER BY max(id)",
    "SELECT name ~ id FROM t",
    "SELECT int '12x'",
    "SELECT timestamp 'x'",
    "SELECT seen + 'nonsense'::interval FROM t",
    "SELECT t FROM u",
    "SELECT id.x FROM t",
    "SELECT array[1, 'x']",
    "SELECT array[1, TRUE]",
    "INSERT INTO nowhere VALUES (1)",
    "INSERT INTO nowhere (a) SELECT 1",
    "INSERT INTO t (id, nothing) VALUES (1, 2)",
    "INSERT INTO t (id, \"Nothing\") VALUES (1, 2)",
    "INSERT INTO t (id, g, id) VALUES (1, 2, 3)",
    "INSERT INTO u VALUES (1, 2, 3)",
    "INSERT INTO u (id) VALUES (1, 2)",
    "INSERT INTO u (id, w) VALUES (1)",
    "INSERT INTO u VALUES (1, 2), (3)",
    "INSERT INTO u VALUES (1), (3, 4)",
    "INSERT INTO u SELECT 1, 2, 3",
    "INSERT INTO u (id, w) SELECT 1",
    "INSERT INTO u (id) SELECT id, w FROM u",
    "INSERT INTO u VALUES (TRUE, 1)",
    "INSERT INTO u VALUES (1, 1), (2, TRUE)",
    "INSERT INTO u VALUES ('x', 1)",
    "INSERT INTO u (w) SELECT ok FROM t",
    "INSERT INTO u (w) SELECT 'x'",
    "INSERT INTO u SELECT nothing FROM t",
    "INSERT INTO u SELECT id FROM nowhere",
    "INSERT INTO u VALUES (id, 1)",
    "INSERT INTO u VALUES (count(*))",
    "INSERT INTO nowhere DEFAULT VALUES",
    "/* é */ INSERT INTO u (id, é) VALUES (1, 2)",
    "SELECT 'é'; INSERT INTO u (id, nothing) VALUES (1, 2)",
    "INSERT INTO u (id, w) VALUES (1, nofunction(2))",
    "INSERT INTO u (id) SELECT name FROM t",
    "INSERT INTO u (id, w) SELECT id, name FROM t GROUP BY id, name",
    "UPDATE nowhere SET a = 1",
    "UPDATE t SET nothing = 1",
    "UPDATE t SET id = 1, nothing = 1",
    "UPDATE t SET id = nothing",
    "UPDATE t SET id = name",
    "UPDATE t SET ok = 1",
    "UPDATE t SET id = 'x'",
    "UPDATE t SET id = count(*)",
    "UPDATE t SET id = 1 WHERE nothing = 1",
    "UPDATE t SET id = 1 WHERE id",
    "UPDATE t SET (id, g) = (1, ok)",
    "UPDATE t AS x SET id = t.id",
    "UPDATE t SET (id, nothing) = (1, 2)",
    "-- é\nUPDATE t SET nothing = 1",
    "DELETE FROM nowhere",
    "DELETE FROM t WHERE nothing = 1",
    "DELETE FROM t WHERE id",
    "DELETE FROM t WHERE id = name",
    "DELETE FROM t WHERE count(*) > 1",
    "DELETE FROM t AS x WHERE t.id = 1",
    "CREATE VIEW v AS SELECT nothing FROM t",
    "CREATE VIEW v (a, b, c) AS SELECT id FROM t",
    "CREATE VIEW v AS SELECT id, id FROM t",
    "CREATE VIEW v AS SELECT 'é', nothing FROM t",
    "/* é */ CREATE VIEW v AS SELECT * FROM nowhere",
    "SELECT 1; CREATE VIEW v AS SELECT id FROM t UNION SELECT name FROM t",
    "CREATE MATERIALIZED VIEW v AS SELECT nothing FROM t",
    "CREATE MATERIALIZED VIEW v AS SELECT id + ok FROM t",
    "CREATE MATERIALIZED VIEW v AS\n  SELECT id,\n count(*) FROM t",
    "CREATE MATERIALIZED VIEW v AS SELECT * FROM nowhere",
    "CREATE TABLE x (a INT DEFAULT nothing)",
    "CREATE TABLE x (a INT DEFAULT 'x')",
    "CREATE TABLE x (a INT DEFAULT nofunction())",
    "CREATE TABLE x (a notype)",
    "CREATE TABLE x (a INT DEFAULT count(*))",
    "CREATE TABLE x (a INT DEFAULT (SELECT 1))",
    "CREATE TABLE x (a INT PRIMARY KEY, b INT PRIMARY KEY)",
    "CREATE TABLE x (a INT DEFAULT 1 + nofunction(2))",
    "DROP TABLE nowhere",
    "DROP VIEW nowhere",
    "EXPLAIN SELECT nothing FROM t",
    "EXPLAIN SELECT * FROM nowhere",
    "/* é */ EXPLAIN SELECT 'é', nothing FROM t",
    "EXPLAIN CREATE MATERIALIZED VIEW v AS SELECT nothing FROM t",
    "SELECT 1; EXPLAIN SELECT nothing FROM t",
    "EXPLAIN SELEC 1",
    "EXPLAIN SELECT id + ok FROM t",
    "SELECT id FROM t WHERE seen::int = 1",
    "SELECT (id + 1)::text::timestamp(3)::int FROM t",
    "SELECT id + 1 + ok FROM t",
    "SELECT (id + 1) * name FROM t",
    "SELECT upper(name || 'x') + id FROM t",
    "SELECT count(*) * ok FROM t GROUP BY ok",
    "SELECT id + (g + name) FROM t",
    "SELECT id <> ok FROM t",
    "SELECT id NOT LIKE name FROM t",
    "SELECT id NOT IN (ok) FROM t",
    "SELECT id NOT BETWEEN ok AND 3 FROM t",
    "SELECT id IS DISTINCT FROM ok FROM t",
    "SELECT ok = ANY (SELECT id FROM t) FROM t",
    "SELECT -(name) FROM t",
    "INSERT INTO public.u (id, nothing) VALUES (1, 2)",
    "INSERT INTO u (id, w) SELECT * FROM t",
    "INSERT INTO u SELECT * FROM t",
    "SELECT id, name FROM t UNION SELECT * FROM u",
    "SELECT id FROM t UNION ALL SELECT id FROM u UNION ALL SELECT name FROM t",
    "SELECT id FROM t EXCEPT SELECT name FROM t",
    "UPDATE t SET name = upper(nothing), g = 2",
    "UPDATE ONLY t SET nothing = 1",
];

/// The SQLSTATE and the position of the error that `sql` gives.
fn error_of<S: Read + Write>(raw: &mut Raw<S>, sql: &str) -> (Option<String>, Option<String>) {
    raw.send(&query(sql.as_bytes()));
    let (messages, _) = raw.ready();
    let error = messages.iter().find(|message| message.kind == b'E');
    error.map_or((None, None), |error| (error.field(b'C'), error.field(b'P')))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_are_where_they_are_on_postgresql() {
    let server = Server::start(&settings(&[]));
    let mut weir = Raw::session(server.address());
    for sql in SCHEMA {
        weir.ask(&[query(sql.as_bytes())]);
    }
    // Known without a PostgreSQL: nothing is right, and characters are counted, not bytes.
    for sql in WRONG {
        assert!(error_of(&mut weir, sql).0.is_some(), "{sql} is accepted");
    }
    assert_eq!(error_of(&mut weir, "/* é */ EXPLAIN SELECT 'é', nothing FROM t").1.as_deref(), Some("29"));
    let reference = match Reference::start() {
        Ok(reference) => reference,
        Err(reason) => return run::skip("error places on PostgreSQL", &reason),
    };
    drop(reference.database("places").await);
    let mut postgres = Raw::on_reference(&reference, "places");
    for sql in SCHEMA {
        postgres.ask(&[query(sql.as_bytes())]);
    }
    let mut differences = Vec::new();
    for sql in WRONG {
        let (ours, theirs) = (error_of(&mut weir, sql), error_of(&mut postgres, sql));
        if ours != theirs {
            differences.push(format!("{sql}\n    weir {ours:?}, PostgreSQL {theirs:?}"));
        }
    }
    assert!(differences.is_empty(), "{} of {} statements differ:\n{}", differences.len(), WRONG.len(), differences.join("\n"));
}
