//! Checkpoints in an object store that is in memory, and can fail: what is stored once, who is alone, what comes late and what gets lost. The same with a real
//! server is in `tests/it/s3.rs`.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions,
    PutPayload, PutResult, Result as StoreResult,
};
use parking_lot::Mutex;

use super::*;
use crate::checkpoint::storage::{ObjectStorage, Writer};
use crate::seams::files::{FilesRef, LocalFiles};
use crate::seams::objects::{CHUNK_BYTES, ObjectUrl, Objects, Permits};
use crate::state::StateBackendKind;

/// A store in memory, and what it does wrong.
#[derive(Clone, Debug, Default)]
struct Faulty {
    inner: Arc<InMemory>,
    faults: Arc<Faults>,
}

#[derive(Debug, Default)]
struct Faults {
    /// A conditional PUT is carried out, and its answer lost.
    answer_lost: AtomicBool,
    /// Removals fail.
    removals_fail: AtomicBool,
    /// So many PUTs fail, and are not carried out.
    puts_fail: AtomicUsize,
    /// A conditional PUT is held back, and its answer lost.
    delays: AtomicBool,
    /// What was held back arrives before the next conditional PUT.
    delayed: Mutex<Option<(Key, PutPayload)>>,
    /// PUTs that were carried out.
    puts: AtomicUsize,
}

fn failed() -> object_store::Error {
    object_store::Error::Generic { store: "test", source: "planted".into() }
}

impl fmt::Display for Faulty {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("faulty")
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, location: &Key, payload: PutPayload, options: PutOptions) -> StoreResult<PutResult> {
        let fails = self.faults.puts_fail.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if fails {
            return Err(failed());
        }
        let is_conditional = matches!(options.mode, PutMode::Create);
        if is_conditional && self.faults.delays.swap(false, Ordering::SeqCst) {
            *self.faults.delayed.lock() = Some((location.clone(), payload));
            return Err(failed());
        }
        let delayed = if is_conditional { self.faults.delayed.lock().take() } else { None };
        if let Some((location, payload)) = delayed {
            self.inner.put_opts(&location, payload, PutMode::Create.into()).await?;
        }
        let done = self.inner.put_opts(location, payload, options).await?;
        self.faults.puts.fetch_add(1, Ordering::SeqCst);
        if is_conditional && self.faults.answer_lost.swap(false, Ordering::SeqCst) {
            return Err(failed());
        }
        Ok(done)
    }

    async fn put_multipart_opts(&self, location: &Key, options: PutMultipartOptions) -> StoreResult<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Key, options: GetOptions) -> StoreResult<GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, StoreResult<Key>>) -> BoxStream<'static, StoreResult<Key>> {
        if self.faults.removals_fail.load(Ordering::SeqCst) {
            return locations.map(|_| Err(failed())).boxed();
        }
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Key>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Key>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Key, to: &Key, options: CopyOptions) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

impl Faulty {
    fn objects(&self) -> Objects {
        Objects::new(Arc::new(self.clone()), "bucket", Permits::new(64 << 20, |_| ()))
    }

    fn open(&self, engine: u64, run: u64) -> weir_catalog::Result<(CheckpointStore, Vec<Manifest>)> {
        let url = ObjectUrl::parse("s3://bucket/some/where").unwrap();
        let files: FilesRef = LocalFiles::shared();
        let storage = ObjectStorage::new(files.clone(), self.objects(), url, Writer { engine, run });
        CheckpointStore::open_in(Arc::new(storage), files, None)
    }

    /// The keys below `folder`, without what they all begin with.
    fn keys(&self, folder: &str) -> Vec<String> {
        let folder = format!("some/where/{folder}");
        let mut keys: Vec<String> = self.objects().list(&folder).unwrap().into_iter().map(|object| object.key).collect();
        keys.sort();
        keys.iter().map(|key| key[folder.len() + 1..].to_string()).collect()
    }
}

fn slot(number: u64) -> String {
    format!("MANIFEST-{number:020}")
}

/// Stores `files` as those of `incarnation` and makes a checkpoint of them.
fn checkpoint(
    store: &CheckpointStore,
    dir: &Path,
    incarnation: &str,
    barrier: u64,
    files: &[(&str, Vec<u8>)],
) -> weir_catalog::Result<Manifest> {
    std::fs::create_dir_all(dir).unwrap();
    for (name, content) in files {
        std::fs::write(dir.join(name), content).unwrap();
    }
    let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    let handles = store.put_all(incarnation, dir, &names, barrier)?.into_iter().map(|stored| stored.handle).collect();
    let part = Part {
        format: Part::format_of(&[]),
        backend: StateBackendKind::RocksDb,
        range: KeyGroupRange::ALL,
        files: handles,
        size: Default::default(),
    };
    let number = store.next_manifest_number(barrier + 1);
    let mut manifest = Manifest { number, barrier, tables: Some(TablesCheckpoint { commit: barrier, part }), ..Manifest::default() };
    manifest.number = store.write_manifest(&manifest)?;
    Ok(manifest)
}

fn fetch(store: &CheckpointStore, manifest: &Manifest, into: &Path) -> weir_catalog::Result<()> {
    store.fetch(&manifest.tables.as_ref().unwrap().part, into)
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed) >> 56) as u8).collect()
}

#[test]
fn files_of_any_length_come_back_and_are_stored_once() {
    let (folder, bucket) = (folder(), Faulty::default());
    let dir = folder.path().join("image");
    let (store, found) = bucket.open(1, 1).unwrap();
    assert!(found.is_empty());
    let mut files: Vec<(&str, Vec<u8>)> = vec![
        ("CURRENT", b"MANIFEST-1".to_vec()),
        ("empty", Vec::new()),
        ("000001.sst", bytes(CHUNK_BYTES, 1)),
        ("000002.sst", bytes(CHUNK_BYTES - 1, 2)),
        ("000003.sst", bytes(2 * CHUNK_BYTES + 5, 3)),
    ];
    let first = checkpoint(&store, &dir, "aa", 10, &files).unwrap();
    let puts = bucket.faults.puts.load(Ordering::SeqCst);
    files[0].1 = b"MANIFEST-2".to_vec();
    let second = checkpoint(&store, &dir, "aa", 20, &files).unwrap();
    assert_eq!(bucket.faults.puts.load(Ordering::SeqCst) - puts, 3, "two files of the checkpoint's own, and the manifest");
    assert_eq!((first.number, second.number), (2, 3), "the first is the claim");
    let (again, found) = bucket.open(1, 2).unwrap();
    assert_eq!(found, [first.clone(), second.clone()]);
    for (at, manifest) in found.iter().enumerate() {
        let into = folder.path().join(format!("into-{at}"));
        fetch(&again, manifest, &into).unwrap();
        for (name, content) in &files {
            let expected = if *name == "CURRENT" { format!("MANIFEST-{}", at + 1).into_bytes() } else { content.clone() };
            assert!(std::fs::read(into.join(name)).unwrap() == expected, "{name}");
        }
    }
    // Of the first checkpoint only its own files go.
    again.abandon(first.number);
    again.retire(&[second], &|_| false).unwrap();
    assert_eq!(bucket.keys("manifests"), [slot(3)], "claims go too");
    assert_eq!(bucket.keys("files"), ["aa-000001.sst", "aa-000002.sst", "aa-000003.sst", "aa-20-CURRENT", "aa-20-empty"]);
}

#[test]
fn damage_is_found_and_named() {
    let (folder, bucket) = (folder(), Faulty::default());
    let (store, _) = bucket.open(1, 1).unwrap();
    let content = bytes(CHUNK_BYTES + 1000, 7);
    let files = [("a", b"small".to_vec()), ("b.sst", content.clone())];
    let manifest = checkpoint(&store, &folder.path().join("image"), "aa", 1, &files).unwrap();
    let (objects, key) = (bucket.objects(), "some/where/files/aa-b.sst");
    let mut flipped = content.clone();
    flipped[CHUNK_BYTES + 3] ^= 1;
    let mut longer = content.clone();
    longer.push(0);
    for (at, (damaged, says)) in [
        (Some(flipped), "damaged"),
        (Some(longer), "damaged"),
        (Some(content[..100].to_vec()), "damaged"),
        (Some(Vec::new()), "damaged"),
        (None, "missing"),
    ]
    .into_iter()
    .enumerate()
    {
        match damaged {
            Some(bytes) => objects.put(key, bytes.into()).unwrap(),
            None => objects.remove(&[key.to_string()]).unwrap(),
        }
        let error = fetch(&store, &manifest, &folder.path().join(format!("into-{at}"))).unwrap_err();
        assert_eq!(error.code().as_str(), "XX001", "{error}");
        assert!(error.message().contains("aa-b.sst") && error.message().contains(says), "{error}");
    }
    objects.put(key, content.into()).unwrap();
    objects.put(&format!("some/where/manifests/{}", slot(manifest.number)), b"nonsense".as_slice().into()).unwrap();
    assert_eq!(bucket.open(1, 2).unwrap_err().code().as_str(), "XX001");
}

#[test]
fn who_comes_later_takes_over_and_another_engine_is_refused() {
    let (folder, bucket) = (folder(), Faulty::default());
    let dir = folder.path().join("image");
    let file = |text: &str| [("CURRENT", text.as_bytes().to_vec())];
    let (first, _) = bucket.open(1, 1).unwrap();
    let of_first = checkpoint(&first, &dir, "aa", 1, &file("first")).unwrap();
    let refused = bucket.open(2, 5).unwrap_err();
    assert_eq!(refused.code().as_str(), "55006");
    assert!(refused.detail().is_some_and(|detail| detail.contains("engine 0000000000000001")), "{refused}");

    let (second, found) = bucket.open(1, 2).unwrap();
    assert_eq!(found, std::slice::from_ref(&of_first));
    let error = checkpoint(&first, &dir, "aa", 2, &file("first again")).unwrap_err();
    assert_eq!(error.code().as_str(), "55006");
    assert!(error.detail().is_some_and(|detail| detail.contains("run 0000000000000002")), "{error}");
    // It neither writes nor removes from here on.
    let before = (bucket.keys("files"), bucket.keys("manifests"));
    assert_eq!(checkpoint(&first, &dir, "aa", 3, &file("more")).unwrap_err().code().as_str(), "55006");
    assert_eq!(first.retire(&[], &|_| false).unwrap_err().code().as_str(), "55006");
    assert_eq!((bucket.keys("files"), bucket.keys("manifests")), before);
    let of_second = checkpoint(&second, &dir, "bb", 4, &file("second")).unwrap();
    assert_eq!(bucket.open(1, 3).unwrap().1, [of_first, of_second]);
}

#[test]
fn who_slept_while_others_came_and_went_commits_nothing() {
    let (folder, bucket) = (folder(), Faulty::default());
    let dir = folder.path().join("image");
    let file = |text: &str| [("CURRENT", text.as_bytes().to_vec())];
    let (sleeper, _) = bucket.open(1, 1).unwrap();
    let old = checkpoint(&sleeper, &dir, "aa", 1, &file("old")).unwrap();
    let (present, _) = bucket.open(1, 2).unwrap();
    let mut last = old.clone();
    for barrier in 2..6 {
        present.abandon(last.number);
        last = checkpoint(&present, &dir, "bb", barrier, &file("new")).unwrap();
        present.retire(std::slice::from_ref(&last), &|_| false).unwrap();
    }
    // The sleeper's next number is free again; that its last one is gone it sees first.
    assert_eq!(bucket.keys("manifests"), [slot(last.number)]);
    let error = checkpoint(&sleeper, &dir, "aa", 9, &file("late")).unwrap_err();
    assert_eq!(error.code().as_str(), "58030");
    assert!(sleeper.take_lost());
    // The slots behind its own say that others came.
    let error = checkpoint(&sleeper, &dir, "aa", 10, &file("late")).unwrap_err();
    assert_eq!(error.code().as_str(), "55006", "{error}");
    assert_eq!(bucket.keys("manifests"), [slot(last.number)]);
    assert_eq!(bucket.open(1, 3).unwrap().1, [last]);
}

#[test]
fn a_manifest_that_arrives_after_its_process_was_killed_is_gone_on_from() {
    let (folder, bucket) = (folder(), Faulty::default());
    let dir = folder.path().join("image");
    let (killed, _) = bucket.open(1, 1).unwrap();
    checkpoint(&killed, &dir, "aa", 10, &[("000001.sst", bytes(100, 1))]).unwrap();
    bucket.faults.delays.store(true, Ordering::SeqCst);
    let files = [("000001.sst", bytes(100, 1)), ("000002.sst", bytes(100, 2))];
    assert_eq!(checkpoint(&killed, &dir, "aa", 20, &files).unwrap_err().code().as_str(), "58030");
    let (store, found) = bucket.open(1, 2).unwrap();
    assert_eq!(found.iter().map(|manifest| manifest.barrier).collect::<Vec<_>>(), [10, 20]);
    fetch(&store, &found[1], &folder.path().join("restored")).unwrap();
    checkpoint(&store, &dir, "bb", 30, &files).unwrap();
    assert_eq!(checkpoint(&killed, &dir, "aa", 40, &files).unwrap_err().code().as_str(), "55006");
}

#[test]
fn a_commit_whose_answer_was_lost_counts_as_failed_and_is_followed_by_the_next() {
    let (folder, bucket) = (folder(), Faulty::default());
    let dir = folder.path().join("image");
    let file = |text: &str| [("CURRENT", text.as_bytes().to_vec())];
    let (store, _) = bucket.open(1, 1).unwrap();
    bucket.faults.answer_lost.store(true, Ordering::SeqCst);
    assert_eq!(checkpoint(&store, &dir, "aa", 1, &file("one")).unwrap_err().code().as_str(), "58030");
    // It had become durable: its number stays its own, and the next checkpoint gets another.
    store.abandon(2);
    let second = checkpoint(&store, &dir, "aa", 2, &file("two")).unwrap();
    assert_eq!(second.number, 3);
    store.retire(std::slice::from_ref(&second), &|_| false).unwrap();
    assert_eq!((bucket.keys("manifests"), bucket.keys("files")), (vec![slot(3)], vec!["aa-2-CURRENT".to_string()]));

    // One that was not carried out leaves its number to the next.
    bucket.faults.puts_fail.store(1, Ordering::SeqCst);
    let part = second.tables.clone();
    let third = Manifest { number: store.next_manifest_number(9), barrier: 3, tables: part, ..Manifest::default() };
    assert_eq!(store.write_manifest(&third).unwrap_err().code().as_str(), "58030");
    store.abandon(third.number);
    let fourth = checkpoint(&store, &dir, "aa", 4, &file("four")).unwrap();
    assert_eq!((third.number, fourth.number), (4, 4));
    store.abandon(second.number);
    store.retire(std::slice::from_ref(&fourth), &|_| false).unwrap();
    assert_eq!(bucket.open(1, 2).unwrap().1, [fourth]);
}

#[test]
fn what_could_not_be_stored_or_removed_goes_later_and_no_name_is_used_while_it_may_go() {
    let (folder, bucket) = (folder(), Faulty::default());
    let dir = folder.path().join("image");
    let files = |text: &str| [("CURRENT", text.as_bytes().to_vec()), ("000001.sst", bytes(1000, 1))];
    let (store, _) = bucket.open(1, 1).unwrap();
    let first = checkpoint(&store, &dir, "aa", 1, &files("one")).unwrap();
    bucket.faults.removals_fail.store(true, Ordering::SeqCst);
    assert_eq!(store.retire(std::slice::from_ref(&first), &|_| false).unwrap_err().code().as_str(), "58030", "the claim does not go");
    bucket.faults.removals_fail.store(false, Ordering::SeqCst);
    store.retire(std::slice::from_ref(&first), &|_| false).unwrap();
    bucket.faults.removals_fail.store(true, Ordering::SeqCst);
    store.retire(&[], &|_| false).unwrap();
    // The table file is wanted again while its removal may still come.
    let second = checkpoint(&store, &dir, "aa", 2, &files("two")).unwrap();
    let names: Vec<&str> = second.files().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["aa-2-CURRENT", "aa-2-000001.sst"]);
    bucket.faults.puts_fail.store(1, Ordering::SeqCst);
    assert_eq!(checkpoint(&store, &dir, "aa", 3, &files("three")).unwrap_err().code().as_str(), "58030");
    bucket.faults.removals_fail.store(false, Ordering::SeqCst);
    store.abandon(first.number);
    store.retire(std::slice::from_ref(&second), &|_| false).unwrap();
    assert_eq!(bucket.keys("files"), ["aa-2-000001.sst", "aa-2-CURRENT"]);
    let third = checkpoint(&store, &dir, "aa", 4, &files("four")).unwrap();
    assert_eq!(third.files().map(|file| file.name.as_str()).collect::<Vec<_>>(), ["aa-4-CURRENT", "aa-000001.sst"]);
}

#[test]
fn what_was_stored_and_is_gone_is_stored_again() {
    let (folder, bucket) = (folder(), Faulty::default());
    let dir = folder.path().join("image");
    let files = |text: &str| [("CURRENT", text.as_bytes().to_vec()), ("000001.sst", bytes(1000, 1))];
    let (store, _) = bucket.open(1, 1).unwrap();
    let first = checkpoint(&store, &dir, "aa", 1, &files("one")).unwrap();
    let objects = bucket.objects();
    let all: Vec<String> = objects.list("").unwrap().into_iter().map(|object| object.key).collect();
    objects.remove(&all).unwrap();
    let error = checkpoint(&store, &dir, "aa", 2, &files("two")).unwrap_err();
    assert_eq!(error.code().as_str(), "58030");
    assert!(error.message().contains("are gone"), "{error}");
    assert!(store.take_lost() && !store.take_lost());
    assert!(!store.reuse(&first.tables.as_ref().unwrap().part, 3));
    // A manifest that names what is gone is not written.
    let stale = Manifest { number: 3, barrier: 3, ..first.clone() };
    assert!(store.write_manifest(&stale).unwrap_err().message().contains("not whole"));
    let second = checkpoint(&store, &dir, "aa", 4, &files("four")).unwrap();
    fetch(&store, &second, &folder.path().join("into")).unwrap();
    assert_eq!(std::fs::read(folder.path().join("into/000001.sst")).unwrap(), bytes(1000, 1));
}
