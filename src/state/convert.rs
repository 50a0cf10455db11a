//! State that was written for one operator, brought to the layout that another reads: value columns that stay are copied, or cast to a wider type, new ones
//! begin empty, and states change their tags. Keys stay as they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, new_null_array};
use arrow::compute::CastOptions;
use arrow::datatypes::DataType;
use weir_catalog::{Error, Result};

use super::{EncodedRows, RowCodec, StateBackend, StateSnapshot, Writes};
use crate::stream::KeyGroupRange;

/// The bytes of a key before the encoded key: key group and tag.
const PREFIX_BYTES: usize = 3;
/// How many entries are brought over at a time.
const CHUNK: usize = 8192;

/// How the states of one operator become those of another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversion {
    pub states: Vec<StateConversion>,
}

/// How one state becomes another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateConversion {
    pub from_tag: u8,
    pub to_tag: u8,
    /// `None`: values stay as they are.
    pub values: Option<ValueConversion>,
}

/// How the values of a state become those of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueConversion {
    /// The columns' types, by schema number.
    pub from: BTreeMap<u8, Vec<DataType>>,
    pub to: Vec<DataType>,
    /// Where each of the new columns comes from.
    pub columns: Vec<ColumnOrigin>,
}

/// Where a value column comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnOrigin {
    /// It was at this place.
    Column(usize),
    /// It is new, and begins with 0.
    Zero,
    /// It is new, and begins with NULL.
    Null,
}

impl Conversion {
    /// Brings what `from` has of the key groups in `range` into `to`, which is empty.
    pub fn run(&self, from: &dyn StateSnapshot, range: KeyGroupRange, to: &mut dyn StateBackend) -> Result<()> {
        for state in &self.states {
            for group in range.start..range.end {
                state.run(from, group, to)?;
            }
        }
        Ok(())
    }
}

impl StateConversion {
    /// Brings over one key group, in which the order of keys stays.
    fn run(&self, from: &dyn StateSnapshot, group: u16, to: &mut dyn StateBackend) -> Result<()> {
        let [high, low] = group.to_be_bytes();
        let mut entries = from.iter(&[high, low, self.from_tag], &tag_end(group, self.from_tag));
        to.write_all(&mut |writes| {
            let (mut keys, mut values) = (EncodedRows::new(), EncodedRows::new());
            for entry in entries.by_ref().take(CHUNK) {
                let (key, value) = entry?;
                keys.push(key.get(PREFIX_BYTES..).ok_or_else(|| Error::corrupted("a key in the state is too short"))?);
                values.push(&value);
            }
            self.push(group, &keys, &values, writes)?;
            Ok(!writes.is_empty())
        })
    }

    fn push(&self, group: u16, keys: &EncodedRows, values: &EncodedRows, writes: &mut Writes) -> Result<()> {
        let converted;
        let values = match &self.values {
            None => values,
            Some(conversion) => {
                converted = conversion.convert(values)?;
                &converted
            }
        };
        let [high, low] = group.to_be_bytes();
        for (key, value) in keys.iter().zip(values.iter()) {
            writes.push_parts(&[&[high, low, self.to_tag], key], Some(value))?;
        }
        Ok(())
    }
}

/// Behind the last key of a state in a key group.
pub fn tag_end(group: u16, tag: u8) -> Vec<u8> {
    let [high, low] = group.to_be_bytes();
    match tag.checked_add(1) {
        Some(next) => vec![high, low, next],
        None => group.checked_add(1).map_or_else(Vec::new, |next| next.to_be_bytes().to_vec()),
    }
}

impl ValueConversion {
    fn convert(&self, values: &EncodedRows) -> Result<EncodedRows> {
        let codec = RowCodec::new(&self.to)?;
        let mut out = EncodedRows::new();
        // Values of one schema after another, in runs: there are few schemas, and seldom more than one.
        let mut first = 0;
        while first < values.len() {
            let number = RowCodec::schema_number(values.get(first))?;
            let mut end = first + 1;
            while end < values.len() && RowCodec::schema_number(values.get(end))? == number {
                end += 1;
            }
            let types = self
                .from
                .get(&number)
                .ok_or_else(|| Error::corrupted(format!("a value in the state has schema {number}, which is not described")))?;
            let old = RowCodec::new(types)?.with_schema_number(number).decode((first..end).map(|row| values.get(row)))?;
            let rows = end - first;
            let columns =
                self.columns.iter().zip(&self.to).map(|(origin, ty)| column(*origin, ty, &old, rows)).collect::<Result<Vec<_>>>()?;
            codec.encode_into(&columns, rows, &mut out)?;
            first = end;
        }
        Ok(out)
    }
}

fn column(origin: ColumnOrigin, ty: &DataType, old: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let failed = |e| Error::internal(format!("could not convert a state: {e}"));
    match origin {
        ColumnOrigin::Column(place) => {
            let values = old.get(place).ok_or_else(|| Error::internal("a state has fewer columns than its conversion"))?;
            if values.data_type() == ty {
                return Ok(values.clone());
            }
            arrow::compute::cast_with_options(values, ty, &CastOptions { safe: false, ..CastOptions::default() }).map_err(failed)
        }
        ColumnOrigin::Null => Ok(new_null_array(ty, rows)),
        ColumnOrigin::Zero => {
            let zeros: ArrayRef = Arc::new(arrow::array::Int64Array::from(vec![0; rows]));
            let zeros = arrow::compute::cast(&zeros, ty).map_err(failed)?;
            debug_assert_eq!(zeros.null_count(), 0);
            Ok(zeros)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::MemoryBackend;
    use crate::stream::KeyGroupRange;
    use arrow::array::{AsArray, Int32Array, Int64Array, StringArray};
    use arrow::datatypes::Int64Type;

    fn entry(group: u16, tag: u8, key: &str, value: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let [high, low] = group.to_be_bytes();
        ([&[high, low, tag], key.as_bytes()].concat(), value.to_vec())
    }

    fn encoded(types: &[DataType], columns: &[ArrayRef], number: u8) -> Vec<u8> {
        RowCodec::new(types).unwrap().with_schema_number(number).encode(columns).unwrap().get(0).to_vec()
    }

    #[test]
    fn columns_stay_are_widened_go_and_begin_empty() {
        let old = [DataType::Int32, DataType::Utf8];
        let value = |a: i32, b: &str| {
            let columns: [ArrayRef; 2] = [Arc::new(Int32Array::from(vec![a])), Arc::new(StringArray::from(vec![b]))];
            encoded(&old, &columns, 1)
        };
        // An older schema had the columns the other way round.
        let older = [DataType::Utf8, DataType::Int32];
        let columns: [ArrayRef; 2] = [Arc::new(StringArray::from(vec!["x"])), Arc::new(Int32Array::from(vec![9]))];
        let mut content = [
            entry(0, 0, "a", &value(1, "u")),
            entry(0, 0, "b", &value(-2, "v")),
            entry(0, 1, "a", b"as it is"),
            entry(0, 2, "a", b"not taken"),
            entry(3, 0, "c", &value(7, "w")),
            entry(9, 0, "d", &value(8, "other range")),
        ];
        content.sort();
        let mut source = MemoryBackend::new();
        let mut writes = Writes::new();
        content.iter().for_each(|(key, value)| writes.push(key, Some(value)).unwrap());
        source.write(&writes).unwrap();

        let values = ValueConversion {
            from: BTreeMap::from([(1, old.to_vec()), (2, older.to_vec())]),
            to: vec![DataType::Utf8, DataType::Int64, DataType::Int64, DataType::Utf8],
            columns: vec![ColumnOrigin::Null, ColumnOrigin::Column(0), ColumnOrigin::Zero, ColumnOrigin::Column(1)],
        };
        let conversion = Conversion {
            states: vec![
                StateConversion { from_tag: 0, to_tag: 0, values: Some(values.clone()) },
                StateConversion { from_tag: 1, to_tag: 5, values: None },
            ],
        };
        let mut target = MemoryBackend::new();
        conversion.run(source.snapshot().unwrap().as_ref(), KeyGroupRange { start: 0, end: 4 }, &mut target).unwrap();
        let mut found = Vec::new();
        target
            .scan(&[], &[], &mut |key, value| {
                found.push((key.to_vec(), value.to_vec()));
                Ok(true)
            })
            .unwrap();
        let expected = |a: i64, b: &str| {
            let null: Option<&str> = None;
            let columns: [ArrayRef; 4] = [
                Arc::new(StringArray::from(vec![null])),
                Arc::new(Int64Array::from(vec![a])),
                Arc::new(Int64Array::from(vec![0])),
                Arc::new(StringArray::from(vec![b])),
            ];
            encoded(&values.to, &columns, 1)
        };
        assert_eq!(
            found,
            [
                entry(0, 0, "a", &expected(1, "u")),
                entry(0, 0, "b", &expected(-2, "v")),
                entry(0, 5, "a", b"as it is"),
                entry(3, 0, "c", &expected(7, "w")),
            ]
        );
        let mut mixed = EncodedRows::new();
        mixed.push(&value(1, "u"));
        mixed.push(&encoded(&older, &columns, 2));
        let swapped = ValueConversion {
            columns: vec![ColumnOrigin::Column(0)],
            to: vec![DataType::Int64],
            from: BTreeMap::from([(1, vec![DataType::Int32, DataType::Utf8])]),
        };
        assert_eq!(swapped.convert(&mixed).unwrap_err().code().as_str(), "XX001");
        let both = ValueConversion { columns: vec![ColumnOrigin::Null], to: vec![DataType::Int64], from: values.from.clone() };
        let out = both.convert(&mixed).unwrap();
        let decoded = RowCodec::new(&both.to).unwrap().decode(out.iter()).unwrap();
        assert_eq!((out.len(), decoded[0].as_primitive::<Int64Type>().null_count()), (2, 2));
    }
}
