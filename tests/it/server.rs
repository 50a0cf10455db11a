//! A `weir serve` process of the test's own, and sessions on it.
//!
//! # Invariants
//! - A server never outlives its test: it is killed when its [`Server`] is dropped, and by the kernel when the test process dies.
//! - Nothing waits for ever: a statement that gets no answer within [`PATIENCE`] fails the test and is named.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_postgres::{CancelToken, Client, Config, Error, NoTls, SimpleQueryMessage};
use weir::seams::faults;

use crate::rows::{Row, Rows};

/// How long a statement, a start or a stop may take before the test fails.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Settings by name, as `SET` knows them; `AWS_` variables too.
pub type Settings = BTreeMap<String, String>;

/// Settings from pairs.
pub fn settings(pairs: &[(&str, &str)]) -> Settings {
    pairs.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect()
}

/// The server's process, its data folder and where it listens.
pub struct Server {
    data_dir: PathBuf,
    log: PathBuf,
    settings: Settings,
    /// Where it is started from; the test's own working directory where that is `None`.
    working_dir: Option<PathBuf>,
    /// For the next start alone: the checkpoint to start from.
    from_checkpoint: Option<u64>,
    process: Option<Child>,
    address: SocketAddr,
    /// Removed with the server; `None` where the test brings its own folder.
    _folder: Option<TempDir>,
}

impl Server {
    /// Starts a server on a new, empty data folder.
    pub fn start(settings: &Settings) -> Server {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let data_dir = folder.path().join("data");
        let log = folder.path().join("server.log");
        Server::launch(data_dir, log, settings.clone(), Some(folder)).unwrap_or_else(|problem| panic!("{problem}"))
    }

    /// Starts a server on `data_dir`; its log goes to `log`. Errors with what it said when it ends before it listens.
    pub fn start_in(data_dir: &Path, log: &Path, settings: &Settings) -> Result<Server, String> {
        Server::launch(data_dir.to_path_buf(), log.to_path_buf(), settings.clone(), None)
    }

    fn launch(data_dir: PathBuf, log: PathBuf, settings: Settings, folder: Option<TempDir>) -> Result<Server, String> {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server =
            Server { data_dir, log, settings, working_dir: None, from_checkpoint: None, process: None, address, _folder: folder };
        server.spawn()?;
        Ok(server)
    }

    /// Starts a server in the folder `working_dir`, on `data_dir`, which is relative to it.
    pub fn start_from(working_dir: &Path, data_dir: &Path, settings: &Settings) -> Server {
        let log = working_dir.join("server.log");
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let settings = settings.clone();
        let mut server = Server {
            data_dir: data_dir.to_path_buf(),
            log,
            settings,
            working_dir: None,
            from_checkpoint: None,
            process: None,
            address,
            _folder: None,
        };
        server.start_again_from(working_dir, data_dir);
        server
    }

    /// Starts it again in the folder `working_dir`, on `data_dir`, which is relative to it.
    pub fn start_again_from(&mut self, working_dir: &Path, data_dir: &Path) {
        self.working_dir = Some(working_dir.to_path_buf());
        self.data_dir = data_dir.to_path_buf();
        self.restart();
    }

    /// Starts the process, which listens on `listen`. What it says on its standard output.
    fn spawn_process(&mut self, listen: &str) -> Result<mpsc::Receiver<String>, String> {
        let log =
            std::fs::OpenOptions::new().create(true).append(true).open(&self.log).map_err(|e| format!("{}: {e}", self.log.display()))?;
        let mut command = weir();
        command.arg("serve").arg("--data-dir").arg(&self.data_dir).args(["--listen", listen]);
        if let Some(folder) = &self.working_dir {
            command.current_dir(folder);
        }
        if let Some(number) = self.from_checkpoint.take() {
            command.args(["--from-checkpoint", &number.to_string()]);
        }
        // Any free port for its web page too: several servers run at a time.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        for (name, value) in &self.settings {
            // Those of an object store have their own names.
            let variable = if name.starts_with("AWS_") { name.clone() } else { format!("WEIR_{}", name.to_uppercase()) };
            command.env(variable, value);
        }
        die_with_parent(&mut command, libc::SIGKILL);
        let mut process = command.spawn().map_err(|e| format!("could not start weir: {e}"))?;
        let stdout = process.stdout.take().expect("stdout is piped");
        let (sender, receiver) = mpsc::channel();
        // Goes on reading after the first line, so that the server never blocks on a full pipe. Ends with the process.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Nobody listens any more once the server is known to be ready.
                let _ = sender.send(line);
            }
        });
        self.process = Some(process);
        Ok(receiver)
    }

    /// Starts it again on `address`, and does not wait until it is ready.
    pub fn start_opening(&mut self, address: SocketAddr) {
        self.kill();
        self.spawn_process(&address.to_string()).unwrap_or_else(|problem| panic!("{problem}"));
        self.address = address;
    }

    fn spawn(&mut self) -> Result<(), String> {
        let receiver = self.spawn_process("127.0.0.1:0")?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(address) = line.strip_prefix("weir listening on ") {
                        self.address = address.trim().parse().map_err(|e| format!("not an address: {line}: {e}"))?;
                        return Ok(());
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    self.kill();
                    return Err(format!("weir was not ready within {PATIENCE:?}:\n{}", self.log_tail()));
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    self.kill();
                    return Err(format!("weir ended before it was ready:\n{}", self.log_tail()));
                }
            }
        }
    }

    /// `kill -9`, and waits until the process is gone. No effect on one that is gone.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // An error means that it ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts the server again on its data folder, killed before where it runs.
    pub fn restart(&mut self) {
        self.try_restart().unwrap_or_else(|problem| panic!("{problem}"));
    }

    /// As [`Server::restart`]; errors with what the server said when it ends before it listens.
    pub fn try_restart(&mut self) -> Result<(), String> {
        self.kill();
        self.spawn()
    }

    /// As [`Server::try_restart`], going on from an older checkpoint.
    pub fn try_restart_from(&mut self, checkpoint: u64) -> Result<(), String> {
        self.from_checkpoint = Some(checkpoint);
        self.try_restart()
    }

    /// Where its data is.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Changes a setting for the next start.
    pub fn set(&mut self, name: &str, value: &str) {
        self.settings.insert(name.to_string(), value.to_string());
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: libc::c_int) {
        if let Some(process) = &self.process {
            // SAFETY: a plain system call; the process is this one's child and has not been waited for, so that its id is its own.
            unsafe { libc::kill(process.id() as libc::pid_t, signal) };
        }
    }

    /// Asks it to stop, as SIGTERM does, and waits until it has. Returns whether it said that all was well.
    pub fn stop(&mut self) -> bool {
        self.signal(libc::SIGTERM);
        self.stopped()
    }

    /// Waits until it has stopped, as it was asked to. Returns whether it said that all was well.
    pub fn stopped(&mut self) -> bool {
        let Some(process) = &mut self.process else { return false };
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Ok(Some(status)) = process.try_wait() {
                self.process = None;
                return status.success();
            }
            assert!(Instant::now() < deadline, "weir does not stop:\n{}", self.log_tail());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Its resident memory: what it is now, and the most since [`Server::forget_peak`] or its start; bytes.
    pub fn memory(&self) -> (u64, u64) {
        let process = self.process.as_ref().expect("it runs");
        let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).expect("its status");
        let kilobytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("Linux tells it");
            line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).expect("a number")
        };
        (kilobytes("VmRSS:") << 10, kilobytes("VmHWM:") << 10)
    }

    /// The most memory that it has is counted from now on.
    pub fn forget_peak(&self) {
        let process = self.process.as_ref().expect("it runs");
        std::fs::write(format!("/proc/{}/clear_refs", process.id()), "5").expect("its peak can be forgotten");
    }

    /// Whether the process runs.
    pub fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| matches!(process.try_wait(), Ok(None)))
    }

    /// Where it takes clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A new session.
    pub async fn connect(&self) -> Session {
        Session::open(self.address).await.unwrap_or_else(|e| panic!("could not connect: {}", describe(&e)))
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("the server's log ends with:\n{}", self.log_tail());
        }
    }
}

/// The weir binary, without the settings of the caller's own environment. A planted fault is for all processes of a test.
pub fn weir() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if (text.starts_with("WEIR_") || text.starts_with("AWS_")) && name != faults::VARIABLE {
            command.env_remove(name);
        }
    }
    command
}

/// Asks the kernel to send `signal` to the child when the thread that starts it ends, so that a killed test run leaves nothing behind.
pub fn die_with_parent(command: &mut Command, signal: libc::c_int) {
    // SAFETY: prctl is a plain system call, safe between fork and exec; it touches no memory of the parent.
    unsafe {
        command.pre_exec(
            move || {
                if libc::prctl(libc::PR_SET_PDEATHSIG, signal) == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            },
        );
    }
}

/// A client's session.
pub struct Session {
    client: Client,
    /// Where the server is, unless it is reached by a socket's path.
    address: Option<SocketAddr>,
}

impl Session {
    /// Connects as user and to database `weir`.
    pub async fn open(address: SocketAddr) -> Result<Session, Error> {
        let mut config = Config::new();
        config.host(address.ip().to_string()).port(address.port()).user("weir").dbname("weir").connect_timeout(PATIENCE);
        Ok(Session { address: Some(address), ..Session::open_with(&config).await? })
    }

    /// Connects as `config` says.
    pub async fn open_with(config: &Config) -> Result<Session, Error> {
        let (client, connection) = patiently("connecting", config.connect(NoTls)).await?;
        // Its end shows up as an error of the next statement.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(Session { client, address: None })
    }

    /// The underlying client, for the extended protocol and cancelling.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// As [`Session::client`], for transactions of its own.
    pub fn client_mut(&mut self) -> &mut Client {
        &mut self.client
    }

    /// What asks for the end of this session's statements.
    pub fn canceller(&self) -> Canceller {
        Canceller { token: self.client.cancel_token(), address: self.address.expect("a session over TCP") }
    }

    /// Runs `sql`, which does not end by itself, and asks for its end after `delay`, and again after each further one: a request that comes before the statement
    /// does is for nobody. Its SQLSTATE; `00000` where it ended by itself.
    pub async fn ended(&self, sql: &str, delay: Duration) -> String {
        let (canceller, has_ended) = (self.canceller(), Arc::new(AtomicBool::new(false)));
        let told = has_ended.clone();
        let asking = tokio::spawn(async move {
            loop {
                tokio::time::sleep(delay).await;
                if told.load(Ordering::SeqCst) {
                    return;
                }
                canceller.cancel().await;
            }
        });
        let answer = self.execute(sql).await;
        has_ended.store(true, Ordering::SeqCst);
        // The last request must not meet the next statement.
        asking.await.expect("who asks does not panic");
        match answer {
            Ok(_) => "00000".into(),
            Err(error) => sql_state(&error).unwrap_or_else(|| panic!("{sql}: {}", describe(&error))),
        }
    }

    /// Runs statements over the simple protocol; returns the number of rows that the last one touched.
    pub async fn execute(&self, sql: &str) -> Result<u64, Error> {
        let messages = patiently(sql, self.client.simple_query(sql)).await?;
        Ok(messages
            .iter()
            .rev()
            .find_map(|message| match message {
                SimpleQueryMessage::CommandComplete(rows) => Some(*rows),
                _ => None,
            })
            .unwrap_or(0))
    }

    /// Runs a query: its column types come from the extended protocol's description, its values as text from the simple one.
    pub async fn query(&self, sql: &str) -> Result<Rows, Error> {
        let statement = patiently(sql, self.client.prepare(sql)).await?;
        let columns: Vec<_> = statement.columns().iter().map(|column| (column.name().to_string(), column.type_().clone())).collect();
        let rows = self.text_rows(sql).await?;
        Ok(Rows { columns, rows })
    }

    /// The values of a query as text, over the simple protocol alone.
    pub async fn text_rows(&self, sql: &str) -> Result<Vec<Row>, Error> {
        let messages = patiently(sql, self.client.simple_query(sql)).await?;
        let mut rows = Vec::new();
        for message in &messages {
            if let SimpleQueryMessage::Row(row) = message {
                rows.push((0..row.len()).map(|i| row.get(i).map(str::to_string)).collect());
            }
        }
        Ok(rows)
    }

    /// The one value that a query returns, as text.
    pub async fn value(&self, sql: &str) -> Result<Option<String>, Error> {
        let rows = self.text_rows(sql).await?;
        assert!(rows.len() == 1 && rows[0].len() == 1, "expected one value of {sql}, got {rows:?}");
        Ok(rows[0][0].clone())
    }

    /// As [`Session::execute`], for a statement that must work.
    pub async fn must(&self, sql: &str) -> u64 {
        self.execute(sql).await.unwrap_or_else(|e| panic!("{sql}\n{}", describe(&e)))
    }

    /// As [`Session::query`], for a query that must work.
    pub async fn must_query(&self, sql: &str) -> Rows {
        self.query(sql).await.unwrap_or_else(|e| panic!("{sql}\n{}", describe(&e)))
    }

    /// As [`Session::value`], a number, for a query that must work. NULL is 0.
    pub async fn must_count(&self, sql: &str) -> i64 {
        let value = self.value(sql).await.unwrap_or_else(|e| panic!("{sql}\n{}", describe(&e)));
        let text = value.unwrap_or_else(|| "0".to_string());
        crate::rows::canonical_numeric(&text).parse().unwrap_or_else(|_| panic!("{sql}\nnot a whole number: {text}"))
    }
}

/// Sends cancel requests for one session.
pub struct Canceller {
    token: CancelToken,
    address: SocketAddr,
}

impl Canceller {
    /// Asks for the end of the statement under way. When this returns the server has taken the request in: it meets no statement that is sent later.
    pub async fn cancel(&self) {
        patiently("a cancel request", async {
            let mut stream = TcpStream::connect(self.address).await.expect("the request is taken");
            self.token.cancel_query_raw(&mut stream, NoTls).await.expect("the request is taken");
            // There is no answer, but the connection's end. How it ends does not matter.
            let _ = stream.read_to_end(&mut Vec::new()).await;
        })
        .await;
    }
}

/// Waits for an answer, but not for ever.
async fn patiently<T>(what: &str, answer: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(answer) => answer,
        Err(_) => panic!("no answer within {PATIENCE:?}: {what}"),
    }
}

/// An error's SQLSTATE and texts, or what happened to the connection.
pub fn describe(error: &Error) -> String {
    match error.as_db_error() {
        Some(db) => {
            let mut text = format!("ERROR {}: {}", db.code().code(), db.message());
            for (label, part) in [("DETAIL", db.detail()), ("HINT", db.hint()), ("CONTEXT", db.where_())] {
                if let Some(part) = part {
                    text.push_str(&format!("\n{label}: {part}"));
                }
            }
            text
        }
        None => format!("{error} ({error:?})"),
    }
}

/// The SQLSTATE that the server sent, or `None` where the connection broke.
pub fn sql_state(error: &Error) -> Option<String> {
    error.as_db_error().map(|db| db.code().code().to_string())
}
