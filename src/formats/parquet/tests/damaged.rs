//! Files that something has happened to: each is read, or refused as bad data, and there is no panic and no fault of weir's.

use super::*;
use crate::seams::random::Random;

/// A file with pages of all kinds: plain ones and dictionaries, several row groups, lists, rows, NULLs.
fn whole_file(compression: Compression) -> Vec<u8> {
    let kinds = kinds();
    let columns: Vec<(&str, ArrayRef)> = kinds.iter().map(|(name, array, _, _)| (*name, array.clone())).collect();
    let properties = WriterProperties::builder().set_compression(compression).build();
    let (_folder, path) = file_of(&[columns.clone(), columns], Some(properties));
    std::fs::read(path).unwrap()
}

/// Reads all of the file, as a table without columns does, and all of it from memory too, as of an object. The number of rows that it has.
fn read_all(path: &Path) -> Result<usize> {
    let bytes = std::fs::read(path).unwrap();
    let parts = FileParts::new(bytes.len() as u64, vec![(0, bytes.into())]);
    let (file, of_parts) = (ParquetFile::open(path), ParquetFile::of_parts(path, &parts));
    assert_eq!(file.is_ok(), of_parts.is_ok(), "{:?} {:?}", file.err(), of_parts.err());
    let file = file?;
    let (columns, _) = file.columns();
    let projection: Vec<usize> = (0..columns.len()).collect();
    let decoder = ParquetDecoder::new(&columns, &projection, None)?;
    let mut count = 0;
    for (group, rows) in file.row_groups().collect::<Vec<_>>().into_iter().enumerate() {
        let held = file.row_group_bytes(group);
        assert!(held as u64 <= file.bytes, "a row group of {held} bytes");
        for range in decoder.ranges(path, &file, group)? {
            assert!(range.end <= file.bytes, "{range:?}");
        }
        for parts in [None, Some(&parts)] {
            let mut reader = decoder.rows(path, &file, parts, group, 0, rows, 1000)?;
            while let Some(batch) = reader.next_batch()? {
                count += usize::from(parts.is_none()) * batch.num_rows();
            }
        }
    }
    Ok(count)
}

#[test]
fn every_damaged_file_is_read_or_bad_data() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.parquet");
    let mut random = Random::seeded(7);
    let mut refused = 0;
    for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(ZstdLevel::default())] {
        let whole = whole_file(compression);
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(read_all(&path).unwrap(), 6, "{compression:?}");
        let footer = u32::from_le_bytes(whole[whole.len() - 8..whole.len() - 4].try_into().unwrap()) as usize + 8;
        for round in 0..300 {
            let mut bytes = whole.clone();
            for _ in 0..[1, 2, 5][random.below(3) as usize] {
                // More often in the footer, which says where everything is.
                let from = if random.below(10) < 6 { whole.len() - footer } else { 0 };
                let at = from + random.below((whole.len() - from) as u64) as usize;
                bytes[at] = random.below(256) as u8;
            }
            if random.below(7) == 0 {
                bytes.truncate(random.below(whole.len() as u64) as usize);
            }
            std::fs::write(&path, &bytes).unwrap();
            let Err(error) = read_all(&path) else { continue };
            refused += 1;
            // A value may have become one that is bad for itself: a text with a zero byte, a time that is too far away. Two names may have become one.
            let code = error.code().as_str();
            assert!(["22000", "22003", "22008", "22021", "42702"].contains(&code), "{compression:?}, round {round}: {error:?}");
            let named = format!("{} {}", error.message(), error.context().unwrap_or_default());
            assert!(named.contains("damaged.parquet"), "{compression:?}, round {round}: {error:?}");
        }
    }
    assert!(refused > 200, "only {refused} files were refused");
}

#[test]
fn a_schema_of_arrows_that_is_damaged_is_refused_with_the_file() {
    let whole = whole_file(Compression::UNCOMPRESSED);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("schema.parquet");
    // It stands in the footer as base64. Whoever reads what is decoded panics at much of it.
    let key = whole.windows(12).rposition(|window| window == b"ARROW:schema").unwrap();
    let mut panics = 0;
    for at in (key + 20..key + 600).step_by(3) {
        let mut bytes = whole.clone();
        bytes[at] = if bytes[at] == b'z' { b'Q' } else { b'z' };
        std::fs::write(&path, &bytes).unwrap();
        if let Err(error) = read_all(&path) {
            assert!(error.code().as_str().starts_with("22"), "byte {at}: {error:?}");
            panics += usize::from(error.detail().is_some_and(|detail| detail.starts_with("Its content is damaged")));
        }
    }
    assert!(panics > 0, "no panic was met");
}
