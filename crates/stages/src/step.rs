//! The writes of a stage: steps whose templates become patches, objects and events for one object.
use std::sync::Arc;

use serde_json::{Value, json};

use crate::document::{self, Event, Finalizers, Impersonation, Reference};
use crate::error::StageError;
use crate::template::{Template, Templates};

/// The patch type of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchFormat {
    /// A JSON patch (RFC 6902).
    Json,
    /// A JSON merge patch (RFC 7386).
    Merge,
    /// A strategic merge patch.
    Strategic,
    /// Server-side apply with the field manager of the stage.
    Apply,
}

/// A write for an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Record an event for the object.
    Event(Event),
    /// Send a patch for the object.
    Patch {
        /// The patch type.
        form: PatchFormat,
        /// The subresource; empty for the object itself.
        subresource: String,
        /// The body of the request.
        body: Value,
        /// The user to impersonate.
        acting_as: Option<String>,
    },
    /// Delete the object with grace period 0.
    Delete,
    /// Create another object, or patch it if it exists.
    Apply {
        /// The patch type for an existing object.
        form: PatchFormat,
        /// The subresource to patch. If it is not empty, the object must exist.
        subresource: String,
        /// The object, with its `apiVersion` and `kind`.
        object: Value,
        /// The user to impersonate.
        acting_as: Option<String>,
    },
}

#[derive(Debug)]
struct Patch {
    form: PatchFormat,
    root: String,
    subresource: String,
    template: Arc<Template>,
    acting_as: Option<String>,
}

/// A compiled step of a stage.
#[derive(Debug)]
pub struct Step {
    event: Option<Event>,
    finalizers: Option<Finalizers>,
    delete: bool,
    patch: Option<Patch>,
    apply: Option<Patch>,
}

fn user(impersonation: Option<&Impersonation>) -> Option<String> {
    impersonation.map(|i| i.username.clone()).filter(|u| !u.is_empty())
}

impl Step {
    /// Compiles a step of a stage for a kind.
    ///
    /// # Errors
    /// Fails when a template or a patch type is invalid.
    pub fn new(step: &document::StepSpec, of: &Reference, templates: &Templates) -> Result<Self, StageError> {
        let patch = |p: &document::PatchSpec| {
            // Only nodes and pods default to a strategic merge patch.
            let usual = if of.api_version == "v1" && matches!(&*of.kind, "Node" | "Pod") {
                PatchFormat::Strategic
            } else {
                PatchFormat::Merge
            };
            let form = match p.r#type.as_deref().unwrap_or_default() {
                "" => usual,
                "json" => PatchFormat::Json,
                "merge" => PatchFormat::Merge,
                "strategic" => PatchFormat::Strategic,
                other => return Err(StageError::new("patch.type", format!("unsupported value {other:?}"))),
            };
            let template = templates.compile(&p.template).map_err(|e| e.within("patch"))?;
            let acting_as = user(p.impersonation.as_ref());
            Ok(Patch { form, root: p.root.clone(), subresource: p.subresource.clone(), template, acting_as })
        };
        let apply = |a: &document::Apply| {
            let form = match a.r#type.as_deref().unwrap_or_default() {
                "" | "apply" => PatchFormat::Apply,
                "merge" => PatchFormat::Merge,
                "strategic" => PatchFormat::Strategic,
                other => return Err(StageError::new("apply.type", format!("unsupported value {other:?}"))),
            };
            let template = templates.compile(&a.template).map_err(|e| e.within("apply"))?;
            let acting_as = user(a.impersonation.as_ref());
            Ok(Patch { form, root: String::new(), subresource: a.subresource.clone(), template, acting_as })
        };
        Ok(Self {
            event: step.event.clone(),
            finalizers: step.finalizers.clone(),
            delete: step.delete,
            patch: step.patch.as_ref().map(patch).transpose()?,
            apply: step.apply.as_ref().map(apply).transpose()?,
        })
    }

    /// Returns whether the step deletes the object.
    pub fn deletes(&self) -> bool {
        self.delete
    }

    /// Returns the writes for an object in order. After a step that deletes the object (`deleted`), only events
    /// remain.
    ///
    /// # Errors
    /// Fails when a template cannot be rendered for it, or gives no YAML.
    pub fn effects(&self, object: &Value, deleted: bool) -> Result<Vec<Effect>, StageError> {
        let mut effects: Vec<Effect> = self.event.clone().map(Effect::Event).into_iter().collect();
        if deleted {
            return Ok(effects);
        }
        let changes = self.finalizers.as_ref().map(|f| finalizers(object, f)).unwrap_or_default();
        if !changes.is_empty() {
            let body = Value::Array(changes);
            effects.push(Effect::Patch { form: PatchFormat::Json, subresource: String::new(), body, acting_as: None });
        }
        if self.delete {
            effects.push(Effect::Delete);
            return Ok(effects);
        }
        if let Some(patch) = &self.patch {
            let body = rooted(&patch.root, patch.form, patch.template.render(object)?);
            let (subresource, acting_as) = (patch.subresource.clone(), patch.acting_as.clone());
            effects.push(Effect::Patch { form: patch.form, subresource, body, acting_as });
        }
        if let Some(apply) = &self.apply {
            let (subresource, acting_as) = (apply.subresource.clone(), apply.acting_as.clone());
            effects.push(Effect::Apply {
                form: apply.form,
                subresource,
                object: apply.template.render(object)?,
                acting_as,
            });
        }
        Ok(effects)
    }
}

/// Nests a body under the field that a patch names as its root.
fn rooted(root: &str, form: PatchFormat, body: Value) -> Value {
    match (root, form, body) {
        ("", _, body) => body,
        (root, PatchFormat::Json, Value::Array(mut operations)) => {
            for operation in &mut operations {
                let path = operation["path"].as_str().map(|path| format!("/{root}{path}"));
                operation["path"] = json!(path);
            }
            Value::Array(operations)
        }
        (root, _, body) => json!({root: body}),
    }
}

/// Returns a JSON patch of the finalizers. It is empty if they are already correct.
fn finalizers(object: &Value, wanted: &Finalizers) -> Vec<Value> {
    const PATH: &str = "/metadata/finalizers";
    let there: Vec<&str> =
        object["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut left = there.clone();
    if wanted.empty {
        left.clear();
    }
    left.retain(|f| !wanted.remove.iter().any(|r| r.value == *f));
    for add in &wanted.add {
        if !left.contains(&&*add.value) {
            left.push(&add.value);
        }
    }
    if left == there {
        return Vec::new();
    }
    match (there.is_empty(), left.is_empty()) {
        (true, _) => vec![json!({"op": "add", "path": PATH, "value": left})],
        // Another client may change the list concurrently. The patch then fails, and the stage is evaluated again.
        (false, true) => {
            vec![json!({"op": "test", "path": PATH, "value": there}), json!({"op": "remove", "path": PATH})]
        }
        (false, false) => {
            let test = json!({"op": "test", "path": PATH, "value": there});
            vec![test, json!({"op": "replace", "path": PATH, "value": left})]
        }
    }
}
