//! The file of a recent run: what `recent.rs` stores of it with a checkpoint. It is only ever written and read as a whole.
//!
//! A table file of RocksDB would do, and costs four times as much to write: blocks, an index and a check of each key's place, for a file that no lookup reads.
//!
//! # Layout
//! [`MAGIC`], then one Zstandard frame with its checksum. In it, for each entry in key order: the length of the key and that of the value (each 4 bytes,
//! little-endian; [`DELETED`] in place of the value's length where the key is deleted), key, value. The lengths of a last entry that is none are both
//! [`END`]: a file that was cut is not taken for a whole one.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use weir_catalog::{Error, Result};

use super::Writes;

const MAGIC: &[u8; 8] = b"weirrun1";
const DELETED: u32 = u32::MAX;
const END: u32 = u32::MAX;
/// Level of compression: the first of those that Zstandard calls fast. Twice the speed of level 1, for a tenth more bytes.
const LEVEL: i32 = -1;
/// What goes to the compressor, and comes from it, at a time.
const BUFFER_BYTES: usize = 128 << 10;

/// Writes `entries`, sorted by key, at most one a key, to a new file at `path`. It is not synced. Errors with `53100` and `58030` as the disk does.
pub(super) fn write(path: &Path, entries: &Writes) -> Result<()> {
    let failed = |error: std::io::Error| Error::io(format!("write {path:?}"), &error);
    let mut file = File::create_new(path).map_err(failed)?;
    file.write_all(MAGIC).map_err(failed)?;
    let mut encoder = zstd::stream::write::Encoder::new(file, LEVEL).map_err(failed)?;
    encoder.include_checksum(true).map_err(failed)?;
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    for (key, value) in entries.iter() {
        // `Writes` takes nothing that is longer.
        buffer.extend_from_slice(&(key.len() as u32).to_le_bytes());
        buffer.extend_from_slice(&value.map_or(DELETED, |value| value.len() as u32).to_le_bytes());
        buffer.extend_from_slice(key);
        buffer.extend_from_slice(value.unwrap_or_default());
        if buffer.len() >= BUFFER_BYTES {
            encoder.write_all(&buffer).map_err(failed)?;
            buffer.clear();
        }
    }
    buffer.extend_from_slice(&END.to_le_bytes());
    buffer.extend_from_slice(&END.to_le_bytes());
    encoder.write_all(&buffer).map_err(failed)?;
    encoder.finish().map_err(failed)?;
    Ok(())
}

/// Reads what [`write`] wrote.
pub(super) struct RunReader {
    path: PathBuf,
    input: BufReader<zstd::stream::read::Decoder<'static, BufReader<File>>>,
    bytes: Vec<u8>,
    ended: bool,
}

impl RunReader {
    /// Opens the file at `path`. Errors with `58030` where it can't be read, `XX001` where it is not such a file.
    pub fn open(path: &Path) -> Result<RunReader> {
        let failed = |error: std::io::Error| damaged(path, &error);
        let mut file = File::open(path).map_err(failed)?;
        let mut magic = [0; MAGIC.len()];
        file.read_exact(&mut magic).map_err(failed)?;
        if magic != *MAGIC {
            return Err(
                Error::corrupted(format!("state file {path:?} is corrupted")).with_detail("It does not begin as one of recent changes.")
            );
        }
        let decoder = zstd::stream::read::Decoder::new(file).map_err(failed)?;
        Ok(RunReader { path: path.to_path_buf(), input: BufReader::with_capacity(BUFFER_BYTES, decoder), bytes: Vec::new(), ended: false })
    }

    /// Adds up to `most` entries to `entries`; false if there are none any more. Errors with `XX001` where the file is damaged.
    pub fn read(&mut self, entries: &mut Writes, most: usize) -> Result<bool> {
        let mut read = 0;
        while read < most && !self.ended {
            let key_length = self.length()?;
            let value_length = self.length()?;
            if key_length == END {
                let mut rest = [0];
                // With the end of the frame comes its checksum.
                if value_length != END || self.input.read(&mut rest).map_err(|error| damaged(&self.path, &error))? != 0 {
                    return Err(Error::corrupted(format!("state file {:?} is corrupted", self.path))
                        .with_detail("It does not end where it should."));
                }
                self.ended = true;
                break;
            }
            let value_bytes = if value_length == DELETED { 0 } else { value_length };
            self.bytes.clear();
            let wanted = u64::from(key_length) + u64::from(value_bytes);
            // As much memory as there are bytes, whatever a damaged length says.
            let got = (&mut self.input).take(wanted).read_to_end(&mut self.bytes).map_err(|error| damaged(&self.path, &error))?;
            if got as u64 != wanted {
                return Err(damaged(&self.path, &ErrorKind::UnexpectedEof.into()));
            }
            let (key, value) = self.bytes.split_at(key_length as usize);
            entries.push(key, (value_length != DELETED).then_some(value))?;
            read += 1;
        }
        Ok(read > 0)
    }

    fn length(&mut self) -> Result<u32> {
        let mut bytes = [0; 4];
        self.input.read_exact(&mut bytes).map_err(|error| damaged(&self.path, &error))?;
        Ok(u32::from_le_bytes(bytes))
    }
}

/// What an error of reading means: that of the system, or that the content is wrong.
fn damaged(path: &Path, error: &std::io::Error) -> Error {
    if error.raw_os_error().is_some() {
        return Error::io(format!("read state file {path:?}"), error);
    }
    Error::corrupted(format!("state file {path:?} is corrupted")).with_detail(format!("It can't be decompressed: {error}."))
}

#[cfg(test)]
mod tests {
    use weir_catalog::SqlState;

    use super::*;

    fn entries() -> Writes {
        let key = |i: u32| [b"key".as_slice(), &i.to_be_bytes()].concat();
        (0..20_000).map(|i| (key(i), (i % 5 != 0).then(|| vec![i as u8; (i % 40) as usize]))).collect()
    }

    fn read_all(path: &Path) -> Result<Writes> {
        let (mut reader, mut all) = (RunReader::open(path)?, Writes::new());
        while reader.read(&mut all, 777)? {}
        Ok(all)
    }

    #[test]
    fn a_run_comes_back_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recent-1.run");
        for entries in [entries(), Writes::new(), [(b"", Some(b""))].into_iter().collect()] {
            write(&path, &entries).unwrap();
            assert_eq!(read_all(&path).unwrap(), entries);
            assert_eq!(write(&path, &entries).unwrap_err().code(), &SqlState::IO_ERROR, "a file is never overwritten");
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_damaged_run_is_found_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recent-1.run");
        let entries = entries();
        write(&path, &entries).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let mut harmless = 0;
        for at in (0..whole.len()).step_by(97).chain([0, whole.len() - 1]) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            std::fs::write(&path, &bytes).unwrap();
            match read_all(&path) {
                // A few bits of a frame's head say nothing of its content.
                Ok(read) => {
                    assert_eq!(read, entries, "{at}");
                    harmless += 1;
                }
                Err(error) => {
                    assert_eq!(error.code(), &SqlState::DATA_CORRUPTED, "{at}: {error}");
                    assert!(error.message().contains("recent-1.run"), "{error}");
                }
            }
            std::fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(read_all(&path).expect_err("a file that was cut").code(), &SqlState::DATA_CORRUPTED, "{at}");
        }
        assert!(harmless < 8, "{harmless} flipped bits were not seen");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read_all(&path).expect_err("no file").code(), &SqlState::IO_ERROR);
    }
}
