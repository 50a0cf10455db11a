//! Accumulators as columns: one element a group, folded by weight in one loop a column.
//!
//! # Invariants
//! - Every accumulator is a function of the multiset of its group's rows, whatever the order in which they came and went (double sums: up to rounding
//!   in the 106th bit). So an epoch may be folded in any order.
//! - `live` is indexed by slot; `old` by position in the list of touched slots, and holds the value that the last emitted result was made of.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, Float64Array, Int64Array};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Decimal128Type, Field, Float64Type, Int32Type, Int64Type};
use weir_catalog::{Error, Result, SqlState};

use super::extremes::Extreme;
use crate::state::groups::{StateColumns, compact};

/// The rows of a batch that an accumulator folds, each with its slot and weight.
#[derive(Clone, Copy)]
pub struct Selection<'a> {
    pub rows: Rows<'a>,
    /// The slot of each row of the batch.
    pub slots: &'a [u32],
    /// The kind of each row of the batch; `None` where all are `+I`.
    pub kinds: Option<&'a [u8]>,
}

/// Which rows of a batch.
#[derive(Clone, Copy)]
pub enum Rows<'a> {
    All,
    Where(&'a BooleanBuffer),
    /// These rows, with weights of their own instead of those of their kinds.
    Weighted(&'a [(u32, i8)]),
}

impl Selection<'_> {
    /// Calls `each(row, slot, weight)` for the rows in order.
    #[inline]
    pub fn for_each(&self, mut each: impl FnMut(usize, usize, i64)) {
        let slots = self.slots;
        match (self.rows, self.kinds) {
            (Rows::All, None) => {
                for (row, slot) in slots.iter().enumerate() {
                    each(row, *slot as usize, 1);
                }
            }
            (Rows::All, Some(kinds)) => {
                for (row, (slot, kind)) in slots.iter().zip(kinds).enumerate() {
                    each(row, *slot as usize, weight(*kind));
                }
            }
            (Rows::Where(mask), None) => mask.set_indices().for_each(|row| each(row, slots[row] as usize, 1)),
            (Rows::Where(mask), Some(kinds)) => mask.set_indices().for_each(|row| each(row, slots[row] as usize, weight(kinds[row]))),
            (Rows::Weighted(rows), _) => {
                for (row, weight) in rows {
                    each(*row as usize, slots[*row as usize] as usize, i64::from(*weight));
                }
            }
        }
    }
}

/// The weight of a row kind's number.
#[inline]
fn weight(kind: u8) -> i64 {
    1 - 2 * i64::from(kind & 1)
}

/// Where a result is made from: a slot's present value, or the value captured at a position of the touched slots.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    pub index: u32,
    pub old: bool,
}

impl Source {
    pub fn live(slot: u32) -> Source {
        Source { index: slot, old: false }
    }

    pub fn old(position: usize) -> Source {
        Source { index: position as u32, old: true }
    }
}

/// A column of present values and those captured when their slot was first touched in the epoch.
#[derive(Debug, Default)]
pub struct Pair<T> {
    pub live: Vec<T>,
    pub old: Vec<T>,
}

impl<T: Copy + Default> Pair<T> {
    pub fn grow(&mut self, len: usize) {
        self.live.resize(len, T::default());
    }

    pub fn capture(&mut self, slots: &[u32]) {
        let live = &self.live;
        self.old.extend(slots.iter().map(|slot| live[*slot as usize]));
    }

    /// Keeps the captured values at `positions` (ascending).
    pub fn retain_old(&mut self, positions: &[u32]) {
        for (new, position) in positions.iter().enumerate() {
            self.old[new] = self.old[*position as usize];
        }
        self.old.truncate(positions.len());
        if self.old.is_empty() && self.old.capacity() > 64 * 1024 {
            self.old = Vec::new();
        }
    }

    #[inline]
    pub fn get(&self, source: Source) -> T {
        if source.old { self.old[source.index as usize] } else { self.live[source.index as usize] }
    }

    pub fn compact(&mut self, kept: &[u32]) {
        compact(&mut self.live, kept);
    }

    pub fn memory_bytes(&self) -> usize {
        (self.live.capacity() + self.old.capacity()) * size_of::<T>()
    }
}

/// A sum of doubles from which values can be taken away again: a double-double (Dekker 1971; two-sum after Knuth), and the number of values that
/// are not finite, which no sum could forget.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DoubleSum {
    high: f64,
    low: f64,
    nans: i64,
    infinities: i64,
    negative_infinities: i64,
}

impl DoubleSum {
    /// Adds `value` if `weight` is 1, takes it away if it is -1.
    #[inline]
    fn add(&mut self, value: f64, weight: i64) {
        if !value.is_finite() {
            let count = match value {
                f64::INFINITY => &mut self.infinities,
                f64::NEG_INFINITY => &mut self.negative_infinities,
                _ => &mut self.nans,
            };
            *count += weight;
            return;
        }
        let value = if weight < 0 { -value } else { value };
        let sum = self.high + value;
        let rounded = sum - self.high;
        let error = (self.high - (sum - rounded)) + (value - rounded) + self.low;
        self.high = sum + error;
        self.low = error - (self.high - sum);
    }

    /// The sum, as IEEE 754 would have it. Not finite without an infinite or NaN value only if the sum is out of range.
    pub fn value(&self) -> f64 {
        if self.nans > 0 || (self.infinities > 0 && self.negative_infinities > 0) {
            f64::NAN
        } else if self.infinities > 0 {
            f64::INFINITY
        } else if self.negative_infinities > 0 {
            f64::NEG_INFINITY
        } else {
            // Positive zero, whatever the rounding left.
            self.high + 0.0
        }
    }

    /// Whether the finite values' sum was within the range of doubles.
    pub fn in_range(&self) -> bool {
        self.high.is_finite()
    }
}

/// One accumulator of every group.
#[derive(Debug)]
pub enum Accumulator {
    /// A number of rows.
    Count(Pair<i64>),
    /// An exact sum of integers, or of decimals of this scale.
    SumExact(Pair<i128>, i8),
    SumDouble(Pair<DoubleSum>),
    /// The least or greatest value.
    Extreme(Extreme),
}

/// Runs the same expression on whatever an accumulator's column is.
macro_rules! each_column {
    ($accumulator:expr, $column:ident => $body:expr) => {
        match $accumulator {
            Accumulator::Count($column) => $body,
            Accumulator::SumExact($column, _) => $body,
            Accumulator::SumDouble($column) => $body,
            Accumulator::Extreme($column) => $body,
        }
    };
}

impl Accumulator {
    /// Folds rows of a batch. `argument` is the argument's column; a count of rows has none.
    pub fn fold(&mut self, selection: &Selection<'_>, argument: Option<&ArrayRef>) -> Result<()> {
        let missing = || Error::internal("an aggregate function has no argument");
        match self {
            Accumulator::Count(counts) => {
                let live = counts.live.as_mut_slice();
                selection.for_each(|_, slot, weight| live[slot] += weight);
                Ok(())
            }
            Accumulator::SumExact(sums, _) => {
                let argument = argument.ok_or_else(missing)?;
                match argument.data_type() {
                    DataType::Int32 => {
                        let values = argument.as_primitive::<Int32Type>().values();
                        fold_exact(&mut sums.live, selection, |row| i128::from(values[row]))
                    }
                    DataType::Int64 => {
                        let values = argument.as_primitive::<Int64Type>().values();
                        fold_exact(&mut sums.live, selection, |row| i128::from(values[row]))
                    }
                    DataType::Decimal128(..) => {
                        let values = argument.as_primitive::<Decimal128Type>().values();
                        fold_exact(&mut sums.live, selection, |row| values[row])
                    }
                    other => Err(Error::internal(format!("sum over a column of type {other}"))),
                }
            }
            Accumulator::SumDouble(sums) => {
                let argument = argument.ok_or_else(missing)?;
                let values = argument
                    .as_primitive_opt::<Float64Type>()
                    .ok_or_else(|| Error::internal(format!("double sum over a column of type {}", argument.data_type())))?
                    .values();
                let live = sums.live.as_mut_slice();
                selection.for_each(|row, slot, weight| live[slot].add(values[row], weight));
                Ok(())
            }
            Accumulator::Extreme(extreme) => extreme.fold(selection, argument.ok_or_else(missing)?),
        }
    }

    pub fn capture(&mut self, slots: &[u32]) {
        each_column!(self, column => column.capture(slots));
    }

    pub fn retain_old(&mut self, positions: &[u32]) {
        each_column!(self, column => column.retain_old(positions));
    }

    fn grow(&mut self, len: usize) {
        each_column!(self, column => column.grow(len));
    }

    fn compact(&mut self, kept: &[u32]) {
        each_column!(self, column => column.compact(kept));
    }

    fn memory_bytes(&self) -> usize {
        each_column!(self, column => column.memory_bytes())
    }

    /// Whether it is what it is for a group without rows.
    pub fn is_zero(&self, slot: u32) -> bool {
        let slot = slot as usize;
        match self {
            Accumulator::Count(counts) => counts.live[slot] == 0,
            Accumulator::SumExact(sums, _) => sums.live[slot] == 0,
            Accumulator::SumDouble(sums) => sums.live[slot] == DoubleSum::default(),
            Accumulator::Extreme(extreme) => extreme.is_empty(slot),
        }
    }

    /// The columns that it has in the state, `name` being the accumulator's.
    pub fn state_fields(&self, name: &str) -> Vec<Field> {
        match self {
            Accumulator::Count(_) => vec![Field::new(name, DataType::Int64, false)],
            Accumulator::SumExact(_, scale) => vec![Field::new(name, DataType::Decimal128(38, *scale), false)],
            Accumulator::SumDouble(_) => vec![
                Field::new(name, DataType::Float64, false),
                Field::new(format!("{name}_low"), DataType::Float64, false),
                Field::new(format!("{name}_nans"), DataType::Int64, false),
                Field::new(format!("{name}_infinities"), DataType::Int64, false),
                Field::new(format!("{name}_negative_infinities"), DataType::Int64, false),
            ],
            Accumulator::Extreme(extreme) => vec![Field::new(name, extreme.data_type().clone(), true)],
        }
    }

    /// Appends its state columns for `slots`.
    fn store(&self, slots: &[u32], out: &mut Vec<ArrayRef>) {
        match self {
            Accumulator::Count(counts) => {
                out.push(Arc::new(Int64Array::from_iter_values(slots.iter().map(|slot| counts.live[*slot as usize]))));
            }
            Accumulator::SumExact(sums, scale) => {
                let values = Decimal128Array::from_iter_values(slots.iter().map(|slot| sums.live[*slot as usize]));
                out.push(Arc::new(values.with_data_type(DataType::Decimal128(38, *scale))));
            }
            Accumulator::SumDouble(sums) => {
                let doubles = |get: fn(&DoubleSum) -> f64| -> ArrayRef {
                    Arc::new(Float64Array::from_iter_values(slots.iter().map(|slot| get(&sums.live[*slot as usize]))))
                };
                let counts = |get: fn(&DoubleSum) -> i64| -> ArrayRef {
                    Arc::new(Int64Array::from_iter_values(slots.iter().map(|slot| get(&sums.live[*slot as usize]))))
                };
                out.push(doubles(|sum| sum.high));
                out.push(doubles(|sum| sum.low));
                out.push(counts(|sum| sum.nans));
                out.push(counts(|sum| sum.infinities));
                out.push(counts(|sum| sum.negative_infinities));
            }
            Accumulator::Extreme(extreme) => out.push(extreme.to_array(slots.iter().map(|slot| Source::live(*slot)))),
        }
    }

    /// Takes its state columns from `values`.
    fn load<'a>(&mut self, slots: &[u32], values: &mut impl Iterator<Item = &'a ArrayRef>) -> Result<()> {
        let mut next = || values.next().ok_or_else(|| Error::internal("a state's value has too few columns"));
        match self {
            Accumulator::Count(counts) => {
                let column = next()?.as_primitive::<Int64Type>();
                for (slot, value) in slots.iter().zip(column.values()) {
                    counts.live[*slot as usize] = *value;
                }
            }
            Accumulator::SumExact(sums, _) => {
                let column = next()?.as_primitive::<Decimal128Type>();
                for (slot, value) in slots.iter().zip(column.values()) {
                    sums.live[*slot as usize] = *value;
                }
            }
            Accumulator::SumDouble(sums) => {
                let high = next()?.as_primitive::<Float64Type>().values();
                let low = next()?.as_primitive::<Float64Type>().values();
                let nans = next()?.as_primitive::<Int64Type>().values();
                let infinities = next()?.as_primitive::<Int64Type>().values();
                let negative_infinities = next()?.as_primitive::<Int64Type>().values();
                for (i, slot) in slots.iter().enumerate() {
                    sums.live[*slot as usize] = DoubleSum {
                        high: high[i],
                        low: low[i],
                        nans: nans[i],
                        infinities: infinities[i],
                        negative_infinities: negative_infinities[i],
                    };
                }
            }
            Accumulator::Extreme(extreme) => extreme.load(slots, next()?)?,
        }
        Ok(())
    }
}

/// Adds `weight * value(row)` to each row's slot; `22003` if a sum leaves 128 bits.
#[inline]
fn fold_exact(live: &mut [i128], selection: &Selection<'_>, value: impl Fn(usize) -> i128) -> Result<()> {
    let mut overflowed = false;
    selection.for_each(|row, slot, weight| {
        let value = value(row);
        let (sum, overflow) = if weight < 0 { live[slot].overflowing_sub(value) } else { live[slot].overflowing_add(value) };
        live[slot] = sum;
        overflowed |= overflow;
    });
    if overflowed {
        return Err(
            Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "numeric field overflow").with_detail("A sum does not fit in 128 bits.")
        );
    }
    Ok(())
}

/// All accumulators of an aggregate; the first is the number of the group's rows.
#[derive(Debug)]
pub struct Accumulators {
    pub columns: Vec<Accumulator>,
    /// There is one group, and it is kept without rows too.
    pub global: bool,
}

impl Accumulators {
    /// The number of rows of each group.
    pub fn rows(&self) -> &Pair<i64> {
        match &self.columns[0] {
            Accumulator::Count(rows) => rows,
            _ => unreachable!("the first accumulator counts the group's rows"),
        }
    }

    /// The same, to be changed.
    pub fn rows_mut(&mut self) -> &mut Pair<i64> {
        match &mut self.columns[0] {
            Accumulator::Count(rows) => rows,
            _ => unreachable!("the first accumulator counts the group's rows"),
        }
    }

    /// Remembers what the last emitted results of newly touched slots were made of.
    pub fn capture(&mut self, slots: &[u32]) {
        self.columns.iter_mut().for_each(|column| column.capture(slots));
    }

    /// Keeps what was captured at `positions` (ascending) of the touched slots.
    pub fn retain_old(&mut self, positions: &[u32]) {
        self.columns.iter_mut().for_each(|column| column.retain_old(positions));
    }

    /// Whether every accumulator is what it is without rows.
    pub fn is_zero(&self, slot: u32) -> bool {
        self.columns.iter().all(|column| column.is_zero(slot))
    }

    /// Forgets what rounding left of double sums `sum` over no values, `count` counting them. Only right at a barrier.
    pub fn settle(&mut self, sum: usize, count: usize, slots: &[u32]) {
        let [Accumulator::SumDouble(sums), Accumulator::Count(counts)] =
            self.columns.get_disjoint_mut([sum, count]).unwrap_or_else(|_| unreachable!("a sum and its count are two accumulators"))
        else {
            return;
        };
        for slot in slots {
            let sum = &mut sums.live[*slot as usize];
            if counts.live[*slot as usize] == 0 && sum.in_range() {
                sum.high = 0.0;
                sum.low = 0.0;
            }
        }
    }
}

impl StateColumns for Accumulators {
    fn grow(&mut self, len: usize) {
        self.columns.iter_mut().for_each(|column| column.grow(len));
    }

    fn load(&mut self, slots: &[u32], values: &[ArrayRef]) -> Result<()> {
        let mut values = values.iter();
        self.columns.iter_mut().try_for_each(|column| column.load(slots, &mut values))
    }

    fn store(&self, slots: &[u32]) -> Result<Vec<ArrayRef>> {
        let mut out = Vec::new();
        self.columns.iter().for_each(|column| column.store(slots, &mut out));
        Ok(out)
    }

    fn is_empty(&self, slot: u32) -> bool {
        !self.global && self.is_zero(slot)
    }

    fn compact(&mut self, kept: &[u32]) {
        self.columns.iter_mut().for_each(|column| column.compact(kept));
    }

    fn memory_bytes(&self) -> usize {
        self.columns.iter().map(Accumulator::memory_bytes).sum()
    }
}
