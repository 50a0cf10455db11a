//! Files that were read to their end are settled: one subtask takes them over from all others, and gathers them in portions of the state that are stored once.
//!
//! What each subtask notes at a barrier must, together with what the others note at the same barrier, name each part that was sent before it. Subtasks meet a
//! barrier at different moments; but all meet the same ones, so they can count them:
//!
//! 1. When the last part of a file was sent, every subtask that sent one of its parts notes it at its next barrier. From the barrier on that is the next one of
//!    the subtask which is furthest, all of the file is noted.
//! 2. At the first barrier from there on that subtask 0 meets, it notes the whole file as its own.
//! 3. The others leave their parts out from the same barrier on, each when it comes to it.
//!
//! # Invariants
//! - At each barrier, the notes of all subtasks have a file's part if and only if it was sent before. Having it twice does no harm.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::enumerator::hash_of;
use super::progress::{FileProgress, Progress};
use crate::seams::hash::HashSet;

/// What all subtasks of a run have sent, in this run and before it.
#[derive(Debug)]
pub struct Settling {
    /// Files that were not read to their end yet.
    sent: BTreeMap<PathBuf, FileProgress>,
    /// The hashes of those that were.
    finished: HashSet<u128>,
    /// Files that were read to their end, each with the barrier from which on all of it is noted; not taken over yet.
    noted: Vec<(PathBuf, FileProgress, u64)>,
    /// Files that subtask 0 has taken over, each with the barrier at which it did; others may still have to leave their parts out.
    taken: BTreeMap<PathBuf, u64>,
    /// How many barriers each subtask has met.
    barriers: Vec<u64>,
}

impl Settling {
    /// Goes on from what was read before: `restored`, which subtask 0 notes, and the files with the hashes `finished`.
    pub fn new(parallelism: usize, restored: Progress, finished: HashSet<u128>) -> Settling {
        let (complete, sent): (BTreeMap<_, _>, BTreeMap<_, _>) =
            restored.files.into_iter().partition(|(_, progress)| progress.is_complete());
        let mut settling = Settling { sent, finished, noted: Vec::new(), taken: BTreeMap::new(), barriers: vec![0; parallelism] };
        for (path, progress) in complete {
            settling.finish(path, progress);
        }
        settling
    }

    /// A subtask has sent a part of a file, and noted it before. `end` is the file's length, where the part goes to its end.
    pub fn note_sent(&mut self, path: &Path, disk_length: u64, from: u64, to: u64, end: Option<u64>) {
        if !self.sent.contains_key(path) {
            self.sent.insert(path.to_path_buf(), FileProgress { disk_length, ..FileProgress::default() });
        }
        let Some(file) = self.sent.get_mut(path) else { return };
        file.add(from, to);
        file.end = file.end.or(end);
        if !file.is_complete() {
            return;
        }
        if let Some((path, progress)) = self.sent.remove_entry(path) {
            self.finish(path, progress);
        }
    }

    /// A file has no records: nothing of it is ever sent.
    pub fn note_empty(&mut self, path: &Path, disk_length: u64) {
        self.finish(path.to_path_buf(), FileProgress { disk_length, end: Some(0), ..FileProgress::default() });
    }

    fn finish(&mut self, path: PathBuf, progress: FileProgress) {
        let from = self.barriers.iter().max().map_or(1, |furthest| furthest + 1);
        self.finished.insert(hash_of(&path));
        self.noted.push((path, progress, from));
    }

    /// `subtask` meets its next barrier with these notes of its own: takes out of them what it need not note any more. Returns the files that it takes over.
    pub fn meet_barrier(&mut self, subtask: usize, own: &mut Progress) -> Vec<(PathBuf, FileProgress)> {
        let Some(barrier) = self.barriers.get_mut(subtask) else { return Vec::new() };
        *barrier += 1;
        let barrier = *barrier;
        let mut taken_over = Vec::new();
        if subtask == 0 {
            for (path, progress, from) in std::mem::take(&mut self.noted) {
                if from > barrier {
                    self.noted.push((path, progress, from));
                    continue;
                }
                own.files.remove(&path);
                if self.barriers.len() > 1 {
                    self.taken.insert(path.clone(), barrier);
                }
                taken_over.push((path, progress));
            }
        } else {
            own.files.retain(|path, _| self.taken.get(path).is_none_or(|taken| *taken > barrier));
        }
        let last = self.barriers.iter().min().copied().unwrap_or(0);
        self.taken.retain(|_, taken| *taken > last);
        taken_over
    }

    /// Whether all subtasks together have sent every part that `target` has.
    ///
    /// Where each subtask asks when a barrier comes to it, until it is told so once, everything of `target` was sent before the last of those barriers: when
    /// the first is told, a part that was sent behind a barrier by someone else lies before the barrier at which that one will be told.
    pub fn has_sent(&self, target: &Progress) -> bool {
        target.files.iter().all(|(path, target)| {
            target.read.is_empty() || self.finished.contains(&hash_of(path)) || self.sent.get(path).is_some_and(|sent| sent.covers(target))
        })
    }
}
