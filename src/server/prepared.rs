//! What a client was told of a statement that it prepared, and the values that it runs it with.
//!
//! # Invariants
//! - A prepared statement is bound anew each time it runs, over the catalog of then, with the parameter types that its client knows: none is deduced again.
//! - Rows go to the client only if their columns are those that it was told.

use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::logical_expr::LogicalPlan;
use weir_catalog::{Column, Error, Result, SqlType};

/// The message of [`Arguments::check_result`]'s error: clients that keep prepared statements know it, and prepare theirs again.
pub(super) const RESULT_CHANGED: &str = "cached plan must not change result type";

/// What a statement needs and gives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Described {
    /// The types of `$1`, `$2`, ...
    pub parameters: Vec<SqlType>,
    /// The result's columns; none where it gives no rows.
    pub columns: Vec<Column>,
}

/// The values of a statement's parameters; none, for a statement that was not prepared.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    values: Vec<ScalarValue>,
    /// `None` where nobody was told anything.
    described: Option<Arc<Described>>,
}

impl Arguments {
    /// `values`, of the types that `described` names, for a statement that was prepared.
    pub fn new(values: Vec<ScalarValue>, described: Arc<Described>) -> Arguments {
        Arguments { values, described: Some(described) }
    }

    /// The types that the statement is bound with.
    pub(super) fn types(&self) -> Vec<Option<SqlType>> {
        self.described.iter().flat_map(|described| &described.parameters).cloned().map(Some).collect()
    }

    /// Errors with `0A000` where `columns` are not those that the client was told: it would read the rows wrongly.
    pub(super) fn check_result(&self, columns: &[Column]) -> Result<()> {
        let is_same = |(told, column): (&Column, &Column)| told.name == column.name && told.ty == column.ty;
        match &self.described {
            Some(described) if described.columns.len() != columns.len() || !described.columns.iter().zip(columns).all(is_same) => {
                Err(Error::unsupported(RESULT_CHANGED))
            }
            _ => Ok(()),
        }
    }

    /// `plan` with the values in place.
    pub(super) fn put_into(&self, plan: LogicalPlan) -> Result<LogicalPlan> {
        if self.values.is_empty() {
            return Ok(plan);
        }
        plan.with_param_values(self.values.clone()).map_err(crate::operators::error::from_datafusion)
    }
}

/// Whether there are types like `ty` of other precision.
pub(super) fn has_precision(ty: &SqlType) -> bool {
    match ty {
        SqlType::Array(element) => has_precision(element),
        SqlType::Row(fields) => fields.iter().any(|(_, field)| has_precision(field)),
        SqlType::Numeric { .. } | SqlType::Timestamp { .. } => true,
        SqlType::Boolean | SqlType::Int | SqlType::BigInt | SqlType::Double | SqlType::Text => false,
    }
}
