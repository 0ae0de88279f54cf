//! Indented JSON, which people read: compact JSON with line ends and blanks put in as it comes by, cut into pieces anywhere.

/// Puts a line for each member and element into compact JSON, indented by two blanks a level. Empty objects and lists stay on their
/// line.
#[derive(Debug, Default)]
pub struct Indenter {
    depth: usize,
    /// Within a text.
    in_text: bool,
    /// The last byte was a backslash that escapes the next one.
    escaped: bool,
    /// The last byte opened an object or a list, which may be empty.
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

    /// Bytes up to the end of the text, or of the piece when that comes first.
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

    /// One byte outside of texts.
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

/// A whole document, indented.
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
    fn an_indented_text_is_what_an_encoder_would_have_made_wherever_it_was_cut() {
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
