//! PostgreSQL's functions about the catalog and the session.
//!
//! They run row by row: the catalog is small, and nothing else calls them.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Field, Int32Type};
use datafusion::common::{Result as DataFusionResult, ScalarValue};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility};
use datafusion_pg_catalog::pg_catalog::PgCatalogStaticTables;
use weir_catalog::{Error, Result, SqlState};

use super::snapshot::{INFORMATION_SCHEMA, OWNER, PG_CATALOG, PUBLIC, Snapshot, quoted};
use super::tables::{index_definition, system_name};
use super::{DATABASE_NAME, SessionFacts, VERSION};

/// What the functions look at.
#[derive(Clone)]
pub(super) struct Context {
    pub snapshot: Arc<Snapshot>,
    pub facts: Arc<SessionFacts>,
    pub types: Arc<TypeNames>,
}

/// Names of types and functions by OID.
#[derive(Debug, Default)]
pub(super) struct TypeNames {
    types: HashMap<i64, (String, i64)>,
    functions: HashMap<i64, String>,
}

impl TypeNames {
    pub fn new(content: &PgCatalogStaticTables) -> TypeNames {
        let mut names = TypeNames::default();
        for batch in content.pg_type.data() {
            let (Some(oids), Some(texts), Some(elements)) =
                (batch.column_by_name("oid"), batch.column_by_name("typname"), batch.column_by_name("typelem"))
            else {
                continue;
            };
            let (Some(oids), Some(texts), Some(elements)) =
                (oids.as_primitive_opt::<Int32Type>(), texts.as_string_opt::<i32>(), elements.as_primitive_opt::<Int32Type>())
            else {
                continue;
            };
            for ((oid, text), element) in oids.iter().zip(texts).zip(elements) {
                if let (Some(oid), Some(text)) = (oid, text) {
                    names.types.insert(i64::from(oid), (text.to_string(), i64::from(element.unwrap_or(0))));
                }
            }
        }
        for batch in content.pg_proc.data() {
            let (Some(oids), Some(texts)) = (batch.column_by_name("oid"), batch.column_by_name("proname")) else { continue };
            if let (Some(oids), Some(texts)) = (oids.as_primitive_opt::<Int32Type>(), texts.as_string_opt::<i32>()) {
                for (oid, text) in oids.iter().zip(texts) {
                    if let (Some(oid), Some(text)) = (oid, text) {
                        names.functions.insert(i64::from(oid), text.to_string());
                    }
                }
            }
        }
        names
    }

    /// The OID of the type with this name, PostgreSQL's own names and SQL's.
    pub fn type_oid(&self, name: &str) -> Option<i64> {
        let name = name.trim().to_lowercase();
        let name = name.strip_prefix("pg_catalog.").unwrap_or(&name);
        let known = match name {
            "boolean" => "bool",
            "smallint" => "int2",
            "integer" | "int" => "int4",
            "bigint" => "int8",
            "real" => "float4",
            "double precision" => "float8",
            "decimal" => "numeric",
            "character varying" => "varchar",
            "character" => "bpchar",
            "timestamp without time zone" => "timestamp",
            "timestamp with time zone" => "timestamptz",
            "time without time zone" => "time",
            other => other,
        };
        self.types.iter().find(|(_, (text, _))| text == known).map(|(oid, _)| *oid)
    }

    /// The OID of the function with this name.
    pub fn function_oid(&self, name: &str) -> Option<i64> {
        let name = name.trim().to_lowercase();
        let name = name.strip_prefix("pg_catalog.").unwrap_or(&name);
        self.functions.iter().filter(|(_, text)| *text == name).map(|(oid, _)| *oid).min()
    }

    /// A type as SQL writes it. `???` for an OID that is none, as in PostgreSQL.
    fn format(&self, oid: i64, modifier: Option<i64>) -> String {
        let precise = modifier.filter(|modifier| *modifier >= 0);
        let with = |name: &str, rest: &str| match precise {
            Some(digits) => format!("{name}({digits}){rest}"),
            None => format!("{name}{rest}"),
        };
        match oid {
            0 => "-".into(),
            16 => "boolean".into(),
            18 => "\"char\"".into(),
            20 => "bigint".into(),
            21 => "smallint".into(),
            23 => "integer".into(),
            700 => "real".into(),
            701 => "double precision".into(),
            1042 => precise.map_or("character".into(), |modifier| format!("character({})", modifier - 4)),
            1043 => precise.map_or("character varying".into(), |modifier| format!("character varying({})", modifier - 4)),
            1083 => with("time", " without time zone"),
            1114 => with("timestamp", " without time zone"),
            1184 => with("timestamp", " with time zone"),
            1266 => with("time", " with time zone"),
            1700 => precise.map_or("numeric".into(), |modifier| {
                // Eleven bits of scale with its sign, as numeric.c has it.
                let (precision, scale) = ((modifier - 4) >> 16 & 0xffff, (((modifier - 4) & 0x7ff) ^ 1024) - 1024);
                format!("numeric({precision},{scale})")
            }),
            oid => match self.types.get(&oid) {
                Some((name, element)) if name.starts_with('_') && *element != 0 => format!("{}[]", self.format(*element, modifier)),
                Some((name, _)) => name.clone(),
                None => "???".into(),
            },
        }
    }
}

/// An argument or a result.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Text(String),
    Texts(Vec<String>),
}

impl Value {
    fn int(&self) -> Option<i64> {
        match self {
            Value::Int(value) => Some(*value),
            Value::Text(text) => text.trim().parse().ok(),
            _ => None,
        }
    }
    fn text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

fn optional_text(text: Option<impl Into<String>>) -> Value {
    text.map_or(Value::Null, |text| Value::Text(text.into()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Returns {
    Bool,
    Int,
    Long,
    Text,
    Texts,
}

impl Returns {
    fn data_type(self) -> DataType {
        match self {
            Returns::Bool => DataType::Boolean,
            Returns::Int => DataType::Int32,
            Returns::Long => DataType::Int64,
            Returns::Text => DataType::Utf8,
            Returns::Texts => DataType::List(Arc::new(Field::new_list_field(DataType::Utf8, true))),
        }
    }

    fn scalar(self, value: &Value) -> Result<ScalarValue> {
        Ok(match (self, value) {
            (_, Value::Null) => ScalarValue::try_from(&self.data_type()).map_err(crate::operators::error::from_datafusion)?,
            (Returns::Bool, Value::Bool(value)) => ScalarValue::Boolean(Some(*value)),
            (Returns::Int, Value::Int(value)) => ScalarValue::Int32(i32::try_from(*value).ok()),
            (Returns::Long, Value::Int(value)) => ScalarValue::Int64(Some(*value)),
            (Returns::Text, Value::Text(value)) => ScalarValue::Utf8(Some(value.clone())),
            (Returns::Texts, Value::Texts(values)) => {
                let values: Vec<ScalarValue> = values.iter().map(|value| ScalarValue::Utf8(Some(value.clone()))).collect();
                ScalarValue::List(ScalarValue::new_list(&values, &DataType::Utf8, true))
            }
            (returns, value) => return Err(Error::internal(format!("a catalog function returned {value:?} for {returns:?}"))),
        })
    }
}

type Body = fn(&Context, &[Value]) -> Result<Value>;

/// Name, least and most arguments, result, whether a NULL argument makes it NULL, body.
type Definition = (&'static str, usize, usize, Returns, bool, Body);

const FUNCTIONS: &[Definition] = &[
    ("version", 0, 0, Returns::Text, true, |_, _| Ok(Value::Text(VERSION.into()))),
    ("current_database", 0, 0, Returns::Text, true, |_, _| Ok(Value::Text(DATABASE_NAME.into()))),
    ("current_schema", 0, 0, Returns::Text, true, |_, _| Ok(Value::Text("public".into()))),
    ("current_schemas", 1, 1, Returns::Texts, true, |_, arguments| {
        let mut names = vec!["public".to_string()];
        if arguments[0] == Value::Bool(true) {
            names.insert(0, "pg_catalog".into());
        }
        Ok(Value::Texts(names))
    }),
    ("session_user", 0, 0, Returns::Text, true, |context, _| Ok(Value::Text(context.facts.user.clone()))),
    ("current_user", 0, 0, Returns::Text, true, |context, _| Ok(Value::Text(context.facts.user.clone()))),
    ("current_role", 0, 0, Returns::Text, true, |context, _| Ok(Value::Text(context.facts.user.clone()))),
    ("user", 0, 0, Returns::Text, true, |context, _| Ok(Value::Text(context.facts.user.clone()))),
    ("pg_backend_pid", 0, 0, Returns::Int, true, |context, _| Ok(Value::Int(i64::from(context.facts.process_id)))),
    ("pg_is_in_recovery", 0, 0, Returns::Bool, true, |_, _| Ok(Value::Bool(false))),
    ("pg_my_temp_schema", 0, 0, Returns::Int, true, |_, _| Ok(Value::Int(0))),
    ("pg_is_other_temp_schema", 1, 1, Returns::Bool, true, |_, _| Ok(Value::Bool(false))),
    ("pg_client_encoding", 0, 0, Returns::Text, true, |_, _| Ok(Value::Text("UTF8".into()))),
    ("pg_encoding_to_char", 1, 1, Returns::Text, true, |_, arguments| {
        Ok(Value::Text(if arguments[0].int() == Some(6) { "UTF8" } else { "" }.into()))
    }),
    ("pg_char_to_encoding", 1, 1, Returns::Int, true, |_, arguments| {
        let utf8 = arguments[0].text().is_some_and(|name| name.eq_ignore_ascii_case("utf8") || name.eq_ignore_ascii_case("utf-8"));
        Ok(Value::Int(if utf8 { 6 } else { -1 }))
    }),
    ("pg_get_userbyid", 1, 1, Returns::Text, true, |context, arguments| {
        Ok(Value::Text(match arguments[0].int() {
            Some(oid) if oid == i64::from(OWNER) => context.facts.user.clone(),
            oid => format!("unknown (OID={})", oid.unwrap_or_default()),
        }))
    }),
    ("inet_server_addr", 0, 0, Returns::Text, true, |_, _| Ok(Value::Null)),
    ("inet_server_port", 0, 0, Returns::Int, true, |_, _| Ok(Value::Null)),
    ("inet_client_addr", 0, 0, Returns::Text, true, |_, _| Ok(Value::Null)),
    ("inet_client_port", 0, 0, Returns::Int, true, |_, _| Ok(Value::Null)),
    ("current_setting", 1, 2, Returns::Text, true, current_setting),
    ("set_config", 3, 3, Returns::Text, false, set_config),
    // Everything is in `public` or a system schema.
    ("pg_table_is_visible", 1, 1, Returns::Bool, true, |context, arguments| {
        let oid = arguments[0].int().unwrap_or_default();
        let known = context.snapshot.relation(oid).is_some() || context.snapshot.index(oid).is_some() || system_name(oid).is_some();
        Ok(if known { Value::Bool(true) } else { Value::Null })
    }),
    ("pg_type_is_visible", 1, 1, Returns::Bool, true, yes),
    ("pg_function_is_visible", 1, 1, Returns::Bool, true, yes),
    ("pg_operator_is_visible", 1, 1, Returns::Bool, true, yes),
    ("pg_opclass_is_visible", 1, 1, Returns::Bool, true, yes),
    ("pg_opfamily_is_visible", 1, 1, Returns::Bool, true, yes),
    ("pg_collation_is_visible", 1, 1, Returns::Bool, true, yes),
    ("pg_conversion_is_visible", 1, 1, Returns::Bool, true, yes),
    ("pg_ts_config_is_visible", 1, 1, Returns::Bool, true, yes),
    // There is one role, and it may do everything.
    ("has_table_privilege", 2, 3, Returns::Bool, true, yes),
    ("has_any_column_privilege", 2, 3, Returns::Bool, true, yes),
    ("has_column_privilege", 3, 4, Returns::Bool, true, yes),
    ("has_schema_privilege", 2, 3, Returns::Bool, true, yes),
    ("has_database_privilege", 2, 3, Returns::Bool, true, yes),
    ("has_function_privilege", 2, 3, Returns::Bool, true, yes),
    ("has_sequence_privilege", 2, 3, Returns::Bool, true, yes),
    ("has_type_privilege", 2, 3, Returns::Bool, true, yes),
    ("pg_has_role", 2, 3, Returns::Bool, true, yes),
    ("format_type", 2, 2, Returns::Text, false, |context, arguments| {
        Ok(optional_text(arguments[0].int().map(|oid| context.types.format(oid, arguments[1].int()))))
    }),
    // Expressions are kept as text, so there is nothing to decompile.
    ("pg_get_expr", 2, 3, Returns::Text, true, |_, arguments| Ok(arguments[0].clone())),
    ("pg_get_viewdef", 1, 2, Returns::Text, true, |context, arguments| {
        let oid = match &arguments[0] {
            Value::Text(name) if name.parse::<i64>().is_err() => context.snapshot.find(last_name(name)).map(i64::from),
            other => other.int(),
        };
        let query = oid.and_then(|oid| context.snapshot.relation(oid)).and_then(|relation| relation.query());
        Ok(optional_text(query.map(|query| format!("{};", query.trim().trim_end_matches(';')))))
    }),
    ("pg_get_indexdef", 1, 3, Returns::Text, true, |context, arguments| {
        let Some(relation) = arguments[0].int().and_then(|oid| context.snapshot.index(oid)) else { return Ok(Value::Null) };
        let column = arguments.get(1).and_then(Value::int).unwrap_or_default();
        if column == 0 {
            return Ok(Value::Text(index_definition(relation)));
        }
        let at = usize::try_from(column - 1).ok().and_then(|at| relation.primary_key()?.get(at).copied());
        Ok(optional_text(at.and_then(|at| relation.columns().get(at)).map(|column| quoted(&column.name))))
    }),
    ("pg_get_constraintdef", 1, 2, Returns::Text, true, |context, arguments| {
        let relation = arguments[0].int().and_then(|oid| context.snapshot.constraint(oid));
        Ok(optional_text(relation.map(|relation| format!("PRIMARY KEY ({})", relation.key_columns()))))
    }),
    // About what weir does not have: rules of its own, triggers, functions that users make, partitions, statistics, sequences.
    ("pg_get_ruledef", 1, 2, Returns::Text, true, nothing),
    ("pg_get_triggerdef", 1, 2, Returns::Text, true, nothing),
    ("pg_get_functiondef", 1, 1, Returns::Text, true, nothing),
    ("pg_get_function_result", 1, 1, Returns::Text, true, nothing),
    ("pg_get_function_arguments", 1, 1, Returns::Text, true, nothing),
    ("pg_get_function_identity_arguments", 1, 1, Returns::Text, true, nothing),
    ("pg_get_partkeydef", 1, 1, Returns::Text, true, nothing),
    ("pg_get_statisticsobjdef_columns", 1, 1, Returns::Text, true, nothing),
    ("pg_get_serial_sequence", 2, 2, Returns::Text, true, nothing),
    ("pg_tablespace_location", 1, 1, Returns::Text, true, |_, _| Ok(Value::Text(String::new()))),
    ("pg_relation_is_publishable", 1, 1, Returns::Bool, true, |_, _| Ok(Value::Bool(false))),
    // There are no comments.
    ("obj_description", 1, 2, Returns::Text, true, nothing),
    ("col_description", 2, 2, Returns::Text, true, nothing),
    ("shobj_description", 2, 2, Returns::Text, true, nothing),
    // Sizes are in the view weir_operators; nothing here knows them.
    ("pg_relation_size", 1, 2, Returns::Long, true, nothing),
    ("pg_table_size", 1, 1, Returns::Long, true, nothing),
    ("pg_indexes_size", 1, 1, Returns::Long, true, nothing),
    ("pg_total_relation_size", 1, 1, Returns::Long, true, nothing),
    ("pg_database_size", 1, 1, Returns::Long, true, nothing),
    ("pg_size_pretty", 1, 1, Returns::Text, true, |_, arguments| Ok(optional_text(arguments[0].int().map(pretty_size)))),
    ("to_regclass", 1, 1, Returns::Int, true, |context, arguments| {
        Ok(arguments[0].text().and_then(|name| find_relation(context, name)).map_or(Value::Null, Value::Int))
    }),
    ("to_regtype", 1, 1, Returns::Int, true, |context, arguments| {
        Ok(arguments[0].text().and_then(|name| context.types.type_oid(name)).map_or(Value::Null, Value::Int))
    }),
    ("to_regnamespace", 1, 1, Returns::Int, true, |_, arguments| {
        Ok(arguments[0].text().and_then(find_namespace).map_or(Value::Null, Value::Int))
    }),
    // How OID alias types print; see `rewrite`.
    ("weir_regclass", 1, 1, Returns::Text, true, |context, arguments| {
        let oid = arguments[0].int().unwrap_or_default();
        let name = context
            .snapshot
            .relation(oid)
            .map(|relation| quoted(relation.name()))
            .or_else(|| context.snapshot.index(oid).map(|relation| quoted(&relation.key_name())))
            .or_else(|| system_name(oid).map(str::to_string));
        Ok(Value::Text(name.unwrap_or_else(|| unnamed(oid))))
    }),
    ("weir_regtype", 1, 1, Returns::Text, true, |context, arguments| {
        Ok(optional_text(arguments[0].int().map(|oid| context.types.format(oid, None))))
    }),
    ("weir_regproc", 1, 1, Returns::Text, true, |context, arguments| match &arguments[0] {
        // The exports of pg_proc columns hold names already.
        Value::Text(name) if name.parse::<i64>().is_err() => Ok(Value::Text(name.clone())),
        other => {
            let oid = other.int().unwrap_or_default();
            Ok(Value::Text(context.types.functions.get(&oid).cloned().unwrap_or_else(|| unnamed(oid))))
        }
    }),
    ("weir_regnamespace", 1, 1, Returns::Text, true, |_, arguments| {
        let oid = arguments[0].int().unwrap_or_default();
        Ok(Value::Text(
            NAMESPACES.iter().find(|(known, _)| i64::from(*known) == oid).map_or_else(|| unnamed(oid), |(_, name)| (*name).into()),
        ))
    }),
    ("weir_regrole", 1, 1, Returns::Text, true, |context, arguments| {
        let oid = arguments[0].int().unwrap_or_default();
        Ok(Value::Text(if oid == i64::from(OWNER) { quoted(&context.facts.user) } else { unnamed(oid) }))
    }),
];

const NAMESPACES: &[(i32, &str)] = &[(PG_CATALOG, "pg_catalog"), (INFORMATION_SCHEMA, "information_schema"), (PUBLIC, "public")];

fn yes(_: &Context, _: &[Value]) -> Result<Value> {
    Ok(Value::Bool(true))
}

fn nothing(_: &Context, _: &[Value]) -> Result<Value> {
    Ok(Value::Null)
}

/// An OID without an object, as OID alias types print it.
fn unnamed(oid: i64) -> String {
    if oid == 0 { "-".into() } else { oid.to_string() }
}

/// `name` without the schema `public` or `pg_catalog` and without quotes.
fn last_name(name: &str) -> &str {
    let name = name.trim();
    let name = name.strip_prefix("public.").or_else(|| name.strip_prefix("pg_catalog.")).unwrap_or(name);
    name.strip_prefix('"').and_then(|name| name.strip_suffix('"')).unwrap_or(name)
}

/// The OID of the relation that `name` means, where a number means itself.
pub(super) fn find_relation(context: &Context, name: &str) -> Option<i64> {
    let name = name.trim();
    if let Ok(oid) = name.parse() {
        return Some(oid);
    }
    let folded = if name.contains('"') { name.to_string() } else { name.to_lowercase() };
    let last = last_name(&folded);
    let user = || context.snapshot.find(last);
    let system = || super::tables::system_oid(last);
    match folded.split_once('.') {
        Some(("pg_catalog", _)) => system(),
        Some(("public", _)) => user(),
        Some(_) => None,
        None => user().or_else(system),
    }
    .map(i64::from)
}

/// The OID of a schema.
pub(super) fn find_namespace(name: &str) -> Option<i64> {
    let name = last_name(name);
    NAMESPACES.iter().find(|(_, known)| *known == name).map(|(oid, _)| i64::from(*oid))
}

fn current_setting(context: &Context, arguments: &[Value]) -> Result<Value> {
    let Some(name) = arguments[0].text() else { return Ok(Value::Null) };
    let name = name.to_lowercase();
    match context.facts.variables.get(&name) {
        Some(value) => Ok(Value::Text(value.clone())),
        None if arguments.get(1) == Some(&Value::Bool(true)) => Ok(Value::Null),
        None => Err(Error::new(SqlState::UNDEFINED_OBJECT, format!("unrecognized configuration parameter \"{name}\""))),
    }
}

/// Settings that have no effect here, so that a function without access to the session may "set" them.
const WITHOUT_EFFECT: &[&str] = &[
    "application_name",
    "bytea_output",
    "client_min_messages",
    "extra_float_digits",
    "idle_in_transaction_session_timeout",
    "intervalstyle",
    "jit",
    "lock_timeout",
    "row_security",
    "search_path",
];

fn set_config(_: &Context, arguments: &[Value]) -> Result<Value> {
    let name =
        arguments[0].text().ok_or_else(|| Error::new(SqlState::INVALID_PARAMETER_VALUE, "SET requires parameter name"))?.to_lowercase();
    if WITHOUT_EFFECT.contains(&name.as_str()) {
        return Ok(optional_text(arguments[1].text().or(Some(""))));
    }
    Err(Error::unsupported(format!("set_config cannot set parameter \"{name}\"")).with_hint("Use SET."))
}

fn pretty_size(bytes: i64) -> String {
    const UNITS: &[&str] = &["bytes", "kB", "MB", "GB", "TB", "PB"];
    let (mut size, mut unit) = (bytes, 0);
    // PostgreSQL changes to the next unit from 10 of its kind on, and rounds half up.
    while size.abs() >= 10 * 1024 && unit + 1 < UNITS.len() {
        size = (size + 512) / 1024;
        unit += 1;
    }
    format!("{size} {}", UNITS[unit])
}

/// One of [`FUNCTIONS`] with what it looks at.
struct CatalogFunction {
    definition: &'static Definition,
    signature: Signature,
    context: Context,
}

impl fmt::Debug for CatalogFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.definition.0)
    }
}
impl PartialEq for CatalogFunction {
    fn eq(&self, other: &CatalogFunction) -> bool {
        self.definition.0 == other.definition.0
    }
}
impl Eq for CatalogFunction {}
impl Hash for CatalogFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.definition.0.hash(state);
    }
}

impl ScalarUDFImpl for CatalogFunction {
    fn name(&self) -> &str {
        self.definition.0
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> DataFusionResult<DataType> {
        // pg_get_expr gives its first argument back, whatever its column holds it as.
        match (self.definition.0, arguments.first()) {
            ("pg_get_expr", Some(DataType::Null | DataType::Utf8) | None) => Ok(DataType::Utf8),
            _ => Ok(self.definition.3.data_type()),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let (_, _, _, returns, strict, body) = self.definition;
        let row = |at: usize| -> Result<Vec<Value>> {
            args.args
                .iter()
                .map(|argument| {
                    Ok(match argument {
                        ColumnarValue::Scalar(value) => value_of(value),
                        ColumnarValue::Array(array) => {
                            value_of(&ScalarValue::try_from_array(array, at).map_err(crate::operators::error::from_datafusion)?)
                        }
                    })
                })
                .collect()
        };
        let call = |at: usize| -> Result<ScalarValue> {
            let arguments = row(at)?;
            let value = if *strict && arguments.contains(&Value::Null) { Value::Null } else { body(&self.context, &arguments)? };
            returns.scalar(&value)
        };
        let external = |error: Error| DataFusionError::External(Box::new(error));
        if args.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_))) {
            return Ok(ColumnarValue::Scalar(call(0).map_err(external)?));
        }
        if args.number_rows == 0 {
            return Ok(ColumnarValue::Array(arrow::array::new_empty_array(&returns.data_type())));
        }
        let values = (0..args.number_rows).map(call).collect::<Result<Vec<_>>>().map_err(external)?;
        Ok(ColumnarValue::Array(ScalarValue::iter_to_array(values)?))
    }
}

fn value_of(value: &ScalarValue) -> Value {
    match value {
        value if value.is_null() => Value::Null,
        ScalarValue::Boolean(Some(value)) => Value::Bool(*value),
        ScalarValue::Int8(Some(value)) => Value::Int(i64::from(*value)),
        ScalarValue::Int16(Some(value)) => Value::Int(i64::from(*value)),
        ScalarValue::Int32(Some(value)) => Value::Int(i64::from(*value)),
        ScalarValue::Int64(Some(value)) => Value::Int(*value),
        ScalarValue::UInt32(Some(value)) => Value::Int(i64::from(*value)),
        other => Value::Text(other.to_string()),
    }
}

/// The functions over a context.
pub(super) fn functions(context: &Context) -> Vec<ScalarUDF> {
    FUNCTIONS
        .iter()
        .map(|definition| {
            let (_, least, most, ..) = *definition;
            let signatures =
                (least..=most).map(|count| if count == 0 { TypeSignature::Nullary } else { TypeSignature::Any(count) }).collect();
            ScalarUDF::new_from_impl(CatalogFunction {
                definition,
                // Immutable lets calls on literals be folded, also where a table function needs one; a context lives for one statement only.
                signature: Signature::one_of(signatures, Volatility::Immutable),
                context: context.clone(),
            })
        })
        .collect()
}
