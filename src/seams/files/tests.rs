//! Both file layers do the same while nothing goes wrong, and the lossy one loses exactly what was not made durable.

use std::io::Read;
use std::path::Path;

use super::*;

fn content(files: &dyn Files, path: &Path) -> Option<String> {
    files.exists(path).then(|| String::from_utf8(files.read(path).unwrap()).unwrap())
}

/// Everything that [`Files`] can do, on `dir`.
fn exercise(files: &dyn Files, dir: &Path) {
    let sub = dir.join("a/b");
    files.create_dir(&sub).unwrap();
    files.create_dir(&sub).unwrap();
    assert_eq!(files.list(&dir.join("a")).unwrap(), [PathBuf::from("b")]);
    assert_eq!(files.list(&dir.join("none")).unwrap(), Vec::<PathBuf>::new());
    let path = sub.join("log");
    let mut file = files.append(&path).unwrap();
    file.append(b"hello").unwrap();
    file.append(b" world").unwrap();
    file.sync().unwrap();
    assert_eq!(files.len(&path).unwrap(), 11);
    file.truncate(5).unwrap();
    file.append(b"!").unwrap();
    drop(file);
    files.append(&path).unwrap().append(b"?").unwrap();
    assert_eq!(content(files, &path).as_deref(), Some("hello!?"));
    let link = sub.join("link");
    files.hard_link(&path, &link).unwrap();
    assert!(files.hard_link(&path, &link).is_err());
    let copied = sub.join("copied");
    files.copy(&path, &copied).unwrap();
    assert!(files.copy(&path, &copied).is_err());
    let mut read = String::new();
    files.reader(&copied).unwrap().read_to_string(&mut read).unwrap();
    assert_eq!(read, "hello!?");
    assert!(files.reader(&sub.join("none")).is_err() && files.copy(&sub.join("none"), &sub.join("other")).is_err());
    files.remove(&copied).unwrap();
    // A new file in place of the old one: the other name keeps its content.
    files.write(&path, b"new").unwrap();
    assert_eq!(content(files, &link).as_deref(), Some("hello!?"));
    files.rename(&link, &path).unwrap();
    assert_eq!(content(files, &path).as_deref(), Some("hello!?"));
    assert!(!files.exists(&link));
    files.rename(&sub, &dir.join("a/c")).unwrap();
    assert_eq!(content(files, &dir.join("a/c/log")).as_deref(), Some("hello!?"));
    files.sync(&dir.join("a/c/log")).unwrap();
    files.sync_dir(&dir.join("a/c")).unwrap();
    files.sync_dir(&dir.join("a")).unwrap();
    files.remove(&dir.join("a/c/log")).unwrap();
    files.remove(&dir.join("a/c/log")).unwrap();
    assert_eq!(files.list(&dir.join("a/c")).unwrap(), Vec::<PathBuf>::new());
    let error = files.read(&dir.join("a/c/log")).unwrap_err();
    assert_eq!(error.code().as_str(), "58030");
    assert!(error.message().contains("a/c/log"), "{error}");
    assert!(files.sync(&dir.join("a/c/log")).is_err());
    assert!(files.sync_dir(&dir.join("none")).is_err());
    files.remove_dir(&dir.join("a")).unwrap();
    files.remove_dir(&dir.join("a")).unwrap();
    assert!(!files.exists(&dir.join("a")));
}

#[test]
fn both_layers_do_the_same() {
    let dir = tempfile::tempdir().unwrap();
    exercise(&LocalFiles, dir.path());
    exercise(&LossyFiles::new(dir.path(), 1).unwrap(), dir.path());
}

fn lossy(seed: u64) -> (tempfile::TempDir, LossyFiles, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let files = LossyFiles::new(dir.path(), seed).unwrap();
    let root = dir.path().to_path_buf();
    (dir, files, root)
}

#[test]
fn what_was_synced_survives_and_what_was_not_may_not() {
    let mut lengths = std::collections::BTreeSet::new();
    let mut names_lost = 0;
    for seed in 0..200 {
        let (_dir, files, root) = lossy(seed);
        let path = root.join("log");
        let mut file = files.append(&path).unwrap();
        file.append(b"durable").unwrap();
        file.sync().unwrap();
        files.sync_dir(&root).unwrap();
        file.append(b"-pending").unwrap();
        files.write(&root.join("unnamed"), b"x").unwrap();
        files.crash().unwrap();
        let left = files.read(&path).unwrap();
        assert!(left.starts_with(b"durable"), "{left:?}");
        assert!(left.len() <= 15);
        lengths.insert(left.len());
        names_lost += usize::from(!files.exists(&root.join("unnamed")));
        // Who had it open before the crash can't go on.
        assert!(file.append(b"x").is_err());
        assert!(file.sync().is_err());
        files.append(&path).unwrap().append(b"more").unwrap();
    }
    assert_eq!(lengths, (7..=15).collect(), "every place to tear is found");
    assert!((100..200).contains(&names_lost), "{names_lost}");
}

#[test]
fn a_name_without_a_sync_of_its_folder_is_lost_with_its_synced_content() {
    let lost = (0..50).filter(|seed| {
        let (_dir, files, root) = lossy(*seed);
        let mut file = files.append(&root.join("log")).unwrap();
        file.append(b"x").unwrap();
        file.sync().unwrap();
        files.crash().unwrap();
        !files.exists(&root.join("log"))
    });
    assert!(lost.count() > 20);
}

#[test]
fn renames_and_removals_may_come_back_until_the_folder_is_synced() {
    let (mut old_seen, mut new_seen, mut removed_came_back) = (0, 0, 0);
    for seed in 0..60 {
        let (_dir, files, root) = lossy(seed);
        let (current, next, other) = (root.join("current"), root.join("next"), root.join("other"));
        files.write(&current, b"old").unwrap();
        files.write(&other, b"other").unwrap();
        files.write(&next, b"new").unwrap();
        files.sync_dir(&root).unwrap();
        files.rename(&next, &current).unwrap();
        files.remove(&other).unwrap();
        files.crash().unwrap();
        match content(&files, &current).as_deref() {
            Some("old") => {
                old_seen += 1;
                assert_eq!(content(&files, &next).as_deref(), Some("new"), "a rename is whole or absent");
            }
            Some("new") => {
                new_seen += 1;
                assert!(!files.exists(&next));
            }
            found => panic!("{found:?}"),
        }
        removed_came_back += usize::from(files.exists(&other));
        files.remove(&other).unwrap();
        files.sync_dir(&root).unwrap();
        files.crash().unwrap();
        assert!(!files.exists(&other));
    }
    assert!(old_seen > 20 && new_seen > 5 && removed_came_back > 20, "{old_seen} {new_seen} {removed_came_back}");
}

#[test]
fn what_someone_else_wrote_is_lost_until_a_sync_names_it() {
    for seed in 0..30 {
        let (_dir, files, root) = lossy(seed);
        // As RocksDB makes a checkpoint: a folder with files that never went through here.
        let made = root.join("unfinished");
        std::fs::create_dir(&made).unwrap();
        for name in ["000001.sst", "000002.sst", "CURRENT"] {
            std::fs::write(made.join(name), name).unwrap();
        }
        files.sync(&made.join("000001.sst")).unwrap();
        files.sync(&made.join("CURRENT")).unwrap();
        files.hard_link(&made.join("000001.sst"), &root.join("kept.sst")).unwrap();
        files.sync_dir(&made).unwrap();
        files.rename(&made, &root.join("checkpoint")).unwrap();
        files.sync_dir(&root).unwrap();
        files.crash().unwrap();
        let found = files.list(&root.join("checkpoint")).unwrap();
        assert_eq!(found, [PathBuf::from("000001.sst"), PathBuf::from("CURRENT")]);
        assert_eq!(content(&files, &root.join("checkpoint/CURRENT")).as_deref(), Some("CURRENT"));
        assert_eq!(content(&files, &root.join("kept.sst")).as_deref(), Some("000001.sst"));
        assert!(!files.exists(&made));
    }
}

#[test]
fn a_folder_that_was_not_made_durable_takes_its_files_with_it() {
    let (_dir, files, root) = lossy(3);
    std::fs::create_dir(root.join("by-others")).unwrap();
    files.write(&root.join("by-others/file"), b"x").unwrap();
    files.sync_dir(&root.join("by-others")).unwrap();
    files.create_dir(&root.join("ours/deep")).unwrap();
    files.write(&root.join("ours/deep/file"), b"x").unwrap();
    files.sync_dir(&root.join("ours/deep")).unwrap();
    // Making `ours` synced the root, and with it the entry of the other folder.
    files.crash().unwrap();
    assert!(files.exists(&root.join("ours/deep/file")));
    assert!(files.exists(&root.join("by-others/file")));

    let (_dir, files, root) = lossy(3);
    std::fs::create_dir(root.join("by-others")).unwrap();
    files.write(&root.join("by-others/file"), b"x").unwrap();
    files.sync_dir(&root.join("by-others")).unwrap();
    files.crash().unwrap();
    assert!(!files.exists(&root.join("by-others")));
}

#[test]
fn planted_faults_show() {
    let (_dir, files, root) = lossy(1);
    let path = root.join("log");
    let mut file = files.append(&path).unwrap();
    files.set_free_bytes(Some(3));
    let error = file.append(b"hello").unwrap_err();
    assert_eq!(error.code().as_str(), "53100");
    assert_eq!(content(&files, &path).as_deref(), Some("hel"));
    files.set_free_bytes(None);
    files.fail_syncs(1);
    assert_eq!(file.sync().unwrap_err().code().as_str(), "58030");
    file.sync().unwrap();
    files.sync_dir(&root).unwrap();
    let before = files.operations();
    files.power_off_after(1);
    file.append(b"one").unwrap();
    assert!(!files.powered_off());
    assert!(file.append(b"two").is_err());
    assert!(files.powered_off());
    assert!(files.read(&path).is_err() && files.list(&root).is_err() && files.write(&path, b"x").is_err());
    assert_eq!(files.operations() - before, 2);
    files.crash().unwrap();
    // The failed sync lost its bytes for good, whatever the next one said.
    let left = files.read(&path).unwrap();
    assert_eq!(&left[..3], &[0, 0, 0]);
    assert!(!files.powered_off());
}

#[test]
fn a_synced_name_of_what_someone_else_wrote_holds_nothing_of_it() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let (_dir, files, root) = lossy(seed);
        std::fs::create_dir(root.join("image")).unwrap();
        std::fs::write(root.join("image/1.sst"), "content").unwrap();
        files.hard_link(&root.join("image/1.sst"), &root.join("stored")).unwrap();
        files.sync_dir(&root).unwrap();
        files.crash().unwrap();
        let left = files.read(&root.join("stored")).unwrap();
        assert_ne!(left, b"content");
        seen.insert(match left.as_slice() {
            [] => "empty",
            [0, ..] => "zeros",
            _ => "cut",
        });
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
}

#[test]
fn a_process_that_dies_loses_nothing_until_the_power_goes_off_too() {
    let mut lost = 0;
    for seed in 0..40 {
        let (_dir, files, root) = lossy(seed);
        let path = root.join("log");
        let mut file = files.append(&path).unwrap();
        file.append(b"pending").unwrap();
        files.copy(&path, &root.join("copied")).unwrap();
        files.power_off();
        assert!(file.append(b"x").is_err() && files.read(&path).is_err() && files.reader(&path).is_err());
        files.kill();
        assert!(file.append(b"x").is_err(), "who had it open before can't go on");
        assert_eq!(content(&files, &path).as_deref(), Some("pending"));
        assert_eq!(content(&files, &root.join("copied")).as_deref(), Some("pending"));
        files.crash().unwrap();
        lost += usize::from(!files.exists(&path) || files.read(&path).unwrap() != b"pending");
    }
    assert!(lost > 20, "{lost}");
}
