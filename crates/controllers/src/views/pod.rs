//! `core/v1` Pod.
use std::collections::BTreeMap;

use jiff::Timestamp;
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{Interned, ObjectMeta, intern_table, null_default};
use kelson_meta::{NodeSelector, ObjectKey};
use serde::{Deserialize, Deserializer};

use super::device_claim::{MadeDeviceClaim, PodDeviceClaim, boxed, extended_claim};
use super::index::{IndexKey, Indexed, index_owned};

/// The annotations of pods that controllers read; the others are not kept.
const POD_ANNOTATIONS: &[&str] = &[
    "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/job-index-failure-count",
    "batch.kubernetes.io/job-index-ignored-failure-count",
    "controller.kubernetes.io/pod-deletion-cost",
];

fn pod_meta<'de, D: Deserializer<'de>>(d: D) -> Result<ObjectMeta, D::Error> {
    let mut meta = ObjectMeta::deserialize(d)?;
    meta.annotations.retain(|k, _| POD_ANNOTATIONS.contains(&k.as_str()));
    Ok(meta)
}

fn pinned_node<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Box<str>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Affinity {
        node_affinity: Option<NodeAffinity>,
    }
    #[derive(Deserialize)]
    struct NodeAffinity {
        #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
        required: Option<NodeSelector>,
    }
    let required = Option::<Affinity>::deserialize(d)?.and_then(|a| a.node_affinity).and_then(|n| n.required);
    let named = required.as_ref().and_then(NodeSelector::named_node);
    Ok(named.map(Box::from))
}

/// `core/v1` Pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodView {
    /// Metadata, with few annotations.
    #[serde(deserialize_with = "pod_meta")]
    pub metadata: ObjectMeta,
    pub spec: PodSpecView,
    pub status: PodStatusView,
}

/// The part of a pod's spec that is read. Fields that are equal for all pods of a template are shared.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpecView {
    /// The name of the node to which the pod is bound.
    pub node_name: String,
    /// The node in the affinity of a daemon pod, to which it will be bound.
    #[serde(rename = "affinity", deserialize_with = "pinned_node")]
    pub pinned_node: Option<Box<str>>,
    /// Host name within its subdomain.
    pub hostname: String,
    /// Headless service it belongs to.
    pub subdomain: String,
    /// Containers, for their ports.
    pub containers: Interned<Containers>,
    /// Init containers. Those that always restart are sidecars and may have ports, too.
    pub init_containers: Interned<Containers>,
    pub tolerations: Interned<Tolerations>,
    /// The pod-level resource requests.
    pub resources: Option<Box<ResourcesView>>,
    /// The volumes that are claims.
    #[serde(rename = "volumes", deserialize_with = "claim_volumes")]
    pub claims: Box<[ClaimVolume]>,
    /// Its claims for devices.
    #[serde(rename = "resourceClaims", deserialize_with = "boxed")]
    pub device_claims: Box<[PodDeviceClaim]>,
}

impl PodSpecView {
    /// Whether the pod has claims for devices, in its spec or created for extended resources.
    pub fn uses_devices(&self, status: &PodStatusView) -> bool {
        !self.device_claims.is_empty() || status.extended_resource_claim.is_some()
    }
}

/// A volume of a pod that is a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimVolume {
    /// The volume's name.
    pub volume: Box<str>,
    /// The claim's name, or `None` for a generic ephemeral volume.
    pub claim: Option<Box<str>>,
}

impl ClaimVolume {
    /// Returns the name of the claim, which is derived from the pod's name for a generic ephemeral volume.
    pub fn claim_name(&self, pod: &str) -> String {
        self.claim.as_ref().map_or_else(|| format!("{pod}-{}", self.volume), |c| c.to_string())
    }
}

fn claim_volumes<'de, D: Deserializer<'de>>(d: D) -> Result<Box<[ClaimVolume]>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct VolumeForm {
        name: Box<str>,
        persistent_volume_claim: Option<SourceForm>,
        ephemeral: Option<serde::de::IgnoredAny>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct SourceForm {
        claim_name: Box<str>,
    }
    let all = Option::<Vec<VolumeForm>>::deserialize(d)?.unwrap_or_default();
    let claim = |v: VolumeForm| match (v.persistent_volume_claim, v.ephemeral) {
        (Some(c), _) => Some(ClaimVolume { volume: v.name, claim: Some(c.claim_name) }),
        (None, Some(_)) => Some(ClaimVolume { volume: v.name, claim: None }),
        (None, None) => None,
    };
    Ok(all.into_iter().filter_map(claim).collect())
}

macro_rules! lists {
    ($($(#[$m:meta])* $name:ident of $item:ty),+ $(,)?) => {$(
        $(#[$m])*
        #[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Hash)]
        #[serde(transparent)]
        pub struct $name(pub Vec<$item>);
        impl std::ops::Deref for $name {
            type Target = [$item];
            fn deref(&self) -> &[$item] {
                &self.0
            }
        }
    )+};
}
lists! {
    /// Containers, shared by all pods with equal ones.
    Containers of ContainerView,
    /// Tolerations, shared by all pods with equal ones.
    Tolerations of Toleration,
}

/// The part of a container that is read.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerView {
    pub name: String,
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<ContainerPortView>,
    /// `Always` for a sidecar.
    pub restart_policy: String,
    /// The resource requests.
    #[serde(deserialize_with = "null_default")]
    pub resources: ResourcesView,
}

/// The part of `v1.ResourceRequirements` that is read.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Hash)]
#[serde(default)]
pub struct ResourcesView {
    /// Requests, by resource.
    #[serde(deserialize_with = "null_default")]
    pub requests: BTreeMap<String, String>,
}

/// A container's port.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPortView {
    pub name: String,
    pub container_port: i32,
    /// Port of the node; 0 if there is none.
    pub host_port: i32,
    /// Protocol; empty is TCP.
    pub protocol: String,
}

/// `v1.Toleration`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    /// Taint key; empty with `Exists`: all.
    pub key: String,
    /// `Equal` (default) or `Exists`.
    pub operator: String,
    /// Value for `Equal`.
    pub value: String,
    /// Effect; empty: all.
    pub effect: String,
    /// The seconds for which a `NoExecute` taint is tolerated. Absent means without limit.
    pub toleration_seconds: Option<i64>,
}

/// The part of a pod's status that is read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatusView {
    pub phase: Interned<String>,
    /// When the kubelet first saw the pod.
    pub start_time: Option<Timestamp>,
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    /// Addresses of all families.
    #[serde(rename = "podIPs")]
    #[serde(deserialize_with = "null_default")]
    pub pod_ips: Vec<PodIp>,
    /// Reason, e.g. `NodeLost`.
    pub reason: String,
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<PodConditionView>,
    /// Statuses of containers, for restart counts and terminations.
    #[serde(deserialize_with = "null_default")]
    pub container_statuses: Vec<ContainerStatusView>,
    /// Statuses of init containers.
    #[serde(deserialize_with = "null_default")]
    pub init_container_statuses: Vec<ContainerStatusView>,
    /// Names of the claims for devices that were created from templates.
    #[serde(rename = "resourceClaimStatuses", deserialize_with = "boxed")]
    pub device_claims: Box<[MadeDeviceClaim]>,
    /// The claim that the scheduler created for extended resources (KEP-5004).
    #[serde(rename = "extendedResourceClaimStatus", deserialize_with = "extended_claim")]
    pub extended_resource_claim: Option<Box<str>>,
}

/// One address of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodIp {
    pub ip: String,
}

/// A pod's condition.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "PodConditionForm")]
pub struct PodConditionView {
    pub r#type: Interned<String>,
    /// `True`, `False`, `Unknown`.
    pub status: Interned<String>,
    /// When the status changed.
    pub last_transition_time: Option<Timestamp>,
    /// The reason; kept only for conditions about disruptions.
    pub reason: Option<Box<str>>,
}

/// A pod's condition in the API's form.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodConditionForm {
    r#type: Interned<String>,
    status: Interned<String>,
    last_transition_time: Option<Timestamp>,
    reason: Option<Box<str>>,
}

impl From<PodConditionForm> for PodConditionView {
    fn from(form: PodConditionForm) -> Self {
        let PodConditionForm { r#type, status, last_transition_time, reason } = form;
        let reason = reason.filter(|_| r#type == "DisruptionTarget");
        Self { r#type, status, last_transition_time, reason }
    }
}

/// A container's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "ContainerStatusForm")]
pub struct ContainerStatusView {
    /// The number of restarts.
    pub restart_count: i32,
    /// The termination, if the container has terminated. Boxed, since most containers run.
    pub terminated: Option<Box<TerminatedView>>,
}

/// The termination of a container.
#[derive(Clone, Debug, Default)]
pub struct TerminatedView {
    /// The container's name.
    pub name: String,
    /// The exit code of the process.
    pub exit_code: i32,
    pub finished_at: Option<Timestamp>,
}

/// A container's status in the API's form. The name is kept only for terminated containers.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerStatusForm {
    #[serde(default)]
    name: String,
    #[serde(default)]
    restart_count: i32,
    #[serde(default, deserialize_with = "null_default")]
    state: ContainerStateForm,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerStateForm {
    terminated: Option<TerminatedForm>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TerminatedForm {
    exit_code: i32,
    finished_at: Option<Timestamp>,
}

impl From<ContainerStatusForm> for ContainerStatusView {
    fn from(form: ContainerStatusForm) -> Self {
        let name = form.name;
        let terminated = form
            .state
            .terminated
            .map(|t| Box::new(TerminatedView { name, exit_code: t.exit_code, finished_at: t.finished_at }));
        Self { restart_count: form.restart_count, terminated }
    }
}

impl PodView {
    /// Whether the pod is neither terminated nor being deleted.
    pub fn is_active(&self) -> bool {
        !self.is_terminal() && !self.metadata.is_deleting()
    }
    /// Whether the pod succeeded or failed.
    pub fn is_terminal(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }
    /// Returns the node of the pod, or the node of its affinity before it is bound.
    pub fn target_node(&self) -> Option<&str> {
        if self.spec.node_name.is_empty() { self.spec.pinned_node.as_deref() } else { Some(&self.spec.node_name) }
    }
    /// Returns the condition of this type.
    pub fn condition(&self, kind: &str) -> Option<&PodConditionView> {
        self.status.conditions.iter().find(|c| c.r#type == kind)
    }
    /// Whether condition Ready is true.
    pub fn is_ready(&self) -> bool {
        self.condition("Ready").is_some_and(|c| c.status == "True")
    }
    /// Returns when the pod became ready, if it is ready.
    pub fn ready_since(&self) -> Option<Timestamp> {
        self.condition("Ready").filter(|c| c.status == "True").and_then(|c| c.last_transition_time)
    }
    /// Returns when the pod was created.
    pub fn created(&self) -> Option<Timestamp> {
        self.metadata.creation_timestamp.parse().ok()
    }
}

impl Indexed for PodView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        into.push(IndexKey::Namespace(self.metadata.namespace.clone()));
        index_owned(&self.metadata, into);
        if !self.spec.node_name.is_empty() {
            into.push(IndexKey::Node(self.spec.node_name.clone()));
        }
        let key = |name: &str| ObjectKey::new(&self.metadata.namespace, name);
        for entry in &self.spec.device_claims {
            let made = || self.status.device_claims.iter().find(|s| s.name == entry.name)?.claim.as_deref();
            into.extend(entry.claim.as_deref().or_else(made).map(|name| IndexKey::DeviceClaim(key(name))));
            into.extend(entry.template.as_deref().map(|name| IndexKey::DeviceTemplate(key(name))));
        }
    }
}
intern_table!(Containers, Tolerations);
slim_object!(PodView, ResourceType::namespaced("", "v1", "pods", "Pod"));
