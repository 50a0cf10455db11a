//! Rows as an aligned table, as psql prints them.

use std::fmt;

/// A table to print.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<Option<String>>>,
}

impl Table {
    /// An empty table.
    pub fn new(columns: Vec<String>) -> Table {
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row; `None` is NULL and prints as nothing.
    pub fn push(&mut self, row: Vec<Option<String>>) {
        self.rows.push(row);
    }

    /// One line for each column of a row, as psql prints them where it is told `\x`.
    pub fn expanded(&self) -> String {
        if self.rows.is_empty() {
            return "(0 rows)".to_string();
        }
        let width = self.columns.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for (at, row) in self.rows.iter().enumerate() {
            text.push_str(&format!("-[ RECORD {} ]{}\n", at + 1, "-".repeat(width)));
            for (name, cell) in self.columns.iter().zip(row) {
                text.push_str(format!("{name:<width$} | {}", cell.as_deref().unwrap_or("")).trim_end());
                text.push('\n');
            }
        }
        text
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |text: &str| text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(at, name)| {
                let cells = self.rows.iter().filter_map(|row| row.get(at).and_then(Option::as_deref)).map(width);
                cells.chain([width(name)]).max().unwrap_or(0)
            })
            .collect();
        let numeric: Vec<bool> = (0..self.columns.len())
            .map(|at| {
                let mut cells = self.rows.iter().filter_map(|row| row.get(at).and_then(Option::as_deref)).peekable();
                cells.peek().is_some() && cells.all(|cell| cell.parse::<f64>().is_ok())
            })
            .collect();
        let line = |cells: Vec<String>| cells.join("|").trim_end().to_string();
        let header = self.columns.iter().zip(&widths).map(|(name, width)| format!(" {name:^width$} ")).collect();
        writeln!(f, "{}", line(header))?;
        writeln!(f, "{}", widths.iter().map(|width| "-".repeat(width + 2)).collect::<Vec<_>>().join("+"))?;
        for row in &self.rows {
            let cells = row
                .iter()
                .zip(widths.iter().zip(&numeric))
                .map(|(cell, (width, numeric))| {
                    let cell = cell.as_deref().unwrap_or("");
                    if *numeric { format!(" {cell:>width$} ") } else { format!(" {cell:<width$} ") }
                })
                .collect();
            writeln!(f, "{}", line(cells))?;
        }
        write!(f, "({} row{})", self.rows.len(), if self.rows.len() == 1 { "" } else { "s" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_like_psql() {
        let mut table = Table::new(vec!["name".into(), "n".into()]);
        table.push(vec![Some("a".into()), Some("10".into())]);
        table.push(vec![None, Some("7".into())]);
        let expanded = "-[ RECORD 1 ]----\nname | a\nn    | 10\n-[ RECORD 2 ]----\nname |\nn    | 7\n";
        assert_eq!(table.expanded(), expanded);
        assert_eq!(table.to_string(), " name | n\n------+----\n a    | 10\n      |  7\n(2 rows)");
    }
}
