//! PostgreSQL's regular expressions, as far as the `regex` crate can follow them: `~` and its kin, `regexp_replace`, `regexp_like`, `regexp_count` and
//! `regexp_instr`.
//!
//! PostgreSQL's way of writing is translated: `.` and `[^a]` match line ends, `\y`, `\m` and `\M` are ends of words and `\b` is a backspace. What takes time
//! exponential in the text (look-around, back references) is refused with `0A000`, what is no pattern with `2201B`. One difference stays: of several matches
//! at one place this takes the first alternative that matches, PostgreSQL the longest.

use std::hash::{Hash, Hasher};
use std::iter::Peekable;
use std::str::Chars;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanBuilder, Int32Builder, StringArray, StringBuilder};
use arrow::datatypes::DataType;
use datafusion::logical_expr::ColumnarValue;
use regex::{CaptureLocations, Regex, RegexBuilder};
use weir_catalog::{Error, Result, SqlState};

use super::{Texts, array_of, downcast};

/// What is done with a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `text ~ pattern`
    Match,
    /// `text ~* pattern`
    MatchAnyCase,
    /// `text !~ pattern`
    NoMatch,
    /// `text !~* pattern`
    NoMatchAnyCase,
    /// `regexp_like(text, pattern [, flags])`
    Like,
    /// `regexp_replace(text, pattern, replacement [, flags])`
    Replace,
    /// `regexp_count(text, pattern)`
    Count,
    /// `regexp_instr(text, pattern)`: the character at which the first match begins, from 1; 0 where there is none.
    Position,
}

impl Operation {
    /// The operator, or the function's name.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Match => "~",
            Operation::MatchAnyCase => "~*",
            Operation::NoMatch => "!~",
            Operation::NoMatchAnyCase => "!~*",
            Operation::Like => "regexp_like",
            Operation::Replace => "regexp_replace",
            Operation::Count => "regexp_count",
            Operation::Position => "regexp_instr",
        }
    }

    /// Whether it is written between its operands.
    pub fn is_operator(self) -> bool {
        matches!(self, Operation::Match | Operation::MatchAnyCase | Operation::NoMatch | Operation::NoMatchAnyCase)
    }

    /// The type of its result.
    pub fn result(self) -> DataType {
        match self {
            Operation::Replace => DataType::Utf8,
            Operation::Count | Operation::Position => DataType::Int32,
            _ => DataType::Boolean,
        }
    }

    /// Which argument holds flags, if it is there.
    pub fn flags_argument(self) -> Option<usize> {
        match self {
            Operation::Like => Some(2),
            Operation::Replace => Some(3),
            _ => None,
        }
    }
}

/// A pattern that has been compiled.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    flags: String,
    any_case: bool,
    /// Whether every match counts, not only the first.
    global: bool,
    regex: Regex,
}

// What it was compiled from says what a pattern is.
impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        (&self.text, &self.flags, self.any_case) == (&other.text, &other.flags, other.any_case)
    }
}

impl Eq for Pattern {}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.text, &self.flags, self.any_case).hash(state);
    }
}

impl Pattern {
    /// Compiles a pattern for `operation`. Errors with `2201B` where it is none, `22023` for flags that are none, and `0A000` for what can't be matched in
    /// time linear in the text.
    pub fn compile(text: &str, operation: Operation, flags: &str) -> Result<Pattern> {
        let any_case = matches!(operation, Operation::MatchAnyCase | Operation::NoMatchAnyCase);
        let mut options = Options { any_case, ..Options::default() };
        let mut global = false;
        for flag in flags.chars() {
            match flag {
                'g' if operation == Operation::Replace => global = true,
                'g' => return Err(bad_option(format!("{}() does not support the \"global\" option", operation.name()))),
                flag if options.set(flag) => {}
                flag => return Err(bad_option(format!("invalid regular expression option: \"{flag}\""))),
            }
        }
        let translated = translate(text, &mut options)?;
        let built = RegexBuilder::new(&translated)
            .case_insensitive(options.any_case)
            .dot_matches_new_line(!options.lines_for_dot)
            .multi_line(options.lines_for_ends)
            .ignore_whitespace(options.expanded)
            .build();
        let regex = built.map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => invalid("regular expression is too complex"),
            // The last line of a syntax error says what is wrong; those before draw where.
            error => invalid(error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ")),
        })?;
        Ok(Pattern { text: text.to_string(), flags: flags.to_string(), any_case, global, regex })
    }
}

fn bad_option(message: String) -> Error {
    Error::new(SqlState::INVALID_PARAMETER_VALUE, message)
}

fn invalid(reason: &str) -> Error {
    let code = SqlState::parse("2201B").unwrap_or(SqlState::DATA_EXCEPTION);
    Error::new(code, format!("invalid regular expression: {reason}"))
}

fn unsupported(what: &str) -> Error {
    Error::unsupported(format!("{what} in regular expressions are not supported"))
        .with_detail("Matching them can take time exponential in the length of the text.")
}

/// How a pattern is read and matched.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    any_case: bool,
    /// `.` and `[^a]` match no line end.
    lines_for_dot: bool,
    /// `^` and `$` match at line ends too.
    lines_for_ends: bool,
    expanded: bool,
    /// The pattern is a plain text.
    literal: bool,
}

impl Options {
    /// Takes a flag over; false if it is none.
    fn set(&mut self, flag: char) -> bool {
        match flag {
            'i' => self.any_case = true,
            'c' => self.any_case = false,
            'm' | 'n' => (self.lines_for_dot, self.lines_for_ends) = (true, true),
            'p' => (self.lines_for_dot, self.lines_for_ends) = (true, false),
            's' => (self.lines_for_dot, self.lines_for_ends) = (false, false),
            'w' => (self.lines_for_dot, self.lines_for_ends) = (false, true),
            'x' => self.expanded = true,
            't' => self.expanded = false,
            'q' => self.literal = true,
            'e' => {}
            _ => return false,
        }
        true
    }
}

/// `text` as the `regex` crate writes it; what stands at its head goes into `options`.
fn translate(text: &str, options: &mut Options) -> Result<String> {
    let mut rest = text;
    if let Some(literal) = rest.strip_prefix("***=") {
        options.literal = true;
        rest = literal;
    } else if let Some(advanced) = rest.strip_prefix("***:") {
        rest = advanced;
    }
    if !options.literal
        && let Some(behind) = rest.strip_prefix("(?")
        && let Some((flags, pattern)) = behind.split_once(')')
        && !flags.is_empty()
        && flags.chars().all(|flag| flag.is_ascii_lowercase())
    {
        if !flags.chars().all(|flag| options.set(flag)) {
            return Err(invalid("invalid embedded option"));
        }
        rest = pattern;
    }
    if options.literal {
        options.expanded = false;
        return Ok(regex::escape(rest));
    }
    Translation { rest: rest.chars().peekable(), out: String::with_capacity(rest.len()), last: Last::Nothing, options: *options }.run()
}

/// What a quantifier would belong to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// The start of a branch, or a condition such as `^`.
    Nothing,
    Atom,
    Quantifier,
}

struct Translation<'a> {
    rest: Peekable<Chars<'a>>,
    out: String,
    last: Last,
    options: Options,
}

impl Translation<'_> {
    fn run(mut self) -> Result<String> {
        while let Some(character) = self.rest.next() {
            match character {
                '\\' => self.escape()?,
                '[' => self.bracket()?,
                '(' => self.group()?,
                '*' | '+' | '?' => self.quantifier(character)?,
                '{' if self.rest.peek().is_some_and(char::is_ascii_digit) => {
                    self.quantifier('{')?;
                    let mut closed = false;
                    for digit in self.rest.by_ref().take_while(|next| {
                        closed = *next == '}';
                        !closed
                    }) {
                        self.out.push(digit);
                    }
                    if !closed {
                        return Err(invalid("braces {} not balanced"));
                    }
                    self.out.push('}');
                    self.lazy();
                }
                '{' | '}' => self.atom(if character == '{' { r"\{" } else { r"\}" }),
                '^' | '$' | '|' => {
                    self.out.push(character);
                    self.last = Last::Nothing;
                }
                '#' if !self.options.expanded => self.atom(r"\#"),
                character if self.options.expanded && (character == '#' || character.is_whitespace()) => {
                    self.out.push(character);
                    if character == '#' {
                        self.out.extend(self.rest.by_ref().take_while(|next| *next != '\n'));
                        self.out.push('\n');
                    }
                }
                other => self.atom(other.encode_utf8(&mut [0; 4])),
            }
        }
        Ok(self.out)
    }

    fn atom(&mut self, written: &str) {
        self.out.push_str(written);
        self.last = Last::Atom;
    }

    fn condition(&mut self, written: &str) {
        self.out.push_str(written);
        self.last = Last::Nothing;
    }

    /// `*`, `+`, `?` or the brace of a bound.
    fn quantifier(&mut self, character: char) -> Result<()> {
        if self.last != Last::Atom {
            return Err(invalid("quantifier operand invalid"));
        }
        self.out.push(character);
        self.last = Last::Quantifier;
        if character != '{' {
            self.lazy();
        }
        Ok(())
    }

    /// A question mark behind a quantifier.
    fn lazy(&mut self) {
        if self.rest.next_if_eq(&'?').is_some() {
            self.out.push('?');
        }
    }

    fn group(&mut self) -> Result<()> {
        self.last = Last::Nothing;
        if self.rest.next_if_eq(&'?').is_none() {
            self.out.push('(');
            return Ok(());
        }
        match self.rest.next() {
            Some(':') => self.out.push_str("(?:"),
            Some('=' | '!' | '<') => return Err(unsupported("look-around constraints")),
            Some('#') if self.rest.by_ref().any(|next| next == ')') => {}
            _ => return Err(invalid("quantifier operand invalid")),
        }
        Ok(())
    }

    /// What stands behind a backslash.
    fn escape(&mut self) -> Result<()> {
        let Some(letter) = self.rest.next() else { return Err(invalid("invalid escape \\ sequence")) };
        match letter {
            'd' | 'D' | 's' | 'S' | 'w' | 'W' => self.atom(&format!("\\{letter}")),
            'm' => self.condition(r"\b{start}"),
            'M' => self.condition(r"\b{end}"),
            'y' => self.condition(r"\b"),
            'Y' => self.condition(r"\B"),
            'A' => self.condition(r"\A"),
            'Z' => self.condition(r"\z"),
            '1'..='9' => return Err(unsupported("back references")),
            letter => {
                let character = self.character_escape(letter)?;
                self.itself(character);
                self.last = Last::Atom;
            }
        }
        Ok(())
    }

    /// The one character that an escape stands for.
    fn character_escape(&mut self, letter: char) -> Result<char> {
        let digits = |translation: &mut Self, most: usize, radix: u32| {
            let mut value = None;
            for _ in 0..most {
                let Some(digit) = translation.rest.peek().and_then(|next| next.to_digit(radix)) else { break };
                translation.rest.next();
                value = Some(value.unwrap_or(0u32).saturating_mul(radix).saturating_add(digit));
            }
            value.and_then(char::from_u32).ok_or_else(|| invalid("invalid escape \\ sequence"))
        };
        Ok(match letter {
            'a' => '\u{7}',
            'b' => '\u{8}',
            'B' => '\\',
            'e' => '\u{1b}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            'u' => digits(self, 4, 16)?,
            'U' => digits(self, 8, 16)?,
            'x' => digits(self, 255, 16)?,
            '0' => '\0',
            letter if letter.is_ascii_alphanumeric() => return Err(invalid("invalid escape \\ sequence")),
            other => other,
        })
    }

    /// `[...]`, behind the opening bracket.
    fn bracket(&mut self) -> Result<()> {
        let unbalanced = || invalid("brackets [] not balanced");
        self.out.push('[');
        if self.rest.next_if_eq(&'^').is_some() {
            self.out.push_str(if self.options.lines_for_dot { r"^\n" } else { "^" });
        }
        let mut first = true;
        loop {
            let character = self.rest.next().ok_or_else(unbalanced)?;
            match character {
                ']' if !first => break,
                '[' => match self.rest.peek() {
                    Some(':') => self.class_name()?,
                    Some('.' | '=') => {
                        return Err(Error::unsupported("collating elements in regular expressions are not supported"));
                    }
                    _ => self.out.push_str(r"\["),
                },
                '\\' => {
                    let letter = self.rest.next().ok_or_else(unbalanced)?;
                    match letter {
                        'd' | 's' | 'w' => self.out.extend(['\\', letter]),
                        'D' | 'S' | 'W' => return Err(invalid("invalid escape \\ sequence")),
                        letter => {
                            let character = self.character_escape(letter)?;
                            self.itself(character);
                        }
                    }
                }
                '-' if !first && self.rest.peek() != Some(&']') => self.out.push('-'),
                other => self.itself(other),
            }
            first = false;
        }
        self.atom("]");
        Ok(())
    }

    /// A character that stands for itself, within brackets or not.
    fn itself(&mut self, character: char) {
        if character.is_ascii_punctuation() || character.is_whitespace() {
            self.out.push_str(&format!(r"\x{{{:x}}}", u32::from(character)));
        } else {
            self.out.push(character);
        }
    }

    /// `[:name:]` within brackets, behind its first bracket.
    fn class_name(&mut self) -> Result<()> {
        let mut name = String::new();
        self.rest.next();
        while let Some(character) = self.rest.next_if(|next| next.is_ascii_alphanumeric() || matches!(next, '<' | '>')) {
            name.push(character);
        }
        if self.rest.next() != Some(':') || self.rest.next() != Some(']') {
            return Err(invalid("brackets [] not balanced"));
        }
        // As `\d`, `\s` and `\w` they know letters beyond ASCII.
        let members = match name.as_str() {
            "alpha" => r"\p{Alphabetic}",
            "lower" => r"\p{Lowercase}",
            "upper" => r"\p{Uppercase}",
            "digit" => r"\d",
            "space" => r"\s",
            "alnum" => r"\p{Alphabetic}\d",
            "word" => r"\w",
            "punct" => "[:punct:]",
            "blank" => "[:blank:]",
            "cntrl" => "[:cntrl:]",
            "graph" => "[:graph:]",
            "print" => "[:print:]",
            "xdigit" => "[:xdigit:]",
            "<" | ">" => return Err(Error::unsupported("[[:<:]] and [[:>:]] are not supported").with_hint(r"Write \m and \M.")),
            _ => return Err(invalid("invalid character class")),
        };
        self.out.push_str(members);
        Ok(())
    }
}

/// The value of `operation` on columns; `constant` is the pattern where it is constant.
pub fn evaluate(operation: Operation, constant: Option<&Pattern>, arguments: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let [texts, patterns, ..] = arguments else { return Err(Error::internal("a regular expression without a pattern")) };
    let texts = array_of(texts, rows)?;
    let texts: &StringArray = downcast(&texts)?;
    let patterns = Patterns {
        operation,
        constant,
        texts: Texts::of(patterns)?,
        flags: operation.flags_argument().and_then(|at| arguments.get(at)).map(Texts::of).transpose()?,
        last: None,
    };
    match operation {
        Operation::Replace => {
            let replacement = arguments.get(2).ok_or_else(|| Error::internal("regexp_replace takes three arguments"))?;
            replace(texts, patterns, &Texts::of(replacement)?)
        }
        Operation::Count => numbers(texts, patterns, |pattern, text| matches(&pattern.regex, text).count()),
        Operation::Position => {
            numbers(texts, patterns, |pattern, text| pattern.regex.find(text).map_or(0, |found| text[..found.start()].chars().count() + 1))
        }
        _ => is_match(texts, patterns, matches!(operation, Operation::NoMatch | Operation::NoMatchAnyCase)),
    }
}

/// The pattern of each row.
struct Patterns<'a> {
    operation: Operation,
    constant: Option<&'a Pattern>,
    texts: Texts<'a>,
    flags: Option<Texts<'a>>,
    last: Option<Pattern>,
}

impl Patterns<'_> {
    /// The pattern of `row`; `None` where it or its flags are NULL.
    fn get(&mut self, row: usize) -> Result<Option<&Pattern>> {
        if self.constant.is_some() {
            return Ok(self.constant);
        }
        let flags = match &self.flags {
            None => Some(""),
            Some(flags) => flags.get(row),
        };
        let (Some(text), Some(flags)) = (self.texts.get(row), flags) else { return Ok(None) };
        if !self.last.as_ref().is_some_and(|last| last.text == text && last.flags == flags) {
            self.last = Some(Pattern::compile(text, self.operation, flags)?);
        }
        Ok(self.last.as_ref())
    }
}

fn is_match(texts: &StringArray, mut patterns: Patterns<'_>, negated: bool) -> Result<ArrayRef> {
    let mut builder = BooleanBuilder::with_capacity(texts.len());
    for row in 0..texts.len() {
        let pattern = if texts.is_valid(row) { patterns.get(row)? } else { None };
        builder.append_option(pattern.map(|pattern| pattern.regex.is_match(texts.value(row)) != negated));
    }
    Ok(Arc::new(builder.finish()))
}

fn numbers(texts: &StringArray, mut patterns: Patterns<'_>, number: fn(&Pattern, &str) -> usize) -> Result<ArrayRef> {
    let mut builder = Int32Builder::with_capacity(texts.len());
    for row in 0..texts.len() {
        let pattern = if texts.is_valid(row) { patterns.get(row)? } else { None };
        builder.append_option(pattern.map(|pattern| number(pattern, texts.value(row)) as i32));
    }
    Ok(Arc::new(builder.finish()))
}

/// Where the next match is looked for behind one: behind an empty one, a character on.
fn next_start(text: &str, start: usize, end: usize) -> usize {
    if start < end { end } else { end + text[end..].chars().next().map_or(1, char::len_utf8) }
}

/// The matches in `text` as PostgreSQL counts them: an empty one may follow directly behind another, unlike in the `regex` crate.
fn matches<'a>(regex: &'a Regex, text: &'a str) -> impl Iterator<Item = (usize, usize)> + 'a {
    let mut from = 0;
    std::iter::from_fn(move || {
        let found = (from <= text.len()).then(|| regex.find_at(text, from)).flatten()?;
        from = next_start(text, found.start(), found.end());
        Some((found.start(), found.end()))
    })
}

fn replace(texts: &StringArray, mut patterns: Patterns<'_>, replacements: &Texts<'_>) -> Result<ArrayRef> {
    let mut builder = StringBuilder::with_capacity(texts.len(), texts.value_data().len());
    let mut replaced = String::new();
    for row in 0..texts.len() {
        let pattern = if texts.is_valid(row) { patterns.get(row)? } else { None };
        let (Some(pattern), Some(replacement)) = (pattern, replacements.get(row)) else {
            builder.append_null();
            continue;
        };
        let text = texts.value(row);
        let mut locations = pattern.regex.capture_locations();
        let (mut from, mut copied) = (0, 0);
        replaced.clear();
        while from <= text.len()
            && let Some(found) = pattern.regex.captures_read_at(&mut locations, text, from)
        {
            replaced.push_str(&text[copied..found.start()]);
            expand(replacement, text, &locations, &mut replaced);
            copied = found.end();
            if !pattern.global {
                break;
            }
            from = next_start(text, found.start(), found.end());
        }
        replaced.push_str(&text[copied..]);
        builder.append_value(&replaced);
    }
    Ok(Arc::new(builder.finish()))
}

/// Appends `replacement` for a match: `\1` to `\9` are its groups, `\&` is all of it, `\\` is a backslash.
fn expand(replacement: &str, text: &str, groups: &CaptureLocations, out: &mut String) {
    let mut rest = replacement;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let group = match rest.as_bytes().first() {
            Some(digit @ b'1'..=b'9') => usize::from(digit - b'0'),
            Some(b'&') => 0,
            Some(b'\\') => {
                out.push('\\');
                rest = &rest[1..];
                continue;
            }
            // Any other backslash stands for itself.
            _ => {
                out.push('\\');
                continue;
            }
        };
        rest = &rest[1..];
        if let Some((start, end)) = groups.get(group) {
            out.push_str(&text[start..end]);
        }
    }
    out.push_str(rest);
}

#[cfg(test)]
mod tests;
