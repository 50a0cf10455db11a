//! Expressions as the user wrote them, or would recognise them: for EXPLAIN and for errors.
//!
//! The binder replaces some of what is written by what computes it safely (guards around what could fail, a zero added to a double so that both
//! zeros compare equal) or by CASE. Here the other way, for readers only.
//!
//! # Invariants
//! - Names and uids are not made of this text (see `text`): it may change at any time.
//! - What is written computes the same as the expression, in SQL's meaning.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::functions::core;
use datafusion::logical_expr::{BinaryExpr, Case, Expr, Operator};
use weir_catalog::SqlType;

use super::text::{expression_text, native_kernel};
use crate::functions::Kernel;
use crate::functions::nested::Operation;

/// `expr` as SQL, without what the binder put in.
pub fn written_text(expr: &Expr) -> String {
    match expr.clone().transform_up(|expr| Ok::<_, DataFusionError>(written(expr))) {
        Ok(written) => expression_text(&written.data),
        Err(_) => expression_text(expr),
    }
}

/// `expr`, whose parts are as written, as it was written.
fn written(expr: Expr) -> Transformed<Expr> {
    match expr {
        Expr::BinaryExpr(binary) => written_binary(binary),
        Expr::Case(case) => written_case(case),
        Expr::ScalarFunction(mut function)
            if native_kernel(&function) == Some(&Kernel::Nested(Operation::Comparable)) && function.args.len() == 1 =>
        {
            Transformed::yes(function.args.remove(0))
        }
        other => Transformed::no(other),
    }
}

fn written_binary(binary: BinaryExpr) -> Transformed<Expr> {
    let BinaryExpr { left, op, right } = binary;
    match (op, right.as_ref()) {
        // Arithmetic that is written is a function of ours: this sum is `one_zero`'s.
        (Operator::Plus, Expr::Literal(ScalarValue::Float64(Some(0.0)), _)) => Transformed::yes(*left),
        // A CASE of numbers that stand for a condition.
        (Operator::Eq, Expr::Literal(ScalarValue::Int32(Some(1)), _)) => match left.as_ref() {
            Expr::Case(case) if case.expr.is_none() => match conditions(case) {
                Some(case) => Transformed::yes(Expr::Case(case)),
                None => Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })),
            },
            _ => Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })),
        },
        (Operator::And | Operator::Or, Expr::Case(case)) => match guarded(&left, op, case) {
            Some(risky) => Transformed::yes(Expr::BinaryExpr(BinaryExpr { left, op, right: Box::new(risky.clone()) })),
            None => Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })),
        },
        _ => Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })),
    }
}

/// The CASE whose results, conditions, were made numbers.
fn conditions(case: &Case) -> Option<Case> {
    let condition = |expr: &Expr| -> Option<Box<Expr>> {
        // A constant one may have been computed already.
        if let Expr::Literal(ScalarValue::Int32(Some(number @ (0 | 1))), _) = expr {
            return Some(Box::new(Expr::Literal(ScalarValue::Boolean(Some(*number == 1)), None)));
        }
        let Expr::ScalarFunction(function) = expr else { return None };
        match (native_kernel(function), function.args.as_slice()) {
            (Some(Kernel::Cast(SqlType::Int)), [inner]) => Some(Box::new(inner.clone())),
            _ => None,
        }
    };
    // Numbers alone are what the user wrote.
    let converted = |expr: &Expr| matches!(expr, Expr::ScalarFunction(_));
    if !case.when_then_expr.iter().any(|(_, then)| converted(then)) && !case.else_expr.as_deref().is_some_and(converted) {
        return None;
    }
    let arms = case.when_then_expr.iter().map(|(when, then)| Some((when.clone(), condition(then)?))).collect::<Option<Vec<_>>>()?;
    let otherwise = match &case.else_expr {
        Some(otherwise) => Some(condition(otherwise)?),
        None => None,
    };
    Some(Case::new(None, arms, otherwise))
}

/// What `case` guards: the second operand of `left AND case` or `left OR case` where the CASE evaluates it only if `left` leaves the result open.
fn guarded<'a>(left: &Expr, op: Operator, case: &'a Case) -> Option<&'a Expr> {
    let ([(when, risky)], Some(otherwise), None) = (case.when_then_expr.as_slice(), &case.else_expr, &case.expr) else { return None };
    let open = match (op, when.as_ref()) {
        (Operator::And, Expr::IsNotFalse(safe)) | (Operator::Or, Expr::IsNotTrue(safe)) => safe.as_ref(),
        _ => return None,
    };
    let decided = Expr::Literal(ScalarValue::Boolean(Some(op == Operator::Or)), None);
    // The planner may have moved some of the conditions elsewhere, and put others beside them.
    let (mut opening, mut beside) = (Vec::new(), Vec::new());
    operands(open, op, &mut opening);
    operands(left, op, &mut beside);
    (opening.iter().any(|condition| beside.contains(condition)) && otherwise.as_ref() == &decided).then_some(risky.as_ref())
}

/// The operands of a chain of `op`.
fn operands<'a>(mut expr: &'a Expr, op: Operator, found: &mut Vec<&'a Expr>) {
    while let Expr::BinaryExpr(binary) = expr
        && binary.op == op
    {
        operands(&binary.right, op, found);
        expr = &binary.left;
    }
    found.push(expr);
}

fn written_case(case: Case) -> Transformed<Expr> {
    if case.expr.is_some() {
        return Transformed::no(Expr::Case(case));
    }
    let Some(otherwise) = case.else_expr.as_deref() else { return Transformed::no(Expr::Case(case)) };
    let tests_itself = |(when, then): &(Box<Expr>, Box<Expr>)| matches!(when.as_ref(), Expr::IsNotNull(tested) if tested == then);
    if case.when_then_expr.iter().all(tests_itself) {
        let mut values: Vec<Expr> = case.when_then_expr.iter().map(|(_, then)| then.as_ref().clone()).collect();
        values.push(otherwise.clone());
        return Transformed::yes(core::coalesce().call(values));
    }
    if let [(when, then)] = case.when_then_expr.as_slice()
        && let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = when.as_ref()
        && matches!(then.as_ref(), Expr::Literal(value, _) if value.is_null())
        && left.as_ref() == otherwise
    {
        return Transformed::yes(core::nullif().call(vec![otherwise.clone(), right.as_ref().clone()]));
    }
    Transformed::no(Expr::Case(case))
}
