//! Stored records as trees and as protobuf messages.
use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use kelson_codec::EncodeError;
use kelson_meta::Status;
use kelson_store::Record;
use serde::Deserializer as _;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::catalog::Served;

/// An object as the handlers have it.
pub enum Object {
    /// As it is stored.
    Record(Arc<Record>),
    /// A tree in the form that is worked on.
    Tree(Value),
}

impl Object {
    /// The tree; which of the two forms it is in makes no difference to those who show it.
    pub fn into_tree(self) -> Value {
        match self {
            Self::Record(record) => parse(&record),
            Self::Tree(value) => value,
        }
    }
}

/// The tree of a stored record.
pub fn parse(record: &Record) -> Value {
    let bytes = record.bytes();
    // Looked over for UTF-8 once, not text by text.
    let text = std::str::from_utf8(&bytes).map_err(serde_json::Error::custom);
    text.and_then(serde_json::from_str).unwrap_or_else(|error| {
        tracing::error!(key = %record.key(), %error, "stored record does not decode");
        Value::Null
    })
}

/// The JSON of an object's `metadata`, as it stands in the object's; `None` when there is none. What follows it is not read.
pub fn metadata(object: &[u8]) -> Option<&str> {
    let mut found = None;
    let mut document = serde_json::Deserializer::from_str(std::str::from_utf8(object).ok()?);
    // Ends with an error, which says no more than that the reading ended.
    let _ended = (&mut document).deserialize_map(UpToMetadata(&mut found));
    found.map(RawValue::get)
}

/// Reads an object as far as its member `metadata`.
struct UpToMetadata<'a, 'de>(&'a mut Option<&'de RawValue>);

impl<'de> Visitor<'de> for UpToMetadata<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(key) = members.next_key::<Cow<'de, str>>()? {
            if key == "metadata" {
                *self.0 = Some(members.next_value()?);
                return Err(A::Error::custom("the rest is not wanted"));
            }
            members.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

/// The record's protobuf message (no envelope), transcoded once and kept beside the record.
///
/// # Errors
/// 406 when the type has no protobuf form.
pub fn message(served: &Served, record: &Record) -> Result<Bytes, Status> {
    if let Some(made) = record.protobuf_if_made() {
        return Ok(made);
    }
    let made = served.storage_schema.message(&parse(record)).map_err(|error| match error {
        EncodeError::NoProtobuf => Status::not_acceptable(&["application/json", "application/yaml"]),
        other => Status::internal(other.to_string()),
    })?;
    let made = Bytes::from(made);
    record.set_protobuf(&made);
    Ok(made)
}
