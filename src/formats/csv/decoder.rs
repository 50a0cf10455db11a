//! CSV fields to columns: only those that are asked for are looked at.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Schema, SchemaRef};
use weir_catalog::{Column, Error, Result, RowKind, SqlState};

use super::CsvOptions;
use super::tokenizer::{BadFields, Fields, Tokenizer};
use crate::formats::column::ColumnBuilder;
use crate::formats::records::{BadRecord, Decoded, RecordDecoder, RecordEnd, byte_order_mark, too_long, without_rows};
use crate::formats::row_kind_of;
use crate::formats::value::utf8;
use crate::operators::error::{from_arrow, shorten};
use crate::stream::Batch;

/// Reads CSV records as rows of some of a table's columns.
pub struct CsvDecoder {
    options: CsvOptions,
    schema: SchemaRef,
    builders: Vec<ColumnBuilder>,
    /// The names of the table's columns, and which of them `builders` fill.
    names: Vec<String>,
    projection: Vec<usize>,
    /// The name of the field that holds the row kind.
    row_kind: Option<String>,
    tokenizer: Tokenizer,
    /// Where in a record the field of each builder is, and that of the row kind.
    positions: Vec<usize>,
    kind_position: Option<usize>,
    longest_record: usize,
    fields: Fields,
    resolved: Vec<Field>,
    unescaped: Vec<u8>,
}

/// A field's content.
#[derive(Clone, Copy, Debug)]
enum Field {
    Null,
    /// As it stands in the data.
    Plain(u32, u32),
    /// In the buffer of unescaped fields.
    Unescaped(u32, u32),
}

impl CsvDecoder {
    /// A decoder for records of `columns`, of which `projection` are filled, in that order. Where `row_kind` is given, a field of that name, the first one in
    /// files without a header, holds each row's kind. Errors with `0A000` for a column that can't be read from a file.
    pub fn new(options: CsvOptions, columns: &[Column], projection: &[usize], row_kind: Option<String>) -> Result<CsvDecoder> {
        let projected = projection
            .iter()
            .map(|position| columns.get(*position).ok_or_else(|| Error::internal(format!("there is no column {position}"))))
            .collect::<Result<Vec<_>>>()?;
        let before = usize::from(row_kind.is_some());
        Ok(CsvDecoder {
            schema: Arc::new(Schema::new(projected.iter().map(|column| column.to_field()).collect::<Vec<_>>())),
            builders: projected.iter().map(|column| ColumnBuilder::new(&column.ty)).collect::<Result<_>>()?,
            names: columns.iter().map(|column| column.name.clone()).collect(),
            projection: projection.to_vec(),
            tokenizer: Tokenizer::new(&options, columns.len() + before),
            positions: projection.iter().map(|position| position + before).collect(),
            kind_position: row_kind.is_some().then_some(0),
            row_kind,
            longest_record: usize::MAX,
            options,
            fields: Fields::default(),
            resolved: Vec::new(),
            unescaped: Vec::new(),
        })
    }

    /// Resolves the fields of one column, where the data has quotes.
    fn resolve(&mut self, data: &[u8], position: usize) {
        self.resolved.clear();
        self.unescaped.clear();
        let null = self.options.null.as_slice();
        let Some(quote) = self.options.quote else { return };
        for (start, end) in self.fields.column(position) {
            let field = &data[start..end];
            self.resolved.push(if field.first() != Some(&quote) {
                if field == null { Field::Null } else { Field::Plain(start as u32, end as u32) }
            } else {
                let inside = field.get(1..field.len() - 1).filter(|_| field.last() == Some(&quote));
                let is_plain = |text: &[u8]| memchr::memchr2(quote, self.options.escape.unwrap_or(quote), text).is_none();
                match inside {
                    Some(text) if is_plain(text) => Field::Plain(start as u32 + 1, end as u32 - 1),
                    _ => {
                        let from = self.unescaped.len() as u32;
                        unescape(field, quote, self.options.escape, &mut self.unescaped);
                        Field::Unescaped(from, self.unescaped.len() as u32)
                    }
                }
            });
        }
    }

    fn reason(&self, bad: &BadFields) -> Error {
        let code = SqlState::parse("22P04").unwrap_or(SqlState::DATA_EXCEPTION);
        let columns = self.tokenizer.columns();
        if bad.end - bad.start > self.longest_record {
            too_long(self.longest_record)
        } else if bad.open_quote {
            Error::new(code, "unterminated quoted field")
        } else {
            Error::new(code, format!("the record has {} fields, not {columns}", bad.fields))
        }
    }
}

/// The content of a field that begins with a quote.
fn unescape(field: &[u8], quote: u8, escape: Option<u8>, out: &mut Vec<u8>) {
    let mut quoted = true;
    let mut at = 1;
    while at < field.len() {
        let byte = field[at];
        if quoted && Some(byte) == escape && at + 1 < field.len() {
            at += 1;
            out.push(field[at]);
        } else if quoted && byte == quote {
            if field.get(at + 1) == Some(&quote) {
                out.push(quote);
                at += 1;
            } else {
                quoted = false;
            }
        } else {
            out.push(byte);
        }
        at += 1;
    }
}

impl RecordDecoder for CsvDecoder {
    fn set_header(&mut self, header: &[u8]) -> Result<()> {
        if !self.options.header {
            return Ok(());
        }
        // A byte order mark, as spreadsheets write it, is no part of the first name, and a quote behind it begins a field.
        let header = &header[byte_order_mark(header)..];
        let mut names = Vec::new();
        let mut counting = Tokenizer::new(&self.options, 1);
        counting.tokenize(header, 0, 1, &mut self.fields);
        let found = self.fields.bad.first().map_or(self.fields.len(), |bad| bad.fields);
        counting = Tokenizer::new(&self.options, found.max(1));
        counting.tokenize(header, 0, 1, &mut self.fields);
        for column in 0..if self.fields.is_empty() { 0 } else { found } {
            if let Some((start, end)) = self.fields.column(column).next() {
                let field = &header[start..end];
                let mut name = Vec::new();
                match self.options.quote.filter(|quote| field.first() == Some(quote)) {
                    Some(quote) => unescape(field, quote, self.options.escape, &mut name),
                    None => name.extend_from_slice(field),
                }
                names.push((utf8(&name)?.to_string(), self.options.quote.is_some() && field.first() == self.options.quote.as_ref()));
            }
        }
        // What stands without quotes may have blanks around it.
        let trimmed = |(name, is_quoted): &(String, bool)| if *is_quoted { name.clone() } else { name.trim().to_string() };
        let it_has = || format!("It has {}.", shorten(&names.iter().map(trimmed).collect::<Vec<_>>().join(", "), 200));
        // The only one that `is_it`: of several nobody can say which is meant.
        let only = |wanted: &str, is_it: &dyn Fn(&(String, bool)) -> bool| {
            let mut found = names.iter().enumerate().filter(|(_, name)| is_it(name)).map(|(at, _)| at);
            match (found.next(), found.next()) {
                (Some(_), Some(_)) => {
                    let message = format!("the header has several columns \"{wanted}\"");
                    Err(Error::new(SqlState::AMBIGUOUS_COLUMN, message).with_detail(it_has()))
                }
                (first, _) => Ok(first),
            }
        };
        let position = |wanted: &str| {
            let ways: [&dyn Fn(&(String, bool)) -> bool; 3] = [
                &|name| trimmed(name) == wanted,
                // Blanks and all.
                &|(name, _)| name == wanted,
                &|name| trimmed(name).eq_ignore_ascii_case(wanted),
            ];
            for is_it in ways {
                if let Some(at) = only(wanted, is_it)? {
                    return Ok(at);
                }
            }
            Err(Error::new(SqlState::UNDEFINED_COLUMN, format!("the header has no column \"{wanted}\"")).with_detail(it_has()))
        };
        self.positions = self.projection.iter().map(|column| position(&self.names[*column])).collect::<Result<_>>()?;
        self.kind_position = self.row_kind.as_deref().map(position).transpose()?;
        self.tokenizer = Tokenizer::new(&self.options, names.len());
        Ok(())
    }

    fn decode(&mut self, data: &[u8], at: usize, max_rows: usize) -> Result<Decoded> {
        let mut fields = std::mem::take(&mut self.fields);
        let next = self.tokenizer.tokenize(data, at, max_rows, &mut fields);
        let rows = fields.len();
        self.fields = fields;
        let mut bad: Vec<(usize, Error)> = Vec::new();
        if next - at > self.longest_record {
            let is_too_long = |row: &usize| {
                let (start, end) = self.fields.record(*row);
                end - start > self.longest_record
            };
            bad.extend((0..rows).filter(is_too_long).map(|row| (row, too_long(self.longest_record))));
        }
        let has_quotes = self.options.quote.is_some_and(|quote| memchr::memchr(quote, &data[at..next]).is_some());

        let mut kinds = Vec::new();
        if let Some(position) = self.kind_position {
            kinds.reserve(rows);
            for (row, (start, end)) in self.fields.column(position).enumerate() {
                let field = &data[start..end];
                let field = match (self.options.quote, field) {
                    (Some(quote), [first, inside @ .., last]) if *first == quote && *last == quote => inside,
                    _ => field,
                };
                kinds.push(row_kind_of(field).unwrap_or_else(|error| {
                    bad.push((row, error));
                    RowKind::Insert
                }) as u8);
            }
        }
        for column in 0..self.positions.len() {
            let position = self.positions[column];
            let mut told = |row: usize, error: Error| bad.push((row, error));
            if has_quotes {
                self.resolve(data, position);
                let unescaped = self.unescaped.as_slice();
                let values = self.resolved.iter().map(|field| match *field {
                    Field::Null => None,
                    Field::Plain(start, end) => Some(&data[start as usize..end as usize]),
                    Field::Unescaped(start, end) => Some(&unescaped[start as usize..end as usize]),
                });
                self.builders[column].push_all(values, &mut told);
            } else if self.options.null.is_empty() {
                let values = self.fields.column(position).map(|(start, end)| (start < end).then(|| &data[start..end]));
                self.builders[column].push_all(values, &mut told);
            } else {
                let null = self.options.null.as_slice();
                let values = self.fields.column(position).map(|(start, end)| Some(&data[start..end]).filter(|field| *field != null));
                self.builders[column].push_all(values, &mut told);
            }
            let not_text = self.builders[column].rows_not_text();
            if !not_text.is_empty() {
                self.builders[column].blank(&not_text.iter().map(|(row, _)| *row).collect::<Vec<_>>());
                bad.extend(not_text);
            }
        }

        let arrays = self.builders.iter_mut().map(ColumnBuilder::finish).collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let rows = RecordBatch::try_new_with_options(self.schema.clone(), arrays, &options).map_err(from_arrow)?;
        let batch = if self.kind_position.is_some() { Batch::with_kinds(rows, kinds) } else { Batch::insert(rows) };

        bad.sort_by_key(|(row, _)| *row);
        bad.dedup_by_key(|(row, _)| *row);
        let bad_rows: Vec<usize> = bad.iter().map(|(row, _)| *row).collect();
        let mut records: Vec<BadRecord> = Vec::with_capacity(bad.len() + self.fields.bad.len());
        for (row, reason) in bad {
            let (start, end) = self.fields.record(row);
            records.push(BadRecord { start, end, reason });
        }
        records.extend(self.fields.bad.iter().map(|bad| BadRecord { start: bad.start, end: bad.end, reason: self.reason(bad) }));
        records.sort_by_key(|record| record.start);
        Ok(Decoded { batch: without_rows(batch, &bad_rows)?, next, bad: records })
    }

    fn last_record_end(&self, data: &[u8]) -> Option<usize> {
        self.tokenizer.last_record_end(data)
    }

    fn record_end(&self) -> Box<dyn RecordEnd> {
        Box::new(self.tokenizer.record_end())
    }

    fn set_longest_record(&mut self, bytes: usize) {
        self.longest_record = bytes;
    }

    fn header_length(&self, data: &[u8]) -> Option<usize> {
        let mark = byte_order_mark(data);
        if !self.options.header {
            return Some(mark);
        }
        let end = Tokenizer::new(&self.options, 2).tokenize(data, mark, 1, &mut Fields::default());
        Some(end).filter(|end| *end < data.len())
    }
}
