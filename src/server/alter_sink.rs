//! `ALTER SINK ... AS`: a sink takes another query, and writes first what leads from all that it has written to the present result.
//!
//! It is stopped at a checkpoint, and one commit puts a job with the changed query in its place, which begins with a savepoint of it: with the state that still
//! fits, whose results are sent once, and with the former result, which is taken back. What is in both is not written. See `job::former`.

use std::sync::Arc;

use weir_catalog::{Catalog, Column, Error, Job, Object, Result, SqlState};
use weir_sql::graph::StreamGraph;

use super::session::Session;
use crate::job::sink_change::{SinkChange, sink_verdict};

/// What a sink that takes another query begins with.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AlteredSink {
    pub other_result: bool,
    pub allow_non_restored_state: bool,
}

/// `0A000`: `sink` can't take this query.
fn cannot_take(sink: &Job, why: &str) -> Error {
    let kind = Object::Job(sink.clone()).kind();
    Error::unsupported(format!("the query of {kind} {} cannot be changed to this one", sink.name))
        .with_detail(why.to_string())
        .with_hint(format!("Create another {kind}, or stop it with ALTER JOB {} STOP WITH SAVEPOINT.", sink.name))
}

/// A message as a sentence of its own.
fn sentence(message: &str) -> String {
    let mut letters = message.chars();
    letters.next().map_or_else(String::new, |first| format!("{}{}.", first.to_uppercase(), letters.as_str()))
}

/// Errors where the result would have other columns than those that `sink` has written, namely `is`.
pub(super) fn check_same_columns(sink: &Job, is: &[Column]) -> Result<()> {
    if sink.columns.len() == is.len() && sink.columns.iter().zip(is).all(|(was, is)| was.name == is.name && was.ty == is.ty) {
        return Ok(());
    }
    let list = |columns: &[Column]| columns.iter().map(|column| format!("{} {}", column.name, column.ty)).collect::<Vec<_>>().join(", ");
    Err(cannot_take(
        sink,
        &format!("What it has written has the columns ({}), and the result would have ({}).", list(&sink.columns), list(is)),
    ))
}

impl Session {
    /// What becomes of the sink `former` with the plan `graph` over `after`, and `uids` as they are called in it. `takes_rows_back` says whether it could.
    pub(super) async fn plan_altered_sink(
        &self,
        after: &Catalog,
        former: &Arc<Job>,
        graph: &StreamGraph,
        uids: &[(String, String)],
        takes_rows_back: Result<()>,
    ) -> Result<SinkChange> {
        let change = self.engine.plan_sink_change(after, former, graph, uids).await;
        let mut change = change.map_err(|error| {
            if *error.code() == SqlState::FEATURE_NOT_SUPPORTED { cannot_take(former, &sentence(error.message())) } else { error }
        })?;
        if let (true, Err(why)) = (change.takes_back, takes_rows_back) {
            return Err(cannot_take(
                former,
                &format!("Rows that it has written may be none of the present result, and it cannot take rows back: {}.", why.message()),
            ));
        }
        change.plan.verdicts.push(sink_verdict(former, change.other_result, change.takes_back));
        Ok(change)
    }
}
