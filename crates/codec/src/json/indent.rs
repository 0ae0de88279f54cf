//! Indented JSON for people. Line ends and spaces are inserted into compact JSON as it passes, in pieces that may be cut anywhere.

/// Inserts a line end before each member and element of compact JSON, with two spaces per level. Empty objects and lists stay on their
/// line.
#[derive(Debug, Default)]
pub struct Indenter {
    depth: usize,
    /// Whether the current position is within a string.
    in_text: bool,
    /// Whether the last byte was a backslash that escapes the next one.
    escaped: bool,
    /// Whether the last byte opened an object or a list, which may be empty.
    opened: bool,
}

impl Indenter {
    /// Appends the next piece of a document, indented.
    pub fn write(&mut self, mut compact: &[u8], out: &mut Vec<u8>) {
        while let Some((byte, rest)) = compact.split_first() {
            if self.in_text {
                let (text, rest) = compact.split_at(self.text_len(compact));
                out.extend_from_slice(text);
                compact = rest;
                continue;
            }
            self.mark(*byte, out);
            compact = rest;
        }
    }

    /// The number of bytes up to the end of the string, or to the end of the piece if that is first.
    fn text_len(&mut self, piece: &[u8]) -> usize {
        for (at, byte) in piece.iter().enumerate() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => {
                    self.in_text = false;
                    return at + 1;
                }
                _ => {}
            }
        }
        piece.len()
    }

    /// Processes one byte outside of strings.
    fn mark(&mut self, byte: u8, out: &mut Vec<u8>) {
        let opened = std::mem::take(&mut self.opened);
        let closes = matches!(byte, b'}' | b']');
        if closes {
            self.depth = self.depth.saturating_sub(1);
        }
        if opened != closes {
            line(self.depth, out);
        }
        out.push(byte);
        match byte {
            b'{' | b'[' => {
                self.depth += 1;
                self.opened = true;
            }
            b',' => line(self.depth, out),
            b':' => out.push(b' '),
            b'"' => self.in_text = true,
            _ => {}
        }
    }
}

fn line(depth: usize, out: &mut Vec<u8>) {
    out.push(b'\n');
    out.resize(out.len() + depth * 2, b' ');
}

/// Indents a whole document.
pub fn indent(compact: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(compact.len() * 2);
    Indenter::default().write(compact, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cuts_do_not_change_indented_json() {
        for value in [
            json!({}),
            json!([]),
            json!({"a": [], "b": {}, "c": [1, "x,{}[]:\\\"\\", {"d": null}], "e": {"f": [[true]]}, "": "\\"}),
            json!("alone"),
        ] {
            let compact = serde_json::to_vec(&value).expect("JSON");
            let want = serde_json::to_string_pretty(&value).expect("JSON");
            assert_eq!(String::from_utf8(indent(&compact)).expect("text"), want);
            for size in 1..compact.len() {
                let (mut indenter, mut out) = (Indenter::default(), Vec::new());
                compact.chunks(size).for_each(|piece| indenter.write(piece, &mut out));
                assert_eq!(String::from_utf8(out).expect("text"), want, "in pieces of {size}");
            }
        }
    }
}
