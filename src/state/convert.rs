//! State that was written for one operator, brought to the layout that another reads: columns that stay are copied, or cast to a wider type, new ones
//! begin empty, and states change their tags.
//!
//! A key of a wider type has other bytes, and so another key group: each subtask reads all of them then, and keeps its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, new_null_array};
use arrow::compute::CastOptions;
use arrow::datatypes::DataType;
use weir_catalog::{Error, Result, SqlState};

use super::key_codec::STATE_PREFIX_BYTES;
use super::{EncodedRows, Entry, KeyCodec, RowCodec, StateBackend, StateSnapshot, Writes};
use crate::stream::KeyGroupRange;
use crate::stream::key_group::{key_group, key_hash};

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
    /// `None`: keys stay as they are.
    pub keys: Option<KeyConversion>,
    /// `None`: values stay as they are.
    pub values: Option<ValueConversion>,
}

/// How the keys of a state become those of another. Each type is as wide as its former one, or wider, so that their order stays within a key group; but for
/// whole rows with a column more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyConversion {
    pub from: Vec<DataType>,
    pub to: Vec<DataType>,
    /// How many of the columns are the operator's key, which decides the key group; the rest is one column of a map.
    pub own: usize,
    /// The bits of the map's column are inverted.
    pub greatest_first: bool,
    /// The keys are whole rows.
    pub rows: bool,
    /// Of whole rows, where each of the new columns comes from, where that is not the one at its place.
    pub columns: Option<Vec<ColumnOrigin>>,
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
    /// Whether entries change their key group: then [`Conversion::run`] is to be given all of them.
    pub fn moves_keys(&self) -> bool {
        self.states.iter().any(|state| state.keys.as_ref().is_some_and(KeyConversion::moves))
    }

    /// Brings what `from` has of the key groups in `range` into `to`, which is empty.
    pub fn run(&self, from: &dyn StateSnapshot, range: KeyGroupRange, to: &mut dyn StateBackend) -> Result<()> {
        let moves = self.moves_keys();
        let read = if moves { KeyGroupRange::ALL } else { range };
        for state in &self.states {
            for group in read.start..read.end {
                if moves { state.run_apart(from, group, range, to)? } else { state.run(from, group, to)? }
            }
        }
        Ok(())
    }
}

impl StateConversion {
    /// Brings over one key group, in which the order of keys stays.
    fn run(&self, from: &dyn StateSnapshot, group: u16, to: &mut dyn StateBackend) -> Result<()> {
        let (begin, end) = state_range(group, self.from_tag);
        let mut entries = from.iter(&begin, &end);
        to.write_all(&mut |writes| {
            let entries = entries.by_ref().take(CHUNK);
            let (Keys { keys, .. }, values) = self.convert(entries)?;
            for (key, value) in keys.iter().zip(values.iter()) {
                let [high, low] = group.to_be_bytes();
                writes.push_parts(&[&[high, low, self.to_tag], key], Some(value))?;
            }
            Ok(!writes.is_empty())
        })
    }

    /// As [`StateConversion::run`], where keys change their key group: those of `range` are kept.
    fn run_apart(&self, from: &dyn StateSnapshot, group: u16, range: KeyGroupRange, to: &mut dyn StateBackend) -> Result<()> {
        let (begin, end) = state_range(group, self.from_tag);
        let mut entries = from.iter(&begin, &end);
        loop {
            let (Keys { keys, own }, values) = self.convert(entries.by_ref().take(CHUNK))?;
            if keys.is_empty() {
                return Ok(());
            }
            let mut writes = Writes::new();
            for ((key, value), own) in keys.iter().zip(values.iter()).zip(own) {
                let group = key_group(key_hash(&key[..own]));
                if range.contains(group) {
                    let [high, low] = group.to_be_bytes();
                    writes.push_parts(&[&[high, low, self.to_tag], key], Some(value))?;
                }
            }
            writes.sort();
            to.write(&writes)?;
        }
    }

    /// The entries, without what stands before their keys, as they will be.
    fn convert(&self, entries: impl Iterator<Item = Result<Entry>>) -> Result<(Keys, EncodedRows)> {
        let (mut keys, mut values) = (EncodedRows::new(), EncodedRows::new());
        for entry in entries {
            let (key, value) = entry?;
            keys.push(key.get(STATE_PREFIX_BYTES..).ok_or_else(|| Error::corrupted("a key in the state is too short"))?);
            values.push(&value);
        }
        let keys = match &self.keys {
            Some(conversion) => conversion.convert(&keys)?,
            None => Keys { keys, own: Vec::new() },
        };
        let values = match &self.values {
            Some(conversion) => conversion.convert(&values)?,
            None => values,
        };
        Ok((keys, values))
    }
}

/// Keys, and of each that was converted how many of its bytes are the operator's key.
struct Keys {
    keys: EncodedRows,
    own: Vec<usize>,
}

impl KeyConversion {
    fn moves(&self) -> bool {
        self.columns.is_some() || self.from[..self.own] != self.to[..self.own]
    }

    fn codec(&self, types: &[DataType]) -> Result<KeyCodec> {
        if self.rows { KeyCodec::of_rows(types) } else { KeyCodec::new(types) }
    }

    fn convert(&self, keys: &EncodedRows) -> Result<Keys> {
        let widen = |columns: &[ArrayRef], to: &[DataType]| -> Result<Vec<ArrayRef>> {
            columns.iter().zip(to).map(|(column, ty)| widened(column, ty)).collect()
        };
        let encode = |columns: &[ArrayRef], types: &[DataType]| -> Result<EncodedRows> {
            let mut out = EncodedRows::new();
            let codec = self.codec(types)?;
            if columns.is_empty() {
                codec.encode_n(keys.len(), &mut out)?
            } else {
                codec.encode(columns, &mut out)?
            }
            Ok(out)
        };
        if let Some(columns) = &self.columns {
            let old = self.codec(&self.from)?.decode(keys.iter())?;
            let present =
                columns.iter().zip(&self.to).map(|(origin, ty)| column(*origin, ty, &old, keys.len())).collect::<Result<Vec<_>>>()?;
            let keys = encode(&present, &self.to)?;
            let own = keys.iter().map(<[u8]>::len).collect();
            return Ok(Keys { keys, own });
        }
        let (own, rests) = self.codec(&self.from[..self.own])?.decode_first(keys.iter())?;
        let own = encode(&widen(&own, &self.to[..self.own])?, &self.to[..self.own])?;
        let lengths = own.iter().map(<[u8]>::len).collect();
        if self.from.len() == self.own {
            return Ok(Keys { keys: own, own: lengths });
        }
        let turn = |rows: &mut EncodedRows| {
            if self.greatest_first {
                rows.bytes.iter_mut().for_each(|byte| *byte = !*byte);
            }
        };
        let mut last = EncodedRows::new();
        rests.iter().for_each(|rest| last.push(rest));
        turn(&mut last);
        let values = self.codec(&self.from[self.own..])?.decode(last.iter())?;
        let mut last = encode(&widen(&values, &self.to[self.own..])?, &self.to[self.own..])?;
        turn(&mut last);
        let mut out = EncodedRows::new();
        let mut key = Vec::new();
        for (own, last) in own.iter().zip(last.iter()) {
            key.clear();
            key.extend_from_slice(own);
            key.extend_from_slice(last);
            out.push(&key);
        }
        Ok(Keys { keys: out, own: lengths })
    }
}

/// Where the keys of a state in a key group begin and end.
pub fn state_range(group: u16, tag: u8) -> ([u8; STATE_PREFIX_BYTES], Vec<u8>) {
    let [high, low] = group.to_be_bytes();
    ([high, low, tag], tag_end(group, tag))
}

/// Behind the last key of a state in a key group.
fn tag_end(group: u16, tag: u8) -> Vec<u8> {
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

/// `values` as a type that has all of them.
fn widened(values: &ArrayRef, ty: &DataType) -> Result<ArrayRef> {
    if values.data_type() == ty {
        return Ok(values.clone());
    }
    arrow::compute::cast_with_options(values, ty, &CastOptions { safe: false, ..CastOptions::default() }).map_err(|e| match ty {
        DataType::Decimal128(..) => {
            Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, format!("a value that is kept does not fit into {ty}"))
                .with_detail(e.to_string())
                .with_hint("Give the operator another uid with /*+ uid('...') */, so that it begins anew.")
        }
        _ => Error::internal(format!("could not convert a state: {e}")),
    })
}

fn column(origin: ColumnOrigin, ty: &DataType, old: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let failed = |e| Error::internal(format!("could not convert a state: {e}"));
    match origin {
        ColumnOrigin::Column(place) => {
            let values = old.get(place).ok_or_else(|| Error::internal("a state has fewer columns than its conversion"))?;
            widened(values, ty)
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
                StateConversion { from_tag: 0, to_tag: 0, keys: None, values: Some(values.clone()) },
                StateConversion { from_tag: 1, to_tag: 5, keys: None, values: None },
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

    #[test]
    fn whole_rows_get_a_column_more_and_move_to_their_key_groups() {
        use crate::state::key_codec::append_state_key;
        let (from, to) = ([DataType::Int32, DataType::Utf8], [DataType::Utf8, DataType::Int64, DataType::Int64]);
        let columns = vec![ColumnOrigin::Column(1), ColumnOrigin::Null, ColumnOrigin::Column(0)];
        let entries = |wide: bool| {
            let mut content = Vec::new();
            for (number, text) in [(1, "a"), (2, ""), (-7, "b")] {
                let text: ArrayRef = Arc::new(StringArray::from(vec![text]));
                let columns: Vec<ArrayRef> = if wide {
                    vec![text, new_null_array(&DataType::Int64, 1), Arc::new(Int64Array::from(vec![i64::from(number)]))]
                } else {
                    vec![Arc::new(Int32Array::from(vec![number])), text]
                };
                let codec = KeyCodec::of_rows(if wide { to.as_slice() } else { from.as_slice() }).unwrap();
                let mut encoded = EncodedRows::new();
                codec.encode(&columns, &mut encoded).unwrap();
                let mut stored = Vec::new();
                append_state_key(&mut stored, 0, encoded.get(0));
                content.push((stored, vec![number as u8]));
            }
            content.sort();
            content
        };
        let mut source = MemoryBackend::new();
        let mut writes = Writes::new();
        entries(false).iter().for_each(|(key, value)| writes.push(key, Some(value)).unwrap());
        source.write(&writes).unwrap();
        let keys =
            KeyConversion { from: from.to_vec(), to: to.to_vec(), own: 3, greatest_first: false, rows: true, columns: Some(columns) };
        let conversion = Conversion { states: vec![StateConversion { from_tag: 0, to_tag: 0, keys: Some(keys), values: None }] };
        assert!(conversion.moves_keys());
        let mut target = MemoryBackend::new();
        conversion.run(source.snapshot().unwrap().as_ref(), KeyGroupRange::ALL, &mut target).unwrap();
        let mut found = Vec::new();
        target
            .scan(&[], &[], &mut |key, value| {
                found.push((key.to_vec(), value.to_vec()));
                Ok(true)
            })
            .unwrap();
        assert_eq!(found, entries(true));
    }

    #[test]
    fn wider_keys_move_to_their_key_groups_and_keep_their_order() {
        use crate::state::key_codec::append_state_key;
        // A map under the key (int, text), of ints, greatest first.
        let (from, to) =
            ([DataType::Int32, DataType::Utf8, DataType::Int32], [DataType::Int64, DataType::Utf8, DataType::Decimal128(20, 2)]);
        let entries = |types: &[DataType; 3], wide: bool| {
            let mut content = Vec::new();
            for (key, text, value) in [(1, "a", 7), (1, "a", -3), (-5, "b", 0), (900, "", 12)] {
                let int = |value: i32| -> ArrayRef { Arc::new(Int32Array::from(vec![value])) };
                let cast = |array: ArrayRef, ty: &DataType| arrow::compute::cast(&array, ty).unwrap();
                let own = KeyCodec::new(&types[..2]).unwrap();
                let text: ArrayRef = Arc::new(StringArray::from(vec![text]));
                let mut encoded = EncodedRows::new();
                own.encode(&[cast(int(key), &types[0]), text], &mut encoded).unwrap();
                let mut last = EncodedRows::new();
                KeyCodec::new(&types[2..]).unwrap().encode(&[cast(int(value), &types[2])], &mut last).unwrap();
                let mut stored = Vec::new();
                append_state_key(&mut stored, if wide { 4 } else { 2 }, encoded.get(0));
                stored.extend(last.get(0).iter().map(|byte| !byte));
                content.push((stored, vec![key as u8, value as u8]));
            }
            content.sort();
            content
        };
        let mut source = MemoryBackend::new();
        let mut writes = Writes::new();
        entries(&from, false).iter().for_each(|(key, value)| writes.push(key, Some(value)).unwrap());
        source.write(&writes).unwrap();
        let keys = KeyConversion { from: from.to_vec(), to: to.to_vec(), own: 2, greatest_first: true, rows: false, columns: None };
        let conversion = Conversion { states: vec![StateConversion { from_tag: 2, to_tag: 4, keys: Some(keys), values: None }] };
        assert!(conversion.moves_keys());
        let mut found = Vec::new();
        for (start, end) in [(0, 50), (50, 128)] {
            let mut target = MemoryBackend::new();
            let range = KeyGroupRange { start, end };
            conversion.run(source.snapshot().unwrap().as_ref(), range, &mut target).unwrap();
            target
                .scan(&[], &[], &mut |key, value| {
                    assert!(range.contains(u16::from_be_bytes([key[0], key[1]])));
                    found.push((key.to_vec(), value.to_vec()));
                    Ok(true)
                })
                .unwrap();
        }
        assert_eq!(found, entries(&to, true));
    }
}
