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

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use weir_catalog::{ChangelogMode, Error, Result, SqlState};
use xxhash_rust::xxh3::xxh3_128;

use super::config::FileConfig;
use super::progress::{FileProgress, Progress};
use super::settling::Settling;
use crate::formats::RecordDecoder;
use crate::formats::compression::Compression;
use crate::formats::parquet::ParquetFile;
use crate::seams::hash::HashSet;
use crate::sinks::file::place::Published;
use crate::state::memory_pool::Charge;

/// About how large a piece of a text file is, bytes.
const PIECE_BYTES: usize = 4 << 20;
/// The longest record, bytes: more is read at once only to find its end.
pub const RECORD_BYTES_MAX: usize = 16 << 20;

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
            Content::Rows { group, file, .. } => file.row_group_bytes(*group),
        }
    }
}

/// What a piece holds.
#[derive(Debug)]
pub enum Content {
    /// Whole records, and where in the file they begin.
    Text { data: Vec<u8>, position: u64, header: Arc<[u8]> },
    /// Rows `from..to` of the file: those of `group` behind the first `skip`.
    Rows { group: usize, skip: u64, file: Arc<ParquetFile> },
}

/// What the enumerator has for a subtask.
#[derive(Debug)]
pub enum Next {
    Piece(Box<Piece>),
    /// Nothing until a new file comes.
    Nothing,
    /// Nothing any more.
    End,
}

/// A file of the table.
#[derive(Debug)]
pub struct FoundFile {
    pub path: PathBuf,
    /// In the order of their discovery.
    pub number: usize,
    /// Its length when it was found.
    pub disk_length: u64,
    cursor: Mutex<Cursor>,
    done: AtomicBool,
}

/// Where a file's next piece comes from.
enum Cursor {
    /// Not opened yet; what was read before.
    Closed(FileProgress),
    Text(TextCursor),
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
    /// Knows where records end. Its own decoding state is not used.
    records: Option<Box<dyn RecordDecoder>>,
    listing: Mutex<Listing>,
    /// What all subtasks have sent together.
    settling: Mutex<Settling>,
    parallelism: usize,
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
    /// Finds the files. With `restored`, which leaves out the files whose hashes are in `finished`, those of a table with an end are the ones found then.
    /// Waits for disk. `58P01` where the path names one file that does not exist.
    pub fn open(
        config: FileConfig,
        records: Option<Box<dyn RecordDecoder>>,
        parallelism: usize,
        restored: Option<&Progress>,
        finished: HashSet<u128>,
        memory: Option<Charge>,
    ) -> Result<Enumerator> {
        let parallelism = parallelism.max(1);
        let settling = Settling::new(parallelism, restored.cloned().unwrap_or_default(), finished.clone());
        let listing = Mutex::new(Listing { known: finished, ..Listing::default() });
        let enumerator = Enumerator { config, records, listing, settling: Mutex::new(settling), parallelism, memory };
        {
            let mut listing = enumerator.listing.lock();
            let mut found: Vec<(PathBuf, FileProgress)> = Vec::new();
            if let Some(progress) = restored {
                found.extend(progress.files.iter().map(|(path, progress)| (path.clone(), progress.clone())));
            }
            if restored.is_none() || enumerator.config.watch.is_some() {
                for (path, disk_length) in enumerator.find()? {
                    if !listing.known.contains(&hash_of(&path)) && restored.is_none_or(|progress| !progress.files.contains_key(&path)) {
                        found.push((path, FileProgress { disk_length, ..FileProgress::default() }));
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

    /// The files that the path names now, with their lengths. Of a sink's, those of whole checkpoints: the records that say so are read first, and so every
    /// file that they name is there when files are listed.
    fn find(&self) -> Result<Vec<(PathBuf, u64)>> {
        let found = self.list()?;
        let mut published = Published::default();
        if !published.read_for(found.iter().map(|(path, _)| path.as_path()))? {
            return Ok(found);
        }
        let mut found = self.list()?;
        found.retain(|(path, _)| *path == self.config.path || published.has(path));
        Ok(found)
    }

    /// The files that the path names now, with their lengths.
    fn list(&self) -> Result<Vec<(PathBuf, u64)>> {
        let path = &self.config.path;
        let failed = |path: &Path, e: &std::io::Error| Error::io(format!("read \"{}\"", path.display()), e);
        let mut found = Vec::new();
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => {
                let mut folders = vec![path.clone()];
                while let Some(folder) = folders.pop() {
                    for entry in std::fs::read_dir(&folder).map_err(|e| failed(&folder, &e))? {
                        let entry = entry.map_err(|e| failed(&folder, &e))?;
                        if is_hidden(&entry.path()) {
                            continue;
                        }
                        if entry.file_type().map_err(|e| failed(&entry.path(), &e))?.is_dir() {
                            folders.push(entry.path());
                            continue;
                        }
                        // Links to files count, those to folders don't; what has gone since it was listed is not there.
                        match std::fs::metadata(entry.path()) {
                            Ok(metadata) if metadata.is_file() => found.push((entry.path(), metadata.len())),
                            Ok(_) => {}
                            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                            Err(e) => return Err(failed(&entry.path(), &e)),
                        }
                    }
                }
            }
            Ok(metadata) => found.push((path.clone(), metadata.len())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let text = path.to_string_lossy();
                if !text.contains(['*', '?', '[']) {
                    if self.config.watch.is_some() {
                        return Ok(Vec::new()); // It may come.
                    }
                    let code = SqlState::parse("58P01").unwrap_or(SqlState::IO_ERROR);
                    return Err(Error::new(code, format!("file \"{text}\" does not exist")));
                }
                let options = glob::MatchOptions {
                    require_literal_separator: true,
                    require_literal_leading_dot: true,
                    ..glob::MatchOptions::default()
                };
                let malformed = |e: glob::PatternError| {
                    Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("pattern \"{text}\" is malformed")).with_detail(e.to_string())
                };
                for path in glob::glob_with(&text, options).map_err(malformed)? {
                    let path = path.map_err(|e| failed(e.path(), e.error()))?;
                    match std::fs::metadata(&path) {
                        Ok(metadata) if metadata.is_file() && !is_hidden(&path) => found.push((path, metadata.len())),
                        Ok(_) => {}
                        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                        Err(e) => return Err(failed(&path, &e)),
                    }
                }
            }
            Err(e) => return Err(failed(path, &e)),
        }
        Ok(found)
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
        let mut found = self.find()?;
        let mut listing = self.listing.lock();
        found.retain(|(path, _)| !listing.known.contains(&hash_of(path)));
        in_reading_order(&mut found, |(path, _)| path);
        let before = listing.known.capacity();
        for (path, disk_length) in found {
            listing.add(path, FileProgress { disk_length, ..FileProgress::default() });
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
    pub fn listed(&self) -> Vec<(PathBuf, u64)> {
        if self.config.watch.is_some() {
            return Vec::new();
        }
        self.listing.lock().open.iter().map(|file| (file.path.clone(), file.disk_length)).collect()
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
                    Some(mut cursor) => {
                        if let Some(piece) = self.take(file, &mut cursor)? {
                            return Ok(Next::Piece(Box::new(piece)));
                        }
                    }
                }
            }
            if let Some(file) = busy {
                let mut cursor = file.cursor.lock();
                if let Some(piece) = self.take(file, &mut cursor)? {
                    return Ok(Next::Piece(Box::new(piece)));
                }
            }
        }
    }

    /// The next piece of `file`; `None` where there is none left, and then it is done.
    fn take(&self, file: &Arc<FoundFile>, cursor: &mut Cursor) -> Result<Option<Piece>> {
        if let Cursor::Closed(progress) = cursor {
            *cursor = if progress.is_complete() { Cursor::Done } else { self.open_file(file, progress)? };
        }
        let piece = match cursor {
            Cursor::Closed(_) | Cursor::Done => None,
            Cursor::Parquet { file: parquet, rows, left } => left.pop().map(|(group, skip, from, to)| Piece {
                file: file.clone(),
                from,
                to,
                end: Some(*rows),
                content: Content::Rows { group, skip, file: parquet.clone() },
            }),
            Cursor::Text(text) => {
                let records = self.records.as_deref().ok_or_else(|| Error::internal("a text file without a text format"))?;
                let held = text.ahead.capacity();
                let piece = text.take(file, records).map_err(|error| in_file(error, &file.path))?;
                let now = if piece.is_some() { text.ahead.capacity() } else { 0 };
                self.count(held, now);
                piece
            }
        };
        if piece.is_none() {
            let is_empty = match cursor {
                Cursor::Text(text) => !text.begun,
                Cursor::Parquet { rows, .. } => *rows == 0,
                Cursor::Closed(_) | Cursor::Done => false,
            };
            if is_empty {
                self.settling.lock().note_empty(&file.path, file.disk_length);
            }
            *cursor = Cursor::Done;
            file.done.store(true, Ordering::Release);
        }
        Ok(piece)
    }

    fn open_file(&self, file: &FoundFile, progress: &FileProgress) -> Result<Cursor> {
        let path = &file.path;
        let opened = File::open(path).map_err(|e| Error::io(format!("open \"{}\"", path.display()), &e))?;
        let length = opened.metadata().map_err(|e| Error::io(format!("read \"{}\"", path.display()), &e))?.len();
        let compression = match (&self.records, self.config.format.compression) {
            (None, _) => Compression::None,
            (Some(_), Some(given)) => given,
            (Some(_), None) => Compression::of_path(path),
        };
        // Of a text that grew, what was there when it was found is read.
        let changed =
            length < file.disk_length || (length != file.disk_length && (self.records.is_none() || compression != Compression::None));
        if changed {
            return Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, format!("file \"{}\" has changed", path.display()))
                .with_detail(format!("It had {} bytes when it was found and has {length} now.", file.disk_length))
                .with_hint("Files must not change once they can be seen: write them elsewhere, and rename them."));
        }
        let Some(records) = self.records.as_deref() else {
            let parquet = Arc::new(ParquetFile::open(path)?);
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
            return Ok(Cursor::Parquet { file: parquet, rows: group_start, left });
        };
        let input = match compression {
            Compression::None => Input::Plain { file: opened, left: file.disk_length },
            packed => Input::Packed(packed.reader(opened).map_err(|e| Error::io(format!("read \"{}\"", path.display()), &e))?),
        };
        let mut text = TextCursor {
            input,
            position: 0,
            ahead: Vec::new(),
            at_end: false,
            header: Arc::from([].as_slice()),
            read: progress.read.clone(),
            begun: false,
        };
        text.read_header(path, records)?;
        self.count(0, text.ahead.capacity());
        Ok(Cursor::Text(text))
    }

    /// Says that one file's bytes ahead were `before` and are `now`.
    fn count(&self, before: usize, now: usize) {
        if let Some(memory) = &self.memory {
            memory.add(now.saturating_sub(before));
            memory.subtract(before.saturating_sub(now));
        }
    }
}

/// The first file that a table has now.
pub fn first_file(config: &FileConfig) -> Result<Option<PathBuf>> {
    let settling = Mutex::new(Settling::new(1, Progress::default(), HashSet::default()));
    let enumerator =
        Enumerator { config: config.clone(), records: None, listing: Mutex::default(), settling, parallelism: 1, memory: None };
    let mut found = enumerator.find()?;
    in_reading_order(&mut found, |(path, _)| path);
    Ok(found.into_iter().next().map(|(path, _)| path))
}

impl Listing {
    fn add(&mut self, path: PathBuf, progress: FileProgress) {
        if self.known.insert(hash_of(&path)) && !progress.is_complete() {
            self.open.push(Arc::new(FoundFile {
                path,
                number: self.count,
                disk_length: progress.disk_length,
                cursor: Mutex::new(Cursor::Closed(progress)),
                done: AtomicBool::new(false),
            }));
            self.count += 1;
        }
    }
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

/// Files and folders whose names begin so are not for readers: open files of sinks, markers of other engines.
fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| matches!(name.as_encoded_bytes().first(), Some(b'.' | b'_')))
}

fn in_file(error: Error, path: &Path) -> Error {
    match error.context() {
        Some(_) => error,
        None => error.with_context(format!("file \"{}\"", path.display())),
    }
}

/// The plain bytes of a text file.
enum Input {
    Plain {
        file: File,
        /// What is left of its length when it was found.
        left: u64,
    },
    Packed(Box<dyn Read + Send>),
}

/// Cuts a text file into pieces.
struct TextCursor {
    input: Input,
    /// Where in the plain bytes the next piece begins.
    position: u64,
    /// What was read from there on.
    ahead: Vec<u8>,
    /// Whether `ahead` goes to the end of the file.
    at_end: bool,
    header: Arc<[u8]>,
    /// The parts that were read before.
    read: Vec<(u64, u64)>,
    /// Whether a piece was dealt in this run.
    begun: bool,
}

impl TextCursor {
    fn fill(&mut self, wanted: usize) -> Result<()> {
        while self.ahead.len() < wanted && !self.at_end {
            let room = wanted - self.ahead.len();
            let taken = match &mut self.input {
                Input::Plain { file, left } => {
                    let most = (room as u64).min(*left);
                    let taken = file.take(most).read_to_end(&mut self.ahead);
                    if let Ok(taken) = taken {
                        *left -= taken as u64;
                    }
                    taken
                }
                Input::Packed(reader) => reader.take(room as u64).read_to_end(&mut self.ahead),
            };
            match taken {
                Ok(0) => {
                    if let Input::Plain { left: 1.., .. } = self.input {
                        return Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "a file was cut while it was read"));
                    }
                    self.at_end = true;
                }
                Ok(_) => {}
                Err(e) => return Err(Error::io("read a file", &e)),
            }
        }
        Ok(())
    }

    fn read_header(&mut self, path: &Path, records: &dyn RecordDecoder) -> Result<()> {
        let mut wanted = 64 << 10;
        let length = loop {
            self.fill(wanted)?;
            match records.header_length(&self.ahead) {
                Some(length) => break length,
                None if self.at_end => break self.ahead.len(),
                None if wanted > RECORD_BYTES_MAX => return Err(in_file(too_long(self.position), path)),
                None => wanted *= 2,
            }
        };
        self.header = Arc::from(&self.ahead[..length]);
        self.advance(length as u64)
    }

    /// Goes on to `position`.
    fn advance(&mut self, position: u64) -> Result<()> {
        let mut distance = position - self.position;
        let held = distance.min(self.ahead.len() as u64);
        self.ahead.drain(..held as usize);
        distance -= held;
        self.position = position;
        if distance == 0 {
            return Ok(());
        }
        match &mut self.input {
            Input::Plain { file, left } => {
                let skipped = distance.min(*left);
                file.seek(SeekFrom::Current(skipped as i64)).map_err(|e| Error::io("read a file", &e))?;
                *left -= skipped;
            }
            Input::Packed(reader) => {
                std::io::copy(&mut reader.take(distance), &mut std::io::sink()).map_err(|e| Error::io("read a file", &e))?;
            }
        }
        Ok(())
    }

    /// The next piece; `None` at the end of the file.
    fn take(&mut self, file: &Arc<FoundFile>, records: &dyn RecordDecoder) -> Result<Option<Piece>> {
        // Behind what was read before. The first part read begins at 0, with the header.
        while let Some((_, to)) = self.read.first().copied().filter(|(from, _)| *from <= self.position) {
            self.read.remove(0);
            if to > self.position {
                self.advance(to)?;
            }
            self.begun = true;
        }
        let stop = self.read.first().map(|(from, _)| *from);
        let room = stop.map_or(usize::MAX, |stop| usize::try_from(stop - self.position).unwrap_or(usize::MAX));
        let mut wanted = PIECE_BYTES;
        loop {
            self.fill(wanted.min(room))?;
            let is_last = self.at_end;
            let length = if is_last || self.ahead.len() >= room {
                self.ahead.len().min(room)
            } else {
                // One byte stays back, so that the end of the file is met together with its last piece.
                match records.last_record_end(&self.ahead[..self.ahead.len() - 1]) {
                    Some(length) => length,
                    None if wanted > RECORD_BYTES_MAX => return Err(too_long(self.position)),
                    None => {
                        wanted *= 2;
                        continue;
                    }
                }
            };
            if length == 0 {
                return Ok(None);
            }
            let rest = self.ahead.split_off(length);
            let data = std::mem::replace(&mut self.ahead, rest);
            let position = self.position;
            self.position += length as u64;
            let from = if self.begun { position } else { 0 };
            self.begun = true;
            let end = (is_last && self.ahead.is_empty()).then_some(self.position);
            let content = Content::Text { data, position, header: self.header.clone() };
            return Ok(Some(Piece { file: file.clone(), from, to: self.position, end, content }));
        }
    }
}

fn too_long(position: u64) -> Error {
    Error::new(
        SqlState::PROGRAM_LIMIT_EXCEEDED,
        format!("the record at byte {position} is longer than {RECORD_BYTES_MAX} bytes, or its quote is not closed"),
    )
}
