//! Overlays: what changed from one version to another, sorted by key, and merges of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_catalog::{Error, Result, SqlState};

use super::super::{Writes, is_before};

/// In place of a value's length: the key was deleted.
const DELETED: u32 = u32::MAX;

/// The net changes after one version, up to another. It never changes itself.
pub(super) struct Overlay {
    /// The oldest version whose changes are in it.
    pub first: u64,
    /// The newest version whose changes are in it: the one that it leads to.
    pub through: u64,
    /// Keys and values, one after another.
    bytes: Vec<u8>,
    entries: Vec<Place>,
    /// Where its memory is counted.
    counter: Arc<AtomicUsize>,
    counted_bytes: usize,
}

/// Where an entry stands in the bytes: its key, and behind it its value.
#[derive(Clone, Copy)]
struct Place {
    start: usize,
    key_length: u32,
    value_length: u32,
}

/// A changed key, and its new value, or `None` if it was deleted.
pub(super) type Change<'a> = (&'a [u8], Option<&'a [u8]>);

impl Overlay {
    /// The overlay of one version. `changes` are sorted by key, at most one a key.
    pub fn new(through: u64, changes: Writes, counter: Arc<AtomicUsize>) -> Result<Overlay> {
        debug_assert!(changes.windows(2).all(|pair| pair[0].0 < pair[1].0), "changes are sorted and distinct");
        let length = changes.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len)).sum();
        let changes_in_order = changes.iter().map(|(key, value)| (key.as_slice(), value.as_deref()));
        Overlay::build(through, through, changes_in_order, changes.len(), length, counter)
    }

    fn build<'a>(
        first: u64,
        through: u64,
        changes: impl Iterator<Item = Change<'a>>,
        max_entries: usize,
        max_bytes: usize,
        counter: Arc<AtomicUsize>,
    ) -> Result<Overlay> {
        let mut bytes = Vec::with_capacity(max_bytes);
        let mut entries = Vec::with_capacity(max_entries);
        for (key, value) in changes {
            let start = bytes.len();
            let length = |part: &[u8]| u32::try_from(part.len()).ok().filter(|length| *length != DELETED);
            let (Some(key_length), Some(value_length)) = (length(key), value.map_or(Some(DELETED), length)) else {
                return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "a row is over 4 GiB"));
            };
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(value.unwrap_or_default());
            entries.push(Place { start, key_length, value_length });
        }
        if bytes.capacity() > bytes.len() + bytes.len() / 4 {
            bytes.shrink_to_fit();
            entries.shrink_to_fit();
        }
        let counted_bytes = size_of::<Overlay>() + bytes.capacity() + entries.capacity() * size_of::<Place>();
        counter.fetch_add(counted_bytes, Ordering::Relaxed);
        Ok(Overlay { first, through, bytes, entries, counter, counted_bytes })
    }

    /// The number of changed keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    fn key(&self, i: usize) -> &[u8] {
        let place = self.entries[i];
        &self.bytes[place.start..place.start + place.key_length as usize]
    }

    fn change(&self, i: usize) -> Change<'_> {
        let place = self.entries[i];
        let value_start = place.start + place.key_length as usize;
        let value = (place.value_length != DELETED).then(|| &self.bytes[value_start..value_start + place.value_length as usize]);
        (&self.bytes[place.start..value_start], value)
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
        let place =
            self.entries.binary_search_by(|place| self.bytes[place.start..place.start + place.key_length as usize].cmp(key)).ok()?;
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
    let max_bytes = overlays.iter().map(|overlay| overlay.bytes.len()).sum();
    Overlay::build(first.first, last.through, MergedOverlays::new(overlays, &[], &[]), max_entries, max_bytes, counter)
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

    /// All changes as writes to a backend.
    pub fn into_writes(self) -> Writes {
        self.map(|(key, value)| (key.to_vec(), value.map(<[u8]>::to_vec))).collect()
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
