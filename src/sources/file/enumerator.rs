//! Finds a table's files and deals them out, piece by piece, to whichever subtask asks next.
//!
//! A piece of a text file is a few megabytes that hold whole records, read and cut under the file's own lock: so records are found right even where a quoted
//! field goes over a boundary, compressed files are shared like others, and a subtask never waits for another's parsing. A piece of a Parquet file is
//! what is left of a row group.
//!
//! # Invariants
//! - Each part of a file is dealt once in a run, unless it was read before; see [`super::progress`].
//! - A file is known by a hash of its path, 128 bits of XXH3: a name is read once, also when the file has gone and another comes under it.
//! - Files of changes are dealt to one subtask, in order: what a row takes away must have been added before.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use weir_catalog::{ChangelogMode, Error, Result, SqlState};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::config::{BadRecords, FileConfig};
use super::listing::{MISSING, find_local};
use super::objects::Remote;
use super::progress::{FileProgress, Progress};
use super::settling::Settling;
use super::text::{PlainInput, Taken, TextCursor, in_file};
use super::{SourceContext, refused};
use crate::formats::RecordDecoder;
use crate::formats::compression::Compression;
use crate::formats::parquet::{FileParts, ParquetDecoder, ParquetFile};
use crate::formats::records::too_long;
use crate::seams::files::open_regular;
use crate::seams::hash::HashSet;
use crate::seams::objects::joined;
use crate::state::memory_pool::Charge;

/// A part of a file that a subtask reads on its own.
#[derive(Debug)]
pub struct Piece {
    pub file: Arc<FoundFile>,
    /// From where to where it goes, in the measure of [`FileProgress`].
    pub from: u64,
    pub to: u64,
    /// The file's whole length in that measure, where that is known.
    pub end: Option<u64>,
    pub content: Content,
}

impl Piece {
    /// The memory that it holds, bytes. Of Parquet that is what its reader will hold at a time, about.
    pub fn memory_bytes(&self) -> usize {
        match &self.content {
            Content::Text { data, .. } => data.capacity(),
            Content::TooLong { head, .. } => head.capacity(),
            Content::Rows { parts: Some(parts), .. } => parts.memory_bytes(),
            Content::Rows { group, file, .. } => file.row_group_bytes(*group),
        }
    }
}

/// What a piece holds.
#[derive(Debug)]
pub enum Content {
    /// Whole records, and where in the file they begin.
    Text { data: Vec<u8>, position: u64, header: Arc<[u8]> },
    /// A record that is too long, which begins at `position` with `head`.
    TooLong { head: Vec<u8>, position: u64 },
    /// Rows `from..to` of the file: those of `group` behind the first `skip`. Of an object, with what has to be read for that.
    Rows { group: usize, skip: u64, file: Arc<ParquetFile>, parts: Option<FileParts> },
}

/// What the enumerator has for a subtask.
#[derive(Debug)]
pub enum Next {
    Piece(Box<Piece>),
    /// Nothing yet: to be asked for again at once.
    Later,
    /// Nothing until a new file comes.
    Nothing,
    /// Nothing any more.
    End,
}

/// A file as a listing has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub path: PathBuf,
    pub disk_length: u64,
    /// Of an object: which version of it that is, where the store says so.
    pub tag: Option<u64>,
}

/// A file of the table.
#[derive(Debug)]
pub struct FoundFile {
    pub path: PathBuf,
    /// In the order of their discovery.
    pub number: usize,
    /// Its length when it was found.
    pub disk_length: u64,
    /// Its version, from when that is known on: of an object what the store says, of a file of this machine [`version_of`] it when it was first read.
    tag: OnceLock<u64>,
    cursor: Mutex<Cursor>,
    done: AtomicBool,
}

impl FoundFile {
    /// The version that is read, where that is known.
    pub fn tag(&self) -> Option<u64> {
        self.tag.get().copied()
    }
}

/// Where a file's next piece comes from.
enum Cursor {
    /// Not opened yet; what was read before.
    Closed(FileProgress),
    Text(Box<TextCursor>),
    Parquet {
        file: Arc<ParquetFile>,
        rows: u64,
        left: Vec<(usize, u64, u64, u64)>,
    },
    Done,
}

impl std::fmt::Debug for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Cursor::Closed(_) => "Closed",
            Cursor::Text(_) => "Text",
            Cursor::Parquet { .. } => "Parquet",
            Cursor::Done => "Done",
        })
    }
}

/// The table's files, shared by the subtasks of one run of a job.
pub struct Enumerator {
    config: FileConfig,
    /// Of a table whose files are objects.
    remote: Option<Remote>,
    /// How many subtasks have not ended.
    readers: AtomicUsize,
    /// Knows where records end. Its own decoding state is not used.
    records: Option<Box<dyn RecordDecoder>>,
    listing: Mutex<Listing>,
    /// What all subtasks have sent together.
    settling: Mutex<Settling>,
    parallelism: usize,
    longest_record: usize,
    /// Counts what was read ahead of pieces.
    memory: Option<Charge>,
}

#[derive(Default)]
struct Listing {
    /// Files that may have pieces left, in the order in which they are read.
    open: Vec<Arc<FoundFile>>,
    /// The hashes of all files found in this run or before.
    known: HashSet<u128>,
    count: usize,
    listed_at_us: Option<i64>,
}

impl Enumerator {
    /// Finds the files. With `restored`, which leaves out the files whose hashes are in `finished`, those of a table with an end are the ones found then; where
    /// that is of a savepoint, they are looked for again, and those that have come since are read too. Waits for disk. `58P01` where the path names one file that
    /// does not exist.
    pub fn open(
        config: FileConfig,
        records: Option<Box<dyn RecordDecoder>>,
        parallelism: usize,
        restored: Option<&Progress>,
        finished: HashSet<u128>,
        context: &SourceContext,
    ) -> Result<Enumerator> {
        let parallelism = parallelism.max(1);
        let settling = Settling::new(parallelism, restored.cloned().unwrap_or_default(), finished.clone());
        let listing = Mutex::new(Listing { known: finished, ..Listing::default() });
        let remote = config.objects.as_ref().map(Remote::open).transpose()?;
        let (settling, readers) = (Mutex::new(settling), AtomicUsize::new(parallelism));
        let (longest_record, memory) = (context.max_row_bytes, context.charge());
        let enumerator = Enumerator { config, remote, readers, records, listing, settling, parallelism, longest_record, memory };
        {
            let mut listing = enumerator.listing.lock();
            let mut found: Vec<(PathBuf, FileProgress)> = Vec::new();
            if let Some(progress) = restored {
                found.extend(progress.files.iter().map(|(path, progress)| (path.clone(), progress.clone())));
            }
            if restored.is_none() || enumerator.config.watch.is_some() || context.from_savepoint {
                let now = match find(&enumerator.config, enumerator.remote.as_ref()) {
                    // The one file that there was has been read, and has gone: what was read of it stays.
                    Err(error) if restored.is_some() && error.code().as_str() == MISSING => Vec::new(),
                    found => found?,
                };
                for new in now {
                    if !listing.known.contains(&hash_of(&new.path))
                        && restored.is_none_or(|progress| !progress.files.contains_key(&new.path))
                    {
                        found.push((new.path, FileProgress { disk_length: new.disk_length, tag: new.tag, ..FileProgress::default() }));
                    }
                }
            }
            in_reading_order(&mut found, |(path, _)| path);
            for (path, progress) in found {
                listing.add(path, progress);
            }
            enumerator.count_known(0, &listing);
        }
        Ok(enumerator)
    }

    /// Whether what is read comes over a network.
    pub fn is_remote(&self) -> bool {
        self.remote.is_some()
    }

    /// A subtask has ended. With the last one, whatever is under way does.
    pub fn leave(&self) {
        if self.readers.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(remote) = &self.remote
        {
            remote.stop();
        }
    }

    /// Looks for new files, where that is due. Waits for disk.
    pub fn watch(&self, now_us: i64) -> Result<()> {
        let Some(interval) = self.config.watch else { return Ok(()) };
        {
            let mut listing = self.listing.lock();
            let due = listing.listed_at_us.is_none_or(|at| now_us.saturating_sub(at) >= interval.as_micros() as i64);
            if !due {
                return Ok(());
            }
            listing.listed_at_us = Some(now_us);
        }
        let mut found = find(&self.config, self.remote.as_ref())?;
        let mut listing = self.listing.lock();
        found.retain(|new| !listing.known.contains(&hash_of(&new.path)));
        in_reading_order(&mut found, |new| &new.path);
        let before = listing.known.capacity();
        for Found { path, disk_length, tag } in found {
            listing.add(path, FileProgress { disk_length, tag, ..FileProgress::default() });
        }
        self.count_known(before, &listing);
        Ok(())
    }

    /// Counts what it takes to know files, of which there was room for `before`. The listing and the settling know the same.
    fn count_known(&self, before: usize, listing: &Listing) {
        let bytes = |files: usize| 2 * files * size_of::<u128>();
        self.count(bytes(before), bytes(listing.known.capacity()));
    }

    /// What subtasks have sent.
    pub fn settling(&self) -> &Mutex<Settling> {
        &self.settling
    }

    /// The files of a table with an end that have pieces left, for the state: what was found at first is all there is.
    pub fn listed(&self) -> Vec<Found> {
        if self.config.watch.is_some() {
            return Vec::new();
        }
        let found = |file: &Arc<FoundFile>| Found { path: file.path.clone(), disk_length: file.disk_length, tag: file.tag() };
        self.listing.lock().open.iter().map(found).collect()
    }

    /// The next piece for `subtask`. Waits for disk, and perhaps for another subtask that reads a file's next piece.
    pub fn next(&self, subtask: usize) -> Result<Next> {
        let in_order = self.config.format.changelog() != ChangelogMode::Append;
        loop {
            let open: Vec<Arc<FoundFile>> = {
                let mut listing = self.listing.lock();
                listing.open.retain(|file| !file.done.load(Ordering::Acquire));
                if in_order { listing.open.first().cloned().into_iter().collect() } else { listing.open.clone() }
            };
            if open.is_empty() || (in_order && subtask != 0) {
                return Ok(if self.config.watch.is_some() { Next::Nothing } else { Next::End });
            }
            // Each subtask begins elsewhere, so that they seldom meet.
            let first = subtask * open.len() / self.parallelism;
            let mut busy = None;
            for step in 0..open.len() {
                let file = &open[(first + step) % open.len()];
                match file.cursor.try_lock() {
                    None => busy = busy.or(Some(file)),
                    Some(mut cursor) => match self.take(file, &mut cursor)? {
                        Taken::Piece(piece) => return Ok(Next::Piece(Box::new(piece))),
                        Taken::Later => return Ok(Next::Later),
                        Taken::End => {}
                    },
                }
            }
            if let Some(file) = busy {
                let mut cursor = file.cursor.lock();
                match self.take(file, &mut cursor)? {
                    Taken::Piece(piece) => return Ok(Next::Piece(Box::new(piece))),
                    Taken::Later => return Ok(Next::Later),
                    Taken::End => {}
                }
            }
        }
    }

    /// The next piece of `file`; where there is none left, it is done.
    fn take(&self, file: &Arc<FoundFile>, cursor: &mut Cursor) -> Result<Taken> {
        self.take_unchecked(file, cursor).map_err(|error| self.blame(file, error))
    }

    /// What is to be told where reading `file` ended with `error`: of a file of this machine that has changed meanwhile, that it has. What was read of it
    /// then, a record of two halves say, is nobody's.
    pub fn blame(&self, file: &FoundFile, error: Error) -> Error {
        if self.remote.is_some() {
            return error;
        }
        let Ok(metadata) = std::fs::metadata(&file.path) else { return error };
        self.check_unchanged(file, &metadata, self.compression_of(&file.path)).err().unwrap_or(error)
    }

    fn take_unchecked(&self, file: &Arc<FoundFile>, cursor: &mut Cursor) -> Result<Taken> {
        if let Cursor::Closed(progress) = cursor {
            *cursor = if progress.is_complete() { Cursor::Done } else { self.open_file(file, progress)? };
        }
        let taken = match cursor {
            Cursor::Closed(_) | Cursor::Done => Taken::End,
            Cursor::Parquet { file: parquet, rows, left } => {
                // Each piece is read by a reader of its own, which opens the file anew.
                if self.remote.is_none() && !left.is_empty() {
                    let metadata = std::fs::metadata(&file.path).map_err(|e| Error::io(format!("read \"{}\"", file.path.display()), &e))?;
                    self.check_unchanged(file, &metadata, Compression::None)?;
                }
                left.pop().map_or(Taken::End, |(group, skip, from, to)| {
                    let content = Content::Rows { group, skip, file: parquet.clone(), parts: None };
                    Taken::Piece(Piece { file: file.clone(), from, to, end: Some(*rows), content })
                })
            }
            Cursor::Text(text) => {
                let records = self.records.as_deref().ok_or_else(|| Error::internal("a text file without a text format"))?;
                let held = text.memory_bytes();
                let taken = text.take(file, records).map_err(|error| in_file(error, &file.path))?;
                let now = if let Taken::End = taken { 0 } else { text.memory_bytes() };
                self.count(held, now);
                // What is an error is one at once.
                if let (BadRecords::Fail, Some((position, head))) = (self.config.bad_records, text.too_long()) {
                    return Err(refused(&too_long(self.longest_record), head, position, &file.path));
                }
                taken
            }
        };
        if let Taken::End = taken {
            let is_empty = match cursor {
                Cursor::Text(text) => !text.has_begun(),
                Cursor::Parquet { rows, .. } => *rows == 0,
                Cursor::Closed(_) | Cursor::Done => false,
            };
            if is_empty {
                self.settling.lock().note_empty(&file.path, file.disk_length);
            }
            *cursor = Cursor::Done;
            file.done.store(true, Ordering::Release);
        }
        Ok(taken)
    }

    /// Reads what a piece of an object's rows has to be read for. Waits for the store.
    pub fn fetch(&self, piece: &mut Piece, decoder: &ParquetDecoder) -> Result<()> {
        let (Some(remote), Content::Rows { group, file: parquet, parts, .. }) = (&self.remote, &mut piece.content) else { return Ok(()) };
        let file = &piece.file;
        let ranges = joined(&decoder.ranges(&file.path, parquet, *group)?);
        *parts = Some(remote.parts(&file.path, file.disk_length, file.tag(), &ranges)?);
        Ok(())
    }

    fn open_file(&self, file: &FoundFile, progress: &FileProgress) -> Result<Cursor> {
        let path = &file.path;
        let compression = self.compression_of(path);
        let Some(remote) = &self.remote else {
            let opened = self.open_local(file, compression)?;
            return match self.records.as_deref() {
                None => Ok(parquet_cursor(ParquetFile::open(path)?, progress)),
                Some(records) => self.open_text(file, PlainInput::File(opened), compression, progress, records),
            };
        };
        if file.tag().is_none()
            && let Some(tag) = remote.version(path, file.disk_length)?
        {
            // Someone else may have asked too.
            let _ = file.tag.set(tag);
        }
        match self.records.as_deref() {
            None => Ok(parquet_cursor(remote.parquet(path, file.disk_length, file.tag())?, progress)),
            Some(records) => {
                let reader = remote.reader(path, file.disk_length, file.tag())?;
                self.open_text(file, PlainInput::Object(reader), compression, progress, records)
            }
        }
    }

    fn compression_of(&self, path: &Path) -> Compression {
        match (&self.records, self.config.format.compression) {
            (None, _) => Compression::None,
            (Some(_), Some(given)) => given,
            (Some(_), None) => Compression::of_path(path),
        }
    }

    fn open_local(&self, file: &FoundFile, compression: Compression) -> Result<File> {
        let path = &file.path;
        let opened = open_regular(path)?;
        let metadata = opened.metadata().map_err(|e| Error::io(format!("read \"{}\"", path.display()), &e))?;
        self.check_unchanged(file, &metadata, compression)?;
        // Of a file of which nothing was read, what is there now is what is read.
        let _ = file.tag.set(version_of(&metadata));
        Ok(opened)
    }

    /// `55000` where a file of this machine is not what was found, or what was read before.
    fn check_unchanged(&self, file: &FoundFile, metadata: &Metadata, compression: Compression) -> Result<()> {
        let length = metadata.len();
        // Of a text that grew, what was there when it was found is read.
        let may_grow = self.records.is_some() && compression == Compression::None;
        let has_grown = may_grow && length > file.disk_length;
        let detail = if length != file.disk_length && !has_grown {
            format!("It had {} bytes when it was found and has {length} now.", file.disk_length)
        } else {
            let now = version_of(metadata);
            let is_the_same = |was: u64| if has_grown { was >> 32 == now >> 32 } else { was == now };
            if file.tag().is_none_or(is_the_same) {
                return Ok(());
            }
            "It was written to, or another file came in its place, after its first part was read.".to_string()
        };
        Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, format!("file \"{}\" has changed", file.path.display()))
            .with_detail(detail)
            .with_hint("Files must not change once they can be seen: write them elsewhere, and rename them."))
    }

    fn open_text(
        &self,
        file: &FoundFile,
        opened: PlainInput,
        compression: Compression,
        progress: &FileProgress,
        records: &dyn RecordDecoder,
    ) -> Result<Cursor> {
        let text =
            TextCursor::open(&file.path, opened, file.disk_length, compression, progress.read.clone(), records, self.longest_record)?;
        self.count(0, text.memory_bytes());
        Ok(Cursor::Text(Box::new(text)))
    }

    /// Says that one file's bytes ahead were `before` and are `now`.
    fn count(&self, before: usize, now: usize) {
        if let Some(memory) = &self.memory {
            memory.add(now.saturating_sub(before));
            memory.subtract(before.saturating_sub(now));
        }
    }
}

/// The rows of a Parquet file that are left.
fn parquet_cursor(parquet: ParquetFile, progress: &FileProgress) -> Cursor {
    let mut left = Vec::new();
    let mut group_start = 0;
    for (group, rows) in parquet.row_groups().enumerate() {
        // What was read of it, taken out.
        let mut from = group_start;
        for (read_from, read_to) in &progress.read {
            if *read_from < group_start + rows && *read_to > from {
                if *read_from > from {
                    left.push((group, from - group_start, from, *read_from));
                }
                from = (*read_to).min(group_start + rows);
            }
        }
        if from < group_start + rows {
            left.push((group, from - group_start, from, group_start + rows));
        }
        group_start += rows;
    }
    left.reverse();
    Cursor::Parquet { file: Arc::new(parquet), rows: group_start, left }
}

/// The files that a table has now. Of a sink's, those of whole checkpoints. Waits for disk, or the store.
fn find(config: &FileConfig, remote: Option<&Remote>) -> Result<Vec<Found>> {
    match remote {
        Some(remote) => remote.find(config.watch.is_some()),
        None => {
            let found = find_local(config)?;
            Ok(found.into_iter().map(|(path, disk_length)| Found { path, disk_length, tag: None }).collect())
        }
    }
}

/// The first file that a table has now. Waits for disk, or the store.
pub fn first_file(config: &FileConfig) -> Result<Option<Found>> {
    let remote = config.objects.as_ref().map(Remote::open).transpose()?;
    let mut found = find(config, remote.as_ref())?;
    in_reading_order(&mut found, |file| &file.path);
    Ok(found.into_iter().next())
}

impl Listing {
    fn add(&mut self, path: PathBuf, progress: FileProgress) {
        if self.known.insert(hash_of(&path)) && !progress.is_complete() {
            self.open.push(Arc::new(FoundFile {
                path,
                number: self.count,
                disk_length: progress.disk_length,
                tag: progress.tag.map_or_else(OnceLock::new, OnceLock::from),
                cursor: Mutex::new(Cursor::Closed(progress)),
                done: AtomicBool::new(false),
            }));
            self.count += 1;
        }
    }
}

/// What tells a file of this machine from another that has come under its name: 32 bits that stand for its inode, and 32 for when it was last written to.
fn version_of(metadata: &Metadata) -> u64 {
    let inode = xxh3_64(&metadata.ino().to_le_bytes()) >> 32;
    let written = [metadata.mtime().to_le_bytes(), metadata.mtime_nsec().to_le_bytes()].concat();
    inode << 32 | xxh3_64(&written) >> 32
}

/// What a file is known by.
pub fn hash_of(path: &Path) -> u128 {
    xxh3_128(path.as_os_str().as_encoded_bytes())
}

/// Sorts files by name, and those of one name by folder: a sink's files are then in the order in which they were written, over all its partitions.
fn in_reading_order<T>(files: &mut [T], path: impl Fn(&T) -> &PathBuf) {
    files.sort_by(|left, right| {
        let key = |item: &T| (path(item).file_name().map(std::ffi::OsStr::to_os_string), path(item).clone());
        key(left).cmp(&key(right))
    });
}
