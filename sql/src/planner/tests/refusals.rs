//! What can't run as a stream is refused with its SQLSTATE, a reason and, where there is one, a rewrite.

use datafusion::common::ScalarValue;
use datafusion::logical_expr::{LogicalPlanBuilder, lit};

use crate::planner::{Target, plan_stream};

/// Asserts that `sql` is refused with `code`, a message that contains `reason`, and a hint that contains `hint` (none, if it is empty).
fn refused(sql: &str, code: &str, reason: &str, hint: &str) {
    let error = match super::plan(sql) {
        Ok(graph) => panic!("{sql} was planned: {graph:?}"),
        Err(error) => error,
    };
    assert_eq!(error.code().as_str(), code, "{sql}: {error}");
    assert!(error.message().contains(reason), "{sql}: message is {:?}", error.message());
    match error.hint() {
        Some(given) => assert!(!hint.is_empty() && given.contains(hint), "{sql}: hint is {given:?}"),
        None => assert!(hint.is_empty(), "{sql} has no hint"),
    }
}

#[test]
fn joins_and_set_operations() {
    refused("SELECT u.name FROM users u JOIN events e ON u.name = e.kind", "0A000", "joins are not supported", "materialized view");
    refused("SELECT u.name FROM users u, events e", "0A000", "joins are not supported", "materialized view");
    refused("SELECT name FROM users INTERSECT SELECT kind FROM events", "0A000", "INTERSECT and EXCEPT", "materialized view");
    refused("SELECT name FROM users EXCEPT SELECT kind FROM events", "0A000", "INTERSECT and EXCEPT", "materialized view");
}

#[test]
fn order_and_limit_at_any_depth() {
    refused("SELECT name FROM users ORDER BY name", "0A000", "ORDER BY is not supported", "when selecting");
    refused("SELECT name FROM users LIMIT 3", "0A000", "LIMIT and OFFSET are not supported", "ORDER BY and LIMIT when selecting");
    refused("SELECT name FROM users OFFSET 3", "0A000", "LIMIT and OFFSET are not supported", "when selecting");
    refused("SELECT count(*) FROM (SELECT name FROM users ORDER BY name LIMIT 3) t", "0A000", "LIMIT and OFFSET", "when selecting");
}

#[test]
fn windows_and_distinct_on() {
    refused(
        "SELECT name, row_number() OVER (ORDER BY age) AS r FROM users",
        "0A000",
        "window functions are not supported",
        "when selecting",
    );
    refused("SELECT DISTINCT ON (country) country, name FROM users", "0A000", "DISTINCT ON is not supported", "when selecting");
    let ordered = "SELECT DISTINCT ON (country) country, name FROM users ORDER BY country, name";
    refused(ordered, "0A000", "DISTINCT ON is not supported", "GROUP BY");
}

#[test]
fn subqueries_in_expressions() {
    refused("SELECT name FROM users WHERE age > (SELECT max(v) FROM events)", "0A000", "subquery", "FROM is fine");
    refused("SELECT name FROM users WHERE name IN (SELECT kind FROM events)", "0A000", "subquery", "FROM is fine");
    refused("SELECT name FROM users WHERE EXISTS (SELECT 1 FROM events)", "0A000", "subquery", "FROM is fine");
    refused("SELECT (SELECT max(v) FROM events) AS m FROM users", "0A000", "subquery", "FROM is fine");
}

#[test]
fn grouping_sets() {
    for groups in ["ROLLUP (country, name)", "CUBE (country, name)", "GROUPING SETS ((country), (name))"] {
        refused(&format!("SELECT count(*) AS n FROM users GROUP BY {groups}"), "0A000", "GROUPING SETS, CUBE and ROLLUP", "");
    }
}

#[test]
fn functions_whose_answer_changes() {
    refused("SELECT random() AS r FROM users", "0A000", "random() is not supported", "when selecting");
    refused("SELECT name FROM users WHERE random() > 0.5", "0A000", "random() is not supported", "when selecting");
    refused("SELECT name, now() AS t FROM users", "0A000", "now is not supported in a continuous query", "Store the time");
}

#[test]
fn aggregates_that_no_operator_computes() {
    refused("SELECT stddev(age) AS s FROM users", "0A000", "aggregate function stddev() is not supported", "count, sum, min, max");
    refused("SELECT string_agg(name, ',') AS s FROM users", "0A000", "aggregate function string_agg() is not supported", "count, sum");
}

#[test]
fn rows_that_no_operator_tells_apart() {
    refused("SELECT count(DISTINCT bid) AS n FROM nexmark", "0A000", "DISTINCT in an aggregate over type record", "a field");
    refused(
        "SELECT DISTINCT ROW(bid, 1.5::float8) AS r FROM nexmark",
        "0A000",
        "SELECT DISTINCT over type record with double",
        "Name the fields",
    );
    refused("SELECT ARRAY[1::float8] AS r FROM nexmark GROUP BY 1", "0A000", "GROUP BY over type double precision[]", "Name the fields");
    refused("SELECT ARRAY[1::float8] AS r UNION SELECT ARRAY[2::float8]", "0A000", "UNION over type double precision[]", "Name the fields");
    refused("SELECT event_type FROM nexmark WHERE bid < ROW(1, 2)", "0A000", "operator < over type record", "= and <>");
}

#[test]
fn types_that_weir_does_not_have() {
    let plan =
        LogicalPlanBuilder::values(vec![vec![lit(ScalarValue::Date32(Some(1)))]]).and_then(|builder| builder.build()).expect("a plan");
    let target = Target::MaterializedView { name: "v".to_string(), columns: vec!["d".to_string()] };
    let error = plan_stream(&plan, &target, &super::catalog()).expect_err("it is refused");
    assert_eq!(error.code().as_str(), "0A000");
    assert_eq!(error.message(), "column \"column1\" has type date32, which a continuous query can't hold");
    assert!(error.hint().is_some_and(|hint| hint.starts_with("Cast it to")));
}

#[test]
fn constants_that_fail_fail_when_planned() {
    refused("SELECT * FROM (VALUES (1 / 0)) AS t (x)", "22012", "division by zero", "");
}

#[test]
fn hints_that_mean_nothing() {
    refused("SELECT /*+ uid('x') */ name FROM users", "0A000", "uid \"x\" names a SELECT without state", "SELECT that groups");
    refused("SELECT /*+ parallel(4) */ count(*) AS n FROM users", "0A000", "hint \"parallel(4)\" is not supported", "uid('name')");
    refused("SELECT /*+ uid(x) */ count(*) AS n FROM users", "0A000", "hint \"uid(x)\" is not supported", "uid('name')");
    refused("SELECT /*+ uid('a/b') */ count(*) AS n FROM users", "22023", "uid \"a/b\" can't be used", "characters");
}

#[test]
fn equal_explicit_uids() {
    refused(
        "SELECT /*+ uid('x') */ count(*) AS n FROM users UNION ALL SELECT /*+ uid('x') */ count(*) AS n FROM events",
        "42710",
        "uid \"x\" is used more than once",
        "of its own",
    );
}
