//! Parse, Bind and Describe: what a client is told of a statement before it runs.
//!
//! # Invariants
//! - What is wrong with a value, or with how many there are, is told when it is bound: a portal that there is can be run.
//! - A name that is taken stays what it is: only the unnamed statement and the unnamed portal are replaced.
//! - In a block that has failed nothing is prepared, bound or described but its end.

use std::fmt::Debug;
use std::sync::Arc;

use futures::{Sink, SinkExt};
use pgwire::api::portal::{Format, Portal};
use pgwire::api::query::{ExtendedQueryHandler, send_describe_response};
use pgwire::api::results::{DescribePortalResponse, DescribeStatementResponse};
use pgwire::api::stmt::StoredStatement;
use pgwire::api::store::{Entry, PortalStore};
use pgwire::api::{ClientInfo, ClientPortalStore, DEFAULT_NAME};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::data::{NoData, ParameterDescription};
use pgwire::messages::extendedquery::{Bind, BindComplete, Describe, Parse, ParseComplete, TARGET_TYPE_BYTE_STATEMENT};
use weir_catalog::{Error, Result, SqlState};
use weir_sql::statement::Statement;

use super::encode;
use super::messages::violation;
use super::pg::{Connection, ConnectionRef, Prepared, PreparedStatement, wire_error};

impl Prepared {
    /// Whether it ends a block, which is all that one that has failed lets be done.
    fn ends_block(&self) -> bool {
        matches!(&self.statement, PreparedStatement::Session(parsed) if matches!(parsed.statement, Statement::Commit | Statement::Rollback))
    }
}

impl Connection {
    /// Errors with `25P02` in a block that has failed.
    async fn check_block(&self) -> PgWireResult<()> {
        self.session.lock().await.check_block().map_err(wire_error)
    }

    /// Makes a statement of a Parse message.
    pub(super) async fn parse<C>(&self, handler: &ConnectionRef, client: &mut C, message: &Parse) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let statement = StoredStatement::parse(client, message, handler.query_parser()).await?;
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME);
        if name != DEFAULT_NAME && client.portal_store().get_statement(name).is_some() {
            return Err(wire_error(named("42P05", format!("prepared statement \"{name}\" already exists"))));
        }
        match statement {
            Some(statement) => client.portal_store().put_statement(Arc::new(statement)),
            None => client.portal_store().put_empty_statement(name),
        }
        Ok(client.feed(PgWireBackendMessage::ParseComplete(ParseComplete::new())).await?)
    }

    /// Makes a portal of a statement and its values.
    pub(super) async fn bind<C>(&self, client: &mut C, message: &Bind) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.statement_name.as_deref().unwrap_or(DEFAULT_NAME);
        let Some(entry) = client.portal_store().get_statement(name) else { return Err(PgWireError::StatementNotFound(name.to_owned())) };
        let statement = match &entry {
            Entry::Value(statement) => Some(statement),
            Entry::Empty => None,
        };
        check_counts(message, statement.map_or(0, |statement| statement.statement.described.parameters.len())).map_err(wire_error)?;
        if statement.is_none_or(|statement| !statement.statement.ends_block()) {
            self.check_block().await?;
        }
        let portal_name = message.portal_name.as_deref().unwrap_or(DEFAULT_NAME);
        if portal_name != DEFAULT_NAME && client.portal_store().get_portal(portal_name).is_some() {
            return Err(wire_error(named("42P03", format!("cursor \"{portal_name}\" already exists"))));
        }
        match statement {
            Some(statement) => {
                let portal = Portal::try_new(message, statement.clone())?;
                let values = encode::parameters(&portal, &statement.statement.described.parameters).map_err(wire_error)?;
                let prepared = Prepared { values: Arc::new(values), ..statement.statement.clone() };
                let bound = StoredStatement::new(statement.id.clone(), prepared, statement.parameter_types.clone());
                let portal = Portal::try_new(message, Arc::new(bound))?;
                check_formats(&portal).map_err(wire_error)?;
                client.portal_store().put_portal(Arc::new(portal));
            }
            None => client.portal_store().put_empty_portal(portal_name),
        }
        Ok(client.feed(PgWireBackendMessage::BindComplete(BindComplete::new())).await?)
    }

    /// Says what a statement needs and gives, or what a portal gives.
    pub(super) async fn describe<C>(&self, client: &mut C, message: &Describe) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME);
        if message.target_type != TARGET_TYPE_BYTE_STATEMENT {
            let Some(portal) = client.portal_store().get_portal(name) else { return Err(PgWireError::PortalNotFound(name.to_owned())) };
            let Entry::Value(portal) = portal else { return no_data(client).await };
            let columns = &portal.statement.statement.described.columns;
            if columns.is_empty() {
                return no_data(client).await;
            }
            self.check_block().await?;
            let fields = encode::fields(columns, &portal.result_column_format);
            return send_describe_response(client, &DescribePortalResponse::new(fields)).await;
        }
        let Some(statement) = client.portal_store().get_statement(name) else {
            return Err(PgWireError::StatementNotFound(name.to_owned()));
        };
        let (parameters, columns) = match &statement {
            Entry::Value(statement) => (statement.statement.wire_parameters(), statement.statement.described.columns.as_slice()),
            Entry::Empty => (Vec::new(), [].as_slice()),
        };
        if columns.is_empty() {
            let types = parameters.iter().map(pgwire::api::Type::oid).collect();
            client.feed(PgWireBackendMessage::ParameterDescription(ParameterDescription::new(types))).await?;
            return no_data(client).await;
        }
        self.check_block().await?;
        let fields = encode::fields(columns, &Format::UnifiedText);
        send_describe_response(client, &DescribeStatementResponse::new(parameters, fields)).await
    }
}

async fn no_data<C>(client: &mut C) -> PgWireResult<()>
where
    C: Sink<PgWireBackendMessage> + Unpin,
    PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
{
    Ok(client.feed(PgWireBackendMessage::NoData(NoData::new())).await?)
}

fn named(code: &str, message: String) -> Error {
    Error::new(SqlState::parse(code).unwrap_or(SqlState::DUPLICATE_OBJECT), message)
}

/// `08P01` where a Bind message has not as many values as its statement has parameters, or formats for others.
fn check_counts(message: &Bind, parameters: usize) -> Result<()> {
    let (formats, values) = (message.parameter_format_codes.len(), message.parameters.len());
    if formats > 1 && formats != values {
        return Err(violation(format!("bind message has {formats} parameter formats but {values} parameters")));
    }
    if values != parameters {
        let name = message.statement_name.as_deref().unwrap_or_default();
        return Err(violation(format!(
            "bind message supplies {values} parameters, but prepared statement \"{name}\" requires {parameters}"
        )));
    }
    Ok(())
}

/// `08P01` where there is neither a result format for each column, nor one for all, nor none.
fn check_formats(portal: &Portal<Prepared>) -> Result<()> {
    let columns = portal.statement.statement.described.columns.len();
    match &portal.result_column_format {
        Format::Individual(formats) if columns > 0 && formats.len() != columns => {
            Err(violation(format!("bind message has {} result formats but query has {columns} columns", formats.len())))
        }
        _ => Ok(()),
    }
}
