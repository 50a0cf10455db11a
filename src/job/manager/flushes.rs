//! FLUSH: told when every running view covers what was committed before.
//!
//! # Invariants
//! - A FLUSH waits for a barrier that was made after the call, and for every job that has ever published.
//! - A stopped job, or one that an outage holds up, is an error, which is told when all others are done: whoever can do without that job has what it
//!   asked for.

use std::collections::BTreeSet;

use tokio::sync::oneshot;
use weir_catalog::{Error, ObjectId, Result};

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
            let is_behind = |job: &&RunningJob| job.completed < flush.barrier && job.state != JobState::Finished;
            let behind = || self.jobs.values().filter(|job| job.created && job.state != JobState::Failed).filter(is_behind);
            if behind().any(|job| job.held_up.is_none()) {
                self.flushes.push(flush);
                continue;
            }
            let stopped = self.jobs.values().find(|job| job.created && job.state == JobState::Failed).map(stopped_error);
            let held_up = || behind().find_map(|job| job.held_up.clone());
            // Whoever asked may have gone.
            let _ = flush.done.send(stopped.or_else(held_up).map_or(Ok(()), Err));
        }
    }

    /// FLUSH does not wait for the jobs of `group` until they get on again, and gives `error`, with which `id` has failed too often.
    pub(super) fn tell_outage(&mut self, id: ObjectId, group: &BTreeSet<ObjectId>, error: &Error) {
        let name = self.jobs.get(&id).map_or_else(String::new, |job| job.job.name.clone());
        let message = format!("job \"{name}\" is held up: {}", error.message());
        let told = about(Error::new(error.code().clone(), message), error).with_hint(
            "Every view that does not read what is away covers what was committed before. The job is tried again until it gets on.",
        );
        for member in group {
            if let Some(job) = self.jobs.get_mut(member) {
                job.held_up = Some(told.clone());
            }
        }
    }
}

/// The error that stopped a job, as FLUSH gives it.
fn stopped_error(job: &RunningJob) -> Error {
    let name = &job.job.name;
    let Some(cause) = &job.last_error else { return Error::internal(format!("job \"{name}\" is stopped")) };
    let error = about(Error::new(cause.code().clone(), format!("job \"{name}\" is stopped: {}", cause.message())), cause);
    error.with_hint(format!("Every other view covers what was committed before. Remove the cause, then ALTER JOB {name} RESUME."))
}

/// `error` with what `cause` says beside its message.
fn about(mut error: Error, cause: &Error) -> Error {
    if let Some(detail) = cause.detail() {
        error = error.with_detail(detail);
    }
    if let Some(context) = cause.context() {
        error = error.with_context(context);
    }
    error
}
