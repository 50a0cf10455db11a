//! The options of a `file` table or sink.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use arrow::datatypes::Schema;
use weir_catalog::{ChangelogMode, Column, Error, Result, SqlState, SqlType};

use super::listing::{check_pattern, is_pattern};
use super::objects::{ObjectPlace, Remote};
use crate::formats::options::{Given, OptionReader, invalid};
use crate::formats::parquet::{LeftOut, ParquetFile};
use crate::formats::{Format, FormatOptions};

/// What becomes of a record that can't be read as a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRecords {
    /// It stops the job.
    Fail,
    /// It is counted and left out.
    Skip,
    /// It is counted, left out, and kept for `SELECT * FROM table$bad`.
    DeadLetter,
}

/// What a WITH clause says of files.
///
/// | option | means | default |
/// | --- | --- | --- |
/// | `path` | a file, a folder, or a pattern with `*`, `?`, `[..]` and `**`; for a sink, a folder; also `s3://bucket/..` | |
/// | `s3.*` | how the object store is spoken to: see [`ObjectPlace`] | as `AWS_*` variables say |
/// | `format` | `csv`, `json`, `debezium-json` or `parquet`; each has options of its own | |
/// | `compression` | `none`, `gzip`, `zstd`; for Parquet `none`, `snappy`, `zstd` | by the name; a sink: none, Parquet: zstd |
/// | `row_kind` | the name of a field that holds each row's kind | |
/// | `watch` | how often to look for new files; the table has no end | |
/// | `bad_records` | `fail`, `skip` or `dead_letter` | `fail` |
/// | `partition_by` | columns of a sink whose values name a subfolder each | |
/// | `roll_size` | the size that a sink's file reaches with its last row | 128 MiB |
/// | `roll_interval` | how long a sink's file may be open before the next begins | until a checkpoint |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileConfig {
    /// Absolute; of objects a URL.
    pub path: PathBuf,
    /// Where the objects are, where `path` is a URL.
    pub objects: Option<ObjectPlace>,
    pub format: FormatOptions,
    pub watch: Option<Duration>,
    pub bad_records: BadRecords,
    pub partition_by: Vec<String>,
    pub roll_size: u64,
    pub roll_interval: Option<Duration>,
}

/// What was left out, each with its type.
pub fn listed(left_out: &[LeftOut]) -> String {
    if left_out.is_empty() { "none".to_string() } else { left_out.iter().map(LeftOut::to_string).collect::<Vec<_>>().join(", ") }
}

/// The name that two fields of one row in `ty` have.
fn twice(ty: &SqlType) -> Option<&str> {
    match ty {
        SqlType::Row(fields) => {
            let is_double = |at: &usize| fields[..*at].iter().any(|(name, _)| *name == fields[*at].0);
            let double = (0..fields.len()).find(is_double).map(|at| fields[at].0.as_str());
            double.or_else(|| fields.iter().find_map(|(_, ty)| twice(ty)))
        }
        SqlType::Array(element) => twice(element),
        _ => None,
    }
}

/// The path of files of this machine.
fn local_path(path: Given<'_>) -> Result<PathBuf> {
    let text = path.value.strip_prefix("file://").unwrap_or(path.value);
    if let Some((scheme, _)) = text.split_once("://").filter(|_| !text.starts_with('/')) {
        return Err(Error::unsupported(format!("files can't be read from or written to \"{scheme}://\"")).with_hint(
            "A path is one of this machine's file system, or s3://bucket/prefix for an object store that speaks S3's protocol.",
        ));
    }
    if text.is_empty() {
        return Err(path.malformed("a path of this machine's file system, or s3://bucket/prefix"));
    }
    std::path::absolute(text).map_err(|e| Error::io(format!("find \"{text}\""), &e))
}

impl FileConfig {
    /// Reads the options. `22023` for one that is unknown, given twice or malformed.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<FileConfig> {
        FileConfig::read(OptionReader::new("file", options)?)
    }

    /// As [`FileConfig::parse`], of a sink that is no table: `22023` for options about reading too.
    pub fn parse_sink(options: &BTreeMap<String, String>) -> Result<FileConfig> {
        FileConfig::read(OptionReader::for_sink("file", options)?)
    }

    fn read(mut reader: OptionReader<'_>) -> Result<FileConfig> {
        let path = reader.require(&["path"])?;
        let objects = ObjectPlace::take(path.value, &mut reader)?;
        let absolute = match &objects {
            Some(place) => PathBuf::from(place.url.to_string()),
            None => local_path(path)?,
        };
        let format = FormatOptions::take(&mut reader)?;
        let watch = match reader.take_for_reading(&["watch", "source.monitor-interval"])? {
            None => None,
            Some(given) => {
                let interval = given.duration()?;
                if interval.is_zero() {
                    return Err(given.malformed("longer than 0"));
                }
                Some(interval)
            }
        };
        let bad_records = match reader.take_for_reading(&["bad_records"])? {
            None if format.ignore_parse_errors => BadRecords::Skip,
            None => BadRecords::Fail,
            Some(given) => {
                if format.ignore_parse_errors {
                    return Err(invalid("option \"bad_records\" and an ignore-parse-errors option say the same"));
                }
                match given.value.trim().to_ascii_lowercase().as_str() {
                    "fail" => BadRecords::Fail,
                    "skip" => BadRecords::Skip,
                    "dead_letter" => BadRecords::DeadLetter,
                    _ => return Err(given.malformed("fail, skip or dead_letter")),
                }
            }
        };
        if bad_records != BadRecords::Fail && matches!(format.format, Format::Parquet { .. }) {
            return Err(invalid("a parquet file has no records that can be bad one by one").with_hint("Leave \"bad_records\" out."));
        }
        let partition_by = match reader.take(&["partition_by"])? {
            None => Vec::new(),
            Some(given) => {
                let names: Vec<String> = given.value.split(',').map(|name| name.trim().to_string()).collect();
                if names.iter().enumerate().any(|(at, name)| name.is_empty() || names[..at].contains(name)) {
                    return Err(given.malformed("different column names with commas between them"));
                }
                names
            }
        };
        let roll_size = match reader.take(&["roll_size", "sink.rolling-policy.file-size"])? {
            None => 128 << 20,
            Some(given) => Some(given.bytes()?).filter(|bytes| *bytes > 0).ok_or_else(|| given.malformed("more than 0 bytes"))?,
        };
        let roll_interval =
            reader.take(&["roll_interval", "sink.rolling-policy.rollover-interval"])?.map(|given| given.duration()).transpose()?;
        reader.finish()?;
        Ok(FileConfig { path: absolute, objects, format, watch, bad_records, partition_by, roll_size, roll_interval })
    }

    /// The columns of a table that declares none: those of its first Parquet file, and what of that is left out. No columns where files don't say.
    ///
    /// Errors: `0A000` where all are left out, `42701` where two have one name.
    pub fn columns(&self) -> Result<(Vec<Column>, Vec<LeftOut>)> {
        match self.format.format {
            Format::Parquet { .. } => {
                let Some(first) = super::enumerator::first_file(self)? else { return Ok((Vec::new(), Vec::new())) };
                let file = match &self.objects {
                    Some(place) => Remote::open(place)?.parquet(&first.path, first.disk_length, first.tag)?,
                    None => ParquetFile::open(&first.path)?,
                };
                let (mut columns, left_out) = file.columns();
                columns.retain(|column| Some(column.name.as_str()) != self.format.row_kind());
                let file = first.path.display();
                if columns.is_empty() {
                    return Err(Error::unsupported(format!("parquet file \"{file}\" has no column of a type that can be read"))
                        .with_detail(format!("It has {}.", listed(&left_out))));
                }
                let is_double = |at: usize| columns[..at].iter().any(|column| column.name == columns[at].name);
                if let Some(at) = (0..columns.len()).find(|at| is_double(*at)) {
                    let message = format!("parquet file \"{file}\" has several columns \"{}\"", columns[at].name);
                    return Err(Error::new(SqlState::DUPLICATE_COLUMN, message)
                        .with_hint("Upper and lower case are one where no columns are declared. Declare the columns."));
                }
                if let Some((column, field)) = columns.iter().find_map(|column| Some((&column.name, twice(&column.ty)?))) {
                    let message = format!("parquet file \"{file}\" has several fields \"{field}\" in column \"{column}\"");
                    return Err(Error::new(SqlState::DUPLICATE_COLUMN, message)
                        .with_hint("Upper and lower case are one where no columns are declared. Declare the columns."));
                }
                Ok((columns, left_out))
            }
            _ => Ok((Vec::new(), Vec::new())),
        }
    }

    /// Checks the columns and the path of a table that is about to be made.
    pub fn check_table(&self, name: &str, columns: &[Column]) -> Result<()> {
        if columns.is_empty() {
            return Err(Error::new(SqlState::INVALID_TABLE_DEFINITION, format!("table \"{name}\" needs columns")));
        }
        self.check_store()?;
        if self.objects.is_none() {
            check_pattern(&self.path)?;
        }
        self.check_partitions(&Schema::new(columns.iter().map(Column::to_field).collect::<Vec<_>>()))?;
        self.format.check_columns(columns)
    }

    /// Checks that the columns of `partition_by` can name folders. `42703` where one is not in `schema`.
    fn check_partitions(&self, schema: &Schema) -> Result<()> {
        for name in &self.partition_by {
            let Ok(field) = schema.field_with_name(name) else {
                return Err(Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{name}\" of \"partition_by\" does not exist")));
            };
            if field.data_type().is_nested() {
                return Err(Error::unsupported(format!("column \"{name}\" can't name the folders of a sink"))
                    .with_detail("It is a row or an array."));
            }
            if name.starts_with(['.', '_']) {
                return Err(Error::unsupported(format!("column \"{name}\" can't name the folders of a sink"))
                    .with_detail("Readers leave out folders whose names begin with \".\" or \"_\"."));
            }
        }
        Ok(())
    }

    /// Checks that the object store can be spoken to as the options say, as far as that can be said without asking it.
    fn check_store(&self) -> Result<()> {
        self.objects.as_ref().map_or(Ok(()), |place| Remote::open(place).map(drop))
    }

    /// Checks that rows with these columns and changes can be written.
    pub fn check_sink(&self, schema: &Schema, changelog: ChangelogMode) -> Result<()> {
        if let Format::Csv { options, .. } = &self.format.format
            && options.quote.is_none()
        {
            return Err(invalid("a csv sink needs a quote character")
                .with_detail("Without one, a text that holds a delimiter or a line end could not be read back."));
        }
        self.check_store()?;
        let is_pattern = match &self.objects {
            Some(place) => place.url.prefix.contains(['*', '?', '[']),
            None => is_pattern(&self.path),
        };
        if is_pattern {
            return Err(invalid(format!("a sink can't write to the pattern \"{}\"", self.path.display())));
        }
        self.format.check_schema(schema)?;
        self.check_partitions(schema)?;
        if changelog != ChangelogMode::Append && self.format.changelog() == ChangelogMode::Append {
            return Err(Error::unsupported("the result is updated, and files of plain rows can only be added to")
                .with_detail("A row that was written could not be taken back.")
                .with_hint("Use format 'debezium-json', or name a field for the row kind: row_kind = '...'."));
        }
        Ok(())
    }
}
