//! Tests of checkpoints as a whole: through power loss, and the choice of the one to start from. The bytes of released formats are in `format`, object
//! stores in `objects`.

mod choice;
mod format;
mod objects;
mod power_loss;

use tempfile::TempDir;

use super::*;
use crate::state::{SharedRocks, StateBackend, Writes};
use crate::stream::KeyGroupRange;

fn shared_rocks() -> SharedRocks {
    SharedRocks::new(16 << 20, 4 << 20).expect("RocksDB's environment")
}

/// A temporary folder, in memory where the machine has such: nothing here relies on RocksDB's own fsyncs, which take most of the time on a disk.
fn folder() -> TempDir {
    let memory = std::path::Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.expect("a temporary folder")
}

/// The key `i` in `group`.
fn key(group: u16, i: u32) -> Vec<u8> {
    let mut key = group.to_be_bytes().to_vec();
    key.push(0);
    key.extend(i.to_be_bytes());
    key
}
