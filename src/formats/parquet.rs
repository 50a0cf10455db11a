//! Parquet files to rows and back. A file is read by row groups, and only the columns that are asked for.
//!
//! Columns are found by name, and fields of rows in them too. A column's values are converted where nothing can be lost but digits that the declared type has
//! no room for; a value that the type can't hold is an error. `types` says which type of a file is read as which.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::ChunkReader;
use weir_catalog::{Column, Error, Result, SqlState};

pub use self::input::FileParts;
use self::input::{LocalFile, ReadFailure, guarded, refused};
pub use self::types::LeftOut;
use self::types::{check_readable, convert, convert_to, place_of, type_of};
use super::row_kind_of;
use crate::operators::error::from_arrow;
use crate::stream::Batch;

mod input;
#[cfg(test)]
mod tests;
mod types;

/// The bytes of a row group, about: what a writer holds in memory and a reader is given at a time.
const ROW_GROUP_BYTES: usize = 32 << 20;

/// What a Parquet file says about itself.
#[derive(Clone, Debug)]
pub struct ParquetFile {
    metadata: ArrowReaderMetadata,
    /// Its length.
    bytes: u64,
}

impl ParquetFile {
    /// Reads the footer of the file at `path`.
    pub fn open(path: &Path) -> Result<ParquetFile> {
        let file = LocalFile::open(path)?;
        ParquetFile::load(path, &file, &file.failure())
    }

    /// What the end of the file at `path`, in `parts`, says.
    pub fn of_parts(path: &Path, parts: &FileParts) -> Result<ParquetFile> {
        ParquetFile::load(path, parts, &ReadFailure::default())
    }

    fn load(path: &Path, input: &impl ChunkReader, failure: &ReadFailure) -> Result<ParquetFile> {
        guarded(path, failure, || {
            let metadata = ArrowReaderMetadata::load(input, ArrowReaderOptions::new()).map_err(|e| refused(path, e))?;
            let mut rows = 0i64;
            for group in metadata.metadata().row_groups() {
                let count = group.num_rows();
                rows = rows
                    .checked_add(count)
                    .filter(|_| count >= 0)
                    .ok_or_else(|| refused(path, "Its row groups have no such numbers of rows."))?;
                // Each row has a value in each column, be it NULL: what only counts rows relies on their number.
                if group.columns().iter().any(|column| column.num_values() < count) {
                    return Err(refused(path, "A column has fewer values than its row group has rows."));
                }
            }
            Ok(ParquetFile { metadata, bytes: input.len() })
        })
    }

    /// The number of rows of each row group.
    pub fn row_groups(&self) -> impl Iterator<Item = u64> + '_ {
        self.metadata.metadata().row_groups().iter().map(|group| u64::try_from(group.num_rows()).unwrap_or(0))
    }

    /// The bytes of row group `group` in the file: about what reading all of it holds at a time.
    pub fn row_group_bytes(&self, group: usize) -> usize {
        let groups = self.metadata.metadata().row_groups();
        let columns = groups.get(group).map_or(&[][..], |group| group.columns());
        let bytes = columns.iter().fold(0u64, |sum, column| sum.saturating_add(u64::try_from(column.compressed_size()).unwrap_or(0)));
        usize::try_from(bytes.min(self.bytes)).unwrap_or(usize::MAX)
    }

    /// The columns that it has, with the type in which each is read, and what is left out of them because weir has no such type.
    pub fn columns(&self) -> (Vec<Column>, Vec<LeftOut>) {
        let (mut columns, mut left_out) = (Vec::new(), Vec::new());
        for field in self.metadata.schema().fields() {
            let name = field.name().to_lowercase();
            if let Some(ty) = type_of(field.data_type(), &name, &mut left_out) {
                columns.push(Column { name, ty, nullable: true, default: None });
            }
        }
        (columns, left_out)
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
    /// What the disk said to the reader.
    failure: ReadFailure,
    /// Where in a batch of the reader each column is, and the row kind.
    positions: Vec<usize>,
    kind_position: Option<usize>,
    decoder: ParquetDecoder,
    path: PathBuf,
}

impl ParquetDecoder {
    /// A decoder for `columns`, of which `projection` are filled, in that order. Where `row_kind` is given, a column of that name holds each row's kind.
    pub fn new(columns: &[Column], projection: &[usize], row_kind: Option<String>) -> Result<ParquetDecoder> {
        let columns = projection
            .iter()
            .map(|position| columns.get(*position).cloned().ok_or_else(|| Error::internal(format!("there is no column {position}"))))
            .collect::<Result<Vec<_>>>()?;
        let schema = Arc::new(Schema::new(columns.iter().map(Column::to_field).collect::<Vec<_>>()));
        Ok(ParquetDecoder { columns, schema, row_kind })
    }

    /// Where `file` has the columns.
    fn roots(&self, path: &Path, file: &ParquetFile) -> Result<Roots> {
        let fields = file.metadata.schema().fields();
        let in_file = |error: Error| error.with_context(format!("file \"{}\"", path.display()));
        let root = |wanted: &str| {
            place_of(fields, wanted).map_err(in_file)?.ok_or_else(|| {
                Error::new(SqlState::UNDEFINED_COLUMN, format!("parquet file \"{}\" has no column \"{wanted}\"", path.display()))
            })
        };
        let mut columns = Vec::with_capacity(self.columns.len());
        for column in &self.columns {
            let position = root(&column.name)?;
            check_readable(fields[position].data_type(), &column.ty, &column.name).map_err(in_file)?;
            columns.push(position);
        }
        let kind = self.row_kind.as_deref().map(root).transpose()?;
        // The reader's batches have the columns in the order of the file, each once.
        let mut read: Vec<usize> = columns.iter().chain(&kind).copied().collect();
        read.sort_unstable();
        read.dedup();
        Ok(Roots { columns, kind, read })
    }

    /// Where in `file` that stands which [`ParquetDecoder::rows`] reads of row group `group`, sorted.
    pub fn ranges(&self, path: &Path, file: &ParquetFile, group: usize) -> Result<Vec<std::ops::Range<u64>>> {
        let mask = ProjectionMask::roots(file.metadata.parquet_schema(), self.roots(path, file)?.read);
        let groups = file.metadata.metadata().row_groups();
        let columns = groups.get(group).map_or(&[][..], |group| group.columns());
        let mut ranges = Vec::new();
        for column in columns.iter().enumerate().filter(|(leaf, _)| mask.leaf_included(*leaf)).map(|(_, column)| column) {
            let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            let (start, length) = (u64::try_from(start), u64::try_from(column.compressed_size()));
            let (Ok(start), Ok(length)) = (start, length) else {
                return Err(refused(path, "A column stands at a negative place."));
            };
            let end = start.checked_add(length).filter(|end| *end <= file.bytes);
            ranges.push(
                start..end.ok_or_else(|| refused(path, format_args!("A column stands at byte {start}, which goes beyond its end.")))?,
            );
        }
        ranges.sort_unstable_by_key(|range| range.start);
        Ok(ranges)
    }

    /// The `rows` rows from number `skip` on of row group `group`; out of `parts`, where they were read before.
    pub fn rows(
        &self,
        path: &Path,
        file: &ParquetFile,
        parts: Option<&FileParts>,
        group: usize,
        skip: u64,
        rows: u64,
        batch_rows: usize,
    ) -> Result<ParquetRows> {
        let Roots { columns, kind, read } = self.roots(path, file)?;
        let place = |root: &usize| read.binary_search(root).map_err(|_| Error::internal("a column of a parquet file is not read"));
        let part =
            Part { mask: ProjectionMask::roots(file.metadata.parquet_schema(), read.iter().copied()), group, skip, rows, batch_rows };
        let (reader, failure) = match parts {
            Some(parts) => (guarded(path, &ReadFailure::default(), || part.reader(path, parts.clone(), file))?, ReadFailure::default()),
            None => {
                let input = LocalFile::open(path)?;
                let failure = input.failure();
                (guarded(path, &failure, || part.reader(path, input, file))?, failure)
            }
        };
        Ok(ParquetRows {
            reader,
            failure,
            positions: columns.iter().map(place).collect::<Result<_>>()?,
            kind_position: kind.as_ref().map(place).transpose()?,
            decoder: self.clone(),
            path: path.to_path_buf(),
        })
    }
}

/// Where a file has a table's columns, among its root columns.
struct Roots {
    columns: Vec<usize>,
    kind: Option<usize>,
    /// Both, sorted, each once.
    read: Vec<usize>,
}

/// What is read of a row group.
struct Part {
    mask: ProjectionMask,
    group: usize,
    skip: u64,
    rows: u64,
    batch_rows: usize,
}

impl Part {
    fn reader(self, path: &Path, input: impl ChunkReader + 'static, file: &ParquetFile) -> Result<ParquetRecordBatchReader> {
        ParquetRecordBatchReaderBuilder::new_with_metadata(input, file.metadata.clone())
            .with_projection(self.mask)
            .with_row_groups(vec![self.group])
            .with_offset(usize::try_from(self.skip).unwrap_or(usize::MAX))
            .with_limit(usize::try_from(self.rows).unwrap_or(usize::MAX))
            .with_batch_size(self.batch_rows)
            .build()
            .map_err(|e| refused(path, e))
    }
}

impl ParquetRows {
    /// The next rows; `None` at the end. Waits for disk. After an error there is nothing more to be asked for.
    pub fn next_batch(&mut self) -> Result<Option<Batch>> {
        let ParquetRows { reader, failure, positions, kind_position, decoder, path } = self;
        guarded(path, failure, || {
            let in_file = |error: Error| error.with_context(format!("file \"{}\"", path.display()));
            let read = match reader.next() {
                None => return Ok(None),
                Some(Ok(read)) => read,
                Some(Err(error @ (ArrowError::OffsetOverflowError(_) | ArrowError::MemoryError(_)))) => {
                    return Err(in_file(from_arrow(error)));
                }
                Some(Err(error)) => return Err(refused(path, error)),
            };
            decoder.batch(&read, positions, *kind_position).map(Some).map_err(in_file)
        })
    }
}

impl ParquetDecoder {
    /// The rows that were `read`, where each column and the row kind are at these positions.
    fn batch(&self, read: &RecordBatch, positions: &[usize], kind_position: Option<usize>) -> Result<Batch> {
        let arrays = positions
            .iter()
            .zip(&self.columns)
            .map(|(position, column)| convert(read.column(*position), &column.ty, &column.name, None))
            .collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(read.num_rows()));
        let rows = RecordBatch::try_new_with_options(self.schema.clone(), arrays, &options).map_err(from_arrow)?;
        let Some(position) = kind_position else { return Ok(Batch::insert(rows)) };
        let kinds = convert_to(read.column(position), &DataType::Utf8)?;
        let kinds = kinds.as_string::<i32>();
        let kind = |row: usize| -> Result<u8> {
            let text = if kinds.is_null(row) { "" } else { kinds.value(row) };
            row_kind_of(text.as_bytes()).map(|kind| kind as u8)
        };
        let kinds = (0..read.num_rows()).map(kind).collect::<Result<Vec<_>>>()?;
        Ok(Batch::with_kinds(rows, kinds))
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

    /// How many bytes are ready or will be, as far as that can be told of a row group under way: what its last pages will be compressed to can't.
    pub fn expected_bytes(&self) -> usize {
        self.ready_bytes() + self.writer.as_ref().map_or(0, ArrowWriter::in_progress_size)
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
