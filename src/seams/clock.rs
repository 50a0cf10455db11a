//! The clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where time comes from. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Clock(Kind);

#[derive(Clone, Debug, Default)]
enum Kind {
    #[default]
    System,
    /// Microseconds since 1970 UTC, moved by a test.
    Virtual(Arc<AtomicI64>),
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Clock {
        Clock(Kind::System)
    }

    /// A clock that stands at `now_us` until [`Clock::advance`].
    pub fn at(now_us: i64) -> Clock {
        Clock(Kind::Virtual(Arc::new(AtomicI64::new(now_us))))
    }

    /// Microseconds since 1970 UTC.
    pub fn now_us(&self) -> i64 {
        match &self.0 {
            Kind::System => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64),
            Kind::Virtual(now) => now.load(Ordering::SeqCst),
        }
    }

    /// Moves a virtual clock on. The machine's clock can't be moved.
    pub fn advance(&self, by: Duration) {
        if let Kind::Virtual(now) = &self.0 {
            now.fetch_add(by.as_micros() as i64, Ordering::SeqCst);
        }
    }
}

/// Measures a duration for a metric; never used to decide anything.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
