//! Cutting text files into pieces of whole records.
//!
//! A record that is too long is never held: its beginning is kept, the rest is stepped over, a part at a time, and it is a piece of its own.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_catalog::{Error, Result, SqlState};

use super::enumerator::{Content, FoundFile, Piece};
use crate::formats::compression::{Compression, Damaged};
use crate::formats::{RecordDecoder, RecordEnd};
use crate::seams::objects::{ObjectReader, READER_BYTES_MOST, error_of};

/// About how large a piece of a text file is, bytes.
const PIECE_BYTES: usize = 4 << 20;
/// How much is looked at beyond the longest record that is allowed: its line end, and the byte behind that, which stays back.
const LINE_END_BYTES: usize = 4;
/// How much of a record that is too long is read at a time, and how much before its caller has a turn, bytes.
const SKIP_BYTES: usize = 256 << 10;
const SKIP_BYTES_MOST: usize = 16 << 20;
/// How much is kept of a record that is too long, bytes.
pub const KEPT_BYTES: usize = 64 << 10;

pub fn in_file(error: Error, path: &Path) -> Error {
    match error.context() {
        Some(_) => error,
        None => error.with_context(format!("file \"{}\"", path.display())),
    }
}

/// What went wrong with reading, be that of a file or of an object.
pub fn read_failed(action: impl std::fmt::Display, error: &std::io::Error) -> Error {
    error_of(error).unwrap_or_else(|| Error::io(action, error))
}

/// The bytes of a file as it is.
pub enum PlainInput {
    File(File),
    Object(ObjectReader),
}

impl PlainInput {
    fn skip(&mut self, distance: u64) -> std::io::Result<()> {
        match self {
            PlainInput::File(file) => file.seek(SeekFrom::Current(distance as i64)).map(drop),
            PlainInput::Object(reader) => {
                reader.skip(distance);
                Ok(())
            }
        }
    }
}

impl Read for PlainInput {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            PlainInput::File(file) => file.read(buffer),
            PlainInput::Object(reader) => reader.read(buffer),
        }
    }
}

/// The plain bytes of a text file.
enum Input {
    Plain {
        file: PlainInput,
        /// What is left of its length when it was found.
        left: u64,
    },
    Packed {
        reader: Box<dyn Read + Send>,
        compression: Compression,
        /// What it may hold of an object that comes over a network.
        held: usize,
    },
}

/// What a cursor has.
pub enum Taken {
    Piece(Piece),
    /// A record that is too long is being stepped over: its piece comes later.
    Later,
    /// Nothing any more.
    End,
}

/// A record that is being stepped over.
struct TooLong {
    /// Where it begins, and its beginning.
    position: u64,
    head: Vec<u8>,
    end: Box<dyn RecordEnd>,
}

/// Cuts a text file into pieces.
pub struct TextCursor {
    path: PathBuf,
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
    longest_record: usize,
    too_long: Option<TooLong>,
}

impl TextCursor {
    /// A cursor at the first record that was not `read` of the file at `path`, which is `bytes` long as it stands there. Waits for disk, or the store.
    pub fn open(
        path: &Path,
        file: PlainInput,
        bytes: u64,
        compression: Compression,
        read: Vec<(u64, u64)>,
        records: &dyn RecordDecoder,
        longest_record: usize,
    ) -> Result<TextCursor> {
        let held = if matches!(file, PlainInput::Object(_)) { READER_BYTES_MOST } else { 0 };
        let input = match compression {
            Compression::None => Input::Plain { file, left: bytes },
            packed => {
                let reader = packed.reader(file).map_err(|e| read_failed(format!("read \"{}\"", path.display()), &e))?;
                Input::Packed { reader, compression, held }
            }
        };
        let header = Arc::from([].as_slice());
        let mut text = TextCursor {
            path: path.to_path_buf(),
            input,
            position: 0,
            ahead: Vec::new(),
            at_end: false,
            header,
            read,
            begun: false,
            longest_record,
            too_long: None,
        };
        text.read_header(path, records)?;
        Ok(text)
    }

    /// Whether a piece was dealt in this run.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// The record that is being stepped over: where it begins, and its beginning.
    pub fn too_long(&self) -> Option<(u64, &[u8])> {
        self.too_long.as_ref().map(|record| (record.position, record.head.as_slice()))
    }

    /// What it holds in memory, bytes.
    pub fn memory_bytes(&self) -> usize {
        let on_its_way = match &self.input {
            Input::Plain { file: PlainInput::Object(reader), .. } => reader.held_bytes(),
            Input::Plain { .. } => 0,
            Input::Packed { held, .. } => *held,
        };
        self.ahead.capacity() + self.too_long.as_ref().map_or(0, |record| record.head.capacity()) + on_its_way
    }

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
                Input::Packed { reader, .. } => reader.take(room as u64).read_to_end(&mut self.ahead),
            };
            match taken {
                Ok(0) => {
                    if let Input::Plain { left: 1.., .. } = self.input {
                        let message = format!("file \"{}\" was cut while it was read", self.path.display());
                        return Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message));
                    }
                    self.at_end = true;
                }
                Ok(_) => {}
                Err(e) => return Err(self.failed(&e)),
            }
        }
        Ok(())
    }

    /// What went wrong with reading on.
    fn failed(&self, error: &std::io::Error) -> Error {
        let read = self.position + self.ahead.len() as u64;
        let name = self.path.display();
        match self.input {
            Input::Plain { .. } => read_failed(format!("read file \"{name}\" from byte {read} on"), error),
            Input::Packed { compression, .. } => match Damaged::of(error) {
                Some(damaged) => Error::new(SqlState::DATA_EXCEPTION, format!("{} file \"{name}\" can't be read", compression.name()))
                    .with_detail(format!("It is damaged behind byte {read} of its content: {damaged}."))
                    .with_context(format!("file \"{name}\", byte {read}")),
                None => read_failed(format!("decompress file \"{name}\" from byte {read} of its content on"), error),
            },
        }
    }

    /// How much is read at once to find the end of the longest record that is allowed.
    fn wanted_most(&self) -> usize {
        self.longest_record.saturating_add(LINE_END_BYTES)
    }

    fn read_header(&mut self, path: &Path, records: &dyn RecordDecoder) -> Result<()> {
        let mut wanted = 64 << 10;
        let length = loop {
            self.fill(wanted)?;
            match records.header_length(&self.ahead) {
                Some(length) => break length,
                None if self.at_end => break self.ahead.len(),
                None if wanted >= self.wanted_most() => {
                    let message = format!("the header is longer than the {} bytes that max_row_bytes allows", self.longest_record);
                    return Err(in_file(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message), path));
                }
                None => wanted = (wanted * 2).min(self.wanted_most()),
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
        if distance == 0 {
            self.position = position;
            return Ok(());
        }
        let moved = match &mut self.input {
            Input::Plain { file, left } => {
                let skipped = distance.min(*left);
                let moved = file.skip(skipped);
                *left -= skipped;
                moved
            }
            Input::Packed { reader, .. } => std::io::copy(&mut reader.take(distance), &mut std::io::sink()).map(drop),
        };
        self.position += held;
        moved.map_err(|e| self.failed(&e))?;
        self.position = position;
        Ok(())
    }

    /// The next piece.
    pub fn take(&mut self, file: &Arc<FoundFile>, records: &dyn RecordDecoder) -> Result<Taken> {
        if self.too_long.is_some() {
            return self.step_over(file);
        }
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
                    None if wanted >= self.wanted_most() => {
                        let head = self.ahead[..self.ahead.len().min(KEPT_BYTES)].to_vec();
                        self.too_long = Some(TooLong { position: self.position, head, end: records.record_end() });
                        return Ok(Taken::Later);
                    }
                    None => {
                        wanted = (wanted * 2).min(self.wanted_most());
                        continue;
                    }
                }
            };
            if length == 0 {
                return Ok(Taken::End);
            }
            let rest = self.ahead.split_off(length);
            let data = std::mem::replace(&mut self.ahead, rest);
            let position = self.position;
            self.position += length as u64;
            let end = (is_last && self.ahead.is_empty()).then_some(self.position);
            let content = Content::Text { data, position, header: self.header.clone() };
            return Ok(Taken::Piece(self.piece(file, position, end, content)));
        }
    }

    /// The piece from `position` up to where the cursor is now.
    fn piece(&mut self, file: &Arc<FoundFile>, position: u64, end: Option<u64>, content: Content) -> Piece {
        let from = if self.begun { position } else { 0 };
        self.begun = true;
        Piece { file: file.clone(), from, to: self.position, end, content }
    }

    /// Goes on in the record that is too long. Its piece, once its end was met.
    fn step_over(&mut self, file: &Arc<FoundFile>) -> Result<Taken> {
        let mut seen = 0;
        while let Some(mut record) = self.too_long.take() {
            let found = if self.ahead.is_empty() { None } else { record.end.find(&self.ahead) };
            let taken = found.unwrap_or(self.ahead.len());
            self.position += taken as u64;
            seen += taken;
            self.ahead.drain(..taken);
            self.ahead.shrink_to(SKIP_BYTES);
            if found.is_none() {
                self.fill(SKIP_BYTES)?;
            } else {
                // Whether the file ends here too.
                self.fill(1)?;
            }
            if found.is_none() && !self.ahead.is_empty() {
                self.too_long = Some(record);
                if seen >= SKIP_BYTES_MOST {
                    return Ok(Taken::Later);
                }
                continue;
            }
            let end = (self.at_end && self.ahead.is_empty()).then_some(self.position);
            let content = Content::TooLong { head: record.head, position: record.position };
            return Ok(Taken::Piece(self.piece(file, record.position, end, content)));
        }
        Ok(Taken::End)
    }
}
