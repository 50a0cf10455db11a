//! Which keys a backend surely does not have, known in memory: a key that comes for the first time needs no lookup.
//!
//! Every written key's hash goes into a Bloom filter. Such filters stand before the table files of a backend too, one for each file, behind a lookup's own
//! costs; the one here is asked once, before keys are sorted and anything is locked, whatever the number of files. Where the backend has keys from before
//! (after a restore), they are read bit by bit beside the work ([`KeyFilter::read_on`]), and until that is done every key counts as possible.
//!
//! A layer is a split block Bloom filter as Parquet defines it: blocks of 256 bits, eight words, of each of which a key sets one bit, so that a key costs
//! one cache line. A full layer is followed by a larger one; a key is absent if no layer has it.
//!
//! # Invariants
//! - A key that the backend has is never called absent: it is in a layer, or the filter is not complete.
//! - Deleted keys stay in. They cost lookups, nothing else.

use weir_catalog::Result;

use super::StateBackend;
use super::key_codec::{STATE_PREFIX_BYTES, append_state_prefix};
use crate::stream::key_group::{MAX_PARALLELISM, key_hash};

/// Bits a key in a full layer: one in two hundred absent keys is taken for a possible one then.
const BITS_PER_KEY: usize = 12;
const BLOCK_WORDS: usize = 8;
const KEYS_PER_BLOCK: usize = BLOCK_WORDS * 32 / BITS_PER_KEY;
const FIRST_LAYER_KEYS: usize = 32 * 1024;
const MOST_LAYER_KEYS: usize = 4 << 20;
/// With so many layers asking them costs as much as asking the backend: the filter gives up. About 130 million keys of one subtask.
const MOST_LAYERS: usize = 32;
/// How many keys of the backend are read at a time.
const READ_KEYS: usize = 8 * 1024;

/// The odd factors that give the bit in each word, as Parquet's format has them.
const SALTS: [u32; BLOCK_WORDS] = [0x47b6_137b, 0x4497_4d91, 0x8824_ad5b, 0xa2b7_289d, 0x7054_95c7, 0x2df1_424b, 0x9efc_4947, 0x5c6b_fb31];

#[derive(Debug)]
struct Layer {
    blocks: Vec<[u32; BLOCK_WORDS]>,
    keys: usize,
}

impl Layer {
    fn new(keys: usize) -> Layer {
        Layer { blocks: vec![[0; BLOCK_WORDS]; keys.div_ceil(KEYS_PER_BLOCK)], keys: 0 }
    }

    fn is_full(&self) -> bool {
        self.keys >= self.blocks.len() * KEYS_PER_BLOCK
    }

    #[inline]
    fn block(&self, hash: u64) -> usize {
        (((hash >> 32) * self.blocks.len() as u64) >> 32) as usize
    }

    #[inline]
    fn insert(&mut self, hash: u64) {
        let block = self.block(hash);
        for (word, bit) in self.blocks[block].iter_mut().zip(bits(hash)) {
            *word |= bit;
        }
        self.keys += 1;
    }

    #[inline]
    fn may_have(&self, hash: u64) -> bool {
        let words = &self.blocks[self.block(hash)];
        words.iter().zip(bits(hash)).fold(0, |missing, (word, bit)| missing | (!word & bit)) == 0
    }
}

/// The bit of each word of a block.
#[inline]
fn bits(hash: u64) -> [u32; BLOCK_WORDS] {
    SALTS.map(|salt| 1 << ((hash as u32).wrapping_mul(salt) >> 27))
}

/// All bits of the key's hash count: subtasks see only some values of its lowest ones, which are its key group.
#[inline]
fn mixed(hash: u64) -> u64 {
    let product = u128::from(hash) * 0x9E37_79B9_7F4A_7C15;
    (product >> 64) as u64 ^ product as u64
}

/// Where the reading of the keys from before stands.
#[derive(Debug)]
struct Reading {
    group: usize,
    /// The first key that has not been read.
    from: Vec<u8>,
}

/// The keys of one state tag that a backend may have.
#[derive(Debug)]
pub struct KeyFilter {
    layers: Vec<Layer>,
    reading: Option<Reading>,
    has_given_up: bool,
}

impl KeyFilter {
    /// A filter of a backend that is not known.
    pub fn new() -> KeyFilter {
        KeyFilter { layers: Vec::new(), reading: Some(Reading { group: 0, from: Vec::new() }), has_given_up: false }
    }

    /// Whether absent keys can be told.
    pub fn is_complete(&self) -> bool {
        self.reading.is_none() && !self.has_given_up
    }

    /// Reads some more of the keys under `tag` that `backend` has from before, where there are any left.
    pub fn read_on(&mut self, backend: &dyn StateBackend, tag: u8) -> Result<()> {
        let Some(mut reading) = self.reading.take() else { return Ok(()) };
        let mut left = READ_KEYS;
        while reading.group < MAX_PARALLELISM {
            let (mut start, mut end) = (Vec::new(), Vec::new());
            append_state_prefix(&mut start, reading.group as u16, tag);
            match tag.checked_add(1) {
                Some(next) => append_state_prefix(&mut end, reading.group as u16, next),
                None => append_state_prefix(&mut end, reading.group as u16 + 1, 0),
            }
            if reading.from < start {
                reading.from = start;
            }
            let mut stopped_at = None;
            backend.scan(&reading.from, &end, &mut |key, _| {
                if left == 0 {
                    stopped_at = Some(key.to_vec());
                    return Ok(false);
                }
                left -= 1;
                self.insert(key_hash(key.get(STATE_PREFIX_BYTES..).unwrap_or_default()));
                Ok(true)
            })?;
            if let Some(from) = stopped_at {
                reading.from = from;
                self.reading = Some(reading).filter(|_| !self.has_given_up);
                return Ok(());
            }
            reading.group += 1;
        }
        Ok(())
    }

    /// Notes that the backend has the key with this [`key_hash`].
    #[inline]
    pub fn insert(&mut self, hash: u64) {
        match self.layers.last_mut() {
            Some(layer) if !layer.is_full() => layer.insert(mixed(hash)),
            _ => self.insert_into_next_layer(hash),
        }
    }

    fn insert_into_next_layer(&mut self, hash: u64) {
        if self.has_given_up {
            return;
        }
        if self.layers.len() == MOST_LAYERS {
            return self.give_up();
        }
        let keys: usize = self.layers.iter().map(|layer| layer.keys).sum();
        let mut layer = Layer::new((keys * 2).clamp(FIRST_LAYER_KEYS, MOST_LAYER_KEYS));
        layer.insert(mixed(hash));
        self.layers.push(layer);
    }

    /// Frees the memory; no key is called absent from here on.
    pub fn give_up(&mut self) {
        self.layers = Vec::new();
        self.reading = None;
        self.has_given_up = true;
    }

    /// Which of the keys with these hashes the backend may have, ascending. Only for a complete filter.
    pub fn possible(&self, hashes: &[u64]) -> Vec<u32> {
        // Layer by layer: the lookups of one are independent, so that the processor waits for many cache lines at once.
        let mut found = vec![false; hashes.len()];
        for layer in &self.layers {
            for (found, hash) in found.iter_mut().zip(hashes) {
                *found |= layer.may_have(mixed(*hash));
            }
        }
        found.iter().enumerate().filter(|(_, found)| **found).map(|(i, _)| i as u32).collect()
    }

    /// The memory held, bytes.
    pub fn memory_bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.blocks.capacity() * BLOCK_WORDS * 4).sum()
    }
}

impl Default for KeyFilter {
    fn default() -> KeyFilter {
        KeyFilter::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::memory::MemoryBackend;
    use crate::state::{StateBackend, Writes};
    use crate::stream::key_group::key_group;

    const TAG: u8 = 3;

    fn hash(key: u64) -> u64 {
        key_hash(&key.to_be_bytes())
    }

    fn state_key(tag: u8, key: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        append_state_prefix(&mut bytes, key_group(hash(key)), tag);
        bytes.extend_from_slice(&key.to_be_bytes());
        bytes
    }

    fn empty() -> KeyFilter {
        let mut filter = KeyFilter::new();
        filter.read_on(&MemoryBackend::new(), TAG).unwrap();
        assert!(filter.is_complete(), "there is nothing to read");
        filter
    }

    #[test]
    fn what_is_in_is_possible_and_hardly_anything_else_is() {
        let mut filter = empty();
        // Of one key group only, as a subtask sees them at the highest parallelism: their lowest bits are alike.
        let keys: Vec<u64> = (0..60_000_000).filter(|key| key_group(hash(*key)) == 7).collect();
        let (inside, outside) = keys.split_at(keys.len() / 2);
        inside.iter().for_each(|key| filter.insert(hash(*key)));
        let hashes: Vec<u64> = inside.iter().map(|key| hash(*key)).collect();
        assert_eq!(filter.possible(&hashes).len(), inside.len());
        let hashes: Vec<u64> = outside.iter().map(|key| hash(*key)).collect();
        let wrong = filter.possible(&hashes).len();
        assert!(wrong < outside.len() / 50, "{wrong} of {}", outside.len());
        assert!(filter.memory_bytes() < inside.len() * BITS_PER_KEY / 8 * 3, "{} bytes", filter.memory_bytes());
    }

    #[test]
    fn keys_from_before_are_read_a_part_at_a_time_and_those_of_other_states_are_not() {
        let keys = 3 * READ_KEYS as u64 + 17;
        let mut backend = MemoryBackend::new();
        let mut writes = Writes::new();
        for key in 0..keys {
            writes.push(&state_key(TAG, key), Some(b"a")).unwrap();
            writes.push(&state_key(TAG + 1, keys + key), Some(b"b")).unwrap();
            writes.push(&state_key(TAG - 1, 2 * keys + key), Some(b"c")).unwrap();
        }
        writes.sort();
        backend.write(&writes).unwrap();
        let mut filter = KeyFilter::new();
        let mut parts = 0;
        while !filter.is_complete() {
            parts += 1;
            filter.read_on(&backend, TAG).unwrap();
            // Written meanwhile, before or after the place that has been reached.
            filter.insert(hash(10 * keys + parts));
        }
        assert_eq!(parts, 4);
        let known: Vec<u64> = (0..keys).chain(10 * keys + 1..=10 * keys + parts).map(hash).collect();
        assert_eq!(filter.possible(&known).len(), known.len());
        let others: Vec<u64> = (keys..3 * keys).map(hash).collect();
        assert!(filter.possible(&others).len() < others.len() / 20);
    }

    #[test]
    fn with_too_many_keys_it_gives_up() {
        let mut filter = empty();
        filter.layers = (0..MOST_LAYERS).map(|_| Layer { keys: KEYS_PER_BLOCK, ..Layer::new(1) }).collect();
        filter.insert(1);
        filter.insert(2);
        assert!(!filter.is_complete());
        assert_eq!(filter.memory_bytes(), 0);
        filter.read_on(&MemoryBackend::new(), TAG).unwrap();
        assert!(!filter.is_complete());
    }
}
