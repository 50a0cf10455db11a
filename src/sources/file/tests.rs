//! A `file` source over restarts: every record once, whatever the pieces, the parallelism and the moments of the checkpoints.

use std::collections::BTreeMap;
use std::path::Path;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use weir_catalog::{Column, ConnectorTable, SqlType};

use super::*;
use crate::seams::random::Random;

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
    let mut random = Random::seeded(seed);
    let mut state: Option<Vec<SplitState>> = None;
    let mut kept = Vec::new();
    loop {
        let parallelism = 1 + random.below(4) as usize;
        let mut sources = FileSource::open_all(table, &[0], parallelism, state.as_deref(), &SourceContext::default()).unwrap();
        let mut numbers = Vec::new();
        // Subtasks meet the barrier at different times: those behind it go on while others have not met it yet.
        let mut states = Vec::new();
        let mut counted = Vec::new();
        for subtask in 0..parallelism {
            run(&mut sources[subtask..], &mut random, most_polls as usize, &mut numbers);
            counted.append(&mut numbers);
            states.extend(sources[subtask].splits().unwrap());
            // This one's further rows belong to the next epoch, which is lost.
            let polls = random.below(most_polls) as usize;
            run(&mut sources[..=subtask], &mut random, polls, &mut Vec::new());
        }
        kept.extend(counted);
        let ended = run(&mut sources, &mut random, 0, &mut Vec::new());
        let progress = Progress::from_splits(&states).unwrap();
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
    let open = |state: Option<&[SplitState]>| FileSource::open_all(&table, &[0], 1, state, &SourceContext::default());
    let mut sources = open(None).unwrap();
    let poll = |source: &mut FileSource| match source.poll(1000, 0).unwrap() {
        SourceEvent::Batch(batch) => batch.num_rows(),
        _ => 0,
    };
    assert_eq!(poll(&mut sources[0]), 1000);
    let state = sources[0].splits().unwrap();
    // What is added later does not belong to it.
    std::fs::write(&path, format!("{text}9,\n9,\n")).unwrap();
    let mut sources = open(Some(&state)).unwrap();
    assert_eq!([poll(&mut sources[0]), poll(&mut sources[0]), poll(&mut sources[0])], [1000, 1000, 0]);
    let done = sources[0].splits().unwrap();
    std::fs::write(&path, "1,\n").unwrap();
    let error = open(Some(&state)).unwrap()[0].poll(1000, 0).unwrap_err();
    assert!(error.code().as_str() == "55000" && error.message().contains("a.csv"), "{error:?}");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(poll(&mut open(Some(&done)).unwrap()[0]), 0);
}
