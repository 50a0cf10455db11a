//! Values from the text that a file holds, with the meaning that a cast of the same text has in SQL.
//!
//! # Invariants
//! - Every parser gives what `weir_sql::functions::text` gives for the same text, value or error. It has a short way for the forms that data usually comes
//!   in, which allocates nothing; everything else takes the cast's way.

use weir_catalog::{Error, Result, SqlState};
use weir_sql::functions::arithmetic::power_of_ten;
use weir_sql::functions::text;

/// The bytes as text. `22021` where they are not UTF-8.
pub fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| not_utf8())
}

/// `22021`: bytes that are no UTF-8.
pub fn not_utf8() -> Error {
    let code = SqlState::parse("22021").unwrap_or(SqlState::DATA_EXCEPTION);
    Error::new(code, "invalid byte sequence for encoding \"UTF8\"")
}

/// A BOOLEAN.
#[inline]
pub fn boolean(bytes: &[u8]) -> Result<bool> {
    match bytes {
        b"true" | b"t" => Ok(true),
        b"false" | b"f" => Ok(false),
        _ => text::parse_boolean(utf8(bytes)?),
    }
}

/// Up to 18 digits with an optional minus sign: always within 64 bits.
#[inline]
fn short_integer(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    let mut value = 0i64;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + i64::from(digit);
    }
    Some(if negative { -value } else { value })
}

/// An INT.
#[inline]
pub fn int(bytes: &[u8]) -> Result<i32> {
    match short_integer(bytes).map(i32::try_from) {
        Some(Ok(value)) => Ok(value),
        _ => text::parse_integer(utf8(bytes)?, "integer", i32::MIN.into(), i32::MAX.into()).map(|value| value as i32),
    }
}

/// A BIGINT.
#[inline]
pub fn bigint(bytes: &[u8]) -> Result<i64> {
    match short_integer(bytes) {
        Some(value) => Ok(value),
        None => text::parse_integer(utf8(bytes)?, "bigint", i64::MIN, i64::MAX),
    }
}

/// A DOUBLE PRECISION.
#[inline]
pub fn double(bytes: &[u8]) -> Result<f64> {
    // Up to 15 digits without exponent are an integer over a power of ten that a double holds exactly: one division rounds correctly.
    if let Some((digits, fraction)) = short_decimal(bytes)
        && digits.unsigned_abs() < 1_000_000_000_000_000
        && !(digits == 0 && bytes.first() == Some(&b'-'))
    {
        return Ok(digits as f64 / DOUBLE_POWERS[fraction]);
    }
    text::parse_double(utf8(bytes)?)
}

/// The powers of ten that a double holds exactly and that [`short_decimal`] can ask for.
const DOUBLE_POWERS: [f64; 19] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18];

/// Up to 18 digits, an optional minus sign in front and a point among them: the digits as a number, and how many stand behind the point.
#[inline]
fn short_decimal(bytes: &[u8]) -> Option<(i64, usize)> {
    let (negative, rest) = match bytes {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    if rest.len() > 19 {
        return None;
    }
    let mut value = 0i64;
    let mut point = None;
    for (at, byte) in rest.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit <= 9 {
            value = value.checked_mul(10)?.checked_add(i64::from(digit))?;
        } else if *byte == b'.' && point.is_none() {
            point = Some(at);
        } else {
            return None;
        }
    }
    let fraction = point.map_or(0, |point| rest.len() - point - 1);
    let digits = rest.len() - usize::from(point.is_some());
    if digits == 0 || digits > 18 {
        return None;
    }
    Some((if negative { -value } else { value }, fraction))
}

/// A NUMERIC(precision, scale), rounded half away from zero.
#[inline]
pub fn numeric(bytes: &[u8], precision: u8, scale: i8) -> Result<i128> {
    if let Some((digits, fraction)) = short_decimal(bytes)
        && let Ok(scale) = usize::try_from(scale)
        && fraction <= scale
        && scale - fraction <= 18
    {
        let value = i128::from(digits) * power_of_ten((scale - fraction) as u32);
        if value.unsigned_abs() < power_of_ten(u32::from(precision)) as u128 {
            return Ok(value);
        }
    }
    text::parse_decimal(utf8(bytes)?, precision, scale)
}

/// Parses the timestamps of a column, most of which fall on the day of the one before.
#[derive(Debug)]
pub struct TimestampParser {
    precision: u8,
    /// The last date as it was written, and its days since 1970.
    date: [u8; 10],
    days: i64,
}

impl TimestampParser {
    /// Of TIMESTAMP(precision).
    pub fn new(precision: u8) -> TimestampParser {
        TimestampParser { precision, date: [0; 10], days: 0 }
    }

    /// Microseconds since 1970.
    #[inline]
    pub fn parse(&mut self, bytes: &[u8]) -> Result<i64> {
        match self.short(bytes) {
            Some(value) => Ok(value),
            None => text::parse_timestamp(utf8(bytes)?, self.precision),
        }
    }

    /// `YYYY-MM-DD HH:MM:SS` or with a `T`, up to six digits of a second, perhaps a `Z`.
    #[inline]
    fn short(&mut self, bytes: &[u8]) -> Option<i64> {
        let bytes = bytes.strip_suffix(b"Z").unwrap_or(bytes);
        let date: &[u8; 10] = bytes.first_chunk()?;
        let time: &[u8; 9] = bytes.get(10..19)?.first_chunk()?;
        if !matches!(time[0], b' ' | b'T') || time[3] != b':' || time[6] != b':' {
            return None;
        }
        let two = |at: usize| -> Option<i64> {
            let (tens, ones) = (time[at].wrapping_sub(b'0'), time[at + 1].wrapping_sub(b'0'));
            (tens <= 9 && ones <= 9).then(|| i64::from(tens) * 10 + i64::from(ones))
        };
        let (hour, minute, second) = (two(1)?, two(4)?, two(7)?);
        if hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let mut fraction_us = 0;
        if bytes.len() > 19 {
            let digits = bytes[19..].strip_prefix(b".")?;
            if digits.is_empty() || digits.len() > 6 {
                return None;
            }
            let mut unit = 100_000;
            for byte in digits {
                let digit = byte.wrapping_sub(b'0');
                if digit > 9 {
                    return None;
                }
                fraction_us += i64::from(digit) * unit;
                unit /= 10;
            }
        }
        if *date != self.date {
            self.days = days_of(date)?;
            self.date = *date;
        }
        let seconds = self.days * 86_400 + hour * 3600 + minute * 60 + second;
        Some(text::round_timestamp(seconds * text::SECOND_US + fraction_us, self.precision))
    }
}

/// The days from 1970-01-01 to a date written `YYYY-MM-DD`; `None` for anything that is not such a date.
fn days_of(date: &[u8; 10]) -> Option<i64> {
    if date[4] != b'-' || date[7] != b'-' {
        return None;
    }
    let number = |digits: &[u8]| -> Option<i64> {
        digits.iter().try_fold(0, |value, byte| byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0')))
    };
    let (year, month, day) = (number(&date[..4])?, number(&date[5..7])? as u32, number(&date[8..])? as u32);
    let valid = year >= 1 && (1..=12).contains(&month) && day >= 1 && day <= text::days_in_month(year, month);
    valid.then(|| text::days_from_civil(year, month, day))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn same<T: PartialEq + std::fmt::Debug>(ours: Result<T>, cast: Result<T>) {
        match (&ours, &cast) {
            (Ok(ours), Ok(cast)) => assert_eq!(ours, cast),
            (Err(ours), Err(cast)) => assert_eq!(ours.code(), cast.code()),
            _ => panic!("{ours:?} is not {cast:?}"),
        }
    }

    proptest! {
        #[test]
        fn numbers_are_those_of_a_cast(text in "[-+]?[0-9]{0,20}([.][0-9]{0,12})?(e[-+]?[0-9]{1,2})?| ?[-0-9]{1,3} ?|[a-z]{0,3}") {
            let bytes = text.as_bytes();
            same(int(bytes), text::parse_integer(&text, "integer", i32::MIN.into(), i32::MAX.into()).map(|v| v as i32));
            same(bigint(bytes), text::parse_integer(&text, "bigint", i64::MIN, i64::MAX));
            same(double(bytes).map(f64::to_bits), text::parse_double(&text).map(f64::to_bits));
            for (precision, scale) in [(38, 10), (10, 2), (18, 0), (5, 5)] {
                same(numeric(bytes, precision, scale), text::parse_decimal(&text, precision, scale));
            }
        }

        #[test]
        fn timestamps_are_those_of_a_cast(
            texts in prop::collection::vec("[0-2][0-9]{3}-[0-1][0-9]-[0-3][0-9][ T][0-2][0-9]:[0-6][0-9](:[0-6][0-9]([.][0-9]{0,8})?)?(Z|[+]01)?", 1..4),
            precision in 0u8..=6,
        ) {
            let mut parser = TimestampParser::new(precision);
            for text in texts {
                same(parser.parse(text.as_bytes()), text::parse_timestamp(&text, precision));
            }
        }
    }

    #[test]
    fn the_usual_forms_take_the_short_way() {
        assert_eq!(short_integer(b"-123456789012345678"), Some(-123_456_789_012_345_678));
        assert_eq!(short_decimal(b"12.50"), Some((1250, 2)));
        let mut parser = TimestampParser::new(3);
        assert_eq!(parser.short(b"1970-01-02 00:00:01.5006"), Some(86_401_501_000));
        assert_eq!(parser.short(b"1970-01-02T00:00:01Z"), Some(86_401_000_000));
        assert_eq!(parser.short(b"1970-02-30 00:00:01"), None);
    }
}
