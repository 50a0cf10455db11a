//! The value codec: rows to the bytes that stand behind a key in a state backend, and back.
//!
//! Format 1, and [`FORMAT`] = 2 for values with rows or arrays in them, which format 1 has not; all others are the same in both. A value is, in this order,
//! all numbers little-endian:
//!
//! | part | bytes |
//! | --- | --- |
//! | schema number | 1: which of the schemas in the state's descriptor the row has |
//! | flags | 1: none is defined, so 0 |
//! | null bitmap | one bit a column, rounded up to bytes; column `i` is bit `i % 8` (from the lowest) of byte `i / 8`; set for NULL, and for no other bit |
//! | fixed part | for each column its field: Boolean 1 byte (0, 1), Int32 4, Int64, Float64 and Timestamp(Microsecond) 8, Decimal128 16; Utf8, Struct and List 4: where its bytes end in the variable part. The field of a NULL is zero (of what has bytes in the variable part: where those before it end) |
//! | variable part | in column order the bytes of the texts; those of a row or array as in a key, its marker in front, but doubles bit for bit |
//!
//! # Invariants
//! - Every field stands at the same place in all rows of a schema, so that a column is decoded without looking at others.
//! - Values come back bit for bit (also the sign of zero and the bits of a NaN): this is not the key codec.
//! - Decoding never panics: bytes that no row encodes to are `XX001`.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, Float64Array, Int32Array, Int64Array, StringArray, TimestampMicrosecondArray,
};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Decimal128Type, Float64Type, Int32Type, Int64Type, TimestampMicrosecondType};
use weir_catalog::{Error, Result, SqlState};

use super::key_codec::nested::NestedType;
use super::key_codec::{ColumnType, Doubles, EncodedRows, check_columns};

#[cfg(test)]
mod tests;

/// The highest number of the formats that this file describes; that of a state stands in its descriptor, see [`super::key_codec::format_of`].
pub const FORMAT: u32 = 2;

/// The schema number of values whose schema never changed.
pub const FIRST_SCHEMA_NUMBER: u8 = 1;

const HEADER_BYTES: usize = 2;
const TEXT_END_BYTES: usize = 4;

/// Encodes and decodes values of given column types. See the head of this file for the format.
#[derive(Clone, Debug)]
pub struct RowCodec {
    schema_number: u8,
    columns: Vec<(ColumnType, usize)>,
    /// The bytes before the variable part.
    fixed_bytes: usize,
}

impl RowCodec {
    /// A codec for rows of these columns, schema number 1; `0A000` for a type that state cannot hold.
    pub fn new(types: &[DataType]) -> Result<RowCodec> {
        let mut place = HEADER_BYTES + types.len().div_ceil(8);
        let mut columns = Vec::with_capacity(types.len());
        for ty in types {
            let ty = ColumnType::new(ty, "a state's value")?;
            let width = ty.fixed_width().unwrap_or(TEXT_END_BYTES);
            columns.push((ty, place));
            place += width;
        }
        Ok(RowCodec { schema_number: FIRST_SCHEMA_NUMBER, columns, fixed_bytes: place })
    }

    /// The same codec for rows under another schema number.
    pub fn with_schema_number(mut self, schema_number: u8) -> RowCodec {
        self.schema_number = schema_number;
        self
    }

    /// The schema number of an encoded row.
    pub fn schema_number(row: &[u8]) -> Result<u8> {
        row.first().copied().ok_or_else(|| malformed("it is empty"))
    }

    /// The rows of `columns` as bytes. Rows without columns have no count here: see [`RowCodec::encode_into`].
    pub fn encode(&self, columns: &[ArrayRef]) -> Result<EncodedRows> {
        let Some(first) = columns.first() else {
            return Err(Error::internal("a row without columns needs a row count"));
        };
        let mut out = EncodedRows::new();
        self.encode_into(columns, first.len(), &mut out)?;
        Ok(out)
    }

    /// Appends the `rows` rows of `columns`.
    pub fn encode_into(&self, columns: &[ArrayRef], rows: usize, out: &mut EncodedRows) -> Result<()> {
        check_columns(self.columns.iter().map(|(ty, _)| ty), columns, rows)?;
        if self.has_variable() {
            return self.encode_variable(columns, rows, out);
        }
        let width = self.fixed_bytes;
        let bytes = out.grow_uniform(rows, width);
        for row in bytes.chunks_exact_mut(width) {
            row[0] = self.schema_number;
        }
        for (i, ((ty, place), column)) in self.columns.iter().zip(columns).enumerate() {
            put_fixed(&mut UniformRows { bytes, width }, ty, column, i, *place);
        }
        Ok(())
    }

    fn encode_variable(&self, columns: &[ArrayRef], rows: usize, out: &mut EncodedRows) -> Result<()> {
        let mut places = vec![self.fixed_bytes; rows];
        // Rows and arrays are put together apart, column by column.
        let mut nested = Vec::new();
        for ((ty, _), column) in self.columns.iter().zip(columns) {
            let valid = places.iter_mut().enumerate().filter(|(row, _)| column.is_valid(*row));
            match ty {
                ColumnType::Utf8 => {
                    let text = column.as_string::<i32>();
                    valid.for_each(|(row, length)| *length += text.value_length(row) as usize);
                }
                ColumnType::Nested(ty) => {
                    let encoded = ty.encode(column, Doubles::Exact)?;
                    valid.for_each(|(row, length)| *length += encoded.get(row).len());
                    nested.push(encoded);
                }
                _ => {}
            }
        }
        if places.iter().any(|length| *length > u32::MAX as usize) {
            return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "a row is over 4 GiB"));
        }
        let first = out.len();
        out.grow(&mut places);
        let EncodedRows { bytes, offsets } = out;
        let offsets = &offsets[first..];
        for place in &places {
            bytes[*place] = self.schema_number;
        }
        // How many bytes of each row's variable part are written.
        let mut filled = vec![0usize; rows];
        let mut nested = nested.iter();
        for (i, ((ty, place), column)) in self.columns.iter().zip(columns).enumerate() {
            let mut variable =
                VariableColumn { bytes: &mut *bytes, offsets, filled: &mut filled, start: self.fixed_bytes, place: *place, i };
            match ty {
                ColumnType::Utf8 => {
                    let text = column.as_string::<i32>();
                    variable.fill(|row| text.is_valid(row).then(|| text.value(row).as_bytes()));
                }
                ColumnType::Nested(_) => {
                    let encoded = nested.next().ok_or_else(|| Error::internal("a column of a row was lost"))?;
                    variable.fill(|row| column.is_valid(row).then(|| encoded.get(row)));
                }
                ty => put_fixed(&mut VaryingRows { bytes, offsets }, ty, column, i, *place),
            }
        }
        Ok(())
    }

    /// The columns of encoded rows; `XX001` for bytes that no row of this schema encodes to. Without columns the result is empty.
    pub fn decode<'a>(&self, rows: impl Iterator<Item = &'a [u8]>) -> Result<Vec<ArrayRef>> {
        let rows: Vec<&'a [u8]> = rows.collect();
        self.check_rows(&rows)?;
        // Where the bytes of each row's next text, row or array begin.
        let mut starts = vec![self.fixed_bytes; if self.has_variable() { rows.len() } else { 0 }];
        let columns = self
            .columns
            .iter()
            .enumerate()
            .map(|(i, (ty, place))| self.decode_column(i, ty, *place, &rows, &mut starts))
            .collect::<Result<Vec<_>>>()?;
        if starts.iter().zip(&rows).any(|(end, row)| *end != row.len()) {
            return Err(malformed("it is longer than its columns"));
        }
        Ok(columns)
    }

    fn has_variable(&self) -> bool {
        self.columns.iter().any(|(ty, _)| ty.fixed_width().is_none())
    }

    fn check_rows(&self, rows: &[&[u8]]) -> Result<()> {
        let has_variable = self.has_variable();
        let spare_bits = if self.columns.len().is_multiple_of(8) { 0 } else { u8::MAX << (self.columns.len() % 8) };
        let bitmap_end = HEADER_BYTES + self.columns.len().div_ceil(8);
        let mut total = 0;
        for row in rows {
            if row.len() < self.fixed_bytes || (!has_variable && row.len() != self.fixed_bytes) {
                return Err(malformed(&format!("it has {} bytes where {} are expected", row.len(), self.fixed_bytes)));
            }
            if row[0] != self.schema_number {
                return Err(malformed(&format!("its schema number is {}, not {}", row[0], self.schema_number)));
            }
            if row[1] != 0 {
                return Err(malformed(&format!("its flags {:#04x} are not known", row[1])));
            }
            if row[bitmap_end - 1] & spare_bits != 0 {
                return Err(malformed("its null bitmap has bits without a column"));
            }
            total += row.len();
        }
        // Texts and arrays have 31-bit offsets.
        if has_variable && total > i32::MAX as usize {
            return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "rows decoded at once are over 2 GiB"));
        }
        Ok(())
    }

    fn decode_column(&self, i: usize, ty: &ColumnType, place: usize, rows: &[&[u8]], starts: &mut [usize]) -> Result<ArrayRef> {
        let byte = HEADER_BYTES + i / 8;
        let bit = 1u8 << (i % 8);
        let is_null = |row: &[u8]| row[byte] & bit != 0;
        let nulls =
            rows.iter().any(|row| is_null(row)).then(|| NullBuffer::from(rows.iter().map(|row| !is_null(row)).collect::<Vec<bool>>()));
        Ok(match ty {
            ColumnType::Boolean => {
                if rows.iter().any(|row| row[place] > 1) {
                    return Err(malformed("a boolean is neither 0 nor 1"));
                }
                Arc::new(BooleanArray::new(rows.iter().map(|row| row[place] == 1).collect::<BooleanBuffer>(), nulls))
            }
            ColumnType::Int32 => Arc::new(Int32Array::new(fixed(rows, place, i32::from_le_bytes), nulls)),
            ColumnType::Int64 => Arc::new(Int64Array::new(fixed(rows, place, i64::from_le_bytes), nulls)),
            ColumnType::TimestampMicrosecond => Arc::new(TimestampMicrosecondArray::new(fixed(rows, place, i64::from_le_bytes), nulls)),
            ColumnType::Float64 => Arc::new(Float64Array::new(fixed(rows, place, f64::from_le_bytes), nulls)),
            ColumnType::Decimal128 { .. } => {
                Arc::new(Decimal128Array::new(fixed(rows, place, i128::from_le_bytes), nulls).with_data_type(ty.to_arrow()))
            }
            ColumnType::Utf8 => {
                let mut values = Vec::new();
                let mut offsets = Vec::with_capacity(rows.len() + 1);
                offsets.push(0i32);
                for (row, start) in rows.iter().zip(starts) {
                    values.extend_from_slice(self.variable(row, start, place, is_null(row))?);
                    // No overflow: `check_rows` has checked the rows' length altogether.
                    offsets.push(values.len() as i32);
                }
                let text = StringArray::try_new(OffsetBuffer::new(ScalarBuffer::from(offsets)), Buffer::from_vec(values), nulls)
                    .map_err(|_| malformed("a text is not UTF-8"))?;
                Arc::new(text)
            }
            ColumnType::Nested(nested) => {
                let fields = rows.iter().zip(starts).map(|(row, start)| self.variable(row, start, place, is_null(row)));
                decode_nested(nested, &fields.collect::<Result<Vec<_>>>()?)?
            }
        })
    }

    /// The bytes from `start` on that the field at `place` of `row` says where they end; moves `start` behind them.
    fn variable<'a>(&self, row: &'a [u8], start: &mut usize, place: usize, is_null: bool) -> Result<&'a [u8]> {
        let end = self.fixed_bytes + u32::from_le_bytes(array(&row[place..place + TEXT_END_BYTES])) as usize;
        let bytes = row.get(*start..end).ok_or_else(|| malformed("a text, row or array lies outside of it"))?;
        if is_null && !bytes.is_empty() {
            return Err(malformed("a null text, row or array has bytes"));
        }
        *start = end;
        Ok(bytes)
    }
}

/// A column of rows or arrays from the bytes of each; there are none where it is NULL.
fn decode_nested(ty: &NestedType, fields: &[&[u8]]) -> Result<ArrayRef> {
    let mut rests: Vec<&[u8]> = fields.iter().map(|field| if field.is_empty() { &[0][..] } else { *field }).collect();
    let column = ty.decode(&mut rests)?;
    if rests.iter().any(|rest| !rest.is_empty()) {
        return Err(malformed("a row or array is longer than it says"));
    }
    if fields.iter().enumerate().any(|(row, field)| column.is_null(row) != field.is_empty()) {
        return Err(malformed("a row or array is null where the bitmap says that it is not"));
    }
    Ok(column)
}

/// The bytes of a row of one BIGINT that is not NULL: [`encode_count`].
pub const COUNT_BYTES: usize = HEADER_BYTES + 1 + 8;

/// The row of one BIGINT column `count`, in the first schema: how often something is there.
pub fn encode_count(count: i64) -> [u8; COUNT_BYTES] {
    let mut row = [0; COUNT_BYTES];
    row[0] = FIRST_SCHEMA_NUMBER;
    row[HEADER_BYTES + 1..].copy_from_slice(&count.to_le_bytes());
    row
}

/// What [`encode_count`] encoded; `XX001` for other bytes.
pub fn decode_count(row: &[u8]) -> Result<i64> {
    match row.split_at_checked(HEADER_BYTES + 1) {
        Some(([FIRST_SCHEMA_NUMBER, 0, 0], count)) if count.len() == 8 => Ok(i64::from_le_bytes(array(count))),
        _ => Err(malformed("it is no count")),
    }
}

/// The bytes of rows that are being written.
trait RowsMut {
    /// Calls `put` with each row's number and bytes.
    fn for_each(&mut self, put: impl FnMut(usize, &mut [u8]));
}

struct UniformRows<'a> {
    bytes: &'a mut [u8],
    width: usize,
}

impl RowsMut for UniformRows<'_> {
    #[inline]
    fn for_each(&mut self, mut put: impl FnMut(usize, &mut [u8])) {
        for (row, bytes) in self.bytes.chunks_exact_mut(self.width).enumerate() {
            put(row, bytes);
        }
    }
}

struct VaryingRows<'a> {
    bytes: &'a mut [u8],
    offsets: &'a [usize],
}

impl RowsMut for VaryingRows<'_> {
    #[inline]
    fn for_each(&mut self, mut put: impl FnMut(usize, &mut [u8])) {
        for (row, ends) in self.offsets.windows(2).enumerate() {
            put(row, &mut self.bytes[ends[0]..ends[1]]);
        }
    }
}

/// A column whose values stand in the variable part of rows that are being written.
struct VariableColumn<'a> {
    bytes: &'a mut [u8],
    offsets: &'a [usize],
    /// How many bytes of each row's variable part are written.
    filled: &'a mut [usize],
    /// Where the variable part begins.
    start: usize,
    /// Where the column's field is.
    place: usize,
    i: usize,
}

impl VariableColumn<'_> {
    /// Writes the bytes that `value` gives for each row, `None` for NULL.
    fn fill<'v>(&mut self, value: impl Fn(usize) -> Option<&'v [u8]>) {
        for (row, filled) in self.filled.iter_mut().enumerate() {
            let bytes = &mut self.bytes[self.offsets[row]..self.offsets[row + 1]];
            match value(row) {
                Some(value) => {
                    let at = self.start + *filled;
                    bytes[at..at + value.len()].copy_from_slice(value);
                    *filled += value.len();
                }
                None => bytes[HEADER_BYTES + self.i / 8] |= 1 << (self.i % 8),
            }
            bytes[self.place..self.place + TEXT_END_BYTES].copy_from_slice(&(*filled as u32).to_le_bytes());
        }
    }
}

/// Writes the fields of column `i`, of a fixed width, at `place` of each row.
fn put_fixed(rows: &mut impl RowsMut, ty: &ColumnType, column: &ArrayRef, i: usize, place: usize) {
    match ty {
        ColumnType::Boolean => {
            let values = column.as_boolean().values();
            rows.for_each(|row, bytes| bytes[place] = values.value(row) as u8);
        }
        ColumnType::Int32 => {
            let values = column.as_primitive::<Int32Type>().values();
            rows.for_each(|row, bytes| bytes[place..place + 4].copy_from_slice(&values[row].to_le_bytes()));
        }
        ColumnType::Int64 => {
            let values = column.as_primitive::<Int64Type>().values();
            rows.for_each(|row, bytes| bytes[place..place + 8].copy_from_slice(&values[row].to_le_bytes()));
        }
        ColumnType::TimestampMicrosecond => {
            let values = column.as_primitive::<TimestampMicrosecondType>().values();
            rows.for_each(|row, bytes| bytes[place..place + 8].copy_from_slice(&values[row].to_le_bytes()));
        }
        ColumnType::Float64 => {
            let values = column.as_primitive::<Float64Type>().values();
            rows.for_each(|row, bytes| bytes[place..place + 8].copy_from_slice(&values[row].to_le_bytes()));
        }
        ColumnType::Decimal128 { .. } => {
            let values = column.as_primitive::<Decimal128Type>().values();
            rows.for_each(|row, bytes| bytes[place..place + 16].copy_from_slice(&values[row].to_le_bytes()));
        }
        ColumnType::Utf8 | ColumnType::Nested(_) => unreachable!("it is written by encode_variable"),
    }
    let Some(nulls) = column.nulls().filter(|nulls| nulls.null_count() > 0) else {
        return;
    };
    let width = ty.fixed_width().unwrap_or(TEXT_END_BYTES);
    rows.for_each(|row, bytes| {
        if nulls.is_null(row) {
            bytes[HEADER_BYTES + i / 8] |= 1 << (i % 8);
            // An array may have anything in the place of a NULL.
            bytes[place..place + width].fill(0);
        }
    });
}

/// The fields at `place`; `check_rows` has checked that every row has them.
fn fixed<const N: usize, T>(rows: &[&[u8]], place: usize, decode: impl Fn([u8; N]) -> T) -> ScalarBuffer<T>
where
    T: arrow::datatypes::ArrowNativeType,
{
    ScalarBuffer::from(rows.iter().map(|row| decode(array(&row[place..place + N]))).collect::<Vec<T>>())
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

fn malformed(reason: &str) -> Error {
    Error::corrupted("a value in the state is malformed").with_detail(format!("The value cannot be decoded: {reason}."))
}
