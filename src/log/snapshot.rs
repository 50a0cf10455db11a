//! Catalog snapshots: `catalog/<commit sequence, 20 digits>.catalog`, the catalog as of that commit.
//!
//! ```text
//! magic 8 | format 4 | commit sequence 8 | next row id 8 | length 8 | JSON of {last_id, objects} | XXH3-64 of everything before 8
//! ```
//!
//! # Invariants
//! - A file with this name is whole: it is written under another name, synced, and renamed.
//! - The log is dropped only up to a snapshot that is durable.

use std::path::Path;

use serde::{Deserialize, Serialize};
use weir_catalog::{Catalog, Error, Object, ObjectId, Result};
use xxhash_rust::xxh3::xxh3_64;

use crate::seams::files::Files;
use crate::stream::CommitSeq;

/// The highest format of snapshots that this version writes: 2 where a column is an array, or a row outside of a connector table
/// ([`Object::has_nested_columns`]); all others are still of format 1.
pub const SNAPSHOT_FORMAT: u32 = 2;

const MAGIC: [u8; 8] = *b"weir cat";
const HEADER_BYTES: usize = 36;
const CHECKSUM_BYTES: usize = 8;
/// Older ones are removed.
const RETAINED: usize = 2;

/// A catalog and the commit it is of.
#[derive(Clone, Debug, Default)]
pub struct CatalogSnapshot {
    /// 0: the empty catalog before all commits.
    pub seq: CommitSeq,
    pub catalog: Catalog,
    /// Above every row id in commits up to `seq`.
    pub next_row_id: u64,
}

#[derive(Serialize)]
struct ContentRef<'a> {
    last_id: ObjectId,
    objects: Vec<&'a Object>,
}

#[derive(Deserialize)]
struct Content {
    last_id: ObjectId,
    objects: Vec<Object>,
}

/// Writes the snapshot and removes those that are older than the one before it.
pub fn write(files: &dyn Files, dir: &Path, seq: CommitSeq, catalog: &Catalog, next_row_id: u64) -> Result<()> {
    let content = ContentRef { last_id: catalog.last_id(), objects: catalog.objects().map(|object| &**object).collect() };
    let json = serde_json::to_vec(&content).map_err(|e| Error::internal(format!("could not encode the catalog: {e}")))?;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + json.len() + CHECKSUM_BYTES);
    bytes.extend_from_slice(&MAGIC);
    let format: u32 = if catalog.objects().any(|object| object.has_nested_columns()) { 2 } else { 1 };
    bytes.extend_from_slice(&format.to_le_bytes());
    bytes.extend_from_slice(&seq.to_le_bytes());
    bytes.extend_from_slice(&next_row_id.to_le_bytes());
    bytes.extend_from_slice(&(json.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&json);
    bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());

    let temporary = dir.join(format!("{seq:020}.unfinished"));
    files.write(&temporary, &bytes)?;
    files.rename(&temporary, &dir.join(name(seq)))?;
    files.sync_dir(dir)?;

    let all = list(files, dir)?;
    for old in all.iter().rev().skip(RETAINED) {
        files.remove(&dir.join(name(*old)))?;
    }
    Ok(())
}

/// The newest snapshot in `dir`; that of the empty catalog where there is none. What a crash left unfinished is removed. Errors with `XX001` where it
/// is damaged, `0A000` where a newer version wrote it.
pub fn load(files: &dyn Files, dir: &Path) -> Result<CatalogSnapshot> {
    for left in files.list(dir)? {
        if left.extension().is_some_and(|extension| extension == "unfinished") {
            files.remove(&dir.join(left))?;
        }
    }
    let Some(seq) = list(files, dir)?.pop() else {
        return Ok(CatalogSnapshot::default());
    };
    // The process before may have died between its renaming and the fsync of the folder; the log is cut on the strength of it.
    files.sync_dir(dir)?;
    let path = dir.join(name(seq));
    let bytes = files.read(&path)?;
    let named = format!("the catalog snapshot \"{}\"", path.display());
    if let Some(format) = newer_format(&bytes) {
        return Err(Error::newer_format(named, format, SNAPSHOT_FORMAT));
    }
    decode(&bytes, seq).map_err(|what| {
        Error::corrupted(format!("{named} is damaged: {what}"))
            .with_hint("The bytes on disk are not what was written. Restore the data folder from a copy; nothing was changed.")
    })
}

/// The format number of whole bytes that a newer version wrote. Magic, format number and the checksum at the end stand in every format.
fn newer_format(bytes: &[u8]) -> Option<u32> {
    let (content, checksum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM_BYTES)?)?;
    let format = u32::from_le_bytes(*content.strip_prefix(&MAGIC)?.first_chunk()?);
    (format > SNAPSHOT_FORMAT && checksum == xxh3_64(content).to_le_bytes()).then_some(format)
}

fn name(seq: CommitSeq) -> String {
    format!("{seq:020}.catalog")
}

fn list(files: &dyn Files, dir: &Path) -> Result<Vec<CommitSeq>> {
    let mut snapshots: Vec<CommitSeq> =
        files.list(dir)?.iter().filter_map(|name| name.to_str()?.strip_suffix(".catalog")?.parse().ok()).collect();
    snapshots.sort_unstable();
    Ok(snapshots)
}

fn decode(bytes: &[u8], seq: CommitSeq) -> Result<CatalogSnapshot, String> {
    if bytes.len() < HEADER_BYTES + CHECKSUM_BYTES {
        return Err(format!("it ends at byte {}", bytes.len()));
    }
    let (content, checksum) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
    if checksum != xxh3_64(content).to_le_bytes() {
        return Err("its checksum does not match its content".to_string());
    }
    if content[..8] != MAGIC {
        return Err("it is no catalog snapshot".to_string());
    }
    let number = |at: usize| content[at..].first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let format = content[8..].first_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    if !(1..=SNAPSHOT_FORMAT).contains(&format) {
        return Err(format!("it has format {format}, which there never was"));
    }
    if number(12) != seq {
        return Err(format!("it is of commit {}", number(12)));
    }
    let json = &content[HEADER_BYTES..];
    if number(28) != json.len() as u64 {
        return Err(format!("its length is {}, not {}", json.len(), number(28)));
    }
    let Content { last_id, objects } = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    let catalog = Catalog::restore(objects, last_id).map_err(|e| e.message().to_string())?;
    Ok(CatalogSnapshot { seq, catalog, next_row_id: number(20) })
}
