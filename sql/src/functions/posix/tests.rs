use arrow::array::{BooleanArray, Int32Array};
use datafusion::common::ScalarValue;

use super::*;

fn texts(values: &[&str]) -> ColumnarValue {
    ColumnarValue::Array(Arc::new(StringArray::from(values.to_vec())))
}

fn constant(value: &str) -> ColumnarValue {
    ColumnarValue::Scalar(ScalarValue::Utf8(Some(value.to_string())))
}

/// The value of `operation`, with the pattern read once and with it read row by row.
fn evaluate_both(operation: Operation, text: &str, pattern: &str, others: &[&str]) -> Result<ArrayRef> {
    let flags = operation.flags_argument().and_then(|at| others.get(at - 2)).copied().unwrap_or_default();
    let compiled = Pattern::compile(pattern, operation, flags)?;
    let mut arguments = vec![texts(&[text]), constant(pattern)];
    arguments.extend(others.iter().map(|other| constant(other)));
    let once = evaluate(operation, Some(&compiled), &arguments, 1)?;
    arguments[1] = texts(&[pattern]);
    assert_eq!(&once, &evaluate(operation, None, &arguments, 1)?, "{text:?} {pattern:?}");
    Ok(once)
}

fn is_match(text: &str, pattern: &str) -> Result<bool> {
    let result = evaluate_both(Operation::Match, text, pattern, &[])?;
    Ok(downcast::<BooleanArray>(&result)?.value(0))
}

fn replaced(text: &str, pattern: &str, others: &[&str]) -> Result<String> {
    let result = evaluate_both(Operation::Replace, text, pattern, others)?;
    Ok(downcast::<StringArray>(&result)?.value(0).to_string())
}

fn code<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.unwrap_err().code().to_string()
}

/// What PostgreSQL 15 answers.
#[test]
fn matches_are_those_of_postgresql() {
    for (text, pattern, expected) in [
        ("a\nb", "a.b", true),
        ("a\nb", "a[^x]b", true),
        ("a\nb", "(?n)a.b", false),
        ("a\nb", "(?n)^b", true),
        ("a\nb", "(?n)a[^x]b", false),
        ("a\nb", "^b", false),
        ("a\n", "a$", false),
        ("ABC", "(?i)abc", true),
        ("a.c", "***=a.c", true),
        ("abc", "***=a.c", false),
        ("foo bar", r"\mbar\M", true),
        ("foobar", r"\mbar", false),
        ("foobar", r"\ybar", false),
        ("a\u{8}", r"a\b", true),
        ("a{b", "a{b", true),
        ("a{,3}", "^a{,3}$", true),
        ("aaa", "^a{2,3}$", true),
        ("a]b", "a[]x]b", true),
        ("a&&b", "a[&]+b", true),
        ("a[b", "a[[]b", true),
        ("-", "[a-]", true),
        ("x5", "x[[:digit:]]", true),
        ("a\\b", r"a\\b", true),
        ("a#b", "a#b", true),
        ("ab", "(?x)a b # and no more", true),
        ("A", r"\x41", true),
        ("tab\t", r"\t$", true),
        ("abc", "a(?#a comment)bc", true),
        ("aac", "^a(?#a comment)*c", true),
        ("a b", "(?x)a [ ] b", true),
        ("aab", "(?x)^a # several\n +b", true),
    ] {
        assert_eq!(is_match(text, pattern).unwrap(), expected, "{text:?} ~ {pattern:?}");
    }
}

#[test]
fn replacements_are_those_of_postgresql() {
    for (text, pattern, others, expected) in [
        ("a", "a", &["&$1"] as &[&str], "&$1"),
        ("x", r"\w", &[r"\\"], r"\"),
        ("x", r"\w", &[r"\"], r"\"),
        ("x", r"\w", &[r"\q"], r"\q"),
        ("foobarbaz", "b(..)", &[r"X\1Y", "g"], "fooXarYXazY"),
        ("foobarbaz", "b(..)", &[r"X\1Y"], "fooXarYbaz"),
        ("foobar", "o+", &[r"[\&]"], "f[oo]bar"),
        ("abc", "b", &[r"\2"], "ac"),
        ("abc", "B", &["-", "i"], "a-c"),
        ("baaac", "a*", &["-", "g"], "-b--c-"),
        ("äöü", "x*", &["-", "g"], "-ä-ö-ü-"),
        ("a$b", r"\$", &["$$"], "a$$b"),
    ] {
        assert_eq!(replaced(text, pattern, others).unwrap(), expected, "{text:?} {pattern:?} {others:?}");
    }
}

/// The array that `regexp_match` gives.
fn groups_of(text: &str, pattern: &str, flags: &[&str]) -> Result<Option<String>> {
    let result = evaluate_both(Operation::Groups, text, pattern, flags)?;
    let shown = crate::functions::cast::output_text(&result)?;
    Ok(downcast::<StringArray>(&shown)?.iter().next().flatten().map(str::to_string))
}

/// A pattern takes the longest match or the shortest, and so do its parts, the first first: what PostgreSQL 15 answers.
#[test]
fn the_longest_or_shortest_match_is_taken() {
    for (text, pattern, expected) in [
        ("XY1234Z", "Y*([0-9]{1,3})", Some("{123}")),
        ("XY1234Z", "Y*?([0-9]{1,3})", Some("{1}")),
        ("abc01234xyz", r"(.*)(\d+)(.*)", Some("{abc0123,4,xyz}")),
        ("abc01234xyz", r"(.*?)(\d+)(.*)", Some("{abc,0,\"\"}")),
        ("abc01234xyz", r"(?:(.*?)(\d+)(.*)){1,1}", Some("{abc,01234,xyz}")),
        ("abcd", "(a|ab)(c|bcd)(d*)", Some("{ab,c,d}")),
        ("xabyabbbz", "(a*b+)*(y|x)", Some("{NULL,x}")),
        ("foobarbequebaz", "(bar)(beque)|(x)", Some("{bar,beque,NULL}")),
        ("aaab", "(a*?)(a*)b", Some("{\"\",aaa}")),
        ("abab", "(?:(a)|b)*", Some("{NULL}")),
        ("abab", "(a|ab|b)*", Some("{ab}")),
        ("", "(a)*", Some("{NULL}")),
        ("", "()*?", Some("{\"\"}")),
        ("", "(a*)*", Some("{\"\"}")),
        ("", "(a*?)*", Some("{NULL}")),
        ("abc", "(x)?b", Some("{NULL}")),
        ("abc", "((b))", Some("{b,b}")),
        ("abc", "bc", Some("{bc}")),
        ("acbaacb", "(a{0,2}a){1,1}?.", Some("{a}")),
        ("aabb", "a{2,2}?b*", Some("{aa}")),
        ("ab", "(a){0}(b)", Some("{NULL,b}")),
        ("abc", "x", None),
        ("fobar", "o|ob|oba", Some("{oba}")),
        ("é bab", r"\m(b|ba|bab)\M", Some("{bab}")),
    ] {
        assert_eq!(groups_of(text, pattern, &[]).unwrap().as_deref(), expected, "{text:?} {pattern:?}");
    }
    for (text, pattern, others, expected) in [
        ("foobar", "o|oo|oob", &["-"] as &[&str], "f-ar"),
        ("foo", "o|oo", &["-"], "f-"),
        ("abcabc", "(a|ab)(c|bcd)?", &[r"<\1,\2>", "g"], "<ab,c><ab,c>"),
        ("ab", "a?(ab)?", &[r"[\&]"], "[ab]"),
        ("aab", "(a|ab)(b|)", &[r"<\1,\2>"], "<a,>ab"),
    ] {
        assert_eq!(replaced(text, pattern, others).unwrap(), expected, "{text:?} {pattern:?}");
    }
    assert_eq!(groups_of("ABC", "b", &["i"]).unwrap().as_deref(), Some("{B}"));
    assert_eq!(code(groups_of("a", "a", &["g"])), "22023");
}

#[test]
fn texts_that_repeat_do_not_take_long() {
    let text = "a".repeat(2_000);
    for pattern in ["(a|aa|aaa)*", "(?:(a|aa)(a|aa)?)*", "(a{2}|a{3})*", "((a|aa)*?)*"] {
        let found = groups_of(&text, &format!("^{pattern}$"), &[]).unwrap();
        assert!(found.is_some(), "{pattern}");
    }
    assert_eq!(code(is_match("a", &"(a)".repeat(1_000))), "2201B");
    assert_eq!(code(is_match("a", &"(".repeat(100_000))), "2201B");
}

#[test]
fn parts_are_those_of_postgresql() {
    let part = |text: &str, pattern: &str, numbers: &[i32], flags: Option<&str>, group: Option<i32>| -> Result<Option<String>> {
        let number = |number: i32| ColumnarValue::Scalar(ScalarValue::Int32(Some(number)));
        let mut arguments = vec![texts(&[text]), constant(pattern)];
        arguments.extend(numbers.iter().map(|value| number(*value)));
        arguments.extend(flags.map(constant));
        arguments.extend(group.map(number));
        let result = evaluate(Operation::Part, None, &arguments, 1)?;
        Ok(downcast::<StringArray>(&result)?.iter().next().flatten().map(str::to_string))
    };
    for (text, pattern, numbers, flags, group, expected) in [
        ("ABCABCAXYaxy", "A.", &[3] as &[i32], None, None, Some("AB")),
        ("ABCABCAXYaxy", "A.", &[1, 3], None, None, Some("AX")),
        ("ABCABCAXYaxy", "a.", &[1, 4], Some("i"), None, Some("ax")),
        ("1234567890", "(123)(4(56)(78))", &[1, 1], Some("i"), Some(4), Some("78")),
        ("1234567890", "(123)(4(56)(78))", &[1, 1], Some("i"), Some(0), Some("12345678")),
        ("abc", "b|(x)", &[1, 1], Some(""), Some(1), None),
        ("abc", "b", &[1, 1], Some(""), Some(1), Some("b")),
        ("abc", "b", &[1, 1], Some(""), Some(2), None),
        ("äbc", ".", &[2], None, None, Some("b")),
        ("abc", "x*", &[4], None, None, Some("")),
        ("abc", "x*", &[5], None, None, None),
        ("abc", "x*", &[4, 2], None, None, None),
    ] {
        assert_eq!(part(text, pattern, numbers, flags, group).unwrap().as_deref(), expected, "{text:?} {pattern:?} {numbers:?}");
    }
    for (numbers, group) in [(&[0, 1], 0), (&[1, 0], 0), (&[1, 1], -1)] {
        assert_eq!(code(part("a", "a", numbers, Some(""), Some(group))), "22023");
    }
    for (text, pattern, expected) in
        [("foobar", "o|ob|oba", Some("o")), ("foobar", "(o)b", Some("o")), ("foobar", "(x)?b", None), ("foobar", "x", None)]
    {
        let result = evaluate_both(Operation::Substring, text, pattern, &[]).unwrap();
        assert_eq!(downcast::<StringArray>(&result).unwrap().iter().next().flatten(), expected, "{pattern}");
    }
}

#[test]
fn matches_are_counted_and_placed() {
    let number = |operation, text, pattern| {
        let result = evaluate_both(operation, text, pattern, &[]).unwrap();
        downcast::<Int32Array>(&result).unwrap().value(0)
    };
    assert_eq!(number(Operation::Count, "ABCABCAXYaxy", "A."), 3);
    assert_eq!(number(Operation::Count, "baaac", "a*"), 4);
    assert_eq!(number(Operation::Count, "aaaa", "a|aa"), 2);
    assert_eq!(number(Operation::Position, "äbc", "c"), 3);
    assert_eq!(number(Operation::Position, "abc", "z"), 0);
}

#[test]
fn what_is_no_pattern_is_said() {
    for pattern in [
        "a{256}",
        "a{1,2,3}",
        "a{1x}",
        "(",
        ")",
        "[a",
        "*a",
        "a**",
        "a|+",
        "^*",
        "a{1",
        "a{2,1}",
        r"\",
        r"a\q",
        "[[:nope:]]",
        "(?z)a",
        "(?P<a>b)",
        "[z-a]",
    ] {
        assert_eq!(code(is_match("a", pattern)), "2201B", "{pattern}");
    }
    for pattern in ["a(?=b)", "a(?!b)", "(?<=a)b", r"(a)\1", "[[.a.]]"] {
        assert_eq!(code(is_match("a", pattern)), "0A000", "{pattern}");
    }
    assert_eq!(code(replaced("a", "a", &["b", "z"])), "22023");
    assert_eq!(code(evaluate_both(Operation::Like, "a", "a", &["g"])), "22023");
}

#[test]
fn null_gives_null() {
    let nothing = ColumnarValue::Scalar(ScalarValue::Utf8(None));
    for operation in [Operation::Match, Operation::NoMatch, Operation::Count, Operation::Position] {
        let result = evaluate(operation, None, &[texts(&["a"]), nothing.clone()], 1).unwrap();
        assert!(result.is_null(0), "{}", operation.name());
    }
    let result = evaluate(Operation::Replace, None, &[texts(&["a"]), constant("a"), nothing], 1).unwrap();
    assert!(result.is_null(0));
}
