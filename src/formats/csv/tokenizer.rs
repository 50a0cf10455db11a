//! Where the records and fields of CSV are. Nothing is copied: a field is a range of the data, quotes and all.
//!
//! Blocks of 64 bytes without quotes, nearly all of most files, are looked at with vector instructions: delimiters and line ends of the block become a bit
//! mask. Where a quote is, a state machine goes byte by byte.
//!
//! # Invariants
//! - Records and fields are those of the `csv-core` crate, which Arrow's reader stands on: `\n`, `\r` and `\r\n` end a record; empty lines are none, but
//!   for tables of one column, where they are its NULL; a quote inside a field that does not begin with one is a character; what follows a closing
//!   quote belongs to the field. One difference: a quote that is never closed makes the record bad.
//! - In [`Fields`], each record has as many fields as the table has columns.

use super::CsvOptions;
use crate::formats::records::RecordEnd;

/// The fields of some records. Positions are in the data that was tokenized.
#[derive(Debug, Default)]
pub struct Fields {
    columns: usize,
    /// Where each record begins.
    starts: Vec<u32>,
    /// Where each field of each record ends: at its delimiter or line end.
    ends: Vec<u32>,
    /// Records with another number of fields, or with an open quote: where they begin and end, how many fields they have, and in front of which record
    /// they stand.
    pub bad: Vec<BadFields>,
}

/// A record that has no place in [`Fields`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadFields {
    pub start: usize,
    pub end: usize,
    pub fields: usize,
    /// A quote was not closed.
    pub open_quote: bool,
}

impl Fields {
    /// The number of records.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Where field `column` of each record is.
    pub fn column(&self, column: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        // The first field begins with its record, each other one behind the delimiter in front of it.
        let ends = self.ends.chunks_exact(self.columns.max(1));
        self.starts.iter().zip(ends).map(move |(start, ends)| {
            let from = if column == 0 { *start } else { ends[column - 1] + 1 };
            (from as usize, ends[column] as usize)
        })
    }

    /// Where record `row` begins and ends.
    pub fn record(&self, row: usize) -> (usize, usize) {
        (self.starts[row] as usize, self.ends[(row + 1) * self.columns - 1] as usize)
    }

    fn clear(&mut self, columns: usize) {
        self.columns = columns;
        self.starts.clear();
        self.ends.clear();
        self.bad.clear();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Outside quotes.
    Plain,
    Quoted,
    /// Behind a quote that may be the closing one.
    AfterQuote,
    /// Behind an escape character inside quotes.
    Escaped,
}

/// Finds the fields of one table's records.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    delimiter: u8,
    quote: Option<u8>,
    escape: Option<u8>,
    columns: usize,
}

/// The record under way.
struct Progress<'a> {
    fields: &'a mut Fields,
    record_start: usize,
    field_start: usize,
    state: State,
}

const BLOCK: usize = 64;

impl Tokenizer {
    /// For records of `columns` fields.
    pub fn new(options: &CsvOptions, columns: usize) -> Tokenizer {
        Tokenizer { delimiter: options.delimiter, quote: options.quote, escape: options.escape, columns }
    }

    /// What finds the end of one record that is given bit by bit.
    pub fn record_end(&self) -> CsvRecordEnd {
        let (delimiter, quote, escape) = (self.delimiter, self.quote, self.escape);
        CsvRecordEnd { delimiter, quote, escape, state: State::Plain, at_field_start: true, after_carriage_return: false }
    }

    /// The number of fields that a record has.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Finds the fields of at most `max_records` records of `data`, from `at` on, where one begins; the end of the data ends the last one. Bad records
    /// count. Returns where the next record begins.
    pub fn tokenize(&self, data: &[u8], at: usize, max_records: usize, fields: &mut Fields) -> usize {
        fields.clear(self.columns);
        let mut progress = Progress { fields, record_start: at, field_start: at, state: State::Plain };
        let mut position = at;
        // Without a quote character every block takes the quick way; a byte that is looked for twice does no harm.
        let quote = self.quote.unwrap_or(b'\n');
        while position < data.len() {
            if progress.fields.starts.len() + progress.fields.bad.len() >= max_records {
                return self.skip_line_feed(data, position);
            }
            let block: Option<&[u8; BLOCK]> = data[position..].first_chunk();
            if progress.state == State::Plain
                && let Some(block) = block
            {
                let (mut marks, quotes) = masks(block, self.delimiter, quote);
                if quotes == 0 || self.quote.is_none() {
                    while marks != 0 {
                        let mark = position + marks.trailing_zeros() as usize;
                        marks &= marks - 1;
                        if data[mark] == self.delimiter {
                            progress.fields.ends.push(mark as u32);
                            progress.field_start = mark + 1;
                        } else if self.end_record(data, mark, &mut progress)
                            && progress.fields.starts.len() + progress.fields.bad.len() >= max_records
                        {
                            return self.skip_line_feed(data, mark + 1);
                        }
                    }
                    position += BLOCK;
                    continue;
                }
            }
            let end = (position + BLOCK).min(data.len());
            while position < end {
                let ended = self.step(data, position, &mut progress);
                position += 1;
                if ended && progress.fields.starts.len() + progress.fields.bad.len() >= max_records {
                    return self.skip_line_feed(data, position);
                }
            }
        }
        // The last record lacks its line end.
        if progress.record_start < data.len() {
            if matches!(progress.state, State::Quoted | State::Escaped) {
                let first = progress.fields.starts.len() * self.columns;
                let found = progress.fields.ends.len() - first + 1;
                progress.fields.ends.truncate(first);
                let bad = BadFields { start: progress.record_start, end: data.len(), fields: found, open_quote: true };
                progress.fields.bad.push(bad);
            } else {
                self.push_record(data.len(), &mut progress);
            }
        }
        data.len()
    }

    /// Takes one byte. True where it ended a record.
    #[inline]
    fn step(&self, data: &[u8], position: usize, progress: &mut Progress<'_>) -> bool {
        let byte = data[position];
        match progress.state {
            State::Plain | State::AfterQuote => {
                if byte == self.delimiter {
                    progress.fields.ends.push(position as u32);
                    progress.field_start = position + 1;
                    progress.state = State::Plain;
                } else if byte == b'\n' || byte == b'\r' {
                    progress.state = State::Plain;
                    return self.end_record(data, position, progress);
                } else if Some(byte) == self.quote && (progress.state == State::AfterQuote || position == progress.field_start) {
                    progress.state = State::Quoted;
                } else {
                    progress.state = State::Plain;
                }
            }
            State::Quoted => {
                if Some(byte) == self.escape {
                    progress.state = State::Escaped;
                } else if Some(byte) == self.quote {
                    progress.state = State::AfterQuote;
                }
            }
            State::Escaped => progress.state = State::Quoted,
        }
        false
    }

    /// A line end at `position`. False where it ends no record.
    #[inline]
    fn end_record(&self, data: &[u8], position: usize, progress: &mut Progress<'_>) -> bool {
        let is_empty_line = position == progress.record_start;
        let is_rest_of_line_end = is_empty_line && data[position] == b'\n' && position > 0 && data[position - 1] == b'\r';
        if is_empty_line && (self.columns > 1 || is_rest_of_line_end) {
            progress.record_start = position + 1;
            progress.field_start = position + 1;
            return false;
        }
        self.push_record(position, progress);
        progress.record_start = position + 1;
        progress.field_start = position + 1;
        true
    }

    /// The record under way ends at `end`.
    #[inline]
    fn push_record(&self, end: usize, progress: &mut Progress<'_>) {
        let fields = &mut *progress.fields;
        fields.ends.push(end as u32);
        let first = fields.starts.len() * self.columns;
        let found = fields.ends.len() - first;
        if found == self.columns {
            fields.starts.push(progress.record_start as u32);
        } else {
            fields.ends.truncate(first);
            fields.bad.push(BadFields { start: progress.record_start, end, fields: found, open_quote: false });
        }
    }

    /// The second half of a `\r\n` belongs to the record that ended with the first.
    fn skip_line_feed(&self, data: &[u8], position: usize) -> usize {
        let is_rest = position > 0 && data[position - 1] == b'\r' && data.get(position) == Some(&b'\n');
        position + usize::from(is_rest)
    }

    /// Where the last whole record of `data` ends, whose first begins at its start: behind the last line feed outside quotes; where there is none, behind the
    /// last carriage return that is not the data's last byte.
    pub fn last_record_end(&self, data: &[u8]) -> Option<usize> {
        let has_quotes = self.quote.is_some_and(|quote| memchr::memchr(quote, data).is_some());
        if !has_quotes {
            let line_feed = memchr::memrchr(b'\n', data);
            let carriage_return = || memchr::memrchr(b'\r', data.get(..data.len().saturating_sub(1))?);
            return line_feed.or_else(carriage_return).map(|at| at + 1);
        }
        let (mut line_feed, mut carriage_return) = (None, None);
        let mut state = State::Plain;
        let mut field_start = 0;
        let mut position = 0;
        while position < data.len() {
            // Only quotes need the state machine: outside, on to the next one; inside, on to what may close them.
            let (first, second) = match (state, self.quote) {
                (State::Plain, Some(quote)) => (quote, quote),
                (State::Quoted, Some(quote)) => (quote, self.escape.unwrap_or(quote)),
                _ => (0, 0),
            };
            if matches!(state, State::Plain | State::Quoted) {
                let next = memchr::memchr2(first, second, &data[position..]).map_or(data.len(), |at| position + at);
                if state == State::Plain {
                    let skipped = &data[position..next];
                    if let Some(at) = memchr::memrchr(b'\n', skipped) {
                        line_feed = Some(position + at + 1);
                    }
                    if let Some(at) = memchr::memrchr(b'\r', skipped) {
                        carriage_return = Some(position + at + 1);
                    }
                    if let Some(last) = skipped.last()
                        && (*last == self.delimiter || *last == b'\n' || *last == b'\r')
                    {
                        field_start = next;
                    }
                }
                position = next;
                if position == data.len() {
                    break;
                }
            }
            let byte = data[position];
            state = match state {
                // A quote that does not begin a field is a character.
                State::Plain if position == field_start => State::Quoted,
                State::Plain => State::Plain,
                State::Quoted if Some(byte) == self.escape => State::Escaped,
                State::Quoted => State::AfterQuote,
                State::Escaped => State::Quoted,
                State::AfterQuote if Some(byte) == self.quote => State::Quoted,
                State::AfterQuote => {
                    // Looked at again, outside quotes.
                    if byte == self.delimiter || byte == b'\n' || byte == b'\r' {
                        field_start = position + 1;
                    }
                    if byte == b'\n' {
                        line_feed = Some(position + 1);
                    } else if byte == b'\r' {
                        carriage_return = Some(position + 1);
                    }
                    State::Plain
                }
            };
            position += 1;
        }
        line_feed.or(carriage_return.filter(|end| *end < data.len()))
    }
}

/// Looks for the end of one record that is given bit by bit: where [`Tokenizer::tokenize`] would end it in the whole.
#[derive(Debug)]
pub struct CsvRecordEnd {
    delimiter: u8,
    quote: Option<u8>,
    escape: Option<u8>,
    state: State,
    /// Whether the next byte is the first of a field.
    at_field_start: bool,
    /// Whether the last byte was a carriage return that ended the record: a line feed behind it would be a part of the line end.
    after_carriage_return: bool,
}

impl RecordEnd for CsvRecordEnd {
    fn find(&mut self, data: &[u8]) -> Option<usize> {
        if self.after_carriage_return {
            return data.first().map(|byte| usize::from(*byte == b'\n'));
        }
        let mut at = 0;
        while at < data.len() {
            let (state, rest) = (self.state, &data[at..]);
            let at_field_start = std::mem::take(&mut self.at_field_start);
            match (state, self.quote) {
                (State::Plain, Some(quote)) if at_field_start && rest[0] == quote => {
                    self.state = State::Quoted;
                    at += 1;
                }
                (State::Plain, _) => {
                    at += memchr::memchr3(self.delimiter, b'\n', b'\r', rest)? + 1;
                    match data[at - 1] {
                        b'\n' => return Some(at),
                        b'\r' if at < data.len() => return Some(at + usize::from(data[at] == b'\n')),
                        b'\r' => self.after_carriage_return = true,
                        _ => self.at_field_start = true,
                    }
                }
                (State::Quoted, Some(quote)) => {
                    at += memchr::memchr2(quote, self.escape.unwrap_or(quote), rest)? + 1;
                    self.state = if Some(data[at - 1]) == self.escape { State::Escaped } else { State::AfterQuote };
                }
                (State::Escaped, _) => {
                    self.state = State::Quoted;
                    at += 1;
                }
                (State::AfterQuote, Some(quote)) if rest[0] == quote => {
                    self.state = State::Quoted;
                    at += 1;
                }
                // Looked at again, outside quotes.
                (State::AfterQuote | State::Quoted, _) => self.state = State::Plain,
            }
        }
        None
    }
}

/// The bytes of `block` that are the delimiter or a line end, and those that are the quote, as bits, the first byte's lowest.
#[cfg(target_arch = "x86_64")]
#[inline]
fn masks(block: &[u8; BLOCK], delimiter: u8, quote: u8) -> (u64, u64) {
    use std::arch::x86_64::{__m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8};
    let (mut marks, mut quotes) = (0u64, 0u64);
    // SAFETY: SSE2 is part of x86-64. Each of the four loads, which need no alignment, is of 16 bytes inside the block.
    unsafe {
        let delimiters = _mm_set1_epi8(delimiter as i8);
        let line_feeds = _mm_set1_epi8(b'\n' as i8);
        let carriage_returns = _mm_set1_epi8(b'\r' as i8);
        let quote_bytes = _mm_set1_epi8(quote as i8);
        for lane in 0..4 {
            let bytes = _mm_loadu_si128(block.as_ptr().add(lane * 16).cast::<__m128i>());
            let line_ends = _mm_or_si128(_mm_cmpeq_epi8(bytes, line_feeds), _mm_cmpeq_epi8(bytes, carriage_returns));
            let lane_marks = _mm_or_si128(_mm_cmpeq_epi8(bytes, delimiters), line_ends);
            marks |= u64::from(_mm_movemask_epi8(lane_marks) as u16) << (lane * 16);
            quotes |= u64::from(_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, quote_bytes)) as u16) << (lane * 16);
        }
    }
    (marks, quotes)
}

/// The bytes of `block` that are the delimiter or a line end, and those that are the quote, as bits, the first byte's lowest.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn masks(block: &[u8; BLOCK], delimiter: u8, quote: u8) -> (u64, u64) {
    let (mut marks, mut quotes) = (0u64, 0u64);
    for (at, byte) in block.iter().enumerate() {
        marks |= u64::from(*byte == delimiter || *byte == b'\n' || *byte == b'\r') << at;
        quotes |= u64::from(*byte == quote) << at;
    }
    (marks, quotes)
}
