//! What a stage does: events, patches, deletes, and other objects.
use std::sync::Arc;

use http::Method;
use kelson_client::{Client, ClientError, DeleteOptions, EventRecorder, EventType, ObjectRef, PatchKind, WriteOptions};
use kelson_stages::{Effect, PatchFormat, Reference};
use serde_json::{Value, json};

use super::kinds::{Kind, Kinds};

/// The field manager of applied fields.
const MANAGER: &str = "kwok";

/// Applies the effects of stages.
pub struct Writer {
    /// The client of this process.
    pub client: Client,
    /// Records events about objects.
    pub events: EventRecorder,
    /// The resources of other kinds.
    pub kinds: Arc<Kinds>,
}

fn patch_kind(form: PatchFormat) -> PatchKind {
    match form {
        PatchFormat::Json => PatchKind::Json,
        PatchFormat::Merge => PatchKind::Merge,
        PatchFormat::Strategic => PatchKind::Strategic,
        PatchFormat::Apply => PatchKind::Apply,
    }
}

fn options(form: PatchFormat) -> WriteOptions {
    if form == PatchFormat::Apply {
        return WriteOptions { field_manager: MANAGER.to_owned(), force: true };
    }
    WriteOptions::default()
}

/// A member of an object's metadata.
pub fn meta<'a>(object: &'a Value, member: &str) -> &'a str {
    object["metadata"][member].as_str().unwrap_or_default()
}

impl Writer {
    fn acting(&self, user: Option<&String>) -> Result<Client, ClientError> {
        user.map_or_else(|| Ok(self.client.clone()), |user| self.client.acting_as(user))
    }

    /// Applies one effect to an object; returns the object after the write, if there was one.
    ///
    /// # Errors
    /// The errors of the server, or a body that is not an object.
    pub async fn carry_out(&self, kind: &Kind, object: &Value, effect: Effect) -> Result<Option<Value>, ClientError> {
        let (namespace, name) = (meta(object, "namespace"), meta(object, "name"));
        match effect {
            Effect::Event(event) => {
                let about = ObjectRef {
                    api_version: kind.of.api_version.clone(),
                    kind: kind.of.kind.clone(),
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                    uid: meta(object, "uid").to_owned(),
                    ..ObjectRef::default()
                };
                let severity = if event.r#type == "Warning" { EventType::Warning } else { EventType::Normal };
                self.events.event(&about, severity, &event.reason, event.message);
                Ok(None)
            }
            Effect::Patch { form, subresource, mut body, acting_as } => {
                if form != PatchFormat::Json {
                    // Never a namesake that came later.
                    body["metadata"]["uid"] = json!(meta(object, "uid"));
                }
                let path = kind.object(namespace, name, &subresource);
                let client = self.acting(acting_as.as_ref())?;
                client.patch_at(&path, patch_kind(form), &body, &options(form)).await.map(Some)
            }
            Effect::Delete => {
                let options = DeleteOptions::default().with_grace(0).with_uid(meta(object, "uid"));
                let body = serde_json::to_vec(&options).map_err(|e| ClientError::Request(e.to_string()))?;
                let path = kind.object(namespace, name, "");
                self.client.call(Method::DELETE, &path, "application/json", body.into()).await?;
                Ok(None)
            }
            Effect::Apply { form, subresource, object: other, acting_as } => {
                let client = self.acting(acting_as.as_ref())?;
                self.apply(&client, form, &subresource, other, namespace).await?;
                Ok(None)
            }
        }
    }

    /// Makes another object, or patches it where it is there.
    async fn apply(
        &self,
        client: &Client,
        form: PatchFormat,
        subresource: &str,
        mut object: Value,
        namespace: &str,
    ) -> Result<(), ClientError> {
        let text = |member: &str| object[member].as_str().unwrap_or_default().to_owned();
        let of = Reference { api_version: text("apiVersion"), kind: text("kind") };
        let unknown = || ClientError::Request(format!("kind {:?} of {:?} is not served", of.kind, of.api_version));
        let kind = self.kinds.find(&of).await?.ok_or_else(unknown)?;
        if kind.namespaced && meta(&object, "namespace").is_empty() {
            object["metadata"]["namespace"] = json!(namespace);
        }
        let (namespace, name) = (meta(&object, "namespace").to_owned(), meta(&object, "name").to_owned());
        if subresource.is_empty() {
            let body = serde_json::to_vec(&object).map_err(|e| ClientError::Request(e.to_string()))?;
            match client.call(Method::POST, &kind.path(&namespace), "application/json", body.into()).await {
                Err(e) if e.is_already_exists() => {}
                other => return other.map(drop),
            }
        }
        let path = kind.object(&namespace, &name, subresource);
        client.patch_at::<Value>(&path, patch_kind(form), &object, &options(form)).await.map(drop)
    }
}
