//! The `file` connector over objects: the same as over files, and everything that a network does beside it.
//!
//! The server keeps each object in a file, so readers of a sink are played on its folder, as for files.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::proxy::{Proxy, Weather};
use super::store::{BUCKET, Store, settings_for};
use super::{checkpoint_at_last, failed_checkpoints, long_patience, short_patience};
use crate::files::{Looking, RECORDS, gzip, hidden, kill_until_finished, lines, numbered, refusal, rows, visible, wait_finished, wait_for};
use crate::run;
use crate::server::{PATIENCE, Server, Session, describe, settings};

fn put(store: &Store, key: &str, content: &[u8]) {
    let path = store.path(key);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    // As S3 does, at once.
    let temporary = store.root().join("put.tmp");
    std::fs::write(&temporary, content).and_then(|()| std::fs::rename(&temporary, &path)).unwrap_or_else(|e| panic!("{key}: {e}"));
}

/// Uploads that are neither completed nor called off, and parts of such. A part that this server was about to store when its upload was called off stays, and is
/// of none.
fn uploads(store: &Store) -> Vec<PathBuf> {
    let name = |path: &Path| path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
    let found = hidden(store.root());
    let is_there = |number: &str| found.iter().any(|path| name(path) == format!(".upload-{number}.json"));
    let is_of_one = |path: &&PathBuf| match name(path).strip_prefix(".upload_id-").and_then(|part| part.split_once(".part-")) {
        Some((number, _)) => is_there(number),
        None => name(path).starts_with(".upload"),
    };
    found.iter().filter(is_of_one).cloned().collect()
}

async fn wait_until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn formats_compressions_and_paths_of_objects() {
    let Some(store) = Store::start("s3::files::formats_compressions_and_paths") else { return };
    put(&store, "logs/a.csv", b"n,t,at\r\n1,\"x\ny\",2020-01-01 00:00:00.5\r\n,\"\",");
    put(&store, "logs/old/b.csv.gz", &gzip("at,t,n\n2021-02-03T04:05:06Z,plain,2\n"));
    put(&store, "logs/c.csv.zst", &zstd::encode_all("n,t,at\n3,z,\n".as_bytes(), 0).expect("compressed"));
    put(&store, "logs/.hidden.csv", b"n,t,at\n9,9,9\n");
    put(&store, "logs/_some/d.csv", b"n,t,at\n9,9,9\n");
    let server = Server::start(&settings_for(store.address(), &[("parallelism", "3")]));
    let session = server.connect().await;
    let table = |name: &str, place: &str, more: &str| {
        format!("CREATE TABLE {name} (n BIGINT, t TEXT, at TIMESTAMP(3)) WITH (connector = 'file', path = 's3://{BUCKET}/{place}'{more})")
    };
    let expected =
        [["1", "x\ny", "2020-01-01 00:00:00.5"], ["2", "plain", "2021-02-03 04:05:06"], ["3", "z", "NULL"], ["NULL", "", "NULL"]]
            .map(|row| row.map(str::to_string).to_vec());
    session.must(&table("logs", "logs", ", format = 'csv', header = true")).await;
    assert_eq!(rows(&session, "SELECT n, t, at FROM logs").await, expected);
    session.must(&table("part", "logs/**/*.csv.*", ", format = 'csv', 'csv.header' = 'true'")).await;
    assert_eq!(rows(&session, "SELECT n FROM part").await, [["2"], ["3"]]);
    session.must(&table("single", "logs/c.csv.zst", ", format = 'csv', header = true")).await;
    assert_eq!(rows(&session, "SELECT count(*) FROM single").await, [["1"]]);
    session.must("CREATE MATERIALIZED VIEW v AS SELECT n, t, at FROM logs").await;
    wait_for(&session, "SELECT count(*) FROM v", &[&["4"]]).await;
    assert_eq!(rows(&session, "SELECT n, t, at FROM v").await, expected);

    session.must("SET dml_sync = on").await;
    for (name, options) in [
        ("csv", ", format = 'csv', null_string = 'nil', compression = 'gzip'"),
        ("json", ", format = 'json', compression = 'zstd'"),
        ("parquet", ", format = 'parquet'"),
    ] {
        session.must(&table(&format!("out_{name}"), &format!("out_{name}"), options)).await;
        session.must(&format!("INSERT INTO out_{name} SELECT n, t, at FROM logs")).await;
        assert_eq!(rows(&session, &format!("SELECT n, t, at FROM out_{name}")).await, expected, "{name}");
    }
    let path = format!("s3://{BUCKET}/out_parquet");
    session.must(&format!("CREATE TABLE known WITH (connector = 'file', path = '{path}', format = 'parquet')")).await;
    assert_eq!(rows(&session, "SELECT at, n FROM known WHERE t = 'plain'").await, [["2021-02-03 04:05:06", "2"]]);
    session.must("CREATE MATERIALIZED VIEW of_parquet AS SELECT t, n FROM known").await;
    wait_for(&session, "SELECT count(*), sum(n) FROM of_parquet", &[&["4", "6"]]).await;

    session
        .must(&format!(
            "CREATE TABLE by_t (n BIGINT, t TEXT) WITH (connector = 'file', path = 's3://{BUCKET}/by_t', format = 'csv', partition_by = 't')"
        ))
        .await;
    session.must("INSERT INTO by_t SELECT n, t FROM logs").await;
    let folder = |path: &PathBuf| path.parent()?.file_name().map(|name| name.to_string_lossy().into_owned());
    let folders: Vec<String> = visible(&store.path("by_t")).iter().filter_map(folder).collect();
    for folder in ["t=", "t=plain", "t=x%0Ay", "t=z"] {
        assert!(folders.iter().any(|found| found == folder), "{folder} is not in {folders:?}");
    }
    assert_eq!(rows(&session, "SELECT n, t FROM by_t").await.len(), 4);
    assert_eq!(uploads(&store), Vec::<PathBuf>::new());

    // What can't be.
    let of = |name: &str, path: &str, more: &str| {
        format!("CREATE TABLE {name} (n BIGINT) WITH (connector = 'file', path = '{path}', format = 'json'{more})")
    };
    for path in ["gs://bucket/a", "http://127.0.0.1/a.json", "hdfs://a/b"] {
        assert_eq!(refusal(&session, &of("e1", path, "")).await.0, "0A000", "{path}");
    }
    for (path, more) in [("s3://", ""), ("s3://a/../b", ""), ("s3://weir/a[", ""), ("/tmp/a", ", 's3.endpoint' = 'http://a'")] {
        assert_eq!(refusal(&session, &of("e2", path, more)).await.0, "22023", "{path}");
    }
    session.must(&of("e3", &format!("s3://{BUCKET}/nowhere"), "")).await;
    assert_eq!(refusal(&session, "SELECT * FROM e3").await.0, "58P01");
    session.must(&of("e4", "s3://no-such-bucket/a", "")).await;
    let (code, text) = refusal(&session, "CREATE MATERIALIZED VIEW e5 AS SELECT n FROM e4").await;
    assert!(code == "58030" && text.contains("s3://no-such-bucket") && text.contains("bucket does not exist"), "{text}");
    let sink = format!("CREATE SINK e6 WITH (connector = 'file', path = 's3://{BUCKET}/*/a', format = 'json') AS SELECT n FROM logs");
    assert_eq!(refusal(&session, &sink).await.0, "22023");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_says_how_its_store_is_spoken_to_and_keeps_its_secret() {
    let Some(store) = Store::start("s3::files::a_table_says_how") else { return };
    put(&store, "in/a.json", b"{\"n\":1}\n{\"n\":2}\n");
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "50 ms")]));
    let session = server.connect().await;
    let options = |secret: &str| {
        format!(
            "'s3.endpoint' = 'http://{}', 's3.region' = 'us-east-1', 's3.allow_http' = 'true', 's3.access_key_id' = 'test-key',
             's3.secret_access_key' = '{secret}', 's3.timeout' = '20 s'",
            store.address()
        )
    };
    let table = |name: &str, secret: &str| {
        let options = options(secret);
        format!("CREATE TABLE {name} (n BIGINT) WITH (connector = 'file', path = 's3://{BUCKET}/in', format = 'json', {options})")
    };
    session.must(&table("t", "test-secret")).await;
    let sink = format!(
        "CREATE SINK s WITH (connector = 'file', path = 's3://{BUCKET}/out', format = 'json', {}) AS SELECT n FROM t",
        options("test-secret")
    );
    session.must(&sink).await;
    session.must("CREATE MATERIALIZED VIEW v AS SELECT sum(n) AS s FROM t").await;
    session.must(&table("wrong", "not-the-secret")).await;
    let (code, text) = refusal(&session, "SELECT * FROM wrong").await;
    assert!(code == "58030" && text.contains("s3://weir") && !text.contains("not-the-secret"), "{text}");
    wait_finished(&session).await;
    assert_eq!(lines(&store.path("out")).len(), 2);
    // Also of a job that a later process has to restore.
    server.kill();
    server.restart();
    let session = server.connect().await;
    wait_for(&session, "SELECT s FROM v", &[&["3"]]).await;
    for query in [
        "SHOW SINKS",
        "SHOW TABLES",
        "SELECT * FROM weir_relations",
        "EXPLAIN CREATE MATERIALIZED VIEW x AS SELECT count(*) AS c FROM t",
        "EXPLAIN SELECT * FROM t",
        "SELECT * FROM weir_operators",
    ] {
        let shown = format!("{:?}", rows(&session, query).await);
        assert!(!shown.contains("test-secret") && !shown.contains("not-the-secret"), "{query} shows {shown}");
    }
    let shown = format!("{:?}", rows(&session, "SELECT * FROM weir_relations WHERE name = 't'").await);
    assert!(shown.contains("'s3.secret_access_key' = '***'"), "{shown}");
    server.kill();
    let log = server.log_tail();
    assert!(!log.contains("test-secret") && !log.contains("not-the-secret"), "{log}");
}

/// Each number goes to both sides, with opposite signs: in whole checkpoints, what is written adds up to nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_in_a_store_through_kills_shows_whole_checkpoints_and_each_row_once() {
    let Some(store) = Store::start("s3::files::a_copy_in_a_store_through_kills") else { return };
    let proxy = Proxy::before(store.address());
    std::fs::create_dir_all(store.path("in")).expect("a folder");
    let total = numbered(&store.path("in"), 16, run::rounds(20_000, 100_000), 7);
    let pairs = [("parallelism", "2"), ("checkpoint_interval", "50 ms"), ("barrier_interval", "20 ms")];
    let mut server = Server::start(&settings_for(proxy.address(), &pairs));
    let session = server.connect().await;
    session
        .must(&format!(
            "CREATE TABLE numbers (n BIGINT, k BIGINT) WITH (connector = 'file', path = 's3://{BUCKET}/in/*.csv', format = 'csv')"
        ))
        .await;
    session
        .must(&format!(
            "CREATE SINK copy WITH (connector = 'file', path = 's3://{BUCKET}/out', format = 'csv', roll_size = '64 kB', partition_by = 'side')
             AS SELECT n, k, 'left' AS side FROM numbers UNION ALL SELECT -n AS n, k, 'right' AS side FROM numbers"
        ))
        .await;
    let parse = |line: &str| -> (i64, usize) {
        let fields: Vec<&str> = line.split(',').collect();
        let [number, key, side] = fields[..] else { panic!("torn line {line}") };
        let number: i64 = number.parse().unwrap_or_else(|_| panic!("torn line {line}"));
        assert_eq!(key, (number.abs() % 7).to_string(), "torn line {line}");
        assert!(side == "left" && number >= 0 || side == "right" && number <= 0, "torn line {line}");
        (number, usize::from(side == "right"))
    };
    let mut seen = vec![[false; 2]; total];
    let mut sum = 0;
    let root = store.path("out");
    let looking = Looking::at(root.clone(), move |lines| {
        for line in &lines {
            let (number, side) = parse(line);
            sum += number;
            let seen = &mut seen[number.unsigned_abs() as usize][side];
            assert!(!std::mem::replace(seen, true), "row {line} is there twice");
        }
        assert_eq!(sum, 0, "a part of a checkpoint");
        assert!(seen.iter().all(|[left, right]| left == right), "a part of a checkpoint");
    });
    let check = |root: &Path| {
        let mut seen = vec![[false; 2]; total];
        for line in lines(root) {
            let (number, side) = parse(&line);
            assert!(!std::mem::replace(&mut seen[number.unsigned_abs() as usize][side], true), "row {line} is there twice");
        }
        seen.iter().flatten().filter(|seen| **seen).count()
    };
    let kills = kill_until_finished(&mut server, &root, "s3 file to file", |_| {
        looking.catch_up();
        check(&root);
    })
    .await;
    assert_eq!(check(&root), 2 * total, "rows are missing");
    let looks = looking.end();
    run::say(&format!("objects to objects: {kills} kills, {looks} looks by the records at {total} rows"));
    assert!(kills >= 2 && looks >= 2, "the copy was too quick to be met: {kills} kills, {looks} looks");

    // As a table, the folder shows the same, and none of the records.
    let session = server.connect().await;
    session
        .must(&format!(
            "CREATE TABLE copied (n BIGINT, k BIGINT, side TEXT) WITH (connector = 'file', path = 's3://{BUCKET}/out', format = 'csv')"
        ))
        .await;
    let sum = total * (total - 1) / 2;
    let expected = [[total.to_string(), format!("-{sum}")], [total.to_string(), sum.to_string()]];
    assert_eq!(rows(&session, "SELECT count(*), sum(n) FROM copied GROUP BY side").await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_that_come_are_read_once_and_an_older_checkpoint_takes_back() {
    let Some(store) = Store::start("s3::files::objects_that_come") else { return };
    let object = |number: usize| -> String { (0..100).map(|line| format!("{{\"n\":{}}}\n", number * 100 + line)).collect() };
    put(&store, "in/0.json", object(0).as_bytes());
    let pairs = [("parallelism", "2"), ("checkpoint_interval", "1 h"), ("checkpoints_retained", "30")];
    let mut server = Server::start(&settings_for(store.address(), &pairs));
    let session = server.connect().await;
    session
        .must(&format!("CREATE TABLE t (n BIGINT) WITH (connector = 'file', path = 's3://{BUCKET}/in', format = 'json', watch = '50 ms')"))
        .await;
    session.must("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS c, count(DISTINCT n) AS d FROM t").await;
    session.must(&format!("CREATE SINK s WITH (connector = 'file', path = 's3://{BUCKET}/out', format = 'csv') AS SELECT n FROM t")).await;
    let out = store.path("out");
    let written = |count: usize| {
        let mut found: Vec<usize> = lines(&out).iter().map(|line| line.parse().expect("a number")).collect();
        found.sort_unstable();
        found == (0..count).collect::<Vec<_>>()
    };
    let mut numbers = Vec::new();
    for round in 1..=3 {
        let count = (100 * round).to_string();
        wait_for(&session, "SELECT c, d FROM v", &[&[count.as_str(), count.as_str()]]).await;
        let deadline = Instant::now() + PATIENCE;
        while !written(100 * round) {
            session.must("CHECKPOINT").await;
            assert!(Instant::now() < deadline, "{round}: {} lines", lines(&out).len());
        }
        numbers.push(session.must_count("SELECT max(checkpoint) FROM weir_checkpoints WHERE state = 'completed'").await as u64);
        if round < 3 {
            put(&store, &format!("in/{round}.json"), object(round).as_bytes());
        }
    }
    // What was read may go.
    std::fs::remove_file(store.path("in/0.json")).expect("removed");
    let before = visible(&out);
    server.kill();
    server.set("parallelism", "3");
    server.try_restart_from(numbers[0]).unwrap_or_else(|report| panic!("{report}"));
    let session = server.connect().await;
    wait_for(&session, "SELECT c, d FROM v", &[&["300", "300"]]).await;
    let deadline = Instant::now() + PATIENCE;
    while !(written(300) && visible(&out) != before) {
        session.must("CHECKPOINT").await;
        assert!(Instant::now() < deadline, "{} lines", lines(&out).len());
    }
    let gone: Vec<&PathBuf> = before.iter().filter(|path| !path.exists()).collect();
    assert!(!gone.is_empty() && gone.len() < before.len(), "what the first checkpoint has stays, and what came after it goes: {gone:?}");
    assert_eq!(refusal(&session, "SELECT * FROM t").await.0, "0A000");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_the_network_does_to_a_sink_fails_checkpoints_and_nothing_else() {
    let Some(store) = Store::start("s3::files::whatever_the_network_does_to_a_sink") else { return };
    let proxy = Proxy::before(store.address());
    let pairs = [("checkpoint_interval", "1 h"), ("tolerable_checkpoint_failures", "1000"), ("parallelism", "2")];
    let mut server = Server::start(&settings_for(proxy.address(), &pairs));
    let mut session = server.connect().await;
    session.must("CREATE TABLE t (id BIGINT PRIMARY KEY, s TEXT)").await;
    session.must("CREATE MATERIALIZED VIEW v AS SELECT id, s FROM t").await;
    session
        .must(&format!(
            "CREATE SINK out WITH (connector = 'file', path = 's3://{BUCKET}/out', format = 'csv', row_kind = 'kind', 's3.timeout' = '20 s')
             AS SELECT id, s FROM v"
        ))
        .await;
    let insert = |round: usize| {
        let rows: Vec<String> = (0..500).map(|row| format!("({}, 'row {row} of {round}')", round * 1000 + row)).collect();
        format!("INSERT INTO t VALUES {}", rows.join(", "))
    };
    let out = store.path("out");
    let is_written = |count: i64| lines(&out).iter().filter(|line| line.starts_with("+I")).count() as i64 == count;
    session.must(&insert(0)).await;
    let all = [Weather::Refused, Weather::Unavailable, Weather::Torn(300), Weather::Silent, Weather::Slow(100), Weather::NoBucket];
    let mut count = 500;
    for (round, weather) in (1..).zip(all) {
        let what = format!("{weather:?}");
        let deadline = Instant::now() + PATIENCE;
        while !is_written(count) {
            checkpoint_at_last(&session, &what).await;
            assert!(Instant::now() < deadline, "before {what}: {} of {count} rows", lines(&out).len());
        }
        let (failed, disturbed) = (failed_checkpoints(&session).await, proxy.disturbed());
        short_patience(&session, "3 s").await;
        proxy.set(weather);
        session.must(&insert(round)).await;
        session.must("FLUSH").await;
        let deadline = Instant::now() + PATIENCE;
        // A sink over a view reads on its own, so that rows may come behind the first checkpoint; and the time for one may be over before the store is asked.
        while failed_checkpoints(&session).await == failed || proxy.disturbed() == disturbed {
            let _ = session.execute("CHECKPOINT").await;
            assert!(Instant::now() < deadline, "{what} was not met");
        }
        count += 500;
        assert_eq!(session.must_count("SELECT count(*) FROM v").await, count, "{what}");
        assert_eq!(session.must_count("SELECT sum(restarts) FROM weir_jobs").await, 0, "{what}");
        assert!(!is_written(count), "{what}: no row of a checkpoint that failed");
        if round % 2 == 0 {
            server.kill();
            server.set("parallelism", if round == 2 { "3" } else { "1" });
            proxy.set(Weather::Fair);
            server.restart();
            session = server.connect().await;
        }
        proxy.set(Weather::Fair);
        long_patience(&session).await;
    }
    let deadline = Instant::now() + PATIENCE;
    while !is_written(count) {
        checkpoint_at_last(&session, "at the end").await;
        assert!(Instant::now() < deadline, "{} of {count} rows", lines(&out).len());
    }
    assert_eq!(session.must_count("SELECT sum(restarts) FROM weir_jobs").await, 0, "the job went on");
}

async fn error_of(session: &Session, job: &str) -> String {
    session.value(&format!("SELECT last_error FROM weir_jobs WHERE name = '{job}'")).await.expect("a value").unwrap_or_default()
}

async fn wait_for_restart(session: &Session, what: &str) {
    let restarts = async || session.must_count("SELECT restarts FROM weir_jobs WHERE name = 'v'").await;
    let (before, deadline) = (restarts().await, Instant::now() + PATIENCE);
    while restarts().await == before {
        assert!(Instant::now() < deadline, "{what} was not met");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_cannot_read_fails_clearly_and_goes_on_when_it_can() {
    let Some(store) = Store::start("s3::files::a_source_that_cannot_read") else { return };
    let proxy = Proxy::before(store.address());
    put(&store, "in/0.csv", b"0\n1\n2\n");
    let pairs = [("parallelism", "2"), ("checkpoint_interval", "100 ms"), ("restart_attempts", "2"), ("restart_delay", "10 ms")];
    let server = Server::start(&settings_for(proxy.address(), &pairs));
    let session = server.connect().await;
    session
        .must(&format!(
            "CREATE TABLE t (n BIGINT) WITH (connector = 'file', path = 's3://{BUCKET}/in', format = 'csv', watch = '50 ms', 's3.timeout' = '2 s')"
        ))
        .await;
    session.must("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS c, count(DISTINCT n) AS d FROM t").await;
    session.must("CREATE TABLE other (n BIGINT)").await;
    session.must("CREATE MATERIALIZED VIEW others AS SELECT count(*) AS c FROM other").await;
    wait_for(&session, "SELECT c, d FROM v", &[&["3", "3"]]).await;
    let all = [Weather::Refused, Weather::Unavailable, Weather::Torn(60), Weather::Silent, Weather::NoBucket];
    for (round, weather) in (1..).zip(all) {
        proxy.set(weather);
        put(&store, &format!("in/{round}.csv"), format!("{}\n{}\n", round * 10, round * 10 + 1).as_bytes());
        // In the first one more often than any other failure may be met.
        for _ in 0..if round == 1 { 3 } else { 1 } {
            wait_for_restart(&session, &format!("{weather:?}")).await;
        }
        if round == 1 {
            // Nobody waits for the end of an outage.
            let (code, text) = refusal(&session, "FLUSH").await;
            assert!(code == "58030" && text.contains("\"v\" is held up"), "{text}");
        }
        let error = error_of(&session, "v").await;
        assert!(error.contains("could not") && error.contains("s3://weir/in"), "{weather:?}: {error}");
        // The rest goes on.
        session.must("INSERT INTO other VALUES (1)").await;
        wait_for(&session, "SELECT c FROM others", &[&[round.to_string().as_str()]]).await;
        proxy.set(Weather::Fair);
        let count = (3 + 2 * round).to_string();
        wait_for(&session, "SELECT c, d FROM v", &[&[count.as_str(), count.as_str()]]).await;
    }
    // Slowly, but it comes.
    proxy.set(Weather::Slow(20_000));
    put(&store, "in/8.csv", b"80\n81\n");
    wait_for(&session, "SELECT c, d FROM v", &[&["15", "15"]]).await;
    // What was read may go with its bucket, as long as another one comes.
    proxy.set(Weather::Fair);
    store.remove_bucket();
    wait_for_restart(&session, "a lost bucket").await;
    put(&store, "in/9.csv", b"90\n91\n");
    wait_for(&session, "SELECT c, d FROM v", &[&["17", "17"]]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_changes_while_it_is_read_is_an_error_that_names_it() {
    let Some(store) = Store::start("s3::files::an_object_that_changes") else { return };
    let proxy = Proxy::before(store.address());
    let content = |digit: &str| -> Vec<u8> { format!("{}\n", digit.repeat(15)).repeat(1 << 20).into_bytes() };
    put(&store, "in/big.csv", &content("1"));
    let server = Server::start(&settings_for(proxy.address(), &[("parallelism", "1")]));
    let session = server.connect().await;
    session.must(&format!("CREATE TABLE t (n BIGINT) WITH (connector = 'file', path = 's3://{BUCKET}/in/big.csv', format = 'csv')")).await;
    assert_eq!(session.must_count("SELECT count(*) FROM t WHERE n = 111111111111111").await, 1 << 20);
    // The first piece comes, and the others take their time.
    let disturbed = proxy.disturbed();
    proxy.set(Weather::Slow(4 << 20));
    let reader = server.connect().await;
    let reading = tokio::spawn(async move { reader.execute("SELECT count(n) FROM t").await });
    wait_until("reading has begun", || proxy.disturbed() > disturbed).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    put(&store, "in/big.csv", &content("2"));
    match reading.await.expect("no panic") {
        Err(error) => {
            let text = describe(&error);
            assert!(text.contains("55000") && text.contains("s3://weir/in/big.csv\" has changed"), "{text}");
        }
        // All of it was asked for before, or nothing was: one version either way.
        Ok(_) => run::say("an object that changes: it was read before it changed"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_does_not_answer_holds_up_no_drop_and_a_drop_calls_uploads_off() {
    let Some(store) = Store::start("s3::files::a_store_that_does_not_answer") else { return };
    let proxy = Proxy::before(store.address());
    put(&store, "in/0.csv", b"0\n1\n2\n");
    let pairs = [("parallelism", "2"), ("checkpoint_interval", "1 h"), ("shutdown_timeout", "300 ms")];
    let mut server = Server::start(&settings_for(proxy.address(), &pairs));
    let session = server.connect().await;
    session
        .must(&format!(
            "CREATE TABLE t (n BIGINT) WITH (connector = 'file', path = 's3://{BUCKET}/in', format = 'csv', watch = '20 ms', 's3.timeout' = '1 h')"
        ))
        .await;
    session.must("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS c FROM t").await;
    session
        .must("CREATE TABLE made (n BIGINT, t TEXT) WITH (connector = 'datagen', 'rows-per-second' = '0', 'fields.t.length' = '200')")
        .await;
    for name in ["big", "stuck"] {
        session
            .must(&format!(
                "CREATE SINK {name} WITH (connector = 'file', path = 's3://{BUCKET}/{name}', format = 'csv', 's3.timeout' = '1 h')
                 AS SELECT n, t FROM made"
            ))
            .await;
    }
    wait_for(&session, "SELECT c FROM v", &[&["3"]]).await;
    // Parts of both have arrived.
    wait_until("parts arrive", || uploads(&store).len() > 4).await;
    session.must("DROP SINK big").await;
    let disturbed = proxy.disturbed();
    proxy.set(Weather::Silent);
    wait_until("somebody asks", || proxy.disturbed() > disturbed).await;
    // The sink takes no more, and the source gets nothing; a commit is asked for, and hangs.
    let waiting = server.connect().await;
    let checkpoint = tokio::spawn(async move { waiting.execute("CHECKPOINT").await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let began = Instant::now();
    session.must("DROP SINK stuck").await;
    session.must("DROP MATERIALIZED VIEW v").await;
    session.must("CREATE TABLE other (n BIGINT)").await;
    assert!(began.elapsed() < PATIENCE, "each has a time-out of an hour");
    checkpoint.abort();
    server.stop();
    proxy.set(Weather::Fair);
    server.restart();
    let session = server.connect().await;
    assert_eq!(session.must_count("SELECT count(*) FROM weir_jobs").await, 0);
    for name in ["big", "stuck"] {
        assert_eq!(visible(&store.path(name)), Vec::<PathBuf>::new(), "nothing of {name} was committed");
        assert!(store.names(&format!("{name}/{RECORDS}")).len() <= 1, "{name} has the record of its beginning");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_sink_leaves_no_upload_behind() {
    let Some(store) = Store::start("s3::files::a_dropped_sink_leaves_no_upload") else { return };
    let server = Server::start(&settings_for(store.address(), &[("parallelism", "2"), ("checkpoint_interval", "1 h")]));
    let session = server.connect().await;
    session
        .must("CREATE TABLE made (n BIGINT, t TEXT) WITH (connector = 'datagen', 'rows-per-second' = '0', 'fields.t.length' = '200')")
        .await;
    session
        .must(&format!("CREATE SINK big WITH (connector = 'file', path = 's3://{BUCKET}/big', format = 'csv') AS SELECT n, t FROM made"))
        .await;
    wait_until("parts arrive", || uploads(&store).len() > 4).await;
    session.must("DROP SINK big").await;
    wait_until("uploads are called off", || uploads(&store).is_empty()).await;
    assert_eq!(visible(&store.path("big")), Vec::<PathBuf>::new());
}

/// The uploads that the newest manifest lists: the keys of their objects, and the numbers that the store gave them.
fn listed_uploads(data_dir: &Path) -> Vec<(String, String)> {
    let files = std::fs::read_dir(data_dir.join("checkpoints")).expect("a folder").flatten().map(|entry| entry.path());
    let newest = files.filter(|path| path.is_file() && path.extension().is_none()).max().expect("a manifest");
    let bytes = std::fs::read(newest).expect("a manifest");
    let end = bytes.iter().position(|byte| *byte == b'\n').expect("a header");
    let manifest: serde_json::Value = serde_json::from_slice(&bytes[end + 1..]).expect("JSON");
    let jobs = manifest["jobs"].as_object().expect("jobs").values();
    let operators = jobs.flat_map(|job| job["operators"].as_object().expect("operators").values());
    let commits = operators.flat_map(|operator| operator["commits"].as_array().into_iter().flatten());
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_string();
    let uploads = commits.filter_map(|commit| commit.get("upload"));
    let key = |target: String| target.strip_prefix(&format!("s3://{BUCKET}/")).expect("an object").to_string();
    uploads.map(|upload| (key(text(&upload["target"])), text(&upload["upload"]))).collect()
}

/// Rows go into `t` whose uploads a durable checkpoint lists, and which are lost before they are completed. Returns the objects that they would have been.
async fn lose_uploads(
    session: &Session,
    data_dir: &Path,
    store: &Store,
    proxy: &Proxy,
    rows: std::ops::Range<i64>,
) -> Vec<(String, Vec<u8>)> {
    proxy.set(Weather::NoCompletion);
    let values: Vec<String> = rows.map(|row| format!("({row})")).collect();
    session.must(&format!("INSERT INTO t VALUES {}", values.join(", "))).await;
    let deadline = Instant::now() + PATIENCE;
    // Those of the checkpoint before are completed: whatever is listed and has parts is new.
    let listed = loop {
        let refused = session.execute("CHECKPOINT").await.is_err();
        let listed: Vec<(String, String)> = listed_uploads(data_dir)
            .into_iter()
            .filter(|(_, number)| uploads(store).iter().any(|path| path.display().to_string().contains(number)))
            .collect();
        if refused && !listed.is_empty() {
            break listed;
        }
        assert!(Instant::now() < deadline, "no checkpoint lists an upload");
    };
    let mut objects = Vec::new();
    for (key, number) in &listed {
        let mut parts: Vec<PathBuf> =
            uploads(store).into_iter().filter(|path| path.display().to_string().contains(&format!("{number}.part-"))).collect();
        parts.sort();
        assert!(!parts.is_empty(), "{number} has parts");
        objects.push((key.clone(), parts.iter().flat_map(|part| std::fs::read(part).expect("a part")).collect()));
    }
    for path in uploads(store) {
        std::fs::remove_file(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    proxy.set(Weather::Fair);
    objects
}

async fn until_stopped(session: &Session, job: &str) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let shown = rows(session, &format!("SELECT state, error_code, last_error FROM weir_jobs WHERE name = '{job}'")).await;
        if shown[0][0] == "failed" {
            assert_eq!(shown[0][1], "58P01", "{shown:?}");
            return shown[0][2].clone();
        }
        assert!(Instant::now() < deadline, "{job} is not stopped: {shown:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_whose_store_has_lost_an_upload_is_stopped_and_goes_back_or_on() {
    let Some(store) = Store::start("s3::files::a_sink_whose_store_has_lost") else { return };
    let proxy = Proxy::before(store.address());
    let pairs = [("parallelism", "2"), ("checkpoint_interval", "1 h"), ("checkpoints_retained", "8")];
    let mut server = Server::start(&settings_for(proxy.address(), &pairs));
    let data_dir = server.data_dir().to_path_buf();
    let mut session = server.connect().await;
    session.must("CREATE TABLE t (id BIGINT PRIMARY KEY)").await;
    session.must("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS c FROM t").await;
    session
        .must(&format!(
            "CREATE SINK out WITH (connector = 'file', path = 's3://{BUCKET}/out', format = 'csv', row_kind = 'kind', 's3.timeout' = '8 s')
             AS SELECT id FROM t"
        ))
        .await;
    let out = store.path("out");
    let is_written = async |session: &Session, count: i64, what: &str| {
        let mut expected: Vec<String> = (0..count).map(|row| format!("+I,{row}")).collect();
        expected.sort();
        let deadline = Instant::now() + PATIENCE;
        loop {
            checkpoint_at_last(session, what).await;
            let mut found = lines(&out);
            found.sort();
            if found == expected {
                return;
            }
            assert!(Instant::now() < deadline, "{what}: {} lines of {count}", found.len());
        }
    };
    session.must("INSERT INTO t VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)").await;
    is_written(&session, 10, "before").await;

    let objects = lose_uploads(&session, &data_dir, &store, &proxy, 10..20).await;
    let error = until_stopped(&session, "out").await;
    let (key, _) = &objects[0];
    let folder = key.rsplit_once('/').expect("a key").0;
    for says in [&format!("the upload of \"s3://{BUCKET}/{folder}/"), "is gone", "of \"out\" lists it", "RECOVER JOB out FROM CHECKPOINT "]
    {
        assert!(error.contains(says), "{says:?} is not in {error}");
    }
    // Nothing else is stopped, and checkpoints complete again.
    session.must("INSERT INTO t VALUES (20)").await;
    session.must("CHECKPOINT").await;
    assert_eq!(session.must_count("SELECT c FROM v").await, 21);
    assert_eq!(refusal(&session, "ALTER JOB out RESUME").await.0, "58P01");
    // A start finds the same.
    server.kill();
    server.restart();
    session = server.connect().await;
    until_stopped(&session, "out").await;
    let (code, text) = refusal(&session, "ALTER JOB out RESUME").await;
    assert!(code == "58P01" && text.contains("RECOVER JOB out FROM CHECKPOINT "), "{text}");
    // A store that can't be asked is another matter.
    proxy.set(Weather::Refused);
    assert_eq!(refusal(&session, "ALTER JOB out RESUME").await.0, "58030");
    proxy.set(Weather::Fair);
    // The objects are there again.
    for (key, content) in &objects {
        put(&store, key, content);
    }
    session.must("ALTER JOB out RESUME").await;
    is_written(&session, 21, "resumed").await;

    // Lost once more, and written again from before.
    lose_uploads(&session, &data_dir, &store, &proxy, 21..30).await;
    let error = until_stopped(&session, "out").await;
    let number = error.split("RECOVER JOB out FROM CHECKPOINT ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a number");
    session.must(&format!("RECOVER JOB out FROM CHECKPOINT {number}")).await;
    is_written(&session, 30, "recovered").await;
    server.kill();
    server.set("parallelism", "3");
    server.restart();
    session = server.connect().await;
    session.must("INSERT INTO t VALUES (30)").await;
    is_written(&session, 31, "afterwards").await;
    wait_for(&session, "SELECT DISTINCT state FROM weir_jobs", &[&["running"]]).await;
}
