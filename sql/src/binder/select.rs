//! SELECT: grouping, aggregates, windows, DISTINCT, and ORDER BY over what the result does not show.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column as PlanColumn, DataFusionError};
use datafusion::functions_window::row_number::row_number_udwf;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::utils::{find_aggregate_exprs, find_window_exprs};
use datafusion::logical_expr::{
    Aggregate, Distinct, Expr, Filter, LogicalPlan, LogicalPlanBuilder, Operator, SortExpr as Sort, SubqueryAlias, WindowFrame, lit,
};
use datafusion::sql::sqlparser::ast::{self, Spanned};
use weir_catalog::{Error, Result, SqlState};

use super::expr::known;
use super::naming::{distinguish, distinguish_calls};
use super::nested::check_key;
use super::order::{in_order, order_of};
use super::query::{sort, unique_names};
use super::scope::{Clause, OutputColumn, Relation, Scope, ScopeColumn, name_of};
use super::types::{Bound, Type};
use super::window::sort_key;
use super::{Session, bind_error, positioned, project};
use crate::functions::external;

/// An item of the SELECT list.
struct Item {
    name: String,
    bound: Bound,
}

/// A key of ORDER BY: an item of the SELECT list, or an expression besides.
enum OrderKey {
    Item(usize),
    Hidden(usize),
}

impl Session<'_> {
    /// Binds a SELECT with the ORDER BY of its query.
    pub(super) fn select(&self, select: &ast::Select, order_by: &[ast::OrderByExpr], scope: &Scope<'_>) -> Result<Relation> {
        refuse_clauses(select)?;
        let uid = crate::parser::block_uid(select)?;
        let from = self.from(&select.from, scope)?;
        let mut plan = from.plan;
        let names = Scope { columns: &from.columns, outer: scope.outer, common_tables: scope.common_tables, clause: Clause::Select };
        if let Some(condition) = &select.selection {
            let condition = self.boolean(self.expr(condition, &names.in_clause(Clause::Where))?, "WHERE")?;
            plan = filter(plan, condition.expr)?;
        }

        let mut items = self.select_items(select, &names)?;
        let mut group_by = self.group_by(&select.group_by, &items, &names)?;
        let having = match &select.having {
            Some(condition) => Some(self.boolean(self.expr(condition, &names.in_clause(Clause::Having))?, "HAVING")?),
            None => None,
        };
        let mut hidden: Vec<Bound> = Vec::new();
        let mut order_keys: Vec<(OrderKey, &ast::OrderByOptions)> = Vec::new();
        for key in order_by {
            if key.with_fill.is_some() {
                return Err(Error::unsupported("WITH FILL is not supported"));
            }
            let item_names = items.iter().map(|item| item.name.as_str());
            let place = match self.output_position(&key.expr, item_names, "ORDER BY", same_items(&items))? {
                Some(item) => OrderKey::Item(item),
                None => {
                    let bound = known(self.expr(&key.expr, &names.in_clause(Clause::OrderBy))?)?;
                    match items.iter().position(|item| item.bound.expr == bound.expr) {
                        Some(item) => OrderKey::Item(item),
                        None => {
                            hidden.push(bound);
                            OrderKey::Hidden(hidden.len() - 1)
                        }
                    }
                }
            };
            order_keys.push((place, &key.options));
        }
        let mut distinct_on: Vec<Bound> = Vec::new();
        if let Some(ast::Distinct::On(exprs)) = &select.distinct {
            for expr in exprs {
                let item_names = items.iter().map(|item| item.name.as_str());
                distinct_on.push(match self.output_position(expr, item_names, "SELECT DISTINCT ON", same_items(&items))? {
                    Some(item) => items[item].bound.clone(),
                    None => known(self.expr(expr, &names)?)?,
                });
            }
            let keys = order_keys.iter().map(|(key, _)| match key {
                OrderKey::Item(i) => &items[*i].bound.expr,
                OrderKey::Hidden(i) => &hidden[*i].expr,
            });
            if keys.take(distinct_on.len()).any(|key| !distinct_on.iter().any(|on| on.expr == *key)) {
                let code = SqlState::parse("42P10").unwrap_or(SqlState::SYNTAX_ERROR);
                return Err(Error::new(code, "SELECT DISTINCT ON expressions must match initial ORDER BY expressions"));
            }
        }
        for bound in items.iter_mut().map(|item| &mut item.bound).chain(&mut hidden).chain(&mut distinct_on) {
            super::subquery::to_scalar(&mut bound.expr).map_err(|error| positioned(error, bound.position))?;
        }

        // Aggregates.
        let (having_position, mut having) = having.map_or((None, None), |bound| (bound.position, Some(bound.expr)));
        let aggregates = {
            let exprs = items.iter().map(|item| &item.bound.expr).chain(hidden.iter().map(|bound| &bound.expr)).chain(having.iter());
            find_aggregate_exprs(exprs)
        };
        if !aggregates.is_empty() || !group_by.is_empty() || having.is_some() || grouped(&select.group_by) {
            let exprs = items.iter().map(|item| &item.bound.expr).chain(hidden.iter().chain(&distinct_on).map(|bound| &bound.expr));
            add_dependent_keys(&mut group_by, exprs.chain(having.iter()), &from.columns)?;
            let grouping = Grouping::new(&mut plan, &mut group_by, aggregates, &from.columns)?;
            for item in &mut items {
                grouping.apply(&mut item.bound)?;
            }
            for bound in hidden.iter_mut().chain(&mut distinct_on) {
                grouping.apply(bound)?;
            }
            if let Some(condition) = having.take() {
                let mut bound = Bound { expr: condition, ty: Type::Sql(weir_catalog::SqlType::Boolean), position: having_position };
                grouping.apply(&mut bound)?;
                plan = filter(plan, bound.expr)?;
            }
        }

        // Window functions, over the groups if there are any.
        let windows = find_window_exprs(items.iter().map(|item| &item.bound.expr).chain(hidden.iter().map(|bound| &bound.expr)));
        if !windows.is_empty() {
            let mut calls = windows.clone();
            distinguish_calls(&mut calls)?;
            plan = LogicalPlanBuilder::window_plan(plan, calls.clone()).map_err(bind_error)?;
            let columns =
                calls.iter().map(|window| Ok(PlanColumn::new_unqualified(window.schema_name().to_string()))).collect::<Result<Vec<_>>>()?;
            for bound in items.iter_mut().map(|item| &mut item.bound).chain(&mut hidden) {
                replace(&mut bound.expr, &windows, &columns)?;
            }
        }

        let unique = unique_names(items.iter().map(|item| item.name.as_str()));
        let mut outputs: Vec<OutputColumn> = items
            .iter()
            .zip(&unique)
            .map(|(item, name)| OutputColumn {
                name: item.name.clone(),
                column: PlanColumn::new_unqualified(name),
                ty: item.bound.ty.clone(),
            })
            .collect();
        let mut exprs: Vec<Expr> = items.iter().zip(&unique).map(|(item, name)| item.bound.expr.clone().alias(name)).collect();
        let hidden_names: Vec<String> = (0..hidden.len()).map(|i| format!("__order_{i}")).collect();
        exprs.extend(hidden.iter().zip(&hidden_names).map(|(bound, name)| bound.expr.clone().alias(name)));
        let on_names: Vec<String> = (0..distinct_on.len()).map(|i| format!("{DISTINCT_ON_PREFIX}{i}")).collect();
        exprs.extend(distinct_on.iter().zip(&on_names).map(|(bound, name)| bound.expr.clone().alias(name)));
        if select.distinct == Some(ast::Distinct::Distinct) && !hidden.is_empty() {
            let code = SqlState::parse("42P10").unwrap_or(SqlState::SYNTAX_ERROR);
            let error = Error::new(code, "for SELECT DISTINCT, ORDER BY expressions must appear in select list");
            return Err(positioned(error, hidden[0].position));
        }
        let distinct = select.distinct == Some(ast::Distinct::Distinct);
        if exprs.is_empty() {
            return Err(self.at(Error::unsupported("a SELECT without columns is not supported"), select.select_token.0.span));
        }
        // A string that nothing gave a type is TEXT where it is compared.
        if distinct {
            for item in &items {
                check_key(&item.bound.ty, "SELECT DISTINCT", item.bound.position)?;
            }
            for ((expr, output), item) in exprs.iter_mut().zip(&mut outputs).zip(&items) {
                if output.ty == Type::Unknown {
                    let bound = known(item.bound.clone())?;
                    *expr = bound.expr.alias(&output.column.name);
                    output.ty = bound.ty;
                }
            }
        }
        plan = project(plan, exprs)?;
        if distinct {
            plan = LogicalPlan::Distinct(Distinct::All(Arc::new(plan)));
        }
        let keys: Vec<Sort> = order_keys
            .into_iter()
            .map(|(key, options)| {
                let (name, ty) = match key {
                    OrderKey::Item(i) => (&unique[i], items[i].bound.ty.clone()),
                    OrderKey::Hidden(i) => (&hidden_names[i], hidden[i].ty.clone()),
                };
                let column = Expr::Column(PlanColumn::new_unqualified(name));
                sort_key(Bound { expr: column, ty, position: None }, options)
            })
            .collect();
        if !on_names.is_empty() {
            plan = first_of_each(plan, &on_names, keys.clone())?;
        }
        if !keys.is_empty() {
            plan = sort(plan, keys);
        }
        if !hidden.is_empty() || !on_names.is_empty() {
            plan = project(plan, outputs.iter().map(|output| Expr::Column(output.column.clone())).collect())?;
        }
        match uid {
            None => Ok(Relation { plan, columns: outputs }),
            Some(uid) => named_block(Relation { plan, columns: outputs }, &uid),
        }
    }

    /// The SELECT list with wildcards expanded.
    fn select_items(&self, select: &ast::Select, scope: &Scope<'_>) -> Result<Vec<Item>> {
        let mut items = Vec::with_capacity(select.projection.len());
        for item in &select.projection {
            check_target_list(items.len() + 1)?;
            match item {
                ast::SelectItem::UnnamedExpr(expr) => {
                    items.push(Item { name: output_name(expr), bound: self.expr(expr, scope)? });
                }
                ast::SelectItem::ExprWithAlias { expr, alias } => {
                    items.push(Item { name: name_of(alias), bound: self.expr(expr, scope)? });
                }
                ast::SelectItem::Wildcard(options) => {
                    refuse_wildcard_options(options)?;
                    if scope.columns.is_empty() {
                        return Err(self.at(
                            Error::new(SqlState::SYNTAX_ERROR, "SELECT * with no tables specified is not valid"),
                            options.wildcard_token.0.span,
                        ));
                    }
                    items.extend(scope.columns.iter().filter(|column| !column.merged).map(item_of));
                }
                ast::SelectItem::QualifiedWildcard(ast::SelectItemQualifiedWildcardKind::ObjectName(name), options) => {
                    refuse_wildcard_options(options)?;
                    let idents: Vec<ast::Ident> = name.0.iter().filter_map(|part| part.as_ident()).cloned().collect();
                    let relation = idents.last().map(name_of).unwrap_or_default();
                    let found: Vec<Item> =
                        scope.columns.iter().filter(|column| column.relation.as_ref() == Some(&relation)).map(item_of).collect();
                    if found.is_empty() {
                        items.extend(self.row_wildcard(&idents, scope, name)?);
                    }
                    items.extend(found);
                }
                ast::SelectItem::QualifiedWildcard(ast::SelectItemQualifiedWildcardKind::Expr(expr), options) => {
                    refuse_wildcard_options(options)?;
                    items.extend(self.fields_of(self.expr(expr, scope)?)?);
                }
                other => return Err(self.at(Error::unsupported(format!("{other} in a SELECT list is not supported")), other.span())),
            }
        }
        check_target_list(items.len())?;
        Ok(items)
    }

    /// `r.*`, where no table is called `r`: the fields of a row.
    fn row_wildcard(&self, idents: &[ast::Ident], scope: &Scope<'_>, name: &ast::ObjectName) -> Result<Vec<Item>> {
        match self.compound_identifier(idents, scope) {
            Ok(bound) if matches!(bound.ty, Type::Sql(weir_catalog::SqlType::Row(_))) => self.fields_of(bound),
            _ => {
                let shown = idents.iter().map(name_of).collect::<Vec<_>>().join(".");
                let error = Error::new(SqlState::UNDEFINED_TABLE, format!("missing FROM-clause entry for table \"{shown}\""));
                Err(self.at(error, name.span()))
            }
        }
    }

    fn fields_of(&self, bound: Bound) -> Result<Vec<Item>> {
        let Type::Sql(weir_catalog::SqlType::Row(fields)) = &bound.ty else {
            let error = Error::new(SqlState::WRONG_OBJECT_TYPE, format!("type {} is not composite", bound.ty.name()));
            return Err(positioned(error, bound.position));
        };
        fields.iter().map(|(name, _)| Ok(Item { name: name.clone(), bound: self.field(bound.clone(), name)? })).collect()
    }

    fn group_by(&self, group_by: &ast::GroupByExpr, items: &[Item], scope: &Scope<'_>) -> Result<Vec<Bound>> {
        let exprs = match group_by {
            ast::GroupByExpr::Expressions(exprs, modifiers) if modifiers.is_empty() => exprs,
            _ => return Err(Error::unsupported("GROUP BY ALL and GROUP BY modifiers are not supported")),
        };
        let mut keys: Vec<Bound> = Vec::with_capacity(exprs.len());
        for expr in exprs {
            if matches!(expr, ast::Expr::GroupingSets(_) | ast::Expr::Cube(_) | ast::Expr::Rollup(_)) {
                return Err(self.at(Error::unsupported("GROUPING SETS, CUBE and ROLLUP are not supported"), expr.span()));
            }
            if matches!(expr, ast::Expr::Tuple(list) if list.is_empty()) {
                continue;
            }
            let inside = scope.in_clause(Clause::GroupBy);
            // A name is first one of a column of FROM, then one of the SELECT list; a number is a place in that.
            let bound = match expr {
                ast::Expr::Identifier(ident) => {
                    let name = name_of(ident);
                    if scope.columns.iter().any(|column| !column.merged && column.name == name) {
                        self.expr(expr, &inside)?
                    } else {
                        let item_names = items.iter().map(|item| item.name.as_str());
                        match self.output_position(expr, item_names, "GROUP BY", same_items(items))? {
                            Some(item) => self.group_item(&items[item], expr)?,
                            None => self.expr(expr, &inside)?,
                        }
                    }
                }
                _ => match self.output_position(expr, items.iter().map(|item| item.name.as_str()), "GROUP BY", same_items(items))? {
                    Some(item) => self.group_item(&items[item], expr)?,
                    None => self.expr(expr, &inside)?,
                },
            };
            let bound = known(bound)?;
            check_key(&bound.ty, "GROUP BY", bound.position)?;
            if !keys.iter().any(|key| key.expr == bound.expr) {
                keys.push(bound);
            }
        }
        Ok(keys)
    }

    fn group_item(&self, item: &Item, expr: &ast::Expr) -> Result<Bound> {
        if !find_aggregate_exprs([&item.bound.expr]).is_empty() {
            return Err(self.at(Error::new(SqlState::GROUPING_ERROR, "aggregate functions are not allowed in GROUP BY"), expr.span()));
        }
        Ok(item.bound.clone())
    }
}

/// The first row, in the order of `keys`, of the rows that agree in the columns `on`.
fn first_of_each(plan: LogicalPlan, on: &[String], keys: Vec<Sort>) -> Result<LogicalPlan> {
    let mut number = WindowFunction::new(row_number_udwf(), Vec::new());
    number.params.partition_by = on.iter().map(|name| Expr::Column(PlanColumn::new_unqualified(name))).collect();
    number.params.window_frame = WindowFrame::new(if keys.is_empty() { None } else { Some(false) });
    number.params.order_by = keys;
    let number = Expr::WindowFunction(Box::new(number));
    let name = number.schema_name().to_string();
    let plan = LogicalPlanBuilder::window_plan(plan, [number]).map_err(bind_error)?;
    let first = Expr::Column(PlanColumn::new_unqualified(name));
    filter(plan, super::expr::binary_of(first, Operator::Eq, lit(1u64)))
}

/// Adds to the group keys the columns in `exprs`, outside of aggregates, of tables whose whole primary key is grouped by: they make no more groups.
fn add_dependent_keys<'e>(group_by: &mut Vec<Bound>, exprs: impl Iterator<Item = &'e Expr>, columns: &[ScopeColumn]) -> Result<()> {
    let is_key = |expr: &Expr, group_by: &[Bound]| group_by.iter().any(|key| key.expr == *expr);
    for expr in exprs {
        let mut used: Vec<PlanColumn> = Vec::new();
        expr.apply(|expr| {
            match expr {
                expr if is_key(expr, group_by) => return Ok(TreeNodeRecursion::Jump),
                Expr::AggregateFunction(_) => return Ok(TreeNodeRecursion::Jump),
                Expr::Column(column) => used.push(column.clone()),
                other => {
                    let outside = super::decorrelate::subquery_in(other).into_iter().flat_map(|subquery| &subquery.outer_ref_columns);
                    used.extend(outside.filter_map(|expr| match expr {
                        Expr::OuterReferenceColumn(_, column) => Some(column.clone()),
                        _ => None,
                    }));
                }
            }
            Ok(TreeNodeRecursion::Continue)
        })
        .map_err(bind_error)?;
        for column in used {
            let expr = Expr::Column(column);
            let Some(found) = columns.iter().find(|column| column.expr == expr) else { continue };
            let is_dependent = found.key.as_ref().is_some_and(|key| key.iter().all(|part| is_key(part, group_by)));
            if is_dependent && !is_key(&expr, group_by) {
                group_by.push(Bound::new(expr, found.ty.clone()));
            }
        }
    }
    Ok(())
}

/// The groups of a SELECT: how expressions over its rows become expressions over its groups.
struct Grouping<'c> {
    /// Group keys and aggregates, as they are written over the rows.
    computed: Vec<Expr>,
    /// The columns of the groups that hold them.
    columns: Vec<PlanColumn>,
    /// The columns of the rows.
    rows: &'c [ScopeColumn],
}

impl<'c> Grouping<'c> {
    fn new(plan: &mut LogicalPlan, group_by: &mut Vec<Bound>, aggregates: Vec<Expr>, rows: &'c [ScopeColumn]) -> Result<Grouping<'c>> {
        let keys: Vec<Expr> = std::mem::take(group_by).into_iter().map(|key| key.expr).collect();
        let mut aggregates = aggregates;
        if keys.is_empty() && aggregates.is_empty() {
            // HAVING without aggregates: one group, of which nothing is asked.
            aggregates.push(super::subquery::count_rows());
        }
        let mut calls = match order_of(plan).map_err(bind_error)? {
            Some(order) => in_order(&aggregates, &order),
            None => aggregates.clone(),
        };
        let mut named = keys.clone();
        distinguish(named.iter_mut().chain(&mut calls));
        let aggregate = Aggregate::try_new(Arc::new(std::mem::take(plan)), named, calls).map_err(bind_error)?;
        let schema = Arc::clone(&aggregate.schema);
        *plan = LogicalPlan::Aggregate(aggregate);
        let computed: Vec<Expr> = keys.into_iter().chain(aggregates).collect();
        let columns = (0..computed.len()).map(|i| PlanColumn::from(schema.qualified_field(i))).collect();
        Ok(Grouping { computed, columns, rows })
    }

    fn apply(&self, bound: &mut Bound) -> Result<()> {
        let position = bound.position;
        let expr = std::mem::take(&mut bound.expr);
        let transformed = expr.transform_down(|expr| {
            if let Some(i) = self.computed.iter().position(|computed| *computed == expr) {
                return Ok(Transformed::new(Expr::Column(self.columns[i].clone()), true, TreeNodeRecursion::Jump));
            }
            let subquery = match &expr {
                Expr::Column(column) => return Err(external(self.ungrouped(column, false))),
                Expr::ScalarSubquery(subquery) => subquery,
                Expr::Exists(exists) => &exists.subquery,
                Expr::InSubquery(test) => &test.subquery,
                Expr::SetComparison(comparison) => &comparison.subquery,
                _ => return Ok(Transformed::no(expr)),
            };
            for outer in &subquery.outer_ref_columns {
                if let Expr::OuterReferenceColumn(_, column) = outer {
                    let here = self.rows.iter().any(|row| row.expr == Expr::Column(column.clone()));
                    if here && !self.columns.contains(column) {
                        return Err(external(self.ungrouped(column, true)));
                    }
                }
            }
            Ok(Transformed::no(expr))
        });
        match transformed {
            Ok(transformed) => {
                bound.expr = transformed.data;
                Ok(())
            }
            Err(error) => Err(positioned(bind_error(error), position)),
        }
    }

    fn ungrouped(&self, column: &PlanColumn, in_subquery: bool) -> Error {
        let shown = self.rows.iter().find(|row| row.expr == Expr::Column(column.clone())).map_or_else(
            || column.name.clone(),
            |row| match &row.relation {
                Some(relation) => format!("{relation}.{}", row.name),
                None => row.name.clone(),
            },
        );
        Error::new(
            SqlState::GROUPING_ERROR,
            if in_subquery {
                format!("subquery uses ungrouped column \"{shown}\" from outer query")
            } else {
                format!("column \"{shown}\" must appear in the GROUP BY clause or be used in an aggregate function")
            },
        )
    }
}

/// Puts `columns[i]` where `expr` holds `computed[i]`.
fn replace(expr: &mut Expr, computed: &[Expr], columns: &[PlanColumn]) -> Result<()> {
    let transformed = std::mem::take(expr)
        .transform_down(|expr| {
            Ok::<_, DataFusionError>(match computed.iter().position(|computed| *computed == expr) {
                Some(i) => Transformed::new(Expr::Column(columns[i].clone()), true, TreeNodeRecursion::Jump),
                None => Transformed::no(expr),
            })
        })
        .map_err(bind_error)?;
    *expr = transformed.data;
    Ok(())
}

fn filter(plan: LogicalPlan, condition: Expr) -> Result<LogicalPlan> {
    Ok(LogicalPlan::Filter(Filter::try_new(condition, Arc::new(plan)).map_err(bind_error)?))
}

/// How the columns are called that DISTINCT ON compares.
pub const DISTINCT_ON_PREFIX: &str = "__on_";

/// What marks the plan of a block that the user named with `/*+ uid('name') */`: an alias with this prefix.
pub const UID_ALIAS_PREFIX: &str = "uid:";

fn named_block(relation: Relation, uid: &str) -> Result<Relation> {
    let alias = datafusion::common::TableReference::bare(format!("{UID_ALIAS_PREFIX}{uid}"));
    let plan = SubqueryAlias::try_new(Arc::new(relation.plan), alias.clone()).map_err(bind_error)?;
    let columns = relation
        .columns
        .into_iter()
        .map(|column| OutputColumn { column: PlanColumn::new(Some(alias.clone()), column.column.name), ..column })
        .collect();
    Ok(Relation { plan: LogicalPlan::SubqueryAlias(plan), columns })
}

/// PostgreSQL's limit. Planning still compares columns with columns in places.
const MOST_TARGETS: usize = 1664;

/// Errors with `54011` where a SELECT list of `length` is too long.
fn check_target_list(length: usize) -> Result<()> {
    if length > MOST_TARGETS {
        return Err(Error::new(SqlState::TOO_MANY_COLUMNS, format!("target lists can have at most {MOST_TARGETS} entries")));
    }
    Ok(())
}

/// Whether two of `items` are the same expression: then it does not matter which of them a name means.
fn same_items(items: &[Item]) -> impl Fn(usize, usize) -> bool {
    |left, right| items[left].bound.expr == items[right].bound.expr
}

fn item_of(column: &ScopeColumn) -> Item {
    Item { name: column.name.clone(), bound: Bound { expr: column.expr.clone(), ty: column.ty.clone(), position: None } }
}

/// Whether there is a GROUP BY, if only `GROUP BY ()`.
fn grouped(group_by: &ast::GroupByExpr) -> bool {
    matches!(group_by, ast::GroupByExpr::Expressions(exprs, _) if !exprs.is_empty())
}

fn refuse_clauses(select: &ast::Select) -> Result<()> {
    let refused = [
        (select.top.is_some(), "TOP"),
        (select.select_modifiers.is_some(), "this modifier of SELECT"),
        (select.exclude.is_some(), "EXCLUDE"),
        (select.into.is_some(), "SELECT INTO"),
        (!select.lateral_views.is_empty(), "LATERAL VIEW"),
        (select.prewhere.is_some(), "PREWHERE"),
        (!select.connect_by.is_empty(), "CONNECT BY"),
        (!select.cluster_by.is_empty(), "CLUSTER BY"),
        (!select.distribute_by.is_empty(), "DISTRIBUTE BY"),
        (!select.sort_by.is_empty(), "SORT BY"),
        (!select.named_window.is_empty(), "WINDOW"),
        (select.qualify.is_some(), "QUALIFY"),
        (select.value_table_mode.is_some(), "SELECT AS"),
        (!matches!(select.flavor, ast::SelectFlavor::Standard), "FROM before SELECT"),
    ];
    match refused.into_iter().find(|(present, _)| *present) {
        Some((_, clause)) => Err(Error::unsupported(format!("{clause} is not supported"))),
        None => Ok(()),
    }
}

fn refuse_wildcard_options(options: &ast::WildcardAdditionalOptions) -> Result<()> {
    let plain = options.opt_ilike.is_none()
        && options.opt_exclude.is_none()
        && options.opt_except.is_none()
        && options.opt_replace.is_none()
        && options.opt_rename.is_none()
        && options.opt_alias.is_none();
    if plain { Ok(()) } else { Err(Error::unsupported("options of * are not supported")) }
}

/// The name that PostgreSQL gives a column of an expression without alias.
fn output_name(expr: &ast::Expr) -> String {
    figure_name(expr).0.unwrap_or_else(|| "?column?".to_string())
}

/// A name, and how much it says: a type's name gives way to a column's or a function's.
fn figure_name(expr: &ast::Expr) -> (Option<String>, u8) {
    use ast::Expr as E;
    let function = |name: &str| (Some(name.to_string()), 2);
    match expr {
        E::Identifier(ident) => (Some(name_of(ident)), 2),
        E::CompoundIdentifier(idents) => (idents.last().map(name_of), 2),
        E::CompoundFieldAccess { root, access_chain } => {
            let field = access_chain.iter().rev().find_map(|access| match access {
                ast::AccessExpr::Dot(E::Identifier(ident)) => Some(name_of(ident)),
                _ => None,
            });
            field.map_or_else(|| figure_name(root), |field| (Some(field), 2))
        }
        E::Array(_) => function("array"),
        E::Tuple(_) => function("row"),
        E::Function(call) => (call.name.0.last().and_then(|part| part.as_ident()).map(name_of), 2),
        E::Nested(inner) | E::Collate { expr: inner, .. } => figure_name(inner),
        E::Cast { expr: inner, data_type, .. } => match figure_name(inner) {
            (Some(name), 2) => (Some(name), 2),
            _ => (Some(type_column_name(data_type)), 1),
        },
        E::TypedString(typed) => (Some(type_column_name(&typed.data_type)), 1),
        E::Interval(_) => (Some("interval".into()), 1),
        E::Value(ast::ValueWithSpan { value: ast::Value::Boolean(_), .. }) => (Some("bool".into()), 1),
        E::Case { else_result, .. } => match else_result.as_deref().map(figure_name) {
            Some((Some(name), 2)) => (Some(name), 2),
            _ => (Some("case".into()), 1),
        },
        E::Extract { .. } => function("extract"),
        E::Ceil { .. } => function("ceil"),
        E::Floor { .. } => function("floor"),
        E::Position { .. } => function("position"),
        E::Substring { shorthand, .. } => function(if *shorthand { "substr" } else { "substring" }),
        E::Overlay { .. } => function("overlay"),
        E::Trim { trim_where, .. } => function(match trim_where {
            None | Some(ast::TrimWhereField::Both) => "btrim",
            Some(ast::TrimWhereField::Leading) => "ltrim",
            Some(ast::TrimWhereField::Trailing) => "rtrim",
        }),
        E::Exists { .. } => function("exists"),
        E::Subquery(query) => match query.body.as_ref() {
            ast::SetExpr::Select(select) => match select.projection.first() {
                Some(ast::SelectItem::ExprWithAlias { alias, .. }) => (Some(name_of(alias)), 2),
                Some(ast::SelectItem::UnnamedExpr(inner)) => figure_name(inner),
                _ => (None, 0),
            },
            _ => (None, 0),
        },
        _ => (None, 0),
    }
}

fn type_column_name(data_type: &ast::DataType) -> String {
    use weir_catalog::SqlType as S;
    if let ast::DataType::Array(ast::ArrayElemTypeDef::SquareBracket(element, _) | ast::ArrayElemTypeDef::AngleBracket(element)) = data_type
    {
        return type_column_name(element);
    }
    match super::signature::sql_type(data_type) {
        Ok(S::Boolean) => "bool".into(),
        Ok(S::Int) => "int4".into(),
        Ok(S::BigInt) => "int8".into(),
        Ok(S::Double) => "float8".into(),
        Ok(S::Numeric { .. }) => "numeric".into(),
        Ok(S::Text) if matches!(data_type, ast::DataType::Text) => "text".into(),
        Ok(S::Text) => "varchar".into(),
        Ok(S::Timestamp { .. }) => "timestamp".into(),
        Ok(S::Row(_)) => "row".into(),
        Ok(S::Array(_)) | Err(_) => data_type.to_string().to_lowercase(),
    }
}
