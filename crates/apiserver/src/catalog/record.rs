//! Stored records as trees and as protobuf messages.
use std::sync::Arc;

use bytes::Bytes;
use kelson_codec::EncodeError;
use kelson_meta::Status;
use kelson_store::Record;
use serde_json::Value;

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
    serde_json::from_slice(&record.bytes()).unwrap_or_else(|error| {
        tracing::error!(key = %record.key(), %error, "stored record does not decode");
        Value::Null
    })
}

/// The JSON of an object's `metadata`, as it stands in the object's; `None` when there is none.
pub fn metadata(object: &[u8]) -> Option<&str> {
    #[derive(serde::Deserialize)]
    struct StoredDocument<'a> {
        #[serde(borrow)]
        metadata: Option<&'a serde_json::value::RawValue>,
    }
    let document: StoredDocument<'_> = serde_json::from_slice(object).ok()?;
    document.metadata.map(serde_json::value::RawValue::get)
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
