//! The versioned store against one plain map for each version, on both backends, and under readers on other threads.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use super::super::tests::{Backends, Kind, Model, apply, content, key, model_range, writes};
use super::*;
use crate::stream::KeyGroupRange;

#[derive(Clone, Debug)]
enum Action {
    /// Changes as the version that is this much newer.
    Write(u64, Writes),
    Advance(u64),
    /// Changes in two parts, the first ahead of the version that is this much newer.
    Ahead(u64, Writes, Writes),
    /// Fold up to the newest version less this much, where that is allowed.
    Fold(u64),
    /// Release up to the newest version less this much.
    Release(u64),
    /// Open the newest version less this much, and hold it to the end.
    Open(u64),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => (1..3u64, writes()).prop_map(|(step, writes)| Action::Write(step, writes)),
        1 => (0..4u64).prop_map(Action::Advance),
        2 => (1..3u64, writes(), writes()).prop_map(|(step, first, rest)| Action::Ahead(step, first, rest)),
        2 => (0..4u64).prop_map(Action::Fold),
        3 => (0..6u64).prop_map(Action::Release),
        2 => (0..6u64).prop_map(Action::Open),
    ]
}

fn check_actions(kind: Kind, actions: Vec<Action>, from: Vec<u8>, to: Vec<u8>) -> Result<(), TestCaseError> {
    let mut backends = Backends::new(kind);
    let (mut store, versions) = VersionedStore::new(backends.open(&[], KeyGroupRange::ALL)?, 7)?;
    let receiver = versions.subscribe();
    let mut models = BTreeMap::from([(7, Model::new())]);
    let mut oldest = 7;
    let mut folded = 7;
    let mut open: Vec<(Arc<VersionSnapshot>, Model)> = Vec::new();
    for action in actions {
        let newest = store.newest();
        match action {
            Action::Write(step, writes) => {
                let mut model = models[&newest].clone();
                for version in newest + 1..newest + step {
                    models.insert(version, model.clone());
                }
                apply(&mut model, &writes);
                models.insert(newest + step, model);
                store.write(newest + step, writes)?;
            }
            Action::Advance(step) => {
                let model = models[&newest].clone();
                models.extend((newest + 1..=newest + step).map(|version| (version, model.clone())));
                store.advance(newest + step)?;
            }
            Action::Ahead(step, first, rest) => {
                let mut model = models[&newest].clone();
                models.extend((newest + 1..newest + step).map(|version| (version, model.clone())));
                store.write_ahead(&first)?;
                if store.is_ahead() {
                    folded = newest;
                }
                prop_assert_eq!(store.is_ahead(), !first.is_empty());
                let before = versions.open(newest).expect("the newest version");
                prop_assert_eq!(&content(before.as_ref(), &[], &[]), &model, "what is ahead is not seen");
                apply(&mut model, &first);
                apply(&mut model, &rest);
                models.insert(newest + step, model);
                let was_ahead = store.is_ahead();
                store.write(newest + step, rest)?;
                if was_ahead {
                    folded = newest + step;
                }
                prop_assert!(!store.is_ahead());
            }
            Action::Fold(back) => {
                let through = newest.saturating_sub(back).max(oldest).max(folded);
                folded = through;
                store.fold(through)?;
                prop_assert_eq!(&super::super::tests::content_of_backend(store.backend(), &[], &[]), &models[&through]);
            }
            Action::Release(back) => {
                oldest = oldest.max(newest.saturating_sub(back));
                store.release(newest.saturating_sub(back))?;
            }
            Action::Open(back) => {
                let version = newest.saturating_sub(back).max(oldest);
                let snapshot = versions.open(version).expect("it is among those that are kept");
                open.push((snapshot, models[&version].clone()));
            }
        }
        let newest = store.newest();
        prop_assert_eq!(versions.range(), (oldest, newest));
        prop_assert_eq!(*receiver.borrow(), newest);
        prop_assert!(versions.open(oldest - 1).is_none() && versions.open(newest + 1).is_none());
        for version in oldest..=newest {
            let snapshot = versions.open(version).expect("it is among those that are kept");
            let model = &models[&version];
            prop_assert_eq!(snapshot.version(), version);
            prop_assert_eq!(&content(snapshot.as_ref(), &[], &[]), model, "version {}", version);
            prop_assert_eq!(content(snapshot.as_ref(), &from, &to), model_range(model, &from, &to), "version {}", version);
        }
        check_lookups(&store, &versions, &models[&newest], &models)?;
    }
    for (snapshot, model) in &open {
        prop_assert_eq!(&content(snapshot.as_ref(), &[], &[]), model, "held version {}", snapshot.version());
    }
    drop(open);
    let newest = store.newest();
    store.fold(newest)?;
    store.release(newest)?;
    prop_assert_eq!(store.overlay_bytes(), 0);
    Ok(())
}

/// Looks up every key that ever was, in the newest version.
fn check_lookups(store: &VersionedStore, versions: &Versions, model: &Model, models: &BTreeMap<u64, Model>) -> Result<(), TestCaseError> {
    let keys: std::collections::BTreeSet<&[u8]> = models.values().flat_map(|model| model.keys().map(Vec::as_slice)).collect();
    let keys: Vec<&[u8]> = keys.into_iter().collect();
    let mut found = Model::new();
    store.get_latest(&keys, &mut |i, value| {
        assert!(found.insert(keys[i].to_vec(), value.to_vec()).is_none(), "a key is found twice");
        Ok(())
    })?;
    prop_assert_eq!(&found, model);
    let snapshot = versions.open(store.newest()).expect("the newest version");
    for key in keys {
        let found = snapshot.get(key)?;
        prop_assert_eq!(found.as_ref(), model.get(key));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn in_memory_every_version_is_as_it_was(actions in prop::collection::vec(action(), 1..40), from in key(), to in key()) {
        check_actions(Kind::Memory, actions, from, to)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn in_rocks_every_version_is_as_it_was(actions in prop::collection::vec(action(), 1..25), from in key(), to in key()) {
        check_actions(Kind::Rocks, actions, from, to)?;
    }
}

fn store(kind: Kind) -> (Backends, VersionedStore, Arc<Versions>) {
    let mut backends = Backends::new(kind);
    let backend = backends.open(&[], KeyGroupRange::ALL).unwrap();
    let (store, versions) = VersionedStore::new(backend, 0).unwrap();
    (backends, store, versions)
}

#[test]
fn versions_out_of_order_are_refused() {
    let (_backends, mut store, versions) = store(Kind::Memory);
    let change = || Writes::from_iter([(b"key", Some(b"value"))]);
    store.write(5, change()).unwrap();
    assert!(store.write(5, change()).is_err());
    assert!(store.advance(4).is_err());
    assert!(store.fold(6).is_err());
    store.write(6, change()).unwrap();
    store.write(7, change()).unwrap();
    store.release(7).unwrap();
    // 5 and 6 are one overlay now: the base cannot come to stand between.
    assert!(store.fold(5).is_err());
    store.fold(7).unwrap();
    assert!(store.fold(6).is_err());
    assert_eq!(versions.range(), (7, 7));
}

#[test]
fn reading_after_very_many_versions_costs_a_logarithm() {
    let (_backends, mut store, versions) = store(Kind::Memory);
    for version in 1..=4_000u64 {
        store.write(version, Writes::from_iter([(version.to_be_bytes(), Some([1]))])).unwrap();
        store.release(version.saturating_sub(5)).unwrap();
        let overlays = versions.open(version).unwrap().content.overlays.len();
        assert!(overlays <= 6 + 13, "{overlays} overlays at version {version}");
    }
    assert_eq!(content(versions.open(4_000).unwrap().as_ref(), &[], &[]).len(), 4_000);
}

/// Every version holds this many accounts whose sum is zero: a reader that sees a part of a version sees another sum.
#[test]
fn readers_on_other_threads_see_whole_versions() {
    const ACCOUNTS: u64 = 50;
    for kind in [Kind::Memory, Kind::Rocks, Kind::Recent] {
        let (_backends, mut store, versions) = store(kind);
        let account = |i: u64| [&[0, (i % 128) as u8], i.to_be_bytes().as_slice()].concat();
        let balance = |value: &[u8]| i64::from_le_bytes(value.try_into().expect("8 bytes"));
        store.write(1, (0..ACCOUNTS).map(|i| (account(i), Some(0i64.to_le_bytes().to_vec()))).collect()).unwrap();
        store.release(1).unwrap();
        let is_done = AtomicBool::new(false);
        let reads = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut reads = 0;
                        let mut last = 0;
                        while !is_done.load(Ordering::Acquire) || reads == 0 {
                            let (oldest, newest) = versions.range();
                            let Some(snapshot) = versions.open(if reads % 2 == 0 { newest } else { oldest }) else { continue };
                            assert!(newest >= last, "versions go back");
                            last = newest;
                            let (mut sum, mut count) = (0, 0);
                            for entry in snapshot.iter(&[], &[]) {
                                let (_, value) = entry.expect("entry");
                                sum += balance(&value);
                                count += 1;
                            }
                            assert_eq!((sum, count), (0, ACCOUNTS));
                            let marker = snapshot.get(&account(0)).expect("get").expect("it exists");
                            assert_eq!(snapshot.get(&account(0)).expect("get").expect("it exists"), marker);
                            reads += 1;
                        }
                        reads
                    })
                })
                .collect();
            for version in 2..300u64 {
                let (from, to) = (version % ACCOUNTS, (version * 7 + 1) % ACCOUNTS);
                if from == to {
                    store.advance(version).unwrap();
                    continue;
                }
                let mut keys = [account(from), account(to)];
                let amount = if keys[0] < keys[1] { version as i64 } else { -(version as i64) };
                keys.sort();
                let mut balances = [0; 2];
                let lookup: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                store
                    .get_latest(&lookup, &mut |i, value| {
                        balances[i] = balance(value);
                        Ok(())
                    })
                    .unwrap();
                let [first, second] = keys;
                let changes = [(first, Some((balances[0] - amount).to_le_bytes())), (second, Some((balances[1] + amount).to_le_bytes()))];
                store.write(version, changes.into_iter().collect()).unwrap();
                store.release(version.saturating_sub(3)).unwrap();
                if version % 50 == 0 {
                    store.fold(version).unwrap();
                }
            }
            is_done.store(true, Ordering::Release);
            readers.into_iter().map(|reader| reader.join().expect("a reader")).sum::<u64>()
        });
        assert!(reads > 0, "{kind:?}");
    }
}
