//! The same statements on weir and on PostgreSQL.
//!
//! What the `.slt` files expect of weir is what PostgreSQL answers; and generated tables, updates and queries give the same rows on both.

use std::sync::Arc;

use weir::seams::random::Random;

use crate::random::generator::{Case, Step};
use crate::reference::Reference;
use crate::rows::Comparison;
use crate::run;
use crate::server::{Server, Session, describe, settings, sql_state};
use crate::slt;
use crate::views::for_postgres;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_expect_what_postgresql_answers() {
    let reference = match Reference::start() {
        Ok(reference) => Arc::new(reference),
        Err(reason) => return run::skip("postgres files", &reason),
    };
    let mut failures = Vec::new();
    let mut compared = 0;
    let files = slt::files();
    for file in &files {
        match slt::run_on_postgres(&reference, file, "slt").await {
            Ok(count) => compared += count,
            Err(problem) => failures.push(format!("{}: {problem}", file.display())),
        }
    }
    assert!(failures.is_empty(), "{} of {} files failed:\n{}", failures.len(), files.len(), failures.join("\n\n"));
    run::say(&format!("postgres files: {} files, {compared} statements compared", files.len()));
    assert!(std::env::var_os("WEIR_TEST_FILE").is_some() || compared >= 200, "only {compared} statements were compared");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generated_statements_answer_as_postgresql_does() {
    let reference = match Reference::start() {
        Ok(reference) => reference,
        Err(reason) => return run::skip("postgres generated", &reason),
    };
    let mut random = run::random("postgres generated");
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let weir = server.connect().await;
    let (mut compared, mut refused) = (0, 0);
    let cases = run::rounds(25, 500);
    for number in 0..cases {
        let case = Case::drawn(&mut random, &format!("p{number}_"));
        let postgres = reference.database("generated").await;
        if same_statements(&case, number, &weir, &postgres).await {
            compared += same_content(&case, number, &weir, &postgres).await;
        } else {
            refused += 1;
        }
        for statement in case.clean_up() {
            weir.must(&statement).await;
        }
    }
    run::say(&format!("postgres generated: {cases} cases, {compared} results compared, {refused} cases refused"));
    assert!(compared >= cases * 3, "only {compared} results were compared");
    assert!(refused * 10 <= cases, "{refused} of {cases} cases were refused");
}

/// Runs the case's statements on both systems, which must agree about each. False where weir says that it does not do one.
async fn same_statements(case: &Case, number: usize, weir: &Session, postgres: &Session) -> bool {
    for step in &case.steps {
        let statements = match step {
            Step::Create { sql, .. } => std::slice::from_ref(sql),
            Step::Change(statements) => statements.as_slice(),
            Step::Compare | Step::Checkpoint | Step::Restart { .. } => &[],
        };
        for statement in statements {
            let ours = weir.execute(statement).await;
            let theirs = postgres.execute(&for_postgres(statement).unwrap_or_default()).await;
            match (&ours, &theirs) {
                (Ok(ours), Ok(theirs)) => {
                    assert!(!is_change(statement) || ours == theirs, "case {number}: {statement}\nweir {ours} rows, PostgreSQL {theirs}");
                }
                (Err(ours), Err(theirs)) => assert_eq!(sql_state(ours), sql_state(theirs), "case {number}: {statement}"),
                (Err(ours), Ok(_)) if sql_state(ours).as_deref() == Some("0A000") => {
                    run::say(&format!("postgres generated: refused: {statement}: {}", describe(ours)));
                    return false;
                }
                (Err(ours), Ok(_)) => panic!("case {number}: {statement}\nPostgreSQL accepts it, weir says {}", describe(ours)),
                (Ok(_), Err(theirs)) => panic!("case {number}: {statement}\nweir accepts it, PostgreSQL says {}", describe(theirs)),
            }
        }
    }
    true
}

/// Compares every table and view of the case; returns how many.
async fn same_content(case: &Case, number: usize, weir: &Session, postgres: &Session) -> usize {
    weir.must("FLUSH").await;
    let names = case.readable();
    for name in &names {
        let query = format!("SELECT * FROM {name}");
        let expected = postgres.must_query(&query).await;
        let actual = weir.must_query(&query).await;
        if let Some(difference) = expected.difference(&actual, Comparison::AcrossSystems) {
            panic!("case {number}: {name} is not what PostgreSQL answers\n{difference}\n{}", case.statements().join(";\n"));
        }
    }
    names.len()
}

/// Whether the number of rows that the statement reports is part of its answer.
fn is_change(statement: &str) -> bool {
    ["INSERT", "UPDATE", "DELETE"].iter().any(|word| statement.starts_with(word))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regular_expressions_match_as_on_postgresql() {
    let reference = match Reference::start() {
        Ok(reference) => reference,
        Err(reason) => return run::skip("postgres regular expressions", &reason),
    };
    let mut random = run::random("postgres regular expressions");
    let server = Server::start(&settings(&[]));
    let weir = server.connect().await;
    let postgres = reference.database("regexes").await;
    let rounds = run::rounds(20, 1_000);
    let mut compared = 0;
    for _ in 0..rounds {
        let values: Vec<String> = (0..100)
            .map(|number| {
                let text: String = (0..random.below(9)).map(|_| ['a', 'b', 'a', 'b', 'c', ' '][random.below(6) as usize]).collect();
                format!("({number}, '{text}', '{}')", pattern(&mut random, 2))
            })
            .collect();
        let query = format!(
            "SELECT n, t, p, regexp_match(t, p)::text, substring(t, p), regexp_substr(t, p, 2, 2), regexp_count(t, p), t ~ p, \
             regexp_replace(t, p, '[\\&|\\1|\\2|\\3]', 'g') FROM (VALUES {}) AS v (n, t, p) ORDER BY n",
            values.join(", ")
        );
        let expected = match postgres.query(&query).await {
            Ok(expected) => expected,
            // One of the patterns is too much for it.
            Err(error) if sql_state(&error).as_deref() == Some("2201B") => continue,
            Err(error) => panic!("PostgreSQL says {}", describe(&error)),
        };
        let actual = weir.must_query(&query).await;
        if let Some(difference) = expected.difference(&actual, Comparison::AcrossSystems) {
            panic!("text and pattern do not match as on PostgreSQL\n{difference}");
        }
        compared += 1;
    }
    assert!(compared * 2 >= rounds, "only {compared} of {rounds} rounds were compared");
}

/// A pattern with groups up to `depth` deep.
fn pattern(random: &mut Random, depth: usize) -> String {
    let mut pattern = String::new();
    for branch in 0..=[0, 0, 0, 1, 2][random.below(5) as usize] {
        if branch > 0 {
            pattern.push('|');
        }
        for _ in 0..random.below(4) + u64::from(depth == 2) {
            match random.below(if depth > 0 { 12 } else { 8 }) {
                0..=2 => pattern.push('a'),
                3..=4 => pattern.push('b'),
                5 => pattern.push('.'),
                6 => pattern.push_str("[^a]"),
                7 => {
                    // Nothing repeats a condition.
                    pattern.push_str(["^", "$", r"\y", r"\m"][random.below(4) as usize]);
                    continue;
                }
                8 => pattern.push_str(&format!("(?:{})", self::pattern(random, depth - 1))),
                _ => pattern.push_str(&format!("({})", self::pattern(random, depth - 1))),
            }
            let quantifiers =
                ["", "", "", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{2}?", "{1,2}", "{1,2}?", "{0,2}", "{2,}", "{1,1}?", "{0}"];
            pattern.push_str(quantifiers[random.below(quantifiers.len() as u64) as usize]);
        }
    }
    pattern
}
