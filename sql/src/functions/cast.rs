//! Casts with PostgreSQL's results and errors, a column at a time.

use std::cell::RefCell;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, BooleanBuilder, Decimal128Array, Float64Array, Int32Array, Int64Array, IntervalMonthDayNanoArray,
    PrimitiveArray, StringArray, StringBuilder, TimestampMicrosecondArray,
};
use arrow::compute::kernels::arity;
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Decimal128Type, Float64Type, Int32Type, Int64Type, IntervalUnit, TimeUnit, TimestampMicrosecondType,
};
use weir_catalog::{Error, Result, SqlState, SqlType};

use super::arithmetic::{divide_rounding, numeric_overflow, out_of_range, power_of_ten};
use super::{downcast, from_arrow, nested, text, through_arrow};

/// `array` as `to`. The binder lets only casts through that PostgreSQL knows.
pub fn evaluate(array: &ArrayRef, to: &SqlType) -> Result<ArrayRef> {
    let from = array.data_type();
    if *from == DataType::Null {
        return Ok(arrow::array::new_null_array(&to.to_arrow(), array.len()));
    }
    match (from, to) {
        (DataType::Utf8, SqlType::Text) => Ok(Arc::clone(array)),
        (DataType::Utf8, _) => from_text(downcast(array)?, to),
        (_, SqlType::Text) => to_text(array, "true", "false"),
        (DataType::Boolean, SqlType::Boolean) => Ok(Arc::clone(array)),
        (DataType::Boolean, SqlType::Int) => {
            let values: &BooleanArray = downcast(array)?;
            Ok(Arc::new(values.iter().map(|value| value.map(i32::from)).collect::<Int32Array>()))
        }
        (DataType::Int32, SqlType::Boolean) => {
            let values: &Int32Array = downcast(array)?;
            Ok(Arc::new(values.iter().map(|value| value.map(|value| value != 0)).collect::<BooleanArray>()))
        }
        (DataType::Int32, SqlType::Int) | (DataType::Int64, SqlType::BigInt) | (DataType::Float64, SqlType::Double) => {
            Ok(Arc::clone(array))
        }
        (DataType::Int32, SqlType::BigInt) => Ok(Arc::new(arity::unary::<_, _, Int64Type>(downcast::<Int32Array>(array)?, i64::from))),
        (DataType::Int64, SqlType::Int) => {
            convert::<Int64Type, Int32Type>(array, |value| i32::try_from(value).map_err(|_| out_of_range("integer")))
        }
        (DataType::Int32, SqlType::Double) => Ok(Arc::new(arity::unary::<_, _, Float64Type>(downcast::<Int32Array>(array)?, f64::from))),
        (DataType::Int64, SqlType::Double) => {
            Ok(Arc::new(arity::unary::<_, _, Float64Type>(downcast::<Int64Array>(array)?, |value| value as f64)))
        }
        (DataType::Float64, SqlType::Int) => convert::<Float64Type, Int32Type>(array, |value| {
            let rounded = value.round_ties_even();
            if rounded >= f64::from(i32::MIN) && rounded <= f64::from(i32::MAX) { Ok(rounded as i32) } else { Err(out_of_range("integer")) }
        }),
        (DataType::Float64, SqlType::BigInt) => convert::<Float64Type, Int64Type>(array, |value| {
            let rounded = value.round_ties_even();
            // 2^63 itself does not fit and is the next double above what does.
            if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&rounded) {
                Ok(rounded as i64)
            } else {
                Err(out_of_range("bigint"))
            }
        }),
        (DataType::Int32, SqlType::Numeric { precision, scale }) => {
            numeric_from::<Int32Type>(array, *precision, *scale, |value, factor| i128::from(value).checked_mul(factor))
        }
        (DataType::Int64, SqlType::Numeric { precision, scale }) => {
            numeric_from::<Int64Type>(array, *precision, *scale, |value, factor| i128::from(value).checked_mul(factor))
        }
        (DataType::Float64, SqlType::Numeric { precision, scale }) => {
            let values: &Float64Array = downcast(array)?;
            let digits = RefCell::new(String::new());
            let result = arity::try_unary::<_, _, Decimal128Type>(values, |value| {
                double_to_decimal(value, *precision, *scale, &mut digits.borrow_mut()).map_err(through_arrow)
            });
            Ok(Arc::new(result_of(result)?.with_data_type(to.to_arrow())))
        }
        (DataType::Decimal128(_, from_scale), _) => from_decimal(downcast(array)?, *from_scale, to),
        (DataType::Timestamp(TimeUnit::Microsecond, None), SqlType::Timestamp { precision }) => {
            let values: &TimestampMicrosecondArray = downcast(array)?;
            Ok(Arc::new(arity::unary::<_, _, TimestampMicrosecondType>(values, |value| text::round_timestamp(value, *precision))))
        }
        (DataType::Struct(_) | DataType::List(_), _) if *from == to.to_arrow() => Ok(Arc::clone(array)),
        (DataType::Struct(_), SqlType::Row(fields)) => nested::cast_row(downcast(array)?, fields),
        (DataType::List(_), SqlType::Array(element)) => nested::cast_array(downcast(array)?, element),
        _ => Err(Error::new(SqlState::CANNOT_COERCE, format!("cannot cast type {from} to {to}"))),
    }
}

fn result_of<T: ArrowPrimitiveType>(result: std::result::Result<PrimitiveArray<T>, arrow::error::ArrowError>) -> Result<PrimitiveArray<T>> {
    result.map_err(from_arrow)
}

fn convert<I, O>(array: &ArrayRef, function: impl Fn(I::Native) -> Result<O::Native>) -> Result<ArrayRef>
where
    I: ArrowPrimitiveType,
    O: ArrowPrimitiveType,
{
    let values: &PrimitiveArray<I> = downcast(array)?;
    Ok(Arc::new(result_of(arity::try_unary::<_, _, O>(values, |value| function(value).map_err(through_arrow)))?))
}

fn numeric_from<I: ArrowPrimitiveType>(
    array: &ArrayRef,
    precision: u8,
    scale: i8,
    scaled: impl Fn(I::Native, i128) -> Option<i128>,
) -> Result<ArrayRef> {
    let values: &PrimitiveArray<I> = downcast(array)?;
    let (factor, limit) = (power_of_ten(scale as u32), power_of_ten(precision as u32));
    let result = arity::try_unary::<_, _, Decimal128Type>(values, |value| match scaled(value, factor) {
        Some(value) if value > -limit && value < limit => Ok(value),
        _ => Err(through_arrow(numeric_overflow(precision, scale))),
    });
    Ok(Arc::new(result_of(result)?.with_data_type(DataType::Decimal128(precision, scale))))
}

/// A double's value in the 15 significant digits that PostgreSQL takes of it, as `NUMERIC(precision, scale)`.
fn double_to_decimal(value: f64, precision: u8, scale: i8, digits: &mut String) -> Result<i128> {
    use std::fmt::Write;
    if !value.is_finite() {
        return Err(Error::new(
            SqlState::NUMERIC_VALUE_OUT_OF_RANGE,
            format!("cannot convert {} to numeric", if value.is_nan() { "NaN" } else { "infinity" }),
        ));
    }
    digits.clear();
    write!(digits, "{value:.14e}").map_err(|e| Error::internal(e.to_string()))?;
    text::parse_decimal(digits, precision, scale)
}

fn from_decimal(values: &Decimal128Array, from_scale: i8, to: &SqlType) -> Result<ArrayRef> {
    let unit = power_of_ten(from_scale as u32);
    match to {
        SqlType::Int => Ok(Arc::new(result_of(arity::try_unary::<_, _, Int32Type>(values, |value: i128| {
            i32::try_from(divide_rounding(value, unit)).map_err(|_| through_arrow(out_of_range("integer")))
        }))?)),
        SqlType::BigInt => Ok(Arc::new(result_of(arity::try_unary::<_, _, Int64Type>(values, |value: i128| {
            i64::try_from(divide_rounding(value, unit)).map_err(|_| through_arrow(out_of_range("bigint")))
        }))?)),
        SqlType::Double => Ok(Arc::new(arity::unary::<_, _, Float64Type>(values, |value: i128| decimal_to_double(value, from_scale)))),
        SqlType::Numeric { precision, scale } => {
            let limit = power_of_ten(u32::from(*precision));
            let overflow = || through_arrow(numeric_overflow(*precision, *scale));
            let fits = |value: &i128| *value > -limit && *value < limit;
            let result = if *scale >= from_scale {
                let factor = power_of_ten((*scale - from_scale) as u32);
                arity::try_unary::<_, _, Decimal128Type>(values, |value: i128| value.checked_mul(factor).filter(fits).ok_or_else(overflow))
            } else {
                let divisor = power_of_ten((from_scale - *scale) as u32);
                arity::try_unary::<_, _, Decimal128Type>(values, |value: i128| {
                    Some(divide_rounding(value, divisor)).filter(fits).ok_or_else(overflow)
                })
            };
            Ok(Arc::new(result_of(result)?.with_data_type(to.to_arrow())))
        }
        _ => Err(Error::new(SqlState::CANNOT_COERCE, format!("cannot cast type numeric to {to}"))),
    }
}

/// The double that lies nearest to a decimal.
pub fn decimal_to_double(value: i128, scale: i8) -> f64 {
    const EXACT: i128 = 1 << 53;
    if (-EXACT..=EXACT).contains(&value) && (0..=22).contains(&scale) {
        // Both are exact doubles, so that the division rounds once.
        return value as f64 / 10f64.powi(i32::from(scale));
    }
    let mut digits = String::with_capacity(48);
    match text::write_decimal(&mut digits, value, scale) {
        Ok(()) => digits.parse().unwrap_or(f64::NAN),
        Err(_) => f64::NAN,
    }
}

fn from_text(values: &StringArray, to: &SqlType) -> Result<ArrayRef> {
    fn parse<T: ArrowPrimitiveType>(values: &StringArray, parse: impl Fn(&str) -> Result<T::Native>) -> Result<PrimitiveArray<T>> {
        let mut builder = arrow::array::PrimitiveBuilder::<T>::with_capacity(values.len());
        for value in values {
            builder.append_option(value.map(&parse).transpose()?);
        }
        Ok(builder.finish())
    }
    Ok(match to {
        SqlType::Boolean => {
            let mut builder = BooleanBuilder::with_capacity(values.len());
            for value in values {
                builder.append_option(value.map(text::parse_boolean).transpose()?);
            }
            Arc::new(builder.finish())
        }
        SqlType::Int => Arc::new(parse::<Int32Type>(values, |value| {
            text::parse_integer(value, "integer", i32::MIN.into(), i32::MAX.into()).map(|value| value as i32)
        })?),
        SqlType::BigInt => Arc::new(parse::<Int64Type>(values, |value| text::parse_integer(value, "bigint", i64::MIN, i64::MAX))?),
        SqlType::Double => Arc::new(parse::<Float64Type>(values, text::parse_double)?),
        SqlType::Numeric { precision, scale } => {
            Arc::new(parse::<Decimal128Type>(values, |value| text::parse_decimal(value, *precision, *scale))?.with_data_type(to.to_arrow()))
        }
        SqlType::Timestamp { precision } => {
            Arc::new(parse::<TimestampMicrosecondType>(values, |value| text::parse_timestamp(value, *precision))?)
        }
        SqlType::Array(element) => nested::arrays_from_text(values, element)?,
        SqlType::Row(_) if values.null_count() == values.len() => arrow::array::new_null_array(&to.to_arrow(), values.len()),
        SqlType::Row(_) => {
            return Err(Error::unsupported("input of anonymous composite types is not implemented")
                .with_hint("Write ROW(...), whose fields are converted by their place."));
        }
        SqlType::Text => return Err(Error::new(SqlState::CANNOT_COERCE, format!("cannot cast type text to {to}"))),
    })
}

/// The output form of every value: like a cast to TEXT, but `t` and `f` for BOOLEAN.
pub fn output_text(array: &ArrayRef) -> Result<ArrayRef> {
    to_text(array, "t", "f")
}

fn to_text(array: &ArrayRef, true_text: &str, false_text: &str) -> Result<ArrayRef> {
    use std::fmt::Write;
    let mut builder = StringBuilder::with_capacity(array.len(), array.len() * 8);
    macro_rules! write_all {
        ($array:ty, $write:expr) => {{
            let values: &$array = downcast(array)?;
            for value in values.iter() {
                match value {
                    None => builder.append_null(),
                    Some(value) => {
                        #[allow(clippy::redundant_closure_call)]
                        let written: std::fmt::Result = $write(&mut builder, value);
                        written.map_err(|e| Error::internal(e.to_string()))?;
                        builder.append_value("");
                    }
                }
            }
        }};
    }
    match array.data_type() {
        DataType::Utf8 => return Ok(Arc::clone(array)),
        DataType::Boolean => {
            write_all!(BooleanArray, |out: &mut StringBuilder, value| out.write_str(if value { true_text } else { false_text }))
        }
        DataType::Int32 => write_all!(Int32Array, |out: &mut StringBuilder, value| write!(out, "{value}")),
        DataType::Int64 => write_all!(Int64Array, |out: &mut StringBuilder, value| write!(out, "{value}")),
        DataType::Float64 => write_all!(Float64Array, text::write_double),
        DataType::Decimal128(_, scale) => {
            write_all!(Decimal128Array, |out: &mut StringBuilder, value| text::write_decimal(out, value, *scale))
        }
        DataType::Timestamp(TimeUnit::Microsecond, None) => write_all!(TimestampMicrosecondArray, text::write_timestamp),
        DataType::Interval(IntervalUnit::MonthDayNano) => write_all!(IntervalMonthDayNanoArray, text::write_interval),
        DataType::Struct(_) => return nested::row_texts(downcast(array)?),
        DataType::List(_) => return nested::array_texts(downcast(array)?),
        other => return Err(Error::new(SqlState::CANNOT_COERCE, format!("cannot cast type {other} to text"))),
    }
    Ok(Arc::new(builder.finish()))
}
