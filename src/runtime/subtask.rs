//! The subtask loop: takes elements in, calls the chain, aligns barriers, takes snapshots and reports.
//!
//! # Invariants
//! - Barriers leave a subtask in the order of their numbers, each after everything of its epoch.
//! - At a checkpoint barrier the snapshot is taken after the barrier was sent on and before any later element is looked at.
//! - What happens in a subtask is told to the job manager as [`SubtaskEvent`]s; the manager never waits for a subtask and a subtask never for the manager.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use weir_catalog::{Error, ObjectId, Result};

use super::chain::Chain;
use super::exchange::OutputEdge;
use super::inbox::Inbox;
use super::metrics;
use super::replay::Replay;
use crate::checkpoint::snapshot::{SnapshotTaker, SubtaskSnapshot};
use crate::seams::clock::{Clock, Stopwatch};
use crate::seams::faults::{self, Fault};
use crate::sources::{Source, SourceEvent, Splits};
use crate::state::memory_pool::Reservation;
use crate::state::versions::{VersionSnapshot, Versions};
use crate::stream::{Barrier, BarrierNumber, Batch, CommitSeq, Element};

/// The rows that a source is asked for at a time.
pub const SOURCE_BATCH_ROWS: usize = 8192;

/// One run of one subtask of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SubtaskId {
    pub job: ObjectId,
    /// Which run of the job: events of a former run are stale.
    pub run: u64,
    /// Which chain of the job.
    pub chain: usize,
    pub subtask: usize,
}

/// What a subtask tells the job manager.
#[derive(Debug)]
pub enum SubtaskEvent {
    /// A root subtask has finished a barrier: what its epoch changed is there.
    Collected { id: SubtaskId, barrier: BarrierNumber },
    /// A subtask's part of a checkpoint is stored.
    Snapshot { id: SubtaskId, barrier: BarrierNumber, snapshot: SubtaskSnapshot },
    /// A subtask's part of a checkpoint could not be stored; the subtask goes on.
    SnapshotFailed { id: SubtaskId, barrier: BarrierNumber, error: Error },
    /// A connector subtask has come, at a barrier, to where readers had seen it in a former run.
    Replayed { id: SubtaskId, barrier: BarrierNumber },
    /// A source has sent all rows as of the barrier it was attached at.
    Backfilled { id: SubtaskId },
    /// A source has sent everything it will ever send.
    SourceEnded { id: SubtaskId },
    /// The subtask ended with an error.
    Failed { id: SubtaskId, error: Error },
}

/// What every subtask has.
pub struct SubtaskContext {
    pub id: SubtaskId,
    pub chain: Chain,
    /// Whether this is a root subtask, whose barriers are collected.
    pub root: bool,
    pub snapshots: SnapshotTaker,
    pub events: mpsc::UnboundedSender<SubtaskEvent>,
    pub clock: Clock,
    /// What its stateful operators hold of the memory pool, together.
    pub memory: Reservation,
    /// Readers of a view that join at a barrier, given to its root subtasks.
    pub attachments: Option<Attachments>,
    /// Where the subtask is restored together with others: it begins when this turns true.
    pub gate: Option<watch::Receiver<bool>>,
}

/// A reader that joins a view's root subtask at a barrier.
pub struct Attachment {
    /// From after this barrier on it gets the changes; 0: from the subtask's first row on.
    pub barrier: BarrierNumber,
    pub edge: OutputEdge,
    /// Given the view's rows as of the barrier once the edge stands; `None` where that reader has no use for them.
    pub attached: Option<Attached>,
}

/// How a reader gets the rows of the view's subtask that it joins, as of the barrier at which it does. They are opened there and then, so that they are
/// there however late the reader comes to scan them.
pub struct Attached {
    pub versions: Arc<Versions>,
    pub reader: oneshot::Sender<Option<Arc<VersionSnapshot>>>,
}

/// Where the manager leaves [`Attachment`]s for a root subtask.
pub type Attachments = Arc<parking_lot::Mutex<Vec<Attachment>>>;

/// A source of rows that are kept by weir itself: a stored table's, with its log, or a view's.
pub trait Feed: Send {
    /// The next rows as of the barrier at which it was attached; `None` when all have been given.
    fn next_backfill(&mut self, max_rows: usize) -> Result<Option<Batch>>;
    /// The next changes after the last cut, up to `commit` inclusive, none where it takes long to find them; `None` when all have been given.
    fn next_changes(&mut self, commit: CommitSeq) -> Result<Option<Batch>>;
}

/// Where a source chain's rows come from.
pub enum Head {
    /// A connector.
    Connector { source: Box<dyn Source>, barriers: mpsc::UnboundedReceiver<Arc<Barrier>>, replay: Replay },
    /// A stored table: rows as of the attachment, then the log cut at each barrier's commit.
    Table { feed: Box<dyn Feed>, backfill: bool, barriers: mpsc::UnboundedReceiver<Arc<Barrier>> },
    /// A view: its changes and barriers come through the inbox; with a backfill, its rows as of the attachment beside them.
    View { inbox: Inbox, backfill: Option<ViewBackfill>, project: ViewProjection },
    /// Edges from other chains.
    Inputs { inbox: Inbox },
}

/// Picks a view scan's columns out of the view's rows.
pub struct ViewProjection(pub Vec<usize>);

impl ViewProjection {
    fn apply(&self, batch: Batch) -> Result<Batch> {
        let rows = batch.rows.project(&self.0).map_err(crate::operators::error::from_arrow)?;
        Ok(Batch { rows, kinds: batch.kinds })
    }
}

/// How a reader of a view catches up.
pub struct ViewBackfill {
    /// The view's rows as of the barrier at which its subtask attached the edge.
    pub attached: oneshot::Receiver<Option<Arc<VersionSnapshot>>>,
    /// Makes a feed of them.
    pub open: Box<dyn FnOnce(Arc<VersionSnapshot>) -> Result<Box<dyn Feed>> + Send>,
    /// Barriers below this are swallowed; the manager sets it once all sources of the job have caught up.
    pub live_from: Arc<AtomicU64>,
}

/// Runs a subtask to its end; an error is reported as [`SubtaskEvent::Failed`].
pub async fn run(mut context: SubtaskContext, head: Head) {
    let id = context.id;
    let events = context.events.clone();
    let gate = context.gate.take();
    let drops_a_batch = faults::is_planted(Fault::BatchDroppedAfterRestore) && gate.is_some();
    if let Some(mut gate) = gate
        && gate.wait_for(|open| *open).await.is_err()
    {
        return; // The start was given up.
    }
    if let Some(attachments) = &context.attachments {
        let mut waiting = attachments.lock();
        let (due, later): (Vec<_>, Vec<_>) = waiting.drain(..).partition(|attachment| attachment.barrier == 0);
        *waiting = later;
        due.into_iter().for_each(|attachment| context.chain.add_edge(attachment.edge));
    }
    let ended = match head {
        Head::Connector { source, barriers, replay } => run_connector(&mut context, source, barriers, replay).await,
        Head::Table { feed, backfill, barriers } => run_table(&mut context, feed, backfill, barriers).await,
        Head::View { inbox, backfill, project } => run_view(&mut context, inbox, backfill, project).await,
        Head::Inputs { inbox } => run_inputs(&mut context, inbox, drops_a_batch).await,
    };
    if let Err(error) = ended {
        // The manager may be gone already; then nobody needs to know.
        let _ = events.send(SubtaskEvent::Failed { id, error });
    }
}

impl SubtaskContext {
    fn tell(&self, event: SubtaskEvent) {
        let _ = self.events.send(event);
    }

    /// What `work` gives, its time counted.
    fn busy<T>(&self, work: impl FnOnce() -> T) -> T {
        let stopwatch = Stopwatch::start();
        let done = work();
        metrics::add(&self.chain.metrics().busy_us, stopwatch.elapsed().as_micros() as u64);
        done
    }

    async fn process(&mut self, input: usize, batch: Batch) -> Result<()> {
        self.chain.process(input, batch).await?;
        self.check_memory().await
    }

    /// Accounts for the operators' memory, and has them shrink where the pool asks for it.
    async fn check_memory(&mut self) -> Result<()> {
        let total = self.measure();
        if total == 0 {
            return Ok(());
        }
        self.memory.resize(total);
        if let Some(target) = self.memory.shrink_target() {
            self.chain.shrink(total, target).await?;
            let total = self.measure();
            self.memory.resize(total);
        }
        Ok(())
    }

    fn measure(&mut self) -> usize {
        let mut total = 0;
        for chained in self.chain.operators_mut() {
            if let Some(stateful) = chained.operator.stateful() {
                let bytes = stateful.memory_bytes();
                metrics::set(&chained.metrics.memory_bytes, bytes as u64);
                total += bytes;
            }
        }
        total
    }

    /// Everything that a barrier asks of the subtask.
    async fn on_barrier(&mut self, barrier: &Arc<Barrier>, splits: Option<Splits>) -> Result<()> {
        let overtakes = faults::is_planted(Fault::BarrierOvertakesRows);
        if overtakes {
            self.chain.forward(Element::Barrier(barrier.clone())).await?;
        }
        self.chain.on_barrier(barrier).await?;
        self.check_memory().await?;
        if let Some(attachments) = &self.attachments {
            let due: Vec<Attachment> = {
                let mut waiting = attachments.lock();
                let (due, later) = waiting.drain(..).partition(|attachment| attachment.barrier <= barrier.number);
                *waiting = later;
                due
            };
            // The barrier is older than the reader: it goes to the edges that were there before.
            if !overtakes {
                self.chain.forward(Element::Barrier(barrier.clone())).await?;
            }
            for attachment in due {
                self.chain.add_edge(attachment.edge);
                if let Some(Attached { versions, reader }) = attachment.attached {
                    let _ = reader.send(versions.open(barrier.number));
                }
            }
        } else if !overtakes {
            self.chain.forward(Element::Barrier(barrier.clone())).await?;
        }
        if self.root {
            self.tell(SubtaskEvent::Collected { id: self.id, barrier: barrier.number });
        }
        if barrier.checkpoint && self.snapshots.has_state() {
            let started = self.snapshots.take(&mut self.chain, splits, barrier.number);
            match started {
                Ok(storing) => {
                    let (id, number, events) = (self.id, barrier.number, self.events.clone());
                    storing.finish(move |stored| {
                        let event = match stored {
                            Ok(snapshot) => SubtaskEvent::Snapshot { id, barrier: number, snapshot },
                            Err(error) => SubtaskEvent::SnapshotFailed { id, barrier: number, error },
                        };
                        let _ = events.send(event);
                    });
                }
                Err(error) => self.tell(SubtaskEvent::SnapshotFailed { id: self.id, barrier: barrier.number, error }),
            }
        }
        Ok(())
    }

    /// A barrier has come to a connector, which is cut where it stands. Returns the splits for the checkpoint, where the barrier is one's.
    fn cut(&self, barrier: &Barrier, source: &mut dyn Source, replay: &mut Replay) -> Result<Option<Splits>> {
        if barrier.checkpoint {
            source.prepare_checkpoint()?;
        }
        let splits = source.cut()?;
        if let Some(target) = &replay.target
            && source.has_come_to(target)?
        {
            replay.target = None;
            // Before the barrier goes on: whoever hears of the barrier further down has heard this.
            self.tell(SubtaskEvent::Replayed { id: self.id, barrier: barrier.number });
        }
        let of_checkpoint = barrier.checkpoint.then(|| splits.clone());
        replay.history.record(barrier.number, splits);
        Ok(of_checkpoint)
    }
}

async fn run_connector(
    context: &mut SubtaskContext,
    mut source: Box<dyn Source>,
    mut barriers: mpsc::UnboundedReceiver<Arc<Barrier>>,
    mut replay: Replay,
) -> Result<()> {
    let mut ended = false;
    // A connector has no rows to catch up with: it is where it should be from the start.
    context.tell(SubtaskEvent::Backfilled { id: context.id });
    let mut before_batch = None;
    loop {
        match barriers.try_recv() {
            Ok(barrier) => {
                let splits = context.cut(&barrier, source.as_mut(), &mut replay)?.map(|splits| before_batch.take().unwrap_or(splits));
                context.on_barrier(&barrier, splits).await?;
                continue;
            }
            Err(mpsc::error::TryRecvError::Disconnected) => return Ok(()),
            Err(mpsc::error::TryRecvError::Empty) => {}
        }
        let wait_us = if ended {
            None
        } else {
            let stopwatch = Stopwatch::start();
            let before = faults::is_planted(Fault::OffsetsOneBatchBehind).then(|| source.splits()).transpose()?.map(Splits::from);
            let event = source.poll(SOURCE_BATCH_ROWS, context.clock.now_us())?;
            metrics::add(&context.chain.metrics().busy_us, stopwatch.elapsed().as_micros() as u64);
            metrics::set(&context.chain.metrics().bad_records, source.bad_records());
            match event {
                // Records were read, and none of them was a row.
                SourceEvent::Batch(batch) if batch.num_rows() == 0 => {
                    context.chain.metrics().new_rows.store(true, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    continue;
                }
                SourceEvent::Batch(batch) => {
                    before_batch = before;
                    context.chain.metrics().new_rows.store(true, Ordering::Relaxed);
                    context.process(0, batch).await?;
                    tokio::task::yield_now().await;
                    continue;
                }
                SourceEvent::Wait(us) => Some(us),
                SourceEvent::End => {
                    ended = true;
                    context.chain.metrics().new_rows.store(true, Ordering::Relaxed);
                    context.tell(SubtaskEvent::SourceEnded { id: context.id });
                    None
                }
            }
        };
        let barrier = match wait_us {
            None => barriers.recv().await,
            Some(us) => match tokio::time::timeout(Duration::from_micros(us), barriers.recv()).await {
                Ok(barrier) => barrier,
                Err(_elapsed) => continue,
            },
        };
        let Some(barrier) = barrier else { return Ok(()) };
        let splits = context.cut(&barrier, source.as_mut(), &mut replay)?.map(|splits| before_batch.take().unwrap_or(splits));
        context.on_barrier(&barrier, splits).await?;
    }
}

async fn run_table(
    context: &mut SubtaskContext,
    mut feed: Box<dyn Feed>,
    backfill: bool,
    mut barriers: mpsc::UnboundedReceiver<Arc<Barrier>>,
) -> Result<()> {
    if backfill {
        while let Some(batch) = context.busy(|| feed.next_backfill(SOURCE_BATCH_ROWS))? {
            context.process(0, batch).await?;
            tokio::task::yield_now().await;
        }
    }
    context.tell(SubtaskEvent::Backfilled { id: context.id });
    while let Some(barrier) = barriers.recv().await {
        while let Some(batch) = context.busy(|| feed.next_changes(barrier.commit))? {
            if batch.num_rows() > 0 {
                context.process(0, batch).await?;
            }
            tokio::task::yield_now().await;
        }
        context.on_barrier(&barrier, None).await?;
    }
    Ok(())
}

async fn run_view(context: &mut SubtaskContext, inbox: Inbox, backfill: Option<ViewBackfill>, project: ViewProjection) -> Result<()> {
    let mut feed: Option<Box<dyn Feed>> = None;
    let mut live_from = None;
    if let Some(backfill) = backfill {
        let rows = backfill.attached.await.map_err(|_| super::exchange::receiver_gone())?;
        let rows = rows.ok_or_else(|| Error::internal("the version that a reader joins at is gone"))?;
        feed = Some((backfill.open)(rows)?);
        live_from = Some(backfill.live_from);
    } else {
        context.tell(SubtaskEvent::Backfilled { id: context.id });
    }
    loop {
        // Changes go first, so that a long backfill holds up the view as little as it can.
        let element = match &mut feed {
            None => Some(inbox.recv(&[false]).await.1),
            Some(rows) => match inbox.try_recv(&[false]) {
                Some((_, element)) => Some(element),
                None => {
                    match context.busy(|| rows.next_backfill(SOURCE_BATCH_ROWS))? {
                        Some(batch) => context.process(0, batch).await?,
                        None => {
                            feed = None;
                            context.tell(SubtaskEvent::Backfilled { id: context.id });
                        }
                    }
                    tokio::task::yield_now().await;
                    None
                }
            },
        };
        match element {
            None => {}
            Some(Element::Batch(_)) if faults::is_planted(Fault::ViewBackfillMissesChanges) && feed.is_some() => {}
            Some(Element::Batch(batch)) => context.process(0, project.apply(batch)?).await?,
            Some(Element::Barrier(barrier)) => {
                let live = live_from.as_ref().is_none_or(|from: &Arc<AtomicU64>| barrier.number >= from.load(Ordering::SeqCst));
                if live {
                    context.on_barrier(&barrier, None).await?;
                }
            }
            Some(element @ (Element::Watermark(_) | Element::Idle)) => context.chain.forward(element).await?,
            Some(Element::End) => return Ok(()),
        }
    }
}

async fn run_inputs(context: &mut SubtaskContext, inbox: Inbox, mut drops_a_batch: bool) -> Result<()> {
    let inputs = inbox.inputs();
    let mut blocked = vec![false; inputs];
    let mut ended = vec![false; inputs];
    let mut aligning: Option<(Arc<Barrier>, Stopwatch)> = None;
    let mut passed = 0;
    loop {
        let (input, element) = inbox.recv(&blocked).await;
        match element {
            Element::Batch(_) if drops_a_batch => drops_a_batch = false,
            Element::Batch(batch) => context.process(input, batch).await?,
            Element::Barrier(barrier) if faults::is_planted(Fault::BarrierNotAligned) => {
                // The first to come counts for all inputs.
                if barrier.number > passed {
                    passed = barrier.number;
                    context.on_barrier(&barrier, None).await?;
                }
            }
            Element::Barrier(barrier) => {
                match &aligning {
                    None => aligning = Some((barrier, Stopwatch::start())),
                    Some((first, _)) if first.number != barrier.number => {
                        return Err(Error::internal(format!(
                            "barrier {} came on an input while barrier {} was being aligned",
                            barrier.number, first.number
                        )));
                    }
                    Some(_) => {}
                }
                blocked[input] = true;
            }
            Element::End => {
                ended[input] = true;
                blocked[input] = true;
                if ended.iter().all(|ended| *ended) {
                    context.chain.forward(Element::End).await?;
                    return Ok(());
                }
            }
            Element::Watermark(_) | Element::Idle => {}
        }
        if blocked.iter().all(|blocked| *blocked)
            && let Some((barrier, stopwatch)) = aligning.take()
        {
            metrics::set(&context.chain.metrics().alignment_us, stopwatch.elapsed().as_micros() as u64);
            context.on_barrier(&barrier, None).await?;
            blocked.copy_from_slice(&ended);
        }
    }
}
