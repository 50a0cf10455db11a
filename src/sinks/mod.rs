//! Where data leaves: the sinks. A sink is the last operator of a job.

pub mod blackhole;

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_catalog::{Catalog, Error, Job, JobKind, Object, Result, SqlState};

use crate::operators::Operator;

/// Opens one subtask's part of a job's sink.
pub fn open_sink(catalog: &Catalog, job: &Job) -> Result<Box<dyn Operator>> {
    let connector = match &job.kind {
        JobKind::Sink { connector, .. } => connector.as_str(),
        JobKind::Insert { target } => match catalog.get_id(*target).map(Arc::as_ref) {
            Some(Object::ConnectorTable(table)) => table.connector.as_str(),
            _ => return Err(Error::internal(format!("job {} has no table to write to", job.name))),
        },
        JobKind::MaterializedView { .. } => return Err(Error::internal(format!("{} is not a sink", job.name))),
    };
    match connector {
        "blackhole" => Ok(Box::new(blackhole::BlackholeSink::new(Arc::default()))),
        other => Err(no_sink(other)),
    }
}

/// Checks the options of a sink that is about to be made.
pub fn validate_sink(connector: &str, options: &BTreeMap<String, String>) -> Result<()> {
    match connector {
        "blackhole" => blackhole::BlackholeSink::validate_options(options),
        other => Err(no_sink(other)),
    }
}

/// What a connector's sink guarantees, as SHOW SINKS says it.
pub fn guarantee(connector: &str) -> &'static str {
    match connector {
        "blackhole" => "none: rows are dropped",
        _ => "unknown",
    }
}

fn no_sink(connector: &str) -> Error {
    if crate::sources::connector::SOURCES.contains(&connector) {
        Error::new(SqlState::WRONG_OBJECT_TYPE, format!("connector \"{connector}\" takes no rows: it is a source"))
    } else {
        Error::new(SqlState::UNDEFINED_OBJECT, format!("connector \"{connector}\" does not exist"))
            .with_hint(format!("Available sinks: {}.", crate::sources::connector::SINKS.join(", ")))
    }
}
