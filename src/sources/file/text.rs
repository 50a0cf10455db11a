//! Cutting text files into pieces of whole records.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_catalog::{Error, Result, SqlState};

use super::enumerator::{Content, FoundFile, Piece};
use crate::formats::RecordDecoder;
use crate::formats::compression::Compression;
use crate::seams::objects::{ObjectReader, READER_BYTES_MOST, error_of};

/// About how large a piece of a text file is, bytes.
const PIECE_BYTES: usize = 4 << 20;
/// The longest record, bytes: more is read at once only to find its end.
pub const RECORD_BYTES_MAX: usize = 16 << 20;

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
        /// What it may hold of an object that comes over a network.
        held: usize,
    },
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
    ) -> Result<TextCursor> {
        let held = if matches!(file, PlainInput::Object(_)) { READER_BYTES_MOST } else { 0 };
        let input = match compression {
            Compression::None => Input::Plain { file, left: bytes },
            packed => {
                let reader = packed.reader(file).map_err(|e| read_failed(format!("read \"{}\"", path.display()), &e))?;
                Input::Packed { reader, held }
            }
        };
        let header = Arc::from([].as_slice());
        let mut text =
            TextCursor { path: path.to_path_buf(), input, position: 0, ahead: Vec::new(), at_end: false, header, read, begun: false };
        text.read_header(path, records)?;
        Ok(text)
    }

    /// Whether a piece was dealt in this run.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// What it holds in memory, bytes.
    pub fn memory_bytes(&self) -> usize {
        let on_its_way = match &self.input {
            Input::Plain { file: PlainInput::Object(reader), .. } => reader.held_bytes(),
            Input::Plain { .. } => 0,
            Input::Packed { held, .. } => *held,
        };
        self.ahead.capacity() + on_its_way
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
            Input::Packed { .. } => read_failed(format!("decompress file \"{name}\" from byte {read} of its content on"), error),
        }
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

    /// The next piece; `None` at the end of the file.
    pub fn take(&mut self, file: &Arc<FoundFile>, records: &dyn RecordDecoder) -> Result<Option<Piece>> {
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
