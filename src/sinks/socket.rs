//! The `socket` connector as sink: lines to a TCP server, at most once. For trying things.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;

use weir_catalog::{Error, Result};

use crate::formats::lines::Lines;
use crate::operators::{Operator, Output};
use crate::seams::spawn::in_place;
use crate::sources::socket::SocketConfig;
use crate::stream::Batch;

/// Sends the rows that one subtask is given. A server that reads slowly slows the job.
#[derive(Debug)]
pub struct SocketSink {
    stream: TcpStream,
    lines: Lines,
}

impl SocketSink {
    /// Connects. Waits for the connection. `08001` where there is none.
    pub fn connect(options: &BTreeMap<String, String>) -> Result<SocketSink> {
        let config = SocketConfig::parse(options)?;
        let lines = Lines::new(&config.format).ok_or_else(|| Error::internal("a socket without a text format"))?;
        Ok(SocketSink { stream: config.connect()?, lines })
    }
}

impl Operator for SocketSink {
    fn process(&mut self, _input: usize, batch: Batch, _out: &mut dyn Output) -> Result<()> {
        self.lines.encode(&batch)?;
        in_place(|| self.stream.write_all(self.lines.bytes())).map_err(|e| Error::io("write to a socket", &e))
    }
}
