//! A row on which an expression fails stops the job that evaluates it, and nothing else; once the row is gone, RESUME rebuilds the job from
//! the rows that there are.

use std::time::{Duration, Instant};

use crate::server::{PATIENCE, Server, Session, describe, settings, sql_state};

/// One way to fail: the view's expression over `t (id INT PRIMARY KEY, v INT, s TEXT)`, a row on which it fails, and the SQLSTATE.
struct Poison {
    view: &'static str,
    row: &'static str,
    state: &'static str,
}

const POISONS: [Poison; 3] = [
    Poison { view: "SELECT id, 100 / v AS q FROM t", row: "(99, 0, '1')", state: "22012" },
    Poison { view: "SELECT id, v * 2000000000 AS q FROM t", row: "(99, 2, '1')", state: "22003" },
    Poison { view: "SELECT CAST(s AS INT) AS q, count(*) AS n FROM t GROUP BY CAST(s AS INT)", row: "(99, 1, 'x')", state: "22P02" },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poison_row_stops_only_its_job_and_resume_rebuilds_it() {
    for poison in &POISONS {
        let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "200 ms")]));
        let session = server.connect().await;
        session.must("CREATE TABLE t (id INT PRIMARY KEY, v INT, s TEXT)").await;
        session.must("INSERT INTO t VALUES (1, 1, '10'), (2, 1, '20')").await;
        session.must(&format!("CREATE MATERIALIZED VIEW poisoned AS {}", poison.view)).await;
        session.must("CREATE MATERIALIZED VIEW healthy AS SELECT count(*) AS n, sum(v) AS total FROM t").await;
        session.must("FLUSH").await;
        assert_eq!(session.must_query("SELECT * FROM poisoned").await.rows.len(), 2, "{}", poison.view);

        // The statement itself is fine: what fails is the view's job.
        session.must(&format!("INSERT INTO t VALUES {}", poison.row)).await;
        fails_with(&session, "FLUSH", poison.state).await;
        fails_with(&session, "SELECT * FROM poisoned", poison.state).await;
        let job = job(&session, "poisoned").await;
        assert!(job.contains(poison.state), "SHOW JOBS does not show {}: {job}", poison.state);

        // The other group goes on, and so does the session.
        session.must("INSERT INTO t VALUES (3, 1, '30')").await;
        shows(&session, "SELECT n FROM healthy", 4).await;

        // It stays so across a kill.
        server.kill();
        server.restart();
        let session = server.connect().await;
        fails_with(&session, "SELECT * FROM poisoned", poison.state).await;
        shows(&session, "SELECT n FROM healthy", 4).await;

        // Resuming with the row still there fails again; without it, the view is right again.
        if let Err(e) = session.execute("ALTER JOB poisoned RESUME").await {
            assert_eq!(sql_state(&e).as_deref(), Some(poison.state), "{}", describe(&e));
        }
        fails_with(&session, "SELECT * FROM poisoned", poison.state).await;
        session.must("DELETE FROM t WHERE id = 99").await;
        session.must("ALTER JOB poisoned RESUME").await;
        session.must("INSERT INTO t VALUES (4, 1, '40')").await;
        session.must("FLUSH").await;
        let expected = session.must_query(poison.view).await;
        let shown = session.must_query("SELECT * FROM poisoned").await;
        assert_eq!(expected.difference(&shown, crate::rows::Comparison::Exact), None, "{}", poison.view);
        assert_eq!(shown.rows.len(), 4);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_error_of_a_poison_row_names_the_row_by_its_key() {
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    session.must("CREATE TABLE t (a TEXT, v INT, id INT, w INT, PRIMARY KEY (id, a))").await;
    session.must("INSERT INTO t VALUES ('one', 1, 1, 0), ('two', 2, 2, 0), ('other', 1, 3, 1)").await;
    // The queries read neither column of the key; one filters, so that rows are counted from another first one.
    for (number, query) in
        ["SELECT sum(100 / v) AS q FROM t", "SELECT 100 / v AS q FROM t WHERE w = 0", "SELECT max(w) AS q FROM t WHERE 10 / v > 1"]
            .iter()
            .enumerate()
    {
        let view = format!("poisoned_{number}");
        session.must(&format!("CREATE MATERIALIZED VIEW {view} AS {query}")).await;
        session.must("FLUSH").await;
        session.must("INSERT INTO t VALUES ('poison', 0, 4711, 0)").await;
        fails_with(&session, "FLUSH", "22012").await;
        let error = session.query(&format!("SELECT * FROM {view}")).await.unwrap_err();
        let told = describe(&error);
        assert!(told.contains("id=4711") && told.contains("a=poison") && told.contains("v=0"), "{query}: {told}");
        session.must("DELETE FROM t WHERE id = 4711").await;
        session.must(&format!("DROP MATERIALIZED VIEW {view}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_over_a_poisoned_view_gives_its_error() {
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    session.must("CREATE TABLE t (id INT PRIMARY KEY, v INT)").await;
    session.must("INSERT INTO t VALUES (1, 1)").await;
    session.must("CREATE MATERIALIZED VIEW below AS SELECT id, 10 / v AS q FROM t").await;
    session.must("CREATE MATERIALIZED VIEW above AS SELECT sum(q) AS total FROM below").await;
    session.must("FLUSH").await;
    assert_eq!(session.must_count("SELECT total FROM above").await, 10);
    session.must("INSERT INTO t VALUES (2, 0)").await;
    fails_with(&session, "FLUSH", "22012").await;
    fails_with(&session, "SELECT * FROM above", "22012").await;
    session.must("DELETE FROM t WHERE v = 0").await;
    session.must("ALTER JOB below RESUME").await;
    // Both were taken out together; the upper one needs its own RESUME unless resuming the lower one brought it back.
    if session.execute("SELECT * FROM above").await.is_err() {
        session.must("ALTER JOB above RESUME").await;
    }
    session.must("FLUSH").await;
    assert_eq!(session.must_count("SELECT total FROM above").await, 10);
}

async fn fails_with(session: &Session, sql: &str, state: &str) {
    // A job is tried again a few times before it is given up: until then a reader waits.
    match session.execute(sql).await {
        Ok(_) => panic!("{sql} worked, where {state} was expected"),
        Err(e) => assert_eq!(sql_state(&e).as_deref(), Some(state), "{sql}: {}", describe(&e)),
    }
}

/// The line of SHOW JOBS about a job.
async fn job(session: &Session, name: &str) -> String {
    let rows = session.text_rows("SHOW JOBS").await.unwrap_or_else(|e| panic!("SHOW JOBS: {}", describe(&e)));
    rows.iter()
        .find(|row| row.iter().flatten().any(|value| value == name))
        .map(|row| row.iter().map(|value| value.as_deref().unwrap_or("NULL")).collect::<Vec<_>>().join(" | "))
        .unwrap_or_else(|| panic!("SHOW JOBS does not list {name}: {rows:?}"))
}

/// Waits until a query says `expected`: FLUSH can't be waited for while another job is stopped.
async fn shows(session: &Session, sql: &str, expected: i64) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let value = session.must_count(sql).await;
        if value == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{sql} says {value}, not {expected}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
