//! Jobs that go on from a checkpoint which the views that they read have left behind: a job that was stopped by an error, while the views went on or
//! were built anew.
//!
//! ```text
//!   view   ──▶ 7 ──▶ 8 ──▶ 9 ──▶      the rows as of 7 are kept with the sink's checkpoint
//!   sink   ──▶ 7 ✕          └─ resumed: what leads from the rows of 7 to those of 9, then the changes
//! ```
//!
//! Of stored tables nothing is kept: the log is there from the checkpoint on, and what it says in all is read ([`crate::log::net`]).
//!
//! # Invariants
//! - What is kept is of the barrier of the job's own checkpoint, and stands in the same manifest: whatever a start finds, it is there or is not needed.
//! - It is kept until the job has a checkpoint again, or is dropped.

use weir_catalog::{JobKind, Object, ObjectId};

use super::Manager;
use super::jobs::RunningJob;
use crate::checkpoint::JobCheckpoint;

impl Manager {
    /// `members` are about to be stopped: where one of them goes on from its checkpoint when it is resumed, the rows of the views that it reads are kept as of
    /// that.
    pub(super) fn keep_inputs<'a>(&mut self, members: impl IntoIterator<Item = &'a ObjectId>) {
        let catalog = self.context.log.catalog();
        for id in members {
            let Some(job) = self.jobs.get(id).filter(|job| job.keeps_its_place()) else { continue };
            let Some(own) = self.manifest.jobs.get(id).filter(|own| own.inputs.is_empty()) else { continue };
            let views = job.job.inputs.iter().filter_map(|input| match catalog.get_id(*input).map(AsRef::as_ref) {
                Some(Object::Job(view)) => Some(view),
                _ => None,
            });
            let rows = views.map(|view| {
                let of_view = self.manifest.jobs.get(&view.id).filter(|of_view| of_view.barrier == own.barrier)?;
                Some((view.id, of_view.operators.get(&format!("{}/rows", view.name))?.clone()))
            });
            // Where they are not all there, the job has no checkpoint that it could go on from.
            let Some(rows) = rows.collect::<Option<_>>() else { continue };
            if let Some(own) = self.manifest.jobs.get_mut(id) {
                own.inputs = rows;
                self.manifest_dirty = true;
            }
        }
    }

    /// Whether the job `id` can go on from `checkpoint`, whatever has become of the views that it reads.
    pub(super) fn can_catch_up(&self, id: ObjectId, checkpoint: &JobCheckpoint) -> bool {
        let upstream = self.jobs.get(&id).map(|job| &job.upstream).filter(|upstream| !upstream.is_empty());
        upstream.is_some_and(|upstream| upstream.iter().all(|view| checkpoint.inputs.contains_key(view)))
    }

    /// Whether the job `id`, where it is restored, reads of its stored tables only what is left of their changes since its checkpoint: it, or what reads it, would
    /// meet a row on which it failed again and again, however long that row has been gone.
    pub(super) fn reads_net_changes(&self, id: ObjectId) -> bool {
        let fails_again = |member: &ObjectId| self.jobs.get(member).is_some_and(|job| job.failures > 0 || job.keeps_its_place());
        self.with_readers(id).iter().any(fails_again)
    }

    /// Whether a job can only go on from its checkpoint, and not be built again: it reads what comes once, or has written outside.
    pub(super) fn keeps_its_place(&self, id: ObjectId) -> bool {
        self.jobs.get(&id).is_some_and(RunningJob::keeps_its_place)
    }
}

impl RunningJob {
    /// Whether it needs the engine log to go on from its checkpoint: it reads a stored table itself.
    pub(super) fn reads_log(&self) -> bool {
        use weir_sql::graph::NodeOp;
        self.graph.nodes.is_empty() || self.graph.nodes.iter().any(|node| matches!(node.op, NodeOp::TableScan { .. }))
    }

    fn keeps_its_place(&self) -> bool {
        use weir_sql::graph::NodeOp;
        // One that can't be planned has no graph.
        !matches!(self.job.kind, JobKind::MaterializedView { .. })
            || self.graph.nodes.iter().any(|node| matches!(node.op, NodeOp::ConnectorScan { .. }))
    }
}
