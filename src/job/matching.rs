//! Which operator of a savepoint an operator of a job takes its state from.
//!
//! That is told by uids. Equal derived ones are numbered in the order of the query, `aggregate(k)` and `aggregate(k)#2`, and so tell nothing once branches change
//! places, come or go: operators with such uids are matched by what they compute.
//!
//! # Invariants
//! - Each operator of the savepoint is matched once at most.
//! - Where several have one derived uid, in the savepoint or in the job, two are matched only where both are of the same groups of the same rows; or else where
//!   the rows can be read again, so that what does not fit is not used.

use std::collections::{BTreeMap, BTreeSet};

use weir_catalog::{Derivation, Error, Result, SqlState};
use weir_sql::graph::{Node, NodeOp, StreamGraph};

use crate::checkpoint::savepoint::{SavedOperator, Savepoint};

/// What has been found out.
#[derive(Default)]
pub(super) struct Matches {
    /// By uid of the job, the uid in the savepoint.
    saved: BTreeMap<String, String>,
    /// Derived uids that several operators have.
    ambiguous: BTreeSet<String>,
}

impl Matches {
    /// The uid in the savepoint of the operator `uid` of the job, whether its state fits or not.
    pub(super) fn saved(&self, uid: &str) -> Option<&str> {
        self.saved.get(uid).map(String::as_str)
    }

    /// Whether other operators have the derived uid that `uid` has, but for a number.
    pub(super) fn is_ambiguous(&self, uid: &str) -> bool {
        self.ambiguous.contains(derived(uid))
    }

    fn is_taken(&self, saved: &str) -> bool {
        self.saved.values().any(|other| other == saved)
    }
}

/// A derived uid without its number.
fn derived(uid: &str) -> &str {
    match uid.rsplit_once('#') {
        Some((derived, number)) if derived.ends_with(')') && number.parse::<u32>().is_ok() => derived,
        _ => uid,
    }
}

/// Matches the operators of a job with the plan `graph` to those of `saved`. `operators` has what those of the job compute, `again` says of each node whether all
/// its rows can be read again, and `uids` names operators of the savepoint as they are called in the job.
///
/// Errors with `42704` where `uids` names what is not there.
pub(super) fn match_operators(
    saved: &Savepoint,
    graph: &StreamGraph,
    operators: &BTreeMap<String, SavedOperator>,
    again: &[bool],
    uids: &[(String, String)],
) -> Result<Matches> {
    let mut matches = Matches { saved: named(saved, graph, uids)?, ambiguous: BTreeSet::new() };
    match_numbered(saved, graph, operators, again, &mut matches);
    for node in &graph.nodes {
        let Some(uid) = &node.uid else { continue };
        if matches.saved.contains_key(uid) || matches.is_ambiguous(uid) {
            continue;
        }
        let is_free = |candidate: &str| saved.operators.contains_key(candidate) && !matches.is_taken(candidate);
        // A view's rows are called after the view: another view's are the same, but for the name.
        let rows = format!("{}/rows", saved.job.name);
        if is_free(uid) {
            matches.saved.insert(uid.clone(), uid.clone());
        } else if matches!(node.op, NodeOp::Materialize) && is_free(&rows) {
            matches.saved.insert(uid.clone(), rows);
        }
    }
    match_renamed(saved, graph, operators, &mut matches);
    Ok(matches)
}

/// Matches aggregates whose derived uids differ, though they are of the same groups of the same rows: a cast that changes no value is in the uid.
fn match_renamed(saved: &Savepoint, graph: &StreamGraph, operators: &BTreeMap<String, SavedOperator>, matches: &mut Matches) {
    let mut found: Vec<(String, String)> = Vec::new();
    for node in graph.nodes.iter().filter(|node| matches!(node.op, NodeOp::Aggregate { .. })) {
        let Some(own) = node.uid.as_deref().filter(|uid| is_derived(uid) && matches.saved(uid).is_none()) else { continue };
        let Some(planned) = operators.get(own) else { continue };
        let is_of = |(uid, there): &(&String, &SavedOperator)| {
            is_derived(uid) && !matches.is_taken(uid) && Fit::SameGroups.is_of(&there.derivation, &planned.derivation)
        };
        let fitting: Vec<&String> = saved.operators.iter().filter(is_of).map(|(uid, _)| uid).collect();
        // Of several it could be any.
        if let [one] = fitting.as_slice() {
            found.push((own.to_string(), one.to_string()));
        }
    }
    for (own, saved) in &found {
        if found.iter().filter(|(_, other)| other == saved).count() == 1 {
            matches.saved.insert(own.clone(), saved.clone());
        }
    }
}

/// Whether a uid is one that an aggregate has where none was given.
fn is_derived(uid: &str) -> bool {
    let plain = derived(uid);
    plain.ends_with(')') && (plain.starts_with("aggregate(") || plain.starts_with("distinct("))
}

/// What the statement says.
fn named(saved: &Savepoint, graph: &StreamGraph, uids: &[(String, String)]) -> Result<BTreeMap<String, String>> {
    let mut matched: BTreeMap<String, String> = BTreeMap::new();
    for (old, new) in uids {
        if !saved.operators.contains_key(old) {
            let there: Vec<&str> = saved.operators.keys().map(String::as_str).collect();
            return Err(Error::new(SqlState::UNDEFINED_OBJECT, format!("the savepoint has no operator \"{old}\""))
                .with_detail(format!("It has: {}.", there.join(", "))));
        }
        if graph.node_by_uid(new).is_none() {
            let there: Vec<&str> = graph.nodes.iter().filter_map(|node| node.uid.as_deref()).collect();
            return Err(Error::new(SqlState::UNDEFINED_OBJECT, format!("the query has no operator \"{new}\""))
                .with_detail(format!("It has: {}.", there.join(", "))));
        }
        if matched.values().any(|other| other == old) || matched.insert(new.clone(), old.clone()).is_some() {
            return Err(Error::new(SqlState::SYNTAX_ERROR, format!("\"{old}\" AS \"{new}\": a uid is named twice")));
        }
    }
    Ok(matched)
}

/// Finds the derived uids that several operators have, and matches those operators.
fn match_numbered(
    saved: &Savepoint,
    graph: &StreamGraph,
    operators: &BTreeMap<String, SavedOperator>,
    again: &[bool],
    matches: &mut Matches,
) {
    let mut alike: BTreeMap<&str, (Vec<&str>, Vec<&Node>)> = BTreeMap::new();
    for uid in saved.operators.keys() {
        alike.entry(derived(uid)).or_default().0.push(uid);
    }
    for node in graph.nodes.iter().filter(|node| matches!(node.op, NodeOp::Aggregate { .. })) {
        if let Some(uid) = &node.uid {
            alike.entry(derived(uid)).or_default().1.push(node);
        }
    }
    for (uid, (former, present)) in alike {
        if former.len() < 2 && present.len() < 2 {
            continue;
        }
        matches.ambiguous.insert(uid.to_string());
        for fit in [Fit::Same, Fit::SameGroups, Fit::Any] {
            for node in present.iter().filter(|node| fit != Fit::Any || again[node.id]) {
                let Some(own) = node.uid.as_deref().filter(|uid| matches.saved(uid).is_none()) else { continue };
                let Some(planned) = operators.get(own) else { continue };
                let fits = |candidate: &&str| {
                    let there = saved.operators.get(*candidate).filter(|_| !matches.is_taken(candidate));
                    there.is_some_and(|there| fit.is_of(&there.derivation, &planned.derivation))
                };
                // Among equals the one that is called the same.
                let mut fitting = former.iter().copied().filter(fits);
                let found = if former.contains(&own) && fits(&own) { Some(own) } else { fitting.next() };
                if let Some(found) = found {
                    matches.saved.insert(own.to_string(), found.to_string());
                }
            }
        }
    }
}

/// How much two operators have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// They compute the same.
    Same,
    /// Their groups are the same ones of the same rows.
    SameGroups,
    Any,
}

impl Fit {
    fn is_of(self, was: &Derivation, is: &Derivation) -> bool {
        let texts = |columns: &[weir_catalog::DerivedColumn]| columns.iter().map(|column| column.text.clone()).collect::<Vec<_>>();
        let same_groups = || was.relation == is.relation && texts(&was.key) == texts(&is.key);
        match self {
            Fit::Same => same_groups() && texts(&was.columns) == texts(&is.columns),
            Fit::SameGroups => same_groups(),
            Fit::Any => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::derived;

    #[test]
    fn a_number_is_no_part_of_a_derived_uid() {
        for (uid, expected) in [
            ("aggregate(k)", "aggregate(k)"),
            ("aggregate(k)#2", "aggregate(k)"),
            ("distinct(a, b)#13", "distinct(a, b)"),
            ("aggregate(a#2)", "aggregate(a#2)"),
            ("v#2/rows", "v#2/rows"),
            ("v#2", "v#2"),
        ] {
            assert_eq!(derived(uid), expected);
        }
    }
}
