//! What a Stage says, as it is written (`kwok.x-k8s.io/v1alpha1`), the older ways of saying it included.
use std::collections::BTreeMap;

use kelson_meta::{ObjectMeta, null_default};
use serde::Deserialize;

/// The API group and version of stages.
pub const API_VERSION: &str = "kwok.x-k8s.io/v1alpha1";

/// A Stage (`kwok.x-k8s.io`), as files and the API have it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Document {
    /// Its name tells it from others.
    pub metadata: ObjectMeta,
    /// What it says.
    pub spec: Spec,
}

/// Which kind of object a stage is of. Stages of one kind are chosen from together.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reference {
    /// Group and version, as `apiVersion` has them.
    #[serde(default = "core", rename = "apiGroup")]
    pub api_version: String,
    /// The kind's name.
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

/// `spec` of a stage. `next` is the older form of `steps`.
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

/// Which objects are in a stage; all that is said must hold.
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

/// One requirement: an expression in CEL, or what a path gives and what it is to be; the latter also without `jq` around it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RequirementSpec {
    pub cel: Option<ExpressionSpec>,
    pub jq: Option<Comparison>,
    #[serde(flatten)]
    pub older: Comparison,
}

/// What a path of jq's language gives, and what that is to be.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Comparison {
    pub key: String,
    pub operator: String,
    #[serde(deserialize_with = "null_default")]
    pub values: Vec<String>,
}

/// An expression in the language of the field that holds it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ExpressionSpec {
    pub expression: String,
}

/// Where a value is taken from; `expressionFrom` is the older form of `jq`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct From {
    pub cel: Option<ExpressionSpec>,
    pub jq: Option<ExpressionSpec>,
    pub expression_from: String,
}

/// How long an object stays in a stage.
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

/// One step: each of its parts may be there.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StepSpec {
    pub event: Option<Event>,
    pub finalizers: Option<Finalizers>,
    pub delete: bool,
    pub patch: Option<PatchSpec>,
    pub apply: Option<Apply>,
}

/// An event that is told of the object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Event {
    pub r#type: String,
    pub reason: String,
    pub message: String,
}

/// Which finalizers come and go.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Finalizers {
    #[serde(deserialize_with = "null_default")]
    pub add: Vec<Finalizer>,
    #[serde(deserialize_with = "null_default")]
    pub remove: Vec<Finalizer>,
    pub empty: bool,
}

/// A finalizer that is added or taken away.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Finalizer {
    pub value: String,
}

/// A patch of the object itself.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PatchSpec {
    pub subresource: String,
    pub root: String,
    pub template: String,
    pub r#type: Option<String>,
    pub impersonation: Option<Impersonation>,
}

/// An object that is made, or patched where it is there.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Apply {
    pub template: String,
    pub subresource: String,
    pub r#type: Option<String>,
    pub impersonation: Option<Impersonation>,
}

/// As whom a write is made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Impersonation {
    pub username: String,
}

impl Spec {
    /// The steps, whichever form they have.
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
    /// The comparison that is asked for, if it is not an expression in CEL.
    pub fn comparison(&self) -> Option<&Comparison> {
        self.jq.as_ref().or_else(|| (!self.older.key.is_empty()).then_some(&self.older))
    }
}

impl From {
    /// The path of jq's language.
    pub fn path(&self) -> Option<&str> {
        let older = Some(self.expression_from.as_str()).filter(|e| !e.is_empty());
        self.jq.as_ref().map(|e| e.expression.as_str()).or(older)
    }
}
