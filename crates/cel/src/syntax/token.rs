//! The lexer. Positions are counted in code points, as in messages to clients.
use super::source::Issue;

/// The kind of a token. Its source is found by its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    End,
    /// A name or a reserved word; the parser distinguishes them.
    Name,
    Int,
    Uint,
    Float,
    Text,
    Bytes,
    True,
    False,
    Null,
    In,
    /// An operator or bracket.
    Sign(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Spanned {
    pub token: Token,
    /// The byte range in the source.
    pub start: usize,
    pub end: usize,
    /// The number of code points before the token.
    pub offset: u32,
}

/// The operators and brackets, longest first, so that `<=` is not read as `<`.
const SIGNS: [&str; 22] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":", "+", "*",
];

pub(crate) fn tokens(source: &str, issues: &mut Vec<Issue>) -> Vec<Spanned> {
    let mut lexer = Lexer { source, at: 0, offset: 0, out: Vec::with_capacity(source.len() / 3 + 1) };
    while lexer.next(issues) {}
    lexer.out
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    offset: u32,
    out: Vec<Spanned>,
}

impl Lexer<'_> {
    fn rest(&self) -> &str {
        &self.source[self.at..]
    }

    fn skip(&mut self, bytes: usize) {
        let passed = &self.source[self.at..self.at + bytes];
        self.offset += passed.chars().count() as u32;
        self.at += bytes;
    }

    fn push(&mut self, token: Token, bytes: usize) {
        let (start, offset) = (self.at, self.offset);
        self.skip(bytes);
        self.out.push(Spanned { token, start, end: self.at, offset });
    }

    fn blank(&mut self) {
        loop {
            let rest = self.rest();
            let blank = rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n', '\u{c}']).len();
            if blank > 0 {
                self.skip(blank);
            } else if rest.starts_with("//") {
                self.skip(rest.find('\n').unwrap_or(rest.len()));
            } else {
                return;
            }
        }
    }

    /// Reads one token. Returns false at the end.
    fn next(&mut self, issues: &mut Vec<Issue>) -> bool {
        self.blank();
        let rest = self.rest();
        let Some(first) = rest.chars().next() else {
            self.push(Token::End, 0);
            return false;
        };
        if let Some((token, bytes)) = string(rest) {
            self.push(token, bytes);
        } else if first.is_ascii_alphabetic() || first == '_' {
            let bytes = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            let token = match &rest[..bytes] {
                "true" => Token::True,
                "false" => Token::False,
                "null" => Token::Null,
                "in" => Token::In,
                _ => Token::Name,
            };
            self.push(token, bytes);
        } else if let Some((token, bytes)) = number(rest) {
            self.push(token, bytes);
        } else if let Some(sign) = SIGNS.iter().chain(&["/", "%"]).find(|s| rest.starts_with(**s)) {
            self.push(Token::Sign(sign), sign.len());
        } else {
            // An unclosed quote includes the rest of its line.
            let bytes = match first {
                '"' | '\'' => rest.find('\n').unwrap_or(rest.len()),
                _ => first.len_utf8(),
            };
            let shown = rest[..bytes].replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t");
            issues.push(Issue {
                offset: Some(self.offset),
                message: format!("Syntax error: token recognition error at: '{shown}'"),
            });
            self.skip(bytes);
        }
        true
    }
}

fn number(s: &str) -> Option<(Token, usize)> {
    let b = s.as_bytes();
    let digits = |from: usize| b[from..].iter().take_while(|c| c.is_ascii_digit()).count();
    let unsigned = |at: usize, token| match b.get(at) {
        Some(b'u' | b'U') => (Token::Uint, at + 1),
        _ => (token, at),
    };
    if s.starts_with("0x") {
        let hex = b[2..].iter().take_while(|c| c.is_ascii_hexdigit()).count();
        if hex > 0 {
            return Some(unsigned(2 + hex, Token::Int));
        }
    }
    let whole = digits(0);
    let mut at = whole;
    let mut float = false;
    if b.get(at) == Some(&b'.') && b.get(at + 1).is_some_and(u8::is_ascii_digit) {
        at += 1 + digits(at + 1);
        float = true;
    } else if whole == 0 {
        return None;
    }
    if matches!(b.get(at), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(b.get(at + 1), Some(b'+' | b'-')));
        if b.get(at + 1 + sign).is_some_and(u8::is_ascii_digit) {
            at += 1 + sign + digits(at + 1 + sign);
            float = true;
        }
    }
    Some(if float { (Token::Float, at) } else { unsigned(at, Token::Int) })
}

/// Finds a string or bytes literal with its prefixes, and returns its token and length. `None` if there is none or it is not closed.
fn string(s: &str) -> Option<(Token, usize)> {
    let b = s.as_bytes();
    let mut at = 0;
    let mut token = Token::Text;
    if matches!(b[0], b'b' | b'B') {
        token = Token::Bytes;
        at = 1;
    }
    let raw = matches!(b.get(at), Some(b'r' | b'R'));
    at += usize::from(raw);
    let quote = *b.get(at).filter(|c| matches!(c, b'"' | b'\''))?;
    let triple = b[at..].len() >= 3 && b[at + 1] == quote && b[at + 2] == quote;
    let closing = if triple { 3 } else { 1 };
    let mut i = at + closing;
    if triple && !b[i..].windows(3).any(|w| w == [quote; 3]) {
        // `''` before another character is an empty string.
        return Some((token, at + 2));
    }
    loop {
        let c = *b.get(i)?;
        if c == b'\\' && !raw {
            b.get(i + 1)?;
            i += 2;
        } else if !triple && (c == b'\n' || c == b'\r') {
            return None;
        } else if c == quote && (!triple || (b.get(i + 1) == Some(&quote) && b.get(i + 2) == Some(&quote))) {
            return Some((token, i + closing));
        } else {
            i += 1;
        }
    }
}
