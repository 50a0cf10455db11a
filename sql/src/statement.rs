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
        query: Box<ast::Query>,
        query_text: String,
    },
    CreateSink {
        name: String,
        if_not_exists: bool,
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
        selection: Option<Box<ast::Expr>>,
    },
    Delete {
        table: String,
        alias: Option<String>,
        selection: Option<Box<ast::Expr>>,
    },
    /// `DROP TABLE | VIEW | MATERIALIZED VIEW | SINK | SOURCE | JOB`.
    Drop {
        kind: DropKind,
        names: Vec<String>,
        if_exists: bool,
        cascade: bool,
    },
    Begin,
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
    /// Statements that drivers send and that change nothing here, e.g. `DISCARD ALL`, `DEALLOCATE`.
    NoOp(&'static str),
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
