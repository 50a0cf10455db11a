//! Names of computed columns. DataFusion tells the columns of a plan apart by the text of what computes them, and leaves casts out of it: `v` and
//! `v::bigint` would be one.

use std::collections::BTreeSet;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::Expr;
use weir_catalog::Result;

use super::bind_error;

/// `name`, or with the first number behind it that makes it another than all in `names`, where it is put.
fn distinct(name: String, names: &mut BTreeSet<String>) -> String {
    if names.insert(name.clone()) {
        return name;
    }
    let other = (2u64..).map(|number| format!("{name} {number}")).find(|other| names.insert(other.clone()));
    other.unwrap_or(name)
}

/// Gives names of their own to those of `exprs` that are called as others before them.
pub(super) fn distinguish<'e>(exprs: impl IntoIterator<Item = &'e mut Expr>) {
    let mut names = BTreeSet::new();
    for expr in exprs {
        let name = expr.schema_name().to_string();
        let own = distinct(name.clone(), &mut names);
        if own != name {
            *expr = std::mem::take(expr).alias(own);
        }
    }
}

/// As [`distinguish`], for calls that can't have a name: that of a cast within them is told instead.
pub(super) fn distinguish_calls(calls: &mut [Expr]) -> Result<()> {
    let mut names = BTreeSet::new();
    for call in calls {
        let name = call.schema_name().to_string();
        let own = distinct(name.clone(), &mut names);
        if own == name {
            continue;
        }
        let number = &own[name.len()..];
        let told = std::mem::take(call).transform_up(|expr| {
            Ok(if matches!(expr, Expr::Cast(_)) {
                let name = format!("{}{number}", expr.schema_name());
                Transformed::yes(expr.alias(name))
            } else {
                Transformed::no(expr)
            })
        });
        *call = told.map_err(bind_error)?.data;
    }
    Ok(())
}
