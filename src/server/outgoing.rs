//! What goes to a client, and since when the client has not taken it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::AsyncWrite;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::time::Instant;

/// The sending half of a connection.
#[derive(Debug)]
pub(super) struct Outgoing {
    writer: OwnedWriteHalf,
    untaken: Untaken,
}

/// Since when a connection waits for its client to take something. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Untaken(Arc<Mutex<Option<Instant>>>);

impl Untaken {
    /// `None` where it waits for nothing.
    pub fn since(&self) -> Option<Instant> {
        *self.0.lock()
    }

    fn note<T>(&self, polled: Poll<T>) -> Poll<T> {
        let mut since = self.0.lock();
        match polled {
            Poll::Pending => {
                since.get_or_insert_with(Instant::now);
            }
            Poll::Ready(_) => *since = None,
        }
        polled
    }
}

impl Outgoing {
    /// What sends over `writer`, and what tells how it gets on.
    pub fn new(writer: OwnedWriteHalf) -> (Outgoing, Untaken) {
        let untaken = Untaken::default();
        (Outgoing { writer, untaken: untaken.clone() }, untaken)
    }
}

impl AsyncWrite for Outgoing {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.writer).poll_write(context, bytes);
        self.untaken.note(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.writer).poll_flush(context);
        self.untaken.note(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.writer).poll_shutdown(context);
        self.untaken.note(polled)
    }
}
