//! Tests of the log by itself, of the tables on it, and of both through crashes.

mod crash;
mod durability;
mod format;
mod model;
mod net;
mod readers;
mod stored;

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use weir_catalog::object::schema_of;
use weir_catalog::{Column, Object, RowKind, SqlType, StoredTable};

use super::*;
use crate::state::MemoryBackend;

/// `CREATE TABLE name (id BIGINT PRIMARY KEY, name TEXT)`, or without the key.
fn table(id: ObjectId, name: &str, with_key: bool) -> StoredTable {
    let column = |name: &str, ty, nullable| Column { name: name.to_string(), ty, nullable, default: None };
    StoredTable {
        id,
        name: name.to_string(),
        columns: vec![column("id", SqlType::BigInt, !with_key), column("name", SqlType::Text, true)],
        primary_key: with_key.then(|| vec![0]),
        sql: format!("CREATE TABLE {name} ..."),
    }
}

fn create(table: &StoredTable) -> CatalogChange {
    CatalogChange::Create(Object::StoredTable(table.clone()))
}

/// Rows of a [`table`].
fn rows(rows: &[(i64, &str)]) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|(id, _)| *id))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|(_, name)| *name))),
    ];
    RecordBatch::try_new(schema_of(&table(1, "t", false).columns), columns).unwrap()
}

/// A batch's rows with their kinds, as text.
fn show(batch: &Batch) -> Vec<String> {
    (0..batch.num_rows())
        .map(|i| {
            let id = batch.rows.column(0).as_primitive::<Int64Type>().value(i);
            format!("{}({id}, {})", batch.kind(i).short(), batch.rows.column(1).as_string::<i32>().value(i))
        })
        .collect()
}

fn insert_change(table: ObjectId, new: &[(i64, &str)]) -> Changes {
    let batch = Batch::insert(rows(new));
    Changes { catalog: Vec::new(), tables: vec![TableChange { table, schema_number: 1, batch, row_ids: None }] }
}

fn create_change(table: &StoredTable) -> Changes {
    Changes { catalog: vec![create(table)], tables: Vec::new() }
}

/// What a log says from `after` on, one line a commit.
fn contents(log: &EngineLog, after: CommitSeq) -> Vec<String> {
    let mut reader = log.reader(after).unwrap();
    let mut lines = Vec::new();
    while let Some(commit) = reader.try_next().unwrap() {
        lines.push(describe(&commit));
    }
    lines
}

fn describe(commit: &Commit) -> String {
    let mut line = format!("{}:", commit.seq);
    for change in &commit.changes.catalog {
        match change {
            CatalogChange::Create(object) => line += &format!(" create {}", object.name()),
            CatalogChange::Replace(object) => line += &format!(" replace {}", object.name()),
            CatalogChange::Drop(id) => line += &format!(" drop {id}"),
        }
    }
    for change in &commit.changes.tables {
        line += &format!(" {} {}", change.table, show(&change.batch).join(" "));
        if let Some(ids) = &change.row_ids {
            line += &format!(" ids {:?}", ids.values());
        }
    }
    line
}

fn small_segments() -> LogSettings {
    LogSettings { segment_bytes: 4096, tail_bytes: 2048, limit_bytes: 1 << 30 }
}

/// The rows of `table` as a snapshot sees them, sorted.
fn scan(snapshot: &TablesSnapshot, table: &StoredTable) -> Vec<(i64, String)> {
    let mut found = Vec::new();
    for batch in snapshot.scan(table, ScanOptions::default()).unwrap() {
        let batch = batch.unwrap();
        let ids = batch.column(0).as_primitive::<Int64Type>();
        let names = batch.column(1).as_string::<i32>();
        found.extend((0..batch.num_rows()).map(|i| (ids.value(i), names.value(i).to_string())));
    }
    found.sort();
    found
}

/// The rows with these ids, as UPDATE and DELETE read them.
fn select(snapshot: &TablesSnapshot, table: &StoredTable, ids: &[i64]) -> (ArrayRef, RecordBatch) {
    let options = ScanOptions { projection: None, row_key: true, ..ScanOptions::default() };
    let scan = snapshot.scan(table, options).unwrap();
    let schema = scan.schema();
    let batches: Vec<RecordBatch> = scan.map(Result::unwrap).collect();
    let all = arrow::compute::concat_batches(&schema, &batches).unwrap();
    let wanted: arrow::array::BooleanArray =
        all.column(0).as_primitive::<Int64Type>().values().iter().map(|id| Some(ids.contains(id))).collect();
    let found = arrow::compute::filter_record_batch(&all, &wanted).unwrap();
    (found.column(2).clone(), found.project(&[0, 1]).unwrap())
}

fn delete(transaction: &mut Transaction, table: &StoredTable, ids: &[i64]) -> u64 {
    let (keys, old) = select(&transaction.snapshot(), table, ids);
    transaction.delete(table, &keys, &old).unwrap()
}

/// Gives the rows with these ids the name `name`.
fn rename(transaction: &mut Transaction, table: &StoredTable, ids: &[i64], name: &str) -> u64 {
    let (keys, old) = select(&transaction.snapshot(), table, ids);
    let found: Vec<i64> = old.column(0).as_primitive::<Int64Type>().values().to_vec();
    let new = rows(&found.iter().map(|id| (*id, name)).collect::<Vec<_>>());
    transaction.update(table, &keys, &old, &new).unwrap()
}

fn commit(transaction: Transaction) -> Result<Option<CommitSeq>> {
    transaction.submit()?.map(PendingCommit::wait).transpose()
}

fn open_tables(files: FilesRef, dir: &Path, settings: LogSettings) -> Result<(Arc<Tables>, Recovered)> {
    let (log, recovered) = EngineLog::open(files, dir, settings)?;
    let tables = Tables::open(log, &recovered, Box::new(MemoryBackend::new()), 0, TablesSettings::default())?;
    Ok((tables, recovered))
}

fn strings(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| line.to_string()).collect()
}

#[test]
fn kinds_are_shown() {
    let batch = Batch::with_kinds(rows(&[(1, "a"), (1, "b")]), vec![RowKind::UpdateBefore as u8, RowKind::UpdateAfter as u8]);
    assert_eq!(show(&batch), strings(&["-U(1, a)", "+U(1, b)"]));
}
