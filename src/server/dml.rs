//! INSERT, UPDATE and DELETE.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use datafusion::common::Column as ColumnName;
use datafusion::datasource::DefaultTableSource;
use datafusion::functions_window::row_number::row_number_udwf;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, WindowFunctionDefinition, lit};
use futures::StreamExt;
use weir_catalog::{Catalog, ConnectorTable, Error, Object, Result, SqlState, SqlType, StoredTable};
use weir_sql::binder::{Binder, bind_error};
use weir_sql::parser::place::Tokens;
use weir_sql::statement::{Assignment, Parsed, Statement};

use super::prepared::Arguments;
use super::query::table_with_row_keys;
use super::session::{MOST_ATTEMPTS, Reply, Session, parameter_list};
use crate::job::engine::ReadCut;
use crate::log::{ROW_KEY_COLUMN, Transaction};
use crate::operators::error::{from_arrow, from_datafusion};
use crate::sources::file::dead_letters;

/// The DML of a statement on a stored table, bound.
enum BoundDml {
    Insert {
        table: StoredTable,
        plan: LogicalPlan,
        parameters: BTreeMap<usize, SqlType>,
    },
    /// `values` are the table's columns with their new content; `None` for DELETE.
    Change {
        table: StoredTable,
        alias: Option<String>,
        /// What FROM or USING gives.
        beside: Option<LogicalPlan>,
        selection: Option<Expr>,
        values: Option<Vec<Expr>>,
    },
    /// DELETE FROM `table$bad`.
    Settle {
        table: ConnectorTable,
        alias: String,
        selection: Option<Expr>,
    },
}

/// What came of a statement.
enum Applied {
    /// It is done; the command tag.
    Done(String),
    /// What it reads has gone since it was bound. Nothing is done.
    Gone(Error),
}

impl Session {
    /// Runs an INSERT, UPDATE or DELETE: at once, or as a part of the block that it stands in.
    pub(super) async fn dml(&mut self, parsed: &Parsed, arguments: &Arguments) -> Result<Reply> {
        if let Statement::Truncate { tables } = &parsed.statement {
            return self.truncate(tables).await;
        }
        for attempt in 1.. {
            let catalog = self.catalog();
            if let Statement::Insert { table, .. } = &parsed.statement
                && matches!(catalog.get(table).map(Arc::as_ref), Some(Object::ConnectorTable(_)))
            {
                return self.insert_job(parsed).await;
            }
            match self.try_dml(&catalog, parsed, arguments).await? {
                Applied::Done(tag) => return Ok(Reply::Command(tag)),
                Applied::Gone(error) => {
                    // A view that it reads was replaced after it was bound: over the new one it has its answer.
                    if let Some(block) = &mut self.block {
                        block.transaction.begin_statement()?;
                    }
                    if attempt == MOST_ATTEMPTS || Arc::ptr_eq(&catalog, &self.catalog()) {
                        return Err(error);
                    }
                }
            }
        }
        Err(Error::internal("a statement was tried without end"))
    }

    /// Deletes all rows of `tables`: of all or, where that fails, of none.
    async fn truncate(&mut self, tables: &[String]) -> Result<Reply> {
        const TAG: &str = "TRUNCATE TABLE";
        let catalog = self.catalog();
        let tables = tables.iter().map(|name| named_table(&catalog, name)).collect::<Result<Vec<_>>>()?;
        if let Some(mut block) = self.block.take() {
            self.block_is_out = true;
            let emptied = self.empty(&mut block.transaction, &tables).await;
            self.block = Some(block);
            self.block_is_out = false;
            return emptied.map(|()| Reply::Command(TAG.into()));
        }
        // In one order, whatever order they are named in: nobody waits for one while holding another that is waited for.
        let mut ids: Vec<_> = tables.iter().map(|table| table.id).collect();
        ids.sort_unstable();
        let mut statements = Vec::with_capacity(ids.len());
        for id in ids {
            statements.push(self.engine.tables().lock(id).await);
        }
        for attempt in 0.. {
            let mut transaction = self.engine.tables().begin()?;
            self.empty(&mut transaction, &tables).await?;
            match self.commit(transaction, Vec::new()).await {
                Ok(_) => break,
                Err(error) if *error.code() == SqlState::SERIALIZATION_FAILURE && attempt < 10 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Reply::Command(TAG.into()))
    }

    async fn empty(&self, transaction: &mut Transaction, tables: &[StoredTable]) -> Result<()> {
        for table in tables {
            let all = BoundDml::Change { alias: None, beside: None, selection: None, values: None, table: table.clone() };
            if let Applied::Gone(error) = self.apply(transaction, all, &Arguments::default()).await? {
                return Err(error);
            }
        }
        Ok(())
    }

    async fn try_dml(&mut self, catalog: &Arc<Catalog>, parsed: &Parsed, arguments: &Arguments) -> Result<Applied> {
        let bound = self.plan_dml(catalog, parsed, arguments).await?;
        let table_id = match &bound {
            BoundDml::Insert { table, .. } | BoundDml::Change { table, .. } => table.id,
            BoundDml::Settle { table, alias, selection } => return self.settle(table, alias, selection.clone(), arguments).await,
        };
        if let Some(mut block) = self.block.take() {
            // Taken out for the time of the statement: the transaction is both read and written.
            self.block_is_out = true;
            let result = self.apply(&mut block.transaction, bound, arguments).await;
            self.block = Some(block);
            self.block_is_out = false;
            return result;
        }
        // Outside a block, statements on one table run one after another. A key that another transaction took meanwhile is found at the next try.
        let _statement = self.engine.tables().lock(table_id).await;
        let mut bound = Some(bound);
        for attempt in 0.. {
            let mut transaction = self.engine.tables().begin()?;
            let this = match bound.take() {
                Some(bound) => bound,
                None => self.plan_dml(catalog, parsed, arguments).await?,
            };
            let applied = self.apply(&mut transaction, this, arguments).await?;
            if matches!(applied, Applied::Gone(_)) {
                return Ok(applied);
            }
            match self.commit(transaction, Vec::new()).await {
                Ok(_) => return Ok(applied),
                Err(error) if *error.code() == SqlState::SERIALIZATION_FAILURE && attempt < 10 => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::internal("a statement was tried without end"))
    }

    /// The cut that `plan` reads, or why something that it reads is not there.
    async fn cut_of(&self, plan: &LogicalPlan, transaction: &Transaction) -> Result<std::result::Result<ReadCut, Error>> {
        match self.runner.cut(plan, Some(transaction), std::time::Duration::from_secs(86_400)).await {
            Err(error) if *error.code() == SqlState::UNDEFINED_TABLE => Ok(Err(error)),
            cut => cut.map(Ok),
        }
    }

    /// The types of the parameters of an INSERT, UPDATE or DELETE.
    pub(super) fn dml_parameters(&self, catalog: &Catalog, parsed: &Parsed, types: Vec<Option<SqlType>>) -> Result<Vec<SqlType>> {
        if let Statement::Insert { table, .. } = &parsed.statement
            && matches!(catalog.get(table).map(Arc::as_ref), Some(Object::ConnectorTable(_)))
        {
            return Ok(Vec::new());
        }
        match self.bind_dml(catalog, parsed, types)? {
            BoundDml::Insert { parameters, .. } => parameter_list(&parameters),
            BoundDml::Change { beside, selection, values, .. } => {
                let mut parameters = match &beside {
                    Some(beside) => weir_sql::binder::parameters_of(beside)?,
                    None => BTreeMap::new(),
                };
                for expr in selection.iter().chain(values.iter().flatten()) {
                    parameters_of(expr, &mut parameters)?;
                }
                parameter_list(&parameters)
            }
            BoundDml::Settle { selection, .. } => {
                let mut parameters = BTreeMap::new();
                if let Some(selection) = &selection {
                    parameters_of(selection, &mut parameters)?;
                }
                parameter_list(&parameters)
            }
        }
    }

    async fn plan_dml(&self, catalog: &Arc<Catalog>, parsed: &Parsed, arguments: &Arguments) -> Result<BoundDml> {
        let (catalog, types) = (catalog.clone(), arguments.types());
        self.planned(parsed, move |session, parsed| session.bind_dml(&catalog, parsed, types)).await
    }

    fn bind_dml(&self, catalog: &Catalog, parsed: &Parsed, types: Vec<Option<SqlType>>) -> Result<BoundDml> {
        let settings = self.binder_settings(types);
        let binder = Binder::new(catalog, &settings).with_system_tables(&self.system).with_text(&parsed.text);
        match &parsed.statement {
            Statement::Insert { table, columns, source, .. } => {
                let table = stored_table(catalog, table, parsed)?;
                let bound = binder.bind_insert(&table.name, &table.columns, columns, Some(source))?;
                Ok(BoundDml::Insert { plan: bound.plan, parameters: bound.parameters, table })
            }
            Statement::InsertDefaults { table } => {
                let table = stored_table(catalog, table, parsed)?;
                let bound = binder.bind_insert(&table.name, &table.columns, &[], None)?;
                Ok(BoundDml::Insert { plan: bound.plan, parameters: bound.parameters, table })
            }
            Statement::Update { table, assignments, alias, from, selection } => {
                let table = stored_table(catalog, table, parsed)?;
                let relation = alias.as_deref().unwrap_or(&table.name);
                let changed = binder.bind_changed(relation, &table.columns, from)?;
                let mut values: Vec<Expr> =
                    table.columns.iter().map(|column| Expr::Column(ColumnName::new(Some(relation), &column.name))).collect();
                let mut assigned = Vec::new();
                for (name, assignment) in assignments {
                    let at = table.columns.iter().position(|column| column.name == *name).ok_or_else(|| {
                        let message = format!("column \"{name}\" of relation \"{}\" does not exist", table.name);
                        placed(Error::new(SqlState::UNDEFINED_COLUMN, message), Tokens::of(&parsed.text).assigned(name))
                    })?;
                    if assigned.contains(&at) {
                        return Err(Error::new(SqlState::SYNTAX_ERROR, format!("multiple assignments to same column \"{name}\"")));
                    }
                    assigned.push(at);
                    let column = &table.columns[at];
                    values[at] = match assignment {
                        Assignment::Default => binder.default_of(column)?,
                        Assignment::Expr(expr) => binder.bind_assignment(expr, column, &changed)?,
                    };
                }
                let selection = selection.as_deref().map(|expr| binder.bind_selection(expr, &changed)).transpose()?;
                Ok(BoundDml::Change { alias: Some(relation.to_string()), beside: changed.beside, selection, values: Some(values), table })
            }
            Statement::Delete { table, alias, using, selection } if with_bad_records(catalog, table).is_some() => {
                if !using.is_empty() {
                    return Err(Error::unsupported("DELETE ... USING of bad records is not supported"));
                }
                let alias = alias.clone().unwrap_or_else(|| table.clone());
                let columns = dead_letters::columns();
                let selection = selection.as_deref().map(|expr| binder.bind_predicate(expr, Some(&alias), &columns)).transpose()?;
                let table = with_bad_records(catalog, table).ok_or_else(|| Error::internal("a table went while a statement was bound"))?;
                Ok(BoundDml::Settle { table, alias, selection })
            }
            Statement::Delete { table, alias, using, selection } => {
                let table = stored_table(catalog, table, parsed)?;
                let relation = alias.as_deref().unwrap_or(&table.name);
                let changed = binder.bind_changed(relation, &table.columns, using)?;
                let selection = selection.as_deref().map(|expr| binder.bind_selection(expr, &changed)).transpose()?;
                Ok(BoundDml::Change { alias: Some(relation.to_string()), beside: changed.beside, selection, values: None, table })
            }
            _ => Err(Error::internal("a statement that changes no rows was taken for one that does")),
        }
    }

    /// Puts a statement's changes into `transaction`.
    async fn apply(&self, transaction: &mut Transaction, bound: BoundDml, arguments: &Arguments) -> Result<Applied> {
        match bound {
            BoundDml::Insert { table, plan, .. } => {
                let plan = arguments.put_into(plan)?;
                let cut = match self.cut_of(&plan, transaction).await? {
                    Ok(cut) => cut,
                    Err(gone) => return Ok(Applied::Gone(gone)),
                };
                let mut count = 0;
                // What is read does not change by what is written meanwhile: the cut is of one moment.
                let mut rows = self.runner.run(&plan, &cut, &self.system).await?;
                while let Some(batch) = rows.next().await {
                    let batch = batch.map_err(from_datafusion)?;
                    count += transaction.insert(&table, &as_table(&table, batch.columns().to_vec(), batch.num_rows())?)?;
                }
                Ok(Applied::Done(format!("INSERT 0 {count}")))
            }
            BoundDml::Settle { .. } => Err(Error::internal("bad records are no part of a transaction")),
            BoundDml::Change { table, alias, beside, selection, values } => {
                let is_joined = beside.is_some();
                let relation = alias.unwrap_or_else(|| table.name.clone());
                let provider = table_with_row_keys(&table, transaction.snapshot())?;
                let mut builder =
                    LogicalPlanBuilder::scan(relation.as_str(), Arc::new(DefaultTableSource::new(provider)), None).map_err(bind_error)?;
                if let Some(beside) = beside {
                    builder = builder.cross_join(beside).map_err(bind_error)?;
                }
                if let Some(selection) = selection {
                    builder = builder.filter(selection).map_err(bind_error)?;
                }
                let old = table.columns.iter().map(|column| Expr::Column(ColumnName::new(Some(relation.as_str()), &column.name)));
                let key = Expr::Column(ColumnName::new(Some(relation.as_str()), ROW_KEY_COLUMN));
                let new = values.iter().flatten().enumerate().map(|(at, value)| value.clone().alias(format!("__new_{at}")));
                let updates = values.is_some();
                let moves_keys = values.as_ref().is_some_and(|values| {
                    let is_same = |at: usize| matches!(&values[at], Expr::Column(column) if column.name == table.columns[at].name);
                    table.primary_key.iter().flatten().any(|at| !is_same(*at))
                });
                let exprs: Vec<Expr> = old.chain([key.clone()]).chain(new).collect();
                if is_joined {
                    // A row that several rows of FROM fit is changed once.
                    builder = first_of_each(builder, key)?;
                }
                let plan = builder.project(exprs).and_then(LogicalPlanBuilder::build).map_err(bind_error)?;
                let plan = arguments.put_into(plan)?;
                // Subqueries may read other tables and views.
                let cut = match self.cut_of(&plan, transaction).await? {
                    Ok(cut) => cut,
                    Err(gone) => return Ok(Applied::Gone(gone)),
                };
                let mut count = 0;
                let mut rows = self.runner.run(&plan, &cut, &self.system).await?;
                let (mut moved, held) = (Vec::new(), self.runner.reserve("MovedRows"));
                while let Some(batch) = rows.next().await {
                    let batch = batch.map_err(from_datafusion)?;
                    if moves_keys {
                        held.try_grow(batch.get_array_memory_size()).map_err(from_datafusion)?;
                        moved.push(batch);
                        continue;
                    }
                    count += change_rows(transaction, &table, &batch, updates)?;
                }
                // A key that one row leaves, another may take, in whatever order the rows come.
                if let Some(first) = moved.first() {
                    let all = arrow::compute::concat_batches(&first.schema(), &moved).map_err(from_arrow)?;
                    drop(moved);
                    count += change_rows(transaction, &table, &all, updates)?;
                }
                Ok(Applied::Done(format!("{} {count}", if updates { "UPDATE" } else { "DELETE" })))
            }
        }
    }

    /// Forgets bad records of `table` that somebody has dealt with: those for which `selection` is true. It is no part of a transaction.
    async fn settle(&mut self, table: &ConnectorTable, alias: &str, selection: Option<Expr>, arguments: &Arguments) -> Result<Applied> {
        if self.block.is_some() {
            let name = format!("{}{}", table.name, dead_letters::SUFFIX);
            return Err(Error::new(SqlState::ACTIVE_SQL_TRANSACTION, format!("DELETE FROM {name} cannot run inside a transaction block")));
        }
        // Two that run at once would write the same files.
        let _statement = self.engine.tables().lock(table.id).await;
        let provider = self.runner.dead_letters(&table.name)?;
        let mut builder = LogicalPlanBuilder::scan(alias, Arc::new(DefaultTableSource::new(provider)), None).map_err(bind_error)?;
        if let Some(selection) = selection {
            builder = builder.filter(selection).map_err(bind_error)?;
        }
        let column = |name: &str| Expr::Column(ColumnName::new(Some(alias), name));
        let plan = builder.project([column("file"), column("position")]).and_then(LogicalPlanBuilder::build).map_err(bind_error)?;
        let plan = arguments.put_into(plan)?;
        let cut = self.runner.cut(&plan, None, std::time::Duration::from_secs(86_400)).await?;
        let mut settled = dead_letters::Records::default();
        let mut rows = self.runner.run(&plan, &cut, &self.system).await?;
        while let Some(batch) = rows.next().await {
            settled.add(&batch.map_err(from_datafusion)?);
        }
        let (count, (files, root)) = (settled.len(), self.engine.dead_letters());
        let folder = dead_letters::folder(&root, table.id);
        tokio::task::spawn_blocking(move || dead_letters::forget(&files, &folder, &settled))
            .await
            .map_err(|error| Error::internal(format!("bad records could not be forgotten: {error}")))??;
        Ok(Applied::Done(format!("DELETE {count}")))
    }

    /// `INSERT INTO connector_table SELECT ...`: a job of its own.
    async fn insert_job(&mut self, parsed: &Parsed) -> Result<Reply> {
        let (tag, job) = self.change_catalog(parsed).await?;
        if let Some(job) = job
            && self.variable("dml_sync") == Some("on")
            && self.engine.is_bounded(&job)?
        {
            tracing::debug!(job = %job.name, "waiting for a bounded job");
            // A statement that fails, or is given up, is over: nothing goes on with it later.
            let mut guard = self.guard_created();
            guard.jobs.push(job.clone());
            if let Err(error) = self.engine.wait_finished(job.id).await {
                guard.drop_all().await;
                return Err(error);
            }
            guard.jobs.clear();
        }
        Ok(Reply::Command(tag))
    }

    /// Checks that the DEFAULT of a column which `text`, a CREATE TABLE, makes can be computed and assigned.
    pub(super) fn check_default(&self, catalog: &Catalog, column: &weir_catalog::Column, text: &str) -> Result<()> {
        let settings = self.binder_settings(Vec::new());
        Binder::new(catalog, &settings).with_text(text).check_default(column)
    }
}

/// Takes away, or replaces, the rows of `batch`: the table's columns, the row keys, and where they are replaced the new columns.
fn change_rows(transaction: &mut Transaction, table: &StoredTable, batch: &RecordBatch, updates: bool) -> Result<u64> {
    let width = table.columns.len();
    let old = as_table(table, batch.columns()[..width].to_vec(), batch.num_rows())?;
    let keys = batch.column(width);
    if !updates {
        return transaction.delete(table, keys, &old);
    }
    let new = as_table(table, batch.columns()[width + 1..].to_vec(), batch.num_rows())?;
    transaction.update(table, keys, &old, &new)
}

/// The rows of `builder`, one for each value of `key`.
fn first_of_each(builder: LogicalPlanBuilder, key: Expr) -> Result<LogicalPlanBuilder> {
    const PLACE: &str = "__place";
    let mut number = WindowFunction::new(WindowFunctionDefinition::WindowUDF(row_number_udwf()), Vec::new());
    number.params.partition_by = vec![key];
    let number = Expr::WindowFunction(Box::new(number)).alias(PLACE);
    let first = Expr::Column(ColumnName::new_unqualified(PLACE)).eq(lit(1u64));
    builder.window([number]).and_then(|builder| builder.filter(first)).map_err(bind_error)
}

/// The connector table whose bad records are called `name`.
fn with_bad_records(catalog: &Catalog, name: &str) -> Option<ConnectorTable> {
    match catalog.get(name.strip_suffix(dead_letters::SUFFIX)?).map(Arc::as_ref) {
        Some(Object::ConnectorTable(table)) => Some(table.clone()),
        _ => None,
    }
}

/// `error` with its position, if it has one.
fn placed(error: Error, position: Option<usize>) -> Error {
    match position {
        Some(position) => error.with_position(position),
        None => error,
    }
}

/// The stored table that `parsed` changes.
fn stored_table(catalog: &Catalog, name: &str, parsed: &Parsed) -> Result<StoredTable> {
    named_table(catalog, name).map_err(|error| match *error.code() == SqlState::UNDEFINED_TABLE {
        true => placed(error, Tokens::of(&parsed.text).target()),
        false => error,
    })
}

/// The stored table called `name`.
fn named_table(catalog: &Catalog, name: &str) -> Result<StoredTable> {
    match catalog.get(name).map(Arc::as_ref) {
        Some(Object::StoredTable(table)) => Ok(table.clone()),
        Some(object) => Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("cannot change {} \"{name}\"", object.kind()))
            .with_detail("Only the rows of stored tables can be changed.")),
        None => Err(Error::new(SqlState::UNDEFINED_TABLE, format!("relation \"{name}\" does not exist"))),
    }
}

/// Columns as rows of `table`.
fn as_table(table: &StoredTable, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    // NOT NULL is the transaction's to check, with PostgreSQL's message: here every column may hold NULL.
    let fields: Vec<_> = table.columns.iter().map(|column| column.to_field().with_nullable(true)).collect();
    let schema = Arc::new(arrow::datatypes::Schema::new(fields));
    let columns = columns
        .into_iter()
        .zip(schema.fields())
        .map(|(column, field)| {
            if column.data_type() == field.data_type() {
                Ok(column)
            } else {
                arrow::compute::cast(&column, field.data_type()).map_err(from_arrow)
            }
        })
        .collect::<Result<Vec<_>>>()?;
    RecordBatch::try_new_with_options(schema, columns, &RecordBatchOptions::new().with_row_count(Some(rows))).map_err(from_arrow)
}

/// Adds the parameters in `expr` with their types.
fn parameters_of(expr: &Expr, parameters: &mut BTreeMap<usize, SqlType>) -> Result<()> {
    use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
    expr.apply(|expr| {
        if let Expr::Placeholder(placeholder) = expr
            && let Some(number) = placeholder.id.strip_prefix('$').and_then(|number| number.parse::<usize>().ok())
            && let Some(ty) = placeholder.field.as_ref().and_then(|field| SqlType::from_arrow(field.data_type()))
        {
            parameters.entry(number).or_insert(ty);
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .map(|_| ())
    .map_err(bind_error)
}
