//! Objects in a store that speaks S3's protocol: what outlives the machine.
//!
//! The rest of the engine is synchronous where it waits for storage, on threads for such work, and so is this: a call returns when the store has answered.
//! Requests run on a runtime of their own, whatever thread asks, so that neither subtasks nor clients share threads with them.
//!
//! # Invariants
//! - Every call ends: after the time-out in force when it began, or as soon as [`Objects::stop`] was called. Retries are within that.
//! - What is on its way at a time is bounded in bytes ([`Permits`]), for all transfers of an [`Objects`] together, and counted.
//! - An object appears whole or not at all: a large one is uploaded in parts and completed when all are there.

mod access;
#[cfg(test)]
pub mod memory;
mod parts;
mod read;
mod transfer;
mod url;

use std::future::Future;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::multipart::MultipartStore;
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ClientOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload, RetryConfig};
use tokio::sync::watch;
use weir_catalog::{Error, Result, SqlState};

pub use self::access::Access;
pub use self::parts::{PartedUpload, StoredParts, Uploads};
pub use self::read::{ObjectReader, READER_BYTES_MOST, Seen, error_of, joined, tag_of};
pub use self::transfer::{CHUNK_BYTES, Permits, Range, Upload};
pub use self::url::ObjectUrl;

/// How long a request may take before it counts as failed and is tried again, if it can be: most of what one moves is a chunk.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a request is tried again; the time-out of the call ends that too.
const RETRIES: usize = 8;
const RETRY_PAUSE_LEAST: Duration = Duration::from_millis(100);
const RETRY_PAUSE_MOST: Duration = Duration::from_secs(5);

/// An object as a listing has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its key in the bucket.
    pub key: String,
    pub bytes: u64,
    /// Which version of it that is, where the store says so: see [`tag_of`].
    pub tag: Option<u64>,
}

impl From<ObjectMeta> for Listed {
    fn from(object: ObjectMeta) -> Listed {
        Listed { key: object.location.to_string(), bytes: object.size, tag: object.e_tag.as_deref().map(tag_of) }
    }
}

/// Uploads in parts, where the store has them.
#[derive(Clone)]
struct Multipart(Option<Arc<dyn MultipartStore>>);

impl std::fmt::Debug for Multipart {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(if self.0.is_some() { "Multipart" } else { "None" })
    }
}

/// A bucket, and how it is spoken to.
#[derive(Clone, Debug)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    multipart: Multipart,
    /// `s3://bucket`
    bucket: Arc<str>,
    timeout_ms: Arc<AtomicU64>,
    stopped: Arc<watch::Sender<bool>>,
    permits: Arc<Permits>,
}

/// The threads that requests run on.
fn runtime() -> Result<&'static tokio::runtime::Runtime> {
    static RUNTIME: OnceLock<std::io::Result<tokio::runtime::Runtime>> = OnceLock::new();
    let made = RUNTIME
        .get_or_init(|| tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("weir-objects").enable_all().build());
    made.as_ref().map_err(|e| Error::io("start threads", e))
}

/// What went wrong with a request, where it is not that an object is missing or there already.
fn refused(action: &str, what: &str, error: &object_store::Error) -> Error {
    let text = error.to_string();
    let refused = Error::new(SqlState::IO_ERROR, format!("could not {action} \"{what}\""));
    if text.contains("NoSuchBucket") {
        return refused.with_detail("The bucket does not exist.");
    }
    let refused = refused.with_detail(format!("{text}."));
    if text.contains("URL scheme is not allowed") || text.contains("BadScheme") {
        return refused
            .with_hint("Endpoints without encryption have to be allowed: AWS_ALLOW_HTTP=true, or a table's option s3.allow_http.");
    }
    // A listing that is refused is an error of no kind of its own.
    if text.contains("403 Forbidden") || text.contains("401 Unauthorized") {
        return refused.with_hint(
            "Credentials are taken from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, from the machine's role, or from a table's options.",
        );
    }
    refused
}

fn is_bucket_missing(error: &object_store::Error) -> bool {
    error.to_string().contains("NoSuchBucket")
}

/// What the store says of a request: its answer, or that there is no such object, or that there is one already.
#[derive(Debug)]
enum Outcome<T> {
    Done(T),
    Missing,
    Exists,
}

impl Objects {
    /// The bucket of `url`, as `AWS_*` variables say: credentials, region, endpoint, and whether plain HTTP is allowed. Nothing is sent yet.
    ///
    /// `permits` bounds what is on its way. Errors: `22023` where the variables don't fit.
    pub fn open(url: &ObjectUrl, permits: Arc<Permits>) -> Result<Objects> {
        Objects::open_as(url, &Access::default(), permits)
    }

    /// As [`Objects::open`], where `access` has a word of its own.
    pub fn open_as(url: &ObjectUrl, access: &Access, permits: Arc<Permits>) -> Result<Objects> {
        let backoff = BackoffConfig { init_backoff: RETRY_PAUSE_LEAST, max_backoff: RETRY_PAUSE_MOST, base: 2.0 };
        let retry = RetryConfig { backoff, max_retries: RETRIES, retry_timeout: 4 * REQUEST_TIMEOUT };
        let client = ClientOptions::new().with_timeout(REQUEST_TIMEOUT).with_connect_timeout(CONNECT_TIMEOUT);
        // The environment's word comes behind this one, also on the time-outs.
        let builder = access.apply(AmazonS3Builder::new().with_client_options(client).with_retry(retry));
        let store = builder.with_bucket_name(&url.bucket).build();
        let store = store.map_err(|error| {
            Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("\"s3://{}\" can't be used", url.bucket)).with_detail(format!("{error}."))
        })?;
        let objects = Objects::with_parts(Arc::new(store), &url.bucket, permits);
        if let Some(timeout) = access.timeout {
            objects.set_timeout(timeout);
        }
        Ok(objects)
    }

    /// The bucket called `bucket` that `store` is.
    pub fn new(store: Arc<dyn ObjectStore>, bucket: &str, permits: Arc<Permits>) -> Objects {
        Objects {
            store,
            multipart: Multipart(None),
            bucket: format!("s3://{bucket}").into(),
            timeout_ms: Arc::new(AtomicU64::new(2 * 60 * 1000)),
            stopped: Arc::new(watch::Sender::new(false)),
            permits,
        }
    }

    /// As [`Objects::new`], of a store whose uploads in parts can be completed by someone else than who began them.
    pub fn with_parts<S: ObjectStore + MultipartStore>(store: Arc<S>, bucket: &str, permits: Arc<Permits>) -> Objects {
        Objects { multipart: Multipart(Some(store.clone())), ..Objects::new(store, bucket, permits) }
    }

    /// The same bucket for someone else, whose calls are stopped on their own.
    pub fn for_another(&self) -> Objects {
        Objects {
            timeout_ms: Arc::new(AtomicU64::new(self.timeout_ms.load(Ordering::Relaxed))),
            stopped: Arc::new(watch::Sender::new(false)),
            ..self.clone()
        }
    }

    /// How long calls from now on may take.
    pub fn set_timeout(&self, timeout: Duration) {
        self.timeout_ms.store(timeout.as_millis().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.load(Ordering::Relaxed))
    }

    /// Ends every call, those under way and those to come.
    pub fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// What `key` is called in messages.
    pub fn url(&self, key: &str) -> String {
        format!("{}/{key}", self.bucket)
    }

    /// `future` within the time-out, or until calls are stopped.
    fn bounded<T: Send + 'static>(
        &self,
        action: &str,
        what: String,
        future: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> impl Future<Output = Result<Outcome<T>>> + Send + 'static {
        let (timeout, mut stopped, action) = (self.timeout(), self.stopped.subscribe(), action.to_string());
        async move {
            let result = tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => {
                    return Err(Error::new(SqlState::ADMIN_SHUTDOWN, format!("could not {action} \"{what}\": the server is shutting down")));
                }
                result = tokio::time::timeout(timeout, future) => result,
            };
            match result {
                Ok(Ok(done)) => Ok(Outcome::Done(done)),
                Ok(Err(object_store::Error::NotFound { source, path })) => {
                    let error = object_store::Error::NotFound { source, path };
                    if is_bucket_missing(&error) { Err(refused(&action, &what, &error)) } else { Ok(Outcome::Missing) }
                }
                Ok(Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. })) => Ok(Outcome::Exists),
                Ok(Err(error)) => Err(refused(&action, &what, &error)),
                Err(_) => Err(Error::new(SqlState::IO_ERROR, format!("could not {action} \"{what}\""))
                    .with_detail(format!("There was no answer within {} s.", timeout.as_secs_f64()))),
            }
        }
    }

    /// Runs `future` on the threads for it and waits for what comes of it.
    fn wait<T: Send + 'static>(&self, future: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        runtime()?.spawn(async move {
            // Who waits does not go before the answer.
            let _ = sender.send(future.await);
        });
        receiver.recv().map_err(|_| Error::internal("a request to an object store panicked"))?
    }

    fn call<T: Send + 'static>(
        &self,
        action: &str,
        key: &str,
        future: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<Outcome<T>> {
        self.wait(self.bounded(action, self.url(key), future))
    }

    /// All objects whose keys begin with `folder` and a slash; all of the bucket where that is empty.
    ///
    /// Errors: `58030` where the store does not answer or refuses; also where there is no such bucket.
    pub fn list(&self, folder: &str) -> Result<Vec<Listed>> {
        let (store, prefix) = (self.store.clone(), key_of(folder)?);
        let listing = async move {
            let listed = store.list(Some(&prefix).filter(|prefix| !prefix.as_ref().is_empty()));
            listed.map_ok(Listed::from).try_collect::<Vec<_>>().await
        };
        match self.call("list", folder, listing)? {
            Outcome::Done(listed) => Ok(listed),
            Outcome::Missing | Outcome::Exists => Ok(Vec::new()),
        }
    }

    /// As [`Objects::list`], but only objects whose keys come behind `key`.
    pub fn list_behind(&self, folder: &str, key: &str) -> Result<Vec<Listed>> {
        let (store, prefix, offset) = (self.store.clone(), key_of(folder)?, key_of(key)?);
        let listing = async move {
            let listed = store.list_with_offset(Some(&prefix).filter(|prefix| !prefix.as_ref().is_empty()), &offset);
            listed.map_ok(Listed::from).try_collect::<Vec<_>>().await
        };
        match self.call("list", folder, listing)? {
            Outcome::Done(listed) => Ok(listed),
            Outcome::Missing | Outcome::Exists => Ok(Vec::new()),
        }
    }

    /// The content of an object; `None` where there is none.
    pub fn get(&self, key: &str) -> Result<Option<Bytes>> {
        let (store, path) = (self.store.clone(), key_of(key)?);
        match self.call("read", key, async move { store.get(&path).await?.bytes().await })? {
            Outcome::Done(bytes) => Ok(Some(bytes)),
            Outcome::Missing | Outcome::Exists => Ok(None),
        }
    }

    /// An object as a listing has it; `None` where there is none.
    pub fn head(&self, key: &str) -> Result<Option<Listed>> {
        let (store, path) = (self.store.clone(), key_of(key)?);
        match self.call("read", key, async move { store.head(&path).await })? {
            Outcome::Done(head) => Ok(Some(Listed::from(head))),
            Outcome::Missing | Outcome::Exists => Ok(None),
        }
    }

    /// The length of an object, bytes; `None` where there is none.
    pub fn len(&self, key: &str) -> Result<Option<u64>> {
        Ok(self.head(key)?.map(|object| object.bytes))
    }

    /// Stores an object, in place of one that has the key.
    pub fn put(&self, key: &str, bytes: Bytes) -> Result<()> {
        let (store, path) = (self.store.clone(), key_of(key)?);
        match self.call("write", key, async move { store.put(&path, PutPayload::from_bytes(bytes)).await })? {
            Outcome::Done(_) => Ok(()),
            Outcome::Missing | Outcome::Exists => Err(Error::internal(format!("\"{}\" was neither written nor refused", self.url(key)))),
        }
    }

    /// Stores an object where there is none of this key, at once or not at all. False where there is one. After an error it may have become durable.
    pub fn put_if_absent(&self, key: &str, bytes: Bytes) -> Result<bool> {
        let (store, path) = (self.store.clone(), key_of(key)?);
        let put = async move { store.put_opts(&path, PutPayload::from_bytes(bytes), PutMode::Create.into()).await };
        match self.call("write", key, put)? {
            Outcome::Done(_) => Ok(true),
            Outcome::Exists => Ok(false),
            Outcome::Missing => Err(Error::internal(format!("\"{}\" was neither written nor refused", self.url(key)))),
        }
    }

    /// Copies an object within the store, in place of one that has the key `to`. False where there is none to copy.
    pub fn copy(&self, from: &str, to: &str) -> Result<bool> {
        let (store, source, target) = (self.store.clone(), key_of(from)?, key_of(to)?);
        match self.call("copy", from, async move { store.copy(&source, &target).await })? {
            Outcome::Done(()) => Ok(true),
            Outcome::Missing | Outcome::Exists => Ok(false),
        }
    }

    /// Removes objects, many with one request; no error where there are none. After an error some may be gone.
    pub fn remove(&self, keys: &[String]) -> Result<()> {
        let Some(first) = keys.first() else { return Ok(()) };
        let (store, paths) = (self.store.clone(), keys.iter().map(|key| key_of(key)).collect::<Result<Vec<_>>>()?);
        let removal = async move {
            let mut removed = store.delete_stream(futures::stream::iter(paths.into_iter().map(Ok)).boxed());
            while let Some(removed) = removed.next().await {
                match removed {
                    Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        };
        self.call("remove", first, removal).map(drop)
    }
}

/// A key as the client takes it.
fn key_of(key: &str) -> Result<Key> {
    Key::parse(key).map_err(|error| {
        Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("\"{key}\" can't be a key of an object")).with_detail(format!("{error}."))
    })
}

#[cfg(test)]
mod tests;
