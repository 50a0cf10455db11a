//! The RocksDB state backend: one database for each stateful subtask, all in one [`SharedRocks`].
//!
//! The choices in `options` and in [`RocksBackend::write`] come from the benchmark in `benches/rocksdb.rs`; its figures are in `docs/performance.md`.
//!
//! # Invariants
//! - No write goes to RocksDB's log: what survives is what a checkpoint has flushed. The folder of an open database is scratch.
//! - Every key begins with its key group (2 bytes, big-endian), which is in the backend's range.
//! - Files of a restore part are linked or read, never written: table files are immutable, and the others are copied.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompactionStyle, DBCompressionType, DBRawIterator,
    DataBlockIndexType, Env, ErrorKind, IngestExternalFileOptions, LogLevel, Options, ReadOptions, Snapshot, SstFileWriter,
    UniversalCompactOptions, WriteBatch, WriteBufferManager, WriteOptions,
};
use weir_catalog::{Error, Result, SqlState};

use super::run_file::RunReader;
use super::{Entry, RestorePart, StateBackend, StateBackendKind, StateSize, StateSnapshot, Writes, key_range};
use crate::seams::faults::{self, Fault};
use crate::stream::KeyGroupRange;

#[cfg(test)]
mod tests;

/// Keys looked up in one call. A call pins the blocks of what it found until its values are handed out.
const MULTI_GET_KEYS: usize = 1024;
/// From this many sorted rows on a table file of their own costs less than the way through a memtable. See `docs/performance.md`.
const INGEST_MIN_ROWS: usize = 10_000;
/// The bytes of one write batch: what a memtable takes in one go.
const WRITE_BATCH_BYTES: usize = 4 << 20;
const TABLE_FILE_BYTES: u64 = 64 << 20;
/// The bytes of keys and values from which on a write of sorted rows begins another table file. Each is a sorted run until it is compacted.
const INGEST_FILE_BYTES: u64 = 256 << 20;
const MAX_MEMTABLE_BYTES: usize = 64 << 20;
const ARENA_BLOCK_BYTES: usize = 64 << 10;
/// Universal compaction merges runs of like size from this number of runs on, and everything once the newer runs exceed that part of the oldest.
/// Under uniformly random updates it rewrites about a fifth of what level compaction does.
const COMPACTION_MIN_RUNS: i32 = 8;
const MAX_SIZE_AMPLIFICATION_PERCENT: i32 = 50;
const BLOCK_BYTES: usize = 8 << 10;
const BLOOM_BITS_PER_KEY: f64 = 10.0;
/// How many entries of the file of a recent run are in hand at a time.
const RECENT_CHUNK_ENTRIES: usize = 32 * 1024;
const MAX_OPEN_FILES: i32 = 512;
const TABLE_FILE_EXTENSION: &str = "sst";
/// Files of a checkpoint whose names begin so hold what was written after all that RocksDB has: see `recent.rs`. A number follows.
pub(super) const RECENT_FILE_PREFIX: &str = "recent-";
pub(super) const RECENT_FILE_SUFFIX: &str = ".run";

/// What all databases of a process share: block cache (with index and filter blocks, and the memtables charged to it) and background threads.
#[derive(Clone)]
pub struct SharedRocks {
    cache: Cache,
    write_buffers: WriteBufferManager,
    env: Env,
    memtable_bytes: usize,
}

impl SharedRocks {
    /// `block_cache_bytes` bounds blocks and memtables together; `write_buffer_bytes` of it is when memtables are flushed.
    pub fn new(block_cache_bytes: usize, write_buffer_bytes: usize) -> Result<SharedRocks> {
        let cache = Cache::new_hyper_clock_cache(block_cache_bytes, 0);
        let write_buffers = WriteBufferManager::new_write_buffer_manager_with_cache(write_buffer_bytes, false, cache.clone());
        let mut env = Env::new().map_err(|error| rocks_error("set up its environment", &error))?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from).clamp(1, 16) as i32;
        env.set_low_priority_background_threads(threads);
        // A checkpoint waits for its flush, so many databases flush at once; the threads mostly wait for the disk.
        env.set_high_priority_background_threads(threads.max(4));
        Ok(SharedRocks { cache, write_buffers, env, memtable_bytes: (write_buffer_bytes / 2).clamp(64 << 10, MAX_MEMTABLE_BYTES) })
    }

    /// The bytes of the cache in use: blocks, and memtables charged to it.
    pub fn cache_bytes(&self) -> usize {
        self.cache.get_usage()
    }

    /// The bytes in memtables.
    pub fn write_buffer_bytes(&self) -> usize {
        self.write_buffers.get_usage()
    }

    /// Sets another bound on the cache; what is over it is evicted.
    pub fn set_cache_capacity(&self, bytes: usize) {
        self.cache.clone().set_capacity(bytes);
    }

    /// The options of every state database.
    pub fn options(&self) -> Result<Options> {
        // Closing must not write out memtables that nothing will read: only the textual form has this option.
        let mut options = Options::default()
            .get_options_from_string("avoid_flush_during_shutdown=true;avoid_flush_during_recovery=true")
            .map_err(|error| rocks_error("set its options", &error))?;
        options.create_if_missing(true);
        options.set_env(&self.env);
        options.set_write_buffer_manager(&self.write_buffers);
        options.set_write_buffer_size(self.memtable_bytes);
        options.set_arena_block_size(ARENA_BLOCK_BYTES);
        options.set_target_file_size_base(TABLE_FILE_BYTES);
        options.set_compression_type(DBCompressionType::Lz4);
        options.set_max_open_files(MAX_OPEN_FILES);
        options.set_max_background_jobs(4);
        options.set_max_manifest_file_size(8 << 20);
        options.set_manifest_preallocation_size(64 << 10);
        options.set_stats_dump_period_sec(0);
        options.set_stats_persist_period_sec(0);
        options.set_log_level(LogLevel::Error);
        options.set_keep_log_file_num(1);
        options.set_compaction_style(DBCompactionStyle::Universal);
        options.set_level_zero_file_num_compaction_trigger(COMPACTION_MIN_RUNS);
        let mut universal = UniversalCompactOptions::default();
        universal.set_max_size_amplification_percent(MAX_SIZE_AMPLIFICATION_PERCENT);
        options.set_universal_compaction_options(&universal);
        options.set_block_based_table_factory(&self.table_options());
        Ok(options)
    }

    /// How every state database lays out its table files, and caches them.
    pub fn table_options(&self) -> BlockBasedOptions {
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&self.cache);
        table.set_block_size(BLOCK_BYTES);
        // Lookups in a block by hash instead of binary search; scans do not use it.
        table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
        table.set_bloom_filter(BLOOM_BITS_PER_KEY, false);
        table.set_optimize_filters_for_memory(true);
        table.set_cache_index_and_filter_blocks(true);
        table.set_cache_index_and_filter_blocks_with_high_priority(true);
        table.set_pin_l0_filter_and_index_blocks_in_cache(true);
        table.set_format_version(6);
        table
    }
}

/// An open database. Dropping it stops its background work and closes it.
struct Database {
    db: DB,
    dir: PathBuf,
}

impl Drop for Database {
    fn drop(&mut self) {
        self.db.cancel_all_background_work(true);
    }
}

impl Database {
    fn error(&self, action: &str, error: &rocksdb::Error) -> Error {
        rocks_error(action, error).with_context(format!("state in {:?}", self.dir))
    }

    fn column_family(&self) -> Result<&ColumnFamily> {
        self.db
            .cf_handle(rocksdb::DEFAULT_COLUMN_FAMILY_NAME)
            .ok_or_else(|| Error::internal("a state database was opened without its column family"))
    }

    /// Calls `each` for the entries in `from..to` until it returns false.
    fn scan(&self, options: ReadOptions, from: &[u8], to: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        let mut iterator = self.iterate(options, from, to);
        while let Some((key, value)) = iterator.item() {
            if !each(key, value)? {
                return Ok(());
            }
            iterator.next();
        }
        iterator.status().map_err(|error| self.error("be read", &error))
    }

    fn iterate(&self, mut options: ReadOptions, from: &[u8], to: &[u8]) -> DBRawIterator<'_> {
        if !to.is_empty() {
            options.set_iterate_upper_bound(to);
        }
        let mut iterator = self.db.raw_iterator_opt(options);
        iterator.seek(from);
        iterator
    }
}

/// Keyed state in RocksDB.
pub struct RocksBackend {
    database: Arc<Database>,
    options: Options,
    write_options: WriteOptions,
    changed: bool,
    ingested_files: u64,
}

impl RocksBackend {
    /// Opens a database in `dir`, which must not exist or be empty, with the entries of the key groups in `range` from former checkpoints.
    ///
    /// With no parts it is empty. One part of the same range is opened as it was. Else the largest part is opened, what is not in `range` deleted,
    /// and the entries of the others are added as table files.
    pub fn open(shared: &SharedRocks, dir: &Path, parts: &[RestorePart], range: KeyGroupRange) -> Result<RocksBackend> {
        let options = shared.options()?;
        std::fs::create_dir_all(dir).map_err(|error| Error::io(format!("make folder {dir:?}"), &error))?;
        let parts: Vec<&RestorePart> = parts.iter().filter(|part| part.range.overlaps(&range)).collect();
        let mut largest: Option<(u64, &RestorePart)> = None;
        for part in &parts {
            let bytes = folder_bytes(&part.dir)?;
            if largest.is_none_or(|(most, _)| bytes > most) {
                largest = Some((bytes, part));
            }
        }
        if let Some((_, part)) = largest {
            link_files(&part.dir, dir)?;
        }
        let columns = [ColumnFamilyDescriptor::new(rocksdb::DEFAULT_COLUMN_FAMILY_NAME, options.clone())];
        let db = DB::open_cf_descriptors(&options, dir, columns)
            .map_err(|error| rocks_error("be opened", &error).with_context(format!("state in {dir:?}")))?;
        let mut write_options = WriteOptions::default();
        write_options.disable_wal(true);
        let mut backend = RocksBackend {
            database: Arc::new(Database { db, dir: dir.to_path_buf() }),
            options,
            write_options,
            changed: true,
            ingested_files: 0,
        };
        if let Some((_, base)) = largest {
            backend.add_recent(&base.dir)?;
            backend.delete_groups(KeyGroupRange { start: base.range.start, end: range.start.max(base.range.start) })?;
            backend.delete_groups(KeyGroupRange { start: range.end.min(base.range.end), end: base.range.end })?;
            for part in parts.iter().filter(|part| !std::ptr::eq(**part, base)) {
                backend.add_part(shared, part, range)?;
            }
            backend.changed = parts.len() > 1 || base.range != range;
        }
        Ok(backend)
    }

    /// Deletes all entries of `range`.
    fn delete_groups(&mut self, range: KeyGroupRange) -> Result<()> {
        if range.start >= range.end {
            return Ok(());
        }
        let database = &self.database;
        let (from, to) = key_range(range);
        // Whole files go at once. That may bring older entries of the range to light, which the tombstone then covers.
        database.db.delete_file_in_range(from, to).map_err(|error| database.error("drop key groups", &error))?;
        let mut batch = WriteBatch::default();
        batch.delete_range(from, to);
        database.db.write_opt(batch, &self.write_options).map_err(|error| database.error("drop key groups", &error))
    }

    /// Adds what the files of recent runs in `part` hold, the oldest first.
    fn add_recent(&mut self, part: &Path) -> Result<()> {
        for name in recent_files(part)? {
            let mut run = RunReader::open(&part.join(&name))?;
            self.write_all(&mut |chunk| run.read(chunk, RECENT_CHUNK_ENTRIES))?;
        }
        Ok(())
    }

    /// Adds the entries of `part` in `range`.
    fn add_part(&mut self, shared: &SharedRocks, part: &RestorePart, range: KeyGroupRange) -> Result<()> {
        if !recent_files(&part.dir)?.is_empty() {
            // Its runs go into a database of its own first.
            let dir = self.database.dir.with_added_extension("joined");
            let joined = RocksBackend::open(shared, &dir, std::slice::from_ref(part), part.range)?;
            self.add_database(&joined.database, part.range, range)?;
            drop(joined);
            return std::fs::remove_dir_all(&dir).map_err(|error| Error::io(format!("remove folder {dir:?}"), &error));
        }
        let source = DB::open_for_read_only(&self.options, &part.dir, false)
            .map_err(|error| rocks_error("be opened", &error).with_context(format!("state in {:?}", part.dir)))?;
        self.add_database(&Database { db: source, dir: part.dir.clone() }, part.range, range)
    }

    fn add_database(&mut self, source: &Database, present: KeyGroupRange, range: KeyGroupRange) -> Result<()> {
        let mut added = KeyGroupRange { start: range.start.max(present.start), end: range.end.min(present.end) };
        if faults::is_planted(Fault::KeyGroupLost) {
            added.start += 1;
        }
        let (from, to) = key_range(added);
        let mut read_options = ReadOptions::default();
        read_options.fill_cache(false);
        let mut iterator = source.iterate(read_options, &from, &to);
        let mut ingestion = Ingestion::new(self.database.clone(), &self.options, &mut self.ingested_files);
        while let Some((key, value)) = iterator.item() {
            ingestion.add(key, Some(value))?;
            iterator.next();
        }
        iterator.status().map_err(|error| source.error("be read", &error))?;
        ingestion.finish()
    }

    fn write_batches(&mut self, writes: &Writes) -> Result<()> {
        let database = &self.database;
        let failed = |error: rocksdb::Error| database.error("be written", &error);
        let mut batch = WriteBatch::default();
        for (key, value) in writes.iter() {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
            if batch.size_in_bytes() >= WRITE_BATCH_BYTES {
                database.db.write_opt(std::mem::take(&mut batch), &self.write_options).map_err(failed)?;
            }
        }
        if !batch.is_empty() {
            database.db.write_opt(batch, &self.write_options).map_err(failed)?;
        }
        Ok(())
    }
}

/// Sorted entries on their way into a database as table files.
struct Ingestion<'a> {
    database: Arc<Database>,
    options: &'a Options,
    /// How many files the database has taken in so: part of their names on the way.
    files: &'a mut u64,
    paths: Vec<PathBuf>,
    /// The file being written, and the bytes in it.
    writer: Option<(SstFileWriter<'a>, u64)>,
}

impl<'a> Ingestion<'a> {
    fn new(database: Arc<Database>, options: &'a Options, files: &'a mut u64) -> Ingestion<'a> {
        Ingestion { database, options, files, paths: Vec::new(), writer: None }
    }

    fn add_all(&mut self, writes: &Writes) -> Result<()> {
        writes.iter().try_for_each(|(key, value)| self.add(key, value))
    }

    fn add(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let (writer, bytes) = match &mut self.writer {
            Some(writer) => writer,
            None => {
                *self.files += 1;
                let path = self.database.dir.join(format!("ingest-{}.{TABLE_FILE_EXTENSION}", self.files));
                let writer = SstFileWriter::create(self.options);
                writer.open(&path).map_err(|error| self.database.error("be written", &error))?;
                self.paths.push(path);
                self.writer.insert((writer, 0))
            }
        };
        let added = match value {
            Some(value) => writer.put(key, value),
            None => writer.delete(key),
        };
        added.map_err(|error| self.database.error("be written", &error))?;
        *bytes += (key.len() + value.map_or(0, <[u8]>::len)) as u64;
        if *bytes >= INGEST_FILE_BYTES { self.end_file() } else { Ok(()) }
    }

    fn end_file(&mut self) -> Result<()> {
        match self.writer.take() {
            None => Ok(()),
            Some((mut writer, _)) => writer.finish().map_err(|error| self.database.error("be written", &error)),
        }
    }

    /// Takes the files in.
    fn finish(mut self) -> Result<()> {
        self.end_file()?;
        if self.paths.is_empty() {
            return Ok(());
        }
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(true);
        self.database.db.ingest_external_file_opts(&options, self.paths).map_err(|error| self.database.error("be written", &error))
    }
}

impl StateBackend for RocksBackend {
    fn kind(&self) -> StateBackendKind {
        StateBackendKind::RocksDb
    }

    fn multi_get(&self, keys: &[&[u8]], found: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let column_family = self.database.column_family()?;
        for (chunk_number, chunk) in keys.chunks(MULTI_GET_KEYS).enumerate() {
            let values = self.database.db.batched_multi_get_cf(column_family, chunk.iter().copied(), true);
            for (i, value) in values.into_iter().enumerate() {
                if let Some(value) = value.map_err(|error| self.database.error("be read", &error))? {
                    found(chunk_number * MULTI_GET_KEYS + i, &value)?;
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, writes: &Writes) -> Result<()> {
        if writes.is_empty() {
            return Ok(());
        }
        self.changed = true;
        if writes.len() < INGEST_MIN_ROWS {
            return self.write_batches(writes);
        }
        let mut ingestion = Ingestion::new(self.database.clone(), &self.options, &mut self.ingested_files);
        ingestion.add_all(writes)?;
        ingestion.finish()
    }

    fn write_all(&mut self, next: &mut dyn FnMut(&mut Writes) -> Result<bool>) -> Result<()> {
        // As much as decides which way they go.
        let mut first: Vec<Writes> = Vec::new();
        let mut rows = 0;
        while rows < INGEST_MIN_ROWS {
            let mut chunk = Writes::new();
            if !next(&mut chunk)? {
                break;
            }
            rows += chunk.len();
            first.push(chunk);
        }
        if rows == 0 {
            return Ok(());
        }
        self.changed = true;
        if rows < INGEST_MIN_ROWS {
            return first.iter().try_for_each(|chunk| self.write_batches(chunk));
        }
        // One table file, however many chunks: each file is a sorted run of its own to reads and compactions.
        let mut ingestion = Ingestion::new(self.database.clone(), &self.options, &mut self.ingested_files);
        for chunk in first {
            ingestion.add_all(&chunk)?;
        }
        let mut chunk = Writes::new();
        while next(&mut chunk)? {
            ingestion.add_all(&chunk)?;
            chunk.clear();
        }
        ingestion.finish()
    }

    fn scan(&self, from: &[u8], to: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        self.database.scan(ReadOptions::default(), from, to, each)
    }

    fn snapshot(&self) -> Result<Arc<dyn StateSnapshot>> {
        Ok(Arc::new(RocksSnapshot::new(self.database.clone())))
    }

    fn checkpoint(&mut self, dir: &Path) -> Result<Vec<String>> {
        let database = &self.database;
        let failed = |error: rocksdb::Error| database.error("be checkpointed", &error);
        // This flushes first: without a log the memtables would otherwise be missing.
        rocksdb::checkpoint::Checkpoint::new(&database.db).map_err(failed)?.create_checkpoint(dir).map_err(failed)?;
        let mut names = Vec::new();
        for name in folder_files(dir)? {
            // The log is never written to, but RocksDB keeps one and copies it.
            let path = dir.join(&name);
            let io_error = |error| Error::io(format!("read {path:?}"), &error);
            if name.ends_with(".log") && std::fs::metadata(&path).map_err(io_error)?.len() == 0 {
                std::fs::remove_file(&path).map_err(io_error)?;
            } else {
                names.push(name);
            }
        }
        self.changed = false;
        Ok(names)
    }

    fn estimate(&self) -> StateSize {
        // A property that RocksDB cannot tell counts as nothing: these are estimates for people and for memory decisions.
        let property = |name: &rocksdb::properties::PropName| self.database.db.property_int_value(name).ok().flatten().unwrap_or(0);
        StateSize {
            rows: property(rocksdb::properties::ESTIMATE_NUM_KEYS),
            bytes: property(rocksdb::properties::LIVE_SST_FILES_SIZE) + property(rocksdb::properties::CUR_SIZE_ALL_MEM_TABLES),
        }
    }

    fn changed_since_checkpoint(&self) -> bool {
        self.changed
    }

    fn content_size(&self) -> u64 {
        let files = self.database.db.property_int_value(rocksdb::properties::LIVE_SST_FILES_SIZE);
        files.ok().flatten().unwrap_or(0)
    }
}

/// A snapshot that keeps its database open.
struct RocksSnapshot {
    /// Borrows from `database`, whatever its lifetime says. Fields are dropped in order: the snapshot before the database.
    snapshot: Snapshot<'static>,
    database: Arc<Database>,
}

impl RocksSnapshot {
    fn new(database: Arc<Database>) -> RocksSnapshot {
        // SAFETY: the reference is into the allocation of the `Arc`, which does not move, is never mutated, and lives at least as long as
        // `self.database`. `snapshot` does not leave this struct with the lifetime 'static, and is dropped before `database`.
        let db: &'static DB = unsafe { &*std::ptr::from_ref(&database.db) };
        RocksSnapshot { snapshot: db.snapshot(), database }
    }

    fn read_options(&self) -> ReadOptions {
        let mut options = ReadOptions::default();
        options.set_snapshot(&self.snapshot);
        options
    }
}

impl StateSnapshot for RocksSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.database.db.get_opt(key, &self.read_options()).map_err(|error| self.database.error("be read", &error))
    }

    fn iter<'a>(&'a self, from: &[u8], to: &[u8]) -> Box<dyn Iterator<Item = Result<Entry>> + Send + 'a> {
        Box::new(Entries { iterator: Some(self.database.iterate(self.read_options(), from, to)), database: &self.database })
    }

    fn scan(&self, from: &[u8], to: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        self.database.scan(self.read_options(), from, to, each)
    }
}

struct Entries<'a> {
    /// `None` once the end or an error was reached.
    iterator: Option<DBRawIterator<'a>>,
    database: &'a Database,
}

impl Iterator for Entries<'_> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        let iterator = self.iterator.as_mut()?;
        let entry = iterator.item().map(|(key, value)| (Box::from(key), Box::from(value)));
        match entry {
            Some(entry) => {
                iterator.next();
                Some(Ok(entry))
            }
            None => {
                let status = iterator.status();
                self.iterator = None;
                status.err().map(|error| Err(self.database.error("be read", &error)))
            }
        }
    }
}

/// Whether a file of a checkpoint never changes under its name within one incarnation of its backend, so that it need not be stored again.
pub fn never_changes(name: &str) -> bool {
    is_table_file(name) || is_recent_file(name)
}

/// Whether a file is one of RocksDB's tables.
pub fn is_table_file(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == TABLE_FILE_EXTENSION)
}

fn folder_files(dir: &Path) -> Result<Vec<String>> {
    let failed = |error: std::io::Error| Error::io(format!("read folder {dir:?}"), &error);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        names.push(name.into_string().map_err(|name| Error::corrupted(format!("file {name:?} in {dir:?} is not one of a state")))?);
    }
    names.sort();
    Ok(names)
}

/// Whether a file of a checkpoint holds what was written after all that RocksDB has. Its name means nothing to another opening of the backend.
pub fn is_recent_file(name: &str) -> bool {
    name.starts_with(RECENT_FILE_PREFIX)
}

/// The files of recent runs in `dir`, the oldest first.
fn recent_files(dir: &Path) -> Result<Vec<String>> {
    let number = |name: &str| {
        let number = name.strip_prefix(RECENT_FILE_PREFIX)?.strip_suffix(RECENT_FILE_SUFFIX).and_then(|number| number.parse::<u64>().ok());
        Some(number.ok_or_else(|| Error::corrupted(format!("file {name:?} in {dir:?} is not one of a state"))))
    };
    let mut files = Vec::new();
    for name in folder_files(dir)? {
        if let Some(number) = number(&name) {
            files.push((number?, name));
        }
    }
    files.sort();
    Ok(files.into_iter().map(|(_, name)| name).collect())
}

fn folder_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for name in folder_files(dir)? {
        let path = dir.join(name);
        bytes += std::fs::metadata(&path).map_err(|error| Error::io(format!("read {path:?}"), &error))?.len();
    }
    Ok(bytes)
}

/// Brings the files of a checkpoint into the folder of a new database.
fn link_files(from: &Path, to: &Path) -> Result<()> {
    for name in folder_files(from)?.into_iter().filter(|name| !is_recent_file(name)) {
        let (source, target) = (from.join(&name), to.join(&name));
        // RocksDB appends to what is not a table file. A file system that cannot link gets copies of all.
        if !is_table_file(&name) || std::fs::hard_link(&source, &target).is_err() {
            std::fs::copy(&source, &target).map_err(|error| Error::io(format!("copy {source:?} to {target:?}"), &error))?;
        }
    }
    Ok(())
}

/// What RocksDB reports, as an error with the fitting SQLSTATE: `53100` for a full disk, `XX001` with the file for wrong bytes, else `58030`.
fn rocks_error(action: &str, error: &rocksdb::Error) -> Error {
    let text = error.as_ref();
    let file = text.split_whitespace().find(|word| word.contains(".sst") || word.contains("MANIFEST") || word.contains("CURRENT"));
    match error.kind() {
        ErrorKind::Corruption => {
            let file = file.map_or("a state file".to_string(), |file| format!("state file {:?}", file.trim_matches([':', ',', '"'])));
            Error::corrupted(format!("{file} is corrupted")).with_detail(format!("RocksDB reports: {text}."))
        }
        ErrorKind::IOError if text.contains("No space left on device") || text.contains("Disk quota exceeded") => {
            Error::new(SqlState::DISK_FULL, format!("state could not {action}: no space left on device"))
                .with_detail(format!("RocksDB reports: {text}."))
        }
        _ => Error::new(SqlState::IO_ERROR, format!("state could not {action}: {text}")),
    }
}
