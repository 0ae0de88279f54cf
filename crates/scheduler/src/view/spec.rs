//! Everything that decides where a pod may run. Pods of one template have equal specs, and equal specs are stored once:
//! a cached pod is small, and comparing specs is comparing pointers (KEP-5598's idea).
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use kelson_devices::{ExtendedAsk, is_extended};
use kelson_meta::{Interner, LabelSelector, ObjectKey, Operator};
use kelson_meta::{NodeSelector, NodeSelectorTerm};
use parking_lot::Mutex;

use super::affinity::{PodTerm, Toleration, merge_keys, selector_of};
use super::node::{Capacity, Taint, normalized_image};
use super::raw::{
    RawCondition, RawContainer, RawPod, RawPodAffinity, RawPodSpec, RawPodStatus, RawRequirements, RawResourceClaim,
    RawSpread,
};

/// The CPU that scores assume for a container without a request, in millicores.
const CPU_ASSUMED: i64 = 100;
/// The memory that scores assume for a container without a request, in bytes.
const MEMORY_ASSUMED: i64 = 200 << 20;

/// A port on the node (`hostPort`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// The address; `0.0.0.0` means all of them.
    pub ip: Box<str>,
    /// The protocol: `TCP`, `UDP` or `SCTP`.
    pub protocol: Box<str>,
    pub port: i32,
}

impl HostPort {
    /// Reports whether both cannot be used on one node.
    pub fn conflicts(&self, other: &Self) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || &*self.ip == "0.0.0.0" || &*other.ip == "0.0.0.0")
    }
}

/// The resources that a pod requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Requests {
    pub asked: Capacity,
    /// CPU in millicores, with an assumed amount for containers without a request.
    pub assumed_cpu: i64,
    /// Memory in bytes, with an assumed amount for containers without a request.
    pub assumed_memory: i64,
}

/// A spreading constraint (`v1.TopologySpreadConstraint`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpreadConstraint {
    /// The maximum difference of the number of pods between two domains.
    pub max_skew: i64,
    /// The node label whose values are the domains.
    pub topology_key: Box<str>,
    /// `DoNotSchedule` if true, `ScheduleAnyway` if false.
    pub hard: bool,
    /// Selects the pods that are counted in a domain.
    pub selector: LabelSelector,
    /// With fewer domains than this, the lowest count is taken as zero.
    pub min_domains: usize,
    /// Whether only nodes that match the pod's node affinity count.
    pub honor_affinity: bool,
    /// Whether only nodes whose taints the pod tolerates count.
    pub honor_taints: bool,
}

/// A volume that is a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimRef {
    /// The name of the claim; for an ephemeral volume the pod's name, a dash, and the volume's name.
    pub name: Box<str>,
    /// The name and UID of the pod that must own the claim of an ephemeral volume.
    pub made_for: Option<(Box<str>, Arc<str>)>,
}

/// A claim for devices (`spec.resourceClaims[]`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceRef {
    /// The name of the claim; `None` while the claim from a template is not created.
    pub claim: Option<Box<str>>,
    /// UID of the pod, if it must own the claim.
    pub owner: Option<Arc<str>>,
    /// The pod's name, if messages need it because its claim is missing or belongs to another pod.
    pub pod: Box<str>,
}

/// All fields of a pod that scheduling reads, except its identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodSpec {
    pub namespace: Box<str>,
    pub labels: BTreeMap<String, String>,
    /// Kind and name of the controlling owner, if default spreading uses it.
    pub owner: Option<(Box<str>, Box<str>)>,
    /// The scheduler name of the pod.
    pub scheduler_name: Box<str>,
    pub priority: i32,
    /// `preemptionPolicy: Never`: it waits for room and preempts no pod.
    pub never_preempts: bool,
    /// Names of scheduling gates; a pod with gates is not tried.
    pub gates: Vec<Box<str>>,
    pub requests: Requests,
    /// The host ports of all containers.
    pub ports: Vec<HostPort>,
    pub node_selector: BTreeMap<String, String>,
    /// Required node affinity.
    pub node_affinity: Option<NodeSelector>,
    /// The only nodes that can match, if the affinity selects them by name.
    pub only_nodes: Option<Vec<Box<str>>>,
    /// Preferred node affinity with weights.
    pub node_preferences: Vec<(i64, NodeSelectorTerm)>,
    pub tolerations: Vec<Toleration>,
    /// Required pod affinity.
    pub affinity: Vec<PodTerm>,
    /// Required pod anti-affinity.
    pub anti_affinity: Vec<PodTerm>,
    /// Preferred pod affinity with weights; anti-affinity has negative weights.
    pub preferences: Vec<(i64, PodTerm)>,
    pub spread: Vec<SpreadConstraint>,
    /// Images of all containers and image volumes, one entry each.
    pub images: Vec<Box<str>>,
    /// The number of containers, including init containers.
    pub containers: i64,
    pub claims: Vec<ClaimRef>,
    /// Claims for devices, without those whose status says that none is needed.
    pub devices: Vec<DeviceRef>,
    /// Requests of containers for resources that drivers may provide.
    pub extended: Vec<ExtendedAsk>,
    /// The features that a node must declare (`status.declaredFeatures`).
    pub features: Vec<&'static str>,
}

/// All specs in use.
static SPECS: LazyLock<Mutex<Interner<PodSpec>>> = LazyLock::new(Mutex::default);

/// Returns the shared instance of a spec.
pub fn intern(spec: PodSpec) -> Arc<PodSpec> {
    SPECS.lock().share(spec)
}

impl PodSpec {
    /// Reports whether one of its volumes is this claim.
    pub fn has_claim(&self, claim: &ObjectKey) -> bool {
        *self.namespace == *claim.namespace && self.claims.iter().any(|c| *c.name == *claim.name)
    }

    /// Decodes a spec. `status` has the resources that the node granted, which may differ from the requests while a pod
    /// is resized.
    pub(super) fn decode(raw: RawPod, status: &RawPodStatus, uid: &Arc<str>) -> Self {
        let (meta, spec) = (raw.metadata, raw.spec);
        let labels = meta.labels.unwrap_or_default();
        let namespace = meta.namespace.into_boxed_str();
        let owner = meta.owner_references.iter().find(|o| o.controller == Some(true)).filter(|o| {
            matches!(
                (o.api_version.as_str(), o.kind.as_str()),
                ("v1", "ReplicationController") | ("apps/v1", "ReplicaSet" | "StatefulSet")
            )
        });
        let owner = owner.map(|o| (o.kind.as_str().into(), o.name.as_str().into()));
        let requests = requests(&spec, status);
        let mut out = Self {
            owner,
            requests,
            ports: ports(&spec),
            images: images(&spec),
            containers: (spec.containers.len() + spec.init_containers.len()) as i64,
            claims: claims(&spec, &meta.name, uid),
            features: features(&spec),
            devices: devices(&spec, status, &meta.name, uid),
            extended: extended(&spec),
            spread: spec.topology_spread_constraints.iter().map(|c| constraint(c, &labels)).collect(),
            scheduler_name: spec.scheduler_name.unwrap_or_default().into(),
            priority: spec.priority.unwrap_or(0),
            never_preempts: spec.preemption_policy.as_deref() == Some("Never"),
            gates: spec.scheduling_gates.into_iter().map(|g| g.name.into()).collect(),
            node_selector: spec.node_selector.unwrap_or_default(),
            tolerations: spec.tolerations.into_iter().filter_map(Toleration::decode).collect(),
            ..Self::default()
        };
        let affinity = spec.affinity.unwrap_or_default();
        if let Some(node) = affinity.node_affinity {
            out.node_affinity = node.required;
            out.only_nodes = out.node_affinity.as_ref().and_then(NodeSelector::allowed_names);
            out.node_preferences = node
                .preferred
                .into_iter()
                .filter(|p| p.weight != 0)
                .map(|p| (i64::from(p.weight), p.preference))
                .collect();
        }
        let mut take = |raw: Option<RawPodAffinity>, sign: i64| {
            let raw = raw.unwrap_or_default();
            out.preferences.extend(
                raw.preferred
                    .iter()
                    .map(|p| (sign * i64::from(p.weight), PodTerm::decode(&p.pod_affinity_term, &namespace, &labels))),
            );
            raw.required.iter().map(|t| PodTerm::decode(t, &namespace, &labels)).collect::<Vec<_>>()
        };
        let affinity_terms = take(affinity.pod_affinity, 1);
        let anti_affinity_terms = take(affinity.pod_anti_affinity, -1);
        out.affinity = affinity_terms;
        out.anti_affinity = anti_affinity_terms;
        out.namespace = namespace;
        out.labels = labels;
        out
    }

    /// Reports whether it has pod affinity or anti-affinity of any kind.
    pub fn has_pod_affinity(&self) -> bool {
        !self.affinity.is_empty() || !self.anti_affinity.is_empty() || !self.preferences.is_empty()
    }

    /// Reports whether it tolerates a taint.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.tolerations.iter().any(|toleration| toleration.tolerates(taint))
    }

    /// Reports whether one of these taints rejects it.
    pub fn has_untolerated(&self, taints: &[Taint]) -> bool {
        taints.iter().any(|t| t.keeps_away() && !self.tolerates(t))
    }

    /// Reports whether it requests no CPU and no memory.
    pub fn is_best_effort(&self) -> bool {
        self.requests.asked.cpu == 0 && self.requests.asked.memory == 0
    }

    /// Reports whether its `nodeSelector` and required node affinity match this node.
    pub fn node_matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        self.node_selector.iter().all(|(k, v)| labels.get(k) == Some(v))
            && self.node_affinity.as_ref().is_none_or(|a| a.matches(name, labels))
    }
}

fn constraint(c: &RawSpread, own: &BTreeMap<String, String>) -> SpreadConstraint {
    let mut selector = selector_of(c.label_selector.as_ref());
    merge_keys(&mut selector, &c.match_label_keys, own, Operator::In);
    SpreadConstraint {
        max_skew: i64::from(c.max_skew),
        topology_key: c.topology_key.as_str().into(),
        hard: c.when_unsatisfiable == "DoNotSchedule",
        selector,
        min_domains: c.min_domains.map_or(1, |n| usize::try_from(n).unwrap_or(1)),
        honor_affinity: c.node_affinity_policy.as_deref() != Some("Ignore"),
        honor_taints: c.node_taints_policy.as_deref() == Some("Honor"),
    }
}

fn is_sidecar(c: &RawContainer) -> bool {
    c.restart_policy.as_deref() == Some("Always")
}

fn ports(spec: &RawPodSpec) -> Vec<HostPort> {
    let holders = spec.containers.iter().chain(spec.init_containers.iter().filter(|c| is_sidecar(c)));
    holders
        .flat_map(|c| &c.ports)
        .filter_map(|p| {
            let port = p.host_port.filter(|n| *n > 0)?;
            let or = |s: &Option<String>, d: &str| s.as_deref().filter(|s| !s.is_empty()).unwrap_or(d).into();
            Some(HostPort { ip: or(&p.host_ip, "0.0.0.0"), protocol: or(&p.protocol, "TCP"), port })
        })
        .collect()
}

fn images(spec: &RawPodSpec) -> Vec<Box<str>> {
    let containers = spec.init_containers.iter().chain(&spec.containers).filter_map(|c| c.image.as_deref());
    let volumes = spec.volumes.iter().filter_map(|v| v.image.as_ref()?.reference.as_deref());
    containers.chain(volumes).map(|i| normalized_image(i).into()).collect()
}

fn claims(spec: &RawPodSpec, pod: &str, uid: &Arc<str>) -> Vec<ClaimRef> {
    let claim = |v: &super::raw::RawVolume| match (&v.persistent_volume_claim, &v.ephemeral) {
        (Some(c), _) => Some(ClaimRef { name: c.claim_name.as_str().into(), made_for: None }),
        (None, Some(_)) => {
            let made_for = Some((pod.into(), Arc::clone(uid)));
            Some(ClaimRef { name: format!("{pod}-{}", v.name).into(), made_for })
        }
        (None, None) => None,
    };
    spec.volumes.iter().filter_map(claim).collect()
}

/// Returns the node features that a pod needs (KEP-5328, `component-helpers/nodedeclaredfeatures`).
fn features(spec: &RawPodSpec) -> Vec<&'static str> {
    let mut containers = spec.containers.iter().chain(&spec.init_containers);
    let restarts_all = containers.any(|c| c.restart_policy_rules.iter().any(|r| r.action == "RestartAllContainers"));
    let own_users = spec.host_network && spec.host_users == Some(false);
    let all = [(restarts_all, "RestartAllContainersOnContainerExits"), (own_users, "UserNamespacesHostNetworkSupport")];
    all.into_iter().filter(|(needed, _)| *needed).map(|(_, name)| name).collect()
}

/// Reads the claims for devices. The names of claims from templates are in the pod's status.
fn devices(spec: &RawPodSpec, status: &RawPodStatus, pod: &str, uid: &Arc<str>) -> Vec<DeviceRef> {
    let one = |c: &RawResourceClaim| {
        if let Some(name) = &c.resource_claim_name {
            return Some(DeviceRef { claim: Some(name.as_str().into()), owner: None, pod: "".into() });
        }
        c.resource_claim_template_name.as_ref()?;
        let claim = match status.resource_claim_statuses.iter().find(|s| s.name == c.name) {
            Some(made) => Some(made.resource_claim_name.as_deref()?.into()),
            None => None,
        };
        Some(DeviceRef { claim, owner: Some(Arc::clone(uid)), pod: pod.into() })
    };
    spec.resource_claims.iter().filter_map(one).collect()
}

/// Returns the extended resources that each container requests.
fn extended(spec: &RawPodSpec) -> Vec<ExtendedAsk> {
    let first = spec.init_containers.iter().map(|c| (c, !is_sidecar(c)));
    let all = first.chain(spec.containers.iter().map(|c| (c, false))).enumerate();
    let of = |(index, (c, passes)): (usize, (&RawContainer, bool))| {
        let list = c.resources.as_ref().and_then(|r| r.requests.as_ref());
        let named = list.into_iter().flatten().enumerate().filter(|(_, (name, _))| is_extended(name));
        let ask = |(place, (name, quantity)): (usize, (&String, &kelson_meta::Quantity))| ExtendedAsk {
            index,
            container: c.name.as_str().into(),
            passes,
            resource: name.as_str().into(),
            place,
            count: quantity.value(),
        };
        named.map(ask).collect::<Vec<_>>()
    };
    all.flat_map(of).collect()
}

/// Returns the total requests: the sum over containers, or the maximum needed while an init container runs (with the
/// sidecars before it) if that is more; pod-level requests replace the sum where they are set; plus overhead
/// (component-helpers `resource.PodRequests`).
fn requests(spec: &RawPodSpec, status: &RawPodStatus) -> Requests {
    let asked = total(spec, status, |c| c);
    let assumed = total(spec, status, |mut c| {
        if c.0.cpu == 0 && !c.1.0 {
            c.0.cpu = CPU_ASSUMED;
        }
        if c.0.memory == 0 && !c.1.1 {
            c.0.memory = MEMORY_ASSUMED;
        }
        c
    });
    Requests { asked, assumed_cpu: assumed.cpu, assumed_memory: assumed.memory }
}

/// The requests of one container, and whether CPU and memory were set (zero counts as set).
type ContainerRequests = (Capacity, (bool, bool));

fn asked(r: Option<&RawRequirements>) -> ContainerRequests {
    let Some(list) = r.and_then(|r| r.requests.as_ref()) else { return ContainerRequests::default() };
    (Capacity::of(list), (list.contains_key("cpu"), list.contains_key("memory")))
}

/// Returns what a container uses of its node: the maximum of its request and of what the node has granted or applied
/// (KEP-1287). A request that can never be granted does not count.
fn taken(c: &RawContainer, status: &RawPodStatus, infeasible: bool) -> ContainerRequests {
    let (mut capacity, given) = asked(c.resources.as_ref());
    let all = status.container_statuses.iter().chain(&status.init_container_statuses);
    let Some(has) = all.into_iter().find(|s| s.name == c.name) else { return (capacity, given) };
    let granted = has.allocated_resources.as_ref().map(Capacity::of);
    let actual = has.resources.as_ref().and_then(|r| r.requests.as_ref()).map(Capacity::of);
    if infeasible && (granted.is_some() || actual.is_some()) {
        capacity = Capacity::default();
    }
    granted.into_iter().chain(actual).for_each(|held| capacity.max_with(&held));
    (capacity, given)
}

fn total(
    spec: &RawPodSpec,
    status: &RawPodStatus,
    adjust: impl Fn(ContainerRequests) -> ContainerRequests,
) -> Capacity {
    let refused = |c: &&RawCondition| c.kind == "PodResizePending" && c.status == "True";
    let infeasible = status.conditions.iter().find(refused).is_some_and(|c| c.reason.as_deref() == Some("Infeasible"));
    let of = |c: &RawContainer| adjust(taken(c, status, infeasible)).0;
    let mut sum = Capacity::default();
    for c in &spec.containers {
        sum.add(&of(c), 1);
    }
    let (mut sidecars, mut init_peak) = (Capacity::default(), Capacity::default());
    for c in &spec.init_containers {
        let mut need = of(c);
        if is_sidecar(c) {
            sum.add(&need, 1);
            sidecars.add(&need, 1);
            init_peak.max_with(&sidecars);
        } else {
            need.add(&sidecars, 1);
            init_peak.max_with(&need);
        }
    }
    sum.max_with(&init_peak);
    if let Some(list) = spec.resources.as_ref().and_then(|r| r.requests.as_ref()) {
        let pod = Capacity::of(list);
        if list.contains_key("cpu") {
            sum.cpu = pod.cpu;
        }
        if list.contains_key("memory") {
            sum.memory = pod.memory;
        }
        sum.scalars.retain(|(n, _)| !n.starts_with("hugepages-") || !list.contains_key(&**n));
        let huge = pod.scalars.iter().filter(|(n, _)| n.starts_with("hugepages-")).cloned().collect();
        sum.add(&Capacity { scalars: huge, ..Capacity::default() }, 1);
    }
    if let Some(overhead) = &spec.overhead {
        sum.add(&Capacity::of(overhead), 1);
    }
    sum
}
