//! Randomness.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A source of random numbers: SplitMix64 (Steele, Lea and Flood, 2014). Not for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Seeded by the operating system.
    pub fn from_entropy() -> Random {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        Random(hasher.finish())
    }

    /// The same sequence for the same seed.
    pub fn seeded(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number, uniform over all 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `0.0..1.0`.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}
