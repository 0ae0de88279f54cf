//! The checksum that members of etcd compare (`HashKV`): CRC-32C over the stored versions in etcd's order and form, so
//! that the same history has the same checksum in both.

use bytes::Bytes;
use prost::Message as _;

use super::history::{Revision, Version};
use super::index::Index;
use super::range::KeyRange;

/// The name of the bucket, with which etcd's checksum begins.
const BUCKET: &[u8] = b"key";

pub(super) fn of(index: &Index, main: i64, compacted: i64) -> u32 {
    let all = KeyRange::From(Bytes::new());
    let none_is_left = index.range(&all, main).next().is_none();
    let mut versions: Vec<(&Bytes, &Version)> = index
        .versions_after(None)
        .filter(|(key, version)| {
            let written = version.revision.main;
            let newest = |at| index.at(key, at).is_some_and(|(_, v)| v.revision == version.revision);
            written <= main && (written > compacted || newest(if none_is_left { compacted } else { main }))
        })
        .collect();
    versions.sort_unstable_by_key(|(_, version)| version.revision);
    let mut sum = Crc32c::default();
    sum.update(BUCKET);
    let mut value = Vec::new();
    for (key, version) in versions {
        sum.update(&stored_name(version.revision, version.is_deletion()));
        value.clear();
        // Encoding into a vector cannot fail.
        let _ = stored_value(key, version).encode(&mut value);
        sum.update(&value);
    }
    sum.end()
}

/// Returns the key under which etcd stores a version.
pub fn stored_name(revision: Revision, deletion: bool) -> Vec<u8> {
    let mut name = Vec::with_capacity(18);
    name.extend_from_slice(&revision.main.to_be_bytes());
    name.push(b'_');
    name.extend_from_slice(&i64::from(revision.sub).to_be_bytes());
    if deletion {
        name.push(b't');
    }
    name
}

/// Returns the value that etcd stores for a version; for a deletion it only has the key.
pub fn stored_value(key: &Bytes, version: &Version) -> crate::proto::KeyValue {
    if version.is_deletion() {
        return crate::proto::KeyValue { key: key.clone(), ..crate::proto::KeyValue::default() };
    }
    version.key_value(key)
}

/// CRC-32 with Castagnoli's polynomial, one byte at a time. Speed does not matter, since only operators request it.
pub struct Crc32c(u32);

impl Default for Crc32c {
    fn default() -> Self {
        Self(!0)
    }
}

impl Crc32c {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut i = 0;
        while i < 256 {
            let mut row = i as u32;
            let mut bit = 0;
            while bit < 8 {
                row = if row & 1 == 1 { (row >> 1) ^ 0x82F6_3B78 } else { row >> 1 };
                bit += 1;
            }
            table[i] = row;
            i += 1;
        }
        table
    };

    /// Continues after bytes with this sum.
    #[must_use]
    pub fn after(sum: u32) -> Self {
        Self(!sum)
    }

    /// Adds bytes to the checksum.
    pub fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 >> 8) ^ Self::TABLE[usize::from((self.0 as u8) ^ byte)];
        }
    }

    /// Returns the sum of all bytes.
    #[must_use]
    pub fn end(&self) -> u32 {
        !self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_the_standard_text() {
        let mut sum = Crc32c::default();
        sum.update(b"123456789");
        assert_eq!(sum.end(), 0xE306_9283);
        let mut first = Crc32c::default();
        first.update(b"1234");
        let mut rest = Crc32c::after(first.end());
        rest.update(b"56789");
        assert_eq!(rest.end(), 0xE306_9283);
    }

    #[test]
    fn names_of_versions() {
        let revision = Revision { main: 258, sub: 3 };
        assert_eq!(stored_name(revision, false), b"\0\0\0\0\0\0\x01\x02_\0\0\0\0\0\0\0\x03");
        assert_eq!(stored_name(revision, true).last(), Some(&b't'));
    }
}
