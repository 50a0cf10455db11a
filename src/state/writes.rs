//! Changes on their way into a state: keys with their new values, one after another in one buffer.

use weir_catalog::{Error, Result, SqlState};

/// In place of a value's length: the key is deleted.
const DELETED: u32 = u32::MAX;

/// Keys with their new value, or with none to delete them.
///
/// Most users want them sorted and distinct: [`Writes::sort`] sorts, [`Writes::is_sorted`] says whether they are both.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Writes {
    bytes: Vec<u8>,
    places: Vec<Place>,
}

/// Where an entry stands in the bytes: its key, and behind it its value.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    start: usize,
    key_length: u32,
    value_length: u32,
}

/// A key, and its new value, or `None` to delete it.
pub type Change<'a> = (&'a [u8], Option<&'a [u8]>);

impl Writes {
    /// No entries.
    pub fn new() -> Writes {
        Writes::default()
    }

    /// No entries, with room for `entries` of together `bytes` bytes of keys and values.
    pub fn with_capacity(entries: usize, bytes: usize) -> Writes {
        Writes { bytes: Vec::with_capacity(bytes), places: Vec::with_capacity(entries) }
    }

    /// Adds an entry. Errors with `54000` where key or value has 4 GiB or more.
    #[inline]
    pub fn push(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.push_parts(&[key], value)
    }

    /// Adds an entry whose key is `key_parts` one after another. Errors as [`Writes::push`] does.
    #[inline]
    pub fn push_parts(&mut self, key_parts: &[&[u8]], value: Option<&[u8]>) -> Result<()> {
        let start = self.bytes.len();
        key_parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        let key_length = self.bytes.len() - start;
        self.bytes.extend_from_slice(value.unwrap_or_default());
        let length = |length: usize| u32::try_from(length).ok().filter(|length| *length != DELETED);
        let (Some(key_length), Some(value_length)) = (length(key_length), value.map_or(Some(DELETED), |value| length(value.len()))) else {
            self.bytes.truncate(start);
            return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "a row is over 4 GiB"));
        };
        self.places.push(Place { start, key_length, value_length });
        Ok(())
    }

    /// The entries of `parts`, one after another, with room for no more.
    pub fn joined(parts: &[Writes]) -> Writes {
        let entries = parts.iter().map(Writes::len).sum();
        let mut joined = Writes::with_capacity(entries, parts.iter().map(Writes::content_bytes).sum());
        for part in parts {
            let offset = joined.bytes.len();
            joined.bytes.extend_from_slice(&part.bytes);
            joined.places.extend(part.places.iter().map(|place| Place { start: offset + place.start, ..*place }));
        }
        joined
    }

    /// The number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Removes all entries and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.places.clear();
    }

    /// The key of entry `i`.
    #[inline]
    pub fn key(&self, i: usize) -> &[u8] {
        let place = self.places[i];
        &self.bytes[place.start..place.start + place.key_length as usize]
    }

    /// Entry `i`.
    #[inline]
    pub fn get(&self, i: usize) -> Change<'_> {
        let place = self.places[i];
        let value_start = place.start + place.key_length as usize;
        let value = (place.value_length != DELETED).then(|| &self.bytes[value_start..value_start + place.value_length as usize]);
        (&self.bytes[place.start..value_start], value)
    }

    /// The entries in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Change<'_>> {
        (0..self.len()).map(|i| self.get(i))
    }

    /// Brings the entries into key order. Equal keys stay neighbours, in no order among themselves.
    pub fn sort(&mut self) {
        let bytes = &self.bytes;
        let key = |place: &Place| &bytes[place.start..place.start + place.key_length as usize];
        self.places.sort_unstable_by(|a, b| key(a).cmp(key(b)));
    }

    /// Whether the keys are in order and distinct.
    pub fn is_sorted(&self) -> bool {
        (1..self.len()).all(|i| self.key(i - 1) < self.key(i))
    }

    /// The position of `key` among sorted entries, or where it would stand.
    pub fn search(&self, key: &[u8]) -> std::result::Result<usize, usize> {
        self.places.binary_search_by(|place| self.bytes[place.start..place.start + place.key_length as usize].cmp(key))
    }

    /// The bytes of keys and values.
    pub fn content_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes of memory in use.
    pub fn used_bytes(&self) -> usize {
        self.bytes.len() + self.places.len() * size_of::<Place>()
    }

    /// The bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.places.capacity() * size_of::<Place>()
    }

    /// Gives memory back where much more is held than used.
    pub fn trim(&mut self) {
        if self.bytes.capacity() > self.bytes.len() + self.bytes.len() / 4 {
            self.bytes.shrink_to_fit();
        }
        if self.places.capacity() > self.places.len() + self.places.len() / 4 {
            self.places.shrink_to_fit();
        }
    }
}

impl std::fmt::Debug for Writes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}

/// For small collections at hand.
///
/// # Panics
/// Where a key or value has 4 GiB or more.
impl<K: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(K, Option<V>)> for Writes {
    fn from_iter<I: IntoIterator<Item = (K, Option<V>)>>(entries: I) -> Writes {
        let mut writes = Writes::new();
        for (key, value) in entries {
            let pushed = writes.push(key.as_ref(), value.as_ref().map(AsRef::as_ref));
            assert!(pushed.is_ok(), "an entry is over 4 GiB");
        }
        writes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_as_they_went_in() {
        let mut writes = Writes::new();
        writes.push(b"b", Some(b"two")).unwrap();
        writes.push_parts(&[b"a", b"", b"x"], None).unwrap();
        writes.push(b"", Some(b"")).unwrap();
        let entries: Vec<Change<'_>> = writes.iter().collect();
        assert_eq!(entries, [(&b"b"[..], Some(&b"two"[..])), (b"ax", None), (b"", Some(b""))]);
        assert!(!writes.is_sorted());
        writes.sort();
        let entries: Vec<Change<'_>> = writes.iter().collect();
        assert_eq!(entries, [(&b""[..], Some(&b""[..])), (b"ax", None), (b"b", Some(&b"two"[..]))]);
        assert!(writes.is_sorted());
        assert_eq!((writes.search(b"ax"), writes.search(b"az")), (Ok(1), Err(2)));
        writes.push(b"b", None).unwrap();
        assert!(!writes.is_sorted(), "equal keys are not sorted and distinct");
        let mut first = Writes::new();
        first.push(b"0", None).unwrap();
        let both = Writes::joined(&[first, Writes::new(), writes.clone()]);
        assert_eq!(both.used_bytes(), both.memory_bytes());
        let entries: Vec<Change<'_>> = both.iter().collect();
        assert_eq!(entries[0], (&b"0"[..], None));
        assert_eq!(entries[1..], writes.iter().collect::<Vec<_>>());
        writes.clear();
        assert!(writes.is_empty() && writes.content_bytes() == 0);
    }
}
