//! Where checkpoints are kept: a folder of files that never change, and the manifests that name them.
//!
//! # Invariants
//! - A file's name is used once: it holds the incarnation of the state backend that wrote it, a fresh one each time a backend is opened.
//! - A manifest names only files that were synced, in a folder that was synced.
//! - A file is deleted only when no retained manifest names it and no checkpoint under way may come to name it.

use std::path::{Path, PathBuf};

use parking_lot::{Condvar, Mutex};
use weir_catalog::{Error, Result};
use xxhash_rust::xxh3::Xxh3;

use super::manifest::{FileHandle, Manifest, Part};
use crate::seams::files::FilesRef;
use crate::seams::hash::{HashMap, HashSet};
use crate::stream::BarrierNumber;

/// The folder of one engine's checkpoints.
#[derive(Debug)]
pub struct CheckpointStore {
    files: FilesRef,
    dir: PathBuf,
    known: Mutex<HashMap<String, Known>>,
    /// Files that are no longer known and are being removed. Whoever stores one of them again waits until it is gone; all others go on.
    removing: Mutex<HashSet<String>>,
    removed: Condvar,
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

impl CheckpointStore {
    /// Opens the store in `dir`, made if need be, and reads its manifests, oldest first. Files that none of them names are removed: they are of a
    /// checkpoint that never became complete. Errors with `XX001` where a manifest is damaged.
    pub fn open(files: FilesRef, dir: &Path) -> Result<(CheckpointStore, Vec<Manifest>)> {
        files.create_dir(&dir.join(FILES))?;
        let mut manifests = Vec::new();
        for path in files.list(dir)? {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if name.ends_with(".tmp") {
                files.remove(&dir.join(&name))?;
            } else if name.starts_with(MANIFEST) {
                manifests.push(Manifest::decode(&name, &files.read(&dir.join(&name))?)?);
            }
        }
        manifests.sort_by_key(|manifest| manifest.number);
        let mut known = HashMap::default();
        for manifest in &manifests {
            for handle in manifest.files() {
                known.insert(handle.name.clone(), Known { handle: handle.clone(), used_by: manifest.barrier });
            }
        }
        for path in files.list(&dir.join(FILES))? {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if !known.contains_key(&name) {
                files.remove(&dir.join(FILES).join(name))?;
            }
        }
        Ok((
            CheckpointStore {
                files,
                dir: dir.to_path_buf(),
                known: Mutex::new(known),
                removing: Mutex::default(),
                removed: Condvar::new(),
            },
            manifests,
        ))
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
        let (bytes, checksum) = checksum_of(&source)?;
        {
            let mut removing = self.removing.lock();
            while removing.contains(&name) {
                self.removed.wait(&mut removing);
            }
        }
        // A name left by an attempt that failed is not in a manifest, nor known.
        self.files.remove(&target)?;
        self.files.hard_link(&source, &target)?;
        self.files.sync(&target)?;
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

    /// Makes `manifest` durable, and with it every checkpoint that it holds.
    pub fn write_manifest(&self, manifest: &Manifest) -> Result<()> {
        self.files.sync_dir(&self.dir.join(FILES))?;
        let name = format!("{MANIFEST}{:020}", manifest.number);
        let temporary = self.dir.join(format!("{name}.tmp"));
        self.files.write(&temporary, &manifest.encode()?)?;
        self.files.rename(&temporary, &self.dir.join(&name))?;
        self.files.sync_dir(&self.dir)
    }

    /// Removes the manifests `dropped`, and the files that none of `retained` names and that no checkpoint uses whose barrier is `under_way`.
    pub fn retire(&self, dropped: &[u64], retained: &[Manifest], under_way: &dyn Fn(BarrierNumber) -> bool) -> Result<()> {
        for number in dropped {
            self.files.remove(&self.dir.join(format!("{MANIFEST}{number:020}")))?;
        }
        if !dropped.is_empty() {
            // A manifest must be gone for good before the files that it names are.
            self.files.sync_dir(&self.dir)?;
        }
        let named: HashSet<&str> = retained.iter().flat_map(Manifest::files).map(|file| file.name.as_str()).collect();
        let unused: Vec<String> = {
            let mut known = self.known.lock();
            let unused: Vec<String> = known
                .iter()
                .filter(|(name, known)| !under_way(known.used_by) && !named.contains(name.as_str()))
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

    /// Brings the files of `part` into the new folder `into` under their local names, after checking length and content of each. Errors with `XX001` naming
    /// the file that is damaged or missing.
    pub fn fetch(&self, part: &Part, into: &Path) -> Result<()> {
        self.files.create_dir(into)?;
        for file in &part.files {
            let path = self.path(&file.name);
            if !self.files.exists(&path) {
                return Err(Error::corrupted(format!("checkpoint file \"{}\" is missing", file.name)));
            }
            let (bytes, checksum) = checksum_of(&path)?;
            if bytes != file.bytes || checksum != file.checksum {
                return Err(Error::corrupted(format!("checkpoint file \"{}\" is damaged", file.name)).with_detail(format!(
                    "It has {bytes} bytes with checksum {checksum:016x}; {} with {:016x} were written.",
                    file.bytes, file.checksum
                )));
            }
            let target = into.join(&file.local);
            if file.local.ends_with(".sst") {
                self.files.hard_link(&path, &target)?;
            } else {
                // A backend may write on in such a file: it gets its own copy.
                std::fs::copy(&path, &target).map_err(|e| Error::io(format!("copy \"{}\"", path.display()), &e))?;
            }
        }
        Ok(())
    }

    /// The length of all files in the store, bytes.
    pub fn total_bytes(&self) -> u64 {
        self.known.lock().values().map(|known| known.handle.bytes).sum()
    }
}

/// Length and XXH3-64 of a file, read piece by piece.
fn checksum_of(path: &Path) -> Result<(u64, u64)> {
    use std::io::Read;
    let failed = |e: std::io::Error| Error::io(format!("read \"{}\"", path.display()), &e);
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let mut hasher = Xxh3::new();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let read = file.read(&mut buffer).map_err(failed)?;
        if read == 0 {
            return Ok((bytes, hasher.digest()));
        }
        hasher.update(&buffer[..read]);
        bytes += read as u64;
    }
}
