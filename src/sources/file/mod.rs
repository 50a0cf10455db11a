//! The `file` connector as source: CSV, JSON lines, changes in Debezium's form and Parquet; one file, a folder or a pattern; with an end, or watched for new
//! files.
//!
//! | file | is about |
//! | --- | --- |
//! | `config` | options |
//! | `enumerator` | dealing out the pieces of files |
//! | `progress` | what was read: the state |
//! | `settling` | who notes files that were read to their end |
//! | `dead_letters` | records that could not be read |
//! | `text` | cutting text files into pieces |
//! | `listing` | finding files of this machine |
//! | `objects` | finding and reading files that are objects in a store |
//! | `fetcher` | pieces that come over a network |
//!
//! # Invariants
//! - Each record of each file is sent once, or is bad once, whatever the parallelism and however often the source is restored.
//! - Files do not change once they can be seen. One that did is an error that names it.

mod config;
pub mod dead_letters;
mod enumerator;
mod fetcher;
mod listing;
mod objects;
mod progress;
mod settling;
#[cfg(test)]
mod tests;
mod text;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use weir_catalog::{ConnectorTable, Error, Result, SqlState};

pub use config::{BadRecords, FileConfig, listed};
pub use objects::ObjectPlace;

use self::dead_letters::{DeadLetter, DeadLetters};
use self::enumerator::{Content, Enumerator, Found, Next, Piece, hash_of};
use self::fetcher::Fetcher;
use self::progress::Progress;
use self::text::KEPT_BYTES;
use super::{Source, SourceContext, SourceEvent, SplitPortion, SplitState, Splits};
use crate::formats::parquet::{ParquetDecoder, ParquetRows};
use crate::formats::records::too_long;
use crate::formats::{Format, RecordDecoder};
use crate::operators::error::{shorten, told};
use crate::seams::hash::HashSet;
use crate::seams::spawn::in_place;
use crate::state::memory_pool::Charge;
use crate::stream::Batch;

/// How many files that were read to their end are stored together.
const PORTION_FILES: usize = if cfg!(test) { 50 } else { 1000 };
/// How long a subtask that never looks for files itself waits until it asks for a piece again, at most.
const ASK_AGAIN_US: u64 = 100_000;

/// One subtask's part of a `file` table.
pub struct FileSource {
    config: FileConfig,
    enumerator: Arc<Enumerator>,
    /// Where files come over a network.
    fetcher: Option<Fetcher>,
    reader: Reader,
    current: Option<Current>,
    /// The file whose header the decoder knows.
    header_of: Option<usize>,
    /// What this subtask has sent, of files that are not settled; in subtask 0, with what was sent before this run.
    progress: Progress,
    /// In subtask 0: the settled files that are in no portion yet, and the portions.
    settled: Progress,
    portions: Vec<Arc<SplitPortion>>,
    /// In subtask 0, of a table with an end: the files that are not settled.
    listed: BTreeMap<PathBuf, Found>,
    /// How many portions of what another run read have been found to be read again.
    reached: usize,
    subtask: usize,
    longest_record: usize,
    dead_letters: Option<DeadLetters>,
    /// Counts the piece under way.
    memory: Option<Charge>,
}

enum Reader {
    Text(Box<dyn RecordDecoder>),
    Parquet(ParquetDecoder),
}

/// The piece under way.
struct Current {
    piece: Piece,
    /// How far it was read: bytes of its data, or rows.
    done: u64,
    rows: Option<ParquetRows>,
}

impl FileSource {
    /// One source for each subtask. `projection` are the positions of the columns to fill; `restored` is where *all* splits stood. Waits for disk.
    ///
    /// Errors: `58P01` where the path names a file that does not exist; `55000` for a file that has changed since it was found.
    pub fn open_all(
        table: &ConnectorTable,
        projection: &[usize],
        parallelism: usize,
        restored: Option<&Splits>,
        context: &SourceContext,
    ) -> Result<Vec<FileSource>> {
        let config = FileConfig::parse(&table.options)?;
        let mut portions = restored.map(|splits| splits.closed.clone()).unwrap_or_default();
        let mut finished = HashSet::default();
        for portion in &portions {
            finished.extend(portion.splits()?.iter().map(|split| hash_of(split.split.as_ref())));
        }
        let restored = restored.map(|splits| Progress::from_splits(&splits.open)).transpose()?;
        let records = config.format.decoder(&table.columns, projection)?;
        let enumerator = Enumerator::open(config.clone(), records, parallelism, restored.as_ref(), finished, context)?;
        let enumerator = Arc::new(enumerator);
        let mut restored = restored.unwrap_or_default();
        let mut listed = enumerator.listed().into_iter().map(|file| (file.path.clone(), file)).collect();
        (0..parallelism)
            .map(|subtask| {
                let reader = match (config.format.decoder(&table.columns, projection)?, &config.format.format) {
                    (Some(mut decoder), _) => {
                        decoder.set_longest_record(context.max_row_bytes);
                        Reader::Text(decoder)
                    }
                    (None, Format::Parquet { row_kind }) => {
                        Reader::Parquet(ParquetDecoder::new(&table.columns, projection, row_kind.clone())?)
                    }
                    (None, _) => return Err(Error::internal("a text format has no decoder")),
                };
                let dead_letters = match config.bad_records {
                    BadRecords::DeadLetter => context.dead_letters(table.id, subtask),
                    BadRecords::Fail | BadRecords::Skip => None,
                };
                let decoder = match &reader {
                    Reader::Parquet(decoder) => Some(decoder.clone()),
                    Reader::Text(_) => None,
                };
                Ok(FileSource {
                    config: config.clone(),
                    fetcher: enumerator.is_remote().then(|| Fetcher::new(enumerator.clone(), subtask, decoder)),
                    enumerator: enumerator.clone(),
                    reader,
                    current: None,
                    header_of: None,
                    progress: std::mem::take(&mut restored),
                    settled: Progress::default(),
                    portions: std::mem::take(&mut portions),
                    listed: std::mem::take(&mut listed),
                    reached: 0,
                    subtask,
                    longest_record: context.max_row_bytes,
                    dead_letters,
                    memory: context.charge(),
                })
            })
            .collect()
    }

    /// Says how much the piece under way holds.
    fn count(&self, bytes: usize) {
        if let Some(memory) = &self.memory {
            memory.set(bytes);
        }
    }

    /// Leaves the piece under way, which is at its end.
    fn leave(&mut self) {
        self.current = None;
        self.count(0);
    }

    /// Reads on in the piece under way. `None` where it is at its end.
    fn read(&mut self, max_rows: usize) -> Result<Option<Batch>> {
        let read = self.read_piece(max_rows);
        match (read, &self.current) {
            (Err(error), Some(current)) => Err(self.enumerator.blame(&current.piece.file, error)),
            (read, _) => read,
        }
    }

    fn read_piece(&mut self, max_rows: usize) -> Result<Option<Batch>> {
        let Some(current) = &mut self.current else { return Ok(None) };
        let piece = &current.piece;
        let (from, to, batch) = match (&piece.content, &mut self.reader) {
            (Content::Text { data, position, header }, Reader::Text(decoder)) => {
                let at = current.done as usize;
                if at >= data.len() {
                    self.leave();
                    return Ok(None);
                }
                let path = piece.file.path.as_path();
                let whole_file = |error: Error| error.with_context(format!("file \"{}\"", path.display()));
                if self.header_of != Some(piece.file.number) {
                    decoder.set_header(header).map_err(whole_file)?;
                    self.header_of = Some(piece.file.number);
                }
                let decoded = decoder.decode(data, at, max_rows).map_err(whole_file)?;
                for bad in decoded.bad {
                    let bytes = &data[bad.start..bad.end];
                    let is_cut = bytes.len() > self.longest_record;
                    let bytes = if is_cut { &bytes[..bytes.len().min(KEPT_BYTES)] } else { bytes };
                    let record = DeadLetter { file: path, position: position + bad.start as u64, reason: &bad.reason, bytes, is_cut };
                    take_bad(self.config.bad_records, &record, self.dead_letters.as_mut())?;
                    self.progress.skipped += 1;
                }
                current.done = decoded.next as u64;
                let to = if decoded.next >= data.len() { piece.to } else { position + decoded.next as u64 };
                (if at == 0 { piece.from } else { position + at as u64 }, to, decoded.batch)
            }
            (Content::TooLong { head, position }, Reader::Text(decoder)) => {
                if current.done > 0 {
                    self.leave();
                    return Ok(None);
                }
                current.done = 1;
                let (path, reason) = (piece.file.path.as_path(), too_long(self.longest_record));
                let record = DeadLetter { file: path, position: *position, reason: &reason, bytes: head, is_cut: true };
                take_bad(self.config.bad_records, &record, self.dead_letters.as_mut())?;
                self.progress.skipped += 1;
                (piece.from, piece.to, decoder.decode(b"", 0, 1)?.batch)
            }
            (Content::Rows { group, skip, file, parts }, Reader::Parquet(decoder)) => {
                let count = piece.to - piece.from;
                let rows = match &mut current.rows {
                    Some(rows) => rows,
                    rows => rows.insert(decoder.rows(&piece.file.path, file, parts.as_ref(), *group, *skip, count, max_rows)?),
                };
                let Some(batch) = rows.next_batch()? else {
                    if piece.from + current.done != piece.to {
                        let message = format!("parquet file \"{}\" can't be read", piece.file.path.display());
                        return Err(Error::new(SqlState::DATA_EXCEPTION, message).with_detail("It has fewer rows than it says."));
                    }
                    self.leave();
                    return Ok(None);
                };
                let from = piece.from + current.done;
                current.done += batch.num_rows() as u64;
                (from, piece.from + current.done, batch)
            }
            _ => return Err(Error::internal("a piece of a file has another format than its reader")),
        };
        let file = self.progress.file(&piece.file.path, piece.file.disk_length);
        file.tag = file.tag.or(piece.file.tag());
        let end = piece.end.filter(|_| to == piece.to);
        file.add(from, to);
        file.end = file.end.or(end);
        self.enumerator.settling().lock().note_sent(&piece.file.path, piece.file.disk_length, from, to, end);
        Ok(Some(batch))
    }

    /// The splits that are not in a portion.
    fn open_splits(&self) -> Result<Vec<SplitState>> {
        let mut splits = self.progress.to_splits()?;
        splits.extend(self.settled.to_splits()?);
        for (path, found) in &self.listed {
            if !self.progress.files.contains_key(path) {
                let mut listed = Progress::default();
                listed.file(path, found.disk_length).tag = found.tag;
                splits.extend(listed.to_splits()?);
            }
        }
        Ok(splits)
    }
}

/// Does with a bad record what the table says.
fn take_bad(policy: BadRecords, record: &DeadLetter<'_>, dead_letters: Option<&mut DeadLetters>) -> Result<()> {
    match (policy, dead_letters) {
        (BadRecords::Fail, _) => Err(refused(record.reason, record.bytes, record.position, record.file)),
        (BadRecords::DeadLetter, Some(dead_letters)) => dead_letters.push(record),
        (BadRecords::Skip | BadRecords::DeadLetter, _) => Ok(()),
    }
}

/// The error for a bad record that is not to be left out.
fn refused(reason: &Error, bytes: &[u8], position: u64, path: &std::path::Path) -> Error {
    let message = match reason.detail() {
        Some(detail) => format!("{}: {detail}", reason.message()),
        None => reason.message().to_string(),
    };
    let member = reason.context().map(|context| format!(", {context}")).unwrap_or_default();
    Error::new(reason.code().clone(), told(&message))
        .with_detail(told(&format!("The record is {}", shorten(&String::from_utf8_lossy(bytes), 200))))
        .with_hint("With bad_records = 'skip' or 'dead_letter' such records are left out and counted.")
        .with_context(format!("file \"{}\", byte {position}{member}", path.display()))
}

impl Drop for FileSource {
    fn drop(&mut self) {
        self.enumerator.leave();
    }
}

impl Source for FileSource {
    fn poll(&mut self, max_rows: usize, now_us: i64) -> Result<SourceEvent> {
        loop {
            if let Some(batch) = self.read(max_rows)? {
                // Empty where every record was bad: barriers are looked at all the same.
                return Ok(SourceEvent::Batch(batch));
            }
            let next = match &mut self.fetcher {
                Some(fetcher) => match fetcher.next(now_us)? {
                    Some(next) => next,
                    None => return Ok(SourceEvent::Wait(fetcher::LOOK_AGAIN_US)),
                },
                None => {
                    if self.subtask == 0 && self.config.watch.is_some() {
                        in_place(|| self.enumerator.watch(now_us))?;
                    }
                    in_place(|| self.enumerator.next(self.subtask))?
                }
            };
            match next {
                Next::Piece(piece) => {
                    self.count(piece.memory_bytes());
                    if let Some(fetcher) = &mut self.fetcher {
                        fetcher.read_ahead(&piece, now_us)?;
                    }
                    self.current = Some(Current { piece: *piece, done: 0, rows: None });
                }
                Next::Later => {
                    let Reader::Text(decoder) = &mut self.reader else { return Ok(SourceEvent::Wait(1)) };
                    return Ok(SourceEvent::Batch(decoder.decode(b"", 0, 1)?.batch));
                }
                Next::Nothing => {
                    let interval_us = self.config.watch.map_or(ASK_AGAIN_US, |interval| interval.as_micros() as u64);
                    return Ok(SourceEvent::Wait(interval_us.clamp(1000, ASK_AGAIN_US)));
                }
                Next::End => return Ok(SourceEvent::End),
            }
        }
    }

    fn prepare_checkpoint(&mut self) -> Result<()> {
        match &mut self.dead_letters {
            Some(dead_letters) => in_place(|| dead_letters.close()),
            None => Ok(()),
        }
    }

    fn splits(&self) -> Result<Vec<SplitState>> {
        Splits { open: self.open_splits()?, closed: self.portions.clone() }.to_vec()
    }

    fn cut(&mut self) -> Result<Splits> {
        let taken_over = self.enumerator.settling().lock().meet_barrier(self.subtask, &mut self.progress);
        for (path, progress) in taken_over {
            self.listed.remove(&path);
            self.settled.files.insert(path, progress);
        }
        while self.settled.files.len() >= PORTION_FILES {
            let mut portion = Progress::default();
            while portion.files.len() < PORTION_FILES
                && let Some((path, progress)) = self.settled.files.pop_first()
            {
                portion.files.insert(path, progress);
            }
            self.portions.push(Arc::new(SplitPortion::new(&portion.to_splits()?)?));
        }
        Ok(Splits { open: self.open_splits()?, closed: self.portions.clone() })
    }

    fn has_reached(&self, target: &[SplitState]) -> Result<bool> {
        Ok(self.enumerator.settling().lock().has_sent(&Progress::from_splits(target)?))
    }

    fn has_come_to(&mut self, target: &Splits) -> Result<bool> {
        while let Some(portion) = target.closed.get(self.reached) {
            if !self.has_reached(&portion.splits()?)? {
                return Ok(false);
            }
            self.reached += 1;
        }
        self.has_reached(&target.open)
    }

    fn bad_records(&self) -> u64 {
        self.progress.skipped
    }
}
