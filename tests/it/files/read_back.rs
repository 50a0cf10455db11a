//! What sinks write of a result that changes, tables read back, in every form that says what a row does.

use super::*;

/// The forms, each with how it is asked for.
const FORMS: [(&str, &str); 5] = [
    ("csv_kind", "format = 'csv', row_kind = 'kind'"),
    ("csv_header", "format = 'csv', row_kind = 'kind', header = true, null_string = 'nil', compression = 'gzip'"),
    ("json_kind", "format = 'json', row_kind = 'kind'"),
    ("parquet_kind", "format = 'parquet', row_kind = 'kind'"),
    ("debezium", "format = 'debezium-json', compression = 'zstd'"),
];

const RESULT: &str = "SELECT k, count(*) AS n, sum(v) AS s, max(note) AS note, max(at) AS at, min(x) AS x FROM t GROUP BY k";

/// Waits until every view over what a sink wrote shows the answer of its query.
async fn wait_until_read_back(session: &Session) {
    let expected = rows(session, RESULT).await;
    let counted = rows(session, "SELECT count(*), sum(n), sum(s) FROM (SELECT count(*) AS n, sum(v) AS s FROM t GROUP BY k) AS r").await;
    let deadline = Instant::now() + PATIENCE;
    for (form, _) in FORMS {
        loop {
            let found = rows(session, &format!("SELECT k, n, s, note, at, x FROM {form}_v")).await;
            let totals = rows(session, &format!("SELECT c, n, s FROM {form}_totals")).await;
            if found == expected && totals == counted {
                break;
            }
            assert!(Instant::now() < deadline, "{form}: expected {expected:?} and {counted:?}, is {found:?} and {totals:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_form_of_changes_is_the_result_again_through_kills_and_at_other_parallelisms() {
    let output = folder();
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "100 ms")]));
    let session = server.connect().await;
    session.must("CREATE TABLE t (id BIGINT PRIMARY KEY, k TEXT, v BIGINT, note TEXT, at TIMESTAMP, x DOUBLE PRECISION)").await;
    for (form, options) in FORMS {
        let path = output.path().join(form).display().to_string();
        session.must(&format!("CREATE SINK {form}_out WITH (connector = 'file', path = '{path}', {options}) AS {RESULT}")).await;
        session
            .must(&format!(
                "CREATE TABLE {form}_t (k TEXT, n BIGINT, s NUMERIC(38, 0), note TEXT, at TIMESTAMP, x DOUBLE PRECISION)
                 WITH (connector = 'file', path = '{path}', {options}, watch = '20 ms')"
            ))
            .await;
        session.must(&format!("CREATE MATERIALIZED VIEW {form}_v AS SELECT k, n, s, note, at, x FROM {form}_t")).await;
        session
            .must(&format!("CREATE MATERIALIZED VIEW {form}_totals AS SELECT count(*) AS c, sum(n) AS n, sum(s) AS s FROM {form}_t"))
            .await;
    }
    let keys = ["'plain'", "'a,b;c'", "E'line\\nbreak\\r\\n'", "'quo\"ted'", "''", "NULL", "'nil'", "E'back\\\\slash é'"];
    let notes = ["''", "NULL", "E'\"\\n,'", "'+I'"];
    for round in 0..4i64 {
        let values: Vec<String> = (0..40)
            .map(|row| {
                let (key, note) = (keys[row as usize % keys.len()], notes[(row + round) as usize % notes.len()]);
                let x = ["NULL", "-0.5", "1e300", "'NaN'"][(row / 3) as usize % 4];
                format!(
                    "({}, {key}, {}, {note}, TIMESTAMP '2020-01-01 00:00:00.5' + INTERVAL '1' SECOND * {row}, {x})",
                    round * 40 + row,
                    row - 20
                )
            })
            .collect();
        session.must(&format!("INSERT INTO t VALUES {}", values.join(", "))).await;
        session.must(&format!("UPDATE t SET v = v + 100, note = 'changed' WHERE id % 7 = {round}")).await;
        // Groups go, and come back with the next round.
        session.must(&format!("DELETE FROM t WHERE k = {} OR id % 11 = {round}", keys[round as usize])).await;
        wait_until_read_back(&session).await;
        if round == 0 {
            let once = rows(&session, "SELECT k FROM debezium_v").await.len();
            assert!(once >= keys.len() - 1, "{once} groups");
        }
    }
    for parallelism in ["3", "1"] {
        // The one half before a kill that comes at any time, the other after it.
        server.connect().await.must("UPDATE t SET v = v * 2, k = 'moved' WHERE id % 3 = 0").await;
        server.kill();
        server.set("parallelism", parallelism);
        server.restart();
        let session = server.connect().await;
        session.must("DELETE FROM t WHERE id % 5 = 0").await;
        wait_until_read_back(&session).await;
    }
    // A table of parquet files knows its columns, but for the one that holds the kinds.
    let session = server.connect().await;
    let path = output.path().join("parquet_kind").display().to_string();
    session.must(&format!("CREATE TABLE known WITH (connector = 'file', path = '{path}', format = 'parquet', row_kind = 'kind')")).await;
    session.must("CREATE MATERIALIZED VIEW known_v AS SELECT * FROM known").await;
    let expected = rows(&session, RESULT).await;
    let deadline = Instant::now() + PATIENCE;
    while rows(&session, "SELECT k, n, s, note, at, x FROM known_v").await != expected {
        assert!(Instant::now() < deadline, "known is not what was written");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
