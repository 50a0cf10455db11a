//! Rows as lines of text, in whichever format that has lines.

use arrow::datatypes::Schema;
use weir_catalog::Result;

use super::csv::CsvEncoder;
use super::json::JsonEncoder;
use super::{Format, FormatOptions};
use crate::stream::Batch;

/// The lines of one batch.
#[derive(Debug)]
pub struct Lines {
    encoder: LineEncoder,
    bytes: Vec<u8>,
    /// Where each row's line ends.
    ends: Vec<usize>,
}

#[derive(Debug)]
enum LineEncoder {
    Csv(CsvEncoder),
    Json(JsonEncoder),
}

impl Lines {
    /// No lines, in this format; `None` for one that has none.
    pub fn new(format: &FormatOptions) -> Option<Lines> {
        let encoder = match &format.format {
            Format::Csv { options, row_kind } => LineEncoder::Csv(CsvEncoder::new(options.clone(), row_kind.clone())),
            Format::Json(options) => LineEncoder::Json(JsonEncoder::new(options.form.clone())),
            Format::Parquet { .. } => return None,
        };
        Some(Lines { encoder, bytes: Vec::new(), ends: Vec::new() })
    }

    /// What stands in front of a file's first line.
    pub fn header(&self, schema: &Schema) -> Vec<u8> {
        let mut header = Vec::new();
        if let LineEncoder::Csv(encoder) = &self.encoder {
            encoder.header(schema, &mut header);
        }
        header
    }

    /// Takes the lines of `batch` in place of what it held.
    pub fn encode(&mut self, batch: &Batch) -> Result<()> {
        self.bytes.clear();
        self.ends.clear();
        match &mut self.encoder {
            LineEncoder::Csv(encoder) => encoder.encode(batch, &mut self.bytes, &mut self.ends),
            LineEncoder::Json(encoder) => encoder.encode(batch, &mut self.bytes, &mut self.ends),
        }
    }

    /// All lines.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The lines from that of row `from` on that take at least `least` bytes together, or all that there are; and which row is the next.
    pub fn some(&self, from: usize, least: u64) -> (&[u8], usize) {
        let start = from.checked_sub(1).and_then(|row| self.ends.get(row)).copied().unwrap_or(0);
        let ends = self.ends.get(from..).unwrap_or_default();
        let lines = (ends.partition_point(|end| ((end - start) as u64) < least) + 1).min(ends.len());
        let end = lines.checked_sub(1).map_or(start, |last| ends[last]);
        (&self.bytes[start..end], from + lines)
    }

    /// What it holds in memory, bytes.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<usize>()
    }

    /// Holds nothing any more.
    pub fn let_go(&mut self) {
        (self.bytes, self.ends) = (Vec::new(), Vec::new());
    }
}
