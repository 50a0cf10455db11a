//! PREPARE, EXECUTE and DEALLOCATE, as PostgreSQL has them.

use crate::reference::Reference;
use crate::run;
use crate::server::{Server, describe, settings, sql_state};

/// Statements, whose rows or errors are the same on both.
const STATEMENTS: &[&str] = &[
    "CREATE TABLE items (id INT PRIMARY KEY, kind TEXT, price INT)",
    "INSERT INTO items VALUES (1, 'a', 60), (2, 'b', 50), (3, 'c', 40)",
    "PREPARE by_id (int) AS SELECT kind, price FROM items WHERE id = $1",
    "EXECUTE by_id(2)",
    "EXECUTE by_id(1 + 2)",
    "EXECUTE by_id(NULL)",
    "PREPARE put AS INSERT INTO items VALUES ($1, $2, $3)",
    "EXECUTE put(7, 'g', NULL)",
    "EXECUTE put('8', upper('h'), 1)",
    "EXECUTE put(8, 'twice', 1)",
    "PREPARE change (text, int) AS UPDATE items SET kind = $1 WHERE id > $2",
    "EXECUTE change('x', 6)",
    "PREPARE gone AS DELETE FROM items WHERE id = $1",
    "EXECUTE gone(1)",
    "SELECT * FROM items ORDER BY id",
    "PREPARE put AS SELECT 1",
    "PREPARE wrong AS SELECT nosuch FROM items",
    "PREPARE wrong AS CREATE TABLE t (a INT)",
    "EXECUTE by_id",
    "EXECUTE by_id(1, 2)",
    "EXECUTE by_id('x')",
    "EXECUTE by_id(true)",
    "EXECUTE nosuch",
    "PREPARE fails AS SELECT 10 / $1::int",
    "EXECUTE fails(0)",
    "EXECUTE fails(5)",
    "BEGIN",
    "EXECUTE put(20, 'in', 1)",
    "SELECT count(*) FROM items",
    "EXECUTE fails(0)",
    "EXECUTE fails(5)",
    "ROLLBACK",
    "SELECT count(*) FROM items",
    "DEALLOCATE by_id",
    "EXECUTE by_id(1)",
    "DEALLOCATE PREPARE ALL",
    "EXECUTE put(9, 'i', 1)",
    "PREPARE one AS VALUES (1)",
    "DISCARD ALL",
    "EXECUTE one",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_are_prepared_by_name() {
    let server = Server::start(&settings(&[]));
    let session = server.connect().await;
    let reference = match Reference::start() {
        Ok(reference) => Some(reference),
        Err(reason) => {
            run::skip("named statements on postgres", &reason);
            None
        }
    };
    let postgres = match &reference {
        Some(reference) => Some(reference.database("named").await),
        None => None,
    };
    for sql in STATEMENTS {
        let ours = session.text_rows(sql).await;
        let Some(postgres) = &postgres else { continue };
        match (ours, postgres.text_rows(sql).await) {
            (Ok(ours), Ok(theirs)) => assert_eq!(ours, theirs, "{sql}"),
            (Err(ours), Err(theirs)) => assert_eq!(sql_state(&ours), sql_state(&theirs), "{sql}: {}", describe(&ours)),
            (Ok(_), Err(theirs)) => panic!("{sql} works, where PostgreSQL says {}", describe(&theirs)),
            (Err(ours), Ok(_)) => panic!("{sql}: {}", describe(&ours)),
        }
    }
    // Through the extended protocol, which is told the columns before.
    session.must("PREPARE kinds (int) AS SELECT kind, price AS p FROM items WHERE id > $1 ORDER BY id").await;
    let prepared = session.client().prepare("EXECUTE kinds(2)").await.expect("EXECUTE is prepared");
    assert_eq!(prepared.columns().iter().map(|column| column.name()).collect::<Vec<_>>(), ["kind", "p"]);
    let rows = session.client().query(&prepared, &[]).await.expect("EXECUTE runs");
    assert_eq!(rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>(), ["c", "x", "x"]);
}
