//! One line of a CRI log: `TIME STREAM TAGS CONTENT`. The tag `P` marks a partial line that the next one continues.
use jiff::Timestamp;

/// A parsed line that borrows from the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The timestamp as written.
    pub time: &'a str,
    /// Either `stdout` or `stderr`.
    pub stream: &'a str,
    /// Whether the next line continues it.
    pub partial: bool,
    /// The content, with a line end unless it is partial.
    pub content: &'a [u8],
}

/// Parses one line, including its line end.
pub fn parse(line: &[u8]) -> Option<Line<'_>> {
    let mut rest = line;
    let mut word = || {
        let end = rest.iter().position(|b| *b == b' ')?;
        let word = std::str::from_utf8(&rest[..end]).ok()?;
        rest = &rest[end + 1..];
        Some(word)
    };
    let (time, stream, tags) = (word()?, word()?, word()?);
    if !matches!(stream, "stdout" | "stderr") {
        return None;
    }
    let partial = tags.split(':').next() == Some("P");
    let content = if partial { rest.strip_suffix(b"\n").unwrap_or(rest) } else { rest };
    Some(Line { time, stream, partial, content })
}

impl Line<'_> {
    /// Parses the timestamp, the time at which the runtime read the line.
    pub fn timestamp(&self) -> Option<Timestamp> {
        self.time.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_and_partial() {
        let l = parse(b"2026-01-02T03:04:05.6Z stdout F hello world\n").expect("line");
        assert_eq!((l.stream, l.partial, l.content), ("stdout", false, b"hello world\n".as_slice()));
        let l = parse(b"2026-01-02T03:04:05.6Z stderr P part\n").expect("line");
        assert_eq!((l.partial, l.content), (true, b"part".as_slice()));
        assert!(parse(b"nonsense\n").is_none() && parse(b"a b c d\n").is_none());
    }
}
