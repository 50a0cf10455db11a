//! A disk without room: a write is refused with 53100 and takes nothing down, what was acknowledged stays, and once there is room again the
//! server goes on. The disk is a small file system in memory; mounting it needs root.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::run;
use crate::server::{PATIENCE, Server, Session, describe, settings, sql_state};

/// A small file system in memory; unmounted when dropped.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// A file system of `size` in `folder`. Errors with the reason where this user can mount none.
    pub fn mount(folder: &Path, size: &str) -> Result<SmallDisk, String> {
        mount(&["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"], folder)?;
        Ok(SmallDisk(folder.to_path_buf()))
    }

    /// Makes it larger.
    pub fn grow(&self, size: &str) {
        mount(&["-o", &format!("remount,size={size}")], &self.0).expect("the disk can be made larger");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The folder below is temporary either way.
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

fn mount(arguments: &[&str], folder: &Path) -> Result<(), String> {
    let output = Command::new("mount").args(arguments).arg(folder).output().map_err(|e| format!("mount: {e}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_string()) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_writes_and_loses_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let disk_folder = folder.path().join("disk");
    std::fs::create_dir(&disk_folder).expect("a folder for the disk");
    let disk = match SmallDisk::mount(&disk_folder, "96m") {
        Ok(disk) => disk,
        Err(reason) => return run::skip("full disk", &format!("a small file system can't be mounted: {reason}")),
    };
    let log = folder.path().join("server.log");
    let mut server =
        Server::start_in(&disk_folder.join("data"), &log, &settings(&[("parallelism", "1"), ("checkpoint_interval", "500 ms")]))
            .unwrap_or_else(|problem| panic!("{problem}"));
    let session = server.connect().await;
    session.must("CREATE TABLE t (id BIGINT, payload TEXT)").await;
    session.must("CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS n, count(DISTINCT payload) AS payloads FROM t").await;

    let mut acknowledged = 0;
    let refusal = loop {
        assert!(acknowledged < 100_000, "the disk does not fill up");
        match insert(&session, acknowledged).await {
            Ok(rows) => acknowledged += rows,
            Err(e) => break e,
        }
    };
    assert_eq!(sql_state(&refusal).as_deref(), Some("53100"), "{}", describe(&refusal));
    assert!(acknowledged > 0);
    // The server lives and answers.
    assert!(server.is_running());
    assert_eq!(session.must_count("SELECT count(*) FROM t").await, acknowledged);

    disk.grow("1g");
    let deadline = Instant::now() + PATIENCE;
    loop {
        match insert(&session, acknowledged).await {
            Ok(rows) => {
                acknowledged += rows;
                break;
            }
            Err(e) => {
                assert_eq!(sql_state(&e).as_deref(), Some("53100"), "{}", describe(&e));
                assert!(Instant::now() < deadline, "there is room again, but writes are still refused: {}", describe(&e));
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    server.restart();
    let session = server.connect().await;
    assert_eq!(session.must_count("SELECT count(*) FROM t").await, acknowledged);
    assert_eq!(session.must_count("SELECT count(DISTINCT id) FROM t").await, acknowledged);
    // A job that the full disk stopped may need to be told to go on.
    if session.execute("SELECT * FROM counted").await.is_err() {
        session.must("ALTER JOB counted RESUME").await;
    }
    session.must("FLUSH").await;
    assert_eq!(session.must_count("SELECT n FROM counted").await, acknowledged);
    drop(server);
}

/// Inserts ten rows of 16 KiB that do not compress.
async fn insert(session: &Session, first: i64) -> Result<i64, tokio_postgres::Error> {
    let mut random = weir::seams::random::Random::seeded(first as u64);
    let rows: Vec<String> = (0..10)
        .map(|i| {
            let payload: String = (0..1024).map(|_| format!("{:016x}", random.next_u64())).collect();
            format!("({}, '{payload}')", first + i)
        })
        .collect();
    session.execute(&format!("INSERT INTO t VALUES {}", rows.join(", "))).await.map(|_| 10)
}
