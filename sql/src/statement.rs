//! What a statement asks for, after parsing: the server acts on this, never on text.

use std::collections::BTreeMap;

use datafusion::sql::sqlparser::ast;

/// A parsed statement and its text.
#[derive(Clone, Debug)]
pub struct Parsed {
    pub statement: Statement,
    /// Its own text, without the semicolon.
    pub text: String,
    /// Where `text` begins in what was parsed, characters from 0, so that error positions can be moved.
    pub offset: usize,
}

/// The statements that weir knows. Everything else is refused by the parser with `0A000` (or `42601` where it is no SQL).
#[derive(Clone, Debug)]
pub enum Statement {
    /// `SELECT`, `VALUES`, `WITH ...`, `TABLE t`.
    Query(Box<ast::Query>),
    /// A stored table. Column defaults and NOT NULL are in `columns`.
    CreateTable {
        name: String,
        if_not_exists: bool,
        columns: Vec<ColumnDefinition>,
        primary_key: Option<Vec<String>>,
    },
    /// `CREATE TABLE ... WITH (connector = ...)` and `CREATE SOURCE`. `columns` is empty where the connector knows them.
    CreateConnectorTable {
        name: String,
        if_not_exists: bool,
        columns: Vec<ColumnDefinition>,
        options: BTreeMap<String, String>,
    },
    CreateView {
        name: String,
        or_replace: bool,
        if_not_exists: bool,
        columns: Vec<String>,
        query: Box<ast::Query>,
        query_text: String,
    },
    CreateMaterializedView {
        name: String,
        if_not_exists: bool,
        columns: Vec<String>,
        /// The state that it begins with.
        origin: Option<FromSavepoint>,
        query: Box<ast::Query>,
        query_text: String,
    },
    CreateSink {
        name: String,
        if_not_exists: bool,
        origin: Option<FromSavepoint>,
        options: BTreeMap<String, String>,
        query: Box<ast::Query>,
        query_text: String,
    },
    /// INSERT into a stored table (the server runs it) or a connector table (starts a job). `columns` is empty where none are named.
    Insert {
        table: String,
        columns: Vec<String>,
        source: Box<ast::Query>,
        source_text: String,
        returning: bool,
    },
    /// `INSERT INTO t DEFAULT VALUES`.
    InsertDefaults {
        table: String,
    },
    Update {
        table: String,
        assignments: Vec<(String, Assignment)>,
        alias: Option<String>,
        /// What FROM names besides the table.
        from: Vec<ast::TableWithJoins>,
        selection: Option<Box<ast::Expr>>,
    },
    Delete {
        table: String,
        alias: Option<String>,
        /// What USING names besides the table.
        using: Vec<ast::TableWithJoins>,
        selection: Option<Box<ast::Expr>>,
    },
    /// `TRUNCATE [TABLE] name, ...`.
    Truncate {
        tables: Vec<String>,
    },
    /// `PREPARE name [(types)] AS statement`.
    Prepare {
        name: String,
        types: Vec<weir_catalog::SqlType>,
        statement: Box<Parsed>,
    },
    /// `EXECUTE name [(values)]`.
    Execute {
        name: String,
        arguments: Vec<ast::Expr>,
    },
    /// `DEALLOCATE [PREPARE] name`; `None` for ALL.
    Deallocate(Option<String>),
    /// `DROP TABLE | VIEW | MATERIALIZED VIEW | SINK | SOURCE | JOB`.
    Drop {
        kind: DropKind,
        names: Vec<String>,
        if_exists: bool,
        cascade: bool,
    },
    /// How it is written is its command tag: `BEGIN` or `START TRANSACTION`.
    Begin(&'static str),
    Commit,
    Rollback,
    /// `SET [SESSION | LOCAL] name = value`; `None` for `DEFAULT` (also `RESET name`).
    Set {
        name: String,
        value: Option<String>,
        /// `SET LOCAL`: until the transaction ends.
        local: bool,
    },
    ResetAll,
    /// `DISCARD ALL`: the session as it was when it began.
    DiscardAll,
    /// `SHOW name`, and `SHOW ALL` as `all`.
    ShowSetting(String),
    Show(ShowKind),
    /// `DESCRIBE name`, also `DESC`.
    Describe(String),
    /// `EXPLAIN statement`. A query without a CREATE or INSERT around it is explained as the batch query that it is.
    Explain(Box<Parsed>),
    Flush,
    Checkpoint,
    /// `ALTER JOB | MATERIALIZED VIEW | SINK name RESUME`.
    Resume(String),
    /// `RECOVER JOB | MATERIALIZED VIEW | SINK name FROM CHECKPOINT number`.
    Recover {
        job: String,
        checkpoint: u64,
    },
    /// `CREATE SAVEPOINT name FOR job [AT 'folder']`.
    CreateSavepoint {
        name: String,
        job: String,
        location: Option<String>,
    },
    /// `DESCRIBE SAVEPOINT name | 'folder'`.
    DescribeSavepoint(SavepointSource),
    /// `DROP SAVEPOINT name, ...`.
    DropSavepoint {
        names: Vec<String>,
        if_exists: bool,
    },
    /// `ALTER JOB | MATERIALIZED VIEW | SINK job STOP WITH SAVEPOINT name [AT 'folder']`.
    StopWithSavepoint {
        job: String,
        name: String,
        location: Option<String>,
    },
    /// `ALTER JOB | MATERIALIZED VIEW | SINK name [(old AS new, ...)] [ALLOW NON RESTORED STATE] AS query`; behind EXPLAIN also `UPGRADE name ...`.
    AlterQuery {
        name: String,
        query: Box<ast::Query>,
        query_text: String,
        /// What operators were called, and what they are called now.
        uids: Vec<(String, String)>,
        allow_non_restored_state: bool,
    },
    /// Statements that drivers send and that change nothing here, e.g. `DISCARD PLANS`.
    NoOp(&'static str),
}

/// `FROM SAVEPOINT ...`: the state that a job begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FromSavepoint {
    pub source: SavepointSource,
    /// What operators were called, and what they are called now.
    pub uids: Vec<(String, String)>,
    /// State that no operator takes is left behind.
    pub allow_non_restored_state: bool,
}

/// Where a savepoint is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SavepointSource {
    /// One of this data folder.
    Name(String),
    /// The folder that it was written to, by whomever.
    Location(String),
}

/// What `SHOW` can list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShowKind {
    Jobs,
    Checkpoints,
    Tables,
    Views,
    MaterializedViews,
    Sinks,
    Sources,
    Savepoints,
}

/// What a `DROP` may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropKind {
    Table,
    View,
    MaterializedView,
    Sink,
    Source,
    Job,
}

/// A column as written.
#[derive(Clone, Debug)]
pub struct ColumnDefinition {
    pub name: String,
    pub ty: weir_catalog::SqlType,
    pub not_null: bool,
    /// The DEFAULT expression's text.
    pub default: Option<String>,
}

/// The right-hand side of `SET column = ...`.
#[derive(Clone, Debug)]
pub enum Assignment {
    Default,
    Expr(Box<ast::Expr>),
}
