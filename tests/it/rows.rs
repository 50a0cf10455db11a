//! Results, and comparing them.
//!
//! # Invariants
//! - Rows are compared as multisets: order never counts, repetition does.
//! - Doubles agree to a relative 1e-9; everything else must be equal. NULL equals NULL.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use tokio_postgres::types::Type;

/// What a query returned: its columns, and its values as text.
#[derive(Clone, Debug)]
pub struct Rows {
    pub columns: Vec<(String, Type)>,
    pub rows: Vec<Row>,
}

/// One row's values as text; `None` is NULL.
pub type Row = Vec<Option<String>>;

/// How alike numbers must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Two answers of weir: the types are the same, and only doubles may differ a little.
    Exact,
    /// An answer of weir and one of PostgreSQL, whose NUMERIC keeps other digits of a quotient: types may differ among the numbers, and
    /// NUMERIC is compared as doubles are.
    AcrossSystems,
}

/// The largest relative difference of two doubles that count as equal.
const TOLERANCE: f64 = 1e-9;

impl Rows {
    /// How this result (`expected`) and `actual` differ, or `None` where they agree.
    pub fn difference(&self, actual: &Rows, comparison: Comparison) -> Option<String> {
        if self.columns.len() != actual.columns.len() {
            return Some(format!("expected {} columns, got {}", self.columns.len(), actual.columns.len()));
        }
        for ((name, expected), (_, actual)) in self.columns.iter().zip(&actual.columns) {
            let agree = match comparison {
                Comparison::Exact => expected == actual,
                Comparison::AcrossSystems => expected == actual || (is_number(expected) && is_number(actual)),
            };
            if !agree {
                return Some(format!("column \"{name}\": expected type {expected}, got {actual}"));
            }
        }
        let near: Vec<bool> = (self.columns.iter().zip(&actual.columns))
            .map(|((_, left), (_, right))| is_near(left, comparison) || is_near(right, comparison))
            .collect();
        let (missing, surplus) = match_rows(&self.canonical(), &actual.canonical(), &near);
        if missing.is_empty() && surplus.is_empty() {
            return None;
        }
        let mut text = format!("expected {} rows, got {}\n", self.rows.len(), actual.rows.len());
        for (sign, rows) in [("missing", &missing), ("surplus", &surplus)] {
            for row in rows.iter().take(10) {
                text.push_str(&format!("  {sign}: {}\n", show(row)));
            }
            if rows.len() > 10 {
                text.push_str(&format!("  ... and {} more {sign}\n", rows.len() - 10));
            }
        }
        Some(text)
    }

    /// The rows with each number in the one form that stands for its value.
    fn canonical(&self) -> Vec<Row> {
        let numeric: Vec<bool> = self.columns.iter().map(|(_, ty)| *ty == Type::NUMERIC).collect();
        (self.rows.iter())
            .map(|row| {
                row.iter()
                    .zip(&numeric)
                    .map(|(value, numeric)| value.as_ref().map(|text| if *numeric { canonical_numeric(text) } else { text.clone() }))
                    .collect()
            })
            .collect()
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| name.as_str()).collect();
        writeln!(f, "{} ({} rows)", names.join(" | "), self.rows.len())?;
        for row in self.rows.iter().take(20) {
            writeln!(f, "{}", show(row))?;
        }
        Ok(())
    }
}

/// A NUMERIC without the zeros at its end, which only tell its scale.
pub fn canonical_numeric(text: &str) -> String {
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text };
    if text == "-0" || text.is_empty() { "0".to_string() } else { text.to_string() }
}

fn show(row: &Row) -> String {
    row.iter().map(|value| value.as_deref().unwrap_or("NULL")).collect::<Vec<_>>().join(" | ")
}

fn is_number(ty: &Type) -> bool {
    [Type::INT2, Type::INT4, Type::INT8, Type::FLOAT4, Type::FLOAT8, Type::NUMERIC].contains(ty)
}

/// Whether values of this type are compared with a tolerance.
fn is_near(ty: &Type, comparison: Comparison) -> bool {
    *ty == Type::FLOAT8 || *ty == Type::FLOAT4 || (comparison == Comparison::AcrossSystems && *ty == Type::NUMERIC)
}

/// Pairs equal rows of the two sides; returns the rows of each that found no partner.
///
/// Rows are first grouped by the columns that must be equal, then paired within a group. Values within the tolerance of each other are far
/// closer than different values of one group are, so taking the first partner that fits is enough.
fn match_rows(expected: &[Row], actual: &[Row], near: &[bool]) -> (Vec<Row>, Vec<Row>) {
    let mut groups: BTreeMap<Vec<Option<&str>>, (Vec<&Row>, Vec<&Row>)> = BTreeMap::new();
    for row in expected {
        groups.entry(exact_part(row, near)).or_default().0.push(row);
    }
    for row in actual {
        groups.entry(exact_part(row, near)).or_default().1.push(row);
    }
    let (mut missing, mut surplus) = (Vec::new(), Vec::new());
    for (mut left, mut right) in groups.into_values() {
        left.sort_by(|a, b| order(a, b, near));
        right.sort_by(|a, b| order(a, b, near));
        if left.len() == right.len() && left.iter().zip(&right).all(|(a, b)| alike(a, b, near)) {
            continue;
        }
        let mut unmatched: Vec<Option<&Row>> = right.into_iter().map(Some).collect();
        for row in left {
            match unmatched.iter_mut().find(|other| other.is_some_and(|other| alike(row, other, near))) {
                Some(partner) => *partner = None,
                None => missing.push(row.clone()),
            }
        }
        surplus.extend(unmatched.into_iter().flatten().cloned());
    }
    (missing, surplus)
}

/// The values of the columns that must be equal.
fn exact_part<'a>(row: &'a Row, near: &[bool]) -> Vec<Option<&'a str>> {
    row.iter().zip(near).filter(|(_, near)| !**near).map(|(value, _)| value.as_deref()).collect()
}

fn number(value: &Option<String>) -> Option<f64> {
    value.as_ref().and_then(|text| text.parse().ok())
}

/// Orders rows of one group by their doubles.
fn order(left: &Row, right: &Row, near: &[bool]) -> Ordering {
    (left.iter().zip(right).zip(near).filter(|(_, near)| **near))
        .map(|((left, right), _)| match (number(left), number(right)) {
            (Some(left), Some(right)) => left.total_cmp(&right),
            (left, right) => left.is_some().cmp(&right.is_some()),
        })
        .find(|ordering| ordering.is_ne())
        .unwrap_or(Ordering::Equal)
}

/// Whether two rows of one group agree in their doubles.
fn alike(left: &Row, right: &Row, near: &[bool]) -> bool {
    left.iter().zip(right).zip(near).filter(|(_, near)| **near).all(|((left, right), _)| match (left, right) {
        (None, None) => true,
        (Some(a), Some(b)) if a == b => true,
        _ => match (number(left), number(right)) {
            (Some(left), Some(right)) => is_close(left, right),
            _ => false,
        },
    })
}

/// Whether two doubles agree to [`TOLERANCE`].
fn is_close(left: f64, right: f64) -> bool {
    if left.is_nan() || right.is_nan() {
        return left.is_nan() && right.is_nan();
    }
    left == right || (left - right).abs() <= TOLERANCE * left.abs().max(right.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(types: &[Type], values: &[&[&str]]) -> Rows {
        Rows {
            columns: types.iter().enumerate().map(|(i, ty)| (format!("c{i}"), ty.clone())).collect(),
            rows: values.iter().map(|row| row.iter().map(|value| (*value != "NULL").then(|| (*value).to_string())).collect()).collect(),
        }
    }

    #[test]
    fn order_does_not_count_but_repetition_does() {
        let types = [Type::INT8, Type::TEXT];
        let left = rows(&types, &[&["1", "a"], &["2", "b"], &["1", "a"]]);
        assert_eq!(left.difference(&rows(&types, &[&["2", "b"], &["1", "a"], &["1", "a"]]), Comparison::Exact), None);
        let difference = left.difference(&rows(&types, &[&["2", "b"], &["2", "b"], &["1", "a"]]), Comparison::Exact).unwrap();
        assert!(difference.contains("missing: 1 | a") && difference.contains("surplus: 2 | b"), "{difference}");
        assert!(left.difference(&rows(&types, &[&["2", "b"], &["1", "a"]]), Comparison::Exact).is_some());
    }

    #[test]
    fn doubles_agree_within_the_tolerance_only() {
        let types = [Type::INT8, Type::FLOAT8];
        let left = rows(&types, &[&["1", "0.30000000000000004"], &["1", "1e20"], &["1", "NaN"], &["1", "NULL"]]);
        let right = rows(&types, &[&["1", "NULL"], &["1", "100000000000000000000"], &["1", "NaN"], &["1", "0.3"]]);
        assert_eq!(left.difference(&right, Comparison::Exact), None);
        assert!(rows(&types, &[&["1", "1.0"]]).difference(&rows(&types, &[&["1", "1.00000001"]]), Comparison::Exact).is_some());
        assert!(rows(&types, &[&["1", "NULL"]]).difference(&rows(&types, &[&["1", "0"]]), Comparison::Exact).is_some());
        assert!(rows(&types, &[&["1", "NaN"]]).difference(&rows(&types, &[&["1", "0"]]), Comparison::Exact).is_some());
    }

    #[test]
    fn doubles_that_change_places_within_the_tolerance_are_paired() {
        let types = [Type::FLOAT8, Type::FLOAT8];
        let left = rows(&types, &[&["1.0", "5"], &["1.000000000001", "3"]]);
        let right = rows(&types, &[&["1.0", "3"], &["1.000000000001", "5"]]);
        assert_eq!(left.difference(&right, Comparison::Exact), None);
        let wrong = rows(&types, &[&["1.0", "3"], &["1.000000000001", "4"]]);
        assert!(left.difference(&wrong, Comparison::Exact).is_some());
    }

    #[test]
    fn numerics_are_exact_within_weir_whatever_their_scale() {
        let types = [Type::NUMERIC];
        assert_eq!(rows(&types, &[&["1.50"]]).difference(&rows(&types, &[&["1.5000"]]), Comparison::Exact), None);
        assert_eq!(rows(&types, &[&["-0.00"]]).difference(&rows(&types, &[&["0"]]), Comparison::Exact), None);
        assert_eq!(rows(&types, &[&["100"]]).difference(&rows(&types, &[&["100.0"]]), Comparison::Exact), None);
        let left = rows(&types, &[&["12345678901.10"]]);
        assert!(left.difference(&rows(&types, &[&["12345678901.11"]]), Comparison::Exact).is_some());
        assert!(rows(&types, &[&["100"]]).difference(&rows(&types, &[&["1"]]), Comparison::Exact).is_some());
    }

    #[test]
    fn types_count_within_weir() {
        let left = rows(&[Type::NUMERIC], &[&["1"]]);
        let right = rows(&[Type::INT8], &[&["1"]]);
        assert!(left.difference(&right, Comparison::Exact).is_some());
        assert_eq!(left.difference(&right, Comparison::AcrossSystems), None);
        assert!(left.difference(&rows(&[Type::TEXT], &[&["1"]]), Comparison::AcrossSystems).is_some());
    }
}
