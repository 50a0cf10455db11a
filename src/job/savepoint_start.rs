//! A savepoint as that what a job begins with.

use std::collections::BTreeMap;

use weir_catalog::{Catalog, JobOrigin, Result};
use weir_sql::graph::{NodeOp, StreamGraph};

use super::former::former_plan;
use super::upgrade::StatePlan;
use crate::checkpoint::{JobCheckpoint, OperatorCheckpoint, Place, Places, Savepoint};
use crate::sources::splits::SplitPortion;

/// A savepoint that a job is about to begin with.
#[derive(Debug)]
pub struct SavepointStart {
    pub place: Place,
    pub saved: Savepoint,
    pub plan: StatePlan,
    /// What is kept, as if it were the job's own checkpoint: under the job's uids, with the splits of the sources that go on.
    pub checkpoint: JobCheckpoint,
    /// The plan of the query whose result is to be taken back, where the job is a sink that had another.
    pub former: Option<StreamGraph>,
}

impl SavepointStart {
    /// Reads the savepoint of `origin` and decides what a job of the data folder `engine` with the plan `graph` takes over. Waits for disk.
    pub fn open(places: &Places, origin: &JobOrigin, graph: &StreamGraph, catalog: &Catalog, engine: u64) -> Result<SavepointStart> {
        let place = Place::recorded(&origin.savepoint)?;
        let saved = places.read(&place)?;
        let plan = if origin.other_result {
            StatePlan::of_whole_result(&saved, graph, catalog, &origin.uids, engine)?
        } else {
            StatePlan::new(&saved, graph, catalog, &origin.uids, engine)?
        };
        let former = if origin.other_result { Some(former_plan(&saved, catalog)?.0) } else { None };
        plan.check_allowed(origin.allow_non_restored_state)?;
        let checkpoint = kept_checkpoint(places, &place, &saved, &plan, graph)?;
        Ok(SavepointStart { place, saved, plan, checkpoint, former })
    }
}

fn kept_checkpoint(places: &Places, place: &Place, saved: &Savepoint, plan: &StatePlan, graph: &StreamGraph) -> Result<JobCheckpoint> {
    let mut operators = BTreeMap::new();
    for (uid, kept) in &plan.kept {
        if let Some(checkpoint) = saved.checkpoint.operators.get(&kept.saved) {
            let (states, parts) = (checkpoint.states.clone(), checkpoint.parts.clone());
            operators.insert(uid.clone(), OperatorCheckpoint { states, parts, ..OperatorCheckpoint::default() });
        }
    }
    // Constants were sent, where what they feed is kept; they have no uid that would last.
    let values = saved.checkpoint.operators.iter().find(|(uid, _)| uid.starts_with("values-")).map(|(_, operator)| operator.splits.clone());
    for id in &plan.since {
        let node = &graph.nodes[*id];
        match &node.op {
            NodeOp::Values { .. } => {
                let splits = values.clone().unwrap_or_default();
                operators.insert(format!("values-{id}"), OperatorCheckpoint { splits, ..OperatorCheckpoint::default() });
            }
            NodeOp::ConnectorScan { .. } => {
                let uid = node.uid.clone().unwrap_or_default();
                let Some(checkpoint) = saved.checkpoint.operators.get(&uid) else { continue };
                let mut splits = checkpoint.splits.clone();
                for file in &checkpoint.closed_splits {
                    splits.extend(SplitPortion::read(places.read_file(place, file)?)?);
                }
                operators.insert(uid, OperatorCheckpoint { splits, ..OperatorCheckpoint::default() });
            }
            _ => {}
        }
    }
    let JobCheckpoint { commit, time_us, .. } = saved.checkpoint;
    Ok(JobCheckpoint { barrier: 0, commit, time_us, operators, finished: false, inputs: BTreeMap::new() })
}
