//! Bytes to batches and back: the formats in which files and lines hold rows.
//!
//! | file | is about |
//! | --- | --- |
//! | `options` | the WITH options that say how rows are written |
//! | `csv`, `json` | the text formats, which know records |
//! | `parquet` | the columnar one |
//! | `records`, `column`, `value` | records, columns and values of text being read |
//! | `encode`, `lines` | columns being written as text, and rows as lines |
//! | `compression` | gzip and Zstandard around a text format |
//!
//! Nothing here knows files' names, splits or checkpoints. Only the columns that a plan reads are parsed.

pub mod column;
pub mod compression;
pub mod csv;
pub mod encode;
pub mod json;
pub mod lines;
pub mod options;
pub mod parquet;
pub mod records;
pub mod value;

use weir_catalog::{Error, Result, RowKind, SqlState};

pub use options::{Format, FormatOptions};
pub use records::{BadRecord, Decoded, RecordDecoder, RecordEnd};

/// The row kind that a text names, in Flink's short form or its long one. `22P02` for any other.
pub fn row_kind_of(text: &[u8]) -> Result<RowKind> {
    Ok(match text {
        b"+I" | b"INSERT" => RowKind::Insert,
        b"-U" | b"UPDATE_BEFORE" => RowKind::UpdateBefore,
        b"+U" | b"UPDATE_AFTER" => RowKind::UpdateAfter,
        b"-D" | b"DELETE" => RowKind::Delete,
        other => {
            return Err(Error::new(SqlState::INVALID_TEXT_REPRESENTATION, format!("\"{}\" is no row kind", other.escape_ascii()))
                .with_hint("Row kinds are +I, -U, +U and -D."));
        }
    })
}
