//! The `file` connector as sink: CSV, JSON lines, changes in Debezium's form or Parquet, in a folder.
//!
//! A file is written under a hidden name (`.` in front). At a checkpoint barrier all open files are closed and listed in the checkpoint; once that is
//! complete they are renamed, and a record that names them tells readers so. Readers that leave out hidden files, as nearly all do, see a file whole or not
//! at all, and only what a complete checkpoint holds; readers that go by the records see whole checkpoints.
//!
//! # Invariants
//! - A row is in exactly one file that becomes visible, whenever and however often the process dies.
//! - What became visible after the checkpoint that a run begins from is taken back with the run's first checkpoint. A run that begins from nothing takes back
//!   everything: its own rows are all there are.
//!
//! In an object store a file is an upload in parts under its final name, which is no object before it is completed; completing takes the place of renaming:
//! see [`super::commit`]. Parts are sent beside the subtask, and kept until they have arrived: a store that does not answer fails checkpoints, and not the job.
//!
//! | file | is about |
//! | --- | --- |
//! | `place` | where files are, and what their names say |
//! | `target` | a file or an upload that is being written |
//! | `encoder` | rows to the bytes of one file |
//! | `partitions` | which rows go into which folder |

pub mod descent;
mod encoder;
mod partitions;
pub mod place;
mod target;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use futures::FutureExt;
use futures::future::BoxFuture;
use weir_catalog::{Error, Result};

use self::encoder::{FileEncoder, Rows};
use self::partitions::Partitioner;
use self::place::SinkPlace;
use self::target::{Closed, PARTS_MOST, Target};
use super::commit::{PendingCommit, PendingCommits, PendingUpload};
use super::{OpenedSink, SinkContext};
use crate::formats::lines::Lines;
use crate::operators::{Operator, Output};
use crate::seams::files::FilesRef;
use crate::seams::objects::{CHUNK_BYTES, Uploads};
use crate::seams::spawn::in_place;
use crate::sources::file::FileConfig;
use crate::state::memory_pool::Charge;
use crate::stream::{Barrier, BarrierNumber, Batch};

/// A file's bytes are written when so many have gathered.
const WRITE_BYTES: usize = 256 << 10;
/// How many files one subtask has open at a time: beyond that, all are closed.
const OPEN_FILES_MAX: usize = 128;
/// What the open files of all subtasks of a sink may hold of the memory: one in so many.
const MEMORY_SHARE: usize = 16;
/// Of parts that were not sent yet a subtask keeps at least and at most so many bytes.
const UNSENT_BYTES: std::ops::RangeInclusive<usize> = 2 * CHUNK_BYTES..=8 * CHUNK_BYTES;

/// One subtask's part of a `file` sink.
pub struct FileSink {
    config: FileConfig,
    files: FilesRef,
    /// Of a sink in an object store: what is on its way there.
    uploads: Option<Arc<Uploads>>,
    schema: SchemaRef,
    place: SinkPlace,
    subtask: usize,
    number: u64,
    partitioner: Partitioner,
    /// Of a text format: the lines of the batch under way, and what they hold in memory, bytes.
    lines: Option<Lines>,
    lines_held: usize,
    /// By folder below the sink's own.
    open: BTreeMap<String, OpenFile>,
    /// Closed since the last checkpoint.
    closed: Vec<Closed>,
    commits: PendingCommits,
    /// The last barrier, and its time; at first that of the checkpoint which the run goes on from.
    barrier: BarrierNumber,
    now_us: i64,
    memory: Charge,
    memory_max: usize,
}

/// A file that can't be seen yet.
struct OpenFile {
    target: Target,
    encoder: FileEncoder,
    written: u64,
    opened_us: i64,
    /// What it holds in memory, bytes.
    held: usize,
}

impl FileSink {
    /// A sink for each subtask. What earlier runs left that is not in the checkpoint is taken back with the first one that follows. Waits for disk.
    pub fn open_all(config: FileConfig, context: &SinkContext<'_>) -> Result<Vec<OpenedSink>> {
        config.check_sink(context.schema, context.changelog)?;
        let (job, depth) = (context.job, config.partition_by.len());
        let place = SinkPlace::new(config.path.clone(), depth, context.engine, job.id, &job.name, context.run);
        let objects = match &config.objects {
            Some(objects) => Some((context.committer.register_objects(job.id, || objects.open())?, &objects.url)),
            None => None,
        };
        let (barrier, restored): (BarrierNumber, &[PendingCommit]) = match &context.restored {
            Some(restored) => (restored.barrier, &restored.commits),
            None => (0, &[]),
        };
        let first = context.restored.is_none().then_some(context.descends_from.as_ref());
        let left_behind = match &objects {
            Some((objects, url)) => {
                context.committer.begin_uploads(job.id, objects, restored)?;
                place.prepare_objects(objects, first)?;
                place.left_behind_in_store(objects, url, barrier)?
            }
            None => {
                context.committer.register(job.id, place.hidden_files());
                place.prepare(context.files, first)?;
                place.left_behind(context.files, barrier, restored)?
            }
        };
        let commits: Vec<PendingCommits> = (0..context.parallelism).map(|_| PendingCommits::new(job.id)).collect();
        if let Some(first) = commits.first() {
            first.restore(barrier, restored.to_vec());
            let visible = left_behind.iter().filter(|path| path.file_name().is_some_and(|name| !name.as_encoded_bytes().starts_with(b".")));
            for path in visible {
                tracing::warn!(sink = %job.name, file = %path.display(), "a file with rows that are written anew is taken back at the next checkpoint");
            }
            left_behind.into_iter().for_each(|path| first.push(PendingCommit::Remove { path }));
        }
        let mut memory_max = context.memory.limit() / MEMORY_SHARE / context.parallelism.max(1);
        if objects.is_some() {
            // One open file may have most of a part.
            memory_max = memory_max.max(2 * CHUNK_BYTES);
        }
        (commits.into_iter().enumerate())
            .map(|(subtask, commits)| {
                let uploads = objects.as_ref().map(|(objects, _)| {
                    let charge = context.memory.charge();
                    let most = memory_max.clamp(*UNSENT_BYTES.start(), *UNSENT_BYTES.end());
                    Uploads::new(objects.clone(), most, move |bytes| match usize::try_from(bytes) {
                        Ok(kept) => charge.add(kept),
                        Err(_) => charge.subtract(bytes.unsigned_abs()),
                    })
                });
                let sink = FileSink {
                    files: context.files.clone(),
                    uploads,
                    schema: context.schema.clone(),
                    place: place.clone(),
                    subtask,
                    number: 0,
                    partitioner: Partitioner::new(&config.partition_by, context.schema)?,
                    lines: Lines::new(&config.format),
                    lines_held: 0,
                    open: BTreeMap::new(),
                    closed: Vec::new(),
                    commits: commits.clone(),
                    barrier,
                    now_us: 0,
                    memory: context.memory.charge(),
                    memory_max,
                    config: config.clone(),
                };
                Ok(OpenedSink { operator: Box::new(sink), commits: Some(commits) })
            })
            .collect()
    }

    fn open(&mut self, folder: &str) -> Result<OpenFile> {
        let folder = self.place.folder(folder);
        self.number += 1;
        let encoder = FileEncoder::new(&self.config.format, &self.schema, self.lines.as_ref())?;
        let tail = self.place.tail(self.subtask, self.number, encoder.extension());
        let target = match &self.uploads {
            Some(uploads) => Target::object(uploads, self.place.visible(&folder, &tail, self.barrier + 1))?,
            None => {
                self.files.create_dir(&folder)?;
                let file = self.files.append(&self.place.hidden(&folder, &tail))?;
                Target::File { file, folder, tail }
            }
        };
        let mut opened = OpenFile { target, encoder, written: 0, opened_us: self.now_us, held: 0 };
        opened.measure(&self.memory);
        Ok(opened)
    }

    fn write(&mut self, folder: &str, batch: &Batch) -> Result<()> {
        if let Some(lines) = &mut self.lines {
            lines.encode(batch)?;
        }
        self.measure_lines();
        let most = if self.uploads.is_some() { self.config.roll_size.min(PARTS_MOST * CHUNK_BYTES as u64) } else { self.config.roll_size };
        let mut row = 0;
        while row < batch.num_rows() {
            if !self.open.contains_key(folder) {
                if self.open.len() >= OPEN_FILES_MAX {
                    self.close_all()?;
                }
                let opened = self.open(folder)?;
                self.open.insert(folder.to_string(), opened);
            }
            let Some(open) = self.open.get_mut(folder) else { return Err(Error::internal("a file was not opened")) };
            let rows = self.lines.as_ref().map_or(Rows::Batch(batch), Rows::Lines);
            row = open.encoder.encode(rows, row, open.written, most)?;
            open.write(WRITE_BYTES)?;
            open.measure(&self.memory);
            if open.written + open.encoder.expected_bytes() as u64 >= most {
                self.close(folder)?;
            }
        }
        if self.memory.bytes() > self.memory_max {
            if let Some(lines) = &mut self.lines {
                lines.let_go();
            }
            self.measure_lines();
            for open in self.open.values_mut() {
                open.encoder.let_go()?;
                open.write(1)?;
                open.measure(&self.memory);
            }
        }
        // What files hold however little is in them.
        if self.memory.bytes() > self.memory_max && self.open.len() > 1 { self.close_all() } else { Ok(()) }
    }

    /// Counts what the lines hold.
    fn measure_lines(&mut self) {
        let held = self.lines.as_ref().map_or(0, Lines::memory_bytes);
        recount(&self.memory, self.lines_held, held);
        self.lines_held = held;
    }

    /// Closes the file in `folder`, to be committed with the next checkpoint.
    fn close(&mut self, folder: &str) -> Result<()> {
        let Some(open) = self.open.remove(folder) else { return Ok(()) };
        self.memory.subtract(open.held);
        self.closed.push(open.close()?);
        Ok(())
    }

    /// Closes every open file.
    fn close_all(&mut self) -> Result<()> {
        let folders: Vec<String> = self.open.keys().cloned().collect();
        folders.iter().try_for_each(|folder| self.close(folder))
    }

    /// Everything that is closed goes with the checkpoint at `barrier`.
    fn commit(&mut self, barrier: BarrierNumber) {
        for closed in self.closed.drain(..) {
            match closed {
                Closed::File { folder, tail } => self.commits.push(self.place.commit(&folder, &tail, barrier)),
                Closed::Object { target, upload } => {
                    self.commits.push_upload(PendingUpload { target, record: self.place.record(barrier), upload });
                }
            }
        }
    }
}

/// Counts `now` bytes in place of `before`.
fn recount(memory: &Charge, before: usize, now: usize) {
    memory.add(now.saturating_sub(before));
    memory.subtract(before.saturating_sub(now));
}

impl OpenFile {
    /// Writes what is ready, where that is at least `least` bytes.
    fn write(&mut self, least: usize) -> Result<()> {
        if self.encoder.ready_bytes() >= least {
            let bytes = self.encoder.take_bytes();
            self.target.append(&bytes)?;
            self.written += bytes.len() as u64;
        }
        Ok(())
    }

    /// Says in `memory` what it holds now.
    fn measure(&mut self, memory: &Charge) {
        let now = self.encoder.memory_bytes() + self.target.memory_bytes();
        recount(memory, self.held, now);
        self.held = now;
    }

    fn close(mut self) -> Result<Closed> {
        self.encoder.finish()?;
        self.write(1)?;
        self.target.close()
    }
}

impl Operator for FileSink {
    fn process(&mut self, _input: usize, batch: Batch, _out: &mut dyn Output) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        in_place(|| {
            let parts = self.partitioner.split(batch)?;
            parts.iter().try_for_each(|(folder, rows)| self.write(folder, rows))
        })
    }

    fn on_barrier(&mut self, barrier: &Barrier, _out: &mut dyn Output) -> Result<()> {
        (self.barrier, self.now_us) = (barrier.number, barrier.time_us);
        if barrier.checkpoint {
            in_place(|| self.close_all())?;
            self.commit(barrier.number);
            return Ok(());
        }
        let Some(interval_us) = self.config.roll_interval.map(|interval| interval.as_micros() as i64) else { return Ok(()) };
        let due: Vec<String> =
            self.open.iter().filter(|(_, open)| self.now_us - open.opened_us >= interval_us).map(|(folder, _)| folder.clone()).collect();
        due.iter().try_for_each(|folder| in_place(|| self.close(folder)))
    }

    fn backlog(&mut self) -> Option<BoxFuture<'static, Result<()>>> {
        let uploads = self.uploads.as_ref().filter(|uploads| uploads.is_full())?;
        Some(uploads.clone().room().boxed())
    }
}
