//! What all three kinds of event are made with: draws, event times, identifiers, prices, strings, and the buffers of a column.
//!
//! The rules are those of the Nexmark suite in Apache Beam and nexmark-flink. Where those take the next number of one random sequence, a draw
//! here is a hash of the seed, the event's number and what is drawn, so that events can be made in any order, in any place, and without what nobody reads.
//!
//! # Invariants
//! Everything is a pure function of the configuration and the event's number. Floating point is used with `+`, `*` and rounding only, which
//! give the same bits on every machine.

use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayRef, Int64Array, StringArray, TimestampMicrosecondArray};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use weir_catalog::{Error, Result};

use super::bid::Channels;
use super::config::NexmarkConfig;
use super::fields::Field;

/// The first identifiers are not small, so that they are not taken for counts.
pub(super) const FIRST_AUCTION_ID: u64 = 1000;
pub(super) const FIRST_PERSON_ID: u64 = 1000;
/// One auction, and one person, of so many that follow one another is a hot one.
pub(super) const HOT_GROUP: u64 = 100;
/// So many identifiers that do not exist yet may be named: as if events had been swapped on their way.
const ID_LEAD: u64 = 10;

/// The increment of SplitMix64: 2^64 divided by the golden ratio, odd.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
#[inline(always)]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// What is drawn. The numbers are part of what a seed means: they are never changed or used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    PersonName = 1,
    PersonEmailAddress = 2,
    PersonCreditCard = 3,
    PersonCity = 4,
    PersonState = 5,
    PersonExtra = 6,
    AuctionItemName = 7,
    AuctionDescription = 8,
    AuctionInitialBid = 9,
    AuctionReserve = 10,
    AuctionExpires = 11,
    AuctionSeller = 12,
    AuctionCategory = 13,
    AuctionExtra = 14,
    BidAuction = 15,
    BidBidder = 16,
    BidPrice = 17,
    BidChannel = 18,
    BidExtra = 19,
    ChannelUrl = 20,
}

/// The draws for one purpose, one for each event: element `n` is the SplitMix64 sequence of a seed of its own at place `n`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws(u64);

impl Draws {
    fn new(seed: u64, purpose: Purpose) -> Draws {
        Draws(mix(mix(seed.wrapping_add(GOLDEN)).wrapping_add((purpose as u64).wrapping_mul(GOLDEN))))
    }

    /// The draw for event number `event`, uniform over 64 bits.
    #[inline(always)]
    pub(super) fn at(self, event: u64) -> u64 {
        mix(self.0.wrapping_add(event.wrapping_add(1).wrapping_mul(GOLDEN)))
    }
}

/// Word `i` of the further random words that a draw stands for.
#[inline(always)]
pub(super) fn word(draw: u64, i: usize) -> u64 {
    mix(draw.wrapping_add((i as u64 + 1).wrapping_mul(GOLDEN)))
}

/// A number below `bound` from the upper 32 bits of a draw; `bound` is at most 2^32.
#[inline(always)]
pub(super) fn upper_below(draw: u64, bound: u64) -> u64 {
    ((draw >> 32) * bound) >> 32
}

/// A number below `bound` from the lower 32 bits of a draw; `bound` is at most 2^32.
#[inline(always)]
pub(super) fn lower_below(draw: u64, bound: u64) -> u64 {
    ((draw & 0xffff_ffff) * bound) >> 32
}

/// A number below `bound` from all of a draw.
#[inline(always)]
pub(super) fn below(draw: u64, bound: u64) -> u64 {
    ((u128::from(draw) * u128::from(bound)) >> 64) as u64
}

/// Events of one kind that follow one another within an epoch (a round of persons, auctions and bids), and the rows that they fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) epoch: u64,
    pub(super) first_event: u64,
    pub(super) first_row: usize,
    pub(super) count: usize,
}

impl Run {
    fn rows(&self) -> std::ops::Range<usize> {
        self.first_row..self.first_row + self.count
    }

    fn events(&self) -> std::ops::Range<u64> {
        self.first_event..self.first_event + self.count as u64
    }
}

/// The rows of a column to be made: `runs` fill some of `rows`, in order; the others are NULL, as `nulls` says.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) rows: usize,
    pub(super) runs: &'a [Run],
    pub(super) nulls: Option<&'a NullBuffer>,
}

impl Rows<'_> {
    /// A value of 64 bits a row: `fill` writes those of a run.
    fn fixed(&self, mut fill: impl FnMut(&Run, &mut [i64])) -> ScalarBuffer<i64> {
        let mut values = vec![0i64; self.rows];
        for run in self.runs {
            fill(run, &mut values[run.rows()]);
        }
        values.into()
    }

    pub(super) fn integers(&self, fill: impl FnMut(&Run, &mut [i64])) -> Result<ArrayRef> {
        let array = Int64Array::try_new(self.fixed(fill), self.nulls.cloned());
        array.map(|array| Arc::new(array) as ArrayRef).map_err(arrow_error)
    }

    /// Microseconds since 1970.
    pub(super) fn times(&self, fill: impl FnMut(&Run, &mut [i64])) -> Result<ArrayRef> {
        let array = TimestampMicrosecondArray::try_new(self.fixed(fill), self.nulls.cloned());
        array.map(|array| Arc::new(array) as ArrayRef).map_err(arrow_error)
    }

    /// `append` adds the text of one event, about `mean_bytes` of ASCII.
    pub(super) fn texts(&self, mean_bytes: usize, mut append: impl FnMut(u64, &mut Vec<u8>)) -> Result<ArrayRef> {
        let mut offsets: Vec<i32> = Vec::with_capacity(self.rows + 1);
        let filled: usize = self.runs.iter().map(|run| run.count).sum();
        let mut values: Vec<u8> = Vec::with_capacity(filled * mean_bytes + filled * mean_bytes / 8 + TEXT_CHUNK);
        offsets.push(0);
        let mut end = 0;
        for run in self.runs {
            offsets.resize(run.first_row + 1, end);
            for event in run.events() {
                append(event, &mut values);
                end = i32::try_from(values.len()).map_err(|_| Error::internal("a nexmark batch has over 2 GiB of text in one column"))?;
                offsets.push(end);
            }
        }
        offsets.resize(self.rows + 1, end);
        let array = StringArray::try_new(OffsetBuffer::new(offsets.into()), values.into(), self.nulls.cloned());
        array.map(|array| Arc::new(array) as ArrayRef).map_err(arrow_error)
    }
}

pub(super) fn arrow_error(error: arrow::error::ArrowError) -> Error {
    Error::internal(format!("could not build a nexmark batch: {error}"))
}

/// Makes the columns of events.
pub(super) struct Generator {
    pub(super) config: NexmarkConfig,
    channels: OnceLock<Channels>,
}

impl Generator {
    pub(super) fn new(config: NexmarkConfig) -> Generator {
        Generator { config, channels: OnceLock::new() }
    }

    /// The draws for `purpose`.
    pub(super) fn draws(&self, purpose: Purpose) -> Draws {
        Draws::new(self.config.seed, purpose)
    }

    /// The channels of bids, made when first asked for.
    pub(super) fn channels(&self) -> &Channels {
        self.channels.get_or_init(|| Channels::new(self.draws(Purpose::ChannelUrl)))
    }

    /// One field of the events of `rows`, which are of the field's kind.
    pub(super) fn column(&self, field: Field, rows: Rows<'_>) -> Result<ArrayRef> {
        match field {
            Field::DateTime => rows.times(|run, out| self.fill_times_us(run.first_event, out)),
            Field::PersonId
            | Field::PersonName
            | Field::PersonEmailAddress
            | Field::PersonCreditCard
            | Field::PersonCity
            | Field::PersonState
            | Field::PersonExtra => self.person_column(field, rows),
            Field::AuctionId
            | Field::AuctionItemName
            | Field::AuctionDescription
            | Field::AuctionInitialBid
            | Field::AuctionReserve
            | Field::AuctionExpires
            | Field::AuctionSeller
            | Field::AuctionCategory
            | Field::AuctionExtra => self.auction_column(field, rows),
            Field::BidAuction | Field::BidBidder | Field::BidPrice | Field::BidChannel | Field::BidUrl | Field::BidExtra => {
                self.bid_column(field, rows)
            }
        }
    }

    /// The time of event number `event`, whole milliseconds since 1970.
    pub(super) fn time_ms(&self, event: u64) -> i64 {
        let rate = self.config.event_rate;
        self.config.base_time_ms + (event / rate * 1000 + event % rate * 1000 / rate) as i64
    }

    /// The times of the events from `first_event` on, microseconds since 1970: without a division per event.
    fn fill_times_us(&self, first_event: u64, out: &mut [i64]) {
        let rate = self.config.event_rate;
        let (whole, part) = ((1000 / rate) as i64, 1000 % rate);
        let mut time_ms = self.time_ms(first_event);
        let mut remainder = first_event % rate * 1000 % rate;
        for time_us in out {
            *time_us = time_ms * 1000;
            remainder += part;
            let carry = remainder >= rate;
            remainder -= if carry { rate } else { 0 };
            time_ms += whole + i64::from(carry);
        }
    }

    /// The number, from 0, of the last person made before the auctions and bids of `epoch`.
    #[inline(always)]
    pub(super) fn last_person(&self, epoch: u64) -> u64 {
        (epoch + 1) * self.config.persons - 1
    }

    /// The number, from 0, of the last auction made before the bids of `epoch`.
    #[inline(always)]
    pub(super) fn last_auction(&self, epoch: u64) -> u64 {
        (epoch + 1) * self.config.auctions - 1
    }

    /// The persons that may sell and bid in `epoch`: the active ones and a few to come.
    pub(super) fn people(&self, epoch: u64) -> Choice {
        let made = self.last_person(epoch) + 1;
        let active = made.min(self.config.active_people);
        Choice { first: FIRST_PERSON_ID + made - active, count: active + ID_LEAD }
    }

    /// The auctions that may be bid on in `epoch`: those in flight and a few to come.
    pub(super) fn auctions_in_flight(&self, epoch: u64) -> Choice {
        let last = self.last_auction(epoch);
        let first = last.saturating_sub(self.config.in_flight_auctions);
        Choice { first: FIRST_AUCTION_ID + first, count: last - first + 1 + ID_LEAD }
    }

    /// Appends filler that brings an event of `bytes` to a mean of `mean_bytes`: evenly between 20 % less and 20 % more of what is missing.
    #[inline(always)]
    pub(super) fn append_extra(draw: u64, bytes: usize, mean_bytes: usize, text: &mut Vec<u8>) {
        let Some(missing) = mean_bytes.checked_sub(bytes) else { return };
        let spread = (2 * missing + 5) / 10;
        let length = missing - spread + upper_below(draw, 2 * spread as u64) as usize;
        append_letters(draw, length, text);
    }
}

/// Identifiers that follow one another.
#[derive(Clone, Copy)]
pub(super) struct Choice {
    first: u64,
    count: u64,
}

/// Draws identifiers: `hot` for all but one draw in `ratio`, else any of `others`.
#[inline(always)]
pub(super) fn fill_hot(draws: Draws, first_event: u64, hot: u64, ratio: u64, others: Choice, out: &mut [i64]) {
    for (i, id) in out.iter_mut().enumerate() {
        let draw = draws.at(first_event + i as u64);
        let other = others.first + lower_below(draw, others.count);
        *id = (if upper_below(draw, ratio) > 0 { hot } else { other }) as i64;
    }
}

/// e^x for a small x, by its series.
const fn exp_of_small(x: f64) -> f64 {
    let (mut sum, mut term, mut n) = (1.0, 1.0, 1);
    while n < 24 {
        term *= x / n as f64;
        sum += term;
        n += 1;
    }
    sum
}

/// `first`, and 255 times the last one times `ratio`.
const fn powers(first: f64, ratio: f64) -> [f64; 256] {
    let mut table = [first; 256];
    let mut i = 1;
    while i < 256 {
        table[i] = table[i - 1] * ratio;
        i += 1;
    }
    table
}

/// Prices are a hundred times 10^0 to 10^6, their logarithm being uniform: 10^6 is e to this.
const LOG_RANGE: f64 = 6.0 * std::f64::consts::LN_10;
/// 100 * 10^(6 i / 2^8)
static PRICE_COARSE: [f64; 256] = powers(100.0, exp_of_small(LOG_RANGE / 256.0));
/// 10^(6 i / 2^16)
static PRICE_FINE: [f64; 256] = powers(1.0, exp_of_small(LOG_RANGE / 65536.0));

/// A price in cents, 100 to 100,000,000: round(100 * 10^(6 u)) for u uniform in 0 to 1. Two table look-ups, and the series for the rest of u.
#[inline(always)]
pub(super) fn price(draw: u64) -> i64 {
    let coarse = PRICE_COARSE[(draw >> 56) as usize];
    let fine = PRICE_FINE[(draw >> 48 & 0xff) as usize];
    // The logarithm that is left is below 0.0003, so that four terms are exact to the last bit.
    let rest = (draw & 0xffff_ffff_ffff) as i64 as f64 * (LOG_RANGE / 18_446_744_073_709_551_616.0);
    let exp_rest = 1.0 + rest * (1.0 + rest * (0.5 + rest * (1.0 / 6.0)));
    i64::from((coarse * fine * exp_rest + 0.5) as i32)
}

/// Letters are made this many at a time.
const TEXT_CHUNK: usize = 8;

/// Eight lower-case letters from a random word: two from each 16 bits, which are taken as a fraction and multiplied by 26 twice.
#[inline(always)]
fn eight_letters(word: u64) -> [u8; TEXT_CHUNK] {
    // Two 16-bit fractions stand in 32 bits each, so that one multiplication serves both.
    const FRACTIONS: u64 = 0x0000_ffff_0000_ffff;
    let even = (word & FRACTIONS) * 26;
    let odd = (word >> 16 & FRACTIONS) * 26;
    let letters = (even >> 16 & 0x0000_00ff_0000_00ff)
        | ((((even & FRACTIONS) * 26) >> 8) & 0x0000_ff00_0000_ff00)
        | (odd & 0x00ff_0000_00ff_0000)
        | ((((odd & FRACTIONS) * 26) << 8) & 0xff00_0000_ff00_0000);
    (letters + 0x6161_6161_6161_6161).to_le_bytes()
}

/// Appends `length` lower-case letters.
#[inline(always)]
pub(super) fn append_letters(draw: u64, length: usize, text: &mut Vec<u8>) {
    let start = text.len();
    text.resize(start + length.next_multiple_of(TEXT_CHUNK), 0);
    for (i, letters) in text[start..].chunks_exact_mut(TEXT_CHUNK).enumerate() {
        letters.copy_from_slice(&eight_letters(word(draw, i)));
    }
    text.truncate(start + length);
}

/// Appends 3 to `most - 1` characters: each one in thirteen times `special`, else a lower-case letter. Spaces at the ends are cut off.
pub(super) fn append_string(draw: u64, most: usize, special: u8, text: &mut Vec<u8>) {
    const LEAST: usize = 3;
    let length = LEAST + upper_below(draw, (most - LEAST) as u64) as usize;
    let start = text.len();
    let mut lanes = 0;
    for i in 0..length {
        lanes = if i % 4 == 0 { word(draw, i / 4) } else { lanes >> 16 };
        // 26 * 13 outcomes, of which the first 26 are the special character and the others each letter 12 times.
        let outcome = ((lanes & 0xffff) * (26 * 13)) >> 16;
        text.push(if outcome < 26 { special } else { b'a' + (outcome % 26) as u8 });
    }
    if special == b' ' {
        while text.len() > start && text.last() == Some(&b' ') {
            text.pop();
        }
        let leading = text[start..].iter().take_while(|byte| **byte == b' ').count();
        text.drain(start..start + leading);
    }
}
