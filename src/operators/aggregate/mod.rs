//! GROUP BY: a row a group, kept up to date as rows come and go.
//!
//! ```text
//!  batch ─▶ key columns ─▶ slots (state::groups; missing keys: one sorted multi-get)
//!    │                        │ newly touched: capture what the last result was made of
//!    └─▶ argument columns ─▶ fold by weight, a loop a column  (DISTINCT, MIN, MAX: through a count map)
//!  barrier: captured ≠ present ─▶ +I, -U and +U, or -D
//! ```
//!
//! | file | holds |
//! | --- | --- |
//! | `plan` | which accumulators and maps the calls need |
//! | `columns`, `extremes` | the accumulators |
//! | `count_map` | values with their counts: DISTINCT, and MIN and MAX with retractions |
//! | `results` | from accumulators to result columns |
//!
//! # Invariants
//! - What was emitted last for a group is a function of its state at the last barrier or early emission: the row, if the group has rows (a global
//!   group: if it is in the state), and none otherwise. So it survives restarts and eviction without being kept.
//! - At a barrier no group, and no value in a map, has a count below zero; within an epoch it may.
//! - Groups without rows are deleted from the state.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Int64Type, SchemaRef};
use weir_catalog::{Error, Result, RowKind};

use self::columns::{Accumulator, Accumulators, Rows, Selection, Source};
use self::count_map::GroupedRows;
use self::plan::{Feed, GROUPS_TAG, Input, Plan, ResultColumn};
use super::error::{describe_row, not_there};
use super::{Operator, Output, Stateful};
use crate::seams::faults::{self, Fault};
use crate::state::groups::{Groups, StateColumns};
use crate::state::key_codec::{EncodedRows, KeyCodec};
use crate::state::{StateBackend, StateDescriptor};
use crate::stream::key_group::{key_group, key_hash};
use crate::stream::{Barrier, Batch, KeyGroupRange};

mod columns;
mod count_map;
mod extremes;
mod plan;
mod results;
#[cfg(test)]
mod tests;

pub use plan::AggregateSpec;

/// How many rows an emitted batch has at most.
const OUTPUT_ROWS: usize = 8192;

/// The operator. See the head of this file.
pub struct Aggregate {
    spec: AggregateSpec,
    state_schema: SchemaRef,
    key_groups: KeyGroupRange,
    /// The only group of a global aggregate is this subtask's.
    owns_global: bool,
    /// The global group's row is in the result.
    global_emitted: bool,
    inputs: Vec<Input>,
    feeds: Vec<Feed>,
    results: Vec<ResultColumn>,
    key_codec: KeyCodec,
    groups: Groups,
    accumulators: Accumulators,
    /// Each with the number of its input.
    maps: Vec<(count_map::CountMap, usize)>,
    state: Box<dyn StateBackend>,
    /// The whole result is to be sent before anything else: what comes after it has nothing of it.
    send_all: bool,
    /// Scratch: the slot and the encoded key of each row of a batch.
    slots: Vec<u32>,
    keys: EncodedRows,
}

impl Aggregate {
    /// The operator for the keys of `key_groups`, on a backend that holds their state.
    pub fn new(spec: AggregateSpec, state: Box<dyn StateBackend>, key_groups: KeyGroupRange) -> Result<Aggregate> {
        let Plan { inputs, accumulators, feeds, maps, results, state_schema } = Plan::new(&spec)?;
        let key_types: Vec<DataType> = (0..spec.group_columns).map(|column| spec.input.field(column).data_type().clone()).collect();
        let value_types: Vec<DataType> = state_schema.fields().iter().map(|field| field.data_type().clone()).collect();
        // Maps need encoded keys of all rows anyway.
        let groups = if key_types == [DataType::Int64] && maps.is_empty() {
            Groups::for_int64(GROUPS_TAG, &value_types)?
        } else {
            Groups::new(GROUPS_TAG, &value_types)?
        };
        let owns_global = spec.global && key_groups.contains(key_group(key_hash(&[])));
        Ok(Aggregate {
            state_schema,
            key_groups,
            owns_global,
            global_emitted: false,
            inputs,
            feeds,
            results,
            key_codec: KeyCodec::new(&key_types)?,
            groups,
            accumulators,
            maps,
            state,
            send_all: false,
            slots: Vec::new(),
            keys: EncodedRows::new(),
            spec,
        })
    }

    /// The names and types of the state's value columns: see [`AggregateSpec::state_schema`].
    pub fn state_schema(&self) -> SchemaRef {
        self.state_schema.clone()
    }

    /// Has the whole result sent before the first change: for an operator that begins with state, before ones that begin without.
    pub fn send_all_first(&mut self) {
        self.send_all = true;
    }

    /// Sends the result of every group in the state, of which nothing is in memory yet, where that is wanted.
    fn send_all(&mut self, out: &mut dyn Output) -> Result<()> {
        if !std::mem::take(&mut self.send_all) || faults::is_planted(Fault::KeptResultNotSent) {
            return Ok(());
        }
        let snapshot = self.state.snapshot()?;
        for group in self.key_groups.start..self.key_groups.end {
            let [high, low] = group.to_be_bytes();
            let mut from = vec![high, low, GROUPS_TAG];
            let to = [high, low, GROUPS_TAG + 1];
            loop {
                let (mut keys, mut next) = (EncodedRows::new(), None);
                snapshot.scan(&from, &to, &mut |key, _| {
                    if keys.len() == OUTPUT_ROWS {
                        next = Some(key.to_vec());
                        return Ok(false);
                    }
                    keys.push(key.get(3..).unwrap_or_default());
                    Ok(true)
                })?;
                self.send_groups(&keys, out)?;
                match next {
                    Some(key) => from = key,
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// Sends the results of these groups, and forgets them again.
    fn send_groups(&mut self, keys: &EncodedRows, out: &mut dyn Output) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let (resident, mut slots) = (self.groups.len(), Vec::with_capacity(keys.len()));
        self.groups.check_room(keys.len())?;
        if self.groups.is_int64() {
            let columns = self.key_codec.decode(keys.iter())?;
            let column = columns.first().and_then(|column| column.as_primitive_opt::<Int64Type>());
            self.groups.intern_int64(column.ok_or_else(|| Error::internal("a BIGINT key has another type"))?, &mut slots);
        } else {
            self.groups.intern_encoded(keys, &mut slots);
        }
        self.load_missing(resident)?;
        let rows = self.accumulators.rows();
        slots.retain(|slot| self.spec.global || rows.live[*slot as usize] > 0);
        let mut rows_out = RowsOut { sources: Vec::new(), slots: Vec::new(), kinds: Vec::new() };
        slots.iter().for_each(|slot| rows_out.push(Source::live(*slot), *slot, RowKind::Insert));
        self.send(&mut rows_out, out)?;
        self.groups.tick();
        self.groups.evict(0, &mut self.accumulators);
        Ok(())
    }

    /// Finds the slot of each row's key, and reads what is not in memory.
    fn resolve_slots(&mut self, batch: &Batch) -> Result<()> {
        let rows = batch.num_rows();
        self.slots.clear();
        self.keys.clear();
        self.groups.check_room(rows)?;
        let resident = self.groups.len();
        if self.groups.is_int64() {
            let column =
                batch.rows.column(0).as_primitive_opt::<Int64Type>().ok_or_else(|| Error::internal("a BIGINT key has another type"))?;
            self.groups.intern_int64(column, &mut self.slots);
        } else if self.spec.group_columns == 0 {
            let slot = self.groups.intern(key_hash(&[]), &[], key_group(key_hash(&[])));
            self.slots.resize(rows, slot);
            if !self.maps.is_empty() {
                self.key_codec.encode_n(rows, &mut self.keys)?;
            }
        } else {
            self.key_codec.encode(&batch.rows.columns()[..self.spec.group_columns], &mut self.keys)?;
            self.groups.intern_encoded(&self.keys, &mut self.slots);
        }
        self.load_missing(resident)
    }

    /// Reads the groups from slot `resident` on from the backend.
    fn load_missing(&mut self, resident: usize) -> Result<()> {
        self.groups.load_missing(self.state.as_ref(), &mut self.accumulators)?;
        for slot in resident as u32..self.groups.len() as u32 {
            let group = self.groups.key_group(slot);
            if !self.key_groups.contains(group) {
                return Err(Error::internal(format!("a row of key group {group} came to a subtask that does not own it")));
            }
        }
        Ok(())
    }

    /// Marks slots as changing in this epoch, capturing what their last result was made of.
    fn touch(&mut self) {
        let first = self.groups.touched().len();
        self.groups.touch(&self.slots);
        self.accumulators.capture(&self.groups.touched()[first..]);
    }

    fn fold(&mut self, batch: &Batch) -> Result<()> {
        let masks = self.inputs.iter().map(|input| mask(&batch.rows, *input)).collect::<Result<Vec<_>>>()?;
        let kinds = batch.kinds.as_ref().map(|kinds| &kinds.0[..]);
        let argument = |input: usize| self.inputs[input].argument.map(|column| batch.rows.column(column));
        for (map, input) in &mut self.maps {
            let grouped = GroupedRows { slots: &self.slots, keys: &self.keys, kinds, groups: &self.groups };
            let column = argument(*input).ok_or_else(|| Error::internal("a count map has no argument"))?;
            map.fold(self.state.as_ref(), &grouped, masks[*input].as_ref(), column)?;
        }
        for (accumulator, feed) in self.accumulators.columns.iter_mut().zip(&self.feeds) {
            let (rows, input) = match feed {
                Feed::Rows(input) => (masks[*input].as_ref().map_or(Rows::All, Rows::Where), *input),
                Feed::Map(map) => {
                    let (map, input) = &self.maps[*map];
                    (Rows::Weighted(map.transitions()), *input)
                }
            };
            accumulator.fold(&Selection { rows, slots: &self.slots, kinds }, argument(input))?;
        }
        Ok(())
    }

    /// Looks up the extremes that went away in this epoch.
    fn find_extremes(&mut self) -> Result<()> {
        for (accumulator, feed) in self.accumulators.columns.iter_mut().zip(&self.feeds) {
            let (Accumulator::Extreme(extreme), Feed::Map(map)) = (accumulator, feed) else {
                continue;
            };
            let slots: Vec<u32> = self.groups.touched().iter().copied().filter(|slot| extreme.is_bound(*slot)).collect();
            for slots in slots.chunks(OUTPUT_ROWS) {
                let mut keys = EncodedRows::new();
                let mut key_groups = Vec::with_capacity(slots.len());
                for slot in slots {
                    keys.push(self.groups.key(*slot));
                    key_groups.push(self.groups.key_group(*slot));
                }
                let bounds = extreme.to_array(slots.iter().map(|slot| Source::live(*slot)));
                let first = self.maps[*map].0.first_values(self.state.as_ref(), &keys, &key_groups, &bounds)?;
                extreme.load(slots, &first)?;
            }
        }
        Ok(())
    }

    /// Sends what changed in the touched groups' results since it was last sent.
    ///
    /// At a barrier all is sent, and what can't be right is an error. Before one (`early`) groups whose state is not a possible one yet, because of changes
    /// still to come, wait: they stay touched.
    fn emit(&mut self, early: bool, out: &mut dyn Output) -> Result<()> {
        self.find_extremes()?;
        let touched = self.groups.touched();
        if !early {
            for result in &self.results {
                if let ResultColumn::Sum { sum, count, .. } = result {
                    self.accumulators.settle(*sum, *count, touched);
                }
            }
            self.check_counts()?;
        }
        let global = self.spec.global;
        let rows = self.accumulators.rows();
        let was_present = |position: usize| if global { self.global_emitted } else { rows.old[position] > 0 };
        let is_present = |slot: u32| global || rows.live[slot as usize] > 0;
        let mut waits = vec![false; touched.len()];
        for result in &self.results {
            let mut first = None;
            result.out_of_range(&self.accumulators, touched, |position| {
                if is_present(touched[position]) {
                    waits[position] = true;
                    first.get_or_insert(position);
                }
            });
            if let Some(position) = first.filter(|_| !early) {
                return Err(result.out_of_range_error().with_context(self.describe_group(touched[position])?));
            }
        }
        if early && global {
            waits.fill(true);
        }
        let mut changed = vec![false; touched.len()];
        for result in &self.results {
            result.mark_changed(&self.accumulators, touched, &mut changed);
        }
        let mut rows_out = RowsOut { sources: Vec::with_capacity(OUTPUT_ROWS), slots: Vec::new(), kinds: Vec::new() };
        for (position, slot) in touched.iter().enumerate() {
            if waits[position] {
                continue;
            }
            match (was_present(position), is_present(*slot)) {
                (false, true) => rows_out.push(Source::live(*slot), *slot, RowKind::Insert),
                (true, false) => rows_out.push(Source::old(position), *slot, RowKind::Delete),
                (true, true) if changed[position] => {
                    if !faults::is_planted(Fault::RetractionDropped) {
                        rows_out.push(Source::old(position), *slot, RowKind::UpdateBefore);
                    }
                    rows_out.push(Source::live(*slot), *slot, RowKind::UpdateAfter);
                }
                _ => {}
            }
            if rows_out.kinds.len() >= OUTPUT_ROWS - 1 {
                self.send(&mut rows_out, out)?;
            }
        }
        self.send(&mut rows_out, out)?;
        self.end_emission(early, &waits);
        Ok(())
    }

    /// What was sent ends the epoch of its groups; those that wait stay touched, with what is now the last result sent.
    fn end_emission(&mut self, early: bool, waits: &[bool]) {
        let mut stay = Vec::new();
        if early {
            for (position, slot) in self.groups.touched().iter().enumerate() {
                let has_rows = self.accumulators.rows().live[*slot as usize] > 0;
                // Without rows, a group may only leave memory if nothing else is left of it either.
                if waits[position] || (!has_rows && !self.accumulators.is_zero(*slot)) {
                    stay.push(position as u32);
                    if !waits[position] {
                        self.accumulators.rows_mut().old[position] = 0;
                    }
                }
            }
        } else if !self.groups.touched().is_empty() && self.spec.global {
            self.global_emitted = true;
        }
        self.groups.untouch(|position, _| stay.binary_search(&(position as u32)).is_err());
        self.accumulators.retain_old(&stay);
    }

    /// `22000` for a group of the epoch that had more rows taken away than it has, or has none and yet is not empty.
    fn check_counts(&self) -> Result<()> {
        for slot in self.groups.touched() {
            let rows = self.accumulators.rows().live[*slot as usize];
            if rows < 0 || (rows == 0 && !self.accumulators.is_zero(*slot)) {
                return Err(not_there("a row")
                    .with_detail(format!("The group has {rows} rows."))
                    .with_context(self.describe_group(*slot)?));
            }
        }
        Ok(())
    }

    fn key_columns(&self, slots: &[u32]) -> Result<Vec<ArrayRef>> {
        if self.groups.is_int64() {
            Ok(vec![Arc::new(self.groups.int64_keys(slots.iter().copied()))])
        } else {
            self.key_codec.decode(slots.iter().map(|slot| self.groups.key(*slot)))
        }
    }

    fn describe_group(&self, slot: u32) -> Result<String> {
        let columns = self.key_columns(&[slot])?;
        let names = self.spec.output.fields().iter().map(|field| field.name().as_str());
        Ok(format!("group {}", describe_row(names.zip(&columns), 0)))
    }

    fn send(&self, rows: &mut RowsOut, out: &mut dyn Output) -> Result<()> {
        if rows.kinds.is_empty() {
            return Ok(());
        }
        let mut columns = self.key_columns(&rows.slots)?;
        for result in &self.results {
            columns.push(result.to_array(&self.accumulators, &rows.sources)?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows.kinds.len()));
        let batch = RecordBatch::try_new_with_options(self.spec.output.clone(), columns, &options)
            .map_err(|error| Error::internal(format!("an aggregate's result does not fit its schema: {error}")))?;
        rows.sources.clear();
        rows.slots.clear();
        out.emit(Batch::with_kinds(batch, std::mem::take(&mut rows.kinds)))
    }

    /// Has the global group in memory, and emits it at this barrier if it never was.
    fn touch_global(&mut self) -> Result<()> {
        if !self.owns_global || self.global_emitted {
            return Ok(());
        }
        let resident = self.groups.len();
        let hash = key_hash(&[]);
        let slot = self.groups.intern(hash, &[], key_group(hash));
        self.load_missing(resident)?;
        if self.groups.is_stored(slot) {
            self.global_emitted = true;
        } else {
            self.slots.clear();
            self.slots.push(slot);
            self.touch();
        }
        Ok(())
    }

    fn filter_bytes(&self) -> usize {
        self.groups.filter_bytes() + self.maps.iter().map(|(map, _)| map.filter_bytes()).sum::<usize>()
    }

    fn write_back(&mut self) -> Result<()> {
        self.groups.write_back(self.state.as_mut(), &self.accumulators)?;
        self.maps.iter_mut().try_for_each(|(map, _)| map.write_back(self.state.as_mut()))
    }
}

impl Operator for Aggregate {
    fn stateful(&mut self) -> Option<&mut dyn Stateful> {
        Some(self)
    }

    fn process(&mut self, _input: usize, batch: Batch, out: &mut dyn Output) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        if self.spec.append_only_input && batch.kinds.as_ref().is_some_and(|kinds| kinds.0.iter().any(|kind| kind & 1 == 1)) {
            return Err(Error::internal("a row was retracted from an append-only stream"));
        }
        self.send_all(out)?;
        self.groups.tick();
        // Before the first change: whether the global row was emitted is what the state says.
        self.touch_global()?;
        self.resolve_slots(&batch)?;
        self.touch();
        self.fold(&batch)
    }

    fn on_barrier(&mut self, _barrier: &Barrier, out: &mut dyn Output) -> Result<()> {
        self.send_all(out)?;
        self.touch_global()?;
        self.emit(false, out)?;
        self.maps.iter_mut().try_for_each(|(map, _)| map.end_epoch())
    }

    fn flush(&mut self) -> Result<()> {
        if !self.groups.touched().is_empty() {
            return Err(Error::internal("an aggregate's state was flushed within an epoch"));
        }
        self.write_back()
    }
}

impl Stateful for Aggregate {
    fn states(&self) -> Vec<StateDescriptor> {
        plan::states(&self.spec, &self.state_schema, &self.maps, &self.inputs)
    }

    fn backend_mut(&mut self) -> &mut dyn StateBackend {
        self.state.as_mut()
    }

    fn memory_bytes(&self) -> usize {
        let maps: usize = self.maps.iter().map(|(map, _)| map.memory_bytes()).sum();
        self.groups.memory_bytes() + self.groups.filter_bytes() + self.accumulators.memory_bytes() + maps
    }

    fn shrink(&mut self, target_bytes: usize, out: &mut dyn Output) -> Result<()> {
        let held = self.memory_bytes();
        if held <= target_bytes {
            return Ok(());
        }
        self.emit(true, out)?;
        self.maps.iter_mut().for_each(|(map, _)| map.end_epoch_early());
        if faults::is_planted(Fault::DirtyKeyLostAtEviction) {
            self.groups.lose_dirty_key();
        }
        self.write_back()?;
        // Filters are worth more than as many cached keys, but not more than all of them.
        if self.filter_bytes() > target_bytes / 2 {
            self.groups.drop_filter();
            self.maps.iter_mut().for_each(|(map, _)| map.drop_filter());
        }
        let filters = self.filter_bytes();
        let ratio = target_bytes.saturating_sub(filters) as f64 / held.saturating_sub(filters).max(1) as f64;
        let target = (self.groups.len() as f64 * ratio) as usize;
        self.groups.evict(target, &mut self.accumulators);
        self.maps.iter_mut().for_each(|(map, _)| map.evict(ratio));
        Ok(())
    }
}

/// Rows of a batch to be sent.
struct RowsOut {
    sources: Vec<Source>,
    slots: Vec<u32>,
    kinds: Vec<u8>,
}

impl RowsOut {
    fn push(&mut self, source: Source, slot: u32, kind: RowKind) {
        self.sources.push(source);
        self.slots.push(slot);
        self.kinds.push(kind as u8);
    }
}

/// The rows that an input counts; `None` for all.
fn mask(rows: &RecordBatch, input: Input) -> Result<Option<BooleanBuffer>> {
    let nulls = input.argument.and_then(|column| rows.column(column).nulls()).filter(|nulls| nulls.null_count() > 0);
    let valid = nulls.map(|nulls| nulls.inner().clone());
    let Some(filter) = input.filter else {
        return Ok(valid);
    };
    let filter: &BooleanArray =
        rows.column(filter).as_boolean_opt().ok_or_else(|| Error::internal("an aggregate function's filter is not boolean"))?;
    let mut mask = filter.values().clone();
    if let Some(nulls) = filter.nulls() {
        mask = &mask & nulls.inner();
    }
    Ok(Some(match valid {
        Some(valid) => &mask & &valid,
        None => mask,
    }))
}
