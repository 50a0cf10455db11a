//! Sinks that have gone on from where another stood: whether something was written to a place that a savepoint knows nothing of.
//!
//! The first record of a sink that begins with a savepoint of another says so. Together with the barriers in the names of records that tells, whatever has become of the
//! sinks since, and in whichever data folder they were.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_catalog::{Error, ObjectId, Result};

use super::place::{SinkFileName, identity};
use crate::seams::hash::HashSet;
use crate::seams::objects::{ObjectUrl, Objects};
use crate::sinks::commit::{RECORDS, read_descent};
use crate::sources::file::FileConfig;
use crate::stream::BarrierNumber;

/// Where a sink stood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// As the names of its files begin.
    pub sink: String,
    /// The last barrier whose rows it had written.
    pub barrier: BarrierNumber,
}

impl Standing {
    /// The job `id` called `name` of the engine `engine`, at `barrier`.
    pub fn new(engine: u64, id: ObjectId, name: &str, barrier: BarrierNumber) -> Standing {
        Standing { sink: identity(engine, id, name), barrier }
    }
}

/// Who has written to the place of `config` since `from`: the sink itself, or one that went on from there; `None` where nobody has. Waits for disk, or the store.
pub fn written_since(config: &FileConfig, from: &Standing) -> Result<Option<String>> {
    let records = PlaceRecords::open(config)?;
    let (mut written, mut descents): (Vec<(String, BarrierNumber)>, Vec<(String, Standing)>) = Default::default();
    for path in records.list()? {
        let Some(name) = path.file_name().and_then(|name| name.to_str()).and_then(SinkFileName::parse) else { continue };
        if name.barrier > 0 {
            written.push((name.sink.to_string(), name.barrier));
        } else if let Some(bytes) = records.read(&path)?
            && let Some(descent) = read_descent(&path, &bytes)?
        {
            descents.push((name.sink.to_string(), descent));
        }
    }
    // Those that went on from there, from those, and so on.
    let mut since: HashSet<&str> = HashSet::default();
    loop {
        let before = since.len();
        let is_since = |standing: &Standing| {
            since.contains(standing.sink.as_str()) || (standing.sink == from.sink && standing.barrier >= from.barrier)
        };
        let more: Vec<&str> = descents.iter().filter(|(_, standing)| is_since(standing)).map(|(sink, _)| sink.as_str()).collect();
        since.extend(more);
        if since.len() == before {
            break;
        }
    }
    let later = written.iter().find(|(sink, barrier)| since.contains(sink.as_str()) || (*sink == from.sink && *barrier > from.barrier));
    // Its name stands before the first dot.
    Ok(later.map(|(sink, _)| sink.split('.').next().unwrap_or(sink).to_string()))
}

/// The records of a place.
enum PlaceRecords {
    Local(PathBuf),
    Store(Objects, String),
}

impl PlaceRecords {
    fn open(config: &FileConfig) -> Result<PlaceRecords> {
        match &config.objects {
            None => Ok(PlaceRecords::Local(config.path.join(RECORDS))),
            Some(place) => Ok(PlaceRecords::Store(place.open()?, place.url.key(RECORDS))),
        }
    }

    fn list(&self) -> Result<Vec<PathBuf>> {
        match self {
            PlaceRecords::Local(folder) => match std::fs::read_dir(folder) {
                Err(e) if is_gone(&e) => Ok(Vec::new()),
                entries => {
                    let names = entries.and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect());
                    names.map_err(|e| Error::io(format!("list \"{}\"", folder.display()), &e))
                }
            },
            PlaceRecords::Store(objects, folder) => {
                Ok(objects.list(folder)?.into_iter().map(|object| PathBuf::from(objects.url(&object.key))).collect())
            }
        }
    }

    /// `None` where it has gone meanwhile.
    fn read(&self, path: &Path) -> Result<Option<Vec<u8>>> {
        match self {
            PlaceRecords::Local(_) => match std::fs::read(path) {
                Err(e) if is_gone(&e) => Ok(None),
                read => read.map(Some).map_err(|e| Error::io(format!("read \"{}\"", path.display()), &e)),
            },
            PlaceRecords::Store(objects, _) => {
                let Some((_, key)) = ObjectUrl::split(path) else { return Ok(None) };
                Ok(objects.get(key)?.map(|bytes| bytes.to_vec()))
            }
        }
    }
}

fn is_gone(e: &std::io::Error) -> bool {
    matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::seams::files::{FilesRef, LocalFiles};
    use crate::sinks::commit::write_record;
    use crate::sinks::file::place::SinkPlace;

    #[test]
    fn what_was_written_since_is_found_over_any_number_of_steps() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("out");
        let files: FilesRef = LocalFiles::shared();
        let options = BTreeMap::from([("path".to_string(), root.display().to_string()), ("format".to_string(), "csv".to_string())]);
        let config = FileConfig::parse_sink(&options).unwrap();
        let place = |id: u64| SinkPlace::new(root.clone(), 0, 7, id, "s", 1);
        let at = |id: u64, barrier: u64| Standing::new(7, id, "s", barrier);
        let write = |id: u64, barrier: u64| write_record(&files, &place(id).record(barrier), &[root.join("a").as_path()]).unwrap();
        let since = |id: u64, barrier: u64| written_since(&config, &at(id, barrier)).unwrap();
        assert_eq!(since(1, 5), None);
        place(1).prepare(&files, Some(None)).unwrap();
        write(1, 5);
        // Another one beside it is nobody's business.
        place(9).prepare(&files, Some(None)).unwrap();
        write(9, 20);
        assert_eq!((since(1, 5), since(1, 4)), (None, Some("s".into())));
        place(2).prepare(&files, Some(Some(&at(1, 5)))).unwrap();
        place(3).prepare(&files, Some(Some(&at(2, 8)))).unwrap();
        assert_eq!(since(1, 5), None, "neither has written anything");
        write(3, 12);
        assert_eq!((since(1, 5), since(2, 8), since(3, 12)), (Some("s".into()), Some("s".into()), None));
        // One that went on from before does not come after.
        place(4).prepare(&files, Some(Some(&at(3, 11)))).unwrap();
        write(4, 30);
        assert_eq!(since(3, 12), None);
    }
}
