//! Timestamps and intervals: fields, truncation, and arithmetic as PostgreSQL does it.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Decimal128Array, Float64Array, IntervalMonthDayNanoArray, TimestampMicrosecondArray};
use arrow::compute::kernels::arity;
use arrow::datatypes::{
    DataType, Decimal128Type, Float64Type, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit,
    TimestampMicrosecondType,
};
use weir_catalog::{Error, Result, SqlState};

use super::text::{DAY_US, SECOND_US, civil_from_days, days_from_civil, days_in_month};
use super::{downcast, from_arrow, through_arrow};

/// A field of a timestamp or interval, or the unit that one is truncated to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    Millennium,
    Century,
    Decade,
    Year,
    IsoYear,
    Quarter,
    Month,
    Week,
    Day,
    DayOfWeek,
    IsoDayOfWeek,
    DayOfYear,
    Hour,
    Minute,
    Second,
    Millisecond,
    Microsecond,
    Epoch,
    Julian,
}

impl Field {
    /// The field that PostgreSQL knows by this name.
    pub fn parse(name: &str) -> Option<Field> {
        Some(match name.to_ascii_lowercase().as_str() {
            "millennium" | "millennia" | "mil" | "mils" => Field::Millennium,
            "century" | "centuries" | "cent" | "c" => Field::Century,
            "decade" | "decades" | "dec" | "decs" => Field::Decade,
            "year" | "years" | "yr" | "yrs" | "y" => Field::Year,
            "isoyear" => Field::IsoYear,
            "quarter" | "qtr" => Field::Quarter,
            "month" | "months" | "mon" | "mons" => Field::Month,
            "week" | "weeks" | "w" => Field::Week,
            "day" | "days" | "d" => Field::Day,
            "dow" => Field::DayOfWeek,
            "isodow" => Field::IsoDayOfWeek,
            "doy" => Field::DayOfYear,
            "hour" | "hours" | "hr" | "hrs" | "h" => Field::Hour,
            "minute" | "minutes" | "min" | "mins" | "m" => Field::Minute,
            "second" | "seconds" | "sec" | "secs" | "s" => Field::Second,
            "millisecond" | "milliseconds" | "ms" | "msec" | "msecs" | "msecond" | "mseconds" => Field::Millisecond,
            "microsecond" | "microseconds" | "us" | "usec" | "usecs" | "usecond" | "useconds" => Field::Microsecond,
            "epoch" => Field::Epoch,
            "julian" | "jd" | "j" => Field::Julian,
            _ => return None,
        })
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Field::Millennium => "millennium",
            Field::Century => "century",
            Field::Decade => "decade",
            Field::Year => "year",
            Field::IsoYear => "isoyear",
            Field::Quarter => "quarter",
            Field::Month => "month",
            Field::Week => "week",
            Field::Day => "day",
            Field::DayOfWeek => "dow",
            Field::IsoDayOfWeek => "isodow",
            Field::DayOfYear => "doy",
            Field::Hour => "hour",
            Field::Minute => "minute",
            Field::Second => "second",
            Field::Millisecond => "milliseconds",
            Field::Microsecond => "microseconds",
            Field::Epoch => "epoch",
            Field::Julian => "julian",
        }
    }

    /// The digits behind the point of EXTRACT's result.
    pub fn scale(self) -> i8 {
        match self {
            Field::Second | Field::Epoch => 6,
            Field::Millisecond => 3,
            Field::Julian => 16,
            _ => 0,
        }
    }
}

/// A function of timestamps and intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// EXTRACT, a NUMERIC of the field's scale.
    Extract(Field),
    /// `date_part`, a DOUBLE.
    DatePart(Field),
    /// A field of a timestamp as a BIGINT, as Flink's functions of the field's name give it: Sunday is the first day of the week.
    Part(Field),
    /// `date_trunc` of a timestamp.
    Truncate(Field),
    /// Timestamp plus interval.
    TimestampPlus,
    /// Timestamp minus interval.
    TimestampMinus,
    /// Timestamp minus timestamp: days and time.
    Difference,
    IntervalPlus,
    IntervalMinus,
    IntervalNegate,
    /// Interval times double.
    IntervalTimes,
    /// What intervals are compared by: microseconds, a month being 30 days, as NUMERIC(38,0).
    IntervalOrder,
    /// Seconds since 1970, a DOUBLE, as a timestamp.
    ToTimestamp,
}

impl Operation {
    /// The function's name.
    pub fn name(self) -> String {
        match self {
            Operation::Extract(field) => format!("extract_{}", field.name()),
            Operation::DatePart(field) => format!("date_part_{}", field.name()),
            Operation::Part(field) => format!("part_{}", field.name()),
            Operation::Truncate(field) => format!("date_trunc_{}", field.name()),
            Operation::TimestampPlus => "timestamp_plus".into(),
            Operation::TimestampMinus => "timestamp_minus".into(),
            Operation::Difference => "timestamp_difference".into(),
            Operation::IntervalPlus => "interval_plus".into(),
            Operation::IntervalMinus => "interval_minus".into(),
            Operation::IntervalNegate => "interval_negate".into(),
            Operation::IntervalTimes => "interval_times".into(),
            Operation::IntervalOrder => "interval_order".into(),
            Operation::ToTimestamp => "to_timestamp".into(),
        }
    }
}

/// The Arrow type of an interval.
pub const INTERVAL: DataType = DataType::Interval(IntervalUnit::MonthDayNano);

fn timestamp_overflow() -> Error {
    Error::new(SqlState::DATETIME_FIELD_OVERFLOW, "timestamp out of range")
}

fn interval_overflow() -> Error {
    Error::new(SqlState::DATETIME_FIELD_OVERFLOW, "interval out of range")
}

/// The value of `operation` on columns.
pub fn evaluate(operation: Operation, arguments: &[ArrayRef], result: &DataType) -> Result<ArrayRef> {
    match operation {
        Operation::Extract(field) => {
            let unit = 10i128.pow(6 - (field.scale().min(6)) as u32);
            let wide = if field.scale() > 6 { 10i128.pow((field.scale() - 6) as u32) } else { 1 };
            let values: Decimal128Array = match arguments[0].data_type() {
                DataType::Interval(_) => {
                    let values: &IntervalMonthDayNanoArray = downcast(&arguments[0])?;
                    arity::try_unary::<_, _, Decimal128Type>(values, |value| {
                        interval_field_us(value, field).map(|us| us / unit).map_err(through_arrow)
                    })
                    .map_err(from_arrow)?
                }
                _ => {
                    let values: &TimestampMicrosecondArray = downcast(&arguments[0])?;
                    arity::unary::<_, _, Decimal128Type>(values, |value| field_us(value, field) * wide / unit)
                }
            };
            Ok(Arc::new(values.with_data_type(result.clone())))
        }
        Operation::DatePart(field) => Ok(match arguments[0].data_type() {
            DataType::Interval(_) => {
                let values: &IntervalMonthDayNanoArray = downcast(&arguments[0])?;
                let result = arity::try_unary::<_, _, Float64Type>(values, |value| {
                    interval_field_us(value, field).map(|us| us as f64 / 1e6).map_err(through_arrow)
                });
                Arc::new(result.map_err(from_arrow)?)
            }
            _ => {
                let values: &TimestampMicrosecondArray = downcast(&arguments[0])?;
                Arc::new(arity::unary::<_, _, Float64Type>(values, |value| field_us(value, field) as f64 / 1e6))
            }
        }),
        Operation::Part(field) => {
            let values: &TimestampMicrosecondArray = downcast(&arguments[0])?;
            Ok(Arc::new(arity::unary::<_, _, Int64Type>(values, |value| match field {
                // The one of these that is asked for row after row needs no date.
                Field::Hour => value.rem_euclid(DAY_US) / (3600 * SECOND_US),
                Field::DayOfWeek => iso_day_of_week(value.div_euclid(DAY_US)) % 7 + 1,
                // With a year 0, which PostgreSQL's EXTRACT does without.
                Field::Year => civil_from_days(value.div_euclid(DAY_US)).0,
                field => (field_us(value, field) / 1_000_000) as i64,
            })))
        }
        Operation::Truncate(field) => {
            let values: &TimestampMicrosecondArray = downcast(&arguments[0])?;
            let result = arity::try_unary::<_, _, TimestampMicrosecondType>(values, |value| truncate(value, field).map_err(through_arrow));
            Ok(Arc::new(result.map_err(from_arrow)?))
        }
        Operation::TimestampPlus | Operation::TimestampMinus => {
            let timestamps: &TimestampMicrosecondArray = downcast(&arguments[0])?;
            let intervals: &IntervalMonthDayNanoArray = downcast(&arguments[1])?;
            let sign = if operation == Operation::TimestampPlus { 1 } else { -1 };
            let result = arity::try_binary::<_, _, _, TimestampMicrosecondType>(
                timestamps,
                intervals,
                |timestamp: i64, interval: IntervalMonthDayNano| {
                    add_interval(timestamp, interval, sign).ok_or_else(|| through_arrow(timestamp_overflow()))
                },
            );
            Ok(Arc::new(result.map_err(from_arrow)?))
        }
        Operation::Difference => {
            let left: &TimestampMicrosecondArray = downcast(&arguments[0])?;
            let right: &TimestampMicrosecondArray = downcast(&arguments[1])?;
            let result = arity::try_binary::<_, _, _, IntervalMonthDayNanoType>(left, right, |a: i64, b: i64| {
                let difference = a.checked_sub(b).ok_or_else(|| through_arrow(interval_overflow()))?;
                let days = i32::try_from(difference / DAY_US).map_err(|_| through_arrow(interval_overflow()))?;
                Ok(IntervalMonthDayNano::new(0, days, difference % DAY_US * 1000))
            });
            Ok(Arc::new(result.map_err(from_arrow)?))
        }
        Operation::IntervalPlus | Operation::IntervalMinus => {
            let left: &IntervalMonthDayNanoArray = downcast(&arguments[0])?;
            let right: &IntervalMonthDayNanoArray = downcast(&arguments[1])?;
            let plus = operation == Operation::IntervalPlus;
            let result =
                arity::try_binary::<_, _, _, IntervalMonthDayNanoType>(left, right, |a: IntervalMonthDayNano, b: IntervalMonthDayNano| {
                    let sum = || {
                        Some(if plus {
                            IntervalMonthDayNano::new(
                                a.months.checked_add(b.months)?,
                                a.days.checked_add(b.days)?,
                                a.nanoseconds.checked_add(b.nanoseconds)?,
                            )
                        } else {
                            IntervalMonthDayNano::new(
                                a.months.checked_sub(b.months)?,
                                a.days.checked_sub(b.days)?,
                                a.nanoseconds.checked_sub(b.nanoseconds)?,
                            )
                        })
                    };
                    sum().ok_or_else(|| through_arrow(interval_overflow()))
                });
            Ok(Arc::new(result.map_err(from_arrow)?))
        }
        Operation::IntervalNegate => {
            let values: &IntervalMonthDayNanoArray = downcast(&arguments[0])?;
            let result = arity::try_unary::<_, _, IntervalMonthDayNanoType>(values, |value: IntervalMonthDayNano| {
                let negated = || {
                    Some(IntervalMonthDayNano::new(
                        value.months.checked_neg()?,
                        value.days.checked_neg()?,
                        value.nanoseconds.checked_neg()?,
                    ))
                };
                negated().ok_or_else(|| through_arrow(interval_overflow()))
            });
            Ok(Arc::new(result.map_err(from_arrow)?))
        }
        Operation::IntervalTimes => {
            let values: &IntervalMonthDayNanoArray = downcast(&arguments[0])?;
            let factors: &Float64Array = downcast(&arguments[1])?;
            let result =
                arity::try_binary::<_, _, _, IntervalMonthDayNanoType>(values, factors, |value: IntervalMonthDayNano, factor: f64| {
                    multiply_interval(value, factor).ok_or_else(|| through_arrow(interval_overflow()))
                });
            Ok(Arc::new(result.map_err(from_arrow)?))
        }
        Operation::IntervalOrder => {
            let values: &IntervalMonthDayNanoArray = downcast(&arguments[0])?;
            let keys: Decimal128Array = arity::unary::<_, _, Decimal128Type>(values, |value: IntervalMonthDayNano| {
                let days = i128::from(value.months) * 30 + i128::from(value.days);
                days * i128::from(DAY_US) + i128::from(value.nanoseconds / 1000)
            });
            Ok(Arc::new(keys.with_data_type(result.clone())))
        }
        Operation::ToTimestamp => {
            let values: &Float64Array = downcast(&arguments[0])?;
            let result = arity::try_unary::<_, _, TimestampMicrosecondType>(values, |value: f64| {
                let us = (value * 1e6).round_ties_even();
                if us.abs() < 9.2e18 { Ok(us as i64) } else { Err(through_arrow(timestamp_overflow())) }
            });
            Ok(Arc::new(result.map_err(from_arrow)?))
        }
    }
}

/// `timestamp ± interval`: months first (the day is cut to the month's length), then days, then time. `None` out of range.
pub fn add_interval(timestamp_us: i64, interval: IntervalMonthDayNano, sign: i64) -> Option<i64> {
    let mut result = timestamp_us;
    if interval.months != 0 {
        let (year, month, day) = civil_from_days(result.div_euclid(DAY_US));
        let months = year * 12 + i64::from(month) - 1 + sign * i64::from(interval.months);
        let (year, month) = (months.div_euclid(12), months.rem_euclid(12) as u32 + 1);
        let days = days_from_civil(year, month, day.min(days_in_month(year, month)));
        result = days.checked_mul(DAY_US)?.checked_add(result.rem_euclid(DAY_US))?;
    }
    result = result.checked_add((sign * i64::from(interval.days)).checked_mul(DAY_US)?)?;
    result.checked_add((interval.nanoseconds / 1000).checked_mul(sign)?)
}

/// `interval * factor`, fractions of months going to days and of days to time.
fn multiply_interval(value: IntervalMonthDayNano, factor: f64) -> Option<IntervalMonthDayNano> {
    let int = |number: f64| (number.abs() < 2_147_483_648.0).then_some(number as i32);
    let months = f64::from(value.months) * factor;
    let days = f64::from(value.days) * factor;
    let days_of_months = (months - months.trunc()) * 30.0;
    let days_of_months = (days_of_months * 1e6).round_ties_even() / 1e6;
    let seconds = (days - days.trunc() + days_of_months - days_of_months.trunc()) * 86_400.0;
    let seconds = (seconds * 1e6).round_ties_even() / 1e6;
    let us = (value.nanoseconds as f64 / 1000.0 * factor + seconds * 1e6).round_ties_even();
    if us.is_nan() || us.abs() >= 9.2e15 {
        return None;
    }
    Some(IntervalMonthDayNano::new(int(months.trunc())?, int(days.trunc() + days_of_months.trunc())?, us as i64 * 1000))
}

/// The ISO year and week of the date that lies `days` after 1970-01-01.
fn iso_week(days: i64) -> (i64, i64) {
    // The Thursday of the week decides the year.
    let thursday = days - iso_day_of_week(days) + 4;
    let (year, _, _) = civil_from_days(thursday);
    (year, (thursday - days_from_civil(year, 1, 1)) / 7 + 1)
}

/// Monday is 1, Sunday is 7.
pub(super) fn iso_day_of_week(days: i64) -> i64 {
    (days + 3).rem_euclid(7) + 1
}

/// The year in which a span of `length` years that the year lies in is counted (no year 0), e.g. 21 for the century of 2001 to 2100.
fn span_number(year: i64, length: i64) -> i64 {
    if year > 0 { (year + length - 1) / length } else { -((length - year) / length) }
}

/// A field in millionths.
fn field_us(timestamp_us: i64, field: Field) -> i128 {
    let days = timestamp_us.div_euclid(DAY_US);
    let time_us = timestamp_us.rem_euclid(DAY_US);
    let (year, month, day) = civil_from_days(days);
    let second_us = time_us % (60 * SECOND_US);
    let whole = match field {
        Field::Second => return second_us.into(),
        Field::Millisecond => return i128::from(second_us) * 1_000,
        Field::Epoch => return timestamp_us.into(),
        Field::Julian => return i128::from(days + 2_440_588) * 1_000_000 + i128::from(time_us) * 1_000_000 / i128::from(DAY_US),
        Field::Microsecond => second_us,
        Field::Millennium => span_number(year, 1000),
        Field::Century => span_number(year, 100),
        Field::Decade => year.div_euclid(10),
        Field::Year => {
            if year > 0 {
                year
            } else {
                year - 1
            }
        }
        Field::IsoYear => {
            let iso = iso_week(days).0;
            if iso > 0 { iso } else { iso - 1 }
        }
        Field::Quarter => i64::from(month - 1) / 3 + 1,
        Field::Month => month.into(),
        Field::Week => iso_week(days).1,
        Field::Day => day.into(),
        Field::DayOfWeek => iso_day_of_week(days) % 7,
        Field::IsoDayOfWeek => iso_day_of_week(days),
        Field::DayOfYear => days - days_from_civil(year, 1, 1) + 1,
        Field::Hour => time_us / (3600 * SECOND_US),
        Field::Minute => time_us / (60 * SECOND_US) % 60,
    };
    i128::from(whole) * 1_000_000
}

/// A field of an interval in millionths.
fn interval_field_us(value: IntervalMonthDayNano, field: Field) -> Result<i128> {
    let (years, months) = (i64::from(value.months / 12), i64::from(value.months % 12));
    let time_us = value.nanoseconds / 1000;
    let whole = match field {
        Field::Second => return Ok((time_us % (60 * SECOND_US)).into()),
        Field::Millisecond => return Ok(i128::from(time_us % (60 * SECOND_US)) * 1_000),
        Field::Epoch => {
            // A year counts 365.25 days here, a month 30.
            let days_x4 = i128::from(years) * 1_461 + (i128::from(months) * 30 + i128::from(value.days)) * 4;
            return Ok(days_x4 * i128::from(DAY_US / 4) + i128::from(time_us));
        }
        Field::Microsecond => time_us % (60 * SECOND_US),
        Field::Millennium => years / 1000,
        Field::Century => years / 100,
        Field::Decade => years / 10,
        Field::Year => years,
        Field::Quarter => months / 3 + 1,
        Field::Month => months,
        Field::Day => value.days.into(),
        Field::Hour => time_us / (3600 * SECOND_US),
        Field::Minute => time_us / (60 * SECOND_US) % 60,
        Field::IsoYear | Field::Week | Field::DayOfWeek | Field::IsoDayOfWeek | Field::DayOfYear | Field::Julian => {
            return Err(Error::unsupported(format!("unit \"{}\" not supported for type interval", field.name())));
        }
    };
    Ok(i128::from(whole) * 1_000_000)
}

/// The beginning of the unit that a timestamp lies in.
fn truncate(timestamp_us: i64, field: Field) -> Result<i64> {
    let days = timestamp_us.div_euclid(DAY_US);
    let (year, month, _) = civil_from_days(days);
    let start_of = |length: i64| if year > 0 { (year - 1) / length * length + 1 } else { -((length - year) / length * length) + 1 };
    let unit = |unit_us: i64| Ok(timestamp_us - timestamp_us.rem_euclid(unit_us));
    let start = match field {
        Field::Microsecond => return Ok(timestamp_us),
        Field::Millisecond => return unit(1_000),
        Field::Second => return unit(SECOND_US),
        Field::Minute => return unit(60 * SECOND_US),
        Field::Hour => return unit(3600 * SECOND_US),
        Field::Day => days,
        Field::Week => days - iso_day_of_week(days) + 1,
        Field::Month => days_from_civil(year, month, 1),
        Field::Quarter => days_from_civil(year, (month - 1) / 3 * 3 + 1, 1),
        Field::Year => days_from_civil(year, 1, 1),
        Field::Decade => days_from_civil(year.div_euclid(10) * 10, 1, 1),
        Field::Century => days_from_civil(start_of(100), 1, 1),
        Field::Millennium => days_from_civil(start_of(1000), 1, 1),
        Field::IsoYear | Field::DayOfWeek | Field::IsoDayOfWeek | Field::DayOfYear | Field::Epoch | Field::Julian => {
            return Err(Error::unsupported(format!("unit \"{}\" not supported for type timestamp without time zone", field.name())));
        }
    };
    start.checked_mul(DAY_US).ok_or_else(timestamp_overflow)
}
