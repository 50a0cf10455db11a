//! Which parts of which files have been read: a `file` source's state.
//!
//! Each subtask notes the parts that it has sent on before a barrier, whoever's turn the rest is; all notes of a checkpoint together, and nothing else, say what
//! is still to be read. So subtasks can take parts from each other at any time, and agree at a barrier without a word.
//!
//! A part is a range of the file's plain bytes, or of a Parquet file's rows; the first range of a file begins at 0, header included.
//!
//! Files that were read to their end are settled: see [`super::settling`].
//!
//! In a checkpoint, a file is a split of its path, and its offset reads `<length on disk>;<end or ->;<from>-<to>,...`; where the version is known that is read,
//! it follows, a semicolon and 16 hex digits.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use weir_catalog::{Error, Result};

use crate::sources::SplitState;

/// What is known of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileProgress {
    /// Its length on disk when it was found.
    pub disk_length: u64,
    /// Which version of it is read, where that is known.
    pub tag: Option<u64>,
    /// How long it is in the measure of `read`; known to who read its end.
    pub end: Option<u64>,
    /// The parts that were read, sorted, not touching each other.
    pub read: Vec<(u64, u64)>,
}

impl FileProgress {
    /// Adds a part.
    pub fn add(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        match self.read.last_mut() {
            // Nearly always: parts are read in order.
            Some(last) if last.1 == from => last.1 = to,
            Some(last) if last.1 < from => self.read.push((from, to)),
            None => self.read.push((from, to)),
            Some(_) => {
                self.read.push((from, to));
                self.read.sort_unstable();
                let mut merged: Vec<(u64, u64)> = Vec::with_capacity(self.read.len());
                for (from, to) in self.read.drain(..) {
                    match merged.last_mut() {
                        Some(last) if last.1 >= from => last.1 = last.1.max(to),
                        _ => merged.push((from, to)),
                    }
                }
                self.read = merged;
            }
        }
    }

    /// Whether it has every part that `other` has.
    pub fn covers(&self, other: &FileProgress) -> bool {
        other.read.iter().all(|(from, to)| {
            let at = self.read.partition_point(|(start, _)| start <= from);
            at.checked_sub(1).is_some_and(|at| self.read[at].1 >= *to)
        })
    }

    /// Whether nothing is left of it.
    pub fn is_complete(&self) -> bool {
        self.end.is_some_and(|end| end == 0 || self.read == [(0, end)])
    }

    fn encode(&self) -> String {
        let end = self.end.map_or_else(|| "-".to_string(), |end| end.to_string());
        let parts: Vec<String> = self.read.iter().map(|(from, to)| format!("{from}-{to}")).collect();
        let tag = self.tag.map_or_else(String::new, |tag| format!(";{tag:016x}"));
        format!("{};{end};{}{tag}", self.disk_length, parts.join(","))
    }

    fn decode(text: &str) -> Option<FileProgress> {
        let mut words = text.split(';');
        let (length, end, parts) = (words.next()?, words.next()?, words.next()?);
        let mut progress = FileProgress {
            disk_length: length.parse().ok()?,
            tag: None,
            end: if end == "-" { None } else { Some(end.parse().ok()?) },
            read: Vec::new(),
        };
        for part in parts.split(',').filter(|part| !part.is_empty()) {
            let (from, to) = part.split_once('-')?;
            progress.add(from.parse().ok()?, to.parse().ok()?);
        }
        if let Some(tag) = words.next() {
            progress.tag = Some(u64::from_str_radix(tag, 16).ok()?);
        }
        words.next().is_none().then_some(progress)
    }
}

/// What is known of all files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub files: BTreeMap<PathBuf, FileProgress>,
    /// How many bad records were left out.
    pub skipped: u64,
}

/// The split under which [`Progress::skipped`] stands: no file's path, which is absolute.
const SKIPPED: &str = "skipped";

impl Progress {
    /// A file's progress.
    pub fn file(&mut self, path: &Path, disk_length: u64) -> &mut FileProgress {
        if !self.files.contains_key(path) {
            self.files.insert(path.to_path_buf(), FileProgress { disk_length, ..FileProgress::default() });
        }
        self.files.entry(path.to_path_buf()).or_default()
    }

    /// As it stands in a checkpoint.
    pub fn to_splits(&self) -> Result<Vec<SplitState>> {
        let mut splits = Vec::with_capacity(self.files.len() + 1);
        for (path, progress) in &self.files {
            let path = path.to_str().ok_or_else(|| Error::unsupported(format!("the name of file \"{}\" is not UTF-8", path.display())))?;
            splits.push(SplitState { split: path.to_string(), offset: progress.encode() });
        }
        if self.skipped > 0 {
            splits.push(SplitState { split: SKIPPED.into(), offset: self.skipped.to_string() });
        }
        Ok(splits)
    }

    /// The notes of all subtasks together. `XX001` where they are none.
    pub fn from_splits(splits: &[SplitState]) -> Result<Progress> {
        let mut progress = Progress::default();
        for SplitState { split, offset } in splits {
            let broken = || Error::corrupted(format!("the state of a file source has the offset \"{offset}\" for \"{split}\""));
            if split == SKIPPED {
                progress.skipped += offset.parse::<u64>().map_err(|_| broken())?;
                continue;
            }
            let part = FileProgress::decode(offset).ok_or_else(broken)?;
            let whole = progress.file(Path::new(split), part.disk_length);
            let differ = |one: Option<u64>, other: Option<u64>| one.is_some() && other.is_some() && one != other;
            if whole.disk_length != part.disk_length || differ(whole.end, part.end) || differ(whole.tag, part.tag) {
                return Err(broken());
            }
            whole.tag = whole.tag.or(part.tag);
            whole.end = whole.end.or(part.end);
            part.read.iter().for_each(|(from, to)| whole.add(*from, *to));
        }
        Ok(progress)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_in_any_order_and_of_any_subtask_come_back_as_one(
            cuts in prop::collection::btree_set(1u64..500, 0..20),
            order in prop::collection::vec(any::<u32>(), 25),
            subtasks in prop::collection::vec(0usize..3, 25),
        ) {
            let mut bounds = vec![0];
            bounds.extend(cuts);
            bounds.push(500);
            let mut parts: Vec<(u64, u64)> = bounds.windows(2).map(|pair| (pair[0], pair[1])).collect();
            let path = Path::new("/a;b-c,d");
            let mut notes = vec![Progress::default(); 3];
            let mut keyed: Vec<(u32, (u64, u64))> = order.iter().copied().zip(parts.drain(..)).collect();
            keyed.sort_unstable();
            let count = keyed.len();
            for (at, (_, (from, to))) in keyed.into_iter().enumerate() {
                let file = notes[subtasks[at]].file(path, 77);
                file.add(from, to);
                if to == 500 {
                    file.end = Some(500);
                }
                let splits: Vec<SplitState> = notes.iter().flat_map(|notes| notes.to_splits().unwrap()).collect();
                let whole = Progress::from_splits(&splits).unwrap();
                prop_assert_eq!(whole.files[path].is_complete(), at + 1 == count);
            }
        }
    }

    #[test]
    fn what_covers_what() {
        let progress = |parts: &[(u64, u64)]| {
            let mut progress = FileProgress::default();
            parts.iter().for_each(|(from, to)| progress.add(*from, *to));
            progress
        };
        let sent = progress(&[(0, 10), (20, 30)]);
        assert!(sent.covers(&progress(&[(0, 10)])) && sent.covers(&progress(&[(0, 4), (22, 30)])) && sent.covers(&progress(&[])));
        assert!(!sent.covers(&progress(&[(0, 11)])) && !sent.covers(&progress(&[(12, 13)])) && !sent.covers(&progress(&[(5, 25)])));
    }

    #[test]
    fn a_damaged_state_is_named() {
        let split = |offset: &str| vec![SplitState { split: "/a".into(), offset: offset.into() }];
        let tagged = FileProgress { disk_length: 7, tag: Some(0xab), ..FileProgress::default() };
        assert_eq!(tagged.encode(), "7;-;;00000000000000ab");
        assert_eq!(FileProgress::decode(&tagged.encode()), Some(tagged));
        let versions = [split("7;-;;ab"), split("7;-;;ac")].concat();
        assert_eq!(Progress::from_splits(&versions).unwrap_err().code().as_str(), "XX001");
        for offset in ["", "1;2", "1;-;3", "x;-;", "1;-;1-2;", "1;-;1-2;ab;"] {
            assert_eq!(Progress::from_splits(&split(offset)).unwrap_err().code().as_str(), "XX001", "{offset}");
        }
    }
}
