//! Positions in the bytes of DNS messages, for the cache (RFC 1035, section 4). Every function returns nothing for a
//! truncated or malformed message.
use std::ops::Range;

/// The size of a message's header in bytes.
pub const HEADER_BYTES: usize = 12;
/// The response code of a name that exists.
pub const NO_ERROR: u8 = 0;
/// The response code of a name that does not exist.
pub const NX_DOMAIN: u8 = 3;
/// The type of SOA records.
pub const SOA: u16 = 6;
/// The type of EDNS records (RFC 6891).
pub const OPT: u16 = 41;
/// The query type for records of every type.
pub const ANY: u16 = 255;
/// The size of type, class, TTL and data length after a record's name, in bytes.
const RECORD_HEAD_BYTES: usize = 10;

/// The section of a message in which a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// The records that answer the question.
    Answer,
    /// The records about the responsible zone.
    Authority,
    /// All other records, including EDNS.
    Additional,
}

/// One record of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordAt {
    /// The section of the record.
    pub section: Section,
    /// The type of the record, such as [`SOA`].
    pub kind: u16,
    /// The position of the TTL.
    pub ttl_at: usize,
    /// The position of the data.
    pub data: Range<usize>,
}

/// Returns the 16-bit number at a position.
pub fn u16_at(message: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*message.get(at..)?.first_chunk()?))
}

/// Returns the 32-bit number at a position.
pub fn u32_at(message: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*message.get(at..)?.first_chunk()?))
}

/// Returns the end of the name at a position. A compressed name ends with its pointer.
fn name_end(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length if length < 64 => at += usize::from(length) + 1,
            pointer if pointer >= 192 => return Some(at + 2),
            _ => return None,
        }
    }
}

/// Returns the position of the only question: name, type and class. Names in questions are not compressed.
pub fn question(message: &[u8]) -> Option<Range<usize>> {
    if u16_at(message, 4)? != 1 {
        return None;
    }
    let end = name_end(message, HEADER_BYTES)? + 4;
    message.get(HEADER_BYTES..end).map(|_| HEADER_BYTES..end)
}

/// Returns all records after the only question.
pub fn records(message: &[u8]) -> Option<Vec<RecordAt>> {
    let mut at = question(message)?.end;
    let mut all = Vec::new();
    for (section, count_at) in [(Section::Answer, 6), (Section::Authority, 8), (Section::Additional, 10)] {
        for _ in 0..u16_at(message, count_at)? {
            let head = name_end(message, at)?;
            let data = head + RECORD_HEAD_BYTES;
            let end = data + usize::from(u16_at(message, head + 8)?);
            message.get(data..end)?;
            all.push(RecordAt { section, kind: u16_at(message, head)?, ttl_at: head + 4, data: data..end });
            at = end;
        }
    }
    Some(all)
}
