//! From accumulators to result columns, and whether a group's result changed.

use std::sync::Arc;

use arrow::array::{ArrayRef, Decimal128Array, Float64Array, Int64Array};
use arrow::datatypes::DataType;
use weir_catalog::{Error, Result, SqlState};

use super::columns::{Accumulator, Accumulators, Source};
use super::plan::ResultColumn;

/// One more than the largest value of 38 digits.
const DECIMAL_LIMIT: i128 = 10i128.pow(38);

impl ResultColumn {
    /// The column's values for `sources`, all of which are in range.
    pub fn to_array(&self, accumulators: &Accumulators, sources: &[Source]) -> Result<ArrayRef> {
        let sources = sources.iter().copied();
        Ok(match self {
            ResultColumn::Count(count) => match &accumulators.columns[*count] {
                Accumulator::Count(counts) => Arc::new(Int64Array::from_iter_values(sources.map(|source| counts.get(source)))),
                _ => return Err(mismatch()),
            },
            ResultColumn::Extreme(extreme) => match &accumulators.columns[*extreme] {
                Accumulator::Extreme(extreme) => extreme.to_array(sources),
                _ => return Err(mismatch()),
            },
            ResultColumn::Sum { sum, count, data_type, .. } => {
                let Accumulator::Count(counts) = &accumulators.columns[*count] else {
                    return Err(mismatch());
                };
                match (&accumulators.columns[*sum], data_type) {
                    (Accumulator::SumExact(sums, _), DataType::Int64) => {
                        let values = sources.map(|source| (counts.get(source) > 0).then(|| sums.get(source) as i64));
                        Arc::new(values.collect::<Int64Array>())
                    }
                    (Accumulator::SumExact(sums, _), _) => {
                        let values = sources.map(|source| (counts.get(source) > 0).then(|| sums.get(source)));
                        Arc::new(values.collect::<Decimal128Array>().with_data_type(data_type.clone()))
                    }
                    (Accumulator::SumDouble(sums), _) => {
                        let values = sources.map(|source| (counts.get(source) > 0).then(|| sums.get(source).value()));
                        Arc::new(values.collect::<Float64Array>())
                    }
                    _ => return Err(mismatch()),
                }
            }
        })
    }

    /// Sets `changed[position]` where the result of the touched slot at `position` differs from the captured one.
    pub fn mark_changed(&self, accumulators: &Accumulators, touched: &[u32], changed: &mut [bool]) {
        match self {
            ResultColumn::Count(count) => {
                if let Accumulator::Count(counts) = &accumulators.columns[*count] {
                    mark(touched, changed, |old, new| counts.get(old) != counts.get(new));
                }
            }
            ResultColumn::Extreme(extreme) => {
                if let Accumulator::Extreme(extreme) = &accumulators.columns[*extreme] {
                    mark(touched, changed, |old, new| !extreme.equal(old, new));
                }
            }
            ResultColumn::Sum { sum, count, .. } => {
                let Accumulator::Count(counts) = &accumulators.columns[*count] else {
                    return;
                };
                let nulls_differ = |old, new| (counts.get(old) > 0) != (counts.get(new) > 0);
                match &accumulators.columns[*sum] {
                    Accumulator::SumExact(sums, _) => {
                        mark(touched, changed, |old, new| {
                            nulls_differ(old, new) || (counts.get(new) > 0 && sums.get(old) != sums.get(new))
                        });
                    }
                    Accumulator::SumDouble(sums) => mark(touched, changed, |old, new| {
                        let (a, b) = (sums.get(old).value(), sums.get(new).value());
                        nulls_differ(old, new) || (counts.get(new) > 0 && a != b && !(a.is_nan() && b.is_nan()))
                    }),
                    _ => {}
                }
            }
        }
    }

    /// Calls `each` with the positions of the touched slots whose present result is out of range.
    pub fn out_of_range(&self, accumulators: &Accumulators, touched: &[u32], mut each: impl FnMut(usize)) {
        let ResultColumn::Sum { sum, count, data_type, .. } = self else {
            return;
        };
        let Accumulator::Count(counts) = &accumulators.columns[*count] else {
            return;
        };
        let present = |slot: usize| counts.live[slot] > 0;
        for (position, slot) in touched.iter().enumerate() {
            let slot = *slot as usize;
            let in_range = match (&accumulators.columns[*sum], data_type) {
                (Accumulator::SumExact(sums, _), DataType::Int64) => i64::try_from(sums.live[slot]).is_ok(),
                (Accumulator::SumExact(sums, _), _) => sums.live[slot].unsigned_abs() < DECIMAL_LIMIT.unsigned_abs(),
                (Accumulator::SumDouble(sums), _) => sums.live[slot].in_range(),
                _ => true,
            };
            if !in_range && present(slot) {
                each(position);
            }
        }
    }

    /// The error for a result out of range, in PostgreSQL's words.
    pub fn out_of_range_error(&self) -> Error {
        let (message, name) = match self {
            ResultColumn::Sum { data_type: DataType::Int64, name, .. } => ("bigint out of range", name.as_str()),
            ResultColumn::Sum { data_type: DataType::Float64, name, .. } => ("value out of range: overflow", name.as_str()),
            ResultColumn::Sum { name, .. } => ("numeric field overflow", name.as_str()),
            _ => ("value out of range", "aggregate"),
        };
        Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, message).with_detail(format!("The result of {name} does not fit its type."))
    }
}

/// Sets what `differs` says of each touched slot's captured and present source.
#[inline]
fn mark(touched: &[u32], changed: &mut [bool], differs: impl Fn(Source, Source) -> bool) {
    for (position, (slot, changed)) in touched.iter().zip(changed).enumerate() {
        *changed |= differs(Source::old(position), Source::live(*slot));
    }
}

fn mismatch() -> Error {
    Error::internal("an aggregate's result column does not fit its accumulator")
}
