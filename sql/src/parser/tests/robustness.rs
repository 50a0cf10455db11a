//! That no input breaks the parser: not its stack, not its patience, not its promises about texts and positions.

use proptest::prelude::*;

use super::failure;
use crate::parser::{parse, parse_query};
use crate::statement::Statement;

/// The stack of the server's threads.
const STACK_BYTES: usize = 256 << 20;

#[test]
fn deep_statements_are_refused_and_long_ones_are_not() {
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(read_deep_and_long_statements);
    thread.expect("a thread").join().expect("no statement breaks it");
}

fn read_deep_and_long_statements() {
    let deep = [
        format!("SELECT {}1{}", "(".repeat(10_000), ")".repeat(10_000)),
        format!("SELECT {}1", "(".repeat(100_000)),
        format!("SELECT 1{}", " + 1".repeat(100_000)),
        format!("SELECT 1 WHERE a{}", " OR a".repeat(100_000)),
        format!("SELECT {}1", "- ".repeat(100_000)),
        format!("SELECT {}true", "NOT ".repeat(100_000)),
        format!("SELECT 1{}", " UNION ALL SELECT 1".repeat(100_000)),
        format!("SELECT 1, 2{}", " UNION ALL SELECT 1, 2".repeat(100_000)),
        format!("SELECT * FROM t{}", ", t".repeat(100_000)),
        format!("SELECT * FROM t{}", " CROSS JOIN t".repeat(100_000)),
        format!("SELECT a{}", "::int".repeat(100_000)),
        format!("SELECT a::int{}", "[]".repeat(100_000)),
        format!("SELECT a::{}int", "ARRAY<".repeat(100_000)),
        format!("SELECT * FROM {}t", "(".repeat(1_000)),
        format!("SELECT {}1{}", "CASE WHEN true THEN ".repeat(5_000), " END".repeat(5_000)),
        format!("SELECT CAST(a AS {}INT)", "ROW<b ".repeat(100_000)),
        format!("SELECT CAST(a AS {}INT{})", "ROW<b ".repeat(60), ">".repeat(60)),
        format!("SELECT {}1{}", "ARRAY[".repeat(10_000), "]".repeat(10_000)),
        format!("SELECT a{} FROM t", "[1]".repeat(100_000)),
        format!("CREATE TABLE t (a INT{})", "[]".repeat(10_000)),
        format!("CREATE TABLE t (a {}INT) WITH (connector = 'x')", "ROW<b ".repeat(100_000)),
        format!("CREATE TABLE t (a {}INT{}) WITH (connector = 'x')", "ROW(b ".repeat(60), ")".repeat(60)),
        format!("SELECT {}1{}", "(1 + ".repeat(90), " + 1".repeat(2_000)),
    ];
    for sql in deep {
        let (code, message, position) = failure(&sql);
        let near: String = sql.chars().take(60).collect();
        if code != "42601" {
            assert_eq!((code.as_str(), message.as_str()), ("54001", "statement too complex"), "{near}");
        }
        assert!(position.is_some(), "{near}");
    }
    let doubled = format!("SELECT * FROM {}", "((SELECT * FROM ".repeat(11));
    assert_eq!(failure(&doubled).0, "54001");
    let exact = |sql: &str| failure(sql).0;
    assert_eq!(exact(&format!("SELECT 1{}", " + 1".repeat(16_001))), "54001");
    assert_eq!(exact(&format!("SELECT {}1{}", "(1 + ".repeat(201), ")".repeat(201))), "54001");
    assert_eq!(exact(&format!("SELECT a{} FROM t", "::text".repeat(201))), "54001");
    assert_eq!(exact(&format!("SELECT a{} FROM t", " IS NULL".repeat(2_001))), "54001");
    assert_eq!(exact(&format!("SELECT a{} FROM t", " BETWEEN b AND c".repeat(2_001))), "54001");
    assert_eq!(exact(&format!("SELECT 1{}", " UNION SELECT 1".repeat(2_001))), "54001");
    assert_eq!(exact(&format!("SELECT a{} FROM t", "::text || 'x'".repeat(201))), "54001");
    assert_eq!(exact(&format!("SELECT 1 WHERE a{}", " OR a".repeat(16_001))), "54001");
    for part in ["NOT ", "NOT (NOT ", "CASE WHEN true THEN "] {
        assert_eq!(exact(&format!("SELECT {}true", part.repeat(300))), "54001", "{part}");
    }
    assert_eq!(exact(&format!("SELECT {}1{}", "(".repeat(1_001), ")".repeat(1_001))), "54001");
    assert_eq!(exact(&format!("SELECT {}1{}", "abs(".repeat(101), ")".repeat(101))), "54001");
    assert_eq!(exact(&format!("SELECT {}1{}", "(SELECT ".repeat(101), ")".repeat(101))), "54001");
    let long = [
        format!("SELECT 1{}", " + 1".repeat(6_000)),
        format!("SELECT a{}", " || a - b".repeat(3_000)),
        format!("SELECT 1 WHERE a = 1{}", " OR a = 1".repeat(6_000)),
        format!("SELECT 1 WHERE a IS NULL{}", " AND a BETWEEN 1 AND 2 AND NOT (b LIKE 'x')".repeat(2_500)),
        format!("SELECT {}1{}", "(".repeat(900), ")".repeat(900)),
        format!("SELECT {}a = 1{}", "(".repeat(600), " OR b = 2)".repeat(600)),
        format!("SELECT ({0}) + ({0}) FROM t", vec!["a"; 100].join(" * ")),
        format!("SELECT 1 WHERE a + 1 > 2{}", " OR a + 1 > 2".repeat(600)),
        format!("SELECT CASE a {} END", "WHEN 1 + 1 THEN 2 + 2 ".repeat(400)),
        format!("SELECT {}true", "NOT ".repeat(90)),
        format!("SELECT 1{}", ", 1 + 1".repeat(20_000)),
        format!("INSERT INTO t VALUES (1, 'a'){}", ", (1, 'a')".repeat(50_000)),
        format!("SELECT {}1{}", "(".repeat(90), ")".repeat(90)),
        format!("SELECT * FROM {}SELECT 1{}", "(".repeat(11), ")".repeat(11)),
        format!("SELECT a, {}b{} FROM t", "(".repeat(50), ")".repeat(50)),
        format!("SELECT {}1{}", "abs(".repeat(90), ")".repeat(90)),
        format!("SELECT * FROM {}t{}", "(SELECT * FROM ".repeat(80), ") x".repeat(80)),
        format!("SELECT a IN (1{})", ", 2".repeat(50_000)),
        format!(
            "CREATE TABLE t (a0 ROW<b INT>{}) WITH (connector = 'x')",
            (1..300).map(|i| format!(", a{i} ROW<b INT>")).collect::<String>()
        ),
    ];
    for sql in long {
        assert_eq!(parse(&sql).map(|statements| statements.len()).ok(), Some(1), "{}", sql.chars().take(60).collect::<String>());
    }
}

#[test]
fn backtracking_ends() {
    // Each level of these would be read twice or more, were there no fuel.
    for name in
        ["floor", "ceil", "position", "substring", "overlay", "extract", "trim", "interval", "cast", "struct", "values", "xmlconcat"]
    {
        let sql = format!("SELECT {}1 1", format!("{name}(").repeat(95));
        let (code, _, _) = failure(&sql);
        assert!(code == "42601" || code == "54001", "{name}: {code}");
    }
    for part in ["interval ", "interval (", "a IN (VALUES (", "a IN (SELECT ", "CASE ", "(SELECT * FROM (", "EXISTS (", "ARRAY[", "date "] {
        let (code, _, _) = failure(&format!("SELECT {}", part.repeat(45)));
        assert!(code == "42601" || code == "54001", "{part}: {code}");
    }
}

/// Words and symbols that statements are made of, and some that break them.
fn token() -> impl Strategy<Value = String> {
    let tokens = [
        "SELECT",
        "FROM",
        "WHERE",
        "GROUP BY",
        "ORDER BY",
        "HAVING",
        "LIMIT",
        "UNION ALL",
        "JOIN",
        "ON",
        "USING",
        "AS",
        "WITH",
        "VALUES",
        "INSERT INTO",
        "UPDATE",
        "DELETE FROM",
        "SET",
        "CREATE",
        "TABLE",
        "VIEW",
        "MATERIALIZED VIEW",
        "SINK",
        "SOURCE",
        "IF NOT EXISTS",
        "PRIMARY KEY",
        "NOT",
        "NULL",
        "DEFAULT",
        "DROP",
        "EXPLAIN",
        "SHOW",
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
        "ALTER",
        "JOB",
        "RESUME",
        "INTERVAL",
        "CASE",
        "WHEN",
        "THEN",
        "END",
        "CAST",
        "IN",
        "BETWEEN",
        "LIKE",
        "IS",
        "EXISTS",
        "ARRAY",
        "ROW",
        "INT",
        "BIGINT",
        "TEXT",
        "NUMERIC",
        "TIMESTAMP",
        "DOUBLE PRECISION",
        "OVER",
        "PARTITION BY",
        "WINDOW",
        "FILTER",
        "DISTINCT",
        "FETCH FIRST",
        "ROWS ONLY",
        "FOR UPDATE",
        "TABLESAMPLE",
        "LATERAL",
        "COLLATE",
        "AT TIME ZONE",
        "WATERMARK FOR",
        "public",
        "weir",
        "a",
        "b",
        "t",
        "\"Q\"",
        "`q`",
        "count",
        "1",
        "2.5",
        "1e9",
        "'x'",
        "E'\\n'",
        "$$d$$",
        "$1",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "<",
        ">",
        ">>",
        ">>>",
        "=",
        "<>",
        "+",
        "-",
        "*",
        "/",
        "%",
        "^",
        "||",
        "::",
        ".",
        ",",
        ";",
        ":",
        "?",
        "!",
        "@",
        "#",
        "~",
        "&",
        "|",
        "->",
        "/*+ uid('x') */",
        "/* c */",
        "-- c\n",
        "'",
        "\"",
        "$$",
        "/*",
        "\\",
        "é",
        "\u{0}",
        "\u{feff}",
        "😀",
    ];
    prop::sample::select(tokens.to_vec()).prop_map(str::to_string)
}

/// Parses `sql`; what comes out is in order and what fails has a SQLSTATE and a position inside the text.
fn check_robust(sql: &str) {
    match parse(sql) {
        Ok(statements) => {
            let mut end = 0;
            for parsed in &statements {
                let characters: Vec<char> = sql.chars().collect();
                let length = parsed.text.chars().count();
                assert!(parsed.offset >= end);
                let text: String = characters[parsed.offset..parsed.offset + length].iter().collect();
                assert_eq!(text, parsed.text);
                end = parsed.offset + length;
                assert!(parse(&parsed.text).is_ok(), "{:?} parses alone", parsed.text);
                if let Statement::CreateMaterializedView { query, query_text, .. } = &parsed.statement {
                    assert_eq!(parse_query(query_text).expect("a query text parses"), *query);
                }
            }
        }
        Err(error) => {
            assert!(error.code().as_str() != "XX000", "{error:?}");
            if let Some(position) = error.position() {
                assert!((1..=sql.chars().count() + 1).contains(&position), "position {position} of {sql:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_parses_or_fails(sql in any::<String>()) {
        check_robust(&sql);
    }

    #[test]
    fn any_bytes_parse_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_robust(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_tokens_parse_or_fail(tokens in prop::collection::vec(token(), 0..40)) {
        check_robust(&tokens.join(" "));
        check_robust(&tokens.concat());
        check_robust(&format!("SELECT {}", tokens.join(" ")));
        check_robust(&format!("CREATE MATERIALIZED VIEW v AS SELECT {}", tokens.join(" ")));
        check_robust(&format!("CREATE TABLE t (a {}", tokens.join(" ")));
    }
}
