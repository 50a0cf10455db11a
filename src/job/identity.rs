//! What tells an engine from all others in names that it gives outside its data folder: a random number, made with the folder and kept in it.
//!
//! It goes where the folder goes. An engine that is begun anew in the same place is another one: it leaves the former one's files alone.
//!
//! On disk: the line `weir-engine 1 <number, 16 hex digits> <XXH3-64 of what is before, 16 hex digits>`.

use std::path::Path;

use weir_catalog::{Error, Result};
use xxhash_rust::xxh3::xxh3_64;

use crate::seams::files::FilesRef;

/// The format of the file that this weir writes.
const FORMAT: u32 = 1;
const NAME: &str = "identity";

/// The number of the engine in `dir`, which is made by `random` where it has none. Waits for disk.
///
/// Errors: `XX001` where the file is damaged, `0A000` where a newer version wrote it.
pub fn open(files: &FilesRef, dir: &Path, random: impl FnOnce() -> u64) -> Result<u64> {
    let path = dir.join(NAME);
    if files.exists(&path) {
        return decode(&path, &files.read(&path)?);
    }
    let number = random();
    let temporary = path.with_extension("tmp");
    files.write(&temporary, encode(number).as_bytes())?;
    files.rename(&temporary, &path)?;
    files.sync_dir(dir)?;
    Ok(number)
}

fn encode(number: u64) -> String {
    let text = format!("weir-engine {FORMAT} {number:016x}");
    format!("{text} {:016x}\n", xxh3_64(text.as_bytes()))
}

fn decode(path: &Path, bytes: &[u8]) -> Result<u64> {
    let broken = || Error::corrupted(format!("\"{}\" is damaged", path.display()));
    let text = std::str::from_utf8(bytes).map_err(|_| broken())?;
    let (text, checksum) = text.strip_suffix('\n').and_then(|text| text.rsplit_once(' ')).ok_or_else(broken)?;
    if checksum != format!("{:016x}", xxh3_64(text.as_bytes())) {
        return Err(broken());
    }
    let (format, number) = text.strip_prefix("weir-engine ").and_then(|text| text.split_once(' ')).ok_or_else(broken)?;
    match format.parse() {
        Ok(FORMAT) => u64::from_str_radix(number, 16).map_err(|_| broken()),
        Ok(newer) if newer > FORMAT => Err(Error::newer_format(format_args!("\"{}\"", path.display()), newer, FORMAT)),
        _ => Err(broken()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seams::files::LocalFiles;

    #[test]
    fn a_number_stays_and_a_damaged_one_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let files: FilesRef = LocalFiles::shared();
        assert_eq!(open(&files, folder.path(), || 0xfeed).unwrap(), 0xfeed);
        assert_eq!(open(&files, folder.path(), || 1).unwrap(), 0xfeed);
        let path = folder.path().join(NAME);
        let bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 1;
            std::fs::write(&path, broken).unwrap();
            assert_eq!(open(&files, folder.path(), || 1).unwrap_err().code().as_str(), "XX001", "byte {at}");
        }
        let text = "weir-engine 2 0000000000000000 more";
        std::fs::write(&path, format!("{text} {:016x}\n", xxh3_64(text.as_bytes()))).unwrap();
        assert_eq!(open(&files, folder.path(), || 1).unwrap_err().code().as_str(), "0A000");
    }
}
