//! Commits in an object store.
//!
//! ```text
//!   writer     sends a file's parts under its final name, and notes the upload in its PendingCommits
//!   snapshot   waits until the parts of what is noted have arrived, and lists each upload with its number and its parts
//!   manifest   names them: from here on they will be completed, whatever happens
//!   Committer  completes them, and writes the record that names them
//! ```
//!
//! An upload is no object before it is completed: readers see nothing of it. Completing is done once; that it was done, an object of the right length says,
//! or the record, which comes when all that it names are there.
//!
//! # Invariants
//! - An upload that is noted here is completed, called off, or given up with the process. What a `kill -9` met and no checkpoint lists is left to the bucket's
//!   rule for incomplete uploads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use weir_catalog::{Error, ObjectId, Result, SqlState};

use super::{CommitFailure, Committer, ObjectUrl, Objects, PendingCommit, PendingUpload, StoredParts, encode_record, is_record};
use crate::seams::faults::{self, Fault};
use crate::seams::hash::HashSet;

/// How many objects are removed with one request.
const REMOVED_AT_ONCE: usize = 1000;

fn key_of(path: &Path) -> Result<String> {
    let split = ObjectUrl::split(path).ok_or_else(|| Error::internal(format!("\"{}\" is no object", path.display())))?;
    Ok(split.1.to_string())
}

impl Committer {
    /// Says where `job` writes objects; opened with `open` where that is not known. Waits while its commits are carried out.
    pub fn register_objects(&self, job: ObjectId, open: impl FnOnce() -> Result<Objects>) -> Result<Objects> {
        let own = self.job(job);
        let _own = own.lock();
        let mut stores = self.stores.lock();
        if let Some(objects) = stores.get(&job) {
            return Ok(objects.clone());
        }
        let objects = open()?;
        stores.insert(job, objects.clone());
        Ok(objects)
    }

    /// A run of `job` begins, with what its checkpoint lists: other uploads that are known of will never be completed, and are called off.
    pub fn begin_uploads(&self, job: ObjectId, objects: &Objects, listed: &[PendingCommit]) -> Result<()> {
        let listed = listed.iter().filter_map(|commit| match commit {
            PendingCommit::Upload { target, upload, .. } => Some(key_of(target).map(|key| (key, upload.clone()))),
            PendingCommit::File { .. } | PendingCommit::Remove { .. } => None,
        });
        let listed: HashSet<(String, String)> = listed.collect::<Result<_>>()?;
        let own = self.job(job);
        let left: Vec<(String, String)> = {
            let mut own = own.lock();
            let left = own.uploads.drain().filter(|upload| !listed.contains(upload)).collect();
            own.uploads = listed;
            left
        };
        objects.call_off(left)
    }

    /// Waits until all parts of `uploads` have arrived; what the checkpoint lists then. Waits for the store.
    pub fn settle(&self, job: ObjectId, uploads: &[PendingUpload]) -> Result<Vec<PendingCommit>> {
        let mut commits = Vec::with_capacity(uploads.len());
        for PendingUpload { target, record, upload } in uploads {
            let StoredParts { key, upload: number, parts, bytes } = upload.wait()?;
            if faults::is_planted(Fault::UploadCompletedEarly) {
                let objects = self.stores.lock().get(&job).cloned();
                let stored = StoredParts { key: key.clone(), upload: number.clone(), parts: parts.clone(), bytes };
                objects.map_or(Ok(Vec::new()), |objects| objects.complete(&[stored]))?;
            }
            let own = self.job(job);
            let mut own = own.lock();
            if own.dropped {
                // What is noted now would be called off by nobody.
                upload.take_back();
                return Err(Error::new(SqlState::UNDEFINED_OBJECT, "the job was dropped"));
            }
            own.uploads.insert((key, number.clone()));
            if faults::is_planted(Fault::UploadNotListed) {
                continue;
            }
            commits.push(PendingCommit::Upload { target: target.clone(), upload: number, parts, bytes, record: record.clone() });
        }
        Ok(commits)
    }

    /// Ends everything that waits for an object store.
    pub fn stop(&self) {
        self.stores.lock().values().for_each(Objects::stop);
    }

    pub(super) fn carry_out_in_store(
        &self,
        job: ObjectId,
        commits: &[&PendingCommit],
        known: &mut HashSet<(String, String)>,
    ) -> Result<(), CommitFailure> {
        let objects = self.stores.lock().get(&job).cloned();
        let objects = objects.ok_or_else(|| Error::new(SqlState::IO_ERROR, "the object store of a sink is not open"))?;
        remove(&objects, commits)?;
        let mut recorded: BTreeMap<&PathBuf, Vec<(&PathBuf, StoredParts)>> = BTreeMap::new();
        for commit in commits {
            let PendingCommit::Upload { target, upload, parts, bytes, record } = commit else { continue };
            let parts = StoredParts { key: key_of(target)?, upload: upload.clone(), parts: parts.clone(), bytes: *bytes };
            recorded.entry(record).or_default().push((target, parts));
        }
        // Barrier after barrier: a record is there before a later one.
        for (record, uploads) in recorded {
            let record_key = key_of(record)?;
            let (targets, parts): (Vec<&Path>, Vec<StoredParts>) =
                uploads.into_iter().map(|(target, parts)| (target.as_path(), parts)).unzip();
            // Where it is, so is, or was, all that it names.
            if objects.head(&record_key)?.is_none() {
                if faults::is_planted(Fault::UploadRecordedEarly) {
                    objects.put(&record_key, Bytes::from(encode_record(record, &targets)?))?;
                }
                complete(&objects, &targets, &parts)?;
                objects.put(&record_key, Bytes::from(encode_record(record, &targets)?))?;
            }
            for StoredParts { key, upload, .. } in parts {
                known.remove(&(key, upload));
            }
        }
        Ok(())
    }
}

/// Makes each of `uploads` the object in `targets`.
fn complete(objects: &Objects, targets: &[&Path], uploads: &[StoredParts]) -> Result<(), CommitFailure> {
    let there = objects.complete(uploads).map_err(|error| {
        // Another object stands in the place of one of them.
        let replaced = *error.code() == SqlState::DATA_CORRUPTED;
        let lost = if replaced { targets.iter().map(|target| target.to_path_buf()).collect() } else { Vec::new() };
        CommitFailure { error, lost }
    })?;
    let lost: Vec<PathBuf> = targets.iter().zip(there).filter(|(_, there)| !there).map(|(target, _)| target.to_path_buf()).collect();
    let Some(first) = lost.first() else { return Ok(()) };
    // Of a bucket that is gone for a while the same is said as of an object; a listing tells.
    objects.list(&key_of(first)?)?;
    let code = SqlState::parse("58P01").unwrap_or(SqlState::IO_ERROR);
    let error = Error::new(code, format!("the upload of \"{}\" is gone", first.display()));
    Err(CommitFailure { error, lost })
}

/// What is taken back goes: readers are told so before its objects go.
fn remove(objects: &Objects, commits: &[&PendingCommit]) -> Result<()> {
    let removed = commits.iter().filter_map(|commit| match commit {
        PendingCommit::Remove { path } => Some(path.as_path()),
        PendingCommit::File { .. } | PendingCommit::Upload { .. } => None,
    });
    let (mut records, rest): (Vec<&Path>, Vec<&Path>) = removed.partition(|path| is_record(path));
    // The newest first, and one by one: what is left is always what an earlier reader saw.
    records.sort_unstable_by(|left, right| right.cmp(left));
    for record in records {
        objects.remove(&[key_of(record)?])?;
    }
    let keys = rest.into_iter().map(key_of).collect::<Result<Vec<_>>>()?;
    keys.chunks(REMOVED_AT_ONCE).try_for_each(|keys| objects.remove(keys))
}
