//! Where the bytes stand that matter to who steps over JSON: quotes, backslashes, brackets. Looked for many bytes at a time, with vector instructions.

/// The length of a block.
pub(super) const BLOCK: usize = 64;

/// Bytes of a block, as bits, the first byte's lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    pub quotes: u64,
    pub backslashes: u64,
    /// Of objects and arrays, opening and closing.
    pub brackets: u64,
}

impl Marks {
    /// The bytes from each opening quote on up to its closing one, where a string does not begin before the block and there are no backslashes in it.
    pub(super) fn inside_strings(&self) -> u64 {
        // Each bit becomes the parity of the bits up to it.
        let mut parity = self.quotes;
        for shift in [1, 2, 4, 8, 16, 32] {
            parity ^= parity << shift;
        }
        parity
    }
}

/// The marks of `block`.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn marks(block: &[u8; BLOCK]) -> Marks {
    use std::arch::x86_64::{__m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8};
    let mut marks = Marks { quotes: 0, backslashes: 0, brackets: 0 };
    // SAFETY: SSE2 is part of x86-64. Each of the four loads, which need no alignment, is of 16 bytes inside the block.
    unsafe {
        for lane in 0..4 {
            let bytes = _mm_loadu_si128(block.as_ptr().add(lane * 16).cast::<__m128i>());
            // Square brackets differ from curly ones in this bit only, and no other byte becomes one of them.
            let folded = _mm_or_si128(bytes, _mm_set1_epi8(0x20));
            let brackets =
                _mm_or_si128(_mm_cmpeq_epi8(folded, _mm_set1_epi8(b'{' as i8)), _mm_cmpeq_epi8(folded, _mm_set1_epi8(b'}' as i8)));
            let bits = |found: __m128i| u64::from(_mm_movemask_epi8(found) as u16) << (lane * 16);
            marks.quotes |= bits(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'"' as i8)));
            marks.backslashes |= bits(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'\\' as i8)));
            marks.brackets |= bits(brackets);
        }
    }
    marks
}

/// The marks of `block`.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(super) fn marks(block: &[u8; BLOCK]) -> Marks {
    plain_marks(block)
}

/// The same, byte by byte.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn plain_marks(block: &[u8; BLOCK]) -> Marks {
    let bits = |is_mark: fn(u8) -> bool| block.iter().enumerate().fold(0, |bits, (at, byte)| bits | u64::from(is_mark(*byte)) << at);
    Marks {
        quotes: bits(|byte| byte == b'"'),
        backslashes: bits(|byte| byte == b'\\'),
        brackets: bits(|byte| matches!(byte, b'{' | b'}' | b'[' | b']')),
    }
}

/// Where the first quote or backslash of `bytes` is.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn string_mark(bytes: &[u8]) -> Option<usize> {
    use std::arch::x86_64::{__m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8};
    let mut at = 0;
    while let Some(block) = bytes[at..].first_chunk::<16>() {
        // SAFETY: SSE2 is part of x86-64. The load, which needs no alignment, is of the 16 bytes of the block.
        let found = unsafe {
            let bytes = _mm_loadu_si128(block.as_ptr().cast::<__m128i>());
            let quotes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'"' as i8));
            _mm_movemask_epi8(_mm_or_si128(quotes, _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'\\' as i8))))
        };
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize);
        }
        at += 16;
    }
    bytes[at..].iter().position(|byte| matches!(byte, b'"' | b'\\')).map(|found| at + found)
}

/// Where the first quote or backslash of `bytes` is.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(super) fn string_mark(bytes: &[u8]) -> Option<usize> {
    memchr::memchr2(b'"', b'\\', bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn vectors_find_what_a_loop_finds(bytes in prop::collection::vec(prop::sample::select(b"\"\\{}[]az;:|\x00\xff\xdb".to_vec()), BLOCK..200)) {
            let block: &[u8; BLOCK] = bytes.first_chunk().unwrap();
            prop_assert_eq!(marks(block), plain_marks(block));
            for from in 0..bytes.len() {
                let expected = bytes[from..].iter().position(|byte| matches!(byte, b'"' | b'\\'));
                prop_assert_eq!(string_mark(&bytes[from..]), expected);
            }
        }
    }

    #[test]
    fn strings_are_from_quote_to_quote() {
        let inside = |text: &str| {
            let mut block = [b' '; BLOCK];
            block[..text.len()].copy_from_slice(text.as_bytes());
            marks(&block).inside_strings()
        };
        assert_eq!(inside(""), 0);
        assert_eq!(inside(r#"a"bc"d"#), 0b1110);
        assert_eq!(inside(r#""" """#), 0b1001);
        assert_eq!(inside(r#"ab"c"#), !0b11);
    }
}
