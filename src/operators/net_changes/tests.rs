use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{AsArray, Int32Array, StringArray};
use arrow::datatypes::{Field, Int32Type, Schema};

use super::*;
use crate::seams::random::Random;
use crate::state::MemoryBackend;

#[derive(Default)]
struct Sent(Vec<Batch>);

impl Output for Sent {
    fn emit(&mut self, batch: Batch) -> Result<()> {
        self.0.push(batch);
        Ok(())
    }
}

type Row = (Option<i32>, String);

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("n", DataType::Int32, true), Field::new("t", DataType::Utf8, true)]))
}

fn batch(rows: &[(Row, i64)]) -> Batch {
    let numbers = Int32Array::from_iter(rows.iter().map(|((number, _), _)| *number));
    let texts = StringArray::from_iter_values(rows.iter().map(|((_, text), _)| text.as_str()));
    let kinds = rows.iter().map(|(_, weight)| if *weight < 0 { RowKind::UpdateBefore } else { RowKind::Insert } as u8).collect();
    Batch::with_kinds(RecordBatch::try_new(schema(), vec![Arc::new(numbers), Arc::new(texts)]).unwrap(), kinds)
}

/// What batches amount to, and how many rows they have.
fn amount(batches: &[Batch]) -> (BTreeMap<Row, i64>, usize) {
    let mut amount = BTreeMap::new();
    for batch in batches {
        let (numbers, texts) = (batch.rows.column(0).as_primitive::<Int32Type>(), batch.rows.column(1).as_string::<i32>());
        for (row, (number, text)) in numbers.iter().zip(texts.iter()).enumerate() {
            *amount.entry((number, text.unwrap().to_string())).or_default() += batch.weight(row);
        }
    }
    amount.retain(|_, weight| *weight != 0);
    (amount, batches.iter().map(Batch::num_rows).sum())
}

fn barrier() -> Barrier {
    Barrier { number: 1, commit: 0, time_us: 0, checkpoint: false }
}

#[test]
fn what_goes_out_is_what_is_left_and_no_row_goes_both_ways() {
    let mut random = Random::seeded(17);
    for round in 0..40 {
        let mut operator = NetChanges::new(schema(), Box::new(MemoryBackend::new())).unwrap();
        let rows = 1 + random.below(30);
        let mut draw = |signed: bool| -> Vec<(Row, i64)> {
            (0..random.below(400))
                .map(|_| {
                    let number = random.below(rows) as i32;
                    let row = ((number % 7 != 3).then_some(number), format!("row {}", number % 5));
                    (row, if signed && random.below(3) == 0 { -1 } else { 1 })
                })
                .collect()
        };
        let (former, first, second) = (draw(false), draw(true), draw(true));
        let mut out = Sent::default();
        operator.take_back(&batch(&former)).unwrap();
        operator.process(0, batch(&first), &mut out).unwrap();
        if round % 2 == 0 {
            operator.settle().unwrap();
        }
        operator.process(0, batch(&second), &mut out).unwrap();
        assert!(out.0.is_empty(), "nothing goes out before the barrier");
        operator.on_barrier(&barrier(), &mut out).unwrap();
        let mut expected: BTreeMap<Row, i64> = BTreeMap::new();
        former.iter().for_each(|(row, _)| *expected.entry(row.clone()).or_default() -= 1);
        first.iter().chain(&second).for_each(|(row, weight)| *expected.entry(row.clone()).or_default() += weight);
        expected.retain(|_, weight| *weight != 0);
        let (sent, count) = amount(&out.0);
        assert_eq!(sent, expected, "round {round}");
        assert_eq!(count as u64, expected.values().map(|weight| weight.unsigned_abs()).sum::<u64>(), "round {round}: a row goes both ways");
        let kinds: Vec<bool> = out.0.iter().flat_map(|batch| (0..batch.num_rows()).map(|row| batch.weight(row) > 0)).collect();
        assert!(kinds.is_sorted(), "what goes comes first");
        // From then on everything passes as it comes.
        let mut after = Sent::default();
        operator.process(0, batch(&first), &mut after).unwrap();
        operator.on_barrier(&barrier(), &mut after).unwrap();
        assert_eq!(after.0.iter().map(Batch::num_rows).sum::<usize>(), first.len());
    }
}
