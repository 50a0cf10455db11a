//! Checkpoints in a folder of the file system that the data folder is on.
//!
//! ```text
//! MANIFEST-<number>    written under another name, fsynced and renamed
//! files/<name>         hard links of the images' files
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_catalog::Result;
use xxhash_rust::xxh3::xxh3_64;

use super::{Committed, FILES, NewFile, Slot, Storage, checksum_of, damaged, manifest_name, manifest_number, missing};
use crate::checkpoint::manifest::FileHandle;
use crate::seams::faults::{self, Fault};
use crate::seams::files::FilesRef;
use crate::state::rocks::never_changes;

/// A [`Storage`] in a folder.
#[derive(Debug)]
pub struct FolderStorage {
    files: FilesRef,
    dir: PathBuf,
}

impl FolderStorage {
    /// In `dir`, made if need be.
    pub fn open(files: FilesRef, dir: &Path) -> Result<FolderStorage> {
        files.create_dir(&dir.join(FILES))?;
        Ok(FolderStorage { files, dir: dir.to_path_buf() })
    }

    /// Whether `dir` holds any checkpoint.
    pub fn is_used(files: &FilesRef, dir: &Path) -> Result<bool> {
        Ok(files.list(dir)?.iter().any(|name| name.to_str().and_then(manifest_number).is_some()))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(FILES).join(name)
    }

    fn names(&self, dir: &Path) -> Result<Vec<String>> {
        let names = self.files.list(dir)?;
        Ok(names.into_iter().map(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()).collect())
    }
}

impl Storage for FolderStorage {
    fn place(&self) -> String {
        self.dir.display().to_string()
    }

    fn slots(&self) -> Result<Vec<Slot>> {
        let mut slots = Vec::new();
        for name in self.names(&self.dir)? {
            if name.ends_with(".tmp") {
                self.files.remove(&self.dir.join(&name))?;
            } else if let Some(number) = manifest_number(&name) {
                slots.push(Slot { number, manifest: Some(self.files.read(&self.dir.join(manifest_name(number)))) });
            }
        }
        // The process before may have died between the renaming of a manifest, or its removal, and the fsync: what follows relies on both.
        self.files.sync_dir(&self.dir)?;
        slots.sort_by_key(|slot| slot.number);
        Ok(slots)
    }

    fn claim(&self, last: u64) -> Result<u64> {
        Ok(last)
    }

    fn files(&self) -> Result<Vec<String>> {
        self.names(&self.dir.join(FILES))
    }

    fn has_consecutive_numbers(&self) -> bool {
        false
    }

    fn put(&self, from: &Path, files: &[NewFile]) -> Result<Vec<FileHandle>> {
        let mut handles = Vec::with_capacity(files.len());
        for NewFile { local, name } in files {
            let (source, target) = (from.join(local), self.path(name));
            let (bytes, checksum) = checksum_of(&self.files, &source)?;
            // A name left by an attempt that failed is not in a manifest, nor known.
            self.files.remove(&target)?;
            self.files.hard_link(&source, &target)?;
            if !faults::is_planted(Fault::CheckpointFileNotSynced) {
                self.files.sync(&target)?;
            }
            handles.push(FileHandle { name: name.clone(), local: local.clone(), bytes, checksum });
        }
        Ok(handles)
    }

    fn is_intact(&self, _last: u64) -> Result<bool> {
        Ok(true)
    }

    fn commit(&self, number: u64, manifest: &[u8]) -> Result<Committed> {
        self.files.sync_dir(&self.dir.join(FILES))?;
        let name = manifest_name(number);
        let temporary = self.dir.join(format!("{name}.tmp"));
        let placed = self.files.write(&temporary, manifest).and_then(|()| self.files.rename(&temporary, &self.dir.join(&name)));
        if let Err(error) = placed {
            // On a full disk its bytes are worth having; where it can't be removed either, the next start does it.
            let _ = self.files.remove(&temporary);
            return Err(error);
        }
        self.files.sync_dir(&self.dir)?;
        Ok(Committed::Durable)
    }

    fn remove_manifests(&self, numbers: &[u64]) -> Result<()> {
        for number in numbers {
            self.files.remove(&self.dir.join(manifest_name(*number)))?;
        }
        self.files.sync_dir(&self.dir)
    }

    fn remove_files(&self, names: &[String]) -> Result<()> {
        let mut result = Ok(());
        for name in names {
            result = result.and(self.files.remove(&self.path(name)));
        }
        result
    }

    fn can_reuse_names(&self) -> bool {
        true
    }

    fn fetch(&self, files: &[FileHandle], into: &Path) -> Result<()> {
        for file in files {
            let path = self.path(&file.name);
            if !self.files.exists(&path) {
                return Err(missing(file));
            }
            let (bytes, checksum) = checksum_of(&self.files, &path)?;
            if (bytes != file.bytes || checksum != file.checksum) && !faults::is_planted(Fault::ChecksumNotVerified) {
                return Err(damaged(file, bytes, checksum));
            }
            let target = into.join(&file.local);
            if never_changes(&file.local) {
                self.files.hard_link(&path, &target)?;
            } else {
                // A backend may write on in such a file: it gets its own copy.
                self.files.copy(&path, &target)?;
            }
        }
        Ok(())
    }

    fn link(&self, files: &[FileHandle], into: &Path) -> Result<()> {
        files.iter().try_for_each(|file| self.files.hard_link(&self.path(&file.name), &into.join(&file.name)))
    }

    fn read(&self, file: &FileHandle) -> Result<Vec<u8>> {
        let path = self.path(&file.name);
        if !self.files.exists(&path) {
            return Err(missing(file));
        }
        let bytes = self.files.read(&path)?;
        let (length, checksum) = (bytes.len() as u64, xxh3_64(&bytes));
        if length != file.bytes || checksum != file.checksum {
            return Err(damaged(file, length, checksum));
        }
        Ok(bytes)
    }

    fn set_timeout(&self, _timeout: Duration) {}

    fn stop(&self) {}
}
