//! Keyed state that an operator works on in memory: the active keys of one state tag interned to dense slots, written behind to a [`StateBackend`].
//!
//! A batch asks the backend only for keys that a [`KeyFilter`] does not call absent.
//!
//! The operator keeps a key's value in columns of its own, indexed by slot ([`StateColumns`]); this file knows the keys, which of them the backend has,
//! which are dirty, and when each was last used. A batch costs one hash lookup a row and at most one sorted multi-get; dirty keys are written back
//! sorted by [`Groups::write_back`]; keys that were not used lately leave memory in [`Groups::evict`].
//!
//! # Invariants
//! - Slots are dense, `0..len()`. They change only in [`Groups::evict`], which tells the columns which old slots remain, in order.
//! - A slot below `loaded` holds its key's true value: what the backend had when it was loaded, and all changes since.
//! - A slot that is neither DIRTY nor TOUCHED equals what the backend has. A TOUCHED slot changed in this epoch and is neither written nor evicted.
//! - An empty value ([`StateColumns::is_empty`]) is never in the backend after a write: its key is deleted.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array};
use arrow::datatypes::DataType;
use hashbrown::HashTable;
use weir_catalog::{Error, Result, SqlState};

use super::key_codec::{EncodedRows, KeyCodec, STATE_PREFIX_BYTES, append_state_prefix};
use super::key_filter::KeyFilter;
use super::row_codec::RowCodec;
use super::{StateBackend, Writes};
use crate::seams::faults::{self, Fault};
use crate::stream::KeyGroup;
use crate::stream::key_group::{MAX_PARALLELISM, key_group, key_hash};

/// How many keys a chunk of a write-back has at most, which bounds its memory.
const WRITE_CHUNK_KEYS: usize = 32 * 1024;

const DIRTY: u8 = 1;
const STORED: u8 = 2;
const TOUCHED: u8 = 4;

/// The values of a [`Groups`], columns indexed by slot.
pub trait StateColumns {
    /// Makes room for `len` slots; new ones hold the empty value.
    fn grow(&mut self, len: usize);
    /// Puts row `i` of decoded state values into `slots[i]`.
    fn load(&mut self, slots: &[u32], values: &[ArrayRef]) -> Result<()>;
    /// The state values of `slots`.
    fn store(&self, slots: &[u32]) -> Result<Vec<ArrayRef>>;
    /// Whether the slot's value is that of a key that was never seen.
    fn is_empty(&self, slot: u32) -> bool;
    /// Keeps the slots `kept` (ascending), renumbered `0..kept.len()`.
    fn compact(&mut self, kept: &[u32]);
    /// The memory held, bytes.
    fn memory_bytes(&self) -> usize;
}

/// What is left of a write-back.
struct PendingWrites {
    /// All slots to be written, by key group.
    by_group: Vec<u32>,
    /// Which of them are in hand: those of some whole key groups.
    run: std::ops::Range<usize>,
    /// Their keys in the backend, the order of those, and how many in that order are done.
    keys: EncodedRows,
    order: Vec<u32>,
    done: usize,
}

/// How keys are held in memory.
#[derive(Debug)]
enum Keys {
    /// One BIGINT column: no encoding until a key goes to the backend.
    Int64 { values: Vec<i64>, null: Option<u32>, codec: KeyCodec },
    /// Encoded keys, one after another; `ends[slot]` is where the key of `slot` ends.
    Encoded { bytes: Vec<u8>, ends: Vec<usize>, hashes: Vec<u64> },
}

/// The interned keys of one state.
#[derive(Debug)]
pub struct Groups {
    tag: u8,
    keys: Keys,
    table: HashTable<u32>,
    row_codec: RowCodec,
    key_groups: Vec<KeyGroup>,
    flags: Vec<u8>,
    /// The value of `clock` when the slot was last touched.
    last_used: Vec<u32>,
    clock: u32,
    /// Slots from here on were interned since the last [`Groups::load_missing`].
    loaded: usize,
    touched: Vec<u32>,
    dirty: Vec<u32>,
    /// The keys that the backend may have.
    filter: KeyFilter,
}

impl Groups {
    /// State under `tag` whose keys the caller encodes, with values of `value_types`.
    pub fn new(tag: u8, value_types: &[DataType]) -> Result<Groups> {
        Groups::with_keys(tag, value_types, Keys::Encoded { bytes: Vec::new(), ends: Vec::new(), hashes: Vec::new() })
    }

    /// State under `tag` whose key is one BIGINT column.
    pub fn for_int64(tag: u8, value_types: &[DataType]) -> Result<Groups> {
        let codec = KeyCodec::new(&[DataType::Int64])?;
        Groups::with_keys(tag, value_types, Keys::Int64 { values: Vec::new(), null: None, codec })
    }

    fn with_keys(tag: u8, value_types: &[DataType], keys: Keys) -> Result<Groups> {
        Ok(Groups {
            tag,
            keys,
            table: HashTable::new(),
            row_codec: RowCodec::new(value_types)?,
            key_groups: Vec::new(),
            flags: Vec::new(),
            last_used: Vec::new(),
            clock: 0,
            loaded: 0,
            touched: Vec::new(),
            dirty: Vec::new(),
            filter: KeyFilter::new(),
        })
    }

    /// The number of slots.
    pub fn len(&self) -> usize {
        match &self.keys {
            Keys::Int64 { values, .. } => values.len(),
            Keys::Encoded { ends, .. } => ends.len(),
        }
    }

    /// Whether no key is in memory.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether keys are held as BIGINT values: [`Groups::intern_int64`] is to be used.
    pub fn is_int64(&self) -> bool {
        matches!(self.keys, Keys::Int64 { .. })
    }

    /// Makes sure that `rows` more keys can be interned: slots have 32 bits.
    pub fn check_room(&self, rows: usize) -> Result<()> {
        if self.len() + rows > u32::MAX as usize {
            return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "more than 4 billion keys of one operator are in memory"));
        }
        Ok(())
    }

    /// Appends the slot of each row's key to `slots`. Only for [`Groups::for_int64`].
    pub fn intern_int64(&mut self, column: &Int64Array, slots: &mut Vec<u32>) {
        let Keys::Int64 { values, null, .. } = &mut self.keys else {
            unreachable!("the keys of this state are encoded");
        };
        slots.reserve(column.len());
        let table = &mut self.table;
        if column.null_count() == 0 {
            slots.extend(column.values().iter().map(|key| intern_int64(table, values, *key)));
            return;
        }
        for row in 0..column.len() {
            slots.push(if column.is_valid(row) {
                intern_int64(table, values, column.value(row))
            } else {
                *null.get_or_insert_with(|| {
                    values.push(0);
                    values.len() as u32 - 1
                })
            });
        }
    }

    /// Appends the slot of each encoded key to `slots`; key groups follow from the keys.
    pub fn intern_encoded(&mut self, keys: &EncodedRows, slots: &mut Vec<u32>) {
        slots.reserve(keys.len());
        for key in keys.iter() {
            let hash = key_hash(key);
            slots.push(self.intern(hash, key, key_group(hash)));
        }
    }

    /// The slot of one encoded key with this [`key_hash`], which belongs to `group` of its operator's key (a user key's group is not its own hash's).
    #[inline]
    pub fn intern(&mut self, hash: u64, key: &[u8], group: KeyGroup) -> u32 {
        let Keys::Encoded { bytes, ends, hashes } = &mut self.keys else {
            unreachable!("the keys of this state are BIGINT values");
        };
        let found = self.table.find(hash, |slot| hashes[*slot as usize] == hash && encoded_key(bytes, ends, *slot) == key);
        if let Some(slot) = found {
            return *slot;
        }
        let slot = ends.len() as u32;
        bytes.extend_from_slice(key);
        ends.push(bytes.len());
        hashes.push(hash);
        self.key_groups.push(group);
        self.table.insert_unique(hash, slot, |slot| hashes[*slot as usize]);
        slot
    }

    /// The slot of an encoded key, if it is in memory.
    pub fn find(&self, key: &[u8]) -> Option<u32> {
        let Keys::Encoded { bytes, ends, hashes } = &self.keys else {
            unreachable!("the keys of this state are BIGINT values");
        };
        let hash = key_hash(key);
        self.table.find(hash, |slot| hashes[*slot as usize] == hash && encoded_key(bytes, ends, *slot) == key).copied()
    }

    /// The encoded key of a slot. Not for [`Groups::for_int64`].
    #[inline]
    pub fn key(&self, slot: u32) -> &[u8] {
        match &self.keys {
            Keys::Encoded { bytes, ends, .. } => encoded_key(bytes, ends, slot),
            Keys::Int64 { .. } => unreachable!("the keys of this state are BIGINT values"),
        }
    }

    /// The values of BIGINT keys. Only for [`Groups::for_int64`].
    pub fn int64_keys(&self, slots: impl Iterator<Item = u32>) -> Int64Array {
        let Keys::Int64 { values, null, .. } = &self.keys else {
            unreachable!("the keys of this state are encoded");
        };
        match null {
            None => Int64Array::from_iter_values(slots.map(|slot| values[slot as usize])),
            Some(null) => slots.map(|slot| (slot != *null).then(|| values[slot as usize])).collect(),
        }
    }

    /// The key group of a slot that was loaded.
    #[inline]
    pub fn key_group(&self, slot: u32) -> KeyGroup {
        self.key_groups[slot as usize]
    }

    /// Whether the backend has the slot's key.
    pub fn is_stored(&self, slot: u32) -> bool {
        self.flags[slot as usize] & STORED != 0
    }

    /// Whether the slot changed in this epoch.
    pub fn is_touched(&self, slot: u32) -> bool {
        self.flags[slot as usize] & TOUCHED != 0
    }

    /// The slots that changed in this epoch, in the order in which they first did.
    pub fn touched(&self) -> &[u32] {
        &self.touched
    }

    /// The slots that the backend has not in their present form, in the order in which they became so.
    pub fn dirty(&self) -> &[u32] {
        &self.dirty
    }

    /// Reads the keys that were interned since the last call from the backend: one sorted multi-get.
    pub fn load_missing(&mut self, backend: &dyn StateBackend, columns: &mut dyn StateColumns) -> Result<()> {
        let first = self.loaded;
        let len = self.len();
        if first == len {
            return Ok(());
        }
        columns.grow(len);
        self.flags.resize(len, 0);
        self.last_used.resize(len, self.clock);
        self.filter.read_on(backend, self.tag)?;
        let mut slots: Vec<u32> = (first as u32..len as u32).collect();
        let mut encoded = self.encode_int64_keys(&slots)?;
        let new_hashes: Vec<u64>;
        let hashes: &[u64] = match (&self.keys, &encoded) {
            (Keys::Encoded { hashes, .. }, _) => &hashes[first..],
            (Keys::Int64 { .. }, encoded) => {
                new_hashes = encoded.iter().flat_map(EncodedRows::iter).map(key_hash).collect();
                self.key_groups.extend(new_hashes.iter().map(|hash| key_group(*hash)));
                &new_hashes
            }
        };
        if self.filter.is_complete() {
            let possible = self.filter.possible(hashes);
            if possible.len() < slots.len() {
                encoded = encoded.map(|keys| keys.select(&possible));
                slots = possible.into_iter().map(|i| first as u32 + i).collect();
            }
        }
        self.loaded = len;
        if slots.is_empty() {
            return Ok(());
        }
        let state_keys = self.state_keys(&slots, encoded.as_ref());
        let order = sorted_order(&state_keys);
        let sorted: Vec<&[u8]> = order.iter().map(|i| state_keys.get(*i as usize)).collect();
        let mut found = Vec::new();
        let mut values = EncodedRows::new();
        backend.multi_get(&sorted, &mut |i, value| {
            found.push(slots[order[i] as usize]);
            values.push(value);
            Ok(())
        })?;
        if !found.is_empty() {
            columns.load(&found, &self.row_codec.decode(values.iter())?)?;
            for slot in found {
                self.flags[slot as usize] |= STORED;
            }
        }
        Ok(())
    }

    /// Notes that the slots are used and about to change. Those that had not changed in this epoch are appended to [`Groups::touched`], each once.
    pub fn touch(&mut self, slots: &[u32]) {
        let clock = self.clock;
        for slot in slots {
            let slot = *slot as usize;
            self.last_used[slot] = clock;
            let flags = self.flags[slot];
            if flags & TOUCHED == 0 {
                self.touched.push(slot as u32);
                if flags & DIRTY == 0 {
                    self.dirty.push(slot as u32);
                }
                self.flags[slot] = flags | TOUCHED | DIRTY;
            }
        }
    }

    /// Moves the clock that decides which keys were used lately; once a batch.
    pub fn tick(&mut self) {
        if self.clock == u32::MAX {
            // After 4 billion batches: all keys count as used long ago.
            self.last_used.fill(0);
            self.clock = 0;
        }
        self.clock += 1;
    }

    /// Ends the epoch for the slots at positions of [`Groups::touched`] for which `ended` is true.
    pub fn untouch(&mut self, mut ended: impl FnMut(usize, u32) -> bool) {
        let flags = &mut self.flags;
        let mut position = 0;
        self.touched.retain(|slot| {
            let ended = ended(position, *slot);
            position += 1;
            if ended {
                flags[*slot as usize] &= !TOUCHED;
            }
            !ended
        });
        // An epoch that changed unusually many keys should not hold its memory for ever.
        if self.touched.is_empty() && self.touched.capacity() > 64 * 1024 {
            self.touched = Vec::new();
        }
    }

    /// [`Fault::DirtyKeyLostAtEviction`]: one key that the backend has not counts as if it had it.
    pub fn lose_dirty_key(&mut self) {
        if let Some(place) = self.dirty.iter().position(|slot| !self.is_touched(*slot)) {
            let slot = self.dirty.remove(place);
            self.flags[slot as usize] &= !DIRTY;
        }
    }

    /// Writes all dirty slots but the touched ones into the backend.
    pub fn write_back(&mut self, backend: &mut dyn StateBackend, columns: &dyn StateColumns) -> Result<()> {
        // By key group first, so that only keys of one group or few are held encoded at a time.
        let mut starts = [0usize; MAX_PARALLELISM + 1];
        let mut remaining = Vec::new();
        for slot in &self.dirty {
            if self.is_touched(*slot) {
                remaining.push(*slot);
            } else {
                starts[self.key_groups[*slot as usize] as usize + 1] += 1;
            }
        }
        for group in 0..MAX_PARALLELISM {
            starts[group + 1] += starts[group];
        }
        let mut by_group = vec![0u32; starts[MAX_PARALLELISM]];
        for slot in &self.dirty {
            if !self.is_touched(*slot) {
                let start = &mut starts[self.key_groups[*slot as usize] as usize];
                by_group[*start] = *slot;
                *start += 1;
            }
        }
        if faults::is_planted(Fault::DirtyKeyLostAtFlush)
            && let Some(slot) = by_group.pop()
        {
            self.flags[slot as usize] &= !DIRTY;
        }
        let mut pending = PendingWrites { by_group, run: 0..0, keys: EncodedRows::new(), order: Vec::new(), done: 0 };
        backend.write_all(&mut |writes| self.next_writes(columns, &mut pending, writes))?;
        self.dirty = remaining;
        Ok(())
    }

    /// Fills `writes` with the next of the `pending` slots in key order, which are clean then. Returns false where none are left.
    fn next_writes(&mut self, columns: &dyn StateColumns, pending: &mut PendingWrites, writes: &mut Writes) -> Result<bool> {
        while writes.is_empty() {
            if pending.done == pending.order.len() && !self.next_run(pending)? {
                return Ok(false);
            }
            let chunk = &pending.order[pending.done..(pending.done + WRITE_CHUNK_KEYS).min(pending.order.len())];
            pending.done += chunk.len();
            let slots = &pending.by_group[pending.run.clone()];
            // Each with the row of its value; keys that are empty and not in the backend need no write.
            let mut written: Vec<(u32, Option<u32>)> = Vec::with_capacity(chunk.len());
            let mut kept = Vec::with_capacity(chunk.len());
            for i in chunk {
                let slot = slots[*i as usize];
                let empty = columns.is_empty(slot);
                let flags = &mut self.flags[slot as usize];
                if !empty {
                    written.push((*i, Some(kept.len() as u32)));
                    kept.push(slot);
                } else if *flags & STORED != 0 {
                    written.push((*i, None));
                }
                *flags = if empty { *flags & !(DIRTY | STORED) } else { (*flags & !DIRTY) | STORED };
            }
            let misses_filter = faults::is_planted(Fault::WrittenKeyMissingInFilter);
            let mut values = EncodedRows::new();
            self.row_codec.encode_into(&columns.store(&kept)?, kept.len(), &mut values)?;
            for (i, row) in written {
                let key = pending.keys.get(i as usize);
                if row.is_some() && !misses_filter {
                    self.filter.insert(key_hash(&key[STATE_PREFIX_BYTES..]));
                }
                writes.push(key, row.map(|row| values.get(row as usize)))?;
            }
        }
        Ok(true)
    }

    /// Goes on to the next key groups: one, or as many as make a chunk.
    fn next_run(&self, pending: &mut PendingWrites) -> Result<bool> {
        let rest = &pending.by_group[pending.run.end..];
        let mut len = 0;
        while let Some(first) = rest.get(len) {
            let group = self.key_groups[*first as usize];
            let group_len = rest[len..].partition_point(|slot| self.key_groups[*slot as usize] == group);
            if len > 0 && len + group_len > WRITE_CHUNK_KEYS {
                break;
            }
            len += group_len;
        }
        pending.run = pending.run.end..pending.run.end + len;
        let slots = &pending.by_group[pending.run.clone()];
        pending.keys = self.state_keys(slots, self.encode_int64_keys(slots)?.as_ref());
        pending.order = sorted_order(&pending.keys);
        pending.done = 0;
        Ok(len > 0)
    }

    /// Drops slots that are neither dirty nor touched, those not used for longest first, until about `target` remain.
    ///
    /// Every slot number changes: `columns` are compacted, and the old slots that remain are returned, ascending.
    pub fn evict(&mut self, target: usize, columns: &mut dyn StateColumns) -> Vec<u32> {
        let pinned = self.flags.iter().filter(|flags| **flags & (DIRTY | TOUCHED) != 0).count();
        let budget = target.saturating_sub(pinned);
        let kept = self.lately_used(budget);
        let new_slot = |slot: &u32| kept.binary_search(slot).map_or(u32::MAX, |slot| slot as u32);
        self.touched = self.touched.iter().map(new_slot).collect();
        self.dirty = self.dirty.iter().map(new_slot).collect();
        compact(&mut self.flags, &kept);
        compact(&mut self.last_used, &kept);
        compact(&mut self.key_groups, &kept);
        self.table = HashTable::new();
        match &mut self.keys {
            Keys::Int64 { values, null, .. } => {
                *null = null.and_then(|null| kept.binary_search(&null).ok()).map(|slot| slot as u32);
                compact(values, &kept);
                self.table.reserve(kept.len(), |_| unreachable!("the table is empty"));
                for slot in 0..kept.len() as u32 {
                    if *null != Some(slot) {
                        self.table.insert_unique(hash_int64(values[slot as usize]), slot, |slot| hash_int64(values[*slot as usize]));
                    }
                }
            }
            Keys::Encoded { bytes, ends, hashes } => {
                let mut end = 0;
                for (new, old) in kept.iter().enumerate() {
                    let old = *old as usize;
                    // As long as nothing was dropped, `ends[old - 1]` is overwritten with what it was; after that, `new < old`.
                    let start = if old == 0 { 0 } else { ends[old - 1] };
                    let length = ends[old] - start;
                    bytes.copy_within(start..start + length, end);
                    end += length;
                    ends[new] = end;
                }
                bytes.truncate(end);
                bytes.shrink_to(end + end / 4);
                ends.truncate(kept.len());
                ends.shrink_to(kept.len() + kept.len() / 4);
                compact(hashes, &kept);
                self.table.reserve(kept.len(), |_| unreachable!("the table is empty"));
                for (slot, hash) in hashes.iter().enumerate() {
                    self.table.insert_unique(*hash, slot as u32, |slot| hashes[*slot as usize]);
                }
            }
        }
        columns.compact(&kept);
        self.loaded = kept.len();
        kept
    }

    /// The pinned slots and about `budget` of the others, the lately used ones; ascending.
    fn lately_used(&self, budget: usize) -> Vec<u32> {
        let pinned = |flags: u8| flags & (DIRTY | TOUCHED) != 0;
        let mut times: Vec<u32> =
            self.flags.iter().zip(&self.last_used).filter(|(flags, _)| !pinned(**flags)).map(|(_, time)| *time).collect();
        // Slots used after `oldest` are kept, and of those used at `oldest` as many as the budget leaves.
        let (oldest, mut at_oldest) = if budget == 0 {
            (u32::MAX, 0)
        } else if budget >= times.len() {
            (0, usize::MAX)
        } else {
            let split = times.len() - budget;
            let oldest = *times.select_nth_unstable(split).1;
            (oldest, budget - times.iter().filter(|time| **time > oldest).count())
        };
        let mut kept = Vec::new();
        for (slot, (flags, time)) in self.flags.iter().zip(&self.last_used).enumerate() {
            let keep = pinned(*flags) || *time > oldest || (*time == oldest && at_oldest > 0);
            if keep {
                kept.push(slot as u32);
                if !pinned(*flags) && *time == oldest {
                    at_oldest = at_oldest.saturating_sub(1);
                }
            }
        }
        kept
    }

    /// The memory held, bytes; the columns and [`Groups::filter_bytes`] not counted.
    pub fn memory_bytes(&self) -> usize {
        let keys = match &self.keys {
            Keys::Int64 { values, .. } => values.capacity() * 8,
            Keys::Encoded { bytes, ends, hashes } => bytes.capacity() + (ends.capacity() + hashes.capacity()) * 8,
        };
        let lists = self.last_used.capacity() + self.touched.capacity() + self.dirty.capacity();
        keys + self.table.allocation_size() + self.key_groups.capacity() * 2 + self.flags.capacity() + lists * 4
    }

    /// The memory held for keys whether they are in memory or not, bytes: evicting frees none of it.
    pub fn filter_bytes(&self) -> usize {
        self.filter.memory_bytes()
    }

    /// Does without the memory of [`Groups::filter_bytes`] from here on: every key that is not in memory is looked up.
    pub fn drop_filter(&mut self) {
        self.filter.give_up();
    }

    /// The encoded form of BIGINT keys; `None` where keys are held encoded.
    fn encode_int64_keys(&self, slots: &[u32]) -> Result<Option<EncodedRows>> {
        let Keys::Int64 { codec, .. } = &self.keys else {
            return Ok(None);
        };
        let mut encoded = EncodedRows::new();
        codec.encode(&[Arc::new(self.int64_keys(slots.iter().copied()))], &mut encoded)?;
        Ok(Some(encoded))
    }

    /// The backend's keys of `slots`.
    fn state_keys(&self, slots: &[u32], encoded: Option<&EncodedRows>) -> EncodedRows {
        let mut keys = EncodedRows::new();
        keys.offsets.reserve(slots.len());
        for (i, slot) in slots.iter().enumerate() {
            append_state_prefix(&mut keys.bytes, self.key_groups[*slot as usize], self.tag);
            keys.bytes.extend_from_slice(encoded.map_or_else(|| self.key(*slot), |encoded| encoded.get(i)));
            keys.offsets.push(keys.bytes.len());
        }
        keys
    }
}

#[inline]
fn encoded_key<'a>(bytes: &'a [u8], ends: &[usize], slot: u32) -> &'a [u8] {
    let slot = slot as usize;
    let start = if slot == 0 { 0 } else { ends[slot - 1] };
    &bytes[start..ends[slot]]
}

#[inline]
fn intern_int64(table: &mut HashTable<u32>, values: &mut Vec<i64>, key: i64) -> u32 {
    let hash = hash_int64(key);
    if let Some(slot) = table.find(hash, |slot| values[*slot as usize] == key) {
        return *slot;
    }
    let slot = values.len() as u32;
    values.push(key);
    table.insert_unique(hash, slot, |slot| hash_int64(values[*slot as usize]));
    slot
}

/// For the hash table only: a folded multiplication with the golden ratio's fraction, as in wyhash and its kin. Not durable.
#[inline]
fn hash_int64(key: i64) -> u64 {
    let product = u128::from(key as u64 ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
    (product >> 64) as u64 ^ product as u64
}

/// The positions of `keys` in byte order. Most comparisons look at the first 16 bytes only, held beside the position.
fn sorted_order(keys: &EncodedRows) -> Vec<u32> {
    let mut order: Vec<(u128, u32)> = keys
        .iter()
        .enumerate()
        .map(|(i, key)| {
            let mut head = [0u8; 16];
            let len = key.len().min(16);
            head[..len].copy_from_slice(&key[..len]);
            (u128::from_be_bytes(head), i as u32)
        })
        .collect();
    order.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| keys.get(a.1 as usize).cmp(keys.get(b.1 as usize))));
    order.into_iter().map(|(_, i)| i).collect()
}

/// Keeps the elements at `kept` (ascending) and gives the rest of the memory back.
pub fn compact<T: Copy>(values: &mut Vec<T>, kept: &[u32]) {
    for (new, old) in kept.iter().enumerate() {
        values[new] = values[*old as usize];
    }
    values.truncate(kept.len());
    values.shrink_to(kept.len() + kept.len() / 4);
}

#[cfg(test)]
mod tests;
