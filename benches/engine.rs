//! The whole engine under load, each measurement in a process of its own. `make bench` runs it with weir's crates optimised.
//!
//! | section | what it measures |
//! | --- | --- |
//! | `throughput` | Nexmark bids from the built-in generator through `GROUP BY auction` into `blackhole`, for three checkpoint intervals in turn |
//! | `latency` | from sending an INSERT to its row in a `GROUP BY` view, with ten views |
//! | `idle` | CPU time of an engine with ten views and nothing to do |
//! | `distinct` | as many new random keys as are asked for, in little memory |
//! | `recovery` | kill -9, page cache dropped, and the time until a job with that many keys runs again |
//!
//! Arguments: `--only SECTION`, `--seconds N` of measured time (60, after 10 s of warm-up), `--runs N` (5), `--keys N` (50 million for `distinct`, 10 million
//! for `recovery`), `--memory SIZE` (2 GiB, `distinct`: 512 MiB), `--quick` (10 s, one run, a hundredth of the keys). It fails where a job fails, or an answer is wrong.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use weir::job::Engine;
use weir::job::engine::Seams;
use weir::job::settings::Settings;
use weir::job::status::CheckpointState;
use weir::runtime::metrics;
use weir::server::query::QueryRunner;
use weir::server::session::{Reply, Session};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// As in the program: see `src/main.rs`.
#[unsafe(export_name = "_rjem_malloc_conf")]
static MALLOC_CONF: &[u8] = b"thp:always,dirty_decay_ms:500,muzzy_decay_ms:0\0";

type Error = Box<dyn std::error::Error>;
type Result<T> = std::result::Result<T, Error>;

const WARM_UP: Duration = Duration::from_secs(10);
const SECTIONS: [&str; 5] = ["throughput", "latency", "idle", "distinct", "recovery"];
/// Numbers to random keys, one to one: an odd factor modulo a power of two.
const RANDOM_KEY: &str = "id * 2654435761 % 4294967296";

struct Arguments {
    given: Vec<String>,
}

impl Arguments {
    fn value(&self, name: &str) -> Option<&str> {
        let at = self.given.iter().position(|argument| argument == name)?;
        self.given.get(at + 1).map(String::as_str)
    }

    fn number(&self, name: &str, default: u64) -> Result<u64> {
        Ok(self.value(name).map_or(Ok(default), |value| value.replace('_', "").parse())?)
    }

    fn quick(&self) -> bool {
        self.given.iter().any(|argument| argument == "--quick")
    }

    fn seconds(&self) -> Result<u64> {
        self.number("--seconds", if self.quick() { 10 } else { 60 })
    }

    fn runs(&self) -> Result<usize> {
        Ok(self.number("--runs", if self.quick() { 1 } else { 5 })? as usize)
    }

    fn keys(&self, default: u64) -> Result<u64> {
        self.number("--keys", if self.quick() { default / 100 } else { default })
    }
}

fn main() -> ExitCode {
    let arguments = Arguments { given: std::env::args().collect() };
    let result = match arguments.value("--measure") {
        Some(measure) => tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(Error::from)
            .and_then(|runtime| runtime.block_on(measure_here(measure, &arguments))),
        None => SECTIONS
            .iter()
            .filter(|section| arguments.value("--only").is_none_or(|only| only == **section))
            .try_for_each(|section| run_section(section, &arguments)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_section(section: &str, arguments: &Arguments) -> Result<()> {
    println!("\n### {section}\n");
    match section {
        "throughput" => throughput(arguments),
        "latency" => {
            let inserts = arguments.number("--inserts", if arguments.quick() { 50 } else { 1000 })?;
            println!("{}", run("latency", &["--inserts", &inserts.to_string()])?);
            Ok(())
        }
        "idle" => {
            let seconds = if arguments.quick() { 5 } else { 60 };
            println!("{}", run("idle", &["--seconds", &seconds.to_string()])?);
            Ok(())
        }
        "distinct" => {
            let keys = arguments.keys(50_000_000)?.to_string();
            println!("{}", run("distinct", &["--keys", &keys, "--memory", arguments.value("--memory").unwrap_or("512 MiB")])?);
            Ok(())
        }
        _ => recovery(arguments),
    }
}

fn child(measure: &str, options: &[&str]) -> Result<Child> {
    Ok(Command::new(std::env::current_exe()?).arg("--measure").arg(measure).args(options).stdout(Stdio::piped()).spawn()?)
}

/// One measurement in a process of its own; what it prints.
fn run(measure: &str, options: &[&str]) -> Result<String> {
    let output = child(measure, options)?.wait_with_output()?;
    if !output.status.success() {
        return Err(format!("{measure} {options:?} failed").into());
    }
    Ok(String::from_utf8(output.stdout)?.trim_end().to_string())
}

async fn measure_here(measure: &str, arguments: &Arguments) -> Result<()> {
    match measure {
        "throughput" => measure_throughput(arguments).await,
        "latency" => measure_latency(arguments).await,
        "idle" => measure_idle(arguments).await,
        "distinct" => measure_distinct(arguments).await,
        "fill" => fill(arguments).await,
        "recover" => recover(arguments).await,
        other => Err(format!("no measurement {other}").into()),
    }
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
    session.execute(&parsed[0], Vec::new()).await.map_err(|error| format!("{statement}: {error}"))?;
    Ok(())
}

/// The only value of a query's answer; `None` if it has no rows.
async fn value(session: &mut Session, query: &str) -> Result<Option<i64>> {
    let parsed = weir_sql::parser::parse(query)?;
    let Reply::Rows(rows) = session.execute(&parsed[0], Vec::new()).await? else {
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

const QUERY: &str = "INSERT INTO out SELECT auction, count(*), max(price) FROM bid GROUP BY auction";

fn throughput(arguments: &Arguments) -> Result<()> {
    println!("{QUERY}\n");
    println!("| checkpoints | bids/s, median | lowest | highest | CPU s/s | completed checkpoints | peak resident MiB |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let intervals: &[&str] = if arguments.quick() { &["10 s"] } else { &["10 s", "1 s", "0"] };
    let seconds = arguments.seconds()?.to_string();
    let memory = arguments.value("--memory").unwrap_or("2 GiB");
    // In turn, so that what else the machine does hits all alike.
    let mut measured: Vec<Vec<[f64; 4]>> = vec![Vec::new(); intervals.len()];
    for _ in 0..arguments.runs()? {
        for (interval, measured) in intervals.iter().zip(&mut measured) {
            let line = run("throughput", &["--interval", interval, "--seconds", &seconds, "--memory", memory])?;
            let figures: Vec<f64> = line.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>()?;
            measured.push(figures.try_into().map_err(|_| "a measurement has four figures")?);
        }
    }
    for (interval, mut runs) in intervals.iter().zip(measured) {
        runs.sort_by(|a, b| a[0].total_cmp(&b[0]));
        let [rate, cpu, checkpoints, _] = runs[runs.len() / 2];
        let peak = runs.iter().map(|run| run[3]).fold(0.0, f64::max);
        let interval = if *interval == "0" { "none" } else { interval };
        let million = |rate: f64| format!("{:.2} M", rate / 1e6);
        let (lowest, highest) = (million(runs[0][0]), million(runs[runs.len() - 1][0]));
        println!("| {interval} | {} | {lowest} | {highest} | {cpu:.2} | {checkpoints} | {peak} |", million(rate));
    }
    Ok(())
}

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
    println!(
        "INSERT to visible, ten views, {} inserts: median {:.1} ms, 99th percentile {:.1} ms, longest {:.1} ms",
        times.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
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
    println!("idle, ten views: {used:.2} s of CPU in {seconds} s ({:.2} % of a core)", 100.0 * used / seconds as f64);
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
    println!(
        "{keys} distinct random keys under {memory}: {:.0} keys/s over {elapsed:.1} s, {:.2} CPU s/s, peak resident {peak} MiB",
        keys as f64 / elapsed,
        cpu / elapsed,
    );
    Ok(())
}

// ---- recovery ----

fn recovery(arguments: &Arguments) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let folder = dir.path().to_string_lossy().into_owned();
    let keys = arguments.keys(10_000_000)?.to_string();
    let mut filling = child("fill", &["--keys", &keys, "--dir", &folder])?;
    let mut line = String::new();
    BufReader::new(filling.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    filling.kill()?;
    filling.wait()?;
    if line.trim() != "checkpointed" {
        return Err("the state was not made".into());
    }
    let dropped = Command::new("sync").status()?.success() && std::fs::write("/proc/sys/vm/drop_caches", "1").is_ok();
    let cache = if dropped { "page cache dropped" } else { "page cache NOT dropped (that needs root)" };
    println!("{}, {cache}", run("recover", &["--keys", &keys, "--dir", &folder])?);
    Ok(())
}

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
    println!(
        "{keys} keys: first answer {elapsed:.2} s after the start of the process's engine, {rows} rows read again; the whole view equals the batch answer"
    );
    engine.shutdown().await;
    Ok(())
}
