//! INSERT, UPDATE, DELETE and TRUNCATE.

use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{Expr, Query, SetExpr, TableWithJoins, With};
use datafusion::sql::sqlparser::tokenizer::Token;
use weir_catalog::{Error, Result, SqlState};

use super::{Cursor, query};
use crate::statement::{Assignment, Statement};

impl Cursor<'_> {
    pub(super) fn insert(&mut self) -> Result<Statement> {
        self.expect(&["INSERT"])?;
        self.refuse(&["OVERWRITE", "OR"])?;
        self.expect(&["INTO"])?;
        let table = self.name()?;
        self.refuse(&["AS", "PARTITION", "SET"])?;
        // A parenthesis opens the columns, or the query: `INSERT INTO t (SELECT ...)`.
        let opens_query = ["SELECT", "WITH", "VALUES", "TABLE"].iter().any(|word| self.peek_is(1, word))
            || self.parser.peek_nth_token_ref(1).token == Token::LParen;
        let columns = if opens_query { Vec::new() } else { self.optional_columns()? };
        self.refuse(&["OVERRIDING"])?;
        let statement = if self.accept(&["DEFAULT", "VALUES"]) {
            if !columns.is_empty() {
                return Err(self.unsupported("DEFAULT VALUES after a list of columns is not supported"));
            }
            Statement::InsertDefaults { table }
        } else {
            let (source, source_text) = self.query()?;
            Statement::Insert { table, columns, source, source_text, returning: false }
        };
        self.refuse(&["ON CONFLICT", "ON DUPLICATE", "RETURNING"])?;
        Ok(statement)
    }

    pub(super) fn update(&mut self) -> Result<Statement> {
        self.expect(&["UPDATE"])?;
        let (table, alias) = self.target()?;
        self.expect(&["SET"])?;
        let mut assignments: Vec<(String, Assignment)> = Vec::new();
        loop {
            for (column, assignment, position) in self.assignments()? {
                if assignments.iter().any(|(assigned, _)| *assigned == column) {
                    let message = format!("multiple assignments to same column \"{column}\"");
                    return Err(Error::new(SqlState::SYNTAX_ERROR, message).with_position(position));
                }
                assignments.push((column, assignment));
            }
            if !self.accept_token(&Token::Comma) {
                break;
            }
        }
        let from = if self.accept(&["FROM"]) { self.tables()? } else { Vec::new() };
        let selection = self.selection()?;
        self.refuse(&["RETURNING", "ORDER BY", "LIMIT"])?;
        Ok(Statement::Update { table, assignments, alias, from, selection })
    }

    pub(super) fn delete(&mut self) -> Result<Statement> {
        self.expect(&["DELETE", "FROM"])?;
        let (table, alias) = self.target()?;
        let using = if self.accept(&["USING"]) { self.tables()? } else { Vec::new() };
        let selection = self.selection()?;
        self.refuse(&["RETURNING", "ORDER BY", "LIMIT"])?;
        Ok(Statement::Delete { table, alias, using, selection })
    }

    /// `WITH ... INSERT`: the WITH stands before what it is a part of.
    pub(super) fn insert_with(&mut self) -> Result<Statement> {
        let from = self.location();
        self.expect(&["WITH"])?;
        let recursive = self.accept(&["RECURSIVE"]);
        let cte_tables = self.parser.parse_comma_separated(|parser| parser.parse_cte()).map_err(|error| self.error(error))?;
        let written = self.source.text(from, self.location()).to_string();
        if !self.peek_is(0, "INSERT") {
            return Err(self.syntax_error());
        }
        let Statement::Insert { table, columns, mut source, source_text, returning } = self.insert()? else {
            return Err(self.unsupported("WITH before INSERT ... DEFAULT VALUES is not supported"));
        };
        let source_text = match source.with {
            None => format!("{written} {source_text}"),
            // The one of the INSERT's own query stays where it is.
            Some(_) => {
                source = Box::new(around(source));
                format!("{written} ({source_text})")
            }
        };
        source.with = Some(With { with_token: AttachedToken::empty(), recursive, cte_tables });
        query::normalise(&mut *source).and_then(|()| query::check(&*source)).map_err(|error| self.place(error, from))?;
        Ok(Statement::Insert { table, columns, source, source_text, returning })
    }

    /// `TRUNCATE [TABLE] [ONLY] name [*], ...`: no table inherits from another, has a sequence, or refers to another, so that what may follow says nothing.
    pub(super) fn truncate(&mut self) -> Result<Statement> {
        self.expect(&["TRUNCATE"])?;
        self.accept(&["TABLE"]);
        let mut tables = Vec::new();
        loop {
            self.accept(&["ONLY"]);
            let table = self.name()?;
            self.accept_token(&Token::Mul);
            if !tables.contains(&table) {
                tables.push(table);
            }
            if !self.accept_token(&Token::Comma) {
                break;
            }
        }
        if self.accept_one_of(&["RESTART", "CONTINUE"]).is_some() {
            self.expect(&["IDENTITY"])?;
        }
        self.accept_one_of(&["CASCADE", "RESTRICT"]);
        Ok(Statement::Truncate { tables })
    }

    /// What stands behind FROM or USING.
    fn tables(&mut self) -> Result<Vec<TableWithJoins>> {
        let from = self.location();
        let mut tables = self.parser.parse_comma_separated(|parser| parser.parse_table_and_joins()).map_err(|error| self.error(error))?;
        for table in &mut tables {
            query::normalise(table).and_then(|()| query::check(table)).map_err(|error| self.place(error, from))?;
        }
        Ok(tables)
    }

    /// `[ONLY] table [*] [[AS] alias]`: there is no inheritance, so that ONLY and * say nothing.
    fn target(&mut self) -> Result<(String, Option<String>)> {
        self.accept(&["ONLY"]);
        let table = self.name()?;
        self.accept_token(&Token::Mul);
        self.refuse(&["FOR PORTION", "TABLESAMPLE"])?;
        let ends = ["SET", "WHERE", "USING", "RETURNING"];
        let is_alias = self.accept(&["AS"])
            || (matches!(self.parser.peek_token_ref().token, Token::Word(_)) && !ends.iter().any(|word| self.peek_is(0, word)));
        let alias = if is_alias { Some(self.identifier()?) } else { None };
        Ok((table, alias))
    }

    /// `WHERE condition`
    fn selection(&mut self) -> Result<Option<Box<Expr>>> {
        if !self.accept(&["WHERE"]) {
            return Ok(None);
        }
        self.refuse(&["CURRENT OF"])?;
        Ok(Some(Box::new(self.expression()?.0)))
    }

    /// `column = value`, or `(columns) = (values)`; with the position of each column.
    fn assignments(&mut self) -> Result<Vec<(String, Assignment, usize)>> {
        let position = self.source.character(self.location()) + 1;
        if self.parser.peek_token_ref().token != Token::LParen {
            let column = self.identifier()?;
            if matches!(self.parser.peek_token_ref().token, Token::Period | Token::LBracket) {
                return Err(self.unsupported("assignment to a part of a column is not supported"));
            }
            self.expect_token(&Token::Eq)?;
            return Ok(vec![(column, self.assigned()?, position)]);
        }
        let columns = self.columns()?;
        self.expect_token(&Token::Eq)?;
        let row = self.accept(&["ROW"]);
        if self.parser.peek_token_ref().token != Token::LParen {
            return Err(self.syntax_error());
        }
        if self.peek_is(1, "SELECT") || self.peek_is(1, "WITH") || self.peek_is(1, "VALUES") {
            return Err(self.unsupported("assignment of a subquery to several columns is not supported"));
        }
        let values_position = self.source.character(self.location()) + 1;
        self.expect_token(&Token::LParen)?;
        let mut values = vec![self.assigned()?];
        while self.accept_token(&Token::Comma) {
            values.push(self.assigned()?);
        }
        self.expect_token(&Token::RParen)?;
        if values.len() != columns.len() {
            let message = "number of columns does not match number of values";
            return Err(Error::new(SqlState::SYNTAX_ERROR, message).with_position(values_position));
        }
        if columns.len() == 1 && !row {
            let message = "source for a multiple-column UPDATE item must be a sub-SELECT or ROW() expression";
            return Err(Error::unsupported(message).with_position(values_position));
        }
        Ok(columns.into_iter().zip(values).map(|(column, value)| (column, value, position)).collect())
    }

    fn assigned(&mut self) -> Result<Assignment> {
        if self.accept(&["DEFAULT"]) { Ok(Assignment::Default) } else { Ok(Assignment::Expr(Box::new(self.expression()?.0))) }
    }
}

/// A query that consists of `query`.
fn around(query: Box<Query>) -> Query {
    Query {
        with: None,
        body: Box::new(SetExpr::Query(query)),
        order_by: None,
        limit_clause: None,
        fetch: None,
        locks: Vec::new(),
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators: Vec::new(),
    }
}
