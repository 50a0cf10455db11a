//! A group is the unit of checkpoint and restart: what happens to one never holds up or fails another, and what readers have seen never goes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir::job::engine::Seams;
use weir::job::status::{CheckpointState, JobState};
use weir::seams::clock::Clock;

use crate::embedded::{Effect, Embedded, Gate, eventually};
use crate::server::PATIENCE;

/// Two views that share nothing.
const TWO_GROUPS: &str = "CREATE TABLE t (id INT PRIMARY KEY); CREATE TABLE u (id INT PRIMARY KEY);
    INSERT INTO t VALUES (1); INSERT INTO u VALUES (1);
    CREATE MATERIALIZED VIEW slow AS SELECT id FROM t; CREATE MATERIALIZED VIEW other AS SELECT id FROM u; FLUSH";

async fn two_groups(dir: &tempfile::TempDir, settings: &[(&str, &str)]) -> Embedded {
    let mut weir = Embedded::open(&dir.path().join("data"), settings).await;
    weir.must(TWO_GROUPS).await;
    weir
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_checkpoint_holds_up_no_other_group() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = two_groups(&dir, &[("checkpoint_interval", "30 ms"), ("parallelism", "2")]).await;
    let scratch = weir.scratch("slow");
    weir.gate.add("late", "hard_link", &[&scratch, "images"], Effect::Hold);
    weir.must("INSERT INTO t VALUES (2)").await;
    eventually("a part that is held", || weir.gate.met("late") > 0).await;
    let before = weir.checkpoints("other", CheckpointState::Completed);
    let deadline = Instant::now() + PATIENCE;
    let mut id = 1;
    // Without anything new there would be no more of them.
    while weir.checkpoints("other", CheckpointState::Completed) < before + 3 {
        assert!(Instant::now() < deadline, "no more checkpoints of the other group");
        id += 1;
        weir.must(&format!("INSERT INTO u VALUES ({id})")).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(weir.checkpoints("slow", CheckpointState::InProgress), 1, "a group is in one checkpoint at a time");
    // Nor does it hold up its own view.
    weir.must("INSERT INTO t VALUES (3); FLUSH").await;
    assert_eq!(weir.count("SELECT count(*) FROM slow").await, 3);
    weir.gate.remove("late");
    eventually("the late checkpoint", || weir.checkpoints("slow", CheckpointState::InProgress) == 0).await;
    // Who asks for a checkpoint gets it from every group.
    weir.must("INSERT INTO t VALUES (4); CHECKPOINT").await;
    weir.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_that_takes_too_long_fails_for_its_group_alone() {
    let dir = tempfile::tempdir().unwrap();
    let settings = [("checkpoint_interval", "0"), ("tolerable_checkpoint_failures", "0")];
    let mut weir = two_groups(&dir, &settings).await;
    let scratch = weir.scratch("slow");
    weir.gate.add("late", "hard_link", &[&scratch, "images"], Effect::Hold);
    weir.must("INSERT INTO t VALUES (2); INSERT INTO u VALUES (2)").await;
    let engine = weir.engine.clone();
    let checkpoint = tokio::spawn(async move { engine.checkpoint().await });
    // All others are done, however slow the disk is, before the time for it gets short.
    eventually("the checkpoints of all others", || {
        weir.checkpoints("other", CheckpointState::Completed) == 1 && weir.tables_checkpoints(CheckpointState::Completed) == 1
    })
    .await;
    weir.engine.set("checkpoint_timeout", "300 ms").unwrap();
    let error = tokio::time::timeout(PATIENCE, checkpoint).await.expect("CHECKPOINT returns").unwrap().unwrap_err();
    weir.engine.set("checkpoint_timeout", "10 min").unwrap();
    assert_eq!(error.code().as_str(), "55000");
    assert!(error.detail().unwrap_or_default().contains("\"slow\""), "{error}");
    assert_eq!(weir.checkpoints("other", CheckpointState::Completed), 1);
    assert_eq!(weir.checkpoints("slow", CheckpointState::Failed), 1);
    weir.gate.remove("late");
    // One more than is tolerated: the group is restarted, and no other.
    eventually("a restart", || weir.job("slow").restarts == 1 && weir.job("slow").state == JobState::Running).await;
    assert_eq!(weir.job("other").restarts, 0);
    weir.must("CHECKPOINT").await;
    assert_eq!(weir.count("SELECT count(*) FROM slow").await, 2);
    weir.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manifest_that_could_not_be_written_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = two_groups(&dir, &[("checkpoint_interval", "0"), ("tolerable_checkpoint_failures", "10")]).await;
    weir.gate.add("full", "rename", &["/checkpoints/"], Effect::Fail);
    let error = weir.run("CHECKPOINT").await.unwrap_err();
    assert_eq!(error.code().as_str(), "58030");
    assert!(weir.gate.met("full") > 0);
    let names = || -> Vec<String> {
        let entries = std::fs::read_dir(dir.path().join("data/checkpoints")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    };
    assert!(!names().iter().any(|name| name.ends_with(".tmp")), "{:?}", names());
    weir.gate.remove("full");
    weir.must("INSERT INTO t VALUES (2); CHECKPOINT").await;
    weir.close().await;
    let mut weir = Embedded::open(&dir.path().join("data"), &[]).await;
    assert_eq!(weir.count("SELECT count(*) FROM slow").await, 2);
    weir.engine.shutdown().await;
}

/// A savepoint has the rows of the stored tables as of its barrier, also where the checkpoints of the job follow one another without a pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_savepoint_is_made_though_checkpoints_take_longer_than_their_interval() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = two_groups(&dir, &[("checkpoint_interval", "1 ms"), ("parallelism", "1")]).await;
    let scratch = weir.scratch("slow");
    weir.gate.add("slow", "hard_link", &[&scratch, "images"], Effect::Slow(Duration::from_millis(150)));
    let stop = Arc::new(AtomicBool::new(false));
    let writing = tokio::spawn(write_until(weir.again(), stop.clone()));
    for round in 0..5 {
        weir.must(&format!("CREATE SAVEPOINT s{round} FOR slow")).await;
    }
    // As its checkpoint is complete, and before the next one begins.
    weir.must("ALTER JOB slow STOP WITH SAVEPOINT s5").await;
    stop.store(true, Ordering::SeqCst);
    let written = writing.await.unwrap();
    weir.must("FLUSH").await;
    for round in 0..=5 {
        weir.must(&format!("CREATE MATERIALIZED VIEW again FROM SAVEPOINT s{round} AS SELECT id FROM t")).await;
        assert_eq!(weir.count("SELECT count(*) FROM again").await, written);
        weir.must("DROP MATERIALIZED VIEW again").await;
    }
    weir.engine.shutdown().await;
}

/// Writes rows of `t` behind its first, one after another. Returns how many there are.
async fn write_until(mut weir: Embedded, stop: Arc<AtomicBool>) -> i64 {
    let mut id = 1;
    while !stop.load(Ordering::SeqCst) {
        id += 1;
        weir.must(&format!("INSERT INTO t VALUES ({id})")).await;
    }
    id
}

/// A new reader has the view's rows of the barrier at which it joined, however many others have passed before it comes to scan them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_comes_late_to_a_view_has_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let settings = [("retained_barriers", "1"), ("min_barrier_interval", "0"), ("checkpoint_interval", "0"), ("parallelism", "2")];
    let mut weir = Embedded::open(&dir.path().join("data"), &settings).await;
    weir.must(
        "CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t VALUES (1), (2), (3); CREATE MATERIALIZED VIEW below AS SELECT id FROM t",
    )
    .await;
    let stop = Arc::new(AtomicBool::new(false));
    let hurrying = tokio::spawn(make_barriers(weir.again(), stop.clone()));
    for _ in 0..40 {
        weir.must("CREATE MATERIALIZED VIEW above AS SELECT count(*) AS n FROM below").await;
        assert_eq!(weir.count("SELECT n FROM above").await, 3);
        weir.must("DROP MATERIALIZED VIEW above").await;
    }
    stop.store(true, Ordering::SeqCst);
    hurrying.await.unwrap();
    weir.engine.shutdown().await;
}

/// Has one barrier made after another.
async fn make_barriers(weir: Embedded, stop: Arc<AtomicBool>) {
    let made = || weir.engine.board().read().barriers;
    while !stop.load(Ordering::SeqCst) {
        let before = made();
        weir.engine.set("barrier_interval", "100 ms").unwrap();
        while made() == before && !stop.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
    }
}

/// A job over a connector that has an end.
const BOUNDED: &str =
    "CREATE TABLE bid (auction BIGINT, price BIGINT) WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '1000');
    CREATE SINK counted WITH (connector = 'blackhole') AS SELECT auction, count(*) AS n FROM bid GROUP BY auction";

/// Holds up, or fails, the first part of the last checkpoint of a bounded job.
async fn at_its_last_checkpoint(dir: &tempfile::TempDir, settings: &[(&str, &str)], effect: Effect) -> Embedded {
    let mut weir = Embedded::open(&dir.path().join("data"), settings).await;
    weir.gate.add("last", "hard_link", &["/scratch/", "images"], effect);
    weir.must(BOUNDED).await;
    eventually("the last checkpoint", || weir.gate.met("last") > 0).await;
    weir
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_for_a_checkpoint_waits_no_longer_for_a_job_that_has_finished() {
    let dir = tempfile::tempdir().unwrap();
    let weir = at_its_last_checkpoint(&dir, &[("checkpoint_interval", "0")], Effect::Hold).await;
    // It is asked for while the last one is under way, so it would be one after the last.
    let engine = weir.engine.clone();
    let barriers = weir.engine.board().read().barriers;
    let checkpoint = tokio::spawn(async move { engine.checkpoint().await });
    eventually("the barrier of the checkpoint that is asked for", || weir.engine.board().read().barriers > barriers).await;
    weir.gate.remove("last");
    let done = tokio::time::timeout(PATIENCE, checkpoint).await.expect("CHECKPOINT returns").unwrap();
    assert_eq!(done, Ok(()));
    eventually("the end of the job", || weir.job("counted").state == JobState::Finished).await;
    tokio::time::timeout(PATIENCE, weir.engine.shutdown()).await.expect("the engine stops");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_checkpoint_of_a_bounded_job_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let settings = [("checkpoint_interval", "0"), ("tolerable_checkpoint_failures", "1000000")];
    let weir = at_its_last_checkpoint(&dir, &settings, Effect::Fail).await;
    eventually("a failed checkpoint", || weir.checkpoints("counted", CheckpointState::Failed) > 0).await;
    assert_eq!(weir.job("counted").state, JobState::Running);
    weir.gate.remove("last");
    eventually("the end of the job", || weir.job("counted").state == JobState::Finished).await;
    assert_eq!(weir.job("counted").restarts, 0);
    weir.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_does_without_a_checkpoint_that_does_not_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = two_groups(&dir, &[("checkpoint_interval", "0"), ("shutdown_timeout", "100 ms")]).await;
    let scratch = weir.scratch("slow");
    weir.gate.add("late", "hard_link", &[&scratch, "images"], Effect::Hold);
    weir.must("INSERT INTO t VALUES (2)").await;
    let gate = weir.gate.clone();
    let engine = weir.engine.clone();
    let checkpoint = tokio::spawn(async move { engine.checkpoint().await });
    eventually("a part that is held", || gate.met("late") > 0).await;
    let engine = weir.engine.clone();
    let stopped = tokio::spawn(async move { engine.shutdown().await });
    let given_up = tokio::time::timeout(PATIENCE, checkpoint).await.expect("who waits for a checkpoint is told").unwrap();
    assert_eq!(given_up.unwrap_err().code().as_str(), "57P01");
    // Its thread has to end as well, which waits for the disk.
    gate.remove("late");
    tokio::time::timeout(PATIENCE, stopped).await.expect("the engine stops").unwrap();
    weir.close().await;
    let mut weir = Embedded::open(&dir.path().join("data"), &[]).await;
    assert_eq!(weir.count("SELECT count(*) FROM slow").await, 2);
    weir.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_checkpoints_restart_their_group_alone() {
    let dir = tempfile::tempdir().unwrap();
    let settings = [("checkpoint_interval", "20 ms"), ("tolerable_checkpoint_failures", "1"), ("restart_attempts", "1000")];
    let mut weir = two_groups(&dir, &settings).await;
    let scratch = weir.scratch("slow");
    weir.gate.add("broken", "hard_link", &[&scratch, "images"], Effect::Fail);
    let before = weir.checkpoints("other", CheckpointState::Completed);
    let (mut id, deadline) = (1, Instant::now() + PATIENCE);
    while weir.job("slow").restarts < 2 || weir.checkpoints("other", CheckpointState::Completed) < before + 3 {
        id += 1;
        assert!(Instant::now() < deadline, "{:?}", weir.job("slow").state);
        weir.must(&format!("INSERT INTO t VALUES ({id}); INSERT INTO u VALUES ({id})")).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(weir.job("other").restarts, 0);
    weir.gate.remove("broken");
    // One that failed before may yet be heard of, and restart the group once more.
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = weir.run("FLUSH; CHECKPOINT").await {
        assert!(Instant::now() < deadline, "{error}");
    }
    assert_eq!(weir.count("SELECT count(*) FROM slow").await, id);
    weir.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_a_view_fails_no_checkpoint_of_the_rest_of_its_group() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = Embedded::open(&dir.path().join("data"), &[("checkpoint_interval", "0")]).await;
    weir.must(
        "CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t VALUES (1);
        CREATE MATERIALIZED VIEW below AS SELECT id FROM t; CREATE MATERIALIZED VIEW above AS SELECT count(*) AS n FROM below; FLUSH",
    )
    .await;
    let scratch = weir.scratch("above");
    weir.gate.add("late", "hard_link", &[&scratch, "images"], Effect::Hold);
    let engine = weir.engine.clone();
    let checkpoint = tokio::spawn(async move { engine.checkpoint().await });
    eventually("a part that is held", || weir.gate.met("late") > 0).await;
    weir.must("DROP MATERIALIZED VIEW above").await;
    let done = tokio::time::timeout(PATIENCE, checkpoint).await.expect("CHECKPOINT returns").unwrap();
    assert_eq!(done, Ok(()));
    assert_eq!(weir.checkpoints("below", CheckpointState::Completed), 1);
    weir.gate.remove("late");
    // Its folder goes once nothing in it is used any more.
    let folder = weir.data_dir.join("scratch");
    let prefix = scratch.trim_start_matches("/scratch/").to_string();
    eventually("the dropped view's folder is gone", || {
        std::fs::read_dir(&folder).unwrap().all(|entry| !entry.unwrap().file_name().to_string_lossy().starts_with(&prefix))
    })
    .await;
    // What was checkpointed can be restored.
    weir.must("INSERT INTO t VALUES (2); FLUSH").await;
    let copy = dir.path().join("copy");
    weir.copy_to(&copy);
    weir.engine.shutdown().await;
    let mut weir = Embedded::open(&copy, &[]).await;
    assert_eq!(weir.count("SELECT count(*) FROM below").await, 2);
    weir.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_restore_holds_up_no_other_group() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = two_groups(&dir, &[]).await;
    weir.must("CHECKPOINT").await;
    let scratch = weir.scratch("slow");
    weir.close().await;
    let gate = Arc::new(Gate::default());
    gate.add("slow", "create_dir", &[&scratch, ".part"], Effect::Hold);
    let mut weir = Embedded::open_with(&dir.path().join("data"), &[], gate, Seams::default()).await;
    eventually("a restore that is held", || weir.gate.met("slow") > 0).await;
    weir.must("INSERT INTO u VALUES (2)").await;
    let rows = weir.must("SET statement_timeout = '4 min'; SELECT count(*) FROM other").await;
    assert!(matches!(rows[0][0].as_deref(), Some("1" | "2")), "{rows:?}");
    assert_eq!(weir.job("slow").state, JobState::Starting);
    weir.gate.remove("slow");
    weir.must("FLUSH").await;
    assert_eq!(weir.count("SELECT count(*) FROM slow").await, 1);
    weir.engine.shutdown().await;
}

/// A part that was stored late, when a newer one was there already, must not be taken for the newest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_that_is_stored_late_takes_the_place_of_no_newer_one() {
    let dir = tempfile::tempdir().unwrap();
    let settings =
        [("checkpoint_interval", "0"), ("checkpoint_timeout", "300 ms"), ("tolerable_checkpoint_failures", "10"), ("parallelism", "1")];
    let mut weir = two_groups(&dir, &settings).await;
    let scratch = weir.scratch("slow");
    weir.gate.add("late", "hard_link", &[&scratch, "images"], Effect::Hold);
    assert!(weir.run("CHECKPOINT").await.is_err());
    weir.gate.catch_no_more("late");
    weir.engine.set("checkpoint_timeout", "10 min").unwrap();
    weir.must("INSERT INTO t VALUES (2); FLUSH; CHECKPOINT").await;
    weir.gate.remove("late");
    // Long enough for it to be stored; where it is not, the test shows less, and does not fail.
    tokio::time::sleep(Duration::from_millis(500)).await;
    // Nothing has changed in the view: what was stored last is named again.
    weir.must("INSERT INTO u VALUES (2); FLUSH; CHECKPOINT").await;
    let copy = dir.path().join("copy");
    weir.copy_to(&copy);
    weir.engine.shutdown().await;
    let mut weir = Embedded::open(&copy, &[]).await;
    assert_eq!(weir.must("SELECT id FROM slow ORDER BY id").await, [[Some("1".to_string())], [Some("2".to_string())]]);
    weir.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_is_far_behind_has_few_barriers_in_flight() {
    let dir = tempfile::tempdir().unwrap();
    let settings = [("checkpoint_interval", "0"), ("checkpoint_timeout", "1 h"), ("min_barrier_interval", "0"), ("parallelism", "1")];
    let mut weir = two_groups(&dir, &settings).await;
    let scratch = weir.scratch("slow");
    // Its subtask stands still at a checkpoint.
    weir.gate.add("still", "create_dir", &[&scratch, "images"], Effect::Hold);
    let engine = weir.engine.clone();
    let checkpoint = tokio::spawn(async move { engine.checkpoint().await });
    eventually("a subtask that stands still", || weir.gate.met("still") > 0).await;
    let barriers = |weir: &Embedded| weir.engine.board().read().barriers;
    let first = barriers(&weir);
    while barriers(&weir) < first + 2_000 {
        let before = barriers(&weir);
        weir.engine.set("barrier_interval", "100 ms").unwrap();
        while barriers(&weir) == before {
            tokio::task::yield_now().await;
        }
        assert!(weir.job("slow").in_flight <= 64, "{} barriers are in flight", weir.job("slow").in_flight);
    }
    weir.must("INSERT INTO t VALUES (2)").await;
    eventually("the other group, which is behind nobody", || weir.job("other").in_flight == 0).await;
    weir.gate.remove("still");
    weir.must("FLUSH").await;
    assert_eq!(weir.count("SELECT count(*) FROM slow").await, 2);
    assert_eq!(checkpoint.await.unwrap(), Ok(()));
    weir.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flush_names_the_stopped_job_once_all_others_are_done() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = Embedded::open(&dir.path().join("data"), &[("checkpoint_interval", "0"), ("restart_delay", "1 ms")]).await;
    weir.must(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT); INSERT INTO t VALUES (1, 1);
        CREATE MATERIALIZED VIEW poisoned AS SELECT id, 10 / v AS q FROM t;
        CREATE MATERIALIZED VIEW healthy AS SELECT count(*) AS n FROM t; FLUSH; INSERT INTO t VALUES (2, 0)",
    )
    .await;
    for id in 3..20 {
        weir.must(&format!("INSERT INTO t VALUES ({id}, 1)")).await;
        let error = weir.run("FLUSH").await.unwrap_err();
        assert_eq!(error.code().as_str(), "22012");
        assert!(error.message().contains("\"poisoned\""), "{error}");
        assert_eq!(weir.count("SELECT n FROM healthy").await, id);
    }
    weir.engine.shutdown().await;
}

/// The one number of a result.
fn number(rows: &[Vec<Option<String>>]) -> i64 {
    rows[0][0].as_deref().unwrap_or("0").parse().unwrap()
}

/// Reads `sql`, a count, all the time until told to stop, and fails if it ever goes down. Returns the last value, or the error that ended it.
async fn never_goes_back(mut weir: Embedded, sql: &'static str, stop: Arc<AtomicBool>) -> (i64, Option<weir_catalog::Error>) {
    let mut last = 0;
    while !stop.load(Ordering::SeqCst) {
        match weir.run(sql).await {
            Ok(rows) => {
                let value = number(&rows);
                assert!(value >= last, "{sql} said {last}, and then {value}");
                last = value;
            }
            Err(error) => return (last, Some(error)),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    (last, None)
}

/// How long a stream is until something happens in it, seconds: longer where the machine was too slow to be ready by then.
const STREAM_SECONDS: [u64; 3] = [3, 15, 60];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_over_a_connector_shows_nothing_older_than_what_was_seen() {
    for seconds in STREAM_SECONDS {
        if restarts_over_a_connector(seconds).await {
            return;
        }
    }
    panic!("the poison has always come before anybody looked");
}

/// False where the poison came before the views were there and had been looked at.
async fn restarts_over_a_connector(seconds: u64) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let settings = [("checkpoint_interval", "0"), ("restart_delay", "1 ms"), ("restart_attempts", "4"), ("barrier_interval", "20 ms")];
    let mut weir = Embedded::open(&dir.path().join("data"), &settings).await;
    // One person in 50 events, numbered from 1000; the one behind the first 12,000 poisons the view.
    let person = format!(
        "CREATE TABLE person (id BIGINT) WITH (connector = 'nexmark', 'table' = 'person', 'events.rate' = '{}', 'splits' = '3')",
        12_000 * 50 / seconds
    );
    weir.must(&format!("SET parallelism = 2; {person}")).await;
    for view in ["counted AS SELECT count(*) AS n, sum(100 / (id - 13000)) AS s FROM person", "above AS SELECT n FROM counted"] {
        if let Err(error) = weir.run(&format!("CREATE MATERIALIZED VIEW {view}")).await {
            assert!(["22012", "55000"].contains(&error.code().as_str()), "{error}");
            weir.engine.shutdown().await;
            return false;
        }
    }
    let stop = Arc::new(AtomicBool::new(false));
    let below = tokio::spawn(never_goes_back(weir.again(), "SELECT n FROM counted", stop.clone()));
    let above = tokio::spawn(never_goes_back(weir.again(), "SELECT n FROM above", stop.clone()));
    while weir.run("SELECT n FROM counted").await.is_ok_and(|rows| number(&rows) < 200) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // On a machine so slow that the poison comes first, the job begins anew each time.
    let checkpointed = weir.run("CHECKPOINT").await.is_ok();
    let mut has_seen = true;
    for (last, error) in [below.await.unwrap(), above.await.unwrap()] {
        // In the end it is stopped, after each restart had read the same rows once more.
        assert_eq!(error.map(|error| error.code().as_str().to_string()).as_deref(), Some("22012"));
        assert!(last <= 12_000, "{last} of 12,000; checkpointed: {checkpointed}");
        has_seen &= last >= 200;
    }
    assert_eq!(weir.job("counted").restarts, 3);
    weir.engine.shutdown().await;
    has_seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_over_a_connector_the_view_goes_on_where_it_was_seen() {
    for seconds in STREAM_SECONDS {
        if goes_on_where_it_was_seen(seconds).await {
            return;
        }
    }
    panic!("the stream has always ended before the restarts");
}

/// False where the stream has ended before the restarts.
async fn goes_on_where_it_was_seen(seconds: u64) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let settings = [
        ("checkpoint_interval", "0"),
        ("restart_delay", "1 ms"),
        ("restart_attempts", "1000"),
        ("tolerable_checkpoint_failures", "0"),
        ("barrier_interval", "20 ms"),
    ];
    let mut weir = Embedded::open(&dir.path().join("data"), &settings).await;
    // One person in 50 events, numbered from 1000.
    weir.must(&format!(
        "SET parallelism = 2;
        CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t VALUES (1); CREATE TABLE u (id INT PRIMARY KEY);
        CREATE TABLE person (id BIGINT) WITH (connector = 'nexmark', 'table' = 'person', 'events.rate' = '{}', 'events.num' = '300000');
        CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS n, max(id) AS last FROM person",
        300_000 / seconds
    ))
    .await;
    let stop = Arc::new(AtomicBool::new(false));
    let reader = tokio::spawn(never_goes_back(weir.again(), "SELECT n FROM counted", stop.clone()));
    // The stored tables beside the view stay readable for as long.
    let joined = tokio::spawn(never_goes_back(weir.again(), "SELECT n FROM counted, t", stop.clone()));
    let scratch = weir.scratch("counted");
    let mut row = 0;
    for restarts in 1..=3 {
        let before = weir.count("SELECT n FROM counted").await;
        if before + 1_000 >= 6_000 {
            stop.store(true, Ordering::SeqCst);
            assert_eq!((reader.await.unwrap().1, joined.await.unwrap().1), (None, None));
            weir.engine.shutdown().await;
            return false;
        }
        while weir.count("SELECT n FROM counted").await < before + 1_000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // A checkpoint that fails: the job goes back to where it began.
        weir.gate.add("broken", "hard_link", &[&scratch, "images"], Effect::Fail);
        assert!(weir.run("CHECKPOINT").await.is_err());
        weir.gate.remove("broken");
        eventually("a restart", || weir.job("counted").restarts == restarts).await;
        // More commits than stored tables are kept readable for by themselves.
        for _ in 0..80 {
            row += 1;
            weir.must(&format!("INSERT INTO u VALUES ({row})")).await;
        }
        // FLUSH waits until the view shows what it has shown before, and what was committed since.
        weir.must("FLUSH").await;
        assert!(weir.count("SELECT n FROM counted").await >= before + 1_000);
    }
    eventually("the end of the input", || {
        let rows: u64 = weir
            .job("counted")
            .operators
            .iter()
            .filter(|operator| operator.operator == "aggregate")
            .map(|operator| weir::runtime::metrics::get(&operator.metrics.rows_in))
            .sum();
        rows == 6_000
    })
    .await;
    weir.must("FLUSH").await;
    assert_eq!(weir.must("SELECT n, last FROM counted").await, [[Some("6000".to_string()), Some("6999".to_string())]]);
    stop.store(true, Ordering::SeqCst);
    assert_eq!(reader.await.unwrap().1, None);
    assert_eq!(joined.await.unwrap().1, None);
    weir.engine.shutdown().await;
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn barrier_times_grow_though_the_clock_is_set_back_across_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let at = |now_us: i64| Seams { clock: Clock::at(now_us), ..Seams::default() };
    let last = |weir: &Embedded| {
        let board = weir.engine.board().read();
        board.checkpoints.back().map(|checkpoint| (checkpoint.checkpoint, checkpoint.started_us)).unwrap()
    };
    let data = dir.path().join("data");
    let mut weir = Embedded::open_with(&data, &[("checkpoint_interval", "0")], Arc::default(), at(2_000_000_000_000_000)).await;
    weir.must("CREATE TABLE t (id INT PRIMARY KEY); CREATE MATERIALIZED VIEW v AS SELECT id FROM t; CHECKPOINT").await;
    // Barriers that no checkpoint knows of.
    weir.engine.clock().advance(Duration::from_secs(3600));
    weir.must("INSERT INTO t VALUES (1); FLUSH").await;
    let before = (last(&weir).0, weir.engine.clock().now_us());
    let copy = dir.path().join("copy");
    weir.copy_to(&copy);
    let mut restarted = Embedded::open_with(&copy, &[("checkpoint_interval", "0")], Arc::default(), at(1_000_000_000_000_000)).await;
    restarted.must("CHECKPOINT").await;
    let after = last(&restarted);
    assert!(after.0 > before.0 && after.1 > before.1, "{after:?} after {before:?}");
    restarted.engine.shutdown().await;
    weir.engine.shutdown().await;
}
