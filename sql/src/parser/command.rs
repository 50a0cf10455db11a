//! Transactions, settings, SHOW, DESCRIBE, EXPLAIN, DROP, and what runs on jobs.

use datafusion::sql::sqlparser::tokenizer::Token;
use weir_catalog::Result;

use super::Cursor;
use crate::statement::{DropKind, ShowKind, Statement};

/// The words that statements without a plan begin with.
const STATEMENTS: &[&str] = &[
    "ABORT",
    "ALTER",
    "BEGIN",
    "CHECKPOINT",
    "COMMIT",
    "DEALLOCATE",
    "DELETE",
    "DESC",
    "DESCRIBE",
    "DISCARD",
    "DROP",
    "END",
    "EXPLAIN",
    "FLUSH",
    "RECOVER",
    "RESET",
    "ROLLBACK",
    "SET",
    "SHOW",
    "START",
    "UPDATE",
];

impl Cursor<'_> {
    /// `BEGIN`, `START TRANSACTION`, `COMMIT`, `END`, `ROLLBACK`, `ABORT`.
    pub(super) fn transaction(&mut self) -> Result<Statement> {
        let verb = self.accept_one_of(&["BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT"]);
        let statement = match verb {
            Some("START") => {
                self.expect(&["TRANSACTION"])?;
                Statement::Begin("START TRANSACTION")
            }
            Some("BEGIN") => Statement::Begin("BEGIN"),
            Some("COMMIT" | "END") => Statement::Commit,
            Some("ROLLBACK" | "ABORT") => Statement::Rollback,
            _ => return Err(self.syntax_error()),
        };
        if verb != Some("START") {
            // Flink's BEGIN STATEMENT SET groups INSERTs.
            self.refuse(&["STATEMENT SET", "PREPARED"])?;
            self.accept_one_of(&["WORK", "TRANSACTION"]);
        }
        if let Statement::Begin(_) = statement {
            self.transaction_modes()?;
            return Ok(statement);
        }
        if self.peek_is(0, "TO") {
            return Err(self.unsupported("ROLLBACK TO SAVEPOINT is not supported"));
        }
        self.refuse(&["AND CHAIN"])?;
        self.accept(&["AND", "NO", "CHAIN"]);
        Ok(statement)
    }

    /// Isolation levels and access modes. Each statement reads the newest commit, which is READ COMMITTED; the levels above promise more.
    fn transaction_modes(&mut self) -> Result<()> {
        while !self.at_end() {
            if self.accept(&["ISOLATION", "LEVEL"]) {
                self.refuse(&["SERIALIZABLE", "REPEATABLE READ"])
                    .map_err(|error| error.with_hint("Use the isolation level READ COMMITTED."))?;
                if !self.accept(&["READ", "COMMITTED"]) && !self.accept(&["READ", "UNCOMMITTED"]) {
                    return Err(self.syntax_error());
                }
            } else {
                self.refuse(&["READ ONLY", "DEFERRABLE"])?;
                if !self.accept(&["READ", "WRITE"]) && !self.accept(&["NOT", "DEFERRABLE"]) {
                    return Err(self.syntax_error());
                }
            }
            self.accept_token(&Token::Comma);
        }
        Ok(())
    }

    pub(super) fn set(&mut self) -> Result<Statement> {
        self.expect(&["SET"])?;
        self.refuse(&["CONSTRAINTS", "ROLE", "SESSION AUTHORIZATION", "LOCAL ROLE", "SESSION ROLE", "LOCAL SESSION AUTHORIZATION"])?;
        if self.accept(&["SESSION", "CHARACTERISTICS"]) {
            self.expect(&["AS", "TRANSACTION"])?;
            self.transaction_modes()?;
            return Ok(Statement::NoOp("SET"));
        }
        if self.peek_is(0, "TRANSACTION") && self.parser.peek_nth_token_ref(1).token != Token::Eq {
            self.expect(&["TRANSACTION"])?;
            self.refuse(&["SNAPSHOT"])?;
            self.transaction_modes()?;
            return Ok(Statement::NoOp("SET"));
        }
        let local = match self.peek_word_then_value() {
            true => false,
            false => self.accept_one_of(&["SESSION", "LOCAL"]) == Some("LOCAL"),
        };
        if self.accept(&["TIME", "ZONE"]) {
            self.refuse(&["INTERVAL"])?;
            let value = match self.accept_one_of(&["LOCAL", "DEFAULT"]) {
                Some(_) => None,
                None => Some(self.setting_value()?),
            };
            return Ok(Statement::Set { name: "timezone".to_string(), value, local });
        }
        if self.accept(&["NAMES"]) {
            let value = match self.accept(&["DEFAULT"]) || self.at_end() {
                true => None,
                false => Some(self.setting_value()?),
            };
            return Ok(Statement::Set { name: "client_encoding".to_string(), value, local });
        }
        let name = self.setting_name()?;
        if !self.accept_token(&Token::Eq) {
            self.expect(&["TO"])?;
        }
        if self.accept(&["DEFAULT"]) {
            return Ok(Statement::Set { name, value: None, local });
        }
        let mut values = vec![self.setting_value()?];
        while self.accept_token(&Token::Comma) {
            values.push(self.setting_value()?);
        }
        Ok(Statement::Set { name, value: Some(values.join(", ")), local })
    }

    /// Whether the next word is a setting that is called `session` or `local`.
    fn peek_word_then_value(&self) -> bool {
        self.parser.peek_nth_token_ref(1).token == Token::Eq || self.peek_is(1, "TO")
    }

    /// `a`, `a.b`, or (Flink's) `'a.b'`, in lower case.
    fn setting_name(&mut self) -> Result<String> {
        if let Some(name) = self.string() {
            return Ok(name.to_ascii_lowercase());
        }
        let mut name = self.identifier()?;
        while self.accept_token(&Token::Period) {
            name.push('.');
            name.push_str(&self.identifier()?);
        }
        Ok(name.to_ascii_lowercase())
    }

    /// A string, a number, or a word (`on` and `default`'s like, also reserved ones).
    fn setting_value(&mut self) -> Result<String> {
        if let Some(value) = self.string() {
            return Ok(value);
        }
        if let Some(value) = self.number() {
            return Ok(value);
        }
        if ["ON", "TRUE", "FALSE", "ALL", "USER"].iter().any(|word| self.peek_is(0, word)) {
            let word = self.peek_word(0).map(|word| word.value.to_ascii_lowercase()).unwrap_or_default();
            self.parser.advance_token();
            return Ok(word);
        }
        self.identifier()
    }

    pub(super) fn reset(&mut self) -> Result<Statement> {
        self.expect(&["RESET"])?;
        self.refuse(&["SESSION AUTHORIZATION", "ROLE"])?;
        if self.accept(&["ALL"]) {
            return Ok(Statement::ResetAll);
        }
        let name = match self.accept(&["TIME", "ZONE"]) {
            true => "timezone".to_string(),
            false if self.accept(&["TRANSACTION", "ISOLATION", "LEVEL"]) => "transaction_isolation".to_string(),
            false => self.setting_name()?,
        };
        Ok(Statement::Set { name, value: None, local: false })
    }

    pub(super) fn show(&mut self) -> Result<Statement> {
        self.expect(&["SHOW"])?;
        self.refuse(&["CREATE", "COLUMNS", "FUNCTIONS", "CATALOGS", "DATABASES", "SCHEMAS", "INDEXES", "FULL", "PARTITIONS", "MODULES"])?;
        if self.accept(&["ALL"]) {
            return Ok(Statement::ShowSetting("all".to_string()));
        }
        let kinds: [(&[&str], ShowKind); 8] = [
            (&["JOBS"], ShowKind::Jobs),
            (&["CHECKPOINTS"], ShowKind::Checkpoints),
            (&["TABLES"], ShowKind::Tables),
            (&["VIEWS"], ShowKind::Views),
            (&["MATERIALIZED", "VIEWS"], ShowKind::MaterializedViews),
            (&["SINKS"], ShowKind::Sinks),
            (&["SOURCES"], ShowKind::Sources),
            (&["SAVEPOINTS"], ShowKind::Savepoints),
        ];
        for (words, kind) in kinds {
            if self.accept(words) {
                self.refuse(&["FROM", "IN", "LIKE", "NOT LIKE", "ILIKE", "WHERE"])?;
                return Ok(Statement::Show(kind));
            }
        }
        let words: [(&[&str], &str); 3] = [
            (&["TIME", "ZONE"], "timezone"),
            (&["TRANSACTION", "ISOLATION", "LEVEL"], "transaction_isolation"),
            (&["SESSION", "AUTHORIZATION"], "session_authorization"),
        ];
        for (words, name) in words {
            if self.accept(words) {
                return Ok(Statement::ShowSetting(name.to_string()));
            }
        }
        Ok(Statement::ShowSetting(self.setting_name()?))
    }

    pub(super) fn describe(&mut self) -> Result<Statement> {
        self.accept_one_of(&["DESCRIBE", "DESC"]);
        self.refuse(&["EXTENDED", "FORMATTED", "CATALOG", "DATABASE", "FUNCTION", "JOB"])?;
        // A relation may be called so.
        if self.peek_is(0, "SAVEPOINT") && self.parser.peek_nth_token_ref(1).token != Token::EOF {
            self.expect(&["SAVEPOINT"])?;
            return Ok(Statement::DescribeSavepoint(self.savepoint_source()?));
        }
        Ok(Statement::Describe(self.name()?))
    }

    pub(super) fn explain(&mut self) -> Result<Statement> {
        self.expect(&["EXPLAIN"])?;
        self.refuse(&[
            "ANALYZE",
            "ANALYSE",
            "VERBOSE",
            "ESTIMATED_COST",
            "CHANGELOG_MODE",
            "JSON_EXECUTION_PLAN",
            "PLAN_ADVICE",
            "STATEMENT SET",
        ])?;
        // A parenthesis opens options, or a query.
        let opens_query = ["SELECT", "WITH", "VALUES", "TABLE"].iter().any(|word| self.peek_is(1, word))
            || self.parser.peek_nth_token_ref(1).token == Token::LParen;
        if self.parser.peek_token_ref().token == Token::LParen && !opens_query {
            return Err(self.unsupported("an option of EXPLAIN is not supported"));
        }
        // Flink's spelling.
        self.accept(&["PLAN", "FOR"]);
        if self.accept(&["UPGRADE"]) {
            return self.explain_upgrade();
        }
        let kinds: [&[&str]; 3] = [&["MATERIALIZED", "VIEW"], &["SINK"], &["JOB"]];
        let names = |words: &&[&str]| words.iter().enumerate().all(|(n, word)| self.peek_is(n + 1, word));
        let alters = self.peek_is(0, "ALTER") && kinds.iter().any(names);
        let explainable = self.at_query() || self.peek_is(0, "CREATE") || self.peek_is(0, "INSERT") || alters;
        let from = self.location();
        let Some(word) = self.peek_word(0).map(|word| word.value.to_ascii_uppercase()).or_else(|| explainable.then(String::new)) else {
            return Err(self.syntax_error());
        };
        let before = self.syntax_error();
        let refused = self
            .unsupported(format!("EXPLAIN {word} is not supported"))
            .with_hint("EXPLAIN shows the plans of queries, CREATE MATERIALIZED VIEW, CREATE SINK, and INSERT INTO a connector table.");
        if !explainable {
            let is_statement = STATEMENTS.contains(&word.as_str()) || super::UNSUPPORTED_STATEMENTS.contains(&word.as_str());
            return Err(if is_statement { refused } else { before });
        }
        let statement = self.statement()?;
        match statement {
            Statement::Query(_)
            | Statement::CreateMaterializedView { .. }
            | Statement::CreateSink { .. }
            | Statement::Insert { .. }
            | Statement::AlterQuery { .. } => {}
            _ => return Err(refused),
        }
        // Read again on its own, so that its spans count from its own first character.
        let text = self.source.text(from, self.location());
        let Some(mut inner) = super::parse(text)?.pop() else { return Err(before) };
        inner.offset = self.source.character(from);
        Ok(Statement::Explain(Box::new(inner)))
    }

    /// `PREPARE name [(types)] AS statement`.
    pub(super) fn prepare(&mut self) -> Result<Statement> {
        self.expect(&["PREPARE"])?;
        self.refuse(&["TRANSACTION"])?;
        let name = self.identifier()?;
        let mut types = Vec::new();
        if self.accept_token(&Token::LParen) {
            loop {
                let position = self.source.character(self.location()) + 1;
                let data_type = super::parse_type(&mut self.parser).map_err(|error| self.error(error))?;
                types.push(super::sql_type(&data_type).map_err(|error| error.with_position(position))?);
                if !self.accept_token(&Token::Comma) {
                    break;
                }
            }
            self.expect_token(&Token::RParen)?;
        }
        self.expect(&["AS"])?;
        let from = self.location();
        let is_known = self.at_query() || ["INSERT", "UPDATE", "DELETE"].iter().any(|word| self.peek_is(0, word));
        if !is_known {
            return Err(self.syntax_error());
        }
        self.statement()?;
        // Read again on its own, so that its spans count from its own first character.
        let text = self.source.text(from, self.location());
        let Some(mut statement) = super::parse(text)?.pop() else { return Err(self.syntax_error()) };
        statement.offset = self.source.character(from);
        Ok(Statement::Prepare { name, types, statement: Box::new(statement) })
    }

    /// `EXECUTE name [(values)]`.
    pub(super) fn execute(&mut self) -> Result<Statement> {
        self.expect(&["EXECUTE"])?;
        let name = self.identifier()?;
        let mut arguments = Vec::new();
        if self.accept_token(&Token::LParen) {
            loop {
                arguments.push(self.expression()?.0);
                if !self.accept_token(&Token::Comma) {
                    break;
                }
            }
            self.expect_token(&Token::RParen)?;
        }
        Ok(Statement::Execute { name, arguments })
    }

    /// `EXPLAIN UPGRADE job AS query`: what ALTER ... AS would do.
    fn explain_upgrade(&mut self) -> Result<Statement> {
        const VERB: &str = "ALTER JOB ";
        let from = self.location();
        let name = self.name()?;
        self.alter_query(name)?;
        let text = format!("{VERB}{}", self.source.text(from, self.location()));
        let Some(mut inner) = super::parse(&text)?.pop() else { return Err(self.syntax_error()) };
        // EXPLAIN UPGRADE, which stands before, is longer.
        inner.offset = self.source.character(from).saturating_sub(VERB.len());
        Ok(Statement::Explain(Box::new(inner)))
    }

    pub(super) fn drop_objects(&mut self) -> Result<Statement> {
        self.expect(&["DROP"])?;
        if self.accept(&["SAVEPOINT"]) {
            return self.drop_savepoint();
        }
        let kinds: [(&[&str], DropKind); 6] = [
            (&["TABLE"], DropKind::Table),
            (&["VIEW"], DropKind::View),
            (&["MATERIALIZED", "VIEW"], DropKind::MaterializedView),
            (&["SINK"], DropKind::Sink),
            (&["SOURCE"], DropKind::Source),
            (&["JOB"], DropKind::Job),
        ];
        let Some(kind) = kinds.into_iter().find_map(|(words, kind)| self.accept(words).then_some(kind)) else {
            self.refuse(&[
                "AGGREGATE",
                "CATALOG",
                "CONNECTION",
                "DATABASE",
                "DOMAIN",
                "EXTENSION",
                "FUNCTION",
                "INDEX",
                "OPERATOR",
                "OWNED",
                "POLICY",
                "PROCEDURE",
                "ROLE",
                "RULE",
                "SCHEMA",
                "SECRET",
                "SEQUENCE",
                "SERVER",
                "TEMPORARY",
                "TRIGGER",
                "TYPE",
                "USER",
            ])?;
            return Err(self.syntax_error());
        };
        let if_exists = self.accept(&["IF"]);
        if if_exists {
            self.expect(&["EXISTS"])?;
        }
        let mut names = vec![self.name()?];
        while self.accept_token(&Token::Comma) {
            names.push(self.name()?);
        }
        let cascade = self.accept_one_of(&["CASCADE", "RESTRICT"]) == Some("CASCADE");
        Ok(Statement::Drop { kind, names, if_exists, cascade })
    }

    /// `ALTER JOB | MATERIALIZED VIEW | SINK name RESUME | STOP WITH SAVEPOINT ... | AS ...`.
    pub(super) fn alter(&mut self) -> Result<Statement> {
        let from = self.location();
        self.expect(&["ALTER"])?;
        let known = [&["JOB"] as &[&str], &["MATERIALIZED", "VIEW"], &["SINK"]];
        if !known.iter().any(|words| self.accept(words)) {
            let Some(word) = self.peek_word(0) else { return Err(self.syntax_error()) };
            return Err(self.unsupported(format!("ALTER {} is not supported", word.value.to_ascii_uppercase())));
        }
        let name = self.name()?;
        if self.peek_is(0, "STOP") {
            return self.stop_with_savepoint(name);
        }
        if self.peek_is(0, "AS") || self.peek_is(0, "ALLOW") || self.parser.peek_token_ref().token == Token::LParen {
            return self.alter_query(name);
        }
        if !self.accept(&["RESUME"]) {
            let Some(word) = self.peek_word(0) else { return Err(self.syntax_error()) };
            let clause = word.value.to_ascii_uppercase();
            let words = self.source.text(from, self.location()).split_whitespace().take(2).collect::<Vec<_>>().join(" ");
            return Err(self.unsupported(format!("{} ... {clause} is not supported", words.to_ascii_uppercase())));
        }
        Ok(Statement::Resume(name))
    }

    /// `FLUSH`, `CHECKPOINT`, and what drivers send when a session goes back to its pool.
    pub(super) fn session_command(&mut self) -> Result<Statement> {
        match self.accept_one_of(&["FLUSH", "CHECKPOINT", "DISCARD", "DEALLOCATE"]) {
            Some("FLUSH") => Ok(Statement::Flush),
            Some("CHECKPOINT") => Ok(Statement::Checkpoint),
            // What else DISCARD ALL throws away, a session here has not, or the protocol keeps and replaces by name.
            Some("DISCARD") => match self.accept_one_of(&["ALL", "PLANS", "SEQUENCES", "TEMP", "TEMPORARY"]) {
                Some("ALL") => Ok(Statement::DiscardAll),
                Some("PLANS") => Ok(Statement::NoOp("DISCARD PLANS")),
                Some("SEQUENCES") => Ok(Statement::NoOp("DISCARD SEQUENCES")),
                Some(_) => Ok(Statement::NoOp("DISCARD TEMP")),
                None => Err(self.syntax_error()),
            },
            Some("DEALLOCATE") => {
                self.accept(&["PREPARE"]);
                if self.accept(&["ALL"]) {
                    return Ok(Statement::Deallocate(None));
                }
                Ok(Statement::Deallocate(Some(self.identifier()?)))
            }
            _ => Err(self.syntax_error()),
        }
    }
}
