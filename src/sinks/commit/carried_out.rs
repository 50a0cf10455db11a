//! Which records' files have been made visible. So a file that somebody took away, maybe together with its record, is told from one that was lost before
//! anybody could see it.
//!
//! ```text
//! out/_weir_commits/.orders.5f3c2a10.carried-out      the note of one sink, hidden: it lists the newest records whose files were all made visible
//! ```
//!
//! # Invariants
//! - A record is noted when all its files are visible, and before it is there itself.
//! - A file of a record that is neither noted nor there is visible: else it is lost, and nothing is noted. Where the whole folder of records is gone, a
//!   checkpoint of an earlier run may have been carried out, and is taken so: somebody has taken everything away.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_catalog::{Error, Result, SqlState};

use super::{CommitFailure, Committer};
use crate::seams::files::FilesRef;
use crate::seams::hash::HashSet;
use crate::sinks::file::place::sink_of;

/// How many records a note lists at least, where there were so many: checkpoints that a start may go on from list no older ones.
const NOTED_RECORDS: usize = 64;
/// The format of a note.
const NOTE_FORMAT: u32 = 1;

/// What a note says.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    format: u32,
    /// The names of records, in the order in which they were carried out.
    records: Vec<String>,
}

/// Where the note of the sink `sink` is, in the folder of its records.
pub(super) fn note_path(records: &Path, sink: &str) -> PathBuf {
    records.join(format!(".{sink}.carried-out"))
}

/// The records that a note lists. None where it can't be read: what is there is taken as it is found.
fn read_note(files: &FilesRef, path: &Path) -> Vec<String> {
    if !files.exists(path) {
        return Vec::new();
    }
    let note = files.read(path).ok().and_then(|bytes| serde_json::from_slice::<Note>(&bytes).ok());
    match note.filter(|note| note.format <= NOTE_FORMAT) {
        Some(note) => note.records,
        None => {
            tracing::warn!(file = %path.display(), "a note of what was committed can't be read");
            Vec::new()
        }
    }
}

impl Committer {
    /// Notes that the files of `recorded`, by their records, are visible; `renamed` are those that this process has made so. A checkpoint `of_this_run` was
    /// carried out by no other process. Waits for disk.
    ///
    /// Errors: `58P01` where one is lost.
    pub(super) fn note_carried_out(
        &self,
        recorded: &BTreeMap<&Path, Vec<&Path>>,
        of_this_run: bool,
        renamed: &HashSet<PathBuf>,
    ) -> Result<(), CommitFailure> {
        let files = &self.files;
        let mut notes: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
        let mut added: BTreeMap<PathBuf, usize> = BTreeMap::new();
        let mut lost = Vec::new();
        for (record, targets) in recorded {
            let broken = || Error::internal(format!("\"{}\" is no place for a record", record.display()));
            let folder = record.parent().ok_or_else(broken)?;
            let name = record.file_name().and_then(|name| name.to_str()).ok_or_else(broken)?;
            let path = note_path(folder, sink_of(record).ok_or_else(broken)?);
            let noted = notes.entry(path.clone()).or_insert_with(|| read_note(files, &path));
            if noted.iter().any(|noted| noted == name) {
                continue;
            }
            if !files.exists(record) && (of_this_run || files.exists(folder)) {
                let missing = targets.iter().filter(|target| !files.exists(target) && !renamed.contains(**target));
                lost.extend(missing.map(|target| target.to_path_buf()));
            }
            noted.push(name.to_string());
            *added.entry(path).or_default() += 1;
        }
        if let Some(first) = lost.first() {
            let code = SqlState::parse("58P01").unwrap_or(SqlState::IO_ERROR);
            let error = Error::new(code, format!("the file \"{}\" was lost before it could be seen", first.display()))
                .with_detail("Neither it nor the hidden file that it was written as is there.");
            return Err(CommitFailure { error, lost });
        }
        for (path, added) in added {
            let Some(mut records) = notes.remove(&path) else { continue };
            let kept = added.max(NOTED_RECORDS);
            records.drain(..records.len().saturating_sub(kept));
            write_note(files, &path, records)?;
        }
        Ok(())
    }
}

/// Writes a note, all at once. Its name is durable with that of the next record.
fn write_note(files: &FilesRef, path: &Path, records: Vec<String>) -> Result<()> {
    let broken = || Error::internal(format!("\"{}\" is no place for a note", path.display()));
    let folder = path.parent().ok_or_else(broken)?;
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(broken)?;
    let json =
        serde_json::to_vec(&Note { format: NOTE_FORMAT, records }).map_err(|e| Error::internal(format!("could not encode a note: {e}")))?;
    files.create_dir(folder)?;
    let temporary = folder.join(format!("{name}.tmp"));
    files.write(&temporary, &json)?;
    files.rename(&temporary, path)
}
