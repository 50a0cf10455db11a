//! Barrier numbers and times: no number is used twice, and no time comes again, whatever becomes of the process or the machine's clock.
//!
//! Barriers are not written to disk; a ceiling is. A process hands out numbers and times below the durable ceiling only, and begins at the one it finds.
//! Numbers are reserved by the hundred thousand. Time is reserved for [`RESERVED_US`] only: after a crash, time stands still for as long at most.
//!
//! On disk: the line `weir-barriers 2 <number> <time> <XXH3-64 of what is before, 16 hex digits>`; format 1 had no time.

use std::path::{Path, PathBuf};

use weir_catalog::{Error, Result};
use xxhash_rust::xxh3::xxh3_64;

use crate::seams::faults::{self, Fault};
use crate::seams::files::FilesRef;
use crate::stream::BarrierNumber;

/// The format of the file that this weir writes.
const FORMAT: u32 = 2;
/// How many numbers are reserved at a time.
const RESERVED: u64 = 100_000;
/// How much time is reserved at a time, microseconds.
const RESERVED_US: i64 = 2_000_000;

/// The ceiling: what is below it may be handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    number: BarrierNumber,
    /// Microseconds since 1970 UTC.
    time_us: i64,
}

/// Hands out barrier numbers and times.
#[derive(Debug)]
pub struct BarrierNumbers {
    files: FilesRef,
    path: PathBuf,
    next: BarrierNumber,
    last_time_us: i64,
    reserved: Reserved,
    /// What is being made durable.
    asked: Option<Reserved>,
}

/// A ceiling that is to be made durable.
#[derive(Debug)]
pub struct Reservation {
    files: FilesRef,
    path: PathBuf,
    reserved: Reserved,
}

impl BarrierNumbers {
    /// Begins where no number and no time was handed out before, by whatever process had the folder `dir` open. `now_us` is what the clock says,
    /// `checkpointed` the newest barrier of which there is a checkpoint, 0 for none.
    ///
    /// Errors: `XX001` where the ceiling on disk is damaged, or not there although barriers were made, `53100` and `58030` where the first reservation can't
    /// be written.
    pub fn open(files: FilesRef, dir: &Path, now_us: i64, checkpointed: BarrierNumber) -> Result<BarrierNumbers> {
        let path = dir.join("barrier-ceiling");
        if checkpointed > 0 && !files.exists(&path) {
            return Err(Error::corrupted(format!("\"{}\" is missing", path.display()))
                .with_detail(format!(
                    "There is a checkpoint of barrier {checkpointed}, and the file says which numbers were given after it."
                ))
                .with_hint("A file of the data folder was removed. Restore the data folder from a copy."));
        }
        let mut found = if files.exists(&path) { decode(&path, &files.read(&path)?)? } else { Reserved { number: 1, time_us: 0 } };
        if faults::is_planted(Fault::BarrierNumberReused) {
            found.number = 1;
        }
        let mut numbers = BarrierNumbers { files, path, next: found.number, last_time_us: found.time_us - 1, reserved: found, asked: None };
        numbers.reserved = numbers.reservation(now_us).write()?;
        Ok(numbers)
    }

    /// The number that comes next.
    pub fn peek(&self) -> BarrierNumber {
        self.next
    }

    /// No barrier gets `time_us`, or an earlier time.
    pub fn not_before(&mut self, time_us: i64) {
        self.last_time_us = self.last_time_us.max(time_us);
    }

    /// Takes the next number, and the time that goes with it: what the clock says, or, where it stands still or was set back, the least that is later
    /// than the last one. `None` where the ceiling has to be raised first.
    pub fn take(&mut self, now_us: i64) -> Option<(BarrierNumber, i64)> {
        let time_us = self.next_time_us(now_us);
        if self.is_out_of_numbers() || time_us >= self.reserved.time_us {
            return None;
        }
        self.next += 1;
        self.last_time_us = time_us;
        Some((self.next - 1, time_us))
    }

    /// Whether every number that was reserved has been handed out.
    pub fn is_out_of_numbers(&self) -> bool {
        self.next >= self.reserved.number
    }

    fn next_time_us(&self, now_us: i64) -> i64 {
        now_us.max(self.last_time_us + 1)
    }

    /// What is to be written, on a thread for such work, to raise the ceiling, where that is due and not under way. To be asked for before each
    /// [`BarrierNumbers::take`]; the outcome goes to [`BarrierNumbers::reserved`].
    pub fn reservation_if_due(&mut self, now_us: i64) -> Option<Reservation> {
        let numbers_due = self.next + RESERVED / 2 >= self.reserved.number;
        let time_due = self.next_time_us(now_us) + RESERVED_US / 2 >= self.reserved.time_us;
        if self.asked.is_some() || !(numbers_due || time_due) {
            return None;
        }
        let reservation = self.reservation(now_us);
        self.asked = Some(reservation.reserved);
        Some(reservation)
    }

    fn reservation(&self, now_us: i64) -> Reservation {
        let reserved = Reserved {
            number: self.reserved.number.max(self.next + RESERVED),
            time_us: self.reserved.time_us.max(self.next_time_us(now_us) + RESERVED_US),
        };
        Reservation { files: self.files.clone(), path: self.path.clone(), reserved }
    }

    /// The outcome of a reservation; `None` where it failed. Then no more numbers are handed out than were reserved before. Time goes on all the same: a
    /// full disk should not keep views from showing what there is, and should the process die on it, time repeats only if the clock is set back as well.
    pub fn reserved(&mut self, reserved: Option<Reserved>) {
        match (reserved, self.asked.take()) {
            (Some(reserved), _) => self.reserved = reserved,
            (None, Some(asked)) => self.reserved.time_us = asked.time_us,
            (None, None) => {}
        }
    }

    /// For the end of the process, when no barrier follows: lowers the ceiling to what was used. `None` while another reservation is being written.
    pub fn give_back(&self) -> Option<Reservation> {
        let reserved = Reserved { number: self.next, time_us: self.last_time_us + 1 };
        self.asked.is_none().then(|| Reservation { files: self.files.clone(), path: self.path.clone(), reserved })
    }
}

impl Reservation {
    /// Makes it durable. Waits for disk.
    pub fn write(self) -> Result<Reserved> {
        let temporary = self.path.with_extension("tmp");
        self.files.write(&temporary, &encode(self.reserved))?;
        self.files.rename(&temporary, &self.path)?;
        if let Some(dir) = self.path.parent() {
            self.files.sync_dir(dir)?;
        }
        Ok(self.reserved)
    }
}

/// The content of the file.
fn encode(reserved: Reserved) -> Vec<u8> {
    let text = format!("weir-barriers {FORMAT} {} {}", reserved.number, reserved.time_us);
    format!("{text} {:016x}\n", xxh3_64(text.as_bytes())).into_bytes()
}

/// Errors with `XX001` where the bytes are not what was written, `0A000` where a newer version wrote them.
fn decode(path: &Path, bytes: &[u8]) -> Result<Reserved> {
    let broken = || Error::corrupted(format!("\"{}\" is damaged", path.display()));
    let text = std::str::from_utf8(bytes).map_err(|_| broken())?;
    let (text, checksum) = text.strip_suffix('\n').and_then(|text| text.rsplit_once(' ')).ok_or_else(broken)?;
    if checksum != format!("{:016x}", xxh3_64(text.as_bytes())) {
        return Err(broken());
    }
    // The magic, the format number, and the checksum at the end stand in every format.
    let (format, rest) = text.strip_prefix("weir-barriers ").and_then(|text| text.split_once(' ')).ok_or_else(broken)?;
    let (number, time_us) = match format.parse() {
        // It had no time.
        Ok(1) => (rest, "0"),
        Ok(FORMAT) => rest.split_once(' ').ok_or_else(broken)?,
        Ok(newer) if newer > FORMAT => {
            return Err(Error::newer_format(format_args!("\"{}\"", path.display()), newer, FORMAT));
        }
        _ => return Err(broken()),
    };
    match (number.parse(), time_us.parse()) {
        (Ok(number), Ok(time_us)) => Ok(Reserved { number, time_us }),
        _ => Err(broken()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::seams::files::LocalFiles;

    fn open(dir: &Path, now_us: i64) -> BarrierNumbers {
        BarrierNumbers::open(Arc::new(LocalFiles), dir, now_us, 0).unwrap()
    }

    /// Takes the next barrier, and raises the ceiling before where that is due.
    fn take(numbers: &mut BarrierNumbers, now_us: i64) -> (BarrierNumber, i64) {
        if let Some(reservation) = numbers.reservation_if_due(now_us) {
            let reserved = reservation.write().unwrap();
            numbers.reserved(Some(reserved));
        }
        numbers.take(now_us).unwrap()
    }
    const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/compat/v1/barrier-ceiling");

    #[test]
    fn no_number_and_no_time_comes_twice_whenever_the_process_ends() {
        let dir = tempfile::tempdir().unwrap();
        let mut last = (0, 0);
        // The clock of each start is behind that of the one before.
        for start_us in [50_000_000, 40_000_000, 1_000] {
            let mut numbers = open(dir.path(), start_us);
            for step in 0..RESERVED as i64 + 10 {
                let barrier = take(&mut numbers, start_us + 10 * step);
                assert!(barrier.0 > last.0 && barrier.1 > last.1, "{barrier:?} after {last:?}");
                last = barrier;
            }
        }
    }

    #[test]
    fn after_a_crash_time_stands_still_for_what_was_reserved_at_most() {
        let dir = tempfile::tempdir().unwrap();
        let last_us = take(&mut open(dir.path(), 7_000_000), 7_000_000).1;
        let mut numbers = open(dir.path(), last_us);
        assert!(take(&mut numbers, last_us).1 <= last_us + RESERVED_US);
        let later_us = last_us + 2 * RESERVED_US;
        assert_eq!(take(&mut numbers, later_us).1, later_us);
    }

    #[test]
    fn what_was_given_back_is_not_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let mut numbers = open(dir.path(), 5_000_000);
        assert_eq!(take(&mut numbers, 5_000_000), (1, 5_000_000));
        numbers.give_back().unwrap().write().unwrap();
        assert_eq!(take(&mut open(dir.path(), 5_000_100), 5_000_100), (2, 5_000_100));
    }

    #[test]
    fn without_a_raised_ceiling_numbers_and_time_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut numbers = open(dir.path(), 0);
        let given = std::iter::from_fn(|| numbers.take(0)).count() as u64;
        assert_eq!(given, RESERVED);
        let mut numbers = open(dir.path(), 0);
        assert!(numbers.take(1_000_000_000).is_none());
        assert!(take(&mut numbers, 1_000_000_000).1 >= 1_000_000_000);
    }

    #[test]
    fn where_the_disk_refuses_time_goes_on_and_numbers_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut numbers = open(dir.path(), 0);
        let mut given = 0;
        for step in 1.. {
            let now_us = step * RESERVED_US / 4;
            if numbers.reservation_if_due(now_us).is_some() {
                numbers.reserved(None);
            }
            match numbers.take(now_us) {
                Some((_, time_us)) => assert_eq!(time_us, now_us),
                None => break,
            }
            given += 1;
        }
        assert_eq!(given, RESERVED);
    }

    #[test]
    fn a_ceiling_without_a_time_opens() {
        let dir = tempfile::tempdir().unwrap();
        let text = "weir-barriers 1 4711";
        std::fs::write(dir.path().join("barrier-ceiling"), format!("{text} {:016x}\n", xxh3_64(text.as_bytes()))).unwrap();
        assert_eq!(take(&mut open(dir.path(), 9), 9), (4711, 9));
    }

    #[test]
    fn a_damaged_ceiling_is_named() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path(), 0));
        let path = dir.path().join("barrier-ceiling");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[18] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let files: FilesRef = Arc::new(LocalFiles);
        assert_eq!(BarrierNumbers::open(files, dir.path(), 0, 0).unwrap_err().code().as_str(), "XX001");
    }

    #[test]
    fn a_newer_format_is_told_from_a_damaged_one() {
        let text = "weir-barriers 3 100 of another kind";
        let newer = format!("{text} {:016x}\n", xxh3_64(text.as_bytes()));
        let error = decode(Path::new("barrier-ceiling"), newer.as_bytes()).unwrap_err();
        assert_eq!(error.code().as_str(), "0A000");
        assert!(error.message().contains("\"barrier-ceiling\" has format 3"), "{error}");
    }

    #[test]
    fn the_golden_files_open_and_the_newest_is_what_is_written() {
        let path = Path::new("barrier-ceiling");
        // Of format 1, which had no time.
        let golden = std::fs::read(GOLDEN).unwrap();
        assert_eq!(decode(path, &golden).unwrap(), Reserved { number: 300_001, time_us: 0 });
        let reserved = Reserved { number: 300_001, time_us: 1_790_000_000_000_001 };
        let written = encode(reserved);
        assert_eq!(String::from_utf8_lossy(&written), "weir-barriers 2 300001 1790000000000001 b0cac2fd83a602bf\n");
        assert_eq!(decode(path, &written).unwrap(), reserved);
    }
}
