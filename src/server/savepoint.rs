//! Statements on savepoints, and on jobs that begin from one or that change their query.

use std::path::PathBuf;
use std::sync::Arc;

use weir_catalog::{Catalog, CatalogChange, Error, Job, JobKind, JobOrigin, Object, Result, SqlState};
use weir_sql::statement::{FromSavepoint, Parsed, SavepointSource};

use super::session::{Reply, Session};
use super::system::text_rows;
use crate::job::engine::NewJob;
use crate::job::savepoints::{UPGRADE_PREFIX, folder_of};
use crate::job::upgrade::StatePlan;
use weir_sql::functions::text::write_timestamp;

/// The columns of DESCRIBE SAVEPOINT.
pub(super) const STATE_COLUMNS: &[&str] = &["uid", "state", "operator", "key", "value", "rows", "bytes", "key_groups"];
/// The columns of EXPLAIN where it says what becomes of state.
pub(super) const VERDICT_COLUMNS: &[&str] = &["uid", "operator", "verdict", "reason", "rows", "bytes"];
/// The columns of SHOW SAVEPOINTS.
pub(super) const SAVEPOINT_COLUMNS: &[&str] = &["name", "job", "created", "bytes", "pinned_bytes", "location", "error"];

fn created_text(created_us: i64) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_timestamp(&mut text, created_us);
    text
}

impl Session {
    fn outside_block(&self, statement: &str) -> Result<()> {
        if self.block.is_none() {
            return Ok(());
        }
        Err(Error::new(SqlState::ACTIVE_SQL_TRANSACTION, format!("{statement} cannot run inside a transaction block")))
    }

    fn job(&self, catalog: &Catalog, name: &str) -> Result<Arc<Job>> {
        match catalog.get(name).map(Arc::as_ref) {
            Some(Object::Job(job)) => Ok(Arc::new(job.clone())),
            Some(object) => Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{name}\" is a {}, not a job", object.kind()))
                .with_detail("Materialized views, sinks and INSERT INTO a connector table are jobs.")),
            None => Err(Error::new(SqlState::UNDEFINED_OBJECT, format!("job \"{name}\" does not exist"))),
        }
    }

    /// `CREATE SAVEPOINT`.
    pub(super) async fn create_savepoint(&mut self, name: &str, job: &str, location: Option<&str>) -> Result<Reply> {
        self.outside_block("CREATE SAVEPOINT")?;
        let job = self.job(&self.catalog(), job)?;
        let location = location.map(folder_of).transpose()?;
        self.engine.create_savepoint(name, &job, location).await?;
        Ok(Reply::Command("CREATE SAVEPOINT".into()))
    }

    /// `ALTER JOB ... STOP WITH SAVEPOINT`: the savepoint has all that the job has ever shown or written, and the job is gone.
    pub(super) async fn stop_with_savepoint(&mut self, job: &str, name: &str, location: Option<&str>) -> Result<Reply> {
        self.outside_block("STOP WITH SAVEPOINT")?;
        let catalog = self.catalog();
        let job = self.job(&catalog, job)?;
        // Refused before anything stops.
        Catalog::clone(&catalog).apply(&CatalogChange::Drop(job.id))?;
        let location = location.map(folder_of).transpose()?;
        let stopped = self.engine.stop_with_savepoint(name, &job, location).await?;
        let dropped = async {
            let mut transaction = self.engine.tables().begin()?;
            transaction.change_catalog(CatalogChange::Drop(job.id))?;
            self.commit(transaction, Vec::new()).await
        };
        dropped.await?;
        stopped.done();
        Ok(Reply::Command("ALTER JOB".into()))
    }

    /// `DROP SAVEPOINT`.
    pub(super) async fn drop_savepoints(&mut self, names: &[String], if_exists: bool) -> Result<Reply> {
        self.outside_block("DROP SAVEPOINT")?;
        for name in names {
            let (engine, dropped) = (self.engine.clone(), name.clone());
            let removed = tokio::task::spawn_blocking(move || engine.drop_savepoint(&dropped));
            let removed = removed.await.map_err(|_| Error::internal("removing a savepoint panicked"))??;
            if !removed && !if_exists {
                return Err(Error::new(SqlState::UNDEFINED_OBJECT, format!("savepoint \"{name}\" does not exist")));
            }
        }
        Ok(Reply::Command("DROP SAVEPOINT".into()))
    }

    /// `SHOW SAVEPOINTS`.
    pub(super) async fn show_savepoints(&self) -> Result<Reply> {
        let engine = self.engine.clone();
        let listed = tokio::task::spawn_blocking(move || engine.list_savepoints());
        let listed = listed.await.map_err(|_| Error::internal("listing savepoints panicked"))??;
        let rows = listed.into_iter().map(|summary| {
            let (job, created, bytes, error) = match &summary.savepoint {
                Ok(savepoint) => {
                    (Some(savepoint.job.name.clone()), Some(created_text(savepoint.created_us)), Some(savepoint.bytes().to_string()), None)
                }
                Err(error) => (None, None, None, Some(error.message().to_string())),
            };
            let location = summary.folder.display().to_string();
            vec![Some(summary.name), job, created, bytes, Some(summary.pinned_bytes.to_string()), Some(location), error]
        });
        text_rows(SAVEPOINT_COLUMNS, rows.collect(), "SHOW")
    }

    fn folder(&self, source: &SavepointSource) -> Result<PathBuf> {
        match source {
            SavepointSource::Name(name) => self.engine.savepoint_folder(name),
            SavepointSource::Location(location) => folder_of(location),
        }
    }

    /// `DESCRIBE SAVEPOINT`.
    pub(super) async fn describe_savepoint(&self, source: &SavepointSource) -> Result<Reply> {
        let (engine, folder) = (self.engine.clone(), self.folder(source)?);
        let read = tokio::task::spawn_blocking(move || engine.read_savepoint(&folder));
        let savepoint = read.await.map_err(|_| Error::internal("reading a savepoint panicked"))??;
        let mut rows = Vec::new();
        for (uid, checkpoint) in &savepoint.checkpoint.operators {
            let operator = savepoint.job.operators.iter().find(|operator| operator.uid == *uid).map(|operator| operator.operator.clone());
            let columns = |columns: &[crate::state::descriptor::StateColumn]| {
                columns.iter().map(|column| format!("{} {}", column.name, column.type_name)).collect::<Vec<_>>().join(", ")
            };
            let (state_rows, bytes) =
                checkpoint.parts.iter().fold((0, 0), |(rows, bytes), part| (rows + part.size.rows, bytes + part.size.bytes));
            let mut ranges: Vec<(u16, u16)> = checkpoint.parts.iter().map(|part| (part.range.start, part.range.end)).collect();
            ranges.sort_unstable();
            let groups = ranges.iter().map(|(start, end)| format!("{start}..{end}")).collect::<Vec<_>>().join(", ");
            for (at, state) in checkpoint.states.iter().enumerate() {
                // The sizes are those of all states of the operator: they stand in one store.
                let whole = |number: u64| (at == 0).then(|| number.to_string());
                let value = state.schemas.last_key_value().map(|(_, value)| columns(value));
                rows.push(vec![
                    Some(uid.clone()),
                    Some(state.name.clone()),
                    operator.clone(),
                    Some(columns(&state.key)),
                    value,
                    whole(state_rows),
                    whole(bytes),
                    Some(groups.clone()),
                ]);
            }
            let splits = checkpoint.splits.len();
            if checkpoint.states.is_empty() && splits > 0 {
                let none = || None::<String>;
                let operator = operator.or_else(|| Some("source".into()));
                rows.push(vec![
                    Some(uid.clone()),
                    Some("splits".into()),
                    operator,
                    none(),
                    none(),
                    Some(splits.to_string()),
                    none(),
                    none(),
                ]);
            }
        }
        text_rows(STATE_COLUMNS, rows, "DESCRIBE")
    }

    /// Where the job of a statement begins, where that is a savepoint.
    pub(super) fn origin(&self, from: Option<&FromSavepoint>) -> Result<Option<JobOrigin>> {
        let Some(from) = from else { return Ok(None) };
        let folder = self.folder(&from.source)?;
        let savepoint = folder.to_str().ok_or_else(|| Error::unsupported("the path of a savepoint is not valid UTF-8"))?.to_string();
        Ok(Some(JobOrigin { savepoint, uids: from.uids.clone(), allow_non_restored_state: from.allow_non_restored_state }))
    }

    /// What a job that begins with a savepoint takes over of it; `None` for any other. Waits for disk.
    pub(super) async fn plan_origin(&self, catalog: &Arc<Catalog>, new: &NewJob) -> Result<Option<StatePlan>> {
        let Some(origin) = new.job.origin.clone() else { return Ok(None) };
        let (engine, catalog, graph) = (self.engine.clone(), catalog.clone(), new.graph.clone());
        let planned =
            tokio::task::spawn_blocking(move || engine.plan_state(&catalog, &PathBuf::from(&origin.savepoint), &graph, &origin.uids));
        planned.await.map_err(|_| Error::internal("reading a savepoint panicked"))?.map(Some)
    }

    /// `ALTER MATERIALIZED VIEW ... AS`: a new view is built beside the old one, with what of its state still fits, and takes its place when it is complete.
    pub(super) async fn alter_materialized_view(&mut self, parsed: &Parsed, name: &str, allow_non_restored_state: bool) -> Result<Reply> {
        self.outside_block("ALTER MATERIALIZED VIEW ... AS")?;
        let catalog = self.catalog();
        let old = self.altered_view(&catalog, name)?;
        let (mut job, graph) = self.plan_job(&catalog, parsed)?;
        let readers: Vec<String> = catalog.dependants(old.id).iter().map(|object| format!("{} {}", object.kind(), object.name())).collect();
        if !readers.is_empty() {
            return Err(Error::unsupported(format!("materialized view \"{name}\" cannot be changed while others read it")).with_detail(
                readers.iter().map(|reader| format!("{reader} depends on materialized view {name}")).collect::<Vec<_>>().join("\n"),
            ));
        }
        let folder = self.engine.scratch_savepoint(&old, job.id).await?;
        job.name = format!("{UPGRADE_PREFIX}{}", job.id);
        let savepoint = folder.to_str().ok_or_else(|| Error::unsupported("the path of the data folder is not valid UTF-8"))?.to_string();
        job.origin = Some(JobOrigin { savepoint, uids: Vec::new(), allow_non_restored_state });
        let new = NewJob { job: Arc::new(job.clone()), graph: Arc::new(graph), catalog: catalog.clone() };
        if let Some(plan) = self.plan_origin(&catalog, &new).await? {
            plan.check_allowed(allow_non_restored_state)?;
        }
        let mut transaction = self.engine.tables().begin()?;
        transaction.change_catalog(CatalogChange::Create(Object::Job(job.clone())))?;
        self.commit(transaction, vec![new]).await?;
        // It has all its rows, and a checkpoint of its own: the old one can go.
        job.name = name.to_string();
        job.origin = None;
        let swapped = async {
            let mut transaction = self.engine.tables().begin()?;
            transaction.change_catalog(CatalogChange::Drop(old.id))?;
            transaction.change_catalog(CatalogChange::Replace(Object::Job(job.clone())))?;
            self.engine.swap(transaction, Arc::new(job.clone())).await
        };
        if let Err(error) = swapped.await {
            super::session::drop_given_up(&self.engine, &[Arc::new(job)]).await;
            return Err(error);
        }
        self.engine.remove_scratch_savepoint(folder).await;
        Ok(Reply::Command("ALTER MATERIALIZED VIEW".into()))
    }

    fn altered_view(&self, catalog: &Catalog, name: &str) -> Result<Arc<Job>> {
        let job = self.job(catalog, name)?;
        if !matches!(job.kind, JobKind::MaterializedView { .. }) {
            return Err(Error::unsupported(format!("the query of a {} cannot be changed", Object::Job(job.as_ref().clone()).kind()))
                .with_hint("ALTER JOB ... STOP WITH SAVEPOINT, then CREATE SINK ... FROM SAVEPOINT."));
        }
        Ok(job)
    }

    /// `EXPLAIN UPGRADE`, and `EXPLAIN CREATE ... FROM SAVEPOINT`.
    pub(super) async fn explain_state(&self, inner: &Parsed, altered: Option<&str>) -> Result<Reply> {
        let catalog = self.catalog();
        let plan = match altered {
            Some(name) => {
                let old = self.altered_view(&catalog, name)?;
                let (_, graph) = self.plan_job(&catalog, inner)?;
                self.engine.plan_upgrade(&catalog, &old, &graph).await?
            }
            None => {
                let (job, graph) = self.plan_job(&catalog, inner)?;
                let new = NewJob { job: Arc::new(job), graph: Arc::new(graph), catalog: catalog.clone() };
                self.plan_origin(&catalog, &new).await?.ok_or_else(|| Error::internal("a job has no savepoint to begin with"))?
            }
        };
        let rows = plan.verdicts.into_iter().map(|verdict| {
            let size = |number: u64| Some(number.to_string());
            vec![
                Some(verdict.uid),
                Some(verdict.operator),
                Some(verdict.verdict.as_str().to_string()),
                Some(verdict.reason),
                size(verdict.size.rows),
                size(verdict.size.bytes),
            ]
        });
        text_rows(VERDICT_COLUMNS, rows.collect(), "EXPLAIN")
    }
}
