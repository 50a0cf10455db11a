//! What the system views show of jobs, operators and checkpoints.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_catalog::{Error, ObjectId};

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
    /// The newest barrier that it has finished.
    pub barrier: BarrierNumber,
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

/// A checkpoint as a whole.
#[derive(Clone, Debug)]
pub struct CheckpointSummary {
    pub checkpoint: BarrierNumber,
    pub state: CheckpointState,
    pub started_us: i64,
    pub ended_us: Option<i64>,
    pub error: Option<Error>,
    pub parts: Vec<CheckpointStatus>,
}

/// The newest state of everything, written by the manager and read by anyone.
#[derive(Debug, Default)]
pub struct StatusBoard {
    pub jobs: Vec<JobStatus>,
    /// Oldest first, a bounded number.
    pub checkpoints: VecDeque<CheckpointSummary>,
    /// The number of barriers made since the start.
    pub barriers: u64,
}

/// How many checkpoints the board remembers.
pub const CHECKPOINTS_REMEMBERED: usize = 100;
