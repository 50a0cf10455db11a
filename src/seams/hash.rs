//! Hash seeds: fixed, so that a run can be replayed. Keys that users choose are hashed with [`crate::stream::key_group::key_hash`].

/// A hash map with fixed seeds.
pub type HashMap<K, V> = hashbrown::HashMap<K, V, FixedState>;
/// A hash set with fixed seeds.
pub type HashSet<K> = hashbrown::HashSet<K, FixedState>;

/// Builds hashers with fixed seeds.
#[derive(Clone, Copy, Debug, Default)]
pub struct FixedState;

impl std::hash::BuildHasher for FixedState {
    type Hasher = ahash::AHasher;

    fn build_hasher(&self) -> ahash::AHasher {
        ahash::RandomState::with_seeds(0x6765_6972, 0x2d77_6569, 0x722d_7765, 0x6972_2d21).build_hasher()
    }
}
