//! Parquet files to rows and back. A file is read by row groups, and only the columns that are asked for.
//!
//! Columns are found by name. A column's values are converted where nothing can be lost but digits that the declared type has no room for; a value that the
//! type can't hold is an error.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, TimestampMicrosecondArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimestampMicrosecondType};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use weir_catalog::{Column, Error, Result, SqlState, SqlType};
use weir_sql::functions::text::round_timestamp;

use super::column::check_type;
use super::row_kind_of;
use crate::operators::error::from_arrow;
use crate::stream::Batch;

/// The bytes of a row group, about: what a writer holds in memory and a reader is given at a time.
const ROW_GROUP_BYTES: usize = 32 << 20;

/// `path` in an error of this file's.
fn refused(path: &Path, error: &ParquetError) -> Error {
    Error::new(SqlState::DATA_EXCEPTION, format!("parquet file \"{}\" can't be read", path.display())).with_detail(error.to_string())
}

/// What a Parquet file says about itself.
#[derive(Clone, Debug)]
pub struct ParquetFile {
    metadata: ArrowReaderMetadata,
}

impl ParquetFile {
    /// Reads the footer of the file at `path`.
    pub fn open(path: &Path) -> Result<ParquetFile> {
        let file = File::open(path).map_err(|e| Error::io(format!("open \"{}\"", path.display()), &e))?;
        let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()).map_err(|e| refused(path, &e))?;
        Ok(ParquetFile { metadata })
    }

    /// The number of rows of each row group.
    pub fn row_groups(&self) -> impl Iterator<Item = u64> + '_ {
        self.metadata.metadata().row_groups().iter().map(|group| u64::try_from(group.num_rows()).unwrap_or(0))
    }

    /// The bytes of row group `group` in the file: about what reading all of it holds at a time.
    pub fn row_group_bytes(&self, group: usize) -> usize {
        let groups = self.metadata.metadata().row_groups();
        groups.get(group).map_or(0, |group| usize::try_from(group.compressed_size()).unwrap_or(0))
    }

    /// The columns that it has, with the type in which each is read; those of other types are left out.
    pub fn columns(&self) -> Vec<Column> {
        let fields = self.metadata.schema().fields().iter();
        fields
            .filter_map(|field| {
                let ty = match field.data_type() {
                    DataType::Struct(_) => return None,
                    DataType::Timestamp(_, _) | DataType::Date32 | DataType::Date64 => SqlType::TIMESTAMP,
                    other => SqlType::from_arrow(other)?,
                };
                Some(Column { name: field.name().to_lowercase(), ty, nullable: true, default: None })
            })
            .collect()
    }
}

/// Reads rows of a table's columns from Parquet files.
#[derive(Clone, Debug)]
pub struct ParquetDecoder {
    columns: Vec<Column>,
    schema: SchemaRef,
    row_kind: Option<String>,
}

/// Some rows of a file, as they come.
pub struct ParquetRows {
    reader: ParquetRecordBatchReader,
    /// Where in a batch of the reader each column is, and the row kind.
    positions: Vec<usize>,
    kind_position: Option<usize>,
    decoder: ParquetDecoder,
    name: String,
}

impl ParquetDecoder {
    /// A decoder for `columns`, of which `projection` are filled, in that order. Where `row_kind` is given, a column of that name holds each row's kind.
    pub fn new(columns: &[Column], projection: &[usize], row_kind: Option<String>) -> Result<ParquetDecoder> {
        let columns = projection
            .iter()
            .map(|position| columns.get(*position).cloned().ok_or_else(|| Error::internal(format!("there is no column {position}"))))
            .collect::<Result<Vec<_>>>()?;
        columns.iter().try_for_each(check_type)?;
        let schema = Arc::new(Schema::new(columns.iter().map(Column::to_field).collect::<Vec<_>>()));
        Ok(ParquetDecoder { columns, schema, row_kind })
    }

    /// The `rows` rows from number `skip` on of row group `group`.
    pub fn rows(&self, path: &Path, file: &ParquetFile, group: usize, skip: u64, rows: u64, batch_rows: usize) -> Result<ParquetRows> {
        let fields = file.metadata.schema().fields();
        let root = |wanted: &str| {
            let same = fields.iter().position(|field| field.name() == wanted);
            same.or_else(|| fields.iter().position(|field| field.name().eq_ignore_ascii_case(wanted))).ok_or_else(|| {
                Error::new(SqlState::UNDEFINED_COLUMN, format!("parquet file \"{}\" has no column \"{wanted}\"", path.display()))
            })
        };
        let mut roots = Vec::with_capacity(self.columns.len());
        for column in &self.columns {
            let position = root(&column.name)?;
            check_readable(fields[position].data_type(), column).map_err(|error| error.with_context(path.display().to_string()))?;
            roots.push(position);
        }
        let kind_root = self.row_kind.as_deref().map(root).transpose()?;
        // The reader's batches have the columns in the order of the file, each once.
        let mut read: Vec<usize> = roots.iter().chain(&kind_root).copied().collect();
        read.sort_unstable();
        read.dedup();
        let place = |root: &usize| read.binary_search(root).map_err(|_| Error::internal("a column of a parquet file is not read"));
        let opened = File::open(path).map_err(|e| Error::io(format!("open \"{}\"", path.display()), &e))?;
        let mask = ProjectionMask::roots(file.metadata.parquet_schema(), read.iter().copied());
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(opened, file.metadata.clone())
            .with_projection(mask)
            .with_row_groups(vec![group])
            .with_offset(usize::try_from(skip).unwrap_or(usize::MAX))
            .with_limit(usize::try_from(rows).unwrap_or(usize::MAX))
            .with_batch_size(batch_rows)
            .build()
            .map_err(|e| refused(path, &e))?;
        Ok(ParquetRows {
            reader,
            positions: roots.iter().map(place).collect::<Result<_>>()?,
            kind_position: kind_root.as_ref().map(place).transpose()?,
            decoder: self.clone(),
            name: path.display().to_string(),
        })
    }
}

impl ParquetRows {
    /// The next rows; `None` at the end. Waits for disk.
    pub fn next_batch(&mut self) -> Result<Option<Batch>> {
        let Some(read) = self.reader.next() else { return Ok(None) };
        let in_file = |error: Error| error.with_context(format!("file \"{}\"", self.name));
        let read = read.map_err(|e| in_file(from_arrow(e)))?;
        let arrays = self
            .positions
            .iter()
            .zip(&self.decoder.columns)
            .map(|(position, column)| convert(read.column(*position), column).map_err(in_file))
            .collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(read.num_rows()));
        let rows = RecordBatch::try_new_with_options(self.decoder.schema.clone(), arrays, &options).map_err(from_arrow)?;
        let Some(position) = self.kind_position else { return Ok(Some(Batch::insert(rows))) };
        let kinds = convert_to(read.column(position), &DataType::Utf8).map_err(in_file)?;
        let kinds = kinds.as_string::<i32>();
        let kind = |row: usize| -> Result<u8> {
            let text = if kinds.is_null(row) { "" } else { kinds.value(row) };
            row_kind_of(text.as_bytes()).map(|kind| kind as u8).map_err(in_file)
        };
        let kinds = (0..read.num_rows()).map(kind).collect::<Result<Vec<_>>>()?;
        Ok(Some(Batch::with_kinds(rows, kinds)))
    }
}

/// `42804` where values of type `from` are not read as the column's.
fn check_readable(from: &DataType, column: &Column) -> Result<()> {
    let is_text = |ty: &DataType| matches!(ty, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    let is_time = |ty: &DataType| matches!(ty, DataType::Timestamp(_, _) | DataType::Date32 | DataType::Date64);
    let value = match from {
        DataType::Dictionary(_, value) => value.as_ref(),
        other => other,
    };
    let to = column.ty.to_arrow();
    let readable = match &column.ty {
        SqlType::Text => is_text(value),
        SqlType::Boolean => *value == DataType::Boolean,
        SqlType::Timestamp { .. } => is_time(value),
        _ => value.is_numeric(),
    };
    if readable {
        Ok(())
    } else {
        Err(Error::new(
            SqlState::DATATYPE_MISMATCH,
            format!("column \"{}\" is of type {} but is {value} in the file", column.name, column.ty),
        )
        .with_detail(format!("It is read as {to}.")))
    }
}

fn convert_to(array: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    if array.data_type() == to {
        return Ok(array.clone());
    }
    cast_with_options(array, to, &CastOptions { safe: false, ..CastOptions::default() }).map_err(from_arrow)
}

/// `array` as the column's type.
fn convert(array: &ArrayRef, column: &Column) -> Result<ArrayRef> {
    let array = convert_to(array, &column.ty.to_arrow())?;
    match column.ty {
        SqlType::Timestamp { precision } if precision < 6 => {
            let values: &TimestampMicrosecondArray = array.as_primitive::<TimestampMicrosecondType>();
            let rounded: TimestampMicrosecondArray = values.unary(|value| round_timestamp(value, precision));
            Ok(Arc::new(rounded))
        }
        _ => Ok(array),
    }
}

/// How the pages of a Parquet file are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParquetCompression {
    None,
    Snappy,
    Zstd,
}

/// Writes rows as one Parquet file.
pub struct ParquetEncoder {
    /// `None` once the file is finished.
    writer: Option<ArrowWriter<Vec<u8>>>,
    schema: SchemaRef,
    row_kind: bool,
    finished: Vec<u8>,
}

impl ParquetEncoder {
    /// Begins a file of rows of `schema`. Where `row_kind` is given, its first column has that name and holds each row's kind.
    pub fn new(schema: &SchemaRef, row_kind: Option<&str>, compression: ParquetCompression) -> Result<ParquetEncoder> {
        let kind = row_kind.map(|name| Arc::new(Field::new(name, DataType::Utf8, false)));
        let schema = Arc::new(Schema::new(kind.into_iter().chain(schema.fields().iter().cloned()).collect::<Vec<_>>()));
        let compression = match compression {
            ParquetCompression::None => Compression::UNCOMPRESSED,
            ParquetCompression::Snappy => Compression::SNAPPY,
            ParquetCompression::Zstd => Compression::ZSTD(ZstdLevel::default()),
        };
        let properties = WriterProperties::builder()
            .set_compression(compression)
            .set_max_row_group_bytes(Some(ROW_GROUP_BYTES))
            .set_created_by(concat!("weir ", env!("CARGO_PKG_VERSION")).to_string())
            .build();
        let writer = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties)).map_err(|e| failed(&e))?;
        Ok(ParquetEncoder { writer: Some(writer), schema, row_kind: row_kind.is_some(), finished: Vec::new() })
    }

    fn writer(&mut self) -> Result<&mut ArrowWriter<Vec<u8>>> {
        self.writer.as_mut().ok_or_else(|| Error::internal("a parquet file is written to after its end"))
    }

    /// Adds rows.
    pub fn encode(&mut self, batch: &Batch) -> Result<()> {
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(batch.rows.num_columns() + 1);
        if self.row_kind {
            let kinds = (0..batch.num_rows()).map(|row| batch.kind(row).short());
            arrays.push(Arc::new(arrow::array::StringArray::from_iter_values(kinds)));
        }
        arrays.extend(batch.rows.columns().iter().cloned());
        let rows = RecordBatch::try_new(self.schema.clone(), arrays).map_err(from_arrow)?;
        self.writer()?.write(&rows).map_err(|e| failed(&e))
    }

    /// The bytes that are ready to be written and have not been taken yet.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        match &mut self.writer {
            Some(writer) => std::mem::take(writer.inner_mut()),
            None => std::mem::take(&mut self.finished),
        }
    }

    /// How many bytes are ready to be written.
    pub fn ready_bytes(&self) -> usize {
        self.writer.as_ref().map_or(self.finished.len(), |writer| writer.inner().len())
    }

    /// About how many bytes it holds in memory.
    pub fn memory_bytes(&self) -> usize {
        self.writer.as_ref().map_or(self.finished.capacity(), |writer| writer.memory_size() + writer.inner().capacity())
    }

    /// Ends the row group under way: all its bytes are ready then.
    pub fn end_row_group(&mut self) -> Result<()> {
        self.writer()?.flush().map_err(|e| failed(&e))
    }

    /// Ends the file; what is left is in [`ParquetEncoder::take_bytes`].
    pub fn finish(&mut self) -> Result<()> {
        let writer = self.writer.take().ok_or_else(|| Error::internal("a parquet file is ended twice"))?;
        self.finished = writer.into_inner().map_err(|e| failed(&e))?;
        Ok(())
    }
}

fn failed(error: &ParquetError) -> Error {
    Error::new(SqlState::DATA_EXCEPTION, "a parquet file can't be written").with_detail(error.to_string())
}
