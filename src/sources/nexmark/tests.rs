use std::collections::{BTreeMap, HashSet};

use arrow::array::{Array, AsArray};
use arrow::compute::{concat_batches, filter, is_not_null};
use arrow::datatypes::{Int32Type, Int64Type, TimestampMicrosecondType};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use weir_catalog::SqlType;

use super::*;

fn options(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

fn config(pairs: &[(&str, &str)]) -> NexmarkConfig {
    NexmarkConfig::parse(&options(pairs)).unwrap()
}

fn source(config: &NexmarkConfig, subtask: usize, parallelism: usize, restored: Option<&[SplitState]>) -> NexmarkSource {
    let columns = config.columns();
    let projection: Vec<usize> = (0..columns.len()).collect();
    NexmarkSource::new(config.clone(), &columns, &projection, subtask, parallelism, restored.map(<[SplitState]>::to_vec)).unwrap()
}

/// The next batch, which may be no larger than asked for, or `None` at the end.
fn next(source: &mut NexmarkSource, max_rows: usize) -> Option<RecordBatch> {
    match source.poll(max_rows, 0).unwrap() {
        SourceEvent::Batch(batch) => {
            assert!((1..=max_rows).contains(&batch.num_rows()), "{} rows of {max_rows}", batch.num_rows());
            assert!(batch.kinds.is_none());
            assert_eq!(batch.rows.schema(), source.schema());
            Some(batch.rows)
        }
        SourceEvent::End => None,
        SourceEvent::Wait(us) => panic!("a source without a rate waits for {us} us"),
    }
}

fn drain(mut source: NexmarkSource, max_rows: usize) -> RecordBatch {
    let batches: Vec<RecordBatch> = std::iter::from_fn(|| next(&mut source, max_rows)).collect();
    concat_batches(&source.schema(), &batches).unwrap()
}

fn read(pairs: &[(&str, &str)]) -> RecordBatch {
    drain(source(&config(pairs), 0, 1, None), 1000)
}

/// Each row as text.
fn lines(batch: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let formatters: Vec<_> = batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
    (0..batch.num_rows()).map(|row| formatters.iter().map(|f| f.value(row).to_string()).collect::<Vec<_>>().join("|")).collect()
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

fn integers<'a>(batch: &'a RecordBatch, column: &str) -> &'a [i64] {
    batch[column].as_primitive::<Int64Type>().values()
}

fn times<'a>(batch: &'a RecordBatch, column: &str) -> &'a [i64] {
    batch[column].as_primitive::<TimestampMicrosecondType>().values()
}

fn texts<'a>(batch: &'a RecordBatch, column: &str) -> Vec<&'a str> {
    batch[column].as_string::<i32>().iter().map(|text| text.unwrap()).collect()
}

fn share(values: &[i64], wanted: impl Fn(usize, i64) -> bool) -> f64 {
    values.iter().enumerate().filter(|(i, value)| wanted(*i, **value)).count() as f64 / values.len() as f64
}

fn mean(values: impl ExactSizeIterator<Item = usize>) -> f64 {
    let count = values.len() as f64;
    values.sum::<usize>() as f64 / count
}

#[test]
fn of_fifty_events_one_is_a_person_three_are_auctions_and_the_others_bids() {
    let batch = read(&[("events.num", "5025")]);
    assert_eq!(batch.num_rows(), 5025);
    let types = batch["event_type"].as_primitive::<Int32Type>().values();
    for (event, kind) in types.iter().enumerate() {
        let place = event % 50;
        let wanted = if place < 1 { 0 } else { 1 + i32::from(place >= 4) };
        assert_eq!(*kind, wanted, "event {event}");
    }
    for (kind, name) in ["person", "auction", "bid"].iter().enumerate() {
        let rows = batch[*name].as_struct();
        for (event, event_type) in types.iter().enumerate() {
            let is_of_kind = *event_type == kind as i32;
            assert_eq!(rows.is_valid(event), is_of_kind, "{name} of event {event}");
            assert!(rows.columns().iter().all(|member| member.is_valid(event) == is_of_kind), "members of {name}, event {event}");
        }
    }
    let flat = |table| read(&[("events.num", "5025"), ("table", table)]).num_rows();
    assert_eq!((flat("person"), flat("auction"), flat("bid")), (101, 303, 100 * 46 + 21));
    let other =
        [("events.num", "1000"), ("person.proportion", "2"), ("auction_proportion", "3"), ("BID-PROPORTION", "5"), ("table", "bid")];
    assert_eq!(read(&other).num_rows(), 500);
}

#[test]
fn the_default_columns_are_those_of_flink_in_lower_case() {
    let names = |config: &NexmarkConfig| config.columns().iter().map(|c| format!("{} {}", c.name, c.ty)).collect::<Vec<_>>().join(", ");
    let time = "timestamp(3) without time zone";
    let person = format!("id bigint, name text, emailaddress text, creditcard text, city text, state text, datetime {time}, extra text");
    let auction = format!(
        "id bigint, itemname text, description text, initialbid bigint, reserve bigint, datetime {time}, expires {time}, seller bigint, category bigint, extra text"
    );
    let bid = format!("auction bigint, bidder bigint, price bigint, channel text, url text, datetime {time}, extra text");
    assert_eq!(names(&config(&[("table", "person")])), person);
    assert_eq!(names(&config(&[("table", "Auction")])), auction);
    assert_eq!(names(&config(&[("table", "bid")])), bid);
    let nested = format!("event_type integer, person row<{person}>, auction row<{auction}>, bid row<{bid}>, datetime {time}");
    assert_eq!(names(&config(&[])), nested);
    for table in [None, Some("person"), Some("auction"), Some("bid")] {
        let config = config(&table.map_or(vec![], |table| vec![("table", table)]));
        config.validate(&config.columns()).unwrap();
    }
}

#[test]
fn a_seed_stands_for_its_events_for_ever() {
    // Pinned: recorded results and saved offsets rely on these rows.
    let golden = |table, row: usize| lines(&read(&[("events.num", "5000"), ("table", table), ("seed", "7")]))[row].clone();
    assert_eq!(golden("bid", 0), BID_0);
    assert_eq!(golden("bid", 4000), BID_4000);
    assert_eq!(golden("auction", 200), AUCTION_200);
    assert_eq!(golden("person", 99), PERSON_99);
    let bids = |seed| lines(&read(&[("events.num", "5000"), ("table", "bid"), ("seed", seed)]));
    assert_eq!(bids("7"), bids("7"));
    assert_eq!(bids("7").iter().zip(bids("8")).filter(|(one, other)| *one == other).count(), 0);
}

const BID_0: &str = "1006|1001|3053|channel-3984|https://www.nexmark.com/egm/gvk/_nza/item.htm?query=1&channel_id=166723584|2015-07\
    -15T00:00:00|xtfvaaswvxpzaarnmdnrrsquucmcmhrnafgpilbfmhblyibtungqttesdhfimyt";
const BID_4000: &str = "1256|1001|250|Apple|https://www.nexmark.com/qld/oqz/_yme/item.htm?query=1|2015-07-15T00:00:00.434|qlxukstxcdyf\
    zukpbfhperdcuobofpwwxuwwojavzxeixgtknksfvlpyfdbgmmhblxyessnrogcz";
const AUCTION_200: &str = "1200|lsslnsoldlykewmy|vbbwgwmnxslsqr fqkuuq hlppug ajrcstimztpni addadzbpfcqnq|26627|27868|2015-07-15T00:00:00\
    .330|2015-07-15T00:00:00.526|1000|11|aiqkmgonxpcozijkrqztfojqthxlbtztmmzrhkbzkhowrsbvvihduhudiqamyqefyrgwtbvqg\
    mssbkafwonimvhijzhtxieezstsiwaxdolicxxzepflppunveuxjnjcmylrbnwqmdxoobiqzsjnksgjkezaotfwrklypspeimbwanzibciwebi\
    gmirdusasknegqjsrtielqiuvgmcsxjrltcftmflwmkxwxbaciziuuyecgfjkqechcudaucsxkbumeyokrphxmppaiwztymghlzyatrbaadjhj\
    usxyvzloztzbznqjrhmblwkpbhjziocisgfdzbepyvlaeqhhugdemugkrcpavpfudpiu";
const PERSON_99: &str = "1099|Luke Smith|coue@xpe.com|7337 9531 4491 6632|Cheyenne|WY|2015-07-15T00:00:00.495|irxioeginhgcmnmgohrfebuxb\
    dybenmfgeoituedevqeaokzwsrpurncqbbawffycigovdnkowgnnokehmbynqqqxalzqpmbvklqvwbwlhhlvotxp";

#[test]
fn any_parallelism_and_any_splits_read_the_same_events() {
    for table in [None, Some("bid"), Some("auction")] {
        let mut pairs = vec![("events.num", "3333")];
        pairs.extend(table.map(|table| ("table", table)));
        let wanted = sorted(lines(&read(&pairs)));
        for (splits, parallelism, max_rows) in
            [("1", 1, 7), ("1", 3, 1000), ("4", 1, 64), ("5", 2, 1), ("8", 3, 100), ("3", 8, 50), ("100", 4, 33)]
        {
            let mut pairs = pairs.clone();
            pairs.push(("splits", splits));
            let config = config(&pairs);
            let got = (0..parallelism).flat_map(|subtask| lines(&drain(source(&config, subtask, parallelism, None), max_rows))).collect();
            assert_eq!(sorted(got), wanted, "{table:?}: {splits} splits, parallelism {parallelism}, {max_rows} rows");
        }
        let got = (0..4).flat_map(|subtask| lines(&drain(source(&config(&pairs), subtask, 4, None), 500))).collect();
        assert_eq!(sorted(got), wanted, "{table:?}: default splits");
    }
}

#[test]
fn one_subtask_reads_its_splits_in_the_order_of_their_events() {
    let wanted = lines(&read(&[("events.num", "3333")]));
    assert_eq!(lines(&drain(source(&config(&[("events.num", "3333"), ("splits", "7")]), 0, 1, None), 100)), wanted);
}

#[test]
fn a_restore_at_any_parallelism_goes_on_where_it_stopped() {
    for table in [None, Some("bid"), Some("person")] {
        let mut pairs = vec![("events.num", "4321"), ("seed", "3")];
        pairs.extend(table.map(|table| ("table", table)));
        let wanted = sorted(lines(&read(&pairs)));
        // The state after no, some and all rows; one subtask stands further than the other.
        for (rows, polls, parallelism) in [(17, 0, 2), (17, 5, 3), (1, 9, 1), (100, 11, 5), (1000, 100, 2)] {
            let config = config(&pairs);
            let (mut got, mut states) = (Vec::new(), Vec::new());
            for subtask in 0..3 {
                let mut source = source(&config, subtask, 3, None);
                for _ in 0..polls * (subtask + 1) {
                    got.extend(next(&mut source, rows).map(|batch| lines(&batch)).unwrap_or_default());
                }
                states.extend(source.splits().unwrap());
            }
            assert_eq!(states.len(), 3, "a split that has ended is still named");
            let before = got.len();
            states.reverse();
            let mut again = Vec::new();
            for subtask in 0..parallelism {
                let mut source = source(&config, subtask, parallelism, Some(&states));
                again.extend(source.splits().unwrap());
                while let Some(batch) = next(&mut source, 99) {
                    got.extend(lines(&batch));
                }
            }
            again.sort_by(|one, other| other.split.cmp(&one.split));
            assert_eq!(again, states, "restoring keeps every offset");
            assert_eq!(got.len(), wanted.len(), "{table:?}: {rows} rows, {polls} polls, parallelism {parallelism}: {before} before");
            assert_eq!(sorted(got), wanted, "{table:?}: {rows} rows, {polls} polls, parallelism {parallelism}");
        }
    }
}

#[test]
fn a_state_that_does_not_fit_is_refused() {
    let state = |split: &str, offset: &str| SplitState { split: split.to_string(), offset: offset.to_string() };
    let restore = |pairs: &[(&str, &str)], states: Vec<SplitState>| {
        let config = config(pairs);
        let columns = config.columns();
        NexmarkSource::new(config, &columns, &[0], 0, 1, Some(states)).err().map(|error| error.code().as_str().to_string())
    };
    let corrupted = Some("XX001".to_string());
    assert_eq!(restore(&[], vec![state("1/2", "50"), state("0/2", "100")]), None);
    assert_eq!(restore(&[], vec![]), corrupted);
    assert_eq!(restore(&[], vec![state("0/2", "0")]), corrupted);
    assert_eq!(restore(&[], vec![state("0/2", "0"), state("0/2", "0")]), corrupted);
    assert_eq!(restore(&[], vec![state("0/2", "0"), state("2/2", "0")]), corrupted);
    assert_eq!(restore(&[], vec![state("0", "0")]), corrupted);
    assert_eq!(restore(&[], vec![state("0/1", "-1")]), corrupted);
    assert_eq!(restore(&[("splits", "2")], vec![state("0/1", "0")]), Some("22023".to_string()));
    assert_eq!(restore(&[], vec![state("0/2", "0"), state("1/2", "0")]), Some("22023".to_string()));
}

#[test]
fn a_flat_table_has_the_members_of_the_nested_one() {
    let pairs = [("events.num", "2500"), ("seed", "11")];
    let nested = read(&pairs);
    for table in ["person", "auction", "bid"] {
        let flat = read(&[pairs[0], pairs[1], ("table", table)]);
        let rows = nested[table].as_struct();
        let of_kind = is_not_null(&nested[table]).unwrap();
        assert_eq!(flat.num_columns(), rows.num_columns());
        for (member, column) in rows.columns().iter().zip(flat.columns()) {
            assert_eq!(&filter(member, &of_kind).unwrap(), &remove_nulls(column), "{table}");
        }
        let event_times = filter(&nested["datetime"], &of_kind).unwrap();
        assert_eq!(event_times.as_primitive::<TimestampMicrosecondType>().values(), times(&flat, "datetime"));
    }
}

/// The same array; it must not have NULLs.
fn remove_nulls(array: &ArrayRef) -> ArrayRef {
    assert_eq!(array.null_count(), 0);
    Arc::clone(array)
}

#[test]
fn a_projection_fills_the_same_values() {
    for pairs in [
        vec![("events.num", "700")],
        vec![("events.num", "700"), ("table", "bid")],
        vec![("events.num", "7000"), ("table", "auction")],
        vec![("events.num", "7000"), ("table", "person")],
    ] {
        let config = config(&pairs);
        let columns = config.columns();
        let full = read(&pairs);
        let reversed: Vec<usize> = (0..columns.len()).rev().collect();
        let alone: Vec<Vec<usize>> = (0..columns.len()).map(|column| vec![column]).collect();
        for projection in [vec![], reversed].into_iter().chain(alone) {
            let source = NexmarkSource::new(config.clone(), &columns, &projection, 0, 1, None).unwrap();
            let mut rows = 0;
            let batches: Vec<RecordBatch> = {
                let mut source = source;
                std::iter::from_fn(|| next(&mut source, 128)).inspect(|batch| rows += batch.num_rows()).collect()
            };
            assert_eq!(rows, full.num_rows());
            if !projection.is_empty() {
                assert_eq!(concat_batches(&batches[0].schema(), &batches).unwrap(), full.project(&projection).unwrap());
            }
        }
        assert!(NexmarkSource::new(config, &columns, &[columns.len()], 0, 1, None).is_err());
    }
}

#[test]
fn declared_columns_may_be_a_part_in_any_order_and_case() {
    let column = |name: &str, ty| Column { name: name.to_string(), ty, nullable: true, default: None };
    let row = SqlType::Row(vec![("dateTime".to_string(), SqlType::TIMESTAMP), ("PRICE".to_string(), SqlType::BigInt)]);
    let columns = [column("bid", row), column("dateTime", SqlType::Timestamp { precision: 3 })];
    let config = config(&[("events.num", "500")]);
    config.validate(&columns).unwrap();
    let batch = drain(NexmarkSource::new(config.clone(), &columns, &[0, 1], 0, 1, None).unwrap(), 100);
    let full = read(&[("events.num", "500")]);
    let (bids, full_bids) = (batch["bid"].as_struct(), full["bid"].as_struct());
    assert_eq!(bids.column_names(), ["dateTime", "PRICE"]);
    assert_eq!(&bids["PRICE"], &full_bids["price"]);
    assert_eq!(&bids["dateTime"], &full_bids["datetime"]);
    assert_eq!(&batch["dateTime"], &full["datetime"]);
}

#[test]
fn columns_that_can_not_be_filled_are_refused() {
    let column = |name: &str, ty| Column { name: name.to_string(), ty, nullable: true, default: None };
    let code =
        |pairs: &[(&str, &str)], column: Column| config(pairs).validate(&[column]).err().map(|error| error.code().as_str().to_string());
    let (bid, nested) = ([("table", "bid")], []);
    let undefined = Some("42703".to_string());
    let mismatch = Some("42804".to_string());
    assert_eq!(code(&bid, column("price", SqlType::BigInt)), None);
    assert_eq!(code(&bid, column("datetime", SqlType::TIMESTAMP)), None);
    assert_eq!(code(&bid, Column { nullable: false, ..column("price", SqlType::BigInt) }), None);
    assert_eq!(code(&bid, column("prize", SqlType::BigInt)), undefined);
    assert_eq!(code(&bid, column("seller", SqlType::BigInt)), undefined);
    assert_eq!(code(&bid, column("event_type", SqlType::Int)), undefined);
    assert_eq!(code(&bid, column("price", SqlType::Int)), mismatch);
    assert_eq!(code(&bid, column("price", SqlType::Text)), mismatch);
    assert_eq!(code(&bid, column("datetime", SqlType::Timestamp { precision: 0 })), mismatch);
    assert_eq!(code(&bid, Column { default: Some("1".to_string()), ..column("price", SqlType::BigInt) }), Some("0A000".to_string()));
    assert_eq!(code(&nested, column("event_type", SqlType::BigInt)), mismatch);
    assert_eq!(code(&nested, column("datetime", SqlType::Text)), mismatch);
    assert_eq!(code(&nested, column("price", SqlType::BigInt)), undefined);
    assert_eq!(code(&nested, column("bid", SqlType::BigInt)), mismatch);
    let row = |name: &str, ty| SqlType::Row(vec![(name.to_string(), ty)]);
    assert_eq!(code(&nested, column("bid", row("price", SqlType::BigInt))), None);
    assert_eq!(code(&nested, column("bid", row("prize", SqlType::BigInt))), undefined);
    assert_eq!(code(&nested, column("bid", row("price", SqlType::Int))), mismatch);
    let not_null = Column { nullable: false, ..column("bid", row("price", SqlType::BigInt)) };
    assert_eq!(code(&nested, not_null), Some("42P16".to_string()));
}

#[test]
fn options_that_are_unknown_or_malformed_are_refused() {
    let refused = |pairs: &[(&str, &str)]| {
        let error = NexmarkConfig::parse(&options(pairs)).expect_err(&format!("{pairs:?} was accepted"));
        assert_eq!(error.code(), &SqlState::INVALID_PARAMETER_VALUE, "{error:?}");
        error
    };
    let error = refused(&[("event.num", "5")]);
    assert!(error.message().contains("\"event.num\""), "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("events.num") && hint.contains("bid.hot-ratio.auctions")), "{error:?}");
    for (name, value) in [
        ("events.num", "-1"),
        ("events.num", "many"),
        ("events.num", "99999999999999999999"),
        ("seed", "x"),
        ("splits", "0"),
        ("splits", "70000"),
        ("table", "bids"),
        ("first-event.rate", "0"),
        ("events.rate", "1.5"),
        ("person.proportion", "0"),
        ("bid.avg-size", "1 gb"),
        ("bid.avg-size", "2000kb"),
        ("bid.hot-ratio.auctions", "0"),
        ("max-emit-speed", "maybe"),
        ("keep-alive", ""),
        ("base.time", "yesterday"),
        ("base.time", "9223372036854775807"),
        ("connector", "kafka"),
        ("rate.shape", "SINE"),
    ] {
        let error = refused(&[(name, value)]);
        assert!(error.message().contains(name), "{error:?}");
    }
    refused(&[("events.num", "5"), ("events_num", "6")]);
    refused(&[("events.rate", "5"), ("max-emit-speed", "true")]);
    refused(&[("events.num", "100000000000000"), ("first-event.rate", "1")]);
    assert_eq!(config(&[("connector", "nexmark"), ("seed", " 0 ")]), NexmarkConfig::default());
    assert_eq!(config(&[("bid.avg-size", "1 KB"), ("auction.avg_size", "300b")]).bid_bytes, 1024);
}

#[test]
fn only_a_table_with_a_number_of_events_ends() {
    assert!(config(&[("events.num", "5")]).bounded());
    assert!(!config(&[]).bounded());
    assert!(!config(&[("events.num", "0")]).bounded());
    let alive = config(&[("events.num", "5"), ("keep-alive", "true")]);
    assert!(!alive.bounded());
    let mut waiting = source(&alive, 0, 1, None);
    assert!(matches!(waiting.poll(10, 0).unwrap(), SourceEvent::Batch(batch) if batch.num_rows() == 5));
    assert!(matches!(waiting.poll(10, 0).unwrap(), SourceEvent::Wait(KEEP_ALIVE_US)));
    // An unbounded one goes on from anywhere.
    let state = SplitState { split: "0/1".to_string(), offset: "9000000000000".to_string() };
    let mut far = source(&config(&[("table", "bid")]), 0, 1, Some(&[state]));
    let batch = next(&mut far, 10).unwrap();
    assert_eq!(times(&batch, "datetime")[0], (1_436_918_400_000 + 900_000_000_000) * 1000);
    // A subtask without a split has nothing to read.
    assert!(matches!(source(&config(&[("splits", "1")]), 1, 2, None).poll(10, 0).unwrap(), SourceEvent::End));
}

#[test]
fn event_times_depend_on_the_number_alone() {
    // 7 does not divide 1000, 3000 has several events a millisecond, 10000000 ten thousand.
    for rate in [1, 7, 999, 1000, 1001, 3000, 10_000, 10_000_000_u64] {
        let pairs = [("events.num", "20000"), ("first-event.rate", &*rate.to_string()), ("base.time", "1000000000000")];
        let batch = read(&pairs);
        for (event, time_us) in times(&batch, "datetime").iter().enumerate() {
            let wanted_ms = 1_000_000_000_000 + (event as i128 * 1000 / rate as i128) as i64;
            assert_eq!(*time_us, wanted_ms * 1000, "event {event} at {rate} a second");
        }
    }
    let first = |pairs: &[(&str, &str)]| times(&read(pairs), "datetime")[1];
    let base = 1_436_918_400_000_000;
    assert_eq!(first(&[("events.num", "2")]), base, "10000 a second are ten a millisecond");
    assert_eq!(first(&[("events.num", "2"), ("next-event.rate", "500"), ("max-emit-speed", "true")]), base + 2000);
    assert_eq!(
        first(&[("events.num", "2"), ("first-event.rate", "250"), ("next-event.rate", "500"), ("max-emit-speed", "true")]),
        base + 4000
    );
    assert_eq!(first(&[("events.num", "2"), ("base.time", "2020-01-01 00:00:00.5")]), 1_577_836_800_500_000);
}

#[test]
fn half_of_the_bids_are_for_hot_auctions_and_three_quarters_by_hot_bidders() {
    let bids = read(&[("events.num", "200000"), ("table", "bid")]);
    let (auctions, bidders) = (integers(&bids, "auction"), integers(&bids, "bidder"));
    let last_auction = |row: usize| row as i64 / 46 * 3 + 2;
    let last_person = |row: usize| row as i64 / 46;
    let hot_auctions = share(auctions, |row, auction| auction == 1000 + last_auction(row) / 100 * 100);
    assert!((0.50..0.52).contains(&hot_auctions), "{hot_auctions}");
    let hot_bidders = share(bidders, |row, bidder| bidder == 1000 + last_person(row) / 100 * 100 + 1);
    assert!((0.745..0.76).contains(&hot_bidders), "{hot_bidders}");
    for (row, auction) in auctions.iter().enumerate() {
        let last = last_auction(row);
        assert!((1000 + (last - 100).max(0)..=1000 + last + 10).contains(auction), "bid {row} for auction {auction}");
    }
    for (row, bidder) in bidders.iter().enumerate() {
        let last = last_person(row);
        assert!((1000 + (last - 999).max(0)..=1000 + last + 10).contains(bidder), "bid {row} by {bidder}");
    }
    let spread: HashSet<i64> = auctions[100_000..].iter().copied().collect();
    assert!(spread.len() > 5000, "{} auctions", spread.len());

    let other = [
        ("events.num", "200000"),
        ("table", "bid"),
        ("bid.hot-ratio.auctions", "1"),
        ("bid.hot-ratio.bidders", "10"),
        ("in-flight.auctions", "1000"),
    ];
    let bids = read(&other);
    let hot_auctions = share(integers(&bids, "auction"), |row, auction| auction == 1000 + last_auction(row) / 100 * 100);
    assert!(hot_auctions < 0.01, "{hot_auctions}");
    let hot_bidders = share(integers(&bids, "bidder"), |row, bidder| bidder == 1000 + last_person(row) / 100 * 100 + 1);
    assert!((0.895..0.905).contains(&hot_bidders), "{hot_bidders}");

    let sales = read(&[("events.num", "500000"), ("table", "auction")]);
    let hot_sellers = share(integers(&sales, "seller"), |row, seller| seller == 1000 + row as i64 / 3 / 100 * 100);
    assert!((0.74..0.76).contains(&hot_sellers), "{hot_sellers}");
}

#[test]
fn prices_are_uniform_in_their_logarithm() {
    // The same by the library's power function.
    for i in 0..100_000_u64 {
        let draw = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (i << 40);
        let uniform = (draw >> 11) as f64 / (1u64 << 53) as f64;
        let wanted = 10f64.powf(uniform * 6.0) * 100.0;
        let got = generator::price(draw) as f64;
        assert!((got - wanted).abs() <= 0.5 + 1e-4, "{draw:x}: {got} instead of {wanted}");
    }
    assert_eq!((generator::price(0), generator::price(u64::MAX)), (100, 100_000_000));
    let bids = read(&[("events.num", "100000"), ("table", "bid")]);
    for decade in 0..6 {
        let from = 100 * 10i64.pow(decade);
        let part = share(integers(&bids, "price"), |_, price| (from..from * 10).contains(&price));
        assert!((0.158..0.175).contains(&part), "{part} of the prices from {from}");
    }
}

#[test]
fn channels_have_one_url_each_and_half_of_the_bids_come_through_four() {
    let bids = read(&[("events.num", "100000"), ("table", "bid")]);
    let (channels, urls) = (texts(&bids, "channel"), texts(&bids, "url"));
    let mut known: BTreeMap<&str, &str> = BTreeMap::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (channel, url) in channels.iter().zip(&urls) {
        assert_eq!(known.entry(channel).or_insert(url), url, "{channel}");
        *counts.entry(channel).or_default() += 1;
        let parts: Vec<&str> = url.strip_prefix("https://www.nexmark.com/").unwrap().split('/').collect();
        assert!(parts.len() == 4 && parts[..3].iter().all(|part| (3..=4).contains(&part.len())), "{url}");
        let channel_id = parts[3].strip_prefix("item.htm?query=1").unwrap();
        match channel.strip_prefix("channel-") {
            None => assert!(["Google", "Facebook", "Baidu", "Apple"].contains(channel) && channel_id.is_empty(), "{channel} {url}"),
            Some(number) => {
                let number: i32 = number.parse().unwrap();
                assert!((0..10_000).contains(&number), "{channel}");
                let wanted = format!("&channel_id={}", number.reverse_bits().unsigned_abs());
                assert!(channel_id.is_empty() || channel_id == wanted, "{channel} {url}");
            }
        }
    }
    for hot in ["Google", "Facebook", "Baidu", "Apple"] {
        let part = counts[hot] as f64 / channels.len() as f64;
        assert!((0.12..0.13).contains(&part), "{part} through {hot}");
    }
    assert!(known.len() > 9000, "{} channels", known.len());
    let without = known.iter().filter(|(channel, url)| channel.starts_with("channel-") && !url.contains("channel_id")).count();
    assert!((0.08..0.12).contains(&(without as f64 / known.len() as f64)), "{without} of {} without number", known.len());
}

#[test]
fn persons_are_plausible() {
    let persons = read(&[("events.num", "250000"), ("table", "person")]);
    let ids: Vec<i64> = (1000..6000).collect();
    assert_eq!(integers(&persons, "id"), ids);
    let distinct = |column: &str| texts(&persons, column).into_iter().collect::<HashSet<_>>().len();
    assert_eq!((distinct("name"), distinct("city"), distinct("state")), (99, 10, 6));
    assert!(texts(&persons, "name").contains(&"Walter Noris") && texts(&persons, "city").contains(&"San Francisco"));
    for email in texts(&persons, "emailaddress") {
        let (user, domain) = email.strip_suffix(".com").and_then(|address| address.split_once('@')).unwrap();
        assert!(user.len() <= 6 && domain.len() <= 4 && user.trim() == user && domain.trim() == domain, "{email}");
    }
    assert!(distinct("emailaddress") > 4900);
    for card in texts(&persons, "creditcard") {
        let groups: Vec<&str> = card.split(' ').collect();
        assert!(groups.len() == 4 && groups.iter().all(|group| group.len() == 4 && group.bytes().all(|b| b.is_ascii_digit())), "{card}");
    }
    assert_eq!(distinct("creditcard"), 5000);
    let bytes = |row: usize| {
        8 + ["name", "emailaddress", "creditcard", "city", "state", "extra"].map(|c| text_bytes(&persons, c, row)).iter().sum::<usize>()
    };
    let mean = mean((0..persons.num_rows()).map(bytes));
    assert!((197.0..203.0).contains(&mean), "{mean} bytes");
}

fn text_bytes(batch: &RecordBatch, column: &str, row: usize) -> usize {
    batch[column].as_string::<i32>().value(row).len()
}

#[test]
fn auctions_are_plausible() {
    let auctions = read(&[("events.num", "100000"), ("table", "auction")]);
    let ids: Vec<i64> = (1000..7000).collect();
    assert_eq!(integers(&auctions, "id"), ids);
    let categories: BTreeMap<i64, usize> = integers(&auctions, "category").iter().fold(BTreeMap::new(), |mut counts, category| {
        *counts.entry(*category).or_default() += 1;
        counts
    });
    assert_eq!(categories.keys().copied().collect::<Vec<_>>(), [10, 11, 12, 13, 14]);
    assert!(categories.values().all(|count| (1080..1320).contains(count)), "{categories:?}");
    for (initial, reserve) in integers(&auctions, "initialbid").iter().zip(integers(&auctions, "reserve")) {
        assert!((100..=100_000_000).contains(initial) && (100..=100_000_000).contains(&(reserve - initial)));
    }
    // 100 auctions in flight are 1666 events, 166 ms: an auction lasts up to twice that.
    let lengths: Vec<i64> =
        times(&auctions, "expires").iter().zip(times(&auctions, "datetime")).map(|(end, start)| (end - start) / 1000).collect();
    assert!(lengths.iter().all(|length| (1..=334).contains(length)));
    let mean_length = lengths.iter().sum::<i64>() as f64 / lengths.len() as f64;
    assert!((160.0..174.0).contains(&mean_length), "{mean_length} ms");
    for (column, most) in [("itemname", 19), ("description", 99)] {
        let texts = texts(&auctions, column);
        assert!(texts.iter().all(|text| text.len() <= most && text.trim() == *text), "{column}");
        assert!(texts.iter().map(|text| text.len()).max() >= Some(most - 1), "{column}");
        assert!(texts.iter().all(|text| text.bytes().all(|b| b == b' ' || b.is_ascii_lowercase())), "{column}");
        let spaces = texts.iter().map(|text| text.matches(' ').count()).sum::<usize>() as f64;
        let part = spaces / texts.iter().map(|text| text.len()).sum::<usize>() as f64;
        assert!((0.05..0.08).contains(&part), "{part} of {column} are spaces");
    }
    let mean = mean(
        (0..auctions.num_rows())
            .map(|row| 48 + ["itemname", "description", "extra"].map(|c| text_bytes(&auctions, c, row)).iter().sum::<usize>()),
    );
    assert!((495.0..505.0).contains(&mean), "{mean} bytes");
}

#[test]
fn filler_has_the_size_that_is_missing() {
    for (size, least, most) in [("100b", 54, 81), ("32", 0, 0), ("10", 0, 0), ("1kb", 794, 1189)] {
        let bids = read(&[("events.num", "5000"), ("table", "bid"), ("bid.avg-size", size)]);
        let extras = texts(&bids, "extra");
        let lengths: Vec<usize> = extras.iter().map(|extra| extra.len()).collect();
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&least), Some(&most)), "{size}");
        assert!(extras.iter().all(|extra| extra.bytes().all(|b| b.is_ascii_lowercase())));
    }
    let extras = read(&[("events.num", "50000"), ("table", "bid")]);
    let mut counts = [0usize; 26];
    texts(&extras, "extra").iter().flat_map(|extra| extra.bytes()).for_each(|letter| counts[usize::from(letter - b'a')] += 1);
    let wanted = counts.iter().sum::<usize>() as f64 / 26.0;
    assert!(counts.iter().all(|count| (*count as f64 / wanted - 1.0).abs() < 0.02), "{counts:?}");
}

#[test]
fn a_rate_lets_rows_out_as_time_goes_on() {
    // 2000 events a second: two every tick of a millisecond, from the first poll on.
    let config = config(&[("events.num", "10000"), ("events.rate", "2000")]);
    let mut source = source(&config, 0, 1, None);
    let start = 5_000_000_000;
    let mut rows_at = |after_us: i64| match source.poll(1000, start + after_us).unwrap() {
        SourceEvent::Batch(batch) => Ok(batch.num_rows()),
        SourceEvent::Wait(us) => Err(us),
        SourceEvent::End => panic!("the end"),
    };
    assert_eq!(rows_at(0), Ok(1));
    assert_eq!(rows_at(0), Err(1000));
    assert_eq!(rows_at(400), Err(600));
    assert_eq!(rows_at(1000), Ok(2));
    assert_eq!(rows_at(1999), Err(1));
    assert_eq!(rows_at(-7), Err(2000), "a clock that is set back makes it wait, not fail");
    assert_eq!(rows_at(101_000), Ok(200));
    assert_eq!(rows_at(1_101_000), Ok(1000), "no more than asked for");
    assert_eq!(rows_at(1_101_000), Ok(1000));
    assert_eq!(rows_at(1_101_000), Err(1000));
}

#[test]
fn a_rate_is_shared_by_the_subtasks_and_starts_anew_after_a_restore() {
    let config = config(&[("events.num", "100000"), ("next-event.rate", "1000"), ("table", "bid"), ("splits", "4")]);
    let rows = |source: &mut NexmarkSource, now_us| {
        let mut rows = 0;
        while let SourceEvent::Batch(batch) = source.poll(1000, now_us).unwrap() {
            rows += batch.num_rows();
        }
        rows
    };
    let mut sources: Vec<_> = (0..2).map(|subtask| source(&config, subtask, 2, None)).collect();
    assert_eq!(sources.iter_mut().map(|source| rows(source, 0)).sum::<usize>(), 0, "the first event is a person");
    assert_eq!(sources.iter_mut().map(|source| rows(source, 9_999_000)).sum::<usize>(), 10_000 / 50 * 46);
    let states: Vec<_> = sources.iter().flat_map(|source| source.splits().unwrap()).collect();
    let mut sources: Vec<_> = (0..3).map(|subtask| source(&config, subtask, 3, Some(&states))).collect();
    let later = 77_000_000;
    assert_eq!(sources.iter_mut().map(|source| rows(source, later)).sum::<usize>(), 1, "the first row is due at once");
    let restored = sources.iter_mut().map(|source| rows(source, later + 1_000_000)).sum::<usize>();
    assert!((915..=925).contains(&restored), "{restored} bids in a second of 1000 events");
}

#[test]
fn the_wall_clock_rate_comes_from_the_option_that_says_it() {
    let rate = |pairs: &[(&str, &str)]| config(pairs).wall_rate;
    assert_eq!(rate(&[]), None);
    assert_eq!(rate(&[("first-event.rate", "70")]), None);
    assert_eq!(rate(&[("events.rate", "5")]), Some(5));
    assert_eq!(rate(&[("events.rate", "0"), ("next-event.rate", "7")]), None);
    assert_eq!(rate(&[("next-event.rate", "7")]), Some(7));
    assert_eq!(rate(&[("next-event.rate", "7"), ("max-emit-speed", "true")]), None);
    assert_eq!(rate(&[("max-emit-speed", "false")]), Some(10_000));
    assert_eq!(rate(&[("max-emit-speed", "false"), ("first-event.rate", "70")]), Some(70));
    assert_eq!(rate(&[("max-emit-speed", "false"), ("events.rate", "5")]), Some(5));
}

#[test]
fn nulls_are_where_no_run_is() {
    let run = |first_row, count| Run { epoch: 0, first_event: 0, first_row, count };
    let valid = |runs: &[Run], rows| nulls_outside(runs, rows).iter().map(|valid| if valid { '1' } else { '.' }).collect::<String>();
    assert_eq!(valid(&[run(1, 2), run(5, 1)], 8), ".11..1..");
    assert_eq!(valid(&[], 3), "...");
    assert_eq!(valid(&[run(0, 3)], 3), "111");
}

#[test]
fn a_source_has_reached_what_another_run_read_once_it_has_read_that_much_of_each_split() {
    let config = config(&[("table", "bid"), ("events.num", "10000"), ("splits", "3")]);
    let run = |batches: usize| -> (Vec<NexmarkSource>, Vec<SplitState>) {
        let mut subtasks: Vec<NexmarkSource> = (0..2).map(|subtask| source(&config, subtask, 2, None)).collect();
        for subtask in &mut subtasks {
            (0..batches).for_each(|_| drop(next(subtask, 700)));
        }
        let splits = subtasks.iter().flat_map(|subtask| subtask.splits().unwrap()).collect();
        (subtasks, splits)
    };
    let (_, target) = run(2);
    for (batches, reached) in [(0, false), (1, false), (2, true), (3, true), (100, true)] {
        let (subtasks, _) = run(batches);
        for subtask in subtasks {
            assert_eq!(subtask.has_reached(&target).unwrap(), reached, "after {batches} batches");
        }
    }
    // One split that is behind is enough.
    let (mut subtasks, _) = run(2);
    let mut further = target;
    let last = further.iter_mut().find(|state| state.split == "2/3").unwrap();
    last.offset = "9999".to_string();
    assert!(!subtasks.remove(0).has_reached(&further).unwrap());
    assert!(subtasks.remove(0).has_reached(&further).unwrap());
}
