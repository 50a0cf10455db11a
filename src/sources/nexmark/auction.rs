//! The values of auctions.

use arrow::array::ArrayRef;
use weir_catalog::{Error, Result};

use super::fields::Field;
use super::generator::{
    FIRST_AUCTION_ID, FIRST_PERSON_ID, Generator, HOT_GROUP, Purpose, Rows, append_string, below, fill_hot, price, upper_below,
};

const FIRST_CATEGORY_ID: u64 = 10;
/// Few, so that queries find matches in a small number of events.
const CATEGORIES: u64 = 5;
/// Bounds of the lengths of texts, exclusive.
const ITEM_NAME_BYTES: usize = 20;
const DESCRIPTION_BYTES: usize = 100;
/// Identifier, initial bid, reserve, seller, category, and one more, at 8 bytes each as the original counts them.
const FIXED_BYTES: usize = 48;

impl Generator {
    /// One field of auctions.
    pub(super) fn auction_column(&self, field: Field, rows: Rows<'_>) -> Result<ArrayRef> {
        match field {
            Field::AuctionId => rows.integers(|run, out| {
                let place = run.first_event % self.config.events_per_epoch() - self.config.persons;
                let first = FIRST_AUCTION_ID + run.epoch * self.config.auctions + place;
                for (id, value) in (first..).zip(out) {
                    *value = id as i64;
                }
            }),
            Field::AuctionItemName => {
                let draws = self.draws(Purpose::AuctionItemName);
                rows.texts(11, |event, text| append_string(draws.at(event), ITEM_NAME_BYTES, b' ', text))
            }
            Field::AuctionDescription => {
                let draws = self.draws(Purpose::AuctionDescription);
                rows.texts(51, |event, text| append_string(draws.at(event), DESCRIPTION_BYTES, b' ', text))
            }
            Field::AuctionInitialBid => {
                let draws = self.draws(Purpose::AuctionInitialBid);
                rows.integers(|run, out| {
                    for (event, value) in (run.first_event..).zip(out) {
                        *value = price(draws.at(event));
                    }
                })
            }
            Field::AuctionReserve => {
                let (bids, reserves) = (self.draws(Purpose::AuctionInitialBid), self.draws(Purpose::AuctionReserve));
                rows.integers(|run, out| {
                    for (event, value) in (run.first_event..).zip(out) {
                        *value = price(bids.at(event)) + price(reserves.at(event));
                    }
                })
            }
            Field::AuctionExpires => {
                let draws = self.draws(Purpose::AuctionExpires);
                // The auction that comes when `in_flight_auctions` more have been made: an auction lasts, on average, until then.
                let horizon_events = self.config.in_flight_auctions * self.config.events_per_epoch() / self.config.auctions;
                rows.times(|run, out| {
                    for (event, value) in (run.first_event..).zip(out) {
                        let time_ms = self.time_ms(event);
                        let horizon_ms = (self.time_ms(event + horizon_events) - time_ms) as u64;
                        let length_ms = 1 + below(draws.at(event), (2 * horizon_ms).max(1));
                        *value = (time_ms + length_ms as i64) * 1000;
                    }
                })
            }
            Field::AuctionSeller => {
                let draws = self.draws(Purpose::AuctionSeller);
                rows.integers(|run, out| {
                    let hot = FIRST_PERSON_ID + self.last_person(run.epoch) / HOT_GROUP * HOT_GROUP;
                    fill_hot(draws, run.first_event, hot, self.config.hot_seller_ratio, self.people(run.epoch), out);
                })
            }
            Field::AuctionCategory => {
                let draws = self.draws(Purpose::AuctionCategory);
                rows.integers(|run, out| {
                    for (event, value) in (run.first_event..).zip(out) {
                        *value = (FIRST_CATEGORY_ID + upper_below(draws.at(event), CATEGORIES)) as i64;
                    }
                })
            }
            Field::AuctionExtra => self.auction_extras(rows),
            _ => Err(Error::internal(format!("{field:?} is not a field of auctions"))),
        }
    }

    /// The length depends on the other texts', which may not have been asked for: they are made in a scratch buffer.
    fn auction_extras(&self, rows: Rows<'_>) -> Result<ArrayRef> {
        let (names, descriptions) = (self.draws(Purpose::AuctionItemName), self.draws(Purpose::AuctionDescription));
        let extras = self.draws(Purpose::AuctionExtra);
        let mut scratch = Vec::new();
        rows.texts(self.config.auction_bytes.saturating_sub(110), |event, text| {
            scratch.clear();
            append_string(names.at(event), ITEM_NAME_BYTES, b' ', &mut scratch);
            append_string(descriptions.at(event), DESCRIPTION_BYTES, b' ', &mut scratch);
            Generator::append_extra(extras.at(event), FIXED_BYTES + scratch.len(), self.config.auction_bytes, text);
        })
    }
}
