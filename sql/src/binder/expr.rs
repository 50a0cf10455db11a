//! Expressions.

use std::sync::Arc;

use datafusion::common::{ScalarValue, Spans};
use datafusion::logical_expr::expr::{Exists, InList, InSubquery, Like, Placeholder, SetComparison, SetQuantifier};
use datafusion::logical_expr::{BinaryExpr, Case, Expr, LogicalPlan, Operator, Subquery, lit};
use datafusion::sql::sqlparser::ast::{self, BinaryOperator, Spanned, UnaryOperator, Value};
use datafusion::sql::sqlparser::tokenizer::Span;
use weir_catalog::{Error, Result, SqlState, SqlType};

use super::guard::{all_of, any_of, can_fail, opaque_case};
use super::nested::{check_operator, comparable, row_null_test, unparenthesised};
use super::scope::{Clause, Relation, Scope, name_of};
use super::types::{self, Bound, CastContext, Type, can_convert, common_type, convert, numeric_shape};
use super::{Session, positioned};
use crate::functions::arithmetic::{self, decimal_result};
use crate::functions::{Kernel, datetime, math, posix, string, text};

pub(super) const NO_OPERATOR_HINT: &str =
    "No operator matches the given name and argument types. You might need to add explicit type casts.";

impl Session<'_> {
    /// Binds an expression.
    pub(super) fn expr(&self, expr: &ast::Expr, scope: &Scope<'_>) -> Result<Bound> {
        let expr = unparenthesised(expr);
        let mut bound = self.expr_inner(expr, scope)?;
        if bound.position.is_none() {
            bound.position = self.position(expr.span());
        }
        Ok(bound)
    }

    fn expr_inner(&self, expr: &ast::Expr, scope: &Scope<'_>) -> Result<Bound> {
        use ast::Expr as E;
        match expr {
            E::Identifier(ident) => self.identifier(ident, scope),
            E::CompoundIdentifier(idents) => self.compound_identifier(idents, scope),
            E::CompoundFieldAccess { root, access_chain } => self.field_access(root, access_chain, scope),
            E::Nested(inner) => self.expr(inner, scope),
            E::Array(array) => self.array(&array.elem, None, expr.span(), scope),
            E::Tuple(fields) => self.row(fields.iter().map(|field| self.expr(field, scope)).collect::<Result<_>>()?),
            E::Value(value) => self.at_span(self.value(&value.value), value.span),
            E::BinaryOp { left, op, right } => self.binary_expr(left, op, right, scope),
            E::UnaryOp { op, expr } => self.unary(op, expr, scope),
            E::IsNull(inner) => self.null_test(inner, scope, Expr::IsNull),
            E::IsNotNull(inner) => self.null_test(inner, scope, Expr::IsNotNull),
            E::IsTrue(inner) => self.truth_test(inner, scope, "IS TRUE", Expr::IsTrue),
            E::IsNotTrue(inner) => self.truth_test(inner, scope, "IS NOT TRUE", Expr::IsNotTrue),
            E::IsFalse(inner) => self.truth_test(inner, scope, "IS FALSE", Expr::IsFalse),
            E::IsNotFalse(inner) => self.truth_test(inner, scope, "IS NOT FALSE", Expr::IsNotFalse),
            E::IsUnknown(inner) => self.truth_test(inner, scope, "IS UNKNOWN", Expr::IsUnknown),
            E::IsNotUnknown(inner) => self.truth_test(inner, scope, "IS NOT UNKNOWN", Expr::IsNotUnknown),
            E::IsDistinctFrom(left, right) => {
                let compared = self.compare(self.expr(left, scope)?, Operator::IsDistinctFrom, self.expr(right, scope)?);
                self.at_operator(compared, left, &["IS"], right.span())
            }
            E::IsNotDistinctFrom(left, right) => {
                let compared = self.compare(self.expr(left, scope)?, Operator::IsNotDistinctFrom, self.expr(right, scope)?);
                self.at_operator(compared, left, &["IS"], right.span())
            }
            E::InList { expr, list, negated } => self.in_list(expr, list, *negated, scope),
            E::InSubquery { expr, subquery, negated } => {
                let left = self.expr(expr, scope)?;
                let found = self.in_subquery(left, subquery, *negated, scope);
                self.at_operator(found, expr, &[if *negated { "NOT" } else { "IN" }], subquery.span())
            }
            E::Between { expr, negated, low, high } => {
                let low_span = low.span();
                let (value, low, high) = (self.expr(expr, scope)?, self.expr(low, scope)?, self.expr(high, scope)?);
                let between = |compared| self.at_operator(compared, expr, &[if *negated { "NOT" } else { "BETWEEN" }], low_span);
                let above = between(self.compare(value.clone(), Operator::GtEq, low))?;
                let below = between(self.compare(value, Operator::LtEq, high))?;
                let both = all_of(vec![above.expr, below.expr]);
                Ok(Bound::new(if *negated { Expr::Not(Box::new(both)) } else { both }, SqlType::Boolean))
            }
            E::Like { negated, any: false, expr, pattern, escape_char } => {
                let like = self.like(expr, pattern, escape_char.as_ref(), *negated, false, scope);
                self.at_operator(like, expr, &[if *negated { "NOT" } else { "LIKE" }], pattern.span())
            }
            E::ILike { negated, any: false, expr, pattern, escape_char } => {
                let like = self.like(expr, pattern, escape_char.as_ref(), *negated, true, scope);
                self.at_operator(like, expr, &[if *negated { "NOT" } else { "ILIKE" }], pattern.span())
            }
            E::SimilarTo { negated, expr, pattern, escape_char } => self.similar(expr, pattern, escape_char.as_ref(), *negated, scope),
            E::AnyOp { left, compare_op, right, .. } => {
                let compared = self.quantified(left, compare_op, right, SetQuantifier::Any, scope);
                self.at_operator(compared, left, &[&compare_op.to_string()], right.span())
            }
            E::AllOp { left, compare_op, right } => {
                let compared = self.quantified(left, compare_op, right, SetQuantifier::All, scope);
                self.at_operator(compared, left, &[&compare_op.to_string()], right.span())
            }
            E::Cast {
                kind: kind @ (ast::CastKind::Cast | ast::CastKind::DoubleColon),
                expr: inner,
                data_type,
                array: false,
                format: None,
            } => {
                let type_span = match data_type {
                    ast::DataType::Custom(name, _) => name.span(),
                    _ => expr.span(),
                };
                let to = self.at_span(cast_target(data_type), type_span)?;
                // The elements of ARRAY[...] are cast one by one; there need not be one.
                if let (E::Array(array), Type::Sql(SqlType::Array(element))) = (unparenthesised(inner), &to) {
                    return self.array(&array.elem, Some(element), expr.span(), scope);
                }
                let bound = self.expr(inner, scope)?;
                let to = if is_any_numeric(data_type) { own_numeric(&bound) } else { to };
                self.at_cast(self.explicit_cast(bound, &to), kind, inner)
            }
            E::TypedString(typed) => {
                let to = self.at_span(cast_target(&typed.data_type), typed.value.span)?;
                let bound = self.at_span(self.value(&typed.value.value), typed.value.span)?;
                let bound = Bound { position: self.position(typed.value.span), ..bound };
                let to = if is_any_numeric(&typed.data_type) { own_numeric(&bound) } else { to };
                self.explicit_cast(bound, &to)
            }
            E::Interval(interval) => self.interval(interval, scope),
            E::Case { operand, conditions, else_result, .. } => self.case(operand.as_deref(), conditions, else_result.as_deref(), scope),
            E::Exists { subquery, negated } => {
                let relation = self.query(subquery, &self.inner(scope))?;
                Ok(Bound::new(Expr::Exists(Exists::new(subquery_of(relation.plan), *negated)), SqlType::Boolean))
            }
            E::Subquery(query) => {
                let relation = self.single_column(query, scope)?;
                let ty = relation.columns[0].ty.clone();
                Ok(Bound::new(Expr::ScalarSubquery(subquery_of(super::subquery::of_any_number(relation.plan)?)), ty))
            }
            E::Function(function) => self.function(function, scope),
            E::Extract { field, expr, .. } => {
                let argument = self.expr(expr, scope)?;
                self.extract(&field.to_string(), argument, true)
            }
            E::Ceil { expr, field: ast::CeilFloorKind::DateTimeField(ast::DateTimeField::NoDateTime) } => {
                self.named_call("ceil", vec![self.expr(expr, scope)?], expr.span())
            }
            E::Floor { expr, field: ast::CeilFloorKind::DateTimeField(ast::DateTimeField::NoDateTime) } => {
                self.named_call("floor", vec![self.expr(expr, scope)?], expr.span())
            }
            E::Position { expr, r#in } => self.named_call("strpos", vec![self.expr(r#in, scope)?, self.expr(expr, scope)?], expr.span()),
            E::Substring { expr, substring_from, substring_for, .. } => {
                let mut arguments = vec![self.expr(expr, scope)?];
                match substring_from {
                    Some(from) => arguments.push(self.expr(from, scope)?),
                    None => arguments.push(Bound::new(lit(1i32), SqlType::Int)),
                }
                if let Some(length) = substring_for {
                    arguments.push(self.expr(length, scope)?);
                }
                self.named_call("substring", arguments, expr.span())
            }
            E::Trim { trim_where, trim_what, expr, trim_characters } => {
                let name = match trim_where {
                    None | Some(ast::TrimWhereField::Both) => "btrim",
                    Some(ast::TrimWhereField::Leading) => "ltrim",
                    Some(ast::TrimWhereField::Trailing) => "rtrim",
                };
                let mut arguments = vec![self.expr(expr, scope)?];
                if let Some(what) = trim_what {
                    arguments.push(self.expr(what, scope)?);
                }
                for characters in trim_characters.iter().flatten() {
                    arguments.push(self.expr(characters, scope)?);
                }
                self.named_call(name, arguments, expr.span())
            }
            E::Overlay { expr, overlay_what, overlay_from, overlay_for } => {
                let mut arguments = vec![self.expr(expr, scope)?, self.expr(overlay_what, scope)?, self.expr(overlay_from, scope)?];
                if let Some(length) = overlay_for {
                    arguments.push(self.expr(length, scope)?);
                }
                self.named_call("overlay", arguments, expr.span())
            }
            E::Collate { expr, collation } => {
                let name = collation.to_string().replace('"', "").to_ascii_lowercase();
                if matches!(name.as_str(), "c" | "posix" | "default" | "pg_catalog.default" | "ucs_basic") {
                    return self.expr(expr, scope);
                }
                Err(Error::unsupported(format!("collation {collation} is not supported"))
                    .with_hint("Text is compared by bytes, as with collation \"C\"."))
            }
            other => Err(self.at(Error::unsupported(format!("the expression {other} is not supported")), other.span())),
        }
    }

    pub(super) fn at_span<T>(&self, result: Result<T>, span: Span) -> Result<T> {
        result.map_err(|error| self.at(error, span))
    }

    /// The scope of a subquery.
    pub(super) fn inner<'s>(&self, scope: &'s Scope<'s>) -> Scope<'s> {
        Scope { columns: &[], outer: Some(scope), common_tables: scope.common_tables, clause: Clause::Select }
    }

    fn identifier(&self, ident: &ast::Ident, scope: &Scope<'_>) -> Result<Bound> {
        let found = self.compound_identifier(std::slice::from_ref(ident), scope);
        // A few functions are called without parentheses; a column of that name comes first.
        if found.is_err()
            && ident.quote_style.is_none()
            && matches!(
                ident.value.to_lowercase().as_str(),
                "current_timestamp" | "localtimestamp" | "current_user" | "session_user" | "user"
            )
        {
            return self.named_call(&name_of(ident), Vec::new(), ident.span);
        }
        found
    }

    /// A constant.
    fn value(&self, value: &Value) -> Result<Bound> {
        Ok(match value {
            Value::Number(digits, _) => number(digits, false)?,
            Value::SingleQuotedString(text)
            | Value::EscapedStringLiteral(text)
            | Value::UnicodeStringLiteral(text)
            | Value::NationalStringLiteral(text) => Bound::new(lit(text.as_str()), Type::Unknown),
            Value::DollarQuotedString(text) => Bound::new(lit(text.value.as_str()), Type::Unknown),
            Value::Boolean(value) => Bound::new(lit(*value), SqlType::Boolean),
            Value::Null => Bound::new(Expr::Literal(ScalarValue::Utf8(None), None), Type::Unknown),
            Value::Placeholder(id) => {
                let number: usize = id
                    .strip_prefix('$')
                    .and_then(|number| number.parse().ok())
                    .filter(|number| *number > 0)
                    .ok_or_else(|| Error::new(SqlState::UNDEFINED_PARAMETER, format!("there is no parameter {id}")))?;
                let placeholder = Placeholder::new_with_field(id.clone(), None);
                match self.settings.parameter_types.get(number - 1) {
                    Some(Some(ty)) => {
                        let ty = Type::Sql(ty.clone());
                        Bound { expr: types::typed_placeholder(placeholder, &ty), ty, position: None }
                    }
                    _ => Bound::new(Expr::Placeholder(placeholder), Type::Unknown),
                }
            }
            other => return Err(Error::unsupported(format!("the literal {other} is not supported"))),
        })
    }

    fn null_test(&self, inner: &ast::Expr, scope: &Scope<'_>, test: fn(Box<Expr>) -> Expr) -> Result<Bound> {
        let bound = known(self.expr(inner, scope)?)?;
        let expr = test(Box::new(bound.expr));
        let expr = if matches!(bound.ty, Type::Sql(SqlType::Row(_))) { row_null_test(expr) } else { expr };
        Ok(Bound::new(expr, SqlType::Boolean))
    }

    fn truth_test(&self, inner: &ast::Expr, scope: &Scope<'_>, clause: &str, test: fn(Box<Expr>) -> Expr) -> Result<Bound> {
        let bound = self.boolean(self.expr(inner, scope)?, clause)?;
        Ok(Bound::new(test(Box::new(bound.expr)), SqlType::Boolean))
    }

    fn unary(&self, op: &UnaryOperator, inner: &ast::Expr, scope: &Scope<'_>) -> Result<Bound> {
        match op {
            UnaryOperator::Not => {
                let bound = self.boolean(self.expr(inner, scope)?, "NOT")?;
                Ok(Bound::new(Expr::Not(Box::new(bound.expr)), SqlType::Boolean))
            }
            UnaryOperator::Minus => {
                if let Some((digits, is_negative, span)) = signed_number(inner) {
                    return self.at_span(number(digits, !is_negative), span);
                }
                let bound = self.expr(inner, scope)?;
                match &bound.ty {
                    Type::Interval => Ok(Bound {
                        expr: date_time(datetime::Operation::IntervalNegate, datetime::INTERVAL, vec![bound.expr]),
                        ty: Type::Interval,
                        position: None,
                    }),
                    ty if ty.number_rank().is_some() => {
                        let ty = ty.clone();
                        Ok(Bound { expr: arithmetic_call(arithmetic::Operation::Negate, &ty, vec![bound.expr]), ty, position: None })
                    }
                    other => Err(self.before(
                        Error::new(SqlState::UNDEFINED_FUNCTION, format!("operator does not exist: - {}", other.name()))
                            .with_hint(NO_OPERATOR_HINT),
                        inner.span(),
                        &["-"],
                    )),
                }
            }
            UnaryOperator::Plus => self.expr(inner, scope),
            UnaryOperator::PGAbs => self.named_call("abs", vec![self.expr(inner, scope)?], inner.span()),
            UnaryOperator::PGSquareRoot => self.named_call("sqrt", vec![self.expr(inner, scope)?], inner.span()),
            other => Err(self.at(Error::unsupported(format!("operator {other} is not supported")), inner.span())),
        }
    }

    fn binary_expr(&self, left: &ast::Expr, op: &BinaryOperator, right: &ast::Expr, scope: &Scope<'_>) -> Result<Bound> {
        // Long chains of AND and OR are common; each link must not cost stack.
        if matches!(op, BinaryOperator::And | BinaryOperator::Or) {
            let clause = if *op == BinaryOperator::And { "AND" } else { "OR" };
            let mut rights = vec![right];
            let mut rest = left;
            while let ast::Expr::BinaryOp { left, op: inner, right } = rest {
                if inner != op {
                    break;
                }
                rights.push(right);
                rest = left;
            }
            let mut terms = vec![self.boolean(self.expr(rest, scope)?, clause)?.expr];
            for right in rights.into_iter().rev() {
                terms.push(self.boolean(self.expr(right, scope)?, clause)?.expr);
            }
            let result = if clause == "AND" { all_of(terms) } else { any_of(terms) };
            return Ok(Bound::new(result, SqlType::Boolean));
        }
        self.chained(left, op, right, scope)
    }

    /// `left op right`
    pub(super) fn binary(&self, left: Bound, op: &BinaryOperator, right: Bound) -> Result<Bound> {
        use BinaryOperator as B;
        let arithmetic = |operation| self.arithmetic(left.clone(), operation, right.clone());
        let compare = |operator| self.compare(left.clone(), operator, right.clone());
        match op {
            B::Plus => arithmetic(arithmetic::Operation::Add),
            B::Minus => arithmetic(arithmetic::Operation::Subtract),
            B::Multiply => arithmetic(arithmetic::Operation::Multiply),
            B::Divide => arithmetic(arithmetic::Operation::Divide),
            B::Modulo => arithmetic(arithmetic::Operation::Modulo),
            B::Eq => compare(Operator::Eq),
            B::NotEq => compare(Operator::NotEq),
            B::Lt => compare(Operator::Lt),
            B::LtEq => compare(Operator::LtEq),
            B::Gt => compare(Operator::Gt),
            B::GtEq => compare(Operator::GtEq),
            B::StringConcat => self.concat(left, right),
            B::PGExp | B::BitwiseXor if left.ty.number_rank().is_some() || right.ty.number_rank().is_some() => {
                let double = Type::Sql(SqlType::Double);
                for side in [&left, &right] {
                    if side.ty != Type::Unknown && side.ty.number_rank().is_none() {
                        return Err(no_operator(&left, "^", &right));
                    }
                }
                let arguments = vec![convert(left, &double)?.expr, convert(right, &double)?.expr];
                let function = math::Operation::Power;
                Ok(Bound::new(
                    crate::functions::call(function.name(), Kernel::Math(function), double.to_arrow(), arguments),
                    SqlType::Double,
                ))
            }
            B::PGLikeMatch => self.like_bound(left, right, Some('\\'), false, false),
            B::PGILikeMatch => self.like_bound(left, right, Some('\\'), false, true),
            B::PGNotLikeMatch => self.like_bound(left, right, Some('\\'), true, false),
            B::PGNotILikeMatch => self.like_bound(left, right, Some('\\'), true, true),
            B::PGRegexMatch => self.regex_match(left, posix::Operation::Match, right),
            B::PGRegexIMatch => self.regex_match(left, posix::Operation::MatchAnyCase, right),
            B::PGRegexNotMatch => self.regex_match(left, posix::Operation::NoMatch, right),
            B::PGRegexNotIMatch => self.regex_match(left, posix::Operation::NoMatchAnyCase, right),
            B::Custom(symbol) if symbol == "==" => Err(no_operator(&left, symbol, &right)),
            other => Err(positioned(Error::unsupported(format!("operator {other} is not supported")), left.position)),
        }
    }

    fn regex_match(&self, left: Bound, operation: posix::Operation, right: Bound) -> Result<Bound> {
        let text = Type::Sql(SqlType::Text);
        if [&left, &right].iter().any(|side| side.ty != text && side.ty != Type::Unknown) {
            return Err(no_operator(&left, operation.name(), &right));
        }
        let position = right.position;
        let (left, right) = (convert(left, &text)?, convert(right, &text)?);
        let expr = super::signature::regex_call(operation, vec![left.expr, right.expr]).map_err(|error| positioned(error, position))?;
        Ok(Bound::new(expr, SqlType::Boolean))
    }

    fn concat(&self, left: Bound, right: Bound) -> Result<Bound> {
        let text = Type::Sql(SqlType::Text);
        let textual = |ty: &Type| *ty == text || *ty == Type::Unknown;
        let printable = |ty: &Type| !matches!(ty, Type::Sql(SqlType::Row(_)));
        if [&left, &right].iter().any(|side| matches!(side.ty, Type::Sql(SqlType::Array(_)))) {
            return Err(positioned(Error::unsupported("operator || over arrays is not supported"), left.position));
        }
        if !(textual(&left.ty) || textual(&right.ty)) || !printable(&left.ty) || !printable(&right.ty) {
            return Err(no_operator(&left, "||", &right));
        }
        let (left, right) = (convert(left, &text)?, convert(right, &text)?);
        Ok(Bound::new(binary_of(left.expr, Operator::StringConcat, right.expr), SqlType::Text))
    }

    fn arithmetic(&self, left: Bound, operation: arithmetic::Operation, right: Bound) -> Result<Bound> {
        use arithmetic::Operation as A;
        use datetime::Operation as D;
        let timestamp = |ty: &Type| matches!(ty, Type::Sql(SqlType::Timestamp { .. }));
        let call = |operation: D, ty: Type, arguments: Vec<Expr>| {
            Ok(Bound { expr: date_time(operation, ty.to_arrow(), arguments), ty, position: None })
        };
        let interval = &Type::Interval;
        match (&left.ty, operation, &right.ty) {
            (l, A::Add, r) if timestamp(l) && matches!(r, Type::Interval | Type::Unknown) => {
                let right = convert(right, interval)?;
                return call(D::TimestampPlus, SqlType::TIMESTAMP.into(), vec![left.expr, right.expr]);
            }
            (l, A::Add, r) if timestamp(r) && matches!(l, Type::Interval | Type::Unknown) => {
                let left = convert(left, interval)?;
                return call(D::TimestampPlus, SqlType::TIMESTAMP.into(), vec![right.expr, left.expr]);
            }
            (l, A::Subtract, Type::Interval) if timestamp(l) => {
                return call(D::TimestampMinus, SqlType::TIMESTAMP.into(), vec![left.expr, right.expr]);
            }
            (l, A::Subtract, r) if (timestamp(l) || *l == Type::Unknown) && timestamp(r) || timestamp(l) && *r == Type::Unknown => {
                let timestamp = Type::Sql(SqlType::TIMESTAMP);
                return call(D::Difference, Type::Interval, vec![convert(left, &timestamp)?.expr, convert(right, &timestamp)?.expr]);
            }
            (Type::Interval, A::Add | A::Subtract, Type::Interval | Type::Unknown)
            | (Type::Unknown, A::Add | A::Subtract, Type::Interval) => {
                let function = if operation == A::Add { D::IntervalPlus } else { D::IntervalMinus };
                return call(function, Type::Interval, vec![convert(left, interval)?.expr, convert(right, interval)?.expr]);
            }
            (Type::Interval, A::Multiply, r) if r.number_rank().is_some() => {
                let factor = convert(right, &SqlType::Double.into())?;
                return call(D::IntervalTimes, Type::Interval, vec![left.expr, factor.expr]);
            }
            (l, A::Multiply, Type::Interval) if l.number_rank().is_some() => {
                let factor = convert(left, &SqlType::Double.into())?;
                return call(D::IntervalTimes, Type::Interval, vec![right.expr, factor.expr]);
            }
            (Type::Interval, A::Divide, r) if r.number_rank().is_some() => {
                let double = Type::Sql(SqlType::Double);
                let divisor = convert(right, &double)?;
                let factor = arithmetic_call(A::Divide, &double, vec![lit(1f64), divisor.expr]);
                return call(D::IntervalTimes, Type::Interval, vec![left.expr, factor]);
            }
            _ => {}
        }
        let (left_type, right_type) = match (&left.ty, &right.ty) {
            (Type::Unknown, Type::Unknown) => {
                let code = SqlState::parse("42725").unwrap_or(SqlState::UNDEFINED_FUNCTION);
                let error = Error::new(code, format!("operator is not unique: unknown {} unknown", operation.symbol()))
                    .with_hint("Could not choose a best candidate operator. You might need to add explicit type casts.");
                return Err(positioned(error, left.position));
            }
            // A string next to a NUMERIC is one of its own digits, not of the other's.
            (Type::Unknown, right) => (unknown_as(&left, right), right.clone()),
            (left, Type::Unknown) => (left.clone(), unknown_as(&right, left)),
            (left, right) => (left.clone(), right.clone()),
        };
        let (Some(left_rank), Some(right_rank)) = (left_type.number_rank(), right_type.number_rank()) else {
            return Err(no_operator(&left, operation.symbol(), &right));
        };
        match left_rank.max(right_rank) {
            3 => {
                let (shape_left, shape_right) =
                    (numeric_shape(&left_type).unwrap_or((38, 0)), numeric_shape(&right_type).unwrap_or((38, 0)));
                let numeric = |(precision, scale): (u8, i8)| Type::Sql(SqlType::Numeric { precision, scale });
                let (left, right) = (convert(left, &numeric(shape_left))?, convert(right, &numeric(shape_right))?);
                let result = numeric(decimal_result(operation, shape_left, shape_right));
                Ok(Bound { expr: arithmetic_call(operation, &result, vec![left.expr, right.expr]), ty: result, position: None })
            }
            4 if operation == A::Modulo => Err(no_operator(&left, "%", &right)),
            _ => {
                let ty = if left_rank > right_rank { left_type } else { right_type };
                let (left, right) = (convert(left, &ty)?, convert(right, &ty)?);
                Ok(Bound { expr: arithmetic_call(operation, &ty, vec![left.expr, right.expr]), ty, position: None })
            }
        }
    }

    /// Both sides in the type in which they are compared.
    pub(super) fn comparable(&self, left: Bound, symbol: &str, right: Bound) -> Result<(Bound, Bound)> {
        let ty = match common_type(&left.ty, &right.ty) {
            Some(Type::Unknown) => SqlType::Text.into(),
            // A string next to a NUMERIC has the digits that it has.
            Some(ty @ Type::Sql(SqlType::Numeric { .. })) => {
                let left_type = if left.ty == Type::Unknown { unknown_as(&left, &ty) } else { left.ty.clone() };
                let right_type = if right.ty == Type::Unknown { unknown_as(&right, &ty) } else { right.ty.clone() };
                common_type(&left_type, &right_type).unwrap_or(ty)
            }
            Some(ty) => ty,
            None => return Err(no_operator(&left, symbol, &right)),
        };
        check_operator(&ty, symbol, left.position)?;
        let (mut left, mut right) = (convert(left, &ty)?, convert(right, &ty)?);
        if ty == Type::Interval {
            let key = SqlType::Numeric { precision: 38, scale: 0 };
            for side in [&mut left, &mut right] {
                let expr = std::mem::take(&mut side.expr);
                *side = Bound::new(date_time(datetime::Operation::IntervalOrder, key.to_arrow(), vec![expr]), key.clone());
            }
        }
        Ok((left, right))
    }

    pub(super) fn compare(&self, left: Bound, operator: Operator, right: Bound) -> Result<Bound> {
        let symbol = match operator {
            Operator::NotEq => "<>".to_string(),
            Operator::IsDistinctFrom | Operator::IsNotDistinctFrom => "=".to_string(),
            other => other.to_string(),
        };
        if let Some(compared) = self.compare_rows(&left, operator, &right) {
            return compared;
        }
        let (left, right) = self.comparable(left, &symbol, right)?;
        let (left, right) = (one_zero(left), one_zero(right));
        Ok(Bound::new(binary_of(left.expr, operator, right.expr), SqlType::Boolean))
    }

    fn in_list(&self, value: &ast::Expr, list: &[ast::Expr], negated: bool, scope: &Scope<'_>) -> Result<Bound> {
        let (written, value) = (value, self.expr(value, scope)?);
        let items = list.iter().map(|item| self.expr(item, scope)).collect::<Result<Vec<_>>>()?;
        if matches!(value.ty, Type::Sql(SqlType::Row(_))) {
            let terms = items.into_iter().map(|item| Ok(self.compare(value.clone(), Operator::Eq, item)?.expr)).collect::<Result<_>>()?;
            let any = any_of(terms);
            return Ok(Bound::new(if negated { Expr::Not(Box::new(any)) } else { any }, SqlType::Boolean));
        }
        let mut ty = value.ty.clone();
        for item in &items {
            let item_type = if item.ty == Type::Unknown && matches!(ty, Type::Sql(SqlType::Numeric { .. })) {
                unknown_as(item, &ty)
            } else {
                item.ty.clone()
            };
            let common = common_type(&ty, &item_type).ok_or_else(|| no_operator(&value, "=", item));
            let first = list.first().map_or_else(Span::empty, Spanned::span);
            ty = self.at_operator(common, written, &[if negated { "NOT" } else { "IN" }], first)?;
        }
        if ty == Type::Interval || ty.is_nested() {
            return Err(positioned(Error::unsupported(format!("IN over type {} is not supported", ty.name())), value.position));
        }
        if ty == Type::Unknown {
            ty = SqlType::Text.into();
        }
        let value = one_zero(convert(value, &ty)?).expr;
        let items = items.into_iter().map(|item| Ok(one_zero(convert(item, &ty)?).expr)).collect::<Result<Vec<_>>>()?;
        // DataFusion takes for constant what gives one value over no rows, as CASE does: its lists are to hold constants only.
        let (constants, others): (Vec<Expr>, Vec<Expr>) =
            items.into_iter().partition(|item| matches!(item, Expr::Literal(..) | Expr::Placeholder(_)));
        if others.is_empty() {
            return Ok(Bound::new(Expr::InList(InList::new(Box::new(value), constants, negated)), SqlType::Boolean));
        }
        let mut terms = Vec::with_capacity(others.len() + 1);
        if !constants.is_empty() {
            terms.push(Expr::InList(InList::new(Box::new(value.clone()), constants, false)));
        }
        terms.extend(others.into_iter().map(|item| binary_of(value.clone(), Operator::Eq, item)));
        let any = any_of(terms);
        Ok(Bound::new(if negated { Expr::Not(Box::new(any)) } else { any }, SqlType::Boolean))
    }

    /// A subquery that has one column.
    fn single_column(&self, query: &ast::Query, scope: &Scope<'_>) -> Result<Relation> {
        let relation = self.query(query, &self.inner(scope))?.with_known_types()?;
        if relation.columns.len() != 1 {
            let error = Error::new(SqlState::SYNTAX_ERROR, "subquery must return only one column");
            return Err(self.before(error, query.span(), &["("]));
        }
        Ok(relation)
    }

    fn in_subquery(&self, left: Bound, query: &ast::Query, negated: bool, scope: &Scope<'_>) -> Result<Bound> {
        if matches!(left.ty, Type::Sql(SqlType::Row(_))) {
            return self.row_in_subquery(&left, query, negated, scope);
        }
        let (left, relation) = self.with_subquery(left, "=", query, scope)?;
        let subquery = subquery_of(relation.plan);
        Ok(Bound::new(Expr::InSubquery(InSubquery::new(Box::new(left.expr), subquery, negated)), SqlType::Boolean))
    }

    /// A value and a subquery of one column, in the type in which they are compared.
    fn with_subquery(&self, left: Bound, symbol: &str, query: &ast::Query, scope: &Scope<'_>) -> Result<(Bound, Relation)> {
        let mut relation = self.query(query, &self.inner(scope))?.with_known_types()?;
        if relation.columns.len() != 1 {
            return Err(positioned(Error::new(SqlState::SYNTAX_ERROR, "subquery has too many columns"), left.position));
        }
        if !matches!(relation.plan, LogicalPlan::Projection(_)) {
            // DataFusion looks for the one expression that the subquery is of.
            let column = relation.columns[0].column.clone();
            let name = column.name.clone();
            relation.plan = super::project(relation.plan, vec![Expr::Column(column).alias(&name)])?;
            relation.columns[0].column = datafusion::common::Column::new_unqualified(name);
        }
        let column = Bound { expr: lit(ScalarValue::Null), ty: relation.columns[0].ty.clone(), position: None };
        let ty = common_type(&left.ty, &column.ty).ok_or_else(|| no_operator(&left, symbol, &column))?;
        if ty == Type::Interval || ty.is_nested() {
            return Err(positioned(Error::unsupported(format!("a subquery of type {} can't be compared", ty.name())), left.position));
        }
        Ok((one_zero(convert(left, &ty)?), relation.with_types(&[ty])?.with_one_zero()?))
    }

    fn quantified(
        &self,
        left: &ast::Expr,
        op: &BinaryOperator,
        right: &ast::Expr,
        quantifier: SetQuantifier,
        scope: &Scope<'_>,
    ) -> Result<Bound> {
        let mut right = right;
        while let ast::Expr::Nested(inner) = right {
            right = inner;
        }
        let ast::Expr::Subquery(query) = right else {
            let (left, array) = (self.expr(left, scope)?, self.expr(right, scope)?);
            return self.quantified_array(left, op, array, quantifier);
        };
        let left = self.expr(left, scope)?;
        let operator = match op {
            BinaryOperator::Eq => Operator::Eq,
            BinaryOperator::NotEq => Operator::NotEq,
            BinaryOperator::Lt => Operator::Lt,
            BinaryOperator::LtEq => Operator::LtEq,
            BinaryOperator::Gt => Operator::Gt,
            BinaryOperator::GtEq => Operator::GtEq,
            other => {
                return Err(positioned(Error::unsupported(format!("operator {other} with a subquery is not supported")), left.position));
            }
        };
        match (operator, quantifier) {
            (Operator::Eq, SetQuantifier::Any) => self.in_subquery(left, query, false, scope),
            (Operator::NotEq, SetQuantifier::All) => self.in_subquery(left, query, true, scope),
            (operator, quantifier) => {
                let (left, relation) = self.with_subquery(left, &op.to_string(), query, scope)?;
                let comparison = SetComparison::new(Box::new(left.expr), subquery_of(relation.plan), operator, quantifier);
                Ok(Bound::new(Expr::SetComparison(comparison), SqlType::Boolean))
            }
        }
    }

    fn like(
        &self,
        expr: &ast::Expr,
        pattern: &ast::Expr,
        escape: Option<&ast::ValueWithSpan>,
        negated: bool,
        case_insensitive: bool,
        scope: &Scope<'_>,
    ) -> Result<Bound> {
        let escape = match escape.map(|escape| &escape.value) {
            None => Some('\\'),
            Some(Value::SingleQuotedString(text)) => {
                let mut characters = text.chars();
                match (characters.next(), characters.next()) {
                    (escape, None) => escape,
                    _ => {
                        let code = SqlState::parse("22025").unwrap_or(SqlState::DATA_EXCEPTION);
                        return Err(self.at(
                            Error::new(code, "invalid escape string").with_hint("Escape string must be empty or one character."),
                            pattern.span(),
                        ));
                    }
                }
            }
            Some(other) => return Err(self.at(Error::unsupported(format!("ESCAPE {other} is not supported")), pattern.span())),
        };
        self.like_bound(self.expr(expr, scope)?, self.expr(pattern, scope)?, escape, negated, case_insensitive)
    }

    fn like_bound(&self, left: Bound, pattern: Bound, escape: Option<char>, negated: bool, case_insensitive: bool) -> Result<Bound> {
        let text = Type::Sql(SqlType::Text);
        let symbol = match (negated, case_insensitive) {
            (false, false) => "~~",
            (true, false) => "!~~",
            (false, true) => "~~*",
            (true, true) => "!~~*",
        };
        if [&left, &pattern].iter().any(|side| side.ty != text && side.ty != Type::Unknown) {
            return Err(no_operator(&left, symbol, &pattern));
        }
        let position = pattern.position;
        let (left, mut pattern) = (convert(left, &text)?, convert(pattern, &text)?);
        if escape != Some('\\') {
            // The matcher's escape character is the backslash.
            let Expr::Literal(ScalarValue::Utf8(Some(written)), _) = &pattern.expr else {
                return Err(positioned(Error::unsupported("ESCAPE needs a constant pattern"), position));
            };
            let mut rewritten = String::with_capacity(written.len());
            let mut characters = written.chars();
            while let Some(character) = characters.next() {
                if Some(character) == escape {
                    if let Some(next) = characters.next() {
                        rewritten.push('\\');
                        rewritten.push(next);
                    }
                } else if character == '\\' {
                    rewritten.push_str("\\\\");
                } else {
                    rewritten.push(character);
                }
            }
            pattern.expr = lit(rewritten);
        }
        let like = |value: Expr, pattern: Expr, negated| {
            Expr::Like(Like::new(negated, Box::new(value), Box::new(pattern), None, case_insensitive))
        };
        if let Expr::Literal(ScalarValue::Utf8(Some(written)), _) = &pattern.expr
            && let Some(before) = written.strip_suffix('\\')
            && before.chars().rev().take_while(|character| *character == '\\').count() % 2 == 0
        {
            // Nothing matches, and where the end of the pattern is come to with text left, that is an error.
            let reached = like(left.expr, lit(format!("{before}_%")), false);
            let operation = string::Operation::PatternEnd;
            let expr = crate::functions::call(operation.name(), Kernel::String(operation), SqlType::Boolean.to_arrow(), vec![reached]);
            return Ok(Bound::new(if negated { Expr::Not(Box::new(expr)) } else { expr }, SqlType::Boolean));
        }
        Ok(Bound::new(like(left.expr, pattern.expr, negated), SqlType::Boolean))
    }

    /// `text SIMILAR TO pattern`, as a regular expression.
    fn similar(
        &self,
        expr: &ast::Expr,
        pattern: &ast::Expr,
        escape: Option<&ast::ValueWithSpan>,
        negated: bool,
        scope: &Scope<'_>,
    ) -> Result<Bound> {
        let (text, pattern) = (self.expr(expr, scope)?, self.expr(pattern, scope)?);
        let position = pattern.position;
        let escape = match escape.map(|escape| &escape.value) {
            None => Some('\\'),
            Some(Value::SingleQuotedString(escape)) if escape.chars().count() <= 1 => escape.chars().next(),
            Some(_) => {
                let code = SqlState::parse("22019").unwrap_or(SqlState::DATA_EXCEPTION);
                let error = Error::new(code, "invalid escape string").with_hint("Escape string must be empty or one character.");
                return Err(positioned(error, position));
            }
        };
        let pattern = match (&pattern.ty, &pattern.expr) {
            (Type::Unknown | Type::Sql(SqlType::Text), Expr::Literal(ScalarValue::Utf8(Some(written)), _)) => {
                Bound { expr: lit(string::similar_pattern(written, escape)), ..pattern }
            }
            (Type::Unknown, Expr::Literal(ScalarValue::Utf8(None), _)) => pattern,
            (Type::Unknown | Type::Sql(SqlType::Text), _) => {
                return Err(positioned(Error::unsupported("SIMILAR TO needs a constant pattern"), position));
            }
            _ => return Err(no_operator(&text, "~", &pattern)),
        };
        let operation = if negated { posix::Operation::NoMatch } else { posix::Operation::Match };
        self.regex_match(text, operation, pattern)
    }

    /// A cast that is written in the query.
    pub(super) fn explicit_cast(&self, bound: Bound, to: &Type) -> Result<Bound> {
        let position = bound.position;
        let bound = if bound.ty == Type::Unknown && !matches!(bound.expr, Expr::Literal(..) | Expr::Placeholder(_)) {
            known(bound)?
        } else {
            bound
        };
        let allowed = match (&bound.ty, to) {
            (Type::Interval, Type::Sql(SqlType::Text)) | (Type::Interval, Type::Interval) => true,
            (Type::Sql(SqlType::Text), Type::Interval) => matches!(bound.expr, Expr::Literal(..)),
            (_, to) => can_convert(&bound, to, CastContext::Explicit),
        };
        if !allowed {
            return Err(positioned(types::cannot_cast(&bound.ty, to), position));
        }
        if *to == Type::Interval && bound.ty == Type::Sql(SqlType::Text) {
            return convert(Bound { ty: Type::Unknown, ..bound }, to);
        }
        convert(bound, to)
    }

    fn interval(&self, interval: &ast::Interval, scope: &Scope<'_>) -> Result<Bound> {
        let value = self.expr(&interval.value, scope)?;
        let position = value.position;
        let Expr::Literal(ScalarValue::Utf8(Some(written)), _) = &value.expr else {
            return Err(positioned(Error::new(SqlState::SYNTAX_ERROR, "INTERVAL needs a string constant"), position));
        };
        let unit = match (&interval.leading_field, &interval.last_field) {
            (None, _) => "second".to_string(),
            (Some(_), Some(last)) => last.to_string().to_lowercase(),
            (Some(field), None) => field.to_string().to_lowercase(),
        };
        let parsed = text::parse_interval(written, &unit).map_err(|error| positioned(error, position))?;
        Ok(Bound { expr: Expr::Literal(types::interval_value(parsed), None), ty: Type::Interval, position })
    }

    fn case(
        &self,
        operand: Option<&ast::Expr>,
        conditions: &[ast::CaseWhen],
        otherwise: Option<&ast::Expr>,
        scope: &Scope<'_>,
    ) -> Result<Bound> {
        let operand = operand.map(|operand| self.expr(operand, scope)).transpose()?;
        let mut whens = Vec::with_capacity(conditions.len());
        let mut results = Vec::with_capacity(conditions.len() + 1);
        for condition in conditions {
            let when = self.expr(&condition.condition, scope)?;
            whens.push(match &operand {
                Some(operand) => self.compare(operand.clone(), Operator::Eq, when)?.expr,
                None => self.boolean(when, "CASE/WHEN")?.expr,
            });
            results.push(self.expr(&condition.result, scope)?);
        }
        // PostgreSQL looks at the ELSE first, and so do its errors.
        let has_else = otherwise.is_some();
        if let Some(otherwise) = otherwise {
            results.insert(0, self.expr(otherwise, scope)?);
        }
        let (mut results, ty) = self.unify(results, "CASE")?;
        let mut otherwise = has_else.then(|| results.remove(0));
        // A branch is evaluated where it is taken, and so is a condition where those before it are not true.
        let mut untaken: Vec<Expr> = Vec::new();
        for (when, result) in whens.iter_mut().zip(&mut results) {
            super::subquery::only_where(when, &untaken, scope)?;
            let mut taken = untaken.clone();
            taken.push(when.clone());
            super::subquery::only_where(&mut result.expr, &taken, scope)?;
            untaken.push(Expr::IsNotTrue(Box::new(when.clone())));
        }
        if let Some(otherwise) = &mut otherwise {
            super::subquery::only_where(&mut otherwise.expr, &untaken, scope)?;
        }
        if ty == Type::Sql(SqlType::Boolean) && results.iter().any(|result| can_fail(&result.expr)) {
            let arms = whens.into_iter().zip(results).map(|(when, then)| (when, then.expr)).collect();
            return Ok(Bound { expr: opaque_case(arms, otherwise.map(|otherwise| otherwise.expr)), ty, position: None });
        }
        let arms = whens.into_iter().zip(results).map(|(when, then)| (Box::new(when), Box::new(then.expr))).collect();
        let otherwise = otherwise.map(|otherwise| Box::new(otherwise.expr));
        Ok(Bound { expr: Expr::Case(Case::new(None, arms, otherwise)), ty, position: None })
    }

    /// Values in the type that they share.
    pub(super) fn unify(&self, values: Vec<Bound>, what: &str) -> Result<(Vec<Bound>, Type)> {
        let mut ty = Type::Unknown;
        for value in &values {
            ty = match common_type(&ty, &value.ty) {
                Some(ty) => ty,
                None => {
                    let error = Error::new(
                        SqlState::DATATYPE_MISMATCH,
                        format!("{what} types {} and {} cannot be matched", ty.name(), value.ty.name()),
                    );
                    return Err(positioned(error, value.position));
                }
            };
        }
        if let Type::Sql(SqlType::Numeric { .. }) = ty {
            for value in values.iter().filter(|value| value.ty == Type::Unknown) {
                ty = common_type(&ty, &unknown_as(value, &ty)).unwrap_or(ty);
            }
        }
        if ty == Type::Unknown {
            ty = SqlType::Text.into();
        }
        let values = values.into_iter().map(|value| convert(value, &ty)).collect::<Result<Vec<_>>>()?;
        Ok((values, ty))
    }
}

/// An unknown value as TEXT, a known one as it is.
pub(super) fn known(bound: Bound) -> Result<Bound> {
    if bound.ty == Type::Unknown { convert(bound, &SqlType::Text.into()) } else { Ok(bound) }
}

/// A plan as a subquery.
pub(super) fn subquery_of(plan: LogicalPlan) -> Subquery {
    let outer_ref_columns = plan.all_out_ref_exprs();
    Subquery { subquery: Arc::new(plan), outer_ref_columns, spans: Spans::new() }
}

pub(super) fn binary_of(left: Expr, operator: Operator, right: Expr) -> Expr {
    Expr::BinaryExpr(BinaryExpr::new(Box::new(left), operator, Box::new(right)))
}

/// An arithmetic call with result type `ty`.
pub(super) fn arithmetic_call(operation: arithmetic::Operation, ty: &Type, arguments: Vec<Expr>) -> Expr {
    crate::functions::call(operation.name(), Kernel::Arithmetic(operation), ty.to_arrow(), arguments)
}

/// A call of a function of timestamps or intervals.
pub(super) fn date_time(operation: datetime::Operation, result: arrow::datatypes::DataType, arguments: Vec<Expr>) -> Expr {
    crate::functions::call(operation.name(), Kernel::DateTime(operation), result, arguments)
}

/// The type that an unknown value takes next to one of type `other`: its own digits where that is a NUMERIC.
fn unknown_as(unknown: &Bound, other: &Type) -> Type {
    if let (Type::Sql(SqlType::Numeric { .. }), Expr::Literal(ScalarValue::Utf8(Some(written)), _)) = (other, &unknown.expr)
        && let Some((precision, scale)) = text::literal_precision(written.trim().trim_start_matches(['-', '+']))
    {
        return SqlType::Numeric { precision, scale }.into();
    }
    if let (Type::Sql(SqlType::Numeric { .. }), Expr::Placeholder(_)) = (other, &unknown.expr) {
        return SqlType::NUMERIC.into();
    }
    other.clone()
}

/// `42883` for an operator.
pub(super) fn no_operator(left: &Bound, symbol: &str, right: &Bound) -> Error {
    let error =
        Error::new(SqlState::UNDEFINED_FUNCTION, format!("operator does not exist: {} {symbol} {}", left.ty.name(), right.ty.name()))
            .with_hint(NO_OPERATOR_HINT);
    positioned(error, left.position)
}

/// A double with -0.0 as 0.0, for comparing and sorting: PostgreSQL holds them equal, Arrow's total order does not.
pub(super) fn one_zero(bound: Bound) -> Bound {
    if bound.ty.is_nested() {
        return comparable(bound);
    }
    if bound.ty != Type::Sql(SqlType::Double) {
        return bound;
    }
    if let Expr::Literal(ScalarValue::Float64(value), metadata) = bound.expr {
        let value = value.map(|value| value + 0.0);
        return Bound { expr: Expr::Literal(ScalarValue::Float64(value), metadata), ..bound };
    }
    let expr = datafusion::logical_expr::binary_expr(bound.expr, Operator::Plus, lit(0.0f64));
    Bound { expr, ..bound }
}

/// A number behind signs and parentheses, which PostgreSQL takes for one constant: its digits, and whether it is negative.
fn signed_number(expr: &ast::Expr) -> Option<(&str, bool, Span)> {
    match expr {
        ast::Expr::Value(ast::ValueWithSpan { value: Value::Number(digits, _), span }) => Some((digits, false, *span)),
        ast::Expr::Nested(inner) => signed_number(inner),
        ast::Expr::UnaryOp { op: UnaryOperator::Minus, expr } => {
            signed_number(expr).map(|(digits, is_negative, span)| (digits, !is_negative, span))
        }
        _ => None,
    }
}

/// A numeric literal: INT if it fits, else BIGINT, else NUMERIC.
fn number(digits: &str, negative: bool) -> Result<Bound> {
    let digits = digits.replace('_', "");
    let signed = if negative { format!("-{digits}") } else { digits.clone() };
    if let Ok(value) = signed.parse::<i32>() {
        return Ok(Bound::new(lit(value), SqlType::Int));
    }
    if let Ok(value) = signed.parse::<i64>() {
        return Ok(Bound::new(lit(value), SqlType::BigInt));
    }
    let Some((precision, scale)) = text::literal_precision(&digits) else {
        // PostgreSQL's NUMERIC holds what only a DOUBLE does here.
        if digits.contains(['e', 'E']) {
            return Ok(Bound::new(lit(text::parse_double(&signed)?), SqlType::Double));
        }
        return Err(Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, format!("numeric literal {signed} has more than 38 digits")));
    };
    let value = text::parse_decimal(&signed, precision, scale)?;
    Ok(Bound::new(Expr::Literal(ScalarValue::Decimal128(Some(value), precision, scale), None), SqlType::Numeric { precision, scale }))
}

/// Whether a type is NUMERIC without a precision.
fn is_any_numeric(data_type: &ast::DataType) -> bool {
    use ast::{DataType as T, ExactNumberInfo};
    matches!(data_type, T::Numeric(ExactNumberInfo::None) | T::Decimal(ExactNumberInfo::None) | T::Dec(ExactNumberInfo::None))
}

/// The NUMERIC that a value is cast to where no precision is given: what has digits of its own keeps them.
fn own_numeric(bound: &Bound) -> Type {
    if let Some((precision, scale)) = numeric_shape(&bound.ty) {
        return SqlType::Numeric { precision, scale }.into();
    }
    match (&bound.ty, &bound.expr) {
        (Type::Unknown, Expr::Literal(..)) => unknown_as(bound, &SqlType::NUMERIC.into()),
        _ => SqlType::NUMERIC.into(),
    }
}

/// The type that a cast names.
fn cast_target(data_type: &ast::DataType) -> Result<Type> {
    if let ast::DataType::Interval { .. } = data_type {
        return Ok(Type::Interval);
    }
    super::signature::sql_type(data_type).map(Type::Sql)
}
