//! Compressed files: gzip and Zstandard, each as one stream of perhaps several members.

use std::io::{self, Read, Write};
use std::path::Path;

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

    /// The plain content of `file`.
    pub fn reader(self, file: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
        Ok(match self {
            Compression::None => Box::new(file),
            Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(file)),
            Compression::Zstd => Box::new(zstd::stream::read::Decoder::new(file)?),
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
