//! A pattern as the `regex` crate writes it, and the tree that says which of its matches PostgreSQL takes.
//!
//! A pattern, each of its branches and each of its groups prefers the longest or the shortest match: a branch what its first quantifier with a preference
//! does, several alternatives the longest. Where that is one preference throughout and nothing is captured, a part of a pattern is one leaf of the tree,
//! whatever it is made of. Which parts are leaves decides how a text is divided among the groups, so it is done exactly as in PostgreSQL's `regcomp.c`.

use std::iter::Peekable;
use std::str::Chars;

use weir_catalog::{Error, Result};

use super::{Options, invalid, unsupported};

/// Prefers the longest match.
const LONGER: u8 = 1;
/// Prefers the shortest match.
pub(super) const SHORTER: u8 = 2;
/// Both are inside.
const MIXED: u8 = 4;
/// Groups are inside.
const CAPTURES: u8 = 8;

/// How often PostgreSQL lets something be repeated by a bound.
const MOST_REPEATED: u32 = 255;

/// How deep groups may nest and follow one another.
const MAX_DEPTH: usize = 100;

/// What a part with both kinds of `flags` has, once it is inside of another.
fn up(flags: u8) -> u8 {
    let mixed = if flags & (LONGER | SHORTER) == LONGER | SHORTER { MIXED } else { 0 };
    flags & (MIXED | CAPTURES) | mixed
}

fn preference(flags: u8) -> u8 {
    flags & (LONGER | SHORTER)
}

/// The flags of what has `first` and then `second`.
fn combined(first: u8, second: u8) -> u8 {
    let preferred = if preference(first) != 0 { preference(first) } else { preference(second) };
    up(first | second) | preferred
}

fn is_messy(flags: u8) -> bool {
    flags & (MIXED | CAPTURES) != 0
}

/// A part of a pattern.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Its place among all, for what is kept of each.
    pub id: usize,
    /// As the `regex` crate writes it.
    pub text: String,
    flags: u8,
    /// The group whose text is what this part matches.
    pub capture: Option<usize>,
    pub kind: Kind,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Leaf,
    Concat(Box<Node>, Box<Node>),
    Alternatives(Vec<Node>),
    /// As often as the text holds it, not at all for an empty one, and at most so often.
    Repeat(Box<Node>, Option<u32>),
    /// A group that holds just a group.
    Group(Box<Node>),
}

impl Node {
    pub fn prefers_shorter(&self) -> bool {
        self.flags & SHORTER != 0
    }

    pub fn has_captures(&self) -> bool {
        self.flags & CAPTURES != 0
    }
}

/// A pattern that has been read.
pub(super) struct Translated {
    pub text: String,
    pub tree: Node,
    /// All ids of parts are below it.
    pub nodes: usize,
    /// How many groups there are.
    pub captures: usize,
    /// Whether the first of its matches in the order of the `regex` crate is PostgreSQL's too.
    pub is_plain: bool,
}

/// Reads `text`; what stands at its head goes into `options`.
pub(super) fn translate(text: &str, options: &mut Options) -> Result<Translated> {
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
        let text = regex::escape(rest);
        let tree = Node { id: 0, text: text.clone(), flags: 0, capture: None, kind: Kind::Leaf };
        return Ok(Translated { text, tree, nodes: 1, captures: 0, is_plain: true });
    }
    let mut translation = Translation {
        rest: rest.chars().peekable(),
        out: String::with_capacity(rest.len()),
        options: *options,
        captures: 0,
        nodes: 0,
        depth: 0,
        is_plain: true,
        has_variable: false,
    };
    let (tree, _) = translation.alternatives()?;
    match translation.rest.next() {
        Some(_) => Err(invalid("parentheses () not balanced")),
        None => Ok(Translated {
            text: translation.out,
            tree,
            nodes: translation.nodes,
            captures: translation.captures,
            is_plain: translation.is_plain,
        }),
    }
}

/// How many characters something takes, if that is always the same number.
type Width = Option<usize>;

/// How often something is repeated, and what it prefers.
struct Quantifier {
    least: u32,
    most: Option<u32>,
    preference: u8,
}

struct Translation<'a> {
    rest: Peekable<Chars<'a>>,
    out: String,
    options: Options,
    captures: usize,
    nodes: usize,
    depth: usize,
    is_plain: bool,
    /// Whether there has been a quantifier with which a text can be matched in several ways.
    has_variable: bool,
}

impl Translation<'_> {
    fn node(&mut self, text: String, flags: u8, kind: Kind) -> Node {
        let id = self.nodes;
        self.nodes += 1;
        Node { id, text, flags, capture: None, kind }
    }

    /// What has been written since `start`.
    fn since(&self, start: usize) -> String {
        self.out[start..].to_string()
    }

    fn deeper(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { Err(invalid("regular expression is too complex")) } else { Ok(()) }
    }

    /// Branches, up to the end or a closing parenthesis.
    fn alternatives(&mut self) -> Result<(Node, Width)> {
        let start = self.out.len();
        let (first, width) = self.branch()?;
        if self.rest.peek() != Some(&'|') {
            return Ok((first, width));
        }
        self.is_plain = false;
        let mut branches = vec![first];
        while self.rest.next_if_eq(&'|').is_some() {
            self.out.push('|');
            branches.push(self.branch()?.0);
        }
        let flags = branches.iter().fold(LONGER, |flags, branch| flags | up(flags | branch.flags));
        let kind = if is_messy(flags) { Kind::Alternatives(branches) } else { Kind::Leaf };
        let text = self.since(start);
        Ok((self.node(text, flags, kind), None))
    }

    /// What is left of a branch.
    fn branch(&mut self) -> Result<(Node, Width)> {
        let start = self.out.len();
        let (mut flags, mut width, mut is_first) = (0, Some(0), true);
        loop {
            self.skip_blanks()?;
            if self.at_end_of_branch() {
                let text = self.since(start);
                return Ok((self.node(text, flags, Kind::Leaf), width));
            }
            if let Some(whole) = self.piece(start, is_first, &mut flags, &mut width)? {
                return Ok((whole, width));
            }
            is_first = false;
        }
    }

    fn at_end_of_branch(&mut self) -> bool {
        matches!(self.rest.peek(), None | Some('|' | ')'))
    }

    /// Comments, and in an expanded pattern white space.
    fn skip_blanks(&mut self) -> Result<()> {
        loop {
            match self.rest.peek().copied() {
                Some('#') if self.options.expanded => {
                    self.rest.by_ref().find(|next| *next == '\n');
                }
                Some(blank) if self.options.expanded && blank.is_whitespace() => {
                    self.rest.next();
                }
                Some('(') if self.rest.clone().take(3).eq("(?#".chars()) => {
                    if !self.rest.by_ref().any(|next| next == ')') {
                        return Err(invalid("parentheses () not balanced"));
                    }
                }
                _ => return Ok(()),
            }
        }
    }

    /// An atom with its quantifier, or a condition, of a branch that begins at `branch`. Where it is no leaf, and no part of one, it is put together with
    /// what follows it: then the rest of the branch has been read, and this is the whole of it.
    fn piece(&mut self, branch: usize, is_first: bool, flags: &mut u8, width: &mut Width) -> Result<Option<Node>> {
        let start = self.out.len();
        let Some(character) = self.rest.next() else { return Ok(None) };
        let (mut group, mut atom_width, mut captures) = (None, Some(1), false);
        match character {
            '^' | '$' => {
                self.out.push(character);
                return Ok(None);
            }
            '\\' => {
                if self.escape()? {
                    return Ok(None);
                }
            }
            '[' => self.bracket()?,
            '(' => {
                let (node, inner, captured) = self.group()?;
                (group, atom_width, captures) = (Some(node), inner, captured);
            }
            '*' | '+' | '?' => return Err(invalid("quantifier operand invalid")),
            '{' if self.rest.peek().is_some_and(char::is_ascii_digit) => return Err(invalid("quantifier operand invalid")),
            '{' | '}' | '#' => self.out.extend(['\\', character]),
            other => self.out.push(other),
        }
        let atom_text = self.since(start);
        self.skip_blanks()?;
        let quantifier = self.quantifier()?;
        let Quantifier { least, most, preference: preferred } = quantifier;
        let atom_flags = group.as_ref().map_or(0, |group| group.flags);
        self.add_width(width, atom_width, &quantifier);
        if most == Some(0) {
            // Its groups count all the same, and hold nothing.
            self.is_plain &= atom_flags & CAPTURES == 0;
            self.out.truncate(start);
            return Ok(None);
        }
        let all = *flags | preferred | atom_flags;
        if !captures && !is_messy(up(all)) {
            *flags = all;
            return Ok(None);
        }

        let text = self.since(start);
        let atom = match group {
            Some(group) => group,
            None => self.node(atom_text.clone(), 0, Kind::Leaf),
        };
        let inside = combined(preferred, atom_flags);
        let own = atom_flags & (LONGER | SHORTER | MIXED);
        let item = if (least, most) == (1, Some(1)) && (preferred == 0 || own == 0 || preferred == own) {
            atom
        } else if atom_flags & CAPTURES == 0 {
            self.node(text, inside, Kind::Leaf)
        } else if least > 0 {
            // Only what the last one captures counts.
            let most = most.map_or(String::new(), |most| (most - 1).to_string());
            let others = format!("(?:{atom_text}){{{},{most}}}", least - 1);
            let others = self.node(others, preference(inside), Kind::Leaf);
            self.node(text, inside, Kind::Concat(Box::new(others), Box::new(atom)))
        } else {
            self.node(text, inside, Kind::Repeat(Box::new(atom), most))
        };
        let before = *flags;
        let front = self.out[branch..start].to_string();
        self.skip_blanks()?;
        if self.at_end_of_branch() {
            if is_first {
                return Ok(Some(item));
            }
            let front = self.node(front, before, Kind::Leaf);
            let whole = before | combined(before, item.flags);
            let text = self.since(branch);
            return Ok(Some(self.node(text, whole, Kind::Concat(Box::new(front), Box::new(item)))));
        }
        self.deeper()?;
        let (behind, behind_width) = self.branch()?;
        self.depth -= 1;
        *width = width.zip(behind_width).map(|(front, behind)| front + behind);
        let tail = inside | combined(inside, behind.flags);
        let whole = before | combined(before, tail);
        let text = self.since(branch);
        if is_first {
            return Ok(Some(self.node(text, whole, Kind::Concat(Box::new(item), Box::new(behind)))));
        }
        let is_leaf = |node: &Node| matches!(node.kind, Kind::Leaf);
        let tail_text = self.since(start);
        let tail = if is_leaf(&item) && is_leaf(&behind) && !is_messy(up(item.flags | behind.flags)) {
            self.node(tail_text, combined(item.flags, behind.flags), Kind::Leaf)
        } else {
            self.node(tail_text, tail, Kind::Concat(Box::new(item), Box::new(behind)))
        };
        let front = self.node(front, before, Kind::Leaf);
        Ok(Some(self.node(text, whole, Kind::Concat(Box::new(front), Box::new(tail)))))
    }

    /// Adds what is repeated to the width of its branch. A pattern stays plain with one part of variable width, which is a fixed one repeated: the more
    /// often, the longer the match.
    fn add_width(&mut self, width: &mut Width, atom: Width, quantifier: &Quantifier) {
        let Quantifier { least, most, preference } = *quantifier;
        if most == Some(least) {
            // `{m,m}` has a preference, which others may have to follow.
            if preference != 0 || atom.is_none() && least != 1 {
                self.is_plain = false;
            }
            let repeated = atom.map(|atom| atom.saturating_mul(least as usize));
            *width = width.zip(repeated).map(|(before, repeated)| before.saturating_add(repeated));
            return;
        }
        if self.has_variable || atom.is_none_or(|atom| atom == 0) {
            self.is_plain = false;
        }
        self.has_variable = true;
        *width = None;
    }

    /// What stands behind an atom.
    fn quantifier(&mut self) -> Result<Quantifier> {
        let (least, most) = match self.rest.peek().copied() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') if self.rest.clone().nth(1).is_some_and(|next| next.is_ascii_digit()) => return self.bound(),
            _ => return Ok(Quantifier { least: 1, most: Some(1), preference: 0 }),
        };
        self.out.extend(self.rest.next());
        let preference = self.lazy();
        Ok(Quantifier { least, most, preference })
    }

    /// `{m}`, `{m,}` or `{m,n}`. The first has no preference of its own.
    fn bound(&mut self) -> Result<Quantifier> {
        self.out.extend(self.rest.next());
        let least = self.number()?;
        let is_range = self.rest.next_if_eq(&',').is_some();
        let mut most = Some(least);
        if is_range {
            self.out.push(',');
            most = if self.rest.peek().is_some_and(char::is_ascii_digit) { Some(self.number()?) } else { None };
        }
        match self.rest.next() {
            Some('}') if most.is_none_or(|most| least <= most) => self.out.push('}'),
            Some(_) => return Err(invalid("invalid repetition count(s)")),
            None => return Err(invalid("braces {} not balanced")),
        }
        let preference = self.lazy();
        Ok(Quantifier { least, most, preference: if is_range { preference } else { 0 } })
    }

    fn number(&mut self) -> Result<u32> {
        let mut number = 0;
        while let Some(digit) = self.rest.next_if(char::is_ascii_digit) {
            number = number * 10 + digit.to_digit(10).unwrap_or(0);
            if number > MOST_REPEATED {
                return Err(invalid("invalid repetition count(s)"));
            }
        }
        self.out.push_str(&number.to_string());
        Ok(number)
    }

    /// A question mark behind a quantifier: what it prefers.
    fn lazy(&mut self) -> u8 {
        match self.rest.next_if_eq(&'?') {
            Some(mark) => {
                self.out.push(mark);
                SHORTER
            }
            None => LONGER,
        }
    }

    /// Behind an opening parenthesis: what is in it, and whether it is captured.
    fn group(&mut self) -> Result<(Node, Width, bool)> {
        let captures = self.rest.next_if_eq(&'?').is_none();
        let number = self.captures + 1;
        if captures {
            self.captures += 1;
            self.out.push('(');
        } else {
            match self.rest.next() {
                Some(':') => self.out.push_str("(?:"),
                Some('=' | '!' | '<') => return Err(unsupported("look-around constraints")),
                _ => return Err(invalid("quantifier operand invalid")),
            }
        }
        self.deeper()?;
        let (mut node, width) = self.alternatives()?;
        self.depth -= 1;
        if self.rest.next() != Some(')') {
            return Err(invalid("parentheses () not balanced"));
        }
        self.out.push(')');
        if captures {
            if node.capture.is_some() {
                let (text, flags) = (node.text.clone(), node.flags);
                node = self.node(text, flags, Kind::Group(Box::new(node)));
            }
            node.flags |= CAPTURES;
            node.capture = Some(number);
        }
        Ok((node, width, captures))
    }

    /// What stands behind a backslash; true for a condition.
    fn escape(&mut self) -> Result<bool> {
        let Some(letter) = self.rest.next() else { return Err(invalid("invalid escape \\ sequence")) };
        let condition = match letter {
            'd' | 'D' | 's' | 'S' | 'w' | 'W' => {
                self.out.extend(['\\', letter]);
                return Ok(false);
            }
            'm' => r"\b{start}",
            'M' => r"\b{end}",
            'y' => r"\b",
            'Y' => r"\B",
            'A' => r"\A",
            'Z' => r"\z",
            '1'..='9' => return Err(unsupported("back references")),
            letter => {
                let character = self.character_escape(letter)?;
                self.itself(character);
                return Ok(false);
            }
        };
        self.out.push_str(condition);
        Ok(true)
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
        self.out.push(']');
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
