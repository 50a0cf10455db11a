//! Rounding, roots, powers and logarithms with PostgreSQL's domain errors.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Decimal128Array, Float64Array, Int32Array, Int64Array};
use arrow::compute::kernels::arity;
use arrow::datatypes::{DataType, Decimal128Type, Float64Type, Int32Type, Int64Type};
use weir_catalog::{Error, Result, SqlState};

use super::arithmetic::{divide_rounding, numeric_overflow, one_nan, out_of_range, out_of_range_double, power_of_ten};
use super::{downcast, from_arrow, through_arrow};

/// A mathematical function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Of an INT, BIGINT, NUMERIC or DOUBLE.
    Abs,
    /// Half to even for a DOUBLE; half away from zero for a NUMERIC, to a number of digits if there is a second argument.
    Round,
    /// Towards zero, to a number of digits if there is a second argument.
    Truncate,
    Ceil,
    Floor,
    /// -1, 0 or 1.
    Sign,
    SquareRoot,
    Exp,
    Ln,
    Log10,
    Power,
}

impl Operation {
    /// The function's name.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Abs => "abs",
            Operation::Round => "round",
            Operation::Truncate => "trunc",
            Operation::Ceil => "ceil",
            Operation::Floor => "floor",
            Operation::Sign => "sign",
            Operation::SquareRoot => "sqrt",
            Operation::Exp => "exp",
            Operation::Ln => "ln",
            Operation::Log10 => "log",
            Operation::Power => "power",
        }
    }
}

/// The value of `operation` on columns.
pub fn evaluate(operation: Operation, arguments: &[ArrayRef], result: &DataType) -> Result<ArrayRef> {
    match arguments[0].data_type() {
        DataType::Int32 if operation == Operation::Abs => {
            let values: &Int32Array = downcast(&arguments[0])?;
            let result = arity::try_unary::<_, _, Int32Type>(values, |value: i32| {
                value.checked_abs().ok_or_else(|| through_arrow(out_of_range("integer")))
            });
            Ok(Arc::new(result.map_err(from_arrow)?))
        }
        DataType::Int64 if operation == Operation::Abs => {
            let values: &Int64Array = downcast(&arguments[0])?;
            let result = arity::try_unary::<_, _, Int64Type>(values, |value: i64| {
                value.checked_abs().ok_or_else(|| through_arrow(out_of_range("bigint")))
            });
            Ok(Arc::new(result.map_err(from_arrow)?))
        }
        DataType::Float64 => doubles(operation, arguments),
        DataType::Decimal128(_, _) => decimals(operation, arguments, result),
        other => Err(Error::internal(format!("no {} of type {other}", operation.name()))),
    }
}

fn doubles(operation: Operation, arguments: &[ArrayRef]) -> Result<ArrayRef> {
    let values: &Float64Array = downcast(&arguments[0])?;
    let domain = |code: &str, message: &str| Error::new(SqlState::parse(code).unwrap_or(SqlState::DATA_EXCEPTION), message);
    let plain = |function: fn(f64) -> f64| -> Result<ArrayRef> { Ok(Arc::new(arity::unary::<_, _, Float64Type>(values, function))) };
    let checked = |function: &dyn Fn(f64) -> Result<f64>| -> Result<ArrayRef> {
        let result = arity::try_unary::<_, _, Float64Type>(values, |value| function(value).map_err(through_arrow));
        Ok(Arc::new(result.map_err(from_arrow)?))
    };
    match operation {
        Operation::Abs => plain(f64::abs),
        Operation::Round => plain(f64::round_ties_even),
        Operation::Truncate => plain(f64::trunc),
        Operation::Ceil => plain(f64::ceil),
        Operation::Floor => plain(f64::floor),
        Operation::Sign => plain(|value| {
            if value > 0.0 {
                1.0
            } else if value < 0.0 {
                -1.0
            } else {
                0.0
            }
        }),
        Operation::SquareRoot => checked(&|value| {
            if value < 0.0 { Err(domain("2201F", "cannot take square root of a negative number")) } else { Ok(value.sqrt()) }
        }),
        Operation::Exp => checked(&|value| {
            let result = value.exp();
            if result.is_infinite() && value.is_finite() {
                Err(out_of_range_double("overflow"))
            } else if result == 0.0 && value.is_finite() {
                Err(out_of_range_double("underflow"))
            } else {
                Ok(result)
            }
        }),
        Operation::Ln | Operation::Log10 => checked(&|value| {
            if value == 0.0 {
                Err(domain("2201E", "cannot take logarithm of zero"))
            } else if value < 0.0 {
                Err(domain("2201E", "cannot take logarithm of a negative number"))
            } else {
                Ok(if operation == Operation::Ln { value.ln() } else { value.log10() })
            }
        }),
        Operation::Power => {
            let exponents: &Float64Array = downcast(&arguments[1])?;
            let result = arity::try_binary::<_, _, _, Float64Type>(values, exponents, |base: f64, exponent: f64| {
                if base == 0.0 && exponent < 0.0 {
                    return Err(through_arrow(domain("2201F", "zero raised to a negative power is undefined")));
                }
                if base < 0.0 && base.is_finite() && exponent.is_finite() && exponent.fract() != 0.0 {
                    return Err(through_arrow(domain("2201F", "a negative number raised to a non-integer power yields a complex result")));
                }
                let result = base.powf(exponent);
                if result.is_infinite() && base.is_finite() && exponent.is_finite() {
                    return Err(through_arrow(out_of_range_double("overflow")));
                }
                if result == 0.0 && base != 0.0 && base.is_finite() && exponent.is_finite() {
                    return Err(through_arrow(out_of_range_double("underflow")));
                }
                Ok(one_nan(result))
            });
            Ok(Arc::new(result.map_err(from_arrow)?))
        }
    }
}

fn decimals(operation: Operation, arguments: &[ArrayRef], result: &DataType) -> Result<ArrayRef> {
    let values: &Decimal128Array = downcast(&arguments[0])?;
    let scale = values.scale();
    let DataType::Decimal128(result_precision, result_scale) = *result else {
        return Err(Error::internal(format!("{} of a numeric has type {result}", operation.name())));
    };
    let limit = power_of_ten(u32::from(result_precision));
    let fits = |value: Option<i128>| match value {
        Some(value) if value > -limit && value < limit => Ok(value),
        _ => Err(through_arrow(numeric_overflow(result_precision, result_scale))),
    };
    // From the argument's scale to the result's.
    let rescale = |value: i128| {
        if result_scale >= scale {
            value.checked_mul(power_of_ten((result_scale - scale) as u32))
        } else {
            Some(divide_rounding(value, power_of_ten((scale - result_scale) as u32)))
        }
    };
    let unit = power_of_ten(scale as u32);
    let computed: Decimal128Array = match operation {
        Operation::Abs => arity::unary::<_, _, Decimal128Type>(values, |value: i128| value.wrapping_abs()),
        Operation::Sign => arity::unary::<_, _, Decimal128Type>(values, |value: i128| value.signum()),
        Operation::Ceil | Operation::Floor => arity::try_unary::<_, _, Decimal128Type>(values, |value: i128| {
            let down = value.div_euclid(unit);
            fits(Some(if operation == Operation::Ceil && value.rem_euclid(unit) != 0 { down + 1 } else { down }))
        })
        .map_err(from_arrow)?,
        Operation::Round | Operation::Truncate => {
            let to_digits = |value: i128, digits: i32| {
                let dropped = i32::from(scale).saturating_sub(digits);
                if dropped <= 0 {
                    return value;
                }
                if dropped > 38 {
                    return 0;
                }
                let step = power_of_ten(dropped as u32);
                (if operation == Operation::Round { divide_rounding(value, step) } else { value / step }) * step
            };
            match arguments.get(1) {
                None => arity::try_unary::<_, _, Decimal128Type>(values, |value: i128| fits(rescale(to_digits(value, 0)))),
                Some(digits) => {
                    let digits: &Int32Array = downcast(digits)?;
                    arity::try_binary::<_, _, _, Decimal128Type>(values, digits, |value: i128, digits: i32| {
                        fits(rescale(to_digits(value, digits)))
                    })
                }
            }
            .map_err(from_arrow)?
        }
        other => return Err(Error::internal(format!("no {} of type numeric", other.name()))),
    };
    Ok(Arc::new(computed.with_data_type(result.clone())))
}
