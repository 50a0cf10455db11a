//! Checked arithmetic: `22003` where a result does not fit, `22012` on division by zero, as in PostgreSQL (where an INT stays an INT).

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Datum, Decimal128Array, Float64Array};
use arrow::buffer::ScalarBuffer;
use arrow::compute::kernels::{arity, numeric};
use arrow::datatypes::{DataType, Decimal128Type, i256};
use arrow::error::ArrowError;
use datafusion::logical_expr::ColumnarValue;
use weir_catalog::{Error, Result, SqlState};

use super::{downcast, from_arrow, through_arrow};

/// An arithmetic operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Negate,
}

impl Operation {
    /// As it is written.
    pub fn symbol(self) -> &'static str {
        match self {
            Operation::Add => "+",
            Operation::Subtract | Operation::Negate => "-",
            Operation::Multiply => "*",
            Operation::Divide => "/",
            Operation::Modulo => "%",
        }
    }

    /// The function's name.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Add => "add",
            Operation::Subtract => "subtract",
            Operation::Multiply => "multiply",
            Operation::Divide => "divide",
            Operation::Modulo => "modulo",
            Operation::Negate => "negate",
        }
    }
}

/// Digits that a division adds to what its operands have: PostgreSQL gives a quotient at least 16 significant digits.
pub const DIVISION_SCALE: i8 = 16;

/// The most digits behind the point that a product keeps; more are rounded away.
pub const MULTIPLICATION_SCALE: i8 = 20;

/// The precision and scale of `left operation right`. PostgreSQL's NUMERIC has no limit here; ours keeps 38 digits, so that the
/// integer part gets what the fraction leaves.
pub fn decimal_result(operation: Operation, left: (u8, i8), right: (u8, i8)) -> (u8, i8) {
    let ((p1, s1), (p2, s2)) = (left, right);
    let integer_digits = (p1 as i8 - s1).max(p2 as i8 - s2);
    match operation {
        Operation::Add | Operation::Subtract => {
            let scale = s1.max(s2);
            ((integer_digits + 1 + scale).clamp(1, 38) as u8, scale)
        }
        Operation::Multiply => {
            let scale = if s1 + s2 <= MULTIPLICATION_SCALE { s1 + s2 } else { MULTIPLICATION_SCALE.max(s1).max(s2) };
            ((p1 + p2).clamp(1, 38), scale)
        }
        Operation::Divide => (38, DIVISION_SCALE.max(s1).max(s2)),
        Operation::Modulo => {
            let scale = s1.max(s2);
            ((integer_digits + scale).clamp(1, 38) as u8, scale)
        }
        Operation::Negate => (p1, s1),
    }
}

/// `left operation right` on columns (or, for [`Operation::Negate`], `- argument`).
pub fn evaluate(operation: Operation, arguments: &[ColumnarValue], result: &DataType, rows: usize) -> Result<ArrayRef> {
    match result {
        DataType::Int32 | DataType::Int64 => integers(operation, arguments, result, rows),
        _ => {
            let arrays = arguments
                .iter()
                .map(|argument| argument.to_array(rows))
                .collect::<datafusion::common::Result<Vec<_>>>()
                .map_err(|e| Error::internal(e.to_string()))?;
            match result {
                DataType::Float64 => doubles(operation, &arrays),
                DataType::Decimal128(precision, scale) => decimals(operation, &arrays, *precision, *scale),
                other => Err(Error::internal(format!("no arithmetic on type {other}"))),
            }
        }
    }
}

/// An argument as arrow's kernels take it: a constant is not spread over the rows.
fn datum(argument: &ColumnarValue, all_constant: bool) -> Result<Box<dyn Datum>> {
    Ok(match argument {
        ColumnarValue::Array(array) => Box::new(Arc::clone(array)),
        ColumnarValue::Scalar(scalar) if all_constant => Box::new(scalar.to_array().map_err(|e| Error::internal(e.to_string()))?),
        ColumnarValue::Scalar(scalar) => Box::new(scalar.to_scalar().map_err(|e| Error::internal(e.to_string()))?),
    })
}

fn integers(operation: Operation, arguments: &[ColumnarValue], result: &DataType, _rows: usize) -> Result<ArrayRef> {
    let all_constant = arguments.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
    let left = datum(&arguments[0], all_constant)?;
    let outcome = if operation == Operation::Negate {
        numeric::neg(left.get().0)
    } else {
        let right = datum(&arguments[1], all_constant)?;
        match operation {
            Operation::Add => numeric::add(left.as_ref(), right.as_ref()),
            Operation::Subtract => numeric::sub(left.as_ref(), right.as_ref()),
            Operation::Multiply => numeric::mul(left.as_ref(), right.as_ref()),
            Operation::Divide => numeric::div(left.as_ref(), right.as_ref()),
            Operation::Modulo | Operation::Negate => numeric::rem(left.as_ref(), right.as_ref()),
        }
    };
    outcome.map_err(|error| match error {
        ArrowError::DivideByZero => division_by_zero(),
        ArrowError::ArithmeticOverflow(_) => out_of_range(if *result == DataType::Int32 { "integer" } else { "bigint" }),
        other => Error::internal(other.to_string()),
    })
}

fn doubles(operation: Operation, arguments: &[ArrayRef]) -> Result<ArrayRef> {
    let left: &Float64Array = downcast(&arguments[0])?;
    if operation == Operation::Negate {
        return Ok(Arc::new(arity::unary::<_, _, arrow::datatypes::Float64Type>(left, |value| one_nan(-value))));
    }
    let right: &Float64Array = downcast(&arguments[1])?;
    let function: fn(f64, f64) -> f64 = match operation {
        Operation::Add => |a, b| a + b,
        Operation::Subtract => |a, b| a - b,
        Operation::Multiply => |a, b| a * b,
        Operation::Divide => |a, b| a / b,
        Operation::Modulo | Operation::Negate => return Err(Error::internal("no % on double precision")),
    };
    let mut values: Vec<f64> = left.values().iter().zip(right.values()).map(|(&a, &b)| function(a, b)).collect();
    let nulls = arrow::buffer::NullBuffer::union(left.nulls(), right.nulls());
    // The common case is one pass over the results; only a suspicious one makes us look at the operands.
    let suspicious = |value: f64| !value.is_finite() || value == 0.0;
    if values.iter().any(|&value| suspicious(value)) {
        for (row, value) in values.iter_mut().enumerate() {
            *value = one_nan(*value);
            let value = *value;
            if !suspicious(value) || nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
                continue;
            }
            let (a, b) = (left.value(row), right.value(row));
            if operation == Operation::Divide && b == 0.0 && !a.is_nan() {
                return Err(division_by_zero());
            }
            if value.is_infinite() && !a.is_infinite() && !b.is_infinite() {
                return Err(out_of_range_double("overflow"));
            }
            let vanished = match operation {
                Operation::Multiply => a != 0.0 && b != 0.0,
                Operation::Divide => a != 0.0 && !b.is_infinite(),
                _ => false,
            };
            if value == 0.0 && vanished {
                return Err(out_of_range_double("underflow"));
            }
        }
    }
    Ok(Arc::new(Float64Array::new(ScalarBuffer::from(values), nulls)))
}

fn decimals(operation: Operation, arguments: &[ArrayRef], precision: u8, scale: i8) -> Result<ArrayRef> {
    let left: &Decimal128Array = downcast(&arguments[0])?;
    let limit = power_of_ten(precision as u32);
    let check = |value: Option<i128>| match value {
        Some(value) if value > -limit && value < limit => Ok(value),
        _ => Err(through_arrow(numeric_overflow(precision, scale))),
    };
    let values: Decimal128Array = if operation == Operation::Negate {
        arity::unary::<_, _, Decimal128Type>(left, |value: i128| value.wrapping_neg())
    } else {
        let right: &Decimal128Array = downcast(&arguments[1])?;
        let (s1, s2) = (left.scale(), right.scale());
        let zero = || through_arrow(division_by_zero());
        match operation {
            Operation::Add | Operation::Subtract => {
                let (f1, f2) = (power_of_ten((scale - s1) as u32), power_of_ten((scale - s2) as u32));
                arity::try_binary::<_, _, _, Decimal128Type>(left, right, |a: i128, b: i128| {
                    check(
                        product(a, f1)
                            .zip(product(b, f2))
                            .and_then(|(a, b)| if operation == Operation::Add { a.checked_add(b) } else { a.checked_sub(b) }),
                    )
                })
            }
            Operation::Multiply => {
                let dropped = (s1 + s2 - scale) as u32;
                let (divisor, wide_divisor) = (power_of_ten(dropped), wide_power_of_ten(dropped));
                arity::try_binary::<_, _, _, Decimal128Type>(left, right, |a: i128, b: i128| match product(a, b) {
                    product if dropped == 0 => check(product),
                    Some(product) => check(Some(divide_rounding(product, divisor))),
                    None => check(divide_rounding_wide(i256::from_i128(a).wrapping_mul(i256::from_i128(b)), wide_divisor).to_i128()),
                })
            }
            Operation::Divide => {
                let shift = (scale + s2 - s1) as u32;
                let factor = (shift <= 38).then(|| power_of_ten(shift));
                let wide_factor = wide_power_of_ten(shift);
                arity::try_binary::<_, _, _, Decimal128Type>(left, right, |a: i128, b: i128| {
                    if b == 0 {
                        return Err(zero());
                    }
                    match factor.and_then(|factor| a.checked_mul(factor)) {
                        Some(numerator) => check(Some(divide_rounding(numerator, b))),
                        None => match i256::from_i128(a).checked_mul(wide_factor) {
                            Some(numerator) => check(divide_rounding_wide(numerator, i256::from_i128(b)).to_i128()),
                            None => check(None),
                        },
                    }
                })
            }
            Operation::Modulo | Operation::Negate => {
                let (f1, f2) = (wide_power_of_ten((scale - s1) as u32), wide_power_of_ten((scale - s2) as u32));
                arity::try_binary::<_, _, _, Decimal128Type>(left, right, |a: i128, b: i128| {
                    if b == 0 {
                        return Err(zero());
                    }
                    let (a, b) = (i256::from_i128(a).checked_mul(f1), i256::from_i128(b).checked_mul(f2));
                    check(a.zip(b).and_then(|(a, b)| a.checked_rem(b)).and_then(i256::to_i128))
                })
            }
        }
        .map_err(from_arrow)?
    };
    Ok(Arc::new(values.with_data_type(DataType::Decimal128(precision, scale))))
}

/// `a * b`, `None` where it does not fit. Most factors fit 64 bits, whose product always fits and is one instruction.
fn product(a: i128, b: i128) -> Option<i128> {
    match (i64::try_from(a), i64::try_from(b)) {
        (Ok(a), Ok(b)) => Some(i128::from(a) * i128::from(b)),
        _ => a.checked_mul(b),
    }
}

/// `10^exponent`, for `exponent` up to 38.
pub fn power_of_ten(exponent: u32) -> i128 {
    10i128.pow(exponent.min(38))
}

fn wide_power_of_ten(exponent: u32) -> i256 {
    let mut result = i256::ONE;
    let ten = i256::from_i128(10);
    for _ in 0..exponent.min(76) {
        result = result.wrapping_mul(ten);
    }
    result
}

/// `numerator / denominator`, rounded half away from zero.
pub fn divide_rounding(numerator: i128, denominator: i128) -> i128 {
    let (quotient, remainder) = (numerator / denominator, numerator % denominator);
    if remainder.unsigned_abs() >= denominator.unsigned_abs() - remainder.unsigned_abs() {
        quotient + if (numerator < 0) == (denominator < 0) { 1 } else { -1 }
    } else {
        quotient
    }
}

fn divide_rounding_wide(numerator: i256, denominator: i256) -> i256 {
    let quotient = numerator.wrapping_div(denominator);
    let remainder = numerator.wrapping_rem(denominator);
    let (remainder_size, denominator_size) = (remainder.wrapping_abs(), denominator.wrapping_abs());
    if remainder_size >= denominator_size.wrapping_sub(remainder_size) {
        let step = if numerator.is_negative() == denominator.is_negative() { i256::ONE } else { i256::MINUS_ONE };
        quotient.wrapping_add(step)
    } else {
        quotient
    }
}

/// Every NaN as the one that is greater than all other numbers, to PostgreSQL and in Arrow's total order: an operation that is not defined gives a NaN
/// with the sign that the processor chooses.
pub fn one_nan(value: f64) -> f64 {
    if value.is_nan() { f64::NAN } else { value }
}

/// `22012`
pub fn division_by_zero() -> Error {
    Error::new(SqlState::DIVISION_BY_ZERO, "division by zero")
}

/// `22003`: a value that does not fit an integer type.
pub fn out_of_range(type_name: &str) -> Error {
    Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, format!("{type_name} out of range"))
}

/// `22003`: a double that is too large or too small.
pub fn out_of_range_double(how: &str) -> Error {
    Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, format!("value out of range: {how}"))
}

/// `22003`: a value that does not fit `NUMERIC(precision, scale)`.
pub fn numeric_overflow(precision: u8, scale: i8) -> Error {
    let exponent = precision as i32 - scale as i32;
    let bound = if exponent == 0 { "1".to_string() } else { format!("10^{exponent}") };
    Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "numeric field overflow")
        .with_detail(format!("A field with precision {precision}, scale {scale} must round to an absolute value less than {bound}."))
}
