//! The connectors that a table can name, and what each knows of its options and columns.

use arrow::array::RecordBatch;
use weir_catalog::{Column, ConnectorTable, Error, Result, SqlState};

use super::datagen::{DatagenConfig, DatagenSource};
use super::file::{BadRecords, FileConfig, FileSource, listed};
use super::nexmark::{NexmarkConfig, NexmarkSource};
use super::socket::{SocketConfig, SocketSource};
use super::{Source, SourceContext, SourceEvent, SplitState, Splits};
use crate::formats::Format;
use crate::seams::spawn::in_place;
use crate::stream::Batch;

/// The connectors that give rows.
pub const SOURCES: &[&str] = &["datagen", "file", "nexmark", "socket"];
/// The connectors that take rows.
pub const SINKS: &[&str] = &["blackhole", "file", "print", "socket"];

fn unknown(connector: &str) -> Error {
    let mut names: Vec<&str> = SOURCES.iter().chain(SINKS).copied().collect();
    names.sort_unstable();
    names.dedup();
    Error::new(SqlState::UNDEFINED_OBJECT, format!("connector \"{connector}\" does not exist"))
        .with_hint(format!("Available connectors: {}.", names.join(", ")))
}

fn no_source(connector: &str) -> Error {
    if SINKS.contains(&connector) {
        Error::new(SqlState::WRONG_OBJECT_TYPE, format!("connector \"{connector}\" gives no rows: it is a sink"))
    } else {
        unknown(connector)
    }
}

/// Checks a connector table as it is about to be made, and returns its columns: those declared, or where there are none those that the connector has. What
/// there is to say of these, `told` gets.
pub fn validate_table(table: &ConnectorTable, told: &mut dyn FnMut(String)) -> Result<Vec<Column>> {
    match table.connector.as_str() {
        "nexmark" => {
            let config = NexmarkConfig::parse(&table.options)?;
            if table.columns.is_empty() {
                return Ok(config.columns());
            }
            config.validate(&table.columns)?;
            Ok(table.columns.clone())
        }
        "blackhole" => {
            crate::sinks::blackhole::BlackholeSink::validate_options(&table.options)?;
            needs_columns(table)
        }
        "file" => {
            let config = FileConfig::parse(&table.options)?;
            let (columns, left_out) =
                if table.columns.is_empty() { in_place(|| config.columns())? } else { (table.columns.clone(), Vec::new()) };
            config.check_table(&table.name, &columns)?;
            if !left_out.is_empty() {
                told(format!("columns of types that can't be read are left out of table \"{}\": {}", table.name, listed(&left_out)));
            }
            Ok(columns)
        }
        "print" => {
            crate::sinks::print::PrintSink::parse(&table.options)?;
            needs_columns(table)
        }
        "datagen" => {
            DatagenConfig::parse(&table.options, &table.columns)?;
            needs_columns(table)
        }
        "socket" => {
            let config = SocketConfig::parse(&table.options)?;
            config.format.check_columns(&table.columns)?;
            needs_columns(table)
        }
        other => Err(unknown(other)),
    }
}

fn needs_columns(table: &ConnectorTable) -> Result<Vec<Column>> {
    if table.columns.is_empty() {
        return Err(Error::new(SqlState::INVALID_TABLE_DEFINITION, format!("table \"{}\" needs columns", table.name)));
    }
    Ok(table.columns.clone())
}

/// Opens a source for each of `parallelism` subtasks. `restored` are all splits of the operator's checkpoint. Waits for disk.
pub fn open_sources(
    table: &ConnectorTable,
    projection: &[usize],
    parallelism: usize,
    restored: Option<&Splits>,
    context: &SourceContext,
) -> Result<Vec<Box<dyn Source>>> {
    fn boxed(source: impl Source + 'static) -> Box<dyn Source> {
        Box::new(source)
    }
    // Those of most sources are never closed.
    let open_splits = restored.map(|splits| splits.open.as_slice());
    match table.connector.as_str() {
        "nexmark" => {
            let config = NexmarkConfig::parse(&table.options)?;
            let open = |subtask| {
                let restored = open_splits.map(<[SplitState]>::to_vec);
                NexmarkSource::new(config.clone(), &table.columns, projection, subtask, parallelism, restored)
            };
            (0..parallelism).map(|subtask| open(subtask).map(boxed)).collect()
        }
        "datagen" => {
            let config = DatagenConfig::parse(&table.options, &table.columns)?;
            let open = |subtask| DatagenSource::new(&config, &table.columns, projection, subtask, parallelism, open_splits);
            let at = |source: DatagenSource| boxed(source.at(context.statement_us));
            (0..parallelism).map(|subtask| open(subtask).map(at)).collect()
        }
        "file" => Ok(FileSource::open_all(table, projection, parallelism, restored, context)?.into_iter().map(boxed).collect()),
        "socket" => {
            let config = SocketConfig::parse(&table.options)?;
            (0..parallelism)
                .map(|subtask| SocketSource::new(&config, &table.columns, projection, subtask, context.max_row_bytes).map(boxed))
                .collect()
        }
        other => Err(no_source(other)),
    }
}

/// Whether a table keeps the records that can't be read.
pub fn keeps_bad_records(table: &ConnectorTable) -> Result<bool> {
    Ok(table.connector == "file" && FileConfig::parse(&table.options)?.bad_records == BadRecords::DeadLetter)
}

/// Whether a source that comes to an end may have to be waited for meanwhile.
pub fn waits_for_others(table: &ConnectorTable) -> Result<bool> {
    Ok(table.connector == "file" && FileConfig::parse(&table.options)?.objects.is_some())
}

/// Whether a source comes to an end by itself.
pub fn is_bounded(table: &ConnectorTable) -> Result<bool> {
    match table.connector.as_str() {
        "nexmark" => Ok(NexmarkConfig::parse(&table.options)?.bounded()),
        "datagen" => Ok(DatagenConfig::parse(&table.options, &table.columns)?.rows().is_some()),
        "file" => Ok(FileConfig::parse(&table.options)?.watch.is_none()),
        "socket" => Ok(false),
        other => Err(no_source(other)),
    }
}

/// Whether all rows that a table has ever given come again, soon, when it is read from its beginning.
pub fn can_be_read_again(table: &ConnectorTable) -> Result<bool> {
    match table.connector.as_str() {
        "nexmark" => NexmarkConfig::parse(&table.options).map(|config| config.bounded() && !config.is_paced()),
        "datagen" => DatagenConfig::parse(&table.options, &table.columns)
            .map(|config| config.rows().is_some() && !config.is_paced() && !config.depends_on_now()),
        "file" => Ok(true),
        _ => Ok(false),
    }
}

/// Whether the columns of a table are found by their names: in whatever order they are declared, and with whichever others, their values are the same.
pub fn columns_are_named(table: &ConnectorTable) -> Result<bool> {
    match table.connector.as_str() {
        "nexmark" => Ok(true),
        "file" => FileConfig::parse(&table.options).map(|config| !matches!(config.format.format, Format::Csv { .. })),
        "socket" => SocketConfig::parse(&table.options).map(|config| !matches!(config.format.format, Format::Csv { .. })),
        _ => Ok(false),
    }
}

/// Constant rows, sent once.
#[derive(Debug)]
pub struct ValuesSource {
    rows: Option<RecordBatch>,
}

const SENT: &str = "sent";

impl ValuesSource {
    /// Sends `rows`, unless the restored state says that they were sent.
    pub fn new(rows: RecordBatch, restored: Option<Vec<SplitState>>) -> ValuesSource {
        let sent = restored.is_some_and(|splits| splits.iter().any(|split| split.offset == SENT));
        ValuesSource { rows: (!sent).then_some(rows) }
    }
}

impl Source for ValuesSource {
    fn poll(&mut self, _max_rows: usize, _now_us: i64) -> Result<SourceEvent> {
        Ok(self.rows.take().map_or(SourceEvent::End, |rows| SourceEvent::Batch(Batch::insert(rows))))
    }

    fn splits(&self) -> Result<Vec<SplitState>> {
        let offset = if self.rows.is_some() { "waiting" } else { SENT };
        Ok(vec![SplitState { split: "0".into(), offset: offset.into() }])
    }

    fn has_reached(&self, target: &[SplitState]) -> Result<bool> {
        Ok(self.rows.is_none() || target.iter().all(|split| split.offset != SENT))
    }
}
