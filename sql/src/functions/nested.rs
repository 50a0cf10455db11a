//! Rows and arrays: making them, taking them apart, and their text, a column at a time.
//!
//! # Invariants
//! - Where a row is NULL, so is each of its fields.
//! - Of an array's values only those that its offsets name are looked at: a slice may share values with rows that are not in it.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayBuilder, ArrayRef, AsArray, BooleanArray, Float64Array, Int32Array, Int64Array, ListArray, StringArray, StringBuilder,
    StructArray, UInt32Array, make_comparator,
};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::{self, SortOptions};
use arrow::datatypes::{DataType, FieldRef, Float64Type};
use weir_catalog::{Error, Result, SqlState, SqlType};

use super::{cast, downcast, from_arrow};

/// What is done with rows and arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `ROW(...)`
    Row,
    /// `ARRAY[...]`
    Array,
    /// `array[place]`, from 1; NULL where there is no such place.
    Element,
    /// `value = ANY(array)`: NULL where no element is known to be equal and one is NULL, or the value.
    EqualsAny,
    /// The number of elements.
    Cardinality,
    /// The number of elements in a dimension; NULL where there are none.
    ArrayLength,
    /// Whether all fields of a row are NULL.
    IsNull,
    /// Whether no field of a row is NULL, which is not the opposite.
    IsNotNull,
    /// The value with -0.0 as 0.0 and every NaN as one, so that values which SQL holds equal are equal to Arrow.
    Comparable,
}

impl Operation {
    /// Its name in EXPLAIN and in uids.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Row => "row",
            Operation::Array => "array",
            Operation::Element => "element",
            Operation::EqualsAny => "equals_any",
            Operation::Cardinality => "cardinality",
            Operation::ArrayLength => "array_length",
            Operation::IsNull => "row_is_null",
            Operation::IsNotNull => "row_is_not_null",
            Operation::Comparable => "comparable",
        }
    }
}

/// `operation` on columns of `rows` rows.
pub fn evaluate(operation: Operation, arrays: &[ArrayRef], result: &DataType, rows: usize) -> Result<ArrayRef> {
    match (operation, arrays) {
        (Operation::Row, fields) => match result {
            DataType::Struct(types) => Ok(Arc::new(StructArray::try_new(types.clone(), fields.to_vec(), None).map_err(from_arrow)?)),
            other => Err(Error::internal(format!("a row has type {other}"))),
        },
        (Operation::Array, elements) => array(elements, result, rows),
        (Operation::Element, [array, place]) => element(downcast(array)?, downcast(place)?),
        (Operation::EqualsAny, [value, array]) => equals_any(value, downcast(array)?),
        (Operation::Cardinality, [array]) => {
            let lists: &ListArray = downcast(array)?;
            let lengths: Vec<i32> = lists.offsets().lengths().map(|length| length as i32).collect();
            Ok(Arc::new(Int32Array::new(ScalarBuffer::from(lengths), lists.nulls().cloned())))
        }
        (Operation::ArrayLength, [array, dimension]) => array_length(downcast(array)?, downcast(dimension)?),
        (Operation::IsNull, [row]) => each_field(downcast(row)?, compute::is_null),
        (Operation::IsNotNull, [row]) => each_field(downcast(row)?, compute::is_not_null),
        (Operation::Comparable, [value]) => comparable(value),
        (operation, arrays) => Err(Error::internal(format!("{} of {} arguments", operation.name(), arrays.len()))),
    }
}

/// The list type's field for elements.
fn element_field(list: &DataType) -> Result<&FieldRef> {
    match list {
        DataType::List(element) => Ok(element),
        other => Err(Error::internal(format!("an array has type {other}"))),
    }
}

fn array(elements: &[ArrayRef], result: &DataType, rows: usize) -> Result<ArrayRef> {
    let field = element_field(result)?;
    let count = elements.len();
    let end = i32::try_from(rows.saturating_mul(count)).map_err(|_| too_many())?;
    let values = if end == 0 {
        arrow::array::new_empty_array(field.data_type())
    } else {
        let columns: Vec<&dyn Array> = elements.iter().map(AsRef::as_ref).collect();
        let places: Vec<(usize, usize)> = (0..rows).flat_map(|row| (0..count).map(move |column| (column, row))).collect();
        compute::interleave(&columns, &places).map_err(from_arrow)?
    };
    let offsets = OffsetBuffer::new((0..=rows).map(|row| (row * count) as i32).collect::<Vec<i32>>().into());
    Ok(Arc::new(ListArray::try_new(Arc::clone(field), offsets, values, None).map_err(from_arrow)?))
}

fn too_many() -> Error {
    Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "the arrays of one batch have more than 2 billion elements")
}

fn element(lists: &ListArray, places: &Int64Array) -> Result<ArrayRef> {
    let offsets = lists.value_offsets();
    let positions: Int32Array = (0..lists.len())
        .map(|row| {
            let (start, end) = (offsets[row], offsets[row + 1]);
            let inside = lists.is_valid(row) && places.is_valid(row) && (1..=i64::from(end - start)).contains(&places.value(row));
            inside.then(|| start + places.value(row) as i32 - 1)
        })
        .collect();
    compute::take(lists.values(), &positions, None).map_err(from_arrow)
}

fn equals_any(value: &ArrayRef, lists: &ListArray) -> Result<ArrayRef> {
    let (offsets, elements) = parts(lists);
    let rows: UInt32Array =
        offsets.lengths().enumerate().flat_map(|(row, length)| std::iter::repeat_n(row as u32, length)).map(Some).collect();
    // Each value beside each element that it is compared with.
    let values = compute::take(value, &rows, None).map_err(from_arrow)?;
    let equal: BooleanArray = if elements.data_type().is_nested() {
        let compare = make_comparator(&values, &elements, SortOptions::default()).map_err(from_arrow)?;
        let both = |at: usize| values.is_valid(at) && elements.is_valid(at);
        (0..elements.len()).map(|at| both(at).then(|| compare(at, at).is_eq())).collect()
    } else {
        compute::kernels::cmp::eq(&values, &elements).map_err(from_arrow)?
    };
    let found = (0..lists.len()).map(|row| {
        if lists.is_null(row) {
            return None;
        }
        let mut found = Some(false);
        for at in offsets[row] as usize..offsets[row + 1] as usize {
            if equal.is_null(at) {
                found = None;
            } else if equal.value(at) {
                return Some(true);
            }
        }
        found
    });
    Ok(Arc::new(found.collect::<BooleanArray>()))
}

fn array_length(lists: &ListArray, dimensions: &Int32Array) -> Result<ArrayRef> {
    let nested = matches!(lists.value_type(), DataType::List(_));
    let lengths = lists.offsets().lengths().enumerate().map(|(row, length)| {
        if lists.is_null(row) || dimensions.is_null(row) {
            return Ok(None);
        }
        match dimensions.value(row) {
            1 => Ok(Some(length as i32).filter(|length| *length > 0)),
            2.. if nested => Err(Error::unsupported("array_length of a dimension other than 1 is not supported")
                .with_detail("The elements of an array of arrays may have different lengths.")),
            _ => Ok(None),
        }
    });
    Ok(Arc::new(lengths.collect::<Result<Int32Array>>()?))
}

/// Whether `test` holds for each field of a row.
fn each_field(rows: &StructArray, test: fn(&dyn Array) -> std::result::Result<BooleanArray, arrow::error::ArrowError>) -> Result<ArrayRef> {
    let mut all: Option<BooleanArray> = None;
    for field in rows.columns() {
        let one = test(field).map_err(from_arrow)?;
        all = Some(match all {
            Some(all) => compute::and(&all, &one).map_err(from_arrow)?,
            None => one,
        });
    }
    all.map(|all| Arc::new(all) as ArrayRef).ok_or_else(|| Error::internal("a row has no fields"))
}

fn comparable(value: &ArrayRef) -> Result<ArrayRef> {
    match value.data_type() {
        DataType::Float64 => {
            let doubles: Float64Array =
                value.as_primitive::<Float64Type>().unary(|double| if double.is_nan() { f64::NAN } else { double + 0.0 });
            Ok(Arc::new(doubles))
        }
        DataType::Struct(fields) => {
            let rows: &StructArray = downcast(value)?;
            let columns = rows.columns().iter().map(comparable).collect::<Result<Vec<_>>>()?;
            Ok(Arc::new(StructArray::try_new(fields.clone(), columns, rows.nulls().cloned()).map_err(from_arrow)?))
        }
        DataType::List(field) => {
            let (offsets, values) = parts(downcast(value)?);
            let values = comparable(&values)?;
            Ok(Arc::new(ListArray::try_new(Arc::clone(field), offsets, values, value.nulls().cloned()).map_err(from_arrow)?))
        }
        _ => Ok(Arc::clone(value)),
    }
}

/// The values of `lists` that its offsets name, with offsets from 0.
pub fn parts(lists: &ListArray) -> (OffsetBuffer<i32>, ArrayRef) {
    let offsets = lists.offsets();
    let (first, last) = (offsets[0], offsets[lists.len()]);
    if first == 0 {
        return (offsets.clone(), lists.values().slice(0, last as usize));
    }
    let moved: Vec<i32> = offsets.iter().map(|offset| offset - first).collect();
    (OffsetBuffer::new(ScalarBuffer::from(moved)), lists.values().slice(first as usize, (last - first) as usize))
}

/// `rows` with fields of other types, by place.
pub fn cast_row(rows: &StructArray, to: &[(String, SqlType)]) -> Result<ArrayRef> {
    let ty = SqlType::Row(to.to_vec());
    let DataType::Struct(fields) = ty.to_arrow() else { return Err(Error::internal("a row type is no struct")) };
    if rows.num_columns() != to.len() {
        return Err(Error::new(SqlState::CANNOT_COERCE, format!("cannot cast a row of {} fields to {ty}", rows.num_columns())));
    }
    let columns = rows.columns().iter().zip(to).map(|(column, (_, ty))| cast::evaluate(column, ty)).collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(StructArray::try_new(fields, columns, rows.nulls().cloned()).map_err(from_arrow)?))
}

/// `lists` with elements of another type.
pub fn cast_array(lists: &ListArray, to: &SqlType) -> Result<ArrayRef> {
    let (offsets, values) = parts(lists);
    list_of(cast::evaluate(&values, to)?, offsets, lists.nulls().cloned(), to)
}

fn list_of(values: ArrayRef, offsets: OffsetBuffer<i32>, nulls: Option<NullBuffer>, element: &SqlType) -> Result<ArrayRef> {
    let ty = SqlType::Array(Box::new(element.clone())).to_arrow();
    Ok(Arc::new(ListArray::try_new(Arc::clone(element_field(&ty)?), offsets, values, nulls).map_err(from_arrow)?))
}

/// The text of rows: `(1,"a b",)`. `fields` are the texts of the fields.
pub fn row_texts(rows: &StructArray) -> Result<ArrayRef> {
    let texts = rows.columns().iter().map(cast::output_text).collect::<Result<Vec<_>>>()?;
    let texts: Vec<&StringArray> = texts.iter().map(downcast).collect::<Result<_>>()?;
    let mut out = StringBuilder::with_capacity(rows.len(), rows.len() * 16);
    for row in 0..rows.len() {
        if rows.is_null(row) {
            out.append_null();
            continue;
        }
        let written = (|| {
            out.write_char('(')?;
            for (at, field) in texts.iter().enumerate() {
                if at > 0 {
                    out.write_char(',')?;
                }
                if field.is_valid(row) {
                    write_field(&mut out, field.value(row))?;
                }
            }
            out.write_char(')')
        })();
        written.map_err(|e: std::fmt::Error| Error::internal(e.to_string()))?;
        out.append_value("");
    }
    Ok(Arc::new(out.finish()))
}

/// The text of arrays: `{1,NULL,"a b"}`.
pub fn array_texts(lists: &ListArray) -> Result<ArrayRef> {
    let nested = matches!(lists.value_type(), DataType::List(_));
    let (offsets, values) = parts(lists);
    let texts = cast::output_text(&values)?;
    let texts: &StringArray = downcast(&texts)?;
    let mut out = StringBuilder::with_capacity(lists.len(), lists.len() * 16);
    for row in 0..lists.len() {
        if lists.is_null(row) {
            out.append_null();
            continue;
        }
        let written = (|| {
            out.write_char('{')?;
            for at in offsets[row]..offsets[row + 1] {
                if at > offsets[row] {
                    out.write_char(',')?;
                }
                let at = at as usize;
                if texts.is_null(at) {
                    out.write_str("NULL")?;
                } else if nested {
                    out.write_str(texts.value(at))?;
                } else {
                    write_element(&mut out, texts.value(at))?;
                }
            }
            out.write_char('}')
        })();
        written.map_err(|e: std::fmt::Error| Error::internal(e.to_string()))?;
        out.append_value("");
    }
    Ok(Arc::new(out.finish()))
}

/// What PostgreSQL takes for white space in the text of rows and arrays.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// A field's text within that of its row, in quotes where it would not read back the same without.
pub fn write_field(out: &mut impl Write, text: &str) -> std::fmt::Result {
    let special = |byte: u8| is_space(byte) || matches!(byte, b'(' | b')' | b',' | b'"' | b'\\');
    if !text.is_empty() && !text.bytes().any(special) {
        return out.write_str(text);
    }
    out.write_char('"')?;
    for character in text.chars() {
        if matches!(character, '"' | '\\') {
            out.write_char(character)?;
        }
        out.write_char(character)?;
    }
    out.write_char('"')
}

/// An element's text within that of its array, in quotes where it would not read back the same without.
pub fn write_element(out: &mut impl Write, text: &str) -> std::fmt::Result {
    let special = |byte: u8| is_space(byte) || matches!(byte, b'{' | b'}' | b',' | b'"' | b'\\');
    if !text.is_empty() && !text.eq_ignore_ascii_case("null") && !text.bytes().any(special) {
        return out.write_str(text);
    }
    out.write_char('"')?;
    for character in text.chars() {
        if matches!(character, '"' | '\\') {
            out.write_char('\\')?;
        }
        out.write_char(character)?;
    }
    out.write_char('"')
}

/// Arrays from their texts, whose elements are then read as `element`. `22P02` for a text that is no array.
pub fn arrays_from_text(texts: &StringArray, element: &SqlType) -> Result<ArrayRef> {
    let nested = matches!(element, SqlType::Array(_));
    let mut elements = StringBuilder::new();
    let mut offsets = vec![0i32];
    for text in texts {
        if let Some(text) = text {
            read_elements(text, nested, &mut elements).map_err(|detail| malformed(text, detail))?;
        }
        offsets.push(i32::try_from(elements.len()).map_err(|_| too_many())?);
    }
    let elements: ArrayRef = Arc::new(elements.finish());
    let values = cast::evaluate(&elements, element)?;
    list_of(values, OffsetBuffer::new(ScalarBuffer::from(offsets)), texts.nulls().cloned(), element)
}

fn malformed(text: &str, detail: &str) -> Error {
    Error::new(SqlState::INVALID_TEXT_REPRESENTATION, format!("malformed array literal: \"{text}\"")).with_detail(detail)
}

/// Appends the texts of the elements of the array `text`; those of an array of arrays with their braces. An error is a DETAIL.
fn read_elements(text: &str, nested: bool, out: &mut StringBuilder) -> std::result::Result<(), &'static str> {
    const UNEXPECTED_END: &str = "Unexpected end of input.";
    let trimmed = text.trim_matches(|c: char| c.is_ascii() && is_space(c as u8));
    let Some(mut rest) = trimmed.strip_prefix('{') else {
        return Err("Array value must start with \"{\" or dimension information.");
    };
    let skip = |rest: &mut &str| *rest = rest.trim_start_matches(|c: char| c.is_ascii() && is_space(c as u8));
    skip(&mut rest);
    if let Some(behind) = rest.strip_prefix('}') {
        return if behind.is_empty() { Ok(()) } else { Err("Junk after closing right brace.") };
    }
    loop {
        skip(&mut rest);
        match rest.chars().next() {
            None => return Err(UNEXPECTED_END),
            Some('{') if nested => {
                let length = braced(rest).ok_or(UNEXPECTED_END)?;
                out.append_value(&rest[..length]);
                rest = &rest[length..];
            }
            Some('{' | '}' | ',') => return Err("Unexpected array element."),
            Some('"') => {
                let mut value = String::new();
                let mut characters = rest.char_indices().skip(1);
                let end = loop {
                    match characters.next().ok_or(UNEXPECTED_END)? {
                        (at, '"') => break at,
                        (_, '\\') => value.push(characters.next().ok_or(UNEXPECTED_END)?.1),
                        (_, character) => value.push(character),
                    }
                };
                if nested {
                    return Err("Unexpected array element.");
                }
                out.append_value(value);
                rest = &rest[end + 1..];
            }
            Some(_) => {
                let mut value = String::new();
                // White space at the end is not a part of it, unless there is a backslash before.
                let mut kept = 0;
                let mut escaped = false;
                let mut end = rest.len();
                let mut characters = rest.char_indices();
                while let Some((at, character)) = characters.next() {
                    match character {
                        ',' | '}' => {
                            end = at;
                            break;
                        }
                        '{' | '"' => return Err("Unexpected array element."),
                        '\\' => {
                            value.push(characters.next().ok_or(UNEXPECTED_END)?.1);
                            kept = value.len();
                            escaped = true;
                        }
                        character => {
                            value.push(character);
                            if !(character.is_ascii() && is_space(character as u8)) {
                                kept = value.len();
                            }
                        }
                    }
                }
                value.truncate(kept);
                if !escaped && value.eq_ignore_ascii_case("null") {
                    out.append_null();
                } else if nested {
                    return Err("Unexpected array element.");
                } else {
                    out.append_value(value);
                }
                rest = &rest[end..];
            }
        }
        skip(&mut rest);
        match rest.chars().next() {
            Some(',') => rest = &rest[1..],
            Some('}') if rest.len() == 1 => return Ok(()),
            Some('}') => return Err("Junk after closing right brace."),
            Some(_) => return Err("Unexpected array element."),
            None => return Err(UNEXPECTED_END),
        }
    }
}

/// The length of the array that `text` begins with, its braces included.
fn braced(text: &str) -> Option<usize> {
    let (mut depth, mut quoted) = (0usize, false);
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' => {
                bytes.next();
            }
            b'"' => quoted = !quoted,
            b'{' if !quoted => depth += 1,
            b'}' if !quoted => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(values: &[&str]) -> ArrayRef {
        Arc::new(StringArray::from(values.to_vec()))
    }

    fn array_of(text: &str, element: SqlType) -> Result<ArrayRef> {
        cast::evaluate(&texts(&[text]), &SqlType::Array(Box::new(element)))
    }

    fn shown(array: &ArrayRef) -> String {
        cast::output_text(array).unwrap().as_string::<i32>().value(0).to_string()
    }

    /// Texts as PostgreSQL 15 gave them.
    #[test]
    fn texts_of_arrays_read_back() {
        for (given, element, printed) in [
            ("{1,2,NULL}", SqlType::Int, "{1,2,NULL}"),
            (" { 1 , 2 } ", SqlType::BigInt, "{1,2}"),
            ("{}", SqlType::Int, "{}"),
            (
                "{a, b c ,\"NULL\",null,\"\",\"x\\\"y\",\\\\z, \"{\" }",
                SqlType::Text,
                "{a,\"b c\",\"NULL\",NULL,\"\",\"x\\\"y\",\"\\\\z\",\"{\"}",
            ),
            ("{t,false}", SqlType::Boolean, "{t,f}"),
            ("{1.50,-2}", SqlType::Numeric { precision: 5, scale: 2 }, "{1.50,-2.00}"),
            ("{2020-01-02 03:04:05}", SqlType::TIMESTAMP, "{\"2020-01-02 03:04:05\"}"),
            ("{{1,2},{3,NULL}}", SqlType::Array(Box::new(SqlType::Int)), "{{1,2},{3,NULL}}"),
            ("{{\"}\"},{}}", SqlType::Array(Box::new(SqlType::Text)), "{{\"}\"},{}}"),
        ] {
            let array = array_of(given, element.clone()).unwrap_or_else(|e| panic!("{given}: {e:?}"));
            assert_eq!(shown(&array), printed, "{given}");
            assert_eq!(array_of(printed, element).unwrap().to_data(), array.to_data(), "{given}");
        }
        for wrong in ["", "1", "{1", "{1,}", "{,1}", "{1}x", "{{1}}", "{\"a", "{a\"b\"}", "{1 2}", "[1:2]={1,2}"] {
            let error = array_of(wrong, SqlType::Int).expect_err(wrong);
            assert_eq!(error.code().as_str(), "22P02", "{wrong}");
        }
    }

    #[test]
    fn texts_of_rows_are_postgresqls() {
        let fields = [
            ("a".to_string(), SqlType::Boolean),
            ("b".to_string(), SqlType::Text),
            ("c".to_string(), SqlType::Array(Box::new(SqlType::Int))),
        ];
        let DataType::Struct(types) = SqlType::Row(fields.to_vec()).to_arrow() else { panic!("no struct") };
        for (b, printed) in [("x", "(t,x,\"{1,2}\")"), ("", "(t,\"\",\"{1,2}\")"), ("a \"b\\", "(t,\"a \"\"b\\\\\",\"{1,2}\")")] {
            let columns: Vec<ArrayRef> =
                vec![Arc::new(BooleanArray::from(vec![true])), texts(&[b]), array_of("{1,2}", SqlType::Int).unwrap()];
            let row: ArrayRef = Arc::new(StructArray::new(types.clone(), columns, None));
            assert_eq!(shown(&row), printed);
        }
        let null: ArrayRef = arrow::array::new_null_array(&DataType::Struct(types), 1);
        assert!(cast::output_text(&null).unwrap().is_null(0));
    }

    #[test]
    fn slices_are_taken_apart_by_themselves() {
        let text = SqlType::Array(Box::new(SqlType::Text));
        let numbers = SqlType::Array(Box::new(SqlType::Int));
        let lists = cast::evaluate(&texts(&["{x}", "{1,2}", "{}", "{y}"]), &text).unwrap();
        let slice = lists.slice(1, 2);
        // The texts beside the slice are no numbers.
        let cast = cast::evaluate(&slice, &numbers).unwrap();
        assert_eq!(cast::output_text(&cast).unwrap().as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["{1,2}", "{}"]);
        let places: ArrayRef = Arc::new(Int64Array::from(vec![2, 1]));
        let found = evaluate(Operation::Element, &[slice.clone(), places], &DataType::Utf8, 2).unwrap();
        assert_eq!(found.as_string::<i32>().iter().collect::<Vec<_>>(), [Some("2"), None]);
        let counts = evaluate(Operation::Cardinality, &[slice], &DataType::Int32, 2).unwrap();
        assert_eq!(counts.as_primitive::<arrow::datatypes::Int32Type>().values(), &[2, 0]);
    }
}
