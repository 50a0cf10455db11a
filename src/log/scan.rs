//! Reading stored tables: their rows as of one commit, with a transaction's own writes over them.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BinaryArray, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use weir_catalog::{Error, ObjectId, Result, StoredTable};

use super::layout::{TableLayout, key_range, row_key, row_key_column};
use super::writes::TableWrites;
use crate::state::{EncodedRows, KeyCodec, StateSnapshot, VersionSnapshot};
use crate::stream::CommitSeq;

/// The name of the hidden column with row keys, after the table's own columns.
pub const ROW_KEY_COLUMN: &str = "__row_key";

/// Rows of one batch at most.
const BATCH_ROWS: usize = 8192;
/// A batch is closed when its encoded rows take more.
const BATCH_BYTES: usize = 4 << 20;

/// What a scan gives.
#[derive(Clone, Debug, Default)]
pub struct ScanOptions {
    /// Positions of the wanted columns; `None`: all.
    pub projection: Option<Vec<usize>>,
    /// Adds [`ROW_KEY_COLUMN`], Binary: what UPDATE and DELETE name rows by.
    pub row_key: bool,
    /// Leaves out stored rows whose first PRIMARY KEY columns do not have these values, an array of length 1 for each. A transaction's own rows are given
    /// whatever their key.
    pub key_prefix: Vec<ArrayRef>,
}

/// All stored tables as of one commit, with the writes of one transaction over it if it was made by one. Cheap to clone.
#[derive(Clone)]
pub struct TablesSnapshot {
    pub(super) rows: Arc<VersionSnapshot>,
    pub(super) writes: Arc<BTreeMap<ObjectId, Arc<TableWrites>>>,
}

impl std::fmt::Debug for TablesSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TablesSnapshot").field("seq", &self.seq()).finish_non_exhaustive()
    }
}

impl TablesSnapshot {
    /// What is committed of all tables, in the store's own form; without what the transaction has written.
    pub fn stored(&self) -> Arc<VersionSnapshot> {
        self.rows.clone()
    }

    /// The commit.
    pub fn seq(&self) -> CommitSeq {
        self.rows.version()
    }

    /// The rows of `table`, in the order of their keys, a transaction's own new rows at the end. A table that did not exist has none.
    pub fn scan(&self, table: &StoredTable, options: ScanOptions) -> Result<TableScan> {
        TableScan::new(self, table, options)
    }

    /// The rows whose PRIMARY KEY is among `keys` (an array for each key column, in the key's order; a key may come more than once), as a scan gives them.
    pub fn lookup(&self, table: &StoredTable, keys: &[ArrayRef], options: ScanOptions) -> Result<RecordBatch> {
        let scan = TableScan::new(self, table, options)?;
        let Some((_, codec)) = &scan.layout.key else {
            return Err(Error::internal(format!("table \"{}\" has no primary key", table.name)));
        };
        let mut encoded = EncodedRows::new();
        codec.encode(keys, &mut encoded)?;
        let (mut found, mut rows) = (EncodedRows::new(), EncodedRows::new());
        for key in encoded.distinct() {
            match scan.writes.as_deref().and_then(|writes| writes.get(key)) {
                Some(None) => {}
                Some(Some(row)) => {
                    found.push(key);
                    rows.push(row);
                }
                None => {
                    if let Some(row) = self.rows.get(&scan.layout.store_key(key))? {
                        found.push(key);
                        rows.push(&row);
                    }
                }
            }
        }
        scan.batch(&found, &rows)
    }

    /// The rows whose PRIMARY KEY is among `keys` (one array a key column, in the key's order), and for each which of `keys` it is.
    pub fn get(&self, table: &StoredTable, keys: &[ArrayRef]) -> Result<(RecordBatch, Vec<usize>)> {
        let layout = TableLayout::new(table)?;
        let Some((_, codec)) = &layout.key else {
            return Err(Error::internal(format!("table \"{}\" has no primary key", table.name)));
        };
        let mut encoded = EncodedRows::new();
        codec.encode(keys, &mut encoded)?;
        let writes = self.writes.get(&table.id);
        let mut rows = EncodedRows::new();
        let mut found = Vec::new();
        for (i, key) in encoded.iter().enumerate() {
            match writes.and_then(|writes| writes.get(key)) {
                Some(None) => {}
                Some(Some(row)) => {
                    rows.push(row);
                    found.push(i);
                }
                None => {
                    if let Some(row) = self.rows.get(&layout.store_key(key))? {
                        rows.push(&row);
                        found.push(i);
                    }
                }
            }
        }
        let columns = layout.decode_rows(rows.iter(), None)?;
        Ok((layout.batch(columns, rows.len())?, found))
    }
}

/// The rows of a table, batch by batch. Errors with `XX001` for rows that can't be read.
pub struct TableScan {
    layout: TableLayout,
    schema: SchemaRef,
    options: ScanOptions,
    rows: Arc<VersionSnapshot>,
    writes: Option<Arc<TableWrites>>,
    /// Where the store is read on; `None`: it has been read.
    from: Option<Vec<u8>>,
    to: Vec<u8>,
    /// Which of the transaction's own rows is next.
    next_own: usize,
}

impl TableScan {
    fn new(snapshot: &TablesSnapshot, table: &StoredTable, options: ScanOptions) -> Result<TableScan> {
        let layout = TableLayout::new(table)?;
        let mut range = key_range(table.id);
        if !options.key_prefix.is_empty() {
            let types: Vec<DataType> = options.key_prefix.iter().map(|values| values.data_type().clone()).collect();
            let mut encoded = EncodedRows::new();
            KeyCodec::new(&types)?.encode(&options.key_prefix, &mut encoded)?;
            // A key is its columns' encodings one after another, none of which begins another.
            range.start = layout.store_key(encoded.get(0));
            range.end = range.start.clone();
            // What follows all keys that begin so: no encoding of a column begins with FF.
            range.end.push(0xFF);
        }
        let mut fields: Vec<Arc<Field>> = match &options.projection {
            Some(projection) => projection.iter().map(|column| layout.schema.fields()[*column].clone()).collect(),
            None => layout.schema.fields().to_vec(),
        };
        if options.row_key {
            fields.push(Arc::new(Field::new(ROW_KEY_COLUMN, DataType::Binary, false)));
        }
        Ok(TableScan {
            layout,
            schema: Arc::new(Schema::new(fields)),
            options,
            rows: snapshot.rows.clone(),
            writes: snapshot.writes.get(&table.id).cloned(),
            from: Some(range.start),
            to: range.end,
            next_own: 0,
        })
    }

    /// The schema of the batches.
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// The next rows of the store that the transaction left alone.
    fn stored(&mut self) -> Result<Option<(EncodedRows, EncodedRows)>> {
        let Some(from) = self.from.take() else { return Ok(None) };
        let (mut keys, mut rows) = (EncodedRows::new(), EncodedRows::new());
        let mut last = Vec::new();
        let mut full = false;
        let writes = self.writes.as_deref();
        self.rows.scan(&from, &self.to, &mut |key, row| {
            if full {
                last.clear();
                last.extend_from_slice(key);
                return Ok(false);
            }
            let row_key = row_key(key);
            if writes.is_none_or(|writes| writes.get(row_key).is_none()) {
                keys.push(row_key);
                rows.push(row);
            }
            full = rows.len() >= BATCH_ROWS || rows.bytes.len() >= BATCH_BYTES;
            Ok(true)
        })?;
        if !last.is_empty() {
            self.from = Some(last);
        }
        Ok(Some((keys, rows)))
    }

    /// The transaction's next rows.
    fn own(&mut self) -> Option<(EncodedRows, EncodedRows)> {
        let writes = self.writes.as_deref()?;
        let (mut keys, mut rows) = (EncodedRows::new(), EncodedRows::new());
        while let Some(entry) = writes.entry(self.next_own) {
            if rows.len() >= BATCH_ROWS || rows.bytes.len() >= BATCH_BYTES {
                break;
            }
            self.next_own += 1;
            if let (key, Some(row)) = entry {
                keys.push(key);
                rows.push(row);
            }
        }
        (!rows.is_empty()).then_some((keys, rows))
    }

    fn batch(&self, keys: &EncodedRows, rows: &EncodedRows) -> Result<RecordBatch> {
        let projection = self.options.projection.as_deref();
        let mut columns =
            if projection.is_some_and(<[usize]>::is_empty) { Vec::new() } else { self.layout.decode_rows(rows.iter(), projection)? };
        if self.options.row_key {
            columns.push(row_key_column(keys));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .map_err(|e| Error::corrupted(format!("rows of a stored table do not have its columns: {e}")))
    }
}

impl Iterator for TableScan {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Result<RecordBatch>> {
        loop {
            match self.stored() {
                Ok(Some((_, rows))) if rows.is_empty() => {}
                Ok(Some((keys, rows))) => return Some(self.batch(&keys, &rows)),
                Ok(None) => break,
                Err(error) => return Some(Err(error)),
            }
        }
        let (keys, rows) = self.own()?;
        Some(self.batch(&keys, &rows))
    }
}

/// The row keys of a batch that was scanned with [`ScanOptions::row_key`].
pub(super) fn keys_of(keys: &ArrayRef) -> Result<&BinaryArray> {
    let keys = keys.as_any().downcast_ref::<BinaryArray>().ok_or_else(|| Error::internal("row keys are not of type Binary"))?;
    if keys.null_count() > 0 { Err(Error::internal("a row key is null")) } else { Ok(keys) }
}
