//! Finding files of this machine.

use std::path::{Path, PathBuf};

use weir_catalog::{Error, Result, SqlState};

use super::config::FileConfig;
use crate::sinks::file::place::{LocalRecords, Published};

/// The files that a path of this machine names now, with their lengths. Of a sink's, those of whole checkpoints: the records that say so are read first, and so
/// every file that they name is there when files are listed.
pub fn find_local(config: &FileConfig) -> Result<Vec<(PathBuf, u64)>> {
    let found = list_local(config)?;
    let mut published = Published::default();
    if !published.read_for(&LocalRecords, found.iter().map(|(path, _)| path.as_path()))? {
        return Ok(found);
    }
    let mut found = list_local(config)?;
    found.retain(|(path, _)| *path == config.path || published.has(path));
    Ok(found)
}

/// The files that the path names now, with their lengths.
fn list_local(config: &FileConfig) -> Result<Vec<(PathBuf, u64)>> {
    let path = &config.path;
    let failed = |path: &Path, e: &std::io::Error| Error::io(format!("read \"{}\"", path.display()), e);
    let mut found = Vec::new();
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            let mut folders = vec![path.clone()];
            while let Some(folder) = folders.pop() {
                for entry in std::fs::read_dir(&folder).map_err(|e| failed(&folder, &e))? {
                    let entry = entry.map_err(|e| failed(&folder, &e))?;
                    if is_hidden(&entry.path()) {
                        continue;
                    }
                    if entry.file_type().map_err(|e| failed(&entry.path(), &e))?.is_dir() {
                        folders.push(entry.path());
                        continue;
                    }
                    // Links to files count, those to folders don't; what has gone since it was listed is not there.
                    match std::fs::metadata(entry.path()) {
                        Ok(metadata) if metadata.is_file() => found.push((entry.path(), metadata.len())),
                        Ok(_) => {}
                        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                        Err(e) => return Err(failed(&entry.path(), &e)),
                    }
                }
            }
        }
        Ok(metadata) => found.push((path.clone(), metadata.len())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let text = path.to_string_lossy();
            if !text.contains(['*', '?', '[']) {
                if config.watch.is_some() {
                    return Ok(Vec::new()); // It may come.
                }
                return Err(missing(&text));
            }
            let options =
                glob::MatchOptions { require_literal_separator: true, require_literal_leading_dot: true, ..glob::MatchOptions::default() };
            let malformed = |e: glob::PatternError| {
                Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("pattern \"{text}\" is malformed")).with_detail(e.to_string())
            };
            for path in glob::glob_with(&text, options).map_err(malformed)? {
                let path = path.map_err(|e| failed(e.path(), e.error()))?;
                match std::fs::metadata(&path) {
                    Ok(metadata) if metadata.is_file() && !is_hidden(&path) => found.push((path, metadata.len())),
                    Ok(_) => {}
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                    Err(e) => return Err(failed(&path, &e)),
                }
            }
        }
        Err(e) => return Err(failed(path, &e)),
    }
    Ok(found)
}

/// `58P01`
pub fn missing(name: &str) -> Error {
    let code = SqlState::parse("58P01").unwrap_or(SqlState::IO_ERROR);
    Error::new(code, format!("file \"{name}\" does not exist"))
}

/// Files and folders whose names begin so are not for readers: open files of sinks, markers of other engines.
pub fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| matches!(name.as_encoded_bytes().first(), Some(b'.' | b'_')))
}
