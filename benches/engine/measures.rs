//! The measurements, each of an engine of its own in this process. What one prints are its figures, in the order in which the section lists them.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use weir::checkpoint::snapshot::SnapshotCost;
use weir::job::Engine;
use weir::job::engine::Seams;
use weir::job::settings::Settings;
use weir::job::status::CheckpointState;
use weir::runtime::metrics;
use weir::server::prepared::Arguments as Values;
use weir::server::query::QueryRunner;
use weir::server::session::{Reply, Session};

use crate::{Arguments, Error, Result, WARM_UP};

/// Numbers to random keys, one to one: an odd factor modulo a power of two.
const RANDOM_KEY: &str = "id * 2654435761 % 4294967296";

/// Measures `measure` and prints its figures.
pub fn run(measure: &str, arguments: &Arguments) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Error::from)?;
    runtime.block_on(async {
        match measure {
            "throughput" => measure_throughput(arguments).await,
            "latency" => measure_latency(arguments).await,
            "idle" => measure_idle(arguments).await,
            "distinct" => measure_distinct(arguments).await,
            "incremental" => measure_incremental(arguments).await,
            "fill" => fill(arguments).await,
            "recover" => recover(arguments).await,
            "savepoint" => measure_savepoint(arguments).await,
            other => Err(format!("no measurement {other}").into()),
        }
    })
}

async fn open(dir: &Path, settings_given: &[(&str, &str)]) -> Result<Arc<Engine>> {
    let mut settings = Settings::new(dir.to_path_buf())?;
    for (name, value) in settings_given {
        settings.set(name, value)?;
    }
    Ok(tokio::task::spawn_blocking(move || Engine::open(settings, Seams::default())).await??)
}

fn session(engine: &Arc<Engine>) -> Result<Session> {
    Ok(Session::new(engine.clone(), QueryRunner::new(engine.clone())?))
}

async fn execute(session: &mut Session, statement: &str) -> Result<()> {
    let parsed = weir_sql::parser::parse(statement)?;
    session.execute(&parsed[0], &Values::default()).await.map_err(|error| format!("{statement}: {error}"))?;
    Ok(())
}

/// The only value of a query's answer; `None` if it has no rows.
async fn value(session: &mut Session, query: &str) -> Result<Option<i64>> {
    let parsed = weir_sql::parser::parse(query)?;
    let Reply::Rows(rows) = session.execute(&parsed[0], &Values::default()).await? else {
        return Err("not a query".into());
    };
    let batches: Vec<_> = rows.stream.try_collect().await?;
    Ok(batches.iter().find(|batch| batch.num_rows() > 0).map(|batch| batch.column(0).as_primitive::<Int64Type>().value(0)))
}

/// The rows that the aggregates have taken in, over all subtasks. Errors where a job failed.
fn rows_in(engine: &Arc<Engine>) -> Result<u64> {
    let board = engine.board().read();
    for job in &board.jobs {
        if let Some(error) = &job.last_error {
            return Err(format!("job {} failed: {error}", job.name).into());
        }
    }
    let operators = board.jobs.iter().flat_map(|job| &job.operators).filter(|operator| operator.operator == "aggregate");
    Ok(operators.map(|operator| metrics::get(&operator.metrics.rows_in)).sum())
}

/// User and system time of this process, seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

/// The process's peak resident memory, MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
}

// ---- throughput ----

pub const QUERY: &str = "INSERT INTO out SELECT auction, count(*), max(price) FROM bid GROUP BY auction";

async fn measure_throughput(arguments: &Arguments) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let interval = arguments.value("--interval").unwrap_or("10 s");
    let engine = open(dir.path(), &[("checkpoint_interval", interval), ("memory", arguments.value("--memory").unwrap_or("2 GiB"))]).await?;
    let mut session = session(&engine)?;
    execute(&mut session, "CREATE TABLE bid (auction BIGINT, price BIGINT) WITH (connector = 'nexmark', 'table' = 'bid')").await?;
    execute(&mut session, "CREATE TABLE out (auction BIGINT, n BIGINT, best BIGINT) WITH (connector = 'blackhole')").await?;
    execute(&mut session, QUERY).await?;
    tokio::time::sleep(WARM_UP).await;
    let completed = |engine: &Arc<Engine>| {
        engine.board().read().checkpoints.iter().filter(|checkpoint| checkpoint.state() == CheckpointState::Completed).count()
    };
    let (rows, cpu, checkpoints, start) = (rows_in(&engine)?, cpu_seconds(), completed(&engine), Instant::now());
    tokio::time::sleep(Duration::from_secs(arguments.seconds()?)).await;
    let elapsed = start.elapsed().as_secs_f64();
    let rate = (rows_in(&engine)? - rows) as f64 / elapsed;
    println!("{rate:.0} {:.2} {} {}", (cpu_seconds() - cpu) / elapsed, completed(&engine) - checkpoints, peak_mib());
    engine.shutdown().await;
    Ok(())
}

// ---- latency and idleness ----

/// An engine with a table and ten views of it.
async fn ten_views(dir: &Path) -> Result<(Arc<Engine>, Session)> {
    let engine = open(dir, &[]).await?;
    let mut session = session(&engine)?;
    execute(&mut session, "CREATE TABLE sale (id BIGINT PRIMARY KEY, shop BIGINT, amount BIGINT)").await?;
    for view in 0..10 {
        let query = format!("CREATE MATERIALIZED VIEW v{view} AS SELECT shop, count(*) AS n, sum(amount) AS total FROM sale GROUP BY shop");
        execute(&mut session, &query).await?;
    }
    Ok((engine, session))
}

async fn measure_latency(arguments: &Arguments) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (engine, mut session) = ten_views(dir.path()).await?;
    let mut times = Vec::new();
    for id in 0..arguments.number("--inserts", 1000)? as i64 {
        let start = Instant::now();
        execute(&mut session, &format!("INSERT INTO sale VALUES ({id}, {}, {id})", id % 7)).await?;
        let expected = id / 7 + 1;
        while value(&mut session, &format!("SELECT n FROM v9 WHERE shop = {}", id % 7)).await? != Some(expected) {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        times.push(start.elapsed().as_secs_f64() * 1000.0);
        // Not in step with the barriers.
        tokio::time::sleep(Duration::from_micros((id as u64 * 7919) % 30_000)).await;
    }
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!("{} {} {}", at(0.5), at(0.99), at(1.0));
    engine.shutdown().await;
    Ok(())
}

async fn measure_idle(arguments: &Arguments) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (engine, mut session) = ten_views(dir.path()).await?;
    execute(&mut session, "INSERT INTO sale VALUES (1, 1, 1)").await?;
    engine.flush().await?;
    tokio::time::sleep(WARM_UP).await;
    let cpu = cpu_seconds();
    let seconds = arguments.seconds()?;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let used = cpu_seconds() - cpu;
    println!("{}", 100.0 * used / seconds as f64);
    engine.shutdown().await;
    Ok(())
}

// ---- many keys ----

/// The rows that every distinct key once are: a connector table of persons, whose input does not end, so that what the job reports stays.
async fn random_keys(session: &mut Session, keys: u64) -> Result<()> {
    // Persons are one event in fifty.
    let source = format!(
        "CREATE TABLE person (id BIGINT) WITH (connector = 'nexmark', 'table' = 'person', 'events.num' = '{}', 'keep-alive' = 'true')",
        keys * 50
    );
    execute(session, &source).await
}

/// Waits until the aggregate has taken in `keys` rows and what they bring is published.
async fn all_in(engine: &Arc<Engine>, keys: u64) -> Result<()> {
    while rows_in(engine)? < keys {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(engine.flush().await?)
}

async fn measure_distinct(arguments: &Arguments) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (keys, memory) = (arguments.number("--keys", 0)?, arguments.value("--memory").unwrap_or("512 MiB"));
    let engine = open(dir.path(), &[("memory", memory)]).await?;
    let mut session = session(&engine)?;
    let start = Instant::now();
    random_keys(&mut session, keys).await?;
    execute(&mut session, "CREATE TABLE out (key BIGINT, n BIGINT, greatest BIGINT) WITH (connector = 'blackhole')").await?;
    execute(&mut session, &format!("INSERT INTO out SELECT {RANDOM_KEY}, count(*), max(id) FROM person GROUP BY {RANDOM_KEY}")).await?;
    all_in(&engine, keys).await?;
    let (elapsed, cpu, peak) = (start.elapsed().as_secs_f64(), cpu_seconds(), peak_mib());
    // A key that is there once gives one row; one that was taken for another would give updates.
    let groups: u64 = {
        let board = engine.board().read();
        let operators = board.jobs.iter().flat_map(|job| &job.operators).filter(|operator| operator.operator == "aggregate");
        operators.map(|operator| metrics::get(&operator.metrics.rows_out)).sum()
    };
    engine.shutdown().await;
    if groups != keys {
        return Err(format!("{keys} keys made {groups} groups").into());
    }
    println!("{} {} {peak}", keys as f64 / elapsed, cpu / elapsed);
    Ok(())
}

// ---- what checkpoints store ----

const CHECKPOINTS: u64 = 20;

async fn measure_incremental(arguments: &Arguments) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let keys = arguments.number("--keys", 0)?;
    let engine = open(dir.path(), &[("checkpoint_interval", "0")]).await?;
    let mut session = session(&engine)?;
    let (changed, rate, last) = (keys / 100, keys / 50, keys - 1);
    execute(
        &mut session,
        &format!(
            "CREATE TABLE all_keys (key BIGINT) WITH (connector = 'datagen', 'rows-per-second' = '0', 'fields.key.kind' = 'sequence', \
             'fields.key.start' = '0', 'fields.key.end' = '{last}')"
        ),
    )
    .await?;
    execute(
        &mut session,
        &format!(
            "CREATE TABLE some_keys (key BIGINT) WITH (connector = 'datagen', 'rows-per-second' = '{rate}', 'fields.key.min' = '0', \
             'fields.key.max' = '{last}')"
        ),
    )
    .await?;
    execute(&mut session, "CREATE TABLE out (key BIGINT, n BIGINT) WITH (connector = 'blackhole')").await?;
    let both = "(SELECT key FROM all_keys UNION ALL SELECT key FROM some_keys) AS keys";
    execute(&mut session, &format!("INSERT INTO out SELECT key, count(*) FROM {both} GROUP BY key")).await?;
    // The keys have all come when no more come in a second than the random ones are.
    loop {
        let before = rows_in(&engine)?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = rows_in(&engine)?;
        if now >= keys && now - before < rate * 3 / 2 {
            break;
        }
    }
    engine.checkpoint().await?;
    let mut shares = Vec::new();
    let mut bytes_a_key = 0.0;
    for _ in 0..CHECKPOINTS {
        let start = rows_in(&engine)?;
        while rows_in(&engine)? < start + changed {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        engine.checkpoint().await?;
        let board = engine.board().read();
        let newest = board.checkpoints.iter().rfind(|checkpoint| checkpoint.state() == CheckpointState::Completed);
        let cost = |of: fn(&SnapshotCost) -> u64| newest.map_or(0, |newest| newest.parts().map(|part| of(&part.cost)).sum::<u64>()) as f64;
        let (new, all) = (cost(|cost| cost.bytes_new), cost(|cost| cost.bytes));
        shares.push(100.0 * new / all);
        bytes_a_key = all / keys as f64;
    }
    let average = shares.iter().sum::<f64>() / shares.len() as f64;
    println!("{average} {} {bytes_a_key}", shares.iter().copied().fold(0.0, f64::max));
    engine.shutdown().await;
    Ok(())
}

// ---- recovery ----

/// Fills a state of so many keys, checkpoints, and waits to be killed.
async fn fill(arguments: &Arguments) -> Result<()> {
    let dir = arguments.value("--dir").ok_or("no --dir")?;
    let keys = arguments.number("--keys", 0)?;
    let engine = open(Path::new(dir), &[("checkpoint_interval", "0")]).await?;
    let mut session = session(&engine)?;
    random_keys(&mut session, keys).await?;
    let view = format!(
        "CREATE MATERIALIZED VIEW counted AS SELECT {RANDOM_KEY} AS key, count(*) AS n, max(id) AS greatest FROM person GROUP BY {RANDOM_KEY}"
    );
    execute(&mut session, &view).await?;
    all_in(&engine, keys).await?;
    engine.checkpoint().await?;
    println!("checkpointed");
    std::future::pending().await
}

/// What tells one answer of `counted` from another: its rows, and three sums over them.
async fn whole_answer(session: &mut Session, relation: &str) -> Result<Vec<Option<i64>>> {
    let mut sums = Vec::new();
    for sum in ["count(*)", "sum(n)::bigint", "sum(key)::bigint", "sum(greatest)::bigint"] {
        sums.push(value(session, &format!("SELECT {sum} FROM {relation}")).await?);
    }
    Ok(sums)
}

async fn recover(arguments: &Arguments) -> Result<()> {
    let dir = arguments.value("--dir").ok_or("no --dir")?;
    let keys = arguments.number("--keys", 0)?;
    std::fs::remove_dir_all(Path::new(dir).join("scratch"))?;
    let start = Instant::now();
    let engine = open(Path::new(dir), &[]).await?;
    let mut session = session(&engine)?;
    // A key's count: it is looked up in what was restored, at a barrier that all subtasks have finished.
    engine.flush().await?;
    let first = value(&mut session, &format!("SELECT n FROM counted WHERE key = {}", 1000 * 2654435761i64 % 4294967296)).await?;
    let elapsed = start.elapsed().as_secs_f64();
    if first != Some(1) {
        return Err(format!("the first key that was looked up has {first:?} rows").into());
    }
    // Input that was read again would have been counted twice, and what was lost would be missing.
    let batch = format!("(SELECT {RANDOM_KEY} AS key, 1 AS n, id AS greatest FROM person_again) AS batch");
    let again =
        format!("CREATE TABLE person_again (id BIGINT) WITH (connector = 'nexmark', 'table' = 'person', 'events.num' = '{}')", keys * 50);
    execute(&mut session, &again).await?;
    let (restored, expected) = (whole_answer(&mut session, "counted").await?, whole_answer(&mut session, &batch).await?);
    if restored != expected || restored[0] != Some(keys as i64) {
        return Err(format!("restored {restored:?}, the batch answer is {expected:?}").into());
    }
    let rows = rows_in(&engine)?;
    println!("{elapsed} {rows}");
    engine.shutdown().await;
    Ok(())
}

// ---- savepoints ----

async fn measure_savepoint(arguments: &Arguments) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let keys = arguments.number("--keys", 0)?;
    let engine = open(dir.path(), &[("checkpoint_interval", "0")]).await?;
    let mut session = session(&engine)?;
    execute(&mut session, "CREATE TABLE more (id BIGINT)").await?;
    random_keys(&mut session, keys).await?;
    let query = format!(
        "SELECT {RANDOM_KEY} AS key, count(*) AS n, max(id) AS greatest FROM (SELECT id FROM person UNION ALL SELECT id FROM more) AS ids GROUP BY {RANDOM_KEY}"
    );
    execute(&mut session, &format!("CREATE MATERIALIZED VIEW counted AS {query}")).await?;
    all_in(&engine, keys).await?;
    engine.checkpoint().await?;
    // The same number of changed keys before both.
    let change = |from: u64| format!("INSERT INTO more SELECT id FROM person_again WHERE id >= {from} AND id < {}", from + keys / 100);
    let again =
        format!("CREATE TABLE person_again (id BIGINT) WITH (connector = 'nexmark', 'table' = 'person', 'events.num' = '{}')", keys * 50);
    execute(&mut session, &again).await?;
    let mut times = [0.0; 2];
    for (i, statement) in ["CHECKPOINT", "CREATE SAVEPOINT measured FOR counted"].into_iter().enumerate() {
        execute(&mut session, &change(1000 + i as u64 * keys / 100)).await?;
        engine.flush().await?;
        let start = Instant::now();
        execute(&mut session, statement).await?;
        times[i] = start.elapsed().as_secs_f64();
    }
    let start = Instant::now();
    execute(&mut session, &format!("CREATE MATERIALIZED VIEW counted_again FROM SAVEPOINT measured AS {query}")).await?;
    let restored = start.elapsed().as_secs_f64();
    let (first, second) = (whole_answer(&mut session, "counted").await?, whole_answer(&mut session, "counted_again").await?);
    if first != second || first[0] != Some(keys as i64) {
        return Err(format!("the view has {first:?}, the one from the savepoint {second:?}").into());
    }
    println!("{} {} {restored}", (times[1] - times[0]).max(0.0), times[0]);
    engine.shutdown().await;
    Ok(())
}
