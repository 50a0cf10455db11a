//! Utf8 against Utf8View for TEXT: what the engine does most with a text column. The figures and the choice are in `docs/performance.md`.
//!
//! `cargo bench --bench text`. Batches of 8,192 rows; texts of 8 bytes, which a view holds inline, and of 40, which it does not.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, StringArray, StringViewArray, UInt32Array};
use arrow::compute::{cast, concat, filter, take};
use arrow::datatypes::DataType;
use weir::state::{EncodedRows, KeyCodec};

const ROWS: usize = 8_192;
const ITERATIONS: usize = 200;
const REPETITIONS: usize = 5;

fn texts(length: usize) -> Vec<String> {
    (0..ROWS as u64).map(|i| format!("{:0length$}", i.wrapping_mul(0x9E37_79B9) % 100_000)).collect()
}

/// Million rows a second: the median of some repetitions.
fn measure(mut work: impl FnMut()) -> f64 {
    let mut rates: Vec<f64> = (0..REPETITIONS)
        .map(|_| {
            let start = Instant::now();
            (0..ITERATIONS).for_each(|_| work());
            (ROWS * ITERATIONS) as f64 / start.elapsed().as_secs_f64() / 1e6
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    rates[REPETITIONS / 2]
}

fn main() {
    println!(
        "| work, million rows a second | Utf8, 8 bytes | Utf8View, 8 bytes | Utf8, 40 bytes | Utf8View, 40 bytes |\n| --- | --- | --- | --- | --- |"
    );
    let columns: Vec<ArrayRef> = [8, 40]
        .into_iter()
        .flat_map(|length| {
            let texts = texts(length);
            [Arc::new(StringArray::from_iter_values(&texts)) as ArrayRef, Arc::new(StringViewArray::from_iter_values(&texts)) as ArrayRef]
        })
        .collect();
    let half: BooleanArray = (0..ROWS).map(|row| Some(row * 0x9E37 % 7 < 3)).collect();
    let few: BooleanArray = (0..ROWS).map(|row| Some(row * 0x9E37 % 97 < 2)).collect();
    // As an exchange does: the rows of each of four partitions.
    let partitions: Vec<UInt32Array> =
        (0..4).map(|partition| (0..ROWS as u32).filter(|row| row.wrapping_mul(0x9E37_79B9) >> 30 == partition).collect()).collect();
    let codec = KeyCodec::new(&[DataType::Utf8]).expect("TEXT can be a key");
    let mut keys = EncodedRows::new();
    let print = |name: &str, rates: Vec<f64>| {
        println!("| {name} | {} |", rates.iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join(" | "));
    };
    for (name, mask) in [("filter, 3 of 7 rows", &half), ("filter, 2 of 97 rows", &few)] {
        print(name, columns.iter().map(|column| measure(|| drop(black_box(filter(column, mask).expect("filter"))))).collect());
    }
    print(
        "take by partition, 4",
        columns
            .iter()
            .map(|column| {
                measure(|| {
                    for rows in &partitions {
                        black_box(take(column, rows, None).expect("take"));
                    }
                })
            })
            .collect(),
    );
    // A view array keeps the buffers of the batch that it was taken from, which an exchange or a buffer that counts its memory cannot have.
    print(
        "take by partition, 4, without what was not taken",
        columns
            .iter()
            .map(|column| {
                measure(|| {
                    for rows in &partitions {
                        let taken = take(column, rows, None).expect("take");
                        match taken.as_string_view_opt() {
                            Some(views) => drop(black_box(views.gc())),
                            None => drop(black_box(taken)),
                        }
                    }
                })
            })
            .collect(),
    );
    print(
        "take by partition, 4, then concat of 4",
        columns
            .iter()
            .map(|column| {
                measure(|| {
                    let parts: Vec<ArrayRef> = partitions.iter().map(|rows| take(column, rows, None).expect("take")).collect();
                    let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
                    black_box(concat(&parts).expect("concat"));
                })
            })
            .collect(),
    );
    print(
        "group key encoding (a view is cast first)",
        columns
            .iter()
            .map(|column| {
                measure(|| {
                    keys.clear();
                    let column = cast(column, &DataType::Utf8).expect("cast");
                    codec.encode(&[column], &mut keys).expect("encode");
                    black_box(&keys);
                })
            })
            .collect(),
    );
}
