//! JSON lines to rows and back: an object a line, or a change in Debezium's form.
//!
//! Members are found by the column's name. A text is any JSON value, objects and arrays as their own text; every other column takes a literal or a string that
//! a cast to its type accepts. A ROW is an object, an array a list of values, and nothing else. `null` and a member that is missing are NULL. What stands in members that nobody reads is only looked at as far as it takes
//! to find its end.

mod decoder;
mod encoder;
mod marks;
mod object;
mod scanner;
#[cfg(test)]
mod tests;

pub use decoder::JsonDecoder;
pub use encoder::{JsonEncoder, push_string};

/// What a line is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonForm {
    /// A row; its kind is in the member `row_kind`, where that is given.
    Rows { row_kind: Option<String> },
    /// `{"before": row, "after": row, "op": "c" | "r" | "u" | "d"}`, perhaps as the `payload` of a message with schema.
    Debezium,
}

/// How JSON lines are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonOptions {
    pub form: JsonForm,
    /// Whether a record without a member for a column that is read is bad, instead of giving NULL.
    pub fail_on_missing: bool,
}
