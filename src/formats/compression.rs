//! Compressed files: gzip and Zstandard, each as one stream of perhaps several members.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weir_catalog::{Error, Result};

/// How a text file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// What the name of a file says.
    pub fn of_path(path: &Path) -> Compression {
        match path.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase).as_deref() {
            Some("gz" | "gzip") => Compression::Gzip,
            Some("zst" | "zstd") => Compression::Zstd,
            _ => Compression::None,
        }
    }

    /// What the name of a file ends with.
    pub fn extension(self) -> &'static str {
        match self {
            Compression::None => "",
            Compression::Gzip => ".gz",
            Compression::Zstd => ".zst",
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "plain",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        }
    }

    /// The plain content of `file`. Where its bytes are no such stream, reading gives an error that holds [`Damaged`]; one of `file` itself comes out as it was.
    pub fn reader(self, file: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
        let input_failed = Arc::new(AtomicBool::new(false));
        let input = Watched { input: file, failed: input_failed.clone() };
        Ok(match self {
            Compression::None => Box::new(input.input),
            Compression::Gzip => Box::new(Unpacked { decoder: flate2::read::MultiGzDecoder::new(input), input_failed }),
            Compression::Zstd => Box::new(Unpacked { decoder: zstd::stream::read::Decoder::new(input)?, input_failed }),
        })
    }
}

/// What is wrong with a compressed file: its bytes could be read, and are not what a compressor writes.
#[derive(Debug)]
pub struct Damaged(String);

impl Damaged {
    /// What `error` says of a compressed file, if that is what it says.
    pub fn of(error: &io::Error) -> Option<&Damaged> {
        error.get_ref()?.downcast_ref()
    }
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Damaged {}

/// A file below a decompressor, which remembers whether reading it failed: the decompressor's own errors look like those of its input.
struct Watched<R> {
    input: R,
    failed: Arc<AtomicBool>,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer);
        if read.as_ref().is_err_and(|error| error.kind() != ErrorKind::Interrupted) {
            self.failed.store(true, Ordering::Relaxed);
        }
        read
    }
}

/// A decompressor whose own errors are [`Damaged`].
struct Unpacked<R> {
    decoder: R,
    input_failed: Arc<AtomicBool>,
}

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buffer).map_err(|error| {
            // What is interrupted is tried again, and memory that there is not says nothing of the file.
            let is_passing = matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::OutOfMemory);
            if is_passing || self.input_failed.load(Ordering::Relaxed) {
                error
            } else {
                io::Error::new(ErrorKind::InvalidData, Damaged(error.to_string()))
            }
        })
    }
}

/// Compresses what is written to it.
pub enum Compressor {
    None(Vec<u8>),
    Gzip(flate2::write::GzEncoder<Vec<u8>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl Compressor {
    /// Begins a stream.
    pub fn new(compression: Compression) -> Result<Compressor> {
        Ok(match compression {
            Compression::None => Compressor::None(Vec::new()),
            Compression::Gzip => Compressor::Gzip(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default())),
            Compression::Zstd => Compressor::Zstd(zstd::stream::write::Encoder::new(Vec::new(), 0).map_err(failed)?),
        })
    }

    /// Adds plain bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Compressor::None(out) => out.extend_from_slice(bytes),
            Compressor::Gzip(encoder) => encoder.write_all(bytes).map_err(failed)?,
            Compressor::Zstd(encoder) => encoder.write_all(bytes).map_err(failed)?,
        }
        Ok(())
    }

    /// Whether what is written is ready as it is.
    pub fn is_plain(&self) -> bool {
        matches!(self, Compressor::None(_))
    }

    /// How many compressed bytes are ready.
    pub fn ready_bytes(&self) -> usize {
        match self {
            Compressor::None(out) => out.len(),
            Compressor::Gzip(encoder) => encoder.get_ref().len(),
            Compressor::Zstd(encoder) => encoder.get_ref().len(),
        }
    }

    /// About how many bytes it holds in memory: what is ready, and what the compression itself needs at its usual level.
    pub fn memory_bytes(&self) -> usize {
        /// A window of 32 KiB, its hash chains and what waits for its block: what zlib's manual says of its default.
        const GZIP: usize = 256 << 10;
        /// A window of 2 MiB and its tables, of which small streams need less.
        const ZSTD: usize = 1 << 20;
        match self {
            Compressor::None(out) => out.capacity(),
            Compressor::Gzip(encoder) => GZIP + encoder.get_ref().capacity(),
            Compressor::Zstd(encoder) => ZSTD + encoder.get_ref().capacity(),
        }
    }

    /// The compressed bytes that are ready and have not been taken yet.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        match self {
            Compressor::None(out) => std::mem::take(out),
            Compressor::Gzip(encoder) => std::mem::take(encoder.get_mut()),
            Compressor::Zstd(encoder) => std::mem::take(encoder.get_mut()),
        }
    }

    /// Ends the stream. Returns what is left.
    pub fn finish(self) -> Result<Vec<u8>> {
        match self {
            Compressor::None(out) => Ok(out),
            Compressor::Gzip(encoder) => encoder.finish().map_err(failed),
            Compressor::Zstd(encoder) => encoder.finish().map_err(failed),
        }
    }
}

fn failed(error: io::Error) -> Error {
    Error::io("compress", &error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives its bytes, then an error of the connection.
    struct Torn(io::Cursor<Vec<u8>>);

    impl Read for Torn {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err(io::Error::new(ErrorKind::UnexpectedEof, "the connection was torn")),
                read => Ok(read),
            }
        }
    }

    fn packed(compression: Compression) -> Vec<u8> {
        let mut compressor = Compressor::new(compression).unwrap();
        let plain: String = (0..2000).map(|number| format!("{},{number}\n", number * 7919 % 10_007)).collect();
        compressor.write(plain.as_bytes()).unwrap();
        compressor.finish().unwrap()
    }

    fn error_of(compression: Compression, input: impl Read + Send + 'static) -> Option<io::Error> {
        compression.reader(input).unwrap().read_to_end(&mut Vec::new()).err()
    }

    #[test]
    fn a_file_that_is_damaged_is_told_from_one_that_can_not_be_read() {
        for compression in [Compression::Gzip, Compression::Zstd] {
            let whole = packed(compression);
            assert!(error_of(compression, io::Cursor::new(whole.clone())).is_none());
            for length in [1, 5, 15, whole.len() / 2, whole.len() - 1] {
                let cut = whole[..length].to_vec();
                let error = error_of(compression, io::Cursor::new(cut.clone())).unwrap();
                assert!(Damaged::of(&error).is_some(), "{compression:?}, {length} bytes: {error:?}");
                let error = error_of(compression, Torn(io::Cursor::new(cut))).unwrap();
                assert!(Damaged::of(&error).is_none() && error.to_string().contains("torn"), "{compression:?}, {length} bytes: {error:?}");
            }
            for at in [0, 3, whole.len() / 2] {
                let mut flipped = whole.clone();
                flipped[at] ^= 0x55;
                // A byte inside of zstd's blocks may give other content: frames without a checksum have nothing to tell it by.
                if let Some(error) = error_of(compression, io::Cursor::new(flipped)) {
                    assert!(Damaged::of(&error).is_some(), "{compression:?}, byte {at}: {error:?}");
                } else {
                    assert!(at > 3 && compression == Compression::Zstd, "{compression:?}, byte {at}");
                }
            }
        }
    }
}
