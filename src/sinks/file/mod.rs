//! The `file` connector as sink: CSV, JSON lines, changes in Debezium's form or Parquet, in a folder.
//!
//! A file is written under a hidden name (`.` in front). At a checkpoint barrier all open files are closed and listed in the checkpoint; once that is
//! complete they are renamed. Readers that leave out hidden files, as nearly all do, see a file whole or not at all, and only what a complete
//! checkpoint holds.
//!
//! Names read `<sink>.<engine and job>-<incarnation>-<subtask>-<number>.<format>`. Sorted by name, the files of one subtask are in the order in which they were
//! written, over restarts too; so reading changes in the order of the names never takes a row away before it was added.
//!
//! # Invariants
//! - A row is in exactly one file that becomes visible, whenever and however often the process dies.
//! - A name is used once.
//!
//! | file | is about |
//! | --- | --- |
//! | `encoder` | rows to the bytes of one file |
//! | `partitions` | which rows go into which folder |

mod encoder;
mod partitions;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use arrow::datatypes::SchemaRef;
use weir_catalog::{Error, Result, SqlState};
use xxhash_rust::xxh3::xxh3_64;

use self::encoder::FileEncoder;
use self::partitions::Partitioner;
use super::commit::{PendingCommit, PendingCommits, remove_abandoned};
use super::{OpenedSink, SinkContext};
use crate::operators::{Operator, Output};
use crate::seams::files::{AppendFile, FilesRef};
use crate::seams::spawn::in_place;
use crate::sources::file::FileConfig;
use crate::stream::{Barrier, Batch};

/// A file's bytes are written when so many have gathered.
const WRITE_BYTES: usize = 256 << 10;
/// How many files one subtask has open at a time: beyond that, all are closed.
const OPEN_FILES_MAX: usize = 128;

/// One subtask's part of a `file` sink.
pub struct FileSink {
    config: FileConfig,
    files: FilesRef,
    schema: SchemaRef,
    /// What the names of its files begin with.
    prefix: String,
    number: u64,
    partitioner: Partitioner,
    /// By folder below the sink's own.
    open: BTreeMap<String, OpenFile>,
    commits: PendingCommits,
    /// The time of the last barrier.
    now_us: i64,
}

/// A file under its hidden name.
struct OpenFile {
    file: Box<dyn AppendFile>,
    hidden: PathBuf,
    target: PathBuf,
    encoder: FileEncoder,
    written: u64,
    opened_us: i64,
}

impl FileSink {
    /// A sink for each subtask. Removes what runs left behind that ended before a checkpoint. Waits for disk.
    ///
    /// Errors with `55000` where a job begins from nothing although it has written before: its rows would be there twice.
    pub fn open_all(config: FileConfig, context: &SinkContext<'_>) -> Result<Vec<OpenedSink>> {
        let columns: Vec<&str> = context.schema.fields().iter().map(|field| field.name().as_str()).collect();
        config.check_sink(&columns, context.changelog)?;
        let sink = format!("{}.{:08x}", file_name_of(&context.job.name), identity(context.engine, context.job.id));
        let own = format!("{sink}-");
        context.files.create_dir(&config.path)?;
        let restored = context.restored.clone().unwrap_or_default();
        for folder in folders(&config.path, config.partition_by.len())? {
            remove_abandoned(context.files, &folder, &own, &restored)?;
            let has_written = context.files.list(&folder)?.iter().any(|name| name.to_str().is_some_and(|name| name.starts_with(&own)));
            if context.restored.is_none() && has_written {
                return Err(Error::new(
                    SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                    format!("sink \"{}\" has written files and can't begin again from nothing", context.job.name),
                )
                .with_detail(format!("Folder \"{}\" would then hold rows twice.", folder.display()))
                .with_hint("Drop it, remove its files, and create it again."));
            }
        }
        let mut restored = restored;
        (0..context.parallelism)
            .map(|subtask| {
                let commits = PendingCommits::new(std::mem::take(&mut restored));
                let sink = FileSink {
                    files: context.files.clone(),
                    schema: context.schema.clone(),
                    prefix: format!("{own}{}-{subtask:03}", context.incarnation),
                    number: 0,
                    partitioner: Partitioner::new(&config.partition_by, context.schema)?,
                    open: BTreeMap::new(),
                    commits: commits.clone(),
                    now_us: 0,
                    config: config.clone(),
                };
                Ok(OpenedSink { operator: Box::new(sink), commits: Some(commits) })
            })
            .collect()
    }

    fn open(&mut self, folder: &str) -> Result<OpenFile> {
        let path = if folder.is_empty() { self.config.path.clone() } else { self.config.path.join(folder) };
        self.files.create_dir(&path)?;
        self.number += 1;
        let encoder = FileEncoder::new(&self.config.format, &self.schema)?;
        let name = format!("{}-{:06}.{}", self.prefix, self.number, encoder.extension());
        let hidden = path.join(format!(".{name}"));
        let file = self.files.append(&hidden)?;
        Ok(OpenFile { file, hidden, target: path.join(name), encoder, written: 0, opened_us: self.now_us })
    }

    fn write(&mut self, folder: &str, batch: &Batch) -> Result<()> {
        if !self.open.contains_key(folder) {
            if self.open.len() >= OPEN_FILES_MAX {
                self.close_all()?;
            }
            let opened = self.open(folder)?;
            self.open.insert(folder.to_string(), opened);
        }
        let Some(open) = self.open.get_mut(folder) else { return Err(Error::internal("a file was not opened")) };
        open.encoder.encode(batch)?;
        open.write(WRITE_BYTES)?;
        if open.written + open.encoder.ready_bytes() as u64 >= self.config.roll_size
            && let Some(open) = self.open.remove(folder)
        {
            self.commits.push(open.close()?);
        }
        Ok(())
    }

    /// Closes every open file, to be committed with the checkpoint at hand or the next one.
    fn close_all(&mut self) -> Result<()> {
        for (_, open) in std::mem::take(&mut self.open) {
            self.commits.push(open.close()?);
        }
        Ok(())
    }
}

impl OpenFile {
    /// Writes what is ready, where that is at least `least` bytes.
    fn write(&mut self, least: usize) -> Result<()> {
        if self.encoder.ready_bytes() >= least {
            let bytes = self.encoder.take_bytes();
            self.file.append(&bytes)?;
            self.written += bytes.len() as u64;
        }
        Ok(())
    }

    fn close(mut self) -> Result<PendingCommit> {
        self.encoder.finish()?;
        self.write(1)?;
        Ok(PendingCommit::File { hidden: self.hidden, target: self.target })
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
        self.now_us = barrier.time_us;
        if barrier.checkpoint {
            return in_place(|| self.close_all());
        }
        let Some(interval_us) = self.config.roll_interval.map(|interval| interval.as_micros() as i64) else { return Ok(()) };
        let due: Vec<String> =
            self.open.iter().filter(|(_, open)| self.now_us - open.opened_us >= interval_us).map(|(folder, _)| folder.clone()).collect();
        for folder in due {
            if let Some(open) = self.open.remove(&folder) {
                self.commits.push(in_place(|| open.close())?);
            }
        }
        Ok(())
    }
}

/// What tells the files of one job of one engine from those of others in the same folder.
fn identity(engine: &Path, job: u64) -> u32 {
    let engine = std::fs::canonicalize(engine).unwrap_or_else(|_| engine.to_path_buf());
    let mut bytes = engine.as_os_str().as_encoded_bytes().to_vec();
    bytes.extend_from_slice(&job.to_le_bytes());
    xxh3_64(&bytes) as u32
}

/// A job's name with nothing in it that means something in a file's name.
fn file_name_of(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect()
}

/// The folder `root` and those below it, `depth` deep.
fn folders(root: &Path, depth: usize) -> Result<Vec<PathBuf>> {
    let failed = |path: &Path, e: &std::io::Error| Error::io(format!("list \"{}\"", path.display()), e);
    let mut found = vec![root.to_path_buf()];
    let mut level = 0..1;
    for _ in 0..depth {
        let end = found.len();
        for at in level {
            let folder = found[at].clone();
            for entry in std::fs::read_dir(&folder).map_err(|e| failed(&folder, &e))? {
                let entry = entry.map_err(|e| failed(&folder, &e))?;
                if entry.file_type().map_err(|e| failed(&entry.path(), &e))?.is_dir() {
                    found.push(entry.path());
                }
            }
        }
        level = end..found.len();
    }
    Ok(found)
}
