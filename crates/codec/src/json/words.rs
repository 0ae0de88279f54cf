//! Looks at eight bytes of a string at a time.

/// The bytes that are looked at together.
pub(super) const WORD: usize = 8;
/// A one in each byte.
const ONES: u64 = u64::MAX / 0xff;
/// The highest bit of each byte.
const HIGH: u64 = ONES << 7;

/// The highest bit of the first of eight bytes that is a quote, a backslash or below the space, and of no byte before it; bits of bytes
/// after it mean nothing. 0 if there is none.
pub(super) fn special(word: u64) -> u64 {
    let zero = |word: u64| word.wrapping_sub(ONES) & !word;
    let below_blank = word.wrapping_sub(ONES * 0x20) & !word;
    let quote = zero(word ^ (ONES * u64::from(b'"')));
    let backslash = zero(word ^ (ONES * u64::from(b'\\')));
    (below_blank | quote | backslash) & HIGH
}

/// The number of bytes before the first one that ends a run of a string: a quote, a backslash or a control character.
#[must_use]
pub fn unescaped(bytes: &[u8]) -> usize {
    let mut len = 0;
    while let Some(word) = bytes[len..].first_chunk::<WORD>() {
        let found = special(u64::from_le_bytes(*word));
        if found != 0 {
            return len + found.trailing_zeros() as usize / 8;
        }
        len += WORD;
    }
    let rest = &bytes[len..];
    len + rest.iter().position(|byte| *byte < 0x20 || matches!(byte, b'"' | b'\\')).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_a_string_ends_at_the_first_special_byte() {
        for length in 0..40 {
            for at in 0..length {
                for byte in 0..=u8::MAX {
                    let mut text = vec![b'x'; length];
                    text[at] = byte;
                    let ends = byte < 0x20 || matches!(byte, b'"' | b'\\');
                    assert_eq!(unescaped(&text), if ends { at } else { length }, "{byte:#x} at {at} of {length}");
                    // A special byte after it changes nothing.
                    if let Some(last) = text[at + 1..].last_mut() {
                        *last = b'"';
                        assert_eq!(unescaped(&text), if ends { at } else { length - 1 }, "{byte:#x} at {at}");
                    }
                }
            }
        }
    }
}
