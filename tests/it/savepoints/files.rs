//! State over files that do not come by watching: what begins with a savepoint, or takes another query, reads those that have come since as well; a start after a
//! crash goes on with those that it had found.

use std::path::Path;
use std::time::Duration;

use super::{check, eventually_equal, rows, verdicts};
use crate::alter::content;
use crate::files::wait_finished;
use crate::s3::store::{Store, settings_for};
use crate::server::{PATIENCE, Server, Session, settings};

const QUERIES: [(&str, &str); 3] = [
    ("plain", "SELECT k, v FROM f"),
    ("counts", "SELECT k, count(*) AS n, sum(v) AS s, count(DISTINCT v) AS d FROM f GROUP BY k"),
    ("beside", "SELECT k, count(*) AS n FROM (SELECT k FROM f UNION ALL SELECT k FROM t) AS b GROUP BY k"),
];

/// Several pieces for several subtasks.
const RECORDS: usize = 3000;

fn add_file(folder: &Path, number: usize) {
    let text: String = (0..RECORDS).map(|record| format!("{},{}\n", record % 17, number * RECORDS + record)).collect();
    let hidden = folder.join(format!(".{number}.csv"));
    std::fs::write(&hidden, text).expect("a file");
    std::fs::rename(hidden, folder.join(format!("{number}.csv"))).expect("a file");
}

async fn make_tables(session: &Session, place: &str) {
    session
        .must(&format!(
            "CREATE TABLE f (k BIGINT, v BIGINT) WITH (connector = 'file', path = '{place}', format = 'csv');
            CREATE TABLE t (k BIGINT); INSERT INTO t VALUES (1), (2), (40)"
        ))
        .await;
}

/// What views show after a start that is no start from a savepoint: as before, in spite of files that came.
async fn shown(session: &Session) -> Vec<Vec<Vec<String>>> {
    let mut all = Vec::new();
    session.must("FLUSH").await;
    for (view, _) in QUERIES {
        all.push(rows(session, &format!("SELECT * FROM {view}")).await);
    }
    all
}

async fn views_read_what_came(mut server: Server, folder: &Path, place: &str) {
    let mut session = server.connect().await;
    std::fs::create_dir_all(folder).expect("a folder");
    (0..2).for_each(|number| add_file(folder, number));
    make_tables(&session, place).await;
    for (view, query) in QUERIES {
        session.must(&format!("CREATE MATERIALIZED VIEW {view} AS {query}")).await;
        eventually_equal(&session, view, query).await;
        session.must(&format!("CREATE SAVEPOINT of_{view} FOR {view}")).await;
    }
    for (round, parallelism) in ["3", "1"].into_iter().enumerate() {
        let before = shown(&session).await;
        add_file(folder, 2 + round);
        session.must("INSERT INTO t VALUES (3)").await;
        server.kill();
        server.set("parallelism", parallelism);
        server.restart();
        session = server.connect().await;
        // The bounded read is of the files at its start, whatever dies meanwhile.
        assert_eq!(shown(&session).await[..2], before[..2], "round {round}");
        for (view, query) in QUERIES {
            let create = format!("CREATE MATERIALIZED VIEW {view}_{round} FROM SAVEPOINT of_{view} AS {query}");
            let explained = verdicts(&session, &format!("EXPLAIN {create}")).await;
            assert!(explained.iter().all(|(_, verdict)| verdict == "reused"), "{view}: {explained:?}");
            session.must(&create).await;
            eventually_equal(&session, &format!("{view}_{round}"), query).await;
        }
        // In place: an aggregate less, and whatever else keeps the state.
        for (view, query) in QUERIES {
            let query = if round == 0 { query.to_string() } else { query.replace(", sum(v) AS s", "") };
            let explained = verdicts(&session, &format!("EXPLAIN UPGRADE {view} AS {query}")).await;
            assert!(explained.iter().any(|(_, verdict)| verdict == "reused" || verdict == "converted"), "{view}: {explained:?}");
            session.must(&format!("ALTER MATERIALIZED VIEW {view} AS {query}")).await;
            eventually_equal(&session, view, &query).await;
        }
    }
    // All of it is in the checkpoints.
    let before = shown(&session).await;
    server.kill();
    server.restart();
    session = server.connect().await;
    assert_eq!(shown(&session).await, before);
    for (view, query) in QUERIES {
        for round in 0..2 {
            if view != "beside" {
                check_without_new(&session, &format!("{view}_{round}"), query, round).await;
            }
        }
    }
}

/// Views of the first round have not read the file of the second.
async fn check_without_new(session: &Session, view: &str, query: &str, round: usize) {
    let last = (3 + round) * RECORDS;
    let query = query.replace("FROM f", &format!("FROM f WHERE v < {last}"));
    check(session, view, &query).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_came_since_the_savepoint_are_read() {
    let data = tempfile::tempdir().expect("a folder");
    let server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "100 ms")]));
    views_read_what_came(server, data.path(), &data.path().display().to_string()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_that_came_since_the_savepoint_are_read() {
    let Some(store) = Store::start("savepoints::files::objects_that_came_since_the_savepoint_are_read") else { return };
    let server = Server::start(&settings_for(store.address(), &[("parallelism", "2"), ("checkpoint_interval", "100 ms")]));
    views_read_what_came(server, &store.path("in"), "s3://weir/in").await;
}

/// A sink that was done ends with a savepoint; what goes on from that writes the rows of files that have come, once, whatever dies before it has a checkpoint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_was_done_writes_what_came_since_once() {
    let data = tempfile::tempdir().expect("a folder");
    let (from, to) = (data.path().join("in"), data.path().join("out"));
    std::fs::create_dir(&from).expect("a folder");
    add_file(&from, 0);
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "1 h")]));
    let mut session = server.connect().await;
    make_tables(&session, &from.display().to_string()).await;
    let create = |more: &str| {
        format!(
            "CREATE SINK s {more}WITH (connector = 'file', path = '{}', format = 'csv', row_kind = 'kind') AS SELECT k, v FROM f",
            to.display()
        )
    };
    session.must(&create("")).await;
    for round in 1..4 {
        wait_finished(&session).await;
        session.must(&format!("ALTER JOB s STOP WITH SAVEPOINT done_{round}")).await;
        add_file(&from, round);
        let create = create("").replace(" AS SELECT", &format!(" FROM SAVEPOINT done_{round} AS SELECT"));
        session.must(&create).await;
        if round < 3 {
            server.kill();
            // What comes after the start is not read by a start that follows, unless none has found anything yet.
            server.set("parallelism", &round.to_string());
            server.restart();
            session = server.connect().await;
        }
        let deadline = std::time::Instant::now() + PATIENCE;
        let mut expected: Vec<String> = rows(&session, "SELECT k, v FROM f").await.into_iter().map(|row| row.join(",")).collect();
        expected.sort();
        loop {
            session.must("FLUSH; CHECKPOINT").await;
            let found = content(&to);
            if found == expected {
                break;
            }
            let jobs = rows(&session, "SELECT name, state, last_error FROM weir_jobs").await;
            assert!(std::time::Instant::now() < deadline, "round {round}: {} rows for {}; {jobs:?}", found.len(), expected.len());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// A table with other options, which reads other files or reads them in another way, is of other rows: nothing of its state is used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_over_other_files_is_not_used() {
    let data = tempfile::tempdir().expect("a folder");
    for (folder, files) in [("a", 0..2), ("b", 1..3)] {
        std::fs::create_dir(data.path().join(folder)).expect("a folder");
        files.for_each(|number| add_file(&data.path().join(folder), number));
    }
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    let place = |folder: &str| data.path().join(folder).display().to_string();
    make_tables(&session, &place("a")).await;
    let (view, query) = QUERIES[1];
    session.must(&format!("CREATE MATERIALIZED VIEW {view} AS {query}")).await;
    eventually_equal(&session, view, query).await;
    session.must("CREATE SAVEPOINT sp FOR counts; DROP MATERIALIZED VIEW counts").await;
    let table = |place: &str, more: &str| {
        format!("DROP TABLE f; CREATE TABLE f (k BIGINT, v BIGINT) WITH (connector = 'file', path = '{place}', format = 'csv'{more})")
    };
    for (folder, more, expected) in
        [("b", "", "rebuilt"), ("a", ", quote = ''", "rebuilt"), ("a", ", bad_records = 'skip'", "rebuilt"), ("a", "", "reused")]
    {
        session.must(&table(&place(folder), more)).await;
        let create = format!("CREATE MATERIALIZED VIEW {view} FROM SAVEPOINT sp AS {query}");
        let explained = verdicts(&session, &format!("EXPLAIN {create}")).await;
        assert!(explained.iter().all(|(_, verdict)| verdict == expected), "{folder}{more}: {explained:?}");
        session.must(&create).await;
        eventually_equal(&session, view, query).await;
        session.must(&format!("DROP MATERIALIZED VIEW {view}")).await;
    }
}
