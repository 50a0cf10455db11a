//! How fast the `nexmark` generator is: rows per second and core, medians of five rounds with their spread.
//!
//! ```sh
//! cargo bench --profile dev --bench nexmark \
//!     --config profile.dev.package.weir.opt-level=3 \
//!     --config profile.dev.package.weir.debug-assertions=false \
//!     --config profile.dev.package.weir.overflow-checks=false
//! ```
//!
//! Each figure is for one thread, by the processor time that the thread used, so that a busy machine does not spoil it; the rate by the wall clock stands
//! beside it. Rows are the rows of the table that is read: the persons and auctions that a table of bids leaves out are not among them, only among the events.
//! Exits with a failure if two bid columns stay below [`TARGET_ROWS_PER_SECOND`].

use std::collections::BTreeMap;
use std::process::ExitCode;

use weir::seams::clock::Stopwatch;
use weir::sources::nexmark::{NexmarkConfig, NexmarkSource};
use weir::sources::{Source, SourceEvent};
use weir_catalog::Result;

/// What two columns of bids must reach on one core.
const TARGET_ROWS_PER_SECOND: f64 = 10_000_000.0;
const ROUNDS: usize = 5;
const BATCH_ROWS: usize = 8192;

struct Case {
    name: &'static str,
    table: Option<&'static str>,
    /// Column names; `None`: all.
    columns: Option<&'static [&'static str]>,
    events: u64,
}

const CASES: &[Case] = &[
    Case { name: "bid: auction, price", table: Some("bid"), columns: Some(&["auction", "price"]), events: 50_000_000 },
    Case {
        name: "bid: auction, price, datetime",
        table: Some("bid"),
        columns: Some(&["auction", "price", "datetime"]),
        events: 50_000_000,
    },
    Case { name: "bid: all columns", table: Some("bid"), columns: None, events: 5_000_000 },
    Case { name: "bid: no column", table: Some("bid"), columns: Some(&[]), events: 500_000_000 },
    Case { name: "auction: all columns", table: Some("auction"), columns: None, events: 10_000_000 },
    Case { name: "person: all columns", table: Some("person"), columns: None, events: 50_000_000 },
    Case { name: "nested: all columns", table: None, columns: None, events: 5_000_000 },
];

/// Seconds of processor time that the calling thread has used.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the call to fill.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "the thread's processor time can't be read");
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Rows, bytes of the batches' content, and seconds of processor and wall time.
struct Round {
    rows: u64,
    bytes: u64,
    processor_seconds: f64,
    wall_seconds: f64,
}

fn run(case: &Case) -> Result<Round> {
    let mut options = BTreeMap::from([("events.num".to_string(), case.events.to_string())]);
    if let Some(table) = case.table {
        options.insert("table".to_string(), table.to_string());
    }
    let config = NexmarkConfig::parse(&options)?;
    let columns = config.columns();
    let projection: Vec<usize> =
        (0..columns.len()).filter(|i| case.columns.is_none_or(|names| names.contains(&columns[*i].name.as_str()))).collect();
    let mut source = NexmarkSource::new(config, &columns, &projection, 0, 1, None)?;
    let mut round = Round { rows: 0, bytes: 0, processor_seconds: 0.0, wall_seconds: 0.0 };
    let (wall, start) = (Stopwatch::start(), thread_seconds());
    while let SourceEvent::Batch(batch) = source.poll(BATCH_ROWS, 0)? {
        round.rows += batch.num_rows() as u64;
        round.bytes += batch.size() as u64;
    }
    round.processor_seconds = thread_seconds() - start;
    round.wall_seconds = wall.elapsed().as_secs_f64();
    Ok(round)
}

fn main() -> ExitCode {
    if cfg!(debug_assertions) {
        eprintln!("weir itself is built without optimisation: see the command at the head of benches/nexmark.rs");
        return ExitCode::FAILURE;
    }
    println!(
        "{:<32} {:>12} {:>17} {:>18} {:>12} {:>13} {:>10}",
        "case", "rows", "M rows/s and core", "spread", "M events/s", "M rows/s wall", "bytes/row"
    );
    let mut slow = false;
    for case in CASES {
        let mut rounds = match (0..ROUNDS).map(|_| run(case)).collect::<Result<Vec<_>>>() {
            Ok(rounds) => rounds,
            Err(error) => {
                eprintln!("{}: {error}", case.name);
                return ExitCode::FAILURE;
            }
        };
        let rate = |round: &Round| round.rows as f64 / round.processor_seconds;
        rounds.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
        let (median, last) = (&rounds[ROUNDS / 2], &rounds[ROUNDS - 1]);
        println!(
            "{:<32} {:>12} {:>17.1} {:>18} {:>12.1} {:>13.1} {:>10.0}",
            case.name,
            median.rows,
            rate(median) / 1e6,
            format!("{:.1} to {:.1}", rate(&rounds[0]) / 1e6, rate(last) / 1e6),
            case.events as f64 / median.processor_seconds / 1e6,
            median.rows as f64 / median.wall_seconds / 1e6,
            median.bytes as f64 / median.rows as f64,
        );
        if case.columns.is_some_and(|names| names.len() == 2) && rate(median) < TARGET_ROWS_PER_SECOND {
            eprintln!("{} stays below {} million rows per second and core", case.name, TARGET_ROWS_PER_SECOND / 1e6);
            slow = true;
        }
    }
    if slow { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
