//! Which rows recent commits changed, to find out that a transaction came too late (first committer wins).
//!
//! # Invariants
//! - Entries stand in the order of their commits. An entry whose commit is not durable yet counts as newer than everything.
//! - Entries are kept as long as a running transaction began before their commit, within a limit of memory; a transaction that began before what was
//!   forgotten fails instead.

use std::collections::{BTreeMap, VecDeque};

use crate::seams::hash::HashSet;
use crate::stream::CommitSeq;

/// The rows that one commit changed.
#[derive(Debug)]
struct Entry {
    /// Names the commit before its sequence is known.
    tag: u64,
    /// `None` until it is durable.
    seq: Option<CommitSeq>,
    /// Hashes of table id and row key: 64 bits, so that two different rows pass for one only by a chance of about one in 10^19.
    rows: HashSet<u64>,
}

/// Recent commits' rows, and when the running transactions began.
#[derive(Debug)]
pub(super) struct Conflicts {
    entries: VecDeque<Entry>,
    rows: usize,
    max_rows: usize,
    next_tag: u64,
    /// Commits up to here may have been forgotten.
    forgotten: CommitSeq,
    /// How many transactions run that began after each commit.
    running: BTreeMap<CommitSeq, usize>,
}

impl Conflicts {
    pub(super) fn new(max_rows: usize) -> Conflicts {
        Conflicts { entries: VecDeque::new(), rows: 0, max_rows, next_tag: 1, forgotten: 0, running: BTreeMap::new() }
    }

    /// A transaction began that sees the commits up to `read_seq`.
    pub(super) fn began(&mut self, read_seq: CommitSeq) {
        *self.running.entry(read_seq).or_default() += 1;
    }

    /// It ended. `end` is the end of the log: new transactions see at least that.
    pub(super) fn ended(&mut self, read_seq: CommitSeq, end: CommitSeq) {
        if let Some(count) = self.running.get_mut(&read_seq) {
            *count -= 1;
            if *count == 0 {
                self.running.remove(&read_seq);
            }
        }
        self.forget(end);
    }

    /// Whether one of `rows` was changed by a commit after `read_seq`, or may have been.
    pub(super) fn conflicts(&self, read_seq: CommitSeq, rows: &HashSet<u64>) -> bool {
        if rows.is_empty() {
            return false;
        }
        if read_seq < self.forgotten {
            return true;
        }
        self.entries.iter().rev().take_while(|entry| entry.seq.is_none_or(|seq| seq > read_seq)).any(|entry| {
            let (few, many) = if entry.rows.len() < rows.len() { (&entry.rows, rows) } else { (rows, &entry.rows) };
            few.iter().any(|row| many.contains(row))
        })
    }

    /// A commit that changes `rows` goes to the log next. Returns its tag.
    pub(super) fn submit(&mut self, rows: HashSet<u64>) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.rows += rows.len();
        self.entries.push_back(Entry { tag, seq: None, rows });
        tag
    }

    /// The commit with `tag` is durable as `seq`. Those that went to the log before and are not durable were refused.
    pub(super) fn durable(&mut self, tag: u64, seq: CommitSeq, end: CommitSeq) {
        let mut refused = 0;
        self.entries.retain(|entry| {
            let keep = entry.seq.is_some() || entry.tag >= tag;
            refused += if keep { 0 } else { entry.rows.len() };
            keep
        });
        self.rows -= refused;
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.tag == tag) {
            entry.seq = Some(seq);
        }
        self.forget(end);
    }

    /// The commit with `tag` was refused.
    pub(super) fn refused(&mut self, tag: u64) {
        if let Some(place) = self.entries.iter().position(|entry| entry.tag == tag && entry.seq.is_none())
            && let Some(entry) = self.entries.remove(place)
        {
            self.rows -= entry.rows.len();
        }
    }

    fn forget(&mut self, end: CommitSeq) {
        let needed_after = self.running.keys().next().copied().unwrap_or(end).min(end);
        while let Some(Entry { seq: Some(seq), rows, .. }) = self.entries.front() {
            if *seq > needed_after {
                if self.rows <= self.max_rows || *seq > end {
                    break;
                }
                self.forgotten = *seq;
            }
            self.rows -= rows.len();
            self.entries.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(hashes: &[u64]) -> HashSet<u64> {
        hashes.iter().copied().collect()
    }

    #[test]
    fn only_commits_after_the_beginning_conflict() {
        let mut conflicts = Conflicts::new(1000);
        conflicts.began(0);
        let first = conflicts.submit(rows(&[1, 2]));
        assert!(conflicts.conflicts(0, &rows(&[2, 9])), "a commit on its way is newer than everything");
        conflicts.durable(first, 1, 0);
        assert!(conflicts.conflicts(0, &rows(&[2])));
        assert!(!conflicts.conflicts(1, &rows(&[2])));
        assert!(!conflicts.conflicts(0, &rows(&[3])));
        assert!(!conflicts.conflicts(0, &rows(&[])));
        conflicts.ended(0, 1);
        assert_eq!((conflicts.entries.len(), conflicts.rows), (0, 0));
    }

    #[test]
    fn a_refused_commit_does_not_conflict() {
        let mut conflicts = Conflicts::new(1000);
        conflicts.began(0);
        let first = conflicts.submit(rows(&[1]));
        let second = conflicts.submit(rows(&[2]));
        conflicts.durable(second, 1, 0);
        assert!(!conflicts.conflicts(0, &rows(&[1])));
        assert!(conflicts.conflicts(0, &rows(&[2])));
        let third = conflicts.submit(rows(&[3]));
        conflicts.refused(third);
        conflicts.refused(first);
        assert!(!conflicts.conflicts(0, &rows(&[3])));
        assert_eq!(conflicts.rows, 1);
    }

    #[test]
    fn a_transaction_older_than_what_was_forgotten_conflicts() {
        let mut conflicts = Conflicts::new(2);
        conflicts.began(0);
        for seq in 1..=4 {
            let tag = conflicts.submit(rows(&[seq]));
            conflicts.durable(tag, seq, seq - 1);
        }
        assert!(conflicts.rows <= 3);
        assert!(conflicts.conflicts(0, &rows(&[99])));
        assert!(!conflicts.conflicts(3, &rows(&[99])));
        assert!(conflicts.conflicts(3, &rows(&[4])));
    }
}
