//! CREATE: tables of both kinds, views, materialized views and sinks.

use std::collections::BTreeMap;

use datafusion::sql::sqlparser::ast::{Expr, Visit, Visitor};
use datafusion::sql::sqlparser::dialect::{Dialect, PostgreSqlDialect, Precedence};
use datafusion::sql::sqlparser::tokenizer::Token;
use weir_catalog::{Error, Result, SqlState};

use super::{Cursor, duplicate_column};
use crate::statement::{ColumnDefinition, Statement};

/// What may be created elsewhere.
const UNSUPPORTED_OBJECTS: &[&str] = &[
    "ACCESS METHOD",
    "AGGREGATE",
    "CAST",
    "CATALOG",
    "COLLATION",
    "CONNECTION",
    "CONVERSION",
    "DATABASE",
    "DOMAIN",
    "EVENT TRIGGER",
    "EXTENSION",
    "FOREIGN",
    "FUNCTION",
    "GLOBAL",
    "GROUP",
    "INDEX",
    "LANGUAGE",
    "LOCAL",
    "MODEL",
    "OPERATOR",
    "POLICY",
    "PROCEDURE",
    "PUBLICATION",
    "RECURSIVE VIEW",
    "ROLE",
    "RULE",
    "SCHEMA",
    "SECRET",
    "SEQUENCE",
    "SERVER",
    "STATISTICS",
    "SUBSCRIPTION",
    "TABLESPACE",
    "TEMP",
    "TEMPORARY",
    "TEXT SEARCH",
    "TRANSFORM",
    "TRIGGER",
    "TYPE",
    "UNIQUE INDEX",
    "UNLOGGED",
    "USER",
];

/// A parsed list of columns.
#[derive(Default)]
struct TableElements {
    columns: Vec<ColumnDefinition>,
    primary_key: Option<Vec<String>>,
    /// The primary key was written with Flink's `NOT ENFORCED`.
    not_enforced: bool,
    /// Columns that say `NULL`.
    nullable: Vec<String>,
}

impl Cursor<'_> {
    pub(super) fn create(&mut self) -> Result<Statement> {
        self.expect(&["CREATE"])?;
        let or_replace = self.accept(&["OR", "REPLACE"]);
        if self.accept(&["VIEW"]) {
            return self.create_view(or_replace);
        }
        let objects = ["TABLE", "SOURCE", "MATERIALIZED VIEW", "SINK"];
        for object in objects.iter().filter(|_| or_replace) {
            if object.split(' ').enumerate().all(|(n, word)| self.peek_is(n, word)) {
                return Err(self.unsupported(format!("CREATE OR REPLACE {object} is not supported")));
            }
        }
        for object in UNSUPPORTED_OBJECTS {
            if object.split(' ').enumerate().all(|(n, word)| self.peek_is(n, word)) {
                return Err(self.unsupported(format!("CREATE {object} is not supported")));
            }
        }
        if self.accept(&["TABLE"]) {
            self.create_table(false)
        } else if self.accept(&["SOURCE"]) {
            self.create_table(true)
        } else if self.accept(&["MATERIALIZED", "VIEW"]) {
            self.create_materialized_view()
        } else if self.accept(&["SINK"]) {
            self.create_sink()
        } else if !or_replace && self.accept(&["SAVEPOINT"]) {
            self.create_savepoint()
        } else {
            Err(self.syntax_error())
        }
    }

    fn create_view(&mut self, or_replace: bool) -> Result<Statement> {
        let if_not_exists = !or_replace && self.if_not_exists()?;
        let name = self.name()?;
        let columns = self.optional_columns()?;
        self.refuse(&["WITH", "COMMENT"])?;
        self.expect(&["AS"])?;
        let (query, query_text) = self.query()?;
        self.refuse(&["WITH CHECK OPTION", "WITH CASCADED", "WITH LOCAL"])?;
        Ok(Statement::CreateView { name, or_replace, if_not_exists, columns, query, query_text })
    }

    fn create_materialized_view(&mut self) -> Result<Statement> {
        let if_not_exists = self.if_not_exists()?;
        let name = self.name()?;
        let columns = self.optional_columns()?;
        let origin = self.savepoint_clause()?;
        self.refuse(&["USING", "WITH", "TABLESPACE", "COMMENT", "PARTITIONED BY", "FRESHNESS", "REFRESH_MODE"])?;
        self.expect(&["AS"])?;
        let (query, query_text) = self.query()?;
        self.refuse(&["WITH NO DATA"])?;
        self.accept(&["WITH", "DATA"]);
        Ok(Statement::CreateMaterializedView { name, if_not_exists, columns, origin, query, query_text })
    }

    fn create_sink(&mut self) -> Result<Statement> {
        let if_not_exists = self.if_not_exists()?;
        let name = self.name()?;
        // On either side of the options.
        let mut origin = self.savepoint_clause()?;
        self.refuse(&["FROM", "INTO"])?;
        let mut options = if self.peek_is(0, "WITH") { Some(self.options()?) } else { None };
        if origin.is_none() {
            origin = self.savepoint_clause()?;
        }
        self.expect(&["AS"])?;
        let (query, query_text) = self.query()?;
        // The WITH after a query: see `script::separate_sink_options`.
        if self.parser.peek_token_ref().token == Token::SemiColon {
            if options.is_some() {
                return Err(self.syntax_error());
            }
            self.parser.advance_token();
            options = Some(self.option_list()?);
        }
        self.refuse(&["FORMAT", "ENCODE"])?;
        let options = self.connector_options(&name, options.unwrap_or_default())?;
        Ok(Statement::CreateSink { name, if_not_exists, origin, options, query, query_text })
    }

    /// `CREATE TABLE`, of either kind, and `CREATE SOURCE`.
    fn create_table(&mut self, source: bool) -> Result<Statement> {
        let if_not_exists = self.if_not_exists()?;
        let name = self.name()?;
        self.refuse(&["OF", "PARTITION OF"])?;
        let has_elements = self.parser.peek_token_ref().token == Token::LParen;
        let elements = if has_elements { self.table_elements(&name)? } else { TableElements::default() };
        self.refuse(&[
            "COMMENT",
            "PARTITIONED BY",
            "PARTITION BY",
            "DISTRIBUTED",
            "CLUSTERED",
            "INHERITS",
            "USING",
            "WITHOUT OIDS",
            "ON COMMIT",
            "TABLESPACE",
            "LIKE",
            "FORMAT",
            "FROM",
        ])?;
        let options = if self.peek_is(0, "WITH") { Some(self.options()?) } else { None };
        self.refuse(&["PARTITION BY", "WITHOUT OIDS", "ON COMMIT", "TABLESPACE", "AS", "LIKE", "FORMAT", "ENCODE"])?;
        if source || options.as_ref().is_some_and(|options| options.contains_key("connector")) {
            let options = self.connector_options(&name, options.unwrap_or_default())?;
            if elements.primary_key.is_some() {
                return Err(Error::unsupported("PRIMARY KEY of a connector table is not supported"));
            }
            if let Some(column) = elements.columns.iter().find(|column| column.default.is_some()) {
                return Err(Error::unsupported(format!("DEFAULT of column \"{}\" of a connector table is not supported", column.name)));
            }
            return Ok(Statement::CreateConnectorTable { name, if_not_exists, columns: elements.columns, options });
        }
        if !has_elements {
            return Err(self.syntax_error());
        }
        if let Some(option) = options.as_ref().and_then(|options| options.keys().next()) {
            return Err(Error::unsupported(format!("table option \"{option}\" is not supported"))
                .with_hint("A connector table needs the option \"connector\"."));
        }
        if elements.not_enforced {
            return Err(Error::unsupported("NOT ENFORCED is not supported"));
        }
        if elements.columns.is_empty() {
            return Err(Error::unsupported("a table without columns is not supported"));
        }
        let TableElements { columns, primary_key, .. } = elements;
        Ok(Statement::CreateTable { name, if_not_exists, columns, primary_key })
    }

    /// `(column type ..., PRIMARY KEY (...))`
    fn table_elements(&mut self, table: &str) -> Result<TableElements> {
        let mut elements = TableElements::default();
        self.expect_token(&Token::LParen)?;
        if self.accept_token(&Token::RParen) {
            return Ok(elements);
        }
        loop {
            if self.peek_is(0, "WATERMARK") && self.peek_is(1, "FOR") {
                return Err(self.unsupported("watermarks are not supported yet"));
            }
            self.refuse(&["CONSTRAINT", "UNIQUE", "CHECK", "FOREIGN KEY", "EXCLUDE USING", "LIKE", "PERIOD FOR"])?;
            if self.peek_is(0, "EXCLUDE") && self.parser.peek_nth_token_ref(1).token == Token::LParen {
                return Err(self.unsupported("EXCLUDE is not supported"));
            }
            if self.peek_is(0, "PRIMARY") {
                let position = self.source.character(self.location()) + 1;
                self.expect(&["PRIMARY", "KEY"])?;
                self.refuse(&["USING"])?;
                let columns = self.columns()?;
                elements.set_primary_key(table, columns).map_err(|error| error.with_position(position))?;
                self.key_options(&mut elements)?;
            } else {
                self.column(table, &mut elements)?;
            }
            if !self.accept_token(&Token::Comma) {
                break;
            }
        }
        self.expect_token(&Token::RParen)?;
        elements.finish(table)?;
        Ok(elements)
    }

    /// What may follow `PRIMARY KEY`.
    fn key_options(&mut self, elements: &mut TableElements) -> Result<()> {
        elements.not_enforced |= self.accept(&["NOT", "ENFORCED"]);
        self.refuse(&["INCLUDE", "WITH", "USING INDEX", "DEFERRABLE", "NOT DEFERRABLE", "INITIALLY", "ENFORCED", "ASC", "DESC"])
    }

    fn column(&mut self, table: &str, elements: &mut TableElements) -> Result<()> {
        let at = self.location();
        let position = self.source.character(at) + 1;
        let name = self.identifier()?;
        if elements.columns.iter().any(|column| column.name == name) {
            return Err(duplicate_column(&name).with_position(position));
        }
        if self.peek_is(0, "AS") {
            return Err(self.unsupported("a computed column is not supported"));
        }
        let ty = self.column_type()?;
        let mut column = ColumnDefinition { name: name.clone(), ty, not_null: false, default: None };
        loop {
            let here = self.source.character(self.location()) + 1;
            self.refuse(&[
                "CONSTRAINT",
                "UNIQUE",
                "CHECK",
                "REFERENCES",
                "GENERATED",
                "COLLATE",
                "METADATA",
                "VIRTUAL",
                "COMMENT",
                "STORAGE",
                "COMPRESSION",
                "DEFERRABLE",
                "NOT DEFERRABLE",
                "INITIALLY",
            ])?;
            if self.accept(&["NOT", "NULL"]) {
                column.not_null = true;
            } else if self.accept(&["NULL"]) {
                elements.nullable.push(name.clone());
            } else if self.accept(&["PRIMARY", "KEY"]) {
                elements.set_primary_key(table, vec![name.clone()]).map_err(|error| error.with_position(here))?;
                self.key_options(elements)?;
            } else if self.accept(&["DEFAULT"]) {
                if column.default.is_some() {
                    let message = format!("multiple default values specified for column \"{name}\" of table \"{table}\"");
                    return Err(Error::new(SqlState::SYNTAX_ERROR, message).with_position(here));
                }
                column.default = Some(self.default_value()?);
            } else {
                break;
            }
        }
        elements.columns.push(column);
        Ok(())
    }

    /// The expression of a DEFAULT, as text.
    fn default_value(&mut self) -> Result<String> {
        /// Breaks with what a default may not contain.
        struct Constant;
        impl Visitor for Constant {
            type Break = &'static str;
            fn pre_visit_expr(&mut self, expr: &Expr) -> std::ops::ControlFlow<&'static str> {
                match expr {
                    Expr::Identifier(_) | Expr::CompoundIdentifier(_) => std::ops::ControlFlow::Break("column reference"),
                    Expr::Subquery(_) | Expr::Exists { .. } | Expr::InSubquery { .. } => std::ops::ControlFlow::Break("subquery"),
                    _ => std::ops::ControlFlow::Continue(()),
                }
            }
        }
        let position = self.source.character(self.location()) + 1;
        // Without IS, NOT, AND and OR outside parentheses: `DEFAULT 1 NOT NULL` is a default and a constraint.
        let (expr, text) = self.expression_above(PostgreSqlDialect {}.prec_value(Precedence::Is))?;
        match expr.visit(&mut Constant) {
            std::ops::ControlFlow::Break(what) => {
                Err(Error::unsupported(format!("cannot use {what} in DEFAULT expression")).with_position(position))
            }
            std::ops::ControlFlow::Continue(()) => Ok(text),
        }
    }

    /// `WITH (name = value, ...)`
    fn options(&mut self) -> Result<BTreeMap<String, String>> {
        self.expect(&["WITH"])?;
        self.option_list()
    }

    /// `(name = value, ...)`
    fn option_list(&mut self) -> Result<BTreeMap<String, String>> {
        self.expect_token(&Token::LParen)?;
        let mut options = BTreeMap::new();
        if self.accept_token(&Token::RParen) {
            return Ok(options);
        }
        loop {
            let position = self.source.character(self.location()) + 1;
            let mut name = match self.string() {
                Some(name) => name,
                None => self.option_name()?,
            };
            // Case counts for nothing in the names of a connector's options, and of the one that chooses the connector neither.
            if name.eq_ignore_ascii_case("connector") {
                name.make_ascii_lowercase();
            }
            self.expect_token(&Token::Eq)?;
            let value = self.option_value()?;
            if options.insert(name.clone(), value).is_some() {
                let message = format!("parameter \"{name}\" specified more than once");
                return Err(Error::new(SqlState::SYNTAX_ERROR, message).with_position(position));
            }
            if !self.accept_token(&Token::Comma) {
                break;
            }
        }
        self.expect_token(&Token::RParen)?;
        Ok(options)
    }

    /// `a`, `a.b`: words of any kind, joined by dots.
    fn option_name(&mut self) -> Result<String> {
        let mut name = String::new();
        loop {
            match &self.parser.peek_token_ref().token {
                Token::Word(word) if word.quote_style.is_none() => name.push_str(&word.value.to_ascii_lowercase()),
                Token::Word(word) => name.push_str(&word.value),
                _ => return Err(self.syntax_error()),
            }
            self.parser.advance_token();
            if !self.accept_token(&Token::Period) {
                return Ok(name);
            }
            name.push('.');
        }
    }

    fn option_value(&mut self) -> Result<String> {
        if let Some(value) = self.string() {
            return Ok(value);
        }
        if let Some(value) = self.number() {
            return Ok(value);
        }
        let word = match &self.parser.peek_token_ref().token {
            Token::Word(word) if word.quote_style.is_none() => word.value.to_ascii_lowercase(),
            Token::Word(word) => word.value.clone(),
            _ => return Err(self.syntax_error()),
        };
        self.parser.advance_token();
        Ok(word)
    }

    /// `options`, if they name a connector.
    fn connector_options(&self, name: &str, options: BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
        if options.contains_key("connector") {
            return Ok(options);
        }
        Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("\"{name}\" needs the option \"connector\""))
            .with_hint("Write WITH (connector = '...')."))
    }
}

impl TableElements {
    fn set_primary_key(&mut self, table: &str, columns: Vec<String>) -> Result<()> {
        if self.primary_key.replace(columns).is_some() {
            let message = format!("multiple primary keys for table \"{table}\" are not allowed");
            return Err(Error::new(SqlState::INVALID_TABLE_DEFINITION, message));
        }
        Ok(())
    }

    /// Makes the primary key's columns NOT NULL. Errors where it names no column, or NULL and NOT NULL meet.
    fn finish(&mut self, table: &str) -> Result<()> {
        for key in self.primary_key.iter().flatten() {
            match self.columns.iter_mut().find(|column| column.name == *key) {
                Some(column) => column.not_null = true,
                None => {
                    return Err(Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{key}\" named in key does not exist")));
                }
            }
        }
        match self.columns.iter().find(|column| column.not_null && self.nullable.contains(&column.name)) {
            Some(column) => {
                let message = format!("conflicting NULL/NOT NULL declarations for column \"{}\" of table \"{table}\"", column.name);
                Err(Error::new(SqlState::SYNTAX_ERROR, message))
            }
            None => Ok(()),
        }
    }
}
