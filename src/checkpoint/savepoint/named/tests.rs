use std::collections::BTreeMap;

use super::*;
use crate::checkpoint::JobCheckpoint;
use crate::seams::files::{FilesRef, LocalFiles, LossyFiles};
use crate::seams::objects::Permits;

fn savepoint(created_us: i64) -> Savepoint {
    let job = weir_catalog::Job {
        id: 16_400,
        name: "v".into(),
        kind: weir_catalog::JobKind::MaterializedView { key: None, changelog: weir_catalog::ChangelogMode::Append },
        columns: Vec::new(),
        query: "SELECT 1".into(),
        insert_columns: Vec::new(),
        sql: "CREATE MATERIALIZED VIEW v AS SELECT 1".into(),
        settings: BTreeMap::new(),
        inputs: Vec::new(),
        macros: Vec::new(),
        operators: Vec::new(),
        parallelism: 1,
        origin: None,
    };
    let checkpoint =
        JobCheckpoint { barrier: 1, commit: 1, time_us: 0, operators: BTreeMap::new(), finished: false, inputs: BTreeMap::new() };
    let (name, operators) = ("sp".into(), BTreeMap::new());
    Savepoint { name, engine: 7, created_us, job, checkpoint, operators, result: None, ends_job: false, inputs: Vec::new(), tables: None }
}

/// Each statement that makes a savepoint elsewhere is stopped at each change of the disk, by a crash that loses what was not durable or by the end of the
/// process alone. The savepoint is there and has its name, or neither; after STOP WITH SAVEPOINT of a job that has not ended it is neither. Then the same
/// statement works.
#[test]
fn a_savepoint_elsewhere_is_there_and_has_its_name_or_neither() {
    let (mut there, mut gone) = (0, 0);
    for (ends, power_is_lost) in [(false, false), (false, true), (true, false), (true, true)] {
        for at in 1.. {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().join("data");
            let lossy = LossyFiles::new(&root, at).unwrap();
            let files: FilesRef = Arc::new(lossy.clone());
            let place = Place::Folder(root.join("away"));
            let permits = Permits::new(1 << 20, |_| ());
            let places = Places::new(files.clone(), root.join("scratch"), permits);
            let open = || Savepoints::open(places.clone(), root.join("savepoints"), |_| false).unwrap().0;
            let store = || CheckpointStore::open(files.clone(), &root.join("checkpoints"), None).unwrap().0;
            let write = |savepoints: &Savepoints, store: &CheckpointStore, created_us: i64| -> Result<()> {
                let reserved = savepoints.reserve("sp", Some(&place))?;
                if ends {
                    savepoints.write_of_ending(store, &savepoint(created_us), &reserved, 16_400)
                } else {
                    savepoints.write(store, &savepoint(created_us), &reserved)
                }
            };
            let (savepoints, former) = (open(), store());
            lossy.power_off_after(at);
            let written = write(&savepoints, &former, 1);
            let is_over = !lossy.powered_off();
            if power_is_lost {
                lossy.power_off();
                lossy.crash().unwrap();
            } else {
                lossy.kill();
            }
            drop((savepoints, former));

            let (savepoints, store) = (open(), store());
            let is_there = places.read(&place).is_ok();
            let named = savepoints.list().unwrap();
            assert_eq!(named.len(), usize::from(is_there), "ends: {ends}, power lost: {power_is_lost}, change {at}");
            if ends {
                assert!(!is_there, "the job has not ended; change {at}");
            } else {
                assert!(is_there || written.is_err(), "what was acknowledged is gone; change {at}");
            }
            if is_there {
                there += 1;
                assert_eq!(write(&savepoints, &store, 2).unwrap_err().code().as_str(), "42710");
                assert!(savepoints.remove("sp").unwrap());
            } else {
                gone += 1;
            }
            write(&savepoints, &store, 3).unwrap();
            assert_eq!(places.read(&place).unwrap().created_us, 3);
            if is_over {
                break;
            }
        }
    }
    assert!(there > 4 && gone > 20, "{there} there, {gone} gone");
}

/// A name that was begun where somebody else's savepoint is, or was, takes nothing from them.
#[test]
fn a_name_that_was_begun_takes_no_savepoint_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let files: FilesRef = Arc::new(LossyFiles::new(dir.path(), 1).unwrap());
    let places = Places::new(files.clone(), dir.path().join("scratch"), Permits::new(1 << 20, |_| ()));
    let place = Place::Folder(dir.path().join("away"));
    let store = CheckpointStore::open(files.clone(), &dir.path().join("checkpoints"), None).unwrap().0;
    places.write(&store, &place, &savepoint(1)).unwrap();
    for given_up in [false, true] {
        let entry = dir.path().join("savepoints/sp");
        files.create_dir(&entry).unwrap();
        files.write(&entry.join(BEGUN), identity(&savepoint(2)).as_bytes()).unwrap();
        files.write(&entry.join(LOCATION), place.record().unwrap().as_bytes()).unwrap();
        if given_up {
            files.write(&entry.join(ENDING), b"16400").unwrap();
        }
        let (savepoints, unsettled) = Savepoints::open(places.clone(), dir.path().join("savepoints"), |_| false).unwrap();
        assert!(unsettled.is_empty() && savepoints.list().unwrap().is_empty() && !files.exists(&entry));
        assert_eq!(places.read(&place).unwrap(), savepoint(1));
    }
}

#[test]
fn every_name_is_that_of_a_folder() {
    for name in ["before", "Before It", "a/b", "..", "ü%2f", "", "x.tmp"] {
        let folder = folder_name(name);
        assert!(!folder.contains(['/', '.']), "{folder}");
        assert_eq!(name_of_folder(&folder).as_deref(), Some(name));
    }
    assert_eq!(name_of_folder("%zz"), None);
    for other in ["%zz", "lost+found", ".snapshot", "notes.txt", "%2E"] {
        assert_eq!(name_of(Path::new(other)), None, "{other}");
    }
}

/// The savepoints of a new data folder below `dir`, its store of checkpoints, and how places are reached.
fn data_folder(dir: &Path, name: &str) -> (Savepoints, CheckpointStore, Places) {
    let (files, root) = (LocalFiles::shared(), dir.join(name));
    let places = Places::new(files.clone(), root.join("scratch"), Permits::new(1 << 20, |_| ()));
    let savepoints = Savepoints::open(places.clone(), root.join("savepoints"), |_| false).unwrap().0;
    (savepoints, CheckpointStore::open(files, &root.join("checkpoints"), None).unwrap().0, places)
}

/// Of two savepoints of one data folder for the same place, or of the same name, the second is refused while the first is being made, and changes nothing.
#[test]
fn a_name_and_a_place_are_for_one_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (savepoints, store, places) = data_folder(dir.path(), "data");
    let (place, other) = (Place::Folder(dir.path().join("away")), Place::Folder(dir.path().join("other")));
    let refusal = |name: &str, place: &Place| savepoints.reserve(name, Some(place)).unwrap_err().code().as_str().to_string();
    let first = savepoints.reserve("first", Some(&place)).unwrap();
    assert_eq!(refusal("second", &place), "55006");
    assert_eq!(refusal("first", &other), "42710");
    let second = savepoints.reserve("second", Some(&other)).unwrap();
    savepoints.write(&store, &savepoint(1), &first).unwrap();
    drop(first);
    savepoints.write(&store, &savepoint(2), &second).unwrap();
    drop(second);
    // Who comes later finds a savepoint there, and leaves it as it is.
    let late = savepoints.reserve("late", Some(&place)).unwrap();
    assert_eq!(savepoints.write(&store, &savepoint(3), &late).unwrap_err().code().as_str(), "42710");
    // Nor is one removed whose place is in use.
    assert_eq!(savepoints.remove("first").unwrap_err().code().as_str(), "55006");
    drop(late);
    assert_eq!(places.read(&place).unwrap().created_us, 1);
    assert_eq!(savepoints.list().unwrap(), [("first".to_string(), place.clone()), ("second".to_string(), other)]);
    assert!(savepoints.remove("first").unwrap() && !savepoints.remove("first").unwrap());
    assert_eq!(places.read(&place).unwrap_err().code().as_str(), "42704");
}

/// Data folders that make a savepoint in the same place at once: one is told that it has, and its savepoint is there.
#[test]
fn of_several_data_folders_one_has_a_place() {
    let dir = tempfile::tempdir().unwrap();
    let all: Vec<_> = (0..3).map(|at| data_folder(dir.path(), &format!("data{at}"))).collect();
    for round in 0..40 {
        let place = Place::Folder(dir.path().join(format!("away{round}")));
        let start = std::sync::Barrier::new(all.len());
        let write = |at: usize| -> Result<()> {
            let (savepoints, store, _) = &all[at];
            let reserved = savepoints.reserve(&format!("sp{round}"), Some(&place))?;
            start.wait();
            savepoints.write(store, &savepoint(at as i64), &reserved)
        };
        let written: Vec<Result<()>> = std::thread::scope(|scope| {
            let write = &write;
            let writers: Vec<_> = (0..all.len()).map(|at| scope.spawn(move || write(at))).collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        let winners: Vec<usize> = (0..all.len()).filter(|at| written[*at].is_ok()).collect();
        assert_eq!(winners.len(), 1, "{written:?}");
        for (at, (savepoints, _, places)) in all.iter().enumerate() {
            assert_eq!(places.read(&place).unwrap().created_us, winners[0] as i64);
            let named = savepoints.list().unwrap().iter().any(|(_, other)| *other == place);
            assert_eq!(named, at == winners[0], "{written:?}");
        }
        assert!(written.iter().filter_map(|written| written.as_ref().err()).all(|e| ["42710", "55006"].contains(&e.code().as_str())));
    }
}

/// A savepoint in the data folder is stopped at each change of the disk while it is made and while it is removed. The next start finds it whole or not at all,
/// and takes none for damaged.
#[test]
fn a_savepoint_here_is_whole_or_gone() {
    let (mut whole, mut gone) = (0, 0);
    for power_is_lost in [false, true] {
        for at in 1.. {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().join("data");
            let lossy = LossyFiles::new(&root, at).unwrap();
            let files: FilesRef = Arc::new(lossy.clone());
            let places = Places::new(files.clone(), root.join("scratch"), Permits::new(1 << 20, |_| ()));
            let open = || Savepoints::open(places.clone(), root.join("savepoints"), |_| false).unwrap().0;
            let store = || CheckpointStore::open(files.clone(), &root.join("checkpoints"), None).unwrap().0;
            let write = |savepoints: &Savepoints, store: &CheckpointStore| -> Result<()> {
                savepoints.write(store, &savepoint(1), &savepoints.reserve("sp", None)?)
            };
            let (savepoints, former) = (open(), store());
            lossy.power_off_after(at);
            let written = write(&savepoints, &former).is_ok();
            let is_made = written && !lossy.powered_off();
            let removed = is_made && savepoints.remove("sp").is_ok();
            let (is_over, is_dropping) = (!lossy.powered_off(), is_made && lossy.powered_off());
            if power_is_lost {
                lossy.power_off();
                lossy.crash().unwrap();
            } else {
                lossy.kill();
            }
            drop((savepoints, former));

            let (savepoints, store) = (open(), store());
            let entry = savepoints.entry("sp");
            let listed = savepoints.list().unwrap();
            for (name, place) in &listed {
                places.read(place).unwrap_or_else(|error| panic!("{name} after change {at}, power lost: {power_is_lost}: {error}"));
            }
            if listed.is_empty() {
                gone += 1;
                assert!(!written || removed || is_dropping, "what was acknowledged is gone; change {at}");
                assert!(!files.exists(&entry), "change {at}");
                write(&savepoints, &store).unwrap();
            } else {
                whole += 1;
                assert!(!removed, "what was removed is there; change {at}");
            }
            assert!(savepoints.remove("sp").unwrap() && !files.exists(&entry));
            if is_over {
                break;
            }
        }
    }
    assert!(whole > 2 && gone > 20, "{whole} whole, {gone} gone");
}

/// What a start finds among the savepoints that it can't have made itself stays, a savepoint without its metadata first of all.
#[test]
fn a_start_removes_only_what_was_not_completed() {
    let dir = tempfile::tempdir().unwrap();
    let (savepoints, store, places) = data_folder(dir.path(), "data");
    savepoints.write(&store, &savepoint(1), &savepoints.reserve("sp", None).unwrap()).unwrap();
    let root = dir.path().join("data/savepoints");
    let metadata = root.join("sp/SAVEPOINT");
    std::fs::remove_file(&metadata).unwrap();
    std::fs::write(root.join("sp/files/state"), "state").unwrap();
    std::fs::create_dir_all(root.join("begun/files")).unwrap();
    std::fs::write(root.join("begun/SAVEPOINT.tmp"), "weir").unwrap();
    std::fs::create_dir_all(root.join("mine/files-of-mine")).unwrap();

    let savepoints = Savepoints::open(places, root.clone(), |_| false).unwrap().0;
    assert!(root.join("sp/files/state").is_file() && root.join("mine/files-of-mine").is_dir() && !root.join("begun").exists());
    let place = Place::Folder(root.join("sp"));
    assert_eq!(savepoints.list().unwrap(), [("sp".to_string(), place.clone())]);
    let error = savepoints.check_metadata(&place).unwrap_err();
    assert!(error.code().as_str() == "XX001" && error.message().contains(&metadata.display().to_string()), "{error:?}");
    assert_eq!(savepoints.reserve("sp", None).unwrap_err().code().as_str(), "42710");
    let mine = savepoints.reserve("mine", None).unwrap();
    assert_eq!(savepoints.write(&store, &savepoint(2), &mine).unwrap_err().code().as_str(), "58030");
    assert_eq!(savepoints.write_of_ending(&store, &savepoint(2), &mine, 16_400).unwrap_err().code().as_str(), "58030");
    assert!(root.join("mine/files-of-mine").is_dir());
    assert!(savepoints.remove("sp").unwrap() && !root.join("sp").exists());
}

/// Files, and folders whose names are not those of savepoints, keep no start from being made, and stay.
#[test]
fn what_is_no_savepoint_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (savepoints, store, places) = data_folder(dir.path(), "data");
    savepoints.write(&store, &savepoint(1), &savepoints.reserve("sp", None).unwrap()).unwrap();
    let root = dir.path().join("data/savepoints");
    let (files, folders) = (["notes", ".hidden", "SAVEPOINT", "sp.tar"], ["lost+found", ".snapshot", "%zz"]);
    for file in files {
        std::fs::write(root.join(file), "mine").unwrap();
    }
    for folder in folders {
        std::fs::create_dir(root.join(folder)).unwrap();
    }
    let savepoints = Savepoints::open(places, root.clone(), |_| false).unwrap().0;
    assert_eq!(savepoints.list().unwrap().into_iter().map(|(name, _)| name).collect::<Vec<_>>(), ["sp"]);
    // Nor does a statement take what is there for its own.
    let notes = savepoints.reserve("notes", None).unwrap();
    assert_eq!(savepoints.write(&store, &savepoint(2), &notes).unwrap_err().code().as_str(), "58030");
    assert_eq!(savepoints.write_of_ending(&store, &savepoint(2), &notes, 16_400).unwrap_err().code().as_str(), "58030");
    assert!(!savepoints.remove("notes").unwrap());
    assert!(files.iter().all(|file| std::fs::read_to_string(root.join(file)).is_ok_and(|text| text == "mine")));
    assert!(folders.iter().all(|folder| root.join(folder).is_dir()));
}

/// Nobody sees a savepoint before it is acknowledged. One that is given up is none, and whoever wants its name or its place next waits until it is gone.
#[test]
fn a_savepoint_that_is_given_up_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let (savepoints, store, places) = data_folder(dir.path(), "data");
    let away = Place::Folder(dir.path().join("away"));
    for place in [None, Some(&away)] {
        let reserved = savepoints.reserve("sp", place).unwrap();
        savepoints.write(&store, &savepoint(1), &reserved).unwrap();
        let is_none = || savepoints.list().unwrap().is_empty() && savepoints.place("sp").unwrap().is_none();
        assert!(is_none() && !savepoints.remove("sp").unwrap());
        assert_eq!(savepoints.reserve("sp", None).unwrap_err().code().as_str(), "42710");
        reserved.give_up();
        let next = std::thread::scope(|scope| {
            let next = scope.spawn(|| savepoints.reserve("sp", place).map(|next| (next, is_none())));
            savepoints.abandon("sp").unwrap();
            drop(reserved);
            next.join().unwrap().unwrap()
        });
        let (next, was_none) = next;
        assert!(was_none && !dir.path().join("away").exists() && !dir.path().join("data/savepoints/sp").exists());
        savepoints.write(&store, &savepoint(2), &next).unwrap();
        assert!(is_none());
        drop(next);
        let (name, place) = savepoints.list().unwrap().pop().unwrap();
        assert_eq!((name.as_str(), places.read(&place).unwrap().created_us), ("sp", 2));
        assert!(savepoints.remove("sp").unwrap());
    }
}
