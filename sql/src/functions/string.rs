//! Text functions where DataFusion's differ from PostgreSQL's.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, Int32Array, Int64Array, StringArray, StringBuilder};
use arrow::datatypes::DataType;
use datafusion::logical_expr::ColumnarValue;
use weir_catalog::{Error, Result, SqlState};

use super::{Texts, array_of, downcast};

/// A text function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `substring(text, start [, length])`, in characters, the first being 1.
    Substring,
    /// `split_part(text, delimiter, n)`; a negative n counts from the end.
    SplitPart,
    /// Flink's `split_index(text, delimiter, n)`, the first part being 0: NULL where there is no such part.
    SplitIndex,
    /// `repeat(text, n)`
    Repeat,
    /// `lpad(text, n [, fill])`: filled up on the left, or cut, to n characters.
    PadLeft,
    /// `rpad(text, n [, fill])`: filled up on the right, or cut, to n characters.
    PadRight,
    /// `to_hex(n)`: the digits of an INT or BIGINT, of a negative one those of its two's complement.
    ToHex,
    /// `quote_literal(text)`: as a string in a statement.
    QuoteLiteral,
    /// `quote_ident(text)`: as a name in a statement.
    QuoteIdent,
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
            Operation::SplitIndex => "split_index",
            Operation::Repeat => "repeat",
            Operation::PadLeft => "lpad",
            Operation::PadRight => "rpad",
            Operation::ToHex => "to_hex",
            Operation::QuoteLiteral => "quote_literal",
            Operation::QuoteIdent => "quote_ident",
            Operation::Chr => "chr",
            Operation::PatternEnd => "like_pattern_end",
        }
    }
}

/// The longest text that `repeat` makes: what a row may hold.
const LONGEST_BYTES: usize = 16 << 20;
/// The most that the texts of one batch may take.
const MOST_BYTES: usize = 1 << 30;

/// Errors with `54000` where `builder` can't take a text of `bytes` more.
fn check_room(builder: &StringBuilder, bytes: usize) -> Result<()> {
    if bytes > LONGEST_BYTES || builder.values_slice().len() + bytes > MOST_BYTES {
        return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "requested length too large"));
    }
    Ok(())
}

/// The regular expression that a pattern of SIMILAR TO is.
pub fn similar_pattern(pattern: &str, escape: Option<char>) -> String {
    let mut regex = String::from("^(?:");
    let (mut escaped, mut in_class) = (false, false);
    for ch in pattern.chars() {
        match ch {
            ch if escaped => {
                regex.push('\\');
                regex.push(ch);
                escaped = false;
            }
            ch if Some(ch) == escape => escaped = true,
            ch if in_class => {
                if ch == '\\' {
                    regex.push('\\');
                }
                regex.push(ch);
                in_class = ch != ']';
            }
            '[' => {
                regex.push(ch);
                in_class = true;
            }
            '%' => regex.push_str(".*"),
            '_' => regex.push('.'),
            '(' => regex.push_str("(?:"),
            '\\' | '.' | '^' | '$' => {
                regex.push('\\');
                regex.push(ch);
            }
            ch => regex.push(ch),
        }
    }
    regex.push_str(")$");
    regex
}

fn quoted_literal(text: &str) -> String {
    let escapes = if text.contains('\\') { "E" } else { "" };
    format!("{escapes}'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// The value of `operation` on columns.
pub fn evaluate(operation: Operation, arguments: &[ArrayRef]) -> Result<ArrayRef> {
    if operation == Operation::PatternEnd {
        return pattern_end(downcast(&arguments[0])?);
    }
    if operation == Operation::Chr {
        return chr(downcast(&arguments[0])?);
    }
    if operation == Operation::ToHex {
        return to_hex(&arguments[0]);
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
        Operation::QuoteLiteral | Operation::QuoteIdent => {
            for text in texts {
                match text {
                    Some(text) if operation == Operation::QuoteIdent => builder.append_value(crate::parser::quoted_name(text)),
                    Some(text) => builder.append_value(quoted_literal(text)),
                    None => builder.append_null(),
                }
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
                check_room(&builder, text.len().saturating_mul(count))?;
                for _ in 0..count {
                    use std::fmt::Write;
                    builder.write_str(text).map_err(|e| Error::internal(e.to_string()))?;
                }
                builder.append_value("");
            }
        }
        Operation::PadLeft | Operation::PadRight => {
            let lengths: &Int32Array = downcast(&arguments[1])?;
            let fills: Option<&StringArray> = arguments.get(2).map(downcast).transpose()?;
            let mut padded = String::new();
            for row in 0..texts.len() {
                if texts.is_null(row) || lengths.is_null(row) || fills.is_some_and(|fills| fills.is_null(row)) {
                    builder.append_null();
                    continue;
                }
                let fill = fills.map_or(" ", |fills| fills.value(row));
                padded.clear();
                pad(texts.value(row), lengths.value(row), fill, operation == Operation::PadLeft, &mut padded)?;
                check_room(&builder, padded.len())?;
                builder.append_value(&padded);
            }
        }
        Operation::Chr | Operation::ToHex | Operation::PatternEnd | Operation::SplitIndex => {
            return Err(Error::internal("a function that is evaluated on its own"));
        }
    }
    Ok(Arc::new(builder.finish()))
}

/// Part `n` of each text, as Flink has it: an empty delimiter is a space, and the empty text has no part at all.
pub fn split_index(arguments: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let [texts, delimiters, indices] = arguments else { return Err(Error::internal("split_index takes three arguments")) };
    let texts = array_of(texts, rows)?;
    let texts: &StringArray = downcast(&texts)?;
    let delimiters = Texts::of(delimiters)?;
    let indices = array_of(indices, rows)?;
    let indices: &Int32Array = downcast(&indices)?;
    let mut builder = StringBuilder::with_capacity(rows, 0);
    for row in 0..rows {
        let (true, Some(delimiter), true) = (texts.is_valid(row), delimiters.get(row), indices.is_valid(row)) else {
            builder.append_null();
            continue;
        };
        let text = texts.value(row);
        let part = match (usize::try_from(indices.value(row)), delimiter.as_bytes()) {
            (Ok(index), [byte]) if !text.is_empty() => part_by_byte(text, *byte, index),
            (Ok(index), []) if !text.is_empty() => part_by_byte(text, b' ', index),
            (Ok(index), _) if !text.is_empty() => text.split(delimiter).nth(index),
            _ => None,
        };
        builder.append_option(part);
    }
    Ok(Arc::new(builder.finish()))
}

/// Part `index` between ASCII characters `delimiter`.
fn part_by_byte(text: &str, delimiter: u8, index: usize) -> Option<&str> {
    let mut ends = memchr::memchr_iter(delimiter, text.as_bytes());
    let start = if index == 0 { 0 } else { ends.nth(index - 1)? + 1 };
    Some(&text[start..ends.next().unwrap_or(text.len())])
}

/// Appends to `padded` the first `length` characters of `text`, and as much of `fill`, again and again, as is wanting.
fn pad(text: &str, length: i32, fill: &str, left: bool, padded: &mut String) -> Result<()> {
    let length = usize::try_from(length).unwrap_or(0);
    let (kept, characters) = match text.char_indices().nth(length) {
        Some((end, _)) => (&text[..end], length),
        None => (text, text.chars().count()),
    };
    let missing = if fill.is_empty() { 0 } else { length - characters };
    if kept.len().saturating_add(missing) > LONGEST_BYTES {
        return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "requested length too large"));
    }
    if !left {
        padded.push_str(kept);
    }
    padded.extend(fill.chars().cycle().take(missing));
    if left {
        padded.push_str(kept);
    }
    // Characters of several bytes.
    if padded.len() > LONGEST_BYTES {
        return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "requested length too large"));
    }
    Ok(())
}

fn to_hex(numbers: &ArrayRef) -> Result<ArrayRef> {
    use std::fmt::Write;
    let mut builder = StringBuilder::with_capacity(numbers.len(), numbers.len() * 4);
    for row in 0..numbers.len() {
        if numbers.is_null(row) {
            builder.append_null();
            continue;
        }
        let written = match numbers.data_type() {
            DataType::Int32 => write!(builder, "{:x}", downcast::<Int32Array>(numbers)?.value(row)),
            _ => write!(builder, "{:x}", downcast::<Int64Array>(numbers)?.value(row)),
        };
        written.map_err(|e| Error::internal(e.to_string()))?;
        builder.append_value("");
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

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str, delimiter: &str, index: i32) -> Option<String> {
        let array = |text: &str| ColumnarValue::Array(Arc::new(StringArray::from(vec![text])));
        let index = ColumnarValue::Array(Arc::new(Int32Array::from(vec![index])));
        let parts = split_index(&[array(text), array(delimiter), index], 1).unwrap();
        let parts: &StringArray = downcast(&parts).unwrap();
        parts.iter().next().flatten().map(str::to_string)
    }

    /// What Flink 2.3.0 gives.
    #[test]
    fn parts_are_those_of_flink() {
        for (text, delimiter, index, expected) in [
            ("a/b/c", "/", 0, Some("a")),
            ("a/b/c", "/", 2, Some("c")),
            ("a/b/c", "/", 3, None),
            ("a/b/c", "/", -1, None),
            ("", "/", 0, None),
            ("a//c", "/", 1, Some("")),
            ("/", "/", 0, Some("")),
            ("/", "/", 1, Some("")),
            ("a b", "", 0, Some("a")),
            ("a b", "", 1, Some("b")),
            ("a--b--c", "--", 1, Some("b")),
            ("a---b", "--", 1, Some("-b")),
            ("héé/ü", "/", 1, Some("ü")),
            ("abc", "/", 0, Some("abc")),
            ("abc", "abc", 0, Some("")),
            ("abc", "abc", 1, Some("")),
            ("aéb", "é", 1, Some("b")),
        ] {
            assert_eq!(split(text, delimiter, index).as_deref(), expected, "part {index} of {text:?} by {delimiter:?}");
        }
    }
}
