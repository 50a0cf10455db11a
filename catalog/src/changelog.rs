//! Row kinds and changelog modes, with Flink's meaning and byte values.

use serde::{Deserialize, Serialize};

/// What a row of a changelog does to the result it belongs to.
///
/// The numbers are the ones on every edge and in durable bytes: an even kind adds the row, an odd one takes it away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum RowKind {
    /// `+I`: a new row.
    Insert = 0,
    /// `-U`: the former content of a row that a [`RowKind::UpdateAfter`] replaces.
    UpdateBefore = 1,
    /// `+U`: the new content of a row.
    UpdateAfter = 2,
    /// `-D`: a row that is gone.
    Delete = 3,
}

impl RowKind {
    /// The kind with this number, or `None` if there is none.
    pub fn from_u8(kind: u8) -> Option<RowKind> {
        match kind {
            0 => Some(RowKind::Insert),
            1 => Some(RowKind::UpdateBefore),
            2 => Some(RowKind::UpdateAfter),
            3 => Some(RowKind::Delete),
            _ => None,
        }
    }

    /// `+1` for a kind that adds a row, `-1` for one that takes a row away.
    pub fn weight(self) -> i64 {
        1 - 2 * i64::from(self as u8 & 1)
    }

    /// The short form that Flink prints: `+I`, `-U`, `+U`, `-D`.
    pub fn short(self) -> &'static str {
        match self {
            RowKind::Insert => "+I",
            RowKind::UpdateBefore => "-U",
            RowKind::UpdateAfter => "+U",
            RowKind::Delete => "-D",
        }
    }
}

/// Which row kinds an edge may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangelogMode {
    /// `+I` only.
    Append,
    /// `+I`, `+U` and `-D`, keyed by an upsert key: the former content of an updated row is not sent.
    Upsert,
    /// All four kinds: every row that goes is sent whole.
    Retract,
}

impl std::fmt::Display for ChangelogMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ChangelogMode::Append => "append",
            ChangelogMode::Upsert => "upsert",
            ChangelogMode::Retract => "retract",
        })
    }
}
