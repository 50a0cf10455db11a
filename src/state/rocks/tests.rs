//! What is particular to RocksDB: damage, full disks, snapshots that outlive their backend. What every backend must do is in `state/tests.rs`.

use super::super::tests::{content, content_of_backend, shared_rocks};
use super::*;

fn entries(range: std::ops::Range<u32>) -> Writes {
    range
        .map(|i| ([&[0, (i % 128) as u8], i.to_be_bytes().as_slice()].concat(), Some(vec![i as u8; 100])))
        .collect::<std::collections::BTreeMap<_, _>>()
        .into_iter()
        .collect()
}

#[test]
fn a_flipped_byte_in_a_table_file_is_found_and_named() {
    let shared = shared_rocks();
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("checkpoint");
    let mut backend = RocksBackend::open(&shared, &folder.path().join("first"), &[], KeyGroupRange::ALL).unwrap();
    backend.write(&entries(0..1000)).unwrap();
    let files = backend.checkpoint(&dir).unwrap();
    drop(backend);
    let table = files.iter().find(|name| is_table_file(name)).expect("a table file");
    let mut bytes = std::fs::read(dir.join(table)).unwrap();
    bytes[1000] ^= 1;
    // A new file: the old one has a second name in the database's folder.
    std::fs::remove_file(dir.join(table)).unwrap();
    std::fs::write(dir.join(table), bytes).unwrap();
    let part = RestorePart { dir, range: KeyGroupRange::ALL };
    let error = RocksBackend::open(&shared, &folder.path().join("second"), &[part], KeyGroupRange::ALL)
        .and_then(|backend| backend.scan(&[], &[], &mut |_, _| Ok(true)))
        .unwrap_err();
    assert_eq!(error.code(), &SqlState::DATA_CORRUPTED, "{error}");
    assert!(error.message().contains(table.as_str()), "{error}");
}

#[test]
fn a_snapshot_outlives_its_backend_and_is_read_on_another_thread() {
    let folder = tempfile::tempdir().unwrap();
    let mut backend = RocksBackend::open(&shared_rocks(), &folder.path().join("database"), &[], KeyGroupRange::ALL).unwrap();
    backend.write(&entries(0..100)).unwrap();
    let before = content_of_backend(&backend, &[], &[]);
    let snapshot = backend.snapshot().unwrap();
    backend.write(&before.keys().map(|key| (key, None::<&[u8]>)).collect()).unwrap();
    assert!(content_of_backend(&backend, &[], &[]).is_empty());
    drop(backend);
    let read = std::thread::spawn(move || content(snapshot.as_ref(), &[], &[])).join().unwrap();
    assert_eq!(read, before);
}

#[test]
fn what_was_not_checkpointed_is_gone_and_a_checkpoint_is_untouched_by_later_writes() {
    let shared = shared_rocks();
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("checkpoint");
    let mut backend = RocksBackend::open(&shared, &folder.path().join("first"), &[], KeyGroupRange::ALL).unwrap();
    backend.write(&entries(0..100)).unwrap();
    let before = content_of_backend(&backend, &[], &[]);
    let files = backend.checkpoint(&dir).unwrap();
    assert!(files.iter().any(|name| name == "CURRENT") && files.iter().any(|name| name.starts_with("MANIFEST")), "{files:?}");
    assert!(!files.iter().any(|name| name.ends_with(".log")), "{files:?}");
    backend.write(&entries(50..200)).unwrap();
    let part = RestorePart { dir: dir.clone(), range: KeyGroupRange::ALL };
    let image = |dir: &Path| -> Vec<Vec<u8>> { files.iter().map(|name| std::fs::read(dir.join(name)).unwrap()).collect() };
    let bytes_before = image(&dir);
    for name in ["second", "third"] {
        let mut restored = RocksBackend::open(&shared, &folder.path().join(name), std::slice::from_ref(&part), KeyGroupRange::ALL).unwrap();
        assert_eq!(content_of_backend(&restored, &[], &[]), before);
        restored.write(&entries(20..40).iter().map(|(key, _)| (key, None::<&[u8]>)).collect()).unwrap();
        restored.checkpoint(&folder.path().join(format!("{name}-checkpoint"))).unwrap();
    }
    assert_eq!(image(&dir), bytes_before);
}

#[test]
fn unchanged_table_files_keep_their_names_between_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let mut backend = RocksBackend::open(&shared_rocks(), &folder.path().join("database"), &[], KeyGroupRange::ALL).unwrap();
    backend.write(&entries(0..1000)).unwrap();
    let first = backend.checkpoint(&folder.path().join("1")).unwrap();
    backend.write(&entries(0..1)).unwrap();
    let second = backend.checkpoint(&folder.path().join("2")).unwrap();
    let tables = |files: &[String]| files.iter().filter(|name| is_table_file(name)).cloned().collect::<Vec<String>>();
    assert!(tables(&first).iter().all(|name| second.contains(name)));
    assert_eq!(tables(&second).len(), tables(&first).len() + 1);
}

#[test]
fn errors_have_the_fitting_code() {
    // RocksDB's errors can only be made by RocksDB, so these come from folders that it cannot use.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let error = RocksBackend::open(&shared_rocks(), &file, &[], KeyGroupRange::ALL).err().unwrap();
    assert_eq!(error.code(), &SqlState::IO_ERROR);
    let dir = folder.path().join("broken");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("CURRENT"), b"nonsense").unwrap();
    let part = RestorePart { dir, range: KeyGroupRange::ALL };
    let error = RocksBackend::open(&shared_rocks(), &folder.path().join("restored"), &[part], KeyGroupRange::ALL).err().unwrap();
    assert_eq!(error.code(), &SqlState::DATA_CORRUPTED, "{error}");
    assert!(error.message().contains("CURRENT"), "{error}");
}
