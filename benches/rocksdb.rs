//! What RocksDB costs for the ways in which weir uses it: the figures behind the choices in `src/state/rocks.rs`, kept in `docs/performance.md`.
//!
//! `cargo bench --bench rocksdb -- [--keys N] [--quick] [--only SECTION] [--dir FOLDER]`; the sections are `reads`, `writes`, `checkpoints`, `deletes`
//! and `compaction`. One million keys unless told otherwise. A key is as an operator's state has it (key group, tag, one BIGINT: 12 bytes), a
//! value 24 bytes of which half do not compress. Prints one Markdown table a section.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rocksdb::compaction_filter::CompactionFilter;
use rocksdb::compaction_filter_factory::{CompactionFilterContext, CompactionFilterFactory};
use rocksdb::{
    ColumnFamilyDescriptor, CompactionDecision, DB, DBCompactionStyle, FlushOptions, IngestExternalFileOptions, Options, SstFileWriter,
    UniversalCompactOptions, WriteBatch, WriteOptions,
};
use weir::state::key_codec::{append_state_key, append_state_prefix};
use weir::state::{SharedRocks, Writes};
use weir::stream::key_group::MAX_PARALLELISM;

type Error = Box<dyn std::error::Error>;
type Result<T> = std::result::Result<T, Error>;

const TAG: u8 = 1;
const VALUE_BYTES: usize = 24;
const CACHE_BYTES: usize = 256 << 20;
const WRITE_BUFFER_BYTES: usize = 64 << 20;
const REPETITIONS: usize = 5;

struct Arguments {
    keys: u64,
    only: Option<String>,
    dir: Option<PathBuf>,
}

fn arguments() -> Result<Arguments> {
    let mut arguments = Arguments { keys: 1_000_000, only: None, dir: None };
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        let mut value = || given.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--keys" => arguments.keys = value()?.replace('_', "").parse()?,
            "--quick" => arguments.keys = 50_000,
            "--only" => arguments.only = Some(value()?),
            "--dir" => arguments.dir = Some(value()?.into()),
            // What `cargo bench` adds.
            "--bench" => {}
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    Ok(arguments)
}

fn main() -> Result<()> {
    let arguments = arguments()?;
    let folder = match &arguments.dir {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    let bench =
        Bench { keys: arguments.keys, folder: folder.path().to_path_buf(), shared: SharedRocks::new(CACHE_BYTES, WRITE_BUFFER_BYTES)? };
    println!("RocksDB with {} keys, {} MiB cache, in {:?}\n", bench.keys, CACHE_BYTES >> 20, folder.path());
    bench.fill()?;
    let sections: [(&str, fn(&Bench) -> Result<()>); 5] = [
        ("reads", Bench::reads),
        ("writes", Bench::writes),
        ("checkpoints", Bench::checkpoints),
        ("deletes", Bench::deletes),
        ("compaction", Bench::compaction),
    ];
    for (name, run) in sections {
        if arguments.only.as_deref().is_none_or(|only| only == name) {
            println!("### {name}\n");
            run(&bench)?;
            println!();
        }
    }
    Ok(())
}

/// SplitMix64: one number from another, so that a run can be repeated.
fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

fn key(id: u64) -> Vec<u8> {
    let mut encoded = [1; 9];
    encoded[1..].copy_from_slice(&(id ^ 1 << 63).to_be_bytes());
    let mut key = Vec::with_capacity(12);
    append_state_key(&mut key, TAG, &encoded);
    key
}

fn value(id: u64, round: u64) -> Vec<u8> {
    let mut value = vec![0; VALUE_BYTES];
    value[..8].copy_from_slice(&id.to_le_bytes());
    value[8..20].copy_from_slice(&[mix(id ^ round << 40).to_le_bytes().as_slice(), &[round as u8; 4]].concat());
    value
}

/// `count` distinct keys of `0..keys`, drawn uniformly, in key order.
fn dirty(keys: u64, count: usize, round: u64) -> Writes {
    let mut chosen = BTreeMap::new();
    let mut draw = round << 32;
    while chosen.len() < count {
        draw += 1;
        let id = mix(draw) % keys;
        chosen.insert(key(id), Some(value(id, round)));
    }
    chosen.into_iter().collect()
}

/// Wall and CPU time, the latter of one thread or of the whole process: what other processes do to the machine distorts only the former.
struct Stopwatch {
    start: Instant,
    clock: libc::clockid_t,
    start_cpu: Duration,
}

impl Stopwatch {
    fn of_thread() -> Stopwatch {
        Stopwatch::start(libc::CLOCK_THREAD_CPUTIME_ID)
    }

    fn of_process() -> Stopwatch {
        Stopwatch::start(libc::CLOCK_PROCESS_CPUTIME_ID)
    }

    fn start(clock: libc::clockid_t) -> Stopwatch {
        Stopwatch { start: Instant::now(), clock, start_cpu: cpu_time(clock) }
    }

    fn wall(&self) -> Duration {
        self.start.elapsed()
    }

    fn cpu(&self) -> Duration {
        cpu_time(self.clock) - self.start_cpu
    }
}

fn cpu_time(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result, which both clocks always give.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn rate(count: usize, time: Duration) -> String {
    let rate = count as f64 / time.as_secs_f64();
    if rate >= 1e6 { format!("{:.2} M/s", rate / 1e6) } else { format!("{:.0} k/s", rate / 1e3) }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

fn row(cells: &[String]) {
    println!("| {} |", cells.join(" | "));
}

fn header(cells: &[&str]) {
    println!("| {} |\n| {} |", cells.join(" | "), cells.iter().map(|_| "---").collect::<Vec<_>>().join(" | "));
}

struct Bench {
    keys: u64,
    folder: PathBuf,
    shared: SharedRocks,
}

impl Bench {
    fn open(&self, name: &str, options: &Options) -> Result<DB> {
        let columns = [ColumnFamilyDescriptor::new(rocksdb::DEFAULT_COLUMN_FAMILY_NAME, options.clone())];
        Ok(DB::open_cf_descriptors(options, self.folder.join(name), columns)?)
    }

    /// Makes the database that those of the sections begin as: all keys at the bottom, as after a full compaction.
    fn fill(&self) -> Result<()> {
        let start = Instant::now();
        let options = self.shared.options()?;
        let db = self.open("filled", &options)?;
        // Key groups are hashes, so the keys are sorted in runs that fit into memory: one for some groups at a time.
        let runs = (self.keys / 5_000_000 + 1).min(MAX_PARALLELISM as u64);
        let groups = (MAX_PARALLELISM as u64).div_ceil(runs);
        for run in 0..runs {
            let mut keys: Vec<(Vec<u8>, u64)> = (0..self.keys)
                .map(|id| (key(id), id))
                .filter(|(key, _)| u64::from(u16::from_be_bytes([key[0], key[1]])) / groups == run)
                .collect();
            keys.sort_unstable();
            self.ingest(&db, &options, keys.into_iter().map(|(key, id)| (key, Some(value(id, 0)))))?;
        }
        println!("filled in {:.1} s\n", start.elapsed().as_secs_f64());
        Ok(())
    }

    /// A database of its own with all keys.
    fn filled(&self, name: &str, options: &Options) -> Result<DB> {
        let (from, to) = (self.folder.join("filled"), self.folder.join(name));
        std::fs::create_dir(&to)?;
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            let target = to.join(entry.file_name());
            if entry.path().extension().is_some_and(|extension| extension == "sst") {
                std::fs::hard_link(entry.path(), target)?;
            } else if entry.file_name() != "LOCK" {
                std::fs::copy(entry.path(), target)?;
            }
        }
        self.open(name, options)
    }

    fn ingest<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        db: &DB,
        options: &Options,
        entries: impl Iterator<Item = (K, Option<V>)>,
    ) -> Result<()> {
        static FILES: AtomicU64 = AtomicU64::new(0);
        let mut entries = entries.peekable();
        let mut paths = Vec::new();
        while entries.peek().is_some() {
            let path = self.folder.join(format!("ingest-{}.sst", FILES.fetch_add(1, Ordering::Relaxed)));
            let mut writer = SstFileWriter::create(options);
            writer.open(&path)?;
            let mut bytes = 0;
            while bytes < 64 << 20
                && let Some((key, value)) = entries.next()
            {
                bytes += key.as_ref().len() + VALUE_BYTES;
                match value {
                    Some(value) => writer.put(key, value)?,
                    None => writer.delete(key)?,
                }
            }
            writer.finish()?;
            paths.push(path);
        }
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(true);
        Ok(db.ingest_external_file_opts(&options, paths)?)
    }

    fn write_batch(&self, db: &DB, writes: Writes) -> Result<()> {
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        let mut batch = WriteBatch::default();
        for (key, value) in writes.iter() {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
            if batch.size_in_bytes() >= 4 << 20 {
                db.write_opt(std::mem::take(&mut batch), &options)?;
            }
        }
        Ok(db.write_opt(batch, &options)?)
    }

    fn flush(&self, db: &DB) -> Result<()> {
        let mut options = FlushOptions::default();
        options.set_wait(true);
        Ok(db.flush_opt(&options)?)
    }

    /// Random gets, and sorted multi-gets of some sizes, of keys that exist and keys that do not; over one sorted run and over several, and over
    /// other layouts of the table files. Rates are by the CPU time of the reading thread.
    fn reads(&self) -> Result<()> {
        let options = self.shared.options()?;
        header(&["read", "blocks", "runs", "hits", "misses"]);
        let db = self.filled("reads", &options)?;
        self.read(&db, "8 KiB", "1")?;
        db.set_options(&[("disable_auto_compactions", "true")])?;
        for round in 1..=6 {
            self.write_batch(&db, dirty(self.keys, self.keys as usize / 100, round))?;
            self.flush(&db)?;
        }
        self.read(&db, "8 KiB", "7")?;
        drop(db);
        if self.keys <= 5_000_000 {
            for (name, bytes, hash) in [("4 KiB", 4 << 10, true), ("16 KiB", 16 << 10, true), ("8 KiB without hash index", 8 << 10, false)]
            {
                let mut options = options.clone();
                let mut table = self.shared.table_options();
                table.set_block_size(bytes);
                if !hash {
                    table.set_data_block_index_type(rocksdb::DataBlockIndexType::BinarySearch);
                }
                options.set_block_based_table_factory(&table);
                let db = self.open(name, &options)?;
                let entries: BTreeMap<Vec<u8>, u64> = (0..self.keys).map(|id| (key(id), id)).collect();
                self.ingest(&db, &options, entries.into_iter().map(|(key, id)| (key, Some(value(id, 0)))))?;
                self.read(&db, name, "1")?;
            }
        }
        Ok(())
    }

    fn read(&self, db: &DB, blocks: &str, runs: &str) -> Result<()> {
        let mut cells = vec!["get".to_string(), blocks.to_string(), runs.to_string()];
        for shift in [0, self.keys] {
            let count = 100_000.min(self.keys as usize);
            let keys: Vec<Vec<u8>> = (0..count as u64).map(|i| key(mix(i) % self.keys + shift)).collect();
            let mut times = Vec::new();
            for _ in 0..REPETITIONS {
                let watch = Stopwatch::of_thread();
                let mut found = 0;
                for key in &keys {
                    found += db.get_pinned(key)?.is_some() as usize;
                }
                times.push(watch.cpu());
                assert_eq!(found, if shift == 0 { count } else { 0 });
            }
            cells.push(rate(count, median(times)));
        }
        row(&cells);
        for size in [1_000usize, 10_000, 100_000].into_iter().filter(|size| *size as u64 <= self.keys / 10) {
            let mut cells = vec![format!("multi-get of {size}"), blocks.to_string(), runs.to_string()];
            for shift in [0, self.keys] {
                cells.push(rate(size, self.multi_get(db, size, shift)?));
            }
            row(&cells);
        }
        Ok(())
    }

    /// The CPU time of a sorted multi-get of random keys, which exist if `shift` is zero.
    fn multi_get(&self, db: &DB, size: usize, shift: u64) -> Result<Duration> {
        let column_family = db.cf_handle(rocksdb::DEFAULT_COLUMN_FAMILY_NAME).ok_or("no column family")?;
        let mut times = Vec::new();
        for repetition in 0..REPETITIONS as u64 {
            let mut keys: Vec<Vec<u8>> = (0..size as u64).map(|i| key(mix(i + repetition * 1_000_003) % self.keys + shift)).collect();
            keys.sort();
            let watch = Stopwatch::of_thread();
            let mut found = 0;
            for keys in keys.chunks(1024) {
                for value in db.batched_multi_get_cf(column_family, keys, true) {
                    found += value?.is_some() as usize;
                }
            }
            times.push(watch.cpu());
            assert_eq!(found, if shift == 0 { size } else { 0 });
        }
        Ok(median(times))
    }

    /// A sorted dirty set through a memtable and a flush, and as a table file of its own: wall time, and CPU time of the process.
    fn writes(&self) -> Result<()> {
        let mut options = self.shared.options()?;
        options.set_disable_auto_compactions(true);
        header(&["rows", "write batch + flush", "CPU", "SstFileWriter + ingest", "CPU"]);
        for size in [100usize, 1_000, 10_000, 30_000, 100_000, 300_000, 1_000_000].into_iter().filter(|size| *size as u64 <= self.keys / 2)
        {
            let name = format!("writes-{size}");
            let db = self.filled(&name, &options)?;
            let mut times = [const { Vec::new() }; 4];
            for round in 0..REPETITIONS as u64 {
                let writes = dirty(self.keys, size, 2 * round + 1);
                let watch = Stopwatch::of_process();
                self.write_batch(&db, writes)?;
                self.flush(&db)?;
                times[0].push(watch.wall());
                times[1].push(watch.cpu());
                let writes = dirty(self.keys, size, 2 * round + 2);
                let watch = Stopwatch::of_process();
                self.ingest(&db, &options, writes.iter())?;
                times[2].push(watch.wall());
                times[3].push(watch.cpu());
            }
            let [batch, batch_cpu, ingest, ingest_cpu] = times.map(median);
            let cpu = |time: Duration| format!("{} ({})", milliseconds(time), rate(size, time));
            row(&[size.to_string(), milliseconds(batch), cpu(batch_cpu), milliseconds(ingest), cpu(ingest_cpu)]);
            drop(db);
            std::fs::remove_dir_all(self.folder.join(name))?;
        }
        Ok(())
    }

    /// Checkpoints of a database with some dirty rows, the flush included.
    fn checkpoints(&self) -> Result<()> {
        let options = self.shared.options()?;
        let db = self.filled("checkpoints", &options)?;
        header(&["dirty rows", "write batch", "checkpoint", "files", "new files"]);
        let mut number = 0;
        for size in [0usize, 1_000, 10_000, 100_000].into_iter().filter(|size| *size as u64 <= self.keys / 2) {
            let (mut writes, mut times, mut files) = (Vec::new(), Vec::new(), (0, 0));
            for _ in 0..REPETITIONS {
                number += 1;
                let before = table_files(&self.folder.join("checkpoints"))?;
                let changes = dirty(self.keys, size, number);
                let start = Instant::now();
                self.write_batch(&db, changes)?;
                writes.push(start.elapsed());
                let start = Instant::now();
                let dir = self.folder.join(format!("checkpoint-{number}"));
                rocksdb::checkpoint::Checkpoint::new(&db)?.create_checkpoint(&dir)?;
                times.push(start.elapsed());
                let after = table_files(&dir)?;
                files = (after.len(), after.keys().filter(|name| !before.contains_key(*name)).count());
                std::fs::remove_dir_all(&dir)?;
            }
            row(&[size.to_string(), milliseconds(median(writes)), milliseconds(median(times)), files.0.to_string(), files.1.to_string()]);
        }
        Ok(())
    }

    /// Closing windows: one range tombstone for each key group and window, against a compaction filter that drops what is behind the watermark.
    fn deletes(&self) -> Result<()> {
        const WINDOWS: u64 = 200;
        let per_window = (self.keys / WINDOWS).max(1);
        // A window's key: key group, tag, end of the window, key.
        let window_key = |window: u64, id: u64| {
            let mut key = Vec::with_capacity(20);
            append_state_prefix(&mut key, (mix(id) % MAX_PARALLELISM as u64) as u16, TAG);
            key.extend((window ^ 1 << 63).to_be_bytes());
            key.extend(id.to_be_bytes());
            key
        };
        let rows = |window: u64| -> Writes {
            let rows: BTreeMap<_, _> = (0..per_window).map(|id| (window_key(window, id), Some(value(id, window)))).collect();
            rows.into_iter().collect()
        };
        header(&["closing a window by", "close", "get in the open window", "scan of a group's open window", "size after all"]);
        let watermark = Arc::new(AtomicU64::new(0));
        for kind in ["nothing", "range tombstones", "compaction filter"] {
            watermark.store(0, Ordering::Release);
            let mut options = self.shared.options()?;
            if kind == "compaction filter" {
                options.set_compaction_filter_factory(DropClosedWindows { watermark: watermark.clone(), name: c"closed windows".into() });
            }
            let name = format!("deletes-{}", kind.replace(' ', "-"));
            let db = self.open(&name, &options)?;
            let mut write_options = WriteOptions::default();
            write_options.disable_wal(true);
            let mut closes = Vec::new();
            for window in 0..WINDOWS {
                self.write_batch(&db, rows(window))?;
                if window % 10 == 9 {
                    self.flush(&db)?;
                }
                if window == 0 {
                    continue;
                }
                let start = Instant::now();
                match kind {
                    "range tombstones" => {
                        let mut batch = WriteBatch::default();
                        for group in 0..MAX_PARALLELISM as u16 {
                            let (mut from, mut to) = (Vec::new(), Vec::new());
                            append_state_prefix(&mut from, group, TAG);
                            append_state_prefix(&mut to, group, TAG);
                            from.extend(((window - 1) ^ 1 << 63).to_be_bytes());
                            to.extend((window ^ 1 << 63).to_be_bytes());
                            batch.delete_range(from, to);
                        }
                        db.write_opt(batch, &write_options)?;
                    }
                    "compaction filter" => watermark.store(window, Ordering::Release),
                    _ => {}
                }
                closes.push(start.elapsed());
            }
            let count = per_window.min(20_000);
            let start = Instant::now();
            for id in 0..count {
                assert!(db.get_pinned(window_key(WINDOWS - 1, mix(id) % per_window))?.is_some());
            }
            let gets = rate(count as usize, start.elapsed());
            let start = Instant::now();
            let mut scanned = 0u64;
            for group in 0..MAX_PARALLELISM as u16 {
                let mut from = Vec::new();
                append_state_prefix(&mut from, group, TAG);
                from.extend(((WINDOWS - 1) ^ 1 << 63).to_be_bytes());
                let mut to = Vec::new();
                append_state_prefix(&mut to, group, TAG + 1);
                let mut read_options = rocksdb::ReadOptions::default();
                read_options.set_iterate_upper_bound(to);
                let mut iterator = db.raw_iterator_opt(read_options);
                iterator.seek(from);
                while iterator.valid() {
                    scanned += 1;
                    iterator.next();
                }
                iterator.status()?;
            }
            assert_eq!(scanned, per_window);
            let scan = start.elapsed() / MAX_PARALLELISM as u32;
            self.flush(&db)?;
            db.wait_for_compact(&rocksdb::WaitForCompactOptions::default())?;
            let bytes: u64 = db.live_files()?.iter().map(|file| file.size as u64).sum();
            row(&[
                kind.to_string(),
                format!("{:.0} µs", median(closes).as_secs_f64() * 1e6),
                gets,
                format!("{:.0} µs", scan.as_secs_f64() * 1e6),
                format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
            ]);
        }
        Ok(())
    }

    /// A uniformly random hundredth of the keys changes between checkpoints: what each would have to store, and what reads then cost.
    fn compaction(&self) -> Result<()> {
        const ROUNDS: u64 = 40;
        header(&[
            "compaction",
            "stored per checkpoint",
            "at most",
            "written and flushed in",
            "runs at the end",
            "multi-get, hits",
            "misses",
            "size",
        ]);
        let universal = |amplification: i32, trigger: i32| {
            move |options: &mut Options| {
                let mut universal = UniversalCompactOptions::default();
                universal.set_max_size_amplification_percent(amplification);
                options.set_compaction_style(DBCompactionStyle::Universal);
                options.set_universal_compaction_options(&universal);
                options.set_level_zero_file_num_compaction_trigger(trigger);
            }
        };
        let level = |options: &mut Options| {
            options.set_compaction_style(DBCompactionStyle::Level);
            options.set_level_zero_file_num_compaction_trigger(4);
        };
        let kinds: [(&str, Box<dyn Fn(&mut Options)>); 4] = [
            ("level", Box::new(level)),
            ("universal, 200 %, 4 runs", Box::new(universal(200, 4))),
            ("universal, 50 %, 8 runs", Box::new(universal(50, 8))),
            ("universal, 25 %, 8 runs", Box::new(universal(25, 8))),
        ];
        for (number, (name, set)) in kinds.into_iter().enumerate() {
            let mut options = self.shared.options()?;
            set(&mut options);
            let folder = format!("compaction-{number}");
            let db = self.filled(&folder, &options)?;
            let state_bytes: u64 = db.live_files()?.iter().map(|file| file.size as u64).sum();
            let mut stored = table_files(&self.folder.join(&folder))?;
            let (mut total, mut most, mut cpu_time) = (0u64, 0u64, Duration::ZERO);
            let mut times = Vec::new();
            for round in 1..=ROUNDS {
                let writes = dirty(self.keys, self.keys as usize / 100, round);
                let watch = Stopwatch::of_process();
                self.write_batch(&db, writes)?;
                let dir = self.folder.join("compaction-checkpoint");
                rocksdb::checkpoint::Checkpoint::new(&db)?.create_checkpoint(&dir)?;
                times.push(watch.wall());
                let files = table_files(&dir)?;
                let new: u64 = files.iter().filter(|(name, _)| !stored.contains_key(*name)).map(|(_, bytes)| bytes).sum();
                total += new;
                most = most.max(new);
                stored = files;
                std::fs::remove_dir_all(&dir)?;
                // A checkpoint interval is long enough for the compactions that the one before started.
                db.wait_for_compact(&rocksdb::WaitForCompactOptions::default())?;
                cpu_time += watch.cpu();
            }
            let files = db.live_files()?;
            let size: u64 = files.iter().map(|file| file.size as u64).sum();
            let deep: std::collections::BTreeSet<i32> = files.iter().map(|file| file.level).filter(|level| *level > 0).collect();
            let runs = files.iter().filter(|file| file.level == 0).count() + deep.len();
            let count = 20_000.min(self.keys as usize / 10);
            let reads = [rate(count, self.multi_get(&db, count, 0)?), rate(count, self.multi_get(&db, count, self.keys)?)];
            let percent = |bytes: u64| format!("{:.1} %", 100.0 * bytes as f64 / state_bytes as f64);
            row(&[
                name.to_string(),
                percent(total / ROUNDS),
                percent(most),
                milliseconds(median(times)),
                milliseconds(cpu_time / ROUNDS as u32),
                runs.to_string(),
                reads[0].clone(),
                reads[1].clone(),
                percent(size),
            ]);
            drop(db);
            std::fs::remove_dir_all(self.folder.join(folder))?;
        }
        Ok(())
    }
}

/// Drops, when it is compacted, what belongs to windows that end before the watermark.
struct DropClosedWindows {
    watermark: Arc<AtomicU64>,
    name: std::ffi::CString,
}

struct DropBefore {
    watermark: u64,
    name: std::ffi::CString,
}

impl CompactionFilterFactory for DropClosedWindows {
    type Filter = DropBefore;

    fn create(&mut self, _context: CompactionFilterContext) -> DropBefore {
        DropBefore { watermark: self.watermark.load(Ordering::Acquire), name: self.name.clone() }
    }

    fn name(&self) -> &std::ffi::CStr {
        &self.name
    }
}

impl CompactionFilter for DropBefore {
    fn filter(&mut self, _level: u32, key: &[u8], _value: &[u8]) -> CompactionDecision {
        let window = key.get(3..11).and_then(|bytes| bytes.try_into().ok()).map(|bytes| u64::from_be_bytes(bytes) ^ 1 << 63);
        if window.is_some_and(|window| window < self.watermark) { CompactionDecision::Remove } else { CompactionDecision::Keep }
    }

    fn name(&self) -> &std::ffi::CStr {
        &self.name
    }
}

/// The table files in a folder, with their lengths.
fn table_files(dir: &Path) -> Result<HashMap<String, u64>> {
    let mut files = HashMap::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if let Ok(name) = entry.file_name().into_string()
            && name.ends_with(".sst")
        {
            files.insert(name, entry.metadata()?.len());
        }
    }
    Ok(files)
}
