//! A stored table as a job reads it: its rows as of one commit, or what has become of them since its checkpoint, then its changes from the log.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_catalog::{Catalog, Error, Object, ObjectId, Result};

use super::difference::{SavedTable, TableDifference};

use crate::log::{NetChanges, Room, ScanOptions, TableReader, TableScan, Tables};
use crate::runtime::subtask::{Feed, SOURCE_BATCH_ROWS};
use crate::seams::faults::{self, Fault};
use crate::stream::{Batch, CommitSeq};

/// Reads one stored table for one job. The log is kept from its place on for as long as it lives.
pub struct TableFeed {
    rows: Option<Rows>,
    changes: TableReader,
    /// What the first cut gives, where it is not all that the log has.
    net: Option<NetChanges>,
    ready: VecDeque<Batch>,
}

/// What comes before the changes.
enum Rows {
    All(Box<TableScan>),
    Since(Box<TableDifference>),
}

/// What a job reads of a table before its changes.
pub enum Backfill {
    /// Nothing: it has read that before.
    None,
    /// Nothing, and up to the first cut not all changes but what is left of them: rows that came and went again are not read.
    Net(Room),
    /// All rows.
    All,
    /// What has changed since a savepoint.
    Since(SavedTable),
}

impl TableFeed {
    /// Reads on behind the commit `from`; before that what `backfill` says, as of it.
    pub fn open(
        tables: &Arc<Tables>,
        catalog: &Catalog,
        table: ObjectId,
        projection: Vec<usize>,
        from: CommitSeq,
        backfill: Backfill,
    ) -> Result<TableFeed> {
        let object = catalog.get_id(table).ok_or_else(|| Error::internal(format!("table {table} does not exist")))?;
        let Object::StoredTable(definition) = object.as_ref() else {
            return Err(Error::internal(format!("{} is not a stored table", object.name())));
        };
        // The reader first: it pins the log before anyone may cut it.
        let mut changes = tables.reader(table, projection.clone(), from)?;
        if faults::is_planted(Fault::JobReplaySkipsCommit)
            && matches!(backfill, Backfill::None | Backfill::Net(_))
            && from < tables.log().end()
        {
            changes.changes_through(from + 1, &mut |_| Ok(()))?;
        }
        let mut net = None;
        let rows = match backfill {
            Backfill::None => None,
            Backfill::Net(room) => {
                net = Some(NetChanges::new(definition, projection, room)?);
                None
            }
            Backfill::All => {
                let options = ScanOptions { projection: Some(projection), row_key: false, ..ScanOptions::default() };
                Some(Rows::All(Box::new(tables.snapshot(from)?.scan(definition, options)?)))
            }
            Backfill::Since(saved) => {
                let difference = TableDifference::new(&saved, definition, &tables.snapshot(from)?, projection)?;
                Some(Rows::Since(Box::new(difference)))
            }
        };
        Ok(TableFeed { rows, changes, net, ready: VecDeque::new() })
    }
}

impl Feed for TableFeed {
    fn next_backfill(&mut self, max_rows: usize) -> Result<Option<Batch>> {
        let next = match &mut self.rows {
            None => None,
            Some(Rows::All(rows)) => rows.next().transpose()?.map(Batch::insert),
            Some(Rows::Since(difference)) => difference.next_batch(max_rows)?,
        };
        match next {
            Some(batch) => Ok(Some(batch)),
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
        if let Some(net) = &mut self.net {
            if net.read_through(&mut self.changes, commit)? {
                return Ok(Some(net.none()));
            }
            if let Some(batch) = net.next_batch(SOURCE_BATCH_ROWS)? {
                return Ok(Some(batch));
            }
            self.net = None;
        }
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
