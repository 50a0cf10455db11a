//! Files in and out: what is read, what is written, and that both are exactly once through kill -9.
//!
//! Two readers of a sink's folder are played. One takes every file that is not hidden, whenever it likes ([`lines`]), and must never see a row twice, a torn
//! line, or anything that no complete checkpoint holds. The other goes by the records ([`RecordReader`]), and must see whole checkpoints at every look.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::run;
use crate::server::{PATIENCE, Server, Session, describe, settings, sql_state};

mod lost;
mod odd_input;
mod read_back;

/// A folder for a test's files, apart from the server's own.
pub fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

pub fn write(path: &Path, content: &str) {
    std::fs::write(path, content).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// The files that a reader of `root` sees, in the order of their names.
pub fn visible(root: &Path) -> Vec<PathBuf> {
    fn visit(folder: &Path, files: &mut Vec<PathBuf>) {
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            if entry.file_name().to_string_lossy().starts_with(['.', '_']) {
                continue;
            }
            if path.is_dir() {
                visit(&path, files);
            } else {
                files.push(path);
            }
        }
    }
    let mut files = Vec::new();
    visit(root, &mut files);
    files.sort_by_key(|path| path.file_name().map(std::ffi::OsStr::to_os_string));
    files
}

/// The hidden files below `root`.
pub fn hidden(root: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))).collect()
}

/// The lines of all files that a reader sees. Each file ends with a whole line.
///
/// A folder that is listed while files come can show a later one without an earlier one, so it is listed until nothing comes.
pub fn lines(root: &Path) -> Vec<String> {
    let mut files = visible(root);
    loop {
        let again = visible(root);
        if again == files {
            break;
        }
        files = again;
    }
    let mut lines = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(text.is_empty() || text.ends_with('\n'), "{} ends within a line", path.display());
        lines.extend(text.lines().map(str::to_string));
    }
    lines
}

/// The folder of a sink's records.
pub const RECORDS: &str = "_weir_commits";

/// A reader that goes by the records.
struct RecordReader {
    root: PathBuf,
    /// The records that it has taken in.
    known: BTreeSet<PathBuf>,
}

impl RecordReader {
    fn new(root: PathBuf) -> RecordReader {
        RecordReader { root, known: BTreeSet::new() }
    }

    /// The lines that came since the last look: with those before them, whole checkpoints. What was seen once must stay.
    fn look(&mut self) -> Vec<String> {
        let list = || -> BTreeSet<PathBuf> {
            let entries = std::fs::read_dir(self.root.join(RECORDS)).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect()
        };
        // A listing may miss what comes while it goes on.
        let mut found = list();
        loop {
            let again = list();
            if again == found {
                break;
            }
            found = again;
        }
        let gone: Vec<&PathBuf> = self.known.difference(&found).collect();
        assert!(gone.is_empty(), "records that were there are gone: {gone:?}");
        let mut lines = Vec::new();
        for record in found.difference(&self.known) {
            for file in named(&self.root, record) {
                let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{} names {}: {e}", record.display(), file.display()));
                assert!(text.ends_with('\n'), "{} ends within a line", file.display());
                lines.extend(text.lines().map(str::to_string));
            }
        }
        self.known = found;
        lines
    }
}

/// The files that a record of a sink in `root` names.
fn named(root: &Path, record: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(record).unwrap_or_else(|e| panic!("{}: {e}", record.display()));
    let record: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let files = record["files"].as_array().expect("a record has files");
    files.iter().map(|file| root.join(file.as_str().expect("a name"))).collect()
}

/// Looks at what records name in `root` all the time, in a thread of its own, and gives `take` what is new.
pub struct Looking {
    stop: Arc<AtomicBool>,
    /// How many looks have ended.
    looks: Arc<AtomicUsize>,
    thread: Option<std::thread::JoinHandle<usize>>,
}

impl Looking {
    pub fn at(root: PathBuf, mut take: impl FnMut(Vec<String>) + Send + 'static) -> Looking {
        let (stop, looks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, looked) = (stop.clone(), looks.clone());
        let thread = std::thread::spawn(move || {
            let mut reader = RecordReader::new(root);
            let mut news = 0;
            loop {
                let is_last = stopped.load(Ordering::SeqCst);
                let lines = reader.look();
                if !lines.is_empty() {
                    news += 1;
                    take(lines);
                }
                looked.fetch_add(1, Ordering::SeqCst);
                if is_last {
                    return news;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Looking { stop, looks, thread: Some(thread) }
    }

    /// Waits for a look that has begun by now, so that what is there is seen before there is more, however slow the thread is. What made a look fail,
    /// [`Looking::end`] says.
    pub fn catch_up(&self) {
        let (before, deadline) = (self.looks.load(Ordering::SeqCst), Instant::now() + PATIENCE);
        // One may have been under way.
        while self.looks.load(Ordering::SeqCst) < before + 2 && self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            assert!(Instant::now() < deadline, "nobody looks");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A last look; returns how many looks showed something new. Panics where a look did.
    pub fn end(mut self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        match self.thread.take().map(std::thread::JoinHandle::join) {
            Some(Ok(news)) => news,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => 0,
        }
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

pub async fn rows(session: &Session, sql: &str) -> Vec<Vec<String>> {
    let rows = session.text_rows(sql).await.unwrap_or_else(|e| panic!("{sql}\n{}", describe(&e)));
    let mut rows: Vec<Vec<String>> =
        rows.into_iter().map(|row| row.into_iter().map(|value| value.unwrap_or_else(|| "NULL".into())).collect()).collect();
    rows.sort();
    rows
}

pub async fn refusal(session: &Session, sql: &str) -> (String, String) {
    let error = session.execute(sql).await.expect_err(sql);
    (sql_state(&error).unwrap_or_default(), describe(&error))
}

/// Waits until `query` gives `expected`, its rows sorted.
pub async fn wait_for(session: &Session, query: &str, expected: &[&[&str]]) {
    let expected: Vec<Vec<String>> = expected.iter().map(|row| row.iter().map(|value| (*value).to_string()).collect()).collect();
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

/// What jobs that write are in.
const WRITERS_STATES: &str = "SELECT DISTINCT state FROM weir_jobs WHERE kind <> 'materialized view'";

/// Waits until the job that writes has finished, its last checkpoint committed.
pub async fn wait_finished(session: &Session) {
    wait_for(session, WRITERS_STATES, &[&["finished"]]).await;
}

pub fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()).expect("memory takes bytes")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn formats_compressions_and_paths() {
    let data = folder();
    let path = |name: &str| data.path().join(name);
    std::fs::create_dir_all(path("logs/old")).expect("a folder");
    write(&path("logs/a.csv"), "n,t,at\r\n1,\"x\ny\",2020-01-01 00:00:00.5\r\n,\"\",");
    std::fs::write(path("logs/old/b.csv.gz"), gzip("at,t,n\n2021-02-03T04:05:06Z,plain,2\n")).expect("written");
    std::fs::write(path("logs/c.csv.zst"), zstd::encode_all("n,t,at\n3,z,\n".as_bytes(), 0).expect("compressed")).expect("written");
    write(&path("logs/.hidden.csv"), "n,t,at\n9,9,9\n");
    let server = Server::start(&settings(&[("parallelism", "3")]));
    let session = server.connect().await;
    let table = |name: &str, place: &str, more: &str| {
        let place = path(place).display().to_string();
        format!("CREATE TABLE {name} (n BIGINT, t TEXT, at TIMESTAMP(3)) WITH (connector = 'file', path = '{place}'{more})")
    };
    let expected =
        [["1", "x\ny", "2020-01-01 00:00:00.5"], ["2", "plain", "2021-02-03 04:05:06"], ["3", "z", "NULL"], ["NULL", "", "NULL"]]
            .map(|row| row.map(str::to_string).to_vec());
    session.must(&table("logs", "logs", ", format = 'csv', header = true")).await;
    assert_eq!(rows(&session, "SELECT n, t, at FROM logs").await, expected);
    session.must(&table("part", "logs/**/*.csv.*", ", format = 'csv', 'csv.header' = 'true'")).await;
    assert_eq!(rows(&session, "SELECT n FROM part").await, [["2"], ["3"]]);
    session.must("CREATE MATERIALIZED VIEW v AS SELECT n, t, at FROM logs").await;
    wait_for(&session, "SELECT count(*) FROM v", &[&["4"]]).await;
    assert_eq!(rows(&session, "SELECT n, t, at FROM v").await, expected);

    // Each format written and read back; a table of Parquet files knows its columns.
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
    let place = path("out_parquet").display().to_string();
    session.must(&format!("CREATE TABLE known WITH ('Connector' = 'file', path = '{place}', format = 'parquet')")).await;
    assert_eq!(rows(&session, "SELECT at, n FROM known WHERE t = 'plain'").await, [["2021-02-03 04:05:06", "2"]]);

    // Partitions.
    let place = path("by_t").display().to_string();
    session
        .must(&format!(
            "CREATE TABLE by_t (n BIGINT, t TEXT) WITH (connector = 'file', path = '{place}', format = 'csv', partition_by = 't')"
        ))
        .await;
    session.must("INSERT INTO by_t SELECT n, t FROM logs").await;
    let folders: Vec<String> = visible(Path::new(&place))
        .iter()
        .filter_map(|path| path.parent()?.file_name().map(|name| name.to_string_lossy().into_owned()))
        .collect();
    for folder in ["t=", "t=plain", "t=x%0Ay", "t=z"] {
        assert!(folders.iter().any(|found| found == folder), "{folder} is not in {folders:?}");
    }
    assert_eq!(rows(&session, "SELECT n, t FROM by_t").await.len(), 4);

    // What can't be.
    let plain = |name: &str, place: &str, more: &str| table(name, place, &format!(", format = 'csv'{more}"));
    assert_eq!(refusal(&session, &plain("e1", "logs", ", colour = 'red'")).await.0, "22023");
    // A sink reads nothing; a table may be for both.
    for option in ["watch = '1 s'", "bad_records = 'skip'", "'csv.ignore-parse-errors' = 'true'"] {
        let sink = format!("CREATE SINK e1 WITH (connector = 'file', path = '/tmp/x', format = 'csv', {option}) AS SELECT n FROM logs");
        let (code, text) = refusal(&session, &sink).await;
        assert!(code == "22023" && text.contains("is about reading") && text.contains("roll_size"), "{text}");
    }
    let place = path("for_both").display().to_string();
    session
        .must(&format!(
            "CREATE TABLE for_both (n BIGINT) WITH (connector = 'file', path = '{place}', format = 'csv', watch = '1 s', bad_records = 'skip')"
        ))
        .await;
    session.must("INSERT INTO for_both SELECT n FROM logs").await;
    assert_eq!(lines(Path::new(&place)).len(), 4);
    session.must(&plain("e2", "nowhere.csv", "")).await;
    assert_eq!(refusal(&session, "SELECT * FROM e2").await.0, "58P01");
    assert_eq!(refusal(&session, "CREATE MATERIALIZED VIEW e3 AS SELECT n FROM e2").await.0, "58P01");
    let nested = "CREATE TABLE e4 (r ROW<a INT>) WITH (connector = 'file', path = '/tmp/x', format = 'csv')";
    assert_eq!(refusal(&session, nested).await.0, "0A000");
    let updated =
        "CREATE SINK e5 WITH (connector = 'file', path = '/tmp/x', format = 'json') AS SELECT t, count(*) AS n FROM logs GROUP BY t";
    let (code, text) = refusal(&session, updated).await;
    assert!(code == "0A000" && text.contains("debezium-json"), "{text}");
}

/// Writes `count` files of `each` lines `number,number % keys`, numbered on from 0. Returns the number of lines.
pub fn numbered(root: &Path, count: usize, each: usize, keys: usize) -> usize {
    for file in 0..count {
        let text: String = (file * each..(file + 1) * each).map(|number| format!("{number},{}\n", number % keys)).collect();
        write(&root.join(format!("part-{file:04}.csv")), &text);
    }
    count * each
}

/// How many checkpoints of sinks `root` shows.
pub fn shown_checkpoints(root: &Path) -> usize {
    let records = std::fs::read_dir(root.join(RECORDS)).into_iter().flatten().flatten();
    records.filter(|record| record.path().extension().is_some_and(|extension| extension == "json")).count()
}

/// Kills the server again and again while its sink writes to `root`; `look` sees the folder between the kills. Returns when the sink has finished.
pub async fn kill_until_finished(server: &mut Server, root: &Path, test: &str, mut look: impl FnMut(&Session)) -> usize {
    let mut random = run::random(test);
    let mut kills = 0;
    loop {
        let session = server.connect().await;
        look(&session);
        let finished = rows(&session, "SELECT state FROM weir_jobs WHERE kind <> 'materialized view'").await;
        if finished.iter().all(|row| row[0] == "finished") {
            return kills;
        }
        if kills == run::rounds(10, 60) {
            // As long as there is always more to see.
            let (mut shown, mut deadline) = (0, Instant::now() + PATIENCE);
            while rows(&session, WRITERS_STATES).await != [["finished"]] {
                let now = shown_checkpoints(root);
                if now != shown {
                    (shown, deadline) = (now, Instant::now() + PATIENCE);
                }
                assert!(Instant::now() < deadline, "{test}: the sink does not finish");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            look(&session);
            return kills;
        }
        // Anywhere at all, and in turn soon after something has been shown, however slow the machine is.
        if kills % 2 == 0 {
            tokio::time::sleep(Duration::from_millis(40 + random.below(200))).await;
        } else {
            let (before, deadline) = (shown_checkpoints(root), Instant::now() + Duration::from_secs(10));
            while shown_checkpoints(root) == before && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            tokio::time::sleep(Duration::from_millis(random.below(20))).await;
        }
        server.kill();
        kills += 1;
        let parallelism = [2, 3, 1, 4][kills % 4];
        server.set("parallelism", &parallelism.to_string());
        server.restart();
    }
}

/// Each number goes to both sides, with opposite signs: in whole checkpoints, what is written adds up to nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_through_kills_shows_whole_checkpoints_and_each_row_once() {
    let (input, output) = (folder(), folder());
    let total = numbered(input.path(), 30, run::rounds(40_000, 200_000), 7);
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "50 ms"), ("barrier_interval", "20 ms")]));
    let session = server.connect().await;
    let (from, to) = (input.path().display().to_string(), output.path().display().to_string());
    session.must(&format!("CREATE TABLE numbers (n BIGINT, k BIGINT) WITH (connector = 'file', path = '{from}', format = 'csv')")).await;
    session
        .must(&format!(
            "CREATE SINK copy WITH (connector = 'file', path = '{to}', format = 'csv', roll_size = '64 kB', partition_by = 'side')
             AS SELECT n, k, 'left' AS side FROM numbers UNION ALL SELECT -n AS n, k, 'right' AS side FROM numbers"
        ))
        .await;
    // The number of a line, and its side.
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
    let looking = Looking::at(output.path().to_path_buf(), move |lines| {
        for line in &lines {
            let (number, side) = parse(line);
            sum += number;
            let seen = &mut seen[number.unsigned_abs() as usize][side];
            assert!(!std::mem::replace(seen, true), "row {line} is there twice");
        }
        assert_eq!(sum, 0, "a part of a checkpoint");
        assert!(seen.iter().all(|[left, right]| left == right), "a part of a checkpoint");
    });
    let mut seen_partly = 0;
    let check = |root: &Path| {
        let mut seen = vec![[false; 2]; total];
        for line in lines(root) {
            let (number, side) = parse(&line);
            assert!(!std::mem::replace(&mut seen[number.unsigned_abs() as usize][side], true), "row {line} is there twice");
        }
        seen.iter().flatten().filter(|seen| **seen).count()
    };
    let kills = kill_until_finished(&mut server, output.path(), "file to file", |_| {
        looking.catch_up();
        let count = check(output.path());
        seen_partly += usize::from(count > 0 && count < 2 * total);
    })
    .await;
    assert_eq!(check(output.path()), 2 * total, "rows are missing");
    for folder in ["", "side=left", "side=right", RECORDS] {
        let mut left = hidden(&output.path().join(folder));
        // The note of what was carried out is there to stay.
        left.retain(|path| path.extension().is_none_or(|extension| extension != "carried-out"));
        assert_eq!(left, Vec::<PathBuf>::new(), "files were left behind");
    }
    let looks = looking.end();
    run::say(&format!("file to file: {kills} kills, {seen_partly} looks at a part of the {total} rows, {looks} by the records"));
    assert!(
        kills >= 2 && seen_partly >= 1 && looks >= 2,
        "the copy was too quick to be met: {kills} kills, {seen_partly} and {looks} looks"
    );

    // As a table, the folder shows the same, and none of the records.
    let session = server.connect().await;
    session
        .must(&format!("CREATE TABLE copied (n BIGINT, k BIGINT, side TEXT) WITH (connector = 'file', path = '{to}', format = 'csv')"))
        .await;
    let expected =
        [[total.to_string(), (total * (total - 1) / 2).to_string()], [total.to_string(), format!("-{}", total * (total - 1) / 2)]];
    let mut expected: Vec<Vec<String>> = expected.map(|row| row.to_vec()).to_vec();
    expected.sort();
    assert_eq!(rows(&session, "SELECT count(*), sum(n) FROM copied GROUP BY side").await, expected);
}

/// Changes by row: how often it is there.
type Changes = BTreeMap<String, i64>;

/// Applies changes; a row that is taken away must be there in the end.
fn apply(rows: &mut Changes, changes: impl Iterator<Item = (bool, String)>) {
    for (add, row) in changes {
        *rows.entry(row).or_default() += if add { 1 } else { -1 };
    }
    rows.retain(|_, count| *count != 0);
}

/// Each key has one row, and all sums together are nothing: so it is after whole checkpoints.
fn assert_balanced(rows: &Changes) {
    assert!(rows.values().all(|count| *count == 1), "a row is there twice, or was taken away before: {rows:?}");
    let keys: BTreeSet<&str> = rows.keys().filter_map(|row| row.split(',').next()).collect();
    assert_eq!(keys.len(), rows.len(), "a key has two rows: {rows:?}");
    let sum: i64 = rows.keys().map(|row| row.rsplit(',').next().and_then(|sum| sum.parse::<i64>().ok()).expect("a sum")).sum();
    assert_eq!(sum, 0, "a part of a checkpoint: {rows:?}");
}

/// The change that a line in Debezium's form is, of a row `k,n,s`.
fn debezium_change(line: &str) -> (bool, String) {
    let change: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
    let add = change["op"] == "c";
    let row = &change[if add { "after" } else { "before" }];
    (add, format!("{},{},{}", row["k"], row["n"], row["s"]))
}

/// The change that a line with a row kind in front is.
fn kind_change(line: &str) -> (bool, String) {
    let (kind, row) = line.split_once(',').unwrap_or_else(|| panic!("torn line {line}"));
    (kind.starts_with('+'), row.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_through_kills_are_whole_checkpoints_and_add_up_to_the_batch_answer() {
    let (input, output) = (folder(), folder());
    let total = numbered(input.path(), 20, run::rounds(50_000, 100_000), 97);
    let mut server = Server::start(&settings(&[("parallelism", "3"), ("checkpoint_interval", "50 ms"), ("barrier_interval", "20 ms")]));
    let session = server.connect().await;
    let from = input.path().display().to_string();
    let to = |name: &str| output.path().join(name);
    let query = "SELECT k, count(*) AS n, sum(n) AS s FROM (SELECT k, n FROM numbers UNION ALL SELECT -1 - k AS k, -n AS n FROM numbers) AS both_sides GROUP BY k";
    session.must(&format!("CREATE TABLE numbers (n BIGINT, k BIGINT) WITH (connector = 'file', path = '{from}', format = 'csv')")).await;
    for (name, options) in [("debezium", "format = 'debezium-json'"), ("kinds", "format = 'csv', row_kind = 'kind'")] {
        let path = to(name).display().to_string();
        session.must(&format!("CREATE SINK {name} WITH (connector = 'file', path = '{path}', {options}) AS {query}")).await;
    }
    let look = |change: fn(&str) -> (bool, String)| {
        let mut rows = Changes::new();
        move |lines: Vec<String>| {
            apply(&mut rows, lines.iter().map(|line| change(line)));
            assert_balanced(&rows);
        }
    };
    let looking = [Looking::at(to("debezium"), look(debezium_change)), Looking::at(to("kinds"), look(kind_change))];
    let content = |root: &Path| {
        let mut rows = Changes::new();
        let changes = lines(root);
        if root.ends_with("kinds") {
            apply(&mut rows, changes.iter().map(|line| kind_change(line)));
        } else {
            apply(&mut rows, changes.iter().map(|line| debezium_change(line)));
        }
        rows
    };
    let kills = kill_until_finished(&mut server, &to("kinds"), "group by to files", |_| looking.iter().for_each(Looking::catch_up)).await;
    let looks: Vec<usize> = looking.into_iter().map(Looking::end).collect();
    let session = server.connect().await;
    wait_finished(&session).await;
    let answer = rows(&session, query).await;
    assert_eq!(answer.len(), 2 * 97);
    assert_eq!(answer.iter().map(|row| row[1].parse::<usize>().expect("a count")).sum::<usize>(), 2 * total);
    let expected: Changes = answer.iter().map(|row| (row.join(","), 1)).collect();
    assert_eq!(content(&to("debezium")), expected);
    assert_eq!(content(&to("kinds")), expected);
    run::say(&format!("group by to files: {kills} kills, {looks:?} looks by the records"));
    assert!(kills >= 2 && looks.iter().all(|looks| *looks >= 2), "{kills} kills, {looks:?} looks");

    // Read back as a changelog, both are the result again.
    for (name, options) in [("debezium", "format = 'debezium-json'"), ("kinds", "format = 'csv', row_kind = 'kind'")] {
        let path = to(name).display().to_string();
        session
            .must(&format!(
                "CREATE TABLE {name}_changes (k BIGINT, n BIGINT, s NUMERIC(38, 0)) WITH (connector = 'file', path = '{path}', {options})"
            ))
            .await;
        session.must(&format!("CREATE MATERIALIZED VIEW {name}_again AS SELECT k, n, s FROM {name}_changes")).await;
        let deadline = Instant::now() + PATIENCE;
        while rows(&session, &format!("SELECT k, n, s FROM {name}_again")).await != answer {
            assert!(Instant::now() < deadline, "{name} read back is not what was written");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(refusal(&session, &format!("SELECT * FROM {name}_changes")).await.0, "0A000");
    }
}

/// The rows that records name in the changes of `root`.
fn recorded(root: &Path) -> Changes {
    let mut rows = Changes::new();
    apply(&mut rows, RecordReader::new(root.to_path_buf()).look().iter().map(|line| kind_change(line)));
    rows
}

fn changes(rows: &[&str]) -> Changes {
    rows.iter().map(|row| ((*row).to_string(), 1)).collect()
}

/// Makes checkpoints until records in `root` name `expected`: a new job has nothing to add to one before it has read its inputs.
async fn checkpoint_until_recorded(session: &Session, root: &Path, expected: &[&str]) {
    let expected = changes(expected);
    let deadline = Instant::now() + PATIENCE;
    loop {
        session.must("CHECKPOINT").await;
        if recorded(root) == expected {
            return;
        }
        assert!(Instant::now() < deadline, "expected {expected:?}, records name {:?}", recorded(root));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_checkpoint_takes_back_what_came_after_it() {
    let (input, output) = (folder(), folder());
    let lines_of = |from: usize, to: usize| (from..to).map(|number| format!("{number},{}\n", number % 2)).collect::<String>();
    write(&input.path().join("a.csv"), &lines_of(0, 10));
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "1 h"), ("checkpoints_retained", "30")]));
    let session = server.connect().await;
    let (from, to) = (input.path().display().to_string(), output.path().display().to_string());
    session
        .must(&format!(
            "CREATE TABLE numbers (n BIGINT, k BIGINT) WITH (connector = 'file', path = '{from}', format = 'csv', watch = '20 ms')"
        ))
        .await;
    session.must("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS c FROM numbers").await;
    session
        .must(&format!(
            "CREATE SINK sums WITH (connector = 'file', path = '{to}', format = 'csv', row_kind = 'kind')
             AS SELECT k, count(*) AS n, sum(n) AS s FROM numbers GROUP BY k"
        ))
        .await;
    let mut numbers = Vec::new();
    let results: [[&str; 2]; 3] = [["0,5,20", "1,5,25"], ["0,10,90", "1,10,100"], ["0,15,210", "1,15,225"]];
    for (round, expected) in results.iter().enumerate() {
        if round > 0 {
            write(&input.path().join(format!(".{round}")), &lines_of(round * 10, round * 10 + 10));
            std::fs::rename(input.path().join(format!(".{round}")), input.path().join(format!("{round}.csv"))).expect("renamed");
        }
        // The sink reads on its own: what the view has says nothing of it.
        checkpoint_until_recorded(&session, output.path(), expected).await;
        numbers.push(session.must_count("SELECT max(checkpoint) FROM weir_checkpoints WHERE state = 'completed'").await as u64);
    }
    let before = visible(output.path());
    server.kill();
    // Started from the second one and killed at once: nothing may have been lost, for a start without a word goes on from the third.
    server.set("parallelism", "3");
    server.try_restart_from(numbers[1]).unwrap_or_else(|report| panic!("{report}"));
    let session = server.connect().await;
    wait_for(&session, "SELECT state FROM weir_jobs WHERE name = 'sums'", &[&["running"]]).await;
    server.kill();
    assert_eq!(visible(output.path()), before);
    server.restart();
    let session = server.connect().await;
    wait_for(&session, "SELECT c FROM v", &[&["30"]]).await;
    session.must("CHECKPOINT").await;
    assert_eq!(recorded(output.path()), changes(&results[2]));
    assert_eq!(visible(output.path()), before);
    server.kill();

    server.set("parallelism", "1");
    server.try_restart_from(numbers[1]).unwrap_or_else(|report| panic!("{report}"));
    let session = server.connect().await;
    let deadline = Instant::now() + PATIENCE;
    let expected = changes(&results[2]);
    loop {
        session.must("CHECKPOINT").await;
        let now = visible(output.path());
        // The third checkpoint's files are gone, and others have taken their place.
        if now != before && recorded(output.path()) == expected {
            break;
        }
        assert!(Instant::now() < deadline, "records name {:?}", recorded(output.path()));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut rows = Changes::new();
    apply(&mut rows, lines(output.path()).iter().map(|line| kind_change(line)));
    assert_eq!(rows, expected, "who takes every visible file sees the same");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_over_a_view_that_is_built_anew_writes_what_differs_and_a_dropped_one_leaves_nothing_hidden() {
    let output = folder();
    let server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "1 h"), ("restart_delay", "1 ms")]));
    let session = server.connect().await;
    let to = output.path().display().to_string();
    session.must("CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT)").await;
    session.must("INSERT INTO t VALUES (1, 10), (2, 5)").await;
    session.must("CREATE MATERIALIZED VIEW q AS SELECT id, 100 / v AS q FROM t").await;
    session
        .must(&format!("CREATE SINK s WITH (connector = 'file', path = '{to}', format = 'csv', row_kind = 'kind') AS SELECT id, q FROM q"))
        .await;
    checkpoint_until_recorded(&session, output.path(), &["1,10", "2,20"]).await;
    let written = visible(output.path());
    session.must("INSERT INTO t VALUES (3, 0)").await;
    assert_eq!(refusal(&session, "FLUSH").await.0, "22012");
    wait_for(&session, "SELECT name FROM weir_jobs WHERE state = 'failed'", &[&["q"], &["s"]]).await;
    session.must("DELETE FROM t WHERE id <> 2").await;
    session.must("INSERT INTO t VALUES (4, 4)").await;
    session.must("ALTER JOB q RESUME").await;
    wait_for(&session, "SELECT DISTINCT state FROM weir_jobs", &[&["running"]]).await;
    checkpoint_until_recorded(&session, output.path(), &["2,20", "4,25"]).await;
    let still = visible(output.path());
    assert!(written.iter().all(|file| still.contains(file)), "{written:?} were taken back");
    assert_eq!(lines(output.path()).len(), 4, "a row that stays was written again");
    let mut rows = Changes::new();
    apply(&mut rows, lines(output.path()).iter().map(|line| kind_change(line)));
    assert_eq!(rows, recorded(output.path()), "who takes every visible file sees the same");

    // Rows that no checkpoint has yet.
    session.must("INSERT INTO t VALUES (5, 2)").await;
    session.must("FLUSH").await;
    let deadline = Instant::now() + PATIENCE;
    while hidden(output.path()).is_empty() {
        assert!(Instant::now() < deadline, "no file is open");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let before = visible(output.path());
    session.must("DROP SINK s").await;
    assert_eq!(hidden(output.path()), Vec::<PathBuf>::new());
    assert_eq!(visible(output.path()), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_records_fail_are_skipped_or_kept_once_through_kills() {
    let data = folder();
    // Every thousandth line is bad; one has bytes that are no text.
    let mut text = Vec::new();
    for number in 0..200_000 {
        match number % 1000 {
            500 if number == 500 => text.extend_from_slice(b"x\xFF,\n"),
            500 => text.extend_from_slice(format!("no number {number},\"a \"\"b\"\"\"\n").as_bytes()),
            _ => text.extend_from_slice(format!("{number},\n").as_bytes()),
        }
    }
    let path = data.path().join("in.csv");
    std::fs::write(&path, &text).expect("written");
    let mut server = Server::start(&settings(&[("parallelism", "3"), ("checkpoint_interval", "50 ms"), ("restart_delay", "1 ms")]));
    let session = server.connect().await;
    for policy in ["fail", "skip", "dead_letter"] {
        let path = path.display();
        session
            .must(&format!(
                "CREATE TABLE {policy}_t (n BIGINT, t TEXT) WITH (connector = 'file', path = '{path}', format = 'csv', bad_records = '{policy}')"
            ))
            .await;
    }
    // A view over a connector begins with nothing: it may be there before its first record is read.
    let error = match session.execute("CREATE MATERIALIZED VIEW fails AS SELECT count(n) AS c FROM fail_t").await {
        Err(error) => error,
        Ok(_) => {
            wait_for(&session, "SELECT state FROM weir_jobs WHERE name = 'fails'", &[&["failed"]]).await;
            let error = session.execute("SELECT * FROM fails").await.expect_err("a bad record fails it");
            session.must("DROP MATERIALIZED VIEW fails").await;
            error
        }
    };
    assert!(matches!(sql_state(&error).as_deref(), Some("22P02" | "22021")), "{}", describe(&error));
    let error = describe(&error);
    assert!(error.contains("in.csv") && error.contains("byte "), "{error}");
    for policy in ["skip", "dead_letter"] {
        session.must(&format!("CREATE MATERIALIZED VIEW {policy}_v AS SELECT count(n) AS c FROM {policy}_t")).await;
    }
    session.must("CREATE MATERIALIZED VIEW second_reader AS SELECT max(n) AS m FROM dead_letter_t").await;
    let mut random = run::random("bad records");
    for kill in 0..run::rounds(4, 20) {
        tokio::time::sleep(Duration::from_millis(random.below(300))).await;
        server.kill();
        server.set("parallelism", ["1", "4", "2"][kill % 3]);
        server.restart();
    }
    let session = server.connect().await;
    for policy in ["skip", "dead_letter"] {
        wait_for(&session, &format!("SELECT c FROM {policy}_v"), &[&["199800"]]).await;
        let counted = format!("SELECT sum(bad_records) FROM weir_sources WHERE job = '{policy}_v'");
        wait_for(&session, &counted, &[&["200"]]).await;
    }
    session.must("CHECKPOINT").await;
    let summary = "SELECT count(*), count(DISTINCT position), min(encoding), max(encoding) FROM dead_letter_t$bad";
    assert_eq!(rows(&session, summary).await, [["200", "200", "hex", "text"]]);
    let kept = rows(&session, "SELECT file, position, bytes FROM dead_letter_t$bad WHERE encoding = 'text'").await;
    for row in &kept {
        assert_eq!(row[0], path.display().to_string());
        let position: usize = row[1].parse().expect("a position");
        assert_eq!(row[2].as_bytes(), &text[position..position + row[2].len()]);
    }
    assert_eq!(rows(&session, "SELECT bytes FROM dead_letter_t$bad WHERE encoding = 'hex'").await, [["78ff2c"]]);
    assert_eq!(refusal(&session, "SELECT * FROM nobody$bad").await.0, "42P01");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watched_folder_gives_each_new_file_once() {
    let data = folder();
    let write_file = |number: usize| {
        let text: String = (0..100).map(|line| format!("{{\"n\":{}}}\n", number * 100 + line)).collect();
        write(&data.path().join(format!(".{number}.tmp")), &text);
        std::fs::rename(data.path().join(format!(".{number}.tmp")), data.path().join(format!("{number}.json"))).expect("renamed");
    };
    write_file(0);
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "100 ms")]));
    let session = server.connect().await;
    let path = data.path().display();
    session
        .must(&format!("CREATE TABLE t (n BIGINT) WITH (connector = 'file', path = '{path}/*.json', format = 'json', watch = '50 ms')"))
        .await;
    session.must("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS c, count(DISTINCT n) AS d FROM t").await;
    wait_for(&session, "SELECT c, d FROM v", &[&["100", "100"]]).await;
    write_file(1);
    wait_for(&session, "SELECT c, d FROM v", &[&["200", "200"]]).await;
    session.must("CHECKPOINT").await;
    server.kill();
    write_file(2);
    // What was read may go.
    std::fs::remove_file(data.path().join("0.json")).expect("removed");
    server.set("parallelism", "3");
    server.restart();
    let session = server.connect().await;
    wait_for(&session, "SELECT c, d FROM v", &[&["300", "300"]]).await;
    assert_eq!(refusal(&session, "SELECT * FROM t").await.0, "0A000");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_says_how_many_subtasks_its_jobs_have_whatever_the_start_was_told() {
    let folder = folder();
    let input = folder.path().join("in");
    std::fs::create_dir(&input).expect("a folder");
    let total = numbered(&input, 6, 2000, 7);
    let mut server = Server::start(&settings(&[("parallelism", "3"), ("checkpoint_interval", "0")]));
    let session = server.connect().await;
    let table = |name: &str| {
        let place = folder.path().join(name).display().to_string();
        format!("CREATE TABLE {name} (n BIGINT, k BIGINT) WITH (connector = 'file', path = '{place}', format = 'csv')")
    };
    session.must(&table("in").replace("TABLE in", "TABLE \"in\"")).await;
    session.must(&table("single")).await;
    session.must("SET dml_sync = on; SET parallelism = 1").await;
    session.must("INSERT INTO single SELECT n, k FROM \"in\"").await;
    // One subtask, one checkpoint, one file.
    let out = folder.path().join("single");
    assert_eq!((visible(&out).len(), lines(&out).len()), (1, total));
    session.must("CREATE MATERIALIZED VIEW one AS SELECT k, count(*) AS c FROM \"in\" GROUP BY k").await;
    session.must("RESET parallelism; CREATE MATERIALIZED VIEW more AS SELECT k, count(*) AS c FROM \"in\" GROUP BY k").await;
    let subtasks = "SELECT name, parallelism FROM weir_jobs WHERE name IN ('one', 'more')";
    assert_eq!(rows(&session, subtasks).await, [["more", "3"], ["one", "1"]]);
    // A start that is told says it for those that are there too.
    server.kill();
    server.set("parallelism", "2");
    server.restart();
    let session = server.connect().await;
    assert_eq!(rows(&session, subtasks).await, [["more", "2"], ["one", "2"]]);
}

#[test]
fn rows_are_made_and_printed() {
    let folder = folder();
    let script = folder.path().join("script.sql");
    write(
        &script,
        "CREATE TABLE made (id BIGINT, v INT) WITH (connector = 'datagen', 'rows-per-second' = '1000', 'fields.id.kind' = 'sequence',
           'fields.id.start' = '1', 'fields.id.end' = '20', 'fields.v.min' = '5', 'fields.v.max' = '5');
         CREATE TABLE printed (v INT, n BIGINT) WITH (connector = 'print', 'print-identifier' = 'out');
         INSERT INTO printed SELECT v, count(*) FROM made GROUP BY v;
         SELECT sum(id) + 7000 AS total FROM made;",
    );
    let output = crate::server::weir().arg("run").arg(&script).arg("--set").arg("parallelism=1").output().expect("weir runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("7210"), "{text}");
    let last = text.lines().rev().find(|line| line.starts_with("out> ")).unwrap_or_else(|| panic!("nothing was printed: {text}"));
    assert!(last == "out> +U[5, 20]" || last == "out> +I[5, 20]", "{text}");
}

#[test]
fn an_interval_that_checkpoints_outrun_is_met_with_a_notice() {
    let folder = folder();
    let script = folder.path().join("script.sql");
    let sink = |name: &str, interval: &str| {
        let place = folder.path().join(name).display().to_string();
        format!(
            "CREATE SINK {name} WITH (connector = 'file', path = '{place}', format = 'csv', roll_interval = '{interval}') AS SELECT id FROM made;"
        )
    };
    let made = "CREATE TABLE made (id BIGINT) WITH (connector = 'datagen', 'number-of-rows' = '10');";
    write(&script, &format!("{made} {} {}", sink("seldom", "1 min"), sink("often", "1 s")));
    let mut command = crate::server::weir();
    command.arg("run").arg(&script).args(["--set", "parallelism=1", "--set", "checkpoint_interval=5 s"]);
    let output = command.output().expect("weir runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let notice = "NOTICE:  option \"roll_interval\" has no effect: each checkpoint ends all open files, and checkpoint_interval is 5";
    assert_eq!(errors.matches(notice).count(), 1, "{errors}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_has_no_place_is_refused_where_it_is_asked_for() {
    let input = folder();
    write(&input.path().join("plain"), "no folder");
    let server = Server::start(&settings(&[]));
    let session = server.connect().await;
    session.must("CREATE TABLE t (a INT)").await;
    let below_a_file = input.path().join("plain/out");
    let (options, other) = (
        format!("WITH (connector = 'file', path = '{}', format = 'debezium-json')", below_a_file.display()),
        format!("WITH (connector = 'file', path = '{}', format = 'debezium-json')", input.path().join("made/below").display()),
    );
    for sql in [
        format!("CREATE SINK s {options} AS SELECT a FROM t"),
        format!("BEGIN; CREATE SINK s {options} AS SELECT a FROM t; COMMIT"),
        "CREATE SINK s WITH (connector = 'file', path = '/proc/weir/out', format = 'debezium-json') AS SELECT a FROM t".to_string(),
    ] {
        let error = session.execute(&sql).await.unwrap_err();
        assert_eq!(sql_state(&error).as_deref(), Some("58030"), "{}", describe(&error));
        assert!(describe(&error).contains("could not"), "{}", describe(&error));
        let _ = session.execute("ROLLBACK").await;
    }
    session.must(&format!("CREATE TABLE into_file (a INT) {options}")).await;
    let error = session.execute("INSERT INTO into_file SELECT a FROM t").await.unwrap_err();
    assert_eq!(sql_state(&error).as_deref(), Some("58030"), "{}", describe(&error));
    assert_eq!(session.must_count("SELECT count(*) FROM weir_jobs").await, 0);
    // A folder that can be made is made, and nothing is in it but what the sink writes.
    session.must(&format!("CREATE SINK s {other} AS SELECT a FROM t")).await;
    let probes = |path: &PathBuf| path.to_string_lossy().contains("weir-probe");
    assert!(!hidden(&input.path().join("made/below")).iter().any(probes));
}
