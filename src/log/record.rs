//! Records: the durable form of a commit.
//!
//! ```text
//! marker 4 | length 4 | format 1 | kind 1 | zero 2 | commit sequence 8 | durable commit sequence 8 | payload | XXH3-64 of everything before 8
//! ```
//!
//! All numbers are little-endian; `length` counts the whole record. The marker begins with a byte that no UTF-8 text has, and lets a scan find the
//! records behind one that can't be read. The durable commit sequence says how far the log had been fsynced when the record was written: where bytes
//! can't be read and a record behind them says that they had been fsynced, they are damaged; otherwise a power loss tore them and nobody was told
//! that they are durable.
//!
//! Kinds: a *commit*, and a *mark*, written after each fsync and itself not waited for, so that this also holds for the last commit.
//!
//! A commit's payload:
//!
//! ```text
//! the next row id 8
//! changes of the catalog 4, each: length 4, CatalogChange::encode
//! changes of tables 4, each:
//!   table id 8 | schema number 4 | flags 1 | rows 4 | [kinds: 1 a row] | [row ids: 8 a row] | length 4 | the rows as one Arrow IPC stream
//! ```
//!
//! # Invariants
//! - A record is whole and its checksum right, or it is not a record.
//! - A new payload layout gets a new format number, and [`decode_commit`] keeps reading all old ones.

use std::io::Cursor;

use arrow::array::{RecordBatch, UInt64Array};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use weir_catalog::{CatalogChange, Error, ObjectId, Result, RowKind, SqlState};
use xxhash_rust::xxh3::xxh3_64;

use super::{Changes, Commit, TableChange};
use crate::stream::{Batch, CommitSeq};

/// The format of records that this version writes.
pub const RECORD_FORMAT: u8 = 1;
/// The longest record, bytes: a transaction that needs more is refused.
pub const MAX_RECORD_BYTES: usize = 1 << 30;

const MARKER: [u8; 4] = [0xF5, b'w', b'r', 0x1E];
const HEADER_BYTES: usize = 28;
const CHECKSUM_BYTES: usize = 8;
const KIND_COMMIT: u8 = 1;
const KIND_MARK: u8 = 2;
const FLAG_KINDS: u8 = 1;
const FLAG_ROW_IDS: u8 = 2;

/// A record that is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawRecord<'a> {
    pub kind: RecordKind,
    pub format: u8,
    /// Of a commit its sequence; of a mark that of the last commit before it.
    pub seq: CommitSeq,
    /// The last commit that had been fsynced when this was written.
    pub durable: CommitSeq,
    pub payload: &'a [u8],
    /// The bytes that the record takes.
    pub len: usize,
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    Commit,
    Mark,
}

/// Why the bytes at some place are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotARecord {
    /// The marker is not there.
    NoMarker,
    /// The length is none that a record can have, or goes past the end.
    Cut,
    /// The checksum does not fit.
    Checksum,
    /// The kind is unknown although the checksum fits: a newer version wrote it.
    UnknownKind(u8),
}

impl std::fmt::Display for NotARecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NotARecord::NoMarker => f.write_str("no record begins there"),
            NotARecord::Cut => f.write_str("its length is wrong"),
            NotARecord::Checksum => f.write_str("its checksum does not match its content"),
            NotARecord::UnknownKind(kind) => write!(f, "it is of kind {kind}, which this weir does not know"),
        }
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// The record at the beginning of `bytes`.
pub fn parse(bytes: &[u8]) -> Result<RawRecord<'_>, NotARecord> {
    if array(bytes, 0) != Some(MARKER) {
        return Err(NotARecord::NoMarker);
    }
    let len = array(bytes, 4).map(u32::from_le_bytes).ok_or(NotARecord::Cut)? as usize;
    if !(HEADER_BYTES + CHECKSUM_BYTES..=MAX_RECORD_BYTES).contains(&len) || len > bytes.len() {
        return Err(NotARecord::Cut);
    }
    let (content, checksum) = bytes[..len].split_at(len - CHECKSUM_BYTES);
    if checksum != xxh3_64(content).to_le_bytes() {
        return Err(NotARecord::Checksum);
    }
    let kind = match content[9] {
        KIND_COMMIT => RecordKind::Commit,
        KIND_MARK => RecordKind::Mark,
        kind => return Err(NotARecord::UnknownKind(kind)),
    };
    let seq = array(content, 12).map(u64::from_le_bytes).ok_or(NotARecord::Cut)?;
    let durable = array(content, 20).map(u64::from_le_bytes).ok_or(NotARecord::Cut)?;
    Ok(RawRecord { kind, format: content[8], seq, durable, payload: &content[HEADER_BYTES..], len })
}

/// The first whole record in `bytes` from `from` on, and where it begins.
pub fn find(bytes: &[u8], from: usize) -> Option<(usize, RawRecord<'_>)> {
    let mut at = from;
    loop {
        at += bytes.get(at..)?.windows(MARKER.len()).position(|window| window == MARKER)?;
        match parse(&bytes[at..]) {
            Ok(record) => return Some((at, record)),
            Err(_) => at += 1,
        }
    }
}

/// A record but for its sequences and checksum, which [`seal`] fills in.
#[derive(Debug)]
pub struct Unsealed(Vec<u8>);

impl Unsealed {
    /// The bytes that the record takes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

fn begin(kind: u8) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(256);
    bytes.extend_from_slice(&MARKER);
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&[RECORD_FORMAT, kind, 0, 0]);
    bytes.extend_from_slice(&[0; 16]);
    bytes
}

fn end(mut bytes: Vec<u8>) -> Unsealed {
    bytes.extend_from_slice(&[0; CHECKSUM_BYTES]);
    let len = bytes.len() as u32;
    bytes[4..8].copy_from_slice(&len.to_le_bytes());
    Unsealed(bytes)
}

/// The record of the commit `seq`, written when the log had been fsynced up to `durable`.
pub fn seal(record: Unsealed, seq: CommitSeq, durable: CommitSeq) -> Vec<u8> {
    let mut bytes = record.0;
    bytes[12..20].copy_from_slice(&seq.to_le_bytes());
    bytes[20..28].copy_from_slice(&durable.to_le_bytes());
    let content = bytes.len() - CHECKSUM_BYTES;
    let checksum = xxh3_64(&bytes[..content]);
    bytes[content..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The mark behind the commit `seq`, up to which the log has been fsynced.
pub fn mark(seq: CommitSeq) -> Vec<u8> {
    seal(end(begin(KIND_MARK)), seq, seq)
}

/// The record of `changes`; `next_row_id` is above all row ids given so far. Errors with `54000` where it would be longer than [`MAX_RECORD_BYTES`].
pub fn encode_commit(changes: &Changes, next_row_id: u64) -> Result<Unsealed> {
    let mut bytes = begin(KIND_COMMIT);
    bytes.extend_from_slice(&next_row_id.to_le_bytes());
    put_len(&mut bytes, changes.catalog.len())?;
    for change in &changes.catalog {
        let change = change.encode()?;
        put_len(&mut bytes, change.len())?;
        bytes.extend_from_slice(&change);
    }
    put_len(&mut bytes, changes.tables.len())?;
    for change in &changes.tables {
        encode_table_change(&mut bytes, change)?;
    }
    if bytes.len() + CHECKSUM_BYTES > MAX_RECORD_BYTES {
        return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "the transaction is too large")
            .with_detail(format!("Its record in the engine log takes {} bytes; at most {MAX_RECORD_BYTES} are possible.", bytes.len()))
            .with_hint("Split it into several transactions."));
    }
    Ok(end(bytes))
}

fn put_len(bytes: &mut Vec<u8>, len: usize) -> Result<()> {
    let len = u32::try_from(len).map_err(|_| Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "the transaction is too large"))?;
    bytes.extend_from_slice(&len.to_le_bytes());
    Ok(())
}

fn encode_table_change(bytes: &mut Vec<u8>, change: &TableChange) -> Result<()> {
    let rows = &change.batch.rows;
    bytes.extend_from_slice(&change.table.to_le_bytes());
    bytes.extend_from_slice(&change.schema_number.to_le_bytes());
    let flags = if change.batch.kinds.is_some() { FLAG_KINDS } else { 0 } | if change.row_ids.is_some() { FLAG_ROW_IDS } else { 0 };
    bytes.push(flags);
    put_len(bytes, rows.num_rows())?;
    if let Some(kinds) = &change.batch.kinds {
        bytes.extend_from_slice(&kinds.0);
    }
    if let Some(row_ids) = &change.row_ids {
        debug_assert_eq!(row_ids.len(), rows.num_rows());
        bytes.extend(row_ids.values().iter().flat_map(|id| id.to_le_bytes()));
    }
    let len_at = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    let failed = |e| Error::internal(format!("could not encode rows for the engine log: {e}"));
    let mut writer = StreamWriter::try_new(&mut *bytes, &rows.schema()).map_err(failed)?;
    writer.write(rows).map_err(failed)?;
    writer.finish().map_err(failed)?;
    drop(writer);
    let len = u32::try_from(bytes.len() - len_at - 4)
        .map_err(|_| Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "the transaction is too large"))?;
    bytes[len_at..len_at + 4].copy_from_slice(&len.to_le_bytes());
    Ok(())
}

/// Reads fields one after another.
struct Fields<'a> {
    bytes: &'a [u8],
}

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u32(&mut self) -> Option<u32> {
        array(self.take(4)?, 0).map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        array(self.take(8)?, 0).map(u64::from_le_bytes)
    }
}

fn check_format(record: &RawRecord<'_>) -> Result<()> {
    match record.format {
        RECORD_FORMAT => Ok(()),
        0 => Err(malformed()),
        format => Err(Error::newer_format("a record of the engine log", format, RECORD_FORMAT)),
    }
}

/// The commit in a record of kind [`RecordKind::Commit`]. An error (`XX001`; `0A000` for a newer format) says what is wrong, not where: the caller knows
/// the file.
pub fn decode_commit(record: &RawRecord<'_>) -> Result<Commit> {
    check_format(record)?;
    let mut fields = Fields { bytes: record.payload };
    fields.u64().ok_or_else(malformed)?;
    let mut changes = Changes { catalog: decode_catalog_changes(&mut fields)?, tables: Vec::new() };
    for _ in 0..fields.u32().ok_or_else(malformed)? {
        changes.tables.push(decode_table_change(&mut fields)?);
    }
    if !fields.bytes.is_empty() {
        return Err(malformed());
    }
    Ok(Commit { seq: record.seq, changes, len: record.len as u64, tag: 0 })
}

/// What opening the log needs of a commit: the next row id, and the changes of the catalog.
pub fn decode_catalog_part(record: &RawRecord<'_>) -> Result<(u64, Vec<CatalogChange>)> {
    check_format(record)?;
    let mut fields = Fields { bytes: record.payload };
    let next_row_id = fields.u64().ok_or_else(malformed)?;
    Ok((next_row_id, decode_catalog_changes(&mut fields)?))
}

fn malformed() -> Error {
    Error::corrupted("a record of the engine log has a right checksum and a malformed content")
}

fn decode_catalog_changes(fields: &mut Fields<'_>) -> Result<Vec<CatalogChange>> {
    let mut changes = Vec::new();
    for _ in 0..fields.u32().ok_or_else(malformed)? {
        let len = fields.u32().ok_or_else(malformed)? as usize;
        changes.push(CatalogChange::decode(fields.take(len).ok_or_else(malformed)?)?);
    }
    Ok(changes)
}

fn decode_table_change(fields: &mut Fields<'_>) -> Result<TableChange> {
    let table: ObjectId = fields.u64().ok_or_else(malformed)?;
    let schema_number = fields.u32().ok_or_else(malformed)?;
    let flags = fields.u8().ok_or_else(malformed)?;
    if flags & !(FLAG_KINDS | FLAG_ROW_IDS) != 0 {
        return Err(malformed());
    }
    let len = fields.u32().ok_or_else(malformed)? as usize;
    let kinds = if flags & FLAG_KINDS != 0 {
        let kinds = fields.take(len).ok_or_else(malformed)?;
        if kinds.iter().any(|kind| RowKind::from_u8(*kind).is_none()) {
            return Err(malformed());
        }
        Some(kinds.to_vec())
    } else {
        None
    };
    let row_ids = if flags & FLAG_ROW_IDS != 0 {
        let bytes = fields.take(len.checked_mul(8).ok_or_else(malformed)?).ok_or_else(malformed)?;
        Some(UInt64Array::from_iter_values(bytes.chunks_exact(8).filter_map(|id| array(id, 0)).map(u64::from_le_bytes)))
    } else {
        None
    };
    let stream_len = fields.u32().ok_or_else(malformed)? as usize;
    let rows = decode_rows(fields.take(stream_len).ok_or_else(malformed)?)?;
    if rows.num_rows() != len {
        return Err(malformed());
    }
    let batch = match kinds {
        Some(kinds) => Batch::with_kinds(rows, kinds),
        None => Batch::insert(rows),
    };
    Ok(TableChange { table, schema_number, batch, row_ids })
}

fn decode_rows(bytes: &[u8]) -> Result<RecordBatch> {
    let failed = |e| Error::corrupted(format!("rows in the engine log can't be read: {e}"));
    let mut reader = StreamReader::try_new(Cursor::new(bytes), None).map_err(failed)?;
    let rows = reader.next().ok_or_else(malformed)?.map_err(failed)?;
    if reader.next().is_some() {
        return Err(malformed());
    }
    Ok(rows)
}
