//! Where checkpoints are kept: a folder of files that never change, and the manifests that name them.
//!
//! # Invariants
//! - A file's name is used once: it holds the incarnation of the state backend that wrote it, a fresh one each time a backend is opened.
//! - A manifest names only files that were synced, in a folder that was synced.
//! - A file is deleted only when no retained manifest names it and no checkpoint under way may come to name it.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use weir_catalog::{Error, Result, SqlState};
use xxhash_rust::xxh3::Xxh3;

use super::manifest::{FileHandle, Manifest, Part};
use crate::seams::faults::{self, Fault};
use crate::seams::files::FilesRef;
use crate::seams::hash::{HashMap, HashSet};
use crate::stream::BarrierNumber;

#[cfg(test)]
mod tests;

/// The folder of one engine's checkpoints.
#[derive(Debug)]
pub struct CheckpointStore {
    files: FilesRef,
    dir: PathBuf,
    known: Mutex<HashMap<String, Known>>,
    /// Files that are no longer known and are being removed. Whoever stores one of them again waits until it is gone; all others go on.
    removing: Mutex<HashSet<String>>,
    removed: Condvar,
    /// The highest number that a manifest here has, readable or not.
    last_number: AtomicU64,
    /// Numbers of manifests that are not to be started from any more and may still be there: they go when the next one is durable.
    abandoned: Mutex<Vec<u64>>,
    /// Files that somebody is about to link to, and how many are.
    pinned: Mutex<HashMap<String, usize>>,
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

/// What storing one file did.
#[derive(Debug)]
pub struct Stored {
    pub handle: FileHandle,
    /// False where the store had it already.
    pub new: bool,
}

const FILES: &str = "files";
const MANIFEST: &str = "MANIFEST-";

/// The name of the manifest with this number.
fn manifest_name(number: u64) -> String {
    format!("{MANIFEST}{number:020}")
}

impl CheckpointStore {
    /// Opens the store in `dir`, made if need be, and reads its manifests. Returns those to start from, oldest first: up to the newest, or, with `from`,
    /// up to that of the checkpoint at this barrier. Those behind it stay until the next one is durable.
    ///
    /// Files that no manifest names are removed: they are of a checkpoint that never became complete.
    ///
    /// Errors: `XX001` where the manifest to start from is damaged, `0A000` where a newer version wrote it, each naming the checkpoints that could be
    /// started from instead; `22023` where there is no checkpoint `from`. An older manifest that can't be read is reported in the log.
    pub fn open(files: FilesRef, dir: &Path, from: Option<BarrierNumber>) -> Result<(CheckpointStore, Vec<Manifest>)> {
        files.create_dir(&dir.join(FILES))?;
        let mut read: Vec<(u64, Result<Manifest>)> = Vec::new();
        for path in files.list(dir)? {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if name.ends_with(".tmp") {
                files.remove(&dir.join(&name))?;
            } else if let Some(number) = name.strip_prefix(MANIFEST).and_then(|number| number.parse().ok()) {
                read.push((number, read_manifest(&files, dir, number)));
            }
        }
        // The process before may have died between the renaming of a manifest, or its removal, and the fsync: what follows relies on both.
        files.sync_dir(dir)?;
        read.sort_by_key(|(number, _)| *number);
        let last_number = read.last().map_or(0, |(number, _)| *number);
        let base = find_base(&read, from)?;
        let all_readable = read.iter().all(|(_, manifest)| manifest.is_ok());
        let mut known = HashMap::default();
        let (mut manifests, mut abandoned) = (Vec::new(), Vec::new());
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
        // What a manifest that can't be read names is not known: nothing goes before it does.
        if all_readable {
            for path in files.list(&dir.join(FILES))? {
                let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                if !known.contains_key(&name) {
                    files.remove(&dir.join(FILES).join(name))?;
                }
            }
        }
        let store = CheckpointStore {
            files,
            dir: dir.to_path_buf(),
            known: Mutex::new(known),
            removing: Mutex::default(),
            removed: Condvar::new(),
            last_number: AtomicU64::new(last_number),
            abandoned: Mutex::new(abandoned),
            pinned: Mutex::default(),
        };
        Ok((store, manifests))
    }

    /// A number for the next manifest, above those of all before and not below `at_least`: with a barrier number, which no process repeats, it is not
    /// used again even where somebody removed the manifests that had higher ones.
    pub fn next_manifest_number(&self, at_least: BarrierNumber) -> u64 {
        let next = |last: u64| (last + 1).max(at_least);
        let last = self.last_number.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |last| Some(next(last)));
        // Both sides hold the number before.
        next(last.unwrap_or_else(|last| last))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(FILES).join(name)
    }

    /// Stores `local` of the folder `from`, written by the backend `incarnation`, for the checkpoint at `barrier`. SST files never change and are stored
    /// once; all others are the checkpoint's own.
    pub fn put(&self, incarnation: &str, from: &Path, local: &str, barrier: BarrierNumber) -> Result<Stored> {
        let shared = local.ends_with(".sst");
        let name = if shared { format!("{incarnation}-{local}") } else { format!("{incarnation}-{barrier}-{local}") };
        if let Some(known) = self.known.lock().get_mut(&name) {
            known.used_by = known.used_by.max(barrier);
            return Ok(Stored { handle: known.handle.clone(), new: false });
        }
        let (source, target) = (from.join(local), self.path(&name));
        let (bytes, checksum) = self.checksum_of(&source)?;
        {
            let mut removing = self.removing.lock();
            while removing.contains(&name) {
                self.removed.wait(&mut removing);
            }
        }
        // A name left by an attempt that failed is not in a manifest, nor known.
        self.files.remove(&target)?;
        self.files.hard_link(&source, &target)?;
        if !faults::is_planted(Fault::CheckpointFileNotSynced) {
            self.files.sync(&target)?;
        }
        let handle = FileHandle { name: name.clone(), local: local.to_string(), bytes, checksum };
        self.known.lock().insert(name, Known { handle: handle.clone(), used_by: barrier });
        Ok(Stored { handle, new: true })
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
        self.abandoned.lock().push(number);
    }

    /// Makes `manifest` durable, and with it every checkpoint that it holds.
    pub fn write_manifest(&self, manifest: &Manifest) -> Result<()> {
        self.files.sync_dir(&self.dir.join(FILES))?;
        let name = manifest_name(manifest.number);
        let temporary = self.dir.join(format!("{name}.tmp"));
        let encoded = manifest.encode()?;
        let placed = self.files.write(&temporary, &encoded).and_then(|()| self.files.rename(&temporary, &self.dir.join(&name)));
        if let Err(error) = placed {
            // On a full disk its bytes are worth having; where it can't be removed either, the next start does it.
            let _ = self.files.remove(&temporary);
            return Err(error);
        }
        self.files.sync_dir(&self.dir)
    }

    /// Removes the abandoned manifests, and the files that none of `retained` names and that no checkpoint uses whose barrier is `under_way`.
    pub fn retire(&self, retained: &[Manifest], under_way: &dyn Fn(BarrierNumber) -> bool) -> Result<()> {
        {
            // What could not be removed is tried again with the next one.
            let mut abandoned = self.abandoned.lock();
            for number in abandoned.iter() {
                self.files.remove(&self.dir.join(manifest_name(*number)))?;
            }
            if !abandoned.is_empty() {
                // A manifest must be gone for good before the files that it names are.
                self.files.sync_dir(&self.dir)?;
            }
            abandoned.clear();
        }
        let named: HashSet<&str> = retained.iter().flat_map(Manifest::files).map(|file| file.name.as_str()).collect();
        let planted = retained.last().filter(|_| faults::is_planted(Fault::RetainedFileDeleted));
        let lost = planted.and_then(|manifest| manifest.files().next()).map(|file| file.name.as_str());
        let unused: Vec<String> = {
            let mut known = self.known.lock();
            let pinned = self.pinned.lock();
            let unused: Vec<String> = known
                .iter()
                .filter(|(name, known)| {
                    let needed = under_way(known.used_by) || named.contains(name.as_str()) || pinned.contains_key(name.as_str());
                    !needed || lost == Some(name.as_str())
                })
                .map(|(name, _)| name.clone())
                .collect();
            let mut removing = self.removing.lock();
            for name in &unused {
                known.remove(name);
                removing.insert(name.clone());
            }
            unused
        };
        let mut result = Ok(());
        for name in unused {
            // One that can't be removed is left to the next start.
            let removed = self.files.remove(&self.path(&name));
            self.removing.lock().remove(&name);
            self.removed.notify_all();
            result = result.and(removed);
        }
        result
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

    /// Makes `target`, outside the store, another name of a file, or a copy. Of it nothing is durable.
    pub fn link(&self, file: &FileHandle, target: &Path) -> Result<()> {
        self.files.hard_link(&self.path(&file.name), target)
    }

    /// Brings the files of `part` into the new folder `into` under their local names, after checking length and content of each. Errors with `XX001` naming
    /// the file that is damaged or missing.
    pub fn fetch(&self, part: &Part, into: &Path) -> Result<()> {
        self.files.create_dir(into)?;
        for file in &part.files {
            let path = self.path(&file.name);
            if !self.files.exists(&path) {
                return Err(Error::corrupted(format!("checkpoint file \"{}\" is missing", file.name)).with_hint(OLDER_HINT));
            }
            let (bytes, checksum) = self.checksum_of(&path)?;
            if (bytes != file.bytes || checksum != file.checksum) && !faults::is_planted(Fault::ChecksumNotVerified) {
                return Err(Error::corrupted(format!("checkpoint file \"{}\" is damaged", file.name))
                    .with_detail(format!(
                        "It has {bytes} bytes with checksum {checksum:016x}; {} with {:016x} were written.",
                        file.bytes, file.checksum
                    ))
                    .with_hint(OLDER_HINT));
            }
            let target = into.join(&file.local);
            if file.local.ends_with(".sst") {
                self.files.hard_link(&path, &target)?;
            } else {
                // A backend may write on in such a file: it gets its own copy.
                self.files.copy(&path, &target)?;
            }
        }
        Ok(())
    }

    /// The content of a file, after checking it. Errors as [`CheckpointStore::fetch`].
    pub fn read(&self, file: &FileHandle) -> Result<Vec<u8>> {
        let path = self.path(&file.name);
        if !self.files.exists(&path) {
            return Err(Error::corrupted(format!("checkpoint file \"{}\" is missing", file.name)).with_hint(OLDER_HINT));
        }
        let bytes = self.files.read(&path)?;
        if bytes.len() as u64 != file.bytes || xxhash_rust::xxh3::xxh3_64(&bytes) != file.checksum {
            return Err(Error::corrupted(format!("checkpoint file \"{}\" is damaged", file.name)).with_hint(OLDER_HINT));
        }
        Ok(bytes)
    }

    /// The length of all files in the store, bytes.
    pub fn total_bytes(&self) -> u64 {
        self.known.lock().values().map(|known| known.handle.bytes).sum()
    }

    /// Length and XXH3-64 of a file, read piece by piece.
    fn checksum_of(&self, path: &Path) -> Result<(u64, u64)> {
        let mut reader = self.files.reader(path)?;
        let mut hasher = Xxh3::new();
        let mut buffer = vec![0; 1 << 20];
        let mut bytes = 0;
        loop {
            let read = match reader.read(&mut buffer) {
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                read => read.map_err(|e| Error::io(format!("read \"{}\"", path.display()), &e))?,
            };
            if read == 0 {
                return Ok((bytes, hasher.digest()));
            }
            hasher.update(&buffer[..read]);
            bytes += read as u64;
        }
    }
}

/// What can be done about a checkpoint that can't be restored.
const OLDER_HINT: &str = "To go on from an older checkpoint, start the server with --from-checkpoint and its number.";

fn read_manifest(files: &FilesRef, dir: &Path, number: u64) -> Result<Manifest> {
    let name = manifest_name(number);
    let manifest = Manifest::decode(&name, &files.read(&dir.join(&name))?)?;
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
