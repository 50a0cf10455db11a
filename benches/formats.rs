//! How fast the formats are read: rows and bytes per second and core, beside Arrow's own readers of the same bytes; medians of five rounds with their spread.
//!
//! ```sh
//! cargo bench --profile dev --bench formats \
//!     --config profile.dev.package.weir.opt-level=3 \
//!     --config profile.dev.package.weir.debug-assertions=false \
//!     --config profile.dev.package.weir.overflow-checks=false
//! ```
//!
//! Each figure is for one thread, by the processor time that the thread used. The bytes are Nexmark bids, made once and held in memory.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use weir::formats::csv::{CsvDecoder, CsvEncoder, CsvOptions};
use weir::formats::json::{JsonDecoder, JsonEncoder, JsonForm, JsonOptions};
use weir::formats::{Format, RecordDecoder};
use weir::sources::nexmark::{NexmarkConfig, NexmarkSource};
use weir::sources::{Source, SourceEvent};
use weir::stream::Batch;
use weir_catalog::{Column, Result, SqlType};

const ROUNDS: usize = 5;
const EVENTS: u64 = 1_000_000;
const BATCH_ROWS: usize = 8192;

/// Seconds of processor time that the calling thread has used.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the call to fill.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "the thread's processor time can't be read");
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Bids as batches, and their columns.
fn bids() -> Result<(Vec<Column>, Vec<RecordBatch>)> {
    let options = [("table", "bid"), ("events.num", &EVENTS.to_string())];
    let config = NexmarkConfig::parse(&options.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect())?;
    let columns = config.columns();
    let all: Vec<usize> = (0..columns.len()).collect();
    let mut source = NexmarkSource::new(config, &columns, &all, 0, 1, None)?;
    let mut batches = Vec::new();
    while let SourceEvent::Batch(batch) = source.poll(BATCH_ROWS, 0)? {
        batches.push(batch.rows);
    }
    Ok((columns, batches))
}

/// Runs `work`, which returns the rows that it read, and prints its median.
fn measure(name: &str, bytes: usize, mut work: impl FnMut() -> Result<usize>) -> Result<()> {
    let mut seconds = Vec::with_capacity(ROUNDS);
    let mut rows = 0;
    for _ in 0..ROUNDS {
        let start = thread_seconds();
        rows = work()?;
        seconds.push(thread_seconds() - start);
    }
    seconds.sort_by(f64::total_cmp);
    let median = seconds[ROUNDS / 2];
    println!(
        "{name:<44} {:>7.2} M rows/s {:>7.0} MB/s   (rounds {:.3} to {:.3} s)",
        rows as f64 / median / 1e6,
        bytes as f64 / median / 1e6,
        seconds[0],
        seconds[ROUNDS - 1]
    );
    Ok(())
}

/// Reads all records of `data`.
fn drain(decoder: &mut dyn RecordDecoder, data: &[u8]) -> Result<usize> {
    let (mut at, mut rows) = (0, 0);
    while at < data.len() {
        let decoded = decoder.decode(data, at, BATCH_ROWS)?;
        assert!(decoded.bad.is_empty(), "{:?}", decoded.bad.first());
        at = decoded.next;
        rows += decoded.batch.num_rows();
    }
    Ok(rows)
}

fn arrow_csv(schema: &SchemaRef, projection: &[usize], data: &[u8]) -> Result<usize> {
    let reader = arrow::csv::ReaderBuilder::new(schema.clone())
        .with_batch_size(BATCH_ROWS)
        .with_projection(projection.to_vec())
        .build(data)
        .map_err(weir::operators::error::from_arrow)?;
    let mut rows = 0;
    for batch in reader {
        rows += batch.map_err(weir::operators::error::from_arrow)?.num_rows();
    }
    Ok(rows)
}

fn arrow_json(schema: &SchemaRef, projection: &[usize], data: &[u8]) -> Result<usize> {
    let schema = Arc::new(schema.project(projection).map_err(weir::operators::error::from_arrow)?);
    let reader =
        arrow::json::ReaderBuilder::new(schema).with_batch_size(BATCH_ROWS).build(data).map_err(weir::operators::error::from_arrow)?;
    let mut rows = 0;
    for batch in reader {
        rows += batch.map_err(weir::operators::error::from_arrow)?.num_rows();
    }
    Ok(rows)
}

fn main() -> Result<()> {
    let (columns, batches) = bids()?;
    let schema: SchemaRef = Arc::new(Schema::new(columns.iter().map(Column::to_field).collect::<Vec<_>>()));
    let position = |name: &str| columns.iter().position(|column| column.name == name);
    let two: Vec<usize> = [position("auction"), position("price")].into_iter().flatten().collect();
    let all: Vec<usize> = (0..columns.len()).collect();

    let (mut csv, mut json) = (Vec::new(), Vec::new());
    let (mut csv_encoder, mut json_encoder) =
        (CsvEncoder::new(CsvOptions::default(), None), JsonEncoder::new(JsonForm::Rows { row_kind: None }));
    for rows in &batches {
        let batch = Batch::insert(rows.clone());
        csv_encoder.encode(&batch, &mut csv, &mut Vec::new())?;
        json_encoder.encode(&batch, &mut json, &mut Vec::new())?;
    }
    println!(
        "{} rows, {} MB of csv, {} MB of json",
        batches.iter().map(RecordBatch::num_rows).sum::<usize>(),
        csv.len() >> 20,
        json.len() >> 20
    );

    let json_options = JsonOptions { form: JsonForm::Rows { row_kind: None }, fail_on_missing: false };
    for (what, projection) in [("auction, price", &two), ("all columns", &all)] {
        let mut decoder = CsvDecoder::new(CsvOptions::default(), &columns, projection, None)?;
        measure(&format!("csv, {what}"), csv.len(), || drain(&mut decoder, &csv))?;
        measure(&format!("csv, {what}: arrow-csv"), csv.len(), || arrow_csv(&schema, projection, &csv))?;
        let mut decoder = JsonDecoder::new(&json_options, &columns, projection)?;
        measure(&format!("json, {what}"), json.len(), || drain(&mut decoder, &json))?;
        measure(&format!("json, {what}: arrow-json"), json.len(), || arrow_json(&schema, projection, &json))?;
    }
    // An object that nobody reads, between members that are read.
    let event = |line: &[u8]| [b"{\"event\":2,\"bid\":", line, b",\"number\":12345}\n"].concat();
    let nested: Vec<u8> = json.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).flat_map(event).collect();
    let of_events = ["event", "number"].map(|name| Column { name: name.into(), ty: SqlType::BigInt, nullable: true, default: None });
    let schema: SchemaRef = Arc::new(Schema::new(of_events.iter().map(Column::to_field).collect::<Vec<_>>()));
    let mut decoder = JsonDecoder::new(&json_options, &of_events, &[0, 1])?;
    measure("json, without a nested object", nested.len(), || drain(&mut decoder, &nested))?;
    measure("json, without a nested object: arrow-json", nested.len(), || arrow_json(&schema, &[0, 1], &nested))?;
    let (mut out, mut ends) = (Vec::with_capacity(json.len()), Vec::new());
    for (name, format) in
        [("csv", Format::Csv { options: CsvOptions::default(), row_kind: None }), ("json", Format::Json(json_options.clone()))]
    {
        measure(&format!("{name} written, all columns"), if name == "csv" { csv.len() } else { json.len() }, || {
            out.clear();
            ends.clear();
            let mut rows = 0;
            for batch in &batches {
                let batch = Batch::insert(batch.clone());
                rows += batch.num_rows();
                match &format {
                    Format::Csv { .. } => csv_encoder.encode(&batch, &mut out, &mut ends)?,
                    _ => json_encoder.encode(&batch, &mut out, &mut ends)?,
                }
            }
            Ok(rows)
        })?;
    }
    Ok(())
}
