//! The thread that writes the log: group commit.
//!
//! It takes everything that was appended while it was busy, writes it at once, fsyncs once, and then, commit by commit in order, lets the stored tables
//! take it in, moves the end and acknowledges.
//!
//! # Invariants
//! - What is acknowledged was covered by an fsync that succeeded.
//! - When a write or an fsync fails, its commits fail and the file is cut back to what was fsynced before, durably. Pages behind that place are never
//!   relied on again: a second fsync after one that failed says nothing about them. If cutting fails, nothing more is written.
//! - A commit that does not fit the catalog before it is refused before it is written: what is in the log can always be replayed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;
use weir_catalog::{Catalog, Error, Object, Result, SqlState};

use super::record::{self, Unsealed};
use super::segment::{self, HEADER_BYTES};
use super::{Applier, Changes, Commit, LogEnd, SegmentEntry, Shared};
use crate::seams::faults::{self, Fault};
use crate::seams::files::{AppendFile, Files};
use crate::stream::CommitSeq;

/// Bytes that one fsync covers at most, unless a single commit is longer.
const BATCH_BYTES: usize = 32 << 20;

/// A commit to write.
pub(super) struct Request {
    pub(super) record: Unsealed,
    pub(super) changes: Changes,
    pub(super) tag: u64,
    pub(super) done: oneshot::Sender<Result<CommitSeq>>,
}

impl Request {
    fn answer(self, answer: Result<CommitSeq>) {
        // Who no longer waits does not need the answer.
        drop(self.done.send(answer));
    }
}

/// Commits that wait for the thread.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
    applier: Mutex<Option<Box<dyn Applier>>>,
}

#[derive(Default)]
struct QueueState {
    requests: VecDeque<Request>,
    stopping: bool,
    /// Why nothing is written any more.
    broken: Option<Error>,
}

impl Queue {
    pub(super) fn push(&self, request: Request) {
        let mut state = self.state.lock();
        if let Some(error) = &state.broken {
            let error = error.clone();
            drop(state);
            return request.answer(Err(error));
        }
        if state.stopping {
            drop(state);
            return request.answer(Err(stopped()));
        }
        state.requests.push_back(request);
        self.changed.notify_one();
    }

    pub(super) fn set_applier(&self, applier: Box<dyn Applier>) {
        *self.applier.lock() = Some(applier);
    }

    /// What waits, as much as one fsync should cover. `None`: the end.
    fn take(&self) -> Option<Vec<Request>> {
        let mut state = self.state.lock();
        while state.requests.is_empty() {
            if state.stopping {
                return None;
            }
            self.changed.wait(&mut state);
        }
        let mut bytes = 0;
        let mut count = 0;
        for request in &state.requests {
            bytes += request.record.len();
            if count > 0 && bytes > BATCH_BYTES {
                break;
            }
            count += 1;
        }
        Some(state.requests.drain(..count).collect())
    }

    /// Tells of commits that left nothing behind.
    fn refused(&self, tags: impl Iterator<Item = u64>) {
        if let Some(applier) = &mut *self.applier.lock() {
            tags.filter(|tag| *tag != 0).for_each(|tag| applier.refused(tag));
        }
    }

    fn stop(&self) {
        self.state.lock().stopping = true;
        self.changed.notify_one();
    }

    /// Refuses everything from now on, and what waits.
    fn break_with(&self, error: &Error) {
        let requests = {
            let mut state = self.state.lock();
            state.broken = Some(error.clone());
            std::mem::take(&mut state.requests)
        };
        for request in requests {
            request.answer(Err(error.clone()));
        }
    }
}

/// What who asks gets when the log is being closed.
pub(super) fn stopped() -> Error {
    Error::new(SqlState::ADMIN_SHUTDOWN, "the engine log is being closed")
}

/// Ends the thread when the last handle is gone.
pub(super) struct WriterThread {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for WriterThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WriterThread")
    }
}

impl Drop for WriterThread {
    fn drop(&mut self) {
        self.shared.queue.stop();
        let Some(thread) = self.thread.lock().take() else { return };
        // The applier may have held the last handle.
        if thread.thread().id() != std::thread::current().id() {
            // A panic of the thread has been printed by it.
            drop(thread.join());
            // Readers may outlive the log; what the applier holds (the stored tables' database) must not.
            *self.shared.queue.applier.lock() = None;
        }
    }
}

/// The file being written.
struct OpenSegment {
    file: Box<dyn AppendFile>,
    /// Bytes in the file, the mark at the end included.
    len: u64,
    /// Bytes that were fsynced: where a failed write is cut back to.
    durable_len: u64,
}

/// The owner of the log's files.
pub(super) struct Writer {
    shared: Arc<Shared>,
    segment: OpenSegment,
    end: CommitSeq,
    catalog: Arc<Catalog>,
}

impl Writer {
    /// Opens the last segment, of which `open_segment` says the length that holds records and whether something behind it is to be cut; makes the
    /// first one where there is none. Afterwards everything that was found is durable.
    pub(super) fn open(shared: Arc<Shared>, open_segment: Option<(u64, bool)>) -> Result<Writer> {
        let LogEnd { seq: end, catalog } = shared.end.borrow().clone();
        let last = shared.segments.read().last().map(|segment| segment.first);
        let segment = match (last, open_segment) {
            (Some(first), Some((len, cut))) => {
                let path = segment::path(&shared.log_dir, first);
                let mut file = shared.files.append(&path)?;
                if cut {
                    file.truncate(len)?
                } else {
                    file.sync()?
                }
                shared.files.sync_dir(&shared.log_dir)?;
                OpenSegment { file, len, durable_len: len }
            }
            _ => {
                let segment = create_segment(&*shared.files, &shared, end + 1)?;
                let starts_at = shared.total_bytes.fetch_add(segment.len, Ordering::SeqCst);
                shared.segments.write().push(SegmentEntry { first: end + 1, starts_at });
                segment
            }
        };
        let mut writer = Writer { shared, segment, end, catalog };
        if writer.segment.len > HEADER_BYTES as u64 {
            writer.write_mark()?;
        }
        Ok(writer)
    }

    /// Starts the thread.
    pub(super) fn start(mut self) -> Result<WriterThread> {
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new()
            .name("engine-log".to_string())
            .spawn(move || self.run())
            .map_err(|e| Error::io("start the thread of the engine log", &e))?;
        Ok(WriterThread { shared, thread: Mutex::new(Some(thread)) })
    }

    fn run(&mut self) {
        while let Some(requests) = self.shared.clone().queue.take() {
            if let Err(error) = self.commit(requests) {
                tracing::error!(%error, "the engine log takes no more writes");
                self.shared.queue.break_with(&error);
            }
        }
    }

    /// Writes `requests`, as far as they fit the catalog, and answers them. An error: nothing can be written any more.
    fn commit(&mut self, requests: Vec<Request>) -> Result<()> {
        let mut accepted: Vec<(Request, Arc<Catalog>)> = Vec::with_capacity(requests.len());
        let mut catalog = self.catalog.clone();
        for request in requests {
            match next_catalog(&catalog, &request.changes) {
                Ok(next) => {
                    catalog = next.clone();
                    accepted.push((request, next));
                }
                Err(error) => {
                    self.shared.queue.refused(std::iter::once(request.tag));
                    request.answer(Err(error));
                }
            }
        }
        if accepted.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        if accepted.len() > 1 {
            bytes.reserve_exact(accepted.iter().map(|(request, _)| request.record.len()).sum());
        }
        let mut commits = Vec::with_capacity(accepted.len());
        let mut waiting = Vec::with_capacity(accepted.len());
        for (seq, (request, catalog)) in (self.end + 1..).zip(accepted) {
            let record = record::seal(request.record, seq, self.end);
            commits.push((Arc::new(Commit { seq, changes: request.changes, len: record.len() as u64, tag: request.tag }), catalog));
            // The only one, which may be large, is not copied.
            if bytes.capacity() == 0 {
                bytes = record;
            } else {
                bytes.extend_from_slice(&record);
            }
            waiting.push(request.done);
        }
        if faults::is_planted(Fault::CatalogShownEarly)
            && let Some((_, catalog)) = commits.last()
        {
            self.shared.end.send_replace(LogEnd { seq: self.end, catalog: catalog.clone() });
        }
        let written = self.write(&bytes);
        drop(bytes);
        if let Err(error) = written {
            let broken = self.cut_back(&error).err();
            let answer = broken.clone().unwrap_or(error);
            self.shared.queue.refused(commits.iter().map(|(commit, _)| commit.tag));
            for done in waiting {
                drop(done.send(Err(answer.clone())));
            }
            return broken.map_or(Ok(()), Err);
        }
        let mut failed = None;
        for ((commit, catalog), done) in commits.into_iter().zip(waiting) {
            let seq = commit.seq;
            if failed.is_none() {
                failed = self.publish(commit, catalog).err();
            }
            drop(done.send(failed.clone().map_or(Ok(seq), Err)));
        }
        match failed {
            Some(error) => Err(error),
            None => self.write_mark(),
        }
    }

    /// Returns once `bytes` are durable.
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if self.segment.len >= self.shared.settings.segment_bytes && self.segment.len > HEADER_BYTES as u64 {
            self.roll()?;
        }
        self.segment.file.append(bytes)?;
        if !faults::is_planted(Fault::LogFsyncSkipped) {
            self.segment.file.sync()?;
        }
        self.segment.len += bytes.len() as u64;
        self.segment.durable_len = self.segment.len;
        Ok(())
    }

    /// Goes on in a new segment.
    fn roll(&mut self) -> Result<()> {
        // The mark at its end, so that an older segment is never torn.
        self.segment.file.sync()?;
        self.segment.durable_len = self.segment.len;
        let first = self.end + 1;
        let segment = create_segment(&*self.shared.files, &self.shared, first)?;
        let mut segments = self.shared.segments.write();
        let starts_at = self.shared.total_bytes.fetch_add(segment.len, Ordering::SeqCst);
        segments.push(SegmentEntry { first, starts_at });
        self.segment = segment;
        Ok(())
    }

    /// After a failed write: leaves in the file what was fsynced before.
    fn cut_back(&mut self, cause: &Error) -> Result<()> {
        self.segment.file.truncate(self.segment.durable_len).map_err(|error| {
            Error::new(cause.code().clone(), "the engine log takes no more writes after a failure of its file")
                .with_detail(format!("First: {}. Then, taking it back: {}.", cause.message(), error.message()))
                .with_hint("Every acknowledged commit is safe. Make the disk usable and start weir again.")
        })?;
        self.shared.total_bytes.fetch_sub(self.segment.len - self.segment.durable_len, Ordering::SeqCst);
        self.segment.len = self.segment.durable_len;
        Ok(())
    }

    /// Makes a durable commit visible.
    fn publish(&mut self, commit: Arc<Commit>, catalog: Arc<Catalog>) -> Result<()> {
        let shared = &self.shared;
        let total = shared.total_bytes.fetch_add(commit.len, Ordering::SeqCst) + commit.len;
        if let Some(applier) = &mut *shared.queue.applier.lock() {
            applier.apply(&commit).map_err(|error| {
                Error::new(error.code().clone(), format!("commit {} is durable and could not be shown: {}", commit.seq, error.message()))
                    .with_hint("Start weir again: it takes the commit from its log.")
            })?;
        }
        let seq = commit.seq;
        {
            let mut tail = shared.tail.write();
            tail.bytes += commit.len;
            tail.commits.push_back((commit, total));
            // The newest stays for those who wait for it, even if it is larger than all that is kept.
            tail.trim(shared.settings.tail_bytes, 1);
            let is_large = tail.bytes > shared.settings.tail_bytes;
            shared.large_commit.store(if is_large { seq } else { 0 }, Ordering::SeqCst);
        }
        shared.let_go_of_large_commit();
        self.end = seq;
        self.catalog = catalog.clone();
        shared.end.send_replace(LogEnd { seq, catalog });
        Ok(())
    }

    /// Says in the file that what is before has been fsynced. Nobody waits for it: where it does not fit, it is left out.
    fn write_mark(&mut self) -> Result<()> {
        let mark = record::mark(self.end);
        match self.segment.file.append(&mark) {
            Ok(()) => {
                self.segment.len += mark.len() as u64;
                self.shared.total_bytes.fetch_add(mark.len() as u64, Ordering::SeqCst);
                Ok(())
            }
            Err(error) => self.cut_back(&error),
        }
    }
}

/// Makes the segment that begins with `first`, durably. Whatever an attempt before left of it is replaced.
fn create_segment(files: &dyn Files, shared: &Shared, first: CommitSeq) -> Result<OpenSegment> {
    let path = segment::path(&shared.log_dir, first);
    files.write(&path, &segment::header(first))?;
    files.sync_dir(&shared.log_dir)?;
    let file = files.append(&path)?;
    Ok(OpenSegment { file, len: HEADER_BYTES as u64, durable_len: HEADER_BYTES as u64 })
}

/// The catalog after `changes`, which must fit it.
fn next_catalog(catalog: &Arc<Catalog>, changes: &Changes) -> Result<Arc<Catalog>> {
    let next = if changes.catalog.is_empty() {
        catalog.clone()
    } else {
        let mut next = Catalog::clone(catalog);
        changes.catalog.iter().try_for_each(|change| next.apply(change))?;
        Arc::new(next)
    };
    for change in &changes.tables {
        if !matches!(next.get_id(change.table).map(|object| &**object), Some(Object::StoredTable(_))) {
            return Err(Error::new(SqlState::UNDEFINED_TABLE, "a table that the transaction wrote to no longer exists"));
        }
    }
    Ok(next)
}
