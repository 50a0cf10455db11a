//! Key groups: the unit in which keyed state moves between subtasks.
//!
//! A key's group is XXH3-64 (seed 0) of its encoded form modulo [`MAX_PARALLELISM`]; a subtask owns a contiguous range of groups, as in Flink's
//! `KeyGroupRangeAssignment`. Both are part of the durable format.

use xxhash_rust::xxh3::xxh3_64;

/// The number of a key group.
pub type KeyGroup = u16;

/// The number of key groups, and so the highest parallelism.
pub const MAX_PARALLELISM: usize = 128;

/// The hash of an encoded key that its key group and its place in hash tables derive from.
#[inline]
pub fn key_hash(encoded_key: &[u8]) -> u64 {
    xxh3_64(encoded_key)
}

/// The key group of a key with this [`key_hash`].
#[inline]
pub fn key_group(hash: u64) -> KeyGroup {
    (hash % MAX_PARALLELISM as u64) as KeyGroup
}

/// The subtask that owns `group` among `parallelism`.
#[inline]
pub fn subtask_of(group: KeyGroup, parallelism: usize) -> usize {
    group as usize * parallelism / MAX_PARALLELISM
}

/// The key groups `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct KeyGroupRange {
    pub start: KeyGroup,
    /// One past the last.
    pub end: KeyGroup,
}

impl KeyGroupRange {
    /// All key groups.
    pub const ALL: KeyGroupRange = KeyGroupRange { start: 0, end: MAX_PARALLELISM as KeyGroup };

    /// The groups that `subtask` of `parallelism` owns: exactly those that [`subtask_of`] sends to it.
    pub fn of_subtask(subtask: usize, parallelism: usize) -> KeyGroupRange {
        let start = (subtask * MAX_PARALLELISM).div_ceil(parallelism);
        let end = ((subtask + 1) * MAX_PARALLELISM).div_ceil(parallelism);
        KeyGroupRange { start: start as KeyGroup, end: end as KeyGroup }
    }

    /// Whether `group` is one of them.
    pub fn contains(&self, group: KeyGroup) -> bool {
        (self.start..self.end).contains(&group)
    }

    /// Whether the two have a group in common.
    pub fn overlaps(&self, other: &KeyGroupRange) -> bool {
        self.start < other.end && other.start < self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_agree_with_the_assignment() {
        for parallelism in 1..=MAX_PARALLELISM {
            for group in 0..MAX_PARALLELISM as KeyGroup {
                let owner = subtask_of(group, parallelism);
                for subtask in 0..parallelism {
                    assert_eq!(KeyGroupRange::of_subtask(subtask, parallelism).contains(group), subtask == owner);
                }
            }
        }
    }
}
