//! Savepoints in a real S3 server: through kills, in bad weather, read by other data folders, and what is said of damage.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::proxy::{Proxy, Weather};
use super::store::{BUCKET, Store, settings_for};
use super::{long_patience, short_patience};
use crate::run;
use crate::savepoints::{TABLES, change, check, lines, refusal, rows, write};
use crate::server::{PATIENCE, Server, Session, describe, sql_state};

const QUERY: &str = "SELECT owner, count(*) AS n, sum(amount) AS total, max(amount) AS most FROM accounts GROUP BY owner";

fn url(place: &str) -> String {
    format!("s3://{BUCKET}/{place}")
}

async fn make(session: &Session) {
    session.must(TABLES).await;
    session.must(&format!("CREATE MATERIALIZED VIEW totals AS {QUERY}")).await;
    write(session, 0, 100).await;
}

/// The files of the savepoint in `place`.
fn files(store: &Store, place: &str) -> Vec<PathBuf> {
    store.names(&format!("{place}/files")).iter().map(|name| store.path(&format!("{place}/files/{name}"))).collect()
}

/// Whether a file of a savepoint holds entries: in RocksDB, or not yet.
fn is_data(path: &Path) -> bool {
    let path = path.to_string_lossy();
    path.ends_with(".sst") || path.contains("-recent-")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn savepoints_in_a_bucket_are_like_those_in_folders() {
    let Some(store) = Store::start("s3::savepoints_in_a_bucket") else { return };
    // The checkpoints are in the data folder.
    let mut server = Server::start(&settings_for(store.address(), &[("parallelism", "2")]));
    let mut session = server.connect().await;
    make(&session).await;
    let place = url("kept/here");
    session.must(&format!("CREATE SAVEPOINT kept FOR totals AT '{place}/'")).await;
    let shown = rows(&session, "SHOW SAVEPOINTS").await;
    assert!(shown[0][5] == place && shown[0][6] == "NULL" && shown[0][3] == shown[0][4], "{shown:?}");
    assert!(shown[0][4].parse::<u64>().is_ok_and(|bytes| bytes > 0), "{shown:?}");
    assert_eq!(rows(&session, "DESCRIBE SAVEPOINT kept").await, rows(&session, &format!("DESCRIBE SAVEPOINT '{place}'")).await);
    let state = rows(&session, &format!("SELECT * FROM savepoint_state('{place}', 'totals/rows')")).await;
    assert_eq!(state, rows(&session, QUERY).await);
    assert_eq!(refusal(&session, &format!("CREATE SAVEPOINT other FOR totals AT '{place}'")).await.0, "42710");
    assert_eq!(refusal(&session, &format!("CREATE SAVEPOINT other FOR totals AT '{}'", url("kept"))).await.0, "58030");
    assert_eq!(refusal(&session, "CREATE SAVEPOINT other FOR totals AT 's3://no-such-bucket/a'").await.0, "58030");
    assert_eq!(refusal(&session, "CREATE SAVEPOINT other FOR totals AT 's3:///a'").await.0, "22023");
    assert_eq!(refusal(&session, &format!("DESCRIBE SAVEPOINT '{}'", url("nowhere"))).await.0, "42704");
    assert_eq!(rows(&session, "SHOW SAVEPOINTS").await.len(), 1);

    change(&session).await;
    write(&session, 300, 60).await;
    session.must("SET parallelism = 3").await;
    session.must(&format!("CREATE MATERIALIZED VIEW by_name FROM SAVEPOINT kept AS {QUERY}")).await;
    session.must(&format!("CREATE MATERIALIZED VIEW by_place FROM SAVEPOINT '{place}' AS {QUERY}")).await;
    session.must(&format!("ALTER JOB by_place STOP WITH SAVEPOINT stopped AT '{}'", url("stopped"))).await;
    session.must(&format!("CREATE MATERIALIZED VIEW by_place FROM SAVEPOINT stopped AS {QUERY}")).await;
    for view in ["by_name", "by_place"] {
        check(&session, view, QUERY).await;
    }
    server.restart();
    session = server.connect().await;
    for view in ["by_name", "by_place"] {
        check(&session, view, QUERY).await;
    }

    // Another data folder, with other rows under the same keys; and what it is told of damage.
    let elsewhere = Server::start(&settings_for(store.address(), &[("parallelism", "1")]));
    let other = elsewhere.connect().await;
    other.must(TABLES).await;
    write(&other, 50, 100).await;
    let create = |view: &str| format!("CREATE MATERIALIZED VIEW {view} FROM SAVEPOINT '{place}' AS {QUERY}");
    let metadata = store.path("kept/here/SAVEPOINT");
    let damageable: Vec<PathBuf> = [true, false]
        .into_iter()
        .filter_map(|data| files(&store, "kept/here").into_iter().find(|path| is_data(path) == data))
        .chain([metadata.clone()])
        .collect();
    assert_eq!(damageable.len(), 3);
    for path in damageable {
        let content = std::fs::read(&path).expect("an object");
        let mut broken = content.clone();
        let middle = broken.len() / 2;
        broken[middle] ^= 1;
        std::fs::write(&path, &broken).expect("an object");
        let named = if path == metadata { "here".to_string() } else { path.file_name().expect("a name").to_string_lossy().into_owned() };
        let (code, text) = refusal(&other, &create("broken")).await;
        assert!(code == "XX001" && text.contains(&named) && !text.contains("--from-checkpoint"), "{text}");
        std::fs::remove_file(&path).expect("an object");
        let (code, text) = refusal(&other, &create("broken")).await;
        let expected = if path == metadata { ("42704", "not completed") } else { ("XX001", "missing") };
        assert!(code == expected.0 && text.contains(expected.1) && text.contains(&named), "{text}");
        std::fs::write(&path, &content).expect("an object");
    }
    assert!(rows(&other, "SELECT name FROM weir_jobs").await.is_empty(), "an attempt that failed left something behind");
    other.must(&create("totals")).await;
    check(&other, "totals", QUERY).await;

    session.must("DROP SAVEPOINT kept, stopped").await;
    assert!(rows(&session, "SHOW SAVEPOINTS").await.is_empty());
    assert!(!metadata.exists() && files(&store, "kept/here").is_empty() && files(&store, "stopped").is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_and_weather_leave_savepoints_in_a_bucket_whole_or_absent() {
    let Some(store) = Store::start("s3::kills_and_weather") else { return };
    let proxy = Proxy::before(store.address());
    let mut random = run::random("s3 savepoint kills");
    let checkpoints = url("checkpoints");
    let pairs = [
        ("checkpoint_storage", checkpoints.as_str()),
        ("checkpoint_interval", "500 ms"),
        ("tolerable_checkpoint_failures", "1000"),
        ("parallelism", "2"),
    ];
    let mut server = Server::start(&settings_for(proxy.address(), &pairs));
    {
        let session = server.connect().await;
        make(&session).await;
        let (code, text) = refusal(&session, &format!("CREATE SAVEPOINT bad FOR totals AT '{}'", url("checkpoints/files/bad"))).await;
        assert!(code == "22023" && text.contains("among the checkpoints"), "{text}");
        for (at, weather) in [Weather::Refused, Weather::Unavailable, Weather::Silent].into_iter().enumerate() {
            session.must("CREATE SAVEPOINT before FOR totals").await;
            let from_folder = format!("CREATE MATERIALIZED VIEW there FROM SAVEPOINT before AS {QUERY}");
            short_patience(&session, "3 s").await;
            proxy.set(weather);
            let (code, text) = refusal(&session, &format!("CREATE SAVEPOINT bad FOR totals AT '{}'", url(&format!("bad/{at}")))).await;
            // The checkpoint for it fails, or it does itself.
            assert!(["58030", "55000"].contains(&code.as_str()), "{weather:?}: {text}");
            assert!(rows(&session, "SHOW SAVEPOINTS").await.iter().all(|row| row[0] == "before"));
            proxy.set(Weather::Fair);
            long_patience(&session).await;
            // A checkpoint that failed in the storm may still be on its way.
            let deadline = std::time::Instant::now() + crate::server::PATIENCE;
            while let Err(error) =
                session.execute(&format!("CREATE SAVEPOINT good{at} FOR totals AT '{}'", url(&format!("good/{at}")))).await
            {
                let code = sql_state(&error).unwrap_or_default();
                assert!(["58030", "55000"].contains(&code.as_str()), "{}", describe(&error));
                assert!(std::time::Instant::now() < deadline, "{weather:?}: {}", describe(&error));
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            // One that can't be reached stays, and is said to be so.
            short_patience(&session, "3 s").await;
            proxy.set(weather);
            assert_eq!(refusal(&session, &format!("DROP SAVEPOINT good{at}")).await.0, "58030", "{weather:?}");
            let listed = rows(&session, "SHOW SAVEPOINTS").await;
            let unreachable = listed.iter().find(|row| row[0] == format!("good{at}")).unwrap_or_else(|| panic!("{listed:?}"));
            assert!(unreachable[6].contains("could not"), "{listed:?}");
            proxy.set(Weather::Fair);
            long_patience(&session).await;
            session.must(&from_folder).await;
            check(&session, "there", QUERY).await;
            session.must(&format!("DROP MATERIALIZED VIEW there; DROP SAVEPOINT before, good{at}")).await;
        }
    }
    let mut whole = 0;
    let mut longest = 1000;
    let rounds = run::rounds(6, 40);
    for round in 0..rounds {
        let session = server.connect().await;
        write(&session, 10_000 + 100 * round as i64, 20).await;
        let place = format!("round/{round}");
        let statement = format!("CREATE SAVEPOINT s{round} FOR totals AT '{}'", url(&place));
        let began = std::time::Instant::now();
        let acknowledged = tokio::select! {
            done = session.execute(&statement) => {
                done.unwrap_or_else(|error| panic!("{statement}\n{}", describe(&error)));
                true
            }
            () = tokio::time::sleep(Duration::from_millis(random.below(longest))) => false,
        };
        if !acknowledged {
            longest = longest.max(2 * began.elapsed().as_millis() as u64);
        }
        server.kill();
        server.set("parallelism", &(1 + random.below(3)).to_string());
        server.restart();
        let session = server.connect().await;
        let is_there = store.path(&format!("{place}/SAVEPOINT")).exists();
        // Whether one that was begun is there is asked beside the start.
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            let listed = rows(&session, "SHOW SAVEPOINTS").await;
            assert!(listed.iter().all(|row| row[6] == "NULL"), "round {round}: {listed:?}");
            let is_listed = listed.iter().any(|row| row[0] == format!("s{round}"));
            assert!(!acknowledged || is_listed, "round {round}: what was acknowledged is gone");
            if is_there == is_listed {
                break;
            }
            assert!(!is_listed && std::time::Instant::now() < deadline, "round {round}: listed: {is_listed}, there: {is_there}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        change(&session).await;
        let create = format!("CREATE MATERIALIZED VIEW again FROM SAVEPOINT '{}' AS {QUERY}", url(&place));
        if is_there {
            whole += 1;
            session.must(&create).await;
            check(&session, "again", QUERY).await;
            session.must("DROP MATERIALIZED VIEW again").await;
        } else {
            assert_eq!(refusal(&session, &create).await.0, "42704", "round {round}");
            // What is left of it is in nobody's way.
            session.must(&statement).await;
            session.must(&create).await;
            check(&session, "again", QUERY).await;
            session.must("DROP MATERIALIZED VIEW again").await;
            session.must(&format!("DROP SAVEPOINT s{round}")).await;
            assert!(files(&store, &place).is_empty(), "round {round}: files are left");
        }
        check(&session, "totals", QUERY).await;
    }
    run::say(&format!("s3 savepoint kills: {rounds} rounds, {whole} savepoints were whole"));
}

/// A sink that was stopped with a savepoint in a bucket goes on from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_goes_on_from_a_savepoint_in_a_bucket() {
    let Some(store) = Store::start("s3::a_sink_goes_on") else { return };
    let out = tempfile::tempdir().expect("a folder");
    let server = Server::start(&settings_for(store.address(), &[("parallelism", "2"), ("checkpoint_interval", "100 ms")]));
    let session = server.connect().await;
    session
        .must("CREATE TABLE bid (auction BIGINT, price BIGINT) WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '20000', 'events.rate' = '10000')")
        .await;
    session
        .must("CREATE TABLE whole (auction BIGINT, price BIGINT) WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '20000')")
        .await;
    let sink = format!("CREATE SINK copied WITH (connector = 'file', path = '{}', format = 'csv')", out.path().display());
    session.must(&format!("{sink} AS SELECT auction, price FROM bid")).await;
    let deadline = std::time::Instant::now() + crate::server::PATIENCE;
    while lines(out.path()).is_empty() {
        assert!(std::time::Instant::now() < deadline, "nothing is written");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    session.must(&format!("ALTER JOB copied STOP WITH SAVEPOINT stopped AT '{}'", url("sink"))).await;
    let first = lines(out.path()).len();
    session.must(&format!("{sink} FROM SAVEPOINT '{}' AS SELECT auction, price FROM bid", url("sink"))).await;
    let mut expected: Vec<String> = rows(&session, "SELECT auction, price FROM whole").await.into_iter().map(|row| row.join(",")).collect();
    expected.sort();
    while lines(out.path()).len() < expected.len() {
        assert!(std::time::Instant::now() < deadline, "{} of {} rows", lines(out.path()).len(), expected.len());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(lines(out.path()), expected, "a row is missing or there twice");
    run::say(&format!("a sink from a savepoint in a bucket: {first} of {} rows before it", expected.len()));
}
