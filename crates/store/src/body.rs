//! The body of a write: canonical JSON with an empty `metadata.resourceVersion`, into which the committer splices the revision. The
//! callers make the JSON canonical.

use bytes::Bytes;

use crate::error::StoreError;
use crate::limits::BODY_BYTES_MAX;
use crate::record::Record;

/// An object's canonical JSON in which `metadata.resourceVersion` is the empty string, and the offset of that string.
#[derive(Clone, Debug)]
pub struct Body {
    bytes: Bytes,
    at: usize,
}

impl Body {
    /// Makes a body from JSON in which the closing quote of `"resourceVersion":""` is at `at`. The revision is inserted before that byte.
    ///
    /// # Errors
    /// Returns [`StoreError::BadBody`] if `"resourceVersion":""` is not around `at`, and [`StoreError::TooLarge`] if it is too long.
    pub fn new(bytes: impl Into<Bytes>, at: usize) -> Result<Self, StoreError> {
        const FIELD: &[u8] = b"\"resourceVersion\":\"";
        let bytes = bytes.into();
        if bytes.len() > BODY_BYTES_MAX {
            return Err(StoreError::TooLarge { bytes: bytes.len(), limit: BODY_BYTES_MAX });
        }
        let fits = bytes.get(..at).is_some_and(|head| head.ends_with(FIELD)) && bytes.get(at) == Some(&b'"');
        if fits { Ok(Self { bytes, at }) } else { Err(StoreError::BadBody) }
    }

    /// Makes a body and finds the offset by walking the JSON. The offset is that of the empty string under `metadata.resourceVersion`;
    /// the same name elsewhere in the object does not matter.
    ///
    /// # Errors
    /// See [`Body::new`].
    pub fn locate(bytes: impl Into<Bytes>) -> Result<Self, StoreError> {
        let bytes = bytes.into();
        let mut walk = Walk { bytes: &bytes, at: 0 };
        let found = walk.enter_member(b"metadata").and_then(|()| walk.enter_member(b"resourceVersion"));
        let at = found.map(|()| walk.at + 1).ok_or(StoreError::BadBody)?;
        Self::new(bytes, at)
    }

    /// The JSON, in which the revision is the empty string.
    #[must_use]
    pub fn json(&self) -> &[u8] {
        &self.bytes
    }

    /// The length in bytes without the revision.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Always false: the shortest body contains its field names.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the bytes with the revision inserted, and the offset of the revision.
    pub(crate) fn splice(&self, revision: u64) -> (Bytes, u32) {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(revision).as_bytes();
        let mut whole = Vec::with_capacity(self.bytes.len() + digits.len());
        whole.extend_from_slice(&self.bytes[..self.at]);
        whole.extend_from_slice(digits);
        whole.extend_from_slice(&self.bytes[self.at..]);
        (Bytes::from(whole), self.at as u32)
    }

    /// The parts of the JSON before and after the revision.
    pub(crate) fn parts(&self) -> (&[u8], &[u8]) {
        self.bytes.split_at(self.at)
    }
}

/// A walk over compact JSON that an encoder made. It skips values without checking them.
struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Walk<'_> {
    /// Moves from an object's opening brace to the value of its member `name`.
    fn enter_member(&mut self, name: &[u8]) -> Option<()> {
        if self.peek()? != b'{' {
            return None;
        }
        self.at += 1;
        while self.peek()? == b'"' {
            let start = self.at + 1;
            self.skip_string()?;
            let found = &self.bytes[start..self.at - 1] == name;
            if self.peek()? != b':' {
                return None;
            }
            self.at += 1;
            if found {
                return Some(());
            }
            self.skip_value()?;
            match self.peek()? {
                b',' => self.at += 1,
                _ => return None,
            }
        }
        None
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Moves from a string's opening quote past its closing quote.
    fn skip_string(&mut self) -> Option<()> {
        self.at += 1;
        loop {
            match self.peek()? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Some(())
    }

    /// Moves past one value of any depth. It counts brackets and does not recurse.
    fn skip_value(&mut self) -> Option<()> {
        let mut depth = 0usize;
        loop {
            match self.peek()? {
                b'"' => {
                    self.skip_string()?;
                    if depth == 0 {
                        return Some(());
                    }
                }
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' if depth == 0 => return Some(()),
                b'}' | b']' => {
                    depth -= 1;
                    self.at += 1;
                    if depth == 0 {
                        return Some(());
                    }
                }
                b',' if depth == 0 => return Some(()),
                _ => self.at += 1,
            }
        }
    }
}

impl Record {
    /// Whether storing `body` would change only the revision. Such a write should be skipped.
    #[must_use]
    pub fn same_but_revision(&self, body: &Body) -> bool {
        self.len() >= body.len() && self.parts(&self.bytes()) == body.parts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spliced(json: &str) -> Option<String> {
        let (bytes, _) = Body::locate(json.to_owned()).ok()?.splice(42);
        Some(String::from_utf8(bytes.to_vec()).expect("UTF-8"))
    }

    #[test]
    fn revision_goes_into_metadata_only() {
        let cases = [
            (r#"{"metadata":{"resourceVersion":""}}"#, Some(r#"{"metadata":{"resourceVersion":"42"}}"#)),
            (
                r#"{"data":{"resourceVersion":"","x":"\"}"},"n":[1,{"a":[]}],"metadata":{"annotations":{"resourceVersion":""},"name":"a","resourceVersion":""},"z":1}"#,
                Some(
                    r#"{"data":{"resourceVersion":"","x":"\"}"},"n":[1,{"a":[]}],"metadata":{"annotations":{"resourceVersion":""},"name":"a","resourceVersion":"42"},"z":1}"#,
                ),
            ),
            (r#"{"metadata":{"name":"a"}}"#, None),
            (r#"{"metadata":{"resourceVersion":"7"}}"#, None),
            (r#"{"metadata":null}"#, None),
            (r#"{"metadata":{"resourceVersion":"#, None),
            ("{\"a\":\"\\", None),
            ("", None),
        ];
        for (json, expected) in cases {
            assert_eq!(spliced(json).as_deref(), expected, "{json}");
        }
    }

    #[test]
    fn offsets_are_checked() {
        let json = r#"{"metadata":{"resourceVersion":""}}"#;
        assert!(Body::new(json, json.find("\"\"").expect("there") + 1).is_ok());
        for at in [0, 5, 10_000, usize::MAX] {
            assert!(matches!(Body::new(json, at), Err(StoreError::BadBody)), "{at}");
        }
    }
}
