//! The parts of a CustomResourceDefinition that are kept decoded. Schemas, by far the largest part, are skipped; `schema` reads them
//! from the record when they are needed.
use std::collections::BTreeMap;

use kelson_meta::{Gvk, Gvr};
use serde::{Deserialize, Deserializer, Serialize};

use crate::custom::conditions::{Condition, ESTABLISHED, NAMES_ACCEPTED};

/// Annotation with the approval of a definition in a protected Kubernetes group.
pub const APPROVAL: &str = "api-approved.kubernetes.io";
/// Finalizer that keeps a deleted definition until its objects are deleted.
pub const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// A definition without its schemas.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Definition {
    pub metadata: Metadata,
    pub spec: Spec,
    pub status: DefinitionStatus,
}

/// Decodes null as an empty list: upstream stores new definitions with null lists.
fn null_is_empty<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// `metadata` of a definition.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    pub name: String,
    pub uid: String,
    pub generation: i64,
    pub annotations: BTreeMap<String, String>,
    pub deletion_timestamp: Option<String>,
    pub finalizers: Vec<String>,
}

/// `spec` of a definition.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    pub group: String,
    pub names: Names,
    pub scope: String,
    pub versions: Vec<Version>,
    pub conversion: Option<ConversionSpec>,
    pub preserve_unknown_fields: bool,
}

/// `spec.names` and `status.acceptedNames`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Names {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub list_kind: String,
    pub plural: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub short_names: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub singular: String,
}

/// One of `spec.versions`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Version {
    pub name: String,
    pub served: bool,
    pub storage: bool,
    pub deprecated: bool,
    pub deprecation_warning: Option<String>,
    pub subresources: Option<Subresources>,
    pub additional_printer_columns: Vec<PrinterColumn>,
    pub selectable_fields: Vec<SelectableField>,
}

/// `subresources` of a version.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Subresources {
    pub status: Option<serde::de::IgnoredAny>,
    pub scale: Option<Scale>,
}

/// `subresources.scale`: simple JSON paths of the counts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Scale {
    pub spec_replicas_path: String,
    pub status_replicas_path: String,
    pub label_selector_path: Option<String>,
}

/// One of `additionalPrinterColumns`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PrinterColumn {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub format: String,
    pub description: String,
    pub priority: i32,
    pub json_path: String,
}

/// One of `selectableFields`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SelectableField {
    pub json_path: String,
}

/// `spec.conversion`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConversionSpec {
    pub strategy: String,
    pub webhook: Option<WebhookConversion>,
}

/// `spec.conversion.webhook`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WebhookConversion {
    /// The `WebhookClientConfig`, undecoded.
    pub client_config: serde_json::Value,
    pub conversion_review_versions: Vec<String>,
}

/// `status` of a definition.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DefinitionStatus {
    pub accepted_names: Names,
    #[serde(deserialize_with = "null_is_empty")]
    pub conditions: Vec<Condition>,
    #[serde(deserialize_with = "null_is_empty")]
    pub stored_versions: Vec<String>,
}

impl Definition {
    /// The storage version.
    pub fn storage(&self) -> Option<&Version> {
        self.spec.versions.iter().find(|v| v.storage)
    }
    /// A version by name.
    pub fn version(&self, name: &str) -> Option<&Version> {
        self.spec.versions.iter().find(|v| v.name == name)
    }
    /// Whether objects are namespaced.
    pub fn is_namespaced(&self) -> bool {
        self.spec.scope == "Namespaced"
    }
    /// Whether the condition is true.
    pub fn has(&self, condition: &str) -> bool {
        self.status.conditions.iter().any(|c| c.kind == condition && c.status == "True")
    }
    /// Whether the definition is served. As in upstream's handler, either condition is enough.
    pub fn is_served(&self) -> bool {
        let names = &self.status.accepted_names;
        let complete = [&names.plural, &names.singular, &names.kind, &names.list_kind].iter().all(|n| !n.is_empty());
        complete && (self.has(NAMES_ACCEPTED) || self.has(ESTABLISHED))
    }
    /// Whether it is deleted and waits until its objects are deleted.
    pub fn awaits_cleanup(&self) -> bool {
        self.metadata.deletion_timestamp.is_some() && self.metadata.finalizers.iter().any(|f| f == CLEANUP_FINALIZER)
    }
    /// Group, version and plural name of a version.
    pub fn gvr(&self, version: &str) -> Gvr {
        Gvr::new(&self.spec.group, version, &self.status.accepted_names.plural)
    }
    /// Group, version and kind of a version.
    pub fn gvk(&self, version: &str) -> Gvk {
        Gvk::new(&self.spec.group, version, &self.status.accepted_names.kind)
    }
}

impl Version {
    /// Whether `status` is a subresource.
    pub fn has_status(&self) -> bool {
        self.subresources.as_ref().is_some_and(|s| s.status.is_some())
    }
    /// The paths of `scale`.
    pub fn scale(&self) -> Option<&Scale> {
        self.subresources.as_ref()?.scale.as_ref()
    }
}

/// The keys of a simple JSON path such as `.spec.replicas`.
pub fn keys(path: &str) -> Vec<String> {
    path.trim_start_matches('.').split('.').map(str::to_owned).collect()
}
