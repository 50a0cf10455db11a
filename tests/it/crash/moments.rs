//! kill -9 aimed at moments that a random one seldom meets: a checkpoint under way, a backfill, a DROP, a transaction that makes tables.
//!
//! Each round sends one statement while others write, and kills the server while it is being worked on. After the next start, before anything
//! else and without FLUSH:
//! - what the writers were told is there, as [`super`] says;
//! - the statement has happened if it was acknowledged, and else either wholly or not at all;
//! - every view shows the batch answer of its query;
//! - the catalog and the jobs agree, and everything in the catalog can be read;
//! - the data folder holds the files of retained checkpoints and the state of jobs that there are, and nothing more.
//!
//! Checkpoints come only when they are asked for, so that the last one is known.

use std::path::Path;
use std::time::Instant;

use super::*;
use crate::server::PATIENCE;

/// Clients that write at the same time.
const WRITERS: usize = 2;
/// Rows of the table `big`.
const BIG_ROWS: u64 = 40_000;

/// When to kill the server.
enum Aim {
    /// So long after the statement was sent.
    After(Duration),
    /// So long after this query has first returned a row; at once if the statement ends before.
    Seen(String, Duration),
}

/// A server under writers that is killed again and again.
struct Scene {
    test: &'static str,
    random: Random,
    server: Server,
    made: Made,
    ledgers: Vec<Ledger>,
    /// Whether there is a table `big` whose rows change all the time.
    has_big: bool,
    kills: usize,
    /// Kills before the statement was acknowledged.
    hits: usize,
    /// How far kills are aimed, as a part of the time that a statement takes: it follows what was met, so that about half of them come before the
    /// acknowledgement and near it, however fast the machine is at the time.
    reach: f64,
}

impl Scene {
    async fn start(test: &'static str) -> Scene {
        let random = run::random(test);
        let server = Server::start(&settings(&[("parallelism", "2"), ("checkpoint_interval", "0 s"), ("barrier_interval", "50 ms")]));
        let mut scene = Scene {
            test,
            random,
            server,
            made: Made::default(),
            ledgers: vec![Ledger::default(); WRITERS],
            has_big: false,
            kills: 0,
            hits: 0,
            reach: 1.0,
        };
        let session = scene.server.connect().await;
        make_tables(&session, WRITERS).await;
        // A view, and one over it: a group of two.
        for view in &VIEWS[..2] {
            scene.create(&session, view).await;
        }
        scene
    }

    async fn create(&mut self, session: &Session, sql: &str) {
        session.must(sql).await;
        self.made.note(sql);
    }

    /// Makes `big`, and a view with a row for each of its rows.
    async fn make_big(&mut self, session: &Session) {
        session.must("CREATE TABLE big (id BIGINT PRIMARY KEY, g BIGINT NOT NULL, v BIGINT NOT NULL)").await;
        let first: Vec<String> = (0..1_000).map(|id| format!("({id}, {}, {id})", id % 500)).collect();
        session.must(&format!("INSERT INTO big VALUES {}", first.join(", "))).await;
        let mut rows = 1_000;
        while rows < BIG_ROWS {
            let more = rows.min(BIG_ROWS - rows);
            session.must(&format!("INSERT INTO big SELECT id + {rows}, g, v + 1 FROM big WHERE id < {more}")).await;
            rows += more;
        }
        self.create(session, "CREATE MATERIALIZED VIEW wide AS SELECT id, g, v * 2 AS twice FROM big").await;
        self.has_big = true;
    }

    /// Sends `statement` while others write, kills the server at the moment aimed at, starts it again and checks everything that does not depend on the
    /// statement. Returns whether the statement was acknowledged, and a session on the new start.
    async fn kill_during(&mut self, statement: &str, aim: Aim) -> (bool, Session) {
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<JoinHandle<Ledger>> = (std::mem::take(&mut self.ledgers).into_iter().enumerate())
            .map(|(writer, ledger)| {
                let random = Random::seeded(self.random.next_u64());
                tokio::spawn(write(self.server.address(), writer, ledger, random, stop.clone()))
            })
            .collect();
        let changing =
            self.has_big.then(|| tokio::spawn(change_big(self.server.address(), Random::seeded(self.random.next_u64()), stop.clone())));
        let (session, watcher) = (self.server.connect().await, self.server.connect().await);
        tokio::time::sleep(Duration::from_millis(20 + self.random.below(60))).await;
        let text = statement.to_string();
        let statement_task = tokio::spawn(async move { session.execute(&text).await });
        match aim {
            Aim::After(delay) => pause(delay).await,
            Aim::Seen(query, delay) => {
                while !statement_task.is_finished() {
                    let seen = watcher.text_rows(&query).await.unwrap_or_else(|e| panic!("{query}\n{}", describe(&e)));
                    if !seen.is_empty() {
                        pause(delay).await;
                        break;
                    }
                }
            }
        }
        self.server.kill();
        stop.store(true, Ordering::SeqCst);
        for writer in writers {
            self.ledgers.push(writer.await.expect("a writer does not panic"));
        }
        if let Some(changing) = changing {
            changing.await.expect("who changes rows does not panic");
        }
        let acknowledged = match statement_task.await.expect("a statement does not panic") {
            Ok(_) => true,
            Err(e) => {
                assert!(sql_state(&e).is_none(), "{statement}\n{}", describe(&e));
                false
            }
        };
        self.kills += 1;
        self.hits += usize::from(!acknowledged);
        self.reach = (self.reach * if acknowledged { 0.5 } else { 1.5 }).clamp(0.02, 4.0);
        if self.random.below(3) == 0 {
            self.server.set("parallelism", &(1 + self.random.below(3)).to_string());
        }
        self.server.restart();
        let session = self.server.connect().await;
        verify(&session, &mut self.ledgers, self.kills).await;
        self.check_views(&session).await;
        check_catalog(&session).await;
        check_folder(self.server.data_dir(), &session).await;
        (acknowledged, session)
    }

    /// A moment within a statement that takes `whole` where nothing else goes on.
    fn within(&mut self, whole: Duration) -> Duration {
        whole.mul_f64(self.reach * 1.5 * self.random.next_f64())
    }

    async fn check_views(&self, session: &Session) {
        let (problems, with_rows) = self.made.check(session).await;
        assert!(problems.is_empty(), "{}, kill {}:\n{}", self.test, self.kills, problems.join("\n"));
        assert!(with_rows > 0, "{}, kill {}: no view has rows", self.test, self.kills);
    }

    /// Says what was met. Too few kills that met the statement show too little.
    fn end(self) {
        run::say(&format!("{}: {} kills, {} before the acknowledgement", self.test, self.kills, self.hits));
        assert!(self.hits * 6 >= self.kills, "{}: only {} of {} kills met the statement", self.test, self.hits, self.kills);
    }
}

/// Waits for `delay`; a time so short that a timer would miss it by more is none.
async fn pause(delay: Duration) {
    if delay >= Duration::from_millis(1) {
        tokio::time::sleep(delay).await;
    }
}

/// Changes rows of `big`, one after another, until the connection breaks. Their number stays.
async fn change_big(address: std::net::SocketAddr, mut random: Random, stop: Arc<AtomicBool>) {
    let Ok(session) = Session::open(address).await else { return };
    while !stop.load(Ordering::SeqCst) {
        let id = random.below(BIG_ROWS);
        if let Err(e) = session.execute(&format!("UPDATE big SET v = v + 3, g = (g + 7) % 500 WHERE id = {id}")).await {
            assert!(sql_state(&e).is_none(), "changing rows: {}", describe(&e));
            return;
        }
    }
}

/// The names that a system view lists.
async fn names(session: &Session, sql: &str) -> BTreeSet<String> {
    let rows = session.text_rows(sql).await.unwrap_or_else(|e| panic!("{sql}\n{}", describe(&e)));
    rows.into_iter().map(|mut row| row.swap_remove(0).expect("a relation has a name")).collect()
}

async fn relations(session: &Session) -> BTreeSet<String> {
    names(session, "SELECT name FROM weir_relations").await
}

/// Nothing is half made: each job is in the catalog and runs, each of the catalog's has a job, and whatever has rows can be read.
async fn check_catalog(session: &Session) {
    let in_catalog = names(session, "SELECT name FROM weir_relations WHERE kind IN ('materialized view', 'sink', 'job')").await;
    let running = names(session, "SELECT name FROM weir_jobs WHERE state <> 'failed'").await;
    assert_eq!(in_catalog, running, "the catalog's jobs and those that run");
    for name in names(session, "SELECT name FROM weir_relations WHERE kind IN ('table', 'view', 'materialized view')").await {
        session.must_count(&format!("SELECT count(*) FROM {name}")).await;
    }
}

/// The files of the data folder are those that the retained manifests name, and its running state is that of jobs that there are.
async fn check_folder(data_dir: &Path, session: &Session) {
    let left = strays(data_dir, &names(session, "SELECT CAST(id AS TEXT) FROM weir_jobs").await);
    assert!(left.is_empty(), "nothing needs these files and folders of the data folder: {left:?}");
}

/// Files of checkpoints that no manifest names, and folders of state whose job is not among `jobs`.
fn strays(data_dir: &Path, jobs: &BTreeSet<String>) -> Vec<String> {
    let checkpoints = data_dir.join("checkpoints");
    let manifests: String = entries(&checkpoints)
        .iter()
        .filter(|name| name.starts_with("MANIFEST-"))
        .map(|name| std::fs::read_to_string(checkpoints.join(name)).unwrap_or_default())
        .collect();
    let mut left: Vec<String> =
        entries(&checkpoints.join("files")).into_iter().filter(|name| !manifests.contains(&format!("\"{name}\""))).collect();
    let of_no_job = |name: &String| name.split_once('-').is_some_and(|(job, run)| is_number(job) && is_number(run) && !jobs.contains(job));
    left.extend(entries(&data_dir.join("scratch")).into_iter().filter(of_no_job));
    left
}

fn is_number(text: &str) -> bool {
    text.parse::<u64>().is_ok()
}

/// The names in a folder; none where it does not exist.
fn entries(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// How long `sql` takes when nothing kills it.
async fn time_of(session: &Session, sql: &str) -> Duration {
    let started = Instant::now();
    session.must(sql).await;
    started.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_during_a_checkpoint_leaves_the_one_before_or_it() {
    let mut scene = Scene::start("crash during a checkpoint").await;
    let session = scene.server.connect().await;
    scene.make_big(&session).await;
    scene
        .create(
            &session,
            "CREATE MATERIALIZED VIEW per_g AS SELECT g, count(*) AS n, sum(v) AS total, min(v) AS lowest FROM big GROUP BY g",
        )
        .await;
    session.must("CHECKPOINT").await;
    session.must("UPDATE big SET v = v + 1 WHERE id % 5 = 0").await;
    let whole = time_of(&session, "CHECKPOINT").await;
    drop(session);
    for round in 0..run::rounds(12, 150) {
        let session = scene.server.connect().await;
        session.must(&format!("UPDATE big SET v = v + 1, g = (g + 1) % 500 WHERE id % 5 = {}", round % 5)).await;
        drop(session);
        let aim = match round % 2 {
            0 => Aim::Seen("SELECT 1 FROM weir_checkpoints WHERE state = 'in progress'".into(), scene.within(whole / 3)),
            _ => Aim::After(scene.within(whole)),
        };
        scene.kill_during("CHECKPOINT", aim).await;
        // Every other time a checkpoint is whole before the next is killed.
        if round % 2 == 0 {
            scene.server.connect().await.must("CHECKPOINT").await;
        }
    }
    scene.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_killed_during_its_backfill_is_there_whole_or_not_at_all() {
    let mut scene = Scene::start("crash during a backfill").await;
    let session = scene.server.connect().await;
    scene.make_big(&session).await;
    session.must("CHECKPOINT").await;
    let of_table = "SELECT g, count(*) AS n, sum(v) AS total, min(v) AS lowest, max(v) AS highest FROM big GROUP BY g";
    let of_view = "SELECT g, count(*) AS n, sum(twice) AS total, count(DISTINCT twice) AS different FROM wide GROUP BY g";
    let mut whole = Vec::new();
    for query in [of_table, of_view] {
        whole.push(time_of(&session, &format!("CREATE MATERIALIZED VIEW measured AS {query}")).await);
        session.must("DROP MATERIALIZED VIEW measured").await;
    }
    drop(session);
    for round in 0..run::rounds(12, 150) {
        let kind = round % 2;
        let name = format!("filled_{round}");
        let sql = format!("CREATE MATERIALIZED VIEW {name} AS {}", [of_table, of_view][kind]);
        let backfilling = format!("SELECT 1 FROM weir_jobs WHERE name = '{name}' AND state IN ('starting', 'backfilling')");
        let delay = scene.within(whole[kind]);
        let aim = if round % 3 == 0 { Aim::After(delay) } else { Aim::Seen(backfilling, delay / 2) };
        // If it is there after the kill, it is compared from the first moment on.
        scene.made.note(&sql);
        let (acknowledged, session) = scene.kill_during(&sql, aim).await;
        let exists = relations(&session).await.contains(&name);
        assert!(exists || !acknowledged, "kill {}: view {name} was acknowledged and is lost", scene.kills);
        if !exists {
            scene.create(&session, &sql).await;
            session.must("FLUSH").await;
            scene.check_views(&session).await;
        }
        if round % 4 == 0 {
            session.must("CHECKPOINT").await;
        }
        session.must(&format!("DROP MATERIALIZED VIEW {name}")).await;
        assert!(!relations(&session).await.contains(&name));
    }
    scene.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drop_that_is_killed_drops_everything_or_nothing() {
    const CHAIN: [&str; 6] = [
        "CREATE TABLE base (id BIGINT PRIMARY KEY, g BIGINT)",
        "CREATE MATERIALIZED VIEW first_view AS SELECT g, count(*) AS n FROM base GROUP BY g",
        "CREATE MATERIALIZED VIEW second_view AS SELECT n, count(*) AS groups FROM first_view GROUP BY n",
        "CREATE MATERIALIZED VIEW third_view AS SELECT sum(groups) AS groups FROM second_view",
        "CREATE VIEW plain_view AS SELECT g FROM first_view WHERE n > 1",
        "CREATE SINK last_sink WITH (connector = 'blackhole') AS SELECT n FROM second_view",
    ];
    const NAMES: [&str; 6] = ["base", "first_view", "second_view", "third_view", "plain_view", "last_sink"];
    /// What each statement drops, as places in [`NAMES`].
    const DROPS: [(&str, &[usize]); 4] = [
        ("DROP MATERIALIZED VIEW first_view CASCADE", &[1, 2, 3, 4, 5]),
        ("DROP MATERIALIZED VIEW third_view", &[3]),
        ("DROP TABLE base CASCADE", &[0, 1, 2, 3, 4, 5]),
        ("DROP SINK last_sink", &[5]),
    ];
    let mut scene = Scene::start("crash during a drop").await;
    let mut whole = [Duration::ZERO; DROPS.len()];
    for round in 0..DROPS.len() + run::rounds(12, 200) {
        let session = scene.server.connect().await;
        let there = relations(&session).await;
        for (sql, name) in CHAIN.iter().zip(NAMES) {
            if !there.contains(name) {
                scene.create(&session, sql).await;
                if name == "base" {
                    let rows: Vec<String> = (0..200).map(|id| format!("({id}, {})", id % 17)).collect();
                    session.must(&format!("INSERT INTO base VALUES {}", rows.join(", "))).await;
                }
            }
        }
        if scene.random.below(2) == 0 {
            session.must("CHECKPOINT").await;
        }
        let which = round % DROPS.len();
        let (sql, dropped) = DROPS[which];
        let dropped: BTreeSet<&str> = dropped.iter().map(|place| NAMES[*place]).collect();
        if round < DROPS.len() {
            whole[which] = time_of(&session, sql).await;
            nothing_is_left(&scene, &session).await;
            continue;
        }
        drop(session);
        let aim = Aim::After(scene.within(whole[which]));
        let (acknowledged, session) = scene.kill_during(sql, aim).await;
        let there = relations(&session).await;
        let left: BTreeSet<&str> = dropped.iter().copied().filter(|name| there.contains(*name)).collect();
        assert!(left.is_empty() || left == dropped, "kill {}: {sql}: {left:?} are left of {dropped:?}", scene.kills);
        assert!(left.is_empty() || !acknowledged, "kill {}: {sql} was acknowledged, and {left:?} are back", scene.kills);
        for name in NAMES {
            assert!(dropped.contains(name) || there.contains(name), "kill {}: {sql} has taken {name} along", scene.kills);
        }
    }
    scene.end();
}

/// What a dropped job leaves in the data folder goes while the process runs, once the next checkpoints need it no more.
async fn nothing_is_left(scene: &Scene, session: &Session) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        session.must("CHECKPOINT").await;
        let left = strays(scene.server.data_dir(), &names(session, "SELECT CAST(id AS TEXT) FROM weir_jobs").await);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "these files and folders stay after a DROP: {left:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_makes_and_fills_tables_is_there_whole_or_not_at_all() {
    let mut scene = Scene::start("crash during a transaction").await;
    let transaction = |number: usize| {
        let rows: Vec<String> = (0..50).map(|id| format!("({id}, {})", id % 7)).collect();
        let (view, rows) = (view_over(number), rows.join(", "));
        format!(
            "BEGIN; CREATE TABLE made_{number} (id BIGINT PRIMARY KEY, g BIGINT); INSERT INTO made_{number} VALUES {rows}; {view}; \
             UPDATE made_{number} SET g = g + 1 WHERE id % 2 = 0; COMMIT"
        )
    };
    fn view_over(number: usize) -> String {
        format!("CREATE MATERIALIZED VIEW over_{number} AS SELECT g, count(*) AS n FROM made_{number} GROUP BY g")
    }
    let session = scene.server.connect().await;
    let whole = time_of(&session, &transaction(0)).await;
    drop(session);
    for number in 1..=run::rounds(12, 200) {
        scene.made.note(&view_over(number));
        let aim = Aim::After(scene.within(whole));
        let (acknowledged, session) = scene.kill_during(&transaction(number), aim).await;
        let there = relations(&session).await;
        let (table, view) = (there.contains(&format!("made_{number}")), there.contains(&format!("over_{number}")));
        assert_eq!(table, view, "kill {}: the transaction is torn", scene.kills);
        assert!(table || !acknowledged, "kill {}: an acknowledged transaction is lost", scene.kills);
        if table {
            let sum = session.must_count(&format!("SELECT sum(g) FROM made_{number}")).await;
            let expected = (0..50).map(|id| id % 7 + i64::from(id % 2 == 0)).sum::<i64>();
            assert_eq!(sum, expected, "kill {}: the transaction is torn", scene.kills);
            assert_eq!(session.must_count(&format!("SELECT sum(n) FROM over_{number}")).await, 50);
            session.must(&format!("DROP TABLE made_{number} CASCADE")).await;
        }
        if number % 3 == 0 {
            session.must("CHECKPOINT").await;
        }
    }
    scene.end();
}
