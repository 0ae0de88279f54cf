//! Limits for the size of a server's objects.

use kelson_store::limits::{NAMESPACE_PART, STORE_BYTES_MAX};

/// The default limit is this fraction of the memory.
const MEMORY_PART: u64 = 4;

/// Returns the limit for all objects, by the flag or by this machine's memory.
pub fn bytes_max(asked: u64) -> usize {
    match usize::try_from(asked) {
        Ok(0) => STORE_BYTES_MAX.min(memory_part(kelson_platform::process::memory_bytes())),
        Ok(bytes) => bytes,
        Err(_) => usize::MAX,
    }
}

/// Returns the limit for the objects of one namespace: by the flag, or half of the limit for all.
pub fn namespace_bytes_max(asked: u64, bytes_max: usize) -> usize {
    match usize::try_from(asked) {
        Ok(0) => bytes_max / NAMESPACE_PART,
        Ok(bytes) => bytes,
        Err(_) => usize::MAX,
    }
}

/// All objects are in memory, in addition to what the process needs.
fn memory_part(memory: Option<u64>) -> usize {
    memory.map_or(usize::MAX, |bytes| usize::try_from(bytes / MEMORY_PART).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_take_a_quarter_of_a_small_memory() {
        assert_eq!(memory_part(Some(1 << 30)), 256 << 20);
        assert_eq!((memory_part(None), bytes_max(7)), (usize::MAX, 7));
        assert_eq!((namespace_bytes_max(0, 100), namespace_bytes_max(7, 100)), (50, 7));
        assert!((1..=STORE_BYTES_MAX).contains(&bytes_max(0)));
    }
}
