//! What a transaction has written to one table: for each row it touched, its former content and its present one.
//!
//! Keys and rows are kept encoded, one behind the other in memory that only grows until the transaction ends.

use hashbrown::HashTable;
use weir_catalog::{Result, RowKind};

use super::layout::TableLayout;
use crate::seams::hash::HashSet;
use crate::state::EncodedRows;
use crate::stream::Batch;
use crate::stream::key_group::key_hash;

/// Whether a row is there, and which of [`TableWrites::rows`] it is.
type RowPlace = Option<u32>;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// What was committed when the transaction first touched the row.
    old: RowPlace,
    new: RowPlace,
}

/// The changed rows of one table, by row key.
#[derive(Clone, Debug, Default)]
pub struct TableWrites {
    index: HashTable<u32>,
    entries: Vec<Entry>,
    /// One an entry.
    keys: EncodedRows,
    rows: EncodedRows,
}

impl TableWrites {
    fn find(&self, key: &[u8]) -> Option<usize> {
        self.index.find(key_hash(key), |i| self.keys.get(*i as usize) == key).map(|i| *i as usize)
    }

    /// `None`: the transaction did not touch the row. `Some(None)`: it is not there. `Some(Some(row))`: what it is.
    pub(super) fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        if self.entries.is_empty() {
            return None;
        }
        let entry = self.entries[self.find(key)?];
        Some(entry.new.map(|row| self.rows.get(row as usize)))
    }

    /// The key and present content of the `i`-th touched row; `None` behind the last.
    pub(super) fn entry(&self, i: usize) -> Option<(&[u8], Option<&[u8]>)> {
        let entry = self.entries.get(i)?;
        Some((self.keys.get(i), entry.new.map(|row| self.rows.get(row as usize))))
    }

    /// The key of the `i`-th touched row, what it was and what it is; `None` behind the last.
    pub(super) fn change(&self, i: usize) -> Option<(&[u8], Option<&[u8]>, Option<&[u8]>)> {
        let entry = self.entries.get(i)?;
        let row = |place: RowPlace| place.map(|row| self.rows.get(row as usize));
        Some((self.keys.get(i), row(entry.old), row(entry.new)))
    }

    /// The bytes of memory held.
    pub(super) fn memory_size(&self) -> usize {
        self.keys.memory_size() + self.rows.memory_size() + self.entries.capacity() * size_of::<Entry>() + self.index.capacity() * 5
    }

    fn push_row(&mut self, row: &[u8]) -> RowPlace {
        let place = self.rows.len() as u32;
        self.rows.push(row);
        Some(place)
    }

    fn push_entry(&mut self, key: &[u8], entry: Entry) {
        let place = self.entries.len() as u32;
        self.keys.push(key);
        self.entries.push(entry);
        let keys = &self.keys;
        self.index.insert_unique(key_hash(key), place, |i| key_hash(keys.get(*i as usize)));
    }

    /// Makes `row` the content of `key`, which is not there now.
    pub(super) fn put(&mut self, key: &[u8], row: &[u8]) {
        let new = self.push_row(row);
        match self.find(key) {
            Some(entry) => self.entries[entry].new = new,
            None => self.push_entry(key, Entry { old: None, new }),
        }
    }

    /// Takes the row of `key` away. `row` is its content, if the transaction did not touch it before.
    pub(super) fn take(&mut self, key: &[u8], row: &[u8]) {
        match self.find(key) {
            Some(entry) => self.entries[entry].new = None,
            None => {
                let old = self.push_row(row);
                self.push_entry(key, Entry { old, new: None });
            }
        }
    }

    /// The net change, whole; `None` where there is none. The keys of its rows are in the same order.
    pub(super) fn net(&self, layout: &TableLayout) -> Result<Option<(Batch, EncodedRows)>> {
        let mut places = Vec::new();
        let mut kinds = Vec::new();
        let mut keys = EncodedRows::new();
        let mut add = |kind: RowKind, place: u32, entry: usize| {
            kinds.push(kind as u8);
            places.push(place);
            keys.push(self.keys.get(entry));
        };
        for (i, entry) in self.entries.iter().enumerate() {
            match (entry.old, entry.new) {
                (None, None) => {}
                (Some(old), Some(new)) if self.rows.get(old as usize) == self.rows.get(new as usize) => {}
                (Some(old), Some(new)) => {
                    add(RowKind::UpdateBefore, old, i);
                    add(RowKind::UpdateAfter, new, i);
                }
                (None, Some(new)) => add(RowKind::Insert, new, i),
                (Some(old), None) => add(RowKind::Delete, old, i),
            }
        }
        if places.is_empty() {
            return Ok(None);
        }
        let columns = layout.decode_rows(places.iter().map(|place| self.rows.get(*place as usize)), None)?;
        let rows = layout.batch(columns, places.len())?;
        Ok(Some((Batch::with_kinds(rows, kinds), keys)))
    }

    /// Adds to `hashes` the rows that someone else may change too: all but new rows under a row id. Also rows whose content is the same again
    /// count, for what the transaction wrote elsewhere may rest on them.
    pub(super) fn contended(&self, layout: &TableLayout, hashes: &mut HashSet<u64>) {
        for (entry, key) in self.entries.iter().zip(self.keys.iter()) {
            if entry.old.is_some() || layout.key.is_some() {
                hashes.insert(key_hash(&layout.store_key(key)));
            }
        }
    }
}
