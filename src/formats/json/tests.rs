//! JSON lines against Arrow's reader, and bad lines.

use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Int64Type, Schema};
use proptest::prelude::*;
use weir_catalog::{Column, RowKind, SqlType};

use super::*;
use crate::formats::{Decoded, RecordDecoder};

fn column(name: &str, ty: SqlType) -> Column {
    Column { name: name.into(), ty, nullable: true, default: None }
}

fn columns() -> Vec<Column> {
    vec![
        column("n", SqlType::BigInt),
        column("t", SqlType::Text),
        column("d", SqlType::Double),
        column("b", SqlType::Boolean),
        column("x", SqlType::Numeric { precision: 12, scale: 3 }),
    ]
}

fn plain() -> JsonOptions {
    JsonOptions { form: JsonForm::Rows { row_kind: None }, fail_on_missing: false }
}

fn decode(options: &JsonOptions, projection: &[usize], data: &[u8]) -> Decoded {
    JsonDecoder::new(options, &columns(), projection).unwrap().decode(data, 0, usize::MAX).unwrap()
}

/// A row's members, in some order, some left out, with something that nobody reads.
fn line() -> impl Strategy<Value = String> {
    let members = vec![
        any::<i64>().prop_map(|n| format!("\"n\":{n}")).boxed(),
        ".{0,8}".prop_map(|t| format!("\"t\" : {}", serde_json::to_string(&t.replace('\0', "")).unwrap())).boxed(),
        any::<f64>().prop_filter("JSON has no others", |d| d.is_finite()).prop_map(|d| format!("\"d\":{d:e}")).boxed(),
        any::<bool>().prop_map(|b| format!("\"b\":  {b}")).boxed(),
        (-999_999i64..999_999).prop_map(|x| format!("\"x\":{}.{:03}", x / 1000, (x % 1000).abs())).boxed(),
        prop::sample::select(vec!["\"u\":{\"n\":[1,\"}\",{}]}", "\"n2\":\"\\\"\"", "\"t\":null", "\"\\u006e\":5"])
            .prop_map(str::to_string)
            .boxed(),
    ];
    (members, any::<prop::sample::Index>(), 0usize..=6).prop_flat_map(|(members, _, count)| {
        Just(members).prop_shuffle().prop_map(move |members| format!("{{{}}}", members[..count].join(", ")))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn columns_are_those_of_arrows_reader(
        mut lines in prop::collection::vec(line(), 1..30),
        line_end in prop::sample::select(vec!["\n", "\r\n", "\n\n"]),
        projection in prop::sample::subsequence(vec![0usize, 1, 2, 3, 4], 1..=5),
    ) {
        // A name that is there twice counts with its last value in ours and with its first in Arrow's: not compared.
        lines.retain(|line| line.matches("\"t\"").count() < 2 && !(line.contains("u006e") && line.contains("\"n\":")));
        lines.push("{}".into());
        let data = lines.join(line_end);
        let decoded = decode(&plain(), &projection, data.as_bytes());
        prop_assert!(decoded.bad.is_empty(), "{:?} in {}", decoded.bad, data);
        let all = columns();
        let schema = Arc::new(Schema::new(projection.iter().map(|at| all[*at].to_field()).collect::<Vec<_>>()));
        let mut reader = arrow::json::ReaderBuilder::new(schema).with_batch_size(1000).build(data.as_bytes()).unwrap();
        let expected = reader.next().unwrap().unwrap();
        prop_assert_eq!(decoded.batch.rows, expected);
    }

    #[test]
    fn a_cut_at_any_line_end_changes_nothing(lines in prop::collection::vec(line(), 0..6)) {
        let data = lines.join("\n").into_bytes();
        let decoder = JsonDecoder::new(&plain(), &columns(), &[0]).unwrap();
        let rows = |data: &[u8]| decode(&plain(), &[0], data).batch.rows.column(0).as_primitive::<Int64Type>().iter().collect::<Vec<_>>();
        let whole = rows(&data);
        for length in 0..=data.len() {
            if let Some(cut) = decoder.last_record_end(&data[..length]) {
                prop_assert_eq!([rows(&data[..cut]), rows(&data[cut..])].concat(), whole.clone());
            }
        }
    }

    #[test]
    fn no_bytes_make_it_panic_and_bad_lines_leave_the_others(bytes in prop::collection::vec(any::<u8>(), 0..60), cut in any::<prop::sample::Index>()) {
        let good = b"{\"n\":1,\"t\":\"a\\u00e9\",\"d\":1.5,\"b\":true,\"x\":2}";
        let broken: Vec<u8> = good[..cut.index(good.len())].to_vec();
        let bytes: Vec<u8> = bytes.into_iter().filter(|byte| *byte != b'\n').collect();
        let data = [&good[..], &bytes, &broken, &good[..]].join(&b'\n');
        let decoded = decode(&plain(), &[0, 1, 2, 3, 4], &data);
        let ones = decoded.batch.rows.column(0).as_primitive::<Int64Type>();
        let first_and_last = [ones.iter().next().flatten(), ones.iter().last().flatten()];
        prop_assert_eq!(first_and_last, [Some(1), Some(1)]);
        prop_assert!(broken.is_empty() || decoded.bad.iter().any(|bad| data[bad.start..bad.end] == broken[..]));
    }

    #[test]
    fn what_is_written_reads_back_the_same(
        lines in prop::collection::vec(line(), 1..20),
        kinds in prop::collection::vec(any::<bool>(), 20),
        debezium in any::<bool>(),
    ) {
        let projection = [0, 1, 2, 3, 4];
        let rows = decode(&plain(), &projection, lines.join("\n").as_bytes()).batch.rows;
        let kinds: Vec<u8> = kinds[..rows.num_rows()].iter().map(|add| if *add { RowKind::Insert } else { RowKind::Delete } as u8).collect();
        let written = crate::stream::Batch::with_kinds(rows, kinds);
        let form = if debezium { JsonForm::Debezium } else { JsonForm::Rows { row_kind: Some("kind \"of\" row".into()) } };
        let mut data = Vec::new();
        JsonEncoder::new(form.clone()).encode(&written, &mut data, &mut Vec::new()).unwrap();
        let decoded = decode(&JsonOptions { form, fail_on_missing: true }, &projection, &data);
        prop_assert!(decoded.bad.is_empty(), "{:?} in {}", decoded.bad, String::from_utf8_lossy(&data));
        prop_assert_eq!(decoded.batch.rows, written.rows);
        prop_assert_eq!(decoded.batch.kinds, written.kinds);
    }
}

#[test]
fn values_are_converted_as_a_cast_would() {
    let decoded =
        decode(&plain(), &[0, 1, 2], b"{\"n\":\" 12 \",\"t\":[1, {\"a\":2}],\"d\":\"NaN\"}\n{\"n\":3,\"n\":4,\"t\":1.50,\"d\":1e3}\n");
    assert!(decoded.bad.is_empty(), "{:?}", decoded.bad);
    let rows = decoded.batch.rows;
    assert_eq!(rows.column(0).as_primitive::<Int64Type>().values(), &[12, 4]);
    assert_eq!(rows.column(1).as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["[1, {\"a\":2}]", "1.50"]);
    let doubles = rows.column(2).as_primitive::<arrow::datatypes::Float64Type>();
    assert!(doubles.value(0).is_nan() && doubles.value(1) == 1000.0);
}

#[test]
fn bad_lines_are_named_with_their_reason() {
    let cases: [(&[u8], &str); 12] = [
        (b"{\"n\":1.5}", "22P02"),
        (b"{\"n\":99999999999999999999}", "22003"),
        (b"{\"n\":{}}", "42804"),
        (b"{\"n\":1", "22032"),
        (b"{\"n\":01}", "22032"),
        (b"{\"n\":1}}", "22032"),
        (b"[1]", "22032"),
        (b"{\"t\":\"\\ud800\"}", "22032"),
        (b"{\"t\":\"\xFF\"}", "22021"),
        (b"{\"t\":\"a\0\"}", "22021"),
        (b"{\"t\":{\"u\":\"a\0\"}}", "22021"),
        (b"{\"t\":\"a\\u0000\"}", "22P05"),
    ];
    for (line, code) in cases {
        let decoded = decode(&plain(), &[0, 1], line);
        assert_eq!(decoded.batch.num_rows(), 0, "{}", line.escape_ascii());
        assert_eq!(decoded.bad.len(), 1, "{}", line.escape_ascii());
        assert_eq!(decoded.bad[0].reason.code().as_str(), code, "{}: {:?}", line.escape_ascii(), decoded.bad[0].reason);
    }
    let missing = JsonOptions { fail_on_missing: true, ..plain() };
    assert_eq!(decode(&missing, &[0, 1], b"{\"n\":1}").bad[0].reason.code().as_str(), "23502");
}

#[test]
fn a_text_with_a_zero_byte_makes_only_its_own_line_bad() {
    let columns = [
        column("n", SqlType::Int),
        column("l", SqlType::Array(Box::new(SqlType::Text))),
        column("r", SqlType::Row(vec![("t".into(), SqlType::Text)])),
    ];
    let data = b"{\"n\":1}\n{\"n\":2,\"l\":[\"a\",\"\0\"]}\n{\"n\":3,\"l\":[\"b\\u0000\"]}\n{\"n\":4,\"r\":{\"t\":\"\0\"}}\n{\"n\":5,\"r\":{\"t\":\"\\u0000\"}}\n{\"n\":6}\n";
    let mut decoder = JsonDecoder::new(&plain(), &columns, &[0, 1, 2]).unwrap();
    let decoded = decoder.decode(data, 0, 100).unwrap();
    assert_eq!(decoded.batch.rows.column(0).as_primitive::<arrow::datatypes::Int32Type>().values(), &[1, 6]);
    assert_eq!(decoded.bad.iter().map(|bad| bad.reason.code().as_str()).collect::<Vec<_>>(), ["22021", "22P05", "22021", "22P05"]);
}

#[test]
fn a_line_of_more_bytes_than_are_allowed_is_bad() {
    let data = b"{\"n\":123}\n{\"n\":1234}\r\n{\"n\": 12}\r\n               \n{\"n\":1}    \n\n{\"n\":1}";
    let mut decoder = JsonDecoder::new(&plain(), &columns(), &[0]).unwrap();
    decoder.set_longest_record(9);
    let decoded = decoder.decode(data, 0, 100).unwrap();
    assert_eq!(decoded.batch.rows.column(0).as_primitive::<Int64Type>().values(), &[123, 12, 1]);
    let bad: Vec<(&[u8], &str)> = decoded.bad.iter().map(|bad| (&data[bad.start..bad.end], bad.reason.code().as_str())).collect();
    let expected: [(&[u8], &str); 3] = [(b"{\"n\":1234}", "54000"), (b"               ", "54000"), (b"{\"n\":1}    ", "54000")];
    assert_eq!(bad, expected);
}

#[test]
fn changes_of_debezium_have_their_kinds() {
    let data = b"{\"before\":null,\"after\":{\"n\":1},\"op\":\"r\",\"source\":{\"db\":\"x\"}}
{\"schema\":{},\"payload\":{\"op\":\"u\",\"before\":{\"n\":1},\"after\":{\"n\":2}}}
{\"op\":\"d\",\"before\":{\"n\":2},\"after\":null}
{\"op\":\"d\",\"before\":null,\"after\":null}
";
    let decoded = decode(&JsonOptions { form: JsonForm::Debezium, fail_on_missing: false }, &[0], data);
    let rows: Vec<(i64, &str)> = (0..decoded.batch.num_rows())
        .map(|row| (decoded.batch.rows.column(0).as_primitive::<Int64Type>().value(row), decoded.batch.kind(row).short()))
        .collect();
    assert_eq!(rows, [(1, "+I"), (1, "-U"), (2, "+U"), (2, "-D")]);
    assert_eq!(decoded.bad.len(), 1);
    assert!(decoded.batch.rows.column(0).null_count() == 0);
}
