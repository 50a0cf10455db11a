//! The engine's settings: one table of names, defaults and meanings.

use std::path::PathBuf;
use std::time::Duration;

use weir_catalog::{Error, Result, SqlState};

use crate::seams::objects::ObjectUrl;
pub use crate::state::StateBackendKind;
use crate::stream::BarrierNumber;

/// The settings in force.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The data folder.
    pub data_dir: PathBuf,
    /// Of this start alone, and no setting: go on from this retained checkpoint instead of from the newest.
    pub from_checkpoint: Option<BarrierNumber>,
    /// The subtasks of an operator of a new job.
    pub parallelism: usize,
    /// Whether `parallelism` was given at start: then jobs that exist take it on too.
    pub parallelism_given: bool,
    /// The bytes that caches, buffers, versions and state may hold in memory.
    pub memory: usize,
    pub state_backend: StateBackendKind,
    /// The time between two barriers while there is something new.
    pub barrier_interval: Duration,
    /// The least time between two barriers that commits ask for.
    pub min_barrier_interval: Duration,
    /// The time between two checkpoints; zero for none.
    pub checkpoint_interval: Duration,
    /// Where checkpoints are kept, where that is not the data folder.
    pub checkpoint_storage: Option<ObjectUrl>,
    /// How long a checkpoint may take before it counts as failed.
    pub checkpoint_timeout: Duration,
    /// How long a stop waits for its last checkpoint.
    pub shutdown_timeout: Duration,
    /// The least time from the end of a checkpoint to the beginning of the next.
    pub checkpoint_min_pause: Duration,
    /// How many complete checkpoints are kept.
    pub checkpoints_retained: usize,
    /// How many checkpoints of a group may fail one after another before the group is restarted.
    pub tolerable_checkpoint_failures: usize,
    /// How often a job may fail for the same reason before it is stopped.
    pub restart_attempts: usize,
    /// The pause before the first restart; doubled with each further one, up to 10 s.
    pub restart_delay: Duration,
    /// How many barriers' versions of a view stay readable.
    pub retained_barriers: usize,
    /// How many bytes of the engine log a writer may be ahead of the slowest reader.
    pub log_limit: usize,
    /// The longest row, bytes.
    pub max_row_bytes: usize,
}

/// A setting's name, default and meaning.
#[derive(Clone, Copy, Debug)]
pub struct SettingInfo {
    pub name: &'static str,
    pub default: &'static str,
    pub description: &'static str,
    /// Whether it can be changed only at start.
    pub at_start: bool,
}

const fn setting(name: &'static str, default: &'static str, at_start: bool, description: &'static str) -> SettingInfo {
    SettingInfo { name, default, description, at_start }
}

/// Every setting of the engine.
pub const SETTINGS: &[SettingInfo] = &[
    setting("barrier_interval", "100 ms", false, "time between two barriers while there is something new"),
    setting("checkpoint_interval", "5 s", false, "time between two checkpoints; 0 for none"),
    setting("checkpoint_min_pause", "0 s", false, "least time from the end of a checkpoint to the beginning of the next"),
    setting("checkpoint_storage", "local", true, "where checkpoints are kept: local for the data folder, or s3://bucket/prefix"),
    setting("checkpoint_timeout", "10 min", false, "how long a checkpoint may take before it counts as failed"),
    setting("shutdown_timeout", "30 s", false, "how long a stop waits for its last checkpoint before it does without"),
    setting("checkpoints_retained", "3", false, "how many complete checkpoints are kept"),
    setting("log_limit", "1 GiB", true, "how far the engine log may be ahead of its slowest reader before writers wait"),
    setting("max_row_bytes", "16 MiB", true, "the longest row of a stored table, and the longest record that is read"),
    setting("memory", "2 GiB", true, "memory for caches, buffers, versions and state"),
    setting("min_barrier_interval", "10 ms", false, "least time between two barriers that commits ask for"),
    setting("parallelism", "0", false, "subtasks of each operator of a new job; 0 for the number of cores"),
    setting("restart_attempts", "3", false, "how often a job may fail for the same reason before it is stopped"),
    setting("restart_delay", "100 ms", false, "pause before the first restart, doubled with each further one up to 10 s"),
    setting("retained_barriers", "64", true, "how many barriers' versions of a view stay readable"),
    setting("state_backend", "rocksdb", true, "where keyed state is kept: rocksdb or memory"),
    setting(
        "tolerable_checkpoint_failures",
        "3",
        false,
        "how many checkpoints of a group may fail one after another before it is restarted",
    ),
];

/// Readers of the engine log stand at barriers, and what comes between two is not read before the next: with less than that no writer would ever be let in.
const LEAST_LOG_LIMIT: usize = 1 << 20;

impl Settings {
    /// The defaults, for a data folder.
    pub fn new(data_dir: PathBuf) -> Result<Settings> {
        let mut settings = Settings {
            data_dir,
            from_checkpoint: None,
            parallelism: 1,
            parallelism_given: false,
            memory: 0,
            state_backend: StateBackendKind::RocksDb,
            barrier_interval: Duration::ZERO,
            min_barrier_interval: Duration::ZERO,
            checkpoint_interval: Duration::ZERO,
            checkpoint_storage: None,
            checkpoint_timeout: Duration::ZERO,
            shutdown_timeout: Duration::ZERO,
            checkpoint_min_pause: Duration::ZERO,
            checkpoints_retained: 1,
            tolerable_checkpoint_failures: 0,
            restart_attempts: 0,
            restart_delay: Duration::ZERO,
            retained_barriers: 1,
            log_limit: 0,
            max_row_bytes: 0,
        };
        for info in SETTINGS {
            settings.set(info.name, info.default)?;
        }
        settings.parallelism_given = false;
        Ok(settings)
    }

    /// Whether the engine has a setting of this name.
    pub fn info(name: &str) -> Option<&'static SettingInfo> {
        SETTINGS.iter().find(|info| info.name == name)
    }

    /// Sets one. Errors: `42704` for an unknown name, `22023` for a value that does not fit.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "barrier_interval" => {
                self.barrier_interval = at_least(name, value, parse_duration(name, value)?, Duration::from_millis(1), "1 ms")?
            }
            "checkpoint_interval" => self.checkpoint_interval = parse_duration(name, value)?,
            "checkpoint_min_pause" => self.checkpoint_min_pause = parse_duration(name, value)?,
            "checkpoint_storage" => {
                self.checkpoint_storage = match value.trim() {
                    "" | "local" => None,
                    url => Some(ObjectUrl::parse(url).map_err(|error| {
                        let hint = "Available values: local, and s3://bucket/prefix.";
                        invalid(name, value).with_detail(format!("{}.", error.message())).with_hint(hint)
                    })?),
                }
            }
            "shutdown_timeout" => self.shutdown_timeout = parse_duration(name, value)?,
            "checkpoint_timeout" => {
                self.checkpoint_timeout = at_least(name, value, parse_duration(name, value)?, Duration::from_millis(1), "1 ms")?
            }
            "checkpoints_retained" => self.checkpoints_retained = parse_count(name, value, 1, 1000)?,
            "log_limit" => self.log_limit = at_least(name, value, parse_bytes(name, value)?, LEAST_LOG_LIMIT, "1 MiB")?,
            "max_row_bytes" => self.max_row_bytes = parse_max_row_bytes(name, value)?,
            "memory" => self.memory = at_least(name, value, parse_bytes(name, value)?, 64 << 20, "64 MiB")?,
            "min_barrier_interval" => self.min_barrier_interval = parse_duration(name, value)?,
            "parallelism" => {
                let given = parse_count(name, value, 0, crate::stream::MAX_PARALLELISM)?;
                self.parallelism_given = given != 0;
                self.parallelism =
                    if given == 0 { std::thread::available_parallelism().map_or(1, |cores| cores.get().min(8)) } else { given };
            }
            "restart_attempts" => self.restart_attempts = parse_count(name, value, 0, 1_000_000)?,
            "restart_delay" => self.restart_delay = parse_duration(name, value)?,
            "retained_barriers" => self.retained_barriers = parse_count(name, value, 1, 256)?,
            "state_backend" => {
                self.state_backend = match value.to_ascii_lowercase().as_str() {
                    "rocksdb" => StateBackendKind::RocksDb,
                    "memory" => StateBackendKind::Memory,
                    _ => return Err(invalid(name, value).with_hint("Available values: rocksdb, memory.")),
                }
            }
            "tolerable_checkpoint_failures" => self.tolerable_checkpoint_failures = parse_count(name, value, 0, 1_000_000)?,
            _ => return Err(Error::new(SqlState::UNDEFINED_OBJECT, format!("unrecognized configuration parameter \"{name}\""))),
        }
        Ok(())
    }

    /// The value in force, as `SET` would take it; `None` for an unknown name.
    pub fn get(&self, name: &str) -> Option<String> {
        Some(match name {
            "barrier_interval" => show_duration(self.barrier_interval),
            "checkpoint_interval" => show_duration(self.checkpoint_interval),
            "checkpoint_min_pause" => show_duration(self.checkpoint_min_pause),
            "checkpoint_storage" => self.checkpoint_storage.as_ref().map_or_else(|| "local".into(), ObjectUrl::to_string),
            "checkpoint_timeout" => show_duration(self.checkpoint_timeout),
            "shutdown_timeout" => show_duration(self.shutdown_timeout),
            "checkpoints_retained" => self.checkpoints_retained.to_string(),
            "log_limit" => show_bytes(self.log_limit),
            "max_row_bytes" => show_bytes(self.max_row_bytes),
            "memory" => show_bytes(self.memory),
            "min_barrier_interval" => show_duration(self.min_barrier_interval),
            "parallelism" => self.parallelism.to_string(),
            "restart_attempts" => self.restart_attempts.to_string(),
            "restart_delay" => show_duration(self.restart_delay),
            "retained_barriers" => self.retained_barriers.to_string(),
            "state_backend" => self.state_backend.name().into(),
            "tolerable_checkpoint_failures" => self.tolerable_checkpoint_failures.to_string(),
            _ => return None,
        })
    }
}

fn invalid(name: &str, value: &str) -> Error {
    Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("invalid value for parameter \"{name}\": \"{value}\""))
}

fn at_least<T: PartialOrd>(name: &str, value: &str, parsed: T, least: T, shown: &str) -> Result<T> {
    if parsed < least { Err(invalid(name, value).with_detail(format!("The value must be at least {shown}."))) } else { Ok(parsed) }
}

/// The texts of a batch are numbered with 31 bits.
fn parse_max_row_bytes(name: &str, value: &str) -> Result<usize> {
    let bytes = parse_bytes(name, value)?;
    if bytes > 1 << 30 { Err(invalid(name, value).with_detail("The value must be at most 1 GiB.")) } else { Ok(bytes) }
}

fn parse_count(name: &str, value: &str, least: usize, most: usize) -> Result<usize> {
    let count = value.trim().parse().map_err(|_| invalid(name, value))?;
    if (least..=most).contains(&count) {
        Ok(count)
    } else {
        Err(invalid(name, value).with_detail(format!("The value must be between {least} and {most}.")))
    }
}

/// A number and its unit, e.g. `100 ms`.
fn split_unit(value: &str) -> Option<(f64, &str)> {
    let value = value.trim();
    let end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    let number = value[..end].parse().ok()?;
    Some((number, value[end..].trim()))
}

/// A duration such as `100 ms`, `1 s`, `10 min`; a bare number is milliseconds, as in PostgreSQL.
pub fn parse_duration(name: &str, value: &str) -> Result<Duration> {
    let hint = || invalid(name, value).with_hint("Valid units for this parameter are \"us\", \"ms\", \"s\", \"min\", \"h\", and \"d\".");
    let (number, unit) = split_unit(value).ok_or_else(hint)?;
    let seconds = match unit.to_ascii_lowercase().as_str() {
        "us" => 1e-6,
        "" | "ms" | "millisecond" | "milliseconds" => 1e-3,
        "s" | "second" | "seconds" => 1.0,
        "min" | "minute" | "minutes" => 60.0,
        "h" | "hour" | "hours" => 3600.0,
        "d" | "day" | "days" => 86_400.0,
        _ => return Err(hint()),
    };
    Duration::try_from_secs_f64(number * seconds).map_err(|_| hint())
}

/// A size such as `512 MiB`; `kB`, `MB` and `GB` are multiples of 1024 too, as in PostgreSQL.
pub fn parse_bytes(name: &str, value: &str) -> Result<usize> {
    let hint = || invalid(name, value).with_hint("Valid units for this parameter are \"B\", \"KiB\", \"MiB\", \"GiB\", and \"TiB\".");
    let (number, unit) = split_unit(value).ok_or_else(hint)?;
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" | "kb" => 1 << 10,
        "mib" | "mb" => 1 << 20,
        "gib" | "gb" => 1 << 30,
        "tib" | "tb" => 1 << 40,
        _ => return Err(hint()),
    };
    Ok((number * factor as f64) as usize)
}

fn show_duration(duration: Duration) -> String {
    let us = duration.as_micros();
    match us {
        0 => "0 s".into(),
        _ if us.is_multiple_of(60_000_000) => format!("{} min", us / 60_000_000),
        _ if us.is_multiple_of(1_000_000) => format!("{} s", us / 1_000_000),
        _ if us.is_multiple_of(1000) => format!("{} ms", us / 1000),
        _ => format!("{us} us"),
    }
}

fn show_bytes(bytes: usize) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes > 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_set() {
        let mut settings = Settings::new(PathBuf::from("data")).unwrap();
        settings.set("barrier_interval", "1.5 s").unwrap();
        assert_eq!(settings.get("barrier_interval").as_deref(), Some("1500 ms"));
        settings.set("memory", "512 MB").unwrap();
        assert_eq!(settings.get("checkpoint_storage").as_deref(), Some("local"));
        settings.set("checkpoint_storage", "s3://data/weir/").unwrap();
        assert_eq!(settings.get("checkpoint_storage").as_deref(), Some("s3://data/weir"));
        assert_eq!(settings.memory, 512 << 20);
        for info in SETTINGS {
            let shown = settings.get(info.name).unwrap();
            settings.set(info.name, &shown).unwrap();
            assert_eq!(settings.get(info.name), Some(shown));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut settings = Settings::new(PathBuf::from("data")).unwrap();
        for (name, value, code) in [
            ("barrier_interval", "soon", "22023"),
            ("barrier_interval", "0", "22023"),
            ("parallelism", "129", "22023"),
            ("memory", "-1", "22023"),
            ("log_limit", "0", "22023"),
            ("log_limit", "1023 KiB", "22023"),
            ("checkpoint_storage", "/tmp", "22023"),
            ("no_such_setting", "1", "42704"),
        ] {
            assert_eq!(settings.set(name, value).unwrap_err().code().as_str(), code, "{name} = {value}");
        }
    }
}
