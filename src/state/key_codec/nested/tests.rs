//! Rows and arrays in both codecs: against frozen samples, against a plain ordering of values, and against damaged bytes.

use std::cmp::Ordering;

use arrow::array::Float64Array;
use proptest::prelude::*;
use serde_json::Value as Json;

use super::super::tests::{Value, column, sample_value, types, value_of};
use super::*;
use crate::state::descriptor::StateColumn;
use crate::state::row_codec::RowCodec;

/// A type.
#[derive(Clone, Debug)]
enum Shape {
    Leaf(DataType),
    Array(Box<Shape>),
    Row(Vec<Shape>),
}

/// A value of it.
#[derive(Clone, Debug)]
enum Item {
    Null,
    Leaf(Value),
    /// The fields of a row, or the elements of an array.
    Many(Vec<Item>),
}

impl Item {
    /// The order that keys must have, written without regard to bytes.
    fn compare(&self, other: &Item) -> Ordering {
        match (self, other) {
            (Item::Null, Item::Null) => Ordering::Equal,
            (Item::Null, _) => Ordering::Less,
            (_, Item::Null) => Ordering::Greater,
            (Item::Leaf(a), Item::Leaf(b)) => a.compare(b),
            (Item::Many(a), Item::Many(b)) => {
                let decided = a.iter().zip(b).map(|(a, b)| a.compare(b)).find(|order| order.is_ne());
                decided.unwrap_or_else(|| a.len().cmp(&b.len()))
            }
            _ => panic!("values of two types are compared"),
        }
    }
}

fn data_type(shape: &Shape) -> DataType {
    match shape {
        Shape::Leaf(ty) => ty.clone(),
        Shape::Array(element) => DataType::new_list(data_type(element), true),
        Shape::Row(fields) => {
            let field = |(at, shape): (usize, &Shape)| arrow::datatypes::Field::new(format!("f{at}"), data_type(shape), true);
            DataType::Struct(fields.iter().enumerate().map(field).collect())
        }
    }
}

/// `items` as an array.
fn build(shape: &Shape, items: &[Item]) -> ArrayRef {
    let nulls = NullBuffer::from(items.iter().map(|item| !matches!(item, Item::Null)).collect::<Vec<bool>>());
    match shape {
        Shape::Leaf(ty) => {
            let values = items.iter().map(|item| match item {
                Item::Leaf(value) => vec![value.clone()],
                _ => vec![Value::Null],
            });
            column(ty, 0, &values.collect::<Vec<_>>())
        }
        Shape::Array(element) => {
            let (mut elements, mut offsets) = (Vec::new(), vec![0i32]);
            for item in items {
                if let Item::Many(inside) = item {
                    elements.extend(inside.iter().cloned());
                }
                offsets.push(elements.len() as i32);
            }
            let DataType::List(field) = data_type(shape) else { panic!("no list") };
            Arc::new(ListArray::new(field, OffsetBuffer::new(offsets.into()), build(element, &elements), Some(nulls)))
        }
        Shape::Row(fields) => {
            let child = |at: usize| -> Vec<Item> {
                let field = |item: &Item| if let Item::Many(inside) = item { inside[at].clone() } else { Item::Null };
                items.iter().map(field).collect()
            };
            let columns = fields.iter().enumerate().map(|(at, shape)| build(shape, &child(at))).collect();
            let DataType::Struct(fields) = data_type(shape) else { panic!("no struct") };
            Arc::new(StructArray::new(fields, columns, Some(nulls)))
        }
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    let leaf = prop::sample::select(types()).prop_map(Shape::Leaf);
    leaf.prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|element| Shape::Array(Box::new(element))),
            prop::collection::vec(inner, 1..4).prop_map(Shape::Row),
        ]
    })
}

fn item(shape: &Shape) -> BoxedStrategy<Item> {
    let value = match shape {
        Shape::Leaf(ty) => value_of(ty).prop_map(Item::Leaf).boxed(),
        Shape::Array(element) => prop::collection::vec(item(element), 0..4).prop_map(Item::Many).boxed(),
        Shape::Row(fields) => fields.iter().map(item).collect::<Vec<_>>().prop_map(Item::Many).boxed(),
    };
    prop_oneof![1 => Just(Item::Null), 4 => value].boxed()
}

/// Two columns and rows of them; the second is there so that something follows a row or an array in a key.
fn rows() -> impl Strategy<Value = (Vec<Shape>, Vec<Vec<Item>>)> {
    [shape(), shape()].prop_flat_map(|shapes| {
        let row: Vec<BoxedStrategy<Item>> = shapes.iter().map(item).collect();
        (Just(shapes.to_vec()), prop::collection::vec(row, 1..12))
    })
}

/// The columns of `rows`: slices of longer arrays, since operators hand such on.
fn columns(shapes: &[Shape], rows: &[Vec<Item>]) -> Vec<ArrayRef> {
    let slice = |(at, shape): (usize, &Shape)| {
        let items: Vec<Item> = rows.iter().chain(rows).chain(rows).map(|row| row[at].clone()).collect();
        build(shape, &items).slice(rows.len(), rows.len())
    };
    shapes.iter().enumerate().map(slice).collect()
}

/// `array` without what tells equal doubles apart.
fn equalled(array: &ArrayRef) -> ArrayRef {
    weir_sql::functions::nested::evaluate(
        weir_sql::functions::nested::Operation::Comparable,
        std::slice::from_ref(array),
        array.data_type(),
        array.len(),
    )
    .expect("every type is comparable")
}

/// The bits of doubles, wherever they are, in place of their values: NaN is not equal to itself.
fn bits(array: &ArrayRef) -> String {
    match array.data_type() {
        DataType::Float64 => {
            let doubles: &Float64Array = array.as_primitive();
            format!("{:?}", doubles.iter().map(|value| value.map(f64::to_bits)).collect::<Vec<_>>())
        }
        DataType::Struct(_) => {
            let rows = array.as_struct();
            let valid: Vec<bool> = (0..rows.len()).map(|row| rows.is_valid(row)).collect();
            format!("{valid:?} {:?}", rows.columns().iter().map(bits).collect::<Vec<_>>())
        }
        DataType::List(_) => {
            let lists = array.as_list::<i32>();
            let (offsets, values) = weir_sql::functions::nested::parts(lists);
            let valid: Vec<bool> = (0..lists.len()).map(|row| lists.is_valid(row)).collect();
            format!("{valid:?} {:?} {}", offsets.as_ref(), bits(&values))
        }
        _ => format!("{array:?}"),
    }
}

fn data_types(shapes: &[Shape]) -> Vec<DataType> {
    shapes.iter().map(data_type).collect()
}

proptest! {
    #[test]
    fn keys_order_as_rows_do_and_come_back((shapes, rows) in rows()) {
        let codec = KeyCodec::new(&data_types(&shapes))?;
        let columns = columns(&shapes, &rows);
        let mut keys = EncodedRows::new();
        codec.encode(&columns, &mut keys)?;
        for (a, key_a) in rows.iter().zip(keys.iter()) {
            for (b, key_b) in rows.iter().zip(keys.iter()) {
                let order = a.iter().zip(b).map(|(a, b)| a.compare(b)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal);
                prop_assert_eq!(key_a.cmp(key_b), order, "{:?} {:?}", a, b);
                prop_assert!(key_a == key_b || !key_b.starts_with(key_a), "{:?} {:?}", a, b);
            }
        }
        for (decoded, column) in codec.decode(keys.iter())?.iter().zip(&columns) {
            prop_assert_eq!(decoded.data_type(), column.data_type());
            prop_assert_eq!(bits(decoded), bits(&equalled(column)));
        }
        // Rows that are their own keys keep the sign of a zero.
        let mut whole = EncodedRows::new();
        let codec = KeyCodec::of_rows(&data_types(&shapes))?;
        codec.encode(&columns, &mut whole)?;
        let mut again = EncodedRows::new();
        codec.encode(&codec.decode(whole.iter())?, &mut again)?;
        prop_assert_eq!(whole, again);
    }

    #[test]
    fn values_come_back_bit_for_bit((shapes, rows) in rows()) {
        let codec = RowCodec::new(&data_types(&shapes))?;
        let columns = columns(&shapes, &rows);
        let encoded = codec.encode(&columns)?;
        for (decoded, column) in codec.decode(encoded.iter())?.iter().zip(&columns) {
            prop_assert_eq!(decoded.data_type(), column.data_type());
            prop_assert_eq!(bits(decoded), bits(column));
        }
    }

    #[test]
    fn damaged_bytes_never_panic((shapes, rows) in rows(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let types = data_types(&shapes);
        let columns = columns(&shapes, &rows);
        let mut keys = EncodedRows::new();
        KeyCodec::new(&types)?.encode(&columns, &mut keys)?;
        let values = RowCodec::new(&types)?.encode(&columns)?;
        let damage = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            let at = at.index(bytes.len());
            if cut { bytes.truncate(at) } else { bytes[at] = byte }
            bytes
        };
        let key = damage(keys.get(0));
        let value = damage(values.get(0));
        for decoded in [KeyCodec::new(&types)?.decode(std::iter::once(key.as_slice())), RowCodec::new(&types)?.decode(std::iter::once(value.as_slice()))] {
            match decoded {
                Ok(_) => prop_assert!(!cut, "a prefix was taken for the whole"),
                Err(error) => prop_assert_eq!(error.code().as_str(), "XX001"),
            }
        }
    }
}

fn shape_of(ty: &DataType) -> Shape {
    match ty {
        DataType::List(element) => Shape::Array(Box::new(shape_of(element.data_type()))),
        DataType::Struct(fields) => Shape::Row(fields.iter().map(|field| shape_of(field.data_type())).collect()),
        leaf => Shape::Leaf(leaf.clone()),
    }
}

fn item_of(shape: &Shape, json: &Json) -> Item {
    match (shape, json) {
        (_, Json::Null) => Item::Null,
        (Shape::Leaf(ty), json) => Item::Leaf(sample_value(ty, json.as_str())),
        (Shape::Array(element), json) => Item::Many(json.as_array().expect("a list").iter().map(|json| item_of(element, json)).collect()),
        (Shape::Row(fields), json) => {
            Item::Many(fields.iter().zip(json.as_array().expect("a list")).map(|(shape, json)| item_of(shape, json)).collect())
        }
    }
}

/// `column` with the names of `ty`.
fn named(column: &ArrayRef, ty: &DataType) -> ArrayRef {
    let ty = weir_catalog::SqlType::from_arrow(ty).expect("an SQL type");
    weir_sql::functions::cast::evaluate(column, &ty).expect("only names differ")
}

#[test]
fn format_2_is_as_it_was_released() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut count = 0;
    for line in include_str!("../../../../tests/compat/v2/nested_codecs.jsonl").lines() {
        let sample: Json = serde_json::from_str(line).expect("JSON");
        let types =
            sample["types"].as_array().expect("types").iter().map(|ty| {
                StateColumn { name: "c".into(), type_name: ty.as_str().expect("a type").into() }.data_type().expect("a known type")
            });
        let types: Vec<DataType> = types.collect();
        let shapes: Vec<Shape> = types.iter().map(shape_of).collect();
        let row: Vec<Item> =
            shapes.iter().zip(sample["row"].as_array().expect("a row")).map(|(shape, json)| item_of(shape, json)).collect();
        let columns: Vec<ArrayRef> = columns(&shapes, &[row]);
        // The names of fields are those of the sample's types.
        let columns: Vec<ArrayRef> = columns.iter().zip(&types).map(|(column, ty)| named(column, ty)).collect();
        let mut keys = EncodedRows::new();
        KeyCodec::new(&types).unwrap().encode(&columns, &mut keys).unwrap();
        assert_eq!(hex(keys.get(0)), sample["key"].as_str().expect("a key"), "{line}");
        let codec = RowCodec::new(&types).unwrap();
        let values = codec.encode(&columns).unwrap();
        assert_eq!(hex(values.get(0)), sample["value"].as_str().expect("a value"), "{line}");
        assert_eq!(codec.encode(&codec.decode(values.iter()).unwrap()).unwrap(), values, "{line}");
        count += 1;
    }
    assert_eq!(count, 20);
}
