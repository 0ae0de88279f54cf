//! How an input is taken apart.

/// Two parts of an input: what stands before the first zero byte, and what follows it.
pub(crate) fn halves(data: &[u8]) -> (&[u8], &[u8]) {
    match data.iter().position(|b| *b == 0) {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &[]),
    }
}
