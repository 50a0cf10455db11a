//! Where the splits of a source stand, as it goes into checkpoints and histories.
//!
//! Splits that will never change again, as those of files that were read to their end, are closed: they are gathered in portions, which are stored in a file
//! each, once, and only named by the checkpoints that follow. So what is written at a checkpoint does not grow with all that was ever read.
//!
//! A portion's bytes are the line `weir-splits 1`, or 2 where one of its splits is an object in an object store, and then, compressed with Zstandard, a JSON
//! array of splits.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use weir_catalog::{Error, Result};

use super::SplitState;
use crate::checkpoint::{CheckpointStore, FileHandle};
use crate::seams::files::FilesRef;
use crate::stream::BarrierNumber;

/// The highest format of a portion that this weir writes. It reads this and every older one.
const FORMAT: u32 = 2;
const MAGIC: &str = "weir-splits ";

/// Where splits stand. Cheap to clone as far as they are closed.
#[derive(Clone, Debug, Default)]
pub struct Splits {
    /// Those that may change yet, or wait for a portion.
    pub open: Vec<SplitState>,
    pub closed: Vec<Arc<SplitPortion>>,
}

impl From<Vec<SplitState>> for Splits {
    fn from(open: Vec<SplitState>) -> Splits {
        Splits { open, closed: Vec::new() }
    }
}

impl Splits {
    /// Adds those of another subtask.
    pub fn extend(&mut self, other: Splits) {
        self.open.extend(other.open);
        self.closed.extend(other.closed);
    }

    /// All of them.
    pub fn to_vec(&self) -> Result<Vec<SplitState>> {
        let mut all = self.open.clone();
        for portion in &self.closed {
            all.extend(portion.splits()?);
        }
        Ok(all)
    }
}

/// Splits that will never change again.
#[derive(Debug)]
pub struct SplitPortion {
    bytes: Vec<u8>,
    /// The file that holds it, where there is one.
    stored: Mutex<Option<FileHandle>>,
}

impl SplitPortion {
    /// A portion of `splits` that is not stored yet.
    pub fn new(splits: &[SplitState]) -> Result<SplitPortion> {
        let failed = |e: &dyn std::fmt::Display| Error::internal(format!("could not encode splits: {e}"));
        let json = serde_json::to_vec(splits).map_err(|e| failed(&e))?;
        let format = if splits.iter().any(SplitState::is_of_object) { 2 } else { 1 };
        let mut bytes = format!("{MAGIC}{format}\n").into_bytes();
        bytes.extend(zstd::encode_all(json.as_slice(), 0).map_err(|e| failed(&e))?);
        Ok(SplitPortion { bytes, stored: Mutex::new(None) })
    }

    /// The portion that a file of `store` holds. Waits for disk.
    ///
    /// Errors: `XX001` where it is damaged or missing, `0A000` where a newer version wrote it.
    pub fn restore(store: &CheckpointStore, handle: &FileHandle) -> Result<SplitPortion> {
        let portion = SplitPortion { bytes: store.read(handle)?, stored: Mutex::new(Some(handle.clone())) };
        portion.splits().map_err(|error| error.with_context(format!("checkpoint file \"{}\"", handle.name)))?;
        Ok(portion)
    }

    /// The splits of a portion that some file outside a store holds as `bytes`. Errors as [`SplitPortion::restore`].
    pub fn read(bytes: Vec<u8>) -> Result<Vec<SplitState>> {
        SplitPortion { bytes, stored: Mutex::new(None) }.splits()
    }

    /// What it holds. Errors as [`SplitPortion::restore`].
    pub fn splits(&self) -> Result<Vec<SplitState>> {
        let broken = || Error::corrupted("a portion of splits is damaged");
        let end = self.bytes.iter().position(|byte| *byte == b'\n').ok_or_else(broken)?;
        let header = std::str::from_utf8(&self.bytes[..end]).map_err(|_| broken())?;
        match header.strip_prefix(MAGIC).and_then(|format| format.parse::<u32>().ok()) {
            Some(1..=FORMAT) => {}
            Some(newer) if newer > FORMAT => return Err(Error::newer_format("a portion of splits", newer, FORMAT)),
            _ => return Err(broken()),
        }
        let json = zstd::decode_all(&self.bytes[end + 1..]).map_err(|_| broken())?;
        serde_json::from_slice(&json).map_err(|_| broken())
    }

    /// The memory that it takes, bytes.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + size_of::<SplitPortion>()
    }

    /// The file that holds it, for the checkpoint at `barrier`; written by way of the folder `scratch`, as of `incarnation` and under the name `local`, where
    /// the store has none. True where it was written. Waits for disk.
    pub fn store(
        &self,
        store: &CheckpointStore,
        files: &FilesRef,
        scratch: &Path,
        incarnation: &str,
        local: &str,
        barrier: BarrierNumber,
    ) -> Result<(FileHandle, bool)> {
        let mut stored = self.stored.lock();
        if let Some(again) = stored.as_ref().and_then(|handle| store.put_again(handle, barrier)) {
            return Ok((again.handle, false));
        }
        files.create_dir(scratch)?;
        files.write(&scratch.join(local), &self.bytes)?;
        let put = store.put(incarnation, scratch, local, barrier);
        files.remove(&scratch.join(local))?;
        let handle = put?.handle;
        *stored = Some(handle.clone());
        Ok((handle, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seams::files::LocalFiles;

    fn splits(numbers: std::ops::Range<u64>) -> Vec<SplitState> {
        numbers.map(|number| SplitState { split: format!("/in/{number:08}.csv"), offset: format!("{number};9;0-9") }).collect()
    }

    #[test]
    fn a_portion_is_stored_once_as_long_as_checkpoints_use_it() {
        let folder = tempfile::tempdir().unwrap();
        let files: FilesRef = LocalFiles::shared();
        let (store, _) = CheckpointStore::open(files.clone(), folder.path(), None).unwrap();
        let scratch = folder.path().join("scratch");
        let portion = SplitPortion::new(&splits(0..1000)).unwrap();
        assert!(portion.memory_bytes() < 20_000, "{}", portion.memory_bytes());
        let (first, written) = portion.store(&store, &files, &scratch, "a", "0.splits", 3).unwrap();
        assert!(written);
        let (again, written) = portion.store(&store, &files, &scratch, "a", "0.splits", 4).unwrap();
        assert!(!written && again == first);
        let restored = SplitPortion::restore(&store, &first).unwrap();
        assert_eq!(restored.splits().unwrap(), splits(0..1000));
        // Nothing that is retained names it: it goes, and comes back where it is wanted again.
        store.retire(&[], &|_| false).unwrap();
        assert_eq!(SplitPortion::restore(&store, &first).unwrap_err().code().as_str(), "XX001");
        let (third, written) = portion.store(&store, &files, &scratch, "a", "0.splits", 9).unwrap();
        assert!(written && third != first);
        assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0);
    }

    #[test]
    fn only_portions_with_objects_are_of_format_2() {
        let object = SplitState { split: "s3://b/in/a.csv".into(), offset: "9;9;0-9;00000000000000ab".into() };
        for (splits, header) in [(splits(0..3), "weir-splits 1\n"), ([splits(0..3), vec![object]].concat(), "weir-splits 2\n")] {
            let portion = SplitPortion::new(&splits).unwrap();
            assert!(portion.bytes.starts_with(header.as_bytes()));
            assert_eq!(portion.splits().unwrap(), splits);
        }
    }

    #[test]
    fn damage_and_newer_formats_are_told() {
        let portion = |bytes: &[u8]| SplitPortion { bytes: bytes.to_vec(), stored: Mutex::new(None) };
        let code = |bytes: &[u8]| portion(bytes).splits().unwrap_err().code().as_str().to_string();
        assert_eq!(code(b"weir-splits 3\nx"), "0A000");
        for bytes in [&b""[..], b"weir-splits 1", b"weir-splits 0\nx", b"weir-splits 1\nxyz", b"other 1\n"] {
            assert_eq!(code(bytes), "XX001");
        }
    }
}
