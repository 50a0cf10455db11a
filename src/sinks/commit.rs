//! The committing half of sinks: what was written under another name becomes visible when the checkpoint that lists it is complete.
//!
//! ```text
//!   writer     closes a file under a hidden name, and notes it in its PendingCommits
//!   snapshot   at a checkpoint barrier: lists what is noted, makes it durable            (checkpoint::snapshot)
//!   manifest   names it: from here on it will be visible, whatever happens
//!   Committer  renames it, writes the record that tells readers of it, and says so; writers stop listing it
//! ```
//!
//! In an object store, which can't rename, what is renamed here is an upload that is completed there: see [`objects`].
//!
//! Files are renamed one by one. A record is written when all that it names are there, and appears at once: who reads what records name sees whole
//! checkpoints only. See [`super::file::place`] for where records are.
//!
//! # Invariants
//! - Nothing is committed that no durable manifest lists, and everything that one lists is, unless its job is dropped before that was begun.
//! - A commit is listed by each checkpoint until it has been carried out and is durable; carrying it out again has no effect.
//! - A run that begins from an older checkpoint than one that is durable carries out nothing of the latter, and takes back what was carried out.
//! - A file that was lost before it could be seen stops its job: see [`carried_out`]. One that a reader took away does not.
//! - What a run takes back of the runs before it stays until the first checkpoint of the run is durable: until then another start may need it.

mod carried_out;
mod objects;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use weir_catalog::{Error, ObjectId, Result};

use crate::checkpoint::JobCheckpoint;
use crate::seams::faults::{self, Fault};
use crate::seams::files::FilesRef;
use crate::seams::hash::{HashMap, HashSet};
use crate::seams::objects::{ObjectUrl, Objects, PartedUpload, StoredParts};
use crate::sinks::file::descent::Standing;
use crate::stream::BarrierNumber;

/// Something that takes effect with a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PendingCommit {
    /// A closed file, and the name that readers find it by, in the same folder.
    File {
        hidden: PathBuf,
        target: PathBuf,
        /// Where readers are told of it, together with every other file that has the same record.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        record: Option<PathBuf>,
    },
    /// An upload, all parts of which have arrived, that becomes the object `target`, a URL.
    Upload {
        target: PathBuf,
        /// The store's number for it.
        upload: String,
        /// What the store called its parts, in order.
        parts: Vec<String>,
        /// The length of the object.
        bytes: u64,
        /// Where readers are told of it, together with every other object that has the same record.
        record: PathBuf,
    },
    /// A file of an earlier run, whose rows the checkpoint that the run began from does not have, goes.
    Remove { path: PathBuf },
}

/// An upload that goes with a checkpoint once all its parts have arrived.
#[derive(Clone, Debug)]
pub struct PendingUpload {
    pub target: PathBuf,
    pub record: PathBuf,
    pub upload: PartedUpload,
}

impl PendingCommit {
    /// The hidden file that it makes visible.
    pub fn hidden(&self) -> Option<&Path> {
        match self {
            PendingCommit::File { hidden, .. } => Some(hidden),
            PendingCommit::Upload { .. } | PendingCommit::Remove { .. } => None,
        }
    }

    /// Whether it makes one of `targets` visible.
    pub fn makes(&self, targets: &[PathBuf]) -> bool {
        matches!(self, PendingCommit::File { target, .. } | PendingCommit::Upload { target, .. } if targets.contains(target))
    }

    /// Whether it is about an object.
    pub fn is_in_object_store(&self) -> bool {
        let (PendingCommit::File { target: path, .. } | PendingCommit::Upload { target: path, .. } | PendingCommit::Remove { path }) = self;
        ObjectUrl::split(path).is_some()
    }
}

/// What one writer has to commit: its own, shared with the snapshots that list it.
#[derive(Clone, Debug)]
pub struct PendingCommits(Arc<Mutex<Listed>>);

#[derive(Debug)]
struct Listed {
    job: ObjectId,
    /// Each with the barrier of the first checkpoint that listed it; `None` before that.
    commits: Vec<(PendingCommit, Option<BarrierNumber>)>,
    /// Likewise, uploads some of whose parts may not have arrived.
    uploads: Vec<(PendingUpload, Option<BarrierNumber>)>,
}

impl PendingCommits {
    /// Nothing to commit, for a writer of `job`.
    pub fn new(job: ObjectId) -> PendingCommits {
        PendingCommits(Arc::new(Mutex::new(Listed { job, commits: Vec::new(), uploads: Vec::new() })))
    }

    /// Adds what the checkpoint at `barrier` listed and what may not have been carried out.
    pub fn restore(&self, barrier: BarrierNumber, commits: Vec<PendingCommit>) {
        self.0.lock().commits.extend(commits.into_iter().map(|commit| (commit, Some(barrier))));
    }

    /// Adds a commit.
    pub fn push(&self, commit: PendingCommit) {
        self.0.lock().commits.push((commit, None));
    }

    /// Adds an upload.
    pub fn push_upload(&self, upload: PendingUpload) {
        self.0.lock().uploads.push((upload, None));
    }

    /// The uploads that the checkpoint at `barrier` has to list beside [`PendingCommits::list`]: see [`Committer::settle`].
    pub fn list_uploads(&self, barrier: BarrierNumber, committer: &Committer) -> Vec<PendingUpload> {
        let mut pending = self.0.lock();
        let through = committer.through(pending.job);
        pending.uploads.retain(|(_, first)| first.is_none_or(|first| first > through));
        pending.uploads.iter_mut().for_each(|(_, first)| *first = first.or(Some(barrier)));
        pending.uploads.iter().map(|(upload, _)| upload.clone()).collect()
    }

    /// Whose they are.
    pub fn job(&self) -> ObjectId {
        self.0.lock().job
    }

    /// What the checkpoint at `barrier` has to list.
    pub fn list(&self, barrier: BarrierNumber, committer: &Committer) -> Vec<PendingCommit> {
        let mut pending = self.0.lock();
        let through = committer.through(pending.job);
        pending.commits.retain(|(_, first)| first.is_none_or(|first| first > through));
        pending.commits.iter_mut().for_each(|(_, first)| *first = first.or(Some(barrier)));
        pending.commits.iter().map(|(commit, _)| commit.clone()).collect()
    }
}

/// Makes what `commits` are about durable under its hidden names. Waits for disk.
pub fn make_durable(files: &FilesRef, commits: &[PendingCommit]) -> Result<()> {
    let mut folders = BTreeSet::new();
    for hidden in commits.iter().filter_map(PendingCommit::hidden) {
        if faults::is_planted(Fault::SinkFileNotSynced) {
            continue;
        }
        match files.sync(hidden) {
            Ok(()) => folders.extend(hidden.parent().map(Path::to_path_buf)),
            // Renamed since it was listed, and so durable before; or taken away by someone else, and then nothing can be done about it.
            Err(_) if !files.exists(hidden) => tracing::debug!(file = %hidden.display(), "a file was committed while it was listed again"),
            Err(error) => return Err(error),
        }
    }
    folders.iter().try_for_each(|folder| files.sync_dir(folder))?;
    if faults::is_planted(Fault::SinkCommitsEarly) {
        let commits: Vec<&PendingCommit> = commits.iter().collect();
        return Committer::new(files.clone()).carry_out(&commits, false, &mut HashSet::default()).map_err(Error::from);
    }
    Ok(())
}

/// The hidden files in `folder` whose names begin with `prefix` and that `kept` does not list: of runs that ended before a checkpoint listed them.
pub fn abandoned(files: &FilesRef, folder: &Path, prefix: &str, kept: &[PendingCommit]) -> Result<Vec<PathBuf>> {
    let kept: BTreeSet<&Path> = kept.iter().filter_map(PendingCommit::hidden).collect();
    let mut found = Vec::new();
    for name in files.list(folder)? {
        let path = folder.join(&name);
        let is_own = name.to_str().and_then(|name| name.strip_prefix('.')).is_some_and(|name| name.starts_with(prefix));
        if is_own && !kept.contains(path.as_path()) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Where a job's hidden files are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HiddenFiles {
    pub root: PathBuf,
    /// How deep below it.
    pub depth: usize,
    /// What their names begin with, behind the dot.
    pub prefix: String,
}

/// Why what a checkpoint lists was not carried out.
#[derive(Clone, Debug)]
pub struct CommitFailure {
    pub error: Error,
    /// The files or objects that can't be made any more, because what they were to be made of is lost: to try again is in vain. Mostly none.
    pub lost: Vec<PathBuf>,
}

impl From<Error> for CommitFailure {
    fn from(error: Error) -> CommitFailure {
        CommitFailure { error, lost: Vec::new() }
    }
}

impl From<CommitFailure> for Error {
    fn from(failure: CommitFailure) -> Error {
        failure.error
    }
}

/// Carries commits out, for all jobs of an engine.
#[derive(Debug)]
pub struct Committer {
    files: FilesRef,
    jobs: Mutex<HashMap<ObjectId, Arc<Mutex<JobCommits>>>>,
    /// The barrier up to which each job's commits are carried out and durable.
    through: Mutex<HashMap<ObjectId, BarrierNumber>>,
    /// From where each job's present run goes on, and the first barrier that it can have: what lies between is given up.
    runs: Mutex<HashMap<ObjectId, (BarrierNumber, BarrierNumber)>>,
    /// The object stores that jobs write to.
    stores: Mutex<HashMap<ObjectId, Objects>>,
}

/// Held while the commits of one job are carried out, or called off.
#[derive(Debug, Default)]
struct JobCommits {
    hidden: HashSet<HiddenFiles>,
    /// Keys and numbers of uploads that a checkpoint may list, and that are not known to be completed.
    uploads: HashSet<(String, String)>,
    /// What was made visible of a checkpoint that is not carried out yet: it may be taken away meanwhile.
    renamed: HashSet<PathBuf>,
    dropped: bool,
}

impl Committer {
    /// A committer that knows of nothing carried out.
    pub fn new(files: FilesRef) -> Committer {
        Committer { files, jobs: Mutex::default(), through: Mutex::default(), runs: Mutex::default(), stores: Mutex::default() }
    }

    /// The barrier up to which the commits of `job` are carried out, in this process.
    pub fn through(&self, job: ObjectId) -> BarrierNumber {
        self.through.lock().get(&job).copied().unwrap_or(0)
    }

    fn job(&self, job: ObjectId) -> Arc<Mutex<JobCommits>> {
        self.jobs.lock().entry(job).or_default().clone()
    }

    /// Says where `job` has hidden files, for when it is dropped. Waits while its commits are carried out.
    pub fn register(&self, job: ObjectId, hidden: HiddenFiles) {
        self.job(job).lock().hidden.insert(hidden);
    }

    /// A run of `job` is about to go on from the checkpoint at `from`, 0 for none; its own barriers begin with `next`. What later checkpoints of former runs
    /// list is not carried out any more, unless that is under way: the run finds what became visible, and takes it back.
    pub fn begin_run(&self, job: ObjectId, from: BarrierNumber, next: BarrierNumber) {
        self.runs.lock().insert(job, (from, next));
    }

    /// Whether `job` goes on from a checkpoint before that at `barrier`, so that what this lists is not carried out any more.
    pub fn is_given_up(&self, job: ObjectId, barrier: BarrierNumber) -> bool {
        self.runs.lock().get(&job).is_some_and(|(from, next)| *from < barrier && barrier < *next)
    }

    /// Whether `job` may have hidden files.
    pub fn is_registered(&self, job: ObjectId) -> bool {
        self.jobs.lock().contains_key(&job)
    }

    /// Carries out everything that the checkpoint of `job`, which is durable, lists. Waits for disk. After an error it is to be tried again, unless
    /// something is lost.
    pub fn commit(&self, job: ObjectId, checkpoint: &JobCheckpoint) -> Result<(), CommitFailure> {
        let commits: Vec<&PendingCommit> = checkpoint.commits().collect();
        if commits.is_empty() {
            return Ok(());
        }
        let own = self.job(job);
        let mut own = own.lock();
        if own.dropped || self.through(job) >= checkpoint.barrier || self.is_given_up(job, checkpoint.barrier) {
            return Ok(());
        }
        let (objects, files): (Vec<&PendingCommit>, Vec<&PendingCommit>) =
            commits.into_iter().partition(|commit| commit.is_in_object_store());
        let of_this_run = self.runs.lock().get(&job).is_some_and(|(_, next)| *next <= checkpoint.barrier);
        self.carry_out(&files, of_this_run, &mut own.renamed)?;
        own.renamed.clear();
        if !objects.is_empty() {
            self.carry_out_in_store(job, &objects, &mut own.uploads)?;
        }
        self.through.lock().insert(job, checkpoint.barrier);
        Ok(())
    }

    /// Carries out what is about files, listed by a checkpoint `of_this_run` or of one before. `renamed` takes those that are made visible, and has those of
    /// former tries.
    fn carry_out(&self, commits: &[&PendingCommit], of_this_run: bool, renamed: &mut HashSet<PathBuf>) -> Result<(), CommitFailure> {
        let files = &self.files;
        let sync = |folders: BTreeSet<PathBuf>| -> Result<()> {
            folders.iter().filter(|folder| files.exists(folder)).try_for_each(|folder| files.sync_dir(folder))
        };
        let folder = |path: &Path| path.parent().map(Path::to_path_buf);
        // What is taken back goes first: readers are told so before its files go.
        let removed = commits.iter().filter_map(|commit| match commit {
            PendingCommit::Remove { path } => Some(path.as_path()),
            PendingCommit::File { .. } | PendingCommit::Upload { .. } => None,
        });
        let (mut records, rest): (Vec<&Path>, Vec<&Path>) = removed.partition(|path| is_record(path));
        // The newest first: what is left is always what an earlier reader saw.
        records.sort_unstable_by(|left, right| right.cmp(left));
        for paths in [records, rest] {
            let mut folders = BTreeSet::new();
            for path in paths {
                files.remove(path)?;
                folders.extend(folder(path));
            }
            sync(folders)?;
        }

        let mut folders = BTreeSet::new();
        let mut recorded: BTreeMap<&Path, Vec<&Path>> = BTreeMap::new();
        for commit in commits {
            let PendingCommit::File { hidden, target, record } = commit else { continue };
            // One that is gone was renamed before, or lost.
            if files.exists(hidden) {
                files.rename(hidden, target)?;
                renamed.insert(target.clone());
            }
            folders.extend(folder(target));
            if let Some(record) = record {
                recorded.entry(record).or_default().push(target);
            }
        }
        sync(folders)?;
        self.note_carried_out(&recorded, of_this_run, renamed)?;
        let mut folders = BTreeSet::new();
        for (record, targets) in recorded {
            if files.exists(record) {
                // A process that was killed may have written it, and not have come to make its name durable.
                folders.extend(folder(record));
            } else {
                self.write_record(record, &targets)?;
            }
        }
        Ok(sync(folders)?)
    }

    /// Tells readers of files that are there.
    fn write_record(&self, record: &Path, targets: &[&Path]) -> Result<()> {
        let files = &self.files;
        // A file may be taken away as soon as it can be seen.
        let (there, missing): (Vec<&Path>, Vec<&Path>) = targets.iter().copied().partition(|target| files.exists(target));
        for target in missing {
            tracing::debug!(file = %target.display(), "a file was taken away before its record was written");
        }
        if there.is_empty() {
            return Ok(());
        }
        write_record(files, record, &there)
    }

    /// Removes what a dropped job has not committed, whose subtasks have ended. From here on nothing of it is committed. Waits for disk.
    pub fn discard(&self, job: ObjectId) -> Result<()> {
        // A commit that waits for a store ends, so that this one need not wait for it.
        let objects = self.stores.lock().remove(&job);
        if let Some(objects) = &objects {
            objects.stop();
        }
        let own = self.job(job);
        let mut own = own.lock();
        own.dropped = true;
        self.runs.lock().remove(&job);
        for hidden in own.hidden.drain() {
            for folder in folders(&hidden.root, hidden.depth)? {
                for path in abandoned(&self.files, &folder, &hidden.prefix, &[])? {
                    self.files.remove(&path)?;
                }
            }
            let sink = hidden.prefix.strip_suffix('-').unwrap_or(&hidden.prefix);
            self.files.remove(&carried_out::note_path(&hidden.root.join(RECORDS), sink))?;
        }
        match objects {
            Some(objects) => objects.for_another().call_off(own.uploads.drain().collect()),
            None => Ok(()),
        }
    }
}

/// The folder, below that of a sink, of the records that tell readers of its files.
pub const RECORDS: &str = "_weir_commits";
/// The format of a record.
pub const RECORD_FORMAT: u32 = 1;

fn is_record(path: &Path) -> bool {
    path.parent().and_then(Path::file_name).is_some_and(|folder| folder == RECORDS)
}

/// What a record says.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    format: u32,
    /// Relative to the sink's folder.
    files: Vec<String>,
    /// Of the first record of a sink that began with a savepoint of another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    from: Option<Standing>,
}

fn encode(record: &Record) -> Result<Vec<u8>> {
    serde_json::to_vec(record).map_err(|e| Error::internal(format!("could not encode a record: {e}")))
}

/// The content of a sink's first record, which names nothing, where the sink goes on from `from`.
pub fn encode_first_record(from: Option<&Standing>) -> Result<Vec<u8>> {
    encode(&Record { format: RECORD_FORMAT, files: Vec::new(), from: from.cloned() })
}

/// The content of the record `record`, which names `targets`.
pub fn encode_record(record: &Path, targets: &[&Path]) -> Result<Vec<u8>> {
    let broken = || Error::internal(format!("\"{}\" is no place for a record", record.display()));
    let root = record.parent().and_then(Path::parent).ok_or_else(broken)?;
    let mut named = Vec::with_capacity(targets.len());
    for target in targets {
        let path = target.strip_prefix(root).ok().and_then(Path::to_str);
        named.push(path.ok_or_else(broken)?.to_string());
    }
    encode(&Record { format: RECORD_FORMAT, files: named, from: None })
}

/// Writes a record that names `targets`, all at once. Waits for disk.
pub fn write_record(files: &FilesRef, record: &Path, targets: &[&Path]) -> Result<()> {
    put_record(files, record, &encode_record(record, targets)?)
}

/// Writes the record of [`encode_first_record`]. Waits for disk.
pub fn write_first_record(files: &FilesRef, record: &Path, from: Option<&Standing>) -> Result<()> {
    put_record(files, record, &encode_first_record(from)?)
}

fn put_record(files: &FilesRef, record: &Path, json: &[u8]) -> Result<()> {
    let broken = || Error::internal(format!("\"{}\" is no place for a record", record.display()));
    let folder = record.parent().ok_or_else(broken)?;
    let name = record.file_name().and_then(|name| name.to_str()).ok_or_else(broken)?;
    files.create_dir(folder)?;
    let temporary = folder.join(format!(".{name}.tmp"));
    files.write(&temporary, json)?;
    files.rename(&temporary, record)?;
    files.sync_dir(folder)
}

fn decode(path: &Path, bytes: &[u8]) -> Result<Record> {
    let record: Record = serde_json::from_slice(bytes).map_err(|_| Error::corrupted(format!("\"{}\" is damaged", path.display())))?;
    if record.format > RECORD_FORMAT {
        return Err(Error::newer_format(format_args!("\"{}\"", path.display()), record.format, RECORD_FORMAT));
    }
    Ok(record)
}

/// Where the sink went on from whose first record stands at `path` with content `bytes`. Errors as [`read_record`].
pub fn read_descent(path: &Path, bytes: &[u8]) -> Result<Option<Standing>> {
    Ok(decode(path, bytes)?.from)
}

/// The files that a record names, as it stands at `path` with content `bytes`. `XX001` where it is no record, `0A000` where a newer version wrote it.
pub fn read_record(path: &Path, bytes: &[u8]) -> Result<Vec<PathBuf>> {
    let broken = || Error::corrupted(format!("\"{}\" is damaged", path.display()));
    let record = decode(path, bytes)?;
    let root = path.parent().and_then(Path::parent).ok_or_else(broken)?;
    Ok(record.files.iter().map(|file| root.join(file)).collect())
}

/// The folder `root` and those below it, `depth` deep, but for that of records.
pub fn folders(root: &Path, depth: usize) -> Result<Vec<PathBuf>> {
    let failed = |path: &Path, e: &std::io::Error| Error::io(format!("list \"{}\"", path.display()), e);
    let mut found = vec![root.to_path_buf()];
    let mut level = 0..1;
    for _ in 0..depth {
        let end = found.len();
        for at in level {
            let folder = found[at].clone();
            let entries = match std::fs::read_dir(&folder) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                entries => entries.map_err(|e| failed(&folder, &e))?,
            };
            for entry in entries {
                let entry = entry.map_err(|e| failed(&folder, &e))?;
                if entry.file_name() != RECORDS && entry.file_type().map_err(|e| failed(&entry.path(), &e))?.is_dir() {
                    found.push(entry.path());
                }
            }
        }
        level = end..found.len();
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
