//! Records that could not be read, kept: written by each job that reads the table, shown once as `SELECT * FROM table$bad`.
//!
//! They are JSON lines in a folder of the table's own below the data folder, and become visible with the checkpoint of the job that met them, as a sink's
//! files do: so each is there exactly once, however often the process dies. Jobs that read one table meet the same records; readers show a record,
//! which its file and place name, once.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::Int64Type;
use weir_catalog::{Catalog, Column, Error, ObjectId, Result, SqlType};
use xxhash_rust::xxh3::xxh3_128;

use crate::formats::RecordDecoder;
use crate::formats::json::{JsonDecoder, JsonForm, JsonOptions, push_string};
use crate::operators::error::{from_arrow, told};
use crate::seams::files::{AppendFile, FilesRef};
use crate::sinks::commit::{PendingCommit, PendingCommits};

/// What names the dead letters of a table: its name and this.
pub const SUFFIX: &str = "$bad";

/// Rows of a batch.
const BATCH_ROWS: usize = 8192;

/// The columns of `table$bad`.
pub fn columns() -> Vec<Column> {
    let column = |name: &str, ty| Column { name: name.to_string(), ty, nullable: true, default: None };
    vec![
        column("file", SqlType::Text),
        column("position", SqlType::BigInt),
        column("reason", SqlType::Text),
        column("bytes", SqlType::Text),
        column("encoding", SqlType::Text),
    ]
}

/// The folder of a table's dead letters below `root`.
pub fn folder(root: &Path, table: ObjectId) -> PathBuf {
    root.join(table.to_string())
}

/// Removes the dead letters of tables that `catalog` has no more.
pub fn remove_dropped(files: &FilesRef, root: &Path, catalog: &Catalog) -> Result<()> {
    for name in files.list(root)? {
        let table: Option<ObjectId> = name.to_str().and_then(|name| name.parse().ok());
        if table.is_some_and(|table| catalog.get_id(table).is_none()) {
            files.remove_dir(&root.join(name))?;
        }
    }
    Ok(())
}

/// A record that could not be read.
#[derive(Debug)]
pub struct DeadLetter<'a> {
    pub file: &'a Path,
    /// Where in the file's plain bytes it begins.
    pub position: u64,
    pub reason: &'a Error,
    pub bytes: &'a [u8],
    /// Whether `bytes` are only its beginning.
    pub is_cut: bool,
}

impl DeadLetter<'_> {
    /// Its bytes as text, where they are that; of one that was cut without the last character, where the cut goes through that.
    fn text(&self) -> Option<&str> {
        let text = match std::str::from_utf8(self.bytes) {
            Ok(text) => text,
            Err(error) if self.is_cut && error.error_len().is_none() => std::str::from_utf8(self.bytes.get(..error.valid_up_to())?).ok()?,
            Err(_) => return None,
        };
        Some(text).filter(|text| !text.contains('\0'))
    }
}

/// Writes the dead letters of one subtask.
#[derive(Debug)]
pub struct DeadLetters {
    files: FilesRef,
    folder: PathBuf,
    /// What every name of this run of this subtask begins with.
    prefix: String,
    number: u64,
    open: Option<(Box<dyn AppendFile>, PathBuf, PathBuf)>,
    buffer: Vec<u8>,
    commits: PendingCommits,
}

impl DeadLetters {
    /// A writer of new files in `folder`, whose names begin with `prefix`.
    pub fn new(files: FilesRef, folder: PathBuf, prefix: String, commits: PendingCommits) -> DeadLetters {
        DeadLetters { files, folder, prefix, number: 0, open: None, buffer: Vec::new(), commits }
    }

    /// Adds one.
    pub fn push(&mut self, letter: &DeadLetter<'_>) -> Result<()> {
        let out = &mut self.buffer;
        out.extend_from_slice(b"{\"file\":");
        push_string(out, &letter.file.to_string_lossy());
        out.extend_from_slice(format!(",\"position\":{},\"reason\":", letter.position).as_bytes());
        let detail = letter.reason.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
        let member = letter.reason.context().map(|member| format!(" ({member})")).unwrap_or_default();
        push_string(out, &told(&format!("{}{detail}{member}", letter.reason.message())));
        out.extend_from_slice(b",\"bytes\":");
        let encoding = match letter.text() {
            Some(text) => {
                push_string(out, text);
                "text"
            }
            None => {
                let hex: String = letter.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                push_string(out, &hex);
                "hex"
            }
        };
        let cut = if letter.is_cut { ", cut" } else { "" };
        out.extend_from_slice(format!(",\"encoding\":\"{encoding}{cut}\"}}\n").as_bytes());
        if self.buffer.len() >= 256 << 10 { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        if self.open.is_none() {
            self.files.create_dir(&self.folder)?;
            self.number += 1;
            let name = format!("{}-{:06}.jsonl", self.prefix, self.number);
            let (hidden, target) = (self.folder.join(format!(".{name}")), self.folder.join(name));
            self.open = Some((self.files.append(&hidden)?, hidden, target));
        }
        if let Some((file, _, _)) = &mut self.open {
            file.append(&self.buffer)?;
        }
        self.buffer.clear();
        Ok(())
    }

    /// Closes what is open, to be committed with the checkpoint at hand.
    pub fn close(&mut self) -> Result<()> {
        if !self.buffer.is_empty() {
            self.write()?;
        }
        if let Some((_, hidden, target)) = self.open.take() {
            self.commits.push(PendingCommit::File { hidden, target, record: None });
        }
        Ok(())
    }
}

/// Records by where they stood.
#[derive(Debug, Default)]
pub struct Records(HashSet<(String, i64)>);

impl Records {
    /// Adds those of rows of a file and a position.
    pub fn add(&mut self, rows: &RecordBatch) {
        let (paths, positions) = (rows.column(0).as_string::<i32>(), rows.column(1).as_primitive::<Int64Type>());
        self.0.extend((0..rows.num_rows()).map(|row| (paths.value(row).to_string(), positions.value(row))));
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a line says of where its record stood.
#[derive(serde::Deserialize)]
struct Place {
    file: String,
    position: i64,
}

/// Takes `records` out of those in `folder`, whichever jobs met them. Each file is replaced at once. Nobody else may do so meanwhile. Waits for disk.
///
/// Errors: those of the files; `XX001` where one can't be read.
pub fn forget(files: &FilesRef, folder: &Path, records: &Records) -> Result<()> {
    if records.is_empty() {
        return Ok(());
    }
    for name in files.list(folder)? {
        if name.to_string_lossy().starts_with('.') {
            continue;
        }
        let path = folder.join(&name);
        let data = files.read(&path)?;
        let mut left = Vec::new();
        for line in data.split_inclusive(|byte| *byte == b'\n') {
            let place: Place = serde_json::from_slice(line).map_err(|error| {
                Error::corrupted(format!("dead letters in \"{}\" can't be read", name.display())).with_detail(error.to_string())
            })?;
            if !records.0.contains(&(place.file, place.position)) {
                left.extend_from_slice(line);
            }
        }
        if left.is_empty() {
            files.remove(&path)?;
        } else if left.len() < data.len() {
            let hidden = folder.join(format!(".{}.left", name.display()));
            files.write(&hidden, &left)?;
            files.rename(&hidden, &path)?;
        }
    }
    files.sync_dir(folder)
}

/// Gives `each` the dead letters in `folder`, batch by batch, until it returns false. Waits for disk.
pub fn read(files: &FilesRef, folder: &Path, projection: &[usize], each: &mut dyn FnMut(RecordBatch) -> bool) -> Result<()> {
    let all: Vec<usize> = (0..columns().len()).collect();
    let options = JsonOptions { form: JsonForm::Rows { row_kind: None }, fail_on_missing: true };
    let mut decoder = JsonDecoder::new(&options, &columns(), &all)?;
    let mut shown: HashSet<u128> = HashSet::new();
    let mut key = Vec::new();
    for name in files.list(folder)? {
        if name.to_string_lossy().starts_with('.') {
            continue;
        }
        let path = folder.join(&name);
        let data = match files.read(&path) {
            Ok(data) => data,
            // Somebody has dealt with all of them meanwhile.
            Err(_) if !files.exists(&path) => continue,
            Err(error) => return Err(error),
        };
        let mut at = 0;
        while at < data.len() {
            let decoded = decoder.decode(&data, at, BATCH_ROWS)?;
            if let Some(bad) = decoded.bad.first() {
                return Err(
                    Error::corrupted(format!("dead letters in \"{}\" can't be read", name.display())).with_detail(bad.reason.message())
                );
            }
            at = decoded.next;
            let rows = decoded.batch.rows;
            let (paths, positions) = (rows.column(0).as_string::<i32>(), rows.column(1).as_primitive::<Int64Type>());
            let keep = (0..rows.num_rows())
                .map(|row| {
                    key.clear();
                    key.extend_from_slice(paths.value(row).as_bytes());
                    key.extend_from_slice(&positions.value(row).to_le_bytes());
                    Some(shown.insert(xxh3_128(&key)))
                })
                .collect();
            let rows = filter_record_batch(&rows, &keep).and_then(|rows| rows.project(projection)).map_err(from_arrow)?;
            if !each(rows) {
                return Ok(());
            }
        }
    }
    Ok(())
}
