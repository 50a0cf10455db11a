//! Statements on savepoints, and on jobs that begin from one.

use datafusion::sql::sqlparser::tokenizer::Token;
use weir_catalog::Result;

use super::Cursor;
use crate::statement::{FromSavepoint, SavepointSource, Statement};

impl Cursor<'_> {
    /// `CREATE SAVEPOINT name FOR job [AT 'folder']`, behind `SAVEPOINT`.
    pub(super) fn create_savepoint(&mut self) -> Result<Statement> {
        let name = self.identifier()?;
        self.expect(&["FOR"])?;
        self.accept_one_of(&["JOB", "SINK"]);
        self.accept(&["MATERIALIZED", "VIEW"]);
        let job = self.name()?;
        let location = self.savepoint_location()?;
        Ok(Statement::CreateSavepoint { name, job, location })
    }

    fn savepoint_location(&mut self) -> Result<Option<String>> {
        if !self.accept(&["AT"]) {
            return Ok(None);
        }
        self.string().map(Some).ok_or_else(|| self.syntax_error())
    }

    /// `[IF EXISTS] name, ...`, behind `DROP SAVEPOINT`.
    pub(super) fn drop_savepoint(&mut self) -> Result<Statement> {
        let if_exists = self.accept(&["IF"]);
        if if_exists {
            self.expect(&["EXISTS"])?;
        }
        let mut names = vec![self.identifier()?];
        while self.accept_token(&Token::Comma) {
            names.push(self.identifier()?);
        }
        Ok(Statement::DropSavepoint { names, if_exists })
    }

    /// A savepoint's name, or the folder of one as a string.
    pub(super) fn savepoint_source(&mut self) -> Result<SavepointSource> {
        match self.string() {
            Some(location) => Ok(SavepointSource::Location(location)),
            None => self.identifier().map(SavepointSource::Name),
        }
    }

    /// `FROM SAVEPOINT name | 'folder' [(old AS new, ...)] [ALLOW NON RESTORED STATE]`, or nothing.
    pub(super) fn savepoint_clause(&mut self) -> Result<Option<FromSavepoint>> {
        if !self.accept(&["FROM", "SAVEPOINT"]) {
            return Ok(None);
        }
        let source = self.savepoint_source()?;
        let uids = self.uid_map()?;
        let allow_non_restored_state = self.accept(&["ALLOW", "NON", "RESTORED", "STATE"]);
        Ok(Some(FromSavepoint { source, uids, allow_non_restored_state }))
    }

    /// `(old AS new, ...)`, or nothing.
    fn uid_map(&mut self) -> Result<Vec<(String, String)>> {
        let mut uids = Vec::new();
        if self.accept_token(&Token::LParen) {
            loop {
                let old = self.uid()?;
                self.expect(&["AS"])?;
                uids.push((old, self.uid()?));
                if !self.accept_token(&Token::Comma) {
                    break;
                }
            }
            self.expect_token(&Token::RParen)?;
        }
        Ok(uids)
    }

    /// A uid: a string, a quoted name, or a word.
    fn uid(&mut self) -> Result<String> {
        match self.string() {
            Some(uid) => Ok(uid),
            None => self.identifier(),
        }
    }

    /// `STOP WITH SAVEPOINT name [AT 'folder']`, behind the job's name.
    pub(super) fn stop_with_savepoint(&mut self, job: String) -> Result<Statement> {
        self.expect(&["STOP", "WITH", "SAVEPOINT"])?;
        let name = self.identifier()?;
        let location = self.savepoint_location()?;
        Ok(Statement::StopWithSavepoint { job, name, location })
    }

    /// `RECOVER JOB | MATERIALIZED VIEW | SINK name FROM CHECKPOINT number`.
    pub(super) fn recover(&mut self) -> Result<Statement> {
        self.expect(&["RECOVER"])?;
        if self.accept_one_of(&["JOB", "SINK"]).is_none() {
            self.expect(&["MATERIALIZED", "VIEW"])?;
        }
        let job = self.name()?;
        self.expect(&["FROM", "CHECKPOINT"])?;
        let before = self.syntax_error();
        let checkpoint = self.number().and_then(|number| number.parse().ok()).ok_or(before)?;
        Ok(Statement::Recover { job, checkpoint })
    }

    /// `[(old AS new, ...)] [ALLOW NON RESTORED STATE] AS query`, behind the job's name.
    pub(super) fn alter_query(&mut self, name: String) -> Result<Statement> {
        let uids = self.uid_map()?;
        let allow_non_restored_state = self.accept(&["ALLOW", "NON", "RESTORED", "STATE"]);
        self.expect(&["AS"])?;
        let (query, query_text) = self.query()?;
        Ok(Statement::AlterQuery { name, query, query_text, uids, allow_non_restored_state })
    }
}
