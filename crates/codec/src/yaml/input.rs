//! The text of a document as the parser reads it, with an end to what the parser may look ahead. Whether a flow collection is the key
//! of a mapping shows only behind its end, so the parser keeps its tokens until then, each many times as large as its text.
use std::cell::Cell;
use std::rc::Rc;

use saphyr_parser::input::SkipTabs;
use saphyr_parser::{Input, StrInput};

/// Characters that begin or part tokens, within what the parser reads for one event.
pub(super) const INDICATORS_MAX: usize = 40_000;

/// What the parser has read since the last event.
#[derive(Debug, Clone, Default)]
pub(super) struct Ahead(Rc<Cell<usize>>);

impl Ahead {
    /// An event came: whether there were more indicators before it than may be.
    pub fn ends(&self) -> bool {
        self.0.replace(0) > INDICATORS_MAX
    }
}

/// The text. Where too much is looked at for one event, it ends: the parser gives up, and its caller asks [`Ahead`].
pub(super) struct Text<'a> {
    text: StrInput<'a>,
    ahead: Ahead,
    /// Whether the character that is skipped next is one of a literal text, which is a single token whatever is in it: the parser asks
    /// only there, and before each of them, how much of the text it has got.
    literal: Cell<bool>,
}

impl<'a> Text<'a> {
    pub fn new(text: &'a str, ahead: Ahead) -> Self {
        Self { text: StrInput::new(text), ahead, literal: Cell::new(false) }
    }

    fn count(&mut self) {
        let indicator = !self.literal.take()
            && matches!(self.text.peek(), ',' | '[' | ']' | '{' | '}' | ':' | '?' | '&' | '*' | '!' | '"' | '\'');
        if indicator {
            let count = self.ahead.0.get() + 1;
            self.ahead.0.set(count);
            if count > INDICATORS_MAX {
                self.text = StrInput::new("");
            }
        }
    }
}

/// Everything is asked of the text itself, which answers faster than the ways that hold for any input.
macro_rules! ask {
    ($($name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)*) => {
        $(#[inline] fn $name(&self $(, $arg: $ty)*) $(-> $out)? { self.text.$name($($arg),*) })*
    };
}

macro_rules! go_on {
    ($($name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)*) => {
        $(#[inline] fn $name(&mut self $(, $arg: $ty)*) $(-> $out)? { self.text.$name($($arg),*) })*
    };
}

impl Input for Text<'_> {
    fn skip(&mut self) {
        self.count();
        self.text.skip();
    }

    fn skip_n(&mut self, count: usize) {
        self.count();
        self.text.skip_n(count);
    }

    fn buf_is_empty(&self) -> bool {
        self.literal.set(true);
        self.text.buf_is_empty()
    }

    ask! {
        buflen() -> usize;
        bufmaxlen() -> usize;
        peek() -> char;
        peek_nth(n: usize) -> char;
        next_char_is(c: char) -> bool;
        nth_char_is(n: usize, c: char) -> bool;
        next_2_are(c1: char, c2: char) -> bool;
        next_3_are(c1: char, c2: char, c3: char) -> bool;
        next_is_document_indicator() -> bool;
        next_is_document_start() -> bool;
        next_is_document_end() -> bool;
        next_can_be_plain_scalar(in_flow: bool) -> bool;
        next_is_blank_or_break() -> bool;
        next_is_blank_or_breakz() -> bool;
        next_is_blank() -> bool;
        next_is_break() -> bool;
        next_is_breakz() -> bool;
        next_is_z() -> bool;
        next_is_flow() -> bool;
        next_is_digit() -> bool;
        next_is_alpha() -> bool;
    }

    go_on! {
        lookahead(count: usize);
        raw_read_ch() -> char;
        raw_read_non_breakz_ch() -> Option<char>;
        look_ch() -> char;
        skip_ws_to_eol(skip_tabs: SkipTabs) -> (usize, Result<SkipTabs, &'static str>);
        skip_while_non_breakz() -> usize;
        skip_while_blank() -> usize;
        fetch_while_is_alpha(out: &mut String) -> usize;
    }
}

#[cfg(test)]
mod tests {
    use crate::yaml::to_value;

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        let error = to_value(text.as_bytes()).err().map(|e| e.to_string());
        assert_eq!(error.as_deref(), expected);
    }

    #[test]
    fn what_is_looked_at_for_one_event_is_bounded() {
        const MANY: &str = "yaml: a flow collection or quoted string has more than 40000 indicators; send it as JSON";
        for part in ["a,", "a: b,", "{a},", "&a ", "!a ", "\"\",", "[],"] {
            check(&format!("a:\n- [{}]\n", part.repeat(50_000)), Some(MANY));
        }
        check(&format!("a: [{}b]\n", "a,".repeat(19_000)), None);
        // Each of many small ones is an event of its own, and a literal text is no collection.
        check(&"- [a, {b: c}]\n".repeat(30_000), None);
        check(&format!("a: |\n  {}\n", "{\"a\":[1]},".repeat(100_000)), None);
        // Deeper than the parser looks ahead, and a line for each.
        let deep = " ".repeat(40);
        check(&format!("a: |\n{}", format!("{deep}\"a\": [1],\n").repeat(30_000)), None);
    }
}
