//! The branches of a UNION ALL below an operator: which of those in a savepoint are which of those in a changed query.
//!
//! What an operator keeps of rows that can't be read again is kept for all branches together, and no one can tell which part of it came from which. So it can be
//! kept where every branch that it was computed from is there as it was. A branch more takes nothing from what is kept: its rows come on top.
//!
//! # Invariants
//! - A branch of one side has at most one partner on the other.
//! - Partners have the same key, and come from the same tables and views.

use std::collections::BTreeSet;

use weir_catalog::{Derivation, DerivedColumn};
use weir_sql::graph::{Node, NodeId, NodeOp, StreamGraph};

use super::{Planner, is_stateful, providers};
use crate::checkpoint::savepoint::SavedOperator;
use crate::state::descriptor::StateTexts;

/// What has been found out of an operator in a savepoint and the one in a query.
pub(super) struct Aligned {
    /// Both as far as their branches have partners, in one order: what differs in their texts differs in a branch.
    pub saved: SavedOperator,
    pub planned: SavedOperator,
    /// The branches of the query whose partner gave other rows, by their places.
    pub changed: Vec<usize>,
    /// The branches of the query that the savepoint has not.
    pub new: Vec<usize>,
}

fn alternatives(operator: &SavedOperator) -> Vec<&SavedOperator> {
    if operator.branches.is_empty() { vec![operator] } else { operator.branches.iter().collect() }
}

fn texts(columns: &[DerivedColumn]) -> Vec<&str> {
    columns.iter().map(|column| column.text.as_str()).collect()
}

/// Finds the partners of all branches of `saved` in `planned`. `Err`: why one has none.
pub(super) fn align(saved: &SavedOperator, planned: &SavedOperator) -> Result<Aligned, String> {
    let (was, is) = (alternatives(saved), alternatives(planned));
    if was.iter().chain(&is).any(|branch| branch.derivation.sources.is_empty()) {
        return Err("it is not known which rows it was computed from".into());
    }
    let same_place = |a: &Derivation, b: &Derivation| a.sources == b.sources && texts(&a.key) == texts(&b.key);
    let mut partners: Vec<Option<usize>> = vec![None; was.len()];
    for same_rows in [true, false] {
        for (at, branch) in was.iter().enumerate().filter(|(at, _)| partners[*at].is_none()).collect::<Vec<_>>() {
            let fits = |other: &&SavedOperator| {
                same_place(&branch.derivation, &other.derivation) && (!same_rows || branch.derivation.relation == other.derivation.relation)
            };
            partners[at] = (0..is.len()).find(|place| !partners.contains(&Some(*place)) && fits(&is[*place]));
        }
    }
    let mut found = Vec::with_capacity(was.len());
    for (branch, partner) in was.iter().zip(&partners) {
        match partner {
            Some(partner) => found.push(*partner),
            None => return Err(format!("it has rows of {}, which is no branch of the query any more", named(&branch.derivation))),
        }
    }
    let changed = was.iter().zip(&found).filter(|(was, place)| was.derivation.relation != is[**place].derivation.relation);
    Ok(Aligned {
        changed: changed.map(|(_, place)| *place).collect(),
        new: (0..is.len()).filter(|place| !found.contains(place)).collect(),
        planned: joined(planned, &found.iter().map(|place| is[*place]).collect::<Vec<_>>()),
        saved: joined(saved, &was),
    })
}

/// Where the rows of a branch come from, for messages.
pub(super) fn named(derivation: &Derivation) -> String {
    let name = |source: &String| match source.strip_prefix(' ') {
        None => format!("\"{source}\""),
        Some("groups") => "an aggregate".to_string(),
        Some(_) => "constants".to_string(),
    };
    derivation.sources.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// The operator whose texts are those of all `branches`.
fn joined(operator: &SavedOperator, branches: &[&SavedOperator]) -> SavedOperator {
    let join =
        |text: &dyn Fn(&SavedOperator) -> Option<String>| branches.iter().filter_map(|branch| text(branch)).collect::<Vec<_>>().join("; ");
    let columns = |of: fn(&Derivation) -> &Vec<DerivedColumn>| -> Vec<DerivedColumn> {
        let column = |(at, column): (usize, &DerivedColumn)| DerivedColumn {
            text: join(&|branch| of(&branch.derivation).get(at).map(|column| column.text.clone())),
            ..column.clone()
        };
        of(&operator.derivation).iter().enumerate().map(column).collect()
    };
    let state = StateTexts {
        columns: (operator.state.columns.iter().enumerate())
            .map(|(at, (name, _))| (name.clone(), join(&|branch| branch.state.columns.get(at).map(|(_, text)| text.clone()))))
            .collect(),
        maps: (operator.state.maps.iter().enumerate())
            .map(|(at, (tag, _))| (*tag, join(&|branch| branch.state.maps.get(at).map(|(_, text)| text.clone()))))
            .collect(),
    };
    let derivation = Derivation {
        relation: join(&|branch| Some(branch.derivation.relation.clone())),
        key: columns(|derivation| &derivation.key),
        columns: columns(|derivation| &derivation.columns),
        ..operator.derivation.clone()
    };
    SavedOperator { derivation, state, branches: Vec::new() }
}

impl Planner<'_> {
    /// Whether what is fed by `provider` can be sent all its rows: it is read again, or has all of them as a kept state.
    pub(super) fn gives_all(&self, provider: NodeId) -> bool {
        is_stateful(&self.graph.nodes[provider]) || self.again[provider]
    }

    /// The branches of a UNION ALL that feed `node`, in the savepoint and in the query, where they differ and it can't be sent all rows of the present ones.
    pub(super) fn aligned(
        &self,
        node: &Node,
        saved: &SavedOperator,
        planned: &SavedOperator,
        again: bool,
    ) -> Option<Result<Aligned, String>> {
        let key = |operator: &SavedOperator| operator.derivation.key.iter().map(|column| column.text.clone()).collect::<Vec<_>>();
        let is_same = || saved.derivation.relation == planned.derivation.relation && key(saved) == key(planned);
        let is_one = saved.branches.is_empty() && planned.branches.is_empty();
        if again || is_one || is_same() {
            return None;
        }
        let aligned = align(saved, planned);
        let places = branch_nodes(self.graph, node);
        Some(aligned.and_then(|aligned| match aligned.changed.iter().find(|place| self.can_give_all(&places, **place)) {
            None => Ok(aligned),
            Some(place) => {
                let branch = planned.branches.get(*place).unwrap_or(planned);
                Err(format!(
                    "its rows of {} were others, and can't be told from those of a stream, which does not come again",
                    named(&branch.derivation)
                ))
            }
        }))
    }

    /// Whether something feeds the branch at `place` that can be sent again.
    fn can_give_all(&self, branches: &[NodeId], place: usize) -> bool {
        branches.get(place).is_none_or(|branch| sources_of(self.graph, *branch).into_iter().any(|provider| self.gives_all(provider)))
    }

    /// What feeds the branches of `node` that the savepoint has not, and sends all rows. `Err`: why not all rows of one would come.
    pub(super) fn added_by(&self, node: &Node, aligned: &Aligned, notes: &mut Vec<String>) -> Result<BTreeSet<NodeId>, String> {
        let branches = branch_nodes(self.graph, node);
        let feeding = |places: &mut dyn Iterator<Item = usize>| -> BTreeSet<NodeId> {
            places.filter_map(|place| branches.get(place)).flat_map(|branch| sources_of(self.graph, *branch)).collect()
        };
        let others = feeding(&mut (0..branches.len()).filter(|place| !aligned.new.contains(place)));
        let mut added = BTreeSet::new();
        for provider in feeding(&mut aligned.new.iter().copied()) {
            let source = &self.graph.nodes[provider];
            let is_new = !others.contains(&provider)
                && match source.op {
                    NodeOp::Aggregate { .. } => self.saved_state(source).is_none(),
                    NodeOp::Values { .. } => !self.saved.checkpoint.operators.keys().any(|uid| uid.starts_with("values-")),
                    _ => self.saved_rows(source) == Ok(false),
                };
            if is_new {
                added.insert(provider);
            } else if self.gives_all(provider) {
                let read = match &source.op {
                    NodeOp::TableScan { table: id, .. } | NodeOp::ViewScan { view: id, .. } | NodeOp::ConnectorScan { table: id, .. } => {
                        self.catalog.get_id(*id).map_or_else(String::new, |object| format!("\"{}\"", object.name()))
                    }
                    _ => "what another one has read".into(),
                };
                return Err(format!(
                    "a branch more reads {read} from its beginning, and what is kept of a stream that does not come again only what has changed of it"
                ));
            } else {
                notes.push("a branch more has its rows from now on".to_string());
            }
        }
        Ok(added)
    }
}

/// What feeds the rows of the node `id`: itself, where it is a source or has state.
fn sources_of(graph: &StreamGraph, id: NodeId) -> BTreeSet<NodeId> {
    let node = &graph.nodes[id];
    if is_stateful(node) || node.inputs.is_empty() { BTreeSet::from([id]) } else { providers(graph, node) }
}

/// The branches of the UNION ALL that `node` is over, branches of branches among them, in the order of [`weir_sql::branch_derivations`]; none where it is over
/// something else.
fn branch_nodes(graph: &StreamGraph, node: &Node) -> Vec<NodeId> {
    fn below(graph: &StreamGraph, id: NodeId) -> Vec<NodeId> {
        let node = &graph.nodes[id];
        let or_itself = |id: NodeId| Some(below(graph, id)).filter(|found| !found.is_empty()).unwrap_or_else(|| vec![id]);
        match node.op {
            NodeOp::Union => node.inputs.iter().flat_map(|edge| or_itself(edge.from)).collect(),
            NodeOp::Calc { .. } | NodeOp::Unnest { .. } => node.inputs.iter().flat_map(|edge| below(graph, edge.from)).collect(),
            _ => Vec::new(),
        }
    }
    node.inputs.iter().flat_map(|edge| below(graph, edge.from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branch(source: &str, relation: &str, key: &str) -> SavedOperator {
        let column = |text: &str| DerivedColumn { name: "c".into(), text: text.into(), type_name: "bigint".into() };
        let derivation = Derivation {
            relation: relation.into(),
            key: vec![column(key)],
            columns: vec![column("count(*)")],
            sources: vec![source.into()],
            ..Derivation::default()
        };
        SavedOperator { derivation, ..SavedOperator::default() }
    }

    fn over(branches: &[(&str, &str, &str)]) -> SavedOperator {
        let branches: Vec<SavedOperator> = branches.iter().map(|(source, relation, key)| branch(source, relation, key)).collect();
        match branches.as_slice() {
            [one] => one.clone(),
            _ => SavedOperator { branches: branches.clone(), ..joined(&branches[0], &branches.iter().collect::<Vec<_>>()) },
        }
    }

    #[test]
    fn branches_are_found_wherever_they_stand() {
        let (s, t, u) = (("s", "s", "s.k"), ("t", "t where a", "t.k"), ("u", "u", "u.k"));
        let aligned = align(&over(&[s, t]), &over(&[u, t, s])).unwrap();
        assert_eq!((aligned.changed, aligned.new), (vec![], vec![0]));
        assert_eq!(aligned.saved.derivation.key, aligned.planned.derivation.key);
        assert_eq!(aligned.saved.derivation.relation, aligned.planned.derivation.relation);
        // One that gives other rows, beside one that gives the same.
        let other = ("t", "t where b", "t.k");
        let aligned = align(&over(&[s, t]), &over(&[other, s])).unwrap();
        assert_eq!((aligned.changed, aligned.new), (vec![0], vec![]));
        assert_eq!(aligned.saved.derivation.key, aligned.planned.derivation.key);
        let aligned = align(&over(&[t]), &over(&[other, t])).unwrap();
        assert_eq!((aligned.changed, aligned.new), (vec![], vec![0]));
    }

    #[test]
    fn a_branch_that_is_gone_is_named() {
        let (s, t) = (("s", "s", "s.k"), ("t", "t", "t.k"));
        for planned in [over(&[s]), over(&[s, ("t", "t", "t.other")]), over(&[s, ("u", "t", "t.k")])] {
            let error = align(&over(&[s, t]), &planned).err().unwrap();
            assert!(error.contains("\"t\"") && !error.contains("\"s\""), "{error}");
        }
        let mut unknown = over(&[s, t]);
        unknown.branches[0].derivation.sources.clear();
        assert!(align(&unknown, &over(&[s, t])).is_err());
    }
}
