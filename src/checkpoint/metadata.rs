//! How the metadata of checkpoints and savepoints stands on disk.
//!
//! One line `<name> <format> <checksum, 16 hex digits>`, then JSON. The checksum is XXH3-64 of the format number, as decimal digits, and the JSON. This
//! line stands in every format, so that a newer one is told from a damaged one.

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_catalog::{Error, Result};
use xxhash_rust::xxh3::Xxh3;

/// The checksum of metadata.
pub(super) fn checksum_of(format: u32, json: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(format.to_string().as_bytes());
    hasher.update(json);
    hasher.digest()
}

/// The durable form of `value` under the name `magic`.
pub(super) fn encode<T: Serialize>(magic: &str, format: u32, value: &T) -> Result<Vec<u8>> {
    let json = serde_json::to_vec(value).map_err(|e| Error::internal(format!("could not encode checkpoint metadata: {e}")))?;
    let mut bytes = format!("{magic} {format} {:016x}\n", checksum_of(format, &json)).into_bytes();
    bytes.extend_from_slice(&json);
    Ok(bytes)
}

/// What `bytes` hold; `what` are they called in errors. Errors with `XX001` where they are not what was written, `0A000` where they have a newer format than
/// `known`.
pub(super) fn decode<T: DeserializeOwned>(magic: &str, known: u32, what: &str, bytes: &[u8]) -> Result<T> {
    let broken = |how: &str| Error::corrupted(format!("{what} {how}"));
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(|| broken("has no header"))?;
    let header = std::str::from_utf8(&bytes[..end]).map_err(|_| broken("has no header"))?;
    let json = &bytes[end + 1..];
    let mut words = header.split(' ');
    let (found, format, checksum) = (words.next(), words.next(), words.next());
    if found != Some(magic) || words.next().is_some() {
        return Err(broken("has no header"));
    }
    let format: u32 = format.and_then(|format| format.parse().ok()).ok_or_else(|| broken("has no format number"))?;
    if checksum != Some(format!("{:016x}", checksum_of(format, json)).as_str()) {
        return Err(broken("does not match its checksum"));
    }
    match format {
        0 => Err(broken("has format 0, which there never was")),
        format if format > known => Err(Error::newer_format(what, format, known)),
        _ => serde_json::from_slice(json).map_err(|e| broken(&format!("can't be read: {e}"))),
    }
}
