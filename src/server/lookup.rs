//! Which keys of a table the conditions of a query leave: those that are compared with constants are looked up, so that a query for a few rows does not
//! read all.
//!
//! The conditions stay in the plan: what is found here only has to contain every row that they let through.

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};
use weir_catalog::{Error, Result};

use crate::operators::error::from_datafusion;

/// More keys than this are not looked up one by one.
const MAX_KEYS: usize = 4096;

/// The rows that can pass the conditions.
#[derive(Clone, Debug)]
pub enum KeyFilter {
    /// Any.
    All,
    /// Those with one of these keys: an array for each key column, in the key's order, all of the same length. A key may come more than once.
    Keys(Vec<ArrayRef>),
    /// Those whose first key columns have these values: an array of length 1 for each.
    Prefix(Vec<ArrayRef>),
}

impl KeyFilter {
    /// What `filters` leave of a table with the columns `schema` and the key columns `key`.
    pub fn new(filters: &[Expr], key: &[usize], schema: &SchemaRef) -> Result<KeyFilter> {
        let mut values: Vec<Vec<ScalarValue>> = Vec::new();
        for column in key {
            let found = filters.iter().filter_map(|filter| constants(filter, schema)).find(|(constrained, _)| constrained == column);
            match found {
                Some((_, constants)) => values.push(constants),
                None => break,
            }
        }
        let keys = values.iter().try_fold(1usize, |keys, values| keys.checked_mul(values.len())).unwrap_or(usize::MAX);
        if values.len() == key.len() && !key.is_empty() && keys <= MAX_KEYS {
            return Ok(KeyFilter::Keys(product(&values, keys, key, schema)?));
        }
        let single = values.iter().take_while(|values| values.len() == 1).count();
        if single == 0 {
            return Ok(KeyFilter::All);
        }
        Ok(KeyFilter::Prefix(product(&values[..single], 1, key, schema)?))
    }

    /// Whether looking at `filter` can leave out rows of a table whose key begins with the column `first`, or that has the key columns `key`.
    pub fn can_use(filter: &Expr, key: &[usize], schema: &SchemaRef) -> bool {
        constants(filter, schema).is_some_and(|(column, _)| key.contains(&column))
    }
}

/// Every combination of the columns' values.
fn product(values: &[Vec<ScalarValue>], count: usize, key: &[usize], schema: &SchemaRef) -> Result<Vec<ArrayRef>> {
    let mut repeat = count;
    let mut columns = Vec::with_capacity(values.len());
    for (values, column) in values.iter().zip(key) {
        if values.is_empty() {
            columns.push(arrow::array::new_empty_array(schema.field(*column).data_type()));
            continue;
        }
        repeat /= values.len();
        let all = (0..count).map(|i| values[i / repeat.max(1) % values.len()].clone());
        if count == 0 {
            columns.push(arrow::array::new_empty_array(schema.field(*column).data_type()));
        } else {
            columns.push(ScalarValue::iter_to_array(all).map_err(from_datafusion)?);
        }
    }
    if columns.iter().any(|column| column.len() != count) {
        return Err(Error::internal("keys to look up have columns of several lengths"));
    }
    Ok(columns)
}

/// The column that `filter` compares with constants, and the constants that it may equal.
fn constants(filter: &Expr, schema: &SchemaRef) -> Option<(usize, Vec<ScalarValue>)> {
    match filter {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) => {
            let (column, value) = match (left.as_ref(), right.as_ref()) {
                (Expr::Column(column), Expr::Literal(value, _)) | (Expr::Literal(value, _), Expr::Column(column)) => (column, value),
                _ => return None,
            };
            let at = schema.index_of(&column.name).ok()?;
            constant(value, at, schema).map(|values| (at, values))
        }
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
            let (left, mut values) = constants(left, schema)?;
            let (right, more) = constants(right, schema)?;
            values.extend(more);
            (left == right).then_some((left, values))
        }
        Expr::InList(list) if !list.negated => {
            let Expr::Column(column) = list.expr.as_ref() else { return None };
            let at = schema.index_of(&column.name).ok()?;
            let mut values = Vec::with_capacity(list.list.len());
            for item in &list.list {
                let Expr::Literal(value, _) = item else { return None };
                values.extend(constant(value, at, schema)?);
            }
            Some((at, values))
        }
        _ => None,
    }
}

/// The constant, where it is of the column's type; none for NULL, which nothing equals.
fn constant(value: &ScalarValue, column: usize, schema: &SchemaRef) -> Option<Vec<ScalarValue>> {
    if value.is_null() {
        return Some(Vec::new());
    }
    (value.data_type() == *schema.field(column).data_type()).then(|| vec![value.clone()])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{AsArray, Int64Array, StringArray};
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};
    use datafusion::prelude::{col, lit};

    use super::*;

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("a", DataType::Int64, false),
            Field::new("b", DataType::Utf8, false),
            Field::new("c", DataType::Int64, true),
        ]))
    }

    fn filter(filters: &[Expr], key: &[usize]) -> KeyFilter {
        KeyFilter::new(filters, key, &schema()).unwrap()
    }

    #[test]
    fn equality_with_constants_gives_keys() {
        let KeyFilter::Keys(keys) = filter(&[col("c").gt(lit(1i64)), col("a").eq(lit(7i64))], &[0]) else { panic!("keys") };
        assert_eq!(keys[0].as_primitive::<Int64Type>(), &Int64Array::from(vec![7]));
        let filters = [lit("x").eq(col("b")).or(col("b").eq(lit("y"))), col("a").in_list(vec![lit(1i64), lit(2i64), lit(3i64)], false)];
        let KeyFilter::Keys(keys) = filter(&filters, &[1, 0]) else { panic!("keys") };
        assert_eq!(keys[0].as_string::<i32>(), &StringArray::from(vec!["x", "x", "x", "y", "y", "y"]));
        assert_eq!(keys[1].as_primitive::<Int64Type>(), &Int64Array::from(vec![1, 2, 3, 1, 2, 3]));
    }

    #[test]
    fn null_equals_nothing() {
        let KeyFilter::Keys(keys) = filter(&[col("a").eq(Expr::Literal(ScalarValue::Int64(None), None))], &[0]) else { panic!("keys") };
        assert_eq!(keys[0].len(), 0);
        let filters = [col("a").eq(lit(1i64)), col("b").eq(Expr::Literal(ScalarValue::Utf8(None), None))];
        let KeyFilter::Keys(keys) = filter(&filters, &[0, 1]) else { panic!("keys") };
        assert_eq!((keys[0].len(), keys[1].len()), (0, 0));
    }

    #[test]
    fn the_first_columns_of_a_key_give_a_prefix() {
        let KeyFilter::Prefix(prefix) = filter(&[col("a").eq(lit(7i64)), col("c").eq(lit(1i64))], &[0, 1]) else { panic!("a prefix") };
        assert_eq!(prefix.len(), 1);
        assert!(matches!(filter(&[col("b").eq(lit("x"))], &[0, 1]), KeyFilter::All), "not the first column");
    }

    #[test]
    fn what_is_no_equality_with_constants_of_the_type_leaves_all() {
        let conditions = [
            col("a").gt(lit(7i64)),
            col("a").eq(lit(7i32)),
            col("a").eq(col("c")),
            col("a").eq(lit(7i64)).or(col("c").eq(lit(7i64))),
            col("a").in_list(vec![lit(1i64)], true),
            col("a").in_list(vec![lit(1i64), col("c")], false),
        ];
        for condition in conditions {
            assert!(matches!(filter(std::slice::from_ref(&condition), &[0]), KeyFilter::All), "{condition}");
            assert!(!KeyFilter::can_use(&condition, &[0], &schema()), "{condition}");
        }
    }
}
