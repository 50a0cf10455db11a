//! How this run of the tests is set: its seed, its length, and how a test says that it can't run here.
//!
//! `WEIR_TEST_SEED=N` fixes the seed, `WEIR_TEST_LONG=1` asks for the long run, which draws a fresh seed unless one is given, and
//! `WEIR_TEST_ROUNDS=N` for no more than that many rounds of whatever comes in rounds. Every seed is printed past the test runner's capture, so
//! that a run can be repeated from its log.

use std::io::Write;
use std::sync::OnceLock;

use weir::seams::random::Random;

/// The seed of short runs: the same everywhere, so that CI is repeatable.
const FIXED_SEED: u64 = 20_260_131;

/// Whether this is the long run.
pub fn is_long() -> bool {
    std::env::var("WEIR_TEST_LONG").is_ok_and(|value| value == "1")
}

/// How many rounds a test makes: `short` or, in the long run, `long`, unless fewer are asked for.
pub fn rounds(short: usize, long: usize) -> usize {
    let rounds = if is_long() { long } else { short };
    match std::env::var("WEIR_TEST_ROUNDS") {
        Ok(text) => rounds.min(text.parse().unwrap_or_else(|_| panic!("WEIR_TEST_ROUNDS is not a number: {text}"))),
        Err(_) => rounds,
    }
}

/// The seed of the whole run.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| match std::env::var("WEIR_TEST_SEED") {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("WEIR_TEST_SEED is not a number: {text}")),
        Err(_) if is_long() => Random::from_entropy().next_u64() >> 16,
        Err(_) => FIXED_SEED,
    })
}

/// Randomness for the test of this name, printed with the seed that repeats it.
pub fn random(test: &str) -> Random {
    say(&format!("{test}: WEIR_TEST_SEED={}", seed()));
    Random::seeded(seed_of(test))
}

/// The seed of the test of this name: other tests draw other numbers, and adding a test changes none.
pub fn seed_of(test: &str) -> u64 {
    test.bytes().fold(seed() ^ 0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Prints a line that the test runner does not capture.
pub fn say(line: &str) {
    // Nothing to do where the terminal is gone.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Says that a test did not run, and why.
pub fn skip(test: &str, reason: &str) {
    say(&format!("SKIPPED {test}: {reason}"));
}

/// When statements are cut off by a kill: each at a moment that is drawn, within a time that grows as long as they are cut off before they are done. Every fifth is
/// let be, so that some are done on the slowest machine, and some are cut off on the fastest.
pub struct Cuts {
    longest_ms: u64,
    drawn: usize,
}

impl Cuts {
    /// The first ones come within about `longest_ms`.
    pub fn within(longest_ms: u64) -> Cuts {
        Cuts { longest_ms: longest_ms.max(1), drawn: 0 }
    }

    /// Waits for the next cut, which never comes for a statement that is let be.
    pub async fn next(&mut self, random: &mut Random) {
        self.drawn += 1;
        if self.drawn.is_multiple_of(5) {
            return std::future::pending().await;
        }
        let pause_ms = random.below(self.longest_ms);
        tokio::time::sleep(std::time::Duration::from_millis(pause_ms)).await;
        self.longest_ms = self.longest_ms.max(2 * pause_ms + 50);
    }
}
