//! The state of an operator as rows: of a checkpoint or a savepoint, decoded by its descriptor alone.
//!
//! The columns are those of the key, then those of the value; the rows of a view with a key have theirs once. Each part is opened in a scratch folder of
//! its own, of links to files that stay as long as they are read: the running job is not touched.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use weir_catalog::{Error, Job, Result, SqlState};

use super::Engine;
use super::build::BuildContext;
use super::engine::shutting_down;
use super::manager::{Event, PinnedCheckpoint};
use crate::checkpoint::{OperatorCheckpoint, Part, Pin, Place};
use crate::operators::error::from_arrow;
use crate::state::convert::state_range;
use crate::state::key_codec::STATE_PREFIX_BYTES;
use crate::state::scratch::{ScratchBackend, ScratchFolder};
use crate::state::{EncodedRows, KeyCodec, RowCodec, StateBackend, StateDescriptor, StateSize};
use crate::stream::BarrierNumber;

/// The bytes of keys and values from which on a batch has no more rows.
const BATCH_BYTES: usize = 4 << 20;

/// One state of an operator, as it was stored.
pub struct StoredState {
    build: BuildContext,
    /// Where the savepoint is that it is of; `None`: a checkpoint in the store.
    savepoint: Option<Place>,
    parts: Vec<Part>,
    decoder: Decoder,
    /// Keeps the files of a checkpoint.
    _pin: Option<Pin>,
}

impl std::fmt::Debug for StoredState {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("StoredState").field("schema", &self.decoder.schema).finish_non_exhaustive()
    }
}

/// A value schema, and where each of its columns is shown.
struct Values {
    codec: RowCodec,
    columns: Vec<Option<usize>>,
}

/// Turns a state's entries into rows.
struct Decoder {
    tag: u8,
    /// The key's columns but an inverted last one.
    key: KeyCodec,
    /// The last column, where its bits are inverted.
    inverted: Option<KeyCodec>,
    /// The key's columns are not among the value's.
    with_key: bool,
    values: BTreeMap<u8, Values>,
    schema: SchemaRef,
}

impl Decoder {
    fn new(state: &StateDescriptor) -> Result<Decoder> {
        let key_types = state.key.iter().map(|column| column.data_type()).collect::<Result<Vec<_>>>()?;
        let (_, newest) = state
            .schemas
            .last_key_value()
            .ok_or_else(|| Error::corrupted(format!("the values of the state \"{}\" are not described", state.name)))?;
        let with_key = state.name != "rows" || !state.key.iter().all(|column| newest.contains(column));
        let shown = if with_key { state.key.as_slice() } else { &[] };
        let mut fields: Vec<Field> = Vec::with_capacity(shown.len() + newest.len());
        for column in shown.iter().chain(newest) {
            let mut name = column.name.clone();
            let mut number = 2;
            while fields.iter().any(|field| *field.name() == name) {
                name = format!("{}_{number}", column.name);
                number += 1;
            }
            fields.push(Field::new(name, column.data_type()?, true));
        }
        let mut values = BTreeMap::new();
        for (number, columns) in &state.schemas {
            let types = columns.iter().map(|column| column.data_type()).collect::<Result<Vec<_>>>()?;
            let codec = RowCodec::new(&types)?.with_schema_number(*number);
            let columns = newest.iter().map(|column| columns.iter().position(|other| other == column)).collect();
            values.insert(*number, Values { codec, columns });
        }
        let (last, first) = match key_types.split_last() {
            Some((last, first)) if state.greatest_first => (Some(KeyCodec::new(std::slice::from_ref(last))?), first),
            _ => (None, key_types.as_slice()),
        };
        Ok(Decoder { tag: state.tag, key: KeyCodec::new(first)?, inverted: last, with_key, values, schema: Arc::new(Schema::new(fields)) })
    }

    fn decode(&self, keys: &EncodedRows, values: &EncodedRows) -> Result<RecordBatch> {
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        if self.with_key {
            let (decoded, rests) = self.key.decode_first(keys.iter())?;
            columns.extend(decoded);
            match &self.inverted {
                Some(last) => {
                    let mut inverted = EncodedRows::new();
                    let mut row = Vec::new();
                    for rest in rests {
                        row.clear();
                        row.extend(rest.iter().map(|byte| !byte));
                        inverted.push(&row);
                    }
                    columns.extend(last.decode(inverted.iter())?);
                }
                None if rests.iter().any(|rest| !rest.is_empty()) => {
                    return Err(Error::corrupted("a key in the state is longer than its columns"));
                }
                None => {}
            }
        }
        columns.extend(self.decode_values(values, columns.len())?);
        let options = RecordBatchOptions::new().with_row_count(Some(keys.len()));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options).map_err(from_arrow)
    }

    /// The value's columns, which stand at `place` in the schema.
    fn decode_values(&self, values: &EncodedRows, place: usize) -> Result<Vec<ArrayRef>> {
        let types: Vec<&DataType> = self.schema.fields()[place..].iter().map(|field| field.data_type()).collect();
        let mut pieces: Vec<Vec<ArrayRef>> = vec![Vec::new(); types.len()];
        // Values of one schema after another, in runs.
        let mut first = 0;
        while first < values.len() {
            let number = RowCodec::schema_number(values.get(first))?;
            let mut end = first + 1;
            while end < values.len() && RowCodec::schema_number(values.get(end))? == number {
                end += 1;
            }
            let schema = self
                .values
                .get(&number)
                .ok_or_else(|| Error::corrupted(format!("a value in the state has schema {number}, which is not described")))?;
            let decoded = schema.codec.decode((first..end).map(|row| values.get(row)))?;
            for ((pieces, from), ty) in pieces.iter_mut().zip(&schema.columns).zip(&types) {
                pieces.push(from.and_then(|from| decoded.get(from).cloned()).unwrap_or_else(|| new_null_array(ty, end - first)));
            }
            first = end;
        }
        pieces
            .into_iter()
            .map(|pieces| match pieces.as_slice() {
                [piece] => Ok(piece.clone()),
                pieces => concat(&pieces.iter().map(AsRef::as_ref).collect::<Vec<_>>()).map_err(from_arrow),
            })
            .collect()
    }
}

impl StoredState {
    fn new(
        build: BuildContext,
        savepoint: Option<Place>,
        operators: &BTreeMap<String, OperatorCheckpoint>,
        uid: &str,
        state: Option<&str>,
        pin: Option<Pin>,
    ) -> Result<StoredState> {
        let with_state = || operators.iter().filter(|(_, operator)| !operator.states.is_empty());
        let operator = operators.get(uid).filter(|operator| !operator.states.is_empty()).ok_or_else(|| {
            let there: Vec<String> = with_state().map(|(uid, _)| format!("\"{uid}\"")).collect();
            Error::new(SqlState::UNDEFINED_OBJECT, format!("there is no operator \"{uid}\" with keyed state"))
                .with_detail(if there.is_empty() { "There is none.".into() } else { format!("There are: {}.", there.join(", ")) })
        })?;
        let found = match state {
            Some(name) => operator.states.iter().find(|state| state.name == name),
            None => operator.states.first(),
        };
        let descriptor = found.ok_or_else(|| {
            let there: Vec<String> = operator.states.iter().map(|state| format!("\"{}\"", state.name)).collect();
            Error::new(SqlState::UNDEFINED_OBJECT, format!("operator \"{uid}\" has no state \"{}\"", state.unwrap_or_default()))
                .with_detail(format!("It has: {}.", there.join(", ")))
        })?;
        StateDescriptor::check_formats(uid, descriptor)?;
        let decoder = Decoder::new(descriptor)?;
        Ok(StoredState { build, savepoint, parts: operator.parts.clone(), decoder, _pin: pin })
    }

    /// Its columns.
    pub fn schema(&self) -> SchemaRef {
        self.decoder.schema.clone()
    }

    /// How many parts it has: each can be read on its own.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Gives `each` the rows of a part, at most `max_rows` a batch, until it returns false. Waits for disk.
    ///
    /// Errors: `XX001` where a file or an entry is damaged, `55000` where another state backend wrote it.
    pub fn read(&self, part: usize, max_rows: usize, each: &mut dyn FnMut(RecordBatch) -> Result<bool>) -> Result<()> {
        let part = self.parts.get(part).ok_or_else(|| Error::internal("a part of a state does not exist"))?;
        let backend = open_part(&self.build, part, self.savepoint.as_ref())?;
        let (mut keys, mut values, mut bytes, mut wanted) = (EncodedRows::new(), EncodedRows::new(), 0, true);
        for group in part.range.start..part.range.end {
            let (begin, end) = state_range(group, self.decoder.tag);
            backend.scan(&begin, &end, &mut |key, value| {
                keys.push(key.get(STATE_PREFIX_BYTES..).ok_or_else(|| Error::corrupted("a key in the state is too short"))?);
                values.push(value);
                bytes += key.len() + value.len();
                if keys.len() >= max_rows || bytes >= BATCH_BYTES {
                    wanted = each(self.decoder.decode(&keys, &values)?)?;
                    keys.clear();
                    values.clear();
                    bytes = 0;
                }
                Ok(wanted)
            })?;
            if !wanted {
                return Ok(());
            }
        }
        if !keys.is_empty() {
            each(self.decoder.decode(&keys, &values)?)?;
        }
        Ok(())
    }
}

/// Opens a part, of the savepoint in `savepoint` where that is given, in a scratch folder that goes with it.
fn open_part(build: &BuildContext, part: &Part, savepoint: Option<&Place>) -> Result<ScratchBackend> {
    let path = build.scratch.join(format!("read-{}", build.incarnation()));
    let folder = ScratchFolder::create(build.files.clone(), build.spawner.clone(), path)?;
    let backend = build.open_backend_of(&folder.path().join("part"), &[part], part.range, savepoint)?;
    Ok(ScratchBackend::new(backend, folder))
}

impl Engine {
    /// A state of the operator `uid` of the running `job`, as of a checkpoint made now; the operator's first where none is named. Waits for a job that is
    /// starting.
    ///
    /// Errors: `42704` where there is no such operator or state, `55000` where the job has no checkpoint.
    pub async fn state_of_job(&self, job: &Job, uid: &str, state: Option<&str>) -> Result<StoredState> {
        let PinnedCheckpoint { checkpoint, pin, .. } = self.fresh_checkpoint(job.id).await?;
        StoredState::new(self.build.clone(), None, &checkpoint.operators, uid, state, Some(pin))
    }

    /// As [`Engine::state_of_job`], as of the retained checkpoint of this number. The job is not touched, whatever its state is.
    ///
    /// Errors: `42704` also where there is no such checkpoint of the job.
    pub async fn state_at(&self, job: &Job, checkpoint: BarrierNumber, uid: &str, state: Option<&str>) -> Result<StoredState> {
        let (done, told) = tokio::sync::oneshot::channel();
        self.tell(Event::PinRetained { job: job.id, checkpoint, done })?;
        let (checkpoint, pin) = told.await.map_err(|_| shutting_down())??;
        StoredState::new(self.build.clone(), None, &checkpoint.operators, uid, state, Some(pin))
    }

    /// What each state of an operator of the savepoint in `place` has: estimated where it is the only one, else counted, which reads all of it; `None` where
    /// another state backend wrote it. Waits for disk.
    pub fn state_sizes(&self, place: &Place, operator: &OperatorCheckpoint) -> Result<Vec<Option<StateSize>>> {
        if operator.states.len() < 2 {
            let add = |sum: StateSize, part: &Part| StateSize { rows: sum.rows + part.size.rows, bytes: sum.bytes + part.size.bytes };
            return Ok(operator.states.iter().map(|_| Some(operator.parts.iter().fold(StateSize::default(), add))).collect());
        }
        if operator.parts.iter().any(|part| part.backend != self.build.state_backend) {
            return Ok(vec![None; operator.states.len()]);
        }
        let mut sizes = vec![StateSize::default(); operator.states.len()];
        for part in &operator.parts {
            let backend = open_part(&self.build, part, Some(place))?;
            backend.scan(&[], &[], &mut |key, value| {
                let state = key.get(STATE_PREFIX_BYTES - 1).and_then(|tag| operator.states.iter().position(|state| state.tag == *tag));
                if let Some(size) = state.and_then(|state| sizes.get_mut(state)) {
                    size.rows += 1;
                    size.bytes += (key.len() + value.len()) as u64;
                }
                Ok(true)
            })?;
        }
        Ok(sizes.into_iter().map(Some).collect())
    }

    /// As [`Engine::state_of_job`], of the savepoint in `place`. Waits for disk.
    pub fn state_of_savepoint(&self, place: &Place, uid: &str, state: Option<&str>) -> Result<StoredState> {
        let saved = self.read_savepoint(place)?;
        StoredState::new(self.build.clone(), Some(place.clone()), &saved.checkpoint.operators, uid, state, None)
    }
}
