//! Reading objects that someone else wrote, and that must not change meanwhile.
//!
//! # Invariants
//! - What is read of an object is of one version: each answer's length and entity tag are those of when it was found, or of the first answer where no tag
//!   was known then.
//! - What is on its way for a reader is bounded: [`PIECES_AHEAD`] pieces of [`PIECE_BYTES`].

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, Read};
use std::sync::mpsc;

use bytes::{Buf, Bytes};
use futures::stream::{self, StreamExt, TryStreamExt};
use object_store::{GetOptions, ObjectStoreExt};
use tokio::task::JoinHandle;
use weir_catalog::{Error, Result, SqlState};
use xxhash_rust::xxh3::xxh3_64;

use super::{Objects, Outcome, key_of, runtime};

/// What one request of a reader asks for.
const PIECE_BYTES: u64 = 4 << 20;
/// How many requests of a reader are under way at a time.
const PIECES_AHEAD: usize = 2;
/// What an [`ObjectReader`] holds at most, bytes.
pub const READER_BYTES_MOST: usize = (PIECES_AHEAD + 1) * PIECE_BYTES as usize;
/// How many requests for parts of one object, or for small objects, are under way at a time.
const REQUESTS_MOST: usize = 8;
/// Parts of an object with less than this between them are read as one.
const GAP_BYTES: u64 = 256 << 10;

/// An object as it was when it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub key: String,
    pub bytes: u64,
    /// See [`tag_of`].
    pub tag: Option<u64>,
}

/// A number for an entity tag: two versions of an object have different ones.
pub fn tag_of(entity_tag: &str) -> u64 {
    xxh3_64(entity_tag.trim_start_matches("W/").trim_matches('"').as_bytes())
}

/// The error that a reader's `std::io` error is about, where it came from here.
pub fn error_of(error: &io::Error) -> Option<Error> {
    error.get_ref()?.downcast_ref::<Error>().cloned()
}

/// A part of an object, and which version it is of.
#[derive(Debug)]
struct Fetched {
    bytes: Bytes,
    tag: Option<u64>,
}

impl Objects {
    fn changed(&self, seen: &Seen, detail: String) -> Error {
        Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, format!("file \"{}\" has changed", self.url(&seen.key)))
            .with_detail(detail)
            .with_hint("Objects must not change once they can be seen: what is new needs a name of its own.")
    }

    fn check_version(&self, seen: &Seen, bytes: u64, tag: Option<u64>) -> Result<()> {
        if bytes != seen.bytes {
            return Err(self.changed(seen, format!("It had {} bytes when it was found and has {bytes} now.", seen.bytes)));
        }
        match (seen.tag, tag) {
            (Some(then), Some(now)) if then != now => {
                Err(self.changed(seen, "It has as many bytes as when it was found, and another entity tag.".to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Bytes `from..to` of `seen`.
    fn fetch(&self, seen: &Seen, from: u64, to: u64) -> impl Future<Output = Result<Fetched>> + Send + 'static {
        let (objects, seen) = (self.clone(), seen.clone());
        async move {
            let (store, path) = (objects.store.clone(), key_of(&seen.key)?);
            let get = {
                let (store, path) = (store.clone(), path.clone());
                async move {
                    let found = store.get_opts(&path, GetOptions::new().with_range(Some(from..to))).await?;
                    let (size, tag) = (found.meta.size, found.meta.e_tag.as_deref().map(tag_of));
                    Ok((size, tag, found.bytes().await?))
                }
            };
            let url = objects.url(&seen.key);
            let error = match objects.bounded("read", url.clone(), get).await {
                Ok(Outcome::Done((size, tag, bytes))) => {
                    objects.check_version(&seen, size, tag)?;
                    if bytes.len() as u64 == to - from {
                        return Ok(Fetched { bytes, tag });
                    }
                    Error::new(SqlState::IO_ERROR, format!("could not read \"{url}\"")).with_detail(format!(
                        "{} bytes were asked for and {} came.",
                        to - from,
                        bytes.len()
                    ))
                }
                Ok(Outcome::Missing | Outcome::Exists) => {
                    return Err(Error::new(SqlState::IO_ERROR, format!("could not read \"{url}\""))
                        .with_detail("There is no such object any more."));
                }
                Err(error) => error,
            };
            // What lies behind the end is refused in words that differ from store to store.
            match objects.bounded("read", url, async move { store.head(&path).await }).await {
                Ok(Outcome::Done(head)) => objects.check_version(&seen, head.size, head.e_tag.as_deref().map(tag_of)).and(Err(error)),
                _ => Err(error),
            }
        }
    }

    /// The parts `ranges` of `seen`, in order. Waits for the store.
    ///
    /// Errors: `55000` where it has changed; those of the store.
    pub fn read_ranges(&self, seen: &Seen, ranges: &[std::ops::Range<u64>]) -> Result<Vec<Bytes>> {
        let mut requests: Vec<Vec<std::ops::Range<u64>>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            let starts = (range.start..range.end).step_by(PIECE_BYTES as usize);
            requests.push(starts.map(|from| from..(from + PIECE_BYTES).min(range.end)).collect());
        }
        let fetches: Vec<_> = requests.iter().flatten().map(|range| self.fetch(seen, range.start, range.end)).collect();
        let fetched: Vec<Fetched> = self.wait(stream::iter(fetches).buffered(REQUESTS_MOST).try_collect())?;
        let first = fetched.iter().find_map(|part| part.tag);
        let whole = Seen { tag: seen.tag.or(first), ..seen.clone() };
        fetched.iter().try_for_each(|part| self.check_version(&whole, whole.bytes, part.tag))?;
        let mut parts = fetched.into_iter().map(|part| part.bytes);
        Ok(requests
            .iter()
            .map(|requests| match requests.len() {
                1 => parts.next().unwrap_or_default(),
                several => parts
                    .by_ref()
                    .take(several)
                    .fold(Vec::new(), |mut all, part| {
                        all.extend_from_slice(&part);
                        all
                    })
                    .into(),
            })
            .collect())
    }

    /// The contents of small objects, several requests at a time; `None` for those that are not there. Waits for the store.
    pub fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Bytes>>> {
        let mut gets = Vec::with_capacity(keys.len());
        for key in keys {
            let (store, path) = (self.store.clone(), key_of(key)?);
            gets.push(self.bounded("read", self.url(key), async move { store.get(&path).await?.bytes().await }));
        }
        let gets = stream::iter(gets).buffered(REQUESTS_MOST).map_ok(|outcome| match outcome {
            Outcome::Done(bytes) => Some(bytes),
            Outcome::Missing | Outcome::Exists => None,
        });
        self.wait(gets.try_collect())
    }

    /// Runs `work`, which waits for the store, on a thread for such work; what comes of it is received, unless whoever asked has gone.
    pub fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<mpsc::Receiver<T>> {
        let (sender, receiver) = mpsc::sync_channel(1);
        runtime()?.spawn_blocking(move || {
            // Whoever asked may have gone.
            let _ = sender.send(work());
        });
        Ok(receiver)
    }

    /// Reads `seen` from its beginning.
    pub fn reader(&self, seen: Seen) -> ObjectReader {
        ObjectReader { objects: self.clone(), seen, position: 0, asked: 0, under_way: VecDeque::new(), current: Bytes::new() }
    }
}

/// `ranges`, which are sorted, with those made one that lie close together.
pub fn joined(ranges: &[std::ops::Range<u64>]) -> Vec<std::ops::Range<u64>> {
    let mut joined: Vec<std::ops::Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end + GAP_BYTES => last.end = last.end.max(range.end),
            _ => joined.push(range.clone()),
        }
    }
    joined
}

/// A part of an object that was asked for.
#[derive(Debug)]
struct Asked {
    from: u64,
    to: u64,
    task: JoinHandle<()>,
    answer: mpsc::Receiver<Result<Fetched>>,
}

/// Reads an object from front to back: the next pieces travel while one is worked on. Its errors carry those of this engine: [`error_of`].
#[derive(Debug)]
pub struct ObjectReader {
    objects: Objects,
    seen: Seen,
    /// Where the next byte that is read stands.
    position: u64,
    /// Where the next request begins.
    asked: u64,
    under_way: VecDeque<Asked>,
    /// What is left of the piece that came last.
    current: Bytes,
}

impl ObjectReader {
    /// What it may hold, bytes.
    pub fn held_bytes(&self) -> usize {
        self.current.len() + self.under_way.iter().map(|asked| (asked.to - asked.from) as usize).sum::<usize>()
    }

    /// Leaves out the next `distance` bytes.
    pub fn skip(&mut self, distance: u64) {
        self.position = self.position.saturating_add(distance).min(self.seen.bytes);
        self.current.advance(distance.min(self.current.len() as u64) as usize);
        while let Some(first) = self.under_way.pop_front() {
            if first.to > self.position {
                self.under_way.push_front(first);
                break;
            }
            first.task.abort();
        }
        if self.under_way.is_empty() {
            self.asked = self.position + self.current.len() as u64;
        }
    }

    /// Waits for the next piece. False at the end.
    fn next(&mut self) -> Result<bool> {
        while self.under_way.len() < PIECES_AHEAD && self.asked < self.seen.bytes {
            let (from, to) = (self.asked, (self.asked + PIECE_BYTES).min(self.seen.bytes));
            let fetch = self.objects.fetch(&self.seen, from, to);
            let (sender, answer) = mpsc::sync_channel(1);
            let task = runtime()?.spawn(async move {
                // Whoever asked may have gone.
                let _ = sender.send(fetch.await);
            });
            self.under_way.push_back(Asked { from, to, task, answer });
            self.asked = to;
        }
        let Some(first) = self.under_way.pop_front() else { return Ok(false) };
        let fetched = first.answer.recv().map_err(|_| Error::internal("a request to an object store panicked"))??;
        self.objects.check_version(&self.seen, self.seen.bytes, fetched.tag)?;
        self.seen.tag = self.seen.tag.or(fetched.tag);
        self.current = fetched.bytes;
        self.current.advance((self.position - first.from) as usize);
        Ok(true)
    }
}

impl Read for ObjectReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.current.is_empty() && !self.next().map_err(io::Error::other)? {
            return Ok(0);
        }
        let taken = buffer.len().min(self.current.len());
        self.current.copy_to_slice(&mut buffer[..taken]);
        self.position += taken as u64;
        Ok(taken)
    }
}

impl Drop for ObjectReader {
    fn drop(&mut self) {
        self.under_way.iter().for_each(|asked| asked.task.abort());
    }
}
