//! What a FROM may hold that `sqlparser` does not read, spelled as it does: joins that nest without parentheses (`a JOIN b JOIN c ON ... ON ...`), ONLY,
//! and the `*` behind a table's name, which say nothing where no table inherits from another.
//!
//! # Invariants
//! - A statement without any of these keeps its tokens.
//! - A token that is put in has the place of the one that it stands before.

use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

/// A JOIN whose ON or USING has not come yet.
struct Open {
    /// The token that its right side begins with.
    begins: usize,
    /// Whether its right side is a join itself.
    nested: bool,
}

/// What is known inside of one parenthesis.
#[derive(Default)]
struct Level {
    /// Joins without their condition, the outermost first.
    joins: Vec<Open>,
    selects: bool,
    in_from: bool,
    /// A table comes next.
    table: bool,
}

/// Words behind which there are no more tables.
const ENDS_FROM: &[Keyword] = &[
    Keyword::WHERE,
    Keyword::GROUP,
    Keyword::HAVING,
    Keyword::WINDOW,
    Keyword::ORDER,
    Keyword::LIMIT,
    Keyword::OFFSET,
    Keyword::FETCH,
    Keyword::UNION,
    Keyword::EXCEPT,
    Keyword::INTERSECT,
];

/// The tokens that are more than white space.
struct Significant<'a> {
    tokens: &'a [TokenWithSpan],
    places: Vec<usize>,
}

impl Significant<'_> {
    fn token(&self, place: usize) -> Option<&Token> {
        self.places.get(place).map(|index| &self.tokens[*index].token)
    }

    fn is(&self, place: usize, wanted: &Token) -> bool {
        self.token(place) == Some(wanted)
    }

    fn is_word(&self, place: usize) -> bool {
        matches!(self.token(place), Some(Token::Word(_)))
    }

    /// The keyword at `place`, if it is not quoted and no field's name.
    fn keyword(&self, place: usize) -> Option<Keyword> {
        let behind_period = place.checked_sub(1).is_some_and(|before| self.is(before, &Token::Period));
        match self.token(place)? {
            Token::Word(word) if word.quote_style.is_none() && !behind_period => Some(word.keyword),
            _ => None,
        }
    }

    fn keyword_before(&self, place: usize) -> Option<Keyword> {
        self.keyword(place.checked_sub(1)?)
    }

    /// Whether the JOIN at `place` is a CROSS or NATURAL one, which has no condition.
    fn has_no_condition(&self, join: usize) -> bool {
        let mut place = join;
        for skipped in [&[Keyword::OUTER][..], &[Keyword::INNER, Keyword::LEFT, Keyword::RIGHT, Keyword::FULL]] {
            if self.keyword_before(place).is_some_and(|keyword| skipped.contains(&keyword)) {
                place -= 1;
            }
        }
        matches!(self.keyword_before(place), Some(Keyword::CROSS | Keyword::NATURAL))
    }

    /// The place behind the name that begins at `place`.
    fn behind_name(&self, place: usize) -> Option<usize> {
        let mut end = place + 1;
        while self.is(end, &Token::Period) && self.is_word(end + 1) {
            end += 2;
        }
        self.is_word(place).then_some(end)
    }
}

/// `tokens` of one statement, without what `sqlparser` does not read.
pub(super) fn spell_out(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let is_concerned = |token: &TokenWithSpan| match &token.token {
        Token::Mul => true,
        Token::Word(word) => matches!(word.keyword, Keyword::JOIN | Keyword::ONLY),
        _ => false,
    };
    if !tokens.iter().any(is_concerned) {
        return tokens;
    }
    let places = (0..tokens.len()).filter(|index| !matches!(tokens[*index].token, Token::Whitespace(_))).collect();
    let significant = Significant { tokens: &tokens, places };
    // By the token that they stand before: parentheses to be opened and to be closed; and tokens to be left out.
    let (mut opened, mut closed, mut dropped) = (Vec::new(), Vec::new(), Vec::new());
    let mut levels = vec![Level::default()];
    for place in 0..significant.places.len() {
        let index = significant.places[place];
        if dropped.binary_search(&index).is_ok() {
            continue;
        }
        let is_inner = levels.len() > 1;
        let Some(level) = levels.last_mut() else { break };
        let table = std::mem::take(&mut level.table);
        match &tokens[index].token {
            Token::LParen | Token::LBracket | Token::LBrace => levels.push(Level { in_from: table, table, ..Level::default() }),
            Token::RParen | Token::RBracket | Token::RBrace if is_inner => {
                levels.pop();
            }
            Token::Comma => {
                level.joins.clear();
                level.table = level.in_from;
            }
            Token::Word(_) => match significant.keyword(place) {
                Some(Keyword::SELECT) => *level = Level { selects: true, ..Level::default() },
                // It is a query that stands where a table may.
                Some(Keyword::VALUES | Keyword::WITH | Keyword::TABLE) if table => *level = Level::default(),
                // Not that of IS DISTINCT FROM.
                Some(Keyword::FROM) if level.selects && significant.keyword_before(place) != Some(Keyword::DISTINCT) => {
                    *level = Level { selects: true, in_from: true, table: true, ..Level::default() };
                }
                Some(Keyword::JOIN) if level.in_from => {
                    if let Some(open) = level.joins.last_mut() {
                        open.nested = true;
                    }
                    if !significant.has_no_condition(place) {
                        level.joins.push(Open { begins: place + 1, nested: false });
                    }
                    level.table = true;
                }
                Some(Keyword::ON | Keyword::USING) => {
                    if let Some(Open { begins, nested: true }) = level.joins.pop() {
                        opened.extend(significant.places.get(begins));
                        closed.push(index);
                    }
                }
                Some(Keyword::ONLY) if table && significant.is_word(place + 1) => dropped.push(index),
                Some(Keyword::ONLY) if table && significant.is(place + 1, &Token::LParen) => {
                    let close = significant.behind_name(place + 2).filter(|close| significant.is(*close, &Token::RParen));
                    if let Some(close) = close {
                        dropped.extend([index, significant.places[place + 1], significant.places[close]]);
                    }
                }
                Some(keyword) if ENDS_FROM.contains(&keyword) => (level.joins, level.in_from) = (Vec::new(), false),
                _ if table => {
                    let star = significant.behind_name(place).filter(|star| significant.is(*star, &Token::Mul));
                    dropped.extend(star.map(|star| significant.places[star]));
                }
                _ => {}
            },
            _ => {}
        }
    }
    if opened.is_empty() && dropped.is_empty() {
        return tokens;
    }
    opened.sort_unstable();
    let mut spelled = Vec::with_capacity(tokens.len() + 2 * opened.len());
    for (index, token) in tokens.into_iter().enumerate() {
        for (places, parenthesis) in [(&closed, Token::RParen), (&opened, Token::LParen)] {
            if places.binary_search(&index).is_ok() {
                spelled.push(TokenWithSpan { token: parenthesis, span: token.span });
            }
        }
        if dropped.binary_search(&index).is_err() {
            spelled.push(token);
        }
    }
    spelled
}

#[cfg(test)]
mod tests {
    use crate::parser::parse_query;

    #[test]
    fn from_clauses_are_spelled_out() {
        for (sql, expected) in [
            ("SELECT 1 FROM a JOIN b JOIN c ON x ON y", "SELECT 1 FROM a JOIN (b JOIN c ON x) ON y"),
            ("SELECT 1 FROM a JOIN b ON x JOIN c ON y", "SELECT 1 FROM a JOIN b ON x JOIN c ON y"),
            ("SELECT 1 FROM a JOIN b JOIN c JOIN d ON x ON y ON z", "SELECT 1 FROM a JOIN (b JOIN (c JOIN d ON x) ON y) ON z"),
            ("SELECT 1 FROM a JOIN b JOIN c ON x JOIN d ON y ON z", "SELECT 1 FROM a JOIN (b JOIN c ON x JOIN d ON y) ON z"),
            ("SELECT 1 FROM a JOIN b CROSS JOIN c ON x", "SELECT 1 FROM a JOIN (b CROSS JOIN c) ON x"),
            ("SELECT 1 FROM a JOIN b NATURAL LEFT OUTER JOIN c ON x", "SELECT 1 FROM a JOIN (b NATURAL LEFT OUTER JOIN c) ON x"),
            ("SELECT 1 FROM a NATURAL JOIN b JOIN c ON x", "SELECT 1 FROM a NATURAL JOIN b JOIN c ON x"),
            ("SELECT 1 FROM a CROSS JOIN b JOIN c USING (k)", "SELECT 1 FROM a CROSS JOIN b JOIN c USING(k)"),
            (
                "SELECT 1 FROM a, b LEFT JOIN c FULL JOIN d USING (k) ON x, e",
                "SELECT 1 FROM a, b LEFT JOIN (c FULL JOIN d USING(k)) ON x, e",
            ),
            (
                "SELECT 1 FROM a JOIN b JOIN c ON b.x IS DISTINCT FROM c.on ON f(a.join, (SELECT d.x FROM d JOIN e ON true))",
                "SELECT 1 FROM a JOIN (b JOIN c ON b.x IS DISTINCT FROM c.on) ON f(a.join, (SELECT d.x FROM d JOIN e ON true))",
            ),
            (
                "SELECT 1 FROM a JOIN (b JOIN (SELECT 1 FROM c JOIN d JOIN e ON x ON y) f JOIN g ON z ON u) ON v",
                "SELECT 1 FROM a JOIN (b JOIN ((SELECT 1 FROM c JOIN (d JOIN e ON x) ON y) f JOIN g ON z) ON u) ON v",
            ),
            ("SELECT 1 FROM a JOIN /* b */ b JOIN c ON x -- y\n ON y", "SELECT 1 FROM a JOIN (b JOIN c ON x) ON y"),
            ("SELECT DISTINCT ON (x) \"join\" FROM a JOIN b ON x", "SELECT DISTINCT ON (x) \"join\" FROM a JOIN b ON x"),
            ("SELECT 1 FROM ONLY a, only public.c AS d, (ONLY (e) JOIN ONLY f ON x)", "SELECT 1 FROM a, c AS d, (e JOIN f ON x)"),
            ("SELECT 1 FROM a * b, \"c\" * JOIN public.e * ON x * y = z * u", "SELECT 1 FROM a b, \"c\" JOIN e ON x * y = z * u"),
            (
                "SELECT extract(year FROM x * y), x * y FROM a WHERE trim(both FROM x * y) IS DISTINCT FROM x * y",
                "SELECT EXTRACT(year FROM x * y), x * y FROM a WHERE trim(both FROM x * y) IS DISTINCT FROM x * y",
            ),
            (
                "SELECT 1 FROM (VALUES (1, 2), (x * 2, y * 3)) AS a, f(x, y * 3), unnest(ARRAY[x, y * 3]) WHERE (a, b * 2) = (1, c * 2)",
                "SELECT 1 FROM (VALUES (1, 2), (x * 2, y * 3)) AS a, f(x, y * 3), UNNEST(ARRAY[x, y * 3]) WHERE (a, b * 2) = (1, c * 2)",
            ),
            ("SELECT 1 FROM a FETCH FIRST 2 ROWS ONLY", "SELECT 1 FROM a LIMIT 2"),
        ] {
            let spelled = parse_query(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
            let expected = parse_query(expected).unwrap_or_else(|error| panic!("{expected}: {error:?}"));
            assert_eq!(spelled.to_string(), expected.to_string(), "{sql}");
        }
    }

    #[test]
    fn errors_stay_where_they_are() {
        for (sql, near, position) in [
            ("SELECT 1 FROM a JOIN b ON x ON y", "ON", 29),
            ("SELECT 1 FROM a JOIN b JOIN c ON x ON y ON z", "ON", 41),
            ("SELECT 1 FROM a JOIN b JOIN c ON x ON )", ")", 39),
            ("SELECT 1 FROM ONLY a b c", "c", 24),
        ] {
            let error = parse_query(sql).expect_err(sql);
            assert_eq!(error.code().as_str(), "42601", "{sql}");
            assert_eq!(error.message(), format!("syntax error at or near \"{near}\""), "{sql}");
            assert_eq!(error.position(), Some(position), "{sql}");
        }
    }

    #[test]
    fn deep_joins_come_to_an_end() {
        for depth in [10, 90, 2_000] {
            let sql = format!("SELECT 1 FROM a{}{}", " JOIN (SELECT 1) b".repeat(depth), " ON true".repeat(depth));
            match parse_query(&sql) {
                Ok(_) => assert!(depth < 100),
                Err(error) => assert_eq!((error.code().as_str(), depth > 10), ("54001", true)),
            }
        }
    }
}
