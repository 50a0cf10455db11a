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
use arrow::compute::kernels::cmp::distinct;
use arrow::compute::{CastOptions, cast_with_options, nullif};
use arrow::datatypes::{DataType, Field, Fields, Float32Type, Float64Type, Int64Type, TimeUnit, TimestampMicrosecondType};
use arrow::util::display::array_value_to_string;
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

/// The place of `wanted` among the names of columns or fields: the same name, or else one that differs in case. `42702` where there are several.
pub(super) fn place_of(fields: &Fields, wanted: &str) -> Result<Option<usize>> {
    let only = |is_it: &dyn Fn(&str) -> bool| {
        let mut found = fields.iter().enumerate().filter(|(_, field)| is_it(field.name()));
        match (found.next(), found.next()) {
            (Some((_, first)), Some((_, second))) => {
                let message = format!("column \"{wanted}\" may be one of several in the file");
                Err(Error::new(SqlState::AMBIGUOUS_COLUMN, message)
                    .with_detail(format!("It has \"{}\" and \"{}\".", first.name(), second.name()))
                    .with_hint("Declare the column under the name that it has in the file, in double quotes."))
            }
            (first, _) => Ok(first.map(|(at, _)| at)),
        }
    };
    match only(&|name| name == wanted)? {
        Some(same) => Ok(Some(same)),
        None => {
            let wanted = wanted.to_lowercase();
            only(&|name| name.to_lowercase() == wanted)
        }
    }
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
                let place = place_of(fields, member)?
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
                let place = place_of(from, member)?.ok_or_else(lost)?;
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
            let in_column = |error: Error| {
                let detail = error.detail().map_or_else(String::new, |detail| format!("{detail} "));
                error.with_detail(format!("{detail}It stands in column \"{name}\"."))
            };
            let mut array = match array.data_type() {
                DataType::Dictionary(_, value) => convert_to(array, value)?,
                _ => array.clone(),
            };
            if let Some(around) = around {
                array = nullif(&array, &BooleanArray::new(!around.inner(), None)).map_err(from_arrow)?;
            }
            match ty {
                SqlType::Timestamp { precision } => {
                    let array = microseconds(&array).map_err(in_column)?;
                    if *precision == 6 {
                        return Ok(array);
                    }
                    let values: &TimestampMicrosecondArray = array.as_primitive::<TimestampMicrosecondType>();
                    let rounded: TimestampMicrosecondArray = values.unary(|value| round_timestamp(value, *precision));
                    Ok(Arc::new(rounded))
                }
                SqlType::Text => {
                    let array = convert_to(&array, &to)?;
                    check_texts(array.as_string::<i32>()).map_err(in_column)?;
                    Ok(array)
                }
                _ => without_loss(&array, &to, ty).map_err(in_column),
            }
        }
    }
}

/// `array` as numbers of type `to`, that of `ty`. `22003` where one is not the same number then: digits are not lost silently. DOUBLE PRECISION is an
/// approximation, so there any number is rounded; and of one only as many digits count as all decimals of that length keep, as in PostgreSQL's casts.
fn without_loss(array: &ArrayRef, to: &DataType, ty: &SqlType) -> Result<ArrayRef> {
    /// Half of the last digit that counts, in relation to the number: of 15 digits, and of 6.
    const DOUBLE: f64 = 5e-15;
    const SINGLE: f64 = 5e-6;
    let array = match array.data_type() {
        DataType::Float16 => convert_to(array, &DataType::Float32)?,
        _ => array.clone(),
    };
    let converted = convert_to(&array, to)?;
    let from = array.data_type();
    let may_lose = match (from, to) {
        (DataType::Float32 | DataType::Float64, to) => !to.is_floating(),
        (from, to) => match (scale_of(from), scale_of(to)) {
            (Some(from), Some(to)) => from > to,
            (Some(from), None) => from > 0 && to.is_integer(),
            (None, _) => false,
        },
    };
    if !may_lose {
        return Ok(converted);
    }
    // Where going back fails, as 10.0 does in three digits of which two are decimals, something was lost too.
    let back = cast_with_options(&converted, from, &CastOptions { safe: true, ..CastOptions::default() }).map_err(from_arrow)?;
    let digits = |digits: f64| if to.is_integer() { 0.0 } else { digits };
    let lost = match from {
        DataType::Float64 => {
            let (before, after) = (array.as_primitive::<Float64Type>(), back.as_primitive::<Float64Type>());
            first_lost(before.iter(), after.iter(), digits(DOUBLE))
        }
        DataType::Float32 => {
            let (before, after) = (array.as_primitive::<Float32Type>(), back.as_primitive::<Float32Type>());
            first_lost(before.iter().map(|value| value.map(f64::from)), after.iter().map(|value| value.map(f64::from)), digits(SINGLE))
        }
        _ => distinct(&array, &back).map_err(from_arrow)?.iter().position(|is_other| is_other == Some(true)),
    };
    let Some(row) = lost else { return Ok(converted) };
    let value = array_value_to_string(&array, row).map_err(from_arrow)?;
    Err(Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, format!("value {value} can't be read as {ty} without loss")))
}

/// Where the first number is that is another one `after`.
fn first_lost(before: impl Iterator<Item = Option<f64>>, after: impl Iterator<Item = Option<f64>>, tolerance: f64) -> Option<usize> {
    before.zip(after).position(|pair| match pair {
        (Some(before), Some(after)) => (before - after).abs() > tolerance * before.abs(),
        (Some(_), None) => true,
        (None, _) => false,
    })
}

/// The scale of a decimal type.
fn scale_of(ty: &DataType) -> Option<i8> {
    match ty {
        DataType::Decimal32(_, scale) | DataType::Decimal64(_, scale) | DataType::Decimal128(_, scale) | DataType::Decimal256(_, scale) => {
            Some(*scale)
        }
        _ => None,
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
    let (factor, divisor) = match array.data_type() {
        DataType::Timestamp(TimeUnit::Second, _) => (1_000_000, 1),
        DataType::Timestamp(TimeUnit::Millisecond, _) | DataType::Date64 => (1000, 1),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => (1, 1000),
        _ => return convert_to(array, &to),
    };
    let whole = convert_to(array, &DataType::Int64)?;
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
