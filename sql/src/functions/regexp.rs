//! `regexp_extract(text, pattern [, group])`: Flink's function, with Java's patterns as far as the `regex` crate can follow them.
//!
//! Java's way of writing is translated: its classes (`\d`, `\w`, `\s`, `\p{Alpha}`, ...) know ASCII only, and `.` stops at five kinds of line end. What takes
//! time exponential in the text (look-around, back references, possessive quantifiers) is refused with `2201B`, as is what is no pattern; Flink gives NULL
//! for the latter. Two differences stay: `$` is the very end of the text, also where that is a line end, and `(?i)` folds every letter, not only ASCII ones.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int32Array, StringArray, StringBuilder};
use datafusion::logical_expr::ColumnarValue;
use regex::Regex;
use weir_catalog::{Error, Result, SqlState};

use super::{Texts, array_of, downcast};

/// A pattern that has been compiled.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    regex: Regex,
}

// Its text says what a pattern is.
impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl Pattern {
    /// Compiles a pattern as Java writes it. `2201B` where that is none, or one that is not supported.
    pub fn compile(text: &str) -> Result<Pattern> {
        let translated = Translation::of(text).map_err(|reason| invalid(text, reason.into()))?;
        let regex = Regex::new(&translated).map_err(|error| {
            let reason = match error {
                regex::Error::CompiledTooBig(_) => "It takes too much memory.".to_string(),
                // The last line of a syntax error says what is wrong; those before draw where.
                error => error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_string(),
            };
            invalid(text, reason)
        })?;
        Ok(Pattern { text: text.to_string(), regex })
    }
}

fn invalid(text: &str, reason: String) -> Error {
    let code = SqlState::parse("2201B").unwrap_or(SqlState::DATA_EXCEPTION);
    Error::new(code, format!("invalid regular expression: \"{text}\"")).with_detail(reason)
}

/// A pattern on its way from Java's writing to that of the `regex` crate.
struct Translation<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    out: String,
    /// How many brackets are open.
    classes: usize,
    /// Whether the flag `s` stands anywhere: a dot is then left to it.
    dot_is_any: bool,
}

/// What ends a line in Java.
const LINE_ENDS: &str = r"\n\r\x{85}\x{2028}\x{2029}";
const BLANKS: &str = r" \t\x{A0}\x{1680}\x{180E}\x{2000}-\x{200A}\x{202F}\x{205F}\x{3000}";

impl Translation<'_> {
    fn of(text: &str) -> Result<String, &'static str> {
        let flags = |flag: char| {
            text.match_indices("(?").filter(|(at, _)| !text[..*at].ends_with('\\')).any(|(at, _)| {
                let behind = &text[at + 2..];
                let end = behind.find(|c: char| !c.is_ascii_alphabetic() && c != '-').unwrap_or(behind.len());
                behind[end..].starts_with([')', ':']) && behind[..end].contains(flag)
            })
        };
        if flags('U') || flags('d') {
            return Err("The flags U and d are not supported.");
        }
        let translation =
            Translation { rest: text.chars().peekable(), out: String::with_capacity(text.len()), classes: 0, dot_is_any: flags('s') };
        translation.run()
    }

    fn run(mut self) -> Result<String, &'static str> {
        // Whether what stands in front is a quantifier.
        let mut quantified = false;
        while let Some(character) = self.rest.next() {
            let mut quantifies = false;
            match character {
                '\\' => self.escape()?,
                '[' => {
                    self.classes += 1;
                    self.out.push('[');
                    // Behind the opening bracket, or the caret there, a closing one is a character.
                    if self.rest.next_if_eq(&'^').is_some() {
                        self.out.push('^');
                    }
                    if self.rest.next_if_eq(&']').is_some() {
                        self.out.push_str(r"\]");
                    }
                }
                ']' => {
                    self.classes = self.classes.saturating_sub(1);
                    self.out.push(']');
                }
                // Set operations of the crate that are plain characters in Java.
                '~' if self.classes > 0 => self.out.push_str(r"\~"),
                '-' if self.classes > 0 && self.out.ends_with('-') => self.out.push_str(r"\-"),
                '.' if self.classes == 0 && !self.dot_is_any => {
                    self.out.push_str("[^");
                    self.out.push_str(LINE_ENDS);
                    self.out.push(']');
                }
                '+' if self.classes == 0 && quantified => return Err("Possessive quantifiers are not supported."),
                '*' | '+' | '?' | '}' if self.classes == 0 => {
                    quantifies = !quantified;
                    self.out.push(character);
                }
                other => self.out.push(other),
            }
            quantified = quantifies;
        }
        Ok(self.out)
    }

    /// What stands behind a backslash.
    fn escape(&mut self) -> Result<(), &'static str> {
        let Some(letter) = self.rest.next() else { return Err("It ends with a backslash.") };
        match letter {
            'd' => self.class("0-9", false),
            'D' => self.class("0-9", true),
            'w' => self.class("a-zA-Z_0-9", false),
            'W' => self.class("a-zA-Z_0-9", true),
            's' => self.class(r" \t\n\x0B\f\r", false),
            'S' => self.class(r" \t\n\x0B\f\r", true),
            'h' => self.class(BLANKS, false),
            'H' => self.class(BLANKS, true),
            'v' => self.class(r"\n\x0B\f\r\x{85}\x{2028}\x{2029}", false),
            'V' => self.class(r"\n\x0B\f\r\x{85}\x{2028}\x{2029}", true),
            'R' if self.classes == 0 => self.out.push_str(r"(?:\r\n|[\n\x0B\f\r\x{85}\x{2028}\x{2029}])"),
            'e' => self.out.push_str(r"\x1B"),
            'p' | 'P' => self.property(letter == 'P'),
            'Q' => self.quoted(),
            'Z' => return Err(r"\Z is not supported: \z is the end of the text."),
            letter if letter.is_ascii_alphanumeric() => {
                self.out.push('\\');
                self.out.push(letter);
            }
            // Any other character stands for itself.
            other => self.out.push_str(&regex::escape(other.encode_utf8(&mut [0; 4]))),
        }
        Ok(())
    }

    fn class(&mut self, members: &str, negated: bool) {
        self.out.push_str(if negated { "[^" } else { "[" });
        self.out.push_str(members);
        self.out.push(']');
    }

    /// `\p{...}`: POSIX names are of ASCII characters, the others Unicode's.
    fn property(&mut self, negated: bool) {
        let ahead: String = self.rest.clone().take_while(|character| *character != '}').collect();
        let name = ahead.strip_prefix('{').unwrap_or_default();
        let posix = ["Lower", "Upper", "ASCII", "Alpha", "Digit", "Alnum", "Punct", "Graph", "Print", "Blank", "Cntrl", "XDigit", "Space"];
        if !posix.contains(&name) {
            self.out.push_str(if negated { r"\P" } else { r"\p" });
            return;
        }
        let members = format!("[:{}:]", name.to_ascii_lowercase());
        self.class(&members, negated);
        // The name and the brace behind it.
        self.rest.nth(ahead.chars().count());
    }

    /// Behind `\Q`: everything up to `\E` stands for itself.
    fn quoted(&mut self) {
        let mut text = String::new();
        while let Some(character) = self.rest.next() {
            if character == '\\' && self.rest.next_if_eq(&'E').is_some() {
                break;
            }
            text.push(character);
        }
        self.out.push_str(&regex::escape(&text));
    }
}

/// The group of the first match in each text: NULL where there is no match, no such group, or the group is not part of the match. `pattern` is the constant
/// pattern, else the second argument says each row's.
pub fn extract(pattern: Option<&Pattern>, arguments: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let [texts, patterns, groups @ ..] = arguments else { return Err(Error::internal("regexp_extract takes two or three arguments")) };
    let texts = array_of(texts, rows)?;
    let texts: &StringArray = downcast(&texts)?;
    let patterns = Texts::of(patterns)?;
    let groups = groups.first().map(|groups| array_of(groups, rows)).transpose()?;
    let groups: Option<&Int32Array> = groups.as_ref().map(downcast).transpose()?;
    let mut last: Option<Pattern> = None;
    let mut locations = pattern.map(|pattern| pattern.regex.capture_locations());
    let mut builder = StringBuilder::with_capacity(rows, 0);
    for row in 0..rows {
        let group = groups.map_or(Some(0), |groups| groups.is_valid(row).then(|| groups.value(row)));
        let (false, Some(written), Some(group)) = (texts.is_null(row), patterns.get(row), group) else {
            builder.append_null();
            continue;
        };
        let regex = match (pattern, &last) {
            (Some(pattern), _) => &pattern.regex,
            (None, Some(last)) if last.text == written => &last.regex,
            (None, _) => {
                let new = last.insert(Pattern::compile(written)?);
                locations = Some(new.regex.capture_locations());
                &new.regex
            }
        };
        let text = texts.value(row);
        let found = match (usize::try_from(group), &mut locations) {
            (Ok(0), _) => regex.find(text).map(|found| found.range()),
            (Ok(group), Some(locations)) => {
                regex.captures_read(locations, text).and_then(|_| locations.get(group)).map(|(start, end)| start..end)
            }
            _ => None,
        };
        builder.append_option(found.map(|range| &text[range]));
    }
    Ok(Arc::new(builder.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extract_one(text: &str, pattern: &str, group: i32) -> Result<Option<String>> {
        let pattern = Pattern::compile(pattern)?;
        let arguments = [
            ColumnarValue::Array(Arc::new(StringArray::from(vec![text]))),
            ColumnarValue::Array(Arc::new(StringArray::from(vec![pattern.text.as_str()]))),
            ColumnarValue::Array(Arc::new(Int32Array::from(vec![group]))),
        ];
        let constant = extract(Some(&pattern), &arguments, 1)?;
        let varying = extract(None, &arguments, 1)?;
        assert_eq!(&constant, &varying);
        let result: &StringArray = downcast(&constant)?;
        Ok(result.iter().next().flatten().map(str::to_string))
    }

    /// What Flink 2.3.0 gives for the same text, pattern and group.
    #[test]
    fn groups_are_those_of_flink() {
        for (text, pattern, group, expected) in [
            ("foothebar", "foo(.*?)(bar)", 2, Some("bar")),
            ("foothebar", "foo(.*?)(bar)", 0, Some("foothebar")),
            ("foothebar", "foo(.*?)(bar)", 3, None),
            ("foothebar", "foo(.*?)(bar)", -1, None),
            ("a=1&channel_id=77&b", "(&|^)channel_id=([^&]*)", 2, Some("77")),
            ("channel_id=", "(&|^)channel_id=([^&]*)", 2, Some("")),
            ("x", "(&|^)channel_id=([^&]*)", 2, None),
            ("ab", "(a)|(b)", 2, None),
            ("\u{663}", r"\d", 0, None),
            ("é", r"\w", 0, None),
            ("\u{a0}", r"\s", 0, None),
            ("a\u{b}b", r"\s", 0, Some("\u{b}")),
            ("a\r\nb", "a.", 0, None),
            ("a\u{2028}", "a.", 0, None),
            ("a\u{85}", "a.", 0, None),
            ("ab\n", r"b\z", 0, None),
            ("é b", r"\bb", 0, Some("b")),
            ("ABC", "(?i)b", 0, Some("B")),
            ("x-y", r"[\w-]+", 0, Some("x-y")),
            ("a.b", "[.]", 0, Some(".")),
            ("", "", 0, Some("")),
            ("a1", r"[^\D]", 0, Some("1")),
            ("a\nb", "(?s)a.b", 0, Some("a\nb")),
            ("a&b", "[a-z&&[^a]]", 0, Some("b")),
            ("a]", "[]a]", 0, Some("a")),
            ("abc", "(?<n>b)", 1, Some("b")),
            ("a", r"\p{Alpha}", 0, Some("a")),
            ("é", r"\p{Alpha}", 0, None),
            ("é", r"\p{L}", 0, Some("é")),
            ("éa", r"\P{Alpha}", 0, Some("é")),
            ("ab", r"\Qab\E", 0, Some("ab")),
            ("a.c", r"\Q.\Ec", 0, Some(".c")),
            ("<a>", r"\<a\>", 0, Some("<a>")),
            ("a~b", "[~]", 0, Some("~")),
        ] {
            let found = extract_one(text, pattern, group).unwrap_or_else(|error| panic!("{pattern}: {error}"));
            assert_eq!(found.as_deref(), expected, "group {group} of {pattern} in {text:?}");
        }
    }

    #[test]
    fn what_is_no_pattern_or_not_supported_is_refused() {
        for pattern in ["(", "a{", r"(.)\1", "a(?=b)", "(?<!a)b", "a*+", "a++", "a{1,2}+", r"b\Z", "(?U)a", "a\\", "[a"] {
            let error = Pattern::compile(pattern).err().unwrap_or_else(|| panic!("{pattern} is taken"));
            assert_eq!(error.code().as_str(), "2201B", "{pattern}");
            assert!(error.detail().is_some_and(|detail| !detail.is_empty()), "{pattern}");
        }
        // A lazy quantifier is no possessive one, nor is what stands behind it quantified again.
        for pattern in ["a+?", "a*?b+", "a??", "a{2}?", "[+]+", r"\++"] {
            assert!(Pattern::compile(pattern).is_ok(), "{pattern}");
        }
    }
}
