//! A cursor over the bytes of one JSON text.

use weir_catalog::{Error, Result, SqlState};

use super::marks::{BLOCK, marks, string_mark};

/// A value as it stands in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    Null,
    /// `true` or `false`.
    Boolean(&'a [u8]),
    Number(&'a [u8]),
    /// What stands between the quotes; with escapes where the flag says so.
    String(&'a [u8], bool),
    /// An object or an array, whole.
    Nested(&'a [u8]),
}

/// Reads one JSON text from its front.
#[derive(Clone, Copy, Debug)]
pub struct Scanner<'a> {
    data: &'a [u8],
    pub at: usize,
}

/// `22032`: what is no JSON.
pub fn invalid(detail: impl Into<String>) -> Error {
    let code = SqlState::parse("22032").unwrap_or(SqlState::DATA_EXCEPTION);
    Error::new(code, "invalid JSON").with_detail(detail)
}

impl<'a> Scanner<'a> {
    /// At the front of `data`.
    pub fn new(data: &'a [u8]) -> Scanner<'a> {
        Scanner { data, at: 0 }
    }

    /// The next byte that is no white space, which stays where it is.
    #[inline]
    pub fn peek(&mut self) -> Option<u8> {
        while let Some(byte) = self.data.get(self.at) {
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return Some(*byte);
            }
            self.at += 1;
        }
        None
    }

    /// Takes `byte`, behind white space.
    #[inline]
    pub fn expect(&mut self, byte: u8) -> Result<()> {
        match self.peek() {
            Some(found) if found == byte => {
                self.at += 1;
                Ok(())
            }
            found => Err(self.unexpected(found, &format!("\"{}\"", char::from(byte)))),
        }
    }

    /// Takes `text` if it stands here, at once.
    #[inline]
    pub fn accept(&mut self, text: &[u8]) -> bool {
        let stands = self.data[self.at..].starts_with(text);
        self.at += if stands { text.len() } else { 0 };
        stands
    }

    fn unexpected(&self, found: Option<u8>, wanted: &str) -> Error {
        match found {
            None => invalid(format!("It ends where {wanted} should stand.")),
            Some(byte) => invalid(format!("At byte {} there is \"{}\" instead of {wanted}.", self.at, byte.escape_ascii())),
        }
    }

    /// The end: nothing but white space may follow.
    pub fn finish(&mut self) -> Result<()> {
        match self.peek() {
            None => Ok(()),
            found => Err(self.unexpected(found, "the end")),
        }
    }

    /// Takes a string; the flag says whether there are escapes in it.
    #[inline]
    pub fn string(&mut self) -> Result<(&'a [u8], bool)> {
        self.expect(b'"')?;
        let start = self.at;
        let mut escapes = false;
        loop {
            let rest = &self.data[self.at..];
            match string_mark(rest) {
                None => {
                    self.at = self.data.len();
                    return Err(invalid("A string has no end."));
                }
                Some(offset) if rest[offset] == b'"' => {
                    let text = &self.data[start..self.at + offset];
                    self.at += offset + 1;
                    return Ok((text, escapes));
                }
                Some(offset) => {
                    escapes = true;
                    self.at = (self.at + offset + 2).min(self.data.len());
                }
            }
        }
    }

    /// Takes a value.
    #[inline]
    pub fn value(&mut self) -> Result<Value<'a>> {
        match self.peek() {
            Some(b'"') => self.string().map(|(text, escapes)| Value::String(text, escapes)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b'{' | b'[') => {
                let start = self.at;
                self.skip_nested()?;
                Ok(Value::Nested(&self.data[start..self.at]))
            }
            Some(b't') if self.accept(b"true") => Ok(Value::Boolean(b"true")),
            Some(b'f') if self.accept(b"false") => Ok(Value::Boolean(b"false")),
            Some(b'n') if self.accept(b"null") => Ok(Value::Null),
            found => Err(self.unexpected(found, "a value")),
        }
    }

    #[inline]
    fn number(&mut self) -> Result<Value<'a>> {
        let start = self.at;
        self.at += 1;
        let mut is_integer = true;
        while let Some(byte) = self.data.get(self.at) {
            match byte {
                b'0'..=b'9' => {}
                b'.' | b'e' | b'E' | b'+' | b'-' => is_integer = false,
                _ => break,
            }
            self.at += 1;
        }
        let text = &self.data[start..self.at];
        let digits = text.strip_prefix(b"-").unwrap_or(text);
        let fits = match digits {
            [] => false,
            [b'0', next, ..] if next.is_ascii_digit() => false,
            _ if is_integer => digits[0].is_ascii_digit(),
            _ => is_number(digits),
        };
        if fits { Ok(Value::Number(text)) } else { Err(invalid(format!("\"{}\" is no number.", text.escape_ascii()))) }
    }

    /// Steps over an object or array. Brackets and strings are checked, what stands between them is not.
    fn skip_nested(&mut self) -> Result<()> {
        let mut open = Brackets::default();
        loop {
            let rest = &self.data[self.at..];
            let mut last = [b' '; BLOCK];
            let block = match rest.first_chunk() {
                Some(block) => block,
                None => {
                    last[..rest.len()].copy_from_slice(rest);
                    &last
                }
            };
            let marks = marks(block);
            // Up to a backslash: what that makes of the bytes behind it, the string itself has to tell.
            let escape = (marks.backslashes != 0).then(|| marks.backslashes.trailing_zeros() as usize);
            let known = escape.map_or(u64::MAX, |escape| (1 << escape) - 1);
            let inside = marks.inside_strings() & known;
            let mut brackets = marks.brackets & !inside & known;
            while brackets != 0 {
                let at = brackets.trailing_zeros() as usize;
                brackets &= brackets - 1;
                if open.step(block[at], self.at + at)? {
                    self.at += at + 1;
                    return Ok(());
                }
            }
            let end = escape.unwrap_or(BLOCK.min(rest.len()));
            if end > 0 && inside >> (end - 1) & 1 == 1 {
                // A string goes on behind what is known: from its quote on.
                let quotes = marks.quotes & known;
                self.at += 63 - quotes.leading_zeros() as usize;
                self.string()?;
            } else if escape.is_none() && rest.len() <= BLOCK {
                return Err(invalid("An object or array has no end."));
            } else {
                self.at += escape.map_or(BLOCK, |escape| escape + 1);
            }
        }
    }
}

/// The brackets that are open.
#[derive(Debug, Default)]
struct Brackets {
    /// As bits, the innermost lowest: 1 for an object. Deeper than that is refused.
    kinds: u128,
    depth: u32,
}

impl Brackets {
    /// Takes the bracket at byte `at`; true where it closes the outermost one.
    #[inline]
    fn step(&mut self, bracket: u8, at: usize) -> Result<bool> {
        if matches!(bracket, b'{' | b'[') {
            if self.depth == u128::BITS {
                return Err(invalid("Objects and arrays are nested more than 128 deep."));
            }
            self.kinds = self.kinds << 1 | u128::from(bracket == b'{');
            self.depth += 1;
            return Ok(false);
        }
        if self.depth == 0 || (self.kinds & 1 == 1) != (bracket == b'}') {
            return Err(invalid(format!("At byte {at} there is a bracket that closes nothing.")));
        }
        self.kinds >>= 1;
        self.depth -= 1;
        Ok(self.depth == 0)
    }
}

/// Whether unsigned `text` is a number as JSON has it.
fn is_number(text: &[u8]) -> bool {
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let whole = digits(text);
    let mut rest = &text[whole..];
    if whole == 0 {
        return false;
    }
    if let Some(fraction) = rest.strip_prefix(b".") {
        let count = digits(fraction);
        if count == 0 {
            return false;
        }
        rest = &fraction[count..];
    }
    if let Some(exponent) = rest.strip_prefix(b"e").or_else(|| rest.strip_prefix(b"E")) {
        let exponent = exponent.strip_prefix(b"-").or_else(|| exponent.strip_prefix(b"+")).unwrap_or(exponent);
        let count = digits(exponent);
        if count == 0 {
            return false;
        }
        rest = &exponent[count..];
    }
    rest.is_empty()
}

/// Writes the text that a string with escapes stands for.
pub fn unescape(string: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let hex = |at: usize| -> Result<u32> {
        let digits = string.get(at..at + 4).and_then(|digits| std::str::from_utf8(digits).ok());
        digits
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .and_then(|digits| u32::from_str_radix(digits, 16).ok())
            .ok_or_else(|| invalid("A \\u has not four hexadecimal digits."))
    };
    let mut at = 0;
    while at < string.len() {
        let plain = memchr::memchr(b'\\', &string[at..]).unwrap_or(string.len() - at);
        out.extend_from_slice(&string[at..at + plain]);
        at += plain;
        if at == string.len() {
            break;
        }
        let short = match string.get(at + 1) {
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'r') => b'\r',
            Some(b'b') => 0x08,
            Some(b'f') => 0x0c,
            Some(byte @ (b'"' | b'\\' | b'/')) => *byte,
            Some(b'u') => {
                let mut code = hex(at + 2)?;
                at += 6;
                if (0xD800..0xDC00).contains(&code) && string.get(at..at + 2) == Some(b"\\u") {
                    let low = hex(at + 2)?;
                    if (0xDC00..0xE000).contains(&low) {
                        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
                        at += 6;
                    }
                }
                let character = char::from_u32(code).ok_or_else(|| invalid("Half of a surrogate pair stands alone."))?;
                if character == '\0' {
                    let code = SqlState::parse("22P05").unwrap_or(SqlState::DATA_EXCEPTION);
                    return Err(Error::new(code, "unsupported Unicode escape sequence").with_detail("\\u0000 cannot be converted to text."));
                }
                out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
            _ => return Err(invalid("A string has an unknown escape.")),
        };
        out.push(short);
        at += 2;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Where the object or array that `text` begins with ends, byte by byte; `None` where it has no end.
    fn end_of_nested(text: &[u8]) -> Option<usize> {
        let (mut open, mut in_string, mut at) = (Vec::new(), false, 0);
        while at < text.len() {
            match text[at] {
                b'\\' if in_string => at += 1,
                b'"' => in_string = !in_string,
                _ if in_string => {}
                bracket @ (b'{' | b'[') => open.push(bracket),
                bracket @ (b'}' | b']') => {
                    if open.pop()? != (if bracket == b'}' { b'{' } else { b'[' }) {
                        return None;
                    }
                    if open.is_empty() {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
            at += 1;
        }
        None
    }

    /// Pieces of JSON, of which some end in the midst of things.
    fn pieces() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            4 => Just("{".to_string()),
            4 => Just("}".to_string()),
            2 => Just("[".to_string()),
            2 => Just("]".to_string()),
            3 => "\"[a-z{}\\[\\]:, ]{0,80}\"",
            3 => "\"([a-z}]|\\\\\\\\|\\\\\"){0,20}\"",
            1 => Just("\"".to_string()),
            1 => Just("\\".to_string()),
            3 => "[a-z0-9:, ]{0,70}",
        ];
        prop::collection::vec(piece, 0..40).prop_map(|pieces| format!("{{{}", pieces.concat()))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn objects_are_stepped_over_as_byte_by_byte(text in pieces(), close in any::<bool>()) {
            let text = if close { text + &"}".repeat(50) } else { text };
            let mut scanner = Scanner::new(text.as_bytes());
            let found = scanner.value().map(|_| scanner.at);
            prop_assert_eq!(found.ok(), end_of_nested(text.as_bytes()), "{}", text);
        }
    }

    #[test]
    fn nesting_has_a_limit() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(Scanner::new(nested(128).as_bytes()).value().is_ok());
        assert!(Scanner::new(nested(129).as_bytes()).value().is_err());
    }
}
