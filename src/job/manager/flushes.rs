//! FLUSH: told when every running view covers what was committed before.
//!
//! # Invariants
//! - A FLUSH waits for a barrier that was made after the call, and for every job that has ever published.

use tokio::sync::oneshot;
use weir_catalog::{Error, Result};

use super::Manager;
use crate::job::status::JobState;
use crate::stream::BarrierNumber;

pub(super) struct FlushWaiter {
    pub(super) barrier: BarrierNumber,
    pub(super) done: oneshot::Sender<Result<()>>,
}

impl Manager {
    /// Answers those FLUSHes whose barrier every running job has finished.
    pub(super) fn check_flushes(&mut self) {
        let flushes = std::mem::take(&mut self.flushes);
        for flush in flushes {
            let failed = self.jobs.values().find(|job| job.state == JobState::Failed);
            if let Some(job) = failed {
                let error = job.last_error.clone().unwrap_or_else(|| Error::internal("a job failed"));
                let _ = flush.done.send(Err(error.with_context(format!("job {}", job.job.name))));
                continue;
            }
            // A job that restarts counts from the barrier that it is restored to, so that it is waited for.
            let covered = self.jobs.values().all(|job| !job.created || job.state == JobState::Finished || job.completed >= flush.barrier);
            if covered {
                let _ = flush.done.send(Ok(()));
            } else {
                self.flushes.push(flush);
            }
        }
    }
}
