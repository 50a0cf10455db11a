//! The engine: what a data folder holds, opened, and everything that a session may ask of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::{mpsc, oneshot};
use weir_catalog::{Catalog, CatalogChange, Error, Job, JobKind, Object, ObjectId, Result, SqlState};
use weir_sql::graph::StreamGraph;

use super::build::BuildContext;
use super::identity;
use super::manager::{Event, Manager, ManagerContext};
use super::numbers::BarrierNumbers;
use super::plan::plan_job;
use super::savepoints::UPGRADE_PREFIX;
use super::settings::Settings;
use super::status::{JobState, StatusBoard, stopped_input};
use super::storage;
use super::view::{Published, ViewHandle};
use crate::checkpoint::savepoint::{Savepoints, absolute};
use crate::checkpoint::storage::Writer;
use crate::checkpoint::{CheckpointStore, Manifest, Part, Places};
use crate::log::{EngineLog, LogSettings, Recovered, Tables, TablesSettings, TablesSnapshot, Transaction};
use crate::seams::clock::Clock;
use crate::seams::faults::{self, Fault};
use crate::seams::files::FilesRef;
use crate::seams::hash::HashMap;
use crate::seams::random::Random;
use crate::seams::spawn::{JoinHandle, Spawner};
use crate::sinks::commit::Committer;
use crate::sources::file::dead_letters;
use crate::state::memory_pool::MemoryPool;
use crate::state::{RecentMemory, SharedRocks, StateSnapshot};
use crate::stream::{BarrierNumber, CommitSeq, KeyGroupRange};

/// The stack of every thread that binds, plans or runs statements: walks over syntax trees and plans go as deep as those are, which the parser bounds.
/// What is not used of it costs address space only.
pub const STACK_BYTES: usize = 256 << 20;
/// RocksDB's write buffers have this part of the memory: one in so many. Large writes go past them.
const WRITE_BUFFER_SHARE: usize = 16;
/// The stored tables' changes that are not in their base may hold this part of the memory: one in so many.
const UNFOLDED_SHARE: usize = 16;
/// What transactions hold of what they have written is at most one in so many of the memory: a commit has it up to four times for a moment, as it was
/// written, as a batch, as a record, and for the rows of its table.
const UNCOMMITTED_SHARE: usize = 5;
/// What the log holds of recent commits for its readers is at most one in so many of the memory.
const TAIL_SHARE: usize = 16;
/// The folder below the data folder that keeps records which could not be read.
const DEAD_LETTERS: &str = "bad";

/// Batch queries may hold this part of the memory: one in so many.
pub const QUERY_SHARE: usize = 5;

/// The folder in the scratch folder that has what batch queries spill.
const SPILLED: &str = "queries";

/// How long a reader waits before it looks again for a view whose CREATE is committed.
const VIEW_POLL: Duration = Duration::from_millis(2);

/// What the rest of the process replaces in tests.
#[derive(Clone, Debug)]
pub struct Seams {
    pub clock: Clock,
    pub random: Random,
    pub files: FilesRef,
}

impl Default for Seams {
    fn default() -> Seams {
        Seams { clock: Clock::system(), random: Random::from_entropy(), files: Arc::new(crate::seams::files::LocalFiles) }
    }
}

/// An open data folder.
pub struct Engine {
    settings: Arc<RwLock<Settings>>,
    clock: Clock,
    log: EngineLog,
    tables: Arc<Tables>,
    views: Arc<RwLock<HashMap<ObjectId, Arc<ViewHandle>>>>,
    board: Arc<RwLock<StatusBoard>>,
    manager: mpsc::UnboundedSender<Event>,
    memory: Arc<MemoryPool>,
    pub(super) files: FilesRef,
    pub(super) store: Arc<CheckpointStore>,
    pub(super) savepoints: Savepoints,
    /// Tells what this data folder writes from what others do.
    pub(super) engine_id: u64,
    pub(super) build: BuildContext,
    /// Commits that change the catalog follow one another, each with what it starts and stops.
    ddl: Arc<tokio::sync::Mutex<()>>,
    /// Where subtasks run; gone after the shutdown.
    runtime: parking_lot::Mutex<Option<tokio::runtime::Runtime>>,
    /// Held as long as the folder is open.
    _lock: std::fs::File,
}

/// A job that a commit creates.
#[derive(Clone, Debug)]
pub struct NewJob {
    pub job: Arc<Job>,
    pub graph: Arc<StreamGraph>,
    /// What it was planned over.
    pub catalog: Arc<Catalog>,
}

impl NewJob {
    /// Whether what it was planned over is the same in `now`, views (macros) and what they read included.
    fn is_planned_over(&self, now: &Catalog) -> bool {
        let mut ids: Vec<ObjectId> = Object::Job(self.job.as_ref().clone()).depends_on();
        let mut at = 0;
        while let Some(id) = ids.get(at).copied() {
            match (self.catalog.get_id(id), now.get_id(id)) {
                (Some(then), Some(now)) if then == now => {
                    ids.extend(then.depends_on().into_iter().filter(|id| !ids.contains(id)).collect::<Vec<_>>());
                }
                _ => return false,
            }
            at += 1;
        }
        true
    }
}

/// The turn of one commit: no reader of the log is too far behind, and no other commit changes the catalog until it is done.
pub struct CommitTurn {
    _ddl: Option<tokio::sync::OwnedMutexGuard<()>>,
}

/// A durable commit, and what it started.
#[derive(Debug)]
pub struct Committed {
    pub seq: CommitSeq,
    /// For each new job: told when its first version is published, or why it never will be.
    pub started: Vec<(Arc<Job>, oneshot::Receiver<Result<()>>)>,
}

/// A consistent cut for one statement.
#[derive(Clone)]
pub struct ReadCut {
    /// The commit as of which stored tables are read.
    pub commit: CommitSeq,
    /// The barrier as of which views are read; `None` where the statement names none.
    pub barrier: Option<BarrierNumber>,
    /// For each view, a snapshot a root subtask.
    pub views: HashMap<ObjectId, (Arc<ViewHandle>, Vec<Arc<dyn StateSnapshot>>)>,
    /// The stored tables as of `commit`; of no meaning where the statement names none.
    pub tables: TablesSnapshot,
}

impl Engine {
    /// Opens the data folder that `settings` name, made if need be: recovers the log and the stored tables, restores every job from the newest
    /// checkpoint (or the one that `settings` name), and starts them. Returns when clients can be served; views become readable as their jobs catch up.
    ///
    /// Errors: `55006` where another process has the folder open, `XX001` where its bytes are damaged, `0A000` where a newer version wrote them, `22023`
    /// where the checkpoint to start from is not there.
    pub fn open(mut settings: Settings, seams: Seams) -> Result<Arc<Engine>> {
        let Seams { clock, random, files } = seams;
        // What is recorded of places in it holds wherever the next start is made from.
        settings.data_dir = absolute(&settings.data_dir)?;
        let dir = settings.data_dir.clone();
        files.create_dir(&dir)?;
        check_is_own(&files, &dir)?;
        let lock = lock_folder(&dir)?;
        check_format(&files, &dir)?;
        let scratch = dir.join("scratch");
        files.remove_dir(&scratch)?;
        files.create_dir(&scratch)?;

        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_name("weir-subtask")
            .worker_threads(cores)
            .thread_stack_size(STACK_BYTES)
            .max_blocking_threads(64)
            .enable_all()
            .build()
            .map_err(|e| Error::io("start threads", &e))?;
        let spawner = Spawner::new(runtime.handle().clone());

        // Write buffers are within RocksDB's cache, whose size the pool decides.
        let rocks = Arc::new(SharedRocks::new(settings.memory / 2, settings.memory / WRITE_BUFFER_SHARE)?);
        let memory = MemoryPool::with_cache(settings.memory, rocks.as_ref().clone());

        let random = Arc::new(parking_lot::Mutex::new(random));
        let engine = identity::open(&files, &dir, || random.lock().next_u64())?;
        let run = random.lock().next_u64();
        let permits = storage::permits(&settings, &memory);
        let places = Places::new(files.clone(), scratch.clone(), permits.clone());
        places.set_timeout(settings.checkpoint_timeout);
        let storage = storage::open(&files, &dir, &settings, Writer { engine, run }, permits)?;
        storage.set_timeout(settings.checkpoint_timeout);
        let (store, manifests) = CheckpointStore::open_in(storage, files.clone(), settings.from_checkpoint)?;
        let store = Arc::new(store);
        storage::remember(&files, &dir, &settings)?;
        let defaults = LogSettings::default();
        let tail_bytes = defaults.tail_bytes.min((settings.memory / TAIL_SHARE) as u64);
        let log_settings = LogSettings { limit_bytes: settings.log_limit as u64, tail_bytes, ..defaults };
        let (log, recovered) = EngineLog::open(files.clone(), &dir, log_settings)?;
        if recovered.cut_bytes > 0 {
            tracing::info!(bytes = recovered.cut_bytes, "cut what a power loss tore at the end of the engine log");
        }
        let build = BuildContext {
            files: files.clone(),
            store: store.clone(),
            places,
            committer: Arc::new(Committer::new(files.clone())),
            engine,
            dead_letters: dir.join(DEAD_LETTERS),
            rocks,
            state_backend: settings.state_backend,
            memory: memory.clone(),
            recent: RecentMemory::new(memory.clone()),
            spawner: spawner.clone(),
            scratch: scratch.clone(),
            random,
            retained_barriers: settings.retained_barriers,
            max_row_bytes: settings.max_row_bytes,
        };
        let newest = manifests.last().cloned().unwrap_or_default();
        let tables = open_tables(&build, &log, &recovered, &newest, settings.max_row_bytes)?;
        let numbers = BarrierNumbers::open(files.clone(), &dir, clock.now_us(), newest.barrier)?;

        drop_unfinished_upgrades(&tables)?;
        let catalog = log.catalog();
        super::savepoints::remove_origins(&files, &dir, |job| {
            let begins = |object: &Arc<Object>| matches!(object.as_ref(), Object::Job(job) if job.origin.is_some());
            let in_all = !manifests.is_empty() && manifests.iter().all(|manifest| manifest.jobs.contains_key(&job));
            catalog.get_id(job).is_some_and(begins) && !in_all
        })?;
        dead_letters::remove_dropped(&files, &dir.join(DEAD_LETTERS), &catalog)?;
        let (savepoints, unsettled) = super::savepoints::open(&build.places, &dir, &catalog)?;
        let settling = savepoints.clone();
        spawner.spawn_blocking(move || settling.settle_all(&unsettled));
        let engine_id = build.engine;
        let settings = Arc::new(RwLock::new(settings));
        let views = Arc::new(RwLock::new(HashMap::default()));
        let board = Arc::new(RwLock::new(StatusBoard::default()));
        let context = ManagerContext {
            settings: settings.clone(),
            clock: clock.clone(),
            spawner: spawner.clone(),
            build: build.clone(),
            log: log.clone(),
            tables: tables.clone(),
            views: views.clone(),
            board: board.clone(),
            start_commit: log.end(),
            numbers,
        };
        let jobs = catalog
            .objects()
            .filter_map(|object| match object.as_ref() {
                Object::Job(job) => Some((Arc::new(job.clone()), plan_job(&catalog, job).map(Arc::new))),
                _ => None,
            })
            .collect();
        let entered = runtime.enter();
        let (mut manager, sender, events) = Manager::new(context, manifests);
        manager.start_existing(jobs);
        spawner.spawn(manager.run(events));
        drop(entered);
        Ok(Arc::new(Engine {
            settings,
            clock,
            log,
            tables,
            views,
            board,
            manager: sender,
            memory,
            files,
            store,
            savepoints,
            engine_id,
            build,
            ddl: Arc::default(),
            runtime: parking_lot::Mutex::new(Some(runtime)),
            _lock: lock,
        }))
    }

    /// The catalog as of the last commit.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.log.catalog()
    }

    /// The stored tables.
    pub fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }

    /// Where records that could not be read are kept.
    pub fn dead_letters(&self) -> (FilesRef, PathBuf) {
        (self.files.clone(), self.settings.read().data_dir.join(DEAD_LETTERS))
    }

    /// The engine's clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The pool that caches, versions and buffers share.
    pub fn memory(&self) -> &Arc<MemoryPool> {
        &self.memory
    }

    /// The folder for what batch queries spill. It is empty after a start.
    pub fn query_scratch(&self) -> Result<PathBuf> {
        let folder = self.build.scratch.join(SPILLED);
        self.files.create_dir(&folder)?;
        Ok(folder)
    }

    /// The settings in force.
    pub fn settings(&self) -> Settings {
        self.settings.read().clone()
    }

    /// Changes a setting of the running engine. Errors: `55P02` for one that can be changed only at start.
    pub fn set(&self, name: &str, value: &str) -> Result<()> {
        if Settings::info(name).is_some_and(|info| info.at_start) {
            return Err(Error::new(
                SqlState::parse("55P02").unwrap_or(SqlState::INTERNAL_ERROR),
                format!("parameter \"{name}\" cannot be changed without restarting the server"),
            ));
        }
        let mut settings = self.settings.write();
        settings.set(name, value)?;
        self.store.set_timeout(settings.checkpoint_timeout);
        self.build.places.set_timeout(settings.checkpoint_timeout);
        drop(settings);
        // The manager looks at the settings anew.
        self.tell(Event::WantBarrier)
    }

    /// Returns when the board shows what every statement did that ended before the call: jobs made, dropped, renamed, resumed. At a shutdown it stays as it is.
    pub async fn show(&self) {
        let (done, told) = oneshot::channel();
        if self.tell(Event::Show { done }).is_ok() {
            let _ = told.await;
        }
    }

    /// What the system views show, a moment behind what statements did: whoever decides by it awaits [`Engine::show`] first.
    pub fn board(&self) -> &Arc<RwLock<StatusBoard>> {
        &self.board
    }

    /// The file layer.
    pub fn files(&self) -> &FilesRef {
        &self.files
    }

    /// The commit that the log ends with.
    pub fn end(&self) -> CommitSeq {
        self.log.end()
    }

    pub(super) fn tell(&self, event: Event) -> Result<()> {
        self.manager.send(event).map_err(|_| shutting_down())
    }

    /// Makes `transaction` durable and visible. Its catalog changes take effect with it: `new_jobs`, for the jobs among them, are started, and jobs that
    /// it drops are stopped before this returns. Dropping the future before its end leaves open whether there is a commit; where there is, all that belongs
    /// to it happens.
    ///
    /// Errors: `40001` where rows changed meanwhile, `53100` and `58030` where the disk refuses, and what does not fit the catalog any more.
    pub async fn commit(self: &Arc<Engine>, transaction: Transaction, new_jobs: Vec<NewJob>) -> Result<Committed> {
        let turn = self.commit_turn(&transaction).await;
        self.commit_in_turn(turn, transaction, new_jobs).await.map_err(|e| Error::internal(format!("a commit did not end: {e}"))).flatten()
    }

    /// Waits until `transaction` may be committed. Giving up changes nothing.
    pub async fn commit_turn(&self, transaction: &Transaction) -> CommitTurn {
        if !transaction.is_empty() {
            self.log.admit().await;
        }
        CommitTurn { _ddl: if transaction.changes_catalog() { Some(self.ddl.clone().lock_owned().await) } else { None } }
    }

    /// As [`Engine::commit`], when it is its turn, beside the caller: it goes on where nobody waits for it.
    pub fn commit_in_turn(
        self: &Arc<Engine>,
        turn: CommitTurn,
        transaction: Transaction,
        new_jobs: Vec<NewJob>,
    ) -> JoinHandle<Result<Committed>> {
        let engine = self.clone();
        Spawner::current().spawn(async move {
            let committed = engine.carry_out(transaction, new_jobs).await;
            drop(turn);
            committed
        })
    }

    async fn carry_out(&self, transaction: Transaction, new_jobs: Vec<NewJob>) -> Result<Committed> {
        let changes_catalog = transaction.changes_catalog();
        if !new_jobs.is_empty() {
            let catalog = transaction.latest_catalog()?;
            if let Some(new) = new_jobs.iter().find(|new| !new.is_planned_over(&catalog)) {
                return Err(Error::new(SqlState::SERIALIZATION_FAILURE, "could not serialize access due to concurrent update")
                    .with_detail(format!("What \"{}\" reads was changed by another session.", new.job.name))
                    .with_hint("The transaction might succeed if retried."));
            }
        }
        let before = self.catalog();
        let seq = match transaction.submit()? {
            Some(pending) => pending.await?,
            None => return Ok(Committed { seq: self.log.end(), started: Vec::new() }),
        };
        if changes_catalog {
            let after = self.catalog();
            let dropped: Vec<ObjectId> = before
                .objects()
                .filter(|object| matches!(object.as_ref(), Object::Job(_)) && after.get_id(object.id()).is_none())
                .map(|object| object.id())
                .collect();
            if !dropped.is_empty() {
                let (done, told) = oneshot::channel();
                self.tell(Event::Drop { jobs: dropped, done })?;
                told.await.map_err(|_| shutting_down())?;
            }
            let is_gone =
                |object: &Arc<Object>| matches!(object.as_ref(), Object::ConnectorTable(_)) && after.get_id(object.id()).is_none();
            if before.objects().any(is_gone) {
                let (files, root) = self.dead_letters();
                let removed = tokio::task::spawn_blocking(move || dead_letters::remove_dropped(&files, &root, &after)).await;
                if let Ok(Err(error)) = removed {
                    tracing::warn!(%error, "the bad records of a dropped table were not removed");
                }
            }
        }
        if changes_catalog {
            for object in self.catalog().objects() {
                if let (Object::Job(job), Some(former)) = (object.as_ref(), before.get_id(object.id()))
                    && former != object
                {
                    self.tell(Event::Renamed { job: Arc::new(job.clone()) })?;
                }
            }
        }
        self.tell(Event::Committed)?;
        let mut started = Vec::new();
        for NewJob { job, graph, .. } in new_jobs {
            let (published, told) = oneshot::channel();
            self.tell(Event::Create { job: job.clone(), graph, published: Some(published) })?;
            started.push((job, told));
        }
        Ok(Committed { seq, started })
    }

    /// A consistent cut through the views named and, where `with_tables`, the stored tables: the newest barrier that all of them still have, or, without
    /// views, the last commit. Waits where there is none yet, at most `timeout`; the error (`57014`) names the view that lags. A view that `transaction` creates is
    /// `55000`.
    pub async fn read(
        &self,
        views: &[ObjectId],
        with_tables: bool,
        transaction: Option<&Transaction>,
        timeout: Duration,
    ) -> Result<ReadCut> {
        let deadline = tokio::time::Instant::now() + timeout;
        let mut handles: Vec<Arc<ViewHandle>> = Vec::with_capacity(views.len());
        for view in views {
            handles.push(self.view_handle(*view, transaction, deadline).await?);
        }
        if handles.is_empty() {
            let tables = match transaction {
                Some(transaction) => transaction.snapshot(),
                None => self.tables.latest()?,
            };
            return Ok(ReadCut { commit: tables.seq(), barrier: None, views: HashMap::default(), tables });
        }
        let mut changes: Vec<_> = handles.iter().map(|handle| handle.subscribe()).collect();
        loop {
            for change in &mut changes {
                change.mark_unchanged();
            }
            let readable: Vec<Vec<Published>> = handles.iter().map(|handle| handle.readable()).collect::<Result<_>>()?;
            let common = readable[0].iter().rev().find(|candidate| readable[1..].iter().all(|other| other.contains(candidate))).copied();
            // A transaction that has written sees its own rows; they are in no view yet.
            let own = transaction.filter(|transaction| !transaction.is_empty()).map(Transaction::snapshot);
            let tables = match (own, common) {
                (Some(own), _) => Some(own),
                (None, Some(cut)) if with_tables => {
                    self.tables.snapshot(cut.commit).ok().or_else(|| handles.iter().find_map(|handle| handle.kept_tables(cut.commit)))
                }
                (None, _) => Some(self.tables.latest()?),
            };
            if let (Some(cut), Some(tables)) = (common, tables) {
                let mut views = HashMap::default();
                for (at, handle) in handles.iter().enumerate() {
                    let mut barrier = cut.barrier;
                    if faults::is_planted(Fault::ViewReadOneBarrierOlder) && at > 0 {
                        let older = readable[at].iter().rev().find(|published| published.barrier < barrier);
                        barrier = older.map_or(barrier, |published| published.barrier);
                    }
                    if let Some(snapshots) = handle.open(barrier) {
                        views.insert(handle.id, (handle.clone(), snapshots));
                    }
                }
                if views.len() == handles.iter().map(|handle| handle.id).collect::<std::collections::BTreeSet<_>>().len() {
                    return Ok(ReadCut { commit: cut.commit, barrier: Some(cut.barrier), views, tables });
                }
                continue; // A version went away between the two looks: look again.
            }
            self.tell(Event::WantBarrier)?;
            let waited = tokio::time::timeout_at(deadline, async {
                let any = changes.iter_mut().map(|change| Box::pin(change.changed()));
                let _ = futures::future::select_all(any).await;
            });
            if waited.await.is_err() {
                let laggard = handles
                    .iter()
                    .zip(&readable)
                    .min_by_key(|(_, readable)| readable.last().map_or(0, |last| last.barrier))
                    .map_or_else(String::new, |(handle, _)| handle.name());
                return Err(Error::new(SqlState::QUERY_CANCELED, format!("canceling statement: view \"{laggard}\" has not caught up"))
                    .with_detail(format!("The statement waited for {} s.", timeout.as_secs_f64())));
            }
        }
    }

    /// The view `id` as clients see it. Waits for one whose CREATE is committed and whose job is about to start.
    ///
    /// Errors: `55000` where `transaction` creates it, `42P01` where it was dropped meanwhile, `57014` after `deadline`.
    async fn view_handle(
        &self,
        id: ObjectId,
        transaction: Option<&Transaction>,
        deadline: tokio::time::Instant,
    ) -> Result<Arc<ViewHandle>> {
        loop {
            if let Some(handle) = self.views.read().get(&id) {
                return Ok(handle.clone());
            }
            let Some(object) = self.catalog().get_id(id).cloned() else {
                // What stands in its catalog may have been dropped since its statement began.
                return Err(match transaction.and_then(|transaction| transaction.created(id)) {
                    Some(object) => Error::new(
                        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                        format!("{} \"{}\" cannot be read in the transaction that creates it", object.kind(), object.name()),
                    )
                    .with_detail("Its job starts when the transaction is committed.")
                    .with_hint("COMMIT first, or, in a pipeline, send a Sync."),
                    None => Error::new(SqlState::UNDEFINED_TABLE, "a view that the statement reads was dropped"),
                });
            };
            if tokio::time::Instant::now() >= deadline {
                return Err(Error::new(
                    SqlState::QUERY_CANCELED,
                    format!("canceling statement: {} \"{}\" has not started", object.kind(), object.name()),
                ));
            }
            tokio::time::sleep(VIEW_POLL).await;
        }
    }

    /// From now on the view `successor` shows nothing older than the view `former` does, whose place it is about to take.
    pub fn follow(&self, successor: ObjectId, former: ObjectId) {
        let views = self.views.read();
        if let (Some(successor), Some(former)) = (views.get(&successor), views.get(&former)) {
            successor.follow(former.clone());
        }
    }

    /// The first of `inputs` that is the view of a stopped job, as an error (`55000`): what reads it can't begin.
    pub async fn check_inputs_run(&self, inputs: &[ObjectId]) -> Result<()> {
        self.show().await;
        let board = self.board.read();
        match board.jobs.iter().find(|job| job.state == JobState::Failed && inputs.contains(&job.id)) {
            Some(stopped) => Err(stopped_input(&stopped.name, stopped.last_error.as_ref())),
            None => Ok(()),
        }
    }

    /// Returns when every running view covers everything committed before the call. Where jobs were stopped by an error, the first one's, which names the
    /// job; it comes when all others are done.
    pub async fn flush(&self) -> Result<()> {
        let (done, told) = oneshot::channel();
        self.tell(Event::Flush { done })?;
        told.await.map_err(|_| shutting_down())?
    }

    /// Returns when a checkpoint that covers everything committed before the call is complete.
    pub async fn checkpoint(&self) -> Result<()> {
        let (done, told) = oneshot::channel();
        self.tell(Event::Checkpoint { of: None, done })?;
        told.await.map_err(|_| shutting_down())?
    }

    /// Returns when a checkpoint of `job`, and of the jobs that form a group with it, is complete.
    pub async fn checkpoint_of(&self, job: ObjectId) -> Result<()> {
        let (done, told) = oneshot::channel();
        self.tell(Event::Checkpoint { of: Some(job), done })?;
        told.await.map_err(|_| shutting_down())?
    }

    /// Rebuilds a job that was stopped by an error; returns when it has published again.
    pub async fn resume(&self, job: ObjectId) -> Result<()> {
        let (done, told) = oneshot::channel();
        self.tell(Event::Resume { job, done })?;
        told.await.map_err(|_| shutting_down())?
    }

    /// Takes a job, and all that are joined to it by a view reading a view, back to a retained checkpoint; returns when it has published again and has a
    /// checkpoint behind that one.
    ///
    /// Errors: `42704` where there is no such checkpoint of the job, `55000` where a job of them was not in it and can't be built again, what keeps the
    /// checkpoint from being restored.
    pub async fn recover(&self, job: ObjectId, checkpoint: BarrierNumber) -> Result<()> {
        let (done, told) = oneshot::channel();
        self.tell(Event::Recover { job, checkpoint, done })?;
        told.await.map_err(|_| shutting_down())??;
        self.checkpoint_of(job).await
    }

    /// Returns when a bounded job has written its whole result and its last checkpoint is complete.
    pub async fn wait_finished(&self, job: ObjectId) -> Result<()> {
        let (done, told) = oneshot::channel();
        self.tell(Event::WaitFinished { job, done })?;
        told.await.map_err(|_| shutting_down())?
    }

    /// Whether all sources of a job come to an end by themselves.
    pub fn is_bounded(&self, job: &Job) -> Result<bool> {
        if matches!(job.kind, JobKind::MaterializedView { .. }) {
            return Ok(false);
        }
        let catalog = self.catalog();
        for input in &job.inputs {
            match catalog.get_id(*input).map(Arc::as_ref) {
                Some(Object::ConnectorTable(table)) if crate::sources::connector::is_bounded(table)? => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// A last checkpoint, then the end of all jobs. The engine can't be used afterwards.
    pub async fn shutdown(&self) {
        let (done, told) = oneshot::channel();
        if self.tell(Event::Shutdown { done }).is_ok() {
            let _ = told.await;
        }
        // What is still on its way belongs to no checkpoint that will be complete.
        self.store.stop();
        self.build.places.stop();
        self.build.committer.stop();
        let runtime = self.runtime.lock().take();
        if let Some(runtime) = runtime {
            // State backends close with their subtasks.
            let closed = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(10)));
            if closed.await.is_err() {
                tracing::warn!("the subtasks did not end");
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.store.stop();
        self.build.places.stop();
        self.build.committer.stop();
        if let Some(runtime) = self.runtime.lock().take() {
            runtime.shutdown_background();
        }
    }
}

pub(super) fn shutting_down() -> Error {
    Error::new(SqlState::ADMIN_SHUTDOWN, "the server is shutting down")
}

/// Keeps other processes out of the folder.
fn lock_folder(dir: &Path) -> Result<std::fs::File> {
    let path = dir.join("LOCK");
    let failed = |e: &std::io::Error| Error::io(format!("lock \"{}\"", path.display()), e);
    let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(|e| failed(&e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Error::new(
            SqlState::parse("55006").unwrap_or(SqlState::IO_ERROR),
            format!("data folder \"{}\" is in use by another process", dir.display()),
        )),
        Err(std::fs::TryLockError::Error(e)) => Err(failed(&e)),
    }
}

/// Drops views that were to take the place of others and had not yet when the process ended.
fn drop_unfinished_upgrades(tables: &Arc<Tables>) -> Result<()> {
    let catalog = tables.catalog();
    let is_left = |object: &&Arc<Object>| matches!(object.as_ref(), Object::Job(job) if job.name.starts_with(UPGRADE_PREFIX));
    // Those that read others of them first, and whatever somebody has made over one: it is no relation of a user's.
    let mut left: Vec<ObjectId> = Vec::new();
    for id in catalog.objects().filter(is_left).flat_map(|object| catalog.drop_order(object.id())) {
        if !left.contains(&id) {
            left.push(id);
        }
    }
    if left.is_empty() {
        return Ok(());
    }
    let mut transaction = tables.begin()?;
    for id in left {
        transaction.change_catalog(CatalogChange::Drop(id))?;
    }
    transaction.submit()?.map_or(Ok(()), |pending| pending.wait().map(|_| ()))
}

/// What a data folder may hold before it says that it is one: what its first start began with, and what a file system has at its top.
const BEFORE_FORMAT: [&str; 3] = ["LOCK", "FORMAT.tmp", "lost+found"];

/// Errors with `55000` where the folder is not weir's and not empty: nothing in it is touched.
fn check_is_own(files: &FilesRef, dir: &Path) -> Result<()> {
    if files.exists(&dir.join("FORMAT")) {
        return Ok(());
    }
    let foreign = files.list(dir)?.into_iter().find(|path| {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        !BEFORE_FORMAT.contains(&name.as_ref())
    });
    match foreign {
        None => Ok(()),
        Some(path) => Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("folder \"{}\" is not empty and holds no data of weir", dir.display()),
        )
        .with_detail(format!("It has \"{}\" and no file FORMAT.", path.display()))
        .with_hint("Name an empty folder, or one that does not exist, with --data-dir.")),
    }
}

/// The format of the data folder as a whole.
const FORMAT: u32 = 1;

fn check_format(files: &FilesRef, dir: &Path) -> Result<()> {
    let path = dir.join("FORMAT");
    if files.exists(&path) {
        let found = files.read(&path)?;
        let format =
            std::str::from_utf8(&found).ok().and_then(|text| text.strip_prefix("weir-data ")?.strip_suffix('\n')?.parse::<u32>().ok());
        return match format {
            Some(FORMAT) => Ok(()),
            Some(newer) if newer > FORMAT => Err(Error::newer_format(format_args!("data folder \"{}\"", dir.display()), newer, FORMAT)),
            _ => Err(Error::corrupted(format!("\"{}\" is damaged", path.display()))
                .with_detail(format!("It says {:?}; this weir writes \"weir-data {FORMAT}\".", String::from_utf8_lossy(&found)))),
        };
    }
    let temporary = dir.join("FORMAT.tmp");
    files.write(&temporary, format!("weir-data {FORMAT}\n").as_bytes())?;
    files.rename(&temporary, &path)?;
    files.sync_dir(dir)
}

/// The stored tables: their rows as of the newest checkpoint, and the log from there on.
fn open_tables(
    build: &BuildContext,
    log: &EngineLog,
    recovered: &Recovered,
    newest: &Manifest,
    max_row_bytes: usize,
) -> Result<Arc<Tables>> {
    let parts: Vec<&Part> = newest.tables.iter().map(|tables| &tables.part).collect();
    let base = newest.tables.as_ref().map_or(0, |tables| tables.commit);
    let backend = build.open_backend(&build.scratch.join("tables"), &parts, KeyGroupRange::ALL)?;
    let defaults = TablesSettings::default();
    let max_unfolded_bytes = defaults.max_unfolded_bytes.min((build.memory.limit() / UNFOLDED_SHARE) as u64);
    let max_uncommitted_bytes = (build.memory.limit() / UNCOMMITTED_SHARE).max(2 * max_row_bytes);
    let settings = TablesSettings { max_row_bytes, max_unfolded_bytes, max_uncommitted_bytes, ..defaults };
    let tables = Tables::open(log.clone(), recovered, backend, base, settings)?;
    tables.count_memory(build.memory.charge(), build.memory.charge());
    Ok(tables)
}
