//! From a job in the catalog to its stream graph: planned again at each start, and compared with the operators that the catalog lists.

use weir_catalog::{Catalog, Error, Job, Result};
use weir_sql::graph::StreamGraph;

use super::compatibility::{self, Verdict};

/// Plans `job` over `catalog`, which must hold what it names. An error where the state of an operator of it can't be used as it is: DETAIL has the verdict on
/// each such operator.
pub fn plan_job(catalog: &Catalog, job: &Job) -> Result<StreamGraph> {
    let graph = weir_sql::plan_query(catalog, &job.query, &weir_sql::QueryTarget::of_job(catalog, job)?, &job.settings)?;
    let verdicts = compatibility::compare(&job.operators, &weir_sql::operators(&graph));
    let changed: Vec<String> = verdicts.iter().filter(|verdict| verdict.verdict != Verdict::Reused).map(ToString::to_string).collect();
    if !changed.is_empty() {
        return Err(Error::internal(format!("the plan of \"{}\" has other operators than when it was made", job.name))
            .with_detail(format!("Operators whose state is not used as it is: {}.", changed.join("; ")))
            .with_hint("Drop it and create it again."));
    }
    Ok(graph)
}
