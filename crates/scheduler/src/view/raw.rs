//! The wire forms of pods, with the field names of the API; they only exist while an object is decoded.
use std::collections::BTreeMap;

use kelson_meta::{LabelSelectorSpec, OwnerReference, Quantity, null_default};
use kelson_meta::{NodeSelector, NodeSelectorTerm};
use serde::Deserialize;

/// Quantities by resource.
pub type Resources = BTreeMap<String, Quantity>;

macro_rules! wire {
    ($(#[$m:meta])* $name:ident { $($(#[$f:meta])* $field:ident : $type:ty),* $(,)? }) => {
        $(#[$m])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name { $($(#[$f])* pub $field: $type),* }
    };
}

wire!(RawMeta {
    name: String,
    namespace: String,
    uid: String,
    resource_version: String,
    generation: Option<i64>,
    deletion_timestamp: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "null_default")]
    owner_references: Vec<OwnerReference>,
});

wire!(RawPod { metadata: RawMeta, spec: RawPodSpec, status: RawPodStatus });

wire!(RawPodSpec {
    node_name: Option<String>,
    scheduler_name: Option<String>,
    priority: Option<i32>,
    preemption_policy: Option<String>,
    #[serde(deserialize_with = "null_default")]
    scheduling_gates: Vec<RawGate>,
    #[serde(deserialize_with = "null_default")]
    containers: Vec<RawContainer>,
    #[serde(deserialize_with = "null_default")]
    init_containers: Vec<RawContainer>,
    overhead: Option<Resources>,
    resources: Option<RawRequirements>,
    node_selector: Option<BTreeMap<String, String>>,
    affinity: Option<RawAffinity>,
    #[serde(deserialize_with = "null_default")]
    tolerations: Vec<RawToleration>,
    #[serde(deserialize_with = "null_default")]
    topology_spread_constraints: Vec<RawSpread>,
    #[serde(deserialize_with = "null_default")]
    volumes: Vec<RawVolume>,
    #[serde(deserialize_with = "null_default")]
    resource_claims: Vec<RawResourceClaim>,
    host_network: bool,
    host_users: Option<bool>,
});

wire!(RawResourceClaim {
    name: String,
    resource_claim_name: Option<String>,
    resource_claim_template_name: Option<String>,
});
wire!(RawResourceClaimStatus { name: String, resource_claim_name: Option<String> });

wire!(RawGate { name: String });
wire!(RawRequirements { requests: Option<Resources> });
wire!(RawContainer {
    name: String,
    image: Option<String>,
    resources: Option<RawRequirements>,
    restart_policy: Option<String>,
    #[serde(deserialize_with = "null_default")]
    restart_policy_rules: Vec<RawRestartRule>,
    #[serde(deserialize_with = "null_default")]
    ports: Vec<RawPort>,
});
wire!(RawRestartRule { action: String });
wire!(RawPort {
    host_port: Option<i32>,
    #[serde(rename = "hostIP")]
    host_ip: Option<String>,
    protocol: Option<String>,
});
wire!(RawToleration {
    key: Option<String>,
    operator: Option<String>,
    value: Option<String>,
    effect: Option<String>,
});
wire!(RawAffinity {
    node_affinity: Option<RawNodeAffinity>,
    pod_affinity: Option<RawPodAffinity>,
    pod_anti_affinity: Option<RawPodAffinity>,
});
wire!(RawNodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: Option<NodeSelector>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution", deserialize_with = "null_default")]
    preferred: Vec<RawPreferred>,
});
wire!(RawPreferred { weight: i32, preference: NodeSelectorTerm });
wire!(RawPodAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution", deserialize_with = "null_default")]
    required: Vec<RawPodTerm>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution", deserialize_with = "null_default")]
    preferred: Vec<RawWeightedTerm>,
});
wire!(RawWeightedTerm { weight: i32, pod_affinity_term: RawPodTerm });
wire!(RawPodTerm {
    label_selector: Option<LabelSelectorSpec>,
    #[serde(deserialize_with = "null_default")]
    namespaces: Vec<String>,
    namespace_selector: Option<LabelSelectorSpec>,
    topology_key: String,
    #[serde(deserialize_with = "null_default")]
    match_label_keys: Vec<String>,
    #[serde(deserialize_with = "null_default")]
    mismatch_label_keys: Vec<String>,
});
wire!(RawSpread {
    max_skew: i32,
    topology_key: String,
    when_unsatisfiable: String,
    label_selector: Option<LabelSelectorSpec>,
    min_domains: Option<i32>,
    node_affinity_policy: Option<String>,
    node_taints_policy: Option<String>,
    #[serde(deserialize_with = "null_default")]
    match_label_keys: Vec<String>,
});
wire!(RawVolume {
    name: String,
    persistent_volume_claim: Option<RawClaimSource>,
    ephemeral: Option<serde::de::IgnoredAny>,
    image: Option<RawImageSource>,
});
wire!(RawClaimSource { claim_name: String });
wire!(RawImageSource { reference: Option<String> });

wire!(RawPodStatus {
    phase: Option<String>,
    start_time: Option<String>,
    nominated_node_name: Option<String>,
    #[serde(deserialize_with = "null_default")]
    conditions: Vec<RawCondition>,
    #[serde(deserialize_with = "null_default")]
    container_statuses: Vec<RawContainerStatus>,
    #[serde(deserialize_with = "null_default")]
    init_container_statuses: Vec<RawContainerStatus>,
    #[serde(deserialize_with = "null_default")]
    resource_claim_statuses: Vec<RawResourceClaimStatus>,
});
wire!(RawContainerStatus {
    name: String,
    allocated_resources: Option<Resources>,
    resources: Option<RawRequirements>,
});
wire!(RawCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: Option<String>,
    message: Option<String>,
    observed_generation: Option<i64>,
});
