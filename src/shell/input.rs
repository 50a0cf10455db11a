//! What is typed or piped, taken apart: statements, and commands to the shell itself.
//!
//! # Invariants
//! - A semicolon ends a statement, and a backslash begins a command, where they stand in no string, name or comment.
//! - A statement is sent as it was written; what is left without a semicolon is one too.

/// A part of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A statement, with its semicolon.
    Statement(String),
    /// A command, without its backslash, to the end of its line.
    Command(String),
}

/// The parts of `text`, and what is left of it: the beginning of a statement.
pub fn parts(text: &str) -> (Vec<Part>, String) {
    let mut parts = Vec::new();
    let mut statement = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '\\' => {
                let line = rest.lines().next().unwrap_or_default();
                parts.push(Part::Command(line[1..].trim().to_string()));
                rest = &rest[line.len()..];
                continue;
            }
            ';' => {
                statement.push(';');
                rest = &rest[1..];
                let whole = std::mem::take(&mut statement);
                if has_content(whole.trim_end_matches(';')) {
                    parts.push(Part::Statement(whole.trim().to_string()));
                }
                continue;
            }
            '\'' => {
                let escapes = statement.ends_with(['e', 'E']) && !statement[..statement.len() - 1].ends_with(is_word);
                quoted(rest, '\'', escapes)
            }
            '"' => quoted(rest, '"', false),
            '-' if rest.starts_with("--") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => comment(rest),
            '$' if !statement.ends_with(is_word) => dollar_quoted(rest),
            other => other.len_utf8(),
        };
        statement.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    (parts, if has_content(&statement) { statement.trim().to_string() } else { String::new() })
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_' || character == '$'
}

/// Whether there is anything but spaces and comments.
fn has_content(text: &str) -> bool {
    let mut rest = text.trim_start();
    loop {
        let length = match rest {
            "" => return false,
            line if line.starts_with("--") => line.find('\n').unwrap_or(line.len()),
            block if block.starts_with("/*") => comment(block),
            _ => return true,
        };
        rest = rest[length..].trim_start();
    }
}

/// The length of what begins with a quotation mark, up to the one that ends it: all that is left where there is none.
fn quoted(text: &str, mark: char, escapes: bool) -> usize {
    let mut characters = text.char_indices().skip(1);
    while let Some((at, character)) = characters.next() {
        if character == mark {
            return at + 1;
        }
        if escapes && character == '\\' {
            characters.next();
        }
    }
    text.len()
}

/// The length of a comment, which may have others in it.
fn comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while let Some(rest) = text.get(at..) {
        match rest {
            _ if rest.starts_with("/*") => (depth, at) = (depth + 1, at + 2),
            _ if rest.starts_with("*/") => {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    return at;
                }
            }
            _ => match rest.chars().next() {
                Some(character) => at += character.len_utf8(),
                None => break,
            },
        }
    }
    text.len()
}

/// The length of a string between `$tag$`s, or of the sign alone where none begins.
fn dollar_quoted(text: &str) -> usize {
    let Some(end) = text[1..].find('$') else { return 1 };
    let tag = &text[..end + 2];
    let name = &tag[1..tag.len() - 1];
    if name.starts_with(|first: char| first.is_ascii_digit()) || !name.chars().all(|c| c.is_alphanumeric() || c == '_') {
        return 1;
    }
    text[tag.len()..].find(tag).map_or(text.len(), |at| at + 2 * tag.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_and_commands_are_told_apart() {
        let statement = |text: &str| Part::Statement(text.into());
        let command = |text: &str| Part::Command(text.into());
        let cases = [
            ("SELECT 1; SELECT 2", vec![statement("SELECT 1;")], "SELECT 2"),
            ("\\dt\nSELECT 1;\n\\q", vec![command("dt"), statement("SELECT 1;"), command("q")], ""),
            ("SELECT ';\\';", vec![statement("SELECT ';\\';")], ""),
            ("SELECT E'\\';';", vec![statement("SELECT E'\\';';")], ""),
            ("SELECT 'a'';';", vec![statement("SELECT 'a'';';")], ""),
            ("SELECT \"a;\\b\";", vec![statement("SELECT \"a;\\b\";")], ""),
            ("SELECT $$;\\$$, $a$ $$; $a$;", vec![statement("SELECT $$;\\$$, $a$ $$; $a$;")], ""),
            ("SELECT $1 + a$b;", vec![statement("SELECT $1 + a$b;")], ""),
            ("-- ; \\x\nSELECT /* ; /* \\ */ ; */ 1;", vec![statement("-- ; \\x\nSELECT /* ; /* \\ */ ; */ 1;")], ""),
            (";; -- nothing;\n;", vec![], ""),
            ("SELECT 1 \\echo now", vec![command("echo now")], "SELECT 1"),
            ("SELECT 'é;", vec![], "SELECT 'é;"),
        ];
        for (text, expected, left) in cases {
            assert_eq!(parts(text), (expected, left.to_string()), "{text}");
        }
    }
}
