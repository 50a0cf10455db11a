//! Which tables and views a session's statements make, and the answer that each view must show: its defining query, run as a batch.
//!
//! The statements are read as text, not asked of the server, so that a server that loses or changes a definition is caught.

use crate::rows::{Comparison, Rows};
use crate::server::{Session, describe, sql_state};

/// A materialized view as a statement defined it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub name: String,
    /// The defining query.
    pub query: String,
}

/// What was made, as far as the statements tell.
#[derive(Clone, Debug, Default)]
pub struct Made {
    tables: Vec<String>,
    views: Vec<View>,
    /// Connector tables, whose rows come while one looks.
    streams: Vec<String>,
    /// The views over connector tables: their content is that of their query only when all has come.
    over_streams: Vec<View>,
}

/// What can be read of everything in [`Made`], to be compared with what can be read later.
#[derive(Debug)]
pub struct Content(Vec<(String, Result<Rows, String>)>);

impl Made {
    /// Takes note of a statement that the server has accepted.
    pub fn note(&mut self, sql: &str) {
        if let Some(view) = materialized_view(sql) {
            if names_any(&view.query, &self.streams) {
                // Its content can be read, but is not the batch answer while rows come.
                self.tables.retain(|name| *name != view.name);
                self.tables.push(view.name.clone());
                self.over_streams.retain(|other| other.name != view.name);
                self.over_streams.push(view);
            } else {
                self.views.retain(|other| other.name != view.name);
                self.views.push(view);
            }
        } else if let Some((name, is_connector)) = table(sql) {
            let list = if is_connector { &mut self.streams } else { &mut self.tables };
            list.retain(|other| *other != name);
            list.push(name);
        }
    }

    /// Whether a view was made that this can check.
    pub fn has_views(&self) -> bool {
        !self.views.is_empty()
    }

    /// Whether the views over connector tables, all of which must have an end, have everything that comes. Views that do not exist are left out.
    pub async fn streams_have_come(&self, session: &Session) -> bool {
        for view in &self.over_streams {
            let (Ok(batch), Ok(shown)) = (session.query(&view.query).await, session.query(&format!("SELECT * FROM {}", view.name)).await)
            else {
                continue;
            };
            if batch.difference(&shown, Comparison::Exact).is_some() {
                return false;
            }
        }
        true
    }

    /// The names of the tables and views that can be read.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.tables.iter().chain(self.views.iter().map(|view| &view.name))
    }

    /// Everything that a client can read: whatever does not exist is left out, any other error is kept as its SQLSTATE.
    pub async fn content(&self, session: &Session) -> Content {
        let mut content = Vec::new();
        for name in self.names() {
            match session.query(&format!("SELECT * FROM {name}")).await {
                Ok(rows) => content.push((name.clone(), Ok(rows))),
                Err(e) if sql_state(&e).as_deref() == Some("42P01") => {}
                Err(e) => content.push((name.clone(), Err(sql_state(&e).unwrap_or_else(|| panic!("{name}: {}", describe(&e)))))),
            }
        }
        Content(content)
    }

    /// Compares each view that exists with the batch answer of its query; returns what is wrong, and the number of views with rows.
    pub async fn check(&self, session: &Session) -> (Vec<String>, usize) {
        let mut problems = Vec::new();
        let mut with_rows = 0;
        for view in &self.views {
            let shown = session.query(&format!("SELECT * FROM {}", view.name)).await;
            if let Err(e) = &shown
                && sql_state(e).as_deref() == Some("42P01")
            {
                continue;
            }
            let batch = session.query(&view.query).await;
            match (batch, shown) {
                (Ok(batch), Ok(shown)) => {
                    with_rows += usize::from(!shown.rows.is_empty());
                    if let Some(difference) = batch.difference(&shown, Comparison::Exact) {
                        problems.push(format!("view {} is not the batch answer of {}\n{difference}", view.name, view.query));
                    }
                }
                (Err(batch), Err(shown)) => {
                    if sql_state(&batch) != sql_state(&shown) {
                        problems.push(format!("view {}: batch: {}; view: {}", view.name, describe(&batch), describe(&shown)));
                    }
                }
                (Ok(_), Err(shown)) => problems.push(format!("view {}: {}", view.name, describe(&shown))),
                // A row that fails in a batch may lie behind a filter that the view's optimised plan applies first, or the other way round.
                (Err(batch), Ok(_)) => problems.push(format!("view {}: its batch answer failed: {}", view.name, describe(&batch))),
            }
        }
        (problems, with_rows)
    }
}

impl Content {
    /// What `later` shows differently.
    pub fn differences(&self, later: &Content) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, before) in &self.0 {
            match (before, later.0.iter().find(|(other, _)| other == name).map(|(_, after)| after)) {
                (_, None) => problems.push(format!("{name} is gone")),
                (Ok(before), Some(Ok(after))) => {
                    if let Some(difference) = before.difference(after, Comparison::Exact) {
                        problems.push(format!("{name} changed:\n{difference}"));
                    }
                }
                (Err(before), Some(Err(after))) if before == after => {}
                (before, Some(after)) => problems.push(format!("{name}: before {}, after {}", outcome(before), outcome(after))),
            }
        }
        for (name, _) in &later.0 {
            if !self.0.iter().any(|(other, _)| other == name) {
                problems.push(format!("{name} came back"));
            }
        }
        problems
    }

    /// The number of rows of everything together.
    pub fn row_count(&self) -> usize {
        self.0.iter().filter_map(|(_, rows)| rows.as_ref().ok()).map(|rows| rows.rows.len()).sum()
    }
}

fn outcome(result: &Result<Rows, String>) -> String {
    match result {
        Ok(rows) => format!("{} rows", rows.rows.len()),
        Err(state) => format!("error {state}"),
    }
}

/// The view that `CREATE MATERIALIZED VIEW [IF NOT EXISTS] name [(columns)] [WITH (...)] AS query` makes.
pub fn materialized_view(sql: &str) -> Option<View> {
    let mut words = Words::new(sql);
    words.expect("create")?;
    words.expect("materialized")?;
    words.expect("view")?;
    let name = words.name()?;
    while let Some(word) = words.next() {
        if word.eq_ignore_ascii_case("as") {
            let query = sql[words.at..].trim().trim_end_matches(';').trim().to_string();
            return Some(View { name, query });
        }
    }
    None
}

/// The name that `CREATE TABLE | SOURCE` makes, and whether it is a connector table.
pub fn table(sql: &str) -> Option<(String, bool)> {
    let mut words = Words::new(sql);
    words.expect("create")?;
    let kind = words.next()?;
    if !kind.eq_ignore_ascii_case("table") && !kind.eq_ignore_ascii_case("source") {
        return None;
    }
    let name = words.name()?;
    let mut is_connector = kind.eq_ignore_ascii_case("source");
    while let Some(word) = words.next() {
        is_connector |= word.eq_ignore_ascii_case("with");
    }
    Some((name, is_connector))
}

/// The statement in PostgreSQL's words: there a view is always up to date, which is what a materialized view of weir shows after FLUSH.
/// `None` for statements that have no meaning there.
pub fn for_postgres(sql: &str) -> Option<String> {
    let mut words = Words::new(sql);
    let first = words.next()?;
    if ["flush", "checkpoint"].iter().any(|word| first.eq_ignore_ascii_case(word)) {
        return None;
    }
    if ["create", "drop"].iter().any(|word| first.eq_ignore_ascii_case(word)) && words.expect("materialized").is_some() {
        return Some(format!("{first} {}", sql[words.at..].trim_start()));
    }
    Some(sql.to_string())
}

/// Whether `sql` has one of `names` as a word.
fn names_any(sql: &str, names: &[String]) -> bool {
    sql.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| names.iter().any(|name| name.eq_ignore_ascii_case(word)))
}

/// The words of a statement at its outermost level: text in parentheses, quotes and comments is passed over.
struct Words<'a> {
    sql: &'a str,
    at: usize,
}

impl<'a> Words<'a> {
    fn new(sql: &'a str) -> Words<'a> {
        Words { sql, at: 0 }
    }

    fn next(&mut self) -> Option<&'a str> {
        let bytes = self.sql.as_bytes();
        let mut depth = 0;
        while self.at < bytes.len() {
            let rest = &self.sql[self.at..];
            match bytes[self.at] {
                b'(' => depth += 1,
                b')' => depth -= 1,
                b'\'' => self.at += rest[1..].find('\'')? + 1,
                b'-' if rest.starts_with("--") => self.at += rest.find('\n').unwrap_or(rest.len() - 1),
                b'"' if depth == 0 => {
                    let start = self.at;
                    self.at += rest[1..].find('"')? + 2;
                    return Some(&self.sql[start..self.at]);
                }
                b'"' => self.at += rest[1..].find('"')? + 1,
                byte if depth == 0 && (byte.is_ascii_alphanumeric() || byte == b'_') => {
                    let start = self.at;
                    while self.at < bytes.len() && (bytes[self.at].is_ascii_alphanumeric() || bytes[self.at] == b'_') {
                        self.at += 1;
                    }
                    return Some(&self.sql[start..self.at]);
                }
                _ => {}
            }
            self.at += 1;
        }
        None
    }

    /// Takes the next word if it is `word`.
    fn expect(&mut self, word: &str) -> Option<()> {
        let before = self.at;
        if self.next().is_some_and(|next| next.eq_ignore_ascii_case(word)) {
            return Some(());
        }
        self.at = before;
        None
    }

    /// The name that follows, behind `IF NOT EXISTS` where that stands.
    fn name(&mut self) -> Option<String> {
        if self.expect("if").is_some() {
            self.expect("not")?;
            self.expect("exists")?;
        }
        self.next().map(str::to_string)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_read_from_their_statements() {
        let view = materialized_view("CREATE MATERIALIZED VIEW v AS SELECT a AS b FROM t;").unwrap();
        assert_eq!(view, View { name: "v".into(), query: "SELECT a AS b FROM t".into() });
        let view = materialized_view(
            "create materialized view if not exists \"My View\" (a, \"as\") -- as it was\n WITH (x = 'as') AS\n  WITH w AS (SELECT 1) SELECT * FROM w",
        )
        .unwrap();
        assert_eq!(view, View { name: "\"My View\"".into(), query: "WITH w AS (SELECT 1) SELECT * FROM w".into() });
        assert_eq!(materialized_view("CREATE VIEW v AS SELECT 1"), None);
        assert_eq!(materialized_view("DROP MATERIALIZED VIEW v"), None);
    }

    #[test]
    fn tables_are_read_from_their_statements() {
        assert_eq!(table("CREATE TABLE t (a INT, with_it TEXT DEFAULT 'with')"), Some(("t".into(), false)));
        assert_eq!(table("CREATE TABLE IF NOT EXISTS bid (a INT) WITH (connector = 'nexmark')"), Some(("bid".into(), true)));
        assert_eq!(table("CREATE SOURCE s WITH (connector = 'nexmark')"), Some(("s".into(), true)));
        assert_eq!(table("INSERT INTO t VALUES (1)"), None);
    }

    #[test]
    fn views_over_connector_tables_have_no_batch_answer() {
        let mut made = Made::default();
        made.note("CREATE TABLE bid WITH (connector = 'nexmark')");
        made.note("CREATE MATERIALIZED VIEW bids AS SELECT * FROM bid");
        assert!(!made.has_views());
        made.note("CREATE MATERIALIZED VIEW n AS SELECT count(*) FROM bids");
        assert!(made.has_views());
    }

    #[test]
    fn statements_are_put_in_postgresql_words() {
        assert_eq!(for_postgres("CREATE MATERIALIZED VIEW v AS SELECT 1").as_deref(), Some("CREATE VIEW v AS SELECT 1"));
        assert_eq!(for_postgres("drop materialized view if exists v").as_deref(), Some("drop view if exists v"));
        assert_eq!(for_postgres("FLUSH"), None);
        assert_eq!(for_postgres("SELECT 'flush'").as_deref(), Some("SELECT 'flush'"));
    }
}
