//! Aggregate functions. AVG, BOOL_AND and BOOL_OR are computed from SUM and COUNT, so that these and MIN and MAX are all that the engine must know.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field};
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::TreeNode;
use datafusion::functions_aggregate::{count::count_udaf, min_max};
use datafusion::logical_expr::expr::{AggregateFunction, Cast};
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
use datafusion::logical_expr::{AggregateUDF, Case, Expr, Operator, SortExpr as Sort, lit};
use datafusion::sql::sqlparser::ast::{self, Spanned};
use weir_catalog::{Error, Result, SqlState, SqlType};

use super::expr::{arithmetic_call, binary_of, known, one_zero};
use super::guard::all_of;
use super::scope::{Clause, Scope};
use super::types::{Bound, Type, convert};
use super::{Session, bind_error, positioned, signature};
use crate::functions::{aggregate, arithmetic, extremes};

/// DataFusion's other aggregates, which batch queries can use.
static OTHERS: LazyLock<Vec<Arc<AggregateUDF>>> = LazyLock::new(datafusion::functions_aggregate::all_default_aggregate_functions);

/// Names of [`OTHERS`] that PostgreSQL knows too.
const OTHER_NAMES: [&str; 17] = [
    "string_agg",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "variance",
    "var_pop",
    "var_samp",
    "corr",
    "covar_pop",
    "covar_samp",
    "bit_and",
    "bit_or",
    "bit_xor",
    "regr_slope",
    "regr_intercept",
    "regr_count",
    "regr_r2",
];

/// Whether a function of this name is an aggregate.
pub(super) fn is_aggregate(name: &str) -> bool {
    matches!(name, "count" | "sum" | "avg" | "min" | "max" | "bool_and" | "bool_or" | "every") || OTHER_NAMES.contains(&name)
}

/// How the calls of one aggregate are made: as plain aggregates, or over a window.
pub(super) trait MakeCall {
    fn make(&self, function: Arc<AggregateUDF>, arguments: Vec<Expr>, distinct: bool, filter: Option<Expr>, order_by: Vec<Sort>) -> Expr;
}

/// Aggregates of GROUP BY.
struct Plain;

impl MakeCall for Plain {
    fn make(&self, function: Arc<AggregateUDF>, arguments: Vec<Expr>, distinct: bool, filter: Option<Expr>, order_by: Vec<Sort>) -> Expr {
        Expr::AggregateFunction(AggregateFunction::new_udf(function, arguments, distinct, filter.map(Box::new), order_by, None))
    }
}

impl Session<'_> {
    /// An aggregate, or a function with OVER.
    pub(super) fn aggregate_or_window(&self, name: &str, function: &ast::Function, scope: &Scope<'_>) -> Result<Bound> {
        let span = function.span();
        if function.over.is_some() {
            if !scope.clause.allows_windows() {
                let code = SqlState::parse("42P20").unwrap_or(SqlState::SYNTAX_ERROR);
                return Err(self.at(Error::new(code, format!("window functions are not allowed in {}", scope.clause.name())), span));
            }
            return self.at_span(self.window_call(name, function, scope), span);
        }
        match scope.clause {
            Clause::AggregateArgument => {
                return Err(self.at(Error::new(SqlState::GROUPING_ERROR, "aggregate function calls cannot be nested"), span));
            }
            clause if !clause.allows_aggregates() => {
                let message = format!("aggregate functions are not allowed in {}", clause.name());
                return Err(self.at(Error::new(SqlState::GROUPING_ERROR, message), span));
            }
            _ => {}
        }
        if !function.within_group.is_empty() || function.null_treatment.is_some() {
            return Err(self.at(Error::unsupported("WITHIN GROUP and NULLS clauses are not supported"), span));
        }
        self.at_span(self.own_aggregate(name, function, scope), span)
    }

    /// An aggregate of the query that it stands in. One over columns of a query around it alone would be that query's, and is refused.
    fn own_aggregate(&self, name: &str, function: &ast::Function, scope: &Scope<'_>) -> Result<Bound> {
        let bound = self.aggregate_call(name, function, scope, &Plain)?;
        let is_foreign = bound.expr.exists(|expr| {
            let Expr::AggregateFunction(call) = expr else { return Ok(false) };
            let (mut outside, mut inside) = (false, false);
            for part in call.params.args.iter().chain(call.params.filter.as_deref()) {
                outside |= part.exists(|expr| Ok(matches!(expr, Expr::OuterReferenceColumn(..))))?;
                inside |= part.exists(|expr| Ok(matches!(expr, Expr::Column(_))))?;
            }
            Ok(outside && !inside)
        });
        if is_foreign.map_err(bind_error)? {
            return Err(Error::unsupported(format!("{name}() over columns of the outer query alone is not supported in a subquery"))
                .with_detail("It would be computed over the rows of the outer query.")
                .with_hint("Compute it in the outer query and name its result in the subquery."));
        }
        Ok(bound)
    }

    /// The aggregate `name` of `function`'s arguments.
    pub(super) fn aggregate_call(&self, name: &str, function: &ast::Function, scope: &Scope<'_>, calls: &dyn MakeCall) -> Result<Bound> {
        let ast::FunctionArguments::List(list) = &function.args else {
            return Err(signature::undefined(name, &[]));
        };
        let distinct = list.duplicate_treatment == Some(ast::DuplicateTreatment::Distinct);
        if distinct && function.over.is_some() {
            return Err(Error::unsupported("DISTINCT is not implemented for window functions"));
        }
        let filter = match &function.filter {
            None => None,
            Some(filter) => Some(self.boolean(self.expr(filter, &scope.in_clause(Clause::Filter))?, "FILTER")?.expr),
        };
        // Over a window, what is put together may itself be the aggregate of a group.
        let argument_scope = scope.in_clause(if function.over.is_some() { Clause::Window } else { Clause::AggregateArgument });
        let mut order_by = Vec::new();
        for clause in &list.clauses {
            match clause {
                ast::FunctionArgumentClause::OrderBy(keys) => order_by = self.sort_keys(keys, &argument_scope)?,
                other => return Err(Error::unsupported(format!("{other} in an aggregate is not supported"))),
            }
        }
        if let [ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Wildcard)] = list.args[..] {
            if name != "count" || distinct {
                let error = Error::new(SqlState::UNDEFINED_FUNCTION, format!("function {name}(*) does not exist"));
                return Err(if name == "count" { Error::new(SqlState::SYNTAX_ERROR, "DISTINCT needs an argument") } else { error });
            }
            return Ok(Bound::new(count_all(calls, filter), SqlType::BigInt));
        }
        let mut arguments = self.arguments(&list.args, &argument_scope)?;
        if OTHER_NAMES.contains(&name) {
            return self.other_aggregate(name, arguments, distinct, filter, order_by, calls);
        }
        if arguments.len() != 1 {
            return Err(signature::undefined(name, &arguments));
        }
        let argument = arguments.swap_remove(0);
        let is_argument = |key: &Sort| key.expr == argument.expr || key.expr == one_zero(argument.clone()).expr;
        if distinct && !order_by.iter().all(is_argument) {
            let code = SqlState::parse("42P10").unwrap_or(SqlState::SYNTAX_ERROR);
            return Err(Error::new(code, "in an aggregate with DISTINCT, ORDER BY expressions must appear in argument list"));
        }
        let undefined = |argument: &Bound| Err(signature::undefined(name, std::slice::from_ref(argument)));
        // ORDER BY is accepted and without effect: the results do not depend on the order of the rows. A sum of doubles does, in its last digits, but
        // no order makes it more exact, and sums of doubles are promised to a relative 1e-9 only.
        if distinct && argument.ty.is_nested() {
            return Err(positioned(
                Error::unsupported(format!("DISTINCT in an aggregate over type {} is not supported", argument.ty.name()))
                    .with_hint("Name a field or an element."),
                argument.position,
            ));
        }
        match name {
            "count" => {
                let argument = known(argument)?;
                Ok(Bound::new(calls.make(count_udaf(), vec![argument.expr], distinct, filter, Vec::new()), SqlType::BigInt))
            }
            "min" | "max" => {
                let argument = known(argument)?;
                if matches!(argument.ty, Type::Sql(SqlType::Array(_))) {
                    return Err(positioned(
                        Error::unsupported(format!("{name}() over type {} is not supported", argument.ty.name())),
                        argument.position,
                    ));
                }
                if matches!(argument.ty, Type::Interval | Type::Sql(SqlType::Row(_) | SqlType::Boolean)) {
                    return undefined(&argument);
                }
                let function = match (name, &argument.ty) {
                    ("min", Type::Sql(SqlType::Double)) => extremes::min_of_doubles(),
                    (_, Type::Sql(SqlType::Double)) => extremes::max_of_doubles(),
                    ("min", _) => min_max::min_udaf(),
                    _ => min_max::max_udaf(),
                };
                Ok(Bound { expr: calls.make(function, vec![argument.expr], false, filter, Vec::new()), ty: argument.ty, position: None })
            }
            "sum" | "avg" => {
                if argument.ty == Type::Unknown {
                    let code = SqlState::parse("42725").unwrap_or(SqlState::UNDEFINED_FUNCTION);
                    return Err(Error::new(code, format!("function {name}(unknown) is not unique"))
                        .with_hint("Could not choose a best candidate function. You might need to add explicit type casts."));
                }
                let Some(sum_type) = argument.ty.number_rank().and_then(|_| aggregate::sum_type(&argument.ty.to_arrow())) else {
                    return undefined(&argument);
                };
                let sum_type = Type::Sql(SqlType::from_arrow(&sum_type).ok_or_else(|| Error::internal("a sum without a type"))?);
                let sum = calls.make(aggregate::sum(), vec![argument.expr.clone()], distinct, filter.clone(), Vec::new());
                let sum = Bound { expr: sum, ty: sum_type, position: None };
                if name == "sum" {
                    return Ok(sum);
                }
                let count = Bound::new(calls.make(count_udaf(), vec![argument.expr], distinct, filter, Vec::new()), SqlType::BigInt);
                average(sum, count)
            }
            "bool_and" | "bool_or" | "every" => {
                let argument = match &argument.ty {
                    Type::Sql(SqlType::Boolean) => argument,
                    Type::Unknown => convert(argument, &SqlType::Boolean.into())?,
                    _ => return undefined(&argument),
                };
                let value = argument.expr;
                let counted = calls.make(count_udaf(), vec![value.clone()], false, filter.clone(), Vec::new());
                let (deciding, operator) =
                    if name == "bool_or" { (value, Operator::Gt) } else { (Expr::Not(Box::new(value)), Operator::Eq) };
                let deciding = match filter {
                    Some(filter) => all_of(vec![filter, deciding]),
                    None => deciding,
                };
                let decided = binary_of(count_all(calls, Some(deciding)), operator, lit(0i64));
                let some = binary_of(counted, Operator::Gt, lit(0i64));
                let null = Expr::Literal(ScalarValue::Boolean(None), None);
                let case = Case::new(None, vec![(Box::new(some), Box::new(decided))], Some(Box::new(null)));
                Ok(Bound::new(Expr::Case(case), SqlType::Boolean))
            }
            _ => Err(Error::internal(format!("no aggregate {name}"))),
        }
    }

    /// An aggregate of DataFusion's, for batch queries.
    fn other_aggregate(
        &self,
        name: &str,
        arguments: Vec<Bound>,
        distinct: bool,
        filter: Option<Expr>,
        order_by: Vec<Sort>,
        calls: &dyn MakeCall,
    ) -> Result<Bound> {
        let known_name = match name {
            "stddev_samp" => "stddev",
            "variance" | "var_samp" => "var",
            other => other,
        };
        let function = OTHERS
            .iter()
            .find(|function| function.name() == known_name || function.aliases().iter().any(|alias| alias == known_name))
            .ok_or_else(|| signature::undefined(name, &arguments))?;
        let mut exprs = Vec::with_capacity(arguments.len());
        let mut fields = Vec::with_capacity(arguments.len());
        for argument in &arguments {
            let argument = known(argument.clone())?;
            // The statistics are computed in doubles.
            let argument = if argument.ty.number_rank() == Some(3) { convert(argument, &SqlType::Double.into())? } else { argument };
            fields.push(Arc::new(Field::new("", argument.ty.to_arrow(), true)));
            exprs.push(argument.expr);
        }
        let coerced = fields_with_udf(&fields, function.as_ref()).map_err(|_| signature::undefined(name, &arguments))?;
        for ((expr, field), coerced) in exprs.iter_mut().zip(&fields).zip(&coerced) {
            if field.data_type() != coerced.data_type() {
                *expr = Expr::Cast(Cast::new(Box::new(std::mem::take(expr)), coerced.data_type().clone()));
            }
        }
        let types: Vec<DataType> = coerced.iter().map(|field| field.data_type().clone()).collect();
        let result = function.return_type(&types).map_err(|_| signature::undefined(name, &arguments))?;
        let ty = SqlType::from_arrow(&result)
            .ok_or_else(|| Error::unsupported(format!("{name} has type {result}, which a result can't have")))?;
        let call = calls.make(Arc::clone(function), exprs, distinct, filter, order_by);
        let expr = if ty.to_arrow() == result { call } else { Expr::Cast(Cast::new(Box::new(call), ty.to_arrow())) };
        Ok(Bound::new(expr, ty))
    }
}

fn count_all(calls: &dyn MakeCall, filter: Option<Expr>) -> Expr {
    calls.make(count_udaf(), vec![lit(1i64)], false, filter, Vec::new())
}

/// `sum / count`: NULL where nothing was counted, for then the sum is NULL.
fn average(sum: Bound, count: Bound) -> Result<Bound> {
    let (result, count_type) = match &sum.ty {
        Type::Sql(SqlType::Double) => (SqlType::Double, SqlType::Double),
        Type::Sql(SqlType::Numeric { scale, .. }) => {
            (SqlType::Numeric { precision: 38, scale: (*scale).max(10) }, SqlType::Numeric { precision: 19, scale: 0 })
        }
        _ => (SqlType::Numeric { precision: 38, scale: 10 }, SqlType::Numeric { precision: 19, scale: 0 }),
    };
    let sum = match &sum.ty {
        Type::Sql(SqlType::BigInt) => convert(sum, &SqlType::Numeric { precision: 19, scale: 0 }.into())?,
        _ => sum,
    };
    let count = convert(count, &count_type.into())?;
    let ty = Type::Sql(result);
    Ok(Bound { expr: arithmetic_call(arithmetic::Operation::Divide, &ty, vec![sum.expr, count.expr]), ty, position: None })
}
