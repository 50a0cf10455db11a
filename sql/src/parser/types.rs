//! Type names: `sqlparser`'s, and around them `ROW<...>`, `ROW(...)`, `ARRAY<...>`, `...[]` and `... ARRAY`, which it does not know or not in one another.

use datafusion::sql::sqlparser::ast::{
    ArrayElemTypeDef, CharacterLength, DataType, ExactNumberInfo, Ident, StructBracketKind, StructField, TimezoneInfo,
};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Location, Token};
use weir_catalog::{Error, Result, SqlState, SqlType};

use super::{Cursor, RESERVED, duplicate_column};

/// How deep rows and arrays may nest.
const MAX_TYPE_NESTING: usize = 50;

/// The SQL type that a type name means. Errors with `0A000` for a type that weir has not, `22023` for a length out of range.
pub fn sql_type(data_type: &DataType) -> Result<SqlType> {
    Ok(match data_type {
        DataType::Boolean | DataType::Bool => SqlType::Boolean,
        DataType::Int(None) | DataType::Integer(None) | DataType::Int4(None) => SqlType::Int,
        DataType::BigInt(None) | DataType::Int8(None) => SqlType::BigInt,
        DataType::DoublePrecision | DataType::Float8 | DataType::Double(ExactNumberInfo::None) => SqlType::Double,
        // As in PostgreSQL: without a number it is double, and up to 24 binary digits it is real.
        DataType::Float(ExactNumberInfo::None) => SqlType::Double,
        DataType::Float(ExactNumberInfo::Precision(digits)) => match digits {
            0 => return Err(out_of_range("precision for type float must be at least 1 bit")),
            1..25 => return Err(unsupported(data_type).with_hint("Use FLOAT(53) or DOUBLE PRECISION.")),
            25..54 => SqlType::Double,
            _ => return Err(out_of_range("precision for type float must be less than 54 bits")),
        },
        DataType::Numeric(info) | DataType::Decimal(info) | DataType::Dec(info) => numeric(info)?,
        DataType::Text
        | DataType::String(None)
        | DataType::Varchar(None)
        | DataType::CharacterVarying(None)
        | DataType::CharVarying(None) => SqlType::Text,
        // Flink's spelling of a string without limit.
        DataType::Varchar(Some(CharacterLength::IntegerLength { length: 2_147_483_647, unit: None })) => SqlType::Text,
        DataType::Timestamp(precision, TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => match precision {
            None => SqlType::TIMESTAMP,
            Some(precision @ 0..=6) => SqlType::Timestamp { precision: *precision as u8 },
            Some(precision) => return Err(out_of_range(format!("TIMESTAMP precision {precision} must be between 0 and 6"))),
        },
        // The length that PostgreSQL lets one write says nothing there either.
        DataType::Array(ArrayElemTypeDef::SquareBracket(element, _) | ArrayElemTypeDef::AngleBracket(element)) => {
            SqlType::Array(Box::new(sql_type(element)?))
        }
        DataType::Struct(fields, _) => {
            let mut named: Vec<(String, SqlType)> = Vec::with_capacity(fields.len());
            for field in fields {
                let name = field.field_name.as_ref().map(name_of).ok_or_else(|| unsupported(data_type))?;
                if named.iter().any(|(other, _)| *other == name) {
                    return Err(duplicate_column(&name));
                }
                named.push((name, sql_type(&field.field_type)?));
            }
            SqlType::Row(named)
        }
        _ => return Err(unsupported(data_type)),
    })
}

fn numeric(info: &ExactNumberInfo) -> Result<SqlType> {
    let (precision, scale) = match *info {
        ExactNumberInfo::None => return Ok(SqlType::NUMERIC),
        ExactNumberInfo::Precision(precision) => (precision, 0),
        ExactNumberInfo::PrecisionAndScale(precision, scale) => (precision, scale),
    };
    match (u8::try_from(precision), i8::try_from(scale)) {
        (Ok(precision @ 1..=38), Ok(scale)) if (0..=precision as i8).contains(&scale) => Ok(SqlType::Numeric { precision, scale }),
        (Ok(1..=38), _) => Err(out_of_range(format!("NUMERIC scale {scale} must be between 0 and precision {precision}"))),
        _ => Err(out_of_range(format!("NUMERIC precision {precision} must be between 1 and 38"))),
    }
}

/// Types of PostgreSQL's that the parser has no name for.
const POSTGRESQL_TYPES: &[&str] = &[
    "bigserial",
    "box",
    "cidr",
    "circle",
    "inet",
    "jsonpath",
    "line",
    "lseg",
    "macaddr",
    "macaddr8",
    "money",
    "name",
    "oid",
    "path",
    "pg_lsn",
    "point",
    "polygon",
    "regclass",
    "regproc",
    "regtype",
    "serial",
    "serial2",
    "serial4",
    "serial8",
    "smallserial",
    "timestamptz",
    "timetz",
    "tsquery",
    "tsvector",
    "xml",
];

fn unsupported(data_type: &DataType) -> Error {
    if let DataType::Custom(name, _) = data_type
        && !POSTGRESQL_TYPES.contains(&name.to_string().to_ascii_lowercase().as_str())
    {
        return Error::new(SqlState::UNDEFINED_OBJECT, format!("type \"{}\" does not exist", name.to_string().to_ascii_lowercase()));
    }
    Error::unsupported(format!("type {} is not supported", data_type.to_string().to_ascii_lowercase()))
}

fn out_of_range(message: impl Into<String>) -> Error {
    Error::new(SqlState::INVALID_PARAMETER_VALUE, message)
}

/// A type as it is written.
enum Written {
    /// One that `sqlparser` has read, and where.
    Plain(DataType, Location),
    Row(Vec<WrittenField>),
    Array(Box<Written>),
}

struct WrittenField {
    name: Ident,
    ty: Written,
    /// Where `NOT NULL` stands behind it.
    not_null: Option<Location>,
}

/// Reads a type in an expression, as the syntax tree has it: a row is a `STRUCT` there.
pub(crate) fn parse_type(parser: &mut Parser<'_>) -> std::result::Result<DataType, ParserError> {
    fn tree(written: Written, parser: &Parser<'_>) -> std::result::Result<DataType, ParserError> {
        Ok(match written {
            Written::Plain(data_type, _) => data_type,
            Written::Array(element) => DataType::Array(ArrayElemTypeDef::AngleBracket(Box::new(tree(*element, parser)?))),
            Written::Row(fields) => {
                let mut named = Vec::with_capacity(fields.len());
                for WrittenField { name, ty, not_null } in fields {
                    if not_null.is_some() {
                        return parser.expected_ref("a type without NOT NULL", parser.peek_token_ref());
                    }
                    named.push(StructField { field_name: Some(name), field_type: tree(ty, parser)?, options: None });
                }
                DataType::Struct(named, StructBracketKind::AngleBrackets)
            }
        })
    }
    let written = read(parser)?;
    tree(written, parser)
}

fn read(parser: &mut Parser<'_>) -> std::result::Result<Written, ParserError> {
    let mut closed = 0;
    let written = read_nested(parser, 0, &mut closed)?;
    // `>>` closed more than was open.
    if closed > 0 { parser.expected_ref("fewer closing brackets", parser.peek_token_ref()) } else { Ok(written) }
}

/// Whether the next token is `word`, unquoted.
fn next_is(parser: &Parser<'_>, word: &str) -> bool {
    matches!(&parser.peek_token_ref().token, Token::Word(next) if next.quote_style.is_none() && next.value.eq_ignore_ascii_case(word))
}

/// A type inside `depth` others. `closed` counts the brackets that the `>`s read so far close beyond the innermost: `>>` is one token.
fn read_nested(parser: &mut Parser<'_>, depth: usize, closed: &mut usize) -> std::result::Result<Written, ParserError> {
    if depth == MAX_TYPE_NESTING {
        return Err(ParserError::RecursionLimitExceeded);
    }
    let mut written = if next_is(parser, "ROW") {
        parser.advance_token();
        read_row(parser, depth, closed)?
    } else if next_is(parser, "ARRAY") {
        parser.advance_token();
        parser.expect_token(&Token::Lt)?;
        let element = read_nested(parser, depth + 1, closed)?;
        close(parser, closed)?;
        Written::Array(Box::new(element))
    } else {
        let from = parser.peek_token_ref().span.start;
        Written::Plain(parser.parse_data_type()?, from)
    };
    // The bracket that was just closed is one of the type around.
    if *closed > 0 {
        return Ok(written);
    }
    // `[]`, `[3]`, ` ARRAY`, ` ARRAY[3]`
    let mut dimensions = 0;
    loop {
        let array = next_is(parser, "ARRAY");
        if array {
            parser.advance_token();
        }
        if parser.consume_token(&Token::LBracket) {
            if let Token::Number(..) = parser.peek_token_ref().token {
                parser.advance_token();
            }
            parser.expect_token(&Token::RBracket)?;
        } else if !array {
            break;
        }
        dimensions += 1;
        if depth + dimensions > MAX_TYPE_NESTING {
            return Err(ParserError::RecursionLimitExceeded);
        }
        written = Written::Array(Box::new(written));
    }
    Ok(written)
}

fn read_row(parser: &mut Parser<'_>, depth: usize, closed: &mut usize) -> std::result::Result<Written, ParserError> {
    let round = parser.consume_token(&Token::LParen);
    if !round {
        parser.expect_token(&Token::Lt)?;
    }
    let mut fields = Vec::new();
    loop {
        let name = match &parser.peek_token_ref().token {
            Token::Word(word) if word.quote_style.is_some() || !RESERVED.contains(&word.value.to_ascii_lowercase().as_str()) => {
                parser.parse_identifier()?
            }
            _ => return parser.expected_ref("a field's name", parser.peek_token_ref()),
        };
        let ty = read_nested(parser, depth + 1, closed)?;
        let mut not_null = None;
        if *closed == 0 {
            let here = parser.peek_token_ref().span.start;
            if parser.parse_keywords(&[Keyword::NOT, Keyword::NULL]) {
                not_null = Some(here);
            } else {
                let _ = parser.parse_keyword(Keyword::NULL);
            }
        }
        fields.push(WrittenField { name, ty, not_null });
        if *closed > 0 || !parser.consume_token(&Token::Comma) {
            break;
        }
    }
    if !round {
        close(parser, closed)?;
    } else if *closed > 0 {
        // A `>` too many inside round parentheses.
        return parser.expected_ref("fewer closing brackets", parser.peek_token_ref());
    } else {
        parser.expect_token(&Token::RParen)?;
    }
    Ok(Written::Row(fields))
}

/// The `>` of a row or array, which may have been a part of the token that closed what it holds.
fn close(parser: &mut Parser<'_>, closed: &mut usize) -> std::result::Result<(), ParserError> {
    if *closed > 0 {
        *closed -= 1;
        return Ok(());
    }
    *closed = match &parser.peek_token_ref().token {
        Token::Gt => 0,
        Token::ShiftRight => 1,
        Token::CustomBinaryOperator(operator) if operator.bytes().all(|byte| byte == b'>') => operator.len() - 1,
        _ => return parser.expected_ref(">", parser.peek_token_ref()),
    };
    parser.advance_token();
    Ok(())
}

/// A name as it is compared.
fn name_of(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_ascii_lowercase() }
}

impl Cursor<'_> {
    /// A column's type.
    pub(super) fn column_type(&mut self) -> Result<SqlType> {
        let written = read(&mut self.parser).map_err(|error| self.error(error))?;
        self.resolve(&written)
    }

    /// The type that is meant; errors have the position of the part that is wrong.
    fn resolve(&self, written: &Written) -> Result<SqlType> {
        let position = |location: Location| self.source.character(location) + 1;
        match written {
            Written::Plain(data_type, from) => sql_type(data_type).map_err(|error| error.with_position(position(*from))),
            Written::Array(element) => Ok(SqlType::Array(Box::new(self.resolve(element)?))),
            Written::Row(fields) => {
                let mut named: Vec<(String, SqlType)> = Vec::with_capacity(fields.len());
                for field in fields {
                    let name = name_of(&field.name);
                    if named.iter().any(|(other, _)| *other == name) {
                        return Err(duplicate_column(&name).with_position(position(field.name.span.start)));
                    }
                    named.push((name, self.resolve(&field.ty)?));
                    if let Some(location) = field.not_null {
                        return Err(Error::unsupported("NOT NULL is not supported").with_position(position(location)));
                    }
                }
                Ok(SqlType::Row(named))
            }
        }
    }
}
