//! The checkpoint coordinator: which checkpoints are under way, what has acknowledged them, and who waits for one.
//!
//! A checkpoint is a group's. Groups whose checkpoints are due at the same time take them at one barrier, but nothing else ties them together: each is
//! complete, late or failed on its own, and the next one of a group begins when its own last one has ended. The stored tables' part is one more of them.
//!
//! # Invariants
//! - A group's checkpoint enters the manifest only as a whole: all its jobs at one barrier.
//! - A job has acknowledged when all its subtasks with state have stored their part and its roots have finished the barrier.
//! - While a job is held at a checkpoint, its group takes no other.
//! - A job is in one checkpoint at a time; it is in one exactly from the barrier to the durable manifest and its sinks' commits, the
//!   failure, or its own end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::time::Instant;
use weir_catalog::{Error, ObjectId, Result, SqlState};

use super::{Event, Manager, OfStopped, RETRY_PAUSE, Saving, Wanted};
use crate::checkpoint::snapshot::{SnapshotCost, SubtaskSnapshot, store_part};
use crate::checkpoint::{JobCheckpoint, OperatorCheckpoint, TablesCheckpoint};
use crate::job::build::BuildContext;
use crate::job::settings::Settings;
use crate::job::status::{CHECKPOINTS_REMEMBERED, CheckpointStatus, CheckpointSummary, GroupCheckpointStatus};
use crate::log::Tables;
use crate::runtime::subtask::SubtaskId;
use crate::seams::clock::Stopwatch;
use crate::stream::{Barrier, BarrierNumber, CommitSeq};

/// When checkpoints of a job, or of the stored tables, are due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    /// When the last one began, or should have begun with those of the others.
    started: Instant,
    /// When the last one ended, well or not.
    ended: Option<Instant>,
    /// The last commit that the last one has.
    commit: CommitSeq,
    /// Whether anything happened since the last one began.
    changed: bool,
    /// How many failed one after another.
    failures: usize,
    /// Whether the last one failed.
    failed: bool,
}

impl Schedule {
    /// The schedule of a job that begins, in step with checkpoints that began at `started`.
    pub(super) fn new(started: Instant) -> Schedule {
        Schedule { started, ended: None, commit: 0, changed: true, failures: 0, failed: false }
    }

    /// A barrier that is no checkpoint's of this job goes to it. One that brings nothing new changes nothing: else the checkpoints of two groups, each with
    /// a barrier of its own, would give each other cause for the next for ever.
    pub(super) fn note_barrier(&mut self, commit: CommitSeq, new_rows: bool) {
        self.changed |= new_rows || commit > self.commit;
    }

    /// Something happened that the last one does not have.
    pub(super) fn note_change(&mut self) {
        self.changed = true;
    }

    fn begin(&mut self, started: Instant, commit: CommitSeq) {
        self.started = started;
        self.commit = commit;
        self.changed = false;
    }

    /// When the next one may begin; `None` where nothing asks for one.
    fn due(&self, settings: &Settings) -> Option<Instant> {
        if !self.changed || settings.checkpoint_interval.is_zero() {
            return None;
        }
        let regular = self.started + settings.checkpoint_interval;
        Some(self.ended.map_or(regular, |ended| regular.max(ended + settings.checkpoint_min_pause)))
    }

    /// When one that is asked for may begin: at once, but not at once after one that failed, which the next would as well.
    fn wanted(&self, at_once: Instant) -> Instant {
        self.ended.filter(|_| self.failed).map_or(at_once, |ended| at_once.max(ended + RETRY_PAUSE))
    }

    /// The schedule of both together.
    fn with(self, other: Schedule) -> Schedule {
        Schedule {
            started: self.started.max(other.started),
            ended: self.ended.max(other.ended),
            commit: self.commit.min(other.commit),
            changed: self.changed || other.changed,
            failures: self.failures.max(other.failures),
            failed: self.failed || other.failed,
        }
    }

    fn end(&mut self, failed: bool) {
        self.ended = Some(Instant::now());
        self.changed |= failed;
        self.failed = failed;
    }
}

/// A group's checkpoint that has not been acknowledged in full.
pub(super) struct GroupCheckpoint {
    barrier: Arc<Barrier>,
    started: Instant,
    jobs: BTreeMap<ObjectId, JobProgress>,
}

/// What a job has acknowledged of a checkpoint.
struct JobProgress {
    snapshots: Vec<SubtaskSnapshot>,
    /// The number of subtasks with state.
    expected: usize,
    /// Whether its roots have finished the barrier.
    collected: bool,
}

impl JobProgress {
    fn is_complete(&self) -> bool {
        self.collected && self.snapshots.len() >= self.expected
    }

    fn into_operators(self) -> BTreeMap<String, OperatorCheckpoint> {
        let mut operators: BTreeMap<String, OperatorCheckpoint> = BTreeMap::new();
        for part in self.snapshots.into_iter().flat_map(|snapshot| snapshot.operators) {
            let operator = operators.entry(part.uid).or_default();
            operator.add(part.checkpoint);
        }
        operators
    }
}

/// The stored tables' part of a checkpoint, from the barrier to the durable manifest.
pub(super) struct TablesUnderWay {
    barrier: BarrierNumber,
    started: Instant,
    stored: bool,
    /// Whether it has been counted as failed because it took too long. It can't be called off, and no other begins before it has ended.
    late: bool,
}

/// What is complete and stands in the manifest that is written next.
pub struct Completed {
    barrier: BarrierNumber,
    /// The jobs of one group; none for the stored tables.
    pub(super) jobs: Vec<ObjectId>,
}

/// Someone who waits until everything has been checkpointed at `barrier` or a later one.
pub(super) struct CheckpointWaiter {
    barrier: BarrierNumber,
    jobs: BTreeSet<ObjectId>,
    tables: bool,
    /// The jobs whose checkpoint has to be at one barrier with that of the stored tables: until both are complete, neither begins while the other is under way.
    together: BTreeSet<ObjectId>,
    /// The first thing that went wrong. It is told when all others are done.
    error: Option<Error>,
    wanted: Wanted,
}

impl Manager {
    /// When a checkpoint of `group` can begin: `None` where nothing asks for one, or where it can't begin at all yet.
    pub(super) fn checkpoint_due(&self, group: &BTreeSet<ObjectId>, settings: &Settings) -> Option<Instant> {
        let next = self.context.numbers.peek();
        // Where the stored tables take too long, the group does without them: whoever waits for both has been told.
        let tables = self.tables_under_way.as_ref().is_some_and(|tables| !tables.late);
        if tables && self.waiters.iter().any(|waiter| !waiter.together.is_disjoint(group)) {
            return None;
        }
        let mut together: Option<Schedule> = None;
        let mut wanted = false;
        for job in group.iter().filter_map(|id| self.jobs.get(id)) {
            // What was stopped at a checkpoint may have to go on from there, and with it what it reads.
            if job.checkpointing.is_some() || job.held || !self.has_room(job) {
                return None;
            }
            if job.is_live(next) {
                wanted |= job.wanted.is_some();
                together = Some(together.map_or(job.schedule, |others| others.with(job.schedule)));
            }
        }
        let together = together?;
        if wanted { Some(together.wanted(self.last_barrier_at)) } else { together.due(settings) }
    }

    /// As [`Manager::checkpoint_due`], for the stored tables.
    pub(super) fn tables_due(&self, settings: &Settings) -> Option<Instant> {
        if self.tables_under_way.is_some() {
            return None;
        }
        let mut together = self.waiters.iter().flat_map(|waiter| &waiter.together).filter_map(|id| self.jobs.get(id));
        if together.any(|job| job.checkpointing.is_some()) {
            return None;
        }
        if self.tables_wanted.is_some() {
            Some(self.tables_schedule.wanted(self.last_barrier_at))
        } else {
            self.tables_schedule.due(settings)
        }
    }

    /// Who asked for a checkpoint waits for one at `barrier` or later. Of one group: for one of what is live of it and of the stored tables together. Of
    /// everything: of what is live, and also of the jobs that are on their way there, those that were made a moment ago, are being restored, or begin again
    /// after a failure. Not waited for are jobs whose CREATE has not been answered, and, at a shutdown, those that are not live: what they begin with is there
    /// without them.
    pub(super) fn take_on_waiters(&mut self, barrier: BarrierNumber) {
        if self.want_checkpoint.is_empty() {
            return;
        }
        self.tables_wanted = Some(barrier);
        let stops = self.shutdown.is_some();
        for wanted in std::mem::take(&mut self.want_checkpoint) {
            let group: Option<BTreeSet<ObjectId>> = match &wanted {
                Wanted::Checkpoint(of, _) => of.map(|id| self.group_of(id)),
                Wanted::Saved { jobs, .. } => Some(jobs.iter().flat_map(|id| self.group_of(*id)).collect()),
            };
            let mut jobs = BTreeSet::new();
            for (id, job) in &mut self.jobs {
                let is_wanted = match &group {
                    Some(group) => group.contains(id) && job.is_live(barrier),
                    None => job.is_live(barrier) || (job.is_on_its_way() && !stops),
                };
                if is_wanted {
                    job.wanted = Some(barrier);
                    jobs.insert(*id);
                }
            }
            let together = if group.is_some() { jobs.clone() } else { BTreeSet::new() };
            self.waiters.push(CheckpointWaiter { barrier, jobs, tables: true, together, error: None, wanted });
        }
        self.answer_waiters();
    }

    /// Begins the checkpoints of `groups`, and of the stored tables where `tables` says so, at `barrier`.
    pub(super) fn begin_checkpoint(&mut self, barrier: &Arc<Barrier>, groups: &[BTreeSet<ObjectId>], tables: bool) {
        let now = Instant::now();
        let interval = self.context.settings.read().checkpoint_interval;
        // A group that was late takes its checkpoint in place of the one that it missed, and the next with the others again.
        if now >= self.last_tick + interval - interval / 10 {
            self.last_tick = now;
        }
        let mut summary = CheckpointSummary { checkpoint: barrier.number, started_us: barrier.time_us, groups: Vec::new() };
        for group in groups {
            let mut jobs = BTreeMap::new();
            let mut names = Vec::new();
            for id in group {
                let Some(job) = self.jobs.get_mut(id).filter(|job| job.is_live(barrier.number)) else { continue };
                job.checkpointing = Some(barrier.number);
                job.schedule.begin(self.last_tick, barrier.commit);
                jobs.insert(*id, JobProgress { snapshots: Vec::new(), expected: job.stateful_subtasks, collected: false });
                names.push((*id, job.job.name.clone()));
            }
            summary.groups.push(GroupCheckpointStatus::begun(names));
            self.checkpoints.push(GroupCheckpoint { barrier: barrier.clone(), started: now, jobs });
        }
        if tables {
            self.tables_schedule.begin(self.last_tick, barrier.commit);
            self.tables_under_way = Some(TablesUnderWay { barrier: barrier.number, started: now, stored: false, late: false });
            summary.groups.push(GroupCheckpointStatus::begun(Vec::new()));
            self.store_tables(barrier);
        }
        let mut board = self.context.board.write();
        board.checkpoints.push_back(summary);
        while board.checkpoints.len() > CHECKPOINTS_REMEMBERED {
            board.checkpoints.pop_front();
        }
    }

    fn store_tables(&self, barrier: &Barrier) {
        let (tables, build, sender) = (self.context.tables.clone(), self.context.build.clone(), self.sender.clone());
        let (number, commit) = (barrier.number, barrier.commit);
        let image = self.context.build.scratch.join(format!("tables-{number}"));
        let last = self.tables_part.clone();
        let incarnation = self.tables_incarnation.clone();
        self.context.spawner.spawn_blocking(move || {
            let stored = checkpoint_tables(&tables, commit, number, &image, &incarnation, &build, last);
            let _ = sender.send(Event::TablesStored { barrier: number, stored });
        });
    }

    pub(super) fn tables_stored(&mut self, barrier: BarrierNumber, stored: Result<(TablesCheckpoint, Option<SnapshotCost>)>) {
        let Some(under_way) = self.tables_under_way.as_mut().filter(|tables| tables.barrier == barrier) else { return };
        match stored {
            Ok((tables, cost)) => {
                under_way.stored = true;
                self.tables_part = Some(tables.clone());
                self.manifest.tables = Some(tables);
                if let Some(cost) = cost {
                    let part = CheckpointStatus {
                        checkpoint: barrier,
                        job: 0,
                        job_name: "stored tables".into(),
                        uid: "tables".into(),
                        subtask: 0,
                        cost,
                    };
                    self.on_board(barrier, None, |status| status.parts.push(part));
                }
                self.complete(Completed { barrier, jobs: Vec::new() });
            }
            Err(error) => {
                tracing::warn!(%error, "the stored tables' part of a checkpoint could not be stored");
                self.tables_under_way = None;
                self.end_checkpoint(&Completed { barrier, jobs: Vec::new() }, Some(&error));
            }
        }
    }

    /// A subtask's part is stored.
    pub(super) fn snapshot_stored(&mut self, id: SubtaskId, barrier: BarrierNumber, snapshot: SubtaskSnapshot) {
        let name = self.jobs.get(&id.job).map_or(String::new(), |job| job.job.name.clone());
        let parts: Vec<CheckpointStatus> = snapshot
            .operators
            .iter()
            .map(|part| CheckpointStatus {
                checkpoint: barrier,
                job: id.job,
                job_name: name.clone(),
                uid: part.uid.clone(),
                subtask: id.subtask,
                cost: part.cost,
            })
            .collect();
        self.on_board(barrier, Some(id.job), |status| status.parts.extend(parts));
        if let Some(progress) = self.progress(id.job, barrier) {
            progress.snapshots.push(snapshot);
            self.check_checkpoint(id.job);
        }
    }

    /// A subtask's part could not be taken or stored.
    pub(super) fn snapshot_failed(&mut self, id: SubtaskId, barrier: BarrierNumber, error: Error) {
        tracing::warn!(%error, barrier, "a snapshot could not be taken");
        if self.progress(id.job, barrier).is_some() {
            self.fail_checkpoint(id.job, &error);
        }
    }

    /// All roots of a job have finished a barrier.
    pub(super) fn checkpoint_collected(&mut self, id: ObjectId, barrier: BarrierNumber) {
        if let Some(progress) = self.progress(id, barrier) {
            progress.collected = true;
            self.check_checkpoint(id);
        }
    }

    fn progress(&mut self, id: ObjectId, barrier: BarrierNumber) -> Option<&mut JobProgress> {
        let mut at_barrier = self.checkpoints.iter_mut().filter(|checkpoint| checkpoint.barrier.number == barrier);
        at_barrier.find_map(|checkpoint| checkpoint.jobs.get_mut(&id))
    }

    /// Hands the checkpoint that `id` takes part in to the manifest, where all its jobs have acknowledged it.
    fn check_checkpoint(&mut self, id: ObjectId) {
        let Some(place) = self.checkpoints.iter().position(|checkpoint| checkpoint.jobs.contains_key(&id)) else { return };
        if !self.checkpoints[place].jobs.values().all(JobProgress::is_complete) {
            return;
        }
        let GroupCheckpoint { barrier, jobs, .. } = self.checkpoints.swap_remove(place);
        let members: Vec<ObjectId> = jobs.keys().copied().collect();
        for (id, progress) in jobs {
            let finished = self.jobs.get(&id).and_then(|job| job.ends_at).is_some_and(|at| barrier.number >= at);
            let operators = progress.into_operators();
            let Barrier { number, commit, time_us, .. } = *barrier;
            let checkpoint = JobCheckpoint { barrier: number, commit, time_us, operators, finished, inputs: BTreeMap::new() };
            self.manifest.jobs.insert(id, checkpoint);
        }
        self.complete(Completed { barrier: barrier.number, jobs: members });
    }

    fn complete(&mut self, completed: Completed) {
        self.manifest.barrier = self.manifest.barrier.max(completed.barrier);
        self.manifest_dirty = true;
        self.completed.push(completed);
        self.write_manifest_if_due();
    }

    /// The checkpoint of a group, or of the stored tables, is durable, or has failed.
    pub(super) fn end_checkpoint(&mut self, ended: &Completed, error: Option<&Error>) {
        let is_reached = |wanted: &mut Option<BarrierNumber>| {
            if wanted.is_some_and(|wanted| wanted <= ended.barrier) {
                *wanted = None;
            }
        };
        if ended.jobs.is_empty() {
            self.tables_under_way = self.tables_under_way.take().filter(|tables| tables.barrier != ended.barrier);
            self.tables_schedule.end(error.is_some());
            is_reached(&mut self.tables_wanted);
        }
        for id in &ended.jobs {
            let Some(job) = self.jobs.get_mut(id).filter(|job| job.checkpointing == Some(ended.barrier)) else { continue };
            job.checkpointing = None;
            job.schedule.end(error.is_some());
            if error.is_none() {
                job.schedule.failures = 0;
            }
            is_reached(&mut job.wanted);
            // A job that has read all its input ends with a checkpoint that succeeds, whatever the interval.
            if error.is_some()
                && let Some(at) = job.ends_at
            {
                job.wanted.get_or_insert(at);
            }
        }
        let ended_us = self.context.clock.now_us();
        self.on_board(ended.barrier, ended.jobs.first().copied(), |status| status.end(ended_us, error));
        for waiter in self.waiters.iter_mut().filter(|waiter| waiter.barrier <= ended.barrier) {
            waiter.settle(&ended.jobs, ended.jobs.is_empty(), error);
        }
        self.answer_waiters();
    }

    /// The checkpoint that `id` takes part in has failed: its group keeps the former one. After too many of them the group is restarted.
    fn fail_checkpoint(&mut self, id: ObjectId, error: &Error) {
        let Some(members) = self.abandon_checkpoint(id, error) else { return };
        self.count_failure(&members, id, error);
    }

    /// One more checkpoint of a group has failed, because of the job `cause`.
    pub(super) fn count_failure(&mut self, members: &[ObjectId], cause: ObjectId, error: &Error) {
        let tolerable = self.context.settings.read().tolerable_checkpoint_failures;
        let mut failures = 0;
        for id in members {
            if let Some(job) = self.jobs.get_mut(id) {
                job.schedule.failures += 1;
                failures = failures.max(job.schedule.failures);
            }
        }
        if failures <= tolerable {
            return;
        }
        for id in members {
            if let Some(job) = self.jobs.get_mut(id) {
                job.schedule.failures = 0;
            }
        }
        let error = Error::new(error.code().clone(), "too many checkpoints failed one after another").with_detail(error.message());
        self.fail(cause, error);
    }

    /// Calls off the checkpoint that `id` takes part in, if there is one, for all of its group. Returns the jobs that took part.
    pub(super) fn abandon_checkpoint(&mut self, id: ObjectId, error: &Error) -> Option<Vec<ObjectId>> {
        let place = self.checkpoints.iter().position(|checkpoint| checkpoint.jobs.contains_key(&id))?;
        let checkpoint = self.checkpoints.swap_remove(place);
        let ended = Completed { barrier: checkpoint.barrier.number, jobs: checkpoint.jobs.into_keys().collect() };
        self.end_checkpoint(&ended, Some(error));
        Some(ended.jobs)
    }

    /// A job is stopped, or about to be restarted: its group's checkpoint is called off, and nobody waits for one of it.
    pub(super) fn checkpoint_lost(&mut self, id: ObjectId, error: &Error) {
        self.abandon_checkpoint(id, error);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.checkpointing = None;
            job.wanted = None;
        }
        for waiter in &mut self.waiters {
            waiter.settle(&[id], false, Some(error));
        }
        self.answer_waiters();
    }

    /// A job was dropped: the checkpoint under way is that of the rest of its group.
    pub(super) fn checkpoint_without(&mut self, id: ObjectId) {
        if let Some(place) = self.checkpoints.iter().position(|checkpoint| checkpoint.jobs.contains_key(&id)) {
            let checkpoint = &mut self.checkpoints[place];
            checkpoint.jobs.remove(&id);
            let (barrier, rest) = (checkpoint.barrier.number, checkpoint.jobs.keys().next().copied());
            match rest {
                Some(other) => {
                    self.on_board(barrier, Some(id), |status| status.jobs.retain(|(job, _)| *job != id));
                    self.check_checkpoint(other);
                }
                None => {
                    self.checkpoints.swap_remove(place);
                    let ended_us = self.context.clock.now_us();
                    let dropped = Error::new(SqlState::UNDEFINED_OBJECT, "the job was dropped");
                    self.on_board(barrier, Some(id), |status| status.end(ended_us, Some(&dropped)));
                }
            }
        }
        for waiter in &mut self.waiters {
            waiter.settle(&[id], false, None);
        }
        self.answer_waiters();
    }

    fn answer_waiters(&mut self) {
        for at in (0..self.waiters.len()).rev() {
            if self.waiters[at].jobs.is_empty() && !self.waiters[at].tables {
                let CheckpointWaiter { error, wanted, .. } = self.waiters.swap_remove(at);
                // Whoever asked may have gone.
                match (wanted, error) {
                    (Wanted::Checkpoint(_, done), error) => {
                        let _ = done.send(error.map_or(Ok(()), Err));
                    }
                    (Wanted::Saved { done, .. }, Some(error)) => {
                        let _ = done.send(Err(error));
                    }
                    (Wanted::Saved { jobs, stop, of_stopped, done }, None) => {
                        // At once: the next checkpoint may begin with the next barrier.
                        let _ = done.send(Ok(self.save(&jobs, stop, of_stopped)));
                    }
                }
            }
        }
    }

    /// Pins the checkpoints of `jobs`, which have ended just now, and with `stop` stops all of them, or none.
    fn save(&mut self, jobs: &[ObjectId], stop: bool, of_stopped: OfStopped) -> Saving {
        let mut all = Vec::with_capacity(jobs.len());
        for id in jobs {
            let pinned = match self.pin(*id, of_stopped) {
                Ok(pinned) => pinned,
                Err(error) => return Saving::Without(*id, error),
            };
            if !(pinned.is_left || pinned.is_of_one_moment()) || (stop && !self.can_stop_at(&pinned)) {
                return Saving::Apart;
            }
            all.push(pinned);
        }
        if stop {
            all.iter_mut().for_each(|pinned| self.stop_at(pinned));
        }
        Saving::Saved(all)
    }

    /// Fails the checkpoints that take too long, each on its own.
    pub(super) fn check_timeouts(&mut self) {
        let timeout = self.context.settings.read().checkpoint_timeout;
        let late: Vec<ObjectId> = self
            .checkpoints
            .iter()
            .filter(|checkpoint| checkpoint.started.elapsed() >= timeout)
            .filter_map(|checkpoint| checkpoint.jobs.iter().find(|(_, progress)| !progress.is_complete()).map(|(id, _)| *id))
            .collect();
        let error = |barrier: BarrierNumber, who: &str| {
            Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("checkpoint {barrier} was not complete after {} s", timeout.as_secs_f64()),
            )
            .with_detail(format!("It waited for {who}."))
        };
        for id in late {
            let Some(job) = self.jobs.get(&id) else { continue };
            let error = error(job.checkpointing.unwrap_or_default(), &format!("job \"{}\"", job.job.name));
            tracing::warn!(job = %job.job.name, %error, "a checkpoint took too long");
            self.fail_checkpoint(id, &error);
        }
        if let Some(tables) = self.tables_under_way.as_mut().filter(|tables| !tables.stored && !tables.late)
            && tables.started.elapsed() >= timeout
        {
            tables.late = true;
            let barrier = tables.barrier;
            let error = error(barrier, "the stored tables");
            let ended_us = self.context.clock.now_us();
            self.on_board(barrier, None, |status| status.end(ended_us, Some(&error)));
            for waiter in self.waiters.iter_mut().filter(|waiter| waiter.barrier <= barrier) {
                waiter.settle(&[], true, Some(&error));
            }
            self.answer_waiters();
        }
    }

    /// When the next checkpoint under way is late.
    pub(super) fn next_timeout(&self, settings: &Settings) -> Option<Instant> {
        let tables = self.tables_under_way.iter().filter(|tables| !tables.stored && !tables.late).map(|tables| tables.started);
        self.checkpoints.iter().map(|checkpoint| checkpoint.started).chain(tables).min().map(|first| first + settings.checkpoint_timeout)
    }

    /// The barriers of the checkpoints whose files the manifest may not name yet.
    pub(super) fn barriers_under_way(&self) -> Vec<BarrierNumber> {
        let tables = self.tables_under_way.iter().map(|tables| tables.barrier);
        self.checkpoints.iter().map(|checkpoint| checkpoint.barrier.number).chain(tables).collect()
    }

    /// Changes what the board shows of the checkpoint at `barrier` of the group that has `job`; `None` for the stored tables.
    fn on_board(&self, barrier: BarrierNumber, job: Option<ObjectId>, change: impl FnOnce(&mut GroupCheckpointStatus)) {
        let mut board = self.context.board.write();
        let Some(summary) = board.checkpoints.iter_mut().rev().find(|summary| summary.checkpoint == barrier) else { return };
        let of_job = |status: &&mut GroupCheckpointStatus| match job {
            None => status.tables,
            Some(id) => status.jobs.iter().any(|(job, _)| *job == id),
        };
        if let Some(status) = summary.groups.iter_mut().find(of_job) {
            change(status);
        }
    }
}

impl CheckpointWaiter {
    /// What ended is waited for no more.
    fn settle(&mut self, jobs: &[ObjectId], tables: bool, error: Option<&Error>) {
        let mut concerned = tables && std::mem::take(&mut self.tables);
        for id in jobs {
            concerned |= self.jobs.remove(id);
        }
        if concerned && let Some(error) = error {
            self.error.get_or_insert_with(|| error.clone());
        }
    }
}

/// Makes and stores the stored tables' part of a checkpoint, or uses the last one again where nothing changed.
fn checkpoint_tables(
    tables: &Tables,
    through: CommitSeq,
    barrier: BarrierNumber,
    image: &std::path::Path,
    incarnation: &str,
    build: &BuildContext,
    last: Option<TablesCheckpoint>,
) -> Result<(TablesCheckpoint, Option<SnapshotCost>)> {
    if let Some(last) = last
        && !tables.changed_since_checkpoint()
        && build.store.reuse(&last.part, barrier)
    {
        return Ok((TablesCheckpoint { commit: last.commit.max(through), part: last.part }, None));
    }
    let stopwatch = Stopwatch::start();
    let made = tables.fold_and_checkpoint(through, image)?;
    let snapshot_us = stopwatch.elapsed().as_micros() as u64;
    let size = tables.size();
    let (part, mut cost) =
        store_part(&build.store, &build.files, (image.to_path_buf(), made.files), incarnation, build.state_backend, size, barrier)?;
    cost.snapshot_us = snapshot_us;
    Ok((TablesCheckpoint { commit: made.seq, part }, Some(cost)))
}
