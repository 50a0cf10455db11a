use arrow::datatypes::{DataType, Field, Schema};
use datafusion::functions::core::expr_fn::coalesce;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, col, lit, not, when};

use super::*;

fn input() -> DFSchema {
    let fields = ["a", "b", "c"].map(|name| Field::new(name, DataType::Int64, true));
    DFSchema::try_from(Schema::new(fields.to_vec())).unwrap()
}

/// What is evaluated once before the filter and before the projection, as text, and then the filter and the projection.
fn shared(filter: Option<Expr>, projection: &[Expr]) -> Option<[Vec<String>; 3]> {
    let shared = share(&input(), filter.as_ref(), projection).unwrap()?;
    let texts = |commons: &[Common]| commons.iter().map(|common| format!("{} = {}", common.column.name, common.expr)).collect::<Vec<_>>();
    let rest = shared.filter.iter().chain(&shared.projection).map(|expr| expr.to_string().replace("common.", ""));
    Some(
        [texts(&shared.before_filter), texts(&shared.before_projection), rest.collect()]
            .map(|texts| texts.iter().map(|text| text.replace("common.", "").replace("common ", "#")).collect()),
    )
}

fn product() -> Expr {
    col("a") * col("b")
}

#[test]
fn what_the_filter_and_the_projection_need_is_evaluated_once() {
    let filter = product().gt(lit(1i64)).and(product().lt(lit(9i64)));
    let [before_filter, before_projection, rest] = shared(Some(filter), &[product().alias("p"), col("c")]).unwrap();
    assert_eq!(before_filter, ["#0 = a * b"]);
    assert!(before_projection.is_empty());
    assert_eq!(rest, ["#0 > Int64(1) AND #0 < Int64(9)", "#0 AS p", "c"]);
    // Once in each is enough, also where the projection needs it in a branch only.
    let branch = when(col("c").is_null(), product()).otherwise(lit(0i64)).unwrap();
    let [before_filter, _, rest] = shared(Some(product().gt(lit(1i64))), &[branch]).unwrap();
    assert_eq!(before_filter, ["#0 = a * b"]);
    assert_eq!(rest[1], "CASE WHEN c IS NULL THEN #0 ELSE Int64(0) END");
}

#[test]
fn what_only_the_projection_needs_is_not_evaluated_on_rows_that_the_filter_drops() {
    let [before_filter, before_projection, rest] =
        shared(Some(col("b").not_eq(lit(0i64))), &[col("a") / col("b"), lit(1i64) + col("a") / col("b")]).unwrap();
    assert!(before_filter.is_empty());
    assert_eq!(before_projection, ["#0 = a / b"]);
    assert_eq!(rest, ["b != Int64(0)", "#0", "Int64(1) + #0"]);
}

#[test]
fn what_may_not_be_evaluated_stays() {
    let division = || col("a") / col("b");
    let guarded = || when(col("b").not_eq(lit(0i64)), division()).when(division().gt(lit(1i64)), division()).otherwise(division()).unwrap();
    // Branches of CASE, but for the first condition.
    assert!(shared(None, &[guarded()]).is_none());
    let [_, before, rest] = shared(None, &[guarded(), when(col("b").not_eq(lit(0i64)), lit(1i64)).end().unwrap()]).unwrap();
    assert_eq!(before, ["#0 = b != Int64(0)"]);
    assert_eq!(rest[1], "CASE WHEN #0 THEN Int64(1) END");
    // The second side of AND and OR.
    let and = col("b").not_eq(lit(0i64)).and(division().gt(lit(1i64)));
    let or = col("b").eq(lit(0i64)).or(division().gt(lit(1i64)));
    assert!(shared(Some(and.clone()), &[col("a")]).is_none());
    assert!(shared(None, &[and, or]).is_none());
    // Later arguments of COALESCE.
    assert!(shared(None, &[coalesce(vec![col("c"), division()]), coalesce(vec![col("b"), division()])]).is_none());
    let [_, before, _] = shared(None, &[coalesce(vec![division(), lit(0i64)]), coalesce(vec![division(), col("c")])]).unwrap();
    assert_eq!(before, ["#0 = a / b"]);
    // In a branch of the filter: the projection's rows are those on which it was needed, or not.
    let filter = col("b").eq(lit(0i64)).or(division().gt(lit(1i64)));
    assert!(shared(Some(filter), &[when(col("b").not_eq(lit(0i64)), division()).end().unwrap()]).is_none());
}

#[test]
fn what_is_evaluated_surely_serves_branches_too() {
    let later = when(col("c").is_null(), product()).otherwise(-product()).unwrap();
    let [_, before, rest] = shared(None, &[later, product()]).unwrap();
    assert_eq!(before, ["#0 = a * b"]);
    assert_eq!(rest, ["CASE WHEN c IS NULL THEN #0 ELSE (- #0) END", "#0"]);
}

#[test]
fn the_largest_is_taken_and_its_parts_only_where_they_are_needed_too() {
    let large = || product() + lit(1i64);
    let [_, before, rest] = shared(None, &[large(), large() * lit(2i64)]).unwrap();
    assert_eq!(before, ["#0 = a * b + Int64(1)"]);
    assert_eq!(rest, ["#0", "#0 * Int64(2)"]);
    let [_, before, rest] = shared(None, &[large(), large() * lit(2i64), not(product().is_null())]).unwrap();
    assert_eq!(before, ["#0 = a * b", "#1 = #0 + Int64(1)"]);
    assert_eq!(rest, ["#1", "#1 * Int64(2)", "NOT #0 IS NULL"]);
}

#[test]
fn nothing_is_made_of_columns_literals_and_single_uses() {
    assert!(
        shared(Some(col("a").gt(lit(1i64))), &[col("a"), col("a"), lit(1i64), lit(1i64), lit(2i64) + lit(3i64), lit(2i64) + lit(3i64)])
            .is_none()
    );
}

#[test]
fn a_column_may_be_named_like_one_that_is_made() {
    let schema = Schema::new(vec![Field::new("common 0", DataType::Int64, true), Field::new("common_1", DataType::Int64, true)]);
    let schema = DFSchema::try_from(schema).unwrap();
    let sum = || Expr::Column(Column::new_unqualified("common 0")) + Expr::Column(Column::new_unqualified("common_1"));
    let shared = share(&schema, None, &[sum(), -sum()]).unwrap().unwrap();
    assert_eq!(shared.before_projection[0].column.name, "common__ 0");
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Drawn(Signature);

impl ScalarUDFImpl for Drawn {
    fn name(&self) -> &str {
        "drawn"
    }
    fn signature(&self) -> &Signature {
        &self.0
    }
    fn return_type(&self, _: &[DataType]) -> Result<DataType, DataFusionError> {
        Ok(DataType::Int64)
    }
    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        Ok(args.args[0].clone())
    }
}

#[test]
fn volatile_functions_are_called_wherever_they_stand() {
    let drawn = |volatility| ScalarUDF::new_from_impl(Drawn(Signature::any(1, volatility))).call(vec![col("a")]);
    let twice = |volatility| shared(None, &[drawn(volatility) + lit(1i64), drawn(volatility) + lit(1i64)]);
    assert!(twice(Volatility::Volatile).is_none());
    assert_eq!(twice(Volatility::Immutable).unwrap()[1], ["#0 = drawn(a) + Int64(1)"]);
}
