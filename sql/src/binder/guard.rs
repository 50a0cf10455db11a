//! Conditions that keep an expression from being evaluated where it would fail, which DataFusion does not promise by itself: PostgreSQL evaluates
//! AND and OR from left to right.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::TreeNode;
use datafusion::logical_expr::{Case, Expr, Operator, lit};
use weir_catalog::SqlType;

use super::expr::binary_of;
use crate::functions::{Kernel, NativeFunction, arithmetic, chain, math, string};

/// All of `terms`, where those that could fail are not evaluated on rows on which one of the others is false: `v <> 0 AND 10 / v > 1`.
///
/// One guard for all of them, for DataFusion takes exponential time over nested ones: they do not guard one another.
pub(super) fn all_of(terms: Vec<Expr>) -> Expr {
    join_guarded(terms, Expr::and, |safe| Expr::IsNotFalse(Box::new(safe)), false)
}

/// Any of `terms`, where those that could fail are not evaluated on rows on which one of the others is true.
pub(super) fn any_of(terms: Vec<Expr>) -> Expr {
    join_guarded(terms, Expr::or, |safe| Expr::IsNotTrue(Box::new(safe)), true)
}

/// `open` tells whether the safe terms leave the result open, `decided` is what it is if they don't.
fn join_guarded(terms: Vec<Expr>, join: fn(Expr, Expr) -> Expr, open: fn(Expr) -> Expr, decided: bool) -> Expr {
    let (risky, safe): (Vec<Expr>, Vec<Expr>) = terms.into_iter().partition(can_fail);
    match (joined(safe, join), joined(risky, join)) {
        (Some(safe), Some(risky)) => {
            let guard = open(safe.clone());
            join(safe, opaque_case(vec![(guard, risky)], Some(lit(decided))))
        }
        (Some(terms), None) | (None, Some(terms)) => terms,
        (None, None) => lit(!decided),
    }
}

/// Terms of one AND or OR. Many are put together as a tree that is no deeper than it has to be: every walk over it goes as deep.
fn joined(mut terms: Vec<Expr>, join: fn(Expr, Expr) -> Expr) -> Option<Expr> {
    const MANY: usize = 64;
    if terms.len() <= MANY {
        return terms.into_iter().reduce(join);
    }
    while terms.len() > 1 {
        let mut halved = Vec::with_capacity(terms.len().div_ceil(2));
        let mut left = terms.into_iter();
        while let Some(term) = left.next() {
            halved.push(match left.next() {
                Some(next) => join(term, next),
                None => term,
            });
        }
        terms = halved;
    }
    terms.pop()
}

/// A BOOLEAN CASE. DataFusion's simplifier makes AND and OR of one with few arms, and then evaluates arms on rows that they are not for;
/// of one with INT results it does not.
pub(super) fn opaque_case(arms: Vec<(Expr, Expr)>, otherwise: Option<Expr>) -> Expr {
    let number = |expr: Expr| crate::functions::call("cast_to_integer", Kernel::Cast(SqlType::Int), DataType::Int32, vec![expr]);
    let arms = arms.into_iter().map(|(when, then)| (Box::new(when), Box::new(number(then)))).collect();
    let case = Expr::Case(Case::new(None, arms, otherwise.map(|otherwise| Box::new(number(otherwise)))));
    binary_of(case, Operator::Eq, lit(1i32))
}

/// Whether `expr` is an [`opaque_case`], which carries what guards it along.
pub(super) fn is_guarded(expr: &Expr) -> bool {
    let Expr::BinaryExpr(binary) = expr else { return false };
    binary.op == Operator::Eq && matches!(binary.left.as_ref(), Expr::Case(_)) && *binary.right == lit(1i32)
}

fn divides(operation: &arithmetic::Operation) -> bool {
    matches!(operation, arithmetic::Operation::Divide | arithmetic::Operation::Modulo)
}

/// Whether an expression holds what people guard with a condition: a division, a root, a logarithm, a cast, a pattern or a length that a column gives.
pub(crate) fn can_fail(expr: &Expr) -> bool {
    expr.exists(|expr| {
        let Expr::ScalarFunction(call) = expr else { return Ok(false) };
        let Some(function) = call.func.inner().downcast_ref::<NativeFunction>() else { return Ok(false) };
        Ok(match function.kernel() {
            Kernel::Arithmetic(operation) => divides(operation),
            Kernel::Chain(links) => links.iter().any(|link| matches!(link, chain::Link::Arithmetic(operation, _) if divides(operation))),
            Kernel::Cast(to) => *to != SqlType::Text,
            Kernel::Math(operation) => {
                matches!(
                    operation,
                    math::Operation::SquareRoot
                        | math::Operation::Ln
                        | math::Operation::Log10
                        | math::Operation::Power
                        | math::Operation::Exp
                )
            }
            Kernel::Posix(operation, pattern) => pattern.is_none() || operation.has_numbers(call.args.len()),
            Kernel::RegexpExtract(pattern) => pattern.is_none(),
            Kernel::DateFormat(pattern) => pattern.is_none(),
            Kernel::String(operation) => match operation {
                string::Operation::Chr => true,
                string::Operation::PatternEnd | string::Operation::SplitIndex | string::Operation::ToHex => false,
                _ => call.args.iter().skip(1).any(|argument| !matches!(argument, Expr::Literal(..))),
            },
            _ => false,
        })
    })
    .unwrap_or(true)
}
