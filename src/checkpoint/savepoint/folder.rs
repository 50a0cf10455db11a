//! Savepoints in folders.
//!
//! # Invariants
//! - Whoever makes or removes a savepoint in a folder holds the folder's lock meanwhile, so that of several, in whatever processes, one does and the others
//!   change nothing. The lock goes with its process. A file system that has no such locks can't keep processes apart.
//! - The files of a savepoint are never there without its metadata, under the one name or the other: where both are missing somebody has removed it.

use std::collections::BTreeMap;
use std::fs::{File, Metadata, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use weir_catalog::{Error, Result, SqlState};

use super::{ENDING, FILES, METADATA, Savepoint, UNFINISHED, damaged, exists_in, in_use, missing, none_in};
use crate::checkpoint::storage::checksum_of;
use crate::checkpoint::{CheckpointStore, FileHandle, Part};
use crate::seams::files::FilesRef;

/// How often a folder is locked that somebody removes at the same moment.
const ATTEMPTS: usize = 10;

/// Makes `savepoint` in the new folder `folder`, durably, of files of `store`, which must keep them meanwhile.
///
/// Errors: `42710` where there is a savepoint in it, `55006` where somebody else makes one or removes it, `58030` where it has other things, `53100` for a full
/// disk. After an error there is no savepoint of this call, and what others have made is as it was.
pub fn write(files: &FilesRef, store: &CheckpointStore, folder: &Path, savepoint: &Savepoint) -> Result<()> {
    let _lock = make_locked(files, folder)?;
    if files.exists(&folder.join(METADATA)) {
        return Err(exists_in(folder.display()));
    }
    let is_begun = files.exists(&folder.join(UNFINISHED));
    let is_ours = |path: &PathBuf| {
        let name = path.file_name();
        name.is_some_and(|name| name == UNFINISHED || name == ENDING || (name == FILES && is_begun))
    };
    if let Some(other) = files.list(folder)?.iter().find(|path| !is_ours(path)) {
        return Err(Error::new(SqlState::IO_ERROR, format!("folder \"{}\" is not empty", folder.display()))
            .with_detail(format!("It has \"{}\".", other.display())));
    }
    let result = write_new(files, store, folder, savepoint);
    if result.is_err() {
        // On a full disk every byte is worth having; what can't be removed is no savepoint either.
        let _ = remove_locked(files, folder);
    }
    result
}

/// Makes `folder` where it does not exist, and locks it.
fn make_locked(files: &FilesRef, folder: &Path) -> Result<File> {
    // Whoever removes it at the same time has done that at most a few times.
    for _ in 0..ATTEMPTS {
        files.create_dir(folder)?;
        if let Some(lock) = lock(folder)? {
            return Ok(lock);
        }
    }
    Err(Error::new(SqlState::IO_ERROR, format!("folder \"{}\" could not be made", folder.display())))
}

/// The lock of `folder`; `None` where there is no such folder. Errors with `55006` where somebody has it.
fn lock(folder: &Path) -> Result<Option<File>> {
    let failed = |e: std::io::Error| Error::io(format!("lock \"{}\"", folder.display()), &e);
    for _ in 0..ATTEMPTS {
        let file = match File::open(folder) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed(e)),
        };
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(in_use(folder.display()));
        }
        // It may have been removed, and made again, before it was locked.
        let locked = file.metadata().map_err(failed)?;
        match std::fs::metadata(folder) {
            Ok(present) if (present.dev(), present.ino()) == (locked.dev(), locked.ino()) => return Ok(Some(file)),
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed(e)),
        }
    }
    Err(in_use(folder.display()))
}

fn write_new(files: &FilesRef, store: &CheckpointStore, folder: &Path, savepoint: &Savepoint) -> Result<()> {
    let (own, unfinished) = (folder.join(FILES), folder.join(UNFINISHED));
    // Of one that was not completed.
    if files.exists(&own) {
        files.remove_dir(&own)?;
        files.sync_dir(folder)?;
    }
    files.write(&unfinished, &savepoint.encode()?)?;
    files.sync_dir(folder)?;
    files.create_dir(&own)?;
    let linked = savepoint.distinct_files();
    store.link(&linked, &own)?;
    linked.iter().try_for_each(|file| files.sync(&own.join(&file.name)))?;
    files.sync_dir(&own)?;
    files.rename(&unfinished, &folder.join(METADATA))?;
    files.sync_dir(folder)
}

/// The savepoint in `folder`. Errors: `42704` where there is none, `XX001` where its metadata is damaged, `0A000` where a newer version wrote it.
pub fn read(files: &FilesRef, folder: &Path) -> Result<Savepoint> {
    let path = folder.join(METADATA);
    if !files.exists(&path) {
        let half = [UNFINISHED, FILES].iter().any(|name| files.exists(&folder.join(name)));
        return Err(none_in(folder.display(), half));
    }
    Savepoint::decode(path.display(), &files.read(&path)?)
}

/// Makes the savepoint in `from`, a folder of this data folder, once more in the new folder `into`, durably: its files get other names.
pub fn copy(files: &FilesRef, from: &Path, into: &Path) -> Result<()> {
    let _lock = make_locked(files, into)?;
    let (own, unfinished) = (into.join(FILES), into.join(UNFINISHED));
    files.remove_dir(&own)?;
    files.write(&unfinished, &files.read(&from.join(METADATA))?)?;
    files.create_dir(&own)?;
    for name in files.list(&from.join(FILES))? {
        files.hard_link(&from.join(FILES).join(&name), &own.join(&name))?;
    }
    files.sync_dir(&own)?;
    files.rename(&unfinished, &into.join(METADATA))?;
    files.sync_dir(into)
}

/// Removes the savepoint in `folder`, and the folder where nothing else is in it. Once the metadata is gone it is none any more. Errors with `55006` where
/// somebody else makes one there, or removes it.
pub fn remove(files: &FilesRef, folder: &Path) -> Result<()> {
    match lock(folder)? {
        Some(_lock) => remove_locked(files, folder),
        None => Ok(()),
    }
}

fn remove_locked(files: &FilesRef, folder: &Path) -> Result<()> {
    let (metadata, unfinished, own) = (folder.join(METADATA), folder.join(UNFINISHED), folder.join(FILES));
    if files.exists(&metadata) {
        files.rename(&metadata, &unfinished)?;
        files.sync_dir(folder)?;
    }
    if files.exists(&own) {
        files.remove_dir(&own)?;
        files.sync_dir(folder)?;
    }
    files.remove(&unfinished)?;
    if files.list(folder)?.is_empty() { files.remove_dir(folder) } else { Ok(()) }
}

/// Whether the savepoint in `folder` has lost its metadata.
pub(super) fn has_lost_metadata(files: &FilesRef, folder: &Path) -> bool {
    let exists = |name: &str| files.exists(&folder.join(name));
    exists(FILES) && !exists(UNFINISHED) && !exists(METADATA)
}

/// Brings the files of `part`, of the savepoint in `folder`, into the new folder `into` under their local names, after checking length and content of
/// each. Errors with `XX001` naming the file that is damaged or missing.
pub fn fetch(files: &FilesRef, folder: &Path, part: &Part, into: &Path) -> Result<()> {
    files.create_dir(into)?;
    for file in &part.files {
        let path = verified(files, folder, file)?;
        let target = into.join(&file.local);
        if file.local.ends_with(".sst") {
            files.hard_link(&path, &target)?;
        } else {
            // A backend may write on in such a file: it gets its own copy.
            files.copy(&path, &target)?;
        }
    }
    Ok(())
}

/// The content of a file of the savepoint in `folder`, after checking it.
pub fn read_file(files: &FilesRef, folder: &Path, file: &FileHandle) -> Result<Vec<u8>> {
    files.read(&verified(files, folder, file)?)
}

fn verified(files: &FilesRef, folder: &Path, file: &FileHandle) -> Result<PathBuf> {
    let path = folder.join(FILES).join(&file.name);
    if !files.exists(&path) {
        return Err(missing(file, folder.display()));
    }
    let (bytes, checksum) = checksum_of(files, &path)?;
    if bytes != file.bytes || checksum != file.checksum {
        return Err(damaged(file, folder.display(), bytes, checksum));
    }
    Ok(path)
}

/// How many names each file has in savepoints, by device and number.
pub type Links = BTreeMap<(u64, u64), u64>;

fn metadata_of_files(folder: &Path) -> impl Iterator<Item = Metadata> {
    let entries = std::fs::read_dir(folder.join(FILES)).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok())
}

/// Counts the files of the savepoint in `folder`.
pub fn count_links(folder: &Path, links: &mut Links) {
    for file in metadata_of_files(folder) {
        *links.entry((file.dev(), file.ino())).or_default() += 1;
    }
}

/// The bytes of files of the savepoint in `folder` that nothing but savepoints keeps on the disk, of which `links` has all that are known.
pub fn pinned_bytes(folder: &Path, links: &Links) -> u64 {
    let is_pinned = |file: &Metadata| links.get(&(file.dev(), file.ino())).is_some_and(|known| file.nlink() <= *known);
    metadata_of_files(folder).filter(is_pinned).map(|file| file.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_several_savepoints_are_pinned_by_each_where_nothing_else_has_them() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for folder in ["a/files", "b/files", "store"] {
            std::fs::create_dir_all(at(folder)).unwrap();
        }
        for (name, bytes) in [("shared", 100), ("of_store", 1_000), ("alone", 10)] {
            std::fs::write(at("store").join(name), vec![0; bytes]).unwrap();
            std::fs::hard_link(at("store").join(name), at("a/files").join(name)).unwrap();
        }
        std::fs::hard_link(at("store/shared"), at("b/files/other")).unwrap();
        let pinned = || {
            let mut links = Links::new();
            ["a", "b"].iter().for_each(|folder| count_links(&at(folder), &mut links));
            ["a", "b"].map(|folder| pinned_bytes(&at(folder), &links))
        };
        assert_eq!(pinned(), [0, 0]);
        std::fs::remove_file(at("store/shared")).unwrap();
        std::fs::remove_file(at("store/alone")).unwrap();
        assert_eq!(pinned(), [110, 100]);
    }
}
