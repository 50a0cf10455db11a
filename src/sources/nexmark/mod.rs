//! The `nexmark` connector: the events of an auction site (persons, auctions, bids) as the Nexmark benchmark defines them, made on the spot.
//!
//! Events are numbered from 0; 50 that follow one another (1 person, 3 auctions, 46 bids, unless options say otherwise) are an *epoch*. An event is a
//! function of the seed and its number. Split `k` of `n` owns the epochs whose number is `k` modulo `n`, so that all splits stand at about the same
//! event time; a subtask takes the splits whose number is its own modulo the parallelism, and reads them in the order of their events.
//!
//! # Invariants
//! - Each event is read exactly once, whatever the parallelism and however often the source is restored: a split's state is the number of its next row.
//! - A column that nobody reads costs nothing.
//! - The source reads no clock. Event times depend on the event's number only; the wall-clock rate depends on the time that a poll is given.
//!
//! | file | is about |
//! | --- | --- |
//! | `config` | options |
//! | `fields` | columns |
//! | `generator` | draws, times, identifiers, prices, strings |
//! | `person`, `auction`, `bid` | the values of each |

mod auction;
mod bid;
mod config;
mod fields;
mod generator;
mod person;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanBufferBuilder, Int32Array, RecordBatch, RecordBatchOptions, StructArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{Schema, SchemaRef};
use weir_catalog::{Column, Error, Result, SqlState};

pub use config::NexmarkConfig;

use self::fields::{Table, TableColumn};
use self::generator::{Generator, Rows, Run, arrow_error};
use super::{Source, SourceEvent, SplitState};
use crate::stream::Batch;

/// The most rows of a batch, whatever is asked for: text offsets have 32 bits, and memory is bounded.
const MAX_BATCH_ROWS: usize = 65_536;
/// About the most bytes of a batch.
const MAX_BATCH_BYTES: usize = 32 << 20;
/// With a wall-clock rate, rows come due at multiples of this: more often would be many small batches.
const TICK_US: u64 = 1000;
/// How long to wait between polls that can never have rows again, `keep-alive`.
const KEEP_ALIVE_US: u64 = 1_000_000;

/// One subtask's part of a `nexmark` table.
pub struct NexmarkSource {
    generator: Generator,
    schema: SchemaRef,
    /// What fills each column of `schema`.
    columns: Vec<TableColumn>,
    layout: Layout,
    /// The splits that this subtask owns.
    splits: Vec<Split>,
    /// The next row of each split in `splits` that has one: its event number, and the place in `splits`.
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    pace: Option<Pace>,
    runs: Runs,
}

/// Which events are rows, and whose they are.
struct Layout {
    persons: u64,
    auctions: u64,
    events_per_epoch: u64,
    /// The places in an epoch of the events that are rows: `first_place..end_place`.
    first_place: u64,
    end_place: u64,
    /// The number of splits over all subtasks.
    splits: u64,
    /// One past the last event.
    end: u64,
}

struct Split {
    number: u64,
    /// The event number of the next row.
    next: u64,
}

/// The runs of a batch by kind of event, and of any kind. Kept from poll to poll for their memory.
#[derive(Default)]
struct Runs {
    by_kind: [Vec<Run>; 3],
    any: Vec<Run>,
    rows: usize,
}

impl NexmarkSource {
    /// The part of subtask `subtask` of `parallelism`. `columns` are the table's, as declared; `projection` the positions of those to fill, in that order.
    /// `restored`: where *all* splits of the table stood, or `None` for a start from the first event.
    pub fn new(
        config: NexmarkConfig,
        columns: &[Column],
        projection: &[usize],
        subtask: usize,
        parallelism: usize,
        restored: Option<Vec<SplitState>>,
    ) -> Result<NexmarkSource> {
        let all_columns = config.resolve(columns)?;
        let (mut fields, mut projected) = (Vec::with_capacity(projection.len()), Vec::with_capacity(projection.len()));
        for position in projection {
            let (Some(column), Some(filler)) = (columns.get(*position), all_columns.get(*position)) else {
                return Err(Error::internal(format!("a nexmark table of {} columns has no column {position}", columns.len())));
            };
            fields.push(column.to_field());
            projected.push(filler.clone());
        }
        if subtask >= parallelism {
            return Err(Error::internal(format!("there is no subtask {subtask} of {parallelism}")));
        }

        let offsets = match restored {
            Some(states) => Some(parse_states(&states, config.declared_splits())?),
            None => None,
        };
        let splits = offsets.as_ref().map_or_else(|| config.splits(parallelism), Vec::len);
        let layout = Layout::new(&config, splits as u64);
        let start_event = offsets.as_ref().and_then(|offsets| offsets.iter().copied().min()).unwrap_or(0);
        let mut own = Vec::new();
        for number in (subtask..splits).step_by(parallelism) {
            let next = match &offsets {
                Some(offsets) => layout.restored_row(number as u64, offsets[number])?,
                None => layout.row_from(number as u64, 0),
            };
            own.push(Split { number: number as u64, next });
        }
        let queue = own
            .iter()
            .enumerate()
            .filter(|(_, split)| split.next < layout.end)
            .map(|(place, split)| Reverse((split.next, place)))
            .collect();
        let pace = config.wall_rate.map(|rate| Pace { rate, start_event, start_us: None });
        Ok(NexmarkSource {
            generator: Generator::new(config),
            schema: Arc::new(Schema::new(fields)),
            columns: projected,
            layout,
            splits: own,
            queue,
            pace,
            runs: Runs::default(),
        })
    }

    /// The schema of its batches: the projected columns.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Takes up to `max_rows` rows that are before event number `bound` off the splits.
    fn take_runs(&mut self, max_rows: usize, bound: u64) {
        self.runs.clear();
        while self.runs.rows < max_rows {
            let Some(mut head) = self.queue.peek_mut() else { break };
            let Reverse((next, place)) = *head;
            if next >= bound {
                break;
            }
            let split = &mut self.splits[place];
            let epoch = next / self.layout.events_per_epoch;
            let epoch_start = epoch * self.layout.events_per_epoch;
            let first = next - epoch_start;
            let end = self.layout.end_place.min(bound - epoch_start).min(first + (max_rows - self.runs.rows) as u64);
            self.runs.push(&self.layout, epoch, first, end);
            split.next = self.layout.row_from(epoch, end);
            if split.next < self.layout.end {
                *head = Reverse((split.next, place));
            } else {
                PeekMut::pop(head);
            }
        }
    }

    fn build(&self) -> Result<RecordBatch> {
        let rows = self.runs.rows;
        let arrays = self.columns.iter().map(|column| self.column(column)).collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.schema(), arrays, &options).map_err(arrow_error)
    }

    fn column(&self, column: &TableColumn) -> Result<ArrayRef> {
        let rows = self.runs.rows;
        let any = Rows { rows, runs: &self.runs.any, nulls: None };
        match column {
            // A flat table's events are all of its kind.
            TableColumn::Flat(field) => self.generator.column(*field, any),
            TableColumn::EventTime => self.generator.column(fields::Field::DateTime, any),
            TableColumn::EventType => {
                let mut kinds = vec![0i32; rows];
                for kind in [Table::Auction, Table::Bid] {
                    for run in &self.runs.by_kind[kind as usize] {
                        kinds[run.first_row..run.first_row + run.count].fill(kind as i32);
                    }
                }
                Ok(Arc::new(Int32Array::from(kinds)))
            }
            TableColumn::Nested(kind, fields, arrow_fields) => {
                let runs = &self.runs.by_kind[*kind as usize];
                // The members carry the row's NULLs too: a reader may take a member without looking at the row.
                let nulls = nulls_outside(runs, rows);
                let of_kind = Rows { rows, runs, nulls: Some(&nulls) };
                let members = fields.iter().map(|field| self.generator.column(*field, of_kind)).collect::<Result<Vec<_>>>()?;
                let array = StructArray::try_new_with_length(arrow_fields.clone(), members, Some(nulls), rows).map_err(arrow_error)?;
                Ok(Arc::new(array))
            }
        }
    }
}

impl Source for NexmarkSource {
    fn poll(&mut self, max_rows: usize, now_us: i64) -> Result<SourceEvent> {
        let bound = match &mut self.pace {
            Some(pace) => pace.horizon(now_us).min(self.layout.end),
            None => self.layout.end,
        };
        let config = &self.generator.config;
        let event_bytes = config.person_bytes.max(config.auction_bytes).max(config.bid_bytes).max(64);
        self.take_runs(max_rows.min(MAX_BATCH_ROWS).min(MAX_BATCH_BYTES / event_bytes).max(1), bound);
        if self.runs.rows > 0 {
            return self.build().map(|rows| SourceEvent::Batch(Batch::insert(rows)));
        }
        if let (Some(Reverse((next, _))), Some(pace)) = (self.queue.peek(), &mut self.pace) {
            return Ok(SourceEvent::Wait(pace.wait_us(*next, now_us)));
        }
        let config = &self.generator.config;
        if config.events.is_none() && !self.splits.is_empty() {
            return Err(Error::new(
                SqlState::DATETIME_FIELD_OVERFLOW,
                "the nexmark table has come to the last event time that a timestamp can hold",
            ));
        }
        Ok(if config.keep_alive { SourceEvent::Wait(KEEP_ALIVE_US) } else { SourceEvent::End })
    }

    fn splits(&self) -> Result<Vec<SplitState>> {
        let all = self.layout.splits;
        let state = |split: &Split| SplitState { split: format!("{}/{all}", split.number), offset: split.next.to_string() };
        Ok(self.splits.iter().map(state).collect())
    }

    fn has_reached(&self, target: &[SplitState]) -> Result<bool> {
        let target = parse_states(target, Some(self.layout.splits as usize))?;
        Ok(self.splits.iter().all(|split| target.get(split.number as usize).is_none_or(|next| split.next >= *next)))
    }
}

impl Layout {
    fn new(config: &NexmarkConfig, splits: u64) -> Layout {
        let events_per_epoch = config.events_per_epoch();
        let (first_place, end_place) = match config.table {
            None => (0, events_per_epoch),
            Some(Table::Person) => (0, config.persons),
            Some(Table::Auction) => (config.persons, config.persons + config.auctions),
            Some(Table::Bid) => (config.persons + config.auctions, events_per_epoch),
        };
        Layout {
            persons: config.persons,
            auctions: config.auctions,
            events_per_epoch,
            first_place,
            end_place,
            splits,
            end: config.events.unwrap_or_else(|| config.event_limit()),
        }
    }

    /// The first row of the split that owns `epoch`, from place `place` of that epoch on. The place may be the epoch's end.
    fn row_from(&self, epoch: u64, place: u64) -> u64 {
        if place < self.end_place {
            epoch * self.events_per_epoch + place.max(self.first_place)
        } else {
            (epoch + self.splits) * self.events_per_epoch + self.first_place
        }
    }

    /// The next row of split `number` after a restore from `event`.
    fn restored_row(&self, number: u64, event: u64) -> Result<u64> {
        let (epoch, place) = (event / self.events_per_epoch, event % self.events_per_epoch);
        if epoch % self.splits != number {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("event {event} is not in split {number} of {}", self.splits),
            )
            .with_detail("The state was written by a nexmark table with other options."));
        }
        Ok(self.row_from(epoch, place))
    }
}

impl Runs {
    fn clear(&mut self) {
        self.by_kind.iter_mut().for_each(Vec::clear);
        self.any.clear();
        self.rows = 0;
    }

    /// Adds the events at the places `first..end` of `epoch`.
    fn push(&mut self, layout: &Layout, epoch: u64, first: u64, end: u64) {
        let epoch_start = epoch * layout.events_per_epoch;
        let run =
            |first: u64, end: u64, first_row| Run { epoch, first_event: epoch_start + first, first_row, count: (end - first) as usize };
        self.any.push(run(first, end, self.rows));
        let bounds = [0, layout.persons, layout.persons + layout.auctions, layout.events_per_epoch];
        for (kind, bounds) in bounds.windows(2).enumerate() {
            let (from, to) = (first.max(bounds[0]), end.min(bounds[1]));
            if from < to {
                self.by_kind[kind].push(run(from, to, self.rows + (from - first) as usize));
            }
        }
        self.rows += (end - first) as usize;
    }
}

/// NULL in every row that no run fills.
fn nulls_outside(runs: &[Run], rows: usize) -> NullBuffer {
    let mut valid = BooleanBufferBuilder::new(rows);
    for run in runs {
        valid.append_n(run.first_row - valid.len(), false);
        valid.append_n(run.count, true);
    }
    valid.append_n(rows - valid.len(), false);
    NullBuffer::new(valid.finish())
}

/// Where each split stands, by number, from the states of all splits in any order.
fn parse_states(states: &[SplitState], declared: Option<usize>) -> Result<Vec<u64>> {
    let corrupted = |what: String| Error::corrupted(format!("the state of a nexmark source {what}"));
    let mut offsets: Vec<Option<u64>> = vec![None; states.len()];
    for state in states {
        let parsed =
            state.split.split_once('/').and_then(|(number, all)| Some((number.parse::<usize>().ok()?, all.parse::<usize>().ok()?)));
        let Some((number, all)) = parsed else {
            return Err(corrupted(format!("names a split \"{}\"", state.split)));
        };
        if all != states.len() {
            return Err(corrupted(format!("holds {} splits of {all}", states.len())));
        }
        let offset = state.offset.parse().map_err(|_| corrupted(format!("has the offset \"{}\" for split {number}", state.offset)))?;
        match offsets.get_mut(number) {
            Some(slot @ None) => *slot = Some(offset),
            _ => return Err(corrupted(format!("names split {number} of {all} wrongly or twice"))),
        }
    }
    if let Some(declared) = declared
        && declared != states.len()
    {
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "option \"splits\" differs from the state's")
            .with_detail(format!("The table has {declared} splits, the state {}.", states.len())));
    }
    let offsets: Option<Vec<u64>> = offsets.into_iter().collect();
    offsets.filter(|offsets| !offsets.is_empty()).ok_or_else(|| corrupted("holds no splits".to_string()))
}

/// A wall-clock rate: event `start_event + k` is due `k / rate` seconds after the first poll. All subtasks count from the same event.
struct Pace {
    /// Events per second.
    rate: u64,
    start_event: u64,
    /// When the first poll was.
    start_us: Option<i64>,
}

impl Pace {
    fn elapsed_us(&mut self, now_us: i64) -> u64 {
        u64::try_from(now_us.saturating_sub(*self.start_us.get_or_insert(now_us))).unwrap_or(0)
    }

    /// One past the last event that is due.
    fn horizon(&mut self, now_us: i64) -> u64 {
        let elapsed_us = self.elapsed_us(now_us) / TICK_US * TICK_US;
        let events = u128::from(elapsed_us) * u128::from(self.rate) / 1_000_000;
        u64::try_from(events).map_or(u64::MAX, |events| self.start_event.saturating_add(events).saturating_add(1))
    }

    /// How long until `event` is due, which it is not yet.
    fn wait_us(&mut self, event: u64, now_us: i64) -> u64 {
        let elapsed_us = self.elapsed_us(now_us);
        let due_us = (u128::from(event.saturating_sub(self.start_event)) * 1_000_000).div_ceil(u128::from(self.rate));
        let due_us = u64::try_from(due_us).unwrap_or(u64::MAX / 2).div_ceil(TICK_US) * TICK_US;
        due_us.saturating_sub(elapsed_us).max(1)
    }
}
