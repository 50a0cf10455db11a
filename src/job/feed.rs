//! A stored table as a job reads it: its rows as of one commit, then its changes from the log.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_catalog::{Catalog, Error, Object, ObjectId, Result};

use crate::log::{ScanOptions, TableReader, TableScan, Tables};
use crate::runtime::subtask::Feed;
use crate::seams::faults::{self, Fault};
use crate::stream::{Batch, CommitSeq};

/// Reads one stored table for one job. The log is kept from its place on for as long as it lives.
pub struct TableFeed {
    rows: Option<TableScan>,
    changes: TableReader,
    ready: VecDeque<Batch>,
}

impl TableFeed {
    /// Reads on behind the commit `from`; with `backfill`, first the rows as of it.
    pub fn open(
        tables: &Arc<Tables>,
        catalog: &Catalog,
        table: ObjectId,
        projection: Vec<usize>,
        from: CommitSeq,
        backfill: bool,
    ) -> Result<TableFeed> {
        let object = catalog.get_id(table).ok_or_else(|| Error::internal(format!("table {table} does not exist")))?;
        let Object::StoredTable(definition) = object.as_ref() else {
            return Err(Error::internal(format!("{} is not a stored table", object.name())));
        };
        // The reader first: it pins the log before anyone may cut it.
        let mut changes = tables.reader(table, projection.clone(), from)?;
        if faults::is_planted(Fault::JobReplaySkipsCommit) && !backfill && from < tables.log().end() {
            changes.changes_through(from + 1, &mut |_| Ok(()))?;
        }
        let rows = if backfill {
            let options = ScanOptions { projection: Some(projection), row_key: false, ..ScanOptions::default() };
            Some(tables.snapshot(from)?.scan(definition, options)?)
        } else {
            None
        };
        Ok(TableFeed { rows, changes, ready: VecDeque::new() })
    }
}

impl Feed for TableFeed {
    fn next_backfill(&mut self, _max_rows: usize) -> Result<Option<Batch>> {
        match self.rows.as_mut().and_then(Iterator::next) {
            Some(rows) => rows.map(|rows| Some(Batch::insert(rows))),
            None => {
                self.rows = None;
                if faults::is_planted(Fault::TableBackfillMissesChanges) {
                    // All that there are: the error says no more than that there is no commit of this number.
                    drop(self.changes.changes_through(CommitSeq::MAX, &mut |_| Ok(())));
                }
                Ok(None)
            }
        }
    }

    fn next_changes(&mut self, commit: CommitSeq) -> Result<Option<Batch>> {
        if self.ready.is_empty() && self.changes.position() < commit {
            let ready = &mut self.ready;
            self.changes.changes_through(commit, &mut |batch| {
                ready.push_back(batch);
                Ok(())
            })?;
        }
        Ok(self.ready.pop_front())
    }
}
