//! Map state: how often each value occurs in each group. Under DISTINCT aggregates, and under MIN and MAX where rows can be taken away.
//!
//! Key in the backend: key group of the group's key, the map's tag, the encoded group key, the encoded value. Value: a row of one Int64, the count. For
//! MAX the bits of the encoded value are inverted, so that the extreme is always the first key of the group with a positive count.
//!
//! # Invariants
//! - A value with count 0 is not in the backend after a write; a count below zero is there at most within an epoch.
//! - `runs` and the dirty slots from `sorted` on together are exactly the dirty slots of `groups`; each run is sorted by key.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Field, Int64Type};
use weir_catalog::{Error, Result};

use super::columns::{Rows, Selection};
use crate::operators::error::not_there;
use crate::state::groups::{Groups, StateColumns, compact};
use crate::state::key_codec::{EncodedRows, KeyCodec, STATE_PREFIX_BYTES, append_state_prefix};
use crate::state::row_codec::RowCodec;
use crate::state::{StateBackend, StateDescriptor};
use crate::stream::KeyGroup;
use crate::stream::key_group::key_hash;

/// How often each value occurs, by group.
#[derive(Debug)]
pub struct CountMap {
    /// What the state is called.
    name: String,
    tag: u8,
    groups: Groups,
    counts: Counts,
    value_codec: KeyCodec,
    row_codec: RowCodec,
    /// Greatest value first.
    inverted: bool,
    /// What changed in the batch: the row with the value, and 1 if the value has appeared in the row's group, -1 if it is gone.
    transitions: Vec<(u32, i8)>,
    runs: Vec<Vec<u32>>,
    /// How many of the dirty slots are in runs.
    sorted: usize,
    encoded_values: EncodedRows,
    /// Rows folded and the slots of their values: scratch of [`CountMap::fold`].
    rows: Vec<u32>,
    slots: Vec<u32>,
}

#[derive(Debug, Default)]
struct Counts(Vec<i64>);

impl StateColumns for Counts {
    fn grow(&mut self, len: usize) {
        self.0.resize(len, 0);
    }

    fn load(&mut self, slots: &[u32], values: &[ArrayRef]) -> Result<()> {
        let [counts] = values else {
            return Err(Error::internal("a value count has one column"));
        };
        for (slot, count) in slots.iter().zip(counts.as_primitive::<Int64Type>().values()) {
            self.0[*slot as usize] = *count;
        }
        Ok(())
    }

    fn store(&self, slots: &[u32]) -> Result<Vec<ArrayRef>> {
        Ok(vec![Arc::new(Int64Array::from_iter_values(slots.iter().map(|slot| self.0[*slot as usize])))])
    }

    fn is_empty(&self, slot: u32) -> bool {
        self.0[slot as usize] == 0
    }

    fn compact(&mut self, kept: &[u32]) {
        compact(&mut self.0, kept);
    }

    fn memory_bytes(&self) -> usize {
        self.0.capacity() * 8
    }
}

/// The rows of a batch as a map needs them.
pub struct GroupedRows<'a> {
    /// Each row's slot in `groups`.
    pub slots: &'a [u32],
    /// Each row's encoded group key.
    pub keys: &'a EncodedRows,
    pub kinds: Option<&'a [u8]>,
    /// The operator's groups, all loaded.
    pub groups: &'a Groups,
}

impl CountMap {
    /// A map under `tag` of values of `data_type`, called `name`; `greatest_first` for MAX.
    pub fn new(name: impl Into<String>, tag: u8, data_type: &DataType, greatest_first: bool) -> Result<CountMap> {
        Ok(CountMap {
            name: name.into(),
            tag,
            groups: Groups::new(tag, &[DataType::Int64])?,
            counts: Counts::default(),
            value_codec: KeyCodec::new(std::slice::from_ref(data_type))?,
            row_codec: RowCodec::new(&[DataType::Int64])?,
            inverted: greatest_first,
            transitions: Vec::new(),
            runs: Vec::new(),
            sorted: 0,
            encoded_values: EncodedRows::new(),
            rows: Vec::new(),
            slots: Vec::new(),
        })
    }

    /// What it keeps, under keys of these columns, the last of which is the value's.
    pub fn descriptor<'a>(&self, key: impl IntoIterator<Item = &'a Field>) -> StateDescriptor {
        let key: Vec<&Field> = key.into_iter().collect();
        let count = Field::new("count", DataType::Int64, false);
        let mut descriptor = StateDescriptor::new(self.name.clone(), self.tag, key, [&count]);
        descriptor.greatest_first = self.inverted;
        descriptor
    }

    /// Counts the values of `column` in the rows of `mask` (all, if `None`), and notes which appear and which are gone.
    pub fn fold(
        &mut self,
        backend: &dyn StateBackend,
        grouped: &GroupedRows<'_>,
        mask: Option<&BooleanBuffer>,
        column: &ArrayRef,
    ) -> Result<()> {
        self.groups.check_room(column.len())?;
        self.groups.tick();
        self.encode_values(column)?;
        self.rows.clear();
        self.slots.clear();
        let rows = mask.map_or(Rows::All, Rows::Where);
        let mut key = Vec::new();
        Selection { rows, slots: grouped.slots, kinds: None }.for_each(|row, group, _| {
            key.clear();
            key.extend_from_slice(grouped.keys.get(row));
            key.extend_from_slice(self.encoded_values.get(row));
            let slot = self.groups.intern(key_hash(&key), &key, grouped.groups.key_group(group as u32));
            self.rows.push(row as u32);
            self.slots.push(slot);
        });
        self.groups.load_missing(backend, &mut self.counts)?;
        self.groups.touch(&self.slots);
        self.transitions.clear();
        for (row, slot) in self.rows.iter().zip(&self.slots) {
            let weight = grouped.kinds.map_or(1, |kinds| 1 - 2 * i64::from(kinds[*row as usize] & 1));
            let count = &mut self.counts.0[*slot as usize];
            let before = *count > 0;
            *count += weight;
            let transition = i8::from(*count > 0) - i8::from(before);
            if transition != 0 {
                self.transitions.push((*row, transition));
            }
        }
        Ok(())
    }

    /// What the last [`CountMap::fold`] noted: rows with weights.
    pub fn transitions(&self) -> &[(u32, i8)] {
        &self.transitions
    }

    /// The end of an epoch; `22000` if a value was taken away more often than it was there.
    pub fn end_epoch(&mut self) -> Result<()> {
        if let Some(slot) = self.groups.touched().iter().find(|slot| self.counts.0[**slot as usize] < 0) {
            let count = self.counts.0[*slot as usize];
            return Err(not_there("a value").with_detail(format!("Its count is {count}.")));
        }
        self.groups.untouch(|_, _| true);
        Ok(())
    }

    /// Lets what is whole within an epoch be written and evicted: everything but values whose insertion is still to come.
    pub fn end_epoch_early(&mut self) {
        let counts = &self.counts.0;
        self.groups.untouch(|_, slot| counts[slot as usize] >= 0);
    }

    /// Writes the changed counts into the backend.
    pub fn write_back(&mut self, backend: &mut dyn StateBackend) -> Result<()> {
        self.groups.write_back(backend, &self.counts)?;
        self.runs.clear();
        self.sorted = 0;
        Ok(())
    }

    /// Keeps about `ratio` of the values in memory, those used lately. After [`CountMap::write_back`].
    pub fn evict(&mut self, ratio: f64) {
        let target = (self.groups.len() as f64 * ratio) as usize;
        self.groups.evict(target, &mut self.counts);
        self.runs.clear();
        self.sorted = 0;
        self.encoded_values = EncodedRows::new();
    }

    /// The memory held, bytes.
    pub fn memory_bytes(&self) -> usize {
        let runs: usize = self.runs.iter().map(|run| run.capacity() * 4).sum();
        self.groups.memory_bytes() + self.groups.filter_bytes() + self.counts.memory_bytes() + runs
    }

    /// What of it evicting does not free: see [`Groups::filter_bytes`].
    pub fn filter_bytes(&self) -> usize {
        self.groups.filter_bytes()
    }

    /// See [`Groups::drop_filter`].
    pub fn drop_filter(&mut self) {
        self.groups.drop_filter();
    }

    /// The first present value of each group, `bounds[i]` being a value (of the map's type) that none of group `i` comes before; NULL where there is
    /// none. `keys` are the encoded group keys.
    pub fn first_values(
        &mut self,
        backend: &dyn StateBackend,
        keys: &EncodedRows,
        key_groups: &[KeyGroup],
        bounds: &ArrayRef,
    ) -> Result<ArrayRef> {
        self.sort_dirty();
        self.encode_values(bounds)?;
        let mut found = EncodedRows::new();
        let mut from = Vec::new();
        for (i, group) in key_groups.iter().enumerate() {
            from.clear();
            append_state_prefix(&mut from, *group, self.tag);
            from.extend_from_slice(keys.get(i));
            let group_end = from.len();
            from.extend_from_slice(self.encoded_values.get(i));
            let first = self.first_key(backend, &from, group_end)?;
            match first {
                Some(key) => found.push(&key[group_end - STATE_PREFIX_BYTES..]),
                None => found.push(&self.null_value()),
            }
        }
        if self.inverted {
            found.bytes.iter_mut().for_each(|byte| *byte = !*byte);
        }
        let mut columns = self.value_codec.decode(found.iter())?;
        columns.pop().ok_or_else(|| Error::internal("a value has one column"))
    }

    /// The first key not before `from` with a positive count in the group whose state prefix and key are `from[..group_end]`; without state prefix.
    fn first_key(&self, backend: &dyn StateBackend, from: &[u8], group_end: usize) -> Result<Option<Vec<u8>>> {
        let group_key = &from[STATE_PREFIX_BYTES..group_end];
        let start = &from[STATE_PREFIX_BYTES..];
        let mut first: Option<&[u8]> = None;
        for run in &self.runs {
            let at = run.partition_point(|slot| self.groups.key(*slot) < start);
            let present = run[at..]
                .iter()
                .take_while(|slot| self.groups.key(**slot).starts_with(group_key))
                .find(|slot| self.counts.0[**slot as usize] > 0);
            if let Some(slot) = present {
                let key = self.groups.key(*slot);
                if first.is_none_or(|first| key < first) {
                    first = Some(key);
                }
            }
        }
        let mut stored: Option<Vec<u8>> = None;
        backend.scan(from, &successor(&from[..group_end]), &mut |key, value| {
            let key = &key[STATE_PREFIX_BYTES..];
            if first.is_some_and(|first| first <= key) {
                return Ok(false);
            }
            let count = match self.groups.find(key) {
                Some(slot) => self.counts.0[slot as usize],
                None => {
                    let columns = self.row_codec.decode(std::iter::once(value))?;
                    columns[0].as_primitive::<Int64Type>().value(0)
                }
            };
            if count > 0 {
                stored = Some(key.to_vec());
            }
            Ok(count <= 0)
        })?;
        Ok(stored.or_else(|| first.map(<[u8]>::to_vec)))
    }

    /// Sorts the slots that became dirty since the last call into a run, and merges runs of about the same length, so that there are few.
    fn sort_dirty(&mut self) {
        let fresh = &self.groups.dirty()[self.sorted..];
        if fresh.is_empty() {
            return;
        }
        self.sorted += fresh.len();
        let mut run = fresh.to_vec();
        run.sort_unstable_by(|a, b| self.groups.key(*a).cmp(self.groups.key(*b)));
        while let Some(previous) = self.runs.pop_if(|previous| previous.len() < 2 * run.len()) {
            let mut merged = Vec::with_capacity(previous.len() + run.len());
            let (mut a, mut b) = (previous.iter().copied().peekable(), run.iter().copied().peekable());
            while let (Some(x), Some(y)) = (a.peek().copied(), b.peek().copied()) {
                if self.groups.key(x) < self.groups.key(y) {
                    merged.push(x);
                    a.next();
                } else {
                    merged.push(y);
                    b.next();
                }
            }
            merged.extend(a);
            merged.extend(b);
            run = merged;
        }
        self.runs.push(run);
    }

    /// Encodes a column of values into `encoded_values`.
    fn encode_values(&mut self, column: &ArrayRef) -> Result<()> {
        self.encoded_values.clear();
        self.value_codec.encode(std::slice::from_ref(column), &mut self.encoded_values)?;
        if self.inverted {
            self.encoded_values.bytes.iter_mut().for_each(|byte| *byte = !*byte);
        }
        Ok(())
    }

    /// The encoded form of NULL, as this map has it.
    fn null_value(&self) -> [u8; 1] {
        [if self.inverted { 0xFF } else { 0x00 }]
    }
}

/// The first key after all that begin with `prefix`; empty, meaning no bound, if there is none.
fn successor(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            break;
        }
    }
    end
}
