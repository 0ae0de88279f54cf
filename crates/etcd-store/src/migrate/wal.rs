//! The end of a member's write-ahead log (etcd's package `server/storage/wal`).
//!
//! `--force-new-cluster` discards the entries after the commit index in the log. A follower receives an entry before its
//! commit index, and etcd syncs a commit index only with the next entry. So the last writes that a member has received
//! would be lost, although they were acknowledged. [`commit_all`] commits them before: writes that were acknowledged are
//! kept, and those that were not may have happened.

use std::fs::{self, File};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use kelson_etcd::mvcc::Crc32c;
use prost::Message as _;

/// The length field of a frame in bytes. Its highest byte is 0, or 0x80 with the number of bytes of padding.
const LENGTH_BYTES: usize = 8;
const LENGTH_BITS: u64 = (1 << 56) - 1;
const PADDED: u8 = 0x80;
/// The types of records that are read here; all others are only counted into the checksum.
const ENTRY: i64 = 2;
const STATE: i64 = 3;
const CHECKSUM: i64 = 4;

/// A record (`walpb.Record`).
#[derive(Clone, PartialEq, prost::Message)]
struct LogRecord {
    #[prost(int64, tag = "1")]
    kind: i64,
    /// The CRC-32C of the data of all records until this one.
    #[prost(uint32, tag = "2")]
    sum: u32,
    #[prost(bytes = "bytes", tag = "3")]
    data: Bytes,
}

/// An entry of Raft (`raftpb.Entry`), without its content.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct EntryHead {
    #[prost(uint64, tag = "3")]
    index: u64,
}

/// The state of Raft that must survive a restart (`raftpb.HardState`).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
struct HardState {
    #[prost(uint64, tag = "1")]
    term: u64,
    #[prost(uint64, tag = "2")]
    vote: u64,
    #[prost(uint64, tag = "3")]
    commit: u64,
}

/// Where a segment of a log ends.
#[derive(Debug, PartialEq, Eq)]
struct LogEnd {
    /// The offset in bytes at which the next record begins.
    offset: usize,
    /// The checksum of the last record.
    sum: u32,
    state: HardState,
    /// The index of the last entry.
    last: u64,
}

/// Commits all entries of the log in the directory `wal`, which no process has open. Returns how many were not committed.
/// A log whose end cannot be read stays as it is, since etcd repairs it.
///
/// # Errors
/// The disk's.
pub(super) fn commit_all(wal: &Path) -> io::Result<u64> {
    let Some((path, first)) = last_segment(wal)? else { return Ok(0) };
    let Some(end) = read_end(fs::read(&path)?.into(), first) else { return Ok(0) };
    if end.state == HardState::default() || end.last <= end.state.commit {
        return Ok(0);
    }
    let mut file = File::options().write(true).open(&path)?;
    file.seek(SeekFrom::Start(u64::try_from(end.offset).map_err(io::Error::other)?))?;
    file.write_all(&frame_committed(&end))?;
    file.sync_all()?;
    Ok(end.last - end.state.commit)
}

/// Returns the file that etcd appends to, and the index of the first entry that it can have.
fn last_segment(wal: &Path) -> io::Result<Option<(PathBuf, u64)>> {
    let mut last = None;
    for entry in fs::read_dir(wal)? {
        let path = entry?.path();
        // The names are the number of the segment and that index, in hexadecimal digits.
        let numbers = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".wal")?.split_once('-'));
        let numbers = numbers
            .and_then(|(n, first)| Some((u64::from_str_radix(n, 16).ok()?, u64::from_str_radix(first, 16).ok()?)));
        if let Some((number, first)) = numbers
            && last.as_ref().is_none_or(|(_, _, newest)| number > *newest)
        {
            last = Some((path, first, number));
        }
    }
    Ok(last.map(|(path, first, _)| (path, first)))
}

/// Reads a segment; `None` if a record is damaged. What follows the last record is zeros.
fn read_end(segment: Bytes, first: u64) -> Option<LogEnd> {
    let mut end = LogEnd { offset: 0, sum: 0, state: HardState::default(), last: first.saturating_sub(1) };
    while let Some(head) = segment.get(end.offset..end.offset + LENGTH_BYTES) {
        let length = u64::from_le_bytes(head.try_into().ok()?);
        if length == 0 {
            break;
        }
        let flags = head[LENGTH_BYTES - 1];
        let padding = if flags & PADDED == 0 { 0 } else { usize::from(flags & 7) };
        let bytes = usize::try_from(length & LENGTH_BITS).ok()?;
        let from = end.offset + LENGTH_BYTES;
        let to = from.checked_add(bytes)?;
        if to.checked_add(padding)? > segment.len() {
            return None;
        }
        let record = LogRecord::decode(segment.slice(from..to)).ok()?;
        if record.kind == CHECKSUM {
            if end.sum != 0 && end.sum != record.sum {
                return None;
            }
        } else if sum_after(end.sum, &record.data) != record.sum {
            return None;
        }
        end.sum = record.sum;
        match record.kind {
            ENTRY => end.last = EntryHead::decode(record.data).ok()?.index,
            STATE => end.state = HardState::decode(record.data).ok()?,
            _ => {}
        }
        end.offset = to + padding;
    }
    Some(end)
}

/// Returns the record that commits the last entry.
fn frame_committed(end: &LogEnd) -> Vec<u8> {
    let data: Bytes = HardState { commit: end.last, ..end.state }.encode_to_vec().into();
    frame(&LogRecord { kind: STATE, sum: sum_after(end.sum, &data), data })
}

fn frame(record: &LogRecord) -> Vec<u8> {
    let bytes = record.encode_to_vec();
    let padding = bytes.len().wrapping_neg() % LENGTH_BYTES;
    let mut length = u64::try_from(bytes.len()).unwrap_or(LENGTH_BITS).to_le_bytes();
    if padding > 0 {
        length[LENGTH_BYTES - 1] = PADDED | u8::try_from(padding).unwrap_or(0);
    }
    [&length, bytes.as_slice(), &[0; LENGTH_BYTES][..padding]].concat()
}

fn sum_after(sum: u32, data: &[u8]) -> u32 {
    let mut next = Crc32c::after(sum);
    next.update(data);
    next.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first bytes of a log that etcd 3.5.30 wrote: checksum, metadata and snapshot.
    const OF_ETCD: &str = "040000000000008408041000000000001f00000000000081080110e9d0f993031a1508e0bc82b7f9ed97983010a385a9c5fb\
        da99d8a901000e00000000000082080510d1c3b992051a04080010000000";

    fn of_etcd() -> Vec<u8> {
        OF_ETCD
            .as_bytes()
            .chunks(2)
            .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
            .collect()
    }

    /// A log as etcd writes it: entries, then the state, then a reserve of zeros.
    fn log(entries: &[u64], commit: u64) -> Vec<u8> {
        let mut sum = 0;
        let mut bytes = frame(&LogRecord { kind: CHECKSUM, sum, data: Bytes::new() });
        let state = HardState { term: 2, vote: 7, commit }.encode_to_vec();
        let entries = entries.iter().map(|index| (ENTRY, EntryHead { index: *index }.encode_to_vec()));
        for (kind, data) in entries.chain([(STATE, state)]) {
            sum = sum_after(sum, &data);
            bytes.extend(frame(&LogRecord { kind, sum, data: data.into() }));
        }
        bytes.extend([0; 256]);
        bytes
    }

    #[test]
    fn a_log_of_etcd_is_read() {
        let bytes = of_etcd();
        let length = bytes.len();
        let end = read_end(bytes.into(), 0).unwrap();
        assert_eq!((end.offset, end.sum, end.last), (length, 0x524e_61d1, 0));
    }

    #[test]
    fn all_entries_are_committed_once() {
        let dir = tempfile::tempdir().unwrap();
        let name = |n: u64, first: u64| dir.path().join(format!("{n:016x}-{first:016x}.wal"));
        fs::write(name(0, 0), log(&[1, 2], 1)).unwrap();
        fs::write(dir.path().join("0.tmp"), "x").unwrap();
        let size = log(&[0xff, 0x100, 0x101], 0xff).len();
        fs::write(name(1, 0xff), log(&[0xff, 0x100, 0x101], 0xff)).unwrap();
        assert_eq!(commit_all(dir.path()).unwrap(), 2);
        assert_eq!(commit_all(dir.path()).unwrap(), 0);
        let written = fs::read(name(1, 0xff)).unwrap();
        assert_eq!(written.len(), size, "it is in the reserve");
        let end = read_end(written.into(), 0xff).unwrap();
        assert_eq!(end.state, HardState { term: 2, vote: 7, commit: 0x101 });
        // A segment that has no entry yet.
        fs::write(name(2, 0x102), log(&[], 0x100)).unwrap();
        assert_eq!(commit_all(dir.path()).unwrap(), 1);
    }

    #[test]
    fn a_damaged_log_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(commit_all(dir.path()).unwrap(), 0, "no log");
        let path = dir.path().join(format!("{:016x}-{:016x}.wal", 0, 0));
        let whole = log(&[1, 2], 1);
        let records = whole.len() - 256;
        let flipped = |at: usize| whole.iter().enumerate().map(|(i, b)| if i == at { b ^ 0x40 } else { *b }).collect();
        let damaged: [Vec<u8>; 3] = [flipped(records - 5), flipped(30), whole[..records - 1].to_vec()];
        for bytes in damaged {
            fs::write(&path, &bytes).unwrap();
            assert_eq!(commit_all(dir.path()).unwrap(), 0);
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
    }
}
