//! A `file` source over restarts: every record once, whatever the pieces, the parallelism and the moments of the checkpoints.

use std::collections::BTreeMap;
use std::path::Path;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use weir_catalog::{Column, ConnectorTable, SqlType};

use super::*;
use crate::seams::random::Random;

mod damaged;
mod long_records;

fn table(path: &Path, options: &[(&str, &str)]) -> ConnectorTable {
    let mut all: BTreeMap<String, String> = options.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect();
    all.insert("path".into(), path.display().to_string());
    let column = |name: &str, ty| Column { name: name.into(), ty, nullable: true, default: None };
    ConnectorTable {
        id: 1,
        name: "t".into(),
        columns: vec![column("n", SqlType::BigInt), column("t", SqlType::Text)],
        connector: "file".into(),
        options: all,
        sql: String::new(),
    }
}

/// Polls the sources in random turns, at most `polls` times. True once all have ended.
fn run(sources: &mut [FileSource], random: &mut Random, polls: usize, numbers: &mut Vec<i64>) -> bool {
    let mut ended = vec![false; sources.len()];
    for _ in 0..polls {
        let subtask = random.below(sources.len() as u64) as usize;
        match sources[subtask].poll(1 + random.below(700) as usize, 0).unwrap() {
            SourceEvent::Batch(batch) => numbers.extend(batch.rows.column(0).as_primitive::<Int64Type>().values().iter()),
            SourceEvent::End => ended[subtask] = true,
            SourceEvent::Wait(_) => {}
        }
        if ended.iter().all(|ended| *ended) {
            return true;
        }
    }
    false
}

/// Reads the table over many restarts. Each time, what was read after the last checkpoint is read again; what was read before is not.
fn read_over_restarts(table: &ConnectorTable, seed: u64, most_polls: u64) -> Vec<i64> {
    read_over_restarts_in(table, seed, most_polls, &SourceContext::default())
}

fn read_over_restarts_in(table: &ConnectorTable, seed: u64, most_polls: u64, context: &SourceContext) -> Vec<i64> {
    let mut random = Random::seeded(seed);
    let mut state: Option<Splits> = None;
    let mut kept = Vec::new();
    loop {
        let parallelism = 1 + random.below(4) as usize;
        let mut sources = FileSource::open_all(table, &[0], parallelism, state.as_ref(), context).unwrap();
        let mut numbers = Vec::new();
        // Subtasks meet the barrier at different times: those behind it go on while others have not met it yet.
        let mut states = Splits::default();
        let mut counted = Vec::new();
        for subtask in 0..parallelism {
            run(&mut sources[subtask..], &mut random, most_polls as usize, &mut numbers);
            counted.append(&mut numbers);
            states.extend(sources[subtask].cut().unwrap());
            // This one's further rows belong to the next epoch, which is lost.
            let polls = random.below(most_polls) as usize;
            run(&mut sources[..=subtask], &mut random, polls, &mut Vec::new());
        }
        if let Some(memory) = &context.memory {
            assert!(memory.used() <= memory.limit(), "{} bytes are held", memory.used());
        }
        kept.extend(counted);
        let ended = run(&mut sources, &mut random, 0, &mut Vec::new());
        let progress = Progress::from_splits(&states.to_vec().unwrap()).unwrap();
        if ended || (!progress.files.is_empty() && progress.files.values().all(progress::FileProgress::is_complete)) {
            return kept;
        }
        state = Some(states);
    }
}

#[test]
fn every_record_comes_once_over_restarts_at_any_parallelism() {
    let folder = tempfile::tempdir().unwrap();
    let mut expected = Vec::new();
    for file in 0..4 {
        let mut text = String::new();
        for line in 0..5000 {
            let number = file * 5000 + line;
            text.push_str(&format!("{number},\"a\nquoted \"\"line\"\" {number}\"\n"));
            expected.push(number);
        }
        std::fs::write(folder.path().join(format!("{file}.csv")), text).unwrap();
    }
    for seed in 0..10 {
        let mut numbers = read_over_restarts(&table(folder.path(), &[("format", "csv")]), seed, 12);
        numbers.sort_unstable();
        assert_eq!(numbers.len(), expected.len(), "seed {seed}");
        assert_eq!(numbers, expected, "seed {seed}");
    }
}

/// Files come at every restart; those of a table with an end are read by the next start from a savepoint, and by no other.
#[test]
fn a_start_from_a_savepoint_reads_what_has_come_since() {
    for seed in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let add = |file: i64| {
            let text: String = (0..2000).map(|line| format!("{},\n", file * 2000 + line)).collect();
            std::fs::write(folder.path().join(format!("{}.csv", (file * 7) % 10)), text).unwrap();
        };
        let table = table(folder.path(), &[("format", "csv")]);
        let mut random = Random::seeded(seed);
        let mut state: Option<Splits> = None;
        let (mut kept, mut listed) = (Vec::new(), 0);
        for file in 0..10 {
            add(file);
            let from_savepoint = file == 9 || random.below(2) == 0;
            if from_savepoint || file == 0 {
                listed = file + 1;
            }
            let context = SourceContext { from_savepoint, ..SourceContext::default() };
            let parallelism = 1 + random.below(4) as usize;
            let mut sources = FileSource::open_all(&table, &[0], parallelism, state.as_ref(), &context).unwrap();
            // To the end, or not quite.
            let polls = if file == 9 || random.below(3) == 0 { usize::MAX } else { random.below(30) as usize };
            let mut numbers = Vec::new();
            let ended = run(&mut sources, &mut random, polls, &mut numbers);
            kept.extend(numbers);
            let mut states = Splits::default();
            sources.iter_mut().for_each(|source| states.extend(source.cut().unwrap()));
            state = Some(states);
            if ended {
                let mut numbers = kept.clone();
                numbers.sort_unstable();
                assert_eq!(numbers, (0..listed * 2000).collect::<Vec<i64>>(), "seed {seed}, file {file}");
            }
        }
    }
}

/// The file that was all of the table has gone: what was read of it is kept.
#[test]
fn a_start_from_a_savepoint_does_without_the_file_that_was_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    std::fs::write(&path, "1,\n").unwrap();
    let (table, mut numbers) = (table(&path, &[("format", "csv")]), Vec::new());
    let mut sources = FileSource::open_all(&table, &[0], 1, None, &SourceContext::default()).unwrap();
    assert!(run(&mut sources, &mut Random::seeded(1), 10, &mut numbers));
    let state = sources[0].cut().unwrap();
    std::fs::remove_file(&path).unwrap();
    let context = SourceContext { from_savepoint: true, ..SourceContext::default() };
    let mut sources = FileSource::open_all(&table, &[0], 1, Some(&state), &context).unwrap();
    assert!(run(&mut sources, &mut Random::seeded(1), 10, &mut numbers));
    assert_eq!(numbers, [1]);
}

#[test]
fn pieces_of_large_files_hold_whole_records_compressed_or_not() {
    let folder = tempfile::tempdir().unwrap();
    // Several pieces, with records of very different lengths.
    let mut text = String::new();
    let mut expected = Vec::new();
    let mut random = Random::seeded(7);
    while text.len() < 11 << 20 {
        let number = expected.len() as i64;
        let filler = "x\n".repeat(random.below(200) as usize * usize::from(number % 10 == 0));
        text.push_str(&format!("{number},\"{filler}\"\r\n"));
        expected.push(number);
    }
    text.truncate(text.len() - 2);
    std::fs::write(folder.path().join("a.csv"), &text).unwrap();
    std::fs::create_dir(folder.path().join("z")).unwrap();
    std::fs::write(folder.path().join("z/a.csv.zst"), zstd::encode_all(text.as_bytes(), 1).unwrap()).unwrap();
    for (seed, path) in [(1, folder.path().join("a.csv")), (2, folder.path().join("z"))] {
        let mut numbers = read_over_restarts(&table(&path, &[("format", "csv")]), seed, 400);
        numbers.sort_unstable();
        assert_eq!(numbers, expected, "{}", path.display());
    }
}

#[test]
fn a_file_that_changed_is_named_and_one_that_was_read_may_go() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    let text: String = (0..3000).map(|number| format!("{number},\n")).collect();
    std::fs::write(&path, &text).unwrap();
    let table = table(&path, &[("format", "csv")]);
    let open = |state: Option<&Splits>| FileSource::open_all(&table, &[0], 1, state, &SourceContext::default());
    let mut sources = open(None).unwrap();
    let poll = |source: &mut FileSource| match source.poll(1000, 0).unwrap() {
        SourceEvent::Batch(batch) => batch.num_rows(),
        _ => 0,
    };
    assert_eq!(poll(&mut sources[0]), 1000);
    let state = sources[0].cut().unwrap();
    // What is added later does not belong to it.
    std::fs::write(&path, format!("{text}9,\n9,\n")).unwrap();
    let mut sources = open(Some(&state)).unwrap();
    assert_eq!([poll(&mut sources[0]), poll(&mut sources[0]), poll(&mut sources[0])], [1000, 1000, 0]);
    let done = sources[0].cut().unwrap();
    std::fs::write(&path, "1,\n").unwrap();
    let error = open(Some(&state)).unwrap()[0].poll(1000, 0).unwrap_err();
    assert!(error.code().as_str() == "55000" && error.message().contains("a.csv"), "{error:?}");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(poll(&mut open(Some(&done)).unwrap()[0]), 0);
}

#[test]
fn another_file_of_the_same_length_is_told_from_the_one_that_was_being_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    let text: String = (1000..4000).map(|number| format!("{number},\n")).collect();
    std::fs::write(&path, &text).unwrap();
    let table = table(&path, &[("format", "csv")]);
    let open = |state: Option<&Splits>| FileSource::open_all(&table, &[], 1, state, &SourceContext::default()).unwrap();
    let rows = |source: &mut FileSource| {
        source.poll(1000, 0).map(|event| if let SourceEvent::Batch(batch) = event { batch.num_rows() } else { 0 })
    };
    let mut sources = open(None);
    let before = sources[0].cut().unwrap();
    assert_eq!(rows(&mut sources[0]).unwrap(), 1000);
    let state = sources[0].cut().unwrap();
    let assert_refused = |what: &str| {
        let error = rows(&mut open(Some(&state))[0]).unwrap_err();
        assert!(error.code().as_str() == "55000" && error.message().contains("a.csv"), "{what}: {error:?}");
    };
    // The state without a version, as it was written once, goes by the length.
    let mut without_version = state.to_vec().unwrap();
    for split in &mut without_version {
        let (offset, version) = split.offset.rsplit_once(';').unwrap();
        assert_eq!(version.len(), 16, "{}", split.offset);
        split.offset = offset.into();
    }
    let without_version = Splits { open: without_version, closed: Vec::new() };
    assert_eq!(rows(&mut open(Some(&state))[0]).unwrap(), 1000);

    let written = std::fs::metadata(&path).unwrap().modified().unwrap();
    let touch = |to| std::fs::File::options().write(true).open(&path).unwrap().set_modified(to).unwrap();
    touch(written + std::time::Duration::from_secs(1));
    assert_refused("written to in its place");
    touch(written);
    assert_eq!(rows(&mut open(Some(&state))[0]).unwrap(), 1000);
    // One whose time is the same, and one that is longer.
    // The first one stays, or a later one might get its inode.
    std::fs::hard_link(&path, folder.path().join(".first")).unwrap();
    for more in ["", "9,\n"] {
        let beside = folder.path().join(".beside");
        std::fs::write(&beside, format!("{text}{more}")).unwrap();
        std::fs::rename(&beside, &path).unwrap();
        touch(written);
        assert_refused("in its place");
    }
    std::fs::write(&path, &text).unwrap();
    assert_eq!(rows(&mut open(Some(&without_version))[0]).unwrap(), 1000);
    // Nothing was read of it yet: whichever is there is read.
    assert_eq!(rows(&mut open(Some(&before))[0]).unwrap(), 1000);
}

#[test]
fn what_cannot_be_decompressed_is_named_with_where() {
    let text: String = (0..100_000).map(|number| format!("{number},{}\n", number * 7919 % 100_003)).collect();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, text.as_bytes()).unwrap();
    let gzip = encoder.finish().unwrap();
    let zstd = zstd::encode_all(text.as_bytes(), 1).unwrap();
    for (name, bytes, from_start) in [
        ("b.csv.gz", &b"this is no gzip"[..], true),
        ("b.csv.zst", &b"this is no zstd"[..], true),
        ("b.csv.gz", &gzip[..gzip.len() / 2], false),
        ("b.csv.zst", &zstd[..zstd.len() / 2], false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.csv"), "1,a\n").unwrap();
        std::fs::write(folder.path().join(name), bytes).unwrap();
        let table = table(folder.path(), &[("format", "csv")]);
        let mut source = FileSource::open_all(&table, &[0], 1, None, &SourceContext::default()).unwrap().remove(0);
        let error = loop {
            match source.poll(1000, 0) {
                Ok(SourceEvent::End) => panic!("{name} was read"),
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        let (message, detail) = (error.message(), error.detail().unwrap_or_default());
        assert!(error.code().as_str() == "22000" && message.contains(&format!("{name}\" can't be read")), "{error:?}");
        assert_eq!(detail.contains("behind byte 0 of its content"), from_start, "{detail}");
    }
}

/// What subtasks noted at one barrier, and the numbers that each had sent before it.
#[derive(Default)]
struct AtBarrier {
    splits: Splits,
    met: usize,
    numbers: Vec<i64>,
}

#[test]
fn settled_files_are_noted_once_at_every_barrier_however_far_subtasks_are_apart() {
    let folder = tempfile::tempdir().unwrap();
    let mut expected = Vec::new();
    for file in 0..400 {
        // One of ten has no records.
        let lines = if file % 10 == 3 { 0 } else { 1 + file % 4 };
        let numbers = file * 10..file * 10 + lines;
        let text: String = numbers.clone().map(|number| format!("{number},x\n")).collect();
        std::fs::write(folder.path().join(format!("{file:03}.csv")), text).unwrap();
        expected.extend(numbers);
    }
    for (seed, watch) in [(1, false), (2, true), (3, false), (4, true), (5, true), (6, false)] {
        let options: &[(&str, &str)] = if watch { &[("format", "csv"), ("watch", "1 ms")] } else { &[("format", "csv")] };
        let table = table(folder.path(), options);
        let mut random = Random::seeded(seed);
        let mut state: Option<Splits> = None;
        let mut kept: Vec<i64> = Vec::new();
        let mut largest = 0;
        for life in 0.. {
            assert!(life < 500, "seed {seed}: only {} of {} records", kept.len(), expected.len());
            let parallelism = 1 + random.below(4) as usize;
            let mut sources = FileSource::open_all(&table, &[0], parallelism, state.as_ref(), &SourceContext::default()).unwrap();
            let mut barriers: Vec<AtBarrier> = Vec::new();
            let mut met = vec![0; parallelism];
            let mut sent: Vec<Vec<i64>> = vec![Vec::new(); parallelism];
            for step in 0..100 + random.below(400) {
                let subtask = random.below(parallelism as u64) as usize;
                // Nobody is more than a few barriers ahead.
                let is_behind = met[subtask] <= met.iter().min().unwrap() + 3;
                if random.below(3) == 0 && is_behind {
                    if barriers.len() == met[subtask] {
                        barriers.push(AtBarrier::default());
                    }
                    let barrier = &mut barriers[met[subtask]];
                    let splits = sources[subtask].cut().unwrap();
                    largest = largest.max(splits.open.len());
                    barrier.splits.extend(splits);
                    barrier.met += 1;
                    barrier.numbers.extend_from_slice(&sent[subtask]);
                    met[subtask] += 1;
                } else if let SourceEvent::Batch(batch) = sources[subtask].poll(1 + random.below(3) as usize, step as i64 * 10_000).unwrap()
                {
                    sent[subtask].extend(batch.rows.column(0).as_primitive::<Int64Type>().values().iter());
                }
            }
            let whole = barriers.iter().take_while(|barrier| barrier.met == parallelism).count();
            // All that was sent before one of them is never sent again, and all else is.
            for (at, barrier) in barriers.iter().take(whole).enumerate() {
                let progress = Progress::from_splits(&barrier.splits.to_vec().unwrap()).unwrap();
                let mut noted = Vec::new();
                for (path, progress) in &progress.files {
                    let text = std::fs::read(path).unwrap();
                    for (from, to) in &progress.read {
                        let part = std::str::from_utf8(&text[*from as usize..*to as usize]).unwrap();
                        noted.extend(part.lines().map(|line| line.split(',').next().unwrap().parse::<i64>().unwrap()));
                    }
                }
                let mut numbers = kept.clone();
                numbers.extend_from_slice(&barrier.numbers);
                numbers.sort_unstable();
                noted.sort_unstable();
                assert_eq!(noted, numbers, "seed {seed}, life {life}, barrier {at}");
            }
            let Some(chosen) = (whole > 0).then(|| &barriers[random.below(whole as u64) as usize]) else { continue };
            kept.extend_from_slice(&chosen.numbers);
            state = Some(chosen.splits.clone());
            if kept.len() == expected.len() {
                break;
            }
        }
        kept.sort_unstable();
        assert_eq!(kept, expected, "seed {seed}");
        let state = state.unwrap();
        assert!(state.closed.len() >= 3, "seed {seed}: {} portions", state.closed.len());
        let most = if watch { 200 } else { 400 };
        assert!(largest <= most, "seed {seed}: {largest} open splits");
    }
}

#[test]
fn another_run_has_come_to_a_target_once_it_has_sent_all_of_it() {
    let folder = tempfile::tempdir().unwrap();
    for file in 0..120 {
        std::fs::write(folder.path().join(format!("{file:03}.csv")), format!("{file},x\n")).unwrap();
    }
    let table = table(folder.path(), &[("format", "csv")]);
    let open = |parallelism| FileSource::open_all(&table, &[0], parallelism, None, &SourceContext::default()).unwrap();
    let mut sources = open(1);
    let mut targets = Vec::new();
    for _ in 0..110 {
        assert!(matches!(sources[0].poll(10, 0).unwrap(), SourceEvent::Batch(_)));
        targets.push(sources[0].cut().unwrap());
    }
    assert_eq!(targets[109].closed.len(), 2);
    for at in [3, 60, 109] {
        let mut sources = open(2);
        let target = &targets[at];
        let mut sent = 0;
        while !sources[0].has_come_to(target).unwrap() {
            assert!(!sources[1].has_come_to(target).unwrap());
            let batches = sources.iter_mut().filter_map(|source| match source.poll(10, 0).unwrap() {
                SourceEvent::Batch(batch) => Some(batch.num_rows()),
                _ => None,
            });
            sent += batches.sum::<usize>();
            sources.iter_mut().for_each(|source| drop(source.cut().unwrap()));
        }
        assert!(sent > at, "target {at} was reached with {sent} records");
        assert!(sources[1].has_come_to(target).unwrap());
    }
}
