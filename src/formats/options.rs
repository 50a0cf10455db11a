//! The options of a WITH clause: reading them one by one, and those that say how rows are written.
//!
//! # Invariants
//! - An option that nothing takes is refused, never ignored.

use std::collections::BTreeMap;
use std::time::Duration;

use arrow::datatypes::Schema;
use weir_catalog::{ChangelogMode, Column, Error, Result, SqlState};

use super::compression::Compression;
use super::csv::{CsvDecoder, CsvOptions};
use super::json::{JsonDecoder, JsonForm, JsonOptions};
use super::parquet::ParquetCompression;
use super::records::RecordDecoder;

/// The options of one WITH clause. Case counts for nothing in a name, and dots, dashes and underscores are one, so that Flink's names are known too.
#[derive(Debug)]
pub struct OptionReader<'a> {
    connector: &'a str,
    given: BTreeMap<String, Given<'a>>,
    /// What was asked for, for the hint that goes with an unknown name.
    known: Vec<&'static str>,
    /// Whether what is about reading is refused; the canonical names of that.
    only_writes: bool,
    for_reading: Vec<String>,
}

/// An option as written.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    pub name: &'a str,
    pub value: &'a str,
}

/// `22023`
pub fn invalid(message: impl Into<String>) -> Error {
    Error::new(SqlState::INVALID_PARAMETER_VALUE, message)
}

fn canonical(name: &str) -> String {
    name.to_ascii_lowercase().replace(['-', '_'], ".")
}

impl<'a> OptionReader<'a> {
    /// The options given to `connector`. `22023` where one is given twice in different spellings.
    pub fn new(connector: &'a str, options: &'a BTreeMap<String, String>) -> Result<OptionReader<'a>> {
        let mut given: BTreeMap<String, Given<'a>> = BTreeMap::new();
        for (name, value) in options {
            if let Some(earlier) = given.insert(canonical(name), Given { name, value }) {
                return Err(invalid(format!("option \"{}\" is given twice, also as \"{name}\"", earlier.name)));
            }
        }
        // It is what chose the reader of the others.
        given.remove("connector");
        Ok(OptionReader { connector, given, known: Vec::new(), only_writes: false, for_reading: Vec::new() })
    }

    /// As [`OptionReader::new`], for what is written and never read: options about reading are refused.
    pub fn for_sink(connector: &'a str, options: &'a BTreeMap<String, String>) -> Result<OptionReader<'a>> {
        Ok(OptionReader { only_writes: true, ..OptionReader::new(connector, options)? })
    }

    /// As [`OptionReader::take`], for an option that is about reading only.
    pub fn take_for_reading(&mut self, names: &[&'static str]) -> Result<Option<Given<'a>>> {
        if self.only_writes {
            self.for_reading.extend(names.iter().map(|name| canonical(name)));
            return Ok(None);
        }
        self.take(names)
    }

    /// Takes the option that has one of `names`, the first of which messages show. `22023` where several are given.
    pub fn take(&mut self, names: &[&'static str]) -> Result<Option<Given<'a>>> {
        self.known.extend(names.first());
        let mut found: Option<Given<'a>> = None;
        for name in names {
            if let Some(given) = self.given.remove(&canonical(name)) {
                if let Some(earlier) = found {
                    return Err(invalid(format!("options \"{}\" and \"{}\" mean the same", earlier.name, given.name)));
                }
                found = Some(given);
            }
        }
        Ok(found)
    }

    /// As [`OptionReader::take`], an error where none is given.
    pub fn require(&mut self, names: &[&'static str]) -> Result<Given<'a>> {
        let connector = self.connector;
        self.take(names)?.ok_or_else(|| invalid(format!("connector {connector} needs the option \"{}\"", names.first().unwrap_or(&"?"))))
    }

    /// Takes all options whose canonical name begins with `prefix`, by the rest of their name as it was written.
    pub fn take_prefixed(&mut self, prefix: &'static str) -> Vec<(String, Given<'a>)> {
        self.known.push(prefix);
        let names: Vec<String> = self.given.keys().filter(|name| name.starts_with(prefix)).cloned().collect();
        names.into_iter().filter_map(|name| self.given.remove(&name).map(|given| (given.name[prefix.len()..].to_string(), given))).collect()
    }

    /// `22023` for an option that was not taken.
    pub fn finish(mut self) -> Result<()> {
        match self.given.pop_first() {
            None => Ok(()),
            Some((name, given)) => {
                self.known.sort_unstable();
                let message = if self.for_reading.contains(&name) {
                    format!("option \"{}\" of connector {} is about reading, and a sink only writes", given.name, self.connector)
                } else {
                    format!("unknown option \"{}\" for connector {}", given.name, self.connector)
                };
                Err(invalid(message).with_hint(format!("The options are {}.", self.known.join(", "))))
            }
        }
    }
}

impl Given<'_> {
    /// `22023`: the value is not what it must be.
    pub fn malformed(&self, wanted: impl std::fmt::Display) -> Error {
        invalid(format!("invalid value for option \"{}\": \"{}\"", self.name, self.value)).with_detail(format!("It must be {wanted}."))
    }

    /// A truth value.
    pub fn boolean(&self) -> Result<bool> {
        match self.value.trim().to_ascii_lowercase().as_str() {
            "true" | "on" | "yes" | "1" => Ok(true),
            "false" | "off" | "no" | "0" => Ok(false),
            _ => Err(self.malformed("true or false")),
        }
    }

    /// A whole number in a range.
    pub fn number<T: std::str::FromStr + PartialOrd + std::fmt::Display>(&self, least: T, most: T) -> Result<T> {
        let number = self.value.trim().parse().ok().filter(|number| least <= *number && *number <= most);
        number.ok_or_else(|| self.malformed(format_args!("a number from {least} to {most}")))
    }

    /// A duration with a unit: `500 ms`, `1 s`, `2 min`, `1 h`, `7 d`.
    pub fn duration(&self) -> Result<Duration> {
        let text = self.value.trim().to_ascii_lowercase();
        let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
        let unit_us = match &text[unit_at..] {
            "us" | "micros" => 1.0,
            "ms" | "millis" | "milliseconds" => 1e3,
            "s" | "sec" | "second" | "seconds" => 1e6,
            "min" | "m" | "minute" | "minutes" => 60e6,
            "h" | "hour" | "hours" => 3600e6,
            "d" | "day" | "days" => 86_400e6,
            _ => return Err(self.malformed("a duration such as 500 ms, 1 s or 2 min")),
        };
        let number: Option<f64> = text[..unit_at].trim().parse().ok();
        match number.map(|number| number * unit_us) {
            Some(us) if (0.0..1e18).contains(&us) => Ok(Duration::from_micros(us as u64)),
            _ => Err(self.malformed("a duration such as 500 ms, 1 s or 2 min")),
        }
    }

    /// A size with a unit: `1000`, `64 kB`, `128 MiB`, `1 GB`; the units are powers of 1024.
    pub fn bytes(&self) -> Result<u64> {
        let text = self.value.trim().to_ascii_lowercase();
        let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
        let unit: u64 = match &text[unit_at..] {
            "" | "b" | "bytes" => 1,
            "k" | "kb" | "kib" => 1 << 10,
            "m" | "mb" | "mib" => 1 << 20,
            "g" | "gb" | "gib" => 1 << 30,
            "t" | "tb" | "tib" => 1 << 40,
            _ => return Err(self.malformed("a size such as 64 kB or 128 MiB")),
        };
        let number: Option<u64> = text[..unit_at].trim().parse().ok();
        number.and_then(|number| number.checked_mul(unit)).ok_or_else(|| self.malformed("a size such as 64 kB or 128 MiB"))
    }

    /// One ASCII character that is no line end; `\t` stands for a tab.
    fn character(&self) -> Result<u8> {
        match self.value.as_bytes() {
            b"\\t" => Ok(b'\t'),
            [byte] if byte.is_ascii() && !matches!(byte, b'\n' | b'\r' | 0) => Ok(*byte),
            _ => Err(self.malformed("one ASCII character")),
        }
    }
}

/// In what form rows are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    Csv {
        options: CsvOptions,
        /// The field that holds each row's kind.
        row_kind: Option<String>,
    },
    Json(JsonOptions),
    Parquet {
        row_kind: Option<String>,
    },
}

/// The options about format that a table or sink was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatOptions {
    pub format: Format,
    /// `None`: by the file's name when reading, none when writing.
    pub compression: Option<Compression>,
    pub parquet_compression: ParquetCompression,
    /// Flink's `ignore-parse-errors`.
    pub ignore_parse_errors: bool,
}

impl FormatOptions {
    /// Takes the options about format. `22023` for a value that is none.
    pub fn take(options: &mut OptionReader<'_>) -> Result<FormatOptions> {
        let format = options.require(&["format"])?;
        let name = format.value.trim().to_ascii_lowercase();
        let row_kind = options.take(&["row_kind"])?;
        let compression = options.take(&["compression"])?;
        let mut ignore_parse_errors = false;
        let row_kind_name = row_kind.map(|given| given.value.to_string());
        let (mut text_compression, mut parquet_compression) = (None, ParquetCompression::Zstd);
        let format = match name.as_str() {
            "csv" => {
                let mut csv = CsvOptions::default();
                if let Some(given) = options.take(&["header", "csv.header"])? {
                    csv.header = given.boolean()?;
                }
                if let Some(given) = options.take(&["delimiter", "csv.field-delimiter", "csv.delimiter"])? {
                    csv.delimiter = given.character()?;
                }
                let quote = options.take(&["quote", "csv.quote-character", "csv.quote"])?;
                if let Some(given) = quote {
                    csv.quote = if given.value.is_empty() { None } else { Some(given.character()?) };
                }
                if let Some(given) = options.take(&["csv.disable-quote-character"])?
                    && given.boolean()?
                {
                    if let Some(quote) = quote {
                        return Err(invalid(format!("option \"{}\" contradicts \"{}\"", given.name, quote.name)));
                    }
                    csv.quote = None;
                }
                if let Some(given) = options.take(&["escape", "csv.escape-character", "csv.escape"])? {
                    let escape = given.character()?;
                    csv.escape = Some(escape).filter(|escape| Some(*escape) != csv.quote);
                }
                if let Some(given) = options.take(&["null_string", "csv.null-literal", "null"])? {
                    csv.null = given.value.as_bytes().to_vec();
                }
                if let Some(given) = options.take_for_reading(&["csv.ignore-parse-errors"])? {
                    ignore_parse_errors = given.boolean()?;
                }
                if Some(csv.delimiter) == csv.quote || Some(csv.delimiter) == csv.escape {
                    return Err(invalid("the delimiter of a csv file can't be its quote or escape character too"));
                }
                if csv.null.contains(&csv.delimiter)
                    || csv.null.iter().any(|byte| Some(*byte) == csv.quote || matches!(byte, b'\n' | b'\r'))
                {
                    return Err(invalid("the null string of a csv file can't hold its delimiter, its quote or a line end"));
                }
                Format::Csv { options: csv, row_kind: row_kind_name }
            }
            "json" | "ndjson" | "jsonl" | "debezium-json" => {
                let debezium = name == "debezium-json";
                let mut fail_on_missing = false;
                if let Some(given) = options.take_for_reading(&["fail_on_missing_field", "json.fail-on-missing-field"])? {
                    fail_on_missing = given.boolean()?;
                }
                if let Some(given) = options.take_for_reading(&["json.ignore-parse-errors", "debezium-json.ignore-parse-errors"])? {
                    ignore_parse_errors = given.boolean()?;
                }
                // A change is found in its message with and without a schema around it.
                if let Some(given) = options.take(&["debezium-json.schema-include"])? {
                    given.boolean()?;
                }
                if let (true, Some(row_kind)) = (debezium, row_kind) {
                    return Err(invalid(format!(
                        "option \"{}\" contradicts format debezium-json, whose records say their kind",
                        row_kind.name
                    )));
                }
                let form = if debezium { JsonForm::Debezium } else { JsonForm::Rows { row_kind: row_kind_name } };
                Format::Json(JsonOptions { form, fail_on_missing })
            }
            "parquet" => Format::Parquet { row_kind: row_kind_name },
            _ => return Err(format.malformed("csv, json, debezium-json or parquet")),
        };
        if let Some(given) = compression {
            let value = given.value.trim().to_ascii_lowercase();
            if let Format::Parquet { .. } = format {
                parquet_compression = match value.as_str() {
                    "none" => ParquetCompression::None,
                    "snappy" => ParquetCompression::Snappy,
                    "zstd" => ParquetCompression::Zstd,
                    _ => return Err(given.malformed("none, snappy or zstd")),
                };
            } else {
                text_compression = match value.as_str() {
                    "auto" => None,
                    "none" => Some(Compression::None),
                    "gzip" => Some(Compression::Gzip),
                    "zstd" => Some(Compression::Zstd),
                    _ => return Err(given.malformed("auto, none, gzip or zstd")),
                };
            }
        }
        Ok(FormatOptions { format, compression: text_compression, parquet_compression, ignore_parse_errors })
    }

    /// What the rows of a table in this format do to its content.
    pub fn changelog(&self) -> ChangelogMode {
        match &self.format {
            Format::Csv { row_kind: None, .. } | Format::Parquet { row_kind: None } => ChangelogMode::Append,
            Format::Json(JsonOptions { form: JsonForm::Rows { row_kind: None }, .. }) => ChangelogMode::Append,
            _ => ChangelogMode::Retract,
        }
    }

    /// A decoder for a text format, which fills `projection` of a table's columns; `None` for Parquet.
    pub fn decoder(&self, columns: &[Column], projection: &[usize]) -> Result<Option<Box<dyn RecordDecoder>>> {
        Ok(match &self.format {
            Format::Csv { options, row_kind } => Some(Box::new(CsvDecoder::new(options.clone(), columns, projection, row_kind.clone())?)),
            Format::Json(options) => Some(Box::new(JsonDecoder::new(options, columns, projection)?)),
            Format::Parquet { .. } => None,
        })
    }

    /// The name of the field that holds each row's kind.
    pub fn row_kind(&self) -> Option<&str> {
        match &self.format {
            Format::Csv { row_kind, .. } | Format::Parquet { row_kind } => row_kind.as_deref(),
            Format::Json(JsonOptions { form: JsonForm::Rows { row_kind }, .. }) => row_kind.as_deref(),
            Format::Json(_) => None,
        }
    }

    /// `42P16` for columns that clash with the field of the row kind.
    pub fn check_names<'a>(&self, mut names: impl Iterator<Item = &'a str>) -> Result<()> {
        match self.row_kind().filter(|row_kind| names.any(|name| name == *row_kind)) {
            Some(name) => Err(Error::new(
                SqlState::INVALID_TABLE_DEFINITION,
                format!("column \"{name}\" has the name of the field that holds the row kind"),
            )),
            None => Ok(()),
        }
    }

    /// Checks the columns of a sink: as [`FormatOptions::check_columns`].
    pub fn check_schema(&self, schema: &Schema) -> Result<()> {
        if let Format::Csv { .. } = self.format {
            check_flat(schema.fields().iter().map(|field| (field.name().as_str(), field.data_type().is_nested())))?;
        }
        self.check_names(schema.fields().iter().map(|field| field.name().as_str()))
    }

    /// Checks a table's columns: as [`FormatOptions::check_names`], and `0A000` for types that the format can't hold.
    pub fn check_columns(&self, columns: &[Column]) -> Result<()> {
        if let Format::Csv { .. } = self.format {
            check_flat(columns.iter().map(|column| (column.name.as_str(), column.ty.is_nested())))?;
        }
        self.check_names(columns.iter().map(|column| column.name.as_str()))
    }
}

/// `0A000` where one of the named columns is a row or an array, which a line of fields can't hold.
fn check_flat<'a>(mut columns: impl Iterator<Item = (&'a str, bool)>) -> Result<()> {
    match columns.find(|(_, is_nested)| *is_nested) {
        Some((name, _)) => Err(Error::unsupported(format!("column \"{name}\" is a row or an array, which format csv does not hold"))
            .with_hint("Use format json or parquet, or make it TEXT.")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(pairs: &[(&str, &str)]) -> Result<FormatOptions> {
        let options: BTreeMap<String, String> = pairs.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect();
        let mut reader = OptionReader::new("file", &options)?;
        let format = FormatOptions::take(&mut reader)?;
        reader.finish()?;
        Ok(format)
    }

    #[test]
    fn names_of_flink_are_known() {
        let ours = format(&[("format", "csv"), ("delimiter", "\\t"), ("quote", "'"), ("escape", "\\"), ("null_string", "n/a")]).unwrap();
        let flinks = format(&[
            ("format", "csv"),
            ("csv.field-delimiter", "\\t"),
            ("csv.quote-character", "'"),
            ("csv.escape-character", "\\"),
            ("csv.null-literal", "n/a"),
        ]);
        assert_eq!(ours, flinks.unwrap());
        assert_eq!(format(&[("format", "debezium-json")]).unwrap().changelog(), ChangelogMode::Retract);
        assert_eq!(format(&[("format", "json")]).unwrap().changelog(), ChangelogMode::Append);
    }

    #[test]
    fn what_nothing_takes_is_refused() {
        for pairs in [
            &[("format", "csv"), ("json.fail-on-missing-field", "true")][..],
            &[("format", "xml")],
            &[("header", "true")],
            &[("format", "csv"), ("delimiter", "ab")],
            &[("format", "csv"), ("delimiter", "\"")],
            &[("format", "csv"), ("delimiter", ";"), ("csv.field-delimiter", ";")],
            &[("format", "json"), ("compression", "lzma")],
            &[("format", "debezium-json"), ("row_kind", "kind")],
        ] {
            let error = format(pairs).expect_err(&format!("{pairs:?}"));
            assert_eq!(error.code().as_str(), "22023", "{pairs:?}: {error:?}");
        }
    }

    #[test]
    fn durations_and_sizes_have_units() {
        let given = |value| Given { name: "x", value };
        assert_eq!(given("1 s").duration().unwrap(), Duration::from_secs(1));
        assert_eq!(given("250ms").duration().unwrap(), Duration::from_millis(250));
        assert_eq!(given("128 MiB").bytes().unwrap(), 128 << 20);
        assert!(given("1").duration().is_err() && given("-1 s").duration().is_err() && given("x").bytes().is_err());
    }
}
