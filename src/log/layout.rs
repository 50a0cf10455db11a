//! How the rows of a stored table stand in the store that all stored tables share.
//!
//! ```text
//! key   = key group 0 (2 bytes) | state tag 0 | table id (8 bytes, big-endian) | row key
//! value = the row, all columns (RowCodec)
//! ```
//!
//! The *row key* is the encoded PRIMARY KEY, or 8 bytes big-endian of the row id in a table without one.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, RecordBatch, RecordBatchOptions, UInt64Array};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use weir_catalog::object::schema_of;
use weir_catalog::{Error, ObjectId, Result, SqlState, StoredTable};
use weir_sql::functions::cast;

use crate::state::key_codec::append_state_prefix;
use crate::state::{EncodedRows, KeyCodec, RowCodec};

/// The schema number of a table that was never altered.
pub use crate::state::row_codec::FIRST_SCHEMA_NUMBER;

/// The tag of stored rows in their store.
const STATE_TAG: u8 = 0;
const PREFIX_BYTES: usize = 11;

/// The key and row format of one stored table.
#[derive(Clone, Debug)]
pub struct TableLayout {
    pub(super) id: ObjectId,
    name: String,
    pub(super) schema: SchemaRef,
    /// Positions of the key columns, and their codec; `None`: rows have ids.
    pub(super) key: Option<(Vec<usize>, KeyCodec)>,
    pub(super) row_codec: RowCodec,
}

/// The part of the store that holds the rows of table `id`: `from..to`.
pub(super) fn key_range(id: ObjectId) -> Range<Vec<u8>> {
    prefix(id)..prefix(id + 1)
}

/// The part of the store that holds the rows of table `id`, and how many bytes of each key in it are before the row key.
pub fn stored_range(id: ObjectId) -> (Range<Vec<u8>>, usize) {
    (key_range(id), PREFIX_BYTES)
}

fn prefix(id: ObjectId) -> Vec<u8> {
    let mut prefix = Vec::with_capacity(PREFIX_BYTES);
    append_state_prefix(&mut prefix, 0, STATE_TAG);
    prefix.extend_from_slice(&id.to_be_bytes());
    prefix
}

/// The row key within a key of the store.
pub(super) fn row_key(store_key: &[u8]) -> &[u8] {
    store_key.get(PREFIX_BYTES..).unwrap_or_default()
}

impl TableLayout {
    /// The layout of `table`'s rows. `0A000` for column types that can't be stored.
    pub fn new(table: &StoredTable) -> Result<TableLayout> {
        let schema = schema_of(&table.columns);
        let types: Vec<DataType> = schema.fields().iter().map(|field| field.data_type().clone()).collect();
        let key = match &table.primary_key {
            Some(columns) => {
                let types: Vec<DataType> = columns.iter().map(|column| types[*column].clone()).collect();
                Some((columns.clone(), KeyCodec::new(&types)?))
            }
            None => None,
        };
        Ok(TableLayout { id: table.id, name: table.name.clone(), schema, key, row_codec: RowCodec::new(&types)? })
    }

    /// The store's key for `row_key`.
    pub(super) fn store_key(&self, row_key: &[u8]) -> Vec<u8> {
        let mut key = prefix(self.id);
        key.extend_from_slice(row_key);
        key
    }

    /// The row keys of `rows`, from the PRIMARY KEY columns or from `row_ids`.
    pub(super) fn row_keys(&self, rows: &RecordBatch, row_ids: Option<&UInt64Array>) -> Result<EncodedRows> {
        let mut keys = EncodedRows::new();
        match (&self.key, row_ids) {
            (Some((columns, codec)), _) => {
                let columns: Vec<ArrayRef> = columns.iter().map(|column| rows.column(*column).clone()).collect();
                codec.encode(&columns, &mut keys)?;
            }
            (None, Some(row_ids)) => {
                for id in row_ids.values() {
                    keys.push(&id.to_be_bytes());
                }
            }
            (None, None) => return Err(Error::internal(format!("rows of table \"{}\" came without row ids", self.name))),
        }
        if keys.len() != rows.num_rows() {
            return Err(Error::internal(format!("table \"{}\": {} row keys for {} rows", self.name, keys.len(), rows.num_rows())));
        }
        Ok(keys)
    }

    /// Appends the encoded `rows`.
    pub(super) fn encode_rows(&self, rows: &RecordBatch, out: &mut EncodedRows) -> Result<()> {
        self.row_codec.encode_into(rows.columns(), rows.num_rows(), out)
    }

    /// The table's columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The rows that `rows` encode; `projection` picks columns.
    pub fn decode_rows<'a>(&self, rows: impl ExactSizeIterator<Item = &'a [u8]>, projection: Option<&[usize]>) -> Result<Vec<ArrayRef>> {
        let columns = self.row_codec.decode(rows)?;
        Ok(match projection {
            Some(projection) => projection.iter().map(|column| columns[*column].clone()).collect(),
            None => columns,
        })
    }

    /// All columns of `count` rows as a batch of the table's schema.
    pub(super) fn batch(&self, columns: Vec<ArrayRef>, count: usize) -> Result<RecordBatch> {
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .map_err(|e| Error::internal(format!("rows of table \"{}\" do not have its columns: {e}", self.name)))
    }

    /// Takes `rows` as rows of this table: the same types in the same order, whatever the names, and no NULL where none may be (`23502`).
    pub(super) fn check_rows(&self, rows: &RecordBatch) -> Result<RecordBatch> {
        if rows.num_columns() != self.schema.fields().len() {
            return Err(Error::internal(format!("table \"{}\" was given rows of {} columns", self.name, rows.num_columns())));
        }
        for (field, column) in self.schema.fields().iter().zip(rows.columns()) {
            if field.data_type() != column.data_type() {
                return Err(Error::internal(format!(
                    "column \"{}\" of table \"{}\" was given values of type {}",
                    field.name(),
                    self.name,
                    column.data_type()
                )));
            }
            if !field.is_nullable() && column.null_count() > 0 {
                let row = (0..column.len()).find(|row| column.is_null(*row)).unwrap_or(0);
                return Err(Error::new(
                    SqlState::NOT_NULL_VIOLATION,
                    format!("null value in column \"{}\" of relation \"{}\" violates not-null constraint", field.name(), self.name),
                )
                .with_detail(format!("Failing row contains ({}).", describe(rows.columns(), row)?)));
            }
        }
        self.batch(rows.columns().to_vec(), rows.num_rows())
    }

    /// `23505` for `row` of `rows`.
    pub(super) fn duplicate_key(&self, rows: &RecordBatch, row: usize) -> Error {
        let error =
            Error::new(SqlState::UNIQUE_VIOLATION, format!("duplicate key value violates unique constraint \"{}_pkey\"", self.name));
        let Some((columns, _)) = &self.key else { return error };
        let names: Vec<&str> = columns.iter().map(|column| self.schema.field(*column).name().as_str()).collect();
        let values: Vec<ArrayRef> = columns.iter().map(|column| rows.column(*column).clone()).collect();
        match describe(&values, row) {
            Ok(values) => error.with_detail(format!("Key ({})=({values}) already exists.", names.join(", "))),
            Err(_) => error,
        }
    }

    /// `54000` for a row of `bytes`.
    pub(super) fn row_too_large(&self, bytes: usize, max_row_bytes: usize) -> Error {
        Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, format!("a row of table \"{}\" is too large", self.name))
            .with_detail(format!("The row takes {bytes} bytes; max_row_bytes allows {max_row_bytes}."))
    }
}

/// One row's values as PostgreSQL prints them in a DETAIL.
fn describe(columns: &[ArrayRef], row: usize) -> Result<String> {
    let options = FormatOptions::default().with_null("null").with_timestamp_format(Some("%Y-%m-%d %H:%M:%S%.f"));
    let mut text = String::new();
    for (i, column) in columns.iter().enumerate() {
        if i > 0 {
            text.push_str(", ");
        }
        if let Some(column) = column.as_boolean_opt()
            && column.is_valid(row)
        {
            text.push(if column.value(row) { 't' } else { 'f' });
            continue;
        }
        if column.data_type().is_nested() && column.is_valid(row) {
            text.push_str(cast::output_text(&column.slice(row, 1))?.as_string::<i32>().value(0));
            continue;
        }
        let failed = |e| Error::internal(format!("could not print a value: {e}"));
        let formatter = ArrayFormatter::try_new(column, &options).map_err(failed)?;
        formatter.value(row).write(&mut text).map_err(failed)?;
    }
    Ok(text)
}

/// Row keys as a column, for UPDATE and DELETE.
pub(super) fn row_key_column(keys: &EncodedRows) -> ArrayRef {
    std::sync::Arc::new(BinaryArray::from_iter_values(keys.iter()))
}
