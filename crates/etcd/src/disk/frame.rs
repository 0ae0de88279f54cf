//! Frames: length, checksum of the length, checksum of the content, content. All numbers are little-endian; checksums
//! are CRC-32.

use std::io::{self, Read};

/// The size of a frame's head in bytes.
pub(super) const HEAD_BYTES: usize = 12;

/// Appends a frame whose content `write` appends.
pub(super) fn append(into: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), u64> {
    let at = into.len();
    into.resize(at + HEAD_BYTES, 0);
    write(into);
    let (head, content) = into[at..].split_at_mut(HEAD_BYTES);
    let length = u32::try_from(content.len()).map_err(|_| content.len() as u64)?.to_le_bytes();
    head[..4].copy_from_slice(&length);
    head[4..8].copy_from_slice(&crc32fast::hash(&length).to_le_bytes());
    head[8..].copy_from_slice(&crc32fast::hash(content).to_le_bytes());
    Ok(())
}

/// The result of reading at the position of a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FrameRead {
    Frame,
    End,
    /// An incomplete frame at the end of the file.
    Torn,
    Damaged(&'static str),
}

/// Reads frames of a file of known length.
pub(super) struct Reader<R> {
    from: R,
    length: u64,
    /// The position of the next frame.
    pub at: u64,
    /// The content of the last frame.
    pub content: Vec<u8>,
}

impl<R: Read> Reader<R> {
    pub fn new(from: R, length: u64) -> Self {
        Self { from, length, at: 0, content: Vec::new() }
    }

    /// Reads the next frame. After any other result nothing more can be read.
    pub fn next(&mut self) -> io::Result<FrameRead> {
        let left = self.length.saturating_sub(self.at);
        if left == 0 {
            return Ok(FrameRead::End);
        }
        let Some(left) = left.checked_sub(HEAD_BYTES as u64) else { return Ok(FrameRead::Torn) };
        let mut head = [0; HEAD_BYTES];
        self.from.read_exact(&mut head)?;
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if number(4) != crc32fast::hash(&head[..4]) {
            // The file may have grown before its last bytes were written to the disk.
            let blank = is_blank(&mut self.from)?;
            return Ok(if blank {
                FrameRead::Torn
            } else {
                FrameRead::Damaged("checksum mismatch in the header of a frame")
            });
        }
        let length = u64::from(number(0));
        if length > left {
            return Ok(FrameRead::Torn);
        }
        self.content.clear();
        self.content.resize(length as usize, 0);
        self.from.read_exact(&mut self.content)?;
        if number(8) != crc32fast::hash(&self.content) {
            let last = length == left;
            return Ok(if last { FrameRead::Torn } else { FrameRead::Damaged("checksum mismatch in a frame") });
        }
        self.at += HEAD_BYTES as u64 + length;
        Ok(FrameRead::Frame)
    }
}

/// Reports whether only zero bytes are left.
fn is_blank(from: &mut impl Read) -> io::Result<bool> {
    let mut piece = [0; 4096];
    loop {
        let read = from.read(&mut piece)?;
        if read == 0 {
            return Ok(true);
        }
        if piece[..read].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(frames: &[&[u8]]) -> Vec<u8> {
        let mut file = Vec::new();
        for content in frames {
            append(&mut file, |into| into.extend_from_slice(content)).unwrap();
        }
        file
    }

    /// Returns the number of complete frames, and the result after them.
    fn read(file: &[u8]) -> (usize, FrameRead) {
        let mut reader = Reader::new(file, file.len() as u64);
        let mut frames = 0;
        loop {
            match reader.next().unwrap() {
                FrameRead::Frame => frames += 1,
                other => return (frames, other),
            }
        }
    }

    #[test]
    fn every_cut_loses_the_last_frame_alone() {
        let whole = file(&[b"one", b"", b"three"]);
        assert_eq!(read(&whole), (3, FrameRead::End));
        for cut in 0..whole.len() {
            let ends = [0, file(&[b"one"]).len(), file(&[b"one", b""]).len()];
            let frames = ends.iter().filter(|end| **end != 0 && cut >= **end).count();
            let wanted = if ends.contains(&cut) { FrameRead::End } else { FrameRead::Torn };
            assert_eq!(read(&whole[..cut]), (frames, wanted), "cut at {cut}");
        }
    }

    #[test]
    fn a_file_that_grew_without_its_bytes_is_torn() {
        let mut grown = file(&[b"one"]);
        grown.extend_from_slice(&[0; 5000]);
        assert_eq!(read(&grown), (1, FrameRead::Torn));
    }

    #[test]
    fn a_flipped_bit_before_the_end_is_damage() {
        let whole = file(&[b"one", b"two"]);
        let first = file(&[b"one"]).len();
        for at in 0..first {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            assert!(matches!(read(&flipped), (0, FrameRead::Damaged(_))), "byte {at}");
        }
    }
}
