//! The columns that a `nexmark` table can have, and how declared columns are matched with them.

use arrow::datatypes::{DataType, Fields};
use weir_catalog::{Column, Error, Result, SqlState, SqlType};

/// The kinds of event, which are also the flat tables. The numbers are Flink's `event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    Person = 0,
    Auction = 1,
    Bid = 2,
}

impl Table {
    const ALL: [Table; 3] = [Table::Person, Table::Auction, Table::Bid];

    fn name(self) -> &'static str {
        match self {
            Table::Person => "person",
            Table::Auction => "auction",
            Table::Bid => "bid",
        }
    }

    pub(super) fn parse(name: &str) -> Option<Table> {
        Table::ALL.into_iter().find(|table| table.name().eq_ignore_ascii_case(name))
    }

    fn fields(self) -> &'static [FieldSpec] {
        match self {
            Table::Person => PERSON,
            Table::Auction => AUCTION,
            Table::Bid => BID,
        }
    }
}

/// A value of a person, an auction or a bid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    PersonId,
    PersonName,
    PersonEmailAddress,
    PersonCreditCard,
    PersonCity,
    PersonState,
    PersonExtra,
    AuctionId,
    AuctionItemName,
    AuctionDescription,
    AuctionInitialBid,
    AuctionReserve,
    AuctionExpires,
    AuctionSeller,
    AuctionCategory,
    AuctionExtra,
    BidAuction,
    BidBidder,
    BidPrice,
    BidChannel,
    BidUrl,
    BidExtra,
    /// The event's time, of any kind of event.
    DateTime,
}

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldType {
    BigInt,
    Text,
    Time,
}

impl FieldType {
    fn sql_type(self) -> SqlType {
        match self {
            FieldType::BigInt => SqlType::BigInt,
            FieldType::Text => SqlType::Text,
            FieldType::Time => SqlType::Timestamp { precision: 3 },
        }
    }

    /// Times are whole milliseconds, so a finer column holds them too; a coarser one would have to round.
    fn fits(self, declared: &SqlType) -> bool {
        match (self, declared) {
            (FieldType::Time, SqlType::Timestamp { precision }) => *precision >= 3,
            _ => *declared == self.sql_type(),
        }
    }
}

type FieldSpec = (&'static str, Field, FieldType);

use FieldType::{BigInt, Text, Time};

const PERSON: &[FieldSpec] = &[
    ("id", Field::PersonId, BigInt),
    ("name", Field::PersonName, Text),
    ("emailaddress", Field::PersonEmailAddress, Text),
    ("creditcard", Field::PersonCreditCard, Text),
    ("city", Field::PersonCity, Text),
    ("state", Field::PersonState, Text),
    ("datetime", Field::DateTime, Time),
    ("extra", Field::PersonExtra, Text),
];

const AUCTION: &[FieldSpec] = &[
    ("id", Field::AuctionId, BigInt),
    ("itemname", Field::AuctionItemName, Text),
    ("description", Field::AuctionDescription, Text),
    ("initialbid", Field::AuctionInitialBid, BigInt),
    ("reserve", Field::AuctionReserve, BigInt),
    ("datetime", Field::DateTime, Time),
    ("expires", Field::AuctionExpires, Time),
    ("seller", Field::AuctionSeller, BigInt),
    ("category", Field::AuctionCategory, BigInt),
    ("extra", Field::AuctionExtra, Text),
];

const BID: &[FieldSpec] = &[
    ("auction", Field::BidAuction, BigInt),
    ("bidder", Field::BidBidder, BigInt),
    ("price", Field::BidPrice, BigInt),
    ("channel", Field::BidChannel, Text),
    ("url", Field::BidUrl, Text),
    ("datetime", Field::DateTime, Time),
    ("extra", Field::BidExtra, Text),
];

const EVENT_TYPE: &str = "event_type";
const DATE_TIME: &str = "datetime";

/// What fills a table's column.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TableColumn {
    /// A value of a flat table.
    Flat(Field),
    /// The kind of event, nested schema.
    EventType,
    /// The event's time, nested schema.
    EventTime,
    /// The values of one kind of event, NULL for others. The Arrow fields have the declared names.
    Nested(Table, Vec<Field>, Fields),
}

/// The columns that a table has if its DDL declares none.
pub(super) fn default_columns(table: Option<Table>) -> Vec<Column> {
    let column = |name: &str, ty| Column { name: name.to_string(), ty, nullable: true, default: None };
    match table {
        Some(table) => table.fields().iter().map(|(name, _, ty)| column(name, ty.sql_type())).collect(),
        None => {
            let mut columns = vec![column(EVENT_TYPE, SqlType::Int)];
            columns.extend(Table::ALL.into_iter().map(|table| column(table.name(), row_type(table))));
            columns.push(column(DATE_TIME, Time.sql_type()));
            columns
        }
    }
}

fn row_type(table: Table) -> SqlType {
    SqlType::Row(table.fields().iter().map(|(name, _, ty)| (name.to_string(), ty.sql_type())).collect())
}

/// What fills `column`, or why nothing can.
pub(super) fn resolve(table: Option<Table>, column: &Column) -> Result<TableColumn> {
    if column.default.is_some() {
        return Err(Error::unsupported(format!("column \"{}\" of a nexmark table can't have a DEFAULT", column.name)));
    }
    if let Some(table) = table {
        return field_of(table, &column.name, &column.ty, None).map(TableColumn::Flat);
    }
    if column.name.eq_ignore_ascii_case(EVENT_TYPE) {
        return check_type(&column.name, &column.ty, &SqlType::Int, column.ty == SqlType::Int).map(|()| TableColumn::EventType);
    }
    if column.name.eq_ignore_ascii_case(DATE_TIME) {
        return check_type(&column.name, &column.ty, &Time.sql_type(), Time.fits(&column.ty)).map(|()| TableColumn::EventTime);
    }
    let Some(table) = Table::parse(&column.name) else {
        let hint = format!(
            "Its columns are {EVENT_TYPE}, person, auction, bid and {DATE_TIME}; with the option table = 'bid' (or auction, person) those of a bid."
        );
        return Err(undefined(&column.name, "the nexmark table").with_hint(hint));
    };
    let SqlType::Row(declared) = &column.ty else {
        return Err(mismatch(&column.name, &column.ty, &row_type(table)));
    };
    if !column.nullable {
        return Err(Error::new(SqlState::INVALID_TABLE_DEFINITION, format!("column \"{}\" can't be NOT NULL", column.name))
            .with_detail("It is NULL in the rows of other events."));
    }
    let fields = declared.iter().map(|(name, ty)| field_of(table, name, ty, Some(&column.name))).collect::<Result<Vec<_>>>()?;
    match column.ty.to_arrow() {
        DataType::Struct(arrow_fields) => Ok(TableColumn::Nested(table, fields, arrow_fields)),
        other => Err(Error::internal(format!("a row type is held as {other}"))),
    }
}

/// The field called `name`, checked against its declared type. `within`: the nested column that it is part of.
fn field_of(table: Table, name: &str, declared: &SqlType, within: Option<&str>) -> Result<Field> {
    let Some((_, field, ty)) = table.fields().iter().find(|(known, ..)| known.eq_ignore_ascii_case(name)) else {
        let known: Vec<&str> = table.fields().iter().map(|(known, ..)| *known).collect();
        let place = within.map_or_else(|| format!("the nexmark table of {}s", table.name()), |column| format!("column \"{column}\""));
        return Err(undefined(name, &place).with_hint(format!("There are {}.", known.join(", "))));
    };
    let qualified = within.map_or_else(|| name.to_string(), |column| format!("{column}.{name}"));
    check_type(&qualified, declared, &ty.sql_type(), ty.fits(declared)).map(|()| *field)
}

fn check_type(name: &str, declared: &SqlType, wanted: &SqlType, fits: bool) -> Result<()> {
    if fits { Ok(()) } else { Err(mismatch(name, declared, wanted)) }
}

fn undefined(name: &str, place: &str) -> Error {
    Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{name}\" does not exist in {place}"))
}

fn mismatch(name: &str, declared: &SqlType, wanted: &SqlType) -> Error {
    Error::new(SqlState::DATATYPE_MISMATCH, format!("column \"{name}\" is of type {wanted}, not {declared}"))
}
