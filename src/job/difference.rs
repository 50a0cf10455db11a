//! What has changed of a job's inputs since a savepoint: the rows that it has of them and the present ones, side by side.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::kernels::cmp::not_distinct;
use arrow::compute::{and, filter_record_batch, take};
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
    /// Where the columns that are read stand in them.
    pub projection: Vec<usize>,
    /// The view's name, where what reads it can take no rows back.
    pub append_only: Option<String>,
}

/// Errors with `55000` where rows saved as `was` can't be compared with ones of the columns `is`.
pub fn check_columns(name: &str, was: &[Column], is: &[Column]) -> Result<()> {
    let same = was.len() == is.len() && was.iter().zip(is).all(|(was, is)| was.name == is.name && was.ty == is.ty);
    if same { Ok(()) } else { Err(other_columns(name, was, is)) }
}

fn other_columns(name: &str, was: &[Column], is: &[Column]) -> Error {
    let column = |column: &Column| format!("{} {}{}", column.name, column.ty, if column.nullable { "" } else { " not null" });
    let list = |columns: &[Column]| columns.iter().map(column).collect::<Vec<_>>().join(", ");
    Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, format!("\"{name}\" has other columns than in the savepoint"))
        .with_detail(format!("There: {}. Now: {}.", list(was), list(is)))
}

/// Where the columns of `is` at `projection` stand among `was`. Errors with `55000` where one of them is not there, was of another type, or could be NULL and
/// can't be now.
pub fn saved_projection(name: &str, was: &[Column], is: &[Column], projection: &[usize]) -> Result<Vec<usize>> {
    let place = |column: &usize| {
        let wanted = is.get(*column)?;
        was.iter().position(|column| column.name == wanted.name && column.ty == wanted.ty && (wanted.nullable || !column.nullable))
    };
    projection.iter().map(place).collect::<Option<Vec<usize>>>().ok_or_else(|| other_columns(name, was, is))
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
    saved: SavedView,
    layout: Arc<RowLayout>,
    projection: Vec<usize>,
    /// Whether both sides have at most one row for a key, and the same keys.
    has_pairs: bool,
}

impl ViewDifference {
    /// What leads from `saved` to `present`, which has rows of the layout `layout`. Whether the columns that are read are the same has been checked.
    pub fn new(saved: &SavedView, layout: Arc<RowLayout>, present: Arc<dyn StateSnapshot>, projection: Vec<usize>) -> ViewDifference {
        // Without a key, all columns are.
        let key = |layout: &RowLayout| {
            let fields = layout.schema().fields();
            let columns: Vec<usize> = layout.key().map_or_else(|| (0..fields.len()).collect(), <[usize]>::to_vec);
            columns.into_iter().map(|column| (fields[column].name().clone(), fields[column].data_type().clone())).collect::<Vec<_>>()
        };
        let same_key = layout.key().is_some() == saved.layout.key().is_some() && key(&layout) == key(&saved.layout);
        // Values are compared as they stand: of other columns, all of them are others.
        let entries = |rows| Entries::new(rows, Vec::new(), Vec::new(), VIEW_PREFIX_BYTES);
        let difference = Difference::new(entries(saved.rows.clone()), entries(present), same_key);
        let has_pairs = same_key && layout.key().is_some();
        ViewDifference { difference, saved: saved.clone(), layout, projection, has_pairs }
    }
}

/// Leaves out of the rows that `gone` and `came` those pairs that are the same, as far as their columns are read.
fn without_equal(gone: &RecordBatch, came: &RecordBatch, pairs: &[(u32, u32)]) -> Result<(RecordBatch, RecordBatch)> {
    let (before, after): (Vec<u32>, Vec<u32>) = pairs.iter().copied().unzip();
    let (before, after) = (UInt32Array::from(before), UInt32Array::from(after));
    let mut equal = BooleanArray::from(vec![true; pairs.len()]);
    for (old, new) in gone.columns().iter().zip(came.columns()) {
        let (old, new) = (take(old, &before, None).map_err(from_arrow)?, take(new, &after, None).map_err(from_arrow)?);
        equal = and(&equal, &not_distinct(&old, &new).map_err(from_arrow)?).map_err(from_arrow)?;
    }
    let kept = |rows: &RecordBatch, side: fn(&(u32, u32)) -> u32| {
        let mut keep = vec![true; rows.num_rows()];
        for (pair, _) in pairs.iter().zip(equal.values().iter()).filter(|(_, equal)| *equal) {
            keep[side(pair) as usize] = false;
        }
        filter_record_batch(rows, &BooleanArray::from(keep)).map_err(from_arrow)
    };
    Ok((kept(gone, |pair| pair.0)?, kept(came, |pair| pair.1)?))
}

impl Feed for ViewDifference {
    fn next_backfill(&mut self, max_rows: usize) -> Result<Option<Batch>> {
        loop {
            let (mut gone, mut came, mut pairs) = (Vec::new(), Vec::new(), Vec::new());
            while gone.len() + came.len() < max_rows
                && let Some((key, before, now)) = self.difference.next_change()?
            {
                if self.has_pairs && before.is_some() && now.is_some() {
                    pairs.push((gone.len() as u32, came.len() as u32));
                }
                gone.extend(before.map(|before| (key.clone(), before)));
                came.extend(now.map(|now| (key, now)));
            }
            if gone.is_empty() && came.is_empty() {
                return Ok(None);
            }
            // An epoch's changes are a multiset: where a row stands n times and stood m times before, all of the m go and all of the n come.
            let decode = |layout: &RowLayout, projection: &[usize], entries: &[(Box<[u8]>, Box<[u8]>)]| -> Result<RecordBatch> {
                let rows = layout.decode(entries.iter().map(|(key, value)| (key.as_ref(), value.as_ref())))?;
                rows.project(projection).map_err(from_arrow)
            };
            let mut came = decode(&self.layout, &self.projection, &came)?;
            let mut gone = decode(&self.saved.layout, &self.saved.projection, &gone)?;
            if !pairs.is_empty() {
                (gone, came) = without_equal(&gone, &came, &pairs)?;
            }
            if gone.num_rows() + came.num_rows() == 0 {
                continue;
            }
            if let (Some(view), true) = (&self.saved.append_only, gone.num_rows() > 0) {
                return Err(Error::new(
                    SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                    format!("rows of view \"{view}\" that the savepoint has are gone, and what reads it takes none back"),
                )
                .with_hint("Create the job without the savepoint."));
            }
            let mut kinds = vec![RowKind::Delete as u8; gone.num_rows()];
            kinds.resize(gone.num_rows() + came.num_rows(), RowKind::Insert as u8);
            let gone = RecordBatch::try_new_with_options(
                came.schema(),
                gone.columns().to_vec(),
                &RecordBatchOptions::new().with_row_count(Some(gone.num_rows())),
            )
            .map_err(from_arrow)?;
            let rows = arrow::compute::concat_batches(&came.schema(), [&gone, &came]).map_err(from_arrow)?;
            return Ok(Some(Batch::with_kinds(rows, kinds)));
        }
    }

    fn next_changes(&mut self, _commit: CommitSeq) -> Result<Option<Batch>> {
        Ok(None)
    }
}

/// The rows of a view as a savepoint has them, as a layout.
pub fn saved_layout(columns: &[Column], key: Option<Vec<usize>>) -> Result<Arc<RowLayout>> {
    RowLayout::new(schema_of(columns), key).map(Arc::new)
}
