//! Single rules: what is emitted when, and what is refused.

use super::*;
use AggregateFunction::{Count, Max, Min, Sum};

fn input(value_type: DataType) -> Arc<Schema> {
    Arc::new(Schema::new(vec![Field::new("key", DataType::Int64, true), Field::new("value", value_type, true)]))
}

fn numbers(rows: &[(i64, Option<i64>, RowKind)]) -> Batch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(rows.iter().map(|row| Some(row.0)).collect::<Int64Array>()),
        Arc::new(rows.iter().map(|row| row.1).collect::<Int64Array>()),
    ];
    let kinds = rows.iter().map(|row| row.2 as u8).collect();
    Batch::with_kinds(RecordBatch::try_new(input(DataType::Int64), columns).unwrap(), kinds)
}

fn values(values: ArrayRef, kind: RowKind) -> Batch {
    let schema = input(values.data_type().clone());
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![1; values.len()]));
    let kinds = vec![kind as u8; values.len()];
    Batch::with_kinds(RecordBatch::try_new(schema, vec![keys, values]).unwrap(), kinds)
}

fn open(value_type: DataType, functions: &[(AggregateFunction, Option<usize>)], backend: MemoryBackend) -> Aggregate {
    let schema = input(value_type);
    let calls = functions.iter().map(|(function, argument)| call(*function, *argument, &schema)).collect();
    Aggregate::new(spec(&schema, 1, calls, false), Box::new(backend), KeyGroupRange::ALL).unwrap()
}

fn rows(rows: &[(RowKind, &[&str])]) -> Vec<(RowKind, Vec<String>)> {
    rows.iter().map(|(kind, values)| (*kind, values.iter().map(|value| value.to_string()).collect())).collect()
}

use RowKind::{Delete, Insert, UpdateAfter, UpdateBefore};

#[test]
fn a_group_is_inserted_updated_left_alone_and_deleted() {
    let mut aggregate = open(DataType::Int64, &[(Count, None), (Sum, Some(1))], MemoryBackend::new());
    let mut out = Collected::default();
    let mut epoch = |changes: &[(i64, Option<i64>, RowKind)], number| {
        aggregate.process(0, numbers(changes), &mut out).unwrap();
        assert!(out.0.is_empty(), "nothing goes out before the barrier");
        aggregate.on_barrier(&barrier(number), &mut out).unwrap();
        out.take()
    };
    assert_eq!(epoch(&[(1, Some(5), Insert), (1, None, Insert)], 1), rows(&[(Insert, &["1", "2", "5"])]));
    assert_eq!(
        epoch(&[(1, Some(5), UpdateBefore), (1, Some(6), UpdateAfter)], 2),
        rows(&[(UpdateBefore, &["1", "2", "5"]), (UpdateAfter, &["1", "2", "6"])])
    );
    assert_eq!(epoch(&[(1, Some(7), Insert), (1, Some(7), Delete)], 3), rows(&[]));
    assert_eq!(epoch(&[(1, Some(6), Delete)], 4), rows(&[(UpdateBefore, &["1", "2", "6"]), (UpdateAfter, &["1", "1", "-"])]));
    assert_eq!(epoch(&[(1, None, Delete)], 5), rows(&[(Delete, &["1", "1", "-"])]));
}

#[test]
fn a_global_aggregate_has_one_row_from_the_first_barrier_on_also_over_restarts() {
    let schema = input(DataType::Int64);
    let calls = vec![call(Count, None, &schema), call(Max, Some(1), &schema)];
    let open = |backend, key_groups| Aggregate::new(spec(&schema, 0, calls.clone(), false), Box::new(backend), key_groups).unwrap();
    let mut out = Collected::default();
    let mut aggregate = open(MemoryBackend::new(), KeyGroupRange::ALL);
    aggregate.on_barrier(&barrier(1), &mut out).unwrap();
    assert_eq!(out.take(), rows(&[(Insert, &["0", "-"])]));
    aggregate.on_barrier(&barrier(2), &mut out).unwrap();
    aggregate.flush().unwrap();
    assert_eq!(out.take(), rows(&[]));

    let mut aggregate = open(copy_of(aggregate.backend_mut()), KeyGroupRange::ALL);
    aggregate.on_barrier(&barrier(3), &mut out).unwrap();
    assert_eq!(out.take(), rows(&[]));
    aggregate.process(0, numbers(&[(1, Some(5), Insert)]), &mut out).unwrap();
    aggregate.on_barrier(&barrier(4), &mut out).unwrap();
    assert_eq!(out.take(), rows(&[(UpdateBefore, &["0", "-"]), (UpdateAfter, &["1", "5"])]));

    // Restarted with rows to come first.
    aggregate.flush().unwrap();
    let mut aggregate = open(copy_of(aggregate.backend_mut()), KeyGroupRange::ALL);
    aggregate.process(0, numbers(&[(1, Some(5), Delete)]), &mut out).unwrap();
    aggregate.on_barrier(&barrier(5), &mut out).unwrap();
    assert_eq!(out.take(), rows(&[(UpdateBefore, &["1", "5"]), (UpdateAfter, &["0", "-"])]));

    let owner = key_group(key_hash(&[]));
    let others = KeyGroupRange { start: owner + 1, end: KeyGroupRange::ALL.end };
    let mut aggregate = open(MemoryBackend::new(), others);
    aggregate.on_barrier(&barrier(1), &mut out).unwrap();
    assert_eq!(out.take(), rows(&[]));
}

#[test]
fn a_sum_out_of_range_is_an_error_only_if_it_is_so_at_the_barrier() {
    let data_type = DataType::Decimal128(38, 0);
    let decimals = |value: i128| -> ArrayRef { Arc::new(Decimal128Array::from(vec![value]).with_data_type(data_type.clone())) };
    let mut aggregate = open(data_type.clone(), &[(Sum, Some(1))], MemoryBackend::new());
    let mut out = Collected::default();
    let half = 6 * 10i128.pow(37);
    aggregate.process(0, values(decimals(half), Insert), &mut out).unwrap();
    aggregate.process(0, values(decimals(half), Insert), &mut out).unwrap();
    // Nothing is emitted early for the group that is out of range now.
    aggregate.shrink(0, &mut out).unwrap();
    assert_eq!(out.take(), rows(&[]));
    aggregate.process(0, values(decimals(half), Delete), &mut out).unwrap();
    aggregate.on_barrier(&barrier(1), &mut out).unwrap();
    assert_eq!(out.take(), rows(&[(Insert, &["1", &half.to_string()])]));

    aggregate.process(0, values(decimals(half), Insert), &mut out).unwrap();
    let error = aggregate.on_barrier(&barrier(2), &mut out).unwrap_err();
    assert_eq!(*error.code(), SqlState::NUMERIC_VALUE_OUT_OF_RANGE);
    assert_eq!(error.message(), "numeric field overflow");
    assert_eq!(error.context(), Some("group (key=1)"));

    let mut aggregate = open(data_type.clone(), &[(Sum, Some(1))], MemoryBackend::new());
    aggregate.process(0, values(decimals(9 * 10i128.pow(37)), Insert), &mut out).unwrap();
    let error = aggregate.process(0, values(decimals(9 * 10i128.pow(37)), Insert), &mut out).unwrap_err();
    assert_eq!(*error.code(), SqlState::NUMERIC_VALUE_OUT_OF_RANGE);
}

#[test]
fn a_sum_of_doubles_forgets_what_is_taken_away() {
    let doubles = |values: &[f64]| -> ArrayRef { Arc::new(Float64Array::from(values.to_vec())) };
    let mut aggregate = open(DataType::Float64, &[(Sum, Some(1))], MemoryBackend::new());
    let mut out = Collected::default();
    let mut number = 0;
    let mut sum = |changes: &[(&[f64], RowKind)]| {
        for (added, kind) in changes {
            aggregate.process(0, values(doubles(added), *kind), &mut out).unwrap();
        }
        number += 1;
        let result = aggregate.on_barrier(&barrier(number), &mut out);
        result.map(|()| out.take().pop().and_then(|(_, row)| row[1].parse::<f64>().ok()))
    };
    // In plain doubles nothing of 0.1 and 0.2 is left beside 1e17.
    let first = sum(&[(&[1e17, 0.1, 0.2], Insert), (&[1e17], Delete)]).unwrap().unwrap();
    assert!((first - 0.3).abs() < 1e-10, "{first}");
    assert_eq!(sum(&[(&[f64::INFINITY], Insert)]).unwrap(), Some(f64::INFINITY));
    assert!(sum(&[(&[f64::NAN, f64::NEG_INFINITY], Insert)]).unwrap().unwrap().is_nan());
    assert_eq!(sum(&[(&[f64::INFINITY, f64::NAN], Delete)]).unwrap(), Some(f64::NEG_INFINITY));
    let last = sum(&[(&[f64::NEG_INFINITY, 0.2], Delete)]).unwrap().unwrap();
    assert!((last - 0.1).abs() < 1e-10, "{last}");
    // The group goes, and nothing of the rounding with it: the next sum is exact.
    assert!(sum(&[(&[0.1], Delete)]).is_ok());
    assert_eq!(sum(&[(&[0.25], Insert)]).unwrap(), Some(0.25));
    let error = sum(&[(&[f64::MAX, f64::MAX], Insert)]).unwrap_err();
    assert_eq!(*error.code(), SqlState::NUMERIC_VALUE_OUT_OF_RANGE);
}

#[test]
fn a_retraction_without_its_row_is_an_error_at_the_barrier() {
    let mut out = Collected::default();
    let mut aggregate = open(DataType::Int64, &[(Count, None)], MemoryBackend::new());
    aggregate.process(0, numbers(&[(1, Some(5), Delete)]), &mut out).unwrap();
    let error = aggregate.on_barrier(&barrier(1), &mut out).unwrap_err();
    assert_eq!(*error.code(), SqlState::DATA_EXCEPTION);
    assert_eq!(error.context(), Some("group (key=1)"));

    // The number of rows is right, but not the rows.
    for function in [Sum, Min] {
        let mut aggregate = open(DataType::Int64, &[(function, Some(1))], MemoryBackend::new());
        aggregate.process(0, numbers(&[(1, Some(5), Insert), (1, Some(6), Delete)]), &mut out).unwrap();
        let error = aggregate.on_barrier(&barrier(1), &mut out).unwrap_err();
        assert_eq!(*error.code(), SqlState::DATA_EXCEPTION);
    }
    let mut aggregate = open(DataType::Int64, &[(Max, Some(1))], MemoryBackend::new());
    aggregate.process(0, numbers(&[(1, Some(5), Insert), (1, Some(7), Insert), (1, Some(6), Delete)]), &mut out).unwrap();
    let error = aggregate.on_barrier(&barrier(1), &mut out).unwrap_err();
    assert_eq!(*error.code(), SqlState::DATA_EXCEPTION);
}

#[test]
fn more_keys_than_memory_move_to_the_backend_and_back() {
    let functions = [(Count, None), (Sum, Some(1)), (Max, Some(1))];
    let cap = 64 * 1024;
    let mut aggregate = open(DataType::Int64, &functions, MemoryBackend::new());
    let mut out = Collected::default();
    let mut folded: BTreeMap<Vec<String>, i64> = BTreeMap::new();
    let keys = 5_000i64;
    // Every key twice, in two different orders, within one epoch and over two.
    for (number, step) in [(1u64, 7i64), (2, 11)] {
        let order: Vec<(i64, Option<i64>, RowKind)> =
            (0..keys).map(|i| (i * step % keys, Some(i * step % keys + number as i64), Insert)).collect();
        for chunk in order.chunks(300) {
            aggregate.process(0, numbers(chunk), &mut out).unwrap();
            aggregate.shrink(cap, &mut out).unwrap();
            assert!(aggregate.memory_bytes() < 2 * cap, "{} bytes are held", aggregate.memory_bytes());
        }
        aggregate.on_barrier(&barrier(number), &mut out).unwrap();
        for (kind, row) in out.take() {
            let count = folded.entry(row).or_default();
            *count += kind.weight();
            assert!(*count >= 0);
        }
    }
    folded.retain(|_, count| *count != 0);
    let expected: BTreeMap<Vec<String>, i64> =
        (0..keys).map(|key| (vec![key.to_string(), "2".to_string(), (2 * key + 3).to_string(), (key + 2).to_string()], 1)).collect();
    assert_eq!(folded, expected);
}

#[test]
fn the_least_of_a_queue_is_found_as_its_head_is_taken_away() {
    let mut aggregate = open(DataType::Int64, &[(Min, Some(1)), (Max, Some(1))], MemoryBackend::new());
    let mut out = Collected::default();
    let head = 500;
    let all: Vec<_> = (0..head).map(|i| (1, Some(i), Insert)).collect();
    aggregate.process(0, numbers(&all), &mut out).unwrap();
    aggregate.on_barrier(&barrier(1), &mut out).unwrap();
    assert_eq!(out.take(), rows(&[(Insert, &["1", "0", "499"])]));
    for i in 0..head - 1 {
        // New rows come in between, some are in the backend, some only in memory.
        aggregate.process(0, numbers(&[(1, Some(i), Delete), (1, Some(i + head), Insert)]), &mut out).unwrap();
        aggregate.on_barrier(&barrier(i as u64 + 2), &mut out).unwrap();
        let new = out.take().pop().unwrap();
        assert_eq!(new, (UpdateAfter, vec!["1".to_string(), (i + 1).to_string(), (i + head).to_string()]));
        if i % 50 == 0 {
            aggregate.flush().unwrap();
        }
        if i % 120 == 0 {
            aggregate.shrink(0, &mut out).unwrap();
        }
    }
}

#[test]
fn rows_of_foreign_key_groups_and_retractions_of_append_only_input_are_refused() {
    let schema = input(DataType::Int64);
    let calls = vec![call(Max, Some(1), &schema)];
    let mut out = Collected::default();
    let mut aggregate =
        Aggregate::new(spec(&schema, 1, calls.clone(), true), Box::new(MemoryBackend::new()), KeyGroupRange { start: 0, end: 1 }).unwrap();
    let many: Vec<_> = (0..100).map(|i| (i, Some(i), Insert)).collect();
    let error = aggregate.process(0, numbers(&many), &mut out).unwrap_err();
    assert_eq!(*error.code(), SqlState::INTERNAL_ERROR);
    let mut aggregate = Aggregate::new(spec(&schema, 1, calls, true), Box::new(MemoryBackend::new()), KeyGroupRange::ALL).unwrap();
    let error = aggregate.process(0, numbers(&[(1, Some(5), Delete)]), &mut out).unwrap_err();
    assert_eq!(*error.code(), SqlState::INTERNAL_ERROR);
}

#[test]
fn the_state_schema_names_what_is_kept() {
    let schema = Arc::new(Schema::new(vec![
        Field::new("key", DataType::Int64, true),
        Field::new("price", DataType::Float64, true),
        Field::new("big", DataType::Boolean, true),
    ]));
    let mut calls =
        vec![call(Count, None, &schema), call(Sum, Some(1), &schema), call(Max, Some(1), &schema), call(Count, Some(1), &schema)];
    calls[2].filter = Some(2);
    calls[3].distinct = true;
    let names = |append_only| -> Vec<String> {
        let state = spec(&schema, 1, calls.clone(), append_only).state_schema().unwrap();
        state.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type())).collect()
    };
    let sum = [
        "sum_price Float64",
        "sum_price_low Float64",
        "sum_price_nans Int64",
        "sum_price_infinities Int64",
        "sum_price_negative_infinities Int64",
    ];
    let with = |max: &str| -> Vec<String> {
        let mut names = vec!["rows Int64", "count_price Int64"];
        names.extend(sum);
        names.extend([max, "count_price_distinct Int64"]);
        names.into_iter().map(str::to_string).collect()
    };
    assert_eq!(names(true), with("max_price_where_big Float64"));
    assert_eq!(names(false), with("max_price_of_all_where_big Float64"));
}
