//! The key codec against its frozen samples, against a plain ordering of values, and against bytes that are not keys.

use std::cmp::Ordering;

use arrow::array::{BooleanBuilder, PrimitiveBuilder, StringBuilder};
use arrow::compute::concat;
use proptest::prelude::*;

use super::*;

/// A value of a key or row column, for tests of both codecs.
#[derive(Clone, Debug)]
pub(in crate::state) enum Value {
    Null,
    Boolean(bool),
    Int32(i32),
    Int64(i64),
    Float64(f64),
    Decimal128(i128),
    Text(String),
}

impl Value {
    /// The order that keys must have, written without regard to bytes.
    pub(in crate::state) fn compare(&self, other: &Value) -> Ordering {
        match (self, other) {
            (Value::Null, Value::Null) => Ordering::Equal,
            (Value::Null, _) => Ordering::Less,
            (_, Value::Null) => Ordering::Greater,
            (Value::Boolean(a), Value::Boolean(b)) => a.cmp(b),
            (Value::Int32(a), Value::Int32(b)) => a.cmp(b),
            (Value::Int64(a), Value::Int64(b)) => a.cmp(b),
            (Value::Float64(a), Value::Float64(b)) => match (a.is_nan(), b.is_nan()) {
                (false, false) => a.partial_cmp(b).expect("neither is NaN"),
                (a, b) => a.cmp(&b),
            },
            (Value::Decimal128(a), Value::Decimal128(b)) => a.cmp(b),
            (Value::Text(a), Value::Text(b)) => a.as_bytes().cmp(b.as_bytes()),
            _ => panic!("values of two types are compared"),
        }
    }
}

fn compare_rows(a: &[Value], b: &[Value]) -> Ordering {
    a.iter().zip(b).map(|(a, b)| a.compare(b)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// The types of test columns.
pub(in crate::state) fn types() -> Vec<DataType> {
    vec![
        DataType::Boolean,
        DataType::Int32,
        DataType::Int64,
        DataType::Float64,
        DataType::Decimal128(38, 10),
        DataType::Timestamp(TimeUnit::Microsecond, None),
        DataType::Utf8,
    ]
}

pub(in crate::state) fn value_of(ty: &DataType) -> BoxedStrategy<Value> {
    match ty {
        DataType::Boolean => any::<bool>().prop_map(Value::Boolean).boxed(),
        DataType::Int32 => prop_oneof![any::<i32>(), -2..3i32, Just(i32::MIN), Just(i32::MAX)].prop_map(Value::Int32).boxed(),
        DataType::Int64 | DataType::Timestamp(..) => {
            prop_oneof![any::<i64>(), -300..300i64, Just(i64::MIN), Just(i64::MAX)].prop_map(Value::Int64).boxed()
        }
        DataType::Float64 => prop_oneof![
            any::<u64>().prop_map(f64::from_bits),
            (-3..4i32).prop_map(f64::from),
            prop::sample::select(vec![0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -f64::NAN, f64::MIN_POSITIVE, 5e-324]),
        ]
        .prop_map(Value::Float64)
        .boxed(),
        DataType::Decimal128(..) => prop_oneof![any::<i128>(), -300..300i128].prop_map(Value::Decimal128).boxed(),
        _ => prop_oneof![
            prop::collection::vec(prop::sample::select(vec!['\0', '\u{1}', 'a', 'b', '\u{7f}', 'é', '🦀']), 0..5)
                .prop_map(|characters| characters.into_iter().collect::<String>()),
            any::<String>(),
        ]
        .prop_map(Value::Text)
        .boxed(),
    }
}

/// Column types and rows of them; about half of the columns without NULLs, so that every path is taken.
pub(in crate::state) fn rows() -> impl Strategy<Value = (Vec<DataType>, Vec<Vec<Value>>)> {
    prop::collection::vec((prop::sample::select(types()), any::<bool>()), 1..4).prop_flat_map(|columns| {
        let types: Vec<DataType> = columns.iter().map(|(ty, _)| ty.clone()).collect();
        let row: Vec<BoxedStrategy<Value>> = columns
            .iter()
            .map(|(ty, nullable)| {
                let value = value_of(ty);
                if *nullable { prop_oneof![1 => Just(Value::Null), 3 => value].boxed() } else { value }
            })
            .collect();
        (Just(types), prop::collection::vec(row, 1..30))
    })
}

fn primitive<T: arrow::datatypes::ArrowPrimitiveType>(ty: &DataType, values: impl Iterator<Item = Option<T::Native>>) -> ArrayRef {
    let mut builder = PrimitiveBuilder::<T>::new().with_data_type(ty.clone());
    values.for_each(|value| builder.append_option(value));
    Arc::new(builder.finish())
}

/// One column of `rows` as an array.
pub(in crate::state) fn column(ty: &DataType, i: usize, rows: &[Vec<Value>]) -> ArrayRef {
    let values = rows.iter().map(|row| &row[i]);
    match ty {
        DataType::Boolean => {
            let mut builder = BooleanBuilder::new();
            values.for_each(|value| builder.append_option(if let Value::Boolean(value) = value { Some(*value) } else { None }));
            Arc::new(builder.finish())
        }
        DataType::Utf8 => {
            let mut builder = StringBuilder::new();
            values.for_each(|value| builder.append_option(if let Value::Text(value) = value { Some(value) } else { None }));
            Arc::new(builder.finish())
        }
        DataType::Int32 => {
            primitive::<Int32Type>(ty, values.map(|value| if let Value::Int32(value) = value { Some(*value) } else { None }))
        }
        DataType::Int64 => {
            primitive::<Int64Type>(ty, values.map(|value| if let Value::Int64(value) = value { Some(*value) } else { None }))
        }
        DataType::Timestamp(..) => {
            primitive::<TimestampMicrosecondType>(ty, values.map(|value| if let Value::Int64(value) = value { Some(*value) } else { None }))
        }
        DataType::Float64 => {
            primitive::<Float64Type>(ty, values.map(|value| if let Value::Float64(value) = value { Some(*value) } else { None }))
        }
        _ => primitive::<Decimal128Type>(ty, values.map(|value| if let Value::Decimal128(value) = value { Some(*value) } else { None })),
    }
}

/// The columns of `rows`: slices of longer arrays, since operators hand such on.
pub(in crate::state) fn columns(types: &[DataType], rows: &[Vec<Value>]) -> Vec<ArrayRef> {
    types
        .iter()
        .enumerate()
        .map(|(i, ty)| {
            let column = column(ty, i, rows);
            concat(&[&column, &column, &column]).expect("equal types").slice(rows.len(), rows.len())
        })
        .collect()
}

proptest! {
    #[test]
    fn bytes_order_as_rows_do_and_none_is_a_prefix((types, rows) in rows()) {
        let mut keys = EncodedRows::new();
        KeyCodec::new(&types)?.encode(&columns(&types, &rows), &mut keys)?;
        prop_assert_eq!(keys.len(), rows.len());
        for (a, key_a) in rows.iter().zip(keys.iter()) {
            for (b, key_b) in rows.iter().zip(keys.iter()) {
                prop_assert_eq!(key_a.cmp(key_b), compare_rows(a, b), "{:?} {:?}", a, b);
                prop_assert!(key_a == key_b || !key_b.starts_with(key_a), "{:?} {:?}", a, b);
            }
        }
    }

    #[test]
    fn keys_come_back((types, rows) in rows()) {
        let codec = KeyCodec::new(&types)?;
        let columns = columns(&types, &rows);
        let mut keys = EncodedRows::new();
        codec.encode(&columns, &mut keys)?;
        let decoded = codec.decode(keys.iter())?;
        prop_assert_eq!(decoded.len(), types.len());
        for ((ty, column), decoded) in types.iter().zip(&columns).zip(&decoded) {
            prop_assert_eq!(decoded.data_type(), ty);
            if *ty == DataType::Float64 {
                for row in 0..rows.len() {
                    prop_assert_eq!(decoded.is_null(row), column.is_null(row));
                    let (a, b) = (float64s(decoded)[row], float64s(column)[row]);
                    prop_assert!(column.is_null(row) || (a.is_nan() && b.is_nan()) || a == b);
                    prop_assert!(decoded.is_null(row) || a != 0.0 || a.is_sign_positive());
                }
            } else {
                prop_assert_eq!(decoded, column);
            }
        }
        // Appending goes on where the buffer ends.
        codec.encode(&columns, &mut keys)?;
        prop_assert_eq!(keys.len(), 2 * rows.len());
        prop_assert!((0..rows.len()).all(|row| keys.get(row) == keys.get(row + rows.len())));
    }

    #[test]
    fn bytes_that_are_no_key_are_an_error_or_a_key(
        columns in prop::collection::vec(prop::sample::select(types()), 0..4),
        mut bytes in prop::collection::vec(any::<u8>(), 0..40),
        markers in prop::collection::vec(0..40usize, 0..4),
    ) {
        for marker in markers {
            if let Some(byte) = bytes.get_mut(marker) {
                *byte %= 2;
            }
        }
        let codec = KeyCodec::new(&columns)?;
        match codec.decode(std::iter::once(bytes.as_slice())) {
            Ok(decoded) => prop_assert_eq!(decoded.len(), columns.len()),
            Err(error) => prop_assert_eq!(error.code(), &SqlState::DATA_CORRUPTED),
        }
    }

    #[test]
    fn damaged_keys_never_panic((types, rows) in rows(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let codec = KeyCodec::new(&types)?;
        let mut keys = EncodedRows::new();
        codec.encode(&columns(&types, &rows), &mut keys)?;
        let mut key = keys.get(0).to_vec();
        let at = at.index(key.len());
        if cut { key.truncate(at) } else { key[at] = byte }
        match codec.decode(std::iter::once(key.as_slice())) {
            Ok(_) => prop_assert!(!cut, "a prefix of a key was taken for a key"),
            Err(error) => prop_assert_eq!(error.code(), &SqlState::DATA_CORRUPTED),
        }
    }
}

pub(in crate::state) fn sample_type(name: &str) -> DataType {
    match name {
        "boolean" => DataType::Boolean,
        "int" => DataType::Int32,
        "bigint" => DataType::Int64,
        "double" => DataType::Float64,
        "numeric(38,10)" => DataType::Decimal128(38, 10),
        "numeric(12,2)" => DataType::Decimal128(12, 2),
        "timestamp" => DataType::Timestamp(TimeUnit::Microsecond, None),
        "text" => DataType::Utf8,
        other => panic!("sample of unknown type {other}"),
    }
}

pub(in crate::state) fn sample_value(ty: &DataType, text: Option<&str>) -> Value {
    let Some(text) = text else { return Value::Null };
    match ty {
        DataType::Boolean => Value::Boolean(text.parse().expect("boolean")),
        DataType::Int32 => Value::Int32(text.parse().expect("int")),
        DataType::Int64 | DataType::Timestamp(..) => Value::Int64(text.parse().expect("bigint")),
        DataType::Float64 => Value::Float64(text.parse().expect("double")),
        DataType::Decimal128(..) => Value::Decimal128(text.parse().expect("unscaled numeric")),
        _ => Value::Text(text.to_string()),
    }
}

#[test]
fn format_1_is_as_it_was_released() {
    let samples = include_str!("../../../tests/compat/v1/key_codec.jsonl");
    let mut count = 0;
    for line in samples.lines() {
        let sample: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let types: Vec<DataType> =
            sample["types"].as_array().expect("types").iter().map(|ty| sample_type(ty.as_str().expect("type"))).collect();
        let row: Vec<Value> =
            types.iter().zip(sample["row"].as_array().expect("row")).map(|(ty, value)| sample_value(ty, value.as_str())).collect();
        let codec = KeyCodec::new(&types).expect("known types");
        let mut keys = EncodedRows::new();
        let columns = columns(&types, &[row]);
        codec.encode(&columns, &mut keys).expect("columns fit");
        let hex: String = keys.get(0).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, sample["key"].as_str().expect("key"), "{line}");
        let mut again = EncodedRows::new();
        codec.encode(&codec.decode(keys.iter()).expect("decodes"), &mut again).expect("columns fit");
        assert_eq!(again, keys, "{line}");
        count += 1;
    }
    assert_eq!(count, 61);
}

#[test]
fn keys_without_columns_are_empty() {
    let codec = KeyCodec::new(&[]).unwrap();
    let mut keys = EncodedRows::new();
    codec.encode_n(3, &mut keys).unwrap();
    assert_eq!((keys.len(), keys.get(2)), (3, [].as_slice()));
    assert!(codec.decode(keys.iter()).unwrap().is_empty());
    assert!(codec.encode(&[], &mut keys).is_err());
}

#[test]
fn wrong_types_are_refused() {
    let error = KeyCodec::new(&[DataType::Binary]).unwrap_err();
    assert_eq!(error.code(), &SqlState::FEATURE_NOT_SUPPORTED);
    let error = KeyCodec::new(&[DataType::Timestamp(TimeUnit::Nanosecond, None)]).unwrap_err();
    assert_eq!(error.code(), &SqlState::FEATURE_NOT_SUPPORTED);
    let codec = KeyCodec::new(&[DataType::Int64]).unwrap();
    let column: ArrayRef = Arc::new(Int32Array::from(vec![1]));
    assert_eq!(codec.encode(&[column], &mut EncodedRows::new()).unwrap_err().code(), &SqlState::INTERNAL_ERROR);
}

#[test]
fn state_keys_begin_with_group_and_tag() {
    let mut key = Vec::new();
    append_state_key(&mut key, 7, b"k");
    assert_eq!(key.len(), STATE_PREFIX_BYTES + 1);
    assert_eq!(key[..2], key_group(key_hash(b"k")).to_be_bytes());
    assert_eq!(key[2..], [7, b'k']);
}

#[test]
fn rows_that_are_keys_keep_the_sign_of_a_zero_and_nothing_else_changes() {
    let values = [-1.5, -0.0, 0.0, 1.5, f64::INFINITY, f64::NAN, f64::NEG_INFINITY];
    for with_text in [false, true] {
        let mut types = vec![DataType::Float64];
        let mut columns: Vec<ArrayRef> = vec![Arc::new(Float64Array::from(values.to_vec()))];
        if with_text {
            types.push(DataType::Utf8);
            columns.push(Arc::new(StringArray::from(vec!["x"; values.len()])));
        }
        let (mut keys, mut rows) = (EncodedRows::new(), EncodedRows::new());
        KeyCodec::new(&types).unwrap().encode(&columns, &mut keys).unwrap();
        let codec = KeyCodec::of_rows(&types).unwrap();
        codec.encode(&columns, &mut rows).unwrap();
        for (at, value) in values.iter().enumerate() {
            assert_eq!(keys.get(at) == rows.get(at), at != 1, "{value}");
        }
        assert!(rows.get(0) < rows.get(1) && rows.get(1) < rows.get(2));
        let decoded = codec.decode(rows.iter()).unwrap();
        for (found, value) in float64s(&decoded[0]).iter().zip(&values) {
            assert!(found.to_bits() == value.to_bits() || found.is_nan() && value.is_nan(), "{found}, not {value}");
        }
    }
}
