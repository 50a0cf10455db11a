//! What is remembered: backends, the shapes of state on them, the key codec.
//!
//! Keys in a backend are `key group (2 bytes, big-endian) + state tag (1 byte) + encoded key`, so that a key group is one range.

use std::path::Path;
use std::sync::Arc;

use weir_catalog::Result;

/// Sorted, distinct keys with their new value, `None` to delete.
pub type Writes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// What a keyed state backend can do for its one owner.
///
/// Two implementations: RocksDB, and an in-memory one that is its oracle in tests and can be chosen by setting. Both keep keys in byte order.
pub trait StateBackend: Send {
    /// Looks up `keys`, which are sorted and distinct. `found(i, value)` is called once for each key that exists.
    fn multi_get(&self, keys: &[&[u8]], found: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()>;
    /// Writes `writes`, sorted by key, at most one a key.
    fn write(&mut self, writes: Writes) -> Result<()>;
    /// Calls `each(key, value)` for keys in `from..to` in order until it returns false. An empty `to` means no upper bound.
    fn scan(&self, from: &[u8], to: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()>;
    /// The present content, shared and read-only, not touched by later writes.
    fn snapshot(&self) -> Result<Arc<dyn StateSnapshot>>;
    /// Makes a consistent image of the present content in the new folder `dir` (RocksDB: hard links). Returns the files of it that
    /// hold data, by name relative to `dir`. Nothing is fsynced.
    fn checkpoint(&mut self, dir: &Path) -> Result<Vec<String>>;
    /// About how many rows and bytes it holds.
    fn estimate(&self) -> StateSize;
}

/// About how large a state is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateSize {
    pub rows: u64,
    pub bytes: u64,
}

/// A state's content at one moment, for any number of readers on any thread.
pub trait StateSnapshot: Send + Sync {
    /// The value of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;
    /// The entries with keys in `from..to`, in order; an empty `to` means no upper bound.
    fn iter<'a>(&'a self, from: &[u8], to: &[u8]) -> Box<dyn Iterator<Item = Result<(Box<[u8]>, Box<[u8]>)>> + Send + 'a>;
}
