//! Rows and arrays between files, views, restarts and clients.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_postgres::types::Type;
use weir::seams::random::Random;

use crate::run;
use crate::server::{PATIENCE, Server, Session, describe, settings, sql_state};

/// The columns of the tables of these tests.
const COLUMNS: &str = "id BIGINT, who ROW<name TEXT, at ROW<x DOUBLE PRECISION, y NUMERIC(10,2)>, \"Odd name\" BOOLEAN>, tags TEXT[], \
     lines ARRAY<ROW<product TEXT, counts INT[], since TIMESTAMP(3)>>, grid BIGINT[][]";

fn table(name: &str, place: &Path, options: &str) -> String {
    format!("CREATE TABLE {name} ({COLUMNS}) WITH (connector = 'file', path = '{}', {options})", place.display())
}

async fn rows(session: &Session, sql: &str) -> Vec<Vec<String>> {
    let rows = session.text_rows(sql).await.unwrap_or_else(|e| panic!("{sql}\n{}", describe(&e)));
    let mut rows: Vec<Vec<String>> =
        rows.into_iter().map(|row| row.into_iter().map(|value| value.unwrap_or_else(|| "NULL".into())).collect()).collect();
    rows.sort();
    rows
}

/// Waits until `query` gives `expected`, its rows sorted.
async fn wait_for(session: &Session, query: &str, expected: &[Vec<String>]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = rows(session, query).await;
        if found == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{query}\nexpected {expected:?}, is {found:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn refusal(session: &Session, sql: &str) -> (String, String) {
    let error = session.execute(sql).await.expect_err(sql);
    (sql_state(&error).unwrap_or_default(), describe(&error))
}

/// The JSON lines in the files of a folder that a reader sees.
fn documents(folder: &Path) -> Vec<Value> {
    let mut documents = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(['.', '_']) {
            continue;
        }
        let text = std::fs::read_to_string(entry.path()).expect("a text file");
        documents.extend(text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{line}: {e}"))));
    }
    documents.sort_by_key(|document| document["id"].as_i64());
    documents
}

/// A value, or now and then null.
fn maybe(random: &mut Random, value: impl FnOnce(&mut Random) -> Value) -> Value {
    if random.below(5) == 0 { Value::Null } else { value(random) }
}

fn list(random: &mut Random, mut item: impl FnMut(&mut Random) -> Value) -> Value {
    let count = random.below(4);
    Value::Array((0..count).map(|_| item(random)).collect())
}

fn text(random: &mut Random) -> Value {
    let texts = ["", "plain", "two words", "NULL", "q\"uote", "back\\slash", "{br,ace}", "(paren)", "line\nend", "é🦀", "\t"];
    json!(texts[random.below(texts.len() as u64) as usize])
}

/// A document with every column, each of its parts sometimes null.
fn document(random: &mut Random, id: i64) -> Value {
    let double = |random: &mut Random| json!(random.below(1000) as f64 / 8.0 - 60.0);
    let who = maybe(random, |random| {
        json!({
            "name": maybe(random, text),
            "at": maybe(random, |random| json!({"x": maybe(random, double), "y": maybe(random, |random| json!(random.below(900) as f64 / 4.0))})),
            "Odd name": maybe(random, |random| json!(random.below(2) == 0)),
        })
    });
    let tags = maybe(random, |random| list(random, |random| maybe(random, text)));
    let lines = maybe(random, |random| {
        list(random, |random| {
            maybe(random, |random| {
                json!({
                    "product": maybe(random, text),
                    "counts": maybe(random, |random| list(random, |random| maybe(random, |random| json!(random.below(100) as i64 - 50)))),
                    "since": maybe(random, |random| json!(format!("2024-02-{:02} 03:04:05.{:03}", 1 + random.below(28), 1 + random.below(999)))),
                })
            })
        })
    });
    let grid = maybe(random, |random| {
        list(random, |random| maybe(random, |random| list(random, |random| maybe(random, |random| json!(random.below(9))))))
    });
    json!({"id": id, "who": who, "tags": tags, "lines": lines, "grid": grid})
}

/// `document` as somebody might have written it: members left out that are null, others that nobody reads, another order.
fn written(random: &mut Random, document: &Value) -> Value {
    match document {
        Value::Object(members) => {
            let mut members: Vec<(String, Value)> =
                members.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.clone(), written(random, value))).collect();
            if random.below(3) == 0 {
                members.insert(0, ("unread".into(), json!({"a": [1, {"}": "]"}]})));
            }
            if random.below(3) == 0 {
                members.reverse();
            }
            Value::Object(members.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(|item| written(random, item)).collect()),
        other => other.clone(),
    }
}

/// `document` as it is written out: numbers by value, timestamps without zeros at their end.
fn normal(document: &Value) -> Value {
    match document {
        Value::Object(members) => Value::Object(members.iter().map(|(name, value)| (name.clone(), normal(value))).collect()),
        Value::Array(items) => Value::Array(items.iter().map(normal).collect()),
        Value::Number(number) => json!(number.as_f64()),
        Value::String(text) if text.starts_with("2024-") => json!(text.trim_end_matches('0')),
        other => other.clone(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_go_through_json_parquet_and_kills_unchanged() {
    let mut random = run::random("nested documents");
    let data = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| data.path().join(name);
    let documents_made: Vec<Value> = (0..run::rounds(300, 5000) as i64).map(|id| document(&mut random, id)).collect();
    std::fs::create_dir(path("in")).expect("a folder");
    for (number, part) in documents_made.chunks(100).enumerate() {
        let lines: String = part.iter().map(|document| format!("{}\n", written(&mut random, document))).collect();
        std::fs::write(path("in").join(format!("{number}.json")), lines).expect("written");
    }
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "1 h")]));
    let session = server.connect().await;
    session.must(&table("docs", &path("in"), "format = 'json'")).await;
    let all = "SELECT id, who, tags, lines, grid FROM docs";
    let batch = rows(&session, all).await;
    assert_eq!(batch.len(), documents_made.len());

    // A view keyed by whole rows, one by groups of rows and arrays, one of elements.
    let views = [
        ("whole", all.to_string()),
        ("grouped", "SELECT tags, grid, count(*) AS n, min(id) AS first FROM docs GROUP BY tags, grid".to_string()),
        (
            "elements",
            "SELECT product, count(*) AS n, sum(counts[1]) AS s FROM docs CROSS JOIN UNNEST(lines) AS l GROUP BY product".to_string(),
        ),
        (
            "parts",
            "SELECT id, who.at.y, docs.who.\"Odd name\", lines[2].counts[1] AS c, cardinality(grid) AS g, who IS NULL AS n FROM docs"
                .to_string(),
        ),
    ];
    for (name, query) in &views {
        session.must(&format!("CREATE MATERIALIZED VIEW {name} AS {query}")).await;
        wait_for(&session, &format!("SELECT * FROM {name}"), &rows(&session, query).await).await;
    }
    session.must("CHECKPOINT").await;
    for parallelism in ["3", "1"] {
        server.kill();
        server.set("parallelism", parallelism);
        server.restart();
        let session = server.connect().await;
        for (name, query) in &views {
            let expected = rows(&session, query).await;
            assert!(!expected.is_empty(), "{name} has no rows");
            wait_for(&session, &format!("SELECT * FROM {name}"), &expected).await;
        }
    }

    // Such state is in savepoints too, where it can be read and gone on from.
    let session = server.connect().await;
    session.must("CREATE SAVEPOINT sp FOR grouped").await;
    let groups = rows(&session, &views[1].1).await;
    let saved = rows(&session, "SELECT grid, tags FROM savepoint_state('sp', 'aggregate(grid, tags)')").await;
    assert_eq!(saved.len(), groups.len());
    assert!(saved.iter().all(|key| groups.iter().any(|group| group[0] == key[1] && group[1] == key[0])), "{saved:?}");
    session.must(&format!("CREATE MATERIALIZED VIEW resumed FROM SAVEPOINT sp AS {}", views[1].1)).await;
    wait_for(&session, "SELECT * FROM resumed", &groups).await;

    // Out as JSON, as Parquet, and from there as JSON again.
    session.must("SET dml_sync = on").await;
    let expected: Vec<Value> = documents_made.iter().map(normal).collect();
    for (name, options, from) in [
        ("json_out", "format = 'json'", "docs"),
        ("parquet_out", "format = 'parquet'", "docs"),
        ("again", "format = 'json', compression = 'none'", "parquet_out"),
    ] {
        session.must(&table(name, &path(name), options)).await;
        session.must(&format!("INSERT INTO {name} SELECT id, who, tags, lines, grid FROM {from}")).await;
        assert_eq!(rows(&session, &format!("SELECT id, who, tags, lines, grid FROM {name}")).await, batch, "{name}");
        if options.contains("json") {
            assert_eq!(documents(&path(name)).iter().map(normal).collect::<Vec<_>>(), expected, "{name}");
        }
    }
    // A table of Parquet files knows its columns, those inside too.
    let place = path("parquet_out").display().to_string();
    session.must(&format!("CREATE TABLE known WITH (connector = 'file', path = '{place}', format = 'parquet')")).await;
    assert_eq!(rows(&session, "SELECT id, who, tags, lines, grid FROM known").await, batch);
    // Fewer fields than the file has, and numbers that are wider.
    session
        .must(&format!(
            "CREATE TABLE fewer (lines ARRAY<ROW<counts BIGINT[]>>, who ROW<AT ROW<y NUMERIC(12,4)>>) WITH (connector = 'file', path = '{place}', format = 'parquet')"
        ))
        .await;
    assert_eq!(
        rows(&session, "SELECT lines[1].counts[1]::int, who.at.y::numeric(10,2) FROM fewer").await,
        rows(&session, "SELECT lines[1].counts[1], who.at.y FROM docs").await
    );
    session
        .must(&format!(
            "CREATE TABLE wrong (who ROW<name BIGINT>, tags ROW<a INT>) WITH (connector = 'file', path = '{place}', format = 'parquet')"
        ))
        .await;
    for column in ["who", "tags"] {
        let (code, text) = refusal(&session, &format!("SELECT {column} FROM wrong")).await;
        assert!(code == "42804" && text.contains(column), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_nested_rows_are_written_and_read_as_debezium_has_them() {
    let data = tempfile::tempdir().expect("a temporary folder");
    let place = data.path().join("changes");
    let server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "1 h")]));
    let session = server.connect().await;
    session.must("CREATE TABLE t (id INT PRIMARY KEY, r ROW<a INT, b TEXT>, l INT[])").await;
    session
        .must(&format!(
            "CREATE SINK s WITH (connector = 'file', path = '{}', format = 'debezium-json') AS SELECT r, l, count(*) AS n FROM t GROUP BY r, l",
            place.display()
        ))
        .await;
    session.must("INSERT INTO t VALUES (1, ROW(1, 'x'), '{1,2}'), (2, ROW(1, 'x'), '{1,2}'), (3, NULL, '{}')").await;
    session.must("CHECKPOINT").await;
    session.must("DELETE FROM t WHERE id IN (1, 3)").await;
    session.must("UPDATE t SET r = ROW(2, NULL) WHERE id = 2").await;
    session.must("CHECKPOINT").await;
    session
        .must(&format!(
            "CREATE TABLE back (r ROW<a INT, b TEXT>, l INT[], n BIGINT) WITH (connector = 'file', path = '{}', format = 'debezium-json')",
            place.display()
        ))
        .await;
    session.must("CREATE MATERIALIZED VIEW v AS SELECT r, l, n FROM back").await;
    wait_for(&session, "SELECT * FROM v", &[vec!["(2,)".to_string(), "{1,2}".to_string(), "1".to_string()]]).await;
    for sql in [
        "CREATE TABLE c (r ROW<a INT>) WITH (connector = 'file', path = '/tmp/none', format = 'csv')",
        "CREATE TABLE c (l ROW<a INT>[]) WITH (connector = 'socket', hostname = 'localhost', port = '1', format = 'csv')",
        "CREATE SINK c WITH (connector = 'file', path = '/tmp/none', format = 'csv') AS SELECT id, l FROM t",
        "CREATE SINK c WITH (connector = 'file', path = '/tmp/none', format = 'json', partition_by = 'l') AS SELECT id, l FROM t",
        "CREATE TABLE c (l INT[]) WITH (connector = 'datagen')",
    ] {
        assert_eq!(refusal(&session, sql).await.0, "0A000", "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_value_inside_is_named_with_its_place() {
    let data = tempfile::tempdir().expect("a temporary folder");
    let place = data.path().join("in.json");
    let good = r#"{"id":1,"who":{"name":"a","at":{"x":1}},"lines":[{"product":"p","counts":[1]}]}"#;
    let bad = [
        (r#"{"id":2,"who":{"at":{"x":"far"}}}"#, "who.at.x"),
        (r#"{"id":3,"lines":[{"counts":[1,2]},{"counts":[3,"x"]}]}"#, "lines[2].counts[2]"),
        (r#"{"id":4,"who":[1]}"#, "who"),
        (r#"{"id":5,"tags":"a"}"#, "tags"),
        (r#"{"id":6,"grid":[[1],2]}"#, "grid[2]"),
        (r#"{"id":7,"lines":[{"counts":[1]},"#, "lines[2]"),
    ];
    let lines: Vec<&str> = std::iter::once(good).chain(bad.iter().map(|(line, _)| *line)).chain([good]).collect();
    std::fs::write(&place, lines.join("\n")).expect("written");
    let server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "1 h")]));
    let session = server.connect().await;
    session.must(&table("kept", &place, "format = 'json', bad_records = 'dead_letter'")).await;
    session.must("CREATE MATERIALIZED VIEW v AS SELECT id, who, tags, lines, grid FROM kept").await;
    let row = |id: &str| vec![id.to_string(), "(a,\"(1,)\",)".into(), "NULL".into(), "{\"(p,{1},)\"}".into(), "NULL".into()];
    wait_for(&session, "SELECT * FROM v", &[row("1"), row("1")]).await;
    session.must("CHECKPOINT").await;
    let found = rows(&session, "SELECT position, bytes, reason FROM kept$bad").await;
    assert_eq!(found.len(), bad.len(), "{found:?}");
    let mut position = good.len() + 1;
    for (line, member) in bad {
        let row = found.iter().find(|row| row[1] == line).unwrap_or_else(|| panic!("{line} is not in {found:?}"));
        assert_eq!(row[0], position.to_string(), "{line}");
        assert!(row[2].contains(&format!("\"{member}\"")), "{line}: {}", row[2]);
        position += line.len() + 1;
    }
    // What is not read is not looked at.
    session.must(&table("strict", &place, "format = 'json'")).await;
    assert_eq!(rows(&session, "SELECT who.name FROM strict WHERE false").await.len(), 0);
    let (code, text) = refusal(&session, "SELECT who FROM strict").await;
    assert!(code == "22P02" && text.contains("in.json") && text.contains("who.at.x"), "{code} {text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_see_arrays_as_postgresql_sends_them() {
    let server = Server::start(&settings(&[]));
    let session = server.connect().await;
    session
        .must(
            "CREATE TABLE t (id INT PRIMARY KEY, b BOOLEAN[], i INT[], l BIGINT[], d DOUBLE PRECISION[], t TEXT[], n NUMERIC(8,2)[], \
             ts TIMESTAMP(3)[], r ROW<a INT, b TEXT>, rs ROW<a INT>[], g INT[][])",
        )
        .await;
    session
        .must(
            "INSERT INTO t VALUES (1, '{t,NULL}', '{1,-2}', '{3}', '{1.5,NaN}', '{a,\"b c\",NULL}', '{1.25}', '{2020-01-02 03:04:05}', \
             ROW(1, 'x'), ARRAY[ROW(1)], ARRAY[ARRAY[1], ARRAY[2, 3]])",
        )
        .await;
    let client = session.client();
    let row = client.query_one("SELECT b, i, l, d, t, ts FROM t WHERE i = $1", &[&vec![1i32, -2]]).await.expect("a row");
    assert_eq!(
        row.columns().iter().map(|column| column.type_().clone()).collect::<Vec<_>>(),
        [Type::BOOL_ARRAY, Type::INT4_ARRAY, Type::INT8_ARRAY, Type::FLOAT8_ARRAY, Type::TEXT_ARRAY, Type::TIMESTAMP_ARRAY]
    );
    assert_eq!(row.get::<_, Vec<Option<bool>>>(0), [Some(true), None]);
    assert_eq!(row.get::<_, Vec<i32>>(1), [1, -2]);
    assert_eq!(row.get::<_, Vec<i64>>(2), [3]);
    assert!(row.get::<_, Vec<f64>>(3)[1].is_nan());
    assert_eq!(row.get::<_, Vec<Option<String>>>(4), [Some("a".to_string()), Some("b c".to_string()), None]);
    client
        .execute("INSERT INTO t (id, t, l) VALUES ($1, $2, $3)", &[&2i32, &vec![Some("p,q"), None], &Vec::<i64>::new()])
        .await
        .expect("inserted");
    assert_eq!(rows(&session, "SELECT t, l FROM t WHERE id = 2").await, [["{\"p,q\",NULL}", "{}"]]);
    assert_eq!(rows(&session, "SELECT n, r, rs, g FROM t WHERE id = 1").await, [["{1.25}", "(1,x)", "{(1)}", "{{1},{2,3}}"]]);
    // As psql's \d asks.
    let types = "SELECT a.attnum, pg_catalog.format_type(a.atttypid, a.atttypmod) FROM pg_catalog.pg_attribute a \
                 WHERE a.attrelid = 't'::regclass AND a.attnum > 0 ORDER BY a.attnum";
    let shown: Vec<String> = session.text_rows(types).await.expect("types").into_iter().filter_map(|row| row.into_iter().nth(1)?).collect();
    assert_eq!(
        shown,
        [
            "integer",
            "boolean[]",
            "integer[]",
            "bigint[]",
            "double precision[]",
            "text[]",
            "numeric(8,2)[]",
            "timestamp(3) without time zone[]",
            "record",
            "record[]",
            "integer[]"
        ]
    );
    let described: Vec<String> =
        session.text_rows("DESCRIBE t").await.expect("columns").into_iter().filter_map(|row| row.into_iter().nth(1)?).collect();
    assert_eq!(described[8..], ["row<a integer, b text>", "row<a integer>[]", "integer[][]"]);
}
