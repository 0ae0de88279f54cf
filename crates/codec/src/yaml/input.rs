//! The input of the YAML parser, which bounds how far the parser may look ahead. The parser learns only after the end
//! of a flow collection whether it is the key of a mapping. Until then it keeps the tokens, each of which takes many
//! times the memory of its characters.
use std::cell::Cell;
use std::rc::Rc;

use saphyr_parser::input::SkipTabs;
use saphyr_parser::{Input, StrInput};

/// The most indicator characters, which begin or separate tokens, that the parser may read for one event.
pub(super) const INDICATORS_MAX: usize = 40_000;

/// The number of indicators that the parser has read since the last event.
#[derive(Debug, Clone, Default)]
pub(super) struct Ahead(Rc<Cell<usize>>);

impl Ahead {
    /// Called at each event. Returns whether there were too many indicators before it.
    pub fn ends(&self) -> bool {
        self.0.replace(0) > INDICATORS_MAX
    }
}

/// The input. If the parser reads too much for one event, the input ends: the parser fails, and its caller checks [`Ahead`].
pub(super) struct Text<'a> {
    text: StrInput<'a>,
    ahead: Ahead,
    /// Whether the next skipped character belongs to a literal block scalar, which is a single token whatever it contains. Only there, and
    /// before each character, the parser calls `buf_is_empty`.
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

/// Forwards calls to the string input, whose implementations are faster than the trait's default ones.
macro_rules! forward {
    ($($name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)*) => {
        $(#[inline] fn $name(&self $(, $arg: $ty)*) $(-> $out)? { self.text.$name($($arg),*) })*
    };
}

macro_rules! forward_mut {
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

    forward! {
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

    forward_mut! {
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
    fn the_lookahead_of_one_event_is_bounded() {
        const MANY: &str = "yaml: a flow collection or quoted string has more than 40000 indicators; send it as JSON";
        for part in ["a,", "a: b,", "{a},", "&a ", "!a ", "\"\",", "[],"] {
            check(&format!("a:\n- [{}]\n", part.repeat(50_000)), Some(MANY));
        }
        check(&format!("a: [{}b]\n", "a,".repeat(19_000)), None);
        // Each of many small collections is an event, and a literal block scalar is not a collection.
        check(&"- [a, {b: c}]\n".repeat(30_000), None);
        check(&format!("a: |\n  {}\n", "{\"a\":[1]},".repeat(100_000)), None);
        // The nesting is deeper than the parser's buffer, with one line for each level.
        let deep = " ".repeat(40);
        check(&format!("a: |\n{}", format!("{deep}\"a\": [1],\n").repeat(30_000)), None);
    }
}
