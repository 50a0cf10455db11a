//! The `datagen` connector: rows made on the spot, with Flink's options.
//!
//! A row is a function of its number, and so are its values: split `k` of `n` has the rows whose number is `k` modulo `n`, and a split's state is the number
//! of its next row.
//!
//! # Invariants
//! - Each row is made exactly once, whatever the parallelism and however often the source is restored, and is the same each time, but for random times
//!   without a range: those count from the moment at which they are made, or from the beginning of a statement that reads all rows at once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch, RecordBatchOptions, StringBuilder,
    TimestampMicrosecondArray,
};
use arrow::datatypes::{Schema, SchemaRef};
use weir_catalog::{Column, Error, Result, SqlState, SqlType};
use weir_sql::functions::arithmetic::power_of_ten;
use weir_sql::functions::text;

use super::{Source, SourceEvent, SplitState};
use crate::formats::options::{Given, OptionReader, invalid};
use crate::operators::error::from_arrow;
use crate::stream::Batch;

/// The most rows of a batch.
const MAX_BATCH_ROWS: usize = 65_536;
/// Rows come due at multiples of this.
const TICK_US: u64 = 1000;
/// The longest random text, characters.
const TEXT_LENGTH_MAX: usize = 1 << 20;
/// The most bytes of texts in a batch, about.
const BATCH_TEXT_BYTES: usize = 16 << 20;

/// What a `datagen` table makes.
///
/// | option | means | default |
/// | --- | --- | --- |
/// | `rows-per-second` | over all subtasks; 0: as fast as possible | 10000 |
/// | `number-of-rows` | how many; then it ends | no end |
/// | `seed` | which random values | 0 |
/// | `fields.<column>.kind` | `random` or `sequence` | `random` |
/// | `fields.<column>.min`, `.max` | the range of random numbers and times | that of the type |
/// | `fields.<column>.length` | the characters of random texts | 100 |
/// | `fields.<column>.max-past` | random times lie so far before now at most | 0: now |
/// | `fields.<column>.null-rate` | the part of the rows where it is NULL | 0 |
/// | `fields.<column>.start`, `.end` | of a sequence; the table ends with its shortest one | |
#[derive(Clone, Debug, PartialEq)]
pub struct DatagenConfig {
    rate: Option<u64>,
    rows: Option<u64>,
    seed: u64,
    columns: Vec<Generator>,
}

/// What makes the values of a column.
#[derive(Clone, Debug, PartialEq)]
struct Generator {
    kind: Kind,
    null_rate: f64,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Boolean,
    /// From the first to the last, whole numbers: INT, BIGINT, the digits of a NUMERIC, microseconds of a TIMESTAMP.
    Range {
        least: i128,
        greatest: i128,
    },
    Double {
        least: f64,
        greatest: f64,
    },
    Text {
        length: usize,
    },
    /// Microseconds before the time of the poll, at most.
    Past {
        most_us: u64,
    },
    /// `start + row number`.
    Sequence {
        start: i64,
    },
}

impl DatagenConfig {
    /// Reads the options for a table of `columns`. `22023` for one that is unknown, malformed, or for a column that does not exist or has another type.
    pub fn parse(options: &BTreeMap<String, String>, columns: &[Column]) -> Result<DatagenConfig> {
        let mut reader = OptionReader::new("datagen", options)?;
        let rate = reader.take(&["rows-per-second"])?.map_or(Ok(10_000), |given| given.number(0, 1_000_000_000u64))?;
        let mut rows = reader.take(&["number-of-rows"])?.map(|given| given.number(0, i64::MAX as u64)).transpose()?;
        let seed = reader.take(&["seed"])?.map_or(Ok(0), |given| given.number(0, u64::MAX))?;
        let mut of_columns: BTreeMap<(String, String), Given<'_>> = BTreeMap::new();
        for (rest, given) in reader.take_prefixed("fields.") {
            let (column, option) = rest.rsplit_once('.').ok_or_else(|| invalid(format!("option \"{}\" names no column", given.name)))?;
            let option = option.to_ascii_lowercase().replace('_', "-");
            of_columns.insert((column.to_string(), option), given);
        }
        reader.finish()?;
        let mut generators = Vec::with_capacity(columns.len());
        for column in columns {
            let mut take = |option: &str| of_columns.remove(&(column.name.clone(), option.to_string()));
            let generator = Generator::take(column, &mut take)?;
            if let Kind::Sequence { start } = generator.kind
                && let Some(end) = take("end")
            {
                let count = end.number(start, i64::MAX)?.abs_diff(start).saturating_add(1);
                rows = Some(rows.map_or(count, |rows| rows.min(count)));
            }
            generators.push(generator);
        }
        if let Some((_, given)) = of_columns.into_iter().next() {
            return Err(invalid(format!("option \"{}\" is for a column that does not exist, or that has no such option", given.name)));
        }
        Ok(DatagenConfig { rate: Some(rate).filter(|rate| *rate > 0), rows, seed, columns: generators })
    }

    /// How many rows there are; `None`: no end.
    pub fn rows(&self) -> Option<u64> {
        self.rows
    }

    /// Whether its rows come at a rate, and not as fast as they are read.
    pub fn is_paced(&self) -> bool {
        self.rate.is_some()
    }

    /// Whether it has random times, which are others whenever they are made.
    pub fn depends_on_now(&self) -> bool {
        self.columns.iter().any(|column| matches!(column.kind, Kind::Past { .. }))
    }
}

impl Generator {
    fn take<'a>(column: &Column, take: &mut impl FnMut(&str) -> Option<Given<'a>>) -> Result<Generator> {
        let wrong_type = || invalid(format!("column \"{}\" of type {} can't be generated", column.name, column.ty));
        let kind = take("kind");
        let is_sequence = match kind.map(|given| (given, given.value.trim().to_ascii_lowercase())) {
            None => false,
            Some((_, kind)) if kind == "random" => false,
            Some((_, kind)) if kind == "sequence" => true,
            Some((given, _)) => return Err(given.malformed("random or sequence")),
        };
        let null_rate = take("null-rate").map_or(Ok(0.0), |given| given.number(0.0, 1.0))?;
        let kind = if is_sequence {
            if !matches!(column.ty, SqlType::Int | SqlType::BigInt | SqlType::Double | SqlType::Numeric { .. } | SqlType::Text) {
                return Err(wrong_type());
            }
            let start = take("start").ok_or_else(|| invalid(format!("sequence column \"{}\" needs a start", column.name)))?;
            Kind::Sequence { start: start.number(i64::MIN, i64::MAX)? }
        } else {
            match &column.ty {
                SqlType::Boolean => Kind::Boolean,
                SqlType::Int => {
                    Kind::range(take, i32::MIN.into(), i32::MAX.into(), |given| given.number(i32::MIN, i32::MAX).map(i128::from))?
                }
                SqlType::BigInt => {
                    Kind::range(take, i64::MIN.into(), i64::MAX.into(), |given| given.number(i64::MIN, i64::MAX).map(i128::from))?
                }
                SqlType::Numeric { precision, scale } => {
                    let most = power_of_ten(u32::from(*precision)) - 1;
                    Kind::range(take, -most, most, |given| text::parse_decimal(given.value, *precision, *scale))?
                }
                SqlType::Double => {
                    let bound =
                        |given: Option<Given<'_>>, default: f64| given.map_or(Ok(default), |given| given.number(f64::MIN, f64::MAX));
                    let (least, greatest) = (bound(take("min"), 0.0)?, bound(take("max"), 1.0)?);
                    if least > greatest {
                        return Err(invalid(format!("the range of column \"{}\" is empty", column.name)));
                    }
                    Kind::Double { least, greatest }
                }
                SqlType::Text => Kind::Text { length: take("length").map_or(Ok(100), |given| given.number(0, TEXT_LENGTH_MAX))? },
                SqlType::Timestamp { precision } => {
                    let (min, max) = (take("min"), take("max"));
                    let parse = |given: Given<'_>| text::parse_timestamp(given.value, *precision).map(i128::from);
                    match (min, max) {
                        (None, None) => {
                            let most = take("max-past").map(|given| given.duration()).transpose()?.unwrap_or_default();
                            Kind::Past { most_us: most.as_micros() as u64 }
                        }
                        (Some(min), Some(max)) => Kind::Range { least: parse(min)?, greatest: parse(max)? },
                        _ => return Err(invalid(format!("column \"{}\" needs both min and max, or none", column.name))),
                    }
                }
                SqlType::Row(_) | SqlType::Array(_) => {
                    return Err(Error::unsupported(format!("column \"{}\" of type {} is not supported", column.name, column.ty)));
                }
            }
        };
        if let Kind::Range { least, greatest } = kind
            && least > greatest
        {
            return Err(invalid(format!("the range of column \"{}\" is empty", column.name)));
        }
        Ok(Generator { kind, null_rate })
    }
}

impl Kind {
    fn range<'a>(
        take: &mut impl FnMut(&str) -> Option<Given<'a>>,
        least: i128,
        greatest: i128,
        parse: impl Fn(Given<'a>) -> Result<i128>,
    ) -> Result<Kind> {
        let least = take("min").map_or(Ok(least), &parse)?;
        let greatest = take("max").map_or(Ok(greatest), &parse)?;
        Ok(Kind::Range { least, greatest })
    }
}

/// SplitMix64's finaliser (Steele, Lea and Flood, 2014): mixes the bits of a number.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A random number of a row and a column, the `draw`th of them.
fn random(seed: u64, row: u64, draw: u64) -> u64 {
    mix(mix(seed.wrapping_mul(0xA24B_AED4_963E_E407) ^ draw).wrapping_add(row))
}

/// One subtask's part of a `datagen` table.
pub struct DatagenSource {
    config: DatagenConfig,
    schema: SchemaRef,
    /// The type of each column that is filled, and which of the table's it is.
    columns: Vec<(usize, SqlType)>,
    splits: u64,
    /// The splits that this subtask owns: the next row of each, and its number.
    own: BinaryHeap<Reverse<(u64, u64)>>,
    /// When the first poll was, and the first row that was due then.
    started_us: Option<i64>,
    first_row: u64,
    /// When the statement began that reads all rows at once.
    statement_us: Option<i64>,
    /// About how many bytes of text a row has.
    row_text_bytes: usize,
}

impl DatagenSource {
    /// The part of subtask `subtask` of `parallelism`, which fills the columns `projection`. `restored`: where all splits stood.
    pub fn new(
        config: &DatagenConfig,
        columns: &[Column],
        projection: &[usize],
        subtask: usize,
        parallelism: usize,
        restored: Option<&[SplitState]>,
    ) -> Result<DatagenSource> {
        let projected = projection
            .iter()
            .map(|at| columns.get(*at).map(|column| (*at, column)).ok_or_else(|| Error::internal(format!("there is no column {at}"))))
            .collect::<Result<Vec<_>>>()?;
        let all: Vec<(u64, u64)> = match restored {
            None => (0..parallelism as u64).map(|split| (split, split)).collect(),
            Some(states) => states
                .iter()
                .map(|state| {
                    let parsed =
                        state.split.split_once('/').and_then(|(split, all)| Some((split.parse().ok()?, all.parse::<usize>().ok()?)));
                    match (parsed, state.offset.parse()) {
                        (Some((split, all)), Ok(next)) if all == states.len() => Ok((next, split)),
                        _ => Err(Error::corrupted(format!("the state of a datagen source has the split \"{}\"", state.split))),
                    }
                })
                .collect::<Result<_>>()?,
        };
        let first_row = all.iter().map(|(next, _)| *next).min().unwrap_or(0);
        let text_bytes = |generator: &Generator| if let Kind::Text { length } = generator.kind { length } else { 0 };
        Ok(DatagenSource {
            schema: Arc::new(Schema::new(projected.iter().map(|(_, column)| column.to_field()).collect::<Vec<_>>())),
            row_text_bytes: projection.iter().map(|at| text_bytes(&config.columns[*at])).sum(),
            columns: projected.iter().map(|(at, column)| (*at, column.ty.clone())).collect(),
            splits: all.len() as u64,
            own: all.into_iter().filter(|(_, split)| *split as usize % parallelism == subtask).map(Reverse).collect(),
            started_us: None,
            first_row,
            statement_us: None,
            config: config.clone(),
        })
    }

    /// The same for a statement that began at `statement_us` and reads all rows at once: its now is that time, whatever it is polled with.
    pub fn at(self, statement_us: Option<i64>) -> DatagenSource {
        DatagenSource { statement_us, ..self }
    }

    /// The rows' values of a column, before it is known which are NULL.
    fn column(&self, at: usize, ty: &SqlType, rows: &[u64], now_us: i64) -> Result<ArrayRef> {
        let generator = &self.config.columns[at];
        let seed = mix(self.config.seed ^ ((at as u64) << 32));
        let is_null =
            |row: u64| generator.null_rate > 0.0 && (random(seed, row, 0) >> 11) as f64 / ((1u64 << 53) as f64) < generator.null_rate;
        let valid = |row: &u64| (!is_null(*row)).then_some(*row);
        let whole = |row: u64| -> i128 {
            match &generator.kind {
                Kind::Range { least, greatest } => {
                    let width = greatest.wrapping_sub(*least) as u128;
                    let drawn = u128::from(random(seed, row, 1)) << 64 | u128::from(random(seed, row, 2));
                    // Modulo is uniform enough: the width is far below 128 bits.
                    least.wrapping_add(if width == u128::MAX { drawn as i128 } else { (drawn % (width + 1)) as i128 })
                }
                Kind::Past { most_us } => i128::from(now_us) - i128::from(random(seed, row, 1) % (most_us + 1)),
                Kind::Sequence { start } => i128::from(*start) + i128::from(row),
                Kind::Boolean | Kind::Double { .. } | Kind::Text { .. } => 0,
            }
        };
        let rows = rows.iter();
        let overflow = || Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "a sequence of a datagen table is out of range for its column");
        Ok(match ty {
            SqlType::Boolean => Arc::new(rows.map(|row| valid(row).map(|row| random(seed, row, 1) & 1 == 1)).collect::<BooleanArray>()),
            SqlType::Int => {
                let values = rows.map(|row| valid(row).map(|row| i32::try_from(whole(row)).map_err(|_| overflow())).transpose());
                Arc::new(values.collect::<Result<Int32Array>>()?)
            }
            SqlType::BigInt => {
                let values = rows.map(|row| valid(row).map(|row| i64::try_from(whole(row)).map_err(|_| overflow())).transpose());
                Arc::new(values.collect::<Result<Int64Array>>()?)
            }
            SqlType::Timestamp { precision } => {
                let value = |row| text::round_timestamp(whole(row) as i64, *precision);
                Arc::new(rows.map(|row| valid(row).map(value)).collect::<TimestampMicrosecondArray>())
            }
            SqlType::Numeric { precision, scale } => {
                let unit = if let Kind::Sequence { .. } = generator.kind { power_of_ten(u32::try_from(*scale).unwrap_or(0)) } else { 1 };
                let most = power_of_ten(u32::from(*precision));
                let value = |row| whole(row).checked_mul(unit).filter(|value| value.abs() < most).ok_or_else(overflow);
                let values = rows.map(|row| valid(row).map(value).transpose()).collect::<Result<Decimal128Array>>()?;
                Arc::new(values.with_precision_and_scale(*precision, *scale).map_err(from_arrow)?)
            }
            SqlType::Double => {
                let value = |row| match generator.kind {
                    Kind::Double { least, greatest } => {
                        let part = (random(seed, row, 1) >> 11) as f64 / (1u64 << 53) as f64;
                        least * (1.0 - part) + greatest * part
                    }
                    _ => whole(row) as f64,
                };
                Arc::new(rows.map(|row| valid(row).map(value)).collect::<Float64Array>())
            }
            SqlType::Text => {
                use std::fmt::Write;
                let mut builder = StringBuilder::new();
                for row in rows {
                    match (valid(row), &generator.kind) {
                        (None, _) => {
                            builder.append_null();
                            continue;
                        }
                        (Some(row), Kind::Text { length }) => {
                            // Hexadecimal digits, sixteen a draw, as Flink's random strings are.
                            let mut left = *length;
                            let mut draw = 1;
                            while left > 0 {
                                let digits = format!("{:016x}", random(seed, row, draw));
                                let taken = left.min(16);
                                builder.write_str(&digits[..taken]).map_err(|e| Error::internal(e.to_string()))?;
                                left -= taken;
                                draw += 1;
                            }
                        }
                        (Some(row), _) => write!(builder, "{}", whole(row)).map_err(|e| Error::internal(e.to_string()))?,
                    }
                    builder.append_value("");
                }
                Arc::new(builder.finish())
            }
            SqlType::Row(_) | SqlType::Array(_) => return Err(Error::internal("a nested column was not refused")),
        })
    }

    /// One past the last row that is due.
    fn due(&mut self, now_us: i64) -> u64 {
        let Some(rate) = self.config.rate else { return u64::MAX };
        let started_us = *self.started_us.get_or_insert(now_us);
        if now_us == i64::MAX {
            return u64::MAX;
        }
        let elapsed_us = u64::try_from(now_us.saturating_sub(started_us)).unwrap_or(0) / TICK_US * TICK_US;
        let rows = u128::from(elapsed_us) * u128::from(rate) / 1_000_000;
        self.first_row.saturating_add(u64::try_from(rows).unwrap_or(u64::MAX)).saturating_add(1)
    }
}

impl Source for DatagenSource {
    fn poll(&mut self, max_rows: usize, now_us: i64) -> Result<SourceEvent> {
        let end = self.config.rows.unwrap_or(u64::MAX);
        let bound = self.due(now_us).min(end);
        let most = max_rows.min(MAX_BATCH_ROWS).min(BATCH_TEXT_BYTES / self.row_text_bytes.max(1)).max(1);
        let mut rows = Vec::new();
        while rows.len() < most
            && let Some(mut next) = self.own.peek_mut()
            && next.0.0 < bound
        {
            rows.push(next.0.0);
            next.0.0 += self.splits;
        }
        if rows.is_empty() {
            let left = self.own.peek().is_some_and(|Reverse((next, _))| *next < end);
            return Ok(if left { SourceEvent::Wait(TICK_US * 10) } else { SourceEvent::End });
        }
        let now_us = self.statement_us.unwrap_or(now_us);
        let arrays = self.columns.iter().map(|(at, ty)| self.column(*at, ty, &rows, now_us)).collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let rows = RecordBatch::try_new_with_options(self.schema.clone(), arrays, &options).map_err(from_arrow)?;
        Ok(SourceEvent::Batch(Batch::insert(rows)))
    }

    fn splits(&self) -> Result<Vec<SplitState>> {
        let state = |Reverse((next, split)): &Reverse<(u64, u64)>| SplitState {
            split: format!("{split}/{}", self.splits),
            offset: next.to_string(),
        };
        Ok(self.own.iter().map(state).collect())
    }

    fn has_reached(&self, target: &[SplitState]) -> Result<bool> {
        let has_reached = |Reverse((next, split)): &Reverse<(u64, u64)>| {
            let name = format!("{split}/{}", self.splits);
            let same = target.iter().find(|state| state.split == name);
            same.is_none_or(|state| state.offset.parse::<u64>().is_ok_and(|offset| *next >= offset))
        };
        Ok(self.own.iter().all(has_reached))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use arrow::array::AsArray;
    use arrow::datatypes::{Int32Type, Int64Type};

    use super::*;

    fn columns() -> Vec<Column> {
        let column = |name: &str, ty| Column { name: name.into(), ty, nullable: true, default: None };
        vec![column("id", SqlType::BigInt), column("v", SqlType::Int), column("t", SqlType::Text)]
    }

    fn config(more: &[(&str, &str)]) -> Result<DatagenConfig> {
        let mut options: BTreeMap<String, String> = [
            ("rows-per-second", "0"),
            ("fields.id.kind", "sequence"),
            ("fields.id.start", "5"),
            ("fields.id.end", "1004"),
            ("fields.v.min", "-3"),
            ("fields.v.max", "3"),
            ("fields.v.null-rate", "0.25"),
            ("fields.t.length", "20"),
        ]
        .iter()
        .map(|(name, value)| ((*name).to_string(), (*value).to_string()))
        .collect();
        options.extend(more.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())));
        DatagenConfig::parse(&options, &columns())
    }

    fn drain(source: &mut DatagenSource, most: usize, rows: &mut Vec<(i64, Option<i32>, String)>) -> bool {
        let mut batches = 0;
        loop {
            match source.poll(7, 0).unwrap() {
                SourceEvent::Batch(batch) => {
                    let (id, v, t) = (batch.rows.column(0), batch.rows.column(1), batch.rows.column(2));
                    let v = v.as_primitive::<Int32Type>();
                    rows.extend((0..batch.num_rows()).map(|row| {
                        let id = id.as_primitive::<Int64Type>().value(row);
                        (id, v.iter().nth(row).flatten(), t.as_string::<i32>().value(row).to_string())
                    }));
                }
                SourceEvent::End => return true,
                SourceEvent::Wait(_) => panic!("without a rate nothing is waited for"),
            }
            batches += 1;
            if batches == most {
                return false;
            }
        }
    }

    #[test]
    fn rows_come_once_over_restarts_at_other_parallelisms_and_are_the_same() {
        let config = config(&[]).unwrap();
        assert_eq!(config.rows(), Some(1000));
        let mut whole = Vec::new();
        let mut source = DatagenSource::new(&config, &columns(), &[0, 1, 2], 0, 1, None).unwrap();
        assert!(drain(&mut source, usize::MAX, &mut whole));
        assert_eq!(whole.iter().map(|row| row.0).collect::<Vec<_>>(), (5..1005).collect::<Vec<_>>());
        assert!(whole.iter().all(|row| row.1.is_none_or(|v| (-3..=3).contains(&v)) && row.2.len() == 20));
        let nulls = whole.iter().filter(|row| row.1.is_none()).count();
        assert!((150..350).contains(&nulls), "{nulls} of 1000 are NULL");
        assert_eq!(whole.iter().filter_map(|row| row.1).collect::<BTreeSet<_>>().len(), 7);

        let mut pieces = Vec::new();
        let mut states: Option<Vec<SplitState>> = None;
        for (parallelism, batches) in [(3, 5), (1, 20), (2, 11), (4, usize::MAX)] {
            let mut after = Vec::new();
            for subtask in 0..parallelism {
                let mut source = DatagenSource::new(&config, &columns(), &[0, 1, 2], subtask, parallelism, states.as_deref()).unwrap();
                drain(&mut source, batches, &mut pieces);
                after.extend(source.splits().unwrap());
            }
            states = Some(after);
        }
        pieces.sort();
        assert_eq!(pieces, whole);
    }

    #[test]
    fn random_times_lie_before_now_or_before_the_statement_that_reads_all_rows() {
        let at = Column { name: "at".into(), ty: SqlType::Timestamp { precision: 6 }, nullable: true, default: None };
        let options = [("rows-per-second", "0"), ("number-of-rows", "500"), ("fields.at.max-past", "10 s")];
        let options = options.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect();
        let config = DatagenConfig::parse(&options, std::slice::from_ref(&at)).unwrap();
        assert!(config.depends_on_now() && !self::config(&[]).unwrap().depends_on_now());
        // A statement polls with the beginning and the end of time, so that no rate holds it up.
        let (now_us, past_us) = (1_800_000_000_000_000_i64, 10_000_000);
        for (statement_us, polled_us) in [(Some(now_us), i64::MIN), (Some(now_us), i64::MAX), (None, now_us)] {
            let mut source = DatagenSource::new(&config, std::slice::from_ref(&at), &[0], 0, 1, None).unwrap().at(statement_us);
            let SourceEvent::Batch(batch) = source.poll(1000, polled_us).unwrap() else { panic!("no rows") };
            let times = batch.rows.column(0).as_primitive::<arrow::datatypes::TimestampMicrosecondType>();
            assert_eq!(times.len(), 500);
            assert!(times.values().iter().all(|time| (now_us - past_us..=now_us).contains(time)), "{statement_us:?} {polled_us}");
            assert!(times.values().iter().max() > times.values().iter().min().map(|least| least + past_us / 2).as_ref());
        }
    }

    #[test]
    fn a_rate_is_kept_and_wrong_options_are_refused() {
        let config = config(&[("rows-per-second", "100")]).unwrap();
        let mut source = DatagenSource::new(&config, &columns(), &[0], 0, 1, None).unwrap();
        let mut rows = 0;
        for now_us in [0, 500_000, 1_000_000] {
            while let SourceEvent::Batch(batch) = source.poll(1000, now_us).unwrap() {
                rows += batch.num_rows();
            }
        }
        assert_eq!(rows, 101);
        for wrong in
            [("fields.nobody.min", "1"), ("fields.v.kind", "funny"), ("fields.v.max", "-9"), ("fields.v.null-rate", "2"), ("speed", "1")]
        {
            let error = self::config(&[wrong]).expect_err(wrong.0);
            assert_eq!(error.code().as_str(), "22023", "{wrong:?}");
        }
    }
}
