//! A real PostgreSQL of the test's own, in a temporary folder, reached over a Unix socket: it needs no port and no set-up of the machine.
//!
//! PostgreSQL refuses to run as root; there it runs as `nobody`.

use std::ffi::CString;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio_postgres::Config;

use crate::server::{PATIENCE, Session, die_with_parent};

/// A running PostgreSQL; stopped and removed when dropped.
pub struct Reference {
    process: Child,
    folder: TempDir,
}

/// A user without privileges.
#[derive(Clone, Copy)]
struct User {
    id: u32,
    group: u32,
}

impl Reference {
    /// Starts one. Errors with the reason where this machine has none or can't run it.
    pub fn start() -> Result<Reference, String> {
        let programs = programs().ok_or("no PostgreSQL server is installed (initdb was not found)")?;
        let user = unprivileged_user()?;
        let folder = tempfile::Builder::new().prefix("weir-postgres").tempdir_in("/tmp").map_err(|e| e.to_string())?;
        if let Some(user) = user {
            chown(folder.path(), Some(user.id), Some(user.group)).map_err(|e| format!("chown: {e}"))?;
        }
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).map_err(|e| e.to_string())?;
        let data = folder.path().join("data");
        let mut initdb = command(&programs.join("initdb"), user, folder.path());
        initdb.arg("-D").arg(&data).args(["-U", "weir", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
        let output = initdb.output().map_err(|e| format!("initdb: {e}"))?;
        if !output.status.success() {
            return Err(format!("initdb failed: {}", String::from_utf8_lossy(&output.stderr)));
        }
        let log = std::fs::File::create(folder.path().join("log")).map_err(|e| e.to_string())?;
        let mut postgres = command(&programs.join("postgres"), user, folder.path());
        postgres.arg("-D").arg(&data).arg("-k").arg(folder.path());
        for setting in ["listen_addresses=", "fsync=off", "full_page_writes=off", "timezone=UTC", "max_connections=50"] {
            postgres.arg("-c").arg(setting);
        }
        postgres.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        // SIGQUIT is PostgreSQL's immediate shutdown: it takes its children along.
        die_with_parent(&mut postgres, libc::SIGQUIT);
        let process = postgres.spawn().map_err(|e| format!("postgres: {e}"))?;
        let mut reference = Reference { process, folder };
        reference.wait_until_ready(&programs)?;
        Ok(reference)
    }

    fn wait_until_ready(&mut self, programs: &Path) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ready = Command::new(programs.join("pg_isready"))
                .args(["-q", "-h"])
                .arg(self.folder.path())
                .status()
                .map_err(|e| format!("pg_isready: {e}"))?;
            if ready.success() {
                return Ok(());
            }
            let ended = self.process.try_wait().map_err(|e| e.to_string())?;
            if ended.is_some() || Instant::now() > deadline {
                let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
                return Err(format!("PostgreSQL did not start: {log}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A session on a new, empty database of this name.
    pub async fn database(&self, name: &str) -> Session {
        let admin = self.session("postgres").await;
        admin.must(&format!("DROP DATABASE IF EXISTS {name}")).await;
        admin.must(&format!("CREATE DATABASE {name}")).await;
        self.session(name).await
    }

    /// A session on a database.
    pub async fn session(&self, database: &str) -> Session {
        let mut config = Config::new();
        config.host_path(self.folder.path()).user("weir").dbname(database);
        Session::open_with(&config).await.unwrap_or_else(|e| panic!("could not connect to PostgreSQL: {e}"))
    }

    /// Where its socket is, for psql's `-h`.
    pub fn socket_folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        // SAFETY: a plain system call on a process that this one started and has not waited for.
        unsafe { libc::kill(self.process.id() as libc::pid_t, libc::SIGQUIT) };
        let _ = self.process.wait();
    }
}

/// The folder with PostgreSQL's programs: the newest below Debian's, or else wherever `pg_config` says.
fn programs() -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .filter(|bin| bin.join("initdb").exists())
        .collect();
    found.sort();
    found.pop().or_else(|| {
        let output = Command::new("pg_config").arg("--bindir").output().ok()?;
        let bin = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
        bin.join("initdb").exists().then_some(bin)
    })
}

/// The user to run as where this process is root; `None` where it is not.
fn unprivileged_user() -> Result<Option<User>, String> {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Ok(None);
    }
    let name = CString::new("nobody").map_err(|e| e.to_string())?;
    // SAFETY: the name is a C string; the result is read at once, before any other call that could overwrite it, on the only thread that asks.
    let entry = unsafe { libc::getpwnam(name.as_ptr()) };
    if entry.is_null() {
        return Err("PostgreSQL does not run as root, and there is no user nobody".to_string());
    }
    // SAFETY: not null, so it points to an entry.
    Ok(Some(unsafe { User { id: (*entry).pw_uid, group: (*entry).pw_gid } }))
}

/// `program` as `user`, in `folder`, without the settings of the caller's own PostgreSQL.
fn command(program: &Path, user: Option<User>, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).stdin(Stdio::null()).env("HOME", folder).env("LC_ALL", "C").env("TZ", "UTC");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PG") {
            command.env_remove(name);
        }
    }
    if let Some(user) = user {
        command.gid(user.group).uid(user.id);
    }
    command
}
