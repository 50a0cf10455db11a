//! The same in an object store: nothing is an object before its checkpoint is complete, and then all of it is, whatever fails.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::*;
use crate::seams::objects::memory::MemoryStore;
use crate::seams::objects::{ObjectUrl, Objects};

const ROOT: &str = "s3://bucket/out";

struct Store {
    store: Arc<MemoryStore>,
    objects: Objects,
}

impl Store {
    fn new() -> Store {
        let (store, objects) = MemoryStore::bucket();
        Store { store, objects }
    }

    /// A process that begins: it knows nothing of what others did.
    fn committer(&self) -> Committer {
        let committer = Committer::new(LocalFiles::shared());
        committer.register_objects(JOB, || Ok(self.objects.for_another())).unwrap();
        committer
    }

    fn open(&self, run: u64, restored: Option<RestoredSink>, committer: &Committer) -> (Box<dyn Operator>, PendingCommits) {
        open(Path::new(ROOT), &[("format", "csv")], run, restored, committer)
    }

    fn content(&self, path: &Path) -> Vec<i64> {
        let key = ObjectUrl::split(path).unwrap().1;
        let text = String::from_utf8(self.objects.get(key).unwrap().expect("a record names what is there").to_vec()).unwrap();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    fn keys(&self, are_records: bool) -> Vec<PathBuf> {
        let all = self.objects.list("out").unwrap().into_iter().map(|object| PathBuf::from(self.objects.url(&object.key)));
        all.filter(|path| path.starts_with(format!("{ROOT}/{RECORDS}")) == are_records).collect()
    }

    /// The numbers that a reader sees who goes by the records, and one who takes every object.
    fn seen(&self) -> (Vec<i64>, Vec<i64>) {
        let mut recorded = Vec::new();
        for record in self.keys(true) {
            let content = self.objects.get(ObjectUrl::split(&record).unwrap().1).unwrap().unwrap();
            recorded.extend(read_record(&record, &content).unwrap().iter().flat_map(|path| self.content(path)));
        }
        let mut all: Vec<i64> = self.keys(false).iter().flat_map(|path| self.content(path)).collect();
        recorded.sort_unstable();
        all.sort_unstable();
        (recorded, all)
    }
}

fn numbers(numbers: std::ops::Range<i64>) -> (Vec<i64>, Vec<i64>) {
    (numbers.clone().collect(), numbers.collect())
}

/// What the checkpoint at `barrier` lists, once all of it has arrived.
fn listed(commits: &PendingCommits, barrier: u64, committer: &Committer) -> Result<Vec<PendingCommit>> {
    let mut listed = commits.list(barrier, committer);
    listed.extend(committer.settle(JOB, &commits.list_uploads(barrier, committer))?);
    Ok(listed)
}

fn write(operator: &mut Box<dyn Operator>, rows: std::ops::Range<i64>, number: u64) {
    operator.process(0, batch(rows), &mut NoOutput).unwrap();
    operator.on_barrier(&barrier(number, true), &mut NoOutput).unwrap();
}

#[test]
fn objects_appear_with_their_checkpoint_and_only_then() {
    let store = Store::new();
    let committer = store.committer();
    let (mut operator, commits) = store.open(0xa, None, &committer);
    store.store.parts_fail.store(1, Ordering::SeqCst);
    write(&mut operator, 0..10, 2);
    // The checkpoint fails where a part did not arrive, and what was not sent goes with the next one.
    let failed = listed(&commits, 2, &committer);
    let second = loop {
        write(&mut operator, 10..10, 3);
        match listed(&commits, 3, &committer) {
            Ok(listed) => break listed,
            Err(error) => assert_eq!(error.code().as_str(), "58030"),
        }
    };
    assert!(failed.is_err() || failed.unwrap() == second);
    assert_eq!((second.len(), store.seen()), (1, numbers(0..0)));
    store.store.completions_fail.store(true, Ordering::SeqCst);
    assert!(committer.commit(JOB, &checkpoint(3, second.clone())).is_err());
    assert_eq!(store.seen(), numbers(0..0));
    store.store.completions_fail.store(false, Ordering::SeqCst);
    // It is carried out, and the answer is lost; the same is tried again, also by the next process.
    store.store.answers_lost.store(true, Ordering::SeqCst);
    committer.commit(JOB, &checkpoint(3, second.clone())).unwrap();
    store.committer().commit(JOB, &checkpoint(3, second.clone())).unwrap();
    assert_eq!(store.seen(), numbers(0..10));
    assert_eq!(listed(&commits, 4, &committer).unwrap(), [], "everything was carried out");

    // Rows whose checkpoint never comes, then a start from the one before.
    write(&mut operator, 10..20, 4);
    drop((operator, commits));
    let committer = store.committer();
    let (mut operator, commits) = store.open(0xb, Some(RestoredSink { barrier: 3, commits: second }), &committer);
    write(&mut operator, 10..15, 9);
    committer.commit(JOB, &checkpoint(9, listed(&commits, 9, &committer).unwrap())).unwrap();
    assert_eq!(store.seen(), numbers(0..15));
}

#[test]
fn what_an_older_checkpoint_does_not_have_is_taken_back() {
    let store = Store::new();
    let committer = store.committer();
    let (mut operator, commits) = store.open(0xa, None, &committer);
    for (number, rows) in [(2, 0..10), (5, 10..20), (7, 20..30)] {
        // Named by the first barrier behind its first row, whichever barrier ends it.
        operator.on_barrier(&barrier(number - 1, false), &mut NoOutput).unwrap();
        write(&mut operator, rows, number);
        committer.commit(JOB, &checkpoint(number, listed(&commits, number, &committer).unwrap())).unwrap();
    }
    let committer = store.committer();
    let (mut operator, commits) = store.open(0xb, Some(RestoredSink { barrier: 2, commits: Vec::new() }), &committer);
    write(&mut operator, 10..13, 9);
    let first = listed(&commits, 9, &committer).unwrap();
    assert_eq!(store.seen(), numbers(0..30), "another start may still want what is there");
    committer.commit(JOB, &checkpoint(9, first)).unwrap();
    assert_eq!(store.seen(), numbers(0..13));
    // From nothing: everything is written anew.
    let committer = store.committer();
    let (mut operator, commits) = store.open(0xc, None, &committer);
    write(&mut operator, 0..4, 11);
    committer.commit(JOB, &checkpoint(11, listed(&commits, 11, &committer).unwrap())).unwrap();
    assert_eq!(store.seen(), numbers(0..4));
}

#[test]
fn uploads_that_are_not_wanted_any_more_are_called_off() {
    let store = Store::new();
    let committer = store.committer();
    let (mut operator, commits) = store.open(0xa, None, &committer);
    write(&mut operator, 0..10, 2);
    let lost = listed(&commits, 2, &committer).unwrap();
    assert_eq!((lost.len(), store.store.uploads()), (1, 1));
    drop((operator, commits));
    // The next run of the job in this process knows of it, and that no checkpoint has it.
    let (mut operator, commits) = store.open(0xb, None, &committer);
    assert_eq!(store.store.uploads(), 0);
    write(&mut operator, 0..10, 4);
    let listed = listed(&commits, 4, &committer).unwrap();
    assert_eq!(store.store.uploads(), 1);
    drop((operator, commits));
    committer.discard(JOB).unwrap();
    assert_eq!(store.store.uploads(), 0);
    committer.commit(JOB, &checkpoint(4, listed)).unwrap();
    assert_eq!(store.seen(), numbers(0..0), "nothing of a dropped job is committed");
}

#[test]
fn a_checkpoint_that_goes_on_when_its_job_is_dropped_leaves_no_upload() {
    let store = Store::new();
    let committer = store.committer();
    let (mut operator, commits) = store.open(0xa, None, &committer);
    write(&mut operator, 0..10, 2);
    let uploads = commits.list_uploads(2, &committer);
    // All of it has arrived, and is about to be noted.
    uploads[0].upload.wait().unwrap();
    committer.discard(JOB).unwrap();
    assert_eq!(committer.settle(JOB, &uploads).unwrap_err().code().as_str(), "42704");
    assert_eq!(store.store.uploads(), 1);
    drop((operator, commits, uploads));
    let deadline = Instant::now() + Duration::from_secs(120);
    while store.store.uploads() > 0 {
        assert!(Instant::now() < deadline, "it is not called off");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_upload_that_the_store_has_lost_is_told() {
    let store = Store::new();
    let committer = store.committer();
    let (mut operator, commits) = store.open(0xa, None, &committer);
    write(&mut operator, 0..10, 2);
    let listed = listed(&commits, 2, &committer).unwrap();
    let PendingCommit::Upload { upload, target, .. } = &listed[0] else { panic!("an upload") };
    let target = target.clone();
    store.objects.call_off(vec![("out/x".into(), upload.clone())]).unwrap();
    let failure = committer.commit(JOB, &checkpoint(2, listed.clone())).unwrap_err();
    assert!(failure.error.code().as_str() == "58P01" && failure.error.message().contains(ROOT), "{failure:?}");
    assert_eq!(failure.lost, std::slice::from_ref(&target));
    // Another object in its place is no help; one of its length is.
    let key = ObjectUrl::split(&target).unwrap().1.to_string();
    store.objects.put(&key, "other\n".into()).unwrap();
    let failure = committer.commit(JOB, &checkpoint(2, listed.clone())).unwrap_err();
    assert_eq!((failure.error.code().as_str(), failure.lost), ("XX001", vec![target]));
    assert_eq!(store.keys(true).len(), 1, "no record but the first, which names nothing");
    let content: String = (0..10).map(|number| format!("{number}\n")).collect();
    store.objects.put(&key, content.into()).unwrap();
    committer.commit(JOB, &checkpoint(2, listed)).unwrap();
    assert_eq!(store.seen(), numbers(0..10));
}
