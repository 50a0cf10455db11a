//! Savepoints: checkpoints of one job that a user owns.
//!
//! ```text
//!   <folder>/SAVEPOINT      the metadata
//!   <folder>/files/<name>   the files that it names, as in a store of checkpoints
//! ```
//!
//! A savepoint needs nothing outside its folder: it has the state of the job's operators, and of what the job reads the rows as of its barrier. Its files
//! are other names of the files of the store (copies in another file system), so that it costs little to make, and nothing that happens to the
//! store or to other savepoints touches it.
//!
//! On disk, the metadata is as `metadata` has it, under the name `weir-savepoint`. It is written last: a folder without it is no savepoint.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_catalog::{Derivation, Error, Job, Object, Result, SqlState};
use xxhash_rust::xxh3::Xxh3;

use super::metadata;
use super::{CheckpointStore, FileHandle, JobCheckpoint, OperatorCheckpoint, Part, TablesCheckpoint};
use crate::seams::files::FilesRef;
use crate::state::descriptor::StateTexts;

/// The format that this weir writes. It reads this and every older one.
pub const FORMAT: u32 = 1;

const MAGIC: &str = "weir-savepoint";
const METADATA: &str = "SAVEPOINT";
const FILES: &str = "files";
/// In place of a savepoint that lies elsewhere: where.
const LOCATION: &str = "LOCATION";

/// A savepoint's metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Savepoint {
    pub name: String,
    /// The data folder that it is of.
    pub engine: u64,
    /// When it was made, microseconds since 1970 UTC.
    pub created_us: i64,
    /// The job as it was.
    pub job: Job,
    pub checkpoint: JobCheckpoint,
    /// Of each operator with a uid what its rows were computed from.
    pub operators: BTreeMap<String, SavedOperator>,
    /// What the job read.
    pub inputs: Vec<SavedInput>,
    /// The stored tables, where the job read one; at the commit of `checkpoint`.
    pub tables: Option<TablesCheckpoint>,
}

/// What an operator's state is of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedOperator {
    pub derivation: Derivation,
    #[serde(default)]
    pub state: StateTexts,
}

/// A table or view that the job read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedInput {
    pub object: Object,
    /// A view's rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<OperatorCheckpoint>,
}

impl Savepoint {
    /// All that it has of state.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        let operators = self.checkpoint.operators.values().chain(self.inputs.iter().filter_map(|input| input.rows.as_ref()));
        operators.flat_map(|operator| &operator.parts).chain(self.tables.iter().map(|tables| &tables.part))
    }

    /// The files that it names.
    pub fn files(&self) -> impl Iterator<Item = &FileHandle> {
        let splits = self.checkpoint.operators.values().flat_map(|operator| &operator.closed_splits);
        self.parts().flat_map(|part| &part.files).chain(splits)
    }

    /// The length of its files, bytes.
    pub fn bytes(&self) -> u64 {
        let mut named = BTreeSet::new();
        self.files().filter(|file| named.insert(file.name.as_str())).map(|file| file.bytes).sum()
    }
}

/// Makes `savepoint` in the new folder `folder`, durably, of files of `store`, which must keep them meanwhile.
///
/// Errors: `42710` where there is a savepoint in it, `58030` where it has other things, `53100` for a full disk. After an error there is no savepoint.
pub fn write(files: &FilesRef, store: &CheckpointStore, folder: &Path, savepoint: &Savepoint) -> Result<()> {
    if files.exists(&folder.join(METADATA)) {
        return Err(Error::new(SqlState::DUPLICATE_OBJECT, format!("there is a savepoint in \"{}\"", folder.display())));
    }
    let is_ours = |path: &PathBuf| path.file_name().is_some_and(|name| name == FILES || name == "SAVEPOINT.tmp");
    if let Some(other) = files.list(folder)?.iter().find(|path| !is_ours(path)) {
        return Err(Error::new(SqlState::IO_ERROR, format!("folder \"{}\" is not empty", folder.display()))
            .with_detail(format!("It has \"{}\".", other.display())));
    }
    let result = write_new(files, store, folder, savepoint);
    if result.is_err() {
        // On a full disk every byte is worth having; what can't be removed is no savepoint either.
        let _ = remove(files, folder);
    }
    result
}

fn write_new(files: &FilesRef, store: &CheckpointStore, folder: &Path, savepoint: &Savepoint) -> Result<()> {
    let own = folder.join(FILES);
    files.remove_dir(&own)?;
    files.create_dir(&own)?;
    let mut linked = BTreeSet::new();
    for file in savepoint.files().filter(|file| linked.insert(file.name.as_str())) {
        let target = own.join(&file.name);
        store.link(file, &target)?;
        files.sync(&target)?;
    }
    files.sync_dir(&own)?;
    let temporary = folder.join("SAVEPOINT.tmp");
    files.write(&temporary, &metadata::encode(MAGIC, FORMAT, savepoint)?)?;
    files.rename(&temporary, &folder.join(METADATA))?;
    files.sync_dir(folder)
}

/// The savepoint in `folder`. Errors: `42704` where there is none, `XX001` where its metadata is damaged, `0A000` where a newer version wrote it.
pub fn read(files: &FilesRef, folder: &Path) -> Result<Savepoint> {
    let path = folder.join(METADATA);
    if !files.exists(&path) {
        let error = Error::new(SqlState::UNDEFINED_OBJECT, format!("there is no savepoint in \"{}\"", folder.display()));
        let half = files.exists(&folder.join(FILES));
        return Err(if half { error.with_detail("It has files of one that was not completed.") } else { error });
    }
    metadata::decode(MAGIC, FORMAT, &format!("the savepoint in \"{}\"", folder.display()), &files.read(&path)?)
}

/// Removes the savepoint in `folder`, and the folder where nothing else is in it. Once the metadata is gone it is none any more.
pub fn remove(files: &FilesRef, folder: &Path) -> Result<()> {
    if files.exists(&folder.join(METADATA)) {
        files.remove(&folder.join(METADATA))?;
        files.sync_dir(folder)?;
    }
    files.remove(&folder.join("SAVEPOINT.tmp"))?;
    files.remove_dir(&folder.join(FILES))?;
    if files.list(folder)?.is_empty() { files.remove_dir(folder) } else { Ok(()) }
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
        return Err(Error::corrupted(format!("file \"{}\" of the savepoint in \"{}\" is missing", file.name, folder.display())));
    }
    let (bytes, checksum) = checksum_of(files, &path)?;
    if bytes != file.bytes || checksum != file.checksum {
        return Err(Error::corrupted(format!("file \"{}\" of the savepoint in \"{}\" is damaged", file.name, folder.display()))
            .with_detail(format!(
                "It has {bytes} bytes with checksum {checksum:016x}; {} with {:016x} were written.",
                file.bytes, file.checksum
            )));
    }
    Ok(path)
}

fn checksum_of(files: &FilesRef, path: &Path) -> Result<(u64, u64)> {
    let mut reader = files.reader(path)?;
    let mut hasher = Xxh3::new();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        match reader.read(&mut buffer) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::io(format!("read \"{}\"", path.display()), &e)),
            Ok(0) => return Ok((bytes, hasher.digest())),
            Ok(read) => {
                hasher.update(&buffer[..read]);
                bytes += read as u64;
            }
        }
    }
}

/// The bytes of files that nothing but the savepoint in `folder` keeps on the disk.
pub fn pinned_bytes(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(folder.join(FILES)).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).filter(|file| file.nlink() == 1).map(|file| file.len()).sum()
}

/// The savepoints of a data folder, by name: each in a folder of its own, or with a note where it is.
#[derive(Clone, Debug)]
pub struct Savepoints {
    files: FilesRef,
    root: PathBuf,
}

impl Savepoints {
    /// Those in `root`. What is left of ones that were not completed is removed.
    pub fn open(files: FilesRef, root: PathBuf) -> Result<Savepoints> {
        for folder in files.list(&root)? {
            if !files.exists(&folder.join(METADATA)) && !files.exists(&folder.join(LOCATION)) {
                files.remove_dir(&folder)?;
            }
        }
        Ok(Savepoints { files, root })
    }

    fn entry(&self, name: &str) -> PathBuf {
        self.root.join(folder_name(name))
    }

    /// The folder of the savepoint `name`; `None` where there is none of this name.
    pub fn folder(&self, name: &str) -> Result<Option<PathBuf>> {
        let entry = self.entry(name);
        if self.files.exists(&entry.join(METADATA)) {
            return Ok(Some(entry));
        }
        let note = entry.join(LOCATION);
        if !self.files.exists(&note) {
            return Ok(None);
        }
        let text = String::from_utf8(self.files.read(&note)?);
        text.map(|text| Some(PathBuf::from(text))).map_err(|_| Error::corrupted(format!("\"{}\" is damaged", note.display())))
    }

    /// Makes a savepoint of this data folder, in `location` where that is given.
    pub fn write(&self, store: &CheckpointStore, savepoint: &Savepoint, location: Option<&Path>) -> Result<()> {
        let entry = self.entry(&savepoint.name);
        self.files.create_dir(&self.root)?;
        let Some(location) = location else {
            write(&self.files, store, &entry, savepoint)?;
            return self.files.sync_dir(&self.root);
        };
        write(&self.files, store, location, savepoint)?;
        self.files.create_dir(&entry)?;
        let temporary = entry.join("LOCATION.tmp");
        self.files.write(&temporary, location.as_os_str().as_encoded_bytes())?;
        self.files.rename(&temporary, &entry.join(LOCATION))?;
        self.files.sync_dir(&entry)?;
        self.files.sync_dir(&self.root)
    }

    /// Removes the savepoint `name`, wherever it is; false where there is none.
    pub fn remove(&self, name: &str) -> Result<bool> {
        let Some(folder) = self.folder(name)? else { return Ok(false) };
        remove(&self.files, &folder)?;
        self.files.remove_dir(&self.entry(name))?;
        self.files.sync_dir(&self.root)?;
        Ok(true)
    }

    /// All, by name, each with its folder.
    pub fn list(&self) -> Result<Vec<(String, PathBuf)>> {
        let mut found = Vec::new();
        for entry in self.files.list(&self.root)? {
            let name = entry.file_name().and_then(|name| name.to_str()).and_then(name_of_folder);
            if let Some(name) = name
                && let Some(folder) = self.folder(&name)?
            {
                found.push((name, folder));
            }
        }
        found.sort();
        Ok(found)
    }
}

/// A name as that of a folder: what a file system might take amiss is written as `%` and two hex digits.
fn folder_name(name: &str) -> String {
    let mut folder = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-' {
            folder.push(char::from(byte));
        } else {
            folder.push_str(&format!("%{byte:02x}"));
        }
    }
    folder
}

fn name_of_folder(folder: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = folder.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_that_of_a_folder() {
        for name in ["before", "Before It", "a/b", "..", "ü%2f", "", "x.tmp"] {
            let folder = folder_name(name);
            assert!(!folder.contains(['/', '.']), "{folder}");
            assert_eq!(name_of_folder(&folder).as_deref(), Some(name));
        }
        assert_eq!(name_of_folder("%zz"), None);
    }
}
