//! The extended protocol message by message, as PostgreSQL has it: which messages come back, and what they say.

use std::io::{Read, Write};

use crate::reference::Reference;
use crate::run;
use crate::server::{Server, settings};
use crate::wire::{Message, Raw, message, query, sync, text};

const SCHEMA: [&str; 2] =
    ["CREATE TABLE t (id INT PRIMARY KEY, g BIGINT NOT NULL, name TEXT)", "CREATE TABLE u (id INT, w DOUBLE PRECISION)"];

const BOOL: u32 = 16;
const INT8: u32 = 20;
const INT2: u32 = 21;
const INT4: u32 = 23;
const TEXT: u32 = 25;
const FLOAT4: u32 = 700;
const UNKNOWN: u32 = 705;
const VARCHAR: u32 = 1043;

fn parse(name: &str, sql: &str, types: &[u32]) -> Vec<u8> {
    let mut body = [name.as_bytes(), b"\0", sql.as_bytes(), b"\0"].concat();
    body.extend((types.len() as u16).to_be_bytes());
    body.extend(types.iter().flat_map(|ty| ty.to_be_bytes()));
    message(b'P', &body)
}

/// A Bind of values, all of them in `formats`, with the formats of the result.
fn bind(portal: &str, statement: &str, values: &[Option<&[u8]>], formats: &[u16], result: &[u16]) -> Vec<u8> {
    let list = |formats: &[u16]| {
        [&(formats.len() as u16).to_be_bytes()[..], &formats.iter().flat_map(|f| f.to_be_bytes()).collect::<Vec<_>>()].concat()
    };
    let mut body = [portal.as_bytes(), b"\0", statement.as_bytes(), b"\0", &list(formats), &(values.len() as u16).to_be_bytes()].concat();
    for value in values {
        match value {
            None => body.extend((-1i32).to_be_bytes()),
            Some(value) => body.extend([&(value.len() as u32).to_be_bytes()[..], value].concat()),
        }
    }
    body.extend(list(result));
    message(b'B', &body)
}

/// A Bind of the unnamed statement to the unnamed portal.
fn bound(values: &[Option<&[u8]>], formats: &[u16]) -> Vec<u8> {
    bind("", "", values, formats, &[])
}

fn describe(kind: u8, name: &str) -> Vec<u8> {
    message(b'D', &[&[kind], name.as_bytes(), b"\0"].concat())
}

fn close(kind: u8, name: &str) -> Vec<u8> {
    message(b'C', &[&[kind], name.as_bytes(), b"\0"].concat())
}

fn execute(portal: &str) -> Vec<u8> {
    message(b'E', &[portal.as_bytes(), b"\0\0\0\0\0"].concat())
}

fn flush() -> Vec<u8> {
    message(b'H', b"")
}

/// What a message says that is the same on every system.
fn shown(message: &Message) -> String {
    let kind = message.kind as char;
    match message.kind {
        b'E' => {
            let field = |name| message.field(name).unwrap_or_default();
            format!("E {} {} {}", field(b'C'), field(b'P'), field(b'M'))
        }
        b't' => format!("t {:?}", &message.body[2..]),
        b'T' => {
            // The OID of the table and the number in it are no business of who reads rows.
            let mut rest = &message.body[2..];
            let mut columns = String::new();
            while let Some(end) = rest.iter().position(|byte| *byte == 0) {
                let (name, fields) = rest.split_at(end + 1);
                columns.push_str(&format!(" {} {:?}", text(name), &fields[6..18]));
                rest = &fields[18..];
            }
            format!("T{columns}")
        }
        b'C' | b'D' => format!("{kind} {:?}", text(&message.body)),
        _ => kind.to_string(),
    }
}

/// What each step of the conversation gives.
fn conversation<S: Read + Write>(raw: &mut Raw<S>) -> Vec<String> {
    for sql in SCHEMA {
        raw.ask(&[query(sql.as_bytes())]);
    }
    let mut said = Vec::new();
    let mut step = |what: &str, sent: &[Vec<u8>]| {
        raw.send(&sent.concat());
        let (messages, status) = raw.ready();
        let shown = messages.iter().filter(|message| message.kind != b'S').map(shown).collect::<Vec<_>>().join(" | ");
        said.push(format!("{what}: {shown} | {}", status as char));
    };
    let one = |sql: &str| parse("", sql, &[]);
    let selects = |sql: &str, value: &[u8], format: u16| [one(sql), bound(&[Some(value)], &[format]), execute(""), sync()];

    // Names.
    step("a name twice", &[parse("a", "SELECT 1", &[]), parse("a", "SELECT 2", &[]), sync()]);
    step("a name that is there", &[parse("a", "SELECT 1", &[]), sync()]);
    step("closing what is not there", &[close(b'S', "a"), close(b'S', "none"), close(b'P', "none"), sync()]);
    step("a name that is free again", &[parse("a", "SELECT 1", &[]), sync()]);
    step("the unnamed one twice", &[one("SELECT 1"), one("SELECT 2"), bound(&[], &[]), execute(""), sync()]);
    step("a portal twice", &[bind("p", "a", &[], &[], &[]), bind("p", "a", &[], &[], &[]), sync()]);
    step("a portal after its transaction", &[execute("p"), sync()]);
    step("the unnamed portal twice", &[bind("", "a", &[], &[], &[]), bind("", "a", &[], &[], &[]), execute(""), sync()]);
    step(
        "a portal closed and made again",
        &[bind("p", "a", &[], &[], &[]), close(b'P', "p"), bind("p", "a", &[], &[], &[]), execute("p"), sync()],
    );
    for (kind, name) in [(b'S', "none"), (b'P', "none"), (b'P', "")] {
        step("describing what is not there", &[describe(kind, name), sync()]);
    }
    step("binding what is not there", &[bind("", "none", &[], &[], &[]), sync()]);
    step("running what is not there", &[execute("none"), sync()]);

    // Values, text and binary.
    for (ty, value) in [
        ("int", &b"abc"[..]),
        ("int", b"abcd"),
        ("bigint", b"\0\0\0\x05"),
        ("bigint", b""),
        ("bigint", b"123456789"),
        ("boolean", b"\x01\x01"),
        ("boolean", b""),
        ("float8", b"abcd"),
        ("timestamp", b"abc"),
        ("numeric", b"abc"),
        ("numeric", b"\0\x01\0\0\x12\x34\0\0\0\x01"),
        ("numeric", b"\0\x01\0\0\0\0\0\0\x7f\x01"),
        ("numeric", b"\0\x01\0\0\0\0\0\0\0\x01x"),
        ("int[]", b"abc"),
        ("int[]", b"\0\0\0\x01\0\0\0\0\0\0\0\x17\0\0\0\x01\0\0\0\x01\0\0\0\x03abc"),
        ("int[]", b"\0\0\0\x01\0\0\0\0\0\0\0\x19\0\0\0\x01\0\0\0\x01\0\0\0\x03abc"),
    ] {
        step(&format!("binary {ty} {value:?}"), &selects(&format!("SELECT $1::{ty}"), value, 1));
    }
    for (ty, value) in
        [("int", "abc"), ("int", "99999999999"), ("boolean", "maybe"), ("timestamp", "abc"), ("float8", "1.5x"), ("int", "7")]
    {
        step(&format!("text {ty} {value}"), &selects(&format!("SELECT $1::{ty}"), value.as_bytes(), 0));
    }
    step("NULL", &[one("SELECT $1::int"), bound(&[None], &[1]), execute(""), sync()]);

    // Counts.
    let value: Option<&[u8]> = Some(b"1");
    step("too few values", &[one("SELECT $1::int + $2::int"), bound(&[value], &[]), execute(""), sync()]);
    step("too many values", &[parse("b", "SELECT 1", &[]), bind("", "b", &[value], &[], &[]), execute(""), sync()]);
    step("values of nothing", &[one(""), bound(&[value], &[]), sync()]);
    step("two formats for one value", &[one("SELECT $1::int"), bound(&[value], &[0, 0]), execute(""), sync()]);
    step("one format for no value", &[one("SELECT 1"), bound(&[], &[0]), execute(""), sync()]);
    step("two formats for three", &[one("SELECT $1::int + $2::int + $3::int"), bound(&[value; 3], &[0, 0]), execute(""), sync()]);
    step("a format that is none", &[one("SELECT $1::int"), bound(&[value], &[2]), execute(""), sync()]);
    for (sql, formats) in [("SELECT 1", &[0, 0][..]), ("SELECT 1, 2, 3", &[0, 0]), ("SELECT 1, 2, 3", &[1]), ("DELETE FROM u", &[1, 1])] {
        step("formats of results", &[one(sql), bind("", "", &[], &[], formats), describe(b'P', ""), execute(""), sync()]);
    }

    // What statements need and give.
    for sql in [
        "SELECT $1::int, $2::text, $3::bigint",
        "INSERT INTO t (id, g) VALUES ($1, $2)",
        "INSERT INTO t (id, g) SELECT $1, $2",
        "UPDATE t SET name = $2 WHERE id = $1",
        "DELETE FROM t WHERE id = $1",
        "SELECT id, name FROM t WHERE id = $1 AND name > $2 AND g IN ($3, $4)",
        "SELECT $1",
        "SELECT coalesce($1, $2)",
        "SELECT nullif($1, 3)",
        "SELECT CASE WHEN $1 THEN $2 ELSE 3 END",
        "SELECT id FROM t LIMIT $1 OFFSET $2",
        "SELECT $1 || 'x'",
        "SELECT $1 + 1",
        "SELECT $1 = $2",
        "SELECT upper($1), $2 LIKE $3",
        "SELECT 1 WHERE $1",
        "SELECT $1 IN (1, 2)",
        "SELECT $1 UNION SELECT 1",
        "SELECT 1 UNION SELECT $1",
        "SELECT id FROM t WHERE id = ANY($1)",
        "SELECT x FROM (SELECT $1 AS x) s",
        "SELECT $2::int",
        "SET application_name = y",
        "SHOW application_name",
        "BEGIN",
        "ROLLBACK",
        "SELECT id FROM t WHERE id = $1 OR $1 IS NULL",
        "SELECT $1 BETWEEN 1 AND $2",
        "SELECT $1::int, $1::text",
        "SELECT $1 + 1, $1 || 'x'",
    ] {
        step(sql, &[one(sql), describe(b'S', ""), sync()]);
    }
    for (sql, types) in [
        ("SELECT $1", &[INT4][..]),
        ("SELECT $1 + 1", &[INT8]),
        ("SELECT $1", &[TEXT]),
        ("SELECT $1::int", &[0]),
        ("SELECT $1", &[UNKNOWN]),
        ("SELECT $1 + 1", &[UNKNOWN]),
        ("SELECT id FROM t WHERE name = $1", &[VARCHAR]),
        ("SELECT $1 + 1", &[INT2]),
        ("SELECT $1 + 1", &[FLOAT4]),
        ("SELECT $1", &[BOOL]),
        ("SELECT id FROM t WHERE id = $1", &[INT8]),
        ("SELECT id FROM t WHERE id = $1", &[TEXT]),
        ("INSERT INTO u VALUES ($1)", &[INT8]),
        ("SELECT 1", &[INT4, INT4]),
    ] {
        step(&format!("{sql} of {types:?}"), &[parse("", sql, types), describe(b'S', ""), sync()]);
    }
    step("an int2", &[parse("", "SELECT $1 + 1", &[INT2]), bound(&[Some(b"\0\x05")], &[1]), execute(""), sync()]);
    step("an int2 of four bytes", &[parse("", "SELECT $1 + 1", &[INT2]), bound(&[Some(b"\0\0\0\x05")], &[1]), execute(""), sync()]);
    step("an int8", &[parse("", "SELECT id FROM t WHERE id = $1", &[INT8]), bound(&[Some(&[0; 8])], &[1]), execute(""), sync()]);
    step("values that nothing uses", &[parse("", "SELECT 1", &[INT4, INT4]), bound(&[value, value], &[]), execute(""), sync()]);

    // Nothing at all.
    for sql in ["", ";", "-- nothing", " /* nothing */ ;"] {
        step("nothing", &[one(sql), describe(b'S', ""), bound(&[], &[]), describe(b'P', ""), execute(""), execute(""), sync()]);
        step("nothing, simply", &[query(sql.as_bytes())]);
    }
    step("two statements", &[one("SELECT 1; SELECT 2"), sync()]);
    step("a place", &[one("SELECT 'é', nothing"), sync()]);
    step(
        "what follows an error",
        &[one("SELEC 1"), flush(), one("SELECT 1"), bound(&[], &[]), close(b'S', "a"), query(b"SELECT 9"), sync()],
    );
    step("the statement that was not closed", &[bind("", "a", &[], &[], &[]), execute(""), sync()]);
    step("flushes", &[one("SELECT 1"), flush(), bound(&[], &[]), flush(), flush(), execute(""), flush(), sync()]);
    step("an insert", &[one("INSERT INTO u VALUES ($1, $2)"), bound(&[value, None], &[]), describe(b'P', ""), execute(""), sync()]);
    step("run twice", &[one("SELECT 1"), bound(&[], &[]), execute(""), execute(""), sync()]);

    // A block that has failed.
    let prepared =
        [parse("c", "SELECT 1", &[]), parse("commit", "COMMIT", &[]), parse("rollback", "ROLLBACK", &[]), parse("nothing", "", &[])];
    step("prepared", &[prepared.concat(), sync()]);
    step("begin", &[query(b"BEGIN")]);
    step("a portal twice in a block", &[bind("p", "a", &[], &[], &[]), sync()]);
    step("a portal twice in a block", &[bind("p", "a", &[], &[], &[]), sync()]);
    for sql in [
        "SELECT 1",
        "SELECT nofunction()",
        "BEGIN",
        "INSERT INTO t VALUES (1, 1)",
        "SELEC",
        "",
        "SELECT relname FROM pg_catalog.pg_class",
        "COMMIT",
    ] {
        step(&format!("failed: {sql}"), &[one(sql), sync()]);
    }
    for name in ["c", "commit", "rollback", "nothing"] {
        step(&format!("failed: describe {name}"), &[describe(b'S', name), sync()]);
    }
    step("failed: bind c", &[bind("", "c", &[], &[], &[]), sync()]);
    step("failed: bind nothing", &[bind("", "nothing", &[], &[], &[]), sync()]);
    step("failed: run", &[execute("none"), sync()]);
    step("failed: close", &[close(b'S', "c"), sync()]);
    step("failed: simply", &[query(b"SELECT 1")]);
    step("failed: simply nothing", &[query(b"")]);
    step("failed: the end", &[bind("", "rollback", &[], &[], &[]), describe(b'P', ""), execute(""), sync()]);
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_extended_protocol_says_what_it_says_on_postgresql() {
    let server = Server::start(&settings(&[]));
    let ours = conversation(&mut Raw::session(server.address()));
    assert!(ours[0].contains("42P05") && ours.last().is_some_and(|last| last.ends_with("C \"ROLLBACK\" | I")), "{ours:?}");
    let reference = match Reference::start() {
        Ok(reference) => reference,
        Err(reason) => return run::skip("the extended protocol on PostgreSQL", &reason),
    };
    drop(reference.database("conversation").await);
    let theirs = conversation(&mut Raw::on_reference(&reference, "conversation"));
    let differences: Vec<String> = ours
        .iter()
        .zip(&theirs)
        .filter(|(ours, theirs)| ours != theirs)
        .map(|(ours, theirs)| format!("weir       {ours}\nPostgreSQL {theirs}"))
        .collect();
    assert!(differences.is_empty() && ours.len() == theirs.len(), "{} steps differ:\n{}", differences.len(), differences.join("\n"));
}
