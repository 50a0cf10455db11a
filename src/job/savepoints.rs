//! Savepoints of jobs: making, finding and removing them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use weir_catalog::{Catalog, Error, Job, JobKind, JobOrigin, Object, ObjectId, Result, SqlState};
use weir_sql::graph::StreamGraph;

use super::Engine;
use super::engine::shutting_down;
use super::former::former_plan;
use super::left_tables::LeftTables;
use super::manager::{Event, Hold, OfStopped, PinnedCheckpoint, Saving};
use super::sink_change::{SinkChange, check_begins_alone};
use super::status::JobState;
use super::upgrade::{StatePlan, saved_operators};
use crate::checkpoint::savepoint::{Reserved, SavedInput, Savepoints, Unsettled, folder};
use crate::checkpoint::{Place, Places, Savepoint};
use crate::seams::files::FilesRef;
use crate::seams::spawn::{JoinHandle, Spawner};

/// How often a savepoint is tried where the stored tables have moved on from the job's barrier meanwhile.
const ATTEMPTS: usize = 20;

/// How long a savepoint waits for a job that is starting.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// How often it looks.
const START_POLL: Duration = Duration::from_millis(50);

/// What a view is called until it takes the place of the one that it is built to replace. No user's name begins so.
pub const UPGRADE_PREFIX: &str = "weir_upgrade_";

/// A savepoint, for those who list them.
#[derive(Clone, Debug)]
pub struct SavepointSummary {
    pub name: String,
    pub place: Place,
    /// What there is to say of it; an error where it can't be read.
    pub savepoint: Result<Savepoint>,
    /// The bytes that nothing but savepoints keeps, on the disk or in an object store.
    pub pinned_bytes: u64,
}

impl Engine {
    /// Makes the savepoint `name` of `job` as of a barrier that covers everything committed before the call; in `place` where that is given. Where it is given up,
    /// there is none.
    ///
    /// Errors: `42710` where there is one of this name, `55006` where another is being made in `place`, `22023` where that is in a data folder or a savepoint,
    /// `55000` where the job has no state that could be saved.
    pub async fn create_savepoint(&self, name: &str, job: &Arc<Job>, place: Option<Place>) -> Result<()> {
        let reserved = Arc::new(self.reserve_savepoint(name, place).await?);
        let pinned = self.checkpoint_to_save(job.id, false, OfStopped::Nothing).await?;
        let savepoint = savepoint_of(name, self.engine_id, self.clock().now_us(), &pinned, &self.catalog())?;
        let (savepoints, store, under) = (self.savepoints.clone(), self.store.clone(), reserved.clone());
        let writing = tokio::task::spawn_blocking(move || {
            let result = savepoints.write(&store, &savepoint, &under);
            drop(pinned);
            result
        });
        let mut pending = PendingSavepoint::new(self.savepoints.clone(), name, reserved, writing);
        pending.written().await?;
        pending.is_decided = true;
        Ok(())
    }

    async fn reserve_savepoint(&self, name: &str, place: Option<Place>) -> Result<Reserved> {
        let (savepoints, name, settings) = (self.savepoints.clone(), name.to_string(), self.settings());
        let reserved = tokio::task::spawn_blocking(move || {
            let (data_dir, checkpoints) = (&settings.data_dir, settings.checkpoint_storage.as_ref());
            place.as_ref().map_or(Ok(()), |place| place.check_is_apart(data_dir, checkpoints))?;
            savepoints.reserve(&name, place.as_ref())
        });
        reserved.await.map_err(|_| Error::internal("looking for a savepoint panicked"))?
    }

    /// As [`Engine::create_savepoint`], and ends the job: nothing that it did after the savepoint's barrier was shown to anybody or written to its sink. It is
    /// for the caller to drop it, and to say so; otherwise it goes on from there, and there is no savepoint.
    pub async fn stop_with_savepoint(self: &Arc<Self>, name: &str, job: &Arc<Job>, place: Option<Place>) -> Result<Stopped> {
        let reserved = Arc::new(self.reserve_savepoint(name, place).await?);
        let mut pinned = self.checkpoint_to_save(job.id, true, OfStopped::LastCheckpoint).await?;
        let mut stopped = Stopped { _hold: pinned.hold.take(), saved: None, ending: None };
        let pinned = self.completed(pinned).await?;
        let mut savepoint = savepoint_of(name, self.engine_id, self.clock().now_us(), &pinned, &self.catalog())?;
        savepoint.ends_job = true;
        let (savepoints, store, under, job) = (self.savepoints.clone(), self.store.clone(), reserved.clone(), job.id);
        let writing = tokio::task::spawn_blocking(move || {
            let result = savepoints.write_of_ending(&store, &savepoint, &under, job);
            drop(pinned);
            result
        });
        let ending = stopped.ending.insert(PendingSavepoint::new(self.savepoints.clone(), name, reserved, writing));
        ending.written().await?;
        Ok(stopped)
    }

    /// A savepoint of a job, for the job `successor`, which takes its place. It goes when it is dropped, and with the next start.
    pub async fn scratch_savepoint(&self, pinned: PinnedCheckpoint, successor: ObjectId) -> Result<ScratchSavepoint> {
        let folder = self.settings().data_dir.join("scratch").join(format!("upgrade-{successor}"));
        self.write_unnamed(pinned, &folder).await?;
        Ok(ScratchSavepoint { files: self.files.clone(), folder })
    }

    /// As [`Engine::stop_with_savepoint`], of all of `jobs` at one checkpoint, for the job beside each, its successor, which takes its place. A savepoint lasts
    /// until the successor has a checkpoint, or, without a successor, until the next start.
    pub async fn stop_for(&self, jobs: &[(ObjectId, ObjectId)]) -> Result<Vec<(Stopped, PathBuf)>> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let former: Vec<ObjectId> = jobs.iter().map(|(former, _)| *former).collect();
        let mut all = Vec::with_capacity(jobs.len());
        let mut to_write = Vec::with_capacity(jobs.len());
        for (mut pinned, (_, successor)) in self.checkpoints_of(&former, true, OfStopped::WhatItKeeps).await?.into_iter().zip(jobs) {
            let folder = origin_folder(&self.settings().data_dir, *successor);
            let saved = ScratchSavepoint { files: self.files.clone(), folder: folder.clone() };
            all.push((Stopped { _hold: pinned.hold.take(), saved: Some(saved), ending: None }, folder));
            to_write.push(pinned);
        }
        for (pinned, (_, folder)) in to_write.into_iter().zip(&mut all) {
            match self.begins_again_with(&pinned) {
                None => self.write_unnamed(pinned, folder).await?,
                Some(origin) => *folder = self.begin_again(&pinned, origin, folder).await?,
            }
        }
        Ok(all)
    }

    /// The savepoint that a job began with which was stopped by an error before it had a checkpoint.
    fn begins_again_with(&self, pinned: &PinnedCheckpoint) -> Option<PathBuf> {
        let origin = pinned.job.origin.as_ref().filter(|_| pinned.is_nothing())?;
        Some(PathBuf::from(&origin.savepoint))
    }

    /// Where the successor of such a job finds the savepoint `origin`: in `folder`, where it is the former one's alone.
    async fn begin_again(&self, pinned: &PinnedCheckpoint, origin: PathBuf, folder: &Path) -> Result<PathBuf> {
        if origin != origin_folder(&self.settings().data_dir, pinned.job.id) {
            return Ok(origin);
        }
        let (files, into) = (self.files.clone(), folder.to_path_buf());
        let copied = tokio::task::spawn_blocking(move || folder::copy(&files, &origin, &into).map(|()| into));
        copied.await.map_err(|_| Error::internal("copying a savepoint panicked"))?
    }

    /// What a job that was stopped by an error has left, with the stored tables as of its commit. Waits for disk.
    async fn completed(&self, pinned: PinnedCheckpoint) -> Result<PinnedCheckpoint> {
        if pinned.is_of_one_moment() {
            return Ok(pinned);
        }
        let left =
            LeftTables { build: self.build.clone(), tables: self.tables().clone(), catalog: self.catalog(), spawner: Spawner::current() };
        let completed = tokio::task::spawn_blocking(move || left.complete(pinned));
        completed.await.map_err(|_| Error::internal("going back in the stored tables panicked"))?
    }

    async fn write_unnamed(&self, pinned: PinnedCheckpoint, folder: &Path) -> Result<()> {
        let pinned = self.completed(pinned).await?;
        let savepoint = savepoint_of("", self.engine_id, self.clock().now_us(), &pinned, &self.catalog())?;
        let (files, store, into) = (self.files.clone(), self.store.clone(), folder.to_path_buf());
        let written = tokio::task::spawn_blocking(move || {
            let result = folder::write(&files, &store, &into, &savepoint);
            drop(pinned);
            result
        });
        written.await.map_err(|_| Error::internal("writing a savepoint panicked"))?
    }

    /// A durable checkpoint of `job`, made now, with the stored tables as of its very commit where it reads one.
    async fn checkpoint_to_save(&self, job: ObjectId, stop: bool, of_stopped: OfStopped) -> Result<PinnedCheckpoint> {
        let mut pinned = self.checkpoints_of(&[job], stop, of_stopped).await?;
        pinned.pop().ok_or_else(|| Error::internal("a checkpoint was not pinned"))
    }

    /// Durable checkpoints of `jobs`, in their order, made now, each with the stored tables as of its very commit where the job reads one. What takes a
    /// checkpoint together costs one. Of a job that was stopped by an error what it has left; then the stored tables may be of a later commit.
    pub async fn checkpoints_to_save(&self, jobs: &[ObjectId]) -> Result<Vec<PinnedCheckpoint>> {
        self.checkpoints_of(jobs, false, OfStopped::WhatItKeeps).await
    }

    async fn checkpoints_of(&self, jobs: &[ObjectId], stop: bool, of_stopped: OfStopped) -> Result<Vec<PinnedCheckpoint>> {
        let patience = tokio::time::Instant::now() + START_PATIENCE;
        let mut attempt = 0;
        while attempt < ATTEMPTS {
            for job in jobs {
                self.wait_for_start(*job, patience).await;
            }
            let held = self.tables().hold_folds();
            let (done, told) = oneshot::channel();
            self.tell(Event::Save { jobs: jobs.to_vec(), stop, of_stopped, done })?;
            let told = told.await.map_err(|_| shutting_down())?;
            drop(held);
            let saving = match told {
                Ok(saving) => saving,
                // One of them has failed meanwhile: what it leaves is to be had when it is known whether it goes on.
                Err(_) if of_stopped != OfStopped::Nothing && tokio::time::Instant::now() < patience && self.has_failed(jobs).await => {
                    tokio::time::sleep(START_POLL).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            match saving {
                Saving::Saved(pinned) => return Ok(pinned),
                Saving::Without(job, error) => {
                    if tokio::time::Instant::now() >= patience || !self.can_be_waited_for(job).await {
                        return Err(error);
                    }
                    tokio::time::sleep(START_POLL).await;
                }
                Saving::Apart => {
                    tokio::time::sleep(Duration::from_millis(10 << attempt.min(6))).await;
                    attempt += 1;
                }
            }
        }
        Err(Error::new(
            SqlState::parse("55P03").unwrap_or(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE),
            "the stored tables change too fast for a savepoint",
        )
        .with_hint("Try again when less is written."))
    }

    /// A durable checkpoint of `job`, made now. Waits for a job that is starting.
    pub(super) async fn fresh_checkpoint(&self, job: ObjectId) -> Result<PinnedCheckpoint> {
        let patience = tokio::time::Instant::now() + START_PATIENCE;
        loop {
            self.wait_for_start(job, patience).await;
            self.checkpoint_of(job).await?;
            let (done, told) = oneshot::channel();
            self.tell(Event::Pin { job, done })?;
            match told.await.map_err(|_| shutting_down())? {
                Err(_) if tokio::time::Instant::now() < patience && self.can_be_waited_for(job).await => {
                    tokio::time::sleep(START_POLL).await;
                }
                pinned => return pinned,
            }
        }
    }

    /// Returns when `job` takes part in the next checkpoint, or when it is not to be waited for, at `patience` at the latest. What a job that is starting has
    /// of checkpoints is from before.
    async fn wait_for_start(&self, job: ObjectId, patience: tokio::time::Instant) {
        while tokio::time::Instant::now() < patience {
            let is_starting = match self.state_of(job).await {
                Some(state) => matches!(state, JobState::Starting | JobState::Backfilling | JobState::Restarting),
                None => self.catalog().get_id(job).is_some(),
            };
            if !is_starting {
                return;
            }
            tokio::time::sleep(START_POLL).await;
        }
    }

    /// Whether one of `jobs` was stopped by an error, or is tried again after one.
    async fn has_failed(&self, jobs: &[ObjectId]) -> bool {
        for job in jobs {
            if let Some(JobState::Failed | JobState::Restarting | JobState::Starting | JobState::Backfilling) = self.state_of(*job).await {
                return true;
            }
        }
        false
    }

    /// Whether a job that has no checkpoint is going to have one: it exists and was not stopped. It may be on its way to its first barrier, have come to it
    /// just now, or be about to be started, when its CREATE is in the log and nothing else has heard of it.
    async fn can_be_waited_for(&self, job: ObjectId) -> bool {
        match self.state_of(job).await {
            Some(state) => !matches!(state, JobState::Failed | JobState::Finished),
            None => self.catalog().get_id(job).is_some(),
        }
    }

    /// Where a job is in its life, as the last statement left it; `None` where nobody has heard of it.
    async fn state_of(&self, job: ObjectId) -> Option<JobState> {
        self.show().await;
        self.board().read().jobs.iter().find(|status| status.id == job).map(|status| status.state)
    }

    /// The savepoints of this data folder, by name. Waits for disk, and for the object stores that they are in.
    pub fn list_savepoints(&self) -> Result<Vec<SavepointSummary>> {
        let found = self.savepoints.list()?;
        let links = self.build.places.links(found.iter().map(|(_, place)| place));
        Ok(found
            .into_iter()
            .map(|(name, place)| {
                let places = &self.build.places;
                let savepoint = self.savepoints.check_metadata(&place).and_then(|()| places.read(&place));
                SavepointSummary { pinned_bytes: places.pinned_bytes(&place, &savepoint, &links), savepoint, name, place }
            })
            .collect())
    }

    /// Where the savepoint `name` is. Errors: `42704` where there is none, `XX001` where it has lost its metadata.
    pub fn savepoint_place(&self, name: &str) -> Result<Place> {
        let none = || Error::new(SqlState::UNDEFINED_OBJECT, format!("savepoint \"{name}\" does not exist"));
        let place = self.savepoints.place(name)?.ok_or_else(none)?;
        self.savepoints.check_metadata(&place)?;
        Ok(place)
    }

    /// The savepoint in `place`. Waits for disk.
    pub fn read_savepoint(&self, place: &Place) -> Result<Savepoint> {
        self.build.places.read(place)
    }

    /// Removes the savepoint `name`; false where there is none. Errors with `55006` where a job is about to begin with it, as far as the board shows ([`Engine::show`]).
    /// Waits for disk.
    pub fn drop_savepoint(&self, name: &str) -> Result<bool> {
        let Some(place) = self.savepoints.place(name)? else { return Ok(false) };
        let recorded = place.record()?;
        let user = self.catalog().objects().find_map(|object| match object.as_ref() {
            Object::Job(job) if job.origin.as_ref().is_some_and(|origin| origin.savepoint == recorded) => Some(job.clone()),
            _ => None,
        });
        if let Some(job) = user
            && !self.board().read().jobs.iter().any(|status| status.id == job.id && status.checkpointed)
        {
            let code = SqlState::parse("55006").unwrap_or(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
            return Err(Error::new(code, format!("savepoint \"{name}\" is in use"))
                .with_detail(format!("Job \"{}\" begins with it and has no checkpoint of its own yet.", job.name)));
        }
        self.savepoints.remove(name)
    }

    /// What `job` with the plan `graph` would take over of the savepoint of `origin`, and whether it is a sink that had another result. Waits for disk. Errors
    /// also as [`SinkChange::from_savepoint`].
    pub fn plan_state(&self, catalog: &Catalog, job: &Job, origin: &JobOrigin, graph: &StreamGraph) -> Result<(StatePlan, bool)> {
        let saved = self.read_savepoint(&Place::recorded(&origin.savepoint)?)?;
        saved.parts().try_for_each(|part| part.check(self.build.state_backend))?;
        if matches!(job.kind, JobKind::MaterializedView { .. }) {
            return Ok((StatePlan::new(&saved, graph, catalog, &origin.uids, self.engine_id)?, false));
        }
        check_begins_alone(&saved, job, catalog, self.engine_id)?;
        let change = SinkChange::from_savepoint(&saved, job, (graph, catalog), &origin.uids, self.engine_id)?;
        Ok((change.plan, change.other_result))
    }

    /// What a job with the plan `graph` over `catalog` would take over of the running job that `pinned` is of; `uids` as for [`StatePlan::new`].
    pub fn plan_upgrade(
        &self,
        catalog: &Catalog,
        pinned: &PinnedCheckpoint,
        graph: &StreamGraph,
        uids: &[(String, String)],
    ) -> Result<StatePlan> {
        let saved = savepoint_of("", self.engine_id, self.clock().now_us(), pinned, &self.catalog())?;
        StatePlan::new(&saved, graph, catalog, uids, self.engine_id)
    }

    /// As [`Engine::plan_upgrade`], of a sink whose query changes. Waits for a checkpoint of it. Errors as [`SinkChange::new`].
    pub async fn plan_sink_change(
        &self,
        catalog: &Catalog,
        job: &Arc<Job>,
        graph: &StreamGraph,
        uids: &[(String, String)],
    ) -> Result<SinkChange> {
        let pinned = self.checkpoint_to_save(job.id, false, OfStopped::WhatItKeeps).await?;
        let before = self.catalog();
        if let Some(origin) = self.begins_again_with(&pinned) {
            let origin = origin.to_str().ok_or_else(|| Error::unsupported("the path of a savepoint is not valid UTF-8"))?;
            let saved = self.read_savepoint(&Place::recorded(origin)?)?;
            let (former, then) = former_plan(&saved, &before)?;
            return SinkChange::new(&saved, (&former, &then), (graph, catalog), uids, self.engine_id);
        }
        let saved = savepoint_of("", self.engine_id, self.clock().now_us(), &pinned, &before)?;
        SinkChange::new(&saved, (&pinned.graph, &before), (graph, catalog), uids, self.engine_id)
    }
}

/// A job that does nothing any more. When this is dropped it goes on where it stood, unless it was dropped; what was saved of it goes, unless
/// [`Stopped::done`] or [`Stopped::confirm`] was called.
pub struct Stopped {
    _hold: Option<Hold>,
    /// What was saved for a job that takes its place.
    saved: Option<ScratchSavepoint>,
    /// The savepoint that it was stopped with.
    ending: Option<PendingSavepoint>,
}

impl Stopped {
    /// The job has been dropped, and what takes its place has what was saved for it.
    pub fn done(mut self) {
        if let Some(saved) = self.saved.take() {
            saved.keep();
        }
    }

    /// The job has been dropped: the savepoint that it was stopped with counts. Waits for disk. After an error it does from the next start on.
    pub async fn confirm(mut self) -> Result<()> {
        let Some(mut ending) = self.ending.take() else { return Ok(()) };
        ending.is_decided = true;
        let (savepoints, name) = (ending.savepoints.clone(), ending.name.clone());
        let confirmed = tokio::task::spawn_blocking(move || savepoints.confirm(&name));
        confirmed.await.map_err(|_| Error::internal("confirming a savepoint panicked"))?
    }

    /// Whether the job has been dropped is not known: the next start sees what becomes of the savepoint.
    pub fn leave_open(mut self) {
        if let Some(mut ending) = self.ending.take() {
            ending.is_decided = true;
        }
    }
}

/// A savepoint that goes when this is dropped, unless it is decided that it does not. Nobody sees it before, nor after where it goes.
struct PendingSavepoint {
    savepoints: Savepoints,
    name: String,
    reserved: Arc<Reserved>,
    writing: Option<JoinHandle<Result<()>>>,
    is_decided: bool,
}

impl PendingSavepoint {
    fn new(savepoints: Savepoints, name: &str, reserved: Arc<Reserved>, writing: JoinHandle<Result<()>>) -> PendingSavepoint {
        PendingSavepoint { savepoints, name: name.to_string(), reserved, writing: Some(writing), is_decided: false }
    }

    /// Waits until it has been written. Giving up leaves that under way.
    async fn written(&mut self) -> Result<()> {
        let Some(writing) = &mut self.writing else { return Ok(()) };
        let written = writing.await;
        self.writing = None;
        let written = written.map_err(|_| Error::internal("writing a savepoint panicked"))?;
        // What can't be written leaves nothing.
        self.is_decided = written.is_err();
        written
    }
}

impl Drop for PendingSavepoint {
    fn drop(&mut self) {
        if self.is_decided || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        self.reserved.give_up();
        let (savepoints, name, writing) = (self.savepoints.clone(), std::mem::take(&mut self.name), self.writing.take());
        let reserved = self.reserved.clone();
        let spawner = Spawner::current();
        spawner.clone().spawn(async move {
            if let Some(writing) = writing
                && !matches!(writing.await, Ok(Ok(())))
            {
                return;
            }
            spawner.spawn_blocking(move || {
                if let Err(error) = savepoints.abandon(&name) {
                    tracing::warn!(savepoint = %name, %error, "a savepoint that was given up with its statement was not removed");
                }
                drop(reserved);
            });
        });
    }
}

/// A savepoint that nobody needs when this is dropped.
pub struct ScratchSavepoint {
    files: FilesRef,
    pub folder: PathBuf,
}

impl ScratchSavepoint {
    fn keep(mut self) {
        self.folder = PathBuf::new();
    }
}

impl Drop for ScratchSavepoint {
    fn drop(&mut self) {
        if self.folder.as_os_str().is_empty() || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let (files, folder) = (self.files.clone(), std::mem::take(&mut self.folder));
        Spawner::current().spawn_blocking(move || {
            if let Err(error) = folder::remove(&files, &folder) {
                tracing::warn!(%error, "a savepoint that is not needed any more was not removed; the next start does it");
            }
        });
    }
}

/// The folder of savepoints that jobs begin with which take the place of others.
const ORIGINS: &str = "origins";

fn origin_folder(dir: &Path, successor: ObjectId) -> PathBuf {
    dir.join(ORIGINS).join(successor.to_string())
}

/// Removes the savepoint that `job` began with where it was made for it alone; nothing where there is none. Waits for disk.
pub(super) fn remove_origin(files: &FilesRef, dir: &Path, job: ObjectId) -> Result<()> {
    folder::remove(files, &origin_folder(dir, job))
}

/// Removes the savepoints that were made for one job alone, but for those that `needed` says. Waits for disk.
pub(super) fn remove_origins(files: &FilesRef, dir: &Path, needed: impl Fn(ObjectId) -> bool) -> Result<()> {
    let origins = dir.join(ORIGINS);
    for name in files.list(&origins)? {
        let job = name.to_str().and_then(|name| name.parse::<ObjectId>().ok());
        if !job.is_some_and(&needed) {
            files.remove_dir(&origins.join(name))?;
        }
    }
    Ok(())
}

/// `40001`: what the statement was planned over is not there any more.
fn overtaken() -> Error {
    Error::new(SqlState::SERIALIZATION_FAILURE, "could not serialize access due to concurrent update")
        .with_detail("What the job reads was dropped or altered by another session.")
        .with_hint("The statement might succeed if retried.")
}

/// The savepoint that a checkpoint amounts to.
fn savepoint_of(name: &str, engine: u64, created_us: i64, pinned: &PinnedCheckpoint, catalog: &Catalog) -> Result<Savepoint> {
    let mut checkpoint = pinned.checkpoint.clone();
    // What sinks had to commit, the job itself has committed, or does.
    checkpoint.operators.values_mut().for_each(|operator| operator.commits.clear());
    // They are among the inputs.
    checkpoint.inputs.clear();
    let mut inputs = Vec::new();
    // One that is built anew has nothing that could be compared with them.
    let read = if pinned.is_nothing() { &[][..] } else { pinned.job.inputs.as_slice() };
    for id in read {
        // Another session has dropped the job since, and what it read.
        let object = catalog.get_id(*id).ok_or_else(overtaken)?.as_ref().clone();
        let rows = match &object {
            Object::Job(view) => {
                let of_view = pinned.inputs.iter().find(|(view, _)| view == id).map(|(_, checkpoint)| checkpoint);
                let rows = of_view.and_then(|checkpoint| checkpoint.operators.get(&format!("{}/rows", view.name)));
                Some(
                    rows.cloned()
                        .ok_or_else(|| Error::internal(format!("the rows of view \"{}\" are not in its checkpoint", view.name)))?,
                )
            }
            _ => None,
        };
        inputs.push(SavedInput { object, rows });
    }
    Ok(Savepoint {
        name: name.to_string(),
        engine,
        created_us,
        job: pinned.job.as_ref().clone(),
        checkpoint,
        operators: saved_operators(&pinned.graph, catalog)?,
        result: Some(weir_sql::result_derivation(&pinned.graph, catalog)?),
        ends_job: false,
        inputs,
        tables: pinned.tables.clone().filter(|_| pinned.reads_tables()),
    })
}

/// The savepoints of the data folder `dir`, as [`Savepoints::open`] has it. `catalog` says whether a job that was to end with one has.
pub(super) fn open(places: &Places, dir: &Path, catalog: &Catalog) -> Result<(Savepoints, Vec<Unsettled>)> {
    Savepoints::open(places.clone(), dir.join("savepoints"), |job| catalog.get_id(job).is_none())
}
