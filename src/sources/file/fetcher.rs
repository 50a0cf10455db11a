//! Pieces that come over a network: they are asked for on a thread for that, so that a subtask never waits for them and can cut at a barrier at once.
//!
//! The next piece is asked for when one begins to be read. It may be lost with the run, as every piece may: only what was sent is state.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use weir_catalog::{Error, Result};

use super::enumerator::{Enumerator, Next, Piece};
use crate::formats::parquet::ParquetDecoder;
use crate::seams::objects::Objects;

/// How long a subtask waits until it looks again whether a piece has come, microseconds.
pub const LOOK_AGAIN_US: u64 = 2000;
/// The next piece is not asked for before its time where one holds more than this.
const AHEAD_BYTES: usize = 32 << 20;

/// Gets the pieces of one subtask.
pub struct Fetcher {
    enumerator: Arc<Enumerator>,
    subtask: usize,
    /// Says what has to be read of a Parquet file.
    decoder: Option<ParquetDecoder>,
    asked: Option<Receiver<Result<Next>>>,
}

impl Fetcher {
    /// For `subtask`, whose pieces come from `enumerator`.
    pub fn new(enumerator: Arc<Enumerator>, subtask: usize, decoder: Option<ParquetDecoder>) -> Fetcher {
        Fetcher { enumerator, subtask, decoder, asked: None }
    }

    /// What has come; `None` where nothing has yet.
    pub fn next(&mut self, now_us: i64) -> Result<Option<Next>> {
        self.ask(now_us)?;
        let Some(asked) = &self.asked else { return Ok(None) };
        match asked.try_recv() {
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Error::internal("reading from an object store panicked")),
            Ok(next) => {
                self.asked = None;
                next.map(Some)
            }
        }
    }

    /// Asks for the piece behind `piece`, which begins to be read.
    pub fn read_ahead(&mut self, piece: &Piece, now_us: i64) -> Result<()> {
        if piece.memory_bytes() > AHEAD_BYTES { Ok(()) } else { self.ask(now_us) }
    }

    fn ask(&mut self, now_us: i64) -> Result<()> {
        if self.asked.is_some() {
            return Ok(());
        }
        let (enumerator, subtask, decoder) = (self.enumerator.clone(), self.subtask, self.decoder.clone());
        self.asked = Some(Objects::beside(move || {
            if subtask == 0 {
                enumerator.watch(now_us)?;
            }
            let mut next = enumerator.next(subtask)?;
            if let (Next::Piece(piece), Some(decoder)) = (&mut next, &decoder) {
                enumerator.fetch(piece, decoder)?;
            }
            Ok(next)
        })?);
        Ok(())
    }
}
