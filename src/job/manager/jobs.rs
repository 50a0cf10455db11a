//! The jobs that exist, how they hang together, and how one leaves.
//!
//! # Invariants
//! - Every job of the catalog has one entry from its CREATE, or the start, to its DROP; a run of it has a number that is used once.
//! - A group is made of jobs that are active; a stopped or finished job is in none. Groups have no identity: they are computed anew when a job comes,
//!   goes, stops or is resumed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use weir_catalog::{Error, Job, JobKind, ObjectId, Result};
use weir_sql::graph::StreamGraph;

use super::Manager;
use super::checkpoints::Schedule;
use crate::checkpoint::JobCheckpoint;
use crate::job::status::{JobState, OperatorStatus};
use crate::job::view::ViewHandle;
use crate::operators::materialize::RowLayout;
use crate::runtime::metrics::SubtaskMetrics;
use crate::runtime::replay::SplitHistory;
use crate::runtime::subtask::Attachments;
use crate::seams::spawn::JoinHandle;
use crate::sources::Splits;
use crate::stream::{Barrier, BarrierNumber, CommitSeq};

/// A job that exists, running or not.
pub(super) struct RunningJob {
    pub(super) job: Arc<Job>,
    pub(super) graph: Arc<StreamGraph>,
    /// The materialized views that it reads.
    pub(super) upstream: Vec<ObjectId>,
    pub(super) run: u64,
    pub(super) state: JobState,
    pub(super) parallelism: usize,
    pub(super) tasks: Vec<JoinHandle<()>>,
    /// Barriers go in here: one for each subtask that reads a table or a connector.
    pub(super) barriers: Vec<mpsc::UnboundedSender<Arc<Barrier>>>,
    /// Sources that have not caught up yet.
    pub(super) catching_up: usize,
    /// Bounded sources that have not ended yet.
    pub(super) not_ended: usize,
    pub(super) bounded: bool,
    pub(super) live_from: Arc<AtomicU64>,
    /// The commit from which it reads the log next: what comes before is not needed for it.
    pub(super) log_position: CommitSeq,
    pub(super) attachments: Vec<Attachments>,
    pub(super) root_parallelism: usize,
    pub(super) stateful_subtasks: usize,
    pub(super) operators: Vec<OperatorStatus>,
    /// Barriers given and not finished, oldest first. Root subtasks finish them in this order.
    pub(super) in_flight: VecDeque<InFlight>,
    /// Whether a barrier was made that it was not given, because it had too many in flight.
    pub(super) owed: bool,
    /// The newest barrier that it has finished and shown, also in a former run.
    pub(super) completed: BarrierNumber,
    /// Why it does not get on, and for how long nobody knows: an outage, as FLUSH tells of it. `None` once it has completed a barrier again.
    pub(super) held_up: Option<Error>,
    /// The newest barrier that this run has shown; 0 before the first.
    pub(super) shown: BarrierNumber,
    /// Where the splits of each connector subtask of this run stood at the last barriers, with the uid of the scan.
    pub(super) histories: Vec<(String, Arc<SplitHistory>)>,
    /// Where the splits stood at the newest barrier that was shown in a former run, by the uid of the scan.
    pub(super) seen: BTreeMap<String, Splits>,
    /// Connector subtasks that have not come to what was `seen` yet.
    pub(super) replaying: usize,
    /// The first barrier that covers what was `seen`, where something was.
    pub(super) replayed_at: BarrierNumber,
    pub(super) restarts: u64,
    /// How often it failed with the present error.
    pub(super) failures: usize,
    pub(super) failed_at: Option<Instant>,
    pub(super) last_error: Option<Error>,
    pub(super) published: Option<oneshot::Sender<Result<()>>>,
    pub(super) finished_waiters: Vec<oneshot::Sender<Result<()>>>,
    /// The checkpoint that it is being restored from.
    pub(super) restoring: Option<JobCheckpoint>,
    /// Whether the views that it reads have left that checkpoint behind: it is sent what has changed of them since.
    pub(super) catches_up: bool,
    /// The next completed checkpoint that holds it may end it: all its input has ended before that barrier.
    pub(super) ends_at: Option<BarrierNumber>,
    /// Whether rows came since the last barrier.
    pub(super) source_metrics: Vec<Arc<SubtaskMetrics>>,
    /// Whether it has ever published: from then on FLUSH waits for it, also while it restarts.
    pub(super) created: bool,
    /// The barrier of the checkpoint under way that it takes part in.
    pub(super) checkpointing: Option<BarrierNumber>,
    /// A checkpoint at this barrier or a later one is waited for.
    pub(super) wanted: Option<BarrierNumber>,
    pub(super) schedule: Schedule,
    /// Somebody has stopped it at a checkpoint and is about to drop it: until it is released, nothing starts it.
    pub(super) held: bool,
    /// Its checkpoint could not be restored: those up to this one that have it are kept until it runs again.
    pub(super) damaged_at: Option<BarrierNumber>,
    /// Its sink's store has lost what its checkpoint lists: see [`super::lost`].
    pub(super) lost: bool,
    /// Told whether the commit that is tried once more for that has succeeded.
    pub(super) resuming: Option<oneshot::Sender<Result<()>>>,
    /// Whether every retained checkpoint had it once since the start of the process: what it began with is needed no more.
    pub(super) has_begun: bool,
}

/// A barrier that a job was given.
pub(super) struct InFlight {
    pub(super) barrier: BarrierNumber,
    pub(super) commit: CommitSeq,
    /// How many root subtasks have finished it.
    pub(super) finished: usize,
}

/// The jobs that form a group each. What a job is not in, is not active.
#[derive(Default)]
pub(super) struct Groups {
    place: BTreeMap<ObjectId, usize>,
    members: Vec<BTreeSet<ObjectId>>,
    /// Whether they have to be computed anew.
    pub(super) stale: bool,
}

impl Groups {
    /// All groups.
    pub(super) fn all(&self) -> &[BTreeSet<ObjectId>] {
        &self.members
    }

    /// The group of `id`; `None` where it is not active.
    pub(super) fn of(&self, id: ObjectId) -> Option<&BTreeSet<ObjectId>> {
        self.place.get(&id).map(|place| &self.members[*place])
    }
}

impl RunningJob {
    fn is_active(&self) -> bool {
        !matches!(self.state, JobState::Failed | JobState::Finished)
    }

    /// Whether it takes part in the barrier `number`, as far as it has room for it.
    pub(super) fn is_live(&self, number: BarrierNumber) -> bool {
        self.state == JobState::Running && number >= self.live_from.load(Ordering::SeqCst)
    }

    /// Whether it exists for whoever made it, who waits for it no more, and will be live unless it fails first.
    pub(super) fn is_on_its_way(&self) -> bool {
        self.is_active() && !self.held && self.published.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Ends all its subtasks, wherever they are, and what is known of this run.
    pub(super) fn stop_tasks(&mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
        }
        self.barriers.clear();
        self.attachments.clear();
        self.source_metrics.clear();
        self.operators.clear();
        self.histories.clear();
        self.in_flight.clear();
        self.owed = false;
        self.shown = 0;
        self.replaying = 0;
        self.replayed_at = 0;
    }
}

impl Manager {
    /// How many subtasks a job has that is there at a start: what it was made with, unless the start was told otherwise.
    pub(super) fn parallelism_at_start(&self, job: &Job) -> usize {
        let settings = self.context.settings.read();
        if settings.parallelism_given { settings.parallelism } else { job.parallelism }
    }

    pub(super) fn add(
        &mut self,
        job: Arc<Job>,
        graph: Arc<StreamGraph>,
        parallelism: usize,
        published: Option<oneshot::Sender<Result<()>>>,
    ) {
        let upstream = graph.nodes.iter().filter_map(|node| match node.op {
            weir_sql::graph::NodeOp::ViewScan { view, .. } => Some(view),
            _ => None,
        });
        let upstream: BTreeSet<ObjectId> = upstream.collect();
        if let JobKind::MaterializedView { key, .. } = &job.kind {
            // A job that can't be planned has no graph; its view is there all the same, and tells why it can't be read.
            let (schema, key) = match graph.nodes.last() {
                Some(root) => (root.schema.clone(), root.upsert_key.clone()),
                None => (weir_catalog::object::schema_of(&job.columns), key.clone()),
            };
            match RowLayout::new(schema, key) {
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
                owed: false,
                completed: 0,
                held_up: None,
                shown: 0,
                histories: Vec::new(),
                seen: BTreeMap::new(),
                replaying: 0,
                replayed_at: 0,
                restarts: 0,
                failures: 0,
                failed_at: None,
                last_error: None,
                published,
                finished_waiters: Vec::new(),
                restoring: None,
                catches_up: false,
                ends_at: None,
                source_metrics: Vec::new(),
                created: false,
                checkpointing: None,
                wanted: None,
                schedule: Schedule::new(self.last_tick),
                held: false,
                damaged_at: None,
                lost: false,
                resuming: None,
                has_begun: false,
            },
        );
        self.groups.stale = true;
    }

    /// `ids` with every job after the views that it reads.
    pub(super) fn inputs_first(&self, ids: &[ObjectId]) -> Vec<ObjectId> {
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
    pub(super) fn with_readers(&self, id: ObjectId) -> BTreeSet<ObjectId> {
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

    /// Computes the groups anew where that is due.
    pub(super) fn regroup(&mut self) {
        if !self.groups.stale {
            return;
        }
        let mut neighbours: BTreeMap<ObjectId, Vec<ObjectId>> = BTreeMap::new();
        for (id, job) in self.jobs.iter().filter(|(_, job)| job.is_active()) {
            neighbours.entry(*id).or_default();
            for input in &job.upstream {
                if self.jobs.get(input).is_some_and(RunningJob::is_active) {
                    neighbours.entry(*id).or_default().push(*input);
                    neighbours.entry(*input).or_default().push(*id);
                }
            }
        }
        let mut groups = Groups::default();
        for start in neighbours.keys() {
            if groups.place.contains_key(start) {
                continue;
            }
            let place = groups.members.len();
            let (mut members, mut found) = (BTreeSet::new(), vec![*start]);
            while let Some(id) = found.pop() {
                if members.insert(id) {
                    groups.place.insert(id, place);
                    found.extend(neighbours.get(&id).into_iter().flatten());
                }
            }
            groups.members.push(members);
        }
        self.groups = groups;
    }

    /// The jobs of the group of `id`, which groups must have been computed for.
    pub(super) fn group_jobs(&self, id: ObjectId) -> impl Iterator<Item = &RunningJob> {
        self.groups.of(id).into_iter().flatten().filter_map(|id| self.jobs.get(id))
    }

    /// The group of `id`: the jobs joined to it by a view reading a view, as far as they are not stopped. A stopped job is alone.
    pub(super) fn group_of(&mut self, id: ObjectId) -> BTreeSet<ObjectId> {
        self.regroup();
        self.groups.of(id).cloned().unwrap_or_else(|| BTreeSet::from([id]))
    }

    /// Takes a dropped job out of everything. It takes part in no barrier that is made from here on, and whatever waits for it waits no more. Returns its
    /// subtasks, which are about to end.
    pub(super) fn forget(&mut self, id: ObjectId) -> Vec<JoinHandle<()>> {
        let Some(mut job) = self.jobs.remove(&id) else { return Vec::new() };
        let tasks = std::mem::take(&mut job.tasks);
        tasks.iter().for_each(JoinHandle::abort);
        job.stop_tasks();
        self.groups.stale = true;
        for told in job.published.take().into_iter().chain(job.resuming.take()) {
            let _ = told.send(Err(Error::new(weir_catalog::SqlState::UNDEFINED_TABLE, format!("{} was dropped", job.job.name))));
        }
        for waiter in job.finished_waiters.drain(..) {
            let _ = waiter.send(Ok(()));
        }
        let view = self.context.views.write().remove(&id);
        if let Some(view) = view {
            // Whoever waits for it to publish waits no more.
            view.fail(Error::new(
                weir_catalog::SqlState::UNDEFINED_TABLE,
                format!("{} \"{}\" was dropped", weir_catalog::Object::Job(job.job.as_ref().clone()).kind(), view.name()),
            ));
        }
        if self.manifest.jobs.remove(&id).is_some() {
            self.manifest_dirty = true;
        }
        self.checkpoint_without(id);
        self.leave_cohort(id);
        self.check_flushes();
        tasks
    }

    /// Removes what dropped jobs have written outside and not committed, once their subtasks have ended; `done` is told then. A crash before leaves hidden
    /// files of theirs behind, which no one reads.
    pub(super) fn discard(&self, dropped: Vec<(ObjectId, Vec<JoinHandle<()>>)>, done: oneshot::Sender<()>) {
        let committer = self.context.build.committer.clone();
        if dropped.iter().all(|(id, _)| !committer.is_registered(*id)) {
            let _ = done.send(());
            return;
        }
        let spawner = self.context.spawner.clone();
        self.context.spawner.spawn(async move {
            let mut ids = Vec::new();
            for (id, tasks) in dropped {
                // How they ended does not matter.
                futures::future::join_all(tasks).await;
                ids.push(id);
            }
            let discarded = spawner.spawn_blocking(move || {
                for id in ids.into_iter().filter(|id| committer.is_registered(*id)) {
                    if let Err(error) = committer.discard(id) {
                        tracing::warn!(job = id, %error, "hidden files of a dropped job were not removed");
                    }
                }
            });
            if let Err(error) = discarded.await {
                tracing::warn!(%error, "hidden files of dropped jobs were not removed");
            }
            let _ = done.send(());
        });
    }

    /// A bounded job whose last checkpoint is complete.
    pub(super) fn finish(&mut self, id: ObjectId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.state == JobState::Finished {
            return;
        }
        job.stop_tasks();
        job.state = JobState::Finished;
        job.wanted = None;
        for waiter in job.finished_waiters.drain(..) {
            let _ = waiter.send(Ok(()));
        }
        self.groups.stale = true;
        // It has no later checkpoint than its last: whoever waits for one has all of it.
        self.checkpoint_without(id);
        self.check_flushes();
    }
}
