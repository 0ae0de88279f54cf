//! Which processors and parts of memory containers get to themselves (`cpuManagerPolicy`, `memoryManagerPolicy`, `topologyManagerPolicy`).
use std::collections::BTreeMap;
use std::time::Duration;

use kelson_meta::Quantity;

use super::cpuset::CpuSet;

/// How many parts a machine may have at most where nobody says (upstream: `defaultMaxAllowableNUMANodes`): what is tried grows
/// with the power of their number.
pub const NODES_MAX: u32 = 8;

/// `cpuManagerPolicyOptions`: how processors are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// `full-pcpus-only`: whole cores or nothing.
    pub whole_cores: bool,
    /// `distribute-cpus-across-numa`: the same number from each part that it takes.
    pub across_nodes: bool,
    /// `align-by-socket`: the parts of one socket are as good as one part.
    pub by_socket: bool,
    /// `distribute-cpus-across-cores`: one thread of each core first.
    pub across_cores: bool,
    /// `strict-cpu-reservation`: no pod runs on what is reserved.
    pub strict_reservation: bool,
    /// `prefer-align-cpus-by-uncorecache`: from one last cache, where that has enough.
    pub by_cache: bool,
}

/// `topologyManagerPolicy`: how near to each other what a container has must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AlignmentPolicy {
    /// Nobody looks whether what a container has is near to each other.
    #[default]
    None,
    /// As near as it can be had.
    BestEffort,
    /// As near as the machine allows, or the pod fails.
    Restricted,
    /// All in one part of the machine, or the pod fails.
    SingleNumaNode,
}

/// `topologyManagerScope`: what must be near to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AlignmentScope {
    /// What one container has.
    #[default]
    Container,
    /// What the whole pod has.
    Pod,
}

/// One entry of `reservedMemory`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservedMemory {
    /// The part of the machine.
    pub node: u32,
    /// What no pod gets of it, by resource (`memory`, `hugepages-…`).
    pub amounts: BTreeMap<String, Quantity>,
}

/// All of it; by default nobody has anything to himself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementConfig {
    /// Whether `cpuManagerPolicy` is `static`.
    pub has_own_cpus: bool,
    /// `cpuManagerPolicyOptions` of the static policy.
    pub cpu_options: CpuOptions,
    /// `cpuManagerReconcilePeriod`: how often containers are looked at that share processors.
    pub reconcile_every: Duration,
    /// `reservedSystemCPUs`: the processors that are reserved by number; empty: by amount.
    pub reserved_cpus: CpuSet,
    /// Whether `memoryManagerPolicy` is `Static`.
    pub has_own_memory: bool,
    /// `reservedMemory`, entry by entry.
    pub reserved_memory: Vec<ReservedMemory>,
    /// `topologyManagerPolicy`: how near what is given must be.
    pub alignment: AlignmentPolicy,
    /// `topologyManagerScope`: whether that is judged by container or by pod.
    pub scope: AlignmentScope,
    /// `prefer-closest-numa-nodes` of `topologyManagerPolicyOptions`.
    pub prefers_closest: bool,
    /// `max-allowable-numa-nodes` of `topologyManagerPolicyOptions`.
    pub nodes_max: u32,
}

impl PlacementConfig {
    /// Whether containers may have CPUs or memory to themselves.
    pub fn is_exclusive(&self) -> bool {
        self.has_own_cpus || self.has_own_memory
    }
}

impl Default for PlacementConfig {
    fn default() -> Self {
        Self {
            has_own_cpus: false,
            cpu_options: CpuOptions::default(),
            reconcile_every: Duration::from_secs(10),
            reserved_cpus: CpuSet::default(),
            has_own_memory: false,
            reserved_memory: Vec::new(),
            alignment: AlignmentPolicy::None,
            scope: AlignmentScope::Container,
            prefers_closest: false,
            nodes_max: NODES_MAX,
        }
    }
}
