//! Commit: from a tree in the stored form to the store's committer, with what selectors need beside the bytes; and the
//! store's refusals as the client reads them.
use std::sync::Arc;

use kelson_meta::Status;
use kelson_store::{Body, Durability, Fields, Key, Labels, Precondition, Record, RecordMeta, StoreError, Uid, Write};
use serde_json::Value;

use crate::catalog::Served;
use crate::shared::Server;

/// The bytes and selector values of a tree. Its `resourceVersion` is emptied for the committer to fill in.
///
/// # Errors
/// 413 for what is too large to store, 500 for a tree without metadata.
pub fn body(server: &Server, served: &Served, value: &mut Value) -> Result<(Body, RecordMeta), Status> {
    let fields: Vec<String> = served.field_names.iter().map(|f| served.strategy.field_value(value, f)).collect();
    let Some(meta) = value.get_mut("metadata").and_then(Value::as_object_mut) else {
        return Err(Status::internal("object has no metadata"));
    };
    meta.insert("resourceVersion".into(), Value::String(String::new()));
    let labels = meta.get("labels").and_then(Value::as_object);
    let labels = Labels::new(labels.into_iter().flatten().filter_map(|(k, v)| Some((k.as_str(), v.as_str()?))));
    let record_meta = RecordMeta {
        uid: Uid::new(meta.get("uid").and_then(Value::as_str).unwrap_or("")),
        labels,
        fields: Fields::new(&served.field_names, fields.iter().map(String::as_str)),
        deleting: meta.get("deletionTimestamp").is_some_and(|v| !v.is_null()),
        expires_at_s: expiry(server, served),
    };
    let body = Body::locate(kelson_codec::canonical_json(value)).map_err(|e| match e {
        StoreError::TooLarge { limit, .. } => Status::too_large(limit),
        other => Status::internal(other),
    })?;
    Ok((body, record_meta))
}

fn is_event(served: &Served) -> bool {
    served.store.as_str() == "events"
}

fn expiry(server: &Server, served: &Served) -> u64 {
    if !is_event(served) || server.config.event_ttl.is_zero() {
        return 0;
    }
    let now_s = u64::try_from(server.clock.now().as_second()).unwrap_or(0);
    now_s + server.config.event_ttl.as_secs()
}

/// Heartbeats and events need not cost a sync each.
fn durability(served: &Served) -> Durability {
    if is_event(served) || served.store.as_str() == "coordination.k8s.io/leases" {
        Durability::Relaxed
    } else {
        Durability::Synced
    }
}

/// Why a write did not happen.
pub enum Refused {
    /// Somebody else wrote in between.
    Conflict,
    /// The name is taken.
    Exists,
    /// There is nothing there any more.
    Gone,
    /// Anything else.
    Status(Status),
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::AlreadyExists { .. } => Self::Exists,
            StoreError::Conflict { .. } | StoreError::UidMismatch { .. } => Self::Conflict,
            StoreError::NotFound => Self::Gone,
            other => Self::Status(crate::request::version_param::of_store(&other)),
        }
    }
}

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl Refused {
    /// The client's view.
    pub fn status(self, served: &Served, name: &str) -> Status {
        match self {
            Self::Conflict => Status::conflict(&served.gr, name, Status::MODIFIED),
            Self::Exists => Status::already_exists(&served.gr, name),
            Self::Gone => Status::not_found(&served.gr, name),
            Self::Status(status) => status,
        }
    }
}

/// Stores a new object.
///
/// # Errors
/// See [`Refused`].
pub async fn create(
    server: &Server,
    served: &Served,
    namespace: &str,
    name: &str,
    mut value: Value,
) -> Result<Arc<Record>, Refused> {
    let (body, meta) = body(server, served, &mut value)?;
    drop(value);
    let mut write = Write::create(Key::new(served.store, namespace, name), body, meta);
    write.durability = durability(served);
    let record = server.store.commit(write).await?.record;
    server.auth.settled(&record).await;
    Ok(record)
}

/// Replaces an object; writing what is there already is left out.
///
/// # Errors
/// See [`Refused`].
pub async fn update(
    server: &Server,
    served: &Served,
    old: &Arc<Record>,
    mut value: Value,
) -> Result<Arc<Record>, Refused> {
    let (body, meta) = body(server, served, &mut value)?;
    drop(value);
    if old.same_but_revision(&body) {
        // The same bytes at another revision than expected are a conflict all the same.
        let key = old.key();
        return match server.store.get(key.resource, &key.namespace, &key.name) {
            Some(now) if now.revision() == old.revision() => Ok(now),
            Some(_) => Err(Refused::Conflict),
            None => Err(Refused::Gone),
        };
    }
    let mut write = Write::update(old.key().clone(), old.revision(), body, meta);
    write.durability = durability(served);
    let record = server.store.commit(write).await?.record;
    server.auth.settled(&record).await;
    Ok(record)
}

/// Removes an object that is still as it was read. `last` is its last state when that differs from what is stored.
///
/// # Errors
/// See [`Refused`].
pub async fn delete(
    server: &Server,
    served: &Served,
    old: &Arc<Record>,
    last: Option<Value>,
) -> Result<Arc<Record>, Refused> {
    let mut write = Write::delete(old.key().clone(), Precondition::AtRevision(old.revision()));
    if let Some(mut value) = last {
        let (body, _) = body(server, served, &mut value)?;
        write.action = kelson_store::Action::Delete { body: Some(body) };
    }
    write.durability = durability(served);
    let record = server.store.commit(write).await?.record;
    server.auth.settled(&record).await;
    Ok(record)
}
