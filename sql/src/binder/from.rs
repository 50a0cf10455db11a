//! The FROM clause: tables, views, subqueries and joins.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Column as PlanColumn, DFSchema, NullEquality, TableReference};
use datafusion::datasource::TableType;
use datafusion::logical_expr::{
    Case, Expr, ExprSchemable, Join, JoinConstraint, JoinType, LogicalPlan, LogicalPlanBuilder, Operator, SubqueryAlias, TableSource, Union,
};
use datafusion::sql::sqlparser::ast::{self, Spanned};
use weir_catalog::{Error, JobKind, Object, Result, SqlState, SqlType};

use super::decorrelate::subquery_in;
use super::expr::subquery_of;
use super::scope::{Clause, OutputColumn, Relation, Scope, ScopeColumn, name_of};
use super::series::SeriesCall;
use super::types::{Bound, Type};
use super::unnest::UnnestCall;
use super::{CatalogSource, Session, TableCall, bind_error, project};

/// A FROM item: its plan, and the names that it brings.
pub(super) struct FromItem {
    pub plan: LogicalPlan,
    pub columns: Vec<ScopeColumn>,
}

/// How deep views (not materialized ones) may stand in one another: every walk over the plan goes as deep.
pub(super) const MAX_VIEW_NESTING: usize = 100;

/// `54001`: a chain of views is longer than a query over it may be.
pub fn nested_too_deeply() -> Error {
    Error::new(SqlState::STATEMENT_TOO_COMPLEX, "statement too complex")
        .with_detail(format!("Views may read views {MAX_VIEW_NESTING} levels deep."))
        .with_hint("A materialized view ends a chain of views: what reads it is planned by itself.")
}

impl Session<'_> {
    /// The whole FROM clause; without one, a single row of no columns.
    pub(super) fn from(&self, from: &[ast::TableWithJoins], scope: &Scope<'_>) -> Result<FromItem> {
        let mut result: Option<FromItem> = None;
        for item in from {
            if let (Some(call), true) = (UnnestCall::new(&item.relation), item.joins.is_empty()) {
                let left = result.unwrap_or_else(|| FromItem { plan: one_row(), columns: Vec::new() });
                result = Some(self.unnest(left, &call, false, scope)?);
                continue;
            }
            let left = result.as_ref().map_or(&[][..], |left| &left.columns);
            let right = self.table_with_joins(item, left, scope)?;
            result = Some(match result {
                None => right,
                Some(left) => self.cross_join(left, right)?,
            });
        }
        Ok(result.unwrap_or_else(|| FromItem { plan: one_row(), columns: Vec::new() }))
    }

    fn cross_join(&self, left: FromItem, right: FromItem) -> Result<FromItem> {
        check_names(&left.columns, &right.columns)?;
        let plan = join(left.plan, right.plan, JoinType::Inner, None)?;
        let mut columns = left.columns;
        columns.extend(right.columns);
        Ok(FromItem { plan, columns })
    }

    fn table_with_joins(&self, item: &ast::TableWithJoins, before: &[ScopeColumn], scope: &Scope<'_>) -> Result<FromItem> {
        let mut left = self.table_factor(&item.relation, before, scope)?;
        for join in &item.joins {
            if let Some(call) = UnnestCall::new(&join.relation) {
                left = self.join_unnest(left, &call, &join.join_operator, scope)?;
                continue;
            }
            // Only these look at what stands before them.
            let looks_back = matches!(join.relation, ast::TableFactor::Derived { lateral: true, .. } | ast::TableFactor::NestedJoin { .. });
            let visible: Vec<ScopeColumn> = if looks_back { before.iter().chain(&left.columns).cloned().collect() } else { Vec::new() };
            let right = self.table_factor(&join.relation, &visible, scope)?;
            left = self.join(left, right, &join.join_operator, scope)?;
        }
        Ok(left)
    }

    fn join(&self, left: FromItem, right: FromItem, operator: &ast::JoinOperator, scope: &Scope<'_>) -> Result<FromItem> {
        use ast::JoinOperator as J;
        let (join_type, constraint) = match operator {
            J::Join(constraint) | J::Inner(constraint) => (JoinType::Inner, constraint),
            J::Left(constraint) | J::LeftOuter(constraint) => (JoinType::Left, constraint),
            J::Right(constraint) | J::RightOuter(constraint) => (JoinType::Right, constraint),
            J::FullOuter(constraint) => (JoinType::Full, constraint),
            J::CrossJoin(ast::JoinConstraint::None) => return self.cross_join(left, right),
            other => return Err(Error::unsupported(format!("this kind of join is not supported: {other:?}"))),
        };
        check_names(&left.columns, &right.columns)?;
        let common: Vec<String> = match constraint {
            ast::JoinConstraint::On(condition) => {
                let mut columns = left.columns;
                columns.extend(right.columns);
                let inside = Scope { columns: &columns, clause: Clause::JoinOn, ..*scope };
                let condition = self.boolean(self.expr(condition, &inside)?, "JOIN/ON")?;
                let plan = join(left.plan, right.plan, join_type, Some(condition.expr))?;
                return Ok(FromItem { plan, columns });
            }
            ast::JoinConstraint::Using(names) => names
                .iter()
                .map(|name| match name.0.first().and_then(|part| part.as_ident()) {
                    Some(ident) if name.0.len() == 1 => Ok(name_of(ident)),
                    _ => Err(Error::new(SqlState::SYNTAX_ERROR, format!("invalid column name {name} in USING"))),
                })
                .collect::<Result<_>>()?,
            ast::JoinConstraint::Natural => {
                let names: HashSet<&str> =
                    right.columns.iter().filter(|column| !column.merged).map(|column| column.name.as_str()).collect();
                let common = left.columns.iter().filter(|column| !column.merged && names.contains(column.name.as_str()));
                common.map(|column| column.name.clone()).collect()
            }
            ast::JoinConstraint::None => {
                return Err(Error::new(SqlState::SYNTAX_ERROR, "a join needs ON, USING or NATURAL"));
            }
        };
        self.join_using(left, right, join_type, &common)
    }

    /// A join in which each of `names` is one column.
    fn join_using(&self, left: FromItem, right: FromItem, join_type: JoinType, names: &[String]) -> Result<FromItem> {
        let (mut left_columns, mut right_columns) = (left.columns, right.columns);
        let mut merged = Vec::with_capacity(names.len());
        let mut condition: Option<Expr> = None;
        for name in names {
            let a = take_common(&mut left_columns, name, "left")?;
            let b = take_common(&mut right_columns, name, "right")?;
            let bound = |column: &ScopeColumn| Bound::new(column.expr.clone(), column.ty.clone());
            let equal = self.compare(bound(&a), Operator::Eq, bound(&b))?.expr;
            condition = Some(match condition {
                Some(condition) => condition.and(equal),
                None => equal,
            });
            let (expr, ty) = match join_type {
                JoinType::Right => (b.expr, b.ty),
                JoinType::Full => {
                    let (mut values, ty) = self.unify(vec![bound(&a), bound(&b)], "JOIN/USING")?;
                    let second = values.pop().map(|value| Box::new(value.expr));
                    let arms = values
                        .into_iter()
                        .map(|value| (Box::new(Expr::IsNotNull(Box::new(value.expr.clone()))), Box::new(value.expr)))
                        .collect();
                    (Expr::Case(Case::new(None, arms, second)), ty)
                }
                _ => (a.expr, a.ty),
            };
            merged.push(ScopeColumn { relation: None, name: name.clone(), expr, ty, merged: false, key: None });
        }
        let plan = join(left.plan, right.plan, join_type, condition)?;
        merged.extend(left_columns);
        merged.extend(right_columns);
        Ok(FromItem { plan, columns: merged })
    }

    fn table_factor(&self, factor: &ast::TableFactor, before: &[ScopeColumn], scope: &Scope<'_>) -> Result<FromItem> {
        match factor {
            ast::TableFactor::Table {
                name,
                alias,
                args: None,
                with_hints,
                version: None,
                with_ordinality: false,
                partitions,
                json_path: None,
                sample: None,
                index_hints,
            } if with_hints.is_empty() && partitions.is_empty() && index_hints.is_empty() => {
                let (relation, default_alias) = self.named_relation(name, scope)?;
                let key = primary_key(&relation);
                let mut item = self.aliased(relation, alias.as_ref(), Some(&default_alias))?;
                if let Some(key) = key {
                    let key: Arc<[Expr]> = key.into_iter().map(|column| item.columns[column].expr.clone()).collect();
                    item.columns.iter_mut().for_each(|column| column.key = Some(Arc::clone(&key)));
                }
                Ok(item)
            }
            ast::TableFactor::Table {
                name,
                alias,
                args: Some(arguments),
                with_hints,
                version: None,
                with_ordinality: false,
                partitions,
                json_path: None,
                sample: None,
                index_hints,
            } if with_hints.is_empty()
                && partitions.is_empty()
                && index_hints.is_empty()
                && let Some(call) = self.at_span(TableCall::new(name, arguments), name.span())? =>
            {
                let Some(source) = self.system.and_then(|system| system.called(&call)) else {
                    let error = Error::unsupported(format!("{}(...) can't be read here", call.function))
                        .with_detail("It is the state at one moment: it has no changes that a view could follow, and no INSERT reads it.")
                        .with_hint("SELECT from it in a statement of its own.");
                    return Err(self.at(error, name.span()));
                };
                let columns = source.schema().fields().iter().map(|field| called_column(field)).collect::<Result<Vec<_>>>()?;
                self.aliased(scan(&call.function, columns, source)?, alias.as_ref(), Some(&call.function))
            }
            ast::TableFactor::Derived { lateral, subquery, alias, sample: None } => {
                if *lateral {
                    let visible = Scope { columns: before, ..*scope };
                    let inside = Scope { columns: &[], outer: Some(&visible), common_tables: scope.common_tables, clause: Clause::Select };
                    let mut relation = self.query(subquery, &inside)?.with_known_types()?;
                    relation.plan = LogicalPlan::Subquery(subquery_of(relation.plan));
                    return self.aliased(relation, alias.as_ref(), None);
                }
                let inside = Scope { columns: &[], outer: scope.outer, common_tables: scope.common_tables, clause: Clause::Select };
                let relation = self.query(subquery, &inside)?.with_known_types()?;
                self.aliased(relation, alias.as_ref(), None)
            }
            factor if let Some(call) = SeriesCall::new(factor) => self.series(&call, scope),
            factor if let Some(call) = UnnestCall::new(factor) => self.unnest_alone(&call, scope),
            ast::TableFactor::NestedJoin { table_with_joins, alias: None } => self.table_with_joins(table_with_joins, before, scope),
            other => Err(self.at(Error::unsupported(format!("{other} in FROM is not supported")), other.span())),
        }
    }

    /// A table, view or WITH query by name; also the name that it has without an alias.
    pub(super) fn named_relation(&self, name: &ast::ObjectName, scope: &Scope<'_>) -> Result<(Relation, String)> {
        let idents: Vec<String> = name.0.iter().filter_map(|part| part.as_ident()).map(name_of).collect();
        let span = name.span();
        let (schema, table) = match &idents[..] {
            [table] => (None, table),
            [schema, table] => (Some(schema.as_str()), table),
            [database, schema, table] if database == "weir" => (Some(schema.as_str()), table),
            _ => return Err(self.at(Error::unsupported(format!("the table name {name} is not supported")), span)),
        };
        if schema.is_none()
            && let Some(common) = scope.common_tables.iter().rev().find(|common| common.name == *table)
        {
            return Ok((common.relation.clone(), table.clone()));
        }
        if matches!(schema, None | Some("public"))
            && let Some(object) = self.catalog.get(table)
        {
            return Ok((self.at_span(self.object(object), span)?, table.clone()));
        }
        if let Some(source) = self.system.and_then(|system| system.resolve(schema, table)) {
            return Ok((scan(table, source.columns.clone(), Arc::new(source))?, table.clone()));
        }
        let shown = idents.join(".");
        if matches!(schema, Some("pg_catalog" | "information_schema")) || schema.is_none() && table.starts_with("pg_") {
            let error = Error::unsupported(format!("system catalog relation \"{shown}\" can't be read here"))
                .with_detail("PostgreSQL's catalogs are made up for whoever asks, in statements that read nothing else; they have no changes to follow.")
                .with_hint("SELECT from it in a statement of its own, or read weir's own system views, such as weir_relations.");
            return Err(self.at(error, span));
        }
        Err(self.at(Error::new(SqlState::UNDEFINED_TABLE, format!("relation \"{shown}\" does not exist")), span))
    }

    fn object(&self, object: &Arc<Object>) -> Result<Relation> {
        let id = object.id();
        match object.as_ref() {
            Object::View(view) => {
                if self.expanding.contains(&id) {
                    return Err(Error::new(
                        SqlState::INVALID_OBJECT_DEFINITION,
                        format!("infinite recursion detected in view \"{}\"", view.name),
                    ));
                }
                if self.expanding.len() >= MAX_VIEW_NESTING {
                    return Err(nested_too_deeply());
                }
                if !self.state.borrow().macros.contains(&id) {
                    self.state.borrow_mut().macros.push(id);
                }
                let query = crate::parser::parse_query(&view.query)?;
                let mut inside = self.clone();
                inside.text = None;
                inside.expanding.push(id);
                let mut relation = inside.query(&query, &Scope::EMPTY)?.with_known_types()?;
                if relation.columns.len() != view.columns.len() {
                    return Err(Error::internal(format!("view \"{}\" no longer has the columns that it was made with", view.name)));
                }
                for (column, declared) in relation.columns.iter_mut().zip(&view.columns) {
                    column.name.clone_from(&declared.name);
                }
                Ok(relation)
            }
            Object::Job(job) if !matches!(job.kind, JobKind::MaterializedView { .. }) => {
                Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("cannot select from {} \"{}\"", object.kind(), job.name)))
            }
            _ => {
                if !self.state.borrow().inputs.contains(&id) {
                    self.state.borrow_mut().inputs.push(id);
                }
                scan(object.name(), object.columns().to_vec(), Arc::new(CatalogSource::new(Arc::clone(object))))
            }
        }
    }

    /// A relation under its alias, whose columns it can rename.
    pub(super) fn aliased(&self, relation: Relation, alias: Option<&ast::TableAlias>, default: Option<&str>) -> Result<FromItem> {
        let name = match (alias, default) {
            (Some(alias), _) => name_of(&alias.name),
            (None, Some(default)) => default.to_string(),
            (None, None) => {
                return Err(Error::new(SqlState::SYNTAX_ERROR, "subquery in FROM must have an alias")
                    .with_hint("For example, FROM (SELECT ...) [AS] foo."));
            }
        };
        let mut names: Vec<String> = relation.columns.iter().map(|column| column.name.clone()).collect();
        if let Some(alias) = alias {
            if alias.columns.len() > names.len() {
                let error = Error::new(
                    SqlState::parse("42P10").unwrap_or(SqlState::SYNTAX_ERROR),
                    format!("table \"{name}\" has {} columns available but {} columns specified", names.len(), alias.columns.len()),
                );
                return Err(self.at(error, alias.name.span));
            }
            for (renamed, column) in names.iter_mut().zip(&alias.columns) {
                *renamed = name_of(&column.name);
            }
        }
        let reference = TableReference::bare(name.as_str());
        let already = relation.columns.iter().all(|column| column.column.relation.as_ref() == Some(&reference));
        // In the plan, the columns keep unique names of their own.
        let plan = if already && !relation.columns.is_empty() {
            relation.plan
        } else {
            LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(relation.plan), reference.clone()).map_err(bind_error)?)
        };
        let columns = relation
            .columns
            .into_iter()
            .zip(names)
            .map(|(column, shown)| ScopeColumn {
                relation: Some(name.clone()),
                name: shown,
                expr: Expr::Column(PlanColumn::new(Some(reference.clone()), column.column.name)),
                ty: column.ty,
                merged: false,
                key: None,
            })
            .collect();
        Ok(FromItem { plan, columns })
    }
}

/// A column of the table that a call gives.
fn called_column(field: &arrow::datatypes::Field) -> Result<weir_catalog::Column> {
    let ty = SqlType::from_arrow(field.data_type()).ok_or_else(|| {
        Error::unsupported(format!("column \"{}\" has type {}, which SQL does not have here", field.name(), field.data_type()))
    })?;
    Ok(weir_catalog::Column { name: field.name().clone(), ty, nullable: true, default: None })
}

/// The positions of the primary key in the columns of a stored table that is scanned as it is.
fn primary_key(relation: &Relation) -> Option<Vec<usize>> {
    let LogicalPlan::TableScan(scan) = &relation.plan else { return None };
    let source = (scan.source.as_ref() as &dyn std::any::Any).downcast_ref::<CatalogSource>()?;
    match source.object.as_ref() {
        Object::StoredTable(table) => table.primary_key.clone(),
        _ => None,
    }
}

/// One row without columns.
pub(super) fn one_row() -> LogicalPlan {
    LogicalPlanBuilder::empty(true).build().unwrap_or_else(|_| LogicalPlan::default())
}

pub(super) fn scan(name: &str, columns: Vec<weir_catalog::Column>, source: Arc<dyn TableSource>) -> Result<Relation> {
    debug_assert!(matches!(source.table_type(), TableType::Base | TableType::View));
    let reference = TableReference::bare(name);
    let plan = LogicalPlanBuilder::scan(reference.clone(), source, None).and_then(LogicalPlanBuilder::build).map_err(bind_error)?;
    let columns = columns
        .into_iter()
        .map(|column| OutputColumn {
            column: PlanColumn::new(Some(reference.clone()), &column.name),
            name: column.name,
            ty: Type::Sql(column.ty),
        })
        .collect();
    Ok(Relation { plan, columns })
}

/// A join; equalities between the sides become its keys when it is optimised.
fn join(left: LogicalPlan, right: LogicalPlan, join_type: JoinType, filter: Option<Expr>) -> Result<LogicalPlan> {
    let join = Join::try_new(
        Arc::new(left),
        Arc::new(right),
        Vec::new(),
        filter,
        join_type,
        JoinConstraint::On,
        NullEquality::NullEqualsNothing,
        false,
    )
    .map_err(bind_error)?;
    Ok(LogicalPlan::Join(join))
}

/// The column `name`, which both sides of a USING must have once; it stays reachable by its qualified name.
fn take_common(columns: &mut [ScopeColumn], name: &str, side: &str) -> Result<ScopeColumn> {
    let mut found = columns.iter_mut().filter(|column| !column.merged && column.name == name);
    let Some(column) = found.next() else {
        return Err(Error::new(
            SqlState::UNDEFINED_COLUMN,
            format!("column \"{name}\" specified in USING clause does not exist in {side} table"),
        ));
    };
    if found.next().is_some() {
        return Err(Error::new(
            SqlState::AMBIGUOUS_COLUMN,
            format!("common column name \"{name}\" appears more than once in {side} table"),
        ));
    }
    column.merged = true;
    Ok(column.clone())
}

/// Two FROM items can't have one name.
pub(super) fn check_names(left: &[ScopeColumn], right: &[ScopeColumn]) -> Result<()> {
    let names: HashSet<&str> = left.iter().filter_map(|column| column.relation.as_deref()).collect();
    for column in right {
        if let Some(relation) = &column.relation
            && names.contains(relation.as_str())
        {
            let code = SqlState::parse("42712").unwrap_or(SqlState::DUPLICATE_OBJECT);
            return Err(Error::new(code, format!("table name \"{relation}\" specified more than once")));
        }
    }
    Ok(())
}

/// Constant rows of given types, as columns `column1`, `column2`, ...
pub(super) fn values(rows: Vec<Vec<Expr>>, types: &[Type]) -> Result<Relation> {
    if rows.iter().flatten().any(reaches_out) {
        return computed_values(rows, types);
    }
    let plan = LogicalPlanBuilder::values(rows).and_then(LogicalPlanBuilder::build).map_err(bind_error)?;
    let schema = Arc::clone(plan.schema());
    // All-NULL columns have no type in DataFusion's VALUES.
    let exprs = (0..types.len())
        .map(|i| {
            let (qualifier, field) = schema.qualified_field(i);
            let column = PlanColumn::new(qualifier.cloned(), field.name());
            let expr = Expr::Column(column);
            if *field.data_type() == types[i].to_arrow() {
                expr
            } else {
                Expr::Cast(datafusion::logical_expr::Cast::new(Box::new(expr), types[i].to_arrow())).alias(field.name())
            }
        })
        .collect::<Vec<_>>();
    let plan = if exprs.iter().all(|expr| matches!(expr, Expr::Column(_))) { plan } else { project(plan, exprs)? };
    Ok(numbered_columns(plan, types))
}

/// The columns of a plan of rows, called `column1`, `column2`, ...
fn numbered_columns(plan: LogicalPlan, types: &[Type]) -> Relation {
    let schema = Arc::clone(plan.schema());
    let columns = types
        .iter()
        .enumerate()
        .map(|(i, ty)| OutputColumn {
            name: format!("column{}", i + 1),
            column: PlanColumn::from(schema.qualified_field(i)),
            ty: ty.clone(),
        })
        .collect();
    Relation { plan, columns }
}

/// Whether a value is computed from a subquery or from the query around.
fn reaches_out(expr: &Expr) -> bool {
    expr.exists(|expr| Ok(matches!(expr, Expr::OuterReferenceColumn(..)) || subquery_in(expr).is_some())).unwrap_or(true)
}

/// Rows whose values DataFusion's VALUES can't hold: each is a query of its own, and all of them are put together.
fn computed_values(rows: Vec<Vec<Expr>>, types: &[Type]) -> Result<Relation> {
    let row = |row: Vec<Expr>| {
        let exprs = row.into_iter().zip(types).enumerate().map(|(i, (expr, ty))| {
            let is_typed = expr.get_type(&DFSchema::empty()).map_err(bind_error)? == ty.to_arrow();
            let expr = if is_typed { expr } else { Expr::Cast(datafusion::logical_expr::Cast::new(Box::new(expr), ty.to_arrow())) };
            Ok(expr.alias(format!("column{}", i + 1)))
        });
        project(one_row(), exprs.collect::<Result<_>>()?).map(Arc::new)
    };
    let mut rows = rows.into_iter().map(row).collect::<Result<Vec<_>>>()?;
    let plan = match rows.pop() {
        Some(only) if rows.is_empty() => Arc::unwrap_or_clone(only),
        Some(last) => {
            rows.push(last);
            LogicalPlan::Union(Union::try_new(rows).map_err(bind_error)?)
        }
        None => return Err(Error::internal("VALUES without rows")),
    };
    Ok(numbered_columns(plan, types))
}

/// A literal of a type, NULL.
pub(super) fn null_of(ty: &SqlType) -> Result<Expr> {
    datafusion::common::ScalarValue::try_from(&ty.to_arrow()).map(|value| Expr::Literal(value, None)).map_err(bind_error)
}
