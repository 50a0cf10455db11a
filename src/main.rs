//! The `weir` binary: server, shell and script runner.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use tokio::signal::unix::{Signal, SignalKind, signal};
use weir::job::Engine;
use weir::job::engine::{STACK_BYTES, Seams};
use weir::job::settings::{SETTINGS, Settings};
use weir::server::clients::{self, Server};
use weir::shell;
use weir_catalog::{Error, Result};

mod open_files;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Maps of keys and values are read at random: on pages of 2 MiB they miss the address cache far less. What is freed goes back to the system after half a
/// second: by default it would be resident for ten. See `docs/performance.md`.
// The symbol is a C string that jemalloc reads at its first use; a slice begins with the pointer to its bytes.
#[unsafe(export_name = "_rjem_malloc_conf")]
static MALLOC_CONF: &[u8] = b"thp:always,dirty_decay_ms:500,muzzy_decay_ms:0\0";

/// Stateful stream processing with SQL.
#[derive(Debug, Parser)]
#[command(version, about, long_about = None)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve clients over the PostgreSQL wire protocol.
    Serve {
        /// The address to listen on; port 0 takes any that is free.
        #[arg(long, env = "WEIR_LISTEN", default_value = "127.0.0.1:5480")]
        listen: SocketAddr,
        /// Start from this checkpoint, an older one of those that are kept, instead of from the newest. A number that is not there is answered with those
        /// that are.
        #[arg(long, value_name = "NUMBER")]
        from_checkpoint: Option<u64>,
    },
    /// The shell on a running server.
    Sql {
        /// Where the server is.
        #[arg(default_value = "postgres://weir@127.0.0.1:5480/weir")]
        url: String,
        /// Run this and leave, instead of reading statements.
        #[arg(short, long)]
        command: Option<String>,
        /// Leave at the first error, with exit status 3 (psql's `-v ON_ERROR_STOP=1`).
        #[arg(long)]
        on_error_stop: bool,
    },
    /// Run a script, wait until its bounded jobs have finished, and print what its queries return.
    Run {
        /// The script.
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
struct EngineArgs {
    /// The data folder. Without one, `serve` uses ./weir-data, and the shell and `run` a folder that goes when they end.
    #[arg(long, global = true, env = "WEIR_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// A setting, as NAME=VALUE; also read from WEIR_<NAME>. Can be repeated.
    #[arg(long = "set", global = true, value_name = "NAME=VALUE")]
    set: Vec<String>,
}

impl EngineArgs {
    /// The settings: defaults, then the environment, then flags.
    fn settings(&self, data_dir: PathBuf) -> Result<Settings> {
        for variable in unknown_variables(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok())) {
            tracing::warn!(%variable, "an environment variable is no setting of weir's, and has no effect");
        }
        let mut settings = Settings::new(data_dir)?;
        for info in SETTINGS {
            let variable = format!("WEIR_{}", info.name.to_uppercase());
            if let Ok(value) = std::env::var(&variable) {
                settings.set(info.name, &value)?;
            }
        }
        for pair in &self.set {
            let (name, value) = pair.split_once('=').ok_or_else(|| {
                Error::new(weir_catalog::SqlState::INVALID_PARAMETER_VALUE, format!("--set takes NAME=VALUE, not \"{pair}\""))
            })?;
            settings.set(name.trim(), value.trim())?;
        }
        Ok(settings)
    }
}

/// Variables that are read and are no settings. Those of the tests' own begin with `WEIR_TEST_`.
const VARIABLES: [&str; 4] = ["WEIR_DATA_DIR", "WEIR_LISTEN", "WEIR_LOG", weir::seams::faults::VARIABLE];

/// Which of these environment variables were meant for weir, by their name, and mean nothing to it.
fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    let is_known = |name: &str| VARIABLES.contains(&name) || name.strip_prefix("WEIR_").is_some_and(is_setting_or_test);
    names.filter(|name| name.starts_with("WEIR_") && !is_known(name)).collect()
}

/// Whether a variable's name after `WEIR_` is that of a setting, in capitals, or one of the tests.
fn is_setting_or_test(name: &str) -> bool {
    name.starts_with("TEST_") || SETTINGS.iter().any(|info| info.name.to_uppercase() == name)
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("WEIR_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,weir=info")),
        )
        .with_writer(std::io::stderr)
        .init();
    let cli = Cli::parse();
    open_files::allow_many();
    // Statements are bound, planned and run on this thread too where there is no server.
    let started =
        std::thread::Builder::new().name("weir-main".into()).stack_size(STACK_BYTES).spawn(move || -> std::io::Result<ExitCode> {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .thread_name("weir-server")
                .thread_stack_size(STACK_BYTES)
                .max_blocking_threads(128)
                .build()?;
            let result = runtime.block_on(run(cli));
            runtime.shutdown_timeout(std::time::Duration::from_secs(5));
            Ok(match result {
                Ok(code) => code,
                Err(error) => {
                    eprintln!("ERROR:  {error}");
                    ExitCode::FAILURE
                }
            })
        });
    match started.map(std::thread::JoinHandle::join) {
        Ok(Ok(Ok(code))) => code,
        Ok(Ok(Err(error))) | Err(error) => {
            eprintln!("weir: could not start threads: {error}");
            ExitCode::FAILURE
        }
        // It has said what it panicked for.
        Ok(Err(_)) => ExitCode::FAILURE,
    }
}

async fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Some(Command::Serve { listen, from_checkpoint }) => {
            let data_dir = cli.engine.data_dir.clone().unwrap_or_else(|| PathBuf::from("weir-data"));
            // The port first: a second server fails before it touches the folder.
            let listener = clients::listen(listen).await?;
            let address = listener.local_addr().map_err(|e| Error::io("read the address listened on", &e))?;
            let server = Server::start(listener);
            let mut settings = cli.engine.settings(data_dir)?;
            settings.from_checkpoint = from_checkpoint;
            let engine = open(settings).await?;
            server.open(engine.clone())?;
            // Before anybody is told that it can be stopped.
            let mut signals = Signals::new()?;
            println!("weir listening on {address}");
            signals.next().await;
            tokio::select! {
                () = server.shut_down(&engine) => Ok(ExitCode::SUCCESS),
                // Whoever asks twice does not want to wait for the last checkpoint. Nothing is lost: the next start reads more of the log.
                () = signals.next() => {
                    eprintln!("weir: stopped without a last checkpoint");
                    std::process::exit(130);
                }
            }
        }
        Some(Command::Sql { url, command, on_error_stop }) => shell::run(&url, command.as_deref(), on_error_stop).await,
        Some(Command::Run { file }) => {
            let script = std::fs::read_to_string(&file).map_err(|e| Error::io(format!("read \"{}\"", file.display()), &e))?;
            let folder = Folder::of(&cli.engine)?;
            let engine = open(cli.engine.settings(folder.path.clone())?).await?;
            let result = shell::script::run(&engine, &script, folder.temporary).await;
            engine.shutdown().await;
            result
        }
        None => {
            let folder = Folder::of(&cli.engine)?;
            let engine = open(cli.engine.settings(folder.path.clone())?).await?;
            let listener = clients::listen(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
            let address = listener.local_addr().map_err(|e| Error::io("read the address listened on", &e))?;
            let server = Server::start(listener);
            server.open(engine.clone())?;
            let result = shell::run(&format!("postgres://weir@{address}/weir"), None, false).await;
            server.shut_down(&engine).await;
            result
        }
    }
}

async fn open(settings: Settings) -> Result<Arc<Engine>> {
    tokio::task::spawn_blocking(move || Engine::open(settings, Seams::default()))
        .await
        .map_err(|e| Error::internal(format!("opening the data folder failed: {e}")))?
}

/// The signals that ask for the end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Those that come from now on: they no longer end the process by themselves.
    fn new() -> Result<Signals> {
        let failed = |e: std::io::Error| Error::io("wait for signals", &e);
        Ok(Signals {
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
        })
    }

    /// Waits for one.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// A data folder, removed at the end where the user named none.
struct Folder {
    path: PathBuf,
    temporary: bool,
}

impl Folder {
    fn of(args: &EngineArgs) -> Result<Folder> {
        if let Some(path) = &args.data_dir {
            return Ok(Folder { path: path.clone(), temporary: false });
        }
        let path = std::env::temp_dir().join(format!(
            "weir-{}-{:08x}",
            std::process::id(),
            weir::seams::random::Random::from_entropy().next_u64() as u32
        ));
        Ok(Folder { path, temporary: true })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.temporary
            && let Err(error) = std::fs::remove_dir_all(&self.path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            eprintln!("weir: could not remove \"{}\": {error}", self.path.display());
        }
    }
}
