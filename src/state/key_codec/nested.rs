//! Rows and arrays in keys and values, in format 2 of both codecs.
//!
//! | type | bytes after the marker |
//! | --- | --- |
//! | Struct | its fields one after another, each a column as in a key |
//! | List | for each element `01` and the element, a column as in a key; then `00` |
//!
//! # Invariants
//! - Those of keys: byte order is the order of rows field by field, and of arrays element by element, where one that begins another stands before it.
//! - Fields of a row that is NULL come back as NULL.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, ListArray, StructArray};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::take;
use arrow::datatypes::{DataType, FieldRef, Fields};
use weir_catalog::{Error, Result};

use super::{
    ColumnType, Doubles, END_OF_TEXT, ESCAPE, ESCAPED_ZERO, EncodedRows, KeyCodec, NULL, VALUE, decode_column, malformed, take_marker,
};

#[cfg(test)]
mod tests;

const ELEMENT: u8 = 0x01;
const END_OF_ARRAY: u8 = 0x00;

/// The type of a row or an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::state) enum NestedType {
    Row { fields: Fields, types: Vec<ColumnType> },
    Array { field: FieldRef, element: Box<ColumnType> },
}

impl NestedType {
    /// `role` says in the error what the column is for.
    pub(super) fn row(fields: &Fields, role: &str) -> Result<NestedType> {
        let types = fields.iter().map(|field| ColumnType::new(field.data_type(), role)).collect::<Result<_>>()?;
        Ok(NestedType::Row { fields: fields.clone(), types })
    }

    /// As [`NestedType::row`].
    pub(super) fn array(field: &FieldRef, role: &str) -> Result<NestedType> {
        Ok(NestedType::Array { field: field.clone(), element: Box::new(ColumnType::new(field.data_type(), role)?) })
    }

    pub(super) fn to_arrow(&self) -> DataType {
        match self {
            NestedType::Row { fields, .. } => DataType::Struct(fields.clone()),
            NestedType::Array { field, .. } => DataType::List(field.clone()),
        }
    }

    /// The field of each row, its marker in front.
    pub(in crate::state) fn encode(&self, column: &ArrayRef, doubles: Doubles) -> Result<EncodedRows> {
        let mut out = EncodedRows::new();
        out.offsets.reserve(column.len());
        let encoded = |ty: &ColumnType, column: &ArrayRef| -> Result<EncodedRows> {
            let mut out = EncodedRows::new();
            KeyCodec { types: vec![ty.clone()], doubles }.encode(std::slice::from_ref(column), &mut out)?;
            Ok(out)
        };
        match self {
            NestedType::Row { types, .. } => {
                let rows = column.as_struct();
                let fields = types.iter().zip(rows.columns()).map(|(ty, column)| encoded(ty, column)).collect::<Result<Vec<_>>>()?;
                for row in 0..rows.len() {
                    if rows.is_null(row) {
                        out.bytes.push(NULL);
                    } else {
                        out.bytes.push(VALUE);
                        fields.iter().for_each(|field| out.bytes.extend_from_slice(field.get(row)));
                    }
                    out.offsets.push(out.bytes.len());
                }
            }
            NestedType::Array { element, .. } => {
                let lists = column.as_list::<i32>();
                let (offsets, values) = weir_sql::functions::nested::parts(lists);
                let elements = encoded(element, &values)?;
                for row in 0..lists.len() {
                    if lists.is_null(row) {
                        out.bytes.push(NULL);
                    } else {
                        out.bytes.push(VALUE);
                        for at in offsets[row]..offsets[row + 1] {
                            out.bytes.push(ELEMENT);
                            out.bytes.extend_from_slice(elements.get(at as usize));
                        }
                        out.bytes.push(END_OF_ARRAY);
                    }
                    out.offsets.push(out.bytes.len());
                }
            }
        }
        Ok(out)
    }

    /// Takes one column off the front of each key.
    pub(in crate::state) fn decode(&self, rests: &mut [&[u8]]) -> Result<ArrayRef> {
        let valid = rests.iter_mut().map(take_marker).collect::<Result<Vec<bool>>>()?;
        let nulls = valid.iter().any(|valid| !valid).then(|| NullBuffer::from(valid.clone()));
        match self {
            NestedType::Row { fields, types } => {
                let mut inside: Vec<&[u8]> = rests.iter().zip(&valid).filter(|(_, valid)| **valid).map(|(rest, _)| *rest).collect();
                let mut columns = types.iter().map(|ty| decode_column(ty, &mut inside)).collect::<Result<Vec<_>>>()?;
                let mut behind = inside.into_iter();
                for (rest, _) in rests.iter_mut().zip(&valid).filter(|(_, valid)| **valid) {
                    *rest = behind.next().ok_or_else(|| Error::internal("a row of a key was lost"))?;
                }
                if nulls.is_some() {
                    let mut next = 0;
                    let places: Int32Array = valid
                        .iter()
                        .map(|valid| {
                            next += i32::from(*valid);
                            valid.then_some(next - 1)
                        })
                        .collect();
                    columns = columns.iter().map(|column| take(column, &places, None)).collect::<Result<_, _>>().map_err(failed)?;
                }
                Ok(Arc::new(StructArray::try_new_with_length(fields.clone(), columns, nulls, rests.len()).map_err(failed)?))
            }
            NestedType::Array { field, element } => {
                let mut elements: Vec<&[u8]> = Vec::new();
                let mut offsets = Vec::with_capacity(rests.len() + 1);
                offsets.push(0i32);
                for (rest, valid) in rests.iter_mut().zip(&valid) {
                    if *valid {
                        while let Some(element_at) = take_element(rest)? {
                            elements.push(element_at);
                            skip(element, rest)?;
                        }
                    }
                    // No overflow: each element takes a byte, and `decode_first` has checked the keys' length altogether.
                    offsets.push(elements.len() as i32);
                }
                let values = decode_column(element, &mut elements)?;
                let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
                Ok(Arc::new(ListArray::try_new(field.clone(), offsets, values, nulls).map_err(failed)?))
            }
        }
    }
}

fn failed(error: arrow::error::ArrowError) -> Error {
    Error::internal(format!("a row or array could not be put together: {error}"))
}

/// Passes over what stands in front of the next element of an array, and returns what begins with that; `None` behind the last one.
fn take_element<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>> {
    match rest.split_first() {
        Some((&END_OF_ARRAY, tail)) => {
            *rest = tail;
            Ok(None)
        }
        Some((&ELEMENT, tail)) => {
            *rest = tail;
            Ok(Some(tail))
        }
        Some(_) => Err(malformed("an array goes on with neither 0 nor 1")),
        None => Err(malformed("an array has no end")),
    }
}

/// Passes over one column.
fn skip(ty: &ColumnType, rest: &mut &[u8]) -> Result<()> {
    if !take_marker(rest)? {
        return Ok(());
    }
    match ty {
        ColumnType::Utf8 => loop {
            let zero = rest.iter().position(|byte| *byte == ESCAPE).ok_or_else(|| malformed("a text has no end"))?;
            let follower = rest.get(zero + 1).copied();
            if !matches!(follower, Some(ESCAPED_ZERO | END_OF_TEXT)) {
                return Err(malformed("a zero byte in a text is followed by neither FF nor 01"));
            }
            *rest = &rest[zero + 2..];
            if follower == Some(END_OF_TEXT) {
                return Ok(());
            }
        },
        ColumnType::Nested(NestedType::Row { types, .. }) => types.iter().try_for_each(|ty| skip(ty, rest)),
        ColumnType::Nested(NestedType::Array { element, .. }) => {
            while take_element(rest)?.is_some() {
                skip(element, rest)?;
            }
            Ok(())
        }
        fixed => {
            let width = fixed.fixed_width().unwrap_or(0);
            *rest = rest.get(width..).ok_or_else(|| malformed("it ends within a value"))?;
            Ok(())
        }
    }
}
