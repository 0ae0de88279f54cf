//! Metadata of stored objects as protobuf messages. It is cut from the bytes of the records, so that neither the rest of an object nor a
//! tree of its metadata is made.
use bytes::{BufMut as _, BytesMut};
use kelson_codec::EncodeError;
use kelson_codec::proto::MetadataEncoder;
use kelson_meta::Status;
use kelson_store::Record;

use crate::catalog::{ObjectSchema, Served};

/// The error for a kind without a protobuf form.
pub fn no_protobuf() -> Status {
    Status::not_acceptable(&["application/json", "application/yaml"])
}

/// The error for an object that cannot be encoded as protobuf.
pub fn refused(error: EncodeError) -> Status {
    match error {
        EncodeError::NoProtobuf => no_protobuf(),
        other => Status::internal(other.to_string()),
    }
}

/// Encodes `PartialObjectMetadata` messages of the records of a kind.
pub struct PartialMessages {
    encoder: MetadataEncoder,
    /// The messages of the kind begin with the metadata, as those of all built-in kinds, or the kind has no messages.
    is_kept: bool,
    /// The JSON of a record's metadata.
    json: BytesMut,
    /// Records whose metadata was encoded, which tests count.
    #[cfg(test)]
    encoded: usize,
}

impl PartialMessages {
    /// Makes an encoder for the records of a kind.
    ///
    /// # Errors
    /// 406 if there is no such version.
    pub fn new(served: &Served, version: &str) -> Result<Self, Status> {
        let is_first = |ty: kelson_schema::TypeId| {
            ty.field_by_json("metadata").is_some_and(|field| field.number() == 1 && !field.is_inline())
        };
        Ok(Self {
            encoder: ObjectSchema::metadata_encoder(version).map_err(refused)?,
            is_kept: served.storage_schema.type_id().is_none_or(is_first),
            json: BytesMut::new(),
            #[cfg(test)]
            encoded: 0,
        })
    }

    /// The length of a record's message. Nothing is encoded for it if it was before.
    ///
    /// # Errors
    /// 500 if the metadata does not fit its type.
    pub fn length(&mut self, record: &Record) -> Result<usize, Status> {
        if let Some(length) = record.metadata_message_len().filter(|_| self.is_kept) {
            return Ok(length);
        }
        let is_kept = self.is_kept;
        let length = self.encode(record)?.len();
        if is_kept {
            record.set_metadata_message_len(length);
        }
        Ok(length)
    }

    /// Appends a record's message to `out`.
    ///
    /// # Errors
    /// See [`PartialMessages::length`].
    pub fn put(&mut self, record: &Record, out: &mut BytesMut) -> Result<(), Status> {
        if !self.is_kept || record.put_metadata_message(out).is_none() {
            out.put_slice(self.encode(record)?);
        }
        Ok(())
    }

    fn encode(&mut self, record: &Record) -> Result<&[u8], Status> {
        #[cfg(test)]
        {
            self.encoded += 1;
        }
        self.json.clear();
        let found = record.put_metadata(&mut self.json);
        let text = std::str::from_utf8(&self.json).ok().filter(|_| found);
        // An object that cannot be read must not hide the others of a list.
        if let Err(error) = self.encoder.encode(text) {
            let EncodeError::Stored(error) = error else { return Err(refused(error)) };
            tracing::error!(key = %record.key(), %error, "cannot decode a stored record's metadata; reading it as null");
            self.encoder.encode(None).map_err(refused)?;
        }
        Ok(self.encoder.message())
    }
}

#[cfg(test)]
mod tests {
    use kelson_schema::{Schema, resource, sample};
    use kelson_store::{Body, Key, Precondition, RecordMeta, Store, StoreOptions, Write};
    use serde_json::Value;

    use super::*;
    use crate::catalog::{Catalog, record};
    use crate::read::table;

    fn expected(record: &Record) -> Vec<u8> {
        ObjectSchema::partial("v1", false).message(&table::partial("v1", record::parse(record))).unwrap()
    }

    #[tokio::test]
    async fn the_message_of_a_record_is_that_of_its_tree_for_every_kind() {
        let store = Store::in_memory(StoreOptions::default());
        let (catalog, mut seen, mut kept) = (Catalog::builtin(), 0, 0);
        for r in resource::resources() {
            let Some(served) = catalog.find(r.group, r.version, r.plural) else { continue };
            let ty = Schema::builtin().by_gvk(r.group, r.version, r.kind).unwrap();
            let mut object = sample::object(ty);
            let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { continue };
            metadata.insert("resourceVersion".into(), "".into());
            let json = kelson_codec::canonical_json(&Value::Object(object));
            let key = Key::new(served.store, "n", "a");
            let write = Write::put(key, Precondition::Any, Body::locate(json).unwrap(), RecordMeta::default());
            let record = store.commit(write).await.unwrap().record;
            let expected = expected(&record);
            let mut messages = PartialMessages::new(&served, "v1").unwrap();
            let assert_put = |messages: &mut PartialMessages| {
                let mut out = BytesMut::from(&b"before"[..]);
                assert_eq!(messages.length(&record).unwrap(), expected.len(), "{}", r.kind);
                messages.put(&record, &mut out).unwrap();
                assert_eq!(out.strip_prefix(&b"before"[..]), Some(&expected[..]), "{}", r.kind);
                messages.encoded
            };
            assert_eq!(assert_put(&mut messages), 2, "{}: the length and the message", r.kind);
            if messages.is_kept {
                assert_eq!(assert_put(&mut messages), 3, "{}: the length was noted", r.kind);
            }
            if !served.converts() && served.storage_schema.type_id().is_some_and(|ty| ty.has_proto()) {
                record::message(&served.storage_schema, &record).unwrap();
                let before = messages.encoded;
                kept += usize::from(assert_put(&mut messages) == before);
            }
            seen += 1;
        }
        assert!(seen > 50 && kept > 40, "{kept} of {seen}");
    }

    #[tokio::test]
    async fn what_follows_the_metadata_is_not_decoded() {
        let store = Store::in_memory(StoreOptions::default());
        let served = Catalog::builtin().find("", "v1", "pods").unwrap();
        let metadata = r#"{"labels":{"a":"b"},"name":"a","resourceVersion":""}"#;
        for (name, json, message) in [
            ("a", format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{metadata},"spec":]]]"#), true),
            // It is read as an object without metadata.
            ("b", r#"{"metadata":{"labels":{"a":x},"resourceVersion":""}}"#.to_owned(), false),
        ] {
            let body = Body::locate(json).unwrap();
            let write = Write::create(Key::new(served.store, "n", name), body, RecordMeta::default());
            let record = store.commit(write).await.unwrap().record;
            let metadata = metadata.replace(r#"ion":""#, &format!(r#"ion":"{}"#, record.revision()));
            let tree = if message { serde_json::from_str(&metadata).unwrap() } else { Value::Null };
            let tree = serde_json::json!({ "metadata": tree });
            let expected = ObjectSchema::partial("v1", false).message(&table::partial("v1", tree)).unwrap();
            let (mut messages, mut out) = (PartialMessages::new(&served, "v1").unwrap(), BytesMut::new());
            messages.put(&record, &mut out).unwrap();
            assert_eq!((&out[..], messages.length(&record)), (&expected[..], Ok(expected.len())), "{name}");
        }
    }
}
