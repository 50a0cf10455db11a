//! What a client sends, before anything reads it: whole messages, laid out as the protocol says, their text valid UTF-8.
//!
//! The decoder behind this one trusts lengths and counts, and replaces bytes that are no text by others. So nothing gets to it that has not been looked at
//! here. Layouts: chapter 55.7 of PostgreSQL's manual.

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use weir_catalog::{Error, Result, SqlState};
use weir_sql::functions::text;

/// The longest message of a kind that carries statements or values, bytes.
const MOST_LONG: usize = 0x3fff_fffe;
/// The longest message of the other kinds, and of those before a session begins, bytes.
const MOST_SHORT: usize = 10_000;
/// Bytes that are read at a time, at least.
const READ_BYTES: usize = 8 << 10;

/// Kinds of messages, by their first byte.
pub(super) const BIND: u8 = b'B';
pub(super) const CLOSE: u8 = b'C';
pub(super) const COPY_DATA: u8 = b'd';
pub(super) const COPY_DONE: u8 = b'c';
pub(super) const COPY_FAIL: u8 = b'f';
pub(super) const DESCRIBE: u8 = b'D';
pub(super) const EXECUTE: u8 = b'E';
pub(super) const FLUSH: u8 = b'H';
pub(super) const PARSE: u8 = b'P';
pub(super) const QUERY: u8 = b'Q';
pub(super) const SYNC: u8 = b'S';
pub(super) const TERMINATE: u8 = b'X';

/// `08P01`.
pub(super) fn violation(message: impl Into<String>) -> Error {
    Error::new(SqlState::parse("08P01").unwrap_or(SqlState::SYNTAX_ERROR), message)
}

/// Messages as they come in.
pub(super) struct Incoming<R> {
    reader: R,
    buffer: BytesMut,
}

/// Why there is no message.
#[derive(Debug)]
pub(super) enum Ended {
    /// The client has gone, or can't be read from any more.
    Gone,
    /// Where its next message begins is not known.
    Violated(Error),
}

impl<R: AsyncRead + Unpin> Incoming<R> {
    pub fn new(reader: R) -> Incoming<R> {
        Incoming { reader, buffer: BytesMut::with_capacity(READ_BYTES) }
    }

    /// Reads until there are `count` bytes.
    async fn fill(&mut self, count: usize) -> std::result::Result<(), Ended> {
        while self.buffer.len() < count {
            // As it comes: a length that was never meant takes no memory.
            self.buffer.reserve(READ_BYTES);
            match self.reader.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return Err(Ended::Gone),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// Reads what still comes, and forgets it.
    pub async fn drain(&mut self) {
        loop {
            self.buffer.clear();
            if self.fill(1).await.is_err() {
                return;
            }
        }
    }

    /// The length that stands at `at`, itself included.
    fn length(&self, at: usize) -> Option<usize> {
        let bytes = self.buffer.get(at..at + 4)?;
        usize::try_from(i32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).ok()
    }

    /// A message from before a session begins, its length included: such have no kind.
    pub async fn startup(&mut self) -> std::result::Result<BytesMut, Ended> {
        self.fill(4).await?;
        match self.length(0) {
            Some(length) if (8..=MOST_SHORT).contains(&length) => {
                self.fill(length).await?;
                Ok(self.buffer.split_to(length))
            }
            _ => Err(Ended::Violated(violation("invalid length of startup packet"))),
        }
    }

    /// The next message, kind and length included.
    pub async fn message(&mut self) -> std::result::Result<BytesMut, Ended> {
        self.fill(1).await?;
        let kind = self.buffer[0];
        let most = match kind {
            QUERY | PARSE | BIND | COPY_DATA => MOST_LONG,
            CLOSE | COPY_DONE | COPY_FAIL | DESCRIBE | EXECUTE | FLUSH | SYNC | TERMINATE => MOST_SHORT,
            other => return Err(Ended::Violated(violation(format!("invalid frontend message type {other}")))),
        };
        self.fill(5).await?;
        match self.length(1) {
            Some(length) if (4..=most).contains(&length) => {
                self.fill(1 + length).await?;
                Ok(self.buffer.split_to(1 + length))
            }
            _ => Err(Ended::Violated(violation("invalid message length"))),
        }
    }

    /// The kind of the next message that is no Close; `None` where none comes that could be read. No client waits for an answer before it has sent one: only a
    /// Flush or a Sync asks for it.
    pub async fn next_kind(&mut self) -> Option<u8> {
        let mut at = 0;
        loop {
            self.fill(at + 1).await.ok()?;
            let kind = self.buffer[at];
            if kind != CLOSE {
                return Some(kind);
            }
            self.fill(at + 5).await.ok()?;
            at += 1 + self.length(at + 1).filter(|length| (4..=MOST_SHORT).contains(length))?;
        }
    }
}

/// Errors where a message, kind and length included, is not laid out as its kind is (`08P01`), or has text that is none (`22021`).
pub(super) fn check(message: &[u8]) -> Result<()> {
    let mut body = Body(message.get(5..).unwrap_or_default());
    match message.first() {
        Some(&QUERY) => body.text()?,
        Some(&PARSE) => {
            body.text()?;
            body.text()?;
            let types = body.count()?;
            body.skip(4 * types)?;
        }
        Some(&BIND) => {
            body.text()?;
            body.text()?;
            body.formats()?;
            for _ in 0..body.count()? {
                let length = body.number()?;
                // -1 is NULL.
                match usize::try_from(length) {
                    Ok(length) => body.skip(length)?,
                    Err(_) if length == -1 => {}
                    Err(_) => return Err(insufficient()),
                }
            }
            body.formats()?;
        }
        Some(&kind @ (DESCRIBE | CLOSE)) => {
            let subtype = body.byte()?;
            if !matches!(subtype, b'S' | b'P') {
                let name = if kind == CLOSE { "CLOSE" } else { "DESCRIBE" };
                return Err(violation(format!("invalid {name} message subtype {subtype}")));
            }
            body.text()?;
        }
        Some(&EXECUTE) => {
            body.text()?;
            body.number()?;
        }
        Some(&COPY_FAIL) => body.text()?,
        Some(&COPY_DATA) => return Ok(()),
        _ => {}
    }
    if body.0.is_empty() { Ok(()) } else { Err(violation("invalid message format")) }
}

/// Errors where the message that begins a session is not laid out as it has to be (`08P01`), has text that is none (`22021`), asks for another protocol
/// (`0A000`), or names no user (`28000`).
pub(super) fn check_startup(message: &[u8]) -> Result<()> {
    let mut body = Body(message.get(4..).unwrap_or_default());
    let version = body.number()?;
    if version >> 16 != 3 {
        let (major, minor) = ((version as u32) >> 16, version & 0xffff);
        return Err(Error::unsupported(format!("unsupported frontend protocol {major}.{minor}: server supports 3.0 to 3.2")));
    }
    let mut has_user = false;
    loop {
        let terminator = || violation("invalid startup packet layout: expected terminator as last byte");
        match body.0.first() {
            None => return Err(terminator()),
            Some(0) if body.0.len() == 1 => break,
            Some(0) => return Err(terminator()),
            Some(_) => {
                let name = body.bytes_to_zero().ok_or_else(terminator)?;
                let value = body.bytes_to_zero().ok_or_else(terminator)?;
                check_text(name)?;
                check_text(value)?;
                has_user |= name == b"user" && !value.is_empty();
            }
        }
    }
    if has_user {
        return Ok(());
    }
    let code = SqlState::parse("28000").unwrap_or(SqlState::INVALID_PARAMETER_VALUE);
    Err(Error::new(code, "no PostgreSQL user name specified in startup packet"))
}

fn insufficient() -> Error {
    violation("insufficient data left in message")
}

/// What is left of a message.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn skip(&mut self, count: usize) -> Result<()> {
        self.0 = self.0.get(count..).ok_or_else(insufficient)?;
        Ok(())
    }

    fn byte(&mut self) -> Result<u8> {
        let byte = *self.0.first().ok_or_else(insufficient)?;
        self.0.advance(1);
        Ok(byte)
    }

    fn count(&mut self) -> Result<usize> {
        self.0.try_get_u16().map(usize::from).map_err(|_| insufficient())
    }

    fn number(&mut self) -> Result<i32> {
        self.0.try_get_i32().map_err(|_| insufficient())
    }

    /// The bytes up to the next zero, which ends them.
    fn bytes_to_zero(&mut self) -> Option<&'a [u8]> {
        let end = memchr::memchr(0, self.0)?;
        let (bytes, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Some(bytes)
    }

    fn text(&mut self) -> Result<()> {
        check_text(self.bytes_to_zero().ok_or_else(|| violation("invalid string in message"))?)
    }

    /// How values are sent: 0 is text, 1 is binary.
    fn formats(&mut self) -> Result<()> {
        for _ in 0..self.count()? {
            let format = self.0.try_get_u16().map_err(|_| insufficient())?;
            if format > 1 {
                return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("unsupported format code: {format}")));
            }
        }
        Ok(())
    }
}

fn check_text(bytes: &[u8]) -> Result<()> {
    text::from_bytes(bytes).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as i32 + 4).to_be_bytes();
        [&[kind][..], &length, body].concat()
    }

    fn code(result: Result<()>) -> String {
        result.map_or_else(|error| error.code().as_str().to_string(), |()| "00000".into())
    }

    #[test]
    fn every_message_that_is_cut_off_is_found() {
        let whole: [(u8, &[u8]); 8] = [
            (QUERY, b"SELECT 1\0"),
            (PARSE, b"s\0SELECT $1\0\0\x01\0\0\0\x17"),
            (BIND, b"p\0s\0\0\x01\0\x01\0\x02\0\0\0\x04\0\0\0\x07\xff\xff\xff\xff\0\x01\0\x01"),
            (DESCRIBE, b"Ss\0"),
            (CLOSE, b"Pp\0"),
            (EXECUTE, b"p\0\0\0\0\0"),
            (SYNC, b""),
            (FLUSH, b""),
        ];
        for (kind, body) in whole {
            assert_eq!(code(check(&message(kind, body))), "00000", "{}", kind as char);
            for end in 0..body.len() {
                assert_eq!(code(check(&message(kind, &body[..end]))), "08P01", "{} with {end} bytes", kind as char);
            }
            assert_eq!(code(check(&message(kind, &[body, b"\0"].concat()))), "08P01", "{} and a byte", kind as char);
        }
    }

    #[test]
    fn counts_and_lengths_that_lie_are_found() {
        for body in
            [&b"\0\0\xff\xff"[..], b"\0\0\0\0\xff\xff", b"\0\0\0\0\0\x01\x7f\xff\xff\xff\0\0", b"\0\0\0\0\0\x01\xff\xff\xff\xfe\0\0"]
        {
            assert_eq!(code(check(&message(BIND, body))), "08P01", "{body:?}");
        }
        assert_eq!(code(check(&message(BIND, b"\0\0\0\x01\0\x02\0\0\0\0"))), "22023");
        assert_eq!(code(check(&message(DESCRIBE, b"Xs\0"))), "08P01");
    }

    #[test]
    fn text_is_utf8() {
        assert_eq!(code(check(&message(QUERY, "SELECT 'Zoë'\0".as_bytes()))), "00000");
        for (bytes, shown) in [
            (&b"a\xff\xfe"[..], "0xff"),
            (b"\xed\xa0\x80", "0xed 0xa0 0x80"),
            (b"\xc3", "0xc3"),
            (b"\xe2\x82", "0xe2 0x82"),
            (b"\xf0\x9f\x98(", "0xf0 0x9f 0x98 0x28"),
            (b"a\0b", "0x00"),
        ] {
            let error = check_text(bytes).unwrap_err();
            assert_eq!(error.code().as_str(), "22021");
            assert_eq!(error.message(), format!("invalid byte sequence for encoding \"UTF8\": {shown}"));
        }
    }

    #[test]
    fn a_session_begins_with_a_user() {
        let startup = |body: &[u8]| [&(body.len() as i32 + 4).to_be_bytes()[..], body].concat();
        for (body, expected) in [
            (&b"\0\x03\0\0user\0ada\0\0"[..], "00000"),
            (b"\0\x03\0\0database\0weir\0\0", "28000"),
            (b"\0\x03\0\0user\0\0\0", "28000"),
            (b"\0\x03\0\0\0", "28000"),
            (b"\0\x03\0\0user\0ada\0", "08P01"),
            (b"\0\x03\0\0user\0ada", "08P01"),
            (b"\0\x03\0\0user\0ada\0\0x", "08P01"),
            (b"\0\x03\0\0", "08P01"),
            (b"\0\x03\0\0user\0\xff\0\0", "22021"),
            (b"\0\x02\0\0user\0ada\0\0", "0A000"),
        ] {
            assert_eq!(code(check_startup(&startup(body))), expected, "{body:?}");
        }
    }

    #[tokio::test]
    async fn what_follows_closes_is_seen_before_it_is_taken() {
        let sent = [message(EXECUTE, b"\0\0\0\0\0"), message(CLOSE, b"P\0"), message(CLOSE, b"Ss\0"), message(SYNC, b"")].concat();
        let mut incoming = Incoming::new(&sent[..]);
        assert_eq!(incoming.message().await.unwrap()[0], EXECUTE);
        assert_eq!(incoming.next_kind().await, Some(SYNC));
        assert_eq!(incoming.message().await.unwrap()[0], CLOSE);
        assert_eq!(incoming.message().await.unwrap()[0], CLOSE);
        assert_eq!(incoming.message().await.unwrap()[0], SYNC);
        assert_eq!(incoming.next_kind().await, None);
        assert!(matches!(incoming.message().await, Err(Ended::Gone)));
        for wrong in [&b"Q\0\0\0\x03"[..], b"Q\xff\xff\xff\xff", b"S\0\x01\0\0", b"?\0\0\0\x04"] {
            assert!(matches!(Incoming::new(wrong).message().await, Err(Ended::Violated(_))), "{wrong:?}");
        }
        for wrong in [&b"GET / HTTP/1.1\r\n"[..], b"\0\0\0\x07", b"\xff\xff\xff\xff"] {
            assert!(matches!(Incoming::new(wrong).startup().await, Err(Ended::Violated(_))), "{wrong:?}");
        }
    }
}
