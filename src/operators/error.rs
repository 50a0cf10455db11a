//! Errors of DataFusion and Arrow in PostgreSQL's form, and rows in an error's words.

use arrow::array::{Array, ArrayRef};
use arrow::error::ArrowError;
use arrow::util::display::array_value_to_string;
use datafusion::common::SchemaError;
use datafusion::error::DataFusionError;
use weir_catalog::{Error, SqlState};

/// How many characters of a value an error shows.
const VALUE_CHARACTERS: usize = 64;
/// How many columns of a row an error shows.
const ROW_COLUMNS: usize = 8;

/// The error that `error` stands for. One of our own that travelled through DataFusion (`External`) comes out as it was.
pub fn from_datafusion(error: DataFusionError) -> Error {
    convert(&error)
}

/// `22000`: something (`what`, as "a row") was taken away more often than it was there. Within weir that is a fault, but a connector may bring any changes.
pub fn not_there(what: &str) -> Error {
    Error::new(SqlState::DATA_EXCEPTION, format!("{what} was retracted that is not there")).with_hint(
        "Where a connector brings changes, one of them takes away a row that none before has brought: put the changes right. Elsewhere it is a fault of weir.",
    )
}

/// Whether `error` says that a query may not hold so much in memory.
pub fn is_out_of_memory(error: &DataFusionError) -> bool {
    *convert(error).code() == SqlState::OUT_OF_MEMORY
}

fn convert(error: &DataFusionError) -> Error {
    match error {
        DataFusionError::ArrowError(error, _) => convert_arrow(error),
        DataFusionError::External(error) => convert_external(error.as_ref()),
        DataFusionError::Context(_, error) | DataFusionError::Diagnostic(_, error) => convert(error),
        DataFusionError::Shared(error) => convert(error),
        DataFusionError::Collection(errors) => {
            errors.first().map_or_else(|| Error::internal("an empty collection of errors was reported"), convert)
        }
        DataFusionError::IoError(error) => convert_io(error),
        DataFusionError::SQL(error, _) => Error::new(SqlState::SYNTAX_ERROR, lower_first(&error.to_string())),
        DataFusionError::NotImplemented(message) => Error::unsupported(lower_first(message)),
        DataFusionError::Plan(message) | DataFusionError::Configuration(message) => {
            Error::new(SqlState::INVALID_PARAMETER_VALUE, lower_first(message))
        }
        DataFusionError::SchemaError(error, _) => {
            let code = match error.as_ref() {
                SchemaError::AmbiguousReference { .. } => SqlState::AMBIGUOUS_COLUMN,
                SchemaError::FieldNotFound { .. } => SqlState::UNDEFINED_COLUMN,
                SchemaError::DuplicateQualifiedField { .. } | SchemaError::DuplicateUnqualifiedField { .. } => SqlState::DUPLICATE_COLUMN,
            };
            Error::new(code, lower_first(&error.to_string()))
        }
        DataFusionError::Execution(message) => convert_execution(message),
        DataFusionError::ResourcesExhausted(message) => Error::new(SqlState::OUT_OF_MEMORY, "out of memory for queries")
            .with_detail(sentence(message))
            .with_hint("Queries have a part of the setting \"memory\". Raise it, or join, sort or keep fewer rows or columns at a time."),
        DataFusionError::Internal(message) => Error::internal(lower_first(message)),
        other => Error::internal(lower_first(&other.to_string())),
    }
}

fn convert_external(error: &(dyn std::error::Error + 'static)) -> Error {
    if let Some(error) = error.downcast_ref::<Error>() {
        error.clone()
    } else if let Some(error) = error.downcast_ref::<DataFusionError>() {
        convert(error)
    } else if let Some(error) = error.downcast_ref::<ArrowError>() {
        convert_arrow(error)
    } else {
        Error::internal(lower_first(&error.to_string()))
    }
}

/// What the disk said may have been wrapped several times on its way.
fn convert_io(error: &std::io::Error) -> Error {
    match error.get_ref() {
        Some(inner) if inner.is::<Error>() || inner.is::<DataFusionError>() || inner.is::<ArrowError>() => convert_external(inner),
        Some(inner) => match inner.downcast_ref::<std::io::Error>() {
            Some(inner) => convert_io(inner),
            None => Error::io("read or write", error),
        },
        None => Error::io("read or write", error),
    }
}

/// The error that an Arrow kernel's `error` stands for.
pub fn from_arrow(error: ArrowError) -> Error {
    convert_arrow(&error)
}

fn convert_arrow(error: &ArrowError) -> Error {
    match error {
        ArrowError::DivideByZero => Error::new(SqlState::DIVISION_BY_ZERO, "division by zero"),
        ArrowError::ArithmeticOverflow(message) => out_of_range(message),
        // Two kernels' words for a number that the target type has no room for.
        ArrowError::CastError(message) if message.starts_with("Can't cast value") => out_of_range(message),
        ArrowError::InvalidArgumentError(message) if message.contains("is too large to store in a Decimal") => out_of_range(message),
        ArrowError::CastError(message) => {
            Error::new(SqlState::INVALID_TEXT_REPRESENTATION, "a value cannot be cast").with_detail(sentence(message))
        }
        ArrowError::ParseError(message) if message.contains("timestamp") || message.contains("date") || message.contains("time") => {
            Error::new(SqlState::INVALID_DATETIME_FORMAT, "a text is not a valid date or time").with_detail(sentence(message))
        }
        ArrowError::ParseError(message) => {
            Error::new(SqlState::INVALID_TEXT_REPRESENTATION, "a text is not a valid value").with_detail(sentence(message))
        }
        ArrowError::ComputeError(message) | ArrowError::InvalidArgumentError(message) => {
            Error::new(SqlState::DATA_EXCEPTION, lower_first(message))
        }
        ArrowError::OffsetOverflowError(bytes) => {
            Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, format!("the texts of one batch take {bytes} bytes, more than 2 GiB"))
        }
        ArrowError::MemoryError(message) => Error::new(SqlState::OUT_OF_MEMORY, lower_first(message)),
        ArrowError::NotYetImplemented(message) => Error::unsupported(lower_first(message)),
        ArrowError::ExternalError(error) => convert_external(error.as_ref()),
        ArrowError::IoError(_, error) => convert_io(error),
        other => Error::internal(lower_first(&other.to_string())),
    }
}

/// Functions of DataFusion report some arithmetic errors as text only.
fn convert_execution(message: &str) -> Error {
    let lower = message.to_lowercase();
    if lower.contains("scalar subquery returned more than one row") {
        Error::new(SqlState::CARDINALITY_VIOLATION, "more than one row returned by a subquery used as an expression")
    } else if lower.contains("divide by zero") || lower.contains("division by zero") {
        Error::new(SqlState::DIVISION_BY_ZERO, "division by zero")
    } else if lower.contains("overflow") || lower.contains("out of range") {
        out_of_range(message)
    } else {
        Error::new(SqlState::DATA_EXCEPTION, lower_first(message))
    }
}

fn out_of_range(message: &str) -> Error {
    Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "value out of range").with_detail(sentence(message))
}

/// The first line of a message with a small first letter, unless it is an abbreviation.
fn lower_first(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default().trim_end_matches('.');
    let mut characters = line.chars();
    match (characters.next(), characters.next()) {
        (Some(first), Some(second)) if first.is_uppercase() && second.is_lowercase() => {
            first.to_lowercase().chain(line.chars().skip(1)).collect()
        }
        _ => line.to_string(),
    }
}

fn sentence(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    if line.ends_with('.') { line.to_string() } else { format!("{line}.") }
}

/// `(name=value, ...)` of a row, shortened: for an error's context.
pub fn describe_row<'a>(columns: impl Iterator<Item = (&'a str, &'a ArrayRef)>, row: usize) -> String {
    let mut text = String::from("(");
    for (i, (name, column)) in columns.enumerate() {
        if i == ROW_COLUMNS {
            text.push_str(", ...");
            break;
        }
        let value = if column.is_null(row) {
            "null".to_string()
        } else {
            array_value_to_string(column, row).unwrap_or_else(|error| format!("<{error}>"))
        };
        let separator = if i == 0 { "" } else { ", " };
        text.push_str(separator);
        text.push_str(name);
        text.push('=');
        text.push_str(&shorten(&value, VALUE_CHARACTERS));
    }
    text.push(')');
    text
}

/// `text` as it can be told: without a zero byte, which a text of SQL does not have and which would end a message too soon.
pub fn told(text: &str) -> String {
    text.replace('\0', "\u{FFFD}")
}

/// At most `characters` characters of `text`; what is cut shows as `...`.
pub fn shorten(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn an_error_of_our_own_comes_back_as_it_was() {
        let ours = Error::new(SqlState::DATETIME_FIELD_OVERFLOW, "timestamp out of range").with_hint("Use another.");
        let nested = DataFusionError::Context(
            "while".to_string(),
            Box::new(DataFusionError::Shared(Arc::new(DataFusionError::ArrowError(
                Box::new(ArrowError::ExternalError(Box::new(DataFusionError::External(Box::new(ours.clone()))))),
                None,
            )))),
        );
        assert_eq!(from_datafusion(nested), ours);
    }

    #[test]
    fn arithmetic_and_casts_have_their_sqlstate() {
        for (error, code) in [
            (ArrowError::DivideByZero, SqlState::DIVISION_BY_ZERO),
            (ArrowError::ArithmeticOverflow("Overflow happened on: 1 + 2".to_string()), SqlState::NUMERIC_VALUE_OUT_OF_RANGE),
            (ArrowError::CastError("Can't cast value 3000000000 to type Int32".to_string()), SqlState::NUMERIC_VALUE_OUT_OF_RANGE),
            (ArrowError::CastError("Cannot cast string 'x' to value of Int32 type".to_string()), SqlState::INVALID_TEXT_REPRESENTATION),
        ] {
            assert_eq!(*from_arrow(error).code(), code);
        }
    }

    #[test]
    fn a_full_disk_is_told_from_other_trouble() {
        let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
        let wrapped = std::io::Error::other(DataFusionError::IoError(std::io::Error::other(full())));
        for error in [DataFusionError::IoError(full()), DataFusionError::IoError(wrapped)] {
            assert_eq!(*from_datafusion(error).code(), SqlState::DISK_FULL);
        }
        assert_eq!(*from_arrow(ArrowError::IoError("it".into(), full())).code(), SqlState::DISK_FULL);
        assert_eq!(*from_datafusion(DataFusionError::IoError(std::io::Error::other("it"))).code(), SqlState::IO_ERROR);
    }

    #[test]
    fn long_values_are_shortened() {
        let column: ArrayRef = Arc::new(arrow::array::StringArray::from(vec![Some("ü".repeat(100)), None]));
        assert_eq!(describe_row([("a", &column)].into_iter(), 0), format!("(a={}...)", "ü".repeat(64)));
        assert_eq!(describe_row([("a", &column)].into_iter(), 1), "(a=null)");
    }
}
