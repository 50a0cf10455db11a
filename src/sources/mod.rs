//! Where data enters: the sources.

pub mod connector;
pub mod datagen;
pub mod file;
pub mod nexmark;
pub mod socket;
pub mod splits;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_catalog::{ObjectId, Result};

use self::file::dead_letters::{self, DeadLetters};
pub use self::splits::{SplitPortion, Splits};
use crate::seams::files::FilesRef;
use crate::seams::objects::ObjectUrl;
use crate::sinks::commit::PendingCommits;
use crate::state::memory_pool::{Charge, MemoryPool};
use crate::stream::Batch;

/// A split's place, as it stands in a checkpoint: operator list state.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SplitState {
    /// Which split, e.g. `3` of a generator, a file's path and byte range.
    pub split: String,
    /// Where the next read goes on, in the connector's own form.
    pub offset: String,
}

impl SplitState {
    /// Whether it is an object in an object store, whose offset may name a version: what the first formats of checkpoints, portions and savepoints have not.
    pub fn is_of_object(&self) -> bool {
        ObjectUrl::split(Path::new(&self.split)).is_some()
    }
}

/// What a source has for its reader.
#[derive(Debug)]
pub enum SourceEvent {
    /// Rows.
    Batch(Batch),
    /// Nothing now; ask again after this many microseconds.
    Wait(u64),
    /// Nothing any more.
    End,
}

/// One subtask's part of a connector table. Synchronous: it never waits, so that it can cut at a barrier at once.
pub trait Source: Send {
    /// The next rows, at most about `max_rows`, with just the columns that the plan reads. `now_us` is the engine's time.
    fn poll(&mut self, max_rows: usize, now_us: i64) -> Result<SourceEvent>;
    /// A checkpoint is about to be taken: what the source itself has written goes with it.
    fn prepare_checkpoint(&mut self) -> Result<()> {
        Ok(())
    }
    /// Where each of its splits stands. Several subtasks may have a part of one split.
    fn splits(&self) -> Result<Vec<SplitState>>;
    /// A barrier has come: where each of its splits stands, those that never change again apart. Called once a barrier, in all subtasks of a scan alike.
    fn cut(&mut self) -> Result<Splits> {
        self.splits().map(Splits::from)
    }
    /// Whether each of its splits that `target` names has come at least as far as it says. `target` are the splits of all subtasks of the same table, as
    /// another run of the job gave them; a split that has been read to its end has come as far as it ever can.
    fn has_reached(&self, target: &[SplitState]) -> Result<bool>;
    /// As [`Source::has_reached`], where some of the splits are closed. Asked with the same target until it is true.
    fn has_come_to(&mut self, target: &Splits) -> Result<bool> {
        self.has_reached(&target.open)
    }
    /// How many records it has left out because they could not be read.
    fn bad_records(&self) -> u64 {
        0
    }
}

/// What a job's sources are opened with. The default is for reading without leaving anything behind.
#[derive(Debug)]
pub struct SourceContext {
    /// The longest record, bytes.
    pub max_row_bytes: usize,
    /// What buffers count against; `None` where nobody counts.
    pub memory: Option<Arc<MemoryPool>>,
    /// Where bad records are kept; `None` where nobody keeps them.
    pub dead_letters: Option<DeadLetterContext>,
    /// When the statement began that reads everything at once, in microseconds since 1970; `None` for a job, for which time goes by.
    pub statement_us: Option<i64>,
    /// Whether where the splits stood is what a savepoint says: what there is to read is looked for again. A job that goes on from its own checkpoint has what
    /// it found at its start.
    pub from_savepoint: bool,
}

/// Where a job keeps records that it could not read.
#[derive(Debug)]
pub struct DeadLetterContext {
    pub files: FilesRef,
    /// The folder of all tables' dead letters.
    pub root: PathBuf,
    /// What the names of the files of this run of this job begin with.
    pub prefix: String,
    /// What each subtask has to commit.
    pub commits: Vec<PendingCommits>,
}

impl Default for SourceContext {
    fn default() -> SourceContext {
        SourceContext { max_row_bytes: 16 << 20, memory: None, dead_letters: None, statement_us: None, from_savepoint: false }
    }
}

impl SourceContext {
    /// Counts a buffer, where buffers are counted.
    fn charge(&self) -> Option<Charge> {
        self.memory.as_ref().map(MemoryPool::charge)
    }

    /// Where `subtask` keeps the bad records of `table`.
    fn dead_letters(&self, table: ObjectId, subtask: usize) -> Option<DeadLetters> {
        let context = self.dead_letters.as_ref()?;
        let commits = context.commits.get(subtask)?.clone();
        let folder = dead_letters::folder(&context.root, table);
        Some(DeadLetters::new(context.files.clone(), folder, format!("{}-{subtask}", context.prefix), commits))
    }
}
