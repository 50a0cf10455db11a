//! Errors with their SQLSTATE, message and position, and what INSERT does to values.

use weir_catalog::{Column, Object, SqlType};

use super::super::{Binder, BinderSettings};
use super::{bind, catalog, execute, rows_of, runtime, settings, shown};

#[test]
fn names_that_do_not_fit() {
    for (sql, expected, position) in [
        ("SELECT nosuch FROM t", "!42703 column \"nosuch\" does not exist", Some(8)),
        ("SELECT t.nosuch FROM t", "!42703 column t.nosuch does not exist", Some(8)),
        ("SELECT x.id FROM t", "!42P01 missing FROM-clause entry for table \"x\"", Some(8)),
        ("SELECT 1 FROM nosuch", "!42P01 relation \"nosuch\" does not exist", Some(15)),
        ("SELECT id FROM t, u", "!42702 column reference \"id\" is ambiguous", Some(8)),
        ("SELECT 1 FROM t, t", "!42712 table name \"t\" specified more than once", None),
        ("SELECT nosuch(id) FROM t", "!42883 function nosuch(integer) does not exist", Some(8)),
        (
            "SELECT s, count(*) FROM t",
            "!42803 column \"t.s\" must appear in the GROUP BY clause or be used in an aggregate function",
            Some(8),
        ),
        (
            "SELECT count(*) FROM t AS a HAVING a.id > 1",
            "!42803 column \"a.id\" must appear in the GROUP BY clause or be used in an aggregate function",
            None,
        ),
        ("SELECT 1 FROM t WHERE count(*) > 1", "!42803 aggregate functions are not allowed in WHERE", None),
        ("SELECT sum(sum(i)) FROM t", "!42803 aggregate function calls cannot be nested", None),
        ("SELECT count(*) AS c FROM t GROUP BY c", "!42803 aggregate functions are not allowed in GROUP BY", None),
        ("SELECT s FROM t GROUP BY 2", "!42P10 GROUP BY position 2 is not in select list", None),
        ("SELECT s FROM t ORDER BY 2", "!42P10 ORDER BY position 2 is not in select list", None),
        ("SELECT id FROM t WHERE i", "!42804 argument of WHERE must be type boolean, not type integer", Some(24)),
        ("SELECT id FROM t LIMIT -1", "!2201W LIMIT must not be negative", None),
        ("SELECT sum(s) FROM t", "!42883 function sum(text) does not exist", None),
        ("SELECT min(ok) FROM t", "!42883 function min(boolean) does not exist", None),
        ("SELECT row_number() FROM t", "!42809 window function row_number requires an OVER clause", None),
        ("SELECT DISTINCT s FROM t ORDER BY i", "!42P10 for SELECT DISTINCT, ORDER BY expressions must appear in select list", None),
        ("SELECT 1 FROM (SELECT 1)", "!42601 subquery in FROM must have an alias", None),
        ("SELECT 1 WHERE 'x'", "!22P02 invalid input syntax for type boolean: \"x\"", Some(16)),
        ("SELECT *", "!42601 SELECT * with no tables specified is not valid", None),
        ("SELECT\n  1 +\n  nosuch FROM t", "!42703 column \"nosuch\" does not exist", Some(16)),
        (
            "SELECT (SELECT count(*) FROM u WHERE u.id = t.id) FROM t GROUP BY s",
            "!42803 subquery uses ungrouped column \"t.id\" from outer query",
            None,
        ),
    ] {
        let error = bind(sql).expect_err(sql);
        assert_eq!(shown(&error), expected, "{sql}");
        if position.is_some() {
            assert_eq!(error.position(), position, "{sql}");
        }
    }
    let error = bind("SELECT nam FROM u").unwrap_err();
    assert_eq!(error.hint(), Some("Perhaps you meant to reference the column \"u.name\"."));
}

#[test]
fn continuous_queries_know_no_time() {
    let (catalog, settings) = (catalog(), BinderSettings::default());
    let query = crate::parser::parse_query("SELECT now() FROM t").unwrap();
    let error = Binder::new(&catalog, &settings).bind_query(&query).unwrap_err();
    assert_eq!(error.code().as_str(), "0A000");
}

#[test]
fn parameters_take_the_type_that_their_place_asks_for() {
    let bound = bind("SELECT i + $1, $2::text, $3 FROM t WHERE ts > $4 AND n = $5 LIMIT $6").unwrap();
    let types: Vec<String> = bound.parameters.iter().map(|(number, ty)| format!("{number} {ty}")).collect();
    assert_eq!(types, ["1 integer", "2 text", "3 text", "4 timestamp without time zone", "5 numeric(38,10)", "6 bigint"]);
    // Where uses differ, the type is one that all of them take, the first's if that will do.
    for (sql, expected) in [
        ("SELECT $1 + 1, $1 || 'a'::text", "1 integer"),
        ("SELECT i FROM t WHERE i = $1 OR $1 IS NULL", "1 integer"),
        ("SELECT i FROM t WHERE $1 IS NULL OR i = $1", "1 integer"),
        ("SELECT $1 BETWEEN 1 AND 2.5", "1 integer"),
    ] {
        let types: Vec<String> = bind(sql).unwrap().parameters.iter().map(|(number, ty)| format!("{number} {ty}")).collect();
        assert_eq!(types, [expected], "{sql}");
    }
    assert_eq!(bind("SELECT $1 + 1, $1 LIKE 'a'").unwrap_err().code().as_str(), "42P08");
    let (catalog, settings) = (catalog(), BinderSettings { parameter_types: vec![Some(SqlType::BigInt)], ..settings() });
    let query = crate::parser::parse_query("SELECT $1").unwrap();
    let bound = Binder::new(&catalog, &settings).bind_query(&query).unwrap();
    assert_eq!(bound.columns[0].ty, SqlType::BigInt);
}

/// The rows that an INSERT into `w` would store, or its error.
fn insert(names: &[&str], source: Option<&str>) -> Result<Vec<String>, String> {
    let (catalog, settings) = (catalog(), settings());
    let Some(Object::StoredTable(table)) = catalog.get("w").map(|object| object.as_ref().clone()) else { unreachable!() };
    let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
    let query = source.map(|source| crate::parser::parse_query(source).unwrap());
    let bound =
        Binder::new(&catalog, &settings).bind_insert("w", &table.columns, &names, query.as_deref()).map_err(|error| shown(&error))?;
    let batches = runtime().block_on(execute(bound.plan)).map_err(|error| shown(&error))?;
    for batch in &batches {
        for (field, column) in batch.schema().fields().iter().zip(&table.columns) {
            assert_eq!((field.name(), field.data_type()), (&column.name, &column.ty.to_arrow()));
        }
    }
    Ok(rows_of(&batches))
}

#[test]
fn values_are_assigned_to_columns() {
    let rows = |names: &[&str], source: &str| insert(names, Some(source)).unwrap();
    assert_eq!(rows(&[], "VALUES (1, 2, 'x'), ('3', 4.567, 5), (DEFAULT, NULL, DEFAULT)"), ["1|2.00|x", "3|4.57|5", "42|NULL|none"]);
    assert_eq!(rows(&["c", "a"], "VALUES ('x', 1)"), ["1|NULL|x"]);
    assert_eq!(rows(&[], "VALUES (7)"), ["7|NULL|none"]);
    assert_eq!(rows(&["b"], "SELECT d FROM t WHERE id = 1"), ["42|0.50|none"]);
    assert_eq!(rows(&["a", "c"], "SELECT 2.5, id FROM t WHERE id = 1"), ["3|NULL|1"]);
    assert_eq!(rows(&["c", "a"], "SELECT 'x', '5'"), ["5|NULL|x"]);
    assert_eq!(rows(&["a"], "SELECT '5' UNION ALL SELECT 6 ORDER BY 1"), ["5|NULL|none", "6|NULL|none"]);
    assert_eq!(insert(&[], None).unwrap(), ["42|NULL|none"]);
    for (names, source, expected) in [
        (&["a"][..], "VALUES (true)", "!42804 column \"a\" is of type bigint but expression is of type boolean"),
        (&["a"], "SELECT s FROM t", "!42804 column \"a\" is of type bigint but expression is of type text"),
        (&["a"], "VALUES ('x')", "!22P02 invalid input syntax for type bigint: \"x\""),
        (&["b"], "VALUES (10000)", "!22003 numeric field overflow"),
        (&["nosuch"], "VALUES (1)", "!42703 column \"nosuch\" of relation \"w\" does not exist"),
        (&["a", "a"], "VALUES (1, 2)", "!42701 column \"a\" specified more than once"),
        (&["a"], "VALUES (1, 2)", "!42601 INSERT has more expressions than target columns"),
        (&["a", "b"], "VALUES (1)", "!42601 INSERT has more target columns than expressions"),
    ] {
        assert_eq!(insert(names, Some(source)).unwrap_err(), expected, "{source}");
    }
}

#[test]
fn assignments_and_conditions_of_updates() {
    let (catalog, settings) = (catalog(), settings());
    let binder = Binder::new(&catalog, &settings);
    let columns = catalog.get("t").unwrap().columns().to_vec();
    let expr = |text: &str| crate::parser::parse_expression(text).unwrap();
    let target = |name: &str| -> &Column { columns.iter().find(|column| column.name == name).unwrap() };
    let changed = binder.bind_changed("t", &columns, &[]).unwrap();
    assert!(binder.bind_assignment(&expr("i + 1"), target("b"), &changed).is_ok());
    assert!(binder.bind_assignment(&expr("t.b"), target("i"), &changed).is_ok());
    let error = binder.bind_assignment(&expr("ok"), target("i"), &changed).unwrap_err();
    assert_eq!(shown(&error), "!42804 column \"i\" is of type integer but expression is of type boolean");
    assert!(binder.bind_predicate(&expr("i > 1 AND s LIKE 'a%'"), None, &columns).is_ok());
    assert_eq!(binder.bind_predicate(&expr("i"), None, &columns).unwrap_err().code().as_str(), "42804");
    assert_eq!(binder.bind_default(&expr("i"), target("i")).unwrap_err().code().as_str(), "42703");
}
