//! State as rows: of a running job, of a retained checkpoint, of a savepoint.

use crate::savepoints::{QUERIES, TABLES, change, check, refusal, rows, write};
use crate::server::{Server, Session, describe, settings, sql_state};

/// Of a running job and of savepoints, state shows what the rows amount to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_is_read_as_rows() {
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    session.must(TABLES).await;
    session.must("CREATE TABLE owners (id INT PRIMARY KEY, name TEXT); INSERT INTO owners VALUES (1, 'one'), (2, 'two')").await;
    for (view, query) in QUERIES {
        session.must(&format!("CREATE MATERIALIZED VIEW {view} AS {query}")).await;
    }
    session.must("CREATE MATERIALIZED VIEW owners_of AS SELECT amount, count(DISTINCT owner) AS n FROM accounts GROUP BY amount").await;
    write(&session, 0, 200).await;
    change(&session).await;
    session.must("FLUSH").await;
    session.must("SET parallelism = 3").await;
    session.must(&format!("CREATE MATERIALIZED VIEW wider AS {}", QUERIES[0].1)).await;
    let read = |sql: String| {
        let session = &session;
        async move { rows(session, &sql).await }
    };
    let totals = read("SELECT owner, CAST(sum(amount) AS BIGINT) FROM accounts GROUP BY owner".into()).await;
    assert!(totals.len() > 3, "{totals:?}");
    for view in ["totals", "wider"] {
        let state = format!("state('{view}', 'aggregate(owner)')");
        assert_eq!(read(format!("SELECT owner, CAST(sum_amount AS BIGINT) FROM {state}")).await, totals, "{view}");
        // MAX keeps each value with its count, the greatest first.
        assert_eq!(
            read(format!("SELECT * FROM state('{view}', 'aggregate(owner)', 'counts of amount')")).await,
            read("SELECT owner, amount, count(*) FROM accounts GROUP BY owner, amount".into()).await
        );
        assert_eq!(
            read(format!(
                "SELECT name, CAST(s.sum_amount AS BIGINT) FROM {state} AS s JOIN owners ON s.owner = owners.id WHERE s.owner < 2"
            ))
            .await,
            read(
                "SELECT name, CAST(sum(amount) AS BIGINT) FROM accounts JOIN owners ON owner = owners.id WHERE owner < 2 GROUP BY name"
                    .into()
            )
            .await
        );
    }
    assert_eq!(
        read("SELECT * FROM state('owners_of', 'aggregate(amount)', 'counts of owner')".into()).await,
        read("SELECT amount, owner, count(*) FROM accounts GROUP BY amount, owner".into()).await
    );
    // Rows with a key are themselves; rows without have a count.
    for (view, query) in &QUERIES[..2] {
        assert_eq!(read(format!("SELECT * FROM state('{view}', '{view}/rows')")).await, read((*query).into()).await, "{view}");
    }
    let amounts = read("SELECT amount, count(*) FROM accounts GROUP BY amount".into()).await;
    assert_eq!(read("SELECT * FROM state('amounts', 'amounts/rows', 'rows')".into()).await, amounts);

    // A savepoint shows what was, also when the view is gone.
    session.must("CREATE SAVEPOINT of_totals FOR totals; CREATE SAVEPOINT of_amounts FOR amounts").await;
    session.must("DROP MATERIALIZED VIEW sizes; DROP MATERIALIZED VIEW totals; DROP MATERIALIZED VIEW amounts").await;
    write(&session, 500, 50).await;
    let saved = "SELECT owner, CAST(sum_amount AS BIGINT) FROM savepoint_state('of_totals', 'aggregate(owner)')";
    assert_eq!(read(saved.into()).await, totals);
    let folder =
        read("SHOW SAVEPOINTS".into()).await.into_iter().find(|row| row[0] == "of_amounts").map(|row| row[5].clone()).unwrap_or_default();
    assert_eq!(read(format!("SELECT * FROM savepoint_state('{folder}', 'amounts/rows')")).await, amounts);

    for (sql, code, text) in [
        ("SELECT * FROM state('nothing', 'u')", "42704", "\"wider\""),
        ("SELECT * FROM state('wider', 'u')", "42704", "\"aggregate(owner)\""),
        ("SELECT * FROM state('wider', 'aggregate(owner)', 'other')", "42704", "\"counts of amount\""),
        ("SELECT * FROM savepoint_state('nothing', 'u')", "42704", "nothing"),
        ("SELECT * FROM state('wider')", "22023", "state('job', 'uid'"),
        ("SELECT * FROM state('wider', 'aggregate(owner)') AS OF CHECKPOINT 7 AS s", "42704", "There are: "),
        (
            "SELECT * FROM savepoint_state('of_totals', 'aggregate(owner)') AS OF CHECKPOINT 7",
            "22023",
            "savepoint_state('savepoint', 'uid'",
        ),
        ("SELECT round(amount) AS OF CHECKPOINT 7 FROM accounts", "42601", "CHECKPOINT"),
        ("CREATE MATERIALIZED VIEW bad AS SELECT * FROM state('wider', 'aggregate(owner)')", "0A000", "state(...)"),
        ("CREATE VIEW bad AS SELECT * FROM state('wider', 'aggregate(owner)')", "0A000", "state(...)"),
    ] {
        let (found, message) = refusal(&session, sql).await;
        assert!(found == code && message.contains(text), "{sql}: {message}");
    }
}

/// The retained checkpoints, as SHOW CHECKPOINTS has them.
async fn retained(session: &Session) -> Vec<u64> {
    let shown = rows(session, "SELECT DISTINCT checkpoint FROM weir_checkpoints WHERE retained").await;
    let mut numbers: Vec<u64> = shown.iter().map(|row| row[0].parse().expect("a number")).collect();
    numbers.sort_unstable();
    numbers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_is_read_as_of_a_retained_checkpoint() {
    let mut server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "1 h"), ("checkpoints_retained", "2")]));
    let mut session = server.connect().await;
    session.must(TABLES).await;
    session.must(&format!("CREATE MATERIALIZED VIEW totals AS {}", QUERIES[0].1)).await;
    let totals = "SELECT owner, CAST(sum(amount) AS BIGINT) FROM accounts GROUP BY owner";
    let mut known: Vec<(u64, Vec<Vec<String>>)> = Vec::new();
    for round in 0..4 {
        write(&session, 100 * round, 50).await;
        change(&session).await;
        session.must("CHECKPOINT").await;
        let number = session.must_count("SELECT max(checkpoint) FROM weir_checkpoints WHERE state = 'completed'").await as u64;
        known.push((number, rows(&session, totals).await));
    }
    let numbers: Vec<u64> = known.iter().map(|(number, _)| *number).collect();
    assert_eq!(retained(&session).await, numbers[2..]);
    let shown = session.must_query("SHOW CHECKPOINTS").await;
    let marked = shown.rows.iter().filter(|row| row.last().is_some_and(|retained| retained.as_deref() == Some("t"))).count();
    assert_eq!(marked, 2, "{:?}", shown.rows);
    write(&session, 1000, 50).await;
    for restarted in [false, true] {
        if restarted {
            server.kill();
            server.restart();
            session = server.connect().await;
            check(&session, "totals", QUERIES[0].1).await;
            assert_eq!(retained(&session).await, numbers[2..], "after a restart");
        }
        for (number, expected) in &known[2..] {
            let state = format!("state('totals', 'aggregate(owner)', 'groups') AS OF CHECKPOINT {number}");
            let sql = format!("SELECT s.owner, CAST(s.sum_amount AS BIGINT) FROM {state} AS s WHERE s.rows > 0");
            assert_eq!(rows(&session, &sql).await, *expected, "checkpoint {number}");
            // Beside another one in the same statement, and prepared. The present state would be a checkpoint more, and an old one less.
            let other = format!("state('totals', 'aggregate(owner)') AS OF CHECKPOINT {}", numbers[3]);
            let both = format!("SELECT count(*) FROM {state} AS a JOIN {other} AS b ON a.owner = b.owner");
            assert!(session.must_query(&both).await.rows.len() == 1);
        }
        let (code, text) =
            refusal(&session, &format!("SELECT * FROM state('totals', 'aggregate(owner)') AS OF CHECKPOINT {}", numbers[0])).await;
        assert!(code == "42704" && text.contains(&format!("There are: {}", numbers[2])), "{text}");
        // Reading made no checkpoint, and took none away.
        assert_eq!(retained(&session).await, numbers[2..]);
        assert_eq!(session.must_count("SELECT max(checkpoint) FROM weir_checkpoints").await as u64, numbers[3]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_of_one_column_have_names_and_sizes_of_their_own() {
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    session.must(TABLES).await;
    write(&session, 0, 200).await;
    let query = "SELECT owner, max(amount) AS a, min(amount) AS b, count(DISTINCT amount) AS c, max(amount) FILTER (WHERE id % 2 = 0) AS d,
        max(amount) FILTER (WHERE id > 100) AS e FROM accounts GROUP BY owner";
    session.must(&format!("CREATE MATERIALIZED VIEW v AS {query}")).await;
    session.must("CREATE SAVEPOINT sp FOR v").await;
    let described: Vec<Vec<String>> =
        rows(&session, "DESCRIBE SAVEPOINT sp").await.into_iter().filter(|row| row[0] == "aggregate(owner)").collect();
    let names: std::collections::BTreeSet<&str> = described.iter().map(|row| row[1].as_str()).collect();
    assert!(described.len() == 6 && names.len() == 6, "{described:?}");
    for row in &described {
        let counted = session
            .must_count(&format!("SELECT count(*) FROM savepoint_state('sp', 'aggregate(owner)', '{}')", row[1].replace('\'', "''")))
            .await;
        assert_eq!(row[5], counted.to_string(), "{row:?}");
        assert!(row[6].parse::<u64>().expect("bytes") > 0 && row[7] == "0..64, 64..128", "{row:?}");
    }
    let filtered = "SELECT count(*) FROM (SELECT DISTINCT owner, amount FROM accounts WHERE id > 100) AS d";
    let sizes: Vec<i64> = described.iter().map(|row| row[5].parse().expect("rows")).collect();
    assert!(sizes.contains(&session.must_count(filtered).await), "{described:?}");
}

/// Over the extended protocol, and of a job that has only begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_is_read_by_prepared_statements() {
    let mut server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    session.must(TABLES).await;
    session.must(&format!("CREATE MATERIALIZED VIEW totals AS {}", QUERIES[0].1)).await;
    write(&session, 0, 100).await;
    session.must("CREATE SAVEPOINT sp FOR totals").await;
    for from in ["state('totals', 'aggregate(owner)')", "savepoint_state('sp', 'aggregate(owner)')"] {
        let sql = format!("SELECT owner, rows FROM {from} WHERE owner < $1 ORDER BY owner");
        let statement = session.client().prepare(&sql).await.unwrap_or_else(|e| panic!("{sql}\n{}", describe(&e)));
        let names: Vec<&str> = statement.columns().iter().map(|column| column.name()).collect();
        assert_eq!(names, ["owner", "rows"]);
        let found = session.client().query(&statement, &[&3_i32]).await.unwrap_or_else(|e| panic!("{sql}\n{}", describe(&e)));
        let found: Vec<(i32, i64)> = found.iter().map(|row| (row.get(0), row.get(1))).collect();
        assert_eq!(found, [(0, 15), (1, 15), (2, 14)]);
    }
    let error = session.client().prepare("SELECT * FROM state('nobody', 'u')").await.expect_err("there is no such job");
    assert_eq!(sql_state(&error).as_deref(), Some("42704"));
    // Right after a start jobs are on their way.
    for _ in 0..3 {
        server.kill();
        server.restart();
        let session = server.connect().await;
        assert_eq!(session.must_count("SELECT count(*) FROM state('totals', 'aggregate(owner)')").await, 7);
    }
}

/// While a view is replaced by another of its name, its state is there to be read all the time: of the one or of the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_is_read_while_the_job_is_replaced() {
    let server = Server::start(&settings(&[("parallelism", "2")]));
    let session = server.connect().await;
    session.must(TABLES).await;
    let queries = [
        "SELECT owner, count(*) AS n FROM accounts GROUP BY owner",
        "SELECT owner, count(*) AS n, sum(amount) AS s FROM accounts GROUP BY owner",
    ];
    session.must(&format!("CREATE MATERIALIZED VIEW totals AS {}", queries[0])).await;
    write(&session, 0, 100).await;
    let changing = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let (changer, done) = (server.connect().await, changing.clone());
    let changer = tokio::spawn(async move {
        for round in 0..8 {
            changer.must(&format!("ALTER MATERIALIZED VIEW totals AS {}", queries[(round + 1) % 2])).await;
        }
        done.store(false, std::sync::atomic::Ordering::SeqCst);
    });
    while changing.load(std::sync::atomic::Ordering::SeqCst) && !changer.is_finished() {
        assert_eq!(session.must_count("SELECT count(*) FROM state('totals', 'aggregate(owner)')").await, 7);
    }
    changer.await.expect("the view is changed");
}
