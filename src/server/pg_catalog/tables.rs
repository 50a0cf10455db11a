//! The relations of `pg_catalog`.
//!
//! Those about what users make are filled from the catalog; those about types, functions and operators are PostgreSQL's own content, which
//! the crate `datafusion-pg-catalog` carries; those about facilities that weir does not have are empty.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use datafusion_pg_catalog::pg_catalog::{ArrowTable, PgCatalogStaticTables};
use weir_catalog::Result;

use super::relation::{Cell, Columns, Kind, table};
use super::snapshot::{BTREE, DATABASE, HEAP, INFORMATION_SCHEMA, OWNER, PG_CATALOG, PUBLIC, Relation, Snapshot, wire_type};
use super::{DATABASE_NAME, SessionFacts};
use crate::operators::error::{from_arrow, from_datafusion};
use Kind::{Bool, Float, Int, Long, Short, Shorts, Text, Texts};

const PG_CLASS: Columns = &[
    ("oid", Int),
    ("relname", Text),
    ("relnamespace", Int),
    ("reltype", Int),
    ("reloftype", Int),
    ("relowner", Int),
    ("relam", Int),
    ("relfilenode", Int),
    ("reltablespace", Int),
    ("relpages", Int),
    ("reltuples", Float),
    ("relallvisible", Int),
    ("reltoastrelid", Int),
    ("relhasindex", Bool),
    ("relisshared", Bool),
    ("relpersistence", Text),
    ("relkind", Text),
    ("relnatts", Short),
    ("relchecks", Short),
    ("relhasrules", Bool),
    ("relhastriggers", Bool),
    ("relhassubclass", Bool),
    ("relrowsecurity", Bool),
    ("relforcerowsecurity", Bool),
    ("relispopulated", Bool),
    ("relreplident", Text),
    ("relispartition", Bool),
    ("relrewrite", Int),
    ("relfrozenxid", Long),
    ("relminmxid", Long),
    ("relacl", Texts),
    ("reloptions", Texts),
    ("relpartbound", Text),
    ("tableoid", Int),
];
const PG_ATTRIBUTE: Columns = &[
    ("attrelid", Int),
    ("attname", Text),
    ("atttypid", Int),
    ("attstattarget", Int),
    ("attlen", Short),
    ("attnum", Short),
    ("attndims", Int),
    ("attcacheoff", Int),
    ("atttypmod", Int),
    ("attbyval", Bool),
    ("attalign", Text),
    ("attstorage", Text),
    ("attcompression", Text),
    ("attnotnull", Bool),
    ("atthasdef", Bool),
    ("atthasmissing", Bool),
    ("attidentity", Text),
    ("attgenerated", Text),
    ("attisdropped", Bool),
    ("attislocal", Bool),
    ("attinhcount", Int),
    ("attcollation", Int),
    ("attacl", Texts),
    ("attoptions", Texts),
    ("attfdwoptions", Texts),
    ("attmissingval", Text),
];
const PG_ATTRDEF: Columns = &[("oid", Int), ("adrelid", Int), ("adnum", Short), ("adbin", Text)];
const PG_INDEX: Columns = &[
    ("indexrelid", Int),
    ("indrelid", Int),
    ("indnatts", Short),
    ("indnkeyatts", Short),
    ("indisunique", Bool),
    ("indnullsnotdistinct", Bool),
    ("indisprimary", Bool),
    ("indisexclusion", Bool),
    ("indimmediate", Bool),
    ("indisclustered", Bool),
    ("indisvalid", Bool),
    ("indcheckxmin", Bool),
    ("indisready", Bool),
    ("indislive", Bool),
    ("indisreplident", Bool),
    ("indkey", Shorts),
    ("indoption", Shorts),
    ("indexprs", Text),
    ("indpred", Text),
];
const PG_CONSTRAINT: Columns = &[
    ("oid", Int),
    ("conname", Text),
    ("connamespace", Int),
    ("contype", Text),
    ("condeferrable", Bool),
    ("condeferred", Bool),
    ("convalidated", Bool),
    ("conrelid", Int),
    ("contypid", Int),
    ("conindid", Int),
    ("conparentid", Int),
    ("confrelid", Int),
    ("confupdtype", Text),
    ("confdeltype", Text),
    ("confmatchtype", Text),
    ("conislocal", Bool),
    ("coninhcount", Int),
    ("connoinherit", Bool),
    ("conkey", Shorts),
    ("confkey", Shorts),
    ("conbin", Text),
    ("tableoid", Int),
];
const PG_NAMESPACE: Columns = &[("oid", Int), ("nspname", Text), ("nspowner", Int), ("nspacl", Texts)];
const PG_DATABASE: Columns = &[
    ("oid", Int),
    ("datname", Text),
    ("datdba", Int),
    ("encoding", Int),
    ("datlocprovider", Text),
    ("datistemplate", Bool),
    ("datallowconn", Bool),
    ("datconnlimit", Int),
    ("datfrozenxid", Long),
    ("datminmxid", Long),
    ("dattablespace", Int),
    ("datcollate", Text),
    ("datctype", Text),
    ("daticulocale", Text),
    ("datcollversion", Text),
    ("datacl", Texts),
];
const PG_ROLES: Columns = &[
    ("rolname", Text),
    ("rolsuper", Bool),
    ("rolinherit", Bool),
    ("rolcreaterole", Bool),
    ("rolcreatedb", Bool),
    ("rolcanlogin", Bool),
    ("rolreplication", Bool),
    ("rolconnlimit", Int),
    ("rolpassword", Text),
    ("rolvaliduntil", Text),
    ("rolbypassrls", Bool),
    ("rolconfig", Texts),
    ("oid", Int),
];
const PG_USER: Columns = &[
    ("usename", Text),
    ("usesysid", Int),
    ("usecreatedb", Bool),
    ("usesuper", Bool),
    ("userepl", Bool),
    ("usebypassrls", Bool),
    ("passwd", Text),
    ("valuntil", Text),
    ("useconfig", Texts),
];
const PG_TABLESPACE: Columns = &[("oid", Int), ("spcname", Text), ("spcowner", Int), ("spcacl", Texts), ("spcoptions", Texts)];
const PG_AM: Columns = &[("oid", Int), ("amname", Text), ("amhandler", Text), ("amtype", Text)];
const PG_REWRITE: Columns = &[
    ("oid", Int),
    ("rulename", Text),
    ("ev_class", Int),
    ("ev_type", Text),
    ("ev_enabled", Text),
    ("is_instead", Bool),
    ("tableoid", Int),
];
const PG_TABLES: Columns = &[
    ("schemaname", Text),
    ("tablename", Text),
    ("tableowner", Text),
    ("tablespace", Text),
    ("hasindexes", Bool),
    ("hasrules", Bool),
    ("hastriggers", Bool),
    ("rowsecurity", Bool),
];
const PG_VIEWS: Columns = &[("schemaname", Text), ("viewname", Text), ("viewowner", Text), ("definition", Text)];
const PG_MATVIEWS: Columns = &[
    ("schemaname", Text),
    ("matviewname", Text),
    ("matviewowner", Text),
    ("tablespace", Text),
    ("hasindexes", Bool),
    ("ispopulated", Bool),
    ("definition", Text),
];
const PG_INDEXES: Columns = &[("schemaname", Text), ("tablename", Text), ("indexname", Text), ("tablespace", Text), ("indexdef", Text)];
const PG_SETTINGS: Columns = &[
    ("name", Text),
    ("setting", Text),
    ("unit", Text),
    ("category", Text),
    ("short_desc", Text),
    ("extra_desc", Text),
    ("context", Text),
    ("vartype", Text),
    ("source", Text),
    ("min_val", Text),
    ("max_val", Text),
    ("enumvals", Texts),
    ("boot_val", Text),
    ("reset_val", Text),
    ("sourcefile", Text),
    ("sourceline", Int),
    ("pending_restart", Bool),
];

/// Relations that [`Relations::table`] fills, with the OID that PostgreSQL gives them, or one of our own where it has no fixed one.
const FILLED: &[(&str, i32)] = &[
    ("pg_class", 1259),
    ("pg_attribute", 1249),
    ("pg_attrdef", 2604),
    ("pg_index", 2610),
    ("pg_constraint", 2606),
    ("pg_namespace", 2615),
    ("pg_database", 1262),
    ("pg_roles", 12_001),
    ("pg_authid", 1260),
    ("pg_user", 12_002),
    ("pg_tablespace", 1213),
    ("pg_am", 2601),
    ("pg_rewrite", 2618),
    ("pg_tables", 12_003),
    ("pg_views", 12_004),
    ("pg_matviews", 12_005),
    ("pg_indexes", 12_006),
    ("pg_settings", 12_007),
];

/// Relations with PostgreSQL's own content.
const BUILT_IN: &[(&str, i32)] = &[
    ("pg_aggregate", 2600),
    ("pg_amop", 2602),
    ("pg_amproc", 2603),
    ("pg_cast", 2605),
    ("pg_collation", 3456),
    ("pg_conversion", 2607),
    ("pg_language", 2612),
    ("pg_opclass", 2616),
    ("pg_operator", 2617),
    ("pg_opfamily", 2753),
    ("pg_proc", 1255),
    ("pg_range", 3541),
    ("pg_ts_config", 3602),
    ("pg_ts_dict", 3600),
    ("pg_ts_parser", 3601),
    ("pg_ts_template", 3764),
    ("pg_type", 1247),
];

/// Relations about what weir does not have.
const EMPTY: &[(&str, i32)] = &[
    ("pg_auth_members", 1261),
    ("pg_db_role_setting", 2964),
    ("pg_default_acl", 826),
    ("pg_depend", 2608),
    ("pg_description", 2609),
    ("pg_enum", 3501),
    ("pg_event_trigger", 3466),
    ("pg_extension", 3079),
    ("pg_foreign_data_wrapper", 2328),
    ("pg_foreign_server", 1417),
    ("pg_foreign_table", 3118),
    ("pg_inherits", 2611),
    ("pg_init_privs", 3394),
    ("pg_largeobject", 2613),
    ("pg_largeobject_metadata", 2995),
    ("pg_partitioned_table", 3350),
    ("pg_policy", 3256),
    ("pg_publication", 6104),
    ("pg_publication_namespace", 6237),
    ("pg_publication_rel", 6106),
    ("pg_replication_origin", 6000),
    ("pg_seclabel", 3596),
    ("pg_sequence", 2224),
    ("pg_shdepend", 1214),
    ("pg_shdescription", 2396),
    ("pg_shseclabel", 3592),
    ("pg_statistic", 2619),
    ("pg_statistic_ext", 3381),
    ("pg_statistic_ext_data", 3429),
    ("pg_subscription", 6100),
    ("pg_subscription_rel", 6102),
    ("pg_trigger", 2620),
    ("pg_user_mapping", 1418),
];

/// Whether `name` is a relation of `pg_catalog`.
pub(super) fn is_pg_catalog(name: &str) -> bool {
    [FILLED, BUILT_IN, EMPTY].iter().any(|list| list.iter().any(|(known, _)| *known == name))
}

/// Whether `name` is a relation of `pg_catalog` that never has rows here.
pub(super) fn is_always_empty(name: &str) -> bool {
    EMPTY.iter().any(|(known, _)| *known == name)
}

/// The OID of a relation of `pg_catalog`.
pub(super) fn system_oid(name: &str) -> Option<i32> {
    [FILLED, BUILT_IN, EMPTY].iter().flat_map(|list| list.iter()).find(|(known, _)| *known == name).map(|(_, oid)| *oid)
}

/// The name of the relation of `pg_catalog` with this OID.
pub(super) fn system_name(oid: i64) -> Option<&'static str> {
    [FILLED, BUILT_IN, EMPTY].iter().flat_map(|list| list.iter()).find(|(_, known)| i64::from(*known) == oid).map(|(name, _)| *name)
}

/// `content` with plain columns: the crate's metadata about OIDs would make schemas differ that are the same.
fn plain(content: &ArrowTable, rows: bool) -> Result<(SchemaRef, Vec<RecordBatch>)> {
    let fields: Vec<Field> =
        content.schema().fields().iter().map(|field| Field::new(field.name(), field.data_type().clone(), true)).collect();
    let schema = Arc::new(Schema::new(fields));
    let batches = if rows {
        content
            .data()
            .iter()
            .map(|batch| RecordBatch::try_new(schema.clone(), batch.columns().to_vec()).map_err(from_arrow))
            .collect::<Result<_>>()?
    } else {
        Vec::new()
    };
    Ok((schema, batches))
}

/// PostgreSQL's own content, and the columns of relations that are empty.
#[derive(Debug)]
pub(super) struct BuiltIn {
    tables: Vec<(&'static str, Arc<MemTable>)>,
}

impl BuiltIn {
    pub fn new(content: &PgCatalogStaticTables) -> Result<BuiltIn> {
        let c = content;
        let sources: [(&'static str, &Arc<ArrowTable>); 50] = [
            ("pg_aggregate", &c.pg_aggregate),
            ("pg_amop", &c.pg_amop),
            ("pg_amproc", &c.pg_amproc),
            ("pg_cast", &c.pg_cast),
            ("pg_collation", &c.pg_collation),
            ("pg_conversion", &c.pg_conversion),
            ("pg_language", &c.pg_language),
            ("pg_opclass", &c.pg_opclass),
            ("pg_operator", &c.pg_operator),
            ("pg_opfamily", &c.pg_opfamily),
            ("pg_proc", &c.pg_proc),
            ("pg_range", &c.pg_range),
            ("pg_ts_config", &c.pg_ts_config),
            ("pg_ts_dict", &c.pg_ts_dict),
            ("pg_ts_parser", &c.pg_ts_parser),
            ("pg_ts_template", &c.pg_ts_template),
            ("pg_type", &c.pg_type),
            ("pg_auth_members", &c.pg_auth_members),
            ("pg_db_role_setting", &c.pg_db_role_setting),
            ("pg_default_acl", &c.pg_default_acl),
            ("pg_depend", &c.pg_depend),
            ("pg_description", &c.pg_description),
            ("pg_enum", &c.pg_enum),
            ("pg_event_trigger", &c.pg_event_trigger),
            ("pg_extension", &c.pg_extension),
            ("pg_foreign_data_wrapper", &c.pg_foreign_data_wrapper),
            ("pg_foreign_server", &c.pg_foreign_server),
            ("pg_foreign_table", &c.pg_foreign_table),
            ("pg_inherits", &c.pg_inherits),
            ("pg_init_privs", &c.pg_init_privs),
            ("pg_largeobject", &c.pg_largeobject),
            ("pg_largeobject_metadata", &c.pg_largeobject_metadata),
            ("pg_partitioned_table", &c.pg_partitioned_table),
            ("pg_policy", &c.pg_policy),
            ("pg_publication", &c.pg_publication),
            ("pg_publication_namespace", &c.pg_publication_namespace),
            ("pg_publication_rel", &c.pg_publication_rel),
            ("pg_replication_origin", &c.pg_replication_origin),
            ("pg_seclabel", &c.pg_seclabel),
            ("pg_sequence", &c.pg_sequence),
            ("pg_shdepend", &c.pg_shdepend),
            ("pg_shdescription", &c.pg_shdescription),
            ("pg_shseclabel", &c.pg_shseclabel),
            ("pg_statistic", &c.pg_statistic),
            ("pg_statistic_ext", &c.pg_statistic_ext),
            ("pg_statistic_ext_data", &c.pg_statistic_ext_data),
            ("pg_subscription", &c.pg_subscription),
            ("pg_subscription_rel", &c.pg_subscription_rel),
            ("pg_trigger", &c.pg_trigger),
            ("pg_user_mapping", &c.pg_user_mapping),
        ];
        let mut tables = Vec::with_capacity(sources.len());
        for (name, source) in sources {
            let (schema, batches) = plain(source, !is_always_empty(name))?;
            tables.push((name, Arc::new(MemTable::try_new(schema, vec![batches]).map_err(from_datafusion)?)));
        }
        Ok(BuiltIn { tables })
    }

    fn get(&self, name: &str) -> Option<Arc<MemTable>> {
        self.tables.iter().find(|(known, _)| *known == name).map(|(_, table)| table.clone())
    }
}

/// The relations of `pg_catalog` over one catalog, for one session.
#[derive(Debug)]
pub(super) struct Relations {
    pub built_in: Arc<BuiltIn>,
    pub snapshot: Arc<Snapshot>,
    pub facts: Arc<SessionFacts>,
}

impl Relations {
    /// The relation with this name; `None` if there is none.
    pub fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let filled = match name {
            "pg_class" => table(PG_CLASS, &self.classes())?,
            "pg_attribute" => table(PG_ATTRIBUTE, &self.attributes())?,
            "pg_attrdef" => table(PG_ATTRDEF, &self.defaults())?,
            "pg_index" => table(PG_INDEX, &self.indexes())?,
            "pg_constraint" => table(PG_CONSTRAINT, &self.constraints())?,
            "pg_namespace" => table(PG_NAMESPACE, &namespaces())?,
            "pg_database" => table(PG_DATABASE, &databases())?,
            "pg_roles" | "pg_authid" => table(PG_ROLES, &self.roles())?,
            "pg_user" => table(PG_USER, &self.users())?,
            "pg_tablespace" => table(PG_TABLESPACE, &[vec![1663.into(), "pg_default".into(), OWNER.into(), Cell::Null, Cell::Null]])?,
            "pg_am" => table(
                PG_AM,
                &[
                    vec![HEAP.into(), "heap".into(), "heap_tableam_handler".into(), "t".into()],
                    vec![BTREE.into(), "btree".into(), "bthandler".into(), "i".into()],
                ],
            )?,
            "pg_rewrite" => table(PG_REWRITE, &self.rules())?,
            "pg_tables" => table(PG_TABLES, &self.table_list())?,
            "pg_views" => table(PG_VIEWS, &self.view_list())?,
            "pg_matviews" => table(PG_MATVIEWS, &self.materialized_view_list())?,
            "pg_indexes" => table(PG_INDEXES, &self.index_list())?,
            "pg_settings" => table(PG_SETTINGS, &self.settings())?,
            other => return Ok(self.built_in.get(other).map(|table| table as Arc<dyn TableProvider>)),
        };
        Ok(Some(Arc::new(filled)))
    }

    fn relations(&self) -> impl Iterator<Item = &Relation> {
        self.snapshot.relations.iter()
    }

    fn keyed(&self) -> impl Iterator<Item = (&Relation, &[usize])> {
        self.relations().filter_map(|relation| Some((relation, relation.primary_key()?)))
    }

    fn classes(&self) -> Vec<Vec<Cell>> {
        let mut rows = Vec::new();
        for relation in self.relations() {
            let access = if relation.kind == 'v' { 0 } else { HEAP };
            let keyed = relation.primary_key().is_some();
            rows.push(class(relation.oid, relation.name(), PUBLIC, access, relation.kind, relation.columns().len(), keyed));
        }
        for (relation, key) in self.keyed() {
            rows.push(class(relation.index_oid(), &relation.key_name(), PUBLIC, BTREE, 'i', key.len(), false));
        }
        for (list, kind) in [(FILLED, 'r'), (BUILT_IN, 'r'), (EMPTY, 'r')] {
            for (name, oid) in list {
                // Those that PostgreSQL has as views have no fixed OID.
                let kind = if (12_000..13_000).contains(oid) { 'v' } else { kind };
                rows.push(class(*oid, name, PG_CATALOG, if kind == 'r' { HEAP } else { 0 }, kind, 0, false));
            }
        }
        rows
    }

    fn attributes(&self) -> Vec<Vec<Cell>> {
        let mut rows = Vec::new();
        for relation in self.relations() {
            for (at, column) in relation.columns().iter().enumerate() {
                rows.push(attribute(relation.oid, at, column));
            }
            for (position, at) in relation.primary_key().unwrap_or_default().iter().enumerate() {
                if let Some(column) = relation.columns().get(*at) {
                    let plain = weir_catalog::Column { default: None, nullable: true, ..column.clone() };
                    rows.push(attribute(relation.index_oid(), position, &plain));
                }
            }
        }
        rows
    }

    fn defaults(&self) -> Vec<Vec<Cell>> {
        let mut rows = Vec::new();
        for relation in self.relations() {
            for (at, column) in relation.columns().iter().enumerate() {
                if let Some(default) = &column.default {
                    rows.push(vec![relation.default_oid(at).into(), relation.oid.into(), number(at).into(), default.as_str().into()]);
                }
            }
        }
        rows
    }

    fn indexes(&self) -> Vec<Vec<Cell>> {
        self.keyed()
            .map(|(relation, key)| {
                let count = i16::try_from(key.len()).unwrap_or(i16::MAX);
                vec![
                    relation.index_oid().into(),
                    relation.oid.into(),
                    count.into(),
                    count.into(),
                    true.into(),
                    false.into(),
                    true.into(),
                    false.into(),
                    true.into(),
                    false.into(),
                    true.into(),
                    false.into(),
                    true.into(),
                    true.into(),
                    false.into(),
                    numbers(key).into(),
                    vec![0i16; key.len()].into(),
                    Cell::Null,
                    Cell::Null,
                ]
            })
            .collect()
    }

    fn constraints(&self) -> Vec<Vec<Cell>> {
        self.keyed()
            .map(|(relation, key)| {
                vec![
                    relation.constraint_oid().into(),
                    relation.key_name().into(),
                    PUBLIC.into(),
                    "p".into(),
                    false.into(),
                    false.into(),
                    true.into(),
                    relation.oid.into(),
                    0.into(),
                    relation.index_oid().into(),
                    0.into(),
                    0.into(),
                    " ".into(),
                    " ".into(),
                    " ".into(),
                    true.into(),
                    0.into(),
                    true.into(),
                    numbers(key).into(),
                    Cell::Null,
                    Cell::Null,
                    2606.into(),
                ]
            })
            .collect()
    }

    fn roles(&self) -> Vec<Vec<Cell>> {
        vec![vec![
            self.facts.user.as_str().into(),
            true.into(),
            true.into(),
            true.into(),
            true.into(),
            true.into(),
            false.into(),
            (-1).into(),
            Cell::Null,
            Cell::Null,
            false.into(),
            Cell::Null,
            OWNER.into(),
        ]]
    }

    fn users(&self) -> Vec<Vec<Cell>> {
        vec![vec![
            self.facts.user.as_str().into(),
            OWNER.into(),
            true.into(),
            true.into(),
            false.into(),
            false.into(),
            Cell::Null,
            Cell::Null,
            Cell::Null,
        ]]
    }

    /// PostgreSQL keeps a view's query as a rule named `_RETURN`.
    fn rules(&self) -> Vec<Vec<Cell>> {
        self.relations()
            .filter(|relation| relation.query().is_some())
            .map(|relation| {
                vec![relation.rule_oid().into(), "_RETURN".into(), relation.oid.into(), "1".into(), "O".into(), true.into(), 2618.into()]
            })
            .collect()
    }

    fn owner(&self) -> Cell {
        self.facts.user.as_str().into()
    }

    fn table_list(&self) -> Vec<Vec<Cell>> {
        self.relations()
            .filter(|relation| relation.kind == 'r')
            .map(|relation| {
                vec![
                    "public".into(),
                    relation.name().into(),
                    self.owner(),
                    Cell::Null,
                    relation.primary_key().is_some().into(),
                    false.into(),
                    false.into(),
                    false.into(),
                ]
            })
            .collect()
    }

    fn view_list(&self) -> Vec<Vec<Cell>> {
        self.relations()
            .filter(|relation| relation.kind == 'v')
            .map(|relation| vec!["public".into(), relation.name().into(), self.owner(), relation.query().into()])
            .collect()
    }

    fn materialized_view_list(&self) -> Vec<Vec<Cell>> {
        self.relations()
            .filter(|relation| relation.kind == 'm')
            .map(|relation| {
                vec!["public".into(), relation.name().into(), self.owner(), Cell::Null, false.into(), true.into(), relation.query().into()]
            })
            .collect()
    }

    fn index_list(&self) -> Vec<Vec<Cell>> {
        self.keyed()
            .map(|(relation, _)| {
                vec!["public".into(), relation.name().into(), relation.key_name().into(), Cell::Null, index_definition(relation).into()]
            })
            .collect()
    }

    fn settings(&self) -> Vec<Vec<Cell>> {
        self.facts
            .variables
            .iter()
            .map(|(name, value)| {
                let mut row = vec![Cell::Null; PG_SETTINGS.len()];
                row[0] = name.as_str().into();
                row[1] = value.as_str().into();
                row[6] = "user".into();
                row[7] = "string".into();
                row[8] = "session".into();
                row[13] = value.as_str().into();
                row[16] = false.into();
                row
            })
            .collect()
    }
}

/// The statement that would make the index of a primary key.
pub(super) fn index_definition(relation: &Relation) -> String {
    let quoted = super::snapshot::quoted;
    format!(
        "CREATE UNIQUE INDEX {} ON public.{} USING btree ({})",
        quoted(&relation.key_name()),
        quoted(relation.name()),
        relation.key_columns()
    )
}

/// The number of the column at a position, from 1.
fn number(at: usize) -> i16 {
    i16::try_from(at + 1).unwrap_or(i16::MAX)
}

fn numbers(columns: &[usize]) -> Vec<i16> {
    columns.iter().map(|at| number(*at)).collect()
}

fn class(oid: i32, name: &str, namespace: i32, access: i32, kind: char, columns: usize, has_index: bool) -> Vec<Cell> {
    vec![
        oid.into(),
        name.into(),
        namespace.into(),
        0.into(),
        0.into(),
        OWNER.into(),
        access.into(),
        0.into(),
        0.into(),
        0.into(),
        // PostgreSQL's mark for "never counted".
        (-1.0f32).into(),
        0.into(),
        0.into(),
        has_index.into(),
        false.into(),
        "p".into(),
        kind.to_string().into(),
        i16::try_from(columns).unwrap_or(i16::MAX).into(),
        0i16.into(),
        (kind == 'v').into(),
        false.into(),
        false.into(),
        false.into(),
        false.into(),
        true.into(),
        if kind == 'r' && namespace == PUBLIC { "d".into() } else { "n".into() },
        false.into(),
        0.into(),
        0i64.into(),
        0i64.into(),
        Cell::Null,
        Cell::Null,
        Cell::Null,
        1259.into(),
    ]
}

fn attribute(relation: i32, at: usize, column: &weir_catalog::Column) -> Vec<Cell> {
    let ty = wire_type(&column.ty);
    vec![
        relation.into(),
        column.name.as_str().into(),
        ty.oid.into(),
        (-1).into(),
        ty.length.into(),
        number(at).into(),
        0.into(),
        (-1).into(),
        ty.modifier.into(),
        ty.by_value.into(),
        ty.align.into(),
        ty.storage.into(),
        "".into(),
        (!column.nullable).into(),
        column.default.is_some().into(),
        false.into(),
        "".into(),
        "".into(),
        false.into(),
        true.into(),
        0.into(),
        ty.collation.into(),
        Cell::Null,
        Cell::Null,
        Cell::Null,
        Cell::Null,
    ]
}

fn namespaces() -> Vec<Vec<Cell>> {
    [(PG_CATALOG, "pg_catalog"), (INFORMATION_SCHEMA, "information_schema"), (PUBLIC, "public")]
        .into_iter()
        .map(|(oid, name)| vec![oid.into(), name.into(), OWNER.into(), Cell::Null])
        .collect()
}

fn databases() -> Vec<Vec<Cell>> {
    vec![vec![
        DATABASE.into(),
        DATABASE_NAME.into(),
        OWNER.into(),
        6.into(),
        "c".into(),
        false.into(),
        true.into(),
        (-1).into(),
        0i64.into(),
        0i64.into(),
        1663.into(),
        "C".into(),
        "C".into(),
        Cell::Null,
        Cell::Null,
        Cell::Null,
    ]]
}
