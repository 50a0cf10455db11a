//! Chains of operators without parentheses, `a + b - c * d || e ...`, which the parser gives as a tree as deep as they are long.

use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};
use datafusion::sql::sqlparser::ast::{self, BinaryOperator, Spanned};
use weir_catalog::{Error, Result, SqlState};

use super::scope::Scope;
use super::types::{Bound, Type};
use super::{Session, bind_error};
use crate::functions::chain::Link;
use crate::functions::{Kernel, NativeFunction};

/// Chains with more operators are bound as one function of all their operands. Shorter ones keep the form that they have always had, and with it what is
/// derived from that: the uids of operators that group by them.
const LONG: usize = 32;

/// How many of the operators of a long chain may be others than those that one function can do: each is a level of the expression.
const MAX_OTHERS: usize = 200;

/// Stands for the chain so far.
const SO_FAR: &str = "__so_far";

/// Whether an operator can be a link of a chain.
fn can_be_linked(op: &BinaryOperator) -> bool {
    use BinaryOperator::{Divide, Minus, Modulo, Multiply, Plus, StringConcat};
    matches!(op, Plus | Minus | Multiply | Divide | Modulo | StringConcat)
}

/// What was bound so far: a value, and what is done with it.
struct Chain {
    operands: Vec<Expr>,
    links: Vec<Link>,
    ty: Type,
}

impl Chain {
    fn of(bound: Bound) -> Chain {
        Chain { operands: vec![bound.expr], links: Vec::new(), ty: bound.ty }
    }

    fn bound(mut self) -> Bound {
        let expr = match (self.links.is_empty(), self.operands.pop()) {
            (true, Some(only)) => only,
            (_, last) => {
                self.operands.extend(last);
                let symbols: Vec<&str> = self.links.iter().map(Link::symbol).collect();
                let name = format!("chain({})", symbols.join(" "));
                crate::functions::call(name, Kernel::Chain(self.links.into()), self.ty.to_arrow(), self.operands)
            }
        };
        Bound { expr, ty: self.ty, position: None }
    }
}

/// The link and its operand that `expr`, an operator over [`SO_FAR`], is.
fn link_of(expr: Expr) -> std::result::Result<(Link, Expr), Expr> {
    let is_so_far = |expr: &Expr| matches!(expr, Expr::Column(column) if column.relation.is_none() && column.name == SO_FAR);
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::StringConcat, right }) if is_so_far(&left) => Ok((Link::Concat, *right)),
        Expr::ScalarFunction(mut call) if call.args.len() == 2 && is_so_far(&call.args[0]) => {
            let function = call.func.inner().downcast_ref::<NativeFunction>();
            match function.map(|function| (function.kernel(), function.result())) {
                Some((Kernel::Arithmetic(operation), result)) => {
                    let link = Link::Arithmetic(*operation, result.clone());
                    match call.args.pop() {
                        Some(operand) => Ok((link, operand)),
                        None => Err(Expr::ScalarFunction(call)),
                    }
                }
                _ => Err(Expr::ScalarFunction(call)),
            }
        }
        other => Err(other),
    }
}

impl Session<'_> {
    /// `left op right`, where `left` may be a chain of operators itself: however long, it costs no stack.
    pub(super) fn chained(&self, left: &ast::Expr, op: &BinaryOperator, right: &ast::Expr, scope: &Scope<'_>) -> Result<Bound> {
        let (mut rest, mut links) = (left, vec![(op, right)]);
        let binary = |rest: &ast::Expr, left, op: &BinaryOperator, right: &ast::Expr| {
            let operand = self.expr(right, scope)?;
            match self.binary(left, op, operand) {
                // Every link begins where the chain does.
                Err(error) => self.at_operator(Err(error), rest, &[&op.to_string()], right.span()),
                bound => bound,
            }
        };
        if can_be_linked(op) {
            while let ast::Expr::BinaryOp { left, op, right } = rest
                && can_be_linked(op)
            {
                links.push((op, right));
                rest = left;
            }
        }
        let first = self.expr(rest, scope)?;
        let position = first.position;
        let is_long = links.len() > LONG;
        let mut others = 0;
        let mut chain = Chain::of(first);
        for (op, right) in links.into_iter().rev() {
            // A string without a type is looked at, and gets the other's.
            if !is_long || chain.ty == Type::Unknown {
                let left = Bound { position, ..chain.bound() };
                chain = Chain::of(binary(rest, left, op, right)?);
                continue;
            }
            let so_far = Bound { expr: Expr::Column(Column::new_unqualified(SO_FAR)), ty: chain.ty.clone(), position };
            let Bound { expr, ty, .. } = binary(rest, so_far, op, right)?;
            match link_of(expr) {
                Ok((link, operand)) => {
                    chain.links.push(link);
                    chain.operands.push(operand);
                    chain.ty = ty;
                }
                Err(expr) => {
                    others += 1;
                    if others > MAX_OTHERS {
                        let error = Error::new(SqlState::STATEMENT_TOO_COMPLEX, "statement too complex").with_detail(format!(
                            "In one chain of operators, at most {MAX_OTHERS} may be over timestamps and intervals, or over numbers of other types."
                        ));
                        return Err(self.at(error, rest.span()));
                    }
                    let before = chain.bound().expr;
                    let expr = expr.transform_up(|expr| match &expr {
                        Expr::Column(column) if column.relation.is_none() && column.name == SO_FAR => Ok(Transformed::yes(before.clone())),
                        _ => Ok(Transformed::no(expr)),
                    });
                    chain = Chain::of(Bound { expr: expr.map_err(bind_error)?.data, ty, position: None });
                }
            }
        }
        Ok(chain.bound())
    }
}
