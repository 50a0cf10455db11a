//! The tables that `state(...)` and `savepoint_state(...)` in a query's FROM give.

use std::sync::Arc;

use weir_catalog::{Error, Object, Result, SqlState};
use weir_sql::binder::{TableCall, table_calls};
use weir_sql::statement::{Parsed, Statement};

use super::query::state_table;
use super::session::Session;
use crate::checkpoint::Place;
use crate::job::stored_state::StoredState;

impl Session {
    /// Finds what the calls in a query give, for the binder. Waits for a checkpoint of each job whose state is read.
    pub async fn find_called_tables(&mut self, parsed: &Parsed) -> Result<()> {
        self.system.called.clear();
        let query = match &parsed.statement {
            Statement::Query(query) => query,
            Statement::Explain(inner) => match &inner.statement {
                Statement::Query(query) => query,
                _ => return Ok(()),
            },
            _ => return Ok(()),
        };
        for call in table_calls(query) {
            let state = self.called_state(&call).await?;
            self.system.called.push((call, state_table(Arc::new(state))));
        }
        Ok(())
    }

    async fn called_state(&self, call: &TableCall) -> Result<StoredState> {
        if call.function == "state" {
            return self.state_of_running(call).await;
        }
        let (engine, call) = (self.engine.clone(), call.clone());
        let read = tokio::task::spawn_blocking(move || {
            let is_location = ["/", "./", "../"].iter().any(|begin| call.of.starts_with(begin)) || call.of.contains("://");
            let place = if is_location { Place::parse(&call.of)? } else { engine.savepoint_place(&call.of)? };
            engine.state_of_savepoint(&place, &call.uid, call.state.as_deref())
        });
        read.await.map_err(|_| Error::internal("reading a savepoint panicked"))?
    }

    async fn state_of_running(&self, call: &TableCall) -> Result<StoredState> {
        loop {
            let catalog = self.catalog();
            let Some(Object::Job(job)) = catalog.get(&call.of).map(Arc::as_ref) else {
                let jobs: Vec<String> = catalog
                    .objects()
                    .filter(|object| matches!(object.as_ref(), Object::Job(_)))
                    .map(|object| format!("\"{}\"", object.name()))
                    .collect();
                let there = if jobs.is_empty() { "There are none.".to_string() } else { format!("There are: {}.", jobs.join(", ")) };
                return Err(Error::new(SqlState::UNDEFINED_OBJECT, format!("job \"{}\" does not exist", call.of)).with_detail(there));
            };
            let found = match call.checkpoint {
                None => self.engine.state_of_job(job, &call.uid, call.state.as_deref()).await,
                Some(checkpoint) => self.engine.state_at(job, checkpoint, &call.uid, call.state.as_deref()).await,
            };
            // Another job may have taken its place meanwhile, under its name.
            let is_replaced = self.catalog().get(&call.of).is_some_and(|present| present.id() != job.id);
            if found.is_ok() || !is_replaced {
                return found;
            }
        }
    }
}
