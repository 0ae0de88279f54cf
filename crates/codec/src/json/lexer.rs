//! The grammar of JSON: tokens, strings, numbers and skipping. Error messages are those of Go's scanner.
use super::words::unescaped;
use crate::{DecodeError, NESTING_DEPTH_MAX};
use std::borrow::Cow;

/// A cursor over a document.
pub(super) struct Lexer<'a> {
    text: &'a str,
    pos: usize,
    depth: usize,
}

impl<'a> Lexer<'a> {
    /// Makes a lexer. `depth` is the depth at which the document is embedded, or 0.
    pub(super) fn new(text: &'a str, depth: usize) -> Self {
        Self { text, pos: 0, depth }
    }

    fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    pub(super) fn position(&self) -> usize {
        self.pos
    }

    /// The part of the document from `start` to the cursor.
    pub(super) fn since(&self, start: usize) -> &'a str {
        &self.text[start..self.pos]
    }

    /// The next byte that is not white space.
    pub(super) fn peek(&mut self) -> Option<u8> {
        while let Some(b) = self.bytes().get(self.pos) {
            if !matches!(b, b' ' | b'\t' | b'\n' | b'\r') {
                return Some(*b);
            }
            self.pos += 1;
        }
        None
    }

    pub(super) fn invalid(&self, context: &str) -> DecodeError {
        let Some(c) = self.text.get(self.pos..).and_then(|t| t.chars().next()) else {
            return DecodeError::Json("unexpected end of JSON input".into());
        };
        let shown = match c {
            '\'' => r"'\''".to_owned(),
            '"' => "'\"'".to_owned(),
            '\n' => r"'\n'".to_owned(),
            '\r' => r"'\r'".to_owned(),
            '\t' => r"'\t'".to_owned(),
            c if (c as u32) < 0x20 => format!("'\\x{:02x}'", c as u32),
            // Go reads bytes: a character beyond ASCII is shown as its first byte.
            c if !c.is_ascii() => format!("'{}'", char::from(self.bytes()[self.pos])),
            c => format!("'{c}'"),
        };
        DecodeError::Json(format!("invalid character {shown} {context}"))
    }

    /// Enters an object or array. The cursor is on its bracket.
    pub(super) fn enter(&mut self) -> Result<(), DecodeError> {
        self.depth += 1;
        if self.depth > NESTING_DEPTH_MAX {
            return Err(DecodeError::TooDeep);
        }
        self.pos += 1;
        Ok(())
    }

    /// The next key of an object, with its colon consumed. At the end, consumes the closing brace and returns `None`.
    pub(super) fn next_key(&mut self, first: &mut bool) -> Result<Option<Cow<'a, str>>, DecodeError> {
        if !self.before_key(first)? {
            return Ok(None);
        }
        let key = self.string()?;
        self.colon()?;
        Ok(Some(key))
    }

    /// Moves to the quote of an object's next key. At the end, consumes the closing brace and returns `false`.
    fn before_key(&mut self, first: &mut bool) -> Result<bool, DecodeError> {
        match self.peek() {
            Some(b'}') => {
                // After a comma a key must follow.
                self.pos += 1;
                self.depth -= 1;
                return Ok(false);
            }
            Some(b',') if !*first => {
                self.pos += 1;
                if self.peek() != Some(b'"') {
                    return Err(self.invalid("looking for beginning of object key string"));
                }
            }
            Some(b'"') if *first => {}
            _ if *first => return Err(self.invalid("looking for beginning of object key string")),
            _ => return Err(self.invalid("after object key:value pair")),
        }
        *first = false;
        Ok(true)
    }

    fn colon(&mut self) -> Result<(), DecodeError> {
        if self.peek() != Some(b':') {
            return Err(self.invalid("after object key"));
        }
        self.pos += 1;
        Ok(())
    }

    /// Whether another element of an array follows. Consumes the comma or the closing bracket.
    pub(super) fn next_element(&mut self, first: &mut bool) -> Result<bool, DecodeError> {
        match self.peek() {
            Some(b']') => {
                self.pos += 1;
                self.depth -= 1;
                Ok(false)
            }
            Some(b',') if !*first => {
                self.pos += 1;
                if self.peek() == Some(b']') {
                    return Err(self.invalid("looking for beginning of value"));
                }
                Ok(true)
            }
            Some(_) if *first => {
                *first = false;
                Ok(true)
            }
            _ => Err(self.invalid("after array element")),
        }
    }

    /// Checks that the document ends here.
    pub(super) fn end(&mut self) -> Result<(), DecodeError> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.invalid("after top-level value")),
        }
    }

    /// Reads a string. The cursor is on its quote.
    pub(super) fn string(&mut self) -> Result<Cow<'a, str>, DecodeError> {
        self.pos += 1;
        let start = self.pos;
        let bytes = self.bytes();
        loop {
            match bytes.get(self.pos) {
                Some(b'"') => {
                    let text = &self.text[start..self.pos];
                    self.pos += 1;
                    return Ok(Cow::Borrowed(text));
                }
                Some(b'\\') => break,
                Some(b) if *b >= 0x20 => self.pos += unescaped(&bytes[self.pos..]),
                _ => return Err(self.invalid("in string literal")),
            }
        }
        let mut out = String::with_capacity(self.pos - start + 16);
        out.push_str(&self.text[start..self.pos]);
        loop {
            let run = self.pos;
            self.pos += unescaped(&bytes[self.pos..]);
            out.push_str(&self.text[run..self.pos]);
            match bytes.get(self.pos) {
                Some(b'"') => {
                    self.pos += 1;
                    return Ok(Cow::Owned(out));
                }
                Some(b'\\') => {
                    self.pos += 1;
                    out.push(self.escape()?);
                }
                _ => return Err(self.invalid("in string literal")),
            }
        }
    }

    /// Skips a string and checks its grammar. The cursor is on its quote.
    fn skip_string(&mut self) -> Result<(), DecodeError> {
        self.pos += 1;
        loop {
            self.pos += unescaped(&self.bytes()[self.pos..]);
            match self.bytes().get(self.pos) {
                Some(b'"') => {
                    self.pos += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    self.pos += 1;
                    self.escape()?;
                }
                _ => return Err(self.invalid("in string literal")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, DecodeError> {
        let c = match self.bytes().get(self.pos) {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.pos += 1;
                return self.unicode();
            }
            _ => return Err(self.invalid("in string escape code")),
        };
        self.pos += 1;
        Ok(c)
    }

    fn unicode(&mut self) -> Result<char, DecodeError> {
        let high = self.hex4()?;
        if (0xd800..0xdc00).contains(&high) && self.bytes()[self.pos..].starts_with(b"\\u") {
            let back = self.pos;
            self.pos += 2;
            let low = self.hex4()?;
            if (0xdc00..0xe000).contains(&low) {
                let code = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.pos = back;
        }
        Ok(char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn hex4(&mut self) -> Result<u32, DecodeError> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.bytes().get(self.pos).and_then(|b| char::from(*b).to_digit(16));
            let Some(digit) = digit else { return Err(self.invalid(r"in \u hexadecimal character escape")) };
            code = code * 16 + digit;
            self.pos += 1;
        }
        Ok(code)
    }

    /// Reads the digits, point and exponent of a number. The cursor is on its first byte.
    pub(super) fn number(&mut self) -> Result<&'a str, DecodeError> {
        let start = self.pos;
        let digit = |l: &Self| l.bytes().get(l.pos).is_some_and(u8::is_ascii_digit);
        if self.bytes()[self.pos] == b'-' {
            self.pos += 1;
        }
        match self.bytes().get(self.pos) {
            Some(b'0') => self.pos += 1,
            Some(b'1'..=b'9') => {
                while digit(self) {
                    self.pos += 1;
                }
            }
            _ => return Err(self.invalid("in numeric literal")),
        }
        if self.bytes().get(self.pos) == Some(&b'.') {
            self.pos += 1;
            if !digit(self) {
                return Err(self.invalid("after decimal point in numeric literal"));
            }
            while digit(self) {
                self.pos += 1;
            }
        }
        if matches!(self.bytes().get(self.pos), Some(b'e' | b'E')) {
            self.pos += 1;
            if matches!(self.bytes().get(self.pos), Some(b'+' | b'-')) {
                self.pos += 1;
            }
            if !digit(self) {
                return Err(self.invalid("in exponent of numeric literal"));
            }
            while digit(self) {
                self.pos += 1;
            }
        }
        Ok(&self.text[start..self.pos])
    }

    /// Reads `true`, `false` or `null`. The cursor is on its first byte.
    pub(super) fn word(&mut self, word: &'static str) -> Result<(), DecodeError> {
        for expected in word.bytes() {
            if self.bytes().get(self.pos) != Some(&expected) {
                let context = format!("in literal {word} (expecting '{}')", char::from(expected));
                return Err(self.invalid(&context));
            }
            self.pos += 1;
        }
        Ok(())
    }

    /// Skips one value and checks its grammar.
    pub(super) fn skip(&mut self) -> Result<(), DecodeError> {
        match self.peek() {
            Some(b'{') => {
                self.enter()?;
                let mut first = true;
                while self.before_key(&mut first)? {
                    self.skip_string()?;
                    self.colon()?;
                    // Most members of managed fields are empty objects.
                    if self.depth < NESTING_DEPTH_MAX && self.bytes()[self.pos..].starts_with(b"{}") {
                        self.pos += 2;
                    } else {
                        self.skip()?;
                    }
                }
                Ok(())
            }
            Some(b'[') => {
                self.enter()?;
                let mut first = true;
                while self.next_element(&mut first)? {
                    self.skip()?;
                }
                Ok(())
            }
            Some(b'"') => self.skip_string(),
            Some(b'-' | b'0'..=b'9') => self.number().map(drop),
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null"),
            _ => Err(self.invalid("looking for beginning of value")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_skipped_is_what_is_read() {
        let text = r#"{"a\"\u00e9":["x",{"f:k{\"n\":\"\\\\\"}":{}},-1.5e3,true,null,"\ud83d\ude00 é"],"b":{}}"#;
        let read = |text: &str| {
            let mut lexer = Lexer::new(text, 0);
            let skipped = lexer.skip().map(|()| lexer.position()).map_err(|error| error.to_string());
            let parsed = crate::json::tape::Tape::parse(text).map(|_| text.len()).map_err(|error| error.to_string());
            (skipped, parsed)
        };
        assert_eq!(read(text), (Ok(text.len()), Ok(text.len())));
        for at in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
            let (skipped, parsed) = read(&text[..at]);
            assert!(skipped.is_err());
            assert_eq!(skipped, parsed, "cut at {at}");
            let next = (at + 1..=text.len()).find(|next| text.is_char_boundary(*next)).unwrap_or(text.len());
            for instead in ["", "\"", "\\", "\u{1}", "x", "{", "]", ","] {
                let (skipped, parsed) = read(&[&text[..at], instead, &text[next..]].concat());
                match parsed {
                    Ok(_) => assert!(skipped.is_ok(), "{instead} at {at}"),
                    // What follows the value is not skipped.
                    Err(error) => assert!(skipped.is_ok() || skipped == Err(error), "{instead} at {at}"),
                }
            }
        }
    }
}
