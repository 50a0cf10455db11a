//! The tests bite: each fault that can be planted in the engine is caught by a test that runs every day.
//!
//! A scenario is one of the other tests, made short by variables, and run again in a process of its own: with the fault it must fail, for a
//! reason that has to do with it, and without one it must pass. Faults that only a lost disk shows are in the library's `seams::faults::tests`.
//!
//! Needs the feature `planted-faults`; without it these tests are ignored.

use std::collections::BTreeSet;

use weir::seams::faults::catching::{Scenario, assert_passes};
use weir::seams::faults::{CaughtBy, Fault};

const fn files(test: &'static str, environment: &'static [(&'static str, &'static str)]) -> Scenario {
    Scenario { test, environment }
}

const GROUP_BY: Scenario = files("slt::files_straight", &[("WEIR_TEST_FILE", "group_by")]);
const VIEWS_OVER_VIEWS: Scenario = files("slt::files_straight", &[("WEIR_TEST_FILE", "views_over_views")]);
const GROUP_BY_KILLED: Scenario = files("slt::files_killed_and_restarted", &[("WEIR_TEST_FILE", "group_by")]);
const MANY_EPOCHS_KILLED: Scenario = files("slt::files_killed_and_restarted", &[("WEIR_TEST_FILE", "many_epochs")]);
const UPDATES_KILLED: Scenario = files("slt::files_killed_and_restarted", &[("WEIR_TEST_FILE", "update_delete")]);
const DDL_KILLED: Scenario = files("slt::files_killed_and_restarted", &[("WEIR_TEST_FILE", "ddl")]);
const MANY_KEYS_RESCALED: Scenario = files("slt::files_restarted_at_another_parallelism", &[("WEIR_TEST_FILE", "many_")]);
const CONSISTENCY: Scenario =
    Scenario { test: "consistency::the_total_is_zero_at_every_moment_and_across_kills", environment: &[("WEIR_TEST_ROUNDS", "2")] };
const CONNECTOR: Scenario =
    Scenario { test: "consistency::transfers_from_a_connector_through_a_shared_view_balance_too", environment: &[] };
const CRASH: Scenario =
    Scenario { test: "crash::nothing_acknowledged_is_lost_and_nothing_is_doubled", environment: &[("WEIR_TEST_ROUNDS", "6")] };
const CORRUPTION: Scenario = Scenario { test: "corruption::a_flipped_byte_is_found_or_does_no_harm", environment: &[] };
const OLDER_CHECKPOINT: Scenario =
    Scenario { test: "older_checkpoint::the_log_is_kept_from_the_oldest_checkpoint_on_and_no_further", environment: &[] };
const BACKFILL: Scenario =
    Scenario { test: "backfill::a_view_made_while_its_inputs_change_misses_nothing", environment: &[("WEIR_TEST_ROUNDS", "4")] };
/// A fault of backfill is met only if a change arrives during one over the right kind of input, which not every round has: the long run, cut to
/// rounds enough, ends at the first that fails.
const BACKFILL_UNTIL_MET: Scenario = Scenario { test: BACKFILL.test, environment: &[("WEIR_TEST_LONG", "1"), ("WEIR_TEST_ROUNDS", "40")] };

const ALTER_SINK: Scenario = Scenario { test: "alter_sink::a_sink_takes_other_queries_and_writes_what_differs", environment: &[] };
const SAVEPOINTS: Scenario = Scenario { test: "savepoints::a_changed_query_has_its_batch_answer", environment: &[] };

/// What a file's run says where a view does not show what it should, or where an operator met a row that can't be.
const WRONG_ANSWER: [&str; 5] = ["query result mismatch", "is not the batch answer", " changed:", "after error XX000", "after error 22000"];
/// What it says where state can't be restored.
const DAMAGE: [&str; 3] = ["after error XX001", "is missing", "size mismatch"];

weir::caught_faults! {
    tables_that_miss_a_commit_after_a_start: TablesReplaySkipsCommit, by CRASH, saying ["is lost", "is torn", "is back", "counter", "not the batch answer"];
    a_job_that_misses_a_commit_after_a_start: JobReplaySkipsCommit, by MANY_EPOCHS_KILLED, saying WRONG_ANSWER;
    deleted_rows_that_come_back: DeletionLostInFold, by UPDATES_KILLED, saying WRONG_ANSWER;
    half_an_epoch_published: HalfEpochPublished, by CONSISTENCY, saying ["no reader saw anything but 0"];
    one_view_of_several_read_at_an_older_barrier: ViewReadOneBarrierOlder, by CONSISTENCY, saying ["no reader saw anything but 0"];
    a_row_sent_to_the_wrong_subtask: RowMisrouted, by GROUP_BY, saying ["came to a subtask that does not own it"];
    a_batch_dropped_after_a_restore: BatchDroppedAfterRestore, by MANY_EPOCHS_KILLED, saying WRONG_ANSWER;
    a_barrier_ahead_of_its_rows: BarrierOvertakesRows, by VIEWS_OVER_VIEWS, saying WRONG_ANSWER;
    a_barrier_that_is_not_aligned: BarrierNotAligned, by CONSISTENCY, saying ["no reader saw anything but 0"];
    a_dropped_retraction: RetractionDropped, by VIEWS_OVER_VIEWS, saying WRONG_ANSWER;
    a_dirty_key_lost_at_a_checkpoint: DirtyKeyLostAtFlush, by MANY_EPOCHS_KILLED, saying WRONG_ANSWER;
    a_table_file_name_used_again: TableFileNameReused, by MANY_KEYS_RESCALED, saying ["after error XX001", "is missing", "size mismatch", " changed:"];
    a_file_deleted_that_a_manifest_names: RetainedFileDeleted, by GROUP_BY_KILLED, saying DAMAGE;
    a_log_cut_too_early: LogCutTooEarly, by OLDER_CHECKPOINT, saying ["the engine log has commits"];
    checksums_that_are_not_verified: ChecksumNotVerified, by CORRUPTION, saying ["is damaged", "is corrupted"];
    offsets_one_batch_behind: OffsetsOneBatchBehind, by CONNECTOR, saying ["are more than", "assertion `left == right` failed"];
    a_key_group_lost_by_rescaling: KeyGroupLost, by MANY_KEYS_RESCALED, saying WRONG_ANSWER;
    a_backfill_from_a_table_that_misses_changes: TableBackfillMissesChanges, by BACKFILL_UNTIL_MET, saying WRONG_ANSWER;
    a_backfill_from_a_view_that_misses_changes: ViewBackfillMissesChanges, by BACKFILL_UNTIL_MET, saying WRONG_ANSWER;
    rows_that_went_since_a_savepoint_and_stay: DifferenceLosesDeletions, by SAVEPOINTS, saying ["assertion `left == right` failed"];
    a_kept_result_that_is_not_sent: KeptResultNotSent, by SAVEPOINTS, saying ["assertion `left == right` failed"];
    a_former_result_that_a_sink_does_not_take_back: FormerResultKept, by ALTER_SINK, saying ["its query gives"];
    a_drop_that_is_not_in_the_log: DropNotLogged, by DDL_KILLED, saying ["came back", "already exists"];
}

/// Makes a test of each scenario that it passes where nothing is planted.
macro_rules! controls {
    ($($name:ident: $scenario:ident;)*) => {
        /// The scenarios without a fault.
        mod without_a_fault {
            $(
                #[test]
                #[cfg_attr(not(feature = "planted-faults"), ignore = "needs the feature planted-faults")]
                fn $name() {
                    super::assert_passes(super::$scenario);
                }
            )*
        }
    };
}

controls! {
    group_by: GROUP_BY;
    views_over_views: VIEWS_OVER_VIEWS;
    group_by_killed: GROUP_BY_KILLED;
    many_epochs_killed: MANY_EPOCHS_KILLED;
    updates_killed: UPDATES_KILLED;
    ddl_killed: DDL_KILLED;
    many_keys_rescaled: MANY_KEYS_RESCALED;
    consistency: CONSISTENCY;
    connector: CONNECTOR;
    crash: CRASH;
    corruption: CORRUPTION;
    backfill: BACKFILL;
    older_checkpoint: OLDER_CHECKPOINT;
    savepoints: SAVEPOINTS;
    alter_sink: ALTER_SINK;
}

#[test]
fn every_fault_of_tests_of_the_whole_is_caught_here() {
    let expected: BTreeSet<Fault> = Fault::ALL.iter().copied().filter(|fault| fault.caught_by() == CaughtBy::TestsOfTheWhole).collect();
    assert_eq!(listed().into_iter().collect::<BTreeSet<_>>(), expected);
}
