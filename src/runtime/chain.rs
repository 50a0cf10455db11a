//! A chain: operators of one subtask that hand rows to each other by a call, and what the last one sends away.

use std::sync::Arc;

use weir_catalog::{Error, Result};

use super::exchange::OutputEdge;
use super::metrics::{self, OperatorMetrics, SubtaskMetrics};
use crate::operators::{Operator, Output};
use crate::seams::clock::Stopwatch;
use crate::seams::spawn::in_place;
use crate::stream::{Barrier, Batch, Element};

/// An operator in a chain.
pub struct ChainedOperator {
    pub operator: Box<dyn Operator>,
    /// What names it in errors: what EXPLAIN calls it.
    pub name: String,
    pub metrics: Arc<OperatorMetrics>,
}

/// The operators of a subtask, first to last, and its outgoing edges.
pub struct Chain {
    operators: Vec<ChainedOperator>,
    edges: Vec<OutputEdge>,
    metrics: Arc<SubtaskMetrics>,
    /// Of the source that it begins with, if it does with one.
    source: Option<Arc<OperatorMetrics>>,
    /// What the last operator emitted in the present call and is still to be sent.
    pending: Vec<Batch>,
}

/// The rest of a chain, as the output of the operator before it.
struct Rest<'a> {
    operators: &'a mut [ChainedOperator],
    pending: &'a mut Vec<Batch>,
    from: Option<&'a OperatorMetrics>,
}

impl Output for Rest<'_> {
    fn emit(&mut self, batch: Batch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        if let Some(from) = self.from {
            metrics::add(&from.rows_out, batch.num_rows() as u64);
        }
        match self.operators.split_first_mut() {
            None => {
                self.pending.push(batch);
                Ok(())
            }
            Some((first, operators)) => first.process(0, batch, operators, self.pending),
        }
    }
}

impl ChainedOperator {
    fn process(&mut self, input: usize, batch: Batch, rest: &mut [ChainedOperator], pending: &mut Vec<Batch>) -> Result<()> {
        metrics::add(&self.metrics.rows_in, batch.num_rows() as u64);
        let mut output = Rest { operators: rest, pending, from: Some(&self.metrics) };
        self.operator.process(input, batch, &mut output).map_err(|error| in_operator(error, &self.name))
    }
}

/// `error` with the operator it came from.
fn in_operator(error: Error, name: &str) -> Error {
    let context = match error.context() {
        Some(context) => format!("{context}\noperator {name}"),
        None => format!("operator {name}"),
    };
    error.with_context(context)
}

impl Chain {
    /// A chain of `operators` that sends what the last one emits over `edges`.
    pub fn new(operators: Vec<ChainedOperator>, edges: Vec<OutputEdge>, metrics: Arc<SubtaskMetrics>) -> Chain {
        Chain { operators, edges, metrics, source: None, pending: Vec::new() }
    }

    /// The chain, whose rows come from a source with these counters.
    pub fn with_source(mut self, source: Option<Arc<OperatorMetrics>>) -> Chain {
        self.source = source;
        self
    }

    /// The operators, first to last.
    pub fn operators_mut(&mut self) -> &mut [ChainedOperator] {
        &mut self.operators
    }

    /// The subtask's counters.
    pub fn metrics(&self) -> &Arc<SubtaskMetrics> {
        &self.metrics
    }

    /// One more outgoing edge, from here on.
    pub fn add_edge(&mut self, edge: OutputEdge) {
        self.edges.retain(|edge| !edge.is_detached());
        self.edges.push(edge);
    }

    /// Takes rows through the chain and sends what comes out.
    pub async fn process(&mut self, input: usize, batch: Batch) -> Result<()> {
        let stopwatch = Stopwatch::start();
        if let Some(source) = &self.source {
            metrics::add(&source.rows_out, batch.num_rows() as u64);
        }
        match self.operators.split_first_mut() {
            None => self.pending.push(batch),
            Some((first, rest)) => first.process(input, batch, rest, &mut self.pending)?,
        }
        metrics::add(&self.metrics.busy_us, stopwatch.elapsed().as_micros() as u64);
        self.send_pending().await?;
        // What rows can pile up behind is a sink, and that is the last one.
        if let Some(ChainedOperator { operator, name, .. }) = self.operators.last_mut()
            && let Some(backlog) = operator.backlog()
        {
            backlog.await.map_err(|error| in_operator(error, name))?;
        }
        Ok(())
    }

    /// Ends the epoch in every operator, first to last, and sends what they emit; the barrier itself is sent by [`Chain::forward`].
    pub async fn on_barrier(&mut self, barrier: &Barrier) -> Result<()> {
        for at in 0..self.operators.len() {
            let stopwatch = Stopwatch::start();
            let (head, rest) = self.operators.split_at_mut(at + 1);
            let ChainedOperator { operator, name, metrics: counters } = &mut head[at];
            let mut output = Rest { operators: rest, pending: &mut self.pending, from: Some(counters) };
            operator.on_barrier(barrier, &mut output).map_err(|error| in_operator(error, name))?;
            metrics::add(&self.metrics.busy_us, stopwatch.elapsed().as_micros() as u64);
            self.send_pending().await?;
        }
        Ok(())
    }

    /// Has the stateful operators, which hold `total` bytes together, shrink to about `target`, and sends what they emit.
    pub async fn shrink(&mut self, total: usize, target: usize) -> Result<()> {
        for at in 0..self.operators.len() {
            let (head, rest) = self.operators.split_at_mut(at + 1);
            let ChainedOperator { operator, name, metrics: counters } = &mut head[at];
            if let Some(stateful) = operator.stateful() {
                let share = (stateful.memory_bytes() as u128 * target as u128 / total.max(1) as u128) as usize;
                let mut output = Rest { operators: rest, pending: &mut self.pending, from: Some(counters) };
                in_place(|| stateful.shrink(share, &mut output)).map_err(|error| in_operator(error, name))?;
            }
        }
        self.send_pending().await
    }

    /// Sends `element` over all edges.
    pub async fn forward(&mut self, element: Element) -> Result<()> {
        for edge in &mut self.edges {
            edge.broadcast(&element, &self.metrics).await?;
        }
        Ok(())
    }

    async fn send_pending(&mut self) -> Result<()> {
        for batch in self.pending.drain(..) {
            let Some((last, others)) = self.edges.split_last_mut() else { continue };
            for edge in others {
                edge.send_batch(batch.clone(), &self.metrics).await?;
            }
            last.send_batch(batch, &self.metrics).await?;
        }
        Ok(())
    }
}
