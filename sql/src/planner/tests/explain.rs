//! What EXPLAIN says, compared with `explain.txt`: each query, a line of dashes, its lines, an empty line.
//!
//! `WEIR_REWRITE=1 cargo test -p weir-sql explain` writes the file anew; read the difference before committing it.

use crate::explain::explain;

#[test]
fn explain_says_what_the_file_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/planner/tests/explain.txt");
    let expected = std::fs::read_to_string(path).expect("the file of expectations is there");
    let mut actual = String::new();
    let mut queries = 0;
    for case in expected.split("\n\n").filter(|case| !case.trim().is_empty()) {
        let query = case.split("\n----").next().unwrap_or_default().trim();
        if query.lines().all(|line| line.starts_with("--")) {
            actual.push_str(&format!("{query}\n\n"));
            continue;
        }
        let lines = match super::plan(query) {
            Ok(graph) => explain(&graph, 2),
            Err(error) => vec![format!("ERROR {}: {}", error.code(), error.message())],
        };
        actual.push_str(&format!("{query}\n----\n{}\n\n", lines.join("\n")));
        queries += 1;
    }
    assert!(queries >= 30, "the file has only {queries} queries");
    if std::env::var_os("WEIR_REWRITE").is_some() {
        std::fs::write(path, actual).expect("the file of expectations can be written");
    } else if actual != expected {
        for (number, (actual, expected)) in actual.lines().zip(expected.lines()).enumerate() {
            assert_eq!(actual, expected, "line {} of explain.txt", number + 1);
        }
        panic!("explain.txt has {} lines, and there should be {}", expected.lines().count(), actual.lines().count());
    }
}
