//! The one memory pool: what may be held in memory is one setting, and everything that holds much of it reserves it here.
//!
//! A reservation is never refused: the data is there already. Instead its owner is told, at the next batch boundary, to shrink when the pool is over its
//! limit and the owner holds more than its fair share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The memory that operator caches, epoch buffers and versions share.
#[derive(Debug)]
pub struct MemoryPool {
    limit: usize,
    used: AtomicUsize,
    reservations: AtomicUsize,
}

/// What one owner holds of a [`MemoryPool`].
#[derive(Debug)]
pub struct Reservation {
    pool: Arc<MemoryPool>,
    bytes: usize,
}

impl MemoryPool {
    /// A pool of `limit` bytes.
    pub fn new(limit: usize) -> Arc<MemoryPool> {
        Arc::new(MemoryPool { limit, used: AtomicUsize::new(0), reservations: AtomicUsize::new(0) })
    }

    /// The bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The bytes that may be in use.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// A new owner, holding nothing.
    pub fn reserve(self: &Arc<Self>) -> Reservation {
        self.reservations.fetch_add(1, Ordering::Relaxed);
        Reservation { pool: self.clone(), bytes: 0 }
    }
}

impl Reservation {
    /// Says that the owner now holds `bytes`.
    pub fn resize(&mut self, bytes: usize) {
        if bytes >= self.bytes {
            self.pool.used.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            self.pool.used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }

    /// What the owner should shrink to, where the pool is over its limit and the owner holds more than its fair share: half of that share, so
    /// that it need not shrink again at once.
    pub fn shrink_target(&self) -> Option<usize> {
        let owners = self.pool.reservations.load(Ordering::Relaxed).max(1);
        let share = self.pool.limit / owners;
        (self.pool.used() > self.pool.limit && self.bytes > share).then_some(share / 2)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.resize(0);
        self.pool.reservations.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_holds_more_than_its_share_shrinks_and_only_when_the_pool_is_full() {
        let pool = MemoryPool::new(100);
        let (mut large, mut small) = (pool.reserve(), pool.reserve());
        large.resize(90);
        assert_eq!(large.shrink_target(), None);
        small.resize(20);
        assert_eq!(large.shrink_target(), Some(25));
        assert_eq!(small.shrink_target(), None);
        drop(large);
        assert_eq!(pool.used(), 20);
    }
}
