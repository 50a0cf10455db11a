//! Records that are longer than is allowed: bad each for itself, and never held whole.

use super::*;
use crate::state::memory_pool::MemoryPool;

/// A record with `number` that is `bytes` long, its line end aside, and goes over lines where its format can.
fn record(format: &str, number: i64, bytes: usize) -> String {
    let (begin, end) = if format == "csv" { (format!("{number},\""), "\"") } else { (format!("{{\"n\":{number},\"t\":\""), "\"}") };
    let room = bytes.saturating_sub(begin.len() + end.len());
    let filler = if format == "csv" { "x,\n\"\"é" } else { "x,{]é" };
    let mut text: String = filler.repeat(room / filler.len());
    text.push_str(&"y".repeat(room - text.len()));
    format!("{begin}{text}{end}")
}

fn context(longest: usize, memory: usize) -> SourceContext {
    SourceContext { max_row_bytes: longest, memory: Some(MemoryPool::new(memory)), ..SourceContext::default() }
}

fn packed(text: &str, compression: &str) -> Vec<u8> {
    match compression {
        ".gz" => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            std::io::Write::write_all(&mut encoder, text.as_bytes()).unwrap();
            encoder.finish().unwrap()
        }
        ".zst" => zstd::encode_all(text.as_bytes(), 1).unwrap(),
        _ => text.as_bytes().to_vec(),
    }
}

#[test]
fn each_is_bad_for_itself_and_the_others_come_once_over_restarts() {
    // Far below a piece's length, and above it.
    for (longest, count) in [(1000, 3000), (5 << 20, 12)] {
        for (seed, (format, compression)) in [("csv", ""), ("csv", ".gz"), ("json", ""), ("json", ".zst")].into_iter().enumerate() {
            let folder = tempfile::tempdir().unwrap();
            let (mut text, mut expected) = (String::new(), Vec::new());
            for number in 0..count {
                let bytes = match number % 12 {
                    0 => longest,
                    1 => longest + 1,
                    2 => longest + 2,
                    3 if number < 12 => longest * 2 + (9 << 20),
                    4 => longest - 1,
                    5 => longest * 3,
                    _ => 50,
                };
                text.push_str(&record(format, number, bytes));
                text.push_str(if number % 2 == 0 { "\n" } else { "\r\n" });
                if bytes <= longest {
                    expected.push(number);
                }
            }
            if seed == 0 {
                // The last one lacks its line end.
                text.truncate(text.len() - 2);
            }
            std::fs::write(folder.path().join(format!("a.{format}{compression}")), packed(&text, compression)).unwrap();
            let options = [("format", format), ("bad_records", "skip")];
            let mut numbers = read_over_restarts_in(&table(folder.path(), &options), seed as u64, 40, &context(longest, 64 << 20));
            numbers.sort_unstable();
            assert_eq!(numbers, expected, "{format}{compression}, at most {longest} bytes");
        }
    }
}

#[test]
fn a_quote_that_is_never_closed_takes_no_memory_and_leaves_the_reader_free_for_barriers() {
    let folder = tempfile::tempdir().unwrap();
    // All that follows is one record, as CSV has it.
    let text = format!("1,a\n2,\"b\n{}", "3,c\n".repeat(20 << 20));
    std::fs::write(folder.path().join("a.csv.zst"), packed(&text, ".zst")).unwrap();
    let context = context(1 << 20, 1 << 30);
    let memory = context.memory.clone().unwrap();
    let table = table(folder.path(), &[("format", "csv"), ("bad_records", "skip")]);
    let mut source = FileSource::open_all(&table, &[0], 1, None, &context).unwrap().remove(0);
    let (mut numbers, mut polls) = (Vec::new(), 0);
    loop {
        polls += 1;
        match source.poll(1000, 0).unwrap() {
            SourceEvent::Batch(batch) => numbers.extend(batch.rows.column(0).as_primitive::<Int64Type>().values().iter().copied()),
            SourceEvent::End => break,
            SourceEvent::Wait(_) => panic!("there is more"),
        }
        assert!(memory.used() < 16 << 20, "{} bytes are held", memory.used());
    }
    assert_eq!((numbers, source.bad_records()), (vec![1], 1));
    assert!(polls >= 5, "all was stepped over at once, in {polls} polls");
    let splits = source.cut().unwrap();
    let progress = Progress::from_splits(&splits.to_vec().unwrap()).unwrap();
    let file = progress.files.values().next().unwrap();
    assert_eq!((file.read.as_slice(), file.end), (&[(0, text.len() as u64)][..], Some(text.len() as u64)));
}

#[test]
fn where_that_is_an_error_it_names_the_place_and_the_limit_before_the_rest_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let short = "1,a\n".repeat(100);
    for bytes in [2001, 30 << 20] {
        // Of the long one the end can't be read.
        let path = folder.path().join("a.csv.zst");
        let whole = packed(&format!("{short}{}\n2,b\n", record("csv", 7, bytes)), ".zst");
        let cut = if bytes > 1 << 20 { 10 } else { 0 };
        std::fs::write(&path, &whole[..whole.len() - cut]).unwrap();
        let mut source =
            FileSource::open_all(&table(&path, &[("format", "csv")]), &[0], 1, None, &context(2000, 1 << 30)).unwrap().remove(0);
        let error = loop {
            match source.poll(50, 0) {
                Ok(SourceEvent::End) => panic!("all was read"),
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(
            (error.code().as_str(), error.message()),
            ("54000", "the record is longer than the 2000 bytes that max_row_bytes allows")
        );
        let context = error.context().unwrap_or_default();
        assert!(context.contains("a.csv.zst\", byte 400"), "{context}");
        assert!(error.detail().unwrap_or_default().starts_with("The record is 7,\"x,"), "{error:?}");
    }
    // A header has no record that could be left out.
    let path = folder.path().join("b.csv");
    std::fs::write(&path, format!("n,{}\n1,a\n", "t".repeat(100_000))).unwrap();
    let options = [("format", "csv"), ("header", "true"), ("bad_records", "skip")];
    let mut source = FileSource::open_all(&table(&path, &options), &[0], 1, None, &context(2000, 1 << 30)).unwrap().remove(0);
    let error = source.poll(50, 0).unwrap_err();
    assert!(error.code().as_str() == "54000" && error.message().contains("header"), "{error:?}");
}
