//! Exclusive CPUs (upstream: `cpumanager/policy_static.go`). A container of a Guaranteed pod that requests whole CPUs gets them
//! exclusively; all others share the remaining ones. Pure.
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::hints::{NumaHint, ResourceHints};
use super::layout::{Level, MachineLayout};
use super::numa::{NodeMask, subsets};
use super::take::take;
use crate::config::cpuset::CpuSet;
use crate::config::placement::CpuOptions;
use crate::pod::{self, Member, Role};

/// Why resources cannot be assigned to a pod: reason and message of its failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRefusal {
    /// Reason, such as `TopologyAffinityError`.
    pub reason: &'static str,
    /// Message in upstream's words.
    pub message: String,
}

impl PlacementRefusal {
    /// Creates an `UnexpectedAdmissionError`.
    pub fn unexpected(why: impl std::fmt::Display) -> Self {
        Self {
            reason: "UnexpectedAdmissionError",
            message: format!("Allocate failed due to {why}, which is unexpected"),
        }
    }
    fn cores(message: String) -> Self {
        Self { reason: "SMTAlignmentError", message: format!("SMT Alignment Error: {message}") }
    }
}

/// Values by UID of the pod and name of the container.
pub type ByContainer<T> = BTreeMap<String, BTreeMap<String, T>>;

/// Assignment of CPUs to containers. A CPU is in the shared pool, reserved, or exclusive to one container. [`CpuTable::hints`] lists the
/// NUMA nodes from which a request could be met, [`CpuTable::allocate`] assigns after the hints of all resources were merged, and
/// [`CpuTable::take_back`] releases. The state is restored from a checkpoint by [`CpuTable::restored`].
#[derive(Clone, Debug)]
pub struct CpuTable {
    machine: Arc<MachineLayout>,
    options: CpuOptions,
    reserved: CpuSet,
    reserved_cores: CpuSet,
    /// The shared pool, including reserved CPUs unless reservation is strict.
    shared: CpuSet,
    held: ByContainer<CpuSet>,
    /// CPUs of the init containers of the last processed pod, by its UID.
    reusable: (String, CpuSet),
}

impl CpuTable {
    /// Creates a table without assignments. `amount` is the number of reserved CPUs; `by_number` the reserved CPUs if they are configured.
    ///
    /// # Errors
    /// The reservation or an option is impossible on this machine.
    pub fn new(
        machine: Arc<MachineLayout>,
        options: CpuOptions,
        amount: usize,
        by_number: &CpuSet,
    ) -> Result<Self, String> {
        if amount == 0 {
            let why = "the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero";
            return Err(format!("[cpumanager] {why}"));
        }
        let (sockets, nodes) = (machine.cpus.ids(Level::Socket).len(), machine.cpus.ids(Level::Node).len());
        if options.by_socket && sockets > nodes {
            return Err("align-by-socket is not compatible with a machine that has more sockets than NUMA nodes".into());
        }
        let all = machine.cpus.all();
        let reserved = match by_number.is_empty() {
            false => by_number.clone(),
            true => take(&machine, &all, amount, options).unwrap_or_default(),
        };
        if reserved.len() != amount {
            let why =
                format!("unable to reserve the required amount of CPUs (size of {reserved} did not equal {amount})");
            return Err(format!("[cpumanager] {why}"));
        }
        if let Some(cpu) = reserved.iter().find(|cpu| !all.contains(*cpu)) {
            return Err(format!("not all CPUs in the reserved set are online: {cpu} is not"));
        }
        let cores = machine.cpus.only(&reserved).ids(Level::Core);
        let reserved_cores =
            cores.iter().fold(CpuSet::default(), |s, core| s.plus(&machine.cpus.within(Level::Core, *core)));
        let shared = if options.strict_reservation { all.minus(&reserved) } else { all };
        let (held, reusable) = (BTreeMap::new(), (String::new(), CpuSet::default()));
        Ok(Self { machine, options, reserved, reserved_cores, shared, held, reusable })
    }

    /// Restores assignments from a checkpoint.
    ///
    /// # Errors
    /// They do not match the machine or the configuration.
    pub fn restored(mut self, shared: CpuSet, held: ByContainer<CpuSet>) -> Result<Self, String> {
        if shared.is_empty() {
            return if held.is_empty() { Ok(self) } else { Err("default cpuset cannot be empty".into()) };
        }
        let kept = self.reserved.common(&shared);
        if self.options.strict_reservation && !kept.is_empty() {
            let text = format!(
                "some of strictly reserved cpus: {:?} are present in defaultCpuSet: {:?}",
                kept.to_string(),
                shared.to_string()
            );
            return Err(text);
        }
        if !self.options.strict_reservation && kept != self.reserved {
            let (reserved, shared) = (self.reserved.to_string(), shared.to_string());
            return Err(format!("not all reserved cpus: {reserved:?} are present in defaultCpuSet: {shared:?}"));
        }
        let mut known = shared.clone();
        for (pod, containers) in &held {
            for (container, cpus) in containers {
                if !shared.common(cpus).is_empty() {
                    let (cpus, shared) = (cpus.to_string(), shared.to_string());
                    return Err(format!(
                        "pod: {pod}, container: {container} cpuset: {cpus:?} overlaps with default cpuset {shared:?}"
                    ));
                }
                known = known.plus(cpus);
            }
        }
        if self.options.strict_reservation {
            known = known.plus(&self.reserved);
        }
        let all = self.machine.cpus.all();
        if known != all {
            let (all, known) = (all.to_string(), known.to_string());
            return Err(format!("current set of available CPUs {all:?} doesn't match with CPUs in state {known:?}"));
        }
        (self.shared, self.held) = (shared, held);
        Ok(self)
    }

    /// Returns the shared pool.
    pub fn shared(&self) -> &CpuSet {
        &self.shared
    }
    /// Returns the exclusive CPUs of all containers.
    pub fn held(&self) -> &ByContainer<CpuSet> {
        &self.held
    }
    /// Returns the exclusive CPUs of one container.
    pub fn of(&self, pod: &str, container: &str) -> Option<&CpuSet> {
        self.held.get(pod)?.get(container)
    }
    /// Returns the CPUs that could be assigned if none were.
    pub fn allocatable(&self) -> CpuSet {
        self.machine.cpus.all().minus(&self.reserved)
    }
    /// Returns the CPUs that can be assigned now.
    pub fn free(&self) -> CpuSet {
        self.shared.minus(&self.reserved)
    }
    /// Returns whether only whole cores are assigned.
    pub fn is_by_core(&self) -> bool {
        self.options.whole_cores
    }
    /// Number of exclusive CPUs, by NUMA node.
    pub fn by_node(&self) -> BTreeMap<u32, usize> {
        let all = self.held.values().flat_map(BTreeMap::values).fold(CpuSet::default(), |s, cpus| s.plus(cpus));
        let taken = self.machine.cpus.only(&all);
        self.machine.cpus.ids(Level::Node).into_iter().map(|n| (n, taken.count(Level::Node, n))).collect()
    }
    /// Returns whether these CPUs share one last-level cache.
    pub fn shares_cache(&self, cpus: &CpuSet) -> bool {
        super::take::shares_cache(&self.machine, cpus)
    }

    /// NUMA hints for the CPUs of one container.
    pub fn hints(&self, pod: &Pod, c: &Container) -> ResourceHints {
        let wanted = whole_cpus(pod, c);
        if wanted == 0 {
            return ResourceHints::new();
        }
        let hints = match self.of(pod::uid(pod), &c.name) {
            Some(held) if held.len() != wanted => Vec::new(),
            Some(held) => self.places(held, &CpuSet::default(), wanted),
            None => self.places(&self.free(), self.reusable(pod::uid(pod)), wanted),
        };
        ResourceHints::from([("cpu".to_owned(), Some(hints))])
    }

    /// NUMA hints for all CPUs of a pod.
    pub fn pod_hints(&self, pod: &Pod) -> ResourceHints {
        let wanted = of_pod(pod);
        if wanted == 0 {
            return ResourceHints::new();
        }
        let mut has = CpuSet::default();
        for m in pod::members(pod).filter(|m| m.role != Role::Ephemeral) {
            let Some(held) = self.of(pod::uid(pod), &m.container.name) else { continue };
            if held.len() != whole_cpus(pod, &m.container) {
                return ResourceHints::from([("cpu".to_owned(), Some(Vec::new()))]);
            }
            has = has.plus(held);
        }
        let hints = match has.len() == wanted {
            true => self.places(&has, &CpuSet::default(), wanted),
            false => self.places(&self.free(), &self.reusable(pod::uid(pod)).plus(&has), wanted),
        };
        ResourceHints::from([("cpu".to_owned(), Some(hints))])
    }

    fn reusable(&self, pod: &str) -> &CpuSet {
        static NONE: std::sync::LazyLock<CpuSet> = std::sync::LazyLock::new(CpuSet::default);
        if self.reusable.0 == pod { &self.reusable.1 } else { &NONE }
    }

    fn places(&self, free: &CpuSet, own: &CpuSet, wanted: usize) -> Vec<NumaHint> {
        let cpus = &self.machine.cpus;
        let nodes: Vec<u32> = cpus.ids(Level::Node).into_iter().collect();
        let (free, own) = (cpus.only(free), cpus.only(own));
        let inside = |of: &super::layout::Cpus, mask: NodeMask| of.0.values().filter(|p| mask.has(p.node)).count();
        let mut least = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let mut places = Vec::new();
        for mask in subsets(&nodes) {
            if inside(cpus, mask) >= wanted {
                least = least.min(mask.count());
            }
            let has_own = inside(&own, mask) == own.0.len();
            if has_own && own.0.len() + inside(&free, mask) >= wanted {
                places.push(mask);
            }
        }
        let preferred =
            |mask: NodeMask| mask.count() == least || (self.options.by_socket && self.is_by_socket(mask, least));
        places.into_iter().map(|mask| NumaHint { nodes: Some(mask), preferred: preferred(mask) }).collect()
    }

    /// Returns whether these NUMA nodes are in as few sockets as `least` nodes can be.
    fn is_by_socket(&self, mask: NodeMask, least: u32) -> bool {
        let cpus = &self.machine.cpus;
        let of_socket = cpus.ids(Level::Node).len() / cpus.ids(Level::Socket).len().max(1);
        of_socket > 0 && self.sockets(mask).len() == (least as usize).div_ceil(of_socket)
    }

    fn sockets(&self, mask: NodeMask) -> std::collections::BTreeSet<u32> {
        self.machine.cpus.0.values().filter(|p| mask.has(p.node)).map(|p| p.socket).collect()
    }

    /// Assigns CPUs to a container, from the NUMA nodes in `hint` as far as possible. Returns the CPUs; `None` if it requests none or
    /// already has them.
    ///
    /// # Errors
    /// Why the request cannot be met.
    pub fn allocate(&mut self, pod: &Pod, m: &Member<'_>, hint: NumaHint) -> Result<Option<CpuSet>, PlacementRefusal> {
        let (uid, wanted) = (pod::uid(pod), whole_cpus(pod, &m.container));
        if wanted == 0 {
            return Ok(None);
        }
        self.by_core(wanted)?;
        if let Some(held) = self.of(uid, &m.container.name).cloned() {
            self.reuse(uid, m.role, &held);
            return Ok(None);
        }
        let free = self.free().plus(self.reusable(uid));
        let mut given = CpuSet::default();
        if let Some(mask) = hint.nodes {
            let near = free.common(&self.near(mask));
            let count = wanted.min(near.len());
            given = take(&self.machine, &near, count, self.options).map_err(PlacementRefusal::unexpected)?;
        }
        let rest = take(&self.machine, &free.minus(&given), wanted - given.len(), self.options);
        given = given.plus(&rest.map_err(PlacementRefusal::unexpected)?);
        self.shared = self.shared.minus(&given);
        self.held.entry(uid.to_owned()).or_default().insert(m.container.name.clone(), given.clone());
        self.reuse(uid, m.role, &given);
        Ok(Some(given))
    }

    fn by_core(&self, wanted: usize) -> Result<(), PlacementRefusal> {
        let each = self.machine.each(Level::Core).max(1);
        if !self.options.whole_cores {
            return Ok(());
        }
        if !wanted.is_multiple_of(each) {
            let text = format!("requested {wanted} cpus not multiple cpus per core = {each}");
            return Err(PlacementRefusal::cores(text));
        }
        let free = self.shared.minus(&self.reserved_cores).len();
        if wanted > free {
            let text = format!(
                "not enough free physical CPUs: available physical CPUs = {free}, requested CPUs = {wanted}, CPUs per core = {each}"
            );
            return Err(PlacementRefusal::cores(text));
        }
        Ok(())
    }

    fn near(&self, mask: NodeMask) -> CpuSet {
        let sockets = if self.options.by_socket { self.sockets(mask) } else { Default::default() };
        let near = self.machine.cpus.0.iter().filter(|(_, p)| mask.has(p.node) || sockets.contains(&p.socket));
        near.map(|(cpu, _)| *cpu).collect()
    }

    /// Keeps the CPUs of an init container for later containers of the pod.
    fn reuse(&mut self, uid: &str, role: Role, cpus: &CpuSet) {
        let before = self.reusable(uid).clone();
        let now = if role == Role::Init { before.plus(cpus) } else { before.minus(cpus) };
        self.reusable = (uid.to_owned(), now);
    }

    /// Releases the CPUs of pods for which `stays` is false. Returns the released CPUs.
    pub fn take_back(&mut self, stays: impl Fn(&str) -> bool) -> CpuSet {
        let mut freed = CpuSet::default();
        self.held.retain(|pod, containers| {
            let keeps = stays(pod);
            if !keeps {
                freed = containers.values().fold(freed.clone(), |s, cpus| s.plus(cpus));
            }
            keeps
        });
        self.shared = self.shared.plus(&freed);
        freed
    }
}

/// Number of exclusive CPUs of a container: its request, if that is a whole number and the pod is Guaranteed.
pub fn whole_cpus(pod: &Pod, c: &Container) -> usize {
    if !is_guaranteed_by_container(pod) {
        return 0;
    }
    let milli = pod::request(c, "cpu").map_or(0, |q| q.milli_value());
    if milli % 1000 == 0 { usize::try_from(milli / 1000).unwrap_or(0) } else { 0 }
}

/// Whether each container of a pod is Guaranteed by its own resources. Pod-level resources do not count (`PodLevelResourceManagers` is off
/// by default).
pub fn is_guaranteed_by_container(pod: &Pod) -> bool {
    let whole = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
    let asks = |r: &k8s_openapi::api::core::v1::ResourceRequirements| {
        [&r.requests, &r.limits].into_iter().any(|l| l.as_ref().is_some_and(|l| !l.is_empty()))
    };
    pod::qos_class(pod) == "Guaranteed" && !whole.is_some_and(asks)
}

/// Maximum number of exclusive CPUs of a pod at one time; init containers run one after another.
fn of_pod(pod: &Pod) -> usize {
    let (mut sidecars, mut steps, mut apps) = (0, 0, 0);
    for m in pod::members(pod) {
        let wanted = whole_cpus(pod, &m.container);
        match m.role {
            Role::Init => steps = steps.max(sidecars + wanted),
            Role::Sidecar => sidecars += wanted,
            Role::App => apps += wanted,
            Role::Ephemeral => {}
        }
    }
    steps.max(sidecars + apps)
}

#[cfg(test)]
#[path = "cpus_tests.rs"]
mod tests;
