//! `weir run FILE.sql`: a script on an embedded engine.

use std::process::ExitCode;
use std::sync::Arc;

use arrow::array::Array;
use futures::StreamExt;
use weir_catalog::{JobKind, Object, Result};

use super::table::Table;
use crate::job::Engine;
use crate::operators::error::from_datafusion;
use crate::server::encode::write_text;
use crate::server::prepared::Arguments;
use crate::server::query::QueryRunner;
use crate::server::session::{Reply, Session};

/// Runs the statements of `script` one after another, prints what they give, waits for its bounded jobs, and takes a last checkpoint.
/// Stops at the first error, which is printed.
///
/// Where it fails and the data folder is `temporary`, nobody goes on with its jobs: they are dropped, so that none leaves files which it has not committed.
pub async fn run(engine: &Arc<Engine>, script: &str, temporary: bool) -> Result<ExitCode> {
    let mut session = Session::new(engine.clone(), QueryRunner::new(engine.clone())?);
    let done = run_statements(engine, &mut session, script).await;
    if temporary && !matches!(done, Ok(true)) {
        drop_sinks(engine, &mut session).await;
    }
    Ok(if done? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Drops all jobs that write to the outside, as far as they can be.
async fn drop_sinks(engine: &Arc<Engine>, session: &mut Session) {
    session.abandon_block();
    for object in engine.catalog().objects() {
        let Object::Job(job) = object.as_ref() else { continue };
        if matches!(job.kind, JobKind::MaterializedView { .. }) {
            continue;
        }
        let statement = format!("DROP JOB \"{}\" CASCADE", job.name.replace('"', "\"\""));
        for parsed in weir_sql::parser::parse(&statement).unwrap_or_default() {
            // What failed has been told; that its job can't be dropped would say nothing more.
            if let Err(error) = session.execute(&parsed, &Arguments::default()).await {
                tracing::warn!(job = %job.name, %error, "a job of a script that failed is not dropped");
            }
        }
    }
}

/// False where a statement has failed, which has been told.
async fn run_statements(engine: &Arc<Engine>, session: &mut Session, script: &str) -> Result<bool> {
    for parsed in weir_sql::parser::parse(script)? {
        let reply = session.execute(&parsed, &Arguments::default()).await;
        for notice in session.take_notices() {
            eprintln!("{}:  {}", notice.severity.as_str(), notice.message);
        }
        match reply {
            Ok(Reply::Command(tag)) => println!("{tag}"),
            Ok(Reply::Rows(mut rows)) => {
                let mut table = Table::new(rows.columns.iter().map(|column| column.name.clone()).collect());
                while let Some(batch) = rows.stream.next().await {
                    let batch = batch.map_err(from_datafusion)?;
                    for row in 0..batch.num_rows() {
                        let mut cells = Vec::with_capacity(batch.num_columns());
                        for column in batch.columns() {
                            if column.is_null(row) {
                                cells.push(None);
                            } else {
                                let mut text = String::new();
                                write_text(&mut text, column, row)?;
                                cells.push(Some(text));
                            }
                        }
                        table.push(cells);
                    }
                }
                println!("{table}");
            }
            Err(error) => {
                eprintln!("{}\nERROR:  {error}", parsed.text);
                return Ok(false);
            }
        }
    }
    let catalog = engine.catalog();
    for object in catalog.objects() {
        if let Object::Job(job) = object.as_ref()
            && !matches!(job.kind, JobKind::MaterializedView { .. })
            && engine.is_bounded(job)?
        {
            engine.wait_finished(job.id).await?;
        }
    }
    engine.checkpoint().await?;
    Ok(true)
}
