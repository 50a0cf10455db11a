//! What a checkpoint store stands on: a place for files that never change, and for the manifests that name them.
//!
//! | | [`FolderStorage`] | [`ObjectStorage`] |
//! | --- | --- | --- |
//! | a file is stored by | a hard link and an fsync | an upload |
//! | a manifest is durable by | a rename and an fsync of the folder | one PUT that the store refuses where there is an object of that name |
//! | alone by | the lock of the data folder | the same PUT: see `objects` |
//! | numbers of manifests | grow | follow one another without a gap |
//!
//! What the checkpoints mean, which are kept and what is removed when is the store's business: [`super::store`].

mod folder;
mod object_files;
mod objects;

use std::fmt::Debug;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::time::Duration;

use weir_catalog::{Error, Result};
use xxhash_rust::xxh3::Xxh3;

pub use folder::FolderStorage;
pub use object_files::{FilesOf, ObjectFiles};
pub use objects::{ObjectStorage, Writer};

use super::manifest::FileHandle;
use crate::seams::files::FilesRef;

/// The name of the manifest with this number.
pub fn manifest_name(number: u64) -> String {
    format!("{MANIFEST}{number:020}")
}

/// The number in the name of a manifest.
fn manifest_number(name: &str) -> Option<u64> {
    name.strip_prefix(MANIFEST)?.parse().ok()
}

const MANIFEST: &str = "MANIFEST-";
/// The folder of the files.
const FILES: &str = "files";

/// What a storage holds under the number of a manifest.
#[derive(Debug)]
pub struct Slot {
    pub number: u64,
    /// `None` where a start only took the number, to be alone.
    pub manifest: Option<Result<Vec<u8>>>,
}

/// A file to be stored.
#[derive(Clone, Debug)]
pub struct NewFile {
    /// The name that the state backend knows it by, in the folder that it is taken from.
    pub local: String,
    /// The name in the storage.
    pub name: String,
}

/// What became of the commit of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// It is durable.
    Durable,
    /// An attempt before, which seemed to have failed, has this number: the next number is to be tried.
    NumberUsed,
}

/// Files and manifests, somewhere. All calls wait for disk or network, and are made on threads for that.
pub trait Storage: Send + Sync + Debug {
    /// How messages call it.
    fn place(&self) -> String;
    /// Everything that manifests' numbers stand for, sorted.
    fn slots(&self) -> Result<Vec<Slot>>;
    /// Makes this process the only one that commits here from now on. `last` is the highest number that there is; returns the one after the claim's own.
    ///
    /// Errors: `55006` where another has come in between.
    fn claim(&self, last: u64) -> Result<u64>;
    /// The names of all files.
    fn files(&self) -> Result<Vec<String>>;
    /// Whether numbers of manifests must follow one another.
    fn has_consecutive_numbers(&self) -> bool;
    /// Stores files of the folder `from`; returns a handle for each. They count as durable when [`Storage::commit`] has returned.
    fn put(&self, from: &Path, files: &[NewFile]) -> Result<Vec<FileHandle>>;
    /// Whether what was stored before is still there: the manifest with the number `last`.
    fn is_intact(&self, last: u64) -> Result<bool>;
    /// Makes a manifest durable under `number`, and every file stored before it. After an error it may have become durable all the same.
    ///
    /// Errors: `55006` where another process has taken the storage over.
    fn commit(&self, number: u64, manifest: &[u8]) -> Result<Committed>;
    /// Removes manifests for good, and what else stands under their numbers.
    fn remove_manifests(&self, numbers: &[u64]) -> Result<()>;
    /// Removes files; no error for those that are not there.
    fn remove_files(&self, names: &[String]) -> Result<()>;
    /// Whether a file may be stored again under the name of one whose removal is under way or failed: not where the removal could still come.
    fn can_reuse_names(&self) -> bool;
    /// Brings files into the folder `into`, which is there, under their local names; each is checked. Errors with `XX001` naming one that is damaged or missing.
    fn fetch(&self, files: &[FileHandle], into: &Path) -> Result<()>;
    /// Makes files of the storage under their names in the folder `into`, outside of it: other names of them, or copies. Of them nothing is durable.
    fn link(&self, files: &[FileHandle], into: &Path) -> Result<()>;
    /// The content of a file, checked. Errors as [`Storage::fetch`].
    fn read(&self, file: &FileHandle) -> Result<Vec<u8>>;
    /// How long a call may take that waits for others.
    fn set_timeout(&self, timeout: Duration);
    /// Ends calls that wait for others, those under way and those to come.
    fn stop(&self);
}

/// Length and XXH3-64 of a file, read piece by piece.
pub(super) fn checksum_of(files: &FilesRef, path: &Path) -> Result<(u64, u64)> {
    let mut reader = files.reader(path)?;
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

/// What can be done about a checkpoint that can't be restored.
pub const OLDER_HINT: &str = "To go on from an older checkpoint, start the server with --from-checkpoint and its number.";
/// What can be done about a file of one that is damaged.
pub(super) const DAMAGED_HINT: &str = "RECOVER JOB ... FROM CHECKPOINT has a job go on from an older one: SHOW CHECKPOINTS tells those that are retained. Where the server can't start, --from-checkpoint and its number do that for all jobs.";

fn missing(file: &FileHandle) -> Error {
    Error::corrupted(format!("checkpoint file \"{}\" is missing", file.name)).with_hint(DAMAGED_HINT)
}

fn damaged(file: &FileHandle, bytes: u64, checksum: u64) -> Error {
    Error::corrupted(format!("checkpoint file \"{}\" is damaged", file.name))
        .with_detail(format!(
            "It has {bytes} bytes with checksum {checksum:016x}; {} with {:016x} were written.",
            file.bytes, file.checksum
        ))
        .with_hint(DAMAGED_HINT)
}
