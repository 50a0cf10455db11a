//! What leads from one state to another: both are read in key order, side by side.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_catalog::Result;

use super::{Entry, StateSnapshot};

/// How many entries are read at a time.
const CHUNK: usize = 4096;

/// The entries of a range, read piece by piece.
pub struct Entries {
    snapshot: Arc<dyn StateSnapshot>,
    /// Where the next piece begins; `None`: all has been read.
    from: Option<Vec<u8>>,
    to: Vec<u8>,
    /// The bytes at the beginning of each key that don't tell entries apart.
    prefix_bytes: usize,
    read: VecDeque<Entry>,
}

impl Entries {
    /// Those of `snapshot` with keys in `from..to`, where an empty `to` means no end. Keys are compared, and given, without their first `prefix_bytes`.
    pub fn new(snapshot: Arc<dyn StateSnapshot>, from: Vec<u8>, to: Vec<u8>, prefix_bytes: usize) -> Entries {
        Entries { snapshot, from: Some(from), to, prefix_bytes, read: VecDeque::new() }
    }

    fn fill(&mut self) -> Result<()> {
        if !self.read.is_empty() {
            return Ok(());
        }
        let Some(from) = self.from.take() else { return Ok(()) };
        for entry in self.snapshot.iter(&from, &self.to) {
            let entry = entry?;
            if self.read.len() == CHUNK {
                self.from = Some(entry.0.to_vec());
                break;
            }
            self.read.push_back(entry);
        }
        Ok(())
    }

    fn key(&self) -> Option<&[u8]> {
        self.read.front().map(|(key, _)| key.get(self.prefix_bytes..).unwrap_or_default())
    }
}

/// The difference between two states.
pub struct Difference {
    old: Entries,
    new: Entries,
    /// Equal keys are of the same thing. Otherwise all of the old one goes, and all of the new one comes.
    related: bool,
}

/// What became of a key: its value before, and now.
pub type Change = (Box<[u8]>, Option<Box<[u8]>>, Option<Box<[u8]>>);

impl Difference {
    /// What leads from `old` to `new`.
    pub fn new(old: Entries, new: Entries, related: bool) -> Difference {
        Difference { old, new, related }
    }

    /// The next entry that is not the same in both, with its key as [`Entries::new`] says; `None` at the end.
    pub fn next_change(&mut self) -> Result<Option<Change>> {
        loop {
            self.old.fill()?;
            self.new.fill()?;
            let order = match (self.old.key(), self.new.key()) {
                (None, None) => return Ok(None),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(_), Some(_)) if !self.related => std::cmp::Ordering::Less,
                (Some(old), Some(new)) => old.cmp(new),
            };
            let old = if order.is_le() { self.old.read.pop_front() } else { None };
            let new = if order.is_ge() { self.new.read.pop_front() } else { None };
            let prefix_bytes = if old.is_some() { self.old.prefix_bytes } else { self.new.prefix_bytes };
            let is_same = old.as_ref().map(|(_, value)| value) == new.as_ref().map(|(_, value)| value);
            if !is_same && let Some(key) = old.as_ref().or(new.as_ref()).map(|(key, _)| key.get(prefix_bytes..).unwrap_or_default().into())
            {
                return Ok(Some((key, old.map(|(_, value)| value), new.map(|(_, value)| value))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seams::random::Random;
    use crate::state::{MemoryBackend, StateBackend, Writes};
    use std::collections::BTreeMap;

    fn entries(content: &BTreeMap<String, String>, prefix: &str) -> Entries {
        let mut backend = MemoryBackend::new();
        let mut writes = Writes::new();
        for (key, value) in content {
            writes.push(format!("{prefix}{key}").as_bytes(), Some(value.as_bytes())).unwrap();
        }
        backend.write(&writes).unwrap();
        Entries::new(backend.snapshot().unwrap(), prefix.as_bytes().to_vec(), format!("{prefix}~").into_bytes(), prefix.len())
    }

    #[test]
    fn the_changes_lead_from_one_to_the_other() {
        let mut random = Random::seeded(7);
        for round in 0..60 {
            // Some rounds have more than one piece.
            let most = if round % 10 == 0 { 3 * CHUNK as u64 } else { 12 };
            let mut content = || -> BTreeMap<String, String> {
                (0..random.below(most)).map(|_| (format!("{:06}", random.below(most)), random.below(3).to_string())).collect()
            };
            let (old, new) = (content(), content());
            for related in [true, false] {
                let mut difference = Difference::new(entries(&old, "a"), entries(&new, "bb"), related);
                let mut state = old.clone();
                let (mut changes, mut came) = (0, BTreeMap::new());
                while let Some((key, before, now)) = difference.next_change().unwrap() {
                    changes += 1;
                    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                    let key = text(&key);
                    assert_ne!(before, now);
                    if let Some(before) = before {
                        assert_eq!(state.remove(&key), Some(text(&before)), "round {round}");
                    }
                    if let Some(now) = now {
                        came.insert(key, text(&now));
                    }
                }
                state.extend(came);
                assert_eq!(state, new, "round {round}");
                let differing = old.keys().chain(new.keys()).filter(|key| old.get(*key) != new.get(*key));
                let expected = if related { differing.collect::<std::collections::BTreeSet<_>>().len() } else { old.len() + new.len() };
                assert_eq!(changes, expected, "round {round}");
            }
        }
    }
}
