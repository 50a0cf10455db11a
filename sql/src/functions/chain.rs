//! Long chains of operators, `a + b - c || d ...`, as one function of all their operands. DataFusion works out the type and the name of an expression anew at
//! each level of it, several times over: a chain of a thousand calls in one another would take it minutes.
//!
//! # Invariants
//! - The result, and what fails, is that of the operators applied one after another, from left to right.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, StringArray, StringBuilder};
use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::ColumnarValue;
use weir_catalog::{Error, Result, SqlState};

use super::{arithmetic, array_of, downcast};

/// What is done with the result so far and the next operand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    /// Arithmetic, and the type of its result.
    Arithmetic(arithmetic::Operation, DataType),
    /// `||` of texts.
    Concat,
}

impl Link {
    /// As it is written.
    pub fn symbol(&self) -> &'static str {
        match self {
            Link::Arithmetic(operation, _) => operation.symbol(),
            Link::Concat => "||",
        }
    }
}

/// The operands, one more than there are links, linked.
pub fn evaluate(links: &[Link], arguments: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let Some((first, mut rest)) = arguments.split_first().filter(|(_, rest)| rest.len() == links.len()) else {
        return Err(Error::internal("a chain of operators with other operands"));
    };
    let (mut result, mut links) = (first.clone(), links);
    while let (Some((link, others)), Some(operand)) = (links.split_first(), rest.first()) {
        match link {
            Link::Arithmetic(operation, result_type) => {
                let operands = [result, operand.clone()];
                let is_constant = operands.iter().all(|operand| matches!(operand, ColumnarValue::Scalar(_)));
                let computed = arithmetic::evaluate(*operation, &operands, result_type, if is_constant { 1 } else { rows })?;
                result = match is_constant {
                    true => {
                        let value = ScalarValue::try_from_array(&computed, 0).map_err(|error| Error::internal(error.to_string()))?;
                        ColumnarValue::Scalar(value)
                    }
                    false => ColumnarValue::Array(computed),
                };
                (links, rest) = (others, &rest[1..]);
            }
            Link::Concat => {
                let count = links.iter().take_while(|link| **link == Link::Concat).count();
                result = ColumnarValue::Array(concat(&result, &rest[..count], rows)?);
                (links, rest) = (&links[count..], &rest[count..]);
            }
        }
    }
    array_of(&result, rows)
}

/// The texts of each row put together; NULL where one is.
fn concat(first: &ColumnarValue, rest: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let columns = std::iter::once(first).chain(rest).map(|column| array_of(column, rows)).collect::<Result<Vec<_>>>()?;
    let texts = columns.iter().map(downcast::<StringArray>).collect::<Result<Vec<_>>>()?;
    let bytes: usize = texts.iter().map(|texts| texts.value_data().len()).sum();
    if i32::try_from(bytes).is_err() {
        let code = SqlState::parse("54000").unwrap_or(SqlState::STATEMENT_TOO_COMPLEX);
        return Err(Error::new(code, format!("texts of {bytes} bytes can't be put together at a time")));
    }
    let mut builder = StringBuilder::with_capacity(rows, bytes);
    let mut whole = String::new();
    for row in 0..rows {
        if texts.iter().any(|texts| texts.is_null(row)) {
            builder.append_null();
            continue;
        }
        whole.clear();
        texts.iter().for_each(|texts| whole.push_str(texts.value(row)));
        builder.append_value(&whole);
    }
    Ok(Arc::new(builder.finish()))
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;

    use super::*;

    fn scalar(value: impl Into<ScalarValue>) -> ColumnarValue {
        ColumnarValue::Scalar(value.into())
    }

    #[test]
    fn a_chain_is_what_its_links_are_one_by_one() {
        use arithmetic::Operation::{Add, Divide, Multiply, Subtract};
        let column = ColumnarValue::Array(Arc::new(Int64Array::from(vec![Some(1), None, Some(3)])));
        let links = [Add, Multiply, Subtract, Divide].map(|operation| Link::Arithmetic(operation, DataType::Int64));
        let arguments = [scalar(10i64), scalar(20i64), column.clone(), scalar(6i64), scalar(2i64)];
        let result = evaluate(&links, &arguments, 3).expect("it is computed");
        assert_eq!(downcast::<Int64Array>(&result).expect("bigints"), &Int64Array::from(vec![Some(12), None, Some(42)]));
        // Overflow on the way is one, whatever follows.
        let links = [Add, Subtract].map(|operation| Link::Arithmetic(operation, DataType::Int64));
        let error = evaluate(&links, &[scalar(i64::MAX), scalar(1i64), column], 3).expect_err("it overflows");
        assert_eq!(error.code().as_str(), "22003");
        let nothing = ColumnarValue::Scalar(ScalarValue::Utf8(None));
        let words = ColumnarValue::Array(Arc::new(StringArray::from(vec![Some("x"), None])));
        let joined = |last| evaluate(&[Link::Concat, Link::Concat], &[scalar("a"), words.clone(), last], 2).expect("it is computed");
        assert_eq!(downcast::<StringArray>(&joined(scalar("b"))).expect("texts"), &StringArray::from(vec![Some("axb"), None]));
        assert_eq!(joined(nothing).null_count(), 2);
    }
}
