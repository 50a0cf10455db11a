//! CSV against the `csv-core` crate, field by field, and against Arrow's reader, column by column.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, TimeUnit};
use proptest::prelude::*;
use weir_catalog::{Column, RowKind, SqlType};

use super::*;
use crate::formats::{RecordDecoder, RecordEnd};
use crate::stream::Batch;

type Records = Vec<Vec<Vec<u8>>>;

fn column(name: &str, ty: SqlType) -> Column {
    Column { name: name.into(), ty, nullable: true, default: None }
}

fn texts(count: usize) -> Vec<Column> {
    (0..count).map(|at| column(&format!("c{at}"), SqlType::Text)).collect()
}

/// The records that `csv-core` finds, whatever their number of fields.
fn reference(data: &[u8], options: &CsvOptions) -> Records {
    let mut reader = csv_core::ReaderBuilder::new()
        .delimiter(options.delimiter)
        .quoting(options.quote.is_some())
        .quote(options.quote.unwrap_or(b'"'))
        .escape(options.escape)
        .build();
    let mut records = Records::new();
    let (mut at, mut output, mut ends) = (0, vec![0; data.len() + 16], vec![0; data.len() + 16]);
    loop {
        let (mut written, mut fields) = (0, 0);
        loop {
            let (result, read, wrote, ended) = reader.read_record(&data[at..], &mut output[written..], &mut ends[fields..]);
            at += read;
            written += wrote;
            fields += ended;
            match result {
                csv_core::ReadRecordResult::InputEmpty => {} // Once more, with nothing: the end.
                csv_core::ReadRecordResult::Record => break,
                csv_core::ReadRecordResult::End => return records,
                full => panic!("{full:?}"),
            }
        }
        let bounds: Vec<usize> = std::iter::once(0).chain(ends[..fields].iter().copied()).collect();
        records.push(bounds.windows(2).map(|pair| output[pair[0]..pair[1]].to_vec()).collect());
    }
}

/// The rows that we read, NULL as the empty text, and the number of bad records.
fn read(data: &[u8], options: &CsvOptions, columns: usize, max_rows: usize) -> (Records, usize) {
    let all: Vec<usize> = (0..columns).collect();
    let mut decoder = CsvDecoder::new(options.clone(), &texts(columns), &all, None).unwrap();
    let (mut records, mut bad, mut at) = (Records::new(), 0, 0);
    while at < data.len() {
        let decoded = decoder.decode(data, at, max_rows).unwrap();
        assert!(decoded.next > at, "nothing was read at byte {at}");
        at = decoded.next;
        bad += decoded.bad.len();
        let rows = &decoded.batch.rows;
        for row in 0..rows.num_rows() {
            let value = |column: &ArrayRef| {
                let column = column.as_string::<i32>();
                if column.is_valid(row) { column.value(row).as_bytes().to_vec() } else { Vec::new() }
            };
            records.push(rows.columns().iter().map(value).collect());
        }
    }
    (records, bad)
}

/// Whether the data ends inside quotes, which `csv-core` lets pass.
fn ends_in_quotes(data: &[u8], options: &CsvOptions) -> bool {
    let (_, bad) = read(data, options, 1, usize::MAX);
    let mut fields = Fields::default();
    Tokenizer::new(options, 1).tokenize(data, 0, usize::MAX, &mut fields);
    bad > 0 && fields.bad.iter().any(|bad| bad.open_quote)
}

fn dialect() -> impl Strategy<Value = CsvOptions> {
    (prop::sample::select(vec![b',', b';', b'\t']), prop::sample::select(vec![Some(b'"'), Some(b'\''), None]), any::<bool>()).prop_map(
        |(delimiter, quote, escape)| CsvOptions {
            delimiter,
            quote,
            escape: (escape && quote.is_some()).then_some(b'\\'),
            ..CsvOptions::default()
        },
    )
}

/// Bytes of which nearly all mean something.
fn tangled(longest: usize) -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::sample::select(vec![
        ",",
        ",",
        ";",
        "\t",
        "\"",
        "\"",
        "'",
        "\\",
        "\n",
        "\n",
        "\r\n",
        "\r",
        "a",
        "bc",
        " ",
        "é",
        "0123456789abcdefghijklmnopqrstuvwxyz",
    ]);
    prop::collection::vec(pieces, 0..longest).prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn records_and_fields_are_those_of_csv_core(data in tangled(60), options in dialect(), columns in 2usize..4, max_rows in 1usize..5) {
        prop_assume!(!ends_in_quotes(&data, &options));
        let expected = reference(&data, &options);
        let (rows, bad) = read(&data, &options, columns, max_rows);
        let (fitting, others): (Records, Records) = expected.into_iter().partition(|record| record.len() == columns);
        prop_assert_eq!(rows, fitting);
        prop_assert_eq!(bad, others.len());
    }

    #[test]
    fn a_cut_at_the_last_record_end_of_any_beginning_changes_nothing(data in tangled(30), options in dialect(), columns in 1usize..4) {
        prop_assume!(!ends_in_quotes(&data, &options));
        let whole = read(&data, &options, columns, usize::MAX);
        let tokenizer = Tokenizer::new(&options, columns);
        for length in 0..=data.len() {
            if let Some(cut) = tokenizer.last_record_end(&data[..length]) {
                let (mut rows, mut bad) = read(&data[..cut], &options, columns, usize::MAX);
                let rest = read(&data[cut..], &options, columns, usize::MAX);
                rows.extend(rest.0);
                bad += rest.1;
                prop_assert_eq!(&(rows, bad), &whole, "cut at {} of the first {} bytes", cut, length);
            }
        }
    }

    #[test]
    fn the_end_of_a_record_that_comes_bit_by_bit_is_that_in_the_whole(data in tangled(30), options in dialect(), bits in prop::collection::vec(1usize..9, 1..20)) {
        // A table of one column has no empty lines that are passed over.
        let tokenizer = Tokenizer::new(&options, 1);
        let next = tokenizer.tokenize(&data, 0, 1, &mut Fields::default());
        let mut end = tokenizer.record_end();
        let (mut at, mut found) = (0, None);
        for bit in bits.iter().cycle() {
            if at == data.len() || found.is_some() {
                break;
            }
            let until = (at + bit).min(data.len());
            found = end.find(&data[at..until]).map(|length| at + length);
            at = until;
        }
        prop_assert_eq!(found.unwrap_or(data.len()), next);
    }

    #[test]
    fn columns_are_those_of_arrows_reader(
        rows in prop::collection::vec((any::<Option<i64>>(), "[a-z \"',;é\n]{0,6}", 0i64..4_000_000_000_000_000), 1..50),
        line_end in prop::sample::select(vec!["\n", "\r\n"]),
        last_line_end in any::<bool>(),
        always_quote in any::<bool>(),
        projection in prop::sample::subsequence(vec![0usize, 1, 2], 1..=3),
    ) {
        let mut data = String::new();
        for (at, (number, text, time)) in rows.iter().enumerate() {
            let quoted = text.contains(['"', ',', '\n']) || (always_quote && !text.is_empty());
            let text = if quoted { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.clone() };
            let mut shown = String::new();
            weir_sql::functions::text::write_timestamp(&mut shown, *time).unwrap();
            let number = number.map_or(String::new(), |number| number.to_string());
            let end = if at + 1 < rows.len() || last_line_end { line_end } else { "" };
            data.push_str(&format!("{number},{text},{shown}{end}"));
        }
        let columns = [column("n", SqlType::BigInt), column("t", SqlType::Text), column("at", SqlType::TIMESTAMP)];
        let mut decoder = CsvDecoder::new(CsvOptions::default(), &columns, &projection, None).unwrap();
        let decoded = decoder.decode(data.as_bytes(), 0, usize::MAX).unwrap();
        prop_assert!(decoded.bad.is_empty());
        let schema = Arc::new(Schema::new(columns.iter().map(Column::to_field).collect::<Vec<_>>()));
        let mut reader = arrow::csv::ReaderBuilder::new(schema).with_batch_size(1000).with_projection(projection).build(data.as_bytes()).unwrap();
        let expected = reader.next().unwrap().unwrap();
        prop_assert_eq!(decoded.batch.rows, expected);
    }

    #[test]
    fn what_is_written_reads_back_the_same(
        rows in prop::collection::vec((any::<Option<i64>>(), prop::option::of("[a-z\\\\ \"',;\t\r\né]{0,5}"), any::<bool>()), 0..40),
        options in dialect(),
        null in prop::sample::select(vec!["", "NULL", "a"]),
        columns in 1usize..3,
        with_kinds in any::<bool>(),
    ) {
        let options = CsvOptions { quote: Some(options.quote.unwrap_or(b'"')), null: null.as_bytes().to_vec(), header: with_kinds, ..options };
        let texts: ArrayRef = Arc::new(StringArray::from_iter(rows.iter().map(|row| row.1.as_deref())));
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.0)));
        let all = [("t", texts), ("n", numbers)];
        let fields: Vec<Field> = all[..columns].iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), true)).collect();
        let arrays = all[..columns].iter().map(|(_, array)| array.clone()).collect();
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap();
        let kinds: Vec<u8> = rows.iter().map(|row| if row.2 { RowKind::Insert } else { RowKind::UpdateBefore } as u8).collect();
        let written = if with_kinds { Batch::with_kinds(batch, kinds) } else { Batch::insert(batch) };
        let row_kind = with_kinds.then(|| "kind".to_string());

        let mut encoder = CsvEncoder::new(options.clone(), row_kind.clone());
        let mut data = Vec::new();
        encoder.header(written.rows.schema_ref(), &mut data);
        encoder.encode(&written, &mut data, &mut Vec::new()).unwrap();
        let declared = [column("t", SqlType::Text), column("n", SqlType::BigInt)];
        let all: Vec<usize> = (0..columns).collect();
        let mut decoder = CsvDecoder::new(options, &declared[..columns], &all, row_kind).unwrap();
        let header = decoder.header_length(&data).unwrap_or(data.len());
        decoder.set_header(&data[..header]).unwrap();
        let decoded = decoder.decode(&data, header, usize::MAX).unwrap();
        prop_assert!(decoded.bad.is_empty(), "{:?} in {}", decoded.bad, String::from_utf8_lossy(&data));
        prop_assert_eq!(decoded.batch.rows, written.rows);
        prop_assert_eq!(decoded.batch.kinds, written.kinds);
    }
}

#[test]
fn bad_records_are_named_with_their_bytes_and_the_others_stay() {
    let columns = [column("n", SqlType::Int), column("t", SqlType::Text)];
    let data = b"1,a\nx,b\n2\n3,\xFF\n4,d,e\n5,f\n8,h\0i\n9,\"j\0\"\n6,\"g";
    let mut decoder = CsvDecoder::new(CsvOptions::default(), &columns, &[1, 0], None).unwrap();
    let decoded = decoder.decode(data, 0, 100).unwrap();
    let bad: Vec<(&[u8], &str)> = decoded.bad.iter().map(|bad| (&data[bad.start..bad.end], bad.reason.code().as_str())).collect();
    let expected: [(&[u8], &str); 7] = [
        (b"x,b", "22P02"),
        (b"2", "22P04"),
        (b"3,\xFF", "22021"),
        (b"4,d,e", "22P04"),
        (b"8,h\0i", "22021"),
        (b"9,\"j\0\"", "22021"),
        (b"6,\"g", "22P04"),
    ];
    assert_eq!(bad, expected);
    let rows = decoded.batch.rows;
    assert_eq!(rows.column(0).as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["a", "f"]);
    assert_eq!(rows.column(1).as_primitive::<arrow::datatypes::Int32Type>().values(), &[1, 5]);
}

#[test]
fn a_record_of_more_bytes_than_are_allowed_is_bad_whatever_is_read_of_it() {
    let columns = [column("n", SqlType::Int), column("t", SqlType::Text)];
    let data = b"1,abc\r\n2,abcd\n3,\"\n\"\r\n4,\"\nb\"\n\n\n\n\n\n\n\n5,a\n6,a,b,c\n7,a,b\n8,abcd";
    for projection in [&[0usize, 1][..], &[]] {
        let mut decoder = CsvDecoder::new(CsvOptions::default(), &columns, projection, None).unwrap();
        decoder.set_longest_record(5);
        let decoded = decoder.decode(data, 0, 100).unwrap();
        let bad: Vec<(&[u8], &str)> = decoded.bad.iter().map(|bad| (&data[bad.start..bad.end], bad.reason.code().as_str())).collect();
        let expected: [(&[u8], &str); 5] =
            [(b"2,abcd", "54000"), (b"4,\"\nb\"", "54000"), (b"6,a,b,c", "54000"), (b"7,a,b", "22P04"), (b"8,abcd", "54000")];
        assert_eq!((decoded.batch.num_rows(), bad), (3, expected.to_vec()));
    }
}

#[test]
fn a_column_that_nobody_reads_is_not_parsed() {
    let columns = [column("n", SqlType::BigInt), column("at", SqlType::TIMESTAMP)];
    let mut decoder = CsvDecoder::new(CsvOptions::default(), &columns, &[0], None).unwrap();
    let decoded = decoder.decode(b"1,no time\n2,\n", 0, 100).unwrap();
    assert!(decoded.bad.is_empty());
    assert_eq!(decoded.batch.rows.column(0).as_primitive::<Int64Type>().values(), &[1, 2]);
}

#[test]
fn a_header_says_where_columns_are() {
    let columns = [column("a", SqlType::BigInt), column("b", SqlType::Text)];
    let options = CsvOptions { header: true, ..CsvOptions::default() };
    let mut decoder = CsvDecoder::new(options, &columns, &[0, 1], None).unwrap();
    let data = "\u{FEFF}B,\"x,y\",a\nq,1,7\n";
    let header = decoder.header_length(data.as_bytes()).unwrap();
    decoder.set_header(&data.as_bytes()[..header]).unwrap();
    let decoded = decoder.decode(data.as_bytes(), header, 100).unwrap();
    assert_eq!(decoded.batch.rows.column(0).as_primitive::<Int64Type>().values(), &[7]);
    assert_eq!(decoded.batch.rows.column(1).as_string::<i32>().value(0), "q");
    assert_eq!(decoder.set_header(b"b,c\n").unwrap_err().code().as_str(), "42703");
    // Of several columns of one name nobody can say which is meant, unless nobody asks for it.
    for header in ["a,b,a\n", "b,A,a,b\n", "A,b,\"A\"\n"] {
        let error = decoder.set_header(header.as_bytes()).unwrap_err();
        assert_eq!(error.code().as_str(), "42702", "{header}");
    }
    assert!(decoder.set_header(b"b,a\n").is_ok() && decoder.set_header(b"x,A,a,x,b\n").is_ok());
}

#[test]
fn a_header_behind_a_byte_order_mark_may_be_quoted_and_quoted_names_are_as_they_stand() {
    let columns = [column("id", SqlType::BigInt), column(" name ", SqlType::Text)];
    let options = CsvOptions { header: true, ..CsvOptions::default() };
    // The line end inside of the first name shows that its quote is seen.
    for (first, text) in
        [("id", "\u{FEFF}\"id\",\" name \"\n1,x\n"), ("id", "\u{FEFF} id , name \n1,x\n"), ("i\nd", "\u{FEFF}\"i\nd\",\" name \"\n1,x\n")]
    {
        let columns = [column(first, SqlType::BigInt), columns[1].clone()];
        let mut decoder = CsvDecoder::new(options.clone(), &columns, &[0, 1], None).unwrap();
        let header = decoder.header_length(text.as_bytes()).unwrap();
        decoder.set_header(&text.as_bytes()[..header]).unwrap();
        let decoded = decoder.decode(text.as_bytes(), header, 100).unwrap();
        assert!(decoded.bad.is_empty(), "{text}");
        assert_eq!(decoded.batch.rows.column(0).as_primitive::<Int64Type>().values(), &[1], "{text}");
        assert_eq!(decoded.batch.rows.column(1).as_string::<i32>().value(0), "x", "{text}");
    }
    // A quoted name is another than the one without its blanks.
    let mut decoder = CsvDecoder::new(options.clone(), &columns, &[0, 1], None).unwrap();
    assert!(decoder.set_header(b"name,id,\" name \"\n").is_ok());
    let mut decoder = CsvDecoder::new(options, &[column("id", SqlType::BigInt)], &[0], None).unwrap();
    assert_eq!(decoder.set_header(b"\" id\",x\n").unwrap_err().code().as_str(), "42703");
    assert_eq!(decoder.set_header(b" id,id\n").unwrap_err().code().as_str(), "42702");
}

#[test]
fn timestamps_are_rounded_to_the_columns_precision() {
    let columns = [column("at", SqlType::Timestamp { precision: 3 })];
    let mut decoder = CsvDecoder::new(CsvOptions::default(), &columns, &[0], None).unwrap();
    let decoded = decoder.decode(b"2000-01-01 00:00:00.0006\n", 0, 100).unwrap();
    let expected = TimestampMicrosecondArray::from(vec![946_684_800_001_000]);
    assert_eq!(*decoded.batch.rows.column(0).data_type(), DataType::Timestamp(TimeUnit::Microsecond, None));
    assert_eq!(decoded.batch.rows.column(0).as_primitive::<arrow::datatypes::TimestampMicrosecondType>(), &expected);
}
