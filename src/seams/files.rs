//! Files that must survive. Everything durable that weir itself writes (engine log, checkpoints) goes through [`Files`]; files that RocksDB wrote
//! count as durable only once [`Files::sync`] has named them.

mod local;
mod lossy;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_catalog::Result;

pub use local::{LocalFiles, not_regular, open_regular};
pub use lossy::LossyFiles;

/// A file open for appending.
pub trait AppendFile: Send + Debug {
    /// Adds `bytes` at the end.
    fn append(&mut self, bytes: &[u8]) -> Result<()>;
    /// Returns once everything appended is durable (fdatasync).
    fn sync(&mut self) -> Result<()>;
    /// Cuts the file to `len` bytes and makes that durable.
    fn truncate(&mut self, len: u64) -> Result<()>;
}

/// The file system below the data folder. Errors are `53100` for a full disk and `58030` for everything else, and name the path.
pub trait Files: Send + Sync + Debug {
    /// Opens `path` for appending, made if it does not exist. The entry in its folder is durable only after [`Files::sync_dir`].
    fn append(&self, path: &Path) -> Result<Box<dyn AppendFile>>;
    /// Writes a whole new file, in place of one that has the name, and syncs its content (not its folder).
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()>;
    /// The whole content; an error where it does not exist.
    fn read(&self, path: &Path) -> Result<Vec<u8>>;
    /// The content, piece by piece, for files of any length.
    fn reader(&self, path: &Path) -> Result<Box<dyn Read + Send>>;
    /// Whether `path` exists.
    fn exists(&self, path: &Path) -> bool;
    /// The length in bytes.
    fn len(&self, path: &Path) -> Result<u64>;
    /// Makes the content of a file that someone else wrote (RocksDB) durable.
    fn sync(&self, path: &Path) -> Result<()>;
    /// Makes the entries of a folder durable: files made, renamed, linked or removed in it.
    fn sync_dir(&self, dir: &Path) -> Result<()>;
    /// Renames, replacing `to`.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// Makes `to` another name of the file `from`; copies it where the file system can't.
    fn hard_link(&self, from: &Path, to: &Path) -> Result<()>;
    /// Copies the content of `from` into the new file `to`, of which nothing is durable before [`Files::sync`].
    fn copy(&self, from: &Path, to: &Path) -> Result<()>;
    /// Removes a file; no error where there is none.
    fn remove(&self, path: &Path) -> Result<()>;
    /// Makes a folder and its parents; the entries of those that were missing are durable.
    fn create_dir(&self, dir: &Path) -> Result<()>;
    /// Removes a folder and what is in it; no error where there is none.
    fn remove_dir(&self, dir: &Path) -> Result<()>;
    /// The names in a folder, sorted; empty where the folder does not exist.
    fn list(&self, dir: &Path) -> Result<Vec<PathBuf>>;
}

/// A [`Files`] to share.
pub type FilesRef = Arc<dyn Files>;
