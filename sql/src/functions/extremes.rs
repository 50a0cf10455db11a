//! MIN and MAX of DOUBLE PRECISION in PostgreSQL's order: every NaN is equal and greater than all else, -0.0 is 0.0. DataFusion's own begin with the
//! greatest and the least finite number, which infinities are beyond, and know two kinds of NaN.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Float64Type};
use datafusion::common::{DataFusionError, Result, ScalarValue};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature, Volatility};

/// How PostgreSQL orders doubles.
pub fn compare(left: f64, right: f64) -> Ordering {
    left.partial_cmp(&right).unwrap_or_else(|| left.is_nan().cmp(&right.is_nan()))
}

/// MIN or MAX of doubles.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct DoubleExtreme {
    is_max: bool,
    signature: Signature,
}

/// MIN of doubles.
pub fn min_of_doubles() -> Arc<AggregateUDF> {
    static MIN: LazyLock<Arc<AggregateUDF>> = LazyLock::new(|| DoubleExtreme::function(false));
    Arc::clone(&MIN)
}

/// MAX of doubles.
pub fn max_of_doubles() -> Arc<AggregateUDF> {
    static MAX: LazyLock<Arc<AggregateUDF>> = LazyLock::new(|| DoubleExtreme::function(true));
    Arc::clone(&MAX)
}

impl DoubleExtreme {
    fn function(is_max: bool) -> Arc<AggregateUDF> {
        let signature = Signature::exact(vec![DataType::Float64], Volatility::Immutable);
        Arc::new(AggregateUDF::from(DoubleExtreme { is_max, signature }))
    }

    fn wanted(&self) -> Ordering {
        if self.is_max { Ordering::Greater } else { Ordering::Less }
    }
}

impl AggregateUDFImpl for DoubleExtreme {
    fn name(&self) -> &str {
        if self.is_max { "max" } else { "min" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _argument_types: &[DataType]) -> Result<DataType> {
        Ok(DataType::Float64)
    }

    fn accumulator(&self, _args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(Running { wanted: self.wanted(), value: None }))
    }

    fn create_sliding_accumulator(&self, _args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(Sliding { wanted: self.wanted(), candidates: VecDeque::new(), first: 0, next: 0 }))
    }

    fn groups_accumulator_supported(&self, _args: AccumulatorArgs) -> bool {
        true
    }

    fn create_groups_accumulator(&self, _args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(Groups { wanted: self.wanted(), values: Vec::new(), seen: Vec::new() }))
    }
}

/// The value so far.
#[derive(Debug)]
struct Running {
    wanted: Ordering,
    value: Option<f64>,
}

impl Accumulator for Running {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in values[0].as_primitive::<Float64Type>().iter().flatten() {
            if self.value.is_none_or(|known| compare(value, known) == self.wanted) {
                self.value = Some(value);
            }
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(ScalarValue::Float64(self.value))
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }
}

/// The value of a frame that loses rows at its start: those rows of it that can still be the answer, the answer first.
#[derive(Debug)]
struct Sliding {
    wanted: Ordering,
    /// Each with its place; every one better than those behind it.
    candidates: VecDeque<(u64, f64)>,
    /// The places of the frame's first row and of the row after its last.
    first: u64,
    next: u64,
}

impl Accumulator for Sliding {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in values[0].as_primitive::<Float64Type>().iter() {
            if let Some(value) = value {
                while self.candidates.back().is_some_and(|(_, known)| compare(*known, value) != self.wanted) {
                    self.candidates.pop_back();
                }
                self.candidates.push_back((self.next, value));
            }
            self.next += 1;
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.first += values[0].len() as u64;
        while self.candidates.front().is_some_and(|(place, _)| *place < self.first) {
            self.candidates.pop_front();
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(ScalarValue::Float64(self.candidates.front().map(|(_, value)| *value)))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.candidates.capacity() * size_of::<(u64, f64)>()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn merge_batch(&mut self, _states: &[ArrayRef]) -> Result<()> {
        Err(DataFusionError::Internal("a sliding frame is not merged".into()))
    }
}

/// A value for each group.
#[derive(Debug)]
struct Groups {
    wanted: Ordering,
    values: Vec<f64>,
    seen: Vec<bool>,
}

impl GroupsAccumulator for Groups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        let values = values[0].as_primitive::<Float64Type>();
        self.values.resize(total_num_groups, 0.0);
        self.seen.resize(total_num_groups, false);
        let everything = values.null_count() == 0 && opt_filter.is_none();
        for (row, &group) in group_indices.iter().enumerate() {
            let counts = everything || (values.is_valid(row) && opt_filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row)));
            if counts && (!self.seen[group] || compare(values.value(row), self.values[group]) == self.wanted) {
                self.values[group] = values.value(row);
                self.seen[group] = true;
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let values = emit_to.take_needed(&mut self.values);
        let seen = emit_to.take_needed(&mut self.seen);
        Ok(Arc::new(Float64Array::new(values.into(), Some(NullBuffer::from(seen)))))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.evaluate(emit_to)?])
    }

    fn merge_batch(&mut self, values: &[ArrayRef], group_indices: &[usize], total_num_groups: usize) -> Result<()> {
        self.update_batch(values, group_indices, None, total_num_groups)
    }

    fn convert_to_state(&self, values: &[ArrayRef], opt_filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let values = values[0].as_primitive::<Float64Type>();
        let kept = opt_filter.map(|filter| NullBuffer::from_iter(filter.iter().map(|keep| keep == Some(true))));
        let nulls = NullBuffer::union(values.nulls(), kept.as_ref());
        Ok(vec![Arc::new(Float64Array::new(values.values().clone(), nulls))])
    }

    fn size(&self) -> usize {
        self.values.capacity() * size_of::<f64>() + self.seen.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: [f64; 9] = [1.0, f64::NAN, -0.0, f64::INFINITY, f64::NEG_INFINITY, -5.0, 0.0, -f64::NAN, 7.0];

    /// By looking at each value.
    fn expected(values: &[f64], wanted: Ordering) -> Option<f64> {
        values.iter().copied().reduce(|best, value| if compare(value, best) == wanted { value } else { best })
    }

    fn same(one: Option<f64>, other: Option<f64>) -> bool {
        match (one, other) {
            (Some(one), Some(other)) => compare(one, other).is_eq(),
            (one, other) => one.is_none() == other.is_none(),
        }
    }

    #[test]
    fn a_frame_that_slides_has_the_extreme_of_what_is_in_it() {
        for wanted in [Ordering::Less, Ordering::Greater] {
            for width in 1..=VALUES.len() {
                let mut sliding = Sliding { wanted, candidates: VecDeque::new(), first: 0, next: 0 };
                for (end, value) in VALUES.iter().enumerate() {
                    let one = |value: f64| -> ArrayRef { Arc::new(Float64Array::from(vec![value])) };
                    sliding.update_batch(&[one(*value)]).unwrap();
                    if end >= width {
                        sliding.retract_batch(&[one(VALUES[end - width])]).unwrap();
                    }
                    let frame = &VALUES[(end + 1).saturating_sub(width)..=end];
                    let ScalarValue::Float64(found) = sliding.evaluate().unwrap() else { panic!("no double") };
                    assert!(same(found, expected(frame, wanted)), "{wanted:?} of {frame:?}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn groups_know_infinities_and_nan_and_nulls() {
        let values: ArrayRef = Arc::new(Float64Array::from(vec![
            Some(f64::INFINITY),
            Some(f64::NAN),
            Some(f64::NEG_INFINITY),
            None,
            Some(-f64::NAN),
            Some(f64::INFINITY),
        ]));
        for (wanted, expected) in [
            (Ordering::Less, [Some(f64::INFINITY), Some(f64::NEG_INFINITY), None, Some(f64::NAN)]),
            (Ordering::Greater, [Some(f64::INFINITY), Some(f64::NAN), None, Some(f64::NAN)]),
        ] {
            let mut groups = Groups { wanted, values: Vec::new(), seen: Vec::new() };
            groups.update_batch(std::slice::from_ref(&values), &[0, 1, 1, 2, 3, 0], None, 4).unwrap();
            let found = groups.evaluate(EmitTo::All).unwrap();
            for (found, expected) in found.as_primitive::<Float64Type>().iter().zip(expected) {
                assert!(same(found, expected), "{wanted:?}: {found:?}, not {expected:?}");
            }
        }
    }
}
