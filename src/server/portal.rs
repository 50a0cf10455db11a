//! The Execute message: a portal's rows on their way to the client, all of them or some at a time.
//!
//! # Invariants
//! - Rows are sent as they are made, as those of a simple query are: what a portal holds in memory does not grow with its result, however slowly it is read.
//! - A portal runs its statement once. What is left of its rows goes with the portal, and at once where they end with an error.

use std::fmt::Debug;
use std::sync::Arc;

use futures::{Sink, SinkExt, StreamExt};
use pgwire::api::portal::{Portal, PortalExecutionState};
use pgwire::api::results::{FieldInfo, QueryResponse};
use pgwire::api::store::{Entry, PortalStore};
use pgwire::api::{ClientInfo, ClientPortalStore, DEFAULT_NAME};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::extendedquery::{Execute, PortalSuspended};
use pgwire::messages::response::{CommandComplete, EmptyQueryResponse};
use weir_catalog::{Error, Result, SqlState};

use super::encode;
use super::interrupts::Interruption;
use super::pg::{Connection, Prepared, PreparedStatement, row_tag, wire_error};
use super::prepared::Arguments;
use super::session::{Reply, RowStream, TransactionStatus};
use crate::operators::error::from_datafusion;

impl Connection {
    /// Runs a portal's statement, or goes on with its rows.
    pub(super) async fn execute_portal<C>(&self, client: &mut C, message: &Execute) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME);
        let portal = match client.portal_store().get_portal(name) {
            Some(Entry::Value(portal)) => portal,
            Some(Entry::Empty) => {
                return Ok(client.feed(PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new())).await?);
            }
            None => return Err(PgWireError::PortalNotFound(name.to_owned())),
        };
        // Cancel requests of before were for other statements.
        let mut interruption = self.asking.interruption();
        let state = portal.state();
        let mut state = state.lock().await;
        let mut rows = match std::mem::replace(&mut *state, PortalExecutionState::Finished) {
            PortalExecutionState::Initial => {
                let reply = self.begin_portal(client, &portal, &mut interruption).await;
                self.send_notices(client).await?;
                match reply.map_err(wire_error)? {
                    Reply::Rows(rows) => response(rows, &portal),
                    Reply::Command(tag) => {
                        let ends_transaction = matches!(tag.as_str(), "COMMIT" | "ROLLBACK");
                        client.feed(PgWireBackendMessage::CommandComplete(CommandComplete::new(tag))).await?;
                        if ends_transaction {
                            client.portal_store().clear_portals();
                        }
                        return Ok(());
                    }
                }
            }
            PortalExecutionState::Suspended(rows) => {
                self.session.lock().await.check_block().map_err(wire_error)?;
                rows
            }
            PortalExecutionState::Finished => {
                self.session.lock().await.check_block().map_err(wire_error)?;
                if portal.statement.statement.described.columns.is_empty() {
                    let name = if name == DEFAULT_NAME { "" } else { name };
                    let code = SqlState::parse("55000").unwrap_or(SqlState::INTERNAL_ERROR);
                    return Err(wire_error(Error::new(code, format!("portal \"{name}\" cannot be run"))));
                }
                QueryResponse::new(Arc::new(Vec::new()), futures::stream::empty())
            }
        };
        // Zero, or less, is all of them.
        let most = usize::try_from(message.max_rows).ok().filter(|most| *most > 0);
        let mut count = 0;
        while most.is_none_or(|most| count < most) {
            let row = tokio::select! {
                biased;
                error = interruption.wanted() => return Err(wire_error(error)),
                row = rows.data_rows().next() => row,
            };
            let Some(row) = row else {
                let tag = row_tag(rows.command_tag(), count);
                client.feed(PgWireBackendMessage::CommandComplete(CommandComplete::new(tag))).await?;
                return Ok(());
            };
            client.feed(PgWireBackendMessage::DataRow(row?)).await?;
            count += 1;
        }
        *state = PortalExecutionState::Suspended(rows);
        Ok(client.feed(PgWireBackendMessage::PortalSuspended(PortalSuspended::new())).await?)
    }

    /// What a portal's statement gives.
    async fn begin_portal<C: ClientInfo>(&self, client: &C, portal: &Portal<Prepared>, interruption: &mut Interruption) -> Result<Reply> {
        let statement = &portal.statement.statement;
        let values = statement.values.as_ref().clone();
        match &statement.statement {
            PreparedStatement::Session(parsed) => {
                let arguments = Arguments::new(values, statement.described.clone());
                self.execute_extended(parsed, &arguments, interruption).await
            }
            PreparedStatement::Catalog(sql) => {
                self.session.lock().await.check_block()?;
                let (catalog, facts) = self.catalog_facts(client).await;
                let answer = self.shared.pg_catalog.with_session(facts).try_query_with(sql, &values, &catalog).await;
                answer.unwrap_or_else(|| Err(Error::internal("a catalog query was taken for another"))).map(Reply::Rows)
            }
        }
    }

    /// Portals go with the transaction that they were made in.
    pub(super) async fn drop_ended_portals<C: ClientPortalStore>(&self, client: &C)
    where
        C::PortalStore: PortalStore,
    {
        client.portal_store().rm_portal(DEFAULT_NAME);
        if self.session.lock().await.status() == TransactionStatus::Idle {
            client.portal_store().clear_portals();
        }
    }
}

/// `rows` in the formats that `portal` wants, each made into a message when it is asked for.
fn response(rows: RowStream, portal: &Portal<Prepared>) -> QueryResponse {
    let RowStream { columns, stream, tag } = rows;
    let fields = Arc::new(encode::fields(&columns, &portal.result_column_format));
    let formats: Arc<[_]> = fields.iter().map(FieldInfo::format).collect();
    let messages = stream.flat_map(move |batch| {
        let (batch, error) = match batch {
            Ok(batch) => (Some(batch), None),
            Err(error) => (None, Some(from_datafusion(error))),
        };
        let rows = batch.into_iter().flat_map({
            let formats = formats.clone();
            move |batch| encode::rows(batch, formats.clone())
        });
        futures::stream::iter(rows.chain(error.map(Err)).map(|row| row.map_err(wire_error)))
    });
    let mut response = QueryResponse::new(fields, messages);
    response.set_command_tag(tag);
    response
}
