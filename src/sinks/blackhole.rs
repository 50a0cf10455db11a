//! The `blackhole` connector: counts what it is given and drops it. For benchmarks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_catalog::{Error, Result, SqlState};

use crate::operators::{Operator, Output};
use crate::stream::Batch;

/// Takes rows of any schema and any kind.
#[derive(Debug)]
pub struct BlackholeSink {
    rows: Arc<AtomicU64>,
}

impl BlackholeSink {
    /// A sink that adds the number of rows it takes, retractions included, to `counter`, which the job's other subtasks may share.
    pub fn new(counter: Arc<AtomicU64>) -> BlackholeSink {
        BlackholeSink { rows: counter }
    }

    /// `22023` for any option: there are none but `connector`.
    pub fn validate_options(options: &BTreeMap<String, String>) -> Result<()> {
        match options.iter().find(|(name, value)| !(name.eq_ignore_ascii_case("connector") && value.eq_ignore_ascii_case("blackhole"))) {
            None => Ok(()),
            Some((name, _)) => {
                let message = format!("unknown option \"{name}\" for connector blackhole");
                Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, message).with_hint("It has no options."))
            }
        }
    }
}

impl Operator for BlackholeSink {
    fn process(&mut self, _input: usize, batch: Batch, _out: &mut dyn Output) -> Result<()> {
        self.rows.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, RecordBatch, RecordBatchOptions};
    use arrow::datatypes::{DataType, Field, Schema};
    use weir_catalog::RowKind;

    use super::*;

    struct NoOutput;

    impl Output for NoOutput {
        fn emit(&mut self, _batch: Batch) -> Result<()> {
            panic!("a sink has no output")
        }
    }

    #[test]
    fn counts_rows_of_every_kind_over_all_subtasks() {
        let counter = Arc::new(AtomicU64::new(0));
        let (mut first, mut second) = (BlackholeSink::new(Arc::clone(&counter)), BlackholeSink::new(Arc::clone(&counter)));
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]));
        let rows = RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]))]).unwrap();
        first.process(0, Batch::insert(rows.clone()), &mut NoOutput).unwrap();
        let kinds = vec![RowKind::Insert as u8, RowKind::Delete as u8, RowKind::Insert as u8];
        second.process(0, Batch::with_kinds(rows, kinds), &mut NoOutput).unwrap();
        let options = RecordBatchOptions::new().with_row_count(Some(5));
        let no_columns = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options).unwrap();
        second.process(0, Batch::insert(no_columns), &mut NoOutput).unwrap();
        assert_eq!(counter.load(Ordering::Relaxed), 11);
    }

    #[test]
    fn refuses_options() {
        let options = |name: &str, value: &str| BTreeMap::from([(name.to_string(), value.to_string())]);
        BlackholeSink::validate_options(&BTreeMap::new()).unwrap();
        BlackholeSink::validate_options(&options("connector", "blackhole")).unwrap();
        let error = BlackholeSink::validate_options(&options("speed", "high")).unwrap_err();
        assert_eq!(error.code(), &SqlState::INVALID_PARAMETER_VALUE);
        assert!(error.message().contains("\"speed\""), "{error:?}");
        assert!(BlackholeSink::validate_options(&options("connector", "kafka")).is_err());
    }
}
