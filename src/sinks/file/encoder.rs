//! Rows to the bytes of one file.

use arrow::datatypes::SchemaRef;
use weir_catalog::{Error, Result};

use crate::formats::compression::{Compression, Compressor};
use crate::formats::csv::CsvEncoder;
use crate::formats::json::JsonEncoder;
use crate::formats::parquet::ParquetEncoder;
use crate::formats::{Format, FormatOptions};
use crate::stream::Batch;

/// Encodes the rows of one file.
pub struct FileEncoder {
    lines: Vec<u8>,
    kind: Kind,
    extension: String,
}

enum Kind {
    Csv { encoder: CsvEncoder, begun: bool, compressor: Option<Compressor> },
    Json { encoder: JsonEncoder, compressor: Option<Compressor> },
    Parquet(Box<ParquetEncoder>),
}

impl FileEncoder {
    /// Begins a file of rows of `schema`.
    pub fn new(format: &FormatOptions, schema: &SchemaRef) -> Result<FileEncoder> {
        let compression = format.compression.unwrap_or(Compression::None);
        let (kind, extension) = match &format.format {
            Format::Csv { options, row_kind } => {
                let encoder = CsvEncoder::new(options.clone(), row_kind.clone());
                (
                    Kind::Csv { encoder, begun: false, compressor: Some(Compressor::new(compression)?) },
                    format!("csv{}", compression.extension()),
                )
            }
            Format::Json(options) => {
                let encoder = JsonEncoder::new(options.form.clone());
                (Kind::Json { encoder, compressor: Some(Compressor::new(compression)?) }, format!("json{}", compression.extension()))
            }
            Format::Parquet { row_kind } => {
                let encoder = ParquetEncoder::new(schema, row_kind.as_deref(), format.parquet_compression)?;
                (Kind::Parquet(Box::new(encoder)), "parquet".to_string())
            }
        };
        Ok(FileEncoder { lines: Vec::new(), kind, extension })
    }

    /// What the file's name ends with.
    pub fn extension(&self) -> &str {
        &self.extension
    }

    /// Adds rows.
    pub fn encode(&mut self, batch: &Batch) -> Result<()> {
        let ended = || Error::internal("a file is written to after its end");
        match &mut self.kind {
            Kind::Csv { encoder, begun, compressor } => {
                if !std::mem::replace(begun, true) {
                    encoder.header(&batch.rows, &mut self.lines);
                }
                encoder.encode(batch, &mut self.lines)?;
                compressor.as_mut().ok_or_else(ended)?.write(&self.lines)?;
            }
            Kind::Json { encoder, compressor } => {
                encoder.encode(batch, &mut self.lines)?;
                compressor.as_mut().ok_or_else(ended)?.write(&self.lines)?;
            }
            Kind::Parquet(encoder) => encoder.encode(batch)?,
        }
        self.lines.clear();
        Ok(())
    }

    /// How many bytes wait to be written.
    pub fn ready_bytes(&self) -> usize {
        match &self.kind {
            Kind::Csv { compressor, .. } | Kind::Json { compressor, .. } => {
                self.lines.len() + compressor.as_ref().map_or(0, Compressor::ready_bytes)
            }
            Kind::Parquet(encoder) => encoder.ready_bytes(),
        }
    }

    /// About how many bytes it holds in memory.
    pub fn memory_bytes(&self) -> usize {
        let inside = match &self.kind {
            Kind::Csv { compressor, .. } | Kind::Json { compressor, .. } => compressor.as_ref().map_or(0, Compressor::memory_bytes),
            Kind::Parquet(encoder) => encoder.memory_bytes(),
        };
        self.lines.capacity() + inside
    }

    /// Makes everything ready to be written that can be, at the price of a file that is read less well.
    pub fn let_go(&mut self) -> Result<()> {
        self.lines.shrink_to_fit();
        match &mut self.kind {
            Kind::Csv { .. } | Kind::Json { .. } => Ok(()),
            Kind::Parquet(encoder) => encoder.end_row_group(),
        }
    }

    /// The bytes that wait to be written.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        match &mut self.kind {
            Kind::Csv { compressor, .. } | Kind::Json { compressor, .. } => match compressor {
                Some(compressor) => compressor.take_bytes(),
                None => std::mem::take(&mut self.lines),
            },
            Kind::Parquet(encoder) => encoder.take_bytes(),
        }
    }

    /// Ends the file; what is left waits to be written.
    pub fn finish(&mut self) -> Result<()> {
        match &mut self.kind {
            Kind::Csv { compressor, .. } | Kind::Json { compressor, .. } => {
                if let Some(compressor) = compressor.take() {
                    self.lines = compressor.finish()?;
                }
                Ok(())
            }
            Kind::Parquet(encoder) => encoder.finish(),
        }
    }
}
