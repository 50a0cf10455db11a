//! The machine's file system.
//!
//! # Invariants
//! - What a method promises to be durable has been through `fsync` or `fdatasync`, and its result was looked at.
//! - A file is never overwritten in place: [`Files::write`] makes a new one, so that another name of the old one (a hard link) keeps its content.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_catalog::{Error, Result, SqlState};

use super::{AppendFile, Files, FilesRef};

/// [`Files`] on the machine's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalFiles;

impl LocalFiles {
    /// Shared, as the engine takes it.
    pub fn shared() -> FilesRef {
        Arc::new(LocalFiles)
    }
}

/// The error for an `action` on `path` that the operating system refused.
pub(super) fn refused(action: impl Display, path: &Path, source: &io::Error) -> Error {
    Error::io(format_args!("{action} \"{}\"", path.display()), source)
}

/// The folder that holds `path`'s entry; `.` for a bare name.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => path,
    }
}

/// `42809`: `path` is a pipe, a socket, a device or a folder.
pub fn not_regular(path: &Path) -> Error {
    Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{}\" is no regular file", path.display()))
        .with_detail("Pipes, sockets and devices are not read: their bytes can't be read again.")
}

/// Opens a file that somebody else wrote, for reading. `42809` where it is no regular file, which could be waited for without end.
pub fn open_regular(path: &Path) -> Result<File> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let is_regular = |file: &File| file.metadata().map(|metadata| metadata.is_file());
    match opened.and_then(|file| is_regular(&file).map(|is_regular| is_regular.then_some(file))) {
        Ok(Some(file)) => Ok(file),
        Ok(None) => Err(not_regular(path)),
        // A socket, or a device that nobody drives.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENXIO | libc::ENODEV)) => Err(not_regular(path)),
        Err(e) => Err(refused("open", path, &e)),
    }
}

#[derive(Debug)]
struct LocalAppendFile {
    path: PathBuf,
    file: File,
}

impl AppendFile for LocalAppendFile {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|e| refused("write", &self.path, &e))
    }

    fn sync(&mut self) -> Result<()> {
        self.file.sync_data().map_err(|e| refused("fsync", &self.path, &e))
    }

    fn truncate(&mut self, len: u64) -> Result<()> {
        self.file.set_len(len).map_err(|e| refused("truncate", &self.path, &e))?;
        self.file.sync_all().map_err(|e| refused("fsync", &self.path, &e))
    }
}

impl Files for LocalFiles {
    fn append(&self, path: &Path) -> Result<Box<dyn AppendFile>> {
        let file = OpenOptions::new().append(true).create(true).open(path).map_err(|e| refused("open", path, &e))?;
        Ok(Box::new(LocalAppendFile { path: path.to_path_buf(), file }))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        self.remove(path)?;
        let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(|e| refused("create", path, &e))?;
        file.write_all(bytes).map_err(|e| refused("write", path, &e))?;
        file.sync_all().map_err(|e| refused("fsync", path, &e))
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        fs::read(path).map_err(|e| refused("read", path, &e))
    }

    fn reader(&self, path: &Path) -> Result<Box<dyn Read + Send>> {
        Ok(Box::new(File::open(path).map_err(|e| refused("open", path, &e))?))
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn len(&self, path: &Path) -> Result<u64> {
        fs::metadata(path).map(|metadata| metadata.len()).map_err(|e| refused("stat", path, &e))
    }

    fn sync(&self, path: &Path) -> Result<()> {
        File::open(path).and_then(|file| file.sync_all()).map_err(|e| refused("fsync", path, &e))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        File::open(dir).and_then(|file| file.sync_all()).map_err(|e| refused("fsync", dir, &e))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        fs::rename(from, to).map_err(|e| refused(format_args!("rename to \"{}\" the file", to.display()), from, &e))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        match fs::hard_link(from, to) {
            Ok(()) => Ok(()),
            // Another file system, too many names, or a file system without hard links: every other cause would stop a copy too.
            Err(e) if !matches!(e.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists | ErrorKind::StorageFull) => {
                fs::copy(from, to).map(drop).map_err(|e| refused(format_args!("copy to \"{}\" the file", to.display()), from, &e))
            }
            Err(e) => Err(refused(format_args!("link to \"{}\" the file", to.display()), from, &e)),
        }
    }

    fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        let failed = |e: io::Error| refused(format_args!("copy to \"{}\" the file", to.display()), from, &e);
        let mut source = File::open(from).map_err(failed)?;
        let mut target = OpenOptions::new().write(true).create_new(true).open(to).map_err(failed)?;
        io::copy(&mut source, &mut target).map(drop).map_err(failed)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        match fs::remove_file(path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(refused("remove", path, &e)),
            _ => Ok(()),
        }
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        let mut missing = Vec::new();
        let mut at = dir;
        while !at.is_dir() {
            missing.push(at);
            let above = parent(at);
            if above == at {
                break;
            }
            at = above;
        }
        for dir in missing.into_iter().rev() {
            match fs::create_dir(dir) {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(refused("create folder", dir, &e)),
                _ => self.sync_dir(parent(dir))?,
            }
        }
        Ok(())
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        match fs::remove_dir_all(dir) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(refused("remove folder", dir, &e)),
            _ => Ok(()),
        }
    }

    fn list(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        let entries = match fs::read_dir(dir) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|e| refused("list", dir, &e))?,
        };
        let mut names = entries
            .map(|entry| entry.map(|entry| PathBuf::from(entry.file_name())))
            .collect::<io::Result<Vec<_>>>()
            .map_err(|e| refused("list", dir, &e))?;
        names.sort();
        Ok(names)
    }
}
