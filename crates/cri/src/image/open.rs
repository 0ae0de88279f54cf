//! Opens an image archive: a file or standard input, plain or compressed (gzip, zstd, xz). The result is a plain file
//! that can be read at any offset. Blocks.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// The maximum size of an archive after decompression.
const UNPACKED_BYTES_MAX: u64 = 64 << 30;
/// The maximum compression ratio: no image archive exceeds it, and one that does is made to fill the disk.
const RATIO_MAX: u64 = 20;
/// Smaller archives may have a higher ratio.
const RATIO_FREE_BYTES: u64 = 64 << 20;
/// The space of the file system that stays free, in bytes.
const FREE_BYTES_MIN: u64 = 256 << 20;
/// The number of bytes copied between two checks of the limit.
const COPY_BYTES: usize = 1 << 20;

/// Why an archive cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenFault {
    /// It cannot be read, or the decompressed file cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Its compression format is not supported.
    #[error("{0} compression is not supported; decompress the archive first")]
    Unsupported(&'static str),
    /// It would use too much of the disk.
    #[error("its unpacked size exceeds {0} bytes, the limit for this disk and archive size")]
    TooLarge(u64),
    /// Its compressed content is damaged.
    #[error("its {0} content is truncated or damaged: {1}")]
    Damaged(&'static str, String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    Plain,
    Gzip,
    Zstd,
    Xz,
    Unsupported(&'static str),
}

impl Packing {
    /// Detects the format by the first bytes.
    fn of(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Self::Unsupported("bzip2"),
            [0x04, 0x22, 0x4d, 0x18, ..] => Self::Unsupported("lz4"),
            [b'P', b'K', 3, 4, ..] => Self::Unsupported("zip"),
            _ => Self::Plain,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Xz => "xz",
            Self::Unsupported(word) => word,
        }
    }
}

/// Reports whether the path means standard input.
pub(super) fn is_standard_input(path: &Path) -> bool {
    path == Path::new("-") || path == Path::new("/dev/stdin")
}

/// Opens the archive at `path`, `-` for standard input.
pub(super) fn open(path: &Path) -> Result<File, OpenFault> {
    let mut file = if is_standard_input(path) {
        let scratch = scratch(Path::new("."))?;
        let limit = room(&scratch)?.min(UNPACKED_BYTES_MAX);
        copied(&mut io::stdin().lock(), scratch, limit).map_err(|e| e.fault("input"))?
    } else {
        let file = File::open(path)?;
        if file.metadata()?.is_file() {
            file
        } else {
            // A pipe cannot be read twice.
            let scratch = scratch(path.parent().unwrap_or(Path::new(".")))?;
            let limit = room(&scratch)?.min(UNPACKED_BYTES_MAX);
            copied(&mut BufReader::new(file), scratch, limit).map_err(|e| e.fault("input"))?
        }
    };
    file.rewind()?;
    let mut start = Vec::new();
    (&file).take(6).read_to_end(&mut start)?;
    file.rewind()?;
    let packing = Packing::of(&start);
    if packing == Packing::Plain {
        return Ok(file);
    }
    let packed = file.seek(SeekFrom::End(0))?;
    file.rewind()?;
    let beside = path.parent().filter(|p| !p.as_os_str().is_empty() && !is_standard_input(path));
    let scratch = scratch(beside.unwrap_or(Path::new(".")))?;
    let by_size = packed.saturating_mul(RATIO_MAX).max(RATIO_FREE_BYTES);
    let limit = room(&scratch)?.min(by_size).min(UNPACKED_BYTES_MAX);
    unpacked(BufReader::new(file), packing, scratch, limit)
}

fn unpacked(packed: BufReader<File>, packing: Packing, into: File, limit: u64) -> Result<File, OpenFault> {
    let mut reader: Box<dyn Read> = match packing {
        Packing::Plain => Box::new(packed),
        Packing::Gzip => Box::new(flate2::read::MultiGzDecoder::new(packed)),
        Packing::Zstd => Box::new(ZstdFrames { rest: Some(packed), frame: None }),
        Packing::Xz => Box::new(lzma_rust2::XzReader::new(packed, true)),
        Packing::Unsupported(word) => return Err(OpenFault::Unsupported(word)),
    };
    copied(&mut reader, into, limit).map_err(|e| e.fault(packing.word()))
}

/// Reads the consecutive frames of a zstd file; tools that compress with several threads write many.
struct ZstdFrames {
    /// The data after the current frame; taken while a frame is read.
    rest: Option<BufReader<File>>,
    frame: Option<ruzstd::decoding::StreamingDecoder<BufReader<File>, ruzstd::decoding::FrameDecoder>>,
}

impl Read for ZstdFrames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        use std::io::BufRead as _;
        loop {
            if let Some(frame) = &mut self.frame {
                let read = frame.read(buffer)?;
                if read > 0 || buffer.is_empty() {
                    return Ok(read);
                }
                self.rest = self.frame.take().map(ruzstd::decoding::StreamingDecoder::into_inner);
            }
            let Some(mut rest) = self.rest.take() else { return Ok(0) };
            if rest.fill_buf()?.is_empty() {
                self.rest = Some(rest);
                return Ok(0);
            }
            if let Some(length) = skippable(&mut rest)? {
                io::copy(&mut rest.by_ref().take(length.into()), &mut io::sink())?;
                self.rest = Some(rest);
                continue;
            }
            let frame = ruzstd::decoding::StreamingDecoder::new(rest).map_err(io::Error::other)?;
            self.frame = Some(frame);
        }
    }
}

/// Returns the length of a skippable frame's content, if one begins here, and reads its head.
fn skippable(rest: &mut BufReader<File>) -> io::Result<Option<u32>> {
    use std::io::BufRead as _;
    // The magic number of a skippable frame is 0x184D2A50 to 0x184D2A5F, little-endian.
    let is_skippable = matches!(rest.fill_buf()?, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]);
    if !is_skippable {
        return Ok(None);
    }
    let mut head = [0u8; 8];
    rest.read_exact(&mut head)?;
    Ok(Some(u32::from_le_bytes([head[4], head[5], head[6], head[7]])))
}

/// An error while copying, by its side.
enum CopyFault {
    Read(io::Error),
    Write(io::Error),
    Limit(u64),
}

impl CopyFault {
    fn fault(self, what: &'static str) -> OpenFault {
        match self {
            // An error of a decoder: reading its input did not fail in the system.
            Self::Read(e) if e.raw_os_error().is_none() => OpenFault::Damaged(what, e.to_string()),
            Self::Read(e) | Self::Write(e) => OpenFault::Io(e),
            Self::Limit(limit) => OpenFault::TooLarge(limit),
        }
    }
}

fn copied(from: &mut dyn Read, mut into: File, limit: u64) -> Result<File, CopyFault> {
    let mut buffer = vec![0; COPY_BYTES];
    let mut total = 0u64;
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(CopyFault::Read(e)),
        };
        total = total.saturating_add(read as u64);
        if total > limit {
            return Err(CopyFault::Limit(limit));
        }
        into.write_all(&buffer[..read]).map_err(CopyFault::Write)?;
    }
    into.rewind().map_err(CopyFault::Write)?;
    Ok(into)
}

/// Returns the number of bytes that may be written to the file system of `file`.
fn room(file: &File) -> io::Result<u64> {
    let stat = rustix::fs::fstatvfs(file)?;
    Ok((stat.f_bavail * stat.f_frsize).saturating_sub(FREE_BYTES_MIN))
}

/// Creates a file without a name in `beside` (or the temporary directory), which disappears with its handle.
fn scratch(beside: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let beside = if beside.as_os_str().is_empty() { Path::new(".") } else { beside };
    let mode = Mode::RUSR | Mode::WUSR;
    Ok(open(beside, flags, mode).or_else(|_| open(std::env::temp_dir(), flags, mode))?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        file
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }

    #[test]
    fn a_bomb_is_not_unpacked_beyond_its_limit() {
        let bomb = gzip(&vec![0; 8 << 20]);
        let unpack = |limit| unpacked(BufReader::new(file(&bomb)), Packing::Gzip, file(b""), limit);
        assert_eq!(unpack(8 << 20).unwrap().metadata().unwrap().len(), 8 << 20);
        assert!(matches!(unpack((8 << 20) - 1), Err(OpenFault::TooLarge(_))));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bomb.tar.gz");
        // A ratio of a thousand, above the limit for small archives.
        std::fs::write(&path, gzip(&vec![0; (RATIO_FREE_BYTES as usize) + (1 << 20)])).unwrap();
        assert!(matches!(open(&path), Err(OpenFault::TooLarge(limit)) if limit == RATIO_FREE_BYTES));
    }

    #[test]
    fn archives_of_other_tools_are_unpacked_and_damage_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..200_000u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        let plain = dir.path().join("plain");
        std::fs::write(&plain, &content).unwrap();
        for (program, ending) in [("gzip", "gz"), ("zstd", "zst"), ("xz", "xz")] {
            let packed = dir.path().join(format!("packed.{ending}"));
            let out = match std::process::Command::new(program).arg("-c").arg(&plain).output() {
                Ok(out) if out.status.success() => out.stdout,
                // The formats of tools that are not installed are covered by the next test.
                _ => continue,
            };
            // Two members, as created by `cat a b` and by tools with several threads.
            std::fs::write(&packed, [out.as_slice(), &out].concat()).unwrap();
            let mut unpacked = Vec::new();
            open(&packed).unwrap().read_to_end(&mut unpacked).unwrap();
            assert!(unpacked == [content.as_slice(), &content].concat(), "{program}: {} bytes", unpacked.len());
            std::fs::write(&packed, &out[..out.len() / 2]).unwrap();
            let error = open(&packed).expect_err("cut short").to_string();
            assert!(error.contains("truncated or damaged"), "{program}: {error}");
        }
    }

    #[test]
    fn known_files_of_each_packing() {
        // "hello
        // " by zstd 1.5.4 and xz 5.4.1.
        const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd\x04\x58\x31\x00\x00hello\n\x53\x88\xbd\x91";
        const XZ: &[u8] = b"\xfd7zXZ\x00\x00\x04\xe6\xd6\xb4\x46\x02\x00\x21\x01\x16\x00\x00\x00\x74\x2f\xe5\xa3\
            \x01\x00\x05hello\n\x00\x00\x00\xa5\x60\x97\xf1\x94\xf6\xfd\xe0\x00\x01\x1e\x06\xc1\x2f\xa4\x1d\
            \x1f\xb6\xf3\x7d\x01\x00\x00\x00\x00\x04YZ";
        let dir = tempfile::tempdir().unwrap();
        let read = |bytes: &[u8]| {
            let path = dir.path().join("x");
            std::fs::write(&path, bytes).unwrap();
            open(&path).map(|mut file| {
                let mut text = String::new();
                file.read_to_string(&mut text).unwrap();
                text
            })
        };
        let skipped = b"\x50\x2a\x4d\x18\x03\x00\x00\x00\x01\x02\x03";
        assert_eq!(read(&[ZSTD, skipped, ZSTD].concat()).ok().as_deref(), Some("hello\nhello\n"));
        assert_eq!(read(XZ).ok().as_deref(), Some("hello\n"));
        for (start, word) in [(&b"BZh91AY&SY"[..], "bzip2"), (b"PK\x03\x04", "zip"), (&[4, 0x22, 0x4d, 0x18], "lz4")] {
            let error = read(start).expect_err("not supported").to_string();
            assert_eq!(error, format!("{word} compression is not supported; decompress the archive first"));
        }
        assert_eq!(read(b"just text").ok().as_deref(), Some("just text"), "whether it is a tar is looked at later");
    }
}
