//! The job manager: one task that makes barriers, follows them, completes checkpoints, and starts, stops and restarts jobs.
//!
//! Everything it learns comes as an [`Event`]; it never waits for a job, for disk or for a client: what takes time is spawned and comes back as an event.
//!
//! | file | decides |
//! | --- | --- |
//! | `barriers` | when a barrier is made, who gets it, who has finished it |
//! | `checkpoints` | which checkpoint is under way, and when a group's is complete |
//! | `manifests` | what is durable, and what may be removed |
//! | `jobs` | which jobs there are, and which form a group |
//! | `start` | what a job is restored from, and how its subtasks begin |
//! | `failures` | who is restarted, who is stopped |
//! | `catch_up` | how a stopped job goes on where what it reads has moved on |
//! | `recover` | what goes back to an older checkpoint |
//! | `flushes` | whom FLUSH waits for |

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use weir_catalog::{Error, Job, Object, ObjectId, Result, SqlState};
use weir_sql::graph::{NodeOp, StreamGraph};

use self::checkpoints::{CheckpointWaiter, Completed, GroupCheckpoint, Schedule, TablesUnderWay};
use self::flushes::FlushWaiter;
use self::jobs::{Groups, RunningJob};
use self::start::Cohort;
use super::build::{BuildContext, BuiltJob};
use super::numbers::{BarrierNumbers, Reserved};
use super::settings::Settings;
use super::status::{JobState, JobStatus, StatusBoard};
use super::view::ViewHandle;
use crate::checkpoint::snapshot::SnapshotCost;
use crate::checkpoint::{JobCheckpoint, Manifest, Pin, TablesCheckpoint};
use crate::log::{EngineLog, Tables};
use crate::runtime::exchange::is_receiver_gone;
use crate::runtime::subtask::SubtaskEvent;
use crate::seams::clock::Clock;
use crate::seams::hash::HashMap;
use crate::seams::spawn::Spawner;
use crate::sinks::commit::{CommitFailure, PendingCommit};
use crate::stream::{BarrierNumber, CommitSeq};

mod barriers;
mod catch_up;
mod checkpoints;
mod failures;
mod flushes;
mod jobs;
mod lost;
mod manifests;
mod recover;
mod start;

/// After something failed that is tried again: how long it waits, so that it does not try all the time.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// `55000`: what was asked for needs a job that the manager does not know: not yet, or not any more.
fn not_running() -> Error {
    Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "the job does not run")
        .with_detail("It was dropped meanwhile, or is about to start.")
        .with_hint("Try again.")
}

/// What the manager reacts to.
pub enum Event {
    Subtask(SubtaskEvent),
    /// A commit is durable.
    Committed,
    /// A job whose CREATE is durable. `published` is told when its first version is published, or when that can't be.
    Create {
        job: Arc<Job>,
        graph: Arc<StreamGraph>,
        published: Option<oneshot::Sender<Result<()>>>,
    },
    /// Jobs whose DROP is durable.
    Drop {
        jobs: Vec<ObjectId>,
        done: oneshot::Sender<()>,
    },
    /// Rebuild a job that was stopped by an error.
    Resume {
        job: ObjectId,
        done: oneshot::Sender<Result<()>>,
    },
    /// Take a job's group back to a retained checkpoint.
    Recover {
        job: ObjectId,
        checkpoint: BarrierNumber,
        done: oneshot::Sender<Result<()>>,
    },
    /// Told when the board shows what all earlier events made.
    Show {
        done: oneshot::Sender<()>,
    },
    /// Told when every running view covers what is committed now.
    Flush {
        done: oneshot::Sender<Result<()>>,
    },
    /// Told when a checkpoint that covers what is committed now is complete: of everything, or of one job's group and the stored tables.
    Checkpoint {
        of: Option<ObjectId>,
        done: oneshot::Sender<Result<()>>,
    },
    /// Asks for a checkpoint as [`Event::Checkpoint`] does, of the groups of `jobs` and the stored tables, and for what a savepoint of each needs of it; with
    /// `stop`, of jobs that then do nothing any more until their [`Hold`]s or the jobs themselves are dropped. Told before anything comes behind it.
    Save {
        jobs: Vec<ObjectId>,
        stop: bool,
        of_stopped: OfStopped,
        done: oneshot::Sender<Result<Saving>>,
    },
    /// Asks for the newest durable checkpoint of a job with all that a savepoint needs of it.
    Pin {
        job: ObjectId,
        done: oneshot::Sender<Result<PinnedCheckpoint>>,
    },
    /// Asks for a job's part of a retained checkpoint.
    PinRetained {
        job: ObjectId,
        checkpoint: BarrierNumber,
        done: oneshot::Sender<Result<(JobCheckpoint, Pin)>>,
    },
    /// A job that was stopped at a checkpoint goes on.
    Release {
        job: ObjectId,
    },
    /// A job is called something else from now on.
    Renamed {
        job: Arc<Job>,
    },
    /// Someone waits for views to agree on a barrier: make one soon, for everybody.
    WantBarrier,
    /// A job was built.
    Built {
        job: ObjectId,
        run: u64,
        built: Result<BuiltJob>,
    },
    /// The stored tables' part of a checkpoint.
    TablesStored {
        barrier: BarrierNumber,
        stored: Result<(TablesCheckpoint, Option<SnapshotCost>)>,
    },
    /// A manifest was written.
    ManifestWritten {
        manifest: Manifest,
        result: Result<()>,
    },
    /// Sinks have committed what a durable checkpoint lists, or could not.
    SinksCommitted {
        /// The checkpoint; `None` where it was told of before.
        completed: Option<Completed>,
        /// Each with whether it was the job's last checkpoint.
        committed: Vec<(ObjectId, bool)>,
        /// Each with the barrier of its checkpoint.
        failed: Vec<(ObjectId, BarrierNumber, CommitFailure)>,
    },
    /// A sink could not commit some time ago: try again.
    CommitDue {
        job: ObjectId,
    },
    /// Barrier numbers and time were reserved, or could not be.
    NumbersReserved {
        reserved: Result<Reserved>,
    },
    /// The pause before a restart is over.
    RestartDue {
        jobs: Vec<ObjectId>,
    },
    /// A bounded job's `dml_sync` waiter.
    WaitFinished {
        job: ObjectId,
        done: oneshot::Sender<Result<()>>,
    },
    /// A last checkpoint, then the end.
    Shutdown {
        done: oneshot::Sender<()>,
    },
}

/// What came of an attempt to save jobs.
pub enum Saving {
    /// The checkpoint of each, in their order.
    Saved(Vec<PinnedCheckpoint>),
    /// The first one that has none, and why.
    Without(ObjectId, Error),
    /// The stored tables have moved on from one, or it can't be stopped at the moment.
    Apart,
}

/// Who asks for a checkpoint, of what, and what for.
enum Wanted {
    /// Everything, or one job's group and the stored tables.
    Checkpoint(Option<ObjectId>, oneshot::Sender<Result<()>>),
    /// [`Event::Save`].
    Saved { jobs: Vec<ObjectId>, stop: bool, of_stopped: OfStopped, done: oneshot::Sender<Result<Saving>> },
}

/// What is to be had of a job that was stopped by an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfStopped {
    /// An error.
    Nothing,
    /// Its last checkpoint.
    LastCheckpoint,
    /// What it would go on from if it were resumed: its last checkpoint, or nothing for one that is built anew.
    WhatItKeeps,
}

/// A durable checkpoint of one job, of what it reads, and of the stored tables; its files stay as long as this is there.
pub struct PinnedCheckpoint {
    pub job: Arc<Job>,
    pub graph: Arc<StreamGraph>,
    pub checkpoint: JobCheckpoint,
    /// The views that it reads.
    pub inputs: Vec<(ObjectId, JobCheckpoint)>,
    pub tables: Option<TablesCheckpoint>,
    /// Whether it is what a job that was stopped by an error has left: then `tables` may be of a later commit.
    pub is_left: bool,
    pub pin: Pin,
    /// Of `tables`, where they were made for this.
    pub tables_pin: Option<Pin>,
    /// Where the job was stopped at it.
    pub hold: Option<Hold>,
}

impl PinnedCheckpoint {
    /// Whether the job reads stored tables.
    pub fn reads_tables(&self) -> bool {
        self.graph.nodes.iter().any(|node| matches!(node.op, NodeOp::TableScan { .. }))
    }

    /// Whether it is of a job that was stopped by an error and has no checkpoint: it is built anew, or begins again with the savepoint that it began with.
    pub fn is_nothing(&self) -> bool {
        self.is_left && self.checkpoint.barrier == 0
    }

    /// Whether it has the stored tables, where the job reads one, as of the job's very commit.
    pub fn is_of_one_moment(&self) -> bool {
        self.is_nothing() || !self.reads_tables() || self.tables.as_ref().is_some_and(|tables| tables.commit == self.checkpoint.commit)
    }
}

/// Keeps a job that was stopped at a checkpoint from doing anything. When this is dropped it goes on, if it is still there.
pub struct Hold {
    job: ObjectId,
    sender: mpsc::UnboundedSender<Event>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        // During a shutdown there is nothing to go on.
        let _ = self.sender.send(Event::Release { job: self.job });
    }
}

/// What the manager shares with the rest of the engine.
pub struct ManagerContext {
    pub settings: Arc<RwLock<Settings>>,
    pub clock: Clock,
    pub spawner: Spawner,
    pub build: BuildContext,
    pub log: EngineLog,
    pub tables: Arc<Tables>,
    pub views: Arc<RwLock<HashMap<ObjectId, Arc<ViewHandle>>>>,
    pub board: Arc<RwLock<StatusBoard>>,
    /// The end of the log as found at start: views show nothing older.
    pub start_commit: CommitSeq,
    pub numbers: BarrierNumbers,
}

/// The state of the task.
pub struct Manager {
    context: ManagerContext,
    sender: mpsc::UnboundedSender<Event>,
    subtask_events: mpsc::UnboundedSender<SubtaskEvent>,
    jobs: BTreeMap<ObjectId, RunningJob>,
    groups: Groups,
    last_barrier_at: Instant,
    /// Whether the next barrier waits for numbers or time to be reserved.
    reserving: bool,
    /// After numbers could not be reserved: when that is tried again.
    no_barrier_before: Instant,
    last_commit: CommitSeq,
    /// The commits of the barriers whose versions stay readable, oldest first: stored tables are read as of these too.
    readable_commits: VecDeque<CommitSeq>,
    next_run: u64,
    want_barrier: bool,
    want_checkpoint: Vec<Wanted>,
    want_flush: Vec<oneshot::Sender<Result<()>>>,
    want_shown: Vec<oneshot::Sender<()>>,
    flushes: Vec<FlushWaiter>,
    /// The checkpoints under way that are not acknowledged in full; a group is in one at most.
    checkpoints: Vec<GroupCheckpoint>,
    tables_under_way: Option<TablesUnderWay>,
    tables_schedule: Schedule,
    tables_wanted: Option<BarrierNumber>,
    waiters: Vec<CheckpointWaiter>,
    /// What is complete: to be written with the next manifest, and with the one that is being written.
    completed: Vec<Completed>,
    completing: Vec<Completed>,
    /// Jobs whose sink could not commit and tries again later.
    uncommitted: BTreeSet<ObjectId>,
    /// When checkpoints last began at their regular time.
    last_tick: Instant,
    manifest: Manifest,
    retained: VecDeque<Manifest>,
    writing: bool,
    manifest_dirty: bool,
    cohorts: Vec<Cohort>,
    tables_part: Option<TablesCheckpoint>,
    tables_incarnation: String,
    shutdown: Option<Shutdown>,
}

/// A stop that is under way: it waits for a last checkpoint, up to a time.
struct Shutdown {
    /// When it does without the checkpoint: nothing is lost then, the next start reads more of the log.
    deadline: Instant,
    done: oneshot::Sender<()>,
}

impl Manager {
    /// A manager that starts from `retained`, the manifests in the store, oldest first.
    pub fn new(
        mut context: ManagerContext,
        retained: Vec<Manifest>,
    ) -> (Manager, mpsc::UnboundedSender<Event>, mpsc::UnboundedReceiver<Event>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let (subtask_events, mut from_subtasks) = mpsc::unbounded_channel();
        let forward = sender.clone();
        context.spawner.spawn(async move {
            while let Some(event) = from_subtasks.recv().await {
                if forward.send(Event::Subtask(event)).is_err() {
                    break;
                }
            }
        });
        let manifest = retained.last().cloned().unwrap_or_default();
        context.numbers.not_before(manifest.jobs.values().map(|job| job.time_us).max().unwrap_or(0));
        let now = Instant::now();
        let manager = Manager {
            groups: Groups::default(),
            last_barrier_at: now,
            reserving: false,
            no_barrier_before: now,
            last_commit: 0,
            readable_commits: VecDeque::new(),
            next_run: 1,
            want_barrier: true,
            want_checkpoint: Vec::new(),
            want_flush: Vec::new(),
            want_shown: Vec::new(),
            flushes: Vec::new(),
            checkpoints: Vec::new(),
            tables_under_way: None,
            tables_schedule: Schedule::new(now),
            tables_wanted: None,
            waiters: Vec::new(),
            completed: Vec::new(),
            completing: Vec::new(),
            uncommitted: BTreeSet::new(),
            last_tick: now,
            tables_part: manifest.tables.clone(),
            tables_incarnation: context.build.incarnation(),
            manifest,
            retained: retained.into(),
            writing: false,
            manifest_dirty: false,
            cohorts: Vec::new(),
            shutdown: None,
            jobs: BTreeMap::new(),
            sender: sender.clone(),
            subtask_events,
            context,
        };
        (manager, sender, receiver)
    }

    /// Adds the jobs that exist at start, inputs first, and begins to restore them.
    pub fn start_existing(&mut self, jobs: Vec<(Arc<Job>, Result<Arc<StreamGraph>>)>) {
        let mut ids = Vec::new();
        for (job, graph) in jobs {
            let id = job.id;
            let parallelism = self.parallelism_at_start(&job);
            match graph {
                Ok(graph) => {
                    if self.manifest.jobs.get(&id).is_some_and(|checkpoint| checkpoint.finished) {
                        self.add(job, graph, parallelism, None);
                        if let Some(running) = self.jobs.get_mut(&id) {
                            running.state = JobState::Finished;
                        }
                        continue;
                    }
                    self.add(job, graph, parallelism, None);
                    if let Some(running) = self.jobs.get_mut(&id) {
                        running.created = true;
                    }
                    ids.push(id);
                }
                Err(error) => {
                    tracing::error!(job = %job.name, %error, "a job could not be planned");
                    let empty = Arc::new(StreamGraph { nodes: Vec::new() });
                    self.add(job, empty, parallelism, None);
                    if let Some(running) = self.jobs.get_mut(&id) {
                        running.created = true;
                    }
                    self.stop_with(id, error);
                }
            }
        }
        let catalog = self.context.log.catalog();
        for job in self.jobs.values() {
            // Where that is not known, the commits of the job wait until it is built.
            if let Err(error) = crate::sinks::register_objects(&catalog, &job.job, &self.context.build.committer) {
                tracing::warn!(job = %job.job.name, %error, "the object store of a sink can't be used");
            }
        }
        // What a checkpoint lists was decided when it became durable, and may not have been carried out; also where the job was dropped since.
        for (id, checkpoint) in self.manifest.jobs.iter().filter(|(_, checkpoint)| checkpoint.commits().next().is_some()) {
            if !self.jobs.contains_key(id) && checkpoint.commits().any(PendingCommit::is_in_object_store) {
                // How its store was spoken to went with it.
                tracing::info!(job = id, "the last commit of a job that was dropped is not carried out");
                continue;
            }
            self.spawn_commit(None, vec![(*id, checkpoint.clone())]);
        }
        // A drop that no manifest knows of yet.
        let jobs = &self.jobs;
        self.manifest.jobs.retain(|id, _| jobs.contains_key(id));
        self.start(&ids);
        self.publish_board();
    }

    /// Runs until the shutdown.
    pub async fn run(mut self, mut events: mpsc::UnboundedReceiver<Event>) {
        loop {
            let deadline = self.next_deadline();
            tokio::select! {
                biased;
                event = events.recv() => {
                    let Some(event) = event else { return };
                    self.handle(event);
                    while let Ok(event) = events.try_recv() {
                        self.handle(event);
                    }
                }
                () = sleep_until(deadline) => {}
            }
            self.check_timeouts();
            self.make_barrier_if_due();
            self.publish_board();
            for shown in self.want_shown.drain(..) {
                let _ = shown.send(());
            }
            if self.may_stop() {
                for job in self.jobs.values_mut() {
                    job.stop_tasks();
                }
                // Numbers and time that were reserved and not used are given back, so that the next start need not skip them.
                if let Some(used) = self.context.numbers.give_back() {
                    let written = self.context.spawner.spawn_blocking(move || used.write()).await;
                    if let Ok(Err(error)) = written {
                        tracing::warn!(%error, "barrier numbers were not given back");
                    }
                }
                if let Some(Shutdown { done, .. }) = self.shutdown.take() {
                    let _ = done.send(());
                }
                return;
            }
        }
    }

    /// Whether a stop is wanted and the checkpoint that it waits for has ended, or takes too long.
    fn may_stop(&self) -> bool {
        let Some(shutdown) = &self.shutdown else { return false };
        if self.waiters.is_empty() && !self.writing && self.want_checkpoint.is_empty() {
            return true;
        }
        let late = Instant::now() >= shutdown.deadline;
        if late {
            tracing::warn!(
                "stopping without a last checkpoint, which was not complete in time; the next start reads the rest from the log"
            );
        }
        late
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Subtask(event) => self.handle_subtask(event),
            Event::Committed => self.tables_schedule.note_change(),
            Event::Create { job, graph, published } => {
                let id = job.id;
                let parallelism = job.parallelism;
                self.add(job, graph, parallelism, published);
                self.start(&[id]);
            }
            Event::Drop { jobs, done } => {
                let ended = jobs.into_iter().map(|id| (id, self.forget(id))).collect();
                // The catalog's snapshot goes with a checkpoint.
                self.tables_schedule.note_change();
                self.discard(ended, done);
            }
            Event::Resume { job, done } => self.resume(job, done),
            Event::Recover { job, checkpoint, done } => self.recover(job, checkpoint, done),
            Event::Show { done } => self.want_shown.push(done),
            Event::Flush { done } => self.want_flush.push(done),
            Event::Checkpoint { of, done } => self.want_checkpoint.push(Wanted::Checkpoint(of, done)),
            Event::Save { jobs, stop, of_stopped, done } => self.want_checkpoint.push(Wanted::Saved { jobs, stop, of_stopped, done }),
            Event::Pin { job, done } => {
                let _ = done.send(self.pin(job, OfStopped::Nothing));
            }
            Event::PinRetained { job, checkpoint, done } => {
                let _ = done.send(self.pin_retained(job, checkpoint));
            }
            Event::Release { job } => self.release(job),
            Event::Renamed { job } => {
                if let Some(view) = self.context.views.read().get(&job.id) {
                    view.rename(job.name.clone());
                }
                if let Some(running) = self.jobs.get_mut(&job.id) {
                    running.job = job;
                }
            }
            Event::WantBarrier => self.want_barrier = true,
            Event::Built { job, run, built } => self.built(job, run, built),
            Event::TablesStored { barrier, stored } => self.tables_stored(barrier, stored),
            Event::ManifestWritten { manifest, result } => self.manifest_written(manifest, result),
            Event::SinksCommitted { completed, committed, failed } => self.sinks_committed(completed.as_ref(), committed, failed),
            Event::CommitDue { job } => self.commit_again(job),
            Event::NumbersReserved { reserved } => self.numbers_reserved(reserved),
            Event::RestartDue { jobs } => {
                let is_due = |job: &RunningJob| job.state == JobState::Restarting && !job.held;
                let due: Vec<ObjectId> = jobs.into_iter().filter(|id| self.jobs.get(id).is_some_and(is_due)).collect();
                self.start(&due);
            }
            Event::WaitFinished { job, done } => match self.jobs.get_mut(&job) {
                Some(running) if running.state == JobState::Finished => {
                    let _ = done.send(Ok(()));
                }
                Some(running) if running.state == JobState::Failed => {
                    let _ = done.send(Err(running.last_error.clone().unwrap_or_else(|| Error::internal("the job failed"))));
                }
                Some(running) => running.finished_waiters.push(done),
                None => {
                    let _ = done.send(Ok(()));
                }
            },
            Event::Shutdown { done } => {
                let (told, _) = oneshot::channel();
                self.want_checkpoint.push(Wanted::Checkpoint(None, told));
                let deadline = Instant::now() + self.context.settings.read().shutdown_timeout;
                self.shutdown = Some(Shutdown { deadline, done });
            }
        }
    }

    fn handle_subtask(&mut self, event: SubtaskEvent) {
        let id = match &event {
            SubtaskEvent::Collected { id, .. }
            | SubtaskEvent::Snapshot { id, .. }
            | SubtaskEvent::SnapshotFailed { id, .. }
            | SubtaskEvent::Replayed { id, .. }
            | SubtaskEvent::Backfilled { id }
            | SubtaskEvent::SourceEnded { id }
            | SubtaskEvent::Failed { id, .. } => *id,
        };
        if self.jobs.get(&id.job).is_none_or(|job| job.run != id.run || job.tasks.is_empty()) {
            return; // of a former run
        }
        match event {
            SubtaskEvent::Collected { barrier, .. } => self.collected(id.job, barrier),
            SubtaskEvent::Snapshot { barrier, snapshot, .. } => self.snapshot_stored(id, barrier, snapshot),
            SubtaskEvent::SnapshotFailed { barrier, error, .. } => self.snapshot_failed(id, barrier, error),
            SubtaskEvent::Replayed { barrier, .. } => {
                if let Some(job) = self.jobs.get_mut(&id.job) {
                    job.replaying = job.replaying.saturating_sub(1);
                    job.replayed_at = job.replayed_at.max(barrier);
                }
            }
            SubtaskEvent::Backfilled { .. } => {
                let next = self.context.numbers.peek();
                let Some(job) = self.jobs.get_mut(&id.job) else { return };
                job.catching_up = job.catching_up.saturating_sub(1);
                if job.catching_up == 0 && job.state == JobState::Backfilling {
                    job.state = JobState::Running;
                    job.live_from.store(next, Ordering::SeqCst);
                    self.want_barrier = true;
                }
            }
            SubtaskEvent::SourceEnded { .. } => {
                let next = self.context.numbers.peek();
                let Some(job) = self.jobs.get_mut(&id.job) else { return };
                job.not_ended = job.not_ended.saturating_sub(1);
                if job.bounded && job.not_ended == 0 && job.ends_at.is_none() {
                    // Its last checkpoint, which ends it.
                    job.ends_at = Some(next);
                    job.wanted = Some(next);
                }
                self.want_barrier = true;
            }
            SubtaskEvent::Failed { error, .. } => {
                if !is_receiver_gone(&error) {
                    self.fail(id.job, error);
                }
            }
        }
    }

    fn publish_board(&self) {
        let jobs = self
            .jobs
            .values()
            .map(|job| JobStatus {
                id: job.job.id,
                name: job.job.name.clone(),
                kind: Object::Job((*job.job).clone()).kind(),
                state: job.state,
                restarts: job.restarts,
                last_error: job.last_error.clone(),
                parallelism: job.parallelism,
                barrier: job.completed,
                in_flight: job.in_flight.len(),
                checkpointed: self.retained.back().is_some_and(|manifest| manifest.jobs.contains_key(&job.job.id)),
                kept_bytes: self.manifest.jobs.get(&job.job.id).map_or(0, JobCheckpoint::kept_bytes),
                operators: job.operators.clone(),
            })
            .collect();
        let retained = self.retained_barriers();
        let mut board = self.context.board.write();
        board.jobs = jobs;
        if board.retained.iter().map(|retained| retained.checkpoint).ne(retained.iter().copied()) {
            board.retained = retained.into_iter().filter_map(|barrier| self.retained_status(barrier)).collect();
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
