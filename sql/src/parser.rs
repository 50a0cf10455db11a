//! SQL text to [`Statement`]s.
//!
//! Queries and expressions are read by `sqlparser` in [`WeirDialect`]; the statements around them are read here, word by word, so that
//! there is no clause that is parsed and then forgotten.
//!
//! | module | reads |
//! | --- | --- |
//! | `script` | tokens, positions, splitting, limits |
//! | `from` | what `sqlparser` does not read of a FROM |
//! | `escapes` | strings with escapes that `sqlparser` does not read |
//! | `place` | where something stands, for errors |
//! | `query` | what a query may not contain |
//! | `types` | type names |
//! | `create` | CREATE |
//! | `dml` | INSERT, UPDATE, DELETE |
//! | `command` | everything else |
//!
//! # Invariants
//! - A clause that nothing consumes is refused with `0A000`; text that is no SQL with `42601` and its position.
//! - No input panics or overflows the stack: too deep a statement is `54001`.
//! - Names come out as they are compared: lower case unless quoted, without the schema `public` and the catalog `weir`.

mod command;
mod create;
mod dml;
mod escapes;
mod from;
pub mod place;
mod query;
mod savepoint;
mod script;
#[cfg(test)]
mod tests;
mod types;

use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan, Word};
use weir_catalog::{Error, Result, SqlState};

use crate::dialect::WeirDialect;
use crate::statement::{Parsed, Statement};
use query::Refusal;
use script::Source;

pub use query::{block_uid, check_expr, check_query, check_scalar_calls};
pub use script::position;
pub(crate) use types::parse_type;
pub use types::sql_type;

/// How deep `sqlparser` may recurse; a level of parentheses takes up to three of these. What nests too deep is refused before; here the stack grows with it.
const RECURSION_LIMIT: usize = 3_300;

/// The statements of a script, in order; empty ones are left out. Spans in the syntax trees count from each statement's first character
/// (see [`position`]); positions of errors count from the script's.
pub fn parse(sql: &str) -> Result<Vec<Parsed>> {
    script::split(sql)?.into_iter().map(|(source, tokens)| with_cursor(&source, tokens, |cursor| cursor.statement_whole())).collect()
}

/// The one query that `sql` holds, as it comes from `query_text` in the catalog.
pub fn parse_query(sql: &str) -> Result<Box<ast::Query>> {
    parse_single(sql, |cursor| Ok(cursor.query()?.0))
}

/// The one expression that `sql` holds, as it comes from a column's `DEFAULT`.
pub fn parse_expression(sql: &str) -> Result<ast::Expr> {
    parse_single(sql, |cursor| Ok(cursor.expression()?.0))
}

fn parse_single<T>(sql: &str, read: impl FnOnce(&mut Cursor) -> Result<T>) -> Result<T> {
    let mut statements = script::split(sql)?;
    match (statements.pop(), statements.pop()) {
        (Some((source, tokens)), None) => with_cursor(&source, tokens, read),
        (None, _) => Err(Error::new(SqlState::SYNTAX_ERROR, "syntax error at end of input")),
        (Some((source, _)), Some(_)) => {
            Err(Error::new(SqlState::SYNTAX_ERROR, "syntax error at or near \";\"").with_position(source.statement().1 + 1))
        }
    }
}

fn with_cursor<T>(source: &Source, tokens: Vec<TokenWithSpan>, read: impl FnOnce(&mut Cursor) -> Result<T>) -> Result<T> {
    let tokens = from::spell_out(tokens);
    script::check_limits(source, &tokens)?;
    let mut tokens = script::expand_table_queries(tokens);
    script::separate_sink_options(&mut tokens);
    script::place_checkpoints(&mut tokens);
    let inserts_with = script::inserts_with(&tokens);
    let dialect = WeirDialect::for_tokens(tokens.len());
    let parser = Parser::new(&dialect).with_recursion_limit(RECURSION_LIMIT).with_tokens_with_locations(tokens);
    let mut cursor = Cursor { parser, source, inserts_with };
    let value = read(&mut cursor)?;
    cursor.end()?;
    Ok(value)
}

/// Words that PostgreSQL takes for no table and no column unless they are quoted.
const RESERVED: &[&str] = &[
    "all",
    "analyse",
    "analyze",
    "and",
    "any",
    "array",
    "as",
    "asc",
    "asymmetric",
    "authorization",
    "binary",
    "both",
    "case",
    "cast",
    "check",
    "collate",
    "collation",
    "column",
    "concurrently",
    "constraint",
    "create",
    "cross",
    "current_catalog",
    "current_date",
    "current_role",
    "current_schema",
    "current_time",
    "current_timestamp",
    "current_user",
    "default",
    "deferrable",
    "desc",
    "distinct",
    "do",
    "else",
    "end",
    "except",
    "false",
    "fetch",
    "for",
    "foreign",
    "freeze",
    "from",
    "full",
    "grant",
    "group",
    "having",
    "ilike",
    "in",
    "initially",
    "inner",
    "intersect",
    "into",
    "is",
    "isnull",
    "join",
    "lateral",
    "leading",
    "left",
    "like",
    "limit",
    "localtime",
    "localtimestamp",
    "natural",
    "not",
    "notnull",
    "null",
    "offset",
    "on",
    "only",
    "or",
    "order",
    "outer",
    "overlaps",
    "placing",
    "primary",
    "references",
    "returning",
    "right",
    "select",
    "session_user",
    "similar",
    "some",
    "symmetric",
    "system_user",
    "table",
    "tablesample",
    "then",
    "to",
    "trailing",
    "true",
    "union",
    "unique",
    "user",
    "using",
    "variadic",
    "verbose",
    "when",
    "where",
    "window",
    "with",
];

/// Words that PostgreSQL takes for no function or type unless they are quoted.
const NO_FUNCTIONS: &[&str] = &[
    "between",
    "bigint",
    "bit",
    "boolean",
    "char",
    "character",
    "coalesce",
    "dec",
    "decimal",
    "exists",
    "extract",
    "float",
    "greatest",
    "grouping",
    "inout",
    "int",
    "integer",
    "interval",
    "least",
    "national",
    "nchar",
    "none",
    "normalize",
    "nullif",
    "numeric",
    "out",
    "overlay",
    "position",
    "precision",
    "real",
    "row",
    "setof",
    "smallint",
    "substring",
    "time",
    "timestamp",
    "treat",
    "trim",
    "values",
    "varchar",
    "xmlattributes",
    "xmlconcat",
    "xmlelement",
    "xmlexists",
    "xmlforest",
    "xmlnamespaces",
    "xmlparse",
    "xmlpi",
    "xmlroot",
    "xmlserialize",
    "xmltable",
];

/// A name as PostgreSQL's quote_ident writes it.
pub(crate) fn quoted_name(name: &str) -> String {
    let is_plain = name.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
        && name.chars().all(|ch| ch.is_ascii_lowercase() || ch.is_ascii_digit() || ch == '_')
        && !RESERVED.contains(&name)
        && !NO_FUNCTIONS.contains(&name);
    if is_plain { name.to_string() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// Statements that PostgreSQL or Flink have and weir has not.
const UNSUPPORTED_STATEMENTS: &[&str] = &[
    "ADD",
    "ANALYZE",
    "CALL",
    "CLOSE",
    "CLUSTER",
    "COMMENT",
    "COPY",
    "DECLARE",
    "DO",
    "FETCH",
    "GRANT",
    "IMPORT",
    "LISTEN",
    "LOAD",
    "LOCK",
    "MERGE",
    "MOVE",
    "NOTIFY",
    "REASSIGN",
    "REFRESH",
    "REINDEX",
    "RELEASE",
    "REMOVE",
    "REVOKE",
    "SAVEPOINT",
    "SECURITY",
    "STOP",
    "SUBSCRIBE",
    "UNLISTEN",
    "UNLOAD",
    "USE",
    "VACUUM",
];

/// A place in one statement.
struct Cursor<'a> {
    parser: Parser<'a>,
    source: &'a Source<'a>,
    /// Whether the statement begins with WITH, and what that belongs to is an INSERT.
    inserts_with: bool,
}

impl Cursor<'_> {
    /// The whole statement, with its text.
    fn statement_whole(&mut self) -> Result<Parsed> {
        let (text, offset) = self.source.statement();
        let statement = self.statement()?;
        Ok(Parsed { statement, text: text.to_string(), offset })
    }

    fn statement(&mut self) -> Result<Statement> {
        if self.inserts_with && self.peek_is(0, "WITH") {
            return self.insert_with();
        }
        if self.at_query() {
            return Ok(Statement::Query(self.query()?.0));
        }
        let Some(word) = self.peek_word(0).map(|word| word.value.to_ascii_uppercase()) else {
            return Err(self.syntax_error());
        };
        match word.as_str() {
            "CREATE" => self.create(),
            "INSERT" => self.insert(),
            "UPDATE" => self.update(),
            "DELETE" => self.delete(),
            "TRUNCATE" => self.truncate(),
            "PREPARE" => self.prepare(),
            "EXECUTE" => self.execute(),
            "DROP" => self.drop_objects(),
            "ALTER" => self.alter(),
            "BEGIN" | "START" | "COMMIT" | "END" | "ROLLBACK" | "ABORT" => self.transaction(),
            "SET" => self.set(),
            "RESET" => self.reset(),
            "SHOW" => self.show(),
            "DESCRIBE" | "DESC" => self.describe(),
            "EXPLAIN" => self.explain(),
            "RECOVER" => self.recover(),
            "FLUSH" | "CHECKPOINT" | "DISCARD" | "DEALLOCATE" => self.session_command(),
            word if UNSUPPORTED_STATEMENTS.contains(&word) => Err(self.unsupported(format!("{word} is not supported"))),
            _ => Err(self.syntax_error()),
        }
    }

    /// Whether a query begins here.
    fn at_query(&self) -> bool {
        self.parser.peek_token_ref().token == Token::LParen
            || ["SELECT", "WITH", "VALUES", "TABLE"].iter().any(|word| self.peek_is(0, word))
    }

    /// A query that has been checked, and its text.
    fn query(&mut self) -> Result<(Box<ast::Query>, String)> {
        if !self.at_query() {
            return Err(self.syntax_error());
        }
        let from = self.location();
        let mut query = self.parser.parse_query().map_err(|error| self.error(error))?;
        let text = self.source.text(from, self.location()).to_string();
        query::normalise(&mut *query).and_then(|()| query::check(&*query)).map_err(|error| self.place(error, from))?;
        Ok((query, text))
    }

    /// An expression that has been checked, and its text.
    fn expression(&mut self) -> Result<(ast::Expr, String)> {
        self.expression_above(0)
    }

    /// An expression of operators that bind more tightly than `precedence`.
    fn expression_above(&mut self, precedence: u8) -> Result<(ast::Expr, String)> {
        let from = self.location();
        let mut expr = self.parser.parse_subexpr(precedence).map_err(|error| self.error(error))?;
        let text = self.source.text(from, self.location()).to_string();
        query::normalise(&mut expr).and_then(|()| query::check(&expr)).map_err(|error| self.place(error, from))?;
        Ok((expr, text))
    }

    /// The error of a refusal within what begins at `from`, with its position.
    fn place(&self, refusal: Refusal, from: Location) -> Error {
        let location = refusal.location.unwrap_or(from);
        refusal.error.with_position(self.source.character(location) + 1)
    }

    /// Where the next token starts.
    fn location(&self) -> Location {
        self.parser.peek_token_ref().span.start
    }

    /// `42601` at the next token.
    fn syntax_error(&self) -> Error {
        self.source.syntax_error(self.location())
    }

    /// An error with the next token's position.
    fn here(&self, error: Error) -> Error {
        error.with_position(self.source.character(self.location()) + 1)
    }

    /// `0A000` at the next token.
    fn unsupported(&self, message: impl Into<String>) -> Error {
        self.here(Error::unsupported(message))
    }

    /// What `sqlparser` could not read, in PostgreSQL's words.
    fn error(&self, error: ParserError) -> Error {
        let message = match error {
            ParserError::RecursionLimitExceeded => return self.source.too_complex(),
            ParserError::TokenizerError(message) | ParserError::ParserError(message) => message,
        };
        let found = message.rsplit_once(" at Line: ").and_then(|(_, place)| {
            let (line, column) = place.split_once(", Column: ")?;
            Some(Location { line: line.parse().ok()?, column: column.parse().ok()? })
        });
        match found {
            Some(location) => self.source.syntax_error(location),
            None if message.ends_with("found: EOF") => self.source.syntax_error(Location { line: 0, column: 0 }),
            None => self.syntax_error(),
        }
    }

    /// The unquoted word that is `n` tokens away.
    fn peek_word(&self, n: usize) -> Option<&Word> {
        match &self.parser.peek_nth_token_ref(n).token {
            Token::Word(word) if word.quote_style.is_none() => Some(word),
            _ => None,
        }
    }

    /// Whether `word` is `n` tokens away.
    fn peek_is(&self, n: usize, word: &str) -> bool {
        self.peek_word(n).is_some_and(|found| found.value.eq_ignore_ascii_case(word))
    }

    /// Passes over `words` if they are next, all of them.
    fn accept(&mut self, words: &[&str]) -> bool {
        let all = words.iter().enumerate().all(|(n, word)| self.peek_is(n, word));
        if all {
            words.iter().for_each(|_| self.parser.advance_token());
        }
        all
    }

    /// Passes over one of `words`, and says which.
    fn accept_one_of<'w>(&mut self, words: &[&'w str]) -> Option<&'w str> {
        let word = words.iter().copied().find(|word| self.peek_is(0, word))?;
        self.parser.advance_token();
        Some(word)
    }

    fn expect(&mut self, words: &[&str]) -> Result<()> {
        for word in words {
            if !self.accept(&[*word]) {
                return Err(self.syntax_error());
            }
        }
        Ok(())
    }

    fn accept_token(&mut self, token: &Token) -> bool {
        self.parser.consume_token(token)
    }

    fn expect_token(&mut self, token: &Token) -> Result<()> {
        if self.accept_token(token) { Ok(()) } else { Err(self.syntax_error()) }
    }

    /// `0A000` naming the first of `clauses` (each one or more words) that is next.
    fn refuse(&self, clauses: &[&str]) -> Result<()> {
        for clause in clauses {
            if clause.split(' ').enumerate().all(|(n, word)| self.peek_is(n, word)) {
                return Err(self.unsupported(format!("{clause} is not supported")));
            }
        }
        Ok(())
    }

    /// The end of the statement.
    fn end(&self) -> Result<()> {
        if self.parser.peek_token_ref().token == Token::EOF { Ok(()) } else { Err(self.syntax_error()) }
    }

    fn at_end(&self) -> bool {
        self.parser.peek_token_ref().token == Token::EOF
    }

    /// A name of one part: a column, an alias.
    fn identifier(&mut self) -> Result<String> {
        let name = match &self.parser.peek_token_ref().token {
            Token::Word(Word { value, quote_style: Some(_), .. }) => value.clone(),
            Token::Word(Word { value, quote_style: None, .. }) => {
                let name = value.to_ascii_lowercase();
                if RESERVED.contains(&name.as_str()) {
                    return Err(self.syntax_error());
                }
                name
            }
            _ => return Err(self.syntax_error()),
        };
        self.parser.advance_token();
        Ok(name)
    }

    /// The name of a relation, without its schema.
    fn name(&mut self) -> Result<String> {
        let start = self.location();
        let mut parts = vec![self.identifier()?];
        while self.accept_token(&Token::Period) {
            parts.push(self.identifier()?);
        }
        let position = self.source.character(start) + 1;
        resolve_name(parts).map_err(|error| error.with_position(position))
    }

    /// `(a, b, ...)`, or nothing where there is no parenthesis.
    fn optional_columns(&mut self) -> Result<Vec<String>> {
        if self.parser.peek_token_ref().token == Token::LParen { self.columns() } else { Ok(Vec::new()) }
    }

    /// `(a, b, ...)`
    fn columns(&mut self) -> Result<Vec<String>> {
        self.expect_token(&Token::LParen)?;
        let mut columns = Vec::new();
        loop {
            let position = self.source.character(self.location()) + 1;
            let column = self.identifier()?;
            if columns.contains(&column) {
                return Err(duplicate_column(&column).with_position(position));
            }
            columns.push(column);
            if !self.accept_token(&Token::Comma) {
                break;
            }
        }
        self.expect_token(&Token::RParen)?;
        Ok(columns)
    }

    /// `IF NOT EXISTS`
    fn if_not_exists(&mut self) -> Result<bool> {
        let present = self.accept(&["IF"]);
        if present {
            self.expect(&["NOT", "EXISTS"])?;
        }
        Ok(present)
    }

    /// A string literal.
    fn string(&mut self) -> Option<String> {
        let value = match &self.parser.peek_token_ref().token {
            Token::SingleQuotedString(value) | Token::EscapedStringLiteral(value) | Token::UnicodeStringLiteral(value) => value.clone(),
            Token::DollarQuotedString(value) => value.value.clone(),
            _ => return None,
        };
        self.parser.advance_token();
        Some(value)
    }

    /// A number with its sign, as written.
    fn number(&mut self) -> Option<String> {
        let sign = match self.parser.peek_token_ref().token {
            Token::Minus => "-",
            Token::Plus => "+",
            _ => "",
        };
        let number = match &self.parser.peek_nth_token_ref(usize::from(!sign.is_empty())).token {
            Token::Number(number, _) => format!("{}{number}", sign.trim_start_matches('+')),
            _ => return None,
        };
        if !sign.is_empty() {
            self.parser.advance_token();
        }
        self.parser.advance_token();
        Some(number)
    }
}

/// The last of `parts`, if those before it are the schema `public` and the catalog `weir`.
fn resolve_name(mut parts: Vec<String>) -> Result<String> {
    let written = parts.join(".");
    let name = parts.pop().unwrap_or_default();
    match parts.as_slice() {
        [] => Ok(name),
        [schema] | [_, schema] if parts.len() == 1 || parts[0] == "weir" => {
            if schema == "public" {
                Ok(name)
            } else {
                let state = SqlState::parse("3F000").unwrap_or(SqlState::UNDEFINED_OBJECT);
                Err(Error::new(state, format!("schema \"{schema}\" does not exist")))
            }
        }
        [_, _] => Err(Error::unsupported(format!("cross-database references are not implemented: \"{written}\""))),
        _ => Err(Error::new(SqlState::SYNTAX_ERROR, format!("improper qualified name (too many dotted names): {written}"))),
    }
}

/// Whether an expression of an INSERT's VALUES is the word `DEFAULT`, which `sqlparser` reads as a column's name.
pub fn is_default(expr: &ast::Expr) -> bool {
    matches!(expr, ast::Expr::Identifier(ident) if ident.quote_style.is_none() && ident.value.eq_ignore_ascii_case("default"))
}

fn duplicate_column(column: &str) -> Error {
    Error::new(SqlState::DUPLICATE_COLUMN, format!("column \"{column}\" specified more than once"))
}
