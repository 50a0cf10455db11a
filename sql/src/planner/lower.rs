//! From DataFusion's logical plan to relations.
//!
//! A projection makes no relation of its own: a plan node is lowered to a relation and, for each column of the plan's schema, an expression over the
//! relation's columns. Projections so merge by themselves, and what nobody reads is never computed. A calc is made only where rows change: for a filter,
//! below an aggregate, at a union, at the root.
//!
//! An expression thus runs after the filters above it, as it does in PostgreSQL and in batch execution: an error in a row that the query drops is no
//! error. A filter never runs before one that stood below it, unless it can't fail (see `rewrite`).
//!
//! # Invariants
//! The expression of a column has the type that the plan's schema gives the column.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, NullHandling, ScalarValue};
use datafusion::logical_expr::expr::AggregateFunction as AggregateExpr;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{
    Aggregate, Case, Cast, Distinct, EmptyRelation, Expr, ExprSchemable, LogicalPlan, Projection, TableScan, Union, Unnest, Values,
};
use datafusion::physical_expr::create_physical_expr;
use weir_catalog::{Error, JobKind, Object, Result, SqlState};

use super::object_of;
use super::refuse;
use super::relation::{Call, Relation, RelationColumn, RelationId, Relations, canonical, unique_names};
use super::text::{column_name, shorten};
use super::uid::marked_uid;
use crate::binder::can_fail;
use crate::graph::AggregateFunction;

/// A plan node as a relation and an expression for each column of the node's schema.
#[derive(Clone, Debug)]
pub(super) struct Lowered {
    pub relation: RelationId,
    pub columns: Vec<Expr>,
}

/// The query block that is being lowered, as far as a hint names its operators.
#[derive(Clone, Debug)]
struct Block {
    uid: String,
    /// Operators of the block that have been met, the last one first.
    operators: usize,
}

/// Lowers one query.
pub(super) struct Lowering<'a> {
    pub relations: &'a mut Relations,
    block: Option<Block>,
}

impl<'a> Lowering<'a> {
    pub(super) fn new(relations: &'a mut Relations) -> Lowering<'a> {
        Lowering { relations, block: None }
    }

    /// Lowers `plan` and puts a calc on top that returns its columns under `names`.
    pub(super) fn root(&mut self, plan: &LogicalPlan, names: &[String]) -> Result<RelationId> {
        let lowered = self.plan(plan)?;
        if names.len() != lowered.columns.len() {
            return Err(Error::internal(format!("a query of {} columns was given {} names", lowered.columns.len(), names.len())));
        }
        let mut different: HashSet<&str> = HashSet::with_capacity(names.len());
        for name in names {
            if !different.insert(name) {
                return Err(Error::new(SqlState::DUPLICATE_COLUMN, format!("column \"{name}\" specified more than once"))
                    .with_hint("Give one of them another name with AS."));
            }
        }
        if names.is_empty() {
            return Err(refuse::unsupported("a result without columns is not supported"));
        }
        let columns = self.canonical_columns(&lowered, names)?;
        self.calc(lowered.relation, columns)
    }

    fn plan(&mut self, plan: &LogicalPlan) -> Result<Lowered> {
        match plan {
            LogicalPlan::TableScan(scan) => self.scan(scan),
            LogicalPlan::Projection(projection) => self.projection(projection),
            LogicalPlan::Filter(filter) => {
                let input = self.plan(&filter.input)?;
                self.filter(&input, &filter.predicate, filter.input.schema())
            }
            LogicalPlan::SubqueryAlias(alias) => match marked_uid(alias.alias.table())? {
                Some(uid) => {
                    let outer = self.block.replace(Block { uid, operators: 0 });
                    let lowered = self.plan(&alias.input)?;
                    if let Some(Block { uid, operators: 0 }) = std::mem::replace(&mut self.block, outer) {
                        return Err(Error::unsupported(format!("uid \"{uid}\" names a SELECT without state"))
                            .with_detail("GROUP BY, aggregate functions and DISTINCT have state; filters and expressions do not.")
                            .with_hint("Leave the hint out, or write it after the SELECT that groups."));
                    }
                    Ok(lowered)
                }
                None => self.outside_block(&alias.input),
            },
            LogicalPlan::Aggregate(aggregate) => self.aggregate(aggregate),
            LogicalPlan::Distinct(Distinct::All(input)) => self.distinct(input),
            LogicalPlan::Union(union) => self.union(union),
            LogicalPlan::Unnest(unnest) => self.unnest(unnest),
            LogicalPlan::EmptyRelation(empty) => self.empty(empty),
            LogicalPlan::Values(values) => self.values(values),
            other => Err(refuse::node(other)),
        }
    }

    /// Lowers what belongs to another block than the present one.
    fn outside_block(&mut self, plan: &LogicalPlan) -> Result<Lowered> {
        let outer = self.block.take();
        let lowered = self.plan(plan);
        self.block = outer;
        lowered
    }

    /// The uid of the next operator of the present block, counted from its result: the first is the block's last operator and has its name alone.
    fn block_uid(&mut self, role: &str) -> Option<String> {
        let block = self.block.as_mut()?;
        block.operators += 1;
        Some(if block.operators == 1 { block.uid.clone() } else { format!("{}/{role}", block.uid) })
    }

    fn scan(&mut self, scan: &TableScan) -> Result<Lowered> {
        if (scan.source.as_ref() as &dyn std::any::Any).is::<crate::binder::SeriesSource>() {
            return Err(refuse::unsupported("generate_series is not supported").with_hint("Put its values into a table."));
        }
        let object = object_of(&scan.source).ok_or_else(|| {
            refuse::unsupported(&format!("reading system view \"{}\" is not supported", scan.table_name.table()))
                .with_hint("A system view shows the present and has no changes to follow: read it with a SELECT of its own.")
        })?;
        match object.as_ref() {
            Object::StoredTable(_) | Object::ConnectorTable(_) => {}
            Object::Job(job) if matches!(job.kind, JobKind::MaterializedView { .. }) => {}
            other => return Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("{} \"{}\" can't be read", other.kind(), other.name()))),
        }
        if scan.fetch.is_some() {
            return Err(refuse::unsupported("LIMIT and OFFSET are not supported"));
        }
        let columns =
            object.columns().iter().map(|column| RelationColumn { name: column.name.clone(), data_type: column.ty.to_arrow() }).collect();
        let relation = self.relations.add(Relation::Scan { object: object.id() }, columns)?;
        let columns = scan
            .projected_schema
            .fields()
            .iter()
            .map(|field| self.column_as(relation, field.name(), field.data_type()))
            .collect::<Result<Vec<_>>>()?;
        let mut lowered = Lowered { relation, columns };
        for predicate in &scan.filters {
            lowered = self.filter(&lowered, predicate, &scan.projected_schema)?;
        }
        Ok(lowered)
    }

    fn projection(&mut self, projection: &Projection) -> Result<Lowered> {
        let mut input = self.plan(&projection.input)?;
        let schema = projection.input.schema();
        for expr in &projection.expr {
            refuse::check_expression(expr, schema)?;
        }
        if self.repeats_work(&projection.expr, &input, schema) {
            input = self.compute(&input)?;
        }
        let columns = projection
            .expr
            .iter()
            .zip(projection.schema.fields())
            .map(|(expr, field)| {
                let expr = substitute(expr, &input.columns, schema)?;
                self.typed_as(expr, input.relation, field.data_type())
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Lowered { relation: input.relation, columns })
    }

    fn filter(&mut self, input: &Lowered, predicate: &Expr, schema: &DFSchema) -> Result<Lowered> {
        refuse::check_expression(predicate, schema)?;
        let predicate = substitute(predicate, &input.columns, schema)?;
        let columns = self.relations.columns(input.relation).to_vec();
        let projection = columns.iter().map(|column| column_expr(&column.name)).collect();
        let relation = Relation::Calc { input: input.relation, filter: Some(predicate), projection };
        Ok(Lowered { relation: self.relations.add(relation, columns)?, columns: input.columns.clone() })
    }

    fn aggregate(&mut self, aggregate: &Aggregate) -> Result<Lowered> {
        let uid = self.block_uid("aggregate");
        let mut input = self.plan(&aggregate.input)?;
        let schema = aggregate.input.schema();
        let mut written = Vec::new();
        for expr in &aggregate.group_expr {
            if matches!(expr, Expr::GroupingSet(_)) {
                return Err(refuse::grouping_sets());
            }
            refuse::check_expression(expr, schema)?;
            written.push(expr.clone());
        }
        let calls = aggregate.aggr_expr.iter().map(|expr| aggregate_call(expr, schema)).collect::<Result<Vec<_>>>()?;
        for call in &calls {
            written.extend(call.argument.iter().chain(&call.filter).cloned());
        }
        if self.repeats_work(&written, &input, schema) {
            input = self.compute(&input)?;
        }

        let group = aggregate
            .group_expr
            .iter()
            .map(|expr| self.key_expr(substitute(expr, &input.columns, schema)?, input.relation))
            .collect::<Result<Vec<_>>>()?;
        let calls = calls
            .into_iter()
            .map(|call| {
                let argument =
                    call.argument.map(|expr| self.key_expr(substitute(&expr, &input.columns, schema)?, input.relation)).transpose()?;
                let filter = call.filter.map(|expr| substitute(&expr, &input.columns, schema)).transpose()?;
                Ok(CallExprs { argument, filter, ..call })
            })
            .collect::<Result<Vec<_>>>()?;

        let (relation, group_names, call_names) =
            self.group(input.relation, &group, &calls, aggregate.group_expr.is_empty(), false, uid)?;
        let columns = group_names
            .iter()
            .chain(&call_names)
            .zip(aggregate.schema.fields())
            .map(|(name, field)| self.column_as(relation, name, field.data_type()))
            .collect::<Result<Vec<_>>>()?;
        if columns.len() != aggregate.schema.fields().len() {
            return Err(Error::internal("an aggregate has other columns than its schema says"));
        }
        Ok(Lowered { relation, columns })
    }

    /// `SELECT DISTINCT`, and `UNION` without ALL: a GROUP BY of all columns without calls.
    fn distinct(&mut self, plan: &LogicalPlan) -> Result<Lowered> {
        let uid = self.block_uid("distinct");
        let input = self.plan(plan)?;
        if input.columns.is_empty() {
            return Err(refuse::unsupported("SELECT DISTINCT without columns is not supported"));
        }
        let group = input.columns.iter().map(|expr| self.key_expr(expr.clone(), input.relation)).collect::<Result<Vec<_>>>()?;
        let (relation, names, _) = self.group(input.relation, &group, &[], false, true, uid)?;
        let columns = names
            .iter()
            .zip(plan.schema().fields())
            .map(|(name, field)| self.column_as(relation, name, field.data_type()))
            .collect::<Result<Vec<_>>>()?;
        Ok(Lowered { relation, columns })
    }

    /// Makes an aggregate over `group` and `calls`, which are expressions over `input`, in a normal form: group columns and calls by their text, each
    /// once. How a query orders and names them changes neither the operator's uid nor its state.
    ///
    /// Returns the relation and the names of the columns that hold `group` and `calls`, in their order.
    fn group(
        &mut self,
        input: RelationId,
        group: &[Expr],
        calls: &[CallExprs],
        global: bool,
        distinct: bool,
        uid: Option<String>,
    ) -> Result<(RelationId, Vec<String>, Vec<String>)> {
        let mut keys = different(group);
        keys.sort_by_cached_key(column_name);
        // A relation has a column: one row over nothing counts something.
        let mut distinct_calls: Vec<CallExprs> = Vec::new();
        if keys.is_empty() && calls.is_empty() {
            distinct_calls.push(CallExprs { function: AggregateFunction::Count, argument: None, distinct: false, filter: None });
        }
        distinct_calls.extend(different(calls));
        distinct_calls.sort_by_cached_key(CallExprs::text);

        // The input: group columns, then arguments and filters; each as it is computed, under the name of what is written.
        let mut inputs = keys.clone();
        let mut positions = places(&keys);
        let mut written: Vec<String> = keys.iter().map(column_name).collect();
        for call in &distinct_calls {
            let argument = call.computed_argument().zip(call.argument.as_ref());
            let filter = call.filter.as_ref().map(|filter| (filter.clone(), filter));
            for (expr, as_written) in argument.into_iter().chain(filter) {
                if !positions.contains_key(&expr) {
                    positions.insert(expr.clone(), inputs.len());
                    inputs.push(expr);
                    written.push(column_name(as_written));
                }
            }
        }
        let names = unique_names(written);
        let schema = self.relations.schema(input).clone();
        let columns = inputs
            .iter()
            .zip(&names)
            .map(|(expr, name)| Ok((RelationColumn { name: name.clone(), data_type: type_of(expr, &schema)? }, expr.clone())))
            .collect::<Result<Vec<_>>>()?;
        // What counts rows only reads them as they are.
        let input = if columns.is_empty() { input } else { self.calc(input, columns)? };

        let name_of = |expr: &Expr| positions.get(expr).map(|position| names[*position].clone());
        let mut output_names: Vec<String> = names[..keys.len()].to_vec();
        output_names.extend(distinct_calls.iter().map(|call| shorten(call.text())));
        let output_names = unique_names(output_names);
        let mut columns: Vec<RelationColumn> = self.relations.columns(input)[..keys.len()].to_vec();
        let mut planned = Vec::new();
        for (call, name) in distinct_calls.iter().zip(&output_names[keys.len()..]) {
            let argument = call.computed_argument().as_ref().and_then(&name_of);
            let argument_type = match &argument {
                Some(name) => Some(self.relations.columns(input)[self.relations.position(input, name)?].data_type.clone()),
                None => None,
            };
            columns.push(RelationColumn { name: name.clone(), data_type: output_type(call.function, argument_type.as_ref())? });
            planned.push(Call {
                function: call.function,
                argument,
                distinct: call.distinct,
                filter: call.filter.as_ref().and_then(&name_of),
            });
        }
        let relation =
            self.relations.add(Relation::Aggregate { input, group_columns: keys.len(), calls: planned, global, distinct, uid }, columns)?;

        let lost = || Error::internal("the planner lost a group column or an aggregate call");
        let group_names = group.iter().map(|expr| name_of(expr).ok_or_else(lost)).collect::<Result<Vec<_>>>()?;
        let call_positions = places(&distinct_calls);
        let call_names = calls
            .iter()
            .map(|call| call_positions.get(call).map(|position| output_names[keys.len() + position].clone()).ok_or_else(lost))
            .collect::<Result<Vec<_>>>()?;
        Ok((relation, group_names, call_names))
    }

    fn union(&mut self, union: &Union) -> Result<Lowered> {
        let mut inputs = Vec::new();
        let mut names: Vec<String> = Vec::new();
        let mut types: Vec<DataType> = Vec::new();
        for plan in &union.inputs {
            let branch = self.outside_block(plan)?;
            if inputs.is_empty() {
                names = unique_names(branch.columns.iter().map(column_name).collect());
                for (field, name) in union.schema.fields().iter().zip(&names) {
                    types.push(canonical(field.data_type(), &format!("column \"{name}\""))?);
                }
            }
            if branch.columns.is_empty() {
                return Err(refuse::unsupported("a UNION without columns is not supported"));
            }
            if branch.columns.len() != types.len() {
                return Err(Error::internal("the branches of a UNION have different numbers of columns"));
            }
            let columns = branch
                .columns
                .iter()
                .zip(names.iter().zip(&types))
                .map(|(expr, (name, data_type))| {
                    let expr = self.typed_as(expr.clone(), branch.relation, data_type)?;
                    Ok((RelationColumn { name: name.clone(), data_type: data_type.clone() }, expr))
                })
                .collect::<Result<Vec<_>>>()?;
            inputs.push(self.calc(branch.relation, columns)?);
        }
        let columns = names.iter().zip(&types).map(|(name, ty)| RelationColumn { name: name.clone(), data_type: ty.clone() }).collect();
        let relation = self.relations.add(Relation::Union { inputs }, columns)?;
        let columns = names
            .iter()
            .zip(union.schema.fields())
            .map(|(name, field)| self.column_as(relation, name, field.data_type()))
            .collect::<Result<Vec<_>>>()?;
        Ok(Lowered { relation, columns })
    }

    /// The rows of the input, each as often as an array has elements.
    fn unnest(&mut self, unnest: &Unnest) -> Result<Lowered> {
        let input = self.plan(&unnest.input)?;
        let ([(array, list)], []) = (unnest.list_type_columns.as_slice(), unnest.struct_type_columns.as_slice()) else {
            return Err(Error::internal("UNNEST of other than one array"));
        };
        let outer = match unnest.options.null_handling {
            NullHandling::Drop => false,
            NullHandling::PreserveAndExpandEmpty => true,
            NullHandling::Preserve => return Err(Error::internal("UNNEST that tells NULL from empty arrays")),
        };
        if list.depth != 1 {
            return Err(Error::internal("UNNEST of several dimensions"));
        }
        // The array is a column of its own, also where the query reads it besides.
        let mut names: Vec<String> = input.columns.iter().map(column_name).collect();
        names[*array] = format!("unnest({})", names[*array]);
        let names = unique_names(names);
        let columns = self.canonical_columns(&input, &names)?;
        let mut types: Vec<DataType> = columns.iter().map(|(column, _)| column.data_type.clone()).collect();
        types[*array] = match &types[*array] {
            DataType::List(element) => element.data_type().clone(),
            other => return Err(Error::internal(format!("UNNEST of {other}"))),
        };
        let input = self.calc(input.relation, columns)?;
        let columns = names.iter().zip(types).map(|(name, data_type)| RelationColumn { name: name.clone(), data_type }).collect();
        let relation = self.relations.add(Relation::Unnest { input, array: names[*array].clone(), outer }, columns)?;
        let columns = names
            .iter()
            .zip(unnest.schema.fields())
            .map(|(name, field)| self.column_as(relation, name, field.data_type()))
            .collect::<Result<Vec<_>>>()?;
        Ok(Lowered { relation, columns })
    }

    /// `SELECT 1` without FROM reads one row. It gets a column, for no relation is without.
    fn empty(&mut self, empty: &EmptyRelation) -> Result<Lowered> {
        let rows = if empty.produce_one_row { vec![vec![ScalarValue::Boolean(Some(true))]] } else { Vec::new() };
        let mut columns = vec![RelationColumn { name: "row".to_string(), data_type: DataType::Boolean }];
        if !empty.schema.fields().is_empty() {
            if empty.produce_one_row {
                return Err(Error::internal("an empty relation of one row has columns"));
            }
            let names = unique_names(empty.schema.fields().iter().map(|field| field.name().clone()).collect());
            columns = names
                .into_iter()
                .zip(empty.schema.fields())
                .map(|(name, field)| Ok(RelationColumn { data_type: canonical(field.data_type(), &format!("column \"{name}\""))?, name }))
                .collect::<Result<Vec<_>>>()?;
        }
        let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
        let relation = self.relations.add(Relation::Values { rows }, columns)?;
        let columns = names
            .iter()
            .zip(empty.schema.fields())
            .map(|(name, field)| self.column_as(relation, name, field.data_type()))
            .collect::<Result<Vec<_>>>()?;
        Ok(Lowered { relation, columns })
    }

    fn values(&mut self, values: &Values) -> Result<Lowered> {
        let mut columns = Vec::new();
        for field in values.schema.fields() {
            columns.push(RelationColumn {
                name: field.name().clone(),
                data_type: canonical(field.data_type(), &format!("column \"{}\"", field.name()))?,
            });
        }
        let rows = values
            .values
            .iter()
            .map(|row| row.iter().zip(&columns).map(|(expr, column)| constant(expr, &column.data_type)).collect::<Result<Vec<_>>>())
            .collect::<Result<Vec<_>>>()?;
        let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
        let relation = self.relations.add(Relation::Values { rows }, columns)?;
        let columns = names
            .iter()
            .zip(values.schema.fields())
            .map(|(name, field)| self.column_as(relation, name, field.data_type()))
            .collect::<Result<Vec<_>>>()?;
        Ok(Lowered { relation, columns })
    }

    /// A calc over `input` without a filter.
    fn calc(&mut self, input: RelationId, columns: Vec<(RelationColumn, Expr)>) -> Result<RelationId> {
        let (columns, projection) = columns.into_iter().unzip();
        self.relations.add(Relation::Calc { input, filter: None, projection }, columns)
    }

    /// Computes the columns of `lowered` in a calc of their own.
    fn compute(&mut self, lowered: &Lowered) -> Result<Lowered> {
        let distinct = different(&lowered.columns);
        let names = unique_names(distinct.iter().map(column_name).collect());
        let columns = self.canonical_columns(&Lowered { relation: lowered.relation, columns: distinct.clone() }, &names)?;
        let relation = self.calc(lowered.relation, columns)?;
        let schema = self.relations.schema(lowered.relation).clone();
        let positions = places(&distinct);
        let columns = lowered
            .columns
            .iter()
            .map(|expr| {
                let position = *positions.get(expr).ok_or_else(|| Error::internal("the planner lost a column"))?;
                self.column_as(relation, &names[position], &type_of(expr, &schema)?)
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Lowered { relation, columns })
    }

    /// True if putting the columns of `input` into `exprs` would compute one of them more than once.
    fn repeats_work(&self, exprs: &[Expr], input: &Lowered, schema: &DFSchema) -> bool {
        let mut counts: HashMap<usize, usize> = HashMap::new();
        for expr in exprs {
            for (column, count) in expr.column_refs_counts() {
                if let Some(position) = schema.maybe_index_of_column(column) {
                    *counts.entry(position).or_default() += count;
                }
            }
        }
        counts.into_iter().any(|(position, count)| count > 1 && !is_cheap(&input.columns[position]))
    }

    /// Each column of `lowered` under a name and with the type that an edge may carry.
    fn canonical_columns(&self, lowered: &Lowered, names: &[String]) -> Result<Vec<(RelationColumn, Expr)>> {
        let schema = self.relations.schema(lowered.relation);
        lowered
            .columns
            .iter()
            .zip(names)
            .map(|(expr, name)| {
                let from = type_of(expr, schema)?;
                let data_type = canonical(&from, &format!("column \"{name}\""))?;
                let expr = cast(expr.clone(), &from, &data_type, schema)?;
                Ok((RelationColumn { name: name.clone(), data_type }, expr))
            })
            .collect()
    }

    /// `expr` as a group key or an argument: of a type that state may hold.
    fn key_expr(&self, expr: Expr, input: RelationId) -> Result<Expr> {
        let schema = self.relations.schema(input);
        let from = type_of(&expr, schema)?;
        let data_type = canonical(&from, &format!("expression {}", column_name(&expr)))?;
        cast(expr, &from, &data_type, schema)
    }

    fn typed_as(&self, expr: Expr, relation: RelationId, data_type: &DataType) -> Result<Expr> {
        let schema = self.relations.schema(relation);
        let from = type_of(&expr, schema)?;
        cast(expr, &from, data_type, schema)
    }

    /// Column `name` of `relation`, read as `data_type`.
    fn column_as(&self, relation: RelationId, name: &str, data_type: &DataType) -> Result<Expr> {
        self.relations.position(relation, name)?;
        self.typed_as(column_expr(name), relation, data_type)
    }
}

/// `items` without those that are there already, in their order.
fn different<T: Clone + Eq + Hash>(items: &[T]) -> Vec<T> {
    let mut seen = HashSet::with_capacity(items.len());
    items.iter().filter(|item| seen.insert(*item)).cloned().collect()
}

/// Where each of `items`, which are different, stands.
fn places<T: Clone + Eq + Hash>(items: &[T]) -> HashMap<T, usize> {
    items.iter().cloned().zip(0..).collect()
}

/// A call as expressions over the input.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct CallExprs {
    function: AggregateFunction,
    argument: Option<Expr>,
    distinct: bool,
    filter: Option<Expr>,
}

impl CallExprs {
    /// The argument, computed only for rows that the filter lets through where it could fail on others.
    fn computed_argument(&self) -> Option<Expr> {
        let argument = self.argument.clone()?;
        Some(match &self.filter {
            Some(filter) if can_fail(&argument) => Expr::Case(Case::new(None, vec![(Box::new(filter.clone()), Box::new(argument))], None)),
            _ => argument,
        })
    }

    fn text(&self) -> String {
        let argument = match &self.argument {
            Some(expr) => column_name(expr),
            None => "*".to_string(),
        };
        let filter = match &self.filter {
            Some(expr) => format!(" FILTER (WHERE {})", column_name(expr)),
            None => String::new(),
        };
        format!("{}({}{argument}){filter}", self.function.name(), if self.distinct { "DISTINCT " } else { "" })
    }
}

/// What an aggregate expression of the plan calls, over the plan's columns.
fn aggregate_call(expr: &Expr, schema: &DFSchema) -> Result<CallExprs> {
    let AggregateExpr { func, params } = match expr {
        Expr::Alias(alias) => return aggregate_call(&alias.expr, schema),
        Expr::AggregateFunction(call) => call,
        other => return Err(Error::internal(format!("{other} is no aggregate function"))),
    };
    let name = func.name().to_lowercase();
    let function = match name.as_str() {
        "count" => AggregateFunction::Count,
        "sum" => AggregateFunction::Sum,
        "min" => AggregateFunction::Min,
        "max" => AggregateFunction::Max,
        _ => return Err(refuse::aggregate_function(&name)),
    };
    if !params.order_by.is_empty() {
        return Err(refuse::unsupported(&format!("ORDER BY in {name}() is not supported"))
            .with_hint("The order of its input does not change its result."));
    }
    if params.null_treatment.is_some() {
        return Err(refuse::unsupported(&format!("IGNORE NULLS and RESPECT NULLS in {name}() are not supported")));
    }
    for expr in params.args.iter().chain(params.filter.as_deref()) {
        refuse::check_expression(expr, schema)?;
    }
    let argument = match params.args.as_slice() {
        [] if function == AggregateFunction::Count => None,
        // count(*) arrives as count(1).
        [Expr::Literal(value, _)] if function == AggregateFunction::Count && !params.distinct && !value.is_null() => None,
        [argument] => Some(argument.clone()),
        _ => return Err(refuse::unsupported(&format!("{name}() of {} arguments is not supported", params.args.len()))),
    };
    let distinct = params.distinct && matches!(function, AggregateFunction::Count | AggregateFunction::Sum);
    let filter = params.filter.as_deref().filter(|filter| !matches!(filter, Expr::Literal(ScalarValue::Boolean(Some(true)), _))).cloned();
    Ok(CallExprs { function, argument, distinct, filter })
}

/// The type of a call's result, see [`crate::graph::AggregateCall::output_type`].
fn output_type(function: AggregateFunction, argument: Option<&DataType>) -> Result<DataType> {
    Ok(match (function, argument) {
        (AggregateFunction::Count, _) => DataType::Int64,
        (AggregateFunction::Min | AggregateFunction::Max, Some(argument)) => argument.clone(),
        (AggregateFunction::Sum, Some(DataType::Int32)) => DataType::Int64,
        (AggregateFunction::Sum, Some(DataType::Int64)) => DataType::Decimal128(38, 0),
        (AggregateFunction::Sum, Some(DataType::Decimal128(_, scale))) => DataType::Decimal128(38, *scale),
        (AggregateFunction::Sum, Some(DataType::Float64)) => DataType::Float64,
        (_, Some(other)) => {
            return Err(Error::new(
                SqlState::UNDEFINED_FUNCTION,
                format!("function {}({}) does not exist", function.name(), super::text::type_text(other)),
            ));
        }
        (_, None) => return Err(Error::internal(format!("{} has no argument", function.name()))),
    })
}

/// `expr`, which is over a plan's schema, over the relation whose expressions are `columns`.
fn substitute(expr: &Expr, columns: &[Expr], schema: &DFSchema) -> Result<Expr> {
    // A column that was put in is final: it must not be looked up again, so the walk replaces leaves only and goes bottom up.
    expr.clone()
        .transform_up(|expr| {
            Ok(match expr {
                Expr::Column(column) => Transformed::yes(columns[schema.index_of_column(&column)?].clone()),
                Expr::Alias(alias) => Transformed::yes(*alias.expr),
                other => Transformed::no(other),
            })
        })
        .map(|transformed| transformed.data)
        .map_err(|e| Error::internal(format!("expression {expr} could not be placed: {e}")))
}

pub(super) fn column_expr(name: &str) -> Expr {
    Expr::Column(Column::new_unqualified(name))
}

pub(super) fn type_of(expr: &Expr, schema: &DFSchema) -> Result<DataType> {
    expr.get_type(schema).map_err(|e| Error::internal(format!("expression {expr} has no type: {e}")))
}

/// `expr` of type `from` as a `to`.
fn cast(expr: Expr, from: &DataType, to: &DataType, schema: &DFSchema) -> Result<Expr> {
    if from == to {
        return Ok(expr);
    }
    // A text that was only put into another layout goes back to what it was.
    if let Expr::Cast(inner) = &expr
        && is_text(from)
        && is_text(to)
        && type_of(&inner.expr, schema)? == *to
    {
        return Ok((*inner.expr).clone());
    }
    Ok(Expr::Cast(Cast::new(Box::new(expr), to.clone())))
}

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// True if computing `expr` twice costs nothing worth a node.
pub(super) fn is_cheap(expr: &Expr) -> bool {
    match expr {
        Expr::Column(_) | Expr::Literal(..) => true,
        Expr::ScalarFunction(function) if function.name() == "get_field" => function.args.iter().all(is_cheap),
        _ => false,
    }
}

/// The value of an expression without columns, as a `data_type`.
fn constant(expr: &Expr, data_type: &DataType) -> Result<ScalarValue> {
    let schema = DFSchema::empty();
    refuse::check_expression(expr, &schema)?;
    let evaluate = || {
        let value = match expr {
            Expr::Literal(value, _) => value.clone(),
            _ => {
                let physical = create_physical_expr(expr, &schema, &Default::default(), &PhysicalPlanningContext::default())?;
                let row = datafusion::arrow::record_batch::RecordBatch::try_new_with_options(
                    schema.inner().clone(),
                    Vec::new(),
                    &datafusion::arrow::record_batch::RecordBatchOptions::new().with_row_count(Some(1)),
                )?;
                let array = physical.evaluate(&row)?.into_array(1)?;
                ScalarValue::try_from_array(&array, 0)?
            }
        };
        value.cast_to(data_type)
    };
    evaluate().map_err(|e| super::evaluation_error(&e))
}
