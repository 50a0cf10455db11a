//! Sessions that change the catalog at a time: in whatever order their commits come, nothing depends on what is gone, and what is refused is refused as
//! PostgreSQL would.

use weir_catalog::{Error, Object};

use crate::embedded::Embedded;
use crate::run;
use crate::server::PATIENCE;

/// What a session that came second may be told.
const REFUSALS: [&str; 7] = ["40001", "2BP01", "42P01", "42P07", "42P17", "0A000", "25P02"];

async fn open(dir: &tempfile::TempDir) -> Embedded {
    Embedded::open(&dir.path().join("data"), &[("parallelism", "1")]).await
}

fn code(result: Result<Vec<Vec<Option<String>>>, Error>) -> String {
    result.map_or_else(|error| format!("{} {error}", error.code()), |_| "00000".to_string())
}

/// Whether everything is there that an object depends on, and every object can be read.
async fn check(weir: &mut Embedded, what: &str) {
    let catalog = weir.engine.catalog();
    for object in catalog.objects() {
        for input in object.depends_on() {
            assert!(catalog.get_id(input).is_some(), "{what}: {} depends on {input}, which is gone", object.name());
        }
    }
    for object in catalog.objects() {
        let is_read = match object.as_ref() {
            Object::StoredTable(_) | Object::View(_) => true,
            Object::ConnectorTable(_) => false,
            Object::Job(job) => matches!(job.kind, weir_catalog::JobKind::MaterializedView { .. }),
        };
        if is_read {
            let sql = format!("SELECT count(*) FROM {}", object.name());
            let answer = tokio::time::timeout(PATIENCE, weir.run(&sql)).await.unwrap_or_else(|_| panic!("{what}: {sql}: no answer"));
            answer.unwrap_or_else(|error| panic!("{what}: {sql}\n{error:?}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_that_drops_and_a_block_that_depends_do_not_both_commit() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = open(&dir).await;
    let mut other = weir.again();
    for dependant in
        ["VIEW w AS SELECT * FROM v", "MATERIALIZED VIEW w AS SELECT * FROM v", "SINK w WITH (connector = 'blackhole') AS SELECT * FROM v"]
    {
        for drops_first in [true, false] {
            let what = format!("{dependant}, drops first: {drops_first}");
            weir.must("CREATE TABLE t (a INT); INSERT INTO t VALUES (1); CREATE VIEW v AS SELECT a FROM t").await;
            weir.must("BEGIN; DROP VIEW v").await;
            other.must(&format!("BEGIN; CREATE {dependant}")).await;
            let (first, second) = if drops_first { (&mut weir, &mut other) } else { (&mut other, &mut weir) };
            assert_eq!(code(first.run("COMMIT").await), "00000", "{what}");
            let refused = second.run("COMMIT").await.expect_err(&what);
            assert_eq!(refused.code().as_str(), if drops_first { "40001" } else { "2BP01" }, "{what}: {refused}");
            check(&mut weir, &what).await;
            assert_eq!(weir.engine.catalog().get("v").is_none(), drops_first, "{what}");
            assert_eq!(weir.engine.catalog().get("w").is_none(), drops_first, "{what}");
            weir.must("DROP TABLE t CASCADE").await;
        }
    }
    weir.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_over_a_table_that_another_session_drops_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = open(&dir).await;
    let mut other = weir.again();
    weir.must("CREATE TABLE t (a INT)").await;
    weir.must("BEGIN; CREATE MATERIALIZED VIEW m AS SELECT a FROM t").await;
    other.must("DROP TABLE t").await;
    let refused = weir.run("COMMIT").await.expect_err("its table is gone");
    assert_eq!(refused.code().as_str(), "40001", "{refused}");
    assert!(!refused.to_string().contains("id 1"), "{refused}");
    // Both drop the same: the second finds nothing to drop.
    weir.must("CREATE TABLE t (a INT)").await;
    weir.must("BEGIN; DROP TABLE t").await;
    other.must("DROP TABLE t").await;
    assert_eq!(weir.run("COMMIT").await.expect_err("it is gone").code().as_str(), "40001");
    // A block that goes on learns it at its next statement.
    weir.must("CREATE TABLE t (a INT)").await;
    weir.must("BEGIN; CREATE VIEW v AS SELECT a FROM t").await;
    other.must("DROP TABLE t").await;
    assert_eq!(weir.run("SELECT 1").await.expect_err("its view dangles").code().as_str(), "40001");
    weir.must("ROLLBACK").await;
    check(&mut weir, "in the end").await;
    weir.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_view_that_a_job_is_planned_with_is_the_one_that_it_keeps() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = open(&dir).await;
    let mut other = weir.again();
    weir.must("CREATE TABLE t (a INT); INSERT INTO t VALUES (1); CREATE VIEW v AS SELECT a FROM t").await;
    // The job is planned with a view that another session then replaces.
    weir.must("BEGIN; CREATE MATERIALIZED VIEW m AS SELECT sum(a) AS s FROM v").await;
    other.must("CREATE OR REPLACE VIEW v AS SELECT a + 100 AS a FROM t").await;
    assert_eq!(weir.run("COMMIT").await.expect_err("its plan is not that of its text").code().as_str(), "40001");
    weir.must("CREATE MATERIALIZED VIEW m AS SELECT sum(a) AS s FROM v").await;
    let refused = weir.run("CREATE OR REPLACE VIEW v AS SELECT a AS a FROM t").await.expect_err("m runs with it");
    assert_eq!(refused.code().as_str(), "0A000", "{refused}");
    drop(other);
    weir.close().await;
    let mut weir = open(&dir).await;
    weir.must("INSERT INTO t VALUES (2); FLUSH").await;
    assert_eq!(weir.count("SELECT s FROM m").await, 203);
    weir.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_order_of_sessions_leaves_a_dependant_without_what_it_depends_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = open(&dir).await;
    let mut random = run::random("concurrent ddl");
    let rounds = run::rounds(40, 1_000);
    let (mut done, mut refused) = (0, 0);
    for round in 0..rounds {
        weir.must("CREATE TABLE IF NOT EXISTS t (a INT); CREATE VIEW IF NOT EXISTS v AS SELECT a FROM t").await;
        let scripts: Vec<Vec<String>> = (0..3).map(|_| script(&mut random)).collect();
        let sessions: Vec<_> = scripts
            .iter()
            .cloned()
            .map(|script| {
                let mut session = weir.again();
                tokio::spawn(async move {
                    let mut answers = Vec::new();
                    for statement in script {
                        let answer = tokio::time::timeout(PATIENCE, session.run(&statement)).await;
                        answers.push(code(answer.unwrap_or_else(|_| panic!("no answer: {statement}"))));
                    }
                    answers
                })
            })
            .collect();
        let what = format!("round {round}: {scripts:#?}");
        for session in sessions {
            for answer in session.await.expect("no session panics") {
                match answer.as_str() {
                    "00000" => done += 1,
                    other if REFUSALS.iter().any(|code| other.starts_with(code)) => refused += 1,
                    other => panic!("{what}\n{other}"),
                }
            }
        }
        check(&mut weir, &what).await;
    }
    run::say(&format!("concurrent ddl: {rounds} rounds, {done} statements done, {refused} refused"));
    assert!(done > rounds && refused > 0);
    let count = weir.engine.catalog().objects().count();
    weir.close().await;
    let mut weir = open(&dir).await;
    assert_eq!(weir.engine.catalog().objects().count(), count);
    check(&mut weir, "after a restart").await;
    weir.engine.shutdown().await;
}

/// One to three statements on few names, in a block or each on its own.
fn script(random: &mut weir::seams::random::Random) -> Vec<String> {
    let statements = [
        "CREATE TABLE IF NOT EXISTS t (a INT)",
        "INSERT INTO t VALUES (1)",
        "CREATE VIEW v AS SELECT a FROM t",
        "CREATE OR REPLACE VIEW v AS SELECT a + 1 AS a FROM t",
        "CREATE OR REPLACE VIEW v AS SELECT a FROM w",
        "CREATE VIEW w AS SELECT a FROM v",
        "CREATE MATERIALIZED VIEW m AS SELECT count(*) AS n FROM t",
        "CREATE MATERIALIZED VIEW n AS SELECT a FROM v",
        "CREATE MATERIALIZED VIEW o AS SELECT a FROM n",
        "CREATE SINK s WITH (connector = 'blackhole') AS SELECT a FROM w",
        "DROP VIEW v",
        "DROP VIEW v CASCADE",
        "DROP VIEW w CASCADE",
        "DROP TABLE t",
        "DROP TABLE t CASCADE",
        "DROP MATERIALIZED VIEW m",
        "DROP MATERIALIZED VIEW n CASCADE",
        "DROP SINK s",
    ];
    let count = 1 + random.below(3);
    let mut script: Vec<String> = (0..count).map(|_| statements[random.below(statements.len() as u64) as usize].to_string()).collect();
    if random.below(2) == 0 {
        script.insert(0, "BEGIN".into());
        script.push("COMMIT".into());
    }
    script
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_can_be_altered_as_soon_as_it_is_in_the_catalog() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = open(&dir).await;
    weir.must("CREATE TABLE t (a INT); INSERT INTO t VALUES (1), (1), (2)").await;
    for round in 0..run::rounds(10, 100) {
        let mut creator = weir.again();
        let creating = creator.run("CREATE MATERIALIZED VIEW m AS SELECT a, count(*) AS n FROM t GROUP BY a");
        let altering = async {
            while weir.engine.catalog().get("m").is_none() {
                tokio::time::sleep(std::time::Duration::from_micros(200)).await;
            }
            weir.run("ALTER MATERIALIZED VIEW m AS SELECT a, count(*) * 10 AS n FROM t GROUP BY a").await
        };
        let both = async { tokio::join!(creating, altering) };
        // Whether the creator heard of its first version before it was replaced does not matter here.
        let (_, altered) = tokio::time::timeout(PATIENCE, both).await.unwrap_or_else(|_| panic!("round {round}: no answer"));
        assert_eq!(code(altered), "00000", "round {round}");
        assert_eq!(weir.count("SELECT sum(n) FROM m").await, 30, "round {round}");
        weir.must("DROP MATERIALIZED VIEW m").await;
    }
    weir.engine.shutdown().await;
}
