//! The relations of `information_schema` that clients ask for.

use std::sync::Arc;

use datafusion::catalog::TableProvider;
use weir_catalog::{Column, Result, SqlType};

use super::DATABASE_NAME;
use super::relation::{Cell, Columns, Kind, table};
use super::snapshot::{Relation, Snapshot};
use Kind::{Int, Text};

const SCHEMATA: Columns = &[
    ("catalog_name", Text),
    ("schema_name", Text),
    ("schema_owner", Text),
    ("default_character_set_catalog", Text),
    ("default_character_set_schema", Text),
    ("default_character_set_name", Text),
    ("sql_path", Text),
];
const TABLES: Columns = &[
    ("table_catalog", Text),
    ("table_schema", Text),
    ("table_name", Text),
    ("table_type", Text),
    ("self_referencing_column_name", Text),
    ("reference_generation", Text),
    ("user_defined_type_catalog", Text),
    ("user_defined_type_schema", Text),
    ("user_defined_type_name", Text),
    ("is_insertable_into", Text),
    ("is_typed", Text),
    ("commit_action", Text),
];
const COLUMNS: Columns = &[
    ("table_catalog", Text),
    ("table_schema", Text),
    ("table_name", Text),
    ("column_name", Text),
    ("ordinal_position", Int),
    ("column_default", Text),
    ("is_nullable", Text),
    ("data_type", Text),
    ("character_maximum_length", Int),
    ("character_octet_length", Int),
    ("numeric_precision", Int),
    ("numeric_precision_radix", Int),
    ("numeric_scale", Int),
    ("datetime_precision", Int),
    ("interval_type", Text),
    ("collation_name", Text),
    ("domain_name", Text),
    ("udt_catalog", Text),
    ("udt_schema", Text),
    ("udt_name", Text),
    ("is_identity", Text),
    ("identity_generation", Text),
    ("is_generated", Text),
    ("generation_expression", Text),
    ("is_updatable", Text),
];
const VIEWS: Columns = &[
    ("table_catalog", Text),
    ("table_schema", Text),
    ("table_name", Text),
    ("view_definition", Text),
    ("check_option", Text),
    ("is_updatable", Text),
    ("is_insertable_into", Text),
];
const TABLE_CONSTRAINTS: Columns = &[
    ("constraint_catalog", Text),
    ("constraint_schema", Text),
    ("constraint_name", Text),
    ("table_catalog", Text),
    ("table_schema", Text),
    ("table_name", Text),
    ("constraint_type", Text),
    ("is_deferrable", Text),
    ("initially_deferred", Text),
    ("enforced", Text),
];
const KEY_COLUMN_USAGE: Columns = &[
    ("constraint_catalog", Text),
    ("constraint_schema", Text),
    ("constraint_name", Text),
    ("table_catalog", Text),
    ("table_schema", Text),
    ("table_name", Text),
    ("column_name", Text),
    ("ordinal_position", Int),
    ("position_in_unique_constraint", Int),
];
const REFERENTIAL_CONSTRAINTS: Columns = &[
    ("constraint_catalog", Text),
    ("constraint_schema", Text),
    ("constraint_name", Text),
    ("unique_constraint_catalog", Text),
    ("unique_constraint_schema", Text),
    ("unique_constraint_name", Text),
    ("match_option", Text),
    ("update_rule", Text),
    ("delete_rule", Text),
];
const SEQUENCES: Columns = &[("sequence_catalog", Text), ("sequence_schema", Text), ("sequence_name", Text), ("data_type", Text)];
const ROUTINES: Columns =
    &[("routine_catalog", Text), ("routine_schema", Text), ("routine_name", Text), ("routine_type", Text), ("data_type", Text)];

const NAMES: &[&str] = &[
    "schemata",
    "tables",
    "columns",
    "views",
    "table_constraints",
    "key_column_usage",
    "referential_constraints",
    "sequences",
    "routines",
];

/// Whether `name` is a relation of `information_schema`.
pub(super) fn exists(name: &str) -> bool {
    NAMES.contains(&name)
}

/// The relation with this name; `None` if there is none.
pub(super) fn relation(name: &str, snapshot: &Snapshot, owner: &str) -> Result<Option<Arc<dyn TableProvider>>> {
    let relations = &snapshot.relations;
    let filled = match name {
        "schemata" => {
            let row = |name: &str| {
                let mut row = vec![Cell::Null; SCHEMATA.len()];
                row[..3].clone_from_slice(&[DATABASE_NAME.into(), name.into(), owner.into()]);
                row
            };
            table(SCHEMATA, &[row("pg_catalog"), row("information_schema"), row("public")])?
        }
        // As PostgreSQL has it, materialized views are not among these.
        "tables" => table(TABLES, &listed(relations).map(table_row).collect::<Vec<_>>())?,
        "columns" => table(
            COLUMNS,
            &listed(relations)
                .flat_map(|relation| relation.columns().iter().enumerate().map(move |(at, column)| column_row(relation, at, column)))
                .collect::<Vec<_>>(),
        )?,
        "views" => table(
            VIEWS,
            &relations
                .iter()
                .filter(|relation| relation.kind == 'v')
                .map(|relation| {
                    let mut row = named(relation);
                    row.extend([relation.query().into(), "NONE".into(), "NO".into(), "NO".into()]);
                    row
                })
                .collect::<Vec<_>>(),
        )?,
        "table_constraints" => table(
            TABLE_CONSTRAINTS,
            &keyed(relations)
                .map(|(relation, _)| {
                    let mut row: Vec<Cell> = vec![DATABASE_NAME.into(), "public".into(), relation.key_name().into()];
                    row.extend(named(relation));
                    row.extend(["PRIMARY KEY".into(), "NO".into(), "NO".into(), "YES".into()]);
                    row
                })
                .collect::<Vec<_>>(),
        )?,
        "key_column_usage" => table(
            KEY_COLUMN_USAGE,
            &keyed(relations)
                .flat_map(|(relation, key)| {
                    key.iter().enumerate().filter_map(move |(position, at)| {
                        let mut row: Vec<Cell> = vec![DATABASE_NAME.into(), "public".into(), relation.key_name().into()];
                        row.extend(named(relation));
                        row.extend([relation.columns().get(*at)?.name.as_str().into(), ordinal(position), Cell::Null]);
                        Some(row)
                    })
                })
                .collect::<Vec<_>>(),
        )?,
        "referential_constraints" => table(REFERENTIAL_CONSTRAINTS, &[])?,
        "sequences" => table(SEQUENCES, &[])?,
        "routines" => table(ROUTINES, &[])?,
        _ => return Ok(None),
    };
    Ok(Some(Arc::new(filled)))
}

fn listed(relations: &[Relation]) -> impl Iterator<Item = &Relation> {
    relations.iter().filter(|relation| relation.kind != 'm')
}

fn keyed(relations: &[Relation]) -> impl Iterator<Item = (&Relation, &[usize])> {
    relations.iter().filter_map(|relation| Some((relation, relation.primary_key()?)))
}

fn named(relation: &Relation) -> Vec<Cell> {
    vec![DATABASE_NAME.into(), "public".into(), relation.name().into()]
}

fn ordinal(at: usize) -> Cell {
    i32::try_from(at + 1).ok().into()
}

fn table_row(relation: &Relation) -> Vec<Cell> {
    let (kind, insertable) = if relation.kind == 'v' { ("VIEW", "NO") } else { ("BASE TABLE", "YES") };
    let mut row = named(relation);
    row.push(kind.into());
    row.extend(vec![Cell::Null; 5]);
    row.extend([insertable.into(), "NO".into(), Cell::Null]);
    row
}

/// PostgreSQL's own name of the type of arrays of `element`.
fn array_name(element: &SqlType) -> &'static str {
    match element {
        SqlType::Boolean => "_bool",
        SqlType::Int => "_int4",
        SqlType::BigInt => "_int8",
        SqlType::Double => "_float8",
        SqlType::Numeric { .. } => "_numeric",
        SqlType::Text => "_text",
        SqlType::Timestamp { .. } => "_timestamp",
        SqlType::Row(_) => "_record",
        SqlType::Array(inner) => array_name(inner),
    }
}

fn column_row(relation: &Relation, at: usize, column: &Column) -> Vec<Cell> {
    let (type_name, udt) = match &column.ty {
        SqlType::Boolean => ("boolean", "bool"),
        SqlType::Int => ("integer", "int4"),
        SqlType::BigInt => ("bigint", "int8"),
        SqlType::Double => ("double precision", "float8"),
        SqlType::Numeric { .. } => ("numeric", "numeric"),
        SqlType::Text => ("text", "text"),
        SqlType::Timestamp { .. } => ("timestamp without time zone", "timestamp"),
        SqlType::Row(_) => ("record", "record"),
        SqlType::Array(element) => ("ARRAY", array_name(element)),
    };
    let (precision, radix, scale): (Option<i32>, Option<i32>, Option<i32>) = match &column.ty {
        SqlType::Int => (Some(32), Some(2), Some(0)),
        SqlType::BigInt => (Some(64), Some(2), Some(0)),
        SqlType::Double => (Some(53), Some(2), None),
        SqlType::Numeric { precision, scale } => (Some(i32::from(*precision)), Some(10), Some(i32::from(*scale))),
        _ => (None, None, None),
    };
    let datetime = match &column.ty {
        SqlType::Timestamp { precision } => Some(i32::from(*precision)),
        _ => None,
    };
    let updatable = if relation.kind == 'v' { "NO" } else { "YES" };
    let mut row = named(relation);
    row.extend([
        column.name.as_str().into(),
        ordinal(at),
        column.default.as_deref().into(),
        if column.nullable { "YES" } else { "NO" }.into(),
        type_name.into(),
        Cell::Null,
        if column.ty == SqlType::Text { Some(1_073_741_824) } else { None }.into(),
        precision.into(),
        radix.into(),
        scale.into(),
        datetime.into(),
        Cell::Null,
        Cell::Null,
        Cell::Null,
        DATABASE_NAME.into(),
        "pg_catalog".into(),
        udt.into(),
        "NO".into(),
        Cell::Null,
        "NEVER".into(),
        Cell::Null,
        updatable.into(),
    ]);
    row
}
