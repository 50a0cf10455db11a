//! The value codec: rows to the bytes that stand behind a key in a state backend, and back.
//!
//! Format [`FORMAT`] = 1. A value is, in this order, all numbers little-endian:
//!
//! | part | bytes |
//! | --- | --- |
//! | schema number | 1: which of the schemas in the state's descriptor the row has |
//! | flags | 1: none is defined, so 0 |
//! | null bitmap | one bit a column, rounded up to bytes; column `i` is bit `i % 8` (from the lowest) of byte `i / 8`; set for NULL, and for no other bit |
//! | fixed part | for each column its field: Boolean 1 byte (0, 1), Int32 4, Int64, Float64 and Timestamp(Microsecond) 8, Decimal128 16; Utf8 4: where its bytes end in the variable part. The field of a NULL is zero (of a text: the end of the text before) |
//! | variable part | the bytes of the texts, in column order |
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

use super::key_codec::{ColumnType, EncodedRows, check_columns};

#[cfg(test)]
mod tests;

/// The number of the format that this file describes; it stands in the descriptor of each state.
pub const FORMAT: u32 = 1;

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
            columns.push((ty, place));
            place += ty.fixed_width().unwrap_or(TEXT_END_BYTES);
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
        let types: Vec<ColumnType> = self.columns.iter().map(|(ty, _)| *ty).collect();
        check_columns(&types, columns, rows)?;
        if types.contains(&ColumnType::Utf8) {
            return self.encode_with_text(columns, rows, out);
        }
        let width = self.fixed_bytes;
        let bytes = out.grow_uniform(rows, width);
        for row in bytes.chunks_exact_mut(width) {
            row[0] = self.schema_number;
        }
        for (i, ((ty, place), column)) in self.columns.iter().zip(columns).enumerate() {
            put_fixed(&mut UniformRows { bytes, width }, *ty, column, i, *place);
        }
        Ok(())
    }

    fn encode_with_text(&self, columns: &[ArrayRef], rows: usize, out: &mut EncodedRows) -> Result<()> {
        let mut places = vec![self.fixed_bytes; rows];
        for ((ty, _), column) in self.columns.iter().zip(columns) {
            if *ty == ColumnType::Utf8 {
                let text = column.as_string::<i32>();
                for (row, length) in places.iter_mut().enumerate() {
                    if text.is_valid(row) {
                        *length += text.value_length(row) as usize;
                    }
                }
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
        for (i, ((ty, place), column)) in self.columns.iter().zip(columns).enumerate() {
            match ty {
                ColumnType::Utf8 => {
                    let text = column.as_string::<i32>();
                    for (row, filled) in filled.iter_mut().enumerate() {
                        let bytes = &mut bytes[offsets[row]..offsets[row + 1]];
                        if text.is_valid(row) {
                            let value = text.value(row).as_bytes();
                            let at = self.fixed_bytes + *filled;
                            bytes[at..at + value.len()].copy_from_slice(value);
                            *filled += value.len();
                        } else {
                            bytes[HEADER_BYTES + i / 8] |= 1 << (i % 8);
                        }
                        bytes[*place..*place + TEXT_END_BYTES].copy_from_slice(&(*filled as u32).to_le_bytes());
                    }
                }
                _ => put_fixed(&mut VaryingRows { bytes, offsets }, *ty, column, i, *place),
            }
        }
        Ok(())
    }

    /// The columns of encoded rows; `XX001` for bytes that no row of this schema encodes to. Without columns the result is empty.
    pub fn decode<'a>(&self, rows: impl Iterator<Item = &'a [u8]>) -> Result<Vec<ArrayRef>> {
        let rows: Vec<&'a [u8]> = rows.collect();
        self.check_rows(&rows)?;
        // Where each row's next text begins.
        let mut text_starts = vec![self.fixed_bytes; if self.has_text() { rows.len() } else { 0 }];
        let columns = self
            .columns
            .iter()
            .enumerate()
            .map(|(i, (ty, place))| self.decode_column(i, *ty, *place, &rows, &mut text_starts))
            .collect::<Result<Vec<_>>>()?;
        if text_starts.iter().zip(&rows).any(|(end, row)| *end != row.len()) {
            return Err(malformed("it is longer than its columns"));
        }
        Ok(columns)
    }

    fn has_text(&self) -> bool {
        self.columns.iter().any(|(ty, _)| *ty == ColumnType::Utf8)
    }

    fn check_rows(&self, rows: &[&[u8]]) -> Result<()> {
        let has_text = self.has_text();
        let spare_bits = if self.columns.len().is_multiple_of(8) { 0 } else { u8::MAX << (self.columns.len() % 8) };
        let bitmap_end = HEADER_BYTES + self.columns.len().div_ceil(8);
        let mut total = 0;
        for row in rows {
            if row.len() < self.fixed_bytes || (!has_text && row.len() != self.fixed_bytes) {
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
        // Text has 31-bit offsets.
        if has_text && total > i32::MAX as usize {
            return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "rows decoded at once are over 2 GiB"));
        }
        Ok(())
    }

    fn decode_column(&self, i: usize, ty: ColumnType, place: usize, rows: &[&[u8]], text_starts: &mut [usize]) -> Result<ArrayRef> {
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
                for (row, start) in rows.iter().zip(text_starts) {
                    let end = self.fixed_bytes + u32::from_le_bytes(array(&row[place..place + TEXT_END_BYTES])) as usize;
                    let text = row.get(*start..end).ok_or_else(|| malformed("a text lies outside of it"))?;
                    if is_null(row) && !text.is_empty() {
                        return Err(malformed("a null text has bytes"));
                    }
                    values.extend_from_slice(text);
                    *start = end;
                    // No overflow: `check_rows` has checked the rows' length altogether.
                    offsets.push(values.len() as i32);
                }
                let text = StringArray::try_new(OffsetBuffer::new(ScalarBuffer::from(offsets)), Buffer::from_vec(values), nulls)
                    .map_err(|_| malformed("a text is not UTF-8"))?;
                Arc::new(text)
            }
        })
    }
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

/// Writes the fields of column `i`, which is not text, at `place` of each row.
fn put_fixed(rows: &mut impl RowsMut, ty: ColumnType, column: &ArrayRef, i: usize, place: usize) {
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
        ColumnType::Utf8 => unreachable!("text is written by encode_with_text"),
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
