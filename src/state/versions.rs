//! A keyed store of which the last versions stay readable: the rows of a view or of a stored table.
//!
//! ```text
//!  generation 1                       generation 2 (the present)
//!  base at 10 ◀─ 11 ◀─ 12 ◀─ 14       base at 14 ◀─ 15 ◀─ 17
//! ```
//!
//! The *base* is a state backend, exact at one version. What changed later stands in memory as *overlays*, one for each version that changed something,
//! shared read-only with the readers. [`VersionedStore::fold`] writes overlays into the base, which begins a new *generation*: the former base stays
//! readable through a snapshot of the backend, together with the overlays that were folded, as long as a version of it is needed.
//!
//! An epoch too large for memory goes into the base before it has a version ([`VersionedStore::write_ahead`]); readers keep to the snapshots taken before.
//!
//! To read a version is to read the overlays up to it, the newest first, and then the base. Versions that are no longer needed one by one have their
//! overlays merged, in such a way that each is at least twice as large as the next: reading costs the number of versions kept plus a logarithm.
//!
//! # Invariants
//! - One writer. Versions only grow. A published overlay never changes.
//! - The overlays of a generation are in order; each covers the versions after the former's `through` to its own.
//! - Only overlays at or below the oldest needed version are merged, so every version from there on is exact.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use tokio::sync::watch;
use weir_catalog::{Error, Result};

use super::overlay::{MergedOverlays, OverlaidSnapshot, Overlay, merge, multi_get};
use super::{Entry, StateBackend, StateSnapshot, Writes};
use crate::seams::faults::{self, Fault};

#[cfg(test)]
mod tests;

/// How many keys a fold hands to the backend at a time.
const FOLD_CHUNK_KEYS: usize = 32 * 1024;

/// The one writer of a store with versions.
pub struct VersionedStore {
    backend: Box<dyn StateBackend>,
    versions: Arc<Versions>,
    newest_sender: watch::Sender<u64>,
    overlay_bytes: Arc<AtomicUsize>,
    /// Whether the base has changes that no version shows yet.
    is_ahead: bool,
}

/// The versions of a store, for any number of readers on any thread.
pub struct Versions {
    published: RwLock<Published>,
    newest_receiver: watch::Receiver<u64>,
}

/// What readers see.
struct Published {
    oldest: u64,
    newest: u64,
    /// In order; the last is the present.
    generations: VecDeque<Generation>,
}

/// A base and what changed after it, until the next generation's base.
#[derive(Clone)]
struct Generation {
    base_version: u64,
    base: Arc<dyn StateSnapshot>,
    overlays: Vec<Arc<Overlay>>,
}

impl VersionedStore {
    /// A store over `backend`, whose content is that of `base_version`, the only version so far.
    pub fn new(backend: Box<dyn StateBackend>, base_version: u64) -> Result<(VersionedStore, Arc<Versions>)> {
        let present = Generation { base_version, base: backend.snapshot()?, overlays: Vec::new() };
        let (newest_sender, newest_receiver) = watch::channel(base_version);
        let published = Published { oldest: base_version, newest: base_version, generations: VecDeque::from([present]) };
        let versions = Arc::new(Versions { published: RwLock::new(published), newest_receiver });
        let store = VersionedStore {
            backend,
            versions: versions.clone(),
            newest_sender,
            overlay_bytes: Arc::new(AtomicUsize::new(0)),
            is_ahead: false,
        };
        Ok((store, versions))
    }

    /// The newest version.
    pub fn newest(&self) -> u64 {
        self.versions.published.read().newest
    }

    /// Looks up `keys`, sorted and distinct, in the newest version and what was written ahead of the next. `found(i, value)` is called once for each key that exists, in no order.
    pub fn get_latest(&self, keys: &[&[u8]], found: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let overlays = self.versions.published.read().present().overlays.clone();
        multi_get(&overlays, keys, found, |keys, found| self.backend.multi_get(keys, found))
    }

    /// Makes `changes` (sorted by key, at most one a key) visible as `version`, which must be newer than all before.
    pub fn write(&mut self, version: u64, changes: Writes) -> Result<()> {
        if changes.is_empty() {
            return self.advance(version);
        }
        if self.is_ahead {
            self.backend.write(&changes)?;
            return self.advance(version);
        }
        let overlay = Arc::new(Overlay::new(version, changes, self.overlay_bytes.clone()));
        self.publish(version, |present| present.overlays.push(overlay))
    }

    /// Makes `version` the newest; nothing changed up to it.
    pub fn advance(&mut self, version: u64) -> Result<()> {
        if version == self.newest() {
            return Ok(());
        }
        if !self.is_ahead {
            return self.publish(version, |_| {});
        }
        let present = Generation { base_version: version, base: self.backend.snapshot()?, overlays: Vec::new() };
        self.publish(version, |_| {})?;
        self.is_ahead = false;
        self.begin(present, 0);
        Ok(())
    }

    /// Writes a part of what the next version changes (sorted by key, at most one a key) into the base. The next [`VersionedStore::write`] or
    /// [`VersionedStore::advance`] makes it visible; no version before shows it. All that is published is folded first, and an error leaves the store as
    /// [`VersionedStore::fold`] does.
    pub fn write_ahead(&mut self, changes: &Writes) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        self.fold(self.newest())?;
        self.is_ahead = true;
        self.backend.write(changes)
    }

    /// Whether something was written ahead of the next version.
    pub fn is_ahead(&self) -> bool {
        self.is_ahead
    }

    /// Makes `present` the present generation; `kept` overlays stay in the former one.
    fn begin(&mut self, present: Generation, kept: usize) {
        let mut published = self.versions.published.write();
        published.present_mut().overlays.truncate(kept);
        published.generations.push_back(present);
        let unneeded = published.take_unneeded();
        drop(published);
        drop(unneeded);
    }

    fn publish(&mut self, version: u64, change: impl FnOnce(&mut Generation)) -> Result<()> {
        let mut published = self.versions.published.write();
        if version <= published.newest {
            return Err(Error::internal(format!("version {version} comes after version {}", published.newest)));
        }
        change(published.present_mut());
        published.newest = version;
        drop(published);
        self.newest_sender.send_replace(version);
        Ok(())
    }

    /// Writes the overlays up to version `through` into the base, which is then exact at `through`. All readable versions stay readable.
    ///
    /// `through` is between the oldest needed version and the newest, and not before an earlier fold's. After an error the store must not be used on: the base may have a part
    /// of what was to be written.
    pub fn fold(&mut self, through: u64) -> Result<()> {
        let (overlays, base_version, newest) = {
            let published = self.versions.published.read();
            (published.present().overlays.clone(), published.present().base_version, published.newest)
        };
        let count = overlays.iter().take_while(|overlay| overlay.through <= through).count();
        let is_split = overlays.get(count).is_some_and(|overlay| overlay.first <= through);
        if through < base_version || through > newest || is_split {
            return Err(Error::internal(format!("version {through} cannot be folded: it is not among those that are kept one by one")));
        }
        if count == 0 {
            return Ok(());
        }
        let loses_deletions = faults::is_planted(Fault::DeletionLostInFold);
        let mut changes = MergedOverlays::new(&overlays[..count], &[], &[]);
        self.backend.write_all(&mut |writes| {
            while writes.len() < FOLD_CHUNK_KEYS
                && let Some((key, value)) = changes.next()
            {
                if value.is_some() || !loses_deletions {
                    writes.push(key, value)?;
                }
            }
            Ok(!writes.is_empty())
        })?;
        let present = Generation { base_version: through, base: self.backend.snapshot()?, overlays: overlays[count..].to_vec() };
        self.begin(present, count);
        Ok(())
    }

    /// Versions before `oldest_needed` need not be readable any more (those that a reader has open stay so for it).
    pub fn release(&mut self, oldest_needed: u64) -> Result<()> {
        let mut published = self.versions.published.write();
        published.oldest = oldest_needed.clamp(published.oldest, published.newest);
        let unneeded = published.take_unneeded();
        let oldest = published.oldest;
        let mut overlays = published.present().overlays.clone();
        drop(published);
        drop(unneeded);
        // Only this thread writes, so what was read above is still what is published.
        let count = overlays.iter().take_while(|overlay| overlay.through <= oldest).count();
        if merge_geometrically(&mut overlays, count, &self.overlay_bytes)? {
            self.versions.published.write().present_mut().overlays = overlays;
        }
        Ok(())
    }

    /// The base. Its content is that of the last fold, whatever overlays there are.
    pub fn backend(&self) -> &dyn StateBackend {
        self.backend.as_ref()
    }

    /// The base, to checkpoint it. To write into it would change what readers of the present generation see after the next fold.
    pub fn backend_mut(&mut self) -> &mut dyn StateBackend {
        self.backend.as_mut()
    }

    /// The bytes of memory in overlays, also in those that only open readers hold.
    pub fn overlay_bytes(&self) -> usize {
        self.overlay_bytes.load(Ordering::Relaxed)
    }
}

/// Merges neighbours among the first `count` overlays until each is at least twice as large as the next. Returns whether anything was merged.
fn merge_geometrically(overlays: &mut Vec<Arc<Overlay>>, count: usize, bytes: &Arc<AtomicUsize>) -> Result<bool> {
    // Runs of overlays to make one of each, with their number of entries.
    let mut runs: Vec<(std::ops::Range<usize>, usize)> = Vec::new();
    for (i, overlay) in overlays[..count].iter().enumerate() {
        let (mut run, mut size) = (i..i + 1, overlay.len());
        while let Some((before, size_before)) = runs.pop_if(|(_, size_before)| *size_before < 2 * size) {
            run.start = before.start;
            size += size_before;
        }
        runs.push((run, size));
    }
    if runs.len() == count {
        return Ok(false);
    }
    let mut merged = Vec::with_capacity(runs.len() + overlays.len() - count);
    for (run, _) in runs {
        merged.push(if run.len() == 1 { overlays[run.start].clone() } else { Arc::new(merge(&overlays[run], bytes.clone())?) });
    }
    merged.extend_from_slice(&overlays[count..]);
    *overlays = merged;
    Ok(true)
}

impl Published {
    fn present(&self) -> &Generation {
        self.generations.back().expect("a store always has a present generation")
    }

    fn present_mut(&mut self) -> &mut Generation {
        self.generations.back_mut().expect("a store always has a present generation")
    }

    /// Takes out the generations none of whose versions is needed, for the caller to drop without the lock.
    fn take_unneeded(&mut self) -> Vec<Generation> {
        let count = self.generations.iter().skip(1).take_while(|next| next.base_version <= self.oldest).count();
        self.generations.drain(..count).collect()
    }
}

impl Versions {
    /// The oldest and the newest version that can be opened.
    pub fn range(&self) -> (u64, u64) {
        let published = self.published.read();
        (published.oldest, published.newest)
    }

    /// The store as of `version`, or `None` if it is not, or no longer, there. What is opened stays readable for as long as it is held.
    pub fn open(&self, version: u64) -> Option<Arc<VersionSnapshot>> {
        let published = self.published.read();
        if version < published.oldest || version > published.newest {
            return None;
        }
        let generation = published.generations.iter().rev().find(|generation| generation.base_version <= version)?;
        let count = generation.overlays.partition_point(|overlay| overlay.through <= version);
        let content = OverlaidSnapshot { base: generation.base.clone(), overlays: generation.overlays[..count].to_vec() };
        Some(Arc::new(VersionSnapshot { version, content }))
    }

    /// The newest version, to wait for its changes. The channel closes when the writer is gone.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.newest_receiver.clone()
    }
}

/// A store's content as of one version.
pub struct VersionSnapshot {
    version: u64,
    content: OverlaidSnapshot,
}

impl VersionSnapshot {
    /// Which version it is.
    pub fn version(&self) -> u64 {
        self.version
    }
}

impl StateSnapshot for VersionSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.content.get(key)
    }

    fn iter<'a>(&'a self, from: &[u8], to: &[u8]) -> Box<dyn Iterator<Item = Result<Entry>> + Send + 'a> {
        self.content.iter(from, to)
    }

    fn scan(&self, from: &[u8], to: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        self.content.scan(from, to, each)
    }
}
