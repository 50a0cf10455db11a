//! The `socket` connector as source: lines of a TCP server, at most once. For trying things.
//!
//! It keeps no place: what was sent while it was not connected, or before a failure, is gone.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use arrow::datatypes::Schema;
use weir_catalog::{ChangelogMode, Column, Error, Result, SqlState};

use super::{Source, SourceEvent, SplitState};
use crate::formats::options::{OptionReader, invalid};
use crate::formats::records::too_long;
use crate::formats::{Format, FormatOptions, RecordDecoder, RecordEnd};
use crate::operators::error::{shorten, told};

/// How long to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait between two looks for new lines.
const POLL_US: u64 = 10_000;
/// How many bytes are read at a time.
const READ_BYTES: usize = 64 << 10;
/// A line end, and the byte behind it that shows that it is one.
const LINE_END_BYTES: usize = 4;

/// The options of a `socket` table or sink.
///
/// | option | means |
/// | --- | --- |
/// | `hostname`, `port` | where the server is that weir connects to |
/// | `format` | `csv`, `json` or `debezium-json`, with the options of each |
/// | `bad_records` | `fail` (the default) or `skip` |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketConfig {
    pub hostname: String,
    pub port: u16,
    pub format: FormatOptions,
    skip_bad: bool,
}

impl SocketConfig {
    /// Reads the options. `22023` for one that is unknown, given twice or malformed.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<SocketConfig> {
        SocketConfig::read(OptionReader::new("socket", options)?)
    }

    /// As [`SocketConfig::parse`], of a sink that is no table: `22023` for options about reading too.
    pub fn parse_sink(options: &BTreeMap<String, String>) -> Result<SocketConfig> {
        SocketConfig::read(OptionReader::for_sink("socket", options)?)
    }

    fn read(mut reader: OptionReader<'_>) -> Result<SocketConfig> {
        let hostname = reader.require(&["hostname", "host"])?.value.trim().to_string();
        let port = reader.require(&["port"])?.number(1, u16::MAX)?;
        let format = FormatOptions::take(&mut reader)?;
        let skip_bad = match reader.take_for_reading(&["bad_records"])? {
            None => format.ignore_parse_errors,
            Some(given) => match given.value.trim().to_ascii_lowercase().as_str() {
                "fail" => false,
                "skip" => true,
                _ => return Err(given.malformed("fail or skip")),
            },
        };
        reader.finish()?;
        if matches!(format.format, Format::Parquet { .. }) {
            return Err(invalid("a socket has lines, and parquet has none"));
        }
        if format.compression.is_some() {
            return Err(invalid("the lines of a socket can't be compressed"));
        }
        if let Format::Csv { options, .. } = &format.format
            && options.header
        {
            return Err(invalid("the lines of a socket have no header"));
        }
        Ok(SocketConfig { hostname, port, format, skip_bad })
    }

    /// Checks that rows with these columns, which change as `changelog` says, can be written.
    pub fn check_sink(&self, schema: &Schema, changelog: ChangelogMode) -> Result<()> {
        self.format.check_schema(schema)?;
        if changelog != ChangelogMode::Append && self.format.changelog() == ChangelogMode::Append {
            return Err(Error::unsupported("the result is updated, and lines of plain rows can only be added to")
                .with_hint("Use format 'debezium-json', or name a field for the row kind: row_kind = '...'."));
        }
        Ok(())
    }

    /// A connection. Waits for it.
    pub fn connect(&self) -> Result<TcpStream> {
        let failed = |e: &std::io::Error| {
            let code = SqlState::parse("08001").unwrap_or(SqlState::IO_ERROR);
            Error::new(code, format!("could not connect to {}:{}: {e}", self.hostname, self.port))
        };
        let mut last = None;
        for address in (self.hostname.as_str(), self.port).to_socket_addrs().map_err(|e| failed(&e))? {
            match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                Ok(stream) => return Ok(stream),
                Err(e) => last = Some(e),
            }
        }
        Err(failed(&last.unwrap_or_else(|| std::io::Error::from(ErrorKind::NotFound))))
    }
}

/// Reads the lines; only the first subtask does.
pub struct SocketSource {
    config: SocketConfig,
    stream: Option<TcpStream>,
    decoder: Box<dyn RecordDecoder>,
    /// What was received and not read yet.
    received: Vec<u8>,
    longest_record: usize,
    /// In a record that is too long: what finds its end.
    too_long: Option<Box<dyn RecordEnd>>,
    skipped: u64,
}

impl SocketSource {
    /// The part of subtask `subtask`, which fills the columns `projection`. Waits for the connection. `08001` where there is none.
    pub fn new(
        config: &SocketConfig,
        columns: &[Column],
        projection: &[usize],
        subtask: usize,
        longest_record: usize,
    ) -> Result<SocketSource> {
        let mut decoder = config.format.decoder(columns, projection)?.ok_or_else(|| Error::internal("a text format has no decoder"))?;
        decoder.set_longest_record(longest_record);
        let stream = if subtask == 0 {
            let stream = config.connect()?;
            stream.set_nonblocking(true).map_err(|e| Error::io("set up a connection", &e))?;
            Some(stream)
        } else {
            None
        };
        Ok(SocketSource { config: config.clone(), stream, decoder, received: Vec::new(), longest_record, too_long: None, skipped: 0 })
    }
}

/// The error for a bad line that is not to be left out.
fn refused(reason: &Error, line: &[u8]) -> Error {
    /// No more is shown of it, and a character has at most four.
    const SHOWN: usize = 200;
    let line = String::from_utf8_lossy(&line[..line.len().min(4 * SHOWN + 4)]);
    Error::new(reason.code().clone(), told(reason.message())).with_detail(told(&format!("The line is {}", shorten(&line, SHOWN))))
}

impl Source for SocketSource {
    fn poll(&mut self, max_rows: usize, _now_us: i64) -> Result<SourceEvent> {
        let mut nothing_new = true;
        if let Some(stream) = &mut self.stream {
            let before = self.received.len();
            self.received.resize(before + READ_BYTES, 0);
            let read = stream.read(&mut self.received[before..]);
            self.received.truncate(before + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => self.stream = None,
                Ok(_) => nothing_new = false,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(e) => return Err(Error::io(format!("read from {}:{}", self.config.hostname, self.config.port), &e)),
            }
        }
        if let Some(mut end) = self.too_long.take() {
            let found = if self.received.is_empty() { None } else { end.find(&self.received) };
            self.received.drain(..found.unwrap_or(self.received.len()));
            self.received.shrink_to(READ_BYTES);
            if found.is_none() && self.stream.is_some() {
                self.too_long = Some(end);
                return Ok(SourceEvent::Wait(if nothing_new { POLL_US } else { 1 }));
            }
        }
        // The last line may lack its end once nothing follows.
        let whole = if self.stream.is_none() { self.received.len() } else { self.decoder.last_record_end(&self.received).unwrap_or(0) };
        if whole == 0 {
            if self.received.len() >= self.longest_record.saturating_add(LINE_END_BYTES) {
                if !self.config.skip_bad {
                    return Err(refused(&too_long(self.longest_record), &self.received));
                }
                self.skipped += 1;
                self.too_long = Some(self.decoder.record_end());
                return Ok(SourceEvent::Wait(1));
            }
            return Ok(match self.stream {
                None => SourceEvent::End,
                Some(_) => SourceEvent::Wait(if nothing_new { POLL_US } else { 1 }),
            });
        }
        let decoded = self.decoder.decode(&self.received[..whole], 0, max_rows)?;
        if let Some(bad) = decoded.bad.first().filter(|_| !self.config.skip_bad) {
            return Err(refused(&bad.reason, &self.received[bad.start..bad.end]));
        }
        self.skipped += decoded.bad.len() as u64;
        self.received.drain(..decoded.next);
        Ok(SourceEvent::Batch(decoded.batch))
    }

    fn splits(&self) -> Result<Vec<SplitState>> {
        Ok(Vec::new())
    }

    /// It has no place that it could come to again.
    fn has_reached(&self, _target: &[SplitState]) -> Result<bool> {
        Ok(true)
    }

    fn bad_records(&self) -> u64 {
        self.skipped
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use weir_catalog::SqlType;

    use super::*;

    #[test]
    fn lines_become_rows_until_the_server_leaves() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let options = [("hostname", "127.0.0.1"), ("port", &port.to_string()), ("format", "csv"), ("bad_records", "skip")];
        let options = options.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect();
        let column = Column { name: "n".into(), ty: SqlType::Int, nullable: true, default: None };
        let config = SocketConfig::parse(&options).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"1\nx\n0000000003\n").unwrap();
            // Longer than is allowed, some of it by far.
            stream.write_all(b"00000000003\n").unwrap();
            for _ in 0..100 {
                stream.write_all(&[b'0'; 10_000]).unwrap();
            }
            stream.write_all(b"4\n2").unwrap();
        });
        let mut source = SocketSource::new(&config, std::slice::from_ref(&column), &[0], 0, 10).unwrap();
        let mut rows = 0;
        loop {
            match source.poll(100, 0).unwrap() {
                SourceEvent::Batch(batch) => rows += batch.num_rows(),
                SourceEvent::Wait(us) => std::thread::sleep(Duration::from_micros(us)),
                SourceEvent::End => break,
            }
        }
        server.join().unwrap();
        assert_eq!((rows, source.bad_records()), (3, 3));
        assert!(matches!(SocketSource::new(&config, &[column], &[0], 1, 10).unwrap().poll(1, 0).unwrap(), SourceEvent::End));
    }
}
