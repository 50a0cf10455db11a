//! UNNEST: a row for each element of an array, beside the columns of the row that the array is in.
//!
//! # Invariants
//! - Each row made of a row has its kind: what is taken back is what was added.
//! - What is emitted at a time is bounded, however many elements an array has.

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, ListArray, RecordBatch, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::SchemaRef;
use weir_catalog::{Error, Result};

use super::error::from_arrow;
use super::{Operator, Output};
use crate::stream::{Batch, RowKinds};

/// How many rows are emitted at a time.
const ROWS_MAX: usize = 8192;

/// The operator. See the head of this file.
#[derive(Debug)]
pub struct Unnest {
    /// The input's column with the arrays.
    array: usize,
    /// The input's column that each column of the output is; `None`: the elements.
    output: Vec<Option<usize>>,
    /// A row whose array has no elements stays, with NULL.
    outer: bool,
    schema: SchemaRef,
}

impl Unnest {
    /// Makes rows of `schema`, see [`weir_sql::graph::NodeOp::Unnest`].
    pub fn new(array: usize, output: Vec<Option<usize>>, outer: bool, schema: SchemaRef) -> Unnest {
        Unnest { array, output, outer, schema }
    }

    /// The rows that are made of the rows `rows` of `batch` and the elements at `elements` of `lists`.
    fn rows(&self, batch: &Batch, lists: &ListArray, rows: Vec<u32>, elements: Vec<Option<i32>>) -> Result<Batch> {
        let (rows, elements) = (UInt32Array::from(rows), Int32Array::from(elements));
        let column = |from: &Option<usize>| -> Result<ArrayRef> {
            match from {
                Some(column) => take(batch.rows.column(*column), &rows, None).map_err(from_arrow),
                None => take(lists.values(), &elements, None).map_err(from_arrow),
            }
        };
        let columns = self.output.iter().map(column).collect::<Result<Vec<_>>>()?;
        let kinds = batch.kinds.as_ref().map(|kinds| RowKinds::new(rows.values().iter().map(|row| kinds.0[*row as usize]).collect()));
        let rows = RecordBatch::try_new(self.schema.clone(), columns)
            .map_err(|error| Error::internal(format!("the columns of an UNNEST do not fit its schema: {error}")))?;
        Ok(Batch { rows, kinds })
    }
}

impl Operator for Unnest {
    fn process(&mut self, _input: usize, batch: Batch, out: &mut dyn Output) -> Result<()> {
        let array = batch.rows.column(self.array).clone();
        let lists = array.as_list_opt::<i32>().ok_or_else(|| Error::internal("UNNEST of a column that has no arrays"))?;
        let offsets = lists.value_offsets();
        let (mut rows, mut elements): (Vec<u32>, Vec<Option<i32>>) = (Vec::new(), Vec::new());
        for row in 0..lists.len() {
            let (mut next, end) = if lists.is_null(row) { (0, 0) } else { (offsets[row], offsets[row + 1]) };
            if next == end && self.outer {
                rows.push(row as u32);
                elements.push(None);
            }
            while next < end {
                let until = end.min(next.saturating_add((ROWS_MAX.saturating_sub(rows.len())).max(1) as i32));
                rows.resize(rows.len() + (until - next) as usize, row as u32);
                elements.extend((next..until).map(Some));
                next = until;
                if rows.len() >= ROWS_MAX {
                    out.emit(self.rows(&batch, lists, std::mem::take(&mut rows), std::mem::take(&mut elements))?)?;
                }
            }
        }
        if !rows.is_empty() {
            out.emit(self.rows(&batch, lists, rows, elements)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::Int64Array;
    use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, Schema};
    use weir_catalog::RowKind;

    use super::*;

    #[derive(Default)]
    struct Emitted(Vec<Batch>);

    impl Output for Emitted {
        fn emit(&mut self, batch: Batch) -> Result<()> {
            self.0.push(batch);
            Ok(())
        }
    }

    /// The rows that come out, as key, element and kind; and how many batches there are.
    fn unnested(arrays: &[Option<Vec<Option<i32>>>], outer: bool) -> (Vec<(i64, Option<i32>, &'static str)>, usize) {
        // A slice of more rows, whose offsets do not begin with 0.
        let all = std::iter::once(Some(vec![Some(-1)])).chain(arrays.iter().cloned());
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(all));
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..lists.len() as i64));
        let kinds = (0..lists.len()).map(|row| if row % 2 == 0 { RowKind::Insert } else { RowKind::Delete } as u8).collect();
        let rows = RecordBatch::try_from_iter([("k", keys), ("a", lists)]).unwrap();
        let batch = Batch::with_kinds(rows, kinds).slice(1, arrays.len());
        let schema = Schema::new(vec![Field::new("x", DataType::Int32, true), Field::new("k", DataType::Int64, true)]);
        let mut emitted = Emitted::default();
        Unnest::new(1, vec![None, Some(0)], outer, Arc::new(schema)).process(0, batch, &mut emitted).unwrap();
        let mut rows = Vec::new();
        for batch in &emitted.0 {
            let elements = batch.rows.column(0).as_primitive::<Int32Type>();
            let keys = batch.rows.column(1).as_primitive::<Int64Type>();
            rows.extend((0..batch.num_rows()).map(|row| {
                let element = elements.is_valid(row).then(|| elements.value(row));
                (keys.value(row), element, batch.kind(row).short())
            }));
        }
        (rows, emitted.0.len())
    }

    #[test]
    fn elements_keep_their_row_and_its_kind() {
        let arrays = [Some(vec![Some(1), None, Some(3)]), None, Some(Vec::new()), Some(vec![Some(4)])];
        let elements = [(1, Some(1), "-D"), (1, None, "-D"), (1, Some(3), "-D"), (4, Some(4), "+I")];
        assert_eq!(unnested(&arrays, false), (elements.to_vec(), 1));
        let mut outer = elements.to_vec();
        outer.splice(3..3, [(2, None, "+I"), (3, None, "-D")]);
        assert_eq!(unnested(&arrays, true), (outer, 1));
        assert_eq!(unnested(&arrays[1..3], false), (Vec::new(), 0));
    }

    #[test]
    fn long_arrays_come_in_parts() {
        let long: Vec<Option<i32>> = (0..20_000).map(Some).collect();
        let (rows, batches) = unnested(&[Some(long.clone()), Some(vec![Some(7)])], false);
        assert_eq!(batches, 3);
        assert_eq!(rows[..20_000].iter().map(|row| row.1).collect::<Vec<_>>(), long);
        assert_eq!(rows[20_000], (2, Some(7), "+I"));
    }
}
