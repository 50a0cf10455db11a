//! `INTERSECT ALL` and `EXCEPT ALL`: of each row as many copies as its numbers on both sides say.
//!
//! The rows of both sides are put in one, those that are equal side by side, the right ones first. Of the left ones among them, the first are those that
//! the right side has too. Nothing is kept in memory but two numbers: a join would have to number the rows of both sides, and to hold one of them.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{Column as PlanColumn, ScalarValue};
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{
    Expr, Filter, LogicalPlan, Operator, SortExpr, Union, Window, WindowFrame, WindowFrameBound, WindowFrameUnits,
    WindowFunctionDefinition, lit,
};
use weir_catalog::Result;

use super::expr::binary_of;
use super::query::unique_names;
use super::types::Type;
use super::{bind_error, project};
use crate::functions::Kernel;

/// How the columns are called that say which side a row is of.
pub const SIDE_PREFIX: &str = "__side_";

/// Which copies of a row stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// Those of the left side that the right side has too.
    Common,
    /// Those of the left side that the right side has not.
    Excess,
}

/// The rows of `left` that are `kept`, by number. Both sides have the columns `names`, unqualified, of these types.
pub(super) fn by_number(left: LogicalPlan, right: LogicalPlan, names: &[String], types: &[Type], kept: Kept) -> Result<LogicalPlan> {
    let [own_left, own_right] = [format!("{SIDE_PREFIX}left"), format!("{SIDE_PREFIX}right")];
    let own = [own_left.as_str(), own_right.as_str(), "__lefts", "__rights"];
    let all = unique_names(names.iter().map(String::as_str).chain(own));
    let [is_left, is_right, lefts, rights] = &all[names.len()..] else { return Err(weir_catalog::Error::internal("a name was lost")) };
    let column = |name: &String| Expr::Column(PlanColumn::new_unqualified(name));
    let (yes, no) = (|| lit(true), || Expr::Literal(ScalarValue::Boolean(None), None));
    let marked = |plan: LogicalPlan, left: Expr, right: Expr| {
        project(plan, names.iter().map(column).chain([left.alias(is_left), right.alias(is_right)]).collect()).map(Arc::new)
    };
    let union = Union::try_new(vec![marked(left, yes(), no())?, marked(right, no(), yes())?]).map_err(bind_error)?;
    // A sort knows no rows and not every array; their texts are equal where they are.
    let keys = names.iter().zip(types).map(|(name, ty)| match ty.is_nested() {
        true => crate::functions::call("output_text", Kernel::OutputText, DataType::Utf8, vec![column(name)]),
        false => column(name),
    });
    let keys: Vec<Expr> = keys.collect();
    let count = |side: &String, name: &String| {
        let function = WindowFunctionDefinition::AggregateUDF(count_udaf());
        let mut call = WindowFunction::new(function, vec![column(side)]);
        call.params.partition_by.clone_from(&keys);
        call.params.order_by = vec![SortExpr::new(column(is_right), true, false)];
        call.params.window_frame = WindowFrame::new_bounds(
            WindowFrameUnits::Rows,
            WindowFrameBound::Preceding(ScalarValue::UInt64(None)),
            WindowFrameBound::CurrentRow,
        );
        Expr::WindowFunction(Box::new(call)).alias(name)
    };
    let counts = vec![count(is_left, lefts), count(is_right, rights)];
    let counted = Window::try_new(counts, Arc::new(LogicalPlan::Union(union))).map_err(bind_error)?;
    let operator = match kept {
        Kept::Common => Operator::LtEq,
        Kept::Excess => Operator::Gt,
    };
    let condition = Expr::IsNotNull(Box::new(column(is_left))).and(binary_of(column(lefts), operator, column(rights)));
    let filtered = Filter::try_new(condition, Arc::new(LogicalPlan::Window(counted))).map_err(bind_error)?;
    project(LogicalPlan::Filter(filtered), names.iter().map(column).collect())
}
