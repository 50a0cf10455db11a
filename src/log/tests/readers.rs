//! Readers of the log: from memory and from the files, while it is written, and what they hold back.

use std::time::Duration;

use super::*;
use crate::seams::files::{LocalFiles, LossyFiles};
use weir_catalog::SqlState;

#[test]
fn readers_anywhere_see_every_commit_once_while_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let files = LossyFiles::new(dir.path(), 1).unwrap();
    // A tail of one or two commits and segments of a few: readers go back and forth between memory and files.
    let settings = LogSettings { segment_bytes: 3000, tail_bytes: 1500, limit_bytes: 1 << 30 };
    let (log, _) = EngineLog::open(Arc::new(files), dir.path(), settings).unwrap();
    log.append(create_change(&table(16_384, "t", true))).wait().unwrap();
    const COMMITS: u64 = 300;
    let readers: Vec<_> = (0..3)
        .map(|reader_number| {
            let mut reader = log.reader(1).unwrap();
            std::thread::spawn(move || {
                let mut seen = Vec::new();
                while reader.position() < COMMITS + 1 {
                    match reader.try_next().unwrap() {
                        Some(commit) => seen.push(describe(&commit)),
                        None => std::thread::yield_now(),
                    }
                    if reader_number == 2 {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                }
                seen
            })
        })
        .collect();
    for i in 0..COMMITS as i64 {
        let pending = log.append(insert_change(16_384, &[(i, "a")]));
        if i % 3 == 0 {
            pending.wait().unwrap();
        }
    }
    let expected: Vec<String> = (0..COMMITS).map(|i| format!("{}: 16384 +I({i}, a)", i + 2)).collect();
    for reader in readers {
        assert_eq!(reader.join().unwrap(), expected);
    }
    assert_eq!(contents(&log, 100)[0], expected[99]);
}

#[test]
fn a_failed_write_is_never_read() {
    let dir = tempfile::tempdir().unwrap();
    let files = LossyFiles::new(dir.path(), 1).unwrap();
    let settings = LogSettings { tail_bytes: 1, ..LogSettings::default() };
    let (log, _) = EngineLog::open(Arc::new(files.clone()), dir.path(), settings).unwrap();
    log.append(create_change(&table(16_384, "t", true))).wait().unwrap();
    log.append(insert_change(16_384, &[(1, "a")])).wait().unwrap();
    let mut reader = log.reader(0).unwrap();
    assert_eq!(reader.try_next().unwrap().unwrap().seq, 1);
    files.fail_syncs(1);
    log.append(insert_change(16_384, &[(2, "lost")])).wait().unwrap_err();
    log.append(insert_change(16_384, &[(3, "kept")])).wait().unwrap();
    log.append(insert_change(16_384, &[(4, "kept")])).wait().unwrap();
    let rest: Vec<String> = std::iter::from_fn(|| reader.try_next().unwrap()).map(|commit| describe(&commit)).collect();
    assert_eq!(rest, strings(&["2: 16384 +I(1, a)", "3: 16384 +I(3, kept)", "4: 16384 +I(4, kept)"]));
}

#[tokio::test]
async fn a_writer_waits_for_a_reader_that_is_too_far_behind() {
    let dir = tempfile::tempdir().unwrap();
    let settings = LogSettings { limit_bytes: 2000, ..LogSettings::default() };
    let (log, _) = EngineLog::open(LocalFiles::shared(), dir.path(), settings).unwrap();
    log.append(create_change(&table(16_384, "t", true))).await.unwrap();
    let mut reader = log.reader(0).unwrap();
    let name = "x".repeat(3000);
    log.admit().await;
    log.append(insert_change(16_384, &[(1, &name)])).await.unwrap();
    assert!(log.backlog_bytes() > 2000);
    let waiting = tokio::spawn({
        let log = log.clone();
        async move { log.admit().await }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!waiting.is_finished());
    while reader.try_next().unwrap().is_some() {}
    tokio::time::timeout(Duration::from_secs(120), waiting).await.unwrap().unwrap();
    // A reader that goes away holds up nobody.
    log.append(insert_change(16_384, &[(2, &name)])).await.unwrap();
    drop(reader);
    tokio::time::timeout(Duration::from_secs(120), log.admit()).await.unwrap();
}

#[tokio::test]
async fn waiting_ends_with_the_next_commit() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = EngineLog::open(LocalFiles::shared(), dir.path(), LogSettings::default()).unwrap();
    let mut reader = log.reader(0).unwrap();
    assert!(reader.try_next().unwrap().is_none());
    assert!(tokio::time::timeout(Duration::from_millis(10), reader.wait()).await.is_err());
    let mut end = log.watch_end();
    let appended = log.append(create_change(&table(16_384, "t", true)));
    tokio::time::timeout(Duration::from_secs(120), reader.wait()).await.unwrap();
    assert_eq!(appended.await.unwrap(), 1);
    assert_eq!(describe(&reader.try_next().unwrap().unwrap()), "1: create t");
    let seen = end.wait_for(|end| end.seq == 1).await.unwrap().catalog.clone();
    assert!(seen.get("t").is_some());
    let error = log.reader(2).unwrap_err();
    assert_eq!(*error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
}
