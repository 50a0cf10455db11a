//! Values as text and back, character for character as PostgreSQL reads and prints them (DateStyle ISO, IntervalStyle postgres).
//!
//! Writers append to any `fmt::Write` and allocate nothing.

use std::fmt::{self, Write};

use arrow::datatypes::IntervalMonthDayNano;
use weir_catalog::{Error, Result, SqlState};

use super::arithmetic::{numeric_overflow, power_of_ten};

/// Microseconds in a second.
pub const SECOND_US: i64 = 1_000_000;
/// Microseconds in a day.
pub const DAY_US: i64 = 86_400 * SECOND_US;

fn invalid(type_name: &str, text: &str) -> Error {
    Error::new(SqlState::INVALID_TEXT_REPRESENTATION, format!("invalid input syntax for type {type_name}: \"{text}\""))
}

fn out_of_range(type_name: &str, text: &str) -> Error {
    Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, format!("value \"{text}\" is out of range for type {type_name}"))
}

/// The bytes as text. Errors with `22021` where they are not valid UTF-8, or have a zero, which no text has.
pub fn from_bytes(bytes: &[u8]) -> Result<&str> {
    let (text, valid) = match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text), bytes.len()),
        Err(error) => (None, error.valid_up_to()),
    };
    let zero = bytes[..valid].iter().position(|byte| *byte == 0);
    match (text, zero) {
        (Some(text), None) => Ok(text),
        _ => Err(invalid_bytes(&bytes[zero.unwrap_or(valid)..])),
    }
}

/// `22021`, naming the bytes that the character at the beginning of `bytes` would have.
fn invalid_bytes(bytes: &[u8]) -> Error {
    let length = match bytes.first() {
        Some(0xC0..=0xDF) => 2,
        Some(0xE0..=0xEF) => 3,
        Some(0xF0..=0xF7) => 4,
        _ => 1,
    };
    let shown: Vec<String> = bytes.iter().take(length).map(|byte| format!("0x{byte:02x}")).collect();
    let code = SqlState::parse("22021").unwrap_or(SqlState::DATA_EXCEPTION);
    Error::new(code, format!("invalid byte sequence for encoding \"UTF8\": {}", shown.join(" ")))
}

/// The whitespace that PostgreSQL skips around a value.
fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c'])
}

/// `true`, `t`, `yes`, `y`, `on`, `1` and their opposites, any case, and unambiguous beginnings of the words.
pub fn parse_boolean(text: &str) -> Result<bool> {
    let word = trim(text);
    let begins = |whole: &str, least: usize| {
        word.len() >= least
            && word.len() <= whole.len()
            && word.is_char_boundary(word.len())
            && whole.as_bytes()[..word.len()].eq_ignore_ascii_case(word.as_bytes())
    };
    if begins("true", 1) || begins("yes", 1) || begins("on", 2) || word == "1" {
        Ok(true)
    } else if begins("false", 1) || begins("no", 1) || begins("off", 2) || word == "0" {
        Ok(false)
    } else {
        Err(invalid("boolean", text))
    }
}

/// A whole number of `type_name`, which spans `least` to `greatest`.
pub fn parse_integer(text: &str, type_name: &str, least: i64, greatest: i64) -> Result<i64> {
    let number = trim(text);
    let digits = number.strip_prefix(['-', '+']).unwrap_or(number);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid(type_name, text));
    }
    match number.parse::<i64>() {
        Ok(value) if (least..=greatest).contains(&value) => Ok(value),
        _ => Err(out_of_range(type_name, text)),
    }
}

/// A double, also `NaN`, `Infinity` and `inf`.
pub fn parse_double(text: &str) -> Result<f64> {
    let number = trim(text);
    let value: f64 = number.parse().map_err(|_| invalid("double precision", text))?;
    let starts_with_digit = number.trim_start_matches(['-', '+']).starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let mantissa_is_zero = || !number.bytes().take_while(|byte| !matches!(byte, b'e' | b'E')).any(|byte| (b'1'..=b'9').contains(&byte));
    if starts_with_digit && (value.is_infinite() || (value == 0.0 && !mantissa_is_zero())) {
        return Err(Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, format!("\"{number}\" is out of range for type double precision")));
    }
    Ok(value)
}

/// A decimal number as `NUMERIC(precision, scale)`, rounded half away from zero.
pub fn parse_decimal(text: &str, precision: u8, scale: i8) -> Result<i128> {
    let number = trim(text);
    let bytes = number.as_bytes();
    let (negative, mut at) = match bytes.first() {
        Some(b'-') => (true, 1),
        Some(b'+') => (false, 1),
        _ => (false, 0),
    };
    let whole_start = at;
    while at < bytes.len() && bytes[at].is_ascii_digit() {
        at += 1;
    }
    let whole = &bytes[whole_start..at];
    let mut fraction: &[u8] = &[];
    if at < bytes.len() && bytes[at] == b'.' {
        let start = at + 1;
        at = start;
        while at < bytes.len() && bytes[at].is_ascii_digit() {
            at += 1;
        }
        fraction = &bytes[start..at];
    }
    if whole.is_empty() && fraction.is_empty() {
        return Err(invalid("numeric", text));
    }
    let mut exponent: i64 = 0;
    if at < bytes.len() && matches!(bytes[at], b'e' | b'E') {
        exponent = number[at + 1..].parse::<i32>().map_err(|_| invalid("numeric", text))?.into();
        at = bytes.len();
    }
    if at != bytes.len() {
        return Err(invalid("numeric", text));
    }
    // The value is `digits * 10^shift` in units of the last place.
    let digits = || whole.iter().chain(fraction).map(|byte| i128::from(byte - b'0')).skip_while(|&digit| digit == 0);
    let shift = exponent - fraction.len() as i64 + i64::from(scale);
    let kept = digits().count() as i64 + shift.min(0);
    let overflow = || numeric_overflow(precision, scale);
    if kept > 38 || (digits().next().is_some() && kept + shift.max(0) > 38) {
        return Err(overflow());
    }
    let mut value: i128 = 0;
    for (i, digit) in digits().enumerate() {
        if (i as i64) < kept {
            value = value * 10 + digit;
        } else {
            if i as i64 == kept && digit >= 5 {
                value += 1;
            }
            break;
        }
    }
    if shift > 0 && value != 0 {
        value = value.checked_mul(power_of_ten(shift as u32)).ok_or_else(overflow)?;
    }
    if value >= power_of_ten(precision as u32) {
        return Err(overflow());
    }
    Ok(if negative { -value } else { value })
}

/// The precision and scale that the digits of a numeric literal need, `None` above 38.
pub fn literal_precision(text: &str) -> Option<(u8, i8)> {
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], text[at + 1..].parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let scale = (fraction.len() as i32 - exponent).max(0);
    let integer_digits = (whole.trim_start_matches('0').len() as i32 + exponent).max(0);
    let precision = (integer_digits + scale).max(1);
    (precision <= 38).then_some((precision as u8, scale as i8))
}

/// A decimal with all digits of its scale.
pub fn write_decimal(out: &mut impl Write, value: i128, scale: i8) -> fmt::Result {
    if value < 0 {
        out.write_char('-')?;
    }
    let size = value.unsigned_abs();
    if scale <= 0 {
        return write!(out, "{size}");
    }
    let unit = power_of_ten(scale as u32) as u128;
    write!(out, "{}.{:0width$}", size / unit, size % unit, width = scale as usize)
}

/// A fixed buffer for the digits of one double.
struct Digits {
    bytes: [u8; 32],
    length: usize,
}

impl Write for Digits {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// A double in the fewest digits that read back as the same double.
pub fn write_double(out: &mut impl Write, value: f64) -> fmt::Result {
    if value.is_nan() {
        return out.write_str("NaN");
    }
    if value.is_infinite() {
        return out.write_str(if value > 0.0 { "Infinity" } else { "-Infinity" });
    }
    let mut shortest = Digits { bytes: [0; 32], length: 0 };
    write!(shortest, "{value:e}")?;
    let text = std::str::from_utf8(&shortest.bytes[..shortest.length]).map_err(|_| fmt::Error)?;
    let (mantissa, exponent) = text.split_once('e').ok_or(fmt::Error)?;
    let exponent: i32 = exponent.parse().map_err(|_| fmt::Error)?;
    // From 1e-5 down and from 1e15 up PostgreSQL switches to an exponent of at least two digits.
    if !(-4..15).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return write!(out, "{mantissa}e{sign}{:02}", exponent.unsigned_abs());
    }
    write!(out, "{value}")
}

/// The days from 1970-01-01 to a date of the proleptic Gregorian calendar (Howard Hinnant's algorithm).
pub fn days_from_civil(year: i64, month: u32, day: u32) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = (i64::from(month) + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + i64::from(day) - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The date that lies `days` after 1970-01-01 (Howard Hinnant's algorithm).
pub fn civil_from_days(days: i64) -> (i64, u32, u32) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = (day_of_year - (153 * month_from_march + 2) / 5 + 1) as u32;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 } as u32;
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The days of a month.
pub fn days_in_month(year: i64, month: u32) -> u32 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// `YYYY-MM-DD HH:MM:SS[.ffffff]`, the fraction without trailing zeros.
pub fn write_timestamp(out: &mut impl Write, timestamp_us: i64) -> fmt::Result {
    let (year, month, day) = civil_from_days(timestamp_us.div_euclid(DAY_US));
    let time_us = timestamp_us.rem_euclid(DAY_US);
    let shown_year = if year > 0 { year } else { 1 - year };
    let seconds = time_us / SECOND_US;
    write!(out, "{shown_year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)?;
    write_fraction(out, time_us % SECOND_US)?;
    if year > 0 { Ok(()) } else { out.write_str(" BC") }
}

fn write_fraction(out: &mut impl Write, fraction_us: i64) -> fmt::Result {
    if fraction_us == 0 {
        return Ok(());
    }
    let (mut value, mut width) = (fraction_us, 6);
    while value % 10 == 0 {
        value /= 10;
        width -= 1;
    }
    write!(out, ".{value:0width$}")
}

/// `1 year 2 mons 3 days 04:05:06.7`
pub fn write_interval(out: &mut impl Write, interval: IntervalMonthDayNano) -> fmt::Result {
    let (years, months, days) = (interval.months / 12, interval.months % 12, interval.days);
    let mut first = true;
    let mut after_negative = false;
    for (value, unit) in [(years, "year"), (months, "mon"), (days, "day")] {
        if value == 0 {
            continue;
        }
        let sign = if after_negative && value > 0 { "+" } else { "" };
        write!(out, "{}{sign}{value} {unit}{}", if first { "" } else { " " }, if value == 1 { "" } else { "s" })?;
        after_negative = value < 0;
        first = false;
    }
    let time_us = interval.nanoseconds / 1000;
    if time_us != 0 || first {
        let sign = match (time_us < 0, after_negative) {
            (true, _) => "-",
            (false, true) => "+",
            (false, false) => "",
        };
        let size = time_us.unsigned_abs() as i64;
        let seconds = size / SECOND_US;
        write!(out, "{}{sign}{:02}:{:02}:{:02}", if first { "" } else { " " }, seconds / 3600, seconds / 60 % 60, seconds % 60)?;
        write_fraction(out, size % SECOND_US)?;
    }
    Ok(())
}

/// A timestamp rounded to `precision` digits of a second.
pub fn round_timestamp(timestamp_us: i64, precision: u8) -> i64 {
    let unit = 10i64.pow(6u32.saturating_sub(u32::from(precision)));
    if unit == 1 {
        return timestamp_us;
    }
    let half = unit / 2;
    // Away from zero, as PostgreSQL rounds the distance from its epoch, 2000-01-01.
    let epoch_us = 10_957 * DAY_US;
    let distance = timestamp_us - epoch_us;
    let rounded = if distance >= 0 { (distance + half) / unit * unit } else { -((half - distance) / unit * unit) };
    rounded + epoch_us
}

/// A timestamp without time zone, rounded to `precision` digits of a second. A time zone in the text is read and has no effect.
pub fn parse_timestamp(text: &str, precision: u8) -> Result<i64> {
    let invalid = || Error::new(SqlState::INVALID_DATETIME_FORMAT, format!("invalid input syntax for type timestamp: \"{text}\""));
    let field_overflow = || Error::new(SqlState::DATETIME_FIELD_OVERFLOW, format!("date/time field value out of range: \"{text}\""));
    let range_overflow = || Error::new(SqlState::DATETIME_FIELD_OVERFLOW, format!("timestamp out of range: \"{text}\""));
    let trimmed = trim(text);
    if trimmed.eq_ignore_ascii_case("epoch") {
        return Ok(0);
    }
    if ["infinity", "-infinity", "now", "today", "tomorrow", "yesterday"].iter().any(|word| trimmed.eq_ignore_ascii_case(word)) {
        return Err(Error::unsupported(format!("timestamp \"{trimmed}\" is not supported")));
    }
    let (body, before_christ) = match trimmed.len().checked_sub(3).and_then(|at| trimmed.get(at..)) {
        Some(end) if end.eq_ignore_ascii_case(" bc") => (trimmed[..trimmed.len() - 3].trim_end(), true),
        _ => (trimmed, false),
    };
    let mut reader = Reader { bytes: body.as_bytes(), at: 0 };
    let (year_digits, first) = reader.number(9).ok_or_else(invalid)?;
    let (year, month, day) = if reader.eat(b'-') || reader.eat(b'/') {
        let (_, month) = reader.number(2).ok_or_else(invalid)?;
        if !(reader.eat(b'-') || reader.eat(b'/')) {
            return Err(invalid());
        }
        let (_, day) = reader.number(2).ok_or_else(invalid)?;
        if year_digits < 3 {
            return Err(field_overflow());
        }
        (first, month as u32, day as u32)
    } else if year_digits == 8 {
        (first / 10_000, (first / 100 % 100) as u32, (first % 100) as u32)
    } else {
        return Err(invalid());
    };
    let year = if before_christ { 1 - year } else { year };
    if !(1..=12).contains(&month) || day < 1 || day > days_in_month(year, month) || first == 0 {
        return Err(field_overflow());
    }
    let mut time_us = 0i64;
    let separated = reader.eat(b'T') || reader.eat(b't') || reader.skip_spaces();
    if separated && !reader.done() && reader.bytes[reader.at].is_ascii_digit() {
        let (mut second, mut fraction_us) = (0, 0);
        let (mut hour, minute, has_seconds) = match reader.number(6).ok_or_else(invalid)? {
            // Digits alone: hhmm or hhmmss.
            (4, digits) => (digits / 100, digits % 100, false),
            (6, digits) => {
                second = digits % 100;
                if reader.eat(b'.') {
                    fraction_us = reader.fraction_us();
                }
                (digits / 10_000, digits / 100 % 100, false)
            }
            (1 | 2, digits) if reader.eat(b':') => {
                let minute = reader.number(2).ok_or_else(invalid)?.1;
                (digits, minute, reader.eat(b':'))
            }
            _ => return Err(invalid()),
        };
        if has_seconds {
            second = reader.number(2).ok_or_else(invalid)?.1;
            if reader.eat(b'.') {
                fraction_us = reader.fraction_us();
            }
        }
        reader.skip_spaces();
        if let Some(half) = reader.meridiem() {
            if !(1..=12).contains(&hour) {
                return Err(field_overflow());
            }
            hour = hour % 12 + half;
        }
        let whole_us = (hour * 3600 + minute * 60 + second) * SECOND_US + fraction_us;
        if minute > 59 || second > 60 || whole_us > DAY_US {
            return Err(field_overflow());
        }
        time_us = whole_us;
    }
    reader.skip_spaces();
    if !reader.zone() || !reader.done() {
        return Err(invalid());
    }
    let days = days_from_civil(year, month, day);
    let timestamp_us = days.checked_mul(DAY_US).and_then(|us| us.checked_add(time_us)).ok_or_else(range_overflow)?;
    Ok(round_timestamp(timestamp_us, precision))
}

/// A cursor over the bytes of a timestamp.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn done(&self) -> bool {
        self.at == self.bytes.len()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.bytes.get(self.at) == Some(&byte);
        self.at += usize::from(found);
        found
    }

    fn skip_spaces(&mut self) -> bool {
        let start = self.at;
        while self.eat(b' ') {}
        self.at > start
    }

    /// A number of at most `most` digits: how many it has, and its value.
    fn number(&mut self, most: usize) -> Option<(usize, i64)> {
        let start = self.at;
        let mut value = 0i64;
        while let Some(byte) = self.bytes.get(self.at).filter(|byte| byte.is_ascii_digit()) {
            if self.at - start == most {
                return None;
            }
            value = value * 10 + i64::from(byte - b'0');
            self.at += 1;
        }
        (self.at > start).then_some((self.at - start, value))
    }

    /// The digits behind the point of a second, in microseconds, rounded to the nearest.
    fn fraction_us(&mut self) -> i64 {
        let (mut value, mut unit) = (0i64, 100_000i64);
        let mut round_up = false;
        let mut first_dropped = true;
        while let Some(byte) = self.bytes.get(self.at).filter(|byte| byte.is_ascii_digit()) {
            if unit > 0 {
                value += i64::from(byte - b'0') * unit;
                unit /= 10;
            } else if first_dropped {
                round_up = *byte >= b'5';
                first_dropped = false;
            }
            self.at += 1;
        }
        value + i64::from(round_up)
    }

    /// `AM` as 0, `PM` as 12.
    fn meridiem(&mut self) -> Option<i64> {
        let word = self.bytes.get(self.at..self.at + 2)?;
        let half = if word.eq_ignore_ascii_case(b"am") {
            0
        } else if word.eq_ignore_ascii_case(b"pm") {
            12
        } else {
            return None;
        };
        self.at += 2;
        self.skip_spaces();
        Some(half)
    }

    /// Steps over a time zone: `Z`, `UTC`, `+01`, `-08:00`. False if what stands here is none.
    fn zone(&mut self) -> bool {
        let rest = &self.bytes[self.at..];
        if rest.is_empty() {
            return true;
        }
        if [&b"z"[..], b"utc", b"gmt"].iter().any(|name| rest.eq_ignore_ascii_case(name)) {
            self.at = self.bytes.len();
            return true;
        }
        if !(self.eat(b'+') || self.eat(b'-')) {
            return false;
        }
        let Some((digits, _)) = self.number(4) else { return false };
        if digits <= 2 && self.eat(b':') { self.number(2).is_some() } else { true }
    }
}

/// An interval such as `1 year 2 mons 3 days 04:05:06.7`, `-2 hours`, `5 minutes ago`. A number without a unit counts `default_unit`
/// (`second` where none is named), as in `INTERVAL '4' MINUTE`.
pub fn parse_interval(text: &str, default_unit: &str) -> Result<IntervalMonthDayNano> {
    let invalid = || Error::new(SqlState::INVALID_DATETIME_FORMAT, format!("invalid input syntax for type interval: \"{text}\""));
    let overflow = || Error::new(SqlState::DATETIME_FIELD_OVERFLOW, format!("interval field value out of range: \"{text}\""));
    let (mut months, mut days, mut us) = (0f64, 0f64, 0f64);
    let mut rest = trim(text).trim_start_matches('@').trim_start();
    let mut parts = 0;
    let mut ago = false;
    while !rest.is_empty() {
        if rest.eq_ignore_ascii_case("ago") && parts > 0 {
            ago = true;
            break;
        }
        let end = rest.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | ':'))).unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        if number.is_empty() {
            return Err(invalid());
        }
        parts += 1;
        if number.contains(':') {
            let (sign, clock) = match number.strip_prefix('-') {
                Some(clock) => (-1.0, clock),
                None => (1.0, number.trim_start_matches('+')),
            };
            let mut fields = clock.split(':').map(|field| field.parse::<f64>().ok().filter(|value| *value >= 0.0));
            let hours = fields.next().flatten().ok_or_else(invalid)?;
            let minutes = fields.next().flatten().ok_or_else(invalid)?;
            let seconds = match fields.next() {
                Some(seconds) => seconds.ok_or_else(invalid)?,
                None => 0.0,
            };
            if fields.next().is_some() {
                return Err(invalid());
            }
            if minutes > 59.0 || seconds > 60.0 {
                return Err(overflow());
            }
            us += sign * ((hours * 3600.0 + minutes * 60.0) * 1e6 + (seconds * 1e6).round());
            rest = after.trim_start();
            continue;
        }
        let value: f64 = number.parse().map_err(|_| invalid())?;
        let after = after.trim_start();
        let unit_end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let (unit, after) = if unit.eq_ignore_ascii_case("ago") || unit.is_empty() {
            (default_unit, if unit.is_empty() { after } else { "ago" })
        } else {
            (unit, after)
        };
        rest = after.trim_start();
        use super::datetime::Field;
        let month_days = |months: f64| (months.trunc(), (months - months.trunc()) * 30.0);
        match Field::parse(unit).ok_or_else(invalid)? {
            Field::Millennium => months += value * 12_000.0,
            Field::Century => months += value * 1_200.0,
            Field::Decade => months += value * 120.0,
            Field::Year => months += (value * 12.0).round(),
            Field::Month => {
                let (whole, part) = month_days(value);
                months += whole;
                days += part;
            }
            Field::Week => days += value * 7.0,
            Field::Day => days += value,
            Field::Hour => us += value * 3600.0 * 1e6,
            Field::Minute => us += value * 60.0 * 1e6,
            Field::Second => us += (value * 1e6).round(),
            Field::Millisecond => us += (value * 1e3).round(),
            Field::Microsecond => us += value.round(),
            _ => return Err(invalid()),
        }
    }
    if parts == 0 {
        return Err(invalid());
    }
    us += ((days - days.trunc()) * DAY_US as f64).round();
    let sign = if ago { -1.0 } else { 1.0 };
    let (months, days, us) = (sign * months.trunc(), sign * days.trunc(), sign * us);
    if months.abs() > 2_147_483_647.0 || days.abs() > 2_147_483_647.0 || us.abs() > 9.2e15 {
        return Err(overflow());
    }
    Ok(IntervalMonthDayNano::new(months as i32, days as i32, us as i64 * 1000))
}
