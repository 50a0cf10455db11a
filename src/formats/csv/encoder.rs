//! Columns to CSV lines.

use arrow::datatypes::Schema;
use weir_catalog::Result;

use super::CsvOptions;
use crate::formats::encode::EncodedColumn;
use crate::stream::Batch;

/// Writes rows as CSV lines.
#[derive(Debug)]
pub struct CsvEncoder {
    options: CsvOptions,
    /// The name of the field in front of the columns that holds the row kind.
    row_kind: Option<String>,
    columns: Vec<EncodedColumn>,
}

impl CsvEncoder {
    /// An encoder. Where `row_kind` is given, each line begins with the row's kind, under that name in the header.
    pub fn new(options: CsvOptions, row_kind: Option<String>) -> CsvEncoder {
        CsvEncoder { options, row_kind, columns: Vec::new() }
    }

    /// What stands in front of the first line of a file with the columns of `schema`.
    pub fn header(&self, schema: &Schema, out: &mut Vec<u8>) {
        if !self.options.header {
            return;
        }
        let names = self.row_kind.iter().map(String::as_str).chain(schema.fields().iter().map(|field| field.name().as_str()));
        for (at, name) in names.enumerate() {
            out.extend((at > 0).then_some(self.options.delimiter));
            push_text(out, name, &self.options);
        }
        out.push(b'\n');
    }

    /// The lines of `batch`. `ends` gets where in `out` each ends.
    pub fn encode(&mut self, batch: &Batch, out: &mut Vec<u8>, ends: &mut Vec<usize>) -> Result<()> {
        self.columns.resize_with(batch.rows.num_columns(), EncodedColumn::default);
        let options = &self.options;
        // A line of one NULL that is the empty text reads back as an empty line does in a table of one column: NULL.
        for (column, array) in self.columns.iter_mut().zip(batch.rows.columns()) {
            column.fill(array, &options.null, false, |out, text| push_text(out, text, options))?;
        }
        for row in 0..batch.num_rows() {
            if self.row_kind.is_some() {
                out.extend_from_slice(batch.kind(row).short().as_bytes());
                out.extend((!self.columns.is_empty()).then_some(options.delimiter));
            }
            for (at, column) in self.columns.iter().enumerate() {
                out.extend((at > 0).then_some(options.delimiter));
                out.extend_from_slice(column.get(row));
            }
            out.push(b'\n');
            ends.push(out.len());
        }
        Ok(())
    }
}

/// A text as a field: in quotes where it would not read back the same without.
fn push_text(out: &mut Vec<u8>, text: &str, options: &CsvOptions) {
    let bytes = text.as_bytes();
    let Some(quote) = options.quote else {
        out.extend_from_slice(bytes);
        return;
    };
    let is_special = |byte: &u8| *byte == options.delimiter || *byte == quote || *byte == b'\n' || *byte == b'\r';
    if bytes != options.null && !bytes.is_empty() && !bytes.iter().any(is_special) {
        out.extend_from_slice(bytes);
        return;
    }
    out.push(quote);
    for byte in bytes {
        if Some(*byte) == options.escape || *byte == quote {
            out.push(options.escape.unwrap_or(quote));
        }
        out.push(*byte);
    }
    out.push(quote);
}
