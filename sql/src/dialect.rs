//! weir's SQL dialect for `sqlparser`: PostgreSQL's, with backticks as a second way to quote names (Flink's) and without the
//! operators that PostgreSQL has dropped or weir has no types for. `json_object(key: value)` is left out too: for its sake every argument of every
//! function would be read twice, at each level of nesting.
//!
//! # Invariants
//! - It reports PostgreSQL's `TypeId`, so that `sqlparser` takes every branch that it takes for PostgreSQL.
//! - Parsing always ends soon: `sqlparser` backtracks, and nested input that fails at its innermost point would be read again at each level.
//!   Each expression prefix uses up fuel; without fuel, every further one fails at once.

use std::any::TypeId;
use std::cell::Cell;

use datafusion::sql::sqlparser::ast::{BinaryOperator, CastKind, Expr, UnaryOperator};
use datafusion::sql::sqlparser::dialect::{Dialect, PostgreSqlDialect, Precedence};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;

use crate::parser::parse_type;

/// Binds more tightly than `^`, `AT TIME ZONE` and `COLLATE`, less than `[]`: a sign's place in PostgreSQL's table of operators.
const SIGN_PRECEDENCE: u8 = 125;

/// The dialect, good for one statement.
#[derive(Debug)]
pub struct WeirDialect {
    postgres: PostgreSqlDialect,
    /// How many expression prefixes may still be read.
    fuel: Cell<usize>,
}

impl WeirDialect {
    /// A dialect for a statement of this many tokens.
    pub fn for_tokens(tokens: usize) -> WeirDialect {
        WeirDialect { postgres: PostgreSqlDialect {}, fuel: Cell::new(tokens.saturating_mul(50).saturating_add(10_000)) }
    }
}

/// Methods without arguments that answer as PostgreSQL's dialect does.
macro_rules! as_postgres {
    ($($method:ident)*) => {
        $(fn $method(&self) -> bool {
            self.postgres.$method()
        })*
    };
}

/// `(... AS type)`, behind CAST.
fn cast(parser: &mut Parser) -> Result<Expr, ParserError> {
    parser.expect_token(&Token::LParen)?;
    let expr = Box::new(parser.parse_expr()?);
    parser.expect_keyword_is(Keyword::AS)?;
    let data_type = parse_type(parser)?;
    let format = parser.parse_optional_cast_format()?;
    parser.expect_token(&Token::RParen)?;
    Ok(Expr::Cast { kind: CastKind::Cast, expr, data_type, array: false, format })
}

/// Whether ISNULL comes next, which `sqlparser` has no word for.
fn is_null_test(parser: &Parser) -> bool {
    matches!(&parser.peek_token_ref().token, Token::Word(word) if word.quote_style.is_none() && word.value.eq_ignore_ascii_case("isnull"))
}

/// `(LEADING FROM text)` and its like, behind TRIM, which `sqlparser` reads only with something between the two words.
fn trim(parser: &mut Parser) -> Result<Expr, ParserError> {
    parser.expect_token(&Token::LParen)?;
    let trim_where = match &parser.peek_token_ref().token {
        Token::Word(word) if word.keyword != Keyword::FROM => Some(parser.parse_trim_where()?),
        _ => None,
    };
    parser.expect_keyword_is(Keyword::FROM)?;
    let expr = Box::new(parser.parse_expr()?);
    parser.expect_token(&Token::RParen)?;
    Ok(Expr::Trim { expr, trim_where, trim_what: None, trim_characters: None })
}

/// Whether TRIM, a bracket and FROM come next, perhaps with BOTH, LEADING or TRAILING before FROM.
fn is_trim_from(parser: &Parser) -> bool {
    let keyword = |at: usize| match &parser.peek_nth_token_ref(at).token {
        Token::Word(word) => Some(word.keyword),
        _ => None,
    };
    let side = matches!(keyword(2), Some(Keyword::BOTH | Keyword::LEADING | Keyword::TRAILING));
    keyword(0) == Some(Keyword::TRIM)
        && parser.peek_nth_token_ref(1).token == Token::LParen
        && keyword(if side { 3 } else { 2 }) == Some(Keyword::FROM)
}

impl Dialect for WeirDialect {
    fn dialect(&self) -> TypeId {
        TypeId::of::<PostgreSqlDialect>()
    }

    fn identifier_quote_style(&self, identifier: &str) -> Option<char> {
        self.postgres.identifier_quote_style(identifier)
    }

    fn is_delimited_identifier_start(&self, ch: char) -> bool {
        ch == '`' || self.postgres.is_delimited_identifier_start(ch)
    }

    fn is_identifier_start(&self, ch: char) -> bool {
        self.postgres.is_identifier_start(ch)
    }

    fn is_identifier_part(&self, ch: char) -> bool {
        self.postgres.is_identifier_part(ch)
    }

    fn is_custom_operator_part(&self, ch: char) -> bool {
        ch != '`' && self.postgres.is_custom_operator_part(ch)
    }

    fn is_reserved_for_identifier(&self, keyword: Keyword) -> bool {
        self.postgres.is_reserved_for_identifier(keyword)
    }

    fn get_next_precedence(&self, parser: &Parser) -> Option<Result<u8, ParserError>> {
        if is_null_test(parser) {
            return Some(Ok(self.prec_value(Precedence::Is)));
        }
        self.postgres.get_next_precedence(parser)
    }

    fn prec_value(&self, precedence: Precedence) -> u8 {
        self.postgres.prec_value(precedence)
    }

    fn parse_prefix(&self, parser: &mut Parser) -> Option<Result<Expr, ParserError>> {
        match self.fuel.get().checked_sub(1) {
            Some(left) => self.fuel.set(left),
            None => return Some(Err(ParserError::RecursionLimitExceeded)),
        }
        let op = match &parser.peek_token_ref().token {
            Token::Minus => UnaryOperator::Minus,
            Token::Plus => UnaryOperator::Plus,
            // `CAST(... AS ROW<...>)`: a type that `sqlparser` does not know.
            Token::Word(word) if word.keyword == Keyword::CAST && parser.peek_nth_token_ref(1).token == Token::LParen => {
                parser.advance_token();
                return Some(cast(parser));
            }
            Token::Word(word) if word.keyword == Keyword::TRIM && is_trim_from(parser) => {
                parser.advance_token();
                return Some(trim(parser));
            }
            // `(VALUES ...)`: in an expression `sqlparser` knows a subquery by SELECT or WITH alone.
            Token::Word(word)
                if word.keyword == Keyword::VALUES
                    && word.quote_style.is_none()
                    && parser.peek_nth_token_ref(1).token == Token::LParen
                    && parser.get_current_token().token == Token::LParen =>
            {
                return Some(parser.parse_query().map(Expr::Subquery));
            }
            // `INTERVAL INTERVAL ...` would recurse without passing the parser's depth counter, and is no expression.
            Token::Word(word) if word.keyword == Keyword::INTERVAL => {
                return match &parser.peek_nth_token_ref(1).token {
                    Token::Word(word) if word.keyword == Keyword::INTERVAL => {
                        Some(parser.expected_ref("a value", parser.peek_nth_token_ref(1)))
                    }
                    _ => None,
                };
            }
            _ => return None,
        };
        parser.advance_token();
        Some(parser.parse_subexpr(SIGN_PRECEDENCE).map(|expr| Expr::UnaryOp { op, expr: Box::new(expr) }))
    }

    /// `::` with a type that `sqlparser` may not know, ISNULL, `==`, and `IS [NOT] DISTINCT FROM`, whose right side `sqlparser` reads to the end of the whole expression: in PostgreSQL it binds as IS does.
    fn parse_infix(&self, parser: &mut Parser, expr: &Expr, precedence: u8) -> Option<Result<Expr, ParserError>> {
        if parser.consume_token(&Token::DoubleColon) {
            return Some(parse_type(parser).map(|data_type| Expr::Cast {
                kind: CastKind::DoubleColon,
                expr: Box::new(expr.clone()),
                data_type,
                array: false,
                format: None,
            }));
        }
        if is_null_test(parser) {
            parser.advance_token();
            return Some(Ok(Expr::IsNull(Box::new(expr.clone()))));
        }
        // `sqlparser` takes it for `=`; PostgreSQL has no such operator.
        if parser.consume_token(&Token::DoubleEq) {
            let (left, op) = (Box::new(expr.clone()), BinaryOperator::Custom("==".to_string()));
            return Some(parser.parse_subexpr(precedence).map(|right| Expr::BinaryOp { left, op, right: Box::new(right) }));
        }
        let is_not = parser.peek_keyword(Keyword::IS)
            && matches!(&parser.peek_nth_token_ref(1).token, Token::Word(word) if word.keyword == Keyword::NOT);
        let words: &[Keyword] = if is_not {
            &[Keyword::IS, Keyword::NOT, Keyword::DISTINCT, Keyword::FROM]
        } else {
            &[Keyword::IS, Keyword::DISTINCT, Keyword::FROM]
        };
        if !parser.parse_keywords(words) {
            return None;
        }
        let (left, right) = (Box::new(expr.clone()), parser.parse_subexpr(self.prec_value(Precedence::Is)));
        Some(right.map(
            |right| {
                if is_not { Expr::IsNotDistinctFrom(left, Box::new(right)) } else { Expr::IsDistinctFrom(left, Box::new(right)) }
            },
        ))
    }

    as_postgres! {
        supports_unicode_string_literal
        supports_filter_during_aggregation
        supports_group_by_expr
        allow_extract_custom
        allow_extract_single_quotes
        supports_create_index_with_clause
        supports_explain_with_utility_options
        supports_listen_notify
        supports_bitwise_shift_operators
        supports_comment_on
        supports_load_extension
        supports_empty_projections
        supports_nested_comments
        supports_string_escape_constant
        supports_numeric_literal_underscores
        supports_array_typedef_with_brackets
        supports_set_names
        supports_alter_column_type_using
        supports_notnull_operator
        supports_interval_options
        supports_insert_table_alias
        supports_create_table_like_parenthesized
        supports_select_wildcard_with_alias
        supports_comma_separated_trim
        supports_xml_expressions
        supports_comment_optimizer_hint
    }

    /// `'a'` and, on a later line, `'b'` are one literal.
    fn supports_string_literal_concatenation_with_newline(&self) -> bool {
        true
    }
}
