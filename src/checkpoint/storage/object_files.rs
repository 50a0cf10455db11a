//! The files of checkpoints, or of a savepoint, below a prefix of an object store: `<prefix>/files/<name>`.

use std::io::Read;
use std::path::Path;

use weir_catalog::{Error, Result, SqlState};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::{DAMAGED_HINT, FILES, NewFile, damaged, missing};
use crate::checkpoint::manifest::FileHandle;
use crate::checkpoint::savepoint;
use crate::seams::faults::{self, Fault};
use crate::seams::files::{AppendFile, FilesRef};
use crate::seams::objects::{CHUNK_BYTES, ObjectUrl, Objects, Range};

/// How many files are removed with one request.
const REMOVED_AT_ONCE: usize = 1000;

/// What files are of, for what is said of one that is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesOf {
    Checkpoint,
    Savepoint,
}

/// Files that never change, in an object store.
#[derive(Clone, Debug)]
pub struct ObjectFiles {
    /// Of this machine.
    local: FilesRef,
    objects: Objects,
    url: ObjectUrl,
    of: FilesOf,
}

/// Counts and hashes what is read.
struct Measured<R> {
    inner: R,
    hasher: Xxh3,
    bytes: u64,
}

impl<R: Read> Read for Measured<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        self.bytes += read as u64;
        Ok(read)
    }
}

impl ObjectFiles {
    /// Those below `url` in the bucket `objects`; `local` are the files of this machine.
    pub fn new(local: FilesRef, objects: Objects, url: ObjectUrl, of: FilesOf) -> ObjectFiles {
        ObjectFiles { local, objects, url, of }
    }

    fn key(&self, name: &str) -> String {
        self.url.key(&format!("{FILES}/{name}"))
    }

    fn missing(&self, file: &FileHandle) -> Error {
        match self.of {
            FilesOf::Checkpoint => missing(file),
            FilesOf::Savepoint => savepoint::missing(file, &self.url),
        }
    }

    fn damaged(&self, file: &FileHandle, bytes: u64, checksum: u64) -> Error {
        match self.of {
            FilesOf::Checkpoint => damaged(file, bytes, checksum),
            FilesOf::Savepoint => savepoint::damaged(file, &self.url, bytes, checksum),
        }
    }

    /// The names of all.
    pub fn names(&self) -> Result<Vec<String>> {
        let folder = self.url.key(FILES);
        let listed = self.objects.list(&folder)?;
        Ok(listed.iter().filter_map(|object| object.key.strip_prefix(&folder)?.strip_prefix('/').map(str::to_string)).collect())
    }

    /// Stores files of the folder `from`; returns a handle for each. They are durable when this returns.
    pub fn put(&self, from: &Path, files: &[NewFile]) -> Result<Vec<FileHandle>> {
        let mut upload = self.objects.upload();
        let mut handles = Vec::with_capacity(files.len());
        for NewFile { local, name } in files {
            let mut content = Measured { inner: self.local.reader(&from.join(local))?, hasher: Xxh3::new(), bytes: 0 };
            upload.put(&self.key(name), &mut content)?;
            let (bytes, checksum) = (content.bytes, content.hasher.digest());
            handles.push(FileHandle { name: name.clone(), local: local.clone(), bytes, checksum });
        }
        upload.finish()?;
        Ok(handles)
    }

    /// Removes files; no error for those that are not there.
    pub fn remove(&self, names: &[String]) -> Result<()> {
        for names in names.chunks(REMOVED_AT_ONCE) {
            self.objects.remove(&names.iter().map(|name| self.key(name)).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Makes a new file, empty.
    fn create(&self, path: &Path) -> Result<Box<dyn AppendFile>> {
        self.local.remove(path)?;
        self.local.append(path)
    }

    /// Brings files into the folder `into`, which is there, under their local names; each is checked. Errors with `XX001` naming one that is damaged or missing.
    pub fn fetch(&self, files: &[FileHandle], into: &Path) -> Result<()> {
        let mut ranges = Vec::new();
        let mut of_file = Vec::new();
        let mut open: Vec<Option<Box<dyn AppendFile>>> = Vec::with_capacity(files.len());
        for (at, file) in files.iter().enumerate() {
            open.push(None);
            let chunk = CHUNK_BYTES as u64;
            for from in (0..file.bytes).step_by(CHUNK_BYTES) {
                let to = (from + chunk).min(file.bytes);
                ranges.push(Range { key: self.key(&file.name), from, to, object_bytes: file.bytes });
                of_file.push(at);
            }
            if file.bytes == 0 {
                // Nothing to be downloaded, but it must be there.
                if self.objects.len(&self.key(&file.name))? != Some(0) {
                    return Err(self.missing(file));
                }
                self.create(&into.join(&file.local))?;
            }
        }
        let mut hasher = Xxh3::new();
        self.objects
            .download(&ranges, |at, bytes| {
                let (range, file) = (&ranges[at], &files[of_file[at]]);
                let target = into.join(&file.local);
                if range.from == 0 {
                    hasher.reset();
                    open[of_file[at]] = Some(self.create(&target)?);
                }
                hasher.update(&bytes);
                let Some(writing) = &mut open[of_file[at]] else { return Err(Error::internal("a file is written from its middle on")) };
                writing.append(&bytes)?;
                if range.to < file.bytes {
                    return Ok(());
                }
                open[of_file[at]] = None;
                if hasher.digest() != file.checksum && !faults::is_planted(Fault::ChecksumNotVerified) {
                    return Err(self.damaged(file, file.bytes, hasher.digest()));
                }
                Ok(())
            })
            .map_err(|error| match self.of {
                FilesOf::Checkpoint if error.code() == &SqlState::DATA_CORRUPTED => error.with_hint(DAMAGED_HINT),
                _ => error,
            })
    }

    /// The content of a file, after checking it. Errors as [`ObjectFiles::fetch`].
    pub fn read(&self, file: &FileHandle) -> Result<Vec<u8>> {
        let bytes = self.objects.get(&self.key(&file.name))?.ok_or_else(|| self.missing(file))?;
        let (length, checksum) = (bytes.len() as u64, xxh3_64(&bytes));
        if length != file.bytes || checksum != file.checksum {
            return Err(self.damaged(file, length, checksum));
        }
        Ok(bytes.to_vec())
    }
}
