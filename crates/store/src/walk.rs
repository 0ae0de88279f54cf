//! A walk over an object's compact JSON that finds the member `metadata` and its end. It can stop and continue at any byte.

#[cfg(test)]
use std::cell::Cell;
use std::sync::LazyLock;

use memchr::memmem::Finder;
use memchr::{memchr, memchr_iter, memchr2};

#[cfg(test)]
thread_local! {
    /// Bytes that were looked at one by one in this thread, which tests count.
    pub(crate) static LOOKED_AT: Cell<usize> = const { Cell::new(0) };
}

const NAME: &[u8] = b"metadata";

/// The state of the JSON at the current byte.
pub(crate) struct JsonWalk {
    /// Objects and arrays that are open.
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    /// The number of bytes of a first-level member's name that match [`NAME`].
    matched: Option<usize>,
}

/// The beginning of what is usually the last member of metadata: half of it, and without an array inside.
const LAST_MEMBER: &[u8] = b",\"managedFields\":[";
/// The bytes in which it is looked for.
const LAST_MEMBER_WITHIN: usize = 16 * 1024;

/// The beginning and end of an array that is the last member of an object, if it begins with [`LAST_MEMBER`] and has no other array or
/// bracket in it. The end is that of the object. No text in JSON contains this beginning, since its quotes would be escaped.
fn last_array(bytes: &[u8]) -> Option<(usize, usize)> {
    static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(LAST_MEMBER));
    let begin = FINDER.find(&bytes[..bytes.len().min(LAST_MEMBER_WITHIN)])?;
    let items = &bytes[begin + LAST_MEMBER.len()..];
    let bracket = memchr2(b'[', b']', items)?;
    let ends = items[bracket..].starts_with(b"]}") && !ends_in_text(&items[..bracket]);
    ends.then_some((begin, begin + LAST_MEMBER.len() + bracket + 2))
}

/// Whether JSON that begins outside of a text ends inside of one.
fn ends_in_text(json: &[u8]) -> bool {
    let (mut quotes, mut rest) = (memchr_iter(b'"', json).count(), json);
    while let Some(at) = memchr(b'\\', rest) {
        quotes -= usize::from(rest.get(at + 1) == Some(&b'"'));
        rest = rest.get(at + 2..).unwrap_or_default();
    }
    quotes % 2 == 1
}

/// Counts bytes that were looked at one by one, in tests.
fn looked_at(bytes: usize) {
    #[cfg(test)]
    LOOKED_AT.set(LOOKED_AT.get() + bytes);
    #[cfg(not(test))]
    let _ = bytes;
}

impl JsonWalk {
    /// A walk that begins with the object.
    pub fn from_start() -> Self {
        Self { depth: 0, in_string: false, is_escaped: false, matched: None }
    }

    /// A walk that begins in a text that is a member of an object.
    pub fn in_text_of_member() -> Self {
        Self { depth: 1, in_string: true, is_escaped: false, matched: None }
    }

    /// Looks for the beginning of the member's value; the number of bytes before it.
    pub fn enter(&mut self, bytes: &[u8]) -> Option<usize> {
        for (i, byte) in bytes.iter().enumerate() {
            looked_at(1);
            if self.in_string {
                if self.step_in_string(*byte) {
                    continue;
                }
                self.matched = match self.matched {
                    Some(n) if NAME.get(n) == Some(byte) => Some(n + 1),
                    Some(n) if n == NAME.len() && !self.in_string => Some(n),
                    _ => None,
                };
                continue;
            }
            match byte {
                b'"' => {
                    self.in_string = true;
                    self.matched = (self.depth == 1).then_some(0);
                }
                b':' if self.matched == Some(NAME.len()) => return Some(i + 1),
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                // Only a name is followed by a colon.
                _ => self.matched = None,
            }
        }
        None
    }

    /// Looks for the end of the value in which the walk is; the number of bytes up to it.
    pub fn leave(&mut self, bytes: &[u8]) -> Option<usize> {
        let Some((begin, end)) = last_array(bytes).filter(|_| self.depth == 1) else { return self.pass(bytes) };
        // Between them is no other end of an array, so that the array is a member of the value if no other value is open before it.
        self.pass(&bytes[..begin]).or_else(|| match self.depth == 1 && !self.in_string {
            true => Some(end),
            false => self.pass(&bytes[begin..]).map(|taken| begin + taken),
        })
    }

    /// As [`Self::leave`]; looks at each byte.
    fn pass(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            if self.in_string && !self.is_escaped {
                // Most of managed fields and annotations are strings.
                let closes = bytes[at..].iter().position(|byte| matches!(byte, b'"' | b'\\'));
                looked_at(closes.unwrap_or(bytes.len() - at));
                at += closes?;
            }
            let byte = bytes[at];
            at += 1;
            looked_at(1);
            match byte {
                _ if self.in_string => {
                    self.step_in_string(byte);
                }
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Some(at);
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// Takes a byte of a string. Returns whether it belongs to an escape sequence, which no name has that is looked for.
    fn step_in_string(&mut self, byte: u8) -> bool {
        if self.is_escaped {
            self.is_escaped = false;
            self.matched = None;
            return true;
        }
        match byte {
            b'\\' => {
                self.is_escaped = true;
                self.matched = None;
                true
            }
            b'"' => {
                self.in_string = false;
                false
            }
            _ => false,
        }
    }
}
