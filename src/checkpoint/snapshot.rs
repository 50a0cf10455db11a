//! One subtask's part of a checkpoint: taken at the barrier, stored beside the subtask's further work.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use weir_catalog::Result;

use super::manifest::{FileHandle, OperatorCheckpoint, Part};
use super::store::CheckpointStore;
use crate::runtime::chain::Chain;
use crate::runtime::metrics;
use crate::seams::clock::Stopwatch;
use crate::seams::files::FilesRef;
use crate::seams::hash::HashMap;
use crate::seams::spawn::{Spawner, in_place};
use crate::sinks::commit::{Committer, PendingCommits, make_durable};
use crate::sources::Splits;
use crate::state::scratch::ScratchFolder;
use crate::state::{StateBackendKind, StateDescriptor, StateSize};
use crate::stream::{BarrierNumber, KeyGroupRange};

/// What a subtask acknowledges.
#[derive(Clone, Debug, Default)]
pub struct SubtaskSnapshot {
    /// By uid.
    pub operators: Vec<OperatorPart>,
}

/// What one operator of a subtask contributes, and what it cost.
#[derive(Clone, Debug)]
pub struct OperatorPart {
    pub uid: String,
    pub checkpoint: OperatorCheckpoint,
    pub cost: SnapshotCost,
}

/// The cost of one operator's snapshot in one subtask.
#[derive(Clone, Copy, Debug, Default)]
pub struct SnapshotCost {
    /// Time that the barrier waited for other inputs.
    pub alignment_us: u64,
    /// Time that the subtask stood still for the snapshot.
    pub snapshot_us: u64,
    /// Time that storing took, beside the subtask.
    pub store_us: u64,
    pub files_new: u64,
    pub files_reused: u64,
    /// Bytes of the new files.
    pub bytes_new: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

/// A stateful operator of the chain, as a snapshot sees it.
#[derive(Debug)]
pub struct SnapshotTarget {
    /// Its place in the chain.
    pub at: usize,
    pub uid: String,
    pub range: KeyGroupRange,
    /// The id of this opening of its backend.
    pub incarnation: String,
    /// What its states look like.
    pub states: Vec<StateDescriptor>,
    /// What was stored last, where that succeeded.
    pub last: Arc<Mutex<LastStored>>,
    /// SST files that the backend was restored from and still knows by these names.
    pub inherited: Arc<HashMap<String, FileHandle>>,
}

/// What is stored of the newest image of a backend.
#[derive(Debug, Default)]
pub struct LastStored {
    /// The barrier of that image; 0 for what the backend was restored from.
    pub image: BarrierNumber,
    /// `None` as long as it is not stored, and where that failed.
    pub part: Option<Part>,
}

/// Takes the snapshots of one subtask.
#[derive(Debug)]
pub struct SnapshotTaker {
    pub store: Arc<CheckpointStore>,
    pub files: FilesRef,
    pub spawner: Spawner,
    /// A folder for this subtask's images, below the scratch folder.
    pub scratch: PathBuf,
    /// The job's scratch folder, which stays as long as there are images in it.
    pub folder: Arc<ScratchFolder>,
    pub targets: Vec<SnapshotTarget>,
    /// The uid under which a source's splits stand.
    pub source_uid: Option<String>,
    /// The id of this run, for files of splits.
    pub incarnation: String,
    /// What operators of the subtask have to commit, by uid.
    pub commits: Vec<(String, PendingCommits)>,
    pub committer: Arc<Committer>,
}

/// A snapshot that was taken and is still to be stored.
pub struct Storing {
    spawner: Spawner,
    work: Box<dyn FnOnce() -> Result<SubtaskSnapshot> + Send>,
}

impl Storing {
    /// Stores it beside the caller, and says so.
    pub fn finish(self, tell: impl FnOnce(Result<SubtaskSnapshot>) + Send + 'static) {
        let work = self.work;
        self.spawner.spawn_blocking(move || tell(work()));
    }
}

/// An image of one backend, to be stored.
struct Image {
    uid: String,
    incarnation: String,
    states: Vec<StateDescriptor>,
    backend: StateBackendKind,
    range: KeyGroupRange,
    dir: PathBuf,
    files: Vec<String>,
    size: StateSize,
    last: Arc<Mutex<LastStored>>,
    inherited: Arc<HashMap<String, FileHandle>>,
    cost: SnapshotCost,
}

impl SnapshotTaker {
    /// Whether the subtask has anything to snapshot. Only those that do acknowledge a checkpoint.
    pub fn has_state(&self) -> bool {
        !self.targets.is_empty() || self.source_uid.is_some() || !self.commits.is_empty()
    }

    /// Takes the snapshot of everything in `chain` that has state. The subtask stands still only for this call.
    pub fn take(&mut self, chain: &mut Chain, splits: Option<Splits>, barrier: BarrierNumber) -> Result<Storing> {
        let alignment_us = metrics::get(&chain.metrics().alignment_us);
        let mut operators = Vec::new();
        let mut images = Vec::new();
        let source = self.source_uid.clone().zip(splits);
        for target in &mut self.targets {
            let stopwatch = Stopwatch::start();
            let chained = &mut chain.operators_mut()[target.at];
            let Some(stateful) = chained.operator.stateful() else { continue };
            let dir = self.scratch.join(format!("{}-{barrier}", target.incarnation));
            let image = in_place(|| -> Result<Option<Vec<String>>> {
                stateful.flush()?;
                if !stateful.backend_mut().changed_since_checkpoint() {
                    return Ok(None);
                }
                self.files.create_dir(&self.scratch)?;
                *target.last.lock() = LastStored { image: barrier, part: None };
                stateful.backend_mut().checkpoint(&dir).map(Some)
            })?;
            let size = stateful.backend_mut().estimate();
            metrics::set(&chained.metrics.state_rows, size.rows);
            metrics::set(&chained.metrics.state_bytes, size.bytes);
            let mut cost = SnapshotCost { alignment_us, snapshot_us: stopwatch.elapsed().as_micros() as u64, ..SnapshotCost::default() };
            let files = match image {
                Some(files) => files,
                None => {
                    let last = target.last.lock().part.clone();
                    match last {
                        Some(part) if self.store.reuse(&part, barrier) => {
                            cost.files_reused = part.files.len() as u64;
                            cost.bytes = part.files.iter().map(|file| file.bytes).sum();
                            let checkpoint =
                                OperatorCheckpoint { states: target.states.clone(), parts: vec![part], ..OperatorCheckpoint::default() };
                            operators.push(OperatorPart { uid: target.uid.clone(), checkpoint, cost });
                            continue;
                        }
                        // The last one was not stored, or its files are gone: a new image of the same content.
                        _ => in_place(|| {
                            *target.last.lock() = LastStored { image: barrier, part: None };
                            self.files.create_dir(&self.scratch)?;
                            stateful.backend_mut().checkpoint(&dir)
                        })?,
                    }
                }
            };
            images.push(Image {
                uid: target.uid.clone(),
                incarnation: target.incarnation.clone(),
                states: target.states.clone(),
                backend: stateful.backend_mut().kind(),
                range: target.range,
                dir,
                files,
                size,
                last: target.last.clone(),
                inherited: target.inherited.clone(),
                cost,
            });
        }
        let list = |(uid, pending): &(String, PendingCommits)| {
            (uid.clone(), pending.list(barrier, &self.committer), pending.job(), pending.list_uploads(barrier, &self.committer))
        };
        let listed: Vec<_> = self.commits.iter().map(list).collect();
        let committer = self.committer.clone();
        let (store, files, folder) = (self.store.clone(), self.files.clone(), self.folder.clone());
        let (scratch, incarnation) = (self.scratch.join("splits"), self.incarnation.clone());
        let work = Box::new(move || {
            let _folder = folder;
            if let Some((uid, splits)) = source {
                let mut cost = SnapshotCost { alignment_us, ..SnapshotCost::default() };
                let checkpoint = store_splits(&store, &files, splits, (scratch.as_path(), incarnation.as_str()), barrier, &mut cost)?;
                operators.push(OperatorPart { uid, checkpoint, cost });
            }
            for image in images {
                operators.push(store_image(&store, &files, image, barrier)?);
            }
            for (uid, mut commits, job, uploads) in listed {
                let stopwatch = Stopwatch::start();
                make_durable(&files, &commits)?;
                commits.extend(committer.settle(job, &uploads)?);
                let store_us = stopwatch.elapsed().as_micros() as u64;
                let checkpoint = OperatorCheckpoint { commits, ..OperatorCheckpoint::default() };
                operators.push(OperatorPart { uid, checkpoint, cost: SnapshotCost { alignment_us, store_us, ..SnapshotCost::default() } });
            }
            Ok(SubtaskSnapshot { operators })
        });
        Ok(Storing { spawner: self.spawner.clone(), work })
    }
}

/// Stores those of a source's splits in files that are closed.
fn store_splits(
    store: &CheckpointStore,
    files: &FilesRef,
    splits: Splits,
    (scratch, incarnation): (&Path, &str),
    barrier: BarrierNumber,
    cost: &mut SnapshotCost,
) -> Result<OperatorCheckpoint> {
    let stopwatch = Stopwatch::start();
    let mut closed_splits = Vec::with_capacity(splits.closed.len());
    for (number, portion) in splits.closed.iter().enumerate() {
        let (handle, new) = portion.store(store, files, scratch, incarnation, &format!("{number}.splits"), barrier)?;
        cost.bytes += handle.bytes;
        if new {
            cost.files_new += 1;
            cost.bytes_new += handle.bytes;
        } else {
            cost.files_reused += 1;
        }
        closed_splits.push(handle);
    }
    cost.store_us = stopwatch.elapsed().as_micros() as u64;
    Ok(OperatorCheckpoint { splits: splits.open, closed_splits, ..OperatorCheckpoint::default() })
}

fn store_image(store: &CheckpointStore, files: &FilesRef, image: Image, barrier: BarrierNumber) -> Result<OperatorPart> {
    let stopwatch = Stopwatch::start();
    let mut cost = image.cost;
    let inherited = |local: &String| image.inherited.get(local).and_then(|handle| store.put_again(handle, barrier));
    let (mut stored, mut own) = (Vec::with_capacity(image.files.len()), Vec::new());
    for local in &image.files {
        match inherited(local) {
            Some(again) => stored.push(again),
            None => own.push(local.as_str()),
        }
    }
    let put = store.put_all(&image.incarnation, &image.dir, &own, barrier);
    // The image is only names of files: the store has its own.
    files.remove_dir(&image.dir)?;
    stored.extend(put?);
    let mut handles = Vec::with_capacity(stored.len());
    for file in stored {
        cost.bytes += file.handle.bytes;
        if file.new {
            cost.files_new += 1;
            cost.bytes_new += file.handle.bytes;
        } else {
            cost.files_reused += 1;
        }
        handles.push(file.handle);
    }
    let part = Part { format: Part::format_of(&handles), backend: image.backend, range: image.range, files: handles, size: image.size };
    {
        // An image that was taken later has taken the place of one that took long to store.
        let mut last = image.last.lock();
        if last.image == barrier {
            last.part = Some(part.clone());
        }
    }
    cost.store_us = stopwatch.elapsed().as_micros() as u64;
    Ok(OperatorPart {
        uid: image.uid,
        checkpoint: OperatorCheckpoint { states: image.states, parts: vec![part], ..OperatorCheckpoint::default() },
        cost,
    })
}

/// Takes and stores the image of a backend that no chain owns: the stored tables'.
pub fn store_part(
    store: &CheckpointStore,
    files: &FilesRef,
    image: (PathBuf, Vec<String>),
    incarnation: &str,
    backend: StateBackendKind,
    size: StateSize,
    barrier: BarrierNumber,
) -> Result<(Part, SnapshotCost)> {
    let (dir, names) = image;
    let last = Arc::new(Mutex::new(LastStored { image: barrier, part: None }));
    let image = Image {
        uid: String::new(),
        incarnation: incarnation.to_string(),
        states: Vec::new(),
        backend,
        range: KeyGroupRange::ALL,
        dir,
        files: names,
        size,
        last: last.clone(),
        inherited: Arc::default(),
        cost: SnapshotCost::default(),
    };
    let stored = store_image(store, files, image, barrier)?;
    let part = stored.checkpoint.parts.into_iter().next();
    part.map(|part| (part, stored.cost)).ok_or_else(|| weir_catalog::Error::internal("a stored image has no part"))
}
