//! Starting jobs: with the state of the newest checkpoint, or from their inputs' rows.
//!
//! # Invariants
//! - A job's state is restored only together with that of all views it reads, all of one barrier.
//! - The subtasks of a cohort begin at one moment, behind a gate, so that no reader misses what a view emits. A cohort is joined by views reading views:
//!   a slow restore holds up nobody else.
//! - A view's reader is built when the view's own subtasks are there: it has as many.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::sync::{mpsc, oneshot, watch};
use weir_catalog::{Error, JobKind, ObjectId, Result, SqlState};

use super::checkpoints::Schedule;
use super::jobs::RunningJob;
use super::{Event, Manager};
use crate::checkpoint::JobCheckpoint;
use crate::job::build::{self, BuiltJob, HeadPlan};
use crate::job::difference::ViewDifference;
use crate::job::feed::{Backfill, TableFeed};
use crate::job::savepoint_start::SavepointStart;
use crate::job::status::{JobState, OperatorStatus, stopped_input};
use crate::operators::materialize::RowReader;
use crate::runtime::exchange::OutputEdge;
use crate::runtime::replay::{Replay, SplitHistory};
use crate::runtime::subtask::{
    self, Attached, Attachment, Feed, Head, SubtaskContext, SubtaskEvent, SubtaskId, ViewBackfill, ViewProjection,
};
use crate::stream::{Batch, CommitSeq};

/// Jobs that are restored together: their subtasks begin at one moment, so that no reader misses what a view emits.
pub(super) struct Cohort {
    pub(super) gate: watch::Sender<bool>,
    pub(super) waiting: BTreeSet<ObjectId>,
    pub(super) members: BTreeSet<ObjectId>,
}

/// What a job is started with.
enum Restore {
    Nothing,
    /// Its checkpoint, together with that of the views that it reads.
    Whole(JobCheckpoint),
    /// Its checkpoint, which the views that it reads have left behind.
    Behind(JobCheckpoint),
}

impl Cohort {
    fn new(members: BTreeSet<ObjectId>) -> Cohort {
        Cohort { gate: watch::Sender::new(false), waiting: members.clone(), members }
    }
}

impl Manager {
    /// Begins to build `ids`: with the state of the newest checkpoint where that fits, else from their inputs' rows.
    ///
    /// A job's state fits where its inputs are restored to the same barrier; the manifest holds a group's jobs at one barrier, so only a job that
    /// joined later does not.
    pub(super) fn start(&mut self, ids: &[ObjectId]) {
        let mut restorable: BTreeSet<ObjectId> = BTreeSet::new();
        let mut builds = Vec::new();
        for id in self.inputs_first(ids) {
            let Some(job) = self.jobs.get(&id) else { continue };
            let checkpoint = self.manifest.jobs.get(&id).cloned();
            let fits = checkpoint.as_ref().is_some_and(|checkpoint| {
                job.upstream.iter().all(|input| {
                    restorable.contains(input) && self.manifest.jobs.get(input).is_some_and(|other| other.barrier == checkpoint.barrier)
                })
            });
            if fits {
                restorable.insert(id);
            }
            let restore = match checkpoint {
                Some(checkpoint) if fits => Restore::Whole(checkpoint),
                Some(checkpoint) if self.can_catch_up(id, &checkpoint) => Restore::Behind(checkpoint),
                _ => Restore::Nothing,
            };
            builds.push((id, restore));
        }
        self.cohorts.extend(self.joined(&restorable).into_iter().map(Cohort::new));
        for (id, restore) in builds {
            self.build(id, restore);
        }
    }

    /// `jobs` by what joins them: a view of them reading a view of them.
    fn joined(&self, jobs: &BTreeSet<ObjectId>) -> Vec<BTreeSet<ObjectId>> {
        let mut parts: Vec<BTreeSet<ObjectId>> = Vec::new();
        for id in jobs {
            let inputs: Vec<ObjectId> = self.jobs.get(id).map_or(Vec::new(), |job| job.upstream.clone());
            let mut part = BTreeSet::from([*id]);
            part.extend(inputs.into_iter().filter(|input| jobs.contains(input)));
            parts.retain(|other| {
                let apart = other.is_disjoint(&part);
                if !apart {
                    part.extend(other);
                }
                apart
            });
            parts.push(part);
        }
        parts
    }

    /// `id` is launched, or will not be in this start: the last one of a cohort opens its gate.
    pub(super) fn leave_cohort(&mut self, id: ObjectId) {
        let mut opened = Vec::new();
        self.cohorts.retain_mut(|cohort| {
            cohort.waiting.remove(&id);
            if cohort.waiting.is_empty() {
                cohort.gate.send_replace(true);
                opened.extend(cohort.members.iter().copied());
            }
            !cohort.waiting.is_empty()
        });
        for member in opened {
            if let Some(job) = self.jobs.get_mut(&member)
                && job.state == JobState::Starting
                && !job.tasks.is_empty()
            {
                job.state = JobState::Running;
            }
        }
        self.want_barrier = true;
    }

    fn build(&mut self, id: ObjectId, restore: Restore) {
        let catches_up = matches!(restore, Restore::Behind(_));
        let restore = match restore {
            Restore::Whole(checkpoint) | Restore::Behind(checkpoint) => Some(checkpoint),
            Restore::Nothing => None,
        };
        let run = self.next_run;
        self.next_run += 1;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.stop_tasks();
        job.completed = restore.as_ref().map_or(0, |checkpoint| checkpoint.barrier);
        job.run = run;
        job.state = JobState::Starting;
        self.context.build.committer.begin_run(id, job.completed, self.context.numbers.peek());
        job.restoring = restore;
        job.catches_up = catches_up;
        let upstream = job.upstream.clone();
        // A stopped view has no subtasks to read from: until it is resumed, what reads it can't begin.
        let stopped = upstream.iter().filter_map(|input| self.jobs.get(input)).find(|other| other.state == JobState::Failed);
        if let Some(stopped) = stopped {
            let error = stopped_input(&stopped.job.name, stopped.last_error.as_ref());
            self.fail(id, error);
            return;
        }
        // A view's readers can only be built when its own subtasks are there: they have as many.
        let waits = |other: &RunningJob| matches!(other.state, JobState::Starting | JobState::Restarting);
        if upstream.iter().any(|input| self.jobs.get(input).is_none_or(waits)) {
            return;
        }
        self.spawn_build(id);
    }

    fn spawn_build(&mut self, id: ObjectId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let (definition, graph, parallelism, run) = (job.job.clone(), job.graph.clone(), job.parallelism, job.run);
        let (restore, catches_up) = (job.restoring.clone(), job.catches_up);
        let context = self.context.build.clone();
        let mut catalog = self.context.log.catalog();
        if let Some(origin) = definition.origin.as_ref().filter(|origin| !origin.names.is_empty()) {
            catalog = Arc::new(catalog.with_names(&origin.names));
        }
        let views = self.context.views.read().clone();
        let sender = self.sender.clone();
        let keeps_its_place = self.keeps_its_place(id);
        self.context.spawner.spawn_blocking(move || {
            let built = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let start = match (&definition.origin, &restore) {
                    (Some(origin), None) => match SavepointStart::open(&context.places, origin, &graph, &catalog, context.engine) {
                        // A job that is rebuilt long after it began: the present rows are all that it needs.
                        Err(error) if *error.code() == SqlState::UNDEFINED_OBJECT && !keeps_its_place => None,
                        opened => Some(opened?),
                    },
                    _ => None,
                };
                build::build(
                    &context,
                    &catalog,
                    &definition,
                    &graph,
                    parallelism,
                    &views,
                    (restore.as_ref(), catches_up),
                    start.as_ref(),
                    run,
                )
            }))
            .unwrap_or_else(|_| Err(Error::internal("building the job panicked")));
            let _ = sender.send(Event::Built { job: definition.id, run, built });
        });
    }

    pub(super) fn built(&mut self, id: ObjectId, run: u64, built: Result<BuiltJob>) {
        if self.jobs.get(&id).is_none_or(|job| job.run != run || job.state != JobState::Starting) {
            return;
        }
        match built {
            Ok(built) => self.launch(id, built),
            Err(error) => self.fail(id, error),
        }
        // Readers of this view that waited for it.
        let waiting: Vec<ObjectId> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.state == JobState::Starting && job.tasks.is_empty() && job.upstream.contains(&id))
            .filter(|(_, job)| job.upstream.iter().all(|input| self.jobs.get(input).is_some_and(|other| !other.tasks.is_empty())))
            .map(|(id, _)| *id)
            .collect();
        for id in waiting {
            self.spawn_build(id);
        }
    }

    /// Connects the heads of a built job and starts its subtasks.
    fn launch(&mut self, id: ObjectId, built: BuiltJob) {
        let restored = self.jobs.get(&id).and_then(|job| job.restoring.clone());
        // Whether it stands where the views that it reads stand, and begins together with them.
        let joins = restored.is_some() && self.jobs.get(&id).is_some_and(|job| !job.catches_up);
        let nets = self.reads_net_changes(id);
        // A job without a checkpoint reads its inputs' rows as of the next barrier, which is made at once.
        let attach_barrier = self.context.numbers.peek();
        let attach_commit = self.context.log.end();
        let catalog = self.context.log.catalog();
        let mut heads = Vec::with_capacity(built.subtasks.len());
        let mut barriers = Vec::new();
        let mut source_metrics = Vec::new();
        // Where readers have seen the job's connectors: what it reads before that again is not shown.
        let seen = self.jobs.get(&id).map_or_else(BTreeMap::new, |job| job.seen.clone());
        let mut histories = Vec::new();
        let mut replaying = 0;
        let live_from = Arc::new(AtomicU64::new(if joins { 0 } else { u64::MAX }));
        let result = (|| -> Result<()> {
            for subtask in built.subtasks {
                let connected = match subtask.head {
                    HeadPlan::Inputs(inbox) => Head::Inputs { inbox },
                    HeadPlan::Connector(source) => {
                        let (sender, receiver) = mpsc::unbounded_channel();
                        barriers.push(sender);
                        source_metrics.push(subtask.metrics.clone());
                        let uid = subtask.snapshots.source_uid.clone().unwrap_or_default();
                        let target = seen.get(&uid).cloned();
                        replaying += usize::from(target.is_some());
                        let history = Arc::new(SplitHistory::default());
                        histories.push((uid, history.clone()));
                        Head::Connector { source, barriers: receiver, replay: Replay { history, target } }
                    }
                    HeadPlan::Table { table, projection, since } => {
                        let (sender, receiver) = mpsc::unbounded_channel();
                        barriers.push(sender);
                        let from = restored.as_ref().map_or(attach_commit, |checkpoint| checkpoint.commit);
                        let backfill = match (&restored, since) {
                            (Some(_), _) if nets => {
                                let name = format!("net-{}", subtask.chain_index);
                                Backfill::Net(self.context.build.room_for_changes(&subtask.snapshots.folder, &name))
                            }
                            (Some(_), _) => Backfill::None,
                            (None, Some(saved)) => Backfill::Since(saved),
                            (None, None) => Backfill::All,
                        };
                        let feed = Box::new(TableFeed::open(&self.context.tables, &catalog, table, projection, from, backfill)?);
                        Head::Table { feed, backfill: restored.is_none(), barriers: receiver }
                    }
                    HeadPlan::View { view, projection, since, inbox, sender } => {
                        let upstream = self.jobs.get(&view).ok_or_else(|| Error::internal("a view that is read does not run"))?;
                        let handle = self.context.views.read().get(&view).cloned();
                        let handle = handle.ok_or_else(|| Error::internal("a view that is read has no rows"))?;
                        let versions = handle
                            .running_versions()
                            .and_then(|versions| versions.get(subtask.subtask).cloned())
                            .ok_or_else(|| Error::internal("a view that is read has fewer subtasks than its reader"))?;
                        let attachments = upstream
                            .attachments
                            .get(subtask.subtask)
                            .ok_or_else(|| Error::internal("a view that is read has fewer subtasks than its reader"))?;
                        let (reader, attached) = oneshot::channel();
                        attachments.lock().push(Attachment {
                            // A restored reader stands at the same barrier as the view: it is there before the view's first row.
                            barrier: if joins { 0 } else { attach_barrier },
                            edge: OutputEdge::detachable(sender),
                            attached: (!joins).then_some(Attached { versions, reader }),
                        });
                        let layout = handle.layout.clone();
                        let columns = projection.clone();
                        let backfill = (!joins).then(|| ViewBackfill {
                            attached,
                            open: Box::new(move |snapshot| {
                                Ok(match since {
                                    Some(saved) => Box::new(ViewDifference::new(&saved, layout, snapshot, columns)) as Box<dyn Feed>,
                                    None => Box::new(ViewFeed { rows: RowReader::new(layout, snapshot), projection: columns }),
                                })
                            }),
                            live_from: live_from.clone(),
                        });
                        Head::View { inbox, backfill, project: ViewProjection(projection) }
                    }
                };
                heads.push((
                    subtask.chain_index,
                    subtask.subtask,
                    subtask.chain,
                    subtask.root,
                    subtask.snapshots,
                    subtask.attachments,
                    subtask.operators,
                    subtask.metrics,
                    connected,
                ));
            }
            Ok(())
        })();
        if let Err(error) = result {
            self.fail(id, error);
            return;
        }
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let gate = self.cohorts.iter().find(|cohort| cohort.members.contains(&id)).map(|cohort| cohort.gate.subscribe());
        let gate = gate.filter(|_| joins);
        let mut operators = Vec::new();
        let mut tasks = Vec::new();
        let started_us = self.context.clock.now_us();
        for (chain_index, subtask, chain, root, snapshots, attachments, described, metrics, head) in heads {
            for (uid, operator, counters) in described {
                operators.push(OperatorStatus { uid, operator, subtask, metrics: counters, subtask_metrics: metrics.clone(), started_us });
            }
            let id = SubtaskId { job: id, run: job.run, chain: chain_index, subtask };
            let context = SubtaskContext {
                id,
                chain,
                root,
                snapshots,
                events: self.subtask_events.clone(),
                clock: self.context.clock.clone(),
                memory: self.context.build.memory.reserve(),
                attachments,
                gate: gate.clone(),
            };
            let events = self.subtask_events.clone();
            tasks.push(self.context.spawner.spawn(async move {
                let running = futures::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(subtask::run(context, head)));
                if running.await.is_err() {
                    let _ = events.send(SubtaskEvent::Failed { id, error: Error::internal("a subtask panicked") });
                }
            }));
        }
        job.tasks = tasks;
        job.operators = operators;
        job.barriers = barriers;
        job.source_metrics = source_metrics;
        job.histories = histories;
        job.replaying = replaying;
        job.schedule = Schedule::new(self.last_tick);
        job.catching_up = built.sources;
        job.bounded = built.bounded && !matches!(job.job.kind, JobKind::MaterializedView { .. });
        job.not_ended = job.source_metrics.len();
        job.ends_at = None;
        job.attachments = built.attachments;
        job.root_parallelism = built.root_parallelism;
        job.stateful_subtasks = built.stateful_subtasks;
        job.live_from = live_from;
        job.state = JobState::Backfilling;
        if restored.is_none() {
            job.log_position = attach_commit;
            // The manifest must not offer the state of a former life.
            self.manifest.jobs.remove(&id);
        }
        if let Some(view) = self.context.views.read().get(&id) {
            view.begin_run(job.run, built.versions);
        }
        if joins {
            // Nothing has to be caught up: it takes part from the first barrier after its cohort has begun.
            job.state = JobState::Starting;
            job.catching_up = 0;
            self.leave_cohort(id);
        }
        self.want_barrier = true;
    }
}

/// A view's rows as of a barrier.
struct ViewFeed {
    rows: RowReader,
    projection: Vec<usize>,
}

impl Feed for ViewFeed {
    fn next_backfill(&mut self, max_rows: usize) -> Result<Option<Batch>> {
        match self.rows.next_batch(max_rows)? {
            None => Ok(None),
            Some(rows) => rows.project(&self.projection).map(|rows| Some(Batch::insert(rows))).map_err(crate::operators::error::from_arrow),
        }
    }

    fn next_changes(&mut self, _commit: CommitSeq) -> Result<Option<Batch>> {
        Ok(None)
    }
}
