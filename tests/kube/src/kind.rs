//! The kind, declared with the derive macro.
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Some flowers.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "kube.example.com",
    version = "v1",
    kind = "Bunch",
    plural = "bunches",
    namespaced,
    status = "BunchStatus"
)]
#[kube(shortname = "bu", printcolumn = r#"{"name":"Flower","type":"string","jsonPath":".spec.flower"}"#)]
#[serde(rename_all = "camelCase")]
pub struct BunchSpec {
    /// The flower.
    pub flower: String,
    /// The number of flowers.
    #[schemars(range(min = 1))]
    pub count: i32,
    /// The wrapping.
    #[serde(default = "paper", skip_serializing_if = "Option::is_none")]
    pub wrap: Option<String>,
}

fn paper() -> Option<String> {
    Some("paper".to_owned())
}

/// The status of a bunch.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct BunchStatus {
    /// The number of flowers in the vase.
    pub made: i32,
}
