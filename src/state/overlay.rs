//! Overlays: what changed from one version to another, sorted by key, and merges of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_catalog::{Error, Result};

use super::writes::{Change, Writes};
use super::{Entry, StateSnapshot, is_before};

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

    /// The bytes of memory that it holds.
    pub fn memory_bytes(&self) -> usize {
        self.counted_bytes
    }

    /// Its changes, sorted by key, at most one a key.
    pub fn changes(&self) -> &Writes {
        &self.changes
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

/// Looks `keys` up, sorted and distinct, in overlays from the oldest to the newest, and those that none has changed in what lies under them.
pub(super) fn multi_get(
    overlays: &[Arc<Overlay>],
    keys: &[&[u8]],
    found: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    base: impl FnOnce(&[&[u8]], &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()>,
) -> Result<()> {
    if overlays.is_empty() {
        return base(keys, found);
    }
    let mut missing: Vec<usize> = (0..keys.len()).collect();
    for overlay in overlays.iter().rev() {
        overlay.take_found(keys, &mut missing, found)?;
    }
    if missing.is_empty() {
        return Ok(());
    }
    let missing_keys: Vec<&[u8]> = missing.iter().map(|i| keys[*i]).collect();
    base(&missing_keys, &mut |i, value| found(missing[i], value))
}

/// What one entry of a scan is shown to; false ends it.
pub(super) type Each<'a> = dyn FnMut(&[u8], &[u8]) -> Result<bool> + 'a;

/// Calls `each` for the entries in `from..to` of overlays (from the oldest to the newest) over what `base` calls its argument for, until it returns false.
pub(super) fn scan(
    overlays: &[Arc<Overlay>],
    (from, to): (&[u8], &[u8]),
    each: &mut Each<'_>,
    base: impl FnOnce(&mut Each<'_>) -> Result<()>,
) -> Result<()> {
    let mut changes = MergedOverlays::new(overlays, from, to);
    let mut goes_on = true;
    base(&mut |key, value| {
        while let Some((changed_key, change)) = changes.peek() {
            if changed_key > key {
                break;
            }
            changes.next();
            if let Some(new_value) = change {
                goes_on = each(changed_key, new_value)?;
                if !goes_on {
                    return Ok(false);
                }
            }
            if changed_key == key {
                return Ok(true);
            }
        }
        goes_on = each(key, value)?;
        Ok(goes_on)
    })?;
    while goes_on && let Some((key, change)) = changes.next() {
        if let Some(value) = change {
            goes_on = each(key, value)?;
        }
    }
    Ok(())
}

/// Overlays, from the oldest to the newest, over a snapshot.
pub(super) struct OverlaidSnapshot {
    pub base: Arc<dyn StateSnapshot>,
    pub overlays: Vec<Arc<Overlay>>,
}

impl StateSnapshot for OverlaidSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        for overlay in self.overlays.iter().rev() {
            if let Some(value) = overlay.get(key) {
                return Ok(value.map(<[u8]>::to_vec));
            }
        }
        self.base.get(key)
    }

    fn iter<'a>(&'a self, from: &[u8], to: &[u8]) -> Box<dyn Iterator<Item = Result<Entry>> + Send + 'a> {
        let base = self.base.iter(from, to);
        if self.overlays.is_empty() {
            return base;
        }
        Box::new(OverlaidEntries { changes: MergedOverlays::new(&self.overlays, from, to), base, base_entry: None, is_done: false })
    }

    fn scan(&self, from: &[u8], to: &[u8], each: &mut Each<'_>) -> Result<()> {
        scan(&self.overlays, (from, to), each, |each| self.base.scan(from, to, each))
    }
}

struct OverlaidEntries<'a> {
    changes: MergedOverlays<'a>,
    base: Box<dyn Iterator<Item = Result<Entry>> + Send + 'a>,
    /// The next entry of the base.
    base_entry: Option<Entry>,
    is_done: bool,
}

impl Iterator for OverlaidEntries<'_> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        loop {
            if self.base_entry.is_none() && !self.is_done {
                match self.base.next() {
                    Some(Ok(entry)) => self.base_entry = Some(entry),
                    Some(Err(error)) => return Some(Err(error)),
                    None => self.is_done = true,
                }
            }
            let Some((key, change)) = self.changes.peek() else {
                return self.base_entry.take().map(Ok);
            };
            if let Some((base_key, _)) = &self.base_entry {
                if base_key.as_ref() < key {
                    return self.base_entry.take().map(Ok);
                }
                if base_key.as_ref() == key {
                    self.base_entry = None;
                }
            }
            self.changes.next();
            if let Some(value) = change {
                return Some(Ok((Box::from(key), Box::from(value))));
            }
        }
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
    /// From the newest to the oldest.
    cursors: Vec<Cursor<'a>>,
    /// The cursor with the smallest next key; the newest of equal ones.
    next: Option<usize>,
    /// The smallest next key of all others. Keys often lie in stretches of one overlay: up to this key nothing but that one need be looked at.
    second: Option<Position<'a>>,
}

/// The part of an overlay that is still to come.
struct Cursor<'a> {
    overlay: &'a Overlay,
    place: usize,
    end: usize,
}

impl<'a> Cursor<'a> {
    fn position(&self) -> Option<Position<'a>> {
        (self.place < self.end).then(|| Position::of(self.overlay.key(self.place)))
    }
}

/// A key, and the bytes that it begins with as a number: that settles most comparisons.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Position<'a> {
    /// Filled up with zeros, so that it never orders keys otherwise than they are.
    head: u128,
    key: &'a [u8],
}

impl<'a> Position<'a> {
    #[inline]
    fn of(key: &'a [u8]) -> Position<'a> {
        let mut head = [0; 16];
        let length = key.len().min(head.len());
        head[..length].copy_from_slice(&key[..length]);
        Position { head: u128::from_be_bytes(head), key }
    }
}

impl<'a> MergedOverlays<'a> {
    /// The changes in `from..to` of overlays given from the oldest to the newest. An empty `to` means no upper bound.
    pub fn new(overlays: &'a [Arc<Overlay>], from: &[u8], to: &[u8]) -> MergedOverlays<'a> {
        let cursors = overlays.iter().rev().map(|overlay| {
            let place = overlay.rank(from, 0);
            let end = if to.is_empty() { overlay.len() } else { overlay.rank(to, place) };
            debug_assert!(place == end || is_before(overlay.key(end - 1), to));
            Cursor { overlay: overlay.as_ref(), place, end }
        });
        let mut merged = MergedOverlays { cursors: cursors.filter(|cursor| cursor.place < cursor.end).collect(), next: None, second: None };
        merged.find_next();
        merged
    }

    fn find_next(&mut self) {
        let (mut next, mut second): (Option<(usize, Position<'a>)>, Option<Position<'a>>) = (None, None);
        for (i, cursor) in self.cursors.iter().enumerate() {
            let Some(position) = cursor.position() else { continue };
            match next {
                Some((_, smallest)) if smallest <= position => {
                    if second.is_none_or(|second| position < second) {
                        second = Some(position);
                    }
                }
                _ => {
                    second = next.map(|(_, position)| position);
                    next = Some((i, position));
                }
            }
        }
        self.next = next.map(|(i, _)| i);
        self.second = second;
    }

    /// The next change, which stays.
    pub fn peek(&self) -> Option<Change<'a>> {
        let cursor = &self.cursors[self.next?];
        Some(cursor.overlay.change(cursor.place))
    }
}

impl<'a> Iterator for MergedOverlays<'a> {
    type Item = Change<'a>;

    fn next(&mut self) -> Option<Change<'a>> {
        let at = self.next?;
        let change = self.peek()?;
        if self.second.is_some_and(|second| second.key == change.0) {
            // It hides those of the older ones.
            for cursor in &mut self.cursors {
                if cursor.place < cursor.end && cursor.overlay.key(cursor.place) == change.0 {
                    cursor.place += 1;
                }
            }
            self.find_next();
            return Some(change);
        }
        let cursor = &mut self.cursors[at];
        cursor.place += 1;
        let is_still_first = match (cursor.position(), self.second) {
            (Some(position), Some(second)) => position < second,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if !is_still_first {
            self.find_next();
        }
        Some(change)
    }
}
