//! A script's tokens and where they stand in its text: splitting into statements, error positions, and the limits that keep every later
//! walk over the syntax tree within the stack.
//!
//! # Invariants
//! - The locations of a statement's tokens, and so the spans in its syntax tree, count from its own first character.
//! - Lexemes are in the order of the text and do not overlap; a location that `sqlparser` reports is either the start of one or the end of input.
//! - A statement that passes [`check_limits`] has a syntax tree whose depth is bounded, whatever its length.

use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Location, Span, Token, TokenWithSpan, Tokenizer, TokenizerError, Whitespace};
use weir_catalog::{Error, Result, SqlState};

use super::escapes;
use crate::dialect::WeirDialect;

/// How deep queries, calls, brackets, CASEs, signs and types may nest.
const MAX_NESTING: usize = 100;

/// How deep parentheses may nest, with what counts for [`MAX_NESTING`]: those around an expression leave nothing behind.
const MAX_PARENTHESES: usize = 1_000;

/// How many operators may follow one another, nested ones included, without a comma between them: each can be one level of the syntax tree.
const MAX_OPERATORS: usize = 16_000;

/// How many of those may be one level of the plan each: all that stand between one AND or OR and the next, but for chains of arithmetic and `||`.
const MAX_LEVELS: usize = 2_000;

/// How many of those may be arithmetic, concatenations and casts, whose operands are one another's results: `(a + (b || c))::text`. DataFusion works out the
/// type and the name of each anew at each level, several times over, in time that grows with the cube of the number: 200 take about a second, 500 took 20.
const MAX_COMPUTATIONS: usize = 200;

/// A chain of arithmetic and `||` without parentheses is that many levels of the plan at most: a longer one is one function.
const CHAIN_LEVELS: usize = 32;

/// How many parentheses, nested queries counted in, may stand directly inside another where a table is expected: `sqlparser` reads what is in
/// such a one twice, first as a query and then as a join.
const MAX_DOUBLED: usize = 10;

/// How many relations one FROM, and how many queries one WITH may name: each can be one level of the plan.
pub(super) const MAX_RELATIONS: usize = 500;

/// Where a token stands. Bytes and characters count from 0, within the whole script; the location counts within the statement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lexeme {
    location: Location,
    start: usize,
    end: usize,
    character: usize,
    whitespace: bool,
}

/// One statement's part of a script.
#[derive(Debug)]
pub(super) struct Source<'a> {
    sql: &'a str,
    lexemes: Vec<Lexeme>,
    /// The end of the statement: bytes and characters from 0.
    end: usize,
    end_character: usize,
}

/// The statements of a script with their tokens, empty ones left out.
pub(super) fn split(sql: &str) -> Result<Vec<(Source<'_>, Vec<TokenWithSpan>)>> {
    let mut tokens = tokenize(sql)?;
    let lexemes = locate(sql, &tokens);
    for (lexeme, token) in lexemes.iter().zip(&mut tokens) {
        // `sqlparser` reads some escapes as others than they are.
        if let Token::EscapedStringLiteral(value) = &mut token.token
            && let Some(string) = escapes::escaped_string(&sql[lexeme.start..lexeme.end])
        {
            *value = string.map_err(|error| error.with_position(lexeme.character + 1))?.0;
        }
    }
    let mut statements = Vec::new();
    let mut part: (Vec<Lexeme>, Vec<TokenWithSpan>) = Default::default();
    let mut finish = |part: &mut (Vec<Lexeme>, Vec<TokenWithSpan>)| {
        let (lexemes, tokens) = std::mem::take(part);
        if let Some(last) = lexemes.iter().rfind(|lexeme| !lexeme.whitespace) {
            let end = last.end;
            let end_character = last.character + sql[last.start..last.end].chars().count();
            statements.push((Source { sql, lexemes, end, end_character }, tokens));
        }
    };
    let mut base = Location { line: 1, column: 1 };
    for (mut lexeme, mut token) in lexemes.into_iter().zip(tokens) {
        if token.token == Token::SemiColon {
            finish(&mut part);
            continue;
        }
        if part.0.is_empty() {
            if lexeme.whitespace {
                continue;
            }
            base = lexeme.location;
        }
        for location in [&mut lexeme.location, &mut token.span.start, &mut token.span.end] {
            *location = relative(*location, base);
        }
        part.0.push(lexeme);
        part.1.push(token);
    }
    finish(&mut part);
    Ok(statements)
}

/// The tokens of a script.
pub(super) fn tokenize(sql: &str) -> Result<Vec<TokenWithSpan>> {
    let dialect = WeirDialect::for_tokens(0);
    let mut tokens: Vec<TokenWithSpan> = Vec::new();
    let mut walk = Walk::new(sql);
    loop {
        let (base, mut part) = (walk.location, Vec::new());
        let tokenized = Tokenizer::new(&dialect, &sql[walk.byte..]).tokenize_with_location_into_buf(&mut part);
        for token in &mut part {
            token.span = Span::new(absolute(token.span.start, base), absolute(token.span.end, base));
        }
        tokens.extend(part.into_iter().flat_map(without_signs));
        let Err(error) = tokenized else { return Ok(tokens) };
        // What can't be read begins where the last good token ended.
        walk.go_to(tokens.last().map_or(base, |token| token.span.end));
        let rest = &sql[walk.byte..];
        let (value, length) = match escapes::escaped_string(rest) {
            Some(string) => string.map_err(|error| error.with_position(walk.character + 1))?,
            None => return Err(tokenizer_error(rest, &error, walk.character)),
        };
        let start = walk.location;
        walk.skip(length);
        let span = Span::new(start, walk.location);
        tokens.push(TokenWithSpan { token: Token::EscapedStringLiteral(value), span });
    }
}

/// An operator that ends in signs is that without them, and the signs: `1>-1`. So PostgreSQL has it, where nothing of `~!@#%^&|?` is in it, of which the
/// tokenizer knows nothing.
fn without_signs(token: TokenWithSpan) -> Vec<TokenWithSpan> {
    let operator = match &token.token {
        Token::CustomBinaryOperator(operator) => operator.trim_end_matches(['+', '-']),
        _ => return vec![token],
    };
    let first = match operator {
        "<" => Token::Lt,
        ">" => Token::Gt,
        "<=" => Token::LtEq,
        ">=" => Token::GtEq,
        "<>" => Token::Neq,
        "=" => Token::Eq,
        "*" => Token::Mul,
        "/" => Token::Div,
        _ => return vec![token],
    };
    let Token::CustomBinaryOperator(whole) = &token.token else { return vec![token] };
    let signs = whole[operator.len()..].chars().map(|sign| if sign == '-' { Token::Minus } else { Token::Plus });
    let mut start = token.span.start;
    let widths = std::iter::once(operator.len() as u64).chain(std::iter::repeat(1));
    let split = std::iter::once(first).chain(signs).zip(widths).map(|(token, width)| {
        let end = Location { line: start.line, column: start.column + width };
        TokenWithSpan { token, span: Span::new(std::mem::replace(&mut start, end), end) }
    });
    split.collect()
}

/// `location`, which counts from `base`, as it counts from the beginning: the opposite of [`relative`].
fn absolute(location: Location, base: Location) -> Location {
    Location {
        line: base.line + location.line - 1,
        column: if location.line == 1 { base.column + location.column - 1 } else { location.column },
    }
}

/// `location` as it counts from `base`, which is line 1, column 1.
fn relative(location: Location, base: Location) -> Location {
    Location {
        line: location.line - base.line + 1,
        column: if location.line == base.line { location.column - base.column + 1 } else { location.column },
    }
}

/// The number, from 1, of the character of `text` at `location`: what a span in the syntax tree of a statement means in its text.
pub fn position(text: &str, location: Location) -> usize {
    let mut walk = Walk::new(text);
    walk.go_to(location);
    walk.character + 1
}

/// The places of `tokens` in `sql`, in one pass.
fn locate(sql: &str, tokens: &[TokenWithSpan]) -> Vec<Lexeme> {
    let mut walk = Walk::new(sql);
    let mut lexemes = Vec::with_capacity(tokens.len());
    for token in tokens {
        walk.go_to(token.span.start);
        let (start, character) = (walk.byte, walk.character);
        walk.go_to(token.span.end);
        let whitespace = matches!(token.token, Token::Whitespace(_));
        lexemes.push(Lexeme { location: token.span.start, start, end: walk.byte, character, whitespace });
    }
    lexemes
}

/// Steps through a text, counting lines and columns as `sqlparser` does.
struct Walk<'a> {
    rest: std::str::Chars<'a>,
    location: Location,
    byte: usize,
    character: usize,
}

impl<'a> Walk<'a> {
    fn new(sql: &'a str) -> Walk<'a> {
        Walk { rest: sql.chars(), location: Location { line: 1, column: 1 }, byte: 0, character: 0 }
    }

    fn go_to(&mut self, location: Location) {
        while self.location < location && self.step() {}
    }

    /// Goes on by so many bytes.
    fn skip(&mut self, bytes: usize) {
        let end = self.byte + bytes;
        while self.byte < end && self.step() {}
    }

    fn step(&mut self) -> bool {
        let Some(ch) = self.rest.next() else { return false };
        self.byte += ch.len_utf8();
        self.character += 1;
        self.location = match ch {
            '\n' => Location { line: self.location.line + 1, column: 1 },
            _ => Location { line: self.location.line, column: self.location.column + 1 },
        };
        true
    }
}

impl<'a> Source<'a> {
    /// The token that starts at `location`, or the first after it; `None` is the end of the statement.
    fn lexeme_at(&self, location: Location) -> Option<usize> {
        if location.line == 0 {
            return None;
        }
        let index = self.lexemes.partition_point(|lexeme| lexeme.location < location);
        (index..self.lexemes.len()).find(|&index| !self.lexemes[index].whitespace)
    }

    /// The byte and character where the statement begins: its first token.
    fn begin(&self) -> (usize, usize) {
        self.lexemes.iter().find(|lexeme| !lexeme.whitespace).map_or((self.end, self.end_character), |l| (l.start, l.character))
    }

    /// The statement's own text and the character where it begins.
    pub fn statement(&self) -> (&'a str, usize) {
        let (byte, character) = self.begin();
        (&self.sql[byte..self.end], character)
    }

    /// The character, from 0, of what starts at `location`.
    pub fn character(&self, location: Location) -> usize {
        self.lexeme_at(location).map_or(self.end_character, |index| self.lexemes[index].character)
    }

    /// The text from the token at `from` to the last token before `to` (a location without line is the end of the statement).
    pub fn text(&self, from: Location, to: Location) -> &'a str {
        let first = self.lexeme_at(from).unwrap_or(self.lexemes.len());
        let after = self.lexeme_at(to).unwrap_or(self.lexemes.len());
        let Some(lexemes) = self.lexemes.get(first..after) else { return "" };
        match (lexemes.first(), lexemes.iter().rfind(|lexeme| !lexeme.whitespace)) {
            (Some(first), Some(last)) => &self.sql[first.start..last.end],
            _ => "",
        }
    }

    /// `42601` at the token that starts at `location`, in PostgreSQL's words.
    pub fn syntax_error(&self, location: Location) -> Error {
        match self.lexeme_at(location).map(|index| &self.lexemes[index]) {
            Some(lexeme) if lexeme.start < self.end => {
                Error::new(SqlState::SYNTAX_ERROR, format!("syntax error at or near \"{}\"", &self.sql[lexeme.start..lexeme.end]))
                    .with_position(lexeme.character + 1)
            }
            _ => Error::new(SqlState::SYNTAX_ERROR, "syntax error at end of input").with_position(self.end_character + 1),
        }
    }

    /// `54001`.
    pub fn too_complex(&self) -> Error {
        too_complex().with_position(self.begin().1 + 1)
    }
}

/// `54001`: deeper than any walk over the syntax tree or the plan may go.
pub(super) fn too_complex() -> Error {
    Error::new(SqlState::STATEMENT_TOO_COMPLEX, "statement too complex").with_detail(format!(
        "Queries and calls may nest {MAX_NESTING} levels deep and parentheses {MAX_PARENTHESES}, expressions chain {MAX_OPERATORS} operators and compute {MAX_COMPUTATIONS} times with one another's results, and queries join {MAX_RELATIONS} relations."
    ))
}

/// What the tokenizer could not read, in PostgreSQL's words: `rest`, which begins at `character`, from 0.
fn tokenizer_error(rest: &str, error: &TokenizerError, character: usize) -> Error {
    let what = match &error.message {
        _ if rest.starts_with("/*") => "unterminated /* comment",
        message if message.contains("dollar-quoted") => "unterminated dollar-quoted string",
        message if message.contains("close delimiter") => "unterminated quoted identifier",
        message if message.starts_with("Unterminated") => "unterminated quoted string",
        _ => "syntax error",
    };
    let near: String = rest.chars().take(100).collect();
    Error::new(SqlState::SYNTAX_ERROR, format!("{what} at or near \"{near}\"")).with_position(character + 1)
}

/// Refuses statements whose syntax tree would be too deep (`54001`), hints where none is read, and clauses that `sqlparser` would not
/// recognise as what they are (`0A000`).
pub(super) fn check_limits(source: &Source, tokens: &[TokenWithSpan]) -> Result<()> {
    /// What nests in a run of operators: how many there were since the run began, arithmetic by itself, the deepest closed parenthesis since then, and the
    /// deepest run before.
    #[derive(Default)]
    struct Run {
        operators: usize,
        links: usize,
        inner: usize,
        deepest: usize,
    }
    impl Run {
        /// With chains of arithmetic as so many levels at most.
        fn depth(&self, chain: usize) -> usize {
            self.deepest.max(self.operators + self.links.min(chain) + self.inner)
        }

        /// The run ends here.
        fn end(&mut self, chain: usize) {
            *self = Run { deepest: self.depth(chain), ..Run::default() };
        }
    }
    /// One open parenthesis. UNION and its kin chain across commas.
    #[derive(Default)]
    struct Level {
        /// Levels of the syntax tree, from comma to comma.
        syntax: Run,
        /// Levels of the plan, from one AND, OR or comma to the next.
        plan: Run,
        /// Computations, from one word or symbol that ends them to the next.
        computed: Run,
        /// BETWEENs that wait for their AND.
        betweens: usize,
        set_operators: usize,
        /// The parenthesis is a call's, a query's or a bracket.
        counts: bool,
        /// What follows stands in a FROM.
        in_from: bool,
        /// The parenthesis stands where a table may.
        table: bool,
        /// Parentheses around this one, and itself, that stand directly inside another in the place of a table.
        doubled: usize,
        /// Signs and NOTs in a row, up to the last token.
        prefixes: usize,
        /// CASEs without their END.
        cases: usize,
    }
    impl Level {
        fn syntax(&self) -> usize {
            self.syntax.depth(usize::MAX) + self.set_operators
        }

        fn plan(&self) -> usize {
            self.plan.depth(CHAIN_LEVELS) + self.set_operators
        }

        fn computed(&self) -> usize {
            self.computed.depth(CHAIN_LEVELS)
        }
    }
    let mut levels = vec![Level::default()];
    let mut types = 0;
    let mut before: Option<&Token> = None;
    for (index, token) in tokens.iter().enumerate() {
        let position = |error: Error| error.with_position(source.character(token.span.start) + 1);
        let open = levels.len();
        let Some(level) = levels.last_mut() else { return Err(source.too_complex()) };
        // A sign or a NOT nests what follows it, a parenthesis included.
        level.prefixes = match &token.token {
            Token::Plus | Token::Minus | Token::Tilde | Token::PGSquareRoot | Token::PGCubeRoot | Token::AtSign => level.prefixes + 1,
            token if is_keyword(token, Keyword::NOT) => level.prefixes + 1,
            Token::Whitespace(_) | Token::LParen | Token::LBracket | Token::LBrace => level.prefixes,
            _ => 0,
        };
        match &token.token {
            Token::Whitespace(Whitespace::MultiLineComment(comment)) if comment.starts_with('+') => {
                if !before.is_some_and(|token| is_keyword(token, Keyword::SELECT)) {
                    return Err(position(
                        Error::unsupported("a hint is not supported here").with_hint("Write /*+ uid('name') */ right after SELECT."),
                    ));
                }
                continue;
            }
            Token::Whitespace(_) => continue,
            Token::LParen | Token::LBracket | Token::LBrace => {
                // `x[1][1]` and `int[][]` nest without being inside one another.
                let subscript = usize::from(token.token == Token::LBracket);
                level.syntax.operators += subscript;
                level.plan.operators += subscript;
                let inside = level.table && before == Some(&Token::LParen);
                let table = inside || (level.in_from && before.is_some_and(begins_table));
                let doubled = level.doubled + usize::from(inside);
                if doubled > MAX_DOUBLED {
                    return Err(position(too_complex()));
                }
                // One around an expression follows an operator or a word that is none's name, and has no query in it.
                let follows = match before {
                    Some(Token::Word(word)) => ends_computation(word.keyword) || is_operator(word.keyword),
                    Some(Token::RParen | Token::RBracket | Token::RBrace) => false,
                    _ => true,
                };
                let next = tokens[index + 1..].iter().find(|token| !matches!(token.token, Token::Whitespace(_)));
                let begins_query = next.is_some_and(|next| QUERIES.iter().any(|word| is_keyword(&next.token, *word)));
                let counts = token.token != Token::LParen || table || begins_query || !follows;
                levels.push(Level { table, doubled, counts, ..Level::default() });
            }
            Token::RParen | Token::RBracket | Token::RBrace => {
                if open > 1 {
                    let (syntax, plan, computed) = (level.syntax() + 1, level.plan() + usize::from(level.counts), level.computed());
                    levels.pop();
                    if let Some(outer) = levels.last_mut() {
                        outer.syntax.inner = outer.syntax.inner.max(syntax);
                        outer.plan.inner = outer.plan.inner.max(plan);
                        outer.computed.inner = outer.computed.inner.max(computed);
                    }
                }
            }
            Token::Comma => {
                level.computed.end(CHAIN_LEVELS);
                level.plan.end(CHAIN_LEVELS);
                level.syntax.end(usize::MAX);
                level.betweens = 0;
            }
            Token::Lt if before.is_some_and(opens_type) => types += 1,
            Token::Word(word) if word.quote_style.is_some() && word.value.is_empty() => {
                let near = "zero-length delimited identifier at or near \"\"\"\"";
                return Err(position(Error::new(SqlState::SYNTAX_ERROR, near)));
            }
            Token::Word(word) => {
                if word.keyword == Keyword::SYSTEM_TIME && before.is_some_and(|token| is_keyword(token, Keyword::FOR)) {
                    return Err(position(Error::unsupported("FOR SYSTEM_TIME AS OF is not supported")));
                }
                if matches!(word.keyword, Keyword::SYMMETRIC | Keyword::ASYMMETRIC)
                    && word.quote_style.is_none()
                    && before.is_some_and(|token| is_keyword(token, Keyword::BETWEEN))
                {
                    let clause = word.value.to_ascii_uppercase();
                    return Err(position(
                        Error::unsupported(format!("BETWEEN {clause} is not supported"))
                            .with_hint("Write BETWEEN least(a, b) AND greatest(a, b)."),
                    ));
                }
                match word.keyword {
                    Keyword::CASE => level.cases += 1,
                    Keyword::END => level.cases = level.cases.saturating_sub(1),
                    _ => {}
                }
                level.in_from = match word.keyword {
                    Keyword::FROM | Keyword::JOIN => true,
                    keyword => level.in_from && !ENDS_FROM.contains(&keyword),
                };
                if ends_computation(word.keyword) {
                    level.computed.end(CHAIN_LEVELS);
                }
                level.set_operators += usize::from(SET_OPERATORS.contains(&word.keyword));
                let operator = usize::from(is_operator(word.keyword));
                level.syntax.operators += operator;
                match word.keyword {
                    Keyword::AND if level.betweens > 0 => level.betweens -= 1,
                    Keyword::AND | Keyword::OR => level.plan.end(CHAIN_LEVELS),
                    Keyword::BETWEEN => {
                        level.betweens += 1;
                        level.plan.operators += 1;
                    }
                    _ => level.plan.operators += operator,
                }
            }
            Token::Number(..) | Token::SingleQuotedString(_) | Token::Period | Token::Placeholder(_) => {}
            Token::Eq | Token::Neq | Token::Lt | Token::Gt | Token::LtEq | Token::GtEq => {
                level.computed.end(CHAIN_LEVELS);
                level.syntax.operators += 1;
                level.plan.operators += 1;
            }
            Token::Plus | Token::Minus | Token::Mul | Token::Div | Token::Mod | Token::StringConcat => {
                for run in [&mut level.syntax, &mut level.plan, &mut level.computed] {
                    run.links += 1;
                }
            }
            _ => {
                for run in [&mut level.syntax, &mut level.plan, &mut level.computed] {
                    run.operators += 1;
                }
            }
        }
        let rest: usize = types + levels.iter().map(|level| level.prefixes + level.cases).sum::<usize>();
        let depth = rest + 1 + levels.iter().filter(|level| level.counts).count();
        if depth > MAX_NESTING || rest + levels.len() > MAX_PARENTHESES {
            return Err(too_complex().with_position(source.character(token.span.start) + 1));
        }
        if let Token::LParen = token.token
            && before.is_some_and(|token| matches!(token, Token::Word(word) if word.keyword == Keyword::MATCH_RECOGNIZE))
        {
            return Err(position(Error::unsupported("MATCH_RECOGNIZE is not supported")));
        }
        before = Some(&token.token);
    }
    // Unclosed parentheses are a syntax error, but the parser gets as deep before it says so.
    let open = |depth: fn(&Level) -> usize, run: fn(&Level) -> &Run, chain| {
        let around = |level: &Level, inner: usize| run(level).operators + run(level).links.min(chain) + inner + level.set_operators;
        levels.iter().rev().fold(0, |inner, level| depth(level).max(around(level, inner)) + 1)
    };
    let syntax = open(Level::syntax, |level| &level.syntax, usize::MAX);
    let plan = open(Level::plan, |level| &level.plan, CHAIN_LEVELS);
    let computed = levels.iter().map(Level::computed).max().unwrap_or(0);
    let is_too_deep = syntax > MAX_OPERATORS || plan > MAX_LEVELS || computed > MAX_COMPUTATIONS;
    if is_too_deep { Err(source.too_complex()) } else { Ok(()) }
}

/// Whether the word stands between two computations, or is an operator that makes no deep types of them.
fn ends_computation(keyword: Keyword) -> bool {
    use Keyword::{AND, BETWEEN, BY, CASE, ELSE, END, FROM, HAVING, ILIKE, IN, IS, LIKE, LIMIT, ON, OR, SELECT, THEN, UNION, WHEN, WHERE};
    [AND, BETWEEN, BY, CASE, ELSE, END, FROM, HAVING, ILIKE, IN, IS, LIKE, LIMIT, ON, OR, SELECT, THEN, UNION, WHEN, WHERE]
        .contains(&keyword)
}

/// Words that queries begin with.
const QUERIES: &[Keyword] = &[Keyword::SELECT, Keyword::WITH, Keyword::VALUES, Keyword::TABLE];

/// After these words a parenthesis is no table's.
const ENDS_FROM: &[Keyword] = &[
    Keyword::SELECT,
    Keyword::ON,
    Keyword::USING,
    Keyword::WHERE,
    Keyword::GROUP,
    Keyword::HAVING,
    Keyword::WINDOW,
    Keyword::ORDER,
    Keyword::LIMIT,
    Keyword::UNION,
    Keyword::EXCEPT,
    Keyword::INTERSECT,
];

/// Whether a table may follow, in a FROM.
fn begins_table(token: &Token) -> bool {
    match token {
        Token::Comma => true,
        Token::Word(word) => matches!(word.keyword, Keyword::FROM | Keyword::JOIN | Keyword::LATERAL),
        _ => false,
    }
}

/// What stands between two queries.
const SET_OPERATORS: &[Keyword] = &[Keyword::UNION, Keyword::EXCEPT, Keyword::INTERSECT, Keyword::MINUS];

/// Words that put what is left of them one level down in the syntax tree.
fn is_operator(keyword: Keyword) -> bool {
    use Keyword::{AND, AT, BETWEEN, COLLATE, DIV, ILIKE, IN, IS, LIKE, MATCH, MEMBER};
    use Keyword::{NOT, NOTNULL, OPERATOR, OR, OVERLAPS, REGEXP, RLIKE, SIMILAR, XOR};
    let all = [
        AND, AT, BETWEEN, COLLATE, DIV, ILIKE, IN, IS, LIKE, MATCH, MEMBER, NOT, NOTNULL, OPERATOR, OR, OVERLAPS, REGEXP, RLIKE, SIMILAR,
        XOR,
    ];
    all.contains(&keyword)
}

fn is_keyword(token: &Token, keyword: Keyword) -> bool {
    matches!(token, Token::Word(word) if word.keyword == keyword)
}

/// Words after which `<` opens the parameters of a type that `sqlparser` reads (`ROW` is read here).
fn opens_type(token: &Token) -> bool {
    matches!(token, Token::Word(word) if matches!(word.keyword, Keyword::ARRAY | Keyword::STRUCT | Keyword::MAP))
}

/// `CREATE SINK name AS query WITH (...)`: puts a semicolon, which no statement holds, in the place of that WITH. `sqlparser` would take it
/// for a hint to the query's last table.
pub(super) fn separate_sink_options(tokens: &mut [TokenWithSpan]) {
    let significant: Vec<usize> =
        tokens.iter().enumerate().filter(|(_, token)| !matches!(token.token, Token::Whitespace(_))).map(|(index, _)| index).collect();
    let word = |place: usize, word: &str| {
        significant.get(place).is_some_and(|&index| {
            matches!(&tokens[index].token, Token::Word(found) if found.quote_style.is_none() && found.value.eq_ignore_ascii_case(word))
        })
    };
    if !word(0, "CREATE") || !word(1, "SINK") {
        return;
    }
    let (mut depth, mut as_seen, mut options) = (0, false, None);
    for (place, &index) in significant.iter().enumerate() {
        match tokens[index].token {
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            _ if depth == 0 && word(place, "AS") => as_seen = true,
            _ if depth == 0 && as_seen && word(place, "WITH") => {
                let opens = significant.get(place + 1).is_some_and(|&next| tokens[next].token == Token::LParen);
                options = opens.then_some(index).or(options);
            }
            _ => {}
        }
    }
    if let Some(index) = options {
        tokens[index].token = Token::SemiColon;
    }
}

/// Puts the number of `state(...) AS OF CHECKPOINT number` among the arguments, where `sqlparser` has a place for it.
pub(super) fn place_checkpoints(tokens: &mut [TokenWithSpan]) {
    let significant: Vec<usize> =
        tokens.iter().enumerate().filter(|(_, token)| !matches!(token.token, Token::Whitespace(_))).map(|(index, _)| index).collect();
    let is_word = |token: &Token, wanted: &str| matches!(token, Token::Word(word) if word.value.eq_ignore_ascii_case(wanted));
    for place in 0..significant.len().saturating_sub(4) {
        let [close, with, of, checkpoint, number] = std::array::from_fn(|next| significant[place + next]);
        let is_clause = tokens[close].token == Token::RParen
            && [(with, "AS"), (of, "OF"), (checkpoint, "CHECKPOINT")].iter().all(|(at, word)| is_word(&tokens[*at].token, word))
            && matches!(tokens[number].token, Token::Number(..));
        let reads_state = || {
            let mut open = 0;
            let begins = significant[..=place].iter().rposition(|index| {
                match tokens[*index].token {
                    Token::RParen => open += 1,
                    Token::LParen => open -= 1,
                    _ => {}
                }
                open == 0
            });
            let name = begins.and_then(|begins| begins.checked_sub(1)).map(|name| &tokens[significant[name]].token);
            name.is_some_and(|name| is_word(name, "state") || is_word(name, "savepoint_state"))
        };
        if is_clause && reads_state() {
            tokens[close].token = Token::Comma;
            tokens.swap(with, number);
            tokens[of].token = Token::RParen;
            for rest in [checkpoint, number] {
                tokens[rest].token = Token::Whitespace(Whitespace::Space);
            }
        }
    }
}

/// Whether a statement is `WITH ... INSERT INTO ...`.
pub(super) fn inserts_with(tokens: &[TokenWithSpan]) -> bool {
    let mut significant = tokens.iter().map(|token| &token.token).filter(|token| !matches!(token, Token::Whitespace(_)));
    // It may stand behind EXPLAIN.
    let begins = significant.by_ref().find(|token| !is_keyword(token, Keyword::EXPLAIN));
    if !begins.is_some_and(|token| is_keyword(token, Keyword::WITH)) {
        return false;
    }
    let (mut open, mut before) = (0usize, None);
    for token in significant {
        match token {
            Token::LParen => open += 1,
            Token::RParen => open = open.saturating_sub(1),
            Token::Word(word) if open == 0 && word.keyword == Keyword::INTO => {
                return before.is_some_and(|before| is_keyword(before, Keyword::INSERT));
            }
            _ => {}
        }
        before = Some(token);
    }
    false
}

/// Spells `TABLE name` where a query may stand as `SELECT * FROM name`: `sqlparser` reads two tokens too many after `TABLE name`.
pub(super) fn expand_table_queries(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let significant: Vec<usize> =
        tokens.iter().enumerate().filter(|(_, token)| !matches!(token.token, Token::Whitespace(_))).map(|(index, _)| index).collect();
    let mut tables = Vec::new();
    for (place, &index) in significant.iter().enumerate() {
        let at = |back: usize| place.checked_sub(back).map(|place| &tokens[significant[place]].token);
        let is = |back: usize, keywords: &[Keyword]| {
            at(back).is_some_and(|token| matches!(token, Token::Word(word) if keywords.contains(&word.keyword)))
        };
        let names_table = significant.get(place + 1).is_some_and(|&next| matches!(tokens[next].token, Token::Word(_)));
        if !is_keyword(&tokens[index].token, Keyword::TABLE) || !names_table {
            continue;
        }
        let begins_query = match at(1) {
            None => true,
            Some(Token::Word(_)) => {
                is(1, &[Keyword::AS, Keyword::EXPLAIN, Keyword::FOR])
                    || is(1, SET_OPERATORS)
                    || (is(1, &[Keyword::ALL, Keyword::DISTINCT]) && is(2, SET_OPERATORS))
            }
            // After a name it would be the argument of a function: `TUMBLE(TABLE t, ...)`.
            Some(Token::LParen) => match at(2) {
                Some(Token::Word(word)) => {
                    use Keyword::{ALL, ANY, AS, EXCEPT, EXISTS, FROM, IN, INTERSECT, JOIN, LATERAL, SOME, UNION};
                    matches!(word.keyword, ALL | ANY | AS | EXCEPT | EXISTS | FROM | IN | INTERSECT | JOIN | LATERAL | SOME | UNION)
                }
                _ => true,
            },
            // After the parenthesised body of a CTE or the columns of an INSERT.
            Some(Token::RParen) => matches!(
                significant.first().map(|&first| &tokens[first].token),
                Some(Token::Word(word)) if matches!(word.keyword, Keyword::WITH | Keyword::INSERT)
            ),
            _ => false,
        };
        if begins_query {
            tables.push(index);
        }
    }
    if tables.is_empty() {
        return tokens;
    }
    let mut expanded = Vec::with_capacity(tokens.len() + 2 * tables.len());
    for (index, token) in tokens.into_iter().enumerate() {
        if tables.binary_search(&index).is_ok() {
            for part in [Token::make_keyword("SELECT"), Token::Mul, Token::make_keyword("FROM")] {
                expanded.push(TokenWithSpan { token: part, span: token.span });
            }
        } else {
            expanded.push(token);
        }
    }
    expanded
}
