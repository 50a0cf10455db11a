//! The engine log and the stored tables on it.
//!
//! ```text
//!  Transaction ─▶ Tables::commit ─▶ EngineLog::append ─▶ writer thread ─▶ log/<first commit>.log
//!                  (40001?)                                │ fdatasync
//!                                                          ▼
//!                               memory tail, catalog, rows of stored tables, then the acknowledgement
//!                                    │                          │
//!                                    ▼                          ▼
//!                          LogReader, TableReader         TablesSnapshot
//! ```
//!
//! | file | is about |
//! | --- | --- |
//! | [`record`] | a commit as bytes |
//! | [`segment`] | the files of the log |
//! | [`writer`] | the thread that writes them: group commit |
//! | [`reader`] | commits from any place on, from memory or from the files |
//! | [`snapshot`] | the catalog as of one commit, so that old segments can go |
//! | [`layout`] | the rows of stored tables as keys and values |
//! | [`tables`] | the rows of stored tables as of any recent commit |
//! | [`scan`] | reading them |
//! | [`net`] | what many commits did to a table in all |
//! | [`transaction`] | reads and writes that become one commit; `writes` holds them, `conflicts` finds who came too late |
//!
//! # Invariants
//! - A commit's place in the log is its commit sequence; sequences have no gap, and the order of commits is the order of sequences.
//! - Nobody sees a commit before it is durable, and nobody is told that it is durable before everybody can see it.
//! - After a write or fsync that failed, the log on disk ends with the last commit that was acknowledged, or nothing more is written.

mod conflicts;
pub mod layout;
pub mod net;
pub mod reader;
pub mod record;
pub mod scan;
pub mod segment;
pub mod snapshot;
pub mod tables;
pub mod transaction;
pub mod writer;
mod writes;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use arrow::array::UInt64Array;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, oneshot, watch};
use weir_catalog::{Catalog, CatalogChange, Error, ObjectId, Result};

pub use net::{NetChanges, Room};
pub use reader::LogReader;
pub use scan::{ROW_KEY_COLUMN, ScanOptions, TableScan, TablesSnapshot};
pub use tables::{StatementLock, TableReader, Tables, TablesCheckpoint, TablesSettings};
pub use transaction::Transaction;

use crate::seams::faults::{self, Fault};
use crate::seams::files::FilesRef;
use crate::stream::{Batch, CommitSeq};
use writer::{Queue, Writer, WriterThread};

/// What one commit does to one stored table.
#[derive(Clone, Debug)]
pub struct TableChange {
    pub table: ObjectId,
    /// The schema of `batch`, among those that the table has had; the first is 1.
    pub schema_number: u32,
    /// All columns of the table. Changes are net: for each row's key one `-U` directly before its `+U`, or one `+I`, or one `-D`.
    pub batch: Batch,
    /// For a table without primary key, what identifies each row.
    pub row_ids: Option<UInt64Array>,
}

/// What a commit does.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// To the catalog, in this order.
    pub catalog: Vec<CatalogChange>,
    /// To stored tables, at most one entry a table.
    pub tables: Vec<TableChange>,
}

impl Changes {
    /// Whether it does nothing.
    pub fn is_empty(&self) -> bool {
        self.catalog.is_empty() && self.tables.is_empty()
    }
}

/// A durable commit.
#[derive(Clone, Debug)]
pub struct Commit {
    pub seq: CommitSeq,
    pub changes: Changes,
    /// The bytes it takes in the log.
    pub len: u64,
    /// What [`Tables`] knows it by; 0 if nothing.
    pub(crate) tag: u64,
}

/// How the log is kept.
#[derive(Clone, Copy, Debug)]
pub struct LogSettings {
    /// A segment that has become longer gets a successor, bytes.
    pub segment_bytes: u64,
    /// Recent commits that are kept in memory for readers, bytes of log.
    pub tail_bytes: u64,
    /// How far the slowest reader may be behind before [`EngineLog::admit`] waits, bytes of log. `log_limit`.
    pub limit_bytes: u64,
}

impl Default for LogSettings {
    fn default() -> LogSettings {
        LogSettings { segment_bytes: 16 << 20, tail_bytes: 32 << 20, limit_bytes: 1 << 30 }
    }
}

/// The end of the log as everybody sees it: durable, and taken in by the stored tables.
#[derive(Clone, Debug)]
pub struct LogEnd {
    /// The last commit; 0 if there is none.
    pub seq: CommitSeq,
    /// The catalog after it.
    pub catalog: Arc<Catalog>,
}

/// What [`EngineLog::open`] found.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The catalog at `end`.
    pub catalog: Arc<Catalog>,
    /// The commit of the catalog snapshot that it was built from; 0 if there is none.
    pub catalog_seq: CommitSeq,
    /// The first commit that the log still has (`end + 1` if it has none).
    pub first: CommitSeq,
    /// The last commit.
    pub end: CommitSeq,
    /// What was cut from the end of the log, bytes: commits that were being written when the power went off, acknowledged to nobody.
    pub cut_bytes: u64,
}

/// What the log's writer thread tells of each commit before it answers.
pub trait Applier: Send {
    /// The next commit is durable. After an error the log takes no more commits.
    fn apply(&mut self, commit: &Arc<Commit>) -> Result<()>;
    /// The commit that was appended with this tag left nothing behind.
    fn refused(&mut self, tag: u64);
}

/// A commit that is ready to be written.
#[derive(Debug)]
pub(crate) struct PreparedCommit {
    changes: Changes,
    record: record::Unsealed,
}

/// A segment that exists, for readers and for dropping.
#[derive(Clone, Debug)]
struct SegmentEntry {
    first: CommitSeq,
    /// The bytes of log before it, since the log was opened.
    starts_at: u64,
}

/// Recent commits.
#[derive(Debug, Default)]
struct Tail {
    /// Each with the bytes of log up to its end.
    commits: VecDeque<(Arc<Commit>, u64)>,
    bytes: u64,
}

impl Tail {
    /// Lets go of the oldest while they are more than `most_bytes`, except for the newest `keep`.
    fn trim(&mut self, most_bytes: u64, keep: usize) {
        while self.bytes > most_bytes && self.commits.len() > keep {
            if let Some((oldest, _)) = self.commits.pop_front() {
                self.bytes -= oldest.len;
            }
        }
    }
}

/// How far a reader has come.
#[derive(Debug)]
struct ReaderPosition {
    seq: AtomicU64,
    bytes: AtomicU64,
}

/// What the handles, the readers and the writer thread share.
pub(crate) struct Shared {
    files: FilesRef,
    log_dir: PathBuf,
    catalog_dir: PathBuf,
    settings: LogSettings,
    queue: Queue,
    end: watch::Sender<LogEnd>,
    tail: RwLock<Tail>,
    /// The commit that the tail holds although it is larger than all that is kept; 0 if there is none.
    large_commit: AtomicU64,
    segments: RwLock<Vec<SegmentEntry>>,
    /// Bytes of log up to the end.
    total_bytes: AtomicU64,
    next_row_id: AtomicU64,
    readers: Mutex<Vec<Arc<ReaderPosition>>>,
    reader_moved: Notify,
    waiting_for_readers: AtomicUsize,
    /// The newest durable snapshot of the catalog, and the lock for writing one or dropping segments.
    catalog_snapshot: Mutex<CommitSeq>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineLog").field("dir", &self.log_dir).field("end", &self.end.borrow().seq).finish_non_exhaustive()
    }
}

/// The write-ahead log of all stored tables and the catalog. Cheap to clone; the last one that is dropped ends the writer thread.
#[derive(Clone, Debug)]
pub struct EngineLog {
    shared: Arc<Shared>,
    _writer: Arc<WriterThread>,
}

/// The answer to an append: the commit's sequence once it is durable and visible. Dropping it does not take the commit back.
#[derive(Debug)]
pub struct PendingCommit(oneshot::Receiver<Result<CommitSeq>>);

impl PendingCommit {
    /// Waits on this thread. Not to be called on a runtime's worker.
    pub fn wait(self) -> Result<CommitSeq> {
        self.0.blocking_recv().unwrap_or_else(|_| Err(writer::stopped()))
    }
}

impl Future for PendingCommit {
    type Output = Result<CommitSeq>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<CommitSeq>> {
        Pin::new(&mut self.0).poll(context).map(|answer| answer.unwrap_or_else(|_| Err(writer::stopped())))
    }
}

impl EngineLog {
    /// Opens the log in the data folder `dir`, making it if there is none, and verifies every byte of it.
    ///
    /// What a power loss tore at its end is cut off. Anything else that is not as it was written is `XX001` with file and byte, and what a newer version
    /// wrote `0A000`.
    pub fn open(files: FilesRef, dir: &Path, settings: LogSettings) -> Result<(EngineLog, Recovered)> {
        let log_dir = dir.join("log");
        let catalog_dir = dir.join("catalog");
        files.create_dir(&log_dir)?;
        files.create_dir(&catalog_dir)?;
        let snapshot = snapshot::load(&*files, &catalog_dir)?;
        let mut catalog = snapshot.catalog;
        let mut next_row_id = snapshot.next_row_id;

        let mut firsts = segment::list(&*files, &log_dir)?;
        let mut segments = Vec::new();
        let mut total_bytes = 0;
        let mut cut_bytes = 0;
        let mut end = None;
        let mut open_segment = None;
        for (i, &first) in firsts.clone().iter().enumerate() {
            let path = segment::path(&log_dir, first);
            let is_last = i + 1 == firsts.len();
            if first == 0 || end.is_some_and(|end: CommitSeq| end + 1 != first) {
                return Err(missing_commits(&path, end.map_or(1, |end| end + 1), first.saturating_sub(1)));
            }
            let bytes = files.read(&path)?;
            let scanned = segment::scan(&bytes, &path, first, is_last, &mut |record, at| {
                if record.seq > snapshot.seq {
                    let (row_id, changes) = record::decode_catalog_part(record).map_err(|e| segment::unreadable(&path, at, &e))?;
                    next_row_id = next_row_id.max(row_id);
                    for change in &changes {
                        catalog.replay(change).map_err(|e| segment::corrupted(&path, at, e.message()))?;
                    }
                }
                Ok(())
            })?;
            cut_bytes += (bytes.len() - scanned.len) as u64;
            if scanned.len == 0 {
                // The power went off while it was made: nothing was written to it.
                files.remove(&path)?;
                files.sync_dir(&log_dir)?;
                firsts.pop();
                break;
            }
            end = Some(scanned.end);
            segments.push(SegmentEntry { first, starts_at: total_bytes });
            total_bytes += scanned.len as u64;
            open_segment = Some((scanned.len as u64, scanned.len < bytes.len()));
        }
        let first = firsts.first().copied().unwrap_or(snapshot.seq + 1);
        let end = end.unwrap_or(if firsts.is_empty() { 0 } else { first - 1 });
        if first > snapshot.seq + 1 || end < snapshot.seq {
            return Err(missing_commits(&log_dir, snapshot.seq.min(end) + 1, snapshot.seq.max(first - 1)));
        }

        let catalog = Arc::new(catalog);
        let (end_sender, _) = watch::channel(LogEnd { seq: end, catalog: catalog.clone() });
        let shared = Arc::new(Shared {
            files,
            log_dir,
            catalog_dir,
            settings,
            queue: Queue::default(),
            end: end_sender,
            tail: RwLock::default(),
            large_commit: AtomicU64::new(0),
            segments: RwLock::new(segments),
            total_bytes: AtomicU64::new(total_bytes),
            next_row_id: AtomicU64::new(next_row_id),
            readers: Mutex::default(),
            reader_moved: Notify::new(),
            waiting_for_readers: AtomicUsize::new(0),
            catalog_snapshot: Mutex::new(snapshot.seq),
        });
        let writer = Writer::open(shared.clone(), open_segment)?;
        let thread = writer.start()?;
        let recovered = Recovered { catalog, catalog_seq: snapshot.seq, first, end, cut_bytes };
        Ok((EngineLog { shared, _writer: Arc::new(thread) }, recovered))
    }

    /// Has `changes` written as one commit, together with what others append meanwhile. The answer comes when it is durable and visible.
    ///
    /// Fails, and leaves nothing behind, when the changes do not fit the catalog (a name taken, a table gone), when they are too large (`54000`), or
    /// when the disk refuses (`53100`, `58030`). The order of commits is the order of calls.
    pub fn append(&self, changes: Changes) -> PendingCommit {
        match self.prepare(changes) {
            Ok(prepared) => self.append_prepared(prepared, 0),
            Err(error) => {
                let (done, answer) = oneshot::channel();
                // The receiver is in this very function.
                drop(done.send(Err(error)));
                PendingCommit(answer)
            }
        }
    }

    /// Encodes `changes`.
    pub(crate) fn prepare(&self, changes: Changes) -> Result<PreparedCommit> {
        let next_row_id = self.shared.next_row_id.load(Ordering::SeqCst);
        let record = if faults::is_planted(Fault::DropNotLogged) {
            let mut logged = changes.clone();
            logged.catalog.retain(|change| !matches!(change, CatalogChange::Drop(_)));
            record::encode_commit(&logged, next_row_id)?
        } else {
            record::encode_commit(&changes, next_row_id)?
        };
        Ok(PreparedCommit { changes, record })
    }

    /// As [`EngineLog::append`]. The applier is told of the commit with `tag`.
    pub(crate) fn append_prepared(&self, commit: PreparedCommit, tag: u64) -> PendingCommit {
        let (done, answer) = oneshot::channel();
        self.shared.queue.push(writer::Request { record: commit.record, changes: commit.changes, tag, done });
        PendingCommit(answer)
    }

    /// Waits until the slowest reader is at most `log_limit` behind. To be awaited before a commit; dropping it gives up.
    pub async fn admit(&self) {
        let shared = &self.shared;
        while shared.backlog_bytes() > shared.settings.limit_bytes {
            let moved = shared.reader_moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            let _waiting = Waiting::new(&shared.waiting_for_readers);
            if shared.backlog_bytes() <= shared.settings.limit_bytes {
                break;
            }
            moved.await;
        }
    }

    /// How far the slowest reader is behind, bytes of log.
    pub fn backlog_bytes(&self) -> u64 {
        self.shared.backlog_bytes()
    }

    /// Row ids for `count` new rows, never given before and never again: the first of them.
    pub fn allocate_row_ids(&self, count: u64) -> u64 {
        self.shared.next_row_id.fetch_add(count, Ordering::SeqCst)
    }

    /// The last commit that is durable and visible; 0 if there is none.
    pub fn end(&self) -> CommitSeq {
        self.shared.end.borrow().seq
    }

    /// The end with its catalog, of one moment.
    pub fn log_end(&self) -> LogEnd {
        self.shared.end.borrow().clone()
    }

    /// Follows the end.
    pub fn watch_end(&self) -> watch::Receiver<LogEnd> {
        self.shared.end.subscribe()
    }

    /// The catalog at the end.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.shared.end.borrow().catalog.clone()
    }

    /// The first commit that the log still has.
    pub fn first(&self) -> CommitSeq {
        self.shared.segments.read().first().map_or(1, |segment| segment.first)
    }

    /// The bytes that the log takes on disk.
    pub fn bytes(&self) -> u64 {
        let segments = self.shared.segments.read();
        self.shared.total_bytes.load(Ordering::SeqCst) - segments.first().map_or(0, |segment| segment.starts_at)
    }

    /// Reads the commits after `after`. The log is kept from there on until the reader is dropped. Errors with `55000` where it no longer, or not
    /// yet, reaches there.
    pub fn reader(&self, after: CommitSeq) -> Result<LogReader> {
        LogReader::open(self.shared.clone(), after)
    }

    /// Sets what takes in each commit. Commits from before are not given to it: call this before the first append.
    pub fn set_applier(&self, applier: Box<dyn Applier>) {
        self.shared.queue.set_applier(applier);
    }

    /// Makes the catalog at the end durable outside the log, so that the log before it can be dropped. Returns its commit.
    pub fn write_catalog_snapshot(&self) -> Result<CommitSeq> {
        let shared = &self.shared;
        let mut newest = shared.catalog_snapshot.lock();
        // Row ids are given before their commit: read in this order, the number is above those of all commits up to the end.
        let LogEnd { seq, catalog } = self.log_end();
        let next_row_id = shared.next_row_id.load(Ordering::SeqCst);
        if seq > *newest {
            snapshot::write(&*shared.files, &shared.catalog_dir, seq, &catalog, next_row_id)?;
            *newest = seq;
        }
        Ok(*newest)
    }

    /// Drops the segments that hold only commits before `seq`, as far as no reader and no catalog snapshot needs them. Returns how many.
    pub fn truncate_before(&self, seq: CommitSeq) -> Result<usize> {
        let shared = &self.shared;
        let newest = shared.catalog_snapshot.lock();
        let mut dropped = 0;
        loop {
            let first = {
                // A reader that is made meanwhile looks for its segment under the same lock.
                let mut segments = shared.segments.write();
                let needed = seq.min(*newest + 1).min(shared.slowest_reader().map_or(CommitSeq::MAX, |(seq, _)| seq + 1));
                if segments.len() < 2 || segments[1].first > needed {
                    return Ok(dropped);
                }
                segments.remove(0).first
            };
            shared.files.remove(&segment::path(&shared.log_dir, first))?;
            // One by one, so that a power loss leaves no gap.
            shared.files.sync_dir(&shared.log_dir)?;
            dropped += 1;
        }
    }
}

impl Shared {
    /// The least sequence and the least place in bytes among the readers.
    fn slowest_reader(&self) -> Option<(CommitSeq, u64)> {
        let readers = self.readers.lock();
        let seq = readers.iter().map(|reader| reader.seq.load(Ordering::SeqCst)).min()?;
        let bytes = readers.iter().map(|reader| reader.bytes.load(Ordering::SeqCst)).min()?;
        Some((seq, bytes))
    }

    /// Empties the tail once all readers have read the large commit in it.
    fn let_go_of_large_commit(&self) {
        let large = self.large_commit.load(Ordering::SeqCst);
        if large != 0
            && self.slowest_reader().is_none_or(|(seq, _)| seq >= large)
            && self.large_commit.compare_exchange(large, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        {
            self.tail.write().trim(self.settings.tail_bytes, 0);
        }
    }

    fn backlog_bytes(&self) -> u64 {
        // The end first: a reader can only be ahead of what was read before.
        let total = self.total_bytes.load(Ordering::SeqCst);
        self.slowest_reader().map_or(0, |(_, bytes)| total.saturating_sub(bytes))
    }
}

/// Counts who waits, also when the wait is given up.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Waiting<'a> {
        count.fetch_add(1, Ordering::SeqCst);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn missing_commits(path: &Path, from: CommitSeq, to: CommitSeq) -> Error {
    Error::corrupted(format!("the engine log is damaged at \"{}\": commits {from} to {to} are missing", path.display()))
        .with_hint("A file of the data folder was removed. Restore the data folder from a copy.")
}
