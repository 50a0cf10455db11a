//! Errors in PostgreSQL's form: SQLSTATE, a short lower-case message, and where there is more to say a detail, a hint and
//! the position in the statement.

use std::borrow::Cow;
use std::fmt;

/// A five-character SQLSTATE, as in appendix A of PostgreSQL's manual.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SqlState(Cow<'static, str>);

macro_rules! states {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl SqlState {
            $($(#[$doc])* pub const $name: SqlState = SqlState(Cow::Borrowed($code));)*
        }
    };
}

states! {
    FEATURE_NOT_SUPPORTED = "0A000";
    INVALID_PARAMETER_VALUE = "22023";
    NUMERIC_VALUE_OUT_OF_RANGE = "22003";
    DIVISION_BY_ZERO = "22012";
    DATETIME_FIELD_OVERFLOW = "22008";
    INVALID_DATETIME_FORMAT = "22007";
    INVALID_TEXT_REPRESENTATION = "22P02";
    DATA_EXCEPTION = "22000";
    NOT_NULL_VIOLATION = "23502";
    UNIQUE_VIOLATION = "23505";
    ACTIVE_SQL_TRANSACTION = "25001";
    NO_ACTIVE_SQL_TRANSACTION = "25P01";
    IN_FAILED_SQL_TRANSACTION = "25P02";
    DEPENDENT_OBJECTS_STILL_EXIST = "2BP01";
    /// A transaction whose rows changed meanwhile: try it again.
    SERIALIZATION_FAILURE = "40001";
    SYNTAX_ERROR = "42601";
    UNDEFINED_COLUMN = "42703";
    AMBIGUOUS_COLUMN = "42702";
    UNDEFINED_FUNCTION = "42883";
    UNDEFINED_TABLE = "42P01";
    UNDEFINED_OBJECT = "42704";
    UNDEFINED_PARAMETER = "42P02";
    DUPLICATE_TABLE = "42P07";
    DUPLICATE_COLUMN = "42701";
    DUPLICATE_OBJECT = "42710";
    GROUPING_ERROR = "42803";
    DATATYPE_MISMATCH = "42804";
    CANNOT_COERCE = "42846";
    WRONG_OBJECT_TYPE = "42809";
    INVALID_TABLE_DEFINITION = "42P16";
    INVALID_OBJECT_DEFINITION = "42P17";
    CARDINALITY_VIOLATION = "21000";
    DISK_FULL = "53100";
    OUT_OF_MEMORY = "53200";
    CONFIGURATION_LIMIT_EXCEEDED = "53400";
    /// A row over `max_row_bytes`, or a statement over a fixed limit.
    PROGRAM_LIMIT_EXCEEDED = "54000";
    STATEMENT_TOO_COMPLEX = "54001";
    TOO_MANY_COLUMNS = "54011";
    OBJECT_NOT_IN_PREREQUISITE_STATE = "55000";
    /// Another process has it.
    OBJECT_IN_USE = "55006";
    QUERY_CANCELED = "57014";
    ADMIN_SHUTDOWN = "57P01";
    CANNOT_CONNECT_NOW = "57P03";
    IO_ERROR = "58030";
    INTERNAL_ERROR = "XX000";
    /// Bytes on disk that are not what was written: a checksum, a length or a format number is wrong.
    DATA_CORRUPTED = "XX001";
}

impl SqlState {
    /// A SQLSTATE from text, or `None` if it is not five ASCII letters and digits.
    pub fn parse(code: &str) -> Option<SqlState> {
        (code.len() == 5 && code.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase()))
            .then(|| SqlState(Cow::Owned(code.to_string())))
    }

    /// The five characters.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What went wrong, in the form that a PostgreSQL client shows. The fields are boxed so that a `Result` stays small.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Fields>);

#[derive(Clone, PartialEq, Eq)]
struct Fields {
    code: SqlState,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
    position: Option<usize>,
    context: Option<String>,
}

/// The result of anything that can fail with an [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with its SQLSTATE and primary message (lower case, no full stop).
    pub fn new(code: SqlState, message: impl Into<String>) -> Error {
        Error(Box::new(Fields { code, message: message.into(), detail: None, hint: None, position: None, context: None }))
    }

    /// `0A000`: something that weir does not do.
    pub fn unsupported(message: impl Into<String>) -> Error {
        Error::new(SqlState::FEATURE_NOT_SUPPORTED, message)
    }

    /// `XX000`: a fault of weir itself.
    pub fn internal(message: impl Into<String>) -> Error {
        Error::new(SqlState::INTERNAL_ERROR, message)
    }

    /// `XX001`: bytes on disk that are not what was written. The message names the file.
    pub fn corrupted(message: impl Into<String>) -> Error {
        Error::new(SqlState::DATA_CORRUPTED, message)
    }

    /// `0A000`: bytes on disk that a newer version wrote. `what` names the file.
    pub fn newer_format(what: impl fmt::Display, found: impl fmt::Display, known: impl fmt::Display) -> Error {
        Error::unsupported(format!("{what} has format {found}, newer than this weir's {known}"))
            .with_hint("Open it with the version that wrote it, or a newer one. Nothing was changed.")
    }

    /// What the operating system refused to do (`action` reads like `write "path"`): `53100` when the disk is full, else `58030`.
    pub fn io(action: impl fmt::Display, source: &std::io::Error) -> Error {
        let code = match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => SqlState::DISK_FULL,
            _ => SqlState::IO_ERROR,
        };
        Error::new(code, format!("could not {action}: {source}"))
    }

    /// More about what happened, in a sentence.
    pub fn with_detail(mut self, detail: impl Into<String>) -> Error {
        self.0.detail = Some(detail.into());
        self
    }

    /// What to do about it, in a sentence.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.0.hint = Some(hint.into());
        self
    }

    /// Without a place, which it has in another text than the one at hand.
    pub fn without_position(mut self) -> Error {
        self.0.position = None;
        self
    }

    /// Where in the statement: the number of the character, the first being 1.
    pub fn with_position(mut self, position: usize) -> Error {
        self.0.position = Some(position);
        self
    }

    /// Where in the engine: the job, the operator, the row's key.
    pub fn with_context(mut self, context: impl Into<String>) -> Error {
        self.0.context = Some(context.into());
        self
    }

    /// The SQLSTATE.
    pub fn code(&self) -> &SqlState {
        &self.0.code
    }
    /// The primary message.
    pub fn message(&self) -> &str {
        &self.0.message
    }
    /// PostgreSQL's DETAIL.
    pub fn detail(&self) -> Option<&str> {
        self.0.detail.as_deref()
    }
    /// PostgreSQL's HINT.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
    /// The number of the character in the statement, the first being 1.
    pub fn position(&self) -> Option<usize> {
        self.0.position
    }
    /// PostgreSQL's CONTEXT.
    pub fn context(&self) -> Option<&str> {
        self.0.context.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        for (label, text) in [("DETAIL", &self.0.detail), ("HINT", &self.0.hint), ("CONTEXT", &self.0.context)] {
            if let Some(text) = text {
                write!(f, "\n{label}:  {text}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {self}", self.0.code)
    }
}

impl std::error::Error for Error {}
