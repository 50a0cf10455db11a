//! The catalog's objects as PostgreSQL's system catalog numbers and names them.

use std::collections::HashMap;
use std::sync::Arc;

use weir_catalog::{Catalog, Column, JobKind, Object, ObjectId, SqlType};

/// OID of the schema `pg_catalog`, of `information_schema`, of `public`, of the one role and of the one database.
pub(super) const PG_CATALOG: i32 = 11;
pub(super) const INFORMATION_SCHEMA: i32 = 13_000;
pub(super) const PUBLIC: i32 = 2200;
pub(super) const OWNER: i32 = 10;
pub(super) const DATABASE: i32 = 5;
/// OIDs of access methods.
pub(super) const HEAP: i32 = 2;
pub(super) const BTREE: i32 = 403;
/// OID of the default collation.
pub(super) const DEFAULT_COLLATION: i32 = 100;

/// Objects that belong to a relation have its OID plus one of these; relations stay below the first.
const INDEX: i32 = 0x1000_0000;
const CONSTRAINT: i32 = 0x2000_0000;
const DEFAULT: i32 = 0x3000_0000;
const RULE: i32 = 0x5000_0000;

/// The OID of an object. Ids beyond 2^28 come round again.
pub(super) fn oid_of(id: ObjectId) -> i32 {
    (id % INDEX as u64) as i32
}

/// A relation that clients may see.
#[derive(Clone, Debug)]
pub(super) struct Relation {
    pub oid: i32,
    pub object: Arc<Object>,
    /// `r` table, with rows of its own or of a connector; `v` view; `m` materialized view.
    pub kind: char,
}

impl Relation {
    pub fn name(&self) -> &str {
        self.object.name()
    }
    pub fn columns(&self) -> &[Column] {
        self.object.columns()
    }
    /// Positions of the primary key's columns.
    pub fn primary_key(&self) -> Option<&[usize]> {
        match self.object.as_ref() {
            Object::StoredTable(table) => table.primary_key.as_deref(),
            _ => None,
        }
    }
    /// The query of a view.
    pub fn query(&self) -> Option<&str> {
        match self.object.as_ref() {
            Object::View(view) => Some(&view.query),
            Object::Job(job) => Some(&job.query),
            _ => None,
        }
    }
    pub fn index_oid(&self) -> i32 {
        self.oid + INDEX
    }
    pub fn constraint_oid(&self) -> i32 {
        self.oid + CONSTRAINT
    }
    pub fn default_oid(&self, column: usize) -> i32 {
        // One column's default is told from another's by adrelid and adnum; the OID only has to differ among tables of few columns.
        self.oid + DEFAULT + (column as i32 & 0xff) * 0x10_0000
    }
    pub fn rule_oid(&self) -> i32 {
        self.oid + RULE
    }
    /// The primary key's name.
    pub fn key_name(&self) -> String {
        format!("{}_pkey", self.name())
    }
    /// The primary key's columns, quoted where that is needed: `a, b`.
    pub fn key_columns(&self) -> String {
        let names: Vec<String> = self
            .primary_key()
            .unwrap_or_default()
            .iter()
            .filter_map(|at| self.columns().get(*at))
            .map(|column| quoted(&column.name))
            .collect();
        names.join(", ")
    }
}

/// The relations of a catalog. Sinks and jobs are none.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub relations: Vec<Relation>,
    by_oid: HashMap<i32, usize>,
}

impl Snapshot {
    pub fn new(catalog: &Catalog) -> Snapshot {
        let relations: Vec<Relation> = catalog
            .objects()
            .filter_map(|object| {
                let kind = match object.as_ref() {
                    Object::StoredTable(_) | Object::ConnectorTable(_) => 'r',
                    Object::View(_) => 'v',
                    Object::Job(job) => match job.kind {
                        JobKind::MaterializedView { .. } => 'm',
                        JobKind::Sink { .. } | JobKind::Insert { .. } => return None,
                    },
                };
                Some(Relation { oid: oid_of(object.id()), object: object.clone(), kind })
            })
            .collect();
        let by_oid = relations.iter().enumerate().map(|(at, relation)| (relation.oid, at)).collect();
        Snapshot { relations, by_oid }
    }

    /// The relation with this OID.
    pub fn relation(&self, oid: i64) -> Option<&Relation> {
        self.relations.get(*self.by_oid.get(&i32::try_from(oid).ok()?)?)
    }

    /// The relation whose primary key's index has this OID.
    pub fn index(&self, oid: i64) -> Option<&Relation> {
        self.relation(oid - i64::from(INDEX)).filter(|relation| relation.primary_key().is_some())
    }

    /// The relation whose primary key constraint has this OID.
    pub fn constraint(&self, oid: i64) -> Option<&Relation> {
        self.relation(oid - i64::from(CONSTRAINT)).filter(|relation| relation.primary_key().is_some())
    }

    /// The OID of the relation or index with this name in `public`.
    pub fn find(&self, name: &str) -> Option<i32> {
        self.relations.iter().find(|relation| relation.name() == name).map(|relation| relation.oid).or_else(|| {
            self.relations.iter().find(|relation| relation.primary_key().is_some() && relation.key_name() == name).map(Relation::index_oid)
        })
    }
}

/// A type's OID, type modifier, length in bytes and storage.
pub(super) struct WireType {
    pub oid: i32,
    pub modifier: i32,
    pub length: i16,
    pub by_value: bool,
    pub align: &'static str,
    pub storage: &'static str,
    pub collation: i32,
}

/// How PostgreSQL describes a column of type `ty`.
pub(super) fn wire_type(ty: &SqlType) -> WireType {
    let fixed = |oid, length, align| WireType { oid, modifier: -1, length, by_value: true, align, storage: "p", collation: 0 };
    let variable =
        |oid, modifier, align, storage, collation| WireType { oid, modifier, length: -1, by_value: false, align, storage, collation };
    match ty {
        SqlType::Boolean => fixed(16, 1, "c"),
        SqlType::Int => fixed(23, 4, "i"),
        SqlType::BigInt => fixed(20, 8, "d"),
        SqlType::Double => fixed(701, 8, "d"),
        // What an aggregate makes, or NUMERIC alone: PostgreSQL's has no modifier either.
        SqlType::Numeric { precision: 38, .. } => variable(1700, -1, "i", "m", 0),
        SqlType::Numeric { precision, scale } => {
            variable(1700, ((i32::from(*precision) << 16) | (i32::from(*scale) & 0x7ff)) + 4, "i", "m", 0)
        }
        SqlType::Text => variable(25, -1, "i", "x", DEFAULT_COLLATION),
        SqlType::Timestamp { precision: 6 } => fixed(1114, 8, "d"),
        SqlType::Timestamp { precision } => WireType { modifier: i32::from(*precision), ..fixed(1114, 8, "d") },
        SqlType::Row(_) => variable(2249, -1, "d", "x", 0),
        SqlType::Array(element) => {
            // Arrays of arrays have the type of arrays.
            let mut element = element.as_ref();
            while let SqlType::Array(inner) = element {
                element = inner;
            }
            let of = wire_type(element);
            let oid = match of.oid {
                16 => 1000,
                23 => 1007,
                20 => 1016,
                701 => 1022,
                1700 => 1231,
                25 => 1009,
                1114 => 1115,
                _ => 2287,
            };
            variable(oid, of.modifier, if of.align == "d" { "d" } else { "i" }, "x", of.collation)
        }
    }
}

/// A name as it must be written in SQL.
pub(in crate::server) fn quoted(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if plain { name.to_string() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}
