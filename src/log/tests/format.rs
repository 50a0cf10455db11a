//! Durable bytes: every flipped byte is found, what was torn is cut, and old bytes keep opening.

use super::*;
use crate::seams::files::{Files, LocalFiles, LossyFiles};
use weir_catalog::SqlState;

fn only_segment(dir: &Path) -> PathBuf {
    let names = LocalFiles.list(&dir.join("log")).unwrap();
    assert_eq!(names.len(), 1);
    dir.join("log").join(&names[0])
}

/// A log of three commits; returns its bytes and what it says.
fn sample(dir: &Path) -> (Vec<u8>, Vec<String>) {
    let (log, _) = EngineLog::open(LocalFiles::shared(), dir, LogSettings::default()).unwrap();
    log.append(create_change(&table(16_384, "t", true))).wait().unwrap();
    log.append(insert_change(16_384, &[(1, "a"), (2, "b")])).wait().unwrap();
    log.append(insert_change(16_384, &[(3, "c")])).wait().unwrap();
    let contents = contents(&log, 0);
    drop(log);
    (std::fs::read(only_segment(dir)).unwrap(), contents)
}

/// Files that are not fsynced, to be quick.
fn unsynced(dir: &Path) -> FilesRef {
    Arc::new(LossyFiles::new(dir, 1).unwrap())
}

#[test]
fn every_flipped_byte_is_found_or_carries_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, expected) = sample(dir.path());
    let path = only_segment(dir.path());
    let mark_bytes = record::mark(3).len();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&path, &damaged).unwrap();
        match EngineLog::open(unsynced(dir.path()), dir.path(), LogSettings::default()) {
            Ok((log, _)) => {
                assert!(at >= bytes.len() - mark_bytes, "byte {at} of {} was not missed", bytes.len());
                assert_eq!(contents(&log, 0), expected);
            }
            Err(error) => {
                assert_eq!(*error.code(), SqlState::DATA_CORRUPTED);
                assert!(error.message().contains(path.to_str().unwrap()), "{error}");
                assert!(error.message().contains("at byte "), "{error}");
                assert_eq!(std::fs::read(&path).unwrap(), damaged, "a damaged log must be left as it is");
            }
        }
    }
}

#[test]
fn a_log_cut_anywhere_has_a_prefix_of_its_commits() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, expected) = sample(dir.path());
    let path = only_segment(dir.path());
    let mut last = 0;
    for len in 0..bytes.len() {
        std::fs::write(&path, &bytes[..len]).unwrap();
        let (log, recovered) = EngineLog::open(unsynced(dir.path()), dir.path(), LogSettings::default()).unwrap();
        let found = contents(&log, 0);
        assert_eq!(found, expected[..found.len()]);
        assert_eq!(recovered.end as usize, found.len());
        assert!(found.len() >= last);
        last = found.len();
        // It goes on from there.
        let seq = log.append(create_change(&table(20_000, "new", true))).wait().unwrap();
        assert_eq!(seq, recovered.end + 1);
        drop(log);
        let (log, _) = EngineLog::open(unsynced(dir.path()), dir.path(), LogSettings::default()).unwrap();
        assert_eq!(contents(&log, recovered.end), strings(&[&format!("{seq}: create new")]));
        drop(log);
        std::fs::remove_dir_all(dir.path().join("log")).unwrap();
        std::fs::create_dir(dir.path().join("log")).unwrap();
    }
    assert_eq!(last, 3);
}

#[test]
fn a_torn_write_with_whole_records_behind_it_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let seal = |changes: &Changes, seq, durable| record::seal(record::encode_commit(changes, 0).unwrap(), seq, durable);
    let mut bytes = segment::header(1);
    bytes.extend(seal(&create_change(&table(16_384, "t", true)), 1, 0));
    let torn_at = bytes.len();
    // Two commits of one write: of the first some bytes did not reach the disk.
    bytes.extend(seal(&insert_change(16_384, &[(1, "a")]), 2, 1));
    bytes[torn_at + 50] ^= 1;
    bytes.extend(seal(&insert_change(16_384, &[(2, "b")]), 3, 1));
    std::fs::create_dir(dir.path().join("log")).unwrap();
    let path = segment::path(&dir.path().join("log"), 1);
    std::fs::write(&path, &bytes).unwrap();
    {
        let (log, recovered) = EngineLog::open(unsynced(dir.path()), dir.path(), LogSettings::default()).unwrap();
        assert_eq!(recovered.cut_bytes as usize, bytes.len() - torn_at);
        assert_eq!(contents(&log, 0), strings(&["1: create t"]));
    }
    // With a record behind it that says that it had been fsynced, it is damage.
    bytes.extend(record::mark(3));
    std::fs::write(&path, &bytes).unwrap();
    let error = EngineLog::open(unsynced(dir.path()), dir.path(), LogSettings::default()).unwrap_err();
    assert_eq!(*error.code(), SqlState::DATA_CORRUPTED);
    assert!(error.message().contains(&format!("at byte {torn_at}")), "{error}");
}

#[test]
fn a_missing_segment_and_a_damaged_snapshot_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let settings = LogSettings { segment_bytes: 1, ..LogSettings::default() };
    let (log, _) = EngineLog::open(unsynced(dir.path()), dir.path(), settings).unwrap();
    log.append(create_change(&table(16_384, "t", true))).wait().unwrap();
    for i in 0..3 {
        log.append(insert_change(16_384, &[(i, "a")])).wait().unwrap();
    }
    log.write_catalog_snapshot().unwrap();
    drop(log);
    let second = segment::path(&dir.path().join("log"), 2);
    let bytes = std::fs::read(&second).unwrap();
    std::fs::remove_file(&second).unwrap();
    let error = EngineLog::open(unsynced(dir.path()), dir.path(), settings).unwrap_err();
    assert_eq!(*error.code(), SqlState::DATA_CORRUPTED);
    assert!(error.message().contains("commits 2 to 2 are missing"), "{error}");
    std::fs::write(&second, bytes).unwrap();
    EngineLog::open(unsynced(dir.path()), dir.path(), settings).unwrap();

    let snapshot = dir.path().join("catalog").join("00000000000000000004.catalog");
    let bytes = std::fs::read(&snapshot).unwrap();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x20;
        std::fs::write(&snapshot, damaged).unwrap();
        let error = EngineLog::open(unsynced(dir.path()), dir.path(), settings).unwrap_err();
        assert_eq!(*error.code(), SqlState::DATA_CORRUPTED);
        assert!(error.message().contains(snapshot.to_str().unwrap()), "{error}");
    }
}

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/compat/v1");

/// What the golden log says. It has every kind of content: catalog changes, all row kinds, row ids, NULLs, all column types.
fn golden_changes() -> Vec<Changes> {
    use arrow::array::{BooleanArray, Decimal128Array, Float64Array, Int32Array, TimestampMicrosecondArray};
    let users = table(16_384, "users", true);
    let events = table(16_385, "events", false);
    let mut wide = table(16_386, "wide", true);
    let types = [SqlType::Boolean, SqlType::Int, SqlType::Double, SqlType::Numeric { precision: 20, scale: 3 }, SqlType::TIMESTAMP];
    for (i, ty) in types.into_iter().enumerate() {
        wide.columns.push(Column { name: format!("c{i}"), ty, nullable: true, default: None });
    }
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![1, 2])),
        Arc::new(StringArray::from(vec![Some("zażółć"), None])),
        Arc::new(BooleanArray::from(vec![Some(true), None])),
        Arc::new(Int32Array::from(vec![Some(-7), None])),
        Arc::new(Float64Array::from(vec![Some(-0.5), None])),
        Arc::new(Decimal128Array::from(vec![Some(-12_345), None]).with_precision_and_scale(20, 3).unwrap()),
        Arc::new(TimestampMicrosecondArray::from(vec![Some(1_700_000_000_123_456), None])),
    ];
    let wide_rows = RecordBatch::try_new(schema_of(&wide.columns), columns).unwrap();
    let kinds = [RowKind::UpdateBefore, RowKind::UpdateAfter, RowKind::Delete, RowKind::Insert].map(|kind| kind as u8).to_vec();
    let users_batch = Batch::with_kinds(rows(&[(1, "a"), (1, "A"), (2, "b"), (3, "c")]), kinds);
    let change = |table, batch, row_ids| TableChange { table, schema_number: 1, batch, row_ids };
    vec![
        Changes { catalog: vec![create(&users), create(&events), create(&wide)], tables: vec![] },
        insert_change(16_384, &[(1, "a"), (2, "b")]),
        Changes {
            catalog: vec![],
            tables: vec![
                change(16_384, users_batch, None),
                change(16_385, Batch::insert(rows(&[(5, "e")])), Some(UInt64Array::from(vec![41]))),
                change(16_386, Batch::insert(wide_rows), None),
            ],
        },
        Changes { catalog: vec![CatalogChange::Drop(16_385)], tables: vec![] },
    ]
}

fn write_golden(dir: &Path) {
    let (log, _) = EngineLog::open(LocalFiles::shared(), dir, LogSettings::default()).unwrap();
    log.allocate_row_ids(42);
    for changes in golden_changes() {
        log.append(changes).wait().unwrap();
    }
    log.write_catalog_snapshot().unwrap();
}

/// Writes the golden files of the present format: run by hand, once a format.
#[test]
#[ignore = "writes into tests/compat"]
fn make_golden_files() {
    let dir = tempfile::tempdir().unwrap();
    write_golden(dir.path());
    std::fs::create_dir_all(GOLDEN).unwrap();
    std::fs::copy(only_segment(dir.path()), format!("{GOLDEN}/engine_log.segment")).unwrap();
    std::fs::copy(dir.path().join("catalog/00000000000000000004.catalog"), format!("{GOLDEN}/engine_log.catalog")).unwrap();
}

#[test]
fn golden_files_open() {
    for with_snapshot in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("log")).unwrap();
        std::fs::create_dir(dir.path().join("catalog")).unwrap();
        std::fs::copy(format!("{GOLDEN}/engine_log.segment"), segment::path(&dir.path().join("log"), 1)).unwrap();
        if with_snapshot {
            let to = dir.path().join("catalog/00000000000000000004.catalog");
            std::fs::copy(format!("{GOLDEN}/engine_log.catalog"), to).unwrap();
        }
        let (log, recovered) = EngineLog::open(LocalFiles::shared(), dir.path(), LogSettings::default()).unwrap();
        assert_eq!((recovered.first, recovered.end, recovered.cut_bytes), (1, 4, 0));
        assert_eq!(recovered.catalog_seq, if with_snapshot { 4 } else { 0 });
        let names: Vec<&str> = recovered.catalog.objects().map(|object| object.name()).collect();
        assert_eq!(names, ["users", "wide"]);
        assert_eq!(recovered.catalog.next_id(), 16_387);
        assert_eq!(log.allocate_row_ids(1), 42);
        let mut reader = log.reader(0).unwrap();
        for expected in golden_changes() {
            let commit = reader.try_next().unwrap().unwrap();
            assert_eq!(commit.changes.catalog, expected.catalog);
            assert_eq!(commit.changes.tables.len(), expected.tables.len());
            for (found, expected) in commit.changes.tables.iter().zip(&expected.tables) {
                assert_eq!((found.table, found.schema_number), (expected.table, expected.schema_number));
                assert_eq!(found.batch.rows, expected.batch.rows);
                assert_eq!(found.batch.kinds, expected.batch.kinds);
                assert_eq!(found.row_ids, expected.row_ids);
            }
        }
        assert!(reader.try_next().unwrap().is_none());
    }
}

#[test]
fn the_present_version_writes_the_golden_bytes() {
    let dir = tempfile::tempdir().unwrap();
    write_golden(dir.path());
    let snapshot = std::fs::read(dir.path().join("catalog/00000000000000000004.catalog")).unwrap();
    assert_eq!(snapshot, std::fs::read(format!("{GOLDEN}/engine_log.catalog")).unwrap());
    let bytes = std::fs::read(only_segment(dir.path())).unwrap();
    assert_eq!(bytes, std::fs::read(format!("{GOLDEN}/engine_log.segment")).unwrap());
}
