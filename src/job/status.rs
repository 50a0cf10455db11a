//! What the system views show of jobs, operators and checkpoints.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_catalog::{Error, ObjectId, SqlState};

use crate::runtime::metrics::{OperatorMetrics, SubtaskMetrics};
use crate::stream::BarrierNumber;

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// State is being restored or made.
    Starting,
    /// Reading its inputs' rows; nothing was published yet.
    Backfilling,
    Running,
    /// Failed; it will be started again after a pause.
    Restarting,
    /// Stopped with an error.
    Failed,
    /// All its input has ended, and the result is complete.
    Finished,
}

impl JobState {
    /// Its name, as SHOW JOBS prints it.
    pub fn as_str(self) -> &'static str {
        match self {
            JobState::Starting => "starting",
            JobState::Backfilling => "backfilling",
            JobState::Running => "running",
            JobState::Restarting => "restarting",
            JobState::Failed => "failed",
            JobState::Finished => "finished",
        }
    }
}

/// `55000`: a job can't begin, for the job `name`, whose view it reads, was stopped by `cause`.
pub fn stopped_input(name: &str, cause: Option<&Error>) -> Error {
    let error = Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, format!("cannot read view \"{name}\": its job is stopped"))
        .with_hint(format!("Remove the cause, then ALTER JOB {name} RESUME."));
    match cause {
        Some(cause) => error.with_detail(format!("It was stopped by: {}", cause.message())),
        None => error,
    }
}

/// A row of `weir_jobs`.
#[derive(Clone, Debug)]
pub struct JobStatus {
    pub id: ObjectId,
    pub name: String,
    /// `materialized view`, `sink` or `job`.
    pub kind: &'static str,
    pub state: JobState,
    pub restarts: u64,
    pub last_error: Option<Error>,
    pub parallelism: usize,
    /// The newest barrier that it has finished and shown.
    pub barrier: BarrierNumber,
    /// How many barriers it has been given and not finished.
    pub in_flight: usize,
    /// Whether the newest checkpoint has it.
    pub checkpointed: bool,
    /// The bytes of the rows of the views that it reads, as of its last checkpoint, that are kept until it goes on from there or is dropped.
    pub kept_bytes: u64,
    pub operators: Vec<OperatorStatus>,
}

/// One operator in one subtask.
#[derive(Clone, Debug)]
pub struct OperatorStatus {
    pub uid: String,
    pub operator: String,
    pub subtask: usize,
    pub metrics: Arc<OperatorMetrics>,
    /// Of the subtask that it runs in.
    pub subtask_metrics: Arc<SubtaskMetrics>,
    /// When the subtask was started, microseconds since 1970 UTC.
    pub started_us: i64,
}

/// How a checkpoint of a group went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointState {
    InProgress,
    Completed,
    Failed,
}

impl CheckpointState {
    pub fn as_str(self) -> &'static str {
        match self {
            CheckpointState::InProgress => "in progress",
            CheckpointState::Completed => "completed",
            CheckpointState::Failed => "failed",
        }
    }
}

/// A row of `weir_checkpoints`: what one operator's subtask did for one checkpoint.
#[derive(Clone, Debug)]
pub struct CheckpointStatus {
    /// The barrier's number is the checkpoint's.
    pub checkpoint: BarrierNumber,
    pub job: ObjectId,
    pub job_name: String,
    pub uid: String,
    pub subtask: usize,
    pub cost: crate::checkpoint::snapshot::SnapshotCost,
}

/// The checkpoints that began at one barrier.
#[derive(Clone, Debug)]
pub struct CheckpointSummary {
    pub checkpoint: BarrierNumber,
    /// Microseconds since 1970 UTC.
    pub started_us: i64,
    pub groups: Vec<GroupCheckpointStatus>,
}

/// The checkpoint of one group, or of the stored tables.
#[derive(Clone, Debug)]
pub struct GroupCheckpointStatus {
    /// The group's jobs and their names; none for the stored tables.
    pub jobs: Vec<(ObjectId, String)>,
    /// Whether this is the stored tables' part.
    pub tables: bool,
    pub state: CheckpointState,
    /// Microseconds since 1970 UTC.
    pub ended_us: Option<i64>,
    pub error: Option<Error>,
    pub parts: Vec<CheckpointStatus>,
}

impl GroupCheckpointStatus {
    /// One that has just begun, of the jobs given, or without jobs of the stored tables.
    pub fn begun(jobs: Vec<(ObjectId, String)>) -> GroupCheckpointStatus {
        let tables = jobs.is_empty();
        GroupCheckpointStatus { jobs, tables, state: CheckpointState::InProgress, ended_us: None, error: None, parts: Vec::new() }
    }

    /// It is complete, or has failed.
    pub fn end(&mut self, ended_us: i64, error: Option<&Error>) {
        self.state = if error.is_none() { CheckpointState::Completed } else { CheckpointState::Failed };
        self.ended_us = Some(ended_us);
        self.error = error.cloned();
    }
}

impl CheckpointSummary {
    /// In progress as long as one group is, failed where one has.
    pub fn state(&self) -> CheckpointState {
        let has = |state: CheckpointState| self.groups.iter().any(|group| group.state == state);
        if has(CheckpointState::InProgress) {
            CheckpointState::InProgress
        } else if has(CheckpointState::Failed) {
            CheckpointState::Failed
        } else {
            CheckpointState::Completed
        }
    }

    /// What all its subtasks did.
    pub fn parts(&self) -> impl Iterator<Item = &CheckpointStatus> {
        self.groups.iter().flat_map(|group| &group.parts)
    }
}

/// A checkpoint that can be gone back to.
#[derive(Clone, Debug)]
pub struct RetainedCheckpoint {
    pub checkpoint: BarrierNumber,
    /// When it was made, microseconds since 1970 UTC, as far as it is known.
    pub time_us: Option<i64>,
    /// The names of the jobs in it that still exist.
    pub jobs: Vec<String>,
}

/// The newest state of everything, written by the manager and read by anyone.
#[derive(Debug, Default)]
pub struct StatusBoard {
    pub jobs: Vec<JobStatus>,
    /// Oldest first, a bounded number.
    pub checkpoints: VecDeque<CheckpointSummary>,
    /// The checkpoints that can be gone back to, oldest first.
    pub retained: Vec<RetainedCheckpoint>,
    /// The number of barriers made since the start.
    pub barriers: u64,
}

/// How many checkpoints the board remembers.
pub const CHECKPOINTS_REMEMBERED: usize = 100;
