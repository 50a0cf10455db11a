//! The shell's own commands, which begin with a backslash: those of psql that people use most.

use std::path::Path;

/// What a command asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Quit,
    Help,
    /// Prints its words.
    Echo(String),
    /// On, off, or the other of the two.
    Timing(Option<bool>),
    Expanded(Option<bool>),
    /// Runs a file.
    Include(String),
    /// Runs a query for the reader.
    Query(String),
    /// Sets a variable of the shell: the only one is ON_ERROR_STOP.
    StopOnError(bool),
}

/// What `\?` prints.
pub const HELP: &str = "\
\\q                  leave
\\?                  this list
\\d                  tables, views and materialized views
\\d NAME             the columns of one
\\dt  \\dv  \\dm      tables, views, materialized views
\\x [on|off]         one line for each column of a row, or one for each row
\\timing [on|off]    how long each statement takes
\\i FILE             run a file
\\echo TEXT          print something
\\set ON_ERROR_STOP [on|off]   whether the first error ends the shell, with exit status 3

Statements end with a semicolon. SHOW JOBS, SHOW CHECKPOINTS, SHOW SINKS and SHOW SOURCES list what else there is.";

impl Command {
    /// Reads a command, without its backslash. The error is for whoever wrote it.
    pub fn parse(text: &str) -> Result<Command, String> {
        let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let rest = rest.trim().trim_end_matches(';').trim_end();
        Ok(match (name.trim_end_matches(';'), rest) {
            ("q" | "quit", _) => Command::Quit,
            ("?" | "h" | "help", _) => Command::Help,
            ("echo", words) => Command::Echo(words.to_string()),
            ("timing", value) => Command::Timing(switch("timing", value)?),
            ("x", value) => Command::Expanded(switch("x", value)?),
            ("i" | "include", "") => return Err("\\i: missing required argument".to_string()),
            ("i" | "include", file) => Command::Include(unquoted(file, '\'')),
            ("set", value) => match value.split_whitespace().collect::<Vec<_>>()[..] {
                ["ON_ERROR_STOP"] => Command::StopOnError(true),
                ["ON_ERROR_STOP", value] => Command::StopOnError(switch("set ON_ERROR_STOP", value)?.unwrap_or(true)),
                _ => return Err("\\set: the only variable is ON_ERROR_STOP".to_string()),
            },
            ("d" | "d+", "") => Command::Query(relations("'r', 'v', 'm'")),
            ("d" | "d+", name) => Command::Query(format!("DESCRIBE {name};")),
            ("dt" | "dt+", "") => Command::Query(relations("'r'")),
            ("dv" | "dv+", "") => Command::Query(relations("'v'")),
            ("dm" | "dm+", "") => Command::Query(relations("'m'")),
            ("dt" | "dv" | "dm", _) => return Err(format!("\\{name} takes no argument: \\d NAME shows one")),
            (name, _) => return Err(format!("invalid command \\{name}\nTry \\? for help.")),
        })
    }
}

fn switch(name: &str, value: &str) -> Result<Option<bool>, String> {
    match value.to_ascii_lowercase().as_str() {
        "" => Ok(None),
        "on" | "true" | "yes" | "1" => Ok(Some(true)),
        "off" | "false" | "no" | "0" => Ok(Some(false)),
        _ => Err(format!("unrecognized value \"{value}\" for \"\\{name}\": Boolean expected")),
    }
}

fn unquoted(text: &str, mark: char) -> String {
    let inner = text.strip_prefix(mark).and_then(|text| text.strip_suffix(mark));
    inner.unwrap_or(text).to_string()
}

fn relations(kinds: &str) -> String {
    format!(
        "SELECT n.nspname AS \"Schema\", c.relname AS \"Name\", CASE c.relkind WHEN 'r' THEN 'table' WHEN 'v' THEN 'view' ELSE \
         'materialized view' END AS \"Type\" FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = 'public' AND c.relkind IN ({kinds}) ORDER BY 1, 2;"
    )
}

/// The text of a file that `\i` names.
pub fn read(file: &str) -> Result<String, String> {
    std::fs::read_to_string(Path::new(file)).map_err(|error| format!("{file}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read() {
        assert_eq!(Command::parse("q"), Ok(Command::Quit));
        assert_eq!(Command::parse("echo  a b"), Ok(Command::Echo("a b".into())));
        assert_eq!(Command::parse("timing"), Ok(Command::Timing(None)));
        assert_eq!(Command::parse("x ON"), Ok(Command::Expanded(Some(true))));
        assert_eq!(Command::parse("i 'a file.sql'"), Ok(Command::Include("a file.sql".into())));
        assert_eq!(Command::parse("d \"My t\""), Ok(Command::Query("DESCRIBE \"My t\";".into())));
        assert_eq!(Command::parse("set ON_ERROR_STOP off"), Ok(Command::StopOnError(false)));
        for (wrong, message) in [("frobnicate a", "invalid command \\frobnicate"), ("x maybe", "Boolean expected"), ("i", "missing")] {
            let error = Command::parse(wrong).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
