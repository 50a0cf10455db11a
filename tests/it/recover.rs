//! A group whose newest checkpoint is damaged: it is stopped and says which file, all others go on, and from an older checkpoint it goes on when it is told
//! to, with the answers that it would have had, and sinks that have each row once.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::alter::content;
use crate::run;
use crate::savepoints::{check, refusal, rows};
use crate::server::{PATIENCE, Server, Session, describe, settings, sql_state};

/// Two groups over one table, and a third that reads a stream that comes once. The first has a sink.
const VIEWS: [(&str, &str); 4] = [
    ("per_group", "SELECT g, count(*) AS n, sum(v) AS total, max(v) AS most FROM t GROUP BY g"),
    ("sizes", "SELECT n, count(*) AS groups, max(total) AS total FROM per_group GROUP BY n"),
    ("apart", "SELECT v % 10 AS d, count(*) AS n FROM t GROUP BY v % 10"),
    ("bids", "SELECT auction % 7 AS a, count(*) AS n, sum(price) AS price FROM bid GROUP BY auction % 7"),
];
const SINK: &str = "SELECT n, groups FROM sizes";

/// How many bids come at a time.
const BIDS: i64 = 2_000;

/// More of the stream comes: the part of this number, whole.
fn arrive(input: &Path, number: i64) {
    let line = |bid: i64| format!("{},{}\n", (bid * 31) % 1009, 100 + (bid * 97) % 10_007);
    let lines: String = (number * BIDS..(number + 1) * BIDS).map(line).collect();
    let (hidden, shown) = (input.join(format!(".{number}")), input.join(format!("{number}.csv")));
    std::fs::write(&hidden, lines).and_then(|()| std::fs::rename(hidden, shown)).expect("a file");
}

/// The stream comes out of `input`: see [`arrive`]. What a sink writes goes to `out`.
async fn make(session: &Session, input: &Path, out: &Path) {
    session.must("CREATE TABLE t (id BIGINT PRIMARY KEY, g INT, v BIGINT)").await;
    for (table, watch) in [("bid", ", watch = '20 ms'"), ("all_bids", "")] {
        let options = format!("connector = 'file', path = '{}', format = 'csv'{watch}", input.display());
        session.must(&format!("CREATE TABLE {table} (auction BIGINT, price BIGINT) WITH ({options})")).await;
    }
    for (view, query) in VIEWS {
        session.must(&format!("CREATE MATERIALIZED VIEW {view} AS {query}")).await;
    }
    let options = format!("connector = 'file', path = '{}', format = 'csv', row_kind = 'kind'", out.display());
    session.must(&format!("CREATE SINK written WITH ({options}) AS {SINK}")).await;
}

async fn write(session: &Session, round: i64) {
    let values: Vec<String> = (round * 100..round * 100 + 60).map(|id| format!("({id}, {}, {})", id % 17, (id * 31) % 203)).collect();
    session.must(&format!("INSERT INTO t VALUES {}", values.join(", "))).await;
    session.must(&format!("UPDATE t SET v = v + 1, g = g + 1 WHERE id % 7 = {}", round % 7)).await;
    session.must(&format!("DELETE FROM t WHERE id % 13 = {}", round % 13)).await;
}

async fn checkpoint(session: &Session) -> u64 {
    session.must("CHECKPOINT").await;
    session.must_count("SELECT max(checkpoint) FROM weir_checkpoints WHERE state = 'completed'").await as u64
}

/// A file that only the newest manifest names, of the state of the job `id`.
fn newest_file(data_dir: &Path, id: i64) -> PathBuf {
    let folder = data_dir.join("checkpoints");
    let mut manifests: Vec<PathBuf> =
        std::fs::read_dir(&folder).expect("a folder").flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    manifests.sort();
    let text = |path: &PathBuf| {
        let bytes = std::fs::read(path).expect("a manifest");
        let end = bytes.iter().position(|byte| *byte == b'\n').expect("a header");
        String::from_utf8(bytes[end + 1..].to_vec()).expect("JSON")
    };
    let newest = text(manifests.last().expect("a manifest"));
    let manifest: serde_json::Value = serde_json::from_str(&newest).expect("JSON");
    let is_older = |text: &String| serde_json::from_str::<serde_json::Value>(text).expect("JSON")["barrier"] != manifest["barrier"];
    let older: Vec<String> = manifests.iter().map(text).filter(is_older).collect();
    let operators = manifest["jobs"][id.to_string()]["operators"].as_object().expect("operators");
    let files = operators.values().flat_map(|operator| operator["parts"].as_array().into_iter().flatten());
    let names = files.flat_map(|part| part["files"].as_array().into_iter().flatten()).filter_map(|file| file["name"].as_str());
    let mut own = names.filter(|name| older.iter().all(|manifest| !manifest.contains(*name)));
    folder.join("files").join(own.next().expect("a file that only the newest checkpoint has"))
}

fn damage(path: &Path) -> String {
    let mut bytes = std::fs::read(path).expect("a file");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::remove_file(path).expect("a file");
    std::fs::write(path, bytes).expect("a file");
    path.file_name().expect("a name").to_string_lossy().into_owned()
}

async fn until_stopped(session: &Session, job: &str) -> Vec<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let shown = rows(session, &format!("SELECT state, error_code, last_error, name FROM weir_jobs WHERE name = '{job}'")).await;
        if shown[0][0] == "failed" {
            return shown[0].clone();
        }
        assert!(Instant::now() < deadline, "{job} is not stopped: {shown:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn check_all(session: &Session, out: &Path) {
    for (view, query) in &VIEWS[..3] {
        check(session, view, query).await;
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        session.must("CHECKPOINT").await;
        let mut expected: Vec<String> = rows(session, SINK).await.into_iter().map(|row| row.join(",")).collect();
        expected.sort();
        let found = content(out);
        if found == expected {
            return;
        }
        assert!(Instant::now() < deadline, "the sink has {found:?}, its query gives {expected:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until the view over the stream has all that has come, once.
async fn check_bids(session: &Session) {
    let deadline = Instant::now() + PATIENCE;
    let expected = rows(session, &VIEWS[3].1.replace("FROM bid", "FROM all_bids")).await;
    while rows(session, "SELECT * FROM bids").await != expected {
        assert!(Instant::now() < deadline, "the stream does not come to its end, or not once");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_group_goes_on_from_an_older_checkpoint_and_others_do_not_notice() {
    let (input, out) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let given = [("parallelism", "2"), ("checkpoint_interval", "1 h"), ("restart_attempts", "1")];
    let mut server = Server::start(&settings(&given));
    let data_dir = server.data_dir().to_path_buf();
    let mut session = server.connect().await;
    arrive(input.path(), 0);
    make(&session, input.path(), out.path()).await;
    let mut numbers = Vec::new();
    for round in 0..3 {
        write(&session, round).await;
        numbers.push(checkpoint(&session).await);
    }
    check_all(&session, out.path()).await;
    write(&session, 3).await;
    // The checks made checkpoints of their own.
    numbers.push(checkpoint(&session).await);
    let id = session.must_count("SELECT id FROM weir_relations WHERE name = 'sizes'").await;
    write(&session, 4).await;
    server.kill();
    let name = damage(&newest_file(&data_dir, id));
    server.restart();
    session = server.connect().await;
    let stopped = until_stopped(&session, "sizes").await;
    assert!(stopped[1] == "XX001" && stopped[2].contains(&name), "{stopped:?}");
    until_stopped(&session, "written").await;
    let (code, text) = refusal(&session, "SELECT * FROM sizes").await;
    assert!(code == "XX001" && text.contains(&name) && text.contains("RECOVER JOB sizes FROM CHECKPOINT"), "{text}");
    // The others go on, and make checkpoints, which push no older one out that is wanted.
    let retained = rows(&session, "SELECT DISTINCT checkpoint FROM weir_checkpoints WHERE retained ORDER BY checkpoint").await;
    for round in 5..9 {
        write(&session, round).await;
        checkpoint(&session).await;
        assert_eq!(rows(&session, "SELECT * FROM apart").await.len(), 10);
    }
    let (code, text) = refusal(&session, "RECOVER JOB sizes FROM CHECKPOINT 7").await;
    assert!(code == "42704" && text.contains("There are: "), "{text}");
    assert_eq!(refusal(&session, "RECOVER JOB nobody FROM CHECKPOINT 7").await.0, "42704");
    assert_eq!(refusal(&session, "RECOVER JOB t FROM CHECKPOINT 7").await.0, "42809");
    let mut older: Vec<u64> = retained.iter().map(|row| row[0].parse().expect("a number")).collect();
    older.sort_unstable();
    let older = older[older.len() - 2];
    session.must(&format!("RECOVER MATERIALIZED VIEW sizes FROM CHECKPOINT {older}")).await;
    check_all(&session, out.path()).await;
    let untouched = rows(&session, "SELECT name, restarts FROM weir_jobs WHERE name = 'apart'").await;
    assert_eq!(untouched, [["apart", "0"]]);
    server.kill();
    server.set("parallelism", "3");
    server.restart();
    session = server.connect().await;
    check_all(&session, out.path()).await;
    assert_eq!(rows(&session, "SELECT DISTINCT state FROM weir_jobs").await, [["running"]]);

    // The stream's group, which can't be built again.
    for number in 1..3 {
        arrive(input.path(), number);
        check_bids(&session).await;
        checkpoint(&session).await;
    }
    // What comes behind the newest checkpoint, and while it can't be read.
    arrive(input.path(), 3);
    check_bids(&session).await;
    let id = session.must_count("SELECT id FROM weir_relations WHERE name = 'bids'").await;
    server.kill();
    let name = damage(&newest_file(&data_dir, id));
    server.restart();
    session = server.connect().await;
    let stopped = until_stopped(&session, "bids").await;
    arrive(input.path(), 4);
    assert!(stopped[1] == "XX001" && stopped[2].contains(&name), "{stopped:?}");
    let (_, text) = refusal(&session, "RECOVER JOB bids FROM CHECKPOINT 1").await;
    let there = text.split("There are: ").nth(1).unwrap_or_else(|| panic!("{text}"));
    let there: Vec<u64> =
        there.split(['.', '\n']).next().unwrap_or_default().split(", ").map(|number| number.parse().expect("a number")).collect();
    session.must(&format!("RECOVER JOB bids FROM CHECKPOINT {}", there[there.len() - 2])).await;
    check_all(&session, out.path()).await;
    check_bids(&session).await;
}

/// Also where nothing is damaged, and through kills: the answers are those of the present rows, and a sink has each row once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn going_back_is_safe_at_any_moment() {
    let mut random = run::random("recover kills");
    let (input, out) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let given = [("parallelism", "2"), ("checkpoint_interval", "200 ms"), ("checkpoints_retained", "6")];
    let mut server = Server::start(&settings(&given));
    let mut session = server.connect().await;
    arrive(input.path(), 0);
    make(&session, input.path(), out.path()).await;
    let mut answered = 0;
    for round in 0..run::rounds(6, 60) {
        write(&session, round as i64).await;
        arrive(input.path(), 1 + round as i64);
        checkpoint(&session).await;
        write(&session, 1000 + round as i64).await;
        let mut retained: Vec<u64> = rows(&session, "SELECT DISTINCT checkpoint FROM weir_checkpoints WHERE retained")
            .await
            .iter()
            .map(|row| row[0].parse().expect("a number"))
            .collect();
        retained.sort_unstable();
        let number = retained[random.below(retained.len() as u64) as usize];
        let job = ["sizes", "bids", "written", "per_group"][random.below(4) as usize];
        let statement = format!("RECOVER JOB {job} FROM CHECKPOINT {number}");
        let pause = Duration::from_millis(if round % 2 == 0 { 60_000 } else { random.below(300) });
        tokio::select! {
            done = session.execute(&statement) => match done {
                Ok(_) => answered += 1,
                // It has been dropped meanwhile, or the job is not in it.
                Err(error) => assert!(matches!(sql_state(&error).as_deref(), Some("42704" | "55000")), "{statement}\n{}", describe(&error)),
            },
            () = tokio::time::sleep(pause) => {}
        }
        if round % 3 == 1 {
            server.kill();
            server.set("parallelism", &(1 + random.below(3)).to_string());
            server.restart();
            session = server.connect().await;
        }
        check_all(&session, out.path()).await;
    }
    check_bids(&session).await;
    assert!(answered > 0, "no RECOVER was answered");
    run::say(&format!("recover: {answered} were answered"));
}
