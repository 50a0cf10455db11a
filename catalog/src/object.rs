//! The objects that DDL makes.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use serde::{Deserialize, Serialize};

use crate::changelog::ChangelogMode;
use crate::types::SqlType;

/// An object's number; never used again after a DROP. It doubles as the object's OID towards clients.
pub type ObjectId = u64;

/// A column of a table or view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its name, as it is compared: lower case unless it was quoted.
    pub name: String,
    /// Its SQL type.
    pub ty: SqlType,
    /// False for `NOT NULL` and for primary key columns.
    pub nullable: bool,
    /// The `DEFAULT` expression as SQL text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
}

impl Column {
    /// Its Arrow field.
    pub fn to_field(&self) -> Field {
        Field::new(&self.name, self.ty.to_arrow(), self.nullable)
    }
}

/// The Arrow schema of `columns`.
pub fn schema_of(columns: &[Column]) -> SchemaRef {
    Arc::new(Schema::new(columns.iter().map(Column::to_field).collect::<Vec<_>>()))
}

/// A table that weir keeps: rows are written by INSERT, UPDATE and DELETE.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredTable {
    pub id: ObjectId,
    pub name: String,
    pub columns: Vec<Column>,
    /// Positions in `columns`, in key order; `None` where no PRIMARY KEY was declared.
    pub primary_key: Option<Vec<usize>>,
    /// The statement that made it.
    pub sql: String,
}

/// A table whose rows flow through from or to a connector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectorTable {
    pub id: ObjectId,
    pub name: String,
    pub columns: Vec<Column>,
    /// The `connector` option.
    pub connector: String,
    /// The other options of the WITH clause, as written.
    pub options: BTreeMap<String, String>,
    pub sql: String,
}

/// The name of an option as all its spellings have it.
fn canonical(name: &str) -> String {
    name.to_ascii_lowercase().replace(['-', '_'], ".")
}

/// Whether the value of an option is nobody's business.
pub fn is_secret_option(name: &str) -> bool {
    matches!(canonical(name).as_str(), "s3.secret.access.key" | "s3.secret.key" | "s3.session.token")
}

/// `sql` as it may be shown: with stars in place of what is secret in its `options`.
pub fn without_secrets(sql: &str, options: &BTreeMap<String, String>) -> String {
    const STARS: &str = "***";
    let secrets = options.iter().filter(|(name, value)| is_secret_option(name) && !value.is_empty()).map(|(_, value)| value);
    secrets.fold(sql.to_string(), |shown, secret| {
        let literal = format!("'{}'", secret.replace('\'', "''"));
        // Written in another way, as between dollars, it stands there as it is.
        let without = shown.replace(&literal, &format!("'{STARS}'"));
        without.replace(secret.as_str(), STARS)
    })
}

impl ConnectorTable {
    /// What its rows do to its content: those of a format that knows row kinds also take away.
    pub fn changelog(&self) -> ChangelogMode {
        let option = |wanted: &str| self.options.iter().find(|(name, _)| canonical(name) == wanted).map(|(_, value)| value.as_str());
        let is_changes = option("format").is_some_and(|format| format.trim().eq_ignore_ascii_case("debezium-json"));
        if is_changes || option("row.kind").is_some() { ChangelogMode::Retract } else { ChangelogMode::Append }
    }
}

/// A macro: its query is put in where it is named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    pub id: ObjectId,
    pub name: String,
    pub columns: Vec<Column>,
    /// The defining query as SQL text.
    pub query: String,
    pub sql: String,
    /// The objects that the query names.
    pub inputs: Vec<ObjectId>,
}

/// A continuous query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub id: ObjectId,
    /// The view's or sink's name; for INSERT INTO ... SELECT one that was made for it.
    pub name: String,
    pub kind: JobKind,
    /// The result's columns.
    pub columns: Vec<Column>,
    /// The defining query as SQL text.
    pub query: String,
    /// For INSERT INTO: the columns that the statement names, if it does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub insert_columns: Vec<String>,
    /// The statement that made it.
    pub sql: String,
    /// The session's settings that bear on the query's meaning, as they were.
    pub settings: BTreeMap<String, String>,
    /// The objects that the query names, views (macros) resolved to what they name.
    pub inputs: Vec<ObjectId>,
    /// Views (macros) that the query names: they can't be dropped before it.
    #[serde(default)]
    pub macros: Vec<ObjectId>,
    /// Each stateful operator, by uid. A start plans the query again and compares with this list.
    pub operators: Vec<OperatorDescriptor>,
    /// The number of subtasks per operator.
    pub parallelism: usize,
    /// The state that it began with; `None` where it began without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<JobOrigin>,
}

/// What becomes of a job's result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Kept and served. `key` are the positions of the upsert key in the result; empty if it has none but may hold one row, `None` where rows can repeat.
    MaterializedView { key: Option<Vec<usize>>, changelog: ChangelogMode },
    /// Written to a connector that the statement configures.
    Sink { connector: String, options: BTreeMap<String, String> },
    /// Written to a connector table.
    Insert { target: ObjectId },
}

/// A stateful operator of a job: what must fit for its state to be used again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorDescriptor {
    pub uid: String,
    /// `aggregate`, `rows`, `source`, ...
    pub operator: String,
    /// The key columns with their types, as text.
    pub key: Vec<(String, String)>,
    /// The state's value columns with their types, as text.
    pub value: Vec<(String, String)>,
}

/// What the rows of an operator are computed from: operators of two queries with the same derivation have, over the same rows, the same state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Derivation {
    /// Which rows there are.
    pub relation: String,
    /// What tells them apart.
    pub key: Vec<DerivedColumn>,
    /// Its result's columns; without the key's, where it has groups.
    pub columns: Vec<DerivedColumn>,
    /// What each column of its input is, where it has groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<String>,
    /// The tables and views that its rows come from without an aggregate in between; none where it was written by a weir that did not say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
}

/// A column, and what its values are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DerivedColumn {
    pub name: String,
    pub text: String,
    #[serde(rename = "type")]
    pub type_name: String,
}

/// Where a job's state came from when it began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOrigin {
    /// The folder of the savepoint.
    pub savepoint: String,
    /// Uids in the savepoint, and what they are called in the job.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uids: Vec<(String, String)>,
    /// State that no operator takes was left behind.
    #[serde(default)]
    pub allow_non_restored_state: bool,
    /// What objects will be called when the job takes the place of another, as the savepoint knows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<(ObjectId, String)>,
    /// The job is a sink that had another query: what it was sent of that one's result is taken back, as far as the present result has it not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub other_result: bool,
}

/// Anything that has a name. The catalog keeps each behind an `Arc`, so that their sizes don't matter.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Object {
    StoredTable(StoredTable),
    ConnectorTable(ConnectorTable),
    View(View),
    Job(Job),
}

impl Object {
    pub fn id(&self) -> ObjectId {
        match self {
            Object::StoredTable(table) => table.id,
            Object::ConnectorTable(table) => table.id,
            Object::View(view) => view.id,
            Object::Job(job) => job.id,
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Object::StoredTable(table) => &table.name,
            Object::ConnectorTable(table) => &table.name,
            Object::View(view) => &view.name,
            Object::Job(job) => &job.name,
        }
    }

    pub fn columns(&self) -> &[Column] {
        match self {
            Object::StoredTable(table) => &table.columns,
            Object::ConnectorTable(table) => &table.columns,
            Object::View(view) => &view.columns,
            Object::Job(job) => &job.columns,
        }
    }

    /// Whether a column is an array, or a row outside of a connector table: what formats of the time before such columns don't hold.
    pub fn has_nested_columns(&self) -> bool {
        let is_new = |ty: &SqlType| match ty {
            SqlType::Row(_) => !matches!(self, Object::ConnectorTable(_)),
            ty => matches!(ty, SqlType::Array(_)),
        };
        self.columns().iter().any(|column| column.ty.any(&is_new))
    }

    /// The statement that made it.
    pub fn sql(&self) -> &str {
        match self {
            Object::StoredTable(table) => &table.sql,
            Object::ConnectorTable(table) => &table.sql,
            Object::View(view) => &view.sql,
            Object::Job(job) => &job.sql,
        }
    }

    /// The same under another name.
    pub fn renamed(mut self, name: &str) -> Object {
        let own = match &mut self {
            Object::StoredTable(table) => &mut table.name,
            Object::ConnectorTable(table) => &mut table.name,
            Object::View(view) => &mut view.name,
            Object::Job(job) => &mut job.name,
        };
        *own = name.to_string();
        self
    }

    /// Whether what was planned with it can go on with `other` in its place: only its name, what stands behind the names in its query, or where it began differ.
    pub fn reads_like(&self, other: &Object) -> bool {
        match (self, other) {
            (Object::View(own), Object::View(other)) => own.columns == other.columns && own.query == other.query,
            (Object::Job(own), Object::Job(other)) => own.columns == other.columns && own.query == other.query && own.kind == other.kind,
            _ => false,
        }
    }

    /// What error messages call it: `table`, `view`, `materialized view`, `sink`, `job`.
    pub fn kind(&self) -> &'static str {
        match self {
            Object::StoredTable(_) | Object::ConnectorTable(_) => "table",
            Object::View(_) => "view",
            Object::Job(job) => match job.kind {
                JobKind::MaterializedView { .. } => "materialized view",
                JobKind::Sink { .. } => "sink",
                JobKind::Insert { .. } => "job",
            },
        }
    }

    /// The objects that must exist for this one to.
    pub fn depends_on(&self) -> Vec<ObjectId> {
        match self {
            Object::StoredTable(_) | Object::ConnectorTable(_) => Vec::new(),
            Object::View(view) => view.inputs.clone(),
            Object::Job(job) => {
                let mut ids: Vec<ObjectId> = job.inputs.iter().chain(&job.macros).copied().collect();
                if let JobKind::Insert { target } = job.kind {
                    ids.push(target);
                }
                ids
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let options = [("s3.Secret-Access_Key", "it's"), ("s3.session_token", "t0ken"), ("path", "s3://a/b"), ("s3.secret-key", "")];
        let options = options.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect();
        let sql = "CREATE TABLE t () WITH (path = 's3://a/b', 's3.Secret-Access_Key' = 'it''s', 's3.session_token' = $$t0ken$$)";
        let shown = "CREATE TABLE t () WITH (path = 's3://a/b', 's3.Secret-Access_Key' = '***', 's3.session_token' = $$***$$)";
        assert_eq!(without_secrets(sql, &options), shown);
        assert!(is_secret_option("S3.SECRET_KEY") && !is_secret_option("s3.access_key_id"));
    }
}
