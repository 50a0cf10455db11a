//! The places of errors that are about what syntax trees have no span for. See [`Tokens`].

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{self, CastKind, SelectItem, SetExpr, Spanned, Visit, Visitor};
use datafusion::sql::sqlparser::tokenizer::Span;
use weir_catalog::{Error, Result, SqlState};

use super::Session;
use crate::parser::place::Tokens;

impl Session<'_> {
    fn tokens(&self) -> Option<Tokens<'_>> {
        self.text.map(Tokens::of)
    }

    /// The `n`-th column that an INSERT lists.
    pub(super) fn inserted(&self, n: usize) -> Option<usize> {
        self.tokens()?.inserted(n)
    }

    /// An error about the operator itself, which was told at its left operand, at the operator: the first of `words`, before `right`.
    pub(super) fn at_operator<T>(&self, result: Result<T>, left: &ast::Expr, words: &[&str], right: Span) -> Result<T> {
        let Err(error) = result else { return result };
        let start = left.span();
        let is_its = error.position().is_none_or(|position| Some(position) == self.position(start));
        let of_operator = [SqlState::UNDEFINED_FUNCTION, SqlState::SYNTAX_ERROR].contains(error.code()) || error.code().as_str() == "42725";
        if !is_its || !of_operator || start.start.line == 0 || right.start.line == 0 {
            return Err(error);
        }
        Err(match self.tokens().and_then(|tokens| tokens.operator(start.start, words, right.start)) {
            Some(position) => error.with_position(position),
            None => error,
        })
    }

    /// `error` at the last of `words` before `span`, where only parentheses are between.
    pub(super) fn before(&self, error: Error, span: Span, words: &[&str]) -> Error {
        match self.tokens().and_then(|tokens| tokens.before(span.start, words)) {
            Some(position) => error.with_position(position),
            None => self.at(error, span),
        }
    }

    /// That a value of a type is never one of another, at the cast that wants it.
    pub(super) fn at_cast<T>(&self, result: Result<T>, kind: &CastKind, inner: &ast::Expr) -> Result<T> {
        let start = inner.span();
        result.map_err(|error| match kind {
            _ if *error.code() != SqlState::CANNOT_COERCE || start.start.line == 0 => error,
            CastKind::DoubleColon => match self.tokens().and_then(|tokens| tokens.cast(start.start, casts_in(inner))) {
                Some(position) => error.with_position(position),
                None => error,
            },
            _ => self.before(error, start, &["CAST"]),
        })
    }

    /// An error about the `n`-th column of a query at what it is computed from.
    pub(super) fn at_column<T>(&self, result: Result<T>, body: &SetExpr, n: usize) -> Result<T> {
        result.map_err(|error| match column_span(body, n) {
            Some(span) => self.at(error, span),
            None => error,
        })
    }
}

/// How many casts with `::` an expression holds.
fn casts_in(expr: &ast::Expr) -> usize {
    struct Casts(usize);
    impl Visitor for Casts {
        type Break = ();

        fn pre_visit_expr(&mut self, expr: &ast::Expr) -> ControlFlow<()> {
            self.0 += usize::from(matches!(expr, ast::Expr::Cast { kind: CastKind::DoubleColon, .. }));
            ControlFlow::Continue(())
        }
    }
    let mut casts = Casts(0);
    let _ = expr.visit(&mut casts);
    casts.0
}

/// Where the `n`-th column of a query is written; a star stands for all that follow it.
fn column_span(body: &SetExpr, n: usize) -> Option<Span> {
    match body {
        SetExpr::Select(select) => {
            let is_star = |item: &SelectItem| matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..));
            let star = select.projection.iter().take(n + 1).find(|item| is_star(item));
            star.or_else(|| select.projection.get(n)).map(Spanned::span)
        }
        SetExpr::Values(values) => values.rows.first()?.content.get(n).map(Spanned::span),
        SetExpr::Query(query) => column_span(&query.body, n),
        SetExpr::SetOperation { left, .. } => column_span(left, n),
        _ => None,
    }
}
