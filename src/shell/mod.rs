//! The shell: statements from a terminal or from standard input to a server, over the wire protocol, and its answers as tables.

pub mod script;
pub mod table;

use std::io::{IsTerminal, Read};
use std::process::ExitCode;

use futures::StreamExt;
use reedline::{DefaultPrompt, DefaultPromptSegment, Reedline, Signal, ValidationResult, Validator};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::error::DbError;
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls, SimpleQueryMessage};
use weir_catalog::{Error, Result, SqlState};

/// Reads statements and runs them on the server at `url`, until the end of input or `\q`. With `command`, runs just that.
pub async fn run(url: &str, command: Option<&str>) -> Result<ExitCode> {
    let connect = tokio_postgres::connect(url, NoTls).await;
    let (client, connection) =
        connect.map_err(|e| Error::new(SqlState::CANNOT_CONNECT_NOW, format!("could not connect to \"{url}\": {}", describe(&e))))?;
    tokio::spawn(converse(connection));
    if let Some(command) = command {
        return Ok(if execute(&client, command).await { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    if !std::io::stdin().is_terminal() {
        let mut script = String::new();
        std::io::stdin().read_to_string(&mut script).map_err(|e| Error::io("read standard input", &e))?;
        let mut code = ExitCode::SUCCESS;
        for statement in split(&script)? {
            if !execute(&client, &statement).await {
                code = ExitCode::FAILURE;
            }
        }
        return Ok(code);
    }
    println!("weir {}. End statements with a semicolon; \\q leaves.", env!("CARGO_PKG_VERSION"));
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
            Ok(Signal::Success(line)) => match line.trim() {
                "" => {}
                "\\q" | "exit" | "quit" => return Ok(ExitCode::SUCCESS),
                statement => {
                    let _ = execute(&client, statement).await;
                }
            },
            Ok(Signal::CtrlD) => return Ok(ExitCode::SUCCESS),
            Ok(_) => {}
            Err(error) => return Err(Error::io("read the terminal", &error)),
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

/// The statements of a script, each with its own text.
fn split(script: &str) -> Result<Vec<String>> {
    // A script that does not parse is sent whole: the server says where.
    match weir_sql::parser::parse(script) {
        Ok(statements) => Ok(statements.into_iter().map(|parsed| parsed.text).collect()),
        Err(_) => Ok(vec![script.to_string()]),
    }
}

/// A statement may span lines: it ends with a semicolon.
struct StatementEnd;

impl Validator for StatementEnd {
    fn validate(&self, line: &str) -> ValidationResult {
        let line = line.trim();
        if line.is_empty() || line.starts_with('\\') || line.ends_with(';') || matches!(line, "exit" | "quit") {
            ValidationResult::Complete
        } else {
            ValidationResult::Incomplete
        }
    }
}

/// Runs statements and prints what each gives as it comes. False where one failed. Ctrl-C cancels.
async fn execute(client: &Client, statements: &str) -> bool {
    let cancel = client.cancel_token();
    let run = async {
        let messages = client.simple_query_raw(statements).await?;
        tokio::pin!(messages);
        let mut open: Option<table::Table> = None;
        while let Some(message) = messages.next().await {
            print(&message?, &mut open);
        }
        Ok(())
    };
    tokio::pin!(run);
    let result: Result<(), tokio_postgres::Error> = loop {
        tokio::select! {
            result = &mut run => break result,
            _ = tokio::signal::ctrl_c() => {
                if let Err(error) = cancel.cancel_query(NoTls).await {
                    eprintln!("could not cancel: {}", describe(&error));
                }
            }
        }
    };
    match result {
        Ok(()) => true,
        Err(error) => {
            eprintln!("{}", describe(&error));
            false
        }
    }
}

/// Prints a message's part of a result; `open` is the table whose rows are coming in.
fn print(message: &SimpleQueryMessage, open: &mut Option<table::Table>) {
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
