//! Rows and arrays in expressions: fields and elements, constructors, comparisons.

use datafusion::common::ScalarValue;
use datafusion::logical_expr::expr::SetQuantifier;
use datafusion::logical_expr::{Expr, Operator};
use datafusion::sql::sqlparser::ast::{self, Spanned};
use datafusion::sql::sqlparser::tokenizer::Span;
use weir_catalog::{Error, Result, SqlState, SqlType};

use super::expr::{known, no_operator, one_zero};
use super::guard::{all_of, any_of};
use super::scope::{Scope, name_of};
use super::types::{Bound, Type, common_type, convert, field_name, row_constructor, row_of};
use super::{Session, positioned, signature};
use crate::functions::Kernel;
use crate::functions::nested::Operation;

impl Session<'_> {
    /// `a.b`, `a[1]` and so on, behind any expression.
    pub(super) fn field_access(&self, root: &ast::Expr, chain: &[ast::AccessExpr], scope: &Scope<'_>) -> Result<Bound> {
        let dotted = |access: &ast::AccessExpr| match access {
            ast::AccessExpr::Dot(ast::Expr::Identifier(ident)) => Some(ident.clone()),
            _ => None,
        };
        // `t.a[1]`: the names in front may be those of a table and a column.
        let (mut bound, chain) = match root {
            ast::Expr::Identifier(ident) => {
                let idents: Vec<ast::Ident> = std::iter::once(ident.clone()).chain(chain.iter().map_while(dotted)).collect();
                (self.compound_identifier(&idents, scope)?, &chain[idents.len() - 1..])
            }
            root => (self.expr(root, scope)?, chain),
        };
        for access in chain {
            bound = match access {
                ast::AccessExpr::Dot(ast::Expr::Identifier(ident)) => self.field(bound, &name_of(ident))?,
                ast::AccessExpr::Subscript(ast::Subscript::Index { index }) => {
                    let index = self.expr(index, scope)?;
                    self.element(bound, index)?
                }
                ast::AccessExpr::Subscript(ast::Subscript::Slice { .. }) => {
                    return Err(self.at(Error::unsupported("slices of arrays are not supported"), root.span()));
                }
                other => return Err(self.at(Error::unsupported(format!("the access {other} is not supported")), root.span())),
            };
        }
        Ok(bound)
    }

    /// An element of an array, by its place from 1.
    fn element(&self, array: Bound, place: Bound) -> Result<Bound> {
        let Type::Sql(SqlType::Array(element)) = &array.ty else {
            let message = format!("cannot subscript type {} because it does not support subscripting", array.ty.name());
            return Err(positioned(Error::new(SqlState::DATATYPE_MISMATCH, message), array.position));
        };
        if !matches!(place.ty, Type::Unknown | Type::Sql(SqlType::Int | SqlType::BigInt)) {
            return Err(positioned(Error::new(SqlState::DATATYPE_MISMATCH, "array subscript must have type integer"), place.position));
        }
        let (ty, position) = (element.as_ref().clone(), array.position);
        // A string is read as PostgreSQL reads it.
        let place = if place.ty == Type::Unknown { convert(place, &SqlType::Int.into())? } else { place };
        let place = convert(place, &SqlType::BigInt.into())?;
        let expr = nested_call(Operation::Element, &ty, vec![array.expr, place.expr]);
        Ok(Bound { expr, ty: ty.into(), position })
    }

    /// `ARRAY[...]`, its elements cast to `element` where that is given.
    pub(super) fn array(&self, elements: &[ast::Expr], element: Option<&SqlType>, span: Span, scope: &Scope<'_>) -> Result<Bound> {
        let mut bound = Vec::with_capacity(elements.len());
        for item in elements {
            bound.push(match (unparenthesised(item), element) {
                // The inner brackets of `ARRAY[[1], [2]]` have no word in front.
                (ast::Expr::Array(array), Some(SqlType::Array(inner))) => self.array(&array.elem, Some(inner), item.span(), scope)?,
                (ast::Expr::Array(array), None) => self.array(&array.elem, None, item.span(), scope)?,
                _ => self.expr(item, scope)?,
            });
        }
        let (bound, ty) = match element {
            Some(element) => {
                let to = Type::Sql(element.clone());
                (bound.into_iter().map(|item| self.explicit_cast(item, &to)).collect::<Result<Vec<_>>>()?, to)
            }
            None if bound.is_empty() => {
                let code = SqlState::parse("42P18").unwrap_or(SqlState::DATATYPE_MISMATCH);
                let error = Error::new(code, "cannot determine type of empty array")
                    .with_hint("Explicitly cast to the desired type, for example ARRAY[]::integer[].");
                return Err(self.at(error, span));
            }
            None => self.unify(bound, "ARRAY")?,
        };
        let Type::Sql(element) = ty else {
            return Err(self.at(Error::unsupported(format!("an array of type {} is not supported", ty.name())), span));
        };
        let expr = if bound.is_empty() {
            Expr::Literal(ScalarValue::List(ScalarValue::new_list_nullable(&[], &element.to_arrow())), None)
        } else {
            let ty = SqlType::Array(Box::new(element.clone()));
            nested_call(Operation::Array, &ty, bound.into_iter().map(|item| item.expr).collect())
        };
        let ty = SqlType::Array(Box::new(element));
        Ok(Bound::new(expr, ty))
    }

    /// `ROW(...)`
    pub(super) fn row(&self, fields: Vec<Bound>) -> Result<Bound> {
        if fields.is_empty() {
            return Err(Error::unsupported("a row without fields is not supported"));
        }
        let mut named = Vec::with_capacity(fields.len());
        for (at, field) in fields.into_iter().enumerate() {
            let field = known(field)?;
            let Type::Sql(ty) = field.ty else {
                let error = Error::unsupported(format!("a field of type {} is not supported", field.ty.name()));
                return Err(positioned(error.with_hint("Cast it to text."), field.position));
            };
            named.push((field_name(at), ty, field.expr));
        }
        Ok(row_of(named))
    }

    /// `value = ANY(array)`, and `value <> ALL(array)`, which is its opposite.
    pub(super) fn quantified_array(&self, left: Bound, op: &ast::BinaryOperator, array: Bound, quantifier: SetQuantifier) -> Result<Bound> {
        let negated = match (op, quantifier) {
            (ast::BinaryOperator::Eq, SetQuantifier::Any) => false,
            (ast::BinaryOperator::NotEq, SetQuantifier::All) => true,
            _ => {
                let error = Error::unsupported(format!("operator {op} with this quantifier over an array is not supported"))
                    .with_hint("There are = ANY(array) and <> ALL(array).");
                return Err(positioned(error, left.position));
            }
        };
        let value_type = left.ty.sql().cloned().unwrap_or(SqlType::Text);
        let element = match &array.ty {
            Type::Sql(SqlType::Array(element)) => element.as_ref().clone(),
            Type::Unknown => value_type,
            _ => {
                let error = Error::new(SqlState::WRONG_OBJECT_TYPE, "op ANY/ALL (array) requires array on right side");
                return Err(positioned(error, array.position));
            }
        };
        let Some(Type::Sql(ty)) = common_type(&left.ty, &element.clone().into()) else {
            return Err(no_operator(&left, &op.to_string(), &Bound { ty: element.into(), ..array }));
        };
        let array_type = SqlType::Array(Box::new(ty.clone()));
        let value = one_zero(convert(left, &ty.into())?);
        let array = one_zero(convert(array, &array_type.into())?);
        let found = nested_call(Operation::EqualsAny, &SqlType::Boolean, vec![value.expr, array.expr]);
        Ok(Bound::new(if negated { Expr::Not(Box::new(found)) } else { found }, SqlType::Boolean))
    }

    /// `cardinality(array)` or `array_length(array, dimension)`.
    pub(super) fn array_size(&self, name: &str, mut arguments: Vec<Bound>) -> Result<Bound> {
        let is_array = |bound: &Bound| matches!(bound.ty, Type::Sql(SqlType::Array(_)));
        let is_integer = |bound: &Bound| matches!(bound.ty, Type::Unknown | Type::Sql(SqlType::Int));
        let operation = match (name, arguments.as_slice()) {
            ("cardinality", [array]) if is_array(array) => Operation::Cardinality,
            ("array_length", [array, dimension]) if is_array(array) && is_integer(dimension) => Operation::ArrayLength,
            _ => return Err(signature::undefined(name, &arguments)),
        };
        if let Some(dimension) = arguments.get_mut(1) {
            *dimension = convert(dimension.clone(), &SqlType::Int.into())?;
        }
        let exprs = arguments.into_iter().map(|argument| argument.expr).collect();
        Ok(Bound::new(nested_call(operation, &SqlType::Int, exprs), SqlType::Int))
    }

    /// `ROW(a, b) = ROW(c, d)`: as SQL has it field by field, so that it is NULL where a field that could decide is. `None` for all other comparisons.
    pub(super) fn compare_rows(&self, left: &Bound, operator: Operator, right: &Bound) -> Option<Result<Bound>> {
        let strict = match operator {
            Operator::Lt | Operator::LtEq => Operator::Lt,
            Operator::Gt | Operator::GtEq => Operator::Gt,
            Operator::Eq | Operator::NotEq => operator,
            _ => return None,
        };
        let (lefts, rights) = (row_constructor(left)?, row_constructor(right)?);
        if lefts.len() != rights.len() {
            return Some(Err(positioned(
                Error::new(SqlState::SYNTAX_ERROR, "unequal number of entries in row expressions"),
                left.position,
            )));
        }
        let join = match operator {
            Operator::Eq => all_of,
            Operator::NotEq => any_of,
            _ => return Some(self.order_rows(lefts, strict, operator, rights)),
        };
        let pairs = lefts.into_iter().zip(rights);
        let terms = pairs.map(|(left, right)| Ok(self.compare(left, operator, right)?.expr)).collect::<Result<Vec<_>>>();
        Some(terms.map(|terms| Bound::new(join(terms), SqlType::Boolean)))
    }

    /// `(a, b) < (c, d)`: the first pair of fields that differ decides. `strict` is the operator of all pairs but the last.
    fn order_rows(&self, lefts: Vec<Bound>, strict: Operator, operator: Operator, rights: Vec<Bound>) -> Result<Bound> {
        let mut decided: Option<Expr> = None;
        for (left, right) in lefts.into_iter().zip(rights).rev() {
            decided = Some(match decided {
                None => self.compare(left, operator, right)?.expr,
                Some(rest) => {
                    let differs = self.compare(left.clone(), strict, right.clone())?.expr;
                    any_of(vec![differs, all_of(vec![self.compare(left, Operator::Eq, right)?.expr, rest])])
                }
            });
        }
        decided.map(|expr| Bound::new(expr, SqlType::Boolean)).ok_or_else(|| Error::internal("a row without fields"))
    }

    /// `(a, b) IN (subquery)`, of as many columns, or its contrary: true where a row is equal, NULL where one could be, false otherwise.
    pub(super) fn row_in_subquery(&self, left: &Bound, query: &ast::Query, negated: bool, scope: &Scope<'_>) -> Result<Bound> {
        let Some(fields) = row_constructor(left) else {
            return Err(positioned(
                Error::unsupported("IN with a subquery over a row that is no list of values is not supported")
                    .with_hint("Write its fields: (a, b) IN (SELECT ...)."),
                left.position,
            ));
        };
        let relation = self.query(query, &self.inner(scope))?.with_known_types()?;
        if relation.columns.len() != fields.len() {
            let what = if relation.columns.len() < fields.len() { "few" } else { "many" };
            return Err(self.at(Error::new(SqlState::SYNTAX_ERROR, format!("subquery has too {what} columns")), query.span()));
        }
        let mut terms = Vec::with_capacity(fields.len());
        for (field, column) in fields.into_iter().zip(&relation.columns) {
            let expr = super::subquery::from_outside(&field.expr, &field.ty.to_arrow(), "IN")?;
            let outside = Bound { expr, ..field };
            let inside = Bound::new(Expr::Column(column.column.clone()), column.ty.clone());
            terms.push(self.compare(outside, Operator::Eq, inside)?.expr);
        }
        let equal = all_of(terms);
        Ok(Bound::new(super::subquery::row_among(&relation.plan, equal, !negated)?, SqlType::Boolean))
    }
}

/// A call of a function of rows or arrays.
pub(super) fn nested_call(operation: Operation, ty: &SqlType, arguments: Vec<Expr>) -> Expr {
    crate::functions::call(operation.name(), Kernel::Nested(operation), ty.to_arrow(), arguments)
}

/// `0A000` where values of a type can't be told apart by it: arrow and the codec of keys disagree about -0.0 and NaN inside of rows and arrays.
pub(super) fn check_key(ty: &Type, what: &str, position: Option<usize>) -> Result<()> {
    match ty {
        Type::Sql(sql) if sql.is_nested() && sql.any(&|ty: &SqlType| *ty == SqlType::Double) => Err(positioned(
            Error::unsupported(format!("{what} over type {} with double precision inside is not supported", ty.name()))
                .with_hint("Name the fields or elements that count."),
            position,
        )),
        _ => Ok(()),
    }
}

/// An expression without the parentheses around it.
pub(super) fn unparenthesised(expr: &ast::Expr) -> &ast::Expr {
    let mut expr = expr;
    while let ast::Expr::Nested(inner) = expr {
        expr = inner;
    }
    expr
}

/// `0A000` for an operator that rows and arrays don't have.
pub(super) fn check_operator(ty: &Type, symbol: &str, position: Option<usize>) -> Result<()> {
    if !ty.is_nested() || matches!(symbol, "=" | "<>") {
        return Ok(());
    }
    let error = Error::unsupported(format!("operator {symbol} over type {} is not supported", ty.name()))
        .with_hint("Rows and arrays are only compared with = and <>: compare their fields or elements.");
    Err(positioned(error, position))
}

/// A row or array as it is compared, see [`Operation::Comparable`].
pub(super) fn comparable(bound: Bound) -> Bound {
    match &bound.ty {
        Type::Sql(ty) if ty.any(&|ty: &SqlType| *ty == SqlType::Double) => {
            let expr = nested_call(Operation::Comparable, ty, vec![bound.expr]);
            Bound { expr, ..bound }
        }
        _ => bound,
    }
}

/// IS NULL or IS NOT NULL of a row: it asks of the fields, and one is not the opposite of the other.
pub(super) fn row_null_test(test: Expr) -> Expr {
    match test {
        Expr::IsNull(row) => nested_call(Operation::IsNull, &SqlType::Boolean, vec![*row]),
        Expr::IsNotNull(row) => nested_call(Operation::IsNotNull, &SqlType::Boolean, vec![*row]),
        other => other,
    }
}
