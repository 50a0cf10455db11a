//! Functions that PostgreSQL has and weir has not: calling one is `0A000`, where a name that neither knows is `42883`.
//!
//! The names are those of the chapter "Functions and Operators" of PostgreSQL 15's manual. A function that weir comes to have leaves this list.

use weir_catalog::Error;

/// Sorted, lower case.
static NAMES: &[&str] = &[
    "acosd",
    "acosh",
    "age",
    "array_agg",
    "array_append",
    "array_cat",
    "array_dims",
    "array_fill",
    "array_lower",
    "array_ndims",
    "array_position",
    "array_positions",
    "array_prepend",
    "array_remove",
    "array_replace",
    "array_to_json",
    "array_to_string",
    "array_upper",
    "asind",
    "asinh",
    "atan2d",
    "atand",
    "atanh",
    "clock_timestamp",
    "convert_from",
    "convert_to",
    "cosd",
    "cosh",
    "cot",
    "cotd",
    "cume_dist",
    "current_date",
    "current_query",
    "current_role",
    "current_schemas",
    "current_setting",
    "current_time",
    "currval",
    "date_bin",
    "decode",
    "div",
    "encode",
    "factorial",
    "format",
    "gcd",
    "gen_random_uuid",
    "generate_series",
    "generate_subscripts",
    "isfinite",
    "json_agg",
    "json_array_elements",
    "json_array_elements_text",
    "json_array_length",
    "json_build_array",
    "json_build_object",
    "json_each",
    "json_each_text",
    "json_extract_path",
    "json_extract_path_text",
    "json_object",
    "json_object_agg",
    "json_object_keys",
    "json_populate_record",
    "json_strip_nulls",
    "json_to_record",
    "json_typeof",
    "jsonb_agg",
    "jsonb_array_elements",
    "jsonb_array_elements_text",
    "jsonb_array_length",
    "jsonb_build_array",
    "jsonb_build_object",
    "jsonb_each",
    "jsonb_each_text",
    "jsonb_extract_path",
    "jsonb_extract_path_text",
    "jsonb_insert",
    "jsonb_object",
    "jsonb_object_agg",
    "jsonb_object_keys",
    "jsonb_path_exists",
    "jsonb_path_match",
    "jsonb_path_query",
    "jsonb_path_query_array",
    "jsonb_path_query_first",
    "jsonb_pretty",
    "jsonb_set",
    "jsonb_strip_nulls",
    "jsonb_typeof",
    "justify_days",
    "justify_hours",
    "justify_interval",
    "lastval",
    "lcm",
    "localtime",
    "make_date",
    "make_interval",
    "make_time",
    "make_timestamp",
    "make_timestamptz",
    "min_scale",
    "mode",
    "nextval",
    "normalize",
    "num_nonnulls",
    "num_nulls",
    "overlaps",
    "parse_ident",
    "percentile_cont",
    "percentile_disc",
    "pg_sleep",
    "quote_nullable",
    "range_agg",
    "range_intersect_agg",
    "regexp_matches",
    "regexp_split_to_array",
    "regexp_split_to_table",
    "regr_avgx",
    "regr_avgy",
    "regr_sxx",
    "regr_sxy",
    "regr_syy",
    "row_to_json",
    "scale",
    "set_config",
    "setseed",
    "setval",
    "sha224",
    "sha256",
    "sha384",
    "sha512",
    "sind",
    "sinh",
    "string_to_array",
    "string_to_table",
    "tand",
    "tanh",
    "timeofday",
    "timezone",
    "to_char",
    "to_date",
    "to_json",
    "to_jsonb",
    "to_number",
    "to_tsquery",
    "to_tsvector",
    "trim_array",
    "trim_scale",
    "unistr",
    "unnest",
    "width_bucket",
    "xmlagg",
    "xmlelement",
    "xmlforest",
];

/// `0A000` for a function that PostgreSQL has and weir has not; `None` for any other name.
pub(super) fn function(name: &str) -> Option<Error> {
    NAMES.binary_search(&name).ok()?;
    Some(match name {
        "current_date" => {
            Error::unsupported("current_date is not supported: there is no type date").with_hint("Use date_trunc('day', now()).")
        }
        "current_time" | "localtime" => Error::unsupported(format!("{name} is not supported: there is no type time")),
        "generate_series" => Error::unsupported("generate_series is not supported here").with_hint("Call it in FROM."),
        "generate_subscripts" | "unnest" | "regexp_split_to_table" | "string_to_table" => {
            Error::unsupported(format!("function {name} is not supported: functions that return sets are not"))
        }
        _ => Error::unsupported(format!("function {name} is not supported")),
    })
}

/// `0A000` for a form of a function, by the number of its arguments, that PostgreSQL has and weir has not.
pub(super) fn form(name: &str, arguments: usize) -> Option<Error> {
    const FORMS: &[(&str, usize)] = &[
        ("btrim", 3),
        ("date_trunc", 3),
        ("length", 2),
        ("log", 2),
        ("md5", 2),
        ("overlay", 5),
        ("regexp_count", 3),
        ("regexp_count", 4),
        ("regexp_instr", 3),
        ("regexp_instr", 4),
        ("regexp_instr", 5),
        ("regexp_instr", 6),
        ("regexp_instr", 7),
        ("regexp_replace", 5),
        ("regexp_replace", 6),
        ("to_timestamp", 2),
    ];
    FORMS.contains(&(name, arguments)).then(|| Error::unsupported(format!("function {name} with {arguments} arguments is not supported")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_sorted() {
        for pair in NAMES.windows(2) {
            assert!(pair[0] < pair[1], "{} stands before {}", pair[0], pair[1]);
        }
    }

    #[test]
    fn a_name_that_postgresql_does_not_know_either_is_not_here() {
        assert!(function("nosuch").is_none());
        assert!(function("count").is_none());
        assert_eq!(function("to_char").map(|error| error.code().as_str().to_string()).as_deref(), Some("0A000"));
        assert!(form("to_timestamp", 1).is_none());
        assert!(form("to_timestamp", 2).is_some());
    }
}
