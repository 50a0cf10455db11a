//! Columns to JSON lines.

use weir_catalog::Result;

use super::JsonForm;
use crate::formats::encode::EncodedColumn;
use crate::stream::Batch;

/// Writes rows as JSON lines.
#[derive(Debug)]
pub struct JsonEncoder {
    form: JsonForm,
    columns: Vec<EncodedColumn>,
    /// What stands in front of each column's value: a comma but for the first, and the name.
    names: Vec<Vec<u8>>,
}

impl JsonEncoder {
    /// An encoder.
    pub fn new(form: JsonForm) -> JsonEncoder {
        JsonEncoder { form, columns: Vec::new(), names: Vec::new() }
    }

    /// The lines of `batch`. In Debezium's form a row that is added is a creation and one that is taken away a deletion, as Flink writes them. `ends` gets where
    /// in `out` each ends.
    pub fn encode(&mut self, batch: &Batch, out: &mut Vec<u8>, ends: &mut Vec<usize>) -> Result<()> {
        let fields = batch.rows.schema_ref().fields();
        if self.names.len() != fields.len() {
            self.names.clear();
            for (at, field) in fields.iter().enumerate() {
                let mut name = if at == 0 { Vec::new() } else { vec![b','] };
                push_string(&mut name, field.name());
                name.push(b':');
                self.names.push(name);
            }
        }
        self.columns.resize_with(fields.len(), EncodedColumn::default);
        for (column, array) in self.columns.iter_mut().zip(batch.rows.columns()) {
            column.fill(array, b"null", true, push_string)?;
        }
        for row in 0..batch.num_rows() {
            match &self.form {
                JsonForm::Rows { row_kind: None } => self.object(row, out),
                JsonForm::Rows { row_kind: Some(name) } => {
                    out.push(b'{');
                    push_string(out, name);
                    out.push(b':');
                    push_string(out, batch.kind(row).short());
                    out.extend((!self.columns.is_empty()).then_some(b','));
                    self.members(row, out);
                    out.push(b'}');
                }
                JsonForm::Debezium if batch.weight(row) > 0 => {
                    out.extend_from_slice(b"{\"before\":null,\"after\":");
                    self.object(row, out);
                    out.extend_from_slice(b",\"op\":\"c\"}");
                }
                JsonForm::Debezium => {
                    out.extend_from_slice(b"{\"before\":");
                    self.object(row, out);
                    out.extend_from_slice(b",\"after\":null,\"op\":\"d\"}");
                }
            }
            out.push(b'\n');
            ends.push(out.len());
        }
        Ok(())
    }

    fn object(&self, row: usize, out: &mut Vec<u8>) {
        out.push(b'{');
        self.members(row, out);
        out.push(b'}');
    }

    fn members(&self, row: usize, out: &mut Vec<u8>) {
        for (name, column) in self.names.iter().zip(&self.columns) {
            out.extend_from_slice(name);
            out.extend_from_slice(column.get(row));
        }
    }
}

/// A JSON string.
pub fn push_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&text.as_bytes()[plain..at]);
        plain = at + 1;
        let short = match byte {
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            b'"' | b'\\' => byte,
            _ => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', short]);
    }
    out.extend_from_slice(&text.as_bytes()[plain..]);
    out.push(b'"');
}
