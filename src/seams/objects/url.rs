//! Where objects are: `s3://bucket/prefix`.

use std::fmt;
use std::path::Path;

use weir_catalog::{Error, Result, SqlState};

/// A bucket, and what the keys in it begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectUrl {
    pub bucket: String,
    /// Without a slash at either end; empty for the whole bucket.
    pub prefix: String,
}

impl ObjectUrl {
    /// Whether `text` is meant to be one.
    pub fn is_url(text: &str) -> bool {
        text.starts_with("s3://") || text.starts_with("s3a://")
    }

    /// Reads `s3://bucket/prefix`. Errors: `22023` for anything else.
    pub fn parse(text: &str) -> Result<ObjectUrl> {
        let wrong = || {
            Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("\"{text}\" is not the place of objects"))
                .with_hint("It is written s3://bucket/prefix.")
        };
        let rest = text.strip_prefix("s3://").or_else(|| text.strip_prefix("s3a://")).ok_or_else(wrong)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let fits = |character: char| character.is_ascii_alphanumeric() || matches!(character, '.' | '-' | '_');
        if bucket.is_empty() || !bucket.chars().all(fits) {
            return Err(wrong());
        }
        let prefix = prefix.trim_matches('/');
        if prefix.split('/').any(|part| matches!(part, "." | "..")) || prefix.contains("//") {
            return Err(wrong());
        }
        Ok(ObjectUrl { bucket: bucket.to_string(), prefix: prefix.to_string() })
    }

    /// Where the object at `path`, which is a URL, is: its bucket, and its key there. `None` where it is a file's path.
    pub fn split(path: &Path) -> Option<(&str, &str)> {
        path.to_str()?.strip_prefix("s3://")?.split_once('/')
    }

    /// Whether this is `other`, or in it.
    pub fn is_below(&self, other: &ObjectUrl) -> bool {
        let rest = self.prefix.strip_prefix(&other.prefix);
        self.bucket == other.bucket && rest.is_some_and(|rest| rest.is_empty() || other.prefix.is_empty() || rest.starts_with('/'))
    }

    /// The key of what is called `name` below the prefix.
    pub fn key(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_string() } else { format!("{}/{name}", self.prefix) }
    }
}

impl fmt::Display for ObjectUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "s3://{}", self.bucket)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(formatter, "/{}", self.prefix) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_and_shown() {
        let url = ObjectUrl::parse("s3://data/weir/a/").unwrap();
        assert_eq!((url.bucket.as_str(), url.prefix.as_str()), ("data", "weir/a"));
        assert_eq!((url.to_string().as_str(), url.key("files/x").as_str()), ("s3://data/weir/a", "weir/a/files/x"));
        let whole = ObjectUrl::parse("s3a://data").unwrap();
        assert_eq!((whole.to_string().as_str(), whole.key("x").as_str()), ("s3://data", "x"));
        assert_eq!(ObjectUrl::split(Path::new("s3://data/a/b.csv")), Some(("data", "a/b.csv")));
        assert_eq!(ObjectUrl::split(Path::new("/data/a/b.csv")), None);
        for wrong in ["s3://", "s3:///a", "s3://a b/c", "s3://a/../b", "s3://a/b//c", "/local", "gs://a/b"] {
            assert_eq!(ObjectUrl::parse(wrong).unwrap_err().code().as_str(), "22023", "{wrong}");
        }
    }
}
