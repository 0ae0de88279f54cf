//! A tar.gz of bounded size whose files have passed the redactor.
#![allow(clippy::disallowed_methods, reason = "blocking: by a command that does nothing else")]

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use kelson_platform::files::private;

use super::redact::Redactor;

/// The most that one entry has, before compression.
pub const ENTRY_BYTES_MAX: usize = 8 << 20;
/// The most that all of them have together.
pub const ALL_BYTES_MAX: usize = 64 << 20;

/// An archive that is being written.
pub struct Archive {
    tar: tar::Builder<GzEncoder<File>>,
    prefix: String,
    redactor: Redactor,
    time_s: u64,
    entry_max: usize,
    left: usize,
    contents: Vec<String>,
}

impl Archive {
    /// A new file for its owner alone; all entries are in a directory of that name.
    ///
    /// # Errors
    /// The file exists or cannot be made.
    pub fn create(file: &Path, prefix: &str, redactor: Redactor, time_s: u64) -> io::Result<Self> {
        Self::bounded(file, prefix, redactor, time_s, (ENTRY_BYTES_MAX, ALL_BYTES_MAX))
    }

    fn bounded(
        file: &Path,
        prefix: &str,
        redactor: Redactor,
        time_s: u64,
        (entry_max, left): (usize, usize),
    ) -> io::Result<Self> {
        let to = private(OpenOptions::new().write(true).create_new(true)).open(file)?;
        let tar = tar::Builder::new(GzEncoder::new(to, Compression::default()));
        Ok(Self { tar, prefix: prefix.to_owned(), redactor, time_s, entry_max, left, contents: Vec::new() })
    }

    /// Adds a text without its secrets; of one that is too long its end, since the newest lines of a log are there.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, name: &str, text: &str) -> io::Result<()> {
        let max = self.entry_max.min(self.left);
        let end = tail(text, max);
        let redacted = self.redactor.text(end);
        let kept = tail(&redacted, max);
        let cut = if end.len() < text.len() || kept.len() < redacted.len() { ", cut at its beginning" } else { "" };
        self.contents.push(format!("{name}: {} bytes{cut}", kept.len()));
        self.left -= kept.len();
        self.append(name, kept.as_bytes())
    }

    /// Notes that something is not there, and why.
    pub fn miss(&mut self, name: &str, why: &dyn Display) {
        let why = self.redactor.text(&why.to_string());
        self.contents.push(format!("{name}: not there: {}", why.trim()));
    }

    /// Adds the list of contents and closes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self, about: &str) -> io::Result<()> {
        let list = format!("{about}\n{}\n", self.contents.join("\n"));
        self.append("README.txt", list.as_bytes())?;
        let mut file = self.tar.into_inner()?.finish()?;
        file.flush()?;
        file.sync_all()
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.time_s);
        self.tar.append_data(&mut header, format!("{}/{name}", self.prefix), bytes)
    }
}

/// Returns the last lines of a string that are not longer than `max` together.
pub fn tail(text: &str, max: usize) -> &str {
    let Some(cut) = text.len().checked_sub(max).filter(|cut| *cut > 0) else { return text };
    let bytes = &text.as_bytes()[cut - 1..];
    match bytes.iter().position(|byte| *byte == b'\n') {
        Some(end) => &text[cut + end..],
        None => "",
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn an_archive_is_bounded_private_and_redacted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.tar.gz");
        let redactor = Redactor::new(["s3cret!".to_owned()]).unwrap();
        let bounds = (10_000, 64_000);
        let mut archive = Archive::bounded(&file, "support", redactor, 1_780_000_000, bounds).unwrap();
        let long: String = (0..2_000).map(|n| format!("line {n}\n")).collect();
        for n in 0..10 {
            archive.add(&format!("logs/{n}"), &long).unwrap();
        }
        archive.miss("events", &"no answer to s3cret!");
        archive.finish("A test.").unwrap();
        let mut all = 0;
        let mut tar = tar::Archive::new(GzDecoder::new(File::open(&file).unwrap()));
        for entry in tar.entries().unwrap() {
            let mut entry = entry.unwrap();
            let (path, mut text) = (entry.path().unwrap().display().to_string(), String::new());
            entry.read_to_string(&mut text).unwrap();
            all += text.len();
            match path.as_str() {
                "support/README.txt" => {
                    assert!(text.contains("events: not there: no answer to (hidden)"), "{text}");
                    assert!(text.contains("logs/9: 0 bytes, cut at its beginning"), "{text}");
                }
                "support/logs/0" => {
                    assert!(
                        text.starts_with("line ") && text.ends_with("line 1999\n"),
                        "its end, from a whole line on"
                    );
                }
                _ => {}
            }
        }
        assert!(all <= bounds.1 + 2_000, "{all}");
        assert_eq!(kelson_platform::files::open_to_others(&file), None);
        assert!(Archive::create(&file, "x", Redactor::new([]).unwrap(), 0).is_err(), "no file is replaced");
    }

    #[test]
    fn the_end_of_a_text_begins_with_a_line() {
        let rows = [
            ("a\nbb\nc\n", 100, "a\nbb\nc\n"),
            ("a\nbb\nc\n", 5, "bb\nc\n"),
            ("a\nbb\nc\n", 4, "c\n"),
            ("long", 2, ""),
            ("ä\nb", 1, "b"),
            ("x", 0, ""),
        ];
        for (text, max, want) in rows {
            assert_eq!(tail(text, max), want, "{text:?} {max}");
        }
    }
}
