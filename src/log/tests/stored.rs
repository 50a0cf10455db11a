//! Stored tables and transactions.

use std::time::Duration;

use super::*;
use crate::seams::files::{LocalFiles, LossyFiles};
use weir_catalog::SqlState;

struct Fixture {
    _dir: tempfile::TempDir,
    tables: Arc<Tables>,
    users: StoredTable,
    events: StoredTable,
}

/// Two tables, `users` with a primary key and `events` without.
fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let (tables, _) = open_tables(LocalFiles::shared(), dir.path(), LogSettings::default()).unwrap();
    let users = table(tables.next_object_id(), "users", true);
    let events = table(tables.next_object_id(), "events", false);
    let mut transaction = tables.begin().unwrap();
    transaction.change_catalog(create(&users)).unwrap();
    transaction.change_catalog(create(&events)).unwrap();
    commit(transaction).unwrap();
    Fixture { _dir: dir, tables, users, events }
}

impl Fixture {
    fn insert(&self, table: &StoredTable, new: &[(i64, &str)]) -> CommitSeq {
        let mut transaction = self.tables.begin().unwrap();
        transaction.insert(table, &rows(new)).unwrap();
        commit(transaction).unwrap().unwrap()
    }

    fn latest(&self, table: &StoredTable) -> Vec<(i64, String)> {
        scan(&self.tables.latest().unwrap(), table)
    }
}

fn pairs(rows: &[(i64, &str)]) -> Vec<(i64, String)> {
    rows.iter().map(|(id, name)| (*id, name.to_string())).collect()
}

#[test]
fn who_was_told_of_a_commit_reads_it() {
    let f = fixture();
    let first = f.insert(&f.users, &[(1, "a"), (2, "b")]);
    assert_eq!(f.latest(&f.users), pairs(&[(1, "a"), (2, "b")]));
    let second = f.insert(&f.users, &[(3, "c")]);
    assert_eq!(second, first + 1);
    assert_eq!(f.latest(&f.users), pairs(&[(1, "a"), (2, "b"), (3, "c")]));
    assert_eq!(f.latest(&f.events), []);
    assert_eq!(f.tables.latest().unwrap().seq(), second);
}

#[test]
fn a_transaction_reads_its_own_writes_and_nobody_else_does() {
    let f = fixture();
    f.insert(&f.users, &[(1, "a"), (2, "b"), (3, "c")]);
    let mut transaction = f.tables.begin().unwrap();
    transaction.insert(&f.users, &rows(&[(4, "d")])).unwrap();
    assert_eq!(delete(&mut transaction, &f.users, &[1, 4]), 2);
    assert_eq!(rename(&mut transaction, &f.users, &[2], "B"), 1);
    transaction.insert(&f.users, &rows(&[(1, "again"), (5, "e")])).unwrap();
    let expected = pairs(&[(1, "again"), (2, "B"), (3, "c"), (5, "e")]);
    assert_eq!(scan(&transaction.snapshot(), &f.users), expected);
    let keys: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(vec![4, 5, 3, 2, 77]))];
    let (found, places) = transaction.snapshot().get(&f.users, &keys).unwrap();
    assert_eq!(places, [1, 2, 3]);
    assert_eq!(show(&Batch::insert(found)), strings(&["+I(5, e)", "+I(3, c)", "+I(2, B)"]));
    assert_eq!(f.latest(&f.users), pairs(&[(1, "a"), (2, "b"), (3, "c")]));
    let seq = commit(transaction).unwrap().unwrap();
    assert_eq!(f.latest(&f.users), expected);
    // What jobs read is net: one change a key, with whole old rows.
    let mut changes = Vec::new();
    let mut reader = f.tables.reader(f.users.id, vec![0, 1], seq - 1).unwrap();
    reader
        .changes_through(seq, &mut |batch| {
            changes.extend(show(&batch));
            Ok(())
        })
        .unwrap();
    assert_eq!(changes, strings(&["-U(1, a)", "+U(1, again)", "-U(2, b)", "+U(2, B)", "+I(5, e)"]));
    assert_eq!(reader.position(), seq);
}

#[test]
fn a_transaction_that_changes_nothing_in_the_end_commits_nothing() {
    let f = fixture();
    let before = f.insert(&f.users, &[(1, "a")]);
    let mut transaction = f.tables.begin().unwrap();
    transaction.insert(&f.users, &rows(&[(2, "b")])).unwrap();
    delete(&mut transaction, &f.users, &[2]);
    rename(&mut transaction, &f.users, &[1], "a");
    assert_eq!(commit(transaction).unwrap(), None);
    assert_eq!(f.tables.log().end(), before);
}

#[test]
fn duplicate_keys_nulls_and_long_rows_are_refused_as_postgresql_does() {
    let f = fixture();
    f.insert(&f.users, &[(1, "a")]);
    let refused = |new: RecordBatch| {
        let mut transaction = f.tables.begin().unwrap();
        let error = transaction.insert(&f.users, &new).unwrap_err();
        // Nothing more happens in a transaction in which something failed.
        let after = transaction.insert(&f.users, &rows(&[(50, "x")])).unwrap_err();
        assert_eq!(*after.code(), SqlState::IN_FAILED_SQL_TRANSACTION);
        assert_eq!(*commit(transaction).unwrap_err().code(), SqlState::IN_FAILED_SQL_TRANSACTION);
        error
    };
    for duplicate in [rows(&[(7, "x"), (1, "b")]), rows(&[(2, "x"), (1, "x"), (3, "y")])] {
        let error = refused(duplicate);
        assert_eq!(*error.code(), SqlState::UNIQUE_VIOLATION);
        assert_eq!(error.message(), "duplicate key value violates unique constraint \"users_pkey\"");
        assert_eq!(error.detail(), Some("Key (id)=(1) already exists."));
    }
    let error = refused(rows(&[(9, "x"), (8, "y"), (9, "z")]));
    assert_eq!(error.detail(), Some("Key (id)=(9) already exists."));

    let columns: Vec<ArrayRef> =
        vec![Arc::new(Int64Array::from(vec![Some(5), None])), Arc::new(StringArray::from(vec![Some("x"), Some("y")]))];
    let nulls = RecordBatch::try_new(schema_of(&f.events.columns), columns).unwrap();
    let error = refused(nulls.clone());
    assert_eq!(*error.code(), SqlState::NOT_NULL_VIOLATION);
    assert_eq!(error.message(), "null value in column \"id\" of relation \"users\" violates not-null constraint");
    assert_eq!(error.detail(), Some("Failing row contains (null, y)."));
    let mut transaction = f.tables.begin().unwrap();
    assert_eq!(transaction.insert(&f.events, &nulls).unwrap(), 2);

    let long = "x".repeat(16 << 20);
    let error = refused(rows(&[(10, &long)]));
    assert_eq!(*error.code(), SqlState::PROGRAM_LIMIT_EXCEEDED);
    assert_eq!(f.latest(&f.users), pairs(&[(1, "a")]));
}

#[test]
fn keys_are_compared_when_a_statement_is_through() {
    let f = fixture();
    f.insert(&f.users, &[(1, "a"), (2, "b"), (3, "c")]);
    // UPDATE users SET id = id + 1
    let mut transaction = f.tables.begin().unwrap();
    let (keys, old) = select(&transaction.snapshot(), &f.users, &[1, 2, 3]);
    assert_eq!(transaction.update(&f.users, &keys, &old, &rows(&[(2, "a"), (3, "b"), (4, "c")])).unwrap(), 3);
    let seq = commit(transaction).unwrap().unwrap();
    assert_eq!(f.latest(&f.users), pairs(&[(2, "a"), (3, "b"), (4, "c")]));
    let mut changes = Vec::new();
    let mut reader = f.tables.reader(f.users.id, vec![0, 1], seq - 1).unwrap();
    reader
        .changes_through(seq, &mut |batch| {
            changes.extend(show(&batch));
            Ok(())
        })
        .unwrap();
    assert_eq!(changes, strings(&["-D(1, a)", "-U(2, b)", "+U(2, a)", "-U(3, c)", "+U(3, b)", "+I(4, c)"]));

    let mut transaction = f.tables.begin().unwrap();
    let (keys, old) = select(&transaction.snapshot(), &f.users, &[2]);
    let error = transaction.update(&f.users, &keys, &old, &rows(&[(4, "a")])).unwrap_err();
    assert_eq!(error.detail(), Some("Key (id)=(4) already exists."));
}

#[test]
fn the_first_committer_wins() {
    let f = fixture();
    f.insert(&f.users, &[(1, "a"), (2, "b")]);
    let mut first = f.tables.begin().unwrap();
    let mut second = f.tables.begin().unwrap();
    let mut third = f.tables.begin().unwrap();
    rename(&mut first, &f.users, &[1], "first");
    rename(&mut second, &f.users, &[1], "second");
    rename(&mut third, &f.users, &[2], "third");
    commit(first).unwrap();
    let error = commit(second).unwrap_err();
    assert_eq!(*error.code(), SqlState::SERIALIZATION_FAILURE);
    commit(third).unwrap();
    assert_eq!(f.latest(&f.users), pairs(&[(1, "first"), (2, "third")]));

    // Both insert one key: the later can't know when it inserts.
    let mut first = f.tables.begin().unwrap();
    let mut second = f.tables.begin().unwrap();
    first.insert(&f.users, &rows(&[(9, "first")])).unwrap();
    second.insert(&f.users, &rows(&[(9, "second")])).unwrap();
    let mut late = f.tables.begin().unwrap();
    commit(first).unwrap();
    assert_eq!(*commit(second).unwrap_err().code(), SqlState::SERIALIZATION_FAILURE);
    assert_eq!(*late.insert(&f.users, &rows(&[(9, "late")])).unwrap_err().code(), SqlState::UNIQUE_VIOLATION);
}

#[test]
fn a_statement_sees_what_was_committed_before_it() {
    let f = fixture();
    f.insert(&f.users, &[(1, "a"), (2, "b")]);
    let mut transaction = f.tables.begin().unwrap();
    rename(&mut transaction, &f.users, &[1], "mine");
    let other = f.insert(&f.users, &[(3, "c")]);
    assert_eq!(scan(&transaction.snapshot(), &f.users), pairs(&[(1, "mine"), (2, "b")]));
    transaction.begin_statement().unwrap();
    assert_eq!(transaction.read_seq(), other);
    assert_eq!(scan(&transaction.snapshot(), &f.users), pairs(&[(1, "mine"), (2, "b"), (3, "c")]));
    let mut other = f.tables.begin().unwrap();
    rename(&mut other, &f.users, &[1], "theirs");
    commit(other).unwrap();
    assert_eq!(*transaction.begin_statement().unwrap_err().code(), SqlState::SERIALIZATION_FAILURE);
}

#[test]
fn rows_without_key_are_told_apart() {
    let f = fixture();
    f.insert(&f.events, &[(1, "a"), (1, "a"), (2, "b")]);
    let seq = f.insert(&f.events, &[(1, "a")]);
    assert_eq!(f.latest(&f.events).len(), 4);
    let snapshot = f.tables.latest().unwrap();
    let (keys, old) = select(&snapshot, &f.events, &[1]);
    assert_eq!(old.num_rows(), 3);
    let mut transaction = f.tables.begin().unwrap();
    assert_eq!(transaction.delete(&f.events, &keys.slice(0, 1), &old.slice(0, 1)).unwrap(), 1);
    // Named twice, updated once.
    let twice = arrow::compute::concat(&[&keys.slice(1, 1), &keys.slice(1, 1)]).unwrap();
    let old_twice = rows(&[(1, "a"), (1, "a")]);
    assert_eq!(transaction.update(&f.events, &twice, &old_twice, &rows(&[(8, "x"), (9, "y")])).unwrap(), 1);
    assert_eq!(commit(transaction).unwrap(), Some(seq + 1));
    assert_eq!(f.latest(&f.events), pairs(&[(1, "a"), (2, "b"), (8, "x")]));
}

#[test]
fn scans_give_what_is_asked_for_batch_by_batch() {
    let f = fixture();
    let many: Vec<(i64, String)> = (0..20_000).map(|id| (id, format!("n{id}"))).collect();
    let many: Vec<(i64, &str)> = many.iter().map(|(id, name)| (*id, name.as_str())).collect();
    f.insert(&f.users, &many);
    f.insert(&f.events, &[(1, "other")]);
    let snapshot = f.tables.latest().unwrap();
    let options = ScanOptions { projection: Some(vec![1]), row_key: true, ..ScanOptions::default() };
    let scan = snapshot.scan(&f.users, options).unwrap();
    let schema = scan.schema();
    assert_eq!(schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>(), ["name", ROW_KEY_COLUMN]);
    let batches: Vec<RecordBatch> = scan.map(Result::unwrap).collect();
    assert_eq!(batches.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [8192, 8192, 3616]);
    let names: Vec<String> = batches
        .iter()
        .flat_map(|batch| batch.column(0).as_string::<i32>().iter().map(|name| name.unwrap().to_string()).collect::<Vec<_>>())
        .collect();
    assert_eq!(names, (0..20_000).map(|id| format!("n{id}")).collect::<Vec<_>>());
    let none = ScanOptions { projection: Some(Vec::new()), row_key: false, ..ScanOptions::default() };
    let count: usize = snapshot.scan(&f.users, none).unwrap().map(|batch| batch.unwrap().num_rows()).sum();
    assert_eq!(count, 20_000);
}

#[test]
fn old_commits_are_readable_as_long_as_they_are_needed() {
    let f = fixture();
    let first = f.insert(&f.users, &[(1, "a")]);
    let held = f.tables.latest().unwrap();
    f.tables.set_oldest_needed(first);
    for id in 2..=70 {
        f.insert(&f.users, &[(id, "x")]);
    }
    for (offset, id) in (1..=70).enumerate() {
        let snapshot = f.tables.snapshot(first + offset as u64).unwrap();
        assert_eq!(scan(&snapshot, &f.users).len(), id);
    }
    f.tables.set_oldest_needed(first + 60);
    for id in 71..=90 {
        f.insert(&f.users, &[(id, "x")]);
    }
    assert_eq!(*f.tables.snapshot(first).unwrap_err().code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    assert_eq!(scan(&f.tables.snapshot(first + 60).unwrap(), &f.users).len(), 61);
    assert_eq!(scan(&held, &f.users), pairs(&[(1, "a")]));
    assert!(f.tables.snapshot(first + 1000).is_err());
}

#[test]
fn a_checkpoint_and_the_log_behind_it_are_the_tables() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let (users, events);
    let checkpoint;
    let expected;
    {
        let (tables, _) = open_tables(LocalFiles::shared(), dir.path(), LogSettings::default()).unwrap();
        users = table(tables.next_object_id(), "users", true);
        events = table(tables.next_object_id(), "events", false);
        let mut transaction = tables.begin().unwrap();
        transaction.change_catalog(create(&users)).unwrap();
        transaction.change_catalog(create(&events)).unwrap();
        transaction.insert(&users, &rows(&[(1, "a"), (2, "b")])).unwrap();
        transaction.insert(&events, &rows(&[(1, "e"), (2, "f")])).unwrap();
        commit(transaction).unwrap();
        // The rows of a dropped table do not stay behind.
        let mut transaction = tables.begin().unwrap();
        transaction.change_catalog(CatalogChange::Drop(events.id)).unwrap();
        let through = commit(transaction).unwrap().unwrap();
        assert!(tables.changed_since_checkpoint());
        std::fs::create_dir(&image).unwrap();
        checkpoint = tables.fold_and_checkpoint(through, &image.join("tables")).unwrap();
        assert_eq!(checkpoint.seq, through);
        assert!(!tables.changed_since_checkpoint());
        assert_eq!(tables.log().write_catalog_snapshot().unwrap(), through);
        let mut transaction = tables.begin().unwrap();
        rename(&mut transaction, &users, &[2], "B");
        transaction.insert(&users, &rows(&[(3, "c")])).unwrap();
        commit(transaction).unwrap();
        assert!(tables.changed_since_checkpoint());
        expected = scan(&tables.latest().unwrap(), &users);
        assert_eq!(expected, pairs(&[(1, "a"), (2, "B"), (3, "c")]));
    }
    let (log, recovered) = EngineLog::open(LocalFiles::shared(), dir.path(), LogSettings::default()).unwrap();
    let part = crate::state::RestorePart { dir: image.join("tables"), range: crate::stream::KeyGroupRange::ALL };
    let backend = MemoryBackend::restore(&[part], crate::stream::KeyGroupRange::ALL).unwrap();
    let tables = Tables::open(log, &recovered, Box::new(backend), checkpoint.seq, TablesSettings::default()).unwrap();
    let snapshot = tables.latest().unwrap();
    assert_eq!(scan(&snapshot, &users), expected);
    assert_eq!(scan(&snapshot, &events), []);
    assert_eq!(scan(&tables.snapshot(checkpoint.seq + 1).unwrap(), &users), expected);
    let error = Tables::open(tables.log().clone(), &recovered, Box::new(MemoryBackend::new()), 99, TablesSettings::default()).unwrap_err();
    assert_eq!(*error.code(), SqlState::DATA_CORRUPTED);
}

#[test]
fn row_ids_are_not_given_twice_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let events = table(16_384, "events", false);
    for round in 0..3 {
        let (tables, _) = open_tables(LocalFiles::shared(), dir.path(), LogSettings::default()).unwrap();
        let mut transaction = tables.begin().unwrap();
        if round == 0 {
            transaction.change_catalog(create(&events)).unwrap();
        }
        transaction.insert(&events, &rows(&[(round, "a"), (round, "b")])).unwrap();
        commit(transaction).unwrap();
        if round == 1 {
            tables.log().write_catalog_snapshot().unwrap();
        }
        assert_eq!(scan(&tables.latest().unwrap(), &events).len(), 2 * (round as usize + 1));
    }
}

#[test]
fn ddl_and_dml_have_one_order() {
    let f = fixture();
    let mut writer = f.tables.begin().unwrap();
    writer.insert(&f.users, &rows(&[(1, "a")])).unwrap();
    let mut dropper = f.tables.begin().unwrap();
    dropper.change_catalog(CatalogChange::Drop(f.users.id)).unwrap();
    commit(dropper).unwrap();
    assert_eq!(*commit(writer).unwrap_err().code(), SqlState::UNDEFINED_TABLE);
    // Two that make the same name at the same time.
    let mut first = f.tables.begin().unwrap();
    let mut second = f.tables.begin().unwrap();
    first.change_catalog(create(&table(f.tables.next_object_id(), "new", true))).unwrap();
    second.change_catalog(create(&table(f.tables.next_object_id(), "new", true))).unwrap();
    commit(first).unwrap();
    assert_eq!(*commit(second).unwrap_err().code(), SqlState::DUPLICATE_TABLE);
    // Made, filled and dropped in one transaction.
    let mut transaction = f.tables.begin().unwrap();
    let made = table(f.tables.next_object_id(), "made", true);
    transaction.change_catalog(create(&made)).unwrap();
    transaction.insert(&made, &rows(&[(1, "a")])).unwrap();
    assert_eq!(scan(&transaction.snapshot(), &made).len(), 1);
    transaction.change_catalog(CatalogChange::Drop(made.id)).unwrap();
    commit(transaction).unwrap();
    assert!(f.tables.catalog().get("made").is_none());
}

#[test]
fn a_refused_commit_can_be_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let files = LossyFiles::new(dir.path(), 1).unwrap();
    let (tables, _) = open_tables(Arc::new(files.clone()), dir.path(), LogSettings::default()).unwrap();
    let users = table(tables.next_object_id(), "users", true);
    let mut transaction = tables.begin().unwrap();
    transaction.change_catalog(create(&users)).unwrap();
    commit(transaction).unwrap();
    let _long_running = tables.begin().unwrap();
    for free in [Some(5), None] {
        files.set_free_bytes(free);
        let mut transaction = tables.begin().unwrap();
        transaction.insert(&users, &rows(&[(1, "a")])).unwrap();
        match (free, commit(transaction)) {
            (Some(_), Err(error)) => assert_eq!(*error.code(), SqlState::DISK_FULL),
            (None, Ok(Some(2))) => {}
            (_, other) => panic!("{other:?}"),
        }
        assert_eq!(scan(&tables.latest().unwrap(), &users).len(), usize::from(free.is_none()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_under_the_lock_never_conflict_and_none_is_lost() {
    let f = tokio::task::block_in_place(fixture);
    tokio::task::block_in_place(|| f.insert(&f.users, &[(1, "0")]));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let (tables, users) = (f.tables.clone(), f.users.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                let _lock = tables.lock(users.id).await;
                let mut transaction = tables.begin().unwrap();
                let (keys, old) = select(&transaction.snapshot(), &users, &[1]);
                let n: i64 = old.column(1).as_string::<i32>().value(0).parse().unwrap();
                transaction.update(&users, &keys, &old, &rows(&[(1, &(n + 1).to_string())])).unwrap();
                transaction.commit().await.unwrap();
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(120), task).await.unwrap().unwrap();
    }
    assert_eq!(f.latest(&f.users), pairs(&[(1, "40")]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_without_the_lock_keep_their_sum() {
    let f = tokio::task::block_in_place(fixture);
    tokio::task::block_in_place(|| f.insert(&f.users, &[(1, "100"), (2, "100"), (3, "100")]));
    let mut tasks = Vec::new();
    for task_number in 0..3i64 {
        let (tables, users) = (f.tables.clone(), f.users.clone());
        tasks.push(tokio::spawn(async move {
            let mut done = 0;
            while done < 10 {
                let mut transaction = tables.begin().unwrap();
                let pair = [1 + task_number % 3, 1 + (task_number + 1) % 3];
                let (keys, old) = select(&transaction.snapshot(), &users, &pair);
                let amounts: Vec<i64> = old.column(1).as_string::<i32>().iter().map(|text| text.unwrap().parse().unwrap()).collect();
                let ids = old.column(0).as_primitive::<Int64Type>();
                let (less, more) = ((amounts[0] - 1).to_string(), (amounts[1] + 1).to_string());
                let new = rows(&[(ids.value(0), &less), (ids.value(1), &more)]);
                transaction.update(&users, &keys, &old, &new).unwrap();
                match transaction.commit().await {
                    Ok(_) => done += 1,
                    Err(error) => assert_eq!(*error.code(), SqlState::SERIALIZATION_FAILURE),
                }
                let sum: i64 = scan(&tables.latest().unwrap(), &users).iter().map(|(_, text)| text.parse::<i64>().unwrap()).sum();
                assert_eq!(sum, 300);
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(120), task).await.unwrap().unwrap();
    }
}

#[test]
fn the_end_can_be_read_at_every_moment() {
    let dir = tempfile::tempdir().unwrap();
    let files = LossyFiles::new(dir.path(), 1).unwrap();
    let (tables, _) = open_tables(Arc::new(files), dir.path(), LogSettings::default()).unwrap();
    let users = table(tables.next_object_id(), "users", true);
    let mut transaction = tables.begin().unwrap();
    transaction.change_catalog(create(&users)).unwrap();
    commit(transaction).unwrap();
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (tables, users, done) = (tables.clone(), users.clone(), done.clone());
            std::thread::spawn(move || {
                let mut last = 0;
                while !done.load(Ordering::SeqCst) {
                    let transaction = tables.begin().unwrap();
                    let count = scan(&transaction.snapshot(), &users).len();
                    // Commit 2 is the first with a row, and each has one.
                    assert_eq!(count as u64, transaction.read_seq().saturating_sub(1));
                    assert!(count >= last);
                    last = count;
                }
            })
        })
        .collect();
    for id in 0..600 {
        let mut transaction = tables.begin().unwrap();
        transaction.insert(&users, &rows(&[(id, "x")])).unwrap();
        commit(transaction).unwrap();
    }
    done.store(true, Ordering::SeqCst);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

#[test]
fn tables_in_rocksdb_come_back_from_a_checkpoint() {
    use crate::state::{RestorePart, RocksBackend, SharedRocks};
    use crate::stream::KeyGroupRange;
    let dir = tempfile::tempdir().unwrap();
    let shared = SharedRocks::new(8 << 20, 8 << 20).unwrap();
    let users = table(16_384, "users", true);
    let name = "n".repeat(20);
    let (checkpoint, expected);
    {
        let (log, recovered) = EngineLog::open(LocalFiles::shared(), dir.path(), LogSettings::default()).unwrap();
        let backend = RocksBackend::open(&shared, &dir.path().join("scratch-1"), &[], KeyGroupRange::ALL).unwrap();
        let settings = TablesSettings { max_unfolded_bytes: 100_000, ..TablesSettings::default() };
        let tables = Tables::open(log, &recovered, Box::new(backend), 0, settings).unwrap();
        let mut transaction = tables.begin().unwrap();
        transaction.change_catalog(create(&users)).unwrap();
        commit(transaction).unwrap();
        let mut open_before_the_fold = None;
        for round in 0..10i64 {
            let many: Vec<(i64, &str)> = (0..2000).map(|i| (round * 2000 + i, name.as_str())).collect();
            let mut transaction = tables.begin().unwrap();
            transaction.insert(&users, &rows(&many)).unwrap();
            commit(transaction).unwrap();
            if round == 2 {
                open_before_the_fold = Some(tables.latest().unwrap());
            }
        }
        assert!(tables.overlay_bytes() < 20_000 * 60, "changes left memory");
        assert_eq!(scan(&open_before_the_fold.unwrap(), &users).len(), 6000);
        checkpoint = tables.fold_and_checkpoint(tables.log().end(), &dir.path().join("image")).unwrap();
        assert!(!checkpoint.files.is_empty());
        let mut transaction = tables.begin().unwrap();
        delete(&mut transaction, &users, &(0..19_000).collect::<Vec<_>>());
        rename(&mut transaction, &users, &[19_500], "renamed");
        commit(transaction).unwrap();
        expected = scan(&tables.latest().unwrap(), &users);
        assert_eq!(expected.len(), 1000);
    }
    let (log, recovered) = EngineLog::open(LocalFiles::shared(), dir.path(), LogSettings::default()).unwrap();
    let part = RestorePart { dir: dir.path().join("image"), range: KeyGroupRange::ALL };
    let backend = RocksBackend::open(&shared, &dir.path().join("scratch-2"), &[part], KeyGroupRange::ALL).unwrap();
    let tables = Tables::open(log, &recovered, Box::new(backend), checkpoint.seq, TablesSettings::default()).unwrap();
    assert_eq!(scan(&tables.latest().unwrap(), &users), expected);
    assert_eq!(scan(&tables.snapshot(recovered.end).unwrap(), &users), expected);
}

#[test]
fn what_transactions_have_written_is_bounded_and_counted() {
    use crate::state::memory_pool::MemoryPool;
    let dir = tempfile::tempdir().unwrap();
    let (log, recovered) = EngineLog::open(LocalFiles::shared(), dir.path(), LogSettings::default()).unwrap();
    let settings = TablesSettings { max_uncommitted_bytes: 100_000, ..TablesSettings::default() };
    let tables = Tables::open(log, &recovered, Box::new(MemoryBackend::new()), 0, settings).unwrap();
    let pool = MemoryPool::new(1 << 20);
    tables.count_memory(pool.charge(), pool.charge());
    let users = table(tables.next_object_id(), "users", true);
    let mut transaction = tables.begin().unwrap();
    transaction.change_catalog(create(&users)).unwrap();
    commit(transaction).unwrap();

    let name = "x".repeat(1000);
    let many = |from: i64, count: i64| rows(&(from..from + count).map(|id| (id, name.as_str())).collect::<Vec<_>>());
    let mut first = tables.begin().unwrap();
    first.insert(&users, &many(0, 60)).unwrap();
    assert!(pool.used() >= 60_000, "{}", pool.used());
    // Together they hold too much; it fails who asks for more, and does nothing any more.
    let mut second = tables.begin().unwrap();
    let error = second.insert(&users, &many(100, 60)).unwrap_err();
    assert_eq!(*error.code(), SqlState::OUT_OF_MEMORY);
    assert_eq!(*second.insert(&users, &many(200, 1)).unwrap_err().code(), SqlState::IN_FAILED_SQL_TRANSACTION);
    drop(second);
    // What was given up is no longer counted.
    let mut third = tables.begin().unwrap();
    third.insert(&users, &many(100, 10)).unwrap();
    commit(third).unwrap().unwrap();
    commit(first).unwrap().unwrap();
    assert_eq!(tables.uncommitted_bytes.load(std::sync::atomic::Ordering::SeqCst), 0);
    assert_eq!(pool.used(), tables.overlay_bytes());
    assert_eq!(scan(&tables.latest().unwrap(), &users).len(), 70);
}

#[test]
fn a_large_commit_leaves_memory_once_all_have_read_it() {
    let dir = tempfile::tempdir().unwrap();
    let (tables, _) = open_tables(LocalFiles::shared(), dir.path(), small_segments()).unwrap();
    let users = table(tables.next_object_id(), "users", true);
    let mut transaction = tables.begin().unwrap();
    transaction.change_catalog(create(&users)).unwrap();
    let before = commit(transaction).unwrap().unwrap();
    let kept = || tables.log().shared.tail.read().commits.iter().map(|(commit, _)| commit.seq).collect::<Vec<_>>();
    let insert = |from: i64, name: &str| {
        let mut transaction = tables.begin().unwrap();
        transaction.insert(&users, &rows(&(from..from + 20).map(|id| (id, name)).collect::<Vec<_>>())).unwrap();
        commit(transaction).unwrap().unwrap()
    };
    let mut slow = tables.reader(users.id, vec![0], before).unwrap();
    let mut quick = tables.reader(users.id, vec![0], before).unwrap();
    let large = insert(0, &"x".repeat(1000));
    assert_eq!(kept(), [large]);
    let count = |reader: &mut TableReader, cut: CommitSeq| {
        let mut rows = 0;
        let mut each = |batch: Batch| {
            rows += batch.num_rows();
            Ok(())
        };
        reader.changes_through(cut, &mut each).unwrap();
        rows
    };
    assert_eq!(count(&mut quick, large), 20);
    assert_eq!(kept(), [large], "somebody has not read it");
    assert_eq!(count(&mut slow, large), 20);
    assert!(kept().is_empty(), "{:?}", kept());
    // Without readers it is not kept at all; whoever comes later has it from the files.
    drop((slow, quick));
    let larger = insert(100, &"y".repeat(1000));
    assert!(kept().is_empty(), "{:?}", kept());
    let mut late = tables.reader(users.id, vec![0], before).unwrap();
    assert_eq!(count(&mut late, larger), 40);
    let small = insert(200, "z");
    assert_eq!(kept(), [small]);
    assert_eq!(count(&mut late, small), 20);
}
