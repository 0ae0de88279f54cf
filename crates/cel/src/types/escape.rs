//! Names of properties as identifiers: `a.b-c` becomes `a__dot__b__dash__c` (`apiserver/pkg/cel/escaping.go`).
use std::borrow::Cow;

use crate::syntax::RESERVED;

const SEQUENCES: [(&str, &str); 4] = [("__", "underscores"), (".", "dot"), ("-", "dash"), ("/", "slash")];

/// The identifier of a property. `None` if it can have none, because its name is empty, starts with a digit, or has a character that is
/// neither a letter, a digit nor one of `_.-/`.
pub fn escape(name: &str) -> Option<Cow<'_, str>> {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__").into());
    }
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-/".contains(&b)) {
        return None;
    }
    if !name.contains("__") && !name.contains(['.', '-', '/']) {
        return Some(name.into());
    }
    let mut out = String::with_capacity(name.len() + 16);
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        match SEQUENCES.iter().find(|(plain, _)| rest.starts_with(plain)) {
            Some((plain, word)) => {
                out.push_str("__");
                out.push_str(word);
                out.push_str("__");
                rest = &rest[plain.len()..];
            }
            None => {
                out.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    Some(out.into())
}

/// The property with this identifier. `None` if the identifier has an unknown escape sequence.
pub fn unescape(identifier: &str) -> Option<Cow<'_, str>> {
    if !identifier.contains("__") {
        return Some(identifier.into());
    }
    let mut out = String::with_capacity(identifier.len());
    let mut rest = identifier;
    while let Some(start) = rest.find("__") {
        // An escape sequence is two underscores, a word without underscores, and two more. Other underscores are literal.
        let word_end = rest[start + 2..].find('_').map(|n| start + 2 + n);
        let Some(end) = word_end.filter(|e| *e > start + 2 && rest[*e..].starts_with("__")) else {
            out.push_str(&rest[..start + 1]);
            rest = &rest[start + 1..];
            continue;
        };
        out.push_str(&rest[..start]);
        let word = &rest[start + 2..end];
        if let Some((plain, _)) = SEQUENCES.iter().find(|(_, w)| *w == word) {
            out.push_str(plain);
        } else if RESERVED.contains(&word) && word.len() + 4 == identifier.len() {
            out.push_str(word);
        } else {
            return None;
        }
        rest = &rest[end + 2..];
    }
    out.push_str(rest);
    Some(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways() {
        for (name, identifier) in [
            ("foo", "foo"),
            ("my_field", "my_field"),
            ("true", "__true__"),
            ("namespace", "__namespace__"),
            ("a__b", "a__underscores__b"),
            ("a___b", "a__underscores___b"),
            ("a____b", "a__underscores____underscores__b"),
            ("a.dash-slash/", "a__dot__dash__dash__slash__slash__"),
            ("int", "int"),
            ("_", "_"),
        ] {
            assert_eq!(escape(name).as_deref(), Some(identifier), "{name}");
            assert_eq!(unescape(identifier).as_deref(), Some(name), "{identifier}");
        }
        for name in ["", "1a", "a b", "$", "é", "a:b"] {
            assert_eq!(escape(name), None, "{name}");
        }
        for identifier in ["__illegal__", "__true__x", "a__other__"] {
            assert_eq!(unescape(identifier), None, "{identifier}");
        }
    }
}
