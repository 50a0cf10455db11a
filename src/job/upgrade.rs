//! What a job takes over of a savepoint: by uid, which state is used, which is built anew, and from where each source goes on.
//!
//! ```text
//!   source ──▶ aggregate ──▶ calc ──▶ rows
//!     │            │                    │
//!     │            └ kept, built anew   └ kept, built anew
//!     └ goes on from the savepoint: what has changed since      (what reads it is kept)
//!       begins anew: all rows                                   (what reads it is built anew)
//! ```
//!
//! What is built anew is fed with all rows of its input: from a source that can be read again, or from the state of a kept operator before it, which sends
//! its whole result once. What is kept gets only what has changed. So all that one source or operator feeds is kept or is built anew, all of it; the one exception is
//! a source that can't be read again, which goes on where the savepoint has it, whatever it feeds. Of what is fed by both kinds see `branches`.
//!
//! # Invariants
//! - Where every source can be read again, the result is the batch answer of the present query over the present rows, whatever is kept.
//! - Kept is only what was computed from the same rows in the same way (its [`Derivation`]); where the rows can't be read again also what was not, and the verdict
//!   says so. What is fed by both kinds is kept only where the rows of those that can be read again are the same, or new.

use std::collections::{BTreeMap, BTreeSet};

use arrow::datatypes::DataType;
use weir_catalog::{Catalog, ChangelogMode, Derivation, Error, JobKind, Object, Result, SqlState};
use weir_sql::graph::{Node, NodeId, NodeOp, StreamGraph};
use weir_sql::widens;

use super::compatibility::Verdict;
use super::conversion::{WIDER, added_columns, key_conversion, longer_rows_conversion, rows_conversion, types};
use super::difference::{check_columns, check_read_columns, saved_projection};
use super::matching::{Matches, match_operators};
use crate::checkpoint::OperatorCheckpoint;
use crate::checkpoint::savepoint::{SavedOperator, Savepoint};
use crate::operators::aggregate::AggregateSpec;
use crate::sources::connector;
use crate::state::StateSize;
use crate::state::convert::{ColumnOrigin, Conversion, KeyConversion, StateConversion, ValueConversion};
use crate::state::descriptor::StateDescriptor;

mod branches;

/// Why a state is not used whose operator's uid has a number.
const NO_EQUAL: &str = "several operators of the savepoint, or of the query, have this uid but for a number, and none of the others is of the same groups of the same rows: name each with /*+ uid('...') */";

/// What becomes of one operator's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateVerdict {
    pub uid: String,
    pub operator: String,
    pub verdict: Verdict,
    pub reason: String,
    /// How much of the savepoint's state it is about.
    pub size: StateSize,
}

/// A kept operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its uid in the savepoint.
    pub saved: String,
    pub conversion: Option<Conversion>,
}

/// What a job takes over of a savepoint.
#[derive(Clone, Debug, Default)]
pub struct StatePlan {
    pub verdicts: Vec<StateVerdict>,
    /// By uid in the job.
    pub kept: BTreeMap<String, Kept>,
    /// The sources of which what has changed since is read; all others are read from their beginning.
    pub since: BTreeSet<NodeId>,
    /// Kept operators that send their whole result once.
    pub resent: BTreeSet<NodeId>,
    /// State that is lost: by uid in the savepoint.
    pub lost: Vec<String>,
    /// Operators that are built anew and whose former rows can't be read again.
    pub begin_now: Vec<String>,
}

/// What is saved of the operators of `graph`: to be compared when they are planned again.
pub fn saved_operators(graph: &StreamGraph, catalog: &Catalog) -> Result<BTreeMap<String, SavedOperator>> {
    let mut operators = BTreeMap::new();
    let mut branches = weir_sql::branch_derivations(graph, catalog)?;
    for (uid, derivation) in weir_sql::derivations(graph, catalog)? {
        let node = graph.node_by_uid(&uid).ok_or_else(|| Error::internal("an operator with a derivation is gone"))?;
        let spec = aggregate_spec(graph, node);
        let operator = |derivation: Derivation| -> Result<SavedOperator> {
            let state = spec.as_ref().map(|spec| spec.state_texts(&derivation.inputs)).transpose()?.unwrap_or_default();
            Ok(SavedOperator { derivation, state, branches: Vec::new() })
        };
        let branches = branches.remove(&uid).unwrap_or_default().into_iter().map(operator).collect::<Result<_>>()?;
        operators.insert(uid, SavedOperator { branches, ..operator(derivation)? });
    }
    Ok(operators)
}

/// What the aggregate `node` does; `None` for other nodes.
pub fn aggregate_spec(graph: &StreamGraph, node: &Node) -> Option<AggregateSpec> {
    let NodeOp::Aggregate { group_columns, calls, global } = &node.op else { return None };
    let input = &graph.nodes[node.inputs.first()?.from];
    Some(AggregateSpec {
        input: input.schema.clone(),
        output: node.schema.clone(),
        group_columns: *group_columns,
        calls: calls.clone(),
        global: *global,
        append_only_input: input.changelog == ChangelogMode::Append,
    })
}

fn is_stateful(node: &Node) -> bool {
    matches!(node.op, NodeOp::Aggregate { .. } | NodeOp::Materialize)
}

/// The sources and operators with state that feed `node` of `graph` directly.
pub fn providers(graph: &StreamGraph, node: &Node) -> BTreeSet<NodeId> {
    let mut found = BTreeSet::new();
    let mut open: Vec<NodeId> = node.inputs.iter().map(|edge| edge.from).collect();
    while let Some(id) = open.pop() {
        let node = &graph.nodes[id];
        if is_stateful(node) || node.inputs.is_empty() {
            found.insert(id);
        } else {
            open.extend(node.inputs.iter().map(|edge| edge.from));
        }
    }
    found
}

fn family(node: &Node) -> &'static str {
    match node.op {
        NodeOp::Aggregate { .. } => "aggregate",
        NodeOp::Materialize => "rows",
        _ => "source",
    }
}

/// What keeps or gives the rows of `object`, as error messages call it.
fn kind_of(object: &Object) -> String {
    match object {
        Object::ConnectorTable(table) => format!("a table of connector {}", table.connector),
        Object::StoredTable(_) => "a stored table".into(),
        object => format!("a {}", object.kind()),
    }
}

/// What could become of an operator if it stood alone.
struct Candidate {
    keep: Option<Kept>,
    verdict: Verdict,
    reason: String,
    /// What feeds it with rows that come on top of what is kept, all of them.
    added: BTreeSet<NodeId>,
}

impl Candidate {
    fn rebuilt(reason: impl Into<String>) -> Candidate {
        Candidate { keep: None, verdict: Verdict::Rebuilt, reason: reason.into(), added: BTreeSet::new() }
    }
}

struct Planner<'a> {
    saved: &'a Savepoint,
    graph: &'a StreamGraph,
    catalog: &'a Catalog,
    operators: BTreeMap<String, SavedOperator>,
    matches: Matches,
    /// Whether the savepoint is of this data folder.
    own: bool,
    /// For each node: whether all that it is computed from can be read again.
    again: Vec<bool>,
    /// Whether the root is fed with the whole result, as what is built anew is.
    whole_result: bool,
}

impl StatePlan {
    /// What a job of the data folder `engine` with the plan `graph` takes over of `saved`; `uids` names operators of the savepoint as they are called in the
    /// job.
    ///
    /// Errors: `42704` where `uids` names what is not there, `0A000` where an operator can't go on without rows that are gone.
    pub fn new(saved: &Savepoint, graph: &StreamGraph, catalog: &Catalog, uids: &[(String, String)], engine: u64) -> Result<StatePlan> {
        StatePlan::plan(saved, graph, catalog, uids, engine, false)
    }

    /// As [`StatePlan::new`], of a sink that is sent its whole result, whatever is kept before it.
    pub fn of_whole_result(
        saved: &Savepoint,
        graph: &StreamGraph,
        catalog: &Catalog,
        uids: &[(String, String)],
        engine: u64,
    ) -> Result<StatePlan> {
        StatePlan::plan(saved, graph, catalog, uids, engine, true)
    }

    fn plan(
        saved: &Savepoint,
        graph: &StreamGraph,
        catalog: &Catalog,
        uids: &[(String, String)],
        engine: u64,
        whole_result: bool,
    ) -> Result<StatePlan> {
        let operators = saved_operators(graph, catalog)?;
        let (own, matches) = (saved.engine == engine, Matches::default());
        let mut planner = Planner { saved, graph, catalog, operators, matches, own, again: Vec::new(), whole_result };
        for node in &graph.nodes {
            let again = planner.can_be_read_again(node)?;
            planner.again.push(again);
        }
        planner.matches = match_operators(saved, graph, &planner.operators, &planner.again, uids)?;
        planner.plan()
    }

    /// `55000` where state is lost and nobody said that it may be.
    pub fn check_allowed(&self, allow_non_restored_state: bool) -> Result<()> {
        if self.lost.is_empty() || allow_non_restored_state {
            return Ok(());
        }
        let uids: Vec<String> = self.lost.iter().map(|uid| format!("\"{uid}\"")).collect();
        Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("state would be lost: {}", uids.join(", ")),
        )
        .with_detail(
            self.verdicts
                .iter()
                .filter(|verdict| matches!(verdict.verdict, Verdict::Rebuilt | Verdict::Dropped))
                .map(|verdict| format!("{}: {} ({})", verdict.uid, verdict.verdict.as_str(), verdict.reason))
                .collect::<Vec<_>>()
                .join("\n"),
        )
        .with_hint(
            "Give operators their former uid with /*+ uid('...') */ (FROM SAVEPOINT also takes a map of uids), or add ALLOW NON RESTORED STATE before AS.",
        ))
    }
}

impl Planner<'_> {
    fn can_be_read_again(&self, node: &Node) -> Result<bool> {
        Ok(match &node.op {
            NodeOp::TableScan { .. } | NodeOp::ViewScan { .. } | NodeOp::Values { .. } => true,
            NodeOp::ConnectorScan { table, .. } => match self.catalog.get_id(*table).map(AsRef::as_ref) {
                Some(Object::ConnectorTable(table)) => connector::can_be_read_again(table)?,
                _ => false,
            },
            _ => node.inputs.iter().all(|edge| self.again[edge.from]),
        })
    }

    fn providers(&self, node: &Node) -> BTreeSet<NodeId> {
        providers(self.graph, node)
    }

    /// Whether the savepoint has the rows of the table or view that `node` scans, or where the connector stood; `Err`: as others than could be compared with
    /// the present ones.
    fn saved_rows(&self, node: &Node) -> std::result::Result<bool, String> {
        let (NodeOp::TableScan { table: id, projection }
        | NodeOp::ViewScan { view: id, projection }
        | NodeOp::ConnectorScan { table: id, projection }) = &node.op
        else {
            return Ok(true);
        };
        let Some(present) = self.catalog.get_id(*id) else { return Ok(false) };
        let name = present.name();
        let Some(saved) = self.saved.inputs.iter().find(|input| input.object.name() == name) else { return Ok(false) };
        let (was, is) = (kind_of(&saved.object), kind_of(present));
        if was != is {
            return Err(format!("\"{name}\" was {was} in the savepoint, and is {is}"));
        }
        // Where all rows are read again, nothing is lost by taking other columns for other rows.
        let (was, is) = (saved.object.columns(), present.columns());
        let checked = match (&saved.object, present.as_ref()) {
            (Object::ConnectorTable(before), Object::ConnectorTable(now)) => {
                let both = connector::columns_are_named(before).and_then(|before| Ok(before && connector::columns_are_named(now)?));
                let by_name = !self.again[node.id] && both.map_err(|e| e.message().to_string())?;
                if by_name { check_read_columns(name, was, is, projection) } else { check_columns(name, was, is) }
            }
            _ => saved_projection(name, was, is, projection).map(|_| ()),
        };
        checked.map_err(|e| e.message().to_string())?;
        // What reads rows that only come has no way to take back one of another view that is not in this one.
        let is_view = matches!(node.op, NodeOp::ViewScan { .. });
        if is_view && node.changelog == ChangelogMode::Append && !(self.own && saved.object.id() == *id) {
            return Err(format!("\"{name}\" is another view than in the savepoint, and its rows only come"));
        }
        Ok(true)
    }

    /// Whether what `node` is fed with, if it is built anew, is without rows that came before.
    fn begins_now(&self, node: &Node, kept: &BTreeSet<NodeId>) -> bool {
        self.providers(node).into_iter().any(|provider| {
            let provider = &self.graph.nodes[provider];
            if is_stateful(provider) { !kept.contains(&provider.id) && self.begins_now(provider, kept) } else { !self.again[provider.id] }
        })
    }

    fn saved_state(&self, node: &Node) -> Option<(&str, &SavedOperator, &OperatorCheckpoint)> {
        let uid = self.matches.saved(node.uid.as_deref()?)?;
        Some((uid, self.saved.operators.get(uid)?, self.saved.checkpoint.operators.get(uid)?))
    }

    fn candidate(&self, node: &Node) -> Result<Candidate> {
        let Some((saved_uid, saved, checkpoint)) = self.saved_state(node) else {
            let is_ambiguous = node.uid.as_deref().is_some_and(|uid| self.matches.is_ambiguous(uid));
            return Ok(Candidate::rebuilt(if is_ambiguous { NO_EQUAL } else { "there is no state with this uid" }));
        };
        let descriptor = self.saved.job.operators.iter().find(|operator| operator.uid == saved_uid);
        let was = match descriptor.map(|descriptor| descriptor.operator.as_str()) {
            Some("rows") => "rows",
            Some("source") => "source",
            _ => "aggregate",
        };
        if was != family(node) {
            return Ok(Candidate::rebuilt(format!("the operator was {was}, and is {}", family(node))));
        }
        let uid = node.uid.as_deref().unwrap_or_default();
        let planned = self.operators.get(uid).ok_or_else(|| Error::internal("an operator has no derivation"))?;
        // Whether all that it would be built anew from comes, if what is before it is kept.
        let again = self.providers(node).into_iter().all(|provider| self.gives_all(provider));
        let mut notes = Vec::new();
        let (mut added, aligned) = (BTreeSet::new(), self.aligned(node, saved, planned, again));
        let (saved, planned) = match &aligned {
            None => (saved, planned),
            Some(Err(reason)) => return Ok(Candidate::rebuilt(reason.as_str())),
            Some(Ok(aligned)) => {
                match self.added_by(node, aligned, &mut notes) {
                    Ok(providers) => added = providers,
                    Err(reason) => return Ok(Candidate::rebuilt(reason)),
                }
                (&aligned.saved, &aligned.planned)
            }
        };
        let key = |derivation: &Derivation| derivation.key.iter().map(|column| column.text.clone()).collect::<Vec<_>>();
        let keep = |conversion: Option<Conversion>| Some(Kept { saved: saved_uid.to_string(), conversion });
        let longer = if again { None } else { self.longer_rows(node, saved, planned, checkpoint)? };
        if longer.is_none() && key(&saved.derivation) != key(&planned.derivation) {
            return Ok(Candidate::rebuilt(other_key(&saved.derivation, &planned.derivation)));
        }
        if saved.derivation.relation != planned.derivation.relation {
            if again {
                return Ok(Candidate::rebuilt("it is computed from other rows"));
            }
            notes.push("it is computed from other rows from now on, those before stay as they were counted".to_string());
        }
        if let Some((conversion, new)) = longer {
            notes.push(format!("NULL in the rows that it has: {}", new.join(", ")));
            return Ok(Candidate { keep: keep(Some(conversion)), verdict: Verdict::Converted, reason: notes.join("; "), added });
        }
        match &node.op {
            NodeOp::Aggregate { .. } => {
                let conversion = self.aggregate_conversion(node, saved, planned, checkpoint, again, &mut notes)?;
                Ok(match conversion {
                    Err(reason) => Candidate::rebuilt(reason),
                    Ok(conversion) => {
                        let verdict = if conversion.is_some() { Verdict::Converted } else { Verdict::Reused };
                        Candidate { keep: keep(conversion), verdict, reason: notes.join("; "), added }
                    }
                })
            }
            _ => {
                let columns = |derivation: &Derivation| derivation.columns.iter().map(|column| column.text.clone()).collect::<Vec<_>>();
                let conversion =
                    if columns(&saved.derivation) == columns(&planned.derivation) { rows_conversion(node, checkpoint)? } else { None };
                let Some(conversion) = conversion else {
                    return Ok(Candidate::rebuilt(other_columns(&saved.derivation, &planned.derivation)));
                };
                let conversion = Some(conversion).filter(|conversion| !conversion.states.is_empty());
                if conversion.is_some() {
                    notes.push(WIDER.to_string());
                }
                let verdict = if conversion.is_some() { Verdict::Converted } else { Verdict::Reused };
                Ok(Candidate { keep: keep(conversion), verdict, reason: notes.join("; "), added })
            }
        }
    }

    /// How the rows of a view get columns that they had not, which are NULL in them, and which these are; `None` where it is something else that differs. Only where no
    /// row is ever taken back: it would be looked for with its values.
    fn longer_rows(
        &self,
        node: &Node,
        saved: &SavedOperator,
        planned: &SavedOperator,
        checkpoint: &OperatorCheckpoint,
    ) -> Result<Option<(Conversion, Vec<String>)>> {
        let has_no_key = node.upsert_key.is_none() && matches!(self.saved.job.kind, JobKind::MaterializedView { key: None, .. });
        let only_come = |node: &Node| node.inputs.iter().all(|edge| self.graph.nodes[edge.from].changelog == ChangelogMode::Append);
        if !matches!(node.op, NodeOp::Materialize) || !has_no_key || !only_come(node) {
            return Ok(None);
        }
        let Some((columns, new)) = added_columns(&saved.derivation.columns, &planned.derivation.columns) else { return Ok(None) };
        Ok(longer_rows_conversion(node, checkpoint, columns)?.map(|conversion| (conversion, new)))
    }

    /// How the groups of `node` are brought over; `Ok(None)`: as they are. `Err`: why they can't be.
    fn aggregate_conversion(
        &self,
        node: &Node,
        saved: &SavedOperator,
        planned: &SavedOperator,
        checkpoint: &OperatorCheckpoint,
        again: bool,
        notes: &mut Vec<String>,
    ) -> Result<std::result::Result<Option<Conversion>, String>> {
        let spec = aggregate_spec(self.graph, node).ok_or_else(|| Error::internal("an aggregate has no spec"))?;
        let schema = spec.state_schema()?;
        let present = spec.states()?;
        let own = spec.group_columns;
        let Some(groups) = checkpoint.states.iter().find(|state| state.tag == 0) else {
            return Ok(Err("its state is not described".into()));
        };
        let from: BTreeMap<u8, Vec<DataType>> =
            groups.schemas.iter().map(|(number, columns)| Ok((*number, types(columns)?))).collect::<Result<_>>()?;
        let newest = groups.schemas.last_key_value().map(|(number, _)| *number);
        let old_types = newest.and_then(|number| from.get(&number)).cloned().unwrap_or_default();
        let to: Vec<DataType> = schema.fields().iter().map(|field| field.data_type().clone()).collect();
        let mut columns = Vec::with_capacity(to.len());
        let mut begins = Vec::new();
        for ((name, text), (ty, field)) in planned.state.columns.iter().zip(to.iter().zip(schema.fields())) {
            let place = saved.state.columns.iter().position(|(_, other)| other == text);
            match place {
                Some(place) if old_types.get(place).is_some_and(|old| old == ty || widens(old, ty) || grows_in_scale(old, ty)) => {
                    columns.push(ColumnOrigin::Column(place))
                }
                Some(place) => {
                    let old = old_types.get(place).map_or_else(String::new, ToString::to_string);
                    return Ok(Err(format!("{name} was {old}, and is {ty}: its values need not fit")));
                }
                None => {
                    begins.push(name.clone());
                    columns.push(if field.is_nullable() { ColumnOrigin::Null } else { ColumnOrigin::Zero });
                }
            }
        }
        // Keys of other types are told by the name of the state.
        let keys = |from_tag: u8, to_tag: u8| -> Result<std::result::Result<Option<KeyConversion>, String>> {
            let find = |states: &[StateDescriptor], tag: u8| states.iter().find(|state| state.tag == tag).cloned();
            let (Some(from), Some(to)) = (find(&checkpoint.states, from_tag), find(&present, to_tag)) else {
                return Ok(Err("its state is not described".into()));
            };
            key_conversion(&from, &to, own, false)
        };
        let of_groups = match keys(0, 0)? {
            Ok(keys) => keys,
            Err(_) => return Ok(Err(other_key(&saved.derivation, &planned.derivation))),
        };
        let mut maps = Vec::new();
        for (tag, text) in &planned.state.maps {
            match saved.state.maps.iter().find(|(_, other)| other == text) {
                Some((old, _)) => match keys(*old, *tag)? {
                    Ok(keys) => maps.push(StateConversion { from_tag: *old, to_tag: *tag, keys, values: None }),
                    Err(reason) => return Ok(Err(reason)),
                },
                None => begins.push(text.clone()),
            }
        }
        if !begins.is_empty() {
            begins.dedup();
            let list = begins.join(", ");
            if again {
                return Ok(Err(format!("new in its state: {list}")));
            }
            if !spec.append_only_input {
                // Begun anew it works where no row that it has never seen is taken away.
                let mut gone = self.providers(node).into_iter().filter(|provider| !self.gives_all(*provider));
                if gone.all(|provider| self.graph.nodes[provider].changelog == ChangelogMode::Append) {
                    return Ok(Err(format!("it can't begin to keep {list}, now that its input takes rows away")));
                }
                return Err(Error::unsupported(format!(
                    "operator \"{}\" can't begin to keep {list}",
                    node.uid.as_deref().unwrap_or_default()
                ))
                .with_detail("Its input takes rows away, and those that came before can't be read again."));
            }
            notes.push(format!("new in its state, and counted from now on: {list}"));
        }
        let gone: Vec<&str> = (saved.state.columns.iter())
            .filter(|(_, text)| !planned.state.columns.iter().any(|(_, other)| other == text))
            .map(|(name, _)| name.as_str())
            .collect();
        if !gone.is_empty() {
            notes.push(format!("no longer kept: {}", gone.join(", ")));
        }
        let in_place = |(at, origin): (usize, &ColumnOrigin)| *origin == ColumnOrigin::Column(at);
        let same_values = from.len() == 1 && old_types == to && columns.iter().enumerate().all(in_place);
        let same_maps = maps.iter().all(|map| map.from_tag == map.to_tag && map.keys.is_none()) && maps.len() == saved.state.maps.len();
        if same_values && same_maps && of_groups.is_none() {
            return Ok(Ok(None));
        }
        let wider_values = columns.iter().zip(&to).any(|(origin, ty)| match origin {
            ColumnOrigin::Column(place) => old_types.get(*place) != Some(ty),
            _ => false,
        });
        if wider_values || of_groups.is_some() || maps.iter().any(|map| map.keys.is_some()) {
            notes.push(WIDER.to_string());
        }
        if notes.is_empty() {
            notes.push("its columns stand in another order".into());
        }
        let values = (!same_values).then_some(ValueConversion { from, to, columns });
        let states = std::iter::once(StateConversion { from_tag: 0, to_tag: 0, keys: of_groups, values }).chain(maps).collect();
        Ok(Ok(Some(Conversion { states })))
    }

    fn plan(&self) -> Result<StatePlan> {
        let stateful: Vec<&Node> = self.graph.nodes.iter().filter(|node| is_stateful(node)).collect();
        let mut candidates: BTreeMap<NodeId, Candidate> = BTreeMap::new();
        for node in &stateful {
            candidates.insert(node.id, self.candidate(node)?);
        }
        let mut consumers: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for node in &stateful {
            for provider in self.providers(node) {
                consumers.entry(provider).or_default().push(node.id);
            }
        }
        // What feeds a sink, which has no state, goes on: it is as if the sink were kept.
        let root = self.graph.root();
        let feeds_sink = if matches!(root.op, NodeOp::Sink) { self.providers(root) } else { BTreeSet::new() };
        if self.whole_result {
            for provider in &feeds_sink {
                consumers.entry(*provider).or_default().push(root.id);
            }
        }
        loop {
            let mut changed = false;
            for (provider, fed) in &consumers {
                let node = &self.graph.nodes[*provider];
                let is_kept = |id: &NodeId| candidates.get(id).is_some_and(|candidate| candidate.keep.is_some());
                // What is sent all rows on top of what it keeps does not care what becomes of others.
                let takes_all = |id: &NodeId| candidates.get(id).is_some_and(|candidate| candidate.added.contains(provider));
                let fed: Vec<NodeId> = fed.iter().filter(|id| !(is_kept(id) && takes_all(id))).copied().collect();
                let other_columns = self.saved_rows(node).err();
                let reason = if let Some(other) = &other_columns {
                    other.as_str()
                } else if is_stateful(node) && !is_kept(provider) {
                    "what feeds it is built anew"
                } else if fed.iter().all(is_kept) || !(is_stateful(node) || self.again[*provider]) {
                    continue;
                } else {
                    "what is fed with it is built anew"
                };
                for id in fed {
                    if let Some(candidate) = candidates.get_mut(&id).filter(|candidate| candidate.keep.is_some()) {
                        *candidate = Candidate::rebuilt(reason);
                        changed = true;
                    }
                }
            }
            if !changed {
                break;
            }
        }
        let mut plan = StatePlan::default();
        for (provider, fed) in &consumers {
            let kept = |id: &NodeId| candidates.get(id).is_some_and(|candidate| candidate.keep.is_some());
            let node = &self.graph.nodes[*provider];
            let takes_all = |id: &NodeId| candidates.get(id).is_some_and(|candidate| candidate.added.contains(provider));
            if fed.iter().any(takes_all) {
                continue;
            }
            if !is_stateful(node) {
                // What the savepoint has no rows of is new to what is kept: it gets all of them.
                if (fed.iter().all(kept) || !self.again[*provider]) && self.saved_rows(node) == Ok(true) {
                    plan.since.insert(*provider);
                }
            } else if kept(provider) && !fed.iter().all(kept) {
                plan.resent.insert(*provider);
            }
        }
        for provider in feeds_sink {
            let node = &self.graph.nodes[provider];
            if !is_stateful(node) && !consumers.contains_key(&provider) && self.saved_rows(node) == Ok(true) {
                plan.since.insert(provider);
            }
        }
        let kept: BTreeSet<NodeId> = candidates.iter().filter(|(_, candidate)| candidate.keep.is_some()).map(|(id, _)| *id).collect();
        let mut taken = BTreeSet::new();
        for node in &stateful {
            let uid = node.uid.clone().unwrap_or_default();
            let Candidate { keep, verdict, mut reason, .. } =
                candidates.remove(&node.id).ok_or_else(|| Error::internal("an operator has no verdict"))?;
            let state = self.saved_state(node);
            let size = state.map_or_else(StateSize::default, |(_, _, checkpoint)| size_of(checkpoint));
            if let Some((saved_uid, _, _)) = state {
                taken.insert(saved_uid.to_string());
            }
            if let Some(keep) = keep {
                plan.kept.insert(uid.clone(), keep);
            } else {
                let lacks: Vec<&NodeId> =
                    consumers.iter().filter(|(_, fed)| fed.contains(&node.id)).map(|(provider, _)| provider).collect();
                let from_state = lacks.iter().any(|provider| plan.resent.contains(provider));
                let gone = self.begins_now(node, &kept);
                reason.push_str(match (gone, from_state) {
                    (true, _) => ": it begins with the rows from now on",
                    (false, true) => ": it is filled from the state before it",
                    (false, false) => ": all rows are read again",
                });
                if gone {
                    plan.begin_now.push(uid.clone());
                    plan.lost.extend(state.map(|(saved_uid, _, _)| saved_uid.to_string()));
                }
            }
            plan.verdicts.push(StateVerdict { uid, operator: family(node).into(), verdict, reason, size });
        }
        for (uid, checkpoint) in &self.saved.checkpoint.operators {
            if checkpoint.parts.is_empty() || taken.contains(uid) {
                continue;
            }
            let descriptor = self.saved.job.operators.iter().find(|operator| operator.uid == *uid);
            plan.verdicts.push(StateVerdict {
                uid: uid.clone(),
                operator: descriptor.map_or_else(String::new, |descriptor| descriptor.operator.clone()),
                verdict: Verdict::Dropped,
                reason: if self.matches.is_ambiguous(uid) { NO_EQUAL } else { "no operator has this uid" }.into(),
                size: size_of(checkpoint),
            });
            plan.lost.push(uid.clone());
        }
        Ok(plan)
    }
}

/// Whether values of the type `from`, sums of all digits that there are, get more digits behind the point in `to`. One that does not fit any more is an error
/// where it is converted, as it would be where it is summed up again.
fn grows_in_scale(from: &DataType, to: &DataType) -> bool {
    use arrow::datatypes::DECIMAL128_MAX_PRECISION as MOST;
    matches!((from, to), (DataType::Decimal128(MOST, was), DataType::Decimal128(MOST, is)) if was <= is)
}

fn size_of(checkpoint: &OperatorCheckpoint) -> StateSize {
    checkpoint
        .parts
        .iter()
        .fold(StateSize::default(), |sum, part| StateSize { rows: sum.rows + part.size.rows, bytes: sum.bytes + part.size.bytes })
}

fn names(derivation: &Derivation) -> String {
    derivation.key.iter().map(|column| format!("{} {}", column.text, column.type_name)).collect::<Vec<_>>().join(", ")
}

fn column_names(derivation: &Derivation) -> String {
    derivation.columns.iter().map(|column| format!("{} {}", column.name, column.type_name)).collect::<Vec<_>>().join(", ")
}

/// What differs in the columns, of which something does: their names and types, or else what their values are.
fn other_columns(saved: &Derivation, planned: &Derivation) -> String {
    let (was, is) = (column_names(saved), column_names(planned));
    if was != is {
        return format!("its columns were ({was}), and are ({is})");
    }
    let changed = saved.columns.iter().zip(&planned.columns).filter(|(was, is)| was.text != is.text);
    let changed: Vec<String> = changed.map(|(was, is)| format!("{} was {}, and is {}", is.name, was.text, is.text)).collect();
    if changed.is_empty() { format!("its columns ({is}) are kept in another way") } else { changed.join("; ") }
}

fn other_key(saved: &Derivation, planned: &Derivation) -> String {
    format!("the key was ({}), and is ({})", names(saved), names(planned))
}
