//! The set of objects at one commit, and the changes that lead to the next.
//!
//! A [`Catalog`] is a value: readers hold an `Arc` of one and are never disturbed; a commit that holds [`CatalogChange`]s makes the next.
//! Changes are written to the engine log as JSON behind a format number.
//!
//! # Invariants
//! - What an object depends on exists, and nothing depends on itself. Every change is applied in the log's order before it is written, so this holds
//!   whatever sessions do at a time: of two changes that do not go together, the second is refused.
//! - The views (macros) that a job was planned with stay as they are while it exists: a start plans it again.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, SqlState};
use crate::object::{Object, ObjectId};

/// The highest number in front of an encoded change. A change of the JSON form that older readers could not follow adds one. 2 has columns that are arrays,
/// or rows outside of connector tables ([`Object::has_nested_columns`]); a change without such columns is still written as format 1.
pub const FORMAT: u8 = 2;

/// One change to the catalog, as it stands in the engine log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CatalogChange {
    /// A new object, whole.
    Create(Object),
    /// An object that takes the place of the one with its id.
    Replace(Object),
    /// An object that is gone.
    Drop(ObjectId),
}

impl CatalogChange {
    /// Its durable form.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let nested = match self {
            CatalogChange::Create(object) | CatalogChange::Replace(object) => object.has_nested_columns(),
            CatalogChange::Drop(_) => false,
        };
        let mut bytes = vec![if nested { 2 } else { 1 }];
        serde_json::to_writer(&mut bytes, self).map_err(|e| Error::internal(format!("could not encode a catalog change: {e}")))?;
        Ok(bytes)
    }

    /// The change that `bytes` hold. Errors with `XX001` when they hold none, `0A000` for one of a newer format.
    pub fn decode(bytes: &[u8]) -> Result<CatalogChange> {
        match bytes.split_first() {
            Some((1..=FORMAT, json)) => {
                serde_json::from_slice(json).map_err(|e| Error::corrupted(format!("a catalog change in the engine log can't be read: {e}")))
            }
            Some((&format, _)) if format > FORMAT => Err(Error::newer_format("a catalog change in the engine log", format, FORMAT)),
            Some((format, _)) => {
                Err(Error::corrupted(format!("a catalog change in the engine log has format {format}, which there never was")))
            }
            None => Err(Error::corrupted("a catalog change in the engine log is empty")),
        }
    }
}

/// Every object, by name and by id. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    by_id: BTreeMap<ObjectId, Arc<Object>>,
    by_name: BTreeMap<String, ObjectId>,
    /// The highest id ever given, so that none is given twice.
    last_id: ObjectId,
}

/// The first id given to an object that a user makes, above PostgreSQL's own.
const FIRST_ID: ObjectId = 16_384;

impl Catalog {
    /// The catalog of a snapshot: its objects, and the highest id ever given. Errors with `XX001` where they contradict each other.
    pub fn restore(objects: impl IntoIterator<Item = Object>, last_id: ObjectId) -> Result<Catalog> {
        let mut catalog = Catalog::default();
        for object in objects {
            catalog
                .replay(&CatalogChange::Create(object))
                .map_err(|e| Error::corrupted(format!("a snapshot of the catalog contradicts itself: {}", e.message())))?;
        }
        if catalog.last_id > last_id {
            return Err(Error::corrupted(format!(
                "a snapshot of the catalog has object id {}, above its highest, {last_id}",
                catalog.last_id
            )));
        }
        catalog.last_id = last_id;
        Ok(catalog)
    }

    /// The object with this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Object>> {
        self.by_id.get(self.by_name.get(name)?)
    }

    /// The object with this id.
    pub fn get_id(&self, id: ObjectId) -> Option<&Arc<Object>> {
        self.by_id.get(&id)
    }

    /// All objects, oldest first.
    pub fn objects(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.by_id.values()
    }

    /// The id that the next object gets.
    pub fn next_id(&self) -> ObjectId {
        (self.last_id + 1).max(FIRST_ID)
    }

    /// The highest id ever given, to be kept with a snapshot of the catalog.
    pub fn last_id(&self) -> ObjectId {
        self.last_id
    }

    /// The objects that depend on `id` directly.
    pub fn dependants(&self, id: ObjectId) -> Vec<&Arc<Object>> {
        self.by_id.values().filter(|object| object.depends_on().contains(&id)).collect()
    }

    /// `id` and everything that depends on it, dependants first: the order in which they can be dropped.
    pub fn drop_order(&self, id: ObjectId) -> Vec<ObjectId> {
        fn visit(catalog: &Catalog, id: ObjectId, order: &mut Vec<ObjectId>) {
            if order.contains(&id) {
                return;
            }
            for dependant in catalog.dependants(id) {
                visit(catalog, dependant.id(), order);
            }
            if !order.contains(&id) {
                order.push(id);
            }
        }
        let mut order = Vec::new();
        visit(self, id, &mut order);
        order
    }

    /// The catalog with `object` in the place of what has its name. Nothing is checked: it is for planning over what is to be.
    pub fn with(&self, object: Object) -> Catalog {
        let mut catalog = self.clone();
        if let Some(former) = catalog.by_name.insert(object.name().to_string(), object.id()) {
            catalog.by_id.remove(&former);
        }
        catalog.by_id.insert(object.id(), Arc::new(object));
        catalog
    }

    /// The catalog with objects called as `names` says, as far as they are there; what has such a name now is found by its id alone.
    pub fn with_names(&self, names: &[(ObjectId, String)]) -> Catalog {
        let mut catalog = self.clone();
        for (id, name) in names {
            if let Some(object) = catalog.by_id.get(id).map(|object| object.as_ref().clone().renamed(name)) {
                catalog.by_name.insert(name.clone(), *id);
                catalog.by_id.insert(*id, Arc::new(object));
            }
        }
        catalog
    }

    /// The catalog after `change`. Errors when the change does not fit it.
    ///
    /// `42P07`: a name is taken. `2BP01`: the object is still in use. `40001`: what is changed, or what the new object depends on, is not there (any more):
    /// whoever planned the change saw an older catalog. `42P17`: a view would read itself. `0A000`: a job runs with the view that is replaced.
    pub fn apply(&mut self, change: &CatalogChange) -> Result<()> {
        match change {
            CatalogChange::Create(object) => self.check_inputs(object)?,
            CatalogChange::Replace(object) => {
                self.check_inputs(object)?;
                self.check_replacement(object)?;
            }
            CatalogChange::Drop(_) => {}
        }
        self.replay(change)
    }

    /// As [`Catalog::apply`], for a change from the log: what earlier versions let through, and wrote, can still be read.
    pub fn replay(&mut self, change: &CatalogChange) -> Result<()> {
        match change {
            CatalogChange::Create(object) => {
                if self.by_name.contains_key(object.name()) {
                    return Err(Error::new(SqlState::DUPLICATE_TABLE, format!("relation \"{}\" already exists", object.name())));
                }
                if self.by_id.contains_key(&object.id()) {
                    return Err(Error::internal(format!("object id {} is taken", object.id())));
                }
                self.last_id = self.last_id.max(object.id());
                self.by_name.insert(object.name().to_string(), object.id());
                self.by_id.insert(object.id(), Arc::new(object.clone()));
            }
            CatalogChange::Replace(object) => {
                let old = self.by_id.get(&object.id()).ok_or_else(|| gone(format!("{} \"{}\"", object.kind(), object.name())))?;
                if old.name() != object.name() {
                    if self.by_name.contains_key(object.name()) {
                        return Err(Error::new(SqlState::DUPLICATE_TABLE, format!("relation \"{}\" already exists", object.name())));
                    }
                    self.by_name.remove(old.name());
                    self.by_name.insert(object.name().to_string(), object.id());
                }
                self.by_id.insert(object.id(), Arc::new(object.clone()));
            }
            CatalogChange::Drop(id) => {
                let old = self.by_id.get(id).cloned().ok_or_else(|| gone("What is to be dropped"))?;
                let dependants = self.dependants(*id);
                if !dependants.is_empty() {
                    let names: Vec<String> = dependants.iter().map(|object| format!("{} {}", object.kind(), object.name())).collect();
                    return Err(Error::new(
                        SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
                        format!("cannot drop {} {} because other objects depend on it", old.kind(), old.name()),
                    )
                    .with_detail(
                        names.iter().map(|name| format!("{name} depends on {} {}", old.kind(), old.name())).collect::<Vec<_>>().join("\n"),
                    )
                    .with_hint("Use DROP ... CASCADE to drop the dependent objects too."));
                }
                self.by_name.remove(old.name());
                self.by_id.remove(id);
            }
        }
        Ok(())
    }

    /// Whether everything is there that `object` depends on.
    fn check_inputs(&self, object: &Object) -> Result<()> {
        if object.depends_on().iter().any(|input| *input != object.id() && !self.by_id.contains_key(input)) {
            return Err(gone(format!("What {} \"{}\" depends on", object.kind(), object.name())));
        }
        Ok(())
    }

    /// Whether `object` can take the place of the one with its id.
    fn check_replacement(&self, object: &Object) -> Result<()> {
        let readers = self.drop_order(object.id());
        if object.depends_on().iter().any(|input| readers.contains(input)) {
            return Err(Error::new(
                SqlState::INVALID_OBJECT_DEFINITION,
                format!("{} \"{}\" would read itself", object.kind(), object.name()),
            ));
        }
        if self.by_id.get(&object.id()).is_some_and(|old| old.reads_like(object)) {
            return Ok(());
        }
        let jobs: Vec<String> = readers
            .iter()
            .filter(|reader| **reader != object.id())
            .filter_map(|reader| self.by_id.get(reader))
            .filter(|reader| matches!(reader.as_ref(), Object::Job(_)))
            .map(|job| format!("{} {} was planned with {} {}", job.kind(), job.name(), object.kind(), object.name()))
            .collect();
        if jobs.is_empty() {
            return Ok(());
        }
        Err(Error::unsupported(format!("cannot replace {} {} while jobs run with it", object.kind(), object.name()))
            .with_detail(jobs.join("\n"))
            .with_hint("Drop them first and create them again, or create a view of another name."))
    }
}

/// `40001`: what a change needs is not there any more. `what` begins the DETAIL.
fn gone(what: impl std::fmt::Display) -> Error {
    Error::new(SqlState::SERIALIZATION_FAILURE, "could not serialize access due to concurrent drop")
        .with_detail(format!("{what} was dropped by another session."))
        .with_hint("The transaction might succeed if retried.")
}

#[cfg(test)]
mod tests;
