//! Statements on savepoints, and on jobs that begin from one or that change their query.

use std::sync::Arc;

use weir_catalog::{Catalog, CatalogChange, Error, Job, JobOrigin, Object, Result, SqlState};
use weir_sql::statement::{FromSavepoint, Parsed, SavepointSource};

use super::session::{Reply, Session};
use super::system::text_rows;
use crate::checkpoint::Place;
use crate::job::engine::NewJob;
use crate::job::upgrade::StatePlan;
use crate::seams::spawn::Spawner;
use weir_sql::functions::text::write_timestamp;

/// The columns of DESCRIBE SAVEPOINT.
pub(super) const STATE_COLUMNS: &[&str] = &["uid", "state", "operator", "key", "value", "rows", "bytes", "key_groups"];
/// The columns of EXPLAIN where it says what becomes of state.
pub(super) const VERDICT_COLUMNS: &[&str] = &["uid", "operator", "verdict", "reason", "rows", "bytes", "job"];
/// The columns of SHOW SAVEPOINTS.
pub(super) const SAVEPOINT_COLUMNS: &[&str] = &["name", "job", "created", "bytes", "pinned_bytes", "location", "error"];

/// How often a statement begins anew because another session has altered the job.
const MAX_ATTEMPTS: usize = 5;

fn created_text(created_us: i64) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_timestamp(&mut text, created_us);
    text
}

/// Whether `error` leaves open what became of a commit.
fn is_unknown(error: &Error) -> bool {
    [SqlState::IO_ERROR, SqlState::DISK_FULL, SqlState::INTERNAL_ERROR, SqlState::ADMIN_SHUTDOWN].contains(error.code())
}

impl Session {
    pub(super) fn outside_block(&self, statement: &str) -> Result<()> {
        if self.block.is_none() {
            return Ok(());
        }
        Err(Error::new(SqlState::ACTIVE_SQL_TRANSACTION, format!("{statement} cannot run inside a transaction block")))
    }

    pub(super) fn job(&self, catalog: &Catalog, name: &str) -> Result<Arc<Job>> {
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
        let place = location.map(Place::parse).transpose()?;
        for attempt in 0.. {
            let of = self.job(&self.catalog(), job)?;
            match self.engine.create_savepoint(name, &of, place.clone()).await {
                Err(_) if attempt < MAX_ATTEMPTS && self.has_been_replaced(&of) => {}
                done => return done.map(|()| Reply::Command("CREATE SAVEPOINT".into())),
            }
        }
        Err(Error::internal("a statement was tried without end"))
    }

    /// Whether another session has altered `job` meanwhile: another one goes by its name.
    fn has_been_replaced(&self, job: &Job) -> bool {
        self.catalog().get(&job.name).is_some_and(|present| present.id() != job.id)
    }

    /// `ALTER JOB ... STOP WITH SAVEPOINT`: the savepoint has all that the job has ever shown or written, and the job is gone.
    pub(super) async fn stop_with_savepoint(&mut self, job: &str, name: &str, location: Option<&str>) -> Result<Reply> {
        self.outside_block("STOP WITH SAVEPOINT")?;
        let place = location.map(Place::parse).transpose()?;
        let mut attempt = 0;
        let (job, stopped) = loop {
            let catalog = self.catalog();
            let job = self.job(&catalog, job)?;
            // Refused before anything stops.
            Catalog::clone(&catalog).apply(&CatalogChange::Drop(job.id))?;
            match self.engine.stop_with_savepoint(name, &job, place.clone()).await {
                Ok(stopped) => break (job, stopped),
                Err(_) if attempt < MAX_ATTEMPTS && self.has_been_replaced(&job) => attempt += 1,
                Err(error) => return Err(error),
            }
        };
        let mut transaction = self.engine.tables().begin()?;
        transaction.change_catalog(CatalogChange::Drop(job.id))?;
        let turn = self.engine.commit_turn(&transaction).await;
        // From here on it is the log that says whether the job is there, and so whether the savepoint is.
        let _held = self.hold_interrupts();
        let committing = self.engine.commit_in_turn(turn, transaction, Vec::new());
        let ended = Spawner::current().spawn(async move {
            let committed = committing.await.map_err(|e| Error::internal(format!("a commit did not end: {e}"))).flatten();
            match committed {
                Ok(_) => stopped.confirm().await,
                Err(error) => {
                    if is_unknown(&error) {
                        stopped.leave_open();
                    }
                    Err(error)
                }
            }
        });
        ended.await.map_err(|e| Error::internal(format!("the end of a job did not end: {e}"))).flatten()?;
        Ok(Reply::Command("ALTER JOB".into()))
    }

    /// `DROP SAVEPOINT`.
    pub(super) async fn drop_savepoints(&mut self, names: &[String], if_exists: bool) -> Result<Reply> {
        self.outside_block("DROP SAVEPOINT")?;
        self.engine.show().await;
        // All of them, or none.
        if !if_exists {
            // A damaged one is there.
            let missing = names
                .iter()
                .find_map(|name| self.engine.savepoint_place(name).err().filter(|error| *error.code() == SqlState::UNDEFINED_OBJECT));
            missing.map_or(Ok(()), Err)?;
        }
        let names: std::collections::BTreeSet<&String> = names.iter().collect();
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
            let location = summary.place.to_string();
            vec![Some(summary.name), job, created, bytes, Some(summary.pinned_bytes.to_string()), Some(location), error]
        });
        text_rows(SAVEPOINT_COLUMNS, rows.collect(), "SHOW")
    }

    fn place(&self, source: &SavepointSource) -> Result<Place> {
        match source {
            SavepointSource::Name(name) => self.engine.savepoint_place(name),
            SavepointSource::Location(location) => Place::parse(location),
        }
    }

    /// `DESCRIBE SAVEPOINT`.
    pub(super) async fn describe_savepoint(&self, source: &SavepointSource) -> Result<Reply> {
        let (engine, place) = (self.engine.clone(), self.place(source)?);
        let read = tokio::task::spawn_blocking(move || {
            let savepoint = engine.read_savepoint(&place)?;
            let operators = savepoint.checkpoint.operators.values();
            let sizes = operators.map(|operator| engine.state_sizes(&place, operator)).collect::<Result<Vec<_>>>()?;
            Ok::<_, Error>((savepoint, sizes))
        });
        let (savepoint, sizes) = read.await.map_err(|_| Error::internal("reading a savepoint panicked"))??;
        let mut rows = Vec::new();
        for ((uid, checkpoint), sizes) in savepoint.checkpoint.operators.iter().zip(sizes) {
            let operator = savepoint.job.operators.iter().find(|operator| operator.uid == *uid).map(|operator| operator.operator.clone());
            let columns = |columns: &[crate::state::descriptor::StateColumn]| {
                columns.iter().map(|column| format!("{} {}", column.name, column.type_name)).collect::<Vec<_>>().join(", ")
            };
            let mut ranges: Vec<(u16, u16)> = checkpoint.parts.iter().map(|part| (part.range.start, part.range.end)).collect();
            ranges.sort_unstable();
            let groups = ranges.iter().map(|(start, end)| format!("{start}..{end}")).collect::<Vec<_>>().join(", ");
            for (state, size) in checkpoint.states.iter().zip(sizes) {
                let value = state.schemas.last_key_value().map(|(_, value)| columns(value));
                rows.push(vec![
                    Some(uid.clone()),
                    Some(state.name.clone()),
                    operator.clone(),
                    Some(columns(&state.key)),
                    value,
                    size.map(|size| size.rows.to_string()),
                    size.map(|size| size.bytes.to_string()),
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
        Ok(Some(JobOrigin {
            savepoint: self.place(&from.source)?.record()?,
            uids: from.uids.clone(),
            allow_non_restored_state: from.allow_non_restored_state,
            names: Vec::new(),
            other_result: false,
        }))
    }

    /// What a job that begins with a savepoint takes over of it, and whether it is a sink that had another result; `None` for any other. Waits for disk.
    pub(super) async fn plan_origin(&self, catalog: &Arc<Catalog>, new: &NewJob) -> Result<Option<(StatePlan, bool)>> {
        let Some(origin) = new.job.origin.clone() else { return Ok(None) };
        let (engine, catalog, job, graph) = (self.engine.clone(), catalog.clone(), new.job.clone(), new.graph.clone());
        let planned = tokio::task::spawn_blocking(move || engine.plan_state(&catalog, &job, &origin, &graph));
        planned.await.map_err(|_| Error::internal("reading a savepoint panicked"))?.map(Some)
    }

    /// `EXPLAIN UPGRADE`, and `EXPLAIN CREATE ... FROM SAVEPOINT`.
    pub(super) async fn explain_state(&self, inner: &Parsed, altered: Option<&str>) -> Result<Reply> {
        let catalog = self.catalog();
        let plans = match altered {
            Some(name) => self.explain_upgrade(&catalog, inner, name).await?,
            None => {
                let over = catalog.clone();
                let (job, graph) = self.planned(inner, move |session, inner| session.plan_job(&over, inner)).await?;
                let new = NewJob { job: Arc::new(job), graph: Arc::new(graph), catalog: catalog.clone() };
                let planned = self.plan_origin(&catalog, &new).await?;
                let (plan, _) = planned.ok_or_else(|| Error::internal("a job has no savepoint to begin with"))?;
                vec![(new.job.name.clone(), plan)]
            }
        };
        let verdicts = plans.into_iter().flat_map(|(job, plan)| plan.verdicts.into_iter().map(move |verdict| (job.clone(), verdict)));
        let rows = verdicts.map(|(job, verdict)| {
            let size = |number: u64| Some(number.to_string());
            vec![
                Some(verdict.uid),
                Some(verdict.operator),
                Some(verdict.verdict.as_str().to_string()),
                Some(verdict.reason),
                size(verdict.size.rows),
                size(verdict.size.bytes),
                Some(job),
            ]
        });
        text_rows(VERDICT_COLUMNS, rows.collect(), "EXPLAIN")
    }
}
