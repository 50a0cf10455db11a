//! What is particular to the memory backend; what every backend must do is in `state/tests.rs`.

use super::*;

fn filled(entries: u32) -> MemoryBackend {
    let mut backend = MemoryBackend::new();
    backend.write(&(0..entries).map(|i| (i.to_be_bytes().to_vec(), Some(vec![i as u8]))).collect()).unwrap();
    backend
}

#[test]
fn a_snapshot_shares_the_leaves_that_are_not_written() {
    let mut backend = filled(10_000);
    let before = backend.leaves.clone();
    backend.write(&Writes::from_iter([(5u32.to_be_bytes(), Some(b"new"))])).unwrap();
    let copied = before.values().zip(backend.leaves.values()).filter(|(a, b)| !Arc::ptr_eq(a, b)).count();
    assert_eq!(copied, 1);
    assert!(before.len() <= 10_000 / LEAF_ENTRIES + 1, "keys in order leave leaves half empty");
}

#[test]
fn every_flipped_byte_of_a_checkpoint_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("checkpoint");
    let files = filled(3).checkpoint(&dir).unwrap();
    let path = dir.join(&files[0]);
    let whole = std::fs::read(&path).unwrap();
    let parts = [RestorePart { dir: dir.clone(), range: KeyGroupRange::ALL }];
    for i in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[i] ^= 0x10;
        std::fs::write(&path, &damaged).unwrap();
        let error = MemoryBackend::restore(&parts, KeyGroupRange::ALL).unwrap_err();
        assert_eq!(error.code(), &weir_catalog::SqlState::DATA_CORRUPTED);
        assert!(error.message().contains("memory-1.state"), "{error}");
        std::fs::write(&path, &whole[..i]).unwrap();
        assert!(MemoryBackend::restore(&parts, KeyGroupRange::ALL).is_err());
    }
    std::fs::write(&path, &whole).unwrap();
    let restored = MemoryBackend::restore(&parts, KeyGroupRange::ALL).unwrap();
    assert_eq!(restored.estimate(), StateSize { rows: 3, bytes: 15 });
}
