//! The PostgreSQL wire protocol, version 3: what clients send, turned into statements of a [`Session`], and what these give, turned into messages.
//!
//! Protocol: chapter 55 of PostgreSQL's manual.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use datafusion::common::ScalarValue;
use futures::{Sink, SinkExt, StreamExt};
use pgwire::api::auth::{
    ServerParameterProvider, StartupHandler, finish_authentication, protocol_negotiation, save_startup_parameters_to_metadata,
};
use pgwire::api::cancel::CancelHandler;
use pgwire::api::portal::{Format, Portal};
use pgwire::api::query::{ExtendedQueryHandler, SimpleQueryHandler, send_ready_for_query};
use pgwire::api::results::{FieldFormat, FieldInfo, Response};
use pgwire::api::stmt::QueryParser;
use pgwire::api::store::PortalStore;
use pgwire::api::{ClientInfo, ClientPortalStore, PgWireConnectionState, PidSecretKeyGenerator, Type};
use pgwire::error::{ErrorInfo, PgWireError, PgWireResult};
use pgwire::messages::cancel::CancelRequest;
use pgwire::messages::data::RowDescription;
use pgwire::messages::extendedquery::{Bind, Describe, Execute, Parse, Sync as WireSync};
use pgwire::messages::response::{CommandComplete, EmptyQueryResponse, TransactionStatus as WireStatus};
use pgwire::messages::simplequery::Query;
use pgwire::messages::{PgWireBackendMessage, PgWireFrontendMessage};
use weir_catalog::{Error, Result, SqlState, SqlType};
use weir_sql::statement::{Parsed, Statement};

use super::clients::{Clients, Shared};
use super::encode;
use super::interrupts::{Asking, Interruption};
use super::pg_catalog::SessionFacts;
use super::planning;
use super::prepared::{Arguments, Described, RESULT_CHANGED};
use super::session::{Notice, Reply, RowStream, Session, TransactionStatus, runs_alone};
use crate::operators::error::{from_datafusion, told};

/// One client's connection.
pub(super) struct Connection {
    pub(super) session: tokio::sync::Mutex<Session>,
    /// Asks its statements to end, or itself.
    pub asking: Asking,
    /// Whether something comes after the Execute under way and before the next Sync.
    is_followed: AtomicBool,
    pub(super) shared: Arc<Shared>,
    clients: Arc<Clients>,
}

/// A connection as the protocol layer holds it.
#[derive(Clone)]
pub struct ConnectionRef(Arc<Connection>);

impl ConnectionRef {
    /// A connection of one of `clients`. Errors with `57P03` where there are no sessions now.
    pub(super) fn new(clients: &Arc<Clients>) -> Result<ConnectionRef> {
        let shared = clients.admit()?;
        let session = Session::new(shared.engine.clone(), shared.runner.clone());
        Ok(ConnectionRef(Arc::new(Connection {
            session: tokio::sync::Mutex::new(session),
            asking: Asking::default(),
            is_followed: AtomicBool::new(false),
            shared,
            clients: clients.clone(),
        })))
    }

    /// What it is asked from now on.
    pub(super) fn interruption(&self) -> Interruption {
        self.0.asking.interruption()
    }

    /// The client was told of the end of its session, or is gone.
    pub(super) fn has_ended(&self) {
        self.0.clients.end(&self.0);
    }

    /// Says whether something comes after the Execute that comes now and before the next Sync.
    pub(super) fn set_followed(&self, is_followed: bool) {
        self.0.is_followed.store(is_followed, Ordering::Relaxed);
    }

    /// The message under way has failed, and with it the block that it stands in. Returns where the session stands now.
    pub(super) async fn fail_block(&self) -> WireStatus {
        self.0.session.lock().await.fail_block();
        self.0.wire_status().await
    }
}

/// What a client is told about the server when it connects.
struct Parameters;

impl ServerParameterProvider for Parameters {
    fn server_parameters<C: ClientInfo>(&self, client: &C) -> Option<HashMap<String, String>> {
        let user = client.metadata().get("user").cloned().unwrap_or_else(|| "weir".into());
        let application = client.metadata().get("application_name").cloned().unwrap_or_default();
        Some(
            [
                ("server_version", "15.0 (weir)"),
                ("server_encoding", "UTF8"),
                ("client_encoding", "UTF8"),
                ("DateStyle", "ISO, MDY"),
                ("IntervalStyle", "postgres"),
                ("TimeZone", "UTC"),
                ("integer_datetimes", "on"),
                ("is_superuser", "on"),
                ("standard_conforming_strings", "on"),
                ("session_authorization", user.as_str()),
                ("application_name", application.as_str()),
            ]
            .into_iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect(),
        )
    }
}

#[async_trait]
impl StartupHandler for ConnectionRef {
    async fn on_startup<C>(&self, client: &mut C, message: PgWireFrontendMessage) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        if let PgWireFrontendMessage::Startup(startup) = &message {
            protocol_negotiation(client, startup).await?;
            save_startup_parameters_to_metadata(client, startup);
            let (pid, key) = self.0.shared.keys.generate(client);
            client.set_pid_and_secret_key(pid, key.clone());
            let begun = self.0.clients.begin(pid, key, self.0.clone());
            begun.map_err(|error| PgWireError::UserError(Box::new(error_info("FATAL", &error))))?;
            finish_authentication(client, &Parameters).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl CancelHandler for ConnectionRef {
    async fn on_cancel_request(&self, request: CancelRequest) {
        self.0.clients.cancel(&request);
    }
}

impl Connection {
    /// Runs a statement of the extended protocol.
    pub(super) async fn execute_extended(&self, parsed: &Parsed, arguments: &Arguments, interruption: &mut Interruption) -> Result<Reply> {
        let is_followed = self.is_followed.load(Ordering::Relaxed);
        self.session.lock().await.enter_pipeline(&parsed.statement, is_followed)?;
        self.execute(parsed, arguments, interruption).await
    }

    /// A Sync has come, or what stands for one. Cancel requests of before were for the statements.
    async fn end_pipeline(&self) -> Result<()> {
        let mut interruption = self.asking.interruption();
        let mut session = self.session.lock().await;
        if !session.is_in_pipeline() {
            return Ok(());
        }
        let interrupts = session.interrupts();
        let ended = interrupts.run(session.end_pipeline(), &mut interruption).await;
        if ended.is_err() {
            session.abandon_block();
        }
        ended
    }

    /// Runs a statement, unless it is interrupted meanwhile.
    async fn execute(&self, parsed: &Parsed, arguments: &Arguments, interruption: &mut Interruption) -> Result<Reply> {
        let mut session = self.session.lock().await;
        let interrupts = session.interrupts();
        let reply = interrupts.run(session.execute(parsed, arguments), interruption).await;
        if reply.is_err() {
            session.fail_block();
        }
        reply
    }

    async fn wire_status(&self) -> WireStatus {
        match self.session.lock().await.status() {
            TransactionStatus::Idle => WireStatus::Idle,
            TransactionStatus::InBlock => WireStatus::Transaction,
            TransactionStatus::Failed => WireStatus::Error,
        }
    }

    /// Runs the statements of one simple query message and sends what each gives.
    async fn run_script<C>(&self, client: &mut C, script: &str) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        if self.run_catalog_query(client, script).await? {
            return Ok(());
        }
        let mut interruption = self.asking.interruption();
        let parsed = tokio::select! {
            biased;
            parsed = planning::parsed(script) => parsed,
            error = interruption.wanted() => Err(error),
        };
        let statements = match parsed {
            Ok(statements) => statements,
            Err(error) => {
                self.session.lock().await.fail_block();
                return Err(wire_error(error));
            }
        };
        if statements.is_empty() {
            client.feed(PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new())).await?;
            return Ok(());
        }
        let mut result = Ok(());
        for (at, parsed) in statements.iter().enumerate() {
            let following = &statements[at + 1..];
            let is_read = following.iter().any(|parsed| matches!(parsed.statement, Statement::Query(_)));
            let is_alone = runs_alone(&parsed.statement).is_some() || creates_job(&parsed.statement) && is_read;
            result = self.run_part(client, parsed, is_alone, !following.is_empty(), &mut interruption).await;
            if result.is_err() {
                break;
            }
        }
        let ended = self.end_pipeline().await.map_err(wire_error);
        self.send_notices(client).await?;
        result.and(ended)
    }

    /// Runs one statement of a message. What stands in one message is one transaction, as in PostgreSQL, up to a BEGIN, which takes it over, or a COMMIT or
    /// ROLLBACK; and up to a statement that runs alone: FLUSH and the like wait for what is committed, and a view that the message may read later has to run
    /// then.
    async fn run_part<C>(
        &self,
        client: &mut C,
        parsed: &Parsed,
        is_alone: bool,
        is_followed: bool,
        interruption: &mut Interruption,
    ) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        if is_alone {
            self.end_pipeline().await.map_err(wire_error)?;
            self.send_notices(client).await?;
        } else {
            self.session.lock().await.enter_pipeline(&parsed.statement, is_followed).map_err(wire_error)?;
        }
        self.run_one(client, parsed, interruption).await
    }

    /// Answers a message that reads the system catalog only. False where it is another.
    async fn run_catalog_query<C>(&self, client: &mut C, script: &str) -> PgWireResult<bool>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let (catalog, facts) = self.catalog_facts(client).await;
        let Some(answer) = self.shared.pg_catalog.with_session(facts).try_query(script, &catalog).await else { return Ok(false) };
        let answer = self.session.lock().await.check_block().and(answer);
        match answer {
            Ok(rows) => {
                self.send_rows(client, rows, 0, &mut self.asking.interruption()).await?;
            }
            Err(error) => {
                self.session.lock().await.fail_block();
                return Err(wire_error(error));
            }
        }
        Ok(true)
    }

    /// What catalog queries need to know of the session.
    pub(super) async fn catalog_facts<C: ClientInfo>(&self, client: &C) -> (Arc<weir_catalog::Catalog>, SessionFacts) {
        let session = self.session.lock().await;
        let user = client.metadata().get("user").cloned().unwrap_or_else(|| "weir".into());
        let (process_id, _) = client.pid_and_secret_key();
        (session.catalog(), SessionFacts { user, process_id, variables: session.variables().clone() })
    }

    async fn run_one<C>(&self, client: &mut C, parsed: &Parsed, interruption: &mut Interruption) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let at = |error: Error| wire_error(moved(error, parsed.offset));
        let reply = self.execute(parsed, &Arguments::default(), interruption).await;
        self.send_notices(client).await?;
        match reply.map_err(at)? {
            Reply::Command(tag) => {
                client.feed(PgWireBackendMessage::CommandComplete(CommandComplete::new(tag))).await?;
            }
            Reply::Rows(rows) => self.send_rows(client, rows, parsed.offset, interruption).await?,
        }
        Ok(())
    }

    /// Sends what the last statement had to say besides its result.
    pub(super) async fn send_notices<C>(&self, client: &mut C) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let notices = self.session.lock().await.take_notices();
        for Notice { severity, message } in notices {
            client.feed(PgWireBackendMessage::NoticeResponse(error_info(severity.as_str(), &message).into())).await?;
        }
        Ok(())
    }

    /// Sends rows with their description and the command tag. Positions in errors are moved by `offset`.
    async fn send_rows<C>(&self, client: &mut C, rows: RowStream, offset: usize, interruption: &mut Interruption) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let at = |error: Error| wire_error(moved(error, offset));
        let RowStream { columns, mut stream, tag } = rows;
        let fields = encode::fields(&columns, &Format::UnifiedText);
        let description = RowDescription::new(fields.iter().map(Into::into).collect());
        client.feed(PgWireBackendMessage::RowDescription(description)).await?;
        let formats: Arc<[FieldFormat]> = vec![FieldFormat::Text; columns.len()].into();
        let mut count = 0;
        loop {
            let batch = tokio::select! {
                biased;
                error = interruption.wanted() => {
                    self.session.lock().await.fail_block();
                    return Err(wire_error(error));
                }
                batch = stream.next() => batch,
            };
            let Some(batch) = batch else { break };
            let rows = match batch {
                Ok(batch) => encode::rows(batch, formats.clone()),
                Err(error) => {
                    self.session.lock().await.fail_block();
                    return Err(at(from_datafusion(error)));
                }
            };
            for row in rows {
                let row = match row {
                    Ok(row) => row,
                    Err(error) => {
                        self.session.lock().await.fail_block();
                        return Err(at(error));
                    }
                };
                count += 1;
                client.feed(PgWireBackendMessage::DataRow(row)).await?;
            }
        }
        client.feed(PgWireBackendMessage::CommandComplete(CommandComplete::new(row_tag(tag, count)))).await?;
        Ok(())
    }
}

pub(super) fn row_tag(tag: &str, count: usize) -> String {
    if tag == "SELECT" { format!("SELECT {count}") } else { tag.to_string() }
}

/// Whether a statement starts a job.
fn creates_job(statement: &Statement) -> bool {
    matches!(statement, Statement::CreateMaterializedView { .. } | Statement::CreateSink { .. })
}

/// `error` with its position in the whole message rather than in the statement.
fn moved(error: Error, offset: usize) -> Error {
    match error.position() {
        Some(position) => error.with_position(position + offset),
        None => error,
    }
}

/// An error as the protocol has it. With one that says that the server stops, the connection ends.
pub(super) fn wire_error(error: Error) -> PgWireError {
    let severity = if *error.code() == SqlState::ADMIN_SHUTDOWN { "FATAL" } else { "ERROR" };
    PgWireError::UserError(Box::new(error_info(severity, &error)))
}

/// An error or a notice as the protocol has it.
pub(super) fn error_info(severity: &str, error: &Error) -> ErrorInfo {
    let mut info = ErrorInfo::new(severity.to_string(), error.code().as_str().to_string(), told(error.message()));
    info.severity_nonlocalized = Some(severity.to_string());
    info.detail = error.detail().map(told);
    info.hint = error.hint().map(told);
    info.position = error.position().map(|position| position.to_string());
    info.where_context = error.context().map(told);
    // By this name drivers know that preparing the statement again helps.
    info.routine = (error.message() == RESULT_CHANGED).then(|| "RevalidateCachedQuery".to_string());
    info
}

#[async_trait]
impl SimpleQueryHandler for ConnectionRef {
    async fn on_query<C>(&self, client: &mut C, query: Query) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        client.set_state(PgWireConnectionState::QueryInProgress);
        // A pipeline without its Sync.
        self.0.end_pipeline().await.map_err(wire_error)?;
        let result = self.0.run_script(client, &query.query).await;
        self.0.drop_ended_portals(client).await;
        let status = self.0.wire_status().await;
        client.set_transaction_status(status);
        result?;
        client.set_state(PgWireConnectionState::ReadyForQuery);
        send_ready_for_query(client, status).await
    }

    async fn do_query<C>(&self, _client: &mut C, _query: &str) -> PgWireResult<Vec<Response>>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        // `on_query` sends results as they come and does not ask for this.
        Err(wire_error(Error::internal("a simple query was taken for another")))
    }
}

/// A statement that was prepared.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(super) statement: PreparedStatement,
    pub(super) described: Arc<Described>,
    /// The parameters' types as the client declared them, as far as it did.
    pub(super) declared: Arc<[Option<Type>]>,
    /// The values that it is bound with, where it is a portal's.
    pub(super) values: Arc<Vec<ScalarValue>>,
}

/// What there is to run.
#[derive(Clone, Debug)]
pub(super) enum PreparedStatement {
    Session(Arc<Parsed>),
    /// Reads the system catalog only.
    Catalog(Arc<str>),
}

impl Prepared {
    /// The wire types of its parameters, declared ones as they were. Arrays of whole numbers that the system catalog is asked for are of OIDs.
    pub(super) fn wire_parameters(&self) -> Vec<Type> {
        let of_catalog = matches!(self.statement, PreparedStatement::Catalog(_));
        let wire_type = |ty: &SqlType| match encode::wire_type(ty) {
            Type::INT4_ARRAY if of_catalog => Type::OID_ARRAY,
            other => other,
        };
        let declared = |at: usize| self.declared.get(at).cloned().flatten().filter(|ty| encode::sql_type(ty).is_some());
        self.described.parameters.iter().enumerate().map(|(at, ty)| declared(at).unwrap_or_else(|| wire_type(ty))).collect()
    }
}

/// Prepares statements on a connection's session.
pub struct Parser(Arc<Connection>);

/// What a statement needs and gives; `None` for no statement.
async fn prepare(session: &mut Session, sql: &str, types: &[Option<Type>]) -> Result<Option<Prepared>> {
    let mut statements = planning::parsed(sql).await?;
    if statements.len() > 1 {
        return Err(Error::new(SqlState::SYNTAX_ERROR, "cannot insert multiple commands into a prepared statement"));
    }
    let Some(parsed) = statements.pop() else { return Ok(None) };
    if !matches!(parsed.statement, Statement::Commit | Statement::Rollback) {
        session.check_block()?;
    }
    let declared = types.into();
    let types: Vec<Option<SqlType>> = types.iter().map(|ty| ty.as_ref().and_then(encode::sql_type)).collect();
    let mut described = session.describe(&parsed, types.clone()).await.map_err(|error| moved(error, parsed.offset))?;
    // Declared ones are parameters, whether or not anything uses them.
    for (at, ty) in types.iter().enumerate().skip(described.parameters.len()) {
        let code = SqlState::parse("42P18").unwrap_or(SqlState::UNDEFINED_PARAMETER);
        let unknown = || Error::new(code, format!("could not determine data type of parameter ${}", at + 1));
        described.parameters.push(ty.clone().ok_or_else(unknown)?);
    }
    let statement = PreparedStatement::Session(Arc::new(parsed));
    Ok(Some(Prepared { statement, described: Arc::new(described), declared, values: Arc::default() }))
}

#[async_trait]
impl QueryParser for Parser {
    type Statement = Prepared;

    async fn parse_sql<C>(&self, client: &C, sql: &str, types: &[Option<Type>]) -> PgWireResult<Option<Prepared>>
    where
        C: ClientInfo + Unpin + Send + Sync,
    {
        let (catalog, facts) = self.0.catalog_facts(client).await;
        let pg_catalog = self.0.shared.pg_catalog.with_session(facts);
        if let Some(columns) = pg_catalog.columns(sql, &catalog).await {
            let parameters = pg_catalog.parameter_types(sql, &catalog).unwrap_or_else(|| Ok(Vec::new()));
            let described = columns.and_then(|columns| Ok(Described { parameters: parameters?, columns }));
            let described = self.0.session.lock().await.check_block().and(described);
            let prepared = described.map(|described| Prepared {
                statement: PreparedStatement::Catalog(sql.into()),
                described: Arc::new(described),
                declared: types.into(),
                values: Arc::default(),
            });
            if prepared.is_err() {
                self.0.session.lock().await.fail_block();
            }
            return prepared.map(Some).map_err(wire_error);
        }
        let mut session = self.0.session.lock().await;
        // As running it, preparing a statement may wait: for the checkpoint of a job whose state it reads.
        let (mut interruption, interrupts) = (self.0.asking.interruption(), session.interrupts());
        let prepared = interrupts.run(prepare(&mut session, sql, types), &mut interruption).await;
        if prepared.is_err() {
            session.fail_block();
        }
        prepared.map_err(wire_error)
    }

    fn get_parameter_types(&self, statement: &Prepared) -> PgWireResult<Vec<Type>> {
        Ok(statement.wire_parameters())
    }

    fn get_result_schema(&self, statement: &Prepared, format: Option<&Format>) -> PgWireResult<Vec<FieldInfo>> {
        Ok(encode::fields(&statement.described.columns, format.unwrap_or(&Format::UnifiedText)))
    }
}

#[async_trait]
impl ExtendedQueryHandler for ConnectionRef {
    type Statement = Prepared;
    type QueryParser = Parser;

    fn query_parser(&self) -> Arc<Parser> {
        Arc::new(Parser(self.0.clone()))
    }

    async fn on_parse<C>(&self, client: &mut C, message: Parse) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        self.0.parse(self, client, &message).await
    }

    async fn on_bind<C>(&self, client: &mut C, message: Bind) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        self.0.bind(client, &message).await
    }

    async fn on_describe<C>(&self, client: &mut C, message: Describe) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        self.0.describe(client, &message).await
    }

    /// What was done since the last Sync is one transaction, unless it stands in a block, and ends here.
    async fn on_sync<C>(&self, client: &mut C, _message: WireSync) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let ended = self.0.end_pipeline().await;
        self.0.drop_ended_portals(client).await;
        self.0.send_notices(client).await?;
        if let Err(error) = ended {
            if *error.code() == SqlState::ADMIN_SHUTDOWN {
                return Err(wire_error(error));
            }
            client.feed(PgWireBackendMessage::ErrorResponse(error_info("ERROR", &error).into())).await?;
        }
        let status = self.0.wire_status().await;
        client.set_transaction_status(status);
        client.set_state(PgWireConnectionState::ReadyForQuery);
        send_ready_for_query(client, status).await
    }

    async fn on_execute<C>(&self, client: &mut C, message: Execute) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        client.set_state(PgWireConnectionState::QueryInProgress);
        self.0.execute_portal(client, &message).await?;
        client.set_state(PgWireConnectionState::ReadyForQuery);
        Ok(())
    }

    async fn do_query<C>(&self, _client: &mut C, _portal: &Portal<Prepared>, _max_rows: usize) -> PgWireResult<Response>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        // `on_execute` sends results as they come and does not ask for this.
        Err(wire_error(Error::internal("a portal was taken for another")))
    }
}
