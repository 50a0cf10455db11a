//! Who is connected: from the moment when the port is open until the last client has been told that the server stops.
//!
//! ```text
//!   starting ─▶ open ─▶ closing
//!      │         │         │
//!    57P03    sessions   57P03; sessions that there are end with 57P01
//! ```
//!
//! # Invariants
//! - Whoever connects gets an answer at any time: a session, or why there is none.
//! - A session is known from before its client hears that it has begun until its client was told of its end, so that none is missed when all are to end.
//! - No client holds up a stop for longer than [`GRACE`], whatever it does or does not do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pgwire::api::RandomPidSecretKeyGenerator;
use pgwire::messages::cancel::CancelRequest;
use pgwire::messages::startup::SecretKey;
use tokio::net::TcpListener;
use tokio::sync::watch;
use weir_catalog::{Error, Result, SqlState};

use super::connection::{self, FAREWELL};
use super::pg::Connection;
use super::pg_catalog::PgCatalog;
use super::query::QueryRunner;
use crate::job::Engine;
use crate::seams::spawn::{JoinHandle, Spawner};

/// How long a session may take to end when the server stops: a commit that has been given to the log is waited for, and so is what can't be interrupted.
pub(super) const GRACE: Duration = Duration::from_secs(10);

/// A socket to listen on.
///
/// Any user is let in, so only loopback addresses are listened on. Errors: `58030` where the address can't be bound, `22023` where it is not loopback.
pub async fn listen(address: SocketAddr) -> Result<TcpListener> {
    if !address.ip().is_loopback() {
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("cannot listen on {address}: there is no authentication yet"))
            .with_hint("Listen on a loopback address."));
    }
    TcpListener::bind(address).await.map_err(|e| Error::io(format!("listen on {address}"), &e))
}

/// Takes clients until it is dropped.
pub struct Server {
    clients: Arc<Clients>,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Takes those that come in over `listener`: they are told that the database system is starting up.
    pub fn start(listener: TcpListener) -> Server {
        let clients = Arc::new(Clients {
            state: Mutex::new(State { phase: Phase::Starting, sessions: Vec::new() }),
            sessions: watch::Sender::new(0),
            connected: watch::Sender::new(0),
        });
        let accepting = Spawner::current().spawn(accept(listener, clients.clone()));
        Server { clients, accepting }
    }

    /// From now on clients get sessions on `engine`.
    pub fn open(&self, engine: Arc<Engine>) -> Result<()> {
        let shared = Shared {
            runner: QueryRunner::new(engine.clone())?,
            engine,
            keys: RandomPidSecretKeyGenerator::default(),
            pg_catalog: PgCatalog::new()?,
        };
        self.clients.state.lock().phase = Phase::Open(Arc::new(shared));
        Ok(())
    }

    /// Ends all sessions, then the engine. Whoever connects meanwhile is told that the database system is shutting down.
    pub async fn shut_down(&self, engine: &Engine) {
        self.clients.close().await;
        engine.shutdown().await;
        // Most have read by now what they were told. A process that ends takes back what has not been read by some.
        let mut connected = self.clients.connected.subscribe();
        let _ = tokio::time::timeout(FAREWELL, connected.wait_for(|count| *count == 0)).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, clients: Arc<Clients>) {
    loop {
        let (socket, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, most likely: let some close.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let clients = clients.clone();
        tokio::spawn(async move {
            if let Err(error) = connection::serve(socket, &clients).await {
                tracing::debug!(%error, "a connection ended");
            }
        });
    }
}

/// What all sessions share.
pub(super) struct Shared {
    pub engine: Arc<Engine>,
    pub runner: QueryRunner,
    pub keys: RandomPidSecretKeyGenerator,
    pub pg_catalog: PgCatalog,
}

/// The clients of a server.
pub(super) struct Clients {
    state: Mutex<State>,
    /// How many sessions there are.
    sessions: watch::Sender<usize>,
    /// How many connections that had a session are not closed.
    connected: watch::Sender<usize>,
}

struct State {
    phase: Phase,
    sessions: Vec<Known>,
}

enum Phase {
    Starting,
    Open(Arc<Shared>),
    Closing,
}

/// A session, by what names it in a cancel request.
struct Known {
    process_id: i32,
    key: SecretKey,
    connection: Arc<Connection>,
}

impl Clients {
    /// What a session needs. Errors with `57P03` where there are none now.
    pub fn admit(&self) -> Result<Arc<Shared>> {
        match &self.state.lock().phase {
            Phase::Open(shared) => Ok(shared.clone()),
            Phase::Starting => Err(Error::new(SqlState::CANNOT_CONNECT_NOW, "the database system is starting up")),
            Phase::Closing => Err(shutting_down()),
        }
    }

    /// A session begins, and is known by these. Errors with `57P03` where none does any more.
    pub fn begin(&self, process_id: i32, key: SecretKey, connection: Arc<Connection>) -> Result<()> {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Closing) {
            return Err(shutting_down());
        }
        state.sessions.push(Known { process_id, key, connection });
        self.sessions.send_replace(state.sessions.len());
        Ok(())
    }

    /// The session of `connection` has ended, or has not begun.
    pub fn end(&self, connection: &Arc<Connection>) {
        let mut state = self.state.lock();
        state.sessions.retain(|known| !Arc::ptr_eq(&known.connection, connection));
        self.sessions.send_replace(state.sessions.len());
    }

    /// Counts a connection as one that is not closed, until what this returns is dropped.
    pub fn connected(&self) -> Connected {
        self.connected.send_modify(|count| *count += 1);
        Connected(self.connected.clone())
    }

    /// Asks for the end of the statement that `request` names.
    pub fn cancel(&self, request: &CancelRequest) {
        let state = self.state.lock();
        let named = |known: &&Known| known.process_id == request.pid && known.key.eq_value(&request.secret_key);
        if let Some(known) = state.sessions.iter().find(named) {
            known.connection.asking.cancel();
        }
    }

    /// Ends all sessions, and waits until each client was told, or can't be.
    async fn close(&self) {
        let mut sessions = self.sessions.subscribe();
        {
            let mut state = self.state.lock();
            state.phase = Phase::Closing;
            state.sessions.iter().for_each(|known| known.connection.asking.end());
        }
        // Each ends by itself in that time, unless it computes and looks at no clock.
        let ended = tokio::time::timeout(GRACE + FAREWELL, sessions.wait_for(|count| *count == 0)).await;
        if ended.is_err() {
            let sessions = self.state.lock().sessions.len();
            tracing::warn!(sessions, "stopping although sessions have not ended");
        }
    }
}

fn shutting_down() -> Error {
    Error::new(SqlState::CANNOT_CONNECT_NOW, "the database system is shutting down")
}

/// Counts a connection.
pub(super) struct Connected(watch::Sender<usize>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
