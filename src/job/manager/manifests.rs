//! Manifests: what makes checkpoints durable, and what may be removed once they are.
//!
//! # Invariants
//! - One manifest is written at a time; each holds the newest complete checkpoint of every job.
//! - Sinks commit what a manifest lists once it is durable, and before anybody is told that their group's checkpoint is complete. Other groups do not
//!   wait for that.
//! - A file, and a commit of the log, is removed only when no durable manifest that is kept needs it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weir_catalog::{Error, ObjectId, Result, SqlState};

use super::checkpoints::Completed;
use super::jobs::RunningJob;
use super::{Event, Hold, Manager, OfStopped, PinnedCheckpoint, RETRY_PAUSE};
use crate::checkpoint::{JobCheckpoint, Manifest, Pin};
use crate::job::savepoints::remove_origin;
use crate::job::status::{JobState, RetainedCheckpoint};
use crate::seams::faults::{self, Fault};
use crate::sinks::commit::CommitFailure;
use crate::stream::BarrierNumber;

impl Manager {
    pub(super) fn write_manifest_if_due(&mut self) {
        if self.writing || !self.manifest_dirty {
            return;
        }
        self.writing = true;
        self.manifest_dirty = false;
        self.manifest.number = self.context.build.store.next_manifest_number(self.context.numbers.peek());
        self.completing = std::mem::take(&mut self.completed);
        let mut manifest = self.manifest.clone();
        let running: BTreeSet<ObjectId> = self.jobs.iter().filter(|(_, job)| job.state != JobState::Failed).map(|(id, _)| *id).collect();
        let (store, log, sender) = (self.context.build.store.clone(), self.context.log.clone(), self.sender.clone());
        self.context.spawner.spawn_blocking(move || {
            let written = store.write_manifest_for(&manifest, |job| running.contains(&job));
            let result = written.map(|number| manifest.number = number).and_then(|()| log.write_catalog_snapshot().map(|_| ()));
            if result.is_err() {
                store.abandon(manifest.number);
            }
            let _ = sender.send(Event::ManifestWritten { manifest, result });
        });
    }

    pub(super) fn manifest_written(&mut self, manifest: Manifest, result: Result<()>) {
        self.writing = false;
        let completing = std::mem::take(&mut self.completing);
        match result {
            Err(error) => {
                tracing::warn!(%error, "checkpoint metadata could not be written");
                // What it says still holds, and goes into the next one. That is not tried at once: the disk may be full.
                self.manifest_dirty = true;
                if self.context.build.store.take_lost() {
                    // What was stored before is gone: everything is stored once more.
                    self.jobs.values_mut().for_each(|job| job.schedule.note_change());
                    self.tables_schedule.note_change();
                }
                for completed in &completing {
                    self.end_checkpoint(completed, Some(&error));
                }
                for completed in completing {
                    if let Some(first) = completed.jobs.first() {
                        self.count_failure(&completed.jobs, *first, &error);
                    }
                }
                if self.completed.is_empty() {
                    return;
                }
            }
            Ok(()) => {
                self.commit(completing, &manifest);
                self.retained.push_back(manifest);
                let dropped = self.retire();
                self.remove_unneeded(dropped);
            }
        }
        self.write_manifest_if_due();
    }

    /// The jobs for which what was made for them to begin with is needed no more, each once: they are in every checkpoint that is retained, so that no start
    /// has them begin again.
    fn take_begun(&mut self) -> Vec<ObjectId> {
        let retained = &self.retained;
        let begun = self.jobs.iter_mut().filter_map(|(id, job)| {
            let has_begun = job.job.origin.is_some() && retained.iter().all(|manifest| manifest.jobs.contains_key(id));
            (has_begun && !std::mem::replace(&mut job.has_begun, true)).then_some(*id)
        });
        begun.collect()
    }

    /// Has the sinks of the checkpoints that `manifest`, which is durable, holds commit. Who waits for one of `completing` waits for that too.
    fn commit(&self, completing: Vec<Completed>, manifest: &Manifest) {
        let mut told = BTreeSet::new();
        let of = |id: &ObjectId| manifest.jobs.get(id).map(|checkpoint| (*id, checkpoint.clone()));
        for completed in completing {
            told.extend(completed.jobs.iter().copied());
            let checkpoints = completed.jobs.iter().filter_map(of).collect();
            self.spawn_commit(Some(completed), checkpoints);
        }
        // Those of an earlier manifest that could not be written.
        let committer = &self.context.build.committer;
        let is_left = |id: &ObjectId, checkpoint: &JobCheckpoint| {
            let is_owed = checkpoint.commits().next().is_some() && committer.through(*id) < checkpoint.barrier;
            let ends = checkpoint.finished && self.jobs.get(id).is_some_and(|job| job.state != JobState::Finished);
            let is_lost = self.jobs.get(id).is_some_and(|job| job.lost);
            (is_owed || ends) && !is_lost && !told.contains(id) && !self.uncommitted.contains(id)
        };
        let left: Vec<(ObjectId, JobCheckpoint)> =
            manifest.jobs.iter().filter(|(id, checkpoint)| is_left(id, checkpoint)).filter_map(|(id, _)| of(id)).collect();
        if !left.is_empty() {
            self.spawn_commit(None, left);
        }
    }

    /// Carries out what `checkpoints`, which are durable, list; at once where that is nothing. `completed` is told of then.
    pub(super) fn spawn_commit(&self, completed: Option<Completed>, checkpoints: Vec<(ObjectId, JobCheckpoint)>) {
        let (committer, sender) = (self.context.build.committer.clone(), self.sender.clone());
        let owes = checkpoints.iter().any(|(_, checkpoint)| checkpoint.commits().next().is_some());
        let carry_out = move || {
            let (mut committed, mut failed) = (Vec::new(), Vec::new());
            for (id, checkpoint) in checkpoints {
                match committer.commit(id, &checkpoint) {
                    Ok(()) => committed.push((id, checkpoint.finished)),
                    Err(failure) => failed.push((id, checkpoint.barrier, failure)),
                }
            }
            let _ = sender.send(Event::SinksCommitted { completed, committed, failed });
        };
        if owes {
            self.context.spawner.spawn_blocking(carry_out);
        } else {
            carry_out();
        }
    }

    /// The sinks of a checkpoint have committed, but for those that `failed`: they try again later, unless something is lost.
    pub(super) fn sinks_committed(
        &mut self,
        completed: Option<&Completed>,
        committed: Vec<(ObjectId, bool)>,
        failed: Vec<(ObjectId, BarrierNumber, CommitFailure)>,
    ) {
        // What a job has been taken back behind is nobody's any more.
        let committer = self.context.build.committer.clone();
        let owed = failed.into_iter().filter(|(id, barrier, _)| !committer.is_given_up(*id, *barrier));
        let explained = owed.map(|(id, _, failure)| {
            let is_lost = !failure.lost.is_empty();
            (id, if is_lost { self.explain_loss(id, failure) } else { failure.error }, is_lost)
        });
        let failed: Vec<(ObjectId, Error, bool)> = explained.collect();
        if let Some(completed) = completed {
            self.end_checkpoint(completed, failed.first().map(|(_, error, _)| error));
        }
        for (id, finished) in committed {
            self.uncommitted.remove(&id);
            self.found_again(id, finished);
            if finished {
                self.finish(id);
            }
        }
        for (id, error, is_lost) in failed {
            tracing::warn!(job = id, %error, "a sink could not commit a complete checkpoint");
            if self.is_still_lost(id, &error) || is_lost && self.lose(id, error) {
                continue;
            }
            if self.uncommitted.insert(id) {
                let sender = self.sender.clone();
                self.context.spawner.spawn(async move {
                    tokio::time::sleep(RETRY_PAUSE).await;
                    let _ = sender.send(Event::CommitDue { job: id });
                });
            }
        }
    }

    /// The newest durable checkpoint of `id` and of what it reads. Errors with `55000` where there is none.
    pub(super) fn pin(&self, id: ObjectId, of_stopped: OfStopped) -> Result<PinnedCheckpoint> {
        let job = self.jobs.get(&id).ok_or_else(super::not_running)?;
        let none = |why: &str| {
            Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, format!("job \"{}\" has no checkpoint", job.job.name))
                .with_detail(why.to_string())
                .with_hint("Try again when it runs: SHOW JOBS tells its state.")
        };
        let is_left = job.state == JobState::Failed;
        if is_left {
            self.check_left(job, of_stopped)?;
        }
        // A view that was rebuilt has left the present manifest before the durable one.
        let manifest = self.retained.back().filter(|_| self.manifest.jobs.contains_key(&id));
        let Some((manifest, checkpoint)) = manifest.and_then(|manifest| Some((manifest, manifest.jobs.get(&id)?))) else {
            if is_left {
                return self.pin_nothing(job, of_stopped);
            }
            return Err(none("It has not been checkpointed since it began."));
        };
        let mut inputs = Vec::new();
        for input in &job.upstream {
            let kept = checkpoint.inputs.get(input).filter(|_| is_left);
            let of_input = match (kept, self.jobs.get(input)) {
                // What was kept for it when it was stopped: the view has gone on.
                (Some(rows), Some(view)) => Some(JobCheckpoint {
                    operators: BTreeMap::from([(format!("{}/rows", view.job.name), rows.clone())]),
                    inputs: BTreeMap::new(),
                    ..checkpoint.clone()
                }),
                _ => manifest.jobs.get(input).filter(|other| other.barrier == checkpoint.barrier).cloned(),
            };
            inputs.push((*input, of_input.ok_or_else(|| none("A view that it reads was not checkpointed with it."))?));
        }
        let parts = inputs.iter().map(|(_, checkpoint)| checkpoint).chain([checkpoint]).flat_map(|job| job.operators.values());
        let files = parts.flat_map(|operator| operator.parts.iter().flat_map(|part| &part.files).chain(&operator.closed_splits));
        let pin = self.context.build.store.pin(files.chain(manifest.tables.iter().flat_map(|tables| &tables.part.files)));
        Ok(PinnedCheckpoint {
            job: job.job.clone(),
            graph: job.graph.clone(),
            checkpoint: checkpoint.clone(),
            inputs,
            tables: manifest.tables.clone(),
            is_left,
            pin,
            tables_pin: None,
            hold: None,
        })
    }

    /// Errors with `55000` where nothing is to be had of `job`, which was stopped by an error.
    fn check_left(&self, job: &RunningJob, of_stopped: OfStopped) -> Result<()> {
        let name = &job.job.name;
        let stopped = |hint: String| {
            let error = Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, format!("job \"{name}\" is stopped"));
            let error = job
                .last_error
                .as_ref()
                .map_or(error.clone(), |last| error.with_detail(format!("{} {}", last.code().as_str(), last.message())));
            Err(error.with_hint(hint))
        };
        if job.lost || job.graph.nodes.is_empty() {
            let hint = job.last_error.as_ref().and_then(Error::hint).map(str::to_string);
            return stopped(hint.unwrap_or_else(|| format!("Remove the cause, then ALTER JOB {name} RESUME.")));
        }
        if of_stopped == OfStopped::Nothing {
            return stopped(format!(
                "Remove the cause, then ALTER JOB {name} RESUME; or give it a query that bears what it meets with ALTER ... AS; or end it with ALTER JOB {name} STOP WITH SAVEPOINT."
            ));
        }
        Ok(())
    }

    /// What `job`, which was stopped by an error and has no checkpoint, has left: nothing, from which it is built anew.
    fn pin_nothing(&self, job: &RunningJob, of_stopped: OfStopped) -> Result<PinnedCheckpoint> {
        let name = &job.job.name;
        // One that has never had a checkpoint begins again with the savepoint that it began with.
        let has_none = self.keeps_its_place(job.job.id) && job.job.origin.is_none();
        if of_stopped != OfStopped::WhatItKeeps || has_none {
            let error = Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, format!("job \"{name}\" is stopped, and has no checkpoint"));
            return Err(error.with_hint(format!(
                "What it computed comes again from what it reads: ALTER JOB {name} RESUME builds it anew, and so does ALTER ... AS with another query."
            )));
        }
        let checkpoint = JobCheckpoint {
            barrier: 0,
            commit: self.context.log.end(),
            time_us: self.context.clock.now_us(),
            operators: BTreeMap::new(),
            finished: false,
            inputs: BTreeMap::new(),
        };
        let (job, graph) = (job.job.clone(), job.graph.clone());
        let pin = self.context.build.store.pin(std::iter::empty());
        Ok(PinnedCheckpoint { job, graph, checkpoint, inputs: Vec::new(), tables: None, is_left: true, pin, tables_pin: None, hold: None })
    }

    /// The checkpoints that can be gone back to, oldest first.
    pub(super) fn retained_barriers(&self) -> Vec<BarrierNumber> {
        let mut barriers: Vec<BarrierNumber> = self.retained.iter().map(|manifest| manifest.barrier).collect();
        barriers.dedup();
        barriers
    }

    /// The retained manifest of the checkpoint `barrier`. Of several the last counts.
    pub(super) fn retained_manifest(&self, barrier: BarrierNumber) -> Option<&Manifest> {
        self.retained.iter().rev().find(|manifest| manifest.barrier == barrier)
    }

    /// What there is to say of a retained checkpoint.
    pub(super) fn retained_status(&self, barrier: BarrierNumber) -> Option<RetainedCheckpoint> {
        let manifest = self.retained_manifest(barrier)?;
        let time_us = manifest.jobs.values().filter(|job| job.barrier == barrier).map(|job| job.time_us).max();
        let names = manifest.jobs.keys().filter_map(|id| self.jobs.get(id)).map(|job| job.job.name.clone()).collect();
        Some(RetainedCheckpoint { checkpoint: barrier, time_us, jobs: names })
    }

    /// The retained checkpoints that have the job `id`.
    pub(super) fn retained_of(&self, id: ObjectId) -> Vec<BarrierNumber> {
        let has_job = |barrier: &BarrierNumber| self.retained_manifest(*barrier).is_some_and(|manifest| manifest.jobs.contains_key(&id));
        self.retained_barriers().into_iter().filter(has_job).collect()
    }

    /// The retained checkpoints that have the job `id` as of a barrier before `barrier`.
    pub(super) fn retained_before(&self, id: ObjectId, barrier: BarrierNumber) -> Vec<BarrierNumber> {
        let is_older = |number: &BarrierNumber| {
            let job = self.retained_manifest(*number).and_then(|manifest| manifest.jobs.get(&id));
            job.is_some_and(|job| job.barrier < barrier)
        };
        self.retained_of(id).into_iter().filter(is_older).collect()
    }

    /// What the retained checkpoint `barrier` has of `id`. Errors with `42704` where there is none, or it has nothing of the job.
    pub(super) fn pin_retained(&self, id: ObjectId, barrier: BarrierNumber) -> Result<(JobCheckpoint, Pin)> {
        let found = self.retained_manifest(barrier).and_then(|manifest| manifest.jobs.get(&id));
        let checkpoint = found.cloned().ok_or_else(|| {
            let name = self.jobs.get(&id).map_or("", |job| job.job.name.as_str());
            let there: Vec<String> = self.retained_of(id).iter().map(ToString::to_string).collect();
            let mut detail =
                if there.is_empty() { "There is none of it.".to_string() } else { format!("There are: {}.", there.join(", ")) };
            if self.retained_manifest(barrier).is_some() {
                detail.push_str(" It was made later than that, or given another query since (ALTER).");
            }
            Error::new(SqlState::UNDEFINED_OBJECT, format!("there is no checkpoint {barrier} of job \"{name}\"")).with_detail(detail)
        })?;
        let operators = checkpoint.operators.values();
        let files = operators.flat_map(|operator| operator.parts.iter().flat_map(|part| &part.files).chain(&operator.closed_splits));
        let pin = self.context.build.store.pin(files);
        Ok((checkpoint, pin))
    }

    /// Whether the job that `pinned` is of can be stopped there: nothing newer is under way, and its sink has committed.
    pub(super) fn can_stop_at(&self, pinned: &PinnedCheckpoint) -> bool {
        let (id, barrier) = (pinned.job.id, pinned.checkpoint.barrier);
        let newest = match self.manifest.jobs.get(&id) {
            Some(checkpoint) => checkpoint.barrier == barrier,
            None => pinned.is_nothing(),
        };
        let committed = pinned.checkpoint.commits().next().is_none() || self.context.build.committer.through(id) >= barrier;
        let stands = |job: &RunningJob| {
            job.checkpointing.is_none() && !job.held && matches!(job.state, JobState::Running | JobState::Finished | JobState::Failed)
        };
        newest && committed && self.jobs.get(&id).is_some_and(stands)
    }

    /// Ends the subtasks of the job that `pinned` is of at once: nothing that it does after that checkpoint is shown or written. A job that has finished, or was
    /// stopped by an error, stays where it is.
    pub(super) fn stop_at(&mut self, pinned: &mut PinnedCheckpoint) {
        let id = pinned.job.id;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.stop_tasks();
        if job.state == JobState::Running {
            job.state = JobState::Restarting;
        }
        job.held = true;
        self.groups.stale = true;
        pinned.hold = Some(Hold { job: id, sender: self.sender.clone() });
    }

    /// A job that was stopped at a checkpoint goes on from there, and with it its group, which has no newer one: what it reads has gone on meanwhile. Of several
    /// that are held the last one brings all of them back.
    pub(super) fn release(&mut self, id: ObjectId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if !std::mem::take(&mut job.held) || job.state != JobState::Restarting {
            return;
        }
        let group = self.group_of(id);
        if group.iter().filter_map(|member| self.jobs.get(member)).any(|member| member.held) {
            return;
        }
        let error = Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "the job goes on from its last checkpoint");
        for member in &group {
            self.remember_seen(*member);
            // One that began elsewhere, before its jobs came into this group.
            if self.jobs.get(member).is_some_and(|job| job.checkpointing.is_some()) {
                self.checkpoint_lost(*member, &error);
            }
        }
        let again = self.stop_group(&group);
        self.start(&again);
    }

    /// Tries a commit again that failed.
    pub(super) fn commit_again(&mut self, id: ObjectId) {
        let checkpoint = self.retained.back().and_then(|durable| durable.jobs.get(&id)).cloned();
        if let (true, Some(checkpoint)) = (self.uncommitted.remove(&id), checkpoint) {
            self.spawn_commit(None, vec![(id, checkpoint)]);
        }
    }

    /// Keeps the manifests of the newest checkpoints. What only older ones need is removed by [`Manager::remove_unneeded`].
    fn retire(&mut self) -> Vec<u64> {
        let keep = self.context.settings.read().checkpoints_retained;
        let mut barriers: Vec<BarrierNumber> = self.retained.iter().map(|manifest| manifest.barrier).collect();
        barriers.dedup();
        let oldest = barriers.get(barriers.len().saturating_sub(keep)).copied().unwrap_or(0);
        // Somebody may want to go back to one where a newer one could not be restored.
        let is_wanted = |manifest: &Manifest| {
            let mut damaged = self.jobs.iter().filter_map(|(id, job)| Some((id, job.damaged_at?)));
            damaged.any(|(id, damaged_at)| manifest.barrier <= damaged_at && manifest.jobs.contains_key(id))
        };
        let mut dropped = Vec::new();
        let newest = self.retained.back().map_or(0, |manifest| manifest.number);
        let mut kept: VecDeque<Manifest> = VecDeque::new();
        for (at, manifest) in self.retained.iter().enumerate() {
            // Of several manifests of one checkpoint only the last counts.
            let superseded = self.retained.get(at + 1).is_some_and(|next| next.barrier == manifest.barrier);
            if manifest.number != newest && (superseded || manifest.barrier < oldest) && !is_wanted(manifest) {
                dropped.push(manifest.number);
            } else {
                kept.push_back(manifest.clone());
            }
        }
        self.retained = kept;
        dropped
    }

    /// Removes the manifests `dropped`, then the files, the savepoints and the part of the log that only they needed: in this order, so that whatever manifest
    /// is found after a crash can be started from.
    fn remove_unneeded(&mut self, dropped: Vec<u64>) {
        for number in dropped {
            self.context.build.store.abandon(number);
        }
        // What is durable: what is in memory only may be gone after a crash. An older retained checkpoint needs more of the log than the newest one.
        let reads_log = |id: ObjectId| self.jobs.get(&id).is_some_and(RunningJob::reads_log);
        let positions = self.retained.iter().map(|manifest| manifest.log_position(reads_log));
        let mut needed = positions.clone().min().unwrap_or(0);
        if faults::is_planted(Fault::LogCutTooEarly) {
            needed = positions.max().unwrap_or(0);
        }
        let newest = self.retained.back();
        for (id, job) in &mut self.jobs {
            let checkpoint = newest.and_then(|durable| durable.jobs.get(id)).filter(|_| self.manifest.jobs.contains_key(id));
            if let Some(checkpoint) = checkpoint {
                job.log_position = job.log_position.max(checkpoint.commit);
            }
            let stopped = job.state == JobState::Failed && checkpoint.is_none();
            if job.state != JobState::Finished && !stopped && job.reads_log() {
                needed = needed.min(job.log_position);
            }
        }
        let under_way = self.barriers_under_way();
        let next = self.context.numbers.peek();
        let retained: Vec<Manifest> = self.retained.iter().chain(std::iter::once(&self.manifest)).cloned().collect();
        let (store, log) = (self.context.build.store.clone(), self.context.log.clone());
        let (files, dir) = (self.context.build.files.clone(), self.context.settings.read().data_dir.clone());
        let begun = self.take_begun();
        self.context.spawner.spawn_blocking(move || {
            if let Err(error) = store.retire(&retained, &|barrier| barrier >= next || under_way.contains(&barrier)) {
                tracing::warn!(%error, "files of old checkpoints were not removed");
                return;
            }
            for job in begun {
                if let Err(error) = remove_origin(&files, &dir, job) {
                    tracing::warn!(job, %error, "a savepoint that is not needed any more was not removed; the next start does it");
                }
            }
            if let Err(error) = log.truncate_before(needed + 1) {
                tracing::warn!(%error, "old segments of the engine log were not removed");
            }
        });
    }
}
