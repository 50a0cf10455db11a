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

#[test]
fn matches_are_counted_and_placed() {
    let number = |operation, text, pattern| {
        let result = evaluate_both(operation, text, pattern, &[]).unwrap();
        downcast::<Int32Array>(&result).unwrap().value(0)
    };
    assert_eq!(number(Operation::Count, "ABCABCAXYaxy", "A."), 3);
    assert_eq!(number(Operation::Count, "baaac", "a*"), 4);
    assert_eq!(number(Operation::Position, "äbc", "c"), 3);
    assert_eq!(number(Operation::Position, "abc", "z"), 0);
}

#[test]
fn what_is_no_pattern_is_said() {
    for pattern in ["(", ")", "[a", "*a", "a**", "a|+", "^*", "a{1", "a{2,1}", r"\", r"a\q", "[[:nope:]]", "(?z)a", "(?P<a>b)", "[z-a]"] {
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
