//! Tar archives for images, with the `tar` crate: reproducible archives, and an index of one on disk. The runtime
//! unpacks them into a file system.
use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};

use tar::{Archive, Builder, EntryType, Header};

/// The maximum number of members in an image archive.
const ENTRIES_MAX: usize = 100_000;
/// The maximum size of headers, including long names and extended ones, that are read of an archive; contents are
/// skipped.
const HEADER_BYTES_MAX: u64 = 256 << 20;
/// The maximum number of links followed to a member's content.
const LINKS_MAX: usize = 8;

/// Writes a tar archive into memory. Times and owners are zero, so that equal content gives equal bytes.
pub struct Writer(Builder<Vec<u8>>);

impl Default for Writer {
    fn default() -> Self {
        Self(Builder::new(Vec::new()))
    }
}

impl Writer {
    /// Creates an empty archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a regular file with permission bits `mode`.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> &mut Self {
        let mut header = header(EntryType::Regular, mode);
        header.set_size(content.len() as u64);
        let path = path.trim_start_matches('/');
        self.0.append_data(&mut header, path, content).expect("a path within the archive, written to memory");
        self
    }

    /// Adds a directory; its parents are not added.
    pub fn dir(&mut self, path: &str, mode: u32) -> &mut Self {
        let path = format!("{}/", path.trim_matches('/'));
        let mut header = header(EntryType::Directory, mode);
        self.0.append_data(&mut header, path, io::empty()).expect("a path within the archive, written to memory");
        self
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, path: &str, target: &str) -> &mut Self {
        let mut header = header(EntryType::Symlink, 0o777);
        let path = path.trim_start_matches('/');
        self.0.append_link(&mut header, path, target).expect("a path within the archive, written to memory");
        self
    }

    /// Returns the archive with its end mark.
    pub fn finish(self) -> Vec<u8> {
        self.0.into_inner().expect("memory takes all")
    }
}

fn header(kind: EntryType, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    header
}

/// The content of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    File {
        offset: u64,
        size: u64,
    },
    /// A hard or symbolic link to another member, resolved to a path from the archive's root.
    Link(String),
}

/// The members of a tar archive by path.
#[derive(Debug)]
pub(crate) struct Index(BTreeMap<String, Entry>);

impl Index {
    /// Reads all headers; contents are skipped.
    ///
    /// # Errors
    /// It is not an archive, is truncated, or has more members or longer headers than an image needs.
    pub fn read(mut from: impl Read + Seek) -> io::Result<Self> {
        let end = from.seek(SeekFrom::End(0))?;
        from.rewind()?;
        let mut entries = BTreeMap::new();
        let mut archive = Archive::new(Headers { from, left: HEADER_BYTES_MAX });
        for entry in archive.entries_with_seek()? {
            let entry = entry?;
            let (offset, size) = (entry.raw_file_position(), entry.size());
            if offset.checked_add(size).is_none_or(|after| after > end) || entries.len() >= ENTRIES_MAX {
                return Err(bad());
            }
            let path = clean(&String::from_utf8_lossy(&entry.path_bytes()));
            let target =
                || entry.link_name_bytes().map(|t| String::from_utf8_lossy(&t).into_owned()).unwrap_or_default();
            match entry.header().entry_type() {
                EntryType::Regular | EntryType::Continuous => drop(entries.insert(path, Entry::File { offset, size })),
                EntryType::Link => drop(entries.insert(path, Entry::Link(clean(&target())))),
                EntryType::Symlink => {
                    let parent = path.rsplit_once('/').map_or("", |(dir, _)| dir);
                    let to = clean(&format!("{parent}/{}", target()));
                    entries.insert(path, Entry::Link(to));
                }
                _ => {}
            }
        }
        Ok(Self(entries))
    }

    /// Returns offset and size of a member, following links.
    pub fn find(&self, path: &str) -> Option<(u64, u64)> {
        let mut path = clean(path);
        for _ in 0..LINKS_MAX {
            match self.0.get(&path)? {
                Entry::File { offset, size } => return Some((*offset, *size)),
                Entry::Link(to) => path.clone_from(to),
            }
        }
        None
    }
}

/// A file of which only a limited number of bytes can be read; seeking is free.
struct Headers<R> {
    from: R,
    left: u64,
}

impl<R: Read> Read for Headers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(bad)?;
        Ok(read)
    }
}

impl<R: Seek> Seek for Headers<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.from.seek(to)
    }
}

fn bad() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not a tar archive, truncated, or with too many members")
}

/// Returns a path from the archive's root without empty, `.` or `..` parts; used only as a key.
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
        // A name as long as the archive is not read into memory.
        let mut name = header(EntryType::GNULongName, 0o644);
        name.set_size(HEADER_BYTES_MAX + 1);
        name.set_cksum();
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, name.as_bytes()).unwrap();
        file.set_len(HEADER_BYTES_MAX + 4096).unwrap();
        assert!(Index::read(file).is_err());
    }
}
