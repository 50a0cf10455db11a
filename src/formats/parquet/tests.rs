//! Files with columns of every kind, as other programs write them.

use std::fs::File;

use arrow::array::{
    BinaryArray, Date32Array, Decimal128Array, DictionaryArray, FixedSizeListArray, Float32Array, Float64Array, Int8Array, Int16Array,
    Int32Array, Int64Array, LargeListArray, LargeStringArray, ListArray, MapBuilder, NullArray, StringArray, StringBuilder,
    StringViewArray, StructArray, Time64MicrosecondArray, TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray,
    TimestampSecondArray, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::Int32Type;
use tempfile::TempDir;
use weir_catalog::SqlType;

use super::*;

mod damaged;

/// A file of these columns; each slice of columns is a row group.
fn file_of(groups: &[Vec<(&str, ArrayRef)>], properties: Option<WriterProperties>) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let batches: Vec<RecordBatch> = groups
        .iter()
        .map(|columns| RecordBatch::try_from_iter_with_nullable(columns.iter().map(|(name, array)| (*name, array.clone(), true))).unwrap())
        .collect();
    let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), batches[0].schema(), properties).unwrap();
    for batch in &batches {
        writer.write(batch).unwrap();
        writer.flush().unwrap();
    }
    writer.close().unwrap();
    (folder, path)
}

/// All rows of the file, read as `columns`.
fn read(path: &Path, columns: &[Column], batch_rows: usize) -> Result<RecordBatch> {
    let file = ParquetFile::open(path)?;
    let projection: Vec<usize> = (0..columns.len()).collect();
    let decoder = ParquetDecoder::new(columns, &projection, None)?;
    let mut batches = Vec::new();
    for (group, count) in file.row_groups().collect::<Vec<_>>().into_iter().enumerate() {
        let mut rows = decoder.rows(path, &file, None, group, 0, count, batch_rows)?;
        while let Some(batch) = rows.next_batch()? {
            batches.push(batch.rows);
        }
    }
    Ok(concat_batches(&decoder.schema, &batches).unwrap())
}

fn column(name: &str, ty: SqlType) -> Column {
    Column { name: name.into(), ty, nullable: true, default: None }
}

fn refusal<T: std::fmt::Debug>(result: Result<T>) -> (String, String) {
    let error = result.unwrap_err();
    let text = format!("{} {} {}", error.message(), error.detail().unwrap_or_default(), error.context().unwrap_or_default());
    (error.code().as_str().to_string(), text)
}

fn words(values: [Option<&str>; 3]) -> ArrayRef {
    Arc::new(values.into_iter().collect::<DictionaryArray<Int32Type>>())
}

/// Each of three rows: a column's name, what is written, the type that it has, and what is read.
fn kinds() -> Vec<(&'static str, ArrayRef, SqlType, ArrayRef)> {
    let text: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("é")]));
    let ints: ArrayRef = Arc::new(Int32Array::from(vec![Some(7), None, Some(0)]));
    let bigints: ArrayRef = Arc::new(Int64Array::from(vec![Some(7), None, Some(0)]));
    let doubles: ArrayRef = Arc::new(Float64Array::from(vec![Some(1.5), None, Some(-0.25)]));
    let decimals: ArrayRef = Arc::new(Decimal128Array::from(vec![Some(12345), None, Some(-1)]).with_precision_and_scale(20, 3).unwrap());
    let floats: ArrayRef = Arc::new(Float32Array::from(vec![Some(1.5), None, Some(-0.25)]));
    let seconds = |factor: i64| [Some(-factor), None, Some(5 * factor)];
    let times: ArrayRef = Arc::new(TimestampMicrosecondArray::from(seconds(1_000_000).to_vec()));
    let days: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![Some(-86_400_000_000), None, Some(0)]));
    // In the file 1.2 and 1.5 microseconds before 1970, and half of one behind 2000.
    let nanoseconds = vec![Some(-1200), Some(-1500), Some(946_684_800_000_000_500)];
    let fine: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![-1, -2, 946_684_800_000_001]));
    let ubig: ArrayRef =
        Arc::new(Decimal128Array::from(vec![Some(i128::from(u64::MAX)), None, Some(0)]).with_precision_and_scale(20, 0).unwrap());
    let numeric = SqlType::Numeric { precision: 20, scale: 3 };
    let ms: ArrayRef = Arc::new(TimestampMillisecondArray::from(seconds(1000).to_vec()).with_timezone("+05:30"));
    let keys = Int32Array::from(vec![Some(0), None, Some(1)]);
    let dictionary: ArrayRef = Arc::new(DictionaryArray::new(keys, Arc::new(Int64Array::from(vec![7, 0]))));
    let list_of = |values: ArrayRef, nulls: Option<NullBuffer>| -> ListArray {
        let field = Arc::new(Field::new_list_field(values.data_type().clone(), true));
        ListArray::new(field, OffsetBuffer::from_lengths([1, 0, 2]), values, nulls)
    };
    let nulls = Some(NullBuffer::from(vec![true, false, true]));
    let lists = list_of(words([Some("x"), None, Some("x")]), nulls.clone());
    let text_lists: ArrayRef = Arc::new(list_of(Arc::new(StringArray::from(vec![Some("x"), None, Some("x")])), nulls.clone()));
    let large: ArrayRef = Arc::new(LargeListArray::new(
        Arc::new(Field::new_list_field(DataType::Int16, true)),
        OffsetBuffer::from_lengths([1, 0, 2]),
        Arc::new(Int16Array::from(vec![7, 8, 9])),
        nulls.clone(),
    ));
    let int_lists: ArrayRef = Arc::new(list_of(Arc::new(Int32Array::from(vec![7, 8, 9])), nulls.clone()));
    let fixed: ArrayRef = Arc::new(FixedSizeListArray::new(
        Arc::new(Field::new_list_field(DataType::Int64, true)),
        1,
        Arc::new(Int64Array::from(vec![7, 8, 9])),
        None,
    ));
    let element = Arc::new(Field::new_list_field(DataType::Int64, true));
    let singles: ArrayRef =
        Arc::new(ListArray::new(element, OffsetBuffer::from_lengths([1, 1, 1]), Arc::new(Int64Array::from(vec![7, 8, 9])), None));
    let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![&b"\xff"[..], b"", b"x"]));
    let row = |fields: Vec<(&str, ArrayRef)>| -> ArrayRef {
        let (fields, arrays): (Vec<Field>, Vec<ArrayRef>) =
            fields.into_iter().map(|(name, array)| (Field::new(name, array.data_type().clone(), true), array)).unzip();
        Arc::new(StructArray::new(fields.into(), arrays, None))
    };
    let rows = row(vec![("Word", words([Some("a"), None, Some("é")])), ("raw", bytes), ("many", Arc::new(lists.clone()))]);
    let read_rows = row(vec![("word", text.clone()), ("many", text_lists.clone())]);
    let texts = || SqlType::Array(Box::new(SqlType::Text));
    let row_type = SqlType::Row(vec![("word".into(), SqlType::Text), ("many".into(), texts())]);
    vec![
        ("dictionary_text", words([Some("a"), None, Some("é")]), SqlType::Text, text.clone()),
        ("dictionary_number", dictionary, SqlType::BigInt, bigints.clone()),
        ("large_text", Arc::new(LargeStringArray::from(vec![Some("a"), None, Some("é")])), SqlType::Text, text.clone()),
        ("text_view", Arc::new(StringViewArray::from(vec![Some("a"), None, Some("é")])), SqlType::Text, text),
        ("i8", Arc::new(Int8Array::from(vec![Some(7), None, Some(0)])), SqlType::Int, ints.clone()),
        ("i16", Arc::new(Int16Array::from(vec![Some(7), None, Some(0)])), SqlType::Int, ints.clone()),
        ("u8", Arc::new(UInt8Array::from(vec![Some(7), None, Some(0)])), SqlType::Int, ints.clone()),
        ("u16", Arc::new(UInt16Array::from(vec![Some(7), None, Some(0)])), SqlType::Int, ints),
        ("u32", Arc::new(UInt32Array::from(vec![Some(7), None, Some(0)])), SqlType::BigInt, bigints),
        ("u64", Arc::new(UInt64Array::from(vec![Some(u64::MAX), None, Some(0)])), SqlType::Numeric { precision: 20, scale: 0 }, ubig),
        ("f16", cast(&floats, &DataType::Float16).unwrap(), SqlType::Double, doubles.clone()),
        ("f32", floats, SqlType::Double, doubles),
        ("decimal128", decimals.clone(), numeric.clone(), decimals.clone()),
        ("decimal256", cast(&decimals, &DataType::Decimal256(20, 3)).unwrap(), numeric, decimals),
        ("date", Arc::new(Date32Array::from(vec![Some(-1), None, Some(0)])), SqlType::TIMESTAMP, days),
        ("s", Arc::new(TimestampSecondArray::from(seconds(1).to_vec())), SqlType::TIMESTAMP, times.clone()),
        ("ms_zone", ms, SqlType::TIMESTAMP, times.clone()),
        ("us_utc", Arc::new(TimestampMicrosecondArray::from(seconds(1_000_000).to_vec()).with_timezone("UTC")), SqlType::TIMESTAMP, times),
        ("ns", Arc::new(TimestampNanosecondArray::from(nanoseconds)), SqlType::TIMESTAMP, fine),
        ("nothing", Arc::new(NullArray::new(3)), SqlType::Text, arrow::array::new_null_array(&DataType::Utf8, 3)),
        ("list", Arc::new(lists), texts(), text_lists),
        ("large_list", large, SqlType::Array(Box::new(SqlType::Int)), int_lists),
        ("fixed_list", fixed, SqlType::Array(Box::new(SqlType::BigInt)), singles),
        ("Row", rows, row_type, read_rows),
    ]
}

/// Columns that weir has no type for.
fn others() -> Vec<(&'static str, ArrayRef)> {
    let mut map = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    (0..3).for_each(|_| map.append(true).unwrap());
    let decimals: ArrayRef = Arc::new(Decimal128Array::from(vec![1, 2, 3]).with_precision_and_scale(38, 0).unwrap());
    vec![
        ("bytes", Arc::new(BinaryArray::from(vec![&b"\xff"[..], b"", b"x"])) as ArrayRef),
        ("hour", Arc::new(Time64MicrosecondArray::from(vec![1, 2, 3]))),
        ("pairs", Arc::new(map.finish())),
        ("long", cast(&decimals, &DataType::Decimal256(50, 0)).unwrap()),
    ]
}

#[test]
fn every_type_is_read_or_named_as_left_out() {
    let kinds = kinds();
    let written = kinds.iter().map(|(name, array, _, _)| (*name, array.clone())).chain(others()).collect();
    let (_folder, path) = file_of(&[written], None);
    let (columns, left_out) = ParquetFile::open(&path).unwrap().columns();
    let expected: Vec<Column> = kinds.iter().map(|(name, _, ty, _)| column(&name.to_lowercase(), ty.clone())).collect();
    assert_eq!(columns, expected);
    let named: Vec<(&str, &str)> = left_out.iter().map(|left_out| (left_out.name.as_str(), left_out.ty.as_str())).collect();
    let [raw, bytes, hour, (pairs, map), long] = named[..] else { panic!("{named:?}") };
    assert_eq!(
        [raw, bytes, hour, long],
        [("row.raw", "Binary"), ("bytes", "Binary"), ("hour", "Time64(µs)"), ("long", "Decimal256(50, 0)")]
    );
    assert!(pairs == "pairs" && map.starts_with("Map("), "{map}");
    let rows = read(&path, &columns, 2).unwrap();
    for ((name, _, _, expected), read) in kinds.iter().zip(rows.columns()) {
        assert_eq!(read, expected, "{name}");
    }
}

#[test]
fn what_is_declared_over_another_type_is_refused_with_both() {
    let (_folder, path) = file_of(&[others()], None);
    for (name, ty) in [("bytes", "Binary"), ("hour", "Time64"), ("pairs", "Map")] {
        for declared in [SqlType::Text, SqlType::BigInt, SqlType::TIMESTAMP] {
            let (code, text) = refusal(read(&path, &[column(name, declared)], 10));
            assert!(code == "42804" && text.contains(&format!("\"{name}\"")) && text.contains(ty), "{code} {text}");
        }
    }
    let (columns, left_out) = ParquetFile::open(&path).unwrap().columns();
    assert!(columns.is_empty() && left_out.len() == 4, "{columns:?} {left_out:?}");
}

#[test]
fn row_groups_and_pages_of_different_encodings_are_read_alike() {
    let texts = |distinct: usize| -> ArrayRef {
        let values = (0..5000).map(|row| (row % 11 != 0).then(|| format!("text {}", row % distinct)));
        Arc::new(StringArray::from_iter(values))
    };
    let numbers = |distinct: i64| -> ArrayRef { Arc::new(Int64Array::from_iter_values((0..5000).map(|row| row % distinct))) };
    // Of the second group's values most are too many for a dictionary: its first pages have one, the others have none.
    let groups = [
        vec![("t", texts(3)), ("n", numbers(3))],
        vec![("t", texts(4000)), ("n", numbers(4000))],
        vec![("t", texts(1)), ("n", numbers(1))],
    ];
    let properties = WriterProperties::builder().set_dictionary_page_size_limit(2000).set_data_page_row_count_limit(500);
    let (_folder, path) = file_of(&groups, Some(properties.set_write_batch_size(100).build()));
    let columns = [column("n", SqlType::BigInt), column("t", SqlType::Text)];
    let rows = read(&path, &columns, 777).unwrap();
    let whole = |at: usize| {
        let arrays: Vec<&dyn Array> = groups.iter().map(|group| group[at].1.as_ref()).collect();
        arrow::compute::concat(&arrays).unwrap()
    };
    assert_eq!([rows.column(0), rows.column(1)], [&whole(1), &whole(0)]);
}

#[test]
fn a_text_with_a_zero_byte_is_refused_wherever_it_stands() {
    let zero: ArrayRef = Arc::new(StringArray::from(vec!["a", "b\0c", "d"]));
    let dictionary = words([Some("a"), Some("b\0c"), None]);
    let list: ArrayRef = Arc::new(ListArray::new(
        Arc::new(Field::new_list_field(DataType::Utf8, true)),
        OffsetBuffer::from_lengths([1, 0, 2]),
        zero.clone(),
        None,
    ));
    let fields = vec![Field::new("t", DataType::Utf8, true)];
    let row: ArrayRef = Arc::new(StructArray::new(fields.into(), vec![zero.clone()], None));
    for array in [zero, dictionary, list, row] {
        let (_folder, path) = file_of(&[vec![("x", array)]], None);
        let (columns, _) = ParquetFile::open(&path).unwrap().columns();
        let (code, text) = refusal(read(&path, &columns, 10));
        assert!(code == "22021" && text.contains("0x00") && text.contains("\"x\"") && text.contains("a.parquet"), "{code} {text}");
    }
}

#[test]
fn a_time_that_is_too_far_away_is_an_error() {
    let (_folder, path) = file_of(&[vec![("s", Arc::new(TimestampSecondArray::from(vec![i64::MAX / 1000])) as ArrayRef)]], None);
    let (code, text) = refusal(read(&path, &[column("s", SqlType::TIMESTAMP)], 10));
    assert_eq!((code.as_str(), text.contains("a.parquet")), ("22008", true), "{text}");
}

#[test]
fn digits_are_lost_nowhere_silently() {
    let numeric = |precision: u8, scale: i8| SqlType::Numeric { precision, scale };
    let doubles = |values: &[f64]| -> ArrayRef { Arc::new(Float64Array::from(values.to_vec())) };
    let floats = |values: &[f32]| -> ArrayRef { Arc::new(Float32Array::from(values.to_vec())) };
    let decimals = |values: &[i128], precision: u8, scale: i8| -> ArrayRef {
        Arc::new(Decimal128Array::from(values.to_vec()).with_precision_and_scale(precision, scale).unwrap())
    };
    let longer = |values: &[i128], scale: i8| cast(&decimals(values, 20, scale), &DataType::Decimal256(40, scale)).unwrap();
    let exact: Vec<(ArrayRef, SqlType, &[&str])> = vec![
        (doubles(&[9.0, -0.0, -7.0]), SqlType::BigInt, &["9", "0", "-7"]),
        (doubles(&[9.0]), SqlType::Int, &["9"]),
        (floats(&[9.0]), SqlType::BigInt, &["9"]),
        (cast(&floats(&[9.0]), &DataType::Float16).unwrap(), SqlType::Int, &["9"]),
        (decimals(&[8000, -1000], 10, 3), SqlType::BigInt, &["8", "-1"]),
        (decimals(&[8560], 10, 3), numeric(10, 2), &["8.56"]),
        (longer(&[8560], 3), numeric(10, 2), &["8.56"]),
        (doubles(&[0.1, 0.1 + 0.2, 1234567.89, 1e20]), numeric(30, 2), &["0.10", "0.30", "1234567.89", "100000000000000000000.00"]),
        (floats(&[0.1, 1234.5]), numeric(10, 2), &["0.10", "1234.50"]),
        // DOUBLE PRECISION rounds.
        (decimals(&[12_345_678_901_234_567_890_123], 38, 3), SqlType::Double, &["1.2345678901234567e19"]),
        (Arc::new(Int64Array::from(vec![(1 << 53) + 1])), SqlType::Double, &["9007199254740992.0"]),
        (floats(&[0.5]), SqlType::Double, &["0.5"]),
    ];
    for (array, ty, expected) in exact {
        let from = array.data_type().clone();
        let (_folder, path) = file_of(&[vec![("x", array)]], None);
        let rows = read(&path, &[column("x", ty.clone())], 10).unwrap_or_else(|error| panic!("{from} as {ty}: {error:?}"));
        let shown: Vec<String> =
            (0..rows.num_rows()).map(|row| arrow::util::display::array_value_to_string(rows.column(0), row).unwrap()).collect();
        if ty == SqlType::Double {
            let number = |text: &str| text.parse::<f64>().unwrap();
            assert_eq!(
                shown.iter().map(|text| number(text)).collect::<Vec<_>>(),
                expected.iter().map(|text| number(text)).collect::<Vec<_>>()
            );
        } else {
            assert_eq!(shown, expected, "{from} as {ty}");
        }
    }
    let struct_of = |array: ArrayRef| -> ArrayRef {
        let fields = vec![Field::new("f", array.data_type().clone(), true)];
        Arc::new(StructArray::new(fields.into(), vec![array], None))
    };
    let row = SqlType::Row(vec![("f".into(), SqlType::BigInt)]);
    let lossy: Vec<(ArrayRef, SqlType, &str)> = vec![
        (doubles(&[1.0, 9.75]), SqlType::BigInt, "9.75"),
        (doubles(&[9.75]), SqlType::Int, "9.75"),
        (floats(&[9.75]), SqlType::BigInt, "9.75"),
        (doubles(&[f64::NAN]), SqlType::BigInt, ""),
        (doubles(&[9.3e18]), SqlType::BigInt, ""),
        (decimals(&[8567], 10, 3), SqlType::BigInt, "8.567"),
        (decimals(&[8567], 10, 3), numeric(10, 2), "8.567"),
        (decimals(&[9996], 4, 3), numeric(10, 2), "9.996"),
        (longer(&[8567], 3), numeric(10, 2), "8.567"),
        (longer(&[8567], 3), SqlType::Int, "8.567"),
        (doubles(&[9.75]), numeric(10, 1), "9.75"),
        (floats(&[9.75]), numeric(10, 1), "9.75"),
        (Arc::new(Int64Array::from(vec![1 << 40])), SqlType::Int, ""),
        (struct_of(doubles(&[9.75])), row, "9.75"),
    ];
    for (array, ty, value) in lossy {
        let from = array.data_type().clone();
        let (_folder, path) = file_of(&[vec![("x", array)]], None);
        let (code, text) = refusal(read(&path, &[column("x", ty.clone())], 10));
        assert!(["22003", "22P02"].contains(&code.as_str()), "{from} as {ty}: {code} {text}");
        assert!(text.contains(value) && text.contains("column \"x\"") && text.contains("a.parquet"), "{from} as {ty}: {text}");
    }
    // What stands in a row that is NULL is nobody's.
    let fields = vec![Field::new("f", DataType::Float64, true)];
    let nulls = NullBuffer::from(vec![true, false]);
    let rows: ArrayRef = Arc::new(StructArray::new(fields.into(), vec![doubles(&[1.0, 9.75])], Some(nulls)));
    let row = SqlType::Row(vec![("f".into(), SqlType::BigInt)]);
    assert_eq!(convert(&rows, &row, "x", None).unwrap().null_count(), 1);
}

#[test]
fn a_column_that_may_be_one_of_several_is_refused_unless_it_is_named_exactly() {
    let numbers = |number: i64| -> ArrayRef { Arc::new(Int64Array::from(vec![number])) };
    let (_folder, path) = file_of(&[vec![("Id", numbers(1)), ("ID", numbers(2)), ("\u{c9}", numbers(3))]], None);
    let (code, text) = refusal(read(&path, &[column("id", SqlType::BigInt)], 10));
    assert!(code == "42702" && text.contains("\"Id\"") && text.contains("\"ID\"") && text.contains("a.parquet"), "{code} {text}");
    let rows = read(&path, &[column("ID", SqlType::BigInt), column("Id", SqlType::BigInt)], 10).unwrap();
    assert_eq!([rows.column(0), rows.column(1)], [&numbers(2), &numbers(1)]);
    // A table that declares none has its name in lower case.
    assert_eq!(read(&path, &[column("\u{e9}", SqlType::BigInt)], 10).unwrap().column(0), &numbers(3));
    let fields = [Field::new("A", DataType::Int64, true), Field::new("a", DataType::Int64, true), Field::new("a", DataType::Int64, true)];
    for (fields, code) in [(&fields[..2], None), (&fields[..], Some("42702"))] {
        let row: ArrayRef = Arc::new(StructArray::new(fields.to_vec().into(), (0..fields.len() as i64).map(numbers).collect(), None));
        let ty = SqlType::Row(vec![("a".into(), SqlType::BigInt)]);
        assert_eq!(check_readable(row.data_type(), &ty, "r").err().map(|error| error.code().as_str().to_string()).as_deref(), code);
    }
}
