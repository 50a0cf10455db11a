//! The memory of batch queries: how much they may hold, and plans that keep to it.
//!
//! What can go to disk does so before it takes more than its part: sorts, groups, merge joins, and the left side of joins without an equality.
//!
//! # Invariants
//! - Whatever of a query grows with its input is counted: what can't go to disk ends the query with `53200`, never the process.
//! - A plan gives the same rows whether or not it went to disk.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{RecordBatch, UInt64Array};
use arrow::compute::{concat_batches, take_record_batch};
use datafusion::common::JoinType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::ScalarFunctionExpr;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr_common::physical_expr::PhysicalExpr;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions, reset_plan_states};
use datafusion::physical_plan::joins::NestedLoopJoinExec;
use datafusion::physical_plan::limit::LocalLimitExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::StreamingTableExec;
use datafusion::physical_plan::windows::WindowAggExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::StreamExt;
use futures::future::Either;
use parking_lot::Mutex;
use weir_catalog::Result;

use crate::operators::error::from_datafusion;
use crate::state::memory_pool::Charge;

/// The memory of batch queries: bounded among themselves, and counted in the engine's pool.
///
/// What can go to disk has fair parts of what the rest leaves, and the rest leaves something to each: an operator that can't take one batch in can't go to
/// disk either.
#[derive(Debug)]
pub(super) struct QueryMemory {
    limit: usize,
    held: Mutex<Held>,
    counted: Charge,
}

/// What is held, bytes.
#[derive(Debug, Default)]
struct Held {
    /// By who can go to disk.
    spillable: usize,
    /// By all others.
    fixed: usize,
    /// How many there are who can go to disk.
    spillers: usize,
}

/// What is left to each who can go to disk, bytes; to all of them half of the limit at most.
const LEFT_BYTES: usize = 512 << 10;

/// One in so many bytes of the limit is left to those who can't go to disk, however much others would take.
const RESERVED_PART: usize = 8;

impl QueryMemory {
    /// `limit` bytes for all queries together, counted in `counted`.
    pub fn new(limit: usize, counted: Charge) -> QueryMemory {
        QueryMemory { limit, held: Mutex::default(), counted }
    }
}

impl fmt::Display for QueryMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl MemoryPool for QueryMemory {
    fn name(&self) -> &str {
        "queries"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.held.lock().spillers += usize::from(consumer.can_spill());
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.held.lock().spillers -= usize::from(consumer.can_spill());
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        let mut held = self.held.lock();
        if reservation.consumer().can_spill() {
            held.spillable += additional;
        } else {
            held.fixed += additional;
        }
        self.counted.add(additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        let mut held = self.held.lock();
        if reservation.consumer().can_spill() {
            held.spillable -= shrink;
        } else {
            held.fixed -= shrink;
        }
        self.counted.subtract(shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> DataFusionResult<()> {
        let mut held = self.held.lock();
        let room = if reservation.consumer().can_spill() {
            // A sort whose parts hold all that there is could not merge them.
            let part = (self.limit - self.limit / RESERVED_PART).saturating_sub(held.fixed) / held.spillers.max(1);
            part.saturating_sub(reservation.size())
        } else {
            let left = held.spillable.max((held.spillers * LEFT_BYTES).min(self.limit / 2));
            self.limit.saturating_sub(held.fixed + left)
        };
        if additional > room {
            return Err(DataFusionError::ResourcesExhausted(format!(
                "{} holds {} bytes and needs {additional} more; there is room for {room}, of {} for all queries",
                reservation.consumer().name(),
                reservation.size(),
                self.limit
            )));
        }
        if reservation.consumer().can_spill() {
            held.spillable += additional;
        } else {
            held.fixed += additional;
        }
        self.counted.add(additional);
        Ok(())
    }

    fn reserved(&self) -> usize {
        let held = self.held.lock();
        held.spillable + held.fixed
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.limit)
    }
}

/// `plan` as it is run: its joins give way now and then, for one batch of input can give any number of rows, and a query that never waits can't be
/// cancelled; what DataFusion keeps without counting it is counted; and joins go to disk only where that leaves their answer right. With `is_frugal`, tables
/// are read in small batches, and first rows are found by sorting all, which can go to disk.
pub(super) fn bounded(plan: Arc<dyn ExecutionPlan>, is_frugal: bool) -> Result<Arc<dyn ExecutionPlan>> {
    let is_join = |plan: &Arc<dyn ExecutionPlan>| {
        matches!(plan.name(), "CrossJoinExec" | "NestedLoopJoinExec" | "HashJoinExec" | "SortMergeJoinExec" | "PiecewiseMergeJoinExec")
    };
    plan.transform_up(|node| {
        let mut node = node;
        let recompute = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
            let children = sides_of(join);
            node = node.replace_children(children, recompute)?;
        } else if node.downcast_ref::<WindowAggExec>().is_some() {
            let children = node.children().into_iter().map(|input| Passing::over(input.clone(), What::Kept)).collect();
            node = node.replace_children(children, recompute)?;
        } else if let Some(sort) = node.downcast_ref::<SortExec>().filter(|_| is_frugal)
            && let Some(first) = sort.fetch()
        {
            let all = Arc::new(sort.with_fetch(None));
            node = Arc::new(LocalLimitExec::new(all, first));
        } else if is_frugal && node.downcast_ref::<StreamingTableExec>().is_some() {
            node = Passing::over(node, What::InSlices(FRUGAL_ROWS));
        }
        if matches!(node.name(), "ProjectionExec" | "FilterExec" | "AggregateExec") && makes_wide_texts(&node)? {
            let children = node.children().into_iter().map(|input| Passing::over(input.clone(), What::InSlices(SLICE_ROWS))).collect();
            node = node.replace_children(children, recompute)?;
            if node.name() != "AggregateExec" {
                node = Passing::over(node, What::Joined);
            }
        }
        Ok(if is_join(&node) {
            Transformed::yes(Arc::new(CooperativeExec::new(node)) as Arc<dyn ExecutionPlan>)
        } else {
            Transformed::yes(node)
        })
    })
    .map(|transformed| transformed.data)
    .map_err(from_datafusion)
}

/// The inputs of a join without an equality, which reads its left side again when that is too large for the memory. Then each part of the right side has
/// its own notion of what of the left side had no match: where that matters, there is to be one part.
fn sides_of(join: &NestedLoopJoinExec) -> Vec<Arc<dyn ExecutionPlan>> {
    let tells_unmatched =
        matches!(join.join_type(), JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark | JoinType::Full);
    let mut right = join.right().clone();
    if tells_unmatched && right.output_partitioning().partition_count() > 1 {
        right = Arc::new(CoalescePartitionsExec::new(right));
    }
    vec![Passing::over(join.left().clone(), What::ReadAgain), right]
}

/// The rows of `batch`, `most` at a time. Each slice has its rows alone: whoever counts one does not count them all.
fn slices_of(batch: RecordBatch, most: usize) -> impl Iterator<Item = DataFusionResult<RecordBatch>> {
    (0..batch.num_rows()).step_by(most).map(move |start| {
        if batch.num_rows() <= most {
            return Ok(batch.clone());
        }
        let end = (start + most).min(batch.num_rows());
        if batch.num_columns() == 0 {
            return Ok(batch.slice(start, end - start));
        }
        Ok(take_record_batch(&batch, &UInt64Array::from_iter_values(start as u64..end as u64))?)
    })
}

/// Whether an expression of `node` makes texts that are far longer than what they are made of.
fn makes_wide_texts(node: &Arc<dyn ExecutionPlan>) -> DataFusionResult<bool> {
    let mut wide = false;
    node.apply_expressions(&mut |root| {
        root.apply(|expr| {
            wide |= match expr.downcast_ref::<ScalarFunctionExpr>() {
                Some(function) => WIDENING.contains(&function.name()),
                None => expr.downcast_ref::<Literal>().is_some_and(|literal| literal.value().size() > WIDE_BYTES),
            };
            Ok(if wide { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })
    })?;
    Ok(wide)
}

/// Rows of a batch where the memory is short.
pub(super) const FRUGAL_ROWS: usize = 256;
/// Functions whose texts are far longer than their arguments.
const WIDENING: [&str; 3] = ["repeat", "lpad", "rpad"];
/// A value that takes more bytes is wide.
const WIDE_BYTES: usize = 4 << 10;
/// Rows of which wide texts are made at a time.
const SLICE_ROWS: usize = 32;
/// Batches with wide texts are put together up to this many bytes.
const JOINED_BYTES: usize = 4 << 20;

/// What is special about rows that pass.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    /// They come so many at a time at most.
    InSlices(usize),
    /// What comes few at a time is put together, up to a bound in bytes.
    Joined,
    /// Whoever takes them keeps all of them, and counts none: they are counted here, until the query is over.
    Kept,
    /// They may be asked for again.
    ReadAgain,
}

/// Rows on their way from one operator to another.
#[derive(Debug)]
struct Passing {
    input: Arc<dyn ExecutionPlan>,
    what: What,
    was_read: AtomicBool,
    kept: Mutex<Vec<Arc<MemoryReservation>>>,
}

impl Passing {
    fn over(input: Arc<dyn ExecutionPlan>, what: What) -> Arc<dyn ExecutionPlan> {
        Arc::new(Passing { input, what, was_read: AtomicBool::new(false), kept: Mutex::default() })
    }
}

impl DisplayAs for Passing {
    fn fmt_as(&self, _kind: DisplayFormatType, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Passing: {:?}", self.what)
    }
}

impl ExecutionPlan for Passing {
    fn name(&self) -> &str {
        "Passing"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _each: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DataFusionResult<TreeNodeRecursion>,
    ) -> DataFusionResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        Ok(Passing::over(children.swap_remove(0), self.what))
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn ExecutionPlan>>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        Ok(Passing::over(children.swap_remove(0), self.what))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        match self.what {
            What::ReadAgain => {
                // Operators that deal rows out can be read once only.
                let is_first = !self.was_read.swap(true, Ordering::SeqCst);
                let input = if is_first { self.input.clone() } else { reset_plan_states(self.input.clone())? };
                input.execute(partition, context)
            }
            What::InSlices(most) => {
                let rows = self.input.execute(partition, context)?;
                let schema = rows.schema();
                let slices = rows.flat_map(move |batch| match batch {
                    Ok(batch) => Either::Left(futures::stream::iter(slices_of(batch, most))),
                    Err(error) => Either::Right(futures::stream::iter([Err(error)])),
                });
                Ok(Box::pin(RecordBatchStreamAdapter::new(schema, slices)))
            }
            What::Joined => {
                let most = context.session_config().batch_size();
                let rows = self.input.execute(partition, context)?;
                let schema = rows.schema();
                let joined = futures::stream::try_unfold(rows, move |mut rows| async move {
                    let (mut batches, mut count, mut bytes) = (Vec::new(), 0, 0);
                    while count < most && bytes < JOINED_BYTES {
                        let Some(batch) = rows.next().await.transpose()? else { break };
                        count += batch.num_rows();
                        bytes += batch.get_array_memory_size();
                        batches.push(batch);
                    }
                    let Some(first) = batches.first() else { return Ok(None) };
                    let joined = concat_batches(&first.schema(), &batches)?;
                    Ok(Some((joined, rows)))
                });
                Ok(Box::pin(RecordBatchStreamAdapter::new(schema, joined)))
            }
            What::Kept => {
                let kept = Arc::new(MemoryConsumer::new("WindowInput").register(context.memory_pool()));
                self.kept.lock().push(kept.clone());
                let rows = self.input.execute(partition, context)?;
                let schema = rows.schema();
                let counted = rows.map(move |batch| {
                    let batch = batch?;
                    // All of them are put together once more.
                    kept.try_grow(2 * batch.get_array_memory_size())?;
                    Ok(batch)
                });
                Ok(Box::pin(RecordBatchStreamAdapter::new(schema, counted)))
            }
        }
    }
}
