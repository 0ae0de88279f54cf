//! Splits an input into parts.

/// Returns two parts of an input: the bytes before the first zero byte, and the bytes after it.
pub(crate) fn halves(data: &[u8]) -> (&[u8], &[u8]) {
    match data.iter().position(|b| *b == 0) {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &[]),
    }
}
