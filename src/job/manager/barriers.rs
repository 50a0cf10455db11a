//! The barrier clock: when a barrier is made, who gets it, and who has finished it.
//!
//! # Invariants
//! - Barrier numbers and times only grow. A live job gets barriers in order, and the jobs of a group the same ones.
//! - Who takes part in a barrier is settled when it is made: jobs that are live then, and not dropped.
//! - A job is live from the first barrier after all its sources have caught up; a barrier that it was not live for counts as finished by it.
//! - A group has a bounded number of barriers in flight. The ones that it is not given are covered by the next that it is.
//! - Nothing new and nobody waiting: no barrier is made.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;
use weir_catalog::{ObjectId, Result};

use super::flushes::FlushWaiter;
use super::jobs::{InFlight, RunningJob};
use super::{Event, Manager, RETRY_PAUSE};
use crate::job::numbers::Reserved;
use crate::job::status::JobState;
use crate::job::view::Published;
use crate::stream::{Barrier, BarrierNumber};

/// The least bound on the barriers that a group has in flight.
const LEAST_IN_FLIGHT: usize = 16;

impl Manager {
    /// When there is something to do though nothing happens.
    pub(super) fn next_deadline(&mut self) -> Option<Instant> {
        self.regroup();
        let settings = self.context.settings.read();
        let stop = self.shutdown.as_ref().map(|shutdown| shutdown.deadline);
        let mut deadline = self.next_timeout(&settings).into_iter().chain(stop).min();
        if self.reserving {
            return deadline; // There is no number for a barrier yet.
        }
        let soonest = (self.last_barrier_at + settings.min_barrier_interval).max(self.no_barrier_before);
        let regular = (self.last_barrier_at + settings.barrier_interval).max(soonest);
        let mut at = |when: Instant| deadline = Some(deadline.map_or(when, |known: Instant| known.min(when)));
        if self.somebody_waits() || self.context.log.end() > self.last_commit {
            at(soonest);
        } else if self.jobs.values().any(|job| job.state == JobState::Running && job.not_ended > 0) {
            at(regular);
        }
        let groups = self.groups.all().iter().filter_map(|group| self.checkpoint_due(group, &settings));
        if let Some(due) = groups.chain(self.tables_due(&settings)).min() {
            at(due.max(soonest));
        }
        deadline
    }

    fn somebody_waits(&self) -> bool {
        self.want_barrier || !self.want_flush.is_empty() || !self.want_checkpoint.is_empty()
    }

    pub(super) fn make_barrier_if_due(&mut self) {
        let now = Instant::now();
        if self.reserving || now < self.no_barrier_before {
            return;
        }
        self.regroup();
        let settings = self.context.settings.read();
        let since = now.saturating_duration_since(self.last_barrier_at);
        if since < settings.min_barrier_interval {
            return;
        }
        let new_rows = |job: &RunningJob| job.source_metrics.iter().any(|metrics| metrics.new_rows.load(Ordering::Relaxed));
        let regular = since >= settings.barrier_interval && self.jobs.values().any(new_rows);
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        let checkpoint =
            is_due(self.tables_due(&settings)) || self.groups.all().iter().any(|group| is_due(self.checkpoint_due(group, &settings)));
        let idle = since >= settings.barrier_interval;
        drop(settings);
        if self.somebody_waits() || self.context.log.end() > self.last_commit || regular || checkpoint {
            self.make_barrier();
        } else if idle {
            self.last_barrier_at = now;
        }
    }

    fn make_barrier(&mut self) {
        let now_us = self.context.clock.now_us();
        if let Some(reservation) = self.context.numbers.reservation_if_due(now_us) {
            let sender = self.sender.clone();
            self.context.spawner.spawn_blocking(move || {
                let _ = sender.send(Event::NumbersReserved { reserved: reservation.write() });
            });
        }
        let Some((number, time_us)) = self.context.numbers.take(now_us) else {
            self.reserving = true;
            return;
        };
        let now = Instant::now();
        let commit = self.context.log.end();
        self.last_barrier_at = now;
        self.last_commit = commit;
        self.readable_commits.push_back(commit);
        if self.readable_commits.len() > self.context.build.retained_barriers {
            self.readable_commits.pop_front();
        }
        if let Some(oldest) = self.readable_commits.front() {
            self.context.tables.set_oldest_needed(*oldest);
        }
        self.want_barrier = false;

        self.take_on_waiters(number);
        let (due, tables_due): (Vec<BTreeSet<ObjectId>>, bool) = {
            let settings = self.context.settings.read();
            let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
            let groups = self.groups.all().iter().filter(|group| is_due(self.checkpoint_due(group, &settings)));
            (groups.cloned().collect(), is_due(self.tables_due(&settings)))
        };
        let plain = Arc::new(Barrier { number, commit, time_us, checkpoint: false });
        let checkpoint = Arc::new(Barrier { number, commit, time_us, checkpoint: true });
        if !due.is_empty() || tables_due {
            self.begin_checkpoint(&checkpoint, &due, tables_due);
        }
        self.give(&plain, &checkpoint);
        for done in std::mem::take(&mut self.want_flush) {
            self.flushes.push(FlushWaiter { barrier: number, done });
        }
        self.context.board.write().barriers += 1;
        self.check_flushes();
    }

    /// Gives the barrier to every group that has room for it: as `checkpoint` to those whose checkpoint begins with it, else as `plain`.
    fn give(&mut self, plain: &Arc<Barrier>, checkpoint: &Arc<Barrier>) {
        let most = self.most_in_flight();
        for group in self.groups.all() {
            let has_room = group.iter().filter_map(|id| self.jobs.get(id)).all(|job| job.in_flight.len() < most);
            for id in group {
                let Some(job) = self.jobs.get_mut(id).filter(|job| job.is_live(plain.number)) else { continue };
                if !has_room {
                    job.owed = true;
                    continue;
                }
                let takes_part = job.checkpointing == Some(plain.number);
                let barrier = if takes_part { checkpoint } else { plain };
                job.owed = false;
                job.in_flight.push_back(InFlight { barrier: barrier.number, commit: barrier.commit, finished: 0 });
                let mut new_rows = false;
                for metrics in &job.source_metrics {
                    new_rows |= metrics.new_rows.swap(false, Ordering::Relaxed);
                }
                if !takes_part {
                    job.schedule.note_barrier(barrier.commit, new_rows);
                }
                for source in &job.barriers {
                    // A source that is gone has failed; its job is about to be restarted.
                    let _ = source.send(barrier.clone());
                }
            }
        }
    }

    /// How many barriers a group has in flight at most. With more it would have no barrier in common with others that readers can still have.
    fn most_in_flight(&self) -> usize {
        self.context.build.retained_barriers.max(LEAST_IN_FLIGHT)
    }

    /// Whether `job` can be given one more barrier.
    pub(super) fn has_room(&self, job: &RunningJob) -> bool {
        job.in_flight.len() < self.most_in_flight()
    }

    /// More numbers and time are reserved, or could not be.
    pub(super) fn numbers_reserved(&mut self, reserved: Result<Reserved>) {
        let waited = std::mem::take(&mut self.reserving);
        match reserved {
            Ok(reserved) => self.context.numbers.reserved(Some(reserved)),
            Err(error) => {
                tracing::error!(%error, "barrier numbers could not be reserved");
                self.context.numbers.reserved(None);
                // Where it was only time that had to be reserved, the next attempt finds that it goes on.
                if waited && self.context.numbers.is_out_of_numbers() {
                    self.no_barrier_before = Instant::now() + RETRY_PAUSE;
                }
            }
        }
    }

    /// A root subtask has finished a barrier.
    pub(super) fn collected(&mut self, id: ObjectId, barrier: BarrierNumber) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(place) = job.in_flight.iter().position(|in_flight| in_flight.barrier == barrier) else { return };
        job.in_flight[place].finished += 1;
        if job.in_flight[place].finished < job.root_parallelism {
            return;
        }
        let Some(InFlight { commit, .. }) = job.in_flight.remove(place) else { return };
        // Nobody asks any more where a connector stood before.
        for (_, history) in &job.histories {
            history.forget_before(barrier);
        }
        if !self.is_held(id, barrier) {
            self.show(id, Published { barrier, commit });
        }
        self.checkpoint_collected(id, barrier);
        self.give_what_is_owed(id);
    }

    /// Whether what `id` has at `barrier` must not be seen, because a job of its group has not come as far again as readers have seen it.
    fn is_held(&mut self, id: ObjectId, barrier: BarrierNumber) -> bool {
        self.regroup();
        self.group_jobs(id).any(|job| job.replaying > 0 || job.replayed_at > barrier)
    }

    /// What a job has at a barrier is there to be seen.
    fn show(&mut self, id: ObjectId, published: Published) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.completed = job.completed.max(published.barrier);
        job.held_up = None;
        job.shown = published.barrier;
        if let Some(view) = self.context.views.read().get(&id) {
            view.publish(job.run, published);
        }
        job.created = true;
        job.damaged_at = None;
        if let Some(told) = job.published.take() {
            let _ = told.send(Ok(()));
        }
        self.check_flushes();
    }

    /// Makes a barrier soon, where the group of `id` was not given one and has worked off half of what it had.
    fn give_what_is_owed(&mut self, id: ObjectId) {
        if !self.jobs.get(&id).is_some_and(|job| job.owed) {
            return;
        }
        let half = self.most_in_flight() / 2;
        self.regroup();
        if self.group_jobs(id).all(|job| job.in_flight.len() <= half) {
            self.want_barrier = true;
        }
    }
}
