//! Checkpoint metadata.
//!
//! On disk: one line `weir-checkpoint <format> <XXH3-64 of the rest, 16 hex digits>`, then JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_catalog::{Error, ObjectId, Result};
use xxhash_rust::xxh3::xxh3_64;

use crate::sources::SplitState;
use crate::state::StateSize;
use crate::stream::{BarrierNumber, CommitSeq, KeyGroupRange};

/// The format that this weir writes. It reads this and every older one.
pub const FORMAT: u32 = 1;

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHandle {
    /// Its name in the store.
    pub name: String,
    /// The name that the state backend knows it by.
    pub local: String,
    /// Its length.
    pub bytes: u64,
    /// XXH3-64 of its content.
    pub checksum: u64,
}

/// One backend's part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The key groups that it holds.
    pub range: KeyGroupRange,
    pub files: Vec<FileHandle>,
    pub size: StateSize,
}

/// An operator's part: one [`Part`] a subtask, and for a source the places of its splits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorCheckpoint {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub splits: Vec<SplitState>,
}

/// A job as of one barrier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobCheckpoint {
    pub barrier: BarrierNumber,
    /// The commit at which it had cut the engine log.
    pub commit: CommitSeq,
    /// The engine's time at the barrier, microseconds since 1970 UTC.
    pub time_us: i64,
    /// By uid.
    pub operators: BTreeMap<String, OperatorCheckpoint>,
    /// A bounded job that has finished: it is not started again.
    #[serde(default)]
    pub finished: bool,
}

/// The stored tables as of one commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TablesCheckpoint {
    pub commit: CommitSeq,
    pub part: Part,
}

/// Everything needed to start from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Grows by one with each manifest.
    pub number: u64,
    /// The highest barrier of all jobs in it.
    pub barrier: BarrierNumber,
    pub jobs: BTreeMap<ObjectId, JobCheckpoint>,
    pub tables: Option<TablesCheckpoint>,
}

impl Manifest {
    /// Its durable form.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let json = serde_json::to_vec(self).map_err(|e| Error::internal(format!("could not encode checkpoint metadata: {e}")))?;
        let mut bytes = format!("weir-checkpoint {FORMAT} {:016x}\n", xxh3_64(&json)).into_bytes();
        bytes.extend_from_slice(&json);
        Ok(bytes)
    }

    /// The manifest that the file `name` holds. Errors with `XX001` where the bytes are not what was written, or of a newer format.
    pub fn decode(name: &str, bytes: &[u8]) -> Result<Manifest> {
        let broken = |what: &str| Error::corrupted(format!("checkpoint metadata \"{name}\" {what}"));
        let end = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(|| broken("has no header"))?;
        let header = std::str::from_utf8(&bytes[..end]).map_err(|_| broken("has no header"))?;
        let json = &bytes[end + 1..];
        let mut words = header.split(' ');
        let (magic, format, checksum) = (words.next(), words.next(), words.next());
        if magic != Some("weir-checkpoint") || words.next().is_some() {
            return Err(broken("has no header"));
        }
        let format: u32 = format.and_then(|format| format.parse().ok()).ok_or_else(|| broken("has no format number"))?;
        if format > FORMAT {
            return Err(broken(&format!("has format {format}, newer than this weir's {FORMAT}")));
        }
        if checksum != Some(format!("{:016x}", xxh3_64(json)).as_str()) {
            return Err(broken("does not match its checksum"));
        }
        serde_json::from_slice(json).map_err(|e| broken(&format!("can't be read: {e}")))
    }

    /// The files that it names.
    pub fn files(&self) -> impl Iterator<Item = &FileHandle> {
        let jobs = self.jobs.values().flat_map(|job| job.operators.values()).flat_map(|operator| &operator.parts);
        jobs.chain(self.tables.iter().map(|tables| &tables.part)).flat_map(|part| &part.files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_byte_anywhere_is_found() {
        let mut manifest = Manifest { number: 7, barrier: 40, ..Manifest::default() };
        manifest.jobs.insert(16_384, JobCheckpoint { barrier: 40, commit: 3, time_us: 5, operators: BTreeMap::new(), finished: false });
        let bytes = manifest.encode().unwrap();
        assert_eq!(Manifest::decode("m", &bytes).unwrap(), manifest);
        for at in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 0x10;
            let error = Manifest::decode("m", &broken).expect_err("a flipped byte must not go unseen");
            assert_eq!(error.code().as_str(), "XX001", "byte {at}");
        }
    }

    #[test]
    fn a_newer_format_is_named() {
        let error = Manifest::decode("m", b"weir-checkpoint 2 0000000000000000\n{}").unwrap_err();
        assert!(error.message().contains("format 2"), "{error}");
    }
}
