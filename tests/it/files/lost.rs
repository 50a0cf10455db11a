//! Files of a sink that are lost before anybody could see them, and those that somebody took away.

use std::ops::RangeInclusive;

use super::*;

/// Adds the rows `ids` to `t`, and waits until the sink in `root` has them in hidden files, which are returned.
async fn write_hidden(session: &Session, root: &Path, ids: RangeInclusive<usize>) -> Vec<PathBuf> {
    let values: Vec<String> = ids.map(|id| format!("({id})")).collect();
    session.must(&format!("INSERT INTO t VALUES {}", values.join(", "))).await;
    session.must("FLUSH").await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = hidden(root);
        if !found.is_empty() {
            return found;
        }
        assert!(Instant::now() < deadline, "no file is open");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn until_stopped(session: &Session) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let shown = rows(session, "SELECT state, error_code, last_error FROM weir_jobs WHERE name = 'out'").await;
        if shown[0][0] == "failed" {
            assert_eq!(shown[0][1], "58P01", "{shown:?}");
            return shown[0][2].clone();
        }
        assert!(Instant::now() < deadline, "the sink is not stopped: {shown:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Makes checkpoints until the sink in `root` shows the rows from 1 to `last`, each once.
async fn until_written(session: &Session, root: &Path, last: usize) {
    let mut expected: Vec<String> = (1..=last).map(|id| format!("+I,{id}")).collect();
    expected.sort();
    let deadline = Instant::now() + PATIENCE;
    loop {
        session.must("CHECKPOINT").await;
        let mut found = lines(root);
        found.sort();
        if found == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{} lines of {last}: {found:?}", found.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_lost_a_hidden_file_is_stopped_and_one_whose_files_were_taken_is_not() {
    let output = folder();
    let root = output.path();
    let mut server = Server::start(&settings(&[("parallelism", "1"), ("checkpoint_interval", "1 h"), ("checkpoints_retained", "8")]));
    let mut session = server.connect().await;
    session.must("CREATE TABLE t (id BIGINT PRIMARY KEY)").await;
    session
        .must(&format!(
            "CREATE SINK out WITH (connector = 'file', path = '{}', format = 'csv', row_kind = 'kind') AS SELECT id FROM t",
            root.display()
        ))
        .await;
    write_hidden(&session, root, 1..=10).await;
    until_written(&session, root, 10).await;

    for path in write_hidden(&session, root, 11..=20).await {
        std::fs::remove_file(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    // Whether the statement meets the error, or it is met behind it, is not what this is about.
    let _ = session.execute("CHECKPOINT").await;
    let error = until_stopped(&session).await;
    for says in ["was lost before it could be seen", "of \"out\" lists it", "RECOVER JOB out FROM CHECKPOINT "] {
        assert!(error.contains(says), "{says:?} is not in {error}");
    }
    assert_eq!(refusal(&session, "ALTER JOB out RESUME").await.0, "58P01");
    // A start finds the same.
    server.kill();
    server.restart();
    session = server.connect().await;
    let error = until_stopped(&session).await;
    let from = error.split("FROM CHECKPOINT ").nth(1).expect("a checkpoint to go back to");
    let from: String = from.chars().take_while(char::is_ascii_digit).collect();
    session.must(&format!("RECOVER JOB out FROM CHECKPOINT {from}")).await;
    until_written(&session, root, 20).await;

    // All that is visible is taken away, records too. That is no loss, also for a start that carries out again what its checkpoint lists.
    for path in visible(root) {
        std::fs::remove_file(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    for entry in std::fs::read_dir(root.join(RECORDS)).expect("records").flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "json") {
            std::fs::remove_file(entry.path()).expect("removed");
        }
    }
    server.kill();
    server.restart();
    session = server.connect().await;
    write_hidden(&session, root, 21..=22).await;
    session.must("CHECKPOINT").await;
    wait_for(&session, "SELECT state FROM weir_jobs WHERE name = 'out'", &[&["running"]]).await;
    let mut found = lines(root);
    found.sort();
    assert_eq!(found, ["+I,21", "+I,22"]);
}
