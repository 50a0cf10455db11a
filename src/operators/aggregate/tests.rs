//! The operator against a naive recomputation from the present rows, in any order of changes, with evictions, restarts and crashes; and single rules.

use std::collections::BTreeMap;

use arrow::array::{Decimal128Array, Float64Array, Int32Array, Int64Array, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{Field, Schema, TimeUnit};
use proptest::prelude::*;
use weir_catalog::SqlState;
use weir_sql::graph::{AggregateCall, AggregateFunction};

use super::*;
use crate::seams::random::Random;
use crate::state::MemoryBackend;

mod model;
mod rules;

/// Keeps what is emitted.
#[derive(Default)]
pub(super) struct Collected(pub Vec<Batch>);

impl Output for Collected {
    fn emit(&mut self, batch: Batch) -> Result<()> {
        self.0.push(batch);
        Ok(())
    }
}

impl Collected {
    /// Takes what was emitted: each row's kind, and its values as text.
    pub fn take(&mut self) -> Vec<(RowKind, Vec<String>)> {
        let mut rows = Vec::new();
        for batch in std::mem::take(&mut self.0) {
            for row in 0..batch.num_rows() {
                let values = batch.rows.columns().iter().map(|column| value(column, row)).collect();
                rows.push((batch.kind(row), values));
            }
        }
        rows
    }
}

/// A value as text, NULL as `-`.
pub(super) fn value(column: &ArrayRef, row: usize) -> String {
    if column.is_null(row) { "-".to_string() } else { arrow::util::display::array_value_to_string(column, row).unwrap() }
}

pub(super) fn barrier(number: u64) -> Barrier {
    Barrier { number, commit: 0, time_us: number as i64, checkpoint: false }
}

/// A backend with the content of another.
pub(super) fn copy_of(backend: &dyn StateBackend) -> MemoryBackend {
    let mut copy = MemoryBackend::new();
    let writes = entries(backend).into_iter().map(|(key, value)| (key, Some(value))).collect();
    copy.write(&writes).unwrap();
    copy
}

pub(super) fn entries(backend: &dyn StateBackend) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut entries = Vec::new();
    backend
        .scan(&[], &[], &mut |key, value| {
            entries.push((key.to_vec(), value.to_vec()));
            Ok(true)
        })
        .unwrap();
    entries
}

/// `function(argument)` with what the input schema says about its type.
pub(super) fn call(function: AggregateFunction, argument: Option<usize>, input: &Schema) -> AggregateCall {
    let argument_type = argument.map(|column| input.field(column).data_type().clone());
    let output_type = match (function, argument_type) {
        (AggregateFunction::Count, _) | (_, None) => DataType::Int64,
        (AggregateFunction::Sum, Some(DataType::Int32)) => DataType::Int64,
        (AggregateFunction::Sum, Some(DataType::Int64)) => DataType::Decimal128(38, 0),
        (AggregateFunction::Sum, Some(DataType::Decimal128(_, scale))) => DataType::Decimal128(38, scale),
        (_, Some(other)) => other,
    };
    AggregateCall { function, argument, distinct: false, filter: None, output_type }
}

/// A spec whose output columns are named after their place.
pub(super) fn spec(input: &Arc<Schema>, group_columns: usize, calls: Vec<AggregateCall>, append_only_input: bool) -> AggregateSpec {
    let mut fields: Vec<Field> = input.fields()[..group_columns].iter().map(|field| field.as_ref().clone()).collect();
    fields.extend(calls.iter().enumerate().map(|(i, call)| Field::new(format!("result{i}"), call.output_type.clone(), true)));
    AggregateSpec {
        input: input.clone(),
        output: Arc::new(Schema::new(fields)),
        group_columns,
        global: group_columns == 0 && !calls.is_empty(),
        calls,
        append_only_input,
    }
}
