//! A relation of the system catalog in memory: its columns, and rows that become one Arrow batch.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanBuilder, Float32Builder, Int16Builder, Int32Builder, Int64Builder, ListBuilder, RecordBatch, RecordBatchOptions,
    StringBuilder,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::datasource::MemTable;
use weir_catalog::{Error, Result};

use crate::operators::error::{from_arrow, from_datafusion};

/// A column's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bool,
    /// `int2`
    Short,
    /// `int4`, `oid` and the OID alias types.
    Int,
    /// `int8`
    Long,
    /// `float4`
    Float,
    /// `text`, `name`, `"char"` and what clients only show.
    Text,
    /// `int2[]`, `int2vector`
    Shorts,
    /// `text[]`, `aclitem[]`
    Texts,
}

impl Kind {
    fn data_type(self) -> DataType {
        let list = |item: DataType| DataType::List(Arc::new(Field::new_list_field(item, true)));
        match self {
            Kind::Bool => DataType::Boolean,
            Kind::Short => DataType::Int16,
            Kind::Int => DataType::Int32,
            Kind::Long => DataType::Int64,
            Kind::Float => DataType::Float32,
            Kind::Text => DataType::Utf8,
            Kind::Shorts => list(DataType::Int16),
            Kind::Texts => list(DataType::Utf8),
        }
    }
}

/// A value of any of the kinds.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Null,
    Bool(bool),
    Short(i16),
    Int(i32),
    Long(i64),
    Float(f32),
    Text(String),
    Shorts(Vec<i16>),
}

impl From<bool> for Cell {
    fn from(value: bool) -> Cell {
        Cell::Bool(value)
    }
}
impl From<i16> for Cell {
    fn from(value: i16) -> Cell {
        Cell::Short(value)
    }
}
impl From<i32> for Cell {
    fn from(value: i32) -> Cell {
        Cell::Int(value)
    }
}
impl From<i64> for Cell {
    fn from(value: i64) -> Cell {
        Cell::Long(value)
    }
}
impl From<f32> for Cell {
    fn from(value: f32) -> Cell {
        Cell::Float(value)
    }
}
impl From<&str> for Cell {
    fn from(value: &str) -> Cell {
        Cell::Text(value.to_string())
    }
}
impl From<String> for Cell {
    fn from(value: String) -> Cell {
        Cell::Text(value)
    }
}
impl From<Vec<i16>> for Cell {
    fn from(value: Vec<i16>) -> Cell {
        Cell::Shorts(value)
    }
}
impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Cell {
        value.map_or(Cell::Null, Into::into)
    }
}

/// Names and kinds of a relation's columns.
pub(super) type Columns = &'static [(&'static str, Kind)];

/// The Arrow schema of `columns`. Every column may hold NULL: outer joins put it there.
pub(super) fn schema(columns: Columns) -> SchemaRef {
    Arc::new(Schema::new(columns.iter().map(|(name, kind)| Field::new(*name, kind.data_type(), true)).collect::<Vec<_>>()))
}

/// A table of `rows`. `XX000` where a row does not fit the columns.
pub(super) fn table(columns: Columns, rows: &[Vec<Cell>]) -> Result<MemTable> {
    let schema = schema(columns);
    if let Some(row) = rows.iter().find(|row| row.len() != columns.len()) {
        return Err(Error::internal(format!("a catalog row has {} values for {} columns", row.len(), columns.len())));
    }
    let arrays = columns.iter().enumerate().map(|(at, (name, kind))| array(name, *kind, rows, at)).collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    let batch = RecordBatch::try_new_with_options(schema.clone(), arrays, &options).map_err(from_arrow)?;
    MemTable::try_new(schema, vec![vec![batch]]).map_err(from_datafusion)
}

fn array(name: &str, kind: Kind, rows: &[Vec<Cell>], at: usize) -> Result<ArrayRef> {
    macro_rules! plain {
        ($builder:ty, $variant:ident) => {{
            let mut builder = <$builder>::new();
            for row in rows {
                match &row[at] {
                    Cell::$variant(value) => builder.append_value(value.clone()),
                    Cell::Null => builder.append_null(),
                    other => return Err(misfit(name, kind, other)),
                }
            }
            Ok(Arc::new(builder.finish()))
        }};
    }
    match kind {
        Kind::Bool => plain!(BooleanBuilder, Bool),
        Kind::Short => plain!(Int16Builder, Short),
        Kind::Int => plain!(Int32Builder, Int),
        Kind::Long => plain!(Int64Builder, Long),
        Kind::Float => plain!(Float32Builder, Float),
        Kind::Text => plain!(StringBuilder, Text),
        Kind::Shorts => {
            let mut builder = ListBuilder::new(Int16Builder::new());
            for row in rows {
                match &row[at] {
                    Cell::Shorts(values) => builder.append_value(values.iter().map(|value| Some(*value))),
                    Cell::Null => builder.append_null(),
                    other => return Err(misfit(name, kind, other)),
                }
            }
            Ok(Arc::new(builder.finish()))
        }
        // Nothing in weir has values of these: privileges and options.
        Kind::Texts => match rows.iter().map(|row| &row[at]).find(|cell| **cell != Cell::Null) {
            None => Ok(arrow::array::new_null_array(&kind.data_type(), rows.len())),
            Some(other) => Err(misfit(name, kind, other)),
        },
    }
}

fn misfit(name: &str, kind: Kind, cell: &Cell) -> Error {
    Error::internal(format!("catalog column \"{name}\" of kind {kind:?} cannot hold {cell:?}"))
}
