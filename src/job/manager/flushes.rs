//! FLUSH: told when every running view covers what was committed before.
//!
//! # Invariants
//! - A FLUSH waits for a barrier that was made after the call, and for every job that has ever published.
//! - A stopped job is an error, which is told when all others are done: whoever can do without that job has what it asked for.

use tokio::sync::oneshot;
use weir_catalog::{Error, Result};

use super::Manager;
use super::jobs::RunningJob;
use crate::job::status::JobState;
use crate::stream::BarrierNumber;

/// A FLUSH that has not been answered.
pub(super) struct FlushWaiter {
    pub(super) barrier: BarrierNumber,
    pub(super) done: oneshot::Sender<Result<()>>,
}

impl Manager {
    /// Answers those FLUSHes whose barrier every running job has finished.
    pub(super) fn check_flushes(&mut self) {
        for flush in std::mem::take(&mut self.flushes) {
            // A job that restarts counts from the barrier that it is restored to, so that it is waited for.
            let covered = self
                .jobs
                .values()
                .all(|job| !job.created || matches!(job.state, JobState::Finished | JobState::Failed) || job.completed >= flush.barrier);
            if !covered {
                self.flushes.push(flush);
                continue;
            }
            let stopped = self.jobs.values().find(|job| job.created && job.state == JobState::Failed);
            // Whoever asked may have gone.
            let _ = flush.done.send(stopped.map_or(Ok(()), |job| Err(stopped_error(job))));
        }
    }
}

/// The error that stopped a job, as FLUSH gives it.
fn stopped_error(job: &RunningJob) -> Error {
    let name = &job.job.name;
    let Some(cause) = &job.last_error else { return Error::internal(format!("job \"{name}\" is stopped")) };
    let mut error = Error::new(cause.code().clone(), format!("job \"{name}\" is stopped: {}", cause.message()));
    if let Some(detail) = cause.detail() {
        error = error.with_detail(detail);
    }
    if let Some(context) = cause.context() {
        error = error.with_context(context);
    }
    error.with_hint(format!("Every other view covers what was committed before. Remove the cause, then ALTER JOB {name} RESUME."))
}
