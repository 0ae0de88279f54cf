//! YAML as `sigs.k8s.io/yaml` reads it: YAML 1.1 scalars, merge keys, and keys converted to strings. A document is converted to JSON
//! and decoded by the rules of JSON. Its size, its nesting and the expansion of its aliases are bounded.
//!
//! An anchored node is not copied. Its parser events are recorded once, however the anchors are nested, and an alias replays them. An
//! alias therefore costs what its node costs, and is charged for it.
mod emit;
mod input;
mod resolve;
mod settings;

pub use emit::to_yaml;
pub use settings::{Setting, SettingValue, settings};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::{Budget, DOCUMENT_BYTES_MAX, DecodeError, Decoded, Limits, STRICT_ERRORS_MAX};
use input::{Ahead, INDICATORS_MAX, Text};
use kelson_schema::TypeId;
use resolve::Scalar;
use saphyr_parser::{Event, Parser, ScalarStyle, Tag};
use serde_json::{Map, Value};
use std::{borrow::Cow, collections::HashMap, ops::Range};

/// A YAML document converted to JSON.
#[derive(Debug, Clone, Default)]
pub struct Converted {
    /// The document as compact JSON with sorted keys.
    pub json: Vec<u8>,
    /// The duplicate keys as the strict YAML decoder reports them, at most [`STRICT_ERRORS_MAX`]. The last value of a key counts.
    pub duplicates: Vec<String>,
}

/// Decodes a YAML document; see [`crate::decode`].
pub fn decode(ty: Option<TypeId>, data: &[u8], strict: bool) -> Result<Decoded, DecodeError> {
    let converted = to_json(data)?;
    let mut budget = Budget::new(Limits::DOCUMENT);
    let mut decoded = crate::json::decode::decode_within(ty, &converted.json, strict, &mut budget)?;
    if strict && !converted.duplicates.is_empty() {
        let message = format!("yaml: unmarshal errors:\n  {}", converted.duplicates.join("\n  "));
        decoded.strict.0.insert(0, message);
    }
    Ok(decoded)
}

/// Converts the first document of a YAML stream to JSON.
pub fn to_json(data: &[u8]) -> Result<Converted, DecodeError> {
    let (value, duplicates) = to_value(data)?;
    Ok(Converted { json: crate::canonical_json(&value), duplicates })
}

/// Converts the first document of a YAML stream to a tree, and returns the duplicate keys. JSON is YAML, and most clients send it, so
/// input that is valid JSON without findings is decoded directly as JSON.
pub fn to_value(data: &[u8]) -> Result<(Value, Vec<String>), DecodeError> {
    to_value_within(data, Limits::DOCUMENT)
}

/// Converts the first document of a YAML stream within the given limits; see [`to_value`].
///
/// # Errors
/// See [`DecodeError`].
pub fn to_value_within(data: &[u8], limits: Limits) -> Result<(Value, Vec<String>), DecodeError> {
    if data.len() > DOCUMENT_BYTES_MAX {
        return Err(DecodeError::TooLarge);
    }
    if data.first() == Some(&b'{') {
        let read = crate::json::decode_within(None, data, true, &mut Budget::new(limits));
        if let Some(decoded) = read.ok().filter(|decoded| decoded.strict.is_empty()) {
            return Ok((decoded.value, Vec::new()));
        }
    }
    events_to_value(data, limits)
}

/// Converts a document with the YAML parser only.
fn events_to_value(data: &[u8], limits: Limits) -> Result<(Value, Vec<String>), DecodeError> {
    let text = std::str::from_utf8(data).map_err(|_| DecodeError::Yaml("yaml: invalid UTF-8".into()))?;
    if let Some(line) = tab_before_all(text) {
        return Err(error(line, "found character that cannot start any token"));
    }
    let ahead = Ahead::default();
    let mut loader = Loader {
        parser: Parser::new(Text::new(text, ahead.clone())),
        ahead,
        text,
        alias_at: 0,
        tape: Vec::new(),
        open_anchors: 0,
        anchors: HashMap::new(),
        replays: Vec::new(),
        budget: Budget::new(limits),
        aliases: Budget::new(Limits::ALIASES),
        duplicates: Vec::new(),
    };
    let value = loader.document()?;
    Ok((value, loader.duplicates))
}

/// The line of a tab that is the first character of its line, before the document begins.
fn tab_before_all(text: &str) -> Option<usize> {
    let mut lines = text.lines().map(|line| line.trim_start_matches(' ')).enumerate();
    let (at, first) = lines.find(|(_, line)| !line.is_empty() && !line.starts_with('#'))?;
    first.starts_with('\t').then_some(at + 1)
}

struct Loader<'a> {
    parser: Parser<'a, Text<'a>>,
    ahead: Ahead,
    text: &'a str,
    /// The position of the last alias in the document, in characters.
    alias_at: usize,
    /// The recorded events of all anchored nodes, with their lines.
    tape: Vec<(Event<'a>, usize)>,
    /// The number of anchored nodes that are being read. Events are recorded while there are any.
    open_anchors: usize,
    /// The range on the tape of each anchored node.
    anchors: HashMap<usize, Range<usize>>,
    /// The remaining ranges of the nodes that aliases replay. The innermost is last.
    replays: Vec<Range<usize>>,
    /// The budget of the whole document.
    budget: Budget,
    /// The budget of what aliases add to it.
    aliases: Budget,
    duplicates: Vec<String>,
}

/// A node: its value, and whether it is the plain scalar `<<`.
struct Node {
    value: Value,
    merge: bool,
    line: usize,
}

fn error(line: usize, message: &str) -> DecodeError {
    // Upstream's parser counts lines from zero and prints no line for the first one.
    match line {
        0 | 1 => DecodeError::Yaml(format!("yaml: {message}")),
        line => DecodeError::Yaml(format!("yaml: line {line}: {message}")),
    }
}

/// The error for invalid YAML. Upstream's library does not print what it was reading, and its parser, unlike its scanner, counts lines
/// from zero.
fn malformed(line: usize, info: &str) -> DecodeError {
    match (info.split_once(", "), line.saturating_sub(1)) {
        (Some((reading, why)), 0) if reading.starts_with("while parsing ") => error(0, why),
        (Some((reading, why)), before) if reading.starts_with("while parsing ") => {
            DecodeError::Yaml(format!("yaml: line {before}: {why}"))
        }
        (Some((reading, why)), _) if reading.starts_with("while scanning ") => error(line, why),
        _ => error(line, info),
    }
}

fn excessive_aliasing(_: crate::Exceeded) -> DecodeError {
    DecodeError::Yaml("yaml: document contains excessive aliasing".into())
}

impl<'a> Loader<'a> {
    /// The next event and its line, from a replayed node or from the document.
    fn next(&mut self) -> Result<(Event<'a>, usize), DecodeError> {
        if let Some(replay) = self.replays.last_mut() {
            let at = replay.next().ok_or_else(|| error(0, "did not find expected node content"))?;
            let (event, line) = self.tape[at].clone();
            self.aliases.steps(1).map_err(excessive_aliasing)?;
            if let Event::Scalar(text, ..) = &event {
                self.aliases.bytes(text.len()).map_err(excessive_aliasing)?;
            }
            return Ok((event, line));
        }
        let event = self.parser.next_event();
        if self.ahead.ends() {
            return Err(DecodeError::Yaml(format!(
                "yaml: a flow collection or quoted string has more than {INDICATORS_MAX} indicators; send it as JSON"
            )));
        }
        let (event, line) = match event {
            Some(Ok((event, span))) => {
                if matches!(event, Event::Alias(_)) {
                    self.alias_at = span.start.index();
                }
                (event, span.start.line())
            }
            Some(Err(e)) => return Err(malformed(e.marker().line(), e.info())),
            None => (Event::StreamEnd, 0),
        };
        if self.open_anchors > 0 {
            self.record(&event, line)?;
        }
        Ok((event, line))
    }

    fn record(&mut self, event: &Event<'a>, line: usize) -> Result<(), DecodeError> {
        // A string without escapes is borrowed from the document.
        let text = if let Event::Scalar(Cow::Owned(text), ..) = event { text.len() } else { 0 };
        self.budget.bytes(2 * size_of::<(Event<'a>, usize)>() + text)?;
        self.tape.push((event.clone(), line));
        Ok(())
    }

    fn document(&mut self) -> Result<Value, DecodeError> {
        loop {
            let (event, line) = self.next()?;
            match event {
                Event::StreamStart | Event::DocumentStart(_) | Event::Nothing => {}
                Event::StreamEnd | Event::DocumentEnd => return Ok(Value::Null),
                event => return Ok(self.node(event, line)?.value),
            }
        }
    }

    fn node(&mut self, event: Event<'a>, line: usize) -> Result<Node, DecodeError> {
        let anchor = match &event {
            Event::Scalar(_, _, anchor, _) | Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) => {
                *anchor
            }
            _ => 0,
        };
        // While an alias is replayed, its events are on the tape already.
        if anchor == 0 || !self.replays.is_empty() {
            return self.content(event, line);
        }
        if self.open_anchors == 0 {
            self.record(&event, line)?;
        }
        let start = self.tape.len() - 1;
        self.open_anchors += 1;
        let node = self.content(event, line)?;
        self.open_anchors -= 1;
        self.anchors.insert(anchor, start..self.tape.len());
        Ok(node)
    }

    fn content(&mut self, event: Event<'a>, line: usize) -> Result<Node, DecodeError> {
        let collection = |value| Node { value, merge: false, line };
        match event {
            Event::Alias(id) => {
                let events = self.anchors.get(&id).ok_or_else(|| self.contains_itself())?;
                self.replays.push(events.clone());
                let (event, line) = self.next()?;
                let node = self.content(event, line)?;
                // All events of the node have been replayed.
                self.replays.pop();
                Ok(node)
            }
            Event::Scalar(text, style, _, tag) => {
                self.budget.text(text.len())?;
                scalar(&text, style, tag, line)
            }
            Event::SequenceStart(..) => self.sequence().map(collection),
            Event::MappingStart(..) => self.mapping().map(collection),
            _ => Err(error(line, "did not find expected node content")),
        }
    }

    /// The error for an alias within its own anchor, whose node is not recorded yet.
    fn contains_itself(&self) -> DecodeError {
        let from = self.text.chars().skip(self.alias_at).skip_while(|c| *c == '*');
        let name: String =
            from.take_while(|c| !c.is_whitespace() && !matches!(c, ',' | '[' | ']' | '{' | '}')).collect();
        error(0, &format!("anchor '{name}' value contains itself"))
    }

    fn sequence(&mut self) -> Result<Value, DecodeError> {
        self.budget.enter()?;
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => break,
                (event, line) => {
                    self.budget.element(items.len())?;
                    items.push(self.node(event, line)?.value);
                }
            }
        }
        self.budget.leave();
        Ok(Value::Array(items))
    }

    fn mapping(&mut self) -> Result<Value, DecodeError> {
        self.budget.enter()?;
        let mut map = Map::new();
        let mut merges = Vec::new();
        loop {
            let key = match self.next()? {
                (Event::MappingEnd, _) => break,
                (event, line) => self.node(event, line)?,
            };
            let (event, line) = self.next()?;
            let value = self.node(event, line)?;
            if key.merge {
                merges.push(value);
                continue;
            }
            let name = key_name(&key)?;
            self.budget.member(map.len(), &name)?;
            if map.contains_key(&name) && self.duplicates.len() < STRICT_ERRORS_MAX {
                // The key is shown as Go prints it, before its conversion to a JSON string.
                let shown = if key.value.is_string() { crate::scalar::go_quote(&name) } else { name.clone() };
                self.duplicates.push(format!("line {}: key {shown} already set in map", key.line));
            }
            map.insert(name, value.value);
        }
        for merge in merges {
            let sources = match merge.value {
                Value::Array(items) => items,
                single => vec![single],
            };
            for source in sources {
                let Value::Object(source) = source else {
                    return Err(error(merge.line, "map merge requires map or sequence of maps as the value"));
                };
                for (key, value) in source {
                    self.budget.member(map.len(), &key)?;
                    map.entry(key).or_insert(value);
                }
            }
        }
        self.budget.leave();
        Ok(Value::Object(map))
    }
}

fn key_name(key: &Node) -> Result<String, DecodeError> {
    match &key.value {
        Value::String(s) => Ok(s.clone()),
        Value::Bool(b) => Ok(b.to_string()),
        Value::Number(n) => Ok(n.to_string()),
        Value::Null => Err(error(key.line, "unsupported map key of type: null")),
        _ => Err(error(key.line, "invalid map key")),
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<Cow<'_, Tag>>, line: usize) -> Result<Node, DecodeError> {
    let plain = style == ScalarStyle::Plain;
    let tag = tag.filter(|t| t.is_yaml_core_schema()).map(|t| t.suffix.clone());
    let resolved = match tag.as_deref() {
        Some("str") => Scalar::Text,
        Some("binary") => {
            let broken = || error(0, "!!binary value contains invalid base64 data");
            let bytes = BASE64.decode(text.replace(['\n', '\r'], "")).map_err(|_| broken())?;
            let value = Value::String(String::from_utf8_lossy(&bytes).into_owned());
            return Ok(Node { value, merge: false, line });
        }
        None if !plain => Scalar::Text,
        _ => resolve::resolve(text),
    };
    let value = match resolved {
        Scalar::Text | Scalar::Merge => Value::String(text.to_owned()),
        Scalar::Null => Value::Null,
        Scalar::Bool(b) => Value::Bool(b),
        Scalar::Int(i) => Value::from(i),
        Scalar::Uint(u) => Value::from(u),
        Scalar::Float(f) if tag.as_deref() == Some("int") => {
            return Err(error(line, &format!("cannot decode !!float `{f}` as a !!int")));
        }
        Scalar::Float(f) => match crate::json::decode::canonical_float(f) {
            Some(number) => Value::Number(number),
            None => return Err(DecodeError::Yaml(format!("json: unsupported value: {}", go_float(f)))),
        },
    };
    Ok(Node { value, merge: resolved == Scalar::Merge, line })
}

fn go_float(f: f64) -> &'static str {
    if f.is_nan() {
        "NaN"
    } else if f > 0.0 {
        "+Inf"
    } else {
        "-Inf"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_readers_agree_on_json() {
        for text in [
            r#"{}"#,
            r#"{"a":null,"b":[],"c":{"d":[1,-2,{"e":true}]},"f":"","g":"\u00e9\n\"\\/"}"#,
            r#"{"n":[0,1.5,1.0,-0.25,1e3,2E-2,9007199254740993,9223372036854775807,-9223372036854775808]}"#,
            "{\n  \"a\": \"x: y # z\",\n\t\"b\" : \"no\", \"c\": \"1\" }\n",
            "{\"a\": \"\u{e9}\u{1F600}\"}",
            // This is not JSON, or has findings, so the YAML parser reads it.
            r#"{"a":1,"a":2}"#,
            "{a: 1, b: yes}",
            "{\"a\": 1}\n---\n{\"b\": 2}\n",
        ] {
            let (fast, slow) = (to_value(text.as_bytes()), events_to_value(text.as_bytes(), Limits::DOCUMENT));
            assert_eq!(fast, slow, "{text}");
        }
    }

    #[test]
    fn a_long_key_is_written_so_that_readers_accept_it() {
        let long = "k".repeat(2000);
        for value in [
            serde_json::json!("text"),
            serde_json::json!({}),
            serde_json::json!({"a": {"b": "c"}, "d": [1, [2]]}),
            serde_json::json!([{"x": 1, "y": ["z"]}, [], "e"]),
        ] {
            let whole = serde_json::json!({"first": 1, &long: value, "second": {&long: [{&long: value}]}});
            let text = to_yaml(&whole);
            assert_eq!(to_value(text.as_bytes()).map(|v| v.0), Ok(whole), "{text}");
        }
        let (short, longer) = ("k".repeat(128), "k".repeat(129));
        let text = to_yaml(&serde_json::json!({&short: [1], &longer: [1, 2]}));
        assert_eq!(text, format!("{short}:\n- 1\n? {longer}\n: - 1\n  - 2\n"));
    }
}
