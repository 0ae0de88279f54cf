//! Conversion between versions of a custom resource: only the version changes (`None`), or a webhook converts with a
//! `ConversionReview`,
//! many objects in one call. Upstream: `apiserver/conversion`.
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use kelson_meta::{Gvk, Reason, Status};
use kelson_store::Record;
use kelson_structural::object::go_type;
use kelson_traces::KeyValue;
use serde_json::{Value, json};

use crate::catalog::Converter;
use crate::custom::definition::{Definition, WebhookConversion};
use crate::custom::forms::Forms;
use crate::custom::schema::Schemas;

/// Calls a webhook: `config` is a `WebhookClientConfig`, `review` the body. The error is a message.
pub trait CallWebhook: Send + Sync {
    /// Returns the body of the response.
    fn call<'a>(&'a self, config: &'a Value, review: Value) -> BoxFuture<'a, Result<Value, String>>;
}

/// Converts the objects of one definition.
pub struct Conversions {
    group: String,
    storage: String,
    versions: Vec<String>,
    webhook: Option<WebhookConversion>,
    caller: Option<Arc<dyn CallWebhook>>,
    schemas: Arc<Schemas>,
    forms: Forms,
}

impl Conversions {
    /// The conversions that a definition specifies.
    pub fn new(definition: &Definition, schemas: &Arc<Schemas>, caller: Option<Arc<dyn CallWebhook>>) -> Self {
        let conversion = definition.spec.conversion.as_ref().filter(|c| c.strategy == "Webhook");
        let webhook = conversion.and_then(|c| c.webhook.clone());
        Self {
            group: definition.spec.group.clone(),
            storage: definition.storage().map(|v| v.name.clone()).unwrap_or_default(),
            versions: definition.spec.versions.iter().map(|v| v.name.clone()).collect(),
            // Without a webhook, keep neither connections nor the server that they belong to.
            caller: caller.filter(|_| webhook.is_some()),
            webhook,
            schemas: Arc::clone(schemas),
            forms: Forms::default(),
        }
    }

    fn version_of<'a>(&self, object: &'a Value) -> Option<&'a str> {
        let (group, version) = object["apiVersion"].as_str()?.split_once('/')?;
        (group == self.group && self.versions.iter().any(|v| v == version)).then_some(version)
    }

    /// Converts objects to one version. The order stays.
    async fn convert(&self, version: &str, mut objects: Vec<Value>) -> Result<Vec<Value>, Status> {
        let wanted = format!("{}/{version}", self.group);
        let mut places = Vec::new();
        for (i, object) in objects.iter().enumerate() {
            if object["apiVersion"].as_str() == Some(&wanted) {
                continue;
            }
            if self.version_of(object).is_none() {
                let from = &object["apiVersion"];
                let why =
                    format!("request to convert CR from an invalid group/version: {}", from.as_str().unwrap_or(""));
                return Err(conversion_failed(why));
            }
            places.push(i);
        }
        let Some(webhook) = &self.webhook else {
            places.iter().for_each(|i| objects[*i]["apiVersion"] = wanted.as_str().into());
            return Ok(objects);
        };
        if places.is_empty() {
            return Ok(objects);
        }
        let originals: Vec<Value> = places.iter().map(|i| objects[*i].take()).collect();
        let kind = originals.first().map(gvk_text).unwrap_or_default();
        let failed = |why: String| conversion_failed(format!("conversion webhook for {kind} {why}"));
        let converted = ask(self.caller.as_deref(), webhook, &wanted, &originals).await.map_err(&failed)?;
        for ((i, original), (index, mut new)) in places.iter().zip(originals).zip(converted.into_iter().enumerate()) {
            check(&original, &new, &wanted)
                .and_then(|()| restore_metadata(&original, &mut new))
                .map_err(|why| failed(format!("returned invalid converted object at index {index}: {why}")))?;
            objects[*i] = new;
        }
        Ok(objects)
    }

    async fn served_in(&self, version: &str, objects: Vec<Value>) -> Result<Vec<Value>, Status> {
        let mut objects = objects;
        let mut moved = Vec::with_capacity(objects.len());
        for object in &mut objects {
            let from = self.version_of(object).map(str::to_owned);
            moved.push(from.as_deref() != Some(version));
            if let Some(from) = from {
                self.schemas.prune_and_default(&from, object);
            }
        }
        if !moved.contains(&true) {
            return Ok(objects);
        }
        let mut objects = self.convert(version, objects).await?;
        for (object, _) in objects.iter_mut().zip(moved).filter(|(_, moved)| *moved) {
            self.schemas.prune(version, object);
        }
        Ok(objects)
    }
}

impl Converter for Conversions {
    fn served<'a>(&'a self, to: &'a Gvk, objects: Vec<Value>) -> BoxFuture<'a, Result<Vec<Value>, Status>> {
        Box::pin(self.served_in(&to.version, objects))
    }
    fn stored<'a>(&'a self, object: Value) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(async move {
            let moved = self.version_of(&object) != Some(&self.storage);
            let mut stored = self.convert(&self.storage, vec![object]).await?.pop().unwrap_or_default();
            if moved {
                self.schemas.prune(&self.storage, &mut stored);
            }
            Ok(stored)
        })
    }
    fn forms<'a>(&'a self, to: &'a Gvk, records: &'a [Arc<Record>]) -> BoxFuture<'a, Result<Vec<Bytes>, Status>> {
        Box::pin(async move {
            let Some((id, oldest)) = self.schemas.form_of(&to.version) else {
                return Err(Status::internal(format!("{to} has no schema")));
            };
            self.forms.of((id, oldest), records, |objects| self.served_in(&to.version, objects)).await
        })
    }
    fn is_plain(&self, to: &Gvk, record: &Record) -> bool {
        self.is_in(to, record) && self.schemas.is_complete(&to.version, record)
    }
    fn is_in(&self, to: &Gvk, record: &Record) -> bool {
        // Records are canonical JSON, so that only a field in capitals could come before the version.
        let head = [b"{\"apiVersion\":\"", to.group.as_bytes(), b"/", to.version.as_bytes(), b"\""];
        record.begins_with(&head)
    }
    fn mark(&self, stored: &Value) -> u32 {
        self.version_of(stored).map_or(0, |version| self.schemas.mark_of(version, stored))
    }
}

fn gvk_text(object: &Value) -> String {
    let text = |k: &str| object[k].as_str().unwrap_or("");
    format!("{}, Kind={}", text("apiVersion"), text("kind"))
}

/// Calls the webhook and returns the converted objects, as many as were sent.
async fn ask(
    caller: Option<&dyn CallWebhook>,
    webhook: &WebhookConversion,
    wanted: &str,
    objects: &[Value],
) -> Result<Vec<Value>, String> {
    let known = webhook.conversion_review_versions.iter().find(|v| matches!(v.as_str(), "v1" | "v1beta1"));
    let version = known.ok_or("failed: no supported conversion review versions")?;
    let api_version = format!("apiextensions.k8s.io/{version}");
    let uid = uuid::Uuid::new_v4().to_string();
    let review = json!({
        "kind": "ConversionReview",
        "apiVersion": api_version,
        "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": objects},
    });
    let caller = caller.ok_or("failed: this server does not call webhooks")?;
    let span = kelson_traces::child("Call conversion webhook", || {
        let count = KeyValue::number("object-count", objects.len());
        vec![KeyValue::text("UID", uid.as_str()), KeyValue::text("desired-api-version", wanted), count]
    });
    let answer = span.scope(caller.call(&webhook.client_config, review)).await;
    drop(span);
    let answer = answer.map_err(|why| format!("failed: {why}"))?;
    let mut objects_back =
        converted(answer, &api_version, &uid, version == "v1").map_err(|why| format!("failed: {why}"))?;
    if objects_back.len() != objects.len() {
        return Err(format!("returned {} objects, expected {}", objects_back.len(), objects.len()));
    }
    Ok(std::mem::take(&mut objects_back))
}

/// The objects in a response. Kind and uid are checked only in `v1`.
fn converted(mut answer: Value, api_version: &str, uid: &str, strict: bool) -> Result<Vec<Value>, String> {
    let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
    if strict && (text(&answer["apiVersion"]) != api_version || text(&answer["kind"]) != "ConversionReview") {
        return Err(format!(
            "expected webhook response of {api_version}, Kind=ConversionReview, got {}",
            gvk_text(&answer)
        ));
    }
    let response = &mut answer["response"];
    if !response.is_object() {
        return Err("no response provided".to_owned());
    }
    if strict && text(&response["uid"]) != uid {
        return Err(format!("expected response.uid={uid:?}, got {:?}", text(&response["uid"])));
    }
    let status = text(&response["result"]["status"]);
    if status != "Success" {
        let message = text(&response["result"]["message"]);
        let unexplained = format!("response.result.status was '{status}', not 'Success'");
        return Err(if message.is_empty() { unexplained } else { message });
    }
    match response["convertedObjects"].take() {
        Value::Array(objects) => Ok(objects),
        _ => Ok(Vec::new()),
    }
}

/// Checks that a converted object is still the one that was sent.
fn check(original: &Value, new: &Value, wanted: &str) -> Result<(), String> {
    let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
    let got = text(&new["apiVersion"]);
    if got != wanted {
        return Err(format!("invalid groupVersion (expected {wanted}, received {got})"));
    }
    let (expected, got) = (text(&original["kind"]), text(&new["kind"]));
    if expected != got {
        return Err(format!("invalid kind (expected {expected}, received {got})"));
    }
    for (field, name) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let (expected, got) = (text(&original["metadata"][field]), text(&new["metadata"][field]));
        if expected != got {
            return Err(format!("must have the same {name}: {expected} != {got}"));
        }
    }
    Ok(())
}

/// Restores the metadata except labels and annotations, which the webhook may change.
fn restore_metadata(original: &Value, new: &mut Value) -> Result<(), String> {
    let Some(Value::Object(given)) = new.get_mut("metadata").map(Value::take) else {
        return Err("missing metadata in converted object".to_owned());
    };
    let mut metadata = original["metadata"].clone();
    if !metadata.is_object() {
        metadata = json!({});
    }
    for field in ["labels", "annotations"] {
        let Some(place) = metadata.as_object_mut() else { continue };
        let texts = match given.get(field) {
            None | Some(Value::Null) => {
                place.remove(field);
                continue;
            }
            Some(Value::Object(texts)) => texts,
            Some(v) => return Err(format!("invalid metadata.{field} of type {} in converted object", go_type(v))),
        };
        if let Some((key, v)) = texts.iter().find(|(_, v)| !v.is_string()) {
            return Err(format!("metadata.{field}[{key}] must be a string, but is {} in converted object", go_type(v)));
        }
        let wanted = Value::Object(texts.clone());
        if place.get(field) != Some(&wanted) {
            let mut errors = kelson_resources::Errors::new();
            let root = kelson_resources::Path::new("metadata");
            match field {
                "labels" => kelson_resources::metadata::labels(&wanted, &root.child("labels"), &mut errors),
                _ => kelson_resources::metadata::annotations(&wanted, &root.child("annotation"), &mut errors),
            }
            if let Some(error) = errors.finish().0.first() {
                return Err(error.to_string());
            }
        }
        place.insert(field.to_owned(), wanted);
    }
    new["metadata"] = metadata;
    Ok(())
}

/// The error for a failed conversion. As in upstream it has no reason.
fn conversion_failed(why: String) -> Status {
    Status::failure(500, Reason::Unknown, why)
}
