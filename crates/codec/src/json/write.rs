//! Encodes a tree as compact JSON, with the same bytes as `serde_json`. Strings of objects rarely need an escape, so they are checked
//! in words of eight bytes and copied.
use serde_json::Value;
use std::io::Write;

use super::words::{WORD, special};

/// Appends the JSON of a tree.
pub fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::String(text) => write_text(text, out),
        // Writing to memory cannot fail.
        Value::Number(number) => drop(write!(out, "{number}")),
        Value::Array(items) => write_list(items, out, write),
        Value::Object(map) => write_members(map.iter().map(|(key, value)| (key.as_str(), value)), out, write),
    }
}

/// Appends a list whose elements are written by `item`.
pub fn write_list<'a>(items: &'a [Value], out: &mut Vec<u8>, mut item: impl FnMut(&'a Value, &mut Vec<u8>)) {
    out.push(b'[');
    for (i, value) in items.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        item(value, out);
    }
    out.push(b']');
}

/// Appends an object with these members in this order. Their values are written by a function of the caller.
pub fn write_members<'a, V>(
    members: impl Iterator<Item = (&'a str, V)>,
    out: &mut Vec<u8>,
    mut member: impl FnMut(V, &mut Vec<u8>),
) {
    out.push(b'{');
    for (i, (key, value)) in members.enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write_text(key, out);
        out.push(b':');
        member(value, out);
    }
    out.push(b'}');
}

/// Appends a string in quotes.
pub fn write_text(text: &str, out: &mut Vec<u8>) {
    if plain(text.as_bytes()) {
        out.reserve(text.len() + 2);
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        // Writing to memory cannot fail.
        drop(serde_json::to_writer(out, text));
    }
}

/// Whether no byte needs an escape. Quotes, backslashes and bytes below the space need one.
fn plain(text: &[u8]) -> bool {
    let Some(last) = text.last_chunk::<WORD>() else { return short(text) };
    // The last word may overlap the one before it, which costs less than checking single bytes.
    let mut words = text.chunks_exact(WORD);
    words.all(|word| word.first_chunk().is_some_and(|word| needs_no_escape(u64::from_le_bytes(*word))))
        && needs_no_escape(u64::from_le_bytes(*last))
}

/// Whether no byte needs an escape, for a string shorter than a word.
fn short(text: &[u8]) -> bool {
    match (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        (Some(first), Some(last)) => {
            needs_no_escape((u64::from(u32::from_le_bytes(*first)) << 32) | u64::from(u32::from_le_bytes(*last)))
        }
        _ => text.iter().all(|byte| *byte >= 0x20 && *byte != b'"' && *byte != b'\\'),
    }
}

/// Whether none of eight bytes needs an escape.
fn needs_no_escape(word: u64) -> bool {
    special(word) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn byte_for_byte_as_serde_json_writes() {
        let mut texts: Vec<String> = vec![String::new(), "\u{7f}\u{80}ÿ".into(), "日本語 🦀 text".into()];
        // Every character at every position of a word.
        for c in (0u8..=0x80).map(char::from) {
            texts.extend((0..18).map(|at| format!("{}{c}{}", "x".repeat(at), "é".repeat(17 - at))));
            texts.extend(
                (0..9).flat_map(|len| {
                    (0..len).map(move |at| format!("{}{c}{}", "x".repeat(at), "y".repeat(len - at - 1)))
                }),
            );
        }
        let numbers =
            json!([0, -1, i64::MIN, u64::MAX, 0.5, -0.0, 1e300, 1e-7, 100.0, null, true, false, [], {}, [[]]]);
        let tree = json!({"texts": texts, "numbers": numbers, "a\"\n": {"b": {"": 1}}, "c": "d"});
        let mut out = Vec::new();
        write(&tree, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), serde_json::to_string(&tree).unwrap());
    }
}
