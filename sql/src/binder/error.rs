//! DataFusion's errors as weir's.

use arrow::error::ArrowError;
use datafusion::common::{DataFusionError, SchemaError};
use weir_catalog::{Error, SqlState};

/// The weir error that a DataFusion one is or stands for. Our own functions' errors come out as they were raised.
pub fn bind_error(error: DataFusionError) -> Error {
    match error {
        DataFusionError::External(source) => external(source),
        DataFusionError::ArrowError(error, _) => arrow(*error),
        DataFusionError::Context(_, source) | DataFusionError::Diagnostic(_, source) => bind_error(*source),
        DataFusionError::Collection(errors) => errors.into_iter().next().map_or_else(|| Error::internal("an unknown error"), bind_error),
        DataFusionError::Shared(source) => shared(&source),
        DataFusionError::SchemaError(error, _) => schema(&error),
        DataFusionError::NotImplemented(message) => Error::unsupported(message),
        DataFusionError::ResourcesExhausted(message) => Error::new(SqlState::OUT_OF_MEMORY, message),
        DataFusionError::SQL(error, _) => Error::new(SqlState::SYNTAX_ERROR, error.to_string()),
        DataFusionError::Plan(message) => planning(message),
        DataFusionError::Execution(message) => execution(message),
        other => Error::internal(other.strip_backtrace()),
    }
}

fn external(source: Box<dyn std::error::Error + Send + Sync>) -> Error {
    match source.downcast::<Error>() {
        Ok(error) => *error,
        Err(source) => match source.downcast::<DataFusionError>() {
            Ok(error) => bind_error(*error),
            Err(source) => match source.downcast::<ArrowError>() {
                Ok(error) => arrow(*error),
                Err(source) => Error::internal(source.to_string()),
            },
        },
    }
}

fn arrow(error: ArrowError) -> Error {
    match error {
        ArrowError::ExternalError(source) => external(source),
        ArrowError::DivideByZero => crate::functions::arithmetic::division_by_zero(),
        ArrowError::ArithmeticOverflow(_) => Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "value out of range"),
        other => Error::internal(other.to_string()),
    }
}

/// An error that several tasks hold: it can't be taken out, so it is looked at.
fn shared(error: &DataFusionError) -> Error {
    match error.find_root() {
        DataFusionError::External(source) => match source.downcast_ref::<Error>() {
            Some(error) => error.clone(),
            None => Error::internal(source.to_string()),
        },
        DataFusionError::ArrowError(arrow, _) => match arrow.as_ref() {
            ArrowError::ExternalError(source) => match source.downcast_ref::<Error>() {
                Some(error) => error.clone(),
                None => Error::internal(source.to_string()),
            },
            other => Error::internal(other.to_string()),
        },
        DataFusionError::ResourcesExhausted(message) => Error::new(SqlState::OUT_OF_MEMORY, message.clone()),
        DataFusionError::Execution(message) => execution(message.clone()),
        DataFusionError::Plan(message) => planning(message.clone()),
        DataFusionError::NotImplemented(message) => Error::unsupported(message.clone()),
        other => Error::internal(other.strip_backtrace()),
    }
}

fn schema(error: &SchemaError) -> Error {
    match error {
        SchemaError::FieldNotFound { field, .. } => {
            Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{}\" does not exist", field.flat_name()))
        }
        SchemaError::AmbiguousReference { field } => {
            Error::new(SqlState::AMBIGUOUS_COLUMN, format!("column reference \"{}\" is ambiguous", field.name()))
        }
        other => Error::internal(other.to_string()),
    }
}

fn planning(message: String) -> Error {
    // What the binder lets through and DataFusion's planning refuses is something that it can't run.
    Error::unsupported(format!("the query can't be planned: {message}"))
}

fn execution(message: String) -> Error {
    if message.contains("returned more than one row") || message.contains("more than one row returned") {
        return Error::new(SqlState::CARDINALITY_VIOLATION, "more than one row returned by a subquery used as an expression");
    }
    Error::new(SqlState::DATA_EXCEPTION, message)
}
