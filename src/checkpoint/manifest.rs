//! Checkpoint metadata.
//!
//! On disk: as `metadata` has it, under the name `weir-checkpoint`. A manifest is of the lowest format that has all that is in it ([`Manifest::format`]), so
//! that earlier versions read what they can, and say of what they can't that it is newer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_catalog::{Error, ObjectId, Result, SqlState};

use super::metadata;
use crate::sinks::commit::PendingCommit;
use crate::sources::SplitState;
use crate::state::rocks::is_recent_file;
use crate::state::{StateBackendKind, StateDescriptor, StateSize};
use crate::stream::{BarrierNumber, CommitSeq, KeyGroupRange};

/// The highest format that this weir writes. It reads this and every older one. 2 has what sinks have to commit, closed splits, and splits of objects in
/// an object store; 3 has rows of views that are kept for a job that was stopped.
pub const FORMAT: u32 = 3;

/// The format of what stands in a part's files: keys and values as `docs/on-disk-layout.md` has them under "Keyed state".
pub const PART_FORMAT: u32 = 2;
/// The format of a [`Part`] without files of recent runs (`state/recent.rs`), which earlier versions can read.
const PART_FORMAT_WITHOUT_RUNS: u32 = 1;

const MAGIC: &str = "weir-checkpoint";

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
    /// What [`Part::format_of`] said of its files when it was written.
    pub format: u32,
    /// Which backend wrote the files, and can read them.
    pub backend: StateBackendKind,
    /// The key groups that it holds.
    pub range: KeyGroupRange,
    pub files: Vec<FileHandle>,
    pub size: StateSize,
}

impl Part {
    /// The format of a part with these files.
    pub fn format_of(files: &[FileHandle]) -> u32 {
        if files.iter().any(|file| is_recent_file(&file.local)) { PART_FORMAT } else { PART_FORMAT_WITHOUT_RUNS }
    }

    /// Whether this version, with `backend`, can read it. Errors: `0A000` where a newer version wrote it, `55000` where another backend did.
    pub fn check(&self, backend: StateBackendKind) -> Result<()> {
        let first = self.files.first().map_or("", |file| file.name.as_str());
        if self.format > PART_FORMAT {
            return Err(Error::newer_format(format_args!("the state in checkpoint file \"{first}\""), self.format, PART_FORMAT));
        }
        if self.backend != backend {
            let message = format!("checkpoint file \"{first}\" was written by the state backend {}", self.backend.name());
            return Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
                .with_detail(format!("The setting state_backend is {}.", backend.name()))
                .with_hint(format!(
                    "Start with state_backend = {}: a data folder stays with the backend that it began with.",
                    self.backend.name()
                )));
        }
        Ok(())
    }
}

/// An operator's part: what its state is, one [`Part`] a subtask, for a source the places of its splits, and what becomes visible with the checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorCheckpoint {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<StateDescriptor>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub splits: Vec<SplitState>,
    /// Files that hold more splits, which never change again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub closed_splits: Vec<FileHandle>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commits: Vec<PendingCommit>,
}

impl OperatorCheckpoint {
    /// Whether there is something in it that manifests of format 1 have no place for.
    fn needs_format_2(&self) -> bool {
        !self.commits.is_empty() || !self.closed_splits.is_empty() || self.splits.iter().any(SplitState::is_of_object)
    }

    /// Adds what another subtask of the operator contributes.
    pub fn add(&mut self, other: OperatorCheckpoint) {
        // Subtasks are alike: one describes the state of all.
        if self.states.is_empty() {
            self.states = other.states;
        }
        self.parts.extend(other.parts);
        self.splits.extend(other.splits);
        self.closed_splits.extend(other.closed_splits);
        self.commits.extend(other.commits);
    }
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
    /// For a job that was stopped by an error, and goes on from here when it is resumed: by their ids, the rows of the views that it reads, as of this barrier. They
    /// are kept however far the views go on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<ObjectId, OperatorCheckpoint>,
}

impl JobCheckpoint {
    /// The state of its operators, and what is kept of the views that it reads.
    pub fn states(&self) -> impl Iterator<Item = &OperatorCheckpoint> {
        self.operators.values().chain(self.inputs.values())
    }

    /// The bytes of what is kept of the views that it reads, whether these have the same files or not.
    pub fn kept_bytes(&self) -> u64 {
        let parts = self.inputs.values().flat_map(|rows| &rows.parts);
        parts.flat_map(|part| &part.files).map(|file| file.bytes).sum()
    }

    /// What becomes visible with it.
    pub fn commits(&self) -> impl Iterator<Item = &PendingCommit> {
        self.operators.values().flat_map(|operator| &operator.commits)
    }
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
    /// Grows with each manifest; never used twice.
    pub number: u64,
    /// The highest barrier of all jobs in it.
    pub barrier: BarrierNumber,
    pub jobs: BTreeMap<ObjectId, JobCheckpoint>,
    pub tables: Option<TablesCheckpoint>,
}

impl Manifest {
    /// Its durable form.
    pub fn encode(&self) -> Result<Vec<u8>> {
        metadata::encode(MAGIC, self.format(), self)
    }

    /// The lowest format that has all that is in it.
    pub fn format(&self) -> u32 {
        if self.jobs.values().any(|job| !job.inputs.is_empty()) {
            return 3;
        }
        let newer = self.jobs.values().flat_map(|job| job.operators.values()).any(OperatorCheckpoint::needs_format_2);
        if newer { 2 } else { 1 }
    }

    /// The manifest that the file `name` holds. Errors with `XX001` where the bytes are not what was written, `0A000` where a newer version wrote them.
    pub fn decode(name: &str, bytes: &[u8]) -> Result<Manifest> {
        metadata::decode(MAGIC, FORMAT, &format!("checkpoint metadata \"{name}\""), bytes)
    }

    /// The commit behind which a start from this manifest reads the engine log: of the stored tables and of every job that `exists`. What comes up to it
    /// is not needed.
    pub fn log_position(&self, exists: impl Fn(ObjectId) -> bool) -> CommitSeq {
        let tables = self.tables.as_ref().map_or(0, |tables| tables.commit);
        let jobs = self.jobs.iter().filter(|(id, job)| !job.finished && exists(**id)).map(|(_, job)| job.commit);
        jobs.fold(tables, CommitSeq::min)
    }

    /// The parts of all operators, of what is kept of views, and of the stored tables.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        let jobs = self.jobs.values().flat_map(JobCheckpoint::states).flat_map(|operator| &operator.parts);
        jobs.chain(self.tables.iter().map(|tables| &tables.part))
    }

    /// The files that it names.
    pub fn files(&self) -> impl Iterator<Item = &FileHandle> {
        let splits = self.jobs.values().flat_map(|job| job.operators.values()).flat_map(|operator| &operator.closed_splits);
        self.parts().flat_map(|part| &part.files).chain(splits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_byte_anywhere_is_found() {
        let mut manifest = Manifest { number: 7, barrier: 40, ..Manifest::default() };
        manifest.jobs.insert(
            16_384,
            JobCheckpoint { barrier: 40, commit: 3, time_us: 5, operators: BTreeMap::new(), finished: false, inputs: BTreeMap::new() },
        );
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
    fn a_newer_format_is_told_from_a_damaged_one() {
        let header = |checksum| format!("weir-checkpoint 4 {checksum:016x}\n{{}}");
        let error = Manifest::decode("m", header(metadata::checksum_of(4, b"{}")).as_bytes()).unwrap_err();
        assert_eq!(error.code().as_str(), "0A000");
        assert_eq!(error.message(), "checkpoint metadata \"m\" has format 4, newer than this weir's 3");
        assert_eq!(Manifest::decode("m", header(metadata::checksum_of(1, b"{}")).as_bytes()).unwrap_err().code().as_str(), "XX001");
    }

    #[test]
    fn a_manifest_is_of_the_lowest_format_that_has_what_is_in_it() {
        let format = |operator: OperatorCheckpoint| {
            let job = JobCheckpoint {
                barrier: 9,
                commit: 3,
                time_us: 0,
                operators: BTreeMap::from([("o".to_string(), operator)]),
                finished: false,
                inputs: BTreeMap::new(),
            };
            let manifest = Manifest { jobs: BTreeMap::from([(1, job)]), ..Manifest::default() };
            let bytes = manifest.encode().unwrap();
            assert!(bytes.starts_with(format!("weir-checkpoint {} ", manifest.format()).as_bytes()));
            assert_eq!(Manifest::decode("m", &bytes).unwrap(), manifest);
            manifest.format()
        };
        let split = |split: &str, offset: &str| vec![SplitState { split: split.into(), offset: offset.into() }];
        assert_eq!(format(OperatorCheckpoint::default()), 1);
        assert_eq!(format(OperatorCheckpoint { splits: split("0", "99"), ..Default::default() }), 1);
        assert_eq!(format(OperatorCheckpoint { splits: split("/in/a.csv", "9;9;0-9"), ..Default::default() }), 1);
        assert_eq!(format(OperatorCheckpoint { splits: split("s3://b/in/a.csv", "9;9;0-9;00000000000000ab"), ..Default::default() }), 2);
        assert_eq!(format(OperatorCheckpoint { splits: split("s3://b/in/a.csv", "9;9;0-9"), ..Default::default() }), 2);
        let file = FileHandle { name: "f".into(), local: "0.splits".into(), bytes: 1, checksum: 2 };
        assert_eq!(format(OperatorCheckpoint { closed_splits: vec![file], ..Default::default() }), 2);
        let upload = PendingCommit::Upload {
            target: "s3://b/out/1.csv".into(),
            upload: "u".into(),
            parts: vec!["p".into()],
            bytes: 3,
            record: "s3://b/out/_weir_commits/1.json".into(),
        };
        assert_eq!(format(OperatorCheckpoint { commits: vec![upload], ..Default::default() }), 2);
        let remove = PendingCommit::Remove { path: "/out/1.csv".into() };
        assert_eq!(format(OperatorCheckpoint { commits: vec![remove], ..Default::default() }), 2);
    }

    #[test]
    fn the_log_is_needed_from_the_least_commit_on_that_something_restored_stands_at() {
        let job = |commit, finished| JobCheckpoint {
            barrier: 9,
            commit,
            time_us: 0,
            operators: BTreeMap::new(),
            finished,
            inputs: BTreeMap::new(),
        };
        let part = Part {
            format: Part::format_of(&[]),
            backend: StateBackendKind::Memory,
            range: KeyGroupRange::ALL,
            files: Vec::new(),
            size: StateSize::default(),
        };
        let mut manifest =
            Manifest { jobs: BTreeMap::from([(1, job(30, false)), (2, job(10, false)), (3, job(5, true))]), ..Manifest::default() };
        assert_eq!(manifest.log_position(|_| true), 0, "without the stored tables all of the log is needed");
        manifest.tables = Some(TablesCheckpoint { commit: 20, part });
        assert_eq!(manifest.log_position(|_| true), 10);
        assert_eq!(manifest.log_position(|id| id != 2), 20);
    }
}
