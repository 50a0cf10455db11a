//! Text functions where DataFusion's differ from PostgreSQL's.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, Int32Array, StringArray, StringBuilder};
use weir_catalog::{Error, Result, SqlState};

use super::downcast;

/// A text function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `substring(text, start [, length])`, in characters, the first being 1.
    Substring,
    /// `split_part(text, delimiter, n)`; a negative n counts from the end.
    SplitPart,
    /// `repeat(text, n)`
    Repeat,
    /// `chr(n)`: the character with this number.
    Chr,
    /// LIKE with a pattern that ends with its escape character: false, or `22025` where the argument says that matching came to that end.
    PatternEnd,
}

impl Operation {
    /// The function's name.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Substring => "substring",
            Operation::SplitPart => "split_part",
            Operation::Repeat => "repeat",
            Operation::Chr => "chr",
            Operation::PatternEnd => "like_pattern_end",
        }
    }
}

/// The longest text that `repeat` makes: what a row may hold.
const LONGEST_BYTES: usize = 16 << 20;

/// The value of `operation` on columns.
pub fn evaluate(operation: Operation, arguments: &[ArrayRef]) -> Result<ArrayRef> {
    if operation == Operation::PatternEnd {
        return pattern_end(downcast(&arguments[0])?);
    }
    if operation == Operation::Chr {
        return chr(downcast(&arguments[0])?);
    }
    let texts: &StringArray = downcast(&arguments[0])?;
    let mut builder = StringBuilder::with_capacity(texts.len(), texts.value_data().len());
    match operation {
        Operation::Substring => {
            let starts: &Int32Array = downcast(&arguments[1])?;
            let lengths: Option<&Int32Array> = arguments.get(2).map(downcast).transpose()?;
            for row in 0..texts.len() {
                if texts.is_null(row) || starts.is_null(row) || lengths.is_some_and(|lengths| lengths.is_null(row)) {
                    builder.append_null();
                    continue;
                }
                let length = lengths.map(|lengths| lengths.value(row));
                builder.append_value(substring(texts.value(row), starts.value(row), length)?);
            }
        }
        Operation::SplitPart => {
            let delimiters: &StringArray = downcast(&arguments[1])?;
            let fields: &Int32Array = downcast(&arguments[2])?;
            for row in 0..texts.len() {
                if texts.is_null(row) || delimiters.is_null(row) || fields.is_null(row) {
                    builder.append_null();
                    continue;
                }
                builder.append_value(split_part(texts.value(row), delimiters.value(row), fields.value(row))?);
            }
        }
        Operation::Repeat => {
            let counts: &Int32Array = downcast(&arguments[1])?;
            for row in 0..texts.len() {
                if texts.is_null(row) || counts.is_null(row) {
                    builder.append_null();
                    continue;
                }
                let (text, count) = (texts.value(row), counts.value(row).max(0) as usize);
                if text.len().saturating_mul(count) > LONGEST_BYTES {
                    return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "requested length too large"));
                }
                for _ in 0..count {
                    use std::fmt::Write;
                    builder.write_str(text).map_err(|e| Error::internal(e.to_string()))?;
                }
                builder.append_value("");
            }
        }
        Operation::Chr | Operation::PatternEnd => return Err(Error::internal("not a function of a text")),
    }
    Ok(Arc::new(builder.finish()))
}

fn chr(numbers: &Int32Array) -> Result<ArrayRef> {
    let mut builder = StringBuilder::with_capacity(numbers.len(), numbers.len());
    let mut bytes = [0; 4];
    for number in numbers {
        let Some(number) = number else {
            builder.append_null();
            continue;
        };
        let refused = |message: String| Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message));
        match u32::try_from(number) {
            Err(_) => return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "character number must be positive")),
            Ok(0) => return refused("null character not permitted".into()),
            Ok(number) => match char::from_u32(number) {
                Some(character) => builder.append_value(character.encode_utf8(&mut bytes)),
                None if number > u32::from(char::MAX) => {
                    return refused(format!("requested character too large for encoding: {number}"));
                }
                None => return refused(format!("requested character not valid for encoding: {number}")),
            },
        }
    }
    Ok(Arc::new(builder.finish()))
}

fn pattern_end(reached: &BooleanArray) -> Result<ArrayRef> {
    if reached.true_count() > 0 {
        let code = SqlState::parse("22025").unwrap_or(SqlState::DATA_EXCEPTION);
        return Err(Error::new(code, "LIKE pattern must not end with escape character"));
    }
    Ok(Arc::new(reached.clone()))
}

fn substring(text: &str, start: i32, length: Option<i32>) -> Result<&str> {
    let first = i64::from(start);
    let end = match length {
        Some(length) if length < 0 => {
            let code = SqlState::parse("22011").unwrap_or(SqlState::DATA_EXCEPTION);
            return Err(Error::new(code, "negative substring length not allowed"));
        }
        Some(length) => Some((first + i64::from(length) - 1).max(0) as usize),
        None => None,
    };
    let skipped = (first - 1).max(0) as usize;
    if text.is_ascii() {
        let from = skipped.min(text.len());
        let to = end.unwrap_or(text.len()).clamp(from, text.len());
        return Ok(&text[from..to]);
    }
    let byte_of = |character: usize| text.char_indices().nth(character).map_or(text.len(), |(byte, _)| byte);
    let from = byte_of(skipped);
    let to = end.map_or(text.len(), byte_of).max(from);
    Ok(&text[from..to])
}

fn split_part<'a>(text: &'a str, delimiter: &str, field: i32) -> Result<&'a str> {
    if field == 0 {
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "field position must not be zero"));
    }
    if delimiter.is_empty() {
        return Ok(if field == 1 || field == -1 { text } else { "" });
    }
    let index = field.unsigned_abs() as usize - 1;
    Ok(if field > 0 { text.split(delimiter).nth(index) } else { text.rsplit(delimiter).nth(index) }.unwrap_or(""))
}
