//! What the log keeps, refuses, and does when the disk fails.

use super::*;
use crate::seams::files::{Files, LocalFiles, LossyFiles};
use weir_catalog::SqlState;

#[test]
fn a_log_is_read_back_as_it_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let users = table(16_384, "users", true);
    let expected = strings(&["1: create users", "2: 16384 +I(1, a) +I(2, b)", "3: 16384 +I(3, c)"]);
    {
        let (log, recovered) = EngineLog::open(LocalFiles::shared(), dir.path(), LogSettings::default()).unwrap();
        assert_eq!((recovered.first, recovered.end, recovered.cut_bytes), (1, 0, 0));
        assert_eq!(log.append(create_change(&users)).wait().unwrap(), 1);
        assert_eq!(log.append(insert_change(16_384, &[(1, "a"), (2, "b")])).wait().unwrap(), 2);
        assert_eq!(log.append(insert_change(16_384, &[(3, "c")])).wait().unwrap(), 3);
        assert_eq!(log.end(), 3);
        assert_eq!(contents(&log, 0), expected);
    }
    let (log, recovered) = EngineLog::open(LocalFiles::shared(), dir.path(), LogSettings::default()).unwrap();
    assert_eq!((recovered.first, recovered.end, recovered.cut_bytes), (1, 3, 0));
    assert!(recovered.catalog.get("users").is_some());
    assert_eq!(contents(&log, 0), expected);
    assert_eq!(contents(&log, 2), expected[2..]);
    assert_eq!(log.append(insert_change(16_384, &[(4, "d")])).wait().unwrap(), 4);
}

#[test]
fn what_does_not_fit_the_catalog_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = EngineLog::open(LocalFiles::shared(), dir.path(), LogSettings::default()).unwrap();
    log.append(create_change(&table(16_384, "t", true))).wait().unwrap();
    let error = log.append(create_change(&table(16_385, "t", true))).wait().unwrap_err();
    assert_eq!(*error.code(), SqlState::DUPLICATE_TABLE);
    let error = log.append(insert_change(99, &[(1, "a")])).wait().unwrap_err();
    assert_eq!(*error.code(), SqlState::UNDEFINED_TABLE);
    assert_eq!(log.append(insert_change(16_384, &[(1, "a")])).wait().unwrap(), 2);
    drop(log);
    let (_, recovered) = EngineLog::open(LocalFiles::shared(), dir.path(), LogSettings::default()).unwrap();
    assert_eq!(recovered.end, 2);
}

/// Holds the log's thread with the first commit that comes, until a sender says that it may go on.
struct Held(Option<std::sync::mpsc::Receiver<()>>);

impl Applier for Held {
    fn apply(&mut self, _commit: &Arc<Commit>) -> Result<()> {
        let Some(go_on) = self.0.take() else { return Ok(()) };
        go_on.recv_timeout(std::time::Duration::from_secs(120)).map_err(|e| Error::internal(format!("nobody lets the log go on: {e}")))
    }

    fn refused(&mut self, _tag: u64) {}
}

#[test]
fn commits_of_many_threads_share_fsyncs_and_keep_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let files = LossyFiles::new(dir.path(), 1).unwrap();
    let (log, _) = EngineLog::open(Arc::new(files.clone()), dir.path(), small_segments()).unwrap();
    log.append(create_change(&table(16_384, "t", true))).wait().unwrap();
    let (let_go, go_on) = std::sync::mpsc::channel();
    log.set_applier(Box::new(Held(Some(go_on))));
    let before = files.operations();
    let threads: Vec<_> = (0..8i64)
        .map(|thread| {
            let log = log.clone();
            // Many are on their way at a time, and each thread's come in its order.
            std::thread::spawn(move || (0..50).map(|i| log.append(insert_change(16_384, &[(thread * 1000 + i, "x")]))).collect::<Vec<_>>())
        })
        .collect();
    let pending: Vec<Vec<PendingCommit>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let_go.send(()).unwrap();
    let mut all = Vec::new();
    for pending in pending {
        let seqs: Vec<CommitSeq> = pending.into_iter().map(|pending| pending.wait().unwrap()).collect();
        assert!(seqs.windows(2).all(|pair| pair[0] < pair[1]));
        all.extend(seqs);
    }
    all.sort_unstable();
    assert_eq!(all, (2..=401).collect::<Vec<_>>());
    // Those that were there when the thread looked first, and all others when it had been held: each time a write, an fsync, a mark, and a new segment.
    let operations = files.operations() - before;
    assert!(operations < 40, "commits had an fsync of their own: {operations} changes of the disk");
    let lines = contents(&log, 1);
    assert_eq!(lines.len(), 400);
    for thread in 0..8i64 {
        let of_thread: Vec<i64> = lines
            .iter()
            .map(|line| line.split_once("+I(").unwrap().1.split(',').next().unwrap().parse::<i64>().unwrap())
            .filter(|id| id / 1000 == thread)
            .collect();
        assert_eq!(of_thread, (0..50).map(|i| thread * 1000 + i).collect::<Vec<_>>());
    }
}

#[test]
fn a_full_disk_fails_commits_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let files = LossyFiles::new(dir.path(), 1).unwrap();
    let (log, _) = EngineLog::open(Arc::new(files.clone()), dir.path(), LogSettings::default()).unwrap();
    log.append(create_change(&table(16_384, "t", true))).wait().unwrap();
    for free in [0, 1, 40, 300] {
        files.set_free_bytes(Some(free));
        let error = log.append(insert_change(16_384, &[(1, "lost")])).wait().unwrap_err();
        assert_eq!(*error.code(), SqlState::DISK_FULL, "{free} bytes free");
        files.set_free_bytes(None);
        log.append(insert_change(16_384, &[(free as i64, "kept")])).wait().unwrap();
    }
    let expected = contents(&log, 0);
    assert_eq!(expected.len(), 5);
    assert!(!expected.concat().contains("lost"));
    drop(log);
    files.crash().unwrap();
    let (log, recovered) = EngineLog::open(Arc::new(files), dir.path(), LogSettings::default()).unwrap();
    assert_eq!(recovered.end, 5);
    assert_eq!(contents(&log, 0), expected);
}

#[test]
fn what_a_full_disk_refuses_is_never_in_the_catalog() {
    let dir = tempfile::tempdir().unwrap();
    let files = LossyFiles::new(dir.path(), 1).unwrap();
    let (log, _) = EngineLog::open(Arc::new(files.clone()), dir.path(), LogSettings::default()).unwrap();
    log.append(create_change(&table(16_384, "kept", true))).wait().unwrap();
    // Whoever looks at any moment.
    let mut end = log.watch_end();
    files.set_free_bytes(Some(20));
    let error = log.append(create_change(&table(16_385, "refused", true))).wait().unwrap_err();
    assert_eq!(*error.code(), SqlState::DISK_FULL);
    assert!(log.catalog().get("refused").is_none(), "a table that was refused is in the catalog");
    assert!(!end.has_changed().unwrap() || end.borrow_and_update().catalog.get("refused").is_none());
    assert!(log.catalog().get("kept").is_some());
    files.set_free_bytes(None);
    assert_eq!(log.append(create_change(&table(16_386, "refused", true))).wait().unwrap(), 2);
    assert_eq!(log.catalog().get("refused").map(|object| object.id()), Some(16_386));
}

#[test]
fn a_disk_that_fills_while_a_segment_is_made_is_survived() {
    let dir = tempfile::tempdir().unwrap();
    let files = LossyFiles::new(dir.path(), 1).unwrap();
    let settings = LogSettings { segment_bytes: 1, ..small_segments() };
    let (log, _) = EngineLog::open(Arc::new(files.clone()), dir.path(), settings).unwrap();
    log.append(create_change(&table(16_384, "t", true))).wait().unwrap();
    files.set_free_bytes(Some(10));
    log.append(insert_change(16_384, &[(1, "lost")])).wait().unwrap_err();
    log.append(insert_change(16_384, &[(2, "lost")])).wait().unwrap_err();
    files.set_free_bytes(None);
    assert_eq!(log.append(insert_change(16_384, &[(3, "kept")])).wait().unwrap(), 2);
    drop(log);
    let (log, _) = EngineLog::open(Arc::new(files), dir.path(), settings).unwrap();
    assert_eq!(contents(&log, 1), strings(&["2: 16384 +I(3, kept)"]));
}

#[test]
fn a_failed_fsync_is_never_an_acknowledgement() {
    for seed in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let files = LossyFiles::new(dir.path(), seed).unwrap();
        let (log, _) = EngineLog::open(Arc::new(files.clone()), dir.path(), LogSettings::default()).unwrap();
        log.append(create_change(&table(16_384, "t", true))).wait().unwrap();
        files.fail_syncs(1);
        let error = log.append(insert_change(16_384, &[(1, "lost")])).wait().unwrap_err();
        assert_eq!(*error.code(), SqlState::IO_ERROR);
        // The file could be cut back, so the log goes on.
        log.append(insert_change(16_384, &[(2, "kept")])).wait().unwrap();
        drop(log);
        files.crash().unwrap();
        let (log, _) = EngineLog::open(Arc::new(files), dir.path(), LogSettings::default()).unwrap();
        assert_eq!(contents(&log, 0), strings(&["1: create t", "2: 16384 +I(2, kept)"]));
    }
}

#[test]
fn a_log_that_can_not_be_cut_back_takes_no_more_writes() {
    let dir = tempfile::tempdir().unwrap();
    let files = LossyFiles::new(dir.path(), 1).unwrap();
    let (log, _) = EngineLog::open(Arc::new(files.clone()), dir.path(), LogSettings::default()).unwrap();
    log.append(create_change(&table(16_384, "t", true))).wait().unwrap();
    files.fail_syncs(2);
    let error = log.append(insert_change(16_384, &[(1, "lost")])).wait().unwrap_err();
    assert_eq!(*error.code(), SqlState::IO_ERROR);
    assert!(error.message().contains("takes no more writes"), "{error}");
    let again = log.append(insert_change(16_384, &[(2, "lost")])).wait().unwrap_err();
    assert_eq!(again, error);
    assert_eq!(contents(&log, 0), strings(&["1: create t"]));
    drop(log);
    files.crash().unwrap();
    let (log, _) = EngineLog::open(Arc::new(files), dir.path(), LogSettings::default()).unwrap();
    assert_eq!(contents(&log, 0)[0], "1: create t");
}

#[test]
fn a_full_file_system_is_survived() {
    let dir = tempfile::tempdir().unwrap();
    let path = std::ffi::CString::new(dir.path().to_str().unwrap()).unwrap();
    let options = c"size=256k";
    // SAFETY: all pointers are to strings that end with a zero byte and outlive the call.
    let mounted = unsafe { libc::mount(c"tmpfs".as_ptr(), path.as_ptr(), c"tmpfs".as_ptr(), 0, options.as_ptr().cast()) };
    if mounted != 0 {
        eprintln!("skipped: a tmpfs can't be mounted here: {}", std::io::Error::last_os_error());
        return;
    }
    let result = std::panic::catch_unwind(|| {
        let (log, _) = EngineLog::open(LocalFiles::shared(), dir.path(), small_segments()).unwrap();
        log.append(create_change(&table(16_384, "t", true))).wait().unwrap();
        let name = "x".repeat(3000);
        let mut acknowledged = 0;
        let error = loop {
            match log.append(insert_change(16_384, &[(acknowledged, &name)])).wait() {
                Ok(_) => acknowledged += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(*error.code(), SqlState::DISK_FULL, "{error}");
        assert!(acknowledged > 20);
        drop(log);
        let (log, recovered) = EngineLog::open(LocalFiles::shared(), dir.path(), small_segments()).unwrap();
        assert_eq!(recovered.end, 1 + acknowledged as u64);
        // Room is made by dropping what a catalog snapshot covers.
        log.truncate_before(recovered.end).unwrap();
        assert_eq!(log.first(), 1, "nothing covers the catalog yet");
        let segments = dir.path().join("log");
        LocalFiles.write(&dir.path().join("other"), b"").unwrap();
        assert!(LocalFiles.list(&segments).unwrap().len() > 5);
    });
    // SAFETY: as above.
    unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    result.unwrap();
}

#[test]
fn old_segments_go_when_a_snapshot_covers_them() {
    let dir = tempfile::tempdir().unwrap();
    let open = || EngineLog::open(LocalFiles::shared(), dir.path(), small_segments()).unwrap();
    let (log, _) = open();
    log.append(create_change(&table(16_384, "t", true))).wait().unwrap();
    let dropped = table(16_390, "gone", true);
    log.append(create_change(&dropped)).wait().unwrap();
    log.append(Changes { catalog: vec![CatalogChange::Drop(16_390)], tables: vec![] }).wait().unwrap();
    let name = "x".repeat(1000);
    for i in 0..20 {
        log.append(insert_change(16_384, &[(i, &name)])).wait().unwrap();
    }
    log.allocate_row_ids(7);
    assert_eq!(log.truncate_before(24).unwrap(), 0, "no snapshot covers the catalog");
    assert_eq!(log.write_catalog_snapshot().unwrap(), 23);
    let reader = log.reader(10).unwrap();
    assert!(log.truncate_before(24).unwrap() >= 1);
    assert!(log.first() <= 11, "a reader still needs commit 11");
    drop(reader);
    log.truncate_before(24).unwrap();
    let first = log.first();
    assert!(first > 15, "{first}");
    assert_eq!(*log.reader(0).unwrap_err().code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    assert!(log.bytes() < 8192);
    drop(log);
    let (log, recovered) = open();
    assert_eq!((recovered.first, recovered.catalog_seq, recovered.end), (first, 23, 23));
    assert_eq!(recovered.catalog.next_id(), 16_391, "the id of a dropped table is not given again");
    assert_eq!(log.allocate_row_ids(1), 7);
    assert_eq!(log.append(insert_change(16_384, &[(99, "new")])).wait().unwrap(), 24);
    assert_eq!(contents(&log, 23), strings(&["24: 16384 +I(99, new)"]));
}
