//! What has changed of a job's inputs since a savepoint: the rows that it has of them and the present ones, side by side.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array, make_comparator};
use arrow::compute::kernels::cmp::not_distinct;
use arrow::compute::{CastOptions, SortOptions, and, cast_with_options, filter_record_batch, take};
use arrow::datatypes::{Schema, SchemaRef};
use weir_catalog::object::schema_of;
use weir_catalog::{Column, Error, Result, RowKind, SqlState, SqlType, StoredTable};
use weir_sql::widens;

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

/// Errors with `55000` where rows of the columns `was` are not told apart from ones of the columns `is` by their places: others, or narrower ones.
pub fn check_columns(name: &str, was: &[Column], is: &[Column]) -> Result<()> {
    let same = was.len() == is.len() && was.iter().zip(is).all(|(was, is)| was.name == is.name && fits(&was.ty, &is.ty));
    if same { Ok(()) } else { Err(other_columns(name, was, is)) }
}

/// Whether values of the type `was` are ones of the type `is`.
fn fits(was: &SqlType, is: &SqlType) -> bool {
    was == is || widens(&was.to_arrow(), &is.to_arrow())
}

/// Errors with `55000` where one of the columns of `is` at `projection` was there, and can't be read as it is now. New ones may be NULL.
pub fn check_read_columns(name: &str, was: &[Column], is: &[Column], projection: &[usize]) -> Result<()> {
    let fits = |column: &usize| {
        let Some(wanted) = is.get(*column) else { return false };
        match was.iter().find(|column| column.name == wanted.name) {
            Some(column) => fits(&column.ty, &wanted.ty) && (wanted.nullable || !column.nullable),
            None => wanted.nullable,
        }
    };
    if projection.iter().all(fits) { Ok(()) } else { Err(other_columns(name, was, is)) }
}

fn other_columns(name: &str, was: &[Column], is: &[Column]) -> Error {
    let column = |column: &Column| format!("{} {}{}", column.name, column.ty, if column.nullable { "" } else { " not null" });
    let list = |columns: &[Column]| columns.iter().map(column).collect::<Vec<_>>().join(", ");
    Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, format!("\"{name}\" has other columns than in the savepoint"))
        .with_detail(format!("There: {}. Now: {}.", list(was), list(is)))
}

/// Where the columns of `is` at `projection` stand among `was`. Errors with `55000` where one of them is not there, was of a type that has other values, or could
/// be NULL and can't be now.
pub fn saved_projection(name: &str, was: &[Column], is: &[Column], projection: &[usize]) -> Result<Vec<usize>> {
    let place = |column: &usize| {
        let wanted = is.get(*column)?;
        was.iter().position(|column| column.name == wanted.name && fits(&column.ty, &wanted.ty) && (wanted.nullable || !column.nullable))
    };
    projection.iter().map(place).collect::<Option<Vec<usize>>>().ok_or_else(|| other_columns(name, was, is))
}

/// The changes of a stored table since a savepoint.
pub struct TableDifference {
    difference: Difference,
    /// As it is, and where the columns that are read stand.
    layout: TableLayout,
    projection: Vec<usize>,
    /// As it was.
    saved_layout: TableLayout,
    saved_projection: Vec<usize>,
    schema: SchemaRef,
    /// Whether both sides have the same keys.
    related: bool,
}

impl TableDifference {
    /// What leads from `saved` to the rows of `table` in `present`. Errors with `55000` where columns that are read can't be compared.
    pub fn new(saved: &SavedTable, table: &StoredTable, present: &TablesSnapshot, projection: Vec<usize>) -> Result<TableDifference> {
        let saved_projection = saved_projection(&table.name, &saved.table.columns, &table.columns, &projection)?;
        let (layout, saved_layout) = (TableLayout::new(table)?, TableLayout::new(&saved.table)?);
        let key = |table: &StoredTable| {
            let columns = table.primary_key.as_ref()?.iter().map(|column| &table.columns[*column]);
            Some(columns.map(|column| (column.name.clone(), column.ty.clone())).collect::<Vec<_>>())
        };
        let related = match key(table) {
            Some(own) => key(&saved.table) == Some(own),
            None => saved.own && saved.table.id == table.id && saved.table.primary_key.is_none(),
        };
        let entries = |rows: Arc<dyn StateSnapshot>, id| {
            let (range, prefix_bytes) = stored_range(id);
            Entries::new(rows, range.start, range.end, prefix_bytes)
        };
        let difference = Difference::new(entries(saved.rows.clone(), saved.table.id), entries(present.stored(), table.id), related);
        let fields: Vec<_> = projection.iter().map(|column| layout.schema().field(*column).clone()).collect();
        let schema = Arc::new(Schema::new(fields));
        Ok(TableDifference { difference, layout, projection, saved_layout, saved_projection, schema, related })
    }

    /// The next changes, about `max_rows`; `None` at the end.
    pub fn next_batch(&mut self, max_rows: usize) -> Result<Option<Batch>> {
        loop {
            let (mut gone, mut came, mut pairs) = (EncodedRows::new(), EncodedRows::new(), Vec::new());
            while gone.len() + came.len() < max_rows
                && let Some((_, before, now)) = self.difference.next_change()?
            {
                if self.related && before.is_some() && now.is_some() {
                    pairs.push((gone.len() as u32, came.len() as u32));
                }
                let is_lost = now.is_none() && faults::is_planted(Fault::DifferenceLosesDeletions);
                before.iter().filter(|_| !is_lost).for_each(|row| gone.push(row));
                now.iter().for_each(|row| came.push(row));
            }
            if gone.is_empty() && came.is_empty() {
                return Ok(None);
            }
            let batch = |layout: &TableLayout, projection: &[usize], rows: &EncodedRows| -> Result<RecordBatch> {
                as_columns(&self.schema, layout.decode_rows(rows.iter(), Some(projection))?, rows.len())
            };
            let gone = batch(&self.saved_layout, &self.saved_projection, &gone)?;
            let came = batch(&self.layout, &self.projection, &came)?;
            if let Some((changes, _)) = changes(gone, came, &pairs)? {
                return Ok(Some(changes));
            }
        }
    }
}

/// Rows of the columns `schema`, made of `columns`, which may have narrower types.
fn as_columns(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let widened = columns.iter().zip(schema.fields()).map(|(column, field)| {
        if column.data_type() == field.data_type() { Ok(column.clone()) } else { cast_with_options(column, field.data_type(), &options) }
    });
    let columns = widened.collect::<std::result::Result<Vec<_>, _>>().map_err(from_arrow)?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema.clone(), columns, &options).map_err(from_arrow)
}

/// What takes the rows `gone` away and brings `came`, without `pairs` of them that are equal, and whether it takes any away; `None` where nothing is left. Both
/// have the same columns.
fn changes(gone: RecordBatch, came: RecordBatch, pairs: &[(u32, u32)]) -> Result<Option<(Batch, bool)>> {
    let (gone, came) = if pairs.is_empty() { (gone, came) } else { without_equal(&gone, &came, pairs)? };
    if gone.num_rows() + came.num_rows() == 0 {
        return Ok(None);
    }
    let mut kinds = vec![RowKind::Delete as u8; gone.num_rows()];
    kinds.resize(gone.num_rows() + came.num_rows(), RowKind::Insert as u8);
    let rows = arrow::compute::concat_batches(&came.schema(), [&gone, &came]).map_err(from_arrow)?;
    Ok(Some((Batch::with_kinds(rows, kinds), gone.num_rows() > 0)))
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
        let same = if old.data_type().is_nested() {
            let compare = make_comparator(&old, &new, SortOptions::default()).map_err(from_arrow)?;
            BooleanArray::from((0..pairs.len()).map(|at| compare(at, at).is_eq()).collect::<Vec<_>>())
        } else {
            not_distinct(&old, &new).map_err(from_arrow)?
        };
        equal = and(&equal, &same).map_err(from_arrow)?;
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
            let came = decode(&self.layout, &self.projection, &came)?;
            let gone = decode(&self.saved.layout, &self.saved.projection, &gone)?;
            let gone = as_columns(&came.schema(), gone.columns().to_vec(), gone.num_rows())?;
            let Some((changes, takes_away)) = changes(gone, came, &pairs)? else { continue };
            if let (Some(view), true) = (&self.saved.append_only, takes_away) {
                return Err(Error::new(
                    SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                    format!("rows of view \"{view}\" that the savepoint has are gone, and what reads it takes none back"),
                )
                .with_hint("Create the job without the savepoint."));
            }
            return Ok(Some(changes));
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
