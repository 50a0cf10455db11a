//! Which type of a Parquet file is read as which, and the values themselves.
//!
//! | in the file | is read as |
//! | --- | --- |
//! | text of any kind | TEXT |
//! | integers of up to 16 bits, and of 32 with a sign | INT |
//! | unsigned ones of 32 bits, and those of 64 with a sign | BIGINT |
//! | unsigned ones of 64 bits | NUMERIC(20, 0) |
//! | floating point of any width | DOUBLE PRECISION |
//! | decimals of up to 38 digits | NUMERIC |
//! | dates, timestamps of any unit and zone | TIMESTAMP, of those with a zone in UTC |
//! | structs, lists of any kind | ROW, arrays |
//! | a dictionary | the type of its values |
//!
//! Nothing else is: no bytes, times of day, intervals, maps, longer decimals.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, ListArray, StringArray, StructArray, TimestampMicrosecondArray, new_null_array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::{CastOptions, cast_with_options, nullif};
use arrow::datatypes::{DataType, Field, Fields, Int64Type, TimeUnit, TimestampMicrosecondType};
use weir_catalog::{Error, Result, SqlState, SqlType};
use weir_sql::functions::nested;
use weir_sql::functions::text::{from_bytes, round_timestamp};

use crate::operators::error::from_arrow;

/// The longest decimal that weir has, in digits.
const DIGITS_MAX: u8 = 38;

/// A column of a file, or a part of one, whose type weir does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The column, or the way to the part: `column.field`, `column[]`.
    pub name: String,
    /// Its type, as Arrow names it.
    pub ty: String,
}

impl std::fmt::Display for LeftOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\" ({})", self.name, self.ty)
    }
}

/// The type in which values of a file's `data_type` are read; `None` where they are not. `left_out` gets what is not read of `name`: a struct is read without
/// the fields that can't be.
pub(super) fn type_of(data_type: &DataType, name: &str, left_out: &mut Vec<LeftOut>) -> Option<SqlType> {
    let ty = match data_type {
        DataType::Dictionary(_, value) => return type_of(value, name, left_out),
        DataType::Struct(fields) => {
            let field = |field: &Arc<Field>| {
                let field_name = field.name().to_lowercase();
                let ty = type_of(field.data_type(), &format!("{name}.{field_name}"), left_out)?;
                Some((field_name, ty))
            };
            let fields: Vec<(String, SqlType)> = fields.iter().filter_map(field).collect();
            return (!fields.is_empty()).then_some(SqlType::Row(fields));
        }
        DataType::List(element) | DataType::LargeList(element) | DataType::FixedSizeList(element, _) => {
            return type_of(element.data_type(), &format!("{name}[]"), left_out).map(|element| SqlType::Array(Box::new(element)));
        }
        DataType::Timestamp(_, _) | DataType::Date32 | DataType::Date64 => Some(SqlType::TIMESTAMP),
        DataType::Float16 => Some(SqlType::Double),
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => numeric(*precision, *scale),
        other => SqlType::from_arrow(other),
    };
    if ty.is_none() {
        left_out.push(LeftOut { name: name.to_string(), ty: data_type.to_string() });
    }
    ty
}

/// The NUMERIC that holds every decimal of `precision` digits, `scale` of them behind the point.
fn numeric(precision: u8, scale: i8) -> Option<SqlType> {
    // A negative scale stands for zeros in front of the point.
    let precision = precision.checked_add(scale.min(0).unsigned_abs())?;
    (precision <= DIGITS_MAX).then_some(SqlType::Numeric { precision, scale: scale.max(0) })
}

/// The place of `wanted` among the names of columns or fields: the same name, or else one that differs in case.
pub(super) fn place_of(fields: &Fields, wanted: &str) -> Option<usize> {
    let same = fields.iter().position(|field| field.name() == wanted);
    same.or_else(|| fields.iter().position(|field| field.name().eq_ignore_ascii_case(wanted)))
}

/// `42804` where values of type `from` are not read as `ty`, `42703` where a field is missing. `name` is the column's, or the way to a part of it.
pub(super) fn check_readable(from: &DataType, ty: &SqlType, name: &str) -> Result<()> {
    let is_text = |ty: &DataType| matches!(ty, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    let is_time = |ty: &DataType| matches!(ty, DataType::Timestamp(_, _) | DataType::Date32 | DataType::Date64);
    let value = match from {
        DataType::Dictionary(_, value) => value.as_ref(),
        other => other,
    };
    let readable = match (ty, value) {
        // A column of nothing but NULLs.
        (_, DataType::Null) => true,
        (SqlType::Text, value) => is_text(value),
        (SqlType::Boolean, value) => *value == DataType::Boolean,
        (SqlType::Timestamp { .. }, value) => is_time(value),
        (SqlType::Row(members), DataType::Struct(fields)) => {
            for (member, ty) in members {
                let path = format!("{name}.{member}");
                let place = place_of(fields, member)
                    .ok_or_else(|| Error::new(SqlState::UNDEFINED_COLUMN, format!("the file has no field \"{path}\"")))?;
                check_readable(fields[place].data_type(), ty, &path)?;
            }
            true
        }
        (SqlType::Array(element), DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _)) => {
            return check_readable(field.data_type(), element, &format!("{name}[]"));
        }
        (SqlType::Row(_) | SqlType::Array(_), _) => false,
        (_, value) => value.is_numeric(),
    };
    if readable {
        Ok(())
    } else {
        Err(Error::new(SqlState::DATATYPE_MISMATCH, format!("column \"{name}\" is of type {ty} but is {value} in the file"))
            .with_detail(format!("It is read as {}.", ty.to_arrow())))
    }
}

pub(super) fn convert_to(array: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    if array.data_type() == to {
        return Ok(array.clone());
    }
    cast_with_options(array, to, &CastOptions { safe: false, ..CastOptions::default() }).map_err(from_arrow)
}

/// `array` as `ty`, as [`check_readable`] has checked; `name` is for errors. A file may have values where the row that they are fields of is NULL, which
/// `around` says: these become NULL too.
pub(super) fn convert(array: &ArrayRef, ty: &SqlType, name: &str, around: Option<&NullBuffer>) -> Result<ArrayRef> {
    let lost = || Error::internal(format!("a part of a parquet file of type {} can't be read as {ty}", array.data_type()));
    let nulls = || NullBuffer::union(array.nulls(), around);
    match (ty, ty.to_arrow()) {
        (_, to) if *array.data_type() == DataType::Null => Ok(new_null_array(&to, array.len())),
        (SqlType::Row(members), DataType::Struct(to)) => {
            let DataType::Struct(from) = array.data_type() else { return Err(lost()) };
            let (rows, nulls) = (array.as_struct(), nulls());
            let column = |(member, ty): &(String, SqlType)| {
                let place = place_of(from, member).ok_or_else(lost)?;
                convert(rows.column(place), ty, name, nulls.as_ref())
            };
            let columns = members.iter().map(column).collect::<Result<Vec<_>>>()?;
            Ok(Arc::new(StructArray::try_new(to, columns, nulls).map_err(from_arrow)?))
        }
        (SqlType::Array(element), DataType::List(to)) => {
            let lists = match array.data_type() {
                DataType::List(_) => array.clone(),
                DataType::LargeList(field) | DataType::FixedSizeList(field, _) => convert_to(array, &DataType::List(field.clone()))?,
                _ => return Err(lost()),
            };
            let (offsets, values) = nested::parts(lists.as_list::<i32>());
            let values = convert(&values, element, name, None)?;
            Ok(Arc::new(ListArray::try_new(to, offsets, values, nulls()).map_err(from_arrow)?))
        }
        (_, to) => {
            let mut array = match ty {
                SqlType::Timestamp { .. } => microseconds(array)?,
                _ => convert_to(array, &to)?,
            };
            if let Some(around) = around {
                array = nullif(&array, &BooleanArray::new(!around.inner(), None)).map_err(from_arrow)?;
            }
            match ty {
                SqlType::Timestamp { precision } if *precision < 6 => {
                    let values: &TimestampMicrosecondArray = array.as_primitive::<TimestampMicrosecondType>();
                    let rounded: TimestampMicrosecondArray = values.unary(|value| round_timestamp(value, *precision));
                    Ok(Arc::new(rounded))
                }
                SqlType::Text => {
                    check_texts(array.as_string::<i32>()).map_err(|error| error.with_detail(format!("It stands in column \"{name}\".")))?;
                    Ok(array)
                }
                _ => Ok(array),
            }
        }
    }
}

/// `22021` where a text has a zero byte, which Parquet's texts may have and no text of SQL has. Looked for in all texts at once.
fn check_texts(texts: &StringArray) -> Result<()> {
    let offsets = texts.value_offsets();
    let (from, to) = (offsets.first().copied().unwrap_or(0) as usize, offsets.last().copied().unwrap_or(0) as usize);
    if memchr::memchr(0, &texts.values()[from..to]).is_none() {
        return Ok(());
    }
    texts.iter().flatten().try_for_each(|text| from_bytes(text.as_bytes()).map(drop))
}

/// Dates and times of any unit as microseconds, those of a zone in UTC: what is finer is rounded, what is too far away is an error.
fn microseconds(array: &ArrayRef) -> Result<ArrayRef> {
    let to = DataType::Timestamp(TimeUnit::Microsecond, None);
    let array = match array.data_type() {
        DataType::Dictionary(_, value) => convert_to(array, value)?,
        _ => array.clone(),
    };
    let (factor, divisor) = match array.data_type() {
        DataType::Timestamp(TimeUnit::Second, _) => (1_000_000, 1),
        DataType::Timestamp(TimeUnit::Millisecond, _) | DataType::Date64 => (1000, 1),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => (1, 1000),
        _ => return convert_to(&array, &to),
    };
    let whole = convert_to(&array, &DataType::Int64)?;
    let whole = whole.as_primitive::<Int64Type>();
    let too_far = || Error::new(SqlState::DATETIME_FIELD_OVERFLOW, "timestamp out of range");
    let values: Int64Array = if divisor == 1 {
        whole.try_unary(|value| value.checked_mul(factor).ok_or_else(too_far))?
    } else {
        whole.unary(rounded_nanoseconds)
    };
    Ok(Arc::new(values.reinterpret_cast::<TimestampMicrosecondType>()))
}

/// Nanoseconds as microseconds, half of one away from 2000-01-01, as PostgreSQL rounds.
fn rounded_nanoseconds(value: i64) -> i64 {
    const EPOCH_US: i64 = 946_684_800_000_000;
    let (whole, rest) = (value.div_euclid(1000), value.rem_euclid(1000));
    let up = rest > 500 || rest == 500 && whole >= EPOCH_US;
    whole + i64::from(up)
}
