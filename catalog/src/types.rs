//! SQL types, and how each is held in Arrow. This mapping is fixed: durable state depends on it.

use std::fmt;

use arrow::datatypes::{DataType, Field, Fields, TimeUnit};
use serde::{Deserialize, Serialize};

/// A column's SQL type.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SqlType {
    /// `BOOLEAN`
    Boolean,
    /// `INT`, 32 bits.
    Int,
    /// `BIGINT`, 64 bits.
    BigInt,
    /// `DOUBLE PRECISION`
    Double,
    /// `NUMERIC(precision, scale)`, up to 38 digits. `NUMERIC` alone is `NUMERIC(38, 10)`.
    Numeric { precision: u8, scale: i8 },
    /// `TEXT`, compared by bytes.
    Text,
    /// `TIMESTAMP(precision)` without time zone: microseconds, rounded to 0 to 6 digits of a second.
    Timestamp { precision: u8 },
    /// `ROW<name type, ...>`. Where a row is NULL, so is each of its fields: whatever makes rows sees to that, and readers of fields rely on it.
    Row(Vec<(String, SqlType)>),
    /// `type[]` or `ARRAY<type>`. An array of arrays may have elements of different lengths.
    Array(Box<SqlType>),
}

impl SqlType {
    /// `NUMERIC` without precision and scale.
    pub const NUMERIC: SqlType = SqlType::Numeric { precision: 38, scale: 10 };
    /// `TIMESTAMP` without precision.
    pub const TIMESTAMP: SqlType = SqlType::Timestamp { precision: 6 };

    /// The Arrow type that holds it, everywhere and in durable bytes.
    pub fn to_arrow(&self) -> DataType {
        match self {
            SqlType::Boolean => DataType::Boolean,
            SqlType::Int => DataType::Int32,
            SqlType::BigInt => DataType::Int64,
            SqlType::Double => DataType::Float64,
            SqlType::Numeric { precision, scale } => DataType::Decimal128(*precision, *scale),
            SqlType::Text => DataType::Utf8,
            SqlType::Timestamp { .. } => DataType::Timestamp(TimeUnit::Microsecond, None),
            SqlType::Row(fields) => {
                DataType::Struct(fields.iter().map(|(name, ty)| Field::new(name, ty.to_arrow(), true)).collect::<Fields>())
            }
            SqlType::Array(element) => DataType::new_list(element.to_arrow(), true),
        }
    }

    /// Whether it is a ROW or an array.
    pub fn is_nested(&self) -> bool {
        matches!(self, SqlType::Row(_) | SqlType::Array(_))
    }

    /// Whether it is of a type for which `test` holds, or has such a type inside.
    pub fn any(&self, test: &impl Fn(&SqlType) -> bool) -> bool {
        test(self)
            || match self {
                SqlType::Row(fields) => fields.iter().any(|(_, ty)| ty.any(test)),
                SqlType::Array(element) => element.any(test),
                _ => false,
            }
    }

    /// The SQL type of a result column that Arrow holds as `data_type`; `None` if weir has no such type.
    ///
    /// String types that DataFusion's functions return (views, large strings) are `TEXT`; `TIMESTAMP` comes back with all six digits.
    pub fn from_arrow(data_type: &DataType) -> Option<SqlType> {
        Some(match data_type {
            DataType::Boolean => SqlType::Boolean,
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::UInt8 | DataType::UInt16 => SqlType::Int,
            DataType::Int64 | DataType::UInt32 => SqlType::BigInt,
            DataType::Float32 | DataType::Float64 => SqlType::Double,
            DataType::Decimal128(precision, scale) => SqlType::Numeric { precision: *precision, scale: *scale },
            DataType::UInt64 => SqlType::Numeric { precision: 20, scale: 0 },
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null => SqlType::Text,
            DataType::Timestamp(_, None) => SqlType::TIMESTAMP,
            DataType::Struct(fields) => SqlType::Row(
                fields.iter().map(|field| Some((field.name().clone(), SqlType::from_arrow(field.data_type())?))).collect::<Option<_>>()?,
            ),
            DataType::List(element) => SqlType::Array(Box::new(SqlType::from_arrow(element.data_type())?)),
            _ => return None,
        })
    }
}

impl fmt::Display for SqlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SqlType::Boolean => f.write_str("boolean"),
            SqlType::Int => f.write_str("integer"),
            SqlType::BigInt => f.write_str("bigint"),
            SqlType::Double => f.write_str("double precision"),
            SqlType::Numeric { precision, scale } => write!(f, "numeric({precision},{scale})"),
            SqlType::Text => f.write_str("text"),
            SqlType::Timestamp { precision: 6 } => f.write_str("timestamp without time zone"),
            SqlType::Timestamp { precision } => write!(f, "timestamp({precision}) without time zone"),
            SqlType::Row(fields) => {
                f.write_str("row<")?;
                for (i, (name, ty)) in fields.iter().enumerate() {
                    let separator = if i == 0 { "" } else { ", " };
                    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
                        && name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_');
                    if plain {
                        write!(f, "{separator}{name} {ty}")?;
                    } else {
                        write!(f, "{separator}\"{}\" {ty}", name.replace('"', "\"\""))?;
                    }
                }
                f.write_str(">")
            }
            SqlType::Array(element) => write!(f, "{element}[]"),
        }
    }
}
