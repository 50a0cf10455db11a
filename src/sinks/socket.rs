//! The `socket` connector as sink: lines to a TCP server, at most once. For trying things.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;

use weir_catalog::{Error, Result};

use crate::formats::Format;
use crate::formats::csv::CsvEncoder;
use crate::formats::json::JsonEncoder;
use crate::operators::{Operator, Output};
use crate::seams::spawn::in_place;
use crate::sources::socket::SocketConfig;
use crate::stream::Batch;

/// Sends the rows that one subtask is given. A server that reads slowly slows the job.
#[derive(Debug)]
pub struct SocketSink {
    stream: TcpStream,
    encoder: LineEncoder,
    lines: Vec<u8>,
}

#[derive(Debug)]
enum LineEncoder {
    Csv(CsvEncoder),
    Json(JsonEncoder),
}

impl SocketSink {
    /// Connects. Waits for the connection. `08001` where there is none.
    pub fn connect(options: &BTreeMap<String, String>) -> Result<SocketSink> {
        let config = SocketConfig::parse(options)?;
        let encoder = match &config.format.format {
            Format::Csv { options, row_kind } => LineEncoder::Csv(CsvEncoder::new(options.clone(), row_kind.clone())),
            Format::Json(options) => LineEncoder::Json(JsonEncoder::new(options.form.clone())),
            Format::Parquet { .. } => return Err(Error::internal("a socket without a text format")),
        };
        Ok(SocketSink { stream: config.connect()?, encoder, lines: Vec::new() })
    }
}

impl Operator for SocketSink {
    fn process(&mut self, _input: usize, batch: Batch, _out: &mut dyn Output) -> Result<()> {
        self.lines.clear();
        match &mut self.encoder {
            LineEncoder::Csv(encoder) => encoder.encode(&batch, &mut self.lines)?,
            LineEncoder::Json(encoder) => encoder.encode(&batch, &mut self.lines)?,
        }
        in_place(|| self.stream.write_all(&self.lines)).map_err(|e| Error::io("write to a socket", &e))
    }
}
