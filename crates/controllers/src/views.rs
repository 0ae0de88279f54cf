//! Slim views of objects: only the fields controllers read, since there may be many. Nothing here is ever written back
//! whole; writes are patches or changes of the full object.
use std::collections::BTreeMap;

use jiff::Timestamp;
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{Interned, LabelSelectorSpec, ObjectMeta, intern_table, null_default};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::condition::Condition;
use crate::shared::{IndexKey, Indexed, index_owned};

/// The annotations of pods that controllers read; the others are not kept.
const POD_ANNOTATIONS: &[&str] = &["controller.kubernetes.io/pod-deletion-cost"];

fn pod_meta<'de, D: Deserializer<'de>>(d: D) -> Result<ObjectMeta, D::Error> {
    let mut meta = ObjectMeta::deserialize(d)?;
    meta.annotations.retain(|k, _| POD_ANNOTATIONS.contains(&k.as_str()));
    Ok(meta)
}

/// `core/v1` Pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodView {
    /// Metadata, with few annotations.
    #[serde(deserialize_with = "pod_meta")]
    pub metadata: ObjectMeta,
    /// Spec.
    pub spec: PodSpecView,
    /// Status.
    pub status: PodStatusView,
}

/// The part of a pod's spec that is read. What a template decides is held once for all pods of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpecView {
    /// Node the pod is bound to.
    pub node_name: String,
    /// Host name within its subdomain.
    pub hostname: String,
    /// Headless service it belongs to.
    pub subdomain: String,
    /// Containers, for their ports.
    pub containers: Interned<Containers>,
    /// Init containers; those that restart always are sidecars and have ports too.
    pub init_containers: Interned<Containers>,
    /// Tolerations.
    pub tolerations: Interned<Tolerations>,
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
    /// Containers, held once for all pods that have equal ones.
    Containers of ContainerView,
    /// Tolerations, held once for all pods that have equal ones.
    Tolerations of Toleration,
}

/// The part of a container that is read.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerView {
    /// Its ports.
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<ContainerPortView>,
    /// `Always` for a sidecar.
    pub restart_policy: String,
}

/// A container's port.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPortView {
    /// Name.
    pub name: String,
    /// Number.
    pub container_port: i32,
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
    /// For how long a `NoExecute` taint is tolerated; absent: for ever.
    pub toleration_seconds: Option<i64>,
}

/// The part of a pod's status that is read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatusView {
    /// Phase.
    pub phase: String,
    /// Address.
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    /// Addresses of all families.
    #[serde(rename = "podIPs")]
    #[serde(deserialize_with = "null_default")]
    pub pod_ips: Vec<PodIp>,
    /// Reason, e.g. `NodeLost`.
    pub reason: String,
    /// Conditions.
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<PodConditionView>,
    /// For restart counts.
    #[serde(deserialize_with = "null_default")]
    pub container_statuses: Vec<ContainerStatusView>,
}

/// One address of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodIp {
    /// The address.
    pub ip: String,
}

/// A pod's condition.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodConditionView {
    /// Type.
    pub r#type: String,
    /// `True`, `False`, `Unknown`.
    pub status: String,
    /// When it changed.
    pub last_transition_time: Option<Timestamp>,
}

/// A container's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatusView {
    /// Restarts so far.
    pub restart_count: i32,
}

impl PodView {
    /// Neither succeeded, nor failed, nor being deleted.
    pub fn is_active(&self) -> bool {
        !self.is_terminal() && !self.metadata.is_deleting()
    }
    /// Succeeded or failed.
    pub fn is_terminal(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }
    /// Being deleted and still running.
    pub fn is_terminating(&self) -> bool {
        !self.is_terminal() && self.metadata.is_deleting()
    }
    /// The condition of this type.
    pub fn condition(&self, kind: &str) -> Option<&PodConditionView> {
        self.status.conditions.iter().find(|c| c.r#type == kind)
    }
    /// Whether condition Ready is true.
    pub fn is_ready(&self) -> bool {
        self.condition("Ready").is_some_and(|c| c.status == "True")
    }
    /// When it became ready, if it is.
    pub fn ready_since(&self) -> Option<Timestamp> {
        self.condition("Ready").filter(|c| c.status == "True").and_then(|c| c.last_transition_time)
    }
    /// When it was created.
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
    }
}
intern_table!(Containers, Tolerations);
slim_object!(PodView, ResourceType::namespaced("", "v1", "pods", "Pod"));

/// `apps/v1` ReplicaSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReplicaSetView {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    pub spec: ReplicaSetSpecView,
    /// Status.
    pub status: ReplicaStatus,
}

/// A replica set's spec; the template stays as it came.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaSetSpecView {
    /// Desired pods; the API defaults it to 1.
    pub replicas: Option<i32>,
    /// Seconds a pod must be ready to count as available.
    pub min_ready_seconds: i32,
    /// Which pods.
    pub selector: Option<LabelSelectorSpec>,
    /// Pod template, JSON.
    pub template: Option<Box<RawValue>>,
}

/// Status of replica sets and replication controllers.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaStatus {
    /// Pods that are there.
    pub replicas: i32,
    /// With all labels of the template.
    pub fully_labeled_replicas: i32,
    /// Ready.
    pub ready_replicas: i32,
    /// Ready for long enough.
    pub available_replicas: i32,
    /// Being deleted.
    pub terminating_replicas: Option<i32>,
    /// Generation this status is of.
    pub observed_generation: i64,
    /// Conditions.
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<Condition>,
}

impl Indexed for ReplicaSetView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        index_owned(&self.metadata, into);
    }
}
slim_object!(ReplicaSetView, ResourceType::namespaced("apps", "v1", "replicasets", "ReplicaSet"));

/// `core/v1` ReplicationController.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReplicationControllerView {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    pub spec: ReplicationControllerSpecView,
    /// Status.
    pub status: ReplicaStatus,
}

/// A replication controller's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicationControllerSpecView {
    /// Desired pods.
    pub replicas: Option<i32>,
    /// Seconds a pod must be ready to count as available.
    pub min_ready_seconds: i32,
    /// Which pods.
    pub selector: BTreeMap<String, String>,
    /// Pod template, JSON.
    pub template: Option<Box<RawValue>>,
}

impl Indexed for ReplicationControllerView {}
slim_object!(
    ReplicationControllerView,
    ResourceType::namespaced("", "v1", "replicationcontrollers", "ReplicationController")
);

/// `apps/v1` Deployment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeploymentView {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    pub spec: DeploymentSpecView,
    /// Status.
    pub status: DeploymentStatus,
}

/// A deployment's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentSpecView {
    /// Desired pods; the API defaults it to 1.
    pub replicas: Option<i32>,
    /// Which pods.
    pub selector: Option<LabelSelectorSpec>,
    /// Pod template, JSON.
    pub template: Option<Box<RawValue>>,
    /// How to replace pods.
    pub strategy: DeploymentStrategy,
    /// Seconds a pod must be ready to count as available.
    pub min_ready_seconds: i32,
    /// Old replica sets to keep.
    pub revision_history_limit: Option<i32>,
    /// No rollout while set.
    pub paused: bool,
    /// Seconds without progress until the rollout counts as failed.
    pub progress_deadline_seconds: Option<i32>,
}

/// `apps/v1` DeploymentStrategy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStrategy {
    /// `RollingUpdate` or `Recreate`.
    pub r#type: String,
    /// For rolling updates.
    pub rolling_update: Option<RollingUpdate>,
}

/// `apps/v1` RollingUpdateDeployment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// Pods over the desired number.
    pub max_surge: Option<IntOrPercent>,
    /// Pods that may be missing.
    pub max_unavailable: Option<IntOrPercent>,
}

/// `IntOrString` where the string is a percentage.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged)]
pub enum IntOrPercent {
    /// A number.
    Int(i32),
    /// `25%`.
    Percent(String),
}

/// `apps/v1` DeploymentStatus.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStatus {
    /// Generation this status is of.
    pub observed_generation: i64,
    /// Pods that are there.
    pub replicas: i32,
    /// Of the newest template.
    pub updated_replicas: i32,
    /// Ready.
    pub ready_replicas: i32,
    /// Ready for long enough.
    pub available_replicas: i32,
    /// Missing to the desired number.
    pub unavailable_replicas: i32,
    /// Being deleted.
    pub terminating_replicas: Option<i32>,
    /// Hash collisions met.
    pub collision_count: Option<i32>,
    /// Conditions.
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<Condition>,
}

impl Indexed for DeploymentView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        into.push(IndexKey::Namespace(self.metadata.namespace.clone()));
    }
}
slim_object!(DeploymentView, ResourceType::namespaced("apps", "v1", "deployments", "Deployment"));

/// `core/v1` Namespace.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NamespaceView {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    pub spec: NamespaceSpecView,
    /// Status.
    pub status: NamespaceStatusView,
}

/// A namespace's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NamespaceSpecView {
    /// Finalizers of the namespace's content.
    #[serde(deserialize_with = "null_default")]
    pub finalizers: Vec<String>,
}

/// A namespace's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NamespaceStatusView {
    /// `Active` or `Terminating`.
    pub phase: String,
    /// Conditions.
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<Condition>,
}

impl Indexed for NamespaceView {}
slim_object!(NamespaceView, ResourceType::cluster("", "v1", "namespaces", "Namespace"));

/// `core/v1` Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeView {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    pub spec: NodeSpecView,
    /// Status.
    pub status: NodeStatusView,
}

/// A node's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpecView {
    /// Its pod ranges.
    #[serde(rename = "podCIDRs")]
    #[serde(deserialize_with = "null_default")]
    pub pod_cidrs: Vec<String>,
    /// Taints.
    #[serde(deserialize_with = "null_default")]
    pub taints: Vec<Taint>,
    /// Cordoned.
    pub unschedulable: bool,
}

/// `v1.Taint`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    /// Key.
    pub key: String,
    /// Value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule`, `NoExecute`.
    pub effect: String,
    /// When it was put, for `NoExecute`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_added: Option<String>,
}

/// A node's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeStatusView {
    /// Conditions.
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<Condition>,
    /// Addresses.
    #[serde(deserialize_with = "null_default")]
    pub addresses: Vec<NodeAddress>,
}

/// `v1.NodeAddress`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct NodeAddress {
    /// `Hostname`, `InternalIP`, `ExternalIP`, `InternalDNS`, `ExternalDNS`.
    pub r#type: String,
    /// The address.
    pub address: String,
}

impl Indexed for NodeView {}
slim_object!(NodeView, ResourceType::cluster("", "v1", "nodes", "Node"));

/// `coordination.k8s.io/v1` Lease.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LeaseView {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    pub spec: LeaseSpecView,
}

/// A lease's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseSpecView {
    /// Last heartbeat, RFC 3339.
    pub renew_time: String,
}

impl Indexed for LeaseView {}
slim_object!(LeaseView, ResourceType::namespaced("coordination.k8s.io", "v1", "leases", "Lease"));

/// `core/v1` Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceView {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    pub spec: ServiceSpecView,
}

/// A service's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpecView {
    /// Which pods; absent: somebody else keeps the endpoints.
    pub selector: Option<BTreeMap<String, String>>,
    /// Type.
    pub r#type: String,
    /// `None` for headless services.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    /// Families in order.
    #[serde(deserialize_with = "null_default")]
    pub ip_families: Vec<String>,
    /// Ports.
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<ServicePortView>,
    /// Whether pods count before they are ready.
    pub publish_not_ready_addresses: bool,
}

/// A service's port.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePortView {
    /// Name; empty for the only one.
    pub name: String,
    /// `TCP`, `UDP`, `SCTP`; empty is TCP.
    pub protocol: String,
    /// Application protocol.
    pub app_protocol: Option<String>,
    /// The service's port.
    pub port: i32,
    /// The pods' port: a number or the name of a container's port.
    pub target_port: Option<IntOrPercent>,
}

impl Indexed for ServiceView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        into.push(IndexKey::Namespace(self.metadata.namespace.clone()));
    }
}
slim_object!(ServiceView, ResourceType::namespaced("", "v1", "services", "Service"));

/// `discovery.k8s.io/v1` EndpointSlice, with what is compared and written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSliceView {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// `IPv4`, `IPv6`, `FQDN`.
    pub address_type: String,
    /// Endpoints.
    #[serde(deserialize_with = "null_default")]
    pub endpoints: Vec<crate::endpointslice::Endpoint>,
    /// Ports.
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<crate::endpointslice::Port>,
}

/// Label that ties a slice to its service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

impl Indexed for EndpointSliceView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        if self.metadata.labels.contains_key(SERVICE_NAME_LABEL) {
            into.push(IndexKey::Namespace(self.metadata.namespace.clone()));
        }
    }
}
slim_object!(EndpointSliceView, ResourceType::namespaced("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"));

/// `core/v1` Endpoints.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct EndpointsView {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Subsets.
    #[serde(deserialize_with = "null_default")]
    pub subsets: Vec<crate::endpoints::Subset>,
}

impl Indexed for EndpointsView {}
slim_object!(EndpointsView, ResourceType::namespaced("", "v1", "endpoints", "Endpoints"));

/// `core/v1` ServiceAccount.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceAccountView {
    /// Metadata.
    pub metadata: ObjectMeta,
}

impl Indexed for ServiceAccountView {}
slim_object!(ServiceAccountView, ResourceType::namespaced("", "v1", "serviceaccounts", "ServiceAccount"));

/// `core/v1` PersistentVolumeClaim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimView {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    pub spec: VolumeSpecView,
    /// Status.
    pub status: ClaimStatusView,
}

impl Indexed for ClaimView {}
slim_object!(ClaimView, ResourceType::namespaced("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"));

/// The part of a claim's or volume's spec that is read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSpecView {
    /// Its class of attributes.
    pub volume_attributes_class_name: String,
}

/// The part of a claim's status that is read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatusView {
    /// The class of attributes its volume has now.
    pub current_volume_attributes_class_name: String,
    /// The class it is being changed to.
    pub modify_volume_status: ModifyVolumeView,
}

/// A claim's `modifyVolumeStatus`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModifyVolumeView {
    /// The class it is being changed to.
    pub target_volume_attributes_class_name: String,
}

/// `core/v1` PersistentVolume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeView {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    pub spec: VolumeSpecView,
    /// Status.
    pub status: VolumeStatusView,
}

/// The part of a volume's status that is read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeStatusView {
    /// `Bound` while a claim has it.
    pub phase: String,
}

impl Indexed for VolumeView {}
slim_object!(VolumeView, ResourceType::cluster("", "v1", "persistentvolumes", "PersistentVolume"));

/// `storage.k8s.io/v1` VolumeAttributesClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeAttributesClassView {
    /// Metadata.
    pub metadata: ObjectMeta,
}

impl Indexed for VolumeAttributesClassView {}
slim_object!(
    VolumeAttributesClassView,
    ResourceType::cluster("storage.k8s.io", "v1", "volumeattributesclasses", "VolumeAttributesClass")
);

/// A ConfigMap of one of the names controllers keep.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConfigMapView {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Content.
    #[serde(deserialize_with = "null_default")]
    pub data: BTreeMap<String, String>,
}

impl Indexed for ConfigMapView {}
slim_object!(ConfigMapView, ResourceType::namespaced("", "v1", "configmaps", "ConfigMap"));

/// A Secret of one of the types controllers work on. Does not print its content.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub struct SecretView {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Type.
    pub r#type: String,
    /// Content, base64.
    #[serde(deserialize_with = "null_default")]
    pub data: BTreeMap<String, String>,
}

impl std::fmt::Debug for SecretView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretView")
            .field("metadata", &self.metadata)
            .field("type", &self.r#type)
            .finish_non_exhaustive()
    }
}

impl SecretView {
    /// A value, decoded, where it is UTF-8.
    pub fn text(&self, key: &str) -> Option<String> {
        use base64::Engine as _;
        let bytes = base64::engine::general_purpose::STANDARD.decode(self.data.get(key)?).ok()?;
        String::from_utf8(bytes).ok()
    }
}

impl Indexed for SecretView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        into.push(IndexKey::Namespace(self.metadata.namespace.clone()));
    }
}
slim_object!(SecretView, ResourceType::namespaced("", "v1", "secrets", "Secret"));

/// `certificates.k8s.io/v1` CertificateSigningRequest.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsrView {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    pub spec: CsrSpecView,
    /// Status.
    pub status: CsrStatusView,
}

/// A request's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsrSpecView {
    /// PEM, base64.
    pub request: String,
    /// Who is to sign.
    pub signer_name: String,
    /// Wished lifetime.
    pub expiration_seconds: Option<i32>,
    /// Usages.
    #[serde(deserialize_with = "null_default")]
    pub usages: Vec<String>,
    /// Who asked.
    pub username: String,
    /// UID of who asked.
    pub uid: String,
    /// Groups of who asked.
    #[serde(deserialize_with = "null_default")]
    pub groups: Vec<String>,
    /// More about who asked.
    #[serde(deserialize_with = "null_default")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A request's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsrStatusView {
    /// `Approved`, `Denied`, `Failed`.
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<Condition>,
    /// PEM, base64, once issued.
    pub certificate: String,
}

impl CsrView {
    /// Whether a condition of this type is there.
    pub fn has(&self, kind: &str) -> bool {
        self.status.conditions.iter().any(|c| c.r#type == kind)
    }
    /// The request as PEM text.
    pub fn pem(&self) -> Option<String> {
        use base64::Engine as _;
        let bytes = base64::engine::general_purpose::STANDARD.decode(&self.spec.request).ok()?;
        String::from_utf8(bytes).ok()
    }
}

impl Indexed for CsrView {}
slim_object!(
    CsrView,
    ResourceType::cluster("certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest")
);
