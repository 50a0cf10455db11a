//! Checkpoints in an object store.
//!
//! ```text
//! <prefix>/manifests/MANIFEST-<number>    a slot: one line that says who wrote it, then a manifest, or nothing
//! <prefix>/files/<name>                   the files
//! ```
//!
//! The line is `weir-slot <format> <engine, 16 hex digits> <run, 16 hex digits> <checksum>`, the checksum being XXH3-64 of what stands before it, in 16 hex
//! digits; a manifest has its own. The line stands in every format, so that a newer one is told from a damaged one.
//!
//! # Being alone
//! A slot is written by one PUT that the store refuses where the slot is taken (`If-None-Match: *`), and slots follow one another without a gap. A start
//! takes the next slot for itself, without a manifest, before it removes or writes anything. So whoever was there before finds its next slot taken: its
//! checkpoints fail from then on, and say who came. This is what an advisory lock would do, without a lock that could be left behind.
//!
//! Slots are removed when there are later ones. One who slept for long may so find its next slot free again. Therefore a slot counts as taken only when a
//! listing made afterwards shows none behind it: slots are removed from the front, so where one was taken and removed there is a later one.
//!
//! An attempt that seemed to fail may arrive late. So the same number is tried until it is known who has it; only a slot that this run holds is followed by
//! the next.
//!
//! # Invariants
//! - A run never writes a slot before it knows who holds the one before.
//! - Nothing is removed by a run that was taken over, from when it knows.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use weir_catalog::{Error, Result, SqlState};
use xxhash_rust::xxh3::xxh3_64;

use super::object_files::{FilesOf, ObjectFiles};
use super::{Committed, NewFile, Slot, Storage, manifest_name, manifest_number};
use crate::checkpoint::manifest::FileHandle;
use crate::seams::faults::{self, Fault};
use crate::seams::files::FilesRef;
use crate::seams::objects::{ObjectUrl, Objects};

/// The format of a slot that this weir writes.
const FORMAT: u32 = 1;
const MAGIC: &str = "weir-slot";
/// The folder of the slots.
const SLOTS: &str = "manifests";

/// Who writes a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    /// The data folder's number.
    pub engine: u64,
    /// A random number of this opening.
    pub run: u64,
}

/// A [`Storage`] in an object store.
#[derive(Debug)]
pub struct ObjectStorage {
    files: ObjectFiles,
    objects: Objects,
    url: ObjectUrl,
    writer: Writer,
    /// Why nothing may be written or removed any more.
    taken_over: Mutex<Option<Error>>,
}

impl ObjectStorage {
    /// Below `url` in the bucket `objects`; `files` are those of this machine.
    pub fn new(files: FilesRef, objects: Objects, url: ObjectUrl, writer: Writer) -> ObjectStorage {
        let of_checkpoints = ObjectFiles::new(files, objects.clone(), url.clone(), FilesOf::Checkpoint);
        ObjectStorage { files: of_checkpoints, objects, url, writer, taken_over: Mutex::new(None) }
    }

    fn slot_key(&self, number: u64) -> String {
        self.url.key(&format!("{SLOTS}/{}", manifest_name(number)))
    }

    /// An error where another process has taken the storage over.
    fn check_own(&self) -> Result<()> {
        self.taken_over.lock().clone().map_or(Ok(()), Err)
    }

    fn encode(&self, manifest: &[u8]) -> Bytes {
        let mut bytes = encode_line(self.writer).into_bytes();
        bytes.extend_from_slice(manifest);
        Bytes::from(bytes)
    }

    /// Takes the slot `number` with `content`. False where this run has it already.
    ///
    /// Errors: `55006` where another has it, and from then on.
    fn take_slot(&self, number: u64, content: &[u8]) -> Result<Committed> {
        self.check_own()?;
        let (key, bytes) = (self.slot_key(number), self.encode(content));
        if faults::is_planted(Fault::ManifestPutUnconditionally) {
            self.objects.put(&key, bytes)?;
            return Ok(Committed::Durable);
        }
        if self.objects.put_if_absent(&key, bytes.clone())? {
            return self.check_last(number, &key);
        }
        let Some(found) = self.objects.get(&key)? else {
            return Err(Error::new(SqlState::IO_ERROR, format!("could not write \"{}\"", self.objects.url(&key)))
                .with_detail("The store said that it is there already, and does not have it."));
        };
        // The answer to an earlier request may have been lost.
        if found == bytes {
            return self.check_last(number, &key);
        }
        let (by, _) = decode(&self.objects.url(&key), &found)?;
        if by == self.writer {
            return Ok(Committed::NumberUsed);
        }
        Err(self.taken_over_by(number, by))
    }

    /// That no slot comes behind `number`, which this run has just taken.
    fn check_last(&self, number: u64, key: &str) -> Result<Committed> {
        let later = self.objects.list_behind(&self.url.key(SLOTS), key)?;
        let Some(later) = later.iter().filter_map(|object| slot_number(&object.key)).find(|later| *later > number) else {
            return Ok(Committed::Durable);
        };
        let by = match self.objects.get(&self.slot_key(later))? {
            Some(found) => decode(&manifest_name(later), &found)?.0,
            None => Writer { engine: 0, run: 0 },
        };
        let error = self.taken_over_by(later, by);
        // Nobody is to start from it. Where it stays, it is an old one among the others'.
        self.objects.remove(&[key.to_string()])?;
        Err(error)
    }

    fn taken_over_by(&self, number: u64, by: Writer) -> Error {
        let error = Error::new(SqlState::OBJECT_IN_USE, format!("checkpoint storage \"{}\" is in use by another process", self.url))
            .with_detail(format!(
                "\"{}\" was written by run {:016x} of engine {:016x}; this is run {:016x} of engine {:016x}.",
                manifest_name(number),
                by.run,
                by.engine,
                self.writer.run,
                self.writer.engine
            ))
            .with_hint("Two engines, or two copies of a data folder, can't have one storage. Stop this one, or start it with a storage of its own.");
        *self.taken_over.lock() = Some(error.clone());
        error
    }

    /// What a run that finds the slots of another engine says.
    fn check_engine(&self, number: u64, by: Writer) -> Result<()> {
        if by.engine == self.writer.engine {
            return Ok(());
        }
        Err(Error::new(SqlState::OBJECT_IN_USE, format!("checkpoint storage \"{}\" holds the checkpoints of another engine", self.url))
            .with_detail(format!(
                "\"{}\" was written by engine {:016x}; the data folder is that of engine {:016x}.",
                manifest_name(number),
                by.engine,
                self.writer.engine
            ))
            .with_hint(
                "Each engine needs a prefix of its own. Where the engine that wrote them is gone for good, remove the objects first.",
            ))
    }
}

fn slot_number(key: &str) -> Option<u64> {
    manifest_number(key.rsplit('/').next()?)
}

fn encode_line(writer: Writer) -> String {
    let text = format!("{MAGIC} {FORMAT} {:016x} {:016x}", writer.engine, writer.run);
    format!("{text} {:016x}\n", xxh3_64(text.as_bytes()))
}

/// Who wrote the slot `name`, and its manifest; empty where it has none. Errors: `XX001` where the line is not what was written, `0A000` where a newer version
/// wrote it.
fn decode<'a>(name: &str, bytes: &'a [u8]) -> Result<(Writer, &'a [u8])> {
    let broken = || Error::corrupted(format!("\"{name}\" is damaged"));
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(broken)?;
    let line = std::str::from_utf8(&bytes[..end]).map_err(|_| broken())?;
    let (text, checksum) = line.rsplit_once(' ').ok_or_else(broken)?;
    if checksum != format!("{:016x}", xxh3_64(text.as_bytes())) {
        return Err(broken());
    }
    let mut words = text.strip_prefix(MAGIC).and_then(|rest| rest.strip_prefix(' ')).ok_or_else(broken)?.split(' ');
    match words.next().and_then(|format| format.parse::<u32>().ok()) {
        Some(FORMAT) => {}
        Some(newer) if newer > FORMAT => return Err(Error::newer_format(format_args!("\"{name}\""), newer, FORMAT)),
        _ => return Err(broken()),
    }
    let mut number = || words.next().and_then(|word| u64::from_str_radix(word, 16).ok()).ok_or_else(broken);
    let writer = Writer { engine: number()?, run: number()? };
    Ok((writer, &bytes[end + 1..]))
}

impl Storage for ObjectStorage {
    fn place(&self) -> String {
        self.url.to_string()
    }

    fn slots(&self) -> Result<Vec<Slot>> {
        let listed = self.objects.list(&self.url.key(SLOTS))?;
        let mut numbers: Vec<u64> = listed.iter().filter_map(|object| slot_number(&object.key)).collect();
        numbers.sort_unstable();
        let mut slots = Vec::with_capacity(numbers.len());
        for number in numbers {
            let Some(bytes) = self.objects.get(&self.slot_key(number))? else { continue };
            let manifest = match decode(&manifest_name(number), &bytes) {
                Ok((by, manifest)) => {
                    self.check_engine(number, by)?;
                    (!manifest.is_empty()).then(|| Ok(manifest.to_vec()))
                }
                Err(error) => Some(Err(error)),
            };
            slots.push(Slot { number, manifest });
        }
        Ok(slots)
    }

    fn claim(&self, last: u64) -> Result<u64> {
        let taken = self.take_slot(last + 1, &[]);
        // Who has come in between may be gone, and whoever claims looks again.
        *self.taken_over.lock() = None;
        match taken? {
            Committed::Durable => Ok(last + 1),
            Committed::NumberUsed => Err(Error::internal("a storage is claimed twice")),
        }
    }

    fn files(&self) -> Result<Vec<String>> {
        self.files.names()
    }

    fn has_consecutive_numbers(&self) -> bool {
        true
    }

    fn put(&self, from: &Path, files: &[NewFile]) -> Result<Vec<FileHandle>> {
        self.check_own()?;
        self.files.put(from, files)
    }

    fn is_intact(&self, last: u64) -> Result<bool> {
        self.check_own()?;
        Ok(self.objects.len(&self.slot_key(last))?.is_some())
    }

    fn commit(&self, number: u64, manifest: &[u8]) -> Result<Committed> {
        self.take_slot(number, manifest)
    }

    fn remove_manifests(&self, numbers: &[u64]) -> Result<()> {
        self.check_own()?;
        self.objects.remove(&numbers.iter().map(|number| self.slot_key(*number)).collect::<Vec<_>>())
    }

    fn remove_files(&self, names: &[String]) -> Result<()> {
        self.check_own()?;
        self.files.remove(names)
    }

    fn can_reuse_names(&self) -> bool {
        false
    }

    fn fetch(&self, files: &[FileHandle], into: &Path) -> Result<()> {
        self.files.fetch(files, into)
    }

    fn link(&self, files: &[FileHandle], into: &Path) -> Result<()> {
        let named: Vec<FileHandle> = files.iter().map(|file| FileHandle { local: file.name.clone(), ..file.clone() }).collect();
        self.fetch(&named, into)
    }

    fn read(&self, file: &FileHandle) -> Result<Vec<u8>> {
        self.files.read(file)
    }

    fn set_timeout(&self, timeout: Duration) {
        self.objects.set_timeout(timeout);
    }

    fn stop(&self) {
        self.objects.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_says_who_wrote_it_and_damage_is_found() {
        let writer = Writer { engine: 0xfeed, run: 7 };
        let mut bytes = encode_line(writer).into_bytes();
        assert_eq!(bytes, b"weir-slot 1 000000000000feed 0000000000000007 36164a2efed806c7\n".to_vec());
        let line = bytes.len();
        bytes.extend_from_slice(b"manifest");
        assert_eq!(decode("m", &bytes).unwrap(), (writer, b"manifest".as_slice()));
        assert_eq!(decode("m", &bytes[..line]).unwrap(), (writer, b"".as_slice()));
        for at in 0..line {
            let mut broken = bytes.clone();
            broken[at] ^= 1;
            assert_eq!(decode("m", &broken).unwrap_err().code().as_str(), "XX001", "byte {at}");
        }
        let text = "weir-slot 2 whatever";
        let newer = format!("{text} {:016x}\n", xxh3_64(text.as_bytes()));
        assert_eq!(decode("m", newer.as_bytes()).unwrap_err().code().as_str(), "0A000");
    }
}
