//! Columns to text, a column at a time: each into one buffer, from which lines are then put together.

use std::fmt::Write;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Decimal128Type, Fields, Float64Type, Int32Type, Int64Type, TimeUnit, TimestampMicrosecondType};
use weir_catalog::{Error, Result};
use weir_sql::functions::{cast, nested, text};

/// The text of each value of a column.
#[derive(Debug, Default)]
pub struct EncodedColumn {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl EncodedColumn {
    /// The text of row `row`.
    #[inline]
    pub fn get(&self, row: usize) -> &[u8] {
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.bytes[start as usize..self.ends[row] as usize]
    }

    /// Takes the text of `array`'s values, in place of what it held. `text` writes a value of a TEXT column, `null` stands for NULL, and where `quotes` is
    /// true, values are JSON's: those that it has no literal for stand in double quotes, rows are objects. Otherwise rows and arrays are as SQL shows them.
    pub fn fill(&mut self, array: &ArrayRef, null: &[u8], quotes: bool, mut text: impl FnMut(&mut Vec<u8>, &str)) -> Result<()> {
        self.bytes.clear();
        self.ends.clear();
        self.ends.reserve(array.len());
        match array.data_type() {
            DataType::Boolean => {
                let values = array.as_boolean();
                self.each(array, null, |out, row| {
                    out.extend_from_slice(if values.value(row) { b"true" } else { b"false" });
                    Ok(())
                })
            }
            DataType::Int32 => {
                let values = array.as_primitive::<Int32Type>().values();
                self.each(array, null, |out, row| {
                    push_integer(out, i64::from(values[row]));
                    Ok(())
                })
            }
            DataType::Int64 => {
                let values = array.as_primitive::<Int64Type>().values();
                self.each(array, null, |out, row| {
                    push_integer(out, values[row]);
                    Ok(())
                })
            }
            DataType::Float64 => {
                let values = array.as_primitive::<Float64Type>().values();
                self.each(array, null, |out, row| {
                    let quoted = quotes && !values[row].is_finite();
                    out.extend(quoted.then_some(b'"'));
                    written(text::write_double(&mut Bytes(out), values[row]))?;
                    out.extend(quoted.then_some(b'"'));
                    Ok(())
                })
            }
            DataType::Decimal128(_, scale) => {
                let values = array.as_primitive::<Decimal128Type>().values();
                self.each(array, null, |out, row| written(text::write_decimal(&mut Bytes(out), values[row], *scale)))
            }
            DataType::Timestamp(TimeUnit::Microsecond, None) => {
                let values = array.as_primitive::<TimestampMicrosecondType>().values();
                self.each(array, null, |out, row| {
                    out.extend(quotes.then_some(b'"'));
                    push_timestamp(out, values[row])?;
                    out.extend(quotes.then_some(b'"'));
                    Ok(())
                })
            }
            DataType::Utf8 => {
                let values = array.as_string::<i32>();
                self.each(array, null, |out, row| {
                    text(out, values.value(row));
                    Ok(())
                })
            }
            DataType::Struct(fields) if quotes => self.objects(array, fields, null, &mut text),
            DataType::List(_) if quotes => self.lists(array, null, &mut text),
            DataType::Struct(_) | DataType::List(_) => {
                let texts = cast::output_text(array)?;
                let texts = texts.as_string::<i32>();
                self.each(array, null, |out, row| {
                    text(out, texts.value(row));
                    Ok(())
                })
            }
            other => Err(Error::unsupported(format!("a column of type {other} can't be written as text"))),
        }
    }

    /// Rows as JSON objects.
    fn objects(&mut self, array: &ArrayRef, fields: &Fields, null: &[u8], text: &mut dyn FnMut(&mut Vec<u8>, &str)) -> Result<()> {
        let mut members = Vec::with_capacity(fields.len());
        for (at, (field, column)) in fields.iter().zip(array.as_struct().columns()).enumerate() {
            let mut name = if at == 0 { Vec::new() } else { vec![b','] };
            text(&mut name, field.name());
            name.push(b':');
            let mut values = EncodedColumn::default();
            values.fill(column, null, true, &mut *text)?;
            members.push((name, values));
        }
        self.each(array, null, |out, row| {
            out.push(b'{');
            for (name, values) in &members {
                out.extend_from_slice(name);
                out.extend_from_slice(values.get(row));
            }
            out.push(b'}');
            Ok(())
        })
    }

    /// Arrays as JSON's.
    fn lists(&mut self, array: &ArrayRef, null: &[u8], text: &mut dyn FnMut(&mut Vec<u8>, &str)) -> Result<()> {
        let (offsets, elements) = nested::parts(array.as_list::<i32>());
        let mut values = EncodedColumn::default();
        values.fill(&elements, null, true, text)?;
        self.each(array, null, |out, row| {
            out.push(b'[');
            for at in offsets[row]..offsets[row + 1] {
                out.extend((at > offsets[row]).then_some(b','));
                out.extend_from_slice(values.get(at as usize));
            }
            out.push(b']');
            Ok(())
        })
    }

    fn each(&mut self, array: &ArrayRef, null: &[u8], mut write: impl FnMut(&mut Vec<u8>, usize) -> Result<()>) -> Result<()> {
        let nulls = array.nulls();
        for row in 0..array.len() {
            if nulls.is_some_and(|nulls| nulls.is_null(row)) {
                self.bytes.extend_from_slice(null);
            } else {
                write(&mut self.bytes, row)?;
            }
            let end = u32::try_from(self.bytes.len()).map_err(|_| {
                Error::new(weir_catalog::SqlState::PROGRAM_LIMIT_EXCEEDED, "the texts of one column of a batch take more than 4 GiB")
            })?;
            self.ends.push(end);
        }
        Ok(())
    }
}

/// A buffer that text is written to.
struct Bytes<'a>(&'a mut Vec<u8>);

impl Write for Bytes<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

fn written(result: std::fmt::Result) -> Result<()> {
    result.map_err(|e| Error::internal(e.to_string()))
}

/// The digits of a number.
fn push_integer(out: &mut Vec<u8>, value: i64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend((value < 0).then_some(b'-'));
    out.extend_from_slice(&digits[at..]);
}

/// `YYYY-MM-DD HH:MM:SS[.ffffff]`, as [`text::write_timestamp`] has it.
fn push_timestamp(out: &mut Vec<u8>, timestamp_us: i64) -> Result<()> {
    let (year, month, day) = text::civil_from_days(timestamp_us.div_euclid(text::DAY_US));
    if !(1..=9999).contains(&year) {
        return written(text::write_timestamp(&mut Bytes(out), timestamp_us));
    }
    let time_us = timestamp_us.rem_euclid(text::DAY_US);
    let (seconds, fraction_us) = ((time_us / text::SECOND_US) as u32, (time_us % text::SECOND_US) as u32);
    let two = |value: u32| [b'0' + (value / 10) as u8, b'0' + (value % 10) as u8];
    let year = year as u32;
    let ([c1, c2], [y1, y2], [m1, m2], [d1, d2]) = (two(year / 100), two(year % 100), two(month), two(day));
    let ([h1, h2], [n1, n2], [s1, s2]) = (two(seconds / 3600), two(seconds / 60 % 60), two(seconds % 60));
    out.extend_from_slice(&[c1, c2, y1, y2, b'-', m1, m2, b'-', d1, d2, b' ', h1, h2, b':', n1, n2, b':', s1, s2]);
    if fraction_us != 0 {
        let (mut rest, mut width) = (fraction_us, 6);
        while rest % 10 == 0 {
            rest /= 10;
            width -= 1;
        }
        let mut digits = [b'0'; 6];
        for digit in digits[..width].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        out.push(b'.');
        out.extend_from_slice(&digits[..width]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, TimestampMicrosecondArray};

    use super::*;

    fn texts(array: ArrayRef) -> Vec<String> {
        let mut column = EncodedColumn::default();
        column.fill(&array, b"-", false, |_, _| unreachable!("no texts")).unwrap();
        (0..array.len()).map(|row| String::from_utf8(column.get(row).to_vec()).unwrap()).collect()
    }

    #[test]
    fn numbers_and_timestamps_are_those_of_a_cast() {
        let numbers = [0, 7, -1, 10, i64::MAX, i64::MIN];
        assert_eq!(texts(Arc::new(Int64Array::from(numbers.to_vec()))), numbers.map(|n| n.to_string()));
        let times = [0, -1, 1_436_918_400_000_000, 1_436_918_400_120_300, -62_135_596_800_000_000, 253_402_300_799_999_999];
        let cast = times.map(|time| {
            let mut text = String::new();
            text::write_timestamp(&mut text, time).unwrap();
            text
        });
        assert_eq!(texts(Arc::new(TimestampMicrosecondArray::from(times.to_vec()))), cast);
    }
}
