//! The `print` connector: rows on the server's standard output, each with its kind, as Flink prints them: `+I[1, foo, NULL]`.
//!
//! At least once: rows are printed as they come, and come again after a failure.

use std::collections::BTreeMap;
use std::io::Write;

use weir_catalog::{Error, Result};

use crate::formats::encode::EncodedColumn;
use crate::formats::options::OptionReader;
use crate::operators::{Operator, Output};
use crate::seams::spawn::in_place;
use crate::stream::Batch;

/// Prints the rows that one subtask is given.
#[derive(Debug)]
pub struct PrintSink {
    identifier: String,
    /// What every line begins with.
    prefix: Vec<u8>,
    columns: Vec<EncodedColumn>,
    lines: Vec<u8>,
}

impl PrintSink {
    /// Reads the options: `print-identifier`, which every line begins with. `22023` for any other.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<PrintSink> {
        let mut reader = OptionReader::new("print", options)?;
        let identifier = reader.take(&["print-identifier"])?.map(|given| given.value.to_string()).unwrap_or_default();
        reader.finish()?;
        Ok(PrintSink { identifier, prefix: Vec::new(), columns: Vec::new(), lines: Vec::new() })
    }

    /// The part of subtask `subtask`: where there are several, lines begin with its number, counted from 1.
    pub fn for_subtask(&self, subtask: usize, parallelism: usize) -> PrintSink {
        let number = if parallelism > 1 { (subtask + 1).to_string() } else { String::new() };
        let prefix = match (self.identifier.is_empty(), number.is_empty()) {
            (true, true) => String::new(),
            (true, false) => format!("{number}> "),
            (false, true) => format!("{}> ", self.identifier),
            (false, false) => format!("{}:{number}> ", self.identifier),
        };
        PrintSink { identifier: self.identifier.clone(), prefix: prefix.into_bytes(), columns: Vec::new(), lines: Vec::new() }
    }

    /// Puts the lines of `batch` behind those that wait.
    fn add(&mut self, batch: &Batch) -> Result<()> {
        self.columns.resize_with(batch.rows.num_columns(), EncodedColumn::default);
        for (column, array) in self.columns.iter_mut().zip(batch.rows.columns()) {
            column.fill(array, b"NULL", false, |out, text| out.extend_from_slice(text.as_bytes()))?;
        }
        for row in 0..batch.num_rows() {
            self.lines.extend_from_slice(&self.prefix);
            self.lines.extend_from_slice(batch.kind(row).short().as_bytes());
            self.lines.push(b'[');
            for (at, column) in self.columns.iter().enumerate() {
                self.lines.extend_from_slice(if at == 0 { b"" } else { b", " });
                self.lines.extend_from_slice(column.get(row));
            }
            self.lines.extend_from_slice(b"]\n");
        }
        Ok(())
    }
}

impl Operator for PrintSink {
    fn process(&mut self, _input: usize, batch: Batch, _out: &mut dyn Output) -> Result<()> {
        self.add(&batch)?;
        // All lines at once: those of other subtasks don't come between.
        let lines = &self.lines;
        let printed = in_place(|| {
            let mut output = std::io::stdout().lock();
            output.write_all(lines).and_then(|()| output.flush())
        });
        self.lines.clear();
        printed.map_err(|e| Error::io("write to standard output", &e))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use weir_catalog::RowKind;

    use super::*;

    #[test]
    fn lines_have_the_subtask_the_kind_and_the_values() {
        let columns: [(&str, ArrayRef); 2] =
            [("n", Arc::new(Int64Array::from(vec![Some(1), None]))), ("t", Arc::new(StringArray::from(vec!["a, b", ""])))];
        let rows = RecordBatch::try_from_iter(columns).unwrap();
        let batch = Batch::with_kinds(rows, vec![RowKind::UpdateBefore as u8, RowKind::UpdateAfter as u8]);
        let print = PrintSink::parse(&BTreeMap::from([("print-identifier".to_string(), "out".to_string())])).unwrap();
        let mut sink = print.for_subtask(1, 2);
        sink.add(&batch).unwrap();
        assert_eq!(String::from_utf8(sink.lines).unwrap(), "out:2> -U[1, a, b]\nout:2> +U[NULL, ]\n");
    }
}
