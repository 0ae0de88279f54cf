//! What decides where a pod may run. Pods made from one template have equal specs, so equal ones are kept once: that
//! keeps a cached pod small, and makes "the same question as before" a comparison of pointers (KEP-5598's idea).
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

/// CPU that scores assume for a container that asks for none, milli.
const CPU_ASSUMED: i64 = 100;
/// Memory that scores assume for a container that asks for none, bytes.
const MEMORY_ASSUMED: i64 = 200 << 20;

/// A port on the node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// Address; `0.0.0.0` is all of them.
    pub ip: Box<str>,
    /// `TCP`, `UDP`, `SCTP`.
    pub protocol: Box<str>,
    pub port: i32,
}

impl HostPort {
    /// Whether both cannot be had on one node.
    pub fn conflicts(&self, other: &Self) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || &*self.ip == "0.0.0.0" || &*other.ip == "0.0.0.0")
    }
}

/// What a pod asks of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Requests {
    pub asked: Capacity,
    /// CPU with an assumed amount for containers that ask for none, milli.
    pub assumed_cpu: i64,
    /// Likewise memory, bytes.
    pub assumed_memory: i64,
}

/// `v1.TopologySpreadConstraint`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpreadConstraint {
    /// By how many pods two domains may differ.
    pub max_skew: i64,
    /// The node label whose values are the domains.
    pub topology_key: Box<str>,
    /// `DoNotSchedule` rather than `ScheduleAnyway`.
    pub hard: bool,
    /// Which pods are counted in a domain.
    pub selector: LabelSelector,
    /// Domains below which the least count is taken as zero.
    pub min_domains: usize,
    /// Only nodes that the pod's node affinity allows count.
    pub honor_affinity: bool,
    /// Only nodes whose taints the pod tolerates count.
    pub honor_taints: bool,
}

/// A volume by claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimRef {
    /// The claim's name; for an ephemeral one the volume's, behind the pod's own name and a dash.
    pub name: Box<str>,
    /// Made by the ephemeral volume controller from the pod itself: the pod's name and UID, whose the claim must be.
    pub made_for: Option<(Box<str>, Arc<str>)>,
}

/// A claim for devices (`spec.resourceClaims[]`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceRef {
    /// The claim's name; `None` while the one that is to be made from a template is not there.
    pub claim: Option<Box<str>>,
    /// UID of the pod, where the claim must be its own.
    pub owner: Option<Arc<str>>,
    /// The pod's name, where messages need it: while its claim is missing, or another's.
    pub pod: Box<str>,
}

/// All that scheduling reads of a pod but its identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodSpec {
    pub namespace: Box<str>,
    pub labels: BTreeMap<String, String>,
    /// Kind and name of the controlling owner, where spreading by default follows it.
    pub owner: Option<(Box<str>, Box<str>)>,
    /// Which scheduler it is for.
    pub scheduler_name: Box<str>,
    pub priority: i32,
    /// `preemptionPolicy: Never`: it waits for room and takes none from others.
    pub never_preempts: bool,
    /// Names of gates; with any left, the pod is not yet looked at.
    pub gates: Vec<Box<str>>,
    pub requests: Requests,
    /// Ports on the node.
    pub ports: Vec<HostPort>,
    pub node_selector: BTreeMap<String, String>,
    /// Required node affinity.
    pub node_affinity: Option<NodeSelector>,
    /// The only nodes that may fit, where the affinity names them.
    pub only_nodes: Option<Vec<Box<str>>>,
    /// Preferred node affinity and weights.
    pub node_preferences: Vec<(i64, NodeSelectorTerm)>,
    pub tolerations: Vec<Toleration>,
    /// Required pod affinity.
    pub affinity: Vec<PodTerm>,
    /// Required pod anti-affinity.
    pub anti_affinity: Vec<PodTerm>,
    /// Preferred pod affinity, and anti-affinity with weights below zero.
    pub preferences: Vec<(i64, PodTerm)>,
    pub spread: Vec<SpreadConstraint>,
    /// Images of all containers and image volumes, one entry each.
    pub images: Vec<Box<str>>,
    /// How many containers, init containers included.
    pub containers: i64,
    pub claims: Vec<ClaimRef>,
    /// Those that say they need none are left out.
    pub devices: Vec<DeviceRef>,
    /// What its containers ask of resources that drivers of devices may stand for.
    pub extended: Vec<ExtendedAsk>,
    /// What a node must say that it can (`status.declaredFeatures`).
    pub features: Vec<&'static str>,
}

/// Specs in use.
static SPECS: LazyLock<Mutex<Interner<PodSpec>>> = LazyLock::new(Mutex::default);

/// The shared copy of a spec.
pub fn intern(spec: PodSpec) -> Arc<PodSpec> {
    SPECS.lock().share(spec)
}

impl PodSpec {
    /// Whether one of its volumes is this claim's.
    pub fn has_claim(&self, claim: &ObjectKey) -> bool {
        *self.namespace == *claim.namespace && self.claims.iter().any(|c| *c.name == *claim.name)
    }

    /// `status` tells what the node has granted, which may differ from what is asked while a pod is resized.
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

    /// Whether other pods' places matter to it, or its own to others.
    pub fn has_pod_affinity(&self) -> bool {
        !self.affinity.is_empty() || !self.anti_affinity.is_empty() || !self.preferences.is_empty()
    }

    /// Whether it tolerates a taint.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.tolerations.iter().any(|toleration| toleration.tolerates(taint))
    }

    /// Whether one of these taints keeps it away.
    pub fn has_untolerated(&self, taints: &[Taint]) -> bool {
        taints.iter().any(|t| t.keeps_away() && !self.tolerates(t))
    }

    /// Whether it asks for no CPU and no memory.
    pub fn is_best_effort(&self) -> bool {
        self.requests.asked.cpu == 0 && self.requests.asked.memory == 0
    }

    /// Whether its `nodeSelector` and required node affinity allow this node.
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

/// The features of nodes that a pod needs (KEP-5328, `component-helpers/nodedeclaredfeatures`).
fn features(spec: &RawPodSpec) -> Vec<&'static str> {
    let mut containers = spec.containers.iter().chain(&spec.init_containers);
    let restarts_all = containers.any(|c| c.restart_policy_rules.iter().any(|r| r.action == "RestartAllContainers"));
    let own_users = spec.host_network && spec.host_users == Some(false);
    let all = [(restarts_all, "RestartAllContainersOnContainerExits"), (own_users, "UserNamespacesHostNetworkSupport")];
    all.into_iter().filter(|(needed, _)| *needed).map(|(_, name)| name).collect()
}

/// What was made from templates is named in the pod's status.
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

/// What each container asks of extended resources.
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

/// The sum over containers, raised to what init containers need while they run (sidecars before them included), with
/// pod-level requests in place of the sum where given, plus overhead (component-helpers `resource.PodRequests`).
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

/// One container's requests, and whether CPU and memory were given (zero counts as given).
type Asked = (Capacity, (bool, bool));

fn asked(r: Option<&RawRequirements>) -> Asked {
    let Some(list) = r.and_then(|r| r.requests.as_ref()) else { return Asked::default() };
    (Capacity::of(list), (list.contains_key("cpu"), list.contains_key("memory")))
}

/// What a container takes of its node: what it asks for, or what the node has granted or it has, where that is more (KEP-1287). What can
/// never be granted does not count.
fn taken(c: &RawContainer, status: &RawPodStatus, infeasible: bool) -> Asked {
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

fn total(spec: &RawPodSpec, status: &RawPodStatus, adjust: impl Fn(Asked) -> Asked) -> Capacity {
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
