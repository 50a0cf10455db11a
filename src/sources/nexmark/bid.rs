//! The values of bids: 46 events of 50, so these loops are the generator's speed.

use arrow::array::ArrayRef;
use weir_catalog::{Error, Result};

use super::fields::Field;
use super::generator::{
    Draws, FIRST_AUCTION_ID, FIRST_PERSON_ID, Generator, HOT_GROUP, Purpose, Rows, append_string, fill_hot, lower_below, price,
    upper_below, word,
};

/// Auction, bidder, price and time, at 8 bytes each: the original leaves channel and URL out of the count.
const FIXED_BYTES: usize = 32;

const HOT_CHANNELS: [&str; 4] = ["Google", "Facebook", "Baidu", "Apple"];
/// Half of the bids come through a hot channel, half through one of so many others.
const OTHER_CHANNELS: u64 = 10_000;

/// The names of all channels and the URL of each, which never changes.
pub(super) struct Channels {
    names: Texts,
    urls: Texts,
}

/// Texts one after the other: text `i` is `bytes[ends[i - 1]..ends[i]]`.
#[derive(Default)]
struct Texts {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Texts {
    #[inline(always)]
    fn get(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.bytes[start..self.ends[i]]
    }
}

impl Channels {
    pub(super) fn new(draws: Draws) -> Channels {
        let (mut names, mut urls) = (Texts::default(), Texts::default());
        let hot = HOT_CHANNELS.iter().map(|name| (name.to_string(), None));
        let others = (0..OTHER_CHANNELS).map(|number| (format!("channel-{number}"), Some(number as i32)));
        for ((name, number), place) in hot.chain(others).zip(0..) {
            names.bytes.extend_from_slice(name.as_bytes());
            names.ends.push(names.bytes.len());
            append_url(draws.at(place), number, &mut urls.bytes);
            urls.ends.push(urls.bytes.len());
        }
        Channels { names, urls }
    }

    /// Which channel a draw stands for.
    #[inline(always)]
    fn choose(draw: u64) -> usize {
        // The upper half decides between hot and others by its first bit, and which hot one by the next two.
        if upper_below(draw, 2) > 0 {
            upper_below(draw << 1, HOT_CHANNELS.len() as u64) as usize
        } else {
            HOT_CHANNELS.len() + lower_below(draw, OTHER_CHANNELS) as usize
        }
    }
}

/// An address of three short names; in nine of ten other channels it has a channel number, made by turning the channel's bits around.
fn append_url(draw: u64, number: Option<i32>, text: &mut Vec<u8>) {
    text.extend_from_slice(b"https://www.nexmark.com/");
    for part in 0..3 {
        append_string(word(draw, part), 5, b'_', text);
        text.push(b'/');
    }
    text.extend_from_slice(b"item.htm?query=1");
    if let Some(number) = number
        && upper_below(draw, 10) > 0
    {
        text.extend_from_slice(format!("&channel_id={}", number.reverse_bits().unsigned_abs()).as_bytes());
    }
}

impl Generator {
    /// One field of bids.
    pub(super) fn bid_column(&self, field: Field, rows: Rows<'_>) -> Result<ArrayRef> {
        match field {
            Field::BidAuction => {
                let draws = self.draws(Purpose::BidAuction);
                rows.integers(|run, out| {
                    let hot = FIRST_AUCTION_ID + self.last_auction(run.epoch) / HOT_GROUP * HOT_GROUP;
                    fill_hot(draws, run.first_event, hot, self.config.hot_auction_ratio, self.auctions_in_flight(run.epoch), out);
                })
            }
            Field::BidBidder => {
                let draws = self.draws(Purpose::BidBidder);
                rows.integers(|run, out| {
                    // The second of its group, so that hot bidders are not the hot sellers.
                    let hot = FIRST_PERSON_ID + self.last_person(run.epoch) / HOT_GROUP * HOT_GROUP + 1;
                    fill_hot(draws, run.first_event, hot, self.config.hot_bidder_ratio, self.people(run.epoch), out);
                })
            }
            Field::BidPrice => {
                let draws = self.draws(Purpose::BidPrice);
                rows.integers(|run, out| {
                    for (i, value) in out.iter_mut().enumerate() {
                        *value = price(draws.at(run.first_event + i as u64));
                    }
                })
            }
            Field::BidChannel => {
                let (draws, names) = (self.draws(Purpose::BidChannel), &self.channels().names);
                rows.texts(10, |event, text| text.extend_from_slice(names.get(Channels::choose(draws.at(event)))))
            }
            Field::BidUrl => {
                let (draws, urls) = (self.draws(Purpose::BidChannel), &self.channels().urls);
                rows.texts(65, |event, text| text.extend_from_slice(urls.get(Channels::choose(draws.at(event)))))
            }
            Field::BidExtra => {
                let draws = self.draws(Purpose::BidExtra);
                let mean_bytes = self.config.bid_bytes;
                rows.texts(mean_bytes.saturating_sub(FIXED_BYTES), |event, text| {
                    Generator::append_extra(draws.at(event), FIXED_BYTES, mean_bytes, text);
                })
            }
            _ => Err(Error::internal(format!("{field:?} is not a field of bids"))),
        }
    }
}
