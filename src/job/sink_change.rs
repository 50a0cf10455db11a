//! Sinks that go on from what they have written: with the same result, or with another one.
//!
//! A sink whose result is the same is sent what has changed since. One whose result is another writes first what leads from all that it has written to the
//! present result: see `former`. It can do so where that is told by a savepoint, and where it writes to the place where the other result stands.

use std::collections::BTreeMap;

use weir_catalog::object::is_secret_option;
use weir_catalog::{Catalog, ChangelogMode, Derivation, Error, Job, JobKind, Object, Result, SqlState};
use weir_sql::graph::{NodeOp, StreamGraph};

use super::compatibility::Verdict;
use super::former::former_plan;
use super::upgrade::{StatePlan, StateVerdict, providers};
use crate::checkpoint::Savepoint;
use crate::sinks;
use crate::sinks::file::descent::{Standing, written_since};
use crate::sources::connector;
use crate::sources::file::FileConfig;
use crate::state::StateSize;

/// What becomes of a sink whose query changes.
#[derive(Debug)]
pub struct SinkChange {
    pub plan: StatePlan,
    /// Whether its result is another one than before: then the difference is written first.
    pub other_result: bool,
    /// Whether rows may have to be taken back for that.
    pub takes_back: bool,
}

impl SinkChange {
    /// What a sink of the job that `saved` is of, which had the plan `former` over `before`, takes over with the plan `graph` over `catalog`; `uids` as for
    /// [`StatePlan::new`].
    ///
    /// Errors with `0A000` where it can't be told what it has written.
    pub fn new(
        saved: &Savepoint,
        (former, before): (&StreamGraph, &Catalog),
        (graph, catalog): (&StreamGraph, &Catalog),
        uids: &[(String, String)],
        engine: u64,
    ) -> Result<SinkChange> {
        if weir_sql::result_derivation(former, before)? == weir_sql::result_derivation(graph, catalog)? {
            let plan = StatePlan::new(saved, graph, catalog, uids, engine)?;
            if goes_on(&plan, graph) {
                return Ok(SinkChange { plan, other_result: false, takes_back: false });
            }
        }
        SinkChange::of_other_result(saved, (former, before), (graph, catalog), uids, engine)
    }

    /// What the sink `job` with the plan `graph` over `catalog` takes over of a savepoint that its statement names; `uids` as for [`StatePlan::new`]. The plan has
    /// a verdict on the sink.
    ///
    /// Errors with `0A000` where what it would write is not what leads from what stands there to its result.
    pub fn from_savepoint(
        saved: &Savepoint,
        job: &Job,
        (graph, catalog): (&StreamGraph, &Catalog),
        uids: &[(String, String)],
        engine: u64,
    ) -> Result<SinkChange> {
        let former = former_plan(saved, catalog);
        // Planned again, it has the texts of this weir.
        let was = match &former {
            Ok((former, then)) => Some(weir_sql::result_derivation(former, then)?),
            Err(_) => saved.result.clone(),
        };
        let is = weir_sql::result_derivation(graph, catalog)?;
        let of_view = matches!(saved.job.kind, JobKind::MaterializedView { .. });
        let mut why_not = "its result is not the one of the job in the savepoint".to_string();
        if was.is_some_and(|was| is_same_result(&was, &is, !of_view)) {
            let mut plan = StatePlan::new(saved, graph, catalog, uids, engine)?;
            if goes_on(&plan, graph) {
                let mut verdict = sink_verdict(job, false, false);
                let places = (saved_target(saved, catalog, engine), sinks::target(catalog, job)?);
                let is_there = if let (Some(was), Some(is)) = places { sinks::is_same_place(was, is)? } else { false };
                if !is_there {
                    verdict.reason = ELSEWHERE.into();
                }
                plan.verdicts.push(verdict);
                return Ok(SinkChange { plan, other_result: false, takes_back: false });
            }
            why_not = "its state would have to be built anew, or rows would come again".to_string();
        }
        if !is_same_place(saved, job) {
            return Err(cannot_begin(job, &format!("{why_not}, and what that job has written does not stand where this sink writes")));
        }
        if !saved.ends_job {
            return Err(cannot_begin(job, &format!("{why_not}, and what that job wrote after the savepoint is not in it")));
        }
        if !is_same_row(&saved.job, job) {
            return Err(cannot_begin(job, &format!("{why_not}, and what was written has other columns")));
        }
        let (former, then) = former.map_err(|error| cannot_begin(job, &format!("{why_not}, and {}", error.message())))?;
        let change = SinkChange::of_other_result(saved, (&former, &then), (graph, catalog), uids, engine);
        let mut change = change.map_err(|error| {
            if *error.code() == SqlState::FEATURE_NOT_SUPPORTED {
                cannot_begin(job, &format!("{why_not}, and {}", error.message()))
            } else {
                error
            }
        })?;
        if change.takes_back {
            takes_rows_back(job, graph).map_err(|error| {
                cannot_begin(job, &format!("{why_not}, and it cannot take back rows that it has written: {}", error.message()))
            })?;
        }
        if let Some(table) = comes_again(&former, &then, graph, catalog, &change.plan) {
            return Err(cannot_begin(job, &format!("{why_not}, and all rows of \"{table}\" would come again")));
        }
        change.plan.verdicts.push(sink_verdict(job, true, change.takes_back));
        Ok(change)
    }

    fn of_other_result(
        saved: &Savepoint,
        (former, before): (&StreamGraph, &Catalog),
        (graph, catalog): (&StreamGraph, &Catalog),
        uids: &[(String, String)],
        engine: u64,
    ) -> Result<SinkChange> {
        let takes_back = takes_back(former, before)?;
        Ok(SinkChange { plan: StatePlan::of_whole_result(saved, graph, catalog, uids, engine)?, other_result: true, takes_back })
    }
}

/// `0A000`: what the savepoint has is nothing that the sink `job` could begin with.
fn cannot_begin(job: &Job, why: &str) -> Error {
    let mut letters = why.chars();
    let why = letters.next().map_or_else(String::new, |first| format!("{}{}.", first.to_uppercase(), letters.as_str()));
    Error::unsupported(format!("sink {} cannot go on from this savepoint with this query", job.name)).with_detail(why).with_hint(
        "Give the sink its query with ALTER SINK before it is stopped with a savepoint, or create a sink without FROM SAVEPOINT that writes to another place.",
    )
}

/// Errors with `0A000` where what stands in the place of the sink `job` is more than `saved` says that the job in it has written there: that one goes on, or another one
/// that has begun with the same savepoint, or some sink did before it was dropped, as far as the place tells. Waits for disk, or the store.
pub fn check_begins_alone(saved: &Savepoint, job: &Job, catalog: &Catalog, engine: u64) -> Result<()> {
    let (Some(place), Some(was)) = (sinks::target(catalog, job)?, saved_target(saved, catalog, engine)) else { return Ok(()) };
    if !sinks::is_same_place(was, place)? {
        return Ok(());
    }
    let own = saved.engine == engine;
    let origin = |job: &Job| job.origin.as_ref().map(|origin| origin.savepoint.clone());
    for object in catalog.objects() {
        let Object::Job(other) = object.as_ref() else { continue };
        let Some(target) = sinks::target(catalog, other)? else { continue };
        if other.id == job.id || !sinks::is_same_place(target, place)? {
            continue;
        }
        if origin(other).is_some() && origin(other) == origin(job) {
            return Err(cannot_begin(job, &format!("sink \"{}\" has begun with it, and goes on in the same place", other.name)));
        }
        // With another query, and so with another number, it is the same sink.
        if own && (other.id == saved.job.id || (other.name == saved.job.name && !saved.ends_job)) {
            let why = format!("sink \"{}\" goes on in the same place, and what it writes after the savepoint is not in it", other.name);
            return Err(cannot_begin(job, &why).with_hint(format!(
                "Give it this query with ALTER SINK {name}, stop it with ALTER JOB {name} STOP WITH SAVEPOINT and begin with that savepoint, or create a sink that writes to another place.",
                name = other.name
            )));
        }
    }
    let ("file", options) = place else { return Ok(()) };
    let from = Standing::new(saved.engine, saved.job.id, &saved.job.name, saved.checkpoint.barrier);
    match written_since(&FileConfig::parse(options)?, &from)? {
        None => Ok(()),
        Some(other) => Err(cannot_begin(job, &format!("sink \"{other}\" has written there after the savepoint"))
            .with_hint("Begin with a savepoint that has all that was written there, or create a sink that writes to another place.")),
    }
}

/// Where the job that `saved` is of has written, as far as the catalog of `engine` still tells.
fn saved_target<'a>(saved: &'a Savepoint, catalog: &'a Catalog, engine: u64) -> Option<(&'a str, &'a BTreeMap<String, String>)> {
    match &saved.job.kind {
        JobKind::Insert { .. } if saved.engine != engine => None,
        _ => sinks::target(catalog, &saved.job).ok().flatten(),
    }
}

/// What there is to say of a sink that writes elsewhere than the job in the savepoint.
pub const ELSEWHERE: &str = "what was written before the savepoint is not in its place";

/// What EXPLAIN says of the sink `job` itself.
pub fn sink_verdict(job: &Job, other_result: bool, takes_back: bool) -> StateVerdict {
    let (verdict, reason) = match (other_result, takes_back) {
        (false, _) => (Verdict::Reused, ""),
        (true, true) => (Verdict::Converted, "what leads from all that it has written to its present result is written first"),
        (true, false) => (Verdict::Converted, "what it has written of streams stays, and rows from now on are those of the present query"),
    };
    StateVerdict { uid: format!("{}/sink", job.name), operator: "sink".into(), verdict, reason: reason.into(), size: StateSize::default() }
}

/// Whether a sink with the plan `graph`, whose result has not changed, can be sent what has changed since alone.
fn goes_on(plan: &StatePlan, graph: &StreamGraph) -> bool {
    // A sink has no rows of its own: those of a view it does not need.
    let is_kept = |verdict: &StateVerdict| match verdict.verdict {
        Verdict::Reused | Verdict::Converted => true,
        Verdict::Rebuilt => false,
        Verdict::Dropped => verdict.operator == "rows",
    };
    let is_scan = |op: &NodeOp| matches!(op, NodeOp::TableScan { .. } | NodeOp::ViewScan { .. } | NodeOp::ConnectorScan { .. });
    let mut scans = graph.nodes.iter().filter(|node| is_scan(&node.op));
    plan.verdicts.iter().all(is_kept) && scans.all(|node| plan.since.contains(&node.id))
}

/// Whether the result of `graph` has rows that can be told from a savepoint. What came from a stream without an aggregate stays as it was written; of what could be
/// read again it would have to go, and can't be told: `0A000`.
fn takes_back(graph: &StreamGraph, catalog: &Catalog) -> Result<bool> {
    let mut takes_back = false;
    for provider in providers(graph, graph.root()) {
        let NodeOp::ConnectorScan { table, .. } = &graph.nodes[provider].op else {
            takes_back = true;
            continue;
        };
        if let Some(Object::ConnectorTable(table)) = catalog.get_id(*table).map(AsRef::as_ref)
            && connector::can_be_read_again(table)?
        {
            return Err(Error::unsupported(format!("what was written of the rows of \"{}\" is kept nowhere", table.name)));
        }
    }
    Ok(takes_back)
}

/// A table of which the sink of `former` has rows that stay as they were written, and that would be read from its beginning.
fn comes_again(former: &StreamGraph, then: &Catalog, graph: &StreamGraph, catalog: &Catalog, plan: &StatePlan) -> Option<String> {
    let table_of = |op: &NodeOp, catalog: &Catalog| match op {
        NodeOp::TableScan { table: id, .. } | NodeOp::ViewScan { view: id, .. } | NodeOp::ConnectorScan { table: id, .. } => {
            catalog.get_id(*id).map(|object| object.name().to_string())
        }
        _ => None,
    };
    let written = providers(former, former.root()).into_iter().map(|provider| &former.nodes[provider].op);
    let stay: Vec<String> = written.filter(|op| matches!(op, NodeOp::ConnectorScan { .. })).filter_map(|op| table_of(op, then)).collect();
    let mut read = graph.nodes.iter().filter(|node| !plan.since.contains(&node.id)).filter_map(|node| table_of(&node.op, catalog));
    read.find(|name| stay.contains(name))
}

/// Whether two results are of the same rows. The columns of a view may be called something else than what its query calls them.
fn is_same_result(was: &Derivation, is: &Derivation, with_names: bool) -> bool {
    let same = was.columns.len() == is.columns.len()
        && (was.columns.iter().zip(&is.columns))
            .all(|(was, is)| was.text == is.text && was.type_name == is.type_name && (!with_names || was.name == is.name));
    same && was.relation == is.relation
}

/// Whether the sink `job` writes to where the job that `saved` is of has written, and in the same way.
fn is_same_place(saved: &Savepoint, job: &Job) -> bool {
    let (JobKind::Sink { connector: was, options: before }, JobKind::Sink { connector, options }) = (&saved.job.kind, &job.kind) else {
        return false;
    };
    fn shown(options: &BTreeMap<String, String>) -> Vec<(&String, &String)> {
        options.iter().filter(|(name, _)| !is_secret_option(name)).collect()
    }
    was == connector && shown(before) == shown(options)
}

/// Whether two sinks write rows of the same columns.
fn is_same_row(was: &Job, is: &Job) -> bool {
    was.columns.len() == is.columns.len() && was.columns.iter().zip(&is.columns).all(|(was, is)| was.name == is.name && was.ty == is.ty)
}

/// An error where the sink `job`, with the plan `graph`, writes to something that takes no rows back.
fn takes_rows_back(job: &Job, graph: &StreamGraph) -> Result<()> {
    let JobKind::Sink { connector, options } = &job.kind else {
        return Err(Error::internal(format!("\"{}\" is not a sink", job.name)));
    };
    crate::sinks::validate_result(connector, options, &graph.root().schema, ChangelogMode::Retract)
}
