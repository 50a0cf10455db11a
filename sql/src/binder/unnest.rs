//! `UNNEST(array)` in FROM: a row for each element of an array, beside the row that the array comes from.

use std::sync::Arc;

use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Column as PlanColumn, FunctionalDependencies, NullHandling, TableReference, UnnestOptions};
use datafusion::logical_expr::{Expr, Filter, LogicalPlan, Unnest};
use datafusion::sql::sqlparser::ast::{self, Spanned};
use weir_catalog::{Error, Result, SqlState, SqlType};

use super::from::{FromItem, one_row};
use super::query::unique_names;
use super::scope::{Clause, Scope, ScopeColumn, name_of};
use super::types::{Bound, Type};
use super::{Session, bind_error, project};

/// How the columns are called in plans that hold what is unnested.
const UNNESTED: &str = "__unnest_";

/// An UNNEST as it is written.
pub(super) struct UnnestCall<'a> {
    arrays: Vec<&'a ast::Expr>,
    alias: Option<&'a ast::TableAlias>,
    factor: &'a ast::TableFactor,
}

impl<'a> UnnestCall<'a> {
    /// The UNNEST that a FROM item is, with or without LATERAL, which says nothing of a function; `None` for any other.
    pub(super) fn new(factor: &'a ast::TableFactor) -> Option<UnnestCall<'a>> {
        let is_unnest =
            |name: &ast::ObjectName| matches!(name.0.as_slice(), [part] if part.as_ident().map(name_of).as_deref() == Some("unnest"));
        match factor {
            ast::TableFactor::UNNEST { alias, array_exprs, with_offset: false, with_offset_alias: None, with_ordinality: false } => {
                Some(UnnestCall { arrays: array_exprs.iter().collect(), alias: alias.as_ref(), factor })
            }
            ast::TableFactor::Function { lateral: _, name, args, with_ordinality: false, alias } if is_unnest(name) => {
                let arrays = args.iter().map(|argument| match argument {
                    ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => Some(expr),
                    _ => None,
                });
                Some(UnnestCall { arrays: arrays.collect::<Option<_>>()?, alias: alias.as_ref(), factor })
            }
            _ => None,
        }
    }
}

impl Session<'_> {
    /// `left CROSS JOIN UNNEST(array)`; with `outer`, a row whose array has no elements stays, with NULL.
    pub(super) fn unnest(&self, left: FromItem, call: &UnnestCall<'_>, outer: bool, scope: &Scope<'_>) -> Result<FromItem> {
        let [array] = call.arrays.as_slice() else {
            return Err(self.at(Error::unsupported("UNNEST of several arrays is not supported"), call.factor.span()));
        };
        let inside = Scope { columns: &left.columns, clause: Clause::JoinOn, ..*scope };
        let array = self.expr(array, &inside)?;
        let Type::Sql(SqlType::Array(element)) = &array.ty else {
            let error = Error::new(SqlState::UNDEFINED_FUNCTION, format!("function unnest({}) does not exist", array.ty.name()));
            return Err(super::positioned(error, array.position));
        };
        let element = element.as_ref().clone();
        if array.expr.exists(|expr| Ok(matches!(expr, Expr::OuterReferenceColumn(..)))).map_err(bind_error)? {
            return Err(super::positioned(
                Error::unsupported("UNNEST of an array of the query around is not supported")
                    .with_hint("Unnest it in the FROM of the outer query."),
                array.position,
            ));
        }
        let relation = call.alias.map_or_else(|| "unnest".to_string(), |alias| name_of(&alias.name));
        if left.columns.iter().any(|column| column.relation.as_ref() == Some(&relation)) {
            let code = SqlState::parse("42712").unwrap_or(SqlState::DUPLICATE_OBJECT);
            return Err(Error::new(code, format!("table name \"{relation}\" specified more than once")));
        }
        let (plan, unnested) = unnested(left.plan, array.expr, outer)?;
        let elements = self.elements(unnested, &element, &relation, call)?;
        let reference = TableReference::bare(relation.as_str());
        let names = unique_names(elements.iter().map(|(name, _)| name.as_str()));
        let mut exprs: Vec<Expr> = columns_of(&plan)[..plan.schema().fields().len() - 1].to_vec();
        let mut columns = left.columns;
        for ((name, bound), unique) in elements.into_iter().zip(names) {
            columns.push(ScopeColumn {
                relation: Some(relation.clone()),
                name,
                expr: Expr::Column(PlanColumn::new(Some(reference.clone()), &unique)),
                ty: bound.ty,
                merged: false,
                key: None,
            });
            exprs.push(bound.expr.alias_qualified(Some(reference.clone()), unique));
        }
        Ok(FromItem { plan: project(plan, exprs)?, columns })
    }

    /// UNNEST that begins a FROM.
    pub(super) fn unnest_alone(&self, call: &UnnestCall<'_>, scope: &Scope<'_>) -> Result<FromItem> {
        self.unnest(FromItem { plan: one_row(), columns: Vec::new() }, call, false, scope)
    }

    /// `left JOIN UNNEST(array) ON ...`
    pub(super) fn join_unnest(
        &self,
        left: FromItem,
        call: &UnnestCall<'_>,
        operator: &ast::JoinOperator,
        scope: &Scope<'_>,
    ) -> Result<FromItem> {
        use ast::JoinConstraint as C;
        use ast::JoinOperator as J;
        let is_true = |expr: &ast::Expr| matches!(super::nested::unparenthesised(expr), ast::Expr::Value(value) if value.value == ast::Value::Boolean(true));
        match operator {
            J::CrossJoin(C::None) => self.unnest(left, call, false, scope),
            J::Join(C::On(condition)) | J::Inner(C::On(condition)) => {
                let mut item = self.unnest(left, call, false, scope)?;
                if !is_true(condition) {
                    let inside = Scope { columns: &item.columns, clause: Clause::JoinOn, ..*scope };
                    let condition = self.boolean(self.expr(condition, &inside)?, "JOIN/ON")?;
                    item.plan = LogicalPlan::Filter(Filter::try_new(condition.expr, Arc::new(item.plan)).map_err(bind_error)?);
                }
                Ok(item)
            }
            J::Left(C::On(condition)) | J::LeftOuter(C::On(condition)) if is_true(condition) => self.unnest(left, call, true, scope),
            _ => Err(self.at(
                Error::unsupported("this kind of join with UNNEST is not supported")
                    .with_hint("Write CROSS JOIN UNNEST(...), or LEFT JOIN UNNEST(...) ON true."),
                call.factor.span(),
            )),
        }
    }

    /// The columns of an UNNEST: those of its rows, or one with its elements.
    fn elements(&self, unnested: PlanColumn, element: &SqlType, relation: &str, call: &UnnestCall<'_>) -> Result<Vec<(String, Bound)>> {
        let bound = Bound::new(Expr::Column(unnested), element.clone());
        let mut elements = match element {
            SqlType::Row(fields) => {
                fields.iter().map(|(name, _)| Ok((name.clone(), self.field(bound.clone(), name)?))).collect::<Result<Vec<_>>>()?
            }
            // PostgreSQL calls the column of a function as the table.
            _ => vec![(relation.to_string(), bound)],
        };
        let names = call.alias.map_or(&[][..], |alias| &alias.columns);
        if names.len() > elements.len() {
            let code = SqlState::parse("42P10").unwrap_or(SqlState::SYNTAX_ERROR);
            let message = format!("table \"{relation}\" has {} columns available but {} columns specified", elements.len(), names.len());
            return Err(self.at(Error::new(code, message), call.factor.span()));
        }
        for ((shown, _), column) in elements.iter_mut().zip(names) {
            *shown = name_of(&column.name);
        }
        Ok(elements)
    }
}

/// The columns of a plan.
fn columns_of(plan: &LogicalPlan) -> Vec<Expr> {
    plan.schema().iter().map(|(qualifier, field)| Expr::Column(PlanColumn::new(qualifier.cloned(), field.name()))).collect()
}

/// The rows of `plan`, each as often as `array` has elements, and a last column with these.
fn unnested(plan: LogicalPlan, array: Expr, outer: bool) -> Result<(LogicalPlan, PlanColumn)> {
    let number = plan.schema().fields().iter().filter(|field| field.name().starts_with(UNNESTED)).count();
    let name = format!("{UNNESTED}{number}");
    let mut exprs = columns_of(&plan);
    exprs.push(array.alias(&name));
    let input = project(plan, exprs)?;
    let column = PlanColumn::new_unqualified(name);
    let null_handling = if outer { NullHandling::PreserveAndExpandEmpty } else { NullHandling::Drop };
    let options = UnnestOptions { null_handling, recursions: Vec::new() };
    let mut unnest = Unnest::try_new(Arc::new(input), vec![column.clone()], options).map_err(bind_error)?;
    // What was one row is several: nothing that told rows apart does so any more.
    let schema = Arc::unwrap_or_clone(unnest.schema).with_functional_dependencies(FunctionalDependencies::empty());
    unnest.schema = Arc::new(schema.map_err(bind_error)?);
    Ok((LogicalPlan::Unnest(unnest), column))
}
