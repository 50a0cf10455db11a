//! A flipped byte in what is on disk: it is found, and the file named, or it lies in a file that nothing needs any more. It never changes an
//! answer.
//!
//! The test knows nothing of the layout: it damages every file of the data folder in turn, each time in a fresh copy of the folder.

use std::path::{Path, PathBuf};

use crate::run;
use crate::server::{Server, Session, settings};
use crate::views::Made;

const VIEWS: [&str; 2] = [
    "CREATE MATERIALIZED VIEW per_group AS SELECT g, count(*) AS n, sum(v) AS total, max(s) AS last FROM t GROUP BY g",
    "CREATE MATERIALIZED VIEW sizes AS SELECT n, count(*) AS groups FROM per_group GROUP BY n",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_byte_is_found_or_does_no_harm() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (original, log) = (folder.path().join("original"), folder.path().join("server.log"));
    // Automatic checkpoints are off: the folder holds one checkpoint, and a log that goes on after it.
    let settings = settings(&[("parallelism", "2"), ("checkpoint_interval", "1 h")]);
    let mut made = Made::default();
    let mut server = Server::start_in(&original, &log, &settings).unwrap_or_else(|problem| panic!("{problem}"));
    let session = server.connect().await;
    session.must("CREATE TABLE t (id INT PRIMARY KEY, g INT, v BIGINT, s TEXT)").await;
    made.note("CREATE TABLE t (id INT)");
    for view in VIEWS {
        session.must(view).await;
        made.note(view);
    }
    insert(&session, 0..40).await;
    session.must("FLUSH").await;
    session.must("CHECKPOINT").await;
    insert(&session, 40..60).await;
    session.must("FLUSH").await;
    let expected = made.content(&session).await;
    server.kill();

    let (mut found, mut harmless) = (Vec::new(), Vec::new());
    for file in files(&original) {
        let bytes = std::fs::read(original.join(&file)).expect("the file can be read");
        if bytes.len() < 32 {
            continue;
        }
        let damaged = folder.path().join("damaged");
        copy(&original, &damaged);
        let mut changed = bytes;
        // Not at the end, where a record that is cut off is no damage but a crash.
        let place = changed.len() / 3;
        changed[place] ^= 0x10;
        std::fs::write(damaged.join(&file), changed).expect("the file can be written");
        let log = folder.path().join("damaged.log");
        std::fs::write(&log, "").expect("the log can be emptied");
        let name = file.file_name().expect("a file has a name").to_string_lossy().into_owned();
        match Server::start_in(&damaged, &log, &settings) {
            Err(report) => {
                assert!(
                    report.contains(&name),
                    "{} is damaged, and the server does not start, but does not name it:\n{report}",
                    file.display()
                );
                found.push(file);
            }
            Ok(server) => {
                let session = server.connect().await;
                match damage_reported(&made, &session).await {
                    Some(report) => {
                        assert!(report.contains(&name), "{} is damaged, which is reported without its name:\n{report}", file.display());
                        found.push(file);
                    }
                    None => {
                        let differences = expected.differences(&made.content(&session).await);
                        assert!(
                            differences.is_empty(),
                            "{} is damaged, and answers have changed:\n{}",
                            file.display(),
                            differences.join("\n")
                        );
                        let (problems, _) = made.check(&session).await;
                        assert!(problems.is_empty(), "{} is damaged:\n{}", file.display(), problems.join("\n"));
                        harmless.push(file);
                    }
                }
            }
        }
        std::fs::remove_dir_all(&damaged).expect("the copy can be removed");
    }
    run::say(&format!("corruption: damage found in {} files, harmless in {}", found.len(), harmless.len()));
    // The log, the checkpoint's metadata, and the state of two views' operators at least.
    assert!(found.len() >= 4, "damage was found only in {found:?}; it did no harm in {harmless:?}");

    // The original was never touched.
    let server = Server::start_in(&original, &log, &settings).unwrap_or_else(|problem| panic!("{problem}"));
    let differences = expected.differences(&made.content(&server.connect().await).await);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_barrier_ceiling_is_named() {
    let mut server = Server::start(&settings(&[]));
    let session = server.connect().await;
    session.must("CREATE TABLE t (a INT)").await;
    session.must("INSERT INTO t VALUES (1)").await;
    session.must("CREATE MATERIALIZED VIEW v AS SELECT sum(a) AS s FROM t").await;
    session.must("CHECKPOINT").await;
    server.kill();
    let (ceiling, aside) = (server.data_dir().join("barrier-ceiling"), server.data_dir().with_extension("aside"));
    std::fs::rename(&ceiling, &aside).expect("the file can be moved");
    let report = server.try_restart().expect_err("numbers could be given twice");
    assert!(report.contains("barrier-ceiling") && report.contains("is missing"), "{report}");
    std::fs::rename(&aside, &ceiling).expect("the file can be moved back");
    server.restart();
    assert_eq!(server.connect().await.must_count("SELECT s FROM v").await, 1);
}

/// Several commits of several rows.
async fn insert(session: &Session, commits: std::ops::Range<i32>) {
    for commit in commits {
        let rows: Vec<String> = (0..50).map(|i| commit * 50 + i).map(|id| format!("({id}, {}, {id}, 'row {id}')", id % 97)).collect();
        session.must(&format!("INSERT INTO t VALUES {}", rows.join(", "))).await;
    }
}

/// What the server says when a read meets damage (`XX001`), or `None` where everything can be read.
async fn damage_reported(made: &Made, session: &Session) -> Option<String> {
    for name in made.names() {
        if let Err(e) = session.query(&format!("SELECT * FROM {name}")).await {
            let report = crate::server::describe(&e);
            assert_eq!(crate::server::sql_state(&e).as_deref(), Some("XX001"), "{name}: {report}");
            return Some(report);
        }
    }
    None
}

/// The files below a folder, relative to it.
fn files(folder: &Path) -> Vec<PathBuf> {
    fn visit(folder: &Path, below: &Path, files: &mut Vec<PathBuf>) {
        let mut entries: Vec<_> = std::fs::read_dir(folder.join(below)).expect("the folder can be read").flatten().collect();
        entries.sort_by_key(std::fs::DirEntry::path);
        for entry in entries {
            let path = below.join(entry.file_name());
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => visit(folder, &path, files),
                Ok(kind) if kind.is_file() => files.push(path),
                _ => {}
            }
        }
    }
    let mut found = Vec::new();
    visit(folder, Path::new(""), &mut found);
    found
}

/// A copy of a folder that shares no file with it: hard links would be damaged along.
fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(&file);
        std::fs::create_dir_all(target.parent().expect("a file is in a folder")).expect("the folder can be made");
        std::fs::copy(from.join(&file), target).expect("the file can be copied");
    }
}
