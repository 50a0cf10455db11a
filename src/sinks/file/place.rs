//! Where a `file` sink's files are, and what their names say.
//!
//! ```text
//! out/day=1/orders.5f3c2a10-000000000042-9c01de-003-000007.csv     a visible file
//!     │     │      │        │            │      │   └ number, of those that the subtask opened in this run
//!     │     │      │        │            │      └ subtask
//!     │     │      │        │            └ run
//!     │     │      │        └ the barrier at which it was closed
//!     │     │      └ the engine and the job
//!     │     └ the job's name
//!     └ partition_by
//! out/day=1/.orders.5f3c2a10-9c01de-003-000007.csv                 the same before
//! out/_weir_commits/orders.5f3c2a10-000000000042-9c01de.json       the record that names it, and all others closed at that barrier
//! ```
//!
//! A record appears when all files that it names are there, and goes before any of them is taken back. So a reader that first takes the names from the
//! records, and then reads those files, sees whole checkpoints only. Files sorted by name are in the order of the barriers, and those of one
//! subtask in the order in which they were written, over restarts too.
//!
//! An object is named when its upload begins, and can't be renamed: the barrier in its name is the first one behind its first row. That is behind a barrier
//! where a checkpoint was taken if and only if the one at which the upload ended is, since a checkpoint ends all of them. So both kinds of names say which
//! checkpoints have the file, and sort alike.
//!
//! # Invariants
//! - A name is used once: a run has a random number of its own, and barriers are never used again.
//! - The first run of a sink leaves a record at barrier 0, which names nothing, before any of its files can be seen: where a sink has no record, nobody
//!   waits for one. Of a sink that begins with a savepoint it says where that was: see [`super::descent`].

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use weir_catalog::{Error, Result};
use xxhash_rust::xxh3::xxh3_64;

use super::descent::Standing;
use crate::seams::files::FilesRef;
use crate::seams::hash::{HashMap, HashSet};
use crate::seams::objects::{ObjectUrl, Objects};
use crate::sinks::commit::{HiddenFiles, PendingCommit, RECORDS, abandoned, encode_first_record, folders, read_record, write_first_record};
use crate::stream::BarrierNumber;

/// Hexadecimal digits of the engine and job, of the run, and decimal digits of a barrier, in names.
const IDENTITY_DIGITS: usize = 8;
const RUN_DIGITS: usize = 6;
const BARRIER_DIGITS: usize = 12;

/// What the names of all files of the job `id` called `name` of the engine `engine` begin with.
pub fn identity(engine: u64, id: u64, name: &str) -> String {
    let mut bytes = engine.to_le_bytes().to_vec();
    bytes.extend_from_slice(&id.to_le_bytes());
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
    let identity = xxh3_64(&bytes) as u32;
    format!("{name}.{identity:08x}")
}

/// The place of one run of one sink.
#[derive(Clone, Debug)]
pub struct SinkPlace {
    root: PathBuf,
    /// How many columns partition it.
    depth: usize,
    /// `<job>.<engine and job>`
    sink: String,
    run: String,
}

impl SinkPlace {
    /// For the job `id` called `name` of the engine `engine`. `run` is random.
    pub fn new(root: PathBuf, depth: usize, engine: u64, id: u64, name: &str, run: u64) -> SinkPlace {
        SinkPlace { root, depth, sink: identity(engine, id, name), run: format!("{:06x}", run & 0xff_ffff) }
    }

    /// The folder below the sink's own with this name; the sink's own where that is empty.
    pub fn folder(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.root.clone() } else { self.root.join(name) }
    }

    /// What the name of a file ends with, which a subtask writes.
    pub fn tail(&self, subtask: usize, number: u64, extension: &str) -> String {
        format!("{}-{subtask:03}-{number:06}.{extension}", self.run)
    }

    /// The hidden name of a file in `folder`.
    pub fn hidden(&self, folder: &Path, tail: &str) -> PathBuf {
        folder.join(format!(".{}-{tail}", self.sink))
    }

    /// The name of a visible file in `folder`.
    pub fn visible(&self, folder: &Path, tail: &str, barrier: BarrierNumber) -> PathBuf {
        folder.join(format!("{}-{barrier:0BARRIER_DIGITS$}-{tail}", self.sink))
    }

    /// What is to be committed of a file in `folder` that was closed at `barrier`.
    pub fn commit(&self, folder: &Path, tail: &str, barrier: BarrierNumber) -> PendingCommit {
        PendingCommit::File {
            hidden: self.hidden(folder, tail),
            target: self.visible(folder, tail, barrier),
            record: Some(self.record(barrier)),
        }
    }

    /// The record of what was closed at `barrier`.
    pub fn record(&self, barrier: BarrierNumber) -> PathBuf {
        self.root.join(RECORDS).join(format!("{}-{barrier:0BARRIER_DIGITS$}-{}.json", self.sink, self.run))
    }

    /// Where the sink's hidden files are.
    pub fn hidden_files(&self) -> HiddenFiles {
        HiddenFiles { root: self.root.clone(), depth: self.depth, prefix: format!("{}-", self.sink) }
    }

    /// Makes the folder, and the record of a run that is `first`, which has where the sink comes from. Waits for disk.
    pub fn prepare(&self, files: &FilesRef, first: Option<Option<&Standing>>) -> Result<()> {
        files.create_dir(&self.root)?;
        match first {
            Some(from) => write_first_record(files, &self.record(0), from),
            None => Ok(()),
        }
    }

    /// As [`SinkPlace::prepare`], in an object store.
    pub fn prepare_objects(&self, objects: &Objects, first: Option<Option<&Standing>>) -> Result<()> {
        let Some(from) = first else { return Ok(()) };
        let record = self.record(0);
        let key = ObjectUrl::split(&record).ok_or_else(|| Error::internal(format!("\"{}\" is no object", record.display())))?.1;
        objects.put(key, Bytes::from(encode_first_record(from)?))
    }

    /// What runs before have left in an object store that the checkpoint at `barrier` does not have. Waits for the store.
    pub fn left_behind_in_store(&self, objects: &Objects, url: &ObjectUrl, barrier: BarrierNumber) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for object in objects.list(&url.prefix)? {
            let path = PathBuf::from(objects.url(&object.key));
            let Ok(below) = path.strip_prefix(&self.root) else { continue };
            let depth = below.components().count();
            let is_own = depth <= self.depth + 1 || (depth == 2 && below.starts_with(RECORDS));
            if is_own && self.is_later(below.file_name().and_then(OsStr::to_str), barrier) {
                found.push(path);
            }
        }
        Ok(found)
    }

    /// Whether `name` is that of a file or record of this sink that the checkpoint at `barrier` does not have.
    fn is_later(&self, name: Option<&str>, barrier: BarrierNumber) -> bool {
        name.and_then(SinkFileName::parse).is_some_and(|name| name.sink == self.sink && name.barrier > barrier)
    }

    /// What runs before have left that the checkpoint at `barrier`, which lists `kept`, does not have: hidden files that will never be visible, and what
    /// became visible later. Waits for disk.
    pub fn left_behind(&self, files: &FilesRef, barrier: BarrierNumber, kept: &[PendingCommit]) -> Result<Vec<PathBuf>> {
        let prefix = format!("{}-", self.sink);
        let records = self.root.join(RECORDS);
        let mut found = Vec::new();
        for folder in std::iter::once(records).chain(folders(&self.root, self.depth)?) {
            found.extend(abandoned(files, &folder, &prefix, kept)?);
            found.extend(
                files.list(&folder)?.into_iter().filter(|name| self.is_later(name.to_str(), barrier)).map(|name| folder.join(name)),
            );
        }
        Ok(found)
    }
}

/// What the name of a visible file, or of a record, says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SinkFileName<'a> {
    pub sink: &'a str,
    pub barrier: BarrierNumber,
}

impl SinkFileName<'_> {
    /// `None` for a name that no sink gives.
    pub fn parse(name: &str) -> Option<SinkFileName<'_>> {
        let dot = name.find('.')?;
        let identity_end = dot + 1 + IDENTITY_DIGITS;
        let identity = name.get(dot + 1..identity_end)?;
        let rest = name.get(identity_end..)?.strip_prefix('-')?;
        let (barrier, rest) = rest.split_once('-')?;
        let run = rest.get(..RUN_DIGITS)?;
        let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let follows = matches!(rest.as_bytes().get(RUN_DIGITS), Some(b'-' | b'.'));
        let fits = dot > 0 && is_hex(identity) && barrier.len() >= BARRIER_DIGITS && is_hex(run) && follows;
        let barrier = barrier.bytes().all(|byte| byte.is_ascii_digit()).then(|| barrier.parse().ok())??;
        fits.then_some(SinkFileName { sink: &name[..identity_end], barrier })
    }
}

/// Where records are read.
pub trait Records {
    /// Those in the folder of records `folder`, each with the files that it names: of each sink, all up to some barrier. And the sinks that have any. `None`
    /// where there is no such folder.
    fn read(&self, folder: &Path) -> Result<Option<FolderRecords>>;
}

/// Records in the file system.
#[derive(Clone, Copy, Debug)]
pub struct LocalRecords;

/// Which files of sinks readers may see: read once, before the files are listed.
#[derive(Debug, Default)]
pub struct Published {
    /// Sinks that had files when the records were read.
    sinks: HashSet<String>,
    /// By folder; `None` where a folder has no records.
    folders: HashMap<PathBuf, Option<FolderRecords>>,
}

/// What the records of a folder say.
#[derive(Debug, Default)]
pub struct FolderRecords {
    pub sinks: HashSet<String>,
    pub files: HashSet<PathBuf>,
}

impl Published {
    /// Reads the records that say something of `paths`, files of a listing. Returns whether there are any. Waits for disk, or the store.
    ///
    /// Errors: those of [`read_record`].
    pub fn read_for<'a>(&mut self, records: &dyn Records, paths: impl Iterator<Item = &'a Path>) -> Result<bool> {
        for path in paths {
            let Some(sink) = sink_of(path) else { continue };
            if !self.sinks.contains(sink) {
                self.sinks.insert(sink.to_string());
            }
            for folder in path.ancestors().skip(1) {
                if !self.folders.contains_key(folder) {
                    let records = records.read(&folder.join(RECORDS))?;
                    self.folders.insert(folder.to_path_buf(), records);
                }
            }
        }
        Ok(self.folders.values().any(Option::is_some))
    }

    /// Whether a reader that lists files after the records were read may see the one at `path`: where the records above it know its sink, they must name
    /// it, and a sink that had no file before must wait.
    pub fn has(&self, path: &Path) -> bool {
        let Some(sink) = sink_of(path) else { return true };
        let mut above = path.ancestors().skip(1).filter_map(|folder| self.folders.get(folder)?.as_ref());
        match above.find(|records| records.sinks.contains(sink)) {
            Some(records) => records.files.contains(path),
            None => self.sinks.contains(sink) && path.parent().is_some_and(|folder| self.folders.contains_key(folder)),
        }
    }
}

/// The sink that a file or record at `path` is of, by its name.
pub fn sink_of(path: &Path) -> Option<&str> {
    SinkFileName::parse(path.file_name()?.to_str()?).map(|name| name.sink)
}

impl Records for LocalRecords {
    fn read(&self, folder: &Path) -> Result<Option<FolderRecords>> {
        let failed = |path: &Path, e: &std::io::Error| Error::io(format!("read \"{}\"", path.display()), e);
        let is_gone = |e: &std::io::Error| matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory);
        // A listing may miss a record that comes while it goes on and yet have a later one: only one that stands still is taken.
        let list = || -> Result<Option<BTreeSet<OsString>>> {
            match std::fs::read_dir(folder) {
                Err(e) if is_gone(&e) => Ok(None),
                entries => {
                    let names = entries.and_then(|entries| entries.map(|entry| entry.map(|entry| entry.file_name())).collect());
                    names.map(Some).map_err(|e| failed(folder, &e))
                }
            }
        };
        let Some(mut names) = list()? else { return Ok(None) };
        loop {
            let again = list()?.unwrap_or_default();
            if again == names {
                break;
            }
            names = again;
        }
        let mut records = FolderRecords::default();
        for path in names.into_iter().map(|name| folder.join(name)) {
            let Some(sink) = sink_of(&path) else { continue };
            records.sinks.insert(sink.to_string());
            match std::fs::read(&path) {
                Ok(bytes) => records.files.extend(read_record(&path, &bytes)?),
                // Taken back meanwhile.
                Err(e) if is_gone(&e) => {}
                Err(e) => return Err(failed(&path, &e)),
            }
        }
        Ok(Some(records))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::commit::write_record;

    #[test]
    fn readers_see_what_records_name_and_what_no_record_is_about() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let files: FilesRef = crate::seams::files::LocalFiles::shared();
        let place = |id: u64| SinkPlace::new(root.join("out"), 1, 7, id, "s", 1);
        let (sink, other) = (place(1), place(2));
        sink.prepare(&files, Some(None)).unwrap();
        let target = |place: &SinkPlace, folder: &str, barrier: u64| -> PathBuf {
            match place.commit(&root.join(folder), &place.tail(0, 1, "csv"), barrier) {
                PendingCommit::File { target, .. } => target,
                PendingCommit::Upload { .. } | PendingCommit::Remove { .. } => panic!("a file"),
            }
        };
        let (named, unnamed, in_new_folder) = (target(&sink, "out/k=1", 5), target(&sink, "out", 6), target(&sink, "out/k=2", 5));
        write_record(&files, &sink.record(5), &[named.as_path(), in_new_folder.as_path()]).unwrap();
        let (copied, plain) = (target(&sink, "elsewhere", 9), root.join("out/a.csv"));
        let stranger = target(&other, "out", 5);
        let mut published = Published::default();
        let listed = [&named, &unnamed, &copied, &plain];
        assert!(published.read_for(&LocalRecords, listed.iter().map(|path| path.as_path())).unwrap());
        assert_eq!(listed.map(|path| published.has(path)), [true, false, true, true]);
        assert!(published.has(&in_new_folder), "records name what was not there yet when files were listed first");
        assert!(!published.has(&stranger), "a sink that had no file then may have a record by now");
        assert!(!Published::default().read_for(&LocalRecords, std::iter::once(copied.as_path())).unwrap());
    }

    #[test]
    fn names_are_read_as_they_are_given() {
        let place = SinkPlace::new("/out".into(), 0, 7, 20_000, "a sink", 0xabc_def0);
        let tail = place.tail(3, 7, "csv.gz");
        let PendingCommit::File { hidden, target, record } = place.commit(Path::new("/out/day=1"), &tail, 42) else { panic!("a file") };
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_string();
        let sink = place.sink.clone();
        assert!(sink.starts_with("a_sink."));
        assert_eq!(name(&target), format!("{sink}-000000000042-bcdef0-003-000007.csv.gz"));
        assert_eq!(name(&hidden), format!(".{sink}-bcdef0-003-000007.csv.gz"));
        let record = record.unwrap();
        assert_eq!(record.parent(), Some(Path::new("/out/_weir_commits")));
        for visible in [name(&target), name(&record)] {
            assert_eq!(SinkFileName::parse(&visible), Some(SinkFileName { sink: &sink, barrier: 42 }));
        }
        for other in
            ["a.csv", ".a.5f3c2a10-000000000042-9c01de-0.csv", "a.5f3c2a10-42-9c01de.json", "a.5f3c2a1g-000000000042-9c01de-0.csv", "é"]
        {
            assert_eq!(SinkFileName::parse(other), None, "{other}");
        }
    }
}
