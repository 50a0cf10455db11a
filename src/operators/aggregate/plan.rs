//! From aggregate calls to accumulators: which columns the state has, what each folds, and what each result column is made of.
//!
//! Calls share what they have in common: the count of non-NULL values that COUNT(x) is, SUM(x) needs to tell NULL from 0; DISTINCT calls with the same
//! argument and filter count their values in one map.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use weir_catalog::{Error, Result};
use weir_sql::graph::{AggregateCall, AggregateFunction};

use super::columns::{Accumulator, Accumulators, Pair};
use super::count_map::CountMap;
use super::extremes::Extreme;
use crate::state::StateDescriptor;
use crate::state::descriptor::StateTexts;

/// What an [`Aggregate`](super::Aggregate) is to do.
#[derive(Clone, Debug)]
pub struct AggregateSpec {
    /// What comes in; the first `group_columns` columns are the key.
    pub input: SchemaRef,
    /// What goes out: the key columns, then one column a call.
    pub output: SchemaRef,
    pub group_columns: usize,
    pub calls: Vec<AggregateCall>,
    /// One row even over no input. Only without group columns.
    pub global: bool,
    /// No row is ever taken away: MIN and MAX need no more than the value.
    pub append_only_input: bool,
}

/// Which values of a batch count: those of `argument` that are not NULL, in rows where `filter` is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Input {
    pub argument: Option<usize>,
    pub filter: Option<usize>,
}

/// What an accumulator folds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feed {
    /// The rows of this input.
    Rows(usize),
    /// The appearing and going of values in this map.
    Map(usize),
}

/// What a result column is made of; the numbers are those of accumulators.
#[derive(Clone, Debug)]
pub(super) enum ResultColumn {
    Count(usize),
    Sum { sum: usize, count: usize, data_type: DataType, name: String },
    Extreme(usize),
}

/// A map's part of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Map {
    input: usize,
    order: MapOrder,
}

/// Maps that are searched for the greatest value have their keys in another order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MapOrder {
    Any,
    Ascending,
    Descending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Count,
    Sum,
    Min,
    Max,
}

/// The accumulators and maps of a spec.
#[derive(Debug)]
pub(super) struct Plan {
    pub inputs: Vec<Input>,
    pub accumulators: Accumulators,
    /// Of each accumulator.
    pub feeds: Vec<Feed>,
    /// Each with the number of its input.
    pub maps: Vec<(CountMap, usize)>,
    pub results: Vec<ResultColumn>,
    pub state_schema: SchemaRef,
}

/// The state tag of the groups; maps have the tags after it.
pub(super) const GROUPS_TAG: u8 = 0;

impl AggregateSpec {
    /// The names and types of the state's value columns, for its descriptor. The row codec's schema is this one's types.
    ///
    /// `rows` is the number of the group's rows. The other names say what a column holds of which input column:
    /// `count_x`, `sum_x` (for doubles with the four columns `_low`, `_nans`, `_infinities`, `_negative_infinities`), `min_x`, `max_x`, where rows can be
    /// taken away `min_x_of_all`, `max_x_of_all` (these have a map of all values beside them), and with `_distinct` (a map too) or `_where_f` behind.
    pub fn state_schema(&self) -> Result<SchemaRef> {
        Ok(Plan::new(self)?.state_schema)
    }

    /// What the state looks like: the groups, then the maps.
    pub fn states(&self) -> Result<Vec<StateDescriptor>> {
        let Plan { state_schema, maps, inputs, .. } = Plan::new(self)?;
        Ok(states(self, &state_schema, &maps, &inputs))
    }

    /// What each part of the state holds, where the input's columns are computed as `texts` say.
    pub fn state_texts(&self, texts: &[String]) -> Result<StateTexts> {
        let plan = Plan::new(self)?;
        let (builder, _) = Builder::planned(self)?;
        Ok(builder.state_texts(&plan.state_schema, &plan.accumulators, texts))
    }
}

impl Plan {
    pub fn new(spec: &AggregateSpec) -> Result<Plan> {
        Builder::planned(spec).and_then(|(builder, results)| builder.finish(results))
    }
}

/// What the state of `spec` looks like.
pub(super) fn states(spec: &AggregateSpec, state_schema: &Schema, maps: &[(CountMap, usize)], inputs: &[Input]) -> Vec<StateDescriptor> {
    let key: Vec<&Field> = spec.input.fields()[..spec.group_columns].iter().map(AsRef::as_ref).collect();
    let groups = StateDescriptor::new("groups", GROUPS_TAG, key.iter().copied(), state_schema.fields().iter().map(AsRef::as_ref));
    let maps = maps.iter().map(|(map, input)| {
        // A map's input has an argument: the column whose values it counts.
        let argument = inputs[*input].argument.map(|column| spec.input.field(column));
        map.descriptor(key.iter().copied().chain(argument))
    });
    std::iter::once(groups).chain(maps).collect()
}

impl<'a> Builder<'a> {
    fn planned(spec: &'a AggregateSpec) -> Result<(Builder<'a>, Vec<ResultColumn>)> {
        if spec.global && spec.group_columns > 0 {
            return Err(Error::internal("a global aggregate has group columns"));
        }
        if spec.output.fields().len() != spec.group_columns + spec.calls.len() {
            return Err(Error::internal("an aggregate's output has a column for each group column and call"));
        }
        let mut builder = Builder { spec, inputs: Vec::new(), accumulators: Vec::new(), maps: Vec::new() };
        let all_rows = builder.input(None, None)?;
        builder.accumulator(Kind::Count, Feed::Rows(all_rows))?;
        let results = spec.calls.iter().enumerate().map(|(i, call)| builder.call(i, call)).collect::<Result<Vec<_>>>()?;
        Ok((builder, results))
    }
}

struct Builder<'a> {
    spec: &'a AggregateSpec,
    inputs: Vec<Input>,
    accumulators: Vec<(Kind, Feed)>,
    maps: Vec<Map>,
}

impl Builder<'_> {
    fn call(&mut self, i: usize, call: &AggregateCall) -> Result<ResultColumn> {
        let output = self.spec.output.field(self.spec.group_columns + i);
        if *output.data_type() != call.output_type {
            return Err(Error::internal(format!("aggregate call {i} has type {}, its column {}", call.output_type, output.data_type())));
        }
        let input = self.input(call.argument, call.filter)?;
        let argument = || call.argument.ok_or_else(|| Error::internal(format!("aggregate call {i} has no argument")));
        match call.function {
            AggregateFunction::Count => {
                if call.distinct {
                    argument()?;
                }
                let feed = self.feed(input, call.distinct);
                Ok(ResultColumn::Count(self.accumulator(Kind::Count, feed)?))
            }
            AggregateFunction::Sum => {
                let argument = argument()?;
                let feed = self.feed(input, call.distinct);
                let count = self.accumulator(Kind::Count, feed)?;
                let sum = self.accumulator(Kind::Sum, feed)?;
                let name = format!("sum({})", self.spec.input.field(argument).name());
                Ok(ResultColumn::Sum { sum, count, data_type: call.output_type.clone(), name })
            }
            AggregateFunction::Min | AggregateFunction::Max => {
                argument()?;
                let greatest = call.function == AggregateFunction::Max;
                let feed = if self.spec.append_only_input {
                    Feed::Rows(input)
                } else {
                    let order = if greatest { MapOrder::Descending } else { MapOrder::Ascending };
                    Feed::Map(position_or_push(&mut self.maps, Map { input, order }))
                };
                Ok(ResultColumn::Extreme(self.accumulator(if greatest { Kind::Max } else { Kind::Min }, feed)?))
            }
        }
    }

    fn input(&mut self, argument: Option<usize>, filter: Option<usize>) -> Result<usize> {
        let width = self.spec.input.fields().len();
        if argument.is_some_and(|column| column >= width) || filter.is_some_and(|column| column >= width) {
            return Err(Error::internal("an aggregate function's argument or filter is not a column of its input"));
        }
        if filter.is_some_and(|column| *self.spec.input.field(column).data_type() != DataType::Boolean) {
            return Err(Error::internal("an aggregate function's filter is not boolean"));
        }
        Ok(position_or_push(&mut self.inputs, Input { argument, filter }))
    }

    fn feed(&mut self, input: usize, distinct: bool) -> Feed {
        if distinct { Feed::Map(position_or_push(&mut self.maps, Map { input, order: MapOrder::Any })) } else { Feed::Rows(input) }
    }

    fn accumulator(&mut self, kind: Kind, feed: Feed) -> Result<usize> {
        Ok(position_or_push(&mut self.accumulators, (kind, feed)))
    }

    fn input_of(&self, feed: Feed) -> Input {
        match feed {
            Feed::Rows(input) => self.inputs[input],
            Feed::Map(map) => self.inputs[self.maps[map].input],
        }
    }

    fn argument_type(&self, input: Input) -> Result<&DataType> {
        let argument = input.argument.ok_or_else(|| Error::internal("an aggregate function has no argument"))?;
        Ok(self.spec.input.field(argument).data_type())
    }

    fn name(&self, kind: Kind, feed: Feed) -> String {
        let input = self.input_of(feed);
        let column = |column: usize| self.spec.input.field(column).name();
        let mut name = match (kind, input.argument) {
            (Kind::Count, None) if input.filter.is_none() => return "rows".to_string(),
            (Kind::Count, None) => "count".to_string(),
            (Kind::Count, Some(argument)) => format!("count_{}", column(argument)),
            (Kind::Sum, argument) => format!("sum_{}", argument.map_or("", |argument| column(argument))),
            (Kind::Min, argument) => format!("min_{}", argument.map_or("", |argument| column(argument))),
            (Kind::Max, argument) => format!("max_{}", argument.map_or("", |argument| column(argument))),
        };
        if let Feed::Map(_) = feed {
            name.push_str(if matches!(kind, Kind::Min | Kind::Max) { "_of_all" } else { "_distinct" });
        }
        if let Some(filter) = input.filter {
            name.push_str(&format!("_where_{}", column(filter)));
        }
        name
    }

    /// What an accumulator holds, whatever columns are called; `texts` are those of the input's columns.
    fn text(&self, kind: Kind, feed: Feed, texts: &[String]) -> String {
        let input = self.input_of(feed);
        let column = |column: usize| texts.get(column).map_or("", String::as_str);
        let argument = input.argument.map_or("*", column);
        let filter = input.filter.map(|filter| format!(" where {}", column(filter))).unwrap_or_default();
        let over = if matches!(feed, Feed::Map(_)) { "values of " } else { "" };
        let kind = match kind {
            Kind::Count => "count",
            Kind::Sum => "sum",
            Kind::Min => "min",
            Kind::Max => "max",
        };
        format!("{kind} of {over}{argument}{filter}")
    }

    fn map_text(&self, map: Map, texts: &[String]) -> String {
        let Input { argument, filter } = self.inputs[map.input];
        let column = |column: usize| texts.get(column).map_or("", String::as_str);
        let filter = filter.map(|filter| format!(" where {}", column(filter))).unwrap_or_default();
        let order = if map.order == MapOrder::Descending { ", greatest first" } else { "" };
        format!("counts of {}{filter}{order}", argument.map_or("*", column))
    }

    /// What each map is called: after its values and the rows that count, and, where that is not enough, after what its order is for.
    fn map_names(&self) -> Vec<String> {
        let name = |map: &Map| {
            let Input { argument, filter } = self.inputs[map.input];
            let column = |column: usize| self.spec.input.field(column).name();
            let filter = filter.map(|filter| format!(" where {}", column(filter))).unwrap_or_default();
            format!("counts of {}{filter}", argument.map_or("", |argument| column(argument)))
        };
        let plain: Vec<String> = self.maps.iter().map(name).collect();
        let mut names: Vec<String> = Vec::new();
        for (map, name) in self.maps.iter().zip(&plain) {
            let is_shared = plain.iter().filter(|other| *other == name).count() > 1;
            let order = match map.order {
                MapOrder::Ascending if is_shared => ", least first",
                MapOrder::Descending if is_shared => ", greatest first",
                _ => "",
            };
            let mut unique = format!("{name}{order}");
            // Columns of an input can be called alike.
            let mut number = 2;
            while names.contains(&unique) {
                unique = format!("{name}{order} {number}");
                number += 1;
            }
            names.push(unique);
        }
        names
    }

    /// As [`AggregateSpec::state_texts`]; `schema` is the state's.
    fn state_texts(&self, schema: &Schema, accumulators: &Accumulators, texts: &[String]) -> StateTexts {
        let mut names = schema.fields().iter().map(|field| field.name().clone());
        let mut columns = Vec::new();
        for ((kind, feed), accumulator) in self.accumulators.iter().zip(&accumulators.columns) {
            let text = self.text(*kind, *feed, texts);
            let width = accumulator.state_fields("").len();
            columns.extend(names.by_ref().take(width).enumerate().map(|(part, name)| (name, format!("{text} #{part}"))));
        }
        let tag = |map: usize| (map + 1 + GROUPS_TAG as usize) as u8;
        let maps = self.maps.iter().enumerate().map(|(i, map)| (tag(i), self.map_text(*map, texts))).collect();
        StateTexts { columns, maps }
    }

    fn finish(self, results: Vec<ResultColumn>) -> Result<Plan> {
        let mut columns = Vec::new();
        let mut fields = Vec::new();
        let mut names = Vec::new();
        for (kind, feed) in &self.accumulators {
            let input = self.input_of(*feed);
            let accumulator = match kind {
                Kind::Count => Accumulator::Count(Pair::default()),
                Kind::Sum => match self.argument_type(input)? {
                    DataType::Int32 | DataType::Int64 => Accumulator::SumExact(Pair::default(), 0),
                    DataType::Decimal128(_, scale) => Accumulator::SumExact(Pair::default(), *scale),
                    DataType::Float64 => Accumulator::SumDouble(Pair::default()),
                    other => return Err(Error::unsupported(format!("sum of values of type {other} is not supported"))),
                },
                Kind::Min | Kind::Max => Accumulator::Extreme(Extreme::new(self.argument_type(input)?, *kind == Kind::Max)?),
            };
            fields.extend(accumulator.state_fields(&self.name(*kind, *feed)).into_iter().map(|field| unique(field, &mut names)));
            columns.push(accumulator);
        }
        let maps = self
            .maps
            .iter()
            .zip(self.map_names())
            .enumerate()
            .map(|(i, (map, name))| {
                let tag = u8::try_from(i + 1 + GROUPS_TAG as usize)
                    .map_err(|_| Error::unsupported("more than 255 DISTINCT, MIN or MAX calls in one query block"))?;
                let map_input = self.inputs[map.input];
                Ok((CountMap::new(name, tag, self.argument_type(map_input)?, map.order == MapOrder::Descending)?, map.input))
            })
            .collect::<Result<Vec<_>>>()?;
        let state_schema = Arc::new(Schema::new(fields));
        for result in &results {
            if let ResultColumn::Sum { sum, data_type, name, .. } = result {
                let fits = match (&columns[*sum], data_type) {
                    (Accumulator::SumExact(_, 0), DataType::Int64) => true,
                    (Accumulator::SumExact(_, scale), DataType::Decimal128(_, result_scale)) => scale == result_scale,
                    (Accumulator::SumDouble(_), DataType::Float64) => true,
                    _ => false,
                };
                if !fits {
                    return Err(Error::internal(format!("{name} cannot have type {data_type}")));
                }
            }
        }
        let feeds = self.accumulators.iter().map(|(_, feed)| *feed).collect();
        let accumulators = Accumulators { columns, global: self.spec.global };
        Ok(Plan { inputs: self.inputs, accumulators, feeds, maps, results, state_schema })
    }
}

/// Numbers a field whose name is taken: column names can look like the ones made here.
fn unique(field: Field, names: &mut Vec<String>) -> Field {
    let mut name = field.name().clone();
    let mut number = 2;
    while names.contains(&name) {
        name = format!("{}_{number}", field.name());
        number += 1;
    }
    names.push(name.clone());
    field.with_name(name)
}

fn position_or_push<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
    list.iter().position(|other| *other == item).unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    })
}
