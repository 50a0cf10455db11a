//! Going back: a group goes on from an older checkpoint than its newest, because that can't be restored, or because somebody wants to.
//!
//! A manifest describes the whole engine, but for each job it has a checkpoint of its own, with the commit at which it had cut the log; and the log is kept from the
//! least commit on that any retained manifest needs. So the jobs of one group can be taken out of an older manifest and put into the next one, beside the
//! newest checkpoints of all others: a start from the older manifest differs only in what it does to those. Not so the stored tables: there is one
//! part of them for all jobs. Where that is damaged, all of the engine goes back (`--from-checkpoint`).
//!
//! # Invariants
//! - All jobs that a view reading a view joins go back together: they are at one barrier, as they were.
//! - What readers have seen is not taken back while they look: a run shows nothing before it has come as far again.
//! - What a sink has made visible since is taken back with the first checkpoint that follows.

use std::collections::BTreeSet;

use tokio::sync::oneshot;
use weir_catalog::{Error, ObjectId, Result, SqlState};

use super::Manager;
use crate::checkpoint::JobCheckpoint;
use crate::job::status::JobState;
use crate::stream::BarrierNumber;

fn not_now(message: String) -> Error {
    Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
}

impl Manager {
    /// Takes the group of `id` back to the retained checkpoint `barrier`; `done` is told when `id` has published again, or why it does not.
    pub(super) fn recover(&mut self, id: ObjectId, barrier: BarrierNumber, done: oneshot::Sender<Result<()>>) {
        match self.plan_recovery(id, barrier) {
            Ok(checkpoints) => self.go_back(id, checkpoints, done),
            Err(error) => drop(done.send(Err(error))),
        }
    }

    /// All that are joined to `id` by a view reading a view, whatever their state, and `id`.
    fn joined_to(&self, id: ObjectId) -> BTreeSet<ObjectId> {
        let mut joined = BTreeSet::new();
        let mut open = vec![id];
        while let Some(id) = open.pop() {
            if joined.insert(id) {
                open.extend(self.jobs.get(&id).iter().flat_map(|job| &job.upstream));
                open.extend(self.jobs.iter().filter(|(_, job)| job.upstream.contains(&id)).map(|(reader, _)| *reader));
            }
        }
        joined
    }

    /// Each job that goes back, with what the checkpoint `barrier` has of it.
    fn plan_recovery(&self, id: ObjectId, barrier: BarrierNumber) -> Result<Vec<(ObjectId, Option<JobCheckpoint>)>> {
        // Errors where it is not there.
        self.pin_retained(id, barrier)?;
        let manifest = self.retained_manifest(barrier).ok_or_else(|| Error::internal("a retained checkpoint is gone"))?;
        let mut checkpoints = Vec::new();
        for member in self.joined_to(id) {
            let Some(job) = self.jobs.get(&member) else { continue };
            let name = &job.job.name;
            if job.state == JobState::Finished {
                return Err(not_now(format!("job \"{name}\" has finished")));
            }
            if job.held || !job.created {
                return Err(
                    not_now(format!("job \"{name}\" is about to be replaced or to begin")).with_hint("Try again when that is done.")
                );
            }
            let checkpoint = manifest.jobs.get(&member);
            let fits = checkpoint.is_some_and(|own| {
                job.upstream.iter().all(|input| manifest.jobs.get(input).is_some_and(|input| input.barrier == own.barrier))
            });
            let fits = fits || checkpoint.is_some_and(|own| self.can_catch_up(member, own));
            if !fits && self.keeps_its_place(member) {
                return Err(not_now(format!("job \"{name}\" can't go back to checkpoint {barrier}"))
                    .with_detail(match checkpoint {
                        Some(_) => "The views that it reads are not in that checkpoint: it was given another query since, or they were; and what it has read or written can't be read or written again.",
                        None => "It was made later, or given another query since, and what it has read or written can't be read or written again.",
                    })
                    .with_hint(format!("Drop \"{name}\" first, or go back to a later checkpoint.")));
            }
            checkpoints.push((member, checkpoint.filter(|_| fits).cloned()));
        }
        Ok(checkpoints)
    }

    fn go_back(&mut self, id: ObjectId, checkpoints: Vec<(ObjectId, Option<JobCheckpoint>)>, done: oneshot::Sender<Result<()>>) {
        let members: Vec<ObjectId> = checkpoints.iter().map(|(member, _)| *member).collect();
        for member in &members {
            self.remember_seen(*member);
        }
        let error = not_now("the job goes back to an older checkpoint".into());
        for (member, checkpoint) in checkpoints {
            self.checkpoint_lost(member, &error);
            self.leave_cohort(member);
            self.uncommitted.remove(&member);
            let Some(job) = self.jobs.get_mut(&member) else { continue };
            job.stop_tasks();
            if job.state == JobState::Failed
                && let Some(view) = self.context.views.read().get(&member)
            {
                view.revive();
            }
            job.state = JobState::Restarting;
            job.failures = 0;
            job.last_error = None;
            job.lost = false;
            if let Some(resuming) = job.resuming.take() {
                let _ = resuming.send(Err(error.clone()));
            }
            job.ends_at = None;
            match checkpoint {
                Some(checkpoint) => {
                    job.log_position = checkpoint.commit;
                    self.manifest.jobs.insert(member, checkpoint);
                }
                None => drop(self.manifest.jobs.remove(&member)),
            }
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.published = Some(done);
        }
        self.groups.stale = true;
        // Where the process dies now, the next start goes on from there too.
        self.manifest_dirty = true;
        self.write_manifest_if_due();
        let order = self.inputs_first(&members);
        self.start(&order);
    }
}
