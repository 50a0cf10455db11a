//! The shell: statements from a terminal or from standard input to a server, over the wire protocol, and its answers as tables.

mod command;
mod input;
pub mod script;
pub mod table;

use std::io::{IsTerminal, Read};
use std::ops::ControlFlow;
use std::process::ExitCode;

use futures::StreamExt;
use futures::future::BoxFuture;
use reedline::{DefaultPrompt, DefaultPromptSegment, Reedline, Signal, ValidationResult, Validator};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::error::DbError;
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls, SimpleQueryMessage};
use weir_catalog::{Error, Result, SqlState};

use self::command::Command;
use self::input::Part;
use crate::seams::clock::Stopwatch;

/// The exit status after an error with ON_ERROR_STOP, as psql has it.
const STOPPED: u8 = 3;
/// How deep files may include one another.
const MOST_INCLUDED: usize = 32;

/// Reads statements and commands and runs them on the server at `url`, until the end of input or `\q`. With `command`, runs just that.
pub async fn run(url: &str, command: Option<&str>, stops_on_error: bool) -> Result<ExitCode> {
    let connect = tokio_postgres::connect(url, NoTls).await;
    let (client, connection) =
        connect.map_err(|e| Error::new(SqlState::CANNOT_CONNECT_NOW, format!("could not connect to \"{url}\": {}", describe(&e))))?;
    tokio::spawn(converse(connection));
    let mut shell = Shell { client, stops_on_error, timing: false, expanded: false, failed: false };
    if let Some(text) = command {
        // One text is one message to the server, as with psql; a command to the shell is for the shell.
        let done = match text.trim_start().strip_prefix('\\') {
            Some(command) => shell.command(command.trim_end(), 0).await.is_break(),
            None => shell.execute(text).await.is_break(),
        };
        return Ok(shell.status(done));
    }
    if !std::io::stdin().is_terminal() {
        let mut script = String::new();
        std::io::stdin().read_to_string(&mut script).map_err(|e| Error::io("read standard input", &e))?;
        let done = shell.script(&script, 0).await;
        return Ok(shell.status(done.is_break()));
    }
    println!("weir {}. End statements with a semicolon; \\? lists commands, \\q leaves.", env!("CARGO_PKG_VERSION"));
    let mut editor = Reedline::create().with_validator(Box::new(StatementEnd));
    let mut prompt = DefaultPrompt::new(DefaultPromptSegment::Basic("weir".into()), DefaultPromptSegment::Empty);
    loop {
        let read = tokio::task::spawn_blocking(move || {
            let signal = editor.read_line(&prompt);
            (editor, prompt, signal)
        });
        let (returned, same, signal) = read.await.map_err(|e| Error::internal(format!("the line editor failed: {e}")))?;
        (editor, prompt) = (returned, same);
        match signal {
            Ok(Signal::Success(line)) if is_leave(&line) => return Ok(ExitCode::SUCCESS),
            Ok(Signal::Success(line)) => {
                shell.failed = false;
                if shell.script(&line, 0).await.is_break() {
                    return Ok(shell.status(true));
                }
            }
            Ok(Signal::CtrlD) => return Ok(ExitCode::SUCCESS),
            Ok(_) => {}
            Err(error) => return Err(Error::io("read the terminal", &error)),
        }
    }
}

/// A conversation with a server.
struct Shell {
    client: Client,
    stops_on_error: bool,
    timing: bool,
    expanded: bool,
    /// Whether anything has failed.
    failed: bool,
}

impl Shell {
    /// The exit status; `ended` says that something asked for the end.
    fn status(&self, ended: bool) -> ExitCode {
        match self.failed {
            true if ended && self.stops_on_error => ExitCode::from(STOPPED),
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        }
    }

    /// Runs the statements and commands of `text`, one after another. Breaks where the shell is to end.
    fn script<'s>(&'s mut self, text: &'s str, depth: usize) -> BoxFuture<'s, ControlFlow<()>> {
        Box::pin(async move {
            let (parts, left) = input::parts(text);
            for part in parts {
                match part {
                    Part::Statement(statement) => self.execute(&statement).await?,
                    Part::Command(command) => self.command(&command, depth).await?,
                }
            }
            if left.is_empty() { ControlFlow::Continue(()) } else { self.execute(&left).await }
        })
    }

    async fn command(&mut self, text: &str, depth: usize) -> ControlFlow<()> {
        let command = match Command::parse(text) {
            Ok(command) => command,
            Err(message) => return self.fail(&message),
        };
        match command {
            Command::Quit => return ControlFlow::Break(()),
            Command::Help => println!("{}", command::HELP),
            Command::Echo(words) => println!("{words}"),
            Command::Timing(value) => {
                self.timing = value.unwrap_or(!self.timing);
                println!("Timing is {}.", if self.timing { "on" } else { "off" });
            }
            Command::Expanded(value) => {
                self.expanded = value.unwrap_or(!self.expanded);
                println!("Expanded display is {}.", if self.expanded { "on" } else { "off" });
            }
            Command::StopOnError(value) => self.stops_on_error = value,
            Command::Query(query) => return self.execute(&query).await,
            Command::Include(file) if depth >= MOST_INCLUDED => return self.fail(&format!("{file}: files include one another too deeply")),
            Command::Include(file) => {
                return match command::read(&file) {
                    Ok(script) => self.script(&script, depth + 1).await,
                    Err(message) => self.fail(&message),
                };
            }
        }
        ControlFlow::Continue(())
    }

    fn fail(&mut self, message: &str) -> ControlFlow<()> {
        eprintln!("{message}");
        self.failed = true;
        if self.stops_on_error { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Runs statements, and says how long they took where that is asked for.
    async fn execute(&mut self, statements: &str) -> ControlFlow<()> {
        let stopwatch = Stopwatch::start();
        let result = talk(&self.client, statements, self.expanded).await;
        if self.timing {
            println!("Time: {:.3} ms", stopwatch.elapsed().as_secs_f64() * 1e3);
        }
        match result {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => self.fail(&describe(&error)),
        }
    }
}

/// Runs statements and prints what each gives as it comes. Ctrl-C cancels.
async fn talk(client: &Client, statements: &str, expanded: bool) -> Result<(), tokio_postgres::Error> {
    let cancel = client.cancel_token();
    let run = async {
        let messages = client.simple_query_raw(statements).await?;
        tokio::pin!(messages);
        let mut open: Option<table::Table> = None;
        while let Some(message) = messages.next().await {
            print(&message?, &mut open, expanded);
        }
        Ok(())
    };
    tokio::pin!(run);
    loop {
        tokio::select! {
            result = &mut run => return result,
            _ = tokio::signal::ctrl_c() => {
                if let Err(error) = cancel.cancel_query(NoTls).await {
                    eprintln!("could not cancel: {}", describe(&error));
                }
            }
        }
    }
}

/// Carries messages between client and server, and prints what the server has to say besides results.
async fn converse<S, T>(mut connection: Connection<S, T>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    // An error ends the connection, and whoever waits for an answer gets it.
    while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
        if let AsyncMessage::Notice(notice) = message {
            eprintln!("{}", describe_message(&notice));
        }
    }
}

/// Whether a line asks for the end without a backslash.
fn is_leave(line: &str) -> bool {
    matches!(line.trim(), "exit" | "quit")
}

/// A statement may span lines: it ends with a semicolon.
struct StatementEnd;

impl Validator for StatementEnd {
    fn validate(&self, line: &str) -> ValidationResult {
        if is_leave(line) || input::parts(line).1.is_empty() { ValidationResult::Complete } else { ValidationResult::Incomplete }
    }
}

/// Prints a message's part of a result; `open` is the table whose rows are coming in.
fn print(message: &SimpleQueryMessage, open: &mut Option<table::Table>, expanded: bool) {
    match message {
        SimpleQueryMessage::RowDescription(columns) => {
            *open = Some(table::Table::new(columns.iter().map(|column| column.name().to_string()).collect()));
        }
        SimpleQueryMessage::Row(row) => {
            if let Some(table) = open {
                table.push((0..row.len()).map(|column| row.get(column).map(str::to_string)).collect());
            }
        }
        SimpleQueryMessage::CommandComplete(_) => match open.take() {
            Some(table) if expanded => println!("{}", table.expanded()),
            Some(table) => println!("{table}"),
            None => println!("OK"),
        },
        _ => {}
    }
}

/// An error as psql prints it.
fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => describe_message(db),
        None => error.to_string(),
    }
}

/// An error or notice of the server.
fn describe_message(db: &DbError) -> String {
    let mut text = format!("{}:  {} ({})", db.severity(), db.message(), db.code().code());
    for (label, part) in [("DETAIL", db.detail()), ("HINT", db.hint()), ("CONTEXT", db.where_())] {
        if let Some(part) = part {
            text.push_str(&format!("\n{label}:  {part}"));
        }
    }
    text
}
