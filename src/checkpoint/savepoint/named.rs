//! The savepoints of a data folder, by name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use weir_catalog::{Error, ObjectId, Result, SqlState};

use super::{ENDING, METADATA, Place, Places, Savepoint};
use crate::checkpoint::CheckpointStore;

/// In place of a savepoint that lies elsewhere: where.
const LOCATION: &str = "LOCATION";

/// Beside [`LOCATION`], as long as it is not known here that the savepoint there is complete: which one it is, by its data folder and the time it was made.
const BEGUN: &str = "BEGUN";

/// The savepoints of a data folder, by name: each in a folder of its own, or with a note where it is.
///
/// # Invariants
/// - A job that ends with a savepoint is gone if and only if there is the savepoint: until the job's end is durable, a note says that it waits for that, and a
///   start that finds the note looks whether the job is there.
/// - A savepoint that is complete elsewhere has its name, whenever the process was killed: the name is noted first, as begun, and a start that finds it so
///   looks whether the savepoint is there.
#[derive(Clone, Debug)]
pub struct Savepoints {
    places: Places,
    root: PathBuf,
    /// The names of those that are being written.
    writing: Arc<Mutex<BTreeSet<String>>>,
    /// Held while it is found out what became of one that was begun.
    settling: Arc<Mutex<()>>,
}

/// A savepoint that a start has to find out about, in an object store, which may be out of reach.
#[derive(Clone, Debug)]
pub struct Unsettled {
    name: String,
    /// Its job was to end with it and has not: it is none.
    given_up: bool,
}

/// The right to write the savepoint of a name.
struct Writing<'a> {
    savepoints: &'a Savepoints,
    name: &'a str,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.savepoints.writing.lock().remove(self.name);
    }
}

impl Savepoints {
    /// Those in `root`. What is left of ones that were not completed is removed, and of those whose job was to end with them and, as `has_ended` says, has not.
    /// Where an object store has to be asked for it, [`Savepoints::settle_all`] does it with what is returned.
    pub fn open(places: Places, root: PathBuf, has_ended: impl Fn(ObjectId) -> bool) -> Result<(Savepoints, Vec<Unsettled>)> {
        let savepoints = Savepoints { places, root, writing: Arc::default(), settling: Arc::default() };
        let mut unsettled = Vec::new();
        let files = &savepoints.places.files;
        for entry in files.list(&savepoints.root)? {
            let folder = savepoints.root.join(entry);
            if !files.exists(&folder.join(METADATA)) && !files.exists(&folder.join(LOCATION)) {
                files.remove_dir(&folder)?;
                continue;
            }
            let note = folder.join(ENDING);
            let given_up = files.exists(&note) && {
                let job = std::str::from_utf8(&files.read(&note)?).ok().and_then(|text| text.trim().parse::<ObjectId>().ok());
                !job.is_none_or(&has_ended)
            };
            let is_begun = files.exists(&folder.join(BEGUN));
            if (given_up || is_begun) && matches!(savepoints.place_in(&folder)?, Some(Place::Objects(_))) {
                let name = folder.file_name().and_then(|name| name.to_str()).and_then(name_of_folder);
                unsettled.extend(name.map(|name| Unsettled { name, given_up }));
            } else if let Err(error) = savepoints.settle(&folder, given_up) {
                // A folder elsewhere, which may be out of reach as well.
                tracing::warn!(folder = %folder.display(), %error, "whether a savepoint is complete could not be found out");
            }
        }
        Ok((savepoints, unsettled))
    }

    /// Finds out what [`Savepoints::open`] has left. What can't be found out stays as it is, and the next start tries again.
    pub fn settle_all(&self, unsettled: &[Unsettled]) {
        for Unsettled { name, given_up } in unsettled {
            let _settling = self.settling.lock();
            if self.writing.lock().contains(name) {
                continue; // Somebody was here first, who settled it before.
            }
            if let Err(error) = self.settle(&self.entry(name), *given_up) {
                tracing::warn!(savepoint = %name, %error, "whether a savepoint is complete could not be found out");
            }
        }
    }

    /// Finds out what became of the savepoint in `entry`: it counts, or there is none.
    fn settle(&self, entry: &Path, given_up: bool) -> Result<()> {
        let files = &self.places.files;
        if self.is_begun_only(entry)? {
            // What is left of it elsewhere is in the way of no other.
            return self.forget(entry);
        }
        if given_up {
            return self.remove_in(entry);
        }
        let mut noted = false;
        for note in [ENDING, BEGUN].map(|note| entry.join(note)) {
            if files.exists(&note) {
                files.remove(&note)?;
                noted = true;
            }
        }
        if noted { files.sync_dir(entry) } else { Ok(()) }
    }

    /// Whether the savepoint in `entry` was begun, and is not where it was to be.
    fn is_begun_only(&self, entry: &Path) -> Result<bool> {
        let note = entry.join(BEGUN);
        if !self.places.files.exists(&note) {
            return Ok(false);
        }
        let begun = self.places.files.read(&note)?;
        let Some(place) = self.place_in(entry)? else { return Ok(true) };
        match self.places.read(&place) {
            Ok(savepoint) => Ok(identity(&savepoint).as_bytes() != begun.as_slice()),
            Err(error) if *error.code() == SqlState::UNDEFINED_OBJECT => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn entry(&self, name: &str) -> PathBuf {
        self.root.join(folder_name(name))
    }

    /// Errors with `42710` where there is a savepoint `name`, or about to be one. Waits for disk, and for the object store that one was begun in.
    pub fn check_name_is_free(&self, name: &str) -> Result<()> {
        self.reserve(name).map(drop)
    }

    fn reserve<'a>(&'a self, name: &'a str) -> Result<Writing<'a>> {
        let entry = self.entry(name);
        let _settling = self.settling.lock();
        if self.places.files.exists(&entry.join(BEGUN)) && !self.writing.lock().contains(name) {
            self.settle(&entry, self.places.files.exists(&entry.join(ENDING)))?;
        }
        let mut writing = self.writing.lock();
        let is_there = [METADATA, LOCATION, ENDING].iter().any(|file| self.places.files.exists(&entry.join(file)));
        if is_there || writing.contains(name) {
            return Err(Error::new(SqlState::DUPLICATE_OBJECT, format!("savepoint \"{name}\" already exists")));
        }
        writing.insert(name.to_string());
        Ok(Writing { savepoints: self, name })
    }

    /// Where the savepoint `name` is; `None` where there is none of this name.
    pub fn place(&self, name: &str) -> Result<Option<Place>> {
        let entry = self.entry(name);
        if [ENDING, BEGUN].iter().any(|note| self.places.files.exists(&entry.join(note))) { Ok(None) } else { self.place_in(&entry) }
    }

    fn place_in(&self, entry: &Path) -> Result<Option<Place>> {
        let files = &self.places.files;
        if files.exists(&entry.join(METADATA)) {
            return Ok(Some(Place::Folder(entry.to_path_buf())));
        }
        let note = entry.join(LOCATION);
        if !files.exists(&note) {
            return Ok(None);
        }
        let broken = |_| Error::corrupted(format!("\"{}\" is damaged", note.display()));
        Place::recorded(&String::from_utf8(files.read(&note)?).map_err(broken)?).map(Some)
    }

    /// Makes a savepoint of this data folder, in `place` where that is given. Errors with `42710` where there is one of its name.
    pub fn write(&self, store: &CheckpointStore, savepoint: &Savepoint, place: Option<&Place>) -> Result<()> {
        let _reserved = self.reserve(&savepoint.name)?;
        self.write_reserved(store, savepoint, place)
    }

    fn write_reserved(&self, store: &CheckpointStore, savepoint: &Savepoint, place: Option<&Place>) -> Result<()> {
        let (files, entry) = (&self.places.files, self.entry(&savepoint.name));
        files.create_dir(&self.root)?;
        let Some(place) = place else {
            self.places.write(store, &Place::Folder(entry), savepoint)?;
            return files.sync_dir(&self.root);
        };
        let location = place.record()?;
        files.create_dir(&entry)?;
        let written = self.write_elsewhere(store, savepoint, place, &location, &entry);
        if written.is_err() {
            // As far as it is known there is none there; a start that finds the name begun looks.
            let _ = self.forget(&entry);
        }
        written
    }

    fn write_elsewhere(&self, store: &CheckpointStore, savepoint: &Savepoint, place: &Place, location: &str, entry: &Path) -> Result<()> {
        let files = &self.places.files;
        files.write(&entry.join(BEGUN), identity(savepoint).as_bytes())?;
        files.sync_dir(entry)?;
        let temporary = entry.join("LOCATION.tmp");
        files.write(&temporary, location.as_bytes())?;
        files.rename(&temporary, &entry.join(LOCATION))?;
        files.sync_dir(entry)?;
        files.sync_dir(&self.root)?;
        self.places.write(store, place, savepoint)?;
        let counted = files.remove(&entry.join(BEGUN)).and_then(|()| files.sync_dir(entry));
        if counted.is_err() {
            let _ = self.places.remove(place);
        }
        counted
    }

    /// As [`Savepoints::write`], of a job that is to end with it. It counts when [`Savepoints::confirm`] is called, or at a start that finds the job gone.
    pub fn write_of_ending(&self, store: &CheckpointStore, savepoint: &Savepoint, place: Option<&Place>, job: ObjectId) -> Result<()> {
        let _reserved = self.reserve(&savepoint.name)?;
        let (files, entry) = (&self.places.files, self.entry(&savepoint.name));
        files.create_dir(&entry)?;
        files.write(&entry.join(ENDING), job.to_string().as_bytes())?;
        files.sync_dir(&entry)?;
        let written = self.write_reserved(store, savepoint, place);
        if written.is_err() {
            // What can't be removed is none either: it has no metadata.
            let _ = self.forget(&entry);
        }
        written
    }

    /// The job has ended: the savepoint `name` counts.
    pub fn confirm(&self, name: &str) -> Result<()> {
        let entry = self.entry(name);
        self.places.files.remove(&entry.join(ENDING))?;
        self.places.files.sync_dir(&entry)
    }

    /// The job has not ended: there is no savepoint `name`.
    pub fn abandon(&self, name: &str) -> Result<()> {
        self.remove_in(&self.entry(name))
    }

    fn remove_in(&self, entry: &Path) -> Result<()> {
        if let Some(place) = self.place_in(entry)? {
            self.places.remove(&place)?;
        }
        self.forget(entry)
    }

    /// Removes the name in `entry`. Without the note where it is, it is none, whatever else is left.
    fn forget(&self, entry: &Path) -> Result<()> {
        let (files, note) = (&self.places.files, entry.join(LOCATION));
        if files.exists(&note) {
            files.remove(&note)?;
            files.sync_dir(entry)?;
        }
        files.remove_dir(entry)?;
        files.sync_dir(&self.root)
    }

    /// Removes the savepoint `name`, wherever it is; false where there is none.
    pub fn remove(&self, name: &str) -> Result<bool> {
        if self.place(name)?.is_none() {
            return Ok(false);
        }
        self.remove_in(&self.entry(name))?;
        Ok(true)
    }

    /// All, by name, each with where it is.
    pub fn list(&self) -> Result<Vec<(String, Place)>> {
        let mut found = Vec::new();
        for entry in self.places.files.list(&self.root)? {
            let name = entry.file_name().and_then(|name| name.to_str()).and_then(name_of_folder);
            if let Some(name) = name
                && let Some(place) = self.place(&name)?
            {
                found.push((name, place));
            }
        }
        found.sort_by(|(left, _), (right, _)| left.cmp(right));
        Ok(found)
    }
}

/// A name as that of a folder: what a file system might take amiss is written as `%` and two hex digits.
fn folder_name(name: &str) -> String {
    let mut folder = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-' {
            folder.push(char::from(byte));
        } else {
            folder.push_str(&format!("%{byte:02x}"));
        }
    }
    folder
}

/// Which savepoint it is, among all that have been made.
fn identity(savepoint: &Savepoint) -> String {
    format!("{:016x} {}", savepoint.engine, savepoint.created_us)
}

fn name_of_folder(folder: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = folder.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::checkpoint::JobCheckpoint;
    use crate::seams::files::{FilesRef, LossyFiles};
    use crate::seams::objects::Permits;

    fn savepoint(created_us: i64) -> Savepoint {
        let job = weir_catalog::Job {
            id: 16_400,
            name: "v".into(),
            kind: weir_catalog::JobKind::MaterializedView { key: None, changelog: weir_catalog::ChangelogMode::Append },
            columns: Vec::new(),
            query: "SELECT 1".into(),
            insert_columns: Vec::new(),
            sql: "CREATE MATERIALIZED VIEW v AS SELECT 1".into(),
            settings: BTreeMap::new(),
            inputs: Vec::new(),
            macros: Vec::new(),
            operators: Vec::new(),
            parallelism: 1,
            origin: None,
        };
        let checkpoint = JobCheckpoint { barrier: 1, commit: 1, time_us: 0, operators: BTreeMap::new(), finished: false };
        let (name, operators) = ("sp".into(), BTreeMap::new());
        Savepoint {
            name,
            engine: 7,
            created_us,
            job,
            checkpoint,
            operators,
            result: None,
            ends_job: false,
            inputs: Vec::new(),
            tables: None,
        }
    }

    /// Each statement that makes a savepoint elsewhere is stopped at each change of the disk, by a crash that loses what was not durable or by the end of the
    /// process alone. The savepoint is there and has its name, or neither; after STOP WITH SAVEPOINT of a job that has not ended it is neither. Then the same
    /// statement works.
    #[test]
    fn a_savepoint_elsewhere_is_there_and_has_its_name_or_neither() {
        let (mut there, mut gone) = (0, 0);
        for (ends, power_is_lost) in [(false, false), (false, true), (true, false), (true, true)] {
            for at in 1.. {
                let dir = tempfile::tempdir().unwrap();
                let root = dir.path().join("data");
                let lossy = LossyFiles::new(&root, at).unwrap();
                let files: FilesRef = Arc::new(lossy.clone());
                let place = Place::Folder(root.join("away"));
                let permits = Permits::new(1 << 20, |_| ());
                let places = Places::new(files.clone(), root.join("scratch"), permits);
                let open = || Savepoints::open(places.clone(), root.join("savepoints"), |_| false).unwrap().0;
                let store = || CheckpointStore::open(files.clone(), &root.join("checkpoints"), None).unwrap().0;
                let write = |savepoints: &Savepoints, store: &CheckpointStore, created_us: i64| {
                    if ends {
                        savepoints.write_of_ending(store, &savepoint(created_us), Some(&place), 16_400)
                    } else {
                        savepoints.write(store, &savepoint(created_us), Some(&place))
                    }
                };
                let (savepoints, former) = (open(), store());
                lossy.power_off_after(at);
                let written = write(&savepoints, &former, 1);
                let is_over = !lossy.powered_off();
                if power_is_lost {
                    lossy.power_off();
                    lossy.crash().unwrap();
                } else {
                    lossy.kill();
                }
                drop((savepoints, former));

                let (savepoints, store) = (open(), store());
                let is_there = places.read(&place).is_ok();
                let named = savepoints.list().unwrap();
                assert_eq!(named.len(), usize::from(is_there), "ends: {ends}, power lost: {power_is_lost}, change {at}");
                if ends {
                    assert!(!is_there, "the job has not ended; change {at}");
                } else {
                    assert!(is_there || written.is_err(), "what was acknowledged is gone; change {at}");
                }
                if is_there {
                    there += 1;
                    assert_eq!(write(&savepoints, &store, 2).unwrap_err().code().as_str(), "42710");
                    assert!(savepoints.remove("sp").unwrap());
                } else {
                    gone += 1;
                }
                write(&savepoints, &store, 3).unwrap();
                assert_eq!(places.read(&place).unwrap().created_us, 3);
                if is_over {
                    break;
                }
            }
        }
        assert!(there > 4 && gone > 20, "{there} there, {gone} gone");
    }

    /// A name that was begun where somebody else's savepoint is, or was, takes nothing from them.
    #[test]
    fn a_name_that_was_begun_takes_no_savepoint_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let files: FilesRef = Arc::new(LossyFiles::new(dir.path(), 1).unwrap());
        let places = Places::new(files.clone(), dir.path().join("scratch"), Permits::new(1 << 20, |_| ()));
        let place = Place::Folder(dir.path().join("away"));
        let store = CheckpointStore::open(files.clone(), &dir.path().join("checkpoints"), None).unwrap().0;
        places.write(&store, &place, &savepoint(1)).unwrap();
        for given_up in [false, true] {
            let entry = dir.path().join("savepoints/sp");
            files.create_dir(&entry).unwrap();
            files.write(&entry.join(BEGUN), identity(&savepoint(2)).as_bytes()).unwrap();
            files.write(&entry.join(LOCATION), place.record().unwrap().as_bytes()).unwrap();
            if given_up {
                files.write(&entry.join(ENDING), b"16400").unwrap();
            }
            let (savepoints, unsettled) = Savepoints::open(places.clone(), dir.path().join("savepoints"), |_| false).unwrap();
            assert!(unsettled.is_empty() && savepoints.list().unwrap().is_empty() && !files.exists(&entry));
            assert_eq!(places.read(&place).unwrap(), savepoint(1));
        }
    }

    #[test]
    fn every_name_is_that_of_a_folder() {
        for name in ["before", "Before It", "a/b", "..", "ü%2f", "", "x.tmp"] {
            let folder = folder_name(name);
            assert!(!folder.contains(['/', '.']), "{folder}");
            assert_eq!(name_of_folder(&folder).as_deref(), Some(name));
        }
        assert_eq!(name_of_folder("%zz"), None);
    }
}
