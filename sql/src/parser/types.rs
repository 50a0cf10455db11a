//! Type names: `sqlparser`'s, and the column types of connector tables with their `ROW<...>`.

use datafusion::sql::sqlparser::ast::{CharacterLength, DataType, ExactNumberInfo, TimezoneInfo};
use datafusion::sql::sqlparser::tokenizer::Token;
use weir_catalog::{Error, Result, SqlState, SqlType};

use super::{Cursor, duplicate_column};

/// How deep `ROW` may nest.
const MAX_ROW_NESTING: usize = 50;

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

impl Cursor<'_> {
    /// A column's type.
    pub(super) fn column_type(&mut self) -> Result<SqlType> {
        let mut closed = 0;
        let ty = self.nested_type(0, &mut closed)?;
        // `>>` closed more than was open.
        if closed > 0 { Err(self.syntax_error()) } else { Ok(ty) }
    }

    /// A type inside `depth` rows. `closed` counts the rows that the `>`s read so far close beyond the innermost: `>>` is one token.
    fn nested_type(&mut self, depth: usize, closed: &mut usize) -> Result<SqlType> {
        if !self.peek_is(0, "ROW") {
            let from = self.location();
            let data_type = self.parser.parse_data_type().map_err(|error| self.error(error))?;
            return sql_type(&data_type).map_err(|error| error.with_position(self.source.character(from) + 1));
        }
        if depth == MAX_ROW_NESTING {
            return Err(self.source.too_complex());
        }
        self.parser.advance_token();
        let round = match self.parser.peek_token_ref().token {
            Token::LParen => true,
            Token::Lt => false,
            _ => return Err(self.syntax_error()),
        };
        self.parser.advance_token();
        let mut fields: Vec<(String, SqlType)> = Vec::new();
        loop {
            let position = self.source.character(self.location()) + 1;
            let name = self.identifier()?;
            if fields.iter().any(|(field, _)| *field == name) {
                return Err(duplicate_column(&name).with_position(position));
            }
            let ty = self.nested_type(depth + 1, closed)?;
            fields.push((name, ty));
            if *closed > 0 {
                break;
            }
            self.refuse(&["NOT NULL"])?;
            self.accept(&["NULL"]);
            if !self.accept_token(&Token::Comma) {
                break;
            }
        }
        if round {
            // A `>` too many inside round parentheses.
            if *closed > 0 {
                return Err(self.syntax_error());
            }
            self.expect_token(&Token::RParen)?;
        } else if *closed > 0 {
            *closed -= 1;
        } else {
            *closed = match &self.parser.peek_token_ref().token {
                Token::Gt => 0,
                Token::ShiftRight => 1,
                Token::CustomBinaryOperator(operator) if operator.bytes().all(|byte| byte == b'>') => operator.len() - 1,
                _ => return Err(self.syntax_error()),
            };
            self.parser.advance_token();
        }
        Ok(SqlType::Row(fields))
    }
}
