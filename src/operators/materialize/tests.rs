//! A view's rows against a plain map for each barrier: changes in any order, memory too short at any moment, every kept version as it was.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{AsArray, Int64Array};
use arrow::datatypes::{Int64Type, Schema};
use proptest::prelude::*;

use super::*;
use crate::seams::random::Random;
use crate::state::memory::MemoryBackend;
use crate::state::versions::Versions;
use crate::stream::RowKinds;

/// A key and its row, with how often the row stands.
type Rows = BTreeMap<(i64, i64), usize>;

#[derive(Clone, Debug)]
struct Epoch {
    /// Key, content, and whether the row goes.
    changes: Vec<(i64, i64, bool)>,
    /// After which batches memory is short.
    short_after: Vec<bool>,
    batch_rows: usize,
    fold: bool,
    seed: u64,
}

fn epoch() -> impl Strategy<Value = Epoch> {
    let changes = prop::collection::vec((0..6i64, 0..4i64, prop::bool::weighted(0.3)), 0..30);
    (changes, prop::collection::vec(any::<bool>(), 1..8), 1..9usize, any::<bool>(), any::<u64>())
        .prop_map(|(changes, short_after, batch_rows, fold, seed)| Epoch { changes, short_after, batch_rows, fold, seed })
}

struct Nowhere;

impl Output for Nowhere {
    fn emit(&mut self, _batch: Batch) -> Result<()> {
        Ok(())
    }
}

fn layout(is_keyed: bool) -> Arc<RowLayout> {
    let fields = ["key", "content"].map(|name| Field::new(name, DataType::Int64, true));
    Arc::new(RowLayout::new(Arc::new(Schema::new(fields.to_vec())), is_keyed.then(|| vec![0])).unwrap())
}

fn batch(changes: &[((i64, i64), bool)]) -> Batch {
    let column =
        |value: fn(&(i64, i64)) -> i64| Arc::new(Int64Array::from_iter_values(changes.iter().map(|(row, _)| value(row)))) as ArrayRef;
    let rows =
        RecordBatch::try_from_iter_with_nullable([("key", column(|row| row.0), true), ("content", column(|row| row.1), true)]).unwrap();
    Batch { rows, kinds: Some(RowKinds::new(changes.iter().map(|(_, goes)| if *goes { 3 } else { 0 }).collect())) }
}

fn barrier(number: u64) -> Barrier {
    Barrier { number, commit: number, time_us: 0, checkpoint: false }
}

fn rows_at(layout: &Arc<RowLayout>, versions: &Versions, version: u64) -> Rows {
    let mut reader = RowReader::new(layout.clone(), versions.open(version).expect("it is kept"));
    let mut rows = Rows::new();
    while let Some(batch) = reader.next_batch(3).unwrap() {
        assert!((1..=3).contains(&batch.num_rows()), "a row that stands often comes in parts too");
        let column = |at: usize| batch.column(at).as_primitive::<Int64Type>().values().to_vec();
        for row in column(0).into_iter().zip(column(1)) {
            *rows.entry(row).or_default() += 1;
        }
    }
    rows
}

/// Makes the epoch's changes of the present rows, some of them taken back again, in any order.
fn changes_of(epoch: &Epoch, is_keyed: bool, rows: &mut Rows) -> Vec<((i64, i64), bool)> {
    let mut made = Vec::new();
    for (key, content, goes) in &epoch.changes {
        let former = rows.keys().find(|row| row.0 == *key && (is_keyed || row.1 == *content)).copied();
        if let Some(former) = former.filter(|_| is_keyed || *goes) {
            made.push((former, true));
            match rows.get_mut(&former) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(rows.remove(&former)),
            }
        }
        if !goes {
            made.push(((*key, *content), false));
            *rows.entry((*key, *content)).or_default() += 1;
        }
    }
    let mut random = Random::seeded(epoch.seed);
    for i in (1..made.len()).rev() {
        made.swap(i, random.below(i as u64 + 1) as usize);
    }
    made
}

fn check(is_keyed: bool, epochs: Vec<Epoch>) -> std::result::Result<(), TestCaseError> {
    let layout = layout(is_keyed);
    let (store, versions) = VersionedStore::new(Box::new(MemoryBackend::new()), 0)?;
    let mut view = Materialize::new(layout.clone(), store, 4);
    let mut rows = Rows::new();
    let mut models = BTreeMap::from([(0, Rows::new())]);
    for (epoch, number) in epochs.iter().zip(1..) {
        let changes = changes_of(epoch, is_keyed, &mut rows);
        let mut short_after = epoch.short_after.iter().cycle();
        for part in changes.chunks(epoch.batch_rows) {
            view.process(0, batch(part), &mut Nowhere)?;
            if *short_after.next().unwrap_or(&false) {
                view.write_ahead()?;
                prop_assert_eq!(&rows_at(&layout, &versions, number - 1), &models[&(number - 1)], "nothing is seen before the barrier");
            }
        }
        view.on_barrier(&barrier(number), &mut Nowhere)?;
        models.insert(number, rows.clone());
        if epoch.fold {
            view.flush()?;
        }
        let (oldest, newest) = versions.range();
        prop_assert_eq!(newest, number);
        for version in oldest..=newest {
            prop_assert_eq!(&rows_at(&layout, &versions, version), &models[&version], "version {}", version);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn rows_with_a_key_are_as_they_should_be_at_every_barrier(epochs in prop::collection::vec(epoch(), 1..6)) {
        check(true, epochs)?;
    }

    #[test]
    fn rows_without_a_key_are_as_they_should_be_at_every_barrier(epochs in prop::collection::vec(epoch(), 1..6)) {
        check(false, epochs)?;
    }
}

/// An epoch far larger than the memory that it may have stays small in memory, and none of it is lost.
#[test]
fn an_epoch_that_memory_is_too_short_for_goes_to_the_store_before_its_barrier() {
    const ROWS: i64 = 200_000;
    let layout = layout(true);
    let (store, versions) = VersionedStore::new(Box::new(MemoryBackend::new()), 0).unwrap();
    let mut view = Materialize::new(layout.clone(), store, 4);
    let mut most = 0;
    for start in (0..ROWS).step_by(1000) {
        let rows: Vec<_> = (start..start + 1000).map(|key| ((key, -key), false)).collect();
        view.process(0, batch(&rows), &mut Nowhere).unwrap();
        most = most.max(view.memory_bytes());
        view.shrink(64 << 10, &mut Nowhere).unwrap();
    }
    assert!(most < 2 << 20, "{most} bytes");
    assert_eq!(rows_at(&layout, &versions, 0).len(), 0);
    view.on_barrier(&barrier(1), &mut Nowhere).unwrap();
    let rows = rows_at(&layout, &versions, 1);
    assert_eq!(rows.len() as i64, ROWS);
    assert!(rows.iter().all(|((key, content), count)| *content == -*key && *count == 1));
}
