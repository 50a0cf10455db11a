//! What fits a catalog and what does not.

use super::*;
use crate::object::{Job, JobKind, View};

fn view(id: ObjectId, name: &str, inputs: &[ObjectId]) -> Object {
    let (query, sql) = (String::new(), String::new());
    Object::View(View { id, name: name.into(), columns: Vec::new(), query, sql, inputs: inputs.to_vec() })
}

fn job(id: ObjectId, name: &str, inputs: &[ObjectId], macros: &[ObjectId]) -> Object {
    Object::Job(Job {
        id,
        name: name.into(),
        kind: JobKind::MaterializedView { key: None, changelog: crate::ChangelogMode::Retract },
        columns: Vec::new(),
        query: String::new(),
        insert_columns: Vec::new(),
        sql: String::new(),
        settings: BTreeMap::new(),
        inputs: inputs.to_vec(),
        macros: macros.to_vec(),
        operators: Vec::new(),
        parallelism: 1,
        origin: None,
    })
}

fn catalog(objects: impl IntoIterator<Item = Object>) -> Catalog {
    let mut catalog = Catalog::default();
    for object in objects {
        catalog.apply(&CatalogChange::Create(object)).unwrap();
    }
    catalog
}

fn code(result: Result<()>) -> String {
    result.map_or_else(|error| error.code().to_string(), |()| "00000".to_string())
}

#[test]
fn of_two_changes_that_do_not_go_together_the_second_is_refused() {
    let creates = [view(2, "w", &[1]), job(2, "w", &[], &[1]), job(2, "w", &[1], &[])];
    for create in creates.map(CatalogChange::Create) {
        let before = catalog([view(1, "v", &[])]);
        let mut dropped_first = before.clone();
        dropped_first.apply(&CatalogChange::Drop(1)).unwrap();
        assert_eq!(code(dropped_first.apply(&create)), "40001");
        assert!(dropped_first.get("w").is_none());
        let mut created_first = before;
        created_first.apply(&create).unwrap();
        assert_eq!(code(created_first.apply(&CatalogChange::Drop(1))), "2BP01");
        assert!(created_first.get("v").is_some());
    }
    let mut catalog = catalog([view(1, "v", &[])]);
    catalog.apply(&CatalogChange::Drop(1)).unwrap();
    let twice = catalog.apply(&CatalogChange::Drop(1)).unwrap_err();
    assert_eq!(twice.code().as_str(), "40001");
    assert_eq!(code(catalog.apply(&CatalogChange::Replace(view(1, "v", &[])))), "40001");
}

#[test]
fn no_view_comes_to_read_itself() {
    let mut catalog = catalog([view(1, "a", &[]), view(2, "b", &[1]), view(3, "c", &[2])]);
    assert_eq!(code(catalog.apply(&CatalogChange::Replace(view(1, "a", &[3])))), "42P17");
    assert_eq!(code(catalog.apply(&CatalogChange::Replace(view(1, "a", &[1])))), "42P17");
    assert_eq!(code(catalog.apply(&CatalogChange::Replace(view(3, "c", &[1])))), "00000");
    // Now that c does not read b any more, b can read c.
    assert_eq!(code(catalog.apply(&CatalogChange::Replace(view(2, "b", &[3])))), "00000");
    assert_eq!(code(catalog.apply(&CatalogChange::Replace(view(1, "a", &[2])))), "42P17");
}

#[test]
fn the_views_that_a_job_was_planned_with_stay_as_they_are() {
    let mut catalog = catalog([view(1, "a", &[]), view(2, "b", &[1]), job(3, "m", &[], &[2])]);
    let changed = |object: Object| match object {
        Object::View(view) => Object::View(View { query: "SELECT 2".into(), ..view }),
        other => other,
    };
    // With another view of the same columns behind a name in it, it reads as before.
    assert_eq!(code(catalog.apply(&CatalogChange::Replace(view(1, "a", &[])))), "00000");
    for replaced in [changed(view(1, "a", &[])), changed(view(2, "b", &[1]))] {
        let error = catalog.apply(&CatalogChange::Replace(replaced)).unwrap_err();
        assert_eq!(error.code().as_str(), "0A000");
        assert!(error.detail().is_some_and(|detail| detail.starts_with("materialized view m was planned with view ")), "{error}");
    }
    catalog.apply(&CatalogChange::Drop(3)).unwrap();
    assert_eq!(code(catalog.apply(&CatalogChange::Replace(changed(view(1, "a", &[]))))), "00000");
}

#[test]
fn a_job_that_is_read_may_be_called_something_else() {
    let mut catalog = catalog([job(1, "hidden", &[], &[]), job(2, "reader", &[1], &[])]);
    assert_eq!(code(catalog.apply(&CatalogChange::Replace(job(1, "v", &[], &[])))), "00000");
    assert!(catalog.get("v").is_some() && catalog.get("hidden").is_none());
    let Object::Job(other) = job(1, "v", &[], &[]) else { unreachable!() };
    let other = Object::Job(Job { query: "SELECT 2".into(), ..other });
    assert_eq!(code(catalog.apply(&CatalogChange::Replace(other))), "0A000");
}

#[test]
fn what_is_to_be_can_be_planned_over() {
    let catalog = catalog([job(1, "v", &[], &[]), job(2, "hidden", &[], &[]), job(3, "r", &[1], &[])]);
    let named = catalog.with_names(&[(2, "v".into()), (9, "r".into())]);
    assert_eq!(named.get("v").map(|object| object.id()), Some(2));
    assert_eq!(named.get_id(2).map(|object| object.name().to_string()), Some("v".into()));
    assert_eq!((named.get_id(1).is_some(), named.get("r").map(|object| object.id())), (true, Some(3)));
    let with = catalog.with(job(4, "v", &[], &[]));
    assert_eq!((with.get("v").map(|object| object.id()), with.get_id(1).is_some()), (Some(4), false));
    assert_eq!(catalog.get("v").map(|object| object.id()), Some(1));
}

#[test]
fn what_an_earlier_version_let_through_can_be_read() {
    let mut catalog = Catalog::default();
    catalog.replay(&CatalogChange::Create(view(2, "w", &[1]))).unwrap();
    assert!(Catalog::restore(catalog.objects().map(|object| object.as_ref().clone()), 2).is_ok());
    // It can be dropped.
    assert_eq!(code(catalog.apply(&CatalogChange::Drop(2))), "00000");
}
