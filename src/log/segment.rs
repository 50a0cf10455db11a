//! Segments: the files of the engine log, each named by its first commit, `log/<commit sequence, 20 digits>.log`.
//!
//! ```text
//! magic 8 | format 4 | first commit sequence 8 | XXH3-64 of everything before 8 | records
//! ```
//!
//! # Invariants
//! - A segment's header and its entry in the folder are durable before its first record is written, and everything in the segment before it too.
//! - Commit sequences follow one another without a gap, within a segment and from one to the next.

use std::path::{Path, PathBuf};

use weir_catalog::{Error, Result, SqlState};
use xxhash_rust::xxh3::xxh3_64;

use super::record::{self, NotARecord, RawRecord, RecordKind};
use crate::seams::files::Files;
use crate::stream::CommitSeq;

/// The format of segments that this version writes.
pub const SEGMENT_FORMAT: u32 = 1;
/// The bytes before the first record.
pub const HEADER_BYTES: usize = 28;

const MAGIC: [u8; 8] = *b"weir log";

/// The file of the segment that begins with `first`.
pub fn path(dir: &Path, first: CommitSeq) -> PathBuf {
    dir.join(format!("{first:020}.log"))
}

/// The first commits of the segments in `dir`, in order. Other files in it are left alone.
pub fn list(files: &dyn Files, dir: &Path) -> Result<Vec<CommitSeq>> {
    let mut segments: Vec<CommitSeq> = files
        .list(dir)?
        .iter()
        .filter_map(|name| name.to_str()?.strip_suffix(".log"))
        .filter(|digits| digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit()))
        .filter_map(|digits| digits.parse().ok())
        .collect();
    segments.sort_unstable();
    Ok(segments)
}

/// The header of the segment that begins with `first`.
pub fn header(first: CommitSeq) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&SEGMENT_FORMAT.to_le_bytes());
    bytes.extend_from_slice(&first.to_le_bytes());
    bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
    bytes
}

/// What is wrong with a segment, named by file and byte.
pub fn corrupted(path: &Path, offset: usize, what: impl std::fmt::Display) -> Error {
    Error::corrupted(format!("the engine log is damaged in \"{}\" at byte {offset}: {what}", path.display()))
        .with_hint("The bytes on disk are not what was written. Restore the data folder from a copy; nothing was changed.")
}

/// Why what stands in a segment at `offset` can't be read, named by file and byte: damage, or a newer format.
pub fn unreadable(path: &Path, offset: usize, error: &Error) -> Error {
    if *error.code() != SqlState::FEATURE_NOT_SUPPORTED {
        return corrupted(path, offset, error.message());
    }
    let named = Error::unsupported(format!("\"{}\" can't be read from byte {offset} on: {}", path.display(), error.message()));
    error.hint().map_or(named.clone(), |hint| named.with_hint(hint))
}

/// What is wrong with the header, if anything is.
fn check_header(bytes: &[u8], path: &Path, first: CommitSeq) -> Result<()> {
    let Some(found) = bytes.get(..HEADER_BYTES) else {
        return Err(corrupted(path, bytes.len(), "its header is cut"));
    };
    let expected = header(first);
    if found == expected {
        return Ok(());
    }
    let (content, checksum) = found.split_at(HEADER_BYTES - 8);
    if checksum == xxh3_64(content).to_le_bytes() && content[..8] == MAGIC {
        let format = u32::from_le_bytes([content[8], content[9], content[10], content[11]]);
        if format > SEGMENT_FORMAT {
            return Err(Error::newer_format(format_args!("the engine log's file \"{}\"", path.display()), format, SEGMENT_FORMAT));
        }
        return Err(corrupted(path, 12, "its header names another first commit than its file name"));
    }
    let at = found.iter().zip(&expected).position(|(found, expected)| found != expected).unwrap_or(0);
    Err(corrupted(path, at, "its header does not match its checksum"))
}

/// What a scan of a whole segment found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// The last commit; the one before the segment's first where it has none.
    pub end: CommitSeq,
    /// Where the next record belongs. 0: not even the header is whole.
    pub len: usize,
}

/// Goes through the content of the segment that begins with `first`. `each` gets every commit's record and its place.
///
/// In the log's last segment, what a power loss tore at the end is left out of [`Scanned::len`]. Everything else that is not as it was written is
/// `XX001`, naming the file and the byte.
pub fn scan<'a>(
    bytes: &'a [u8],
    path: &Path,
    first: CommitSeq,
    last_segment: bool,
    each: &mut dyn FnMut(&RawRecord<'a>, usize) -> Result<()>,
) -> Result<Scanned> {
    if let Err(damage) = check_header(bytes, path, first) {
        // Records are written only when the header is durable. Of a newer format nothing is known here.
        if *damage.code() == SqlState::DATA_CORRUPTED && last_segment && record::find(bytes, 0).is_none() {
            return Ok(Scanned { end: first - 1, len: 0 });
        }
        return Err(damage);
    }
    let mut at = HEADER_BYTES;
    let mut end = first - 1;
    while at < bytes.len() {
        match record::parse(&bytes[at..]) {
            Ok(record) => {
                let expected = if record.kind == RecordKind::Commit { end + 1 } else { end };
                if record.seq != expected {
                    return Err(corrupted(path, at, format_args!("commit {} stands where {expected} belongs", record.seq)));
                }
                if record.kind == RecordKind::Commit {
                    each(&record, at)?;
                    end = record.seq;
                }
                at += record.len;
            }
            Err(why) => {
                if !last_segment || matches!(why, NotARecord::UnknownKind(_)) || was_durable(bytes, at, end + 1) {
                    return Err(corrupted(path, at, format_args!("the record that belongs there can't be read: {why}")));
                }
                break;
            }
        }
    }
    Ok(Scanned { end, len: at })
}

/// Whether a record behind `at` says that the commit `seq`, which belongs at `at`, had been fsynced.
fn was_durable(bytes: &[u8], at: usize, seq: CommitSeq) -> bool {
    let mut from = at + 1;
    while let Some((found, record)) = record::find(bytes, from) {
        if record.durable >= seq {
            return true;
        }
        from = found + record.len;
    }
    false
}
