//! From relations to the stream graph: columns that nobody reads go, and each node gets its key, changelog mode, distribution, uid and bound.
//!
//! # Distribution
//! An operator that looks at rows by key must get all rows of a key in the subtask that owns the key's key group, or its state could not be rescaled. So an
//! edge into an aggregate is `Hash(group columns)`, and one into the rows of a view `Hash(upsert key)`.
//!
//! Such an edge is `Forward` instead when, and only when, its rows provably stand there already: they left an aggregate whose group columns are those very
//! columns in the same order, and came here through calcs that pass all of them on and through unions all of whose inputs are so distributed. The same
//! columns in another order, or a part of them, hash differently and do not count. Scans promise nothing about where their rows stand.
//!
//! # Invariants
//! - Every node has at least one column; except scans of connector tables of which nobody reads one, and what passes on nothing but the number of their rows.
//!   A record of a file may be bad in a column, and then a row that is only counted must not depend on it.
//! - A scan of each object occurs once, and reads the columns that somebody reads.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, new_empty_array};
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Expr;
use weir_catalog::{Catalog, ChangelogMode, Error, JobKind, Object, ObjectId, Result, SqlState};

use super::Target;
use super::lower::{column_expr, is_cheap};
use super::relation::{Call, Relation, RelationColumn, RelationId, Relations, arrow_schema, df_schema};
use crate::binder::can_fail;
use crate::graph::{AggregateCall, AggregateFunction, Distribution, Edge, Node, NodeId, NodeOp, StreamGraph};

/// The graph whose result is the relation `root`.
pub(super) fn emit(relations: &Relations, root: RelationId, target: &Target, catalog: &Catalog) -> Result<StreamGraph> {
    let order = relations.topological(root);
    let required = required_columns(relations, root, &order, catalog);
    let mut emitter =
        Emitter { relations, required, catalog, nodes: Vec::new(), partitioning: Vec::new(), placed: HashMap::new(), explicit: Vec::new() };
    for id in order {
        let node = emitter.place(id)?;
        emitter.placed.insert(id, node);
    }
    let result = emitter.placed[&root];
    emitter.root(result, target);
    let Emitter { mut nodes, explicit, .. } = emitter;
    number_uids(&mut nodes, &explicit)?;
    Ok(StreamGraph { nodes })
}

/// The relations that can give rows without columns: scans of connector tables, and calcs and unions over nothing else.
fn without_columns(relations: &Relations, order: &[RelationId], catalog: &Catalog) -> HashSet<RelationId> {
    let mut found = HashSet::new();
    for &id in order {
        let can = match relations.relation(id) {
            Relation::Scan { object } => matches!(catalog.get_id(*object).map(AsRef::as_ref), Some(Object::ConnectorTable(_))),
            Relation::Calc { input, .. } => found.contains(input),
            Relation::Union { inputs } => inputs.iter().all(|input| found.contains(input)),
            Relation::Values { .. } | Relation::Aggregate { .. } | Relation::Unnest { .. } => false,
        };
        if can {
            found.insert(id);
        }
    }
    found
}

/// The positions of the columns that somebody reads, by relation.
fn required_columns(
    relations: &Relations,
    root: RelationId,
    order: &[RelationId],
    catalog: &Catalog,
) -> HashMap<RelationId, BTreeSet<usize>> {
    let without_columns = without_columns(relations, order, catalog);
    let mut required: HashMap<RelationId, BTreeSet<usize>> = order.iter().map(|&id| (id, BTreeSet::new())).collect();
    required.insert(root, (0..relations.columns(root).len()).collect());
    for &id in order.iter().rev() {
        let columns = relations.columns(id);
        let mut own = required.remove(&id).unwrap_or_default();
        let mut names_read: Vec<(RelationId, String)> = Vec::new();
        match relations.relation(id) {
            Relation::Scan { .. } | Relation::Values { .. } => {
                if own.is_empty() && !without_columns.contains(&id) {
                    own.insert(columns.iter().position(|column| column.data_type.is_primitive()).unwrap_or(0));
                }
            }
            Relation::Calc { input, filter, projection } => {
                if own.is_empty() && !without_columns.contains(&id) {
                    own.insert(projection.iter().position(is_cheap).unwrap_or(0));
                }
                for expr in own.iter().map(|&position| &projection[position]).chain(filter) {
                    names_read.extend(expr.column_refs().into_iter().map(|column| (*input, column.name.clone())));
                }
                // An expression that fails names the row on which it does by its key.
                if own.iter().map(|&position| &projection[position]).chain(filter).any(can_fail) {
                    let key = primary_key(relations.relation(*input), catalog);
                    names_read.extend(key.iter().map(|&column| (*input, relations.columns(*input)[column].name.clone())));
                }
            }
            Relation::Aggregate { input, group_columns, calls, .. } => {
                own.extend(0..*group_columns);
                if own.is_empty() {
                    own.insert(0);
                }
                names_read.extend(columns[..*group_columns].iter().map(|column| (*input, column.name.clone())));
                for (_, call) in calls.iter().enumerate().filter(|(position, _)| own.contains(&(group_columns + position))) {
                    names_read.extend(call.argument.iter().chain(&call.filter).map(|name| (*input, name.clone())));
                }
            }
            Relation::Unnest { input, array, .. } => {
                if own.is_empty() {
                    own.insert(columns.iter().position(|column| column.name == *array).unwrap_or(0));
                }
                names_read.push((*input, array.clone()));
                names_read.extend(own.iter().map(|&position| (*input, columns[position].name.clone())));
            }
            Relation::Union { inputs } => {
                if own.is_empty() && !without_columns.contains(&id) {
                    own.insert(0);
                }
                for input in inputs {
                    names_read.extend(own.iter().map(|&position| (*input, columns[position].name.clone())));
                }
            }
        }
        for (input, name) in names_read {
            if let Ok(position) = relations.position(input, &name) {
                required.entry(input).or_default().insert(position);
            }
        }
        required.insert(id, own);
    }
    required
}

/// The columns of the primary key of a stored table; none of anything else.
fn primary_key<'c>(relation: &Relation, catalog: &'c Catalog) -> &'c [usize] {
    match relation {
        Relation::Scan { object } => match catalog.get_id(*object).map(Arc::as_ref) {
            Some(Object::StoredTable(table)) => table.primary_key.as_deref().unwrap_or_default(),
            _ => &[],
        },
        _ => &[],
    }
}

struct Emitter<'a> {
    relations: &'a Relations,
    required: HashMap<RelationId, BTreeSet<usize>>,
    catalog: &'a Catalog,
    nodes: Vec<Node>,
    /// For each node, the columns whose key group decides in which subtask a row leaves it, if that is known.
    partitioning: Vec<Option<Vec<usize>>>,
    placed: HashMap<RelationId, NodeId>,
    /// Nodes whose uid a hint gave.
    explicit: Vec<NodeId>,
}

impl Emitter<'_> {
    fn place(&mut self, id: RelationId) -> Result<NodeId> {
        let columns: Vec<RelationColumn> =
            self.required[&id].iter().map(|&position| self.relations.columns(id)[position].clone()).collect();
        match self.relations.relation(id) {
            Relation::Scan { object } => self.scan(*object, id, &columns),
            Relation::Values { rows } => self.values(rows, id, &columns),
            Relation::Calc { input, filter, projection } => {
                let input = self.placed[input];
                let projection = self.required[&id].iter().map(|&position| projection[position].clone()).collect();
                self.calc(input, filter.clone(), projection, &columns)
            }
            Relation::Aggregate { input, group_columns, calls, global, distinct, uid } => {
                let calls: Vec<&Call> =
                    self.required[&id].iter().filter_map(|position| calls.get(position.checked_sub(*group_columns)?)).collect();
                self.aggregate(self.placed[input], *group_columns, &calls, *global, *distinct, uid.clone(), &columns)
            }
            Relation::Unnest { input, array, outer } => self.unnest(self.placed[input], array, *outer, &columns),
            Relation::Union { inputs } => {
                let inputs = inputs.iter().map(|input| self.placed[input]).collect();
                self.union(inputs, &columns)
            }
        }
    }

    fn push(&mut self, node: Node, partitioning: Option<Vec<usize>>) -> NodeId {
        self.nodes.push(node);
        self.partitioning.push(partitioning);
        self.nodes.len() - 1
    }

    fn scan(&mut self, object: ObjectId, id: RelationId, columns: &[RelationColumn]) -> Result<NodeId> {
        let projection: Vec<usize> = self.required[&id].iter().copied().collect();
        let object = self.catalog.get_id(object).ok_or_else(|| Error::internal(format!("object {object} is not in the catalog")))?;
        // Where the key's columns went; none, if one is not read.
        let project = |key: &[usize]| {
            key.iter().map(|column| projection.iter().position(|projected| projected == column)).collect::<Option<Vec<usize>>>()
        };
        let (op, upsert_key, changelog, bound) = match object.as_ref() {
            Object::StoredTable(table) => (
                NodeOp::TableScan { table: table.id, projection: projection.clone() },
                table.primary_key.as_deref().and_then(project),
                // Nothing keeps a user from writing UPDATE or DELETE tomorrow.
                ChangelogMode::Retract,
                "its position in the engine log",
            ),
            Object::ConnectorTable(table) => (
                NodeOp::ConnectorScan { table: table.id, projection: projection.clone() },
                None,
                table.changelog(),
                "the offset of each split",
            ),
            Object::Job(job) => match &job.kind {
                JobKind::MaterializedView { key, changelog } => (
                    NodeOp::ViewScan { view: job.id, projection: projection.clone() },
                    key.as_deref().and_then(project),
                    // A view sends what changed in its rows, whole, also where its own input left the old rows out.
                    if *changelog == ChangelogMode::Append { ChangelogMode::Append } else { ChangelogMode::Retract },
                    "the barrier that it has read up to",
                ),
                _ => return Err(Error::internal(format!("job \"{}\" has no rows", job.name))),
            },
            Object::View(view) => return Err(Error::internal(format!("view \"{}\" was not replaced by its query", view.name))),
        };
        let node = Node {
            id: self.nodes.len(),
            op,
            inputs: Vec::new(),
            schema: arrow_schema(columns),
            uid: Some(format!("source({})", object.name())),
            uid_positional: false,
            upsert_key,
            changelog,
            bound: bound.to_string(),
        };
        Ok(self.push(node, None))
    }

    fn values(&mut self, rows: &[Vec<ScalarValue>], id: RelationId, columns: &[RelationColumn]) -> Result<NodeId> {
        let schema = arrow_schema(columns);
        let arrays = self.required[&id]
            .iter()
            .zip(columns)
            .map(|(&position, column)| {
                if rows.is_empty() {
                    return Ok(new_empty_array(&column.data_type));
                }
                ScalarValue::iter_to_array(rows.iter().map(|row| row[position].clone()))
            })
            .collect::<datafusion::common::Result<Vec<ArrayRef>>>()
            .map_err(|e| Error::internal(format!("constant rows could not be built: {e}")))?;
        let rows =
            RecordBatch::try_new(schema.clone(), arrays).map_err(|e| Error::internal(format!("constant rows could not be built: {e}")))?;
        let upsert_key = (rows.num_rows() <= 1).then(Vec::new);
        let node = Node {
            id: self.nodes.len(),
            op: NodeOp::Values { rows },
            inputs: Vec::new(),
            schema,
            uid: None,
            uid_positional: false,
            upsert_key,
            changelog: ChangelogMode::Append,
            bound: String::new(),
        };
        Ok(self.push(node, None))
    }

    fn calc(&mut self, input: NodeId, filter: Option<Expr>, projection: Vec<Expr>, columns: &[RelationColumn]) -> Result<NodeId> {
        let below = &self.nodes[input];
        let schema = arrow_schema(columns);
        let passed: Vec<Option<usize>> = projection
            .iter()
            .map(|expr| match expr {
                Expr::Column(column) => below.schema.index_of(&column.name).ok(),
                _ => None,
            })
            .collect();
        let is_identity = schema == below.schema && passed.iter().enumerate().all(|(position, from)| *from == Some(position));
        if filter.is_none() && is_identity {
            return Ok(input);
        }
        let follow =
            |key: &Vec<usize>| key.iter().map(|column| passed.iter().position(|from| *from == Some(*column))).collect::<Option<Vec<_>>>();
        let upsert_key = below.upsert_key.as_ref().and_then(follow);
        let partitioning = self.partitioning[input].as_ref().and_then(follow);
        let node = Node {
            id: self.nodes.len(),
            op: NodeOp::Calc { input: Arc::new(df_schema(&below.schema)?), filter, projection },
            inputs: vec![Edge { from: input, distribution: Distribution::Forward }],
            schema,
            uid: None,
            uid_positional: false,
            upsert_key,
            changelog: below.changelog,
            bound: String::new(),
        };
        Ok(self.push(node, partitioning))
    }

    #[allow(clippy::too_many_arguments)]
    fn aggregate(
        &mut self,
        input: NodeId,
        group_columns: usize,
        calls: &[&Call],
        global: bool,
        distinct: bool,
        explicit_uid: Option<String>,
        columns: &[RelationColumn],
    ) -> Result<NodeId> {
        let below = &self.nodes[input];
        let group_names: Vec<&str> = columns[..group_columns].iter().map(|column| column.name.as_str()).collect();
        for (position, name) in group_names.iter().enumerate() {
            if below.schema.field(position).name() != name {
                return Err(Error::internal("the input of an aggregate does not begin with its group columns"));
            }
        }
        let position =
            |name: &String| below.schema.index_of(name).map_err(|_| Error::internal(format!("the planner lost column \"{name}\"")));
        let planned = calls
            .iter()
            .zip(&columns[group_columns..])
            .map(|(call, column)| {
                Ok(AggregateCall {
                    function: call.function,
                    argument: call.argument.as_ref().map(position).transpose()?,
                    distinct: call.distinct,
                    filter: call.filter.as_ref().map(position).transpose()?,
                    output_type: column.data_type.clone(),
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let keys = group_names.join(", ");
        let changelog =
            if planned.is_empty() && below.changelog == ChangelogMode::Append { ChangelogMode::Append } else { ChangelogMode::Retract };
        let bound = aggregate_bound(&keys, global, calls, below.changelog);
        let key: Vec<usize> = (0..group_columns).collect();
        let distribution = self.distribution(input, &key);
        let uid = explicit_uid.clone().unwrap_or_else(|| format!("{}({keys})", if distinct { "distinct" } else { "aggregate" }));
        let node = Node {
            id: self.nodes.len(),
            op: NodeOp::Aggregate { group_columns, calls: planned, global },
            inputs: vec![Edge { from: input, distribution }],
            schema: arrow_schema(columns),
            uid: Some(uid),
            uid_positional: false,
            upsert_key: Some(key.clone()),
            changelog,
            bound,
        };
        let id = self.push(node, Some(key));
        if explicit_uid.is_some() {
            self.explicit.push(id);
        }
        Ok(id)
    }

    fn unnest(&mut self, input: NodeId, array: &str, outer: bool, columns: &[RelationColumn]) -> Result<NodeId> {
        let below = &self.nodes[input];
        let position = |name: &str| below.schema.index_of(name).map_err(|_| Error::internal(format!("the planner lost column \"{name}\"")));
        let output = columns
            .iter()
            .map(|column| if column.name == array { Ok(None) } else { position(&column.name).map(Some) })
            .collect::<Result<Vec<_>>>()?;
        // Rows stay in the subtask where they are.
        let follow =
            |key: &Vec<usize>| key.iter().map(|column| output.iter().position(|from| *from == Some(*column))).collect::<Option<_>>();
        let partitioning = self.partitioning[input].as_ref().and_then(follow);
        let node = Node {
            id: self.nodes.len(),
            op: NodeOp::Unnest { array: position(array)?, output, outer },
            inputs: vec![Edge { from: input, distribution: Distribution::Forward }],
            schema: arrow_schema(columns),
            uid: None,
            uid_positional: false,
            upsert_key: None,
            changelog: below.changelog,
            bound: String::new(),
        };
        Ok(self.push(node, partitioning))
    }

    fn union(&mut self, inputs: Vec<NodeId>, columns: &[RelationColumn]) -> Result<NodeId> {
        let schema = arrow_schema(columns);
        let mut edges = Vec::new();
        let mut changelog = ChangelogMode::Append;
        let mut partitionings = Vec::new();
        for input in inputs {
            // An input that others read too may have more columns.
            let input = if self.nodes[input].schema == schema {
                input
            } else {
                let projection = columns.iter().map(|column| column_expr(&column.name)).collect();
                self.calc(input, None, projection, columns)?
            };
            if self.nodes[input].changelog != ChangelogMode::Append {
                changelog = ChangelogMode::Retract;
            }
            partitionings.push(self.partitioning[input].clone());
            edges.push(Edge { from: input, distribution: Distribution::Forward });
        }
        let partitioning =
            partitionings.first().cloned().flatten().filter(|first| partitionings.iter().all(|other| other.as_ref() == Some(first)));
        let node = Node {
            id: self.nodes.len(),
            op: NodeOp::Union,
            inputs: edges,
            schema,
            uid: None,
            uid_positional: false,
            upsert_key: None,
            changelog,
            bound: String::new(),
        };
        Ok(self.push(node, partitioning))
    }

    fn root(&mut self, input: NodeId, target: &Target) {
        let below = &self.nodes[input];
        let (schema, upsert_key, changelog) = (below.schema.clone(), below.upsert_key.clone(), below.changelog);
        let (op, uid, distribution, bound) = match target {
            Target::MaterializedView { name, .. } => {
                let columns = upsert_key.clone().unwrap_or_else(|| (0..schema.fields().len()).collect());
                let bound = match &upsert_key {
                    Some(key) if key.is_empty() => "one row".to_string(),
                    Some(_) => "one row for each key of the result".to_string(),
                    None => "one entry for each different row of the result".to_string(),
                };
                (NodeOp::Materialize, Some(format!("{name}/rows")), self.distribution(input, &columns), bound)
            }
            Target::Sink { .. } => (NodeOp::Sink, None, Distribution::Forward, String::new()),
        };
        let node = Node {
            id: self.nodes.len(),
            op,
            inputs: vec![Edge { from: input, distribution }],
            schema,
            uid,
            uid_positional: false,
            upsert_key,
            changelog,
            bound,
        };
        self.push(node, None);
    }

    /// How the rows of `input` come to the subtasks that own `key`; see the head of this file.
    fn distribution(&self, input: NodeId, key: &[usize]) -> Distribution {
        if self.partitioning[input].as_deref() == Some(key) { Distribution::Forward } else { Distribution::Hash(key.to_vec()) }
    }
}

/// What an aggregate keeps.
fn aggregate_bound(keys: &str, global: bool, calls: &[&Call], input: ChangelogMode) -> String {
    let mut bound = if global { "one row".to_string() } else { format!("one entry for each ({keys})") };
    let with_key = |argument: &str| if keys.is_empty() { format!("({argument})") } else { format!("({keys}, {argument})") };
    let mut parts: Vec<String> = Vec::new();
    for call in calls {
        let Some(argument) = &call.argument else { continue };
        let extremum = matches!(call.function, AggregateFunction::Min | AggregateFunction::Max);
        // To take back the largest value one must know the next.
        if call.distinct || (extremum && input != ChangelogMode::Append) {
            let part = format!("one for each {}", with_key(argument));
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
    }
    if !parts.is_empty() {
        bound.push_str(" and ");
        bound.push_str(&parts.join(" and "));
    }
    bound
}

/// Makes uids unique: equal derived ones are numbered in the order of the query, equal explicit ones are an error.
fn number_uids(nodes: &mut [Node], explicit: &[NodeId]) -> Result<()> {
    let uid_of = |nodes: &[Node], id: NodeId| nodes[id].uid.clone().unwrap_or_default();
    for (position, &id) in explicit.iter().enumerate() {
        let uid = uid_of(nodes, id);
        if explicit[..position].iter().any(|&other| uid_of(nodes, other) == uid) {
            return Err(Error::new(SqlState::DUPLICATE_OBJECT, format!("uid \"{uid}\" is used more than once"))
                .with_hint("Give each SELECT of the query a uid of its own."));
        }
    }
    let mut by_uid: HashMap<String, Vec<NodeId>> = HashMap::new();
    for node in nodes.iter() {
        if let Some(uid) = &node.uid {
            by_uid.entry(uid.clone()).or_default().push(node.id);
        }
    }
    for (uid, ids) in by_uid.into_iter().filter(|(_, ids)| ids.len() > 1) {
        for (number, id) in ids.into_iter().enumerate() {
            nodes[id].uid_positional = true;
            if number > 0 {
                nodes[id].uid = Some(format!("{uid}#{}", number + 1));
            }
        }
    }
    Ok(())
}

/// Type of a column as text, for descriptors.
pub(super) fn column_descriptor(name: &str, data_type: &DataType) -> (String, String) {
    (name.to_string(), super::text::type_text(data_type))
}
