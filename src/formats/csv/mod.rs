//! CSV (RFC 4180) to rows and back.
//!
//! | file | is about |
//! | --- | --- |
//! | `tokenizer` | where records and fields begin and end |
//! | `decoder` | fields to columns |
//! | `encoder` | columns to lines |
//!
//! An unquoted empty field is NULL, a quoted one the empty text, as PostgreSQL's COPY has it; what is written reads back the same.

mod decoder;
mod encoder;
#[cfg(test)]
mod tests;
mod tokenizer;

pub use decoder::CsvDecoder;
pub use encoder::CsvEncoder;
pub use tokenizer::{Fields, Tokenizer};

/// How a CSV file is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvOptions {
    /// Whether the first line names the columns.
    pub header: bool,
    pub delimiter: u8,
    /// `None`: a quote is a character like any other.
    pub quote: Option<u8>,
    /// What takes a quote's meaning away inside quotes, where it is not a doubled quote.
    pub escape: Option<u8>,
    /// The unquoted text that stands for NULL.
    pub null: Vec<u8>,
}

impl Default for CsvOptions {
    fn default() -> CsvOptions {
        CsvOptions { header: false, delimiter: b',', quote: Some(b'"'), escape: None, null: Vec::new() }
    }
}
