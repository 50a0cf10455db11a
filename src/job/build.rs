//! From a stream graph to subtasks: which operators are chained, how many subtasks each chain has, the edges between them, and their state, new or restored.
//!
//! This is the one file that turns plan nodes into operators.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use weir_catalog::{Catalog, ChangelogMode, ConnectorTable, Error, Job, JobKind, Object, ObjectId, Result};
use weir_sql::graph::{Distribution, Node, NodeId, NodeOp, StreamGraph};

use super::difference::{SavedTable, SavedView, saved_layout, saved_projection};
use super::former::FormerResult;
use super::savepoint_start::SavepointStart;
use super::settings::StateBackendKind;
use super::upgrade::aggregate_spec;
use super::view::ViewHandle;
use crate::checkpoint::snapshot::{LastStored, SnapshotTaker, SnapshotTarget};
use crate::checkpoint::{CheckpointStore, FileHandle, JobCheckpoint, OperatorCheckpoint, Part, Place, Places};
use crate::log::Room;
use crate::operators::Operator;
use crate::operators::aggregate::Aggregate;
use crate::operators::calc::Calc;
use crate::operators::materialize::{Materialize, RowLayout};
use crate::operators::net_changes::NetChanges;
use crate::operators::unnest::Unnest;
use crate::runtime::chain::{Chain, ChainedOperator};
use crate::runtime::exchange::OutputEdge;
use crate::runtime::inbox::{EdgeSender, Inbox, inbox};
use crate::runtime::metrics::{OperatorMetrics, SubtaskMetrics};
use crate::runtime::subtask::Attachments;
use crate::seams::faults::{self, Fault};
use crate::seams::files::FilesRef;
use crate::seams::hash::HashMap;
use crate::seams::random::Random;
use crate::seams::spawn::Spawner;
use crate::sinks::commit::{Committer, HiddenFiles, PendingCommit, PendingCommits, abandoned};
use crate::sinks::file::descent::Standing;
use crate::sinks::{OpenedSink, RestoredSink, SinkContext};
use crate::sources::connector;
use crate::sources::file::dead_letters;
use crate::sources::{DeadLetterContext, Source, SourceContext, SplitPortion, Splits};
use crate::state::RestorePart;
use crate::state::key_codec::KeyCodec;
use crate::state::memory::MemoryBackend;
use crate::state::memory_pool::MemoryPool;
use crate::state::recent::{RecentBackend, RecentMemory};
use crate::state::rocks::{SharedRocks, is_recent_file, is_table_file};
use crate::state::scratch::{ScratchBackend, ScratchFolder};
use crate::state::versions::{VersionedStore, Versions};
use crate::state::{StateBackend, StateDescriptor};
use crate::stream::KeyGroupRange;

/// What the scan of a connector table is called among a job's operators.
pub const CONNECTOR_SCAN: &str = "connector scan";

/// What every job is built with.
#[derive(Clone)]
pub struct BuildContext {
    pub files: FilesRef,
    pub store: Arc<CheckpointStore>,
    /// How savepoints are reached.
    pub places: Places,
    pub committer: Arc<Committer>,
    /// Tells what this engine writes outside from what others do.
    pub engine: u64,
    /// The folder of records that could not be read.
    pub dead_letters: PathBuf,
    pub rocks: Arc<SharedRocks>,
    pub state_backend: StateBackendKind,
    pub memory: Arc<MemoryPool>,
    /// What backends keep of what was written lately.
    pub recent: Arc<RecentMemory>,
    pub spawner: Spawner,
    /// The folder of running state backends; its content is worth nothing after a restart.
    pub scratch: PathBuf,
    pub random: Arc<parking_lot::Mutex<Random>>,
    /// How many barriers' versions of a view stay readable.
    pub retained_barriers: usize,
    /// The longest record of a source, bytes.
    pub max_row_bytes: usize,
}

impl BuildContext {
    /// A fresh id for an opening of a state backend.
    pub fn incarnation(&self) -> String {
        if faults::is_planted(Fault::TableFileNameReused) {
            static OPENED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
            return format!("{:016x}", OPENED.fetch_add(1, std::sync::atomic::Ordering::SeqCst));
        }
        format!("{:016x}", self.random.lock().next_u64())
    }

    /// A state backend in the new folder `dir`, with what the checkpoint's `parts` hold of the key groups in `range`. Waits for disk.
    ///
    /// Errors: `XX001` where a file is damaged or missing; what [`Part::check`] says.
    pub fn open_backend(&self, dir: &Path, parts: &[&Part], range: KeyGroupRange) -> Result<Box<dyn StateBackend>> {
        self.open_backend_of(dir, parts, range, None)
    }

    /// Where a run of a job whose backends are in `folder` has room for the changes of a stored table.
    pub(super) fn room_for_changes(&self, folder: &Arc<ScratchFolder>, name: &str) -> Room {
        let (context, folder, dir) = (self.clone(), folder.clone(), folder.path().join(name));
        Room {
            max_bytes: (self.memory.limit() / 64).clamp(1 << 20, 16 << 20),
            memory: self.memory.charge(),
            open: Box::new(move || {
                let backend = context.open_backend(&dir, &[], KeyGroupRange::ALL)?;
                Ok(Box::new(ScratchBackend::new(backend, folder)))
            }),
        }
    }

    /// As [`BuildContext::open_backend`], with parts of the savepoint in `savepoint` where that is given.
    pub(super) fn open_backend_of(
        &self,
        dir: &Path,
        parts: &[&Part],
        range: KeyGroupRange,
        savepoint: Option<&Place>,
    ) -> Result<Box<dyn StateBackend>> {
        let mut fetched = Vec::with_capacity(parts.len());
        for (at, part) in parts.iter().enumerate() {
            part.check(self.state_backend)?;
            let into = dir.with_added_extension(format!("part{at}"));
            match savepoint {
                Some(place) => self.places.fetch(place, part, &into)?,
                None => self.store.fetch(part, &into)?,
            }
            fetched.push(RestorePart { dir: into, range: part.range });
        }
        let backend: Box<dyn StateBackend> = match self.state_backend {
            StateBackendKind::RocksDb => Box::new(RecentBackend::open(&self.rocks, &self.recent, dir, &fetched, range)?),
            StateBackendKind::Memory => Box::new(MemoryBackend::restore(&fetched, range)?),
        };
        for part in &fetched {
            self.files.remove_dir(&part.dir)?;
        }
        Ok(backend)
    }
}

/// A job whose subtasks can be started.
pub struct BuiltJob {
    pub subtasks: Vec<BuiltSubtask>,
    /// The root subtasks' versions, where the job is a view.
    pub versions: Vec<Arc<Versions>>,
    /// Where readers of the view are attached, one for each root subtask.
    pub attachments: Vec<Attachments>,
    pub root_parallelism: usize,
    /// Subtasks that take part in checkpoints.
    pub stateful_subtasks: usize,
    /// Scans of stored tables and connectors, and of views: one entry a subtask.
    pub sources: usize,
    /// Whether every source comes to an end.
    pub bounded: bool,
}

/// A subtask before its head is connected.
pub struct BuiltSubtask {
    pub chain_index: usize,
    pub subtask: usize,
    pub chain: Chain,
    pub root: bool,
    pub snapshots: SnapshotTaker,
    pub head: HeadPlan,
    pub attachments: Option<Attachments>,
    /// For the system views: uid (or a name), operator, counters.
    pub operators: Vec<(String, String, Arc<OperatorMetrics>)>,
    pub metrics: Arc<SubtaskMetrics>,
}

/// Where a subtask's rows come from; the manager connects it when it starts the job.
pub enum HeadPlan {
    Connector(Box<dyn Source>),
    /// With `since`, not all rows but what has changed of them.
    Table {
        table: ObjectId,
        projection: Vec<usize>,
        since: Option<SavedTable>,
    },
    View {
        view: ObjectId,
        projection: Vec<usize>,
        since: Option<SavedView>,
        inbox: Inbox,
        sender: EdgeSender,
    },
    Inputs(Inbox),
}

struct ChainPlan {
    nodes: Vec<NodeId>,
    parallelism: usize,
}

/// Builds the subtasks of `job`, with the state of its checkpoint `restore`, or of `start` where it begins with that. With `catches_up` the views that it reads
/// have left the checkpoint behind, which has their rows of that time. Waits for disk: not for a worker thread.
pub fn build(
    context: &BuildContext,
    catalog: &Catalog,
    job: &Job,
    graph: &StreamGraph,
    parallelism: usize,
    views: &HashMap<ObjectId, Arc<ViewHandle>>,
    (restore, catches_up): (Option<&JobCheckpoint>, bool),
    start: Option<&SavepointStart>,
    run: u64,
) -> Result<BuiltJob> {
    let own_restore = restore;
    let restore = restore.or(start.map(|start| &start.checkpoint));
    let path = context.scratch.join(format!("{}-{run}", job.id));
    let folder = ScratchFolder::create(context.files.clone(), context.spawner.clone(), path)?;
    let node_parallelism = parallelisms(graph, parallelism, views)?;
    let consumers = consumers(graph);
    let chains = chains(graph, &node_parallelism, &consumers);
    let chain_of: BTreeMap<NodeId, usize> =
        chains.iter().enumerate().flat_map(|(at, chain)| chain.nodes.iter().map(move |node| (*node, at))).collect();

    // One inbox for each subtask of a chain with input edges: one input for each sender of each edge.
    let mut inboxes: Vec<Vec<Option<Inbox>>> = Vec::new();
    let mut edges: Vec<Vec<Vec<OutputEdge>>> = chains.iter().map(|chain| (0..chain.parallelism).map(|_| Vec::new()).collect()).collect();
    for chain in &chains {
        let head = &graph.nodes[chain.nodes[0]];
        if head.inputs.is_empty() {
            inboxes.push((0..chain.parallelism).map(|_| None).collect());
            continue;
        }
        let mut receivers = Vec::new();
        let mut senders: Vec<Vec<EdgeSender>> = Vec::new();
        for receiver in 0..chain.parallelism {
            let inputs = head
                .inputs
                .iter()
                .map(|edge| {
                    let sending = chains[chain_of[&edge.from]].parallelism;
                    match edge.distribution {
                        Distribution::Hash(_) => sending,
                        Distribution::Forward => (0..sending).filter(|sender| sender % chain.parallelism == receiver).count(),
                    }
                })
                .sum();
            let (receiving, sending) = inbox(inputs, &context.memory);
            receivers.push(Some(receiving));
            senders.push(sending);
        }
        inboxes.push(receivers);
        for edge in &head.inputs {
            let from = chain_of[&edge.from];
            for sender in 0..chains[from].parallelism {
                let edge = match &edge.distribution {
                    Distribution::Forward => {
                        let taken = senders[sender % chain.parallelism].pop();
                        OutputEdge::forward(taken.ok_or_else(|| Error::internal("an inbox has too few inputs"))?)
                    }
                    Distribution::Hash(columns) => {
                        let taken: Option<Vec<EdgeSender>> = senders.iter_mut().map(Vec::pop).collect();
                        let schema = &graph.nodes[edge.from].schema;
                        let types: Vec<_> = columns.iter().map(|column| schema.field(*column).data_type().clone()).collect();
                        // As the receiver's state is keyed.
                        let are_keys = matches!(head.op, NodeOp::Materialize) && head.upsert_key.is_none();
                        let codec = if are_keys { KeyCodec::of_rows(&types)? } else { KeyCodec::new(&types)? };
                        OutputEdge::hash(taken.ok_or_else(|| Error::internal("an inbox has too few inputs"))?, columns.clone(), codec)
                    }
                };
                edges[from][sender].push(edge);
            }
        }
    }

    let mut built = BuiltJob {
        subtasks: Vec::new(),
        versions: Vec::new(),
        attachments: Vec::new(),
        root_parallelism: 0,
        stateful_subtasks: 0,
        sources: 0,
        bounded: true,
    };
    // What this run writes outside has names of its own.
    let write_run = context.random.lock().next_u64();
    for (at, (chain, (inboxes, edges))) in chains.iter().zip(inboxes.into_iter().zip(edges)).enumerate() {
        let root = chain.nodes.last() == Some(&graph.root().id);
        let ends = Ends { context, catalog, job, restore, own_restore, start, write_run, parallelism: chain.parallelism };
        let mut sources = ends.sources(&graph.nodes[chain.nodes[0]])?.into_iter();
        let mut sinks = if root { ends.sinks(graph.root())?.into_iter() } else { Vec::new().into_iter() };
        if root {
            built.root_parallelism = chain.parallelism;
        }
        for (subtask, (inbox, edges)) in inboxes.into_iter().zip(edges).enumerate() {
            let mut maker = SubtaskMaker {
                context,
                catalog,
                job,
                graph,
                restore,
                behind: own_restore.filter(|_| catches_up),
                start: start.filter(|_| own_restore.is_none()),
                folder: &folder,
                parallelism: chain.parallelism,
                subtask,
                operators: Vec::new(),
                described: Vec::new(),
                targets: Vec::new(),
                source_uid: None,
                source: sources.next(),
                sink: sinks.next(),
                commits: Vec::new(),
                versions: None,
            };
            let head = maker.head(&graph.nodes[chain.nodes[0]], inbox, &mut built.bounded)?;
            for node in &chain.nodes {
                maker.operator(&graph.nodes[*node])?;
            }
            let SubtaskMaker { operators, described, targets, source_uid, commits, versions, .. } = maker;
            let metrics = Arc::new(SubtaskMetrics::default());
            // A source is what a chain without inputs begins with.
            let source = described.first().filter(|_| !matches!(head, HeadPlan::Inputs(_))).map(|(_, _, counters)| counters.clone());
            let attachments = if root && matches!(job.kind, JobKind::MaterializedView { .. }) {
                let attachments = Attachments::default();
                built.attachments.push(attachments.clone());
                Some(attachments)
            } else {
                None
            };
            built.versions.extend(versions);
            if !matches!(head, HeadPlan::Inputs(_)) {
                built.sources += 1;
            }
            let snapshots = SnapshotTaker {
                store: context.store.clone(),
                files: context.files.clone(),
                spawner: context.spawner.clone(),
                scratch: folder.path().join("images"),
                folder: folder.clone(),
                targets,
                source_uid,
                incarnation: context.incarnation(),
                commits,
                committer: context.committer.clone(),
            };
            built.stateful_subtasks += usize::from(snapshots.has_state());
            built.subtasks.push(BuiltSubtask {
                chain_index: at,
                subtask,
                chain: Chain::new(operators, edges, metrics.clone()).with_source(source),
                root,
                snapshots,
                head,
                attachments,
                operators: described,
                metrics,
            });
        }
    }
    Ok(built)
}

/// How many subtasks each node has. Stored tables and constants are read by one; what a view's readers read comes from as many as the view has.
fn parallelisms(graph: &StreamGraph, parallelism: usize, views: &HashMap<ObjectId, Arc<ViewHandle>>) -> Result<Vec<usize>> {
    let mut all: Vec<usize> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        all.push(match &node.op {
            NodeOp::TableScan { .. } | NodeOp::Values { .. } => 1,
            NodeOp::ConnectorScan { .. } | NodeOp::Aggregate { .. } => parallelism,
            // No more than send to it: a subtask without inputs would never see a barrier.
            NodeOp::Union => node.inputs.iter().map(|edge| all[edge.from]).max().unwrap_or(1),
            NodeOp::ViewScan { view, .. } => {
                let handle = views.get(view).ok_or_else(|| Error::internal(format!("view {view} does not run")))?;
                handle.running_versions().map_or(0, |versions| versions.len()).max(1)
            }
            NodeOp::Calc { .. } | NodeOp::Unnest { .. } | NodeOp::Sink => node.inputs.first().map_or(1, |edge| all[edge.from]),
            NodeOp::Materialize => match node.inputs.first() {
                Some(edge) if edge.distribution == Distribution::Forward => all[edge.from],
                _ => parallelism,
            },
        });
    }
    Ok(all)
}

fn consumers(graph: &StreamGraph) -> Vec<usize> {
    let mut consumers = vec![0; graph.nodes.len()];
    for edge in graph.nodes.iter().flat_map(|node| &node.inputs) {
        consumers[edge.from] += 1;
    }
    consumers
}

/// Nodes that run in one subtask: linked by a forward edge, alone on both ends of it, with the same parallelism.
fn chains(graph: &StreamGraph, parallelism: &[usize], consumers: &[usize]) -> Vec<ChainPlan> {
    let mut chains: Vec<ChainPlan> = Vec::new();
    for node in &graph.nodes {
        let joins = match node.inputs.as_slice() {
            [edge] if edge.distribution == Distribution::Forward => {
                (consumers[edge.from] == 1 && parallelism[edge.from] == parallelism[node.id]).then_some(edge.from)
            }
            _ => None,
        };
        match joins.and_then(|from| chains.iter_mut().find(|chain| chain.nodes.last() == Some(&from))) {
            Some(chain) => chain.nodes.push(node.id),
            None => chains.push(ChainPlan { nodes: vec![node.id], parallelism: parallelism[node.id] }),
        }
    }
    chains
}

/// Opens what a job has of the outside world, for all subtasks of a chain together.
struct Ends<'a> {
    context: &'a BuildContext,
    catalog: &'a Catalog,
    job: &'a Job,
    restore: Option<&'a JobCheckpoint>,
    /// The job's own checkpoint: what it has written outside stands in there alone.
    own_restore: Option<&'a JobCheckpoint>,
    /// The savepoint that it begins with, where it has no checkpoint of its own.
    start: Option<&'a SavepointStart>,
    write_run: u64,
    parallelism: usize,
}

/// One subtask's source, and what it has to commit.
type OpenedSource = (Box<dyn Source>, Option<PendingCommits>);

impl Ends<'_> {
    /// What the checkpoint lists for an operator.
    fn restored_commits(&self, uid: &str) -> Vec<PendingCommit> {
        self.restore.and_then(|restore| restore.operators.get(uid)).map(|operator| operator.commits.clone()).unwrap_or_default()
    }

    /// The sources of a chain that begins with `node`; none where that reads no connector.
    fn sources(&self, node: &Node) -> Result<Vec<OpenedSource>> {
        let NodeOp::ConnectorScan { table, projection } = &node.op else { return Ok(Vec::new()) };
        let table = connector_table(self.catalog, *table)?;
        let uid = node.uid.as_deref().ok_or_else(|| Error::internal("an operator with state has no uid"))?;
        let restored = self.restore.and_then(|restore| restore.operators.get(uid));
        let splits = restored.map(|operator| -> Result<Splits> {
            let closed = operator.closed_splits.iter().map(|file| SplitPortion::restore(&self.context.store, file).map(Arc::new));
            Ok(Splits { open: operator.splits.clone(), closed: closed.collect::<Result<_>>()? })
        });
        let splits = splits.transpose()?;
        let max_row_bytes = self.context.max_row_bytes;
        let memory = Some(self.context.memory.clone());
        let from_savepoint = self.own_restore.is_none();
        let mut source_context = SourceContext { max_row_bytes, memory, dead_letters: None, statement_us: None, from_savepoint };
        let mut commits: Vec<PendingCommits> = Vec::new();
        if connector::keeps_bad_records(table)? {
            let restored = self.restored_commits(uid);
            let prefix = format!("{}-", self.job.id);
            let folder = dead_letters::folder(&self.context.dead_letters, table.id);
            self.context.committer.register(self.job.id, HiddenFiles { root: folder.clone(), depth: 0, prefix: prefix.clone() });
            commits.extend((0..self.parallelism).map(|_| PendingCommits::new(self.job.id)));
            if let Some(first) = commits.first() {
                let left_behind = abandoned(&self.context.files, &folder, &prefix, &restored)?;
                first.restore(self.restore.map_or(0, |restore| restore.barrier), restored);
                left_behind.into_iter().for_each(|path| first.push(PendingCommit::Remove { path }));
            }
            source_context.dead_letters = Some(DeadLetterContext {
                files: self.context.files.clone(),
                root: self.context.dead_letters.clone(),
                prefix: format!("{prefix}{:016x}", self.write_run),
                commits: commits.clone(),
            });
        }
        let sources = connector::open_sources(table, projection, self.parallelism, splits.as_ref(), &source_context)?;
        let mut commits = commits.into_iter();
        Ok(sources.into_iter().map(|source| (source, commits.next())).collect())
    }

    /// The sinks of a chain whose last node is `root`; none where that is a view's.
    fn sinks(&self, root: &Node) -> Result<Vec<OpenedSink>> {
        if !matches!(root.op, NodeOp::Sink) {
            return Ok(Vec::new());
        }
        let takes_back = self.own_restore.is_none() && self.job.origin.as_ref().is_some_and(|origin| origin.other_result);
        // Rows of the former result may have NULL where the present one has none.
        let schema = if takes_back { nullable(&root.schema) } else { root.schema.clone() };
        crate::sinks::open_sinks(&SinkContext {
            catalog: self.catalog,
            job: self.job,
            schema: &schema,
            changelog: root.changelog,
            parallelism: self.parallelism,
            files: &self.context.files,
            committer: &self.context.committer,
            memory: &self.context.memory,
            engine: self.context.engine,
            run: self.write_run,
            restored: self
                .own_restore
                .map(|restore| RestoredSink { barrier: restore.barrier, commits: self.restored_commits(&sink_uid(self.job)) }),
            descends_from: self
                .start
                .map(|start| &start.saved)
                .map(|saved| Standing::new(saved.engine, saved.job.id, &saved.job.name, saved.checkpoint.barrier)),
        })
    }
}

/// `schema`, whose columns may all be NULL.
fn nullable(schema: &SchemaRef) -> SchemaRef {
    let fields: Vec<Field> = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true)).collect();
    Arc::new(Schema::new(fields))
}

/// Under what a job's sink stands in a checkpoint.
fn sink_uid(job: &Job) -> String {
    format!("{}/sink", job.name)
}

fn connector_table(catalog: &Catalog, table: ObjectId) -> Result<&ConnectorTable> {
    let object = catalog.get_id(table).ok_or_else(|| Error::internal(format!("table {table} does not exist")))?;
    match object.as_ref() {
        Object::ConnectorTable(table) => Ok(table),
        _ => Err(Error::internal(format!("{} is not a connector table", object.name()))),
    }
}

/// Makes the operators of one subtask.
struct SubtaskMaker<'a> {
    context: &'a BuildContext,
    catalog: &'a Catalog,
    job: &'a Job,
    graph: &'a StreamGraph,
    restore: Option<&'a JobCheckpoint>,
    /// That checkpoint, where the views that the job reads have left it behind.
    behind: Option<&'a JobCheckpoint>,
    /// The savepoint that it begins with; then `restore` is what it takes over.
    start: Option<&'a SavepointStart>,
    folder: &'a Arc<ScratchFolder>,
    parallelism: usize,
    subtask: usize,
    operators: Vec<ChainedOperator>,
    described: Vec<(String, String, Arc<OperatorMetrics>)>,
    targets: Vec<SnapshotTarget>,
    source_uid: Option<String>,
    source: Option<OpenedSource>,
    sink: Option<OpenedSink>,
    /// What operators have to commit, by uid.
    commits: Vec<(String, PendingCommits)>,
    versions: Option<Arc<Versions>>,
}

impl SubtaskMaker<'_> {
    fn uid(&self, node: &Node) -> Result<String> {
        node.uid.clone().ok_or_else(|| Error::internal("an operator with state has no uid"))
    }

    fn head(&mut self, node: &Node, inbox: Option<Inbox>, bounded: &mut bool) -> Result<HeadPlan> {
        if let Some(inbox) = inbox {
            return Ok(HeadPlan::Inputs(inbox));
        }
        match &node.op {
            NodeOp::TableScan { table, projection } => {
                *bounded = false;
                self.describe(node, "table scan");
                let since = self.saved_table(node.id, *table)?;
                Ok(HeadPlan::Table { table: *table, projection: projection.clone(), since })
            }
            NodeOp::ViewScan { view, projection } => {
                *bounded = false;
                self.describe(node, "view scan");
                let (inbox, mut senders) = crate::runtime::inbox::inbox(1, &self.context.memory);
                let sender = senders.pop().ok_or_else(|| Error::internal("an inbox has no input"))?;
                let since = self.saved_view(node, *view, projection)?;
                Ok(HeadPlan::View { view: *view, projection: projection.clone(), since, inbox, sender })
            }
            NodeOp::ConnectorScan { table, .. } => {
                let uid = self.uid(node)?;
                let (source, commits) = self.source.take().ok_or_else(|| Error::internal("a subtask has no source"))?;
                *bounded &= connector::is_bounded(connector_table(self.catalog, *table)?)?;
                self.commits.extend(commits.map(|commits| (uid.clone(), commits)));
                self.source_uid = Some(uid);
                self.describe(node, CONNECTOR_SCAN);
                Ok(HeadPlan::Connector(source))
            }
            NodeOp::Values { rows } => {
                let uid = format!("values-{}", node.id);
                let splits = self.restore.and_then(|restore| restore.operators.get(&uid)).map(|operator| operator.splits.clone());
                self.source_uid = Some(uid);
                self.describe(node, "values");
                Ok(HeadPlan::Connector(Box::new(connector::ValuesSource::new(rows.clone(), splits))))
            }
            _ => Err(Error::internal("a chain begins with an operator that has no input")),
        }
    }

    fn describe(&mut self, node: &Node, operator: &str) -> Arc<OperatorMetrics> {
        let metrics = Arc::new(OperatorMetrics::default());
        let uid = node.uid.clone().unwrap_or_else(|| format!("{operator} {}", node.id));
        self.described.push((uid, operator.to_string(), metrics.clone()));
        metrics
    }

    fn push(&mut self, node: &Node, name: &str, mut operator: Box<dyn Operator>) -> Result<()> {
        if let Some(stateful) = operator.stateful()
            && let Some(target) = self.targets.last_mut().filter(|target| target.at == self.operators.len())
        {
            target.states = stateful.states();
            let converted = self.start.and_then(|start| start.plan.kept.get(&target.uid)).is_some_and(|kept| kept.conversion.is_some());
            let stored = self.restore.and_then(|restore| restore.operators.get(&target.uid));
            if let Some(stored) = stored.filter(|_| !converted) {
                StateDescriptor::check(&target.uid, &stored.states, &target.states)?;
            }
        }
        let metrics = self.describe(node, name);
        let name = weir_sql::explain::operator(self.graph, node.id);
        self.operators.push(ChainedOperator { operator, name, metrics });
        Ok(())
    }

    fn operator(&mut self, node: &Node) -> Result<()> {
        match &node.op {
            NodeOp::TableScan { .. } | NodeOp::ViewScan { .. } | NodeOp::ConnectorScan { .. } | NodeOp::Values { .. } | NodeOp::Union => {}
            NodeOp::Calc { input, filter, projection } => {
                let calc = Calc::new(input, filter.as_ref(), projection, node.schema.clone())?;
                self.push(node, "calc", Box::new(calc))?;
            }
            NodeOp::Unnest { array, output, outer } => {
                let unnest = Unnest::new(*array, output.clone(), *outer, node.schema.clone());
                self.push(node, "unnest", Box::new(unnest))?;
            }
            NodeOp::Aggregate { .. } => {
                let range = KeyGroupRange::of_subtask(self.subtask, self.parallelism);
                let backend = self.backend(node, range)?;
                let spec = aggregate_spec(self.graph, node).ok_or_else(|| Error::internal("an aggregate has no input"))?;
                let mut aggregate = Aggregate::new(spec, backend, range)?;
                if self.start.is_some_and(|start| start.plan.resent.contains(&node.id)) {
                    aggregate.send_all_first();
                }
                self.push(node, "aggregate", Box::new(aggregate))?;
            }
            NodeOp::Materialize => {
                let range = KeyGroupRange::of_subtask(self.subtask, self.parallelism);
                let context = self.context;
                let backend = self.backend(node, range)?;
                // What it begins with has a barrier of a former life: 0 stands in for it.
                let base = self.restore.map_or(0, |restore| restore.barrier);
                let (store, versions) = VersionedStore::new(backend, base)?;
                let layout = Arc::new(RowLayout::new(node.schema.clone(), node.upsert_key.clone())?);
                self.versions = Some(versions);
                self.push(node, "rows", Box::new(Materialize::new(layout, store, context.retained_barriers)))?;
            }
            NodeOp::Sink => {
                if let Some(net) = self.net_changes(node)? {
                    let name = weir_sql::explain::operator(self.graph, node.id);
                    self.operators.push(ChainedOperator { operator: Box::new(net), name, metrics: Arc::default() });
                }
                let OpenedSink { operator, commits } = self.sink.take().ok_or_else(|| Error::internal("a subtask has no sink"))?;
                self.commits.extend(commits.map(|commits| (sink_uid(self.job), commits)));
                self.push(node, "sink", operator)?;
            }
        }
        Ok(())
    }

    /// What stands before the sink `node` where it had another query: the former result waits in it to be taken back. Waits for disk.
    fn net_changes(&self, node: &Node) -> Result<Option<NetChanges>> {
        let Some((start, graph)) = self.start.and_then(|start| Some((start, start.former.as_ref()?))) else { return Ok(None) };
        let input = node.inputs.first().ok_or_else(|| Error::internal("a sink has no input"))?;
        let dir = self.folder.path().join(format!("result-{}", self.subtask));
        let backend = ScratchBackend::new(self.context.open_backend(&dir, &[], KeyGroupRange::ALL)?, self.folder.clone());
        let mut net = NetChanges::new(nullable(&self.graph.nodes[input.from].schema), Box::new(backend))?;
        let (context, folder, subtask, parallelism) = (self.context, self.folder, self.subtask, self.parallelism);
        FormerResult { context, start, graph, folder, subtask, parallelism }.each(&mut |rows| net.take_back(rows))?;
        Ok(Some(net))
    }

    /// The state backend of `node` in this subtask: with the state of the checkpoint where there is one, else empty.
    fn backend(&mut self, node: &Node, range: KeyGroupRange) -> Result<Box<dyn StateBackend>> {
        let uid = self.uid(node)?;
        let context = self.context;
        let dir = self.folder.path().join(format!("{}-{}", node.id, self.subtask));
        let stored: Vec<&Part> = self
            .restore
            .and_then(|restore| restore.operators.get(&uid))
            .map(|operator| operator.parts.iter().filter(|part| part.range.overlaps(&range)).collect())
            .unwrap_or_default();
        let backend = match self.start {
            None => context.open_backend(&dir, &stored, range)?,
            Some(start) => self.saved_backend(start, &uid, &dir, &stored, range)?,
        };
        let backend = Box::new(ScratchBackend::new(backend, self.folder.clone()));
        // Of a savepoint the store has nothing.
        let stored = if self.start.is_some() { Vec::new() } else { stored };
        let inherited: HashMap<String, FileHandle> = match stored.as_slice() {
            [part] => {
                let kept = part.files.iter().filter(|file| is_table_file(&file.local) && !is_recent_file(&file.local));
                kept.map(|file| (file.local.clone(), file.clone())).collect()
            }
            _ => HashMap::default(),
        };
        let last = match stored.as_slice() {
            [part] if part.range == range => Some((*part).clone()),
            _ => None,
        };
        self.targets.push(SnapshotTarget {
            at: self.operators.len(),
            uid,
            range,
            incarnation: context.incarnation(),
            states: Vec::new(),
            last: Arc::new(parking_lot::Mutex::new(LastStored { image: 0, part: last })),
            inherited: Arc::new(inherited),
        });
        Ok(backend)
    }

    /// A backend with the state that a savepoint has of an operator, converted where need be.
    fn saved_backend(
        &self,
        start: &SavepointStart,
        uid: &str,
        dir: &Path,
        parts: &[&Part],
        range: KeyGroupRange,
    ) -> Result<Box<dyn StateBackend>> {
        let context = self.context;
        let conversion = start.plan.kept.get(uid).and_then(|kept| kept.conversion.as_ref());
        let Some(conversion) = conversion else { return context.open_backend_of(dir, parts, range, Some(&start.place)) };
        let former = dir.with_added_extension("former");
        let mut backend = context.open_backend(dir, &[], range)?;
        let all: Vec<&Part>;
        let (parts, read) = if conversion.moves_keys() {
            all = start.checkpoint.operators.get(uid).map(|operator| operator.parts.iter().collect()).unwrap_or_default();
            (all.as_slice(), KeyGroupRange::ALL)
        } else {
            (parts, range)
        };
        {
            let from = context.open_backend_of(&former, parts, read, Some(&start.place))?;
            conversion.run(from.snapshot()?.as_ref(), range, backend.as_mut())?;
        }
        context.files.remove_dir(&former)?;
        Ok(backend)
    }

    /// What the savepoint that the job begins with has of a stored table that `node` scans; `None` where all rows are read.
    fn saved_table(&self, node: NodeId, table: ObjectId) -> Result<Option<SavedTable>> {
        let Some(start) = self.start.filter(|start| start.plan.since.contains(&node)) else { return Ok(None) };
        let name = self.catalog.get_id(table).map_or_else(String::new, |object| object.name().to_string());
        let saved = start.saved.inputs.iter().find_map(|input| match &input.object {
            Object::StoredTable(table) if table.name == name => Some(table.clone()),
            _ => None,
        });
        let (Some(saved), Some(tables)) = (saved, &start.saved.tables) else {
            return Err(Error::internal(format!("the savepoint has no rows of table \"{name}\"")));
        };
        let dir = self.folder.path().join(format!("saved-{node}"));
        let backend = self.context.open_backend_of(&dir, &[&tables.part], KeyGroupRange::ALL, Some(&start.place))?;
        let backend = ScratchBackend::new(backend, self.folder.clone());
        Ok(Some(SavedTable { rows: backend.snapshot()?, table: saved, own: start.saved.engine == self.context.engine }))
    }

    /// What the savepoint that the job begins with, or the checkpoint that it catches up from, has of a view that `node` scans, of this subtask's key groups.
    fn saved_view(&self, node: &Node, view: ObjectId, projection: &[usize]) -> Result<Option<SavedView>> {
        let start = self.start.filter(|start| start.plan.since.contains(&node.id));
        if start.is_none() && self.behind.is_none() {
            return Ok(None);
        }
        let Some(Object::Job(present)) = self.catalog.get_id(view).map(AsRef::as_ref) else {
            return Err(Error::internal(format!("view {view} does not exist")));
        };
        if let Some(behind) = self.behind {
            let rows =
                behind.inputs.get(&view).ok_or_else(|| Error::internal(format!("the rows of view \"{}\" were not kept", present.name)))?;
            return self.view_rows(node, present, rows, (present, None), projection).map(Some);
        }
        let Some(start) = start else { return Ok(None) };
        let saved = start.saved.inputs.iter().find_map(|input| match (&input.object, &input.rows) {
            (Object::Job(job), Some(rows)) if job.name == present.name => Some((job, rows)),
            _ => None,
        });
        let Some((job, rows)) = saved else {
            return Err(Error::internal(format!("the savepoint has no rows of view \"{}\"", present.name)));
        };
        self.view_rows(node, job, rows, (present, Some(&start.place)), projection).map(Some)
    }

    /// The rows of the view `was`, which is `present` now, as they were saved: in the savepoint in `place`, or in the store of checkpoints.
    fn view_rows(
        &self,
        node: &Node,
        was: &Job,
        rows: &OperatorCheckpoint,
        (present, place): (&Job, Option<&Place>),
        projection: &[usize],
    ) -> Result<SavedView> {
        let projection = saved_projection(&present.name, &was.columns, &present.columns, projection)?;
        let JobKind::MaterializedView { key, .. } = &was.kind else {
            return Err(Error::internal(format!("\"{}\" was no view", present.name)));
        };
        let range = KeyGroupRange::of_subtask(self.subtask, self.parallelism);
        let parts: Vec<&Part> = rows.parts.iter().filter(|part| part.range.overlaps(&range)).collect();
        let dir = self.folder.path().join(format!("saved-{}-{}", node.id, self.subtask));
        let backend = self.context.open_backend_of(&dir, &parts, range, place)?;
        let backend = ScratchBackend::new(backend, self.folder.clone());
        let append_only = (node.changelog == ChangelogMode::Append).then(|| present.name.clone());
        Ok(SavedView { rows: backend.snapshot()?, layout: saved_layout(&was.columns, key.clone())?, projection, append_only })
    }
}
