//! PostgreSQL's rules about types: what casts to what and when, and the type that several values share.

use arrow::datatypes::{DataType, IntervalMonthDayNano};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::expr::{Cast, Placeholder};
use weir_catalog::{Error, Result, SqlState, SqlType};

use crate::functions::{Kernel, NativeFunction, cast, datetime, nested, text};

/// The type of an expression while it is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// A type that columns can have.
    Sql(SqlType),
    /// `INTERVAL`, only inside expressions.
    Interval,
    /// A string literal, NULL or parameter whose type its surroundings decide.
    Unknown,
}

impl Type {
    /// The Arrow type that holds it.
    pub fn to_arrow(&self) -> DataType {
        match self {
            Type::Sql(ty) => ty.to_arrow(),
            Type::Interval => datetime::INTERVAL,
            Type::Unknown => DataType::Utf8,
        }
    }

    /// Its name in error messages, without precision and scale.
    pub fn name(&self) -> String {
        match self {
            Type::Sql(SqlType::Numeric { .. }) => "numeric".into(),
            Type::Sql(SqlType::Timestamp { .. }) => "timestamp without time zone".into(),
            Type::Sql(SqlType::Row(_)) => "record".into(),
            Type::Sql(SqlType::Array(element)) => format!("{}[]", Type::Sql(element.as_ref().clone()).name()),
            Type::Sql(ty) => ty.to_string(),
            Type::Interval => "interval".into(),
            Type::Unknown => "unknown".into(),
        }
    }

    /// The SQL type, if it is one.
    pub fn sql(&self) -> Option<&SqlType> {
        match self {
            Type::Sql(ty) => Some(ty),
            _ => None,
        }
    }

    /// Whether it is a ROW or an array.
    pub fn is_nested(&self) -> bool {
        self.sql().is_some_and(SqlType::is_nested)
    }

    /// INT 1, BIGINT 2, NUMERIC 3, DOUBLE 4: a number converts by itself to one of a higher rank. `None` for what is no number.
    pub fn number_rank(&self) -> Option<u8> {
        match self {
            Type::Sql(SqlType::Int) => Some(1),
            Type::Sql(SqlType::BigInt) => Some(2),
            Type::Sql(SqlType::Numeric { .. }) => Some(3),
            Type::Sql(SqlType::Double) => Some(4),
            _ => None,
        }
    }

    /// Equal apart from precision and scale.
    pub fn same_base(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::Sql(SqlType::Numeric { .. }), Type::Sql(SqlType::Numeric { .. })) => true,
            (Type::Sql(SqlType::Timestamp { .. }), Type::Sql(SqlType::Timestamp { .. })) => true,
            (Type::Sql(SqlType::Array(a)), Type::Sql(SqlType::Array(b))) => {
                Type::Sql(a.as_ref().clone()).same_base(&Type::Sql(b.as_ref().clone()))
            }
            _ => self == other,
        }
    }
}

impl From<SqlType> for Type {
    fn from(ty: SqlType) -> Type {
        Type::Sql(ty)
    }
}

/// A bound expression and its type.
#[derive(Clone, Debug)]
pub struct Bound {
    pub expr: Expr,
    pub ty: Type,
    /// Where it begins in the statement, in characters from 1.
    pub position: Option<usize>,
}

impl Bound {
    /// An expression of a SQL type, without a position.
    pub fn new(expr: Expr, ty: impl Into<Type>) -> Bound {
        Bound { expr, ty: ty.into(), position: None }
    }
}

/// When a cast happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CastContext {
    /// By itself, in an expression.
    Implicit,
    /// By itself, when a value is stored in a column.
    Assignment,
    /// Written as a cast.
    Explicit,
}

/// Whether a value of type `from` becomes one of type `to` in this context.
pub fn can_cast(from: &Type, to: &Type, context: CastContext) -> bool {
    if from == &Type::Unknown || from.same_base(to) {
        return true;
    }
    if let (Some(from), Some(to)) = (from.number_rank(), to.number_rank()) {
        return from < to || context >= CastContext::Assignment;
    }
    let inside = |from: &SqlType, to: &SqlType| can_cast(&Type::Sql(from.clone()), &Type::Sql(to.clone()), context);
    match (from, to) {
        (Type::Sql(SqlType::Array(from)), Type::Sql(SqlType::Array(to))) => inside(from, to),
        (Type::Sql(SqlType::Row(from)), Type::Sql(SqlType::Row(to))) => {
            from.len() == to.len() && from.iter().zip(to).all(|((_, from), (_, to))| inside(from, to))
        }
        (_, Type::Sql(SqlType::Row(_))) => false,
        (_, Type::Sql(SqlType::Text)) => context >= CastContext::Assignment,
        (Type::Sql(SqlType::Text), _) => context == CastContext::Explicit,
        (Type::Sql(SqlType::Boolean), Type::Sql(SqlType::Int)) | (Type::Sql(SqlType::Int), Type::Sql(SqlType::Boolean)) => {
            context == CastContext::Explicit
        }
        _ => false,
    }
}

/// As [`can_cast`], of an expression: a string that stands in a row constructor has no type of its own yet.
pub fn can_convert(from: &Bound, to: &Type, context: CastContext) -> bool {
    match (row_constructor(from), to) {
        (Some(fields), Type::Sql(SqlType::Row(to))) if fields.len() == to.len() => {
            fields.iter().zip(to).all(|(field, (_, to))| can_convert(field, &Type::Sql(to.clone()), context))
        }
        _ => can_cast(&from.ty, to, context),
    }
}

/// The fields of `bound`, if it is `ROW(...)`. Strings among them are of unknown type again.
pub fn row_constructor(bound: &Bound) -> Option<Vec<Bound>> {
    let (Expr::ScalarFunction(call), Type::Sql(SqlType::Row(types))) = (&bound.expr, &bound.ty) else { return None };
    let function = call.func.inner().downcast_ref::<NativeFunction>()?;
    if *function.kernel() != Kernel::Nested(nested::Operation::Row) || call.args.len() != types.len() {
        return None;
    }
    let field = |(expr, (_, ty)): (&Expr, &(String, SqlType))| {
        let ty = match expr {
            Expr::Literal(ScalarValue::Utf8(_), _) => Type::Unknown,
            _ => Type::Sql(ty.clone()),
        };
        Bound { expr: expr.clone(), ty, position: bound.position }
    };
    Some(call.args.iter().zip(types).map(field).collect())
}

/// `ROW(...)` of fields with names.
pub fn row_of(fields: Vec<(String, SqlType, Expr)>) -> Bound {
    let (types, exprs): (Vec<(String, SqlType)>, Vec<Expr>) = fields.into_iter().map(|(name, ty, expr)| ((name, ty), expr)).unzip();
    let ty = SqlType::Row(types);
    let operation = nested::Operation::Row;
    Bound::new(crate::functions::call(operation.name(), Kernel::Nested(operation), ty.to_arrow(), exprs), ty)
}

/// The digits that every value of an integer type fits in.
pub fn numeric_shape(ty: &Type) -> Option<(u8, i8)> {
    match ty {
        Type::Sql(SqlType::Int) => Some((10, 0)),
        Type::Sql(SqlType::BigInt) => Some((19, 0)),
        Type::Sql(SqlType::Numeric { precision, scale }) => Some((*precision, *scale)),
        _ => None,
    }
}

/// The type that values of both types convert to by themselves; `None` if there is none. `Unknown` gives way.
pub fn common_type(left: &Type, right: &Type) -> Option<Type> {
    if left == right || *right == Type::Unknown {
        return Some(left.clone());
    }
    if *left == Type::Unknown {
        return Some(right.clone());
    }
    if let (Some(left_rank), Some(right_rank)) = (left.number_rank(), right.number_rank()) {
        if left_rank.max(right_rank) != 3 {
            return Some(if left_rank > right_rank { left.clone() } else { right.clone() });
        }
        let ((p1, s1), (p2, s2)) = (numeric_shape(left)?, numeric_shape(right)?);
        let scale = s1.max(s2);
        let integer_digits = (p1 as i8 - s1).max(p2 as i8 - s2);
        return Some(SqlType::Numeric { precision: (integer_digits + scale).clamp(1, 38) as u8, scale }.into());
    }
    match (left, right) {
        (Type::Sql(SqlType::Timestamp { precision: a }), Type::Sql(SqlType::Timestamp { precision: b })) => {
            Some(SqlType::Timestamp { precision: *a.max(b) }.into())
        }
        (Type::Sql(SqlType::Array(left)), Type::Sql(SqlType::Array(right))) => {
            Some(SqlType::Array(Box::new(common_sql_type(left, right)?)).into())
        }
        (Type::Sql(SqlType::Row(left)), Type::Sql(SqlType::Row(right))) if left.len() == right.len() => {
            // The names are those that somebody gave.
            let unnamed = left.iter().enumerate().all(|(at, (name, _))| *name == field_name(at));
            let names = if unnamed { right } else { left };
            let fields = left
                .iter()
                .zip(right)
                .zip(names)
                .map(|(((_, left), (_, right)), (name, _))| Some((name.clone(), common_sql_type(left, right)?)));
            Some(SqlType::Row(fields.collect::<Option<_>>()?).into())
        }
        _ => None,
    }
}

fn common_sql_type(left: &SqlType, right: &SqlType) -> Option<SqlType> {
    match common_type(&Type::Sql(left.clone()), &Type::Sql(right.clone()))? {
        Type::Sql(ty) => Some(ty),
        _ => None,
    }
}

/// What PostgreSQL calls the field at place `at` of a row constructor.
pub fn field_name(at: usize) -> String {
    format!("f{}", at + 1)
}

/// `bound` as `to`, whether or not a cast in that direction is allowed. Constants are converted at once, so that their errors have a position.
pub fn convert(bound: Bound, to: &Type) -> Result<Bound> {
    let position = bound.position;
    let at = |error: Error| match position {
        Some(position) => error.with_position(position),
        None => error,
    };
    let expr = convert_expr(bound, to).map_err(at)?;
    Ok(Bound { expr, ty: to.clone(), position })
}

fn convert_expr(bound: Bound, to: &Type) -> Result<Expr> {
    if bound.ty != *to
        && let (Some(fields), Type::Sql(SqlType::Row(types))) = (row_constructor(&bound), to)
        && fields.len() == types.len()
    {
        let convert =
            |(field, (name, ty)): (Bound, &(String, SqlType))| Ok((name.clone(), ty.clone(), convert_expr(field, &Type::Sql(ty.clone()))?));
        return Ok(row_of(fields.into_iter().zip(types).map(convert).collect::<Result<_>>()?).expr);
    }
    let Bound { expr, ty, .. } = bound;
    if ty == Type::Unknown {
        return match expr {
            Expr::Placeholder(placeholder) => Ok(typed_placeholder(placeholder, to)),
            Expr::Literal(value, metadata) => match (value, to) {
                (ScalarValue::Utf8(Some(value)), Type::Interval) => {
                    Ok(Expr::Literal(interval_value(text::parse_interval(&value, "second")?), None))
                }
                (ScalarValue::Utf8(None) | ScalarValue::Null, Type::Interval) => {
                    Ok(Expr::Literal(ScalarValue::IntervalMonthDayNano(None), None))
                }
                (value @ ScalarValue::Utf8(_), Type::Sql(to)) => cast_constant(&value, to),
                (ScalarValue::Null, to) => {
                    Ok(Expr::Literal(ScalarValue::try_from(&to.to_arrow()).map_err(|e| Error::internal(e.to_string()))?, metadata))
                }
                (value, _) => Err(Error::internal(format!("a literal of unknown type holds {value:?}"))),
            },
            // A column of unknown type, such as that of `(SELECT 'a')`, is TEXT underneath.
            expr => convert_expr(Bound::new(expr, SqlType::Text), to),
        };
    }
    let (from, to) = match (&ty, to) {
        (Type::Sql(from), Type::Sql(to)) => (from, to),
        (Type::Interval, Type::Interval) => return Ok(expr),
        (Type::Interval, Type::Sql(SqlType::Text)) => return Ok(cast_call(expr, &SqlType::Text)),
        _ => return Err(cannot_cast(&ty, to)),
    };
    if from == to {
        return Ok(expr);
    }
    if let Expr::Literal(value, _) = &expr {
        return cast_constant(value, to);
    }
    if let (SqlType::Row(from), SqlType::Row(to)) = (from, to)
        && from.len() != to.len()
    {
        return Err(cannot_cast(&ty, &Type::Sql(SqlType::Row(to.clone()))).with_detail(format!(
            "The row has {} fields where {} are wanted.",
            from.len(),
            to.len()
        )));
    }
    let lossless = match (from, to) {
        (SqlType::Timestamp { precision: from }, SqlType::Timestamp { precision: to }) if from <= to => return Ok(expr),
        (SqlType::Int, SqlType::BigInt | SqlType::Double) | (SqlType::BigInt, SqlType::Double) => true,
        (SqlType::Int | SqlType::BigInt | SqlType::Numeric { .. }, SqlType::Numeric { precision, scale }) => {
            let (p, s) = numeric_shape(&ty).unwrap_or((38, 0));
            s <= *scale && p as i8 - s <= *precision as i8 - *scale
        }
        _ => false,
    };
    Ok(if lossless { Expr::Cast(Cast::new(Box::new(expr), to.to_arrow())) } else { cast_call(expr, to) })
}

fn cast_call(expr: Expr, to: &SqlType) -> Expr {
    crate::functions::call(format!("cast_to_{}", to.to_string().replace(' ', "_")), Kernel::Cast(to.clone()), to.to_arrow(), vec![expr])
}

fn cast_constant(value: &ScalarValue, to: &SqlType) -> Result<Expr> {
    let array = value.to_array().map_err(|e| Error::internal(e.to_string()))?;
    let array = cast::evaluate(&array, to)?;
    Ok(Expr::Literal(ScalarValue::try_from_array(&array, 0).map_err(|e| Error::internal(e.to_string()))?, None))
}

/// A parameter of a known type.
pub fn typed_placeholder(placeholder: Placeholder, ty: &Type) -> Expr {
    Expr::Placeholder(Placeholder::new_with_field(
        placeholder.id,
        Some(std::sync::Arc::new(arrow::datatypes::Field::new("", ty.to_arrow(), true))),
    ))
}

/// An interval as a literal's value.
pub fn interval_value(interval: IntervalMonthDayNano) -> ScalarValue {
    ScalarValue::IntervalMonthDayNano(Some(interval))
}

/// `42846`
pub fn cannot_cast(from: &Type, to: &Type) -> Error {
    Error::new(SqlState::CANNOT_COERCE, format!("cannot cast type {} to {}", from.name(), to.name()))
}
