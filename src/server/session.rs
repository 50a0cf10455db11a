//! A client's session: its settings, its transaction, and one statement after another.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use datafusion::execution::SendableRecordBatchStream;
use datafusion::logical_expr::LogicalPlan;
use futures::FutureExt;
use tokio::time::Instant;
use weir_catalog::{Catalog, Column, Error, Job, Object, Result, SqlState, SqlType};
use weir_sql::binder::{Binder, BinderSettings, BoundQuery};
use weir_sql::statement::{Parsed, ShowKind, Statement};

use super::guarded;
use super::interrupts::{Held, Interrupts};
use super::named::NamedStatement;
use super::prepared::{Arguments, Described, has_precision};
use super::query::QueryRunner;
use super::system::SystemTables;
use crate::job::Engine;
use crate::job::engine::{Committed, NewJob};
use crate::job::savepoints::UPGRADE_PREFIX;
use crate::job::settings::{SETTINGS, Settings};
use crate::log::Transaction;
use crate::seams::spawn::in_place;

/// What a statement gives.
pub enum Reply {
    /// Rows, as they come.
    Rows(RowStream),
    /// Done; the command tag.
    Command(String),
}

/// Rows and their columns.
pub struct RowStream {
    pub columns: Vec<Column>,
    pub stream: SendableRecordBatchStream,
    /// The command tag, without the count: `SELECT`, `SHOW`, `EXPLAIN`.
    pub tag: &'static str,
}

/// How much a notice matters, as PostgreSQL ranks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Notice,
    Warning,
}

impl Severity {
    /// Its name in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Notice => "NOTICE",
            Severity::Warning => "WARNING",
        }
    }
}

/// What a statement has to say besides its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub severity: Severity,
    /// Its code and message.
    pub message: Error,
}

impl Notice {
    fn warning(code: SqlState, message: &str) -> Notice {
        Notice { severity: Severity::Warning, message: Error::new(code, message) }
    }

    fn no_transaction() -> Notice {
        Notice::warning(SqlState::NO_ACTIVE_SQL_TRANSACTION, "there is no transaction in progress")
    }

    /// Something that is worth knowing, and no reason to do anything else than was asked for.
    pub(super) fn told(what: String) -> Notice {
        let code = SqlState::parse("00000").unwrap_or(SqlState::INVALID_PARAMETER_VALUE);
        Notice { severity: Severity::Notice, message: Error::new(code, what) }
    }

    /// What IF EXISTS and IF NOT EXISTS say where there is nothing to do.
    pub(super) fn skipping(code: SqlState, what: &str) -> Notice {
        Notice { severity: Severity::Notice, message: Error::new(code, format!("{what}, skipping")) }
    }
}

/// Where a session stands with transactions, as the protocol tells the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionStatus {
    Idle,
    InBlock,
    Failed,
}

/// A transaction block and what its COMMIT starts.
pub(super) struct Block {
    pub transaction: Transaction,
    pub new_jobs: Vec<NewJob>,
    pub failed: bool,
}

/// A client's session.
pub struct Session {
    pub(super) engine: Arc<Engine>,
    pub(super) runner: QueryRunner,
    pub(super) system: SystemTables,
    pub(super) block: Option<Block>,
    /// Whether a statement has taken the block out and is to put it back.
    pub(super) block_is_out: bool,
    /// Whether the block is what a pipeline makes of its statements, and ends with its Sync.
    in_pipeline: bool,
    interrupts: Interrupts,
    pub(super) variables: BTreeMap<String, String>,
    /// When the statement under way must have ended, rows included.
    deadline: Option<Instant>,
    /// What was said and not taken yet.
    notices: Vec<Notice>,
    /// The statements that PREPARE has named.
    pub(super) named: BTreeMap<String, NamedStatement>,
}

/// What a statement is called that can't be a part of a transaction which a message or a pipeline makes: it waits for what is committed, or commits more than
/// once. `None` for all others.
pub(super) fn runs_alone(statement: &Statement) -> Option<&'static str> {
    Some(match statement {
        Statement::Flush => "FLUSH",
        Statement::Checkpoint => "CHECKPOINT",
        Statement::Resume(_) => "ALTER JOB ... RESUME",
        Statement::Recover { .. } => "RECOVER",
        Statement::CreateSavepoint { .. } => "CREATE SAVEPOINT",
        Statement::DropSavepoint { .. } => "DROP SAVEPOINT",
        Statement::StopWithSavepoint { .. } => "ALTER JOB ... STOP WITH SAVEPOINT",
        Statement::AlterQuery { .. } => "ALTER ... AS",
        _ => return None,
    })
}

/// An error about `inner`, with its position in `outer`, the statement that it stands in.
fn of_inner(error: Error, inner: &Parsed, outer: &Parsed) -> Error {
    match error.position() {
        Some(position) => error.with_position(position + inner.offset.saturating_sub(outer.offset)),
        None => error,
    }
}

/// How often a statement is bound at most because views were replaced meanwhile.
pub(super) const MOST_ATTEMPTS: usize = 10;

/// Session variables that clients set and that have a meaning, or none, here: name, default, description.
const VARIABLES: &[(&str, &str, &str)] = &[
    ("application_name", "", "the client's name"),
    ("bytea_output", "hex", "no effect: there is no bytea"),
    ("client_encoding", "UTF8", "always UTF8"),
    ("client_min_messages", "notice", "which messages the client gets: error, warning, or notice and all that are less"),
    ("datestyle", "ISO, MDY", "always ISO"),
    ("default_transaction_isolation", "read committed", "always read committed"),
    ("default_transaction_read_only", "off", "always off"),
    ("dml_sync", "off", "whether INSERT INTO a connector table waits until a bounded job has finished"),
    ("extra_float_digits", "1", "no effect: doubles are printed so that they read back the same"),
    ("idle_in_transaction_session_timeout", "0", "no effect"),
    ("integer_datetimes", "on", "always on"),
    ("intervalstyle", "postgres", "no effect"),
    ("is_superuser", "on", "always on"),
    ("lock_timeout", "0", "no effect"),
    ("search_path", "public", "always public"),
    ("server_encoding", "UTF8", "always UTF8"),
    ("server_version", "15.0", "the PostgreSQL version whose protocol and SQL weir follows"),
    ("server_version_num", "150000", "the same as a number"),
    ("session_authorization", "weir", "the user"),
    ("standard_conforming_strings", "on", "always on"),
    ("statement_timeout", "0", "how long a statement may take; 0 for as long as it wants"),
    ("timezone", "UTC", "the session's time zone"),
    ("transaction_isolation", "read committed", "always read committed"),
    ("transaction_read_only", "off", "always off"),
];

/// Variables that have just one value here: any other is refused.
const FIXED: &[(&str, &[&str])] = &[
    ("client_encoding", &["utf8", "utf-8", "unicode"]),
    ("standard_conforming_strings", &["on", "true", "1"]),
    ("timezone", &["utc", "etc/utc", "gmt", "+00:00", "0"]),
    ("default_transaction_isolation", &["read committed"]),
    ("transaction_isolation", &["read committed"]),
    ("search_path", &["public", "\"$user\", public", "\"$user\",public", "$user, public", "", "public, pg_catalog"]),
];

impl Session {
    /// A new session on `engine`.
    pub fn new(engine: Arc<Engine>, runner: QueryRunner) -> Session {
        let variables = VARIABLES.iter().map(|(name, default, _)| ((*name).to_string(), (*default).to_string())).collect();
        Session {
            system: SystemTables::default(),
            engine,
            runner,
            block: None,
            block_is_out: false,
            in_pipeline: false,
            interrupts: Interrupts::default(),
            variables,
            deadline: None,
            notices: Vec::new(),
            named: BTreeMap::new(),
        }
    }

    /// A session that plans as this one does. It is in no transaction.
    pub(super) fn planner(&self) -> Session {
        let new = Session::new(self.engine.clone(), self.runner.clone());
        Session { system: self.system.clone(), variables: self.variables.clone(), named: self.named.clone(), ..new }
    }

    /// Where it stands with transactions.
    pub fn status(&self) -> TransactionStatus {
        match &self.block {
            None => TransactionStatus::Idle,
            Some(block) if block.failed => TransactionStatus::Failed,
            Some(_) => TransactionStatus::InBlock,
        }
    }

    /// The catalog as this session sees it.
    pub fn catalog(&self) -> Arc<Catalog> {
        match &self.block {
            Some(block) => block.transaction.catalog().clone(),
            None => self.engine.catalog(),
        }
    }

    /// The value of a session variable.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// What the statements since the last call had to say, as far as `client_min_messages` lets it through.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    pub(super) fn notify(&mut self, notice: Notice) {
        let wanted = match self.variable("client_min_messages") {
            Some("error") => false,
            Some("warning") => notice.severity >= Severity::Warning,
            _ => true,
        };
        if wanted {
            self.notices.push(notice);
        }
    }

    /// All session variables.
    pub(super) fn variables(&self) -> &BTreeMap<String, String> {
        &self.variables
    }

    pub(super) fn binder_settings(&self, parameter_types: Vec<Option<SqlType>>) -> BinderSettings {
        BinderSettings {
            time_zone: self.variable("timezone").unwrap_or("UTC").to_string(),
            now_us: Some(self.engine.clock().now_us()),
            parameter_types,
        }
    }

    /// The longest time that a statement may take.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let value = self.variable("statement_timeout").unwrap_or("0");
        crate::job::settings::parse_duration("statement_timeout", value).ok().filter(|timeout| !timeout.is_zero())
    }

    /// What a statement needs and gives. `types` are those of its parameters, as far as the client names them; the others are deduced.
    ///
    /// Waits where the columns of a state have to be asked for.
    pub async fn describe(&mut self, parsed: &Parsed, types: Vec<Option<SqlType>>) -> Result<Described> {
        self.find_called_tables(parsed).await?;
        let catalog = self.catalog();
        let described = self.planned(parsed, move |session, parsed| session.describe_found(&catalog, parsed, types)).await;
        self.system.called.clear();
        described
    }

    fn describe_found(&self, catalog: &Catalog, parsed: &Parsed, types: Vec<Option<SqlType>>) -> Result<Described> {
        let mut columns = result_columns(&parsed.statement);
        let parameters = match &parsed.statement {
            Statement::Query(query) => {
                let bound = self.bind(catalog, parsed, query, types.clone())?;
                let parameters = parameter_list(&bound.parameters)?;
                // It runs with the types that are known now. A value without type leaves the precision of a result to others; one of a type has its own.
                let is_deduced = |at: usize| !types.get(at).is_some_and(Option::is_some);
                let is_final = !parameters.iter().enumerate().any(|(at, ty)| is_deduced(at) && has_precision(ty));
                columns = match is_final {
                    true => bound.columns,
                    false => self.bind(catalog, parsed, query, parameters.iter().cloned().map(Some).collect())?.columns,
                };
                parameters
            }
            Statement::Insert { .. } | Statement::InsertDefaults { .. } | Statement::Update { .. } | Statement::Delete { .. } => {
                self.dml_parameters(catalog, parsed, types)?
            }
            Statement::Explain(inner) => match &inner.statement {
                Statement::Query(query) => {
                    let bound = self.bind(catalog, inner, query, types).map_err(|error| of_inner(error, inner, parsed))?;
                    parameter_list(&bound.parameters)?
                }
                _ => {
                    self.refuse_parameters(catalog, inner).map_err(|error| of_inner(error, inner, parsed))?;
                    Vec::new()
                }
            },
            Statement::Execute { name, .. } => {
                columns.clone_from(&self.named_statement(name)?.described.columns);
                Vec::new()
            }
            _ => {
                self.refuse_parameters(catalog, parsed)?;
                Vec::new()
            }
        };
        Ok(Described { parameters, columns })
    }

    /// `42P02` for a statement that keeps a query whose parameters nobody would give a value.
    fn refuse_parameters(&self, catalog: &Catalog, parsed: &Parsed) -> Result<()> {
        let (Statement::CreateView { query, .. } | Statement::CreateMaterializedView { query, .. } | Statement::CreateSink { query, .. }) =
            &parsed.statement
        else {
            return Ok(());
        };
        // An error of another kind is the statement's to tell when it runs.
        let Ok(bound) = self.bind(catalog, parsed, query, Vec::new()) else { return Ok(()) };
        match bound.parameters.keys().next() {
            Some(number) => Err(Error::new(SqlState::UNDEFINED_PARAMETER, format!("there is no parameter ${number}"))),
            None => Ok(()),
        }
    }

    pub(super) fn bind(
        &self,
        catalog: &Catalog,
        parsed: &Parsed,
        query: &datafusion::sql::sqlparser::ast::Query,
        types: Vec<Option<SqlType>>,
    ) -> Result<BoundQuery> {
        let settings = self.binder_settings(types);
        // That may take seconds for a wide query: others are served meanwhile.
        in_place(|| Binder::new(catalog, &settings).with_system_tables(&self.system).with_text(&parsed.text).bind_query(query))
    }

    /// Errors with `25P02` in a block that has failed: nothing but its end is run.
    pub fn check_block(&self) -> Result<()> {
        if self.status() != TransactionStatus::Failed {
            return Ok(());
        }
        let message = "current transaction is aborted, commands ignored until end of transaction block";
        Err(Error::new(SqlState::IN_FAILED_SQL_TRANSACTION, message))
    }

    /// Runs one statement with the values of its parameters. An error inside a transaction block fails the block.
    ///
    /// Errors with `0A000` where the result is no longer what the statement was described with.
    pub async fn execute(&mut self, parsed: &Parsed, arguments: &Arguments) -> Result<Reply> {
        if !matches!(parsed.statement, Statement::Rollback | Statement::Commit) {
            self.check_block()?;
        }
        self.deadline = self.timeout().map(|timeout| Instant::now() + timeout);
        let (deadline, interrupts) = (self.deadline, self.interrupts.clone());
        // A defect in one statement must not take the connection with it.
        let running = AssertUnwindSafe(self.dispatch(parsed, arguments)).catch_unwind();
        let result = match deadline {
            None => running.await,
            Some(deadline) => {
                let ended = interrupts.run_until(running, tokio::time::sleep_until(deadline)).await;
                ended.unwrap_or_else(|| Ok(Err(guarded::timed_out())))
            }
        };
        let result = result.unwrap_or_else(|panic| Err(guarded::panicked(panic.as_ref())));
        if result.is_err() {
            self.fail_block();
        }
        result
    }

    /// What may interrupt the statement under way.
    pub fn interrupts(&self) -> Interrupts {
        self.interrupts.clone()
    }

    /// The statement under way was cancelled or failed: so has the block.
    pub fn fail_block(&mut self) {
        if std::mem::take(&mut self.block_is_out) && self.block.is_none() {
            // It went with the statement. The client is in it all the same until it ends it.
            match self.engine.tables().begin() {
                Ok(transaction) => self.block = Some(Block { transaction, new_jobs: Vec::new(), failed: true }),
                Err(error) => tracing::error!(%error, "a transaction block that was cancelled is over before its end"),
            }
        }
        if let Some(block) = &mut self.block {
            block.failed = true;
        }
    }

    /// The block, if there is one, is over without effect.
    pub fn abandon_block(&mut self) {
        self.block = None;
        self.in_pipeline = false;
    }

    /// Before a statement of the extended protocol: what runs between two Syncs is one transaction, unless it stands in a block. `is_followed` says that
    /// something comes after it and before the next Sync; a statement alone needs none.
    ///
    /// Errors: `25001` for one that can't be a part of a transaction and is to run in one. As the first it runs at once, by itself.
    pub fn enter_pipeline(&mut self, statement: &Statement, is_followed: bool) -> Result<()> {
        let alone = match statement {
            Statement::DiscardAll => Some("DISCARD ALL"),
            statement => runs_alone(statement),
        };
        if self.block.is_some() {
            return match alone {
                Some(name) if self.in_pipeline => {
                    Err(Error::new(SqlState::ACTIVE_SQL_TRANSACTION, format!("{name} cannot be executed within a pipeline"))
                        .with_hint("Send a Sync before it: that commits what comes before."))
                }
                _ => Ok(()),
            };
        }
        let ends_or_begins = matches!(statement, Statement::Begin(_) | Statement::Commit | Statement::Rollback);
        if is_followed && alone.is_none() && !ends_or_begins {
            self.block = Some(Block { transaction: self.engine.tables().begin()?, new_jobs: Vec::new(), failed: false });
            self.in_pipeline = true;
        }
        Ok(())
    }

    /// Whether the statements since the last Sync are a transaction by themselves.
    pub fn is_in_pipeline(&self) -> bool {
        self.in_pipeline
    }

    /// A Sync: the transaction that the statements since the last one are, where they are one, is committed; undone where one of them has failed. Errors as
    /// COMMIT does.
    pub async fn end_pipeline(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.in_pipeline) {
            return Ok(());
        }
        if self.status() != TransactionStatus::InBlock {
            self.block = None;
            return Ok(());
        }
        let commit = Parsed { statement: Statement::Commit, text: String::new(), offset: 0 };
        let ended = self.execute(&commit, &Arguments::default()).await;
        if ended.is_err() {
            self.abandon_block();
        }
        ended.map(|_| ())
    }

    pub(super) async fn dispatch(&mut self, parsed: &Parsed, arguments: &Arguments) -> Result<Reply> {
        // COMMIT looks for conflicts itself, and ends the block whatever it finds.
        if let Some(block) = &mut self.block
            && !block.failed
            && !matches!(parsed.statement, Statement::Commit | Statement::Rollback)
        {
            block.transaction.begin_statement()?;
        }
        // It ends what the client has not begun.
        if matches!(parsed.statement, Statement::Commit | Statement::Rollback) && std::mem::take(&mut self.in_pipeline) {
            self.notify(Notice::no_transaction());
        }
        self.find_called_tables(parsed).await?;
        match &parsed.statement {
            Statement::Query(_) => {
                let mut attempts = 0;
                let result = loop {
                    let catalog = self.catalog();
                    let result = self.query(&catalog, parsed, arguments).await;
                    attempts += 1;
                    // A view was replaced after the query was bound: over the new one it has its answer.
                    let is_gone = |error: &Error| *error.code() == SqlState::UNDEFINED_TABLE;
                    if !result.as_ref().is_err_and(is_gone) || attempts == MOST_ATTEMPTS {
                        break result;
                    }
                    if let Some(block) = &mut self.block {
                        block.transaction.begin_statement()?;
                    }
                    if Arc::ptr_eq(&catalog, &self.catalog()) {
                        break result;
                    }
                };
                // The plan has them now, and nothing keeps their files longer than it.
                self.system.called.clear();
                result
            }
            Statement::Begin(tag) => {
                if self.block.is_none() {
                    let transaction = self.engine.tables().begin()?;
                    self.block = Some(Block { transaction, new_jobs: Vec::new(), failed: false });
                } else if !std::mem::take(&mut self.in_pipeline) {
                    self.notify(Notice::warning(SqlState::ACTIVE_SQL_TRANSACTION, "there is already a transaction in progress"));
                }
                // What a pipeline has done before becomes a part of the block.
                Ok(Reply::Command((*tag).into()))
            }
            Statement::Commit => match self.block.take() {
                None => {
                    self.notify(Notice::no_transaction());
                    Ok(Reply::Command("COMMIT".into()))
                }
                Some(block) if block.failed => Ok(Reply::Command("ROLLBACK".into())),
                Some(block) => {
                    let (_, given_up) = self.commit_durably(block.transaction, block.new_jobs, true).await?;
                    if let Some((names, error)) = given_up {
                        self.notify(Notice { severity: Severity::Warning, message: committed_without(&names, error) });
                    }
                    Ok(Reply::Command("COMMIT".into()))
                }
            },
            Statement::Rollback => {
                if self.block.take().is_none() {
                    self.notify(Notice::no_transaction());
                }
                Ok(Reply::Command("ROLLBACK".into()))
            }
            Statement::Insert { .. }
            | Statement::InsertDefaults { .. }
            | Statement::Update { .. }
            | Statement::Delete { .. }
            | Statement::Truncate { .. } => self.dml(parsed, arguments).await,
            Statement::Prepare { name, types, statement } => self.prepare_named(name, types, statement).await,
            Statement::Execute { name, arguments } => self.execute_named(parsed, name, arguments).await,
            Statement::Deallocate(name) => Ok(self.deallocate(name.as_deref())),
            Statement::CreateTable { .. }
            | Statement::CreateConnectorTable { .. }
            | Statement::CreateView { .. }
            | Statement::CreateMaterializedView { .. }
            | Statement::CreateSink { .. }
            | Statement::Drop { .. } => self.ddl(parsed).await,
            Statement::Set { local: true, .. } => Err(Error::unsupported("SET LOCAL is not supported")),
            Statement::Set { name, value, .. } => {
                self.set(name, value.as_deref())?;
                Ok(Reply::Command(if value.is_some() { "SET".into() } else { "RESET".into() }))
            }
            Statement::ResetAll => {
                self.reset_all();
                Ok(Reply::Command("RESET".into()))
            }
            Statement::DiscardAll => {
                if self.block.is_some() {
                    return Err(Error::new(SqlState::ACTIVE_SQL_TRANSACTION, "DISCARD ALL cannot run inside a transaction block"));
                }
                self.reset_all();
                self.named.clear();
                Ok(Reply::Command("DISCARD ALL".into()))
            }
            Statement::ShowSetting(name) if name == "all" => self.show_all(),
            Statement::ShowSetting(name) => self.show_setting(name),
            Statement::Show(ShowKind::Savepoints) => self.show_savepoints().await,
            Statement::Show(kind) => self.show(*kind).await,
            Statement::Describe(name) => self.describe_object(name),
            Statement::Explain(inner) => {
                let explained = match &inner.statement {
                    Statement::AlterQuery { name, .. } => self.explain_state(inner, Some(name)).await,
                    Statement::CreateMaterializedView { origin: Some(_), .. } | Statement::CreateSink { origin: Some(_), .. } => {
                        self.explain_state(inner, None).await
                    }
                    _ => self.explain(inner, arguments).await,
                };
                explained.map_err(|error| of_inner(error, inner, parsed))
            }
            Statement::CreateSavepoint { name, job, location } => self.create_savepoint(name, job, location.as_deref()).await,
            Statement::DescribeSavepoint(source) => self.describe_savepoint(source).await,
            Statement::DropSavepoint { names, if_exists } => self.drop_savepoints(names, *if_exists).await,
            Statement::StopWithSavepoint { job, name, location } => self.stop_with_savepoint(job, name, location.as_deref()).await,
            Statement::AlterQuery { name, allow_non_restored_state, .. } => self.alter_query(parsed, name, *allow_non_restored_state).await,
            Statement::Flush => {
                self.engine.flush().await?;
                Ok(Reply::Command("FLUSH".into()))
            }
            Statement::Checkpoint => {
                self.engine.checkpoint().await?;
                Ok(Reply::Command("CHECKPOINT".into()))
            }
            Statement::Resume(name) => {
                let catalog = self.catalog();
                self.engine.resume(self.job(&catalog, name)?.id).await?;
                Ok(Reply::Command("ALTER JOB".into()))
            }
            Statement::Recover { job, checkpoint } => {
                self.outside_block("RECOVER")?;
                let job = self.job(&self.catalog(), job)?;
                self.engine.recover(job.id, *checkpoint).await?;
                Ok(Reply::Command("RECOVER".into()))
            }
            Statement::NoOp(tag) => Ok(Reply::Command((*tag).into())),
        }
    }

    async fn query(&mut self, catalog: &Arc<Catalog>, parsed: &Parsed, arguments: &Arguments) -> Result<Reply> {
        let (catalog, arguments) = (catalog.clone(), arguments.clone());
        let plan = move |session: &Session, parsed: &Parsed| {
            let Statement::Query(query) = &parsed.statement else { return Err(Error::internal("a statement was taken for a query")) };
            let bound = session.bind(&catalog, parsed, query, arguments.types())?;
            arguments.check_result(&bound.columns)?;
            Ok((arguments.put_into(bound.plan)?, bound.columns))
        };
        let (plan, columns) = self.planned(parsed, plan).await?;
        let stream = self.run(&plan).await?;
        Ok(Reply::Rows(RowStream { columns, stream, tag: "SELECT" }))
    }

    /// Runs a plan over the cut that this session sees.
    pub(super) async fn run(&self, plan: &LogicalPlan) -> Result<SendableRecordBatchStream> {
        let transaction = self.block.as_ref().map(|block| &block.transaction);
        let timeout = self.timeout().unwrap_or(Duration::from_secs(86_400));
        let cut = self.runner.cut(plan, transaction, timeout).await?;
        let rows = self.runner.run(plan, &cut, &self.system).await?;
        Ok(guarded::guard(rows, self.deadline))
    }

    /// Makes a transaction durable; with new jobs, returns when each has published its first version. A job that can't is dropped again, and so is
    /// one whose CREATE is cancelled meanwhile.
    pub(super) async fn commit(&self, transaction: Transaction, new_jobs: Vec<NewJob>) -> Result<Committed> {
        match self.commit_durably(transaction, new_jobs, false).await? {
            (committed, None) => Ok(committed),
            (_, Some((_, error))) => Err(error),
        }
    }

    /// As [`Session::commit`], for a transaction with more in it than what its new jobs are for: an error says that nothing was committed. The names of
    /// jobs that were dropped again, and why, stand beside what was: for a block, which has more in it, also where the statement is interrupted.
    pub(super) async fn commit_durably(
        &self,
        transaction: Transaction,
        new_jobs: Vec<NewJob>,
        is_block: bool,
    ) -> Result<(Committed, Option<(Vec<String>, Error)>)> {
        let turn = self.engine.commit_turn(&transaction).await;
        // From here on the answer is the log's: nobody is told that a commit was cancelled which then is there.
        let held = self.interrupts.hold();
        let committed = self.engine.commit_in_turn(turn, transaction, new_jobs).await;
        let mut committed = committed.map_err(|e| Error::internal(format!("a commit did not end: {e}"))).flatten()?;
        let started = std::mem::take(&mut committed.started);
        let jobs = started.iter().map(|(job, _)| job.clone()).collect();
        let mut guard = CreateGuard { engine: self.engine.clone(), interrupts: self.interrupts.clone(), jobs };
        let held = is_block.then_some(held);
        for (job, told) in started {
            if !matches!(job.kind, weir_catalog::JobKind::MaterializedView { .. }) {
                continue; // A sink runs from here on by itself; its errors are in SHOW JOBS.
            }
            let mut published = tokio::select! {
                biased;
                told = told => told.map_err(|_| Error::new(SqlState::ADMIN_SHUTDOWN, "the server is shutting down")).flatten(),
                () = self.interrupts.wanted(), if held.is_some() => {
                    Err(Error::new(SqlState::QUERY_CANCELED, "the wait for its first version was canceled"))
                }
            };
            if published.is_ok() && job.origin.is_some() {
                // From here on it needs the savepoint no more, which may be dropped.
                published = self.engine.checkpoint_of(job.id).await;
            }
            if let Err(error) = published {
                // Gone before the client hears of it: the names are free again.
                let names = guard.jobs.iter().map(|job| job.name.clone()).collect();
                guard.drop_all().await;
                return Ok((committed, Some((names, error))));
            }
        }
        guard.jobs.clear();
        Ok((committed, None))
    }

    /// Drops the jobs that are put into it, unless they are taken out before.
    pub(super) fn guard_created(&self) -> CreateGuard {
        CreateGuard { engine: self.engine.clone(), interrupts: self.interrupts.clone(), jobs: Vec::new() }
    }

    /// The statement under way is not interrupted until this is dropped.
    pub(super) fn hold_interrupts(&self) -> Held {
        self.interrupts.hold()
    }

    // ---- settings ----

    fn reset_all(&mut self) {
        for (name, default, _) in VARIABLES {
            self.variables.insert((*name).to_string(), (*default).to_string());
        }
        self.variables.remove("parallelism");
    }

    fn set(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        let name = name.to_ascii_lowercase();
        if name == "parallelism" {
            match value {
                None => drop(self.variables.remove("parallelism")),
                Some(value) => {
                    self.engine.settings().set(&name, value)?;
                    self.variables.insert(name, value.to_string());
                }
            }
            return Ok(());
        }
        if let Some(info) = Settings::info(&name) {
            return self.engine.set(&name, value.unwrap_or(info.default));
        }
        let Some((_, default, _)) = VARIABLES.iter().find(|(known, _, _)| *known == name) else {
            return Err(Error::new(SqlState::UNDEFINED_OBJECT, format!("unrecognized configuration parameter \"{name}\"")));
        };
        let value = value.unwrap_or(default);
        let refused = || Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("invalid value for parameter \"{name}\": \"{value}\""));
        if let Some((_, allowed)) = FIXED.iter().find(|(fixed, _)| *fixed == name)
            && !allowed.contains(&value.to_ascii_lowercase().as_str())
        {
            return Err(refused().with_detail(format!("Only {} is supported.", allowed[0])));
        }
        match name.as_str() {
            "statement_timeout" => drop(crate::job::settings::parse_duration(&name, value)?),
            "client_min_messages" => {
                const LEVELS: [&str; 9] = ["debug", "debug1", "debug2", "debug3", "debug4", "debug5", "log", "notice", "warning"];
                let level = value.to_ascii_lowercase();
                if level != "error" && !LEVELS.contains(&level.as_str()) {
                    return Err(
                        refused().with_hint("Available values: debug5, debug4, debug3, debug2, debug1, log, notice, warning, error.")
                    );
                }
                self.variables.insert(name, level);
                return Ok(());
            }
            "dml_sync" => {
                let on = match value.to_ascii_lowercase().as_str() {
                    "on" | "true" | "yes" | "1" => "on",
                    "off" | "false" | "no" | "0" => "off",
                    _ => return Err(refused()),
                };
                self.variables.insert(name, on.to_string());
                return Ok(());
            }
            _ => {}
        }
        self.variables.insert(name, value.to_string());
        Ok(())
    }

    /// The parallelism of jobs that this session creates.
    pub(super) fn parallelism(&self) -> Result<usize> {
        let mut settings = self.engine.settings();
        if let Some(value) = self.variable("parallelism") {
            settings.set("parallelism", value)?;
        }
        Ok(settings.parallelism)
    }

    fn show_setting(&self, name: &str) -> Result<Reply> {
        let name = name.to_ascii_lowercase();
        let value = match self.variable(&name) {
            Some(value) => Some(value.to_string()),
            None => self.engine.settings().get(&name),
        };
        let value =
            value.ok_or_else(|| Error::new(SqlState::UNDEFINED_OBJECT, format!("unrecognized configuration parameter \"{name}\"")))?;
        super::system::text_rows(&[&name], vec![vec![Some(value)]], "SHOW")
    }

    fn show_all(&self) -> Result<Reply> {
        let settings = self.engine.settings();
        let mut rows: Vec<Vec<Option<String>>> = SETTINGS
            .iter()
            .map(|info| {
                let value = self.variable(info.name).map(str::to_string).or_else(|| settings.get(info.name));
                vec![Some(info.name.to_string()), value, Some(info.description.to_string())]
            })
            .collect();
        rows.extend(VARIABLES.iter().map(|(name, _, description)| {
            vec![Some((*name).to_string()), self.variable(name).map(str::to_string), Some((*description).to_string())]
        }));
        rows.sort();
        super::system::text_rows(&["name", "setting", "description"], rows, "SHOW")
    }

    async fn show(&self, kind: ShowKind) -> Result<Reply> {
        let query = match kind {
            ShowKind::Savepoints => return Err(Error::internal("savepoints stand in no system view")),
            ShowKind::Jobs => "SELECT * FROM weir_jobs ORDER BY id",
            // A row for each checkpoint, as it came out in the groups that took part; weir_checkpoints has one for each operator and subtask.
            ShowKind::Checkpoints => {
                "SELECT checkpoint, state, min(started) AS started, max(duration_us) AS duration_us, count(DISTINCT job) AS jobs, \
                 max(alignment_us) AS alignment_us, max(snapshot_us) AS snapshot_us, max(store_us) AS store_us, sum(bytes)::bigint AS bytes, \
                 sum(bytes_new)::bigint AS bytes_new, sum(files_new)::bigint AS files_new, sum(files_reused)::bigint AS files_reused, \
                 max(error) AS error, bool_or(retained) AS retained FROM weir_checkpoints GROUP BY checkpoint, state ORDER BY checkpoint, state"
            }
            ShowKind::Tables => "SELECT name, kind, connector FROM weir_relations WHERE kind = 'table' ORDER BY name",
            ShowKind::Sources => "SELECT name, connector FROM weir_relations WHERE kind = 'table' AND connector IS NOT NULL ORDER BY name",
            ShowKind::Views => "SELECT name, definition FROM weir_relations WHERE kind = 'view' ORDER BY name",
            ShowKind::MaterializedViews => "SELECT name, definition FROM weir_relations WHERE kind = 'materialized view' ORDER BY name",
            ShowKind::Sinks => "SELECT name, connector, guarantee, definition FROM weir_relations WHERE kind = 'sink' ORDER BY name",
        };
        let parsed = weir_sql::parser::parse(query)?;
        let Some(Parsed { statement: Statement::Query(query), .. }) = parsed.first() else {
            return Err(Error::internal("a system query is no query"));
        };
        let catalog = self.catalog();
        let bound = self.bind(&catalog, &parsed[0], query, Vec::new())?;
        let stream = self.run(&bound.plan).await?;
        Ok(Reply::Rows(RowStream { columns: bound.columns, stream, tag: "SHOW" }))
    }

    fn describe_object(&self, name: &str) -> Result<Reply> {
        let catalog = self.catalog();
        let object =
            catalog.get(name).ok_or_else(|| Error::new(SqlState::UNDEFINED_TABLE, format!("relation \"{name}\" does not exist")))?;
        let key: Vec<usize> = match object.as_ref() {
            Object::StoredTable(table) => table.primary_key.clone().unwrap_or_default(),
            Object::Job(Job { kind: weir_catalog::JobKind::MaterializedView { key: Some(key), .. }, .. }) => key.clone(),
            _ => Vec::new(),
        };
        let rows = object
            .columns()
            .iter()
            .enumerate()
            .map(|(at, column)| {
                let key = key.iter().position(|part| *part == at).map(|place| format!("key {}", place + 1));
                let nullable = if column.nullable { "" } else { "not null" };
                vec![Some(column.name.clone()), Some(column.ty.to_string()), Some(nullable.to_string()), column.default.clone(), key]
            })
            .collect();
        super::system::text_rows(&["column", "type", "nullable", "default", "key"], rows, "SELECT")
    }
}

/// Drops jobs whose creation was given up before they published.
pub(super) struct CreateGuard {
    engine: Arc<Engine>,
    interrupts: Interrupts,
    pub jobs: Vec<Arc<Job>>,
}

impl CreateGuard {
    /// Drops the jobs now.
    pub(super) async fn drop_all(&mut self) {
        drop_given_up(&self.engine, &self.jobs).await;
        self.jobs.clear();
    }
}

impl Drop for CreateGuard {
    fn drop(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let (engine, jobs) = (self.engine.clone(), std::mem::take(&mut self.jobs));
        if tokio::runtime::Handle::try_current().is_ok() {
            self.interrupts.take_back(async move { drop_given_up(&engine, &jobs).await });
        }
    }
}

/// What a COMMIT says that is durable, but for jobs that could not be started.
fn committed_without(names: &[String], error: Error) -> Error {
    let names: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    let mut said = Error::new(error.code().clone(), format!("the transaction is committed, but without {}", names.join(", ")))
        .with_detail(format!("What was created could not be built: {}", error.message()));
    if let Some(hint) = error.hint() {
        said = said.with_hint(hint);
    }
    said
}

/// How often a job that was given up is tried to be dropped, and how long between: what reads it may just be coming, to be given up too.
const DROP_TRIES: usize = 50;
const DROP_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Drops jobs whose creation was given up, those first that read others of them.
pub(super) async fn drop_given_up(engine: &Arc<Engine>, jobs: &[Arc<Job>]) {
    for job in jobs.iter().rev() {
        let mut tries = 0;
        // It may be that another session has dropped it.
        while engine.catalog().get_id(job.id).is_some() {
            tries += 1;
            match drop_with_hidden_readers(engine, job).await {
                Ok(()) => break,
                Err(_) if tries < DROP_TRIES => tokio::time::sleep(DROP_PAUSE).await,
                Err(error) => {
                    tracing::warn!(job = %job.name, %error, "a job whose creation was given up could not be dropped");
                    break;
                }
            }
        }
    }
}

/// Drops `job`, and before it what only an ALTER that was given up has made of its readers.
async fn drop_with_hidden_readers(engine: &Arc<Engine>, job: &Job) -> Result<()> {
    let mut transaction = engine.tables().begin()?;
    let catalog = transaction.catalog().clone();
    for id in catalog.drop_order(job.id) {
        if id == job.id || catalog.get_id(id).is_some_and(|reader| reader.name().starts_with(UPGRADE_PREFIX)) {
            transaction.change_catalog(weir_catalog::CatalogChange::Drop(id))?;
        }
    }
    engine.commit(transaction, Vec::new()).await.map(|_| ())
}

/// The columns of statements that give rows and are no queries.
fn result_columns(statement: &Statement) -> Vec<Column> {
    let text = |names: &[&str]| names.iter().map(|name| super::system::text_column(name)).collect();
    match statement {
        Statement::ShowSetting(name) if name == "all" => text(&["name", "setting", "description"]),
        Statement::ShowSetting(name) => text(&[name.as_str()]),
        Statement::Describe(_) => text(&["column", "type", "nullable", "default", "key"]),
        Statement::DescribeSavepoint(_) => text(super::savepoint::STATE_COLUMNS),
        Statement::Explain(inner) => match &inner.statement {
            Statement::AlterQuery { .. }
            | Statement::CreateMaterializedView { origin: Some(_), .. }
            | Statement::CreateSink { origin: Some(_), .. } => text(super::savepoint::VERDICT_COLUMNS),
            _ => text(&["QUERY PLAN"]),
        },
        Statement::Show(kind) => super::system::show_columns(*kind),
        _ => Vec::new(),
    }
}

/// The types of `$1`, `$2`, ... in order. Errors with `42P18` where one is left out.
pub(super) fn parameter_list(parameters: &BTreeMap<usize, SqlType>) -> Result<Vec<SqlType>> {
    let count = parameters.keys().next_back().copied().unwrap_or(0);
    (1..=count)
        .map(|number| {
            parameters.get(&number).cloned().ok_or_else(|| {
                let code = SqlState::parse("42P18").unwrap_or(SqlState::UNDEFINED_PARAMETER);
                Error::new(code, format!("could not determine data type of parameter ${number}"))
            })
        })
        .collect()
}
