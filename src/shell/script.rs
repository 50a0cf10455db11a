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
pub async fn run(engine: &Arc<Engine>, script: &str) -> Result<ExitCode> {
    let mut session = Session::new(engine.clone(), QueryRunner::new(engine.clone())?);
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
                return Ok(ExitCode::FAILURE);
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
    Ok(ExitCode::SUCCESS)
}
