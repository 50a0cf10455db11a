//! The system views: what runs, what it costs, and what is in force, as tables that queries can read.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, SchemaRef, TimeUnit};
use datafusion::catalog::TableProvider;
use datafusion::datasource::{DefaultTableSource, MemTable};
use datafusion::logical_expr::TableSource;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use weir_catalog::{Column, Error, JobKind, Object, Result, SqlState, SqlType};
use weir_sql::binder::{SystemSource, TableCall};
use weir_sql::statement::ShowKind;

use super::session::{Reply, RowStream};
use crate::job::Engine;
use crate::job::build::CONNECTOR_SCAN;
use crate::job::settings::SETTINGS;
use crate::job::status::CheckpointState;
use crate::operators::error::{from_arrow, from_datafusion};
use crate::runtime::metrics;
use crate::sources::file::dead_letters;

/// Finds the system views by name, and reads them.
#[derive(Clone, Debug, Default)]
pub struct SystemTables {
    /// What the calls in the present statement give.
    pub(super) called: Vec<(TableCall, Arc<dyn TableProvider>)>,
}

type ColumnList = &'static [(&'static str, SqlType)];

const JOBS: ColumnList = &[
    ("id", SqlType::BigInt),
    ("name", SqlType::Text),
    ("kind", SqlType::Text),
    ("state", SqlType::Text),
    ("parallelism", SqlType::BigInt),
    ("barrier", SqlType::BigInt),
    ("barriers_behind", SqlType::BigInt),
    ("restarts", SqlType::BigInt),
    ("error_code", SqlType::Text),
    ("last_error", SqlType::Text),
    ("kept_bytes", SqlType::BigInt),
];
const OPERATORS: ColumnList = &[
    ("job", SqlType::Text),
    ("uid", SqlType::Text),
    ("operator", SqlType::Text),
    ("subtask", SqlType::BigInt),
    ("rows_in", SqlType::BigInt),
    ("rows_out", SqlType::BigInt),
    ("busy_percent", SqlType::BigInt),
    ("back_pressured_percent", SqlType::BigInt),
    ("state_rows", SqlType::BigInt),
    ("state_bytes", SqlType::BigInt),
    ("memory_bytes", SqlType::BigInt),
];
const SOURCES: ColumnList =
    &[("job", SqlType::Text), ("uid", SqlType::Text), ("subtask", SqlType::BigInt), ("bad_records", SqlType::BigInt)];
const CHECKPOINTS: ColumnList = &[
    ("checkpoint", SqlType::BigInt),
    ("state", SqlType::Text),
    ("started", SqlType::TIMESTAMP),
    ("duration_us", SqlType::BigInt),
    ("job", SqlType::Text),
    ("uid", SqlType::Text),
    ("subtask", SqlType::BigInt),
    ("alignment_us", SqlType::BigInt),
    ("snapshot_us", SqlType::BigInt),
    ("store_us", SqlType::BigInt),
    ("bytes", SqlType::BigInt),
    ("bytes_new", SqlType::BigInt),
    ("files_new", SqlType::BigInt),
    ("files_reused", SqlType::BigInt),
    ("error", SqlType::Text),
    ("retained", SqlType::Boolean),
];
/// What SHOW CHECKPOINTS says of each.
const CHECKPOINT_SUMMARY: ColumnList = &[
    ("checkpoint", SqlType::BigInt),
    ("state", SqlType::Text),
    ("started", SqlType::TIMESTAMP),
    ("duration_us", SqlType::BigInt),
    ("jobs", SqlType::BigInt),
    ("alignment_us", SqlType::BigInt),
    ("snapshot_us", SqlType::BigInt),
    ("store_us", SqlType::BigInt),
    ("bytes", SqlType::BigInt),
    ("bytes_new", SqlType::BigInt),
    ("files_new", SqlType::BigInt),
    ("files_reused", SqlType::BigInt),
    ("error", SqlType::Text),
    ("retained", SqlType::Boolean),
];
const SETTINGS_COLUMNS: ColumnList =
    &[("name", SqlType::Text), ("setting", SqlType::Text), ("default", SqlType::Text), ("description", SqlType::Text)];
const RELATIONS: ColumnList = &[
    ("id", SqlType::BigInt),
    ("name", SqlType::Text),
    ("kind", SqlType::Text),
    ("connector", SqlType::Text),
    ("guarantee", SqlType::Text),
    ("definition", SqlType::Text),
];

const VIEWS: &[(&str, ColumnList)] = &[
    ("weir_jobs", JOBS),
    ("weir_operators", OPERATORS),
    ("weir_sources", SOURCES),
    ("weir_checkpoints", CHECKPOINTS),
    ("weir_settings", SETTINGS_COLUMNS),
    ("weir_relations", RELATIONS),
];

/// Errors with `42939` if `name` is of the kind that system views and PostgreSQL's catalogs have: a relation of that name would hide one, now or in
/// a later version.
pub fn check_name(name: &str) -> Result<()> {
    if name.ends_with(dead_letters::SUFFIX) {
        let code = SqlState::parse("42939").unwrap_or(SqlState::DUPLICATE_TABLE);
        return Err(Error::new(code, format!("unacceptable relation name \"{name}\""))
            .with_detail(format!("The suffix \"{}\" is reserved for the bad records of tables.", dead_letters::SUFFIX)));
    }
    match RESERVED_PREFIXES.iter().find(|prefix| name.starts_with(**prefix)) {
        None => Ok(()),
        Some(prefix) => {
            let code = SqlState::parse("42939").unwrap_or(SqlState::DUPLICATE_TABLE);
            Err(Error::new(code, format!("unacceptable relation name \"{name}\""))
                .with_detail(format!("The prefix \"{prefix}\" is reserved for system relations.")))
        }
    }
}

/// What the names of system views and PostgreSQL's catalogs begin with.
const RESERVED_PREFIXES: [&str; 2] = ["weir_", "pg_"];

fn columns(list: ColumnList) -> Vec<Column> {
    list.iter().map(|(name, ty)| Column { name: (*name).to_string(), ty: ty.clone(), nullable: true, default: None }).collect()
}

/// A nullable TEXT column.
pub fn text_column(name: &str) -> Column {
    Column { name: name.to_string(), ty: SqlType::Text, nullable: true, default: None }
}

impl weir_sql::binder::SystemTables for SystemTables {
    fn resolve(&self, schema: Option<&str>, name: &str) -> Option<SystemSource> {
        if !matches!(schema, None | Some("public" | "weir_catalog")) {
            return None;
        }
        if name.len() > dead_letters::SUFFIX.len() && name.ends_with(dead_letters::SUFFIX) {
            return Some(SystemSource { name: name.to_string(), columns: dead_letters::columns() });
        }
        let (name, list) = VIEWS.iter().find(|(known, _)| *known == name)?;
        Some(SystemSource { name: (*name).to_string(), columns: columns(list) })
    }

    fn called(&self, call: &TableCall) -> Option<Arc<dyn TableSource>> {
        let (_, table) = self.called.iter().find(|(known, _)| known == call)?;
        Some(Arc::new(DefaultTableSource::new(table.clone())))
    }
}

impl SystemTables {
    /// The present content of a system view.
    pub fn provider(&self, name: &str, engine: &Engine) -> Result<Arc<dyn TableProvider>> {
        let (_, list) =
            VIEWS.iter().find(|(known, _)| *known == name).ok_or_else(|| Error::internal(format!("there is no system view \"{name}\"")))?;
        let mut rows = Rows::new(list);
        match name {
            "weir_jobs" => jobs(engine, &mut rows),
            "weir_operators" => operators(engine, &mut rows),
            "weir_sources" => sources(engine, &mut rows),
            "weir_checkpoints" => checkpoints(engine, &mut rows),
            "weir_settings" => settings(engine, &mut rows),
            _ => relations(engine, &mut rows),
        }
        let batch = rows.finish()?;
        let table = MemTable::try_new(batch.schema(), vec![vec![batch]]).map_err(from_datafusion)?;
        Ok(Arc::new(table))
    }
}

/// A value of a system view.
enum Value {
    Int(Option<i64>),
    Text(Option<String>),
    Time(Option<i64>),
    Bool(bool),
}

impl From<u64> for Value {
    fn from(value: u64) -> Value {
        Value::Int(i64::try_from(value).ok())
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Value {
        Value::Int(i64::try_from(value).ok())
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::Text(Some(value.to_string()))
    }
}

impl From<Option<String>> for Value {
    fn from(value: Option<String>) -> Value {
        Value::Text(value)
    }
}

/// Collects the rows of a system view by column.
struct Rows {
    schema: SchemaRef,
    columns: Vec<Vec<Value>>,
}

impl Rows {
    fn new(list: ColumnList) -> Rows {
        Rows { schema: weir_catalog::object::schema_of(&columns(list)), columns: list.iter().map(|_| Vec::new()).collect() }
    }

    fn push<const N: usize>(&mut self, values: [Value; N]) {
        debug_assert_eq!(N, self.columns.len());
        for (column, value) in self.columns.iter_mut().zip(values) {
            column.push(value);
        }
    }

    fn finish(self) -> Result<RecordBatch> {
        let arrays = self
            .schema
            .fields()
            .iter()
            .zip(&self.columns)
            .map(|(field, values)| -> ArrayRef {
                let int = |value: &Value| match value {
                    Value::Int(value) | Value::Time(value) => *value,
                    Value::Text(_) | Value::Bool(_) => None,
                };
                match field.data_type() {
                    DataType::Boolean => {
                        Arc::new(values.iter().map(|value| Some(matches!(value, Value::Bool(true)))).collect::<BooleanArray>())
                    }
                    DataType::Int64 => Arc::new(values.iter().map(int).collect::<Int64Array>()),
                    DataType::Timestamp(TimeUnit::Microsecond, None) => {
                        Arc::new(values.iter().map(int).collect::<TimestampMicrosecondArray>())
                    }
                    _ => Arc::new(
                        values
                            .iter()
                            .map(|value| match value {
                                Value::Text(value) => value.as_deref(),
                                _ => None,
                            })
                            .collect::<StringArray>(),
                    ),
                }
            })
            .collect();
        RecordBatch::try_new(self.schema, arrays).map_err(from_arrow)
    }
}

fn jobs(engine: &Engine, rows: &mut Rows) {
    for job in &engine.board().read().jobs {
        let error = job.last_error.as_ref();
        rows.push([
            job.id.into(),
            job.name.as_str().into(),
            job.kind.into(),
            job.state.as_str().into(),
            job.parallelism.into(),
            job.barrier.into(),
            job.in_flight.into(),
            job.restarts.into(),
            error.map(|error| error.code().to_string()).into(),
            error.map(ToString::to_string).into(),
            job.kept_bytes.into(),
        ]);
    }
}

fn operators(engine: &Engine, rows: &mut Rows) {
    let now = engine.clock().now_us();
    for job in &engine.board().read().jobs {
        for operator in &job.operators {
            let ran_us = u64::try_from(now - operator.started_us).unwrap_or(0).max(1);
            let percent = |us: u64| (us.saturating_mul(100) / ran_us).min(100);
            rows.push([
                job.name.as_str().into(),
                operator.uid.as_str().into(),
                operator.operator.as_str().into(),
                operator.subtask.into(),
                metrics::get(&operator.metrics.rows_in).into(),
                metrics::get(&operator.metrics.rows_out).into(),
                percent(metrics::get(&operator.subtask_metrics.busy_us)).into(),
                percent(metrics::get(&operator.subtask_metrics.back_pressured_us)).into(),
                metrics::get(&operator.metrics.state_rows).into(),
                metrics::get(&operator.metrics.state_bytes).into(),
                metrics::get(&operator.metrics.memory_bytes).into(),
            ]);
        }
    }
}

/// The scans of connector tables. A count is kept with the state: it goes on where it was when the job is restored.
fn sources(engine: &Engine, rows: &mut Rows) {
    for job in &engine.board().read().jobs {
        for operator in job.operators.iter().filter(|operator| operator.operator == CONNECTOR_SCAN) {
            rows.push([
                job.name.as_str().into(),
                operator.uid.as_str().into(),
                operator.subtask.into(),
                metrics::get(&operator.subtask_metrics.bad_records).into(),
            ]);
        }
    }
}

fn checkpoints(engine: &Engine, rows: &mut Rows) {
    let board = engine.board().read();
    // Those of before the start are known by what is kept of them alone.
    let is_remembered = |number| board.checkpoints.iter().any(|checkpoint| checkpoint.checkpoint == number);
    for retained in board.retained.iter().filter(|retained| !is_remembered(retained.checkpoint)) {
        for job in &retained.jobs {
            let none = || Value::Int(None);
            rows.push([
                retained.checkpoint.into(),
                CheckpointState::Completed.as_str().into(),
                Value::Time(retained.time_us),
                none(),
                job.as_str().into(),
                Value::Text(None),
                none(),
                none(),
                none(),
                none(),
                none(),
                none(),
                none(),
                none(),
                Value::Text(None),
                Value::Bool(true),
            ]);
        }
    }
    for checkpoint in &board.checkpoints {
        let retained = board.retained.iter().any(|retained| retained.checkpoint == checkpoint.checkpoint);
        for group in &checkpoint.groups {
            let duration = group.ended_us.map(|ended| ended - checkpoint.started_us);
            let error = group.error.as_ref().map(ToString::to_string);
            let mut push = |job: &str, uid: Option<String>, subtask: Value, costs: [Value; 7]| {
                let [alignment, snapshot, store, bytes, bytes_new, files_new, files_reused] = costs;
                rows.push([
                    checkpoint.checkpoint.into(),
                    group.state.as_str().into(),
                    Value::Time(Some(checkpoint.started_us)),
                    Value::Int(duration),
                    job.into(),
                    uid.into(),
                    subtask,
                    alignment,
                    snapshot,
                    store,
                    bytes,
                    bytes_new,
                    files_new,
                    files_reused,
                    error.clone().into(),
                    Value::Bool(retained),
                ]);
            };
            // What has acknowledged nothing is there all the same.
            for (_, name) in group.jobs.iter().filter(|(id, _)| !group.parts.iter().any(|part| part.job == *id)) {
                push(name, None, Value::Int(None), [const { Value::Int(None) }; 7]);
            }
            if group.tables && group.parts.is_empty() {
                push("stored tables", None, Value::Int(None), [const { Value::Int(None) }; 7]);
            }
            for part in &group.parts {
                let cost = part.cost;
                push(
                    &part.job_name,
                    Some(part.uid.clone()),
                    part.subtask.into(),
                    [
                        cost.alignment_us.into(),
                        cost.snapshot_us.into(),
                        cost.store_us.into(),
                        cost.bytes.into(),
                        cost.bytes_new.into(),
                        cost.files_new.into(),
                        cost.files_reused.into(),
                    ],
                );
            }
        }
    }
}

fn settings(engine: &Engine, rows: &mut Rows) {
    let settings = engine.settings();
    for info in SETTINGS {
        rows.push([info.name.into(), settings.get(info.name).into(), info.default.into(), info.description.into()]);
    }
}

fn relations(engine: &Engine, rows: &mut Rows) {
    for object in engine.catalog().objects() {
        let (connector, guarantee) = match object.as_ref() {
            Object::ConnectorTable(table) => (Some(table.connector.clone()), None),
            Object::Job(job) => match &job.kind {
                JobKind::Sink { connector, .. } => (Some(connector.clone()), Some(crate::sinks::guarantee(connector).to_string())),
                _ => (None, None),
            },
            Object::StoredTable(_) | Object::View(_) => (None, None),
        };
        rows.push([
            object.id().into(),
            object.name().into(),
            object.kind().into(),
            connector.into(),
            guarantee.into(),
            object.sql().into(),
        ]);
    }
}

/// The columns of what SHOW lists.
pub fn show_columns(kind: ShowKind) -> Vec<Column> {
    let text = |names: &[&str]| names.iter().map(|name| text_column(name)).collect();
    match kind {
        ShowKind::Jobs => columns(JOBS),
        ShowKind::Savepoints => text(super::savepoint::SAVEPOINT_COLUMNS),
        ShowKind::Checkpoints => columns(CHECKPOINT_SUMMARY),
        ShowKind::Tables => text(&["name", "kind", "connector"]),
        ShowKind::Sources => text(&["name", "connector"]),
        ShowKind::Views | ShowKind::MaterializedViews => text(&["name", "definition"]),
        ShowKind::Sinks => text(&["name", "connector", "guarantee", "definition"]),
    }
}

/// Rows of text.
pub fn text_rows(names: &[&str], rows: Vec<Vec<Option<String>>>, tag: &'static str) -> Result<Reply> {
    let columns: Vec<Column> = names.iter().map(|name| text_column(name)).collect();
    let schema = weir_catalog::object::schema_of(&columns);
    let arrays = (0..names.len())
        .map(|column| Arc::new(rows.iter().map(|row| row[column].as_deref()).collect::<StringArray>()) as ArrayRef)
        .collect();
    let batch = RecordBatch::try_new(schema.clone(), arrays).map_err(from_arrow)?;
    let stream = RecordBatchStreamAdapter::new(schema, futures::stream::iter([Ok(batch)]));
    Ok(Reply::Rows(RowStream { columns, stream: Box::pin(stream), tag }))
}
