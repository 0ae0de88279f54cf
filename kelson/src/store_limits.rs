//! How much the objects of a server may take.

use kelson_store::limits::{NAMESPACE_PART, STORE_BYTES_MAX};

/// Objects may take no more than this part of the memory.
const MEMORY_PART: u64 = 4;

/// What all objects may take, as the flag says or for this machine's memory.
pub fn bytes_max(asked: u64) -> usize {
    match usize::try_from(asked) {
        Ok(0) => STORE_BYTES_MAX.min(memory_part(kelson_platform::process::memory_bytes())),
        Ok(bytes) => bytes,
        Err(_) => usize::MAX,
    }
}

/// What the objects of one namespace may take: as the flag says, or half of what all may take.
pub fn namespace_bytes_max(asked: u64, bytes_max: usize) -> usize {
    match usize::try_from(asked) {
        Ok(0) => bytes_max / NAMESPACE_PART,
        Ok(bytes) => bytes,
        Err(_) => usize::MAX,
    }
}

/// All objects are in memory, beside what the process needs to work.
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
