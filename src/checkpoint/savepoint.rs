//! Savepoints: checkpoints of one job that a user owns.
//!
//! ```text
//!   <place>/SAVEPOINT      the metadata
//!   <place>/files/<name>   the files that it names, as in a store of checkpoints
//! ```
//!
//! The place is a folder, or a prefix of an object store. A savepoint needs nothing outside its place: it has the state of the job's operators, and of what
//! the job reads the rows as of its barrier. In a folder its files are other names of the files of the store (copies where the store is in another file
//! system, or elsewhere), so that it costs little to make, and nothing that happens to the store or to other savepoints touches it.
//!
//! The metadata is as `metadata` has it, under the name `weir-savepoint`. It gets its name last: a place without it is no savepoint. In a folder it is written
//! first, as `SAVEPOINT.tmp`, and has that name again while the savepoint is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::Path;

use serde::{Deserialize, Serialize};
use weir_catalog::{Derivation, Error, Job, Object, Result, SqlState, SqlType};

use super::metadata;
use super::{FileHandle, JobCheckpoint, OperatorCheckpoint, Part, TablesCheckpoint};
use crate::sources::SplitState;
use crate::state::descriptor::StateTexts;

pub mod folder;
mod named;
mod objects;
mod place;

pub use named::{Reserved, Savepoints, Unsettled};
pub use place::{Place, Places, absolute};

/// The highest format that this weir writes. It reads this and every older one. 2 has nested columns (`Object::has_nested_columns`), 3 splits of objects in an
/// object store; a savepoint without such content is still of format 1.
pub const FORMAT: u32 = 3;

const MAGIC: &str = "weir-savepoint";
const METADATA: &str = "SAVEPOINT";
/// In a folder, the metadata of a savepoint that is not complete yet, or not any more.
const UNFINISHED: &str = "SAVEPOINT.tmp";
const FILES: &str = "files";
/// Beside a savepoint of a job that is about to end with it: the job's id, as decimal digits. It counts when the job is gone.
const ENDING: &str = "ENDING";

/// A savepoint's metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Savepoint {
    pub name: String,
    /// The data folder that it is of.
    pub engine: u64,
    /// When it was made, microseconds since 1970 UTC.
    pub created_us: i64,
    /// The job as it was.
    pub job: Job,
    pub checkpoint: JobCheckpoint,
    /// Of each operator with a uid what its rows were computed from.
    pub operators: BTreeMap<String, SavedOperator>,
    /// What the job's result was computed from; `None` where it was written by a weir that did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Derivation>,
    /// Whether the job ended with it: it has all that the job has ever written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends_job: bool,
    /// What the job read.
    pub inputs: Vec<SavedInput>,
    /// The stored tables, where the job read one; at the commit of `checkpoint`.
    pub tables: Option<TablesCheckpoint>,
}

/// What an operator's state is of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedOperator {
    pub derivation: Derivation,
    #[serde(default)]
    pub state: StateTexts,
    /// Over a UNION ALL: what it would be over each branch alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub branches: Vec<SavedOperator>,
}

/// A table or view that the job read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedInput {
    pub object: Object,
    /// A view's rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<OperatorCheckpoint>,
}

impl Savepoint {
    /// All that it has of state.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        let operators = self.checkpoint.operators.values().chain(self.inputs.iter().filter_map(|input| input.rows.as_ref()));
        operators.flat_map(|operator| &operator.parts).chain(self.tables.iter().map(|tables| &tables.part))
    }

    /// The files that it names.
    pub fn files(&self) -> impl Iterator<Item = &FileHandle> {
        let splits = self.checkpoint.operators.values().flat_map(|operator| &operator.closed_splits);
        self.parts().flat_map(|part| &part.files).chain(splits)
    }

    /// The files that it names, each once.
    fn distinct_files(&self) -> Vec<FileHandle> {
        let mut named = BTreeSet::new();
        self.files().filter(|file| named.insert(file.name.as_str())).cloned().collect()
    }

    fn encode(&self) -> Result<Vec<u8>> {
        metadata::encode(MAGIC, format_of(self), self)
    }

    /// What the metadata in `file` says. Errors: `XX001` where it is damaged, `0A000` where a newer version wrote it.
    fn decode(file: impl Display, bytes: &[u8]) -> Result<Savepoint> {
        metadata::decode(MAGIC, FORMAT, &format!("file \"{file}\" of a savepoint"), bytes)
    }

    /// The length of its files, bytes.
    pub fn bytes(&self) -> u64 {
        self.distinct_files().iter().map(|file| file.bytes).sum()
    }
}

/// The lowest format that can hold it.
fn format_of(savepoint: &Savepoint) -> u32 {
    if savepoint.checkpoint.operators.values().any(|operator| operator.splits.iter().any(SplitState::is_of_object)) {
        return 3;
    }
    let own_columns = savepoint.job.columns.iter().any(|column| column.ty.any(&SqlType::is_nested));
    if own_columns || savepoint.inputs.iter().any(|input| input.object.has_nested_columns()) { 2 } else { 1 }
}

/// `42704`: there is no savepoint in `place`, but maybe `half` of one.
fn none_in(place: impl Display, half: bool) -> Error {
    let error = Error::new(SqlState::UNDEFINED_OBJECT, format!("there is no savepoint in \"{place}\""));
    if half { error.with_detail("It has files of one that was not completed.") } else { error }
}

fn exists_in(place: impl Display) -> Error {
    Error::new(SqlState::DUPLICATE_OBJECT, format!("there is a savepoint in \"{place}\""))
}

/// `XX001`: the savepoint in `folder` has lost its metadata.
fn metadata_missing(folder: &Path) -> Error {
    Error::corrupted(format!("file \"{}\" of a savepoint is missing", folder.join(METADATA).display()))
        .with_hint("Put it back where there is a copy of it; DROP SAVEPOINT removes what is left.")
}

/// `55006`: somebody makes a savepoint in `place`, or removes one.
fn in_use(place: impl Display) -> Error {
    Error::new(SqlState::OBJECT_IN_USE, format!("a savepoint in \"{place}\" is being made or removed"))
        .with_hint("Name another place, or try again when that is done.")
}

/// `XX001`: a file of the savepoint in `place` is not there.
pub(super) fn missing(file: &FileHandle, place: impl Display) -> Error {
    Error::corrupted(format!("file \"{}\" of the savepoint in \"{place}\" is missing", file.name))
}

/// `XX001`: a file of the savepoint in `place` is not what was written.
pub(super) fn damaged(file: &FileHandle, place: impl Display, bytes: u64, checksum: u64) -> Error {
    Error::corrupted(format!("file \"{}\" of the savepoint in \"{place}\" is damaged", file.name)).with_detail(format!(
        "It has {bytes} bytes with checksum {checksum:016x}; {} with {:016x} were written.",
        file.bytes, file.checksum
    ))
}

#[cfg(test)]
mod tests;
