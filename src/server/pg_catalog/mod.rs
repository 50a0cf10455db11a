//! PostgreSQL's system catalog over weir's: what psql's backslash commands and drivers read.
//!
//! A statement that reads only `pg_catalog` or `information_schema` (or nothing, but calls functions about them) never reaches weir's binder.
//! It is rewritten and run by DataFusion in a context of its own, over tables made from the session's catalog at that moment.
//!
//! ```text
//!   text ─▶ statement (is it ours?) ─▶ rewrite ─▶ DataFusion over tables, information_schema and functions ─▶ rows
//! ```

mod functions;
mod information_schema;
mod introspection;
mod relation;
mod rewrite;
mod snapshot;
mod statement;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, StringBuilder};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use async_trait::async_trait;
use datafusion::catalog::{
    CatalogProvider, CatalogProviderList, MemoryCatalogProvider, MemoryCatalogProviderList, SchemaProvider, TableProvider,
};
use datafusion::common::ScalarValue;
use datafusion::dataframe::DataFrame;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::SessionState;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion::sql::parser::Statement as DataFusionStatement;
use datafusion::sql::sqlparser::ast::Query;
use datafusion_pg_catalog::pg_catalog::PgCatalogStaticTables;
use datafusion_pg_catalog::pg_catalog::array_bounds_udf::{create_array_lower_udf, create_array_upper_udf};
use datafusion_pg_catalog::pg_catalog::generate_series_arg_coercion::CoerceIntArgsToBigInt;
use datafusion_pg_catalog::pg_catalog::oid_type_planner::PgOidTypePlanner;
use datafusion_pg_catalog::pg_catalog::quote_ident_udf::create_quote_ident_udf;
use futures::stream;
use weir_catalog::{Catalog, Column, Error, Result, SqlState, SqlType};

use self::functions::{Context, TypeNames};
use self::snapshot::Snapshot;
pub(super) use self::snapshot::quoted;
use self::tables::{BuiltIn, Relations};
use super::session::RowStream;
use crate::operators::error::{from_arrow, from_datafusion};

/// The one database.
const DATABASE_NAME: &str = "weir";
/// What `version()` says: clients look for the number of the PostgreSQL version whose catalog this is.
const VERSION: &str = concat!("PostgreSQL 15.0 (weir ", env!("CARGO_PKG_VERSION"), ")");

/// What the catalog says about the session that asks.
#[derive(Clone, Debug)]
pub struct SessionFacts {
    /// The user's name; it owns everything.
    pub user: String,
    /// The process id that the client was given for cancel requests.
    pub process_id: i32,
    /// Session variables by lower-case name, for `pg_settings` and `current_setting`.
    pub variables: BTreeMap<String, String>,
}

impl Default for SessionFacts {
    fn default() -> SessionFacts {
        let variables = [
            ("client_encoding", "UTF8"),
            ("datestyle", "ISO, MDY"),
            ("search_path", "public"),
            ("server_encoding", "UTF8"),
            ("server_version", "15.0"),
            ("server_version_num", "150000"),
            ("standard_conforming_strings", "on"),
            ("timezone", "UTC"),
            ("transaction_isolation", "read committed"),
        ];
        SessionFacts {
            user: "weir".into(),
            process_id: 0,
            variables: variables.into_iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        }
    }
}

/// Answers statements about the system catalog. Cheap to clone.
#[derive(Clone)]
pub struct PgCatalog {
    state: Arc<SessionState>,
    built_in: Arc<BuiltIn>,
    types: Arc<TypeNames>,
    facts: Arc<SessionFacts>,
}

impl PgCatalog {
    /// Reads PostgreSQL's own content; done once for a server. `XX000` if that is damaged.
    pub fn new() -> Result<PgCatalog> {
        let content = PgCatalogStaticTables::try_new().map_err(from_datafusion)?;
        let config = SessionConfig::new()
            .with_target_partitions(1)
            .with_default_catalog_and_schema(DATABASE_NAME, "public")
            .with_information_schema(false)
            .set_bool("datafusion.sql_parser.map_string_types_to_utf8view", false);
        let state =
            SessionStateBuilder::new().with_config(config).with_default_features().with_type_planner(Arc::new(PgOidTypePlanner)).build();
        Ok(PgCatalog {
            state: Arc::new(state),
            built_in: Arc::new(BuiltIn::new(&content)?),
            types: Arc::new(TypeNames::new(&content)),
            facts: Arc::new(SessionFacts::default()),
        })
    }

    /// The same for a session.
    pub fn with_session(&self, facts: SessionFacts) -> PgCatalog {
        PgCatalog { facts: Arc::new(facts), ..self.clone() }
    }

    /// The rows of a statement about the catalog; `None` where `sql` is anything else.
    ///
    /// Errors: `42P01` for a catalog relation that does not exist, `0A000` for one that is read together with tables or views, and for what
    /// DataFusion can't plan.
    pub async fn try_query(&self, sql: &str, catalog: &Catalog) -> Option<Result<RowStream>> {
        self.try_query_with(sql, &[], catalog).await
    }

    /// As [`PgCatalog::try_query`], with the values of `$1`, `$2`, ...; `42P02` where one is missing.
    pub async fn try_query_with(&self, sql: &str, parameters: &[ScalarValue], catalog: &Catalog) -> Option<Result<RowStream>> {
        match statement::classify(sql, catalog)? {
            Ok(query) => Some(self.run(query, parameters, catalog).await),
            Err(error) => Some(Err(error)),
        }
    }

    /// The columns of a statement about the catalog, its parameters unknown; `None` where `sql` is anything else.
    pub async fn columns(&self, sql: &str, catalog: &Catalog) -> Option<Result<Vec<Column>>> {
        match statement::classify(sql, catalog)? {
            Ok(query) => Some(self.describe(query, catalog).await),
            Err(error) => Some(Err(error)),
        }
    }

    /// The types of the parameters of a statement about the catalog; `None` where `sql` is anything else.
    pub fn parameter_types(&self, sql: &str, catalog: &Catalog) -> Option<Result<Vec<SqlType>>> {
        Some(statement::classify(sql, catalog)?.map(|query| statement::parameter_types(&query)))
    }

    async fn describe(&self, mut query: Box<Query>, catalog: &Catalog) -> Result<Vec<Column>> {
        let unknown: Vec<ScalarValue> = statement::parameter_types(&query).iter().map(|_| ScalarValue::Null).collect();
        statement::bind(&mut query, &unknown)?;
        let names = statement::column_names(&query);
        if let (Some(names), true) = (&names, statement::is_always_empty(&query)) {
            return Ok(text_columns(names));
        }
        let frame = self.plan(query, catalog).await?;
        Ok(columns_of(frame.schema().as_arrow(), names.as_deref()))
    }

    async fn run(&self, mut query: Box<Query>, parameters: &[ScalarValue], catalog: &Catalog) -> Result<RowStream> {
        statement::bind(&mut query, parameters)?;
        let names = statement::column_names(&query);
        if let (Some(names), true) = (&names, statement::is_always_empty(&query)) {
            let columns = text_columns(names);
            let schema = weir_catalog::object::schema_of(&columns);
            return Ok(rows(columns, schema, Vec::new()));
        }
        let frame = self.plan(query, catalog).await?;
        let columns = columns_of(frame.schema().as_arrow(), names.as_deref());
        let fields: Vec<Field> = frame
            .schema()
            .fields()
            .iter()
            .zip(&columns)
            .map(|(field, column)| Field::new(&column.name, sent_type(field.data_type()), true))
            .collect();
        let schema = Arc::new(Schema::new(fields));
        let batches = frame.collect().await.map_err(error_of)?;
        let batches = batches.iter().map(|batch| sent(batch, &schema)).collect::<Result<Vec<_>>>()?;
        Ok(rows(columns, schema, batches))
    }

    async fn plan(&self, query: Box<Query>, catalog: &Catalog) -> Result<DataFrame> {
        let snapshot = Arc::new(Snapshot::new(catalog));
        let context = Context { snapshot: snapshot.clone(), facts: self.facts.clone(), types: self.types.clone() };
        let statement = rewrite::rewrite(query, &context)?;
        let session = self.session(&context)?;
        let state = session.state();
        let plan = state.statement_to_plan(DataFusionStatement::Statement(Box::new(statement))).await.map_err(error_of)?;
        Ok(DataFrame::new(state, plan))
    }

    /// A DataFusion context over one state of the catalog.
    fn session(&self, context: &Context) -> Result<SessionContext> {
        let databases = Arc::new(MemoryCatalogProviderList::new());
        let database = Arc::new(MemoryCatalogProvider::new());
        databases.register_catalog(DATABASE_NAME.to_string(), database.clone());
        let state = SessionStateBuilder::new_from_existing(self.state.as_ref().clone()).with_catalog_list(databases).build();
        let session = SessionContext::new_with_state(state);
        let relations = Relations { built_in: self.built_in.clone(), snapshot: context.snapshot.clone(), facts: context.facts.clone() };
        let relations = Arc::new(relations);
        for schema in ["pg_catalog", "information_schema"] {
            let provider = SystemSchema { name: schema, relations: relations.clone() };
            database.register_schema(schema, Arc::new(provider)).map_err(from_datafusion)?;
        }
        for function in functions::functions(context) {
            session.register_udf(function);
        }
        session.register_udf(create_array_upper_udf());
        session.register_udf(create_array_lower_udf());
        session.register_udf(create_quote_ident_udf());
        CoerceIntArgsToBigInt::widen(&session);
        Ok(session)
    }
}

/// A schema of system relations, made when they are asked for.
#[derive(Debug)]
struct SystemSchema {
    name: &'static str,
    relations: Arc<Relations>,
}

#[async_trait]
impl SchemaProvider for SystemSchema {
    fn table_names(&self) -> Vec<String> {
        // Nothing lists them: pg_class and information_schema.tables are relations like others here.
        Vec::new()
    }

    async fn table(&self, name: &str) -> DataFusionResult<Option<Arc<dyn TableProvider>>> {
        let found = if self.name == "pg_catalog" {
            self.relations.table(name)
        } else {
            information_schema::relation(name, &self.relations.snapshot, &self.relations.facts.user)
        };
        found.map_err(|error| DataFusionError::External(Box::new(error)))
    }

    fn table_exist(&self, name: &str) -> bool {
        if self.name == "pg_catalog" { tables::is_pg_catalog(name) } else { information_schema::exists(name) }
    }
}

/// An error of DataFusion, as one about a statement that it can't run rather than about a value.
fn error_of(error: DataFusionError) -> Error {
    let converted = from_datafusion(error);
    if let Some(rest) = converted.message().strip_prefix("invalid function ") {
        let name = rest.split('\'').nth(1).unwrap_or(rest);
        return Error::new(SqlState::UNDEFINED_FUNCTION, format!("function {name} does not exist"));
    }
    if *converted.code() == SqlState::INTERNAL_ERROR || *converted.code() == SqlState::INVALID_PARAMETER_VALUE {
        let message = format!("this statement over the system catalog is not supported: {}", converted.message());
        return Error::unsupported(message);
    }
    converted
}

fn text_columns(names: &[String]) -> Vec<Column> {
    names.iter().map(|name| Column { name: name.clone(), ty: SqlType::Text, nullable: true, default: None }).collect()
}

/// The columns that a client is told of.
fn columns_of(schema: &Schema, names: Option<&[String]>) -> Vec<Column> {
    schema
        .fields()
        .iter()
        .enumerate()
        .map(|(at, field)| Column {
            name: match names.and_then(|names| names.get(at)) {
                Some(name) => name.clone(),
                // The alias that the crate's rewrite gives a column that a `*` repeats.
                None => field.name().trim_start_matches("__alias_").to_string(),
            },
            ty: SqlType::from_arrow(&sent_type(field.data_type())).unwrap_or(SqlType::Text),
            nullable: true,
            default: None,
        })
        .collect()
}

/// The Arrow type that values are sent from.
fn sent_type(data_type: &DataType) -> DataType {
    match data_type {
        // Arrays of the catalog have types that weir's have not, such as name[].
        DataType::Null | DataType::List(_) => DataType::Utf8,
        other if SqlType::from_arrow(other).is_some() => other.clone(),
        _ => DataType::Utf8,
    }
}

/// A batch with only types that can be sent: arrays as PostgreSQL prints them.
fn sent(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let columns = batch
        .columns()
        .iter()
        .zip(schema.fields())
        .map(|(column, field)| {
            if column.data_type() == field.data_type() {
                return Ok(column.clone());
            }
            match column.data_type() {
                DataType::Null => Ok(arrow::array::new_null_array(field.data_type(), column.len())),
                DataType::List(_) => texts_of_lists(column),
                _ => arrow::compute::cast(column, field.data_type()).map_err(from_arrow),
            }
        })
        .collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(schema.clone(), columns, &options).map_err(from_arrow)
}

/// Arrays in PostgreSQL's text form: `{a,"b c",NULL}`.
fn texts_of_lists(column: &ArrayRef) -> Result<ArrayRef> {
    let lists = column.as_list::<i32>();
    let mut texts = StringBuilder::new();
    let options = FormatOptions::default();
    for row in 0..lists.len() {
        if lists.is_null(row) {
            texts.append_null();
            continue;
        }
        let items = lists.value(row);
        let formatter = ArrayFormatter::try_new(items.as_ref(), &options).map_err(from_arrow)?;
        let mut text = String::from("{");
        for at in 0..items.len() {
            if at > 0 {
                text.push(',');
            }
            if items.is_null(at) {
                text.push_str("NULL");
                continue;
            }
            let item = formatter.value(at).to_string();
            let bare = !item.is_empty()
                && !item.eq_ignore_ascii_case("null")
                && !item.contains(|c: char| c.is_whitespace() || matches!(c, '{' | '}' | ',' | '"' | '\\'));
            if bare {
                text.push_str(&item);
            } else {
                let escaped = item.replace('\\', "\\\\").replace('"', "\\\"");
                write!(text, "\"{escaped}\"").map_err(|_| Error::internal("an array could not be written"))?;
            }
        }
        text.push('}');
        texts.append_value(text);
    }
    Ok(Arc::new(texts.finish()))
}

fn rows(columns: Vec<Column>, schema: SchemaRef, batches: Vec<RecordBatch>) -> RowStream {
    let stream = RecordBatchStreamAdapter::new(schema, stream::iter(batches.into_iter().map(Ok)));
    RowStream { columns, stream: Box::pin(stream), tag: "SELECT" }
}
