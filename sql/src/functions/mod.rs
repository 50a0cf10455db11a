//! Scalar and aggregate functions with PostgreSQL's results and errors, as vectorised DataFusion functions.
//!
//! The binder puts them into plans with every argument already of the type that the function takes, so none of them coerces anything.
//!
//! # Invariants
//! - A function that fails on a row fails with `DataFusionError::External(Box<weir_catalog::Error>)` and the SQLSTATE that PostgreSQL gives.
//! - A NULL slot is never looked at: what it holds can't raise an error.
//! - String results are `Utf8`, timestamps are microseconds without zone.

pub mod aggregate;
pub mod arithmetic;
pub mod cast;
pub mod chain;
pub mod date_format;
pub mod datetime;
pub mod extremes;
pub mod math;
pub mod nested;
pub mod posix;
pub mod regexp;
pub mod string;
pub mod text;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, StringArray};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use weir_catalog::{Error, Result, SqlState, SqlType};

/// What a [`NativeFunction`] computes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// `+ - * / %` and unary minus on numbers of one type (decimals may differ in precision and scale).
    Arithmetic(arithmetic::Operation),
    /// Operators one after another, of one operand more than there are of them.
    Chain(Arc<[chain::Link]>),
    /// A cast to a SQL type.
    Cast(SqlType),
    /// The text form that PostgreSQL's output functions give, which differs from a cast for BOOLEAN: `t` and `f`.
    OutputText,
    /// Rounding, roots, powers and the like.
    Math(math::Operation),
    /// Timestamps and intervals.
    DateTime(datetime::Operation),
    /// Text.
    String(string::Operation),
    /// Flink's DATE_FORMAT, with its pattern where that is constant.
    DateFormat(Option<Arc<date_format::Pattern>>),
    /// Flink's REGEXP_EXTRACT, with its pattern where that is constant.
    RegexpExtract(Option<Arc<regexp::Pattern>>),
    /// PostgreSQL's regular expressions, with the pattern where that is constant.
    Posix(posix::Operation, Option<Arc<posix::Pattern>>),
    /// Rows and arrays.
    Nested(nested::Operation),
    /// The argument, of which DataFusion does not know whether it is NULL.
    Nullable,
    /// The number of rows that LIMIT (true) or OFFSET (false) gives, never NULL; `2201W` or `2201X` where it is negative.
    RowCount(bool),
    /// The first argument; `21000` where the second, the number of rows that it was taken from, is over 1.
    SingleValue,
}

/// A function of weir's own, its result type fixed by the binder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NativeFunction {
    name: String,
    kernel: Kernel,
    result: DataType,
    signature: Signature,
}

impl NativeFunction {
    /// What it computes.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The type of what it gives.
    pub fn result(&self) -> &DataType {
        &self.result
    }
}

/// A call of a function of weir's own. `name` is what EXPLAIN shows and what derived uids see, so it must tell apart what computes differently.
pub fn call(name: impl Into<String>, kernel: Kernel, result: DataType, arguments: Vec<Expr>) -> Expr {
    let function = NativeFunction { name: name.into(), kernel, result, signature: Signature::variadic_any(Volatility::Immutable) };
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(ScalarUDF::new_from_impl(function)), arguments))
}

impl ScalarUDFImpl for NativeFunction {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _argument_types: &[DataType]) -> datafusion::common::Result<DataType> {
        Ok(self.result.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> datafusion::common::Result<ColumnarValue> {
        let constant = args.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let rows = if constant { 1 } else { args.number_rows };
        let result = match &self.kernel {
            Kernel::Arithmetic(operation) => arithmetic::evaluate(*operation, &args.args, &self.result, rows),
            Kernel::Chain(links) => chain::evaluate(links, &args.args, rows),
            Kernel::DateFormat(pattern) => date_format::evaluate(pattern.as_deref(), &args.args, rows),
            Kernel::RegexpExtract(pattern) => regexp::extract(pattern.as_deref(), &args.args, rows),
            Kernel::Posix(operation, pattern) => posix::evaluate(*operation, pattern.as_deref(), &args.args, rows),
            Kernel::String(string::Operation::SplitIndex) => string::split_index(&args.args, rows),
            kernel => {
                let mut arrays: Vec<ArrayRef> = Vec::with_capacity(args.args.len());
                for argument in &args.args {
                    arrays.push(argument.to_array(rows)?);
                }
                match kernel {
                    Kernel::Arithmetic(_) | Kernel::Chain(_) | Kernel::DateFormat(_) | Kernel::RegexpExtract(_) | Kernel::Posix(..) => {
                        Err(Error::internal("a function that is evaluated on its own"))
                    }
                    Kernel::Cast(to) => cast::evaluate(&arrays[0], to),
                    Kernel::OutputText => cast::output_text(&arrays[0]),
                    Kernel::Math(operation) => math::evaluate(*operation, &arrays, &self.result),
                    Kernel::DateTime(operation) => datetime::evaluate(*operation, &arrays, &self.result),
                    Kernel::String(operation) => string::evaluate(*operation, &arrays),
                    Kernel::Nested(operation) => nested::evaluate(*operation, &arrays, &self.result, rows),
                    Kernel::Nullable => Ok(arrays[0].clone()),
                    Kernel::RowCount(is_limit) => row_count(&arrays, *is_limit),
                    Kernel::SingleValue => single_value(&arrays),
                }
            }
        }
        .map_err(external)?;
        if constant { Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&result, 0)?)) } else { Ok(ColumnarValue::Array(result)) }
    }
}

fn single_value(arrays: &[ArrayRef]) -> Result<ArrayRef> {
    let counts: &Int64Array = downcast(&arrays[1])?;
    if counts.iter().flatten().any(|count| count > 1) {
        return Err(Error::new(SqlState::CARDINALITY_VIOLATION, "more than one row returned by a subquery used as an expression"));
    }
    Ok(arrays[0].clone())
}

fn row_count(arrays: &[ArrayRef], is_limit: bool) -> Result<ArrayRef> {
    let counts: &Int64Array = downcast(&arrays[0])?;
    if counts.iter().flatten().any(|count| count < 0) {
        let (clause, code) = if is_limit { ("LIMIT", "2201W") } else { ("OFFSET", "2201X") };
        return Err(Error::new(SqlState::parse(code).unwrap_or(SqlState::DATA_EXCEPTION), format!("{clause} must not be negative")));
    }
    let missing = if is_limit { i64::MAX } else { 0 };
    Ok(Arc::new(counts.iter().map(|count| count.unwrap_or(missing)).collect::<Int64Array>()))
}

/// A weir error inside a DataFusion one.
pub fn external(error: Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// A weir error on its way through an arrow kernel.
fn through_arrow(error: Error) -> ArrowError {
    ArrowError::ExternalError(Box::new(error))
}

/// The weir error that came out of an arrow kernel.
fn from_arrow(error: ArrowError) -> Error {
    match error {
        ArrowError::ExternalError(source) => match source.downcast::<Error>() {
            Ok(error) => *error,
            Err(other) => Error::internal(other.to_string()),
        },
        other => Error::internal(other.to_string()),
    }
}

/// The array as its concrete type; the binder made sure that it is.
fn downcast<T: 'static>(array: &ArrayRef) -> Result<&T> {
    array
        .as_any()
        .downcast_ref::<T>()
        .ok_or_else(|| Error::internal(format!("a function was called with an argument of type {}", array.data_type())))
}

/// The argument as a column of `rows` rows.
fn array_of(argument: &ColumnarValue, rows: usize) -> Result<ArrayRef> {
    argument.to_array(rows).map_err(|e| Error::internal(e.to_string()))
}

/// A text argument: one text for all rows, which needs no column, or a column.
enum Texts<'a> {
    Same(Option<&'a str>),
    Each(&'a StringArray),
}

impl<'a> Texts<'a> {
    fn of(argument: &'a ColumnarValue) -> Result<Texts<'a>> {
        match argument {
            ColumnarValue::Array(array) => downcast(array).map(Texts::Each),
            ColumnarValue::Scalar(ScalarValue::Utf8(text)) => Ok(Texts::Same(text.as_deref())),
            ColumnarValue::Scalar(other) => {
                Err(Error::internal(format!("a function of texts was called with a value of type {}", other.data_type())))
            }
        }
    }

    #[inline]
    fn get(&self, row: usize) -> Option<&'a str> {
        match self {
            Texts::Same(text) => *text,
            Texts::Each(texts) => texts.is_valid(row).then(|| texts.value(row)),
        }
    }
}
