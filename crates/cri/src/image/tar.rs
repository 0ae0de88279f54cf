//! Tar, as much of it as images need: writing reproducible archives, and an index of one on disk (ustar, GNU long
//! names, pax paths and sizes). Unpacking into a file system is the runtime's work.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};

const BLOCK: usize = 512;
const NAME_BYTES: usize = 100;
/// Longest extended header (GNU long name, pax) read.
const EXTENDED_BYTES_MAX: u64 = 1 << 20;
/// Most members an image archive may have.
const ENTRIES_MAX: usize = 100_000;

/// Writes a tar into memory. Times and owners are zero, so that equal content gives equal bytes.
#[derive(Debug, Default)]
pub struct Writer {
    out: Vec<u8>,
}

impl Writer {
    /// An empty archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// A regular file with permission bits `mode`.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> &mut Self {
        self.header(path, b'0', mode, content.len() as u64, "");
        self.content(content)
    }

    /// Adds a directory; its parents are not made.
    pub fn dir(&mut self, path: &str, mode: u32) -> &mut Self {
        let path = format!("{}/", path.trim_end_matches('/'));
        self.header(&path, b'5', mode, 0, "");
        self
    }

    /// A symbolic link.
    pub fn symlink(&mut self, path: &str, target: &str) -> &mut Self {
        self.header(path, b'2', 0o777, 0, target);
        self
    }

    /// The archive with its end mark.
    pub fn finish(mut self) -> Vec<u8> {
        self.out.resize(self.out.len() + 2 * BLOCK, 0);
        self.out
    }

    fn content(&mut self, content: &[u8]) -> &mut Self {
        self.out.extend_from_slice(content);
        self.out.resize(self.out.len().next_multiple_of(BLOCK), 0);
        self
    }

    fn header(&mut self, path: &str, kind: u8, mode: u32, size: u64, target: &str) {
        let path = path.trim_start_matches('/');
        for (long_kind, text) in [(b'L', path), (b'K', target)] {
            if text.len() > NAME_BYTES {
                let zero_ended = [text.as_bytes(), b"\0"].concat();
                self.raw_header("././@LongLink", long_kind, 0o644, zero_ended.len() as u64, "");
                self.content(&zero_ended);
            }
        }
        self.raw_header(path, kind, mode, size, target);
    }

    fn raw_header(&mut self, path: &str, kind: u8, mode: u32, size: u64, target: &str) {
        let mut block = [0_u8; BLOCK];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &path.as_bytes()[..path.len().min(NAME_BYTES)]);
        put(100, format!("{mode:07o}\0{:07o}\0{:07o}\0{size:011o}\0{:011o}\0", 0, 0, 0).as_bytes());
        put(148, b"        ");
        put(156, &[kind]);
        put(157, &target.as_bytes()[..target.len().min(NAME_BYTES)]);
        put(257, b"ustar\x0000");
        let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.out.extend_from_slice(&block);
    }
}

/// Where a member's content lies, or where else to look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    File {
        offset: u64,
        size: u64,
    },
    /// A hard or symbolic link to another member, already resolved to a path from the archive's root.
    Link(String),
}

/// The members of a tar file by path.
#[derive(Debug)]
pub(crate) struct Index(BTreeMap<String, Entry>);

impl Index {
    /// Reads all headers; contents are skipped over.
    pub fn read(mut from: impl Read + Seek) -> io::Result<Self> {
        let mut entries = BTreeMap::new();
        let mut long = Extended::default();
        let end = from.seek(SeekFrom::End(0))?;
        let mut at = 0;
        while at + BLOCK as u64 <= end {
            from.seek(SeekFrom::Start(at))?;
            let mut block = [0_u8; BLOCK];
            from.read_exact(&mut block)?;
            if block.iter().all(|b| *b == 0) {
                break;
            }
            check_sum(&block)?;
            let kind = block[156];
            let mut size = number(&block[124..136])?;
            if !matches!(kind, b'L' | b'K' | b'x' | b'g') {
                size = long.size.unwrap_or(size);
            }
            let offset = at + BLOCK as u64;
            at = size.checked_next_multiple_of(BLOCK as u64).and_then(|s| s.checked_add(offset)).ok_or_else(bad)?;
            if at > end.next_multiple_of(BLOCK as u64) || entries.len() > ENTRIES_MAX {
                return Err(bad());
            }
            match kind {
                b'L' | b'K' | b'x' => long.read(kind, &mut from, size)?,
                b'g' => {}
                _ => {
                    let extended = std::mem::take(&mut long);
                    let path = clean(&extended.path.unwrap_or_else(|| path_of(&block)));
                    let target = extended.target.unwrap_or_else(|| text(&block[157..257]));
                    match kind {
                        b'0' | 0 | b'7' => drop(entries.insert(path, Entry::File { offset, size })),
                        b'1' => drop(entries.insert(path, Entry::Link(clean(&target)))),
                        b'2' => {
                            let parent = path.rsplit_once('/').map_or("", |(dir, _)| dir);
                            let to = clean(&format!("{parent}/{target}"));
                            entries.insert(path, Entry::Link(to));
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(Self(entries))
    }

    /// Offset and size of a member, following links.
    pub fn find(&self, path: &str) -> Option<(u64, u64)> {
        let mut path = clean(path);
        for _ in 0..8 {
            match self.0.get(&path)? {
                Entry::File { offset, size } => return Some((*offset, *size)),
                Entry::Link(to) => path.clone_from(to),
            }
        }
        None
    }
}

/// What an extended header says about the member after it.
#[derive(Default)]
struct Extended {
    path: Option<String>,
    target: Option<String>,
    size: Option<u64>,
}

impl Extended {
    fn read(&mut self, kind: u8, from: &mut impl Read, size: u64) -> io::Result<()> {
        if size > EXTENDED_BYTES_MAX {
            return Err(bad());
        }
        let mut content = Vec::new();
        from.take(size).read_to_end(&mut content)?;
        match kind {
            b'L' => self.path = Some(text(&content)),
            b'K' => self.target = Some(text(&content)),
            _ => self.pax(&content),
        }
        Ok(())
    }

    /// Records are `LENGTH KEY=VALUE\n`, the length counting the whole record.
    fn pax(&mut self, mut records: &[u8]) {
        while let Some(space) = records.iter().position(|b| *b == b' ') {
            let length = std::str::from_utf8(&records[..space]).ok().and_then(|l| l.parse::<usize>().ok());
            let Some(length) = length.filter(|l| *l > space + 1 && *l <= records.len()) else { return };
            let record = String::from_utf8_lossy(&records[space + 1..length - 1]).into_owned();
            match record.split_once('=') {
                Some(("path", value)) => self.path = Some(value.to_owned()),
                Some(("linkpath", value)) => self.target = Some(value.to_owned()),
                Some(("size", value)) => self.size = value.parse().ok(),
                _ => {}
            }
            records = &records[length..];
        }
    }
}

fn bad() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not a tar archive, or cut short")
}

fn check_sum(block: &[u8; BLOCK]) -> io::Result<()> {
    let said = number(&block[148..156])?;
    let sum: u64 =
        block.iter().enumerate().map(|(i, b)| u64::from(if (148..156).contains(&i) { b' ' } else { *b })).sum();
    if said == sum { Ok(()) } else { Err(bad()) }
}

/// Octal, or big-endian binary where the first bit is set.
fn number(field: &[u8]) -> io::Result<u64> {
    if field[0] & 0x80 != 0 {
        return Ok(field[field.len() - 8..].iter().fold(0, |n, b| (n << 8) | u64::from(*b)));
    }
    let digits = text(field);
    let digits = digits.trim();
    if digits.is_empty() { Ok(0) } else { u64::from_str_radix(digits, 8).map_err(|_| bad()) }
}

fn text(field: &[u8]) -> String {
    let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

fn path_of(block: &[u8; BLOCK]) -> String {
    let name = text(&block[..NAME_BYTES]);
    let prefix = if &block[257..262] == b"ustar" && block[262] == 0 { text(&block[345..500]) } else { String::new() };
    if prefix.is_empty() { name } else { format!("{prefix}/{name}") }
}

/// A path from the archive's root with no empty, `.` or `..` parts; it only serves as a key.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn what_is_written_is_found_again() {
        let long = format!("dir/{}", "n".repeat(150));
        let mut writer = Writer::new();
        writer
            .dir("dir", 0o755)
            .file("dir/a", 0o644, b"hello")
            .file(&long, 0o600, &[7; 600])
            .symlink("dir/b", "../dir/a");
        let bytes = writer.finish();
        let index = Index::read(Cursor::new(&bytes)).unwrap();
        let content = |path: &str| {
            let (offset, size) = index.find(path).unwrap();
            bytes[offset as usize..(offset + size) as usize].to_vec()
        };
        assert_eq!(content("./dir/a"), b"hello");
        assert_eq!(content("dir/b"), b"hello");
        assert_eq!(content(&long), [7; 600]);
        assert!(index.find("dir/none").is_none());
    }

    #[test]
    fn other_tools_read_what_is_written() {
        let mut writer = Writer::new();
        writer.file("x", 0o755, b"data").symlink("y", &"t".repeat(120));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tar");
        std::fs::write(&path, writer.finish()).unwrap();
        let out = std::process::Command::new("tar").arg("-tvf").arg(&path).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let listing = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(listing.contains("-rwxr-xr-x") && listing.contains(&"t".repeat(120)), "{listing}");
    }

    #[test]
    fn rubbish_is_refused() {
        assert!(Index::read(Cursor::new(vec![b'x'; 2048])).is_err());
        let mut cut = Writer::new();
        cut.file("a", 0o644, &[1; 5000]);
        let bytes = cut.finish();
        assert!(Index::read(Cursor::new(&bytes[..1024])).is_err());
    }
}
