//! What a hollow node reads of a pod. There may be many pods, so what their templates say is kept once.
use std::collections::BTreeMap;

use jiff::Timestamp;
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{Interned, ObjectMeta, intern_table, null_default};
use serde::{Deserialize, Deserializer, Serialize};

/// The identity of a pod; the rest of its metadata is not kept.
fn identity<'de, D: Deserializer<'de>>(d: D) -> Result<ObjectMeta, D::Error> {
    let meta = ObjectMeta::deserialize(d)?;
    Ok(ObjectMeta {
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        resource_version: meta.resource_version,
        deletion_timestamp: meta.deletion_timestamp,
        deletion_grace_period_seconds: meta.deletion_grace_period_seconds,
        ..ObjectMeta::default()
    })
}

/// `core/v1` Pod.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    #[serde(deserialize_with = "identity")]
    pub metadata: ObjectMeta,
    pub spec: Spec,
    pub status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    pub node_name: Box<str>,
    pub restart_policy: Box<str>,
    pub host_network: bool,
    pub containers: Interned<Containers>,
    pub init_containers: Interned<Containers>,
}

/// Containers of a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(transparent)]
pub struct Containers(pub Vec<Container>);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    pub name: String,
    pub image: String,
    #[serde(deserialize_with = "null_default")]
    pub restart_policy: String,
    /// As the spec has it: requests, limits and claims.
    #[serde(deserialize_with = "null_default")]
    pub resources: Resources,
}

/// `v1.ResourceRequirements`, as far as a resize in place may change it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_default")]
    pub limits: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_default")]
    pub requests: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    pub phase: Box<str>,
    pub start_time: Option<Timestamp>,
    #[serde(rename = "podIP")]
    pub pod_ip: Box<str>,
    /// The container statuses that were last reported.
    pub container_statuses: Interned<ContainerStatuses>,
}

/// Statuses of the containers of a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(transparent)]
pub struct ContainerStatuses(pub Vec<ContainerStatus>);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct ContainerStatus {
    pub name: String,
    #[serde(deserialize_with = "null_default")]
    pub resources: Resources,
}

impl Pod {
    /// Succeeded or failed.
    pub fn has_ended(&self) -> bool {
        matches!(&*self.status.phase, "Succeeded" | "Failed")
    }

    /// Whether a container is to have other resources than it was said to have (KEP-1287).
    pub fn is_resized(&self) -> bool {
        let said = |c: &Container| self.status.container_statuses.0.iter().find(|s| s.name == c.name);
        self.spec.containers.0.iter().any(|c| said(c).is_some_and(|s| s.resources != c.resources))
    }

    /// Whether its containers are to end by themselves.
    pub fn ends(&self) -> bool {
        &*self.spec.restart_policy != "Always"
    }
}

intern_table!(Containers);
intern_table!(ContainerStatuses);
slim_object!(Pod, ResourceType::namespaced("", "v1", "pods", "Pod"));
