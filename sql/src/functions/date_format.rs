//! `date_format(timestamp, pattern)`: Flink's function, whose patterns are those of Java's `DateTimeFormatter` in English.
//!
//! A pattern is read once, where it is a constant. Letters that stand for what a TIMESTAMP has not (time zones) or for what depends on where one lives (weeks,
//! times of day in words) are refused with `0A000`, what is no pattern with `22023`.

use std::fmt::{self, Write};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, StringBuilder, TimestampMicrosecondArray};
use datafusion::logical_expr::ColumnarValue;
use weir_catalog::{Error, Result, SqlState};

use super::datetime::iso_day_of_week;
use super::text::{DAY_US, SECOND_US, civil_from_days, days_from_civil};
use super::{Texts, array_of, downcast};

/// A pattern that has been read.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    items: Vec<Item>,
}

/// A part of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    Literal(String),
    /// A number of at least so many digits; with a plus sign where it has more, if the flag says so.
    Number(Number, usize, bool),
    /// The last two digits of the year.
    ShortYear(Number),
    /// So many digits of the second's fraction, the others cut off.
    Fraction(usize),
    Word(Word, Style),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Year,
    YearOfEra,
    Quarter,
    Month,
    Day,
    DayOfYear,
    /// 0 to 23.
    Hour,
    /// 1 to 24.
    ClockHour,
    /// 0 to 11.
    HourOfHalfDay,
    /// 1 to 12.
    ClockHourOfHalfDay,
    Minute,
    Second,
    NanoOfSecond,
    MilliOfDay,
    NanoOfDay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Era,
    Quarter,
    Month,
    DayOfWeek,
    HalfDay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Short,
    Full,
    /// One letter.
    Narrow,
}

const MONTHS: [&str; 12] =
    ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// The widest number that Java takes.
const WIDEST: usize = 19;

// Its text says what a pattern is.
impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl Pattern {
    /// Reads a pattern. `22023` where Java has no such pattern, `0A000` for a letter that is not supported.
    pub fn parse(text: &str) -> Result<Pattern> {
        let invalid = |detail: String| {
            Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("invalid pattern for date_format: \"{text}\"")).with_detail(detail)
        };
        let mut items = Vec::new();
        let mut literal = String::new();
        let mut optional = 0;
        let mut rest = text.chars().peekable();
        while let Some(character) = rest.next() {
            match character {
                'a'..='z' | 'A'..='Z' => {
                    let mut count = 1;
                    while rest.next_if_eq(&character).is_some() {
                        count += 1;
                    }
                    if !literal.is_empty() {
                        items.push(Item::Literal(std::mem::take(&mut literal)));
                    }
                    items.push(field(character, count, &invalid)?);
                }
                '\'' if rest.next_if_eq(&'\'').is_some() => literal.push('\''),
                '\'' => loop {
                    match rest.next() {
                        Some('\'') if rest.next_if_eq(&'\'').is_some() => literal.push('\''),
                        Some('\'') => break,
                        Some(other) => literal.push(other),
                        None => return Err(invalid("A quoted text has no end.".into())),
                    }
                },
                // An optional part is left out where its fields are missing: a timestamp has all.
                '[' => optional += 1,
                ']' if optional == 0 => return Err(invalid("A \"]\" has no \"[\".".into())),
                ']' => optional -= 1,
                '{' | '}' | '#' => return Err(invalid(format!("\"{character}\" is reserved: put it in quotes."))),
                other => literal.push(other),
            }
        }
        if !literal.is_empty() {
            items.push(Item::Literal(literal));
        }
        Ok(Pattern { text: text.to_string(), items })
    }

    /// Appends a timestamp's text.
    fn write(&self, out: &mut impl Write, moment: &Moment) -> fmt::Result {
        for item in &self.items {
            match item {
                Item::Literal(text) => out.write_str(text)?,
                Item::Number(number, width, plus) => write_number(out, moment.number(*number), *width, *plus)?,
                Item::ShortYear(number) => write_number(out, (moment.number(*number) % 100).abs(), 2, false)?,
                Item::Fraction(digits) => {
                    let nanoseconds = moment.number(Number::NanoOfSecond);
                    write_number(out, nanoseconds / 10i64.pow(9 - *digits as u32), *digits, false)?;
                }
                Item::Word(word, style) => moment.write_word(out, *word, *style)?,
            }
        }
        Ok(())
    }
}

/// What `count` letters `letter` stand for.
fn field(letter: char, count: usize, invalid: &impl Fn(String) -> Error) -> Result<Item> {
    let too_many = || invalid(format!("There are too many letters \"{letter}\"."));
    let up_to = |widest: usize, item: Item| if count <= widest { Ok(item) } else { Err(too_many()) };
    let short_number = |number: Number| up_to(2, Item::Number(number, count, false));
    let word = |word: Word| {
        Ok(Item::Word(
            word,
            match count {
                1..=3 => Style::Short,
                4 => Style::Full,
                5 => Style::Narrow,
                _ => return Err(too_many()),
            },
        ))
    };
    match letter {
        'y' | 'u' => {
            let number = if letter == 'y' { Number::YearOfEra } else { Number::Year };
            if count == 2 { Ok(Item::ShortYear(number)) } else { up_to(WIDEST, Item::Number(number, count, count >= 4)) }
        }
        'Q' | 'q' if count <= 2 => short_number(Number::Quarter),
        'Q' | 'q' => word(Word::Quarter),
        'M' | 'L' if count <= 2 => short_number(Number::Month),
        'M' | 'L' => word(Word::Month),
        'd' => short_number(Number::Day),
        'D' => up_to(3, Item::Number(Number::DayOfYear, count, false)),
        'H' => short_number(Number::Hour),
        'k' => short_number(Number::ClockHour),
        'K' => short_number(Number::HourOfHalfDay),
        'h' => short_number(Number::ClockHourOfHalfDay),
        'm' => short_number(Number::Minute),
        's' => short_number(Number::Second),
        'S' => up_to(9, Item::Fraction(count)),
        'n' => up_to(WIDEST, Item::Number(Number::NanoOfSecond, count, false)),
        'A' => up_to(WIDEST, Item::Number(Number::MilliOfDay, count, false)),
        'N' => up_to(WIDEST, Item::Number(Number::NanoOfDay, count, false)),
        'E' => word(Word::DayOfWeek),
        'a' => up_to(1, Item::Word(Word::HalfDay, Style::Short)),
        'G' => word(Word::Era),
        'Y' | 'w' | 'W' | 'e' | 'c' | 'F' | 'g' | 'B' | 'p' | 'z' | 'Z' | 'V' | 'v' | 'O' | 'X' | 'x' => {
            Err(Error::unsupported(format!("pattern letter \"{letter}\" of date_format is not supported")))
        }
        _ => Err(invalid(format!("\"{letter}\" is no pattern letter: put it in quotes."))),
    }
}

/// A timestamp taken apart.
#[derive(Clone, Copy, Debug)]
struct Moment {
    days: i64,
    year: i64,
    month: u32,
    day: u32,
    /// Microseconds since midnight.
    time_us: i64,
}

impl Moment {
    /// Most timestamps of a column fall on the day of the one before.
    fn set(&mut self, timestamp_us: i64) {
        let days = timestamp_us.div_euclid(DAY_US);
        if days != self.days {
            *self = Moment::midnight(days);
        }
        self.time_us = timestamp_us.rem_euclid(DAY_US);
    }

    fn midnight(days: i64) -> Moment {
        let (year, month, day) = civil_from_days(days);
        Moment { days, year, month, day, time_us: 0 }
    }

    fn number(&self, number: Number) -> i64 {
        let hour = self.time_us / (3600 * SECOND_US);
        match number {
            Number::Year => self.year,
            Number::YearOfEra => {
                if self.year > 0 {
                    self.year
                } else {
                    1 - self.year
                }
            }
            Number::Quarter => i64::from(self.month - 1) / 3 + 1,
            Number::Month => self.month.into(),
            Number::Day => self.day.into(),
            Number::DayOfYear => self.days - days_from_civil(self.year, 1, 1) + 1,
            Number::Hour => hour,
            Number::ClockHour => (hour + 23) % 24 + 1,
            Number::HourOfHalfDay => hour % 12,
            Number::ClockHourOfHalfDay => (hour + 11) % 12 + 1,
            Number::Minute => self.time_us / (60 * SECOND_US) % 60,
            Number::Second => self.time_us / SECOND_US % 60,
            Number::NanoOfSecond => self.time_us % SECOND_US * 1000,
            Number::MilliOfDay => self.time_us / 1000,
            Number::NanoOfDay => self.time_us * 1000,
        }
    }

    fn write_word(&self, out: &mut impl Write, word: Word, style: Style) -> fmt::Result {
        let name = match word {
            Word::Era => {
                let (short, full) = if self.year > 0 { ("AD", "Anno Domini") } else { ("BC", "Before Christ") };
                return out.write_str(match style {
                    Style::Short => short,
                    Style::Full => full,
                    Style::Narrow => &short[..1],
                });
            }
            Word::Quarter => {
                let quarter = self.number(Number::Quarter);
                return match style {
                    Style::Short => write!(out, "Q{quarter}"),
                    Style::Full => out.write_str(["1st quarter", "2nd quarter", "3rd quarter", "4th quarter"][quarter as usize - 1]),
                    Style::Narrow => write!(out, "{quarter}"),
                };
            }
            Word::HalfDay => return out.write_str(if self.time_us < DAY_US / 2 { "AM" } else { "PM" }),
            Word::Month => MONTHS[self.month as usize - 1],
            Word::DayOfWeek => DAYS[iso_day_of_week(self.days) as usize - 1],
        };
        out.write_str(match style {
            Style::Short => &name[..3],
            Style::Full => name,
            Style::Narrow => &name[..1],
        })
    }
}

/// The numbers from 00 to 99.
const PAIRS: &str = "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849\
    5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";

fn write_number(out: &mut impl Write, value: i64, width: usize, plus: bool) -> fmt::Result {
    let pair = |value: i64| &PAIRS[2 * value as usize..2 * value as usize + 2];
    match (width, value) {
        (2, 0..=99) => out.write_str(pair(value)),
        (4, 0..=9999) => {
            out.write_str(pair(value / 100))?;
            out.write_str(pair(value % 100))
        }
        _ => {
            let sign = match value {
                ..0 => "-",
                _ if plus && value.checked_ilog10().is_some_and(|digits| digits as usize >= width) => "+",
                _ => "",
            };
            write!(out, "{sign}{:0width$}", value.unsigned_abs())
        }
    }
}

/// The texts of a column of timestamps. `pattern` is the constant pattern, else the second argument says each row's.
pub fn evaluate(pattern: Option<&Pattern>, arguments: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let [timestamps, patterns] = arguments else { return Err(Error::internal("date_format takes two arguments")) };
    let timestamps = array_of(timestamps, rows)?;
    let timestamps: &TimestampMicrosecondArray = downcast(&timestamps)?;
    let patterns = Texts::of(patterns)?;
    let mut builder = StringBuilder::with_capacity(rows, rows * 16);
    let mut moment = Moment::midnight(0);
    let mut read: Option<Pattern> = None;
    for row in 0..rows {
        let (false, Some(text)) = (timestamps.is_null(row), patterns.get(row)) else {
            builder.append_null();
            continue;
        };
        let pattern = match (pattern, &read) {
            (Some(pattern), _) => pattern,
            (None, Some(last)) if last.text == text => last,
            (None, _) => read.insert(Pattern::parse(text)?),
        };
        moment.set(timestamps.value(row));
        pattern.write(&mut builder, &moment).map_err(|e| Error::internal(e.to_string()))?;
        builder.append_value("");
    }
    Ok(Arc::new(builder.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each pattern with what Flink 2.3.0 makes of these timestamps, or its error.
    const TIMESTAMPS: [&str; 6] = [
        "2015-07-15 00:00:00",
        "2024-02-29 13:05:09.1203",
        "1969-12-31 23:59:59.999999",
        "0005-01-02 12:00:00.5",
        "0045-03-15 06:07:08 BC",
        "12024-11-30 00:30:00",
    ];

    fn microseconds(text: &str) -> i64 {
        super::super::text::parse_timestamp(text, 6).unwrap()
    }

    #[test]
    fn patterns_give_what_flink_gives() {
        let mut count = 0;
        for line in include_str!("date_format.txt").lines().filter(|line| !line.starts_with('#')) {
            let (pattern, expected) = line.split_once('\t').unwrap();
            count += 1;
            let read = match (Pattern::parse(pattern), expected.strip_prefix('!')) {
                (Ok(read), None) => read,
                (Err(error), Some(code)) => {
                    assert_eq!(error.code().as_str(), code, "{pattern}");
                    continue;
                }
                (read, _) => panic!("{pattern} gives {read:?}"),
            };
            for (timestamp, expected) in TIMESTAMPS.iter().zip(expected.split('\t')) {
                let mut moment = Moment::midnight(0);
                moment.set(microseconds(timestamp));
                let mut text = String::new();
                read.write(&mut text, &moment).unwrap();
                assert_eq!(text, expected, "{pattern} of {timestamp}");
            }
        }
        assert!(count > 80, "only {count} patterns");
    }

    #[test]
    fn two_digits_are_their_number() {
        for value in 0..100 {
            let mut text = String::new();
            write_number(&mut text, value, 2, false).unwrap();
            assert_eq!(text, format!("{value:02}"));
        }
    }
}
