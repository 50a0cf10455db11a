//! Rewrites of relations that change no answer: adjacent calcs become one, and a condition on group columns moves below its aggregate.
//!
//! # Invariants
//! - No row fails that would not have failed as the query is written: a filter runs on more rows than before only if it can't fail. (It may run on fewer,
//!   and so may an expression.)
//! - What several operators read stays one relation.
//! - An aggregate keeps its group columns, its calls and its uid.

use std::collections::HashMap;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{Expr, Operator};
use weir_catalog::{Error, Result};

use super::lower::{column_expr, is_cheap, type_of};
use super::relation::{Relation, RelationColumn, RelationId, Relations};
use super::text::native_kernel;
use crate::functions::{Kernel, datetime, nested, string};

/// Rewrites until nothing changes; each round moves a filter by at least one relation.
const ROUNDS_MAX: usize = 1_000;

/// `root` rewritten. Its columns stay the same.
pub(super) fn rewrite(relations: &mut Relations, mut root: RelationId) -> Result<RelationId> {
    for _ in 0..ROUNDS_MAX {
        let uses = relations.uses(root);
        let mut rewritten = HashMap::new();
        for id in relations.topological(root) {
            let id_after = rewrite_one(relations, id, &uses, &rewritten)?;
            rewritten.insert(id, id_after);
        }
        let after = rewritten[&root];
        if after == root {
            return Ok(root);
        }
        root = after;
    }
    Err(Error::internal("the planner's rewrites do not come to an end"))
}

fn rewrite_one(
    relations: &mut Relations,
    id: RelationId,
    uses: &[usize],
    rewritten: &HashMap<RelationId, RelationId>,
) -> Result<RelationId> {
    let columns = relations.columns(id).to_vec();
    let mut relation = relations.relation(id).clone();
    match &mut relation {
        Relation::Scan { .. } | Relation::Values { .. } => return Ok(id),
        Relation::Aggregate { input, .. } | Relation::Unnest { input, .. } => *input = rewritten[input],
        Relation::Union { inputs } => inputs.iter_mut().for_each(|input| *input = rewritten[input]),
        Relation::Calc { input, filter, projection } => {
            let alone = uses[*input] == 1;
            *input = rewritten[input];
            if let Some(merged) = merge(relations, *input, filter.as_ref(), projection, alone)? {
                relation = merged;
            } else if alone && let Some(pushed) = push_below_aggregate(relations, *input, filter.as_ref(), projection)? {
                relation = pushed;
            }
        }
    }
    relations.add(relation, columns)
}

/// The calc over `input` as one with the calc that `input` is.
fn merge(relations: &Relations, input: RelationId, filter: Option<&Expr>, projection: &[Expr], alone: bool) -> Result<Option<Relation>> {
    let Relation::Calc { input: below, filter: filter_below, projection: projection_below } = relations.relation(input) else {
        return Ok(None);
    };
    // A calc that others read too is worth keeping, unless it only passes columns on.
    if !alone && (filter_below.is_some() || !projection_below.iter().all(is_cheap)) {
        return Ok(None);
    }
    let columns = relations.columns(input);
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for expr in projection.iter().chain(filter) {
        for (column, count) in expr.column_refs_counts() {
            *counts.entry(column.name.as_str()).or_default() += count;
        }
    }
    for (column, expr) in columns.iter().zip(projection_below) {
        if !is_cheap(expr) && counts.get(column.name.as_str()).is_some_and(|count| *count > 1) {
            return Ok(None);
        }
    }
    let filter = filter.map(|filter| inline(filter, columns, projection_below)).transpose()?;
    let filter = match (filter_below, filter) {
        (None, filter) => filter,
        (Some(below), None) => Some(below.clone()),
        (Some(filter_below), Some(filter)) => {
            // Both sides of an AND may be computed on all rows.
            if !cannot_fail(&filter, relations.schema(*below)) {
                return Ok(None);
            }
            Some(filter_below.clone().and(filter))
        }
    };
    let projection = projection.iter().map(|expr| inline(expr, columns, projection_below)).collect::<Result<Vec<_>>>()?;
    Ok(Some(Relation::Calc { input: *below, filter, projection }))
}

/// The calc over the aggregate `input` with the conditions on group columns below the aggregate: groups that the query drops need no state.
fn push_below_aggregate(
    relations: &mut Relations,
    input: RelationId,
    filter: Option<&Expr>,
    projection: &[Expr],
) -> Result<Option<Relation>> {
    let Some(filter) = filter else { return Ok(None) };
    let Relation::Aggregate { input: below, group_columns, .. } = relations.relation(input).clone() else { return Ok(None) };
    let columns = relations.columns(input).to_vec();
    let is_group_column = |name: &str| columns[..group_columns].iter().any(|column| column.name == name);
    let schema = relations.schema(input).clone();
    let (pushed, kept): (Vec<&Expr>, Vec<&Expr>) = split_conjunction(filter).into_iter().partition(|condition| {
        let references = condition.column_refs();
        !references.is_empty() && references.iter().all(|column| is_group_column(&column.name)) && cannot_fail(condition, &schema)
    });
    let Some(pushed) = conjunction(pushed.into_iter().cloned()) else { return Ok(None) };

    // The aggregate's input has the group columns under the same names.
    let columns_below = relations.columns(below).to_vec();
    let passed = columns_below.iter().map(|column| column_expr(&column.name)).collect();
    let filtered = relations.add(Relation::Calc { input: below, filter: Some(pushed), projection: passed }, columns_below)?;
    let mut aggregate = relations.relation(input).clone();
    if let Relation::Aggregate { input, .. } = &mut aggregate {
        *input = filtered;
    }
    let aggregate = relations.add(aggregate, columns)?;
    Ok(Some(Relation::Calc { input: aggregate, filter: conjunction(kept.into_iter().cloned()), projection: projection.to_vec() }))
}

/// `expr` with the columns of a calc replaced by what the calc computes.
fn inline(expr: &Expr, columns: &[RelationColumn], projection: &[Expr]) -> Result<Expr> {
    expr.clone()
        .transform_up(|expr| {
            let Expr::Column(column) = &expr else { return Ok(Transformed::no(expr)) };
            Ok(match columns.iter().position(|candidate| candidate.name == column.name) {
                Some(position) => Transformed::yes(projection[position].clone()),
                None => return datafusion::common::internal_err!("column {} is not in the calc below", column.name),
            })
        })
        .map(|transformed| transformed.data)
        .map_err(|e| Error::internal(format!("expression {expr} could not be merged: {e}")))
}

/// True if `expr` gives a value on every row, whatever stands in it. What is not known to do so is taken to fail.
pub(super) fn cannot_fail(expr: &Expr, schema: &DFSchema) -> bool {
    let all = |exprs: &[&Expr]| exprs.iter().all(|expr| cannot_fail(expr, schema));
    match expr {
        Expr::Column(_) | Expr::Literal(..) => true,
        Expr::Alias(alias) => cannot_fail(&alias.expr, schema),
        Expr::BinaryExpr(binary) => {
            matches!(
                binary.op,
                Operator::And
                    | Operator::Or
                    | Operator::Eq
                    | Operator::NotEq
                    | Operator::Lt
                    | Operator::LtEq
                    | Operator::Gt
                    | Operator::GtEq
                    | Operator::IsDistinctFrom
                    | Operator::IsNotDistinctFrom
                    | Operator::StringConcat
            ) && all(&[&binary.left, &binary.right])
        }
        Expr::Not(inner)
        | Expr::IsNull(inner)
        | Expr::IsNotNull(inner)
        | Expr::IsTrue(inner)
        | Expr::IsFalse(inner)
        | Expr::IsUnknown(inner)
        | Expr::IsNotTrue(inner)
        | Expr::IsNotFalse(inner)
        | Expr::IsNotUnknown(inner) => cannot_fail(inner, schema),
        Expr::Between(between) => all(&[&between.expr, &between.low, &between.high]),
        Expr::InList(list) => cannot_fail(&list.expr, schema) && list.list.iter().all(|item| cannot_fail(item, schema)),
        // A pattern that ends in its escape character is an error.
        Expr::Like(like) => {
            cannot_fail(&like.expr, schema)
                && like.escape_char.is_none()
                && matches!(like.pattern.as_ref(), Expr::Literal(pattern, _) if is_plain_pattern(pattern))
        }
        Expr::Case(case) => {
            case.expr.as_deref().is_none_or(|base| cannot_fail(base, schema))
                && case.when_then_expr.iter().all(|(when, then)| all(&[when, then]))
                && case.else_expr.as_deref().is_none_or(|otherwise| cannot_fail(otherwise, schema))
        }
        Expr::Cast(cast) => {
            cannot_fail(&cast.expr, schema) && type_of(&cast.expr, schema).is_ok_and(|from| is_widening(&from, cast.field.data_type()))
        }
        Expr::ScalarFunction(function) if native_kernel(function).is_some() => match (native_kernel(function), function.args.as_slice()) {
            (Some(Kernel::Cast(to)), [inner]) => {
                cannot_fail(inner, schema) && type_of(inner, schema).is_ok_and(|from| is_widening(&from, &to.to_arrow()))
            }
            (Some(Kernel::OutputText | Kernel::DateTime(datetime::Operation::Part(_))), [inner]) => cannot_fail(inner, schema),
            // A constant pattern has been read.
            (
                Some(Kernel::DateFormat(Some(_)) | Kernel::RegexpExtract(Some(_)) | Kernel::String(string::Operation::SplitIndex)),
                arguments,
            ) => arguments.iter().all(|argument| cannot_fail(argument, schema)),
            (Some(Kernel::Posix(operation, Some(_))), arguments) => {
                !operation.has_numbers(arguments.len()) && arguments.iter().all(|argument| cannot_fail(argument, schema))
            }
            (Some(Kernel::Nested(operation)), arguments) => {
                *operation != nested::Operation::ArrayLength && arguments.iter().all(|argument| cannot_fail(argument, schema))
            }
            _ => false,
        },
        Expr::ScalarFunction(function) => {
            matches!(
                function.name(),
                "get_field" | "coalesce" | "nullif" | "lower" | "upper" | "btrim" | "ltrim" | "rtrim" | "character_length"
            ) && function.args.iter().all(|argument| cannot_fail(argument, schema))
        }
        _ => false,
    }
}

fn is_plain_pattern(pattern: &ScalarValue) -> bool {
    match pattern.try_as_str() {
        Some(Some(text)) => !text.contains('\\'),
        Some(None) => true,
        None => pattern.is_null(),
    }
}

/// True if every value of `from` is one of `to`.
fn is_widening(from: &DataType, to: &DataType) -> bool {
    /// Digits before the point.
    fn digits(data_type: &DataType) -> Option<u8> {
        Some(match data_type {
            DataType::Int8 | DataType::UInt8 => 3,
            DataType::Int16 | DataType::UInt16 => 5,
            DataType::Int32 | DataType::UInt32 => 10,
            DataType::Int64 => 19,
            DataType::UInt64 => 20,
            _ => return None,
        })
    }
    let is_text = |data_type: &DataType| matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    match (from, to) {
        _ if from == to => true,
        (DataType::Null, _) => true,
        (DataType::Int8 | DataType::Int16, DataType::Int32 | DataType::Int64) | (DataType::Int32, DataType::Int64) => true,
        (from, DataType::Float64) if from.is_integer() || *from == DataType::Float32 => true,
        (from, DataType::Decimal128(precision, scale)) if digits(from).is_some() => {
            digits(from).is_some_and(|digits| i16::from(*precision) - i16::from(*scale) >= i16::from(digits))
        }
        (DataType::Decimal128(from_precision, from_scale), DataType::Decimal128(precision, scale)) => {
            scale >= from_scale && i16::from(*precision) - i16::from(*scale) >= i16::from(*from_precision) - i16::from(*from_scale)
        }
        (from, to) => is_text(from) && is_text(to),
    }
}
