//! The checkpoint coordinator: begins a checkpoint, collects what subtasks acknowledge, and hands what is complete to the manifest.
//!
//! # Invariants
//! - A group's checkpoint enters the manifest only as a whole: all its jobs at one barrier.
//! - A job has acknowledged when all its subtasks with state have stored their part and its roots have finished the barrier.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;
use tokio::time::Instant;
use weir_catalog::{Error, ObjectId, Result};

use super::{Event, Manager};
use crate::checkpoint::snapshot::{SnapshotCost, SubtaskSnapshot, store_part};
use crate::checkpoint::{JobCheckpoint, OperatorCheckpoint, TablesCheckpoint};
use crate::job::build::BuildContext;
use crate::job::status::{CHECKPOINTS_REMEMBERED, CheckpointState, CheckpointStatus, CheckpointSummary, JobState};
use crate::log::Tables;
use crate::runtime::subtask::SubtaskId;
use crate::seams::clock::Stopwatch;
use crate::stream::{Barrier, BarrierNumber, CommitSeq};

/// A checkpoint under way.
pub(super) struct PendingCheckpoint {
    pub(super) barrier: Arc<Barrier>,
    pub(super) started: Instant,
    /// Jobs that take part and have not acknowledged in full.
    pub(super) waiting: BTreeMap<ObjectId, WaitingJob>,
    /// Groups: complete when all of their jobs are.
    pub(super) groups: Vec<BTreeSet<ObjectId>>,
    pub(super) done: BTreeMap<ObjectId, JobCheckpoint>,
    pub(super) tables: Option<TablesCheckpoint>,
    pub(super) tables_pending: bool,
    pub(super) failed: Option<Error>,
    pub(super) waiters: Vec<oneshot::Sender<Result<()>>>,
    /// Whether everything that could complete was handed to a manifest.
    pub(super) ended: bool,
}

pub(super) struct WaitingJob {
    pub(super) snapshots: Vec<SubtaskSnapshot>,
    pub(super) expected: usize,
    pub(super) collected: bool,
}

impl Manager {
    pub(super) fn begin_checkpoint(&mut self, barrier: &Arc<Barrier>) {
        self.changed = false;
        self.last_checkpoint_started = Instant::now();
        let mut waiting = BTreeMap::new();
        let mut groups: Vec<BTreeSet<ObjectId>> = Vec::new();
        for (id, job) in &self.jobs {
            if job.state != JobState::Running || barrier.number < job.live_from.load(Ordering::SeqCst) {
                continue;
            }
            waiting.insert(*id, WaitingJob { snapshots: Vec::new(), expected: job.stateful_subtasks, collected: false });
            if !groups.iter().any(|group| group.contains(id)) {
                groups.push(self.group_of(*id));
            }
        }
        for group in &mut groups {
            group.retain(|id| waiting.contains_key(id));
        }
        let mut board = self.context.board.write();
        board.checkpoints.push_back(CheckpointSummary {
            checkpoint: barrier.number,
            state: CheckpointState::InProgress,
            started_us: barrier.time_us,
            ended_us: None,
            error: None,
            parts: Vec::new(),
        });
        while board.checkpoints.len() > CHECKPOINTS_REMEMBERED {
            board.checkpoints.pop_front();
        }
        drop(board);
        self.pending = Some(PendingCheckpoint {
            barrier: barrier.clone(),
            started: Instant::now(),
            waiting,
            groups,
            done: BTreeMap::new(),
            tables: None,
            tables_pending: true,
            failed: None,
            waiters: std::mem::take(&mut self.want_checkpoint),
            ended: false,
        });
        let (tables, build, spawner, sender) =
            (self.context.tables.clone(), self.context.build.clone(), self.context.spawner.clone(), self.sender.clone());
        let (number, commit) = (barrier.number, barrier.commit);
        let image = self.context.build.scratch.join(format!("tables-{number}"));
        let last = self.tables_part.clone();
        let incarnation = self.tables_incarnation.clone();
        spawner.spawn_blocking(move || {
            let stored = checkpoint_tables(&tables, commit, number, &image, &incarnation, &build, last);
            let _ = sender.send(Event::TablesStored { barrier: number, stored });
        });
    }

    pub(super) fn tables_stored(&mut self, barrier: BarrierNumber, stored: Result<(TablesCheckpoint, Option<SnapshotCost>)>) {
        let Some(pending) = self.pending.as_mut().filter(|pending| pending.barrier.number == barrier) else { return };
        pending.tables_pending = false;
        match stored {
            Ok((tables, cost)) => {
                pending.tables = Some(tables);
                if let Some(cost) = cost {
                    let mut board = self.context.board.write();
                    if let Some(summary) = board.checkpoints.iter_mut().find(|summary| summary.checkpoint == barrier) {
                        summary.parts.push(CheckpointStatus {
                            checkpoint: barrier,
                            job: 0,
                            job_name: "stored tables".into(),
                            uid: "tables".into(),
                            subtask: 0,
                            cost,
                        });
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the stored tables' part of a checkpoint could not be stored");
                pending.failed = Some(error);
            }
        }
        self.check_checkpoint();
    }

    pub(super) fn record_costs(&self, id: SubtaskId, barrier: BarrierNumber, snapshot: &SubtaskSnapshot) {
        let name = self.jobs.get(&id.job).map_or(String::new(), |job| job.job.name.clone());
        let mut board = self.context.board.write();
        if let Some(summary) = board.checkpoints.iter_mut().rev().find(|summary| summary.checkpoint == barrier) {
            summary.parts.extend(snapshot.operators.iter().map(|part| CheckpointStatus {
                checkpoint: barrier,
                job: id.job,
                job_name: name.clone(),
                uid: part.uid.clone(),
                subtask: id.subtask,
                cost: part.cost,
            }));
        }
    }

    /// A job takes no further part in the checkpoint under way.
    pub(super) fn leave_pending(&mut self, id: ObjectId) {
        let error = Error::internal("the job was stopped while the checkpoint was under way");
        self.leave_pending_failed(id, &error);
        self.check_checkpoint();
    }

    pub(super) fn leave_pending_failed(&mut self, id: ObjectId, error: &Error) {
        let Some(pending) = &mut self.pending else { return };
        if pending.waiting.remove(&id).is_some() || pending.done.remove(&id).is_some() {
            pending.failed.get_or_insert_with(|| error.clone());
            // What the rest of its group did is worth nothing without it.
            if let Some(at) = pending.groups.iter().position(|group| group.contains(&id)) {
                for member in pending.groups.remove(at) {
                    pending.waiting.remove(&member);
                    pending.done.remove(&member);
                }
            }
        }
    }

    pub(super) fn check_timeout(&mut self) {
        let timeout = self.context.settings.read().checkpoint_timeout;
        let Some(pending) = &mut self.pending else { return };
        if pending.started.elapsed() < timeout {
            return;
        }
        let late: Vec<ObjectId> = pending.waiting.keys().copied().collect();
        pending.tables_pending = false;
        let error = Error::new(
            weir_catalog::SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("checkpoint {} was not complete after {} s", pending.barrier.number, timeout.as_secs_f64()),
        );
        pending.failed.get_or_insert_with(|| error.clone());
        for id in late {
            self.leave_pending_failed(id, &error);
        }
        self.check_checkpoint();
    }

    /// Moves jobs that have acknowledged in full on, groups that are complete into the manifest, and ends the checkpoint when nothing is left to wait for.
    pub(super) fn check_checkpoint(&mut self) {
        let Some(pending) = &mut self.pending else { return };
        let barrier = pending.barrier.clone();
        let complete: Vec<ObjectId> = pending
            .waiting
            .iter()
            .filter(|(_, waiting)| waiting.collected && waiting.snapshots.len() >= waiting.expected)
            .map(|(id, _)| *id)
            .collect();
        for id in complete {
            let Some(waiting) = pending.waiting.remove(&id) else { continue };
            let mut operators: BTreeMap<String, OperatorCheckpoint> = BTreeMap::new();
            for part in waiting.snapshots.into_iter().flat_map(|snapshot| snapshot.operators) {
                let operator = operators.entry(part.uid).or_default();
                operator.parts.extend(part.checkpoint.parts);
                operator.splits.extend(part.checkpoint.splits);
            }
            let finished = self.jobs.get(&id).and_then(|job| job.ends_at).is_some_and(|at| barrier.number >= at);
            pending.done.insert(
                id,
                JobCheckpoint { barrier: barrier.number, commit: barrier.commit, time_us: barrier.time_us, operators, finished },
            );
        }
        let complete_groups: Vec<BTreeSet<ObjectId>> = {
            let done = &pending.done;
            let (complete, rest) = pending.groups.drain(..).partition(|group| group.iter().all(|id| done.contains_key(id)));
            pending.groups = rest;
            complete
        };
        let mut news = !complete_groups.is_empty();
        for id in complete_groups.into_iter().flatten() {
            if let Some(checkpoint) = pending.done.remove(&id) {
                self.manifest.jobs.insert(id, checkpoint);
            }
        }
        if let Some(tables) = pending.tables.take() {
            self.tables_part = Some(tables.clone());
            self.manifest.tables = Some(tables);
            news = true;
        }
        if news {
            self.manifest.barrier = self.manifest.barrier.max(barrier.number);
            self.manifest_dirty = true;
        }
        let over = pending.groups.is_empty() && pending.waiting.is_empty() && !pending.tables_pending && !pending.ended;
        if over {
            pending.ended = true;
            let waiters = std::mem::take(&mut pending.waiters);
            match pending.failed.clone() {
                None => self.manifest_waiters.extend(waiters),
                Some(error) => {
                    for waiter in waiters {
                        let _ = waiter.send(Err(error.clone()));
                    }
                    self.checkpoint_ended(barrier.number, Some(error));
                }
            }
        }
        self.write_manifest_if_due();
    }

    pub(super) fn checkpoint_ended(&mut self, number: BarrierNumber, error: Option<Error>) {
        self.pending = None;
        self.last_checkpoint_ended = Instant::now();
        let ended_us = self.context.clock.now_us();
        {
            let mut board = self.context.board.write();
            if let Some(summary) = board.checkpoints.iter_mut().find(|summary| summary.checkpoint == number) {
                summary.state = if error.is_none() { CheckpointState::Completed } else { CheckpointState::Failed };
                summary.ended_us = Some(ended_us);
                summary.error = error.clone();
            }
        }
        match error {
            None => self.checkpoint_failures = 0,
            Some(error) => {
                self.changed = true;
                self.checkpoint_failures += 1;
                if self.checkpoint_failures > self.context.settings.read().tolerable_checkpoint_failures {
                    self.checkpoint_failures = 0;
                    let running: Vec<ObjectId> =
                        self.jobs.iter().filter(|(_, job)| job.state == JobState::Running).map(|(id, _)| *id).collect();
                    for id in running {
                        let error =
                            Error::new(error.code().clone(), "too many checkpoints failed one after another").with_detail(error.message());
                        self.fail(id, error);
                    }
                }
            }
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
    let (part, mut cost) = store_part(&build.store, &build.files, (image.to_path_buf(), made.files), incarnation, size, barrier)?;
    cost.snapshot_us = snapshot_us;
    Ok((TablesCheckpoint { commit: made.seq, part }, Some(cost)))
}
