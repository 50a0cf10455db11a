//! Values on the wire: columns to text and binary as PostgreSQL prints and sends them, and parameters back.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::datatypes::{
    DataType, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, IntervalMonthDayNanoType, IntervalUnit,
    TimeUnit, TimestampMicrosecondType, TimestampNanosecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use bytes::{BufMut, BytesMut};
use datafusion::common::ScalarValue;
use pgwire::api::Type;
use pgwire::api::portal::{Format, Portal};
use pgwire::api::results::{FieldFormat, FieldInfo};
use pgwire::messages::data::DataRow;
use weir_catalog::{Column, Error, Result, SqlState, SqlType};
use weir_sql::functions::{nested, text};

/// Microseconds from 1970 to 2000, where PostgreSQL's binary timestamps begin.
const Y2000_US: i64 = 946_684_800_000_000;

/// The wire type of an SQL type.
pub fn wire_type(ty: &SqlType) -> Type {
    match ty {
        SqlType::Boolean => Type::BOOL,
        SqlType::Int => Type::INT4,
        SqlType::BigInt => Type::INT8,
        SqlType::Double => Type::FLOAT8,
        SqlType::Numeric { .. } => Type::NUMERIC,
        SqlType::Text => Type::TEXT,
        SqlType::Timestamp { .. } => Type::TIMESTAMP,
        SqlType::Row(_) => Type::RECORD,
        SqlType::Array(element) => array_type(element),
    }
}

/// The wire type of arrays of `element`; PostgreSQL's array types know no number of dimensions.
fn array_type(element: &SqlType) -> Type {
    match element {
        SqlType::Boolean => Type::BOOL_ARRAY,
        SqlType::Int => Type::INT4_ARRAY,
        SqlType::BigInt => Type::INT8_ARRAY,
        SqlType::Double => Type::FLOAT8_ARRAY,
        SqlType::Numeric { .. } => Type::NUMERIC_ARRAY,
        SqlType::Text => Type::TEXT_ARRAY,
        SqlType::Timestamp { .. } => Type::TIMESTAMP_ARRAY,
        SqlType::Row(_) => Type::RECORD_ARRAY,
        SqlType::Array(inner) => array_type(inner),
    }
}

/// The SQL type that a client means by a wire type; `None` leaves it to be deduced.
pub fn sql_type(ty: &Type) -> Option<SqlType> {
    Some(match *ty {
        Type::BOOL => SqlType::Boolean,
        Type::INT2 | Type::INT4 => SqlType::Int,
        Type::INT8 => SqlType::BigInt,
        Type::FLOAT4 | Type::FLOAT8 => SqlType::Double,
        Type::NUMERIC => SqlType::NUMERIC,
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME => SqlType::Text,
        Type::TIMESTAMP => SqlType::TIMESTAMP,
        _ => {
            let elements = [
                (Type::BOOL_ARRAY, SqlType::Boolean),
                (Type::INT4_ARRAY, SqlType::Int),
                (Type::INT8_ARRAY, SqlType::BigInt),
                (Type::FLOAT8_ARRAY, SqlType::Double),
                (Type::NUMERIC_ARRAY, SqlType::NUMERIC),
                (Type::TEXT_ARRAY, SqlType::Text),
                (Type::VARCHAR_ARRAY, SqlType::Text),
                (Type::TIMESTAMP_ARRAY, SqlType::TIMESTAMP),
            ];
            let (_, element) = elements.into_iter().find(|(array, _)| array == ty)?;
            SqlType::Array(Box::new(element))
        }
    })
}

/// Whether values of this type can be sent in binary form: arrays whose elements differ in length have none.
fn has_binary_form(ty: &SqlType) -> bool {
    match ty {
        SqlType::Row(fields) => fields.iter().all(|(_, field)| has_binary_form(field)),
        SqlType::Array(element) => !matches!(element.as_ref(), SqlType::Array(_)) && has_binary_form(element),
        _ => true,
    }
}

/// The description of a result's columns.
pub fn fields(columns: &[Column], format: &Format) -> Vec<FieldInfo> {
    columns
        .iter()
        .enumerate()
        .map(|(at, column)| {
            let format = match format {
                Format::Individual(formats) => formats.get(at).map_or(FieldFormat::Text, |code| FieldFormat::from(*code)),
                other => other.format_for(at),
            };
            let format = if has_binary_form(&column.ty) { format } else { FieldFormat::Text };
            let (size, modifier) = match &column.ty {
                SqlType::Boolean => (1, -1),
                SqlType::Int => (4, -1),
                SqlType::BigInt | SqlType::Double => (8, -1),
                SqlType::Numeric { precision, scale } => (-1, ((i32::from(*precision) << 16) | i32::from(*scale)) + 4),
                SqlType::Text | SqlType::Row(_) | SqlType::Array(_) => (-1, -1),
                SqlType::Timestamp { precision: 6 } => (8, -1),
                SqlType::Timestamp { precision } => (8, i32::from(*precision)),
            };
            FieldInfo::new(column.name.clone(), None, None, wire_type(&column.ty), format).with_type_size(size).with_type_modifier(modifier)
        })
        .collect()
}

/// The rows of a batch as messages, each made when it is asked for. `formats` has one entry a column.
pub fn rows(batch: RecordBatch, formats: Arc<[FieldFormat]>) -> impl Iterator<Item = Result<DataRow>> + Send {
    let mut scratch = String::new();
    (0..batch.num_rows()).map(move |row| {
        let mut data = BytesMut::with_capacity(batch.num_columns() * 16);
        for (column, format) in batch.columns().iter().zip(formats.iter()) {
            put(&mut data, column, row, *format, &mut scratch)?;
        }
        Ok(DataRow::new(data, batch.num_columns() as i16))
    })
}

/// Length and bytes of one value.
fn put(out: &mut BytesMut, column: &ArrayRef, row: usize, format: FieldFormat, scratch: &mut String) -> Result<()> {
    if column.is_null(row) || matches!(column.data_type(), DataType::Null) {
        out.put_i32(-1);
        return Ok(());
    }
    if format == FieldFormat::Binary {
        return put_binary(out, column, row);
    }
    scratch.clear();
    write_text(scratch, column, row)?;
    out.put_i32(scratch.len() as i32);
    out.put_slice(scratch.as_bytes());
    Ok(())
}

fn unsupported(data_type: &DataType) -> Error {
    Error::unsupported(format!("values of type {data_type} can't be sent to a client")).with_hint("Cast them to text.")
}

/// Appends a value as PostgreSQL prints it. The value is not NULL.
pub fn write_text(out: &mut String, column: &ArrayRef, row: usize) -> Result<()> {
    let written = match column.data_type() {
        DataType::Boolean => out.write_str(if column.as_boolean().value(row) { "t" } else { "f" }),
        DataType::Int8 => write!(out, "{}", column.as_primitive::<Int8Type>().value(row)),
        DataType::Int16 => write!(out, "{}", column.as_primitive::<Int16Type>().value(row)),
        DataType::Int32 => write!(out, "{}", column.as_primitive::<Int32Type>().value(row)),
        DataType::Int64 => write!(out, "{}", column.as_primitive::<Int64Type>().value(row)),
        DataType::UInt8 => write!(out, "{}", column.as_primitive::<UInt8Type>().value(row)),
        DataType::UInt16 => write!(out, "{}", column.as_primitive::<UInt16Type>().value(row)),
        DataType::UInt32 => write!(out, "{}", column.as_primitive::<UInt32Type>().value(row)),
        DataType::UInt64 => write!(out, "{}", column.as_primitive::<UInt64Type>().value(row)),
        DataType::Float32 => text::write_double(out, f64::from(column.as_primitive::<Float32Type>().value(row))),
        DataType::Float64 => text::write_double(out, column.as_primitive::<Float64Type>().value(row)),
        DataType::Decimal128(_, scale) => text::write_decimal(out, column.as_primitive::<Decimal128Type>().value(row), *scale),
        DataType::Utf8 => out.write_str(column.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => out.write_str(column.as_string::<i64>().value(row)),
        DataType::Utf8View => out.write_str(column.as_string_view().value(row)),
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            text::write_timestamp(out, column.as_primitive::<TimestampMicrosecondType>().value(row))
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            text::write_timestamp(out, column.as_primitive::<TimestampNanosecondType>().value(row).div_euclid(1000))
        }
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            text::write_interval(out, column.as_primitive::<IntervalMonthDayNanoType>().value(row))
        }
        DataType::Struct(_) => return write_row(out, column, row),
        DataType::List(_) => return write_array(out, column, row),
        other => return Err(unsupported(other)),
    };
    written.map_err(|_| Error::internal("a value could not be written"))
}

/// A row value: `(1,text,"text, quoted",)`.
fn write_row(out: &mut String, column: &ArrayRef, row: usize) -> Result<()> {
    out.push('(');
    let mut value = String::new();
    for (at, field) in column.as_struct().columns().iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        if field.is_null(row) {
            continue;
        }
        value.clear();
        write_text(&mut value, field, row)?;
        nested::write_field(out, &value).map_err(|_| Error::internal("a value could not be written"))?;
    }
    out.push(')');
    Ok(())
}

/// An array: `{1,NULL,"text, quoted"}`.
fn write_array(out: &mut String, column: &ArrayRef, row: usize) -> Result<()> {
    out.push('{');
    let elements = column.as_list::<i32>().value(row);
    let is_array = matches!(elements.data_type(), DataType::List(_));
    let mut value = String::new();
    for at in 0..elements.len() {
        if at > 0 {
            out.push(',');
        }
        if elements.is_null(at) {
            out.push_str("NULL");
            continue;
        }
        value.clear();
        write_text(&mut value, &elements, at)?;
        if is_array {
            out.push_str(&value);
        } else {
            nested::write_element(out, &value).map_err(|_| Error::internal("a value could not be written"))?;
        }
    }
    out.push('}');
    Ok(())
}

/// An array's binary form: dimensions, whether there are NULLs, the elements' type, their number and lower bound, and each with its length.
fn array_to_binary(column: &ArrayRef, row: usize) -> Result<BytesMut> {
    let elements = column.as_list::<i32>().value(row);
    let ty = SqlType::from_arrow(elements.data_type()).filter(has_binary_form).ok_or_else(|| unsupported(column.data_type()))?;
    let mut bytes = BytesMut::new();
    bytes.put_i32(i32::from(!elements.is_empty()));
    bytes.put_i32(i32::from(elements.null_count() > 0));
    bytes.put_u32(wire_type(&ty).oid());
    if !elements.is_empty() {
        bytes.put_i32(elements.len() as i32);
        bytes.put_i32(1);
    }
    let mut scratch = String::new();
    for at in 0..elements.len() {
        put(&mut bytes, &elements, at, FieldFormat::Binary, &mut scratch)?;
    }
    Ok(bytes)
}

/// A row's binary form: the number of its fields, and of each its type and its value with its length.
fn row_to_binary(column: &ArrayRef, row: usize) -> Result<BytesMut> {
    let fields = column.as_struct().columns();
    let mut bytes = BytesMut::new();
    bytes.put_i32(fields.len() as i32);
    let mut scratch = String::new();
    for field in fields {
        let ty = SqlType::from_arrow(field.data_type()).ok_or_else(|| unsupported(field.data_type()))?;
        bytes.put_u32(wire_type(&ty).oid());
        put(&mut bytes, field, row, FieldFormat::Binary, &mut scratch)?;
    }
    Ok(bytes)
}

fn put_binary(out: &mut BytesMut, column: &ArrayRef, row: usize) -> Result<()> {
    let bytes = |out: &mut BytesMut, bytes: &[u8]| {
        out.put_i32(bytes.len() as i32);
        out.put_slice(bytes);
    };
    match column.data_type() {
        DataType::Boolean => bytes(out, &[u8::from(column.as_boolean().value(row))]),
        DataType::Int8 => bytes(out, &i32::from(column.as_primitive::<Int8Type>().value(row)).to_be_bytes()),
        DataType::Int16 => bytes(out, &i32::from(column.as_primitive::<Int16Type>().value(row)).to_be_bytes()),
        DataType::Int32 => bytes(out, &column.as_primitive::<Int32Type>().value(row).to_be_bytes()),
        DataType::UInt8 => bytes(out, &i32::from(column.as_primitive::<UInt8Type>().value(row)).to_be_bytes()),
        DataType::UInt16 => bytes(out, &i32::from(column.as_primitive::<UInt16Type>().value(row)).to_be_bytes()),
        DataType::Int64 => bytes(out, &column.as_primitive::<Int64Type>().value(row).to_be_bytes()),
        DataType::UInt32 => bytes(out, &i64::from(column.as_primitive::<UInt32Type>().value(row)).to_be_bytes()),
        DataType::Float32 => bytes(out, &f64::from(column.as_primitive::<Float32Type>().value(row)).to_be_bytes()),
        DataType::Float64 => bytes(out, &column.as_primitive::<Float64Type>().value(row).to_be_bytes()),
        DataType::Decimal128(_, scale) => bytes(out, &numeric_to_binary(column.as_primitive::<Decimal128Type>().value(row), *scale)),
        DataType::UInt64 => bytes(out, &numeric_to_binary(i128::from(column.as_primitive::<UInt64Type>().value(row)), 0)),
        DataType::Utf8 => bytes(out, column.as_string::<i32>().value(row).as_bytes()),
        DataType::LargeUtf8 => bytes(out, column.as_string::<i64>().value(row).as_bytes()),
        DataType::Utf8View => bytes(out, column.as_string_view().value(row).as_bytes()),
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            bytes(out, &(column.as_primitive::<TimestampMicrosecondType>().value(row).wrapping_sub(Y2000_US)).to_be_bytes());
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            let us = column.as_primitive::<TimestampNanosecondType>().value(row).div_euclid(1000);
            bytes(out, &(us - Y2000_US).to_be_bytes());
        }
        DataType::List(_) => {
            let value = array_to_binary(column, row)?;
            bytes(out, &value);
        }
        DataType::Struct(_) => {
            let value = row_to_binary(column, row)?;
            bytes(out, &value);
        }
        other => return Err(unsupported(other)),
    }
    Ok(())
}

/// PostgreSQL's binary NUMERIC: count of base-10000 digits, weight of the first, sign, digits after the point, the digits.
fn numeric_to_binary(value: i128, scale: i8) -> Vec<u8> {
    const BASE: u128 = 10_000;
    let after_point = scale.max(0) as u32;
    let mut magnitude = value.unsigned_abs();
    // Digits group in fours from the point: pad the fraction to a multiple of four.
    let padding = (4 - after_point % 4) % 4;
    let mut digits: Vec<i16> = Vec::new();
    let mut fraction_groups = (after_point + padding) / 4;
    if padding > 0 && magnitude > 0 {
        // The lowest group alone is padded, so that nothing overflows.
        let low = 10u128.pow(4 - padding);
        digits.push((magnitude % low * 10u128.pow(padding)) as i16);
        magnitude /= low;
    } else if padding > 0 {
        digits.push(0);
    }
    while magnitude > 0 {
        digits.push((magnitude % BASE) as i16);
        magnitude /= BASE;
    }
    while digits.len() < fraction_groups as usize {
        digits.push(0);
    }
    let mut weight = digits.len() as i32 - fraction_groups as i32 - 1;
    digits.reverse();
    while digits.first() == Some(&0) {
        digits.remove(0);
        weight -= 1;
    }
    while fraction_groups > 0 && digits.last() == Some(&0) {
        digits.pop();
        fraction_groups -= 1;
    }
    while digits.last() == Some(&0) {
        digits.pop();
    }
    if digits.is_empty() {
        weight = 0;
    }
    let mut bytes = Vec::with_capacity(8 + digits.len() * 2);
    bytes.put_i16(digits.len() as i16);
    bytes.put_i16(weight as i16);
    bytes.put_u16(if value < 0 { 0x4000 } else { 0 });
    bytes.put_i16(after_point as i16);
    for digit in digits {
        bytes.put_i16(digit);
    }
    bytes
}

/// The text of a binary NUMERIC. Errors with `22003` for infinities.
fn numeric_from_binary(bytes: &[u8]) -> FromBinary<String> {
    let word = |at: usize| bytes.get(at * 2..at * 2 + 2).map(|pair| i16::from_be_bytes([pair[0], pair[1]])).ok_or(BinaryError::Short);
    let wrong = |what: &str| BinaryError::Wrong(format!("invalid {what} in external \"numeric\" value"));
    let (count, weight, sign, after_point) = (word(0)? as u16 as usize, i32::from(word(1)?), word(2)? as u16, word(3)?);
    match sign {
        0 | 0x4000 => {}
        0xc000 | 0xd000 | 0xf000 => {
            return Err(Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "NaN and infinity are not numeric values here").into());
        }
        _ => return Err(wrong("sign")),
    }
    if !(0..=0x3fff).contains(&after_point) {
        return Err(wrong("scale"));
    }
    for at in 0..count {
        if !(0..10_000).contains(&word(4 + at)?) {
            return Err(wrong("digit"));
        }
    }
    if bytes.len() != 8 + count * 2 {
        return Err(BinaryError::Long);
    }
    if after_point > 1000 || !(-300..=300).contains(&weight) {
        return Err(Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "numeric field overflow").into());
    }
    let mut text = String::new();
    if sign == 0x4000 {
        text.push('-');
    }
    let digit = |place: i32| -> FromBinary<i16> {
        let at = weight - place;
        if at < 0 || at as usize >= count { Ok(0) } else { word(4 + at as usize) }
    };
    let write = |text: &mut String, value: i16| write!(text, "{value:04}").map_err(|e| Error::internal(e.to_string()));
    if weight < 0 {
        text.push('0');
    }
    for place in (0..=weight).rev() {
        write(&mut text, digit(place)?)?;
    }
    if after_point > 0 {
        let mut fraction = String::new();
        for place in 1..=(i32::from(after_point) + 3) / 4 {
            write(&mut fraction, digit(-place)?)?;
        }
        fraction.truncate(after_point as usize);
        text.push('.');
        text.push_str(&fraction);
    }
    Ok(text)
}

/// `22P03`
fn wrong_binary(message: &str) -> Error {
    Error::new(SqlState::parse("22P03").unwrap_or(SqlState::DATA_EXCEPTION), message)
}

/// The values of a portal's parameters, of the types that the statement has for them: as many of them as there are values.
pub fn parameters<S>(portal: &Portal<S>, types: &[SqlType]) -> Result<Vec<ScalarValue>> {
    let declared = &portal.statement.parameter_types;
    portal
        .parameters
        .iter()
        .zip(types)
        .enumerate()
        .map(|(at, (value, ty))| match value {
            None => ScalarValue::try_from(&ty.to_arrow()).map_err(|e| Error::internal(e.to_string())),
            Some(bytes) if portal.parameter_format.is_binary(at) => from_binary(bytes, ty, declared.get(at).and_then(Option::as_ref))
                .map_err(|error| match error {
                    BinaryError::Short => super::messages::violation("insufficient data left in message"),
                    BinaryError::Wrong(what) => wrong_binary(&what),
                    BinaryError::Long => wrong_binary(&format!("incorrect binary data format in bind parameter {}", at + 1)),
                    BinaryError::Value(error) => error,
                }),
            Some(bytes) => from_text(text::from_bytes(bytes)?, ty),
        })
        .collect()
}

fn from_text(value: &str, ty: &SqlType) -> Result<ScalarValue> {
    Ok(match ty {
        SqlType::Boolean => ScalarValue::Boolean(Some(text::parse_boolean(value)?)),
        SqlType::Int => ScalarValue::Int32(Some(text::parse_integer(value, "integer", i64::from(i32::MIN), i64::from(i32::MAX))? as i32)),
        SqlType::BigInt => ScalarValue::Int64(Some(text::parse_integer(value, "bigint", i64::MIN, i64::MAX)?)),
        SqlType::Double => ScalarValue::Float64(Some(text::parse_double(value)?)),
        SqlType::Numeric { precision, scale } => {
            ScalarValue::Decimal128(Some(text::parse_decimal(value, *precision, *scale)?), *precision, *scale)
        }
        SqlType::Text => ScalarValue::Utf8(Some(value.to_string())),
        SqlType::Timestamp { precision } => ScalarValue::TimestampMicrosecond(Some(text::parse_timestamp(value, *precision)?), None),
        SqlType::Array(element) => {
            let arrays = nested::arrays_from_text(&StringArray::from(vec![value]), element)?;
            ScalarValue::try_from_array(&arrays, 0).map_err(|e| Error::internal(e.to_string()))?
        }
        SqlType::Row(_) => return Err(Error::unsupported("parameters that are rows are not supported")),
    })
}

/// What is wrong with the bytes of a value.
#[derive(Debug)]
enum BinaryError {
    /// They end too early.
    Short,
    /// Some are left.
    Long,
    /// They are none of its type; in PostgreSQL's words.
    Wrong(String),
    /// They are fine, their value is not.
    Value(Error),
}

impl From<Error> for BinaryError {
    fn from(error: Error) -> BinaryError {
        BinaryError::Value(error)
    }
}

type FromBinary<T> = std::result::Result<T, BinaryError>;

/// `N` bytes, neither more nor less.
fn exactly<const N: usize>(bytes: &[u8]) -> FromBinary<[u8; N]> {
    match bytes.split_first_chunk::<N>() {
        None => Err(BinaryError::Short),
        Some((_, rest)) if !rest.is_empty() => Err(BinaryError::Long),
        Some((chunk, _)) => Ok(*chunk),
    }
}

/// A whole number of the type that the client declared, or was told that the parameter has.
fn integer_from_binary(bytes: &[u8], ty: &SqlType, declared: Option<&Type>) -> FromBinary<i64> {
    let declared = declared.filter(|declared| **declared != Type::UNKNOWN).cloned().unwrap_or_else(|| wire_type(ty));
    let length = match declared {
        Type::INT2 => 2,
        Type::INT4 | Type::OID => 4,
        Type::INT8 | Type::TIMESTAMP => 8,
        // Of a type that is none here, whatever number its values are sent as.
        _ => bytes.len(),
    };
    match length {
        2 => exactly(bytes).map(|bytes| i64::from(i16::from_be_bytes(bytes))),
        4 => exactly(bytes).map(|bytes| i64::from(i32::from_be_bytes(bytes))),
        _ => exactly(bytes).map(i64::from_be_bytes),
    }
}

/// `declared` is the type that the client named when it prepared the statement: the bytes are of that type.
fn from_binary(bytes: &[u8], ty: &SqlType, declared: Option<&Type>) -> FromBinary<ScalarValue> {
    Ok(match ty {
        SqlType::Boolean if bytes.is_empty() => return Err(super::messages::violation("no data left in message").into()),
        SqlType::Boolean => ScalarValue::Boolean(Some(exactly::<1>(bytes)? != [0])),
        SqlType::Int => {
            let value = i32::try_from(integer_from_binary(bytes, ty, declared)?);
            ScalarValue::Int32(Some(value.map_err(|_| Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "integer out of range"))?))
        }
        SqlType::BigInt => ScalarValue::Int64(Some(integer_from_binary(bytes, ty, declared)?)),
        SqlType::Double => ScalarValue::Float64(Some(match declared {
            Some(&Type::FLOAT4) => f64::from(f32::from_be_bytes(exactly(bytes)?)),
            _ => f64::from_be_bytes(exactly(bytes)?),
        })),
        SqlType::Numeric { .. } => from_text(&numeric_from_binary(bytes)?, ty)?,
        SqlType::Text => ScalarValue::Utf8(Some(text::from_bytes(bytes)?.to_string())),
        SqlType::Timestamp { precision } => {
            let us = integer_from_binary(bytes, ty, declared)?
                .checked_add(Y2000_US)
                .ok_or_else(|| Error::new(SqlState::DATETIME_FIELD_OVERFLOW, "timestamp out of range"))?;
            ScalarValue::TimestampMicrosecond(Some(text::round_timestamp(us, *precision)), None)
        }
        SqlType::Array(element) => array_from_binary(bytes, element)?,
        SqlType::Row(_) => return Err(Error::unsupported("parameters that are rows are not supported").into()),
    })
}

/// The array that [`array_to_binary`] sends. `0A000` for more than one dimension.
fn array_from_binary(bytes: &[u8], element: &SqlType) -> FromBinary<ScalarValue> {
    let mut rest = bytes;
    let mut word = || -> FromBinary<i32> {
        let (word, tail) = rest.split_first_chunk::<4>().ok_or(BinaryError::Short)?;
        rest = tail;
        Ok(i32::from_be_bytes(*word))
    };
    let (dimensions, _has_nulls, element_type) = (word()?, word()?, word()? as u32);
    let count = match dimensions {
        0 => 0,
        1 => {
            let (count, _lower_bound) = (word()?, word()?);
            usize::try_from(count).map_err(|_| BinaryError::Wrong(format!("invalid number of elements: {count}")))?
        }
        _ => return Err(Error::unsupported("parameters that are arrays of more than one dimension are not supported").into()),
    };
    let (sent, wanted) = (Type::from_oid(element_type), wire_type(element));
    if !sent.as_ref().is_some_and(|sent| sql_type(sent) == sql_type(&wanted) || *sent == Type::OID) {
        let name = sent.as_ref().map_or_else(|| "unknown".to_string(), |sent| sql_type(sent).map_or(sent.to_string(), |ty| ty.to_string()));
        let message =
            format!("binary data has array element type {element_type} ({name}) instead of expected {} ({element})", wanted.oid());
        return Err(Error::new(SqlState::DATATYPE_MISMATCH, message).into());
    }
    // Each element takes a length at least.
    if count > rest.len() / 4 {
        return Err(BinaryError::Short);
    }
    let mut values = Vec::with_capacity(count);
    for at in 0..count {
        let (length, tail) = rest.split_first_chunk::<4>().ok_or(BinaryError::Short)?;
        let length = i32::from_be_bytes(*length);
        if length < 0 {
            rest = tail;
            values.push(ScalarValue::try_from(&element.to_arrow()).map_err(|e| Error::internal(e.to_string()))?);
            continue;
        }
        let (value, tail) = tail.split_at_checked(length as usize).ok_or(BinaryError::Short)?;
        rest = tail;
        let value = from_binary(value, element, sent.as_ref());
        values.push(value.map_err(|error| match error {
            BinaryError::Long => BinaryError::Wrong(format!("improper binary format in array element {}", at + 1)),
            error => error,
        })?);
    }
    if !rest.is_empty() {
        return Err(BinaryError::Long);
    }
    Ok(ScalarValue::List(ScalarValue::new_list_nullable(&values, &element.to_arrow())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers with the bytes that PostgreSQL 15 sends for them (`numeric_send`).
    #[test]
    fn numerics_are_as_postgresql_sends_them() {
        let cases: &[(i128, i8, &[i16])] = &[
            (0, 0, &[0, 0, 0, 0]),
            (1, 0, &[1, 0, 0, 0, 1]),
            (-12_345, 0, &[2, 1, 0x4000, 0, 1, 2345]),
            (15, 1, &[2, 0, 0, 1, 1, 5000]),
            (1, 4, &[1, -1, 0, 4, 1]),
            (100_000_000, 0, &[1, 2, 0, 0, 1]),
            (12_300, 2, &[1, 0, 0, 2, 123]),
        ];
        for (value, scale, words) in cases {
            let expected: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            assert_eq!(numeric_to_binary(*value, *scale), expected, "{value} scale {scale}");
        }
    }

    #[test]
    fn arrays_are_as_postgresql_sends_them() {
        let element = SqlType::Int;
        let array = |text: &str| from_text(text, &SqlType::Array(Box::new(element.clone()))).unwrap();
        let sent = |text: &str| array_to_binary(&array(text).to_array().unwrap(), 0).unwrap().to_vec();
        let words = |words: &[i32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
        // `array_send` of PostgreSQL 15.
        assert_eq!(sent("{7,NULL}"), words(&[1, 1, 23, 2, 1, 4, 7, -1]));
        assert_eq!(sent("{}"), words(&[0, 0, 23]));
        for text in ["{7,NULL,-1}", "{}"] {
            assert_eq!(array_from_binary(&sent(text), &element).unwrap(), array(text));
        }
        for wrong in [&words(&[1, 0, 23, 2, 1, 4, 7])[..], &words(&[1, 0, 23, -1, 1]), &words(&[0, 0]), &words(&[0, 0, 23, 1])] {
            let error = array_from_binary(wrong, &element).unwrap_err();
            assert!(matches!(error, BinaryError::Short | BinaryError::Long | BinaryError::Wrong(_)), "{error:?}");
        }
        let two_dimensions = words(&[2, 0, 23, 1, 1, 1, 1, 4, 7]);
        let error = array_from_binary(&two_dimensions, &element).unwrap_err();
        assert!(matches!(&error, BinaryError::Value(error) if error.code().as_str() == "0A000"), "{error:?}");
    }

    #[test]
    fn rows_are_as_postgresql_sends_them() {
        use arrow::array::{Int32Array, Int64Array, StructArray};
        use arrow::datatypes::Field;
        let field = |name: &str, array: ArrayRef| (std::sync::Arc::new(Field::new(name, array.data_type().clone(), true)), array);
        let text = from_text("Zoë", &SqlType::Text).unwrap().to_array().unwrap();
        let numbers: [ArrayRef; 2] = [std::sync::Arc::new(Int32Array::from(vec![7])), std::sync::Arc::new(Int64Array::from(vec![None]))];
        let [int, none] = numbers;
        let row: ArrayRef = std::sync::Arc::new(StructArray::from(vec![field("a", int), field("b", text), field("c", none)]));
        // `record_send` of PostgreSQL 15, for ROW(7, 'Zoë', NULL::bigint).
        let sent = b"\0\0\0\x03\0\0\0\x17\0\0\0\x04\0\0\0\x07\0\0\0\x19\0\0\0\x04Zo\xc3\xab\0\0\0\x14\xff\xff\xff\xff";
        assert_eq!(row_to_binary(&row, 0).unwrap(), sent[..]);
    }

    #[test]
    fn numerics_come_back() {
        for value in [0i128, 1, -1, 9_999, 10_000, 123_456_789, i64::MAX.into(), 10i128.pow(37), -(10i128.pow(38) - 1)] {
            for scale in 0..=20 {
                let mut expected = String::new();
                text::write_decimal(&mut expected, value, scale).unwrap();
                let sent = numeric_from_binary(&numeric_to_binary(value, scale)).unwrap();
                let (sign, digits) = sent.strip_prefix('-').map_or(("", sent.as_str()), |digits| ("-", digits));
                let trimmed = digits.trim_start_matches('0');
                let digits = if trimmed.is_empty() || trimmed.starts_with('.') { format!("0{trimmed}") } else { trimmed.to_string() };
                assert_eq!(format!("{sign}{digits}"), expected);
            }
        }
    }
}
