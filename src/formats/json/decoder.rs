//! JSON lines to rows: each line an object, or a change that holds objects.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Schema, SchemaRef};
use weir_catalog::{Column, Error, Result, RowKind};
use weir_sql::functions::text::from_bytes;

use super::object::{Object, Reading};
use super::scanner::{Scanner, Value, invalid};
use super::{JsonForm, JsonOptions};
use crate::formats::records::{BadRecord, Decoded, RecordDecoder, RecordEnd, too_long};
use crate::operators::error::from_arrow;
use crate::stream::Batch;

/// Reads JSON lines as rows of some of a table's columns.
pub struct JsonDecoder {
    form: JsonForm,
    has_row_kind: bool,
    schema: SchemaRef,
    rows: Object,
    reading: Reading,
    kinds: Vec<u8>,
    longest_record: usize,
}

impl JsonDecoder {
    /// A decoder for rows of `columns`, of which `projection` are filled, in that order. Errors with `0A000` for a column that can't be read from a file.
    pub fn new(options: &JsonOptions, columns: &[Column], projection: &[usize]) -> Result<JsonDecoder> {
        let projected = projection
            .iter()
            .map(|position| columns.get(*position).ok_or_else(|| Error::internal(format!("there is no column {position}"))))
            .collect::<Result<Vec<_>>>()?;
        let schema = Arc::new(Schema::new(projected.iter().map(|column| column.to_field()).collect::<Vec<_>>()));
        let row_kind = match &options.form {
            JsonForm::Rows { row_kind } => row_kind.clone(),
            JsonForm::Debezium => None,
        };
        Ok(JsonDecoder {
            form: options.form.clone(),
            has_row_kind: row_kind.is_some(),
            schema,
            rows: Object::new(projected.iter().map(|column| (column.name.as_str(), &column.ty)), row_kind)?,
            reading: Reading { fail_on_missing: options.fail_on_missing, scratch: Vec::new() },
            kinds: Vec::new(),
            longest_record: usize::MAX,
        })
    }

    /// Reads one line. Returns how many rows it gave; an error takes back what it had given.
    fn record(&mut self, line: &[u8], rows: usize) -> Result<usize> {
        let added = match &self.form {
            JsonForm::Rows { .. } => self.row(line, rows),
            JsonForm::Debezium => self.change(line, rows),
        };
        added.map_err(|error| {
            self.rows.truncate(rows);
            self.kinds.truncate(rows);
            match error.context().map(|path| format!("member \"{}\"", path.trim_start_matches('.'))) {
                Some(context) => error.with_context(context),
                None => error,
            }
        })
    }

    fn row(&mut self, line: &[u8], row: usize) -> Result<usize> {
        let mut scanner = Scanner::new(line);
        let kind = self.rows.read(&mut scanner, row, &mut self.reading)?;
        scanner.finish()?;
        if self.has_row_kind {
            let kind = kind.ok_or_else(|| invalid("The member with the row kind is missing."))?;
            self.kinds.push(kind as u8);
        }
        Ok(1)
    }

    /// Reads a change in Debezium's form as the rows from number `row` on.
    fn change(&mut self, line: &[u8], row: usize) -> Result<usize> {
        let mut members = Change::read(line)?;
        if let Some(payload) = members.payload.take() {
            members = Change::read(payload)?;
        }
        let missing = |which: &str| invalid(format!("A change with operation \"{}\" has no \"{which}\".", members.op.escape_ascii()));
        let (before, after) = match members.op {
            b"c" | b"r" => (None, Some(members.after.ok_or_else(|| missing("after"))?)),
            b"u" => (Some(members.before.ok_or_else(|| missing("before"))?), Some(members.after.ok_or_else(|| missing("after"))?)),
            b"d" => (Some(members.before.ok_or_else(|| missing("before"))?), None),
            other => return Err(invalid(format!("Operation \"{}\" is not c, r, u or d.", other.escape_ascii()))),
        };
        let update = members.op == b"u";
        let mut added = 0;
        for (object, kind) in [
            (before, if update { RowKind::UpdateBefore } else { RowKind::Delete }),
            (after, if update { RowKind::UpdateAfter } else { RowKind::Insert }),
        ] {
            if let Some(object) = object {
                self.rows.read(&mut Scanner::new(object), row + added, &mut self.reading)?;
                self.kinds.push(kind as u8);
                added += 1;
            }
        }
        Ok(added)
    }
}

/// The members of a change.
#[derive(Clone, Copy, Debug, Default)]
struct Change<'a> {
    op: &'a [u8],
    before: Option<&'a [u8]>,
    after: Option<&'a [u8]>,
    /// Where the change is wrapped together with its schema.
    payload: Option<&'a [u8]>,
}

impl<'a> Change<'a> {
    fn read(text: &'a [u8]) -> Result<Change<'a>> {
        let mut change = Change::default();
        let mut scanner = Scanner::new(text);
        scanner.expect(b'{')?;
        if scanner.peek() == Some(b'}') {
            scanner.at += 1;
        } else {
            loop {
                let (name, _) = scanner.string()?;
                scanner.expect(b':')?;
                match (name, scanner.value()?) {
                    (b"op", Value::String(op, false)) => change.op = op,
                    (b"before", Value::Nested(object)) => change.before = Some(object),
                    (b"after", Value::Nested(object)) => change.after = Some(object),
                    (b"payload", Value::Nested(object)) => change.payload = Some(object),
                    _ => {}
                }
                match scanner.peek() {
                    Some(b',') => scanner.at += 1,
                    _ => {
                        scanner.expect(b'}')?;
                        break;
                    }
                }
            }
        }
        scanner.finish()?;
        Ok(change)
    }
}

/// A record ends with its line.
#[derive(Debug)]
struct JsonRecordEnd;

impl RecordEnd for JsonRecordEnd {
    fn find(&mut self, data: &[u8]) -> Option<usize> {
        memchr::memchr(b'\n', data).map(|at| at + 1)
    }
}

impl RecordDecoder for JsonDecoder {
    fn set_header(&mut self, _header: &[u8]) -> Result<()> {
        Ok(())
    }

    fn decode(&mut self, data: &[u8], at: usize, max_rows: usize) -> Result<Decoded> {
        let mut bad = Vec::new();
        let (mut rows, mut position) = (0, at);
        // Checked once for all lines, and for each only where that fails.
        let mut checked_until = at;
        let mut is_text = true;
        /// How far ahead bytes are checked to be UTF-8, without a zero, at a time.
        const CHECKED_BYTES: usize = 256 << 10;
        let mut records = 0;
        while position < data.len() && records < max_rows {
            let end = memchr::memchr(b'\n', &data[position..]).map_or(data.len(), |line| position + line);
            if end > checked_until {
                let ahead = (position + CHECKED_BYTES).min(data.len()).max(end);
                // Up to a line end: no character goes over it.
                let until = if ahead == end { end } else { memchr::memrchr(b'\n', &data[end..ahead]).map_or(end, |line| end + line) };
                let ahead = &data[position..until];
                is_text = std::str::from_utf8(ahead).is_ok() && memchr::memchr(0, ahead).is_none();
                checked_until = until;
            }
            let whole = &data[position..end];
            let whole = whole.strip_suffix(b"\r").unwrap_or(whole);
            let line = whole.trim_ascii();
            let is_too_long = whole.len() > self.longest_record;
            if !line.is_empty() || is_too_long {
                records += 1;
                let checked = if is_too_long {
                    Err(too_long(self.longest_record))
                } else if is_text {
                    Ok(())
                } else {
                    from_bytes(line).map(drop)
                };
                match checked.and_then(|()| self.record(line, rows)) {
                    Ok(added) => rows += added,
                    Err(reason) => bad.push(BadRecord { start: position, end: position + whole.len(), reason }),
                }
            }
            position = end + 1;
        }
        let arrays = self.rows.finish()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let rows = RecordBatch::try_new_with_options(self.schema.clone(), arrays, &options).map_err(from_arrow)?;
        let kinds = std::mem::take(&mut self.kinds);
        let has_kinds = matches!(self.form, JsonForm::Debezium | JsonForm::Rows { row_kind: Some(_) });
        let batch = if has_kinds { Batch::with_kinds(rows, kinds) } else { Batch::insert(rows) };
        Ok(Decoded { batch, next: position.min(data.len()), bad })
    }

    fn last_record_end(&self, data: &[u8]) -> Option<usize> {
        memchr::memrchr(b'\n', data).map(|at| at + 1)
    }

    fn record_end(&self) -> Box<dyn RecordEnd> {
        Box::new(JsonRecordEnd)
    }

    fn set_longest_record(&mut self, bytes: usize) {
        self.longest_record = bytes;
    }

    fn header_length(&self, data: &[u8]) -> Option<usize> {
        Some(crate::formats::records::byte_order_mark(data))
    }
}
