//! Moving much: files to objects and back, in chunks, several at a time.
//!
//! The caller's thread reads or writes the files; the chunks travel beside it. A chunk needs a permit from before it is read until it has arrived, so that
//! memory is bounded whatever the number of files, of subtasks and of their transfers.
//!
//! # Invariants
//! - A download takes permits in the order in which it hands chunks on, and waits for one only when it holds none: so two that share them never wait for
//!   each other.
//! - A permit is given back when its chunk is gone, whatever became of who asked for it.
//! - What was uploaded in parts and failed is called off, so that the store does not keep the parts. (After a `kill -9` it does, until the bucket's own rule
//!   for incomplete uploads removes them.)

use std::collections::VecDeque;
use std::future::Future;
use std::io::Read;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use object_store::path::Path as Key;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload};
use parking_lot::{Condvar, Mutex};
use tokio::sync::{mpsc as channel, watch};
use tokio::task::JoinHandle;
use weir_catalog::{Error, Result, SqlState};

use super::{Objects, Outcome, key_of, runtime};

/// The length of a chunk, and the longest object that is uploaded in one piece. S3 takes no parts under 5 MiB but for the last, and no more than 10,000.
pub const CHUNK_BYTES: usize = 8 << 20;
/// The most chunks on their way at a time.
const CHUNKS_MOST: usize = 8;
/// Chunks may hold this part of the memory: one in so many.
const MEMORY_SHARE: usize = 8;
/// How long calling off an upload may take.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often someone who waits for a permit looks whether calls were stopped.
const STOP_POLL: Duration = Duration::from_millis(100);

/// How many chunks may be on their way.
pub struct Permits {
    free: Mutex<usize>,
    freed: Condvar,
    /// Told of the memory that is taken and given back, bytes.
    count: Box<dyn Fn(isize) + Send + Sync>,
}

impl std::fmt::Debug for Permits {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Permits").field("free", &*self.free.lock()).finish_non_exhaustive()
    }
}

/// The right to hold one chunk.
#[derive(Debug)]
struct Permit(Arc<Permits>);

impl Permits {
    /// For a process whose memory is bounded to `memory_bytes`; `count` is told of what is taken and given back.
    pub fn new(memory_bytes: usize, count: impl Fn(isize) + Send + Sync + 'static) -> Arc<Permits> {
        let chunks = (memory_bytes / MEMORY_SHARE / CHUNK_BYTES).clamp(1, CHUNKS_MOST);
        Arc::new(Permits { free: Mutex::new(chunks), freed: Condvar::new(), count: Box::new(count) })
    }

    fn try_take(self: &Arc<Self>) -> Option<Permit> {
        let mut free = self.free.lock();
        *free = free.checked_sub(1)?;
        (self.count)(CHUNK_BYTES as isize);
        Some(Permit(self.clone()))
    }

    /// Waits for one. `None` after `deadline`, or when `is_stopped`.
    fn take(self: &Arc<Self>, deadline: Instant, is_stopped: impl Fn() -> bool) -> Option<Permit> {
        loop {
            if let Some(permit) = self.try_take() {
                return Some(permit);
            }
            if Instant::now() >= deadline || is_stopped() {
                return None;
            }
            let mut free = self.free.lock();
            if *free == 0 {
                self.freed.wait_for(&mut free, STOP_POLL);
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // Given back before someone else takes it, or more than all would be counted.
        (self.0.count)(-(CHUNK_BYTES as isize));
        *self.0.free.lock() += 1;
        self.0.freed.notify_one();
    }
}

/// A piece of a file on its way.
struct Chunk {
    permit: Permit,
    bytes: Bytes,
}

/// A part of an object to be downloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    pub key: String,
    pub from: u64,
    pub to: u64,
    /// How long the whole object must be.
    pub object_bytes: u64,
}

/// A chunk that was asked for. Its permit travels with it, so that it is counted as long as it is there, whatever becomes of who asked.
struct Asked {
    task: JoinHandle<()>,
    answer: mpsc::Receiver<(Permit, Result<Bytes>)>,
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An upload of several objects: they travel while the next ones are read. Once it is dropped, finished or not, nothing of it arrives any more, but for a
/// request that the store has and whose answer is still out: what did not arrive can be removed.
#[derive(Debug)]
pub struct Upload<'a> {
    objects: &'a Objects,
    deadline: Instant,
    given_up: watch::Sender<bool>,
    results: (mpsc::Sender<Result<()>>, mpsc::Receiver<Result<()>>),
    under_way: usize,
}

impl Objects {
    /// Begins an upload.
    pub fn upload(&self) -> Upload<'_> {
        Upload {
            objects: self,
            deadline: Instant::now() + self.timeout(),
            given_up: watch::Sender::new(false),
            results: mpsc::channel(),
            under_way: 0,
        }
    }

    fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    fn no_permit(&self, action: &str, key: &str) -> Error {
        let message = format!("could not {action} \"{}\"", self.url(key));
        if self.is_stopped() {
            Error::new(SqlState::ADMIN_SHUTDOWN, format!("{message}: the server is shutting down"))
        } else {
            Error::new(SqlState::IO_ERROR, message).with_detail("What was on its way before did not arrive in time.")
        }
    }

    /// Downloads `ranges` side by side and hands them to `take`, one after another and in order, with their positions in `ranges`.
    ///
    /// Errors: `XX001` where an object is missing or has another length, what `take` says, and those of the store.
    pub fn download(&self, ranges: &[Range], mut take: impl FnMut(usize, Bytes) -> Result<()>) -> Result<()> {
        let deadline = Instant::now() + self.timeout();
        let mut under_way: VecDeque<Asked> = VecDeque::new();
        let (mut begun, mut taken) = (0, 0);
        while taken < ranges.len() {
            while let Some(range) = ranges.get(begun) {
                let permit = if under_way.is_empty() {
                    let permit = self.permits.take(deadline, || self.is_stopped());
                    Some(permit.ok_or_else(|| self.no_permit("read", &range.key))?)
                } else {
                    self.permits.try_take()
                };
                let Some(permit) = permit else { break };
                let (sender, receiver) = mpsc::channel();
                let (objects, range) = (self.clone(), range.clone());
                let task = runtime()?.spawn(async move {
                    let bytes = objects.get_range(range).await;
                    // Whoever asked may have given up.
                    let _ = sender.send((permit, bytes));
                });
                under_way.push_back(Asked { task, answer: receiver });
                begun += 1;
            }
            let Some(asked) = under_way.pop_front() else { break };
            let (_permit, bytes) = asked.answer.recv().map_err(|_| Error::internal("a request to an object store panicked"))?;
            take(taken, bytes?)?;
            taken += 1;
        }
        Ok(())
    }

    async fn get_range(&self, range: Range) -> Result<Bytes> {
        let damaged = |found: Option<u64>| {
            let error = match found {
                None => Error::corrupted(format!("\"{}\" is missing", self.url(&range.key))),
                Some(found) => Error::corrupted(format!("\"{}\" is damaged", self.url(&range.key)))
                    .with_detail(format!("It has {found} bytes; {} were written.", range.object_bytes)),
            };
            Err(error)
        };
        let (store, path) = (self.store.clone(), key_of(&range.key)?);
        let (from, to, expected) = (range.from, range.to, range.object_bytes);
        let get = {
            let (store, path) = (store.clone(), path.clone());
            async move {
                let found = store.get_opts(&path, object_store::GetOptions::new().with_range(Some(from..to))).await?;
                let size = found.meta.size;
                if size == expected { found.bytes().await.map(Ok) } else { Ok(Err(size)) }
            }
        };
        match self.bounded("read", self.url(&range.key), get).await {
            Ok(Outcome::Done(Ok(bytes))) if bytes.len() as u64 == to - from => Ok(bytes),
            Ok(Outcome::Done(Ok(bytes))) => damaged(Some(from + bytes.len() as u64)),
            Ok(Outcome::Done(Err(size))) => damaged(Some(size)),
            Ok(Outcome::Missing | Outcome::Exists) => damaged(None),
            Err(error) => {
                // A range behind the end is refused in words that differ from store to store.
                let head = self.bounded("read", self.url(&range.key), async move { store.head(&path).await }).await;
                match head {
                    Ok(Outcome::Done(head)) if head.size != expected => damaged(Some(head.size)),
                    _ => Err(error),
                }
            }
        }
    }
}

impl Upload<'_> {
    /// Reads `content` to its end and sends it off as the object `key`, in place of one that has the key. Whether it arrived, [`Upload::finish`] says.
    pub fn put(&mut self, key: &str, content: &mut dyn Read) -> Result<()> {
        let path = key_of(key)?;
        let first = self.read_chunk(key, content)?;
        if first.bytes.len() < CHUNK_BYTES {
            let store = self.objects.store.clone();
            return self.send(key, async move {
                let Chunk { permit: _permit, bytes } = first;
                store.put(&path, PutPayload::from_bytes(bytes)).await.map(drop)
            });
        }
        let (sender, receiver) = channel::unbounded_channel();
        self.send(key, put_parts(self.objects.store.clone(), path, receiver))?;
        let mut chunk = first;
        // It is received as long as the upload goes on; why it does not, its result says.
        while sender.send(Some(chunk)).is_ok() {
            chunk = self.read_chunk(key, content)?;
            if chunk.bytes.is_empty() {
                let _ = sender.send(None);
                break;
            }
        }
        Ok(())
    }

    fn read_chunk(&self, key: &str, content: &mut dyn Read) -> Result<Chunk> {
        let objects = self.objects;
        let permit = objects.permits.take(self.deadline, || objects.is_stopped());
        let permit = permit.ok_or_else(|| objects.no_permit("write", key))?;
        let mut bytes = Vec::new();
        let read = content.take(CHUNK_BYTES as u64).read_to_end(&mut bytes);
        read.map_err(|e| Error::io(format!("read what is to be \"{}\"", objects.url(key)), &e))?;
        Ok(Chunk { permit, bytes: Bytes::from(bytes) })
    }

    fn send(&mut self, key: &str, sending: impl Future<Output = object_store::Result<()>> + Send + 'static) -> Result<()> {
        let mut given_up = self.given_up.subscribe();
        let url = self.objects.url(key);
        let called_off = called_off(&url);
        let sending = async move {
            tokio::select! {
                biased;
                _ = given_up.wait_for(|given_up| *given_up) => Err(called_off),
                sent = sending => sent,
            }
        };
        let sent = self.objects.bounded("write", url.clone(), sending);
        let results = self.results.0.clone();
        runtime()?.spawn(async move {
            let result = sent.await.and_then(|outcome| match outcome {
                Outcome::Done(()) => Ok(()),
                Outcome::Missing | Outcome::Exists => {
                    Err(Error::new(SqlState::IO_ERROR, format!("could not write \"{url}\"")).with_detail("The upload was called off."))
                }
            });
            // Whoever asked may have given up.
            let _ = results.send(result);
        });
        self.under_way += 1;
        Ok(())
    }

    /// Returns when everything has arrived, and is durable. After an error some may be there.
    pub fn finish(mut self) -> Result<()> {
        while let Some(arrived) = self.next_result() {
            arrived?;
        }
        Ok(())
    }

    /// Waits until one of those under way has ended. `None` where there is none, and from then on nothing can be sent.
    fn next_result(&mut self) -> Option<Result<()>> {
        // Only what is under way can still send a result: if it panics, nobody waits for it.
        self.results.0 = mpsc::channel().0;
        self.under_way = self.under_way.checked_sub(1)?;
        Some(self.results.1.recv().unwrap_or_else(|_| Err(Error::internal("an upload to an object store panicked"))))
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        self.given_up.send_replace(true);
        while self.next_result().is_some() {}
    }
}

fn called_off(url: &str) -> object_store::Error {
    object_store::Error::NotFound { path: url.to_string(), source: "the upload was called off".into() }
}

/// Calls an upload in parts off when it goes before it was completed.
struct Parts {
    upload: Option<Box<dyn MultipartUpload>>,
}

impl Drop for Parts {
    fn drop(&mut self) {
        let (Some(mut upload), Ok(runtime)) = (self.upload.take(), runtime()) else { return };
        runtime.spawn(async move {
            // Nobody reads the parts: what remains costs room only.
            if !matches!(tokio::time::timeout(ABORT_TIMEOUT, upload.abort()).await, Ok(Ok(()))) {
                tracing::debug!("parts of an upload that failed were not removed");
            }
        });
    }
}

/// Uploads in parts what comes through `chunks`, up to the `None` behind the last.
async fn put_parts(
    store: Arc<dyn ObjectStore>,
    path: Key,
    mut chunks: channel::UnboundedReceiver<Option<Chunk>>,
) -> object_store::Result<()> {
    let mut parts = Parts { upload: Some(store.put_multipart(&path).await?) };
    let mut under_way = FuturesUnordered::new();
    let mut all_read = false;
    while !all_read || !under_way.is_empty() {
        tokio::select! {
            chunk = chunks.recv(), if !all_read => match (chunk, &mut parts.upload) {
                (Some(Some(Chunk { permit, bytes })), Some(upload)) => {
                    let part = upload.put_part(PutPayload::from_bytes(bytes));
                    under_way.push(async move {
                        let _permit = permit;
                        part.await
                    });
                }
                (Some(None), _) => all_read = true,
                // Reading failed.
                _ => return Err(called_off(path.as_ref())),
            },
            Some(arrived) = under_way.next() => arrived?,
        }
    }
    if let Some(upload) = &mut parts.upload {
        upload.complete().await?;
    }
    parts.upload = None;
    Ok(())
}
