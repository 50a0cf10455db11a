//! The value codec: rows come back bit for bit, the bytes are as documented, and bytes that are no row are an error.

use proptest::prelude::*;

use super::super::key_codec::tests::{Value, columns, rows, sample_type, sample_value, types};
use super::*;

proptest! {
    #[test]
    fn rows_come_back((types, rows) in rows()) {
        let codec = RowCodec::new(&types)?;
        let columns = columns(&types, &rows);
        let mut encoded = codec.encode(&columns)?;
        let decoded = codec.decode(encoded.iter())?;
        for ((ty, column), decoded) in types.iter().zip(&columns).zip(&decoded) {
            prop_assert_eq!(decoded.data_type(), ty);
            if *ty == DataType::Float64 {
                let bits = |column: &ArrayRef| -> Vec<Option<u64>> {
                    column.as_primitive::<Float64Type>().iter().map(|value| value.map(f64::to_bits)).collect()
                };
                prop_assert_eq!(bits(decoded), bits(column));
            } else {
                prop_assert_eq!(decoded, column);
            }
        }
        codec.encode_into(&columns, rows.len(), &mut encoded)?;
        prop_assert!((0..rows.len()).all(|row| encoded.get(row) == encoded.get(row + rows.len())));
    }

    #[test]
    fn damaged_rows_never_panic((types, rows) in rows(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let codec = RowCodec::new(&types)?;
        let encoded = codec.encode(&columns(&types, &rows))?;
        let mut row = encoded.get(0).to_vec();
        let at = at.index(row.len());
        if cut { row.truncate(at) } else { row[at] = byte }
        match codec.decode(std::iter::once(row.as_slice())) {
            Ok(_) => prop_assert!(!cut, "a prefix of a row was taken for a row"),
            Err(error) => prop_assert_eq!(error.code(), &SqlState::DATA_CORRUPTED),
        }
    }

    #[test]
    fn bytes_that_are_no_row_are_an_error_or_a_row(
        columns in prop::collection::vec(prop::sample::select(types()), 0..10),
        mut bytes in prop::collection::vec(any::<u8>(), 0..100),
        plain_header in any::<bool>(),
    ) {
        if plain_header && bytes.len() > 3 {
            bytes[..3].copy_from_slice(&[1, 0, 0]);
        }
        match RowCodec::new(&columns)?.decode(std::iter::once(bytes.as_slice())) {
            Ok(decoded) => prop_assert_eq!(decoded.len(), columns.len()),
            Err(error) => prop_assert_eq!(error.code(), &SqlState::DATA_CORRUPTED),
        }
    }
}

#[test]
fn format_1_is_as_documented() {
    let types = [DataType::Utf8, DataType::Int64, DataType::Boolean, DataType::Utf8, DataType::Int32];
    let rows = [
        vec![Value::Text("hé".into()), Value::Int64(-2), Value::Boolean(true), Value::Text("z".into()), Value::Int32(258)],
        vec![Value::Text("x".into()), Value::Null, Value::Boolean(false), Value::Null, Value::Null],
    ];
    let encoded = RowCodec::new(&types).unwrap().with_schema_number(9).encode(&columns(&types, &rows)).unwrap();
    let mut first = vec![9, 0, 0];
    first.extend([3, 0, 0, 0]);
    first.extend([0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]);
    first.push(1);
    first.extend([4, 0, 0, 0]);
    first.extend([2, 1, 0, 0]);
    first.extend("héz".bytes());
    assert_eq!(encoded.get(0), first);
    let mut second = vec![9, 0, 0b11010];
    second.extend([1, 0, 0, 0]);
    second.extend([0; 8]);
    second.push(0);
    second.extend([1, 0, 0, 0]);
    second.extend([0; 4]);
    second.extend("x".bytes());
    assert_eq!(encoded.get(1), second);
    assert_eq!(RowCodec::schema_number(encoded.get(1)).unwrap(), 9);
    // Another schema number is not decoded as if it were this one.
    assert_eq!(RowCodec::new(&types).unwrap().decode(encoded.iter()).unwrap_err().code(), &SqlState::DATA_CORRUPTED);
}

#[test]
fn rows_without_columns_are_a_header() {
    let codec = RowCodec::new(&[]).unwrap();
    let mut encoded = EncodedRows::new();
    codec.encode_into(&[], 2, &mut encoded).unwrap();
    assert_eq!((encoded.len(), encoded.get(1)), (2, [1, 0].as_slice()));
    assert!(codec.decode(encoded.iter()).unwrap().is_empty());
}

#[test]
fn a_count_is_a_row_of_one_bigint() {
    let codec = RowCodec::new(&[DataType::Int64]).unwrap();
    for count in [0, 1, -1, 258, i64::MAX, i64::MIN] {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![count]));
        assert_eq!(codec.encode(&[column]).unwrap().get(0), encode_count(count));
        assert_eq!(decode_count(&encode_count(count)).unwrap(), count);
    }
    for wrong in [&[][..], &[1, 0, 0], &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], &[1; 12]] {
        assert_eq!(decode_count(wrong).unwrap_err().code(), &SqlState::DATA_CORRUPTED);
    }
}

#[test]
fn format_1_is_as_it_was_released() {
    let samples = include_str!("../../../tests/compat/v1/row_codec.jsonl");
    let mut count = 0;
    for line in samples.lines() {
        let sample: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let list = |name: &str| sample[name].as_array().expect("a list").clone();
        let types: Vec<DataType> = list("types").iter().map(|ty| sample_type(ty.as_str().expect("a type"))).collect();
        let row: Vec<Value> = types.iter().zip(list("row")).map(|(ty, value)| sample_value(ty, value.as_str())).collect();
        let number = sample["schema"].as_u64().expect("a number") as u8;
        let codec = RowCodec::new(&types).expect("known types").with_schema_number(number);
        let encoded = codec.encode(&columns(&types, &[row])).expect("columns fit");
        let hex: String = encoded.get(0).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, sample["value"].as_str().expect("a value"), "{line}");
        assert_eq!(RowCodec::schema_number(encoded.get(0)).unwrap(), number);
        assert_eq!(codec.encode(&codec.decode(encoded.iter()).expect("decodes")).expect("columns fit"), encoded, "{line}");
        count += 1;
    }
    assert_eq!(count, 47);
}
