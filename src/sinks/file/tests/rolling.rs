//! How exactly a file ends at its size.

use super::*;

/// Numbers that no compression makes much of.
fn tangled(count: i64) -> Batch {
    let numbers = (0..count).map(|number| (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64));
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
    Batch::insert(RecordBatch::try_from_iter([("n", column)]).unwrap())
}

/// The files of a sink that was given `batches`, in the order in which they were written.
fn written(options: &[(&str, &str)], batches: &[Batch]) -> (tempfile::TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let committer = Committer::new(LocalFiles::shared());
    let (mut operator, _commits) = open(folder.path(), options, 0xa, None, &committer);
    for batch in batches {
        operator.process(0, batch.clone(), &mut NoOutput).unwrap();
    }
    operator.on_barrier(&barrier(1, true), &mut NoOutput).unwrap();
    let mut files: Vec<PathBuf> = names(folder.path()).0.iter().map(|name| folder.path().join(name)).collect();
    files.sort();
    (folder, files)
}

#[test]
fn a_plain_text_ends_with_the_first_row_that_reaches_the_size() {
    for (options, header) in [
        (&[("format", "csv"), ("roll_size", "1000")][..], 0),
        (&[("format", "csv"), ("header", "true"), ("roll_size", "1000")], 1),
        (&[("format", "json"), ("roll_size", "1000")], 0),
        // Each row is longer than that.
        (&[("format", "csv"), ("roll_size", "1")], 0),
    ] {
        let batches = [tangled(700), tangled(1), tangled(0), tangled(900)];
        let (_folder, files) = written(options, &batches);
        let size: usize = options.last().unwrap().1.parse().unwrap();
        let mut rows = 0;
        for (at, path) in files.iter().enumerate() {
            let text = std::fs::read_to_string(path).unwrap();
            rows += text.lines().count() - header;
            let last = text.lines().last().unwrap().len() + 1;
            assert!(text.len() - last < size, "{options:?}: file {at} goes on behind {size} bytes");
            assert!(text.len() >= size || at + 1 == files.len(), "{options:?}: file {at} ends at {} bytes", text.len());
            assert!(header == 0 || text.starts_with("n\n"), "{options:?}: file {at} has no header");
        }
        assert_eq!(rows, 1601, "{options:?}");
    }
}

#[test]
fn a_compressed_text_goes_on_by_what_the_compression_holds_back() {
    for compression in ["gzip", "zstd"] {
        let options = [("format", "csv"), ("compression", compression), ("roll_size", "300 kB")];
        let (_folder, files) = written(&options, &[tangled(200_000), tangled(10)]);
        assert!(files.len() >= 4, "{compression}: {} files", files.len());
        for path in &files[..files.len() - 1] {
            let size = std::fs::metadata(path).unwrap().len();
            assert!((300 << 10..(300 + 256) << 10).contains(&size), "{compression}: {size} bytes");
        }
    }
}

#[test]
fn a_parquet_file_counts_its_row_group_under_way() {
    let options = [("format", "parquet"), ("roll_size", "1 MiB")];
    let (_folder, files) = written(&options, &[tangled(1_000_000), tangled(10)]);
    assert!(files.len() >= 8, "{} files", files.len());
    let mut rows = 0;
    for (at, path) in files.iter().enumerate() {
        let size = std::fs::metadata(path).unwrap().len();
        rows += crate::formats::parquet::ParquetFile::open(path).unwrap().row_groups().sum::<u64>();
        assert!(size < (1 << 20) + (64 << 10), "{size} bytes");
        assert!(size >= 1 << 19 || at + 1 == files.len(), "{size} bytes");
    }
    assert_eq!(rows, 1_000_010);
}
