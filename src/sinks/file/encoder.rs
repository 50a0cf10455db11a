//! Rows to the bytes of one file.

use arrow::datatypes::SchemaRef;
use weir_catalog::{Error, Result};

use crate::formats::compression::{Compression, Compressor};
use crate::formats::lines::Lines;
use crate::formats::parquet::ParquetEncoder;
use crate::formats::{Format, FormatOptions};
use crate::stream::Batch;

/// How much is given to a compression, or to Parquet's encoder, until it is asked again how large the file is by now, bytes.
const PART_BYTES: u64 = 16 << 10;

/// Rows for a file: of a text format as lines, which are the same whichever file they go to.
#[derive(Clone, Copy)]
pub enum Rows<'a> {
    Lines(&'a Lines),
    Batch(&'a Batch),
}

/// Encodes the rows of one file.
pub struct FileEncoder {
    kind: Kind,
    extension: String,
}

enum Kind {
    Text {
        /// `None` once the file is finished.
        compressor: Option<Box<Compressor>>,
        finished: Vec<u8>,
    },
    Parquet(Box<ParquetEncoder>),
}

impl FileEncoder {
    /// Begins a file of rows of `schema`, whose lines are such as `lines` has.
    pub fn new(format: &FormatOptions, schema: &SchemaRef, lines: Option<&Lines>) -> Result<FileEncoder> {
        let compression = format.compression.unwrap_or(Compression::None);
        let name = match &format.format {
            Format::Csv { .. } => "csv",
            Format::Json(_) => "json",
            Format::Parquet { row_kind } => {
                let encoder = ParquetEncoder::new(schema, row_kind.as_deref(), format.parquet_compression)?;
                return Ok(FileEncoder { kind: Kind::Parquet(Box::new(encoder)), extension: "parquet".to_string() });
            }
        };
        let mut compressor = Compressor::new(compression)?;
        if let Some(lines) = lines {
            compressor.write(&lines.header(schema))?;
        }
        let kind = Kind::Text { compressor: Some(Box::new(compressor)), finished: Vec::new() };
        Ok(FileEncoder { kind, extension: format!("{name}{}", compression.extension()) })
    }

    /// What the file's name ends with.
    pub fn extension(&self) -> &str {
        &self.extension
    }

    /// Adds rows from number `from` on, one at least, until the file, of which `written` bytes were taken before, has `most`. Returns which row is the next.
    pub fn encode(&mut self, rows: Rows<'_>, from: usize, written: u64, most: u64) -> Result<usize> {
        let mut next = from;
        match (&mut self.kind, rows) {
            (Kind::Text { compressor, .. }, Rows::Lines(lines)) => {
                let compressor = compressor.as_mut().ok_or_else(|| Error::internal("a file is written to after its end"))?;
                loop {
                    let left = most.saturating_sub(written + compressor.ready_bytes() as u64);
                    let (some, following) = lines.some(next, if compressor.is_plain() { left } else { PART_BYTES });
                    if some.is_empty() || (left == 0 && next > from) {
                        return Ok(next);
                    }
                    compressor.write(some)?;
                    next = following;
                }
            }
            (Kind::Parquet(encoder), Rows::Batch(batch)) => {
                let count = batch.num_rows();
                let row_bytes = (batch.rows.get_array_memory_size() / count.max(1)).max(1) as u64;
                loop {
                    let left = most.saturating_sub(written + encoder.expected_bytes() as u64);
                    if next >= count || (left == 0 && next > from) {
                        return Ok(next);
                    }
                    // Encoded they may take a bit more, where a dictionary is of no use.
                    let rows = usize::try_from((left / 2).max(PART_BYTES) / row_bytes).unwrap_or(count).clamp(1, count - next);
                    encoder.encode(&batch.slice(next, rows))?;
                    next += rows;
                }
            }
            _ => Err(Error::internal("rows for a file of another format")),
        }
    }

    /// How many bytes wait to be written.
    pub fn ready_bytes(&self) -> usize {
        match &self.kind {
            Kind::Text { compressor, finished } => compressor.as_deref().map_or(finished.len(), Compressor::ready_bytes),
            Kind::Parquet(encoder) => encoder.ready_bytes(),
        }
    }

    /// How many bytes will have to be written, as far as that can be told: of Parquet with what pages under way are expected to have.
    pub fn expected_bytes(&self) -> usize {
        match &self.kind {
            Kind::Text { .. } => self.ready_bytes(),
            Kind::Parquet(encoder) => encoder.expected_bytes(),
        }
    }

    /// About how many bytes it holds in memory.
    pub fn memory_bytes(&self) -> usize {
        match &self.kind {
            Kind::Text { compressor, finished } => compressor.as_deref().map_or(finished.capacity(), Compressor::memory_bytes),
            Kind::Parquet(encoder) => encoder.memory_bytes(),
        }
    }

    /// Makes everything ready to be written that can be, at the price of a file that is read less well.
    pub fn let_go(&mut self) -> Result<()> {
        match &mut self.kind {
            Kind::Text { .. } => Ok(()),
            Kind::Parquet(encoder) => encoder.end_row_group(),
        }
    }

    /// The bytes that wait to be written.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        match &mut self.kind {
            Kind::Text { compressor: Some(compressor), .. } => compressor.take_bytes(),
            Kind::Text { finished, .. } => std::mem::take(finished),
            Kind::Parquet(encoder) => encoder.take_bytes(),
        }
    }

    /// Ends the file; what is left waits to be written.
    pub fn finish(&mut self) -> Result<()> {
        match &mut self.kind {
            Kind::Text { compressor, finished } => {
                if let Some(compressor) = compressor.take() {
                    *finished = compressor.finish()?;
                }
                Ok(())
            }
            Kind::Parquet(encoder) => encoder.finish(),
        }
    }
}
