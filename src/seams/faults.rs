//! Faults that can be planted, one at a time, to see whether the tests catch them.
//!
//! Without the feature `planted-faults` nothing is ever planted, and [`is_planted`] is `false` at compile time. With it, a process reads the variable
//! [`VARIABLE`] once, when it first comes to a place where a fault can be: what the variable names happens, wherever that place is reached.
//!
//! Which test catches which fault stands in two lists: `faults/tests.rs` for tests beside the code, `tests/it/planted.rs` for tests of the whole.
//! [`catching`] runs a test with a fault.
//!
//! # Invariants
//! - A place of a fault is looked at once a batch, a barrier, a commit or a file, never once a row.
//! - A fault makes the engine do something wrong that looks right where it happens: no place of a fault reports it.

pub mod catching;
#[cfg(test)]
mod tests;

/// The variable that names the fault to be planted.
pub const VARIABLE: &str = "WEIR_PLANTED_FAULT";

/// Which tests have to catch a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaughtBy {
    /// Tests beside the code, most of them because only a lost disk shows the fault.
    TestsBesideTheCode,
    /// Tests that drive real processes.
    TestsOfTheWhole,
}

macro_rules! faults {
    ($($(#[doc = $text:literal])* $fault:ident, $name:literal, $caught_by:ident;)*) => {
        /// Something that an engine must never do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $($(#[doc = $text])* $fault,)*
        }

        impl Fault {
            /// All of them.
            pub const ALL: &'static [Fault] = &[$(Fault::$fault),*];

            /// The name that [`VARIABLE`] knows it by.
            pub fn name(self) -> &'static str {
                match self {
                    $(Fault::$fault => $name,)*
                }
            }

            /// Which tests have to catch it.
            pub fn caught_by(self) -> CaughtBy {
                match self {
                    $(Fault::$fault => CaughtBy::$caught_by,)*
                }
            }
        }
    };
}

faults! {
    /// A commit is acknowledged that was not fsynced.
    LogFsyncSkipped, "log-fsync-skipped", TestsBesideTheCode;
    /// A transaction over several tables goes to the log as two commits.
    CommitTorn, "commit-torn", TestsBesideTheCode;
    /// What DDL makes can be seen before its record is durable.
    CatalogShownEarly, "catalog-shown-early", TestsBesideTheCode;
    /// Who commits second, over a row that changed meanwhile, is not refused.
    ConflictMissed, "conflict-missed", TestsBesideTheCode;
    /// A start of the process uses barrier numbers of the one before again.
    BarrierNumberReused, "barrier-number-reused", TestsBesideTheCode;
    /// A key whose value only memory has is evicted without being written.
    DirtyKeyLostAtEviction, "dirty-key-lost-at-eviction", TestsBesideTheCode;
    /// A key that was written counts as one that the backend does not have.
    WrittenKeyMissingInFilter, "written-key-missing-in-filter", TestsBesideTheCode;
    /// Keys that were deleted come back when runs that were kept in memory go to RocksDB.
    DeletionLostInRuns, "deletion-lost-in-runs", TestsBesideTheCode;
    /// A checkpoint leaves out the oldest run that RocksDB has not.
    RecentRunLeftOut, "recent-run-left-out", TestsBesideTheCode;
    /// A checkpoint names files that were not fsynced.
    CheckpointFileNotSynced, "checkpoint-file-not-synced", TestsBesideTheCode;
    /// A sink's files become visible with a checkpoint although they were not fsynced.
    SinkFileNotSynced, "sink-file-not-synced", TestsBesideTheCode;
    /// A sink's files become visible before their checkpoint is complete.
    SinkCommitsEarly, "sink-commits-early", TestsBesideTheCode;
    /// A sink's upload becomes an object before its checkpoint is complete.
    UploadCompletedEarly, "upload-completed-early", TestsBesideTheCode;
    /// A checkpoint does not list a sink's upload that has arrived.
    UploadNotListed, "upload-not-listed", TestsBesideTheCode;
    /// A sink's record names objects that are not there yet.
    UploadRecordedEarly, "upload-recorded-early", TestsBesideTheCode;
    /// A start leaves out the first commit behind the checkpoint of the stored tables.
    TablesReplaySkipsCommit, "tables-replay-skips-commit", TestsOfTheWhole;
    /// A restored job reads its tables' log from one commit too late.
    JobReplaySkipsCommit, "job-replay-skips-commit", TestsOfTheWhole;
    /// Rows that were deleted come back when versions are folded into their base.
    DeletionLostInFold, "deletion-lost-in-fold", TestsOfTheWhole;
    /// A view publishes half of what an epoch changed, and the other half with the next.
    HalfEpochPublished, "half-epoch-published", TestsOfTheWhole;
    /// Of several views in a statement, one is read as of the barrier before.
    ViewReadOneBarrierOlder, "view-read-one-barrier-older", TestsOfTheWhole;
    /// Rows that went since a savepoint are still there for a job that begins with it.
    DifferenceLosesDeletions, "difference-loses-deletions", TestsOfTheWhole;
    /// An operator that is kept does not send its result to one that is built anew.
    KeptResultNotSent, "kept-result-not-sent", TestsOfTheWhole;
    /// A sink whose query changes does not take back what it was sent of the former one.
    FormerResultKept, "former-result-kept", TestsOfTheWhole;
    /// A row goes to the subtask after the one that owns its key.
    RowMisrouted, "row-misrouted", TestsOfTheWhole;
    /// The first batch that a restored subtask gets from another is dropped.
    BatchDroppedAfterRestore, "batch-dropped-after-restore", TestsOfTheWhole;
    /// A barrier goes out before the rows that end its epoch.
    BarrierOvertakesRows, "barrier-overtakes-rows", TestsOfTheWhole;
    /// A subtask with several inputs does not wait for the barrier on all of them.
    BarrierNotAligned, "barrier-not-aligned", TestsOfTheWhole;
    /// A result's new row is sent without its old one being taken back.
    RetractionDropped, "retraction-dropped", TestsOfTheWhole;
    /// One of the keys to be written at a checkpoint is not.
    DirtyKeyLostAtFlush, "dirty-key-lost-at-flush", TestsOfTheWhole;
    /// State backends get the names that those of the process before had.
    TableFileNameReused, "table-file-name-reused", TestsOfTheWhole;
    /// A file goes that a retained manifest names.
    RetainedFileDeleted, "retained-file-deleted", TestsOfTheWhole;
    /// The log is kept from the newest checkpoint on, not from the oldest.
    LogCutTooEarly, "log-cut-too-early", TestsOfTheWhole;
    /// A manifest is written to an object store whether its number is free or not.
    ManifestPutUnconditionally, "manifest-put-unconditionally", TestsBesideTheCode;
    /// A start takes files of a checkpoint as they are.
    ChecksumNotVerified, "checksum-not-verified", TestsOfTheWhole;
    /// A checkpoint says of a source where it stood one batch before.
    OffsetsOneBatchBehind, "offsets-one-batch-behind", TestsOfTheWhole;
    /// A restore at another parallelism leaves out a key group.
    KeyGroupLost, "key-group-lost", TestsOfTheWhole;
    /// What changes in a table while a new job reads its rows is left out.
    TableBackfillMissesChanges, "table-backfill-misses-changes", TestsOfTheWhole;
    /// What changes in a view while a new job reads its rows is left out.
    ViewBackfillMissesChanges, "view-backfill-misses-changes", TestsOfTheWhole;
    /// A DROP takes effect and is acknowledged, but is not in the log.
    DropNotLogged, "drop-not-logged", TestsOfTheWhole;
}

/// Whether `fault` is to happen here.
#[cfg(feature = "planted-faults")]
#[inline]
pub fn is_planted(fault: Fault) -> bool {
    planted() == Some(fault)
}

/// Whether `fault` is to happen here: never, without the feature.
#[cfg(not(feature = "planted-faults"))]
#[inline(always)]
pub const fn is_planted(_fault: Fault) -> bool {
    false
}

/// The fault of this process.
#[cfg(feature = "planted-faults")]
fn planted() -> Option<Fault> {
    static PLANTED: std::sync::OnceLock<Option<Fault>> = std::sync::OnceLock::new();
    *PLANTED.get_or_init(|| {
        let name = std::env::var_os(VARIABLE)?;
        let fault = Fault::ALL.iter().copied().find(|fault| *fault.name() == name);
        if fault.is_none() {
            // A test that waits for a fault of another name would wait for nothing.
            eprintln!("weir: {VARIABLE} names no fault: {}", name.display());
            std::process::exit(2);
        }
        fault
    })
}
