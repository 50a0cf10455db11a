//! Which rows go into which folder: `column=value/column=value`, as Hive and its successors name them.

use arrow::array::{Array, UInt32Array};
use arrow::datatypes::SchemaRef;
use weir_catalog::{Error, Result, SqlState};
use xxhash_rust::xxh3::xxh3_64;

use crate::formats::encode::EncodedColumn;
use crate::runtime::exchange::take_batch;
use crate::seams::hash::HashMap;
use crate::stream::Batch;

/// The folder of rows whose value is NULL.
const NULL_FOLDER: &str = "__HIVE_DEFAULT_PARTITION__";

/// The longest name of a folder, bytes, on the file systems that there are.
const NAME_BYTES_MAX: usize = 255;

/// Splits batches by the values of some columns.
#[derive(Debug)]
pub struct Partitioner {
    columns: Vec<usize>,
    names: Vec<String>,
    encoded: Vec<EncodedColumn>,
}

impl Partitioner {
    /// Splits by the columns `names` of `schema`.
    pub fn new(names: &[String], schema: &SchemaRef) -> Result<Partitioner> {
        let columns = names
            .iter()
            .map(|name| {
                schema
                    .index_of(name)
                    .map_err(|_| Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{name}\" of \"partition_by\" does not exist")))
            })
            .collect::<Result<_>>()?;
        Ok(Partitioner { columns, names: names.to_vec(), encoded: names.iter().map(|_| EncodedColumn::default()).collect() })
    }

    /// The rows of `batch` by folder.
    pub fn split(&mut self, batch: Batch) -> Result<Vec<(String, Batch)>> {
        if self.columns.is_empty() {
            return Ok(vec![(String::new(), batch)]);
        }
        for (encoded, column) in self.encoded.iter_mut().zip(&self.columns) {
            encoded.fill(batch.rows.column(*column), b"", false, |out, text| out.extend_from_slice(text.as_bytes()))?;
        }
        // Rows by their values, as a length and the bytes of each: most batches have few different ones.
        let mut parts: Vec<(usize, Vec<u32>)> = Vec::new();
        let mut known: HashMap<Vec<u8>, usize> = HashMap::default();
        let mut key = Vec::new();
        for row in 0..batch.num_rows() {
            key.clear();
            for (encoded, column) in self.encoded.iter().zip(&self.columns) {
                let value = encoded.get(row);
                let length = if batch.rows.column(*column).is_null(row) { u32::MAX } else { value.len() as u32 };
                key.extend_from_slice(&length.to_le_bytes());
                key.extend_from_slice(value);
            }
            match known.get(&key) {
                Some(part) => parts[*part].1.push(row as u32),
                None => {
                    known.insert(key.clone(), parts.len());
                    parts.push((row, vec![row as u32]));
                }
            }
        }
        parts
            .into_iter()
            .map(|(first, rows)| {
                let rows = if rows.len() == batch.num_rows() { batch.clone() } else { take_batch(&batch, &UInt32Array::from(rows))? };
                Ok((self.folder(&batch, first), rows))
            })
            .collect()
    }

    fn folder(&self, batch: &Batch, row: usize) -> String {
        let mut folder = String::new();
        for ((name, column), encoded) in self.names.iter().zip(&self.columns).zip(&self.encoded) {
            if !folder.is_empty() {
                folder.push('/');
            }
            let begin = folder.len();
            push_escaped(&mut folder, name.as_bytes());
            folder.push('=');
            if batch.rows.column(*column).is_null(row) {
                folder.push_str(NULL_FOLDER);
            } else {
                push_escaped(&mut folder, encoded.get(row));
            }
            shorten(&mut folder, begin);
        }
        folder
    }
}

/// Text with `%XX` for each byte that means something in a path or can't be a part of one.
fn push_escaped(out: &mut String, text: &[u8]) {
    for byte in text {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'+' | b'.' | b' ' => out.push(char::from(*byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
}

/// Makes what stands behind `begin` short enough for a name, and different for different texts: its end becomes a hash of it behind a `~`, which no other
/// name has.
fn shorten(folder: &mut String, begin: usize) {
    if folder.len() - begin <= NAME_BYTES_MAX {
        return;
    }
    let hash = format!("~{:016x}", xxh3_64(&folder.as_bytes()[begin..]));
    let mut end = begin + NAME_BYTES_MAX - hash.len();
    // Not within a `%XX`.
    while folder[begin..end].bytes().rev().take(2).any(|byte| byte == b'%') {
        end -= 1;
    }
    folder.truncate(end);
    folder.push_str(&hash);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int32Array, RecordBatch, StringArray};

    use super::*;

    #[test]
    fn rows_go_by_value_and_names_are_escaped() {
        let columns: [(&str, ArrayRef); 2] = [
            ("day", Arc::new(StringArray::from(vec![Some("a/b"), None, Some("a/b"), Some("")]))),
            ("n", Arc::new(Int32Array::from(vec![1, 1, 1, 2]))),
        ];
        let batch = Batch::insert(RecordBatch::try_from_iter(columns).unwrap());
        let schema = batch.rows.schema();
        let mut partitioner = Partitioner::new(&["day".to_string(), "n".to_string()], &schema).unwrap();
        let parts: Vec<(String, usize)> =
            partitioner.split(batch).unwrap().into_iter().map(|(folder, rows)| (folder, rows.num_rows())).collect();
        let expected = [("day=a%2Fb/n=1", 2), ("day=__HIVE_DEFAULT_PARTITION__/n=1", 1), ("day=/n=2", 1)];
        assert_eq!(parts, expected.map(|(folder, rows)| (folder.to_string(), rows)));
    }

    #[test]
    fn long_values_have_short_names_of_their_own() {
        let values: Vec<String> = (0..6).map(|more| format!("{}{}", "é".repeat(41 + more), "x".repeat(more * 7 % 5))).collect();
        let longer = [values[5].clone() + "a", values[5].clone() + "b", "y".repeat(253), "y".repeat(254)];
        let values: Vec<&str> = values.iter().chain(&longer).map(String::as_str).collect();
        let columns: [(&str, ArrayRef); 1] = [("g", Arc::new(StringArray::from(values.clone())))];
        let batch = Batch::insert(RecordBatch::try_from_iter(columns).unwrap());
        let schema = batch.rows.schema();
        let parts = Partitioner::new(&["g".to_string()], &schema).unwrap().split(batch).unwrap();
        let folders: std::collections::BTreeSet<&str> = parts.iter().map(|(folder, _)| folder.as_str()).collect();
        assert_eq!(folders.len(), values.len());
        for folder in &folders {
            assert!(folder.starts_with("g=") && folder.len() <= 255, "{folder}");
            // No escape is cut.
            let escapes = folder.split('%').skip(1);
            assert!(escapes.clone().all(|rest| rest.len() >= 2 && rest.as_bytes()[..2].iter().all(u8::is_ascii_hexdigit)), "{folder}");
        }
        assert!(folders.contains(format!("g={}", "y".repeat(253)).as_str()), "{folders:?}");
        assert_eq!(folders.iter().filter(|folder| folder.contains('~')).count(), values.len() - 2);
    }
}
