//! The jobs that exist, how they hang together, and how one leaves.
//!
//! # Invariants
//! - Every job of the catalog has one entry from its CREATE, or the start, to its DROP; a run of it has a number that is used once.
//! - A group is computed from the jobs that are active; a stopped or finished job is in none.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use weir_catalog::{Error, Job, JobKind, ObjectId, Result};
use weir_sql::graph::StreamGraph;

use super::Manager;
use crate::checkpoint::JobCheckpoint;
use crate::job::status::{JobState, OperatorStatus};
use crate::job::view::ViewHandle;
use crate::runtime::metrics::SubtaskMetrics;
use crate::runtime::subtask::Attachments;
use crate::seams::spawn::JoinHandle;
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
    /// Barriers given and not finished, with the commit of each and how many root subtasks have finished it.
    pub(super) in_flight: VecDeque<(BarrierNumber, CommitSeq, usize)>,
    pub(super) completed: BarrierNumber,
    pub(super) restarts: u64,
    /// How often it failed with the present error.
    pub(super) failures: usize,
    pub(super) failed_at: Option<Instant>,
    pub(super) last_error: Option<Error>,
    pub(super) published: Option<oneshot::Sender<Result<()>>>,
    pub(super) finished_waiters: Vec<oneshot::Sender<Result<()>>>,
    /// The checkpoint that it is being restored from.
    pub(super) restoring: Option<JobCheckpoint>,
    /// The next completed checkpoint that holds it may end it: all its input has ended before that barrier.
    pub(super) ends_at: Option<BarrierNumber>,
    /// Whether rows came since the last barrier.
    pub(super) source_metrics: Vec<Arc<SubtaskMetrics>>,
    /// Whether it has ever published: from then on FLUSH waits for it, also while it restarts.
    pub(super) created: bool,
}

impl Manager {
    pub(super) fn add(&mut self, job: Arc<Job>, graph: Arc<StreamGraph>, published: Option<oneshot::Sender<Result<()>>>) {
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

    /// The group of `id`: the jobs joined to it by a view reading a view, as far as they are not stopped.
    pub(super) fn group_of(&self, id: ObjectId) -> BTreeSet<ObjectId> {
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

    pub(super) fn reads_connector(&self, id: ObjectId) -> bool {
        let scans = |node: &weir_sql::graph::Node| matches!(node.op, weir_sql::graph::NodeOp::ConnectorScan { .. });
        self.jobs.get(&id).is_some_and(|job| job.graph.nodes.iter().any(scans))
    }

    /// Takes a dropped job out of everything.
    pub(super) fn forget(&mut self, id: ObjectId) {
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

    /// A bounded job whose last checkpoint is complete.
    pub(super) fn finish(&mut self, id: ObjectId) {
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
}

/// Ends all subtasks of a job, wherever they are.
pub(super) fn stop_tasks(job: &mut RunningJob) {
    for task in job.tasks.drain(..) {
        task.abort();
    }
    job.barriers.clear();
    job.attachments.clear();
    job.source_metrics.clear();
    job.operators.clear();
}
