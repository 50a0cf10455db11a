//! The key codec: rows of key columns to bytes whose order is the rows' order, and back.
//!
//! Format 1, and [`FORMAT`] = 2 for keys with rows or arrays in them (see [`nested`]), which format 1 has not; all others are the same in both. A key is its columns one after another; a column is one marker byte, and for a value its bytes:
//!
//! | type | bytes after the marker |
//! | --- | --- |
//! | any, NULL | none; the marker is `00` |
//! | Boolean | `00` false, `01` true |
//! | Int32, Int64, Timestamp(Microsecond), Decimal128 | 4, 8, 8, 16 bytes two's complement, big-endian, the sign bit inverted |
//! | Float64 | 8 bytes IEEE 754, big-endian; all bits inverted if the sign bit is set, else only the sign bit. -0.0 is 0.0 but in rows that are their own keys |
//! | Utf8 | the bytes, each `00` followed by `FF`; then `00 01` |
//!
//! The marker of a value is `01`. Nothing stands before, between or after the columns: the format number and the columns' types belong to the
//! descriptor of the state that the keys are in.
//!
//! # Invariants
//! - Byte order is the order of the rows: column by column, NULL first, false before true, numbers by value, every NaN after infinity, text by bytes.
//! - Two rows have equal bytes exactly if they are not distinct: NULL equals NULL, `-0.0` equals `0.0`, every NaN equals every NaN.
//! - Among keys of the same types none is a proper prefix of another, so that anything may follow a key.
//! - What a format makes of a row never changes: `tests/compat/v1/key_codec.jsonl` holds samples of format 1, `tests/compat/v2/nested_codecs.jsonl` of format 2.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, Float64Array, Int32Array, Int64Array, StringArray, TimestampMicrosecondArray,
};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Decimal128Type, Float64Type, Int32Type, Int64Type, TimeUnit, TimestampMicrosecondType};
use weir_catalog::{Error, Result, SqlState};

use crate::stream::KeyGroup;
use crate::stream::key_group::{key_group, key_hash};

pub(super) mod nested;
#[cfg(test)]
pub(super) mod tests;

use nested::NestedType;

/// The highest number of the formats that this file describes; that of a keyed state stands in its descriptor, see [`format_of`].
pub const FORMAT: u32 = 2;

/// The number of the format of keys, or values, with columns of these types.
pub fn format_of<'a>(types: impl IntoIterator<Item = &'a DataType>) -> u32 {
    if types.into_iter().any(DataType::is_nested) { FORMAT } else { 1 }
}

/// The length of what stands before an encoded key in a backend: key group (2 bytes, big-endian) and state tag (1 byte).
pub const STATE_PREFIX_BYTES: usize = 3;

const NULL: u8 = 0x00;
const VALUE: u8 = 0x01;
const ESCAPE: u8 = 0x00;
const ESCAPED_ZERO: u8 = 0xFF;
const END_OF_TEXT: u8 = 0x01;

/// Rows as bytes, one after another in one buffer.
///
/// Row `i` is `bytes[offsets[i]..offsets[i + 1]]`; `offsets` always has one element more than there are rows, the first being 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedRows {
    pub bytes: Vec<u8>,
    pub offsets: Vec<usize>,
}

impl Default for EncodedRows {
    fn default() -> EncodedRows {
        EncodedRows { bytes: Vec::new(), offsets: vec![0] }
    }
}

impl EncodedRows {
    /// No rows.
    pub fn new() -> EncodedRows {
        EncodedRows::default()
    }

    /// The bytes of row `i`.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn get(&self, i: usize) -> &[u8] {
        &self.bytes[self.offsets[i]..self.offsets[i + 1]]
    }

    /// The number of rows.
    #[inline]
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all rows and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.offsets.truncate(1);
    }

    /// Adds one row.
    pub fn push(&mut self, row: &[u8]) {
        self.bytes.extend_from_slice(row);
        self.offsets.push(self.bytes.len());
    }

    /// The rows in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        self.offsets.windows(2).map(|ends| &self.bytes[ends[0]..ends[1]])
    }

    /// The rows at `positions`.
    pub fn select(&self, positions: &[u32]) -> EncodedRows {
        let mut selected = EncodedRows::new();
        selected.offsets.reserve(positions.len());
        positions.iter().for_each(|i| selected.push(self.get(*i as usize)));
        selected
    }

    /// The rows in byte order, equal ones once.
    pub fn distinct(&self) -> Vec<&[u8]> {
        let mut rows: Vec<&[u8]> = self.iter().collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    /// The bytes of memory held.
    pub fn memory_size(&self) -> usize {
        self.bytes.capacity() + self.offsets.capacity() * size_of::<usize>()
    }

    /// Adds `rows` rows of `width` bytes each, zeroed, and returns their bytes.
    pub(super) fn grow_uniform(&mut self, rows: usize, width: usize) -> &mut [u8] {
        let start = self.bytes.len();
        self.bytes.resize(start + rows * width, 0);
        self.offsets.extend((1..=rows).map(|row| start + row * width));
        &mut self.bytes[start..]
    }

    /// Adds rows of the given lengths, zeroed. Turns each length into the place where its row begins in `bytes`.
    pub(super) fn grow(&mut self, lengths: &mut [usize]) {
        let mut end = self.bytes.len();
        self.offsets.reserve(lengths.len());
        for length in lengths {
            let start = end;
            end += *length;
            *length = start;
            self.offsets.push(end);
        }
        self.bytes.resize(end, 0);
    }
}

/// Appends the backend's key of `encoded_key`: its key group, the state's tag, and itself.
pub fn append_state_key(out: &mut Vec<u8>, tag: u8, encoded_key: &[u8]) {
    append_state_prefix(out, key_group(key_hash(encoded_key)), tag);
    out.extend_from_slice(encoded_key);
}

/// Appends what stands before the encoded keys of one key group and state.
pub fn append_state_prefix(out: &mut Vec<u8>, group: KeyGroup, tag: u8) {
    out.extend_from_slice(&group.to_be_bytes());
    out.push(tag);
}

/// How doubles stand in a key. NULLs and all other types stand in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doubles {
    /// -0.0 is 0.0, every NaN is one.
    Equal,
    /// -0.0 stands before 0.0, every NaN is one.
    SignedZero,
    /// Bit for bit: no key, but the bytes of a value.
    Exact,
}

/// A key column's type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ColumnType {
    Boolean,
    Int32,
    Int64,
    Float64,
    Decimal128 { precision: u8, scale: i8 },
    TimestampMicrosecond,
    Utf8,
    Nested(NestedType),
}

impl ColumnType {
    /// `role` says in the error what the column is for.
    pub(super) fn new(data_type: &DataType, role: &str) -> Result<ColumnType> {
        Ok(match data_type {
            DataType::Boolean => ColumnType::Boolean,
            DataType::Int32 => ColumnType::Int32,
            DataType::Int64 => ColumnType::Int64,
            DataType::Float64 => ColumnType::Float64,
            DataType::Decimal128(precision, scale) => ColumnType::Decimal128 { precision: *precision, scale: *scale },
            DataType::Timestamp(TimeUnit::Microsecond, None) => ColumnType::TimestampMicrosecond,
            DataType::Utf8 => ColumnType::Utf8,
            DataType::Struct(fields) => ColumnType::Nested(NestedType::row(fields, role)?),
            DataType::List(field) => ColumnType::Nested(NestedType::array(field, role)?),
            other => return Err(Error::unsupported(format!("columns of type {other} are not supported as {role}"))),
        })
    }

    pub(super) fn to_arrow(&self) -> DataType {
        match self {
            ColumnType::Boolean => DataType::Boolean,
            ColumnType::Int32 => DataType::Int32,
            ColumnType::Int64 => DataType::Int64,
            ColumnType::Float64 => DataType::Float64,
            ColumnType::Decimal128 { precision, scale } => DataType::Decimal128(*precision, *scale),
            ColumnType::TimestampMicrosecond => DataType::Timestamp(TimeUnit::Microsecond, None),
            ColumnType::Utf8 => DataType::Utf8,
            ColumnType::Nested(nested) => nested.to_arrow(),
        }
    }

    /// The bytes of a value, without marker; `None` where values differ in length.
    pub(super) fn fixed_width(&self) -> Option<usize> {
        match self {
            ColumnType::Boolean => Some(1),
            ColumnType::Int32 => Some(4),
            ColumnType::Int64 | ColumnType::Float64 | ColumnType::TimestampMicrosecond => Some(8),
            ColumnType::Decimal128 { .. } => Some(16),
            ColumnType::Utf8 | ColumnType::Nested(_) => None,
        }
    }
}

/// Checks that `columns` have `types` and the same length.
pub(super) fn check_columns<'a>(types: impl ExactSizeIterator<Item = &'a ColumnType>, columns: &[ArrayRef], rows: usize) -> Result<()> {
    if types.len() != columns.len() {
        return Err(Error::internal(format!("a codec of {} columns was given {}", types.len(), columns.len())));
    }
    for (i, (ty, column)) in types.zip(columns).enumerate() {
        if *column.data_type() != ty.to_arrow() {
            return Err(Error::internal(format!("column {i} of a codec has type {}, not {}", ty.to_arrow(), column.data_type())));
        }
        if column.len() != rows {
            return Err(Error::internal(format!("column {i} of a codec has {} rows, not {rows}", column.len())));
        }
    }
    Ok(())
}

/// Encodes and decodes keys of given types. See the head of this file for the format.
#[derive(Clone, Debug)]
pub struct KeyCodec {
    types: Vec<ColumnType>,
    doubles: Doubles,
}

impl KeyCodec {
    /// A codec for keys of these columns; `0A000` for a type that cannot be in a key.
    pub fn new(types: &[DataType]) -> Result<KeyCodec> {
        let types = types.iter().map(|ty| ColumnType::new(ty, "a key")).collect::<Result<_>>()?;
        Ok(KeyCodec { types, doubles: Doubles::Equal })
    }

    /// A codec for rows that are their own keys, which come back as they were: -0.0, which is 0.0 to GROUP BY and in an index, stands before it. Keys of
    /// other values are those of [`KeyCodec::new`].
    pub fn of_rows(types: &[DataType]) -> Result<KeyCodec> {
        Ok(KeyCodec { doubles: Doubles::SignedZero, ..KeyCodec::new(types)? })
    }

    /// Appends one key a row. Keys without columns have no row count here: see [`KeyCodec::encode_n`].
    pub fn encode(&self, columns: &[ArrayRef], out: &mut EncodedRows) -> Result<()> {
        let Some(first) = columns.first() else {
            return Err(Error::internal("a key without columns needs a row count"));
        };
        let rows = first.len();
        check_columns(self.types.iter(), columns, rows)?;
        match self.uniform_width(columns) {
            Some(width) => self.encode_uniform(columns, width, out),
            None => self.encode_any(columns, rows, out)?,
        }
        Ok(())
    }

    /// Appends `rows` keys of a codec without columns: each is empty.
    pub fn encode_n(&self, rows: usize, out: &mut EncodedRows) -> Result<()> {
        if !self.types.is_empty() {
            return Err(Error::internal(format!("a key of {} columns cannot be made without them", self.types.len())));
        }
        out.grow_uniform(rows, 0);
        Ok(())
    }

    /// The columns of `keys`; `XX001` for bytes that no row encodes to. Without columns the result is empty, whatever the number of keys.
    pub fn decode<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Result<Vec<ArrayRef>> {
        let (columns, rests) = self.decode_first(keys)?;
        if rests.iter().any(|rest| !rest.is_empty()) {
            return Err(malformed("it is longer than its columns"));
        }
        Ok(columns)
    }

    /// As [`KeyCodec::decode`], of keys that may go on behind these columns; also what is left of each.
    pub fn decode_first<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Result<(Vec<ArrayRef>, Vec<&'a [u8]>)> {
        let mut rests: Vec<&'a [u8]> = keys.collect();
        // Text has 31-bit offsets, and is never longer than its key.
        if rests.iter().map(|key| key.len()).sum::<usize>() > i32::MAX as usize {
            return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "keys decoded at once are over 2 GiB"));
        }
        let columns = self.types.iter().map(|ty| decode_column(ty, &mut rests)).collect::<Result<Vec<_>>>()?;
        Ok((columns, rests))
    }

    /// The length of every key, if no column has NULLs or text.
    fn uniform_width(&self, columns: &[ArrayRef]) -> Option<usize> {
        let mut width = 0;
        for (ty, column) in self.types.iter().zip(columns) {
            if column.null_count() > 0 {
                return None;
            }
            width += 1 + ty.fixed_width()?;
        }
        Some(width)
    }

    fn encode_uniform(&self, columns: &[ArrayRef], width: usize, out: &mut EncodedRows) {
        let bytes = out.grow_uniform(columns[0].len(), width);
        let mut at = 0;
        for (ty, column) in self.types.iter().zip(columns) {
            match ty {
                ColumnType::Boolean => {
                    put_strided(bytes, width, at, column.as_boolean().values().iter().map(|value| [value as u8]));
                }
                ColumnType::Int32 => put_strided(bytes, width, at, int32s(column).iter().map(|value| encode_i32(*value))),
                ColumnType::Int64 => put_strided(bytes, width, at, int64s(column).iter().map(|value| encode_i64(*value))),
                ColumnType::TimestampMicrosecond => {
                    put_strided(bytes, width, at, timestamps(column).iter().map(|value| encode_i64(*value)));
                }
                ColumnType::Float64 => put_strided(bytes, width, at, float64s(column).iter().map(|value| encode_f64(*value, self.doubles))),
                ColumnType::Decimal128 { .. } => {
                    put_strided(bytes, width, at, decimals(column).iter().map(|value| encode_i128(*value)));
                }
                // `uniform_width` found no width for it.
                ColumnType::Utf8 | ColumnType::Nested(_) => unreachable!("it has no fixed width"),
            }
            at += 1 + ty.fixed_width().unwrap_or(0);
        }
    }

    fn encode_any(&self, columns: &[ArrayRef], rows: usize, out: &mut EncodedRows) -> Result<()> {
        // Rows and arrays are put together apart, column by column.
        let mut nested = Vec::new();
        let mut places = vec![0; rows];
        for (ty, column) in self.types.iter().zip(columns) {
            match ty {
                ColumnType::Nested(ty) => {
                    let encoded = ty.encode(column, self.doubles)?;
                    places.iter_mut().zip(encoded.iter()).for_each(|(length, field)| *length += field.len());
                    nested.push(encoded);
                }
                ty => add_lengths(ty, column, &mut places),
            }
        }
        out.grow(&mut places);
        let bytes = &mut out.bytes;
        let mut nested = nested.iter();
        for (ty, column) in self.types.iter().zip(columns) {
            let nulls = column.nulls();
            match ty {
                ColumnType::Boolean => {
                    let values = column.as_boolean().values();
                    put_nullable(bytes, &mut places, nulls, |row| [values.value(row) as u8]);
                }
                ColumnType::Int32 => {
                    let values = int32s(column);
                    put_nullable(bytes, &mut places, nulls, |row| encode_i32(values[row]));
                }
                ColumnType::Int64 => {
                    let values = int64s(column);
                    put_nullable(bytes, &mut places, nulls, |row| encode_i64(values[row]));
                }
                ColumnType::TimestampMicrosecond => {
                    let values = timestamps(column);
                    put_nullable(bytes, &mut places, nulls, |row| encode_i64(values[row]));
                }
                ColumnType::Float64 => {
                    let values = float64s(column);
                    put_nullable(bytes, &mut places, nulls, |row| encode_f64(values[row], self.doubles));
                }
                ColumnType::Decimal128 { .. } => {
                    let values = decimals(column);
                    put_nullable(bytes, &mut places, nulls, |row| encode_i128(values[row]));
                }
                ColumnType::Utf8 => put_text(bytes, &mut places, column.as_string::<i32>()),
                ColumnType::Nested(_) => {
                    let encoded = nested.next().ok_or_else(|| Error::internal("a column of a key was lost"))?;
                    for (place, field) in places.iter_mut().zip(encoded.iter()) {
                        bytes[*place..*place + field.len()].copy_from_slice(field);
                        *place += field.len();
                    }
                }
            }
        }
        Ok(())
    }
}

fn int32s(column: &ArrayRef) -> &[i32] {
    column.as_primitive::<Int32Type>().values()
}

fn int64s(column: &ArrayRef) -> &[i64] {
    column.as_primitive::<Int64Type>().values()
}

fn timestamps(column: &ArrayRef) -> &[i64] {
    column.as_primitive::<TimestampMicrosecondType>().values()
}

fn float64s(column: &ArrayRef) -> &[f64] {
    column.as_primitive::<Float64Type>().values()
}

fn decimals(column: &ArrayRef) -> &[i128] {
    column.as_primitive::<Decimal128Type>().values()
}

#[inline]
fn encode_i32(value: i32) -> [u8; 4] {
    (value as u32 ^ 1 << 31).to_be_bytes()
}

#[inline]
fn encode_i64(value: i64) -> [u8; 8] {
    (value as u64 ^ 1 << 63).to_be_bytes()
}

#[inline]
fn encode_i128(value: i128) -> [u8; 16] {
    (value as u128 ^ 1 << 127).to_be_bytes()
}

#[inline]
fn encode_f64(value: f64, doubles: Doubles) -> [u8; 8] {
    let bits = if doubles == Doubles::Exact {
        value.to_bits()
    } else if value.is_nan() {
        0x7FF8_0000_0000_0000
    } else if value == 0.0 && doubles == Doubles::Equal {
        0 // also -0.0
    } else {
        value.to_bits()
    };
    let mask = if bits >> 63 == 1 { u64::MAX } else { 1 << 63 };
    (bits ^ mask).to_be_bytes()
}

fn decode_i32(bytes: [u8; 4]) -> i32 {
    (u32::from_be_bytes(bytes) ^ 1 << 31) as i32
}

fn decode_i64(bytes: [u8; 8]) -> i64 {
    (u64::from_be_bytes(bytes) ^ 1 << 63) as i64
}

fn decode_i128(bytes: [u8; 16]) -> i128 {
    (u128::from_be_bytes(bytes) ^ 1 << 127) as i128
}

fn decode_f64(bytes: [u8; 8]) -> f64 {
    let bits = u64::from_be_bytes(bytes);
    let mask = if bits >> 63 == 1 { 1 << 63 } else { u64::MAX };
    f64::from_bits(bits ^ mask)
}

/// Writes marker and value at byte `at` of each key of `width` bytes.
fn put_strided<const N: usize>(bytes: &mut [u8], width: usize, at: usize, values: impl Iterator<Item = [u8; N]>) {
    for (key, value) in bytes.chunks_exact_mut(width).zip(values) {
        let field = &mut key[at..at + 1 + N];
        field[0] = VALUE;
        field[1..].copy_from_slice(&value);
    }
}

/// Adds to each row's length that of its field.
fn add_lengths(ty: &ColumnType, column: &ArrayRef, lengths: &mut [usize]) {
    let nulls = column.nulls();
    if let Some(width) = ty.fixed_width() {
        match nulls {
            None => lengths.iter_mut().for_each(|length| *length += 1 + width),
            Some(nulls) => lengths.iter_mut().zip(nulls.iter()).for_each(|(length, valid)| *length += 1 + width * valid as usize),
        }
        return;
    }
    let text = column.as_string::<i32>();
    let has_zeros = text_bytes(text).contains(&ESCAPE);
    for (row, length) in lengths.iter_mut().enumerate() {
        *length += if text.is_null(row) {
            1
        } else {
            let value = text.value(row).as_bytes();
            let escapes = if has_zeros { value.iter().filter(|byte| **byte == ESCAPE).count() } else { 0 };
            1 + value.len() + escapes + 2
        };
    }
}

/// The bytes of all values of an array (those of NULLs between them included).
fn text_bytes(text: &StringArray) -> &[u8] {
    let offsets = text.value_offsets();
    &text.value_data()[offsets[0] as usize..offsets[text.len()] as usize]
}

/// Writes each row's field at its place, and moves the place behind it.
fn put_nullable<const N: usize>(bytes: &mut [u8], places: &mut [usize], nulls: Option<&NullBuffer>, value: impl Fn(usize) -> [u8; N]) {
    for (row, place) in places.iter_mut().enumerate() {
        if nulls.is_some_and(|nulls| nulls.is_null(row)) {
            bytes[*place] = NULL;
            *place += 1;
        } else {
            let field = &mut bytes[*place..*place + 1 + N];
            field[0] = VALUE;
            field[1..].copy_from_slice(&value(row));
            *place += 1 + N;
        }
    }
}

fn put_text(bytes: &mut [u8], places: &mut [usize], text: &StringArray) {
    let has_zeros = text_bytes(text).contains(&ESCAPE);
    for (row, place) in places.iter_mut().enumerate() {
        if text.is_null(row) {
            bytes[*place] = NULL;
            *place += 1;
            continue;
        }
        let value = text.value(row).as_bytes();
        let mut at = *place;
        bytes[at] = VALUE;
        at += 1;
        if has_zeros {
            for byte in value {
                bytes[at] = *byte;
                at += 1;
                if *byte == ESCAPE {
                    bytes[at] = ESCAPED_ZERO;
                    at += 1;
                }
            }
        } else {
            bytes[at..at + value.len()].copy_from_slice(value);
            at += value.len();
        }
        bytes[at..at + 2].copy_from_slice(&[ESCAPE, END_OF_TEXT]);
        *place = at + 2;
    }
}

fn malformed(reason: &str) -> Error {
    Error::corrupted("a key in the state is malformed").with_detail(format!("The key cannot be decoded: {reason}."))
}

/// Takes one column off the front of each key.
fn decode_column(ty: &ColumnType, rests: &mut [&[u8]]) -> Result<ArrayRef> {
    Ok(match ty {
        ColumnType::Boolean => {
            let (values, nulls) = take_fixed(rests, |[byte]: [u8; 1]| byte)?;
            if values.iter().any(|value| *value > 1) {
                return Err(malformed("a boolean is neither 0 nor 1"));
            }
            Arc::new(BooleanArray::new(values.iter().map(|value| *value == 1).collect::<BooleanBuffer>(), nulls))
        }
        ColumnType::Int32 => {
            let (values, nulls) = take_fixed(rests, decode_i32)?;
            Arc::new(Int32Array::new(ScalarBuffer::from(values), nulls))
        }
        ColumnType::Int64 => {
            let (values, nulls) = take_fixed(rests, decode_i64)?;
            Arc::new(Int64Array::new(ScalarBuffer::from(values), nulls))
        }
        ColumnType::TimestampMicrosecond => {
            let (values, nulls) = take_fixed(rests, decode_i64)?;
            Arc::new(TimestampMicrosecondArray::new(ScalarBuffer::from(values), nulls))
        }
        ColumnType::Float64 => {
            let (values, nulls) = take_fixed(rests, decode_f64)?;
            Arc::new(Float64Array::new(ScalarBuffer::from(values), nulls))
        }
        ColumnType::Decimal128 { .. } => {
            let (values, nulls) = take_fixed(rests, decode_i128)?;
            Arc::new(Decimal128Array::new(ScalarBuffer::from(values), nulls).with_data_type(ty.to_arrow()))
        }
        ColumnType::Utf8 => take_text(rests)?,
        ColumnType::Nested(nested) => nested.decode(rests)?,
    })
}

/// Whether the field at the front of a key is a value; takes its marker.
fn take_marker(rest: &mut &[u8]) -> Result<bool> {
    match rest.split_first() {
        Some((&NULL, tail)) => {
            *rest = tail;
            Ok(false)
        }
        Some((&VALUE, tail)) => {
            *rest = tail;
            Ok(true)
        }
        Some(_) => Err(malformed("a marker is neither 0 nor 1")),
        None => Err(malformed("it is shorter than its columns")),
    }
}

fn take_fixed<const N: usize, T: Copy + Default>(
    rests: &mut [&[u8]],
    decode: impl Fn([u8; N]) -> T,
) -> Result<(Vec<T>, Option<NullBuffer>)> {
    let mut values = Vec::with_capacity(rests.len());
    let mut valid = Vec::new();
    for (row, rest) in rests.iter_mut().enumerate() {
        let is_value = take_marker(rest)?;
        if !is_value && valid.is_empty() {
            valid.reserve(values.capacity());
            valid.resize(row, true);
        }
        if !is_value || !valid.is_empty() {
            valid.push(is_value);
        }
        if is_value {
            let (field, tail) = rest.split_first_chunk::<N>().ok_or_else(|| malformed("it ends within a value"))?;
            values.push(decode(*field));
            *rest = tail;
        } else {
            values.push(T::default());
        }
    }
    Ok((values, (!valid.is_empty()).then(|| NullBuffer::from(valid))))
}

fn take_text(rests: &mut [&[u8]]) -> Result<ArrayRef> {
    let mut values = Vec::new();
    let mut offsets = Vec::with_capacity(rests.len() + 1);
    offsets.push(0i32);
    let mut valid = Vec::with_capacity(rests.len());
    for rest in rests.iter_mut() {
        let is_value = take_marker(rest)?;
        valid.push(is_value);
        let mut in_text = is_value;
        while in_text {
            let zero = rest.iter().position(|byte| *byte == ESCAPE).ok_or_else(|| malformed("a text has no end"))?;
            values.extend_from_slice(&rest[..zero]);
            let follower = rest.get(zero + 1).copied();
            match follower {
                Some(ESCAPED_ZERO) => values.push(0),
                Some(END_OF_TEXT) => {}
                _ => return Err(malformed("a zero byte in a text is followed by neither FF nor 01")),
            }
            *rest = &rest[zero + 2..];
            in_text = follower != Some(END_OF_TEXT);
        }
        // No overflow: `decode` has checked the keys' length altogether.
        offsets.push(values.len() as i32);
    }
    let nulls = valid.iter().any(|valid| !valid).then(|| NullBuffer::from(valid));
    let text = StringArray::try_new(OffsetBuffer::new(ScalarBuffer::from(offsets)), Buffer::from_vec(values), nulls)
        .map_err(|_| malformed("a text is not UTF-8"))?;
    Ok(Arc::new(text))
}
