//! JSON lines to columns: one pass over each line; a value that nobody reads is stepped over.
//!
//! Objects of one file have their members mostly in one order, so the decoder guesses the next name and compares, instead of looking for it.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Schema, SchemaRef};
use weir_catalog::{Column, Error, Result, RowKind, SqlState};

use super::scanner::{Scanner, Value, invalid, unescape};
use super::{JsonForm, JsonOptions};
use crate::formats::column::ColumnBuilder;
use crate::formats::records::{BadRecord, Decoded, RecordDecoder};
use crate::formats::row_kind_of;
use crate::formats::value::{not_utf8, utf8};
use crate::operators::error::from_arrow;
use crate::stream::Batch;

/// Reads JSON lines as rows of some of a table's columns.
pub struct JsonDecoder {
    form: JsonForm,
    fail_on_missing: bool,
    schema: SchemaRef,
    rows: Rows,
}

/// The rows that are being read.
struct Rows {
    columns: Vec<TargetColumn>,
    /// The member that holds the row kind, in plain rows.
    row_kind: Option<String>,
    kinds: Vec<u8>,
    /// The names met in the last object, in their order, each in quotes as it stands in the text.
    expected: Vec<Expected>,
    scratch: Vec<u8>,
}

struct TargetColumn {
    name: String,
    builder: ColumnBuilder,
}

struct Expected {
    quoted: Vec<u8>,
    target: Target,
}

/// What a member is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Column(usize),
    RowKind,
    Nothing,
}

impl JsonDecoder {
    /// A decoder for rows of `columns`, of which `projection` are filled, in that order. Errors with `0A000` for a column that can't be read from a file.
    pub fn new(options: &JsonOptions, columns: &[Column], projection: &[usize]) -> Result<JsonDecoder> {
        let projected = projection
            .iter()
            .map(|position| columns.get(*position).ok_or_else(|| Error::internal(format!("there is no column {position}"))))
            .collect::<Result<Vec<_>>>()?;
        let schema = Arc::new(Schema::new(projected.iter().map(|column| column.to_field()).collect::<Vec<_>>()));
        let columns = projected
            .iter()
            .map(|column| Ok(TargetColumn { name: column.name.clone(), builder: ColumnBuilder::new(column)? }))
            .collect::<Result<_>>()?;
        let row_kind = match &options.form {
            JsonForm::Rows { row_kind } => row_kind.clone(),
            JsonForm::Debezium => None,
        };
        let rows = Rows { columns, row_kind, kinds: Vec::new(), expected: Vec::new(), scratch: Vec::new() };
        Ok(JsonDecoder { form: options.form.clone(), fail_on_missing: options.fail_on_missing, schema, rows })
    }

    /// Reads one line. Returns how many rows it gave; an error takes back what it had given.
    fn record(&mut self, line: &[u8], rows: usize) -> Result<usize> {
        let added = match &self.form {
            JsonForm::Rows { .. } => {
                let mut scanner = Scanner::new(line);
                let read = self.rows.object(&mut scanner, rows, self.fail_on_missing);
                read.and_then(|kind| {
                    scanner.finish()?;
                    if self.rows.row_kind.is_some() {
                        let kind = kind.ok_or_else(|| invalid("The member with the row kind is missing."))?;
                        self.rows.kinds.push(kind as u8);
                    }
                    Ok(1)
                })
            }
            JsonForm::Debezium => self.rows.change(line, rows, self.fail_on_missing),
        };
        if added.is_err() {
            self.rows.columns.iter_mut().for_each(|column| column.builder.truncate(rows));
            self.rows.kinds.truncate(rows);
        }
        added
    }
}

impl Rows {
    /// Reads an object as row number `row`. Returns its row kind, where it names one.
    fn object(&mut self, scanner: &mut Scanner<'_>, row: usize, fail_on_missing: bool) -> Result<Option<RowKind>> {
        scanner.expect(b'{')?;
        let mut kind = None;
        let mut member = 0;
        if scanner.peek() == Some(b'}') {
            scanner.at += 1;
        } else {
            loop {
                scanner.peek();
                let target = match self.expected.get(member) {
                    Some(expected) if scanner.accept(&expected.quoted) => expected.target,
                    _ => self.name(scanner, member)?,
                };
                member += 1;
                scanner.expect(b':')?;
                match (scanner.value()?, target) {
                    (_, Target::Nothing) => {}
                    (value, Target::Column(column)) => self.put(column, value, row)?,
                    (Value::String(text, false), Target::RowKind) => kind = Some(row_kind_of(text)?),
                    (_, Target::RowKind) => return Err(invalid("The member with the row kind is no such text.")),
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
        for column in &mut self.columns {
            if column.builder.len() == row {
                if fail_on_missing {
                    return Err(Error::new(SqlState::NOT_NULL_VIOLATION, format!("the record has no member \"{}\"", column.name)));
                }
                column.builder.push_null();
            }
        }
        Ok(kind)
    }

    /// Takes a name that is not the expected one, and expects it at this place from here on.
    fn name(&mut self, scanner: &mut Scanner<'_>, member: usize) -> Result<Target> {
        let (name, escapes) = scanner.string()?;
        let mut unescaped = Vec::new();
        let text = if escapes {
            unescape(name, &mut unescaped)?;
            unescaped.as_slice()
        } else {
            name
        };
        let target = if self.row_kind.as_ref().is_some_and(|row_kind| row_kind.as_bytes() == text) {
            Target::RowKind
        } else {
            self.columns.iter().position(|column| column.name.as_bytes() == text).map_or(Target::Nothing, Target::Column)
        };
        /// Objects with more members are not typical rows.
        const EXPECTED: usize = 1024;
        if member < EXPECTED {
            let expected = Expected { quoted: [b"\"", name, b"\""].concat(), target };
            if member < self.expected.len() {
                self.expected[member] = expected;
            } else {
                self.expected.push(expected);
            }
        }
        Ok(target)
    }

    /// Gives a column its value in row `row`. Of several members of one name the last counts.
    fn put(&mut self, column: usize, value: Value<'_>, row: usize) -> Result<()> {
        let TargetColumn { name, builder } = &mut self.columns[column];
        if builder.len() > row {
            builder.truncate(row);
        }
        let pushed = match value {
            Value::Null => {
                builder.push_null();
                Ok(())
            }
            Value::String(text, false) | Value::Boolean(text) | Value::Number(text) => builder.push(text),
            Value::String(text, true) => {
                self.scratch.clear();
                unescape(text, &mut self.scratch)?;
                builder.push(&self.scratch)
            }
            Value::Nested(text) if builder.is_text() => builder.push(text),
            Value::Nested(_) => Err(Error::new(SqlState::DATATYPE_MISMATCH, "an object or array is no value of the column's type")),
        };
        pushed.map_err(|error| {
            let context = format!("member \"{name}\"");
            error.with_context(context)
        })
    }

    /// Reads a change in Debezium's form as the rows from number `row` on.
    fn change(&mut self, line: &[u8], row: usize, fail_on_missing: bool) -> Result<usize> {
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
                self.object(&mut Scanner::new(object), row + added, fail_on_missing)?;
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

impl RecordDecoder for JsonDecoder {
    fn set_header(&mut self, _header: &[u8]) -> Result<()> {
        Ok(())
    }

    fn decode(&mut self, data: &[u8], at: usize, max_rows: usize) -> Result<Decoded> {
        let mut bad = Vec::new();
        let (mut rows, mut position) = (0, at);
        // Checked once for all lines, and for each only where that fails.
        let mut checked_until = at;
        let mut is_utf8 = true;
        /// How far ahead bytes are checked to be UTF-8 at a time.
        const CHECKED_BYTES: usize = 256 << 10;
        let mut records = 0;
        while position < data.len() && records < max_rows {
            let end = memchr::memchr(b'\n', &data[position..]).map_or(data.len(), |line| position + line);
            if end > checked_until {
                let ahead = (position + CHECKED_BYTES).min(data.len()).max(end);
                // Up to a line end: no character goes over it.
                let until = if ahead == end { end } else { memchr::memrchr(b'\n', &data[end..ahead]).map_or(end, |line| end + line) };
                is_utf8 = utf8(&data[position..until]).is_ok();
                checked_until = until;
            }
            let line = data[position..end].trim_ascii();
            if !line.is_empty() {
                records += 1;
                let read = if is_utf8 || utf8(line).is_ok() { self.record(line, rows) } else { Err(not_utf8()) };
                match read {
                    Ok(added) => rows += added,
                    Err(reason) => {
                        let end = if data[..end].ends_with(b"\r") { end - 1 } else { end };
                        bad.push(BadRecord { start: position, end, reason });
                    }
                }
            }
            position = end + 1;
        }
        let arrays = self.rows.columns.iter_mut().map(|column| column.builder.finish()).collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let rows = RecordBatch::try_new_with_options(self.schema.clone(), arrays, &options).map_err(from_arrow)?;
        let kinds = std::mem::take(&mut self.rows.kinds);
        let has_kinds = matches!(self.form, JsonForm::Debezium | JsonForm::Rows { row_kind: Some(_) });
        let batch = if has_kinds { Batch::with_kinds(rows, kinds) } else { Batch::insert(rows) };
        Ok(Decoded { batch, next: position.min(data.len()), bad })
    }

    fn last_record_end(&self, data: &[u8]) -> Option<usize> {
        memchr::memrchr(b'\n', data).map(|at| at + 1)
    }

    fn header_length(&self, data: &[u8]) -> Option<usize> {
        Some(crate::formats::records::byte_order_mark(data))
    }
}
