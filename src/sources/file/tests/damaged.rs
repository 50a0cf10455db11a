//! Files that are not what they should be: each is an error of the data, which names the file, and never an outage, which would be waited for.

use super::*;

/// What reading the whole table says.
fn error_of(table: &ConnectorTable) -> Error {
    let mut sources = FileSource::open_all(table, &[0, 1], 1, None, &SourceContext::default()).unwrap();
    loop {
        match sources[0].poll(100, 0) {
            Err(error) => return error,
            Ok(SourceEvent::End) => panic!("nothing was wrong"),
            Ok(_) => {}
        }
    }
}

#[test]
fn a_damaged_compressed_file_is_bad_data_whatever_is_done_with_bad_records() {
    let folder = tempfile::tempdir().unwrap();
    let text: String = (0..3000).map(|number| format!("{number},{}\n", number * 7919 % 10_007)).collect();
    for (extension, name) in [("gz", "gzip"), ("zst", "zstd")] {
        let whole = match extension {
            "gz" => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                std::io::Write::write_all(&mut encoder, text.as_bytes()).unwrap();
                encoder.finish().unwrap()
            }
            _ => zstd::encode_all(text.as_bytes(), 1).unwrap(),
        };
        let path = folder.path().join(format!("d.csv.{extension}"));
        let mut flipped = whole.clone();
        flipped[1] ^= 0xff;
        for (damage, bytes) in [("cut", whole[..15].to_vec()), ("cut", whole[..whole.len() - 3].to_vec()), ("flipped", flipped)] {
            std::fs::write(&path, bytes).unwrap();
            for policy in ["fail", "skip"] {
                let error = error_of(&table(&path, &[("format", "csv"), ("bad_records", policy)]));
                let (code, message) = (error.code().as_str(), error.message());
                assert_eq!((code, message), ("22000", format!("{name} file \"{}\" can't be read", path.display()).as_str()), "{damage}");
                assert!(error.detail().is_some_and(|detail| detail.contains("damaged behind byte")), "{error:?}");
                assert!(error.context().is_some_and(|context| context.contains(", byte ")), "{error:?}");
            }
        }
    }
}

#[test]
fn a_file_that_is_cut_or_overwritten_while_it_is_read_has_changed_whatever_is_done_with_bad_records() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    // More than two pieces.
    let whole = "1,text of a row\n".repeat(600 << 10);
    for policy in ["fail", "skip"] {
        for now in [whole[..5 << 20].to_string(), "1,2,3\n".repeat(1500 << 10)] {
            std::fs::write(&path, &whole).unwrap();
            let table = table(&path, &[("format", "csv"), ("bad_records", policy)]);
            let mut sources = FileSource::open_all(&table, &[0, 1], 1, None, &SourceContext::default()).unwrap();
            assert!(matches!(sources[0].poll(100, 0).unwrap(), SourceEvent::Batch(_)));
            // In place: its inode stays.
            std::fs::write(&path, &now).unwrap();
            let error = loop {
                match sources[0].poll(10_000, 0) {
                    Err(error) => break error,
                    Ok(SourceEvent::End) => panic!("nothing was noticed"),
                    Ok(_) => {}
                }
            };
            assert_eq!((error.code().as_str(), error.message().ends_with("has changed")), ("55000", true), "{policy}: {error:?}");
        }
    }
}
