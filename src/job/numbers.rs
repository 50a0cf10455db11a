//! Barrier numbers, which are never used twice.
//!
//! Barriers are not written to disk; a ceiling is. A process hands out numbers below the durable ceiling only, and begins at the one it finds.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use weir_catalog::{Error, Result};
use xxhash_rust::xxh3::xxh3_64;

use crate::seams::files::FilesRef;
use crate::stream::BarrierNumber;

/// How many numbers are reserved at a time.
const RESERVED: u64 = 100_000;

/// Hands out barrier numbers.
#[derive(Clone, Debug)]
pub struct BarrierNumbers {
    files: FilesRef,
    path: PathBuf,
    next: BarrierNumber,
    ceiling: Arc<AtomicU64>,
    raising: Arc<AtomicBool>,
}

impl BarrierNumbers {
    /// Begins where no number was handed out before, by whatever process had the folder `dir` open.
    pub fn open(files: FilesRef, dir: &Path) -> Result<BarrierNumbers> {
        let path = dir.join("barrier-ceiling");
        let next = if files.exists(&path) { decode(&path, &files.read(&path)?)? } else { 1 };
        let numbers = BarrierNumbers { files, path, next, ceiling: Arc::new(AtomicU64::new(next)), raising: Arc::default() };
        numbers.raise(next + RESERVED)?;
        Ok(numbers)
    }

    /// The number that comes next.
    pub fn peek(&self) -> BarrierNumber {
        self.next
    }

    /// Takes the next number; `None` while the ceiling is being raised.
    pub fn take(&mut self) -> Option<BarrierNumber> {
        if self.next >= self.ceiling.load(Ordering::SeqCst) {
            return None;
        }
        self.next += 1;
        Some(self.next - 1)
    }

    /// What is to be run on a thread for such work to raise the ceiling, where that is due and not under way. Asked for before each [`BarrierNumbers::take`].
    pub fn raise_if_due(&self) -> Option<impl FnOnce() -> Result<()> + Send + use<>> {
        let ceiling = self.ceiling.load(Ordering::SeqCst);
        let due = self.next + RESERVED / 2 >= ceiling && !self.raising.swap(true, Ordering::SeqCst);
        due.then(|| {
            let numbers = self.clone();
            move || {
                let raised = numbers.raise(ceiling + RESERVED);
                numbers.raising.store(false, Ordering::SeqCst);
                raised
            }
        })
    }

    fn raise(&self, ceiling: u64) -> Result<()> {
        let temporary = self.path.with_extension("tmp");
        let text = format!("weir-barriers 1 {ceiling}");
        self.files.write(&temporary, format!("{text} {:016x}\n", xxh3_64(text.as_bytes())).as_bytes())?;
        self.files.rename(&temporary, &self.path)?;
        if let Some(dir) = self.path.parent() {
            self.files.sync_dir(dir)?;
        }
        self.ceiling.fetch_max(ceiling, Ordering::SeqCst);
        Ok(())
    }
}

fn decode(path: &Path, bytes: &[u8]) -> Result<u64> {
    let broken = || Error::corrupted(format!("\"{}\" is damaged", path.display()));
    let text = std::str::from_utf8(bytes).map_err(|_| broken())?;
    let (text, checksum) = text.strip_suffix('\n').and_then(|text| text.rsplit_once(' ')).ok_or_else(broken)?;
    if checksum != format!("{:016x}", xxh3_64(text.as_bytes())) {
        return Err(broken());
    }
    text.strip_prefix("weir-barriers 1 ").and_then(|number| number.parse().ok()).ok_or_else(broken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seams::files::LocalFiles;

    #[test]
    fn no_number_comes_twice_whenever_the_process_ends() {
        let dir = tempfile::tempdir().unwrap();
        let files: FilesRef = Arc::new(LocalFiles);
        let mut last = 0;
        for _ in 0..3 {
            let mut numbers = BarrierNumbers::open(files.clone(), dir.path()).unwrap();
            for _ in 0..RESERVED + 10 {
                if let Some(raise) = numbers.raise_if_due() {
                    raise().unwrap();
                }
                let number = numbers.take().unwrap();
                assert!(number > last, "{number} after {last}");
                last = number;
            }
        }
    }

    #[test]
    fn without_a_raised_ceiling_the_numbers_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut numbers = BarrierNumbers::open(Arc::new(LocalFiles), dir.path()).unwrap();
        let given = std::iter::from_fn(|| numbers.take()).count() as u64;
        assert_eq!(given, RESERVED);
        numbers.raise_if_due().unwrap()().unwrap();
        assert!(numbers.take().is_some());
    }

    #[test]
    fn a_damaged_ceiling_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let files: FilesRef = Arc::new(LocalFiles);
        drop(BarrierNumbers::open(files.clone(), dir.path()).unwrap());
        let path = dir.path().join("barrier-ceiling");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[18] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(BarrierNumbers::open(files, dir.path()).unwrap_err().code().as_str(), "XX001");
    }
}
