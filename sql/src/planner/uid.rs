//! `/*+ uid('name') */`: how a query names its operators.
//!
//! The binder puts an alias with a prefix of its own around the plan of a block that a hint names; see [`UID_ALIAS_PREFIX`].

use weir_catalog::{Error, Result, SqlState};

use crate::binder::UID_ALIAS_PREFIX;

/// The longest uid a hint may give, bytes.
const UID_BYTES_MAX: usize = 128;

/// The uid that the alias `name` marks, if it is a marker. Errors with `22023` if the uid could be taken for a derived one, or for a part of another.
pub(super) fn marked_uid(name: &str) -> Result<Option<String>> {
    let Some(uid) = name.strip_prefix(UID_ALIAS_PREFIX) else { return Ok(None) };
    if uid.is_empty() || uid.len() > UID_BYTES_MAX || uid.chars().any(|c| c.is_control() || matches!(c, '/' | '(' | ')' | ':' | '#')) {
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("uid \"{uid}\" can't be used"))
            .with_hint(format!("A uid has 1 to {UID_BYTES_MAX} bytes and none of the characters / ( ) : #.")));
    }
    Ok(Some(uid.to_string()))
}
