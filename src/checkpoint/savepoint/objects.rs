//! Savepoints in object stores.
//!
//! The metadata is written last, by one PUT that the store refuses where there is a savepoint already. What is left of one that was not completed is part of no
//! other: it goes with the next savepoint that is made, and dropped, in its place.
//!
//! # Invariants
//! - A file's name is used once, so that two who write to one place at a time never write other bytes under one name; who comes second is refused.
//! - Files are compared with what was written of them before they are sent off.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use weir_catalog::{Error, Result, SqlState};

use super::{FILES, METADATA, Savepoint, damaged, exists_in, none_in};
use crate::checkpoint::storage::{FilesOf, NewFile, ObjectFiles};
use crate::checkpoint::{CheckpointStore, FileHandle, Part};
use crate::seams::files::FilesRef;
use crate::seams::objects::{ObjectUrl, Objects, Permits};

/// Files are sent off in lots of about so many bytes, so that those on their way take little room on this machine.
const LOT_BYTES: u64 = 256 << 20;

/// The object stores that savepoints are in. Each is opened when it is first needed, as `AWS_*` variables say.
#[derive(Debug)]
pub(super) struct Buckets {
    /// A folder for files on their way.
    scratch: PathBuf,
    /// Tells the folders in it apart.
    next: AtomicU64,
    permits: Arc<Permits>,
    open: Mutex<OpenBuckets>,
}

#[derive(Debug, Default)]
struct OpenBuckets {
    by_name: BTreeMap<String, Objects>,
    timeout: Option<Duration>,
    stopped: bool,
}

impl Buckets {
    pub(super) fn new(scratch: PathBuf, permits: Arc<Permits>) -> Buckets {
        Buckets { scratch, next: AtomicU64::new(0), permits, open: Mutex::default() }
    }

    pub(super) fn set_timeout(&self, timeout: Duration) {
        let mut open = self.open.lock();
        open.timeout = Some(timeout);
        open.by_name.values().for_each(|objects| objects.set_timeout(timeout));
    }

    pub(super) fn stop(&self) {
        let mut open = self.open.lock();
        open.stopped = true;
        open.by_name.values().for_each(Objects::stop);
    }

    /// The place `url`; `local` are the files of this machine.
    pub(super) fn at<'a>(&'a self, local: &'a FilesRef, url: &'a ObjectUrl) -> Result<InObjects<'a>> {
        let mut open = self.open.lock();
        let objects = match open.by_name.get(&url.bucket) {
            Some(objects) => objects.clone(),
            None => {
                let objects = Objects::open(url, self.permits.clone())?;
                if let Some(timeout) = open.timeout {
                    objects.set_timeout(timeout);
                }
                if open.stopped {
                    objects.stop();
                }
                open.by_name.insert(url.bucket.clone(), objects.clone());
                objects
            }
        };
        drop(open);
        let files = ObjectFiles::new(local.clone(), objects.clone(), url.clone(), FilesOf::Savepoint);
        Ok(InObjects { buckets: self, local, url, objects, files })
    }

    fn scratch_folder(&self) -> PathBuf {
        self.scratch.join(format!("savepoint-{}", self.next.fetch_add(1, Ordering::Relaxed)))
    }
}

/// A place in an object store.
pub(super) struct InObjects<'a> {
    buckets: &'a Buckets,
    local: &'a FilesRef,
    url: &'a ObjectUrl,
    objects: Objects,
    files: ObjectFiles,
}

impl InObjects<'_> {
    fn metadata_key(&self) -> String {
        self.url.key(METADATA)
    }

    pub(super) fn write(&self, store: &CheckpointStore, savepoint: &Savepoint) -> Result<()> {
        let (metadata, own) = (self.metadata_key(), self.url.key(&format!("{FILES}/")));
        let listed = self.objects.list(&self.url.prefix)?;
        if listed.iter().any(|object| object.key == metadata) {
            return Err(exists_in(self.url));
        }
        if let Some(other) = listed.iter().find(|object| !object.key.starts_with(&own)) {
            return Err(Error::new(SqlState::IO_ERROR, format!("\"{}\" is not empty", self.url))
                .with_detail(format!("It has \"{}\".", self.objects.url(&other.key))));
        }
        // What is below a savepoint goes with it.
        for (at, _) in self.url.prefix.match_indices('/') {
            let above = &self.url.prefix[..at];
            if self.objects.head(&format!("{above}/{METADATA}"))?.is_some() {
                return Err(Error::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!("\"{}\" is in the savepoint \"{}\"", self.url, self.objects.url(above)),
                )
                .with_hint("Choose another place: a savepoint is removed with all that is below it."));
            }
        }
        let result = self.send_files(store, savepoint).and_then(|()| self.complete(&savepoint.encode()?));
        // Where it is not known whether there is one, what it may need stays.
        if result.as_ref().is_err_and(|error| *error.code() != SqlState::DUPLICATE_OBJECT)
            && let Ok(None) = self.objects.head(&metadata)
        {
            let names: Vec<String> = savepoint.distinct_files().into_iter().map(|file| file.name).collect();
            // What can't be removed is no savepoint either.
            let _ = self.files.remove(&names);
        }
        result
    }

    fn send_files(&self, store: &CheckpointStore, savepoint: &Savepoint) -> Result<()> {
        let folder = self.buckets.scratch_folder();
        let files = savepoint.distinct_files();
        let sent = lots(&files).into_iter().try_for_each(|lot| self.send_lot(store, lot, &folder));
        self.local.remove_dir(&folder).and(sent)
    }

    fn send_lot(&self, store: &CheckpointStore, lot: &[FileHandle], folder: &Path) -> Result<()> {
        self.local.create_dir(folder)?;
        store.link(lot, folder)?;
        let named: Vec<NewFile> = lot.iter().map(|file| NewFile { local: file.name.clone(), name: file.name.clone() }).collect();
        let sent = self.files.put(folder, &named)?;
        if let Some((file, sent)) = lot.iter().zip(&sent).find(|(file, sent)| (file.bytes, file.checksum) != (sent.bytes, sent.checksum)) {
            return Err(damaged(file, self.url, sent.bytes, sent.checksum));
        }
        self.local.remove_dir(folder)
    }

    fn complete(&self, metadata: &[u8]) -> Result<()> {
        let key = self.metadata_key();
        if self.objects.put_if_absent(&key, Bytes::copy_from_slice(metadata))? {
            return Ok(());
        }
        // The answer to an earlier request may have been lost.
        match self.objects.get(&key)? {
            Some(found) if found == metadata => Ok(()),
            _ => Err(exists_in(self.url)),
        }
    }

    pub(super) fn read(&self) -> Result<Savepoint> {
        match self.objects.get(&self.metadata_key())? {
            Some(metadata) => Savepoint::decode(self.objects.url(&self.metadata_key()), &metadata),
            None => Err(none_in(self.url, !self.files.names()?.is_empty())),
        }
    }

    pub(super) fn remove(&self) -> Result<()> {
        self.objects.remove(&[self.metadata_key()])?;
        self.files.remove(&self.files.names()?)
    }

    pub(super) fn fetch(&self, part: &Part, into: &Path) -> Result<()> {
        self.local.create_dir(into)?;
        self.files.fetch(&part.files, into)
    }

    pub(super) fn read_file(&self, file: &FileHandle) -> Result<Vec<u8>> {
        self.files.read(file)
    }
}

/// `files` in lots of about [`LOT_BYTES`], in order.
fn lots(files: &[FileHandle]) -> Vec<&[FileHandle]> {
    let mut lots = Vec::new();
    let (mut from, mut bytes) = (0, 0);
    for (at, file) in files.iter().enumerate() {
        if at > from && bytes + file.bytes > LOT_BYTES {
            lots.push(&files[from..at]);
            (from, bytes) = (at, 0);
        }
        bytes += file.bytes;
    }
    if from < files.len() {
        lots.push(&files[from..]);
    }
    lots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lots_have_every_file_once_and_are_bounded() {
        let file = |bytes: u64| FileHandle { name: format!("f{bytes}"), local: String::new(), bytes, checksum: 0 };
        for sizes in [vec![], vec![LOT_BYTES * 3], vec![1, LOT_BYTES, 2, LOT_BYTES - 2, 5], vec![0; 7]] {
            let files: Vec<FileHandle> = sizes.iter().map(|bytes| file(*bytes)).collect();
            let lots = lots(&files);
            assert_eq!(lots.concat(), files);
            assert!(lots.iter().all(|lot| lot.len() == 1 || lot.iter().map(|file| file.bytes).sum::<u64>() <= LOT_BYTES), "{lots:?}");
        }
    }
}
