//! The folder that the running state backends of a job have for themselves: it goes when the last of them is closed.
//!
//! A backend lives on after its subtask has ended, as long as a reader holds a snapshot of it: its files may not be taken from under it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_catalog::Result;

use super::{Entry, StateBackend, StateBackendKind, StateSize, StateSnapshot, Writes};
use crate::seams::files::FilesRef;
use crate::seams::spawn::Spawner;

/// A folder whose content is worth nothing once nobody uses it. Dropping it removes it.
#[derive(Debug)]
pub struct ScratchFolder {
    files: FilesRef,
    spawner: Spawner,
    path: PathBuf,
}

impl ScratchFolder {
    /// Makes the folder `path`, empty whatever was there. Errors: `53100` and `58030` where the disk refuses.
    pub fn create(files: FilesRef, spawner: Spawner, path: PathBuf) -> Result<Arc<ScratchFolder>> {
        files.remove_dir(&path)?;
        files.create_dir(&path)?;
        Ok(Arc::new(ScratchFolder { files, spawner, path }))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        let (files, path) = (self.files.clone(), std::mem::take(&mut self.path));
        // Beside the caller, which may be a worker thread that should not wait for disk.
        self.spawner.spawn_blocking(move || {
            if let Err(error) = files.remove_dir(&path) {
                tracing::warn!(%error, "a folder that nobody uses any more was not removed");
            }
        });
    }
}

/// A backend in a [`ScratchFolder`].
pub struct ScratchBackend {
    // Fields are dropped in order: the backend is closed before the folder goes.
    backend: Box<dyn StateBackend>,
    folder: Arc<ScratchFolder>,
}

impl ScratchBackend {
    /// `backend`, whose files are somewhere in `folder`.
    pub fn new(backend: Box<dyn StateBackend>, folder: Arc<ScratchFolder>) -> ScratchBackend {
        ScratchBackend { backend, folder }
    }
}

impl StateBackend for ScratchBackend {
    fn kind(&self) -> StateBackendKind {
        self.backend.kind()
    }

    fn multi_get(&self, keys: &[&[u8]], found: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        self.backend.multi_get(keys, found)
    }

    fn write(&mut self, writes: &Writes) -> Result<()> {
        self.backend.write(writes)
    }

    fn write_all(&mut self, next: &mut dyn FnMut(&mut Writes) -> Result<bool>) -> Result<()> {
        self.backend.write_all(next)
    }

    fn scan(&self, from: &[u8], to: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        self.backend.scan(from, to, each)
    }

    fn snapshot(&self) -> Result<Arc<dyn StateSnapshot>> {
        Ok(Arc::new(ScratchSnapshot { snapshot: self.backend.snapshot()?, _folder: self.folder.clone() }))
    }

    fn checkpoint(&mut self, dir: &Path) -> Result<Vec<String>> {
        self.backend.checkpoint(dir)
    }

    fn estimate(&self) -> StateSize {
        self.backend.estimate()
    }

    fn changed_since_checkpoint(&self) -> bool {
        self.backend.changed_since_checkpoint()
    }

    fn content_size(&self) -> u64 {
        self.backend.content_size()
    }
}

struct ScratchSnapshot {
    snapshot: Arc<dyn StateSnapshot>,
    _folder: Arc<ScratchFolder>,
}

impl StateSnapshot for ScratchSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.snapshot.get(key)
    }

    fn iter<'a>(&'a self, from: &[u8], to: &[u8]) -> Box<dyn Iterator<Item = Result<Entry>> + Send + 'a> {
        self.snapshot.iter(from, to)
    }

    fn scan(&self, from: &[u8], to: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        self.snapshot.scan(from, to, each)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::seams::files::LocalFiles;
    use crate::state::{RocksBackend, SharedRocks};
    use crate::stream::KeyGroupRange;

    #[tokio::test(flavor = "multi_thread")]
    async fn the_folder_stays_until_the_last_snapshot_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let folder = ScratchFolder::create(Arc::new(LocalFiles), Spawner::current(), path.clone()).unwrap();
        let shared = SharedRocks::new(8 << 20, 4 << 20).unwrap();
        let rocks = RocksBackend::open(&shared, &path.join("state"), &[], KeyGroupRange::ALL).unwrap();
        let mut backend = ScratchBackend::new(Box::new(rocks), folder);
        backend.write(&Writes::from_iter([([0, 0, 0, 7], Some(b"seven"))])).unwrap();
        let snapshot = backend.snapshot().unwrap();
        drop(backend);
        assert_eq!(snapshot.get(&[0, 0, 0, 7]).unwrap().as_deref(), Some(b"seven".as_slice()));
        assert!(path.exists());
        drop(snapshot);
        let deadline = Instant::now() + Duration::from_secs(120);
        while path.exists() {
            assert!(Instant::now() < deadline, "the folder was not removed");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
