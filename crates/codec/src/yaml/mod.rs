//! YAML as `sigs.k8s.io/yaml` understands it: YAML 1.1 scalars, merge keys, keys turned into strings, converted to JSON
//! and decoded by the same rules as JSON. Size, nesting and what aliases may expand to are bounded.
mod emit;
mod resolve;

pub use emit::to_yaml;

use crate::{DOCUMENT_BYTES_MAX, DecodeError, Decoded, NESTING_DEPTH_MAX};
use kelson_schema::TypeId;
use resolve::Scalar;
use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput, Tag};
use serde_json::{Map, Value};
use std::{borrow::Cow, collections::HashMap};

/// Nodes that aliases may add to a document.
pub const ALIAS_NODES_MAX: usize = 100_000;

/// A YAML document as JSON.
#[derive(Debug, Clone, Default)]
pub struct Converted {
    /// JSON text.
    pub json: Vec<u8>,
    /// Keys set more than once, as the strict YAML decoder reports them; the last one counts.
    pub duplicates: Vec<String>,
}

/// Decodes a YAML document; see [`crate::decode`].
pub fn decode(ty: Option<TypeId>, data: &[u8], strict: bool) -> Result<Decoded, DecodeError> {
    let converted = to_json(data)?;
    let mut decoded = crate::json::decode(ty, &converted.json, strict)?;
    if strict && !converted.duplicates.is_empty() {
        let message = format!("yaml: unmarshal errors:\n  {}", converted.duplicates.join("\n  "));
        decoded.strict.0.insert(0, message);
    }
    Ok(decoded)
}

/// Converts the first document of a YAML text to JSON.
pub fn to_json(data: &[u8]) -> Result<Converted, DecodeError> {
    let (value, duplicates) = to_value(data)?;
    Ok(Converted { json: crate::canonical_json(&value), duplicates })
}

/// Converts the first document of a YAML text to a tree; also gives the duplicate keys.
pub fn to_value(data: &[u8]) -> Result<(Value, Vec<String>), DecodeError> {
    if data.len() > DOCUMENT_BYTES_MAX {
        return Err(DecodeError::TooLarge);
    }
    let text = std::str::from_utf8(data).map_err(|_| DecodeError::Yaml("yaml: invalid UTF-8".into()))?;
    let mut loader = Loader {
        parser: Parser::new_from_str(text),
        anchors: HashMap::new(),
        nodes: 0,
        alias_nodes: 0,
        duplicates: Vec::new(),
    };
    let value = loader.document()?;
    Ok((value, loader.duplicates))
}

struct Loader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    /// Value and node count of each anchor.
    anchors: HashMap<usize, (Node, usize)>,
    nodes: usize,
    alias_nodes: usize,
    duplicates: Vec<String>,
}

/// A node: its value, and whether it is the plain scalar `<<`.
#[derive(Clone)]
struct Node {
    value: Value,
    merge: bool,
    line: usize,
}

fn error(line: usize, message: &str) -> DecodeError {
    DecodeError::Yaml(format!("yaml: line {line}: {message}"))
}

impl<'a> Loader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), DecodeError> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(e)) => Err(error(e.marker().line(), e.info())),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn document(&mut self) -> Result<Value, DecodeError> {
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamStart | Event::DocumentStart(_) | Event::Nothing => {}
                Event::StreamEnd | Event::DocumentEnd => return Ok(Value::Null),
                event => return Ok(self.node(event, span, 0)?.value),
            }
        }
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, DecodeError> {
        if depth > NESTING_DEPTH_MAX {
            return Err(DecodeError::TooDeep);
        }
        self.nodes += 1;
        let (before, line) = (self.nodes, span.start.line());
        let (node, anchor) = match event {
            Event::Alias(id) => return self.alias(id, line),
            Event::Scalar(text, style, anchor, tag) => (scalar(&text, style, tag, line)?, anchor),
            Event::SequenceStart(anchor, _) => (Node { value: self.sequence(depth)?, merge: false, line }, anchor),
            Event::MappingStart(anchor, _) => (Node { value: self.mapping(depth)?, merge: false, line }, anchor),
            _ => return Err(error(line, "did not find expected node content")),
        };
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), self.nodes - before + 1));
        }
        Ok(node)
    }

    fn alias(&mut self, id: usize, line: usize) -> Result<Node, DecodeError> {
        let (node, count) = self.anchors.get(&id).ok_or_else(|| error(line, "anchor value contains itself"))?;
        self.nodes += count;
        self.alias_nodes += count;
        if self.alias_nodes > ALIAS_NODES_MAX {
            return Err(DecodeError::Yaml("yaml: document contains excessive aliasing".into()));
        }
        Ok(node.clone())
    }

    fn sequence(&mut self, depth: usize) -> Result<Value, DecodeError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::Array(items)),
                (event, span) => items.push(self.node(event, span, depth + 1)?.value),
            }
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Value, DecodeError> {
        let mut map = Map::new();
        let mut merges = Vec::new();
        loop {
            let key = match self.next()? {
                (Event::MappingEnd, _) => break,
                (event, span) => self.node(event, span, depth + 1)?,
            };
            let (event, span) = self.next()?;
            let value = self.node(event, span, depth + 1)?;
            if key.merge {
                merges.push(value);
                continue;
            }
            let name = key_name(&key)?;
            if map.contains_key(&name) {
                self.duplicates.push(format!(
                    "line {}: key {} already set in map",
                    key.line,
                    crate::scalar::go_quote(&name)
                ));
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
                    map.entry(key).or_insert(value);
                }
            }
        }
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
        Some("binary") => return Err(error(line, "!!binary is not supported")),
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
