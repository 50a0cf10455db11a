//! Overlays: what changed from one version to another, sorted by key, and merges of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_catalog::{Error, Result};

use super::super::is_before;
use super::super::writes::{Change, Writes};

/// The net changes after one version, up to another. It never changes itself.
pub(super) struct Overlay {
    /// The oldest version whose changes are in it.
    pub first: u64,
    /// The newest version whose changes are in it: the one that it leads to.
    pub through: u64,
    changes: Writes,
    /// Where its memory is counted.
    counter: Arc<AtomicUsize>,
    counted_bytes: usize,
}

impl Overlay {
    /// The overlay of one version. `changes` are sorted by key, at most one a key.
    pub fn new(through: u64, changes: Writes, counter: Arc<AtomicUsize>) -> Overlay {
        debug_assert!(changes.is_sorted(), "changes are sorted and distinct");
        Overlay::build(through, through, changes, counter)
    }

    fn build(first: u64, through: u64, mut changes: Writes, counter: Arc<AtomicUsize>) -> Overlay {
        changes.trim();
        let counted_bytes = size_of::<Overlay>() + changes.memory_bytes();
        counter.fetch_add(counted_bytes, Ordering::Relaxed);
        Overlay { first, through, changes, counter, counted_bytes }
    }

    /// The number of changed keys.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    fn key(&self, i: usize) -> &[u8] {
        self.changes.key(i)
    }

    fn change(&self, i: usize) -> Change<'_> {
        self.changes.get(i)
    }

    /// The number of keys before `key`.
    fn rank(&self, key: &[u8], from: usize) -> usize {
        // Lookups come in key order, so the place is often near: widen the step until it is passed.
        let mut step = 1;
        let mut low = from;
        while low + step <= self.len() && self.key(low + step - 1) < key {
            low += step;
            step *= 2;
        }
        let high = (low + step).min(self.len());
        let (mut low, mut high) = (low, high);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.key(middle) < key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// What `key` was changed to, if it was.
    pub fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        let place = self.changes.search(key).ok()?;
        Some(self.change(place).1)
    }

    /// Reports those of the sorted `keys` that are changed here, and takes them from `missing`, which holds indexes of keys.
    pub fn take_found(&self, keys: &[&[u8]], missing: &mut Vec<usize>, found: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let mut place = 0;
        let mut result = Ok(());
        missing.retain(|i| {
            if result.is_err() {
                return true;
            }
            place = self.rank(keys[*i], place);
            if place == self.len() || self.key(place) != keys[*i] {
                return true;
            }
            if let (_, Some(value)) = self.change(place) {
                result = found(*i, value);
            }
            false
        });
        result
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        self.counter.fetch_sub(self.counted_bytes, Ordering::Relaxed);
    }
}

/// One overlay in place of neighbours, given from the oldest to the newest.
pub(super) fn merge(overlays: &[Arc<Overlay>], counter: Arc<AtomicUsize>) -> Result<Overlay> {
    let (Some(first), Some(last)) = (overlays.first(), overlays.last()) else {
        return Err(Error::internal("no overlays to merge"));
    };
    let max_entries = overlays.iter().map(|overlay| overlay.len()).sum();
    let max_bytes = overlays.iter().map(|overlay| overlay.changes.content_bytes()).sum();
    let mut changes = Writes::with_capacity(max_entries, max_bytes);
    MergedOverlays::new(overlays, &[], &[]).try_for_each(|(key, value)| changes.push(key, value))?;
    Ok(Overlay::build(first.first, last.through, changes, counter))
}

/// The changes of several overlays in key order, the newest of each key.
pub(super) struct MergedOverlays<'a> {
    /// From the newest to the oldest, each with the place of its next entry and its end.
    cursors: Vec<(&'a Overlay, usize, usize)>,
    /// The cursor with the smallest next key; the newest of equal ones.
    next: Option<usize>,
}

impl<'a> MergedOverlays<'a> {
    /// The changes in `from..to` of overlays given from the oldest to the newest. An empty `to` means no upper bound.
    pub fn new(overlays: &'a [Arc<Overlay>], from: &[u8], to: &[u8]) -> MergedOverlays<'a> {
        let cursors = overlays.iter().rev().map(|overlay| {
            let start = overlay.rank(from, 0);
            let end = if to.is_empty() { overlay.len() } else { overlay.rank(to, start) };
            debug_assert!(start == end || is_before(overlay.key(end - 1), to));
            (overlay.as_ref(), start, end)
        });
        let mut merged = MergedOverlays { cursors: cursors.filter(|(_, start, end)| start < end).collect(), next: None };
        merged.find_next();
        merged
    }

    fn find_next(&mut self) {
        let mut next: Option<(usize, &[u8])> = None;
        for (i, (overlay, place, end)) in self.cursors.iter().enumerate() {
            if place < end && next.is_none_or(|(_, smallest)| overlay.key(*place) < smallest) {
                next = Some((i, overlay.key(*place)));
            }
        }
        self.next = next.map(|(i, _)| i);
    }

    /// The next change, which stays.
    pub fn peek(&self) -> Option<Change<'a>> {
        let (overlay, place, _) = self.cursors[self.next?];
        Some(overlay.change(place))
    }
}

impl<'a> Iterator for MergedOverlays<'a> {
    type Item = Change<'a>;

    fn next(&mut self) -> Option<Change<'a>> {
        let change = self.peek()?;
        for (overlay, place, end) in &mut self.cursors {
            if *place < *end && overlay.key(*place) == change.0 {
                *place += 1;
            }
        }
        self.find_next();
        Some(change)
    }
}
