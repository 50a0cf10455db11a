//! The connectors that a table can name, and what each knows of its options and columns.

use arrow::array::RecordBatch;
use weir_catalog::{Column, ConnectorTable, Error, Result, SqlState};

use super::nexmark::{NexmarkConfig, NexmarkSource};
use super::{Source, SourceEvent, SplitState};
use crate::stream::Batch;

/// The connectors that give rows.
pub const SOURCES: &[&str] = &["nexmark"];
/// The connectors that take rows.
pub const SINKS: &[&str] = &["blackhole"];

fn unknown(connector: &str) -> Error {
    Error::new(SqlState::UNDEFINED_OBJECT, format!("connector \"{connector}\" does not exist")).with_hint(format!(
        "Available connectors: {}, {}.",
        SOURCES.join(", "),
        SINKS.join(", ")
    ))
}

fn no_source(connector: &str) -> Error {
    if SINKS.contains(&connector) {
        Error::new(SqlState::WRONG_OBJECT_TYPE, format!("connector \"{connector}\" gives no rows: it is a sink"))
    } else {
        unknown(connector)
    }
}

/// Checks a connector table as it is about to be made, and returns its columns: those declared, or where there are none those that the connector has.
pub fn validate_table(table: &ConnectorTable) -> Result<Vec<Column>> {
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
            if table.columns.is_empty() {
                return Err(Error::new(SqlState::INVALID_TABLE_DEFINITION, format!("table \"{}\" needs columns", table.name)));
            }
            Ok(table.columns.clone())
        }
        other => Err(unknown(other)),
    }
}

/// Opens one subtask's part of a source. `restored` are all splits of the operator's checkpoint.
pub fn open_source(
    table: &ConnectorTable,
    projection: &[usize],
    subtask: usize,
    parallelism: usize,
    restored: Option<Vec<SplitState>>,
) -> Result<Box<dyn Source>> {
    match table.connector.as_str() {
        "nexmark" => {
            let config = NexmarkConfig::parse(&table.options)?;
            Ok(Box::new(NexmarkSource::new(config, &table.columns, projection, subtask, parallelism, restored)?))
        }
        other => Err(no_source(other)),
    }
}

/// Whether a source comes to an end by itself.
pub fn is_bounded(table: &ConnectorTable) -> Result<bool> {
    match table.connector.as_str() {
        "nexmark" => Ok(NexmarkConfig::parse(&table.options)?.bounded()),
        other => Err(no_source(other)),
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

    fn splits(&self) -> Vec<SplitState> {
        let offset = if self.rows.is_some() { "waiting" } else { SENT };
        vec![SplitState { split: "0".into(), offset: offset.into() }]
    }

    fn has_reached(&self, target: &[SplitState]) -> Result<bool> {
        Ok(self.rows.is_none() || target.iter().all(|split| split.offset != SENT))
    }
}
