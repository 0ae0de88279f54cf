//! Stored records as trees and as protobuf messages.
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use kelson_codec::EncodeError;
use kelson_meta::Status;
use kelson_resources::Parts;
use kelson_store::Record;
use memchr::memmem::Finder;
use serde::de::Error as _;
use serde_json::Value;

use crate::catalog::schema::ObjectSchema;

/// An object in the form in which a handler has it.
pub enum Object {
    /// A stored record.
    Record(Arc<Record>),
    /// A tree in the working version.
    Tree(Value),
}

/// The tree of a stored record.
pub fn parse(record: &Record) -> Value {
    parse_parts(record, Parts::All)
}

/// The tree of some parts of a stored record.
pub fn parse_parts(record: &Record, parts: Parts) -> Value {
    parse_bytes(record, &record.bytes(), parts, None)
}

/// The tree of some parts of a stored record with these bytes, and the range of its metadata in them if it is known.
pub fn parse_bytes(record: &Record, bytes: &[u8], parts: Parts, metadata: Option<Range<usize>>) -> Value {
    // Check UTF-8 once for the whole record instead of for each string.
    let text = std::str::from_utf8(bytes).map_err(serde_json::Error::custom);
    text.and_then(|text| parts.parse_beside(text, metadata)).unwrap_or_else(|error| {
        tracing::error!(key = %record.key(), %error, "cannot decode a stored record; reading it as null");
        Value::Null
    })
}

/// An object's JSON without `metadata.managedFields`, which are often as long as the rest, for readers that do not use them. `metadata`
/// is the range of the member, if it is known.
pub fn without_managed_fields(object: Bytes, metadata: Option<Range<usize>>) -> Bytes {
    let last = metadata.and_then(|range| {
        let (start, end) = last_managed_fields(object.get(range.clone())?)?;
        Some((range.start + start, range.start + end))
    });
    let Some((start, end)) = last.or_else(|| managed_fields(&object)) else { return object };
    let mut rest = Vec::with_capacity(object.len() - (end - start));
    rest.extend_from_slice(&object[..start]);
    rest.extend_from_slice(&object[end..]);
    rest.into()
}

/// The range of `managedFields` in the JSON of metadata, with the comma before, if they are its last member, as in all objects of built-in
/// kinds, and contain no other bracket. No text in JSON contains what they begin with, since its quotes would be escaped; and since one
/// object ends after them, they are a member of the metadata.
fn last_managed_fields(metadata: &[u8]) -> Option<(usize, usize)> {
    const BEGIN: &[u8] = b",\"managedFields\":[";
    static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(BEGIN));
    let rest = metadata.strip_suffix(b"]}")?;
    let start = FINDER.find(rest)?;
    memchr::memchr2(b'[', b']', &rest[start + BEGIN.len()..]).is_none().then_some((start, rest.len() + 1))
}

/// The range of `metadata.managedFields` in an object's JSON, with the comma before. If they are the first member, which Kelson never
/// writes, they are not found.
fn managed_fields(object: &[u8]) -> Option<(usize, usize)> {
    let (_, metadata) = member(object, 0, b"metadata")?;
    let (start, value) = member(object, metadata, b"managedFields")?;
    (object[start] == b',').then(|| Some((start, value_end(object, value)?)))?
}

/// Finds a member of the object at `at` in compact JSON: the offset of the byte before the member, and that of its value.
fn member(json: &[u8], mut at: usize, name: &[u8]) -> Option<(usize, usize)> {
    if *json.get(at)? != b'{' {
        return None;
    }
    loop {
        let key = at + 1;
        let colon = text_end(json, key)?;
        if &json[key + 1..colon - 1] == name {
            return Some((at, colon + 1));
        }
        at = value_end(json, colon + 1)?;
        if *json.get(at)? != b',' {
            return None;
        }
    }
}

/// The offset after the string at `at`.
fn text_end(json: &[u8], mut at: usize) -> Option<usize> {
    if *json.get(at)? != b'"' {
        return None;
    }
    loop {
        at += 1;
        match json.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 1,
            _ => {}
        }
    }
}

/// The offset after the value at `at`.
fn value_end(json: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0usize;
    loop {
        match json.get(at)? {
            b'"' => {
                at = text_end(json, at)?;
                if depth == 0 {
                    return Some(at);
                }
                continue;
            }
            b'[' | b'{' => depth += 1,
            b']' | b'}' | b',' if depth == 0 => return Some(at),
            b']' | b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
        at += 1;
    }
}

/// The protobuf message (without envelope) of a record in the stored schema. It is encoded once and cached in the record.
///
/// # Errors
/// 406 if the type has no protobuf form.
pub fn message(schema: &ObjectSchema, record: &Record) -> Result<Bytes, Status> {
    if let Some(made) = record.protobuf_if_made() {
        return Ok(made);
    }
    let made = schema.stored_message(&record.bytes()).or_else(|error| match error {
        // As `parse`: an object that cannot be read must not hide the others of a list.
        EncodeError::Stored(error) => {
            tracing::error!(key = %record.key(), %error, "cannot decode a stored record; reading it as null");
            schema.message(&Value::Null)
        }
        other => Err(other),
    });
    let made = made.map_err(|error| match error {
        EncodeError::NoProtobuf => Status::not_acceptable(&["application/json", "application/yaml"]),
        other => Status::internal(other.to_string()),
    })?;
    let made = Bytes::from(made);
    record.set_protobuf(&made);
    Ok(made)
}

/// Length of the record's protobuf message, which is encoded if it is not cached.
///
/// # Errors
/// See [`message`].
pub fn message_len(schema: &ObjectSchema, record: &Record) -> Result<usize, Status> {
    match record.protobuf_len_if_made() {
        Some(length) => Ok(length),
        None => message(schema, record).map(|made| made.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managed_fields_at_the_end_are_found_without_a_walk() {
        for (json, found) in [
            (r#"{"name":"a","managedFields":[{"fieldsV1":{"f:a":{}}}]}"#, true),
            (r#"{"name":"a","managedFields":[]}"#, true),
            (r#"{"name":"a","managedFields":[{"fieldsV1":{"k:{\"x\":[1]}":{}}}]}"#, false),
            (r#"{"name":"a","managedFields":[{}],"b":[]}"#, false),
            (r#"{"name":"a","b":{"c":1,"managedFields":[]}}"#, false),
            (r#"{"name":"a","b":[{"c":1,"managedFields":[]}]}"#, false),
            (r#"{"name":"a","managedFields":[{}],"uid":"u"}"#, false),
            (r#"{"name":",\"managedFields\":[","b":[]}"#, false),
            (r#"{"managedFields":[]}"#, false),
            ("]}", false),
            ("", false),
        ] {
            let range = last_managed_fields(json.as_bytes());
            assert_eq!(range.is_some(), found, "{json}");
            let cut = range.map(|(start, end)| [&json[..start], &json[end..]].concat());
            assert!(cut.is_none_or(|cut| cut == r#"{"name":"a"}"#), "{json}");
        }
    }

    #[test]
    fn only_managed_fields_are_removed() {
        let without = |json: &str| {
            let cut = |metadata| without_managed_fields(json.to_owned().into(), metadata);
            let metadata = member(json.as_bytes(), 0, b"metadata");
            let range = metadata.and_then(|(_, begin)| Some(begin..value_end(json.as_bytes(), begin)?));
            assert_eq!(cut(range), cut(None), "{json}");
            String::from_utf8(cut(None).to_vec()).unwrap()
        };
        let entries = r#"[{"manager":"m]},\"","fieldsV1":{"f:a":{"k:{\"x\":[1]}":{}}}},{"manager":"\\\\"}]"#;
        let pod =
            |member: &str| format!(r#"{{"kind":"Pod","metadata":{{"name":"a"{member}}},"spec":{{"b":[1,"]"]}}}}"#);
        assert_eq!(without(&pod(&format!(r#","managedFields":{entries}"#))), pod(""));
        assert_eq!(without(&pod(&format!(r#","managedFields":{entries},"uid":"u""#))), pod(r#","uid":"u""#));
        assert_eq!(without(&pod(r#","managedFields":null"#)), pod(""));
        for same in [
            pod(""),
            pod(r#","annotations":{"a":",\"managedFields\":[","managedFields":"x"}"#),
            r#"{"metadata":{"name":"a","managedFields":[{"#.to_owned(),
            r#"{"metadata":{"name":"a","managedFields":["#.to_owned(),
            r#"{"metadata":{"managedFields":[{}],"name":"a"}}"#.to_owned(),
            r#"{"managedFields":[{}],"metadata":{"name":"a"},"spec":{"metadata":{"name":"a","managedFields":[{}]}}}"#
                .to_owned(),
            r#"{"metadata":{},"a":1}"#.to_owned(),
            "{}".to_owned(),
            "".to_owned(),
        ] {
            assert_eq!(without(&same), same);
        }
    }
}
