//! Strings with escapes, `E'...'`, that `sqlparser` does not read: surrogate pairs, bytes that are UTF-8 together, and what is wrong in one.
//!
//! Source of the rules: PostgreSQL 15, `src/backend/parser/scan.l`.

use weir_catalog::{Error, Result, SqlState};

use crate::functions::text;

/// The string that `sql` begins with and how many bytes it takes there; `None` where it begins with something else, or with a string without end.
///
/// Errors: `22021` for bytes that are no text, `22025` for a Unicode escape that is none, `42601` for one that names no character.
pub(super) fn escaped_string(sql: &str) -> Option<Result<(String, usize)>> {
    let body = sql.strip_prefix(['E', 'e'])?.strip_prefix('\'')?;
    let end = end(body)?;
    Some(unescape(&body[..end]).map(|value| (value, end + 3)))
}

/// Where the quote stands that ends the string.
fn end(body: &str) -> Option<usize> {
    let bytes = body.as_bytes();
    let mut at = 0;
    loop {
        match bytes.get(at)? {
            b'\\' => at += 2,
            b'\'' if bytes.get(at + 1) == Some(&b'\'') => at += 2,
            b'\'' => return Some(at),
            _ => at += 1,
        }
    }
}

fn unescape(body: &str) -> Result<String> {
    let mut value: Vec<u8> = Vec::with_capacity(body.len());
    let mut rest = body.as_bytes();
    // The first half of a surrogate pair, whose other half must come next.
    let mut high: Option<u32> = None;
    while let [byte, tail @ ..] = rest {
        let escaped = if *byte == b'\\' { tail.first() } else { None };
        if high.is_some() && !matches!(escaped, Some(b'u' | b'U')) {
            return Err(invalid_pair());
        }
        rest = match (*byte, escaped) {
            // A quote is written twice.
            (b'\'', _) => {
                value.push(b'\'');
                &tail[1..]
            }
            (_, None) => {
                value.push(*byte);
                tail
            }
            (_, Some(b'u' | b'U')) => {
                let digits = if tail[0] == b'u' { 4 } else { 8 };
                let code = code_point(tail.get(1..1 + digits))?;
                high = add_code_point(&mut value, high, code)?;
                &tail[1 + digits..]
            }
            (_, Some(b'x')) => {
                let (code, count) = number(&tail[1..], 16, 2);
                value.push(if count == 0 { b'x' } else { code as u8 });
                &tail[1 + count..]
            }
            (_, Some(b'0'..=b'7')) => {
                let (code, count) = number(tail, 8, 3);
                value.push(code as u8);
                &tail[count..]
            }
            (_, Some(letter)) => {
                value.push(match letter {
                    b'b' => 8,
                    b'f' => 12,
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    other => *other,
                });
                &tail[1..]
            }
        };
    }
    if high.is_some() {
        return Err(invalid_pair());
    }
    text::from_bytes(&value).map(str::to_string)
}

/// The number in the first digits of `bytes`, at most `most` of them, and how many there are.
fn number(bytes: &[u8], radix: u32, most: usize) -> (u32, usize) {
    let digits = bytes.iter().take(most).map_while(|byte| char::from(*byte).to_digit(radix));
    digits.fold((0, 0), |(number, count), digit| (number * radix + digit, count + 1))
}

fn code_point(digits: Option<&[u8]>) -> Result<u32> {
    let wrong = || {
        let code = SqlState::parse("22025").unwrap_or(SqlState::SYNTAX_ERROR);
        Error::new(code, "invalid Unicode escape").with_hint("Unicode escapes must be \\uXXXX or \\UXXXXXXXX.")
    };
    let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit)).and_then(|digits| std::str::from_utf8(digits).ok());
    digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()).ok_or_else(wrong)
}

/// Appends a character, or returns the first half of a pair.
fn add_code_point(value: &mut Vec<u8>, high: Option<u32>, code: u32) -> Result<Option<u32>> {
    let code = match (high, code) {
        (None, 0xD800..=0xDBFF) => return Ok(Some(code)),
        (Some(high), 0xDC00..=0xDFFF) => 0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00),
        (Some(_), _) | (None, 0xDC00..=0xDFFF) => return Err(invalid_pair()),
        (None, code) => code,
    };
    match char::from_u32(code) {
        None | Some('\0') => Err(Error::new(SqlState::SYNTAX_ERROR, "invalid Unicode escape value")),
        Some(character) => {
            value.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            Ok(None)
        }
    }
}

fn invalid_pair() -> Error {
    Error::new(SqlState::SYNTAX_ERROR, "invalid Unicode surrogate pair")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As PostgreSQL 15 answers `SELECT E'...'`.
    #[test]
    fn escapes_are_read_as_postgresql_does() {
        let read = |sql: &str| escaped_string(sql).unwrap_or_else(|| panic!("{sql} is no string"));
        for (sql, value) in [
            (r"E'\ud83d\ude00'", "😀"),
            (r"E'\uD83D\U0000DE00'", "😀"),
            (r"e'a\U0001F600b'", "a😀b"),
            (r"E'\xc3\xa9\303\251'", "éé"),
            (r"E'\x41\x4g\xg\101\7'", "A\u{4}gxgA\u{7}"),
            (r"E'\\\'''\b\f\n\r\t\v\q\é'", "\\''\u{8}\u{c}\n\r\tvqé"),
            ("E''", ""),
        ] {
            assert_eq!(read(sql).unwrap(), (value.to_string(), sql.len()), "{sql}");
        }
        assert_eq!(read(r"E'\xc3\xa9', 'x'").unwrap(), ("é".to_string(), r"E'\xc3\xa9'".len()));
        for (sql, code, message) in [
            (r"E'\xff'", "22021", "invalid byte sequence for encoding \"UTF8\": 0xff"),
            (r"E'\000'", "22021", "invalid byte sequence for encoding \"UTF8\": 0x00"),
            (r"E'\x0'", "22021", "invalid byte sequence for encoding \"UTF8\": 0x00"),
            (r"E'\u0000'", "42601", "invalid Unicode escape value"),
            (r"E'\U00110000'", "42601", "invalid Unicode escape value"),
            (r"E'\ud83d'", "42601", "invalid Unicode surrogate pair"),
            (r"E'\ud83dx'", "42601", "invalid Unicode surrogate pair"),
            (r"E'\ud83d\u0041'", "42601", "invalid Unicode surrogate pair"),
            (r"E'\ud83d\n'", "42601", "invalid Unicode surrogate pair"),
            (r"E'\ude00'", "42601", "invalid Unicode surrogate pair"),
            (r"E'\u12'", "22025", "invalid Unicode escape"),
            (r"E'\u12g4'", "22025", "invalid Unicode escape"),
            (r"E'\U0001F6'", "22025", "invalid Unicode escape"),
        ] {
            let error = read(sql).unwrap_err();
            assert_eq!((error.code().as_str(), error.message()), (code, message), "{sql}");
        }
        for sql in [r"E'abc", r"E'abc\'", r"E'abc''", "'abc'", "E", r"E'\"] {
            assert!(escaped_string(sql).is_none(), "{sql}");
        }
    }
}
