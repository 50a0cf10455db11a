//! Where something stands in a statement's text that its syntax tree has no span for: names of what is changed, operators, casts.
//!
//! It is looked for in the tokens, and only for an error that is about to be told: nothing here decides what a statement means.
//!
//! # Invariants
//! Places are characters of the text, from 1. What is not found has no place: an error without one is better than one with a wrong one.

use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan, Word};

use super::script::{position, tokenize};

/// The tokens of one statement, without what only separates them.
pub struct Tokens<'a> {
    text: &'a str,
    tokens: Vec<TokenWithSpan>,
}

impl<'a> Tokens<'a> {
    /// Those of `text`; none where they can't be read.
    pub fn of(text: &'a str) -> Tokens<'a> {
        let mut tokens = tokenize(text).unwrap_or_default();
        tokens.retain(|token| !matches!(token.token, Token::Whitespace(_)));
        Tokens { text, tokens }
    }

    fn place(&self, at: usize) -> Option<usize> {
        self.tokens.get(at).map(|token| position(self.text, token.span.start))
    }

    fn is(&self, at: usize, word: &str) -> bool {
        match self.tokens.get(at).map(|token| &token.token) {
            Some(Token::Word(Word { value, quote_style: None, .. })) => value.eq_ignore_ascii_case(word),
            Some(token) => token.to_string() == word,
            None => false,
        }
    }

    /// Whether the token is the name `name`, as it is compared.
    fn is_name(&self, at: usize, name: &str) -> bool {
        match self.tokens.get(at).map(|token| &token.token) {
            Some(Token::Word(Word { value, quote_style: None, .. })) => value.to_ascii_lowercase() == name,
            Some(Token::Word(Word { value, .. })) => value == name,
            _ => false,
        }
    }

    /// The token after the first of `words` outside parentheses.
    fn after(&self, words: &[&str]) -> Option<usize> {
        let mut depth = 0;
        for at in 0..self.tokens.len() {
            match self.tokens[at].token {
                Token::LParen => depth += 1,
                Token::RParen => depth -= 1,
                _ if depth == 0 && words.iter().any(|word| self.is(at, word)) => return Some(at + 1),
                _ => {}
            }
        }
        None
    }

    /// The first token of the name of the table that an INSERT, UPDATE or DELETE changes.
    fn target_token(&self) -> Option<usize> {
        let at = self.after(&["INTO", "UPDATE", "FROM"])?;
        Some(if self.is(at, "ONLY") { at + 1 } else { at })
    }

    /// The table that an INSERT, UPDATE or DELETE changes.
    pub fn target(&self) -> Option<usize> {
        self.place(self.target_token()?)
    }

    /// The `n`-th column, from 0, that an INSERT lists.
    pub fn inserted(&self, n: usize) -> Option<usize> {
        let mut at = self.target_token()? + 1;
        while self.is(at, ".") {
            at += 2;
        }
        // One name and one comma each.
        let place = at + 1 + 2 * n;
        (self.is(at, "(") && matches!(self.tokens.get(place).map(|token| &token.token), Some(Token::Word(_)))).then(|| self.place(place))?
    }

    /// The column `name` as the SET of an UPDATE names it.
    pub fn assigned(&self, name: &str) -> Option<usize> {
        let (mut at, mut depth) = (self.after(&["SET"])?, 0);
        let (mut begins, mut in_list) = (true, false);
        while at < self.tokens.len() && !(depth == 0 && self.is(at, "WHERE")) {
            match self.tokens[at].token {
                Token::LParen => {
                    depth += 1;
                    in_list |= begins;
                    begins = false;
                }
                Token::RParen => {
                    depth -= 1;
                    in_list &= depth > 0;
                }
                Token::Comma => begins = depth == 0,
                _ => {
                    if (begins || in_list) && self.is_name(at, name) {
                        return self.place(at);
                    }
                    begins = false;
                }
            }
            at += 1;
        }
        None
    }

    /// The expression of the DEFAULT of the column `name` that a CREATE TABLE makes.
    pub fn default_of(&self, name: &str) -> Option<usize> {
        let mut depth = 0;
        let mut is_its = false;
        for at in 0..self.tokens.len() {
            match self.tokens[at].token {
                Token::LParen => depth += 1,
                Token::RParen => depth -= 1,
                Token::Word(_) if depth == 1 && at > 0 && matches!(self.tokens[at - 1].token, Token::LParen | Token::Comma) => {
                    is_its = self.is_name(at, name);
                }
                Token::Word(_) if depth == 1 && is_its && self.is(at, "DEFAULT") => return self.place(at + 1),
                _ => {}
            }
        }
        None
    }

    /// The column `name`, with the table before it, at or after the character `from`.
    pub fn column(&self, from: usize, name: &str) -> Option<usize> {
        let at = (0..self.tokens.len()).find(|at| self.is_name(*at, name) && self.place(*at).is_some_and(|place| place >= from))?;
        self.place(if at >= 2 && self.is(at - 1, ".") { at - 2 } else { at })
    }

    /// The operator between an operand that begins at `left`, or within whose parentheses that is, and another that begins at `right`; the first of `words`,
    /// for it may be written in several.
    pub fn operator(&self, left: Location, words: &[&str], right: Location) -> Option<usize> {
        let (mut depth, mut least, mut found) = (0, 0, None);
        for at in 0..self.tokens.len() {
            let start = self.tokens[at].span.start;
            if start < left || start >= right {
                continue;
            }
            match self.tokens[at].token {
                Token::LParen => depth += 1,
                Token::RParen => depth -= 1,
                // A sign has no operand before it.
                _ if start > left
                    && (depth <= least || found.is_none())
                    && words.iter().any(|word| self.is(at, word))
                    && self.ends_operand(at - 1) =>
                {
                    (found, least) = (Some(at), depth);
                }
                _ => {}
            }
        }
        self.place(found?)
    }

    fn ends_operand(&self, at: usize) -> bool {
        !matches!(
            self.tokens[at].token,
            Token::LParen
                | Token::Comma
                | Token::Plus
                | Token::Minus
                | Token::Mul
                | Token::Div
                | Token::Mod
                | Token::Eq
                | Token::Neq
                | Token::Lt
                | Token::Gt
                | Token::LtEq
                | Token::GtEq
                | Token::StringConcat
        )
    }

    /// The last of `words` before `location`, where nothing but parentheses is between.
    pub fn before(&self, location: Location, words: &[&str]) -> Option<usize> {
        let first = self.tokens.iter().position(|token| token.span.start >= location)?;
        for at in (0..first).rev() {
            if words.iter().any(|word| self.is(at, word)) {
                return self.place(at);
            }
            if self.tokens[at].token != Token::LParen {
                return None;
            }
        }
        None
    }

    /// The `n`-th `::`, from 0, behind what begins at `from`.
    pub fn cast(&self, from: Location, n: usize) -> Option<usize> {
        let mut casts =
            (0..self.tokens.len()).filter(|at| self.tokens[*at].span.start >= from && self.tokens[*at].token == Token::DoubleColon);
        self.place(casts.nth(n)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(text: &str) -> (String, Option<usize>) {
        (text.replace('|', ""), text.chars().position(|c| c == '|').map(|at| at + 1))
    }

    #[test]
    fn what_is_changed_is_found() {
        for text in ["INSERT INTO |t VALUES (1)", "UPDATE ONLY |t SET a = 1", "/* é */ DELETE FROM |public.t", "WITH x |"] {
            let (text, place) = marked(text);
            assert_eq!(Tokens::of(&text).target(), place.filter(|_| !text.starts_with("WITH")), "{text}");
        }
        let (text, place) = marked("INSERT INTO public.t (a, é, |\"B\") VALUES (1)");
        assert_eq!(Tokens::of(&text).inserted(2), place);
        assert_eq!(Tokens::of("INSERT INTO t VALUES (1, 2)").inserted(1), None);
        for text in [
            "UPDATE t SET a = (b + 1), |b = 1",
            "UPDATE t SET (a, |b) = (1, 2)",
            "UPDATE t SET a = f(b, 2), |B = 3 WHERE b = 1",
            "UPDATE t SET |b = b",
        ] {
            let (text, place) = marked(text);
            assert_eq!(Tokens::of(&text).assigned("b"), place, "{text}");
        }
        let (text, place) = marked("CREATE TABLE x (b INT DEFAULT 1, a NUMERIC(3, 1) NOT NULL DEFAULT |f(2))");
        assert_eq!(Tokens::of(&text).default_of("a"), place);
    }

    #[test]
    fn operators_are_found() {
        let location = |column: usize| Location { line: 1, column: column as u64 };
        for (text, left, right) in [
            ("a |+ b", 1, 5),
            ("(a + b) |+ c", 2, 11),
            ("f(a + b) |+ c", 1, 12),
            ("a |+ (b + c)", 1, 6),
            ("a + b |+ c", 1, 9),
            ("a + b |+ + c", 1, 11),
            ("a |+ + c", 1, 7),
        ] {
            let (text, place) = marked(text);
            assert_eq!(Tokens::of(&text).operator(location(left), &["+"], location(right)), place, "{text}");
        }
    }
}
