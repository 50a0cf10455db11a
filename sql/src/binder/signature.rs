//! The scalar functions that queries can call: their names, argument types and results, and how an overload is chosen.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::expr::Cast;
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
use datafusion::logical_expr::{Expr, ReturnFieldArgs, ScalarUDF};
use weir_catalog::{Error, Result, SqlState, SqlType};

use super::expr::date_time;
use super::types::{Bound, CastContext, Type, can_cast, convert};
use crate::functions::datetime::Field;
use crate::functions::{Kernel, date_format, datetime, math, posix, regexp, string};

pub(super) use crate::parser::sql_type;

/// The type of a parameter of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parameter {
    Int,
    BigInt,
    Numeric,
    Double,
    Text,
    Timestamp,
}

impl Parameter {
    fn accepts(self, ty: &Type) -> bool {
        can_cast(ty, &self.target(ty), CastContext::Implicit)
    }

    /// The type that an argument of type `ty` is converted to: a NUMERIC keeps its digits, and a TIMESTAMP its precision.
    fn target(self, ty: &Type) -> Type {
        match self {
            Parameter::Int => SqlType::Int.into(),
            Parameter::BigInt => SqlType::BigInt.into(),
            Parameter::Numeric => match super::types::numeric_shape(ty) {
                Some((precision, scale)) => SqlType::Numeric { precision, scale }.into(),
                None => SqlType::NUMERIC.into(),
            },
            Parameter::Double => SqlType::Double.into(),
            Parameter::Text => SqlType::Text.into(),
            Parameter::Timestamp => match ty {
                Type::Sql(SqlType::Timestamp { .. }) => ty.clone(),
                _ => SqlType::TIMESTAMP.into(),
            },
        }
    }

    fn is_exactly(self, ty: &Type) -> bool {
        self.target(ty).same_base(ty)
    }

    /// PostgreSQL's preferred types, taken where an argument does not decide.
    fn is_preferred(self) -> bool {
        matches!(self, Parameter::Double | Parameter::Text)
    }
}

/// What computes a function.
#[derive(Clone, Copy, Debug)]
enum Body {
    /// DataFusion's function of this name, which takes BIGINT for every INT parameter.
    DataFusion(&'static str),
    Math(math::Operation),
    String(string::Operation),
    /// A field of a timestamp.
    Part(Field),
    DateFormat,
    RegexpExtract,
    /// A function of PostgreSQL's regular expressions.
    Posix(posix::Operation),
}

/// The result of a function.
#[derive(Clone, Copy, Debug)]
enum Output {
    Int,
    BigInt,
    Boolean,
    Double,
    Text,
    Texts,
    /// The type of the first argument.
    Argument,
    /// A NUMERIC with the first argument's integer digits and no fraction, or as many digits as a constant second argument says.
    Rounded,
}

/// One overload.
struct Signature {
    name: &'static str,
    parameters: &'static [Parameter],
    output: Output,
    body: Body,
}

use Body::{DataFusion as Df, Math as M, Posix as P, String as S};
use Parameter::{BigInt as L, Double as D, Int as I, Numeric as N, Text as T, Timestamp as Ts};

macro_rules! signatures {
    ($($name:literal ($($parameter:ident),*) -> $output:ident = $body:expr;)*) => {
        &[$(Signature { name: $name, parameters: &[$($parameter),*], output: Output::$output, body: $body }),*]
    };
}

static SIGNATURES: &[Signature] = signatures! {
    "abs"(I) -> Argument = M(math::Operation::Abs);
    "abs"(L) -> Argument = M(math::Operation::Abs);
    "abs"(N) -> Argument = M(math::Operation::Abs);
    "abs"(D) -> Argument = M(math::Operation::Abs);
    "round"(D) -> Double = M(math::Operation::Round);
    "round"(N) -> Rounded = M(math::Operation::Round);
    "round"(N, I) -> Rounded = M(math::Operation::Round);
    "trunc"(D) -> Double = M(math::Operation::Truncate);
    "trunc"(N) -> Rounded = M(math::Operation::Truncate);
    "trunc"(N, I) -> Rounded = M(math::Operation::Truncate);
    "ceil"(D) -> Double = M(math::Operation::Ceil);
    "ceil"(N) -> Rounded = M(math::Operation::Ceil);
    "ceiling"(D) -> Double = M(math::Operation::Ceil);
    "ceiling"(N) -> Rounded = M(math::Operation::Ceil);
    "floor"(D) -> Double = M(math::Operation::Floor);
    "floor"(N) -> Rounded = M(math::Operation::Floor);
    "sign"(D) -> Double = M(math::Operation::Sign);
    "sign"(N) -> Rounded = M(math::Operation::Sign);
    "sqrt"(D) -> Double = M(math::Operation::SquareRoot);
    "exp"(D) -> Double = M(math::Operation::Exp);
    "ln"(D) -> Double = M(math::Operation::Ln);
    "log"(D) -> Double = M(math::Operation::Log10);
    "log10"(D) -> Double = M(math::Operation::Log10);
    "power"(D, D) -> Double = M(math::Operation::Power);
    "pow"(D, D) -> Double = M(math::Operation::Power);
    "pi"() -> Double = Df("pi");
    "sin"(D) -> Double = Df("sin");
    "cos"(D) -> Double = Df("cos");
    "tan"(D) -> Double = Df("tan");
    "asin"(D) -> Double = Df("asin");
    "acos"(D) -> Double = Df("acos");
    "atan"(D) -> Double = Df("atan");
    "atan2"(D, D) -> Double = Df("atan2");
    "cbrt"(D) -> Double = Df("cbrt");
    "degrees"(D) -> Double = Df("degrees");
    "radians"(D) -> Double = Df("radians");
    "random"() -> Double = Df("random");
    "upper"(T) -> Text = Df("upper");
    "lower"(T) -> Text = Df("lower");
    "initcap"(T) -> Text = Df("initcap");
    "length"(T) -> Int = Df("character_length");
    "char_length"(T) -> Int = Df("character_length");
    "character_length"(T) -> Int = Df("character_length");
    "octet_length"(T) -> Int = Df("octet_length");
    "bit_length"(T) -> Int = Df("bit_length");
    "substring"(T, T) -> Text = P(posix::Operation::Substring);
    "substring"(T, I) -> Text = S(string::Operation::Substring);
    "substring"(T, I, I) -> Text = S(string::Operation::Substring);
    "substr"(T, I) -> Text = S(string::Operation::Substring);
    "substr"(T, I, I) -> Text = S(string::Operation::Substring);
    "split_part"(T, T, I) -> Text = S(string::Operation::SplitPart);
    "repeat"(T, I) -> Text = S(string::Operation::Repeat);
    "btrim"(T) -> Text = Df("btrim");
    "btrim"(T, T) -> Text = Df("btrim");
    "ltrim"(T) -> Text = Df("ltrim");
    "ltrim"(T, T) -> Text = Df("ltrim");
    "rtrim"(T) -> Text = Df("rtrim");
    "rtrim"(T, T) -> Text = Df("rtrim");
    "strpos"(T, T) -> Int = Df("strpos");
    "position"(T, T) -> Int = Df("strpos");
    "replace"(T, T, T) -> Text = Df("replace");
    "translate"(T, T, T) -> Text = Df("translate");
    "left"(T, I) -> Text = Df("left");
    "right"(T, I) -> Text = Df("right");
    "lpad"(T, I) -> Text = S(string::Operation::PadLeft);
    "lpad"(T, I, T) -> Text = S(string::Operation::PadLeft);
    "rpad"(T, I) -> Text = S(string::Operation::PadRight);
    "rpad"(T, I, T) -> Text = S(string::Operation::PadRight);
    "reverse"(T) -> Text = Df("reverse");
    "starts_with"(T, T) -> Boolean = Df("starts_with");
    "ascii"(T) -> Int = Df("ascii");
    "chr"(I) -> Text = S(string::Operation::Chr);
    "md5"(T) -> Text = Df("md5");
    "quote_literal"(T) -> Text = S(string::Operation::QuoteLiteral);
    "quote_ident"(T) -> Text = S(string::Operation::QuoteIdent);
    "to_hex"(I) -> Text = S(string::Operation::ToHex);
    "to_hex"(L) -> Text = S(string::Operation::ToHex);
    "overlay"(T, T, I) -> Text = Df("overlay");
    "overlay"(T, T, I, I) -> Text = Df("overlay");
    "regexp_replace"(T, T, T) -> Text = P(posix::Operation::Replace);
    "regexp_replace"(T, T, T, T) -> Text = P(posix::Operation::Replace);
    "regexp_like"(T, T) -> Boolean = P(posix::Operation::Like);
    "regexp_like"(T, T, T) -> Boolean = P(posix::Operation::Like);
    "regexp_count"(T, T) -> Int = P(posix::Operation::Count);
    "regexp_instr"(T, T) -> Int = P(posix::Operation::Position);
    "regexp_match"(T, T) -> Texts = P(posix::Operation::Groups);
    "regexp_match"(T, T, T) -> Texts = P(posix::Operation::Groups);
    "regexp_substr"(T, T) -> Text = P(posix::Operation::Part);
    "regexp_substr"(T, T, I) -> Text = P(posix::Operation::Part);
    "regexp_substr"(T, T, I, I) -> Text = P(posix::Operation::Part);
    "regexp_substr"(T, T, I, I, T) -> Text = P(posix::Operation::Part);
    "regexp_substr"(T, T, I, I, T, I) -> Text = P(posix::Operation::Part);
    // Flink's.
    "year"(Ts) -> BigInt = Body::Part(Field::Year);
    "quarter"(Ts) -> BigInt = Body::Part(Field::Quarter);
    "month"(Ts) -> BigInt = Body::Part(Field::Month);
    "week"(Ts) -> BigInt = Body::Part(Field::Week);
    "dayofyear"(Ts) -> BigInt = Body::Part(Field::DayOfYear);
    "dayofmonth"(Ts) -> BigInt = Body::Part(Field::Day);
    "dayofweek"(Ts) -> BigInt = Body::Part(Field::DayOfWeek);
    "hour"(Ts) -> BigInt = Body::Part(Field::Hour);
    "minute"(Ts) -> BigInt = Body::Part(Field::Minute);
    "second"(Ts) -> BigInt = Body::Part(Field::Second);
    "date_format"(Ts, T) -> Text = Body::DateFormat;
    "split_index"(T, T, I) -> Text = S(string::Operation::SplitIndex);
    "regexp_extract"(T, T) -> Text = Body::RegexpExtract;
    "regexp_extract"(T, T, I) -> Text = Body::RegexpExtract;
};

/// DataFusion's scalar functions by name.
static DATAFUSION: LazyLock<HashMap<String, Arc<ScalarUDF>>> = LazyLock::new(|| {
    datafusion::functions::all_default_functions().into_iter().map(|function| (function.name().to_string(), function)).collect()
});

/// A call of a scalar function; `None` if there is no function of that name. Errors with `42883` if none of that name takes these arguments.
pub(super) fn scalar_call(name: &str, arguments: Vec<Bound>) -> Option<Result<Bound>> {
    let named = || SIGNATURES.iter().filter(|signature| signature.name == name);
    named().next()?;
    let candidates = named().filter(|signature| {
        signature.parameters.len() == arguments.len()
            && signature.parameters.iter().zip(&arguments).all(|(parameter, argument)| parameter.accepts(&argument.ty))
    });
    // As PostgreSQL chooses: most exact matches, then most preferred types; the first of equals.
    let score = |signature: &Signature| {
        let pairs = || signature.parameters.iter().zip(&arguments);
        let exact = pairs().filter(|(parameter, argument)| parameter.is_exactly(&argument.ty)).count();
        let preferred = pairs().filter(|(parameter, argument)| parameter.is_exactly(&argument.ty) || parameter.is_preferred()).count();
        (exact, preferred)
    };
    let mut best: Option<(&Signature, (usize, usize))> = None;
    for candidate in candidates {
        let score = score(candidate);
        if best.is_none_or(|(_, best)| score > best) {
            best = Some((candidate, score));
        }
    }
    Some(match best {
        Some((signature, _)) => make_call(signature, arguments),
        None => Err(undefined(name, &arguments)),
    })
}

/// `42883` for a function.
pub(super) fn undefined(name: &str, arguments: &[Bound]) -> Error {
    let types = arguments.iter().map(|argument| argument.ty.name()).collect::<Vec<_>>().join(", ");
    Error::new(SqlState::UNDEFINED_FUNCTION, format!("function {name}({types}) does not exist"))
        .with_hint("No function matches the given name and argument types. You might need to add explicit type casts.")
}

fn make_call(signature: &Signature, arguments: Vec<Bound>) -> Result<Bound> {
    let mut converted = Vec::with_capacity(arguments.len());
    for (parameter, argument) in signature.parameters.iter().zip(arguments) {
        let target = parameter.target(&argument.ty);
        converted.push(convert(argument, &target)?);
    }
    let ty = match signature.output {
        Output::Int => SqlType::Int,
        Output::BigInt => SqlType::BigInt,
        Output::Boolean => SqlType::Boolean,
        Output::Double => SqlType::Double,
        Output::Text => SqlType::Text,
        Output::Texts => SqlType::Array(Box::new(SqlType::Text)),
        Output::Argument => match &converted[0].ty {
            Type::Sql(ty) => ty.clone(),
            other => return Err(Error::internal(format!("a function of type {}", other.name()))),
        },
        Output::Rounded => rounded_type(&converted),
    };
    let expr = match signature.body {
        Body::DataFusion(name) => datafusion_call(name, converted, &ty)?,
        Body::Math(operation) => crate::functions::call(operation.name(), Kernel::Math(operation), ty.to_arrow(), exprs(converted)),
        Body::String(operation) => crate::functions::call(operation.name(), Kernel::String(operation), DataType::Utf8, exprs(converted)),
        Body::Part(field) => date_time(datetime::Operation::Part(field), ty.to_arrow(), exprs(converted)),
        Body::DateFormat => {
            let pattern = constant_pattern(&converted[1], date_format::Pattern::parse)?;
            crate::functions::call("date_format", Kernel::DateFormat(pattern), DataType::Utf8, exprs(converted))
        }
        Body::RegexpExtract => {
            let pattern = constant_pattern(&converted[1], regexp::Pattern::compile)?;
            crate::functions::call("regexp_extract", Kernel::RegexpExtract(pattern), DataType::Utf8, exprs(converted))
        }
        Body::Posix(operation) => regex_call(operation, exprs(converted))?,
    };
    Ok(Bound::new(expr, ty))
}

/// A call of `operation`, whose pattern is read here where it and its flags are constant.
pub(super) fn regex_call(operation: posix::Operation, arguments: Vec<Expr>) -> Result<Expr> {
    let constant = |argument: Option<&Expr>| match argument {
        None => Some(String::new()),
        Some(Expr::Literal(ScalarValue::Utf8(Some(text)), _)) => Some(text.clone()),
        Some(_) => None,
    };
    let flags = operation.flags_argument().and_then(|flags| arguments.get(flags));
    let pattern = match (constant(arguments.get(1)), constant(flags)) {
        (Some(pattern), Some(flags)) => Some(Arc::new(posix::Pattern::compile(&pattern, operation, &flags)?)),
        _ => None,
    };
    Ok(crate::functions::call(operation.name(), Kernel::Posix(operation, pattern), operation.result(), arguments))
}

/// The pattern that a constant argument holds, read once for all rows.
fn constant_pattern<P>(argument: &Bound, read: fn(&str) -> Result<P>) -> Result<Option<Arc<P>>> {
    match &argument.expr {
        Expr::Literal(ScalarValue::Utf8(Some(text)), _) => read(text).map(|pattern| Some(Arc::new(pattern))),
        _ => Ok(None),
    }
}

fn exprs(arguments: Vec<Bound>) -> Vec<Expr> {
    arguments.into_iter().map(|argument| argument.expr).collect()
}

fn rounded_type(arguments: &[Bound]) -> SqlType {
    let (precision, scale) = super::types::numeric_shape(&arguments[0].ty).unwrap_or((38, 10));
    let digits = match arguments.get(1).map(|digits| &digits.expr) {
        None => 0,
        Some(Expr::Literal(ScalarValue::Int32(Some(digits)), _)) => (*digits).clamp(0, 37) as i8,
        Some(_) => scale,
    };
    // Rounding can carry into one more digit.
    let integer_digits = precision as i8 - scale + 1;
    SqlType::Numeric { precision: (integer_digits + digits).clamp(1, 38) as u8, scale: digits }
}

/// A call of DataFusion's function `name` whose result is made `ty`.
pub(super) fn datafusion_call(name: &str, arguments: Vec<Bound>, ty: &SqlType) -> Result<Expr> {
    let function = DATAFUSION.get(name).ok_or_else(|| Error::internal(format!("DataFusion has no function {name}")))?;
    let mut exprs = Vec::with_capacity(arguments.len());
    let mut fields = Vec::with_capacity(arguments.len());
    for argument in arguments {
        let argument = if argument.ty == Type::Sql(SqlType::Int) { convert(argument, &SqlType::BigInt.into())? } else { argument };
        fields.push(Arc::new(arrow::datatypes::Field::new("", argument.ty.to_arrow(), true)));
        exprs.push(argument.expr);
    }
    // What DataFusion's analysis would do, done here, so that the result's type is known.
    let coerced = fields_with_udf(&fields, function.as_ref()).map_err(super::bind_error)?;
    for ((expr, field), coerced) in exprs.iter_mut().zip(&fields).zip(&coerced) {
        if field.data_type() != coerced.data_type() {
            *expr = Expr::Cast(Cast::new(Box::new(std::mem::take(expr)), coerced.data_type().clone()));
        }
    }
    let constants: Vec<Option<&ScalarValue>> = exprs
        .iter()
        .map(|expr| match expr {
            Expr::Literal(value, _) => Some(value),
            _ => None,
        })
        .collect();
    let result = function
        .return_field_from_args(ReturnFieldArgs { arg_fields: &coerced, scalar_arguments: &constants })
        .map_err(super::bind_error)?;
    let call = function.call(exprs);
    Ok(if *result.data_type() == ty.to_arrow() { call } else { Expr::Cast(Cast::new(Box::new(call), ty.to_arrow())) })
}
