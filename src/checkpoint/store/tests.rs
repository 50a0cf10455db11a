//! Power loss right after a manifest was written.

use std::sync::Arc;

use super::*;
use crate::checkpoint::TablesCheckpoint;
use crate::seams::files::{Files, LossyFiles};
use crate::state::{StateBackendKind, StateSize};
use crate::stream::KeyGroupRange;

#[test]
fn a_manifest_and_what_it_names_survive_power_loss() {
    for seed in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("checkpoints");
        let files = LossyFiles::new(folder.path(), seed).unwrap();
        let open = || CheckpointStore::open(Arc::new(files.clone()), &dir, None).unwrap();
        let mut expected = Vec::new();
        for number in 1..4u64 {
            let (store, found) = open();
            assert_eq!(found, expected, "seed {seed}");
            // What RocksDB would leave: files that nobody has fsynced.
            let image = folder.path().join(format!("image-{number}"));
            std::fs::create_dir(&image).unwrap();
            let names = ["CURRENT", "000007.sst"];
            let mut handles = Vec::new();
            for name in names {
                std::fs::write(image.join(name), format!("{name} of {number}")).unwrap();
                handles.push(store.put(&format!("incarnation{number}"), &image, name, number).unwrap().handle);
            }
            let part = Part {
                format: Part::format_of(&[]),
                backend: StateBackendKind::RocksDb,
                range: KeyGroupRange::ALL,
                files: handles,
                size: StateSize::default(),
            };
            let manifest =
                Manifest { number, barrier: number, tables: Some(TablesCheckpoint { commit: number, part }), ..Manifest::default() };
            store.write_manifest(&manifest).unwrap();
            expected.push(manifest);
            files.crash().unwrap();

            let (store, found) = open();
            assert_eq!(found, expected, "seed {seed}");
            for manifest in &found {
                let part = &manifest.tables.as_ref().unwrap().part;
                let into = folder.path().join(format!("restored-{number}-{}", manifest.number));
                store.fetch(part, &into).unwrap_or_else(|error| panic!("seed {seed}, checkpoint {}: {error}", manifest.number));
                for name in names {
                    assert_eq!(files.read(&into.join(name)).unwrap(), format!("{name} of {}", manifest.number).into_bytes());
                }
            }
        }
    }
}
