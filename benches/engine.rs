//! The whole engine under load: Nexmark bids from the built-in generator through `GROUP BY auction` into `blackhole`, state in RocksDB.
//!
//! Prints, for each checkpoint interval, the bids per second over the measured time and the process's peak memory. Arguments: `--seconds N` (default 60,
//! after 10 s of warm-up), `--memory SIZE`, `--quick` (10 s, one interval). Run with `make bench`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir::job::Engine;
use weir::job::engine::Seams;
use weir::job::settings::Settings;
use weir::runtime::metrics;
use weir::server::query::QueryRunner;
use weir::server::session::Session;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const QUERY: &str = "INSERT INTO out SELECT auction, count(*), max(price) FROM bid GROUP BY auction";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| arguments.iter().position(|argument| argument == name).and_then(|at| arguments.get(at + 1)).cloned();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let seconds = value("--seconds").and_then(|value| value.parse().ok()).unwrap_or(if quick { 10 } else { 60 });
    let memory = value("--memory").unwrap_or_else(|| "2 GiB".into());
    let intervals: &[&str] = if quick { &["10 s"] } else { &["10 s", "1 s", "0"] };
    println!("{QUERY}");
    println!("{:>12} {:>16} {:>14} {:>12} {:>14}", "checkpoints", "bids/s", "CPU s/s", "checkpoints", "peak MiB");
    for interval in intervals {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        runtime.block_on(measure(interval, &memory, Duration::from_secs(seconds)));
    }
}

async fn measure(interval: &str, memory: &str, time: Duration) {
    let dir = tempfile::tempdir().expect("a folder");
    let mut settings = Settings::new(dir.path().to_path_buf()).expect("settings");
    settings.set("checkpoint_interval", interval).expect("an interval");
    settings.set("memory", memory).expect("a size");
    let engine = tokio::task::spawn_blocking(move || Engine::open(settings, Seams::default())).await.expect("no panic").expect("an engine");
    let mut session = Session::new(engine.clone(), QueryRunner::new(engine.clone()).expect("a runner"));
    for statement in [
        "CREATE TABLE bid (auction BIGINT, price BIGINT) WITH (connector = 'nexmark', 'table' = 'bid')",
        "CREATE TABLE out (auction BIGINT, n BIGINT, best BIGINT) WITH (connector = 'blackhole')",
        QUERY,
    ] {
        let parsed = weir_sql::parser::parse(statement).expect("SQL");
        session.execute(&parsed[0], Vec::new()).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (rows, cpu, start) = (rows_in(&engine), cpu_seconds(), Instant::now());
    tokio::time::sleep(time).await;
    let elapsed = start.elapsed().as_secs_f64();
    let rate = (rows_in(&engine) - rows) as f64 / elapsed;
    let checkpoints =
        engine.board().read().checkpoints.iter().filter(|checkpoint| checkpoint.ended_us.is_some() && checkpoint.error.is_none()).count();
    println!("{interval:>12} {rate:>16.0} {:>14.2} {checkpoints:>12} {:>14}", (cpu_seconds() - cpu) / elapsed, peak_kib() / 1024);
    let jobs = engine.board().read().jobs.clone();
    for job in &jobs {
        assert!(job.last_error.is_none(), "job {} failed: {:?}", job.name, job.last_error);
    }
    engine.shutdown().await;
}

/// The rows that the aggregate has taken in, over all subtasks.
fn rows_in(engine: &Arc<Engine>) -> u64 {
    let board = engine.board().read();
    let operators = board.jobs.iter().flat_map(|job| &job.operators).filter(|operator| operator.operator == "aggregate");
    operators.map(|operator| metrics::get(&operator.metrics.rows_in)).sum()
}

/// User and system time of this process, seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

/// The process's peak resident memory, KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}
