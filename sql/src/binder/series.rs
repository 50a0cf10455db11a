//! `generate_series(start, stop [, step])` in FROM, over constants.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, IntervalMonthDayNano, Schema, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::TableSource;
use datafusion::sql::sqlparser::ast::{self, Spanned};
use weir_catalog::{Column, Error, Result, SqlState, SqlType};

use super::Session;
use super::from::{FromItem, scan};
use super::query::constant;
use super::scope::{Clause, Scope, name_of};
use super::types::{Bound, Type, common_type, convert};
use crate::functions::datetime::add_interval;

const NAME: &str = "generate_series";
const DAY_US: i128 = 86_400_000_000;

/// From one value of a series to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Number(i64),
    Interval(IntervalMonthDayNano),
}

/// The values of a series, INTs, BIGINTs or microseconds, in order.
#[derive(Clone, Debug)]
pub struct Series {
    next: Option<i64>,
    stop: i64,
    step: Step,
    ascends: bool,
}

impl Iterator for Series {
    type Item = i64;

    fn next(&mut self) -> Option<i64> {
        let value = self.next.filter(|value| if self.ascends { *value <= self.stop } else { *value >= self.stop })?;
        self.next = match self.step {
            Step::Number(step) => value.checked_add(step),
            Step::Interval(step) => add_interval(value, step, 1),
        };
        Some(value)
    }
}

/// The table source of a series.
#[derive(Debug)]
pub struct SeriesSource {
    pub series: Series,
    schema: SchemaRef,
}

impl TableSource for SeriesSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

/// A call as it is written.
pub(super) struct SeriesCall<'a> {
    arguments: Vec<&'a ast::Expr>,
    alias: Option<&'a ast::TableAlias>,
    factor: &'a ast::TableFactor,
}

impl<'a> SeriesCall<'a> {
    /// The call that a FROM item is, with or without LATERAL, which says nothing over constants; `None` for any other.
    pub(super) fn new(factor: &'a ast::TableFactor) -> Option<SeriesCall<'a>> {
        let (name, arguments, alias) = match factor {
            ast::TableFactor::Table { name, alias, args: Some(arguments), with_ordinality: false, .. } if arguments.settings.is_none() => {
                (name, &arguments.args, alias)
            }
            ast::TableFactor::Function { lateral: _, name, args, with_ordinality: false, alias } => (name, args, alias),
            _ => return None,
        };
        let is_series = matches!(name.0.as_slice(), [part] if part.as_ident().map(name_of).as_deref() == Some(NAME));
        let arguments = arguments.iter().map(|argument| match argument {
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => Some(expr),
            _ => None,
        });
        is_series.then(|| arguments.collect()).flatten().map(|arguments| SeriesCall { arguments, alias: alias.as_ref(), factor })
    }
}

impl Session<'_> {
    pub(super) fn series(&self, call: &SeriesCall<'_>, scope: &Scope<'_>) -> Result<FromItem> {
        let span = call.factor.span();
        let inside = Scope { columns: &[], outer: scope.outer, common_tables: scope.common_tables, clause: Clause::JoinOn };
        let lateral = || {
            self.at(
                Error::unsupported(format!("{NAME} over columns or parameters is not supported"))
                    .with_hint("Write constants, or a series that is long enough, with a condition on its values."),
                span,
            )
        };
        let arguments = call.arguments.iter().map(|argument| match self.expr(argument, &inside) {
            Err(error) if [SqlState::UNDEFINED_COLUMN, SqlState::UNDEFINED_TABLE].contains(error.code()) => Err(lateral()),
            bound => bound,
        });
        let arguments = arguments.collect::<Result<Vec<_>>>()?;
        let names = arguments.iter().map(|argument| argument.ty.name()).collect::<Vec<_>>().join(", ");
        let unknown = || {
            let error = Error::new(SqlState::UNDEFINED_FUNCTION, format!("function {NAME}({names}) does not exist"));
            self.at(
                error.with_hint("No function matches the given name and argument types. You might need to add explicit type casts."),
                span,
            )
        };
        let is_timestamp = |bound: &Bound| matches!(bound.ty, Type::Sql(SqlType::Timestamp { .. }) | Type::Unknown);
        let (ty, step_type) = match arguments.as_slice() {
            [start, stop, step] if step.ty == Type::Interval && is_timestamp(start) && is_timestamp(stop) => {
                (SqlType::TIMESTAMP, Type::Interval)
            }
            [start, stop] | [start, stop, _] => {
                let mut ty = common_type(&start.ty, &stop.ty).ok_or_else(unknown)?;
                if let Some(step) = arguments.get(2) {
                    ty = common_type(&ty, &step.ty).ok_or_else(unknown)?;
                }
                match ty {
                    Type::Sql(ty @ (SqlType::Int | SqlType::BigInt)) => (ty.clone(), ty.into()),
                    Type::Sql(SqlType::Numeric { .. }) => {
                        return Err(self.at(Error::unsupported(format!("{NAME} over numeric is not supported")), span));
                    }
                    Type::Unknown => {
                        let code = SqlState::parse("42725").unwrap_or(SqlState::UNDEFINED_FUNCTION);
                        return Err(self.at(Error::new(code, format!("function {NAME}({names}) is not unique")), span));
                    }
                    _ => return Err(unknown()),
                }
            }
            _ => return Err(unknown()),
        };
        let mut values = Vec::with_capacity(3);
        for (at, argument) in arguments.into_iter().enumerate() {
            let to = if at == 2 { step_type.clone() } else { ty.clone().into() };
            let bound = convert(argument, &to)?;
            values.push(match &bound.expr {
                datafusion::logical_expr::Expr::Literal(value, _) => value.clone(),
                expr => self.at_span(constant(expr), span)?.ok_or_else(lateral)?,
            });
        }
        let number = |value: &ScalarValue| match value {
            ScalarValue::Int32(value) => value.map(i64::from),
            ScalarValue::Int64(value) | ScalarValue::TimestampMicrosecond(value, _) => *value,
            _ => None,
        };
        let step = match values.get(2) {
            None => Some(Step::Number(1)),
            Some(ScalarValue::IntervalMonthDayNano(step)) => step.map(Step::Interval),
            Some(step) => number(step).map(Step::Number),
        };
        // A NULL anywhere leaves nothing.
        let (next, stop, step) = match (number(&values[0]), number(&values[1]), step) {
            (Some(start), Some(stop), Some(step)) => (Some(start), stop, step),
            _ => (None, 0, Step::Number(1)),
        };
        let size = match step {
            Step::Number(step) => i128::from(step),
            Step::Interval(step) => (i128::from(step.months) * 30 + i128::from(step.days)) * DAY_US + i128::from(step.nanoseconds) / 1000,
        };
        if size == 0 {
            return Err(self.at(Error::new(SqlState::INVALID_PARAMETER_VALUE, "step size cannot equal zero"), span));
        }
        let series = Series { next, stop, step, ascends: size > 0 };
        let field = Field::new(NAME, ty.to_arrow(), false);
        let source = Arc::new(SeriesSource { series, schema: Arc::new(Schema::new(vec![field])) });
        let mut relation = scan(NAME, vec![Column { name: NAME.to_string(), ty, nullable: false, default: None }], source)?;
        // PostgreSQL calls the column of a function as the table.
        if let Some(alias) = call.alias {
            relation.columns[0].name = name_of(&alias.name);
        }
        self.aliased(relation, call.alias, Some(NAME))
    }
}

/// The type of the values, as they are kept.
pub fn series_values(values: Vec<i64>, data_type: &DataType) -> Result<arrow::array::ArrayRef> {
    use arrow::array::{Int32Array, Int64Array, TimestampMicrosecondArray};
    Ok(match data_type {
        DataType::Int32 => Arc::new(values.into_iter().map(|value| i32::try_from(value).ok()).collect::<Int32Array>()),
        DataType::Int64 => Arc::new(Int64Array::from(values)),
        DataType::Timestamp(..) => Arc::new(TimestampMicrosecondArray::from(values)),
        other => return Err(Error::internal(format!("a series of type {other}"))),
    })
}
