//! Which checkpoint a start takes, and what becomes of the others.

use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::seams::files::{FilesRef, LocalFiles};
use crate::state::StateBackendKind;

/// A store with checkpoints 10, 20 and 30 of one file each, in manifests 1, 2 and 3.
fn store(dir: &Path) -> CheckpointStore {
    let files: FilesRef = Arc::new(LocalFiles);
    let (store, manifests) = CheckpointStore::open(files, dir, None).unwrap();
    assert!(manifests.is_empty());
    for (number, barrier) in [(1, 10), (2, 20), (3, 30)] {
        store.write_manifest(&manifest(&store, dir, number, barrier)).unwrap();
    }
    store
}

fn manifest(store: &CheckpointStore, dir: &Path, number: u64, barrier: u64) -> Manifest {
    let from = dir.join("image");
    std::fs::create_dir_all(&from).unwrap();
    // A new file: the store has the old one under another name.
    let _ = std::fs::remove_file(from.join("CURRENT"));
    std::fs::write(from.join("CURRENT"), format!("of {barrier}")).unwrap();
    let handle = store.put("aa", &from, "CURRENT", barrier).unwrap().handle;
    let part = Part {
        format: Part::format_of(&[]),
        backend: StateBackendKind::RocksDb,
        range: KeyGroupRange::ALL,
        files: vec![handle],
        size: Default::default(),
    };
    Manifest { number, barrier, tables: Some(TablesCheckpoint { commit: barrier, part }), ..Manifest::default() }
}

fn open(dir: &Path, from: Option<u64>) -> weir_catalog::Result<(CheckpointStore, Vec<Manifest>)> {
    CheckpointStore::open(Arc::new(LocalFiles), dir, from)
}

fn barriers(manifests: &[Manifest]) -> Vec<u64> {
    manifests.iter().map(|manifest| manifest.barrier).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.filter(|name| name.starts_with("MANIFEST") || name.starts_with("aa")).collect();
    names.sort();
    names
}

fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn an_older_checkpoint_is_taken_only_when_told_to_and_the_newer_ones_stay_until_the_next() {
    let folder = folder();
    let dir = folder.path();
    drop(store(dir));
    assert_eq!(barriers(&open(dir, None).unwrap().1), [10, 20, 30]);
    damage(&dir.join(manifest_file(3)));
    let error = open(dir, None).unwrap_err();
    assert_eq!(error.code().as_str(), "XX001");
    assert!(error.message().contains(&manifest_file(3)), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("--from-checkpoint") && hint.contains("10, 20.")), "{error}");
    for unknown in [30, 15] {
        let error = open(dir, Some(unknown)).unwrap_err();
        assert_eq!(error.code().as_str(), "22023");
        assert!(error.message().contains(&unknown.to_string()), "{error}");
        assert!(error.detail().is_some_and(|detail| detail.contains("10, 20.") && detail.contains(&manifest_file(3))), "{error}");
    }
    // Nothing was changed by a start that was refused, and nothing is by one that has not completed a checkpoint.
    assert_eq!(barriers(&open(dir, Some(10)).unwrap().1), [10]);
    let (store, manifests) = open(dir, Some(20)).unwrap();
    assert_eq!(barriers(&manifests), [10, 20]);
    assert_eq!(names(dir).len(), 3);
    assert_eq!(names(&dir.join("files")).len(), 3);
    // The next checkpoint takes a number above all of them, and then the damaged one goes, with its file.
    assert_eq!(store.next_manifest_number(0), 4);
    let next = manifest(&store, dir, 4, 40);
    store.write_manifest(&next).unwrap();
    store.retire(&[manifests[0].clone(), manifests[1].clone(), next], &|used_by| used_by >= 41).unwrap();
    assert_eq!(names(dir), [manifest_file(1), manifest_file(2), manifest_file(4)]);
    let (store, manifests) = open(dir, None).unwrap();
    assert_eq!(barriers(&manifests), [10, 20, 40]);
    assert_eq!(names(&dir.join("files")).len(), 3);
    assert_eq!(store.next_manifest_number(1000), 1000);
    assert_eq!(store.next_manifest_number(900), 1001);
}

#[test]
fn intact_newer_checkpoints_can_still_be_started_from_until_the_next() {
    let folder = folder();
    let dir = folder.path();
    drop(store(dir));
    assert_eq!(barriers(&open(dir, Some(10)).unwrap().1), [10]);
    let (store, manifests) = open(dir, None).unwrap();
    assert_eq!(barriers(&manifests), [10, 20, 30]);
    for manifest in &manifests {
        let into = dir.join(format!("fetched-{}", manifest.barrier));
        store.fetch(&manifest.tables.as_ref().unwrap().part, &into).unwrap();
        assert_eq!(std::fs::read_to_string(into.join("CURRENT")).unwrap(), format!("of {}", manifest.barrier));
    }
}

#[test]
fn an_older_one_that_is_damaged_does_not_stop_a_start() {
    let folder = folder();
    let dir = folder.path();
    drop(store(dir));
    damage(&dir.join(manifest_file(2)));
    let (store, manifests) = open(dir, None).unwrap();
    assert_eq!(barriers(&manifests), [10, 30]);
    assert_eq!(open(dir, Some(20)).unwrap_err().code().as_str(), "22023");
    store.retire(&manifests, &|used_by| used_by >= 31).unwrap();
    assert_eq!(names(dir), [manifest_file(1), manifest_file(3)]);
}

#[test]
fn one_that_counts_as_failed_goes_before_its_files() {
    let folder = folder();
    let dir = folder.path();
    let store = store(dir);
    let failed = manifest(&store, dir, 4, 40);
    store.write_manifest(&failed).unwrap();
    store.abandon(4);
    let next = manifest(&store, dir, 5, 50);
    store.write_manifest(&next).unwrap();
    [1, 2, 3].iter().for_each(|number| store.abandon(*number));
    store.retire(&[next], &|used_by| used_by >= 51).unwrap();
    assert_eq!(names(dir), [manifest_file(5)]);
    assert_eq!(names(&dir.join("files")), ["aa-50-CURRENT"]);
}

/// Two manifests are given up one after another, and whoever gave up the second removes first: the first must not stay behind without its files.
#[test]
fn who_retires_first_removes_what_others_gave_up_before() {
    let folder = folder();
    let dir = folder.path();
    let store = store(dir);
    let (_, manifests) = open(dir, None).unwrap();
    store.abandon(1);
    let later = [manifests[1].clone(), manifests[2].clone()];
    store.abandon(2);
    store.retire(&manifests[2..], &|used_by| used_by >= 31).unwrap();
    let whole =
        |dir: &Path| open(dir, None).unwrap().1.iter().flat_map(Manifest::files).all(|file| dir.join("files").join(&file.name).exists());
    assert_eq!(names(dir), [manifest_file(3)]);
    assert!(whole(dir));
    store.retire(&later, &|used_by| used_by >= 31).unwrap();
    assert_eq!(names(dir), [manifest_file(3)]);
    assert!(whole(dir));
}

#[test]
fn a_manifest_under_another_name_is_found() {
    let folder = folder();
    let dir = folder.path();
    drop(store(dir));
    std::fs::copy(dir.join(manifest_file(2)), dir.join(manifest_file(9))).unwrap();
    let error = open(dir, None).unwrap_err();
    assert_eq!(error.code().as_str(), "XX001");
    assert!(error.message().contains(&manifest_file(9)), "{error}");
}

#[test]
fn a_file_that_comes_back_is_not_removed_under_whoever_puts_it() {
    let folder = folder();
    let dir = folder.path();
    let store = store(dir);
    let from = dir.join("image");
    std::fs::write(from.join("000007.sst"), vec![7; 4096]).unwrap();
    for round in 0..50u64 {
        // A checkpoint that failed stored it; the next one puts it again while the files of the failed one are removed.
        let barrier = 100 + 2 * round;
        store.put("bb", &from, "000007.sst", barrier).unwrap();
        std::thread::scope(|scope| {
            let removing = scope.spawn(|| store.retire(&[], &|used_by| used_by > barrier).unwrap());
            let stored = store.put("bb", &from, "000007.sst", barrier + 1).unwrap();
            removing.join().unwrap();
            let path = dir.join("files").join(&stored.handle.name);
            assert!(path.exists(), "round {round}: the store names a file that is gone");
        });
    }
}

fn manifest_file(number: u64) -> String {
    format!("MANIFEST-{number:020}")
}
