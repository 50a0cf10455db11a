//! What has changed of a job's inputs since a savepoint: the rows that it has of them and the present ones, side by side.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Schema, SchemaRef};
use weir_catalog::object::schema_of;
use weir_catalog::{Column, Error, Result, RowKind, SqlState, StoredTable};

use crate::log::TablesSnapshot;
use crate::log::layout::{TableLayout, stored_range};
use crate::operators::error::from_arrow;
use crate::operators::materialize::RowLayout;
use crate::runtime::subtask::Feed;
use crate::seams::faults::{self, Fault};
use crate::state::StateSnapshot;
use crate::state::difference::{Difference, Entries};
use crate::state::key_codec::EncodedRows;
use crate::stream::{Batch, CommitSeq};

/// The key group and tag before a view's keys; both sides have the same for a key.
const VIEW_PREFIX_BYTES: usize = 0;

/// What a savepoint has of a stored table.
#[derive(Clone)]
pub struct SavedTable {
    pub rows: Arc<dyn StateSnapshot>,
    /// The table as it was.
    pub table: StoredTable,
    /// Whether the savepoint is of this data folder: then row ids mean the same.
    pub own: bool,
}

/// What a savepoint has of a view's rows, for one subtask.
#[derive(Clone)]
pub struct SavedView {
    pub rows: Arc<dyn StateSnapshot>,
    pub layout: Arc<RowLayout>,
}

/// Errors with `55000` where rows saved as `was` can't be compared with ones of the columns `is`.
pub fn check_columns(name: &str, was: &[Column], is: &[Column]) -> Result<()> {
    let list = |columns: &[Column]| columns.iter().map(|column| format!("{} {}", column.name, column.ty)).collect::<Vec<_>>().join(", ");
    if list(was) == list(is) {
        return Ok(());
    }
    Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, format!("\"{name}\" has other columns than in the savepoint"))
        .with_detail(format!("There: {}. Now: {}.", list(was), list(is))))
}

/// Changes that wait to become a batch.
#[derive(Default)]
struct Changes {
    kinds: Vec<u8>,
    rows: EncodedRows,
}

impl Changes {
    fn push(&mut self, kind: RowKind, row: &[u8]) {
        self.kinds.push(kind as u8);
        self.rows.push(row);
    }

    fn batch(self, schema: SchemaRef, columns: Vec<ArrayRef>) -> Result<Batch> {
        let options = RecordBatchOptions::new().with_row_count(Some(self.kinds.len()));
        let rows = RecordBatch::try_new_with_options(schema, columns, &options).map_err(from_arrow)?;
        Ok(Batch::with_kinds(rows, self.kinds))
    }
}

/// The changes of a stored table since a savepoint.
pub struct TableDifference {
    difference: Difference,
    layout: TableLayout,
    schema: SchemaRef,
    projection: Vec<usize>,
}

impl TableDifference {
    /// What leads from `saved` to the rows of `table` in `present`. Errors with `55000` where the table has other columns now.
    pub fn new(saved: &SavedTable, table: &StoredTable, present: &TablesSnapshot, projection: Vec<usize>) -> Result<TableDifference> {
        check_columns(&table.name, &saved.table.columns, &table.columns)?;
        let layout = TableLayout::new(table)?;
        let related = match &table.primary_key {
            Some(key) => saved.table.primary_key.as_ref() == Some(key),
            None => saved.own && saved.table.id == table.id && saved.table.primary_key.is_none(),
        };
        let entries = |rows: Arc<dyn StateSnapshot>, id| {
            let (range, prefix_bytes) = stored_range(id);
            Entries::new(rows, range.start, range.end, prefix_bytes)
        };
        let difference = Difference::new(entries(saved.rows.clone(), saved.table.id), entries(present.stored(), table.id), related);
        let fields: Vec<_> = projection.iter().map(|column| layout.schema().field(*column).clone()).collect();
        Ok(TableDifference { difference, schema: Arc::new(Schema::new(fields)), layout, projection })
    }

    /// The next changes, about `max_rows`; `None` at the end.
    pub fn next_batch(&mut self, max_rows: usize) -> Result<Option<Batch>> {
        let mut changes = Changes::default();
        while changes.kinds.len() < max_rows
            && let Some((_, before, now)) = self.difference.next_change()?
        {
            match (before, now) {
                (Some(before), Some(now)) => {
                    changes.push(RowKind::UpdateBefore, &before);
                    changes.push(RowKind::UpdateAfter, &now);
                }
                (Some(_), None) if faults::is_planted(Fault::DifferenceLosesDeletions) => {}
                (Some(before), None) => changes.push(RowKind::Delete, &before),
                (None, Some(now)) => changes.push(RowKind::Insert, &now),
                (None, None) => {}
            }
        }
        if changes.kinds.is_empty() {
            return Ok(None);
        }
        let columns = self.layout.decode_rows(changes.rows.iter(), Some(&self.projection))?;
        changes.batch(self.schema.clone(), columns).map(Some)
    }
}

/// The changes of a view since a savepoint, in one subtask.
pub struct ViewDifference {
    difference: Difference,
    old: Arc<RowLayout>,
    new: Arc<RowLayout>,
    projection: Vec<usize>,
}

impl ViewDifference {
    /// What leads from `saved` to `present`, which has rows of the layout `layout`. Whether the columns are the same has been checked.
    pub fn new(saved: &SavedView, layout: Arc<RowLayout>, present: Arc<dyn StateSnapshot>, projection: Vec<usize>) -> ViewDifference {
        let related = saved.layout.key() == layout.key();
        let entries = |rows| Entries::new(rows, Vec::new(), Vec::new(), VIEW_PREFIX_BYTES);
        let difference = Difference::new(entries(saved.rows.clone()), entries(present), related);
        ViewDifference { difference, old: saved.layout.clone(), new: layout, projection }
    }
}

impl Feed for ViewDifference {
    fn next_backfill(&mut self, max_rows: usize) -> Result<Option<Batch>> {
        let (mut gone, mut came) = (Vec::new(), Vec::new());
        while gone.len() + came.len() < max_rows
            && let Some((key, before, now)) = self.difference.next_change()?
        {
            if let Some(before) = before {
                gone.push((key.clone(), before));
            }
            if let Some(now) = now {
                came.push((key, now));
            }
        }
        if gone.is_empty() && came.is_empty() {
            return Ok(None);
        }
        // An epoch's changes are a multiset: where a row stands n times and stood m times before, all of the m go and all of the n come.
        let decode = |layout: &RowLayout, entries: &[(Box<[u8]>, Box<[u8]>)]| -> Result<RecordBatch> {
            let rows = layout.decode(entries.iter().map(|(key, value)| (key.as_ref(), value.as_ref())))?;
            rows.project(&self.projection).map_err(from_arrow)
        };
        let (gone, came) = (decode(&self.old, &gone)?, decode(&self.new, &came)?);
        let mut kinds = vec![RowKind::Delete as u8; gone.num_rows()];
        kinds.resize(gone.num_rows() + came.num_rows(), RowKind::Insert as u8);
        let gone = RecordBatch::try_new_with_options(
            came.schema(),
            gone.columns().to_vec(),
            &RecordBatchOptions::new().with_row_count(Some(gone.num_rows())),
        )
        .map_err(from_arrow)?;
        let rows = arrow::compute::concat_batches(&came.schema(), [&gone, &came]).map_err(from_arrow)?;
        Ok(Some(Batch::with_kinds(rows, kinds)))
    }

    fn next_changes(&mut self, _commit: CommitSeq) -> Result<Option<Batch>> {
        Ok(None)
    }
}

/// The rows of a view as a savepoint has them, as a layout.
pub fn saved_layout(columns: &[Column], key: Option<Vec<usize>>) -> Result<Arc<RowLayout>> {
    RowLayout::new(schema_of(columns), key).map(Arc::new)
}
