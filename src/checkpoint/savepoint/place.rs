//! Where savepoints are, and how they are made, read and removed there.

use std::ffi::OsString;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use weir_catalog::{Error, Result, SqlState};

use super::objects::{Buckets, InObjects};
use super::{METADATA, Savepoint, folder};
use crate::checkpoint::{CheckpointStore, FileHandle, Part};
use crate::seams::files::FilesRef;
use crate::seams::objects::{ObjectUrl, Permits};

/// How many links in a path are followed, as Linux has it.
const MOST_LINKS: usize = 40;

/// Where a savepoint is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Folder(PathBuf),
    /// Below a prefix of an object store.
    Objects(ObjectUrl),
}

impl Place {
    /// Reads what a user says: a path, which is made absolute, a `file://` URL, or `s3://bucket/prefix`. Errors: `0A000` for other URLs, `22023` for what can't
    /// be read.
    pub fn parse(location: &str) -> Result<Place> {
        if ObjectUrl::is_url(location) {
            return ObjectUrl::parse(location).map(Place::Objects);
        }
        let path = location.strip_prefix("file://").unwrap_or(location);
        if path.contains("://") {
            return Err(Error::unsupported(format!("savepoints at \"{location}\" are not supported"))
                .with_hint("Name a folder, as a path or a file:// URL, or s3://bucket/prefix."));
        }
        absolute(Path::new(path)).map(Place::Folder)
    }

    /// Reads what [`Place::record`] gave.
    pub fn recorded(text: &str) -> Result<Place> {
        if ObjectUrl::is_url(text) { ObjectUrl::parse(text).map(Place::Objects) } else { Ok(Place::Folder(PathBuf::from(text))) }
    }

    /// As it stands in the catalog, and in notes. Errors with `0A000` where a path is no text.
    pub fn record(&self) -> Result<String> {
        match self {
            Place::Folder(path) => {
                path.to_str().map(str::to_string).ok_or_else(|| Error::unsupported("the path of a savepoint is not valid UTF-8"))
            }
            Place::Objects(url) => Ok(url.to_string()),
        }
    }

    /// Whether a savepoint made here would be nobody else's to remove. Errors with `22023` for a folder in a data folder, be it `data_dir` or another, and for
    /// one in a savepoint, and for objects among those of `checkpoints`: what is not known there is removed. Waits for disk.
    pub fn check_is_apart(&self, data_dir: &Path, checkpoints: Option<&ObjectUrl>) -> Result<()> {
        let folder = match (self, checkpoints) {
            (Place::Folder(folder), _) => folder,
            (Place::Objects(url), Some(checkpoints)) if url.is_below(checkpoints) => {
                return Err(Error::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!("\"{url}\" is among the checkpoints in \"{checkpoints}\""),
                )
                .with_hint("Name a prefix outside of it. Without AT, a savepoint is made in the data folder, in a place of its own."));
            }
            (Place::Objects(_), _) => return Ok(()),
        };
        let (path, data_dir) = (resolved(folder), resolved(data_dir));
        let refused = |what: &str, place: &Path| {
            Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("folder \"{}\" is in the {what} \"{}\"", folder.display(), place.display()),
            )
            .with_hint("Name a folder outside of it. Without AT, a savepoint is made in the data folder, in a place of its own.")
        };
        if path.starts_with(&data_dir) {
            return Err(refused("data folder", &data_dir));
        }
        if let Some(other) = path.ancestors().find(|above| is_data_folder(above)) {
            return Err(refused("data folder", other));
        }
        match path.ancestors().skip(1).find(|above| above.join(METADATA).is_file()) {
            Some(savepoint) => Err(refused("savepoint", savepoint)),
            None => Ok(()),
        }
    }
}

/// Whether `folder` is the data folder of some server.
fn is_data_folder(folder: &Path) -> bool {
    let path = folder.join("FORMAT");
    path.is_file() && std::fs::read(path).is_ok_and(|content| content.starts_with(b"weir-data "))
}

/// Where `path`, which is absolute, leads to when all links in it are followed; its end need not exist.
fn resolved(path: &Path) -> PathBuf {
    let mut at = PathBuf::from("/");
    let mut rest: Vec<OsString> = steps(path);
    let mut links = 0;
    while let Some(step) = rest.pop() {
        if step == ".." {
            // What stands here has no links any more.
            at.pop();
            continue;
        }
        let next = at.join(step);
        match std::fs::read_link(&next) {
            Ok(target) if links < MOST_LINKS => {
                links += 1;
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                rest.extend(steps(&target));
            }
            _ => at = next,
        }
    }
    at
}

/// The names in `path`, the last one first.
fn steps(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    });
    names.collect()
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Folder(path) => path.display().fmt(formatter),
            Place::Objects(url) => url.fmt(formatter),
        }
    }
}

/// `path` as it is called from everywhere. Errors with `22023` where it is empty, `58030` where the working directory is gone.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    if path.as_os_str().is_empty() {
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "a path is empty"));
    }
    std::path::absolute(path).map_err(|e| Error::io(format!("find \"{}\"", path.display()), &e))
}

/// Makes, reads and removes savepoints, wherever they are. All calls wait for disk or network.
#[derive(Clone, Debug)]
pub struct Places {
    /// Of this machine.
    pub(super) files: FilesRef,
    buckets: Arc<Buckets>,
}

impl Places {
    /// Of a process whose files are `files`. What goes to object stores is bounded by `permits`, and on its way in folders below `scratch`.
    pub fn new(files: FilesRef, scratch: PathBuf, permits: Arc<Permits>) -> Places {
        Places { buckets: Arc::new(Buckets::new(scratch, permits)), files }
    }

    /// How long a call may take that waits for an object store.
    pub fn set_timeout(&self, timeout: Duration) {
        self.buckets.set_timeout(timeout);
    }

    /// Ends calls that wait for an object store, those under way and those to come.
    pub fn stop(&self) {
        self.buckets.stop();
    }

    fn objects<'a>(&'a self, url: &'a ObjectUrl) -> Result<InObjects<'a>> {
        self.buckets.at(&self.files, url)
    }

    /// Makes `savepoint` in `place`, durably, of files of `store`, which must keep them meanwhile.
    ///
    /// Errors: `42710` where there is a savepoint in it, `58030` where it has other things or can't be written to, `53100` for a full disk. After an error there
    /// is no savepoint.
    pub fn write(&self, store: &CheckpointStore, place: &Place, savepoint: &Savepoint) -> Result<()> {
        match place {
            Place::Folder(folder) => folder::write(&self.files, store, folder, savepoint),
            Place::Objects(url) => self.objects(url)?.write(store, savepoint),
        }
    }

    /// The savepoint in `place`. Errors: `42704` where there is none, `XX001` where its metadata is damaged, `0A000` where a newer version wrote it.
    pub fn read(&self, place: &Place) -> Result<Savepoint> {
        match place {
            Place::Folder(folder) => folder::read(&self.files, folder),
            Place::Objects(url) => self.objects(url)?.read(),
        }
    }

    /// Removes the savepoint in `place`. Once the metadata is gone it is none any more.
    pub fn remove(&self, place: &Place) -> Result<()> {
        match place {
            Place::Folder(folder) => folder::remove(&self.files, folder),
            Place::Objects(url) => self.objects(url)?.remove(),
        }
    }

    /// Brings the files of `part`, of the savepoint in `place`, into the new folder `into` under their local names, after checking length and content of
    /// each. Errors with `XX001` naming the file that is damaged or missing.
    pub fn fetch(&self, place: &Place, part: &Part, into: &Path) -> Result<()> {
        match place {
            Place::Folder(folder) => folder::fetch(&self.files, folder, part, into),
            Place::Objects(url) => self.objects(url)?.fetch(part, into),
        }
    }

    /// The content of a file of the savepoint in `place`, after checking it.
    pub fn read_file(&self, place: &Place, file: &FileHandle) -> Result<Vec<u8>> {
        match place {
            Place::Folder(folder) => folder::read_file(&self.files, folder, file),
            Place::Objects(url) => self.objects(url)?.read_file(file),
        }
    }

    /// How many names each file of the savepoints in `places` has in them.
    pub fn links<'a>(&self, places: impl Iterator<Item = &'a Place>) -> folder::Links {
        let mut links = folder::Links::new();
        for place in places {
            if let Place::Folder(folder) = place {
                folder::count_links(folder, &mut links);
            }
        }
        links
    }

    /// The bytes of files of `savepoint`, which is in `place`, that nothing but savepoints keeps, whose files are in `links`; those that several have count in
    /// each. In an object store that is all of them.
    pub fn pinned_bytes(&self, place: &Place, savepoint: &Result<Savepoint>, links: &folder::Links) -> u64 {
        match place {
            Place::Folder(folder) => folder::pinned_bytes(folder, links),
            Place::Objects(_) => savepoint.as_ref().map_or(0, Savepoint::bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_absolute_and_read_as_they_are_recorded() {
        let here = std::env::current_dir().unwrap();
        for (said, is) in [
            ("/backup/a", "/backup/a".to_string()),
            ("file:///backup/a", "/backup/a".to_string()),
            ("./a/b", here.join("a/b").display().to_string()),
            ("a", here.join("a").display().to_string()),
            ("s3://bucket/some/where/", "s3://bucket/some/where".to_string()),
            ("s3a://bucket", "s3://bucket".to_string()),
        ] {
            let place = Place::parse(said).unwrap();
            assert_eq!((place.to_string(), place.record().unwrap()), (is.clone(), is), "{said}");
            assert_eq!(Place::recorded(&place.record().unwrap()).unwrap(), place, "{said}");
        }
        for (wrong, code) in [("", "22023"), ("file://", "22023"), ("http://a/b", "0A000"), ("s3://a/../b", "22023")] {
            assert_eq!(Place::parse(wrong).unwrap_err().code().as_str(), code, "{wrong}");
        }
    }

    #[test]
    fn a_savepoint_is_made_in_no_data_folder_and_in_no_other_savepoint() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let at = |path: &str| root.join(path);
        for folder in ["data/scratch", "data-of-mine", "other/log", "saved/files", "plain"] {
            std::fs::create_dir_all(at(folder)).unwrap();
        }
        std::fs::write(at("data/FORMAT"), "weir-data 1\n").unwrap();
        std::fs::write(at("other/FORMAT"), "weir-data 1\n").unwrap();
        std::fs::write(at("plain/FORMAT"), "none of weir's").unwrap();
        std::fs::write(at("saved/SAVEPOINT"), "").unwrap();
        let link = |target: &Path, path: &str| std::os::unix::fs::symlink(target, at(path)).unwrap();
        link(&at("data"), "to-data");
        link(Path::new("../data/savepoints/new"), "plain/dangling");
        link(&at("plain"), "data/scratch/out");
        link(&at("endless"), "endless");
        let check = |path: &Path| Place::Folder(path.to_path_buf()).check_is_apart(&at("to-data"), None);
        let inside = [
            "data",
            "data/scratch/a",
            "data/savepoints/a/b",
            "to-data/log/a",
            "plain/../data/a",
            "not/there/../../data/a",
            "plain/dangling",
            "plain/dangling/a",
            "other/log/a",
            "other/a",
            "saved/a",
            "saved/files/a/b",
        ];
        for path in inside {
            let error = check(&at(path)).unwrap_err();
            assert!(error.code().as_str() == "22023" && error.hint().is_some(), "{path}: {error:?}");
            assert!(error.message().contains(&*at(path).to_string_lossy()), "{path}: {error:?}");
        }
        for path in
            ["data-of-mine/a", "plain/a", "not/there", "data/../plain/a", "data/scratch/out/a", "saved", "saved/../plain", "endless/a"]
        {
            check(&at(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        }
        let checkpoints = ObjectUrl::parse("s3://data/weir").unwrap();
        let check = |place: &str, checkpoints| Place::parse(place).unwrap().check_is_apart(&at("data"), checkpoints);
        for place in ["s3://data/savepoints", "s3://data/weir2/a", "s3://data", "s3://other/weir/a"] {
            check(place, Some(&checkpoints)).unwrap_or_else(|error| panic!("{place}: {error}"));
            check(place, None).unwrap();
        }
        for place in ["s3://data/weir", "s3://data/weir/files/a", "s3a://data/weir/b/"] {
            assert_eq!(check(place, Some(&checkpoints)).unwrap_err().code().as_str(), "22023", "{place}");
        }
        let whole = ObjectUrl::parse("s3://data").unwrap();
        assert_eq!(check("s3://data/a", Some(&whole)).unwrap_err().code().as_str(), "22023");
    }
}
