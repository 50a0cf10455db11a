//! A cursor over the bytes of one JSON text.

use weir_catalog::{Error, Result, SqlState};

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
            // Most strings are short.
            let near = rest.iter().take(16).position(|byte| matches!(byte, b'"' | b'\\'));
            let found = near.or_else(|| memchr::memchr2(b'"', b'\\', rest));
            match found {
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
        // The brackets that are open, as bits: 1 for an object. Deeper than that is refused.
        let (mut open, mut depth) = (0u128, 0u32);
        loop {
            match self.data.get(self.at) {
                None => return Err(invalid("An object or array has no end.")),
                Some(b'"') => {
                    self.string()?;
                    continue;
                }
                Some(bracket @ (b'{' | b'[')) => {
                    if depth == 128 {
                        return Err(invalid("Objects and arrays are nested more than 128 deep."));
                    }
                    open = open << 1 | u128::from(*bracket == b'{');
                    depth += 1;
                }
                Some(bracket @ (b'}' | b']')) => {
                    if (open & 1 == 1) != (*bracket == b'}') {
                        return Err(invalid(format!("At byte {} there is a bracket that closes nothing.", self.at)));
                    }
                    open >>= 1;
                    depth -= 1;
                }
                Some(_) => {}
            }
            self.at += 1;
            if depth == 0 {
                return Ok(());
            }
        }
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
                    return Err(invalid("\\u0000 can't be a part of a text."));
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
