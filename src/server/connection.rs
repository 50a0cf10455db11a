//! One client's connection: how it begins, one message after another, and its end.
//!
//! # Invariants
//! - Nothing is decoded that [`messages::check`] has not let through, so that no bytes of a client's bring down more than its own statement.
//! - After an error within the extended protocol nothing is done, nor looked at, until a Sync.
//! - Whatever ends a connection that has begun, the client is told why where it can still be told.
//! - A statement that has not been taken when the server stops is not begun.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures::{FutureExt, SinkExt};
use pgwire::api::auth::StartupHandler;
use pgwire::api::{ClientInfo, DEFAULT_NAME, DefaultClient, NoopHandler, PgWireConnectionState};
use pgwire::error::{ErrorInfo, PgWireError};
use pgwire::messages::response::{GssEncResponse, SslResponse};
use pgwire::messages::{DecodeContext, PgWireBackendMessage, PgWireFrontendMessage, ProtocolVersion};
use pgwire::tokio::server::{PgWireMessageServerCodec, process_error, process_message};
use tokio::io::{AsyncRead, Empty, Join};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::codec::Framed;
use weir_catalog::{Error, SqlState};

use super::clients::{Clients, GRACE};
use super::guarded;
use super::interrupts::{Interruption, terminated};
use super::messages::{self, COPY_DATA, COPY_DONE, COPY_FAIL, EXECUTE, Ended, Incoming, QUERY, SYNC, TERMINATE};
use super::outgoing::{Outgoing, Untaken};
use super::pg::{ConnectionRef, Prepared, error_info, wire_error};

/// How long a client may take to begin its session.
const STARTUP_PATIENCE: Duration = Duration::from_secs(60);
/// How long a client that is sent away is listened to, so that it can read why before its connection is gone.
pub(super) const FAREWELL: Duration = Duration::from_secs(1);
/// How long a client that takes nothing is waited for when the server stops.
const UNREAD_PATIENCE: Duration = Duration::from_secs(3);

/// What the first packet may be instead of the beginning of a session.
const CANCEL_REQUEST: u32 = 80_877_102;
const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

/// Messages to the client, and what the protocol layer keeps of it. What comes from it is read elsewhere.
type Wire = Framed<Join<Empty, Outgoing>, PgWireMessageServerCodec<Prepared>>;

/// Serves one client until it leaves, can't be understood, or the server stops.
pub(super) async fn serve(socket: TcpStream, clients: &Arc<Clients>) -> io::Result<()> {
    let address = socket.peer_addr()?;
    socket.set_nodelay(true)?;
    let (reader, writer) = socket.into_split();
    let mut incoming = Incoming::new(reader);
    let codec = PgWireMessageServerCodec::new(DefaultClient::new(address, false));
    let (writer, untaken) = Outgoing::new(writer);
    let mut wire = Framed::new(tokio::io::join(tokio::io::empty(), writer), codec);
    let begun = tokio::time::timeout(STARTUP_PATIENCE, begin(&mut incoming, &mut wire, clients)).await;
    let session = begun.unwrap_or(Ok(None))?;
    let _connected = session.as_ref().map(|_| clients.connected());
    if let Some(session) = session {
        tokio::select! {
            ended = converse(&mut incoming, &mut wire, &session.0) => ended?,
            // Its client takes nothing, or what it has asked for can't be interrupted.
            () = patience_ends(session.0.interruption(), &untaken) => return Ok(()),
        }
    } else {
        wire.close().await?;
    }
    // Closing a socket with unread bytes takes back what the other end has not read yet.
    let _ = tokio::time::timeout(FAREWELL, incoming.drain()).await;
    Ok(())
}

/// A session, known to be there until this is dropped.
struct Begun(ConnectionRef);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.has_ended();
    }
}

/// Takes one message after another, and says farewell.
async fn converse<R: AsyncRead + Unpin>(incoming: &mut Incoming<R>, wire: &mut Wire, connection: &ConnectionRef) -> io::Result<()> {
    let mut interruption = connection.interruption();
    while next(incoming, wire, connection, &mut interruption).await? {}
    wire.close().await
}

/// Returns when a session that is asked to end is not waited for any more.
async fn patience_ends(mut interruption: Interruption, untaken: &Untaken) {
    interruption.session_ends().await;
    let asked = Instant::now();
    let given_up = async {
        while untaken.since().is_none_or(|since| since.max(asked).elapsed() < UNREAD_PATIENCE) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let _ = tokio::time::timeout(GRACE, given_up).await;
}

/// Answers the packets before a session, and begins it. `None` where there is none.
async fn begin<R: AsyncRead + Unpin>(incoming: &mut Incoming<R>, wire: &mut Wire, clients: &Arc<Clients>) -> io::Result<Option<Begun>> {
    wire.set_state(PgWireConnectionState::AwaitingStartup);
    let (mut may_ask_ssl, mut may_ask_gss) = (true, true);
    loop {
        let mut packet = match incoming.startup().await {
            Ok(packet) => packet,
            Err(Ended::Gone) => return Ok(None),
            Err(Ended::Violated(error)) => return send_away(wire, &error).await.map(|_| None),
        };
        let code = packet.get(4..8).map_or(0, |code| u32::from_be_bytes([code[0], code[1], code[2], code[3]]));
        match code {
            SSL_REQUEST if may_ask_ssl => {
                may_ask_ssl = false;
                wire.send(PgWireBackendMessage::SslResponse(SslResponse::Refuse)).await?;
                continue;
            }
            GSS_REQUEST if may_ask_gss => {
                may_ask_gss = false;
                wire.send(PgWireBackendMessage::GssEncResponse(GssEncResponse::Refuse)).await?;
                continue;
            }
            CANCEL_REQUEST => {
                // Whoever sends one gets no answer.
                if let Ok(Some(PgWireFrontendMessage::CancelRequest(request))) = decode_startup(&mut packet) {
                    clients.cancel(&request);
                }
                return Ok(None);
            }
            _ => {}
        }
        let connection = match messages::check_startup(&packet).and_then(|()| ConnectionRef::new(clients)) {
            Ok(connection) => connection,
            Err(error) => return send_away(wire, &error).await.map(|_| None),
        };
        let begun = Begun(connection);
        let answered = match decode_startup(&mut packet) {
            Ok(Some(message)) => begun.0.on_startup(wire, message).await,
            Ok(None) => Err(wire_error(messages::violation("invalid startup packet layout"))),
            Err(error) => Err(error),
        };
        return match answered {
            Ok(()) => Ok(Some(begun)),
            Err(error) => send_away_with(wire, complete(error)).await.map(|_| None),
        };
    }
}

fn decode_startup(packet: &mut BytesMut) -> Result<Option<PgWireFrontendMessage>, PgWireError> {
    let mut context = DecodeContext::new(ProtocolVersion::default());
    context.awaiting_frontend_ssl = false;
    PgWireFrontendMessage::decode(packet, &context)
}

/// Takes and answers one message, unless the session is to end. False where it is the last.
async fn next<R: AsyncRead + Unpin>(
    incoming: &mut Incoming<R>,
    wire: &mut Wire,
    connection: &ConnectionRef,
    interruption: &mut Interruption,
) -> io::Result<bool> {
    let message = tokio::select! {
        biased;
        () = interruption.session_ends() => return send_away(wire, &terminated()).await,
        message = incoming.message() => message,
    };
    let mut message = match message {
        Ok(message) => message,
        Err(Ended::Gone) => return Ok(false),
        Err(Ended::Violated(error)) => return send_away(wire, &error).await,
    };
    let kind = message[0];
    match kind {
        TERMINATE => return Ok(false),
        // What a COPY that failed was still sent.
        COPY_DATA | COPY_DONE | COPY_FAIL => return Ok(true),
        _ if kind != SYNC && matches!(wire.state(), PgWireConnectionState::AwaitingSync) => return Ok(true),
        _ => {}
    }
    if let Err(error) = messages::check(&message) {
        return report(wire, connection, wire_error(error), kind).await;
    }
    if kind == EXECUTE {
        let next = tokio::select! {
            biased;
            () = interruption.session_ends() => return send_away(wire, &terminated()).await,
            next = incoming.next_kind() => next,
        };
        connection.set_followed(next != Some(SYNC));
    }
    let mut context = DecodeContext::new(wire.protocol_version());
    (context.awaiting_frontend_ssl, context.awaiting_frontend_startup) = (false, false);
    let decoded = PgWireFrontendMessage::decode(&mut message, &context);
    let Ok(Some(decoded)) = decoded else {
        let error = decoded.err().unwrap_or_else(|| wire_error(messages::violation("invalid message format")));
        return report(wire, connection, error, kind).await;
    };
    let handler = Arc::new(connection.clone());
    let copies = Arc::new(NoopHandler);
    let processing = process_message(decoded, wire, handler.clone(), handler.clone(), handler.clone(), copies, handler);
    let processed = AssertUnwindSafe(processing).catch_unwind().await;
    match processed {
        Ok(Ok(())) => Ok(true),
        Ok(Err(error)) => report(wire, connection, error, kind).await,
        Err(panic) => send_away(wire, &guarded::panicked(panic.as_ref())).await,
    }
}

/// Tells the client of an error in a message of `kind`. False where the connection is over with it.
async fn report(wire: &mut Wire, connection: &ConnectionRef, error: PgWireError, kind: u8) -> io::Result<bool> {
    let info = complete(error);
    if info.is_fatal() {
        return send_away_with(wire, info).await;
    }
    let status = connection.fail_block().await;
    wire.set_transaction_status(status);
    process_error(wire, PgWireError::UserError(Box::new(info)), kind != QUERY).await?;
    Ok(true)
}

/// Tells the client why its connection ends.
async fn send_away(wire: &mut Wire, error: &Error) -> io::Result<bool> {
    send_away_with(wire, error_info("FATAL", error)).await
}

async fn send_away_with(wire: &mut Wire, info: ErrorInfo) -> io::Result<bool> {
    wire.send(PgWireBackendMessage::ErrorResponse(info.into())).await?;
    Ok(false)
}

/// An error with all that PostgreSQL says of one.
fn complete(error: PgWireError) -> ErrorInfo {
    let named = |kind: &str, name: &str, code: &str| {
        let message = match name {
            "" | DEFAULT_NAME if kind == "portal" => "portal \"\" does not exist".to_string(),
            "" | DEFAULT_NAME => format!("unnamed {kind} does not exist"),
            name => format!("{kind} \"{name}\" does not exist"),
        };
        error_info("ERROR", &Error::new(SqlState::parse(code).unwrap_or(SqlState::UNDEFINED_OBJECT), message))
    };
    let mut info: ErrorInfo = match error {
        PgWireError::StatementNotFound(name) => named("prepared statement", &name, "26000"),
        PgWireError::PortalNotFound(name) => named("portal", &name, "34000"),
        other => other.into(),
    };
    info.severity_nonlocalized = Some(info.severity.clone());
    info
}
