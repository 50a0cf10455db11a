//! What is remembered: backends, the shapes of state on them, the key codec.
//!
//! Keys in a backend are `key group (2 bytes, big-endian) + state tag (1 byte) + encoded key`, so that a key group is one range.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_catalog::Result;

use crate::stream::KeyGroupRange;

pub mod convert;
pub mod descriptor;
pub mod difference;
pub mod groups;
pub mod key_codec;
pub mod key_filter;
pub mod memory;
pub mod memory_pool;
mod overlay;
pub mod recent;
pub mod rocks;
pub mod row_codec;
mod run_file;
pub mod scratch;
#[cfg(test)]
mod tests;
pub mod versions;
pub mod writes;

pub use descriptor::StateDescriptor;
pub use key_codec::{EncodedRows, KeyCodec};
pub use memory::MemoryBackend;
pub use recent::{RecentBackend, RecentMemory};
pub use rocks::{RocksBackend, SharedRocks};
pub use row_codec::RowCodec;
pub use versions::{VersionSnapshot, VersionedStore, Versions};
pub use writes::Writes;

/// Where keyed state is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateBackendKind {
    RocksDb,
    Memory,
}

impl StateBackendKind {
    /// Its name as the setting `state_backend` has it.
    pub fn name(self) -> &'static str {
        match self {
            StateBackendKind::RocksDb => "rocksdb",
            StateBackendKind::Memory => "memory",
        }
    }
}

/// What a keyed state backend can do for its one owner.
///
/// Two implementations: RocksDB, and an in-memory one that is its oracle in tests and can be chosen by setting. Both keep keys in byte order.
pub trait StateBackend: Send {
    /// Which one it is: only the same kind can read its checkpoints.
    fn kind(&self) -> StateBackendKind;
    /// Looks up `keys`, which are sorted and distinct. `found(i, value)` is called once for each key that exists.
    fn multi_get(&self, keys: &[&[u8]], found: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()>;
    /// Writes `writes`, sorted by key, at most one a key.
    fn write(&mut self, writes: &Writes) -> Result<()>;
    /// Writes any number of entries at once: `next` fills an empty chunk with the next of them, in key order and at most one a key over all chunks, and
    /// returns false when there are none left. As one write it costs later reads less than a write for each chunk.
    fn write_all(&mut self, next: &mut dyn FnMut(&mut Writes) -> Result<bool>) -> Result<()>;
    /// Calls `each(key, value)` for keys in `from..to` in order until it returns false. An empty `to` means no upper bound.
    fn scan(&self, from: &[u8], to: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()>;
    /// The present content, shared and read-only, not touched by later writes.
    fn snapshot(&self) -> Result<Arc<dyn StateSnapshot>>;
    /// Makes a consistent image of the present content in the new folder `dir` (RocksDB: hard links). Returns the files of it that
    /// hold data, by name relative to `dir`. Nothing is fsynced.
    fn checkpoint(&mut self, dir: &Path) -> Result<Vec<String>>;
    /// About how many rows and bytes it holds.
    fn estimate(&self) -> StateSize;
    /// Whether the content may differ from that of the last checkpoint: that made by [`StateBackend::checkpoint`], or the one that the
    /// backend was restored from as it was. True where there is none.
    fn changed_since_checkpoint(&self) -> bool;
    /// About how many bytes a checkpoint of it would have.
    fn content_size(&self) -> u64 {
        self.estimate().bytes
    }
}

/// The files of one former subtask's checkpoint, to restore from.
#[derive(Clone, Debug)]
pub struct RestorePart {
    /// A folder with the files under the names that [`StateBackend::checkpoint`] returned. It is read, and its files may be hard-linked;
    /// nothing in it is changed.
    pub dir: PathBuf,
    /// The key groups that the former subtask owned.
    pub range: KeyGroupRange,
}

/// About how large a state is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StateSize {
    pub rows: u64,
    pub bytes: u64,
}

/// A state's content at one moment, for any number of readers on any thread.
pub trait StateSnapshot: Send + Sync {
    /// The value of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;
    /// The entries with keys in `from..to`, in order; an empty `to` means no upper bound.
    fn iter<'a>(&'a self, from: &[u8], to: &[u8]) -> Box<dyn Iterator<Item = Result<Entry>> + Send + 'a>;
    /// Calls `each(key, value)` for the entries of `iter` until it returns false, without a copy of each where the backend can.
    fn scan(&self, from: &[u8], to: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        for entry in self.iter(from, to) {
            let (key, value) = entry?;
            if !each(&key, &value)? {
                break;
            }
        }
        Ok(())
    }
}

/// A key and its value.
pub type Entry = (Box<[u8]>, Box<[u8]>);

/// Whether `key` lies before the end `to` of a range, where empty means no end.
fn is_before(key: &[u8], to: &[u8]) -> bool {
    to.is_empty() || key < to
}

/// The backend keys of the key groups of `range`: from the first to the second, exclusive.
pub fn key_range(range: KeyGroupRange) -> ([u8; 2], [u8; 2]) {
    (range.start.to_be_bytes(), range.end.to_be_bytes())
}
