//! A store in memory, for tests, with uploads in parts that arrive in any order, and that fail when they are told to.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as Key;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use parking_lot::Mutex;

use super::{Objects, Permits};

/// The store.
#[derive(Debug, Default)]
pub struct MemoryStore {
    inner: InMemory,
    /// The parts of each upload that was not completed.
    uploads: Mutex<HashMap<MultipartId, BTreeMap<usize, Bytes>>>,
    begun: AtomicUsize,
    /// Uploads begin, and the answers are held back.
    pub beginnings_held: AtomicBool,
    /// So many parts are refused.
    pub parts_fail: AtomicUsize,
    /// Uploads are completed, and the answers lost.
    pub answers_lost: AtomicBool,
    /// No upload is completed.
    pub completions_fail: AtomicBool,
}

impl MemoryStore {
    /// An empty store, and a bucket called `bucket` that it is.
    pub fn bucket() -> (Arc<MemoryStore>, Objects) {
        let store = Arc::new(MemoryStore::default());
        let objects = Objects::with_parts(store.clone(), "bucket", Permits::new(64 << 20, |_| ()));
        (store, objects)
    }

    /// How many uploads there are that are neither completed nor called off.
    pub fn uploads(&self) -> usize {
        self.uploads.lock().len()
    }
}

fn failed() -> object_store::Error {
    object_store::Error::Generic { store: "test", source: "planted".into() }
}

impl fmt::Display for MemoryStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("memory")
    }
}

#[async_trait]
impl ObjectStore for MemoryStore {
    async fn put_opts(&self, location: &Key, payload: PutPayload, options: PutOptions) -> StoreResult<PutResult> {
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(&self, location: &Key, options: PutMultipartOptions) -> StoreResult<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Key, options: GetOptions) -> StoreResult<GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, StoreResult<Key>>) -> BoxStream<'static, StoreResult<Key>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Key>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Key>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Key, to: &Key, options: CopyOptions) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

fn no_upload(path: &Key) -> object_store::Error {
    object_store::Error::NotFound { path: path.to_string(), source: "no such upload".into() }
}

#[async_trait]
impl MultipartStore for MemoryStore {
    async fn create_multipart(&self, _path: &Key) -> StoreResult<MultipartId> {
        let id = self.begun.fetch_add(1, Ordering::SeqCst).to_string();
        self.uploads.lock().insert(id.clone(), BTreeMap::new());
        while self.beginnings_held.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(id)
    }

    async fn put_part(&self, path: &Key, id: &MultipartId, part_idx: usize, data: PutPayload) -> StoreResult<PartId> {
        if self.parts_fail.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            return Err(failed());
        }
        let mut uploads = self.uploads.lock();
        uploads.get_mut(id).ok_or_else(|| no_upload(path))?.insert(part_idx, data.into());
        Ok(PartId { content_id: format!("{id}/{part_idx}") })
    }

    async fn complete_multipart(&self, path: &Key, id: &MultipartId, parts: Vec<PartId>) -> StoreResult<PutResult> {
        if self.completions_fail.load(Ordering::SeqCst) {
            return Err(failed());
        }
        let stored = self.uploads.lock().remove(id).ok_or_else(|| no_upload(path))?;
        let named: Vec<String> = stored.keys().map(|at| format!("{id}/{at}")).collect();
        assert_eq!(parts.into_iter().map(|part| part.content_id).collect::<Vec<_>>(), named, "the parts in order");
        let content: Vec<u8> = stored.into_values().flatten().collect();
        let put = self.inner.put(path, PutPayload::from(content)).await?;
        if self.answers_lost.load(Ordering::SeqCst) { Err(failed()) } else { Ok(put) }
    }

    async fn abort_multipart(&self, path: &Key, id: &MultipartId) -> StoreResult<()> {
        self.uploads.lock().remove(id).map(drop).ok_or_else(|| no_upload(path))
    }
}
