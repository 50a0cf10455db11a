//! PREPARE, EXECUTE and DEALLOCATE: statements that a session keeps under a name. Those that clients prepare by messages of the protocol have names of their
//! own, in another place.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::{EmptyRelation, LogicalPlan, Projection};
use datafusion::sql::sqlparser::ast;
use futures::StreamExt;
use weir_catalog::{Error, Result, SqlState, SqlType};
use weir_sql::binder::{Binder, bind_error};
use weir_sql::statement::Parsed;

use super::prepared::{Arguments, Described};
use super::session::{Reply, Session};
use crate::operators::error::from_datafusion;

/// A statement with a name.
#[derive(Clone)]
pub struct NamedStatement {
    parsed: Arc<Parsed>,
    pub(super) described: Arc<Described>,
}

impl Session {
    /// `PREPARE name (types) AS statement`.
    pub(super) async fn prepare_named(&mut self, name: &str, types: &[SqlType], statement: &Parsed) -> Result<Reply> {
        let types = types.iter().cloned().map(Some).collect();
        let described = Box::pin(self.describe(statement, types)).await.map_err(|error| match error.position() {
            Some(position) => error.with_position(position + statement.offset),
            None => error,
        })?;
        match self.named.entry(name.to_string()) {
            Entry::Occupied(_) => {
                let code = SqlState::parse("42P05").unwrap_or(SqlState::DUPLICATE_OBJECT);
                Err(Error::new(code, format!("prepared statement \"{name}\" already exists")))
            }
            Entry::Vacant(free) => {
                free.insert(NamedStatement { parsed: Arc::new(statement.clone()), described: Arc::new(described) });
                Ok(Reply::Command("PREPARE".into()))
            }
        }
    }

    pub(super) fn named_statement(&self, name: &str) -> Result<&NamedStatement> {
        self.named.get(name).ok_or_else(|| {
            let code = SqlState::parse("26000").unwrap_or(SqlState::UNDEFINED_OBJECT);
            Error::new(code, format!("prepared statement \"{name}\" does not exist"))
        })
    }

    /// `EXECUTE name (values)`, which `parsed` is.
    pub(super) async fn execute_named(&mut self, parsed: &Parsed, name: &str, written: &[ast::Expr]) -> Result<Reply> {
        let statement = self.named_statement(name)?.clone();
        let wanted = &statement.described.parameters;
        if wanted.len() != written.len() {
            return Err(Error::new(SqlState::SYNTAX_ERROR, format!("wrong number of parameters for prepared statement \"{name}\""))
                .with_detail(format!("Expected {} parameters but got {}.", wanted.len(), written.len())));
        }
        let values = self.values_of(parsed, written, wanted).await?;
        let arguments = Arguments::new(values, statement.described.clone());
        // Its positions count in another text than the client has sent.
        Box::pin(self.dispatch(&statement.parsed, &arguments)).await.map_err(Error::without_position)
    }

    /// `DEALLOCATE name`. Drivers name statements that they prepared by messages, which are not known here and replaced by name: it is no error.
    pub(super) fn deallocate(&mut self, name: Option<&str>) -> Reply {
        match name {
            Some(name) => {
                self.named.remove(name);
                Reply::Command("DEALLOCATE".into())
            }
            None => {
                self.named.clear();
                Reply::Command("DEALLOCATE ALL".into())
            }
        }
    }

    /// One row of `written`.
    fn plan_of_values(&self, parsed: &Parsed, written: &[ast::Expr], wanted: &[SqlType]) -> Result<LogicalPlan> {
        let (catalog, settings) = (self.catalog(), self.binder_settings(Vec::new()));
        let binder = Binder::new(&catalog, &settings).with_text(&parsed.text);
        let exprs = written.iter().zip(wanted).enumerate().map(|(at, (expr, ty))| {
            let expr = binder.bind_argument(expr, at + 1, ty)?;
            Ok(expr.alias(format!("${}", at + 1)))
        });
        let one_row = LogicalPlan::EmptyRelation(EmptyRelation { produce_one_row: true, schema: Arc::new(DFSchema::empty()) });
        let values = Projection::try_new(exprs.collect::<Result<_>>()?, Arc::new(one_row)).map_err(bind_error)?;
        Ok(LogicalPlan::Projection(values))
    }

    /// The values of `written`, as values of types `wanted`.
    async fn values_of(&self, parsed: &Parsed, written: &[ast::Expr], wanted: &[SqlType]) -> Result<Vec<ScalarValue>> {
        if written.is_empty() {
            return Ok(Vec::new());
        }
        let plan = self.plan_of_values(parsed, written, wanted)?;
        let mut rows = self.run(&plan).await?;
        let batch = rows.next().await.transpose().map_err(from_datafusion)?.ok_or_else(|| Error::internal("EXECUTE has no values"))?;
        batch.columns().iter().map(|column| ScalarValue::try_from_array(column, 0).map_err(from_datafusion)).collect()
    }
}
