//! Reads SQLite's write-ahead log (<https://sqlite.org/fileformat2.html#the_write_ahead_log>) to find out how much of it SQLite
//! recovers. SQLite treats the first invalid frame as the end of the log and reports nothing, so damage looks like a shorter log.
#![allow(clippy::disallowed_methods, reason = "blocking: opened in the lane for files")]

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;
/// The magic numbers of the log's header. The first one means little-endian words in the checksums, the second one big-endian words.
const MAGIC_LITTLE: u32 = 0x377f_0682;
const MAGIC_BIG: u32 = 0x377f_0683;
/// The offset of the salts in the log's header.
pub(super) const SALTS_AT: u64 = 16;

/// The two salts of a log's header. SQLite chooses new ones whenever it restarts the log.
pub(super) type Salts = [u8; 8];

/// The extent of a log that SQLite recovers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    pub salts: Salts,
    /// The number of frames up to the last commit.
    pub frames: u32,
}

/// The state of a log's file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RecoveredLog {
    /// The file is missing or empty.
    Absent,
    /// The header is damaged, so SQLite ignores the whole file.
    NoHeader,
    /// SQLite recovers these frames.
    Frames(Extent),
}

/// Reads a log as SQLite does at recovery.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub(super) fn read(path: &Path) -> io::Result<RecoveredLog> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(RecoveredLog::Absent),
        Err(error) => return Err(error),
    };
    if file.metadata()?.len() == 0 {
        return Ok(RecoveredLog::Absent);
    }
    scan(BufReader::with_capacity(256 << 10, file))
}

fn scan(mut from: impl Read) -> io::Result<RecoveredLog> {
    let mut header = [0; HEADER_BYTES];
    if !fill(&mut from, &mut header)? {
        return Ok(RecoveredLog::NoHeader);
    }
    let mut sum = match word(&header, 0) {
        MAGIC_LITTLE => Sum { big: false, state: (0, 0) },
        MAGIC_BIG => Sum { big: true, state: (0, 0) },
        _ => return Ok(RecoveredLog::NoHeader),
    };
    sum.add(&header[..24]);
    let page = word(&header, 8) as usize;
    if sum.state != (word(&header, 24), word(&header, 28)) || !page.is_power_of_two() || !(512..=65536).contains(&page)
    {
        return Ok(RecoveredLog::NoHeader);
    }
    let mut salts = Salts::default();
    salts.copy_from_slice(&header[16..24]);
    let mut frame = vec![0; FRAME_HEADER_BYTES + page];
    let (mut seen, mut committed) = (0, 0);
    while fill(&mut from, &mut frame)? {
        let (head, content) = frame.split_at(FRAME_HEADER_BYTES);
        if head[8..16] != salts || word(head, 0) == 0 {
            break;
        }
        sum.add(&head[..8]);
        sum.add(content);
        if sum.state != (word(head, 16), word(head, 20)) {
            break;
        }
        seen += 1;
        // The database's size after the commit. It is 0 in frames that do not end a commit.
        if word(head, 4) != 0 {
            committed = seen;
        }
    }
    Ok(RecoveredLog::Frames(Extent { salts, frames: committed }))
}

/// Fills the buffer. Returns `false` if the file ends before that.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The running checksum of a log. It covers the header and all earlier frames.
struct Sum {
    big: bool,
    state: (u32, u32),
}

impl Sum {
    /// Adds bytes, whose number must be a multiple of eight.
    fn add(&mut self, bytes: &[u8]) {
        let (mut a, mut b) = self.state;
        let of = |four: [u8; 4]| if self.big { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) };
        for pair in bytes.chunks_exact(8) {
            a = a.wrapping_add(of([pair[0], pair[1], pair[2], pair[3]])).wrapping_add(b);
            b = b.wrapping_add(of([pair[4], pair[5], pair[6], pair[7]])).wrapping_add(a);
        }
        self.state = (a, b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(bytes: &[u8]) -> RecoveredLog {
        scan(bytes).unwrap()
    }

    /// The bytes of a log that SQLite wrote, with a number of commits.
    fn written(commits: u32) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.execute_batch("PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0; CREATE TABLE t (a);").unwrap();
        for n in 0..commits {
            connection.execute("INSERT INTO t VALUES (?1)", [n]).unwrap();
        }
        std::fs::read(dir.path().join("db-wal")).unwrap()
    }

    #[test]
    fn a_log_ends_at_its_last_complete_commit() {
        let bytes = written(3);
        let RecoveredLog::Frames(whole) = log(&bytes) else { panic!("no frames") };
        let frame = FRAME_HEADER_BYTES + 4096;
        assert_eq!((whole.frames as usize, bytes.len()), ((bytes.len() - HEADER_BYTES) / frame, bytes.len()));
        assert_eq!(whole.salts, bytes[16..24]);
        for cut in [bytes.len() - 1, bytes.len() - frame + 1] {
            assert_eq!(log(&bytes[..cut]), RecoveredLog::Frames(Extent { frames: whole.frames - 1, ..whole }));
        }
        assert_eq!(log(&bytes[..HEADER_BYTES]), RecoveredLog::Frames(Extent { frames: 0, ..whole }));
        assert_eq!(log(&bytes[..HEADER_BYTES - 1]), RecoveredLog::NoHeader);
    }

    #[test]
    fn a_flipped_bit_ends_the_log_before_its_frame() {
        let bytes = written(2);
        let RecoveredLog::Frames(whole) = log(&bytes) else { panic!("no frames") };
        for at in (0..bytes.len()).step_by(61) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            match log(&flipped) {
                RecoveredLog::NoHeader => assert!(at < HEADER_BYTES),
                RecoveredLog::Frames(extent) => assert!(extent.frames < whole.frames, "byte {at}"),
                RecoveredLog::Absent => panic!("byte {at}"),
            }
        }
    }
}
