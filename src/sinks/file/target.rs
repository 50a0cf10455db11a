//! Where the bytes of one file go.

use std::path::PathBuf;
use std::sync::Arc;

use weir_catalog::{Error, Result};

use crate::seams::files::AppendFile;
use crate::seams::objects::{CHUNK_BYTES, ObjectUrl, PartedUpload, Uploads};

/// How many parts an object can have.
pub const PARTS_MOST: u64 = 10_000;

/// A file that is being written.
pub enum Target {
    /// Under a hidden name.
    File { file: Box<dyn AppendFile>, folder: PathBuf, tail: String },
    /// An upload, and what is no part yet. Parts have equal lengths, which some stores demand.
    Object { upload: PartedUpload, target: PathBuf, buffer: Vec<u8> },
}

/// A file that is whole, and can't be seen yet.
pub enum Closed {
    File { folder: PathBuf, tail: String },
    Object { target: PathBuf, upload: PartedUpload },
}

impl Target {
    /// An upload that becomes the object `target`, a URL.
    pub fn object(uploads: &Arc<Uploads>, target: PathBuf) -> Result<Target> {
        let split = ObjectUrl::split(&target).ok_or_else(|| Error::internal(format!("\"{}\" is no object", target.display())))?;
        let upload = uploads.begin(split.1)?;
        Ok(Target::Object { upload, target, buffer: Vec::new() })
    }

    /// Adds bytes.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Target::File { file, .. } => file.append(bytes),
            Target::Object { upload, buffer, .. } => {
                buffer.extend_from_slice(bytes);
                while buffer.len() >= CHUNK_BYTES {
                    let rest = buffer.split_off(CHUNK_BYTES);
                    upload.push(std::mem::replace(buffer, rest))?;
                }
                Ok(())
            }
        }
    }

    /// What it holds in memory, bytes; parts on their way are counted elsewhere.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Target::File { .. } => 0,
            Target::Object { buffer, .. } => buffer.capacity(),
        }
    }

    /// Nothing comes any more.
    pub fn close(self) -> Result<Closed> {
        match self {
            Target::File { folder, tail, .. } => Ok(Closed::File { folder, tail }),
            Target::Object { upload, target, buffer } => {
                if !buffer.is_empty() || upload.bytes() == 0 {
                    upload.push(buffer)?;
                }
                Ok(Closed::Object { target, upload })
            }
        }
    }
}
