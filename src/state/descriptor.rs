//! What the keys and values of a state are: enough to read them without the operator that wrote them.
//!
//! A checkpoint's metadata holds the descriptors of each operator. They are what a restore compares with the operator as it is now, and what gives a
//! state's columns their names. A value says in its first byte which of [`StateDescriptor::schemas`] it has, so that a state may hold values of several
//! at a time: a change of schema is a new number, and converts when a value is read.

use std::collections::BTreeMap;

use arrow::datatypes::{DataType, Field, TimeUnit};
use serde::{Deserialize, Serialize};
use weir_catalog::{Error, Result, SqlState};

use super::{key_codec, row_codec};

/// A column of a state's keys or values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateColumn {
    pub name: String,
    /// The column's type as the codecs know it, e.g. `int64`, `decimal128(38,10)`, `timestamp_us`.
    #[serde(rename = "type")]
    pub type_name: String,
}

impl StateColumn {
    /// The column of `field`.
    pub fn of(field: &Field) -> StateColumn {
        StateColumn { name: field.name().clone(), type_name: type_name(field.data_type()) }
    }
}

/// One state of an operator: the keys under one state tag, and their values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateDescriptor {
    /// What it is, for people: `groups`, `counts of v`, `rows`.
    pub name: String,
    /// The byte behind the key group in each of its keys.
    pub tag: u8,
    /// The format of the key codec.
    pub key_format: u32,
    pub key: Vec<StateColumn>,
    /// The bits of the last key column are inverted: its greatest value comes first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub greatest_first: bool,
    /// The format of the row codec.
    pub value_format: u32,
    /// The columns of its values, by schema number.
    pub schemas: BTreeMap<u8, Vec<StateColumn>>,
}

impl StateDescriptor {
    /// A state in the present formats whose values all have one schema, the first.
    pub fn new<'a>(
        name: impl Into<String>,
        tag: u8,
        key: impl IntoIterator<Item = &'a Field>,
        value: impl IntoIterator<Item = &'a Field>,
    ) -> StateDescriptor {
        let (key, value): (Vec<&Field>, Vec<&Field>) = (key.into_iter().collect(), value.into_iter().collect());
        StateDescriptor {
            name: name.into(),
            tag,
            key_format: key_codec::format_of(key.iter().map(|field| field.data_type())),
            key: key.into_iter().map(StateColumn::of).collect(),
            greatest_first: false,
            value_format: key_codec::format_of(value.iter().map(|field| field.data_type())),
            schemas: BTreeMap::from([(row_codec::FIRST_SCHEMA_NUMBER, value.into_iter().map(StateColumn::of).collect())]),
        }
    }

    /// Whether what was stored as `stored` can be read as `present`, both of the operator `uid`. Names of columns may differ, nothing else.
    ///
    /// Errors: `0A000` where a newer version wrote it, `55000` where its columns are others.
    pub fn check(uid: &str, stored: &[StateDescriptor], present: &[StateDescriptor]) -> Result<()> {
        stored.iter().try_for_each(|state| StateDescriptor::check_formats(uid, state))?;
        let layouts = |states: &[StateDescriptor]| -> Vec<String> {
            let mut layouts: Vec<String> = states.iter().map(StateDescriptor::layout).collect();
            layouts.sort();
            layouts
        };
        let (was, is) = (layouts(stored), layouts(present));
        if was == is {
            return Ok(());
        }
        Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("the checkpointed state of operator \"{uid}\" has other columns than the operator now"),
        )
        .with_detail(format!("Checkpointed: {}. Now: {}.", was.join("; "), is.join("; ")))
        .with_hint("Drop the job and create it again."))
    }

    /// Errors with `0A000` where a newer version wrote `state`, of the operator `uid`.
    pub fn check_formats(uid: &str, state: &StateDescriptor) -> Result<()> {
        for (part, found, known) in [("keys", state.key_format, key_codec::FORMAT), ("values", state.value_format, row_codec::FORMAT)] {
            if found > known {
                return Err(Error::newer_format(
                    format_args!("the checkpointed state \"{}\" of operator \"{uid}\" ({part})", state.name),
                    found,
                    known,
                ));
            }
        }
        Ok(())
    }

    /// Everything that decides how its bytes are read.
    fn layout(&self) -> String {
        let types = |columns: &[StateColumn]| columns.iter().map(|column| column.type_name.as_str()).collect::<Vec<_>>().join(", ");
        let schemas: Vec<String> = self.schemas.iter().map(|(number, columns)| format!("{number}: ({})", types(columns))).collect();
        let order = if self.greatest_first { " descending" } else { "" };
        format!("tag {} key ({}){order} values {}", self.tag, types(&self.key), schemas.join(", "))
    }
}

/// What the parts of an aggregate's state hold, whatever columns are called: parts of two states with the same text are of the same rows alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateTexts {
    /// Of each value column of the groups its name and text.
    pub columns: Vec<(String, String)>,
    /// Of each map of counted values its state tag and text.
    pub maps: Vec<(u8, String)>,
}

impl StateColumn {
    /// Its type. Errors with `0A000` for a name that this weir does not know.
    pub fn data_type(&self) -> Result<DataType> {
        let whole = |(ty, rest): (DataType, &str)| rest.is_empty().then_some(ty);
        read_type(&self.type_name).and_then(whole).ok_or_else(|| {
            Error::unsupported(format!("column \"{}\" of a state has type {}, which this weir does not know", self.name, self.type_name))
        })
    }
}

/// The type whose name `text` begins with, and what is behind it. Types nest as deep as SQL lets them.
fn read_type(text: &str) -> Option<(DataType, &str)> {
    if let Some(rest) = text.strip_prefix("array(") {
        let (element, rest) = read_type(rest)?;
        return Some((DataType::new_list(element, true), rest.strip_prefix(')')?));
    }
    if let Some(mut rest) = text.strip_prefix("row(") {
        let mut fields = Vec::new();
        loop {
            // The name is a JSON string.
            let mut names = serde_json::Deserializer::from_str(rest).into_iter::<String>();
            let name = names.next()?.ok()?;
            let (ty, behind) = read_type(rest.get(names.byte_offset()..)?.strip_prefix(' ')?)?;
            fields.push(Field::new(name, ty, true));
            match behind.strip_prefix(", ") {
                Some(next) => rest = next,
                None => return Some((DataType::Struct(fields.into()), behind.strip_prefix(')')?)),
            }
        }
    }
    if let Some(rest) = text.strip_prefix("decimal128(") {
        let (digits, rest) = rest.split_once(')')?;
        let (precision, scale) = digits.split_once(',')?;
        return Some((DataType::Decimal128(precision.parse().ok()?, scale.parse().ok()?), rest));
    }
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    let ty = match &text[..end] {
        "boolean" => DataType::Boolean,
        "int32" => DataType::Int32,
        "int64" => DataType::Int64,
        "float64" => DataType::Float64,
        "text" => DataType::Utf8,
        "timestamp_us" => DataType::Timestamp(TimeUnit::Microsecond, None),
        _ => return None,
    };
    Some((ty, &text[end..]))
}

/// A type's name in a descriptor.
fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Boolean => "boolean".into(),
        DataType::Int32 => "int32".into(),
        DataType::Int64 => "int64".into(),
        DataType::Float64 => "float64".into(),
        DataType::Utf8 => "text".into(),
        DataType::Decimal128(precision, scale) => format!("decimal128({precision},{scale})"),
        DataType::Timestamp(TimeUnit::Microsecond, None) => "timestamp_us".into(),
        DataType::List(element) => format!("array({})", type_name(element.data_type())),
        DataType::Struct(fields) => {
            let name = |name: &str| serde_json::Value::from(name).to_string();
            let fields: Vec<String> =
                fields.iter().map(|field| format!("{} {}", name(field.name()), type_name(field.data_type()))).collect();
            format!("row({})", fields.join(", "))
        }
        other => other.to_string().to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(key: DataType, value: DataType) -> StateDescriptor {
        StateDescriptor::new("groups", 0, [&Field::new("k", key, true)], [&Field::new("v", value, true)])
    }

    #[test]
    fn what_is_described_comes_back() {
        let mut described = state(DataType::Decimal128(38, 10), DataType::Utf8);
        described.schemas.insert(2, vec![StateColumn { name: "w".into(), type_name: "int64".into() }]);
        let json = serde_json::to_string(&described).unwrap();
        assert_eq!(serde_json::from_str::<StateDescriptor>(&json).unwrap(), described);
        assert!(json.contains(r#""schemas":{"1":[{"name":"v","type":"text"}],"2":[{"name":"w","type":"int64"}]}"#), "{json}");
    }

    #[test]
    fn only_what_has_rows_or_arrays_needs_the_newer_format() {
        let array = DataType::new_list(DataType::Int64, true);
        let formats = |state: StateDescriptor| (state.key_format, state.value_format);
        assert_eq!(formats(state(DataType::Int64, DataType::Utf8)), (1, 1));
        assert_eq!(formats(state(DataType::Int64, array.clone())), (1, 2));
        assert_eq!(formats(state(array, DataType::Utf8)), (2, 1));
    }

    #[test]
    fn a_type_comes_back_from_its_name() {
        let timestamp = DataType::Timestamp(TimeUnit::Microsecond, None);
        let array = DataType::new_list(DataType::Decimal128(38, 10), true);
        let row = DataType::Struct(vec![Field::new("a \"(b, c)\" \n", array.clone(), true), Field::new("d", DataType::Int64, true)].into());
        for ty in [
            DataType::Boolean,
            DataType::Int32,
            DataType::Int64,
            DataType::Float64,
            DataType::Utf8,
            timestamp,
            DataType::Decimal128(12, 3),
            array,
            DataType::new_list(row.clone(), true),
            row,
        ] {
            assert_eq!(StateColumn::of(&Field::new("c", ty.clone(), true)).data_type().unwrap(), ty);
        }
        for unknown in ["decimal128(x)", "int64)", "array(int64", "array()", "row()", "row(a int64)", "row(\"a\" int64, )", "map(text)"] {
            let column = StateColumn { name: "c".into(), type_name: unknown.into() };
            assert_eq!(column.data_type().expect_err(unknown).code().as_str(), "0A000");
        }
    }

    #[test]
    fn only_what_is_read_alike_fits() {
        let present = [state(DataType::Int64, DataType::Utf8)];
        let mut renamed = present.clone();
        renamed[0].key[0].name = "other".into();
        StateDescriptor::check("u", &renamed, &present).unwrap();
        for other in [state(DataType::Int32, DataType::Utf8), state(DataType::Int64, DataType::Int64)] {
            let error = StateDescriptor::check("u", &[other], &present).unwrap_err();
            assert_eq!(error.code().as_str(), "55000");
            assert!(error.message().contains("\"u\""), "{error}");
        }
        assert!(StateDescriptor::check("u", &[], &present).is_err());
        let mut inverted = present.clone();
        inverted[0].greatest_first = true;
        assert!(StateDescriptor::check("u", &inverted, &present).is_err());
        let mut newer = present.clone();
        newer[0].value_format = row_codec::FORMAT + 1;
        let error = StateDescriptor::check("u", &newer, &present).unwrap_err();
        assert_eq!(error.code().as_str(), "0A000");
        assert!(error.message().contains("format 3, newer than this weir's 2"), "{error}");
    }
}
