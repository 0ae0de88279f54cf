//! The document of a Stage (`kwok.x-k8s.io/v1alpha1`), including deprecated fields.
use std::collections::BTreeMap;

use kelson_meta::{ObjectMeta, null_default};
use serde::Deserialize;

/// The API group and version of stages.
pub const API_VERSION: &str = "kwok.x-k8s.io/v1alpha1";

/// A Stage (`kwok.x-k8s.io`) as it is written in files and in the API. A stage describes one step in the simulated
/// life of an object: a selector for the objects that are in the stage, a delay, and the writes that follow the delay.
/// `Stage` is its compiled form.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Document {
    /// The metadata. The name identifies the stage.
    pub metadata: ObjectMeta,
    /// The selector, the delay and the steps.
    pub spec: Spec,
}

/// The kind of object that a stage applies to. Stages of one kind compete for an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reference {
    /// The group and version, as in `apiVersion`.
    #[serde(default = "core", rename = "apiGroup")]
    pub api_version: String,
    /// The name of the kind.
    #[serde(default)]
    pub kind: String,
}

fn core() -> String {
    "v1".to_owned()
}

impl Default for Reference {
    fn default() -> Self {
        Self { api_version: core(), kind: String::new() }
    }
}

/// The `spec` of a stage. `next` is the older form of `steps`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    pub resource_ref: Reference,
    pub selector: Option<SelectorSpec>,
    pub weight: i64,
    pub weight_from: Option<From>,
    pub delay: Option<Delay>,
    pub next: Option<Next>,
    pub immediate_next_stage: Option<bool>,
    #[serde(deserialize_with = "null_default")]
    pub steps: Vec<StepSpec>,
}

/// Selects the objects that are in a stage. All requirements must match.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SelectorSpec {
    #[serde(deserialize_with = "null_default")]
    pub match_labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_default")]
    pub match_annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_default")]
    pub match_expressions: Vec<RequirementSpec>,
}

/// One requirement: a CEL expression, or a comparison of the value at a path. The comparison is also accepted without
/// the `jq` field around it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RequirementSpec {
    pub cel: Option<ExpressionSpec>,
    pub jq: Option<Comparison>,
    #[serde(flatten)]
    pub older: Comparison,
}

/// Compares the result of a jq path with values.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Comparison {
    pub key: String,
    pub operator: String,
    #[serde(deserialize_with = "null_default")]
    pub values: Vec<String>,
}

/// An expression in the language that the field's name says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ExpressionSpec {
    pub expression: String,
}

/// The source of a value. `expressionFrom` is the older form of `jq`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct From {
    pub cel: Option<ExpressionSpec>,
    pub jq: Option<ExpressionSpec>,
    pub expression_from: String,
}

/// The delay before the steps of a stage run.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Delay {
    pub duration_milliseconds: Option<i64>,
    pub duration_from: Option<From>,
    pub jitter_duration_milliseconds: Option<i64>,
    pub jitter_duration_from: Option<From>,
}

/// The older form of steps.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Next {
    pub event: Option<Event>,
    pub finalizers: Option<Finalizers>,
    pub delete: bool,
    #[serde(deserialize_with = "null_default")]
    pub patches: Vec<PatchSpec>,
    pub status_template: String,
    pub status_subresource: Option<String>,
    pub status_patch_as: Option<Impersonation>,
}

/// One step. Each part is optional.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StepSpec {
    pub event: Option<Event>,
    pub finalizers: Option<Finalizers>,
    pub delete: bool,
    pub patch: Option<PatchSpec>,
    pub apply: Option<Apply>,
}

/// An event to record for the object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Event {
    pub r#type: String,
    pub reason: String,
    pub message: String,
}

/// The finalizers to add and to remove.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Finalizers {
    #[serde(deserialize_with = "null_default")]
    pub add: Vec<Finalizer>,
    #[serde(deserialize_with = "null_default")]
    pub remove: Vec<Finalizer>,
    pub empty: bool,
}

/// The name of a finalizer to add or to remove.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Finalizer {
    pub value: String,
}

/// A patch of the object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PatchSpec {
    pub subresource: String,
    pub root: String,
    pub template: String,
    pub r#type: Option<String>,
    pub impersonation: Option<Impersonation>,
}

/// An object to create, or to patch if it exists.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Apply {
    pub template: String,
    pub subresource: String,
    pub r#type: Option<String>,
    pub impersonation: Option<Impersonation>,
}

/// The user that a write impersonates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Impersonation {
    pub username: String,
}

impl Spec {
    /// Returns the steps, from either form.
    pub fn all_steps(&self) -> Vec<StepSpec> {
        let Some(next) = self.next.as_ref().filter(|_| self.steps.is_empty()) else { return self.steps.clone() };
        let mut steps = Vec::new();
        steps.extend(next.event.clone().map(|e| StepSpec { event: Some(e), ..StepSpec::default() }));
        steps.extend(next.finalizers.clone().map(|f| StepSpec { finalizers: Some(f), ..StepSpec::default() }));
        let mut patches = next.patches.clone();
        if patches.is_empty() && !next.status_template.is_empty() {
            patches.push(PatchSpec {
                subresource: next.status_subresource.clone().unwrap_or_else(|| "status".to_owned()),
                root: "status".to_owned(),
                template: next.status_template.clone(),
                r#type: None,
                impersonation: next.status_patch_as.clone(),
            });
        }
        steps.extend(patches.into_iter().map(|p| StepSpec { patch: Some(p), ..StepSpec::default() }));
        if next.delete {
            steps.push(StepSpec { delete: true, ..StepSpec::default() });
        }
        steps
    }
}

impl RequirementSpec {
    /// Returns the comparison, if the requirement is not a CEL expression.
    pub fn comparison(&self) -> Option<&Comparison> {
        self.jq.as_ref().or_else(|| (!self.older.key.is_empty()).then_some(&self.older))
    }
}

impl From {
    /// Returns the jq path, from either form.
    pub fn path(&self) -> Option<&str> {
        let older = Some(self.expression_from.as_str()).filter(|e| !e.is_empty());
        self.jq.as_ref().map(|e| e.expression.as_str()).or(older)
    }
}
