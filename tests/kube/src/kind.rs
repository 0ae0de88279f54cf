//! The kind, as a user of the derive macro declares one.
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
    /// Which.
    pub flower: String,
    /// How many.
    #[schemars(range(min = 1))]
    pub count: i32,
    /// What they are wrapped in.
    #[serde(default = "paper", skip_serializing_if = "Option::is_none")]
    pub wrap: Option<String>,
}

fn paper() -> Option<String> {
    Some("paper".to_owned())
}

/// What was made of it.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct BunchStatus {
    /// How many lie in the vase.
    pub made: i32,
}
