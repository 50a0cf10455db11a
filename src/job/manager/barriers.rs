//! The barrier clock: when a barrier is made, who gets it, and who has finished it.
//!
//! # Invariants
//! - Barrier numbers and times only grow. A barrier goes to every live job, in order.
//! - A job is live from the first barrier after all its sources have caught up; a barrier that it was not live for counts as finished by it.
//! - Nothing new and nobody waiting: no barrier is made.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use weir_catalog::ObjectId;

use super::Manager;
use super::flushes::FlushWaiter;
use super::jobs::RunningJob;
use crate::job::status::JobState;
use crate::job::view::Published;
use crate::stream::{Barrier, BarrierNumber};

impl Manager {
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let settings = self.context.settings.read();
        let soonest = self.last_barrier_at + settings.min_barrier_interval;
        let regular = self.last_barrier_at + settings.barrier_interval;
        let mut deadline = None;
        let mut at = |when: Instant| deadline = Some(deadline.map_or(when, |known: Instant| known.min(when)));
        if self.somebody_waits() || self.context.log.end() > self.last_commit {
            at(soonest);
        } else if self.jobs.values().any(|job| job.state == JobState::Running && job.not_ended > 0) {
            at(regular);
        }
        if settings.checkpoint_interval > Duration::ZERO && self.changed && self.pending.is_none() {
            at((self.last_checkpoint_started + settings.checkpoint_interval)
                .max(self.last_checkpoint_ended + settings.checkpoint_min_pause)
                .max(soonest));
        }
        if let Some(pending) = &self.pending {
            at(pending.started + settings.checkpoint_timeout);
        }
        deadline
    }

    fn somebody_waits(&self) -> bool {
        self.want_barrier || !self.want_flush.is_empty() || (!self.want_checkpoint.is_empty() && self.pending.is_none())
    }

    pub(super) fn make_barrier_if_due(&mut self) {
        let now = Instant::now();
        let (min_interval, interval, checkpoint_interval, pause) = {
            let settings = self.context.settings.read();
            (settings.min_barrier_interval, settings.barrier_interval, settings.checkpoint_interval, settings.checkpoint_min_pause)
        };
        let since = now.saturating_duration_since(self.last_barrier_at);
        if since < min_interval {
            return;
        }
        let new_rows = |job: &RunningJob| job.source_metrics.iter().any(|metrics| metrics.new_rows.load(Ordering::Relaxed));
        let regular = since >= interval && self.jobs.values().any(new_rows);
        let checkpoint_due = self.pending.is_none()
            && (!self.want_checkpoint.is_empty()
                || (checkpoint_interval > Duration::ZERO
                    && self.changed
                    && now >= self.last_checkpoint_started + checkpoint_interval
                    && now >= self.last_checkpoint_ended + pause));
        let commits = self.context.log.end() > self.last_commit;
        if self.somebody_waits() || commits || regular || checkpoint_due {
            self.make_barrier(checkpoint_due);
        } else if since >= interval {
            self.last_barrier_at = now;
        }
    }

    fn make_barrier(&mut self, checkpoint: bool) {
        if let Some(raise) = self.context.numbers.raise_if_due() {
            self.context.spawner.spawn_blocking(move || {
                if let Err(error) = raise() {
                    tracing::error!(%error, "barrier numbers could not be reserved");
                }
            });
        }
        // Without a number there is no barrier yet: the ceiling is being raised.
        let Some(number) = self.context.numbers.take() else {
            self.last_barrier_at = Instant::now();
            return;
        };
        let commit = self.context.log.end();
        self.last_barrier_time_us = self.context.clock.now_us().max(self.last_barrier_time_us + 1);
        let barrier = Arc::new(Barrier { number, commit, time_us: self.last_barrier_time_us, publish: true, checkpoint, stop: false });
        self.last_barrier_at = Instant::now();
        self.last_commit = commit;
        self.readable_commits.push_back(commit);
        if self.readable_commits.len() > self.context.build.retained_barriers {
            self.readable_commits.pop_front();
        }
        if let Some(oldest) = self.readable_commits.front() {
            self.context.tables.set_oldest_needed(*oldest);
        }
        self.want_barrier = false;
        self.changed = true;
        if checkpoint {
            self.begin_checkpoint(&barrier);
        }
        for job in self.jobs.values_mut() {
            let live = job.state == JobState::Running && barrier.number >= job.live_from.load(Ordering::SeqCst);
            if !live {
                continue;
            }
            job.in_flight.push_back((barrier.number, commit, 0));
            for metrics in &job.source_metrics {
                metrics.new_rows.store(false, Ordering::Relaxed);
            }
        }
        // After all were told what to expect: a root may finish at once.
        for job in self.jobs.values().filter(|job| job.state == JobState::Running && barrier.number >= job.live_from.load(Ordering::SeqCst))
        {
            for source in &job.barriers {
                let _ = source.send(barrier.clone());
            }
        }
        for done in std::mem::take(&mut self.want_flush) {
            self.flushes.push(FlushWaiter { barrier: barrier.number, done });
        }
        self.context.board.write().barriers += 1;
        self.check_flushes();
        if checkpoint {
            self.check_checkpoint();
        }
    }

    pub(super) fn collected(&mut self, id: ObjectId, barrier: BarrierNumber) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(entry) = job.in_flight.iter_mut().find(|entry| entry.0 == barrier) else { return };
        entry.2 += 1;
        if entry.2 < job.root_parallelism {
            return;
        }
        let commit = entry.1;
        job.in_flight.retain(|entry| entry.0 != barrier);
        job.completed = job.completed.max(barrier);
        if let Some(view) = self.context.views.read().get(&id) {
            view.publish(job.run, Published { barrier, commit });
        }
        job.created = true;
        if let Some(published) = job.published.take() {
            let _ = published.send(Ok(()));
        }
        if let Some(pending) = self.pending.as_mut().filter(|pending| pending.barrier.number == barrier)
            && let Some(waiting) = pending.waiting.get_mut(&id)
        {
            waiting.collected = true;
            self.check_checkpoint();
        }
        self.check_flushes();
    }
}
