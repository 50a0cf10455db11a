//! `ALTER MATERIALIZED VIEW ... AS`: a view takes another query, and what reads it goes on over that. Of a sink see `alter_sink`.
//!
//! ```text
//!   v  ──▶ r ──▶ sink          each is saved; beside it its successor begins, with what of its state still fits:
//!   v' ──▶ r'                  v' over the present rows, r' over the difference of v and v'
//!                              when all are complete the sinks are stopped at a checkpoint, and one commit
//!   v' ──▶ r' ──▶ sink'        drops the former ones, names the successors after them, and begins the sinks anew from there
//! ```
//!
//! # Invariants
//! - Until that commit nothing has changed: what is left of successors is dropped, at once or by the next start. From it on everything is in place.
//! - A sink's successor writes what leads from all that the sink has written to the result over the changed view.

use std::collections::BTreeSet;
use std::sync::Arc;

use weir_catalog::{
    Catalog, CatalogChange, ChangelogMode, Column, Error, Job, JobKind, JobOrigin, Object, ObjectId, Result, SqlState, View,
};
use weir_sql::binder::{Binder, BoundQuery};
use weir_sql::graph::{NodeOp, StreamGraph};
use weir_sql::parser::parse_query;
use weir_sql::statement::{Parsed, Statement};
use weir_sql::{QueryTarget, bind_continuous, plan_continuous};

use super::alter_sink::{AlteredSink, check_same_columns};
use super::session::{CreateGuard, Reply, Session, drop_given_up};
use crate::job::compatibility::Verdict;
use crate::job::engine::NewJob;
use crate::job::manager::PinnedCheckpoint;
use crate::job::savepoints::{Stopped, UPGRADE_PREFIX};
use crate::job::upgrade::StatePlan;
use crate::seams::spawn::Spawner;

/// How often an ALTER is planned anew because another session was there first.
const MAX_ATTEMPTS: usize = 20;

/// What an ALTER does.
struct Upgrade {
    /// The view, and everything that reads it, in the order in which it can be dropped.
    former: Vec<ObjectId>,
    /// What takes the place of the view, and of each job that reads it: inputs first.
    successors: Vec<Successor>,
    /// Views (macros) over it, as they will be.
    macros: Vec<View>,
    /// The catalog as it will be.
    after: Arc<Catalog>,
    /// Where it is a sink that takes another query.
    altered_sink: Option<AlteredSink>,
}

/// A job in the place of another.
struct Successor {
    former: Arc<Job>,
    /// As it will be.
    job: Job,
    graph: Arc<StreamGraph>,
    /// Uids of the former one, and what they are called in it.
    uids: Vec<(String, String)>,
}

impl Successor {
    fn is_view(&self) -> bool {
        matches!(self.job.kind, JobKind::MaterializedView { .. })
    }
}

impl Upgrade {
    fn view(&self) -> &str {
        self.successors.first().map_or("", |successor| successor.job.name.as_str())
    }

    fn sinks(&self) -> impl Iterator<Item = &Successor> {
        self.successors.iter().filter(|successor| !successor.is_view())
    }
}

/// `40001`, for `error`: what the statement was planned over has changed, again and again.
fn overtaken(error: &Error) -> Error {
    if *error.code() == SqlState::SERIALIZATION_FAILURE {
        return error.clone();
    }
    Error::new(SqlState::SERIALIZATION_FAILURE, "could not serialize access due to concurrent update")
        .with_detail(format!("Other sessions make and drop what reads the view: {}.", error.message()))
        .with_hint("The statement might succeed if retried.")
}

/// `2BP01`: `reader` can't be planned over the changed view.
fn not_without(view: &str, reader: &Object, cause: &Error) -> Error {
    Error::new(
        SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
        format!("cannot alter materialized view {view} because {} {} depends on it", reader.kind(), reader.name()),
    )
    .with_detail(format!("Over the changed view it would be refused: {}.", cause.message()))
    .with_hint(format!("Keep the columns that it reads, or drop {} {} first.", reader.kind(), reader.name()))
}

/// `0A000`: `reader` would have other columns over the changed view.
fn other_columns(view: &str, reader: &Object, was: &[Column], is: &[Column]) -> Error {
    let list = |columns: &[Column]| columns.iter().map(|column| format!("{} {}", column.name, column.ty)).collect::<Vec<_>>().join(", ");
    Error::unsupported(format!(
        "cannot alter materialized view {view} because {} {}, which reads it, would have other columns",
        reader.kind(),
        reader.name()
    ))
    .with_detail(format!("Its query gives ({}), and over the changed view ({}).", list(was), list(is)))
    .with_hint(format!("Drop {} {} first, or have its query name its columns.", reader.kind(), reader.name()))
}

/// `0A000`: a sink can't go on from what it has written.
fn sink_stays_behind(view: &str, sink: &Job, why: &str) -> Error {
    let kind = Object::Job(sink.clone()).kind();
    Error::unsupported(format!(
        "cannot alter materialized view {view} because {kind} {} could not go on from what it has written",
        sink.name
    ))
    .with_detail(why.to_string())
    .with_hint(format!("Drop {kind} {} first, or stop it with ALTER JOB {} STOP WITH SAVEPOINT.", sink.name, sink.name))
}

/// An error where `job`, with the plan `graph`, writes to something that takes no rows back.
fn takes_rows_back(catalog: &Catalog, job: &Job, graph: &StreamGraph) -> Result<()> {
    let target = QueryTarget::of_job(catalog, job)?;
    let (connector, options) = match &target {
        QueryTarget::MaterializedView { .. } => return Ok(()),
        QueryTarget::Sink { connector, options, .. } => (connector, options),
        QueryTarget::Insert { table, .. } => (&table.connector, &table.options),
    };
    crate::sinks::validate_result(connector, options, &graph.root().schema, ChangelogMode::Retract)
}

/// Whether the columns of a query are the same, however they come about.
fn same_columns(was: &[Column], is: &[Column]) -> bool {
    was.len() == is.len() && was.iter().zip(is).all(|(was, is)| was.name == is.name && was.ty == is.ty)
}

/// Errors where the sink `successor`, which takes over what `plan` says, would write anything again that was written before.
fn check_goes_on(upgrade: &Upgrade, successor: &Successor, plan: &StatePlan) -> Result<()> {
    let view = upgrade.view();
    let not_kept = |verdict: Verdict| matches!(verdict, Verdict::Rebuilt | Verdict::Dropped);
    if let Some(verdict) = plan.verdicts.iter().find(|verdict| not_kept(verdict.verdict)) {
        let why = format!("Operator \"{}\" would be {}: {}.", verdict.uid, verdict.verdict.as_str(), verdict.reason);
        return Err(sink_stays_behind(view, &successor.former, &why));
    }
    for node in &successor.graph.nodes {
        let read = match &node.op {
            NodeOp::TableScan { table, .. } => *table,
            NodeOp::ViewScan { view, .. } => *view,
            _ => continue,
        };
        if !plan.since.contains(&node.id) {
            let name = upgrade.after.get_id(read).map_or("", |object| object.name());
            return Err(sink_stays_behind(view, &successor.former, &format!("All rows of \"{name}\" would come again.")));
        }
    }
    Ok(())
}

impl Session {
    /// `ALTER ... AS`.
    pub(super) async fn alter_query(&mut self, parsed: &Parsed, name: &str, allow_non_restored_state: bool) -> Result<Reply> {
        self.outside_block("ALTER ... AS")?;
        for attempt in 0.. {
            let catalog = self.catalog();
            match self.try_alter(&catalog, parsed, name, allow_non_restored_state).await {
                // Nothing has changed: planned over what another session has left, the statement has its answer, or works.
                Err(error) if self.is_overtaken(&catalog, name, &error) => {
                    if attempt >= MAX_ATTEMPTS {
                        return Err(overtaken(&error));
                    }
                }
                done => return done,
            }
        }
        Err(Error::internal("a statement was tried without end"))
    }

    /// Whether `error` of an ALTER of `name` that was planned over `catalog` may come from another session's statement: the view, or what reads it, or what they
    /// read, is not what it was.
    fn is_overtaken(&self, catalog: &Catalog, name: &str, error: &Error) -> bool {
        if *error.code() == SqlState::SERIALIZATION_FAILURE {
            return true;
        }
        let joined = |catalog: &Catalog| -> Option<Vec<ObjectId>> {
            let order = catalog.drop_order(catalog.get(name)?.id());
            let inputs = order.iter().filter_map(|id| catalog.get_id(*id)).flat_map(|object| object.depends_on());
            Some(
                inputs
                    .chain(order.iter().copied())
                    .collect::<BTreeSet<_>>()
                    .into_iter()
                    .filter(|id| catalog.get_id(*id).is_some())
                    .collect(),
            )
        };
        let may_pass = [SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, SqlState::DEPENDENT_OBJECTS_STILL_EXIST].contains(error.code());
        may_pass && joined(&self.catalog()) != joined(catalog)
    }

    async fn try_alter(&mut self, catalog: &Arc<Catalog>, parsed: &Parsed, name: &str, allow_non_restored_state: bool) -> Result<Reply> {
        let mut upgrade = self.planned_alter(catalog, parsed, name).await?;
        let mut saved = Vec::new();
        if upgrade.altered_sink.is_some() {
            let (plan, other_result) = self.plan_change(&upgrade).await?;
            plan.check_allowed(allow_non_restored_state)?;
            upgrade.altered_sink = Some(AlteredSink { other_result, allow_non_restored_state });
        } else {
            saved = self.save_former(&upgrade).await?;
            for (sink, saved) in upgrade.successors.iter().zip(&saved).filter(|(successor, _)| !successor.is_view()) {
                self.plan_sink(&upgrade, sink, saved)?;
            }
        }
        let mut guard = self.guard_created();
        let done = async {
            self.build_successors(catalog, &upgrade, saved, allow_non_restored_state, &mut guard).await?;
            self.take_places(&upgrade, &mut guard).await
        };
        if let Err(error) = done.await {
            guard.drop_all().await;
            return Err(error);
        }
        let tag = if upgrade.altered_sink.is_some() { "ALTER SINK" } else { "ALTER MATERIALIZED VIEW" };
        Ok(Reply::Command(tag.into()))
    }

    /// What becomes of the sink that an ALTER is of, and whether its result is another one.
    async fn plan_change(&self, upgrade: &Upgrade) -> Result<(StatePlan, bool)> {
        let sink = upgrade.successors.first().ok_or_else(|| Error::internal("an ALTER is of nothing"))?;
        check_same_columns(&sink.former, &sink.job.columns)?;
        let takes_back = takes_rows_back(&upgrade.after, &sink.job, &sink.graph);
        let change = self.plan_altered_sink(&upgrade.after, &sink.former, &sink.graph, &sink.uids, takes_back).await?;
        Ok((change.plan, change.other_result))
    }

    /// What becomes of the state of an altered view, and of each job that reads it.
    pub(super) async fn explain_upgrade(&self, catalog: &Arc<Catalog>, parsed: &Parsed, name: &str) -> Result<Vec<(String, StatePlan)>> {
        let mut catalog = catalog.clone();
        for attempt in 0.. {
            match self.try_explain_upgrade(&catalog, parsed, name).await {
                Err(error) if self.is_overtaken(&catalog, name, &error) => {
                    if attempt >= MAX_ATTEMPTS {
                        return Err(overtaken(&error));
                    }
                    catalog = self.catalog();
                }
                done => return done,
            }
        }
        Err(Error::internal("a statement was tried without end"))
    }

    async fn try_explain_upgrade(&self, catalog: &Arc<Catalog>, parsed: &Parsed, name: &str) -> Result<Vec<(String, StatePlan)>> {
        let upgrade = self.planned_alter(catalog, parsed, name).await?;
        if let (Some(sink), true) = (upgrade.successors.first(), upgrade.altered_sink.is_some()) {
            return Ok(vec![(sink.job.name.clone(), self.plan_change(&upgrade).await?.0)]);
        }
        let mut plans = Vec::new();
        for (successor, saved) in upgrade.successors.iter().zip(&self.save_former(&upgrade).await?) {
            let plan = if successor.is_view() {
                self.engine.plan_upgrade(&upgrade.after, saved, &successor.graph, &successor.uids)?
            } else {
                self.plan_sink(&upgrade, successor, saved)?
            };
            plans.push((successor.job.name.clone(), plan));
        }
        Ok(plans)
    }

    /// A checkpoint of each job that gets a successor, in their order, and all at one barrier: one for each would cost as many.
    async fn save_former(&self, upgrade: &Upgrade) -> Result<Vec<PinnedCheckpoint>> {
        let former: Vec<ObjectId> = upgrade.successors.iter().map(|successor| successor.former.id).collect();
        self.engine.checkpoints_to_save(&former).await
    }

    fn plan_sink(&self, upgrade: &Upgrade, sink: &Successor, saved: &PinnedCheckpoint) -> Result<StatePlan> {
        let plan = self.engine.plan_upgrade(&upgrade.after, saved, &sink.graph, &sink.uids)?;
        check_goes_on(upgrade, sink, &plan)?;
        Ok(plan)
    }

    async fn planned_alter(&self, catalog: &Arc<Catalog>, parsed: &Parsed, name: &str) -> Result<Upgrade> {
        let (catalog, name) = (catalog.clone(), name.to_string());
        self.planned(parsed, move |session, parsed| session.plan_alter(&catalog, parsed, &name)).await
    }

    /// Plans the changed view or sink, and over it everything that reads it.
    fn plan_alter(&self, catalog: &Arc<Catalog>, parsed: &Parsed, name: &str) -> Result<Upgrade> {
        let former = self.job(catalog, name)?;
        let altered_sink = (!matches!(former.kind, JobKind::MaterializedView { .. })).then(AlteredSink::default);
        let (job, graph) = self.plan_job(catalog, parsed)?;
        let order = catalog.drop_order(former.id);
        if Object::Job(job.clone()).depends_on().iter().any(|input| order.contains(input)) {
            return Err(Error::new(SqlState::INVALID_OBJECT_DEFINITION, format!("materialized view \"{name}\" would read itself")));
        }
        let mut after = catalog.with(Object::Job(job.clone()));
        let uids = match &parsed.statement {
            Statement::AlterQuery { uids, .. } => uids.clone(),
            _ => Vec::new(),
        };
        let mut successors = vec![Successor { former, job, graph: Arc::new(graph), uids }];
        let mut macros = Vec::new();
        for id in order.iter().rev().skip(1) {
            let Some(reader) = catalog.get_id(*id) else { continue };
            match reader.as_ref() {
                Object::View(view) => {
                    let changed = self.macro_over(catalog, &after, name, view)?;
                    after = after.with(Object::View(changed.clone()));
                    macros.push(changed);
                }
                Object::Job(job) if job.name.starts_with(UPGRADE_PREFIX) => {
                    let code = SqlState::OBJECT_IN_USE;
                    return Err(Error::new(code, format!("what reads materialized view {name} is being altered by another session"))
                        .with_hint("Try again when that is done."));
                }
                Object::Job(job) => {
                    let successor = self.successor_over(catalog, &after, name, job)?;
                    after = after.with(Object::Job(successor.job.clone()));
                    successors.push(successor);
                }
                Object::StoredTable(_) | Object::ConnectorTable(_) => {}
            }
        }
        Ok(Upgrade { former: order, successors, macros, after: Arc::new(after), altered_sink })
    }

    /// The view (macro) `view` as it is over `after`.
    fn macro_over(&self, before: &Catalog, after: &Catalog, altered: &str, view: &View) -> Result<View> {
        let query = parse_query(&view.query)?;
        let settings = self.binder_settings(Vec::new());
        let bind = |catalog: &Catalog| -> Result<BoundQuery> {
            Binder::new(catalog, &settings).with_system_tables(&self.system).bind_query(&query)
        };
        let reader = Object::View(view.clone());
        let bound = bind(after).map_err(|cause| not_without(altered, &reader, &cause))?;
        let was = bind(before)?;
        if !same_columns(&was.columns, &bound.columns) {
            return Err(other_columns(altered, &reader, &was.columns, &bound.columns));
        }
        let mut inputs = bound.inputs;
        inputs.extend(&bound.macros);
        Ok(View { inputs, ..view.clone() })
    }

    /// What takes the place of `job` over `after`.
    fn successor_over(&self, before: &Catalog, after: &Catalog, altered: &str, job: &Job) -> Result<Successor> {
        let reader = Object::Job(job.clone());
        let query = parse_query(&job.query)?;
        let target = QueryTarget::of_job(after, job)?;
        let bind = |catalog: &Catalog, target: &QueryTarget| bind_continuous(catalog, &query, target, &job.settings, None, None);
        let planned = bind(after, &target).and_then(|bound| Ok((plan_continuous(after, &bound, &target)?, bound)));
        let (graph, bound) = planned.map_err(|cause| not_without(altered, &reader, &cause))?;
        // The query's own columns, whatever they are called in a view or go into in a table.
        let plain = QueryTarget::MaterializedView { name: job.name.clone(), columns: Vec::new() };
        let (was, is) = (bind(before, &plain)?.columns, bind(after, &plain)?.columns);
        if !same_columns(&was, &is) {
            return Err(other_columns(altered, &reader, &was, &is));
        }
        let root = graph.root();
        let kind = match &job.kind {
            JobKind::MaterializedView { .. } => {
                JobKind::MaterializedView { key: root.upsert_key.clone(), changelog: graph.nodes[root.inputs[0].from].changelog }
            }
            kind => kind.clone(),
        };
        // Whatever the changed view does from now on, rows of the former one may have to go.
        takes_rows_back(after, job, &graph)
            .map_err(|cause| sink_stays_behind(altered, job, &format!("It cannot take rows back: {}.", cause.message())))?;
        // Its columns stay as they are: a view's have no constraints, whatever its query says of NULL.
        let successor = Job {
            id: self.engine.tables().next_object_id(),
            kind,
            inputs: bound.inputs,
            macros: bound.macros,
            operators: weir_sql::operators(&graph),
            origin: None,
            ..job.clone()
        };
        Ok(Successor { former: Arc::new(job.clone()), job: successor, graph: Arc::new(graph), uids: Vec::new() })
    }

    /// Makes the changed view, and the views that read it, beside the former ones, of which `saved` has the checkpoints. When this returns each has all its
    /// rows, and a checkpoint.
    async fn build_successors(
        &self,
        catalog: &Arc<Catalog>,
        upgrade: &Upgrade,
        saved: Vec<PinnedCheckpoint>,
        allow_non_restored_state: bool,
        guard: &mut CreateGuard,
    ) -> Result<()> {
        let views = upgrade.successors.iter().filter(|successor| successor.is_view());
        let names: Vec<(ObjectId, String)> = views.map(|successor| (successor.job.id, successor.job.name.clone())).collect();
        let mut planned_over = catalog.as_ref().clone();
        for (successor, saved) in upgrade.successors.iter().zip(saved).filter(|(successor, _)| successor.is_view()) {
            let saved = self.engine.scratch_savepoint(saved, successor.job.id).await?;
            let savepoint = saved.folder.to_str().ok_or_else(|| Error::unsupported("the path of the data folder is not valid UTF-8"))?;
            let hidden = Job {
                name: format!("{UPGRADE_PREFIX}{}", successor.job.id),
                origin: Some(JobOrigin {
                    savepoint: savepoint.to_string(),
                    uids: successor.uids.clone(),
                    allow_non_restored_state,
                    names: names.clone(),
                    other_result: false,
                }),
                ..successor.job.clone()
            };
            let new = NewJob { job: Arc::new(hidden.clone()), graph: successor.graph.clone(), catalog: Arc::new(planned_over.clone()) };
            if let Some((plan, _)) = self.plan_origin(&upgrade.after, &new).await? {
                plan.check_allowed(allow_non_restored_state)?;
            }
            let hidden = Object::Job(hidden);
            planned_over = planned_over.with(hidden.clone());
            let job = new.job.clone();
            let mut transaction = self.engine.tables().begin()?;
            transaction.change_catalog(CatalogChange::Create(hidden))?;
            self.commit(transaction, vec![new]).await?;
            guard.jobs.push(job);
        }
        Ok(())
    }

    /// Puts the successors in the places of the former jobs, with one commit.
    async fn take_places(&self, upgrade: &Upgrade, guard: &mut CreateGuard) -> Result<()> {
        let mut stopped: Vec<Stopped> = Vec::new();
        let mut new_jobs = Vec::new();
        let sinks: Vec<(ObjectId, ObjectId)> = upgrade.sinks().map(|sink| (sink.former.id, sink.job.id)).collect();
        for (sink, (former, folder)) in upgrade.sinks().zip(self.engine.stop_for(&sinks).await?) {
            stopped.push(former);
            let savepoint = folder.to_str().ok_or_else(|| Error::unsupported("the path of the data folder is not valid UTF-8"))?;
            let AlteredSink { other_result, allow_non_restored_state } = upgrade.altered_sink.unwrap_or_default();
            let savepoint = savepoint.to_string();
            let origin = JobOrigin { savepoint, uids: sink.uids.clone(), allow_non_restored_state, names: Vec::new(), other_result };
            let job = Arc::new(Job { origin: Some(origin), ..sink.job.clone() });
            new_jobs.push(NewJob { job, graph: sink.graph.clone(), catalog: upgrade.after.clone() });
        }
        let built: Vec<ObjectId> = guard.jobs.iter().map(|job| job.id).collect();
        self.engine.check_inputs_run(&built).await?;
        let mut transaction = self.engine.tables().begin()?;
        let readers = |catalog: &Catalog| catalog.drop_order(upgrade.former.last().copied().unwrap_or_default());
        let known: BTreeSet<ObjectId> = upgrade.former.iter().chain(&built).copied().collect();
        if let Some(id) = readers(transaction.catalog()).into_iter().find(|id| !known.contains(id)) {
            let reader = transaction.catalog().get_id(id).map_or_else(String::new, |object| object.name().to_string());
            return Err(Error::new(SqlState::SERIALIZATION_FAILURE, "could not serialize access due to concurrent update")
                .with_detail(format!("\"{reader}\", which reads \"{}\", was created by another session.", upgrade.view()))
                .with_hint("The statement might succeed if retried."));
        }
        // What another session has dropped meanwhile has no place that could be taken.
        let gone: BTreeSet<ObjectId> = upgrade.former.iter().copied().filter(|id| transaction.catalog().get_id(*id).is_none()).collect();
        if upgrade.former.last().is_some_and(|altered| gone.contains(altered)) {
            return Err(overtaken(&Error::internal("it was dropped")));
        }
        // Readers go before what they read, and come after it; a view (macro) stays, and reads on.
        for id in upgrade.former.iter().filter(|id| !gone.contains(id)) {
            match upgrade.macros.iter().find(|view| view.id == *id) {
                Some(view) => transaction.change_catalog(CatalogChange::Replace(Object::View(view.clone())))?,
                None => transaction.change_catalog(CatalogChange::Drop(*id))?,
            }
        }
        new_jobs.retain(|new| !upgrade.sinks().any(|sink| sink.job.id == new.job.id && gone.contains(&sink.former.id)));
        let views = || upgrade.successors.iter().filter(|successor| successor.is_view());
        for unwanted in views().rev().filter(|successor| gone.contains(&successor.former.id)) {
            transaction.change_catalog(CatalogChange::Drop(unwanted.job.id))?;
        }
        for successor in views().filter(|successor| !gone.contains(&successor.former.id)) {
            transaction.change_catalog(CatalogChange::Replace(Object::Job(successor.job.clone())))?;
        }
        for new in &new_jobs {
            transaction.change_catalog(CatalogChange::Create(Object::Job(new.job.as_ref().clone())))?;
        }
        for successor in views().filter(|successor| !gone.contains(&successor.former.id)) {
            self.engine.follow(successor.job.id, successor.former.id);
        }
        let turn = self.engine.commit_turn(&transaction).await;
        // From here on it is the log that says what there is: whoever waits for the answer or not, what is stopped goes on, in the old way or in the new.
        let _held = self.hold_interrupts();
        let (engine, built) = (self.engine.clone(), std::mem::take(&mut guard.jobs));
        let committing = self.engine.commit_in_turn(turn, transaction, new_jobs);
        let ended = Spawner::current().spawn(async move {
            let committed = committing.await.map_err(|e| Error::internal(format!("a commit did not end: {e}"))).flatten();
            match &committed {
                Ok(_) => stopped.into_iter().for_each(Stopped::done),
                Err(_) => drop_given_up(&engine, &built).await,
            }
            committed
        });
        ended.await.map_err(|e| Error::internal(format!("an ALTER did not end: {e}"))).flatten().map(|_| ())
    }
}
