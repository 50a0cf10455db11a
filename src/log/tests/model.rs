//! Random transactions, checkpoints and restarts against a model that is a map.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::seams::files::LossyFiles;
use crate::state::RestorePart;
use crate::stream::KeyGroupRange;
use weir_catalog::SqlState;

#[derive(Clone, Debug)]
enum Action {
    Insert(Vec<i64>),
    Delete(Vec<i64>),
    Rename(Vec<i64>),
    /// Moves the keys up by one.
    Shift(Vec<i64>),
    Commit,
    Rollback,
    BeginStatement,
    Checkpoint,
    /// The power goes off; the open transaction is lost.
    Crash,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let ids = || prop::collection::vec(0..12i64, 0..5);
    let action = prop_oneof![
        4 => ids().prop_map(Action::Insert),
        3 => ids().prop_map(Action::Delete),
        3 => ids().prop_map(Action::Rename),
        2 => ids().prop_map(Action::Shift),
        4 => Just(Action::Commit),
        1 => Just(Action::Rollback),
        1 => Just(Action::BeginStatement),
        1 => Just(Action::Checkpoint),
        1 => Just(Action::Crash),
    ];
    prop::collection::vec(action, 1..40)
}

type Model = BTreeMap<i64, String>;

struct Run {
    dir: tempfile::TempDir,
    files: LossyFiles,
    tables: Option<Arc<Tables>>,
    users: StoredTable,
    checkpoint: Option<(PathBuf, CommitSeq)>,
    checkpoints: usize,
    /// What a job that reads the changes has added up.
    replica: Vec<(i64, String)>,
    replica_at: CommitSeq,
}

impl Run {
    fn new(seed: u64) -> Run {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("data")).unwrap();
        let files = LossyFiles::new(&dir.path().join("data"), seed).unwrap();
        let users = table(16_384, "users", true);
        let mut run = Run { dir, files, tables: None, users, checkpoint: None, checkpoints: 0, replica: Vec::new(), replica_at: 0 };
        run.open();
        let mut transaction = run.tables().begin().unwrap();
        transaction.change_catalog(create(&run.users)).unwrap();
        commit(transaction).unwrap();
        run
    }

    fn tables(&self) -> &Arc<Tables> {
        self.tables.as_ref().unwrap()
    }

    fn open(&mut self) {
        let data = self.dir.path().join("data");
        let settings = LogSettings { segment_bytes: 2000, tail_bytes: 1500, limit_bytes: 1 << 30 };
        let (log, recovered) = EngineLog::open(Arc::new(self.files.clone()), &data, settings).unwrap();
        let (backend, base) = match &self.checkpoint {
            Some((dir, seq)) => {
                let part = RestorePart { dir: dir.clone(), range: KeyGroupRange::ALL };
                (MemoryBackend::restore(&[part], KeyGroupRange::ALL).unwrap(), *seq)
            }
            None => (MemoryBackend::new(), 0),
        };
        // A limit so low that changes leave memory now and then.
        let settings = TablesSettings { max_unfolded_bytes: 3000, ..TablesSettings::default() };
        self.tables = Some(Tables::open(log, &recovered, Box::new(backend), base, settings).unwrap());
    }

    fn crash(&mut self) {
        self.tables = None;
        self.files.crash().unwrap();
        self.open();
    }

    fn checkpoint(&mut self) {
        self.checkpoints += 1;
        let dir = self.dir.path().join(format!("checkpoint-{}", self.checkpoints));
        let tables = self.tables();
        let end = tables.log().end();
        let made = tables.fold_and_checkpoint(end, &dir).unwrap();
        assert_eq!(made.seq, end);
        let snapshot = tables.log().write_catalog_snapshot().unwrap();
        assert_eq!(snapshot, end);
        tables.log().truncate_before(self.replica_at.min(made.seq) + 1).unwrap();
        self.checkpoint = Some((dir, made.seq));
    }

    /// Reads the changes since the last call and adds them up, as a job would.
    fn follow(&mut self) {
        let tables = self.tables().clone();
        let end = tables.log().end();
        let mut reader = tables.reader(self.users.id, vec![0, 1], self.replica_at).unwrap();
        let replica = &mut self.replica;
        reader
            .changes_through(end, &mut |batch| {
                let ids = batch.rows.column(0).as_primitive::<Int64Type>();
                let names = batch.rows.column(1).as_string::<i32>();
                for i in (0..batch.num_rows()).filter(|i| batch.weight(*i) < 0) {
                    let row = (ids.value(i), names.value(i).to_string());
                    let place = replica.iter().position(|other| *other == row).expect("what is retracted is there");
                    replica.swap_remove(place);
                }
                for i in (0..batch.num_rows()).filter(|i| batch.weight(*i) > 0) {
                    replica.push((ids.value(i), names.value(i).to_string()));
                }
                Ok(())
            })
            .unwrap();
        self.replica_at = end;
    }
}

fn as_rows(model: &Model) -> Vec<(i64, String)> {
    model.iter().map(|(id, name)| (*id, name.clone())).collect()
}

fn run(seed: u64, actions: Vec<Action>) {
    let mut run = Run::new(seed);
    let mut committed = Model::new();
    let mut own = committed.clone();
    let mut transaction: Option<Transaction> = None;
    for (number, action) in actions.into_iter().enumerate() {
        let users = run.users.clone();
        let name = format!("n{number}");
        let mut failed = false;
        if matches!(action, Action::Insert(_) | Action::Delete(_) | Action::Rename(_) | Action::Shift(_)) && transaction.is_none() {
            transaction = Some(run.tables().begin().unwrap());
            own = committed.clone();
        }
        match (action, &mut transaction) {
            (Action::Insert(ids), Some(open)) => {
                let new: Vec<(i64, &str)> = ids.iter().map(|id| (*id, name.as_str())).collect();
                let mut next = own.clone();
                let fits = ids.iter().all(|id| next.insert(*id, name.clone()).is_none());
                match open.insert(&users, &rows(&new)) {
                    Ok(count) => {
                        assert!(fits);
                        assert_eq!(count as usize, ids.len());
                        own = next;
                    }
                    Err(error) => {
                        assert!(!fits, "{error}");
                        assert_eq!(*error.code(), SqlState::UNIQUE_VIOLATION);
                        failed = true;
                    }
                }
            }
            (Action::Delete(ids), Some(open)) => {
                let count = delete(open, &users, &ids);
                let before = own.len();
                own.retain(|id, _| !ids.contains(id));
                assert_eq!(count as usize, before - own.len());
            }
            (Action::Rename(ids), Some(open)) => {
                let count = rename(open, &users, &ids, &name);
                let mut expected = 0;
                for (_, old) in own.iter_mut().filter(|(id, _)| ids.contains(id)) {
                    *old = name.clone();
                    expected += 1;
                }
                assert_eq!(count, expected);
            }
            (Action::Shift(ids), Some(open)) => {
                let (keys, old) = select(&open.snapshot(), &users, &ids);
                let olds: Vec<(i64, String)> = scan(&open.snapshot(), &users).into_iter().filter(|(id, _)| ids.contains(id)).collect();
                let mut next = own.clone();
                olds.iter().for_each(|(id, _)| drop(next.remove(id)));
                let fits = olds.iter().all(|(id, name)| next.insert(id + 1, name.clone()).is_none());
                let ids = old.column(0).as_primitive::<Int64Type>();
                let names = old.column(1).as_string::<i32>();
                let new: Vec<(i64, &str)> = (0..old.num_rows()).map(|i| (ids.value(i) + 1, names.value(i))).collect();
                match open.update(&users, &keys, &old, &rows(&new)) {
                    Ok(_) => {
                        assert!(fits);
                        own = next;
                    }
                    Err(error) => {
                        assert!(!fits, "{error}");
                        failed = true;
                    }
                }
            }
            (Action::BeginStatement, Some(open)) => open.begin_statement().unwrap(),
            (Action::Commit, open) => {
                if let Some(open) = open.take() {
                    commit(open).unwrap();
                    committed = own.clone();
                }
                run.follow();
            }
            (Action::Rollback, open) => drop(open.take()),
            (Action::Checkpoint, open) => {
                drop(open.take());
                run.checkpoint();
            }
            (Action::Crash, open) => {
                drop(open.take());
                run.crash();
                run.follow();
            }
            (_, None) => {}
        }
        match &transaction {
            Some(open) if !failed => assert_eq!(scan(&open.snapshot(), &users), as_rows(&own)),
            _ => transaction = None,
        }
        assert_eq!(scan(&run.tables().latest().unwrap(), &users), as_rows(&committed));
        let mut replica = run.replica.clone();
        replica.sort();
        if run.replica_at == run.tables().log().end() && run.replica_at > 1 {
            assert_eq!(replica, as_rows(&committed));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(20_261), ..ProptestConfig::default() })]

    #[test]
    fn tables_are_what_a_map_would_be(seed in any::<u64>(), actions in actions()) {
        run(seed, actions);
    }
}
