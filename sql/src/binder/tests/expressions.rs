//! Expressions: type and value, or SQLSTATE and message, each as PostgreSQL 15 gave it.

use super::{run, shown};

#[test]
fn expressions_as_in_postgresql() {
    let mut failures = Vec::new();
    let mut count = 0;
    for line in include_str!("expressions.txt").lines().filter(|line| !line.starts_with('#')) {
        let line = line.strip_prefix("~ ").unwrap_or(line);
        let (expression, expected) = line.split_once(" => ").unwrap();
        count += 1;
        let actual = match run(&format!("SELECT {expression} AS x")) {
            Ok((columns, rows)) => {
                let ty = columns[0].trim_start_matches("x ");
                // PostgreSQL's pg_typeof shows neither precision nor scale.
                let ty = if ty.starts_with("numeric") { "numeric".into() } else { ty.replace("timestamp(0)", "timestamp") };
                format!("{ty} | {}", rows.join("; "))
            }
            Err(error) => shown(&error),
        };
        if actual.trim_end() != expected.trim_end() {
            failures.push(format!("{expression}\n  expected {expected}\n  actual   {actual}"));
        }
    }
    assert!(count > 250, "only {count} expressions");
    assert!(failures.is_empty(), "{} of {count}:\n{}", failures.len(), failures.join("\n"));
}
