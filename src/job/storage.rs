//! Where an engine's checkpoints are: in its data folder, or in an object store.
//!
//! The engine log begins where the oldest checkpoint ends, so a data folder without its checkpoints is worth nothing. Therefore the folder remembers where
//! they are, and a start that would look elsewhere is refused.
//!
//! On disk, where they are not in the folder: the line `weir-checkpoints 1 <url> <XXH3-64 of what is before, 16 hex digits>` in `checkpoint-storage`.

use std::path::Path;
use std::sync::Arc;

use weir_catalog::{Error, Result, SqlState};
use xxhash_rust::xxh3::xxh3_64;

use super::settings::Settings;
use crate::checkpoint::storage::{FolderStorage, ObjectStorage, Storage, Writer};
use crate::seams::files::FilesRef;
use crate::seams::objects::{Objects, Permits};
use crate::state::memory_pool::MemoryPool;

/// The format of the file that this weir writes.
const FORMAT: u32 = 1;
const NAME: &str = "checkpoint-storage";
/// The folder of checkpoints below the data folder.
const CHECKPOINTS: &str = "checkpoints";

/// What bounds the transfers of checkpoints and savepoints to and from object stores together, counted in `memory`.
pub fn permits(settings: &Settings, memory: &Arc<MemoryPool>) -> Arc<Permits> {
    let charge = memory.charge();
    Permits::new(settings.memory, move |bytes| match usize::try_from(bytes) {
        Ok(taken) => charge.add(taken),
        Err(_) => charge.subtract(bytes.unsigned_abs()),
    })
}

/// The storage that `settings` name for the engine in `dir`. Waits for disk.
///
/// Errors: `55000` where the folder's checkpoints are elsewhere; `XX001` where it can't be said where they are; those of [`Objects::open`].
pub fn open(files: &FilesRef, dir: &Path, settings: &Settings, writer: Writer, permits: Arc<Permits>) -> Result<Arc<dyn Storage>> {
    let folder = dir.join(CHECKPOINTS);
    let wanted = settings.checkpoint_storage.as_ref().map(ToString::to_string);
    let path = dir.join(NAME);
    let present = if files.exists(&path) { Some(decode(&path, &files.read(&path)?)?) } else { None };
    let elsewhere = |present: &str, wanted: &str| {
        Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("the checkpoints of data folder \"{}\" are elsewhere", dir.display()),
        )
        .with_detail(format!("They are in {present}; the setting checkpoint_storage is {wanted}."))
        .with_hint("A data folder stays with the checkpoint storage that it began with.")
    };
    match (&present, &wanted) {
        (Some(present), Some(wanted)) if present == wanted => {}
        (Some(present), wanted) => return Err(elsewhere(present, wanted.as_deref().unwrap_or("local"))),
        (None, Some(wanted)) if FolderStorage::is_used(files, &folder)? => return Err(elsewhere("the folder", wanted)),
        (None, _) => {}
    }
    let Some(url) = &settings.checkpoint_storage else {
        return Ok(Arc::new(FolderStorage::open(files.clone(), &folder)?));
    };
    let objects = Objects::open(url, permits)?;
    Ok(Arc::new(ObjectStorage::new(files.clone(), objects, url.clone(), writer)))
}

/// Keeps in the folder where its checkpoints are, now that they can be written there. Waits for disk.
pub fn remember(files: &FilesRef, dir: &Path, settings: &Settings) -> Result<()> {
    let path = dir.join(NAME);
    let Some(url) = settings.checkpoint_storage.as_ref().filter(|_| !files.exists(&path)) else { return Ok(()) };
    let temporary = path.with_extension("tmp");
    files.write(&temporary, encode(&url.to_string()).as_bytes())?;
    files.rename(&temporary, &path)?;
    files.sync_dir(dir)
}

fn encode(url: &str) -> String {
    let text = format!("weir-checkpoints {FORMAT} {url}");
    format!("{text} {:016x}\n", xxh3_64(text.as_bytes()))
}

fn decode(path: &Path, bytes: &[u8]) -> Result<String> {
    let broken = || Error::corrupted(format!("\"{}\" is damaged", path.display()));
    let text = std::str::from_utf8(bytes).map_err(|_| broken())?;
    let (text, checksum) = text.strip_suffix('\n').and_then(|text| text.rsplit_once(' ')).ok_or_else(broken)?;
    if checksum != format!("{:016x}", xxh3_64(text.as_bytes())) {
        return Err(broken());
    }
    let (format, url) = text.strip_prefix("weir-checkpoints ").and_then(|text| text.split_once(' ')).ok_or_else(broken)?;
    match format.parse() {
        Ok(FORMAT) => Ok(url.to_string()),
        Ok(newer) if newer > FORMAT => Err(Error::newer_format(format_args!("\"{}\"", path.display()), newer, FORMAT)),
        _ => Err(broken()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seams::files::LocalFiles;

    #[test]
    fn a_folder_stays_with_the_storage_that_it_began_with() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, files): (&Path, FilesRef) = (folder.path(), LocalFiles::shared());
        let memory = MemoryPool::new(64 << 20);
        let settings = |storage: &str| {
            let mut settings = Settings::new(dir.to_path_buf()).unwrap();
            settings.set("checkpoint_storage", storage).unwrap();
            settings
        };
        let open = |storage: &str| {
            let settings = settings(storage);
            open(&files, dir, &settings, Writer { engine: 1, run: 1 }, permits(&settings, &memory))
        };
        assert_eq!(open("local").unwrap().place(), dir.join(CHECKPOINTS).display().to_string());
        // A folder that has no checkpoint yet may still go elsewhere.
        assert_eq!(open("s3://a/b").unwrap().place(), "s3://a/b");
        remember(&files, dir, &settings("s3://a/b")).unwrap();
        assert_eq!(open("s3://a/b").unwrap().place(), "s3://a/b");
        for other in ["local", "s3://a/c"] {
            let error = open(other).unwrap_err();
            assert_eq!(error.code().as_str(), "55000");
            assert!(error.detail().is_some_and(|detail| detail.contains("s3://a/b;") && detail.contains(other)), "{error}");
        }
        std::fs::remove_file(dir.join(NAME)).unwrap();
        std::fs::write(dir.join(CHECKPOINTS).join("MANIFEST-00000000000000000001"), "").unwrap();
        assert_eq!(open("s3://a/b").unwrap_err().code().as_str(), "55000");
        let bytes = encode("s3://a/b").into_bytes();
        for at in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 1;
            assert_eq!(decode(dir, &broken).unwrap_err().code().as_str(), "XX001", "byte {at}");
        }
        let text = "weir-checkpoints 2 s3://a/b";
        let newer = format!("{text} {:016x}\n", xxh3_64(text.as_bytes()));
        assert_eq!(decode(dir, newer.as_bytes()).unwrap_err().code().as_str(), "0A000");
    }
}
