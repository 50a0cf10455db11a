//! SUM with PostgreSQL's result types and an error on overflow. COUNT is DataFusion's, as are MIN and MAX but of doubles (see [`super::extremes`]); AVG, BOOL_AND and BOOL_OR the binder
//! computes from these.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, PrimitiveArray};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Decimal128Type, Field, FieldRef, Float64Type, Int64Type};
use datafusion::common::{DataFusionError, Result, ScalarValue};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature, Volatility};

use super::arithmetic::{numeric_overflow, one_nan, out_of_range, out_of_range_double, power_of_ten};
use super::external;

/// SUM: of INT a BIGINT, of BIGINT a NUMERIC(38,0), of NUMERIC(p,s) a NUMERIC(38,s), of DOUBLE a DOUBLE.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Sum {
    signature: Signature,
}

/// The one SUM.
pub fn sum() -> Arc<AggregateUDF> {
    static SUM: LazyLock<Arc<AggregateUDF>> =
        LazyLock::new(|| Arc::new(AggregateUDF::from(Sum { signature: Signature::any(1, Volatility::Immutable) })));
    Arc::clone(&SUM)
}

/// The type of SUM over `argument`, `None` where there is no such SUM.
pub fn sum_type(argument: &DataType) -> Option<DataType> {
    Some(match argument {
        DataType::Int32 => DataType::Int64,
        DataType::Int64 => DataType::Decimal128(38, 0),
        DataType::Decimal128(_, scale) => DataType::Decimal128(38, *scale),
        DataType::Float64 => DataType::Float64,
        _ => return None,
    })
}

/// The numbers that can be summed.
trait Summand: ArrowPrimitiveType<Native: std::fmt::Debug + Send + Sync> + std::fmt::Debug {
    /// Bits that are equal where SUM(DISTINCT) takes values for equal.
    type Bits: std::hash::Hash + Eq + Copy + Send + Sync + std::fmt::Debug;
    fn bits(value: Self::Native) -> Self::Bits;
    fn from_bits(bits: Self::Bits) -> Self::Native;
    /// `left + right`, or the error of a sum that does not fit.
    fn add(left: Self::Native, right: Self::Native, result: &DataType) -> Result<Self::Native>;
    /// The error of a final sum that does not fit `result`.
    fn check(value: Self::Native, result: &DataType) -> Result<()>;
}

impl Summand for Int64Type {
    type Bits = i64;
    fn bits(value: i64) -> i64 {
        value
    }
    fn from_bits(bits: i64) -> i64 {
        bits
    }
    fn add(left: i64, right: i64, _result: &DataType) -> Result<i64> {
        left.checked_add(right).ok_or_else(|| external(out_of_range("bigint")))
    }
    fn check(_value: i64, _result: &DataType) -> Result<()> {
        Ok(())
    }
}

impl Summand for Decimal128Type {
    type Bits = i128;
    fn bits(value: i128) -> i128 {
        value
    }
    fn from_bits(bits: i128) -> i128 {
        bits
    }
    fn add(left: i128, right: i128, result: &DataType) -> Result<i128> {
        left.checked_add(right).ok_or_else(|| external(decimal_overflow(result)))
    }
    fn check(value: i128, result: &DataType) -> Result<()> {
        let limit = power_of_ten(38);
        if value > -limit && value < limit { Ok(()) } else { Err(external(decimal_overflow(result))) }
    }
}

impl Summand for Float64Type {
    type Bits = u64;
    fn bits(value: f64) -> u64 {
        // -0.0 is 0.0, and every NaN is one NaN.
        if value == 0.0 {
            0
        } else if value.is_nan() {
            f64::NAN.to_bits()
        } else {
            value.to_bits()
        }
    }
    fn from_bits(bits: u64) -> f64 {
        f64::from_bits(bits)
    }
    fn add(left: f64, right: f64, _result: &DataType) -> Result<f64> {
        let sum = left + right;
        if sum.is_infinite() && !left.is_infinite() && !right.is_infinite() {
            return Err(external(out_of_range_double("overflow")));
        }
        Ok(one_nan(sum))
    }
    fn check(_value: f64, _result: &DataType) -> Result<()> {
        Ok(())
    }
}

fn decimal_overflow(result: &DataType) -> weir_catalog::Error {
    match result {
        DataType::Decimal128(precision, scale) => numeric_overflow(*precision, *scale),
        _ => numeric_overflow(38, 0),
    }
}

/// The argument in the type that is summed up in.
fn widen<T: Summand>(argument: &ArrayRef, result: &DataType) -> Result<PrimitiveArray<T>> {
    if argument.data_type() == result {
        return Ok(argument.as_primitive::<T>().clone());
    }
    if let (DataType::Decimal128(_, _), DataType::Decimal128(_, _)) = (argument.data_type(), result) {
        // Same scale, more digits: the values stay as they are.
        return Ok(argument.as_primitive::<T>().clone().with_data_type(result.clone()));
    }
    Ok(arrow::compute::cast(argument, result)?.as_primitive::<T>().clone())
}

macro_rules! by_type {
    ($type:expr, $make:ident) => {
        match $type {
            DataType::Int64 => Ok($make!(Int64Type)),
            DataType::Decimal128(_, _) => Ok($make!(Decimal128Type)),
            DataType::Float64 => Ok($make!(Float64Type)),
            other => Err(DataFusionError::Internal(format!("no sum of type {other}"))),
        }
    };
}

impl AggregateUDFImpl for Sum {
    fn name(&self) -> &str {
        "sum"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, argument_types: &[DataType]) -> Result<DataType> {
        argument_types
            .first()
            .and_then(sum_type)
            .ok_or_else(|| DataFusionError::Internal(format!("no sum over arguments of types {argument_types:?}")))
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let result = args.return_field.data_type().clone();
        macro_rules! make {
            ($t:ty) => {
                if args.is_distinct {
                    Box::new(DistinctSum::<$t> { seen: HashSet::new(), result: result.clone() }) as Box<dyn Accumulator>
                } else {
                    Box::new(RunningSum::<$t> { sum: None, result: result.clone() }) as Box<dyn Accumulator>
                }
            };
        }
        by_type!(&result, make)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if args.is_distinct {
            return Err(external(weir_catalog::Error::unsupported("DISTINCT is not implemented for window functions")));
        }
        let result = args.return_field.data_type().clone();
        macro_rules! make {
            ($t:ty) => {
                Box::new(SlidingSum::<$t> { frame: VecDeque::new(), result: result.clone() }) as Box<dyn Accumulator>
            };
        }
        by_type!(&result, make)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let result = args.return_field.data_type().clone();
        Ok(vec![if args.is_distinct {
            Arc::new(Field::new_list(format_state_name(args.name, "values"), Field::new_list_field(result, true), false))
        } else {
            Arc::new(Field::new(format_state_name(args.name, "sum"), result, true))
        }])
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        !args.is_distinct
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        let result = args.return_field.data_type().clone();
        macro_rules! make {
            ($t:ty) => {
                Box::new(GroupSums::<$t> { sums: Vec::new(), seen: Vec::new(), result: result.clone() }) as Box<dyn GroupsAccumulator>
            };
        }
        by_type!(&result, make)
    }
}

/// One sum.
#[derive(Debug)]
struct RunningSum<T: Summand> {
    sum: Option<T::Native>,
    result: DataType,
}

impl<T: Summand> Accumulator for RunningSum<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = widen::<T>(&values[0], &self.result)?;
        for value in values.iter().flatten() {
            self.sum = Some(match self.sum {
                Some(sum) => T::add(sum, value, &self.result)?,
                None => value,
            });
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        if let Some(sum) = self.sum {
            T::check(sum, &self.result)?;
        }
        ScalarValue::new_primitive::<T>(self.sum, &self.result)
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![ScalarValue::new_primitive::<T>(self.sum, &self.result)?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }
}

/// The sum over a frame that loses rows at its start. It keeps the frame and adds it up anew: taking a double back would leave its rounding errors.
#[derive(Debug)]
struct SlidingSum<T: Summand> {
    frame: VecDeque<Option<T::Native>>,
    result: DataType,
}

impl<T: Summand> Accumulator for SlidingSum<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.frame.extend(widen::<T>(&values[0], &self.result)?.iter());
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.frame.drain(..values[0].len().min(self.frame.len()));
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let mut sum = None;
        for value in self.frame.iter().flatten() {
            sum = Some(match sum {
                Some(sum) => T::add(sum, *value, &self.result)?,
                None => *value,
            });
        }
        if let Some(sum) = sum {
            T::check(sum, &self.result)?;
        }
        ScalarValue::new_primitive::<T>(sum, &self.result)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.frame.capacity() * size_of::<Option<T::Native>>()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn merge_batch(&mut self, _states: &[ArrayRef]) -> Result<()> {
        Err(DataFusionError::Internal("a sliding frame is not merged".into()))
    }
}

/// SUM(DISTINCT): the values seen.
#[derive(Debug)]
struct DistinctSum<T: Summand> {
    seen: HashSet<T::Bits>,
    result: DataType,
}

impl<T: Summand> Accumulator for DistinctSum<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.seen.extend(widen::<T>(&values[0], &self.result)?.iter().flatten().map(T::bits));
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let mut sum = None;
        for &bits in &self.seen {
            sum = Some(match sum {
                Some(sum) => T::add(sum, T::from_bits(bits), &self.result)?,
                None => T::from_bits(bits),
            });
        }
        if let Some(sum) = sum {
            T::check(sum, &self.result)?;
        }
        ScalarValue::new_primitive::<T>(sum, &self.result)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.seen.capacity() * size_of::<T::Bits>()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values = self
            .seen
            .iter()
            .map(|&bits| ScalarValue::new_primitive::<T>(Some(T::from_bits(bits)), &self.result))
            .collect::<Result<Vec<_>>>()?;
        Ok(vec![ScalarValue::List(ScalarValue::new_list_nullable(&values, &self.result))])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for values in states[0].as_list::<i32>().iter().flatten() {
            self.update_batch(&[values])?;
        }
        Ok(())
    }
}

/// A sum for each group.
#[derive(Debug)]
struct GroupSums<T: Summand> {
    sums: Vec<T::Native>,
    seen: Vec<bool>,
    result: DataType,
}

impl<T: Summand> GroupSums<T> {
    fn emit(&mut self, emit_to: EmitTo, last: bool) -> Result<ArrayRef> {
        let sums = emit_to.take_needed(&mut self.sums);
        let seen = emit_to.take_needed(&mut self.seen);
        if last {
            for (&sum, _) in sums.iter().zip(&seen).filter(|(_, seen)| **seen) {
                T::check(sum, &self.result)?;
            }
        }
        let array = PrimitiveArray::<T>::new(ScalarBuffer::from(sums), Some(NullBuffer::from(seen)));
        Ok(Arc::new(array.with_data_type(self.result.clone())))
    }
}

impl<T: Summand> GroupsAccumulator for GroupSums<T> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        let values = widen::<T>(&values[0], &self.result)?;
        self.sums.resize(total_num_groups, T::default_value());
        self.seen.resize(total_num_groups, false);
        let everything = values.null_count() == 0 && opt_filter.is_none();
        for (row, &group) in group_indices.iter().enumerate() {
            let counts = everything || (values.is_valid(row) && opt_filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row)));
            if counts {
                self.sums[group] = T::add(self.sums[group], values.value(row), &self.result)?;
                self.seen[group] = true;
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        self.emit(emit_to, true)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.emit(emit_to, false)?])
    }

    fn merge_batch(&mut self, values: &[ArrayRef], group_indices: &[usize], total_num_groups: usize) -> Result<()> {
        self.update_batch(values, group_indices, None, total_num_groups)
    }

    fn convert_to_state(&self, values: &[ArrayRef], opt_filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let values = widen::<T>(&values[0], &self.result)?;
        let kept = opt_filter.map(|filter| NullBuffer::from_iter(filter.iter().map(|keep| keep == Some(true))));
        let nulls = NullBuffer::union(values.nulls(), kept.as_ref());
        Ok(vec![Arc::new(PrimitiveArray::<T>::new(values.values().clone(), nulls).with_data_type(self.result.clone()))])
    }

    fn size(&self) -> usize {
        self.sums.capacity() * size_of::<T::Native>() + self.seen.capacity()
    }
}
