//! Objects that are uploaded in parts, and appear when someone completes them: perhaps much later, and in another process.
//!
//! A part is kept until the store has it, and sent again where that failed. Whoever makes parts is told to wait ([`Uploads::room`]) while too many are kept.
//!
//! # Invariants
//! - A part is forgotten only when the store has said that it has it.
//! - An upload that goes, and that nobody was told the number of, is called off, also where it is just being begun. One that somebody was told of is theirs.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as Key;
use object_store::{ObjectStoreExt, PutPayload};
use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, OnceCell};
use tokio::task::JoinHandle;
use weir_catalog::{Error, Result, SqlState};

use super::{Objects, Outcome, key_of, runtime};

/// How long calling off uploads may take.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it takes until what could not be sent is sent again, beside the pauses of the client.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// How many uploads are completed, or called off, at a time.
const REQUESTS_MOST: usize = 16;

/// An upload all of whose parts the store has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredParts {
    pub key: String,
    /// The store's number for it.
    pub upload: String,
    /// What the store called the parts, in order.
    pub parts: Vec<String>,
    /// All parts together.
    pub bytes: u64,
}

/// The uploads of one writer, as far as their parts are kept.
pub struct Uploads {
    objects: Objects,
    /// How many bytes may be kept before the writer has to wait.
    most: usize,
    kept: AtomicUsize,
    /// How many parts the store has taken.
    stored: AtomicU64,
    changed: Notify,
    under_way: Mutex<Vec<Weak<Shared>>>,
    /// Told of the memory that is taken and given back, bytes.
    count: Box<dyn Fn(isize) + Send + Sync>,
}

impl std::fmt::Debug for Uploads {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Uploads").field("kept", &self.kept).finish_non_exhaustive()
    }
}

/// An upload in parts. Its clones are one upload.
#[derive(Clone, Debug)]
pub struct PartedUpload(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    uploads: Arc<Uploads>,
    key: String,
    path: Key,
    /// The store's number for it, once it was begun.
    number: Arc<OnceCell<String>>,
    state: Mutex<State>,
    /// A part has arrived, or could not be sent.
    settled: Condvar,
}

#[derive(Debug, Default)]
struct State {
    parts: Vec<Part>,
    bytes: u64,
    /// Why a part could not be sent, of those that wait.
    failure: Option<Error>,
    /// Whether its number was told.
    told: bool,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
enum Part {
    Waiting(Bytes),
    Sending(Bytes),
    Stored(String),
}

fn no_parts() -> Error {
    Error::internal("the object store has no uploads in parts")
}

impl Uploads {
    /// For a writer that waits while more than `most` bytes are kept; `count` is told of what is.
    pub fn new(objects: Objects, most: usize, count: impl Fn(isize) + Send + Sync + 'static) -> Arc<Uploads> {
        Arc::new(Uploads {
            objects,
            most,
            kept: AtomicUsize::new(0),
            stored: AtomicU64::new(0),
            changed: Notify::new(),
            under_way: Mutex::default(),
            count: Box::new(count),
        })
    }

    /// A new upload, of which nothing is sent yet.
    pub fn begin(self: &Arc<Self>, key: &str) -> Result<PartedUpload> {
        let shared = Arc::new(Shared {
            uploads: self.clone(),
            key: key.to_string(),
            path: key_of(key)?,
            number: Arc::default(),
            state: Mutex::default(),
            settled: Condvar::new(),
        });
        let mut under_way = self.under_way.lock();
        under_way.retain(|other| other.strong_count() > 0);
        under_way.push(Arc::downgrade(&shared));
        drop(under_way);
        Ok(PartedUpload(shared))
    }

    /// Whether the writer has to wait.
    pub fn is_full(&self) -> bool {
        self.kept.load(Ordering::Acquire) > self.most
    }

    /// Waits until there is room, and has sent again what could not be sent. Errors where nothing arrives for twice the time that a call may take.
    pub async fn room(self: Arc<Self>) -> Result<()> {
        let (mut stored, mut since) = (self.stored.load(Ordering::Acquire), Instant::now());
        loop {
            let changed = self.changed.notified();
            if !self.is_full() {
                return Ok(());
            }
            let now = self.stored.load(Ordering::Acquire);
            if now != stored {
                (stored, since) = (now, Instant::now());
            }
            let under_way: Vec<Arc<Shared>> = self.under_way.lock().iter().filter_map(Weak::upgrade).collect();
            if since.elapsed() > 2 * self.objects.timeout() {
                let failure = under_way.iter().find_map(|upload| upload.state.lock().failure.clone());
                return Err(failure.unwrap_or_else(|| {
                    let key = under_way.first().map_or("", |upload| upload.key.as_str());
                    Error::new(SqlState::IO_ERROR, format!("could not write \"{}\"", self.objects.url(key)))
                        .with_detail(format!("Nothing arrived within {} s.", since.elapsed().as_secs()))
                }));
            }
            under_way.iter().try_for_each(Shared::send_waiting)?;
            drop(under_way);
            // Who was not told in time looks all the same.
            let _ = tokio::time::timeout(RETRY_PAUSE, changed).await;
        }
    }

    fn keep(&self, bytes: usize) {
        self.kept.fetch_add(bytes, Ordering::AcqRel);
        (self.count)(bytes as isize);
    }

    fn let_go(&self, bytes: usize) {
        self.kept.fetch_sub(bytes, Ordering::AcqRel);
        (self.count)(-(bytes as isize));
        self.changed.notify_waiters();
    }
}

impl PartedUpload {
    /// Adds a part, and begins to send it. All but the last must have at least 5 MiB, and should have equal lengths.
    pub fn push(&self, part: Vec<u8>) -> Result<()> {
        let mut state = self.0.state.lock();
        self.0.uploads.keep(part.len());
        state.bytes += part.len() as u64;
        state.parts.push(Part::Waiting(Bytes::from(part)));
        drop(state);
        Shared::send_waiting(&self.0)
    }

    /// How many bytes were added.
    pub fn bytes(&self) -> u64 {
        self.0.state.lock().bytes
    }

    /// What messages call the object.
    pub fn url(&self) -> String {
        self.0.uploads.objects.url(&self.0.key)
    }

    /// Sends again what could not be sent, and returns when the store has all of it. From then on the upload is the caller's to complete or to call off.
    pub fn wait(&self) -> Result<StoredParts> {
        let shared = &self.0;
        shared.state.lock().failure = None;
        Shared::send_waiting(shared)?;
        let mut state = shared.state.lock();
        loop {
            let names: Option<Vec<String>> = state.parts.iter().map(Part::name).collect();
            if let (Some(parts), Some(number)) = (names, shared.number.get()) {
                state.told = true;
                return Ok(StoredParts { key: shared.key.clone(), upload: number.clone(), parts, bytes: state.bytes });
            }
            if !state.parts.iter().any(|part| matches!(part, Part::Sending(_))) {
                return Err(state.failure.clone().unwrap_or_else(|| Error::internal("an upload has no parts")));
            }
            shared.settled.wait(&mut state);
        }
    }

    /// Whoever was told of it, by [`PartedUpload::wait`], has no use for it: it is called off when it goes.
    pub fn take_back(&self) {
        self.0.state.lock().told = false;
    }
}

impl Part {
    fn name(&self) -> Option<String> {
        match self {
            Part::Stored(name) => Some(name.clone()),
            Part::Waiting(_) | Part::Sending(_) => None,
        }
    }
}

impl Shared {
    /// Sends the parts that wait.
    fn send_waiting(self: &Arc<Self>) -> Result<()> {
        let mut state = self.state.lock();
        state.tasks.retain(|task| !task.is_finished());
        for at in 0..state.parts.len() {
            let Part::Waiting(bytes) = &state.parts[at] else { continue };
            let bytes = bytes.clone();
            let store = self.uploads.objects.multipart.0.clone().ok_or_else(no_parts)?;
            let (path, number, own) = (self.path.clone(), self.number.clone(), Arc::downgrade(self));
            let sending = async move {
                let given_up = || object_store::Error::NotFound { path: path.to_string(), source: "the upload was given up".into() };
                let begin = || async { if own.strong_count() > 0 { store.create_multipart(&path).await } else { Err(given_up()) } };
                let number = number.get_or_try_init(begin).await?;
                // Where it was given up while it was begun, there is nothing to be sent any more.
                let bytes = own.upgrade().and_then(|own| own.being_sent(at)).ok_or_else(given_up)?;
                store.put_part(&path, number, at, PutPayload::from_bytes(bytes)).await
            };
            let sending = self.uploads.objects.bounded("write", self.uploads.objects.url(&self.key), sending);
            let own = Arc::downgrade(self);
            state.tasks.push(runtime()?.spawn(async move {
                let sent = sending.await;
                if let Some(own) = own.upgrade() {
                    own.sent(at, sent);
                }
            }));
            state.parts[at] = Part::Sending(bytes);
        }
        Ok(())
    }

    fn being_sent(&self, at: usize) -> Option<Bytes> {
        match &self.state.lock().parts[at] {
            Part::Sending(bytes) => Some(bytes.clone()),
            Part::Waiting(_) | Part::Stored(_) => None,
        }
    }

    fn sent(&self, at: usize, sent: Result<Outcome<PartId>>) {
        let mut state = self.state.lock();
        let Part::Sending(bytes) = &state.parts[at] else { return };
        let bytes = bytes.clone();
        let failure = match sent {
            Ok(Outcome::Done(part)) => {
                // Counted no more when it can be seen to have arrived, and not later.
                self.uploads.stored.fetch_add(1, Ordering::AcqRel);
                self.uploads.let_go(bytes.len());
                state.parts[at] = Part::Stored(part.content_id);
                drop(state);
                self.settled.notify_all();
                return;
            }
            Ok(Outcome::Missing | Outcome::Exists) => {
                Error::new(SqlState::IO_ERROR, format!("could not write \"{}\"", self.uploads.objects.url(&self.key)))
                    .with_detail("The store has no such upload any more.")
            }
            Err(error) => error,
        };
        tracing::debug!(object = %self.key, error = %failure, "a part of an object could not be sent");
        state.failure = Some(failure);
        state.parts[at] = Part::Waiting(bytes);
        drop(state);
        self.settled.notify_all();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let State { parts, told, tasks, .. } = std::mem::take(self.state.get_mut());
        let kept = parts.iter().map(|part| match part {
            Part::Waiting(bytes) | Part::Sending(bytes) => bytes.len(),
            Part::Stored(_) => 0,
        });
        let kept: usize = kept.sum();
        drop(parts);
        let store = self.uploads.objects.multipart.0.clone();
        let (Some(store), Ok(runtime)) = (store, runtime()) else { return self.uploads.let_go(kept) };
        let (uploads, path, number) = (self.uploads.clone(), self.path.clone(), self.number.clone());
        let is_begun = number.initialized();
        if is_begun {
            tasks.iter().for_each(JoinHandle::abort);
        } else {
            // Whoever begins it goes on until its number is known, and has no part in hand.
            uploads.let_go(kept);
        }
        runtime.spawn(async move {
            for task in tasks {
                // It was aborted, or is of no interest any more.
                let _ = task.await;
            }
            if is_begun {
                uploads.let_go(kept);
            }
            if let (Some(number), false) = (number.get(), told) {
                call_off(store, path, number.clone()).await;
            }
        });
    }
}

/// Nobody reads parts: what remains where this fails costs room, until the bucket's rule for incomplete uploads removes it.
async fn call_off(store: Arc<dyn MultipartStore>, path: Key, number: String) {
    if !matches!(tokio::time::timeout(ABORT_TIMEOUT, store.abort_multipart(&path, &number)).await, Ok(Ok(()))) {
        tracing::debug!(object = %path, "an upload was not called off");
    }
}

impl Objects {
    /// Makes each of `uploads` an object, several at a time; says for each whether the object is there now. One that was completed before counts as done;
    /// one that the store does not know, and whose object is not there, was taken away by somebody. Waits for the store.
    ///
    /// Errors: those of the store. Some may be there then, and it can be tried again.
    pub fn complete(&self, uploads: &[StoredParts]) -> Result<Vec<bool>> {
        let store = self.multipart.0.clone().ok_or_else(no_parts)?;
        let mut completions = Vec::with_capacity(uploads.len());
        for upload in uploads {
            completions.push(complete(self.clone(), store.clone(), key_of(&upload.key)?, upload.clone()));
        }
        self.wait(async move {
            let mut there = Vec::with_capacity(completions.len());
            let mut completions = stream::iter(completions).buffered(REQUESTS_MOST);
            while let Some(completed) = completions.next().await {
                there.push(completed?);
            }
            Ok(there)
        })
    }

    /// Calls off uploads that nobody will complete, by their keys and numbers, as far as that can be done soon. Waits for the store.
    pub fn call_off(&self, uploads: Vec<(String, String)>) -> Result<()> {
        let Some(store) = self.multipart.0.clone().filter(|_| !uploads.is_empty()) else { return Ok(()) };
        let mut all = Vec::with_capacity(uploads.len());
        for (key, number) in uploads {
            all.push(call_off(store.clone(), key_of(&key)?, number));
        }
        self.wait(async move {
            let all = stream::iter(all).buffer_unordered(REQUESTS_MOST).collect::<Vec<()>>();
            if tokio::time::timeout(ABORT_TIMEOUT, all).await.is_err() {
                tracing::warn!("uploads that nobody will complete were not called off");
            }
            Ok(())
        })
    }
}

/// Whether uploads to `path` may be made. Some stores say of an upload that they don't know that it is not permitted to complete it.
async fn may_upload(store: &dyn MultipartStore, path: &Key) -> bool {
    match store.create_multipart(path).await {
        Ok(number) => store.abort_multipart(path, &number).await.is_ok(),
        Err(_) => false,
    }
}

async fn complete(objects: Objects, store: Arc<dyn MultipartStore>, path: Key, upload: StoredParts) -> Result<bool> {
    let url = objects.url(&upload.key);
    let completion = {
        let (path, upload) = (path.clone(), upload.clone());
        async move {
            let parts = upload.parts.into_iter().map(|content_id| PartId { content_id }).collect();
            let completed = store.complete_multipart(&path, &upload.upload, parts).await;
            match completed {
                Err(error @ object_store::Error::PermissionDenied { .. }) if may_upload(&*store, &path).await => {
                    Err(object_store::Error::NotFound { path: path.to_string(), source: error.into() })
                }
                completed => completed,
            }
        }
    };
    let error = match objects.bounded("write", url.clone(), completion).await {
        Ok(Outcome::Done(_)) => return Ok(true),
        Ok(Outcome::Missing | Outcome::Exists) => None,
        Err(error) => Some(error),
    };
    // The answer to an earlier request may have been lost, and stores say in different words that there is no such upload any more.
    let head = {
        let (store, path) = (objects.store.clone(), path);
        objects.bounded("read", url.clone(), async move { store.head(&path).await }).await
    };
    match (head, error) {
        (Ok(Outcome::Done(head)), _) if head.size == upload.bytes => Ok(true),
        (Ok(Outcome::Done(head)), error) => Err(error.unwrap_or_else(|| {
            Error::corrupted(format!("\"{url}\" is damaged"))
                .with_detail(format!("It has {} bytes; {} were written.", head.size, upload.bytes))
        })),
        (Ok(Outcome::Missing | Outcome::Exists), None) => Ok(false),
        (_, Some(error)) | (Err(error), None) => Err(error),
    }
}
