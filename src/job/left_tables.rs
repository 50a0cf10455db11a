//! The stored tables as a job that was stopped by an error has last read them.
//!
//! Its checkpoint has the commit at which it had cut the engine log, and the log is kept from there. The newest checkpoint of the tables is of a later commit: what the log
//! says of the rows between the two is taken back in a copy of that, and stored for whoever begins with what the job has left.

use std::sync::Arc;

use weir_catalog::{Catalog, Error, Object, Result, SqlState};

use super::build::BuildContext;
use super::manager::PinnedCheckpoint;
use crate::checkpoint::TablesCheckpoint;
use crate::checkpoint::snapshot::store_part;
use crate::checkpoint::store::NO_CHECKPOINT;
use crate::log::{NetChanges, Tables};
use crate::seams::spawn::Spawner;
use crate::state::scratch::ScratchFolder;
use crate::state::{StateBackend, Writes};
use crate::stream::KeyGroupRange;

/// How many rows are written at a time.
const WRITE_ROWS: usize = 4096;

/// What is needed of an engine for that.
pub(super) struct LeftTables {
    pub(super) build: BuildContext,
    pub(super) tables: Arc<Tables>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) spawner: Spawner,
}

impl LeftTables {
    /// `pinned` with the stored tables that its job reads as of its very commit. Waits for disk.
    ///
    /// Errors with `55000` where the log does not reach back to it.
    pub(super) fn complete(&self, mut pinned: PinnedCheckpoint) -> Result<PinnedCheckpoint> {
        if pinned.is_of_one_moment() {
            return Ok(pinned);
        }
        let commit = pinned.checkpoint.commit;
        let newest = pinned.tables.as_ref().filter(|newest| newest.commit > commit).ok_or_else(|| {
            Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                "the stored tables have no checkpoint yet that is as new as the one of the job",
            )
            .with_hint("Try again after CHECKPOINT.")
        })?;
        let name = format!("left-{}-{}", pinned.job.id, self.build.incarnation());
        let folder = ScratchFolder::create(self.build.files.clone(), self.spawner.clone(), self.build.scratch.join(name))?;
        let mut backend = self.build.open_backend(&folder.path().join("tables"), &[&newest.part], KeyGroupRange::ALL)?;
        for id in &pinned.job.inputs {
            let Some(Object::StoredTable(table)) = self.catalog.get_id(*id).map(AsRef::as_ref) else { continue };
            let columns: Vec<usize> = (0..table.columns.len()).collect();
            let mut reader = self.tables.reader(table.id, columns.clone(), commit)?;
            let mut changes = NetChanges::new(table, columns, self.build.room_for_changes(&folder, &format!("changes-{id}")))?;
            while changes.read_through(&mut reader, newest.commit)? {}
            take_back(&changes, backend.as_mut())?;
        }
        let image = folder.path().join("image");
        let files = backend.checkpoint(&image)?;
        let (kind, size) = (backend.kind(), backend.estimate());
        let (part, _) =
            store_part(&self.build.store, &self.build.files, (image, files), &self.build.incarnation(), kind, size, NO_CHECKPOINT)?;
        pinned.tables_pin = Some(self.build.store.pin_stored(part.files.iter()));
        pinned.tables = Some(TablesCheckpoint { commit, part });
        drop(backend);
        drop(folder);
        Ok(pinned)
    }
}

/// Makes the rows in `backend` what they were before `changes`.
fn take_back(changes: &NetChanges, backend: &mut dyn StateBackend) -> Result<()> {
    let mut writes = Writes::new();
    changes.each_former(&mut |key, former| {
        writes.push(key, former)?;
        if writes.len() >= WRITE_ROWS {
            backend.write(&std::mem::take(&mut writes))?;
        }
        Ok(())
    })?;
    if writes.is_empty() { Ok(()) } else { backend.write(&writes) }
}
