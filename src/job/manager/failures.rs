//! What becomes of a job that fails: it is restarted with its group, and after too many failures for one reason stopped, with what reads it.
//!
//! # Invariants
//! - A failure restarts the failed job's group and touches no other.
//! - A job that never published is not tried again: whoever creates it learns at once.
//! - An outage of what a job reads or writes, however long it lasts, stops no job, and makes no FLUSH wait for its end.
//! - A connector's rows can't be read again, nor a sink's taken back, so the checkpoint of a job with one is never forgotten.
//! - What readers have seen is remembered when a run ends, and the next run of the group shows nothing before it has come as far again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use weir_catalog::{Error, ObjectId, Result, SqlState};

use super::{Event, Manager};
use crate::job::status::JobState;
use crate::sources::Splits;

/// Failures further apart than this are not counted together.
const FAILURE_SERIES: Duration = Duration::from_secs(600);

/// What two messages of one failure have in common: what they quote, as folders and files, and numbers, are others in each run.
fn kind_of(message: &str) -> String {
    message.split('"').step_by(2).flat_map(str::chars).filter(|character| !character.is_ascii_digit()).collect()
}

/// Whether what a job reads or writes could not be reached, or has no room. No row is to blame for that, and it passes.
fn is_outage(error: &Error) -> bool {
    [SqlState::IO_ERROR, SqlState::DISK_FULL].contains(error.code()) || error.code().as_str().starts_with("08")
}

impl Manager {
    /// A job failed: its group is restarted from its last checkpoint, or, after too many failures for the same reason, the job is stopped.
    pub(super) fn fail(&mut self, id: ObjectId, error: Error) {
        self.fail_and(id, error, false);
    }

    /// A job failed, and would fail again however often it were restarted: it is stopped, and its group restarted without it.
    pub(super) fn fail_for_good(&mut self, id: ObjectId, error: Error) {
        if self.jobs.get(&id).is_some_and(|job| job.state == JobState::Restarting) {
            self.stop_with(id, error);
        } else {
            self.fail_and(id, error, true);
        }
    }

    fn fail_and(&mut self, id: ObjectId, error: Error, for_good: bool) {
        let (attempts, delay) = {
            let settings = self.context.settings.read();
            (settings.restart_attempts, settings.restart_delay)
        };
        let group = self.group_of(id);
        for member in &group {
            self.remember_seen(*member);
        }
        let newest = self.manifest.barrier;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if matches!(job.state, JobState::Failed | JobState::Restarting) {
            return;
        }
        if *error.code() == SqlState::DATA_CORRUPTED && job.restoring.is_some() {
            job.damaged_at.get_or_insert(newest);
        }
        tracing::warn!(job = %job.job.name, %error, "a job failed");
        let same =
            job.last_error.as_ref().is_some_and(|last| last.code() == error.code() && kind_of(last.message()) == kind_of(error.message()));
        // Failures that lie far apart are not one series.
        let series = same && job.failed_at.is_some_and(|at| at.elapsed() < FAILURE_SERIES);
        job.failures = if series { job.failures + 1 } else { 1 };
        job.failed_at = Some(Instant::now());
        job.last_error = Some(error.clone());
        let failures = job.failures;
        // A job that never published is not worth another try: whoever creates it learns at once.
        let may_stop = attempts == 0 || !is_outage(&error);
        let stop = for_good || (may_stop && failures >= attempts) || !job.created;
        if stop {
            self.stop_with(id, error.clone());
            // What it remembers is of no use to a later start, which rebuilds it from the rows; that is no way for a job that keeps its place.
            for member in self.with_readers(id) {
                if !self.keeps_its_place(member) && self.manifest.jobs.remove(&member).is_some() {
                    self.manifest_dirty = true;
                }
            }
            self.write_manifest_if_due();
        }
        for member in &group {
            self.checkpoint_lost(*member, &error);
        }
        if !stop && failures >= attempts {
            self.tell_outage(id, &group, &error);
        }
        let again = self.stop_group(&group);
        if !again.is_empty() {
            let pause = if stop { Duration::ZERO } else { delay * 2u32.saturating_pow(failures.saturating_sub(1).min(16) as u32) };
            let pause = pause.min(Duration::from_secs(10));
            let sender = self.sender.clone();
            self.context.spawner.spawn(async move {
                tokio::time::sleep(pause).await;
                let _ = sender.send(Event::RestartDue { jobs: again });
            });
        }
        self.check_flushes();
    }

    /// Ends the runs of a group's jobs, but for those that are stopped or held. Returns them: they are to be started again.
    pub(super) fn stop_group(&mut self, group: &BTreeSet<ObjectId>) -> Vec<ObjectId> {
        let mut again = Vec::new();
        for member in group {
            let Some(job) = self.jobs.get_mut(member) else { continue };
            if job.state == JobState::Failed || job.held {
                continue;
            }
            job.stop_tasks();
            job.state = JobState::Restarting;
            job.restarts += 1;
            again.push(*member);
        }
        for member in &again {
            self.leave_cohort(*member);
        }
        again
    }

    /// Stops a job for good, with what reads it.
    pub(super) fn stop_with(&mut self, id: ObjectId, error: Error) {
        let stopped = self.jobs.get(&id).map_or_else(String::new, |job| job.job.name.clone());
        let members = self.with_readers(id);
        self.keep_inputs(&members);
        for member in members {
            self.checkpoint_lost(member, &error);
            self.leave_cohort(member);
            let Some(job) = self.jobs.get_mut(&member) else { continue };
            job.stop_tasks();
            job.state = JobState::Failed;
            let error = if member == id {
                error.clone()
            } else {
                let detail = error.detail().map_or_else(String::new, |detail| format!("{detail} "));
                error.clone().with_detail(format!("{detail}Job \"{stopped}\", whose view it reads, was stopped by this error."))
            };
            job.last_error = Some(error.clone());
            if let Some(published) = job.published.take() {
                let _ = published.send(Err(error.clone()));
            }
            for waiter in job.finished_waiters.drain(..) {
                let _ = waiter.send(Err(error.clone()));
            }
            let name = job.job.name.clone();
            let damaged = job.restoring.as_ref().filter(|_| job.damaged_at.is_some()).map(|checkpoint| checkpoint.barrier);
            let older = damaged.map_or_else(Vec::new, |damaged| self.retained_before(member, damaged));
            let hint = if older.is_empty() {
                format!("Remove the cause, then ALTER JOB {name} RESUME.")
            } else {
                let older = older.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                format!("RECOVER JOB {name} FROM CHECKPOINT goes on from an older one; there are: {older}.")
            };
            if let Some(job) = self.jobs.get_mut(&member)
                && damaged.is_some()
            {
                job.last_error = Some(error.clone().with_hint(hint.clone()));
            }
            if let Some(view) = self.context.views.read().get(&member) {
                view.fail(error.clone().with_hint(hint));
            }
        }
        self.groups.stale = true;
        self.write_manifest_if_due();
        self.check_flushes();
    }

    /// Notes how far the connectors of a job had been read at the newest barrier that it, or a view that reads it, has shown. A run that has shown nothing
    /// leaves what is known from before.
    pub(super) fn remember_seen(&mut self, id: ObjectId) {
        if let Some(view) = self.context.views.read().get(&id) {
            view.keep_tables(&self.context.tables);
        }
        let readers = self.with_readers(id);
        let shown = readers.iter().filter_map(|reader| self.jobs.get(reader)).map(|job| job.shown).max().unwrap_or(0);
        let Some(job) = self.jobs.get_mut(&id).filter(|job| shown > 0 && !job.histories.is_empty()) else { return };
        let mut seen: BTreeMap<String, Splits> = BTreeMap::new();
        for (uid, history) in &job.histories {
            match history.at(shown) {
                Some(splits) => seen.entry(uid.clone()).or_default().extend(splits),
                None => {
                    tracing::error!(job = %job.job.name, barrier = shown, "where a connector stood at the newest barrier that was shown is not known");
                    return;
                }
            }
        }
        job.seen = seen;
    }

    pub(super) fn resume(&mut self, id: ObjectId, done: oneshot::Sender<Result<()>>) {
        let result = match self.jobs.get(&id) {
            None => Err(super::not_running()),
            Some(job) if job.held => Err(Error::new(
                weir_catalog::SqlState::OBJECT_IN_USE,
                format!("job \"{}\" is about to be replaced, or to end", job.job.name),
            )
            .with_hint("Try again when that is done.")),
            Some(job) if job.state != JobState::Failed => Err(Error::new(
                weir_catalog::SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("job \"{}\" is not stopped", job.job.name),
            )),
            Some(job) => match job.upstream.iter().find(|input| self.jobs.get(input).is_none_or(|other| other.state == JobState::Failed)) {
                Some(input) => {
                    let name = self.jobs.get(input).map_or("", |other| other.job.name.as_str());
                    Err(Error::new(
                        weir_catalog::SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                        format!("job \"{}\" reads \"{name}\", which is stopped", job.job.name),
                    )
                    .with_hint(format!("ALTER JOB {name} RESUME first.")))
                }
                None => Ok(()),
            },
        };
        if let Err(error) = result {
            let _ = done.send(Err(error));
            return;
        }
        if self.jobs.get(&id).is_some_and(|job| job.lost) {
            self.resume_after_commit(id, done);
            return;
        }
        // A job that keeps its place goes on from the checkpoint. All others are rebuilt from the present rows.
        let readers: Vec<ObjectId> = self.with_readers(id).into_iter().collect();
        let mut order: Vec<ObjectId> = Vec::with_capacity(readers.len());
        for member in self.inputs_first(&readers) {
            let waits_for =
                |input: &ObjectId| !order.contains(input) && self.jobs.get(input).is_none_or(|other| other.state == JobState::Failed);
            // A reader that another stopped view keeps from beginning stays stopped, and so does what reads it.
            if member == id || !self.jobs.get(&member).is_some_and(|job| job.held || job.upstream.iter().any(waits_for)) {
                order.push(member);
            }
        }
        for member in &order {
            if !self.keeps_its_place(*member) {
                self.manifest.jobs.remove(member);
            }
            if let Some(job) = self.jobs.get_mut(member) {
                job.failures = 0;
                job.last_error = None;
                job.state = JobState::Restarting;
                if let Some(view) = self.context.views.read().get(member) {
                    view.revive();
                }
            }
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.published = Some(done);
        }
        self.groups.stale = true;
        self.start(&order);
    }
}
