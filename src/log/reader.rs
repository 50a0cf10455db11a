//! Reading commits from any place on: recent ones from memory, older ones from the files.
//!
//! # Invariants
//! - A reader sees exactly the commits that are durable and visible, each once, in order.
//! - What a reader has not yet read is not dropped from the log.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;
use weir_catalog::{Error, Result, SqlState};

use super::record::{self, RecordKind};
use super::segment::{self, HEADER_BYTES};
use super::{Commit, LogEnd, ReaderPosition, Shared};
use crate::stream::CommitSeq;

/// Commits from some place on. One owner; any thread.
#[derive(Debug)]
pub struct LogReader {
    shared: Arc<Shared>,
    /// The last commit that was read.
    after: CommitSeq,
    position: Arc<ReaderPosition>,
    buffer: Option<SegmentBuffer>,
    end: watch::Receiver<LogEnd>,
}

/// A segment's content as of some moment.
struct SegmentBuffer {
    first: CommitSeq,
    starts_at: u64,
    path: PathBuf,
    bytes: Vec<u8>,
    /// Where the next record begins.
    at: usize,
    /// What is behind this commit had not been durable when the bytes were read, and may not be what is there now.
    durable: CommitSeq,
}

impl std::fmt::Debug for SegmentBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SegmentBuffer").field("path", &self.path).field("at", &self.at).finish_non_exhaustive()
    }
}

impl LogReader {
    pub(super) fn open(shared: Arc<Shared>, after: CommitSeq) -> Result<LogReader> {
        let end = shared.end.subscribe();
        let last = end.borrow().seq;
        if after > last {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("the engine log ends at commit {last}, before commit {after}"),
            ));
        }
        let position = Arc::new(ReaderPosition { seq: AtomicU64::new(after), bytes: AtomicU64::new(0) });
        {
            // Whoever drops segments holds this lock, and looks at the readers under it.
            let segments = shared.segments.read();
            let first = segments.first().map_or(1, |segment| segment.first);
            if after + 1 < first {
                return Err(Error::new(
                    SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                    format!("the engine log begins at commit {first}: commits from {} on are no longer in it", after + 1),
                ));
            }
            let tail = shared.tail.read();
            let bytes = match tail.commits.front() {
                Some((commit, _)) if after >= commit.seq => tail.commits.get((after - commit.seq) as usize).map(|(_, bytes)| *bytes),
                _ if after == last => Some(shared.total_bytes.load(Ordering::SeqCst)),
                _ => segments.iter().rev().find(|segment| segment.first <= after + 1).map(|segment| segment.starts_at),
            };
            position.bytes.store(bytes.unwrap_or(0), Ordering::SeqCst);
            shared.readers.lock().push(position.clone());
        }
        Ok(LogReader { shared, after, position, buffer: None, end })
    }

    /// The last commit that was read.
    pub fn position(&self) -> CommitSeq {
        self.after
    }

    /// The next commit, if there is one. Errors with `XX001` where the files are damaged, `58030` where they can't be read.
    pub fn try_next(&mut self) -> Result<Option<Arc<Commit>>> {
        self.next_through(CommitSeq::MAX)
    }

    /// The next commit, if there is one and it is not after `cut`.
    pub fn next_through(&mut self, cut: CommitSeq) -> Result<Option<Arc<Commit>>> {
        let end = self.end.borrow().seq;
        if self.after >= end.min(cut) {
            return Ok(None);
        }
        let (commit, bytes) = match self.next_in_tail() {
            Some(found) => {
                self.buffer = None;
                found
            }
            None => self.next_in_files(end)?,
        };
        self.moved_to(commit.seq, bytes);
        Ok(Some(commit))
    }

    /// Waits until there is a next commit.
    pub async fn wait(&mut self) {
        let after = self.after;
        // The sender lives as long as `shared`, which is held here.
        let _ = self.end.wait_for(|end| end.seq > after).await;
    }

    fn moved_to(&mut self, seq: CommitSeq, bytes: u64) {
        self.after = seq;
        self.position.seq.store(seq, Ordering::SeqCst);
        self.position.bytes.store(bytes, Ordering::SeqCst);
        if self.shared.waiting_for_readers.load(Ordering::SeqCst) > 0 {
            self.shared.reader_moved.notify_waiters();
        }
        self.shared.let_go_of_large_commit();
    }

    fn next_in_tail(&self) -> Option<(Arc<Commit>, u64)> {
        let tail = self.shared.tail.read();
        let first = tail.commits.front()?.0.seq;
        let place = (self.after + 1).checked_sub(first)?;
        tail.commits.get(place as usize).cloned()
    }

    fn next_in_files(&mut self, end: CommitSeq) -> Result<(Arc<Commit>, u64)> {
        let wanted = self.after + 1;
        loop {
            let fresh = self.turn_to(wanted, end)?;
            let Some(buffer) = &mut self.buffer else {
                return Err(Error::internal(format!("no segment of the engine log has commit {wanted}")));
            };
            while buffer.at < buffer.bytes.len() {
                let at = buffer.at;
                let record = match record::parse(&buffer.bytes[at..]) {
                    Ok(record) => record,
                    Err(why) => {
                        return Err(segment::corrupted(
                            &buffer.path,
                            at,
                            format_args!("the record that belongs there can't be read: {why}"),
                        ));
                    }
                };
                buffer.at += record.len;
                if record.kind == RecordKind::Mark || record.seq < wanted {
                    continue;
                }
                if record.seq != wanted {
                    return Err(segment::corrupted(&buffer.path, at, format_args!("commit {} stands where {wanted} belongs", record.seq)));
                }
                let commit = record::decode_commit(&record).map_err(|e| segment::unreadable(&buffer.path, at, &e))?;
                return Ok((Arc::new(commit), buffer.starts_at + buffer.at as u64));
            }
            if fresh {
                return Err(segment::corrupted(&buffer.path, buffer.at, format_args!("commit {wanted} is missing")));
            }
            // What was read before ends here.
            self.buffer = None;
        }
    }

    /// Sees to it that the buffer is of the segment with `wanted`, and was read when that commit was durable. Returns whether it was read just now.
    fn turn_to(&mut self, wanted: CommitSeq, end: CommitSeq) -> Result<bool> {
        let entry = self.shared.segments.read().iter().rev().find(|segment| segment.first <= wanted).cloned();
        let entry = entry.ok_or_else(|| Error::internal(format!("no segment of the engine log has commit {wanted}")))?;
        if self.buffer.as_ref().is_some_and(|buffer| buffer.first == entry.first && buffer.durable >= wanted) {
            return Ok(false);
        }
        let at = self.buffer.as_ref().filter(|buffer| buffer.first == entry.first).map_or(HEADER_BYTES, |buffer| buffer.at);
        let path = segment::path(&self.shared.log_dir, entry.first);
        let bytes = self.shared.files.read(&path)?;
        self.buffer = Some(SegmentBuffer { first: entry.first, starts_at: entry.starts_at, path, bytes, at, durable: end });
        Ok(true)
    }
}

impl Drop for LogReader {
    fn drop(&mut self) {
        self.shared.readers.lock().retain(|position| !Arc::ptr_eq(position, &self.position));
        self.shared.let_go_of_large_commit();
        if self.shared.waiting_for_readers.load(Ordering::SeqCst) > 0 {
            self.shared.reader_moved.notify_waiters();
        }
    }
}
