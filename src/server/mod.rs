//! Who asks: sessions, their statements, queries over tables and views, and the PostgreSQL wire protocol.
//!
//! ```text
//!   client ─▶ pg (wire protocol) ─▶ session (one statement after another) ─┬─▶ query (batch, DataFusion over one consistent cut)
//!                                                                          ├─▶ dml  (INSERT, UPDATE, DELETE)
//!                                                                          └─▶ ddl  (CREATE, DROP, ALTER)
//! ```
//!
//! `clients` knows who is connected, and tells them when the server starts and stops.

mod alter;
mod alter_sink;
pub mod clients;
mod connection;
pub mod ddl;
pub mod dml;
pub mod encode;
mod explain;
mod extended;
mod guarded;
mod interrupts;
pub mod lookup;
mod messages;
mod named;
mod outgoing;
pub mod pg;
pub mod pg_catalog;
mod planning;
mod portal;
pub mod prepared;
pub mod query;
mod query_memory;
pub mod savepoint;
pub mod session;
pub mod system;
mod table_call;
