//! DataFusion's optimiser, for plans that are run as batch queries, and what keeps it from changing their answers.
//!
//! # Invariants
//! - An expression that can fail is evaluated on no row that a filter or a join below it, as the query is written, has dropped: `(SELECT * FROM t WHERE v <> 0)`
//!   with `10 / v > 1` around it. A continuous query promises the same.
//! - Nor is the argument of an aggregate evaluated on rows that its FILTER leaves out.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, JoinType, Result as DataFusionResult};
use datafusion::logical_expr::expr::{AggregateFunction, AggregateFunctionParams, WindowFunction, WindowFunctionParams};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Case, Distinct, Expr, ExprSchemable, Filter, Join, LogicalPlan, Operator, WindowFunctionDefinition, binary_expr, lit,
};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::push_down_filter::PushDownFilter;
use datafusion::optimizer::{Optimizer, OptimizerConfig, OptimizerContext, OptimizerRule};
use weir_catalog::{Error, Result};

use super::guard::{can_fail, is_guarded, opaque_case};
use super::{bind_error, decorrelate, is_correlated, plain, semi, with_text_columns};

/// A rule of DataFusion's optimiser that is left out where a sum is computed beside a DISTINCT aggregate: the sum of sums that it makes of a sum of INT has
/// another type than the sum, which what stands above does not know.
const UNFIT_RULE: &str = "single_distinct_aggregation_to_group_by";

/// DataFusion's optimiser, for a plan that is run as a batch: correlated subqueries become joins, filters move down, and so on.
pub fn optimize_batch(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut options = ConfigOptions::default();
    options.optimizer.expand_views_at_output = false;
    let context = OptimizerContext::new_with_config_options(Arc::new(options));
    let optimize = |plan: LogicalPlan| {
        let plan = with_safe_aggregates(plan).map_err(bind_error)?;
        let mut optimizer = optimizer();
        if sums_beside_distinct(&plan).map_err(bind_error)? {
            optimizer.rules.retain(|rule| rule.name() != UNFIT_RULE);
        }
        optimizer.optimize(plan, &context, |_, _| {}).map_err(bind_error)
    };
    let plan = semi::join_tests(plan)?;
    let plan = match plain::needs_unnesting(&plan).map_err(bind_error)? {
        false => optimize(plan)?,
        true => {
            let joined = decorrelate::decorrelate(plan)?;
            // DataFusion's rules are not to see what is left.
            if is_correlated(&joined)? {
                return Err(Error::unsupported("this correlated subquery is not supported")
                    .with_hint("Join with the tables of the subquery and GROUP BY the columns of the outer query."));
            }
            optimize(joined)?
        }
    };
    with_text_columns(plan)
}

/// Whether an aggregate in `plan` computes a sum of all rows and something of different ones.
fn sums_beside_distinct(plan: &LogicalPlan) -> DataFusionResult<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Aggregate(aggregate) = node {
            let (mut sums, mut distinct) = (false, false);
            for expr in &aggregate.aggr_expr {
                expr.apply(|expr| {
                    if let Expr::AggregateFunction(AggregateFunction { func, params }) = expr {
                        distinct |= params.distinct;
                        sums |= !params.distinct && func.name() == "sum";
                    }
                    Ok(TreeNodeRecursion::Continue)
                })?;
            }
            found |= sums && distinct;
        }
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// DataFusion's rules, with ours in the place of the one that moves filters.
fn optimizer() -> Optimizer {
    let mut optimizer = Optimizer::new();
    let moves = PushDownFilter::new();
    for rule in &mut optimizer.rules {
        if rule.name() == moves.name() {
            *rule = Arc::new(GuardedPushDown(PushDownFilter::new()));
        }
    }
    optimizer
}

/// The plan with aggregates that fail on no row that they leave out, and to which both zeros are one value.
fn with_safe_aggregates(plan: LogicalPlan) -> DataFusionResult<LogicalPlan> {
    let transformed = plan.transform_up_with_subqueries(|node| {
        if !matches!(node, LogicalPlan::Aggregate(_) | LogicalPlan::Window(_)) {
            return Ok(Transformed::no(node));
        }
        let names = NamePreserver::new(&node);
        let Some(schema) = node.inputs().first().map(|input| Arc::clone(input.schema())) else { return Ok(Transformed::no(node)) };
        node.map_expressions(|expr| {
            let name = names.save(&expr);
            let safe = expr.transform_up(|expr| safe_aggregate(expr, &schema))?;
            Ok(if safe.transformed { safe.update_data(|expr| name.restore(expr)) } else { safe })
        })
    });
    transformed.map(|transformed| transformed.data)
}

fn safe_aggregate(mut expr: Expr, schema: &DFSchema) -> DataFusionResult<Transformed<Expr>> {
    let (arguments, distinct, filter) = match &mut expr {
        Expr::AggregateFunction(AggregateFunction { params: AggregateFunctionParams { args, distinct, filter, .. }, .. }) => {
            (args, *distinct, filter.as_deref())
        }
        Expr::WindowFunction(call) => match call.as_mut() {
            WindowFunction {
                fun: WindowFunctionDefinition::AggregateUDF(_),
                params: WindowFunctionParams { args, distinct, filter, .. },
            } => (args, *distinct, filter.as_deref()),
            _ => return Ok(Transformed::no(expr)),
        },
        _ => return Ok(Transformed::no(expr)),
    };
    let mut changed = false;
    for argument in arguments {
        if distinct && argument.get_type(schema)? == DataType::Float64 {
            // What DataFusion counts are bits.
            *argument = binary_expr(std::mem::take(argument), Operator::Plus, lit(0.0f64));
            changed = true;
        }
        if let Some(filter) = filter
            && can_fail(argument)
        {
            *argument = only_where(filter.clone(), std::mem::take(argument), schema)?;
            changed = true;
        }
    }
    Ok(if changed { Transformed::yes(expr) } else { Transformed::no(expr) })
}

/// `value` where `condition` is true, else NULL.
fn only_where(condition: Expr, value: Expr, schema: &DFSchema) -> DataFusionResult<Expr> {
    let arm = (condition, value);
    if arm.1.get_type(schema)? == DataType::Boolean {
        return Ok(opaque_case(vec![arm], None));
    }
    Ok(Expr::Case(Case::new(None, vec![(Box::new(arm.0), Box::new(arm.1))], None)))
}

/// DataFusion's rule that moves filters to where rows come from, kept from moving conditions that can fail below the filters and joins that they may rely on.
/// Such a condition goes down past what keeps all rows, and then stays in a filter of its own.
#[derive(Debug)]
struct GuardedPushDown(PushDownFilter);

impl OptimizerRule for GuardedPushDown {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> DataFusionResult<Transformed<LogicalPlan>> {
        // The filters that stand one over the other, the outermost first, and what is below them.
        let mut levels: Vec<Vec<Expr>> = Vec::new();
        let mut below = &plan;
        while let LogicalPlan::Filter(filter) = below {
            levels.push(split_conjunction_owned(filter.predicate.clone()));
            below = &filter.input;
        }
        let held_in_join = match below {
            LogicalPlan::Join(join) => risky_conditions(join),
            _ => Vec::new(),
        };
        if held_in_join.is_empty() && !levels.iter().flatten().any(can_fail) {
            return self.0.rewrite(plan, config);
        }
        let may_pass = match levels.as_slice() {
            [level] => {
                let mut risky = level.iter().filter(|condition| can_fail(condition));
                passes_all_rows(below) && (level.iter().all(can_fail) || risky.all(is_guarded))
            }
            _ => false,
        };
        let (held, moving) = if may_pass { (Vec::new(), levels.concat()) } else { split_levels(&levels) };
        let split = !held.iter().chain(Some(&moving).filter(|moving| !moving.is_empty())).eq(levels.iter());
        let Some(moved) = self.move_down(moving, below, held_in_join, config)? else { return Ok(Transformed::no(plan)) };
        let transformed = split || moved.transformed;
        let mut data = moved.data;
        for conditions in held.into_iter().rev() {
            data = filtered(conditions, data)?;
        }
        Ok(if transformed { Transformed::yes(data) } else { Transformed::no(data) })
    }
}

impl GuardedPushDown {
    /// `conditions` over `below`, moved down as DataFusion does it, while the conditions `held` stay in the join that `below` is. `None` if that join is lost.
    fn move_down(
        &self,
        conditions: Vec<Expr>,
        below: &LogicalPlan,
        held: Vec<Expr>,
        config: &dyn OptimizerConfig,
    ) -> DataFusionResult<Option<Transformed<LogicalPlan>>> {
        let mut below = below.clone();
        if let LogicalPlan::Join(join) = &mut below
            && !held.is_empty()
        {
            let kept = join.filter.take().map_or_else(Vec::new, split_conjunction_owned).into_iter().filter(|term| !held.contains(term));
            join.filter = conjunction(kept);
        }
        let is_filter_or_join = !conditions.is_empty() || matches!(below, LogicalPlan::Join(_));
        let plan = filtered(conditions, below)?;
        let moved = if is_filter_or_join { self.0.rewrite(plan, config)? } else { Transformed::no(plan) };
        if held.is_empty() {
            return Ok(Some(moved));
        }
        let transformed = moved.transformed;
        Ok(with_join_filter(moved.data, held).map(|plan| if transformed { Transformed::yes(plan) } else { Transformed::no(plan) }))
    }
}

/// The conditions that can fail, level by level, and all others.
fn split_levels(levels: &[Vec<Expr>]) -> (Vec<Vec<Expr>>, Vec<Expr>) {
    let (mut held, mut moving) = (Vec::new(), Vec::new());
    for level in levels {
        let (risky, safe): (Vec<Expr>, Vec<Expr>) = level.iter().cloned().partition(can_fail);
        moving.extend(safe);
        if !risky.is_empty() {
            held.push(risky);
        }
    }
    (held, moving)
}

/// The conditions of a join that can fail, where the join has others that may guard them.
fn risky_conditions(join: &Join) -> Vec<Expr> {
    let Some(filter) = &join.filter else { return Vec::new() };
    let (risky, safe): (Vec<Expr>, Vec<Expr>) = split_conjunction_owned(filter.clone()).into_iter().partition(can_fail);
    if safe.is_empty() && join.on.is_empty() { Vec::new() } else { risky }
}

/// Whether every row of the inputs of `plan`'s root is in its result, so that what fails above it fails below it too.
fn passes_all_rows(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Join(join) => join.join_type == JoinType::Inner && join.on.is_empty() && join.filter.is_none(),
        LogicalPlan::Projection(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Window(_)
        | LogicalPlan::Aggregate(_)
        | LogicalPlan::Distinct(Distinct::All(_))
        | LogicalPlan::Union(_)
        | LogicalPlan::TableScan(_) => true,
        _ => false,
    }
}

fn filtered(conditions: Vec<Expr>, input: LogicalPlan) -> DataFusionResult<LogicalPlan> {
    Ok(match conjunction(conditions) {
        Some(predicate) => LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(input))?),
        None => input,
    })
}

/// The plan with `conditions` among those of the join that stands below its filters.
fn with_join_filter(plan: LogicalPlan, conditions: Vec<Expr>) -> Option<LogicalPlan> {
    match plan {
        LogicalPlan::Join(mut join) => {
            join.filter = conjunction(join.filter.into_iter().chain(conditions));
            Some(LogicalPlan::Join(join))
        }
        LogicalPlan::Filter(mut filter) => {
            filter.input = Arc::new(with_join_filter(Arc::unwrap_or_clone(filter.input), conditions)?);
            Some(LogicalPlan::Filter(filter))
        }
        _ => None,
    }
}
