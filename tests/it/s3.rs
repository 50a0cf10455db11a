//! Checkpoints in a real S3 server, through kills, through everything that a network does, and through two servers on one place.

mod files;
pub mod proxy;
mod savepoints;
pub mod store;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::run;
use crate::server::{PATIENCE, Server, Session, describe, sql_state};
use crate::views::Made;
use proxy::{Proxy, Weather};
use store::{BUCKET, Store, settings_for};

const STATEMENTS: [&str; 6] = [
    "CREATE TABLE t (id BIGINT PRIMARY KEY, g INT, v BIGINT, s TEXT)",
    "CREATE MATERIALIZED VIEW per_group AS SELECT g, count(*) AS n, sum(v) AS total, max(v) AS most, count(DISTINCT v % 3) AS kinds FROM t GROUP BY g",
    "CREATE MATERIALIZED VIEW sizes AS SELECT n, count(*) AS groups FROM per_group GROUP BY n",
    "CREATE MATERIALIZED VIEW texts AS SELECT s, max(id) AS last FROM t GROUP BY s",
    "CREATE TABLE bid WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '40000', 'events.rate' = '4000')",
    "CREATE MATERIALIZED VIEW bids AS SELECT auction % 7 AS a, count(*) AS n, sum(price) AS price FROM bid GROUP BY auction % 7",
];
/// The bids of that many events: 46 of 50.
const BIDS: i64 = 40_000 / 50 * 46;
/// Where the checkpoints are in these tests.
const PREFIX: &str = "some/where";

fn storage() -> String {
    format!("s3://{BUCKET}/{PREFIX}")
}

async fn make(session: &Session) -> Made {
    let mut made = Made::default();
    for (at, statement) in STATEMENTS.into_iter().enumerate() {
        session.must(statement).await;
        // Of what stands over the connector only the end is known.
        if at < 4 {
            made.note(statement);
        }
    }
    made
}

/// Writes that touch every view over the table: new rows, changed ones, ones that go.
async fn write(session: &Session, round: i64) {
    let ids: Vec<i64> = (round * 1000..round * 1000 + 400).collect();
    let rows: Vec<String> = ids.iter().map(|id| format!("({id}, {}, {}, 'row {}')", id % 11, id * 3, id % 150)).collect();
    session.must(&format!("INSERT INTO t VALUES {}", rows.join(", "))).await;
    session.must(&format!("UPDATE t SET v = v + 1 WHERE id % 9 = {}", round % 9)).await;
    session.must(&format!("DELETE FROM t WHERE id % 13 = {}", round % 13)).await;
}

async fn check(made: &Made, session: &Session, what: &str) {
    session.must("FLUSH").await;
    let (problems, with_rows) = made.check(session).await;
    assert!(problems.is_empty(), "{what}:\n{}", problems.join("\n"));
    assert!(with_rows == 3, "{what}: only {with_rows} views have rows");
}

/// Waits until all of the connector has been read, and checks that it was once.
async fn check_bids(session: &Session) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let bids = session.must_count("SELECT sum(n) FROM bids").await;
        if bids == BIDS {
            return;
        }
        assert!(bids < BIDS, "{bids} of {BIDS} bids");
        assert!(Instant::now() < deadline, "{bids} of {BIDS} bids");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn failed_checkpoints(session: &Session) -> i64 {
    session.must_count("SELECT count(DISTINCT checkpoint) FROM weir_checkpoints WHERE state = 'failed'").await
}

/// Checkpoints, and requests for them, may take so long from here on: in bad weather that is waited for. In fair weather a slow machine may need more.
async fn short_patience(session: &Session, timeout: &str) {
    session.must(&format!("SET checkpoint_timeout = '{timeout}'")).await;
}

/// They may take as long as they do where nobody has said anything.
async fn long_patience(session: &Session) {
    session.must("RESET checkpoint_timeout").await;
}

/// Makes checkpoints until one is complete.
async fn checkpoint_at_last(session: &Session, what: &str) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = session.execute("CHECKPOINT").await {
        assert!(Instant::now() < deadline, "{what}: {}", describe(&error));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("the folder is there").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("copied");
        }
    }
}

/// Savepoints are folders, wherever checkpoints are: their files are downloaded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn savepoints_are_made_of_what_is_in_the_store_and_need_it_no_more() {
    let Some(store) = Store::start("s3::savepoints_are_made") else { return };
    let proxy = Proxy::before(store.address());
    let mut random = run::random("s3 savepoints");
    let pairs = [("checkpoint_storage", storage()), ("checkpoint_interval", "200 ms".into()), ("parallelism", "2".into())];
    let pairs: Vec<(&str, &str)> = pairs.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut server = Server::start(&settings_for(proxy.address(), &pairs));
    let session = server.connect().await;
    make(&session).await;
    write(&session, 0).await;
    session.must("CREATE SAVEPOINT whole FOR sizes; CREATE SAVEPOINT of_groups FOR per_group").await;
    write(&session, 1).await;
    let branches = [
        "CREATE MATERIALIZED VIEW again FROM SAVEPOINT whole AS SELECT n, count(*) AS groups FROM per_group GROUP BY n",
        "CREATE MATERIALIZED VIEW fewer FROM SAVEPOINT of_groups AS SELECT g, count(*) AS n, sum(v) AS total FROM t GROUP BY g",
    ];
    for branch in branches {
        session.must(branch).await;
    }
    session.must("ALTER MATERIALIZED VIEW per_group AS SELECT g, count(*) AS n, sum(v) AS total, max(v) AS most, count(DISTINCT v % 3) AS kinds FROM t WHERE g <> 4 GROUP BY g").await;
    let altered = "CREATE MATERIALIZED VIEW per_group AS SELECT g, count(*) AS n, sum(v) AS total, max(v) AS most, count(DISTINCT v % 3) AS kinds FROM t WHERE g <> 4 GROUP BY g";
    let mut made = Made::default();
    for statement in [STATEMENTS[0], altered, STATEMENTS[2], STATEMENTS[3]] {
        made.note(statement);
    }
    check(&made, &session, "after the savepoints").await;
    for name in ["again", "fewer"] {
        assert!(session.must_count(&format!("SELECT count(*) FROM {name}")).await > 0);
    }
    assert!(session.must_count("SELECT count(*) FROM state('per_group', 'aggregate(g)')").await > 5);
    session.must("DROP MATERIALIZED VIEW again; DROP MATERIALIZED VIEW fewer").await;

    // Kills while files are on their way: a savepoint is whole or absent.
    let mut there = 0;
    for round in 0..run::rounds(4, 20) {
        let session = server.connect().await;
        write(&session, 10 + round as i64).await;
        let begun = session.execute("DROP SAVEPOINT IF EXISTS moving").await;
        begun.unwrap_or_else(|error| panic!("{}", describe(&error)));
        proxy.set(Weather::Slow(200_000));
        tokio::select! {
            _ = session.execute("CREATE SAVEPOINT moving FOR per_group") => {}
            () = tokio::time::sleep(Duration::from_millis(random.below(1500))) => {}
        }
        server.kill();
        proxy.set(Weather::Fair);
        server.restart();
        let session = server.connect().await;
        let listed = session.text_rows("SHOW SAVEPOINTS").await.unwrap_or_else(|error| panic!("{}", describe(&error)));
        assert!(listed.iter().all(|row| row[6].is_none()), "round {round}: {listed:?}");
        if listed.iter().any(|row| row[0].as_deref() == Some("moving")) {
            there += 1;
            session.must("CREATE MATERIALIZED VIEW moved FROM SAVEPOINT moving AS SELECT g, count(*) AS n, sum(v) AS total, max(v) AS most, count(DISTINCT v % 3) AS kinds FROM t WHERE g <> 4 GROUP BY g").await;
            session.must("FLUSH").await;
            assert_eq!(
                session.must_count("SELECT count(*) FROM (SELECT * FROM moved EXCEPT SELECT * FROM per_group) AS d").await,
                0,
                "round {round}"
            );
            session.must("DROP MATERIALIZED VIEW moved").await;
        }
        check(&made, &session, &format!("round {round}")).await;
    }
    // What is in the folder is all that a restore needs: without the store's files, into a data folder of its own.
    let session = server.connect().await;
    let folder = session.text_rows("SHOW SAVEPOINTS").await.unwrap_or_else(|error| panic!("{}", describe(&error)));
    let folder = folder.iter().find(|row| row[0].as_deref() == Some("whole")).and_then(|row| row[5].clone()).expect("a savepoint");
    let other = Server::start(&crate::server::settings(&[("parallelism", "3")]));
    let elsewhere = other.connect().await;
    elsewhere.must(STATEMENTS[0]).await;
    elsewhere.must(STATEMENTS[1]).await;
    write(&elsewhere, 2).await;
    elsewhere
        .must(&format!(
            "CREATE MATERIALIZED VIEW sizes FROM SAVEPOINT '{folder}' AS SELECT n, count(*) AS groups FROM per_group GROUP BY n"
        ))
        .await;
    elsewhere.must("FLUSH").await;
    let wrong = "SELECT count(*) FROM ((SELECT * FROM sizes EXCEPT SELECT n, count(*) FROM per_group GROUP BY n) UNION ALL
        (SELECT n, count(*) FROM per_group GROUP BY n EXCEPT SELECT * FROM sizes)) AS d";
    assert_eq!(elsewhere.must_count(wrong).await, 0);
    session.must("DROP SAVEPOINT whole; DROP SAVEPOINT of_groups; DROP SAVEPOINT IF EXISTS moving").await;
    run::say(&format!("s3 savepoints: {there} were whole after a kill"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_survive_kills_in_the_midst_of_uploads_at_any_parallelism() {
    let Some(store) = Store::start("s3::answers_survive_kills") else { return };
    let proxy = Proxy::before(store.address());
    let mut random = run::random("s3 kills");
    let pairs = [("checkpoint_storage", storage()), ("checkpoint_interval", "50 ms".into()), ("parallelism", "2".into())];
    let pairs: Vec<(&str, &str)> = pairs.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut server = Server::start(&settings_for(proxy.address(), &pairs));
    let session = server.connect().await;
    let made = make(&session).await;
    let rounds = run::rounds(5, 25);
    let mut restored = 0;
    for round in 0..rounds {
        let session = server.connect().await;
        write(&session, 2 * round as i64).await;
        if round % 2 == 0 {
            checkpoint_at_last(&session, "in fair weather").await;
        }
        // Uploads take long from here on, so that the kill meets one.
        proxy.set(Weather::Slow(300_000));
        write(&session, 2 * round as i64 + 1).await;
        session.must("FLUSH").await;
        let before = made.content(&session).await;
        tokio::time::sleep(Duration::from_millis(random.below(400))).await;
        server.kill();
        proxy.set(Weather::Fair);
        server.set("parallelism", ["3", "1", "4", "2"][round % 4]);
        server.restart();
        let session = server.connect().await;
        let differences = before.differences(&made.content(&session).await);
        assert!(differences.is_empty(), "round {round}:\n{}", differences.join("\n"));
        check(&made, &session, &format!("round {round}")).await;
        restored += usize::from(!store.names(&format!("{PREFIX}/manifests")).is_empty());
    }
    let session = server.connect().await;
    check_bids(&session).await;
    checkpoint_at_last(&session, "at the end").await;
    assert!(!server.data_dir().join("checkpoints").exists(), "nothing is kept in the data folder");
    assert!(restored == rounds && store.names(&format!("{PREFIX}/files")).len() > 3, "{restored} starts with something to restore");
    assert_eq!(
        session.must_count("SELECT count(*) FROM weir_settings WHERE name = 'checkpoint_storage' AND setting LIKE 's3://%'").await,
        1
    );
    // A start removes what checkpoints that never became complete have left: every file is named.
    server.kill();
    server.set("checkpoint_interval", "1 h");
    server.restart();
    let mut named = String::new();
    for name in store.names(&format!("{PREFIX}/manifests")) {
        named += &String::from_utf8_lossy(&std::fs::read(store.path(&format!("{PREFIX}/manifests/{name}"))).expect("a manifest"));
    }
    let files = store.names(&format!("{PREFIX}/files"));
    let orphans: Vec<&String> = files.iter().filter(|name| !named.contains(name.as_str())).collect();
    assert_eq!(orphans, Vec::<&String>::new());
    run::say(&format!("s3 kills: {rounds} rounds, {} files at the end", files.len()));
    assert!(server.stop(), "a last checkpoint, and the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_the_network_does_fails_checkpoints_and_nothing_else() {
    let Some(store) = Store::start("s3::whatever_the_network_does") else { return };
    let proxy = Proxy::before(store.address());
    let pairs = [
        ("checkpoint_storage", storage()),
        ("checkpoint_interval", "1 h".into()),
        ("tolerable_checkpoint_failures", "1000".into()),
        ("parallelism", "2".into()),
    ];
    let pairs: Vec<(&str, &str)> = pairs.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut server = Server::start(&settings_for(proxy.address(), &pairs));
    let mut session = server.connect().await;
    let made = make(&session).await;
    write(&session, 0).await;
    checkpoint_at_last(&session, "in fair weather").await;
    let all = [Weather::Refused, Weather::Unavailable, Weather::Torn(700), Weather::Silent, Weather::Slow(500)];
    for (round, weather) in (1..).zip(all) {
        let what = format!("{weather:?}");
        let (failed, disturbed) = (failed_checkpoints(&session).await, proxy.disturbed());
        short_patience(&session, "1500 ms").await;
        proxy.set(weather);
        write(&session, round).await;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let error = session.execute("CHECKPOINT").await.expect_err("no checkpoint in bad weather");
            assert!(matches!(sql_state(&error).as_deref(), Some("58030" | "55000")), "{what}: {}", describe(&error));
            // On a slow machine the time may be over before the store is asked.
            if proxy.disturbed() > disturbed {
                break;
            }
            assert!(Instant::now() < deadline, "{what} was not met");
        }
        // The rest goes on.
        write(&session, 10 + round).await;
        check(&made, &session, &what).await;
        assert!(failed_checkpoints(&session).await > failed, "{what} is counted");
        assert_eq!(session.must_count("SELECT sum(restarts) FROM weir_jobs").await, 0, "{what}");
        proxy.set(Weather::Fair);
        long_patience(&session).await;
        checkpoint_at_last(&session, &what).await;
        if round % 2 == 0 {
            server.kill();
            server.set("parallelism", if round == 2 { "3" } else { "1" });
            server.restart();
            session = server.connect().await;
        }
        check(&made, &session, &format!("after {what}")).await;
    }
    check_bids(&session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_is_gone_fails_checkpoints_until_everything_is_stored_again() {
    let Some(store) = Store::start("s3::a_bucket_that_is_gone") else { return };
    let place = storage();
    let pairs = [
        ("checkpoint_storage", place.as_str()),
        ("checkpoint_interval", "1 h"),
        ("tolerable_checkpoint_failures", "1000"),
        ("parallelism", "2"),
    ];
    let mut server = Server::start(&settings_for(store.address(), &pairs));
    let session = server.connect().await;
    let made = make(&session).await;
    // A group of its own that never changes again: it must store its state anew all the same.
    session.must("CREATE TABLE still (k BIGINT)").await;
    session.must("INSERT INTO still VALUES (1), (2), (2)").await;
    session.must("CREATE MATERIALIZED VIEW still_counts AS SELECT k, count(*) AS n FROM still GROUP BY k").await;
    check_bids(&session).await;
    write(&session, 0).await;
    checkpoint_at_last(&session, "with a bucket").await;
    store.remove_bucket();
    write(&session, 1).await;
    let error = session.execute("CHECKPOINT").await.expect_err("what is stored is gone");
    assert_eq!(sql_state(&error).as_deref(), Some("58030"), "{}", describe(&error));
    check(&made, &session, "without a bucket").await;
    std::fs::create_dir_all(store.root().join(BUCKET)).expect("a bucket");
    checkpoint_at_last(&session, "with a bucket again").await;
    let before = made.content(&session).await;
    for parallelism in ["3", "1"] {
        server.kill();
        server.set("parallelism", parallelism);
        server.restart();
        let session = server.connect().await;
        let differences = before.differences(&made.content(&session).await);
        assert!(differences.is_empty(), "{}", differences.join("\n"));
        check_bids(&session).await;
        assert_eq!(session.must_count("SELECT sum(n) FROM still_counts").await, 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_servers_on_one_place_one_fails_clearly() {
    let Some(store) = Store::start("s3::of_two_servers") else { return };
    let place = storage();
    let pairs = [("checkpoint_storage", place.as_str()), ("checkpoint_interval", "1 h"), ("parallelism", "1")];
    let settings = settings_for(store.address(), &pairs);
    let mut first = Server::start(&settings);
    let session = first.connect().await;
    let made = make(&session).await;
    write(&session, 0).await;
    checkpoint_at_last(&session, "alone").await;

    // A server of another data folder is refused at its start.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("server.log");
    let report = Server::start_in(&folder.path().join("other"), &log, &settings).err().expect("the place is taken");
    assert!(report.contains("holds the checkpoints of another engine") && report.contains("MANIFEST-"), "{report}");

    // One of a copy of the folder takes over, and the first one says so.
    first.kill();
    let copy = folder.path().join("copy");
    copy_folder(first.data_dir(), &copy);
    first.restart();
    let session = first.connect().await;
    let second = Server::start_in(&copy, &log, &settings).unwrap_or_else(|report| panic!("{report}"));
    write(&session, 1).await;
    let error = session.execute("CHECKPOINT").await.expect_err("another has taken over");
    let text = describe(&error);
    assert_eq!(sql_state(&error).as_deref(), Some("55006"), "{text}");
    assert!(text.contains("is in use by another process") && text.contains("MANIFEST-") && text.contains("run "), "{text}");
    check(&made, &session, "the first goes on without checkpoints").await;
    let session = second.connect().await;
    write(&session, 2).await;
    checkpoint_at_last(&session, "the second").await;
    check(&made, &session, "the second").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_does_not_answer_holds_up_neither_drop_nor_stop() {
    let Some(store) = Store::start("s3::a_store_that_does_not_answer") else { return };
    let proxy = Proxy::before(store.address());
    let place = storage();
    let pairs =
        [("checkpoint_storage", place.as_str()), ("checkpoint_interval", "1 h"), ("shutdown_timeout", "300 ms"), ("parallelism", "2")];
    let mut server = Server::start(&settings_for(proxy.address(), &pairs));
    let session = server.connect().await;
    let made = make(&session).await;
    write(&session, 0).await;
    checkpoint_at_last(&session, "in fair weather").await;
    proxy.set(Weather::Silent);
    write(&session, 1).await;
    let waiting = server.connect().await;
    let disturbed = proxy.disturbed();
    let checkpoint = tokio::spawn(async move { waiting.execute("CHECKPOINT").await });
    let deadline = Instant::now() + PATIENCE;
    while proxy.disturbed() == disturbed {
        assert!(Instant::now() < deadline, "no upload has begun");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    session.must("DROP MATERIALIZED VIEW texts").await;
    session.must("CREATE MATERIALIZED VIEW texts AS SELECT s, max(id) AS last FROM t GROUP BY s").await;
    check(&made, &session, "while a checkpoint hangs").await;
    let before = made.content(&session).await;
    assert!(!checkpoint.is_finished(), "the checkpoint still waits");
    server.stop();
    proxy.set(Weather::Fair);
    server.restart();
    let session = server.connect().await;
    let differences = before.differences(&made.content(&session).await);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_without_its_store_says_so() {
    let Some(store) = Store::start("s3::a_start_without_its_store") else { return };
    let proxy = Proxy::before(store.address());
    let place = storage();
    let pairs = [("checkpoint_storage", place.as_str())];
    let mut server = Server::start(&settings_for(proxy.address(), &pairs));
    let session = server.connect().await;
    session.must("CREATE TABLE kept (id BIGINT)").await;
    session.must("INSERT INTO kept VALUES (1)").await;
    checkpoint_at_last(&session, "in fair weather").await;
    server.kill();
    // In bad weather that is waited for; in fair weather a slow machine may need more.
    server.set("checkpoint_timeout", "2 s");
    for weather in [Weather::Refused, Weather::Silent] {
        proxy.set(weather);
        let report = server.try_restart().expect_err("no start without the store");
        assert!(report.contains("could not list") && report.contains(&format!("s3://{BUCKET}/")), "{weather:?}: {report}");
    }
    proxy.set(Weather::Fair);
    server.set("checkpoint_timeout", "2 min");
    server.set("AWS_SECRET_ACCESS_KEY", "wrong");
    let report = server.try_restart().expect_err("no start with the wrong key");
    assert!(report.contains("AWS_SECRET_ACCESS_KEY"), "{report}");
    server.set("AWS_SECRET_ACCESS_KEY", "test-secret");
    server.set("checkpoint_storage", "local");
    let report = server.try_restart().expect_err("the checkpoints are elsewhere");
    assert!(report.contains("are elsewhere") && report.contains(&place), "{report}");
    server.set("checkpoint_storage", &place);
    server.restart();
    assert_eq!(server.connect().await.must_count("SELECT count(*) FROM kept").await, 1);
}
