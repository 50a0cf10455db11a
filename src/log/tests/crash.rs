//! Power loss at every change of the disk, with seeds that are fixed: what was acknowledged is there, once, and nothing is half there.

use super::*;
use crate::seams::files::LossyFiles;

/// What a script has been told, and what it was doing when the power went off.
#[derive(Default)]
struct Told {
    /// Acknowledged, in order.
    acknowledged: Vec<String>,
    /// Asked for and not answered.
    open: Option<String>,
}

fn tiny_segments() -> LogSettings {
    LogSettings { segment_bytes: 1500, tail_bytes: 1000, limit_bytes: 1 << 30 }
}

/// Opens the log and makes commits, snapshots and truncations until something fails or it is through.
fn run_script(files: &LossyFiles, dir: &Path, told: &mut Told) -> Result<()> {
    let (log, _) = EngineLog::open(Arc::new(files.clone()), dir, tiny_segments())?;
    let users = table(16_384, "users", true);
    let mut append = |changes: Changes, name: String| -> Result<()> {
        told.open = Some(name.clone());
        log.append(changes).wait()?;
        told.open = None;
        told.acknowledged.push(name);
        Ok(())
    };
    if log.catalog().get("users").is_none() {
        append(create_change(&users), "create".to_string())?;
    }
    let first = log.end() as i64;
    for i in first..first + 6 {
        append(insert_change(16_384, &[(i, "x"), (1000 + i, "y")]), i.to_string())?;
        if i % 3 == 0 {
            log.write_catalog_snapshot()?;
            log.truncate_before(log.end().saturating_sub(1))?;
        }
    }
    Ok(())
}

/// The commits in the log as the script names them, from the first that is still there.
fn names(log: &EngineLog, first: CommitSeq) -> Vec<String> {
    contents(log, first - 1)
        .iter()
        .map(|line| {
            let (_, what) = line.split_once(": ").unwrap();
            if what == "create users" {
                return "create".to_string();
            }
            let id = what.strip_prefix("16384 +I(").unwrap().split(',').next().unwrap().to_string();
            let number: i64 = id.parse().unwrap();
            assert_eq!(what, format!("16384 +I({number}, x) +I({}, y)", 1000 + number), "a commit is half there");
            id
        })
        .collect()
}

#[test]
fn the_log_survives_power_loss_at_every_change_of_the_disk() {
    let mut crashes = 0;
    for seed in 0..6u64 {
        for at in 0.. {
            let dir = tempfile::tempdir().unwrap();
            let files = LossyFiles::new(dir.path(), seed * 1000 + at).unwrap();
            // Everything that was ever acknowledged, in order: place i is commit i + 1.
            let mut history: Vec<String> = Vec::new();
            let mut off = false;
            for round in 0..3 {
                // The second crash comes somewhere in the recovery from the first.
                files.power_off_after(if round == 1 { (at + seed) % 7 } else { at });
                let mut told = Told::default();
                let result = run_script(&files, dir.path(), &mut told);
                off |= round == 0 && files.powered_off();
                // It may have gone off after the last acknowledgement.
                assert!(result.is_ok() || files.powered_off(), "seed {seed}, change {at}: {result:?}");
                history.extend(told.acknowledged);
                crashes += usize::from(files.powered_off());
                files.crash().unwrap();
                let (log, recovered) = EngineLog::open(Arc::new(files.clone()), dir.path(), tiny_segments())
                    .unwrap_or_else(|error| panic!("seed {seed}, change {at}, round {round}: {error}"));
                let found = names(&log, recovered.first);
                let kept = &history[recovered.first as usize - 1..];
                // What was being written may be there, if it is whole.
                match &told.open {
                    Some(open) if found.len() == kept.len() + 1 => {
                        assert_eq!((&found[..kept.len()], &found[kept.len()]), (kept, open));
                        history.push(open.clone());
                    }
                    _ => assert_eq!(found, kept, "seed {seed}, change {at}, round {round}"),
                }
                assert_eq!(recovered.end as usize, history.len());
                assert_eq!(recovered.catalog.get("users").is_some(), !history.is_empty());
            }
            if !off {
                break;
            }
        }
    }
    assert!(crashes > 400, "{crashes}");
}

#[test]
fn commits_on_their_way_are_there_in_order_or_not_at_all() {
    for seed in 0..60u64 {
        let dir = tempfile::tempdir().unwrap();
        let files = LossyFiles::new(dir.path(), seed).unwrap();
        let (log, _) = EngineLog::open(Arc::new(files.clone()), dir.path(), tiny_segments()).unwrap();
        log.append(create_change(&table(16_384, "users", true))).wait().unwrap();
        files.power_off_after(seed % 9);
        let pending: Vec<_> = (0..40i64).map(|i| log.append(insert_change(16_384, &[(i, "x"), (1000 + i, "y")]))).collect();
        let answers: Vec<Result<CommitSeq>> = pending.into_iter().map(PendingCommit::wait).collect();
        drop(log);
        files.crash().unwrap();
        let (log, recovered) = EngineLog::open(Arc::new(files), dir.path(), tiny_segments()).unwrap();
        let found = names(&log, 2);
        assert_eq!(found, (0..found.len()).map(|i| i.to_string()).collect::<Vec<_>>(), "seed {seed}");
        assert_eq!(recovered.end as usize, found.len() + 1);
        for (i, answer) in answers.iter().enumerate() {
            if let Ok(seq) = answer {
                assert_eq!(*seq as usize, i + 2);
                assert!(i < found.len(), "seed {seed}: commit {seq} was acknowledged and is lost");
            }
        }
    }
}

#[test]
fn transactions_over_tables_are_whole_after_power_loss() {
    let mut crashes = 0;
    for at in 0..80u64 {
        let dir = tempfile::tempdir().unwrap();
        let files = LossyFiles::new(dir.path(), at).unwrap();
        let debits = table(16_384, "debits", false);
        let credits = table(16_385, "credits", true);
        let mut acknowledged = 0;
        for round in 0..3u64 {
            files.power_off_after(if round == 2 { u64::MAX / 2 } else { at % (40 - 15 * round) });
            let result = (|| -> Result<()> {
                let (tables, _) = open_tables(Arc::new(files.clone()), dir.path(), tiny_segments())?;
                if tables.catalog().get("debits").is_none() {
                    let mut transaction = tables.begin()?;
                    transaction.change_catalog(create(&debits))?;
                    transaction.change_catalog(create(&credits))?;
                    commit(transaction)?;
                }
                let (debit_rows, credit_rows) = (scan(&tables.latest()?, &debits), scan(&tables.latest()?, &credits));
                assert_eq!(debit_rows, credit_rows, "change {at}, round {round}: a transaction is half there");
                assert!(debit_rows.len() >= acknowledged, "change {at}, round {round}: an acknowledged commit is lost");
                let next = debit_rows.len() as i64;
                assert_eq!(debit_rows.iter().map(|(id, _)| *id).collect::<Vec<_>>(), (0..next).collect::<Vec<_>>());
                for id in next..next + 8 {
                    let mut transaction = tables.begin()?;
                    transaction.insert(&debits, &rows(&[(id, "x")]))?;
                    transaction.insert(&credits, &rows(&[(id, "x")]))?;
                    commit(transaction)?;
                    acknowledged = id as usize + 1;
                }
                Ok(())
            })();
            crashes += usize::from(files.powered_off());
            assert!(result.is_ok() || files.powered_off(), "change {at}, round {round}: {result:?}");
            files.crash().unwrap();
        }
    }
    assert!(crashes > 100, "{crashes}");
}
