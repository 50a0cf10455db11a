//! What the parser accepts, what it refuses and where.

mod robustness;

use weir_catalog::SqlType;

use super::{block_uid, check_scalar_calls, is_default, parse, parse_expression, parse_query, position};
use crate::statement::{Assignment, DropKind, Parsed, SavepointSource, ShowKind, Statement};
use datafusion::sql::sqlparser::ast::{Expr, SelectItem, SetExpr, UnaryOperator};

fn one(sql: &str) -> Statement {
    let mut statements = parse(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    assert_eq!(statements.len(), 1, "{sql}");
    statements.remove(0).statement
}

/// SQLSTATE, message and position of the error that `sql` gives.
fn failure(sql: &str) -> (String, String, Option<usize>) {
    match parse(sql) {
        Ok(statements) => panic!("{sql}: accepted as {} statements", statements.len()),
        Err(error) => (error.code().as_str().to_string(), error.message().to_string(), error.position()),
    }
}

fn select_of(statement: &Statement) -> &datafusion::sql::sqlparser::ast::Select {
    match statement {
        Statement::Query(query) => match query.body.as_ref() {
            SetExpr::Select(select) => select,
            other => panic!("not a SELECT: {other}"),
        },
        other => panic!("not a query: {other:?}"),
    }
}

#[test]
fn scripts_split_into_statements_with_their_text_and_place() {
    let sql = ";; -- a comment; with a semicolon\nSELECT 'a;b' /* ; */ , $$;$$ ;\n\t;/* only a comment */; FLUSH";
    let statements = parse(sql).expect("the script parses");
    let texts: Vec<(&str, usize)> = statements.iter().map(|parsed| (parsed.text.as_str(), parsed.offset)).collect();
    assert_eq!(texts, vec![("SELECT 'a;b' /* ; */ , $$;$$", 34), ("FLUSH", sql.len() - 5)]);
    assert!(parse("").expect("nothing parses").is_empty());
    assert!(parse(" ; -- nothing").expect("nothing parses").is_empty());
    // Offsets are characters, not bytes.
    let statements = parse("SELECT 'äöü€'; FLUSH").expect("the script parses");
    assert_eq!((statements[1].offset, statements[1].text.as_str()), (15, "FLUSH"));
}

#[test]
fn spans_count_from_the_statement() {
    let statements = parse("FLUSH; /* c */ SELECT a,\n bad FROM t; EXPLAIN SELECT\n\nworse").expect("the script parses");
    let place = |parsed: &Parsed| {
        let SelectItem::UnnamedExpr(Expr::Identifier(ident)) = select_of(&parsed.statement).projection.last().expect("a column") else {
            panic!("not a column")
        };
        let position = position(&parsed.text, ident.span.start);
        (parsed.text.chars().skip(position - 1).take(3).collect::<String>(), position)
    };
    assert_eq!(place(&statements[1]), ("bad".to_string(), 12));
    let Statement::Explain(inner) = &statements[2].statement else { panic!("not an EXPLAIN") };
    assert_eq!((inner.text.as_str(), inner.offset), ("SELECT\n\nworse", 46));
    assert_eq!(place(inner), ("wor".to_string(), 9));
}

#[test]
fn syntax_errors_have_postgres_wording_and_position() {
    let cases: &[(&str, &str, usize)] = &[
        ("SELEC 1", "syntax error at or near \"SELEC\"", 1),
        ("SELECT 1 FROM", "syntax error at end of input", 14),
        ("SELECT 1 +", "syntax error at end of input", 11),
        ("SELECT 1;\n  SELECT 2 FORM t x", "syntax error at or near \"t\"", 27),
        ("SELECT 'ä€' x y", "syntax error at or near \"y\"", 15),
        ("SELECT * FROM t WHERE", "syntax error at end of input", 22),
        ("SELECT * FROM t WHERE ; FLUSH", "syntax error at end of input", 22),
        ("CREATE TABLE t (a INT,)", "syntax error at or near \")\"", 23),
        ("CREATE TABLE t", "syntax error at end of input", 15),
        ("CREATE TABLE select (a INT)", "syntax error at or near \"select\"", 14),
        ("INSERT INTO t (a) 5", "syntax error at or near \"5\"", 19),
        ("SELECT 'abc", "unterminated quoted string at or near \"'abc\"", 8),
        ("SELECT 1 /* a", "unterminated /* comment at or near \"/* a\"", 10),
        ("SELECT \"abc", "unterminated quoted identifier at or near \"\"abc\"", 8),
        ("SELECT $$abc", "unterminated dollar-quoted string at or near \"$$abc\"", 8),
        ("SELECT 'a' 'b'", "syntax error at or near \"'b'\"", 12),
        ("SELECT * FROM t RETURNING", "syntax error at or near \"RETURNING\"", 17),
        ("DROP TABLE a,", "syntax error at end of input", 14),
        ("FLUSH now", "syntax error at or near \"now\"", 7),
        ("EXPLAIN PLEASE", "syntax error at or near \"PLEASE\"", 9),
        ("UPDATE t SET a = 1, a = 2", "multiple assignments to same column \"a\"", 21),
        ("SELECT 1 LIMIT 1 FETCH FIRST 2 ROWS ONLY", "multiple LIMIT clauses not allowed", 30),
        ("CREATE TABLE t (a ROW<b INT>>) WITH (connector = 'x')", "syntax error at or near \")\"", 30),
    ];
    for (sql, message, position) in cases {
        assert_eq!(failure(sql), ("42601".to_string(), message.to_string(), Some(*position)), "{sql}");
    }
}

#[test]
fn clauses_that_nothing_consumes_are_refused() {
    let cases: &[(&str, &str)] = &[
        // Queries.
        ("SELECT /*+ parallel(2) */ 1", "hint \"parallel(2)\" is not supported"),
        ("SELECT a /*+ uid('x') */ FROM t", "a hint is not supported here"),
        ("SELECT * FROM t /*+ OPTIONS('a'='b') */", "a hint is not supported here"),
        ("SELECT * FROM t FOR SYSTEM_TIME AS OF now()", "FOR SYSTEM_TIME AS OF is not supported"),
        ("SELECT * FROM t TABLESAMPLE BERNOULLI (10)", "TABLESAMPLE is not supported"),
        ("SELECT * FROM unnest(ARRAY[1]) WITH ORDINALITY", "WITH ORDINALITY is not supported"),
        ("SELECT * FROM f(1) WITH ORDINALITY", "WITH ORDINALITY is not supported"),
        ("SELECT * FROM t FOR UPDATE", "FOR UPDATE is not supported"),
        ("SELECT * FROM (SELECT * FROM t FOR SHARE) x", "FOR SHARE is not supported"),
        ("SELECT * FROM t ORDER BY a FETCH FIRST 3 ROWS WITH TIES", "FETCH ... WITH TIES is not supported"),
        ("SELECT * FROM t LATERAL VIEW explode(a) b AS c", "LATERAL VIEW is not supported"),
        ("SELECT a FROM t QUALIFY row_number() OVER (ORDER BY a) = 1", "QUALIFY is not supported"),
        ("SELECT a FROM t SORT BY a", "SORT BY is not supported"),
        ("SELECT a FROM t CLUSTER BY a", "CLUSTER BY is not supported"),
        ("SELECT a FROM t DISTRIBUTE BY a", "DISTRIBUTE BY is not supported"),
        ("SELECT a INTO u FROM t", "SELECT ... INTO is not supported"),
        ("SELECT * FROM t MATCH_RECOGNIZE (PATTERN (A) DEFINE A AS true)", "MATCH_RECOGNIZE is not supported"),
        ("SELECT * FROM t PIVOT (sum(a) FOR b IN (1, 2))", "PIVOT is not supported"),
        ("SELECT * FROM t UNPIVOT (a FOR b IN (c, d))", "UNPIVOT is not supported"),
        ("SELECT sum(a) OVER (w ORDER BY b) FROM t WINDOW w AS (PARTITION BY c)", "a window that extends another window is not supported"),
        ("WITH x AS MATERIALIZED (SELECT 1) SELECT * FROM x", "MATERIALIZED is not supported"),
        ("WITH x AS (DELETE FROM t) SELECT * FROM x", "a statement that changes data after or inside WITH is not supported"),
        ("SELECT * FROM t LEFT SEMI JOIN u ON t.a = u.a", "SEMI JOIN is not supported"),
        ("SELECT * AS x FROM t", "* AS is not supported"),
        ("SELECT count(t.*) FROM t", "a whole row as the argument of a function is not supported"),
        ("SELECT ARRAY(SELECT a FROM t)", "a subquery as the argument of a function is not supported"),
        ("SELECT a COLLATE \"C\" FROM t", "COLLATE is not supported"),
        ("SELECT (SELECT b FROM u FOR UPDATE) FROM t", "FOR UPDATE is not supported"),
        ("SELECT * FROM TABLE(f(1))", "TABLE(...) is not supported"),
        ("SELECT * FROM f(1) AS x (a INT)", "a type in a column alias is not supported"),
        ("SELECT a FROM t WHERE b IN (SELECT c FROM u TABLESAMPLE SYSTEM (1))", "TABLESAMPLE is not supported"),
        // Tables.
        ("CREATE TEMPORARY TABLE t (a INT)", "CREATE TEMPORARY is not supported"),
        ("CREATE TEMP VIEW t AS SELECT 1", "CREATE TEMP is not supported"),
        ("CREATE UNLOGGED TABLE t (a INT)", "CREATE UNLOGGED is not supported"),
        ("CREATE OR REPLACE TABLE t (a INT)", "CREATE OR REPLACE TABLE is not supported"),
        ("CREATE TABLE t (a INT UNIQUE)", "UNIQUE is not supported"),
        ("CREATE TABLE t (a INT CHECK (a > 0))", "CHECK is not supported"),
        ("CREATE TABLE t (a INT REFERENCES u)", "REFERENCES is not supported"),
        ("CREATE TABLE t (a INT GENERATED ALWAYS AS IDENTITY)", "GENERATED is not supported"),
        ("CREATE TABLE t (a TEXT COLLATE \"C\")", "COLLATE is not supported"),
        ("CREATE TABLE t (a INT CONSTRAINT c NOT NULL)", "CONSTRAINT is not supported"),
        ("CREATE TABLE t (a INT, UNIQUE (a))", "UNIQUE is not supported"),
        ("CREATE TABLE t (a INT, CHECK (a > 0))", "CHECK is not supported"),
        ("CREATE TABLE t (a INT, FOREIGN KEY (a) REFERENCES u)", "FOREIGN KEY is not supported"),
        ("CREATE TABLE t (a INT, CONSTRAINT c PRIMARY KEY (a))", "CONSTRAINT is not supported"),
        ("CREATE TABLE t (a INT, EXCLUDE (a WITH =))", "EXCLUDE is not supported"),
        ("CREATE TABLE t (LIKE u)", "LIKE is not supported"),
        ("CREATE TABLE t (a INT, PRIMARY KEY (a) DEFERRABLE)", "DEFERRABLE is not supported"),
        ("CREATE TABLE t (a INT PRIMARY KEY NOT ENFORCED)", "NOT ENFORCED is not supported"),
        ("CREATE TABLE t (a INT) PARTITION BY RANGE (a)", "PARTITION BY is not supported"),
        ("CREATE TABLE t (a INT) PARTITIONED BY (a)", "PARTITIONED BY is not supported"),
        ("CREATE TABLE t (a INT) INHERITS (u)", "INHERITS is not supported"),
        ("CREATE TABLE t (a INT) USING heap", "USING is not supported"),
        ("CREATE TABLE t (a INT) WITHOUT OIDS", "WITHOUT OIDS is not supported"),
        ("CREATE TABLE t (a INT) WITH (fillfactor = 70)", "table option \"fillfactor\" is not supported"),
        ("CREATE TABLE t (a INT) TABLESPACE x", "TABLESPACE is not supported"),
        ("CREATE TABLE t (a INT) ON COMMIT DROP", "ON COMMIT is not supported"),
        ("CREATE TABLE t AS SELECT 1", "AS is not supported"),
        ("CREATE TABLE t (a INT) WITH (connector = 'x') AS SELECT 1", "AS is not supported"),
        ("CREATE TABLE t ()", "a table without columns is not supported"),
        ("CREATE TABLE t (ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH (connector = 'x')", "watermarks are not supported yet"),
        ("CREATE TABLE t (a INT, b AS a + 1) WITH (connector = 'x')", "a computed column is not supported"),
        ("CREATE TABLE t (a INT METADATA FROM 'x') WITH (connector = 'x')", "METADATA is not supported"),
        ("CREATE TABLE t (a INT PRIMARY KEY) WITH (connector = 'x')", "PRIMARY KEY of a connector table is not supported"),
        ("CREATE TABLE t (a INT DEFAULT 1) WITH (connector = 'x')", "DEFAULT of column \"a\" of a connector table is not supported"),
        ("CREATE TABLE t (a INT DEFAULT (SELECT 1))", "cannot use subquery in DEFAULT expression"),
        ("CREATE TABLE t (a INT, b INT DEFAULT a)", "cannot use column reference in DEFAULT expression"),
        ("CREATE TABLE t (a SERIAL)", "type serial is not supported"),
        ("CREATE TABLE t (a VARCHAR(10))", "type varchar(10) is not supported"),
        ("CREATE TABLE t (a REAL)", "type real is not supported"),
        ("CREATE TABLE t (a FLOAT(24))", "type float(24) is not supported"),
        ("CREATE TABLE t (a SMALLINT)", "type smallint is not supported"),
        ("CREATE TABLE t (a DATE)", "type date is not supported"),
        ("CREATE TABLE t (a TIMESTAMPTZ)", "type timestamptz is not supported"),
        ("CREATE TABLE t (a TIMESTAMP(3) WITH TIME ZONE)", "type timestamp(3) with time zone is not supported"),
        ("CREATE TABLE t (a ROW<b SMALLINT>)", "type smallint is not supported"),
        ("CREATE TABLE t (a ARRAY<DATE>)", "type date is not supported"),
        ("CREATE TABLE t (a REAL[])", "type real is not supported"),
        ("CREATE TABLE t (a JSONB)", "type jsonb is not supported"),
        ("CREATE TABLE t (a ROW<b INT NOT NULL>) WITH (connector = 'x')", "NOT NULL is not supported"),
        // Views and sinks.
        ("CREATE VIEW v WITH (security_barrier) AS SELECT 1", "WITH is not supported"),
        ("CREATE VIEW v AS SELECT 1 WITH CHECK OPTION", "WITH CHECK OPTION is not supported"),
        ("CREATE RECURSIVE VIEW v (a) AS SELECT 1", "CREATE RECURSIVE VIEW is not supported"),
        ("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT 1", "CREATE OR REPLACE MATERIALIZED VIEW is not supported"),
        ("CREATE MATERIALIZED VIEW v AS SELECT 1 WITH NO DATA", "WITH NO DATA is not supported"),
        ("CREATE SINK s FROM v WITH (connector = 'x')", "FROM is not supported"),
        ("CREATE INDEX i ON t (a)", "CREATE INDEX is not supported"),
        ("CREATE SCHEMA s", "CREATE SCHEMA is not supported"),
        // Data.
        ("INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING", "ON CONFLICT is not supported"),
        ("INSERT INTO t VALUES (1) RETURNING a", "RETURNING is not supported"),
        ("INSERT INTO t DEFAULT VALUES RETURNING a", "RETURNING is not supported"),
        ("INSERT INTO t (a) OVERRIDING SYSTEM VALUE VALUES (1)", "OVERRIDING is not supported"),
        ("INSERT INTO t AS x VALUES (1)", "AS is not supported"),
        ("INSERT OVERWRITE t SELECT 1", "OVERWRITE is not supported"),
        ("UPDATE t SET a = 1 RETURNING a", "RETURNING is not supported"),
        ("UPDATE t SET (a, b) = (SELECT 1, 2)", "assignment of a subquery to several columns is not supported"),
        ("UPDATE t SET a.b = 1", "assignment to a part of a column is not supported"),
        ("UPDATE t SET a = 1 WHERE CURRENT OF c", "CURRENT OF is not supported"),
        ("DELETE FROM t RETURNING a", "RETURNING is not supported"),
        // Everything else.
        ("EXPLAIN ANALYZE SELECT 1", "ANALYZE is not supported"),
        ("EXPLAIN VERBOSE SELECT 1", "VERBOSE is not supported"),
        ("EXPLAIN (FORMAT json) SELECT 1", "an option of EXPLAIN is not supported"),
        ("EXPLAIN UPDATE t SET a = 1", "EXPLAIN UPDATE is not supported"),
        ("EXPLAIN FLUSH", "EXPLAIN FLUSH is not supported"),
        ("EXPLAIN CREATE TABLE t (a INT)", "EXPLAIN CREATE is not supported"),
        ("SELECT 1 BETWEEN SYMMETRIC 2 AND 0", "BETWEEN SYMMETRIC is not supported"),
        ("BEGIN ISOLATION LEVEL SERIALIZABLE", "SERIALIZABLE is not supported"),
        ("BEGIN READ ONLY", "READ ONLY is not supported"),
        ("ROLLBACK TO SAVEPOINT s", "ROLLBACK TO SAVEPOINT is not supported"),
        ("COMMIT AND CHAIN", "AND CHAIN is not supported"),
        ("COMMIT PREPARED 'x'", "PREPARED is not supported"),
        ("SAVEPOINT s", "SAVEPOINT is not supported"),
        ("RELEASE s", "RELEASE is not supported"),
        ("SET ROLE x", "ROLE is not supported"),
        ("SHOW TABLES LIKE 'a%'", "LIKE is not supported"),
        ("SHOW CREATE TABLE t", "CREATE is not supported"),
        ("DESCRIBE EXTENDED t", "EXTENDED is not supported"),
        ("ALTER TABLE t ADD COLUMN a INT", "ALTER TABLE is not supported"),
        ("DROP SCHEMA s", "SCHEMA is not supported"),
        ("COPY t FROM STDIN", "COPY is not supported"),
        ("MERGE INTO t USING u ON true WHEN MATCHED THEN DELETE", "MERGE is not supported"),
        ("PREPARE TRANSACTION 'x'", "TRANSACTION is not supported"),
        ("SELECT * FROM other.public.t", "cross-database references are not implemented: \"other.public.t\""),
    ];
    for (sql, message) in cases {
        let (code, found, _) = failure(sql);
        assert_eq!((code.as_str(), found.as_str()), ("0A000", *message), "{sql}");
    }
}

#[test]
fn other_errors_have_their_code() {
    let cases: &[(&str, &str, &str)] = &[
        ("CREATE TABLE t (a INT, A INT)", "42701", "column \"a\" specified more than once"),
        ("CREATE VIEW v (a, a) AS SELECT 1, 2", "42701", "column \"a\" specified more than once"),
        ("INSERT INTO t (a, a) VALUES (1, 2)", "42701", "column \"a\" specified more than once"),
        ("CREATE TABLE t (a INT, PRIMARY KEY (b))", "42703", "column \"b\" named in key does not exist"),
        ("CREATE TABLE t (a INT PRIMARY KEY, PRIMARY KEY (a))", "42P16", "multiple primary keys for table \"t\" are not allowed"),
        ("CREATE TABLE t (a INT NULL PRIMARY KEY)", "42601", "conflicting NULL/NOT NULL declarations for column \"a\" of table \"t\""),
        ("CREATE TABLE t (a INT DEFAULT 1 DEFAULT 2)", "42601", "multiple default values specified for column \"a\" of table \"t\""),
        ("CREATE TABLE t (a NUMERIC(39))", "22023", "NUMERIC precision 39 must be between 1 and 38"),
        ("CREATE TABLE t (a NUMERIC(0))", "22023", "NUMERIC precision 0 must be between 1 and 38"),
        ("CREATE TABLE t (a NUMERIC(5, 6))", "22023", "NUMERIC scale 6 must be between 0 and precision 5"),
        ("CREATE TABLE t (a TIMESTAMP(7))", "22023", "TIMESTAMP precision 7 must be between 0 and 6"),
        ("CREATE TABLE t (a FLOAT(54))", "22023", "precision for type float must be less than 54 bits"),
        ("CREATE SOURCE t (a INT)", "22023", "\"t\" needs the option \"connector\""),
        ("CREATE SINK s AS SELECT 1", "22023", "\"s\" needs the option \"connector\""),
        (
            "CREATE SINK s WITH (connector = 'x', 'connector' = 'y') AS SELECT 1",
            "42601",
            "parameter \"connector\" specified more than once",
        ),
        ("CREATE TABLE s.t (a INT)", "3F000", "schema \"s\" does not exist"),
        ("SELECT * FROM s.t", "42P01", "relation \"s.t\" does not exist"),
        ("SELECT /*+ uid('a') uid('b') */ 1", "0A000", "hint \"uid('a') uid('b')\" is not supported"),
        ("SELECT \"\" FROM t", "42601", "zero-length delimited identifier at or near \"\"\"\""),
    ];
    for (sql, code, message) in cases {
        let (found_code, found, _) = failure(sql);
        assert_eq!((found_code.as_str(), found.as_str()), (*code, *message), "{sql}");
    }
    assert_eq!(failure("FLUSH; CREATE TABLE t (a INT, b SMALLINT)").2, Some(33));
    assert_eq!(failure("SELECT a,\n b FROM s.t").2, Some(19));
}

#[test]
fn stored_tables() {
    let sql = "CREATE TABLE IF NOT EXISTS public.Users (
        id BIGINT PRIMARY KEY, \"Name\" TEXT NOT NULL DEFAULT 'it''s' || ' x' , ok BOOL DEFAULT (1 = 1) NULL,
        n NUMERIC(10,2) DEFAULT -1 NOT NULL, m NUMERIC, d DOUBLE PRECISION, f FLOAT(25), ts TIMESTAMP(3) WITHOUT TIME ZONE, s STRING,
        v CHARACTER VARYING, i INT4, u TIMESTAMP)";
    let Statement::CreateTable { name, if_not_exists, columns, primary_key } = one(sql) else { panic!("not a table") };
    assert_eq!((name.as_str(), if_not_exists), ("users", true));
    assert_eq!(primary_key, Some(vec!["id".to_string()]));
    let found: Vec<(&str, SqlType, bool, Option<&str>)> =
        columns.iter().map(|column| (column.name.as_str(), column.ty.clone(), column.not_null, column.default.as_deref())).collect();
    assert_eq!(
        found,
        vec![
            ("id", SqlType::BigInt, true, None),
            ("Name", SqlType::Text, true, Some("'it''s' || ' x'")),
            ("ok", SqlType::Boolean, false, Some("(1 = 1)")),
            ("n", SqlType::Numeric { precision: 10, scale: 2 }, true, Some("-1")),
            ("m", SqlType::NUMERIC, false, None),
            ("d", SqlType::Double, false, None),
            ("f", SqlType::Double, false, None),
            ("ts", SqlType::Timestamp { precision: 3 }, false, None),
            ("s", SqlType::Text, false, None),
            ("v", SqlType::Text, false, None),
            ("i", SqlType::Int, false, None),
            ("u", SqlType::TIMESTAMP, false, None),
        ]
    );
    let Statement::CreateTable { columns, primary_key, .. } = one("create table t (a int, b int, primary key (b, a))") else {
        panic!("not a table")
    };
    assert_eq!(primary_key, Some(vec!["b".to_string(), "a".to_string()]));
    assert!(columns.iter().all(|column| column.not_null));
}

#[test]
fn connector_tables() {
    let sql = "CREATE TABLE `Events` (
        event_type INT,
        person ROW<id BIGINT, name VARCHAR, at ROW<x DOUBLE, y ROW<z INT>>>,
        bid ROW(auction BIGINT, price NUMERIC(8, 2)),
        tags TEXT[], grid INT ARRAY[3] ARRAY, sizes ARRAY<ROW<w INT, h NUMERIC(4)[]>>, odd ROW<\"B \"\"b\" INT, c ARRAY<ARRAY<TEXT>>>,
        `dateTime` TIMESTAMP(3)
    ) WITH ('connector' = 'nexmark', 'rows.per-second' = '10', first = -5, scan.mode = latest, 'Case' = 'X')";
    let Statement::CreateConnectorTable { name, columns, options, if_not_exists } = one(sql) else { panic!("not a connector table") };
    assert_eq!((name.as_str(), if_not_exists), ("Events", false));
    let types: Vec<String> = columns.iter().map(|column| format!("{} {}", column.name, column.ty)).collect();
    assert_eq!(
        types,
        vec![
            "event_type integer",
            "person row<id bigint, name text, at row<x double precision, y row<z integer>>>",
            "bid row<auction bigint, price numeric(8,2)>",
            "tags text[]",
            "grid integer[][]",
            "sizes row<w integer, h numeric(4,0)[]>[]",
            "odd row<\"B \"\"b\" integer, c text[][]>",
            "dateTime timestamp(3) without time zone",
        ]
    );
    let options: Vec<String> = options.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(options, vec!["Case=X", "connector=nexmark", "first=-5", "rows.per-second=10", "scan.mode=latest"]);
    for sql in ["CREATE TABLE bid WITH (connector = nexmark)", "CREATE SOURCE IF NOT EXISTS bid WITH (connector = 'nexmark')"] {
        let Statement::CreateConnectorTable { columns, options, .. } = one(sql) else { panic!("not a connector table") };
        assert!(columns.is_empty());
        assert_eq!(options["connector"], "nexmark");
    }
}

#[test]
fn views_and_sinks_keep_their_query_text() {
    let sql = "CREATE OR REPLACE VIEW v (a, \"B\") AS SELECT 1, 'é' -- trailing\n";
    let Statement::CreateView { name, or_replace, columns, query_text, .. } = one(sql) else { panic!("not a view") };
    assert_eq!((name.as_str(), or_replace, query_text.as_str()), ("v", true, "SELECT 1, 'é'"));
    assert_eq!(columns, vec!["a", "B"]);

    let sql = "CREATE MATERIALIZED VIEW IF NOT EXISTS m AS /* c */ SELECT /*+ uid('x') */ a, count(*) FROM t GROUP BY a WITH DATA ;";
    let Statement::CreateMaterializedView { query_text, if_not_exists, query, .. } = one(sql) else { panic!("not a view") };
    assert_eq!((if_not_exists, query_text.as_str()), (true, "SELECT /*+ uid('x') */ a, count(*) FROM t GROUP BY a"));
    let SetExpr::Select(select) = query.body.as_ref() else { panic!("not a SELECT") };
    assert_eq!(block_uid(select).expect("a uid"), Some("x".to_string()));

    for sql in [
        "CREATE SINK s WITH (connector = 'blackhole') AS SELECT a FROM t",
        "CREATE SINK s AS SELECT a FROM t WITH (connector = 'blackhole')",
    ] {
        let Statement::CreateSink { name, options, query_text, .. } = one(sql) else { panic!("not a sink") };
        assert_eq!((name.as_str(), options["connector"].as_str(), query_text.as_str()), ("s", "blackhole", "SELECT a FROM t"));
    }
    let Statement::CreateView { query_text, query, .. } = one("CREATE VIEW v AS TABLE \"T\" ORDER BY a") else { panic!("not a view") };
    assert_eq!((query_text.as_str(), query.to_string().as_str()), ("TABLE \"T\" ORDER BY a", "SELECT * FROM \"T\" ORDER BY a"));
}

#[test]
fn a_query_text_parses_to_the_same_query_again() {
    let queries = [
        "SELECT 1",
        "SELECT /*+ uid('it''s') */ a, count(*) FILTER (WHERE b > 0) FROM public.t WHERE a <> ALL (SELECT c FROM u) GROUP BY a HAVING count(*) > 1",
        "WITH x (a) AS (SELECT 1 UNION ALL SELECT 2) SELECT x.a, y.* FROM x LEFT JOIN (VALUES (1, 'a'), (2, 'b')) AS y (i, s) ON x.a = y.i",
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r ORDER BY n DESC NULLS LAST LIMIT 3 OFFSET 1",
        "SELECT CASE WHEN a IS NULL THEN -1 ELSE a::bigint END, CAST('1' AS NUMERIC(5, 2)), substring(s FROM 2 FOR 3), \"Q\".\"x y\" FROM t AS \"Q\"",
        "(TABLE a) UNION TABLE b",
        "SELECT a FROM t FETCH FIRST ROW ONLY",
        "SELECT sum(a) OVER w, rank() OVER (PARTITION BY b ORDER BY c) FROM t WINDOW w AS (ORDER BY a)",
        "SELECT `a b`, $1, E'\\n', 'x'\n'y' FROM weir.public.t",
    ];
    for sql in queries {
        let Statement::CreateMaterializedView { query, query_text, .. } = one(&format!("CREATE MATERIALIZED VIEW v AS {sql};")) else {
            panic!("not a view")
        };
        assert_eq!(query_text, sql);
        assert_eq!(parse_query(&query_text).expect("the text parses"), query, "{sql}");
        let printed = query.to_string();
        assert_eq!(parse_query(&printed).map(|query| query.to_string()).ok(), Some(printed), "{sql}");
    }
}

#[test]
fn queries_are_normalised() {
    let cases = [
        ("SELECT public.t.a, t.b FROM public.t JOIN weir.public.\"U\" ON true", "SELECT t.a, t.b FROM t JOIN \"U\" ON true"),
        ("SELECT a FROM t FETCH NEXT 5 ROWS ONLY", "SELECT a FROM t LIMIT 5"),
        ("SELECT a FROM t OFFSET 2 FETCH FIRST ROW ONLY", "SELECT a FROM t LIMIT 1 OFFSET 2"),
        ("TABLE t", "SELECT * FROM t"),
        ("SELECT * FROM (TABLE t) x WHERE a IN (TABLE u)", "SELECT * FROM (SELECT * FROM t) x WHERE a IN (SELECT * FROM u)"),
        ("WITH x AS (TABLE t) TABLE x LIMIT 1", "WITH x AS (SELECT * FROM t) SELECT * FROM x LIMIT 1"),
        ("SELECT relname FROM pg_catalog.pg_class", "SELECT relname FROM pg_catalog.pg_class"),
    ];
    for (sql, expected) in cases {
        let Statement::Query(query) = one(sql) else { panic!("not a query: {sql}") };
        assert_eq!(query.to_string(), expected, "{sql}");
    }
}

#[test]
fn operators_are_postgres() {
    // A sign binds more tightly than ^ and less than ::.
    let Ok(Expr::BinaryOp { left, .. }) = parse_expression("-2 ^ 2") else { panic!("not a power") };
    assert!(matches!(*left, Expr::UnaryOp { op: UnaryOperator::Minus, .. }));
    let Ok(Expr::UnaryOp { expr, .. }) = parse_expression("-x::int") else { panic!("not a sign") };
    assert!(matches!(*expr, Expr::Cast { .. }));
    for sql in
        ["a || b", "a % b", "a # b", "a & b | c", "a ~ b", "a !~* b", "a <-> b", "a -> 'b' ->> 'c'", "a @> b", "a OPERATOR(pg_catalog.~) b"]
    {
        assert!(parse_expression(sql).is_ok(), "{sql}");
    }
    // An operator does not end in a sign, unless it has a character that no comparison has.
    for (sql, expected) in [
        ("SELECT 1>-1, 2>=-1, 2<>-2, 2<-3, a>+-b, 2*-3", "SELECT 1 > -1, 2 >= -1, 2 <> -2, 2 < -3, a > +-b, 2 * -3"),
        ("SELECT a<->b", "SELECT a <-> b"),
        ("SELECT '>-', \"<-\" -->-\n FROM t", "SELECT '>-', \"<-\" FROM t"),
    ] {
        let Statement::Query(query) = one(sql) else { panic!("not a query: {sql}") };
        assert_eq!(query.to_string(), expected, "{sql}");
    }
    // Backticks quote, also next to operators.
    assert_eq!(parse_expression("1+`a b`*2").expect("parses").to_string(), "1 + `a b` * 2");
    assert!(matches!(failure("SELECT 5 !"), (code, _, _) if code == "42601"));
}

#[test]
fn hints_name_blocks_and_comments_are_comments() {
    for (sql, uid) in [
        ("SELECT /*+ uid('a') */ 1", Some("a")),
        ("SELECT /* c */ /*+uid ( 'it''s' )*/ DISTINCT 1", Some("it's")),
        ("SELECT --a+b\n 1", None),
        ("SELECT /* x */ 1", None),
        ("/* + */ SELECT 1", None),
    ] {
        let statement = one(sql);
        assert_eq!(block_uid(select_of(&statement)).expect("a hint").as_deref(), uid, "{sql}");
    }
}

#[test]
fn scalar_functions_take_no_aggregate_clauses() {
    let check = |sql: &str| check_scalar_calls(&parse_expression(sql).expect("parses"), |name| name == "lower");
    for sql in ["lower(a)", "lower(a) || max(DISTINCT b)", "count(DISTINCT lower(a)) FILTER (WHERE b)", "sum(a) OVER (ORDER BY lower(b))"] {
        assert!(check(sql).is_ok(), "{sql}");
    }
    for (sql, message) in [
        ("LOWER(a) FILTER (WHERE b)", "FILTER specified, but lower is not an aggregate function"),
        ("max(lower(DISTINCT a))", "DISTINCT specified, but lower is not an aggregate function"),
        ("1 + lower(a ORDER BY b)", "ORDER BY specified, but lower is not an aggregate function"),
        ("lower(a) OVER (ORDER BY b)", "OVER specified, but lower is not a window function nor an aggregate function"),
    ] {
        let error = check(sql).expect_err(sql);
        assert_eq!((error.code().as_str(), error.message()), ("42809", message), "{sql}");
    }
}

#[test]
fn data_statements() {
    let Statement::Insert { table, columns, source, source_text, returning } =
        one("INSERT INTO public.T (a, \"B\") VALUES (1, 2), ($1, DEFAULT)")
    else {
        panic!("not an INSERT")
    };
    assert_eq!((table.as_str(), source_text.as_str(), returning), ("t", "VALUES (1, 2), ($1, DEFAULT)", false));
    assert_eq!(columns, vec!["a", "B"]);
    let SetExpr::Values(values) = source.body.as_ref() else { panic!("not VALUES") };
    let defaults: Vec<bool> = values.rows.iter().flat_map(|row| row.content.iter().map(is_default)).collect();
    assert_eq!(defaults, vec![false, false, false, true]);
    for sql in [
        "INSERT INTO t (SELECT 1)",
        "INSERT INTO t SELECT 1",
        "INSERT INTO t WITH x AS (SELECT 1) SELECT * FROM x",
        "INSERT INTO t (a) TABLE u",
    ] {
        assert!(matches!(one(sql), Statement::Insert { .. }), "{sql}");
    }
    assert!(matches!(one("INSERT INTO t DEFAULT VALUES"), Statement::InsertDefaults { table } if table == "t"));

    let Statement::Update { table, alias, assignments, selection, .. } =
        one("UPDATE ONLY t AS x SET a = DEFAULT, (b, \"C\") = (x.a + 1, 'c') WHERE x.a > 0")
    else {
        panic!("not an UPDATE")
    };
    assert_eq!((table.as_str(), alias.as_deref()), ("t", Some("x")));
    let assigned: Vec<String> = assignments
        .iter()
        .map(|(column, assignment)| match assignment {
            Assignment::Default => format!("{column} = DEFAULT"),
            Assignment::Expr(expr) => format!("{column} = {expr}"),
        })
        .collect();
    assert_eq!(assigned, vec!["a = DEFAULT", "b = x.a + 1", "C = 'c'"]);
    assert_eq!(selection.map(|expr| expr.to_string()).as_deref(), Some("x.a > 0"));

    let Statement::Delete { table, alias, selection, .. } = one("DELETE FROM t x WHERE EXISTS (SELECT 1 FROM public.u)") else {
        panic!("not a DELETE")
    };
    assert_eq!((table.as_str(), alias.as_deref()), ("t", Some("x")));
    assert_eq!(selection.map(|expr| expr.to_string()).as_deref(), Some("EXISTS (SELECT 1 FROM u)"));
    assert!(matches!(one("DELETE FROM t"), Statement::Delete { alias: None, selection: None, .. }));
}

#[test]
fn settings() {
    let cases: &[(&str, &str, Option<&str>, bool)] = &[
        ("SET a = 1", "a", Some("1"), false),
        ("SET A.b TO 'x'", "a.b", Some("x"), false),
        ("SET a TO on", "a", Some("on"), false),
        ("SET a = off", "a", Some("off"), false),
        ("SET SESSION a = -1.5", "a", Some("-1.5"), false),
        ("SET LOCAL a = 'b'", "a", Some("b"), true),
        ("SET local = 'b'", "local", Some("b"), false),
        ("SET TIME ZONE 'Europe/Berlin'", "timezone", Some("Europe/Berlin"), false),
        ("SET TIME ZONE LOCAL", "timezone", None, false),
        ("SET TimeZone = UTC", "timezone", Some("utc"), false),
        ("SET datestyle TO ISO, MDY", "datestyle", Some("iso, mdy"), false),
        ("SET search_path = \"$user\", public", "search_path", Some("$user, public"), false),
        ("SET client_encoding TO 'UTF8'", "client_encoding", Some("UTF8"), false),
        ("SET NAMES 'utf8'", "client_encoding", Some("utf8"), false),
        ("SET extra_float_digits = 3", "extra_float_digits", Some("3"), false),
        ("SET 'dml_sync' = 'true'", "dml_sync", Some("true"), false),
        ("SET a TO DEFAULT", "a", None, false),
        ("RESET a", "a", None, false),
        ("RESET TIME ZONE", "timezone", None, false),
    ];
    for (sql, expected_name, expected_value, expected_local) in cases {
        let Statement::Set { name, value, local } = one(sql) else { panic!("not a SET: {sql}") };
        assert_eq!((name.as_str(), value.as_deref(), local), (*expected_name, *expected_value, *expected_local), "{sql}");
    }
    assert!(matches!(one("RESET ALL"), Statement::ResetAll));
    assert!(matches!(one("DISCARD ALL"), Statement::DiscardAll));
    assert!(matches!(one("DEALLOCATE ALL"), Statement::Deallocate(None)));
    assert!(matches!(one("DEALLOCATE PREPARE p"), Statement::Deallocate(Some(name)) if name == "p"));
    assert!(matches!(one("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED"), Statement::NoOp("SET")));
    for (sql, name) in [
        ("SHOW ALL", "all"),
        ("show TimeZone", "timezone"),
        ("SHOW TIME ZONE", "timezone"),
        ("SHOW transaction isolation level", "transaction_isolation"),
    ] {
        assert!(matches!(one(sql), Statement::ShowSetting(setting) if setting == name), "{sql}");
    }
}

#[test]
fn commands() {
    for sql in ["BEGIN", "begin work", "START TRANSACTION", "BEGIN TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE"] {
        assert!(matches!(one(sql), Statement::Begin(tag) if sql.to_uppercase().starts_with(tag)), "{sql}");
    }
    for sql in ["COMMIT", "END", "COMMIT WORK", "END TRANSACTION AND NO CHAIN"] {
        assert!(matches!(one(sql), Statement::Commit), "{sql}");
    }
    for sql in ["ROLLBACK", "ABORT TRANSACTION"] {
        assert!(matches!(one(sql), Statement::Rollback), "{sql}");
    }
    for (sql, kind) in [
        ("SHOW JOBS", ShowKind::Jobs),
        ("SHOW CHECKPOINTS", ShowKind::Checkpoints),
        ("SHOW TABLES", ShowKind::Tables),
        ("SHOW VIEWS", ShowKind::Views),
        ("SHOW MATERIALIZED VIEWS", ShowKind::MaterializedViews),
        ("SHOW SINKS", ShowKind::Sinks),
        ("SHOW SOURCES", ShowKind::Sources),
    ] {
        assert!(matches!(one(sql), Statement::Show(found) if found == kind), "{sql}");
    }
    for (sql, expected) in [
        ("DROP TABLE a", (DropKind::Table, vec!["a"], false, false)),
        ("DROP VIEW IF EXISTS public.a, \"B\" CASCADE", (DropKind::View, vec!["a", "B"], true, true)),
        ("DROP MATERIALIZED VIEW a RESTRICT", (DropKind::MaterializedView, vec!["a"], false, false)),
        ("DROP SINK a", (DropKind::Sink, vec!["a"], false, false)),
        ("DROP SOURCE a", (DropKind::Source, vec!["a"], false, false)),
        ("DROP JOB a", (DropKind::Job, vec!["a"], false, false)),
    ] {
        let Statement::Drop { kind, names, if_exists, cascade } = one(sql) else { panic!("not a DROP: {sql}") };
        assert_eq!((kind, names.iter().map(String::as_str).collect(), if_exists, cascade), expected, "{sql}");
    }
    for sql in ["ALTER JOB j RESUME", "ALTER MATERIALIZED VIEW j RESUME", "ALTER SINK public.j RESUME"] {
        assert!(matches!(one(sql), Statement::Resume(name) if name == "j"), "{sql}");
    }
    assert!(matches!(one("DESCRIBE public.t"), Statement::Describe(name) if name == "t"));
    assert!(matches!(one("desc T"), Statement::Describe(name) if name == "t"));
    assert!(matches!(one("FLUSH"), Statement::Flush));
    assert!(matches!(one("CHECKPOINT;"), Statement::Checkpoint));

    let statements = parse("FLUSH; EXPLAIN /* c */ CREATE MATERIALIZED VIEW v AS SELECT 1 ;").expect("parses");
    let Statement::Explain(inner) = &statements[1].statement else { panic!("not an EXPLAIN") };
    let Parsed { statement, text, offset } = inner.as_ref();
    assert!(matches!(statement, Statement::CreateMaterializedView { name, .. } if name == "v"));
    assert_eq!((text.as_str(), *offset), ("CREATE MATERIALIZED VIEW v AS SELECT 1", 23));
    for sql in ["EXPLAIN SELECT 1", "EXPLAIN (SELECT 1)", "EXPLAIN PLAN FOR INSERT INTO t SELECT 1", "EXPLAIN TABLE t"] {
        assert!(matches!(one(sql), Statement::Explain(_)), "{sql}");
    }
}

#[test]
fn what_psql_asks_about_tables_parses() {
    let sql = "SELECT c.oid, n.nspname, c.relname FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
               WHERE c.relname OPERATOR(pg_catalog.~) '^(t)$' COLLATE pg_catalog.default AND pg_catalog.pg_table_is_visible(c.oid) ORDER BY 2, 3;";
    assert!(matches!(one(sql), Statement::Query(_)));
    let sql = "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), (SELECT pg_catalog.pg_get_expr(d.adbin, d.adrelid, true) \
               FROM pg_catalog.pg_attrdef d WHERE d.adrelid = a.attrelid), ARRAY(SELECT 1) FROM pg_catalog.pg_attribute a \
               WHERE a.attrelid = '16384' AND a.attnum > 0 AND NOT a.attisdropped AND a.attrelid = 't'::pg_catalog.regclass ORDER BY a.attnum;";
    assert!(matches!(one(sql), Statement::Query(_)));
}

#[test]
fn unreserved_words_are_names() {
    let words = [
        "position",
        "value",
        "key",
        "date",
        "path",
        "point",
        "timestamp",
        "user_name",
        "name",
        "type",
        "interval",
        "format",
        "row",
        "floor",
        "view",
    ];
    for word in words {
        for sql in [format!("SELECT {word} FROM t WHERE {word} > 0 ORDER BY {word}"), format!("SELECT t.{word} AS {word} FROM {word} t")] {
            assert_eq!(parse(&sql).map(|statements| statements.len()).ok(), Some(1), "{sql}");
        }
        let Statement::CreateTable { columns, .. } = one(&format!("CREATE TABLE {word} ({word} INT, \"user\" TEXT)")) else {
            panic!("not a table")
        };
        assert_eq!(columns[0].name, word);
    }
}

#[test]
fn savepoints() {
    let Statement::CreateSavepoint { name, job, location } = one("CREATE SAVEPOINT \"Before it\" FOR v AT '/backup'") else { panic!() };
    assert_eq!((name.as_str(), job.as_str(), location.as_deref()), ("Before it", "v", Some("/backup")));
    assert!(matches!(one("CREATE SAVEPOINT s FOR MATERIALIZED VIEW v"), Statement::CreateSavepoint { location: None, .. }));
    let Statement::CreateMaterializedView { origin: Some(origin), .. } = one(
        "CREATE MATERIALIZED VIEW w (a) FROM SAVEPOINT s ('aggregate(k)' AS totals, b AS \"c/d\") ALLOW NON RESTORED STATE AS SELECT 1",
    ) else {
        panic!()
    };
    assert_eq!(origin.source, SavepointSource::Name("s".into()));
    assert_eq!(origin.uids, [("aggregate(k)".to_string(), "totals".to_string()), ("b".to_string(), "c/d".to_string())]);
    assert!(origin.allow_non_restored_state);
    for sql in [
        "CREATE SINK k FROM SAVEPOINT '/backup/s' WITH (connector = 'blackhole') AS SELECT 1",
        "CREATE SINK k WITH (connector = 'blackhole') FROM SAVEPOINT '/backup/s' AS SELECT 1",
    ] {
        let Statement::CreateSink { origin: Some(origin), .. } = one(sql) else { panic!("{sql}") };
        assert_eq!(origin.source, SavepointSource::Location("/backup/s".into()));
        assert!(!origin.allow_non_restored_state && origin.uids.is_empty());
    }
    let Statement::StopWithSavepoint { job, name, location: None } = one("ALTER JOB v STOP WITH SAVEPOINT s") else { panic!() };
    assert_eq!((job.as_str(), name.as_str()), ("v", "s"));
    assert!(matches!(one("DROP SAVEPOINT IF EXISTS a, b"), Statement::DropSavepoint { names, if_exists: true } if names == ["a", "b"]));
    assert!(matches!(one("DESCRIBE SAVEPOINT s"), Statement::DescribeSavepoint(SavepointSource::Name(name)) if name == "s"));
    assert!(matches!(one("DESCRIBE savepoint"), Statement::Describe(name) if name == "savepoint"));
    assert!(matches!(one("SHOW SAVEPOINTS"), Statement::Show(ShowKind::Savepoints)));
    for sql in ["ALTER MATERIALIZED VIEW v AS SELECT a FROM t", "ALTER JOB v AS SELECT a FROM t"] {
        assert!(matches!(one(sql), Statement::AlterQuery { name, query_text, .. } if name == "v" && query_text == "SELECT a FROM t"));
    }
    for sql in ["EXPLAIN UPGRADE v AS SELECT a FROM t", "EXPLAIN ALTER MATERIALIZED VIEW v AS SELECT a FROM t"] {
        let Statement::Explain(inner) = one(sql) else { panic!("{sql}") };
        assert!(matches!(inner.statement, Statement::AlterQuery { name, .. } if name == "v"), "{sql}");
    }
    for (sql, allowed) in [
        ("ALTER MATERIALIZED VIEW v ('aggregate(k)' AS totals, b AS \"c/d\") ALLOW NON RESTORED STATE AS SELECT a FROM t", true),
        ("EXPLAIN UPGRADE v ('aggregate(k)' AS totals, b AS \"c/d\") AS SELECT a FROM t", false),
    ] {
        let statement = match one(sql) {
            Statement::Explain(inner) => inner.statement,
            statement => statement,
        };
        let Statement::AlterQuery { uids, allow_non_restored_state, .. } = statement else { panic!("{sql}") };
        assert_eq!(uids, [("aggregate(k)".to_string(), "totals".to_string()), ("b".to_string(), "c/d".to_string())]);
        assert_eq!(allow_non_restored_state, allowed);
    }
    // Where the query begins is where it stands.
    let Statement::Explain(inner) = one("EXPLAIN UPGRADE v AS SELECT a FROM t") else { panic!() };
    assert_eq!(&inner.text[inner.text.find("SELECT").unwrap()..], "SELECT a FROM t");
    assert_eq!(inner.offset + inner.text.find("SELECT").unwrap(), "EXPLAIN UPGRADE v AS ".len());
}
