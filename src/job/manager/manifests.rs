//! Manifests: what makes checkpoints durable, and what may be removed once they are.
//!
//! # Invariants
//! - One manifest is written at a time; each holds the newest complete checkpoint of every job.
//! - Sinks commit what a manifest lists once it is durable, and before anybody is told that the checkpoint is complete.
//! - A file, and a commit of the log, is removed only when no durable manifest that is kept needs it.

use std::collections::VecDeque;
use std::time::Duration;

use weir_catalog::{ObjectId, Result};

use super::{Event, Manager};
use crate::checkpoint::Manifest;
use crate::job::status::JobState;
use crate::seams::faults::{self, Fault};
use crate::stream::BarrierNumber;

/// How long to wait before a commit that failed is tried again.
const COMMIT_RETRY: Duration = Duration::from_secs(1);

impl Manager {
    pub(super) fn write_manifest_if_due(&mut self) {
        if self.writing || !self.manifest_dirty {
            return;
        }
        self.writing = true;
        self.manifest_dirty = false;
        self.manifest.number = self.context.build.store.next_manifest_number(self.context.numbers.peek());
        self.completing = std::mem::take(&mut self.completed);
        let manifest = self.manifest.clone();
        let (store, log, sender) = (self.context.build.store.clone(), self.context.log.clone(), self.sender.clone());
        let committer = self.context.build.committer.clone();
        self.context.spawner.spawn_blocking(move || {
            let result = store.write_manifest(&manifest).and_then(|()| log.write_catalog_snapshot().map(|_| ()));
            if result.is_err() {
                store.abandon(manifest.number);
            }
            // What it lists is decided; who waits for the checkpoint waits for that to be visible too.
            let committed = result.clone().and_then(|()| committer.commit(&manifest));
            let _ = sender.send(Event::ManifestWritten { manifest, result, committed });
        });
    }

    pub(super) fn manifest_written(&mut self, manifest: Manifest, result: Result<()>, committed: Result<()>) {
        self.writing = false;
        let completing = std::mem::take(&mut self.completing);
        match result {
            Err(error) => {
                tracing::warn!(%error, "checkpoint metadata could not be written");
                // What it says still holds, and goes into the next one. That is not tried at once: the disk may be full.
                self.manifest_dirty = true;
                for completed in &completing {
                    self.end_checkpoint(completed, Some(&error));
                }
                for completed in completing {
                    if let Some(first) = completed.jobs.first() {
                        self.count_failure(&completed.jobs, *first, &error);
                    }
                }
                if self.completed.is_empty() {
                    return;
                }
            }
            Ok(()) => {
                let finished: Vec<ObjectId> =
                    manifest.jobs.iter().filter(|(_, checkpoint)| checkpoint.finished).map(|(id, _)| *id).collect();
                self.retained.push_back(manifest);
                let dropped = self.retire();
                for completed in &completing {
                    self.end_checkpoint(completed, committed.as_ref().err());
                }
                match committed {
                    Ok(()) => finished.into_iter().for_each(|id| self.finish(id)),
                    Err(error) => {
                        tracing::warn!(%error, "a sink could not commit a complete checkpoint");
                        let sender = self.sender.clone();
                        self.context.spawner.spawn(async move {
                            tokio::time::sleep(COMMIT_RETRY).await;
                            let _ = sender.send(Event::CommitDue);
                        });
                    }
                }
                self.remove_unneeded(dropped);
            }
        }
        self.write_manifest_if_due();
    }

    /// Keeps the manifests of the newest checkpoints. What only older ones need is removed by [`Manager::remove_unneeded`].
    fn retire(&mut self) -> Vec<u64> {
        let keep = self.context.settings.read().checkpoints_retained;
        let mut barriers: Vec<BarrierNumber> = self.retained.iter().map(|manifest| manifest.barrier).collect();
        barriers.dedup();
        let oldest = barriers.get(barriers.len().saturating_sub(keep)).copied().unwrap_or(0);
        let mut dropped = Vec::new();
        let newest = self.retained.back().map_or(0, |manifest| manifest.number);
        let mut kept: VecDeque<Manifest> = VecDeque::new();
        for (at, manifest) in self.retained.iter().enumerate() {
            // Of several manifests of one checkpoint only the last counts.
            let superseded = self.retained.get(at + 1).is_some_and(|next| next.barrier == manifest.barrier);
            if manifest.number != newest && (superseded || manifest.barrier < oldest) {
                dropped.push(manifest.number);
            } else {
                kept.push_back(manifest.clone());
            }
        }
        self.retained = kept;
        dropped
    }

    /// Removes the manifests `dropped`, then the files and the part of the log that only they needed: in this order, so that whatever manifest is found
    /// after a crash can be started from.
    fn remove_unneeded(&mut self, dropped: Vec<u64>) {
        for number in dropped {
            self.context.build.store.abandon(number);
        }
        // What is durable: what is in memory only may be gone after a crash. An older retained checkpoint needs more of the log than the newest one.
        let positions = self.retained.iter().map(|manifest| manifest.log_position(|id| self.jobs.contains_key(&id)));
        let mut needed = positions.clone().min().unwrap_or(0);
        if faults::is_planted(Fault::LogCutTooEarly) {
            needed = positions.max().unwrap_or(0);
        }
        let newest = self.retained.back();
        for (id, job) in &mut self.jobs {
            let checkpoint = newest.and_then(|durable| durable.jobs.get(id)).filter(|_| self.manifest.jobs.contains_key(id));
            if let Some(checkpoint) = checkpoint {
                job.log_position = job.log_position.max(checkpoint.commit);
            }
            let stopped = job.state == JobState::Failed && checkpoint.is_none();
            if job.state != JobState::Finished && !stopped {
                needed = needed.min(job.log_position);
            }
        }
        let under_way = self.barriers_under_way();
        let next = self.context.numbers.peek();
        let retained: Vec<Manifest> = self.retained.iter().chain(std::iter::once(&self.manifest)).cloned().collect();
        let (store, log) = (self.context.build.store.clone(), self.context.log.clone());
        self.context.spawner.spawn_blocking(move || {
            if let Err(error) = store.retire(&retained, &|barrier| barrier >= next || under_way.contains(&barrier)) {
                tracing::warn!(%error, "files of old checkpoints were not removed");
            } else if let Err(error) = log.truncate_before(needed + 1) {
                tracing::warn!(%error, "old segments of the engine log were not removed");
            }
        });
    }
}
