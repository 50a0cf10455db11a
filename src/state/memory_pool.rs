//! The one memory pool: what may be held in memory is one setting, and everything that holds much of it is counted here.
//!
//! | who | how it yields |
//! | --- | --- |
//! | operators: cached keys, epoch buffers, versions ([`Reservation`]) | told at a batch boundary to shrink |
//! | RocksDB's cache, with its write buffers in it | its capacity is what the others leave, within bounds |
//! | stored tables' changes that are not in their base yet | folded into the base when they are more than their part |
//! | queues between subtasks | bounded each; a full one holds its sender |
//! | batch queries | a bounded part of the whole; they spill beyond it |
//!
//! A reservation is never refused: the data is there already. Its owner is told to shrink when the pool is over its limit and the owner holds more than
//! its fair share.
//!
//! # Invariants
//! - The cache has at least one [`CACHE_LEAST`]th of the limit, for its filters and indexes, and at most one [`CACHE_MOST`]th.
//! - Once owners have done what they were told, all together hold no more than the limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::SharedRocks;

/// The cache may always have one in so many of the pool's bytes.
const CACHE_LEAST: usize = 5;
/// The cache never has more than one in so many.
const CACHE_MOST: usize = 2;
/// The cache's capacity is changed when it is off by more than one in so many.
const CACHE_TOLERANCE: usize = 64;

/// What everything that holds much memory shares.
pub struct MemoryPool {
    limit: usize,
    /// Held by all but the cache.
    used: AtomicUsize,
    owners: AtomicUsize,
    cache: Option<SharedRocks>,
    cache_capacity: AtomicUsize,
    /// Held by who changes it.
    fitting: Mutex<()>,
}

/// What one owner holds that can shrink when told to.
#[derive(Debug)]
pub struct Reservation {
    charge: Charge,
}

/// Memory that is counted, and bounded by other means than being told to shrink.
#[derive(Debug)]
pub struct Charge {
    pool: Arc<MemoryPool>,
    bytes: AtomicUsize,
}

impl MemoryPool {
    /// A pool of `limit` bytes, of which RocksDB has none.
    pub fn new(limit: usize) -> Arc<MemoryPool> {
        MemoryPool::make(limit, None)
    }

    /// A pool of `limit` bytes that RocksDB's cache is part of.
    pub fn with_cache(limit: usize, cache: SharedRocks) -> Arc<MemoryPool> {
        let pool = MemoryPool::make(limit, Some(cache));
        pool.fit_cache();
        pool
    }

    fn make(limit: usize, cache: Option<SharedRocks>) -> Arc<MemoryPool> {
        let (used, owners, cache_capacity) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(MemoryPool { limit, used, owners, cache, cache_capacity, fitting: Mutex::new(()) })
    }

    /// The bytes in use, the cache's with them.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed) + self.cache.as_ref().map_or(0, SharedRocks::cache_bytes)
    }

    /// The bytes that may be in use.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// What is left for all but the cache when the cache has its least.
    fn limit_beside_cache(&self) -> usize {
        if self.cache.is_some() { self.limit - self.limit / CACHE_LEAST } else { self.limit }
    }

    /// Gives the cache what the others leave.
    pub fn fit_cache(&self) {
        let Some(cache) = &self.cache else { return };
        if self.is_off(self.cache_share()) {
            // One after another, and by what is in use then: what is noted is what the cache has.
            let _alone = self.fitting.lock();
            let capacity = self.cache_share();
            if self.is_off(capacity) {
                cache.set_cache_capacity(capacity);
                self.cache_capacity.store(capacity, Ordering::Relaxed);
            }
        }
    }

    /// What the others leave to the cache, within its bounds.
    fn cache_share(&self) -> usize {
        let left = self.limit.saturating_sub(self.used.load(Ordering::Relaxed));
        left.clamp(self.limit / CACHE_LEAST, self.limit / CACHE_MOST)
    }

    /// Whether the cache's capacity is to become `capacity`.
    fn is_off(&self, capacity: usize) -> bool {
        capacity.abs_diff(self.cache_capacity.load(Ordering::Relaxed)) > self.limit / CACHE_TOLERANCE
    }

    /// A new owner, holding nothing.
    pub fn reserve(self: &Arc<Self>) -> Reservation {
        self.owners.fetch_add(1, Ordering::Relaxed);
        Reservation { charge: self.charge() }
    }

    /// Memory to be counted, none yet.
    pub fn charge(self: &Arc<Self>) -> Charge {
        Charge { pool: self.clone(), bytes: AtomicUsize::new(0) }
    }
}

impl std::fmt::Debug for MemoryPool {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("MemoryPool").field("limit", &self.limit).field("used", &self.used()).finish_non_exhaustive()
    }
}

impl Charge {
    /// Says that `bytes` more are held.
    pub fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.pool.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Says that `bytes` fewer are held.
    pub fn subtract(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.pool.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Says that `bytes` are held now. Only for an owner that is the only one to say so.
    pub fn set(&self, bytes: usize) {
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        if bytes >= before {
            self.pool.used.fetch_add(bytes - before, Ordering::Relaxed);
        } else {
            self.pool.used.fetch_sub(before - bytes, Ordering::Relaxed);
        }
    }

    /// The bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Reservation {
    /// Says that the owner now holds `bytes`.
    pub fn resize(&mut self, bytes: usize) {
        self.charge.set(bytes);
        self.charge.pool.fit_cache();
    }

    /// What the owner should shrink to, where the pool is over its limit and the owner holds more than its fair share: half of that share, so
    /// that it need not shrink again at once.
    pub fn shrink_target(&self) -> Option<usize> {
        let pool = &self.charge.pool;
        let limit = pool.limit_beside_cache();
        let owners = pool.owners.load(Ordering::Relaxed).max(1);
        let share = limit / owners;
        (pool.used.load(Ordering::Relaxed) > limit && self.charge.bytes() > share).then_some(share / 2)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.charge.pool.owners.fetch_sub(1, Ordering::Relaxed);
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

    #[test]
    fn what_is_only_counted_counts_against_the_owners() {
        let pool = MemoryPool::new(100);
        let (mut owner, charge) = (pool.reserve(), pool.charge());
        owner.resize(60);
        charge.add(50);
        charge.subtract(5);
        assert_eq!((pool.used(), charge.bytes()), (105, 45));
        assert_eq!(owner.shrink_target(), None, "it holds no more than its share");
        owner.resize(101);
        assert_eq!(owner.shrink_target(), Some(50));
        drop(charge);
        assert_eq!(pool.used(), 101);
    }

    #[test]
    fn the_cache_has_what_the_others_leave_within_bounds() {
        const MIB: usize = 1 << 20;
        let rocks = SharedRocks::new(MIB, MIB).unwrap();
        let pool = MemoryPool::with_cache(100 * MIB, rocks);
        let capacity = || pool.cache_capacity.load(Ordering::Relaxed) / MIB;
        assert_eq!(capacity(), 50, "never more than half");
        let mut owner = pool.reserve();
        owner.resize(70 * MIB);
        assert_eq!(capacity(), 30);
        assert_eq!(owner.shrink_target(), None, "the cache yields first");
        owner.resize(90 * MIB);
        assert_eq!(capacity(), 20, "never less than a fifth");
        assert_eq!(owner.shrink_target(), Some(40 * MIB));
        owner.resize(10 * MIB);
        assert_eq!(capacity(), 50);
    }
}
