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
        assert_eq!(table.to_string(), " name | n\n------+----\n a    | 10\n      |  7\n(2 rows)");
    }
}
