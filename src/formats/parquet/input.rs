//! The bytes of Parquet files, and what protects from them: they come from outside, and may be anything.
//!
//! # Invariants
//! - Nothing is read, and no memory taken, beyond a file's end, whatever its footer says.
//! - An error of the disk comes out as it was; everything else that is wrong with a file is `22000`, with its name, also where the crate that reads it panics.

use std::any::Any;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use weir_catalog::{Error, Result, SqlState};

use crate::seams::files::open_regular;

/// `22000`: the file at `path` is not what it should be.
pub(super) fn refused(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::new(SqlState::DATA_EXCEPTION, format!("parquet file \"{}\" can't be read", path.display())).with_detail(why.to_string())
}

fn panicked(path: &Path, panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    refused(path, format_args!("Its content is damaged: {}.", text.unwrap_or("it makes no sense").trim_end_matches('.')))
}

/// What `read` makes of the file at `path`, which it gets by an input that says in `failure` what the disk did.
pub(super) fn guarded<T>(path: &Path, failure: &ReadFailure, read: impl FnOnce() -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(read)) => Ok(read),
        Ok(Err(error)) => Err(failure.take().unwrap_or(error)),
        Err(panic) => Err(failure.take().unwrap_or_else(|| panicked(path, panic.as_ref()))),
    }
}

/// What the disk said last, where it would not give a file's bytes: on its way through the crate that reads Parquet that becomes a text.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadFailure(Arc<Mutex<Option<Error>>>);

impl ReadFailure {
    fn take(&self) -> Option<Error> {
        self.0.lock().take()
    }
}

/// A file of this machine.
#[derive(Clone, Debug)]
pub(super) struct LocalFile {
    path: Arc<PathBuf>,
    file: Arc<File>,
    bytes: u64,
    failure: ReadFailure,
}

impl LocalFile {
    /// Opens the file at `path`. `42809` where that is no regular one.
    pub(super) fn open(path: &Path) -> Result<LocalFile> {
        let file = open_regular(path)?;
        let bytes = file.metadata().map_err(|e| Error::io(format!("read \"{}\"", path.display()), &e))?.len();
        Ok(LocalFile { path: Arc::new(path.to_path_buf()), file: Arc::new(file), bytes, failure: ReadFailure::default() })
    }

    pub(super) fn failure(&self) -> ReadFailure {
        self.failure.clone()
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        loop {
            match self.file.read_at(buffer, at) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => {
                    *self.failure.0.lock() = Some(Error::io(format!("read \"{}\"", self.path.display()), &e));
                    return Err(e);
                }
                read => return read,
            }
        }
    }
}

impl Length for LocalFile {
    fn len(&self) -> u64 {
        self.bytes
    }
}

/// A file of this machine from some byte on.
pub(super) struct LocalRead {
    file: LocalFile,
    at: u64,
}

impl Read for LocalRead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl ChunkReader for LocalFile {
    type T = BufReader<LocalRead>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        if start > self.bytes {
            return Err(ParquetError::EOF(format!("byte {start} lies behind its end")));
        }
        Ok(BufReader::new(LocalRead { file: self.clone(), at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.bytes) {
            return Err(ParquetError::EOF(format!("{length} bytes from {start} on go beyond its end")));
        }
        let mut buffer = vec![0; length];
        let mut read = 0;
        while read < length {
            match self.read_at(&mut buffer[read..], start + read as u64)? {
                0 => return Err(ParquetError::EOF(format!("{length} bytes from {start} on are not there any more"))),
                more => read += more,
            }
        }
        Ok(buffer.into())
    }
}

/// Parts of a file, in memory.
#[derive(Clone, Debug)]
pub struct FileParts {
    file_bytes: u64,
    /// Each with where it begins, sorted.
    parts: Arc<Vec<(u64, Bytes)>>,
}

impl FileParts {
    /// `parts` of a file of `file_bytes`, each with where it begins, sorted.
    pub fn new(file_bytes: u64, parts: Vec<(u64, Bytes)>) -> FileParts {
        FileParts { file_bytes, parts: Arc::new(parts) }
    }

    /// The memory that it takes, bytes.
    pub fn memory_bytes(&self) -> usize {
        self.parts.iter().map(|(_, part)| part.len()).sum()
    }

    /// How long the footer is that ends the file: its length and the format's name are the last eight bytes.
    pub fn footer_bytes(&self) -> Option<u64> {
        let (_, end) = self.parts.last()?;
        let tail = end.get(end.len().checked_sub(8)?..)?;
        let length = tail.strip_suffix(b"PAR1")?;
        Some(u64::from(u32::from_le_bytes(length.try_into().ok()?)) + 8)
    }

    /// What is there from `start` on.
    fn rest(&self, start: u64) -> Result<Bytes, ParquetError> {
        let at = self.parts.partition_point(|(from, _)| *from <= start);
        let part = at.checked_sub(1).and_then(|at| self.parts.get(at));
        let found = part.filter(|(from, part)| start - from <= part.len() as u64).map(|(from, part)| part.slice((start - from) as usize..));
        found.ok_or_else(|| ParquetError::EOF(format!("byte {start} is in no part that was read")))
    }
}

impl Length for FileParts {
    fn len(&self) -> u64 {
        self.file_bytes
    }
}

impl ChunkReader for FileParts {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(self.rest(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let rest = self.rest(start)?;
        if rest.len() < length {
            return Err(ParquetError::EOF(format!("{length} bytes from {start} on are in no part that was read")));
        }
        Ok(rest.slice(..length))
    }
}
