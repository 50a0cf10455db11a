//! The savepoints of a data folder, by name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use weir_catalog::{Error, ObjectId, Result, SqlState};

use super::{ENDING, FILES, METADATA, Place, Places, Savepoint, UNFINISHED, folder, in_use, metadata_missing};
use crate::checkpoint::CheckpointStore;

/// In place of a savepoint that lies elsewhere: where.
const LOCATION: &str = "LOCATION";
/// That, before it has all its bytes.
const LOCATION_UNFINISHED: &str = "LOCATION.tmp";

/// Beside [`LOCATION`], as long as it is not known here that the savepoint there is complete: which one it is, by its data folder and the time it was made.
const BEGUN: &str = "BEGUN";

/// The savepoints of a data folder, by name: each in a folder of its own, or with a note where it is.
///
/// # Invariants
/// - A job that ends with a savepoint is gone if and only if there is the savepoint: until the job's end is durable, a note says that it waits for that, and a
///   start that finds the note looks whether the job is there.
/// - A savepoint that is complete elsewhere has its name, whenever the process was killed: the name is noted first, as begun, and a start that finds it so
///   looks whether the savepoint is there.
/// - Of those who make or remove a savepoint of one name, or in one place, one at a time does: it has it [`Reserved`].
#[derive(Clone, Debug)]
pub struct Savepoints {
    places: Places,
    root: PathBuf,
    reserved: Arc<Reservations>,
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

/// What is being made or removed, by name.
#[derive(Debug, Default)]
struct Reservations {
    by_name: Mutex<BTreeMap<String, Reservation>>,
    /// Told when one is gone.
    changed: Condvar,
}

#[derive(Debug)]
struct Reservation {
    /// Where it is to be, if not in the data folder.
    place: Option<Place>,
    /// Nobody waits for it any more: what has been made of it goes.
    given_up: bool,
}

impl Reservations {
    fn has(&self, name: &str) -> bool {
        self.by_name.lock().contains_key(name)
    }

    /// Returns when what was given up is not in the way of `name` and `place` any more.
    fn wait_for_given_up(&self, name: &str, place: Option<&Place>) {
        let mut by_name = self.by_name.lock();
        let is_in_the_way = |other: &str, reservation: &Reservation| {
            reservation.given_up && (other == name || (place.is_some() && reservation.place.as_ref() == place))
        };
        while by_name.iter().any(|(other, reservation)| is_in_the_way(other, reservation)) {
            self.changed.wait(&mut by_name);
        }
    }
}

/// The right to make or remove the savepoint of a name, until this is dropped. Until then nobody sees the savepoint.
#[derive(Debug)]
pub struct Reserved {
    savepoints: Savepoints,
    name: String,
    /// Where it is to be, if not in the data folder.
    place: Option<Place>,
}

impl Reserved {
    /// Nobody waits for the savepoint any more, and it is going to be removed: others who want the name or the place wait for that.
    pub fn give_up(&self) {
        if let Some(reservation) = self.savepoints.reserved.by_name.lock().get_mut(&self.name) {
            reservation.given_up = true;
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.savepoints.reserved.by_name.lock().remove(&self.name);
        self.savepoints.reserved.changed.notify_all();
    }
}

impl Savepoints {
    /// Those in `root`. What is left of ones that were not completed is removed, and of those whose job was to end with them and, as `has_ended` says, has not; the
    /// log says so. What is none of a savepoint stays, and so does one that has lost its metadata.
    /// Where an object store has to be asked for it, [`Savepoints::settle_all`] does it with what is returned.
    pub fn open(places: Places, root: PathBuf, has_ended: impl Fn(ObjectId) -> bool) -> Result<(Savepoints, Vec<Unsettled>)> {
        let savepoints = Savepoints { places, root, reserved: Arc::default(), settling: Arc::default() };
        let mut unsettled = Vec::new();
        let files = &savepoints.places.files;
        for entry in files.list(&savepoints.root)? {
            let folder = savepoints.root.join(&entry);
            let Some(name) = name_of(&entry).filter(|_| folder.is_dir()) else {
                tracing::warn!(path = %folder.display(), "what is no folder of a savepoint is among the savepoints, and is left alone");
                continue;
            };
            let is_there = files.exists(&folder.join(METADATA)) || files.exists(&folder.join(LOCATION));
            let note = folder.join(ENDING);
            let given_up = files.exists(&note) && {
                let job = std::str::from_utf8(&files.read(&note)?).ok().and_then(|text| text.trim().parse::<ObjectId>().ok());
                !job.is_none_or(&has_ended)
            };
            if !is_there {
                if let Err(error) = savepoints.tidy(&folder, given_up) {
                    tracing::warn!(folder = %folder.display(), %error, "what is left of a savepoint that was not completed was not removed");
                }
                continue;
            }
            let is_begun = files.exists(&folder.join(BEGUN));
            if (given_up || is_begun) && matches!(savepoints.place_in(&folder)?, Some(Place::Objects(_))) {
                unsettled.push(Unsettled { name, given_up });
            } else if let Err(error) = savepoints.settle(&folder, given_up) {
                // A folder elsewhere, which may be out of reach as well.
                tracing::warn!(folder = %folder.display(), %error, "whether a savepoint is complete could not be found out");
            }
        }
        Ok((savepoints, unsettled))
    }

    /// Removes what is in `entry`, without metadata and without a note where it is, if that is left of a savepoint that was not completed, or that was given up.
    fn tidy(&self, entry: &Path, given_up: bool) -> Result<()> {
        let files = &self.places.files;
        if folder::has_lost_metadata(files, entry) && !given_up {
            let error = metadata_missing(entry);
            tracing::warn!(folder = %entry.display(), %error, "a savepoint is damaged; it stays until it is dropped");
            return files.remove(&entry.join(ENDING));
        }
        let known = [UNFINISHED, FILES, ENDING, BEGUN, LOCATION_UNFINISHED].map(PathBuf::from);
        if let Some(other) = files.list(entry)?.iter().find(|name| !known.contains(name)) {
            tracing::warn!(folder = %entry.display(), has = %other.display(), "a folder among the savepoints is not weir's and is left alone");
            return Ok(());
        }
        let why = if given_up { "its job was to end with it, and has not" } else { "it was not completed, or was being dropped" };
        tracing::warn!(folder = %entry.display(), why, "what is left of a savepoint is removed");
        self.forget(entry)
    }

    /// Finds out what [`Savepoints::open`] has left. What can't be found out stays as it is, and the next start tries again.
    pub fn settle_all(&self, unsettled: &[Unsettled]) {
        for Unsettled { name, given_up } in unsettled {
            let _settling = self.settling.lock();
            if self.reserved.has(name) {
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

    /// Reserves `name` for a new savepoint, in `place` where that is given. Waits for disk, for the object store that one was begun in, and for what was given up
    /// to be gone. Errors: `42710` where
    /// there is a savepoint `name`, or about to be one, and `55006` where one is about to be made in `place`, or removed there.
    pub fn reserve(&self, name: &str, place: Option<&Place>) -> Result<Reserved> {
        self.reserved.wait_for_given_up(name, place);
        let entry = self.entry(name);
        let _settling = self.settling.lock();
        if self.places.files.exists(&entry.join(BEGUN)) && !self.reserved.has(name) {
            self.settle(&entry, self.places.files.exists(&entry.join(ENDING)))?;
        }
        let mut reserved = self.reserved.by_name.lock();
        let is_there = [METADATA, LOCATION, ENDING].iter().any(|file| self.places.files.exists(&entry.join(file)));
        if is_there || folder::has_lost_metadata(&self.places.files, &entry) || reserved.contains_key(name) {
            return Err(Error::new(SqlState::DUPLICATE_OBJECT, format!("savepoint \"{name}\" already exists")));
        }
        self.insert(&mut reserved, name, place)
    }

    fn insert(&self, reserved: &mut BTreeMap<String, Reservation>, name: &str, place: Option<&Place>) -> Result<Reserved> {
        if let Some(place) = place.filter(|place| reserved.values().any(|other| other.place.as_ref() == Some(*place))) {
            return Err(in_use(place));
        }
        reserved.insert(name.to_string(), Reservation { place: place.cloned(), given_up: false });
        Ok(Reserved { savepoints: self.clone(), name: name.to_string(), place: place.cloned() })
    }

    /// Where the savepoint `name` is; `None` where there is none of this name, or where it is being made or removed.
    pub fn place(&self, name: &str) -> Result<Option<Place>> {
        if self.reserved.has(name) { Ok(None) } else { self.settled_place(name) }
    }

    fn settled_place(&self, name: &str) -> Result<Option<Place>> {
        let entry = self.entry(name);
        if [ENDING, BEGUN].iter().any(|note| self.places.files.exists(&entry.join(note))) { Ok(None) } else { self.place_in(&entry) }
    }

    fn place_in(&self, entry: &Path) -> Result<Option<Place>> {
        let files = &self.places.files;
        if files.exists(&entry.join(METADATA)) || (!files.exists(&entry.join(LOCATION)) && folder::has_lost_metadata(files, entry)) {
            return Ok(Some(Place::Folder(entry.to_path_buf())));
        }
        let note = entry.join(LOCATION);
        if !files.exists(&note) {
            return Ok(None);
        }
        let broken = |_| Error::corrupted(format!("\"{}\" is damaged", note.display()));
        Place::recorded(&String::from_utf8(files.read(&note)?).map_err(broken)?).map(Some)
    }

    /// Errors with `XX001` where `place`, which a savepoint of this data folder has, is in it and without the savepoint's metadata.
    pub fn check_metadata(&self, place: &Place) -> Result<()> {
        match place {
            Place::Folder(entry) if entry.parent() == Some(self.root.as_path()) && folder::has_lost_metadata(&self.places.files, entry) => {
                Err(metadata_missing(entry))
            }
            _ => Ok(()),
        }
    }

    /// Makes a savepoint of this data folder, of the name and in the place that are reserved for it. It is seen when `reserved` is dropped; whoever gives it up
    /// before calls [`Savepoints::abandon`].
    pub fn write(&self, store: &CheckpointStore, savepoint: &Savepoint, reserved: &Reserved) -> Result<()> {
        let (files, entry) = (&self.places.files, self.entry(&reserved.name));
        files.create_dir(&self.root)?;
        let Some(place) = &reserved.place else {
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
        let temporary = entry.join(LOCATION_UNFINISHED);
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
    pub fn write_of_ending(&self, store: &CheckpointStore, savepoint: &Savepoint, reserved: &Reserved, job: ObjectId) -> Result<()> {
        let (files, entry) = (&self.places.files, self.entry(&reserved.name));
        files.create_dir(&entry)?;
        files.write(&entry.join(ENDING), job.to_string().as_bytes())?;
        files.sync_dir(&entry)?;
        let written = self.write(store, savepoint, reserved);
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

    /// There is to be no savepoint `name`: its job has not ended, or nobody waited for it. For whoever has it reserved.
    pub fn abandon(&self, name: &str) -> Result<()> {
        self.remove_in(&self.entry(name))
    }

    fn remove_in(&self, entry: &Path) -> Result<()> {
        if let Some(place) = self.place_in(entry)? {
            self.places.remove(&place)?;
        }
        self.forget(entry)
    }

    /// Removes the name in `entry`. Without the note where it is, it is none, whatever else is left. What is not weir's stays.
    fn forget(&self, entry: &Path) -> Result<()> {
        let (files, note) = (&self.places.files, entry.join(LOCATION));
        if files.exists(&note) {
            files.remove(&note)?;
            files.sync_dir(entry)?;
        }
        folder::remove(files, entry)?;
        for note in [BEGUN, ENDING, LOCATION_UNFINISHED] {
            files.remove(&entry.join(note))?;
        }
        if files.list(entry)?.is_empty() {
            files.remove_dir(entry)?;
        }
        files.sync_dir(&self.root)
    }

    /// Removes the savepoint `name`, wherever it is; false where there is none. Errors with `55006` where another is about to be made in its place, or removed
    /// there.
    pub fn remove(&self, name: &str) -> Result<bool> {
        let _reserved = {
            let mut reserved = self.reserved.by_name.lock();
            let place = match self.settled_place(name)? {
                Some(place) if !reserved.contains_key(name) => place,
                _ => return Ok(false),
            };
            let own = Place::Folder(self.entry(name));
            self.insert(&mut reserved, name, Some(&place).filter(|place| **place != own))?
        };
        self.remove_in(&self.entry(name))?;
        Ok(true)
    }

    /// All, by name, each with where it is.
    pub fn list(&self) -> Result<Vec<(String, Place)>> {
        let mut found = Vec::new();
        for entry in self.places.files.list(&self.root)? {
            if let Some(name) = name_of(&entry)
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

/// Which savepoint `entry` of the folder of savepoints is of; `None` where it is none that is made here.
fn name_of(entry: &Path) -> Option<String> {
    let entry = entry.to_str()?;
    name_of_folder(entry).filter(|name| folder_name(name) == entry)
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
mod tests;
