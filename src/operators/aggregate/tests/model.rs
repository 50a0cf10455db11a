//! Random changes against a model that keeps all rows and computes every answer anew.

use super::*;

/// A row of the input; the columns of [`schema`] in order.
#[derive(Clone, Debug)]
struct Row {
    key: Option<i64>,
    name: Option<String>,
    number: Option<i64>,
    small: Option<i32>,
    double: Option<f64>,
    text: Option<String>,
    amount: Option<i128>,
    time: Option<i64>,
    flag: Option<bool>,
}

const NUMBER: usize = 2;
const SMALL: usize = 3;
const DOUBLE: usize = 4;
const TEXT: usize = 5;
const AMOUNT: usize = 6;
const TIME: usize = 7;
const FLAG: usize = 8;

fn schema() -> Arc<Schema> {
    Arc::new(Schema::new(vec![
        Field::new("key", DataType::Int64, true),
        Field::new("name", DataType::Utf8, true),
        Field::new("number", DataType::Int64, true),
        Field::new("small", DataType::Int32, true),
        Field::new("double", DataType::Float64, true),
        Field::new("text", DataType::Utf8, true),
        Field::new("amount", DataType::Decimal128(10, 2), true),
        Field::new("time", DataType::Timestamp(TimeUnit::Microsecond, None), true),
        Field::new("flag", DataType::Boolean, true),
    ]))
}

fn rows() -> impl Strategy<Value = Row> {
    // Few values of each, so that groups and values repeat. The doubles' sums are exact in any order.
    let double = prop_oneof![
        8 => (-20i32..20).prop_map(|quarter| f64::from(quarter) / 4.0),
        1 => Just(f64::NAN),
        1 => Just(-f64::NAN),
        1 => Just(f64::INFINITY),
        1 => Just(f64::NEG_INFINITY),
        1 => Just(-0.0),
    ];
    let text = prop_oneof![Just(String::new()), "[ab]{0,3}", Just("a\0b".to_string()), Just("longer than sixteen bytes".to_string())];
    (
        prop::option::weighted(0.9, -3i64..4),
        prop::option::weighted(0.8, "[xy]{0,1}"),
        prop::option::weighted(0.8, prop_oneof![4 => -10i64..10, 1 => Just(i64::MAX), 1 => Just(i64::MIN)]),
        prop::option::weighted(0.8, prop_oneof![4 => -10i32..10, 1 => Just(i32::MAX), 1 => Just(i32::MIN)]),
        prop::option::weighted(0.8, double),
        prop::option::weighted(0.8, text),
        prop::option::weighted(0.8, -1000i128..1000),
        prop::option::weighted(0.8, -5i64..5),
        prop::option::weighted(0.8, any::<bool>()),
    )
        .prop_map(|(key, name, number, small, double, text, amount, time, flag)| Row {
            key,
            name,
            number,
            small,
            double,
            text,
            amount,
            time,
            flag,
        })
}

fn batch(rows: &[(Row, bool)]) -> Batch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(rows.iter().map(|(row, _)| row.key).collect::<Int64Array>()),
        Arc::new(rows.iter().map(|(row, _)| row.name.clone()).collect::<StringArray>()),
        Arc::new(rows.iter().map(|(row, _)| row.number).collect::<Int64Array>()),
        Arc::new(rows.iter().map(|(row, _)| row.small).collect::<Int32Array>()),
        Arc::new(rows.iter().map(|(row, _)| row.double).collect::<Float64Array>()),
        Arc::new(rows.iter().map(|(row, _)| row.text.clone()).collect::<StringArray>()),
        Arc::new(rows.iter().map(|(row, _)| row.amount).collect::<Decimal128Array>().with_data_type(DataType::Decimal128(10, 2))),
        Arc::new(rows.iter().map(|(row, _)| row.time).collect::<TimestampMicrosecondArray>()),
        Arc::new(rows.iter().map(|(row, _)| row.flag).collect::<BooleanArray>()),
    ];
    let kinds = rows.iter().map(|(_, delete)| if *delete { RowKind::Delete as u8 } else { RowKind::Insert as u8 }).collect();
    Batch::with_kinds(RecordBatch::try_new(schema(), columns).unwrap(), kinds)
}

/// What a case runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Query {
    /// Every call that there is, over a key of two columns, one of them text.
    AllCalls,
    /// The same, over no key.
    Global,
    /// Calls without maps over a BIGINT key: the fast path.
    Int64Key,
    /// MIN and MAX over rows that only come.
    AppendOnly,
    /// SELECT DISTINCT.
    Distinct,
}

fn calls(query: Query) -> Vec<AggregateCall> {
    use AggregateFunction::{Count, Max, Min, Sum};
    let schema = schema();
    let plain = |function, argument| call(function, argument, &schema);
    let filtered = |call: AggregateCall| AggregateCall { filter: Some(FLAG), ..call };
    let distinct = |call: AggregateCall| AggregateCall { distinct: true, ..call };
    let extremes = || {
        [NUMBER, SMALL, DOUBLE, TEXT, AMOUNT, TIME, FLAG]
            .into_iter()
            .flat_map(|column| [plain(Min, Some(column)), plain(Max, Some(column)), filtered(plain(Max, Some(column)))])
    };
    let counts_and_sums = vec![
        plain(Count, None),
        plain(Count, Some(NUMBER)),
        filtered(plain(Count, None)),
        filtered(plain(Count, Some(TEXT))),
        plain(Sum, Some(NUMBER)),
        plain(Sum, Some(SMALL)),
        plain(Sum, Some(AMOUNT)),
        plain(Sum, Some(DOUBLE)),
        filtered(plain(Sum, Some(DOUBLE))),
        filtered(plain(Sum, Some(NUMBER))),
    ];
    match query {
        Query::Distinct => vec![],
        Query::Int64Key => counts_and_sums,
        Query::AppendOnly => counts_and_sums.into_iter().chain(extremes()).collect(),
        Query::AllCalls | Query::Global => counts_and_sums
            .into_iter()
            .chain(extremes())
            .chain([
                distinct(plain(Count, Some(NUMBER))),
                distinct(plain(Sum, Some(NUMBER))),
                distinct(plain(Sum, Some(AMOUNT))),
                distinct(plain(Count, Some(DOUBLE))),
                distinct(plain(Sum, Some(DOUBLE))),
                distinct(filtered(plain(Count, Some(TEXT)))),
                distinct(filtered(plain(Sum, Some(SMALL)))),
            ])
            .collect(),
    }
}

fn group_columns(query: Query) -> usize {
    match query {
        Query::Global => 0,
        Query::Int64Key | Query::AppendOnly => 1,
        Query::AllCalls | Query::Distinct => 2,
    }
}

/// The doubles that are equal in SQL become equal bits, in an order that has NaN last.
fn double_key(value: f64) -> (bool, i64) {
    (value.is_nan(), if value.is_nan() { 0 } else { ordered(value + 0.0) })
}

fn ordered(value: f64) -> i64 {
    let bits = value.to_bits() as i64;
    if bits < 0 { i64::MIN.wrapping_sub(bits) } else { bits }
}

/// The answer for one call over the rows of a group, as text.
fn answer(call: &AggregateCall, rows: &[Row]) -> String {
    let rows: Vec<&Row> = rows.iter().filter(|row| call.filter.is_none() || row.flag == Some(true)).collect();
    let Some(argument) = call.argument else {
        return rows.len().to_string();
    };
    // Values as arrays of one type, to be shown as the operator's results are.
    let show = |array: ArrayRef| value(&array, 0);
    macro_rules! values {
        ($field:ident) => {{
            let mut values: Vec<_> = rows.iter().filter_map(|row| row.$field.clone()).collect();
            values.sort();
            if call.distinct {
                values.dedup();
            }
            values
        }};
    }
    macro_rules! result {
        ($field:ident, $array:ty, $sum:expr) => {{
            let values = values!($field);
            match call.function {
                AggregateFunction::Count => values.len().to_string(),
                AggregateFunction::Sum =>
                {
                    #[allow(clippy::redundant_closure_call)]
                    if values.is_empty() {
                        "-".to_string()
                    } else {
                        $sum(values)
                    }
                }
                AggregateFunction::Min => {
                    let array = <$array>::from(vec![values.first().cloned()]);
                    show(Arc::new(array))
                }
                AggregateFunction::Max => {
                    let array = <$array>::from(vec![values.last().cloned()]);
                    show(Arc::new(array))
                }
            }
        }};
    }
    match argument {
        NUMBER => result!(number, Int64Array, |values: Vec<i64>| values.iter().map(|value| i128::from(*value)).sum::<i128>().to_string()),
        SMALL => result!(small, Int32Array, |values: Vec<i32>| values.iter().map(|value| i64::from(*value)).sum::<i64>().to_string()),
        TEXT => result!(text, StringArray, |_| unreachable!("no sum of text")),
        TIME => result!(time, TimestampMicrosecondArray, |_| unreachable!("no sum of times")),
        FLAG => result!(flag, BooleanArray, |_| unreachable!("no sum of booleans")),
        AMOUNT => {
            let values = values!(amount);
            let one = match call.function {
                AggregateFunction::Count => return values.len().to_string(),
                AggregateFunction::Sum => (!values.is_empty()).then(|| values.iter().sum()),
                AggregateFunction::Min => values.first().copied(),
                AggregateFunction::Max => values.last().copied(),
            };
            show(Arc::new(Decimal128Array::from(vec![one]).with_data_type(DataType::Decimal128(38, 2))))
        }
        DOUBLE => {
            let mut values: Vec<f64> = rows.iter().filter_map(|row| row.double).collect();
            values.sort_by_key(|value| double_key(*value));
            if call.distinct {
                values.dedup_by_key(|value| double_key(*value));
            }
            let one = match call.function {
                AggregateFunction::Count => return values.len().to_string(),
                AggregateFunction::Sum => (!values.is_empty()).then(|| values.iter().sum::<f64>() + 0.0),
                AggregateFunction::Min => values.first().map(|value| value + 0.0),
                AggregateFunction::Max => values.last().map(|value| value + 0.0),
            };
            show(Arc::new(Float64Array::from(vec![one])))
        }
        other => unreachable!("no call over column {other}"),
    }
}

/// The whole answer: every row as text.
fn answers(query: Query, present: &[Row]) -> Vec<Vec<String>> {
    let mut groups: BTreeMap<Vec<String>, Vec<Row>> = BTreeMap::new();
    if query == Query::Global {
        groups.insert(vec![], vec![]);
    }
    for row in present {
        let key = [row.key.map_or("-".to_string(), |key| key.to_string()), row.name.clone().unwrap_or("-".to_string())];
        groups.entry(key[..group_columns(query)].to_vec()).or_default().push(row.clone());
    }
    let calls = calls(query);
    groups.into_iter().map(|(key, rows)| key.into_iter().chain(calls.iter().map(|call| answer(call, &rows))).collect()).collect()
}

/// An epoch: rows and, for each, a number that decides whether it comes or one of the present rows goes; and what happens around it.
#[derive(Clone, Debug)]
struct Epoch {
    changes: Vec<(Row, u16)>,
    batch_rows: usize,
    /// Memory to shrink to after each batch, bytes.
    shrink_to: Option<usize>,
    flush: bool,
    restart: bool,
    /// Run once and forgotten, as if the process had died before the barrier.
    crash: bool,
    seed: u64,
}

fn epochs() -> impl Strategy<Value = Vec<Epoch>> {
    let epoch = (
        prop::collection::vec((rows(), any::<u16>()), 0..30),
        1usize..12,
        prop::option::weighted(0.6, prop_oneof![Just(0usize), 0usize..6000]),
        any::<bool>(),
        prop::bool::weighted(0.4),
        prop::bool::weighted(0.2),
        any::<u64>(),
    )
        .prop_map(|(changes, batch_rows, shrink_to, flush, restart, crash, seed)| Epoch {
            changes,
            batch_rows,
            shrink_to,
            flush,
            restart,
            crash,
            seed,
        });
    prop::collection::vec(epoch, 1..8)
}

/// What was emitted so far, folded. Taking away a row that is not there fails.
#[derive(Clone, Default)]
struct Folded(BTreeMap<Vec<String>, usize>);

impl Folded {
    fn apply(&mut self, changes: Vec<(RowKind, Vec<String>)>) -> Result<(), TestCaseError> {
        for (kind, row) in changes {
            if kind.weight() > 0 {
                *self.0.entry(row).or_default() += 1;
            } else {
                let Some(count) = self.0.get_mut(&row) else {
                    return Err(TestCaseError::fail(format!("{} of a row that is not there: {row:?}", kind.short())));
                };
                *count -= 1;
                if *count == 0 {
                    self.0.remove(&row);
                }
            }
        }
        Ok(())
    }

    fn rows(&self) -> Vec<Vec<String>> {
        self.0.iter().flat_map(|(row, count)| std::iter::repeat_n(row.clone(), *count)).collect()
    }
}

fn open(query: Query, backend: MemoryBackend) -> Aggregate {
    let spec = spec(&schema(), group_columns(query), calls(query), query == Query::AppendOnly);
    Aggregate::new(spec, Box::new(backend), KeyGroupRange::ALL).unwrap()
}

fn run(query: Query, epochs: Vec<Epoch>) -> Result<(), TestCaseError> {
    let mut aggregate = open(query, MemoryBackend::new());
    let mut present: Vec<Row> = Vec::new();
    let mut folded = Folded::default();
    let mut out = Collected::default();
    for (number, epoch) in epochs.into_iter().enumerate() {
        let mut random = Random::seeded(epoch.seed);
        let mut changes = Vec::new();
        let mut after = present.clone();
        for (row, action) in &epoch.changes {
            if query != Query::AppendOnly && *action % 5 < 2 && !after.is_empty() {
                changes.push((after.swap_remove(*action as usize % after.len()), true));
            } else {
                after.push(row.clone());
                changes.push((row.clone(), false));
            }
        }
        for i in (1..changes.len()).rev() {
            changes.swap(i, random.below(i as u64 + 1) as usize);
        }
        // A crash needs something to come back to: everything, flushed at the last barrier.
        let before = epoch.crash.then(|| {
            aggregate.flush().unwrap();
            (copy_of(aggregate.backend_mut()), folded.clone())
        });
        let mut feed = |aggregate: &mut Aggregate, folded: &mut Folded| {
            for rows in changes.chunks(epoch.batch_rows) {
                aggregate.process(0, batch(rows), &mut out).unwrap();
                if let Some(target) = epoch.shrink_to {
                    aggregate.shrink(target, &mut out).unwrap();
                }
                folded.apply(out.take())?;
            }
            Ok::<(), TestCaseError>(())
        };
        feed(&mut aggregate, &mut folded)?;
        if let Some((backend, folded_before)) = before {
            aggregate = open(query, backend);
            folded = folded_before;
            feed(&mut aggregate, &mut folded)?;
        }
        present = after;
        aggregate.on_barrier(&barrier(number as u64 + 1), &mut out).unwrap();
        folded.apply(out.take())?;
        let mut expected = answers(query, &present);
        expected.sort();
        prop_assert_eq!(folded.rows(), expected);
        if epoch.flush || epoch.restart {
            aggregate.flush().unwrap();
        }
        if epoch.restart {
            let backend = copy_of(aggregate.backend_mut());
            aggregate = open(query, backend);
        }
    }
    // Nothing is left of what is gone.
    let gone: Vec<(Row, bool)> = present.iter().map(|row| (row.clone(), true)).collect();
    if query != Query::AppendOnly {
        aggregate.process(0, batch(&gone), &mut out).unwrap();
        aggregate.on_barrier(&barrier(100), &mut out).unwrap();
        aggregate.flush().unwrap();
        let left = if query == Query::Global { 1 } else { 0 };
        prop_assert_eq!(entries(aggregate.backend_mut()).len(), left);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_call_over_a_two_column_key(epochs in epochs()) {
        run(Query::AllCalls, epochs)?;
    }

    #[test]
    fn every_call_over_no_key(epochs in epochs()) {
        run(Query::Global, epochs)?;
    }

    #[test]
    fn counts_and_sums_over_a_bigint_key(epochs in epochs()) {
        run(Query::Int64Key, epochs)?;
    }

    #[test]
    fn extremes_of_rows_that_only_come(epochs in epochs()) {
        run(Query::AppendOnly, epochs)?;
    }

    #[test]
    fn select_distinct(epochs in epochs()) {
        run(Query::Distinct, epochs)?;
    }
}
