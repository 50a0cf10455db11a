//! Whole queries over tables: names, grouping, aggregates, joins, subqueries, order.

use super::{bind, run, shown};

/// A query's rows in any order.
fn sorted(sql: &str) -> Vec<String> {
    let (_, mut rows) = run(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    rows.sort();
    rows
}

fn columns(sql: &str) -> Vec<String> {
    bind(sql)
        .unwrap_or_else(|error| panic!("{sql}: {error:?}"))
        .columns
        .iter()
        .map(|column| format!("{} {}", column.name, column.ty))
        .collect()
}

#[test]
fn columns_are_called_as_in_postgresql() {
    assert_eq!(
        columns(
            "SELECT id, t.s, count(*), upper(s), 1 + 1, id::text, 1::bigint, true, CASE WHEN ok THEN 1 END, coalesce(i, 0), ts, n, \
             (SELECT max(i) FROM t), EXTRACT(year FROM ts), trim(s), (SELECT 1) AS one FROM t GROUP BY id, s, ok, i, ts, n"
        ),
        [
            "id integer",
            "s text",
            "count bigint",
            "upper text",
            "?column? integer",
            "id text",
            "int8 bigint",
            "bool boolean",
            "case integer",
            "coalesce integer",
            "ts timestamp(3) without time zone",
            "n numeric(10,2)",
            "max integer",
            "extract numeric(20,0)",
            "btrim text",
            "one integer",
        ]
    );
    let twice = bind("SELECT id, id, t.* FROM t").unwrap();
    assert_eq!(twice.columns.iter().filter(|column| column.name == "id").count(), 3);
    assert_eq!(twice.check_unique_columns().unwrap_err().code().as_str(), "42701");
    assert_eq!(twice.inputs, [16_384]);
    assert!(!twice.columns[0].nullable && twice.columns[4].nullable);
}

#[test]
fn aggregates() {
    assert_eq!(
        run("SELECT count(*), count(i), sum(i), sum(b), sum(n), sum(d), avg(i), avg(n), avg(d), min(s), max(ts), bool_and(ok), bool_or(ok), every(i > 0) FROM t")
            .unwrap(),
        (
            [
                "count bigint",
                "count bigint",
                "sum bigint",
                "sum numeric(38,0)",
                "sum numeric(38,2)",
                "sum double precision",
                "avg numeric(38,10)",
                "avg numeric(38,10)",
                "avg double precision",
                "min text",
                "max timestamp(3) without time zone",
                "bool_and boolean",
                "bool_or boolean",
                "every boolean",
            ]
            .map(String::from)
            .to_vec(),
            vec![
                "5|4|55|18446744073709551914|17.08|9999999999.5|13.7500000000|4.2700000000|2499999999.875|a|2021-06-07 08:09:10|false|true|true"
                    .to_string()
            ],
        )
    );
    assert_eq!(
        sorted("SELECT s, count(*), sum(i) FILTER (WHERE ok), count(DISTINCT i), sum(DISTINCT i), avg(DISTINCT i) FROM t GROUP BY s"),
        ["NULL|1|5|1|5|5.0000000000", "a|2|10|1|10|10.0000000000", "b|2|20|1|20|20.0000000000"]
    );
    // Over no rows: one row without GROUP BY, none with.
    assert_eq!(sorted("SELECT count(*), sum(i), avg(d), bool_or(ok), max(s) FROM t WHERE false"), ["0|NULL|NULL|NULL|NULL"]);
    assert!(sorted("SELECT s, count(*) FROM t WHERE false GROUP BY s").is_empty());
    // The sum of a BIGINT column does not overflow, the sum of a NUMERIC does.
    assert_eq!(sorted("SELECT sum(b) FROM t WHERE id IN (3, 4)"), ["18446744073709551614"]);
    let error = run("SELECT sum(x) FROM (VALUES (99999999999999999999999999999999999999::numeric(38,0)), (1)) AS v(x)").unwrap_err();
    assert_eq!(error.code().as_str(), "22003");
    let error = run("SELECT sum(x) FROM (VALUES (1e308::double precision), (1e308)) AS v(x)").unwrap_err();
    assert_eq!(shown(&error), "!22003 value out of range: overflow");
    assert_eq!(sorted("SELECT s || '!' AS x, count(*) + 1 FROM t GROUP BY s || '!' HAVING count(*) > 1"), ["a!|3", "b!|3"]);
    assert_eq!(sorted("SELECT s AS k, max(i) - min(i) FROM t GROUP BY k"), ["NULL|0", "a|0", "b|0"]);
    assert_eq!(sorted("SELECT i % 2, count(*) FROM t GROUP BY 1"), ["0|3", "1|1", "NULL|1"]);
    assert_eq!(sorted("SELECT 1 FROM t HAVING count(*) > 4"), ["1"]);
    assert!(sorted("SELECT 1 FROM t HAVING count(*) > 5").is_empty());
    assert_eq!(sorted("SELECT string_agg(name, ',' ORDER BY name) FROM u WHERE id = 2"), ["two,zwei"]);
}

#[test]
fn order_distinct_and_limit() {
    let rows = |sql: &str| run(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}")).1;
    assert_eq!(rows("SELECT i FROM t ORDER BY i"), ["5", "10", "20", "20", "NULL"]);
    assert_eq!(rows("SELECT i FROM t ORDER BY 1 DESC, id"), ["NULL", "20", "20", "10", "5"]);
    assert_eq!(rows("SELECT id FROM t ORDER BY i DESC NULLS LAST, id DESC LIMIT 2"), ["5", "2"]);
    assert_eq!(rows("SELECT id FROM t ORDER BY id OFFSET 3"), ["4", "5"]);
    assert_eq!(rows("SELECT id FROM t ORDER BY id LIMIT NULL OFFSET 4"), ["5"]);
    assert_eq!(rows("SELECT s, count(*) AS n FROM t GROUP BY s ORDER BY count(*) DESC, s"), ["a|2", "b|2", "NULL|1"]);
    assert_eq!(rows("SELECT DISTINCT s FROM t ORDER BY s"), ["a", "b", "NULL"]);
    assert_eq!(rows("SELECT DISTINCT ON (s) s, id FROM t ORDER BY s, id DESC"), ["a|3", "b|5", "NULL|4"]);
    assert_eq!(rows("SELECT -id AS id FROM t ORDER BY id LIMIT 1"), ["-5"]);
    assert_eq!(rows("SELECT id FROM t UNION SELECT id FROM u ORDER BY id DESC LIMIT 2"), ["NULL", "9"]);
}

#[test]
fn set_operations_and_values() {
    assert_eq!(sorted("SELECT 1 UNION ALL SELECT 1 UNION ALL SELECT 2"), ["1", "1", "2"]);
    assert_eq!(sorted("SELECT 1 UNION SELECT 1.0 UNION SELECT 2"), ["1.0", "2.0"]);
    assert_eq!(sorted("SELECT NULL UNION ALL SELECT 2"), ["2", "NULL"]);
    assert_eq!(sorted("SELECT 'a' UNION ALL SELECT 'b'"), ["a", "b"]);
    assert_eq!(sorted("SELECT id FROM t INTERSECT SELECT id FROM u"), ["1", "2"]);
    assert_eq!(sorted("SELECT id FROM u EXCEPT SELECT id FROM t"), ["9", "NULL"]);
    assert_eq!(sorted("VALUES (1, 'a'), (NULL, 'b'), (2.5, NULL)"), ["1.0|a", "2.5|NULL", "NULL|b"]);
    assert_eq!(columns("VALUES (1, 'a')"), ["column1 integer", "column2 text"]);
    assert_eq!(sorted("SELECT x + 1, y FROM (VALUES (1, 'a'), (2, 'b')) AS v(x, y)"), ["2|a", "3|b"]);
    assert_eq!(shown(&run("SELECT 1 UNION SELECT 'a'::text").unwrap_err()), "!42804 UNION types integer and text cannot be matched");
    assert_eq!(shown(&run("SELECT 1 UNION SELECT 1, 2").unwrap_err()), "!42601 each UNION query must have the same number of columns");
}

#[test]
fn joins_and_subqueries() {
    assert_eq!(sorted("SELECT t.id, name FROM t JOIN u ON t.id = u.id"), ["1|one", "2|two", "2|zwei"]);
    assert_eq!(
        sorted("SELECT t.id, u.name FROM t LEFT JOIN u ON t.id = u.id AND name <> 'zwei' WHERE t.id < 4"),
        ["1|one", "2|two", "3|NULL"]
    );
    assert_eq!(
        sorted("SELECT id, s, name FROM t FULL JOIN u USING (id) WHERE id IS NULL OR id IN (1, 5, 9)"),
        ["1|a|one", "5|b|NULL", "9|NULL|nine", "NULL|NULL|none"]
    );
    assert_eq!(columns("SELECT * FROM u JOIN (SELECT id, i FROM t) AS x USING (id)"), ["id integer", "name text", "i integer"]);
    assert_eq!(sorted("SELECT a.id, b.id FROM u a, u b WHERE a.id = b.id AND a.name < b.name"), ["2|2"]);
    assert_eq!(sorted("SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.id = t.id)"), ["1", "2"]);
    assert_eq!(sorted("SELECT id FROM t WHERE id IN (SELECT id FROM u)"), ["1", "2"]);
    // NULL among the values: nothing is known to be absent.
    assert!(sorted("SELECT id FROM t WHERE id NOT IN (SELECT id FROM u)").is_empty());
    assert_eq!(sorted("SELECT id FROM t WHERE id NOT IN (SELECT id FROM u WHERE id IS NOT NULL)"), ["3", "4", "5"]);
    assert_eq!(sorted("SELECT id, (SELECT count(*) FROM u WHERE u.id = t.id) FROM t"), ["1|1", "2|2", "3|0", "4|0", "5|0"]);
    assert_eq!(sorted("SELECT id, (SELECT max(name) FROM u WHERE u.id = t.id) AS m FROM t WHERE id < 4"), ["1|one", "2|zwei", "3|NULL"]);
    assert_eq!(sorted("SELECT id FROM t WHERE i = (SELECT max(i) FROM t)"), ["2", "5"]);
    assert_eq!(sorted("SELECT s, (SELECT count(*) FROM t AS inside WHERE inside.s = t.s) FROM t GROUP BY s"), ["NULL|0", "a|2", "b|2"]);
    assert_eq!(
        sorted(
            "SELECT id, EXISTS (SELECT 1 FROM u WHERE u.id = t.id), id IN (SELECT id FROM u), id NOT IN (SELECT id FROM u WHERE id IS NOT NULL) FROM t"
        ),
        ["1|true|true|false", "2|true|true|false", "3|false|NULL|true", "4|false|NULL|true", "5|false|NULL|true"]
    );
    assert_eq!(sorted("SELECT id FROM t WHERE i > ALL (SELECT id * 5 FROM u WHERE id < 3)"), ["2", "5"]);
    assert_eq!(sorted("SELECT count(*) FROM t WHERE i = ANY (SELECT 10 UNION ALL SELECT 5)"), ["2"]);
    let error = run("SELECT (SELECT id FROM u)").unwrap_err();
    assert_eq!(shown(&error), "!21000 more than one row returned by a subquery used as an expression");
}

#[test]
fn views_and_common_tables() {
    assert_eq!(sorted("SELECT key, total FROM v WHERE total > 10"), ["b|40"]);
    let bound = bind("SELECT v.key FROM v, v AS other").unwrap();
    assert_eq!((bound.inputs, bound.macros), (vec![16_384], vec![16_387]));
    assert_eq!(sorted("WITH x AS (SELECT id FROM t WHERE id > 3), y(k) AS (SELECT id + 1 FROM x) SELECT k FROM y"), ["5", "6"]);
    assert_eq!(sorted("WITH t AS (SELECT 1 AS id) SELECT id FROM t"), ["1"]);
    assert_eq!(sorted("SELECT k FROM (SELECT id AS k, id FROM t) AS q WHERE k = id AND q.id = 2"), ["2"]);
}

#[test]
fn window_functions() {
    assert_eq!(
        sorted("SELECT id, row_number() OVER (PARTITION BY s ORDER BY id), sum(i) OVER (PARTITION BY s), avg(i) OVER (ORDER BY id) FROM t"),
        ["1|1|10|10.0000000000", "2|1|40|15.0000000000", "3|2|10|15.0000000000", "4|1|5|11.6666666667", "5|2|40|13.7500000000"]
    );
    assert_eq!(
        sorted("SELECT id, lag(id, 1, 0) OVER (ORDER BY id), rank() OVER (ORDER BY i) FROM t WHERE i IS NOT NULL"),
        ["1|0|2", "2|1|3", "4|2|1", "5|4|3"]
    );
    assert_eq!(sorted("SELECT s, rank() OVER (ORDER BY count(*) DESC) FROM t GROUP BY s"), ["NULL|3", "a|1", "b|1"]);
    assert_eq!(
        sorted("SELECT id, sum(i) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t"),
        ["1|10", "2|30", "3|20", "4|5", "5|25"]
    );
}

#[test]
fn what_a_condition_guards_is_not_evaluated() {
    assert_eq!(sorted("SELECT x FROM (VALUES (0), (2), (10)) AS v(x) WHERE x <> 0 AND 10 / x > 1"), ["2"]);
    assert_eq!(sorted("SELECT x FROM (VALUES (0), (2), (10)) AS v(x) WHERE x = 0 OR 10 / x > 1"), ["0", "2"]);
    assert_eq!(sorted("SELECT x FROM (VALUES (0), (2)) AS v(x) WHERE CASE WHEN x <> 0 THEN 10 / x > 1 ELSE false END"), ["2"]);
    assert_eq!(sorted("SELECT CASE WHEN x <> 0 THEN 10 / x END FROM (VALUES (0), (2), (NULL)) AS v(x)"), ["5", "NULL", "NULL"]);
    assert_eq!(sorted("SELECT x FROM (VALUES ('7'), ('x')) AS v(x) WHERE x <> 'x' AND x::int = 7"), ["7"]);
    assert_eq!(
        sorted(
            "SELECT x FROM (VALUES (0), (2), (5)) AS v(x) WHERE x < 9 AND x <> 0 AND 10 / x > 1 AND 10 / x < 9 AND 4 / x - 2 = 0 AND x IS NOT NULL"
        ),
        ["2"]
    );
    assert_eq!(sorted("SELECT x FROM (VALUES (0), (2), (NULL)) AS v(x) WHERE (x <> 0 AND 10 / x > 1) IS NULL"), ["NULL"]);
    let long = (0..60).map(|i| format!("100 / x <> {i}")).collect::<Vec<_>>().join(" AND ");
    assert_eq!(sorted(&format!("SELECT x FROM (VALUES (0), (1)) AS v(x) WHERE x > 0 AND {long}")), ["1"]);
    let error = run("SELECT 10 / x FROM (VALUES (0), (2)) AS v(x)").unwrap_err();
    assert_eq!(shown(&error), "!22012 division by zero");
}

#[test]
fn fields_of_rows() {
    assert_eq!(bind("SELECT bid FROM events, events AS e").unwrap_err().code().as_str(), "42702");
    assert_eq!(
        columns("SELECT bid.price, (bid).auction AS a, events.bid.price + 1 FROM events"),
        ["price bigint", "a bigint", "?column? bigint"]
    );
    assert_eq!(bind("SELECT bid.nothing FROM events").unwrap_err().code().as_str(), "42703");
    assert_eq!(bind("SELECT event_type.x FROM events").unwrap_err().code().as_str(), "42P01");
}

#[test]
fn time_is_fixed_in_a_statement() {
    assert_eq!(run("SELECT now(), current_timestamp = now()").unwrap().1, ["2024-05-06 07:08:09.123456|true"]);
}
