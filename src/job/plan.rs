//! From a job in the catalog to its stream graph: planned again at each start, and compared with the operators that the catalog lists.

use weir_catalog::{Catalog, Error, Job, Result};
use weir_sql::graph::StreamGraph;

/// Plans `job` over `catalog`, which must hold what it names. An error where the plan has other operators than those that the job was made with: then its
/// state would not fit.
pub fn plan_job(catalog: &Catalog, job: &Job) -> Result<StreamGraph> {
    let graph = weir_sql::plan_query(catalog, &job.query, &weir_sql::QueryTarget::of_job(catalog, job)?, &job.settings)?;
    let planned = weir_sql::operators(&graph);
    if planned != job.operators {
        return Err(Error::internal(format!("the plan of {} has other operators than when it was made", job.name))
            .with_detail(format!("Made with: {:?}. Now: {planned:?}.", job.operators))
            .with_hint("Drop it and create it again."));
    }
    Ok(graph)
}
