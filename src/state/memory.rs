//! A state backend in memory: the oracle of the RocksDB one in tests, and a choice for small state by setting.
//!
//! The entries stand in leaves of at most [`LEAF_ENTRIES`], sorted, each behind an `Arc`, under a map from the first key that belongs in a leaf. A
//! snapshot shares the map; a write copies the leaves it touches (and the map, not what hangs from it) if a snapshot holds them.
//!
//! A checkpoint is one file, `memory-N.state`, `N` growing with each checkpoint of a backend:
//! `"weirmem"`, format number 1 (1 byte), number of entries (8 bytes, little-endian as all numbers), for each entry in key order the lengths of key
//! and value (4 bytes each) and both, and at the end the CRC-32 of everything before (4 bytes).
//!
//! # Invariants
//! - Every key in a leaf is at or above the leaf's key in the map and below that of the next; the first leaf's is empty.
//! - A leaf in the map is not empty, except the only one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use weir_catalog::{Error, Result};

use super::{Entry, RestorePart, StateBackend, StateBackendKind, StateSize, StateSnapshot, Writes, is_before, key_range};
use crate::stream::KeyGroupRange;

#[cfg(test)]
mod tests;

const LEAF_ENTRIES: usize = 128;
const MAGIC: &[u8; 7] = b"weirmem";
/// The format of checkpoint files that this version writes.
pub const FORMAT: u8 = 1;
const CHECKSUM_BYTES: usize = 4;

type Leaf = Vec<(Arc<[u8]>, Arc<[u8]>)>;
type Leaves = BTreeMap<Arc<[u8]>, Arc<Leaf>>;

/// Keyed state in memory.
#[derive(Debug)]
pub struct MemoryBackend {
    leaves: Arc<Leaves>,
    size: StateSize,
    changed: bool,
    checkpoints: u64,
}

impl Default for MemoryBackend {
    fn default() -> MemoryBackend {
        let leaves = Leaves::from([(Arc::from([].as_slice()), Arc::new(Leaf::new()))]);
        MemoryBackend { leaves: Arc::new(leaves), size: StateSize::default(), changed: true, checkpoints: 0 }
    }
}

impl MemoryBackend {
    /// An empty backend.
    pub fn new() -> MemoryBackend {
        MemoryBackend::default()
    }

    /// A backend with the entries of the key groups in `range` from former checkpoints of memory backends.
    pub fn restore(parts: &[RestorePart], range: KeyGroupRange) -> Result<MemoryBackend> {
        let mut backend = MemoryBackend::new();
        let (from, to) = key_range(range);
        for part in parts {
            let path = checkpoint_file(&part.dir)?;
            let bytes = std::fs::read(&path).map_err(|error| Error::io(format!("read {path:?}"), &error))?;
            let entries = match parse(&bytes) {
                Parsed::Entries(entries) => entries,
                Parsed::Newer(format) => return Err(Error::newer_format(format_args!("state file {path:?}"), format, FORMAT)),
                Parsed::Damaged => return Err(Error::corrupted(format!("state file {path:?} is corrupted"))),
            };
            for (key, value) in entries {
                if key >= from.as_slice() && key < to.as_slice() {
                    backend.put(key, Some(value));
                }
            }
        }
        backend.changed = !matches!(parts, [part] if part.range == range);
        Ok(backend)
    }

    fn put(&mut self, key: &[u8], value: Option<&[u8]>) {
        let leaves = Arc::make_mut(&mut self.leaves);
        let Some((first, leaf)) = leaves.range_mut::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back() else {
            unreachable!("the first leaf takes every key");
        };
        let place = leaf.binary_search_by(|(present, _)| present.as_ref().cmp(key));
        match (place, value) {
            (Ok(i), Some(value)) => {
                let present = &mut Arc::make_mut(leaf)[i].1;
                self.size.bytes = self.size.bytes - present.len() as u64 + value.len() as u64;
                *present = Arc::from(value);
            }
            (Err(i), Some(value)) => {
                self.size.rows += 1;
                self.size.bytes += (key.len() + value.len()) as u64;
                let entries = Arc::make_mut(leaf);
                entries.insert(i, (Arc::from(key), Arc::from(value)));
                if entries.len() > LEAF_ENTRIES {
                    // Keys that come in order, as in a restore, leave full leaves behind.
                    let middle = if i + 1 == entries.len() { i } else { entries.len() / 2 };
                    let right = entries.split_off(middle);
                    leaves.insert(right[0].0.clone(), Arc::new(right));
                }
            }
            (Ok(i), None) => {
                let entries = Arc::make_mut(leaf);
                let (key, value) = entries.remove(i);
                self.size.rows -= 1;
                self.size.bytes -= (key.len() + value.len()) as u64;
                if entries.is_empty() && !first.is_empty() {
                    let first = first.clone();
                    leaves.remove(&first);
                }
            }
            (Err(_), None) => {}
        }
    }
}

impl StateBackend for MemoryBackend {
    fn kind(&self) -> StateBackendKind {
        StateBackendKind::Memory
    }

    fn multi_get(&self, keys: &[&[u8]], found: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        for (i, key) in keys.iter().enumerate() {
            if let Some(value) = get(&self.leaves, key) {
                found(i, value)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, writes: &Writes) -> Result<()> {
        self.changed |= !writes.is_empty();
        for (key, value) in writes.iter() {
            self.put(key, value);
        }
        Ok(())
    }

    fn write_all(&mut self, next: &mut dyn FnMut(&mut Writes) -> Result<bool>) -> Result<()> {
        let mut chunk = Writes::new();
        while next(&mut chunk)? {
            self.write(&chunk)?;
            chunk.clear();
        }
        Ok(())
    }

    fn scan(&self, from: &[u8], to: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        scan(&self.leaves, from, to, each)
    }

    fn snapshot(&self) -> Result<Arc<dyn StateSnapshot>> {
        Ok(Arc::new(MemorySnapshot { leaves: self.leaves.clone() }))
    }

    fn checkpoint(&mut self, dir: &Path) -> Result<Vec<String>> {
        self.checkpoints += 1;
        let name = format!("memory-{}.state", self.checkpoints);
        let path = dir.join(&name);
        std::fs::create_dir(dir).map_err(|error| Error::io(format!("make folder {dir:?}"), &error))?;
        write_file(&path, &self.leaves, self.size.rows).map_err(|error| Error::io(format!("write {path:?}"), &error))?;
        self.changed = false;
        Ok(vec![name])
    }

    fn estimate(&self) -> StateSize {
        self.size
    }

    fn changed_since_checkpoint(&self) -> bool {
        self.changed
    }
}

/// The entries of a [`MemoryBackend`] at one moment.
#[derive(Debug)]
struct MemorySnapshot {
    leaves: Arc<Leaves>,
}

impl StateSnapshot for MemorySnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(get(&self.leaves, key).map(<[u8]>::to_vec))
    }

    fn iter<'a>(&'a self, from: &[u8], to: &[u8]) -> Box<dyn Iterator<Item = Result<Entry>> + Send + 'a> {
        let to = to.to_vec();
        let entries = entries_from(&self.leaves, from).take_while(move |(key, _)| is_before(key, &to));
        Box::new(entries.map(|(key, value)| Ok((Box::from(key), Box::from(value)))))
    }

    fn scan(&self, from: &[u8], to: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        scan(&self.leaves, from, to, each)
    }
}

fn get<'a>(leaves: &'a Leaves, key: &[u8]) -> Option<&'a [u8]> {
    let (_, leaf) = leaves.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()?;
    let place = leaf.binary_search_by(|(present, _)| present.as_ref().cmp(key)).ok()?;
    Some(&leaf[place].1)
}

fn entries_from<'a>(leaves: &'a Leaves, from: &[u8]) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Send + use<'a> {
    // `from` may lie within a leaf: begin at that one, and past what is before `from` in it.
    let first = leaves.range::<[u8], _>((Bound::Unbounded, Bound::Included(from))).next_back();
    let skipped = first.map_or(0, |(_, leaf)| leaf.partition_point(|(key, _)| key.as_ref() < from));
    let rest = leaves.range::<[u8], _>((Bound::Excluded(from), Bound::Unbounded));
    first.into_iter().chain(rest).flat_map(|(_, leaf)| leaf.iter()).skip(skipped).map(|(key, value)| (key.as_ref(), value.as_ref()))
}

fn scan(leaves: &Leaves, from: &[u8], to: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
    for (key, value) in entries_from(leaves, from) {
        if !is_before(key, to) || !each(key, value)? {
            break;
        }
    }
    Ok(())
}

fn write_file(path: &Path, leaves: &Leaves, rows: u64) -> std::io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create_new(path)?);
    let mut checksum = crc32fast::Hasher::new();
    let mut put = |bytes: &[u8]| {
        checksum.update(bytes);
        file.write_all(bytes)
    };
    put(MAGIC)?;
    put(&[FORMAT])?;
    put(&rows.to_le_bytes())?;
    for (key, value) in leaves.values().flat_map(|leaf| leaf.iter()) {
        // `max_row_bytes` keeps both far below 4 GiB.
        put(&(key.len() as u32).to_le_bytes())?;
        put(&(value.len() as u32).to_le_bytes())?;
        put(key)?;
        put(value)?;
    }
    let checksum = checksum.finalize();
    file.write_all(&checksum.to_le_bytes())?;
    file.flush()
}

/// The one file of a memory backend's checkpoint.
fn checkpoint_file(dir: &Path) -> Result<std::path::PathBuf> {
    let read_error = |error: std::io::Error| Error::io(format!("read folder {dir:?}"), &error);
    let mut found = None;
    for entry in std::fs::read_dir(dir).map_err(read_error)? {
        let path = entry.map_err(read_error)?.path();
        if path.extension().is_some_and(|extension| extension == "state") && found.replace(path).is_some() {
            return Err(Error::corrupted(format!("folder {dir:?} has more than one state file")));
        }
    }
    found.ok_or_else(|| Error::corrupted(format!("folder {dir:?} has no state file")))
}

/// What the bytes of a checkpoint file are.
enum Parsed<'a> {
    Entries(Vec<(&'a [u8], &'a [u8])>),
    /// A newer version wrote them: magic, format number and the checksum at the end stand in every format.
    Newer(u8),
    Damaged,
}

fn parse(bytes: &[u8]) -> Parsed<'_> {
    let Some((content, checksum)) = bytes.len().checked_sub(CHECKSUM_BYTES).and_then(|end| bytes.split_at_checked(end)) else {
        return Parsed::Damaged;
    };
    if crc32fast::hash(content).to_le_bytes() != checksum {
        return Parsed::Damaged;
    }
    match content.strip_prefix(MAGIC).and_then(<[u8]>::split_first) {
        Some((&FORMAT, rest)) => parse_entries(rest).map_or(Parsed::Damaged, Parsed::Entries),
        Some((&format, _)) if format > FORMAT => Parsed::Newer(format),
        _ => Parsed::Damaged,
    }
}

/// The entries in format 1, behind the format number.
fn parse_entries(bytes: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let (rows, mut rest) = bytes.split_first_chunk::<8>()?;
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let (key_length, tail) = rest.split_first_chunk::<4>()?;
        let (value_length, tail) = tail.split_first_chunk::<4>()?;
        let (key, tail) = tail.split_at_checked(u32::from_le_bytes(*key_length) as usize)?;
        let (value, tail) = tail.split_at_checked(u32::from_le_bytes(*value_length) as usize)?;
        entries.push((key, value));
        rest = tail;
    }
    (entries.len() as u64 == u64::from_le_bytes(*rows)).then_some(entries)
}
