//! The job manager: one task that makes barriers, follows them, completes checkpoints, and starts, stops and restarts jobs.
//!
//! Everything it learns comes as an [`Event`]; it never waits for a job, for disk or for a client: what takes time is spawned and comes back as an event.
//!
//! # Invariants
//! - Barrier numbers and times only grow. A barrier goes to every live job, in order.
//! - A job is live from the first barrier after all its sources have caught up; a barrier that it was not live for counts as finished by it.
//! - A group's checkpoint enters the manifest only as a whole: all its jobs at one barrier.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use weir_catalog::{Error, Job, JobKind, Object, ObjectId, Result};
use weir_sql::graph::StreamGraph;

use super::build::{self, BuildContext, BuiltJob, HeadPlan};
use super::feed::TableFeed;
use super::numbers::BarrierNumbers;
use super::settings::Settings;
use super::status::{
    CHECKPOINTS_REMEMBERED, CheckpointState, CheckpointStatus, CheckpointSummary, JobState, JobStatus, OperatorStatus, StatusBoard,
};
use super::view::{Published, ViewHandle};
use crate::checkpoint::snapshot::{SnapshotCost, SubtaskSnapshot, store_part};
use crate::checkpoint::{JobCheckpoint, Manifest, OperatorCheckpoint, TablesCheckpoint};
use crate::log::{EngineLog, Tables};
use crate::operators::materialize::RowReader;
use crate::runtime::exchange::{OutputEdge, is_receiver_gone};
use crate::runtime::metrics::SubtaskMetrics;
use crate::runtime::subtask::{
    self, Attachment, Attachments, Feed, Head, SubtaskContext, SubtaskEvent, SubtaskId, ViewBackfill, ViewProjection,
};
use crate::seams::clock::{Clock, Stopwatch};
use crate::seams::hash::HashMap;
use crate::seams::spawn::{JoinHandle, Spawner};
use crate::stream::{Barrier, BarrierNumber, Batch, CommitSeq};

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
    /// Told when every running view covers what is committed now.
    Flush {
        done: oneshot::Sender<Result<()>>,
    },
    /// Told when a checkpoint that covers what is committed now is complete.
    Checkpoint {
        done: oneshot::Sender<Result<()>>,
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

/// A job that exists, running or not.
struct RunningJob {
    job: Arc<Job>,
    graph: Arc<StreamGraph>,
    /// The materialized views that it reads.
    upstream: Vec<ObjectId>,
    run: u64,
    state: JobState,
    parallelism: usize,
    tasks: Vec<JoinHandle<()>>,
    /// Barriers go in here: one for each subtask that reads a table or a connector.
    barriers: Vec<mpsc::UnboundedSender<Arc<Barrier>>>,
    /// Sources that have not caught up yet.
    catching_up: usize,
    /// Bounded sources that have not ended yet.
    not_ended: usize,
    bounded: bool,
    live_from: Arc<AtomicU64>,
    /// The commit from which it reads the log next: what comes before is not needed for it.
    log_position: CommitSeq,
    attachments: Vec<Attachments>,
    root_parallelism: usize,
    stateful_subtasks: usize,
    operators: Vec<OperatorStatus>,
    /// Barriers given and not finished, with the commit of each and how many root subtasks have finished it.
    in_flight: VecDeque<(BarrierNumber, CommitSeq, usize)>,
    completed: BarrierNumber,
    restarts: u64,
    /// How often it failed with the present error.
    failures: usize,
    failed_at: Option<Instant>,
    last_error: Option<Error>,
    published: Option<oneshot::Sender<Result<()>>>,
    finished_waiters: Vec<oneshot::Sender<Result<()>>>,
    /// The checkpoint that it is being restored from.
    restoring: Option<JobCheckpoint>,
    /// The next completed checkpoint that holds it may end it: all its input has ended before that barrier.
    ends_at: Option<BarrierNumber>,
    /// Whether rows came since the last barrier.
    source_metrics: Vec<Arc<SubtaskMetrics>>,
    /// Whether it has ever published: from then on FLUSH waits for it, also while it restarts.
    created: bool,
}

/// Jobs that are restored together: their subtasks begin at one moment, so that no reader misses what a view emits.
struct Cohort {
    gate: watch::Sender<bool>,
    waiting: BTreeSet<ObjectId>,
    members: BTreeSet<ObjectId>,
}

/// A checkpoint under way.
struct PendingCheckpoint {
    barrier: Arc<Barrier>,
    started: Instant,
    /// Jobs that take part and have not acknowledged in full.
    waiting: BTreeMap<ObjectId, WaitingJob>,
    /// Groups: complete when all of their jobs are.
    groups: Vec<BTreeSet<ObjectId>>,
    done: BTreeMap<ObjectId, JobCheckpoint>,
    tables: Option<TablesCheckpoint>,
    tables_pending: bool,
    failed: Option<Error>,
    waiters: Vec<oneshot::Sender<Result<()>>>,
    /// Whether everything that could complete was handed to a manifest.
    ended: bool,
}

struct WaitingJob {
    snapshots: Vec<SubtaskSnapshot>,
    expected: usize,
    collected: bool,
}

struct FlushWaiter {
    barrier: BarrierNumber,
    done: oneshot::Sender<Result<()>>,
}

/// The state of the task.
pub struct Manager {
    context: ManagerContext,
    sender: mpsc::UnboundedSender<Event>,
    subtask_events: mpsc::UnboundedSender<SubtaskEvent>,
    jobs: BTreeMap<ObjectId, RunningJob>,
    last_barrier_time_us: i64,
    last_barrier_at: Instant,
    last_commit: CommitSeq,
    /// The commits of the barriers whose versions stay readable, oldest first: stored tables are read as of these too.
    readable_commits: VecDeque<CommitSeq>,
    next_run: u64,
    want_barrier: bool,
    want_checkpoint: Vec<oneshot::Sender<Result<()>>>,
    want_flush: Vec<oneshot::Sender<Result<()>>>,
    flushes: Vec<FlushWaiter>,
    pending: Option<PendingCheckpoint>,
    /// Whether anything happened since the last checkpoint began.
    changed: bool,
    last_checkpoint_ended: Instant,
    last_checkpoint_started: Instant,
    checkpoint_failures: usize,
    manifest: Manifest,
    retained: VecDeque<Manifest>,
    writing: bool,
    /// The checkpoint that ends when the manifest being written is durable.
    writing_ends: Option<BarrierNumber>,
    manifest_dirty: bool,
    cohorts: Vec<Cohort>,
    /// Waiters of checkpoints whose manifest is to be written, and of the one being written.
    manifest_waiters: Vec<oneshot::Sender<Result<()>>>,
    writing_waiters: Vec<oneshot::Sender<Result<()>>>,
    tables_part: Option<TablesCheckpoint>,
    tables_incarnation: String,
    shutdown: Option<oneshot::Sender<()>>,
}

impl Manager {
    /// A manager that starts from `retained`, the manifests in the store, oldest first.
    pub fn new(
        context: ManagerContext,
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
        let now = Instant::now();
        let manager = Manager {
            last_barrier_time_us: manifest.jobs.values().map(|job| job.time_us).max().unwrap_or(0),
            last_barrier_at: now,
            last_commit: 0,
            readable_commits: VecDeque::new(),
            next_run: 1,
            want_barrier: true,
            want_checkpoint: Vec::new(),
            want_flush: Vec::new(),
            flushes: Vec::new(),
            pending: None,
            changed: false,
            last_checkpoint_ended: now,
            last_checkpoint_started: now,
            checkpoint_failures: 0,
            tables_part: manifest.tables.clone(),
            tables_incarnation: context.build.incarnation(),
            manifest,
            retained: retained.into(),
            writing: false,
            writing_ends: None,
            manifest_dirty: false,
            cohorts: Vec::new(),
            manifest_waiters: Vec::new(),
            writing_waiters: Vec::new(),
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
            match graph {
                Ok(graph) => {
                    if self.manifest.jobs.get(&id).is_some_and(|checkpoint| checkpoint.finished) {
                        self.add(job, graph, None);
                        if let Some(running) = self.jobs.get_mut(&id) {
                            running.state = JobState::Finished;
                        }
                        continue;
                    }
                    self.add(job, graph, None);
                    if let Some(running) = self.jobs.get_mut(&id) {
                        running.created = true;
                    }
                    ids.push(id);
                }
                Err(error) => {
                    tracing::error!(job = %job.name, %error, "a job could not be planned");
                    let empty = Arc::new(StreamGraph { nodes: Vec::new() });
                    self.add(job, empty, None);
                    self.stop_with(id, error);
                }
            }
        }
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
            self.check_timeout();
            self.make_barrier_if_due();
            self.publish_board();
            if self.shutdown.is_some() && self.pending.is_none() && !self.writing && self.want_checkpoint.is_empty() {
                for job in self.jobs.values_mut() {
                    stop_tasks(job);
                }
                if let Some(done) = self.shutdown.take() {
                    let _ = done.send(());
                }
                return;
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Subtask(event) => self.handle_subtask(event),
            Event::Committed => self.changed = true,
            Event::Create { job, graph, published } => {
                let id = job.id;
                self.add(job, graph, published);
                self.start(&[id]);
            }
            Event::Drop { jobs, done } => {
                for id in jobs {
                    self.forget(id);
                }
                self.changed = true;
                let _ = done.send(());
            }
            Event::Resume { job, done } => self.resume(job, done),
            Event::Flush { done } => self.want_flush.push(done),
            Event::Checkpoint { done } => self.want_checkpoint.push(done),
            Event::WantBarrier => self.want_barrier = true,
            Event::Built { job, run, built } => self.built(job, run, built),
            Event::TablesStored { barrier, stored } => self.tables_stored(barrier, stored),
            Event::ManifestWritten { manifest, result } => self.manifest_written(manifest, result),
            Event::RestartDue { jobs } => {
                let due: Vec<ObjectId> =
                    jobs.into_iter().filter(|id| self.jobs.get(id).is_some_and(|job| job.state == JobState::Restarting)).collect();
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
                self.want_checkpoint.push(told);
                self.shutdown = Some(done);
            }
        }
    }

    // ---- jobs: adding, starting, stopping ----

    fn add(&mut self, job: Arc<Job>, graph: Arc<StreamGraph>, published: Option<oneshot::Sender<Result<()>>>) {
        let upstream = graph.nodes.iter().filter_map(|node| match node.op {
            weir_sql::graph::NodeOp::ViewScan { view, .. } => Some(view),
            _ => None,
        });
        let upstream: BTreeSet<ObjectId> = upstream.collect();
        let settings = self.context.settings.read();
        let parallelism = if settings.parallelism_given { settings.parallelism } else { job.parallelism };
        drop(settings);
        if let (JobKind::MaterializedView { .. }, Some(root)) = (&job.kind, graph.nodes.last()) {
            match crate::operators::materialize::RowLayout::new(root.schema.clone(), root.upsert_key.clone()) {
                Ok(layout) => {
                    let handle = ViewHandle::new(job.id, job.name.clone(), Arc::new(layout), self.context.start_commit);
                    self.context.views.write().insert(job.id, Arc::new(handle));
                }
                Err(error) => tracing::error!(job = %job.name, %error, "a view's rows can't be laid out"),
            }
        }
        let id = job.id;
        let log_position = self.manifest.jobs.get(&id).map_or(0, |checkpoint| checkpoint.commit);
        self.jobs.insert(
            id,
            RunningJob {
                job,
                graph,
                upstream: upstream.into_iter().collect(),
                run: 0,
                state: JobState::Starting,
                parallelism,
                tasks: Vec::new(),
                barriers: Vec::new(),
                catching_up: 0,
                not_ended: 0,
                bounded: false,
                live_from: Arc::new(AtomicU64::new(u64::MAX)),
                log_position,
                attachments: Vec::new(),
                root_parallelism: 0,
                stateful_subtasks: 0,
                operators: Vec::new(),
                in_flight: VecDeque::new(),
                completed: 0,
                restarts: 0,
                failures: 0,
                failed_at: None,
                last_error: None,
                published,
                finished_waiters: Vec::new(),
                restoring: None,
                ends_at: None,
                source_metrics: Vec::new(),
                created: false,
            },
        );
    }

    /// Begins to build `ids`: with the state of the newest checkpoint where that fits, else from their inputs' rows.
    ///
    /// A job's state fits where its inputs are restored to the same barrier; the manifest holds a group's jobs at one barrier, so only a job that
    /// joined later does not.
    fn start(&mut self, ids: &[ObjectId]) {
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
            builds.push((id, checkpoint.filter(|_| fits)));
        }
        if !restorable.is_empty() {
            self.cohorts.push(Cohort { gate: watch::Sender::new(false), waiting: restorable.clone(), members: restorable });
        }
        for (id, restore) in builds {
            self.build(id, restore);
        }
    }

    /// `id` is launched, or will not be in this start: the last one of a cohort opens its gate.
    fn leave_cohort(&mut self, id: ObjectId) {
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

    fn build(&mut self, id: ObjectId, restore: Option<JobCheckpoint>) {
        let run = self.next_run;
        self.next_run += 1;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        stop_tasks(job);
        let former = self.context.build.scratch.join(format!("{id}-{}", job.run));
        let files = self.context.build.files.clone();
        self.context.spawner.spawn_blocking(move || {
            if let Err(error) = files.remove_dir(&former) {
                tracing::warn!(%error, "the folder of a former run was not removed");
            }
        });
        job.completed = restore.as_ref().map_or(0, |checkpoint| checkpoint.barrier);
        job.run = run;
        job.state = JobState::Starting;
        job.restoring = restore.clone();
        job.in_flight.clear();
        // A view's readers can only be built when its own subtasks are there: they have as many.
        let upstream = job.upstream.clone();
        if upstream.iter().any(|input| self.jobs.get(input).is_none_or(|other| other.state == JobState::Starting)) {
            return;
        }
        self.spawn_build(id);
    }

    fn spawn_build(&mut self, id: ObjectId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let (definition, graph, restore, parallelism, run) =
            (job.job.clone(), job.graph.clone(), job.restoring.clone(), job.parallelism, job.run);
        let context = self.context.build.clone();
        let catalog = self.context.log.catalog();
        let views = self.context.views.read().clone();
        let sender = self.sender.clone();
        self.context.spawner.spawn_blocking(move || {
            let built = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                build::build(&context, &catalog, &definition, &graph, parallelism, &views, restore.as_ref(), run)
            }))
            .unwrap_or_else(|_| Err(Error::internal("building the job panicked")));
            let _ = sender.send(Event::Built { job: definition.id, run, built });
        });
    }

    fn built(&mut self, id: ObjectId, run: u64, built: Result<BuiltJob>) {
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
        // A job without a checkpoint reads its inputs' rows as of the next barrier, which is made at once.
        let attach_barrier = self.context.numbers.peek();
        let attach_commit = self.context.log.end();
        let catalog = self.context.log.catalog();
        let mut heads = Vec::with_capacity(built.subtasks.len());
        let mut barriers = Vec::new();
        let mut source_metrics = Vec::new();
        let live_from = Arc::new(AtomicU64::new(if restored.is_some() { 0 } else { u64::MAX }));
        let result = (|| -> Result<()> {
            for subtask in built.subtasks {
                let connected = match subtask.head {
                    HeadPlan::Inputs(inbox) => Head::Inputs { inbox },
                    HeadPlan::Connector(source) => {
                        let (sender, receiver) = mpsc::unbounded_channel();
                        barriers.push(sender);
                        source_metrics.push(subtask.metrics.clone());
                        Head::Connector { source, barriers: receiver }
                    }
                    HeadPlan::Table { table, projection } => {
                        let (sender, receiver) = mpsc::unbounded_channel();
                        barriers.push(sender);
                        let from = restored.as_ref().map_or(attach_commit, |checkpoint| checkpoint.commit);
                        let feed = Box::new(TableFeed::open(&self.context.tables, &catalog, table, projection, from, restored.is_none())?);
                        Head::Table { feed, backfill: restored.is_none(), barriers: receiver }
                    }
                    HeadPlan::View { view, projection, inbox, sender } => {
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
                        let (attached, told) = oneshot::channel();
                        attachments.lock().push(Attachment {
                            // A restored reader stands at the same barrier as the view: it is there before the view's first row.
                            barrier: if restored.is_some() { 0 } else { attach_barrier },
                            edge: OutputEdge::detachable(sender),
                            attached: Some(attached),
                        });
                        let layout = handle.layout.clone();
                        let columns = projection.clone();
                        let backfill = restored.is_none().then(|| ViewBackfill {
                            attached: told,
                            open: Box::new(move |barrier| {
                                let snapshot =
                                    versions.open(barrier).ok_or_else(|| Error::internal("the version that a reader joins at is gone"))?;
                                Ok(Box::new(ViewFeed { rows: RowReader::new(layout, snapshot), projection: columns }) as Box<dyn Feed>)
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
        let gate = gate.filter(|_| restored.is_some());
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
        if restored.is_some() {
            // Nothing has to be caught up: it takes part from the first barrier after its cohort has begun.
            job.state = JobState::Starting;
            job.catching_up = 0;
            self.leave_cohort(id);
        }
        self.want_barrier = true;
        self.changed = true;
    }

    /// `ids` with every job after the views that it reads.
    fn inputs_first(&self, ids: &[ObjectId]) -> Vec<ObjectId> {
        fn visit(manager: &Manager, id: ObjectId, wanted: &BTreeSet<ObjectId>, order: &mut Vec<ObjectId>) {
            if order.contains(&id) || !wanted.contains(&id) {
                return;
            }
            if let Some(job) = manager.jobs.get(&id) {
                for input in &job.upstream {
                    visit(manager, *input, wanted, order);
                }
            }
            order.push(id);
        }
        let wanted: BTreeSet<ObjectId> = ids.iter().copied().collect();
        let mut order = Vec::new();
        for id in ids {
            visit(self, *id, &wanted, &mut order);
        }
        order
    }

    /// The jobs that read `id`, directly or not, and `id`.
    fn with_readers(&self, id: ObjectId) -> BTreeSet<ObjectId> {
        let mut found = BTreeSet::from([id]);
        loop {
            let more: Vec<ObjectId> = self
                .jobs
                .iter()
                .filter(|(reader, job)| !found.contains(reader) && job.upstream.iter().any(|input| found.contains(input)))
                .map(|(reader, _)| *reader)
                .collect();
            if more.is_empty() {
                return found;
            }
            found.extend(more);
        }
    }

    /// The group of `id`: the jobs joined to it by a view reading a view, as far as they are not stopped.
    fn group_of(&self, id: ObjectId) -> BTreeSet<ObjectId> {
        let active = |job: &RunningJob| !matches!(job.state, JobState::Failed | JobState::Finished);
        let mut group = BTreeSet::from([id]);
        loop {
            let mut more = BTreeSet::new();
            for (other, job) in &self.jobs {
                if !active(job) {
                    continue;
                }
                for input in &job.upstream {
                    if !self.jobs.get(input).is_some_and(active) {
                        continue;
                    }
                    if group.contains(other) != group.contains(input) {
                        more.insert(*other);
                        more.insert(*input);
                    }
                }
            }
            if more.is_subset(&group) {
                return group;
            }
            group.extend(more);
        }
    }

    /// Takes a dropped job out of everything.
    fn forget(&mut self, id: ObjectId) {
        let Some(mut job) = self.jobs.remove(&id) else { return };
        stop_tasks(&mut job);
        if let Some(published) = job.published.take() {
            let _ = published.send(Err(Error::new(weir_catalog::SqlState::UNDEFINED_TABLE, format!("{} was dropped", job.job.name))));
        }
        self.context.views.write().remove(&id);
        self.leave_pending(id);
        self.leave_cohort(id);
        if self.manifest.jobs.remove(&id).is_some() {
            self.manifest_dirty = true;
        }
        let scratch = self.context.build.scratch.join(format!("{id}-{}", job.run));
        let files = self.context.build.files.clone();
        self.context.spawner.spawn_blocking(move || {
            if let Err(error) = files.remove_dir(&scratch) {
                tracing::warn!(%error, "the folder of a dropped job was not removed");
            }
        });
        self.check_flushes();
    }

    // ---- failures ----

    /// A job failed: its group is restarted from its last checkpoint, or, after too many failures for the same reason, the job is stopped.
    fn fail(&mut self, id: ObjectId, error: Error) {
        let (attempts, delay) = {
            let settings = self.context.settings.read();
            (settings.restart_attempts, settings.restart_delay)
        };
        let group = self.group_of(id);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if matches!(job.state, JobState::Failed | JobState::Restarting) {
            return;
        }
        tracing::warn!(job = %job.job.name, %error, "a job failed");
        let same = job.last_error.as_ref().is_some_and(|last| last.code() == error.code() && last.message() == error.message());
        // Failures that lie far apart are not one series.
        let series = same && job.failed_at.is_some_and(|at| at.elapsed() < FAILURE_SERIES);
        job.failures = if series { job.failures + 1 } else { 1 };
        job.failed_at = Some(Instant::now());
        job.last_error = Some(error.clone());
        let failures = job.failures;
        // A job that never published is not worth another try: whoever creates it learns at once.
        let stop = failures >= attempts || !job.created;
        if stop {
            self.stop_with(id, error);
            // What it remembers is of no use to a later start, which rebuilds it from the rows; a connector's rows can't be read again.
            for member in self.with_readers(id) {
                if !self.reads_connector(member) && self.manifest.jobs.remove(&member).is_some() {
                    self.manifest_dirty = true;
                }
            }
            self.write_manifest_if_due();
        }
        let mut again = Vec::new();
        for member in group {
            self.leave_pending(member);
            let Some(job) = self.jobs.get_mut(&member) else { continue };
            if job.state == JobState::Failed {
                continue;
            }
            stop_tasks(job);
            job.in_flight.clear();
            job.state = JobState::Restarting;
            job.restarts += 1;
            again.push(member);
        }
        for member in &again {
            self.leave_cohort(*member);
        }
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

    /// Stops a job for good, with what reads it.
    fn stop_with(&mut self, id: ObjectId, error: Error) {
        for member in self.with_readers(id) {
            self.leave_pending(member);
            self.leave_cohort(member);
            let Some(job) = self.jobs.get_mut(&member) else { continue };
            stop_tasks(job);
            job.in_flight.clear();
            job.state = JobState::Failed;
            let error =
                if member == id { error.clone() } else { error.clone().with_detail("A view that it reads was stopped by this error.") };
            job.last_error = Some(error.clone());
            if let Some(published) = job.published.take() {
                let _ = published.send(Err(error.clone()));
            }
            for waiter in job.finished_waiters.drain(..) {
                let _ = waiter.send(Err(error.clone()));
            }
            if let Some(view) = self.context.views.read().get(&member) {
                view.fail(error.clone().with_hint(format!("Remove the cause, then ALTER JOB {} RESUME.", job.job.name)));
            }
        }
        self.check_flushes();
    }

    fn reads_connector(&self, id: ObjectId) -> bool {
        let scans = |node: &weir_sql::graph::Node| matches!(node.op, weir_sql::graph::NodeOp::ConnectorScan { .. });
        self.jobs.get(&id).is_some_and(|job| job.graph.nodes.iter().any(scans))
    }

    fn resume(&mut self, id: ObjectId, done: oneshot::Sender<Result<()>>) {
        let result = match self.jobs.get(&id) {
            None => Err(Error::internal("the job does not run")),
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
        // A connector's rows can't be read again: its job goes on from the checkpoint. All others are rebuilt from the present rows.
        let from_rows: Vec<ObjectId> = self.with_readers(id).into_iter().collect();
        let order = self.inputs_first(&from_rows);
        for member in &order {
            if !self.reads_connector(*member) {
                self.manifest.jobs.remove(member);
            }
            if let Some(job) = self.jobs.get_mut(member) {
                job.failures = 0;
                job.state = JobState::Restarting;
                if let Some(view) = self.context.views.read().get(member) {
                    view.revive();
                }
            }
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.published = Some(done);
        }
        self.start(&order);
    }

    // ---- what subtasks report ----

    fn handle_subtask(&mut self, event: SubtaskEvent) {
        let id = match &event {
            SubtaskEvent::Collected { id, .. }
            | SubtaskEvent::Snapshot { id, .. }
            | SubtaskEvent::SnapshotFailed { id, .. }
            | SubtaskEvent::Backfilled { id }
            | SubtaskEvent::SourceEnded { id }
            | SubtaskEvent::Failed { id, .. } => *id,
        };
        if self.jobs.get(&id.job).is_none_or(|job| job.run != id.run || job.tasks.is_empty()) {
            return; // of a former run
        }
        match event {
            SubtaskEvent::Collected { barrier, .. } => self.collected(id.job, barrier),
            SubtaskEvent::Snapshot { barrier, snapshot, .. } => {
                self.record_costs(id, barrier, &snapshot);
                if let Some(pending) = self.pending.as_mut().filter(|pending| pending.barrier.number == barrier)
                    && let Some(waiting) = pending.waiting.get_mut(&id.job)
                {
                    waiting.snapshots.push(snapshot);
                    self.check_checkpoint();
                }
            }
            SubtaskEvent::SnapshotFailed { barrier, error, .. } => {
                tracing::warn!(%error, barrier, "a snapshot could not be taken");
                if self.pending.as_ref().is_some_and(|pending| pending.barrier.number == barrier) {
                    let group = self.group_of(id.job);
                    for member in group {
                        self.leave_pending_failed(member, &error);
                    }
                    self.check_checkpoint();
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
                    job.ends_at = Some(next);
                    let (told, _) = oneshot::channel();
                    self.want_checkpoint.push(told);
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

    fn collected(&mut self, id: ObjectId, barrier: BarrierNumber) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(entry) = job.in_flight.iter_mut().find(|entry| entry.0 == barrier) else { return };
        entry.2 += 1;
        if entry.2 < job.root_parallelism {
            return;
        }
        let commit = entry.1;
        job.in_flight.retain(|entry| entry.0 != barrier);
        job.completed = job.completed.max(barrier);
        if let Some(view) = self.context.views.read().get(&id) {
            view.publish(job.run, Published { barrier, commit });
        }
        job.created = true;
        if let Some(published) = job.published.take() {
            let _ = published.send(Ok(()));
        }
        if let Some(pending) = self.pending.as_mut().filter(|pending| pending.barrier.number == barrier)
            && let Some(waiting) = pending.waiting.get_mut(&id)
        {
            waiting.collected = true;
            self.check_checkpoint();
        }
        self.check_flushes();
    }

    /// Answers those FLUSHes whose barrier every running job has finished.
    fn check_flushes(&mut self) {
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

    // ---- barriers ----

    fn next_deadline(&self) -> Option<Instant> {
        let settings = self.context.settings.read();
        let soonest = self.last_barrier_at + settings.min_barrier_interval;
        let regular = self.last_barrier_at + settings.barrier_interval;
        let mut deadline = None;
        let mut at = |when: Instant| deadline = Some(deadline.map_or(when, |known: Instant| known.min(when)));
        if self.somebody_waits() || self.context.log.end() > self.last_commit {
            at(soonest);
        } else if self.jobs.values().any(|job| job.state == JobState::Running && job.not_ended > 0) {
            at(regular);
        }
        if settings.checkpoint_interval > Duration::ZERO && self.changed && self.pending.is_none() {
            at((self.last_checkpoint_started + settings.checkpoint_interval)
                .max(self.last_checkpoint_ended + settings.checkpoint_min_pause)
                .max(soonest));
        }
        if let Some(pending) = &self.pending {
            at(pending.started + settings.checkpoint_timeout);
        }
        deadline
    }

    fn somebody_waits(&self) -> bool {
        self.want_barrier || !self.want_flush.is_empty() || (!self.want_checkpoint.is_empty() && self.pending.is_none())
    }

    fn make_barrier_if_due(&mut self) {
        let now = Instant::now();
        let (min_interval, interval, checkpoint_interval, pause) = {
            let settings = self.context.settings.read();
            (settings.min_barrier_interval, settings.barrier_interval, settings.checkpoint_interval, settings.checkpoint_min_pause)
        };
        let since = now.saturating_duration_since(self.last_barrier_at);
        if since < min_interval {
            return;
        }
        let new_rows = |job: &RunningJob| job.source_metrics.iter().any(|metrics| metrics.new_rows.load(Ordering::Relaxed));
        let regular = since >= interval && self.jobs.values().any(new_rows);
        let checkpoint_due = self.pending.is_none()
            && (!self.want_checkpoint.is_empty()
                || (checkpoint_interval > Duration::ZERO
                    && self.changed
                    && now >= self.last_checkpoint_started + checkpoint_interval
                    && now >= self.last_checkpoint_ended + pause));
        let commits = self.context.log.end() > self.last_commit;
        if self.somebody_waits() || commits || regular || checkpoint_due {
            self.make_barrier(checkpoint_due);
        } else if since >= interval {
            self.last_barrier_at = now;
        }
    }

    fn make_barrier(&mut self, checkpoint: bool) {
        if let Some(raise) = self.context.numbers.raise_if_due() {
            self.context.spawner.spawn_blocking(move || {
                if let Err(error) = raise() {
                    tracing::error!(%error, "barrier numbers could not be reserved");
                }
            });
        }
        // Without a number there is no barrier yet: the ceiling is being raised.
        let Some(number) = self.context.numbers.take() else {
            self.last_barrier_at = Instant::now();
            return;
        };
        let commit = self.context.log.end();
        self.last_barrier_time_us = self.context.clock.now_us().max(self.last_barrier_time_us + 1);
        let barrier = Arc::new(Barrier { number, commit, time_us: self.last_barrier_time_us, publish: true, checkpoint, stop: false });
        self.last_barrier_at = Instant::now();
        self.last_commit = commit;
        self.readable_commits.push_back(commit);
        if self.readable_commits.len() > self.context.build.retained_barriers {
            self.readable_commits.pop_front();
        }
        if let Some(oldest) = self.readable_commits.front() {
            self.context.tables.set_oldest_needed(*oldest);
        }
        self.want_barrier = false;
        self.changed = true;
        if checkpoint {
            self.begin_checkpoint(&barrier);
        }
        for job in self.jobs.values_mut() {
            let live = job.state == JobState::Running && barrier.number >= job.live_from.load(Ordering::SeqCst);
            if !live {
                continue;
            }
            job.in_flight.push_back((barrier.number, commit, 0));
            for metrics in &job.source_metrics {
                metrics.new_rows.store(false, Ordering::Relaxed);
            }
        }
        // After all were told what to expect: a root may finish at once.
        for job in self.jobs.values().filter(|job| job.state == JobState::Running && barrier.number >= job.live_from.load(Ordering::SeqCst))
        {
            for source in &job.barriers {
                let _ = source.send(barrier.clone());
            }
        }
        for done in std::mem::take(&mut self.want_flush) {
            self.flushes.push(FlushWaiter { barrier: barrier.number, done });
        }
        self.context.board.write().barriers += 1;
        self.check_flushes();
        if checkpoint {
            self.check_checkpoint();
        }
    }

    // ---- checkpoints ----

    fn begin_checkpoint(&mut self, barrier: &Arc<Barrier>) {
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

    fn tables_stored(&mut self, barrier: BarrierNumber, stored: Result<(TablesCheckpoint, Option<SnapshotCost>)>) {
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

    fn record_costs(&self, id: SubtaskId, barrier: BarrierNumber, snapshot: &SubtaskSnapshot) {
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
    fn leave_pending(&mut self, id: ObjectId) {
        let error = Error::internal("the job was stopped while the checkpoint was under way");
        self.leave_pending_failed(id, &error);
        self.check_checkpoint();
    }

    fn leave_pending_failed(&mut self, id: ObjectId, error: &Error) {
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

    fn check_timeout(&mut self) {
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
    fn check_checkpoint(&mut self) {
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

    fn write_manifest_if_due(&mut self) {
        if self.writing || !self.manifest_dirty {
            return;
        }
        self.writing = true;
        self.manifest_dirty = false;
        self.manifest.number += 1;
        self.writing_waiters = std::mem::take(&mut self.manifest_waiters);
        self.writing_ends = self.pending.as_ref().filter(|pending| pending.ended).map(|pending| pending.barrier.number);
        let manifest = self.manifest.clone();
        let (store, log, sender) = (self.context.build.store.clone(), self.context.log.clone(), self.sender.clone());
        self.context.spawner.spawn_blocking(move || {
            let result = store.write_manifest(&manifest).and_then(|()| log.write_catalog_snapshot().map(|_| ()));
            let _ = sender.send(Event::ManifestWritten { manifest, result });
        });
    }

    fn manifest_written(&mut self, manifest: Manifest, result: Result<()>) {
        self.writing = false;
        let waiters = std::mem::take(&mut self.writing_waiters);
        match result {
            Err(error) => {
                tracing::warn!(%error, "checkpoint metadata could not be written");
                for waiter in waiters {
                    let _ = waiter.send(Err(error.clone()));
                }
                if let Some(number) = self.writing_ends.take() {
                    self.checkpoint_ended(number, Some(error));
                } else {
                    self.manifest_dirty = true;
                }
                self.changed = true;
            }
            Ok(()) => {
                let finished: Vec<ObjectId> =
                    manifest.jobs.iter().filter(|(_, checkpoint)| checkpoint.finished).map(|(id, _)| *id).collect();
                self.retained.push_back(manifest);
                self.retire();
                for waiter in waiters {
                    let _ = waiter.send(Ok(()));
                }
                if let Some(number) = self.writing_ends.take() {
                    self.checkpoint_ended(number, None);
                }
                for id in finished {
                    self.finish(id);
                }
                self.truncate_log();
            }
        }
        self.write_manifest_if_due();
    }

    /// Keeps the manifests of the newest checkpoints, and removes what only older ones need.
    fn retire(&mut self) {
        let keep = self.context.settings.read().checkpoints_retained;
        let mut barriers: Vec<BarrierNumber> = self.retained.iter().map(|manifest| manifest.barrier).collect();
        barriers.dedup();
        let oldest = barriers.get(barriers.len().saturating_sub(keep)).copied().unwrap_or(0);
        let mut dropped = Vec::new();
        let newest = self.retained.back().map_or(0, |manifest| manifest.number);
        let mut kept: VecDeque<Manifest> = VecDeque::new();
        for (at, manifest) in self.retained.iter().enumerate() {
            // Of several manifests of one checkpoint only the last counts.
            let superseded = self.retained.get(at + 1).is_some_and(|next| next.barrier == manifest.barrier);
            if manifest.number != newest && (superseded || manifest.barrier < oldest) {
                dropped.push(manifest.number);
            } else {
                kept.push_back(manifest.clone());
            }
        }
        self.retained = kept;
        let under_way = self.pending.as_ref().map_or_else(|| self.context.numbers.peek(), |pending| pending.barrier.number);
        let retained: Vec<Manifest> = self.retained.iter().chain(std::iter::once(&self.manifest)).cloned().collect();
        let store = self.context.build.store.clone();
        self.context.spawner.spawn_blocking(move || {
            if let Err(error) = store.retire(&dropped, &retained, under_way) {
                tracing::warn!(%error, "files of old checkpoints were not removed");
            }
        });
    }

    fn truncate_log(&mut self) {
        // The newest manifest that is durable: what is in memory only may be gone after a crash.
        let Some(durable) = self.retained.back() else { return };
        let mut needed = durable.tables.as_ref().map_or(0, |tables| tables.commit);
        for (id, job) in &mut self.jobs {
            let checkpoint = durable.jobs.get(id).filter(|_| self.manifest.jobs.contains_key(id));
            if let Some(checkpoint) = checkpoint {
                job.log_position = job.log_position.max(checkpoint.commit);
            }
            let stopped = job.state == JobState::Failed && checkpoint.is_none();
            if job.state != JobState::Finished && !stopped {
                needed = needed.min(job.log_position);
            }
        }
        let log = self.context.log.clone();
        self.context.spawner.spawn_blocking(move || {
            if let Err(error) = log.truncate_before(needed + 1) {
                tracing::warn!(%error, "old segments of the engine log were not removed");
            }
        });
    }

    fn checkpoint_ended(&mut self, number: BarrierNumber, error: Option<Error>) {
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

    /// A bounded job whose last checkpoint is complete.
    fn finish(&mut self, id: ObjectId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.state == JobState::Finished {
            return;
        }
        stop_tasks(job);
        job.in_flight.clear();
        job.state = JobState::Finished;
        for waiter in job.finished_waiters.drain(..) {
            let _ = waiter.send(Ok(()));
        }
        self.check_flushes();
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
                operators: job.operators.clone(),
            })
            .collect();
        self.context.board.write().jobs = jobs;
    }
}

/// Failures further apart than this are not counted together.
const FAILURE_SERIES: Duration = Duration::from_secs(600);

/// Ends all subtasks of a job, wherever they are.
fn stop_tasks(job: &mut RunningJob) {
    for task in job.tasks.drain(..) {
        task.abort();
    }
    job.barriers.clear();
    job.attachments.clear();
    job.source_metrics.clear();
    job.operators.clear();
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
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
