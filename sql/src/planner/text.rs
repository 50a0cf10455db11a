//! Expressions as SQL text: for EXPLAIN, for the names of columns that nobody named, and so for uids.
//!
//! # Invariants
//! The text of an expression depends on nothing but the expression and the names of the columns it reads: uids and the column names of durable
//! state are made of it, so a change of this file is a change of what old state fits.

use std::any::Any;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{Expr, Operator};
use weir_catalog::SqlType;
use xxhash_rust::xxh3::xxh3_64;

use crate::functions::arithmetic::Operation;
use crate::functions::{Kernel, NativeFunction, nested};

/// The longest column name that is made of an expression, in bytes. A longer text is cut and ends in its hash.
const NAME_BYTES_MAX: usize = 120;

/// How tightly an expression binds; a smaller one inside a larger one needs parentheses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    Or,
    And,
    Not,
    Is,
    Comparison,
    /// LIKE, BETWEEN, IN.
    Range,
    Other,
    Sum,
    Product,
    Negative,
    Cast,
    Primary,
}

/// `expr` as SQL.
pub fn expression_text(expr: &Expr) -> String {
    write(expr).0
}

/// The name of a column that holds `expr`: its text, kept at a length that can be read.
pub fn column_name(expr: &Expr) -> String {
    shorten(expression_text(expr))
}

/// `text`, or if it is very long its beginning and a hash of the whole.
pub fn shorten(text: String) -> String {
    if text.len() <= NAME_BYTES_MAX {
        return text;
    }
    let hash = format!("~{:016x}", xxh3_64(text.as_bytes()));
    let mut end = NAME_BYTES_MAX - hash.len();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{hash}", &text[..end])
}

/// The name of `data_type` in SQL.
pub fn type_text(data_type: &DataType) -> String {
    match SqlType::from_arrow(data_type) {
        Some(ty) => ty.to_string(),
        None => data_type.to_string().to_lowercase(),
    }
}

/// What a cast is of, and to which type; `None` for anything else.
pub fn cast_of(expr: &Expr) -> Option<(&Expr, DataType)> {
    match expr {
        Expr::Alias(alias) => cast_of(&alias.expr),
        Expr::Cast(cast) => Some((&cast.expr, cast.field.data_type().clone())),
        Expr::ScalarFunction(function) => match (native_kernel(function)?, function.args.as_slice()) {
            (Kernel::Cast(to), [inner]) => Some((inner, to.to_arrow())),
            _ => None,
        },
        _ => None,
    }
}

/// True where a cast from one to the other says nothing to a reader: both are the same SQL type.
fn same_sql_type(from: &DataType, to: &DataType) -> bool {
    match (SqlType::from_arrow(from), SqlType::from_arrow(to)) {
        (Some(from), Some(to)) => from == to,
        _ => false,
    }
}

fn write(expr: &Expr) -> (String, Binding) {
    match expr {
        Expr::Alias(alias) => write(&alias.expr),
        Expr::Column(column) => {
            // A column that was computed below carries its expression as its name.
            let binding = if is_closed(&column.name) { Binding::Primary } else { Binding::Or };
            (column.name.clone(), binding)
        }
        Expr::Literal(value, _) => write_literal(value),
        Expr::BinaryExpr(binary) => {
            let binding = operator_binding(binary.op);
            let left = operand(&binary.left, binding, false);
            // `a - (b - c)` and `a < (b < c)` keep their parentheses; AND and OR are associative.
            let strict = !matches!(binary.op, Operator::And | Operator::Or);
            let right = operand(&binary.right, binding, strict);
            (format!("{left} {} {right}", operator_text(binary.op)), binding)
        }
        Expr::Not(inner) => (format!("NOT {}", operand(inner, Binding::Not, false)), Binding::Not),
        Expr::Negative(inner) => (format!("-{}", operand(inner, Binding::Negative, true)), Binding::Negative),
        Expr::IsNull(inner) => is(inner, "NULL"),
        Expr::IsNotNull(inner) => is(inner, "NOT NULL"),
        Expr::IsTrue(inner) => is(inner, "TRUE"),
        Expr::IsFalse(inner) => is(inner, "FALSE"),
        Expr::IsUnknown(inner) => is(inner, "UNKNOWN"),
        Expr::IsNotTrue(inner) => is(inner, "NOT TRUE"),
        Expr::IsNotFalse(inner) => is(inner, "NOT FALSE"),
        Expr::IsNotUnknown(inner) => is(inner, "NOT UNKNOWN"),
        Expr::Like(like) => write_like(like, if like.case_insensitive { "ILIKE" } else { "LIKE" }),
        Expr::SimilarTo(like) => write_like(like, "SIMILAR TO"),
        Expr::Between(between) => (
            format!(
                "{} {}BETWEEN {} AND {}",
                operand(&between.expr, Binding::Range, true),
                not(between.negated),
                operand(&between.low, Binding::Range, true),
                operand(&between.high, Binding::Range, true)
            ),
            Binding::Range,
        ),
        Expr::InList(list) => {
            (format!("{} {}IN ({})", operand(&list.expr, Binding::Range, true), not(list.negated), join(&list.list)), Binding::Range)
        }
        Expr::Case(case) => {
            let mut text = String::from("CASE");
            if let Some(base) = &case.expr {
                text.push_str(&format!(" {}", expression_text(base)));
            }
            for (when, then) in &case.when_then_expr {
                text.push_str(&format!(" WHEN {} THEN {}", expression_text(when), expression_text(then)));
            }
            if let Some(otherwise) = &case.else_expr {
                text.push_str(&format!(" ELSE {}", expression_text(otherwise)));
            }
            text.push_str(" END");
            (text, Binding::Primary)
        }
        Expr::Cast(cast) => {
            if let Expr::Cast(inner) = cast.expr.as_ref()
                && same_sql_type(inner.field.data_type(), cast.field.data_type())
            {
                return write(&cast.expr);
            }
            if let Expr::Literal(value, _) = cast.expr.as_ref()
                && same_sql_type(&value.data_type(), cast.field.data_type())
            {
                return write(&cast.expr);
            }
            (format!("{}::{}", operand(&cast.expr, Binding::Cast, false), type_text(cast.field.data_type())), Binding::Cast)
        }
        Expr::TryCast(cast) => {
            (format!("try_cast({} AS {})", expression_text(&cast.expr), type_text(cast.field.data_type())), Binding::Primary)
        }
        Expr::ScalarFunction(function) => write_native(function).unwrap_or_else(|| write_function(function.name(), &function.args)),
        Expr::AggregateFunction(function) => (format!("{}({})", function.func.name(), join(&function.params.args)), Binding::Primary),
        other => (other.to_string(), Binding::Or),
    }
}

fn write_literal(value: &ScalarValue) -> (String, Binding) {
    if value.is_null() {
        return ("NULL".to_string(), Binding::Primary);
    }
    match value {
        ScalarValue::Utf8(Some(text)) | ScalarValue::LargeUtf8(Some(text)) | ScalarValue::Utf8View(Some(text)) => {
            (format!("'{}'", text.replace('\'', "''")), Binding::Primary)
        }
        ScalarValue::Boolean(Some(value)) => (if *value { "TRUE" } else { "FALSE" }.to_string(), Binding::Primary),
        ScalarValue::Decimal128(Some(unscaled), _, scale) => number(decimal_text(*unscaled, *scale)),
        ScalarValue::Float64(Some(value)) => number(format!("{value:?}")),
        ScalarValue::TimestampSecond(..)
        | ScalarValue::TimestampMillisecond(..)
        | ScalarValue::TimestampMicrosecond(..)
        | ScalarValue::TimestampNanosecond(..) => {
            // Arrow prints the moment in ISO form, whatever the unit.
            (format!("TIMESTAMP '{}'", array_text(value)), Binding::Primary)
        }
        ScalarValue::IntervalYearMonth(_) | ScalarValue::IntervalDayTime(_) | ScalarValue::IntervalMonthDayNano(_) => {
            (format!("INTERVAL '{}'", array_text(value)), Binding::Primary)
        }
        other => number(other.to_string()),
    }
}

/// A number's text; a negative one binds like a sign.
fn number(text: String) -> (String, Binding) {
    let binding = if text.starts_with('-') { Binding::Negative } else { Binding::Primary };
    (text, binding)
}

fn decimal_text(unscaled: i128, scale: i8) -> String {
    if scale <= 0 {
        return format!("{unscaled}{}", "0".repeat(usize::from(scale.unsigned_abs())));
    }
    let scale = usize::from(scale.unsigned_abs());
    let digits = format!("{:0width$}", unscaled.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    format!("{}{whole}.{fraction}", if unscaled < 0 { "-" } else { "" })
}

/// What Arrow prints for a single value; the value's own text where it can't be put into an array.
fn array_text(value: &ScalarValue) -> String {
    value
        .to_array()
        .ok()
        .and_then(|array| datafusion::arrow::util::display::array_value_to_string(&array, 0).ok())
        .unwrap_or_else(|| value.to_string())
}

/// Functions of ours that stand for operators and casts are written as these.
fn write_native(function: &ScalarFunction) -> Option<(String, Binding)> {
    match (native_kernel(function)?, function.args.as_slice()) {
        (Kernel::Arithmetic(operation), [left, right]) => {
            let binding = match operation {
                Operation::Add | Operation::Subtract => Binding::Sum,
                _ => Binding::Product,
            };
            Some((format!("{} {} {}", operand(left, binding, false), operation.symbol(), operand(right, binding, true)), binding))
        }
        (Kernel::Arithmetic(Operation::Negate), [inner]) => {
            Some((format!("-{}", operand(inner, Binding::Negative, true)), Binding::Negative))
        }
        (Kernel::Nested(nested::Operation::Array), elements) => Some((format!("ARRAY[{}]", join(elements)), Binding::Primary)),
        (Kernel::Nested(nested::Operation::Element), [array, place]) => {
            let array = match array {
                Expr::Column(_) | Expr::ScalarFunction(_) => operand(array, Binding::Primary, false),
                other => format!("({})", expression_text(other)),
            };
            let place = match place {
                Expr::Cast(cast) => &cast.expr,
                place => place,
            };
            Some((format!("{array}[{}]", expression_text(place)), Binding::Primary))
        }
        (Kernel::Nested(nested::Operation::EqualsAny), [value, array]) => {
            Some((format!("{} = ANY({})", operand(value, Binding::Comparison, true), expression_text(array)), Binding::Comparison))
        }
        (Kernel::Nested(nested::Operation::IsNull), [inner]) => Some(is(inner, "NULL")),
        (Kernel::Nested(nested::Operation::IsNotNull), [inner]) => Some(is(inner, "NOT NULL")),
        (Kernel::Posix(operation, _), [text, pattern]) if operation.is_operator() => Some((
            format!("{} {} {}", operand(text, Binding::Other, false), operation.name(), operand(pattern, Binding::Other, true)),
            Binding::Other,
        )),
        (Kernel::Cast(to), [inner]) => Some((format!("{}::{to}", operand(inner, Binding::Cast, false)), Binding::Cast)),
        _ => None,
    }
}

/// What `function` computes, if it is one of ours.
pub(super) fn native_kernel(function: &ScalarFunction) -> Option<&Kernel> {
    let implementation: &dyn Any = function.func.inner().as_ref();
    implementation.downcast_ref::<NativeFunction>().map(NativeFunction::kernel)
}

fn write_function(name: &str, args: &[Expr]) -> (String, Binding) {
    // A field of a row is written as SQL writes it.
    if name == "get_field"
        && let [row, path @ ..] = args
        && let Some(path) = path.iter().map(field_name).collect::<Option<Vec<&str>>>()
    {
        return (format!("{}.{}", operand(row, Binding::Primary, false), path.join(".")), Binding::Primary);
    }
    (format!("{name}({})", join(args)), Binding::Primary)
}

fn field_name(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Literal(value, _) => value.try_as_str().flatten(),
        _ => None,
    }
}

fn write_like(like: &datafusion::logical_expr::Like, word: &str) -> (String, Binding) {
    let mut text = format!(
        "{} {}{word} {}",
        operand(&like.expr, Binding::Range, true),
        not(like.negated),
        operand(&like.pattern, Binding::Range, true)
    );
    if let Some(escape) = like.escape_char {
        text.push_str(&format!(" ESCAPE '{escape}'"));
    }
    (text, Binding::Range)
}

fn is(inner: &Expr, what: &str) -> (String, Binding) {
    (format!("{} IS {what}", operand(inner, Binding::Is, false)), Binding::Is)
}

fn not(negated: bool) -> &'static str {
    if negated { "NOT " } else { "" }
}

/// `expr` inside something that binds as `outer`; with `strict`, one that binds equally gets parentheses too.
fn operand(expr: &Expr, outer: Binding, strict: bool) -> String {
    let (text, inner) = write(expr);
    if inner < outer || (strict && inner == outer && outer != Binding::Primary) { format!("({text})") } else { text }
}

fn join(exprs: &[Expr]) -> String {
    exprs.iter().map(expression_text).collect::<Vec<_>>().join(", ")
}

/// A name that reads as one thing: an identifier, a call, a field of a row.
fn is_closed(name: &str) -> bool {
    let mut depth = 0usize;
    let mut quoted = false;
    for character in name.chars() {
        match character {
            '\'' => quoted = !quoted,
            _ if quoted => {}
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ' ' | ':' if depth == 0 => return false,
            _ => {}
        }
    }
    !name.starts_with('-')
}

fn operator_binding(operator: Operator) -> Binding {
    match operator {
        Operator::Or => Binding::Or,
        Operator::And => Binding::And,
        Operator::IsDistinctFrom | Operator::IsNotDistinctFrom => Binding::Is,
        Operator::Eq | Operator::NotEq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq => Binding::Comparison,
        Operator::Plus | Operator::Minus => Binding::Sum,
        Operator::Multiply | Operator::Divide | Operator::Modulo => Binding::Product,
        _ => Binding::Other,
    }
}

fn operator_text(operator: Operator) -> String {
    match operator {
        Operator::NotEq => "<>".to_string(),
        other => other.to_string(),
    }
}
