//! What clients read of a view: the versions that its root subtasks publish.
//!
//! # Invariants
//! - A version is offered only once every root subtask has it.
//! - While a job restarts, the versions of its former run stay; a new run takes over when it has published a version of its own. The manager publishes
//!   none that covers less of a connector than was shown before, and none is taken that covers less of the engine log.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::watch;
use weir_catalog::{Error, ObjectId, Result};

use crate::log::{Tables, TablesSnapshot};
use crate::operators::materialize::RowLayout;
use crate::state::StateSnapshot;
use crate::state::versions::Versions;
use crate::stream::{BarrierNumber, CommitSeq};

/// A barrier that a view has published, and the commit at which it cut the engine log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    pub barrier: BarrierNumber,
    pub commit: CommitSeq,
}

/// A materialized view as clients see it.
pub struct ViewHandle {
    pub id: ObjectId,
    name: RwLock<String>,
    pub layout: Arc<RowLayout>,
    state: RwLock<State>,
    /// Counts changes of `state`, for those who wait for one.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    current: Option<Run>,
    next: Option<Run>,
    /// Why the view shows nothing new any more.
    failed: Option<Error>,
    /// A version is shown only from this commit on: what the log held when the process started.
    min_commit: CommitSeq,
    /// The view whose place it is about to take: it shows nothing older than that does.
    former: Option<Arc<ViewHandle>>,
    /// While the job restarts: the stored tables as of the last version that was published, for statements over both.
    tables: Option<TablesSnapshot>,
}

struct Run {
    run: u64,
    versions: Vec<Arc<Versions>>,
    published: VecDeque<Published>,
}

/// How many published barriers are remembered.
const REMEMBERED: usize = 256;

impl ViewHandle {
    /// A view of which nothing was published yet. Nothing is shown before `min_commit` is covered.
    pub fn new(id: ObjectId, name: String, layout: Arc<RowLayout>, min_commit: CommitSeq) -> ViewHandle {
        let (name, state) = (RwLock::new(name), RwLock::new(State { min_commit, ..State::default() }));
        ViewHandle { id, name, layout, state, changed: watch::Sender::new(0) }
    }

    /// What it is called now.
    pub fn name(&self) -> String {
        self.name.read().clone()
    }

    /// It is called something else from now on; the view that was called so shows nothing new any more.
    pub fn rename(&self, name: String) {
        *self.name.write() = name;
        let former = self.state.write().former.take();
        if let Some(newest) = former.and_then(|former| former.newest()) {
            let mut state = self.state.write();
            state.min_commit = state.min_commit.max(newest);
        }
    }

    /// It shows nothing older than `former` does, until it is renamed, and afterwards nothing older than what that showed last.
    pub fn follow(&self, former: Arc<ViewHandle>) {
        self.state.write().former = Some(former);
    }

    /// The commit of the newest version that was published.
    fn newest(&self) -> Option<CommitSeq> {
        self.state.read().current.as_ref().and_then(|run| run.published.back()).map(|newest| newest.commit)
    }

    /// A new run begins; what it writes is in `versions`, one for each root subtask.
    pub fn begin_run(&self, run: u64, versions: Vec<Arc<Versions>>) {
        let mut state = self.state.write();
        state.next = Some(Run { run, versions, published: VecDeque::new() });
    }

    /// All root subtasks of `run` have finished a barrier.
    pub fn publish(&self, run: u64, published: Published) {
        {
            let mut state = self.state.write();
            if state.next.as_ref().is_some_and(|next| next.run == run) {
                let former = state.current.as_ref().and_then(|current| current.published.back()).map_or(0, |last| last.commit);
                if published.commit < former.max(state.min_commit) {
                    return;
                }
                state.current = state.next.take();
                state.tables = None;
            }
            let min_commit = state.min_commit;
            let Some(current) = state.current.as_mut().filter(|current| current.run == run) else { return };
            if published.commit < min_commit {
                return;
            }
            current.published.push_back(published);
            if current.published.len() > REMEMBERED {
                current.published.pop_front();
            }
            state.failed = None;
        }
        self.changed.send_modify(|count| *count += 1);
    }

    /// The job is about to be restarted. What it has published stays readable, for however long that takes, and so do the stored tables beside it.
    pub fn keep_tables(&self, tables: &Tables) {
        let mut state = self.state.write();
        let newest = state.current.as_ref().and_then(|run| run.published.back()).map(|newest| newest.commit);
        if let Some(commit) = newest
            && state.tables.as_ref().is_none_or(|kept| kept.seq() != commit)
        {
            state.tables = tables.snapshot(commit).ok();
        }
    }

    /// The stored tables as of `commit`, where they were kept for a restart.
    pub fn kept_tables(&self, commit: CommitSeq) -> Option<TablesSnapshot> {
        self.state.read().tables.clone().filter(|kept| kept.seq() == commit)
    }

    /// The job was stopped with an error: readers get it.
    pub fn fail(&self, error: Error) {
        self.state.write().failed = Some(error);
        self.changed.send_modify(|count| *count += 1);
    }

    /// The job is about to run again after it was stopped: readers wait for what it publishes, and what its former run published is gone.
    pub fn revive(&self) {
        let mut state = self.state.write();
        state.failed = None;
        state.current = None;
        state.tables = None;
    }

    /// Tells of each change of what can be read.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// The barriers whose versions can be read, oldest first. An error where the view's job was stopped with one.
    pub fn readable(&self) -> Result<Vec<Published>> {
        let state = self.state.read();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let Some(run) = &state.current else { return Ok(Vec::new()) };
        let oldest = run.versions.iter().map(|versions| versions.range().0).max().unwrap_or(0);
        let former = state.former.as_ref().and_then(|former| former.newest()).unwrap_or(0);
        let is_readable = |published: &&Published| published.barrier >= oldest && published.commit >= state.min_commit.max(former);
        Ok(run.published.iter().filter(is_readable).copied().collect())
    }

    /// The rows as of a barrier, one snapshot a root subtask; `None` where that version is gone.
    pub fn open(&self, barrier: BarrierNumber) -> Option<Vec<Arc<dyn StateSnapshot>>> {
        let state = self.state.read();
        let run = state.current.as_ref()?;
        run.versions.iter().map(|versions| versions.open(barrier).map(|snapshot| snapshot as Arc<dyn StateSnapshot>)).collect()
    }

    /// The root subtasks' versions of the run under way, for readers that join it.
    pub fn running_versions(&self) -> Option<Vec<Arc<Versions>>> {
        let state = self.state.read();
        state.next.as_ref().or(state.current.as_ref()).map(|run| run.versions.clone())
    }
}
