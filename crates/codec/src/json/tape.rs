//! A document as a flat list of values that borrow its text: what an encoder needs, without a map or a string for each value.
use std::borrow::Cow;

use super::lexer::Lexer;
use crate::DecodeError;

/// The end of a list of siblings.
const NONE: u32 = u32::MAX;

enum Token<'a> {
    Null,
    Bool(bool),
    Number(&'a str),
    String(Cow<'a, str>),
    Array,
    Object,
    /// An object whose members are not listed, see [`OPAQUE`].
    Opaque,
}

/// The key of objects that are encoded as their text, and so are passed over: `fieldsV1`, which is a large part of stored objects.
const OPAQUE: &str = "fieldsV1";

struct TapeValue<'a> {
    /// The key of a member of an object; empty for others.
    key: Cow<'a, str>,
    token: Token<'a>,
    /// The bytes of the value in the document.
    start: u32,
    end: u32,
    /// The last item or member of an array or object.
    last: u32,
    /// The item or member before this one.
    previous: u32,
}

/// A parsed document.
pub(crate) struct Tape<'a> {
    text: &'a str,
    values: Vec<TapeValue<'a>>,
}

/// A value of a [`Tape`]. It walks from the end of the document to its beginning, because the protobuf encoder does.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'t> {
    tape: &'t Tape<'t>,
    at: u32,
}

impl<'a> Tape<'a> {
    /// Parses a document.
    ///
    /// # Errors
    /// The text is not JSON, or is nested too deep.
    pub fn parse(text: &'a str) -> Result<Self, DecodeError> {
        // One value in about 24 bytes of a stored object.
        let mut tape = Self { text, values: Vec::with_capacity(text.len() / 24 + 8) };
        let mut lexer = Lexer::new(text, 0);
        tape.value(&mut lexer, Cow::Borrowed(""), NONE)?;
        lexer.end()?;
        Ok(tape)
    }

    /// The outermost value.
    pub fn root(&self) -> Cursor<'_> {
        Cursor { tape: self, at: 0 }
    }

    /// The number of values.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Appends a value with all that is in it; returns its index.
    fn value(&mut self, lexer: &mut Lexer<'a>, key: Cow<'a, str>, previous: u32) -> Result<u32, DecodeError> {
        let first = lexer.peek();
        let (at, start) = (self.values.len() as u32, lexer.position() as u32);
        self.values.push(TapeValue { key, token: Token::Null, start, end: start, last: NONE, previous });
        let mut last = NONE;
        let token = match first {
            Some(b'{') if self.values[at as usize].key == OPAQUE => lexer.skip().map(|()| Token::Opaque)?,
            Some(b'{') => {
                lexer.enter()?;
                let mut first = true;
                while let Some(key) = lexer.next_key(&mut first)? {
                    last = self.value(lexer, key, last)?;
                }
                Token::Object
            }
            Some(b'[') => {
                lexer.enter()?;
                let mut first = true;
                while lexer.next_element(&mut first)? {
                    last = self.value(lexer, Cow::Borrowed(""), last)?;
                }
                Token::Array
            }
            Some(b'"') => Token::String(lexer.string()?),
            Some(b'-' | b'0'..=b'9') => Token::Number(lexer.number()?),
            Some(b't') => lexer.word("true").map(|()| Token::Bool(true))?,
            Some(b'f') => lexer.word("false").map(|()| Token::Bool(false))?,
            Some(b'n') => lexer.word("null").map(|()| Token::Null)?,
            _ => return Err(lexer.invalid("looking for beginning of value")),
        };
        let end = lexer.position() as u32;
        let node = &mut self.values[at as usize];
        (node.token, node.end, node.last) = (token, end, last);
        Ok(at)
    }
}

impl<'t> Cursor<'t> {
    fn node(self) -> &'t TapeValue<'t> {
        &self.tape.values[self.at as usize]
    }

    /// The members or items, the last one first.
    fn children(self) -> impl Iterator<Item = Self> + 't {
        let mut at = self.node().last;
        std::iter::from_fn(move || {
            let child = Self { tape: self.tape, at };
            (at != NONE).then(|| {
                at = child.node().previous;
                child
            })
        })
    }

    pub fn is_null(self) -> bool {
        matches!(self.node().token, Token::Null)
    }

    pub fn as_bool(self) -> Option<bool> {
        if let Token::Bool(value) = self.node().token { Some(value) } else { None }
    }

    pub fn as_str(self) -> Option<&'t str> {
        if let Token::String(text) = &self.node().token { Some(text) } else { None }
    }

    /// The text of a number.
    pub fn number(self) -> Option<&'t str> {
        if let Token::Number(text) = self.node().token { Some(text) } else { None }
    }

    pub fn is_object(self) -> bool {
        matches!(self.node().token, Token::Object)
    }

    pub fn is_array(self) -> bool {
        matches!(self.node().token, Token::Array)
    }

    /// A member of an object by its key.
    pub fn get(self, key: &str) -> Option<Self> {
        self.is_object().then(|| self.children().find(|child| child.node().key == key)).flatten()
    }

    /// The members of an object, the last one first.
    pub fn members(self) -> impl Iterator<Item = (&'t str, Self)> + 't {
        self.children().map(|child| (&*child.node().key, child))
    }

    /// The items of an array, the last one first.
    pub fn items(self) -> impl Iterator<Item = Self> + 't {
        self.children()
    }

    /// The value as it is in the document.
    pub fn json(self) -> &'t str {
        &self.tape.text[self.node().start as usize..self.node().end as usize]
    }
}
