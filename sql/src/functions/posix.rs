//! PostgreSQL's regular expressions: `~` and its kin, and `regexp_replace`, `regexp_match`, `substring` and others.
//!
//! PostgreSQL's way of writing is translated into that of the `regex` crate (`translate`): `.` and `[^a]` match line ends, `\y`, `\m` and `\M` are ends of
//! words and `\b` is a backspace. What takes time exponential in the text (look-around, back references) is refused with `0A000`, what is no pattern with
//! `2201B`. Whether and where a match begins is the crate's answer. It takes the first match in an order of its own, though, and PostgreSQL the longest, or
//! the shortest: where these may differ, how far it goes and what its groups hold is found otherwise (`dissect`).

mod dissect;
mod translate;

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanBuilder, Int32Array, Int32Builder, ListBuilder, StringArray, StringBuilder};
use arrow::datatypes::DataType;
use datafusion::logical_expr::ColumnarValue;
use regex::{Regex, RegexBuilder};
use weir_catalog::{Error, Result, SqlState, SqlType};

use self::dissect::{Caches, Span, Tree};
use self::translate::translate;
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
    /// `regexp_match(text, pattern [, flags])`: the groups of the first match, or where there are none all of it.
    Groups,
    /// `regexp_substr(text, pattern [, start [, n [, flags [, group]]]])`
    Part,
    /// `substring(text FROM pattern)`: the first group of the first match, or where there is none all of it.
    Substring,
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
            Operation::Groups => "regexp_match",
            Operation::Part => "regexp_substr",
            Operation::Substring => "regexp_substring",
        }
    }

    /// Whether it is written between its operands.
    pub fn is_operator(self) -> bool {
        matches!(self, Operation::Match | Operation::MatchAnyCase | Operation::NoMatch | Operation::NoMatchAnyCase)
    }

    /// The type of its result.
    pub fn result(self) -> DataType {
        match self {
            Operation::Replace | Operation::Part | Operation::Substring => DataType::Utf8,
            Operation::Groups => SqlType::Array(Box::new(SqlType::Text)).to_arrow(),
            Operation::Count | Operation::Position => DataType::Int32,
            _ => DataType::Boolean,
        }
    }

    /// Whether one of so many arguments is a number, which may be out of range.
    pub fn has_numbers(self, arguments: usize) -> bool {
        self == Operation::Part && arguments > 2
    }

    /// Which argument holds flags, if it is there.
    pub fn flags_argument(self) -> Option<usize> {
        match self {
            Operation::Like | Operation::Groups => Some(2),
            Operation::Replace => Some(3),
            Operation::Part => Some(4),
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
    /// How many groups it has.
    groups: usize,
    /// `None` where the first match of `regex` is PostgreSQL's too.
    tree: Option<Tree>,
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
                'g' => {
                    let error = bad_option(format!("{}() does not support the \"global\" option", operation.name()));
                    return Err(match operation {
                        Operation::Groups => error.with_hint("Use the regexp_matches function instead."),
                        _ => error,
                    });
                }
                flag if options.set(flag) => {}
                flag => return Err(bad_option(format!("invalid regular expression option: \"{flag}\""))),
            }
        }
        let translated = translate(text, &mut options)?;
        let built = RegexBuilder::new(&translated.text)
            .case_insensitive(options.any_case)
            .dot_matches_new_line(!options.lines_for_dot)
            .multi_line(options.lines_for_ends)
            .build();
        let regex = built.map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => invalid("regular expression is too complex"),
            // The last line of a syntax error says what is wrong; those before draw where.
            error => invalid(error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ")),
        })?;
        let groups = translated.captures;
        let tree = if translated.is_plain { None } else { Some(Tree::new(translated.tree, translated.nodes, options)) };
        Ok(Pattern { text: text.to_string(), flags: flags.to_string(), any_case, global, regex, groups, tree })
    }

    /// The first match in `text` from `from` on.
    fn find(&self, caches: &mut Caches, text: &str, from: usize) -> Result<Option<Span>> {
        let Some(found) = self.regex.find_at(text, from) else { return Ok(None) };
        let end = match &self.tree {
            None => found.end(),
            Some(tree) => tree.end(caches, text, found.start())?,
        };
        Ok(Some((found.start(), end)))
    }

    /// The groups of the match at `span`, the whole of it being the first.
    fn divide(&self, caches: &mut Caches, text: &str, span: Span) -> Result<Vec<Option<Span>>> {
        let mut groups = vec![None; self.groups + 1];
        groups[0] = Some(span);
        if self.groups == 0 {
            return Ok(groups);
        }
        match &self.tree {
            Some(tree) => tree.divide(caches, text, span, &mut groups)?,
            None => {
                let mut locations = self.regex.capture_locations();
                self.regex.captures_read_at(&mut locations, text, span.0);
                groups.iter_mut().enumerate().for_each(|(at, group)| *group = locations.get(at));
            }
        }
        Ok(groups)
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
        caches: Caches::default(),
    };
    match operation {
        Operation::Replace => {
            let replacement = arguments.get(2).ok_or_else(|| Error::internal("regexp_replace takes three arguments"))?;
            replace(texts, patterns, &Texts::of(replacement)?)
        }
        Operation::Count => numbers(texts, patterns, |pattern, caches, text| {
            let (mut from, mut count) = (Some(0), 0);
            while let Some(found) = next_match(pattern, caches, text, from)? {
                from = next_start(text, found);
                count += 1;
            }
            Ok(count)
        }),
        Operation::Position => numbers(texts, patterns, |pattern, _, text| {
            Ok(pattern.regex.find(text).map_or(0, |found| text[..found.start()].chars().count() + 1))
        }),
        Operation::Groups => groups(texts, patterns),
        Operation::Substring => parts(texts, patterns, &[], rows),
        Operation::Part => parts(texts, patterns, &arguments[2..], rows),
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
    /// Of the present pattern.
    caches: Caches,
}

impl Patterns<'_> {
    /// The pattern of `row`; `None` where it or its flags are NULL.
    fn get(&mut self, row: usize) -> Result<Option<(&Pattern, &mut Caches)>> {
        if let Some(constant) = self.constant {
            return Ok(Some((constant, &mut self.caches)));
        }
        let flags = match &self.flags {
            None => Some(""),
            Some(flags) => flags.get(row),
        };
        let (Some(text), Some(flags)) = (self.texts.get(row), flags) else { return Ok(None) };
        if !self.last.as_ref().is_some_and(|last| last.text == text && last.flags == flags) {
            self.last = Some(Pattern::compile(text, self.operation, flags)?);
            self.caches = Caches::default();
        }
        Ok(self.last.as_ref().map(|last| (last, &mut self.caches)))
    }
}

fn is_match(texts: &StringArray, mut patterns: Patterns<'_>, negated: bool) -> Result<ArrayRef> {
    let mut builder = BooleanBuilder::with_capacity(texts.len());
    for row in 0..texts.len() {
        let pattern = if texts.is_valid(row) { patterns.get(row)? } else { None };
        builder.append_option(pattern.map(|(pattern, _)| pattern.regex.is_match(texts.value(row)) != negated));
    }
    Ok(Arc::new(builder.finish()))
}

fn numbers(texts: &StringArray, mut patterns: Patterns<'_>, number: fn(&Pattern, &mut Caches, &str) -> Result<usize>) -> Result<ArrayRef> {
    let mut builder = Int32Builder::with_capacity(texts.len());
    for row in 0..texts.len() {
        let pattern = if texts.is_valid(row) { patterns.get(row)? } else { None };
        let value = pattern.map(|(pattern, caches)| number(pattern, caches, texts.value(row))).transpose()?;
        builder.append_option(value.map(|value| value as i32));
    }
    Ok(Arc::new(builder.finish()))
}

/// Where the next match is looked for behind one: behind an empty one, a character on, if there is one. An empty match may follow directly behind another
/// match, unlike in the `regex` crate.
fn next_start(text: &str, (start, end): Span) -> Option<usize> {
    if start < end { Some(end) } else { text[end..].chars().next().map(|next| end + next.len_utf8()) }
}

fn next_match(pattern: &Pattern, caches: &mut Caches, text: &str, from: Option<usize>) -> Result<Option<Span>> {
    match from {
        Some(from) => pattern.find(caches, text, from),
        None => Ok(None),
    }
}

fn replace(texts: &StringArray, mut patterns: Patterns<'_>, replacements: &Texts<'_>) -> Result<ArrayRef> {
    let mut builder = StringBuilder::with_capacity(texts.len(), texts.value_data().len());
    let mut replaced = String::new();
    for row in 0..texts.len() {
        let pattern = if texts.is_valid(row) { patterns.get(row)? } else { None };
        let (Some((pattern, caches)), Some(replacement)) = (pattern, replacements.get(row)) else {
            builder.append_null();
            continue;
        };
        let text = texts.value(row);
        let names_groups = replacement.contains('\\');
        let (mut from, mut copied) = (Some(0), 0);
        replaced.clear();
        while let Some(span) = next_match(pattern, caches, text, from)? {
            replaced.push_str(&text[copied..span.0]);
            if names_groups {
                expand(replacement, text, &pattern.divide(caches, text, span)?, &mut replaced);
            } else {
                replaced.push_str(replacement);
            }
            copied = span.1;
            from = if pattern.global { next_start(text, span) } else { None };
        }
        replaced.push_str(&text[copied..]);
        builder.append_value(&replaced);
    }
    Ok(Arc::new(builder.finish()))
}

fn groups(texts: &StringArray, mut patterns: Patterns<'_>) -> Result<ArrayRef> {
    let field = match Operation::Groups.result() {
        DataType::List(field) => field,
        other => return Err(Error::internal(format!("an array has type {other}"))),
    };
    let mut builder = ListBuilder::new(StringBuilder::new()).with_field(field);
    for row in 0..texts.len() {
        let pattern = if texts.is_valid(row) { patterns.get(row)? } else { None };
        let text = texts.value(row);
        let found = match pattern {
            Some((pattern, caches)) => match pattern.find(caches, text, 0)? {
                Some(span) => Some(pattern.divide(caches, text, span)?),
                None => None,
            },
            None => None,
        };
        let Some(found) = found else {
            builder.append_null();
            continue;
        };
        let shown = if found.len() > 1 { &found[1..] } else { &found[..] };
        shown.iter().for_each(|group| builder.values().append_option(group.map(|(start, end)| &text[start..end])));
        builder.append(true);
    }
    Ok(Arc::new(builder.finish()))
}

/// `regexp_substr`, whose arguments behind the pattern are `others`; without any, `substring`, which takes the first group if there is one.
fn parts(texts: &StringArray, mut patterns: Patterns<'_>, others: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let number = |at: usize| others.get(at).map(|argument| array_of(argument, rows)).transpose();
    let arrays = [number(0)?, number(1)?, number(3)?];
    let mut numbers: [Option<&Int32Array>; 3] = [None; 3];
    for (number, array) in numbers.iter_mut().zip(&arrays) {
        *number = array.as_ref().map(downcast).transpose()?;
    }
    let mut builder = StringBuilder::with_capacity(texts.len(), texts.value_data().len());
    for row in 0..texts.len() {
        let is_null = |numbers: &Option<&Int32Array>| numbers.is_some_and(|numbers| numbers.is_null(row));
        let is_unknown = texts.is_null(row) || numbers.iter().any(is_null);
        let operation = patterns.operation;
        let pattern = if is_unknown { None } else { patterns.get(row)? };
        let Some((pattern, caches)) = pattern else {
            builder.append_null();
            continue;
        };
        let value = |at: usize, default: i32| numbers[at].map_or(default, |numbers| numbers.value(row));
        let text = texts.value(row);
        let default_group = i32::from(operation == Operation::Substring && pattern.groups > 0);
        let (start, n, group) = (value(0, 1), value(1, 1), value(2, default_group));
        let least = [("start", start, 1), ("n", n, 1), ("subexpr", group, 0)];
        if let Some((name, value, _)) = least.iter().find(|(_, value, least)| value < least) {
            return Err(bad_option(format!("invalid value for parameter \"{name}\": {value}")));
        }
        let mut from = text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(start as usize - 1);
        let mut found = None;
        for _ in 0..n {
            found = next_match(pattern, caches, text, from)?;
            let Some(span) = found else { break };
            from = next_start(text, span);
        }
        let span = match found {
            // A pattern without groups is taken for one.
            Some(span) if group == 0 || group == 1 && pattern.groups == 0 => Some(span),
            Some(span) => pattern.divide(caches, text, span)?.get(group as usize).copied().flatten(),
            None => None,
        };
        builder.append_option(span.map(|(start, end)| &text[start..end]));
    }
    Ok(Arc::new(builder.finish()))
}

/// Appends `replacement` for a match: `\1` to `\9` are its groups, `\&` is all of it, `\\` is a backslash.
fn expand(replacement: &str, text: &str, groups: &[Option<Span>], out: &mut String) {
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
        if let Some(Some((start, end))) = groups.get(group).copied() {
            out.push_str(&text[start..end]);
        }
    }
    out.push_str(rest);
}

#[cfg(test)]
mod tests;
