//! Files as nobody would wish for them: columns of types that weir lacks, records without an end, texts with a zero byte.

use std::fs::File;

use arrow::array::{ArrayRef, BinaryArray, DictionaryArray, Int64Array, RecordBatch, Time64MicrosecondArray};
use arrow::datatypes::Int32Type;
use parquet::arrow::ArrowWriter;

use super::*;

fn write_parquet(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let rows = RecordBatch::try_from_iter(columns).expect("columns fit");
    let file = File::create(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut writer = ArrowWriter::try_new(file, rows.schema(), None).expect("a writer");
    writer.write(&rows).and_then(|()| writer.close()).expect("written");
}

fn bytes() -> ArrayRef {
    Arc::new(BinaryArray::from(vec![&b"\xff"[..], b"", b"x"]))
}

/// What `weir run` of these statements prints and tells.
fn run_script(folder: &Path, statements: &str) -> (bool, String, String) {
    let script = folder.join("script.sql");
    write(&script, statements);
    let output = crate::server::weir().arg("run").arg(&script).args(["--set", "parallelism=1"]).output().expect("weir runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parquet_columns_that_can_not_be_read_are_named_and_the_others_are_read() {
    let data = folder();
    let path = |name: &str| data.path().join(name).display().to_string();
    let words: DictionaryArray<Int32Type> = ["a", "b", "a"].into_iter().collect();
    let hours: ArrayRef = Arc::new(Time64MicrosecondArray::from(vec![1, 2, 3]));
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    write_parquet(Path::new(&path("a.parquet")), vec![("word", Arc::new(words)), ("raw", bytes()), ("hour", hours), ("n", numbers)]);
    write_parquet(Path::new(&path("b.parquet")), vec![("raw", bytes())]);
    let table = |name: &str, columns: &str, file: &str| {
        format!("CREATE TABLE {name} {columns} WITH (connector = 'file', path = '{}', format = 'parquet');", path(file))
    };
    let query = "SELECT word || '=' || sum(n) AS told FROM p GROUP BY word;";
    let (ran, printed, told) = run_script(data.path(), &format!("{} {query}", table("p", "", "a.parquet")));
    assert!(ran && printed.contains("a=4") && printed.contains("b=2"), "{printed}\n{told}");
    let notice = "NOTICE:  columns of types that can't be read are left out of table \"p\": \"raw\" (Binary), \"hour\" (Time64(µs))";
    assert_eq!(told.matches(notice).count(), 1, "{told}");
    // With columns declared nobody has to be told.
    let (ran, printed, told) = run_script(data.path(), &format!("{} {query}", table("p", "(word TEXT, n INT)", "a.parquet")));
    assert!(ran && printed.contains("a=4") && !told.contains("NOTICE"), "{printed}\n{told}");

    let mut server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    let (code, text) = refusal(&session, &table("none_left", "", "b.parquet")).await;
    assert!(code == "0A000" && text.contains("\"raw\" (Binary)") && text.contains("b.parquet"), "{code} {text}");
    session.must(&table("declared", "(hour TEXT, n BIGINT)", "a.parquet")).await;
    assert_eq!(rows(&session, "SELECT sum(n) FROM declared").await, [["6"]]);
    let (code, text) = refusal(&session, "SELECT hour FROM declared").await;
    assert!(code == "42804" && text.contains("\"hour\"") && text.contains("Time64"), "{code} {text}");
    session.must(&table("p", "", "a.parquet")).await;
    session.must("CREATE MATERIALIZED VIEW v AS SELECT word, sum(n) AS s FROM p GROUP BY word").await;
    wait_for(&session, "SELECT word, s FROM v", &[&["a", "4"], &["b", "2"]]).await;
    session.must("CHECKPOINT").await;
    server.kill();
    server.set("parallelism", "3");
    server.restart();
    let session = server.connect().await;
    wait_for(&session, "SELECT word, s FROM v", &[&["a", "4"], &["b", "2"]]).await;
    assert_eq!(rows(&session, "SELECT * FROM p WHERE n = 2").await, [["b", "2"]]);
}

/// Declares a table over `path` for each policy, and views of the last two.
async fn with_policies(session: &Session, name: &str, path: &Path, format: &str) {
    for policy in ["fail", "skip", "dead_letter"] {
        let path = path.display();
        session
            .must(&format!(
                "CREATE TABLE {name}_{policy} (n BIGINT, t TEXT) WITH (connector = 'file', path = '{path}', format = '{format}', bad_records = '{policy}')"
            ))
            .await;
    }
    for policy in ["skip", "dead_letter"] {
        session
            .must(&format!("CREATE MATERIALIZED VIEW {name}_{policy}_v AS SELECT count(t) AS c, sum(n) AS s FROM {name}_{policy}"))
            .await;
    }
}

/// Waits until the views of `name` show `expected` rows with the sum `sum`, and `bad` records were left out of each.
async fn wait_for_policies(session: &Session, name: &str, expected: &str, sum: &str, bad: &str) {
    for policy in ["skip", "dead_letter"] {
        wait_for(session, &format!("SELECT c, s FROM {name}_{policy}_v"), &[&[expected, sum]]).await;
        wait_for(session, &format!("SELECT sum(bad_records) FROM weir_sources WHERE job = '{name}_{policy}_v'"), &[&[bad]]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_over_max_row_bytes_are_bad_records_and_no_more() {
    const LONGEST: usize = 1 << 20;
    let data = folder();
    let filler = |bytes: usize| "é\n".repeat(bytes / 3) + &"x".repeat(bytes % 3);
    // The last one's quote is never closed.
    let csv = format!(
        "1,\"{}\"\n2,\"{}\"\n3,c\n4,\"{}\"\n5,e\n6,\"f\n{}",
        filler(LONGEST - 4),
        filler(LONGEST - 3),
        filler(20 << 20),
        "7,g\n".repeat(10 << 20)
    );
    std::fs::write(data.path().join("in.csv.gz"), gzip(&csv)).expect("written");
    let json = format!("{{\"n\":1,\"t\":\"a\"}}\n{{\"n\":2,\"t\":\"{}\"}}\n{{\"n\":3,\"t\":\"c\"}}\n", "x".repeat(40 << 20));
    write(&data.path().join("in.json"), &json);
    let mut server = Server::start(&settings(&[
        ("parallelism", "2"),
        ("max_row_bytes", "1 MiB"),
        ("checkpoint_interval", "50 ms"),
        ("restart_delay", "1 ms"),
    ]));
    let session = server.connect().await;
    for (name, file) in [("csv", "in.csv.gz"), ("json", "in.json")] {
        with_policies(&session, name, &data.path().join(file), name).await;
        let (code, text) = refusal(&session, &format!("SELECT count(t) FROM {name}_fail")).await;
        let position = if name == "csv" { csv.find("\n2,").map_or(0, |at| at + 1) } else { 16 };
        assert!(code == "54000" && text.contains("1048576 bytes") && text.contains(&format!("{file}\", byte {position}")), "{code} {text}");
    }
    let expected = [("csv", "3", "9", "3"), ("json", "2", "4", "1")];
    for (name, count, sum, bad) in expected {
        wait_for_policies(&session, name, count, sum, bad).await;
    }
    server.kill();
    server.set("parallelism", "3");
    server.restart();
    let session = server.connect().await;
    for (name, count, sum, bad) in expected {
        wait_for_policies(&session, name, count, sum, bad).await;
    }
    session.must("CHECKPOINT").await;
    // The first 64 KiB are kept, to the last whole character.
    let kept = rows(&session, "SELECT position, encoding, octet_length(bytes), reason FROM csv_dead_letter$bad").await;
    let place = |of: &str| csv.find(of).map_or(0, |at| at + 1).to_string();
    let mut places = [place("\n2,"), place("\n4,"), place("\n6,")];
    places.sort();
    assert_eq!(kept.iter().map(|row| row[0].clone()).collect::<Vec<_>>(), places);
    for row in &kept {
        let bytes: usize = row[2].parse().expect("a number");
        assert!(row[1] == "text, cut" && (65_534..=65_536).contains(&bytes), "{row:?}");
        assert_eq!(row[3], "the record is longer than the 1048576 bytes that max_row_bytes allows");
        let at: usize = row[0].parse().expect("a number");
        let found = rows(&session, &format!("SELECT bytes FROM csv_dead_letter$bad WHERE position = {at}")).await;
        assert_eq!(found[0][0], csv[at..at + bytes]);
    }
    let kept = rows(&session, "SELECT position, encoding, octet_length(bytes) FROM json_dead_letter$bad").await;
    assert_eq!(kept, [["16", "text, cut", "65536"]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_with_a_zero_byte_comes_in_nowhere() {
    let data = folder();
    write(&data.path().join("in.csv"), "1,a\n2,b\0\n3,\"c\0\"\n4,d\n5\0,e\n");
    write(
        &data.path().join("in.json"),
        "{\"n\":1,\"t\":\"a\"}\n{\"n\":2,\"t\":\"\0\"}\n{\"n\":3,\"t\":\"\\u0000\"}\n{\"n\":4,\"t\":\"d\"}\n",
    );
    let server = Server::start(&settings(&[("parallelism", "2"), ("restart_delay", "1 ms")]));
    let session = server.connect().await;
    for (name, bad) in [("csv", "3"), ("json", "2")] {
        with_policies(&session, name, &data.path().join(format!("in.{name}")), name).await;
        wait_for_policies(&session, name, "2", "5", bad).await;
        let (code, text) = refusal(&session, &format!("SELECT count(t) FROM {name}_fail")).await;
        assert!(code == "22021" && text.contains("0x00"), "{code} {text}");
    }
    session.must("CHECKPOINT").await;
    let kept = "SELECT position, encoding, bytes, reason FROM";
    let csv = rows(&session, &format!("{kept} csv_dead_letter$bad")).await;
    let reason = "invalid byte sequence for encoding \"UTF8\": 0x00";
    let number = "invalid input syntax for type bigint: \"5\u{FFFD}\"";
    assert_eq!(csv, [["20", "hex", "35002c65", number], ["4", "hex", "322c6200", reason], ["9", "hex", "332c22630022", reason]]);
    let json = rows(&session, &format!("{kept} json_dead_letter$bad")).await;
    let escaped = [
        "32",
        "text",
        "{\"n\":3,\"t\":\"\\u0000\"}",
        "unsupported Unicode escape sequence: \\u0000 cannot be converted to text. (member \"t\")",
    ];
    assert_eq!(json[1], escaped);
    assert_eq!((json.len(), json[0][1].as_str(), json[0][3].as_str()), (2, "hex", reason));

    // Nor by another way.
    assert_eq!(refusal(&session, "SELECT E'a\\000'").await.0, "22021");
    assert_eq!(refusal(&session, "SELECT E'\\u0000'").await.0, "42601");
    assert_eq!(refusal(&session, "SELECT chr(0)").await.0, "54000");
    session.must("CREATE TABLE stored (t TEXT)").await;
    for sql in ["INSERT INTO stored VALUES ($1::text)", "SELECT $1::text"] {
        let error = session.client().query(sql, &[&"a\0b"]).await.expect_err(sql);
        assert_eq!(sql_state(&error).as_deref(), Some("22021"), "{sql}: {}", describe(&error));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_and_partitions_that_can_not_be_are_refused_at_once() {
    let data = folder();
    let path = data.path().display();
    let server = Server::start(&settings(&[("parallelism", "1")]));
    let session = server.connect().await;
    let with = |name: &str, more: &str| format!("WITH (connector = 'file', path = '{path}/{name}', format = 'json'{more})");
    for name in ["[", "a**b", "x[/*.json"] {
        let (code, text) = refusal(&session, &format!("CREATE TABLE bad (n BIGINT) {}", with(name, ""))).await;
        assert!(code == "22023" && text.contains(name), "{name}: {code} {text}");
    }
    let (code, text) = refusal(&session, &format!("CREATE TABLE bad (n BIGINT) {}", with("in", ", partition_by = 'm'"))).await;
    assert!(code == "42703" && text.contains("\"m\""), "{code} {text}");
    // A pattern is for reading; what is there under such a name is none.
    session.must(&format!("CREATE TABLE pattern (n BIGINT) {}", with("o1/*", ""))).await;
    session.must("CREATE TABLE stored (n BIGINT)").await;
    for statement in [
        format!("CREATE SINK s {} AS SELECT n FROM stored", with("o1/*", "")),
        format!("CREATE SINK s {} AS SELECT n FROM stored", with("o[12]/x", "")),
        "INSERT INTO pattern SELECT n FROM stored".to_string(),
    ] {
        let (code, text) = refusal(&session, &statement).await;
        assert!(code == "22023" && text.contains("pattern"), "{statement}: {code} {text}");
    }
    assert!(!data.path().join("o1").exists());
    std::fs::create_dir(data.path().join("[there]")).expect("a folder");
    session.must(&format!("CREATE SINK s {} AS SELECT n FROM pattern", with("[there]/out", ""))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_file_stops_its_job_and_is_named() {
    let data = folder();
    let text: String = (0..20_000).map(|number| format!("{number},{}\n", number * 7919 % 10_007)).collect();
    let packed = gzip(&text);
    std::fs::write(data.path().join("a.csv.gz"), &packed[..packed.len() / 2]).expect("written");
    let settings = settings(&[("parallelism", "2"), ("restart_delay", "1 ms"), ("restart_attempts", "2")]);
    let server = Server::start(&settings);
    let session = server.connect().await;
    let path = data.path().display();
    session.must(&format!("CREATE TABLE t (n BIGINT, m BIGINT) WITH (connector = 'file', path = '{path}', format = 'csv')")).await;
    let (code, told) = refusal(&session, "SELECT count(*) FROM t").await;
    assert!(code == "22000" && told.contains("a.csv.gz") && told.contains("byte "), "{code} {told}");
    // A view over a connector may be there before its first row.
    if let Err(error) = session.execute("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS c FROM t").await {
        assert_eq!(sql_state(&error).as_deref(), Some("22000"), "{}", describe(&error));
        return;
    }
    wait_for(&session, "SELECT state FROM weir_jobs WHERE name = 'v'", &[&["failed"]]).await;
    let (code, told) = refusal(&session, "FLUSH").await;
    assert!(code == "22000" && told.contains("a.csv.gz"), "{code} {told}");
}
