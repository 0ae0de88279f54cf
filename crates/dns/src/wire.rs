//! What the cache reads of DNS messages (RFC 1035, section 4): positions in the bytes as they were received. Every function gives
//! nothing for a message that is cut off or not well formed.
use std::ops::Range;

/// Bytes of a message's header.
pub const HEADER_BYTES: usize = 12;
/// Response code of a name that exists.
pub const NO_ERROR: u8 = 0;
/// Response code of a name that does not exist.
pub const NX_DOMAIN: u8 = 3;
/// Record type of a zone's start of authority.
pub const SOA: u16 = 6;
/// Record type of EDNS (RFC 6891).
pub const OPT: u16 = 41;
/// Question type for records of every type.
pub const ANY: u16 = 255;
/// Bytes of type, class, TTL and length of data, after a record's name.
const RECORD_HEAD_BYTES: usize = 10;

/// The section of a message in which a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Records that answer the question.
    Answer,
    /// Records of the zone that is responsible.
    Authority,
    /// Everything else, EDNS included.
    Additional,
}

/// One record of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordAt {
    /// The section in which it is.
    pub section: Section,
    /// Its type, such as [`SOA`].
    pub kind: u16,
    /// Where its TTL begins.
    pub ttl_at: usize,
    /// Where its data is.
    pub data: Range<usize>,
}

/// The number at this position.
pub fn u16_at(message: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*message.get(at..)?.first_chunk()?))
}

/// The number at this position.
pub fn u32_at(message: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*message.get(at..)?.first_chunk()?))
}

/// Where the name ends that begins here. Compressed names end with their pointer.
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

/// Where the only question of a message is: name, type and class. Questions have no compressed names.
pub fn question(message: &[u8]) -> Option<Range<usize>> {
    if u16_at(message, 4)? != 1 {
        return None;
    }
    let end = name_end(message, HEADER_BYTES)? + 4;
    message.get(HEADER_BYTES..end).map(|_| HEADER_BYTES..end)
}

/// All records after the only question.
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
