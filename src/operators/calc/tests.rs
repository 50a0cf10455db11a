use arrow::array::{Int32Array, Int64Array, StringArray};
use arrow::datatypes::Field;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, cast, col, lit, when};
use weir_catalog::{RowKind, SqlState};

use super::*;

#[derive(Default)]
struct Collected(Vec<Batch>);

impl Output for Collected {
    fn emit(&mut self, batch: Batch) -> Result<()> {
        self.0.push(batch);
        Ok(())
    }
}

fn input() -> Schema {
    Schema::new(vec![
        Field::new("id", DataType::Int64, true),
        Field::new("v", DataType::Int32, true),
        Field::new("name", DataType::Utf8, true),
    ])
}

fn batch(rows: &[(i64, Option<i32>, &str, RowKind)]) -> Batch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(rows.iter().map(|row| Some(row.0)).collect::<Int64Array>()),
        Arc::new(rows.iter().map(|row| row.1).collect::<Int32Array>()),
        Arc::new(rows.iter().map(|row| Some(row.2)).collect::<StringArray>()),
    ];
    let kinds = rows.iter().map(|row| row.3 as u8).collect();
    Batch::with_kinds(RecordBatch::try_new(Arc::new(input()), columns).unwrap(), kinds)
}

fn calc(filter: Option<Expr>, projection: Vec<Expr>, types: &[DataType]) -> Calc {
    let schema = DFSchema::try_from(input()).unwrap();
    let fields: Vec<Field> = types.iter().enumerate().map(|(i, ty)| Field::new(format!("c{i}"), ty.clone(), true)).collect();
    Calc::new(&schema, filter.as_ref(), &projection, Arc::new(Schema::new(fields))).unwrap()
}

fn run(calc: &mut Calc, batch: Batch) -> Result<Vec<Batch>> {
    let mut out = Collected::default();
    calc.process(0, batch, &mut out)?;
    Ok(out.0)
}

const I: RowKind = RowKind::Insert;

#[test]
fn rows_pass_with_their_kinds_and_only_they_are_projected() {
    // Where v is 0 the division would fail.
    let mut calc = calc(Some(col("v").not_eq(lit(0))), vec![lit(12) / col("v"), col("name")], &[DataType::Int32, DataType::Utf8]);
    let rows = [
        (1, Some(3), "a", I),
        (2, Some(0), "b", I),
        (3, None, "c", I),
        (4, Some(4), "d", RowKind::UpdateBefore),
        (5, Some(6), "e", RowKind::UpdateAfter),
    ];
    let out = run(&mut calc, batch(&rows)).unwrap();
    assert_eq!(out.len(), 1);
    let expected: Vec<ArrayRef> = vec![Arc::new(Int32Array::from(vec![4, 3, 2])), Arc::new(StringArray::from(vec!["a", "d", "e"]))];
    assert_eq!(out[0].rows.columns(), expected);
    assert_eq!((0..3).map(|row| out[0].kind(row)).collect::<Vec<_>>(), [I, RowKind::UpdateBefore, RowKind::UpdateAfter]);
    // Nothing passes: nothing is sent.
    assert!(run(&mut calc, batch(&rows[1..3])).unwrap().is_empty());
    // All pass.
    let out = run(&mut calc, batch(&rows[3..])).unwrap();
    assert_eq!(out[0].num_rows(), 2);
    assert_eq!(out[0].kind(0), RowKind::UpdateBefore);
}

#[test]
fn the_first_row_that_fails_is_named() {
    let mut calc = calc(None, vec![col("id"), lit(1) / col("v")], &[DataType::Int64, DataType::Int32]);
    let mut rows = vec![(7, Some(1), "a", I); 100];
    rows[63] = (8, Some(0), "b", I);
    rows[80] = (9, Some(0), "c", I);
    let error = run(&mut calc, batch(&rows)).unwrap_err();
    assert_eq!(*error.code(), SqlState::DIVISION_BY_ZERO);
    assert_eq!(error.message(), "division by zero");
    let context = error.context().unwrap();
    assert_eq!(context, "column \"c1\": 1 / v");
    assert!(error.detail().is_some_and(|detail| detail == "The row is (v=0, id=8, name=b)."), "{error}");

    let mut calc = self::calc(Some((lit(10) / col("v")).gt(lit(3))), vec![col("id")], &[DataType::Int64]);
    let error = run(&mut calc, batch(&rows)).unwrap_err();
    assert_eq!(error.context(), Some("filter: 10 / v > 3"));
    assert_eq!(error.detail(), Some("The row is (v=0, id=8, name=b)."));
}

/// The identity on INT, which counts the rows that it is evaluated on.
#[derive(Debug)]
struct Counted {
    signature: Signature,
    rows: Arc<AtomicUsize>,
}

impl PartialEq for Counted {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.rows, &other.rows)
    }
}

impl Eq for Counted {}

impl std::hash::Hash for Counted {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.signature.hash(state);
    }
}

impl ScalarUDFImpl for Counted {
    fn name(&self) -> &str {
        "counted"
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn return_type(&self, _: &[DataType]) -> Result<DataType, DataFusionError> {
        Ok(DataType::Int32)
    }
    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        self.rows.fetch_add(args.number_rows, Ordering::Relaxed);
        Ok(args.args[0].clone())
    }
}

/// `counted(v)`, and how many rows it was evaluated on.
fn counted() -> (Expr, Arc<AtomicUsize>) {
    let rows = Arc::new(AtomicUsize::new(0));
    let function = Counted { signature: Signature::any(1, Volatility::Immutable), rows: rows.clone() };
    (ScalarUDF::new_from_impl(function).call(vec![col("v")]), rows)
}

fn ten_rows() -> Batch {
    batch(&(0..10).map(|v| (i64::from(v), Some(v), "a", if v % 2 == 0 { I } else { RowKind::Delete })).collect::<Vec<_>>())
}

#[test]
fn what_is_needed_several_times_is_evaluated_once() {
    let (v, rows) = counted();
    let filter = v.clone().gt(lit(3)).and(v.clone().lt(lit(8)));
    let branch = when(v.clone().eq(lit(5)), lit(-5)).otherwise(v.clone() + lit(1)).unwrap();
    let mut calc = calc(Some(filter), vec![v.clone(), col("id"), branch], &[DataType::Int32, DataType::Int64, DataType::Int32]);
    let out = run(&mut calc, ten_rows()).unwrap();
    assert_eq!(rows.load(Ordering::Relaxed), 10);
    let expected: Vec<ArrayRef> = vec![
        Arc::new(Int32Array::from(vec![4, 5, 6, 7])),
        Arc::new(Int64Array::from(vec![4, 5, 6, 7])),
        Arc::new(Int32Array::from(vec![5, -5, 7, 8])),
    ];
    assert_eq!(out[0].rows.columns(), expected);
    assert_eq!((0..4).map(|row| out[0].kind(row)).collect::<Vec<_>>(), [I, RowKind::Delete, I, RowKind::Delete]);

    // What only the projection needs: of the rows that pass.
    let (v, rows) = counted();
    let mut calc = self::calc(Some(col("id").gt(lit(6i64))), vec![v.clone() + lit(1), v * lit(2)], &[DataType::Int32, DataType::Int32]);
    let out = run(&mut calc, ten_rows()).unwrap();
    assert_eq!(rows.load(Ordering::Relaxed), 3);
    assert_eq!(out[0].rows.column(1).as_ref(), &Int32Array::from(vec![14, 16, 18]));
}

#[test]
fn what_fails_is_named_as_it_was_written_also_where_it_is_shared() {
    let division = || lit(12) / col("v");
    let mut calc = calc(
        Some(col("id").gt(lit(0i64))),
        vec![col("id"), division() + lit(1), division() + lit(2)],
        &[DataType::Int64, DataType::Int32, DataType::Int32],
    );
    assert!(calc.shared.is_some());
    let rows = [(0, Some(0), "a", I), (1, Some(3), "b", I), (2, Some(0), "c", I)];
    assert_eq!(run(&mut calc, batch(&rows[..2])).unwrap()[0].rows.column(2).as_ref(), &Int32Array::from(vec![6]));
    let error = run(&mut calc, batch(&rows)).unwrap_err();
    assert_eq!(*error.code(), SqlState::DIVISION_BY_ZERO);
    assert_eq!(error.context(), Some("column \"c1\": 12 / v + 1"));
    assert_eq!(error.detail(), Some("The row is (v=0, id=2, name=c)."));
}

#[test]
fn integers_do_not_wrap() {
    for expr in [
        col("v") + lit(i32::MAX),
        col("v") - lit(i32::MIN),
        col("v") * lit(i32::MAX),
        Expr::Negative(Box::new(col("v") - lit(i32::MAX) - lit(3))),
    ] {
        let mut calc = calc(None, vec![expr.clone()], &[DataType::Int32]);
        let error = run(&mut calc, batch(&[(1, Some(2), "a", I)])).expect_err(&expr.to_string());
        assert_eq!(*error.code(), SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "{expr}");
    }
    let mut calc = calc(None, vec![Expr::Negative(Box::new(col("v") * lit(5)))], &[DataType::Int32]);
    let out = run(&mut calc, batch(&[(1, Some(2), "a", I)])).unwrap();
    assert_eq!(out[0].rows.column(0).as_ref(), &Int32Array::from(vec![-10]));
}

#[test]
fn results_have_the_types_of_the_schema() {
    let expr = cast(col("name"), DataType::Utf8View);
    let mut calc = calc(None, vec![expr, col("v")], &[DataType::Utf8, DataType::Int64]);
    let out = run(&mut calc, batch(&[(1, Some(2), "a text of more than twelve bytes", I)])).unwrap();
    assert_eq!(out[0].rows.column(0).as_ref(), &StringArray::from(vec!["a text of more than twelve bytes"]));
    assert_eq!(out[0].rows.column(1).as_ref(), &Int64Array::from(vec![2]));

    let mut calc = self::calc(None, vec![col("name")], &[DataType::Int64]);
    let error = run(&mut calc, batch(&[(1, Some(2), "12", I), (1, Some(2), "x", I)])).unwrap_err();
    assert_eq!(*error.code(), SqlState::INVALID_TEXT_REPRESENTATION);
    assert!(error.detail().is_some_and(|detail| detail.ends_with("The row is (name=x, id=1, v=2).")), "{error}");

    let mut calc = self::calc(None, vec![col("id")], &[DataType::Int32]);
    let error = run(&mut calc, batch(&[(3_000_000_000, None, "", I)])).unwrap_err();
    assert_eq!(*error.code(), SqlState::NUMERIC_VALUE_OUT_OF_RANGE);
}

#[test]
fn a_projection_without_columns_keeps_the_number_of_rows() {
    let mut calc = calc(Some(col("id").gt(lit(1i64))), vec![], &[]);
    let out = run(&mut calc, batch(&[(1, None, "", I), (2, None, "", I), (3, None, "", I)])).unwrap();
    assert_eq!(out[0].num_rows(), 2);
    let mut calc = self::calc(None, vec![lit("x")], &[DataType::Utf8]);
    let out = run(&mut calc, batch(&[(1, None, "", I), (2, None, "", RowKind::Delete)])).unwrap();
    assert_eq!(out[0].rows.column(0).as_ref(), &StringArray::from(vec!["x", "x"]));
    assert_eq!(out[0].kind(1), RowKind::Delete);
}
