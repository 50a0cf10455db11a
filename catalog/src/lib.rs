//! What exists in a weir, and keeping it: SQL types and their Arrow forms, row kinds and changelog modes, the error type
//! that every part reports in, the objects that DDL makes, and their durable form.
//!
//! This is the lowest crate: the SQL front end and the engine both stand on it, and it does no I/O.
//!
//! | module | holds |
//! | --- | --- |
//! | [`types`] | SQL types, and how each is held in Arrow |
//! | [`changelog`] | row kinds and changelog modes |
//! | [`error`] | errors in PostgreSQL's form |
//! | [`object`] | tables, views, jobs: what DDL makes |
//! | [`catalog`] | the set of objects at one commit, and the changes that lead to the next |

pub mod catalog;
pub mod changelog;
pub mod error;
pub mod object;
pub mod types;

pub use catalog::{Catalog, CatalogChange};
pub use changelog::{ChangelogMode, RowKind};
pub use error::{Error, Result, SqlState};
pub use object::{
    Column, ConnectorTable, Derivation, DerivedColumn, Job, JobKind, JobOrigin, Object, ObjectId, OperatorDescriptor, StoredTable, View,
};
pub use types::SqlType;
