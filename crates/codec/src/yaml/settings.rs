//! A document that sets options: one mapping of names to strings or lists of strings. Values are given as they are written
//! (`0644` stays `0644`), each with its line, so that a program can say where a value comes from.
use saphyr_parser::{Event, Parser, ScalarStyle};

use super::input::{Ahead, INDICATORS_MAX, Text};
use super::{error, malformed};
use crate::{DOCUMENT_BYTES_MAX, DecodeError};

/// One option of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The key, as it is written.
    pub name: String,
    /// The line of the key; the first line is 1.
    pub line: usize,
    /// The value of the option.
    pub value: SettingValue,
}

/// The value of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingValue {
    /// No value, `~` or `null`.
    Null,
    /// A string, number or boolean in the spelling of the document.
    Text(String),
    /// The items of a list, none of which is a list or a mapping.
    List(Vec<String>),
}

/// Reads a document of options, in their order. An empty document has none.
///
/// # Errors
/// The document is not YAML, is too large, is more than one document, or contains something other than a mapping of
/// names to scalars and lists of scalars. Aliases are rejected.
pub fn settings(data: &[u8]) -> Result<Vec<Setting>, DecodeError> {
    if data.len() > DOCUMENT_BYTES_MAX {
        return Err(DecodeError::TooLarge);
    }
    let text = std::str::from_utf8(data).map_err(|_| DecodeError::Yaml("yaml: invalid UTF-8".into()))?;
    let ahead = Ahead::default();
    let mut reader = SettingReader { parser: Parser::new(Text::new(text, ahead.clone())), ahead };
    let mut found = Vec::new();
    loop {
        let (event, line) = reader.next()?;
        match event {
            Event::StreamStart | Event::DocumentStart(_) | Event::Nothing | Event::DocumentEnd => {}
            Event::StreamEnd => return Ok(found),
            Event::Scalar(text, style, ..) if is_null(&text, style) => {}
            Event::MappingStart(..) if found.is_empty() => reader.mapping(&mut found)?,
            Event::MappingStart(..) => return Err(error(line, "expected a single document")),
            _ => return Err(error(line, "expected a mapping of names to values")),
        }
    }
}

fn is_null(text: &str, style: ScalarStyle) -> bool {
    style == ScalarStyle::Plain && matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

struct SettingReader<'a> {
    parser: Parser<'a, Text<'a>>,
    ahead: Ahead,
}

impl<'a> SettingReader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, usize), DecodeError> {
        let event = self.parser.next_event();
        if self.ahead.ends() {
            return Err(DecodeError::Yaml(format!(
                "yaml: a flow collection or a quoted string has more than {INDICATORS_MAX} indicators"
            )));
        }
        match event {
            Some(Ok((event, span))) => Ok((event, span.start.line())),
            Some(Err(e)) => Err(malformed(e.marker().line(), e.info())),
            None => Ok((Event::StreamEnd, 0)),
        }
    }

    fn mapping(&mut self, found: &mut Vec<Setting>) -> Result<(), DecodeError> {
        loop {
            let (name, line) = match self.next()? {
                (Event::MappingEnd, _) => return Ok(()),
                (Event::Scalar(name, ..), line) => (name.into_owned(), line),
                (_, line) => return Err(error(line, "expected a name")),
            };
            let value = match self.next()? {
                (Event::Scalar(text, style, ..), _) if is_null(&text, style) => SettingValue::Null,
                (Event::Scalar(text, ..), _) => SettingValue::Text(text.trim_end_matches('\n').to_owned()),
                (Event::SequenceStart(..), _) => SettingValue::List(self.list(&name)?),
                (_, line) => {
                    return Err(error(
                        line,
                        &format!("{name}: expected a string, a number, a boolean or a list of them"),
                    ));
                }
            };
            found.push(Setting { name, line, value });
        }
    }

    fn list(&mut self, name: &str) -> Result<Vec<String>, DecodeError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(items),
                (Event::Scalar(text, style, ..), _) if !is_null(&text, style) => {
                    items.push(text.trim_end_matches('\n').to_owned());
                }
                (_, line) => return Err(error(line, &format!("{name}: expected a string, a number or a boolean"))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(String, usize, SettingValue)>, String> {
        let found = settings(text.as_bytes()).map_err(|e| e.to_string())?;
        Ok(found.into_iter().map(|s| (s.name, s.line, s.value)).collect())
    }

    fn text(value: &str) -> SettingValue {
        SettingValue::Text(value.to_owned())
    }

    #[test]
    fn values_are_as_they_are_written() {
        let document = "# first\nmode: 0644\n\nport: 0x1\nyes: on\nquoted: \"\"\nempty:\nlist+:\n- a\n- 1.10\nnone: []\nlong: |\n  one\n";
        let list = |items: &[&str]| SettingValue::List(items.iter().map(|s| (*s).to_owned()).collect());
        let want = [
            ("mode", 2, text("0644")),
            ("port", 4, text("0x1")),
            ("yes", 5, text("on")),
            ("quoted", 6, text("")),
            ("empty", 7, SettingValue::Null),
            ("list+", 8, list(&["a", "1.10"])),
            ("none", 11, list(&[])),
            ("long", 12, text("one")),
        ];
        assert_eq!(read(document), Ok(want.map(|(name, line, value)| (name.to_owned(), line, value)).into()));
    }

    #[test]
    fn documents_without_options_have_none() {
        for document in ["", "# nothing\n", "---\n", "{}", "null\n"] {
            assert_eq!(read(document), Ok(Vec::new()), "{document:?}");
        }
        assert_eq!(read("{\"a\": \"b\"}"), Ok(vec![("a".to_owned(), 1, text("b"))]), "JSON");
    }

    #[test]
    fn other_values_than_strings_are_rejected_with_their_line() {
        for (document, want) in [
            ("- a\n", "expected a mapping"),
            ("a: 1\nb:\n  c: 1\n", "yaml: line 3: b: expected a string"),
            ("a: 1\nb:\n- [x]\n", "yaml: line 3: b: expected a string"),
            ("a: 1\nb:\n- null\n", "yaml: line 3: b: expected a string"),
            ("a: &x 1\nb: *x\n", "yaml: line 2: b: expected a string"),
            ("a: 1\n---\nb: 1\n", "expected a single document"),
            ("a: [1\n", "yaml: "),
        ] {
            let why = read(document).unwrap_err();
            assert!(why.contains(want), "{document:?}: {why}");
        }
        assert!(settings(&vec![b' '; DOCUMENT_BYTES_MAX + 1]).is_err());
        assert!(settings(&[0xff]).is_err());
    }
}
