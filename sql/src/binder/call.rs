//! Function calls: the ones with rules of their own, and where the others are found.

use datafusion::common::ScalarValue;
use datafusion::logical_expr::{Case, Expr, Operator, lit};
use datafusion::sql::sqlparser::ast::{self, Spanned};
use datafusion::sql::sqlparser::tokenizer::Span;
use weir_catalog::{Error, Result, SqlState, SqlType};

use super::expr::{binary_of, date_time, known};
use super::scope::{Scope, name_of};
use super::types::{Bound, Type, convert};
use super::{Session, positioned, signature};
use crate::functions::{Kernel, datetime};

impl Session<'_> {
    /// A function call as it is written.
    pub(super) fn function(&self, function: &ast::Function, scope: &Scope<'_>) -> Result<Bound> {
        let name = function_name(&function.name)?;
        if !matches!(function.parameters, ast::FunctionArguments::None) || function.uses_odbc_syntax {
            return Err(self.at(Error::unsupported(format!("this form of calling {name} is not supported")), function.span()));
        }
        if let Some(error) = super::unsupported::function(&name) {
            return Err(self.at(error, function.span()));
        }
        if super::aggregate::is_aggregate(&name) || function.over.is_some() {
            return self.aggregate_or_window(&name, function, scope);
        }
        if super::window::is_window_function(&name) {
            let error = Error::new(SqlState::WRONG_OBJECT_TYPE, format!("window function {name} requires an OVER clause"));
            return Err(self.at(error, function.span()));
        }
        if function.filter.is_some() || !function.within_group.is_empty() || function.null_treatment.is_some() {
            let error = Error::new(SqlState::WRONG_OBJECT_TYPE, format!("FILTER specified, but {name} is not an aggregate function"));
            return Err(self.at(error, function.span()));
        }
        let arguments = match &function.args {
            ast::FunctionArguments::None => Vec::new(),
            ast::FunctionArguments::Subquery(_) => {
                return Err(self.at(Error::unsupported("a subquery as argument needs its own parentheses"), function.span()));
            }
            ast::FunctionArguments::List(list) => {
                if list.duplicate_treatment.is_some() || !list.clauses.is_empty() {
                    let error =
                        Error::new(SqlState::WRONG_OBJECT_TYPE, format!("DISTINCT specified, but {name} is not an aggregate function"));
                    return Err(self.at(error, function.span()));
                }
                self.arguments(&list.args, scope)?
            }
        };
        let call = self.scalar_in(&name, arguments, scope);
        // What NULLIF compares with is its own affair.
        let call = match (call, self.position(function.span())) {
            (Err(error), Some(position)) if name == "nullif" && *error.code() == SqlState::UNDEFINED_FUNCTION => {
                Err(error.with_position(position))
            }
            (call, _) => call,
        };
        self.at_span(call, function.span())
    }

    /// Arguments by position.
    pub(super) fn arguments(&self, arguments: &[ast::FunctionArg], scope: &Scope<'_>) -> Result<Vec<Bound>> {
        arguments
            .iter()
            .map(|argument| match argument {
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => self.expr(expr, scope),
                other => Err(self.at(Error::unsupported(format!("the argument {other} is not supported")), other.span())),
            })
            .collect()
    }

    /// A call of the scalar function `name`.
    pub(super) fn named_call(&self, name: &str, arguments: Vec<Bound>, span: Span) -> Result<Bound> {
        self.at_span(self.scalar_in(name, arguments, &Scope::EMPTY), span)
    }

    fn scalar_in(&self, name: &str, mut arguments: Vec<Bound>, scope: &Scope<'_>) -> Result<Bound> {
        match (name, arguments.len()) {
            ("coalesce", 1..) => {
                let (mut values, ty) = self.unify(arguments, "COALESCE")?;
                let mut nulls: Vec<Expr> = Vec::new();
                for value in &mut values {
                    super::subquery::only_where(&mut value.expr, &nulls, scope)?;
                    nulls.push(Expr::IsNull(Box::new(value.expr.clone())));
                }
                let last = values.pop().map(|value| Box::new(value.expr));
                let expr = match (values.is_empty(), last) {
                    (true, Some(only)) => *only,
                    (_, last) => {
                        let arms = values
                            .into_iter()
                            .map(|value| (Box::new(Expr::IsNotNull(Box::new(value.expr.clone()))), Box::new(value.expr)))
                            .collect();
                        Expr::Case(Case::new(None, arms, last))
                    }
                };
                Ok(Bound { expr, ty, position: None })
            }
            // Of any type, as text.
            ("quote_literal", 1) if arguments[0].ty != Type::Unknown && arguments[0].ty != Type::Sql(SqlType::Text) => {
                let argument = self.explicit_cast(arguments.swap_remove(0), &SqlType::Text.into())?;
                self.scalar_in(name, vec![argument], scope)
            }
            ("nullif", 2) => {
                let (Some(right), Some(left)) = (arguments.pop(), arguments.pop()) else {
                    return Err(Error::internal("nullif without arguments"));
                };
                let left = if right.ty == Type::Unknown { known(left)? } else { left };
                let ty = if left.ty == Type::Unknown { right.ty.clone() } else { left.ty.clone() };
                let left = convert(left, &ty)?;
                let equal = self.compare(left.clone(), Operator::Eq, right)?;
                let null = convert(Bound::new(Expr::Literal(ScalarValue::Utf8(None), None), Type::Unknown), &ty)?;
                let case = Case::new(None, vec![(Box::new(equal.expr), Box::new(null.expr))], Some(Box::new(left.expr)));
                Ok(Bound { expr: Expr::Case(case), ty, position: None })
            }
            ("greatest" | "least", 1..) => {
                let (values, ty) = self.unify(arguments, &name.to_uppercase())?;
                if ty == Type::Interval || ty.is_nested() {
                    return Err(Error::unsupported(format!("{name} over type {} is not supported", ty.name())));
                }
                let operator = if name == "greatest" { Operator::GtEq } else { Operator::LtEq };
                // NULLs are left out: the next value replaces what is NULL or beaten.
                let expr = values
                    .into_iter()
                    .map(|value| value.expr)
                    .reduce(|best, next| {
                        let keep = Expr::IsNull(Box::new(next.clone())).or(binary_of(best.clone(), operator, next.clone()));
                        Expr::Case(Case::new(None, vec![(Box::new(keep), Box::new(best))], Some(Box::new(next))))
                    })
                    .ok_or_else(|| Error::internal("no arguments"))?;
                Ok(Bound { expr, ty, position: None })
            }
            ("now" | "current_timestamp" | "localtimestamp" | "transaction_timestamp" | "statement_timestamp", 0) => {
                match self.settings.now_us {
                    Some(now_us) => {
                        Ok(Bound::new(Expr::Literal(ScalarValue::TimestampMicrosecond(Some(now_us), None), None), SqlType::TIMESTAMP))
                    }
                    None => Err(Error::unsupported(format!("{name} is not supported in a continuous query"))
                        .with_hint("Its value would change after rows were computed with it. Store the time in a column instead.")),
                }
            }
            ("current_user" | "session_user" | "user", 0) => Ok(Bound::new(lit("weir"), SqlType::Text)),
            ("current_database" | "current_catalog", 0) => Ok(Bound::new(lit("weir"), SqlType::Text)),
            ("current_schema", 0) => Ok(Bound::new(lit("public"), SqlType::Text)),
            ("version", 0) => Ok(Bound::new(lit(concat!("PostgreSQL 15.0 (weir ", env!("CARGO_PKG_VERSION"), ")")), SqlType::Text)),
            ("pg_typeof", 1) => Ok(Bound::new(lit(type_name(&arguments[0].ty)), SqlType::Text)),
            ("extract" | "date_part", 2) => {
                let value = arguments.swap_remove(1);
                let field = constant_text(&arguments[0], name)?;
                self.extract(&field, value, name == "extract")
            }
            ("date_trunc", 2) => {
                let value = arguments.swap_remove(1);
                let written = constant_text(&arguments[0], name)?;
                let value = match value.ty {
                    Type::Sql(SqlType::Timestamp { .. }) => value,
                    Type::Unknown => convert(value, &SqlType::TIMESTAMP.into())?,
                    _ => return Err(signature::undefined(name, &[arguments.swap_remove(0), value])),
                };
                use datetime::Field as F;
                let field = datetime::Field::parse(&written).ok_or_else(|| unknown_unit(&written))?;
                if matches!(field, F::IsoYear | F::DayOfWeek | F::IsoDayOfWeek | F::DayOfYear | F::Epoch | F::Julian) {
                    return Err(Error::unsupported(format!(
                        "unit \"{}\" not supported for type timestamp without time zone",
                        written.to_lowercase()
                    )));
                }
                let ty = Type::Sql(SqlType::TIMESTAMP);
                Ok(Bound { expr: date_time(datetime::Operation::Truncate(field), ty.to_arrow(), vec![value.expr]), ty, position: None })
            }
            ("to_timestamp", 1) => {
                let value = convert_implicit(arguments.swap_remove(0), &SqlType::Double.into(), name)?;
                let ty = Type::Sql(SqlType::TIMESTAMP);
                Ok(Bound { expr: date_time(datetime::Operation::ToTimestamp, ty.to_arrow(), vec![value.expr]), ty, position: None })
            }
            ("row", _) => self.row(arguments),
            ("cardinality" | "array_length", _) => self.array_size(name, arguments),
            ("mod", 2) => {
                let (Some(right), Some(left)) = (arguments.pop(), arguments.pop()) else {
                    return Err(Error::internal("mod without arguments"));
                };
                self.binary(left, &ast::BinaryOperator::Modulo, right)
            }
            ("concat", _) => {
                let texts = arguments.into_iter().map(output_text).collect::<Result<Vec<_>>>()?;
                Ok(Bound::new(signature::datafusion_call("concat", texts, &SqlType::Text)?, SqlType::Text))
            }
            ("concat_ws", 2..) => {
                let separator = convert_implicit(arguments.remove(0), &SqlType::Text.into(), name)?;
                let texts = std::iter::once(Ok(separator)).chain(arguments.into_iter().map(output_text)).collect::<Result<Vec<_>>>()?;
                Ok(Bound::new(signature::datafusion_call("concat_ws", texts, &SqlType::Text)?, SqlType::Text))
            }
            _ => match super::unsupported::form(name, arguments.len()) {
                Some(error) => Err(error),
                None => signature::scalar_call(name, arguments.clone()).unwrap_or_else(|| Err(signature::undefined(name, &arguments))),
            },
        }
    }

    /// EXTRACT (a NUMERIC) or `date_part` (a DOUBLE).
    pub(super) fn extract(&self, written: &str, value: Bound, numeric: bool) -> Result<Bound> {
        let position = value.position;
        let field = datetime::Field::parse(written).ok_or_else(|| positioned(unknown_unit(written), position))?;
        let value = match value.ty {
            Type::Sql(SqlType::Timestamp { .. }) | Type::Interval => value,
            Type::Unknown => convert(value, &SqlType::TIMESTAMP.into())?,
            _ => {
                let unit = Bound::new(lit(0i32), SqlType::Text);
                return Err(positioned(signature::undefined("extract", &[unit, value]), position));
            }
        };
        let (operation, ty) = if numeric {
            let scale = field.scale();
            let precision = if scale > 6 { 38 } else { 20 + scale as u8 };
            (datetime::Operation::Extract(field), SqlType::Numeric { precision, scale })
        } else {
            (datetime::Operation::DatePart(field), SqlType::Double)
        };
        Ok(Bound { expr: date_time(operation, ty.to_arrow(), vec![value.expr]), ty: ty.into(), position })
    }
}

/// A function's name, without `pg_catalog`.
fn function_name(name: &ast::ObjectName) -> Result<String> {
    let idents: Vec<&ast::Ident> = name.0.iter().filter_map(|part| part.as_ident()).collect();
    match idents[..] {
        [name] => Ok(name_of(name)),
        [schema, name] if name_of(schema) == "pg_catalog" => Ok(name_of(name)),
        _ => Err(Error::new(SqlState::UNDEFINED_FUNCTION, format!("function {name} does not exist"))),
    }
}

fn constant_text(argument: &Bound, function: &str) -> Result<String> {
    match &argument.expr {
        Expr::Literal(ScalarValue::Utf8(Some(text)), _) => Ok(text.clone()),
        _ => Err(Error::unsupported(format!("{function} needs a constant unit"))),
    }
}

fn unknown_unit(written: &str) -> Error {
    Error::new(
        SqlState::INVALID_PARAMETER_VALUE,
        format!("unit \"{}\" not recognized for type timestamp without time zone", written.to_lowercase()),
    )
}

fn convert_implicit(argument: Bound, to: &Type, function: &str) -> Result<Bound> {
    if super::types::can_cast(&argument.ty, to, super::types::CastContext::Implicit) {
        convert(argument, to)
    } else {
        Err(signature::undefined(function, &[argument]))
    }
}

/// An argument of CONCAT: the text that PostgreSQL's output function gives.
fn output_text(argument: Bound) -> Result<Bound> {
    if argument.ty == Type::Sql(SqlType::Boolean) {
        let expr = crate::functions::call("output_text", Kernel::OutputText, arrow::datatypes::DataType::Utf8, vec![argument.expr]);
        return Ok(Bound::new(expr, SqlType::Text));
    }
    convert(argument, &SqlType::Text.into())
}

fn type_name(ty: &Type) -> String {
    ty.name()
}
