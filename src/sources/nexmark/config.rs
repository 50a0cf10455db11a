//! The options and columns of a `nexmark` table.
//!
//! # Invariants
//! Two configurations that are equal but for `splits`, the wall-clock rate and `keep-alive` make the same events.

use std::collections::BTreeMap;

use arrow::compute::kernels::cast_utils::string_to_timestamp_nanos;
use weir_catalog::{Column, Error, Result, SqlState};

use super::fields::{self, Table, TableColumn};

/// The first event's time where `base.time` does not say: 2015-07-15 00:00:00, as in Apache Beam's Nexmark suite. Milliseconds since 1970.
const DEFAULT_BASE_TIME_MS: i64 = 1_436_918_400_000;

/// Every option, in the spelling that messages show. Dots, dashes and underscores are interchangeable.
const OPTIONS: &[&str] = &[
    "table",
    "seed",
    "splits",
    "events.num",
    "events.rate",
    "first-event.rate",
    "next-event.rate",
    "max-emit-speed",
    "keep-alive",
    "base.time",
    "person.proportion",
    "auction.proportion",
    "bid.proportion",
    "person.avg-size",
    "auction.avg-size",
    "bid.avg-size",
    "bid.hot-ratio.auctions",
    "bid.hot-ratio.bidders",
    "auction.hot-ratio.sellers",
    "in-flight.auctions",
    "active.people",
];

/// What a `nexmark` table generates.
///
/// | option | means | default |
/// | --- | --- | --- |
/// | `table` | `person`, `auction` or `bid`: a flat table of just those events | all events, nested |
/// | `seed` | which stream: every event is a function of the seed and its number | 0 |
/// | `events.num` | the number of events over all three kinds; 0: no end | 0 |
/// | `splits` | into how many parts the events are dealt | the job's parallelism |
/// | `events.rate` | events per second of wall time; 0: as fast as possible | 0 |
/// | `first-event.rate` | events per second of event time | `next-event.rate`, else 10000 |
/// | `next-event.rate` | the wall-clock rate, unless `events.rate` or `max-emit-speed` says | 0 |
/// | `max-emit-speed` | `true`: as fast as possible; `false`: as fast as event time goes, where no other option gives a rate | |
/// | `keep-alive` | after `events.num` events: wait instead of ending | false |
/// | `base.time` | the first event's time: a timestamp, or milliseconds since 1970 | 2015-07-15 |
/// | `person.`, `auction.`, `bid.proportion` | how many of each follow one another | 1, 3, 46 |
/// | `person.`, `auction.`, `bid.avg-size` | the mean size of an event in bytes, reached with `extra` | 200, 500, 100 |
/// | `bid.hot-ratio.auctions`, `bid.hot-ratio.bidders` | one bid in so many is not for a hot auction, by a hot bidder | 2, 4 |
/// | `auction.hot-ratio.sellers` | one auction in so many is not of a hot seller | 4 |
/// | `in-flight.auctions` | how many of the last auctions take bids | 100 |
/// | `active.people` | how many of the last people sell and bid | 1000 |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NexmarkConfig {
    /// `None`: all events, nested.
    pub(super) table: Option<Table>,
    pub(super) seed: u64,
    /// `None`: no end.
    pub(super) events: Option<u64>,
    splits: Option<usize>,
    /// Events per second of wall time; `None`: as fast as possible.
    pub(super) wall_rate: Option<u64>,
    /// Events per second of event time.
    pub(super) event_rate: u64,
    pub(super) keep_alive: bool,
    pub(super) base_time_ms: i64,
    pub(super) persons: u64,
    pub(super) auctions: u64,
    pub(super) bids: u64,
    pub(super) person_bytes: usize,
    pub(super) auction_bytes: usize,
    pub(super) bid_bytes: usize,
    pub(super) hot_auction_ratio: u64,
    pub(super) hot_bidder_ratio: u64,
    pub(super) hot_seller_ratio: u64,
    pub(super) in_flight_auctions: u64,
    pub(super) active_people: u64,
}

impl Default for NexmarkConfig {
    fn default() -> NexmarkConfig {
        NexmarkConfig {
            table: None,
            seed: 0,
            events: None,
            splits: None,
            wall_rate: None,
            event_rate: 10_000,
            keep_alive: false,
            base_time_ms: DEFAULT_BASE_TIME_MS,
            persons: 1,
            auctions: 3,
            bids: 46,
            person_bytes: 200,
            auction_bytes: 500,
            bid_bytes: 100,
            hot_auction_ratio: 2,
            hot_bidder_ratio: 4,
            hot_seller_ratio: 4,
            in_flight_auctions: 100,
            active_people: 1000,
        }
    }
}

impl NexmarkConfig {
    /// The configuration that a table's WITH clause asks for. `22023` for an option that is unknown, given twice, malformed or out of range.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<NexmarkConfig> {
        const RATE: u64 = 1_000_000_000;
        const PROPORTION: u64 = 1_000_000;
        const PEOPLE: u64 = 1_000_000_000;

        let mut config = NexmarkConfig::default();
        let mut seen: BTreeMap<String, &str> = BTreeMap::new();
        let (mut events_rate, mut first_rate, mut next_rate, mut max_speed) = (None, None, None, None);
        for (name, value) in options {
            let canonical = canonical_name(name);
            if let Some(earlier) = seen.insert(canonical.clone(), name) {
                return Err(invalid(format!("option \"{earlier}\" is given twice, also as \"{name}\"")));
            }
            let option = Given { name, value: value.trim() };
            match canonical.as_str() {
                "connector" => option.must_be("nexmark")?,
                "table" => config.table = Some(option.table()?),
                "seed" => config.seed = option.number(0, u64::MAX)?,
                "splits" => config.splits = Some(option.number(1, 65_536)? as usize),
                "events.num" => config.events = Some(option.number(0, i64::MAX as u64)?).filter(|events| *events > 0),
                "events.rate" => events_rate = Some(option.number(0, RATE)?),
                "first.event.rate" => first_rate = Some(option.number(1, RATE)?),
                "next.event.rate" => next_rate = Some(option.number(0, RATE)?),
                "max.emit.speed" => max_speed = Some(option.boolean()?),
                "keep.alive" => config.keep_alive = option.boolean()?,
                "base.time" => config.base_time_ms = option.time_ms()?,
                "person.proportion" => config.persons = option.number(1, PROPORTION)?,
                "auction.proportion" => config.auctions = option.number(1, PROPORTION)?,
                "bid.proportion" => config.bids = option.number(1, PROPORTION)?,
                "person.avg.size" => config.person_bytes = option.bytes()?,
                "auction.avg.size" => config.auction_bytes = option.bytes()?,
                "bid.avg.size" => config.bid_bytes = option.bytes()?,
                "bid.hot.ratio.auctions" => config.hot_auction_ratio = option.number(1, PROPORTION)?,
                "bid.hot.ratio.bidders" => config.hot_bidder_ratio = option.number(1, PROPORTION)?,
                "auction.hot.ratio.sellers" => config.hot_seller_ratio = option.number(1, PROPORTION)?,
                "in.flight.auctions" => config.in_flight_auctions = option.number(1, PEOPLE)?,
                "active.people" => config.active_people = option.number(1, PEOPLE)?,
                _ => {
                    return Err(invalid(format!("unknown option \"{name}\" for connector nexmark"))
                        .with_hint(format!("The options are {}.", OPTIONS.join(", "))));
                }
            }
        }

        let positive = |rate: Option<u64>| rate.filter(|rate| *rate > 0);
        config.event_rate = first_rate.or(positive(next_rate)).unwrap_or(config.event_rate);
        config.wall_rate = match (events_rate, max_speed) {
            (Some(rate), Some(true)) if rate > 0 => {
                return Err(invalid("option \"events.rate\" contradicts \"max-emit-speed\"")
                    .with_detail(format!("\"events.rate\" is {rate} events per second and \"max-emit-speed\" is true.")));
            }
            (Some(rate), _) => positive(Some(rate)),
            (None, Some(true)) => None,
            (None, Some(false)) => Some(positive(next_rate).unwrap_or(config.event_rate)),
            (None, None) => positive(next_rate),
        };
        let limit = config.event_limit();
        if config.events.unwrap_or(1) > limit {
            return Err(invalid("event times are out of range").with_detail(format!(
                "With this \"base.time\", \"first-event.rate\" and \"in-flight.auctions\" a timestamp can hold the times of {limit} events."
            )));
        }
        Ok(config)
    }

    /// The columns of a table that declares none. Names are lower case, as unquoted names are.
    pub fn columns(&self) -> Vec<Column> {
        fields::default_columns(self.table)
    }

    /// Whether `columns`, as declared, can be filled: any of the table's columns in any order, and of a ROW any of its fields.
    ///
    /// `42703` for a name that the table does not have, `42804` for a wrong type, `42P16` for NOT NULL where there are NULLs, `0A000` for DEFAULT.
    pub fn validate(&self, columns: &[Column]) -> Result<()> {
        self.resolve(columns).map(|_| ())
    }

    /// Whether the table ends.
    pub fn bounded(&self) -> bool {
        self.events.is_some() && !self.keep_alive
    }

    /// Whether its rows come at a rate, and not as fast as they are read.
    pub fn is_paced(&self) -> bool {
        self.wall_rate.is_some()
    }

    /// What fills each of `columns`.
    pub(super) fn resolve(&self, columns: &[Column]) -> Result<Vec<TableColumn>> {
        columns.iter().map(|column| fields::resolve(self.table, column)).collect()
    }

    /// Into how many parts the events of a job that starts with `parallelism` subtasks are dealt.
    pub fn splits(&self, parallelism: usize) -> usize {
        self.splits.unwrap_or(parallelism.max(1))
    }

    /// The `splits` option, if given.
    pub(super) fn declared_splits(&self) -> Option<usize> {
        self.splits
    }

    /// How many events follow one another before the kinds start over.
    pub(super) fn events_per_epoch(&self) -> u64 {
        self.persons + self.auctions + self.bids
    }

    /// The number of events whose times, and an auction's expiry, a timestamp can hold.
    pub(super) fn event_limit(&self) -> u64 {
        // An auction ends within twice the time in which `in_flight_auctions` more are made.
        let horizon_events = self.in_flight_auctions.saturating_mul(self.events_per_epoch()) / self.auctions;
        let seconds = u64::try_from(i64::MAX / 1_000_000 - self.base_time_ms / 1000 - 2).unwrap_or(0);
        seconds.saturating_mul(self.event_rate).saturating_sub(horizon_events.saturating_mul(2)).min(i64::MAX as u64 / 4)
    }
}

/// Dots, dashes and underscores are one, so that `events.num`, `events_num` and `events-num` are the same option.
fn canonical_name(name: &str) -> String {
    name.to_ascii_lowercase().replace(['-', '_'], ".")
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(SqlState::INVALID_PARAMETER_VALUE, message)
}

/// An option as written.
struct Given<'a> {
    name: &'a str,
    value: &'a str,
}

impl Given<'_> {
    fn malformed(&self, wanted: impl std::fmt::Display) -> Error {
        invalid(format!("invalid value for option \"{}\": \"{}\"", self.name, self.value)).with_detail(format!("It must be {wanted}."))
    }

    fn must_be(&self, word: &str) -> Result<()> {
        if self.value.eq_ignore_ascii_case(word) { Ok(()) } else { Err(self.malformed(word)) }
    }

    fn number(&self, least: u64, most: u64) -> Result<u64> {
        self.value
            .parse()
            .ok()
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| self.malformed(format_args!("a whole number from {least} to {most}")))
    }

    fn boolean(&self) -> Result<bool> {
        match self.value.to_ascii_lowercase().as_str() {
            "true" | "on" => Ok(true),
            "false" | "off" => Ok(false),
            _ => Err(self.malformed("true or false")),
        }
    }

    fn table(&self) -> Result<Table> {
        Table::parse(self.value).ok_or_else(|| self.malformed("person, auction or bid"))
    }

    fn time_ms(&self) -> Result<i64> {
        if let Ok(milliseconds) = self.value.parse::<i64>() {
            // Keeps every sum with event times far from the ends of the range.
            const MOST: i64 = 100_000_000_000_000;
            return Some(milliseconds)
                .filter(|ms| (-MOST..=MOST).contains(ms))
                .ok_or_else(|| self.malformed(format_args!("from {} to {MOST} milliseconds", -MOST)));
        }
        string_to_timestamp_nanos(self.value)
            .map(|nanoseconds| nanoseconds.div_euclid(1_000_000))
            .map_err(|_| self.malformed("a timestamp such as 2015-07-15 00:00:00, or milliseconds since 1970"))
    }

    /// Like Flink's memory sizes, up to 1 MiB: `200`, `200b`, `1 kb`.
    fn bytes(&self) -> Result<usize> {
        const MOST: u64 = 1 << 20;
        let wrong = || self.malformed(format_args!("a size such as 200b or 1kb, up to {MOST} bytes"));
        let digits = self.value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match self.value[digits.len()..].to_ascii_lowercase().as_str() {
            "" | "b" | "bytes" => 1,
            "k" | "kb" | "kibibytes" => 1024,
            _ => return Err(wrong()),
        };
        let number: u64 = digits.trim_end().parse().map_err(|_| wrong())?;
        number.checked_mul(unit).filter(|bytes| *bytes <= MOST).map(|bytes| bytes as usize).ok_or_else(wrong)
    }
}
