//! The aggregate operator alone: rows per second of CPU of `GROUP BY auction: count(*), max(price)`, rows made beforehand. CPU time, RocksDB's threads
//! included, because it means the same on a busy machine.
//!
//! `cargo bench --bench aggregate [-- ROWS]`; ROWS is in millions, 8 if not given. The backend is the one in memory, except where the line says RocksDB.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use weir::operators::aggregate::{Aggregate, AggregateSpec};
use weir::operators::{Operator, Output, Stateful};
use weir::seams::random::Random;
use weir::state::{MemoryBackend, RocksBackend, SharedRocks, StateBackend};
use weir::stream::{Barrier, Batch, KeyGroupRange};
use weir_catalog::Result;
use weir_sql::graph::{AggregateCall, AggregateFunction};

const BATCH_ROWS: usize = 8192;
/// Rows between two barriers: a tenth of a second at 4 million rows a second.
const EPOCH_ROWS: usize = 400_000;
/// Of which the median counts.
const RUNS: usize = 5;

/// Counts what goes out.
#[derive(Default)]
struct Counted(usize);

impl Output for Counted {
    fn emit(&mut self, batch: Batch) -> Result<()> {
        self.0 += batch.num_rows();
        Ok(())
    }
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("auction", DataType::Int64, true), Field::new("price", DataType::Int64, true)]))
}

fn aggregate(append_only_input: bool, backend: Box<dyn StateBackend>) -> Result<Aggregate> {
    let call = |function, argument| AggregateCall { function, argument, distinct: false, filter: None, output_type: DataType::Int64 };
    let output = Schema::new(vec![
        Field::new("auction", DataType::Int64, true),
        Field::new("n", DataType::Int64, false),
        Field::new("highest", DataType::Int64, true),
    ]);
    let spec = AggregateSpec {
        input: schema(),
        output: Arc::new(output),
        group_columns: 1,
        calls: vec![call(AggregateFunction::Count, None), call(AggregateFunction::Max, Some(1))],
        global: false,
        append_only_input,
    };
    Aggregate::new(spec, backend, KeyGroupRange::ALL)
}

fn batches(rows: usize, mut auction: impl FnMut(usize, &mut Random) -> i64) -> Vec<Batch> {
    let mut random = Random::seeded(42);
    let mut made = 0;
    let mut batches = Vec::new();
    while made < rows {
        let count = BATCH_ROWS.min(rows - made);
        let auctions: Int64Array = (made..made + count).map(|row| Some(auction(row, &mut random))).collect();
        let prices: Int64Array = (0..count).map(|_| Some(random.below(10_000_000) as i64)).collect();
        let columns: Vec<ArrayRef> = vec![Arc::new(auctions), Arc::new(prices)];
        batches.push(Batch::insert(RecordBatch::try_new(schema(), columns).expect("the columns fit the schema")));
        made += count;
    }
    batches
}

/// The CPU time of the process so far.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that lives through the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "the process's CPU clock can be read");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What a line of the report runs.
#[derive(Clone, Copy)]
struct Case {
    append_only_input: bool,
    cap_bytes: usize,
    rocks: bool,
    runs: usize,
}

/// Runs all batches through a new operator. Memory is held under `cap_bytes`; every 20th barrier flushes.
fn run(batches: &[Batch], case: &Case) -> Result<(Duration, usize, usize)> {
    let folder = tempfile::tempdir().map_err(|error| weir_catalog::Error::io("make a folder", &error))?;
    let backend: Box<dyn StateBackend> = if case.rocks {
        let shared = SharedRocks::new(64 << 20, 64 << 20)?;
        Box::new(RocksBackend::open(&shared, &folder.path().join("state"), &[], KeyGroupRange::ALL)?)
    } else {
        Box::new(MemoryBackend::new())
    };
    let mut aggregate = aggregate(case.append_only_input, backend)?;
    let mut out = Counted::default();
    let mut number = 0;
    let mut since_barrier = 0;
    let mut most_bytes = 0;
    let start = cpu_time();
    for batch in batches {
        aggregate.process(0, batch.clone(), &mut out)?;
        let bytes = aggregate.memory_bytes();
        most_bytes = most_bytes.max(bytes);
        if bytes > case.cap_bytes {
            aggregate.shrink(case.cap_bytes / 2, &mut out)?;
        }
        since_barrier += batch.num_rows();
        if since_barrier >= EPOCH_ROWS {
            since_barrier = 0;
            number += 1;
            let barrier = Barrier { number, commit: 0, time_us: 0, checkpoint: false };
            aggregate.on_barrier(&barrier, &mut out)?;
            if number % 20 == 0 {
                aggregate.flush()?;
            }
        }
    }
    Ok((cpu_time() - start, out.0, most_bytes))
}

fn report(name: &str, batches: &[Batch], case: Case) -> Result<()> {
    let rows: usize = batches.iter().map(Batch::num_rows).sum();
    let mut rates = Vec::new();
    let (mut emitted, mut most_bytes) = (0, 0);
    for _ in 0..case.runs {
        let (time, rows_out, bytes) = run(batches, &case)?;
        rates.push(rows as f64 / time.as_secs_f64() / 1e6);
        (emitted, most_bytes) = (rows_out, bytes);
    }
    rates.sort_by(f64::total_cmp);
    println!(
        "{name:42} {:7.2} M rows/CPU-s (from {:.2} to {:.2}), {emitted} rows out, {:.1} MiB held at most",
        rates[case.runs / 2],
        rates[0],
        rates[case.runs - 1],
        most_bytes as f64 / (1 << 20) as f64
    );
    Ok(())
}

fn main() -> Result<()> {
    // cargo passes `--bench`.
    let millions: usize = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(8);
    let rows = millions * 1_000_000;
    let append = Case { append_only_input: true, cap_bytes: usize::MAX, rocks: false, runs: RUNS };
    // Nexmark: 46 of 50 events are bids, 3 are new auctions; half of the bids go to the newest auction whose number is a multiple of 100.
    let nexmark = batches(rows, |row, random| {
        let newest = 1000 + row as i64 * 3 / 46;
        if random.below(2) == 0 { newest / 100 * 100 } else { newest - random.below(100) as i64 }
    });
    report("Nexmark bids, append-only", &nexmark, append)?;
    drop(nexmark);
    for keys in [1_000, 100_000, 1_000_000] {
        let uniform = batches(rows, |_, random| random.below(keys) as i64);
        report(&format!("{keys} keys, uniform, append-only"), &uniform, append)?;
    }
    let uniform = batches(rows.min(2_000_000), |_, random| random.below(1000) as i64);
    report("1000 keys, uniform, max by multiset", &uniform, Case { append_only_input: false, ..append })?;
    drop(uniform);
    // A permutation of 64-bit numbers: every key is new.
    let distinct = batches(rows.min(4_000_000), |row, _| (row as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) as i64);
    report("distinct keys, no limit", &distinct, append)?;
    let capped = Case { cap_bytes: 32 << 20, ..append };
    report("distinct keys, 32 MiB of memory", &distinct, capped)?;
    report("distinct keys, 32 MiB of memory, RocksDB", &distinct, Case { rocks: true, runs: 1, ..capped })
}
