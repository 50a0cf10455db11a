//! What many commits did to a table in all, in memory and with a backend.

use std::collections::BTreeMap;

use super::*;
use crate::seams::files::LocalFiles;
use crate::seams::random::Random;
use crate::state::memory_pool::MemoryPool;

fn room(max_bytes: usize) -> Room {
    Room { max_bytes, memory: MemoryPool::new(1 << 20).charge(), open: Box::new(|| Ok(Box::new(MemoryBackend::new()))) }
}

/// What `table` has gone through from the commit `after` to the end, batch by batch.
fn net(tables: &Arc<Tables>, table: &StoredTable, after: CommitSeq, max_bytes: usize, max_rows: usize) -> Vec<Batch> {
    let mut reader = tables.reader(table.id, Vec::new(), after).unwrap();
    let mut net = NetChanges::new(table, vec![0, 1], room(max_bytes)).unwrap();
    while net.read_through(&mut reader, tables.log().end()).unwrap() {}
    let mut batches = Vec::new();
    while let Some(batch) = net.next_batch(max_rows).unwrap() {
        assert!(!net.read_through(&mut reader, tables.log().end()).unwrap());
        batches.push(batch);
    }
    assert!(net.next_batch(max_rows).unwrap().is_none());
    batches
}

fn shown(batches: &[Batch]) -> Vec<String> {
    batches.iter().flat_map(show).collect()
}

/// How often each row is there.
fn counted(rows: &[(i64, String)]) -> BTreeMap<(i64, String), i64> {
    let mut counts = BTreeMap::new();
    rows.iter().for_each(|row| *counts.entry(row.clone()).or_default() += 1);
    counts
}

#[test]
fn rows_that_came_and_went_are_not_in_the_net_changes() {
    let dir = tempfile::tempdir().unwrap();
    let (tables, _) = open_tables(LocalFiles::shared(), dir.path(), LogSettings::default()).unwrap();
    for with_key in [true, false] {
        let table = table(tables.next_object_id(), if with_key { "users" } else { "events" }, with_key);
        let in_transaction = |work: &dyn Fn(&mut Transaction)| {
            let mut transaction = tables.begin().unwrap();
            work(&mut transaction);
            commit(transaction).unwrap();
        };
        in_transaction(&|transaction| transaction.change_catalog(create(&table)).unwrap());
        in_transaction(&|transaction| assert_eq!(transaction.insert(&table, &rows(&[(1, "a"), (2, "b"), (3, "c"), (4, "d")])).unwrap(), 4));
        let after = tables.log().end();
        in_transaction(&|transaction| assert_eq!(transaction.insert(&table, &rows(&[(9, "poison"), (8, "h")])).unwrap(), 2));
        in_transaction(&|transaction| assert_eq!(rename(transaction, &table, &[2, 3], "poison"), 2));
        in_transaction(&|transaction| assert_eq!(delete(transaction, &table, &[9, 1]), 2));
        in_transaction(&|transaction| assert_eq!(rename(transaction, &table, &[2], "b"), 1));
        in_transaction(&|transaction| assert_eq!(rename(transaction, &table, &[3, 8], "new"), 2));
        let expected = ["+I(8, new)", "-D(1, a)", "-U(3, c)", "+U(3, new)"];
        for (max_bytes, max_rows) in [(1 << 20, 100), (1 << 20, 1), (0, 100), (0, 1)] {
            let mut found = shown(&net(&tables, &table, after, max_bytes, max_rows));
            let pair = found.iter().position(|row| row == "-U(3, c)").unwrap();
            assert_eq!(found[pair + 1], "+U(3, new)");
            found.sort();
            let mut expected = strings(&expected);
            expected.sort();
            assert_eq!(found, expected, "{with_key}, {max_bytes}, {max_rows}");
        }
        assert_eq!(shown(&net(&tables, &table, tables.log().end(), 0, 10)), Vec::<String>::new());
    }
}

#[test]
fn the_net_changes_lead_from_any_commit_to_the_present_rows() {
    let dir = tempfile::tempdir().unwrap();
    let (tables, _) = open_tables(LocalFiles::shared(), dir.path(), small_segments()).unwrap();
    let both = [table(tables.next_object_id(), "users", true), table(tables.next_object_id(), "events", false)];
    for table in &both {
        let mut transaction = tables.begin().unwrap();
        transaction.change_catalog(create(table)).unwrap();
        commit(transaction).unwrap();
    }
    let mut random = Random::seeded(7);
    let mut marks: Vec<(CommitSeq, [Vec<(i64, String)>; 2])> = Vec::new();
    for step in 0..120_i64 {
        if step % 17 == 0 {
            let snapshot = tables.latest().unwrap();
            marks.push((snapshot.seq(), [scan(&snapshot, &both[0]), scan(&snapshot, &both[1])]));
        }
        let mut transaction = tables.begin().unwrap();
        let mut some = || (random.next_u64() % 40) as i64;
        for table in &both {
            let ids = [some(), some(), some()];
            match (step + some()) % 3 {
                0 => assert!(delete(&mut transaction, table, &ids) <= 3),
                1 => assert!(rename(&mut transaction, table, &ids, &format!("n{}", step % 5)) <= 3),
                _ => {
                    let there = scan(&transaction.snapshot(), table);
                    let new: Vec<i64> = (0..40).filter(|id| id % 7 == step % 7 && there.iter().all(|(other, _)| other != id)).collect();
                    let name = format!("n{}", step % 5);
                    transaction.insert(table, &rows(&new.iter().map(|id| (*id, name.as_str())).collect::<Vec<_>>())).unwrap();
                }
            }
        }
        commit(transaction).unwrap();
    }
    for (after, former) in &marks {
        for (table, former) in both.iter().zip(former) {
            for max_bytes in [0, 3000, 1 << 20] {
                let batches = net(&tables, table, *after, max_bytes, 5);
                let mut counts = counted(former);
                let mut changed: BTreeMap<i64, i64> = BTreeMap::new();
                for batch in &batches {
                    for i in 0..batch.num_rows() {
                        let id = batch.rows.column(0).as_primitive::<Int64Type>().value(i);
                        let name = batch.rows.column(1).as_string::<i32>().value(i).to_string();
                        *counts.entry((id, name)).or_default() += batch.weight(i);
                        *changed.entry(id).or_default() += 1;
                    }
                }
                counts.retain(|_, count| *count != 0);
                assert_eq!(counts, counted(&scan(&tables.latest().unwrap(), table)), "{} since {after}, {max_bytes}", table.name);
                if table.primary_key.is_some() {
                    assert!(changed.values().all(|changes| *changes <= 2), "{} since {after}: {changed:?}", table.name);
                }
            }
        }
    }
}
