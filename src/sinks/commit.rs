//! The committing half of sinks: what was written under another name becomes visible when the checkpoint that lists it is complete.
//!
//! ```text
//!   writer     closes a file under a hidden name, and notes it in its PendingCommits
//!   snapshot   at a checkpoint barrier: lists what is noted, makes it durable            (checkpoint::snapshot)
//!   manifest   names it: from here on it will be visible, whatever happens
//!   Committer  renames it, and says so; writers stop listing it
//! ```
//!
//! # Invariants
//! - Nothing is committed that no durable manifest lists, and everything that one lists is.
//! - A commit is listed by each checkpoint until it has been carried out and is durable; carrying it out again has no effect.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use weir_catalog::{ObjectId, Result};

use crate::checkpoint::Manifest;
use crate::seams::files::FilesRef;
use crate::seams::hash::{HashMap, HashSet};
use crate::stream::BarrierNumber;

/// Something that becomes visible with a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PendingCommit {
    /// A closed file, and the name that readers find it by. Both are in one folder.
    File { hidden: PathBuf, target: PathBuf },
}

/// What one writer has to commit: its own, shared with the snapshots that list it.
#[derive(Clone, Debug, Default)]
pub struct PendingCommits(Arc<Mutex<Vec<PendingCommit>>>);

impl PendingCommits {
    /// Begins with what a checkpoint listed and may not have been carried out.
    pub fn new(restored: Vec<PendingCommit>) -> PendingCommits {
        PendingCommits(Arc::new(Mutex::new(restored)))
    }

    /// Adds a commit.
    pub fn push(&self, commit: PendingCommit) {
        self.0.lock().push(commit);
    }

    /// What is to be listed now.
    pub fn list(&self, committer: &Committer) -> Vec<PendingCommit> {
        let mut pending = self.0.lock();
        committer.forget_done(&mut pending);
        pending.clone()
    }
}

/// Makes what `commits` are about durable under its hidden names. Waits for disk.
pub fn make_durable(files: &FilesRef, commits: &[PendingCommit]) -> Result<()> {
    let mut folders = BTreeSet::new();
    for PendingCommit::File { hidden, .. } in commits {
        match files.sync(hidden) {
            Ok(()) => folders.extend(hidden.parent().map(Path::to_path_buf)),
            // Renamed since it was listed, and so durable before; or taken away by someone else, and then nothing can be done about it.
            Err(_) if !files.exists(hidden) => tracing::debug!(file = %hidden.display(), "a file was committed while it was listed again"),
            Err(error) => return Err(error),
        }
    }
    folders.iter().try_for_each(|folder| files.sync_dir(folder))
}

/// Removes the hidden files in `folder` whose names begin with `prefix` and that `kept` does not list: of runs that ended before a checkpoint listed them.
pub fn remove_abandoned(files: &FilesRef, folder: &Path, prefix: &str, kept: &[PendingCommit]) -> Result<()> {
    let kept: BTreeSet<&Path> = kept.iter().map(|PendingCommit::File { hidden, .. }| hidden.as_path()).collect();
    for name in files.list(folder)? {
        let path = folder.join(&name);
        let is_ours = name.to_str().and_then(|name| name.strip_prefix('.')).is_some_and(|name| name.starts_with(prefix));
        if is_ours && !kept.contains(path.as_path()) {
            files.remove(&path)?;
        }
    }
    Ok(())
}

/// Carries commits out, for all jobs of an engine.
#[derive(Debug)]
pub struct Committer {
    files: FilesRef,
    /// The barrier up to which each job's commits are carried out.
    through: Mutex<HashMap<ObjectId, BarrierNumber>>,
    /// Carried out and durable, but perhaps still listed by its writer.
    done: Mutex<HashSet<PendingCommit>>,
}

impl Committer {
    /// A committer that knows of nothing carried out.
    pub fn new(files: FilesRef) -> Committer {
        Committer { files, through: Mutex::default(), done: Mutex::default() }
    }

    /// Carries out everything that `manifest`, which is durable, lists. Waits for disk. An error leaves the rest for the next time.
    pub fn commit(&self, manifest: &Manifest) -> Result<()> {
        self.through.lock().retain(|job, _| manifest.jobs.contains_key(job));
        for (job, checkpoint) in &manifest.jobs {
            if self.through.lock().get(job).is_some_and(|through| *through >= checkpoint.barrier) {
                continue;
            }
            let commits: Vec<&PendingCommit> = checkpoint.operators.values().flat_map(|operator| &operator.commits).collect();
            let mut folders = BTreeSet::new();
            for PendingCommit::File { hidden, target } in &commits {
                // One that is gone was renamed before.
                if self.files.exists(hidden) {
                    self.files.rename(hidden, target)?;
                }
                folders.extend(target.parent().filter(|folder| self.files.exists(folder)).map(Path::to_path_buf));
            }
            folders.iter().try_for_each(|folder| self.files.sync_dir(folder))?;
            self.done.lock().extend(commits.into_iter().cloned());
            self.through.lock().insert(*job, checkpoint.barrier);
        }
        Ok(())
    }

    /// Takes what is carried out out of a writer's list.
    fn forget_done(&self, pending: &mut Vec<PendingCommit>) {
        let mut done = self.done.lock();
        pending.retain(|commit| !done.remove(commit));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::checkpoint::{JobCheckpoint, OperatorCheckpoint};
    use crate::seams::files::LocalFiles;

    fn manifest(barrier: BarrierNumber, commits: Vec<PendingCommit>) -> Manifest {
        let operator = OperatorCheckpoint { commits, ..OperatorCheckpoint::default() };
        let operators = BTreeMap::from([("sink".to_string(), operator)]);
        let job = JobCheckpoint { barrier, commit: 0, time_us: 0, operators, finished: false };
        Manifest { number: barrier, barrier, jobs: BTreeMap::from([(7, job)]), tables: None }
    }

    #[test]
    fn a_commit_is_listed_until_it_is_carried_out_and_carrying_out_twice_is_once() {
        let folder = tempfile::tempdir().unwrap();
        let files: FilesRef = LocalFiles::shared();
        let committer = Committer::new(files.clone());
        let pending = PendingCommits::default();
        let file = |name: &str| PendingCommit::File { hidden: folder.path().join(format!(".{name}")), target: folder.path().join(name) };
        std::fs::write(folder.path().join(".a"), "a").unwrap();
        pending.push(file("a"));

        let first = pending.list(&committer);
        make_durable(&files, &first).unwrap();
        // The checkpoint that listed it fails: the next one lists it again, with what came meanwhile.
        std::fs::write(folder.path().join(".b"), "b").unwrap();
        pending.push(file("b"));
        let second = pending.list(&committer);
        assert_eq!(second, [file("a"), file("b")]);
        assert!(!folder.path().join("a").exists());

        committer.commit(&manifest(2, second.clone())).unwrap();
        assert_eq!(std::fs::read(folder.path().join("a")).unwrap(), b"a");
        // A reader takes the file away: committing again, also after a restart, is no error and brings nothing back.
        std::fs::remove_file(folder.path().join("a")).unwrap();
        Committer::new(files.clone()).commit(&manifest(2, second)).unwrap();
        assert!(!folder.path().join("a").exists() && folder.path().join("b").exists());
        assert_eq!(pending.list(&committer), []);
    }
}
