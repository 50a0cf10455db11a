//! What is kept of checkpoints: files that never change, and the manifests that name them. Where they are kept is a [`Storage`]'s business.
//!
//! # Invariants
//! - A file's name is used once: it holds the incarnation of the state backend that wrote it, a fresh one each time a backend is opened.
//! - A manifest names only files that were synced, in a folder that was synced.
//! - A file is deleted only when no retained manifest names it and no checkpoint under way may come to name it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use weir_catalog::{Error, ObjectId, Result, SqlState};

use super::manifest::{FileHandle, Manifest, Part};
use super::storage::{Committed, FolderStorage, NewFile, OLDER_HINT, Storage, manifest_name};
use crate::seams::faults::{self, Fault};
use crate::seams::files::FilesRef;
use crate::seams::hash::{HashMap, HashSet};
use crate::state::rocks::never_changes;
use crate::stream::BarrierNumber;

#[cfg(test)]
mod tests;

/// One engine's checkpoints.
#[derive(Debug)]
pub struct CheckpointStore {
    /// Of this machine, for the folders that files come from and go to.
    local: FilesRef,
    storage: Arc<dyn Storage>,
    known: Mutex<HashMap<String, Known>>,
    gone: Mutex<Gone>,
    removed: Condvar,
    /// Held by who removes.
    retiring: Mutex<()>,
    /// The highest number that a manifest here has, readable or not.
    last_number: AtomicU64,
    /// Whether something is gone that jobs believe to be stored, and nobody has been told yet.
    lost: AtomicBool,
    /// The last manifest, where it is known to be gone; 0 for none.
    lost_number: AtomicU64,
    /// Numbers of manifests that are not to be started from any more and may still be there: they go when the next one is durable.
    abandoned: Mutex<Vec<u64>>,
    /// Files that somebody is about to link to, and how many are.
    pinned: Mutex<HashMap<String, usize>>,
}

/// Files that may be there and are not known.
#[derive(Debug, Default)]
struct Gone {
    /// They are being removed. Whoever stores one of them again waits until it is gone, or takes another name; all others go on.
    removing: HashSet<String>,
    /// They are being stored, or could not be stored or removed: where nobody stores them, they go with the next [`CheckpointStore::retire`].
    left: HashMap<String, Left>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Left {
    /// How many store it now.
    attempts: usize,
    /// Whether a removal seemed to fail, and could still come.
    may_go: bool,
}

impl Gone {
    /// An attempt to store `name` has ended.
    fn end_attempt(&mut self, name: &str, is_known: bool) {
        let Some(left) = self.left.get_mut(name) else { return };
        left.attempts -= 1;
        if left.attempts == 0 && is_known {
            self.left.remove(name);
        }
    }
}

/// Files that stay in a store until this is dropped.
#[derive(Debug)]
pub struct Pin {
    store: Arc<CheckpointStore>,
    names: Vec<String>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pinned = self.store.pinned.lock();
        for name in &self.names {
            let left = pinned.get_mut(name).map_or(0, |count| {
                *count -= 1;
                *count
            });
            if left == 0 {
                pinned.remove(name);
            }
        }
    }
}

/// A file in the store, and the newest checkpoint that used it.
#[derive(Debug)]
struct Known {
    handle: FileHandle,
    used_by: BarrierNumber,
}

/// How often a storage is read and claimed where others' manifests come in between.
const CLAIM_ATTEMPTS: usize = 3;

/// What storing one file did.
#[derive(Debug)]
pub struct Stored {
    pub handle: FileHandle,
    /// False where the store had it already.
    pub new: bool,
}

/// The barrier of files that are stored for no checkpoint: they stay until they are pinned.
pub const NO_CHECKPOINT: BarrierNumber = BarrierNumber::MAX;

impl CheckpointStore {
    /// Opens the store in the folder `dir`, made if need be. See [`CheckpointStore::open_in`].
    pub fn open(files: FilesRef, dir: &Path, from: Option<BarrierNumber>) -> Result<(CheckpointStore, Vec<Manifest>)> {
        let storage = Arc::new(FolderStorage::open(files.clone(), dir)?);
        CheckpointStore::open_in(storage, files, from)
    }

    /// Opens the store in `storage`, and reads its manifests. Returns those to start from, oldest first: up to the newest, or, with `from`,
    /// up to that of the checkpoint at this barrier. Those behind it stay until the next one is durable. `local` is the file system of this machine.
    ///
    /// Files that no manifest names are removed: they are of a checkpoint that never became complete.
    ///
    /// Errors: `XX001` where the manifest to start from is damaged, `0A000` where a newer version wrote it, each naming the checkpoints that could be
    /// started from instead; `22023` where there is no checkpoint `from`; `55006` where another engine has the storage. An older manifest that can't be read
    /// is reported in the log.
    pub fn open_in(storage: Arc<dyn Storage>, local: FilesRef, from: Option<BarrierNumber>) -> Result<(CheckpointStore, Vec<Manifest>)> {
        let mut attempt = 1;
        let (read, mut abandoned, base, mut last_number, claimed) = loop {
            let slots = storage.slots()?;
            let last_number = slots.last().map_or(0, |slot| slot.number);
            let (mut read, mut abandoned) = (Vec::new(), Vec::new());
            for slot in slots {
                match slot.manifest {
                    Some(bytes) => read.push((slot.number, bytes.and_then(|bytes| decode_manifest(slot.number, &bytes)))),
                    None => abandoned.push(slot.number),
                }
            }
            let base = find_base(&read, from)?;
            match storage.claim(last_number) {
                Ok(claimed) => break (read, abandoned, base, last_number, claimed),
                // A process that was killed just now may have sent a manifest which arrives only now: its own successor goes on from that.
                Err(error) if *error.code() == SqlState::OBJECT_IN_USE && attempt < CLAIM_ATTEMPTS => {
                    tracing::info!(%error, "a manifest came in between: the storage is read again");
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        };
        if claimed > last_number {
            abandoned.push(claimed);
            last_number = claimed;
        }
        let all_readable = read.iter().all(|(_, manifest)| manifest.is_ok());
        let mut known = HashMap::default();
        let mut manifests = Vec::new();
        for (number, manifest) in read {
            match manifest {
                Ok(manifest) => {
                    for handle in manifest.files() {
                        known.insert(handle.name.clone(), Known { handle: handle.clone(), used_by: manifest.barrier });
                    }
                    if Some(number) <= base { manifests.push(manifest) } else { abandoned.push(number) }
                }
                Err(error) => {
                    tracing::warn!(%error, "a checkpoint can't be read, and goes when the next one is durable");
                    abandoned.push(number);
                }
            }
        }
        let mut gone = Gone::default();
        // What a manifest that can't be read names is not known: nothing goes before it does.
        if all_readable {
            let orphans: Vec<String> = storage.files()?.into_iter().filter(|name| !known.contains_key(name)).collect();
            if let Err(error) = storage.remove_files(&orphans) {
                // Nobody needs the room at once.
                tracing::warn!(%error, "files of checkpoints that never became complete were not removed, and go with the next checkpoint");
                gone.left.extend(orphans.into_iter().map(|name| (name, Left { attempts: 0, may_go: true })));
            }
        }
        let store = CheckpointStore {
            local,
            storage,
            known: Mutex::new(known),
            gone: Mutex::new(gone),
            removed: Condvar::new(),
            retiring: Mutex::new(()),
            last_number: AtomicU64::new(last_number),
            lost: AtomicBool::new(false),
            lost_number: AtomicU64::new(0),
            abandoned: Mutex::new(abandoned),
            pinned: Mutex::default(),
        };
        Ok((store, manifests))
    }

    /// How long a call may take that waits for a store outside this machine.
    pub fn set_timeout(&self, timeout: Duration) {
        self.storage.set_timeout(timeout);
    }

    /// Ends calls that wait for a store outside this machine.
    pub fn stop(&self) {
        self.storage.stop();
    }

    /// A number for the next manifest, above those of all before and not below `at_least`: with a barrier number, which no process repeats, it is not
    /// used again even where somebody removed the manifests that had higher ones. Where numbers must follow one another, the next, until it is used.
    pub fn next_manifest_number(&self, at_least: BarrierNumber) -> u64 {
        if self.storage.has_consecutive_numbers() {
            return self.last_number.load(Ordering::SeqCst) + 1;
        }
        let next = |last: u64| (last + 1).max(at_least);
        let last = self.last_number.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |last| Some(next(last)));
        // Both sides hold the number before.
        next(last.unwrap_or_else(|last| last))
    }

    /// Stores `local` of the folder `from`, written by the backend `incarnation`, for the checkpoint at `barrier`. SST files never change and are stored
    /// once; all others are the checkpoint's own.
    pub fn put(&self, incarnation: &str, from: &Path, local: &str, barrier: BarrierNumber) -> Result<Stored> {
        let stored = self.put_all(incarnation, from, &[local], barrier)?;
        stored.into_iter().next().ok_or_else(|| Error::internal("a file that was stored has no handle"))
    }

    /// Stores several files as [`CheckpointStore::put`] does, side by side where the storage can.
    pub fn put_all(&self, incarnation: &str, from: &Path, locals: &[&str], barrier: BarrierNumber) -> Result<Vec<Stored>> {
        let own = |local: &str| format!("{incarnation}-{barrier}-{local}");
        let mut stored: Vec<Option<Stored>> = Vec::with_capacity(locals.len());
        let mut new = Vec::new();
        for local in locals {
            let mut name = if never_changes(local) { format!("{incarnation}-{local}") } else { own(local) };
            let found = self.known.lock().get_mut(&name).map(|known| {
                known.used_by = known.used_by.max(barrier);
                Stored { handle: known.handle.clone(), new: false }
            });
            if found.is_none() {
                let mut gone = self.gone.lock();
                if self.storage.can_reuse_names() {
                    while gone.removing.contains(&name) {
                        self.removed.wait(&mut gone);
                    }
                } else if gone.removing.contains(&name) || gone.left.get(&name).is_some_and(|left| left.may_go) {
                    // It could still go.
                    name = own(local);
                }
                gone.left.entry(name.clone()).or_default().attempts += 1;
                new.push(NewFile { local: local.to_string(), name });
            }
            stored.push(found);
        }
        let put = self.storage.put(from, &new);
        let mut known = self.known.lock();
        let mut gone = self.gone.lock();
        let handles = match put {
            Ok(handles) => handles,
            Err(error) => {
                new.iter().for_each(|file| gone.end_attempt(&file.name, known.contains_key(&file.name)));
                return Err(error);
            }
        };
        let mut handles = handles.into_iter();
        for stored in stored.iter_mut().filter(|stored| stored.is_none()) {
            let handle = handles.next().ok_or_else(|| Error::internal("a file that was stored has no handle"))?;
            known.insert(handle.name.clone(), Known { handle: handle.clone(), used_by: barrier });
            gone.end_attempt(&handle.name, true);
            *stored = Some(Stored { handle, new: true });
        }
        Ok(stored.into_iter().flatten().collect())
    }

    /// Says that the checkpoint at `barrier` uses a file again that the backend was restored from; `None` where the store has it no more.
    pub fn put_again(&self, handle: &FileHandle, barrier: BarrierNumber) -> Option<Stored> {
        let mut known = self.known.lock();
        let known = known.get_mut(&handle.name)?;
        known.used_by = known.used_by.max(barrier);
        Some(Stored { handle: known.handle.clone(), new: false })
    }

    /// Says that the checkpoint at `barrier` uses `part` again. False where some of its files are gone.
    pub fn reuse(&self, part: &Part, barrier: BarrierNumber) -> bool {
        let mut known = self.known.lock();
        if !part.files.iter().all(|file| known.contains_key(&file.name)) {
            return false;
        }
        for file in &part.files {
            if let Some(known) = known.get_mut(&file.name) {
                known.used_by = known.used_by.max(barrier);
            }
        }
        true
    }

    /// Says that the manifest of this number is needed no more, or counts as failed although it may have become durable: it goes with the next
    /// [`CheckpointStore::retire`], before any file that it names. To be said before the files are: of two that retire at a time, the second to be asked
    /// may be the first to remove.
    pub fn abandon(&self, number: u64) {
        // One that is above the last was not written: the number is the next one's.
        if number <= self.last_number.load(Ordering::SeqCst) {
            self.abandoned.lock().push(number);
        }
    }

    /// Makes `manifest` durable, and with it every checkpoint that it holds. Returns the number that it got: another than its own where that was used.
    pub fn write_manifest(&self, manifest: &Manifest) -> Result<u64> {
        self.write_manifest_for(manifest, |_| true)
    }

    /// As [`CheckpointStore::write_manifest`]; `is_needed` says of which jobs every file must be there, where that is not sure.
    ///
    /// Errors: those of the storage; `58030` where something that was stored before is gone: see [`CheckpointStore::take_lost`].
    pub fn write_manifest_for(&self, manifest: &Manifest, is_needed: impl Fn(ObjectId) -> bool) -> Result<u64> {
        if self.storage.has_consecutive_numbers() {
            let last = self.last_number.load(Ordering::SeqCst);
            // Told once: the next manifest is written in the place of the one that is gone.
            if self.lost_number.load(Ordering::SeqCst) != last && !self.storage.is_intact(last)? {
                self.lost_number.store(last, Ordering::SeqCst);
                // Somebody emptied the storage, or removed it and made it anew. What is there now is not known.
                self.known.lock().clear();
                self.lost.store(true, Ordering::SeqCst);
                return Err(Error::new(SqlState::IO_ERROR, format!("the checkpoints in \"{}\" are gone", self.storage.place()))
                    .with_detail("Everything is stored again with the next checkpoints."));
            }
            self.check_files(manifest, is_needed)?;
        }
        if self.storage.commit(manifest.number, &manifest.encode()?)? == Committed::Durable {
            self.last_number.fetch_max(manifest.number, Ordering::SeqCst);
            return Ok(manifest.number);
        }
        let mut next = manifest.clone();
        loop {
            // What has the number counts as failed: it goes once this one is durable.
            self.last_number.fetch_max(next.number, Ordering::SeqCst);
            self.abandon(next.number);
            next.number += 1;
            if self.storage.commit(next.number, &next.encode()?)? == Committed::Durable {
                self.last_number.fetch_max(next.number, Ordering::SeqCst);
                return Ok(next.number);
            }
        }
    }

    /// Whether something that was stored before turned out to be gone since the last call: every job is to store its state again.
    pub fn take_lost(&self) -> bool {
        self.lost.swap(false, Ordering::SeqCst)
    }

    fn check_files(&self, manifest: &Manifest, is_needed: impl Fn(ObjectId) -> bool) -> Result<()> {
        let known = self.known.lock();
        let is_gone = |file: &&FileHandle| !known.contains_key(&file.name);
        let needed = manifest.jobs.iter().filter(|(id, job)| !job.finished && is_needed(**id));
        let of_jobs = needed
            .flat_map(|(_, job)| job.states())
            .flat_map(|operator| operator.parts.iter().flat_map(|part| &part.files).chain(&operator.closed_splits));
        let of_tables = manifest.tables.iter().flat_map(|tables| &tables.part.files);
        match of_jobs.chain(of_tables).find(is_gone) {
            None => Ok(()),
            Some(file) => Err(Error::new(SqlState::IO_ERROR, format!("the checkpoints in \"{}\" are not whole", self.storage.place()))
                .with_detail(format!("File \"{}\" is gone. It is stored again with the next checkpoints.", file.name))),
        }
    }

    /// Removes the abandoned manifests, and the files that none of `retained` names and that no checkpoint uses whose barrier is `under_way`. Files that can't
    /// be removed go with the next call, manifests too, but then it is an error: what they need must be kept.
    pub fn retire(&self, retained: &[Manifest], under_way: &dyn Fn(BarrierNumber) -> bool) -> Result<()> {
        // One at a time, so that the manifests are gone before any file that they name is, whoever was the first to be asked.
        let _alone = self.retiring.lock();
        let abandoned = self.abandoned.lock().clone();
        if !abandoned.is_empty() {
            // A manifest must be gone for good before the files that it names are. What could not be removed is tried again with the next one.
            self.storage.remove_manifests(&abandoned)?;
            self.abandoned.lock().retain(|number| !abandoned.contains(number));
        }
        let named: HashSet<&str> = retained.iter().flat_map(Manifest::files).map(|file| file.name.as_str()).collect();
        let planted = retained.last().filter(|_| faults::is_planted(Fault::RetainedFileDeleted));
        let lost = planted.and_then(|manifest| manifest.files().next()).map(|file| file.name.as_str());
        let unused: Vec<String> = {
            let mut known = self.known.lock();
            let pinned = self.pinned.lock();
            let mut unused: Vec<String> = known
                .iter()
                .filter(|(name, known)| {
                    let needed = under_way(known.used_by) || named.contains(name.as_str()) || pinned.contains_key(name.as_str());
                    !needed || lost == Some(name.as_str())
                })
                .map(|(name, _)| name.clone())
                .collect();
            for name in &unused {
                known.remove(name);
            }
            let mut gone = self.gone.lock();
            unused.extend(gone.left.extract_if(|_, left| left.attempts == 0).map(|(name, _)| name));
            gone.removing.extend(unused.iter().cloned());
            unused
        };
        let removed = self.storage.remove_files(&unused);
        if let Err(error) = &removed {
            // They take room only: neither a checkpoint nor the log waits for that.
            tracing::warn!(%error, "files of old checkpoints were not removed, and go with the next checkpoint");
        }
        let mut gone = self.gone.lock();
        for name in unused {
            gone.removing.remove(&name);
            if removed.is_err() {
                gone.left.entry(name).or_default().may_go = true;
            }
        }
        self.removed.notify_all();
        Ok(())
    }

    /// Keeps files until the pin is dropped, whatever is retired. They must be of a durable manifest that is retained now.
    pub fn pin<'a>(self: &Arc<Self>, files: impl Iterator<Item = &'a FileHandle>) -> Pin {
        let names: Vec<String> = files.map(|file| file.name.clone()).collect();
        let mut pinned = self.pinned.lock();
        for name in &names {
            *pinned.entry(name.clone()).or_default() += 1;
        }
        Pin { store: self.clone(), names }
    }

    /// Pins files that were stored for [`NO_CHECKPOINT`]: once the pin is dropped they go.
    pub fn pin_stored<'a>(self: &Arc<Self>, files: impl Iterator<Item = &'a FileHandle> + Clone) -> Pin {
        let pin = self.pin(files.clone());
        let mut known = self.known.lock();
        for file in files {
            if let Some(known) = known.get_mut(&file.name).filter(|known| known.used_by == NO_CHECKPOINT) {
                known.used_by = 0;
            }
        }
        drop(known);
        pin
    }

    /// Makes files under their names in the folder `into`, outside the store: other names of them, or copies, several side by side where the storage can. Of
    /// them nothing is durable. Waits for disk, or for the storage.
    pub fn link(&self, files: &[FileHandle], into: &Path) -> Result<()> {
        self.storage.link(files, into)
    }

    /// Brings the files of `part` into the new folder `into` under their local names, after checking length and content of each. Errors with `XX001` naming
    /// the file that is damaged or missing.
    pub fn fetch(&self, part: &Part, into: &Path) -> Result<()> {
        self.local.create_dir(into)?;
        self.storage.fetch(&part.files, into)
    }

    /// The content of a file, after checking it. Errors as [`CheckpointStore::fetch`].
    pub fn read(&self, file: &FileHandle) -> Result<Vec<u8>> {
        self.storage.read(file)
    }

    /// The length of all files in the store, bytes.
    pub fn total_bytes(&self) -> u64 {
        self.known.lock().values().map(|known| known.handle.bytes).sum()
    }
}

fn decode_manifest(number: u64, bytes: &[u8]) -> Result<Manifest> {
    let name = manifest_name(number);
    let manifest = Manifest::decode(&name, bytes)?;
    if manifest.number != number {
        return Err(Error::corrupted(format!("checkpoint metadata \"{name}\" has number {}", manifest.number)));
    }
    Ok(manifest)
}

/// The number of the manifest to start from; `None` where there is none yet.
fn find_base(read: &[(u64, Result<Manifest>)], from: Option<BarrierNumber>) -> Result<Option<u64>> {
    // Of several manifests of one checkpoint only the last counts.
    let mut there: Vec<BarrierNumber> =
        read.iter().filter_map(|(_, manifest)| manifest.as_ref().ok()).map(|manifest| manifest.barrier).collect();
    there.dedup();
    let listed = match there.as_slice() {
        [] => "There is none.".to_string(),
        some => format!("Those there are: {}.", some.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
    };
    let Some(from) = from else {
        return match read.last() {
            None => Ok(None),
            Some((number, Ok(_))) => Ok(Some(*number)),
            Some((_, Err(error))) if there.is_empty() => Err(error.clone()),
            Some((_, Err(error))) => Err(error.clone().with_hint(format!("{OLDER_HINT} {listed}"))),
        };
    };
    let found = read.iter().rev().find(|(_, manifest)| manifest.as_ref().is_ok_and(|manifest| manifest.barrier == from));
    match found {
        Some((number, _)) => Ok(Some(*number)),
        None => {
            let error = Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("there is no checkpoint {from} to start from"));
            let unreadable: Vec<String> =
                read.iter().filter_map(|(_, manifest)| manifest.as_ref().err()).map(|e| format!(" Unreadable: {}.", e.message())).collect();
            Err(error.with_detail(format!("{listed}{}", unreadable.concat())))
        }
    }
}
