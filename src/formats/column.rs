//! Columns under construction: values are appended as they are read, and a row that turns out to be bad is taken back.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Decimal128Array, Float64Array, Int32Array, Int64Array, NullBufferBuilder, StringArray,
    TimestampMicrosecondArray,
};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use weir_catalog::{Error, Result, SqlType};
use weir_sql::functions::text::from_bytes;

use super::value::{self, TimestampParser};
use crate::operators::error::from_arrow;

/// A column being filled.
#[derive(Debug)]
pub struct ColumnBuilder {
    values: Values,
    nulls: NullBufferBuilder,
}

#[derive(Debug)]
enum Values {
    Boolean(Vec<bool>),
    Int(Vec<i32>),
    BigInt(Vec<i64>),
    Double(Vec<f64>),
    Numeric { values: Vec<i128>, precision: u8, scale: i8 },
    Text { offsets: Vec<i32>, bytes: Vec<u8> },
    Timestamp { values: Vec<i64>, parser: TimestampParser },
}

impl ColumnBuilder {
    /// An empty column of a type that is neither row nor array.
    pub fn new(ty: &SqlType) -> Result<ColumnBuilder> {
        let values = match ty {
            SqlType::Boolean => Values::Boolean(Vec::new()),
            SqlType::Int => Values::Int(Vec::new()),
            SqlType::BigInt => Values::BigInt(Vec::new()),
            SqlType::Double => Values::Double(Vec::new()),
            SqlType::Numeric { precision, scale } => Values::Numeric { values: Vec::new(), precision: *precision, scale: *scale },
            SqlType::Text => Values::Text { offsets: vec![0], bytes: Vec::new() },
            SqlType::Timestamp { precision } => Values::Timestamp { values: Vec::new(), parser: TimestampParser::new(*precision) },
            SqlType::Row(_) | SqlType::Array(_) => return Err(Error::internal(format!("a column of type {ty} was not refused"))),
        };
        Ok(ColumnBuilder { values, nulls: NullBufferBuilder::new(0) })
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.nulls.len()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it holds text, which is kept as it is read.
    pub fn is_text(&self) -> bool {
        matches!(self.values, Values::Text { .. })
    }

    /// Adds a NULL.
    pub fn push_null(&mut self) {
        match &mut self.values {
            Values::Boolean(values) => values.push(false),
            Values::Int(values) => values.push(0),
            Values::BigInt(values) | Values::Timestamp { values, .. } => values.push(0),
            Values::Double(values) => values.push(0.0),
            Values::Numeric { values, .. } => values.push(0),
            Values::Text { offsets, bytes } => offsets.push(bytes.len() as i32),
        }
        self.nulls.append_null();
    }

    /// Adds the value that `text` stands for. Adds nothing where that is an error.
    #[inline]
    pub fn push(&mut self, text: &[u8]) -> Result<()> {
        match &mut self.values {
            Values::Boolean(values) => values.push(value::boolean(text)?),
            Values::Int(values) => values.push(value::int(text)?),
            Values::BigInt(values) => values.push(value::bigint(text)?),
            Values::Double(values) => values.push(value::double(text)?),
            Values::Numeric { values, precision, scale } => values.push(value::numeric(text, *precision, *scale)?),
            Values::Timestamp { values, parser } => values.push(parser.parse(text)?),
            Values::Text { offsets, bytes } => {
                bytes.extend_from_slice(text);
                offsets.push(bytes.len() as i32);
            }
        }
        self.nulls.append_non_null();
        Ok(())
    }

    /// Adds the values that `fields` gives, each with its row, `None` for NULL. A value that is an error becomes a NULL, and `bad` is told of its row. The
    /// type is looked at once, not for each value.
    pub fn push_all<'a>(&mut self, fields: impl Iterator<Item = Option<&'a [u8]>>, bad: &mut impl FnMut(usize, Error)) {
        /// The loop for one type.
        fn fill<'a, T: Default>(
            values: &mut Vec<T>,
            nulls: &mut NullBufferBuilder,
            fields: impl Iterator<Item = Option<&'a [u8]>>,
            bad: &mut impl FnMut(usize, Error),
            mut parse: impl FnMut(&[u8]) -> Result<T>,
        ) {
            values.reserve(fields.size_hint().0);
            for (row, field) in fields.enumerate() {
                match field.map(&mut parse) {
                    Some(Ok(value)) => {
                        values.push(value);
                        nulls.append_non_null();
                    }
                    other => {
                        values.push(T::default());
                        nulls.append_null();
                        if let Some(Err(error)) = other {
                            bad(row, error);
                        }
                    }
                }
            }
        }
        let nulls = &mut self.nulls;
        match &mut self.values {
            Values::Boolean(values) => fill(values, nulls, fields, bad, value::boolean),
            Values::Int(values) => fill(values, nulls, fields, bad, value::int),
            Values::BigInt(values) => fill(values, nulls, fields, bad, value::bigint),
            Values::Double(values) => fill(values, nulls, fields, bad, value::double),
            Values::Numeric { values, precision, scale } => {
                let (precision, scale) = (*precision, *scale);
                fill(values, nulls, fields, bad, |text| value::numeric(text, precision, scale));
            }
            Values::Timestamp { values, parser } => fill(values, nulls, fields, bad, |text| parser.parse(text)),
            Values::Text { offsets, bytes } => {
                offsets.reserve(fields.size_hint().0);
                for field in fields {
                    match field {
                        Some(text) => {
                            bytes.extend_from_slice(text);
                            nulls.append_non_null();
                        }
                        None => nulls.append_null(),
                    }
                    offsets.push(bytes.len() as i32);
                }
            }
        }
    }

    /// Takes values back until `len` are left.
    pub fn truncate(&mut self, len: usize) {
        match &mut self.values {
            Values::Boolean(values) => values.truncate(len),
            Values::Int(values) => values.truncate(len),
            Values::BigInt(values) | Values::Timestamp { values, .. } => values.truncate(len),
            Values::Double(values) => values.truncate(len),
            Values::Numeric { values, .. } => values.truncate(len),
            Values::Text { offsets, bytes } => {
                offsets.truncate(len + 1);
                bytes.truncate(offsets[len] as usize);
            }
        }
        self.nulls.truncate(len);
    }

    /// The bytes that its texts take; 0 for other types.
    pub fn text_bytes(&self) -> usize {
        match &self.values {
            Values::Text { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }

    /// The rows whose text is none, and why: it is not UTF-8, which [`ColumnBuilder::finish`] would refuse, or has a zero byte.
    pub fn rows_not_text(&self) -> Vec<(usize, Error)> {
        let Values::Text { offsets, bytes } = &self.values else { return Vec::new() };
        // Looked at all at once, and one by one only where that finds something.
        let whole = std::str::from_utf8(bytes).ok().filter(|_| memchr::memchr(0, bytes).is_none());
        if whole.is_some_and(|text| offsets.iter().all(|offset| text.is_char_boundary(*offset as usize))) {
            return Vec::new();
        }
        let text = |row: usize| &bytes[offsets[row] as usize..offsets[row + 1] as usize];
        (0..offsets.len() - 1).filter_map(|row| Some((row, from_bytes(text(row)).err()?))).collect()
    }

    /// Empties the texts of `rows`, which are about to be dropped.
    pub fn blank(&mut self, rows: &[usize]) {
        let Values::Text { offsets, bytes } = &mut self.values else { return };
        let mut kept = Vec::with_capacity(bytes.len());
        let mut start = 0;
        for row in 0..offsets.len() - 1 {
            let end = offsets[row + 1] as usize;
            if rows.binary_search(&row).is_err() {
                kept.extend_from_slice(&bytes[start..end]);
            }
            start = end;
            offsets[row + 1] = kept.len() as i32;
        }
        *bytes = kept;
    }

    /// The column; the builder is empty again.
    pub fn finish(&mut self) -> Result<ArrayRef> {
        let nulls = self.nulls.finish();
        Ok(match &mut self.values {
            Values::Boolean(values) => Arc::new(BooleanArray::new(std::mem::take(values).into_iter().collect(), nulls)),
            Values::Int(values) => Arc::new(Int32Array::new(ScalarBuffer::from(std::mem::take(values)), nulls)),
            Values::BigInt(values) => Arc::new(Int64Array::new(ScalarBuffer::from(std::mem::take(values)), nulls)),
            Values::Double(values) => Arc::new(Float64Array::new(ScalarBuffer::from(std::mem::take(values)), nulls)),
            Values::Numeric { values, precision, scale } => {
                let array = Decimal128Array::new(ScalarBuffer::from(std::mem::take(values)), nulls);
                Arc::new(array.with_precision_and_scale(*precision, *scale).map_err(from_arrow)?)
            }
            Values::Timestamp { values, .. } => Arc::new(TimestampMicrosecondArray::new(ScalarBuffer::from(std::mem::take(values)), nulls)),
            Values::Text { offsets, bytes } => {
                let offsets = OffsetBuffer::new(ScalarBuffer::from(std::mem::replace(offsets, vec![0])));
                let bytes = Buffer::from_vec(std::mem::take(bytes));
                Arc::new(StringArray::try_new(offsets, bytes, nulls).map_err(from_arrow)?)
            }
        })
    }
}
