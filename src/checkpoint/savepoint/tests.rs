//! The metadata of a savepoint of format 3, in `tests/compat/v3`: it opens, and is what is written. Those of the formats before are there whole, with their files.

use std::path::{Path, PathBuf};

use weir_catalog::{ChangelogMode, Column, ConnectorTable, DerivedColumn, JobKind, OperatorDescriptor};

use super::*;
use crate::state::{StateBackendKind, StateDescriptor, StateSize};
use crate::stream::KeyGroupRange;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compat/v3/savepoint")
}

fn column(name: &str, ty: SqlType) -> Column {
    Column { name: name.into(), ty, nullable: true, default: None }
}

/// One of a sink that was stopped with it, and read objects and a view: with everything in it that there can be.
fn golden_savepoint() -> Savepoint {
    let file = |name: &str, bytes| FileHandle {
        name: format!("0123456789abcdef-{name}"),
        local: name.to_string(),
        bytes,
        checksum: 0xfedc_ba98_7654_3210,
    };
    let part = |name: &str| Part {
        format: Part::format_of(&[]),
        backend: StateBackendKind::RocksDb,
        range: KeyGroupRange::of_subtask(0, 2),
        files: vec![file(name, 1000), file("CURRENT", 16)],
        size: StateSize { rows: 12, bytes: 3456 },
    };
    let field = |name: &str| arrow::datatypes::Field::new(name, arrow::datatypes::DataType::Int64, true);
    let states = |name: &str| vec![StateDescriptor::new(name, 0, [&field("k")], [&field("n")])];
    let aggregate = OperatorCheckpoint { states: states("groups"), parts: vec![part("000012.sst")], ..OperatorCheckpoint::default() };
    let splits = [("s3://in/b/1.csv", "70;70;0-40,60-70;00000000000000ab"), ("skipped", "3")];
    let source = OperatorCheckpoint {
        splits: splits.map(|(split, offset)| SplitState { split: split.into(), offset: offset.into() }).to_vec(),
        closed_splits: vec![file("7-0.splits", 77)],
        ..OperatorCheckpoint::default()
    };
    let job = Job {
        id: 16_400,
        name: "out".into(),
        kind: JobKind::Sink {
            connector: "file".into(),
            options: BTreeMap::from([("path".to_string(), "s3://out/b".to_string()), ("format".to_string(), "csv".to_string())]),
        },
        columns: vec![column("k", SqlType::BigInt), column("n", SqlType::BigInt)],
        query: "SELECT k, count(*) AS n FROM numbers GROUP BY k UNION ALL SELECT k, n FROM kept".into(),
        insert_columns: Vec::new(),
        sql: "CREATE SINK out ...".into(),
        settings: BTreeMap::from([("TimeZone".to_string(), "UTC".to_string())]),
        inputs: vec![16_385, 16_390],
        macros: Vec::new(),
        operators: vec![OperatorDescriptor {
            uid: "aggregate(k)".into(),
            operator: "aggregate".into(),
            key: vec![("k".into(), "bigint".into())],
            value: vec![("count(*)".into(), "bigint".into())],
        }],
        parallelism: 2,
        origin: None,
    };
    let numbers = ConnectorTable {
        id: 16_385,
        name: "numbers".into(),
        columns: vec![column("k", SqlType::BigInt)],
        connector: "file".into(),
        options: BTreeMap::from([("path".to_string(), "s3://in".to_string()), ("format".to_string(), "csv".to_string())]),
        sql: "CREATE TABLE numbers ...".into(),
    };
    let kept = Job {
        id: 16_390,
        name: "kept".into(),
        kind: JobKind::MaterializedView { key: Some(vec![0]), changelog: ChangelogMode::Retract },
        ..job.clone()
    };
    let derived = |relation: &str, source: &str| Derivation {
        relation: relation.into(),
        key: vec![DerivedColumn { name: "k".into(), text: format!("{source}.k"), type_name: "bigint".into() }],
        columns: vec![DerivedColumn { name: "n".into(), text: format!("count(*) in {relation}"), type_name: "bigint".into() }],
        inputs: vec![format!("{source}.k")],
        sources: vec![source.into()],
    };
    let state = StateTexts { columns: vec![("count".into(), "count(*) #0".into())], maps: vec![(1, "values of k".into())] };
    let branch = SavedOperator { derivation: derived("groups of (numbers)", "numbers"), state: state.clone(), branches: Vec::new() };
    let operator = SavedOperator { derivation: derived("groups of (union)", "numbers"), state, branches: vec![branch.clone(), branch] };
    Savepoint {
        name: "last".into(),
        engine: 0x0123_4567_89ab_cdef,
        created_us: 1_700_000_000_123_456,
        job,
        checkpoint: JobCheckpoint {
            barrier: 41,
            commit: 17,
            time_us: 1_700_000_000_123_000,
            operators: BTreeMap::from([("aggregate(k)".to_string(), aggregate), ("source(numbers)".to_string(), source)]),
            finished: false,
            inputs: BTreeMap::new(),
        },
        operators: BTreeMap::from([("aggregate(k)".to_string(), operator)]),
        result: Some(Derivation { sources: Vec::new(), ..derived("groups of (numbers)", "numbers") }),
        ends_job: true,
        inputs: vec![
            SavedInput { object: Object::ConnectorTable(numbers), rows: None },
            SavedInput {
                object: Object::Job(kept),
                rows: Some(OperatorCheckpoint { states: states("rows"), parts: vec![part("000020.sst")], ..OperatorCheckpoint::default() }),
            },
        ],
        tables: Some(TablesCheckpoint { commit: 17, part: part("000031.sst") }),
    }
}

#[test]
fn the_golden_savepoint_of_format_3_opens_and_is_what_is_written() {
    let bytes = std::fs::read(golden()).unwrap();
    assert!(bytes.starts_with(b"weir-savepoint 3 "));
    assert_eq!(Savepoint::decode("golden", &bytes).unwrap(), golden_savepoint());
    assert_eq!(String::from_utf8(golden_savepoint().encode().unwrap()), String::from_utf8(bytes));
}

#[test]
#[ignore = "writes into tests/compat"]
fn make_golden_savepoint_3() {
    std::fs::create_dir_all(golden().parent().unwrap()).unwrap();
    std::fs::write(golden(), golden_savepoint().encode().unwrap()).unwrap();
}
