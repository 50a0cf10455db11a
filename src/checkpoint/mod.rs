//! How it survives: what a checkpoint is made of, and where it is kept.
//!
//! ```text
//!   checkpoints/MANIFEST-<number>     which job was at which barrier, with which files
//!   checkpoints/files/<incarnation>-<name>
//! ```
//!
//! Either in the data folder or, with the same names, in an object store ([`storage`]).
//!
//! A manifest describes the whole engine: for each job its newest complete checkpoint, and the stored tables'. A group's checkpoint is complete when a
//! manifest that holds it is durable.

pub mod manifest;
mod metadata;
pub mod savepoint;
pub mod snapshot;
pub mod storage;
pub mod store;
#[cfg(test)]
mod tests;

pub use manifest::{FileHandle, JobCheckpoint, Manifest, OperatorCheckpoint, Part, TablesCheckpoint};
pub use savepoint::{Place, Places, Savepoint};
pub use store::{CheckpointStore, Pin};
