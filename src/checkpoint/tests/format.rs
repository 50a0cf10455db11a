//! Bytes of released formats: what stands in `tests/compat` opens, and what has the present format is written as it stands there.
//!
//! The files of a released format never change. `tests/compat/HASHES` has the hash of each, so that none is changed by accident; the ignored tests
//! named `make_golden_...` write those of a new format.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::datatypes::{DataType, Field};
use xxhash_rust::xxh3::xxh3_64;

use super::*;
use crate::checkpoint::manifest::PART_FORMAT;
use crate::sinks::commit::PendingCommit;
use crate::sources::SplitState;
use crate::state::{EncodedRows, MemoryBackend, RestorePart, RocksBackend, RowCodec, StateBackendKind, StateDescriptor, StateSize};

/// Where the files of all formats are.
fn compat() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compat")
}

/// Where those of the first format are.
fn golden(name: &str) -> PathBuf {
    compat().join("v1").join(name)
}

/// A manifest of format 2, with everything in it that format 1 has not.
fn golden_manifest_2() -> Manifest {
    let mut manifest = golden_manifest();
    let splits = [("s3://in/b/1.csv", "70;70;0-40,60-70;00000000000000ab"), ("s3://in/2.csv", "9;-;"), ("skipped", "3")];
    let source = OperatorCheckpoint {
        splits: splits.map(|(split, offset)| SplitState { split: split.into(), offset: offset.into() }).to_vec(),
        closed_splits: vec![FileHandle {
            name: "0123456789abcdef-7-0.splits".into(),
            local: "0.splits".into(),
            bytes: 77,
            checksum: 0x0123_4567_89ab_cdef,
        }],
        ..OperatorCheckpoint::default()
    };
    let record = |root: &str| PathBuf::from(format!("{root}/_weir_commits/out.00000000000000aa-41-b.json"));
    let commits = vec![
        PendingCommit::Upload {
            target: "s3://out/b/out.00000000000000aa-40-b-0-1.csv".into(),
            upload: "number".into(),
            parts: vec!["\"first\"".into(), "\"second\"".into()],
            bytes: 5_242_881,
            record: record("s3://out/b"),
        },
        PendingCommit::Remove { path: "s3://out/b/out.00000000000000aa-50-a-0-1.csv".into() },
        PendingCommit::File { hidden: "/out/.x.csv".into(), target: "/out/x.csv".into(), record: Some(record("/out")) },
        PendingCommit::File { hidden: "/out/.y.csv".into(), target: "/out/y.csv".into(), record: None },
    ];
    let sink = OperatorCheckpoint { commits, ..OperatorCheckpoint::default() };
    let job = JobCheckpoint {
        barrier: 41,
        commit: 17,
        time_us: 1_700_000_000_123_456,
        operators: BTreeMap::from([("bids".to_string(), source), ("out".to_string(), sink)]),
        finished: false,
        inputs: BTreeMap::new(),
    };
    manifest.jobs.insert(16_400, job);
    manifest
}

/// A manifest of format 3: with rows of views that are kept for a sink which was stopped.
fn golden_manifest_3() -> Manifest {
    let mut manifest = golden_manifest_2();
    let parts = manifest.jobs[&16_385].operators["groups"].parts.clone();
    let (key, value) = (Field::new("k", DataType::Int64, true), Field::new("v", DataType::Utf8, true));
    let rows =
        OperatorCheckpoint { states: vec![StateDescriptor::new("rows", 0, [&key], [&value])], parts, ..OperatorCheckpoint::default() };
    manifest.jobs.entry(16_400).and_modify(|job| job.inputs = BTreeMap::from([(16_384, rows)]));
    manifest
}

/// A manifest with everything in it that one of format 1 can have.
fn golden_manifest() -> Manifest {
    let part = |backend, range, names: &[&str]| Part {
        format: Part::format_of(&[]),
        backend,
        range,
        files: (names.iter().enumerate())
            .map(|(at, name)| FileHandle {
                name: format!("0123456789abcdef-{name}"),
                local: name.to_string(),
                bytes: 1000 + at as u64,
                checksum: u64::MAX - at as u64,
            })
            .collect(),
        size: StateSize { rows: 12, bytes: 3456 },
    };
    let halves = [KeyGroupRange::of_subtask(0, 2), KeyGroupRange::of_subtask(1, 2)];
    let (key, value) = (Field::new("k", DataType::Int64, true), Field::new("sum_v", DataType::Decimal128(38, 0), true));
    let mut counts = StateDescriptor::new("counts of v", 1, [&key, &value], [&Field::new("count", DataType::Int64, false)]);
    counts.greatest_first = true;
    let aggregate = OperatorCheckpoint {
        states: vec![StateDescriptor::new("groups", 0, [&key], [&value]), counts],
        parts: halves.map(|range| part(StateBackendKind::RocksDb, range, &["000012.sst", "CURRENT"])).to_vec(),
        ..OperatorCheckpoint::default()
    };
    let splits = [("0", "99"), ("1", "100")].map(|(split, offset)| SplitState { split: split.into(), offset: offset.into() }).to_vec();
    let source = OperatorCheckpoint { splits, ..OperatorCheckpoint::default() };
    let job = JobCheckpoint {
        barrier: 41,
        commit: 17,
        time_us: 1_700_000_000_123_456,
        operators: BTreeMap::from([("groups".to_string(), aggregate), ("source".to_string(), source)]),
        finished: false,
        inputs: BTreeMap::new(),
    };
    let finished = JobCheckpoint {
        barrier: 40,
        commit: 16,
        time_us: 1_700_000_000_000_000,
        operators: BTreeMap::new(),
        finished: true,
        inputs: BTreeMap::new(),
    };
    Manifest {
        number: 42,
        barrier: 41,
        jobs: BTreeMap::from([(16_385, job), (16_390, finished)]),
        tables: Some(TablesCheckpoint { commit: 17, part: part(StateBackendKind::Memory, KeyGroupRange::ALL, &["memory-3.state"]) }),
    }
}

/// The content of the golden parts: rows of a text and a number, some of them NULL, in four key groups.
fn golden_state() -> BTreeMap<Vec<u8>, Vec<u8>> {
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("zażółć"), None, Some(""), Some("x")]));
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), Some(-2), None, Some(i64::MAX)]));
    let rows: EncodedRows = RowCodec::new(&[DataType::Utf8, DataType::Int64]).unwrap().encode(&[texts, numbers]).unwrap();
    (0..200).map(|i| (key([0, 31, 64, 127][i as usize % 4], i), rows.get(i as usize / 4 % 4).to_vec())).collect()
}

fn written(backend: &mut dyn StateBackend) {
    let (first, second): (BTreeMap<_, _>, BTreeMap<_, _>) = golden_state().into_iter().partition(|(key, _)| key[1] < 64);
    for part in [first, second] {
        backend.write(&part.iter().map(|(key, value)| (key, Some(value))).collect()).unwrap();
    }
}

fn read(backend: &dyn StateBackend) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut content = BTreeMap::new();
    backend
        .scan(&[], &[], &mut |key, value| {
            content.insert(key.to_vec(), value.to_vec());
            Ok(true)
        })
        .unwrap();
    content
}

#[test]
fn the_golden_manifests_open_and_are_what_is_written() {
    let bytes = std::fs::read(golden("manifest")).unwrap();
    assert_eq!(Manifest::decode("manifest", &bytes).unwrap(), golden_manifest());
    assert_eq!(String::from_utf8(golden_manifest().encode().unwrap()), String::from_utf8(bytes));

    let bytes = std::fs::read(compat().join("v2/manifest")).unwrap();
    assert_eq!(Manifest::decode("manifest", &bytes).unwrap(), golden_manifest_2());
    assert_eq!(String::from_utf8(golden_manifest_2().encode().unwrap()), String::from_utf8(bytes));

    let bytes = std::fs::read(compat().join("v3/manifest")).unwrap();
    assert_eq!(Manifest::decode("manifest", &bytes).unwrap(), golden_manifest_3());
    assert_eq!(String::from_utf8(golden_manifest_3().encode().unwrap()), String::from_utf8(bytes));
}

#[test]
fn the_golden_part_of_the_memory_backend_opens_and_is_what_is_written() {
    let parts = [RestorePart { dir: golden("memory_part"), range: KeyGroupRange::ALL }];
    assert_eq!(read(&MemoryBackend::restore(&parts, KeyGroupRange::ALL).unwrap()), golden_state());
    let folder = folder();
    let mut backend = MemoryBackend::new();
    written(&mut backend);
    let names = backend.checkpoint(&folder.path().join("image")).unwrap();
    assert_eq!(names, ["memory-1.state"]);
    let image = std::fs::read(folder.path().join("image/memory-1.state")).unwrap();
    assert_eq!(image, std::fs::read(golden("memory_part/memory-1.state")).unwrap());
}

#[test]
fn the_golden_part_of_rocksdb_opens_whole_and_by_ranges() {
    let rocks = shared_rocks();
    for parallelism in 1..=3 {
        let mut found = BTreeMap::new();
        for subtask in 0..parallelism {
            let folder = folder();
            let range = KeyGroupRange::of_subtask(subtask, parallelism);
            let parts = [RestorePart { dir: golden("rocksdb_part"), range: KeyGroupRange::ALL }];
            let mut backend = RocksBackend::open(&rocks, &folder.path().join("database"), &parts, range).unwrap();
            found.extend(read(&backend));
            // It can be written on, and the golden files stay as they are.
            backend.write(&Writes::from_iter([(key(range.start, 7), None), (key(range.start, 1 << 20), Some([1]))])).unwrap();
            backend.checkpoint(&folder.path().join("image")).unwrap();
        }
        assert_eq!(found, golden_state(), "parallelism {parallelism}");
    }
}

#[test]
fn a_part_of_a_newer_format_or_of_another_backend_is_refused() {
    let mut part = golden_manifest().tables.unwrap().part;
    part.check(StateBackendKind::Memory).unwrap();
    let error = part.check(StateBackendKind::RocksDb).unwrap_err();
    assert_eq!(error.code().as_str(), "55000");
    assert!(error.message().contains("memory-3.state"), "{error}");
    part.format = PART_FORMAT + 1;
    let error = part.check(StateBackendKind::Memory).unwrap_err();
    assert_eq!(error.code().as_str(), "0A000");
    assert!(error.message().contains("memory-3.state") && error.message().contains("format 3"), "{error}");
}

#[test]
fn a_newer_file_of_the_memory_backend_is_told_from_a_damaged_one() {
    let folder = folder();
    let mut bytes = std::fs::read(golden("memory_part/memory-1.state")).unwrap();
    let end = bytes.len() - 4;
    bytes[7] = 2;
    let restore = |bytes: &[u8]| {
        std::fs::write(folder.path().join("memory-1.state"), bytes).unwrap();
        let parts = [RestorePart { dir: folder.path().to_path_buf(), range: KeyGroupRange::ALL }];
        MemoryBackend::restore(&parts, KeyGroupRange::ALL).unwrap_err()
    };
    assert_eq!(restore(&bytes).code().as_str(), "XX001");
    let checksum = crc32fast::hash(&bytes[..end]).to_le_bytes();
    bytes[end..].copy_from_slice(&checksum);
    let error = restore(&bytes);
    assert_eq!(error.code().as_str(), "0A000");
    assert!(error.message().contains("memory-1.state") && error.message().contains("format 2"), "{error}");
}

/// The files below `tests/compat` with their hashes.
fn hashes() -> BTreeMap<String, String> {
    fn visit(dir: &Path, below: &str, found: &mut BTreeMap<String, String>) {
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let name = format!("{below}{}", entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                visit(&entry.path(), &format!("{name}/"), found);
            } else if name != "HASHES" {
                found.insert(name, format!("{:016x}", xxh3_64(&std::fs::read(entry.path()).unwrap())));
            }
        }
    }
    let mut found = BTreeMap::new();
    visit(&compat(), "", &mut found);
    found
}

#[test]
fn the_frozen_files_are_as_they_were_released() {
    let text = std::fs::read_to_string(compat().join("HASHES")).unwrap();
    let frozen: BTreeMap<String, String> =
        text.lines().filter_map(|line| line.split_once("  ")).map(|(hash, name)| (name.to_string(), hash.to_string())).collect();
    assert_eq!(hashes(), frozen, "a released file was changed, or a new one is not in tests/compat/HASHES");
}

#[test]
#[ignore = "writes into tests/compat"]
fn make_golden_checkpoint() {
    std::fs::create_dir_all(golden("")).unwrap();
    std::fs::write(golden("manifest"), golden_manifest().encode().unwrap()).unwrap();
    for name in ["memory_part", "rocksdb_part"] {
        let _ = std::fs::remove_dir_all(golden(name));
    }
    let mut memory = MemoryBackend::new();
    written(&mut memory);
    memory.checkpoint(&golden("memory_part")).unwrap();
    let folder = folder();
    let mut rocks = RocksBackend::open(&shared_rocks(), &folder.path().join("database"), &[], KeyGroupRange::ALL).unwrap();
    written(&mut rocks);
    let image = folder.path().join("image");
    let names = rocks.checkpoint(&image).unwrap();
    std::fs::create_dir(golden("rocksdb_part")).unwrap();
    for name in names {
        std::fs::copy(image.join(&name), golden("rocksdb_part").join(&name)).unwrap();
    }
}

#[test]
#[ignore = "writes into tests/compat"]
fn make_golden_manifest_2() {
    std::fs::write(compat().join("v2/manifest"), golden_manifest_2().encode().unwrap()).unwrap();
}

#[test]
#[ignore = "writes into tests/compat"]
fn make_golden_manifest_3() {
    std::fs::create_dir_all(compat().join("v3")).unwrap();
    std::fs::write(compat().join("v3/manifest"), golden_manifest_3().encode().unwrap()).unwrap();
}

/// To be run after all others that write into `tests/compat`.
#[test]
#[ignore = "writes into tests/compat"]
fn make_golden_hashes() {
    let lines: Vec<String> = hashes().into_iter().map(|(name, hash)| format!("{hash}  {name}\n")).collect();
    std::fs::write(compat().join("HASHES"), lines.concat()).unwrap();
}
