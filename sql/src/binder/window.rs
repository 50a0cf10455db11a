//! Window functions, for batch queries. Continuous queries refuse them.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::DataType;
use datafusion::logical_expr::expr::{Cast, WindowFunction};
use datafusion::logical_expr::{AggregateUDF, Expr, SortExpr as Sort, WindowFrame, WindowFunctionDefinition, WindowUDF};
use datafusion::sql::sqlparser::ast;
use weir_catalog::{Error, Result, SqlState, SqlType};

use super::aggregate::{MakeCall, is_aggregate};
use super::expr::{known, one_zero};
use super::scope::{Clause, Scope};
use super::types::{Bound, Type, convert};
use super::{Session, bind_error, signature};

static FUNCTIONS: LazyLock<Vec<Arc<WindowUDF>>> = LazyLock::new(datafusion::functions_window::all_default_window_functions);

/// Whether a function of this name needs OVER.
pub(super) fn is_window_function(name: &str) -> bool {
    matches!(
        name,
        "row_number"
            | "rank"
            | "dense_rank"
            | "percent_rank"
            | "cume_dist"
            | "ntile"
            | "lag"
            | "lead"
            | "first_value"
            | "last_value"
            | "nth_value"
    )
}

/// The definition behind OVER.
struct Window {
    partition_by: Vec<Expr>,
    order_by: Vec<Sort>,
    frame: WindowFrame,
}

impl Window {
    fn call(&self, function: WindowFunctionDefinition, arguments: Vec<Expr>, distinct: bool, filter: Option<Expr>) -> Expr {
        let mut call = WindowFunction::new(function, arguments);
        call.params.partition_by = self.partition_by.clone();
        call.params.order_by = self.order_by.clone();
        call.params.window_frame = self.frame.clone();
        call.params.distinct = distinct;
        call.params.filter = filter.map(Box::new);
        Expr::WindowFunction(Box::new(call))
    }
}

impl MakeCall for Window {
    fn make(&self, function: Arc<AggregateUDF>, arguments: Vec<Expr>, distinct: bool, filter: Option<Expr>, _order_by: Vec<Sort>) -> Expr {
        self.call(WindowFunctionDefinition::AggregateUDF(function), arguments, distinct, filter)
    }
}

impl Session<'_> {
    /// A function with OVER.
    pub(super) fn window_call(&self, name: &str, function: &ast::Function, scope: &Scope<'_>) -> Result<Bound> {
        let inside = scope.in_clause(Clause::Window);
        let window = match &function.over {
            Some(ast::WindowType::WindowSpec(definition)) => self.window(definition, &inside)?,
            _ => return Err(Error::unsupported("named windows are not supported")),
        };
        if function.null_treatment.is_some() || !function.within_group.is_empty() {
            return Err(Error::unsupported("IGNORE NULLS and WITHIN GROUP are not supported"));
        }
        if is_aggregate(name) {
            return self.aggregate_call(name, function, &inside, &window);
        }
        let found = FUNCTIONS.iter().find(|candidate| candidate.name() == name).filter(|_| is_window_function(name));
        let list = match &function.args {
            ast::FunctionArguments::List(list) if list.duplicate_treatment.is_none() && list.clauses.is_empty() => list,
            _ => return Err(signature::undefined(name, &[])),
        };
        let mut arguments = self.arguments(&list.args, &inside)?;
        let Some(found) = found else {
            return Err(match signature::scalar_call(name, arguments.clone()) {
                Some(_) => Error::new(
                    SqlState::WRONG_OBJECT_TYPE,
                    format!("OVER specified, but {name} is not a window function nor an aggregate function"),
                ),
                None => signature::undefined(name, &arguments),
            });
        };
        if function.filter.is_some() {
            return Err(Error::unsupported(format!("FILTER is not implemented for non-aggregate window function {name}")));
        }
        let bigint = Type::Sql(SqlType::BigInt);
        // What the function gives, and what we make of it.
        let (given, ty) = match (name, arguments.len()) {
            ("row_number" | "rank" | "dense_rank", 0) | ("ntile", 1) => (DataType::UInt64, bigint.clone()),
            ("percent_rank" | "cume_dist", 0) => (DataType::Float64, Type::Sql(SqlType::Double)),
            ("lag" | "lead", 1..=3) | ("first_value" | "last_value", 1) | ("nth_value", 2) => {
                arguments[0] = known(arguments[0].clone())?;
                let ty = arguments[0].ty.clone();
                (ty.to_arrow(), ty)
            }
            _ => return Err(signature::undefined(name, &arguments)),
        };
        let first_is_number = name == "ntile";
        for (i, argument) in arguments.iter_mut().enumerate() {
            let target = match i {
                0 if first_is_number => &bigint,
                0 => continue,
                1 => &bigint,
                _ => &ty,
            };
            *argument = convert(argument.clone(), target)?;
        }
        let exprs = arguments.into_iter().map(|argument| argument.expr).collect();
        let call = window.call(WindowFunctionDefinition::WindowUDF(Arc::clone(found)), exprs, false, None);
        let expr = if given == ty.to_arrow() { call } else { Expr::Cast(Cast::new(Box::new(call), ty.to_arrow())) };
        Ok(Bound { expr, ty, position: None })
    }

    fn window(&self, definition: &ast::WindowSpec, scope: &Scope<'_>) -> Result<Window> {
        if definition.window_name.is_some() {
            return Err(Error::unsupported("named windows are not supported"));
        }
        let partition_by =
            definition.partition_by.iter().map(|key| Ok(one_zero(known(self.expr(key, scope)?)?).expr)).collect::<Result<Vec<_>>>()?;
        let mut order_by = self.sort_keys(&definition.order_by, scope)?;
        let frame = match &definition.window_frame {
            Some(frame) => {
                let frame: WindowFrame = frame.clone().try_into().map_err(|error| {
                    let code = SqlState::parse("42P20").unwrap_or(SqlState::SYNTAX_ERROR);
                    Error::new(code, bind_error(error).message().to_string())
                })?;
                frame.regularize_order_bys(&mut order_by).map_err(bind_error)?;
                frame
            }
            None => WindowFrame::new((!order_by.is_empty()).then_some(false)),
        };
        Ok(Window { partition_by, order_by, frame })
    }

    /// Sort keys: NULLs are larger than everything else.
    pub(super) fn sort_keys(&self, keys: &[ast::OrderByExpr], scope: &Scope<'_>) -> Result<Vec<Sort>> {
        keys.iter()
            .map(|key| {
                if key.with_fill.is_some() {
                    return Err(Error::unsupported("WITH FILL is not supported"));
                }
                let bound = known(self.expr(&key.expr, scope)?)?;
                Ok(sort_key(bound, &key.options))
            })
            .collect()
    }
}

/// A sort key with PostgreSQL's defaults.
pub(super) fn sort_key(bound: Bound, options: &ast::OrderByOptions) -> Sort {
    let ascending = options.asc.unwrap_or(true);
    let bound = one_zero(bound);
    Sort::new(bound.expr, ascending, options.nulls_first.unwrap_or(!ascending))
}
