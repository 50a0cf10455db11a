//! The faults that tests beside the code catch. Their scenarios pass without a fault in the same run of the tests, where they are what they are.

use std::collections::BTreeSet;

use super::catching::Scenario;
use super::{CaughtBy, Fault};

const fn test(test: &'static str) -> Scenario {
    Scenario { test, environment: &[] }
}

const LOG_AND_POWER_LOSS: Scenario = test("log::tests::crash::the_log_survives_power_loss_at_every_change_of_the_disk");
const TRANSACTIONS_AND_POWER_LOSS: Scenario = test("log::tests::crash::transactions_over_tables_are_whole_after_power_loss");
const REFUSED_DDL: Scenario = test("log::tests::durability::what_a_full_disk_refuses_is_never_in_the_catalog");
const FIRST_COMMITTER: Scenario = test("log::tests::stored::the_first_committer_wins");
const BARRIER_NUMBERS: Scenario = test("job::numbers::tests::no_number_and_no_time_comes_twice_whenever_the_process_ends");
const EVICTION: Scenario = test("operators::aggregate::tests::rules::more_keys_than_memory_move_to_the_backend_and_back");
const CHECKPOINTS_AND_POWER_LOSS: Scenario = test("checkpoint::store::tests::a_manifest_and_what_it_names_survive_power_loss");
const TAKE_OVER: Scenario = test("checkpoint::tests::objects::who_comes_later_takes_over_and_another_engine_is_refused");
const SINK_AND_POWER_LOSS: Scenario =
    test("sinks::file::tests::power_loss::readers_see_whole_checkpoints_after_power_loss_at_changes_of_the_disk");
const SINK_IN_STORE: Scenario = test("sinks::file::tests::objects::objects_appear_with_their_checkpoint_and_only_then");

const RECENT_RUNS: Scenario = test("state::tests::rocks_with_recent_runs_is_like_a_map");

crate::caught_faults! {
    a_skipped_fsync_of_the_log: LogFsyncSkipped, by LOG_AND_POWER_LOSS, saying [", change "];
    a_commit_torn_in_two: CommitTorn, by TRANSACTIONS_AND_POWER_LOSS, saying ["a transaction is half there"];
    a_catalog_shown_before_it_is_durable: CatalogShownEarly, by REFUSED_DDL, saying ["is in the catalog"];
    a_conflict_missed: ConflictMissed, by FIRST_COMMITTER, saying ["unwrap_err"];
    a_barrier_number_used_again: BarrierNumberReused, by BARRIER_NUMBERS, saying [" after "];
    a_dirty_key_lost_at_eviction: DirtyKeyLostAtEviction, by EVICTION, saying ["`left == right`", "count >= 0"];
    a_written_key_missing_in_the_filter: WrittenKeyMissingInFilter, by EVICTION, saying ["`left == right`", "count >= 0"];
    deletions_lost_in_recent_runs: DeletionLostInRuns, by RECENT_RUNS, saying ["minimal failing input"];
    a_recent_run_left_out_of_a_checkpoint: RecentRunLeftOut, by RECENT_RUNS, saying ["minimal failing input"];
    a_checkpoint_file_that_is_not_fsynced: CheckpointFileNotSynced, by CHECKPOINTS_AND_POWER_LOSS, saying ["is damaged"];
    a_manifest_put_whether_its_number_is_free_or_not: ManifestPutUnconditionally, by TAKE_OVER, saying ["unwrap_err"];
    a_sink_file_that_is_not_fsynced: SinkFileNotSynced, by SINK_AND_POWER_LOSS, saying ["a reader sees", "was lost before it could be seen"];
    a_sink_that_commits_early: SinkCommitsEarly, by SINK_AND_POWER_LOSS, saying ["are durable", "a reader sees rows twice, or not all"];
    an_upload_that_is_completed_early: UploadCompletedEarly, by SINK_IN_STORE, saying ["`left == right`"];
    an_upload_that_is_not_listed: UploadNotListed, by SINK_IN_STORE, saying ["`left == right`"];
    a_record_ahead_of_its_objects: UploadRecordedEarly, by SINK_IN_STORE, saying ["a record names what is there"];
}

#[test]
fn every_fault_has_a_name_of_its_own() {
    let names: BTreeSet<&str> = Fault::ALL.iter().map(|fault| fault.name()).collect();
    assert_eq!(names.len(), Fault::ALL.len());
}

#[test]
fn every_fault_of_tests_beside_the_code_is_caught_here() {
    let expected: BTreeSet<Fault> = Fault::ALL.iter().copied().filter(|fault| fault.caught_by() == CaughtBy::TestsBesideTheCode).collect();
    assert_eq!(listed().into_iter().collect::<BTreeSet<_>>(), expected);
}
