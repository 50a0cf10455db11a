//! CREATE, DROP and EXPLAIN.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_catalog::object::without_secrets;
use weir_catalog::{
    Catalog, CatalogChange, Column, ConnectorTable, Error, Job, JobKind, JobOrigin, Object, ObjectId, Result, SqlState, StoredTable, View,
};
use weir_sql::QueryTarget;
use weir_sql::binder::Binder;
use weir_sql::graph::StreamGraph;
use weir_sql::statement::{ColumnDefinition, DropKind, Parsed, Statement};

use super::pg_catalog::quoted;
use super::prepared::Arguments;
use super::session::{Notice, Reply, Session};
use crate::job::engine::NewJob;
use crate::job::savepoints::UPGRADE_PREFIX;
use crate::job::sink_change::ELSEWHERE;
use crate::job::status::JobState;
use crate::sources::connector;

/// How often a statement is planned again at most because other sessions changed the catalog meanwhile.
const MAX_ATTEMPTS: usize = 20;

/// Whether a commit was refused because another session changed the catalog after it was planned.
fn is_overtaken(error: &Error) -> bool {
    [SqlState::SERIALIZATION_FAILURE, SqlState::DEPENDENT_OBJECTS_STILL_EXIST, SqlState::DUPLICATE_TABLE].contains(error.code())
}

/// `42P01`: one of `inputs` is what an ALTER builds beside a view, and goes by that name only until it takes its place.
fn check_lasting(catalog: &Catalog, inputs: &[ObjectId]) -> Result<()> {
    let mut names = inputs.iter().filter_map(|id| catalog.get_id(*id)).map(|object| object.name());
    match names.find(|name| name.starts_with(UPGRADE_PREFIX)) {
        Some(name) => Err(Error::new(SqlState::UNDEFINED_TABLE, format!("relation \"{name}\" does not exist"))),
        None => Ok(()),
    }
}

impl Session {
    /// Runs a statement that changes the catalog: at once, or with the COMMIT of the block that it stands in.
    pub(super) async fn ddl(&mut self, parsed: &Parsed) -> Result<Reply> {
        Ok(Reply::Command(self.change_catalog(parsed).await?.0))
    }

    /// As [`Session::ddl`]: the command tag and, outside a block, the job that was created.
    pub(super) async fn change_catalog(&mut self, parsed: &Parsed) -> Result<(String, Option<Arc<Job>>)> {
        if let Some(block) = &self.block {
            let catalog = block.transaction.catalog().clone();
            let PlannedDdl { tag, changes, new_job, notices } = self.plan_checked_ddl(&catalog, parsed).await?;
            let block = self.block.as_mut().ok_or_else(|| Error::internal("a transaction block is gone"))?;
            for change in changes {
                if let CatalogChange::Drop(id) = &change {
                    block.new_jobs.retain(|new| new.job.id != *id);
                }
                block.transaction.change_catalog(change)?;
            }
            block.new_jobs.extend(new_job);
            notices.into_iter().for_each(|notice| self.notify(notice));
            return Ok((tag, None));
        }
        for attempt in 0.. {
            let mut transaction = self.engine.tables().begin()?;
            let catalog = transaction.catalog().clone();
            let PlannedDdl { tag, changes, new_job, notices } = self.plan_checked_ddl(&catalog, parsed).await?;
            changes.into_iter().try_for_each(|change| transaction.change_catalog(change))?;
            let job = new_job.as_ref().map(|new| new.job.clone());
            match self.commit_durably(transaction, new_job.into_iter().collect(), false).await {
                Ok((_, None)) => {
                    notices.into_iter().for_each(|notice| self.notify(notice));
                    return Ok((tag, job));
                }
                Ok((_, Some((_, error)))) => return Err(error),
                // Another session was there first: planned over what it left, the statement has its answer, or works.
                Err(error) if attempt < MAX_ATTEMPTS && is_overtaken(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::internal("a statement was tried without end"))
    }

    /// As [`Session::plan_ddl`], where what a new job reads runs.
    async fn plan_checked_ddl(&self, catalog: &Arc<Catalog>, parsed: &Parsed) -> Result<PlannedDdl> {
        // What it says of jobs, that they have finished or were stopped, it says of them as the last statement left them.
        self.engine.show().await;
        let over = catalog.clone();
        let plan = move |session: &Session, parsed: &Parsed| {
            let mut notices = Vec::new();
            let planned = session.plan_ddl(&over, parsed, &mut notices)?;
            Ok(PlannedDdl { notices, ..planned })
        };
        let mut planned = self.planned(parsed, plan).await?;
        if let Some(new) = &mut planned.new_job {
            self.engine.check_inputs_run(&new.job.inputs).await?;
            self.make_place(catalog, &new.job).await?;
            new.catalog = catalog.clone();
            if let (Some((plan, other_result)), Some(origin)) = (self.plan_origin(catalog, new).await?, &new.job.origin) {
                plan.check_allowed(origin.allow_non_restored_state)?;
                if plan.verdicts.iter().any(|verdict| verdict.reason == ELSEWHERE) {
                    planned.notices.push(Notice::told(format!("sink \"{}\" writes what has changed since: {ELSEWHERE}", new.job.name)));
                }
                let origin = Some(JobOrigin { other_result, ..origin.clone() });
                let job = Job { origin, ..new.job.as_ref().clone() };
                planned.changes = vec![CatalogChange::Create(Object::Job(job.clone()))];
                new.job = Arc::new(job);
            }
        }
        Ok(planned)
    }

    /// Makes the folder that a new job writes to: who asks for the job is told at once where there can be none.
    async fn make_place(&self, catalog: &Arc<Catalog>, job: &Arc<Job>) -> Result<()> {
        if matches!(job.kind, JobKind::MaterializedView { .. }) {
            return Ok(());
        }
        let (catalog, job, files) = (catalog.clone(), job.clone(), self.engine.files().clone());
        tokio::task::spawn_blocking(move || crate::sinks::make_place(&catalog, &job, &files))
            .await
            .map_err(|error| Error::internal(format!("the place of a sink could not be looked at: {error}")))?
    }

    /// What a statement does to the catalog, and in `notices` what it has to say.
    fn plan_ddl(&self, catalog: &Catalog, parsed: &Parsed, notices: &mut Vec<Notice>) -> Result<PlannedDdl> {
        let mut exists = |name: &str, if_not_exists: bool| -> Result<bool> {
            match catalog.get(name) {
                None => Ok(false),
                Some(_) if if_not_exists => {
                    notices.push(Notice::skipping(SqlState::DUPLICATE_TABLE, &format!("relation \"{name}\" already exists")));
                    Ok(true)
                }
                Some(_) => Err(Error::new(SqlState::DUPLICATE_TABLE, format!("relation \"{name}\" already exists"))),
            }
        };
        if let Statement::CreateTable { name, .. }
        | Statement::CreateConnectorTable { name, .. }
        | Statement::CreateView { name, .. }
        | Statement::CreateMaterializedView { name, .. }
        | Statement::CreateSink { name, .. } = &parsed.statement
        {
            super::system::check_name(name)?;
        }
        match &parsed.statement {
            Statement::CreateTable { name, if_not_exists, columns, primary_key } => {
                if exists(name, *if_not_exists)? {
                    return Ok(PlannedDdl::nothing("CREATE TABLE"));
                }
                let table = self.stored_table(catalog, name, columns, primary_key.as_deref(), &parsed.text)?;
                Ok(PlannedDdl::create("CREATE TABLE", Object::StoredTable(table)))
            }
            Statement::CreateConnectorTable { name, if_not_exists, columns, options } => {
                if exists(name, *if_not_exists)? {
                    return Ok(PlannedDdl::nothing("CREATE TABLE"));
                }
                let mut options = options.clone();
                let connector = options.remove("connector").ok_or_else(|| {
                    Error::new(SqlState::INVALID_TABLE_DEFINITION, format!("table \"{name}\" has options, but no connector"))
                        .with_hint("Name one: WITH (connector = '...').")
                })?;
                let mut table = ConnectorTable {
                    id: self.engine.tables().next_object_id(),
                    name: name.clone(),
                    columns: plain_columns(name, columns)?,
                    connector,
                    sql: without_secrets(&parsed.text, &options),
                    options,
                };
                table.columns = connector::validate_table(&table, &mut |message| notices.push(Notice::told(message)))?;
                Ok(PlannedDdl::create("CREATE TABLE", Object::ConnectorTable(table)))
            }
            Statement::CreateView { name, or_replace, if_not_exists, columns, query, query_text } => {
                let former = catalog.get(name).filter(|_| *or_replace).cloned();
                if former.is_none() && exists(name, *if_not_exists)? {
                    return Ok(PlannedDdl::nothing("CREATE VIEW"));
                }
                let bound = self.bind(catalog, parsed, query, Vec::new())?;
                if let Some(number) = bound.parameters.keys().next() {
                    return Err(Error::new(SqlState::UNDEFINED_PARAMETER, format!("there is no parameter ${number}")));
                }
                check_lasting(catalog, &bound.inputs)?;
                let mut inputs = bound.inputs.clone();
                inputs.extend(&bound.macros);
                let columns = named_columns(bound.columns, columns)?;
                let mut view = View {
                    id: self.engine.tables().next_object_id(),
                    name: name.clone(),
                    columns,
                    query: query_text.clone(),
                    sql: parsed.text.clone(),
                    inputs,
                };
                if let Some(former) = &former {
                    view.id = former.id();
                }
                let settings = self.binder_settings(Vec::new());
                Binder::new(catalog, &settings).check_nesting(&view)?;
                let Some(former) = former else { return Ok(PlannedDdl::create("CREATE VIEW", Object::View(view))) };
                let Object::View(old) = former.as_ref() else {
                    return Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{name}\" is not a view")));
                };
                let kept = old.columns.iter().zip(&view.columns).all(|(old, new)| old.name == new.name && old.ty == new.ty);
                if !kept || view.columns.len() < old.columns.len() {
                    return Err(Error::new(SqlState::INVALID_TABLE_DEFINITION, "cannot change or drop columns of a view by replacing it"));
                }
                if view.inputs.contains(&view.id) {
                    return Err(Error::new(SqlState::INVALID_OBJECT_DEFINITION, format!("view \"{name}\" would read itself")));
                }
                Ok(PlannedDdl {
                    tag: "CREATE VIEW".into(),
                    changes: vec![CatalogChange::Replace(Object::View(view))],
                    new_job: None,
                    notices: Vec::new(),
                })
            }
            Statement::CreateMaterializedView { name, if_not_exists, .. } => {
                if exists(name, *if_not_exists)? {
                    return Ok(PlannedDdl::nothing("CREATE MATERIALIZED VIEW"));
                }
                let (job, graph) = self.plan_job(catalog, parsed)?;
                Ok(PlannedDdl::create_job("CREATE MATERIALIZED VIEW", job, graph))
            }
            Statement::CreateSink { name, if_not_exists, .. } => {
                if exists(name, *if_not_exists)? {
                    return Ok(PlannedDdl::nothing("CREATE SINK"));
                }
                let (job, graph) = self.plan_job(catalog, parsed)?;
                notices.extend(self.roll_notice(catalog, &job)?);
                Ok(PlannedDdl::create_job("CREATE SINK", job, graph))
            }
            Statement::Insert { .. } => {
                let (job, graph) = self.plan_job(catalog, parsed)?;
                notices.extend(self.roll_notice(catalog, &job)?);
                Ok(PlannedDdl::create_job("INSERT 0 0", job, graph))
            }
            Statement::Drop { kind, names, if_exists, cascade } => self.plan_drop(catalog, *kind, names, *if_exists, *cascade, notices),
            _ => Err(Error::internal("a statement that changes no catalog was taken for one that does")),
        }
    }

    /// What there is to say where checkpoints end the files that `job` will write before its `roll_interval` does.
    fn roll_notice(&self, catalog: &Catalog, job: &Job) -> Result<Option<Notice>> {
        let settings = self.engine.settings();
        let (checkpoints, rolls) = (settings.checkpoint_interval, crate::sinks::roll_interval(catalog, job)?);
        if checkpoints.is_zero() || rolls.is_none_or(|rolls| rolls < checkpoints) {
            return Ok(None);
        }
        let message = "option \"roll_interval\" has no effect: each checkpoint ends all open files, and checkpoint_interval is";
        Ok(Some(Notice::told(format!("{message} {}", settings.get("checkpoint_interval").unwrap_or_default()))))
    }

    /// The job that a statement creates, and its graph. Nothing is started.
    pub(super) fn plan_job(&self, catalog: &Catalog, parsed: &Parsed) -> Result<(Job, StreamGraph)> {
        let id = self.engine.tables().next_object_id();
        let settings = BTreeMap::from([("timezone".to_string(), self.variable("timezone").unwrap_or("UTC").to_string())]);
        let mut origin = None;
        let mut written_as = None;
        let (name, target, query, query_text, column_names) = match &parsed.statement {
            Statement::AlterQuery { name, query, query_text, .. } => {
                let target = match catalog.get(name).map(Arc::as_ref) {
                    Some(Object::Job(job)) if !matches!(job.kind, JobKind::MaterializedView { .. }) => {
                        written_as = with_query(job, query_text);
                        QueryTarget::of_job(catalog, job)?
                    }
                    _ => {
                        written_as = Some(format!("CREATE MATERIALIZED VIEW {} AS {query_text}", quoted(name)));
                        QueryTarget::MaterializedView { name: name.clone(), columns: Vec::new() }
                    }
                };
                (name.clone(), target, query, query_text, Vec::new())
            }
            Statement::CreateMaterializedView { name, columns, origin: from, query, query_text, .. } => {
                origin = self.origin(from.as_ref())?;
                let target = QueryTarget::MaterializedView { name: name.clone(), columns: columns.clone() };
                (name.clone(), target, query, query_text, columns.clone())
            }
            Statement::CreateSink { name, options, origin: from, query, query_text, .. } => {
                origin = self.origin(from.as_ref())?;
                let mut options = options.clone();
                let connector = options.remove("connector").ok_or_else(|| {
                    Error::new(SqlState::INVALID_OBJECT_DEFINITION, format!("sink \"{name}\" has no connector"))
                        .with_hint("Name one: WITH (connector = '...').")
                })?;
                crate::sinks::validate_sink(&connector, &options)?;
                (name.clone(), QueryTarget::Sink { name: name.clone(), connector, options }, query, query_text, Vec::new())
            }
            Statement::Insert { table, columns, source, source_text, .. } => {
                let object = catalog
                    .get(table)
                    .ok_or_else(|| Error::new(SqlState::UNDEFINED_TABLE, format!("relation \"{table}\" does not exist")))?;
                let Object::ConnectorTable(into) = object.as_ref() else {
                    return Err(Error::internal("an INSERT into a stored table was taken for a job"));
                };
                crate::sinks::validate_target(&into.connector, &into.options)?;
                let name = format!("insert_into_{table}_{id}");
                (name.clone(), QueryTarget::Insert { name, table: into.clone(), columns: columns.clone() }, source, source_text, Vec::new())
            }
            _ => return Err(Error::internal("a statement that creates no job was taken for one that does")),
        };
        let insert_columns = match &target {
            QueryTarget::Insert { columns, .. } => columns.clone(),
            _ => Vec::new(),
        };
        let bound = weir_sql::bind_continuous(catalog, query, &target, &settings, Some(&self.system), Some(&parsed.text))?;
        check_lasting(catalog, &bound.inputs)?;
        let graph = weir_sql::plan_continuous(catalog, &bound, &target)?;
        let root = graph.root();
        match &target {
            QueryTarget::MaterializedView { .. } => {}
            QueryTarget::Sink { connector, options, .. } => {
                crate::sinks::validate_result(connector, options, &root.schema, root.changelog)?;
            }
            QueryTarget::Insert { table, .. } => {
                crate::sinks::validate_result(&table.connector, &table.options, &root.schema, root.changelog)?;
            }
        }
        let columns = match &target {
            QueryTarget::MaterializedView { .. } => named_columns(bound.columns.clone(), &column_names)?,
            _ => bound.columns.clone(),
        };
        let sql = match &target {
            QueryTarget::Sink { options, .. } => without_secrets(&parsed.text, options),
            QueryTarget::MaterializedView { .. } | QueryTarget::Insert { .. } => parsed.text.clone(),
        };
        let sql = written_as.unwrap_or(sql);
        let kind = match target {
            QueryTarget::MaterializedView { .. } => {
                JobKind::MaterializedView { key: root.upsert_key.clone(), changelog: graph.nodes[root.inputs[0].from].changelog }
            }
            QueryTarget::Sink { connector, options, .. } => JobKind::Sink { connector, options },
            QueryTarget::Insert { table, .. } => JobKind::Insert { target: table.id },
        };
        let job = Job {
            id,
            name,
            kind,
            columns,
            query: query_text.clone(),
            insert_columns,
            sql,
            settings,
            inputs: bound.inputs.clone(),
            macros: bound.macros.clone(),
            operators: weir_sql::operators(&graph),
            parallelism: self.parallelism()?,
            origin,
        };
        Ok((job, graph))
    }

    fn stored_table(
        &self,
        catalog: &Catalog,
        name: &str,
        definitions: &[ColumnDefinition],
        primary_key: Option<&[String]>,
        sql: &str,
    ) -> Result<StoredTable> {
        if definitions.is_empty() {
            return Err(Error::unsupported("tables without columns are not supported"));
        }
        let mut columns = columns_of(name, definitions)?;
        for column in &columns {
            self.check_default(catalog, column, sql)?;
        }
        let key = match primary_key {
            None => None,
            Some(names) => {
                let mut key = Vec::new();
                for part in names {
                    let at = columns
                        .iter()
                        .position(|column| column.name == *part)
                        .ok_or_else(|| Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{part}\" named in key does not exist")))?;
                    if key.contains(&at) {
                        return Err(Error::new(
                            SqlState::DUPLICATE_COLUMN,
                            format!("column \"{part}\" appears twice in primary key constraint"),
                        ));
                    }
                    if columns[at].ty.is_nested() {
                        return Err(Error::unsupported(format!(
                            "column \"{part}\" of type {} in a primary key is not supported",
                            columns[at].ty
                        )));
                    }
                    columns[at].nullable = false;
                    key.push(at);
                }
                Some(key)
            }
        };
        Ok(StoredTable { id: self.engine.tables().next_object_id(), name: name.into(), columns, primary_key: key, sql: sql.into() })
    }

    fn plan_drop(
        &self,
        catalog: &Catalog,
        kind: DropKind,
        names: &[String],
        if_exists: bool,
        cascade: bool,
        notices: &mut Vec<Notice>,
    ) -> Result<PlannedDdl> {
        let (word, tag) = match kind {
            DropKind::Table => ("table", "DROP TABLE"),
            DropKind::View => ("view", "DROP VIEW"),
            DropKind::MaterializedView => ("materialized view", "DROP MATERIALIZED VIEW"),
            DropKind::Sink => ("sink", "DROP SINK"),
            DropKind::Source => ("source", "DROP SOURCE"),
            DropKind::Job => ("job", "DROP JOB"),
        };
        let mut ids: Vec<ObjectId> = Vec::new();
        for name in names {
            let Some(object) = catalog.get(name) else {
                if if_exists {
                    let code = SqlState::parse("00000").unwrap_or(SqlState::UNDEFINED_TABLE);
                    notices.push(Notice::skipping(code, &format!("{word} \"{name}\" does not exist")));
                    continue;
                }
                return Err(Error::new(SqlState::UNDEFINED_TABLE, format!("{word} \"{name}\" does not exist")));
            };
            let fits = match (kind, object.as_ref()) {
                (DropKind::Table, Object::StoredTable(_) | Object::ConnectorTable(_)) => true,
                (DropKind::Source, Object::ConnectorTable(_)) => true,
                (DropKind::View, Object::View(_)) => true,
                (DropKind::MaterializedView, Object::Job(job)) => matches!(job.kind, JobKind::MaterializedView { .. }),
                (DropKind::Sink, Object::Job(job)) => matches!(job.kind, JobKind::Sink { .. }),
                (DropKind::Job, Object::Job(_)) => true,
                _ => false,
            };
            if !fits {
                return Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{name}\" is not a {word}")).with_hint(format!(
                    "Use DROP {} to remove a {}.",
                    object.kind().to_uppercase(),
                    object.kind()
                )));
            }
            if cascade {
                ids.extend(catalog.drop_order(object.id()).into_iter().filter(|id| !ids.contains(id)).collect::<Vec<_>>());
            } else {
                // An INSERT INTO a connector table that has come to its end needs its tables no more.
                let over =
                    catalog.dependants(object.id()).into_iter().filter(|reader| self.is_finished_insert(reader)).map(|reader| reader.id());
                let over: Vec<ObjectId> = over.chain([object.id()]).filter(|id| !ids.contains(id)).collect();
                ids.extend(over);
            }
        }
        // Among the objects named, those that others of them read go last.
        let mut ordered: Vec<ObjectId> = Vec::new();
        for id in &ids {
            ordered.extend(
                catalog.drop_order(*id).into_iter().filter(|other| ids.contains(other) && !ordered.contains(other)).collect::<Vec<_>>(),
            );
        }
        if cascade {
            notices.extend(cascade_notice(catalog, names, &ordered));
        }
        Ok(PlannedDdl {
            tag: tag.into(),
            changes: ordered.into_iter().map(CatalogChange::Drop).collect(),
            new_job: None,
            notices: Vec::new(),
        })
    }

    fn is_finished_insert(&self, object: &Object) -> bool {
        let Object::Job(Job { id, kind: JobKind::Insert { .. }, .. }) = object else { return false };
        self.engine.board().read().jobs.iter().any(|job| job.id == *id && job.state == JobState::Finished)
    }

    /// The plan of a statement, in words.
    pub(super) async fn explain(&self, inner: &Parsed, arguments: &Arguments) -> Result<Reply> {
        let (catalog, arguments) = (self.catalog(), arguments.clone());
        let lines = self.planned(inner, move |session, inner| session.explained(&catalog, inner, &arguments)).await?;
        super::system::text_rows(&["QUERY PLAN"], lines.into_iter().map(|line| vec![Some(line)]).collect(), "EXPLAIN")
    }

    fn explained(&self, catalog: &Catalog, inner: &Parsed, arguments: &Arguments) -> Result<Vec<String>> {
        let lines = match &inner.statement {
            Statement::Query(query) => {
                let plan = self.bind(catalog, inner, query, arguments.types())?.plan;
                super::explain::explain(&arguments.put_into(plan)?)?
            }
            Statement::CreateMaterializedView { .. } | Statement::CreateSink { .. } => {
                let (job, graph) = self.plan_job(catalog, inner)?;
                weir_sql::explain::explain(&graph, job.parallelism)
            }
            Statement::Insert { table, .. } if matches!(catalog.get(table).map(Arc::as_ref), Some(Object::ConnectorTable(_))) => {
                let (job, graph) = self.plan_job(catalog, inner)?;
                weir_sql::explain::explain(&graph, job.parallelism)
            }
            _ => {
                return Err(Error::unsupported("EXPLAIN of this statement is not supported")
                    .with_hint("EXPLAIN shows queries, CREATE MATERIALIZED VIEW, CREATE SINK and INSERT INTO a connector table."));
            }
        };
        Ok(lines)
    }
}

/// The statement that made `job`, with another query; `None` where its own does not stand in it.
fn with_query(job: &Job, query: &str) -> Option<String> {
    let at = job.sql.rfind(&job.query)?;
    Some([&job.sql[..at], query, &job.sql[at + job.query.len()..]].concat())
}

/// What a statement does to the catalog.
struct PlannedDdl {
    tag: String,
    changes: Vec<CatalogChange>,
    new_job: Option<NewJob>,
    notices: Vec<Notice>,
}

impl PlannedDdl {
    fn nothing(tag: &str) -> PlannedDdl {
        PlannedDdl { tag: tag.into(), changes: Vec::new(), new_job: None, notices: Vec::new() }
    }

    fn create(tag: &str, object: Object) -> PlannedDdl {
        PlannedDdl { tag: tag.into(), changes: vec![CatalogChange::Create(object)], new_job: None, notices: Vec::new() }
    }

    fn create_job(tag: &str, job: Job, graph: StreamGraph) -> PlannedDdl {
        let change = CatalogChange::Create(Object::Job(job.clone()));
        let new = NewJob { job: Arc::new(job), graph: Arc::new(graph), catalog: Arc::default() };
        PlannedDdl { tag: tag.into(), changes: vec![change], new_job: Some(new), notices: Vec::new() }
    }
}

/// What CASCADE says of the objects in `dropped`, each behind what reads it, that were not named.
fn cascade_notice(catalog: &Catalog, named: &[String], dropped: &[ObjectId]) -> Option<Notice> {
    let objects = dropped.iter().rev().filter_map(|id| catalog.get_id(*id));
    let others = objects.filter(|object| !named.iter().any(|name| name == object.name()) && !object.name().starts_with(UPGRADE_PREFIX));
    let lines: Vec<String> = others.map(|object| format!("drop cascades to {} {}", object.kind(), object.name())).collect();
    match lines.as_slice() {
        [] => None,
        [line] => Some(Notice::told(line.clone())),
        lines => {
            let notice = Notice::told(format!("drop cascades to {} other objects", lines.len()));
            Some(Notice { message: notice.message.with_detail(lines.join("\n")), ..notice })
        }
    }
}

/// PostgreSQL's limit.
const MOST_COLUMNS: usize = 1600;

fn columns_of(table: &str, definitions: &[ColumnDefinition]) -> Result<Vec<Column>> {
    if definitions.len() > MOST_COLUMNS {
        return Err(Error::new(SqlState::TOO_MANY_COLUMNS, format!("tables can have at most {MOST_COLUMNS} columns")));
    }
    let mut columns: Vec<Column> = Vec::with_capacity(definitions.len());
    for definition in definitions {
        if columns.iter().any(|column| column.name == definition.name) {
            return Err(Error::new(SqlState::DUPLICATE_COLUMN, format!("column \"{}\" specified more than once", definition.name))
                .with_detail(format!("Table \"{table}\" has two columns of this name.")));
        }
        columns.push(Column {
            name: definition.name.clone(),
            ty: definition.ty.clone(),
            nullable: !definition.not_null,
            default: definition.default.as_deref().map(normal_default),
        });
    }
    Ok(columns)
}

/// A DEFAULT's text, with the constants that have just one spelling in PostgreSQL's.
fn normal_default(text: &str) -> String {
    let constant = ["true", "false", "null"].into_iter().find(|constant| text.trim().eq_ignore_ascii_case(constant));
    constant.unwrap_or(text).to_string()
}

/// The columns of a connector table, whose rows weir does not make: they have no defaults and no constraints.
fn plain_columns(table: &str, definitions: &[ColumnDefinition]) -> Result<Vec<Column>> {
    for definition in definitions {
        if definition.default.is_some() || definition.not_null {
            let clause = if definition.default.is_some() { "DEFAULT" } else { "NOT NULL" };
            return Err(Error::unsupported(format!("{clause} on column \"{}\" of a connector table is not supported", definition.name)));
        }
    }
    columns_of(table, definitions)
}

/// `columns` under the names that CREATE lists, the first as many as there are.
fn named_columns(mut columns: Vec<Column>, names: &[String]) -> Result<Vec<Column>> {
    if names.len() > columns.len() {
        return Err(Error::new(SqlState::SYNTAX_ERROR, "CREATE VIEW specifies more column names than columns"));
    }
    for (column, name) in columns.iter_mut().zip(names) {
        column.name.clone_from(name);
    }
    // A view has no constraints.
    columns.iter_mut().for_each(|column| column.nullable = true);
    for (at, column) in columns.iter().enumerate() {
        if columns[..at].iter().any(|other| other.name == column.name) {
            return Err(Error::new(SqlState::DUPLICATE_COLUMN, format!("column \"{}\" specified more than once", column.name)));
        }
    }
    Ok(columns)
}
