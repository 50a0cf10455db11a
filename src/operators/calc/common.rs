//! Expressions that a filter and a projection need more than once, taken out to be evaluated once for a batch.
//!
//! What DataFusion's `CommonSubexprEliminate` does in a plan, for one operator: that rule would put a projection below the filter and change the
//! plan, and with it what EXPLAIN shows and uids are derived from.
//!
//! # Invariants
//! - Only what is evaluated on every row in any case is taken out: not the second side of AND and OR, not a branch of CASE, not a later argument of
//!   COALESCE. Where it is needed there too, its value is at hand.
//! - The filter's part is evaluated on all rows; the projection's own on those that pass.
//! - Volatile expressions stay where they are.

use std::collections::{HashMap, HashSet};

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, TableReference};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{BinaryExpr, Case, Expr, Operator};

/// A filter and a projection over columns of the input and over common expressions.
#[derive(Debug)]
pub(super) struct Shared {
    /// What the filter needs several times, or the projection too. Each reads the input's columns and those before it.
    pub before_filter: Vec<Common>,
    pub filter: Option<Expr>,
    /// What the projection alone needs several times, of the rows that pass.
    pub before_projection: Vec<Common>,
    pub projection: Vec<Expr>,
}

/// An expression and the column that stands for it.
#[derive(Debug)]
pub(super) struct Common {
    pub column: Column,
    pub expr: Expr,
}

/// Takes common expressions out of `filter` and `projection` over `input`; `None` if there are none.
pub(super) fn share(input: &DFSchema, filter: Option<&Expr>, projection: &[Expr]) -> Result<Option<Shared>, DataFusionError> {
    let mut sure = HashSet::new();
    let mut uses = HashMap::new();
    if let Some(filter) = filter {
        collect_sure(filter, &mut sure)?;
        count_uses(filter, &HashSet::new(), &mut uses)?;
    }
    let mut sure_later = HashSet::new();
    let mut uses_later = HashMap::new();
    for expr in projection {
        collect_sure(expr, &mut sure_later)?;
        count_uses(expr, &sure, &mut uses_later)?;
    }
    let before_filter: HashSet<&Expr> =
        sure.iter().copied().filter(|expr| uses.get(expr).is_some_and(|n| *n > 1) || uses_later.contains_key(expr)).collect();
    let before_projection: HashSet<&Expr> =
        sure_later.iter().copied().filter(|expr| !sure.contains(expr) && uses_later.get(expr).is_some_and(|n| *n > 1)).collect();
    if before_filter.is_empty() && before_projection.is_empty() {
        return Ok(None);
    }
    let mut names = Names::new(input);
    let filter = filter.map(|filter| names.replace(filter, &before_filter)).transpose()?;
    let before_filter = std::mem::take(&mut names.made);
    let projection = projection.iter().map(|expr| names.replace(expr, &before_projection)).collect::<Result<_, _>>()?;
    Ok(Some(Shared { before_filter, filter, before_projection: names.made, projection }))
}

/// Whether it pays to evaluate `expr` apart, and its value is the same wherever it stands. AND and OR are left out: what they join is looked at one by
/// one, and long chains of them would be hashed again and again.
fn can_be_shared(expr: &Expr) -> bool {
    let computes = match expr {
        Expr::BinaryExpr(binary) => !matches!(binary.op, Operator::And | Operator::Or),
        Expr::ScalarFunction(_)
        | Expr::Case(_)
        | Expr::Cast(_)
        | Expr::TryCast(_)
        | Expr::Like(_)
        | Expr::SimilarTo(_)
        | Expr::Between(_)
        | Expr::InList(_)
        | Expr::Negative(_)
        | Expr::Not(_)
        | Expr::IsNull(_)
        | Expr::IsNotNull(_)
        | Expr::IsTrue(_)
        | Expr::IsFalse(_)
        | Expr::IsUnknown(_)
        | Expr::IsNotTrue(_)
        | Expr::IsNotFalse(_)
        | Expr::IsNotUnknown(_) => true,
        _ => false,
    };
    computes && !expr.is_volatile() && expr.any_column_refs()
}

/// The parts of `expr` that are evaluated whenever it is, if there are others.
fn always_evaluated(expr: &Expr) -> Option<Vec<&Expr>> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And | Operator::Or, .. }) => Some(vec![left.as_ref()]),
        Expr::Case(Case { expr, when_then_expr, .. }) => {
            let first = when_then_expr.first().map(|(when, _)| when.as_ref());
            Some(expr.as_deref().into_iter().chain(first).collect())
        }
        Expr::ScalarFunction(call) => call.func.conditional_arguments(&call.args).map(|(always, _)| always),
        // The body of a lambda is not about rows.
        Expr::HigherOrderFunction(_) | Expr::Lambda(_) => Some(Vec::new()),
        _ => None,
    }
}

/// Adds to `sure` what can be shared of `root` and is evaluated on every row on which `root` is.
fn collect_sure<'n>(root: &'n Expr, sure: &mut HashSet<&'n Expr>) -> Result<(), DataFusionError> {
    root.apply(|expr| {
        if can_be_shared(expr) && !sure.insert(expr) {
            return Ok(TreeNodeRecursion::Jump);
        }
        let Some(always) = always_evaluated(expr) else { return Ok(TreeNodeRecursion::Continue) };
        for part in always {
            collect_sure(part, sure)?;
        }
        Ok(TreeNodeRecursion::Jump)
    })?;
    Ok(())
}

/// Counts in `uses` where what can be shared of `root` is needed, when what stands there a second time is evaluated once. What is `at_hand` needs none of
/// its parts either.
fn count_uses<'n>(root: &'n Expr, at_hand: &HashSet<&Expr>, uses: &mut HashMap<&'n Expr, usize>) -> Result<(), DataFusionError> {
    root.apply(|expr| {
        if matches!(expr, Expr::HigherOrderFunction(_) | Expr::Lambda(_)) {
            return Ok(TreeNodeRecursion::Jump);
        }
        if !can_be_shared(expr) {
            return Ok(TreeNodeRecursion::Continue);
        }
        let uses = uses.entry(expr).or_insert(0);
        *uses += 1;
        Ok(if *uses > 1 || at_hand.contains(expr) { TreeNodeRecursion::Jump } else { TreeNodeRecursion::Continue })
    })?;
    Ok(())
}

/// Gives columns to common expressions.
struct Names {
    /// The relation that they are said to be of, and the beginning of their names.
    name: String,
    columns: HashMap<Expr, Column>,
    /// Those that got one, after those that they read.
    made: Vec<Common>,
}

impl Names {
    /// For expressions over `input`, none of whose columns is named like a common expression.
    fn new(input: &DFSchema) -> Names {
        let mut name = "common".to_string();
        while input
            .iter()
            .any(|(relation, field)| relation.is_some_and(|relation| relation.table() == name) || field.name().starts_with(&name))
        {
            name.push('_');
        }
        Names { name, columns: HashMap::new(), made: Vec::new() }
    }

    /// `expr` with columns in place of what is `common` and of what has a column already.
    fn replace(&mut self, expr: &Expr, common: &HashSet<&Expr>) -> Result<Expr, DataFusionError> {
        let replaced = expr.clone().transform_down(|expr| {
            if matches!(expr, Expr::HigherOrderFunction(_) | Expr::Lambda(_)) {
                return Ok(Transformed::new(expr, false, TreeNodeRecursion::Jump));
            }
            if !can_be_shared(&expr) {
                return Ok(Transformed::no(expr));
            }
            if let Some(column) = self.columns.get(&expr) {
                return Ok(Transformed::new(Expr::Column(column.clone()), true, TreeNodeRecursion::Jump));
            }
            if !common.contains(&expr) {
                return Ok(Transformed::no(expr));
            }
            let parts = expr.clone().map_children(|part| Ok(Transformed::yes(self.replace(&part, common)?)))?;
            let column = Column::new(Some(TableReference::bare(self.name.as_str())), format!("{} {}", self.name, self.columns.len()));
            self.made.push(Common { column: column.clone(), expr: parts.data });
            self.columns.insert(expr, column.clone());
            Ok(Transformed::new(Expr::Column(column), true, TreeNodeRecursion::Jump))
        })?;
        Ok(replaced.data)
    }
}

#[cfg(test)]
mod tests;
