//! Paths of fields below a node, such as `.spec.replicas` or `.labels['a.b']`: for rules that report at another field,
//! and for selectable fields.
use kelson_meta::FieldPath;

use crate::schema::Node;

/// Whether a path may have names in brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brackets {
    /// They are allowed, in the field path of a rule.
    Allowed,
    /// They are rejected, in selectable fields.
    Refused,
}

/// Parses a path. Returns it as errors print it, and the node that it selects.
///
/// # Errors
/// Returns why it selects no node.
pub fn field_path<'n>(path: &str, node: &'n Node, brackets: Brackets) -> Result<(FieldPath, &'n Node), String> {
    let mut tokens = Tokens { rest: path };
    let (mut at, mut node) = (FieldPath::default(), node);
    while let Some(token) = tokens.next() {
        let name = match token {
            "[" if brackets == Brackets::Refused => return Err("array notation is not allowed".to_owned()),
            "[" => {
                let quoted = tokens.next().ok_or("unexpected end of JSON path")?;
                let inside = quoted.strip_prefix('\'').and_then(|q| q.strip_suffix('\''));
                let inside = inside.ok_or_else(|| format!("expected single quoted string but got {quoted}"))?;
                unescape(inside).map_err(|why| format!("invalid string literal: {why}"))?
            }
            "." => tokens.next().ok_or("unexpected end of JSON path")?.to_owned(),
            other => return Err(format!("expected [ or . but got: {other}")),
        };
        (at, node) = step(&at, node, &name)?;
        if token == "[" {
            match tokens.next() {
                Some("]") => {}
                Some(other) => return Err(format!("expected ] but got {other}")),
                None => return Err("unexpected end of JSON path".to_owned()),
            }
        }
    }
    Ok((at, node))
}

fn step<'n>(at: &FieldPath, node: &'n Node, name: &str) -> Result<(FieldPath, &'n Node), String> {
    const NOWHERE: &str = "does not refer to a valid field";
    if node.properties().is_empty() {
        return Ok((at.key(name), node.values_of_map().ok_or(NOWHERE)?));
    }
    Ok((at.child(name), node.property(name).ok_or(NOWHERE)?))
}

/// Tokens: dots, brackets, and the strings between them. A string in single quotes is one token.
struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Tokens<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let text = self.rest;
        let quoted = text.starts_with('\'');
        let mut before = '\0';
        let mut end = text.len();
        for (i, c) in text.char_indices() {
            if quoted && i > 0 && c == '\'' && before != '\\' {
                end = i + 1;
                break;
            }
            if !quoted && matches!(c, '.' | '[' | ']') {
                end = i.max(1);
                break;
            }
            before = c;
        }
        let (token, rest) = text.split_at(end);
        self.rest = rest;
        (!token.is_empty()).then_some(token)
    }
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        out.push(match chars.next() {
            Some('a') => '\x07',
            Some('b') => '\x08',
            Some('f') => '\x0c',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\x0b',
            Some('\'') => '\'',
            Some('\\') => '\\',
            Some(other) => return Err(format!("invalid escape char \\{other}")),
            None => '\\',
        });
    }
    Ok(out)
}
