//! A sink that can't commit a durable checkpoint any more, because its folder or store has lost what the checkpoint lists.
//!
//! To try again and again is in vain, and to go on would leave out rows without a word. So the job is stopped, with an error that names the file or object, the checkpoint,
//! and the checkpoints from before, which the rows can be written again from (RECOVER). RESUME tries once more, for somebody may have put it there,
//! and starts the job where that succeeds.

use tokio::sync::oneshot;
use weir_catalog::{Error, ObjectId, Result, SqlState};

use super::Manager;
use crate::job::status::JobState;
use crate::seams::objects::ObjectUrl;
use crate::sinks::commit::CommitFailure;
use crate::stream::BarrierNumber;

impl Manager {
    /// The error of a sink whose store has lost something, with what can be done.
    pub(super) fn explain_loss(&self, id: ObjectId, failure: CommitFailure) -> Error {
        let CommitFailure { error, lost } = failure;
        let Some(job) = self.jobs.get(&id) else { return error };
        let name = &job.job.name;
        let lists = |barrier: &BarrierNumber| {
            let checkpoint = self.retained_manifest(*barrier).and_then(|manifest| manifest.jobs.get(&id));
            checkpoint.is_some_and(|checkpoint| checkpoint.commits().any(|commit| commit.makes(&lost)))
        };
        let retained = self.retained_of(id);
        let first = retained.iter().position(lists).unwrap_or(retained.len());
        let older = &retained[..first];
        let listing = retained.get(first).map_or_else(String::new, |barrier| format!("Checkpoint {barrier} of \"{name}\" lists it. "));
        let (one, many) = if lost.iter().any(|path| ObjectUrl::split(path).is_some()) { ("object", "objects") } else { ("file", "files") };
        let more = match lost.len() {
            0 | 1 => String::new(),
            all => format!(" {all} {many} of that checkpoint can't be made any more."),
        };
        let detail = match error.detail() {
            Some(detail) => format!("{listing}{detail}{more}"),
            None => format!("{listing}The store has neither its parts nor the object.{more}"),
        };
        let hint = match older.last() {
            Some(newest) => format!(
                "RECOVER JOB {name} FROM CHECKPOINT {newest} goes on from before, and writes its rows again; there are: {}.",
                older.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            ),
            None => format!(
                "No checkpoint from before is retained. Put the {one} there, then ALTER JOB {name} RESUME; or drop \"{name}\" and make it anew."
            ),
        };
        error.with_detail(detail).with_hint(hint)
    }

    /// Stops a job whose sink's store has lost something. False where it is about to be replaced.
    pub(super) fn lose(&mut self, id: ObjectId, error: Error) -> bool {
        if self.jobs.get(&id).is_none_or(|job| job.held) {
            return false;
        }
        self.fail_for_good(id, error);
        self.uncommitted.remove(&id);
        let newest = self.manifest.barrier;
        if let Some(job) = self.jobs.get_mut(&id) {
            job.lost = true;
            job.damaged_at.get_or_insert(newest);
        }
        true
    }

    /// Has a job that was stopped for a loss try its commit once more, and go on where that succeeds.
    pub(super) fn resume_after_commit(&mut self, id: ObjectId, done: oneshot::Sender<Result<()>>) {
        let checkpoint = self.retained.back().and_then(|durable| durable.jobs.get(&id)).cloned();
        let Some(job) = self.jobs.get_mut(&id) else { return };
        match checkpoint {
            Some(checkpoint) if job.resuming.is_none() => {
                job.resuming = Some(done);
                self.spawn_commit(None, vec![(id, checkpoint)]);
            }
            Some(_) => {
                let error = Error::new(
                    SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                    format!("job \"{}\" is being resumed by another statement", job.job.name),
                );
                let _ = done.send(Err(error));
            }
            None => {
                job.lost = false;
                self.resume(id, done);
            }
        }
    }

    /// A sink has committed: a job that was stopped for a loss goes on.
    pub(super) fn found_again(&mut self, id: ObjectId, finished: bool) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if !std::mem::take(&mut job.lost) {
            return;
        }
        job.damaged_at = None;
        match job.resuming.take() {
            Some(done) if finished => {
                job.last_error = None;
                let _ = done.send(Ok(()));
            }
            Some(done) if job.state == JobState::Failed => self.resume(id, done),
            _ => {}
        }
    }

    /// A sink could not commit. True where its job is stopped for a loss, and is not tried again before it is resumed.
    pub(super) fn is_still_lost(&mut self, id: ObjectId, error: &Error) -> bool {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.lost) else { return false };
        job.last_error = Some(error.clone());
        if let Some(done) = job.resuming.take() {
            let _ = done.send(Err(error.clone()));
        }
        true
    }
}
