//! Generated tables, updates, queries and barriers: every view shows the batch answer of its query after FLUSH, and after kill -9 and a start
//! at another parallelism.
//!
//! Cases that failed are kept in `tests/it/random.regressions` and run first.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, RngSeed, TestError, TestRunner};

use crate::run;
use crate::server::{Server, describe, settings, sql_state};
use crate::views::Made;
use generator::{Case, Numbers, Step};

pub mod generator;

/// What the cases met.
#[derive(Debug, Default)]
struct Tally {
    cases: usize,
    views: usize,
    refused: usize,
    restarts: usize,
    comparisons_with_rows: usize,
}

/// The server that cases run on, one after another; a new one after a failure, which may have left anything behind.
struct Bench {
    runtime: tokio::runtime::Runtime,
    server: Option<Server>,
    tally: Tally,
}

fn numbers() -> impl Strategy<Value = Numbers> {
    let list = |length| vec(any::<u32>(), 0..length);
    (list(60), vec(list(120), 1..6), vec(list(80), 1..24)).prop_map(|(tables, views, steps)| Numbers { tables, views, steps })
}

#[test]
fn generated_views_show_the_batch_answer() {
    let name = "random";
    run::say(&format!("{name}: WEIR_TEST_SEED={}", run::seed()));
    let cases = run::rounds(40, 2_000);
    let config = Config {
        cases: cases as u32,
        rng_seed: RngSeed::Fixed(run::seed_of(name)),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/it/random.regressions"))),
        max_shrink_iters: 200,
        ..Config::default()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let bench = std::cell::RefCell::new(Bench { runtime, server: None, tally: Tally::default() });
    let outcome = TestRunner::new(config).run(&numbers(), |numbers| {
        let bench = &mut *bench.borrow_mut();
        bench.tally.cases += 1;
        let case = Case::build(&numbers, &format!("c{}_", bench.tally.cases));
        let Bench { runtime, server, tally } = bench;
        let running = server.get_or_insert_with(|| Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "1 s")])));
        runtime.block_on(run_case(&case, running, tally)).map_err(|problem| {
            *server = None;
            TestCaseError::fail(problem)
        })
    });
    let tally = bench.into_inner().tally;
    run::say(&format!("{name}: {tally:?}"));
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, numbers)) => panic!("{reason}\nthe simplest case that fails:\n{}", script(&Case::build(&numbers, ""))),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
    assert!(tally.refused * 10 <= tally.views, "more than one view in ten was refused: {tally:?}");
    assert!(tally.comparisons_with_rows >= cases && tally.restarts >= cases / 4, "the cases show too little: {tally:?}");
}

async fn run_case(case: &Case, server: &mut Server, tally: &mut Tally) -> Result<(), String> {
    let mut session = server.connect().await;
    let mut made = Made::default();
    let mut refused: Vec<String> = Vec::new();
    for step in &case.steps {
        match step {
            Step::Create { name, sql } => {
                if refused.iter().any(|other| sql.contains(other.as_str())) {
                    refused.push(name.clone());
                    continue;
                }
                let is_view = sql.starts_with("CREATE MATERIALIZED");
                tally.views += usize::from(is_view);
                match session.execute(sql).await {
                    Ok(_) => made.note(sql),
                    Err(e) if is_view && sql_state(&e).as_deref() == Some("0A000") => {
                        tally.refused += 1;
                        run::say(&format!("random: refused: {sql}: {}", describe(&e)));
                        refused.push(name.clone());
                    }
                    Err(e) => return Err(format!("{sql}\n{}", describe(&e))),
                }
            }
            Step::Change(statements) => {
                for statement in statements {
                    match session.execute(statement).await {
                        Ok(_) => {}
                        // A key that was used before.
                        Err(e) if sql_state(&e).as_deref() == Some("23505") && statements.len() == 1 => {}
                        Err(e) => return Err(format!("{statement}\n{}", describe(&e))),
                    }
                }
            }
            Step::Compare => {
                session.execute("FLUSH").await.map_err(|e| format!("FLUSH: {}", describe(&e)))?;
                compare(&made, &session, tally).await?;
            }
            Step::Checkpoint => {
                session.execute("CHECKPOINT").await.map_err(|e| format!("CHECKPOINT: {}", describe(&e)))?;
            }
            Step::Restart { parallelism } => {
                session.execute("FLUSH").await.map_err(|e| format!("FLUSH: {}", describe(&e)))?;
                let before = made.content(&session).await;
                server.kill();
                server.set("parallelism", &parallelism.to_string());
                server.try_restart()?;
                tally.restarts += 1;
                session = server.connect().await;
                let differences = before.differences(&made.content(&session).await);
                if !differences.is_empty() {
                    return Err(format!("after a restart at parallelism {parallelism}:\n{}", differences.join("\n")));
                }
                compare(&made, &session, tally).await?;
            }
        }
    }
    for statement in case.clean_up() {
        session.execute(&statement).await.map_err(|e| format!("{statement}\n{}", describe(&e)))?;
    }
    Ok(())
}

async fn compare(made: &Made, session: &crate::server::Session, tally: &mut Tally) -> Result<(), String> {
    let (problems, with_rows) = made.check(session).await;
    tally.comparisons_with_rows += with_rows;
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

/// The case as a script to read.
fn script(case: &Case) -> String {
    (case.steps.iter())
        .map(|step| match step {
            Step::Create { sql, .. } => format!("{sql};"),
            Step::Change(statements) => format!("{};", statements.join("; ")),
            Step::Compare => "FLUSH; -- and compare".to_string(),
            Step::Checkpoint => "CHECKPOINT;".to_string(),
            Step::Restart { parallelism } => format!("-- kill -9, start with parallelism {parallelism}"),
        })
        .collect::<Vec<_>>()
        .join("\n")
}
