//! What a text format gives: whole records as rows, and those that are no rows.

use arrow::array::BooleanArray;
use arrow::compute::filter_record_batch;
use weir_catalog::{Error, Result, SqlState};

use crate::operators::error::from_arrow;
use crate::stream::{Batch, RowKinds};

/// A record that can't be read as a row of its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRecord {
    /// Where its bytes are in what was decoded, without the line end.
    pub start: usize,
    pub end: usize,
    pub reason: Error,
}

/// The outcome of decoding some records.
#[derive(Debug)]
pub struct Decoded {
    /// The rows, in the order of the records.
    pub batch: Batch,
    /// Where the first record begins that was not looked at.
    pub next: usize,
    /// In the order of the records.
    pub bad: Vec<BadRecord>,
}

/// Reads the records of one table in one text format.
pub trait RecordDecoder: Send + Sync {
    /// Reads at most `max_rows` records of `data`, from `at` on, where a record begins. The data holds whole records; the last may lack its line end.
    fn decode(&mut self, data: &[u8], at: usize, max_rows: usize) -> Result<Decoded>;

    /// Takes note of what stands in front of the records of the file that is decoded next, as [`RecordDecoder::header_length`] measured it. Errors with `42703`
    /// where a column is not in it.
    fn set_header(&mut self, header: &[u8]) -> Result<()>;

    /// Where the last whole record of `data` ends, of which a record begins at the start; `None` where none does. The end of the data is no end of a record.
    fn last_record_end(&self, data: &[u8]) -> Option<usize>;

    /// What finds the end of one record that is given bit by bit, from its beginning on: of one that is too long to be held.
    fn record_end(&self) -> Box<dyn RecordEnd>;

    /// From here on a record of more bytes, its line end aside, is bad.
    fn set_longest_record(&mut self, bytes: usize);

    /// The length of what stands in front of a file's first record: the header line, with which `data` begins. `None` where the data does not go on behind it.
    fn header_length(&self, data: &[u8]) -> Option<usize>;
}

/// Looks for the end of one record.
pub trait RecordEnd: Send + std::fmt::Debug {
    /// Takes the bytes that come next, one at least. Returns how many of them belong to the record with its line end; `None` where they don't show its end.
    fn find(&mut self, data: &[u8]) -> Option<usize>;
}

/// `54000`: a record of more than `longest` bytes.
pub fn too_long(longest: usize) -> Error {
    Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, format!("the record is longer than the {longest} bytes that max_row_bytes allows"))
}

/// The length of the byte order mark that `data` begins with, if it does.
pub fn byte_order_mark(data: &[u8]) -> usize {
    if data.starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 }
}

/// `batch` without the rows that `bad` names, sorted.
pub(super) fn without_rows(batch: Batch, bad: &[usize]) -> Result<Batch> {
    if bad.is_empty() {
        return Ok(batch);
    }
    let keep: BooleanArray = (0..batch.num_rows()).map(|row| Some(bad.binary_search(&row).is_err())).collect();
    let rows = filter_record_batch(&batch.rows, &keep).map_err(from_arrow)?;
    let kinds = batch.kinds.map(|kinds| RowKinds::new((0..keep.len()).filter(|row| keep.value(*row)).map(|row| kinds.0[row]).collect()));
    Ok(Batch { rows, kinds })
}
