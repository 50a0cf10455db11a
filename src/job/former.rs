//! What a sink has been sent: the result of the query that it had, as of a savepoint of it.
//!
//! It is made of what the savepoint has, in the way of that query: the results of its last aggregates from their state, and the rows of the tables and views that
//! come to it without one; through the filters and projections behind.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use weir_catalog::{Catalog, Error, JobKind, Object, ObjectId, Result};
use weir_sql::graph::{Node, NodeId, NodeOp, StreamGraph};

use super::build::BuildContext;
use super::difference::{saved_layout, saved_projection};
use super::plan::plan_job;
use super::savepoint_start::SavepointStart;
use super::upgrade::{aggregate_spec, providers};
use crate::checkpoint::{Part, Savepoint};
use crate::log::layout::{TableLayout, stored_range};
use crate::operators::error::from_arrow;
use crate::operators::materialize::RowReader;
use crate::operators::{Aggregate, Calc, Operator, Output, Unnest};
use crate::state::scratch::{ScratchBackend, ScratchFolder};
use crate::state::{EncodedRows, StateBackend};
use crate::stream::{Barrier, Batch, KeyGroupRange};

/// How many rows are read at a time.
const BATCH_ROWS: usize = 8192;

/// The plan of the job that `saved` is of, and what it was made over: a catalog with what it read as it was then.
///
/// Errors with `0A000` where it named views that are not what they were.
pub fn former_plan(saved: &Savepoint, catalog: &Catalog) -> Result<(StreamGraph, Catalog)> {
    let then = saved.inputs.iter().fold(catalog.clone(), |catalog, input| catalog.with(input.object.clone()));
    let graph = plan_job(&then, &saved.job)?;
    // Views are in its query, and the savepoint has no text of them.
    if !saved.job.macros.is_empty() && saved.result != Some(weir_sql::result_derivation(&graph, &then)?) {
        return Err(Error::unsupported("the query in the savepoint names views that may have changed since"));
    }
    Ok((graph, then))
}

/// The former result, as far as one subtask takes it back.
pub struct FormerResult<'a> {
    pub context: &'a BuildContext,
    pub start: &'a SavepointStart,
    pub graph: &'a StreamGraph,
    /// A folder for what is opened of the savepoint.
    pub folder: &'a Arc<ScratchFolder>,
    pub subtask: usize,
    pub parallelism: usize,
}

/// Takes the rows that a provider sends through what stands between it and the sink.
struct Flow<'a> {
    graph: &'a StreamGraph,
    /// By node, where its rows go: one entry an edge.
    consumers: BTreeMap<NodeId, Vec<NodeId>>,
    operators: BTreeMap<NodeId, Box<dyn Operator>>,
    take: &'a mut dyn FnMut(&Batch) -> Result<()>,
}

/// The output of `from`.
struct From<'a, 'b> {
    flow: &'a mut Flow<'b>,
    from: NodeId,
}

impl Output for From<'_, '_> {
    fn emit(&mut self, batch: Batch) -> Result<()> {
        self.flow.send(self.from, &batch)
    }
}

#[derive(Default)]
struct Collected(Vec<Batch>);

impl Output for Collected {
    fn emit(&mut self, batch: Batch) -> Result<()> {
        self.0.push(batch);
        Ok(())
    }
}

impl<'a> Flow<'a> {
    fn new(graph: &'a StreamGraph, take: &'a mut dyn FnMut(&Batch) -> Result<()>) -> Result<Flow<'a>> {
        let (mut consumers, mut operators): (BTreeMap<NodeId, Vec<NodeId>>, BTreeMap<NodeId, Box<dyn Operator>>) = Default::default();
        for node in &graph.nodes {
            for edge in &node.inputs {
                consumers.entry(edge.from).or_default().push(node.id);
            }
            match &node.op {
                NodeOp::Calc { input, filter, projection } => {
                    let calc = Calc::new(input, filter.as_ref(), projection, node.schema.clone())?;
                    operators.insert(node.id, Box::new(calc));
                }
                NodeOp::Unnest { array, output, outer } => {
                    operators.insert(node.id, Box::new(Unnest::new(*array, output.clone(), *outer, node.schema.clone())));
                }
                _ => {}
            }
        }
        Ok(Flow { graph, consumers, operators, take })
    }

    fn send(&mut self, from: NodeId, batch: &Batch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        for to in self.consumers.get(&from).cloned().unwrap_or_default() {
            match (&self.graph.nodes[to].op, self.operators.get_mut(&to)) {
                (NodeOp::Sink, _) => (self.take)(batch)?,
                (NodeOp::Union, _) => self.send(to, batch)?,
                (_, Some(operator)) => {
                    let mut out = Collected::default();
                    operator.process(0, batch.clone(), &mut out)?;
                    out.0.iter().try_for_each(|batch| self.send(to, batch))?;
                }
                // What has state sends its result itself.
                (_, None) => {}
            }
        }
        Ok(())
    }
}

impl FormerResult<'_> {
    /// Calls `take` with all rows, a batch at a time. Waits for disk.
    pub fn each(&self, take: &mut dyn FnMut(&Batch) -> Result<()>) -> Result<()> {
        let mut flow = Flow::new(self.graph, take)?;
        for provider in providers(self.graph, self.graph.root()) {
            let node = &self.graph.nodes[provider];
            match &node.op {
                NodeOp::Aggregate { .. } => self.send_groups(node, &mut flow)?,
                NodeOp::TableScan { table, projection } if self.subtask == 0 => self.send_table(node, *table, projection, &mut flow)?,
                NodeOp::ViewScan { view, projection } => self.send_view(node, *view, projection, &mut flow)?,
                NodeOp::Values { rows } if self.subtask == 0 => flow.send(node.id, &Batch::insert(rows.clone()))?,
                // What came from a connector without an aggregate stays as it was written.
                _ => {}
            }
        }
        Ok(())
    }

    fn range(&self) -> KeyGroupRange {
        KeyGroupRange::of_subtask(self.subtask, self.parallelism)
    }

    fn open(&self, node: &Node, parts: &[&Part], range: KeyGroupRange) -> Result<ScratchBackend> {
        let dir: PathBuf = self.folder.path().join(format!("former-{}-{}", node.id, self.subtask));
        let backend = self.context.open_backend_of(&dir, parts, range, Some(&self.start.place))?;
        Ok(ScratchBackend::new(backend, self.folder.clone()))
    }

    fn send_groups(&self, node: &Node, flow: &mut Flow<'_>) -> Result<()> {
        let range = self.range();
        let stored = node.uid.as_ref().and_then(|uid| self.start.saved.checkpoint.operators.get(uid));
        let parts: Vec<&Part> = stored.iter().flat_map(|stored| &stored.parts).filter(|part| part.range.overlaps(&range)).collect();
        let spec = aggregate_spec(self.graph, node).ok_or_else(|| Error::internal("an aggregate has no input"))?;
        let mut aggregate = Aggregate::new(spec, Box::new(self.open(node, &parts, range)?), range)?;
        aggregate.send_all_first();
        let barrier = Barrier { number: 0, commit: 0, time_us: self.start.saved.checkpoint.time_us, checkpoint: false };
        aggregate.on_barrier(&barrier, &mut From { flow, from: node.id })
    }

    fn send_table(&self, node: &Node, id: ObjectId, projection: &[usize], flow: &mut Flow<'_>) -> Result<()> {
        let saved = self.start.saved.inputs.iter().find_map(|input| match &input.object {
            Object::StoredTable(table) if table.id == id => Some(table),
            _ => None,
        });
        let (Some(table), Some(tables)) = (saved, &self.start.saved.tables) else {
            return Err(Error::internal(format!("the savepoint has no rows of table {id}")));
        };
        let backend = self.open(node, &[&tables.part], KeyGroupRange::ALL)?;
        let layout = TableLayout::new(table)?;
        let (range, _) = stored_range(id);
        let mut rows = EncodedRows::new();
        let mut send = |rows: &mut EncodedRows| -> Result<()> {
            let columns = layout.decode_rows(rows.iter(), Some(projection))?;
            let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows.len()));
            let batch = arrow::array::RecordBatch::try_new_with_options(node.schema.clone(), columns, &options).map_err(from_arrow)?;
            rows.clear();
            flow.send(node.id, &Batch::insert(batch))
        };
        backend.scan(&range.start, &range.end, &mut |_, row| {
            rows.push(row);
            if rows.len() >= BATCH_ROWS {
                send(&mut rows)?;
            }
            Ok(true)
        })?;
        if rows.is_empty() { Ok(()) } else { send(&mut rows) }
    }

    fn send_view(&self, node: &Node, id: ObjectId, projection: &[usize], flow: &mut Flow<'_>) -> Result<()> {
        let saved = self.start.saved.inputs.iter().find_map(|input| match (&input.object, &input.rows) {
            (Object::Job(job), Some(rows)) if job.id == id => Some((job, rows)),
            _ => None,
        });
        let Some((job, rows)) = saved else { return Err(Error::internal(format!("the savepoint has no rows of view {id}"))) };
        let JobKind::MaterializedView { key, .. } = &job.kind else { return Err(Error::internal(format!("\"{}\" was no view", job.name))) };
        let range = self.range();
        let parts: Vec<&Part> = rows.parts.iter().filter(|part| part.range.overlaps(&range)).collect();
        let backend = self.open(node, &parts, range)?;
        let mut reader = RowReader::new(saved_layout(&job.columns, key.clone())?, backend.snapshot()?);
        let columns = saved_projection(&job.name, &job.columns, &job.columns, projection)?;
        while let Some(rows) = reader.next_batch(BATCH_ROWS)? {
            flow.send(node.id, &Batch::insert(rows.project(&columns).map_err(from_arrow)?))?;
        }
        Ok(())
    }
}
