//! Objects to columns: one pass over each; a value that nobody reads is stepped over. A ROW is an object in an object, an array a list of values.
//!
//! Objects of one kind have their members mostly in one order, so the reader guesses the next name and compares, instead of looking for it.

use std::sync::Arc;

use arrow::array::{ArrayRef, ListArray, NullBufferBuilder, StructArray};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, FieldRef, Fields};
use weir_catalog::{Error, Result, RowKind, SqlState, SqlType};

use super::scanner::{Scanner, Value, invalid, unescape};
use crate::formats::column::ColumnBuilder;
use crate::formats::row_kind_of;
use crate::operators::error::from_arrow;

/// What reading any object needs.
#[derive(Debug)]
pub(super) struct Reading {
    /// Whether an object without a member that is read is bad, instead of giving NULL.
    pub fail_on_missing: bool,
    /// A string without its escapes.
    pub scratch: Vec<u8>,
}

/// The columns that objects are being read into.
#[derive(Debug)]
pub(super) struct Object {
    names: Vec<String>,
    columns: Vec<JsonColumn>,
    /// The member that holds the row kind.
    row_kind: Option<String>,
    /// The names met in the last object, in their order, each in quotes as it stands in the text.
    expected: Vec<Expected>,
}

#[derive(Debug)]
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

/// A column being filled.
#[derive(Debug)]
enum JsonColumn {
    Plain(ColumnBuilder),
    Row(Box<RowColumn>),
    Array(Box<ArrayColumn>),
}

#[derive(Debug)]
struct RowColumn {
    object: Object,
    fields: Fields,
    nulls: NullBufferBuilder,
}

#[derive(Debug)]
struct ArrayColumn {
    element: JsonColumn,
    field: FieldRef,
    offsets: Vec<i32>,
    nulls: NullBufferBuilder,
}

/// `error` with the way to it: `.member` and `[place]`, outermost first.
fn within(error: Error, segment: &str) -> Error {
    let path = format!("{segment}{}", error.context().unwrap_or_default());
    error.with_context(path)
}

impl Object {
    /// For members of these names and types.
    pub(super) fn new<'a>(members: impl Iterator<Item = (&'a str, &'a SqlType)>, row_kind: Option<String>) -> Result<Object> {
        let (mut names, mut columns) = (Vec::new(), Vec::new());
        for (name, ty) in members {
            names.push(name.to_string());
            columns.push(JsonColumn::new(ty)?);
        }
        Ok(Object { names, columns, row_kind, expected: Vec::new() })
    }

    /// Takes rows back until `rows` are left, also what an object that turned out to be bad has given.
    pub(super) fn truncate(&mut self, rows: usize) {
        self.columns.iter_mut().for_each(|column| column.truncate(rows));
    }

    /// The columns, which are empty again.
    pub(super) fn finish(&mut self) -> Result<Vec<ArrayRef>> {
        self.columns.iter_mut().map(JsonColumn::finish).collect()
    }

    fn push_null(&mut self) {
        self.columns.iter_mut().for_each(JsonColumn::push_null);
    }

    /// Reads an object as row number `row`. Returns its row kind, where it names one. An error has the way to the member that is bad as its context.
    pub(super) fn read(&mut self, scanner: &mut Scanner<'_>, row: usize, reading: &mut Reading) -> Result<Option<RowKind>> {
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
                match target {
                    Target::Column(column) => self.put(column, scanner, row, reading)?,
                    Target::Nothing => {
                        scanner.value()?;
                    }
                    Target::RowKind => match scanner.value()? {
                        Value::String(text, false) => kind = Some(row_kind_of(text)?),
                        _ => return Err(invalid("The member with the row kind is no such text.")),
                    },
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
        for (name, column) in self.names.iter().zip(&mut self.columns) {
            if column.len() == row {
                if reading.fail_on_missing {
                    return Err(Error::new(SqlState::NOT_NULL_VIOLATION, format!("the record has no member \"{name}\"")));
                }
                column.push_null();
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
            self.names.iter().position(|name| name.as_bytes() == text).map_or(Target::Nothing, Target::Column)
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
    #[inline]
    fn put(&mut self, column: usize, scanner: &mut Scanner<'_>, row: usize, reading: &mut Reading) -> Result<()> {
        let values = &mut self.columns[column];
        if values.len() > row {
            values.truncate(row);
        }
        values.read(scanner, reading).map_err(|error| within(error, &format!(".{}", self.names[column])))
    }
}

impl JsonColumn {
    fn new(ty: &SqlType) -> Result<JsonColumn> {
        Ok(match (ty, ty.to_arrow()) {
            (SqlType::Row(members), DataType::Struct(fields)) => {
                let object = Object::new(members.iter().map(|(name, ty)| (name.as_str(), ty)), None)?;
                JsonColumn::Row(Box::new(RowColumn { object, fields, nulls: NullBufferBuilder::new(0) }))
            }
            (SqlType::Array(element), DataType::List(field)) => JsonColumn::Array(Box::new(ArrayColumn {
                element: JsonColumn::new(element)?,
                field,
                offsets: vec![0],
                nulls: NullBufferBuilder::new(0),
            })),
            (ty, _) => JsonColumn::Plain(ColumnBuilder::new(ty)?),
        })
    }

    #[inline]
    fn len(&self) -> usize {
        match self {
            JsonColumn::Plain(values) => values.len(),
            JsonColumn::Row(rows) => rows.nulls.len(),
            JsonColumn::Array(arrays) => arrays.nulls.len(),
        }
    }

    fn push_null(&mut self) {
        match self {
            JsonColumn::Plain(values) => values.push_null(),
            JsonColumn::Row(rows) => {
                rows.object.push_null();
                rows.nulls.append_null();
            }
            JsonColumn::Array(arrays) => {
                arrays.offsets.push(arrays.element.len() as i32);
                arrays.nulls.append_null();
            }
        }
    }

    /// As [`Object::truncate`].
    fn truncate(&mut self, len: usize) {
        match self {
            JsonColumn::Plain(values) => values.truncate(len),
            JsonColumn::Row(rows) => {
                rows.object.truncate(len);
                rows.nulls.truncate(len);
            }
            JsonColumn::Array(arrays) => {
                arrays.offsets.truncate(len + 1);
                arrays.element.truncate(arrays.offsets[len] as usize);
                arrays.nulls.truncate(len);
            }
        }
    }

    /// Reads one value. What an error leaves behind, [`JsonColumn::truncate`] takes back.
    fn read(&mut self, scanner: &mut Scanner<'_>, reading: &mut Reading) -> Result<()> {
        let is_null = |scanner: &mut Scanner<'_>| scanner.peek() == Some(b'n') && scanner.accept(b"null");
        match self {
            JsonColumn::Plain(values) => read_plain(values, scanner, reading),
            JsonColumn::Row(rows) => {
                if scanner.peek() == Some(b'{') {
                    let row = rows.nulls.len();
                    rows.object.read(scanner, row, reading)?;
                    rows.nulls.append_non_null();
                } else if is_null(scanner) {
                    self.push_null();
                } else {
                    scanner.value()?;
                    return Err(Error::new(SqlState::DATATYPE_MISMATCH, "a value that is no object is no row"));
                }
                Ok(())
            }
            JsonColumn::Array(arrays) => {
                if scanner.peek() == Some(b'[') {
                    arrays.read(scanner, reading)
                } else if is_null(scanner) {
                    self.push_null();
                    Ok(())
                } else {
                    scanner.value()?;
                    Err(Error::new(SqlState::DATATYPE_MISMATCH, "a value that is no JSON array is no array"))
                }
            }
        }
    }

    fn finish(&mut self) -> Result<ArrayRef> {
        match self {
            JsonColumn::Plain(values) => values.finish(),
            JsonColumn::Row(rows) => {
                let len = rows.nulls.len();
                let columns = rows.object.finish()?;
                let array = StructArray::try_new_with_length(rows.fields.clone(), columns, rows.nulls.finish(), len);
                Ok(Arc::new(array.map_err(from_arrow)?))
            }
            JsonColumn::Array(arrays) => {
                let offsets = OffsetBuffer::new(ScalarBuffer::from(std::mem::replace(&mut arrays.offsets, vec![0])));
                let array = ListArray::try_new(arrays.field.clone(), offsets, arrays.element.finish()?, arrays.nulls.finish());
                Ok(Arc::new(array.map_err(from_arrow)?))
            }
        }
    }
}

impl ArrayColumn {
    /// Reads the elements from `[` on.
    fn read(&mut self, scanner: &mut Scanner<'_>, reading: &mut Reading) -> Result<()> {
        scanner.expect(b'[')?;
        if scanner.peek() == Some(b']') {
            scanner.at += 1;
        } else {
            let first = self.element.len();
            loop {
                let place = self.element.len() - first + 1;
                self.element.read(scanner, reading).map_err(|error| within(error, &format!("[{place}]")))?;
                match scanner.peek() {
                    Some(b',') => scanner.at += 1,
                    _ => {
                        scanner.expect(b']')?;
                        break;
                    }
                }
            }
        }
        let end = i32::try_from(self.element.len())
            .map_err(|_| Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "the arrays of one batch have more than 2 billion elements"))?;
        self.offsets.push(end);
        self.nulls.append_non_null();
        Ok(())
    }
}

/// A value of a type that is neither row nor array.
#[inline]
fn read_plain(values: &mut ColumnBuilder, scanner: &mut Scanner<'_>, reading: &mut Reading) -> Result<()> {
    match scanner.value()? {
        Value::Null => {
            values.push_null();
            Ok(())
        }
        Value::String(text, false) | Value::Boolean(text) | Value::Number(text) => values.push(text),
        Value::String(text, true) => {
            reading.scratch.clear();
            unescape(text, &mut reading.scratch)?;
            values.push(&reading.scratch)
        }
        Value::Nested(text) if values.is_text() => values.push(text),
        Value::Nested(_) => Err(Error::new(SqlState::DATATYPE_MISMATCH, "an object or array is no value of the column's type")),
    }
}
