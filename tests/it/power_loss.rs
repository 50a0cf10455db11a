//! The whole engine over a disk that forgets what was not fsynced: the power goes off at a random change of the disk, the engine is thrown away and
//! opened again on what the disk holds. Unlike the other modules, this one runs the engine in its own process.
//!
//! After each crash, before anything is written and without FLUSH:
//! - every acknowledged statement is there, once, and the one that was under way whole or not at all;
//! - every view shows the batch answer of its query;
//! - every file that a manifest names is there as it was written, files of RocksDB too, of which the disk holds only what a sync of ours named;
//! - the newest manifest is not older than the last CHECKPOINT that was acknowledged;
//! - what the records of a file sink name is whole, and the changes in it are those of whole checkpoints.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::Array;
use futures::StreamExt;
use weir::checkpoint::Manifest;
use weir::job::Engine;
use weir::job::engine::Seams;
use weir::job::settings::Settings;
use weir::job::status::CheckpointState;
use weir::seams::clock::Clock;
use weir::seams::files::LossyFiles;
use weir::seams::random::Random;
use weir::server::encode::write_text;
use weir::server::prepared::Arguments;
use weir::server::query::QueryRunner;
use weir::server::session::{Reply, Session};
use weir_catalog::{Error, Result};

use crate::run;
use crate::server::PATIENCE;

type Rows = Vec<Vec<Option<String>>>;

const TABLES: [&str; 2] = [
    "CREATE TABLE accounts (id BIGINT PRIMARY KEY, owner INT, amount BIGINT NOT NULL)",
    "CREATE TABLE bid WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '4000')",
];

/// Views and the query that each must equal.
const VIEWS: [(&str, &str); 5] = [
    ("per_owner", "SELECT owner, count(*) AS n, sum(amount) AS total, max(amount) AS most FROM accounts GROUP BY owner"),
    ("sizes", "SELECT n, count(*) AS owners FROM per_owner GROUP BY n"),
    ("odd", "SELECT amount FROM accounts WHERE id % 2 = 1"),
    ("owners", "SELECT count(DISTINCT owner) AS n FROM accounts"),
    ("hot", "SELECT auction % 10 AS a, count(*) AS n, max(price) AS price FROM bid GROUP BY auction % 10"),
];

/// A sink into files: in whole checkpoints, each key has one row, and the sums of both sides cancel.
const SINK: &str = "SELECT k, sum(v) AS s FROM (SELECT owner AS k, amount AS v FROM accounts
     UNION ALL SELECT -1 - owner AS k, -amount AS v FROM accounts) AS both_sides GROUP BY k";

/// The last view's content is a function of how far its source was read, so it is compared only at the end.
const OVER_CONNECTOR: usize = 4;

type Accounts = BTreeMap<i64, (i64, i64)>;

/// What must be there after the next start.
#[derive(Default)]
struct Ledger {
    accounts: Accounts,
    /// The content after the statement that was not answered.
    undecided: Option<Accounts>,
    next: i64,
    /// The last checkpoint that was acknowledged.
    checkpoint: u64,
    statements: usize,
}

/// An engine on the disk, and a session on it.
struct Life {
    files: LossyFiles,
    engine: Arc<Engine>,
    session: Session,
}

impl Life {
    async fn open(files: &LossyFiles, dir: &Path, random: &mut Random, parallelism: usize) -> Result<Life> {
        let mut settings = Settings::new(dir.to_path_buf())?;
        for (name, value) in
            [("memory", "128 MiB"), ("checkpoint_interval", "60 ms"), ("barrier_interval", "20 ms"), ("restart_delay", "5 ms")]
        {
            settings.set(name, value)?;
        }
        settings.set("parallelism", &parallelism.to_string())?;
        let seams = Seams { clock: Clock::system(), random: Random::seeded(random.next_u64()), files: Arc::new(files.clone()) };
        let engine = tokio::task::spawn_blocking(move || Engine::open(settings, seams)).await.expect("opening does not panic")?;
        match QueryRunner::new(engine.clone()) {
            Ok(queries) => {
                let session = Session::new(engine.clone(), queries);
                Ok(Life { files: files.clone(), engine, session })
            }
            // Jobs run by now, and would write into the folder of the next life.
            Err(error) => {
                end_engine(engine).await;
                Err(error)
            }
        }
    }

    /// Ends without having its way: whatever it still does on the disk is lost.
    async fn end(self) {
        self.files.power_off();
        drop(self.session);
        end_engine(self.engine).await;
    }

    /// Runs one statement. Once the power is off no answer is waited for.
    async fn run(&mut self, sql: &str) -> Result<Rows> {
        let files = self.files.clone();
        let off = async {
            while !files.powered_off() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        tokio::select! {
            result = execute(&mut self.session, sql) => result,
            () = off => Err(Error::internal("the power is off")),
        }
    }
}

/// Ends an engine whose disk has no power.
async fn end_engine(engine: Arc<Engine>) {
    let ended = tokio::time::timeout(PATIENCE, engine.shutdown()).await;
    assert!(ended.is_ok(), "an engine without a disk did not end");
    // What read a view or table for a statement that was given up lets go of the engine, and with it of the folder's lock.
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while Arc::strong_count(&engine) > 1 {
        assert!(tokio::time::Instant::now() < deadline, "somebody holds an engine that has ended");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn execute(session: &mut Session, sql: &str) -> Result<Rows> {
    let mut rows = Rows::new();
    for parsed in weir_sql::parser::parse(sql)? {
        if let Reply::Rows(mut reply) = session.execute(&parsed, &Arguments::default()).await? {
            while let Some(batch) = reply.stream.next().await {
                let batch = batch.map_err(weir::operators::error::from_datafusion)?;
                for row in 0..batch.num_rows() {
                    let cell = |column: &Arc<dyn Array>| -> Result<Option<String>> {
                        if column.is_null(row) {
                            return Ok(None);
                        }
                        let mut text = String::new();
                        write_text(&mut text, column, row)?;
                        Ok(Some(text))
                    };
                    rows.push(batch.columns().iter().map(cell).collect::<Result<Vec<_>>>()?);
                }
            }
        }
    }
    rows.sort();
    Ok(rows)
}

/// Makes what is missing of tables, views and the sink, which writes to `out`. Each is whole or absent.
async fn define(life: &mut Life, out: &Path) -> Result<()> {
    for table in TABLES {
        let name = table.split(' ').nth(2).expect("a name");
        if life.engine.catalog().get(name).is_none() {
            life.run(table).await?;
        }
    }
    for (name, query) in VIEWS {
        if life.engine.catalog().get(name).is_none() {
            life.run(&format!("CREATE MATERIALIZED VIEW {name} AS {query}")).await?;
        }
    }
    if life.engine.catalog().get("sums").is_none() {
        let options = format!("connector = 'file', path = '{}', format = 'csv', row_kind = 'kind'", out.display());
        life.run(&format!("CREATE SINK sums WITH ({options}) AS {SINK}")).await?;
    }
    Ok(())
}

/// Writes until the power goes off, at most `statements`.
async fn write(life: &mut Life, ledger: &mut Ledger, random: &mut Random, statements: usize) -> Result<()> {
    for _ in 0..statements {
        let mut after = ledger.accounts.clone();
        let victim = after.keys().nth(random.below(after.len().max(1) as u64) as usize).copied();
        let sql = match (random.below(8), victim) {
            (0, Some(id)) => {
                after.remove(&id);
                format!("DELETE FROM accounts WHERE id = {id}")
            }
            (1 | 2, Some(id)) => {
                after.entry(id).and_modify(|(_, amount)| *amount += 7);
                format!("UPDATE accounts SET amount = amount + 7 WHERE id = {id}")
            }
            (3, _) => "CHECKPOINT".to_string(),
            _ => {
                let ids: Vec<i64> = (0..1 + random.below(3) as i64).map(|i| ledger.next + i).collect();
                ledger.next += ids.len() as i64;
                after.extend(ids.iter().map(|id| (*id, (id % 5, id * 10))));
                let values: Vec<String> = ids.iter().map(|id| format!("({id}, {}, {})", id % 5, id * 10)).collect();
                format!("INSERT INTO accounts VALUES {}", values.join(", "))
            }
        };
        ledger.undecided = Some(after.clone());
        life.run(&sql).await?;
        ledger.accounts = after;
        ledger.undecided = None;
        ledger.statements += 1;
        if sql == "CHECKPOINT" {
            let board = life.engine.board().read();
            let completed = board.checkpoints.iter().filter(|summary| summary.state() == CheckpointState::Completed);
            ledger.checkpoint = completed.map(|summary| summary.checkpoint).max().unwrap_or(0).max(ledger.checkpoint);
        }
    }
    Ok(())
}

/// Compares everything with the ledger, which then knows what became of the statement under way.
async fn verify(life: &mut Life, ledger: &mut Ledger, what: &str) -> Result<()> {
    if life.engine.catalog().get("accounts").is_some() {
        let accounts: Accounts = (life.run("SELECT id, owner, amount FROM accounts").await?.into_iter())
            .map(|row| {
                let number = |at: usize| -> i64 { row[at].as_deref().and_then(|text| text.parse().ok()).expect("a number") };
                (number(0), (number(1), number(2)))
            })
            .collect();
        if accounts != ledger.accounts {
            assert_eq!(
                Some(&accounts),
                ledger.undecided.as_ref(),
                "{what}: the table is neither as acknowledged nor with the last statement"
            );
        }
        ledger.accounts = accounts;
        ledger.undecided = None;
    } else {
        assert!(ledger.accounts.is_empty(), "{what}: the table is lost");
    }
    for (name, query) in &VIEWS[..OVER_CONNECTOR] {
        if life.engine.catalog().get(name).is_some() {
            let batch = life.run(query).await?;
            let shown = life.run(&format!("SELECT * FROM {name}")).await?;
            assert_eq!(shown, batch, "{what}: view {name}");
        }
    }
    Ok(())
}

/// Looks at the folder before the engine does.
fn verify_files(dir: &Path, ledger: &Ledger, what: &str) {
    let folder = dir.join("checkpoints");
    let mut newest = 0;
    for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("MANIFEST-") || name.ends_with(".tmp") {
            continue;
        }
        let bytes = std::fs::read(entry.path()).unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
        let manifest = Manifest::decode(&name, &bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
        newest = newest.max(manifest.barrier);
        for file in manifest.files() {
            let content = std::fs::read(folder.join("files").join(&file.name));
            let content = content.unwrap_or_else(|e| panic!("{what}: {name} names {}: {e}", file.name));
            assert_eq!(content.len() as u64, file.bytes, "{what}: {name}: the length of {}", file.name);
            assert_eq!(xxhash_rust::xxh3::xxh3_64(&content), file.checksum, "{what}: {name}: the content of {}", file.name);
        }
    }
    assert!(newest >= ledger.checkpoint, "{what}: checkpoint {} was acknowledged, the newest is {newest}", ledger.checkpoint);
}

/// What the records of the sink in `out` name: the sum of each key.
fn verify_sink(out: &Path, what: &str) -> BTreeMap<i64, i64> {
    let mut rows: BTreeMap<(i64, i64), i64> = BTreeMap::new();
    let records = std::fs::read_dir(out.join("_weir_commits")).into_iter().flatten().flatten().map(|entry| entry.path());
    for record in records.filter(|path| path.extension().is_some_and(|extension| extension == "json")) {
        let text = std::fs::read_to_string(&record).unwrap_or_else(|e| panic!("{what}: {}: {e}", record.display()));
        let parsed: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{what}: {}: {e}", record.display()));
        for file in parsed["files"].as_array().expect("a list") {
            let path = out.join(file.as_str().expect("a name"));
            let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{what}: {} is named: {e}", path.display()));
            for line in text.lines() {
                let fields: Vec<&str> = line.split(',').collect();
                let number = |at: usize| fields.get(at).and_then(|field| field.parse::<i64>().ok());
                let (Some(key), Some(sum), 3) = (number(1), number(2), fields.len()) else { panic!("{what}: torn line {line}") };
                *rows.entry((key, sum)).or_default() += if fields[0].starts_with('+') { 1 } else { -1 };
            }
        }
    }
    rows.retain(|_, count| *count != 0);
    assert!(rows.values().all(|count| *count == 1), "{what}: {rows:?}");
    let sums: BTreeMap<i64, i64> = rows.keys().copied().collect();
    assert_eq!(sums.len(), rows.len(), "{what}: a key has two rows: {rows:?}");
    assert_eq!(sums.values().sum::<i64>(), 0, "{what}: a part of a checkpoint: {rows:?}");
    sums
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_survives_power_loss_at_any_moment() {
    let mut random = run::random("power_loss");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (dir, out) = (folder.path().join("data"), folder.path().join("out"));
    let files = LossyFiles::new(folder.path(), random.next_u64()).expect("an empty folder");
    let mut ledger = Ledger::default();
    let rounds = run::rounds(30, 1000);
    let (mut crashes, mut in_recovery, mut with_files) = (0, 0, 0);
    // How many changes of the disk a life has depends on the machine: most are those of checkpoints, which come with time. So what is too far to be met comes nearer, and
    // what leaves no time to work goes away.
    let mut changes = 4_000;
    let mut round = 0;
    while round < rounds || (crashes + in_recovery < rounds / 2 && round < 4 * rounds) {
        let what = format!("round {round}");
        // Anything from the first change of a start to well into the work.
        files.power_off_after(if random.below(3) == 0 { random.below(40) } else { random.below(changes) });
        let parallelism = 1 + random.below(3) as usize;
        match Life::open(&files, &dir, &mut random, parallelism).await {
            Ok(mut life) => {
                let result = async {
                    verify(&mut life, &mut ledger, &what).await?;
                    define(&mut life, &out).await?;
                    write(&mut life, &mut ledger, &mut random, 40).await
                };
                let result = result.await;
                assert!(result.is_ok() || files.powered_off(), "{what}: {result:?}");
                crashes += usize::from(result.is_err());
                changes = match result {
                    Ok(()) => (changes * 3 / 4).max(500),
                    Err(_) if ledger.statements < round => (changes * 2).min(16_000),
                    Err(_) => (changes * 5 / 4).min(16_000),
                };
                life.end().await;
            }
            Err(error) => {
                assert!(files.powered_off(), "{what}: {error}");
                in_recovery += 1;
            }
        }
        // Now and then the process dies without loss, so that what is not durable is lost only with the next crash.
        if random.below(5) == 0 {
            files.kill()
        } else {
            files.crash().expect("the folder can be written")
        }
        verify_files(&dir, &ledger, &what);
        with_files += usize::from(!verify_sink(&out, &what).is_empty());
        round += 1;
    }
    let mut life = Life::open(&files, &dir, &mut random, 2).await.unwrap_or_else(|error| panic!("at the end: {error}"));
    verify(&mut life, &mut ledger, "at the end").await.expect("a disk that works");
    define(&mut life, &out).await.expect("a disk that works");
    write(&mut life, &mut ledger, &mut random, 20).await.expect("a disk that works");
    // Only after a start do views cover everything without it.
    life.run("FLUSH").await.expect("a disk that works");
    verify(&mut life, &mut ledger, "at the end").await.expect("a disk that works");
    life.run("CHECKPOINT").await.expect("a disk that works");
    let mut expected = BTreeMap::new();
    for (owner, amount) in ledger.accounts.values() {
        *expected.entry(*owner).or_default() += amount;
        *expected.entry(-1 - owner).or_default() -= amount;
    }
    assert_eq!(verify_sink(&out, "at the end"), expected);
    let (hot, query) = VIEWS[OVER_CONNECTOR];
    let batch = life.run(query).await.expect("a bounded connector can be read as a batch");
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let shown = life.run(&format!("SELECT * FROM {hot}")).await.expect("a disk that works");
        if shown == batch {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "the view over the connector table has {shown:?}, not {batch:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    life.end().await;
    run::say(&format!(
        "power_loss: {round} rounds, {crashes} crashes at work, {in_recovery} while opening, {with_files} with files, {} statements",
        ledger.statements
    ));
    assert!(crashes + in_recovery >= rounds / 2 && ledger.statements >= rounds, "the power hardly went off, or nothing was written");
}
