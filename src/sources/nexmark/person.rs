//! The values of persons.

use arrow::array::ArrayRef;
use weir_catalog::{Error, Result};

use super::fields::Field;
use super::generator::{FIRST_PERSON_ID, Generator, Purpose, Rows, append_string, lower_below, upper_below, word};

// Few of each, so that queries find matches in a small number of events.
const STATES: [&str; 6] = ["AZ", "CA", "ID", "OR", "WA", "WY"];
const CITIES: [&str; 10] =
    ["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne"];
const FIRST_NAMES: [&str; 11] = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"];
const LAST_NAMES: [&str; 9] = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"];

fn append_name(draw: u64, text: &mut Vec<u8>) {
    text.extend_from_slice(FIRST_NAMES[upper_below(draw, FIRST_NAMES.len() as u64) as usize].as_bytes());
    text.push(b' ');
    text.extend_from_slice(LAST_NAMES[lower_below(draw, LAST_NAMES.len() as u64) as usize].as_bytes());
}

fn append_email_address(draw: u64, text: &mut Vec<u8>) {
    append_string(word(draw, 0), 7, b' ', text);
    text.push(b'@');
    append_string(word(draw, 1), 5, b' ', text);
    text.extend_from_slice(b".com");
}

/// Four groups of four digits.
const CREDIT_CARD_BYTES: usize = 19;

fn append_credit_card(draw: u64, text: &mut Vec<u8>) {
    for group in 0..4 {
        if group > 0 {
            text.push(b' ');
        }
        let number = upper_below(word(draw, group), 10_000);
        text.extend([1000, 100, 10, 1].map(|unit| b'0' + (number / unit % 10) as u8));
    }
}

fn city(draw: u64) -> &'static str {
    CITIES[upper_below(draw, CITIES.len() as u64) as usize]
}

fn state(draw: u64) -> &'static str {
    STATES[upper_below(draw, STATES.len() as u64) as usize]
}

impl Generator {
    /// One field of persons.
    pub(super) fn person_column(&self, field: Field, rows: Rows<'_>) -> Result<ArrayRef> {
        match field {
            Field::PersonId => rows.integers(|run, out| {
                let per_epoch = self.config.events_per_epoch();
                let first = FIRST_PERSON_ID + run.epoch * self.config.persons + run.first_event % per_epoch;
                for (id, value) in (first..).zip(out) {
                    *value = id as i64;
                }
            }),
            Field::PersonName => {
                let draws = self.draws(Purpose::PersonName);
                rows.texts(14, |event, text| append_name(draws.at(event), text))
            }
            Field::PersonEmailAddress => {
                let draws = self.draws(Purpose::PersonEmailAddress);
                rows.texts(14, |event, text| append_email_address(draws.at(event), text))
            }
            Field::PersonCreditCard => {
                let draws = self.draws(Purpose::PersonCreditCard);
                rows.texts(CREDIT_CARD_BYTES, |event, text| append_credit_card(draws.at(event), text))
            }
            Field::PersonCity => {
                let draws = self.draws(Purpose::PersonCity);
                rows.texts(9, |event, text| text.extend_from_slice(city(draws.at(event)).as_bytes()))
            }
            Field::PersonState => {
                let draws = self.draws(Purpose::PersonState);
                rows.texts(2, |event, text| text.extend_from_slice(state(draws.at(event)).as_bytes()))
            }
            Field::PersonExtra => self.person_extras(rows),
            _ => Err(Error::internal(format!("{field:?} is not a field of persons"))),
        }
    }

    /// The length depends on the other fields', which may not have been asked for: they are made in a scratch buffer.
    fn person_extras(&self, rows: Rows<'_>) -> Result<ArrayRef> {
        let (names, emails) = (self.draws(Purpose::PersonName), self.draws(Purpose::PersonEmailAddress));
        let (cities, states) = (self.draws(Purpose::PersonCity), self.draws(Purpose::PersonState));
        let extras = self.draws(Purpose::PersonExtra);
        let mut scratch = Vec::new();
        rows.texts(self.config.person_bytes.saturating_sub(66), |event, text| {
            scratch.clear();
            append_name(names.at(event), &mut scratch);
            append_email_address(emails.at(event), &mut scratch);
            let bytes = 8 + scratch.len() + CREDIT_CARD_BYTES + city(cities.at(event)).len() + state(states.at(event)).len();
            Generator::append_extra(extras.at(event), bytes, self.config.person_bytes, text);
        })
    }
}
