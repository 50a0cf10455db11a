//! MIN and MAX: the extreme value of every group, in a form that compares with one instruction where the type has one.
//!
//! Over append-only input the value is all there is. Otherwise the values stand in an ordered multiset ([`super::count_map`]), which reports when a value
//! appears (its count becomes positive) and when it is gone; this column is a cache of the multiset's extreme.
//!
//! # Invariants
//! - `EMPTY`: no value is present. `KNOWN`: the value is present, and none is better. `BOUND`: none is better, but it may not be present itself; the
//!   multiset knows the extreme, and the search can start here.
//! - At a barrier, and in `old`, there is no `BOUND`.
//! - NaN is greater than every other double and equal to itself; -0.0 is 0.0; text is compared by bytes.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, Float64Array, Int32Array, Int64Array, StringArray, TimestampMicrosecondArray,
};
use arrow::datatypes::{DataType, Decimal128Type, Float64Type, Int32Type, Int64Type, TimeUnit, TimestampMicrosecondType};
use weir_catalog::{Error, Result};

use super::columns::{Pair, Selection, Source};

const EMPTY: u8 = 0;
const KNOWN: u8 = 1;
const BOUND: u8 = 2;

/// The extreme value of every group.
#[derive(Debug)]
pub struct Extreme {
    data_type: DataType,
    greatest: bool,
    state: Pair<u8>,
    values: Values,
}

/// Values whose order is that of the SQL type.
#[derive(Debug)]
enum Values {
    Bits64(Pair<i64>),
    Bits128(Pair<i128>),
    Text(TextPair),
}

impl Extreme {
    /// MAX if `greatest`, else MIN, of values of `data_type`; `0A000` for a type without one.
    pub fn new(data_type: &DataType, greatest: bool) -> Result<Extreme> {
        let values = match data_type {
            DataType::Boolean
            | DataType::Int32
            | DataType::Int64
            | DataType::Float64
            | DataType::Timestamp(TimeUnit::Microsecond, None) => Values::Bits64(Pair::default()),
            DataType::Decimal128(..) => Values::Bits128(Pair::default()),
            DataType::Utf8 => Values::Text(TextPair::default()),
            other => {
                let name = if greatest { "max" } else { "min" };
                return Err(Error::unsupported(format!("{name} of values of type {other} is not supported")));
            }
        };
        Ok(Extreme { data_type: data_type.clone(), greatest, state: Pair::default(), values })
    }

    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    pub fn grow(&mut self, len: usize) {
        self.state.grow(len);
        match &mut self.values {
            Values::Bits64(values) => values.grow(len),
            Values::Bits128(values) => values.grow(len),
            Values::Text(values) => values.grow(len),
        }
    }

    pub fn capture(&mut self, slots: &[u32]) {
        debug_assert!(slots.iter().all(|slot| self.state.live[*slot as usize] != BOUND));
        self.state.capture(slots);
        match &mut self.values {
            Values::Bits64(values) => values.capture(slots),
            Values::Bits128(values) => values.capture(slots),
            Values::Text(values) => values.capture(slots),
        }
    }

    pub fn retain_old(&mut self, positions: &[u32]) {
        self.state.retain_old(positions);
        match &mut self.values {
            Values::Bits64(values) => values.retain_old(positions),
            Values::Bits128(values) => values.retain_old(positions),
            Values::Text(values) => values.retain_old(positions),
        }
    }

    pub fn compact(&mut self, kept: &[u32]) {
        self.state.compact(kept);
        match &mut self.values {
            Values::Bits64(values) => values.compact(kept),
            Values::Bits128(values) => values.compact(kept),
            Values::Text(values) => values.compact(kept),
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.state.memory_bytes()
            + match &self.values {
                Values::Bits64(values) => values.memory_bytes(),
                Values::Bits128(values) => values.memory_bytes(),
                Values::Text(values) => values.memory_bytes(),
            }
    }

    pub fn is_empty(&self, slot: usize) -> bool {
        self.state.live[slot] == EMPTY
    }

    /// Whether the slot's value has to be looked up: it may be gone.
    pub fn is_bound(&self, slot: u32) -> bool {
        self.state.live[slot as usize] == BOUND
    }

    /// Folds values that appear (weight 1) or are gone (weight -1).
    pub fn fold(&mut self, selection: &Selection<'_>, argument: &ArrayRef) -> Result<()> {
        if *argument.data_type() != self.data_type {
            return Err(Error::internal(format!("a column of type {} where {} is expected", argument.data_type(), self.data_type)));
        }
        let state = self.state.live.as_mut_slice();
        match &mut self.values {
            Values::Bits64(values) => {
                let bits = to_bits64(argument)?;
                fold_bits(state, &mut values.live, self.greatest, selection, &bits);
            }
            Values::Bits128(values) => {
                let bits = argument.as_primitive::<Decimal128Type>().values();
                fold_bits(state, &mut values.live, self.greatest, selection, bits);
            }
            Values::Text(values) => {
                let text = argument.as_string::<i32>();
                let greatest = self.greatest;
                selection.for_each(|row, slot, weight| {
                    let value = text.value(row).as_bytes();
                    let order = value.cmp(values.live(slot));
                    let order = if greatest { order.reverse() } else { order };
                    if weight > 0 {
                        if state[slot] == EMPTY || order.is_lt() {
                            values.set(slot, value);
                            state[slot] = KNOWN;
                        } else if order.is_eq() {
                            state[slot] = KNOWN;
                        }
                    } else if order.is_eq() && state[slot] == KNOWN {
                        state[slot] = BOUND;
                    }
                });
            }
        }
        Ok(())
    }

    /// Whether two sources have the same value.
    pub fn equal(&self, a: Source, b: Source) -> bool {
        let (state_a, state_b) = (self.state.get(a), self.state.get(b));
        state_a == state_b
            && (state_a == EMPTY
                || match &self.values {
                    Values::Bits64(values) => values.get(a) == values.get(b),
                    Values::Bits128(values) => values.get(a) == values.get(b),
                    Values::Text(values) => values.get(a) == values.get(b),
                })
    }

    /// The values of sources; NULL where there is none.
    pub fn to_array(&self, sources: impl Iterator<Item = Source>) -> ArrayRef {
        match &self.values {
            Values::Bits64(values) => {
                let bits = sources.map(|source| (self.state.get(source) != EMPTY).then(|| values.get(source)));
                match &self.data_type {
                    DataType::Boolean => Arc::new(bits.map(|bits| bits.map(|bits| bits != 0)).collect::<BooleanArray>()),
                    DataType::Int32 => Arc::new(bits.map(|bits| bits.map(|bits| bits as i32)).collect::<Int32Array>()),
                    DataType::Float64 => Arc::new(bits.map(|bits| bits.map(double_of_bits)).collect::<Float64Array>()),
                    DataType::Timestamp(..) => Arc::new(bits.collect::<TimestampMicrosecondArray>()),
                    _ => Arc::new(bits.collect::<Int64Array>()),
                }
            }
            Values::Bits128(values) => {
                let values: Decimal128Array = sources.map(|source| (self.state.get(source) != EMPTY).then(|| values.get(source))).collect();
                Arc::new(values.with_data_type(self.data_type.clone()))
            }
            Values::Text(values) => {
                let text: StringArray = sources
                    .map(|source| {
                        // The bytes are those of a string array's value.
                        (self.state.get(source) != EMPTY).then(|| std::str::from_utf8(values.get(source)).unwrap_or_default())
                    })
                    .collect();
                Arc::new(text)
            }
        }
    }

    /// Sets `slots` to the values of `column`; none where it is NULL.
    pub fn load(&mut self, slots: &[u32], column: &ArrayRef) -> Result<()> {
        if *column.data_type() != self.data_type {
            return Err(Error::internal(format!("a column of type {} where {} is expected", column.data_type(), self.data_type)));
        }
        for (row, slot) in slots.iter().enumerate() {
            self.state.live[*slot as usize] = if column.is_valid(row) { KNOWN } else { EMPTY };
        }
        match &mut self.values {
            Values::Bits64(values) => {
                for (slot, bits) in slots.iter().zip(to_bits64(column)?.iter()) {
                    values.live[*slot as usize] = *bits;
                }
            }
            Values::Bits128(values) => {
                for (slot, bits) in slots.iter().zip(column.as_primitive::<Decimal128Type>().values()) {
                    values.live[*slot as usize] = *bits;
                }
            }
            Values::Text(values) => {
                let text = column.as_string::<i32>();
                for (row, slot) in slots.iter().enumerate() {
                    values.set(*slot as usize, if text.is_valid(row) { text.value(row).as_bytes() } else { b"" });
                }
            }
        }
        Ok(())
    }
}

/// Folds values into slots. A better value replaces; the extreme's going leaves a bound.
#[inline]
fn fold_bits<T: Ord + Copy>(state: &mut [u8], live: &mut [T], greatest: bool, selection: &Selection<'_>, bits: &[T]) {
    if greatest {
        fold_bits_by(state, live, selection, bits, |a, b| a > b);
    } else {
        fold_bits_by(state, live, selection, bits, |a, b| a < b);
    }
}

#[inline]
fn fold_bits_by<T: Ord + Copy>(state: &mut [u8], live: &mut [T], selection: &Selection<'_>, bits: &[T], better: impl Fn(&T, &T) -> bool) {
    selection.for_each(|row, slot, weight| {
        let value = bits[row];
        if weight > 0 {
            if state[slot] == EMPTY || better(&value, &live[slot]) {
                live[slot] = value;
                state[slot] = KNOWN;
            } else if value == live[slot] {
                state[slot] = KNOWN;
            }
        } else if value == live[slot] && state[slot] == KNOWN {
            state[slot] = BOUND;
        }
    });
}

/// The values as integers of the same order.
fn to_bits64(column: &ArrayRef) -> Result<Cow<'_, [i64]>> {
    Ok(match column.data_type() {
        DataType::Boolean => Cow::Owned(column.as_boolean().values().iter().map(i64::from).collect()),
        DataType::Int32 => Cow::Owned(column.as_primitive::<Int32Type>().values().iter().map(|value| i64::from(*value)).collect()),
        DataType::Int64 => Cow::Borrowed(column.as_primitive::<Int64Type>().values()),
        DataType::Timestamp(TimeUnit::Microsecond, _) => Cow::Borrowed(column.as_primitive::<TimestampMicrosecondType>().values()),
        DataType::Float64 => Cow::Owned(column.as_primitive::<Float64Type>().values().iter().map(|value| bits_of_double(*value)).collect()),
        other => return Err(Error::internal(format!("values of type {other} have no 64-bit order"))),
    })
}

/// An integer of the same order: IEEE 754's total order of the doubles that SQL tells apart.
fn bits_of_double(value: f64) -> i64 {
    let value = if value.is_nan() {
        f64::NAN.abs()
    } else {
        // -0.0 becomes 0.0.
        value + 0.0
    };
    flip(value.to_bits() as i64)
}

fn double_of_bits(bits: i64) -> f64 {
    f64::from_bits(flip(bits) as u64)
}

/// Inverts the order of negative numbers' bits; its own inverse.
fn flip(bits: i64) -> i64 {
    bits ^ ((bits >> 63) as u64 >> 1) as i64
}

/// Texts of slots in one arena; what is replaced is reclaimed when it makes up half of it.
#[derive(Debug, Default)]
struct TextPair {
    bytes: Vec<u8>,
    /// Where the slot's text begins in `bytes`, and its length.
    spans: Vec<(usize, u32)>,
    unused: usize,
    old_bytes: Vec<u8>,
    old_ends: Vec<usize>,
}

impl TextPair {
    fn grow(&mut self, len: usize) {
        self.spans.resize(len, (0, 0));
    }

    #[inline]
    fn live(&self, slot: usize) -> &[u8] {
        let (start, length) = self.spans[slot];
        &self.bytes[start..start + length as usize]
    }

    fn get(&self, source: Source) -> &[u8] {
        let index = source.index as usize;
        if source.old {
            let start = if index == 0 { 0 } else { self.old_ends[index - 1] };
            &self.old_bytes[start..self.old_ends[index]]
        } else {
            self.live(index)
        }
    }

    fn set(&mut self, slot: usize, text: &[u8]) {
        let (start, length) = self.spans[slot];
        if text.len() <= length as usize {
            self.bytes[start..start + text.len()].copy_from_slice(text);
            self.unused += length as usize - text.len();
            self.spans[slot].1 = text.len() as u32;
            return;
        }
        self.unused += length as usize;
        self.spans[slot] = (self.bytes.len(), text.len() as u32);
        self.bytes.extend_from_slice(text);
        if self.unused > 64 * 1024 && self.unused > self.bytes.len() / 2 {
            self.reclaim();
        }
    }

    fn reclaim(&mut self) {
        let mut bytes = Vec::with_capacity(self.spans.iter().map(|(_, length)| *length as usize).sum());
        for (start, length) in &mut self.spans {
            let begin = bytes.len();
            bytes.extend_from_slice(&self.bytes[*start..*start + *length as usize]);
            *start = begin;
        }
        self.bytes = bytes;
        self.unused = 0;
    }

    fn capture(&mut self, slots: &[u32]) {
        for slot in slots {
            let (start, length) = self.spans[*slot as usize];
            self.old_bytes.extend_from_slice(&self.bytes[start..start + length as usize]);
            self.old_ends.push(self.old_bytes.len());
        }
    }

    fn retain_old(&mut self, positions: &[u32]) {
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        for position in positions {
            bytes.extend_from_slice(self.get(Source::old(*position as usize)));
            ends.push(bytes.len());
        }
        if ends.is_empty() && self.old_bytes.capacity() <= 1024 * 1024 {
            self.old_bytes.clear();
            self.old_ends.clear();
        } else {
            self.old_bytes = bytes;
            self.old_ends = ends;
        }
    }

    fn compact(&mut self, kept: &[u32]) {
        crate::state::groups::compact(&mut self.spans, kept);
        self.reclaim();
    }

    fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.spans.capacity() * 16 + self.old_bytes.capacity() + self.old_ends.capacity() * 8
    }
}
