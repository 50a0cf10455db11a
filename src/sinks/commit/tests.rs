//! Commits that are carried out once, or never, and what readers are told of them.

use std::collections::BTreeMap;

use super::*;
use crate::checkpoint::OperatorCheckpoint;
use crate::seams::files::LocalFiles;

const JOB: ObjectId = 7;

fn checkpoint(barrier: BarrierNumber, commits: Vec<PendingCommit>) -> JobCheckpoint {
    let operator = OperatorCheckpoint { commits, ..OperatorCheckpoint::default() };
    JobCheckpoint {
        barrier,
        commit: 0,
        time_us: 0,
        operators: BTreeMap::from([("sink".to_string(), operator)]),
        finished: false,
        inputs: BTreeMap::new(),
    }
}

/// A file `.name` in `root` that holds its name, and its commit with the record `record`.
fn file(root: &Path, name: &str, record: &str) -> PendingCommit {
    std::fs::write(root.join(format!(".{name}")), name).unwrap();
    PendingCommit::File { hidden: root.join(format!(".{name}")), target: root.join(name), record: Some(record_path(root, record)) }
}

/// Where the record with the number `record` is.
fn record_path(root: &Path, record: &str) -> PathBuf {
    root.join(RECORDS).join(format!("s.5f3c2a10-{record:0>12}-9c01de.json"))
}

fn recorded(root: &Path, record: &str) -> Option<Vec<PathBuf>> {
    let path = record_path(root, record);
    Some(read_record(&path, &std::fs::read(&path).ok()?).unwrap())
}

#[test]
fn a_commit_is_listed_until_it_is_carried_out_and_carrying_out_twice_is_once() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let files: FilesRef = LocalFiles::shared();
    let committer = Committer::new(files.clone());
    let pending = PendingCommits::new(JOB);
    let (a, b) = (file(root, "a", "1"), file(root, "b", "2"));
    pending.push(a.clone());
    make_durable(&files, &pending.list(1, &committer)).unwrap();
    // The checkpoint that listed it fails: the next one lists it again, with what came meanwhile.
    pending.push(b.clone());
    let second = pending.list(2, &committer);
    assert_eq!(second, [a, b]);
    assert!(!root.join("a").exists());
    // The one behind lists it too, for nobody has carried it out yet.
    let c = file(root, "c", "3");
    pending.push(c.clone());
    assert_eq!(pending.list(3, &committer).len(), 3);

    committer.commit(JOB, &checkpoint(2, second.clone())).unwrap();
    assert_eq!(std::fs::read(root.join("a")).unwrap(), b"a");
    assert_eq!(
        (recorded(root, "1"), recorded(root, "2"), recorded(root, "3")),
        (Some(vec![root.join("a")]), Some(vec![root.join("b")]), None)
    );
    assert_eq!(pending.list(4, &committer), [c], "what was first listed by the third checkpoint is still to be done");
    // A reader takes the file away: committing again, also after a restart, is no error and brings nothing back.
    std::fs::remove_file(root.join("a")).unwrap();
    Committer::new(files.clone()).commit(JOB, &checkpoint(2, second)).unwrap();
    assert!(!root.join("a").exists() && root.join("b").exists());
    assert_eq!(recorded(root, "1"), Some(vec![root.join("a")]));
}

#[test]
fn a_record_comes_after_its_files_and_a_lost_one_holds_it_back() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let commits = vec![file(root, "a", "1"), file(root, "b", "1"), file(root, "c", "1"), file(root, "d", "2"), file(root, "e", "3")];
    // The process died when one was renamed; another was lost, and all of the second record.
    std::fs::rename(root.join(".a"), root.join("a")).unwrap();
    std::fs::remove_file(root.join(".c")).unwrap();
    std::fs::remove_file(root.join(".d")).unwrap();
    let committer = Committer::new(LocalFiles::shared());
    committer.begin_run(JOB, 0, 1);
    for _ in 0..2 {
        let failure = committer.commit(JOB, &checkpoint(1, commits.clone())).unwrap_err();
        assert_eq!((failure.error.code().as_str(), failure.lost), ("58P01", vec![root.join("c"), root.join("d")]));
        assert_eq!(["1", "2", "3"].map(|record| recorded(root, record)), [None, None, None]);
        assert_eq!(committer.through(JOB), 0);
    }
    // Somebody has put them there, and somebody has taken one that this committer made visible.
    std::fs::write(root.join("c"), "c").unwrap();
    std::fs::write(root.join("d"), "d").unwrap();
    std::fs::remove_file(root.join("b")).unwrap();
    committer.commit(JOB, &checkpoint(1, commits)).unwrap();
    assert_eq!(recorded(root, "1"), Some(vec![root.join("a"), root.join("c")]));
    assert_eq!((recorded(root, "2"), recorded(root, "3")), (Some(vec![root.join("d")]), Some(vec![root.join("e")])));
}

#[test]
fn what_was_carried_out_may_be_taken_away_with_its_record() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let committer = Committer::new(LocalFiles::shared());
    let first = vec![file(root, "a", "1")];
    committer.commit(JOB, &checkpoint(1, first.clone())).unwrap();
    std::fs::remove_file(root.join("a")).unwrap();
    std::fs::remove_file(record_path(root, "1")).unwrap();
    // The next checkpoint lists it again, for it was on its way then; and so may one that a later process starts from.
    let second: Vec<PendingCommit> = first.iter().cloned().chain([file(root, "b", "2")]).collect();
    committer.commit(JOB, &checkpoint(2, second.clone())).unwrap();
    assert_eq!((recorded(root, "1"), recorded(root, "2")), (None, Some(vec![root.join("b")])));
    std::fs::remove_file(root.join("b")).unwrap();
    std::fs::remove_file(record_path(root, "2")).unwrap();
    for commits in [second, first] {
        Committer::new(LocalFiles::shared()).commit(JOB, &checkpoint(2, commits)).unwrap();
    }
    // A checkpoint that was never carried out has no such excuse.
    let third = vec![file(root, "c", "3")];
    std::fs::remove_file(root.join(".c")).unwrap();
    let committer = Committer::new(LocalFiles::shared());
    assert_eq!(committer.commit(JOB, &checkpoint(3, third.clone())).unwrap_err().lost, [root.join("c")]);
    // Where everything is taken away, nobody can tell; but a run knows what it wrote itself.
    std::fs::remove_dir_all(root.join(RECORDS)).unwrap();
    committer.begin_run(JOB, 2, 3);
    assert_eq!(committer.commit(JOB, &checkpoint(3, third.clone())).unwrap_err().lost, [root.join("c")]);
    committer.begin_run(JOB, 3, 4);
    committer.commit(JOB, &checkpoint(3, third)).unwrap();
}

#[test]
fn what_is_taken_back_goes_before_what_comes() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let committer = Committer::new(LocalFiles::shared());
    committer.commit(JOB, &checkpoint(5, vec![file(root, "old", "5")])).unwrap();
    let removed = [root.join("old"), record_path(root, "5"), root.join(".never-was")];
    let mut commits: Vec<PendingCommit> = removed.into_iter().map(|path| PendingCommit::Remove { path }).collect();
    commits.push(file(root, "new", "6"));
    for committer in [&committer, &Committer::new(LocalFiles::shared())] {
        committer.commit(JOB, &checkpoint(6, commits.clone())).unwrap();
        assert!(!root.join("old").exists() && root.join("new").exists());
        assert_eq!((recorded(root, "5"), recorded(root, "6")), (None, Some(vec![root.join("new")])));
    }
}

#[test]
fn a_dropped_job_leaves_no_hidden_file_and_commits_nothing_more() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    std::fs::create_dir_all(root.join("k=1")).unwrap();
    let committer = Committer::new(LocalFiles::shared());
    committer.register(JOB, HiddenFiles { root: root.to_path_buf(), depth: 1, prefix: "own-".into() });
    committer.commit(JOB, &checkpoint(1, vec![file(root, "own-1", "1")])).unwrap();
    let pending = file(root, "own-2", "2");
    for path in ["k=1/.own-3", ".other-4"] {
        std::fs::write(root.join(path), "").unwrap();
    }
    committer.discard(JOB).unwrap();
    committer.commit(JOB, &checkpoint(2, vec![pending])).unwrap();
    assert!(!root.join(".own-2").exists() && !root.join("own-2").exists() && !root.join("k=1/.own-3").exists());
    assert!(root.join("own-1").exists() && root.join(".other-4").exists(), "what is visible, or someone else's, stays");
    assert_eq!((recorded(root, "1"), recorded(root, "2")), (Some(vec![root.join("own-1")]), None));
}

#[test]
fn what_a_run_does_not_go_on_from_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let committer = Committer::new(LocalFiles::shared());
    committer.begin_run(JOB, 3, 7);
    for (barrier, is_carried_out) in [(3, true), (4, false), (6, false), (7, true)] {
        let name = barrier.to_string();
        committer.commit(JOB, &checkpoint(barrier, vec![file(root, &name, &name)])).unwrap();
        assert_eq!(root.join(&name).exists(), is_carried_out, "the checkpoint at barrier {barrier}");
    }
}

#[test]
fn a_commit_that_failed_is_carried_out_later() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let committer = Committer::new(LocalFiles::shared());
    // A folder of that name is in the way.
    std::fs::create_dir_all(root.join("blocked/in")).unwrap();
    let first = checkpoint(1, vec![file(root, "blocked", "1")]);
    assert!(committer.commit(JOB, &first).is_err());
    assert_eq!(recorded(root, "1"), None);
    std::fs::remove_dir_all(root.join("blocked")).unwrap();
    committer.commit(JOB, &first).unwrap();
    assert_eq!(recorded(root, "1"), Some(vec![root.join("blocked")]));
}
