//! Commit: encodes an object for storage together with its selector values, and passes it to the store's committer. Errors of the store
//! become errors for the client.
use std::sync::Arc;
use std::time::Duration;

use kelson_codec::json;
use kelson_meta::{Clock, Status};
use kelson_resources::Observer;
use kelson_store::{
    Body, Durability, Fields, Key, Labels, Precondition, Record, RecordMeta, Store, StoreError, Uid, Write,
};
use kelson_traces::{KeyValue, Span, child};
use serde_json::Value;

use crate::aggregate::registry::Aggregation;
use crate::catalog::record::parse;
use crate::catalog::{ObjectSchema, Served};
use crate::custom::registrar::Definitions;
use crate::request::version_param;
use crate::shared::Server;
use crate::shared::identity::Auth;
use crate::shared::issued_metrics::{IssuedCertificate, IssuedMetrics};
use crate::write::draft::Draft;

/// Writes objects of one server to the store. It converts them to the stored version, encodes them and commits them.
/// Before the client gets its response, it informs the parts that follow certain kinds: the RBAC index, custom
/// resources and aggregated APIs. So a client that has created a role or a definition can use it with its next request.
pub struct Committer<'a> {
    store: &'a Store,
    clock: &'a dyn Clock,
    /// The time for which events are kept; zero keeps them forever.
    event_ttl: Duration,
    /// A write of a role or binding waits until it is effective.
    auth: &'a Auth,
    /// Informed of custom resource definitions before the client is answered.
    definitions: &'a Definitions,
    /// Informed of APIService objects before the client is answered.
    aggregation: &'a Aggregation,
    /// Metrics of issued certificates.
    issued: &'a IssuedMetrics,
}

const GUESS_BYTES: usize = 4096;

/// Encodes a tree for storage: fields in the order of their Go type, which responses have too; sorted for custom resources.
/// `managed_fields` replaces a null in the tree.
fn encode_stored(schema: &ObjectSchema, value: &Value, managed_fields: Option<&str>) -> Result<Body, StoreError> {
    let Some(ty) = schema.type_id() else {
        let (bytes, at) = encode_sorted(value);
        return Body::new(bytes, at);
    };
    let mut out = Vec::with_capacity(GUESS_BYTES);
    json::write_declared_with(ty, value, managed_fields, &mut out);
    // Metadata is near the beginning, and the revision near its beginning.
    Body::locate(out)
}

/// The JSON of a tree with sorted keys, and the offset at which the revision is inserted.
fn encode_sorted(value: &Value) -> (Vec<u8>, usize) {
    let mut out = Vec::with_capacity(GUESS_BYTES);
    let mut at = 0;
    object(value, &mut out, |key, value, out| {
        if key == "metadata" && value.is_object() {
            object(value, out, |key, value, out| {
                json::write(value, out);
                if key == "resourceVersion" {
                    // After the opening quote of the empty string.
                    at = out.len() - 1;
                }
            });
        } else {
            json::write(value, out);
        }
    });
    (out, at)
}

/// Writes an object's members in their order, which is the canonical one. `member` writes each value.
fn object(value: &Value, out: &mut Vec<u8>, mut member: impl FnMut(&str, &Value, &mut Vec<u8>)) {
    out.push(b'{');
    for (i, (key, value)) in value.as_object().into_iter().flatten().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        json::write_text(key, out);
        out.push(b':');
        member(key, value, out);
    }
    out.push(b'}');
}

impl<'a> Committer<'a> {
    /// Writes to the store of `server`.
    pub fn new(server: &'a Server) -> Self {
        Self {
            store: &server.store,
            clock: server.clock.as_ref(),
            event_ttl: server.config.event_ttl,
            auth: &server.auth,
            definitions: &server.definitions,
            aggregation: &server.aggregation,
            issued: server.metrics.issued(),
        }
    }

    /// The stored form and the selector values of a tree. Its `resourceVersion` is emptied; the store fills it in.
    fn body(&self, served: &Served, draft: &mut Draft) -> Result<(Body, RecordMeta), Status> {
        let Draft { value, managed_fields } = draft;
        let fields: Vec<String> = served.field_names.iter().map(|f| served.strategy.field_value(value, f)).collect();
        let Some(meta) = value.get_mut("metadata").and_then(Value::as_object_mut) else {
            return Err(Status::internal("object has no metadata"));
        };
        meta.insert("resourceVersion".into(), Value::String(String::new()));
        if managed_fields.is_some() {
            meta.insert("managedFields".into(), Value::Null);
        }
        let labels = meta.get("labels").and_then(Value::as_object);
        let labels = Labels::new(labels.into_iter().flatten().filter_map(|(k, v)| Some((k.as_str(), v.as_str()?))));
        let record_meta = RecordMeta {
            uid: Uid::new(meta.get("uid").and_then(Value::as_str).unwrap_or("")),
            labels,
            fields: Fields::new(&served.field_names, fields.iter().map(String::as_str)),
            deleting: meta.get("deletionTimestamp").is_some_and(|v| !v.is_null()),
            expires_at_s: self.expiry(served),
        };
        let body = encode_stored(&served.storage_schema, value, managed_fields.as_deref()).map_err(|e| match e {
            StoreError::TooLarge { limit, .. } => Status::too_large(limit),
            other => Status::internal(other),
        })?;
        Ok((body, record_meta))
    }

    /// Calls [`Self::body`] as a step of a write's span.
    fn encode(&self, span: &Span, served: &Served, draft: &mut Draft) -> Result<(Body, RecordMeta), Status> {
        span.event("About to Encode", Vec::new);
        let encoded = self.body(served, draft);
        match &encoded {
            Ok((body, _)) => span.event("Encode succeeded", || vec![KeyValue::number("len", body.len())]),
            Err(why) => span.event("Encode failed", || vec![KeyValue::text("err", why.message.as_str())]),
        }
        encoded
    }

    fn expiry(&self, served: &Served) -> u64 {
        if !served.options().expires || self.event_ttl.is_zero() {
            return 0;
        }
        let now_s = u64::try_from(self.clock.now().as_second()).unwrap_or(0);
        now_s + self.event_ttl.as_secs()
    }

    async fn commit(&self, served: &Served, mut write: Write) -> Result<Arc<Record>, WriteError> {
        write.durability = match served.options().durability {
            kelson_resources::Durability::Synced => Durability::Synced,
            kelson_resources::Durability::Relaxed => Durability::Relaxed,
        };
        let deletes = matches!(write.action, kelson_store::Action::Delete { .. });
        let record = self.store.commit(write).await?.record;
        self.auth.wait_until_applied(&record).await;
        match served.options().observer {
            Observer::CustomResources if deletes => self.definitions.deleted(&record),
            Observer::CustomResources => self.definitions.committed(&record),
            Observer::Aggregation if deletes => self.aggregation.deleted(&record),
            Observer::Aggregation => self.aggregation.committed(&record),
            Observer::None => {}
        }
        Ok(record)
    }

    /// Serializes writes of kinds of which only one may be written at a time, until the guard is dropped. Completes the object.
    async fn lock_kind(&self, served: &Served, value: Option<&mut Value>) -> Option<impl Drop + use<'a>> {
        match served.options().observer {
            Observer::CustomResources => Some(self.definitions.prepare(value, self.clock.now()).await),
            Observer::None | Observer::Aggregation => None,
        }
    }

    /// Stores a new object.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn create(
        &self,
        served: &Served,
        namespace: &str,
        name: &str,
        mut draft: Draft,
    ) -> Result<Arc<Record>, WriteError> {
        let span = child("Create etcd3", || attributes(served, namespace, name));
        draft.value = served.working_to_stored(draft.value).await?;
        let _lock = self.lock_kind(served, Some(&mut draft.value)).await;
        let mark = served.mark(&draft.value);
        let (body, meta) = self.encode(&span, served, &mut draft)?;
        let mut write = Write::create(Key::new(served.store, namespace, name), body, meta);
        write.mark = mark;
        let stored = self.commit(served, write).await;
        span.event(if stored.is_ok() { "Txn call succeeded" } else { "Txn call failed" }, Vec::new);
        stored
    }

    /// Replaces an object. If nothing changed, nothing is written, unless the object must be encrypted with a new key.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn update(&self, served: &Served, old: &Arc<Record>, value: Value) -> Result<Arc<Record>, WriteError> {
        let span = child("GuaranteedUpdate etcd3", || attributes(served, &old.key().namespace, &old.key().name));
        let mut value = served.working_to_stored(value).await?;
        let _lock = self.lock_kind(served, Some(&mut value)).await;
        let requests = served.gr.resource == "certificatesigningrequests" && served.gr.group == "certificates.k8s.io";
        let issued = requests.then(|| IssuedCertificate::of(&parse(old), &value)).flatten();
        let mark = served.mark(&value);
        let (body, meta) = self.encode(&span, served, &mut value.into())?;
        // Writing the same object again is useful if the stored one is encrypted with an old key.
        if old.same_but_revision(&body) && !self.store.is_stale(old) {
            // The same bytes at an unexpected revision are a conflict nevertheless.
            let key = old.key();
            return match self.store.get(key.resource, &key.namespace, &key.name) {
                Some(now) if now.revision() == old.revision() => Ok(now),
                Some(_) => Err(WriteError::Conflict),
                None => Err(WriteError::Gone),
            };
        }
        let mut write = Write::update(old.key().clone(), old.revision(), body, meta);
        write.mark = mark;
        span.event("Transaction prepared", Vec::new);
        let stored = self.commit(served, write).await;
        span.event(if stored.is_ok() { "Transaction committed" } else { "Txn call failed" }, Vec::new);
        let stored = stored?;
        issued.iter().for_each(|issued| self.issued.count(issued));
        Ok(stored)
    }

    /// Deletes an object that has not changed since it was read. `last` is its last state if that differs from the stored one.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn delete(
        &self,
        served: &Served,
        old: &Arc<Record>,
        last: Option<Value>,
    ) -> Result<Arc<Record>, WriteError> {
        let mut write = Write::delete(old.key().clone(), Precondition::AtRevision(old.revision()));
        let _lock = self.lock_kind(served, None).await;
        if let Some(value) = last {
            let value = served.working_to_stored(value).await?;
            let (body, _) = self.body(served, &mut value.into())?;
            write.action = kelson_store::Action::Delete { body: Some(body) };
        }
        self.commit(served, write).await
    }
}

/// Attributes of a write's span.
fn attributes(served: &Served, namespace: &str, name: &str) -> Vec<KeyValue> {
    let path = [served.gr.group.as_str(), served.gr.resource.as_str(), namespace, name];
    let key: String = path.iter().filter(|part| !part.is_empty()).flat_map(|part| ["/", *part]).collect();
    vec![
        KeyValue::text("key", key),
        KeyValue::text("type", served.gvk.kind.as_str()),
        KeyValue::text("group", served.gr.group.as_str()),
        KeyValue::text("resource", served.gr.resource.as_str()),
    ]
}

/// Reason why a write failed.
pub enum WriteError {
    /// Another write changed the object in between.
    Conflict,
    /// The name exists already.
    Exists,
    /// The object was deleted in between.
    Gone,
    /// Any other error.
    Status(Status),
}

impl From<StoreError> for WriteError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::AlreadyExists { .. } => Self::Exists,
            StoreError::Conflict { .. } | StoreError::UidMismatch { .. } => Self::Conflict,
            StoreError::NotFound => Self::Gone,
            other => Self::Status(version_param::store_error(&other)),
        }
    }
}

impl From<Status> for WriteError {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl WriteError {
    /// The error for the client.
    pub fn status(self, served: &Served, name: &str) -> Status {
        match self {
            Self::Conflict => Status::conflict(&served.gr, name, Status::MODIFIED),
            Self::Exists => Status::already_exists(&served.gr, name),
            Self::Gone => Status::not_found(&served.gr, name),
            Self::Status(status) => status,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_offset_of_the_revision_matches_the_encoded_bytes() {
        for object in [
            json!({"metadata": {"resourceVersion": ""}}),
            json!({"a": {"resourceVersion": ""}, "metadata": {"name": "resourceVersion\":\"", "resourceVersion": ""}}),
            json!({"kind": "K", "metadata": {"labels": {"resourceVersion": ""}, "resourceVersion": "", "uid": "u"}, "spec": [1]}),
        ] {
            let (bytes, at) = encode_sorted(&object);
            assert_eq!(bytes, kelson_codec::canonical_json(&object));
            let located = Body::locate(bytes.clone()).expect("a body");
            let known = Body::new(bytes, at).expect("a body");
            assert_eq!(format!("{known:?}"), format!("{located:?}"), "{object}");
        }
    }
}
